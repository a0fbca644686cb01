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
    if (!tr__has_avx2() || p->a.dtype == TR_F64) return false;
    /* Without matrix units, oneDNN's bf16 is slower than our f32 (80 against 120 GFLOP/s on a Sapphire Rapids), and than our
     * bf16 where there are instructions for it. */
    if (p->a.dtype == TR_BF16 && has_amx_bf16()) return false;
    /* A few rows are not worth packing a weight [out, in] for. */
    return contiguous(&p->b.column) || p->a.row.n >= 16;
}

/* Fewer rows are not worth bringing b into pairs for. */
enum { ROWS_FOR_PAIRS = 25 };

static tr__product_kernel kernel_of(const tr__product *p)
{
#if defined(__x86_64__)
    bool pairs = p->a.dtype == TR_BF16 && (p->b.dtype == TR_BF16 || p->b.dtype == TR_F32);
    if (pairs && p->a.row.n >= ROWS_FOR_PAIRS && tr__has_avx512bf16()) return tr__product_avx512bf16;
#endif
    return TR__OF_MACHINE(tr__product);
}

bool tr__cpu_multiply(const tr__product *p, tr_device device)
{
    return kernel_of(p)(&(tr__product_at){.p = p, .device = device, .pool = tr__cpu_pool(device)});
}

typedef struct batches {
    const tr__product *p;
    tr__product_kernel kernel;
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
        if (!work->kernel(&at)) atomic_store(&work->no_memory, true);
    }
}

/* Where the gradient of the bias is to be summed while the products of dweight read g: NULL when nobody wants it, or when
 * it can not be. */
static float **sums_of(const tr_op_call *call, tr__product_at *at)
{
    if (call->op != tr__op(linear_grad_weight) || call->n_outputs < 2 || !call->outputs[1]) return NULL;
    bool right = ((const tr_linear_attrs *)call->attrs)->in_out;
    if (at->p->b.column.n == 0 || at->p->a.row.n == 0) return NULL;
    if (!contiguous(right ? &at->p->b.column : &at->p->a.row)) return NULL;
    return right ? &at->b_sums : &at->a_sums;
}

static void store_sums(const float *sums, tr_tensor *dbias, bool accumulate)
{
    for (int64_t j = 0; j < dbias->shape.dim[0]; j++) {
        int64_t at = j * dbias->stride[0];
        double old = accumulate ? tr__load(dbias->dtype, tr__ptr(dbias), at) : 0;
        tr__store(dbias->dtype, tr__ptr(dbias), at, old + sums[j]);
    }
}

/* A product that is not one of many, with all threads. */
static bool run_one(tr_op_call *call, const tr__product *p, tr_device on)
{
    tr__product_at at = {.p = p, .device = on, .pool = tr__cpu_pool(on)};
    float **sums = sums_of(call, &at);
    size_t bytes = sums ? sizeof(float) * (size_t)tr_numel(call->outputs[1]) : 0;
    if (sums) {
        *sums = tr__cpu_alloc(on.index, bytes);
        if (!*sums) return false;
        memset(*sums, 0, bytes);
    }
    bool done = kernel_of(p)(&at);
    if (sums) {
        store_sums(*sums, call->outputs[1], ((const tr_linear_attrs *)call->attrs)->accumulate_bias);
        tr__cpu_free(on.index, *sums, bytes);
    }
    return done;
}

tr_status tr__cpu_product(tr_op_call *call)
{
    if (call->inputs[0]->dtype == TR_F64) return TR_DECLINED;
    if (!call->outputs[0]) return tr__bias_gradient(call);
    tr__product p = tr__product_of(call);
    if (tr__product_activates(&p) && !tr__cpu_product_wanted(&p)) return TR_DECLINED;
    batches work = {.p = &p, .kernel = kernel_of(&p), .device = tr__device_of(call->inputs[0])};
    tr__product_at one = {.p = &p};
    bool summed = sums_of(call, &one) != NULL;
    if (p.c_batch.n == 1) work.no_memory = !run_one(call, &p, work.device);
    else tr__pool_for(tr__cpu_pool(work.device), p.c_batch.n, 1, run_batches, &work);
    if (work.no_memory)
        return tr__fail(TR_NO_MEMORY, "%s: no memory to pack %lld x %lld x %lld", call->op->name, (long long)p.a.row.n,
            (long long)p.a.column.n, (long long)p.b.column.n);
    return summed ? TR_OK : tr__bias_gradient(call);
}
