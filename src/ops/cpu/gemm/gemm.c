#include "ops/cpu/gemm/gemm.h"

#include <stdatomic.h>
#include <string.h>

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
    if (!tr__axis_contiguous(right ? &task->p->b.column : &task->p->a.row)) return NULL;
    return right ? &task->b_sums : &task->a_sums;
}

tr_status tr__cpu_gemm(tr_op_call *call, const tr__gemm *p, tr__gemm_kernel kernel)
{
    tr_device on = tr__device_of(call->inputs[0]);
    batches work = {.p = p, .kernel = kernel, .device = on};
    tr__gemm_task one = {.p = p, .device = on, .pool = tr__cpu_pool(on)};
    float **sums = bias_sums(call, &one);
    if (p->c_batch.n != 1) {
        tr__pool_for(one.pool, p->c_batch.n, 1, run_batches, &work);
    } else if (!sums) {
        work.no_memory = !kernel(&one);
    } else {
        tr_tensor *dbias = call->outputs[1];
        bool accumulate = ((const tr_linear_attrs *)call->attrs)->accumulate_bias;
        size_t bytes = sizeof(float) * (size_t)tr_numel(dbias);
        float *of_columns = *sums = tr__cpu_alloc(on.index, bytes);
        if (of_columns) memset(of_columns, 0, bytes);
        bool done = of_columns && kernel(&one);
        for (int64_t j = 0; done && j < dbias->shape.dim[0]; j++) {
            int64_t at = j * dbias->stride[0];
            double old = accumulate ? tr__load(dbias->dtype, tr__ptr(dbias), at) : 0;
            tr__store(dbias->dtype, tr__ptr(dbias), at, old + of_columns[j]);
        }
        if (of_columns) tr__cpu_free(on.index, of_columns, bytes);
        work.no_memory = !done;
    }
    if (work.no_memory)
        return tr__fail(TR_NO_MEMORY, "%s: no memory to pack %lld x %lld x %lld", call->op->name, (long long)p->a.row.n,
            (long long)p->a.column.n, (long long)p->b.column.n);
    return sums ? TR_OK : tr__bias_gradient(call);
}
