/*
 * sum, mean, norm and prod of contiguous f32 over dimensions that lie together: x: [outer, reduced, inner] -> [outer, inner].
 *
 * Stretches of up to a few thousand elements are summed in f32, lane by lane, and these sums in f64; squares that f32 has no
 * room for are summed once more, in f64. A long reduction
 * with few results is cut into chunks, so that threads share it; where, depends on the shape only.
 */
#ifndef TR_OPS_CPU_SIMD_REDUCE_H
#define TR_OPS_CPU_SIMD_REDUCE_H

#include "ops/cpu/simd_rows.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

enum { STRETCH = 4096, COLUMNS = 256, CHUNK = 64 << 10, MOST_CHUNKS = 64, FEW_RESULTS = 4096 };

typedef struct sum_job {
    const float *x;
    float *y;
    int64_t outer, reduced, inner, chunks;
    double scale;
    bool squares;    /* the root of the sum of squares */
    double *partial; /* [chunks, outer, inner]; NULL for one chunk: results go to y */
} sum_job;

static float row_squares(const float *x, int64_t n)
{
    vec a = {0}, b = {0};
    int64_t i = 0;
    for (; i + 2 * WIDTH <= n; i += 2 * WIDTH) {
        a += vec_load(x + i) * vec_load(x + i);
        b += vec_load(x + i + WIDTH) * vec_load(x + i + WIDTH);
    }
    for (; i < n; i += WIDTH) {
        vec v = load_lanes(x + i, n - i < WIDTH ? n - i : WIDTH);
        a += v * v;
    }
    return vec_sum(a + b);
}

static double sum_run(const sum_job *j, const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i += STRETCH) {
        int64_t m = n - i < STRETCH ? n - i : STRETCH;
        sum += (double)(j->squares ? row_squares(x + i, m) : row_sum(x + i, m));
    }
    return sum;
}

static double finished(const sum_job *j, double sum)
{
    return j->squares ? sqrt(sum) : sum * j->scale;
}

/* total[i] += the sum of rows of x at column i, of n <= COLUMNS columns. */
static void sum_columns(const float *x, int64_t rows, int64_t stride, int64_t n, bool squares, double *total)
{
    enum { ROWS = 32 };
    float part[COLUMNS];
    for (int64_t r = 0; r < rows; r += ROWS) {
        int64_t end = rows - r < ROWS ? rows : r + ROWS;
        memset(part, 0, sizeof *part * (size_t)n);
        for (int64_t k = r; k < end; k++)
            FOR_VECTORS(n,
                vec v = load_lanes(x + k * stride + i, m);
                store_lanes(part + i, load_lanes(part + i, m) + (squares ? v * v : v), m););
        for (int64_t i = 0; i < n; i++) total[i] += (double)part[i];
    }
}

/* Sums of squares of n columns: in f64 where one of f32 overflowed, or where some may have been too small. Out of line, as its
 * rare work would take registers from the usual. */
static __attribute__((noinline)) void mend_squares(const float *x, int64_t rows, int64_t stride, int64_t n, double *sums)
{
    for (int64_t i = 0; i < n; i++) {
        if (sums[i] >= 0x1p-90 && sums[i] <= DBL_MAX) continue;
        sums[i] = 0;
        for (int64_t r = 0; r < rows; r++) sums[i] += (double)x[r * stride + i] * (double)x[r * stride + i];
    }
}

static void put_sums(const sum_job *j, int64_t chunk, int64_t at, int64_t n, const double *sums)
{
    for (int64_t i = 0; i < n; i++) {
        if (j->partial)
            j->partial[chunk * j->outer * j->inner + at + i] = sums[i];
        else
            j->y[at + i] = (float)finished(j, sums[i]);
    }
}

