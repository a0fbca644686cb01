/* ctest: timeout=300
 *
 * NaN goes through every op. Of each case's float inputs, and of the gradient that arrives at its output, one element
 * after the other is made NaN; then every number that depends on this element must be NaN:
 *
 *   - elements of the output that change when the element becomes much larger or smaller, or a little; unless the case
 * says what its op takes NaN for (op_nan), which is checked instead;
 *   - elements of the inputs' gradients that change with an element of the gradient that arrives;
 *   - elements of the inputs' gradients that change a little when an element of an input does. What jumps, as relu's
 * slope at 0 and the choice of the largest, may take either side.
 *
 * In all float types, and in large tensors.
 */
#include "op_cases.h"

#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LARGE = 70000, ELEMENTS = 4, LARGE_ELEMENTS = 2 };

/* What becomes of one element of an input, or (input -1) of the gradient that arrives. */
typedef struct change {
    int input;
    int64_t at;
    enum { NOTHING, ADD, SCALE, SET_NAN } how;
    double by; /* of ADD and SCALE */
    int which; /* of set_nan()'s */
} change;

/* Writes one of four NaNs: arithmetic's; its negative; all bits set, where rounding up would overflow; and the
 * signalling NaN whose upper half is that of infinity, where truncation would lose it. */
static void set_nan(tr_tensor *t, int64_t at, int which)
{
    static const uint64_t wide[] = {0x7ff8000000000000, 0xfff8000000000000, 0x7fffffffffffffff, 0x7ff0000000000001};
    static const uint32_t middle[] = {0x7fc00000, 0xffc00000, 0x7fffffff, 0x7f800001};
    static const uint16_t bf16[] = {0x7fc0, 0xffc0, 0x7fff, 0x7f81}, f16[] = {0x7e00, 0xfe00, 0x7fff, 0x7c01};
    tr_dtype dtype = tr_dtype_of(t);
    char *to = (char *)tr_data(t) + (size_t)at * tr_dtype_size(dtype);
    const void *from = dtype == TR_F64   ? (const void *)&wide[which]
                       : dtype == TR_F32 ? (const void *)&middle[which]
                                         : (const void *)&(dtype == TR_BF16 ? bf16 : f16)[which];
    memcpy(to, from, tr_dtype_size(dtype));
}

static void apply(const change *what, tr_tensor *t)
{
    TR_NO_GRAD;
    if (what->how == NOTHING) return;
    if (what->how == SET_NAN) {
        set_nan(t, what->at, what->which);
        return;
    }
    tr_tensor *place = tr_slice(tr_reshape(tr_detach(t), TR_SHAPE(-1)), 0, what->at, what->at + 1);
    tr_tensor *value = what->how == ADD ? tr_affine(place, 1, what->by) : tr_affine(place, 1 + what->by, what->by);
    TR_CHECK(tr_copy_into(place, value));
}

typedef struct arriving {
    tr_dtype round_to;
    const change *what;
} arriving;

static tr_tensor *gradient_for(tr_tensor *out, const void *user)
{
    const arriving *a = user;
    tr_tensor *g = tr_cast(tr_cast(tr_randn(99, tr_shape_of(out), .dtype = TR_F64), a->round_to), tr_dtype_of(out));
    if (a->what->input < 0) apply(a->what, g);
    return g;
}

static op_result run(const op_case *c, op_variant variant, const change *what)
{
    tr_tensor *in[OP_CASE_INPUTS] = {0};
    op_case_inputs(c, variant, true, in);
    if (what->input >= 0) apply(what, in[what->input]);
    return op_case_run(c, in, gradient_for, &(arriving){variant.round_to, what});
}

static bool same(double a, double b)
{
    return a == b || (a != a && b != b);
}

/* Marks what differs from the base by more than 0, and no more than `most` times what it was or 1. */
static void mark_changes(bool *marks, tr_tensor *base, tr_tensor *moved, double most)
{
    const double *x = tr_data(base), *y = tr_data(moved);
    for (int64_t k = 0; k < tr_numel(base); k++)
        if (!same(x[k], y[k]) && !(fabs(x[k] - y[k]) > most * fmax(1, fabs(x[k])))) marks[k] = true;
}

typedef struct trial {
    const op_case *c;
    op_variant variant, reference; /* of the run with a NaN, and of those that show what depends on what */
    change what;
    op_result base, moved[4]; /* of the reference: as it is; much larger, much smaller; and in f64, a little */
    op_result got;
} trial;

static void fail_at(const trial *t, const char *what, int i, int64_t k, double got, const char *expected)
{
    fail_msg("%s, %s%s: element %lld of %s %d is NaN, and element %lld of %s %d is %g: it must be %s", t->c->name,
             tr_dtype_name(t->variant.dtype), t->variant.batch > 1 ? ", large" : "", (long long)t->what.at,
             t->what.input < 0 ? "the gradient of output" : "input", t->what.input < 0 ? 0 : t->what.input,
             (long long)k, what, i, got, expected);
}

/* Every marked element of got is NaN. */
static void expect_nan(const trial *t, const char *what, int i, const bool *marks, tr_tensor *got)
{
    const double *x = tr_data(got);
    for (int64_t k = 0; k < tr_numel(got); k++)
        if (marks[k] && x[k] == x[k]) fail_at(t, what, i, k, x[k], "NaN");
}

