/* ctest: timeout=300
 *
 * Every op case: f32, bf16, f16 and autocast against f64, which the reference kernels compute; gradients against differences;
 * strided, empty and large inputs; strided and expanded gradients; one thread against two. Every op must have a case.
 */
#include "op_cases.h"

#include "base/profile.h"
#include "ops/node.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LARGE = 70000 }; /* elements: enough for two threads */

/* How the gradient that arrives lies in memory. */
typedef enum layout {
    DENSE,
    SPREAD,     /* in another order, with gaps */
    ONE_ROW,    /* one row for all places in the first dimension, which has stride 0 */
    ONE_NUMBER, /* all strides are 0, as those of sum's gradient */
} layout;

/* Of numbers as they are in that layout, but dense if `dense`. */
typedef struct arriving {
    tr_dtype round_to;
    layout lies;
    bool dense;
} arriving;

static tr_tensor *gradient_for(tr_tensor *out, const void *user)
{
    const arriving *a = user;
    tr_shape shape = tr_shape_of(out), first = shape;
    if (a->lies == ONE_NUMBER) first = TR_SCALAR;
    if (a->lies == ONE_ROW && first.ndim) first.dim[0] = 1;
    tr_tensor *g = tr_cast(tr_cast(tr_randn(99, first, .dtype = TR_F64), a->round_to), tr_dtype_of(out));
    g = a->lies == SPREAD ? op_case_spread(g) : tr_expand(g, shape);
    return a->dense ? tr_contiguous(g) : g;
}

static op_result run_with(const op_case *c, op_variant variant, layout gradient, bool dense)
{
    tr_tensor *in[OP_CASE_INPUTS] = {0};
    op_case_inputs(c, variant, true, in);
    return op_case_run(c, in, gradient_for, &(arriving){variant.round_to, gradient, dense});
}

static op_result run(const op_case *c, op_variant variant)
{
    return run_with(c, variant, DENSE, true);
}

/* |got - expected| <= tolerance * (|expected| + the largest expected, or `least` if that is larger), element by element. */
static void compare(const char *name, const char *variant, const char *what, int i, tr_tensor *got, tr_tensor *expected,
    double tolerance, double least)
{
    if (!got && !expected) return;
    if (!got || !expected) fail_msg("%s, %s: %s %d is missing in one", name, variant, what, i);
    assert_int_equal(tr_status_of(got), TR_OK);
    assert_int_equal(tr_numel(got), tr_numel(expected));
    assert_int_equal(tr_ndim(got), tr_ndim(expected));
    const double *x = tr_data(got), *y = tr_data(expected);
    double top = least;
    for (int64_t k = 0; k < tr_numel(got); k++)
        if (fabs(y[k]) > top && isfinite(y[k])) top = fabs(y[k]);
    for (int64_t k = 0; k < tr_numel(got); k++) {
        if (x[k] == y[k] || (x[k] != x[k] && y[k] != y[k])) continue;
        if (!(fabs(x[k] - y[k]) <= tolerance * (fabs(y[k]) + top)))
            fail_msg("%s, %s: %s %d, element %lld: %.9g instead of %.9g", name, variant, what, i, (long long)k, x[k],
                     y[k]);
    }
}

static void compare_results(const op_case *c, const char *variant, op_result got, op_result expected, double tolerance,
    double least)
{
    if (c->tolerance) tolerance *= c->tolerance;
    compare(c->name, variant, "output", 0, got.out, expected.out, tolerance, least);
    for (int i = 0; i < c->n; i++)
        compare(c->name, variant, "gradient", i, got.grads[i], expected.grads[i], tolerance, least);
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
                op_result got = run(c, (op_variant){dtypes[k].dtype, dtypes[k].dtype, 1, strided});
                op_result expected = run(c, (op_variant){TR_F64, dtypes[k].dtype, 1, false});
                compare_results(c, dtypes[k].name, got, expected, dtypes[k].tolerance, 0);
            }
}

static void autocast_agrees_with_f64(void **state)
{
    (void)state;
    FOR_EACH_CASE(c) {
        TR_SCOPE;
        tr_dtype before = tr_set_autocast(TR_BF16);
        op_result got = run(c, (op_variant){TR_F32, TR_BF16, 1, false});
        tr_set_autocast(before);
        compare_results(c, "autocast", got, run(c, (op_variant){TR_F64, TR_BF16, 1, false}), 0x1p-6, 0);
    }
}

static void strides_do_not_matter_in_f64(void **state)
{
    (void)state;
    FOR_EACH_CASE(c) {
        TR_SCOPE;
        op_result got = run(c, (op_variant){TR_F64, TR_F64, 1, true}),
               expected = run(c, (op_variant){TR_F64, TR_F64, 1, false});
        compare_results(c, "strided f64", got, expected, 1e-14, 0);
    }
}

/* Of norms and softmax the gradient of equal numbers is 0, of which only rounding errors are left: hence the `least`. */
static void gradients_may_arrive_in_any_layout(void **state)
{
    (void)state;
    static const char *const layouts[] = {"a dense gradient", "a strided gradient", "a gradient of one row",
        "a gradient of one number"};
    static const tr_dtype dtypes[] = {TR_F32, TR_F64, TR_BF16, TR_F16};
    static const double tolerances[] = {2e-6, 1e-14, 0x1p-6, 0x1p-9};
    FOR_EACH_CASE(c)
        for (int k = 0; k < 4; k++)
            for (layout gradient = SPREAD; gradient <= ONE_NUMBER; gradient++) {
                TR_SCOPE;
                op_result got = run_with(c, (op_variant){dtypes[k], dtypes[k], 1, false}, gradient, false);
                op_result expected = run_with(c, (op_variant){TR_F64, dtypes[k], 1, false}, gradient, true);
                compare_results(c, layouts[gradient], got, expected, tolerances[k], 1);
            }
}

