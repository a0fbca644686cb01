/*
 * Products by oneDNN, on one thread per task: f32 by its sgemm, bf16 and f16 by matmul primitives. The longer side of c is
 * split into tasks of a size that does not depend on the number of threads, so neither do the results.
 */
#include "ops/onednn/engine.h"
#include "ops/onednn/kernels.h"
#include "ops/onednn/primitive.h"

#include <stdio.h>
#include <string.h>

/* TASK: of c's longer side, per task. oneDNN packs the other operand anew for each, so not too little.
 * DEPTH: terms that its sgemm for SSE 4.1 gets at once. It adds them one after the other in a single float, whose error grows with
 * their number: 40,000 terms were off by 7e-6 of their sum. The kernels for later machines add up blocks by themselves. */
enum { TASK = 512, DEPTH = 1024 };

/* ---- Primitives for 16-bit floats ------------------------------------------------------------------------------------- */

/* c: [m, n] (+)= a: [m, k] b: [k, n] + bias: [n]; strides in elements. */
typedef struct half_gemm {
    int64_t m, n, k, a_row, a_column, b_row, b_column, c_row;
    int64_t dtype, with_bias;
} half_gemm;

static dnnl_status_t describe(tr__primitive *p, const half_gemm *k)
{
    static const int names[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS};
    const int64_t size[][2] = {{k->m, k->k}, {k->k, k->n}, {k->m, k->n}, {1, k->n}};
    const int64_t stride[][2] = {{k->a_row, k->a_column}, {k->b_row, k->b_column}, {k->c_row, 1}, {k->n, 1}};
    dnnl_data_type_t type = k->dtype == TR_BF16 ? dnnl_bf16 : dnnl_f16;
    dnnl_status_t status = dnnl_success;
    p->parts = 4;
    for (int i = 0; i < p->parts && status == dnnl_success; i++) {
        p->argument[i] = names[i];
        status = tr__dnnl_desc_new(&p->desc[i], type, 2, size[i], stride[i]);
    }
    return status;
}

static dnnl_status_t make(tr__primitive *p, dnnl_engine_t engine, const void *user, dnnl_primitive_attr_t attr,
    dnnl_primitive_desc_t *desc)
{
    const half_gemm *k = user;
    snprintf(p->text, sizeof p->text, "matmul %s [%lld, %lld] x [%lld, %lld]", tr_dtype_name((tr_dtype)k->dtype),
        (long long)k->m, (long long)k->k, (long long)k->k, (long long)k->n);
    dnnl_status_t status = describe(p, k);
    if (status != dnnl_success) return status;
    return tr__dnnl_matmul(desc, engine, &p->desc[0], &p->desc[1], k->with_bias ? &p->desc[3] : NULL, &p->desc[2], attr);
}

/* ---- Tasks --------------------------------------------------------------------------------------------------------------- */

/* A matrix as oneDNN takes it: rows, or with 'T' columns, that are contiguous and ld apart. */
typedef struct operand {
    char transposed;
    int64_t ld;
} operand;

static bool as_operand(const tr__matrix *m, operand *out)
{
    int64_t rows = m->row.n, columns = m->column.n;
    if (m->row.ndim != 1 || m->column.ndim != 1) return false;
    int64_t down = rows == 1 ? columns : m->row.stride[0], along = columns == 1 ? 1 : m->column.stride[0];
    if (along == 1 && down >= columns) {
        *out = (operand){'N', down};
        return true;
    }
    if (rows == 1 && columns > 1) down = 1; /* one strided row is one column of a transposed matrix */
    if (columns == 1) along = rows;
    *out = (operand){'T', along};
    return down == 1 && along >= rows;
}

static int64_t offset(operand o, int64_t row, int64_t column)
{
    return o.transposed == 'T' ? column * o.ld + row : row * o.ld + column;
}

