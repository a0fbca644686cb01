/* Convolutions as gemm: implicit im2col, one row of taps at a time. */
#ifndef TR_OPS_CPU_CONV_CONV_GEMM_H
#define TR_OPS_CPU_CONV_CONV_GEMM_H

#include "ops/conv.h"
#include "ops/cpu/gemm/gemm.h"

/* x in dtype, channels-last, with the padding of s around it. */
tr_tensor *tr__conv_padded(tr_tensor *x, const tr__conv2d *s, tr_dtype dtype);
/* By a kernel that suits the dtypes. Forward and the gradient of x: only with one tap and no padding. Does not compute the
 * gradient of the bias. */
tr_status tr__conv_gemm(const tr_op_call *call, const tr__conv2d *s, tr__gemm_kernel kernel);

#endif
