/* ctest: timeout=300
 *
 * Every op case: f32, bf16, f16 and autocast against f64, which the reference kernels compute; gradients against differences;
 * strided, empty and large inputs; one thread against two. Every op with a gradient must have a case.
 */
#include "op_cases.h"

#include "ops/node.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LARGE = 70000 }; /* elements: enough for two threads */

/* What a case gives: its output and the gradients of its inputs, as row-major f64. */
typedef struct result {
    tr_tensor *out, *grads[OP_CASE_INPUTS];
} result;

static tr_tensor *as_f64(tr_tensor *t)
{
    return tr_contiguous(tr_cast(t, TR_F64));
}

static result run(const op_case *c, op_variant variant)
{
    result r = {0};
    tr_tensor *in[OP_CASE_INPUTS] = {0};
    op_case_inputs(c, variant, true, in);
    tr_tensor *out = c->run(in);
    if (tr_status_of(out) != TR_OK) fail_msg("%s: %s", c->name, tr_error_message());
    if (tr_requires_grad(out)) {
        tr_tensor *g =
            tr_cast(tr_cast(tr_randn(99, tr_shape_of(out), .dtype = TR_F64), variant.round_to), tr_dtype_of(out));
        if (tr_backward(out, .gradient = g) != TR_OK) fail_msg("%s: %s", c->name, tr_error_message());
    }
    TR_NO_GRAD;
    r.out = as_f64(out);
    for (int i = 0; i < c->n; i++)
        if (tr_grad(in[i])) r.grads[i] = as_f64(tr_grad(in[i]));
    return r;
}

/* |got - expected| <= tolerance * (|expected| + the largest expected), element by element. */
static void compare(const char *name, const char *variant, const char *what, int i, tr_tensor *got, tr_tensor *expected,
    double tolerance)
{
    if (!got && !expected) return;
    if (!got || !expected) fail_msg("%s, %s: %s %d is missing in one", name, variant, what, i);
    assert_int_equal(tr_status_of(got), TR_OK);
    assert_int_equal(tr_numel(got), tr_numel(expected));
    assert_int_equal(tr_ndim(got), tr_ndim(expected));
    const double *x = tr_data(got), *y = tr_data(expected);
    double top = 0;
    for (int64_t k = 0; k < tr_numel(got); k++)
        if (fabs(y[k]) > top && isfinite(y[k])) top = fabs(y[k]);
    for (int64_t k = 0; k < tr_numel(got); k++) {
        if (x[k] == y[k] || (x[k] != x[k] && y[k] != y[k])) continue;
        if (!(fabs(x[k] - y[k]) <= tolerance * (fabs(y[k]) + top)))
            fail_msg("%s, %s: %s %d, element %lld: %.9g instead of %.9g", name, variant, what, i, (long long)k, x[k],
                     y[k]);
    }
}

static void compare_results(const op_case *c, const char *variant, result got, result expected, double tolerance)
{
    if (c->tolerance) tolerance *= c->tolerance;
    compare(c->name, variant, "output", 0, got.out, expected.out, tolerance);
    for (int i = 0; i < c->n; i++) compare(c->name, variant, "gradient", i, got.grads[i], expected.grads[i], tolerance);
}

/* How many times the first dimension, for an input or the output to be large. */
static int64_t large_batch(const op_case *c)
{
    TR_NO_GRAD;
    tr_tensor *in[OP_CASE_INPUTS] = {0};
    op_case_inputs(c, (op_variant){TR_F32, TR_F32, 1, false}, false, in);
    int64_t most = tr_numel(c->run(in));
    for (int i = 0; i < c->n; i++)
        if (tr_numel(in[i]) > most && !c->inputs[i].fixed) most = tr_numel(in[i]);
    return LARGE / most + 1;
}

#define FOR_EACH_CASE(c) for (const op_case *c = op_cases; c < op_cases + op_case_count; c++)

static void small_floats_agree_with_f64(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        tr_dtype dtype;
        double tolerance;
    } dtypes[] = {{"f32", TR_F32, 2e-6}, {"bf16", TR_BF16, 0x1p-6}, {"f16", TR_F16, 0x1p-9}};
    FOR_EACH_CASE(c)
        for (int k = 0; k < 3; k++)
            for (int strided = 0; strided < 2; strided++) {
                TR_SCOPE;
                result got = run(c, (op_variant){dtypes[k].dtype, dtypes[k].dtype, 1, strided});
                result expected = run(c, (op_variant){TR_F64, dtypes[k].dtype, 1, false});
                compare_results(c, dtypes[k].name, got, expected, dtypes[k].tolerance);
            }
}

