/*
 * Vectors of floats as wide as the machine's: 16 with AVX-512, 8 with AVX2, else 4. Arithmetic is the compiler's (a * b
 * + c on the vector types); here is what it has no operators for, and exp and tanh. Included by files that are compiled
 * once per kind of machine, so everything is static.
 */
#ifndef TR_OPS_CPU_SIMD_VEC_H
#define TR_OPS_CPU_SIMD_VEC_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { WIDTH = 16 };
typedef float vec __attribute__((vector_size(64)));
typedef int32_t veci __attribute__((vector_size(64)));
#elif defined(__AVX2__)
enum { WIDTH = 8 };
typedef float vec __attribute__((vector_size(32)));
typedef int32_t veci __attribute__((vector_size(32)));
#else
enum { WIDTH = 4 };
typedef float vec __attribute__((vector_size(16)));
typedef int32_t veci __attribute__((vector_size(16)));
#endif

static inline vec vec_all(float x)
{
    return x - (vec){0};
}

static inline vec vec_load(const float *from)
{
    vec x;
    memcpy(&x, from, sizeof x);
    return x;
}

static inline void vec_store(float *to, vec x)
{
    memcpy(to, &x, sizeof x);
}

/* Past the caches, where the machine can; `to` is aligned to the vector. vec_stream_end() comes before another thread reads. */
static inline void vec_stream(float *to, vec x)
{
#if defined(__AVX512F__)
    _mm512_stream_ps(to, (__m512)x);
#elif defined(__AVX2__)
    _mm256_stream_ps(to, (__m256)x);
#else
    vec_store(to, x);
#endif
}

static inline void vec_stream_end(void)
{
#if defined(__AVX2__)
    _mm_sfence();
#endif
}

/* The first n lanes, 0 < n < WIDTH; the others read as zero and are not written. */
static inline vec vec_load_part(const float *from, int64_t n)
{
#if defined(__AVX512F__)
    return (vec)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), from);
#elif defined(__AVX2__)
    static const int32_t lanes[2 * WIDTH] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return (vec)_mm256_maskload_ps(from, _mm256_loadu_si256((const __m256i *)(lanes + WIDTH - n)));
#else
    vec x = {0};
    for (int64_t i = 0; i < n; i++) x[i] = from[i];
    return x;
#endif
}

static inline void vec_store_part(float *to, vec x, int64_t n)
{
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(to, (__mmask16)((1u << n) - 1), (__m512)x);
#elif defined(__AVX2__)
    __m128 part = _mm256_castps256_ps128((__m256)x); /* masked stores are slow on some of these machines */
    if (n & 4) {
        _mm_storeu_ps(to, part);
        part = _mm256_extractf128_ps((__m256)x, 1);
        to += 4;
    }
    if (n & 2) {
        _mm_storel_pi((__m64 *)to, part);
        part = _mm_movehl_ps(part, part);
        to += 2;
    }
    if (n & 1) _mm_store_ss(to, part);
#else
    for (int64_t i = 0; i < WIDTH && i < n; i++) {
        float lane = x[i];
        memcpy(to + i, &lane, sizeof lane);
    }
#endif
}

/* x in the first n lanes, 0 < n <= WIDTH, fill in the others. */
static inline vec vec_keep_part(vec x, int64_t n, float fill)
{
#if defined(__AVX512F__)
    return (vec)_mm512_mask_blend_ps((__mmask16)((1u << n) - 1), _mm512_set1_ps(fill), (__m512)x);
#else
    veci lane;
    for (int i = 0; i < WIDTH; i++) lane[i] = i;
    veci kept = lane < (int32_t)n;
    return (vec)((kept & (veci)x) | (~kept & (veci)vec_all(fill)));
#endif
}

