/* dropout of f32, contiguous: Philox in the 64-bit lanes of vectors, one draw per lane (see dropout.h, base/rng.c). */
#ifndef TR_OPS_CPU_SIMD_KERNELS_DROPOUT_H
#define TR_OPS_CPU_SIMD_KERNELS_DROPOUT_H

#include "ops/cpu/simd/vec.h"
#include "ops/dropout.h"

#include "tensor/loop.h"

/* Each lane holds a 32-bit number. */
enum { LANES = WIDTH / 2 };
typedef uint64_t words __attribute__((vector_size(8 * WIDTH / 2)));

/* The 64-bit products of 32-bit numbers. */
static inline words words_mul(words a, uint32_t b)
{
#if defined(__AVX512F__)
    return (words)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(b));
#elif defined(__AVX2__)
    return (words)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
#else
    return a * (uint64_t)b;
#endif
}

/* tr__philox_at(key, high, low + lane) for each lane. */
static inline void philox(uint64_t key, uint64_t high, uint64_t low, words out[4])
{
    const uint64_t mask = 0xffffffff;
    words lane = {0};
    for (int i = 0; i < LANES; i++) lane[i] = (uint64_t)i;
    words counter = lane + low, c0 = counter & mask, c1 = counter >> 32;
    words c2 = (words){0} + (high & mask), c3 = (words){0} + (high >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        words a = words_mul(c0, 0xD2511F53u), b = words_mul(c2, 0xCD9E8D57u);
        c0 = (b >> 32) ^ c1 ^ (uint64_t)k0;
        c2 = (a >> 32) ^ c3 ^ (uint64_t)k1;
        c1 = b & mask;
        c3 = a & mask;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* The words of a group, in the order of its elements. */
static void draw_group(uint64_t key, uint64_t sample, uint64_t group, uint32_t out[TR__DROPOUT_GROUP])
{
    for (int draw = 0; draw < TR__DROPOUT_DRAWS; draw += LANES) {
        words w[4];
        philox(key, sample, group * TR__DROPOUT_DRAWS + (uint64_t)draw, w);
        for (int k = 0; k < 4; k++)
            for (int i = 0; i < LANES; i++) out[k * TR__DROPOUT_DRAWS + draw + i] = (uint32_t)w[k][i];
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
