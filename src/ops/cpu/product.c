#include "ops/cpu/product.h"

#include "ops/cpu/isa.h"

#include <stdatomic.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static bool contiguous(const tr__axis *axis)
{
    return axis->ndim == 1 && (axis->stride[0] == 1 || axis->n == 1);
}

/* Matrix units that multiply bf16 (Sapphire Rapids and later; virtual machines often hide them). */
static bool has_amx_bf16(void)
{
#if defined(__x86_64__)
    static atomic_int known; /* 0: not yet; 1: no; 2: yes. The instruction costs a microsecond in a virtual machine */
    int answer = atomic_load(&known);
    if (answer == 0) {
        unsigned a, b, c, d = 0;
        answer = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) ? 2 : 1;
        atomic_store(&known, answer);
    }
    return answer == 2;
#else
    return false;
#endif
}

bool tr__cpu_product_wanted(const tr__product *p)
{
    if (!tr__has_avx512() || p->a.dtype == TR_F64) return false;
    /* Without matrix units, oneDNN's bf16 is slower than our f32 (80 against 120 GFLOP/s on a Sapphire Rapids). */
    if (p->a.dtype == TR_BF16 && has_amx_bf16()) return false;
    /* A few rows are not worth packing a weight [out, in] for. */
    return contiguous(&p->b.column) || p->a.row.n >= 16;
}

#if defined(__x86_64__)

typedef struct batches {
    const tr__product *p;
    tr_device device;
    atomic_bool no_memory;
} batches;

static void run_batches(void *arg, int64_t begin, int64_t end)
{
    batches *work = arg;
    const tr__product *p = work->p;
    for (int64_t i = begin; i < end; i++) {
        tr__product_at at = {.p = p, .device = work->device};
        at.a = tr__axis_at(&p->a_batch, i);
        at.b = tr__axis_at(&p->b_batch, i);
        at.c = tr__axis_at(&p->c_batch, i);
        if (!tr__product_avx512(&at)) atomic_store(&work->no_memory, true);
    }
}

/* Sums the gradient of the bias while the products of dweight read g, where both are f32. */
static bool sum_in_passing(const tr_op_call *call, tr__product_at *at)
{
    const tr__linear_attrs *attrs = call->attrs;
    tr_tensor *dbias = call->op == tr__op(linear_grad_weight) && call->n_outputs > 1 ? call->outputs[1] : NULL;
    const tr__axis *of_g = attrs && attrs->in_out ? &at->p->b.column : &at->p->a.row;
    if (!dbias || dbias->dtype != TR_F32 || !tr_is_contiguous(dbias) || !contiguous(of_g)) return false;
    if (at->p->b.column.n == 0 || at->p->a.row.n == 0) return false;
    if (!attrs->accumulate_bias) memset(tr__ptr(dbias), 0, sizeof(float) * (size_t)tr_numel(dbias));
    *(attrs->in_out ? &at->b_sums : &at->a_sums) = tr__ptr(dbias);
    return true;
}

tr_status tr__cpu_product(tr_op_call *call)
{
    if (!tr__has_avx512() || call->inputs[0]->dtype == TR_F64) return TR__DECLINED;
    if (!call->outputs[0]) return tr__bias_gradient(call);
    tr__product p = tr__product_of(call);
    batches work = {.p = &p, .device = tr__device_of(call->inputs[0])};
    bool summed = false;
    if (p.c_batch.n == 1) {
        tr__product_at at = {.p = &p, .device = work.device, .pool = tr__cpu_pool(work.device)};
        summed = sum_in_passing(call, &at);
        work.no_memory = !tr__product_avx512(&at);
    } else {
        tr__pool_for(tr__cpu_pool(work.device), p.c_batch.n, 1, run_batches, &work);
    }
    if (work.no_memory)
        return tr__fail(TR_NO_MEMORY, "%s: no memory to pack %lld x %lld x %lld", call->op->name, (long long)p.a.row.n,
            (long long)p.a.column.n, (long long)p.b.column.n);
    return summed ? TR_OK : tr__bias_gradient(call);
}

#else

tr_status tr__cpu_product(tr_op_call *call)
{
    (void)call;
    return TR__DECLINED;
}

#endif
