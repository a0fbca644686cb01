/* oneDNN's matmul primitives for 16-bit floats. */
#ifndef TR_OPS_ONEDNN_MATMUL_H
#define TR_OPS_ONEDNN_MATMUL_H

#include "ops/onednn/primitive.h"
#include "ops/gemm.h"

/* c: [m, n] (+)= a: [m, k] b: [k, n] + bias: [n]; strides in elements. */
typedef struct tr__matmul {
    int64_t m, n, k, a_row, a_column, b_row, b_column, c_row;
    int64_t dtype, with_bias, accumulate;
} tr__matmul;

/* As tr__primitive_get(); its parts are a, b, c and bias. */
tr_status tr__matmul_get(const tr__matmul *matmul, tr__primitive **out);

#endif
