/* What other layers need of the engine beyond <trireme/autograd.h>. */
#ifndef TR_AUTOGRAD_ENGINE_H
#define TR_AUTOGRAD_ENGINE_H

#include "ops/node.h"

#include <trireme/autograd.h>

/* A running backward. */
typedef struct tr__backward tr__backward;

/* Like tr_grad_hook, and gets the backward that calls it. grad is NULL if the backward failed (the thread's latest failure) before
 * this gradient was final; only leaves with averagers are called so. */
typedef tr_status (*tr__leaf_hook)(tr_tensor *leaf, tr_tensor *grad, void *user, tr__backward *backward);
int tr__leaf_hook_add(tr_tensor *leaf, tr__leaf_hook hook, void *user);
/* A backward's way through a leaf's hooks: the first, then the next behind each, at last NULL. They stay where they are until then,
 * or until the backward leaves before. */
struct tr__hook *tr__hooks_next(struct tr__leaf *leaf, const struct tr__hook *before);
void tr__hooks_leave(struct tr__leaf *leaf);

/* Fails when an optimizer steps one of these leaves in backward: `what` needs their gradients, for the reason `why`. */
tr_status tr__gradients_stay(const char *what, const tr_tensor_list *leaves, const char *why);

/* Called at the end of a backward. */
typedef struct tr__backward_callback {
    /* Once, also after a failure: status and the thread's latest failure then say why. Its result becomes the backward's status
     * when that was TR_OK. */
    tr_status (*finish)(void *user, tr_status status);
    /* The backward has failed, with this status and the thread's latest failure: a finish() that waits for other ranks must
     * return soon. Called from another thread, also before finish() has begun or after it has returned, as the finish() of
     * another callback may be the one that waits. Only detached backwards are cancelled: NULL for a callback that is never added
     * to one. */
    void (*cancel)(void *user, const tr__backward *backward, tr_status status);
    void *user;
    void *held; /* an object that both need, referenced until neither can be called any more; or NULL */
    bool last;  /* after all that are not: it uses what these have averaged */
} tr__backward_callback;
/* Adds a callback. */
tr_status tr__backward_on_end(tr__backward *backward, tr__backward_callback callback);

/*
 * The gradient sink of a detached backward: gradients of leaves go there, not to leaf->grad, and the gradients of its roots
 * arrive one by one. Distributed autograd runs one on each worker; several may share leaves at a time. Hooks of leaves run as
 * usual, on what sink->leaf made of the gradient. Parameters that were written to since the forward, and views of them, are
 * read as they are now, also where outputs are recomputed from them.
 */
typedef struct tr__gradient_sink {
    void *user;
    int64_t deadline_ns; /* hooks and callbacks wait for others no longer than that; 0: no deadline */
    /* The gradient of a leaf is final for this backward. *sum, which is grad: becomes what hooks see. */
    tr_status (*leaf)(void *user, tr_tensor *leaf, tr_tensor *grad, tr_tensor **sum);
    /* The leaf's gradient so far (NULL: none), and a new value for it, which is copied. */
    tr_tensor *(*get)(void *user, const tr_tensor *leaf);
    tr_status (*put)(void *user, tr_tensor *leaf, tr_tensor *grad);
    /* The leaf's gradient is final in this backward: its hooks have run. */
    tr_status (*complete)(void *user, tr_tensor *leaf);
    /* The graph contains a node of a TR__OP_BOUNDARY op. */
    tr_status (*enter)(void *user, const tr__node *node);
    /* The graph contains a node with an input whose graph stayed at another worker. */
    void (*graph_left)(void *user, const tr__node *node);
    /* All gradients of a boundary node's outputs have arrived (NULL: no gradient for that one): send them on. */
    tr_status (*leave)(void *user, const tr__node *node, tr_tensor *const *grads);
} tr__gradient_sink;

/* A detached backward. NULL: out of memory. sink is not copied. */
tr__backward *tr__backward_new(const tr__gradient_sink *sink, bool retain);
/* Announces one more gradient that will arrive over the edge from outside the graph. Only before anything runs, as nodes count
 * what they wait for. The caller keeps the nodes alive. */
tr_status tr__backward_expect(tr__backward *backward, tr__edge edge);
/* An announced gradient has arrived; NULL: there is none, after all. */
tr_status tr__backward_arrive(tr__backward *backward, tr__edge edge, tr_tensor *gradient);
/* Runs all nodes that are ready. */
tr_status tr__backward_run(tr__backward *backward);
/* Have all nodes run? */
bool tr__backward_done(const tr__backward *backward);
/* The sink of a detached backward; NULL: gradients go to the leaves. */
const tr__gradient_sink *tr__backward_sink(const tr__backward *backward);
/* For backward functions: the backward that calls them. */
tr__backward *tr__backward_of(const tr_backward_call *call);
/* From a leaf's hook: the gradient is not final yet. In a detached backward the caller will put it into the sink and call
 * sink->complete(), else it will call the leaf's consumer. */
void tr__backward_defer(tr__backward *backward);
/* When all nodes have run: calls the callbacks, which may wait for other ranks. */
tr_status tr__backward_finish(tr__backward *backward, tr_status status);
/* From another thread, while the callbacks run: the backward has failed. */
void tr__backward_cancel(const tr__backward *backward, tr_status status);
/* Frees it; calls the callbacks first, if they have not been called. */
tr_status tr__backward_free(tr__backward *backward, tr_status status);

/* As tr_backward(). as_now: parameters that were written to since the forward are read as they are now; a node that contains a
 * graph passes on its own tr__as_now(). */
tr_status tr__backward_to_leaves(const tr_backward_options *options, bool as_now);

/* The checks of tr_backward(): can this root be differentiated? */
tr_status tr__backward_check_root(const tr_backward_options *options);

#endif
