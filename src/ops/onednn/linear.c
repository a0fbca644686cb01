/* Calls of matmul, linear and its gradients, as oneDNN takes them: of one dtype. */
#include "ops/onednn/kernels.h"

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
        else if (to) TR__TRY(tr__add_onto(to, tr_cast(outputs[i], to->dtype)));
    }
    return TR_OK;
}

tr_status tr__onednn_matmul(tr_op_call *call, const tr__gemm *p)
{
    if (!of_one_dtype(call)) return with_copies(call);
    tr_status status = tr__onednn_gemm(p, tr__device_of(call->inputs[0]));
    return status == TR_OK ? tr__bias_gradient(call) : status;
}
