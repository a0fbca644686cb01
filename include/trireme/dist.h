/*
 * Trireme, distributed autograd: graphs that span the workers of an RPC, and optimizers whose parameters live on several.
 *
 *     TR_CHECK(tr_dist_start(rpc));                        // on every worker, once
 *
 *     TR_DIST_CONTEXT(rpc, context);                       // current on this thread to the end of the block
 *     tr_tensor *y = tr_future_tensor(tr_rpc_sync(rpc, "ps", "encode", x));
 *     tr_tensor *loss = tr_cross_entropy(tr_forward(net, y), labels);
 *     TR_CHECK(tr_dist_backward(context, loss));
 *     TR_CHECK(tr_dist_step(optimizer, context));
 *
 * In a context, tensors that are sent carry their graph with them. Backward goes through all workers that took part,
 * and leaves the gradients there, in the context, not at the leaves. Tensors that were sent before the context was made
 * carry no graph: parameters behind them get no gradient, and the log says so once (tr_set_log()).
 * docs/distributed-autograd.md has the details.
 */
#ifndef TRIREME_DIST_H
#define TRIREME_DIST_H

#include <trireme/nn.h>
#include <trireme/optim.h>
#include <trireme/rpc.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Makes this worker take part from now on. Call it before the worker makes or gets calls that take part. A second call
 * does nothing. */
TR_API TR_MUST_CHECK tr_status tr_dist_start(tr_rpc *rpc);

/* ---- Contexts ---------------------------------------------------------------------------------------------------- */

/* A forward over several workers, its backwards, and their gradients. An object; functions that other workers call run in
 * the caller's context. */
typedef struct tr_dist_context tr_dist_context;

/* Makes a context that is current on this thread until tr_dist_context_end(), which releases it on every worker.
 * Contexts nest. */
TR_API tr_dist_context *tr_dist_context_new(tr_rpc *rpc);
TR_API void tr_dist_context_end(tr_dist_context *context);
/* Declares `name`, a context that ends at the end of the block. */
#define TR_DIST_CONTEXT(rpc, name) \
    __attribute__((cleanup(tr__dist_context_cleanup), unused)) tr_dist_context *name = tr_dist_context_new(rpc)
static inline void tr__dist_context_cleanup(tr_dist_context **context) { tr_dist_context_end(*context); }
/* The context that is current on this thread; in a function that runs for another worker, the caller's context. NULL:
 * none. */
TR_API tr_dist_context *tr_dist_context_current(tr_rpc *rpc);

typedef enum tr_dist_mode {
    TR_DIST_FAST,  /* everything that was sent in the context takes part; no messages before the gradients */
    TR_DIST_SMART, /* first finds out what takes part; unused parts get no messages and are not visited */
} tr_dist_mode;

typedef struct tr_dist_backward_options {
    size_t size;
    const char *given;
    tr_dist_context *context;
    tr_tensor *root;          /* on this worker, which made the context: a scalar, or any shape with .gradient given */
    tr_tensor *gradient;      /* d(loss)/d(root); NULL: 1 */
    tr_tensor *const *roots;  /* more roots, */
    tr_tensor *const *gradients; /* with their gradients; NULL: 1 each */
    int count;
    tr_dist_mode mode;        /* both give the same gradients */
    bool retain_graph;        /* keep what backward needs, on all workers, so that it can run again */
    int timeout_ms;           /* default 60,000 */
    const char *file;         /* where the call is, for messages: the macro sets both */
    int line;
} tr_dist_backward_options;
/* Adds d(root)/d(leaf) to the context's gradient of every leaf, on all workers, and returns when all gradients are
 * complete. A failure or a dead worker anywhere ends it on all workers, with that cause. One backward at a time in a
 * context. */
#define tr_dist_backward(...) \
    tr_dist_backward_with(TR__BRACES2(tr_dist_backward_options, context, root, __VA_ARGS__, TR__HERE))
TR_API TR_MUST_CHECK tr_status tr_dist_backward_with(const tr_dist_backward_options *options);

