/*
 * Types of CUDA's language: vectors, dim3, __half and __nv_bfloat16, as far as the kernels use them. The 16-bit types
 * convert only when they are asked to and have no arithmetic, so what compiles here means the same with the toolkit's.
 */
#ifndef TR_TEST_CUDA_TYPES_H
#define TR_TEST_CUDA_TYPES_H

#include <stdint.h>
#include <string.h>

struct uint3 { unsigned x, y, z; };

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
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

inline long long __double_as_longlong(double x) { return tr_bits<long long>(x); }

/* Rounds to the nearest, ties to even; NaN stays a (quiet) NaN. */
inline unsigned short tr_to_bf16(float x)
{
    const auto bits = tr_bits<unsigned>(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

inline unsigned short tr_to_half(float x)
{
    const auto bits = tr_bits<unsigned>(x);
    const unsigned sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return 0x7fff;
    if (size >= 0x47800000u) return static_cast<unsigned short>(sign | 0x7c00u); /* 65536 and more */
    if (size < 0x38800000u) { /* below 2^-14: 2^-24 is the unit in the last place, and adding 0.5 rounds to it */
        const float rounded = tr_bits<float>(size) + 0.5f;
        return static_cast<unsigned short>(sign | (tr_bits<unsigned>(rounded) - tr_bits<unsigned>(0.5f)));
    }
    return static_cast<unsigned short>(sign | ((size + 0xfffu + (size >> 13 & 1)) - 0x38000000u) >> 13);
}

inline float tr_from_half(unsigned short h)
{
    const unsigned sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31u, fraction = h & 0x3ffu;
    if (exponent == 31) return tr_bits<float>(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) return tr_bits<float>(sign | tr_bits<unsigned>(static_cast<float>(fraction) * 0x1p-24f));
    return tr_bits<float>(sign | (exponent + 112u) << 23 | fraction << 13);
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
    explicit operator float() const { return tr_bits<float>(static_cast<unsigned>(x) << 16); }
};

struct alignas(4) __half2 { __half x, y; };
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; };

inline float __half2float(__half h) { return float(h); }
inline __half __float2half_rn(float f) { return __half(f); }
inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
inline unsigned short __half_as_ushort(__half h) { return h.x; }
inline __half __ushort_as_half(unsigned short x) { return tr_bits<__half>(x); }

inline float __bfloat162float(__nv_bfloat16 b) { return float(b); }
inline __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 b) { return b.x; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return tr_bits<__nv_bfloat16>(x); }

#endif
