/*
 * The CPU's own convolutions, from tensors: Winograd's, direct ones, and by gemm. The plan says what suits a call. They compute a
 * call of conv2d or a gradient of it, whose sizes are s, but not the gradient of the bias.
 */
#ifndef TR_OPS_CPU_CONV_CONV_H
#define TR_OPS_CPU_CONV_CONV_H

#include "ops/cpu/conv/direct.h"
#include "ops/cpu/conv/winograd.h"
#include "ops/cpu/gemm/gemm.h"

tr_status tr__winograd_conv(const tr_op_call *call, const tr__conv2d *s);
/* Forward and the gradient of the weight; this one with vnni by the bf16 dot product. */
tr_status tr__direct_conv(const tr_op_call *call, const tr__conv2d *s, bool vnni);
const tr__direct_kernels *tr__direct_kernels_for(const tr__conv2d *s);
/* By a kernel that suits the dtypes. Forward and the gradient of x: only with one tap and no padding. */
tr_status tr__conv_gemm(const tr_op_call *call, const tr__conv2d *s, tr__gemm_kernel kernel);
/* x in dtype, channels-last, with the padding of s around it. */
tr_tensor *tr__conv_padded(tr_tensor *x, const tr__conv2d *s, tr_dtype dtype);

#endif
