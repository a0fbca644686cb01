/*
 * Convolution of images, as in PyTorch a correlation:
 *   y[n, k, oy, ox] = bias[k] + sum over c, ky, kx of weight[k, c, ky, kx] x[n, c, oy stride - padding + ky dilation, …]
 * with zeros outside the image, and c running over the channels of k's group. The output is channels-last in memory.
 */
#include "ops/conv.h"

#include "ops/family.h"

#include <inttypes.h>
#include <string.h>

/* ---- Shapes ------------------------------------------------------------------------------------------------------ */

tr_status tr__conv_check(const char *what, const tr_conv2d_attrs *a)
{
    if (a->stride > 0 && a->dilation > 0 && a->groups > 0 && a->padding >= 0) return TR_OK;
    return tr__fail(TR_INVALID, "%s: stride %d, dilation %d and groups %d must be positive, padding %d not negative", what,
        a->stride, a->dilation, a->groups, a->padding);
}

tr_status tr__conv_check_shapes(const char *what, const tr_tensor *x, const tr_tensor *weight, const tr_tensor *bias,
    int64_t groups, int spatial, bool transposed)
{
    if (x->shape.ndim != 2 + spatial)
        return tr__fail(TR_SHAPE, "%s: x is %s: it must be [batch, channels, %s]", what, TR__TEXT(x->shape),
            spatial == 2 ? "height, width" : "length");
    if (weight->shape.ndim != 2 + spatial)
        return tr__fail(TR_SHAPE, "%s: weight is %s: it must be [%s channels, %s channels / groups, %s]", what,
            TR__TEXT(weight->shape), transposed ? "in" : "out", transposed ? "out" : "in",
            spatial == 2 ? "kernel height, kernel width" : "kernel");
    int64_t first = weight->shape.dim[0], second = weight->shape.dim[1] * groups;
    int64_t in = transposed ? first : second, out = transposed ? second : first;
    if (in != x->shape.dim[1])
        return tr__fail(TR_SHAPE, "%s: x %s has %" PRId64 " channels, weight %s takes %" PRId64 " in %" PRId64 " groups", what,
            TR__TEXT(x->shape), x->shape.dim[1], TR__TEXT(weight->shape), in, groups);
    if (first % groups)
        return tr__fail(TR_SHAPE, "%s: the %" PRId64 " %s channels of weight %s do not divide into %" PRId64 " groups", what,
            first, transposed ? "input" : "output", TR__TEXT(weight->shape), groups);
    if (bias && (bias->shape.ndim != 1 || bias->shape.dim[0] != out))
        return tr__fail(TR_SHAPE, "%s: bias %s does not fit weight %s: it must be [%" PRId64 "]", what, TR__TEXT(bias->shape),
            TR__TEXT(weight->shape), out);
    return TR_OK;
}

/* How many positions the kernel has, `stride` apart. */
static int64_t output_size(int64_t size, int64_t kernel, const tr_conv2d_attrs *a)
{
    int64_t room = size + 2 * (int64_t)a->padding - ((kernel - 1) * a->dilation + 1);
    return kernel < 1 || room < 0 ? 0 : room / a->stride + 1;
}

tr_status tr__conv2d_infer(tr_op_call *call)
{
    const tr_conv2d_attrs *a = call->attrs;
    TR__TRY(tr__float_input(call, 0));
    TR__TRY(tr__parameter_input(call, 1));
    if (call->inputs[2]) TR__TRY(tr__parameter_input(call, 2));
    TR__TRY(tr__conv_check("conv2d", a));
    TR__TRY(tr__conv_check_shapes("conv2d", call->inputs[0], call->inputs[1], call->inputs[2], a->groups, 2, false));
    tr_shape x = call->inputs[0]->shape, weight = call->inputs[1]->shape;
    tr_shape y = TR_SHAPE(x.dim[0], weight.dim[0], output_size(x.dim[2], weight.dim[2], a),
        output_size(x.dim[3], weight.dim[3], a));
    if (y.dim[2] < 1 || y.dim[3] < 1)
        return tr__fail(TR_SHAPE, "conv2d: the kernel of weight %s does not fit into the images of x %s, with padding %d "
            "and dilation %d", TR__TEXT(weight), TR__TEXT(x), a->padding, a->dilation);
    int64_t stride[TR_MAX_DIMS];
    tr__channels_last(y, stride);
    return tr__output_strided(call, 0, y, stride, call->inputs[0]->dtype);
}