/* This context's gradient of a leaf of this worker: the tensor itself, not a copy; NULL when there is none. */
TR_API tr_tensor *tr_dist_grad(tr_dist_context *context, const tr_tensor *leaf);

/* ---- Optimizers ---------------------------------------------------------------------------------------------------- */

/* Which optimizer the owners make, and its options: TR_DIST_SGD(.lr = 0.1). */
typedef struct tr_dist_rule {
    enum { TR_DIST_RULE_SGD, TR_DIST_RULE_ADAM, TR_DIST_RULE_ADAMW, TR_DIST_RULE_RMSPROP, TR_DIST_RULE_ADAGRAD,
        TR_DIST_RULE_ADAMAX, TR_DIST_RULE_NADAM, TR_DIST_RULE_RADAM, TR_DIST_RULE_ADADELTA, TR_DIST_RULE_RPROP,
        TR_DIST_RULE_LION, TR_DIST_RULE_LAMB, TR_DIST_RULE_LARS, TR_DIST_RULE_MUON, TR_DIST_RULES } kind;
    union {
        tr_sgd_options sgd;
        tr_adam_options adam;
        tr_adamw_options adamw;
        tr_rmsprop_options rmsprop;
        tr_adagrad_options adagrad;
        tr_adamax_options adamax;
        tr_nadam_options nadam;
        tr_radam_options radam;
        tr_adadelta_options adadelta;
        tr_rprop_options rprop;
        tr_lion_options lion;
        tr_lamb_options lamb;
        tr_lars_options lars;
        tr_muon_options muon;
    };
} tr_dist_rule;
#ifndef __cplusplus
#define TR__DIST_RULE(kind_, member, ...) \
    ((tr_dist_rule){.kind = (kind_), .member = {TR__HEAD(tr_##member##_options, __VA_ARGS__), __VA_ARGS__}})
#else
#pragma GCC system_header /* as in base.h: for fields that are left to their defaults */
#define TR__DIST_RULE(kind_, member, ...)                                                      \
    (tr_dist_rule{.kind = tr_dist_rule::kind_, .member = {.size = sizeof(tr_##member##_options), \
        .given = TR__STRING(__VA_ARGS__) __VA_OPT__(, ) __VA_ARGS__}})
#endif
#define TR_DIST_SGD(...) TR__DIST_RULE(TR_DIST_RULE_SGD, sgd, __VA_ARGS__)
#define TR_DIST_ADAM(...) TR__DIST_RULE(TR_DIST_RULE_ADAM, adam, __VA_ARGS__)
#define TR_DIST_ADAMW(...) TR__DIST_RULE(TR_DIST_RULE_ADAMW, adamw, __VA_ARGS__)
#define TR_DIST_RMSPROP(...) TR__DIST_RULE(TR_DIST_RULE_RMSPROP, rmsprop, __VA_ARGS__)
#define TR_DIST_ADAGRAD(...) TR__DIST_RULE(TR_DIST_RULE_ADAGRAD, adagrad, __VA_ARGS__)
#define TR_DIST_ADAMAX(...) TR__DIST_RULE(TR_DIST_RULE_ADAMAX, adamax, __VA_ARGS__)
#define TR_DIST_NADAM(...) TR__DIST_RULE(TR_DIST_RULE_NADAM, nadam, __VA_ARGS__)
#define TR_DIST_RADAM(...) TR__DIST_RULE(TR_DIST_RULE_RADAM, radam, __VA_ARGS__)
#define TR_DIST_ADADELTA(...) TR__DIST_RULE(TR_DIST_RULE_ADADELTA, adadelta, __VA_ARGS__)
#define TR_DIST_RPROP(...) TR__DIST_RULE(TR_DIST_RULE_RPROP, rprop, __VA_ARGS__)
#define TR_DIST_LION(...) TR__DIST_RULE(TR_DIST_RULE_LION, lion, __VA_ARGS__)
#define TR_DIST_LAMB(...) TR__DIST_RULE(TR_DIST_RULE_LAMB, lamb, __VA_ARGS__)
#define TR_DIST_LARS(...) TR__DIST_RULE(TR_DIST_RULE_LARS, lars, __VA_ARGS__)
#define TR_DIST_MUON(...) TR__DIST_RULE(TR_DIST_RULE_MUON, muon, __VA_ARGS__)

/* An optimizer of parameters that live on any workers: each owner has an ordinary optimizer, and this object drives all
 * of them. An object; thread-safe. */
typedef struct tr_dist_optimizer tr_dist_optimizer;

/* parameters: references to leaves that require a gradient. Their owners place them in new memory, as optimizers do. A
 * count of -1, which tr_dist_parameters() and tr_remote_parameters() return when they fail, puts the optimizer in error
 * with their failure. */
TR_API tr_dist_optimizer *tr_dist_optimizer_new(tr_rpc *rpc, tr_rref *const *parameters, int count, tr_dist_rule rule);
/* Each owner makes one step from the context's gradients, all owners at the same time, and drops the gradients at the
 * leaves themselves. On one owner, steps of any optimizers and contexts run one after the other, in the order in which
 * they come. After a failure on one owner the others have made their step. */
TR_API TR_MUST_CHECK tr_status tr_dist_step(tr_dist_optimizer *optimizer, tr_dist_context *context);
/* From now on until tr_dist_step(), owners step a parameter during backwards in the context, as soon as its gradient
 * there is complete: with all that calls of this and other workers added to it, and under tr_ddp() the mean.
 * tr_dist_step() then updates the other parameters; together they do what tr_dist_step() does alone. When a second
 * backward reaches a parameter before tr_dist_step(), that is an error, and so is tr_dist_clip_grad_norm(). After a
 * backward that failed, some parameters have been stepped. */
TR_API TR_MUST_CHECK tr_status tr_dist_step_in_backward(tr_dist_optimizer *optimizer, tr_dist_context *context);
TR_API TR_MUST_CHECK tr_status tr_dist_set_lr(tr_dist_optimizer *optimizer, double lr);
/* As tr_clip_grad_norm(), over the context's gradients of all parameters on all workers. It refuses shards and stages
 * whose other parts are on other ranks, and parameters under tr_ddp() together with parameters of other workers:
 * docs/parallel.md, "Clipping". */
TR_API TR_MUST_CHECK tr_status tr_dist_clip_grad_norm(tr_dist_optimizer *optimizer, tr_dist_context *context,
    double max_norm, double *norm);
/* The states of all owners, copied to this worker; tr_dist_optimizer_load() copies them back. The names are those of
 * tr_optimizer_state(), with a parameter's place in the list as its name: "3.exp_avg". Each owner loads its whole part
 * or nothing. */
TR_API tr_tensor_list *tr_dist_optimizer_state(tr_dist_optimizer *optimizer);
TR_API TR_MUST_CHECK tr_status tr_dist_optimizer_load(tr_dist_optimizer *optimizer, const tr_tensor_list *state);

/* ---- Remote modules ------------------------------------------------------------------------------------------------ */

/* A module that stands for the one behind a reference (a function with RETURNS(OBJECT) made it on its owner). It is
 * called like a local module, alone or inside others; its forward runs on the owner. It has no parameters here, and one
 * output. tr_train(), tr_eval() and tr_seed() here apply to the calls from here: it runs in eval mode after tr_eval()
 * here or on its owner, and its dropouts draw what they would in a net of one process. */
TR_API tr_module *tr_remote_module(tr_rref *module);
/* Writes references to the module's parameters, in the order of tr_parameters(), to out, which has room for `most`.
 * Returns their number. -1 on failure, also when out has too little room (TR_INVALID; the message says how many there
 * are). With a `most` of 0 it only counts. */
TR_API int tr_remote_parameters(tr_rref *module, tr_rref **out, int most);
/* The same for a module of this worker: its parameters here, and those of remote modules inside it, on their owners. A
 * parameter that is in several places counts once. */
TR_API int tr_dist_parameters(tr_rpc *rpc, tr_module *module, tr_rref **out, int most);

#ifdef __cplusplus
}
#endif

#endif
