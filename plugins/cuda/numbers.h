/*
 * Numbers as kernels see them: each dtype has a storage type T, and compute_of<T> is the type that kernels compute in:
 * float for f32, f16 and bf16, double for f64, int64_t for the integers and bool.
 */
#ifndef TRIREME_CUDA_NUMBERS_H
#define TRIREME_CUDA_NUMBERS_H

#include "portable.h"

#include <trireme/device.h>

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>

struct f16 { uint16_t bits; };
struct bf16 { uint16_t bits; };
struct truth { uint8_t byte; };

static_assert(sizeof(f16) == 2 && sizeof(bf16) == 2 && sizeof(truth) == 1, "as in memory");

template <class T> struct compute { using type = float; };
template <> struct compute<double> { using type = double; };
template <> struct compute<int64_t> { using type = int64_t; };
template <> struct compute<int32_t> { using type = int64_t; };
template <> struct compute<uint8_t> { using type = int64_t; };
template <> struct compute<truth> { using type = int64_t; };
template <class T> using compute_of = typename compute<T>::type;

template <class T> inline constexpr bool is_float = false;
template <> inline constexpr bool is_float<float> = true;
template <> inline constexpr bool is_float<double> = true;
template <> inline constexpr bool is_float<f16> = true;
template <> inline constexpr bool is_float<bf16> = true;

template <class To, class From> __host__ __device__ inline To bits_as(From from)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

/* ---- The two small floats: to nearest even; NaN stays NaN. ------------------------------------------------------- */

__host__ __device__ inline float to_float(bf16 x)
{
    return bits_as<float>((uint32_t)x.bits << 16);
}

__host__ __device__ inline bf16 to_bf16(float value)
{
#ifdef __CUDA_ARCH__
    return bf16{__bfloat16_as_ushort(__float2bfloat16_rn(value))};
#else
    uint32_t bits = bits_as<uint32_t>(value);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
    return bf16{(uint16_t)(value != value ? quiet : rounded)};
#endif
}

__host__ __device__ inline float to_float(f16 x)
{
#ifdef __CUDA_ARCH__
    return __half2float(__ushort_as_half(x.bits));
#else
    uint32_t sign = (uint32_t)(x.bits & 0x8000) << 16, exponent = x.bits >> 10 & 31, fraction = x.bits & 0x3ff;
    uint32_t tiny = bits_as<uint32_t>((float)fraction * 0x1p-24f); /* zero or subnormal: fraction * 2^-24 */
    uint32_t large = (exponent == 31 ? 255u : exponent + 112) << 23 | fraction << 13;
    return bits_as<float>(sign | (exponent == 0 ? tiny : large));
#endif
}

__host__ __device__ inline f16 to_f16(float value)
{
#ifdef __CUDA_ARCH__
    return f16{__half_as_ushort(__float2half_rn(value))};
#else
    uint32_t bits = bits_as<uint32_t>(value), size = bits & 0x7fffffff, result;
    /* Below 2^-14 the result is a multiple of 2^-24, and adding 0.5 rounds to one. */
    uint32_t tiny = bits_as<uint32_t>(bits_as<float>(size < 0x38800000 ? size : 0) + 0.5f) - 0x3f000000;
    result = (size + 0xfff + (size >> 13 & 1) - 0x38000000) >> 13;
    if (size < 0x38800000) result = tiny;
    if (size >= 0x477ff000) result = 0x7c00; /* rounds to 65520 or more: infinity */
    if (size > 0x7f800000) result = 0x7e00;  /* NaN */
    return f16{(uint16_t)((bits >> 16 & 0x8000) | result)};
#endif
}

/* ---- To the type that is computed in, and back ------------------------------------------------------------------- */