tr__conv2d tr__conv2d_of(const tr_op_call *call)
{
    const tr_conv2d_attrs *a = call->attrs;
    const tr_tensor *x = call->inputs[0], *weight = call->inputs[1], *y = call->outputs[0];
    if (call->op == tr__op(conv2d_grad_input)) {
        y = call->inputs[0];
        x = call->outputs[0];
    } else if (call->op == tr__op(conv2d_grad_weight)) {
        y = call->inputs[0];
        x = call->inputs[1];
        weight = call->outputs[0];
    }
    return (tr__conv2d){
        .n = x->shape.dim[0], .c = x->shape.dim[1], .h = x->shape.dim[2], .w = x->shape.dim[3],
        .k = weight->shape.dim[0], .kh = weight->shape.dim[2], .kw = weight->shape.dim[3],
        .oh = y->shape.dim[2], .ow = y->shape.dim[3],
        .groups = a->groups, .stride = a->stride, .padding = a->padding, .dilation = a->dilation,
    };
}

/* ---- Reference kernels: row-major f64 ----------------------------------------------------------------------------- */

typedef enum direction { TO_Y, TO_X, TO_WEIGHT } direction; /* which of the three is computed from the others */

typedef struct job {
    tr__conv2d s;
    double *x, *weight, *y;
    const double *bias; /* or NULL */
    double *dbias;      /* or NULL */
} job;

/* The outputs that read the image at tap, an offset from the output's position: begin <= o < end. */
typedef struct range {
    int64_t begin, end;
} range;

static range outputs_at(int64_t tap, int64_t size, int64_t outputs, int64_t stride)
{
    range r = {tap < 0 ? (-tap + stride - 1) / stride : 0, tap < size ? (size - tap + stride - 1) / stride : 0};
    if (r.end > outputs) r.end = outputs;
    return r;
}

/* Image i, channel `in` of group g to channel `out` of it. */
static void convolve(const job *j, direction which, int64_t i, int64_t g, int64_t in, int64_t out)
{
    const tr__conv2d *s = &j->s;
    int64_t channels = s->c / s->groups, k = g * (s->k / s->groups) + out, c = g * channels + in;
    double *y = j->y + (i * s->k + k) * s->oh * s->ow, *x = j->x + (i * s->c + c) * s->h * s->w;
    double *weight = j->weight + (k * channels + in) * s->kh * s->kw;
    for (int64_t tap = 0; tap < s->kh * s->kw; tap++) {
        int64_t down = tap / s->kw * s->dilation - s->padding, along = tap % s->kw * s->dilation - s->padding;
        range rows = outputs_at(down, s->h, s->oh, s->stride), columns = outputs_at(along, s->w, s->ow, s->stride);
        for (int64_t oy = rows.begin; oy < rows.end; oy++) {
            double *to = y + oy * s->ow, *from = x + (oy * s->stride + down) * s->w + along, sum = 0;
            for (int64_t ox = columns.begin; ox < columns.end; ox++) {
                if (which == TO_Y) to[ox] += weight[tap] * from[ox * s->stride];
                if (which == TO_X) from[ox * s->stride] += weight[tap] * to[ox];
                if (which == TO_WEIGHT) sum += to[ox] * from[ox * s->stride];
            }
            if (which == TO_WEIGHT) weight[tap] += sum;
        }
    }
}

static void forward_planes(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    const tr__conv2d *s = &j->s;
    int64_t outs = s->k / s->groups, plane = s->oh * s->ow;
    for (int64_t at = begin; at < end; at++) {
        int64_t i = at / s->k, k = at % s->k;
        for (int64_t o = 0; o < plane; o++) j->y[at * plane + o] = j->bias ? j->bias[k] : 0;
        for (int64_t in = 0; in < s->c / s->groups; in++) convolve(j, TO_Y, i, k / outs, in, k % outs);
    }
}

static void grad_input_planes(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    const tr__conv2d *s = &j->s;
    int64_t ins = s->c / s->groups;
    for (int64_t at = begin; at < end; at++) {
        int64_t i = at / s->c, c = at % s->c;
        memset(j->x + at * s->h * s->w, 0, sizeof(double) * (size_t)(s->h * s->w));
        for (int64_t out = 0; out < s->k / s->groups; out++) convolve(j, TO_X, i, c / ins, c % ins, out);
    }
}

static void grad_weight_channels(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    const tr__conv2d *s = &j->s;
    int64_t outs = s->k / s->groups, plane = s->oh * s->ow;
    for (int64_t k = begin; k < end; k++)
        for (int64_t i = 0; i < s->n; i++) {
            for (int64_t in = 0; j->weight && in < s->c / s->groups; in++)
                convolve(j, TO_WEIGHT, i, k / outs, in, k % outs);
            for (int64_t o = 0; j->dbias && o < plane; o++) j->dbias[k] += j->y[(i * s->k + k) * plane + o];
        }
}

/* Row-major f64 memory for t; NULL for none. */
static tr_tensor *stage(tr_tensor *t, bool values)
{
    return t ? tr__staged(t, TR_F64, NULL, values) : NULL;
}

static double *numbers(const tr_tensor *staged)
{
    return staged ? tr__ptr(staged) : NULL;
}

