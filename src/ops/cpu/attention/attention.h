/*
 * Attention on the CPU: written once (forward.h, backward.h), compiled for each kind of machine
 * (attention_avx512.c, …), which gives a table of functions each.
 */
#ifndef TR_OPS_CPU_ATTENTION_ATTENTION_H
#define TR_OPS_CPU_ATTENTION_ATTENTION_H

#include "ops/attention.h"

tr_status tr__cpu_attention(tr_op_call *call);

/* Their heads: f32, bf16 or f16 with any strides. */
#if defined(__x86_64__)
extern const tr__attention_kernels tr__attention_avx512, tr__attention_avx2;
/* bf16 dot products: the weights are rounded to bf16, too. Needs tr__has_avx512bf16(). */
extern const tr__attention_kernels tr__attention_avx512bf16;
/* The same by the tiles of AMX. Needs tr__has_amx(). */
extern const tr__attention_kernels tr__attention_amx;
#endif
extern const tr__attention_kernels tr__attention_generic;

#endif