__host__ __device__ inline float wide(float x) { return x; }
__host__ __device__ inline double wide(double x) { return x; }
__host__ __device__ inline float wide(f16 x) { return to_float(x); }
__host__ __device__ inline float wide(bf16 x) { return to_float(x); }
__host__ __device__ inline int64_t wide(int64_t x) { return x; }
__host__ __device__ inline int64_t wide(int32_t x) { return x; }
__host__ __device__ inline int64_t wide(uint8_t x) { return x; }
__host__ __device__ inline int64_t wide(truth x) { return x.byte != 0; }

template <class T> __host__ __device__ inline T narrow(compute_of<T> x)
{
    if constexpr (std::is_same_v<T, f16>) return to_f16(x);
    else if constexpr (std::is_same_v<T, bf16>) return to_bf16(x);
    else if constexpr (std::is_same_v<T, truth>) return truth{(uint8_t)(x != 0)};
    else return (T)x;
}

/* ---- Conversion between any two dtypes, as tr_cast() has it: integers wrap around, and become floats by way of double; floats
 * that become integers are truncated and held to the type's range, NaN becomes 0, and any number but 0 is true. */

template <class T> __host__ __device__ inline T from_double(double x)
{
    if constexpr (sizeof(T) == 8 && is_float<T>) return x;
    else if constexpr (is_float<T>) return narrow<T>((float)x);
    else {
        constexpr double least = sizeof(T) == 8 ? -0x1p63 : sizeof(T) == 4 ? -0x1p31 : 0;
        constexpr double most = sizeof(T) == 8 ? 0x1p63 : sizeof(T) == 4 ? 0x1p31 - 1 : 255;
        if (x != x) return T(0);
        if (x <= least) return (T)least;
        if (x >= most) return sizeof(T) == 8 ? (T)INT64_MAX : (T)most;
        return (T)x;
    }
}
template <> __host__ __device__ inline truth from_double<truth>(double x) { return truth{(uint8_t)(x != 0)}; }

/* ---- One element of a dtype that is known at run time only: where few are read or written. C: float or double */

template <class C> __device__ inline C load_as(tr_dtype dtype, const void *base, int64_t i)
{
    switch (dtype) {
    case TR_F32: return (C)((const float *)base)[i];
    case TR_F64: return (C)((const double *)base)[i];
    case TR_F16: return (C)to_float(((const f16 *)base)[i]);
    case TR_BF16: return (C)to_float(((const bf16 *)base)[i]);
    case TR_I64: return (C)((const int64_t *)base)[i];
    case TR_I32: return (C)((const int32_t *)base)[i];
    case TR_U8: return (C)((const uint8_t *)base)[i];
    default: return (C)(((const uint8_t *)base)[i] != 0);
    }
}

template <class C> __device__ inline void store_as(tr_dtype dtype, void *base, int64_t i, C x)
{
    if constexpr (!is_float<C>) { /* integers wrap around */
        switch (dtype) {
        case TR_I64: ((int64_t *)base)[i] = (int64_t)x; return;
        case TR_I32: ((int32_t *)base)[i] = (int32_t)x; return;
        case TR_U8: ((uint8_t *)base)[i] = (uint8_t)x; return;
        default: break;
        }
    }
    switch (dtype) {
    case TR_F32: ((float *)base)[i] = (float)(double)x; break;
    case TR_F64: ((double *)base)[i] = (double)x; break;
    case TR_F16: ((f16 *)base)[i] = to_f16((float)(double)x); break;
    case TR_BF16: ((bf16 *)base)[i] = to_bf16((float)(double)x); break;
    case TR_I64: ((int64_t *)base)[i] = from_double<int64_t>((double)x); break;
    case TR_I32: ((int32_t *)base)[i] = from_double<int32_t>((double)x); break;
    case TR_U8: ((uint8_t *)base)[i] = from_double<uint8_t>((double)x); break;
    default: ((uint8_t *)base)[i] = x != 0; break;
    }
}

