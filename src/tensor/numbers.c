/* Elements by value: the small floats, and one element of any dtype as a double. */
#include "tensor/tensor.h"

#include <string.h>

float tr__bf16_to_f32(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

uint16_t tr__f32_to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return (uint16_t)(bits >> 16 | 0x40); /* quiet */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float tr__f16_to_f32(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff, wide;
    float value;
    if (exponent == 0) { /* zero or subnormal: fraction * 2^-24 */
        value = (float)fraction * 0x1p-24f;
        return sign ? -value : value;
    }
    wide = sign | (exponent == 31 ? 255u : exponent + 112) << 23 | fraction << 13;
    memcpy(&value, &wide, sizeof value);
    return value;
}

uint16_t tr__f32_to_f16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    uint32_t size = bits & 0x7fffffff;
    if (size > 0x7f800000) return sign | 0x7e00;  /* NaN */
    if (size >= 0x477ff000) return sign | 0x7c00; /* rounds to 65520 or more: infinity */
    if (size < 0x38800000) {                      /* below 2^-14: a multiple of 2^-24; adding 0.5 rounds to one */
        float f;
        memcpy(&f, &size, sizeof f);
        f += 0.5f;
        memcpy(&size, &f, sizeof size);
        return (uint16_t)(sign | (size - 0x3f000000));
    }
    uint32_t rounded = size + 0xfff + (size >> 13 & 1); /* to nearest even */
    return (uint16_t)(sign | ((rounded - 0x38000000) >> 13));
}

double tr__load(tr_dtype dtype, const void *base, int64_t i)
{
    switch (dtype) {
    case TR_F32: return (double)((const float *)base)[i];
    case TR_F64: return ((const double *)base)[i];
    case TR_F16: return (double)tr__f16_to_f32(((const uint16_t *)base)[i]);
    case TR_BF16: return (double)tr__bf16_to_f32(((const uint16_t *)base)[i]);
    case TR_I64: return (double)((const int64_t *)base)[i];
    case TR_I32: return (double)((const int32_t *)base)[i];
    case TR_U8: return (double)((const uint8_t *)base)[i];
    case TR_BOOL: return (double)(((const uint8_t *)base)[i] != 0);
    case TR_DTYPE_COUNT: break;
    }
    return 0;
}

/* A double as an integer: truncated, held to the type's range; NaN is 0. */
static int64_t to_integer(double value, double least, double most)
{
    if (value != value) return 0;
    if (value <= least) return (int64_t)least;
    if (value >= most) return most >= 0x1p63 ? INT64_MAX : (int64_t)most;
    return (int64_t)value;
}

void tr__store(tr_dtype dtype, void *base, int64_t i, double value)
{
    switch (dtype) {
    case TR_F32: ((float *)base)[i] = (float)value; break;
    case TR_F64: ((double *)base)[i] = value; break;
    case TR_F16: ((uint16_t *)base)[i] = tr__f32_to_f16((float)value); break;
    case TR_BF16: ((uint16_t *)base)[i] = tr__f32_to_bf16((float)value); break;
    case TR_I64: ((int64_t *)base)[i] = to_integer(value, -0x1p63, 0x1p63); break;
    case TR_I32: ((int32_t *)base)[i] = (int32_t)to_integer(value, INT32_MIN, INT32_MAX); break;
    case TR_U8: ((uint8_t *)base)[i] = (uint8_t)to_integer(value, 0, UINT8_MAX); break;
    case TR_BOOL: ((uint8_t *)base)[i] = value != 0; break;
    case TR_DTYPE_COUNT: break;
    }
}