/* Lane by lane: a > b ? x : y, and a <= b ? x : y; both give y where one is NaN. */
#if defined(__AVX512F__)
#define VEC_WHERE(name, operator, predicate)                                                                             \
    static inline vec name(vec a, vec b, vec x, vec y)                                                                   \
    {                                                                                                                    \
        return (vec)_mm512_mask_blend_ps(_mm512_cmp_ps_mask((__m512)a, (__m512)b, predicate), (__m512)y, (__m512)x);     \
    }
#elif defined(__AVX2__)
#define VEC_WHERE(name, operator, predicate)                                                                             \
    static inline vec name(vec a, vec b, vec x, vec y)                                                                   \
    {                                                                                                                    \
        return (vec)_mm256_blendv_ps((__m256)y, (__m256)x, _mm256_cmp_ps((__m256)a, (__m256)b, predicate));              \
    }
#else
#define VEC_WHERE(name, operator, predicate)                                                                             \
    static inline vec name(vec a, vec b, vec x, vec y)                                                                   \
    {                                                                                                                    \
        veci holds = a operator b;                                                                                       \
        return (vec)((holds & (veci)x) | (~holds & (veci)y));                                                            \
    }
#endif
VEC_WHERE(vec_where_larger, >, _CMP_GT_OQ)
VEC_WHERE(vec_where_at_most, <=, _CMP_LE_OQ)
#undef VEC_WHERE

/* The larger and the smaller; where one is NaN, the second. */
static inline vec vec_max(vec a, vec b)
{
#if defined(__AVX512F__)
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vec_where_larger(a, b, a, b);
#endif
}

static inline vec vec_min(vec a, vec b)
{
#if defined(__AVX512F__)
    return (vec)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vec)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return vec_where_larger(b, a, a, b);
#endif
}

/* x where x is NaN, else y. */
static inline vec vec_where_nan(vec x, vec y)
{
    veci nan = ((veci)x & 0x7fffffff) > 0x7f800000;
    return (vec)((nan & (veci)x) | (~nan & (veci)y));
}

static inline vec vec_abs(vec x)
{
    return (vec)((veci)x & 0x7fffffff);
}

static inline vec vec_sqrt(vec x)
{
#if defined(__AVX512F__)
    return (vec)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
    return (vec)_mm256_sqrt_ps((__m256)x);
#else
    for (int i = 0; i < WIDTH; i++) x[i] = __builtin_sqrtf(x[i]);
    return x;
#endif
}

static inline float vec_sum(vec x)
{
    float lane[WIDTH];
    vec_store(lane, x);
    for (int n = WIDTH / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) lane[i] += lane[i + n];
    return lane[0];
}

/* The largest lane; of none that is NaN. */
static inline float vec_top(vec x)
{
    float lane[WIDTH];
    vec_store(lane, x);
    for (int n = WIDTH / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) lane[i] = lane[i] > lane[i + n] ? lane[i] : lane[i + n];
    return lane[0];
}

/* 1/x for normal x whose inverse is normal, to 1.5 units in the last place. */
static inline vec vec_invert(vec x)
{
#if defined(__AVX512F__)
    vec guess = (vec)_mm512_rcp14_ps((__m512)x); /* and a step of Newton's: a third of what dividing takes */
    return guess * (2.0f - x * guess);
#else
    return 1.0f / x;
#endif
}

/* x * 2^n for whole n in -300 … 300, given as floats. */
static inline vec vec_scale(vec x, vec n, veci whole)
{
#if defined(__AVX512F__)
    (void)whole;
    return (vec)_mm512_scalef_ps((__m512)x, (__m512)n);
#else
    (void)n; /* in two steps, each a normal number, so that the result may be subnormal or infinite */
    veci half = whole >> 1;
    return x * (vec)((half + 127) << 23) * (vec)((whole - half + 127) << 23);
#endif
}

/* exp(x) for x in -104 … 89: 2^n exp(r), n = round(x / ln 2), |r| <= ln(2)/2, exp(r) by a polynomial (Cephes). Relative
 * error below 1.2e-7. */
