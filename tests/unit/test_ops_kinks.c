/* Which side an op takes where it has a kink or jumps, and which of equal elements. Two kernels that agree there may
 * both be wrong, and a check by differences does not see it. So each elementwise op is tried on the multiples of 0.5
 * from -8 to 8, in one input after the other while the others are 0.5, and its values a step to the left and to the
 * right of them tell where it is not smooth. Its case must name all these places and the side that the op takes
 * (op_kink). Values and gradients must be those of that side, in all float types.
 */
#include "op_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>

#include <cmocka.h>

enum { POINTS = 33 };
static const double STEP = 0x1p-16; /* exact in f32, too */

static double point(int64_t k)
{
    return (double)(k % POINTS) / 2 - 8;
}

static tr_tensor *ones_for(tr_tensor *out, const void *user)
{
    (void)user;
    return tr_ones(tr_shape_of(out), .dtype = tr_dtype_of(out));
}

/* Inputs large enough for all points, with 0.5 in those that are floats. */
static void inputs(const op_case *c, tr_dtype dtype, tr_tensor **in)
{
    TR_NO_GRAD;
    op_case_inputs(c, (op_variant){dtype, TR_F64, op_case_batch(c, POINTS), false}, true, in);
    for (int i = 0; i < c->n; i++)
        if (tr_requires_grad(in[i])) TR_CHECK(tr_fill(tr_detach(in[i]), 0.5));
}

/* Does the first element of the input change the first of the output and no other, and the last the last? */
static bool is_elementwise(const op_case *c, int tried)
{
    TR_SCOPE;
    tr_tensor *in[OP_CASE_INPUTS] = {0};
    inputs(c, TR_F64, in);
    tr_tensor *out = tr_contiguous(tr_detach(c->run(in)));
    int64_t n = tr_numel(in[tried]);
    if (!tr_requires_grad(in[tried]) || n < POINTS || tr_numel(out) != n) return false;
    for (int end = 0; end < 2; end++) {
        int64_t at = end ? n - 1 : 0;
        bool changes = false;
        for (int sign = -1; sign <= 1; sign += 2) {
            inputs(c, TR_F64, in);
            ((double *)tr_data(in[tried]))[at] = 100 * sign;
            tr_tensor *moved = tr_contiguous(tr_detach(c->run(in)));
            const double *before = tr_data(out), *after = tr_data(moved);
            for (int64_t k = 0; k < n; k++) {
                bool differs = before[k] != after[k] && (before[k] == before[k] || after[k] == after[k]);
                if (differs && k != at) return false;
                changes = changes || differs;
            }
        }
        if (!changes) return false;
    }
    return true;
}

/* The points, all moved by `by`, in the input that is tried. */
static op_result run(const op_case *c, tr_dtype dtype, int tried, double by)
{
    tr_tensor *in[OP_CASE_INPUTS] = {0};
    inputs(c, dtype, in);
    tr_tensor *points = tr_empty(tr_shape_of(in[tried]), .dtype = TR_F64);
    for (int64_t k = 0; k < tr_numel(points); k++) ((double *)tr_data(points))[k] = point(k) + by;
    TR_CHECK(tr_copy_into(tr_detach(in[tried]), tr_cast(points, dtype)));
    return op_case_run(c, in, ones_for, NULL);
}

static op_side side_at(const op_case *c, int input, double x)
{
    for (const op_kink *k = c->kinks; k->side; k++)
        if (k->input == input && k->x == x) return k->side;
    return OP_SMOOTH;
}

/* A function at a point, and a step beside it. */
typedef struct place {
    double x, value, left, right;
    double slope_left, slope_right;
    bool jumps, bends;
} place;

static place place_of(op_result at, op_result left, op_result right, int64_t k)
{
    place p = {.x = point(k), .value = ((double *)tr_data(at.out))[k]};
    p.left = ((double *)tr_data(left.out))[k];
    p.right = ((double *)tr_data(right.out))[k];
    p.slope_left = (p.value - p.left) / STEP;
    p.slope_right = (p.right - p.value) / STEP;
    p.jumps = fmax(fabs(p.value - p.left), fabs(p.right - p.value)) > 1e-2 * (1 + fabs(p.value));
    p.bends = fabs(p.slope_right - p.slope_left) > 1e-3 * (1 + fmin(fabs(p.slope_left), fabs(p.slope_right)));
    return p;
}

/* Of two values or slopes, that of the side; `alone` for a value that is neither's. */
static double of_side(op_side side, double left, double right, double alone)
{
    return side == OP_LEFT ? left : side == OP_RIGHT ? right : side == OP_ALONE ? alone : (left + right) / 2;
}

static void check_side(const op_case *c, int i, const place *p)
{
    op_side side = side_at(c, i, p->x);
    if (!p->bends && side) fail_msg("%s: input %d has no kink at %g, though its case says so", c->name, i, p->x);
    if (p->bends && !side)
        fail_msg(
            "%s: input %d has a kink at %g, with slope %g on the left and %g on the right: name the side that the op "
            "takes in its case, as in .kinks = {{%d, %g, OP_LEFT}}",
            c->name, i, p->x, p->slope_left, p->slope_right, i, p->x);
    if (p->jumps && fabs(p->value - of_side(side, p->left, p->right, p->value)) > 1e-2 * (1 + fabs(p->value)))
        fail_msg("%s: input %d at %g, where it jumps: %g; left of it %g, right of it %g", c->name, i, p->x, p->value,
                 p->left, p->right);
}

