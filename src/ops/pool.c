/* Pooling of images: each output looks at a window of its channel. What comes out lies in memory as x does. */
#include "ops/pool.h"

#include "ops/family.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- Shapes ------------------------------------------------------------------------------------------------------ */

/* The shape of y; refused where there are no images, or no window fits. */
static tr_status pooled_shape(const tr_op_call *call, tr_shape *out)
{
    const tr_pool2d_attrs *a = call->attrs;
    TR__TRY(tr__float_input(call, 0));
    tr_shape x = call->inputs[0]->shape;
    const char *name = call->op->name, *adaptive = a->out_height ? "adaptive_" : "";
    if (x.ndim != 4)
        return tr__fail(TR_SHAPE, "%s%s: x is %s: it must be [batch, channels, height, width]", adaptive, name, TR__TEXT(x));
    if (x.dim[2] < 1 || x.dim[3] < 1) /* a window that lies in padding alone would find nothing */
        return tr__fail(TR_SHAPE, "%s%s: the images of x %s have no pixels", adaptive, name, TR__TEXT(x));
    *out = TR_SHAPE(x.dim[0], x.dim[1], a->out_height, a->out_width);
    if (a->out_height) return TR_OK;
    if (a->kernel < 1 || a->stride < 1)
        return tr__fail(TR_INVALID, "%s: kernel %d and stride %d must be positive", name, a->kernel, a->stride);
    if (a->padding < 0 || a->padding > a->kernel / 2)
        return tr__fail(TR_INVALID, "%s: padding %d must be 0 to %d, half the kernel", name, a->padding, a->kernel / 2);
    out->dim[2] = x.dim[2];
    for (int d = a->line ? 3 : 2; d < 4; d++) {
        int64_t room = x.dim[d] + 2 * (int64_t)a->padding - a->kernel;
        if (room < 0)
            return tr__fail(TR_SHAPE, "%s: a window of %d x %d does not fit into the images of x %s, with padding %d", name,
                a->kernel, a->kernel, TR__TEXT(x), a->padding);
        out->dim[d] = room / a->stride + 1;
    }
    return TR_OK;
}

tr__pool2d tr__pool2d_of(const tr_tensor *x, const tr_tensor *y, const tr_pool2d_attrs *a)
{
    return (tr__pool2d){
        .n = x->shape.dim[0], .c = x->shape.dim[1], .h = x->shape.dim[2], .w = x->shape.dim[3],
        .oh = y->shape.dim[2], .ow = y->shape.dim[3],
        .kernel = a->kernel, .stride = a->stride, .padding = a->padding, .line = a->line, .adaptive = a->out_height > 0,
    };
}

/* Of a gradient: it lies as x does. */
tr_status tr__pool2d_grad_infer(tr_op_call *call)
{
    const tr_pool2d_attrs *a = call->attrs;
    return tr__output_strided(call, 0, a->image, a->image_stride, call->inputs[0]->dtype);
}

tr_tensor *tr__pool2d_apply(const tr_op *op, tr_tensor *x, tr_pool2d_attrs attrs)
{
    if (x && !tr__bad(x)) {
        attrs.image = x->shape;
        tr__strides_like(x, x->shape, attrs.image_stride);
    }
    return tr_apply(op, &attrs, &x, 1, NULL);
}

tr_pool2d_attrs tr__pool2d_attrs_of(const tr_pool2d_options *o)
{
    return (tr_pool2d_attrs){.kernel = o->kernel, .stride = TR__OR(o, stride, o->kernel), .padding = o->padding};
}

/* Reference kernels work on row-major planes, one per image and channel. */
typedef struct job {
    tr__pool2d s;
    double *x, *y;
    int32_t *at;
    bool gradient;
} job;

/* ---- max_pool2d ---------------------------------------------------------------------------------------------------- */

tr_status tr__max_pool2d_infer(tr_op_call *call)
{
    tr_shape shape;
    TR__TRY(pooled_shape(call, &shape));
    const tr_tensor *x = call->inputs[0];
    if (x->shape.dim[2] * x->shape.dim[3] > INT32_MAX)
        return tr__fail(TR_SHAPE, "max_pool2d: the images of x %s have more than 2^31 places", TR__TEXT(x->shape));
    TR__TRY(tr__output_like(call, 0, x, shape, x->dtype));
    return tr__output_like(call, 1, x, shape, TR_I32);
}

/* The first of the largest; NaN is larger than all. */
static int64_t largest_in(const tr__pool2d *s, const double *x, int64_t oy, int64_t ox)
{
    tr__window rows = tr__window_rows(s, oy), columns = tr__window_columns(s, ox);
    int64_t best = rows.begin * s->w + columns.begin;
    for (int64_t i = rows.begin; i < rows.end; i++)
        for (int64_t k = columns.begin; k < columns.end; k++) {
            double top = x[best], value = x[i * s->w + k];
            if (!(value <= top) && !isnan(top)) best = i * s->w + k;
        }
    return best;
}

