/*
 * Attention on the CPU: written once (forward.h, backward.h), compiled for each kind of machine
 * (attention_avx512.c, …), which gives a table of functions each.
 */
#ifndef TR_OPS_CPU_ATTENTION_ATTENTION_H
#define TR_OPS_CPU_ATTENTION_ATTENTION_H

#include "ops/attention.h"

tr_status tr__cpu_attention(tr_op_call *call);

/* One (batch, head), number batch * heads + head; f32, bf16 or f16 with any strides. next: the one that follows, which is
 * prefetched, or the same. scratch: as many floats as the function before says, aligned to 64 bytes. */
typedef struct tr__attention_kernels {
    size_t (*forward_scratch)(const tr__attention *a);
    void (*forward)(const tr__attention *a, int64_t number, int64_t next, float *scratch);
    size_t (*backward_scratch)(const tr__attention *a);
    void (*backward)(const tr__attention *a, int64_t number, int64_t next, float *scratch);
} tr__attention_kernels;

#if defined(__x86_64__)
extern const tr__attention_kernels tr__attention_avx512, tr__attention_avx2;
/* bf16 dot products: the weights are rounded to bf16, too. Needs tr__has_avx512bf16(). */
extern const tr__attention_kernels tr__attention_avx512bf16;
#endif
extern const tr__attention_kernels tr__attention_generic;

#endif
