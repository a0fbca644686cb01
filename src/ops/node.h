/*
 * The graph: a node per recorded op. A tensor holds the node that made it, a node the nodes of its inputs; the engine
 * (src/autograd/) walks them.
 */
#ifndef TR_OPS_NODE_H
#define TR_OPS_NODE_H

#include "device/capture.h"
#include "ops/op.h"

#include <pthread.h>

typedef struct tr__recompute_segment tr__recompute_segment; /* ops/segment.h */

/* A tensor saved for backward: the tensor; or, when a cheap op made it, the node that recomputes it; or its slot in a segment
 * of the graph that is recomputed. */
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

/* What backward knows of an input that was not saved. */
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
    uint64_t segment;      /* the number of the segment that must run before it can run again: the one that recorded it; 0: none */
    bool released;         /* its saved tensors have been released: backward cannot run again */
    bool graph_left;       /* an input's graph stayed at another worker (tensor/tensor.h): no gradient reaches it */
    unsigned char depth;   /* before it can run again, so many other nodes have to, one after the other; 0: what it saved is kept */
    /* Behind the struct, in its block of memory: */
    tr__edge *edges;       /* [n_inputs] */
    tr__input *inputs;     /* [n_inputs] */
    tr__saved *saved_inputs;  /* [n_inputs] */
    tr__saved *saved_outputs; /* [n_outputs] */
    unsigned *made;        /* [n_outputs], the versions of the outputs' storages when the op returned */
    void *attrs;           /* op->attrs_size bytes, aligned to 16 */
    struct tr__node *next_unreferenced;
} tr__node;

/* A backward function's call, with what the library needs of it. */
typedef struct tr__backward_step {
    tr_backward_call call; /* first: backward functions get its address */
    const tr__node *node;
    struct tr__backward *backward;
    bool retain; /* .retain_graph: this node may run again */
    bool detached; /* gradients of leaves go to a sink, not to leaf->grad */
    bool as_now; /* parameters that were written to since the forward are read as they are now */
    bool sole[TR_OP_MAX_INPUTS]; /* the gradient of input i is all that its leaf gets here, and nobody else reads the leaf */
} tr__backward_step;

/* The ranks over which a value of a sharded parameter is summed to be that of the whole. Made in the layers that know groups. */
typedef struct tr__spread {
    tr__object object;
    void *group; /* kept; the same group: the same ranks */
    tr_status (*add_up)(void *group, tr_status own, double *sum); /* own: a failure here, which is to be told to the others */
    void (*give_up)(void *group); /* this rank will not, for the thread's latest failure */
} tr__spread;

/* What a leaf that requires a gradient keeps. */
typedef struct tr__leaf {
    tr_tensor *grad;         /* NULL until there is one; a view of the arena's gradients when there is an arena */
    bool has_grad;           /* grad holds a value (an arena slot may be there without) */
    struct tr__arena *arena; /* the leaf's reference; NULL: its gradient is a tensor of its own */
    tr_tensor **arena_place; /* the arena's pointer to the leaf; cleared when the leaf is freed */
    struct tr__hook *_Atomic hooks; /* in the order they were added, also those removed while backwards call them */
    pthread_mutex_t hooks_lock; /* for the list, and: */
    int walks;               /* backwards that are calling the hooks, in any thread */
    int next_hook;
    struct tr__grad_consumer *consumer; /* uses the gradient up during backward; NULL: the gradient stays */
    atomic_int optimizers;   /* that have it among their parameters */
    atomic_int averagers;    /* that average its gradient over ranks, each with a replica of it: tr_ddp()s; or a tr_fully_shard() */
    struct tr__grad_averager *averager; /* the first of them, which calls the consumer if it is the only one; NULL: it has gone, or is on a device */
    tr__spread *shards;      /* a reference: over the ranks that have its other shards; NULL: it is whole here */
    tr__spread *stages;      /* a reference: over the ranks that have the other stages of its pipeline; NULL: there are none */
} tr__leaf;

