/*
 * The graph: a node per recorded op. Nodes hang from the tensors that they made and hold their inputs' nodes; the engine
 * (src/autograd/) walks them.
 */
#ifndef TR_OPS_NODE_H
#define TR_OPS_NODE_H

#include "ops/op.h"

/* A tensor that backward will read. Its storage, or, when a cheap op made it, the node that can make it again. */
typedef struct tr__saved {
    tr_tensor *tensor;     /* an alias outside the graph; or NULL */
    struct tr__node *maker;
    int output;            /* of maker */
    unsigned version;      /* of the storage when it was saved */
} tr__saved;

/* Where the gradient of an input goes: the output of a node, or a leaf; both NULL when it needs none. */
typedef struct tr__edge {
    struct tr__node *node;
    tr_tensor *leaf;
    int output;
} tr__edge;

typedef struct tr__node {
    atomic_int refs;
    const tr_op *op;
    uint64_t sequence;     /* later nodes have larger ones; unique in the process */
    int n_inputs, n_outputs;
    bool released;         /* its saved tensors have been given up: backward can not run again */
    tr__edge edges[TR_OP_MAX_INPUTS];
    tr__saved inputs[TR_OP_MAX_INPUTS];
    tr__saved outputs[TR_OP_MAX_OUTPUTS];
    tr_shape input_shapes[TR_OP_MAX_INPUTS]; /* for tr__grad_target; ndim -1 where there was no input */
    struct tr__node *next_dying;
    _Alignas(16) unsigned char attrs[];
} tr__node;

/* What a leaf that requires a gradient keeps. */
typedef struct tr__leaf {
    tr_tensor *grad;       /* NULL until there is one; a view of the arena's gradients when there is an arena */
    bool has_grad;         /* grad holds a value (an arena slot may be there without) */
    struct tr__arena *arena; /* NULL: gradients are tensors of their own */
    struct tr__hook *hooks;
    int next_hook;
} tr__leaf;

/* Records op's run: links the outputs to a new node when grad mode is on and an input requires a gradient. */
tr_status tr__record(const tr_op_call *call);
void tr__node_unref(tr__node *node);
/* Gives up what the node saved. */
void tr__node_release(tr__node *node);
/* The saved tensor itself, recomputed if need be; a reference of the caller's. NULL when nothing was saved there; in error
 * when it has been written to since, or given up. */
tr_tensor *tr__saved_get(const tr__node *node, const tr__saved *saved);
/* The leaf data of t, made at the first call; NULL without memory. */
tr__leaf *tr__leaf_of(tr_tensor *t);
void tr__leaf_free(tr__leaf *leaf);

#endif
