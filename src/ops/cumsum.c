/* Running sums along one dimension. The gradient's run from the other end. */
#include "ops/family.h"
#include "ops/rows.h"

tr_tensor *tr_cumsum(tr_tensor *x, int dim)
{
    tr_cumsum_attrs attrs = {0};
    if (x && !tr__bad(x) && tr__dim("cumsum", x->shape, dim, &attrs.dim) != TR_OK) return tr__tensor_failed();
    return tr_apply(tr__op(cumsum), &attrs, &x, 1, NULL);
}

tr_status tr__cumsum_infer(tr_op_call *call)
{
    TR__TRY(tr__given(call, 0));
    const tr_tensor *x = call->inputs[0];
    return tr_op_output(call, 0, x->shape, tr_dtype_is_float(x->dtype) ? x->dtype : TR_I64);
}

typedef struct job {
    tr__rows x, y;
    bool reverse;
} job;

/* Of rows that are read and written as a type. */
#define SUM_ROWS(name, type, sum_type, read, write)                                                                  \
    static void name(void *arg, int64_t begin, int64_t end)                                                          \
    {                                                                                                                \
        const job *j = arg;                                                                                          \
        type block[TR__ROW_BLOCK];                                                                                   \
        int64_t blocks = (j->x.n + TR__ROW_BLOCK - 1) / TR__ROW_BLOCK;                                               \
        for (int64_t r = begin; r < end; r++) {                                                                      \
            sum_type sum = 0;                                                                                        \
            for (int64_t b = 0; b < blocks; b++) {                                                                   \
                int64_t first = (j->reverse ? blocks - 1 - b : b) * TR__ROW_BLOCK, n = tr__row_block(&j->x, first);  \
                read(&j->x, r, first, n, block);                                                                     \
                for (int64_t i = 0; i < n; i++) {                                                                    \
                    type *place = &block[j->reverse ? n - 1 - i : i];                                                \
                    sum += (sum_type)*place;                                                                         \
                    *place = (type)sum;                                                                              \
                }                                                                                                    \
                write(&j->y, r, first, n, block);                                                                    \
            }                                                                                                        \
        }                                                                                                            \
    }
SUM_ROWS(sum_floats, double, double, tr__row_read, tr__row_write)
SUM_ROWS(sum_integers, int64_t, uint64_t, tr__row_read_i64, tr__row_write_i64) /* which wrap around */

/* ---- f32 and f64 that lie row-major ------------------------------------------------------------------------------ */

/* x, y: [outer, n, inner]. Sums that do not depend on each other run side by side: of neighbours, or of LINES rows. */
enum { NEIGHBOURS = 32, LINES = 4 };

typedef struct dense {
    const void *x;
    void *y;
    int64_t n, inner, outer;
    bool reverse;
} dense;

/* Of m sums, whose elements lie `apart` from each other's and `step` from their next. */
#define RUN_SIDE_BY_SIDE(type)                                                                                       \
    static inline __attribute__((always_inline)) void side_by_side_##type(const type *restrict x, type *restrict y, \
        int64_t n, int64_t step, int64_t apart, int64_t m)                                                                                    \
    {                                                                                                                \
        double sum[NEIGHBOURS] = {0};                                                                                \
        for (int64_t t = 0; t < n; t++, x += step, y += step)                                                        \
            for (int64_t i = 0; i < m; i++) {                                                                        \
                sum[i] += (double)x[i * apart];                                                                      \
                y[i * apart] = (type)sum[i];                                                                         \
            }                                                                                                        \
    }                                                                                                                \
    static void dense_##type(void *arg, int64_t begin, int64_t end)                                                  \
    {                                                                                                                \
        const dense *d = arg;                                                                                        \
        bool rows = d->inner == 1;                                                                                   \
        int64_t wide = rows ? LINES : NEIGHBOURS, line = rows ? d->outer : d->inner, tasks = (line + wide - 1) / wide; \
        int64_t step = d->reverse ? -d->inner : d->inner, last = d->reverse ? (d->n - 1) * d->inner : 0;             \
        for (int64_t task = begin; task < end; task++) {                                                             \
            int64_t first = task % tasks * wide, m = line - first < wide ? line - first : wide;                      \
            int64_t at = last + (rows ? first * d->n : task / tasks * d->n * d->inner + first);                      \
            const type *x = (const type *)d->x + at;                                                                 \
            type *y = (type *)d->y + at;                                                                             \
            if (rows && m == LINES) side_by_side_##type(x, y, d->n, step, d->n, LINES);                              \
            else if (rows) side_by_side_##type(x, y, d->n, step, d->n, m);                                           \
            else if (m == NEIGHBOURS) side_by_side_##type(x, y, d->n, step, 1, NEIGHBOURS);                          \
            else side_by_side_##type(x, y, d->n, step, 1, m);                                                        \
        }                                                                                                            \
    }
RUN_SIDE_BY_SIDE(float)
RUN_SIDE_BY_SIDE(double)

static bool run_dense(const tr_tensor *x, tr_tensor *y, const tr_cumsum_attrs *attrs)
{
    if ((x->dtype != TR_F32 && x->dtype != TR_F64) || !tr_is_contiguous(x)) return false;
    dense d = {.x = tr__ptr(x), .y = tr__ptr(y), .n = x->shape.dim[attrs->dim], .inner = 1, .outer = 1, .reverse = attrs->reverse};
    for (int k = 0; k < attrs->dim; k++) d.outer *= x->shape.dim[k];
    for (int k = attrs->dim + 1; k < x->shape.ndim; k++) d.inner *= x->shape.dim[k];
    bool rows = d.inner == 1;
    int64_t tasks = rows ? (d.outer + LINES - 1) / LINES : d.outer * ((d.inner + NEIGHBOURS - 1) / NEIGHBOURS);
    int64_t grain = tr__row_grain(d.n * (rows ? LINES : NEIGHBOURS));
    if (d.n) tr__pool_for(tr__pool_of(y), tasks, grain, x->dtype == TR_F32 ? dense_float : dense_double, &d);
    return true;
}

tr_status tr__cumsum_forward(tr_op_call *call)
{
    const tr_cumsum_attrs *attrs = call->attrs;
    if (run_dense(call->inputs[0], call->outputs[0], attrs)) return TR_OK;
    job j = {tr__rows_of(call->inputs[0], attrs->dim), tr__rows_of(call->outputs[0], attrs->dim), attrs->reverse};
    tr__pool_for(tr__pool_of(call->outputs[0]), j.x.others.n, tr__row_grain(j.x.n),
        tr_dtype_is_float(j.x.dtype) ? sum_floats : sum_integers, &j);
    return TR_OK;
}

TR__BACKWARD(cumsum, tr_cumsum_attrs, tr_apply(tr__op(cumsum), &(tr_cumsum_attrs){a->dim, !a->reverse}, &g, 1, NULL))
