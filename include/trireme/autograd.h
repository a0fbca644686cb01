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
    const char *file;     /* where the call is, for messages: the macro sets both */
    int line;
} tr_backward_options;
/* Adds d(root)/d(leaf) to the gradient of every leaf that requires one. Frees the graph's saved tensors as it goes. */
#define tr_backward(...) TR__NEW1(tr_backward, root, __VA_ARGS__, TR__HERE)
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
 * Recompute: runs f(inputs, n, user) and returns what it returns, but what backward needs of it is not kept: when
 * backward gets there, f runs again (Chen et al. 2016). Memory for the activations inside f is paid with one forward
 * more. f must do the same both times; random numbers and the statistics of batch norms are those of the first time.
 * It nests, and runs under DDP, on pipelines' stages and in distributed backwards. user must live as long as the
 * graph. inputs[i] may be NULL.
 */
typedef tr_tensor *(*tr_checkpoint_function)(tr_tensor *const *inputs, int n, void *user);
TR_API tr_tensor *tr_checkpoint(tr_checkpoint_function f, tr_tensor *const *inputs, int n, void *user);
/* Does this thread run a function for backward? A module that counts its calls, say, leaves that out then. */
TR_API bool tr_recomputing(void);

/*
 * Captured steps: a whole training step becomes one graph of the device (a CUDA graph). The host enqueues a step op
 * by op, which for a small model takes longer than the GPU computes; a graph is launched at once.
 *
 *     static tr_status train(tr_tensor *const *inputs, int n, tr_tensor **loss, void *user)
 *     {
 *         job *j = user;
 *         tr_zero_grad(j->opt);
 *         *loss = tr_cross_entropy(tr_forward(j->net, inputs[0]), inputs[1]);
 *         tr_status status = tr_backward(*loss);
 *         return status == TR_OK ? tr_step(j->opt) : status;
 *     }
 *
 *     tr_captured_step *step = tr_capture(train, &j);
 *     for (int64_t i = 0; tr_loader_next(loader, &b) == TR_OK; i++) {
 *         TR_SCOPE;
 *         tr_tensor *loss;
 *         TR_CHECK(tr_seed(j.net, seed, .step = (uint64_t)i));          before the run, not in the step
 *         TR_CHECK(tr_set_lr(j.opt, tr_cosine_lr(i, 1e-3, steps)));     likewise
 *         TR_CHECK(tr_captured_run(step, &loss, b.x, b.y));
 *     }
 *
 * The first run with inputs of some shapes calls the function, whose ops run as they always do. The second one calls
 * it again and captures what it enqueues; from then on a run launches the graph, and the function is not called.
 * Other shapes or dtypes of the inputs, another autocast, parameters that were frozen, moved or regrouped: then it
 * is captured anew. Each way gives the same numbers, bit for bit. Every run calls the function on devices without
 * graphs (cpu), in a profile, under TRIREME_CHECK=sync, nan or inf and, of cuda, with TRIREME_CUDA_CACHE=0.
 *
 * Each run takes from the host: its inputs, what tr_seed() gave the modules' dropouts, and of the optimizers that
 * step the learning rate, weight decay and count of steps. All else stays as it was when it was captured: what the
 * function read on the host, modes (tr_eval()), tensors that it found outside its inputs, which it finds where they
 * were: they must live as long as the captured step. It is an error, and the graph is not made, when the function
 * reads a tensor on the host (tr_item(), tr_clip_grad_norm(), LARS, LAMB, Muon, gradient scaling), copies one from
 * the host, draws numbers by itself (tr_rand(), tr_dropout()), calls a group of ranks or uses a second device.
 * Nothing has then been computed, and optimizers have not counted the step.
 */
typedef struct tr_captured_step tr_captured_step; /* an object */
/* *output, when not set: nothing is given out. */
typedef tr_status (*tr_step_function)(tr_tensor *const *inputs, int n, tr_tensor **output, void *user);
typedef struct tr_capture_options {
    size_t size;
    const char *given;
    tr_step_function step;
    void *user;       /* for step; must live as long as the captured step */
    tr_device device; /* where the step computes, when it has no inputs to tell */
    int warmup;       /* runs op by op before the capture, for each shape; default 1 */
    int graphs;       /* that are kept, the latest used of them, each with memory of its own; default 4 */
} tr_capture_options;
#define tr_capture(...) TR__NEW2(tr_capture, step, user, __VA_ARGS__)
TR_API tr_captured_step *tr_capture_with(const tr_capture_options *options);

/* tr_captured_run(step, &loss, x, y): one run. Inputs are on one device and require no gradient; any may be NULL.
 * *output becomes what the function gave out, outside the graph of autograd, a tensor of this run's own; NULL: it is
 * not wanted. One run at a time. */
#ifndef __cplusplus
#define tr_captured_run(captured, output, ...)                                       \
    tr_captured_run_n((captured), (output), (tr_tensor *[]){__VA_ARGS__},            \
        (int)(sizeof((tr_tensor *[]){__VA_ARGS__}) / sizeof(tr_tensor *)))
#endif
TR_API TR_MUST_CHECK tr_status tr_captured_run_n(tr_captured_step *captured, tr_tensor **output,
    tr_tensor *const *inputs, int n);

/* Runs so far: that called the function, op by op; that captured a graph and launched it; that launched one that was
 * there. */
typedef struct tr_captured_counts {
    size_t size; /* set by the caller: sizeof(tr_captured_counts) */
    int64_t called, captured, launched;
} tr_captured_counts;
TR_API TR_MUST_CHECK tr_status tr_captured_count(const tr_captured_step *captured, tr_captured_counts *out);

/* Called on the thread of tr_backward() the moment leaf's gradient is final for that backward. An error returned ends
 * the backward with it. Several hooks run in the order they were added; they may remove hooks. */
typedef tr_status (*tr_grad_hook)(tr_tensor *leaf, tr_tensor *grad, void *user);
/* Returns a number for tr_grad_hook_remove(), or -1 when out of memory, when leaf is not a leaf that requires a
 * gradient, or when hook is NULL. */
TR_API int tr_grad_hook_add(tr_tensor *leaf, tr_grad_hook hook, void *user);
/* A hook that a distributed backward is calling at the moment, on a thread of its own, may still run when this returns. */
TR_API void tr_grad_hook_remove(tr_tensor *leaf, int number);

/* Checks analytic against numeric directional derivatives of sum(w * f(inputs)), in f64 (inputs must be f64). Each
 * input that requires a gradient is tried in a few random directions. The message names the input and both values. */
typedef tr_tensor *(*tr_grad_function)(tr_tensor *const *inputs, int n, void *user);
TR_API TR_MUST_CHECK tr_status tr_grad_check(tr_grad_function f, tr_tensor *const *inputs, int n, void *user, double tolerance);

#ifdef __cplusplus
} /* extern "C" */
template <class... T> inline tr_status tr_captured_run(tr_captured_step *captured, tr_tensor **output, T *...inputs)
{
    tr_tensor *list[] = {inputs..., nullptr};
    return tr_captured_run_n(captured, output, list, (int)sizeof...(inputs));
}
#endif

#endif
