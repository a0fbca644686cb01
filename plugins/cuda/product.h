/* Products of matrices as matmul and linear see them: matmul.cu has kernels for any, cublaslt.cu is asked first. */
#ifndef TRIREME_CUDA_PRODUCT_H
#define TRIREME_CUDA_PRODUCT_H

#include "kernel.h"

/* A tensor's memory read as a matrix through two axes, an axis being one or more of its dimensions taken together. */
struct matrix_view {
    tr_dtype dtype;
    void *data; /* NULL: none */
    axis row, column;
};

/* c = a b (+ bias) (+ residual) (+ c), times the slope of GELU at gelu_input if that is given. */
struct product {
    matrix_view a, b, c;                /* a: [m, k], b: [k, n], c: [m, n] */
    axis a_batch, b_batch, c_batch;     /* of one length: as many products, at these offsets */
    const tr_device_tensor *bias;       /* [n], or NULL */
    matrix_view residual;               /* [m, n] */
    matrix_view gelu_input;             /* [m, n]; only for cuBLASLt */
    bool accumulate;                    /* add to what c holds */
};

/* By cuBLASLt. TR_DECLINED: it is not there, or has nothing for these dtypes, strides and sizes. */
tr_status cublaslt_product(const job &j, const product &p);

#endif
