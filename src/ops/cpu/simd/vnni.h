/*
 * VNNI pairs of bf16, 16 in a vector, which the microkernel multiplies where TILE_VNNI is defined. For files that are compiled for
 * AVX-512 with its instructions for bf16.
 */
#ifndef TR_OPS_CPU_SIMD_VNNI_H
#define TR_OPS_CPU_SIMD_VNNI_H

#include "ops/cpu/simd/lanes.h"

/* data[at …] as bf16 in the first n lanes, zeros in the others; n is anything. */
LANES_INLINE __m256i bf16_load(tr_dtype dtype, const void *data, int64_t at, int64_t n)
{
    if (dtype == TR_BF16) return _mm256_maskz_loadu_epi16(lanes_first(n), (const uint16_t *)data + at);
    return (__m256i)_mm512_cvtneps_pbh((__m512)lanes_load(dtype, data, at, n));
}

/* firsts[i] and seconds[i] as pair i. */
LANES_INLINE vec vnni_join(__m256i firsts, __m256i seconds)
{
    __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(seconds), 16);
    return (vec)_mm512_or_si512(_mm512_cvtepu16_epi32(firsts), high);
}

/* The same of bf16 that have been widened to f32. */
LANES_INLINE vec vnni_of_bf16(vec firsts, vec seconds)
{
    return (vec)_mm512_or_si512(_mm512_srli_epi32((__m512i)firsts, 16), (__m512i)seconds);
}

LANES_INLINE vec vnni_firsts(vec pairs)
{
    return (vec)_mm512_slli_epi32((__m512i)pairs, 16);
}

LANES_INLINE vec vnni_seconds(vec pairs)
{
    return (vec)_mm512_and_si512((__m512i)pairs, _mm512_set1_epi32((int)0xffff0000));
}

/* data[at …] as pairs of neighbours, of which there are n numbers; zeros behind them. */
LANES_INLINE vec vnni_load(tr_dtype dtype, const void *data, int64_t at, int64_t n)
{
    if (dtype == TR_BF16 && n >= 2 * WIDTH) return (vec)_mm512_loadu_si512((const uint16_t *)data + at);
    __m512i low = _mm512_castsi256_si512(bf16_load(dtype, data, at, n));
    return (vec)_mm512_inserti64x4(low, bf16_load(dtype, data, at + WIDTH, n - WIDTH), 1);
}

#endif
