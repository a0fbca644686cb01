/*
 * Elementwise reduction over ranks: the kernels under every all_reduce. Each element is folded in rank order by one
 * rank, or by each in the same way, so all ranks hold the same bits, whatever the timing.
 *
 * f16 and bf16 are folded in f32 and rounded once. Integers wrap; their average is folded in 64 bits (u8: 32) and
 * rounds towards zero. The average of floats is the sum times 1/ranks. For MIN and MAX a NaN anywhere gives NaN. bool:
 * SUM and MAX are "any", PROD and MIN are "all"; an average of bool does not exist.
 */
#ifndef TR_COMM_ALGO_REDUCE_H
#define TR_COMM_ALGO_REDUCE_H

#include <trireme/comm.h>

/* out[k][i] = in[0][i] op in[1][i] op … op in[ranks - 1][i] for i in [0, count) and k in [0, outs). An out may be the
 * same memory as an in. No alignment is needed. */
typedef void (*tr__reduce_kernel)(const void *const *in, int ranks, void *const *out, int outs, int64_t count);
typedef tr__reduce_kernel tr__reduce_table[TR_DTYPE_COUNT][TR_REDUCE_OP_COUNT];

/* The fastest kernel for this processor; NULL when the operation does not exist for the dtype. */
tr__reduce_kernel tr__reduce_find(tr_dtype dtype, tr_reduce_op op);

extern const tr__reduce_table tr__reduce_plain, tr__reduce_avx2, tr__reduce_avx512;

#endif
