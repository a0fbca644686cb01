/* Which ops oneDNN computes. */
#include "ops/onednn/kernels.h"

#include "ops/cpu/conv/conv.h"
#include "ops/cpu/gemm/gemm.h"

static bool of_one_dtype(const tr_op_call *call)
{
    for (int i = 1; i < call->n_inputs; i++)
        if (call->inputs[i] && call->inputs[i]->dtype != call->inputs[0]->dtype) return false;
    for (int i = 0; i < call->n_outputs; i++)
        if (call->outputs[i] && call->outputs[i]->dtype != call->inputs[0]->dtype) return false;
    return true;
}

/* linear, or a gradient of it, of 16-bit numbers and f32 parameters: with copies of these of input 0's dtype. */
static tr_status with_copies(tr_op_call *call)
{
    TR_SCOPE;
    tr_dtype dtype = call->inputs[0]->dtype;
    tr_linear_attrs attrs = *(const tr_linear_attrs *)call->attrs;
    const bool accumulate[] = {attrs.accumulate, attrs.accumulate_bias};
    attrs.accumulate = attrs.accumulate_bias = false;
    tr_tensor *inputs[TR_OP_MAX_INPUTS] = {NULL}, *outputs[2] = {NULL};
    for (int i = 0; i < call->n_inputs; i++)
        if (call->inputs[i]) inputs[i] = tr__staged(call->inputs[i], dtype, call->inputs[i]->stride, true);
    for (int i = 0; i < call->n_outputs; i++)
        if (call->outputs[i]) outputs[i] = tr__tensor_new(call->outputs[i]->shape, dtype, tr__device_of(call->outputs[i]));
    TR__TRY(tr__op_run(call->op, &attrs, inputs, call->n_inputs, outputs, call->n_outputs));
    for (int i = 0; i < call->n_outputs; i++) {
        tr_tensor *to = call->outputs[i];
        if (to && !accumulate[i]) TR__TRY(tr__copy_elements(to, outputs[i]));
        else if (to) TR__TRY(tr__op_run(tr__op(add), NULL, (tr_tensor *[]){to, tr_cast(outputs[i], to->dtype)}, 2, &to, 1));
    }
    return TR_OK;
}

static tr_status product(tr_op_call *call)
{
    if (!call->outputs[0]) return TR_DECLINED; /* the gradient of a bias alone */
    tr__gemm p = tr__gemm_of(call);
    if (tr__gemm_activates(&p) || tr__cpu_gemm_preferred(&p)) return TR_DECLINED;
    if (!of_one_dtype(call)) return with_copies(call);
    tr_status status = tr__onednn_gemm(&p, tr__device_of(call->inputs[0]));
    return status == TR_OK ? tr__bias_gradient(call) : status;
}

/* Gradients of weights are not oneDNN's strength, with matrix units or without. */
static tr_status convolution(tr_op_call *call)
{
    bool sums = call->op == tr__op(conv2d_grad_weight);
    bool by_units = !sums && call->outputs[0]->dtype == TR_BF16 && tr__onednn_has_matrix_units();
    return tr__cpu_conv_preferred(call) && !by_units ? TR_DECLINED : tr__onednn_conv(call);
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
