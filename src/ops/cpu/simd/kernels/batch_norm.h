/* batch_norm, batch_norm_relu and their gradients (see batch_norm.c for the formulas), on channels-last images: rows of channels. */
#ifndef TR_OPS_CPU_SIMD_KERNELS_BATCH_NORM_H
#define TR_OPS_CPU_SIMD_KERNELS_BATCH_NORM_H

#include "ops/cpu/simd/activations.h"
#include "ops/cpu/simd/kernels/rows.h"

#include <math.h>
#include <stdlib.h>

/* Rows are split into chunks whose number depends on the shape only, so that sums do not depend on the threads, and chunks
 * into runs that stay in the first-level cache while they are summed in f32. Sums over runs are f64. */
enum { BATCH_CHUNKS = 32, BATCH_CHUNK_ROWS = 64, BATCH_RUN = 4096, BATCH_RUN_ROWS = 16, BATCH_VECTORS = 4 };

typedef struct batch_job {
    tr_dtype dtype;     /* of x, g and y */
    const void *x, *g;  /* [rows, c] */
    void *y;            /* or dx */
    bool relu;          /* y = relu(norm + residual); of a gradient: g is masked where output <= 0 */
    const void *residual, *output; /* [rows, c], or NULL */
    void *masked_g;     /* where to write the masked g; or NULL */
    int64_t rows, c, chunk, run; /* rows in all, in a chunk, in a run */
    const float *mean, *rstd;
    const float *of_x, *of_g, *rest; /* [c]: y = (x - mean) of_x + g of_g + rest */
    double *sums;       /* [chunks, 2, c] */
    float *runs;        /* [chunks, 2, c], for the sums of a run */
} batch_job;

static void batch_job_init(batch_job *j, const tr_tensor *x)
{
    j->dtype = x->dtype;
    j->c = x->shape.dim[1];
    j->rows = j->c ? tr__numel(x->shape) / j->c : 0;
    int64_t even = (j->rows + BATCH_CHUNKS - 1) / BATCH_CHUNKS, run = BATCH_RUN / (j->c + 1);
    j->chunk = even > BATCH_CHUNK_ROWS ? even : BATCH_CHUNK_ROWS;
    j->run = run > BATCH_RUN_ROWS ? run : BATCH_RUN_ROWS;
}

static int64_t batch_chunks(const batch_job *j)
{
    return (j->rows + j->chunk - 1) / j->chunk;
}

/* FOR_BLOCKS(n, statements): as FOR_VECTORS, but BATCH_VECTORS vectors at once while there are as many, so that whole cache
 * lines of each row are read: `vectors` of them, each with m valid lanes. */
#define FOR_BLOCKS(n, ...)                                                          \
    do {                                                                            \
        int64_t i = 0;                                                              \
        for (; i + BATCH_VECTORS * WIDTH <= (n); i += BATCH_VECTORS * WIDTH) {      \
            const int vectors = BATCH_VECTORS;                                      \
            const int64_t m = WIDTH;                                                \
            __VA_ARGS__                                                             \
        }                                                                           \
        for (; i < (n); i += WIDTH) {                                               \
            const int vectors = 1;                                                  \
            const int64_t m = (n) - i < WIDTH ? (n) - i : WIDTH;                    \
            __VA_ARGS__                                                             \
        }                                                                           \
    } while (0)

/* The mean of n rows, the first of which begins at x[at], and the sum of squares around it, for a block of channels. */
LANES_INLINE void run_moments(tr_dtype dtype, const void *x, int64_t at, int64_t n, int64_t c, const int vectors, int64_t m,
    float *mean, float *squares)
{
    vec middle[BATCH_VECTORS] = {{0}}, square[BATCH_VECTORS] = {{0}};
    for (int64_t r = 0; r < n; r++)
        for (int v = 0; v < vectors; v++) middle[v] += lanes_load(dtype, x, at + r * c + v * WIDTH, m);
    for (int v = 0; v < vectors; v++) middle[v] *= 1 / (float)n;
    for (int64_t r = 0; r < n; r++)
        for (int v = 0; v < vectors; v++) {
            vec centred = lanes_load(dtype, x, at + r * c + v * WIDTH, m) - middle[v];
            square[v] += centred * centred;
        }
    for (int v = 0; v < vectors; v++) {
        store_lanes(mean + v * WIDTH, middle[v], m);
        store_lanes(squares + v * WIDTH, square[v], m);
    }
}

