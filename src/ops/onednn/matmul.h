/* oneDNN's matmul primitives for 16-bit floats, kept by what they compute: making one takes a tenth of a millisecond. */
#ifndef TR_OPS_ONEDNN_MATMUL_H
#define TR_OPS_ONEDNN_MATMUL_H

#include "ops/onednn/api.h"
#include "ops/product.h"

/* c: [m, n] (+)= a: [m, k] b: [k, n] + bias: [n]; strides in elements. All fields count when two are compared. */
typedef struct tr__matmul_key {
    int64_t m, n, k, a_row, a_column, b_row, b_column, c_row;
    int64_t dtype, with_bias, accumulate;
} tr__matmul_key;

typedef struct tr__matmul tr__matmul;

/* From the cache, or made: one reference for the caller. *matmul is NULL, with TR__DECLINED, where oneDNN has nothing but a
 * slow reference implementation. Thread-safe. */
tr_status tr__matmul_get(const tr__matmul_key *key, tr__matmul **matmul);
void tr__matmul_unref(tr__matmul *matmul);
/* scratch: tr__matmul_scratch() bytes. */
size_t tr__matmul_scratch(const tr__matmul *matmul);
dnnl_status_t tr__matmul_run(const tr__matmul *matmul, const void *a, const void *b, const void *bias, void *c, void *scratch);

#endif
