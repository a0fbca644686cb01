/*
 * sum, mean and norm of f32 and 16-bit numbers without gaps, prod of contiguous f32, over dimensions that lie together:
 * x: [outer, reduced, inner] -> [outer, inner].
 *
 * Stretches of up to a few thousand elements are summed in f32, lane by lane, and these sums in f64; squares that f32 has no
 * room for are summed once more, in f64. A long reduction
 * with few results is cut into chunks, so that threads share it; where, depends on the shape only.
 */
#ifndef TR_OPS_CPU_SIMD_KERNELS_REDUCE_H
#define TR_OPS_CPU_SIMD_KERNELS_REDUCE_H

#include "ops/cpu/simd/kernels/rows.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

enum { STRETCH = 4096, COLUMNS = 256, CHUNK = 64 << 10, MOST_CHUNKS = 64, FEW_RESULTS = 4096 };

typedef struct sum_job {
    tr_dtype dtype;  /* of x */
    const void *x;
    tr_dtype y_dtype;
    void *y;
    int64_t outer, reduced, inner, chunks;
    double scale;
    bool squares;    /* the root of the sum of squares */
    double *partial; /* [chunks, outer, inner]; NULL for one chunk: results go to y */
} sum_job;

/* The sum of n numbers from x[at] on, or of their squares. */
LANES_INLINE float sum_stretch(tr_dtype dtype, const void *x, int64_t at, int64_t n, bool squares)
{
    vec sum[4] = {{0}};
    int64_t i = 0;
    for (; i + 4 * WIDTH <= n; i += 4 * WIDTH)
        for (int k = 0; k < 4; k++) {
            vec v = lanes_load(dtype, x, at + i + k * WIDTH, WIDTH);
            sum[k] += squares ? v * v : v;
        }
    for (int k = 0; i < n; i += WIDTH, k++) {
        vec v = lanes_load(dtype, x, at + i, n - i);
        sum[k] += squares ? v * v : v;
    }
    return vec_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

static double sum_run(const sum_job *j, int64_t at, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i += STRETCH) {
        int64_t m = n - i < STRETCH ? n - i : STRETCH;
        float part = j->squares ? OF_DTYPE(j->dtype, sum_stretch, j->x, at + i, m, true)
                                : OF_DTYPE(j->dtype, sum_stretch, j->x, at + i, m, false);
        sum += (double)part;
    }
    return sum;
}

static double finished(const sum_job *j, double sum)
{
    return j->squares ? sqrt(sum) : sum * j->scale;
}

/* total[i] += the sum of the numbers of column i, of n <= COLUMNS columns, in rows from x[at] on. */
LANES_INLINE void sum_columns(tr_dtype dtype, const void *x, int64_t at, int64_t rows, int64_t stride, int64_t n, bool squares,
    double *total)
{
    enum { ROWS = 32 };
    float part[COLUMNS];
    for (int64_t r = 0; r < rows; r += ROWS) {
        int64_t end = rows - r < ROWS ? rows : r + ROWS;
        FOR_VECTORS(n,
            vec sum = {0};
            for (int64_t k = r; k < end; k++) {
                vec v = lanes_load(dtype, x, at + k * stride + i, m);
                sum += squares ? v * v : v;
            }
            store_lanes(part + i, sum, m););
        for (int64_t i = 0; i < n; i++) total[i] += (double)part[i];
    }
}

/* Sums of squares of n columns: in f64 where one of f32 overflowed, or where some may have been too small. Out of line, as its
 * rare work would take registers from the usual. */
static __attribute__((noinline)) void mend_squares(const sum_job *j, int64_t at, int64_t rows, int64_t n, double *sums)
{
    for (int64_t i = 0; i < n; i++) {
        if (sums[i] >= 0x1p-90 && sums[i] <= DBL_MAX) continue;
        sums[i] = 0;
        for (int64_t r = 0; r < rows; r++) {
            double x = tr__load(j->dtype, j->x, at + r * j->inner + i);
            sums[i] += x * x;
        }
    }
}

static void put(const sum_job *j, int64_t at, double sum)
{
    if (j->y_dtype == TR_F32) ((float *)j->y)[at] = (float)finished(j, sum);
    else tr__store(j->y_dtype, j->y, at, finished(j, sum));
}

