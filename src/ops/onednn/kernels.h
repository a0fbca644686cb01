/* The kernels that oneDNN offers; each may answer TR_DECLINED. */
#ifndef TR_OPS_ONEDNN_KERNELS_H
#define TR_OPS_ONEDNN_KERNELS_H

#include "ops/gemm.h"

/* Whether it can compute p: the layouts of its matrices, and no activations. TR_DECLINED is then for bf16 and f16 on
 * machines where it has no fast implementation. */
bool tr__onednn_takes(const tr__gemm *p);
tr_status tr__onednn_gemm(const tr__gemm *p, tr_device device);
/* matmul, linear and its gradients, with the gradient of the bias: p is tr__gemm_of(call). */
tr_status tr__onednn_matmul(tr_op_call *call, const tr__gemm *p);
/* conv2d, conv2d_grad_input, conv2d_grad_weight. */
tr_status tr__onednn_conv(tr_op_call *call);
/* Whether it multiplies bf16 by matrix units (AMX). */
bool tr__onednn_has_matrix_units(void);
/* "oneDNN 2.6.0 for avx512_core": which kernels it has here, as far as ONEDNN_MAX_CPU_ISA lets it. Returns text. */
enum { TR__ONEDNN_TEXT = 64 };
char *tr__onednn_text(char text[TR__ONEDNN_TEXT]);

#endif
