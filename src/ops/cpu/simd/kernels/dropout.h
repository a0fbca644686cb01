/* dropout of f32, contiguous: Philox in the 64-bit lanes of vectors, one draw per lane (see dropout.h, base/rng.c). */
#ifndef TR_OPS_CPU_SIMD_KERNELS_DROPOUT_H
#define TR_OPS_CPU_SIMD_KERNELS_DROPOUT_H

#include "base/philox_lanes.h"
#include "ops/dropout.h"

#include "tensor/loop.h"

/* The words of a group, in the order of its elements. */
static void draw_group(uint64_t key, uint64_t sample, uint64_t group, uint32_t out[TR__DROPOUT_GROUP])
{
    for (int draw = 0; draw < TR__DROPOUT_DRAWS; draw += PHILOX_LANES) {
        philox_lanes w[4];
        philox_draw(key, sample, group * TR__DROPOUT_DRAWS + (uint64_t)draw, w);
        for (int k = 0; k < 4; k++)
            for (int i = 0; i < PHILOX_LANES; i++) out[k * TR__DROPOUT_DRAWS + draw + i] = (uint32_t)w[k][i];
    }
}

typedef struct dropout_job {
    const tr_dropout_attrs *attrs;
    const float *x;
    float *y;
    int64_t per_sample, groups; /* groups per sample */
} dropout_job;

static void dropout_groups(void *arg, int64_t begin, int64_t end)
{
    const dropout_job *j = arg;
    uint64_t key = tr__dropout_key(j->attrs);
    float p = (float)j->attrs->p, scale = (float)(1 / (1 - j->attrs->p));
    for (int64_t task = begin; task < end; task++) {
        uint32_t word[TR__DROPOUT_GROUP];
        int64_t sample = task / j->groups, group = task % j->groups, at = group * TR__DROPOUT_GROUP;
        int64_t n = j->per_sample - at < TR__DROPOUT_GROUP ? j->per_sample - at : TR__DROPOUT_GROUP;
        const float *x = j->x + sample * j->per_sample + at;
        float *y = j->y + sample * j->per_sample + at;
        draw_group(key, j->attrs->first_sample + (uint64_t)sample, (uint64_t)group, word);
        for (int64_t i = 0; i < n; i++) y[i] = x[i] * (tr__uniform(word[i]) < p ? 0.0f : scale);
    }
}

static tr_status dropout_kernel(tr_op_call *call)
{
    const tr_tensor *x = call->inputs[0];
    if (x->dtype != TR_F32 || !tr_is_contiguous(x)) return TR_DECLINED;
    dropout_job j = {call->attrs, tr__ptr(x), tr__ptr(call->outputs[0]), tr__dropout_per_sample(x->shape), 0};
    if (tr__numel(x->shape) == 0) return TR_OK;
    j.groups = (j.per_sample + TR__DROPOUT_GROUP - 1) / TR__DROPOUT_GROUP;
    int64_t samples = tr__numel(x->shape) / j.per_sample;
    tr__pool_for(tr__pool_of(x), samples * j.groups, TR__GRAIN / (8 * TR__DROPOUT_GROUP), dropout_groups, &j);
    return TR_OK;
}

#endif
