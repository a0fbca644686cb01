/*
 * Random numbers in runs. Logarithm, sine and cosine are written out here, in plain additions, products and quotients:
 * so the compiler makes vectors of them, and every machine gets the same numbers whatever its math library. (This file
 * is compiled without contraction to fused products for the same reason.)
 */
#include "tensor/random.h"

#include "base/half.h"
#include "base/rng.h"
#include "tensor/kernel.h"
#include "tensor/numbers.h"

#include <math.h>

/* Philox gives four words at a time. */
enum { GROUPS = 64, BLOCK = 4 * GROUPS, GRAIN = 32 };

/* Natural logarithm of 0 < x <= 1: with x = 2^e m and s = (m - 1)/(m + 1), it is e ln 2 + 2 (s + s^3/3 + s^5/5 + …),
 * where sqrt(1/2) <= m < sqrt(2), so |s| < 0.172 and five terms are exact to 2e-9. */
static inline float logarithm(float x)
{
    uint32_t bits = tr__f32_to_bits(x), root = 0x3f3504f3; /* sqrt(1/2) */
    uint32_t above = bits - root + 0x3f800000;
    float e = (float)((int32_t)(above >> 23) - 127);
    float m = tr__bits_to_f32((above & 0x7fffff) + root);
    float s = (m - 1) / (m + 1), z = s * s;
    return e * 0.69314718f + 2 * s * (1 + z * (1 / 3.0f + z * (1 / 5.0f + z * (1 / 7.0f + z * (1 / 9.0f)))));
}

/* Cosine and sine of 0 <= x < 1 turns: x is q quarters and a rest of at most an eighth, for which the Taylor series is
 * exact to 2e-9; q says which of the two they are, and their signs. */
static inline void turn(float x, float *cosine, float *sine)
{
    int32_t q = (int32_t)(x * 4 + 0.5f);
    float a = (x - (float)q * 0.25f) * 6.2831853f, z = a * a;
    float s = a * (1 + z * (-1 / 6.0f + z * (1 / 120.0f + z * (-1 / 5040.0f + z * (1 / 362880.0f)))));
    float c = 1 + z * (-0.5f + z * (1 / 24.0f + z * (-1 / 720.0f + z * (1 / 40320.0f + z * (-1 / 3628800.0f)))));
    float abscissa = q & 1 ? s : c, ordinate = q & 1 ? c : s;
    *cosine = (q + 1) & 2 ? -abscissa : abscissa;
    *sine = q & 2 ? -ordinate : ordinate;
}

/* Numbers 4 first … 4 first + BLOCK - 1 of a seed. */
static void uniforms(uint64_t seed, uint64_t first, float out[BLOCK])
{
    for (int i = 0; i < GROUPS; i++) {
        tr__philox r = tr__philox_at(seed, 0, first + (uint64_t)i);
        for (int k = 0; k < 4; k++) out[4 * i + k] = tr__uniform(r.word[k]);
    }
}

/* Box-Muller: a pair of words gives a pair of normals. */
static void normals(uint64_t seed, uint64_t first, float out[BLOCK])
{
    float radius[BLOCK / 2], angle[BLOCK / 2];
    for (int i = 0; i < GROUPS; i++) {
        tr__philox r = tr__philox_at(seed, 0, first + (uint64_t)i);
        radius[2 * i] = tr__uniform_open(r.word[0]);
        angle[2 * i] = tr__uniform(r.word[1]);
        radius[2 * i + 1] = tr__uniform_open(r.word[2]);
        angle[2 * i + 1] = tr__uniform(r.word[3]);
    }
    float cosine[BLOCK / 2], sine[BLOCK / 2];
    for (int i = 0; i < BLOCK / 2; i++) {
        radius[i] = sqrtf(-2 * logarithm(radius[i]));
        turn(angle[i], &cosine[i], &sine[i]);
    }
    for (int i = 0; i < BLOCK / 2; i++) {
        out[2 * i] = radius[i] * cosine[i];
        out[2 * i + 1] = radius[i] * sine[i];
    }
}

typedef struct filling {
    void (*draw)(uint64_t seed, uint64_t first, float out[BLOCK]);
    uint64_t seed;
    float scale, shift;
    uint32_t bits; /* of what is drawn, those that stay */
    tr_dtype dtype;
    char *to;
    int64_t count;
} filling;

static void fill_blocks(void *arg, int64_t begin, int64_t end)
{
    const filling *f = arg;
    for (int64_t block = begin; block < end; block++) {
        float numbers[BLOCK];
        f->draw(f->seed, (uint64_t)block * GROUPS, numbers);
        for (int i = 0; i < BLOCK; i++)
            numbers[i] = tr__bits_to_f32(tr__f32_to_bits(numbers[i]) & f->bits) * f->scale + f->shift;
        int64_t at = block * BLOCK, n = f->count - at < BLOCK ? f->count - at : BLOCK;
        tr__write_f32(f->dtype, f->to + (size_t)at * tr_dtype_size(f->dtype), 1, numbers, n);
    }
}

/* Numbers that stay in [0, 1) are rounded to the dtype downwards: to the nearest, the last ones would become 1. */
static uint32_t kept_bits(tr__distribution distribution, float scale, float shift, tr_dtype dtype)
{
    if (distribution != TR__UNIFORM || scale != 1 || shift != 0) return UINT32_MAX;
    return dtype == TR_BF16 ? UINT32_MAX << 16 : dtype == TR_F16 ? UINT32_MAX << 13 : UINT32_MAX;
}

tr_status tr__fill_random(tr_tensor *t, tr__distribution distribution, uint64_t seed, float scale, float shift)
{
    if (tr__device_of(t).kind != TR_CPU) {
        tr_random_attrs attrs = {.seed = seed, .scale = scale, .shift = shift, .normal = distribution == TR__NORMAL};
        if (tr__numel(t->shape))
            TR__TRY(tr__run_kernel("random", tr__device_of(t), &attrs, sizeof attrs, NULL, 0, (const tr_tensor *const[]){t}, 1));
        tr__touch(t);
        return TR_OK;
    }
    filling f = {distribution == TR__NORMAL ? normals : uniforms, seed, scale, shift,
        kept_bits(distribution, scale, shift, t->dtype), t->dtype, tr__ptr(t), tr__numel(t->shape)};
    tr__pool_for(tr__pool_of(t), (f.count + BLOCK - 1) / BLOCK, GRAIN, fill_blocks, &f);
    tr__touch(t);
    return TR_OK;
}

static tr_tensor *random_tensor(tr__distribution distribution, uint64_t seed, const tr_tensor_options *options)
{
    if (!tr_dtype_is_float(options->dtype))
        return tr__tensor_fail(TR_DTYPE, "random tensors are floats, not %s", tr_dtype_name(options->dtype));
    tr_tensor *t = tr_empty_with(options);
    if (!tr__bad(t) && tr__fill_random(t, distribution, seed, 1, 0) != TR_OK) tr__object_break(t);
    return t;
}

tr_tensor *tr_randn_with(uint64_t seed, const tr_tensor_options *options)
{
    return random_tensor(TR__NORMAL, seed, options);
}

tr_tensor *tr_rand_with(uint64_t seed, const tr_tensor_options *options)
{
    return random_tensor(TR__UNIFORM, seed, options);
}
