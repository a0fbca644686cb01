/* Sixteen f32 at a time: rows of any float dtype in and out, transposes, powers of two. For files compiled for AVX-512. */
#ifndef TR_OPS_CPU_VECTORS_AVX512_H
#define TR_OPS_CPU_VECTORS_AVX512_H

#include <trireme/base.h>

#include <immintrin.h>

#define TR__VECTOR_INLINE static inline __attribute__((always_inline))

/* The first n lanes: none to all. */
TR__VECTOR_INLINE __mmask16 tr__first_lanes(int64_t n)
{
    return n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1);
}

/* The first lanes of 16 neighbours of an f32, bf16 or f16 row, zeros in the others. */
TR__VECTOR_INLINE __m512 tr__load_lanes(tr_dtype dtype, const void *row, int64_t at, __mmask16 lanes)
{
    if (dtype == TR_F32) return _mm512_maskz_loadu_ps(lanes, (const float *)row + at);
    __m256i half = _mm256_maskz_loadu_epi16(lanes, (const uint16_t *)row + at);
    if (dtype == TR_F16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* The upper half of each f32, rounded to nearest even; NaN stays NaN. */
TR__VECTOR_INLINE __m256i tr__to_bf16(__m512 x)
{
    __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    rounded = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

TR__VECTOR_INLINE void tr__store_lanes(tr_dtype dtype, void *row, int64_t at, __mmask16 lanes, __m512 x)
{
    if (dtype == TR_F32) {
        _mm512_mask_storeu_ps((float *)row + at, lanes, x);
        return;
    }
    __m256i half = dtype == TR_F16 ? _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC) : tr__to_bf16(x);
    _mm256_mask_storeu_epi16((uint16_t *)row + at, lanes, half);
}

/* r[i] lane j becomes r[j] lane i. */
TR__VECTOR_INLINE void tr__transpose(__m512 r[16])
{
    __m512 t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
#define PAIRS(op, a, b) _mm512_castpd_ps(op(_mm512_castps_pd(a), _mm512_castps_pd(b)))
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) { /* r[i + c]: of rows i … i+3, column 4L + c in 128-bit lane L */
        r[i] = PAIRS(_mm512_unpacklo_pd, t[i], t[i + 2]);
        r[i + 1] = PAIRS(_mm512_unpackhi_pd, t[i], t[i + 2]);
        r[i + 2] = PAIRS(_mm512_unpacklo_pd, t[i + 1], t[i + 3]);
        r[i + 3] = PAIRS(_mm512_unpackhi_pd, t[i + 1], t[i + 3]);
    }
#undef PAIRS
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) { /* even lanes of all rows, then odd ones */
        t[c] = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x88);
        t[4 + c] = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x88);
        t[8 + c] = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xdd);
        t[12 + c] = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xdd);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        r[c] = _mm512_shuffle_f32x4(t[c], t[4 + c], 0x88);
        r[8 + c] = _mm512_shuffle_f32x4(t[c], t[4 + c], 0xdd);
        r[4 + c] = _mm512_shuffle_f32x4(t[8 + c], t[12 + c], 0x88);
        r[12 + c] = _mm512_shuffle_f32x4(t[8 + c], t[12 + c], 0xdd);
    }
}

/* 2^x for x <= 0 or NaN, to about one unit in the last place; 0 below 2^-149. The polynomial is that of Cephes' exp2f, on
 * [-1/2, 1/2]. */
TR__VECTOR_INLINE __m512 tr__exp2(__m512 x)
{
    x = _mm512_max_ps(_mm512_set1_ps(-160.0f), x); /* of a NaN, max returns its second operand */
    __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), r = _mm512_sub_ps(x, whole);
    __m512 p = _mm512_set1_ps(1.535336188319500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.339887440266574e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.618437357674640e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.550332471162809e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.402264791363012e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.931472028550421e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, whole);
}

#endif
