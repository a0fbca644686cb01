/* Which vector instructions this machine has: kernels for several are compiled, and one is chosen at run time. */
#ifndef TR_OPS_CPU_SIMD_ISA_H
#define TR_OPS_CPU_SIMD_ISA_H

#include <stdbool.h>

/* What files named *_avx512.c and *_avx2.c may use. */
static inline bool tr__has_avx512(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma");
#else
    return false;
#endif
}

/* And files named *_avx512bf16.c: bf16 dot products. */
static inline bool tr__has_avx512bf16(void)
{
#if defined(__x86_64__)
    return tr__has_avx512() && __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

static inline bool tr__has_avx2(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return false;
#endif
}

/* Of kernels that are compiled as name_avx512, name_avx2 and name_generic, those for this machine. */
#if defined(__x86_64__)
#define TR__OF_MACHINE(name) (*(tr__has_avx512() ? &name##_avx512 : tr__has_avx2() ? &name##_avx2 : &name##_generic))
#else
#define TR__OF_MACHINE(name) (name##_generic)
#endif

#endif
