/* Pooling, on channels-last images: a vector holds channels of one place. What lies otherwise is brought there first. */
#ifndef TR_OPS_CPU_SIMD_KERNELS_POOL_H
#define TR_OPS_CPU_SIMD_KERNELS_POOL_H

#include "ops/cpu/simd/kernels/rows.h"
#include "ops/pool.h"

#include <stdlib.h>

typedef struct pool_job {
    tr__pool2d s;
    tr_dtype dtype; /* of x and y */
    void *x, *y;    /* [n, h, w, c], [n, oh, ow, c]; or their gradients */
    int32_t *at;    /* [n, oh, ow, c], written as bits of floats; NULL: means, not maxima */
    tr__window *along; /* for gradients: [w], the windows that a column is in */
} pool_job;

static inline veci pool_all(int64_t place)
{
    return (veci){0} + (int32_t)place;
}

/* m channels of a window, of an image that begins at x[image]: its largest, the first of those, and where it is. */
LANES_INLINE vec pool_largest(tr_dtype dtype, const pool_job *j, int64_t image, tr__window rows, tr__window columns, int64_t m,
    veci *where)
{
    const tr__pool2d *s = &j->s;
    int64_t first = rows.begin * s->w + columns.begin;
    vec top = lanes_load(dtype, j->x, image + first * s->c, m);
    *where = pool_all(first);
    for (int64_t iy = rows.begin; iy < rows.end; iy++)
        for (int64_t ix = columns.begin; ix < columns.end; ix++) {
            int64_t place = iy * s->w + ix;
            vec value = lanes_load(dtype, j->x, image + place * s->c, m);
            veci is_number = ((veci)top & 0x7fffffff) <= 0x7f800000;
            veci larger = ~(veci)(value <= top) & is_number; /* or the first NaN */
            top = (vec)((larger & (veci)value) | (~larger & (veci)top));
            *where = (larger & pool_all(place)) | (~larger & *where);
        }
    return top;
}

/* Rows of outputs, of all images. largest: maxima, and where they are; else means. */
LANES_INLINE void pool_rows_of(tr_dtype dtype, const pool_job *j, int64_t begin, int64_t end, bool largest)
{
    const tr__pool2d *s = &j->s;
    for (int64_t row = begin; row < end; row++) {
        int64_t image = row / s->oh * s->h * s->w * s->c;
        tr__window rows = tr__window_rows(s, row % s->oh);
        for (int64_t ox = 0; ox < s->ow; ox++) {
            tr__window columns = tr__window_columns(s, ox);
            float scale = 1 / (float)tr__window_size(s, rows, columns);
            int64_t out = (row * s->ow + ox) * s->c;
            FOR_VECTORS(s->c,
                if (largest) {
                    veci where;
                    lanes_store(dtype, j->y, out + i, m, pool_largest(dtype, j, image + i, rows, columns, m, &where));
                    store_lanes((float *)(j->at + out + i), (vec)where, m);
                } else {
                    vec sum = {0};
                    for (int64_t iy = rows.begin; iy < rows.end; iy++)
                        for (int64_t ix = columns.begin; ix < columns.end; ix++)
                            sum += lanes_load(dtype, j->x, image + (iy * s->w + ix) * s->c + i, m);
                    lanes_store(dtype, j->y, out + i, m, sum * scale);
                });
        }
    }
}

static void pool_rows(void *arg, int64_t begin, int64_t end)
{
    const pool_job *j = arg;
    if (j->at) OF_DTYPE(j->dtype, pool_rows_of, j, begin, end, true);
    else OF_DTYPE(j->dtype, pool_rows_of, j, begin, end, false);
}

/* ---- Gradients: each place of an image sums what comes from the windows that it is in, so that sums are rounded once ----- */

/* Moves on to the windows that row, or column, i of an image is in. i only grows. */
static inline void pool_advance(const tr__pool2d *s, bool rows, int64_t i, tr__window *windows)
{
    tr__window (*of)(const tr__pool2d *, int64_t) = rows ? tr__window_rows : tr__window_columns;
    int64_t n = rows ? s->oh : s->ow;
    while (windows->begin < n && of(s, windows->begin).end <= i) windows->begin++;
    while (windows->end < n && of(s, windows->end).begin <= i) windows->end++;
}

/* m channels of the gradient of a place: of what the windows down x along give it. */
LANES_INLINE vec pool_gradient(tr_dtype dtype, const pool_job *j, int64_t image, int64_t place, tr__window down,
    tr__window along, int64_t i, int64_t m)
{
    const tr__pool2d *s = &j->s;
    vec sum = {0};
    for (int64_t oy = down.begin; oy < down.end; oy++)
        for (int64_t ox = along.begin; ox < along.end; ox++) {
            int64_t out = ((image * s->oh + oy) * s->ow + ox) * s->c + i;
            vec g = lanes_load(dtype, j->y, out, m);
            if (j->at) {
                veci here = (veci)load_lanes((const float *)(j->at + out), m) == pool_all(place);
                sum += (vec)((veci)g & here);
            } else {
                sum += g * (1 / (float)tr__window_size(s, tr__window_rows(s, oy), tr__window_columns(s, ox)));
            }
        }
    return sum;
}

