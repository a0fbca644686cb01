#include "numbers.h"

#include "base/half.h"

double get(tr_dtype dtype, const void *memory, int64_t i)
{
    switch (dtype) {
    case TR_F32: return ((const float *)memory)[i];
    case TR_F64: return ((const double *)memory)[i];
    case TR_F16: return (double)tr__f16_to_f32(((const uint16_t *)memory)[i]);
    case TR_BF16: return (double)tr__bf16_to_f32(((const uint16_t *)memory)[i]);
    case TR_I64: return (double)((const int64_t *)memory)[i];
    case TR_I32: return ((const int32_t *)memory)[i];
    default: return ((const uint8_t *)memory)[i];
    }
}

void put(tr_dtype dtype, void *memory, int64_t i, double value)
{
    switch (dtype) {
    case TR_F32: ((float *)memory)[i] = (float)value; break;
    case TR_F64: ((double *)memory)[i] = value; break;
    case TR_F16: ((uint16_t *)memory)[i] = tr__f32_to_f16((float)value); break;
    case TR_BF16: ((uint16_t *)memory)[i] = tr__f32_to_bf16((float)value); break;
    case TR_I64: ((int64_t *)memory)[i] = (int64_t)value; break;
    case TR_I32: ((int32_t *)memory)[i] = (int32_t)value; break;
    default: ((uint8_t *)memory)[i] = (uint8_t)value; break;
    }
}

uint64_t hash_of_list(const tr_tensor_list *list, uint64_t earlier)
{
    uint64_t hash = earlier ? earlier : 0xcbf29ce484222325u; /* FNV-1a */
    for (int i = 0; i < tr_list_count(list); i++) {
        tr_tensor *t = tr_list_at(list, i);
        const unsigned char *data = tr_data(t);
        size_t bytes = (size_t)tr_numel(t) * tr_dtype_size(tr_dtype_of(t));
        for (size_t b = 0; b < bytes; b++) hash = (hash ^ data[b]) * 0x100000001b3u;
    }
    return hash;
}
