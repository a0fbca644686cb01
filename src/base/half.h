/*
 * The two 16-bit floats: bf16 (1 sign, 8 exponent, 7 fraction bits: the upper half of an f32) and f16 (1, 5, 10). Both
 * round to nearest even, and NaN stays NaN.
 */
#ifndef TR_BASE_HALF_H
#define TR_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float tr__bits_to_f32(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t tr__f32_to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float tr__bf16_to_f32(uint16_t bits)
{
    return tr__bits_to_f32((uint32_t)bits << 16);
}

static inline uint16_t tr__f32_to_bf16(float value)
{
    uint32_t bits = tr__f32_to_bits(value);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
    return (uint16_t)(value != value ? quiet : rounded);
}

static inline float tr__f16_to_f32(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
    uint32_t tiny = tr__f32_to_bits((float)fraction * 0x1p-24f); /* zero or subnormal: fraction * 2^-24 */
    uint32_t wide = (exponent == 31 ? 255u : exponent + 112) << 23 | fraction << 13;
    return tr__bits_to_f32(sign | (exponent == 0 ? tiny : wide));
}

static inline uint16_t tr__f32_to_f16(float value)
{
    uint32_t bits = tr__f32_to_bits(value), size = bits & 0x7fffffff, result;
    /* Below 2^-14 the result is a multiple of 2^-24, and adding 0.5 rounds to one. */
    uint32_t tiny = tr__f32_to_bits(tr__bits_to_f32(size < 0x38800000 ? size : 0) + 0.5f) - 0x3f000000;
    result = (size + 0xfff + (size >> 13 & 1) - 0x38000000) >> 13;
    if (size < 0x38800000) result = tiny;
    if (size >= 0x477ff000) result = 0x7c00; /* rounds to 65520 or more: infinity */
    if (size > 0x7f800000) result = 0x7e00;  /* NaN */
    return (uint16_t)(bits >> 16 & 0x8000) | (uint16_t)result;
}

#endif