/* Merges the moments of more numbers into those of `before` numbers; share: their part of all (Chan et al. 1979). */
static inline void join_moments(double *mean, double *squares, double before, double more, double more_squares, double share)
{
    double apart = more - *mean;
    *mean += apart * share;
    *squares += more_squares + apart * apart * before * share;
}

/* m elements of g from g[at] on, masked by ReLU's output or not. */
LANES_INLINE vec batch_gradient(tr_dtype dtype, const batch_job *j, int64_t at, int64_t m, const bool masked)
{
    vec g = lanes_load(dtype, j->g, at, m);
    return masked ? relu_times_slope(g, lanes_load(dtype, j->output, at, m)) : g;
}

/* Of n rows, a block of channels from x[at] and g[at] on, which are channels i and on: the sums of g and of g xhat. */
LANES_INLINE void run_grad_sums(tr_dtype dtype, const batch_job *j, int64_t at, int64_t n, int64_t i, const int vectors,
    int64_t m, const bool masked, float *sums, float *products)
{
    vec mean[BATCH_VECTORS], sum[BATCH_VECTORS] = {{0}}, product[BATCH_VECTORS] = {{0}};
    for (int v = 0; v < vectors; v++) mean[v] = load_lanes(j->mean + i + v * WIDTH, m);
    for (int64_t r = at; r < at + n * j->c; r += j->c)
        for (int v = 0; v < vectors; v++) {
            vec g = batch_gradient(dtype, j, r + v * WIDTH, m, masked);
            if (masked && j->masked_g) lanes_store(dtype, j->masked_g, r + v * WIDTH, m, g);
            sum[v] += g;
            product[v] += g * (lanes_load(dtype, j->x, r + v * WIDTH, m) - mean[v]);
        }
    for (int v = 0; v < vectors; v++) {
        store_lanes(sums + v * WIDTH, sum[v], m);
        store_lanes(products + v * WIDTH, product[v] * load_lanes(j->rstd + i + v * WIDTH, m), m);
    }
}

/* Over chunks of rows: the moments of x; or, where there is a gradient, the sums of g and of g xhat. */
LANES_INLINE void batch_sums_of(tr_dtype dtype, const batch_job *j, int64_t begin, int64_t end)
{
    for (int64_t chunk = begin; chunk < end; chunk++) {
        double *sums = j->sums + chunk * 2 * j->c;
        float *r1 = j->runs + chunk * 2 * j->c, *r2 = r1 + j->c;
        int64_t first = chunk * j->chunk, last = first + j->chunk < j->rows ? first + j->chunk : j->rows;
        memset(sums, 0, sizeof *sums * 2 * (size_t)j->c);
        for (int64_t at = first, n; at < last; at += n) {
            n = last - at < j->run ? last - at : j->run;
            if (j->g) {
                if (j->output) FOR_BLOCKS(j->c, run_grad_sums(dtype, j, at * j->c + i, n, i, vectors, m, true, r1 + i, r2 + i););
                else FOR_BLOCKS(j->c, run_grad_sums(dtype, j, at * j->c + i, n, i, vectors, m, false, r1 + i, r2 + i););
                for (int64_t i = 0; i < 2 * j->c; i++) sums[i] += (double)r1[i];
                continue;
            }
            FOR_BLOCKS(j->c, run_moments(dtype, j->x, at * j->c + i, n, j->c, vectors, m, r1 + i, r2 + i););
            double before = (double)(at - first), share = (double)n / (before + (double)n);
            for (int64_t i = 0; i < j->c; i++)
                join_moments(&sums[i], &sums[j->c + i], before, (double)r1[i], (double)r2[i], share);
        }
    }
}
BODY_OF_DTYPE(batch_sums, batch_job)

/* Which terms there are is known when it is compiled, and all is loaded before it is used: so every lane is rounded alike, with
 * multiplications and additions in one. */
LANES_INLINE void batch_rows_with(tr_dtype dtype, const batch_job *job, int64_t begin, int64_t end, const bool gradient,
    const bool masked, const bool residual, const bool relu)
{
    const batch_job j = *job; /* which stores to y then do not touch */
    for (int64_t r = begin * j.c; r < end * j.c; r += j.c)
        FOR_VECTORS(j.c,
            vec x = lanes_load(dtype, j.x, r + i, m), mean = load_lanes(j.mean + i, m);
            vec of_x = load_lanes(j.of_x + i, m), rest = load_lanes(j.rest + i, m), g = {0}, of_g = {0}, more = {0};
            if (gradient) g = batch_gradient(dtype, &j, r + i, m, masked);
            if (gradient) of_g = load_lanes(j.of_g + i, m);
            if (residual) more = lanes_load(dtype, j.residual, r + i, m);
            vec v = (x - mean) * of_x + rest;
            if (gradient) v += g * of_g;
            if (residual) v += more;
            lanes_store(dtype, j.y, r + i, m, relu ? relu_value(v) : v););
}

