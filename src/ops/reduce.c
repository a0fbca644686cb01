/*
 * Reductions over any dimensions: sum, mean, max and argmax.
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

static tr_status dims_of(const char *what, const tr_reduce_options *o, tr__reduce_attrs *attrs)
{
    tr_shape shape = o->x->shape;
    attrs->keep = o->keep;
    attrs->dims = o->ndims ? 0 : (1u << shape.ndim) - 1;
    if (o->ndims < 0 || o->ndims > TR_MAX_DIMS)
        return tr__fail(TR_INVALID, "%s: %d dimensions named: it takes 0 (all) to %d", what, o->ndims, TR_MAX_DIMS);
    for (int i = 0; i < o->ndims; i++) {
        int dim;
        TR__TRY(tr__dim(what, shape, o->dims[i], &dim));
        if (attrs->dims >> dim & 1)
            return tr__fail(TR_INVALID, "%s: dimension %d of %s is named twice", what, o->dims[i], TR__TEXT(shape));
        attrs->dims |= 1u << dim;
    }
    return TR_OK;
}

static tr_tensor *reduce(const tr_op *op, const tr_reduce_options *o)
{
    tr__reduce_attrs attrs = {0};
    tr_tensor *x = o->x;
    if (x && !tr__bad(x) && dims_of(op->name, o, &attrs) != TR_OK) return tr__tensor_failed();
    return tr_apply(op, &attrs, &x, 1, NULL);
}

tr_tensor *tr_sum_with(const tr_reduce_options *options)
{
    return reduce(tr__op(sum), options);
}

tr_tensor *tr_mean_with(const tr_reduce_options *options)
{
    return reduce(tr__op(mean), options);
}

tr_tensor *tr_max_with(const tr_reduce_options *options)
{
    return reduce(tr__op(max), options);
}

tr_tensor *tr_argmax(tr_tensor *x, int dim)
{
    tr__reduce_attrs attrs = {0};
    int d;
    if (x && !tr__bad(x)) {
        if (tr__dim("argmax", x->shape, dim, &d) != TR_OK) return tr__tensor_failed();
        attrs.dims = 1u << d;
    }
    return tr_apply(tr__op(argmax), &attrs, &x, 1, NULL);
}

static tr_shape reduced_shape(tr_shape shape, tr__reduce_attrs attrs)
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
    tr_shape shape = reduced_shape(call->inputs[0]->shape, *(const tr__reduce_attrs *)call->attrs);
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
    const tr__reduce_attrs *attrs = call->attrs;
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

typedef struct job {
    const tr_tensor *x;
    tr_tensor *y;
    bool integers;
    tr__axis kept, reduced;
    void (*finish)(const seen *s, tr_tensor *y, int64_t r);
} job;

/* NaN is larger than everything, as in PyTorch. */
static void see_floats(seen *s, const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        s->sum += x[i];
        if (s->count + i > 0 && (s->top != s->top || !(x[i] > s->top || x[i] != x[i]))) continue;
        s->top = x[i];
        s->at = s->count + i;
    }
    s->count += n;
}

static void see_integers(seen *s, const int64_t *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        s->isum = (int64_t)((uint64_t)s->isum + (uint64_t)x[i]);
        if (s->count + i > 0 && x[i] <= s->itop) continue;
        s->itop = x[i];
        s->at = s->count + i;
    }
    s->count += n;
}

static void reduce_results(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    int64_t bytes = (int64_t)tr_dtype_size(j->x->dtype);
    int last = j->reduced.ndim - 1;
    int64_t run = j->reduced.dim[last], step = j->reduced.stride[last];
    union {
        double floats[BLOCK];
        int64_t integers[BLOCK];
    } block;
    for (int64_t r = begin; r < end; r++) {
        seen s = {0};
        const char *base = (char *)tr__ptr(j->x) + tr__axis_at(&j->kept, r) * bytes;
        for (int64_t i = 0, n; i < j->reduced.n; i += n) { /* blocks end where a run does */
            n = run - i % run < BLOCK ? run - i % run : BLOCK;
            const char *from = base + tr__axis_at(&j->reduced, i) * bytes;
            if (j->integers) {
                tr__read_i64(block.integers, j->x->dtype, from, step, n);
                see_integers(&s, block.integers, n);
            } else {
                tr__read_f64(block.floats, j->x->dtype, from, step, n);
                see_floats(&s, block.floats, n);
            }
        }
        j->finish(&s, j->y, r);
    }
}

static tr_status run(tr_op_call *call, void (*finish)(const seen *, tr_tensor *, int64_t))
{
    const tr__reduce_attrs *attrs = call->attrs;
    const tr_tensor *x = call->inputs[0];
    job j = {.x = x, .y = call->outputs[0], .integers = !tr_dtype_is_float(x->dtype), .finish = finish};
    j.kept = tr__axis_in(x, ~attrs->dims);
    j.reduced = tr__axis_in(x, attrs->dims);
    tr__pool_for(tr__pool_of(x), j.kept.n, tr__row_grain(j.reduced.n), reduce_results, &j);
    return TR_OK;
}

static void put_integer(tr_tensor *y, int64_t r, int64_t value)
{
    tr__write_i64(y->dtype, (char *)tr__ptr(y) + r * (int64_t)tr_dtype_size(y->dtype), 1, &value, 1);
}

