#include "ops/cpu/attention/attention.h"

#include "base/isa.h"

static const tr__attention_kernels *kernels_for(tr_dtype dtype, int64_t queries)
{
#if defined(__x86_64__)
    enum { FEWEST = 16 }; /* rows of a tile: with fewer queries, as where text is generated, most of it would be computed in vain */
    if (dtype == TR_BF16 && queries >= FEWEST && tr__has_amx()) return &tr__attention_amx;
    if (dtype == TR_BF16 && tr__uses_bf16_dot()) return &tr__attention_avx512bf16;
#endif
    (void)dtype;
    (void)queries;
    return &TR__OF_MACHINE(tr__attention);
}

tr_status tr__cpu_attention(tr_op_call *call)
{
    const tr_tensor *x = call->inputs[0]; /* q, or packed with k and v, or the gradient of o */
    if (x->dtype == TR_F64) return TR_DECLINED;
    return tr__attention_run(call, kernels_for(x->dtype, x->shape.dim[x->shape.ndim - 2]));
}