/* The same of the dtypes that are computed in C alone: floats but f64 in float, f64 in double, integers in int64_t. */
template <class C> __device__ inline C load_wide(tr_dtype dtype, const void *base, int64_t i)
{
    if constexpr (std::is_same_v<C, double>) return ((const double *)base)[i];
    else if constexpr (std::is_same_v<C, float>) {
        if (dtype == TR_F32) return ((const float *)base)[i];
        return dtype == TR_F16 ? to_float(((const f16 *)base)[i]) : to_float(((const bf16 *)base)[i]);
    } else {
        switch (dtype) {
        case TR_I64: return ((const int64_t *)base)[i];
        case TR_I32: return ((const int32_t *)base)[i];
        case TR_U8: return ((const uint8_t *)base)[i];
        default: return ((const uint8_t *)base)[i] != 0;
        }
    }
}

template <class C> __device__ inline void store_narrow(tr_dtype dtype, void *base, int64_t i, C x)
{
    if constexpr (std::is_same_v<C, double>) ((double *)base)[i] = x;
    else if constexpr (std::is_same_v<C, float>) {
        if (dtype == TR_F32) ((float *)base)[i] = x;
        else if (dtype == TR_F16) ((f16 *)base)[i] = to_f16(x);
        else ((bf16 *)base)[i] = to_bf16(x);
    } else {
        switch (dtype) {
        case TR_I64: ((int64_t *)base)[i] = x; break;
        case TR_I32: ((int32_t *)base)[i] = (int32_t)x; break;
        case TR_U8: ((uint8_t *)base)[i] = (uint8_t)x; break;
        default: ((uint8_t *)base)[i] = x != 0; break;
        }
    }
}

/* An id or index: i64 or i32. */
__device__ inline int64_t load_id(tr_dtype dtype, const void *base, int64_t i)
{
    return dtype == TR_I64 ? ((const int64_t *)base)[i] : ((const int32_t *)base)[i];
}

/* ---- Choosing a template by dtype -------------------------------------------------------------------------------- */

template <class T> struct type_of { using type = T; };

/* f(type_of<T>()) for the storage type of a float dtype; TR_DECLINED for others. */
template <class F> inline tr_status for_float(tr_dtype dtype, F f)
{
    switch (dtype) {
    case TR_F32: return f(type_of<float>());
    case TR_F64: return f(type_of<double>());
    case TR_F16: return f(type_of<f16>());
    case TR_BF16: return f(type_of<bf16>());
    default: return TR_DECLINED;
    }
}

template <class F> inline tr_status for_integer(tr_dtype dtype, F f)
{
    switch (dtype) {
    case TR_I64: return f(type_of<int64_t>());
    case TR_I32: return f(type_of<int32_t>());
    case TR_U8: return f(type_of<uint8_t>());
    case TR_BOOL: return f(type_of<truth>());
    default: return TR_DECLINED;
    }
}

inline bool is_float_dtype(tr_dtype dtype)
{
    return dtype == TR_F32 || dtype == TR_F64 || dtype == TR_F16 || dtype == TR_BF16;
}

template <class F> inline tr_status for_any(tr_dtype dtype, F f)
{
    return is_float_dtype(dtype) ? for_float(dtype, f) : for_integer(dtype, f);
}

/* As bits: where elements only move. */
template <class F> inline tr_status for_bytes(size_t bytes, F f)
{
    switch (bytes) {
    case 1: return f(type_of<uint8_t>());
    case 2: return f(type_of<uint16_t>());
    case 4: return f(type_of<uint32_t>());
    default: return f(type_of<uint64_t>());
    }
}

/* The type computed in, alone: for kernels that read their numbers by load_as() or load_wide(). */
template <class F> inline tr_status for_compute(tr_dtype dtype, F f)
{
    return dtype == TR_F64 ? f(type_of<double>()) : f(type_of<float>());
}

template <class F> inline tr_status for_wide(tr_dtype dtype, F f)
{
    return is_float_dtype(dtype) ? for_compute(dtype, f) : f(type_of<int64_t>());
}

#endif