static inline vec vec_exp_within(vec x)
{
    const vec magic = vec_all(0x1.8p23f); /* adding it leaves the nearest whole number in the lowest bits */
    vec shifted = x * 1.44269504f + magic;
    vec n = shifted - magic;
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f; /* ln 2 in two parts, the first exact in few bits */
    vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + (r + 1.0f);
    return vec_scale(p, n, (veci)shifted - (veci)magic);
}

/* x held to least … most; NaN stays NaN. */
static inline vec vec_hold(vec x, float least, float most)
{
    return vec_max(vec_all(least), vec_min(vec_all(most), x));
}

/* exp of anything: 0 below -104, infinity above 88.73, NaN stays NaN. */
static inline vec vec_exp(vec x)
{
    return vec_exp_within(vec_hold(x, -104, 89));
}

/* An odd polynomial near 0 (Cephes), 1 - 2/(exp(2|x|) + 1) farther out. Relative error below 2e-7. */
static inline vec vec_tanh(vec x)
{
    vec z = x * x, size = vec_abs(x);
    vec p = z * -5.70498872745e-3f + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    p = p * z * x + x;
    vec far = 1.0f - 2.0f * vec_invert(vec_exp_within(vec_hold(size + size, 0, 80)) + 1.0f);
    far = (vec)((veci)far | ((veci)x & (int32_t)0x80000000));
    return vec_where_larger(size, vec_all(0.625f), far, p);
}

/* log(x) of normal x > 0: 2^e (1 + m), 1 + m in sqrt(1/2) … sqrt(2), by a polynomial in m (Cephes). Relative error below
 * 2e-7, also near 1. */
static inline vec vec_log_normal(vec x)
{
    veci shifted = (veci)x - 0x3f3504f3; /* by sqrt(1/2): the exponent that is left is e */
    vec e = __builtin_convertvector(shifted >> 23, vec);
    vec m = (vec)((shifted & 0x007fffff) + 0x3f3504f3) - 1.0f, z = m * m;
    vec p = m * 7.0376836292e-2f - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    return e * 0.693359375f + (m + (p * (m * z) - e * 2.12194440e-4f - 0.5f * z));
}

/* log of anything: -infinity at 0, NaN below. */
static inline vec vec_log(vec x)
{
    vec tiny = vec_all(0x1p-126f), infinite = vec_all(__builtin_inff());
    vec normal = vec_where_larger(tiny, x, x * 0x1p23f, x);
    vec y = vec_log_normal(normal) - vec_where_larger(tiny, x, vec_all(15.9423851528f), vec_all(0)); /* 23 ln 2 */
    y = vec_where_larger(infinite, x, y, infinite);
    y = vec_where_larger(x, vec_all(0), y, vec_where_larger(vec_all(0), x, vec_all(__builtin_nanf("")), -infinite));
    return vec_where_nan(x, y);
}

/* log(1 + exp(-|x|)). With u = exp(-|x|) and w = 1 + u, rounded, it is log(w) + (u - (w - 1))/w. */
static inline vec vec_softplus_of_minus_abs(vec x)
{
    vec u = vec_exp_within(vec_max(vec_all(-104), -vec_abs(x))), w = 1.0f + u;
    return vec_log_normal(w) + (u - (w - 1.0f)) / w;
}

/* log(1 + exp(x)) */
static inline vec vec_softplus(vec x)
{
    return vec_max(vec_all(0), x) + vec_softplus_of_minus_abs(x);
}

/* exp(x) - 1 for x in -104 … 0, exact also near 0: tanh(x/2) (exp(x) + 1). */
static inline vec vec_expm1_within(vec x)
{
    return vec_tanh(0.5f * x) * (vec_exp_within(x) + 1.0f);
}

/* Beyond 87 on either side it stays what it is there: 1, or below 2e-38. */
static inline vec vec_sigmoid(vec x)
{
    return vec_invert(1.0f + vec_exp_within(vec_hold(-x, -87, 87)));
}

#endif