static void put_sums(const sum_job *j, int64_t chunk, int64_t at, int64_t n, const double *sums)
{
    for (int64_t i = 0; i < n; i++) {
        if (j->partial)
            j->partial[chunk * j->outer * j->inner + at + i] = sums[i];
        else
            put(j, at + i, sums[i]);
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
        int64_t at = (o * j->reduced + first) * j->inner + column;
        double sums[COLUMNS] = {0};
        if (rows > 0 && j->inner == 1)
            sums[0] = sum_run(j, at, rows);
        else if (rows > 0)
            OF_DTYPE(j->dtype, sum_columns, j->x, at, rows, j->inner, n, j->squares, sums);
        if (j->squares) mend_squares(j, at, rows, n, sums);
        put_sums(j, chunk, o * j->inner + column, n, sums);
    }
}

static void add_chunks(const sum_job *j)
{
    int64_t results = j->outer * j->inner;
    for (int64_t i = 0; i < results; i++) {
        double sum = 0;
        for (int64_t c = 0; c < j->chunks; c++) sum += j->partial[c * results + i];
        put(j, i, sum);
    }
}

/* The dimensions of x that have more than one element, in their order in memory: how many, or -1 where there are gaps. */
static int order_in_memory(const tr_tensor *x, int order[TR_MAX_DIMS])
{
    int n = 0;
    for (int d = 0; d < x->shape.ndim; d++) {
        if (x->shape.dim[d] == 1) continue;
        int at = n++;
        for (; at > 0 && x->stride[order[at - 1]] < x->stride[d]; at--) order[at] = order[at - 1];
        order[at] = d;
    }
    int64_t span = 1;
    for (int i = n - 1; i >= 0; span *= x->shape.dim[order[i--]])
        if (x->stride[order[i]] != span) return -1;
    return n;
}

/* The three sizes, if the reduced dimensions lie together, and the others in their order. */
static bool sizes_of(const tr_tensor *x, uint32_t dims, sum_job *j)
{
    int order[TR_MAX_DIMS], n = order_in_memory(x, order), kept = -1, state = 0; /* 0: outer, 1: reduced, 2: inner */
    for (int i = 0; i < n; i++) {
        int d = order[i];
        bool reduced = dims >> d & 1;
        if (reduced && state == 0) state = 1;
        if (!reduced && state == 1) state = 2;
        if (reduced && state == 2) return false;
        if (!reduced && d < kept) return false;
        if (!reduced) kept = d;
        *(state == 0 ? &j->outer : state == 1 ? &j->reduced : &j->inner) *= x->shape.dim[d];
    }
    return n >= 0;
}

