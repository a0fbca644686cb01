/* The CPU's own convolutions. */
#ifndef TR_OPS_CPU_CONV_CONV_H
#define TR_OPS_CPU_CONV_CONV_H

#include "ops/op.h"

/* Kernels of conv2d and its gradients: TR_DECLINED where oneDNN is faster. */
tr_status tr__cpu_conv(tr_op_call *call);
/* Whether these are the fastest; then oneDNN leaves the call to them. */
bool tr__cpu_conv_preferred(const tr_op_call *call);

#endif
