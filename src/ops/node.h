/*
 * The graph: a node per recorded op. Nodes hang from the tensors that they made and hold their inputs' nodes; the engine
 * (src/autograd/) walks them.
 */
#ifndef TR_OPS_NODE_H
#define TR_OPS_NODE_H

#include "ops/op.h"

typedef struct tr__recompute_segment tr__recompute_segment; /* ops/segment.h */

/* A tensor that backward will read. Its storage; or, when a cheap op made it, the node that can make it again; or the place
 * that it has in a segment of the graph that is computed again. */
typedef struct tr__saved {
    tr_tensor *tensor;     /* an alias outside the graph; or NULL */
    struct tr__node *maker;
    tr__recompute_segment *segment;
    int output;            /* of maker, or the slot in segment */
    unsigned version;      /* of the storage when it was saved */
    bool of_leaf;          /* tensor is a leaf or a view of one */
} tr__saved;

/* Where the gradient of an input goes: the output of a node, or a leaf; both NULL when it needs none. */
typedef struct tr__edge {
    struct tr__node *node;
    tr_tensor *leaf;
    int output;
} tr__edge;

/* What is known of an input after it has gone. */
typedef struct tr__input {
    tr_shape shape;
    tr_dtype dtype;
    tr_device device;
} tr__input;

typedef struct tr__node {
    atomic_int refs;
    const tr_op *op;
    uint64_t sequence;     /* later nodes have larger ones; unique in the process */
    int n_inputs, n_outputs;
    bool released;         /* its saved tensors have been given up: backward can not run again */
    bool graph_left;       /* so has one of its inputs (tensor/tensor.h), which no gradient will reach */
    /* Behind the struct, in its block of memory: */
    tr__edge *edges;       /* [n_inputs] */
    tr__input *inputs;     /* [n_inputs] */
    tr__saved *saved_inputs;  /* [n_inputs] */
    tr__saved *saved_outputs; /* [n_outputs] */
    unsigned *made;        /* [n_outputs], the versions of their storages when the op had made them */
    void *attrs;           /* op->attrs_size bytes, aligned to 16 */
    struct tr__node *next_dying;
} tr__node;

/* A backward function's call, with what the library keeps beside it. */
typedef struct tr__backward_step {
    tr_backward_call call; /* first: backward functions get its address */
    const tr__node *node;
    bool retain; /* the graph is kept: this node may be run again */
    bool apart;  /* gradients of leaves do not go to the leaves */
    bool as_now; /* parameters that were written to since the forward are taken as they are now */
} tr__backward_step;

/* The ranks over which something of a parameter is summed to be that of the whole; made above, where groups are known. */
typedef struct tr__spread {
    tr__object object;
    void *group; /* kept; the same group: the same ranks */
    tr_status (*add_up)(void *group, double *sum);
} tr__spread;

/* What a leaf that requires a gradient keeps. */
typedef struct tr__leaf {
    tr_tensor *grad;         /* NULL until there is one; a view of the arena's gradients when there is an arena */
    bool has_grad;           /* grad holds a value (an arena slot may be there without) */
    struct tr__arena *arena; /* the leaf's reference; NULL: its gradient is a tensor of its own */
    tr_tensor **arena_place; /* where the arena notes the leaf; cleared when the leaf goes */
    struct tr__hook *hooks;  /* in the order they were added, also those removed from within one */
    atomic_int walks;        /* backwards that are calling them */
    int next_hook;
    struct tr__taker *taker; /* who uses the gradient up during backward; NULL: nobody, it stays */
    atomic_int optimizers;   /* that have it among their parameters */
    atomic_int averagers;    /* that average its gradient over ranks, each with a replica of it: tr_ddp()s */
    tr__spread *shards;      /* a reference: over the ranks that have its other shards; NULL: it is whole here */
    tr__spread *stages;      /* a reference: over the ranks that have the other stages of its pipeline; NULL: there are none */
} tr__leaf;

struct tr__backward;

/* Who uses a leaf's gradient up during backward, as an optimizer that steps there. A failure ends the backward. */
typedef struct tr__taker {
    /* A backward that has run nothing yet will come to the leaf. */
    tr_status (*meet)(struct tr__taker *taker, struct tr__backward *backward);
    /* The gradient is final, and the hooks have seen it. */
    tr_status (*take)(struct tr__taker *taker);
} tr__taker;

typedef struct tr__hook {
    tr_status (*function)(tr_tensor *leaf, tr_tensor *grad, void *user, struct tr__backward *backward);
    void *user;
    void *owned; /* freed with the hook */
    int number;
    atomic_bool removed;
    struct tr__hook *next;
} tr__hook;

/* Records op's run: links the outputs to a new node when grad mode is on and an input requires a gradient. An input
 * whose graph was left at another worker marks the node, or without one the outputs. */
tr_status tr__record_op(const tr_op_call *call);
/* Puts a node without inputs behind tensors that are outside every graph: op's backward gets the gradients of all. */
tr_status tr__record_boundary(const tr_op *op, const void *attrs, tr_tensor *const *outputs, int n);
/* Gives up what the node saved. */
void tr__node_release(tr__node *node);
/* References to nodes: one that lost its last goes on the list of the dying, which tr__nodes_bury() ends one after the other,
 * not one inside the other, as a graph can be a chain of any length. */
void tr__node_keep(tr__node *node);
void tr__node_drop(tr__node *node, tr__node **dying);
void tr__nodes_bury(tr__node *dying);
/* Saves t for backward, as a node does; t itself; and gives it up, or only the tensor. */
tr_status tr__saved_set(tr__saved *saved, const tr_tensor *t, bool may_recompute);
tr_status tr__saved_keep(tr__saved *saved, const tr_tensor *t);
void tr__saved_give_up(tr__saved *saved, tr__node **dying);
void tr__saved_drop_tensor(tr__saved *saved);
/* The saved tensor itself, recomputed if need be, with a reference of the caller's. NULL when nothing was saved there; in
 * error when it has been written to since, unless the backward runs apart, which takes leaves as they are now. */
tr_tensor *tr__saved_get(const tr__saved *saved, bool apart);
/* The leaf data of t, made at the first call; NULL without memory. */
tr__leaf *tr__leaf_of(tr_tensor *t);
/* Is it a leaf that requires a gradient, or did, before it was frozen? Then it has a tr__leaf. */
bool tr__is_parameter(const tr_tensor *t);

/* infer and kernel, without recording: how saved tensors are made again. */
tr_status tr__compute(tr_op_call *call);

#endif
