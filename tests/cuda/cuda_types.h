/*
 * The types of CUDA's language: vectors, dim3, __half and __nv_bfloat16. The 16-bit types convert only when they are
 * asked to and have no arithmetic, so what compiles here means the same with the toolkit's.
 */
#ifndef TR_TEST_CUDA_TYPES_H
#define TR_TEST_CUDA_TYPES_H

#include <stdint.h>
#include <string.h>

#define TR_VECTOR_TYPES(type, scalar)                                                                             \
    struct type##1 { scalar x; };                                                                                 \
    struct alignas(2 * sizeof(scalar)) type##2 { scalar x, y; };                                                  \
    struct type##3 { scalar x, y, z; };                                                                           \
    struct alignas(4 * sizeof(scalar) < 16 ? 4 * sizeof(scalar) : 16) type##4 { scalar x, y, z, w; };             \
    inline type##1 make_##type##1(scalar x) { return {x}; }                                                       \
    inline type##2 make_##type##2(scalar x, scalar y) { return {x, y}; }                                          \
    inline type##3 make_##type##3(scalar x, scalar y, scalar z) { return {x, y, z}; }                             \
    inline type##4 make_##type##4(scalar x, scalar y, scalar z, scalar w) { return {x, y, z, w}; }
TR_VECTOR_TYPES(char, signed char)
TR_VECTOR_TYPES(uchar, unsigned char)
TR_VECTOR_TYPES(short, short)
TR_VECTOR_TYPES(ushort, unsigned short)
TR_VECTOR_TYPES(int, int)
TR_VECTOR_TYPES(uint, unsigned)
TR_VECTOR_TYPES(longlong, long long)
TR_VECTOR_TYPES(ulonglong, unsigned long long)
TR_VECTOR_TYPES(float, float)
TR_VECTOR_TYPES(double, double)
#undef TR_VECTOR_TYPES

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

/* ---- Bits -------------------------------------------------------------------------------------------------------- */

template <typename To, typename From>
inline To tr_bits(const From &from)
{
    static_assert(sizeof(To) == sizeof(From), "the same number of bits");
    To to;
    memcpy(static_cast<void *>(&to), &from, sizeof to);
    return to;
}

inline int __float_as_int(float x) { return tr_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return tr_bits<unsigned>(x); }
inline float __int_as_float(int x) { return tr_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return tr_bits<float>(x); }
inline long long __double_as_longlong(double x) { return tr_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return tr_bits<double>(x); }

/* Rounds to the nearest, ties to even; NaN stays a (quiet) NaN. */
inline unsigned short tr_to_bf16(float x)
{
    const unsigned bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

inline unsigned short tr_to_half(float x)
{
    const unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return 0x7fff;
    if (size >= 0x47800000u) return static_cast<unsigned short>(sign | 0x7c00u); /* 65536 and more */
    if (size < 0x38800000u) { /* below 2^-14: 2^-24 is the unit in the last place, and adding 0.5 rounds to it */
        const float rounded = __uint_as_float(size) + 0.5f;
        return static_cast<unsigned short>(sign | (__float_as_uint(rounded) - __float_as_uint(0.5f)));
    }
    return static_cast<unsigned short>(sign | ((size + 0xfffu + (size >> 13 & 1)) - 0x38000000u) >> 13);
}

inline float tr_from_half(unsigned short h)
{
    const unsigned sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31u, fraction = h & 0x3ffu;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) return __uint_as_float(sign | __float_as_uint(static_cast<float>(fraction) * 0x1p-24f));
    return __uint_as_float(sign | (exponent + 112u) << 23 | fraction << 13);
}

/* ---- __half and __nv_bfloat16 ------------------------------------------------------------------------------------ */

struct __half {
    unsigned short x;
    __half() = default;
    explicit __half(float f) : x(tr_to_half(f)) {}
    explicit operator float() const { return tr_from_half(x); }
};

struct __nv_bfloat16 {
    unsigned short x;
    __nv_bfloat16() = default;
    explicit __nv_bfloat16(float f) : x(tr_to_bf16(f)) {}
    explicit operator float() const { return __uint_as_float(static_cast<unsigned>(x) << 16); }
};

struct alignas(4) __half2 { __half x, y; };
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; };
typedef __half half;
typedef __half2 half2;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

inline unsigned short __half_as_ushort(__half h) { return h.x; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 b) { return b.x; }
inline __half __ushort_as_half(unsigned short x) { return tr_bits<__half>(x); }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return tr_bits<__nv_bfloat16>(x); }

inline float __half2float(__half h) { return float(h); }
inline __half __float2half(float f) { return __half(f); }
inline __half __float2half_rn(float f) { return __half(f); }
inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
inline __half2 __float22half2_rn(float2 v) { return {__half(v.x), __half(v.y)}; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline float2 __half22float2(__half2 v) { return {float(v.x), float(v.y)}; }
inline float __low2float(__half2 v) { return float(v.x); }
inline float __high2float(__half2 v) { return float(v.y); }

inline float __bfloat162float(__nv_bfloat16 b) { return float(b); }
inline __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
inline __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return {__nv_bfloat16(v.x), __nv_bfloat16(v.y)}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {float(v.x), float(v.y)}; }
inline float __low2float(__nv_bfloat162 v) { return float(v.x); }
inline float __high2float(__nv_bfloat162 v) { return float(v.y); }

#endif
