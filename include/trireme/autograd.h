/*
 * Trireme, automatic differentiation: define-by-run, reverse mode.
 *
 * Each op on a tensor that requires a gradient records a node. Tensors hold the graph that made them, so a graph lives
 * as long as something that was computed from it. Several graphs can be alive at once, and their backwards can be
 * interleaved.
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

/* The gradient that backward left at a leaf: the tensor itself, not a copy, and the same object until a new one
 * replaces it. NULL when there is none yet. In error when an optimizer used it up in backward (tr_step_in_backward()). */
TR_API tr_tensor *tr_grad(const tr_tensor *leaf);
/* Drops the gradient: the next backward starts from nothing. */
TR_API void tr_clear_grad(tr_tensor *leaf);
/* A view of the same values, outside the graph. */
TR_API tr_tensor *tr_detach(tr_tensor *t);

/* TR_NO_GRAD: this thread records no graph until the end of the block. tr_grad_enabled(): whether it records. */
#define TR_NO_GRAD \
    __attribute__((cleanup(tr__grad_restore), unused)) bool TR__JOIN(tr__no_grad_, __LINE__) = tr_set_grad(false)
TR_API bool tr_set_grad(bool on); /* returns what it was */
TR_API bool tr_grad_enabled(void);
static inline void tr__grad_restore(bool *was) { tr_set_grad(*was); }

/*
 * Recompute: runs f(inputs, n, user) and returns its result, without keeping what backward needs of it. When backward
 * gets there, it runs f again (Chen et al. 2016). This saves the memory for the activations inside f and costs one more
 * forward. f must do the same both times; random numbers and the statistics of batch norms are those of the first run.
 * Recompute nests, and works under DDP, in pipeline stages and in distributed backwards. user must live as long as the
 * graph. inputs[i] may be NULL.
 */
typedef tr_tensor *(*tr_checkpoint_function)(tr_tensor *const *inputs, int n, void *user);
TR_API tr_tensor *tr_checkpoint(tr_checkpoint_function f, tr_tensor *const *inputs, int n, void *user);
/* Whether this thread is running a function again for backward. A module that counts its calls, for example, does not
 * count such a run. */
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
 * The first run with inputs of given shapes calls the function, and its ops run as usual. The second run calls it again
 * and captures what it enqueues. From then on a run launches the graph, and the function is not called. The step is
 * captured again after a change: other shapes or dtypes of the inputs, another autocast, or parameters that were
 * frozen, moved or regrouped. All ways give the same numbers, bit for bit. Every run calls the function on devices
 * without graphs (cpu), in a profile, under TRIREME_CHECK=sync, nan or inf, and on cuda with TRIREME_CUDA_CACHE=0.
 *
 * Each run takes from the host its inputs, what tr_seed() gave the modules' dropouts, and the learning rate, weight
 * decay and step count of the optimizers that step. All else stays as it was when the step was captured: what the
 * function read on the host, modes (tr_eval()), and the addresses of tensors that are not inputs. Those tensors must
 * live as long as the captured step.
 *
 * The function must not read a tensor on the host (tr_item(), tr_clip_grad_norm(), LARS, LAMB, Muon, gradient scaling),
 * copy one from the host, draw numbers by itself (tr_rand(), tr_dropout()), call a group of ranks, or use a second
 * device. If it does, the run is an error and no graph is made: nothing has been computed, and optimizers have not
 * counted the step.
 */
typedef struct tr_captured_step tr_captured_step; /* an object */
/* *output gets the step's result, such as the loss. A function that does not set it has no result. */
typedef tr_status (*tr_step_function)(tr_tensor *const *inputs, int n, tr_tensor **output, void *user);
typedef struct tr_capture_options {
    size_t size;
    const char *given;
    tr_step_function step;
    void *user;       /* for step; must live as long as the captured step */
    tr_device device; /* where the step computes; used when the step has no inputs */
    int warmup;       /* runs op by op before the capture, for each shape; default 1 */
    int graphs;       /* how many graphs are kept, the most recently used ones, each with its own memory; default 4 */
} tr_capture_options;
#define tr_capture(...) TR__NEW2(tr_capture, step, user, __VA_ARGS__)
TR_API tr_captured_step *tr_capture_with(const tr_capture_options *options);

/* tr_captured_run(step, &loss, x, y): one run. Inputs are on one device and require no gradient; any may be NULL.
 * *output gets the function's result, outside the autograd graph, in a tensor of this run's own. Pass NULL for output
 * when the result is not wanted. One run at a time. */
#ifndef __cplusplus
#define tr_captured_run(captured, output, ...)                                       \
    tr_captured_run_n((captured), (output), (tr_tensor *[]){__VA_ARGS__},            \
        (int)(sizeof((tr_tensor *[]){__VA_ARGS__}) / sizeof(tr_tensor *)))
#endif
TR_API TR_MUST_CHECK tr_status tr_captured_run_n(tr_captured_step *captured, tr_tensor **output,
    tr_tensor *const *inputs, int n);

/* Runs so far. called: the function ran op by op. captured: a graph was captured and launched. launched: an existing
 * graph was launched. */
typedef struct tr_captured_counts {
    size_t size; /* set by the caller: sizeof(tr_captured_counts) */
    int64_t called, captured, launched;
} tr_captured_counts;
TR_API TR_MUST_CHECK tr_status tr_captured_count(const tr_captured_step *captured, tr_captured_counts *out);

/* Called on the thread of tr_backward() as soon as leaf's gradient is final for that backward. When it returns a
 * failure, backward ends with that failure. Several hooks run in the order in which they were added; they may remove
 * hooks. */
typedef tr_status (*tr_grad_hook)(tr_tensor *leaf, tr_tensor *grad, void *user);
/* Returns a number for tr_grad_hook_remove(), or -1 when out of memory, when leaf is not a leaf that requires a
 * gradient, or when hook is NULL. */
TR_API int tr_grad_hook_add(tr_tensor *leaf, tr_grad_hook hook, void *user);
/* Distributed backwards call hooks on threads of their own: a hook that is being called at this moment may still run
 * when this returns. */
TR_API void tr_grad_hook_remove(tr_tensor *leaf, int number);

/* Compares analytic with numeric directional derivatives of sum(w * f(inputs)), in f64 (inputs must be f64). Each input
 * that requires a gradient is tried in a few random directions. The message of a failure names the input and both
 * values. */
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