LANES_INLINE void batch_rows_of(tr_dtype dtype, const batch_job *j, int64_t begin, int64_t end)
{
    if (j->g && j->output) batch_rows_with(dtype, j, begin, end, true, true, false, false);
    else if (j->g) batch_rows_with(dtype, j, begin, end, true, false, false, false);
    else if (j->residual) batch_rows_with(dtype, j, begin, end, false, false, true, true);
    else batch_rows_with(dtype, j, begin, end, false, false, false, j->relu);
}
BODY_OF_DTYPE(batch_rows, batch_job)

/* [c] as f32, or so many of a number. */
static void batch_vector(const tr_tensor *t, int64_t c, float otherwise, float *to)
{
    for (int64_t i = 0; i < c; i++) to[i] = otherwise;
    if (t) tr__read_f32(to, t->dtype, tr__ptr(t), t->stride[0], c);
}

/* Room for what j sums, and for `vectors` of [c], which it returns; NULL without memory. */
static float *batch_room(batch_job *j, int vectors)
{
    size_t c = (size_t)j->c, chunks = (size_t)batch_chunks(j);
    j->sums = malloc((sizeof(double) + sizeof(float)) * 2 * c * chunks + sizeof(float) * (size_t)vectors * c + 1);
    if (!j->sums) return NULL;
    j->runs = (float *)(j->sums + 2 * c * chunks);
    return j->runs + 2 * c * chunks;
}

static void batch_find_moments(batch_job *j, tr__pool *pool, float *mean, float *var)
{
    tr__pool_for(pool, batch_chunks(j), tr__row_grain(j->chunk * j->c), batch_sums, j);
    for (int64_t chunk = 1; chunk < batch_chunks(j); chunk++) {
        const double *more = j->sums + chunk * 2 * j->c;
        int64_t before = chunk * j->chunk, n = j->rows - before < j->chunk ? j->rows - before : j->chunk;
        double share = (double)n / (double)(before + n);
        for (int64_t i = 0; i < j->c; i++)
            join_moments(&j->sums[i], &j->sums[j->c + i], (double)before, more[i], more[j->c + i], share);
    }
    for (int64_t i = 0; i < j->c; i++) {
        mean[i] = (float)j->sums[i];
        var[i] = (float)(j->sums[j->c + i] / (double)j->rows);
    }
}

static tr_status batch_norm_kernel(tr_op_call *call)
{
    const tr_batch_norm_attrs *attrs = call->attrs;
    tr_tensor *given = attrs->frozen ? call->inputs[3] : NULL;
    tr_dtype dtype = call->inputs[0]->dtype;
    if (dtype == TR_F64 || tr__numel(call->inputs[0]->shape) == 0) return TR_DECLINED;
    TR_SCOPE;
    tr_tensor *x = tr__staged_images(call->inputs[0], dtype, true), *y = tr__staged_images(call->outputs[0], dtype, false);
    TR__TRY_ALL(x, y);
    batch_job j = {.x = tr__ptr(x), .y = tr__ptr(y), .relu = call->op == tr__op(batch_norm_relu)};
    if (j.relu && call->inputs[5]) {
        const tr_tensor *residual = tr__staged_images(call->inputs[5], dtype, true);
        TR__TRY(tr_status_of(residual));
        j.residual = tr__ptr(residual);
    }
    batch_job_init(&j, x);
    float *mean = tr__ptr(call->outputs[1]), *var = tr__ptr(call->outputs[2]), *scale = batch_room(&j, 2);
    if (!scale) return tr__fail(TR_NO_MEMORY, "batch_norm: out of memory");
    float *bias = scale + j.c;
    if (given) {
        batch_vector(given, j.c, 0, mean);
        batch_vector(call->inputs[4], j.c, 1, var);
    } else {
        batch_find_moments(&j, tr__pool_of(x), mean, var);
    }
    batch_vector(call->inputs[1], j.c, 1, scale);
    batch_vector(call->inputs[2], j.c, 0, bias);
    for (int64_t i = 0; i < j.c; i++) scale[i] /= sqrtf(var[i] + (float)attrs->eps);
    j.mean = mean;
    j.of_x = scale;
    j.rest = bias;
    tr__pool_for(tr__pool_of(x), j.rows, tr__row_grain(j.c), batch_rows, &j);
    free(j.sums);
    return tr__unstage(call->outputs[0], y);
}

