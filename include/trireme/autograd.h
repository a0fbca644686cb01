/*
 * Trireme, automatic differentiation: define-by-run, reverse mode.
 *
 * Ops on tensors that require a gradient record a node each; the graph hangs from the tensors, so it lives as long as
 * something that was computed from it. Several graphs can be alive at once and their backwards interleaved.
 */
#ifndef TRIREME_AUTOGRAD_H
#define TRIREME_AUTOGRAD_H

#include <trireme/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tr_backward_options {
    size_t size;
    const char *given;
    tr_tensor *root;      /* what is differentiated: a scalar, or any shape with .gradient given */
    tr_tensor *gradient;  /* d(loss)/d(root), the shape of root; NULL: 1 */
    bool retain_graph;    /* keep what backward needs, so that it can run again */
} tr_backward_options;
/* Adds d(root)/d(leaf) to the gradient of every leaf that requires one. Frees the graph's saved tensors as it goes. */
#define tr_backward(...) TR__NEW1(tr_backward, root, __VA_ARGS__)
TR_API TR_MUST_CHECK tr_status tr_backward_with(const tr_backward_options *options);

/* The gradient that backward left at a leaf: its own object, not a copy, the same one until it is set anew; NULL when
 * there is none yet; in error when an optimizer used it up in backward (tr_step_in_backward()). */
TR_API tr_tensor *tr_grad(const tr_tensor *leaf);
/* Forgets the gradient: the next backward starts from nothing. */
TR_API void tr_clear_grad(tr_tensor *leaf);
/* The same values outside the graph; a view. */
TR_API tr_tensor *tr_detach(tr_tensor *t);

/* No recording on this thread until the end of the block; and is it on? */
#define TR_NO_GRAD \
    __attribute__((cleanup(tr__grad_restore), unused)) bool TR__JOIN(tr__no_grad_, __LINE__) = tr_set_grad(false)
TR_API bool tr_set_grad(bool on); /* returns what it was */
TR_API bool tr_grad_enabled(void);
static inline void tr__grad_restore(bool *was) { tr_set_grad(*was); }

/*
 * Recompute: runs f(inputs, n, user) and returns what it returns, but what backward needs of it is not kept: when backward
 * gets there, f runs again (Chen et al. 2016). Memory for the activations inside f is paid with one forward more. f must do
 * the same both times; random numbers and the statistics of batch norms are those of the first time. It nests, and runs
 * under DDP, on pipelines' stages and in distributed backwards. user must live as long as the graph. inputs[i] may be NULL.
 */
typedef tr_tensor *(*tr_checkpoint_function)(tr_tensor *const *inputs, int n, void *user);
TR_API tr_tensor *tr_checkpoint(tr_checkpoint_function f, tr_tensor *const *inputs, int n, void *user);
/* Does this thread run a function for backward? A module that counts its calls, say, leaves that out then. */
TR_API bool tr_recomputing(void);

/* Called on the thread of tr_backward() the moment leaf's gradient is final for that backward. An error returned ends
 * the backward with it. Several hooks run in the order they were added; they may remove hooks. */
typedef tr_status (*tr_grad_hook)(tr_tensor *leaf, tr_tensor *grad, void *user);
/* Returns a number for tr_grad_hook_remove(), or -1 when out of memory or leaf is not a leaf that requires a gradient. */
TR_API int tr_grad_hook_add(tr_tensor *leaf, tr_grad_hook hook, void *user);
TR_API void tr_grad_hook_remove(tr_tensor *leaf, int number);

/* Checks analytic against numeric directional derivatives of sum(w * f(inputs)), in f64 (inputs must be f64). Each input
 * that requires a gradient is tried in a few random directions. The message names the input and both values. */
typedef tr_tensor *(*tr_grad_function)(tr_tensor *const *inputs, int n, void *user);
TR_API TR_MUST_CHECK tr_status tr_grad_check(tr_grad_function f, tr_tensor *const *inputs, int n, void *user, double tolerance);

#ifdef __cplusplus
}
#endif

#endif
