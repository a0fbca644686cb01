/*
 * Loads and stores of vectors (vec.h) in any float dtype but f64, partial vectors, transposes, powers of two. Included by files
 * that are compiled once per kind of machine, so everything is static.
 */
#ifndef TR_OPS_CPU_SIMD_LANES_H
#define TR_OPS_CPU_SIMD_LANES_H

#include "base/half.h"
#include "ops/cpu/simd/vec.h"

#include <trireme/base.h>

#define LANES_INLINE static inline __attribute__((always_inline))

/* function(dtype, …), an inline one, with a dtype that is a constant in it: f32 or 16-bit. */
#define OF_DTYPE(dtype, function, ...)                                   \
    ((dtype) == TR_F32    ? function(TR_F32, __VA_ARGS__)                \
     : (dtype) == TR_BF16 ? function(TR_BF16, __VA_ARGS__)               \
                          : function(TR_F16, __VA_ARGS__))

/* The body of a parallel loop over a job, from body_of(dtype, job, begin, end), where the job's dtype is a constant. */
#define BODY_OF_DTYPE(body, job)                                       \
    static void body(void *arg, int64_t begin, int64_t end)            \
    {                                                                  \
        const job *j = arg;                                            \
        OF_DTYPE(j->dtype, body##_of, j, begin, end);                  \
    }

#if defined(__AVX512F__)

/* The first n lanes: none to all. */
LANES_INLINE __mmask16 lanes_first(int64_t n)
{
    return n >= WIDTH ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1);
}

/* data[at …] in the first n lanes, zeros in the others; n is anything. */
LANES_INLINE vec lanes_load(tr_dtype dtype, const void *data, int64_t at, int64_t n)
{
    __mmask16 lanes = lanes_first(n);
    if (dtype == TR_F32) return (vec)_mm512_maskz_loadu_ps(lanes, (const float *)data + at);
    __m256i half = _mm256_maskz_loadu_epi16(lanes, (const uint16_t *)data + at);
    if (dtype == TR_F16) return (vec)_mm512_cvtph_ps(half);
    return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
}

/* The upper half of each f32, rounded to nearest even; NaN stays NaN. The instruction for it takes what is below 2^-126 for
 * 0. */
LANES_INLINE __m256i lanes_to_bf16(__m512 x)
{
#if defined(__AVX512BF16__)
    return (__m256i)_mm512_cvtneps_pbh(x);
#else
    __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    rounded = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
#endif
}

LANES_INLINE void lanes_store(tr_dtype dtype, void *data, int64_t at, int64_t n, vec x)
{
    __mmask16 lanes = lanes_first(n);
    if (dtype == TR_F32) {
        _mm512_mask_storeu_ps((float *)data + at, lanes, (__m512)x);
        return;
    }
    __m256i half = dtype == TR_BF16 ? lanes_to_bf16((__m512)x)
                                    : _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_mask_storeu_epi16((uint16_t *)data + at, lanes, half);
}

/* x in the first n lanes, zeros in the others; n is anything. */
LANES_INLINE vec lanes_keep(vec x, int64_t n)
{
    return (vec)_mm512_maskz_mov_ps(lanes_first(n), (__m512)x);
}

/* r[i] lane j becomes r[j] lane i. */
LANES_INLINE void lanes_transpose(vec r[WIDTH])
{
    __m512 t[16], x[16];
#define UNROLL _Pragma("GCC unroll 16")
    UNROLL for (int i = 0; i < 16; i++) x[i] = (__m512)r[i];
    UNROLL for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    }
#define PAIRS(op, a, b) _mm512_castpd_ps(op(_mm512_castps_pd(a), _mm512_castps_pd(b)))
    UNROLL for (int i = 0; i < 16; i += 4) { /* x[i + c]: of rows i … i+3, column 4L + c in 128-bit lane L */
        x[i] = PAIRS(_mm512_unpacklo_pd, t[i], t[i + 2]);
        x[i + 1] = PAIRS(_mm512_unpackhi_pd, t[i], t[i + 2]);
        x[i + 2] = PAIRS(_mm512_unpacklo_pd, t[i + 1], t[i + 3]);
        x[i + 3] = PAIRS(_mm512_unpackhi_pd, t[i + 1], t[i + 3]);
    }