/* sum, mean and norm */
static tr_status sum_kernel(tr_op_call *call)
{
    const tr_tensor *x = call->inputs[0], *y = call->outputs[0];
    sum_job j = {.dtype = x->dtype, .x = tr__ptr(x), .y_dtype = y->dtype, .y = tr__ptr(y), .outer = 1, .reduced = 1, .inner = 1,
        .chunks = 1, .squares = call->op == tr__op(norm)};
    if (!tr_dtype_is_float(x->dtype) || x->dtype == TR_F64 || !tr_is_contiguous(y)) return TR_DECLINED;
    if (!sizes_of(x, ((const tr_reduce_attrs *)call->attrs)->dims, &j)) return TR_DECLINED;
    int64_t results = j.outer * j.inner;
    if (results == 0) return TR_OK;
    j.scale = call->op == tr__op(mean) ? 1 / (double)j.reduced : 1;
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

/* ---- prod: in f64, as a product of many rounds often ------------------------------------------------------------------- */

enum { FACTORS = 32 };

/* Of n columns, or of the n parts of a row that are multiplied side by side: rows lie `stride` apart. */
static inline void multiply_columns(const float *x, int64_t rows, int64_t stride, int64_t n, double *product)
{
    for (int64_t i = 0; i < n; i++) product[i] = 1;
    for (int64_t r = 0; r < rows; r++, x += stride)
        for (int64_t i = 0; i < n; i++) product[i] *= (double)x[i];
}

/* Eight partial products may overflow or underflow where the product in order does not. Then the row is multiplied again in order,
 * unless one of its numbers is zero and so is the product. */
static double product_of_row(const float *x, int64_t n)
{
    double part[FACTORS];
    int64_t whole = n - n % FACTORS;
    multiply_columns(x, n / FACTORS, FACTORS, FACTORS, part);
    for (int64_t i = whole; i < n; i++) part[i - whole] *= (double)x[i];
    for (int parts = FACTORS / 2; parts > 0; parts /= 2) /* by halves: one by one, each product would wait for the last */
        for (int i = 0; i < parts; i++) part[i] *= part[i + parts];
    if (isfinite(part[0]) && part[0] != 0) return part[0];
    int64_t zeros = 0;
    for (int64_t i = 0; i < n; i++) zeros += x[i] == 0;
    if (zeros && part[0] == 0) return part[0];
    double product = 1;
    for (int64_t i = 0; i < n; i++) product *= (double)x[i];
    return product;
}

/* Tasks: outer index by outer index, FACTORS of inner by FACTORS. */
static void product_tasks(void *arg, int64_t begin, int64_t end)
{
    const sum_job *j = arg;
    int64_t blocks = (j->inner + FACTORS - 1) / FACTORS;
    for (int64_t task = begin; task < end; task++) {
        int64_t o = task / blocks, column = task % blocks * FACTORS, n = j->inner - column < FACTORS ? j->inner - column : FACTORS;
        const float *x = (const float *)j->x + o * j->reduced * j->inner + column;
        double product[FACTORS];
        if (j->inner == 1) product[0] = product_of_row(x, j->reduced);
        else if (n == FACTORS) multiply_columns(x, j->reduced, j->inner, FACTORS, product);
        else multiply_columns(x, j->reduced, j->inner, n, product);
        for (int64_t i = 0; i < n; i++) ((float *)j->y)[o * j->inner + column + i] = (float)product[i];
    }
}

static tr_status prod_kernel(tr_op_call *call)
{
    const tr_tensor *x = call->inputs[0];
    sum_job j = {.x = tr__ptr(x), .y = tr__ptr(call->outputs[0]), .outer = 1, .reduced = 1, .inner = 1};
    if (x->dtype != TR_F32 || !tr_is_contiguous(x)) return TR_DECLINED;
    if (!sizes_of(x, ((const tr_reduce_attrs *)call->attrs)->dims, &j)) return TR_DECLINED;
    int64_t tasks = j.outer * ((j.inner + FACTORS - 1) / FACTORS), columns = j.inner < FACTORS ? j.inner : FACTORS;
    tr__pool_for(tr__pool_of(x), tasks, tr__row_grain(j.reduced * columns), product_tasks, &j);
    return TR_OK;
}

/* ---- max and min, and where they are, of contiguous f32 over the last dimensions: x: [outer, reduced] -> [outer] ------- */

typedef struct top_job {
    const float *x;
    float *y;       /* or */
    int64_t *place;
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

/* Where the first number is that equals value, which one does, or the first NaN. */
static int64_t first_of(const float *x, int64_t n, float value)
{
    enum { LOOKED_AT = 64 }; /* at a time, without a branch */
    int64_t at = 0;
    if (value != value) {
        while (x[at] == x[at]) at++;
        return at;
    }
    for (; at + LOOKED_AT <= n; at += LOOKED_AT) {
        int found = 0;
        for (int i = 0; i < LOOKED_AT; i++) found |= x[at + i] == value;
        if (found) break;
    }
    while (x[at] != value) at++;
    return at;
}

static void top_results(void *arg, int64_t begin, int64_t end)
{
    const top_job *j = arg;
    for (int64_t r = begin; r < end; r++) {
        const float *x = j->x + r * j->reduced, top = signed_top(x, j->reduced, j->sign);
        if (j->place) j->place[r] = first_of(x, j->reduced, top);
        else j->y[r] = top;
    }
}

/* max, min, argmax and argmin */
static tr_status max_kernel(tr_op_call *call)
{
    const tr_tensor *x = call->inputs[0];
    bool places = call->op == tr__op(argmax) || call->op == tr__op(argmin);
    sum_job sizes = {.outer = 1, .reduced = 1, .inner = 1};
    if (x->dtype != TR_F32 || !tr_is_contiguous(x)) return TR_DECLINED;
    if (!sizes_of(x, ((const tr_reduce_attrs *)call->attrs)->dims, &sizes) || sizes.inner != 1) return TR_DECLINED;
    top_job j = {.x = tr__ptr(x), .reduced = sizes.reduced,
        .sign = call->op == tr__op(max) || call->op == tr__op(argmax) ? 1 : -1};
    if (places) j.place = tr__ptr(call->outputs[0]);
    else j.y = tr__ptr(call->outputs[0]);
    tr__pool_for(tr__pool_of(x), sizes.outer, tr__row_grain(sizes.reduced), top_results, &j);
    return TR_OK;
}

#endif
