/* What other layers need of the engine beyond <trireme/autograd.h>. */
#ifndef TR_AUTOGRAD_ENGINE_H
#define TR_AUTOGRAD_ENGINE_H

#include "ops/node.h"

#include <trireme/autograd.h>

/* A backward under way. */
typedef struct tr__backward tr__backward;

/* As tr_grad_hook, with the backward that it is called from. */
typedef tr_status (*tr__leaf_hook)(tr_tensor *leaf, tr_tensor *grad, void *user, tr__backward *backward);
int tr__leaf_hook_add(tr_tensor *leaf, tr__leaf_hook hook, void *user);

/* A failure of `what` when an optimizer steps one of these leaves in backward, which it cannot have, for that reason. */
tr_status tr__gradients_stay(const char *what, const tr_tensor_list *leaves, const char *why);

/* What is to be called at the end of a backward. */
typedef struct tr__backward_ending {
    /* Once, also when it fails: status and the thread's latest failure then say why. What it returns becomes the backward's
     * status when that was TR_OK. */
    tr_status (*finish)(void *user, tr_status status);
    /* The backward has failed, with this status and the thread's latest failure, while finish() may be waiting for others: it
     * is to come back soon. From another thread, also when finish() has not begun, or has returned: endings come one after the
     * other, and another's may be the one that waits. */
    void (*give_up)(void *user, const tr__backward *backward, tr_status status);
    void *user;
    void *held; /* an object that both need, kept until neither can be called any more; or NULL */
} tr__backward_ending;
/* No memory is an error. */
tr_status tr__backward_at_end(tr__backward *backward, tr__backward_ending ending);

/*
 * A backward apart: its roots get their gradients one after the other, from elsewhere, and the gradients of leaves do not
 * go to the leaves. Distributed autograd runs one on each worker. Several may go over the same leaves at a time. Hooks of
 * leaves run as ever, on what ends->leaf made of the gradient; parameters that were written to since the forward are
 * taken as they are now, they and views of them, also where outputs are made again from them.
 */
typedef struct tr__backward_ends {
    void *user;
    int64_t deadline_ns; /* who waits for others in a hook or an ending waits no longer; 0: as long as ever */
    /* The gradient of a leaf is final for this backward. *sum, which is grad: becomes what hooks see. */
    tr_status (*leaf)(void *user, tr_tensor *leaf, tr_tensor *grad, tr_tensor **sum);
    /* What there is of a leaf's gradient (NULL: nothing), and what it becomes: a copy. */
    tr_tensor *(*get)(void *user, const tr_tensor *leaf);
    tr_status (*put)(void *user, tr_tensor *leaf, tr_tensor *grad);
    /* A leaf's gradient will not change any more in this backward: its hooks have run. */
    tr_status (*complete)(void *user, tr_tensor *leaf);
    /* A node of a TR__OP_BOUNDARY op takes part. */
    tr_status (*meet)(void *user, const tr__node *node);
    /* A node takes part one of whose inputs has left its graph at another worker. */
    void (*graph_left)(void *user, const tr__node *node);
    /* All gradients of its outputs are here (NULL: none arrived for that one): they go on elsewhere. */
    tr_status (*leave)(void *user, const tr__node *node, tr_tensor *const *grads);
} tr__backward_ends;

/* NULL without memory. ends is not copied. */
tr__backward *tr__backward_new(const tr__backward_ends *ends, bool retain);
/* One gradient more will arrive over the edge, from outside the graph. Before anything runs: nodes count what they wait
 * for. The caller keeps the nodes alive. */
tr_status tr__backward_expect(tr__backward *backward, tr__edge edge);
/* It has arrived; NULL: there is none, after all. */
tr_status tr__backward_arrive(tr__backward *backward, tr__edge edge, tr_tensor *gradient);
/* Runs what has all it waits for. */
tr_status tr__backward_run(tr__backward *backward);
/* Has everything run? */
bool tr__backward_done(const tr__backward *backward);
/* What was given for a backward apart; NULL: gradients go to the leaves. */
const tr__backward_ends *tr__backward_apart(const tr__backward *backward);
/* From a leaf's hook, of a backward apart: its gradient is not complete yet. Who says so puts it in and calls complete(). */
void tr__backward_defer(tr__backward *backward);
/* When everything has run: calls what was to be called at the end, which may wait for others. */
tr_status tr__backward_finish(tr__backward *backward, tr_status status);
/* Of another thread, while that is going on: the backward has failed. */
void tr__backward_give_up(const tr__backward *backward, tr_status status);
/* Frees it; finishes it before that, if that has not been done. */
tr_status tr__backward_end(tr__backward *backward, tr_status status);

/* As tr_backward(). as_now: parameters that were written to since the forward are taken as they are now; for a graph inside a
 * node, whose backward is told which by tr__as_now(). */
tr_status tr__backward_to_leaves(const tr_backward_options *options, bool as_now);

/* Where the gradient of t goes. */
tr__edge tr__edge_to(tr_tensor *t);
/* References to what the edge leads to. */
tr__edge tr__edge_keep(tr__edge edge);
void tr__edge_drop(tr__edge edge);
/* Can this root be differentiated? As tr_backward() asks. */
tr_status tr__backward_check_root(const tr_backward_options *options);

#endif
