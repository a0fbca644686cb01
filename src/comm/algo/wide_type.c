#include "comm/algo/wide_type.h"

#include "base/half.h"

#include <string.h>

#define CONVERT(to_type, from_type, expression)                                 \
    for (int64_t i = 0; i < count; i++) {                                       \
        from_type x = ((const from_type *)from)[i];                             \
        ((to_type *)to)[i] = (to_type)(expression);                             \
    }

tr_dtype tr__wide_type(tr_dtype dtype, tr_reduce_op op)
{
    if (dtype == TR_F16 || dtype == TR_BF16) return TR_F32;
    if (op == TR_AVG && dtype == TR_I32) return TR_I64;
    if (op == TR_AVG && dtype == TR_U8) return TR_I32;
    return dtype;
}

void tr__widen(tr_dtype dtype, tr_reduce_op op, const void *from, void *to, int64_t count)
{
    if (dtype == TR_F16)
        CONVERT(float, uint16_t, tr__f16_to_f32(x))
    else if (dtype == TR_BF16)
        CONVERT(float, uint16_t, tr__bf16_to_f32(x))
    else if (dtype == TR_I32 && op == TR_AVG)
        CONVERT(int64_t, int32_t, x)
    else if (dtype == TR_U8 && op == TR_AVG)
        CONVERT(int32_t, uint8_t, x)
    else
        memcpy(to, from, (size_t)count * tr_dtype_size(dtype));
}

void tr__narrow(tr_dtype dtype, tr_reduce_op op, int ranks, const void *from, void *to, int64_t count)
{
    bool average = op == TR_AVG;
    double part = average ? 1.0 / ranks : 1;
    int whole = average ? ranks : 1;
    if (dtype == TR_F16)
        CONVERT(uint16_t, float, tr__f32_to_f16(x * (float)part))
    else if (dtype == TR_BF16)
        CONVERT(uint16_t, float, tr__f32_to_bf16(x * (float)part))
    else if (!average && from != to)
        memcpy(to, from, (size_t)count * tr_dtype_size(dtype));
    else if (!average)
        return;
    else if (dtype == TR_F32)
        CONVERT(float, float, x * (float)part)
    else if (dtype == TR_F64)
        CONVERT(double, double, x * part)
    else if (dtype == TR_I64)
        CONVERT(int64_t, int64_t, x / whole)
    else if (dtype == TR_I32)
        CONVERT(int32_t, int64_t, x / whole)
    else
        CONVERT(uint8_t, int32_t, x / whole)
}
