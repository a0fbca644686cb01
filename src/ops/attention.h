/* What a call of attention, self_attention or one of their gradients asks for, as all their kernels see it. */
#ifndef TR_OPS_ATTENTION_H
#define TR_OPS_ATTENTION_H

#include "ops/op.h"

/* A [batch, heads, rows, dim] view of memory; lse and masks have other last dimensions. */
typedef struct tr__heads {
    void *data; /* NULL: none */
    int64_t stride[4];
} tr__heads;

typedef struct tr__attention {
    tr_dtype dtype;
    tr_device device;
    int64_t batch, heads, queries, keys, dim;
    bool causal, grad; /* grad: a gradient is asked for */
    double scale;
    tr__heads q, k, v, o;
    tr__heads g, dq, dk, dv; /* of the gradients */
    tr__heads mask;          /* bool, [batch, heads, queries, keys] */
    tr__heads lse;           /* [batch, heads, queries]; f64 when dtype is, else f32 */
} tr__attention;

tr__attention tr__attention_of(const tr_op_call *call);

/* Kernels of one (batch, head), number batch * heads + head. next: the one that follows, which may be prefetched, or the same.
 * scratch: as many floats as the function before says, aligned to 64 bytes. */
typedef struct tr__attention_kernels {
    size_t (*forward_scratch)(const tr__attention *a);
    void (*forward)(const tr__attention *a, int64_t number, int64_t next, float *scratch);
    size_t (*backward_scratch)(const tr__attention *a);
    void (*backward)(const tr__attention *a, int64_t number, int64_t next, float *scratch);
} tr__attention_kernels;

/* Runs a call by them, on the threads of its device. */
tr_status tr__attention_run(const tr_op_call *call, const tr__attention_kernels *kernels);

/* Where the (batch, head) of that number starts. */
static inline int64_t tr__head_at(const tr__attention *a, const tr__heads *x, int64_t number)
{
    return number / a->heads * x->stride[0] + number % a->heads * x->stride[1];
}

/* How many keys, from the first, query i may see for being causal: none to all. */
static inline int64_t tr__keys_seen(const tr__attention *a, int64_t query)
{
    if (!a->causal) return a->keys;
    int64_t n = query + a->keys - a->queries + 1;
    return n < 0 ? 0 : n > a->keys ? a->keys : n;
}

#endif