static void autocast_agrees_with_f64(void **state)
{
    (void)state;
    FOR_EACH_CASE(c) {
        TR_SCOPE;
        tr_dtype before = tr_set_autocast(TR_BF16);
        result got = run(c, (op_variant){TR_F32, TR_BF16, 1, false});
        tr_set_autocast(before);
        compare_results(c, "autocast", got, run(c, (op_variant){TR_F64, TR_BF16, 1, false}), 0x1p-6);
    }
}

static void strides_do_not_matter_in_f64(void **state)
{
    (void)state;
    FOR_EACH_CASE(c) {
        TR_SCOPE;
        result got = run(c, (op_variant){TR_F64, TR_F64, 1, true}),
               expected = run(c, (op_variant){TR_F64, TR_F64, 1, false});
        compare_results(c, "strided f64", got, expected, 1e-14);
    }
}

static void large_inputs_agree_with_f64_on_one_thread_and_on_two(void **state)
{
    (void)state;
    FOR_EACH_CASE(c) {
        TR_SCOPE;
        int64_t batch = large_batch(c);
        assert_int_equal(tr_set_threads(2), TR_OK);
        result two = run(c, (op_variant){TR_F32, TR_F32, batch, false});
        result expected = run(c, (op_variant){TR_F64, TR_F32, batch, false});
        assert_int_equal(tr_set_threads(1), TR_OK);
        result one = run(c, (op_variant){TR_F32, TR_F32, batch, false});
        result expected_of_one = run(c, (op_variant){TR_F64, TR_F32, batch, false});
        assert_int_equal(tr_set_threads(0), TR_OK);
        compare_results(c, "large f32", two, expected, 2e-6);
        compare_results(c, "f32 on one thread", one, two, 0);
        compare_results(c, "f64 on one thread", expected_of_one, expected, 0);
    }
}

static void empty_inputs_give_empty_results(void **state)
{
    (void)state;
    FOR_EACH_CASE(c) {
        TR_SCOPE;
        for (int k = 0; k < 2 && !c->not_empty; k++) run(c, (op_variant){k ? TR_F64 : TR_F32, TR_F32, 0, false});
        if (!c->not_empty) continue;
        tr_tensor *in[OP_CASE_INPUTS] = {0};
        op_case_inputs(c, (op_variant){TR_F32, TR_F32, 0, false}, false, in);
        assert_int_equal(tr_status_of(c->run(in)), TR_SHAPE);
    }
}

static tr_tensor *call_case(tr_tensor *const *in, int n, void *user)
{
    (void)n;
    return ((const op_case *)user)->run(in);
}

static void gradients_agree_with_differences(void **state)
{
    (void)state;
    FOR_EACH_CASE(c) {
        TR_SCOPE;
        tr_tensor *in[OP_CASE_INPUTS] = {0};
        if (c->kinked) continue;
        op_case_inputs(c, (op_variant){TR_F64, TR_F64, 1, false}, true, in);
        if (tr_grad_check(call_case, in, c->n, (void *)c, 1e-7 * (c->tolerance ? c->tolerance : 1)) != TR_OK)
            fail_msg("%s: %s", c->name, tr_error_message());
    }
}

static void mark(const tr__node *node, bool *seen)
{
    if (!node) return;
    if (node->op >= tr__ops && node->op < tr__ops + TR__OP_COUNT) seen[node->op - tr__ops] = true;
    for (int i = 0; i < node->n_inputs; i++) mark(node->edges[i].node, seen);
}

static void every_op_with_a_gradient_has_a_case(void **state)
{
    (void)state;
    bool seen[TR__OP_COUNT] = {false};
    FOR_EACH_CASE(c) {
        TR_SCOPE;
        tr_tensor *in[OP_CASE_INPUTS] = {0};
        op_case_inputs(c, (op_variant){TR_F64, TR_F64, 1, false}, true, in);
        mark(c->run(in)->node, seen);
    }
    for (int i = 0; i < TR__OP_COUNT; i++)
        if (tr__ops[i].backward && !seen[i]) fail_msg("the op %s has no case in op_cases.c", tr__ops[i].name);
}

int main(void)
{
    setenv("TRIREME_CPU_DEVICES", "2", 1); /* for the op that copies between devices */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_floats_agree_with_f64),
        cmocka_unit_test(autocast_agrees_with_f64),
        cmocka_unit_test(strides_do_not_matter_in_f64),
        cmocka_unit_test(large_inputs_agree_with_f64_on_one_thread_and_on_two),
        cmocka_unit_test(empty_inputs_give_empty_results),
        cmocka_unit_test(gradients_agree_with_differences),
        cmocka_unit_test(every_op_with_a_gradient_has_a_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
