/*
 * Transposed convolution of images: what a convolution's gradient does, from outputs to an image,
 *   y[n, k, iy stride - padding + ky dilation, …] += weight[c, k, ky, kx] x[n, c, iy, ix], with bias[k] added everywhere,
 * so the kernels of conv2d's gradients compute it, and conv2d its gradient. Its x takes the place of the gradient of conv2d's
 * output.
 */
#include "ops/conv.h"
#include "ops/family.h"

/* ---- Shapes ------------------------------------------------------------------------------------------------------ */

/* The size of the image from which a convolution makes `size` outputs. */
static int64_t image_size(int64_t size, int64_t kernel, const tr_conv_transpose2d_attrs *a)
{
    const tr_conv2d_attrs *c = &a->conv;
    if (size < 1 || kernel < 1) return 0;
    return (size - 1) * c->stride - 2 * (int64_t)c->padding + (kernel - 1) * c->dilation + 1 + a->output_padding;
}

tr_status tr__conv_transpose2d_infer(tr_op_call *call)
{
    const tr_conv_transpose2d_attrs *a = call->attrs;
    TR__TRY(tr__float_input(call, 0));
    TR__TRY(tr__parameter_input(call, 1));
    if (call->inputs[2]) TR__TRY(tr__parameter_input(call, 2));
    TR__TRY(tr__conv_check("conv_transpose2d", &a->conv));
    if (a->output_padding < 0 || a->output_padding >= a->conv.stride)
        return tr__fail(TR_INVALID, "conv_transpose2d: output_padding %d must not be negative, and smaller than stride %d or "
            "dilation %d", a->output_padding, a->conv.stride, a->conv.dilation);
    TR__TRY(tr__conv_check_shapes("conv_transpose2d", call->inputs[0], call->inputs[1], call->inputs[2], a->conv.groups, 2,
        true));
    tr_shape x = call->inputs[0]->shape, weight = call->inputs[1]->shape;
    tr_shape y = TR_SHAPE(x.dim[0], weight.dim[1] * a->conv.groups, image_size(x.dim[2], weight.dim[2], a),
        image_size(x.dim[3], weight.dim[3], a));
    if (y.dim[2] < 1 || y.dim[3] < 1)
        return tr__fail(TR_SHAPE, "conv_transpose2d: nothing is left of the images of x %s by weight %s, with padding %d",
            TR__TEXT(x), TR__TEXT(weight), a->conv.padding);
    int64_t stride[TR_MAX_DIMS];
    tr__channels_last(y, stride);
    return tr__output_strided(call, 0, y, stride, call->inputs[0]->dtype);
}

/* ---- Kernel and gradients ------------------------------------------------------------------------------------------ */

tr_status tr__conv_transpose2d_forward(tr_op_call *call)
{
    const tr_conv_transpose2d_attrs *a = call->attrs;
    tr_tensor *y = call->outputs[0];
    TR__TRY(tr__op_run(tr__op(conv2d_grad_input), &a->conv, call->inputs, 2, &y, 1));
    if (!call->inputs[2]) return TR_OK;
    tr_tensor bias = *call->inputs[2]; /* [k, 1, 1]; on the stack, so it is nobody's object */
    bias.shape = TR_SHAPE(bias.shape.dim[0], 1, 1);
    bias.stride[1] = bias.stride[2] = 0;
    return tr__add_onto(y, &bias);
}

tr_status tr__conv_transpose2d_backward(tr_backward_call *call)
{
    const tr_conv_transpose2d_attrs *a = call->attrs;
    tr_tensor *g = call->grad_outputs[0], *x = call->inputs[0], *weight = call->inputs[1];
    if (call->needs[0]) {
        int64_t stride[TR_MAX_DIMS];
        tr__channels_last(x->shape, stride);
        tr_tensor *dx = tr__tensor_new_strided(x->shape, stride, x->dtype, tr__device_of(x));
        TR__TRY(tr__op_run(tr__op(conv2d), &a->conv, (tr_tensor *[]){g, weight, NULL}, 3, &dx, 1));
        call->grad_inputs[0] = dx;
    }
    if (call->needs[1]) {
        tr_conv2d_attrs attrs = a->conv;
        tr_tensor *outputs[] = {tr__grad_target(call, 1, &attrs.accumulate), NULL};
        TR__TRY(tr__op_run(tr__op(conv2d_grad_weight), &attrs, (tr_tensor *[]){x, g}, 2, outputs, 2));
        call->grad_inputs[1] = outputs[0];
    }
    if (call->needs[2]) {
        bool accumulate;
        tr_tensor *dbias = tr__grad_target(call, 2, &accumulate);
        TR__TRY(tr_status_of(dbias));
        TR__TRY(tr__sum_onto(g, TR__CONV2D_PIXELS, dbias, accumulate));
        call->grad_inputs[2] = dbias;
    }
    return TR_OK;
}

tr_tensor *tr_conv_transpose2d_op_with(const tr_conv_transpose2d_op_options *o)
{
    tr_conv_transpose2d_attrs attrs = {
        .conv.stride = TR__OR(o, stride, 1),
        .conv.padding = o->padding,
        .conv.dilation = TR__OR(o, dilation, 1),
        .conv.groups = TR__OR(o, groups, 1),
        .output_padding = o->output_padding,
    };
    tr_tensor *x = o->x;
    int stride = attrs.conv.stride, strides = stride > 0 ? attrs.output_padding / stride : 0;
    bool pads = strides > 0 && attrs.output_padding < attrs.conv.dilation;
    if (pads && x && !tr__bad(x) && x->shape.ndim == 4) { /* padding by a whole stride is what zeros behind x give */
        attrs.output_padding %= stride;
        x = tr_pad(x, .after = {0, 0, strides, strides});
    }
    return tr_apply(tr__op(conv_transpose2d), &attrs, (tr_tensor *[]){x, o->weight, o->bias}, 3, NULL);
}
