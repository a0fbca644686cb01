/*
 * A loop over the elements of a shape, with several tensors walked along: broadcast, of any strides. It follows the memory
 * of the first. Dimensions that lie one after the other in all of them are taken as one, so tensors that are dense in one
 * order are one run.
 */
#ifndef TR_TENSOR_LOOP_H
#define TR_TENSOR_LOOP_H

#include "tensor/tensor.h"

enum { TR__LOOP_TENSORS = 4 };

typedef struct tr__loop {
    tr_shape shape;   /* sorted and merged; at least one dimension */
    int n;            /* tensors */
    char *base[TR__LOOP_TENSORS];
    tr_dtype dtype[TR__LOOP_TENSORS];
    int64_t stride[TR__LOOP_TENSORS][TR_MAX_DIMS]; /* elements */
    int64_t bytes[TR__LOOP_TENSORS];               /* per element */
} tr__loop;

/* The tensors must broadcast to shape. */
void tr__loop_init(tr__loop *loop, tr_shape shape, const tr_tensor *const *tensors, int n);

/* The stride of tensor k within a run. */
static inline int64_t tr__loop_step(const tr__loop *loop, int k) { return loop->stride[k][loop->shape.ndim - 1]; }

/* Works on a run of n elements: tensor k's lie at at[k], tr__loop_step(loop, k) apart. Called from several threads. */
typedef void (*tr__loop_body)(const tr__loop *loop, char *const *at, int64_t n, const void *arg);
void tr__loop_run(const tr__loop *loop, tr__pool *pool, tr__loop_body body, const void *arg);

/* DO(type) of an unsigned type of so many bytes: 1, 2, 4 or 8. */
#define TR__OF_BYTES(bytes, DO)     \
    switch (bytes) {                \
    case 1: DO(uint8_t) break;      \
    case 2: DO(uint16_t) break;     \
    case 4: DO(uint32_t) break;     \
    default: DO(uint64_t) break;    \
    }

/* Elements in a piece of work that is worth another thread. */
enum { TR__GRAIN = 32 << 10 };

#endif
