/* layer_norm and rms_norm (see norm.c for the formulas). */
#ifndef TR_OPS_CPU_SIMD_KERNELS_NORM_H
#define TR_OPS_CPU_SIMD_KERNELS_NORM_H

#include "ops/cpu/simd/kernels/rows.h"

#include <math.h>
#include <stdlib.h>

typedef struct norm_job {
    tr__rows x, y, g;
    const float *weight, *bias; /* NULL: ones, zeros */
    float *mean, *rstd; /* mean: NULL, it is 0 */
    double eps;
    bool wants_dx, wants_affine;
    int64_t rows_per_block;
    float *sums; /* [blocks, 2, d]: dweight and dbias of the rows of each block */
} norm_job;

static void layer_norm_rows(void *arg, int64_t begin, int64_t end)
{
    const norm_job *j = arg;
    float x_buffer[ROW_MAX], y_buffer[ROW_MAX];
    int64_t n = j->x.n;
    for (int64_t r = begin; r < end; r++) {
        const float *x = row_in(&j->x, r, x_buffer);
        float *y = row_out(&j->y, r, y_buffer), mean = j->mean ? row_sum(x, n) / (float)n : 0;
        vec squares = {0};
        FOR_VECTORS(n,
            vec centred = keep_lanes(load_lanes(x + i, m) - mean, m, 0);
            squares += centred * centred;);
        float rstd = 1 / sqrtf(vec_sum(squares) / (float)n + (float)j->eps);
        FOR_VECTORS(n,
            vec v = (load_lanes(x + i, m) - mean) * rstd;
            if (j->weight) v *= load_lanes(j->weight + i, m);
            if (j->bias) v += load_lanes(j->bias + i, m);
            store_lanes(y + i, v, m););
        row_done(&j->y, r, y_buffer);
        if (j->mean) j->mean[r] = mean;
        j->rstd[r] = rstd;
    }
}

/* A vector of d as contiguous f32: where it lies, or in the buffer. */
static const float *vector_in(const tr_tensor *t, float *buffer)
{
    if (!t) return NULL;
    if (t->dtype == TR_F32 && (t->stride[0] == 1 || t->shape.dim[0] <= 1)) return tr__ptr(t);
    tr__read_f32(buffer, t->dtype, tr__ptr(t), t->stride[0], t->shape.dim[0]);
    return buffer;
}

static bool vector_fits(const tr_tensor *t)
{
    return !t || t->shape.dim[0] <= ROW_MAX || (t->dtype == TR_F32 && t->stride[0] == 1);
}

static tr_status layer_norm_kernel(tr_op_call *call)
{
    bool about_mean = call->op == tr__op(layer_norm);
    const tr_tensor *bias = about_mean ? call->inputs[2] : NULL;
    float weight_buffer[ROW_MAX], bias_buffer[ROW_MAX];
    norm_job j = {
        .x = tr__rows_of(call->inputs[0], -1),
        .y = tr__rows_of(call->outputs[0], -1),
        .mean = about_mean ? tr__ptr(call->outputs[1]) : NULL,
        .rstd = tr__ptr(call->outputs[about_mean ? 2 : 1]),
        .eps = ((const tr_layer_norm_attrs *)call->attrs)->eps,
    };
    if (!can_do(&j.x) || !can_do(&j.y) || !vector_fits(call->inputs[1]) || !vector_fits(bias)) return TR_DECLINED;
    j.weight = vector_in(call->inputs[1], weight_buffer);
    j.bias = vector_in(bias, bias_buffer);
    tr__pool_for(tr__pool_of(call->inputs[0]), j.x.others.n, tr__row_grain(j.x.n), layer_norm_rows, &j);
    return TR_OK;
}

/* One row: dx, and its share of dweight and dbias. */
static inline void norm_grad_row(const norm_job *j, int64_t r, const float *g, const float *x, float *dx,
                                 float *dweight, float *dbias)
{
    int64_t n = j->x.n;
    float mean = j->mean ? j->mean[r] : 0, rstd = j->rstd[r];
    vec sum_h = {0}, sum_hx = {0};
    FOR_VECTORS(n,
        vec gv = load_lanes(g + i, m), xhat = keep_lanes((load_lanes(x + i, m) - mean) * rstd, m, 0), h = gv;
        if (j->weight) h *= load_lanes(j->weight + i, m);
        sum_h += h;
        sum_hx += h * xhat;
        if (dweight) {
            store_lanes(dweight + i, load_lanes(dweight + i, m) + gv * xhat, m);
            store_lanes(dbias + i, load_lanes(dbias + i, m) + gv, m);
        });
    if (!j->wants_dx) return;
    float mean_h = j->mean ? vec_sum(sum_h) / (float)n : 0, mean_hx = vec_sum(sum_hx) / (float)n;
    FOR_VECTORS(n,
        vec h = load_lanes(g + i, m), xhat = (load_lanes(x + i, m) - mean) * rstd;
        if (j->weight) h *= load_lanes(j->weight + i, m);
        store_lanes(dx + i, (h - mean_h - xhat * mean_hx) * rstd, m););
}

