/* The kernels for CPUs: which ops have some, and the choice between those for different machines. */
#include "base/isa.h"
#include "ops/compare.h"
#include "ops/cpu/attention/attention.h"
#include "ops/cpu/plan.h"
#include "ops/cpu/simd/kernels/tables.h"

static tr_status simd(tr_op_call *call)
{
    return TR__OF_MACHINE(tr__simd)[call->op - tr__ops](call);
}

#define SIMD(name) [TR__OP_##name] = simd,

const tr__kernel tr__cpu_kernels[TR__OP_COUNT] = {
#include "ops/cpu/simd/kernels/list.h"
    [TR__OP_matmul] = tr__planned,
    [TR__OP_linear] = tr__planned,
    [TR__OP_linear_grad_input] = tr__planned,
    [TR__OP_linear_grad_weight] = tr__planned,
    [TR__OP_conv2d] = tr__planned,
    [TR__OP_conv2d_grad_input] = tr__planned,
    [TR__OP_conv2d_grad_weight] = tr__planned,
    [TR__OP_attention] = tr__cpu_attention,
    [TR__OP_attention_grad] = tr__cpu_attention,
    [TR__OP_self_attention] = tr__cpu_attention,
    [TR__OP_self_attention_grad] = tr__cpu_attention,
};
