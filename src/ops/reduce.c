/*
 * Reductions over any dimensions: sum, mean, product, the largest and the smallest and where they are, norms, variance.
 *
 * The reference kernel reads floats as f64 and integers as i64, so its sums lose nothing.
 */
#include "ops/family.h"
#include "ops/rows.h"

#include "tensor/loop.h"
#include "tensor/numbers.h"

#include <math.h>
#include <string.h>

/* ---- Public functions and shapes ------------------------------------------------------------------------------- */

static tr_status dims_of(const char *what, tr_shape shape, const tr_dims *dims, tr_reduce_attrs *attrs)
{
    attrs->dims = dims->all ? (1u << shape.ndim) - 1 : 0;
    if (dims->all) return TR_OK;
    if (dims->count < 1 || dims->count > TR_MAX_DIMS)
        return tr__fail(TR_INVALID, "%s: %d dimensions named: it takes 1 to %d, or TR_ALL_DIMS", what, dims->count, TR_MAX_DIMS);
    for (int i = 0; i < dims->count; i++) {
        int dim;
        TR__TRY(tr__dim(what, shape, dims->dim[i], &dim));
        if (attrs->dims >> dim & 1)
            return tr__fail(TR_INVALID, "%s: dimension %d of %s is named twice", what, dims->dim[i], TR__TEXT(shape));
        attrs->dims |= 1u << dim;
    }
    return TR_OK;
}

static tr_tensor *reduce(const tr_op *op, tr_tensor *x, tr_dims dims, bool keep)
{
    tr_reduce_attrs attrs = {.keep = keep};
    if (x && !tr__bad(x) && dims_of(op->name, x->shape, &dims, &attrs) != TR_OK) return tr__tensor_failed();
    return tr_apply(op, &attrs, &x, 1, NULL);
}

#define REDUCE(name) \
    tr_tensor *tr_##name##_with(const tr_reduce_options *o) { return reduce(tr__op(name), o->x, o->dims, o->keep); }
REDUCE(sum)
REDUCE(mean)
REDUCE(max)
REDUCE(min)
REDUCE(prod)

tr_tensor *tr_argmax(tr_tensor *x, int dim)
{
    return reduce(tr__op(argmax), x, TR_DIMS(dim), false);
}

tr_tensor *tr_argmin(tr_tensor *x, int dim)
{
    return reduce(tr__op(argmin), x, TR_DIMS(dim), false);
}

/* The p-norm: for p = 1, 2 and infinity without powers. */
tr_tensor *tr_norm_with(const tr_norm_options *o)
{
    double p = o->p;
    TR__REQUIRE("norm", "x", o->x);
    if (!tr_dtype_is_float(o->x->dtype))
        return tr__tensor_fail(TR_DTYPE, "norm: x is %s: it takes floats (see tr_cast)", tr_dtype_name(o->x->dtype));
    if (!(p > 0)) return tr__tensor_fail(TR_INVALID, "norm: p is %g: it must be positive (2: the Euclidean norm)", p);
    if (p == 2) return reduce(tr__op(norm), o->x, o->dims, o->keep);
    tr_tensor *size = tr_abs(tr__widened(o->x));
    if (isinf(p)) return tr_cast(reduce(tr__op(max), size, o->dims, o->keep), tr_dtype_of(o->x));
    tr_tensor *sum = reduce(tr__op(sum), p == 1 ? size : tr_pow(size, p), o->dims, o->keep);
    return tr_cast(p == 1 ? sum : tr_pow(sum, 1 / p), tr_dtype_of(o->x));
}

/* x less its means, and how many elements each of them is of. */
static tr_tensor *centred(const char *op, const tr_var_options *o, double *count)
{
    if (!o->x) return tr__tensor_fail(TR_INVALID, "%s: x is NULL", op);
    if (!tr__bad(o->x) && !tr_dtype_is_float(o->x->dtype))
        return tr__tensor_fail(TR_DTYPE, "%s: x is %s: it takes floats (see tr_cast)", op, tr_dtype_name(o->x->dtype));
    tr_tensor *x = tr__widened(o->x), *mean = reduce(tr__op(mean), x, o->dims, true);
    if (tr__bad(mean)) return mean;
    *count = fmax((double)tr_numel(x) / (double)(tr_numel(mean) ? tr_numel(mean) : 1) - (o->biased ? 0 : 1), 0);
    return tr_sub(x, mean);
}

