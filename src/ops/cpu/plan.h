/*
 * Convolutions and gemms on the CPU: which algorithm computes a call. It is chosen once per op, shape, dtypes and layout,
 * kept for the process, and named in profiles (tr__plan_name() in ops/op.h) and in the log (debug). The number of threads
 * has no say in it: results must not depend on it.
 */
#ifndef TR_OPS_CPU_PLAN_H
#define TR_OPS_CPU_PLAN_H

#include "ops/op.h"

/* The kernel of matmul, linear and its gradients, and of conv2d and its gradients: TR_DECLINED where the reference is best. */
tr_status tr__planned(tr_op_call *call);

#endif