/* Tasks: chunk by chunk, outer index by outer index, COLUMNS of inner by COLUMNS. */
static void sum_tasks(void *arg, int64_t begin, int64_t end)
{
    const sum_job *j = arg;
    int64_t blocks = (j->inner + COLUMNS - 1) / COLUMNS, length = (j->reduced + j->chunks - 1) / j->chunks;
    for (int64_t task = begin; task < end; task++) {
        int64_t block = task % blocks, o = task / blocks % j->outer, chunk = task / blocks / j->outer;
        int64_t first = chunk * length, rows = j->reduced - first < length ? j->reduced - first : length;
        int64_t column = block * COLUMNS, n = j->inner - column < COLUMNS ? j->inner - column : COLUMNS;
        const float *x = j->x + (o * j->reduced + first) * j->inner + column;
        double sums[COLUMNS] = {0};
        if (rows > 0 && j->inner == 1)
            sums[0] = sum_run(j, x, rows);
        else if (rows > 0)
            sum_columns(x, rows, j->inner, n, j->squares, sums);
        if (j->squares) mend_squares(x, rows, j->inner, n, sums);
        put_sums(j, chunk, o * j->inner + column, n, sums);
    }
}

static void add_chunks(const sum_job *j)
{
    int64_t results = j->outer * j->inner;
    for (int64_t i = 0; i < results; i++) {
        double sum = 0;
        for (int64_t c = 0; c < j->chunks; c++) sum += j->partial[c * results + i];
        j->y[i] = (float)finished(j, sum);
    }
}

/* The three sizes, if the reduced dimensions lie together. */
static bool sizes_of(const tr_tensor *x, uint32_t dims, sum_job *j)
{
    int state = 0; /* 0: outer, 1: reduced, 2: inner */
    for (int d = 0; d < x->shape.ndim; d++) {
        int64_t n = x->shape.dim[d];
        bool reduced = dims >> d & 1;
        if (n == 1) continue;
        if (reduced && state == 0) state = 1;
        if (!reduced && state == 1) state = 2;
        if (reduced && state == 2) return false;
        *(state == 0 ? &j->outer : state == 1 ? &j->reduced : &j->inner) *= n;
    }
    return true;
}

static tr_status run_sum(tr_op_call *call, bool mean, bool squares)
{
    const tr_tensor *x = call->inputs[0];
    sum_job j = {.x = tr__ptr(x), .y = tr__ptr(call->outputs[0]), .outer = 1, .reduced = 1, .inner = 1, .chunks = 1,
        .squares = squares};
    if (x->dtype != TR_F32 || !tr_is_contiguous(x)) return TR__DECLINED;
    if (!sizes_of(x, ((const tr__reduce_attrs *)call->attrs)->dims, &j)) return TR__DECLINED;
    int64_t results = j.outer * j.inner;
    if (results == 0) return TR_OK;
    j.scale = mean ? 1 / (double)j.reduced : 1;
    if (results <= FEW_RESULTS) j.chunks = j.reduced * j.inner / CHUNK + 1;
    if (j.chunks > MOST_CHUNKS) j.chunks = MOST_CHUNKS;
    if (j.chunks > 1) {
        j.partial = malloc(sizeof(double) * (size_t)(j.chunks * results));
        if (!j.partial) return tr__fail(TR_NO_MEMORY, "%s: out of memory", call->op->name);
    }
    int64_t tasks = j.chunks * j.outer * ((j.inner + COLUMNS - 1) / COLUMNS);
    int64_t per_task = j.reduced * (j.inner < COLUMNS ? j.inner : COLUMNS) / j.chunks;
    tr__pool_for(tr__pool_of(x), tasks, tr__row_grain(per_task), sum_tasks, &j);
    if (j.partial) add_chunks(&j);
    free(j.partial);
    return TR_OK;
}

static tr_status sum_kernel(tr_op_call *call)
{
    return run_sum(call, false, false);
}

static tr_status mean_kernel(tr_op_call *call)
{
    return run_sum(call, true, false);
}

static tr_status norm_kernel(tr_op_call *call)
{
    return run_sum(call, false, true);
}

/* ---- prod: in f64, as a product of many rounds often ------------------------------------------------------------------- */

enum { FACTORS = 16 };

/* Of n columns, or of the n parts of a row that are multiplied side by side: rows lie `stride` apart. */
static inline void multiply_columns(const float *x, int64_t rows, int64_t stride, int64_t n, double *product)
{
    for (int64_t i = 0; i < n; i++) product[i] = 1;
    for (int64_t r = 0; r < rows; r++, x += stride)
        for (int64_t i = 0; i < n; i++) product[i] *= (double)x[i];
}