tr_tensor *tr_var_with(const tr_var_options *o)
{
    double count = 1;
    tr_tensor *x = centred("var", o, &count), *sum = reduce(tr__op(sum), tr_mul(x, x), o->dims, o->keep);
    tr_tensor *var = tr_affine(sum, 1 / count, 0);
    return tr__bad(var) ? var : tr_cast(var, tr_dtype_of(o->x));
}

tr_tensor *tr_std_with(const tr_var_options *o)
{
    double count = 1;
    tr_tensor *norm = reduce(tr__op(norm), centred("std", o, &count), o->dims, o->keep);
    tr_tensor *std = tr_affine(norm, 1 / sqrt(count), 0);
    return tr__bad(std) ? std : tr_cast(std, tr_dtype_of(o->x));
}

/* m + log(sum(exp(x - m))), whose gradient does not depend on m: the largest, or 0 where that is infinite. */
tr_tensor *tr_log_sum_exp_with(const tr_reduce_options *o)
{
    TR__REQUIRE("log_sum_exp", "x", o->x);
    if (!tr_dtype_is_float(o->x->dtype))
        return tr__tensor_fail(TR_DTYPE, "log_sum_exp: x is %s: it takes floats (see tr_cast)", tr_dtype_name(o->x->dtype));
    tr_tensor *x = tr__widened(o->x), *infinity = tr_full(INFINITY, TR_SCALAR, .dtype = x->dtype, .device = tr__device_of(x));
    if (tr_numel(x) == 0) /* there is no largest: log(0), or nothing */
        return tr_cast(tr_log(reduce(tr__op(sum), x, o->dims, o->keep)), tr_dtype_of(o->x));
    tr_tensor *top = reduce(tr__op(max), x, o->dims, true);
    top = tr_masked_fill(top, tr_equal(tr_abs(top), infinity), 0);
    tr_tensor *y = tr_log(reduce(tr__op(sum), tr_exp(tr_sub(x, top)), o->dims, o->keep));
    return tr__bad(y) ? y : tr_cast(tr_add(y, tr_reshape(top, y->shape)), tr_dtype_of(o->x));
}

static tr_shape reduced_shape(tr_shape shape, tr_reduce_attrs attrs)
{
    tr_shape out = {0};
    for (int d = 0; d < shape.ndim; d++) {
        bool reduced = attrs.dims >> d & 1;
        if (!reduced || attrs.keep) out.dim[out.ndim++] = reduced ? 1 : shape.dim[d];
    }
    return out;
}

static tr_status infer(tr_op_call *call, tr_dtype dtype)
{
    tr_shape shape = reduced_shape(call->inputs[0]->shape, *(const tr_reduce_attrs *)call->attrs);
    return tr_op_output(call, 0, shape, dtype);
}

tr_status tr__sum_infer(tr_op_call *call)
{
    TR__TRY(tr__given(call, 0));
    tr_dtype dtype = call->inputs[0]->dtype;
    return infer(call, tr_dtype_is_float(dtype) ? dtype : TR_I64);
}

tr_status tr__mean_infer(tr_op_call *call)
{
    TR__TRY(tr__float_input(call, 0));
    return infer(call, call->inputs[0]->dtype);
}

/* The largest of nothing does not exist. */
static tr_status refuse_empty(const tr_op_call *call)
{
    TR__TRY(tr__given(call, 0));
    tr_shape shape = call->inputs[0]->shape;
    const tr_reduce_attrs *attrs = call->attrs;
    bool none = false, results = true;
    for (int d = 0; d < shape.ndim; d++) {
        if (attrs->dims >> d & 1) none |= shape.dim[d] == 0;
        else results &= shape.dim[d] > 0;
    }
    if (!none || !results) return TR_OK;
    return tr__fail(TR_SHAPE, "%s: a dimension to reduce is empty in %s", call->op->name, TR__TEXT(shape));
}

tr_status tr__max_infer(tr_op_call *call)
{
    TR__TRY(refuse_empty(call));
    return infer(call, call->inputs[0]->dtype);
}

tr_status tr__argmax_infer(tr_op_call *call)
{
    TR__TRY(refuse_empty(call));
    return infer(call, TR_I64);
}

/* ---- Reference kernels ----------------------------------------------------------------------------------------- */

enum { BLOCK = 512 };

/* What has been seen of the elements of one result. */
typedef struct seen {
    double sum, top;
    int64_t isum, itop;
    int64_t count, at; /* elements seen; where top was */
} seen;

/* How an op looks at elements, floats or integers, and what of it the result is. */
typedef struct reduction {
    void (*floats)(seen *s, const double *x, int64_t n);
    void (*integers)(seen *s, const int64_t *x, int64_t n);
    enum { SUM, MEAN, ROOT, TOP, PLACE } result;
    double start; /* of the sum, which may be a product */
    bool opposite; /* the smallest: the largest of the opposites */
} reduction;

