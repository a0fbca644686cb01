#include "ops/cpu/attention/attention.h"

#include "base/isa.h"

#include <stdatomic.h>

typedef struct task {
    const tr__attention *a;
    const tr__attention_kernels *kernels;
    size_t bytes; /* of scratch */
    atomic_bool no_memory;
} task;

static void run_heads(void *arg, int64_t begin, int64_t end)
{
    task *work = arg;
    const tr__attention *a = work->a;
    float *scratch = tr__cpu_alloc(a->device.index, work->bytes);
    if (!scratch) {
        atomic_store(&work->no_memory, true);
        return;
    }
    for (int64_t i = begin; i < end; i++)
        (a->grad ? work->kernels->backward : work->kernels->forward)(a, i, i + 1 < end ? i + 1 : i, scratch);
    tr__cpu_free(a->device.index, scratch, work->bytes);
}

static const tr__attention_kernels *kernels_for(tr_dtype dtype)
{
#if defined(__x86_64__)
    if (dtype == TR_BF16 && tr__has_avx512bf16()) return &tr__attention_avx512bf16;
#endif
    (void)dtype;
    return &TR__OF_MACHINE(tr__attention);
}

tr_status tr__cpu_attention(tr_op_call *call)
{
    if (call->inputs[0]->dtype == TR_F64) return TR_DECLINED;
    tr__attention a = tr__attention_of(call);
    task work = {.a = &a, .kernels = kernels_for(a.dtype)};
    work.bytes = sizeof(float) * (a.grad ? work.kernels->backward_scratch : work.kernels->forward_scratch)(&a);
    tr__pool_for(tr__cpu_pool(a.device), a.batch * a.heads, 1, run_heads, &work);
    if (!atomic_load(&work.no_memory)) return TR_OK;
    return tr__fail(TR_NO_MEMORY, "%s: no memory for the %zu bytes that a head of %lld queries and %lld keys takes",
        call->op->name, work.bytes, (long long)a.queries, (long long)a.keys);
}