#undef PAIRS
    UNROLL for (int c = 0; c < 4; c++) { /* even lanes of all rows, then odd ones */
        t[c] = _mm512_shuffle_f32x4(x[c], x[4 + c], 0x88);
        t[4 + c] = _mm512_shuffle_f32x4(x[8 + c], x[12 + c], 0x88);
        t[8 + c] = _mm512_shuffle_f32x4(x[c], x[4 + c], 0xdd);
        t[12 + c] = _mm512_shuffle_f32x4(x[8 + c], x[12 + c], 0xdd);
    }
    UNROLL for (int c = 0; c < 4; c++) {
        r[c] = (vec)_mm512_shuffle_f32x4(t[c], t[4 + c], 0x88);
        r[8 + c] = (vec)_mm512_shuffle_f32x4(t[c], t[4 + c], 0xdd);
        r[4 + c] = (vec)_mm512_shuffle_f32x4(t[8 + c], t[12 + c], 0x88);
        r[12 + c] = (vec)_mm512_shuffle_f32x4(t[8 + c], t[12 + c], 0xdd);
    }
#undef UNROLL
}

/* Six floats by two loads: a masked load that reaches into the next cache line waits for that, too. */
LANES_INLINE __m512 lanes_load_six(const float *from)
{
    __m128 four = _mm_loadu_ps(from), two = _mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)(from + 4)));
    return _mm512_castps256_ps512(_mm256_insertf128_ps(_mm256_castps128_ps256(four), two, 1));
}

/* The first six lanes of each, joined: two stores. */
LANES_INLINE void lanes_join(const __m512 x[4], float *to)
{
    const __m512i two = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 16, 17, 18, 19, 20, 21, 0, 0, 0, 0);
    const __m512i three = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18, 19);
    const __m512i rest = _mm512_setr_epi32(4, 5, 16, 17, 18, 19, 20, 21, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm512_storeu_ps(to, _mm512_permutex2var_ps(_mm512_permutex2var_ps(x[0], two, x[1]), three, x[2]));
    _mm256_storeu_ps(to + WIDTH, _mm512_castps512_ps256(_mm512_permutex2var_ps(x[2], rest, x[3])));
}

/* Of four rows, six floats each from j on, joined. */
LANES_INLINE void lanes_join_sixes(const float *const row[4], int64_t j, float *to)
{
    __m512 x[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) x[r] = lanes_load_six(row[r] + j);
    lanes_join(x, to);
}

#else

#if defined(__AVX2__)

