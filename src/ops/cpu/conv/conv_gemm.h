/* Convolutions as gemm: implicit im2col, one row of taps at a time. */
#ifndef TR_OPS_CPU_CONV_CONV_GEMM_H
#define TR_OPS_CPU_CONV_CONV_GEMM_H

#include "ops/conv.h"

/* Whether gemm is the fastest for the call, whose sizes are s, on this machine. */
bool tr__conv_gemm_preferred(const tr_op_call *call, const tr__conv2d *s);
/* x in dtype, channels-last, with the padding of s around it. */
tr_tensor *tr__conv_padded(tr_tensor *x, const tr__conv2d *s, tr_dtype dtype);
/* Does not compute the gradient of the bias. */
tr_status tr__conv_gemm(const tr_op_call *call, const tr__conv2d *s);

#endif