/* NaN ranks as a number that is larger (smaller) than all others would. */
static void expect_ranked(const trial *t)
{
    change extreme = {t->what.input, t->what.at, ADD, t->c->nan == OP_NAN_IS_LARGEST ? 1e4 : -1e4, 0};
    op_result ranked = run(t->c, t->variant, &extreme);
    const double *x = tr_data(t->got.out), *y = tr_data(ranked.out);
    for (int64_t k = 0; k < tr_numel(t->got.out); k++) {
        if (fabs(y[k]) > 9e3 && x[k] == x[k]) fail_at(t, "output", 0, k, x[k], "NaN");
        if (fabs(y[k]) <= 9e3 && x[k] != y[k]) fail_at(t, "output", 0, k, x[k], "as if that were the largest number");
    }
}

static void check_output(const trial *t, const bool *marks)
{
    const double *x = tr_data(t->got.out), truth = t->c->nan == OP_NAN_IS_UNEQUAL;
    switch (t->c->nan) {
    case OP_NAN_STAYS:
        expect_nan(t, "output", 0, marks, t->got.out);
        return;
    case OP_NAN_IS_LARGEST:
    case OP_NAN_IS_SMALLEST:
        expect_ranked(t);
        return;
    case OP_NAN_COMPARES_FALSE:
    case OP_NAN_IS_UNEQUAL:
        for (int64_t k = 0; k < tr_numel(t->got.out); k++)
            if (marks[k] && x[k] != truth) fail_at(t, "output", 0, k, x[k], truth ? "1" : "0");
    }
}

static void check_trial(trial *t)
{
    static const struct {
        int how;
        double by;
    } moves[] = {{ADD, 1e3}, {ADD, -1e3}, {SCALE, 1e-7}, {SCALE, -1e-7}};
    TR_SCOPE;
    bool arrives = t->what.input < 0;
    int count = t->reference.dtype == TR_F64 ? 4 : 2;
    for (int m = 0; m < count; m++)
        t->moved[m] = run(t->c, t->reference, &(change){t->what.input, t->what.at, moves[m].how, moves[m].by, 0});
    t->got = run(t->c, t->variant, &t->what);
    int64_t most = tr_numel(t->base.out);
    for (int i = 0; i < t->c->n; i++)
        if (t->base.grads[i] && tr_numel(t->base.grads[i]) > most) most = tr_numel(t->base.grads[i]);
    bool *marks = calloc((size_t)most + 1, 1);
    assert_non_null(marks);

    for (int m = 0; m < count; m++) mark_changes(marks, t->base.out, t->moved[m].out, INFINITY);
    check_output(t, marks);
    for (int i = 0; i < t->c->n; i++) {
        if (!t->base.grads[i]) continue;
        memset(marks, 0, (size_t)most);
        for (int m = arrives ? 0 : 2; m < count; m++)
            mark_changes(marks, t->base.grads[i], t->moved[m].grads[i], arrives ? INFINITY : 1e-4);
        expect_nan(t, "the gradient of input", i, marks, t->got.grads[i]);
    }
    free(marks);
}

/* `elements` elements of each input and of the gradient: the first, the last, and others. */
static void check_case(const op_case *c, op_variant variant, op_variant reference, int elements)
{
    TR_SCOPE;
    tr_tensor *in[OP_CASE_INPUTS] = {0};
    op_case_inputs(c, reference, true, in);
    trial t = {.c = c, .variant = variant, .reference = reference};
    t.base = run(c, reference, &(change){.how = NOTHING});
    bool has_gradient = false;
    for (int i = 0; i < c->n; i++) has_gradient = has_gradient || t.base.grads[i];
    for (int i = has_gradient ? -1 : 0; i < c->n; i++) {
        if (i >= 0 && !tr_requires_grad(in[i])) continue;
        int64_t n = tr_numel(i < 0 ? t.base.out : in[i]);
        for (int k = 0; k < elements && k < n; k++) {
            int64_t other = (int64_t)(tr__mix((uint64_t)i, (uint64_t)k) % (uint64_t)n);
            t.what = (change){i, k == 0 ? 0 : k == 1 ? n - 1 : other, SET_NAN, 0, k};
            check_trial(&t);
        }
    }
}

static void nan_goes_through_in_all_types(void **state)
{
    (void)state;
    static const tr_dtype dtypes[] = {TR_F64, TR_F32, TR_BF16, TR_F16};
    for (const op_case *c = op_cases; c < op_cases + op_case_count; c++)
        for (int k = 0; k < 4; k++)
            check_case(c, (op_variant){dtypes[k], dtypes[k], 1, false}, (op_variant){TR_F64, dtypes[k], 1, false},
                       ELEMENTS);
}

/* Which are cut up, in the same way for any number of threads. By f32 alone, as f64 takes long: it loses small changes,
 * so of a NaN in an input only the output is looked at. */
static void nan_goes_through_large_tensors(void **state)
{
    (void)state;
    assert_int_equal(tr_set_threads(1), TR_OK);
    for (const op_case *c = op_cases; c < op_cases + op_case_count; c++) {
        op_variant variant = {TR_F32, TR_F32, op_case_batch(c, LARGE), false};
        check_case(c, variant, variant, LARGE_ELEMENTS);
    }
    assert_int_equal(tr_set_threads(0), TR_OK);
}

int main(void)
{
    setenv("TRIREME_CPU_DEVICES", "2", 1); /* for the op that copies between devices */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nan_goes_through_in_all_types),
        cmocka_unit_test(nan_goes_through_large_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