/* A whole vector of bf16 or f16. */
LANES_INLINE vec lanes_widen(tr_dtype dtype, const uint16_t *from)
{
    __m128i half = _mm_loadu_si128((const __m128i *)from);
    if (dtype == TR_F16) return (vec)_mm256_cvtph_ps(half);
    return (vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
}

LANES_INLINE void lanes_transpose(vec r[WIDTH])
{
    __m256 t[8], x[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps((__m256)r[i], (__m256)r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps((__m256)r[i], (__m256)r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) { /* x[i + c]: of rows i … i+3, column 4L + c in 128-bit lane L */
        x[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        x[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        x[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        x[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int c = 0; c < 4; c++) {
        r[c] = (vec)_mm256_permute2f128_ps(x[c], x[4 + c], 0x20);
        r[4 + c] = (vec)_mm256_permute2f128_ps(x[c], x[4 + c], 0x31);
    }
}

#else

LANES_INLINE vec lanes_widen(tr_dtype dtype, const uint16_t *from)
{
    vec x;
    for (int i = 0; i < WIDTH; i++) x[i] = dtype == TR_F16 ? tr__f16_to_f32(from[i]) : tr__bf16_to_f32(from[i]);
    return x;
}

LANES_INLINE void lanes_transpose(vec r[WIDTH])
{
    float from[WIDTH][WIDTH], to[WIDTH][WIDTH];
    memcpy(from, r, sizeof from);
    for (int i = 0; i < WIDTH; i++)
        for (int j = 0; j < WIDTH; j++) to[j][i] = from[i][j];
    memcpy(r, to, sizeof to);
}

#endif

LANES_INLINE vec lanes_load(tr_dtype dtype, const void *data, int64_t at, int64_t n)
{
    const uint16_t *half = (const uint16_t *)data + at;
    if (n >= WIDTH) return dtype == TR_F32 ? vec_load((const float *)data + at) : lanes_widen(dtype, half);
    if (n <= 0) return (vec){0};
    if (dtype == TR_F32) return vec_load_part((const float *)data + at, n);
    uint16_t part[WIDTH] = {0};
    memcpy(part, half, sizeof *part * (size_t)n);
    return lanes_widen(dtype, part);
}

LANES_INLINE void lanes_store(tr_dtype dtype, void *data, int64_t at, int64_t n, vec x)
{
    if (n > WIDTH) n = WIDTH;
    if (n <= 0) return;
    if (dtype == TR_F32 && n == WIDTH) vec_store((float *)data + at, x);
    else if (dtype == TR_F32) vec_store_part((float *)data + at, x, n);
    else {
        uint16_t *half = (uint16_t *)data + at;
        for (int64_t i = 0; i < n; i++) half[i] = dtype == TR_F16 ? tr__f32_to_f16(x[i]) : tr__f32_to_bf16(x[i]);
    }
}

LANES_INLINE vec lanes_keep(vec x, int64_t n)
{
    return vec_keep_part(x, n, 0);
}

LANES_INLINE void lanes_join_sixes(const float *const row[4], int64_t j, float *to)
{
    for (int r = 0; r < 4; r++) memcpy(to + 6 * r, row[r] + j, 6 * sizeof(float));
}

#endif

/* to[0 … 6) = data[at …], of which no more than n are read. */
LANES_INLINE void lanes_copy_six(tr_dtype dtype, const void *data, int64_t at, int64_t n, float *to)
{
    if (n >= 6 && dtype == TR_F32) {
        memcpy(to, (const float *)data + at, 6 * sizeof(float));
        return;
    }
#pragma GCC unroll 2
    for (int64_t c = 0; c < 6; c += WIDTH) {
        int64_t some = (n < 6 ? n : 6) - c;
        lanes_store(TR_F32, to, c, some, lanes_load(dtype, data, at + c, some));
    }
}

/* The nearest whole number to x, |x| < 2^22, also as an integer where vec_scale wants it so. */
LANES_INLINE vec vec_round(vec x, veci *whole)
{
#if defined(__AVX512F__)
    *whole = (veci){0};
    return (vec)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    const vec magic = vec_all(0x1.8p23f); /* adding it leaves the nearest whole number in the lowest bits */
    vec shifted = x + magic;
    *whole = (veci)shifted - (veci)magic;
    return shifted - magic;
#endif
}

/* 2^x for x <= 0 or NaN, to about one unit in the last place; 0 below 2^-149. The polynomial is that of Cephes' exp2f, on
 * [-1/2, 1/2]. */
LANES_INLINE vec vec_exp2(vec x)
{
    x = vec_max(vec_all(-160.0f), x); /* of a NaN, max gives its second operand */
    veci whole;
    vec n = vec_round(x, &whole), r = x - n;
    vec p = r * 1.535336188319500e-4f + 1.339887440266574e-3f;
    p = p * r + 9.618437357674640e-3f;
    p = p * r + 5.550332471162809e-2f;
    p = p * r + 2.402264791363012e-1f;
    p = p * r + 6.931472028550421e-1f;
    p = p * r + 1.0f;
    return vec_scale(p, n, whole);
}

#endif