static double product_of_row(const float *x, int64_t n)
{
    double part[FACTORS], product = 1;
    int64_t whole = n / FACTORS;
    multiply_columns(x, whole, FACTORS, FACTORS, part);
    for (int i = 0; i < FACTORS; i++) product *= part[i];
    for (int64_t i = whole * FACTORS; i < n; i++) product *= (double)x[i];
    return product;
}

/* Tasks: outer index by outer index, FACTORS of inner by FACTORS. */
static void product_tasks(void *arg, int64_t begin, int64_t end)
{
    const sum_job *j = arg;
    int64_t blocks = (j->inner + FACTORS - 1) / FACTORS;
    for (int64_t task = begin; task < end; task++) {
        int64_t o = task / blocks, column = task % blocks * FACTORS, n = j->inner - column < FACTORS ? j->inner - column : FACTORS;
        const float *x = j->x + o * j->reduced * j->inner + column;
        double product[FACTORS];
        if (j->inner == 1) product[0] = product_of_row(x, j->reduced);
        else if (n == FACTORS) multiply_columns(x, j->reduced, j->inner, FACTORS, product);
        else multiply_columns(x, j->reduced, j->inner, n, product);
        for (int64_t i = 0; i < n; i++) j->y[o * j->inner + column + i] = (float)product[i];
    }
}

static tr_status prod_kernel(tr_op_call *call)
{
    const tr_tensor *x = call->inputs[0];
    sum_job j = {.x = tr__ptr(x), .y = tr__ptr(call->outputs[0]), .outer = 1, .reduced = 1, .inner = 1};
    if (x->dtype != TR_F32 || !tr_is_contiguous(x)) return TR__DECLINED;
    if (!sizes_of(x, ((const tr__reduce_attrs *)call->attrs)->dims, &j)) return TR__DECLINED;
    int64_t tasks = j.outer * ((j.inner + FACTORS - 1) / FACTORS), columns = j.inner < FACTORS ? j.inner : FACTORS;
    tr__pool_for(tr__pool_of(x), tasks, tr__row_grain(j.reduced * columns), product_tasks, &j);
    return TR_OK;
}

/* ---- max and min of contiguous f32 over the last dimensions: x: [outer, reduced] -> [outer] --------------------------- */

typedef struct top_job {
    const float *x;
    float *y;
    int64_t reduced;
    float sign; /* -1: the smallest is the largest of the opposites */
} top_job;

/* NaN when there is one. */
static float signed_top(const float *x, int64_t n, float sign)
{
    vec top = vec_all(-__builtin_inff());
    veci nan = {0};
    FOR_VECTORS(n,
        vec v = keep_lanes(load_lanes(x + i, m) * sign, m, -__builtin_inff());
        nan |= v != v;
        top = vec_max(top, v););
    for (int i = 0; i < WIDTH; i++)
        if (nan[i]) return __builtin_nanf("");
    return vec_top(top) * sign;
}

static void top_results(void *arg, int64_t begin, int64_t end)
{
    const top_job *j = arg;
    for (int64_t r = begin; r < end; r++) j->y[r] = signed_top(j->x + r * j->reduced, j->reduced, j->sign);
}

static tr_status run_top(tr_op_call *call, float sign)
{
    const tr_tensor *x = call->inputs[0];
    sum_job sizes = {.outer = 1, .reduced = 1, .inner = 1};
    if (x->dtype != TR_F32 || !tr_is_contiguous(x)) return TR__DECLINED;
    if (!sizes_of(x, ((const tr__reduce_attrs *)call->attrs)->dims, &sizes) || sizes.inner != 1) return TR__DECLINED;
    top_job j = {tr__ptr(x), tr__ptr(call->outputs[0]), sizes.reduced, sign};
    tr__pool_for(tr__pool_of(x), sizes.outer, tr__row_grain(sizes.reduced), top_results, &j);
    return TR_OK;
}

static tr_status max_kernel(tr_op_call *call)
{
    return run_top(call, 1);
}

static tr_status min_kernel(tr_op_call *call)
{
    return run_top(call, -1);
}

#endif