typedef struct job {
    const tr_tensor *x;
    tr_tensor *y;
    bool integers;
    tr__axis kept, reduced;
    const reduction *reduction;
} job;

/* Integers wrap around. */
#define LOOK(name, type, statement)                                                    \
    static void name(seen *s, const type *x, int64_t n)                                \
    {                                                                                  \
        for (int64_t i = 0; i < n; i++) statement;                                     \
    }
LOOK(add_floats, double, s->sum += x[i])
LOOK(add_squares, double, s->sum += x[i] * x[i])
LOOK(multiply_floats, double, s->sum *= x[i])
LOOK(add_integers, int64_t, s->isum = (int64_t)((uint64_t)s->isum + (uint64_t)x[i]))
LOOK(multiply_integers, int64_t, s->isum = (int64_t)((uint64_t)s->isum * (uint64_t)x[i]))

/* NaN is larger than everything, as in PyTorch. */
static void top_floats(seen *s, const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (s->count + i > 0 && (s->top != s->top || !(x[i] > s->top || x[i] != x[i]))) continue;
        s->top = x[i];
        s->at = s->count + i;
    }
}

static void top_integers(seen *s, const int64_t *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (s->count + i > 0 && x[i] <= s->itop) continue;
        s->itop = x[i];
        s->at = s->count + i;
    }
}

/* Looks at n numbers, a block at most. The opposite of an integer is its complement, which cannot overflow. */
static void look(const job *j, seen *s, const char *from, int64_t step, int64_t n)
{
    union {
        double floats[BLOCK];
        int64_t integers[BLOCK];
    } block;
    if (j->integers) {
        tr__read_i64(block.integers, j->x->dtype, from, step, n);
        for (int64_t i = 0; j->reduction->opposite && i < n; i++) block.integers[i] = ~block.integers[i];
        j->reduction->integers(s, block.integers, n);
    } else {
        tr__read_f64(block.floats, j->x->dtype, from, step, n);
        for (int64_t i = 0; j->reduction->opposite && i < n; i++) block.floats[i] = -block.floats[i];
        j->reduction->floats(s, block.floats, n);
    }
    s->count += n;
}

/* How many elements from i on lie in one run of the axis, and in one block. */
static int64_t run_from(const tr__axis *axis, int64_t i)
{
    int64_t run = axis->dim[axis->ndim - 1], n = run - i % run;
    return n < BLOCK ? n : BLOCK;
}

static void put_result(const job *j, int64_t r, const seen *s)
{
    tr_tensor *y = j->y;
    if (tr_dtype_is_float(y->dtype)) {
        double of[] = {[SUM] = s->sum, [MEAN] = s->sum / (double)s->count, [ROOT] = sqrt(s->sum), [TOP] = s->top};
        tr__store(y->dtype, tr__ptr(y), r, of[j->reduction->result]);
    } else {
        int64_t of[] = {[SUM] = s->isum, [TOP] = s->itop, [PLACE] = s->at};
        tr__write_i64(y->dtype, (char *)tr__ptr(y) + r * (int64_t)tr_dtype_size(y->dtype), 1, &of[j->reduction->result], 1);
    }
}

static void reduce_results(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    int64_t bytes = (int64_t)tr_dtype_size(j->x->dtype);
    int64_t step = j->reduced.stride[j->reduced.ndim - 1];
    for (int64_t r = begin; r < end; r++) {
        seen s = {.sum = j->reduction->start, .isum = (int64_t)j->reduction->start};
        const char *base = (char *)tr__ptr(j->x) + tr__axis_at(&j->kept, r) * bytes;
        for (int64_t i = 0, n; i < j->reduced.n; i += n) {
            n = run_from(&j->reduced, i);
            look(j, &s, base + tr__axis_at(&j->reduced, i) * bytes, step, n);
        }
        if (j->reduction->opposite) {
            s.top = -s.top;
            s.itop = ~s.itop;
        }
        put_result(j, r, &s);
    }
}

static tr_status run(tr_op_call *call, const reduction *how)
{
    const tr_reduce_attrs *attrs = call->attrs;
    const tr_tensor *x = call->inputs[0];
    job j = {.x = x, .y = call->outputs[0], .integers = !tr_dtype_is_float(x->dtype), .reduction = how};
    j.kept = tr__axis_in(x, ~attrs->dims);
    j.reduced = tr__axis_in(x, attrs->dims);
    tr__pool_for(tr__pool_of(x), j.kept.n, tr__row_grain(j.reduced.n), reduce_results, &j);
    return TR_OK;
}

