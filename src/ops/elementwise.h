/*
 * Elementwise ops: out[i] = f(in0[i], in1[i], …). An op gives the loop over contiguous numbers; strides, broadcasting,
 * dtypes and threads are dealt with here.
 */
#ifndef TR_OPS_ELEMENTWISE_H
#define TR_OPS_ELEMENTWISE_H

#include "ops/op.h"

enum { TR__ELEMENTWISE_INPUTS = 3 };

/* Loops over n contiguous numbers; out may be one of the inputs. f32 serves f32, bf16 and f16, the latter by way of blocks of
 * f32 unless `half` takes them as they are; f64 serves f64, and the smaller floats when there is no f32; i64 the integers and
 * bool. */
typedef struct tr__bodies {
    void (*half)(tr_dtype dtype, void *out, const void *const *in, int64_t n, const void *attrs);
    void (*f32)(float *out, const float *const *in, int64_t n, const void *attrs);
    void (*f64)(double *out, const double *const *in, int64_t n, const void *attrs);
    void (*i64)(int64_t *out, const int64_t *const *in, int64_t n, const void *attrs);
} tr__bodies;

/* Runs an op of 1 to 3 inputs and one output of their dtype; TR_DECLINED when no body is for that dtype. */
tr_status tr__elementwise(tr_op_call *call, const tr__bodies *bodies);

/* Shape rules. floats: integers are refused. */
tr_status tr__elementwise_infer(tr_op_call *call, bool floats);

#endif