/* The leaf's gradient is about to be cleared, written or added to; reads: whether there is one matters. Known to a capture. */
static inline tr_status tr__grad_touch(tr_tensor *leaf, bool reads)
{
    tr__capture *capture = tr__capture_now();
    return capture ? capture->leaf(capture, leaf, reads) : TR_OK;
}

struct tr__backward;

/* Consumes a leaf's gradient during backward, as an optimizer that steps there does. A failure ends the backward. */
typedef struct tr__grad_consumer {
    /* A backward will reach the leaf; it has run no node yet. */
    tr_status (*expect)(struct tr__grad_consumer *consumer, struct tr__backward *backward);
    /* The gradient is final, and averaged where the leaf has an averager; the hooks have run. */
    tr_status (*consume)(struct tr__grad_consumer *consumer);
    /* A gradient of which no more will arrive, by blocks of rows in order, instead: this one begins at row `first`. NULL: cannot. */
    tr_status (*consume_rows)(struct tr__grad_consumer *consumer, const tr_tensor *rows, int64_t first);
} tr__grad_consumer;

/* Averages a leaf's gradient over ranks once it is final, and calls the leaf's consumer then, as tr_ddp() does. */
typedef struct tr__grad_averager {
    /* A backward is about to compute the leaf's gradient, which a consumer will use up: may give it a place (leaf->grad). */
    tr_status (*lend)(struct tr__grad_averager *averager);
} tr__grad_averager;

/* For backward functions, of inputs[i] whose gradient is its leaf's sole one: who takes that by rows, in which case grad_inputs[i]
 * stays NULL; or NULL. What reads inputs[i] comes before. */
tr__grad_consumer *tr__takes_rows(const tr_backward_call *call, int i);

typedef struct tr__hook {
    tr_status (*function)(tr_tensor *leaf, tr_tensor *grad, void *user, struct tr__backward *backward);
    tr_status (*plain)(tr_tensor *leaf, tr_tensor *grad, void *user); /* or this one, a program's, without failed backwards */
    void *user;
    int number;
    bool removed;
    struct tr__hook *next;
} tr__hook;

/* Records op's run: links the outputs to a new node when grad mode is on and an input requires a gradient. An input
 * whose graph was left at another worker marks the node, or without one the outputs. */
tr_status tr__record_op(const tr_op_call *call);
/* Puts a node without inputs behind tensors that are outside every graph: op's backward gets the gradients of all. */
tr_status tr__record_boundary(const tr_op *op, const void *attrs, tr_tensor *const *outputs, int n);
/* Releases what the node saved. */
void tr__node_release(tr__node *node);
/* Reference counts of nodes. tr__node_drop() puts a node without references on a list, which tr__nodes_free() frees in a loop:
 * a graph can be a chain too long for recursion. */
tr__node *tr__node_keep(tr__node *node);
void tr__node_drop(tr__node *node, tr__node **unreferenced);
void tr__nodes_free(tr__node *unreferenced);
/* Where the gradient of t goes. */
tr__edge tr__edge_to(tr_tensor *t);
/* Takes, and drops, a reference to the edge's node or leaf. */
tr__edge tr__edge_keep(tr__edge edge);
void tr__edge_drop(tr__edge edge);
/* Saves t for backward, as a node does (_set), or t itself (_keep); releases what is saved, or only the tensor. */
tr_status tr__saved_set(tr__saved *saved, const tr_tensor *t, bool may_recompute);
tr_status tr__saved_keep(tr__saved *saved, const tr_tensor *t);
void tr__saved_release(tr__saved *saved, tr__node **unreferenced);
void tr__saved_drop_tensor(tr__saved *saved);
/* The saved tensor, recomputed if need be: a new reference. NULL when nothing was saved; in error when it was written to since,
 * unless it is a leaf's and as_now is set. */
tr_tensor *tr__saved_get(const tr__saved *saved, bool as_now);
/* Is it a leaf that requires a gradient, or did, before it was frozen? Then it has a tr__leaf. */
bool tr__is_parameter(const tr_tensor *t);

/* infer and kernel, without recording: recomputes saved tensors. */
tr_status tr__compute(tr_op_call *call);

#endif