static void finish_sum(const seen *s, tr_tensor *y, int64_t r)
{
    if (tr_dtype_is_float(y->dtype))
        tr__store(y->dtype, tr__ptr(y), r, s->sum);
    else
        put_integer(y, r, s->isum);
}

static void finish_mean(const seen *s, tr_tensor *y, int64_t r)
{
    tr__store(y->dtype, tr__ptr(y), r, s->sum / (double)s->count);
}

static void finish_max(const seen *s, tr_tensor *y, int64_t r)
{
    if (tr_dtype_is_float(y->dtype))
        tr__store(y->dtype, tr__ptr(y), r, s->top);
    else
        put_integer(y, r, s->itop);
}

static void finish_argmax(const seen *s, tr_tensor *y, int64_t r)
{
    put_integer(y, r, s->at);
}

tr_status tr__sum_forward(tr_op_call *call)
{
    return run(call, finish_sum);
}

tr_status tr__mean_forward(tr_op_call *call)
{
    return run(call, finish_mean);
}

tr_status tr__max_forward(tr_op_call *call)
{
    return run(call, finish_max);
}

tr_status tr__argmax_forward(tr_op_call *call)
{
    return run(call, finish_argmax);
}

/* ---- Gradients ------------------------------------------------------------------------------------------------- */

/* t, the result of a reduction of a tensor of shape, with the reduced dimensions as size 1. */
static tr_tensor *with_kept_dims(const tr_backward_call *call, tr_tensor *t)
{
    tr__reduce_attrs attrs = *(const tr__reduce_attrs *)call->attrs;
    if (attrs.keep) return t;
    attrs.keep = true;
    return tr_reshape(t, reduced_shape(tr__input_shape(call, 0), attrs));
}

tr_status tr__sum_backward(tr_backward_call *call)
{
    call->grad_inputs[0] = tr_expand(with_kept_dims(call, call->grad_outputs[0]), tr__input_shape(call, 0));
    return TR_OK;
}

tr_status tr__mean_backward(tr_backward_call *call)
{
    tr_tensor *g = call->grad_outputs[0];
    double count = (double)tr__numel(tr__input_shape(call, 0)) / (double)tr__numel(g->shape);
    call->grad_inputs[0] = tr_expand(with_kept_dims(call, tr_affine(g, 1 / count, 0)), tr__input_shape(call, 0));
    return TR_OK;
}

tr_status tr__max_backward(tr_backward_call *call)
{
    tr_tensor *inputs[] = {with_kept_dims(call, call->grad_outputs[0]), call->inputs[0],
        with_kept_dims(call, call->outputs[0])};
    call->grad_inputs[0] = tr_apply(tr__op(max_grad), call->attrs, inputs, 3, NULL);
    return TR_OK;
}

tr_status tr__max_grad_infer(tr_op_call *call)
{
    return tr_op_output(call, 0, call->inputs[1]->shape, call->inputs[1]->dtype);
}

typedef struct max_job {
    const tr_tensor *g, *x, *y;
    tr_tensor *dx;
    tr__axis g_kept, y_kept, x_kept, x_reduced, dx_kept, dx_reduced;
} max_job;

static bool equal(double a, double b)
{
    return a == b || (a != a && b != b);
}

static void share_out(void *arg, int64_t begin, int64_t end)
{
    const max_job *j = arg;
    for (int64_t r = begin; r < end; r++) {
        double g = tr__load(j->g->dtype, tr__ptr(j->g), tr__axis_at(&j->g_kept, r));
        double top = tr__load(j->y->dtype, tr__ptr(j->y), tr__axis_at(&j->y_kept, r));
        int64_t x_at = tr__axis_at(&j->x_kept, r), dx_at = tr__axis_at(&j->dx_kept, r), winners = 0;
        for (int64_t i = 0; i < j->x_reduced.n; i++)
            winners += equal(tr__load(j->x->dtype, tr__ptr(j->x), x_at + tr__axis_at(&j->x_reduced, i)), top);
        for (int64_t i = 0; i < j->x_reduced.n; i++) {
            double x = tr__load(j->x->dtype, tr__ptr(j->x), x_at + tr__axis_at(&j->x_reduced, i));
            int64_t at = dx_at + tr__axis_at(&j->dx_reduced, i);
            tr__store(j->dx->dtype, tr__ptr(j->dx), at, equal(x, top) ? g / (double)winners : 0);
        }
    }
}

/* g and y have the dimensions of x, those reduced of size 1. */
tr_status tr__max_grad_forward(tr_op_call *call)
{
    uint32_t dims = ((const tr__reduce_attrs *)call->attrs)->dims;
    max_job j = {.g = call->inputs[0], .x = call->inputs[1], .y = call->inputs[2], .dx = call->outputs[0]};
    j.g_kept = tr__axis_in(j.g, ~dims);
    j.y_kept = tr__axis_in(j.y, ~dims);
    j.x_kept = tr__axis_in(j.x, ~dims);
    j.x_reduced = tr__axis_in(j.x, dims);
    j.dx_kept = tr__axis_in(j.dx, ~dims);
    j.dx_reduced = tr__axis_in(j.dx, dims);
    tr__pool_for(tr__pool_of(j.x), j.x_kept.n, tr__row_grain(j.x_reduced.n), share_out, &j);
    return TR_OK;
}