typedef struct tasks {
    const tr__gemm *p;
    operand a, b, c;
    tr_device device;
    bool by_rows;
    int64_t splits;         /* of one product */
    int64_t depth;          /* of one call of sgemm */
    tr__primitive *matmul[2]; /* not for f32: of a full task, and of the last one of a product */
    atomic_int status;      /* of oneDNN */
} tasks;

/* The block of c that is one task's. */
typedef struct block {
    int64_t m, n, k;
    const char *a, *b, *bias;
    char *c;
    const char *residual; /* rows residual_row apart */
    int64_t residual_row;
} block;

static block block_of(const tasks *work, int64_t task)
{
    const tr__gemm *p = work->p;
    int64_t batch = task / work->splits, from = task % work->splits * TASK, size = (int64_t)tr_dtype_size(p->a.dtype);
    block t = {p->a.row.n, p->b.column.n, p->a.column.n, .residual_row = p->residual.data ? p->residual.row.stride[0] : 0};
    int64_t row = work->by_rows ? from : 0, column = work->by_rows ? 0 : from;
    int64_t *split = work->by_rows ? &t.m : &t.n;
    *split = *split - from < TASK ? *split - from : TASK;
    t.a = (const char *)p->a.data + (tr__axis_at(&p->a_batch, batch) + offset(work->a, row, 0)) * size;
    t.b = (const char *)p->b.data + (tr__axis_at(&p->b_batch, batch) + offset(work->b, 0, column)) * size;
    t.c = (char *)p->c.data + (tr__axis_at(&p->c_batch, batch) + offset(work->c, row, column)) * size;
    if (p->bias) t.bias = (const char *)tr__ptr(p->bias) + column * size;
    if (p->residual.data) t.residual = (const char *)p->residual.data + (row * t.residual_row + column) * size;
    return t;
}

/* c = bias + residual: what the product is then added to. */
static dnnl_status_t run_f32(const tasks *work, const block *t)
{
    const float *bias = (const float *)t->bias, *residual = (const float *)t->residual;
    float *c = (float *)t->c;
    for (int64_t i = 0; (bias || residual) && i < t->m; i++, c += work->c.ld) {
        for (int64_t j = 0; j < t->n; j++) c[j] = (bias ? bias[j] : 0) + (residual ? residual[j] : 0);
        if (residual) residual += t->residual_row;
    }
    float beta = bias || residual || work->p->accumulate ? 1 : 0;
    const float *a = (const float *)t->a, *b = (const float *)t->b;
    int64_t depth = t->k < work->depth ? t->k : work->depth;
    dnnl_status_t status = dnnl_sgemm(work->a.transposed, work->b.transposed, t->m, t->n, depth, 1, a, work->a.ld, b, work->b.ld,
        beta, (float *)t->c, work->c.ld);
    if (depth == t->k || status != dnnl_success) return status;
    /* The other terms apart: with beta 1 it would go on from what c holds, one term after the other. */
    size_t bytes = sizeof(float) * (size_t)(t->m * t->n);
    float *sums = tr__cpu_alloc(work->device.index, bytes);
    if (!sums) return dnnl_out_of_memory;
    for (int64_t k = depth; k < t->k && status == dnnl_success; k += depth) {
        status = dnnl_sgemm(work->a.transposed, work->b.transposed, t->m, t->n, t->k - k < depth ? t->k - k : depth, 1,
            a + offset(work->a, 0, k), work->a.ld, b + offset(work->b, k, 0), work->b.ld, 0, sums, t->n);
        for (int64_t i = 0; i < t->m; i++)
            for (int64_t j = 0; j < t->n; j++) ((float *)t->c)[i * work->c.ld + j] += sums[i * t->n + j];
    }
    tr__cpu_free(work->device.index, sums, bytes);
    return status;
}