tr_status tr__conv2d_forward(tr_op_call *call)
{
    TR_SCOPE;
    tr_tensor *x = stage(call->inputs[0], true), *weight = stage(call->inputs[1], true),
              *bias = stage(call->inputs[2], true), *y = stage(call->outputs[0], false);
    TR__TRY_ALL(x, weight, bias, y);
    job j = {tr__conv2d_of(call), numbers(x), numbers(weight), numbers(y), numbers(bias), NULL};
    tr__pool_for(tr__pool_of(x), j.s.n * j.s.k, 1, forward_planes, &j);
    return tr__unstage(call->outputs[0], y);
}

tr_status tr__conv2d_grad_input_forward(tr_op_call *call)
{
    TR_SCOPE;
    tr_tensor *g = stage(call->inputs[0], true), *weight = stage(call->inputs[1], true), *dx = stage(call->outputs[0], false);
    TR__TRY_ALL(g, weight, dx);
    job j = {tr__conv2d_of(call), numbers(dx), numbers(weight), numbers(g), NULL, NULL};
    tr__pool_for(tr__pool_of(g), j.s.n * j.s.c, 1, grad_input_planes, &j);
    return tr__unstage(call->outputs[0], dx);
}

/* Memory for a gradient that is summed up: what is there, or zeros. */
static tr_status stage_sum(tr_tensor *t, bool accumulate, tr_tensor **out)
{
    *out = stage(t, accumulate);
    if (!t) return TR_OK;
    TR__TRY(tr_status_of(*out));
    return accumulate ? TR_OK : tr_fill(*out, 0);
}

/* Without outputs[0] this is the gradient of the bias alone, whatever the kernel's size. */
tr_status tr__conv2d_grad_weight_forward(tr_op_call *call)
{
    TR_SCOPE;
    const tr_conv2d_attrs *a = call->attrs;
    tr_tensor *g = stage(call->inputs[0], true), *x = stage(call->inputs[1], true), *dweight, *dbias;
    TR__TRY_ALL(g, x);
    TR__TRY(stage_sum(call->outputs[0], a->accumulate, &dweight));
    TR__TRY(stage_sum(call->outputs[1], a->accumulate_bias, &dbias));
    job j = {.x = numbers(x), .weight = numbers(dweight), .y = numbers(g), .dbias = numbers(dbias)};
    tr_shape y = g->shape;
    j.s = dweight ? tr__conv2d_of(call)
                  : (tr__conv2d){.n = y.dim[0], .k = y.dim[1], .oh = y.dim[2], .ow = y.dim[3], .groups = 1};
    tr__pool_for(tr__pool_of(g), j.s.k, 1, grad_weight_channels, &j);
    if (dweight) TR__TRY(tr__unstage(call->outputs[0], dweight));
    return dbias ? tr__unstage(call->outputs[1], dbias) : TR_OK;
}

/* ---- Gradients ----------------------------------------------------------------------------------------------------- */

/* The gradient of x lies as x does. */
tr_status tr__conv2d_backward(tr_backward_call *call)
{
    tr_tensor *x = call->inputs[0], *g = call->grad_outputs[0];
    g = tr__staged_images(g, g->dtype, true);
    TR__TRY(tr_status_of(g));
    if (call->needs[0]) {
        tr_tensor *dx = tr__tensor_new_like(x);
        TR__TRY(tr__op_run(tr__op(conv2d_grad_input), call->attrs, (tr_tensor *[]){g, call->inputs[1]}, 2, &dx, 1));
        call->grad_inputs[0] = dx;
    }
    if (!call->needs[1] && !call->needs[2]) return TR_OK;
    tr_conv2d_attrs attrs = *(const tr_conv2d_attrs *)call->attrs;
    tr_tensor *outputs[2] = {NULL, NULL};
    if (call->needs[1]) outputs[0] = tr__grad_target(call, 1, &attrs.accumulate);
    if (call->needs[2]) outputs[1] = tr__grad_target(call, 2, &attrs.accumulate_bias);
    TR__TRY(tr__op_run(tr__op(conv2d_grad_weight), &attrs, (tr_tensor *[]){g, x}, 2, outputs, 2));
    call->grad_inputs[1] = outputs[0];
    call->grad_inputs[2] = outputs[1];
    return TR_OK;
}

tr_tensor *tr_conv2d_op_with(const tr_conv2d_op_options *o)
{
    tr_conv2d_attrs attrs = {
        .stride = TR__OR(o, stride, 1),
        .padding = o->padding,
        .dilation = TR__OR(o, dilation, 1),
        .groups = TR__OR(o, groups, 1),
    };
    return tr_apply(tr__op(conv2d), &attrs, (tr_tensor *[]){o->x, o->weight, o->bias}, 3, NULL);
}
