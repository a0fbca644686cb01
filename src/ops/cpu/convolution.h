/* Convolutions by our own kernels. */
#ifndef TR_OPS_CPU_CONVOLUTION_H
#define TR_OPS_CPU_CONVOLUTION_H

#include "ops/op.h"

/* Kernels of conv2d and its gradients: TR_DECLINED where they are not the best. */
tr_status tr__cpu_convolution(tr_op_call *call);
/* Whether they are: then oneDNN leaves it to them. */
bool tr__cpu_convolution_wanted(const tr_op_call *call);

#endif
