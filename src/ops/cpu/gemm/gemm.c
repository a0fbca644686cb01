#include "ops/cpu/gemm/gemm.h"

#include "ops/cpu/simd/isa.h"

#include <stdatomic.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static bool contiguous(const tr__axis *axis)
{
    return axis->ndim == 1 && (axis->stride[0] == 1 || axis->n == 1);
}

/* Matrix units for bf16 (Sapphire Rapids and later; virtual machines often hide them). */
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

bool tr__cpu_gemm_preferred(const tr__gemm *p)
{
    if (!tr__has_avx2() || p->a.dtype == TR_F64) return false;
    /* Without matrix units, oneDNN's bf16 is slower than our f32 (80 against 120 GFLOP/s on a Sapphire Rapids), and than our
     * bf16 where there are instructions for it. */
    if (p->a.dtype == TR_BF16 && has_amx_bf16()) return false;
    /* For a few rows, packing a weight [out, in] does not pay. */
    return contiguous(&p->b.column) || p->a.row.n >= 16;
}

/* With fewer rows, packing b as VNNI pairs does not pay. */
enum { VNNI_ROWS = 25 };

static tr__gemm_kernel kernel_for(const tr__gemm *p)
{
#if defined(__x86_64__)
    bool bf16 = p->a.dtype == TR_BF16 && (p->b.dtype == TR_BF16 || p->b.dtype == TR_F32);
    if (bf16 && p->a.row.n >= VNNI_ROWS && tr__has_avx512bf16()) return tr__gemm_avx512bf16;
#endif
    return TR__OF_MACHINE(tr__gemm);
}

bool tr__cpu_gemm_run(const tr__gemm *p, tr_device device)
{
    return kernel_for(p)(&(tr__gemm_task){.p = p, .device = device, .pool = tr__cpu_pool(device)});
}

typedef struct batches {
    const tr__gemm *p;
    tr__gemm_kernel kernel;
    tr_device device;
    atomic_bool no_memory;
} batches;

static void run_batches(void *arg, int64_t begin, int64_t end)
{
    batches *work = arg;
    const tr__gemm *p = work->p;
    for (int64_t i = begin; i < end; i++) {
        tr__gemm_task task = {.p = p, .device = work->device};
        task.a = tr__axis_at(&p->a_batch, i);
        task.b = tr__axis_at(&p->b_batch, i);
        task.c = tr__axis_at(&p->c_batch, i);
        if (!work->kernel(&task)) atomic_store(&work->no_memory, true);
    }
}

/* Where the task sums the gradient of the bias while it reads g for dweight; NULL: it is not requested, or the layout does
 * not allow it. */
static float **bias_sums(const tr_op_call *call, tr__gemm_task *task)
{
    if (call->op != tr__op(linear_grad_weight) || call->n_outputs < 2 || !call->outputs[1]) return NULL;
    bool right = ((const tr_linear_attrs *)call->attrs)->in_out;
    if (task->p->b.column.n == 0 || task->p->a.row.n == 0) return NULL;
    if (!contiguous(right ? &task->p->b.column : &task->p->a.row)) return NULL;
    return right ? &task->b_sums : &task->a_sums;
}

static void store_sums(const float *sums, tr_tensor *dbias, bool accumulate)
{
    for (int64_t j = 0; j < dbias->shape.dim[0]; j++) {
        int64_t at = j * dbias->stride[0];
        double old = accumulate ? tr__load(dbias->dtype, tr__ptr(dbias), at) : 0;
        tr__store(dbias->dtype, tr__ptr(dbias), at, old + sums[j]);
    }
}

/* An unbatched gemm on all threads. */
static bool run_one(tr_op_call *call, const tr__gemm *p, tr_device on)
{
    tr__gemm_task task = {.p = p, .device = on, .pool = tr__cpu_pool(on)};
    float **sums = bias_sums(call, &task);
    size_t bytes = sums ? sizeof(float) * (size_t)tr_numel(call->outputs[1]) : 0;
    if (sums) {
        *sums = tr__cpu_alloc(on.index, bytes);
        if (!*sums) return false;
        memset(*sums, 0, bytes);
    }
    bool done = kernel_for(p)(&task);
    if (sums) {
        store_sums(*sums, call->outputs[1], ((const tr_linear_attrs *)call->attrs)->accumulate_bias);
        tr__cpu_free(on.index, *sums, bytes);
    }
    return done;
}

tr_status tr__cpu_gemm(tr_op_call *call)
{
    if (call->inputs[0]->dtype == TR_F64) return TR_DECLINED;
    if (!call->outputs[0]) return tr__bias_gradient(call);
    tr__gemm p = tr__gemm_of(call);
    if (tr__gemm_activates(&p) && !tr__cpu_gemm_preferred(&p)) return TR_DECLINED;
    batches work = {.p = &p, .kernel = kernel_for(&p), .device = tr__device_of(call->inputs[0])};
    tr__gemm_task one = {.p = &p};
    bool summed = bias_sums(call, &one) != NULL;
    if (p.c_batch.n == 1) work.no_memory = !run_one(call, &p, work.device);
    else tr__pool_for(tr__cpu_pool(work.device), p.c_batch.n, 1, run_batches, &work);
    if (work.no_memory)
        return tr__fail(TR_NO_MEMORY, "%s: no memory to pack %lld x %lld x %lld", call->op->name, (long long)p.a.row.n,
            (long long)p.a.column.n, (long long)p.b.column.n);
    return summed ? TR_OK : tr__bias_gradient(call);
}
