/*
 * The reduction kernels, written once on the compiler's vector types. A file per instruction set sets VECTOR (the bytes
 * of a register), TABLE (the name of the table), LOAD_F16 and STORE_F16, and includes this.
 *
 * A kernel walks over the elements in steps of UNROLL registers: load from rank 0, fold in the other ranks, finish,
 * store to every output. So each byte is read and written once, and nothing passes through memory in between.
 */
#include "base/half.h"
#include "comm/algo/reduce.h"

#include <string.h>

enum { UNROLL = 4, WIDE = VECTOR / 4 /* lanes of 32 bits */ };

#define VECTOR_OF(type, bytes) __attribute__((vector_size(bytes))) type
typedef VECTOR_OF(float, VECTOR) f32s;
typedef VECTOR_OF(double, VECTOR) f64s;
typedef VECTOR_OF(int64_t, VECTOR) i64s;
typedef VECTOR_OF(uint64_t, VECTOR) u64s;
typedef VECTOR_OF(int32_t, VECTOR) i32s;
typedef VECTOR_OF(uint32_t, VECTOR) u32s;
typedef VECTOR_OF(uint8_t, VECTOR) u8s;
/* As many lanes as a register of 32-bit numbers has, of other widths. */
typedef VECTOR_OF(int64_t, WIDE * 8) i64s_wide;
typedef VECTOR_OF(uint64_t, WIDE * 8) u64s_wide;
typedef VECTOR_OF(uint16_t, WIDE * 2) u16s_narrow;
typedef VECTOR_OF(uint8_t, WIDE) u8s_narrow;

/* Memory to accumulators and back: LOAD(x) and STORE(y, a) on pointers without alignment. */
#define LOAD_AS(type, x) ({ type v_; memcpy(&v_, (x), sizeof v_); v_; })
#define STORE_AS(type, y, a) ({ type v_ = (a); memcpy((y), &v_, sizeof v_); })
#define LOAD_F32(x) LOAD_AS(f32s, x)
#define STORE_F32(y, a) STORE_AS(f32s, y, a)
#define LOAD_F64(x) LOAD_AS(f64s, x)
#define STORE_F64(y, a) STORE_AS(f64s, y, a)
#define LOAD_I64(x) LOAD_AS(i64s, x)
#define STORE_I64(y, a) STORE_AS(i64s, y, a)
#define LOAD_I32(x) LOAD_AS(i32s, x)
#define STORE_I32(y, a) STORE_AS(i32s, y, a)
#define LOAD_U8(x) LOAD_AS(u8s, x)
#define STORE_U8(y, a) STORE_AS(u8s, y, a)
#define LOAD_I32_WIDE(x) __builtin_convertvector(LOAD_AS(i32s, x), i64s_wide)
#define STORE_I32_WIDE(y, a) STORE_AS(i32s, y, __builtin_convertvector(a, i32s))
#define LOAD_U8_WIDE(x) __builtin_convertvector(LOAD_AS(u8s_narrow, x), i32s)
#define STORE_U8_WIDE(y, a) STORE_AS(u8s_narrow, y, __builtin_convertvector(a, u8s_narrow))
#define LOAD_BF16(x) ((f32s)(__builtin_convertvector(LOAD_AS(u16s_narrow, x), u32s) << 16))
/* As tr__f32_to_bf16: to nearest even; NaN stays NaN. */
#define STORE_BF16(y, a)                                                                                      \
    ({                                                                                                        \
        u32s bits_ = (u32s)(a), rounded_ = (bits_ + 0x7fff + (bits_ >> 16 & 1)) >> 16;                        \
        rounded_ = SELECT((a) != (a), bits_ >> 16 | 0x40, rounded_);                                          \
        STORE_AS(u16s_narrow, y, __builtin_convertvector(rounded_, u16s_narrow));                             \
    })

/* mask ? a : b, lane by lane; mask is what a comparison of vectors gives. */
#define SELECT(mask, a, b) \
    ((__typeof__(a))(((__typeof__(mask))(a) & (mask)) | ((__typeof__(mask))(b) & ~(mask))))

/* Folding. Signed sums and products are made unsigned, where wrapping is defined. A NaN in a or b passes through. */
#define FOLD_SUM(unsigned_type, a, b) ((__typeof__(a))((unsigned_type)(a) + (unsigned_type)(b)))
#define FOLD_AVG FOLD_SUM
#define FOLD_PROD(unsigned_type, a, b) ((__typeof__(a))((unsigned_type)(a) * (unsigned_type)(b)))
#define FOLD_MIN(unsigned_type, a, b) SELECT(((a) < (b)) | ((a) != (a)), a, b)
#define FOLD_MAX(unsigned_type, a, b) SELECT(((a) > (b)) | ((a) != (a)), a, b)
#define FOLD_OR(unsigned_type, a, b) ((a) | (b))
#define FOLD_AND(unsigned_type, a, b) ((a) & (b))
#define FOLD_XOR(unsigned_type, a, b) ((a) ^ (b))

#define FINISH_NOT(a, ranks) (a)
#define FINISH_SCALE(a, ranks) ((a) * (__typeof__((a)[0]))(1.0 / (ranks)))
#define FINISH_DIVIDE(a, ranks) ((a) / (__typeof__((a)[0]))(ranks))