/* Rows of all images. */
LANES_INLINE void pool_grad_rows_of(tr_dtype dtype, const pool_job *j, int64_t begin, int64_t end)
{
    const tr__pool2d *s = &j->s;
    for (int64_t row = begin; row < end; row++) {
        tr__window down = {0, 0};
        pool_advance(s, true, row % s->h, &down);
        int64_t image = row / s->h, place = row % s->h * s->w;
        for (int64_t ix = 0; ix < s->w; ix++, place++)
            FOR_VECTORS(s->c, lanes_store(dtype, j->x, (row * s->w + ix) * s->c + i, m,
                                  pool_gradient(dtype, j, image, place, down, j->along[ix], i, m)););
    }
}
BODY_OF_DTYPE(pool_grad_rows, pool_job)

/* Whether each place of an image is in one window: the gradient of a window then goes to its places, and is read once. */
static bool pool_windows_tile(const tr__pool2d *s)
{
    if (s->adaptive || s->padding || s->stride != s->kernel || s->w != s->ow * s->kernel) return false;
    return s->line || s->h == s->oh * s->kernel;
}

/* Rows of outputs, of all images. */
LANES_INLINE void pool_grad_tiles_of(tr_dtype dtype, const pool_job *j, int64_t begin, int64_t end)
{
    const tr__pool2d *s = &j->s;
    float share = 1 / (float)tr__window_size(s, tr__window_rows(s, 0), tr__window_columns(s, 0)); /* of each window */
    for (int64_t row = begin; row < end; row++) {
        int64_t image = row / s->oh * s->h * s->w;
        tr__window rows = tr__window_rows(s, row % s->oh);
        for (int64_t ox = 0; ox < s->ow; ox++) {
            tr__window columns = tr__window_columns(s, ox);
            int64_t out = (row * s->ow + ox) * s->c;
            FOR_VECTORS(s->c,
                vec g = lanes_load(dtype, j->y, out + i, m);
                veci at = j->at ? (veci)load_lanes((const float *)(j->at + out + i), m) : pool_all(0);
                for (int64_t iy = rows.begin; iy < rows.end; iy++)
                    for (int64_t ix = columns.begin; ix < columns.end; ix++) {
                        int64_t place = iy * s->w + ix;
                        vec part = j->at ? (vec)((veci)g & (at == pool_all(place))) : g * share;
                        lanes_store(dtype, j->x, (image + place) * s->c + i, m, part);
                    });
        }
    }
}
BODY_OF_DTYPE(pool_grad_tiles, pool_job)

/* ---- Kernels --------------------------------------------------------------------------------------------------------- */

static tr_status pool_run_gradient(pool_job *j, tr__pool *pool, int64_t grain)
{
    if (pool_windows_tile(&j->s)) {
        tr__pool_for(pool, j->s.n * j->s.oh, grain / j->s.kernel + 1, pool_grad_tiles, j);
        return TR_OK;
    }
    j->along = malloc(sizeof *j->along * (size_t)(j->s.w + 1));
    if (!j->along) return tr__fail(TR_NO_MEMORY, "pool: out of memory");
    tr__window windows = {0, 0};
    for (int64_t ix = 0; ix < j->s.w; ix++) {
        pool_advance(&j->s, false, ix, &windows);
        j->along[ix] = windows;
    }
    tr__pool_for(pool, j->s.n * j->s.h, grain, pool_grad_rows, j);
    free(j->along);
    return TR_OK;
}

/* Both poolings, and their gradients: x, or y's gradient, -> y, or x's gradient. */
static tr_status pool2d_kernel(tr_op_call *call)
{
    tr_dtype dtype = call->inputs[0]->dtype;
    if (dtype == TR_F64) return TR_DECLINED;
    TR_SCOPE;
    bool gradient = call->op == tr__op(max_pool2d_grad) || call->op == tr__op(avg_pool2d_grad);
    tr_tensor *from = tr__staged_images(call->inputs[0], dtype, true), *to = tr__staged_images(call->outputs[0], dtype, false);
    tr_tensor *x = gradient ? to : from, *y = gradient ? from : to, *at = NULL; /* where maxima are; NULL: means */
    if (call->op == tr__op(max_pool2d)) at = tr__staged_images(call->outputs[1], TR_I32, false);
    if (call->op == tr__op(max_pool2d_grad)) at = tr__staged_images(call->inputs[1], TR_I32, true);
    TR__TRY_ALL(from, to, at);
    pool_job j = {tr__pool2d_of(x, y, call->attrs), dtype, tr__ptr(x), tr__ptr(y), at ? tr__ptr(at) : NULL, NULL};
    int64_t rows = j.s.n * (gradient ? j.s.h : j.s.oh), grain = tr__row_grain(tr__numel(x->shape) / (rows ? rows : 1));
    if (gradient) TR__TRY(pool_run_gradient(&j, tr__pool_of(x), grain));
    else tr__pool_for(tr__pool_of(x), rows, grain, pool_rows, &j);
    if (call->op == tr__op(max_pool2d)) TR__TRY(tr__unstage(call->outputs[1], at));
    return tr__unstage(call->outputs[0], to);
}

#endif