static void check_input(const op_case *c, int i)
{
    TR_SCOPE;
    op_result at = run(c, TR_F64, i, 0), left = run(c, TR_F64, i, -STEP), right = run(c, TR_F64, i, STEP), got[4];
    static const tr_dtype dtypes[] = {TR_F64, TR_F32, TR_BF16, TR_F16};
    for (int d = 0; d < 4; d++) got[d] = run(c, dtypes[d], i, 0);
    for (int64_t k = 0; k < POINTS; k++) {
        place p = place_of(at, left, right, k);
        if (!isfinite(p.value) || !isfinite(p.left) || !isfinite(p.right)) continue;
        check_side(c, i, &p);
        double slope = of_side(side_at(c, i, p.x), p.slope_left, p.slope_right, 0);
        double gap = p.bends ? fabs(p.slope_right - p.slope_left) / 8 : INFINITY;
        for (int d = 0; d < 4; d++) {
            double value = ((double *)tr_data(got[d].out))[k];
            if (!(fabs(value - p.value) <= 2e-2 * (1 + fabs(p.value))))
                fail_msg("%s, %s: input %d at %g: %g instead of %g", c->name, tr_dtype_name(dtypes[d]), i, p.x, value,
                         p.value);
            if (!got[d].grads[i]) continue;
            double gradient = ((double *)tr_data(got[d].grads[i]))[k];
            if (!(fabs(gradient - slope) <= fmin(2e-2 * (1 + fabs(slope)), gap)))
                fail_msg("%s, %s: the gradient of input %d at %g is %g instead of %g (slope %g on the left, %g on the "
                         "right)",
                         c->name, tr_dtype_name(dtypes[d]), i, p.x, gradient, slope, p.slope_left, p.slope_right);
        }
    }
}

static void ops_take_the_side_that_their_case_names(void **state)
{
    (void)state;
    for (const op_case *c = op_cases; c < op_cases + op_case_count; c++) {
        bool tried[OP_CASE_INPUTS] = {false};
        for (int i = 0; i < c->n; i++)
            if ((tried[i] = is_elementwise(c, i))) check_input(c, i);
        for (const op_kink *k = c->kinks; k->side; k++)
            if (!tried[k->input])
                fail_msg("%s: its case names kinks of input %d, of which it is not elementwise", c->name, k->input);
    }
}

enum { ROW = 6 };
static const double row[ROW] = {2, 5, 5, 1, 5, 1};

static tr_tensor *row_of(tr_dtype dtype)
{
    return tr_require_grad(tr_detach(tr_cast(tr_from(row, TR_SHAPE(1, 1, ROW), .dtype = TR_F64), dtype)));
}

static void check_row(const char *what, tr_dtype dtype, tr_tensor *got, const double *expected)
{
    const double *x = tr_data(tr_contiguous(tr_cast(got, TR_F64)));
    for (int i = 0; i < ROW; i++)
        if (fabs(x[i] - expected[i]) > 2e-3)
            fail_msg("%s, %s: element %d is %g instead of %g", what, tr_dtype_name(dtype), i, x[i], expected[i]);
}

/* Equal largest (smallest) elements share the gradient; where one is chosen, it is the first, and they stay in order.
 */
static void of_equal_elements_all_count_or_the_first(void **state)
{
    (void)state;
    static const double top[ROW] = {0, 1 / 3.0, 1 / 3.0, 0, 1 / 3.0, 0}, bottom[ROW] = {0, 0, 0, 0.5, 0, 0.5};
    static const double two[ROW] = {0, 1, 1, 0, 0, 0}, least[ROW] = {0, 0, 0, 1, 0, 0}, first[ROW] = {0, 1, 0, 0, 0, 0};
    static const double order[ROW] = {3, 5, 0, 1, 2, 4}, reverse[ROW] = {1, 2, 4, 0, 3, 5};
    static const tr_dtype dtypes[] = {TR_F64, TR_F32, TR_BF16, TR_F16, TR_I64, TR_I32};
    for (int d = 0; d < 4; d++) {
        TR_SCOPE;
        tr_tensor *x[5];
        for (int i = 0; i < 5; i++) x[i] = row_of(dtypes[d]);
        TR_CHECK(tr_backward(tr_max(x[0])));
        TR_CHECK(tr_backward(tr_min(x[1])));
        TR_CHECK(tr_backward(tr_sum(tr_topk(x[2], 2, -1))));
        TR_CHECK(tr_backward(tr_sum(tr_topk(x[3], 1, -1, .smallest = true))));
        TR_CHECK(tr_backward(tr_sum(tr_max_pool1d(x[4], ROW))));
        check_row("max", dtypes[d], tr_grad(x[0]), top);
        check_row("min", dtypes[d], tr_grad(x[1]), bottom);
        check_row("the largest 2", dtypes[d], tr_grad(x[2]), two);
        check_row("the smallest", dtypes[d], tr_grad(x[3]), least);
        check_row("max pool", dtypes[d], tr_grad(x[4]), first);
    }
    for (int d = 0; d < 6; d++) {
        TR_SCOPE;
        tr_tensor *x = tr_cast(tr_from(row, TR_SHAPE(ROW), .dtype = TR_F64), dtypes[d]), *at = NULL;
        assert_int_equal(tr_item(tr_argmax(x, 0)), 1);
        assert_int_equal(tr_item(tr_argmin(x, 0)), 3);
        TR_CHECK(tr_status_of(tr_sort(x, 0, .indices = &at)));
        check_row("places in order", dtypes[d], at, order);
        TR_CHECK(tr_status_of(tr_sort(x, 0, .descending = true, .indices = &at)));
        check_row("places in reverse order", dtypes[d], at, reverse);
    }
}

int main(void)
{
    setenv("TRIREME_CPU_DEVICES", "2", 1); /* for the op that copies between devices */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ops_take_the_side_that_their_case_names),
        cmocka_unit_test(of_equal_elements_all_count_or_the_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
