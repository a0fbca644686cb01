/* Pooling, on channels-last images: a vector holds channels of one place. What lies otherwise is brought there first. */
#ifndef TR_OPS_CPU_SIMD_POOL_H
#define TR_OPS_CPU_SIMD_POOL_H

#include "ops/cpu/simd_rows.h"
#include "ops/pool.h"

typedef struct pool_job {
    tr__pool2d s;
    float *x, *y;   /* [n, h, w, c], [n, oh, ow, c]; or their gradients */
    int32_t *at;    /* [n, oh, ow, c]; written as bits of floats */
} pool_job;

static inline veci pool_all(int64_t place)
{
    return (veci){0} + (int32_t)place;
}

/* m channels of a window: its largest, the first of those, and where it is. */
static inline vec pool_largest(const pool_job *j, const float *image, tr__window rows, tr__window columns, int64_t m,
                               veci *where)
{
    const tr__pool2d *s = &j->s;
    int64_t first = rows.begin * s->w + columns.begin;
    vec top = load_lanes(image + first * s->c, m);
    *where = pool_all(first);
    for (int64_t iy = rows.begin; iy < rows.end; iy++)
        for (int64_t ix = columns.begin; ix < columns.end; ix++) {
            int64_t place = iy * s->w + ix;
            vec value = load_lanes(image + place * s->c, m);
            veci is_number = ((veci)top & 0x7fffffff) <= 0x7f800000;
            veci larger = ~(veci)(value <= top) & is_number; /* or the first NaN */
            top = (vec)((larger & (veci)value) | (~larger & (veci)top));
            *where = (larger & pool_all(place)) | (~larger & *where);
        }
    return top;
}

/* Rows of outputs, of all images. */
static void max_pool_rows(void *arg, int64_t begin, int64_t end)
{
    const pool_job *j = arg;
    const tr__pool2d *s = &j->s;
    for (int64_t row = begin; row < end; row++) {
        const float *image = j->x + row / s->oh * s->h * s->w * s->c;
        tr__window rows = tr__window_rows(s, row % s->oh);
        for (int64_t ox = 0; ox < s->ow; ox++) {
            tr__window columns = tr__window_columns(s, ox);
            int64_t out = (row * s->ow + ox) * s->c;
            FOR_VECTORS(s->c,
                veci where;
                store_lanes(j->y + out + i, pool_largest(j, image + i, rows, columns, m, &where), m);
                store_lanes((float *)(j->at + out + i), (vec)where, m););
        }
    }
}

static void max_pool_grad_images(void *arg, int64_t begin, int64_t end)
{
    const pool_job *j = arg;
    const tr__pool2d *s = &j->s;
    int64_t plane = s->oh * s->ow * s->c;
    for (int64_t image = begin; image < end; image++) {
        float *dx = j->x + image * s->h * s->w * s->c;
        memset(dx, 0, sizeof *dx * (size_t)(s->h * s->w * s->c));
        for (int64_t o = image * plane; o < (image + 1) * plane; o += s->c)
            for (int64_t c = 0; c < s->c; c++) dx[j->at[o + c] * s->c + c] += j->y[o + c];
    }
}

static void avg_pool_rows(void *arg, int64_t begin, int64_t end)
{
    const pool_job *j = arg;
    const tr__pool2d *s = &j->s;
    for (int64_t row = begin; row < end; row++) {
        const float *image = j->x + row / s->oh * s->h * s->w * s->c;
        tr__window rows = tr__window_rows(s, row % s->oh);
        for (int64_t ox = 0; ox < s->ow; ox++) {
            tr__window columns = tr__window_columns(s, ox);
            float scale = 1 / (float)tr__window_size(s, rows, columns), *y = j->y + (row * s->ow + ox) * s->c;
            FOR_VECTORS(s->c,
                vec sum = {0};
                for (int64_t iy = rows.begin; iy < rows.end; iy++)
                    for (int64_t ix = columns.begin; ix < columns.end; ix++)
                        sum += load_lanes(image + (iy * s->w + ix) * s->c + i, m);
                store_lanes(y + i, sum * scale, m););
        }
    }
}