/* dx = of_x (x - mean) + of_g g + rest. */
static void batch_grad_factors(const batch_job *j, const tr_batch_norm_attrs *attrs, float *of_x, float *of_g, float *rest)
{
    for (int64_t i = 0; i < j->c; i++) {
        double scale = (double)of_g[i] * (double)j->rstd[i], sum = j->sums[i], product = j->sums[j->c + i];
        of_g[i] = (float)scale;
        rest[i] = attrs->frozen ? 0 : (float)(-scale * sum / (double)j->rows);
        of_x[i] = attrs->frozen ? 0 : (float)(-scale * product * (double)j->rstd[i] / (double)j->rows);
    }
}

static void batch_add_chunks(batch_job *j, tr__pool *pool)
{
    tr__pool_for(pool, batch_chunks(j), tr__row_grain(j->chunk * j->c), batch_sums, j);
    if (!j->rows) memset(j->sums, 0, sizeof(double) * 2 * (size_t)j->c);
    for (int64_t chunk = 1; chunk < batch_chunks(j); chunk++)
        for (int64_t i = 0; i < 2 * j->c; i++) j->sums[i] += j->sums[chunk * 2 * j->c + i];
}

static tr_status batch_norm_grad_kernel(tr_op_call *call)
{
    const tr_batch_norm_attrs *attrs = call->attrs;
    bool relu = call->op == tr__op(batch_norm_relu_grad);
    tr_tensor *out = call->outputs[0], *of_residual = relu ? call->outputs[3] : NULL, *dx = NULL, *masked_g = NULL;
    tr_dtype dtype = call->inputs[1]->dtype;
    if (dtype == TR_F64 || tr__numel(call->inputs[1]->shape) == 0) return TR_DECLINED;
    TR_SCOPE;
    tr_tensor *g = tr__staged_images(call->inputs[0], dtype, true), *x = tr__staged_images(call->inputs[1], dtype, true);
    TR__TRY_ALL(g, x);
    if (out) TR__TRY(tr_status_of(dx = tr__staged_images(out, dtype, false)));
    batch_job j = {.x = tr__ptr(x), .g = tr__ptr(g), .mean = tr__ptr(call->inputs[3])};
    if (relu) {
        const tr_tensor *output = tr__staged_images(call->inputs[5], dtype, true);
        TR__TRY(tr_status_of(output));
        j.output = tr__ptr(output);
    }
    if (of_residual) {
        TR__TRY(tr_status_of(masked_g = tr__staged_images(of_residual, dtype, false)));
        j.masked_g = tr__ptr(masked_g);
    }
    batch_job_init(&j, x);
    float *rstd = batch_room(&j, 4);
    if (!rstd) return tr__fail(TR_NO_MEMORY, "batch_norm_grad: out of memory");
    float *of_x = rstd + j.c, *of_g = of_x + j.c, *rest = of_g + j.c, *var = tr__ptr(call->inputs[4]);
    for (int64_t i = 0; i < j.c; i++) rstd[i] = 1 / sqrtf(var[i] + (float)attrs->eps);
    j.rstd = rstd;
    batch_add_chunks(&j, tr__pool_of(x));
    batch_vector(call->inputs[2], j.c, 1, of_g);
    batch_grad_factors(&j, attrs, of_x, of_g, rest);
    tr__vector_put(call->outputs[1], 0, j.c, j.sums + j.c, attrs->accumulate_weight);
    tr__vector_put(call->outputs[2], 0, j.c, j.sums, attrs->accumulate_bias);
    if (dx) {
        j.y = tr__ptr(dx);
        j.of_x = of_x;
        j.of_g = of_g;
        j.rest = rest;
        if (masked_g) { /* as it was written with the sums */
            j.g = j.masked_g;
            j.output = NULL;
        }
        tr__pool_for(tr__pool_of(x), j.rows, tr__row_grain(j.c), batch_rows, &j);
    }
    free(j.sums);
    TR__TRY(tr__unstage(of_residual, masked_g));
    return tr__unstage(out, dx);
}

#endif
