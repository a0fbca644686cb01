/*
 * Random numbers, bit for bit those of src/tensor/random.c: logarithm, sine and cosine are written out in the same
 * sums, products and quotients, and this file is compiled without contraction to fused products.
 */
#include "random.h"

#include "families.h"
#include "graph.h"

/* Natural logarithm of 0 < x <= 1: with x = 2^e m and s = (m - 1)/(m + 1), it is e ln 2 + 2 (s + s^3/3 + s^5/5 + …),
 * where sqrt(1/2) <= m < sqrt(2). */
__device__ static float logarithm(float x)
{
    uint32_t bits = bits_as<uint32_t>(x), root = 0x3f3504f3; /* sqrt(1/2) */
    uint32_t above = bits - root + 0x3f800000;
    float e = (float)((int32_t)(above >> 23) - 127);
    float m = bits_as<float>((above & 0x7fffff) + root);
    float s = (m - 1) / (m + 1), z = s * s;
    return e * 0.69314718f + 2 * s * (1 + z * (1 / 3.0f + z * (1 / 5.0f + z * (1 / 7.0f + z * (1 / 9.0f)))));
}

/* Cosine and sine of 0 <= x < 1 turns: x is q quarters and a rest of at most an eighth. */
__device__ static void turn(float x, float *cosine, float *sine)
{
    int32_t q = (int32_t)(x * 4 + 0.5f);
    float a = (x - (float)q * 0.25f) * 6.2831853f, z = a * a;
    float s = a * (1 + z * (-1 / 6.0f + z * (1 / 120.0f + z * (-1 / 5040.0f + z * (1 / 362880.0f)))));
    float c = 1 + z * (-0.5f + z * (1 / 24.0f + z * (-1 / 720.0f + z * (1 / 40320.0f + z * (-1 / 3628800.0f)))));
    float abscissa = q & 1 ? s : c, ordinate = q & 1 ? c : s;
    *cosine = (q + 1) & 2 ? -abscissa : abscissa;
    *sine = q & 2 ? -ordinate : ordinate;
}

__device__ static void normal_pair(uint32_t first, uint32_t second, float *out)
{
    float radius = sqrtf(-2 * logarithm(uniform_open(first))), cosine, sine;
    turn(uniform_of(second), &cosine, &sine);
    out[0] = radius * cosine;
    out[1] = radius * sine;
}

/* kept: of what is drawn, the bits that stay. */
template <class T> __global__ void random_kernel(T *to, int64_t count, tr_random_attrs a, uint32_t kept)
{
    FOR_EACH_OF(group, (count + 3) / 4)
    {
        philox r = philox_at(a.seed, 0, (uint64_t)group);
        float x[4];
        for (int k = 0; k < 4; k += 2) {
            if (a.normal) normal_pair(r.word[k], r.word[k + 1], x + k);
            else {
                x[k] = uniform_of(r.word[k]);
                x[k + 1] = uniform_of(r.word[k + 1]);
            }
        }
        for (int k = 0; k < 4 && 4 * group + k < count; k++) {
            float number = bits_as<float>(bits_as<uint32_t>(x[k]) & kept);
            to[4 * group + k] = narrow<T>((compute_of<T>)(number * a.scale + a.shift));
        }
    }
}

/* Numbers that stay in [0, 1) are rounded to the dtype downwards: to the nearest, the last ones would become 1. */
static uint32_t kept_bits(const tr_random_attrs &a, tr_dtype dtype)
{
    if (a.normal || a.scale != 1 || a.shift != 0) return UINT32_MAX;
    return dtype == TR_BF16 ? UINT32_MAX << 16 : dtype == TR_F16 ? UINT32_MAX << 13 : UINT32_MAX;
}

tr_status cuda_random(const job &j)
{
    const tr_device_tensor &y = j.out(0);
    const tr_random_attrs &a = j.attrs<tr_random_attrs>();
    int64_t count = numel(y);
    if (count == 0) return TR_OK;
    return for_float(y.dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        return LAUNCH(j, random_kernel<T>, grid_for(parts_of(count, 4)), BLOCK, 0, (T *)y.data, count, a,
                      kept_bits(a, y.dtype));
    });
}

/* ---- Dropout ------------------------------------------------------------------------------------------------------
 * A sample's elements go in groups of 64, which share 16 draws of 4 words: element e of a group gets word e/16 of draw
 * e%16. A thread draws once for four elements, 16 apart. */

constexpr int DRAWS = 16, GROUP = 64;

/* Which numbers are drawn. */
struct stream_of_numbers { uint64_t key, first_sample; };

/* numbers: those of this launch, unless it is one of a graph, which has its own in *live. */
template <class T>
__global__ void dropout_kernel(T *y, const T *x, axis from, int64_t per_sample, int64_t draws_per_sample, int64_t draws,
                               stream_of_numbers numbers, const stream_of_numbers *live, float p, compute_of<T> scale)
{
    if (live) numbers = *live;
    FOR_EACH_OF(i, draws)
    {
        int64_t sample = i / draws_per_sample, draw = i % draws_per_sample;
        philox r = philox_at(numbers.key, numbers.first_sample + (uint64_t)sample, (uint64_t)draw);
        int64_t in_sample = draw / DRAWS * GROUP + draw % DRAWS;
        for (int k = 0; k < 4; k++, in_sample += DRAWS) {
            if (in_sample >= per_sample) break;
            int64_t at = sample * per_sample + in_sample;
            compute_of<T> value = wide(x[from.at(at)]);
            y[at] = narrow<T>(value * (uniform_of(r.word[k]) < p ? compute_of<T>(0) : scale));
        }
    }
}

tr_status cuda_dropout(const job &j)
{
    const tr_device_tensor &x = j.in(0), &y = j.out(0);
    const tr_dropout_attrs &a = j.attrs<tr_dropout_attrs>();
    int64_t count = numel(x), per_sample = 1;
    if (count == 0) return TR_OK;
    for (int d = 1; d < x.shape.ndim; d++) per_sample *= x.shape.dim[d];
    int64_t draws_per_sample = parts_of(per_sample, GROUP) * DRAWS, draws = count / per_sample * draws_per_sample;
    auto numbers_of = [](const tr_dropout_attrs &of) {
        return stream_of_numbers{mixed(of.seed, of.step), of.first_sample};
    };
    const stream_of_numbers *in_graph;
    TRY(live<tr_dropout_attrs>(j, numbers_of, &in_graph));
    return for_float(x.dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        return LAUNCH(j, dropout_kernel<T>, grid_for(draws), BLOCK, 0, (T *)y.data, (const T *)x.data, axis_in(x, ~0u),
                      per_sample, draws_per_sample, draws, numbers_of(a), in_graph, (float)a.p,
                      (compute_of<T>)(1 / (1 - a.p)));
    });
}
