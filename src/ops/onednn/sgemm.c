/*
 * f32 products by oneDNN's sgemm, which packs both operands itself and runs within some per cent of the core's peak.
 */
#include "ops/onednn/engine.h"
#include "ops/onednn/kernels.h"
#include "ops/product.h"

#include <stdatomic.h>
#include <string.h>

/* Rows per task: sgemm packs b anew for each, so not too few. The split does not depend on the number of threads, so
 * neither do the results. */
enum { TASK_ROWS = 512 };

/* A matrix as sgemm takes it: rows, or with 'T' columns, that are contiguous and ld apart. */
typedef struct operand {
    char transposed;
    int64_t ld;
} operand;

static bool as_operand(const tr__matrix *m, operand *out)
{
    int64_t rows = m->row.n, columns = m->column.n;
    if (m->dtype != TR_F32 || m->row.ndim != 1 || m->column.ndim != 1) return false;
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

typedef struct tasks {
    const tr__product *p;
    operand a, b, c;
    int64_t row_blocks;
    atomic_int status;
} tasks;

/* c = bias + residual (+ c): what the product is then added to. */
static void begin_rows(const tr__product *p, int64_t row, int64_t rows, float *c, int64_t ldc)
{
    int64_t n = p->c.column.n;
    const float *bias = p->bias ? tr__ptr(p->bias) : NULL;
    for (int64_t i = 0; i < rows; i++, c += ldc) {
        const float *residual = (const float *)p->residual.data + (row + i) * p->residual.row.stride[0];
        if (bias && p->residual.data) {
            for (int64_t j = 0; j < n; j++) c[j] = bias[j] + residual[j];
        } else if (bias) {
            memcpy(c, bias, (size_t)n * sizeof *c);
        } else {
            memcpy(c, residual, (size_t)n * sizeof *c);
        }
    }
}

static void run_tasks(void *arg, int64_t begin, int64_t end)
{
    tasks *work = arg;
    const tr__product *p = work->p;
    int64_t m = p->a.row.n, n = p->b.column.n, k = p->a.column.n;
    bool begun = p->bias || p->residual.data;
    int threads = tr__onednn_enter();
    for (int64_t task = begin; task < end; task++) {
        int64_t batch = task / work->row_blocks, row = task % work->row_blocks * TASK_ROWS;
        int64_t rows = m - row < TASK_ROWS ? m - row : TASK_ROWS;
        const float *a = p->a.data, *b = p->b.data;
        a += tr__axis_at(&p->a_batch, batch) + (work->a.transposed == 'T' ? row : row * work->a.ld);
        b += tr__axis_at(&p->b_batch, batch);
        float *c = (float *)p->c.data + tr__axis_at(&p->c_batch, batch) + row * work->c.ld;
        if (begun) begin_rows(p, row, rows, c, work->c.ld);
        dnnl_status_t status = dnnl_sgemm(work->a.transposed, work->b.transposed, rows, n, k, 1.0f, a, work->a.ld, b,
            work->b.ld, begun || p->accumulate ? 1.0f : 0.0f, c, work->c.ld);
        if (status != dnnl_success) atomic_store(&work->status, (int)status);
    }
    tr__onednn_leave(threads);
}

static bool plain_row(const tr__matrix *m)
{
    operand o;
    return as_operand(m, &o) && o.transposed == 'N';
}

tr_status tr__onednn_sgemm(const tr__product *p, tr__pool *pool)
{
    tasks work = {.p = p, .row_blocks = (p->a.row.n + TASK_ROWS - 1) / TASK_ROWS};
    if (!as_operand(&p->a, &work.a) || !as_operand(&p->b, &work.b) || !as_operand(&p->c, &work.c)) return TR__DECLINED;
    if (work.c.transposed != 'N' || p->a.column.n == 0) return TR__DECLINED;
    if (p->bias && p->bias->shape.dim[0] > 1 && p->bias->stride[0] != 1) return TR__DECLINED;
    if (p->residual.data && !plain_row(&p->residual)) return TR__DECLINED;
    if ((p->bias || p->residual.data) && p->accumulate) return TR__DECLINED;
    if (p->b.column.n == 0) return TR_OK;
    tr__pool_for(pool, p->c_batch.n * work.row_blocks, 1, run_tasks, &work);
    return tr__onednn_fail((dnnl_status_t)atomic_load(&work.status), "sgemm");
}