static void avg_pool_grad_images(void *arg, int64_t begin, int64_t end)
{
    const pool_job *j = arg;
    const tr__pool2d *s = &j->s;
    for (int64_t row = begin * s->oh; row < end * s->oh; row++) {
        float *dx = j->x + row / s->oh * s->h * s->w * s->c;
        if (row % s->oh == 0) memset(dx, 0, sizeof *dx * (size_t)(s->h * s->w * s->c));
        tr__window rows = tr__window_rows(s, row % s->oh);
        for (int64_t ox = 0; ox < s->ow; ox++) {
            tr__window columns = tr__window_columns(s, ox);
            float scale = 1 / (float)tr__window_size(s, rows, columns);
            const float *g = j->y + (row * s->ow + ox) * s->c;
            for (int64_t iy = rows.begin; iy < rows.end; iy++)
                for (int64_t ix = columns.begin; ix < columns.end; ix++) {
                    float *to = dx + (iy * s->w + ix) * s->c;
                    FOR_VECTORS(s->c, store_lanes(to + i, load_lanes(to + i, m) + load_lanes(g + i, m) * scale, m););
                }
        }
    }
}

static tr_status pool_bring_back(tr_tensor *to, const tr_tensor *staged)
{
    return to == staged ? TR_OK : tr__copy_elements(to, staged);
}

static tr_status max_pool2d_kernel(tr_op_call *call)
{
    if (call->inputs[0]->dtype == TR_F64) return TR__DECLINED;
    TR_SCOPE;
    tr_tensor *x = tr__staged_images(call->inputs[0], TR_F32, true), *y = tr__staged_images(call->outputs[0], TR_F32, false),
              *at = tr__staged_images(call->outputs[1], TR_I32, false);
    TR__TRY(tr_status_of(x));
    TR__TRY(tr_status_of(y));
    TR__TRY(tr_status_of(at));
    pool_job j = {tr__pool2d_of(x, y, call->attrs), tr__ptr(x), tr__ptr(y), tr__ptr(at)};
    int64_t work = j.s.ow * j.s.c * j.s.kernel * j.s.kernel;
    tr__pool_for(tr__pool_of(x), j.s.n * j.s.oh, tr__row_grain(work), max_pool_rows, &j);
    TR__TRY(pool_bring_back(call->outputs[0], y));
    return pool_bring_back(call->outputs[1], at);
}

static tr_status max_pool2d_grad_kernel(tr_op_call *call)
{
    if (call->inputs[0]->dtype == TR_F64) return TR__DECLINED;
    TR_SCOPE;
    tr_tensor *g = tr__staged_images(call->inputs[0], TR_F32, true), *at = tr__staged_images(call->inputs[1], TR_I32, true),
              *dx = tr__staged_images(call->outputs[0], TR_F32, false);
    TR__TRY(tr_status_of(g));
    TR__TRY(tr_status_of(at));
    TR__TRY(tr_status_of(dx));
    pool_job j = {tr__pool2d_of(dx, g, call->attrs), tr__ptr(dx), tr__ptr(g), tr__ptr(at)};
    tr__pool_for(tr__pool_of(g), j.s.n, tr__row_grain(j.s.h * j.s.w * j.s.c), max_pool_grad_images, &j);
    return pool_bring_back(call->outputs[0], dx);
}

/* x -> y, or the gradient of y -> that of x. */
static tr_status avg_pool_run(tr_op_call *call, bool gradient)
{
    if (call->inputs[0]->dtype == TR_F64) return TR__DECLINED;
    TR_SCOPE;
    tr_tensor *from = tr__staged_images(call->inputs[0], TR_F32, true), *to = tr__staged_images(call->outputs[0], TR_F32, false);
    TR__TRY(tr_status_of(from));
    TR__TRY(tr_status_of(to));
    tr_tensor *x = gradient ? to : from, *y = gradient ? from : to;
    pool_job j = {tr__pool2d_of(x, y, call->attrs), tr__ptr(x), tr__ptr(y), NULL};
    int64_t image = j.s.h * j.s.w * j.s.c;
    if (gradient) tr__pool_for(tr__pool_of(x), j.s.n, tr__row_grain(image), avg_pool_grad_images, &j);
    else tr__pool_for(tr__pool_of(x), j.s.n * j.s.oh, tr__row_grain(image / j.s.oh), avg_pool_rows, &j);
    return pool_bring_back(call->outputs[0], to);
}

static tr_status avg_pool2d_kernel(tr_op_call *call)
{
    return avg_pool_run(call, false);
}

static tr_status avg_pool2d_grad_kernel(tr_op_call *call)
{
    return avg_pool_run(call, true);
}

#endif