/* y: the largest of x's windows, and where they are; or, for the gradient, x the sum of what they give back. */
static void max_planes(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    const tr__pool2d *s = &j->s;
    for (int64_t plane = begin; plane < end; plane++) {
        double *x = j->x + plane * s->h * s->w, *y = j->y + plane * s->oh * s->ow;
        int32_t *at = j->at + plane * s->oh * s->ow;
        if (j->gradient) memset(x, 0, sizeof *x * (size_t)(s->h * s->w));
        for (int64_t o = 0; o < s->oh * s->ow; o++) {
            if (j->gradient) {
                x[at[o]] += y[o];
                continue;
            }
            at[o] = (int32_t)largest_in(s, x, o / s->ow, o % s->ow);
            y[o] = x[at[o]];
        }
    }
}

/* x -> y, at, or the gradient of y, at -> that of x. */
tr_status tr__max_pool2d_forward(tr_op_call *call)
{
    TR_SCOPE;
    bool gradient = call->op == tr__op(max_pool2d_grad);
    tr_tensor *places = gradient ? call->inputs[1] : call->outputs[1], *at = tr__staged(places, TR_I32, NULL, gradient);
    tr_tensor *from = tr__staged(call->inputs[0], TR_F64, NULL, true), *to = tr__staged(call->outputs[0], TR_F64, NULL, false);
    TR__TRY_ALL(from, to, at);
    tr_tensor *x = gradient ? to : from, *y = gradient ? from : to;
    job j = {tr__pool2d_of(x, y, call->attrs), tr__ptr(x), tr__ptr(y), tr__ptr(at), gradient};
    tr__pool_for(tr__pool_of(x), j.s.n * j.s.c, 1, max_planes, &j);
    if (!gradient) TR__TRY(tr__unstage(places, at));
    return tr__unstage(call->outputs[0], to);
}

tr_tensor *tr_max_pool2d_with(const tr_pool2d_options *options)
{
    return tr__pool2d_apply(tr__op(max_pool2d), options->x, tr__pool2d_attrs_of(options));
}

/* ---- avg_pool2d, and what is made of both, adaptive ---------------------------------------------------------------- */

tr_status tr__avg_pool2d_infer(tr_op_call *call)
{
    tr_shape shape;
    TR__TRY(pooled_shape(call, &shape));
    return tr__output_like(call, 0, call->inputs[0], shape, call->inputs[0]->dtype);
}

/* y: the means of x's windows; or, for the gradient, x the sum of what they give to their pixels. */
static void mean_planes(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    const tr__pool2d *s = &j->s;
    bool gradient = j->gradient;
    for (int64_t plane = begin; plane < end; plane++) {
        double *x = j->x + plane * s->h * s->w, *y = j->y + plane * s->oh * s->ow;
        if (gradient) memset(x, 0, sizeof *x * (size_t)(s->h * s->w));
        for (int64_t o = 0; o < s->oh * s->ow; o++) {
            tr__window rows = tr__window_rows(s, o / s->ow), columns = tr__window_columns(s, o % s->ow);
            double size = (double)tr__window_size(s, rows, columns), each = gradient ? y[o] / size : 0, sum = 0;
            for (int64_t i = rows.begin; i < rows.end; i++)
                for (int64_t k = columns.begin; k < columns.end; k++) {
                    if (gradient) x[i * s->w + k] += each;
                    else sum += x[i * s->w + k];
                }
            if (!gradient) y[o] = sum / size;
        }
    }
}

/* x -> y, or the gradient of y -> that of x. */
tr_status tr__avg_pool2d_forward(tr_op_call *call)
{
    TR_SCOPE;
    bool gradient = call->op == tr__op(avg_pool2d_grad);
    tr_tensor *from = tr__staged(call->inputs[0], TR_F64, NULL, true), *to = tr__staged(call->outputs[0], TR_F64, NULL, false);
    TR__TRY_ALL(from, to);
    tr_tensor *x = gradient ? to : from, *y = gradient ? from : to;
    job j = {.s = tr__pool2d_of(x, y, call->attrs), .x = tr__ptr(x), .y = tr__ptr(y), .gradient = gradient};
    tr__pool_for(tr__pool_of(x), j.s.n * j.s.c, 1, mean_planes, &j);
    return tr__unstage(call->outputs[0], to);
}

tr_tensor *tr_avg_pool2d_with(const tr_pool2d_options *options)
{
    return tr__pool2d_apply(tr__op(avg_pool2d), options->x, tr__pool2d_attrs_of(options));
}

static tr_tensor *adaptive(const tr_op *op, tr_tensor *x, int64_t height, int64_t width)
{
    if (height < 1 || width < 1)
        return tr__tensor_fail(TR_INVALID, "adaptive_%s: height and width must be positive, not %" PRId64 " and %" PRId64,
            op->name, height, width);
    return tr__pool2d_apply(op, x, (tr_pool2d_attrs){.out_height = height, .out_width = width});
}

tr_tensor *tr_adaptive_avg_pool2d(tr_tensor *x, int64_t height, int64_t width)
{
    return adaptive(tr__op(avg_pool2d), x, height, width);
}

tr_tensor *tr_adaptive_max_pool2d(tr_tensor *x, int64_t height, int64_t width)
{
    return adaptive(tr__op(max_pool2d), x, height, width);
}
