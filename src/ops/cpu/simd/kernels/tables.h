/*
 * The SIMD kernels: f32 arithmetic, also for bf16 and f16. They are written once, one header per family, on
 * vectors of the machine's width (vec.h), and compiled for each kind of machine (table_avx512.c, …) into a table each.
 */
#ifndef TR_OPS_CPU_SIMD_KERNELS_TABLES_H
#define TR_OPS_CPU_SIMD_KERNELS_TABLES_H

#include "ops/op.h"

#if defined(__x86_64__)
extern const tr__kernel tr__simd_avx512[TR__OP_COUNT];
extern const tr__kernel tr__simd_avx2[TR__OP_COUNT];
#endif
extern const tr__kernel tr__simd_generic[TR__OP_COUNT]; /* SSE2, NEON, or what the compiler makes of it */

#endif