#define REDUCTION(name, ...)                                       \
    tr_status tr__##name##_forward(tr_op_call *call)               \
    {                                                              \
        static const reduction how = {__VA_ARGS__};                \
        return run(call, &how);                                    \
    }
REDUCTION(sum, .floats = add_floats, .integers = add_integers, .result = SUM)
REDUCTION(mean, .floats = add_floats, .result = MEAN)
REDUCTION(norm, .floats = add_squares, .result = ROOT)
REDUCTION(prod, .floats = multiply_floats, .integers = multiply_integers, .result = SUM, .start = 1)
REDUCTION(max, .floats = top_floats, .integers = top_integers, .result = TOP)
REDUCTION(min, .floats = top_floats, .integers = top_integers, .result = TOP, .opposite = true)
REDUCTION(argmax, .floats = top_floats, .integers = top_integers, .result = PLACE)
REDUCTION(argmin, .floats = top_floats, .integers = top_integers, .result = PLACE, .opposite = true)

/* ---- Gradients ------------------------------------------------------------------------------------------------- */

/* t, the result of a reduction of a tensor of shape, with the reduced dimensions as size 1. */
static tr_tensor *with_kept_dims(const tr_backward_call *call, tr_tensor *t)
{
    tr_reduce_attrs attrs = *(const tr_reduce_attrs *)call->attrs;
    if (attrs.keep) return t;
    attrs.keep = true;
    return tr_reshape(t, reduced_shape(tr__input_shape(call, 0), attrs));
}

/* Of each element that a result is of. */
static double count_of_each(const tr_backward_call *call)
{
    return (double)tr__numel(tr__input_shape(call, 0)) / (double)tr__numel(call->grad_outputs[0]->shape);
}

/* By the kernel `grad` of g, x and y, these with the dimensions of x. */
static tr_tensor *by_kernel(const tr_backward_call *call, const tr_op *grad, tr_tensor *g, tr_tensor *x, tr_tensor *y)
{
    return tr_apply(grad, call->attrs, (tr_tensor *[]){with_kept_dims(call, g), x, with_kept_dims(call, y)}, 3, NULL);
}

TR__BACKWARD(sum, void, tr_expand(with_kept_dims(call, g), tr__input_shape(call, 0)))
TR__BACKWARD(mean, void,
    tr_expand(with_kept_dims(call, tr_affine(g, 1 / count_of_each(call), 0)), tr__input_shape(call, 0)))
TR__BACKWARD(max, void, by_kernel(call, tr__op(max_grad), g, x, y))
TR__BACKWARD(min, void, by_kernel(call, tr__op(max_grad), g, x, y))
TR__BACKWARD(prod, void, by_kernel(call, tr__op(prod_grad), g, x, y))
/* x g/y; 0 where the norm is 0, as in PyTorch. */
TR__BACKWARD(norm, void,
    tr_mul(x, with_kept_dims(call, tr_masked_fill(tr_div(g, y), tr_equal(y, tr__zeros_like(y, TR_SCALAR)), 0))))

/* What a gradient has to know of a result's elements. */
typedef struct around {
    double g, y;
    double product; /* of those that are not 0 */
    int64_t count;  /* of the largest, or of zeros */
} around;

/* How a gradient looks at elements, and then makes theirs of them, in place. */
typedef struct grad_kernel {
    void (*look)(around *a, const double *x, int64_t n);
    void (*turn)(const around *a, double *x, int64_t n);
} grad_kernel;

typedef struct grad_job {
    const grad_kernel *kernel;
    const tr_tensor *g, *x, *y;
    tr_tensor *dx;
    tr__axis g_kept, y_kept, x_kept, x_reduced, dx_kept, dx_reduced;
} grad_job;

enum { PARTS = 8 }; /* that numbers are taken in side by side */

/* How many numbers are value. Counted in f64 and side by side, which SSE2 has vectors for. */
static int64_t count_of(const double *x, int64_t n, double value)
{
    double count[PARTS] = {0};
    int64_t whole = n - n % PARTS;
    for (int64_t i = 0; i < whole; i += PARTS)
        for (int k = 0; k < PARTS; k++) count[k] += x[i + k] == value;
    for (int64_t i = whole; i < n; i++) count[i - whole] += x[i] == value;
    for (int k = 1; k < PARTS; k++) count[0] += count[k];
    return (int64_t)count[0];
}

