/* Matrix products by our own tiles. */
#ifndef TR_OPS_CPU_PRODUCT_H
#define TR_OPS_CPU_PRODUCT_H

#include "ops/product.h"

/* Kernels of matmul, linear and its gradients. */
tr_status tr__cpu_product(tr_op_call *call);

/* Whether these kernels are the best for the product on this machine: then oneDNN leaves it to them. With AVX2 or
 * AVX-512 they are as fast as its sgemm at its best, faster on gradients of weights, and take biases, residuals, activations
 * and the gradients of biases along. */
bool tr__cpu_product_wanted(const tr__product *p);
/* A product that is not one of many, with all threads of the device. false: no memory. */
bool tr__cpu_multiply(const tr__product *p, tr_device device);

/* One of the products of p, at the given offsets in elements; any float dtypes but f64, any strides; threads of pool share
 * the work. a and b may have dtypes of their own, as c, bias and residual may. */
typedef struct tr__product_at {
    const tr__product *p;
    int64_t a, b, c;
    float *a_sums; /* [m] or NULL: the sums of a's rows, whose columns must be contiguous, are added to it */
    float *b_sums; /* [n] or NULL: the sums of b's columns are */
    tr__pool *pool;
    tr_device device;
} tr__product_at;

/* Written once (product_simd.h), compiled for each kind of machine. false: no memory. */
typedef bool (*tr__product_kernel)(const tr__product_at *at);
#if defined(__x86_64__)
bool tr__product_avx512(const tr__product_at *at);
/* Rounds a and b to bf16 and multiplies these; where tr__has_avx512bf16(). */
bool tr__product_avx512bf16(const tr__product_at *at);
bool tr__product_avx2(const tr__product_at *at);
#endif
bool tr__product_generic(const tr__product_at *at);

#endif
