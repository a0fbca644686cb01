/* Attention on the CPU: one (batch, head) at a time, by kernels for an instruction set. */
#ifndef TR_OPS_CPU_ATTENTION_H
#define TR_OPS_CPU_ATTENTION_H

#include "ops/attention.h"

tr_status tr__cpu_attention(tr_op_call *call);

/* One (batch, head): number batch * heads + head; f32, bf16 or f16 with any strides. next is fetched meanwhile: the one that
 * follows, or the same. scratch: as many floats as the function above says, aligned to 64 bytes. */
size_t tr__attention_forward_scratch_avx512(const tr__attention *a);
void tr__attention_forward_avx512(const tr__attention *a, int64_t number, int64_t next, float *scratch);
size_t tr__attention_backward_scratch_avx512(const tr__attention *a);
void tr__attention_backward_avx512(const tr__attention *a, int64_t number, int64_t next, float *scratch);

#endif