/* Equal maxima share the gradient; NaN equals NaN. */
static void count_tops(around *a, const double *x, int64_t n)
{
    if (a->y == a->y) a->count += count_of(x, n, a->y);
    else
        for (int64_t i = 0; i < n; i++) a->count += x[i] != x[i];
}

static void share_out(const around *a, double *x, int64_t n)
{
    double top = a->y, part = a->g / (double)a->count;
    if (top != top)
        for (int64_t i = 0; i < n; i++) x[i] = x[i] != x[i] ? part : 0;
    else
        for (int64_t i = 0; i < n; i++) x[i] = x[i] == top ? part : 0;
}

/* Each element's is g times the product of the others: with one zero among them only that one's is not 0. The product, with 1
 * for zeros, is made in parts, side by side. Parts overflow where the product in order may not: it is made so again then. */
static void multiply_up(around *a, const double *x, int64_t n)
{
    double part[PARTS] = {1, 1, 1, 1, 1, 1, 1, 1};
    int64_t whole = n - n % PARTS;
    for (int64_t i = 0; i < whole; i += PARTS)
        for (int k = 0; k < PARTS; k++) part[k] *= x[i + k] + (x[i + k] == 0);
    for (int64_t i = whole; i < n; i++) part[i - whole] *= x[i] + (x[i] == 0);
    double before = a->product;
    for (int k = 0; k < PARTS; k++) a->product *= part[k];
    if (!isfinite(a->product) || a->product == 0) {
        a->product = before;
        for (int64_t i = 0; i < n; i++) a->product *= x[i] + (x[i] == 0);
    }
    a->count += count_of(x, n, 0);
}

static void divide_out(const around *a, double *x, int64_t n)
{
    double all = a->g * a->product, at_zero = a->count == 1 ? all : 0;
    if (a->count == 0)
        for (int64_t i = 0; i < n; i++) x[i] = all / x[i];
    else
        for (int64_t i = 0; i < n; i++) x[i] = x[i] == 0 ? at_zero : 0;
}

static void grad_results(void *arg, int64_t begin, int64_t end)
{
    const grad_job *j = arg;
    const tr__axis *in = &j->x_reduced, *out = &j->dx_reduced;
    int64_t bytes = (int64_t)tr_dtype_size(j->x->dtype);
    double block[BLOCK];
    for (int64_t r = begin; r < end; r++) {
        around a = {.product = 1};
        a.g = tr__load(j->g->dtype, tr__ptr(j->g), tr__axis_at(&j->g_kept, r));
        a.y = tr__load(j->y->dtype, tr__ptr(j->y), tr__axis_at(&j->y_kept, r));
        const char *x = (char *)tr__ptr(j->x) + tr__axis_at(&j->x_kept, r) * bytes;
        char *dx = (char *)tr__ptr(j->dx) + tr__axis_at(&j->dx_kept, r) * bytes;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t i = 0, n; i < in->n; i += n) {
                n = run_from(in, i) < run_from(out, i) ? run_from(in, i) : run_from(out, i);
                tr__read_f64(block, j->x->dtype, x + tr__axis_at(in, i) * bytes, in->stride[in->ndim - 1], n);
                if (pass == 0) {
                    j->kernel->look(&a, block, n);
                    continue;
                }
                j->kernel->turn(&a, block, n);
                tr__write_f64(j->dx->dtype, dx + tr__axis_at(out, i) * bytes, out->stride[out->ndim - 1], block, n);
            }
    }
}

/* g and y have the dimensions of x, those reduced of size 1. */
static tr_status run_grad(tr_op_call *call, const grad_kernel *kernel)
{
    uint32_t dims = ((const tr_reduce_attrs *)call->attrs)->dims;
    grad_job j = {.kernel = kernel, .g = call->inputs[0], .x = call->inputs[1], .y = call->inputs[2],
        .dx = call->outputs[0]};
    j.g_kept = tr__axis_in(j.g, ~dims);
    j.y_kept = tr__axis_in(j.y, ~dims);
    j.x_kept = tr__axis_in(j.x, ~dims);
    j.x_reduced = tr__axis_in(j.x, dims);
    j.dx_kept = tr__axis_in(j.dx, ~dims);
    j.dx_reduced = tr__axis_in(j.dx, dims);
    tr__pool_for(tr__pool_of(j.x), j.x_kept.n, tr__row_grain(j.x_reduced.n), grad_results, &j);
    return TR_OK;
}

tr_status tr__max_grad_forward(tr_op_call *call)
{
    return run_grad(call, &(grad_kernel){count_tops, share_out});
}

tr_status tr__prod_grad_forward(tr_op_call *call)
{
    return run_grad(call, &(grad_kernel){multiply_up, divide_out});
}