static void norm_grad_blocks(void *arg, int64_t begin, int64_t end)
{
    const norm_job *j = arg;
    float g_buffer[ROW_MAX], x_buffer[ROW_MAX], dx_buffer[ROW_MAX];
    int64_t n = j->x.n;
    for (int64_t block = begin; block < end; block++) {
        float *dweight = j->wants_affine ? j->sums + block * 2 * n : NULL, *dbias = dweight ? dweight + n : NULL;
        int64_t r = block * j->rows_per_block, last = r + j->rows_per_block;
        if (last > j->x.others.n) last = j->x.others.n;
        if (dweight) memset(dweight, 0, sizeof(float) * 2 * (size_t)n);
        for (; r < last; r++) {
            const float *g = row_in(&j->g, r, g_buffer), *x = row_in(&j->x, r, x_buffer);
            norm_grad_row(j, r, g, x, j->wants_dx ? row_out(&j->y, r, dx_buffer) : NULL, dweight, dbias);
            if (j->wants_dx) row_done(&j->y, r, dx_buffer);
        }
    }
}

/* Adds the blocks' sums in their order, a few columns at a time. */
static void finish_vector(const float *sums, int64_t blocks, int64_t n, tr_tensor *to, bool accumulate)
{
    enum { COLUMNS = 256 };
    float total[COLUMNS];
    int64_t bytes = (int64_t)tr_dtype_size(to->dtype), stride = to->stride[0];
    for (int64_t at = 0, m; at < n; at += m) {
        m = n - at < COLUMNS ? n - at : COLUMNS;
        char *place = (char *)tr__ptr(to) + at * stride * bytes;
        memset(total, 0, sizeof total);
        if (accumulate) tr__read_f32(total, to->dtype, place, stride, m);
        for (int64_t b = 0; b < blocks; b++)
            for (int64_t i = 0; i < m; i++) total[i] += sums[b * 2 * n + at + i];
        tr__write_f32(to->dtype, place, stride, total, m);
    }
}

/* Rows go in blocks whose number depends on the shape only, so that sums do not depend on the threads. */
static tr_status run_norm_grad(norm_job *j, tr__pool *pool, tr_tensor *dweight, tr_tensor *dbias,
    const tr_layer_norm_attrs *attrs)
{
    enum { BLOCKS = 32, ROWS = 16 };
    int64_t rows = j->x.others.n, n = j->x.n, even = (rows + BLOCKS - 1) / BLOCKS;
    j->rows_per_block = even > ROWS ? even : ROWS;
    int64_t blocks = (rows + j->rows_per_block - 1) / j->rows_per_block;
    if (j->wants_affine) {
        j->sums = malloc(sizeof(float) * 2 * (size_t)(blocks * n + 1));
        if (!j->sums)
            return tr__fail(TR_NO_MEMORY, "norm: no memory for the gradients of %lld blocks of rows", (long long)blocks);
    }
    tr__pool_for(pool, blocks, tr__row_grain(n * j->rows_per_block), norm_grad_blocks, j);
    if (dweight) finish_vector(j->sums, blocks, n, dweight, attrs->accumulate_weight);
    if (dbias) finish_vector(j->sums + n, blocks, n, dbias, attrs->accumulate_bias);
    free(j->sums);
    return TR_OK;
}

/* Of RMS norm outputs[2], of a bias, is NULL. */
static tr_status layer_norm_grad_kernel(tr_op_call *call)
{
    bool about_mean = call->op == tr__op(layer_norm_grad);
    float weight[ROW_MAX];
    tr_tensor *dx = call->outputs[0];
    norm_job j = {
        .g = tr__rows_of(call->inputs[0], -1),
        .x = tr__rows_of(call->inputs[1], -1),
        .y = tr__rows_of(dx, -1),
        .mean = about_mean ? tr__ptr(call->inputs[3]) : NULL,
        .rstd = tr__ptr(call->inputs[about_mean ? 4 : 3]),
        .wants_dx = dx != NULL,
        .wants_affine = call->outputs[1] || call->outputs[2],
    };
    if (!can_do(&j.x) || !can_do(&j.g) || (dx && !can_do(&j.y)) || !vector_fits(call->inputs[2])) return TR_DECLINED;
    j.weight = vector_in(call->inputs[2], weight);
    return run_norm_grad(&j, tr__pool_of(call->inputs[0]), call->outputs[1], call->outputs[2], call->attrs);
}

#endif
