/* Which vector instructions kernels may use: those for several are compiled, and one is chosen at run time. */
#ifndef TR_BASE_ISA_H
#define TR_BASE_ISA_H

#include <trireme/base.h>

#include <stdbool.h>

/* Each has what the ones before it have. */
typedef enum tr__isa { TR__ISA_GENERIC, TR__ISA_AVX2, TR__ISA_AVX512, TR__ISA_AVX512BF16, TR__ISA_AMX, TR__ISA_FASTEST } tr__isa;

/* The most that TRIREME_ISA allows, whatever this machine has. TR__ISA_FASTEST, if it is not set: all that makes kernels faster.
 * Any thread. */
tr__isa tr__isa_allowed(void);
/* A failure when TRIREME_ISA names none. */
tr_status tr__isa_check(void);
/* Whether the compiler knew AMX, the processor has its tiles of bf16 and Linux lets this process use them, which is asked for once.
 * Any thread. */
bool tr__amx_permitted(void);

/* What files named *_avx512.c and *_avx2.c may use. */
static inline bool tr__has_avx512(void)
{
#if defined(__x86_64__)
    return tr__isa_allowed() >= TR__ISA_AVX512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma");
#else
    return false;
#endif
}

/* And files named *_avx512bf16.c: bf16 dot products. */
static inline bool tr__has_avx512bf16(void)
{
#if defined(__x86_64__)
    return tr__has_avx512() && tr__isa_allowed() >= TR__ISA_AVX512BF16 && __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

/* And files named *_amx.c: those, and tiles of bf16. */
static inline bool tr__has_amx(void)
{
    return tr__has_avx512bf16() && tr__isa_allowed() >= TR__ISA_AMX && tr__amx_permitted();
}

/* Whether kernels multiply bf16 by dot products. Intel's processors begin a dot product every other cycle (Sapphire Rapids, Emerald
 * Rapids), and two products of f32 in each: bf16 is converted to f32 there as it is read, unless TRIREME_ISA names avx512bf16. */
static inline bool tr__uses_bf16_dot(void)
{
#if defined(__x86_64__)
    return tr__has_avx512bf16() && (tr__isa_allowed() == TR__ISA_AVX512BF16 || !__builtin_cpu_is("intel"));
#else
    return false;
#endif
}

static inline bool tr__has_avx2(void)
{
#if defined(__x86_64__)
    return tr__isa_allowed() >= TR__ISA_AVX2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
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
