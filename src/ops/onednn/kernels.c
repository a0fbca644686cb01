/* Which ops oneDNN computes. */
#include "ops/onednn/kernels.h"

static tr_status product(tr_op_call *call)
{
    tr__product p = tr__product_of(call);
    return tr__onednn_sgemm(&p, tr__pool_of(call->inputs[0]));
}

static tr_status linear_grad_weight(tr_op_call *call)
{
    const tr__linear_attrs *attrs = call->attrs;
    if (call->outputs[0]) TR__TRY(product(call));
    if (call->n_outputs > 1 && call->outputs[1]) {
        tr__matrix g = tr__matrix_of(call->inputs[0]);
        tr__sum_rows(&g, call->outputs[1], attrs->accumulate_bias);
    }
    return TR_OK;
}

const tr__kernel tr__onednn_kernels[TR__OP_COUNT] = {
    [TR__OP_matmul] = product,
    [TR__OP_linear] = product,
    [TR__OP_linear_grad_input] = product,
    [TR__OP_linear_grad_weight] = linear_grad_weight,
};