static void large_inputs_agree_with_f64_on_one_thread_and_on_two(void **state)
{
    (void)state;
    FOR_EACH_CASE(c) {
        TR_SCOPE;
        int64_t batch = op_case_batch(c, LARGE);
        assert_int_equal(tr_set_threads(2), TR_OK);
        op_result two = run(c, (op_variant){TR_F32, TR_F32, batch, false});
        op_result expected = run(c, (op_variant){TR_F64, TR_F32, batch, false});
        assert_int_equal(tr_set_threads(1), TR_OK);
        op_result one = run(c, (op_variant){TR_F32, TR_F32, batch, false});
        op_result expected_of_one = run(c, (op_variant){TR_F64, TR_F32, batch, false});
        assert_int_equal(tr_set_threads(0), TR_OK);
        compare_results(c, "large f32", two, expected, 2e-6, 0);
        compare_results(c, "f32 on one thread", one, two, 0, 0);
        compare_results(c, "f64 on one thread", expected_of_one, expected, 0, 0);
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
        if (c->no_grad_check) continue;
        op_case_inputs(c, (op_variant){TR_F64, TR_F64, 1, false}, true, in);
        if (tr_grad_check(call_case, in, c->n, (void *)c, 1e-7 * (c->tolerance ? c->tolerance : 1)) != TR_OK)
            fail_msg("%s: %s", c->name, tr_error_message());
    }
}

static void mark_nodes(const tr__node *node, bool *seen)
{
    if (!node) return;
    if (node->op >= tr__ops && node->op < tr__ops + TR__OP_COUNT) seen[node->op - tr__ops] = true;
    for (int i = 0; i < node->n_inputs; i++) mark_nodes(node->edges[i].node, seen);
}

/* Of the kernels that ran in forward and backward, as a profile names them. */
static void mark_kernels(bool *seen)
{
    size_t count, lost;
    const tr__span *spans = tr__profile_spans(&count, &lost);
    assert_int_equal(lost, 0);
    for (size_t k = 0; k < count; k++)
        for (int i = 0; i < TR__OP_COUNT; i++)
            if (spans[k].kind == TR__SPAN_OP && strcmp(spans[k].name, tr__ops[i].name) == 0) seen[i] = true;
    tr__profile_drop();
}

/* The gradients in all layouts reach an op as they are where it makes a case's output. */
static void every_op_has_a_case_and_every_gradient_one_where_it_arrives_first(void **state)
{
    (void)state;
    bool seen[TR__OP_COUNT] = {false}, last[TR__OP_COUNT] = {false};
    FOR_EACH_CASE(c) {
        TR_SCOPE;
        tr_tensor *in[OP_CASE_INPUTS] = {0};
        op_case_inputs(c, (op_variant){TR_F64, TR_F64, 1, false}, true, in);
        assert_int_equal(tr__profile_start(), TR_OK);
        tr_tensor *out = c->run(in);
        mark_nodes(out->node, seen);
        if (out->node && tr_numel(out) > 1 && out->node->op >= tr__ops && out->node->op < tr__ops + TR__OP_COUNT)
            last[out->node->op - tr__ops] = true;
        if (out->node) assert_int_equal(tr_backward(out, .gradient = gradient_for(out, &(arriving){TR_F64, DENSE, true})), TR_OK);
        tr__profile_stop();
        mark_kernels(seen);
    }
    for (int i = 0; i < TR__OP_COUNT; i++) {
        if (!seen[i]) fail_msg("no case in op_cases.c runs the op %s", tr__ops[i].name);
        if (tr__ops[i].backward && !last[i])
            fail_msg("no case in op_cases.c returns an output of the op %s, of more than one element", tr__ops[i].name);
    }
}

static void a_cases_values_follow_from_its_name_alone(void **state)
{
    (void)state;
    FOR_EACH_CASE(c) {
        TR_SCOPE;
        op_case elsewhere = *c;
        tr_tensor *in[OP_CASE_INPUTS], *same[OP_CASE_INPUTS];
        op_case_inputs(c, (op_variant){TR_F64, TR_F64, 1, false}, false, in);
        op_case_inputs(&elsewhere, (op_variant){TR_F64, TR_F64, 1, false}, false, same);
        for (int i = 0; i < c->n; i++)
            compare(c->name, "elsewhere", "input", i, tr_cast(same[i], TR_F64), tr_cast(in[i], TR_F64), 0, 0);
        for (const op_case *other = op_cases; other < c; other++)
            if (strcmp(other->name, c->name) == 0) fail_msg("two cases have the name \"%s\"", c->name);
    }
}

int main(void)
{
    setenv("TRIREME_CPU_DEVICES", "2", 1); /* for the op that copies between devices */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_floats_agree_with_f64),
        cmocka_unit_test(autocast_agrees_with_f64),
        cmocka_unit_test(strides_do_not_matter_in_f64),
        cmocka_unit_test(gradients_may_arrive_in_any_layout),
        cmocka_unit_test(large_inputs_agree_with_f64_on_one_thread_and_on_two),
        cmocka_unit_test(empty_inputs_give_empty_results),
        cmocka_unit_test(gradients_agree_with_differences),
        cmocka_unit_test(every_op_has_a_case_and_every_gradient_one_where_it_arrives_first),
        cmocka_unit_test(a_cases_values_follow_from_its_name_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
