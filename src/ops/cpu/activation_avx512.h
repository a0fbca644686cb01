/* Activations that a matrix product takes along: of an operand once it is packed, of the result while it is in the cache. */
#ifndef TR_OPS_CPU_ACTIVATION_AVX512_H
#define TR_OPS_CPU_ACTIVATION_AVX512_H

#include <trireme/ops.h>

/* x[i] = f(x[i]) for i < n; whole vectors of 16 are read and written. */
void tr__activate_avx512(tr_activation_kind f, float *x, int64_t n);
/* g[i] *= f'(x[i]), likewise. */
void tr__times_slope_avx512(tr_activation_kind f, float *g, const float *x, int64_t n);

#endif
