/* Which ops oneDNN computes. */
#include "ops/onednn/kernels.h"

#include "ops/cpu/convolution.h"
#include "ops/cpu/product.h"

static tr_status product(tr_op_call *call)
{
    if (!call->outputs[0]) return TR__DECLINED; /* the gradient of a bias alone */
    tr__product p = tr__product_of(call);
    if (tr__product_activates(&p) || tr__cpu_product_wanted(&p)) return TR__DECLINED;
    tr_status status = tr__onednn_product(&p, tr__device_of(call->inputs[0]));
    return status == TR_OK ? tr__bias_gradient(call) : status;
}

static tr_status convolution(tr_op_call *call)
{
    return tr__cpu_convolution_wanted(call) ? TR__DECLINED : tr__onednn_convolution(call);
}

const tr__kernel tr__onednn_kernels[TR__OP_COUNT] = {
    [TR__OP_matmul] = product,
    [TR__OP_linear] = product,
    [TR__OP_linear_grad_input] = product,
    [TR__OP_linear_grad_weight] = product,
    [TR__OP_conv2d] = convolution,
    [TR__OP_conv2d_grad_input] = convolution,
    [TR__OP_conv2d_grad_weight] = convolution,
};
