#include "ops/cpu/attention/attention.h"

#include "base/isa.h"

static const tr__attention_kernels *kernels_for(tr_dtype dtype)
{
#if defined(__x86_64__)
    if (dtype == TR_BF16 && tr__has_amx()) return &tr__attention_amx;
    if (dtype == TR_BF16 && tr__uses_bf16_dot()) return &tr__attention_avx512bf16;
#endif
    (void)dtype;
    return &TR__OF_MACHINE(tr__attention);
}

tr_status tr__cpu_attention(tr_op_call *call)
{
    tr_dtype dtype = call->inputs[0]->dtype;
    return dtype == TR_F64 ? TR_DECLINED : tr__attention_run(call, kernels_for(dtype));
}
