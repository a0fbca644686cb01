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

/* Where a (batch, head) starts; and the one with number batch * heads + head. */
static inline int64_t tr__heads_at(const tr__heads *x, int64_t batch, int64_t head)
{
    return batch * x->stride[0] + head * x->stride[1];
}
static inline int64_t tr__head_at(const tr__attention *a, const tr__heads *x, int64_t number)
{
    return tr__heads_at(x, number / a->heads, number % a->heads);
}

/* How many keys, from the first, query i may see for being causal: none to all. */
static inline int64_t tr__keys_seen(const tr__attention *a, int64_t query)
{
    if (!a->causal) return a->keys;
    int64_t n = query + a->keys - a->queries + 1;
    return n < 0 ? 0 : n > a->keys ? a->keys : n;
}

#endif