/* element: the type in memory; acc: the type of an accumulator; wrap: its unsigned sibling. */
#define KERNEL(name, element, acc, wrap, LOAD, STORE, FOLD, FINISH)                                             \
    static void name(const void *const *in, int ranks, void *const *out, int outs, int64_t count)               \
    {                                                                                                           \
        enum { LANES = sizeof(acc) / sizeof((acc){0}[0]), STEP = UNROLL * LANES };                              \
        element spare[STEP] = {0}; /* stands in for memory beyond the end */                                    \
        for (int64_t i = 0; i < count; i += STEP) {                                                             \
            size_t rest = (size_t)(count - i) * sizeof(element);                                                \
            bool whole = rest >= sizeof spare;                                                                  \
            acc a[UNROLL];                                                                                      \
            const element *x = (const element *)in[0] + i;                                                      \
            if (!whole) x = memcpy(spare, x, rest);                                                             \
            for (int u = 0; u < UNROLL; u++) a[u] = LOAD(x + u * LANES);                                        \
            for (int r = 1; r < ranks; r++) {                                                                   \
                x = (const element *)in[r] + i;                                                                 \
                if (!whole) x = memcpy(spare, x, rest);                                                         \
                for (int u = 0; u < UNROLL; u++) {                                                              \
                    acc b = LOAD(x + u * LANES);                                                                \
                    a[u] = FOLD(wrap, a[u], b);                                                                 \
                }                                                                                               \
            }                                                                                                   \
            for (int u = 0; u < UNROLL; u++) a[u] = FINISH(a[u], ranks);                                        \
            for (int k = 0; k < outs; k++) {                                                                    \
                element *y = whole ? (element *)out[k] + i : spare;                                             \
                for (int u = 0; u < UNROLL; u++) STORE(y + u * LANES, a[u]);                                    \
                if (!whole) memcpy((element *)out[k] + i, spare, rest);                                         \
            }                                                                                                   \
        }                                                                                                       \
    }

#define KERNELS(name, element, acc, wrap, LOAD, STORE)                              \
    KERNEL(name##_sum, element, acc, wrap, LOAD, STORE, FOLD_SUM, FINISH_NOT)       \
    KERNEL(name##_min, element, acc, wrap, LOAD, STORE, FOLD_MIN, FINISH_NOT)       \
    KERNEL(name##_max, element, acc, wrap, LOAD, STORE, FOLD_MAX, FINISH_NOT)       \
    KERNEL(name##_prod, element, acc, wrap, LOAD, STORE, FOLD_PROD, FINISH_NOT)

KERNELS(f32, float, f32s, f32s, LOAD_F32, STORE_F32)
KERNEL(f32_avg, float, f32s, f32s, LOAD_F32, STORE_F32, FOLD_AVG, FINISH_SCALE)
KERNELS(f64, double, f64s, f64s, LOAD_F64, STORE_F64)
KERNEL(f64_avg, double, f64s, f64s, LOAD_F64, STORE_F64, FOLD_AVG, FINISH_SCALE)
KERNELS(f16, uint16_t, f32s, f32s, LOAD_F16, STORE_F16)
KERNEL(f16_avg, uint16_t, f32s, f32s, LOAD_F16, STORE_F16, FOLD_AVG, FINISH_SCALE)
KERNELS(bf16, uint16_t, f32s, f32s, LOAD_BF16, STORE_BF16)
KERNEL(bf16_avg, uint16_t, f32s, f32s, LOAD_BF16, STORE_BF16, FOLD_AVG, FINISH_SCALE)
KERNELS(i64, int64_t, i64s, u64s, LOAD_I64, STORE_I64)
KERNEL(i64_avg, int64_t, i64s, u64s, LOAD_I64, STORE_I64, FOLD_AVG, FINISH_DIVIDE)
KERNELS(i32, int32_t, i32s, u32s, LOAD_I32, STORE_I32)
KERNEL(i32_avg, int32_t, i64s_wide, u64s_wide, LOAD_I32_WIDE, STORE_I32_WIDE, FOLD_AVG, FINISH_DIVIDE)
KERNELS(u8, uint8_t, u8s, u8s, LOAD_U8, STORE_U8)
KERNEL(u8_avg, uint8_t, i32s, u32s, LOAD_U8_WIDE, STORE_U8_WIDE, FOLD_AVG, FINISH_DIVIDE)
#define BIT_KERNELS(name, element, acc, LOAD, STORE)                        \
    KERNEL(name##_and, element, acc, acc, LOAD, STORE, FOLD_AND, FINISH_NOT) \
    KERNEL(name##_or, element, acc, acc, LOAD, STORE, FOLD_OR, FINISH_NOT)   \
    KERNEL(name##_xor, element, acc, acc, LOAD, STORE, FOLD_XOR, FINISH_NOT)
BIT_KERNELS(i64, int64_t, i64s, LOAD_I64, STORE_I64)
BIT_KERNELS(i32, int32_t, i32s, LOAD_I32, STORE_I32)
BIT_KERNELS(u8, uint8_t, u8s, LOAD_U8, STORE_U8) /* bool too: it is 0 or 1 */

#define NUMBERS(name) \
    [TR_SUM] = name##_sum, [TR_AVG] = name##_avg, [TR_MIN] = name##_min, [TR_MAX] = name##_max, [TR_PROD] = name##_prod
#define BITS(name) [TR_BAND] = name##_and, [TR_BOR] = name##_or, [TR_BXOR] = name##_xor

const tr__reduce_table TABLE = {
    [TR_F32] = {NUMBERS(f32)},
    [TR_F64] = {NUMBERS(f64)},
    [TR_F16] = {NUMBERS(f16)},
    [TR_BF16] = {NUMBERS(bf16)},
    [TR_I64] = {NUMBERS(i64), BITS(i64)},
    [TR_I32] = {NUMBERS(i32), BITS(i32)},
    [TR_U8] = {NUMBERS(u8), BITS(u8)},
    [TR_BOOL] = {[TR_SUM] = u8_or, [TR_MIN] = u8_and, [TR_MAX] = u8_or, [TR_PROD] = u8_and, BITS(u8)},
};
