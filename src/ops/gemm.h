/*
 * The matrix products of the matmul family, as all their kernels see them: c = f(a) h(b) (+ bias) (+ residual) (+ c), or
 * c = a b * f'(x) (+ c), f and h activations or none. Each matrix is a tensor's memory read through two axes, and an axis is
 * one or more of the tensor's dimensions taken together.
 */
#ifndef TR_OPS_GEMM_H
#define TR_OPS_GEMM_H

#include "ops/op.h"

/* Dimensions read as one. Neighbours that strides allow to merge are merged, so ndim is 1 wherever it can be. */
typedef struct tr__axis {
    int64_t n;
    int ndim; /* at least 1 */
    int64_t dim[TR_MAX_DIMS], stride[TR_MAX_DIMS];
} tr__axis;

typedef struct tr__matrix {
    tr_dtype dtype;
    void *data;
    tr__axis row, column;
} tr__matrix;

typedef struct tr__gemm {
    tr__matrix a, b, c;      /* a: [m, k], b: [k, n], c: [m, n] */
    const tr_tensor *bias;   /* [n] or NULL */
    tr__matrix residual;     /* [m, n]; data NULL: none */
    bool accumulate;         /* add to what c holds */
    tr_activation_kind a_activation, b_activation, slope;
    tr__matrix slope_at;     /* x, [m, n]: the product is multiplied by the slope that the activation has there */
    tr__axis a_batch, b_batch, c_batch; /* of one length: as many products, at these offsets */
} tr__gemm;

static inline bool tr__gemm_activates(const tr__gemm *p)
{
    return p->a_activation || p->b_activation || p->slope;
}

static inline tr__matrix tr__matrix_transposed(tr__matrix m)
{
    return (tr__matrix){m.dtype, m.data, m.column, m.row};
}

static inline bool tr__axis_contiguous(const tr__axis *axis)
{
    return axis->ndim == 1 && (axis->stride[0] == 1 || axis->n == 1);
}

tr__axis tr__axis_of(int ndim, const int64_t *dim, const int64_t *stride);

/* Elements from the start to position i of the axis. */
static inline int64_t tr__axis_at(const tr__axis *axis, int64_t i)
{
    if (axis->ndim == 1) return i * axis->stride[0];
    int64_t offset = 0;
    for (int d = axis->ndim - 1; d >= 0; d--) {
        offset += i % axis->dim[d] * axis->stride[d];
        i /= axis->dim[d];
    }
    return offset;
}

/* The product that a call of matmul, linear, linear_grad_input or linear_grad_weight asks for. The last is the one of
 * dweight; its outputs[0] may be NULL, then ask for the bias gradient only. */
tr__gemm tr__gemm_of(const tr_op_call *call);

/* The second half of linear_grad_weight, for kernels that compute the first: dbias (+)= the sums of g's columns. Does
 * nothing for other ops, or without outputs[1]. */
tr_status tr__bias_gradient(const tr_op_call *call);
/* x: [..., n] as a matrix: all dimensions but the last are rows. */
tr__matrix tr__matrix_of(const tr_tensor *x);

#endif