static tr_status get_matmul(const tasks *work, int64_t task, tr__primitive **out)
{
    const tr__gemm *p = work->p;
    block t = block_of(work, task);
    const half_gemm made = {.m = t.m, .n = t.n, .k = t.k, .a_row = offset(work->a, 1, 0), .a_column = offset(work->a, 0, 1),
        .b_row = offset(work->b, 1, 0), .b_column = offset(work->b, 0, 1), .c_row = work->c.ld, .dtype = p->a.dtype,
        .with_bias = t.bias != NULL};
    tr__primitive_key key = {.kind = TR__DNNL_MATMUL, .accumulate = p->accumulate || t.residual};
    _Static_assert(sizeof made <= sizeof key.number, "a matmul's numbers fit a key");
    memcpy(key.number, &made, sizeof made);
    return tr__primitive_get("matmul", &key, make, &made, out);
}

static dnnl_status_t run_half(const tasks *work, const block *t, bool last)
{
    const tr__primitive *matmul = work->matmul[last];
    for (int64_t i = 0; t->residual && i < t->m; i++) /* which the product is then added to */
        memcpy(t->c + 2 * i * work->c.ld, t->residual + 2 * i * t->residual_row, 2 * (size_t)t->n);
    return tr__primitive_run(matmul, (const void *[]){t->a, t->b, t->c, t->bias}, work->device.index);
}

static void run_tasks(void *arg, int64_t begin, int64_t end)
{
    tasks *work = arg;
    int threads = tr__onednn_enter();
    for (int64_t task = begin; task < end; task++) {
        block t = block_of(work, task);
        bool last = task % work->splits == work->splits - 1;
        dnnl_status_t status = work->p->a.dtype == TR_F32 ? run_f32(work, &t) : run_half(work, &t, last);
        if (status != dnnl_success) atomic_store(&work->status, (int)status);
    }
    tr__onednn_leave(threads);
}

static bool fits(const tr__gemm *p, tasks *work)
{
    int64_t m = p->a.row.n, n = p->b.column.n;
    if (p->a.dtype == TR_F64 || p->a.column.n == 0 || m == 0 || n == 0 || p->c_batch.n == 0) return false;
    if (!as_operand(&p->a, &work->a) || !as_operand(&p->b, &work->b) || !as_operand(&p->c, &work->c)) return false;
    if (work->c.transposed != 'N' || (p->bias && n > 1 && p->bias->stride[0] != 1)) return false;
    operand residual;
    return !p->residual.data || (as_operand(&p->residual, &residual) && residual.transposed == 'N');
}

bool tr__onednn_takes(const tr__gemm *p)
{
    return !tr__gemm_activates(p) && fits(p, &(tasks){.p = p});
}

tr_status tr__onednn_gemm(const tr__gemm *p, tr_device device)
{
    tasks work = {.p = p, .device = device};
    if (!fits(p, &work)) return TR_DECLINED;
    int64_t m = p->a.row.n, n = p->b.column.n;
    work.by_rows = m >= n;
    work.depth = p->a.column.n <= DEPTH || tr__onednn_has(dnnl_cpu_isa_avx2) ? p->a.column.n : DEPTH;
    work.splits = ((work.by_rows ? m : n) + TASK - 1) / TASK;
    tr_status status = TR_OK;
    if (p->a.dtype != TR_F32) {
        int threads = tr__onednn_enter(); /* a primitive remembers how many threads it was made for */
        for (int i = 0; i < 2 && status == TR_OK; i++)
            status = get_matmul(&work, i ? work.splits - 1 : 0, &work.matmul[i]);
        tr__onednn_leave(threads);
    }
    if (status == TR_OK) {
        tr__pool_for(tr__cpu_pool(device), p->c_batch.n * work.splits, 1, run_tasks, &work);
        status = tr__onednn_fail((dnnl_status_t)work.status, "matrix product");
    }
    for (int i = 0; i < 2; i++) tr__primitive_unref(work.matmul[i]);
    return status;
}

/* ---- Calls of matmul, linear and its gradients, as oneDNN takes them: of one dtype -------------------------------------- */

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
