#include "tensor/numbers.h"

/* A double as an integer: truncated, held to the type's range; NaN is 0. */
static inline int64_t to_integer(double value, double least, double most)
{
    if (value != value) return 0;
    if (value <= least) return (int64_t)least;
    if (value >= most) return most >= 0x1p63 ? INT64_MAX : (int64_t)most;
    return (int64_t)value;
}

/* The loop is written twice so that the compiler can vectorise the first. */
#define RUN(condition, with_stride, without) \
    if (condition)                           \
        for (int64_t i = 0; i < n; i++)      \
            without;                         \
    else                                     \
        for (int64_t i = 0; i < n; i++)      \
            with_stride;                     \
    return

#define READ(type, get)                                                     \
    {                                                                       \
        const type *x = from;                                               \
        RUN(stride == 1, to[i] = get(x[i * stride]), to[i] = get(x[i]));    \
    }
#define WRITE(type, put)                                                    \
    {                                                                       \
        type *x = to;                                                       \
        RUN(stride == 1, x[i * stride] = put(from[i]), x[i] = put(from[i])); \
    }

#define TRUTH(x) ((x) != 0)
#define TO_BF16(x) tr__f32_to_bf16((float)(x))
#define TO_F16(x) tr__f32_to_f16((float)(x))
#define TO_I64(x) to_integer((double)(x), -0x1p63, 0x1p63)
#define TO_I32(x) (int32_t)to_integer((double)(x), INT32_MIN, INT32_MAX)
#define TO_U8(x) (uint8_t)to_integer((double)(x), 0, UINT8_MAX)

#define READ_ALL(name, type_)                                                                       \
    void tr__read_##name(type_ *to, tr_dtype dtype, const void *from, int64_t stride, int64_t n)    \
    {                                                                                               \
        switch (dtype) {                                                                            \
        case TR_F32: READ(float, (type_))                                                           \
        case TR_F64: READ(double, (type_))                                                          \
        case TR_F16: READ(uint16_t, (type_)tr__f16_to_f32)                                          \
        case TR_BF16: READ(uint16_t, (type_)tr__bf16_to_f32)                                        \
        case TR_I64: READ(int64_t, (type_))                                                         \
        case TR_I32: READ(int32_t, (type_))                                                         \
        case TR_U8: READ(uint8_t, (type_))                                                          \
        case TR_BOOL: READ(uint8_t, (type_)TRUTH)                                                   \
        case TR_DTYPE_COUNT: break;                                                                 \
        }                                                                                           \
    }
READ_ALL(f32, float)
READ_ALL(f64, double)

void tr__read_i64(int64_t *to, tr_dtype dtype, const void *from, int64_t stride, int64_t n)
{
    switch (dtype) {
    case TR_I64: READ(int64_t, (int64_t))
    case TR_I32: READ(int32_t, (int64_t))
    case TR_U8: READ(uint8_t, (int64_t))
    case TR_BOOL: READ(uint8_t, (int64_t)TRUTH)
    default: break;
    }
}

#define WRITE_ALL(name, type_)                                                                          \
    void tr__write_##name(tr_dtype dtype, void *to, int64_t stride, const type_ *from, int64_t n)       \
    {                                                                                                   \
        switch (dtype) {                                                                                \
        case TR_F32: WRITE(float, (float))                                                              \
        case TR_F64: WRITE(double, (double))                                                            \
        case TR_F16: WRITE(uint16_t, TO_F16)                                                            \
        case TR_BF16: WRITE(uint16_t, TO_BF16)                                                          \
        case TR_I64: WRITE(int64_t, TO_I64)                                                             \
        case TR_I32: WRITE(int32_t, TO_I32)                                                             \
        case TR_U8: WRITE(uint8_t, TO_U8)                                                               \
        case TR_BOOL: WRITE(uint8_t, TRUTH)                                                             \
        case TR_DTYPE_COUNT: break;                                                                     \
        }                                                                                               \
    }
WRITE_ALL(f32, float)
WRITE_ALL(f64, double)

void tr__write_i64(tr_dtype dtype, void *to, int64_t stride, const int64_t *from, int64_t n)
{
    switch (dtype) {
    case TR_I64: WRITE(int64_t, (int64_t))
    case TR_I32: WRITE(int32_t, (int32_t))
    case TR_U8: WRITE(uint8_t, (uint8_t))
    case TR_BOOL: WRITE(uint8_t, TRUTH)
    default: break;
    }
}

double tr__load(tr_dtype dtype, const void *base, int64_t i)
{
    double value = 0;
    tr__read_f64(&value, dtype, (const char *)base + i * (int64_t)tr_dtype_size(dtype), 1, 1);
    return value;
}

void tr__store(tr_dtype dtype, void *base, int64_t i, double value)
{
    tr__write_f64(dtype, (char *)base + i * (int64_t)tr_dtype_size(dtype), 1, &value, 1);
}

void tr__swap_bytes(void *elements, size_t bytes, int64_t n)
{
    uint16_t *halves = elements;
    uint32_t *words = elements;
    uint64_t *doubles = elements;
    for (int64_t i = 0; bytes == 2 && i < n; i++) halves[i] = __builtin_bswap16(halves[i]);
    for (int64_t i = 0; bytes == 4 && i < n; i++) words[i] = __builtin_bswap32(words[i]);
    for (int64_t i = 0; bytes == 8 && i < n; i++) doubles[i] = __builtin_bswap64(doubles[i]);
}
