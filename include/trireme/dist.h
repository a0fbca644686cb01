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
 * In a context, tensors that travel carry their graph on: backward goes through all workers that took part, and leaves
 * gradients there, in the context, not at the leaves. What travelled before the context was made left its graph
 * behind: parameters there get no gradient, which the log tells once (tr_set_log()). docs/distributed-autograd.md tells how.
 */
#ifndef TRIREME_DIST_H
#define TRIREME_DIST_H

#include <trireme/nn.h>
#include <trireme/optim.h>
#include <trireme/rpc.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Makes this worker take part, from then on; before it makes or gets calls that are to. Again does nothing. */
TR_API TR_MUST_CHECK tr_status tr_dist_start(tr_rpc *rpc);

/* ---- Contexts ---------------------------------------------------------------------------------------------------- */

/* A forward over several workers, its backwards, and their gradients. An object; functions that other workers call run in
 * the caller's context. */
typedef struct tr_dist_context tr_dist_context;

/* Makes one, current on this thread until tr_dist_context_end(), which releases it on every worker. They nest. */
TR_API tr_dist_context *tr_dist_context_new(tr_rpc *rpc);
TR_API void tr_dist_context_end(tr_dist_context *context);
/* Declares `name`, a context that is ended with the block. */
#define TR_DIST_CONTEXT(rpc, name) \
    __attribute__((cleanup(tr__dist_context_cleanup), unused)) tr_dist_context *name = tr_dist_context_new(rpc)
static inline void tr__dist_context_cleanup(tr_dist_context **context) { tr_dist_context_end(*context); }
/* The one that is current on this thread: in a function that was called, the caller's. NULL: none. */
TR_API tr_dist_context *tr_dist_context_current(tr_rpc *rpc);

typedef enum tr_dist_mode {
    TR_DIST_FAST,  /* everything that was sent in the context takes part: no messages before the gradients */
    TR_DIST_SMART, /* what takes part is found first: unused parts get no messages, and are not walked */
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
/* Adds d(root)/d(leaf) to the context's gradient of every leaf, on all workers, and returns when all are there. A failure
 * or a dead worker anywhere ends it on all of them, with that cause. One at a time in a context. */
#define tr_dist_backward(...) \
    tr_dist_backward_with(TR__BRACES2(tr_dist_backward_options, context, root, __VA_ARGS__, TR__HERE))
TR_API TR_MUST_CHECK tr_status tr_dist_backward_with(const tr_dist_backward_options *options);

/* This context's gradient of a leaf of this worker: its own object, not a copy; NULL when there is none. */
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

/* An optimizer of parameters that live on any workers: one of ours on each owner, all driven from here. An object; thread-
 * safe. */
typedef struct tr_dist_optimizer tr_dist_optimizer;

/* parameters: references to leaves that require a gradient. Their owners lay them out anew, as optimizers do. A count of -1, what
 * the functions below give when they fail, puts it in error with their failure. */
TR_API tr_dist_optimizer *tr_dist_optimizer_new(tr_rpc *rpc, tr_rref *const *parameters, int count, tr_dist_rule rule);
/* Each owner makes one step from the context's gradients, all at the same time, and then has forgotten what stood at the
 * leaves themselves. On one owner steps, of any optimizers and contexts, run one after the other as they come. After a
 * failure the others have made their step. */
TR_API TR_MUST_CHECK tr_status tr_dist_step(tr_dist_optimizer *optimizer, tr_dist_context *context);
/* From now on until tr_dist_step(), owners step a parameter during backwards in the context, as soon as its gradient there is
 * complete: all that this worker's and others' calls gave it, and under tr_ddp() the mean. tr_dist_step() then updates what is
 * left; together they do what it does alone. A parameter that a second backward reaches before that is an error, and so is
 * tr_dist_clip_grad_norm(). After a backward that failed some parameters have been stepped. */
TR_API TR_MUST_CHECK tr_status tr_dist_step_in_backward(tr_dist_optimizer *optimizer, tr_dist_context *context);
TR_API TR_MUST_CHECK tr_status tr_dist_set_lr(tr_dist_optimizer *optimizer, double lr);
/* As tr_clip_grad_norm(), over the context's gradients of all parameters on all workers. Shards and stages of which other ranks have
 * the rest, and parameters under tr_ddp() together with those of other workers, are refused: docs/parallel.md, "Clipping". */
TR_API TR_MUST_CHECK tr_status tr_dist_clip_grad_norm(tr_dist_optimizer *optimizer, tr_dist_context *context,
    double max_norm, double *norm);
/* The states of all owners, brought here, and back: copies, under the names of tr_optimizer_state(), where a parameter's
 * name is its place in the list: "3.exp_avg". Each owner loads all of its own or nothing. */
TR_API tr_tensor_list *tr_dist_optimizer_state(tr_dist_optimizer *optimizer);
TR_API TR_MUST_CHECK tr_status tr_dist_optimizer_load(tr_dist_optimizer *optimizer, const tr_tensor_list *state);

/* ---- Remote modules ------------------------------------------------------------------------------------------------ */

/* The module that a reference leads to (a function that RETURNS(OBJECT) made it there), as one that is called like a local
 * one, alone or in others: its forward runs at its owner. It has no parameters here; one output. tr_train(), tr_eval() and
 * tr_seed() here count for the calls from here: it evaluates after tr_eval() here or at its owner, and its dropouts draw what
 * they would in a net of one process. */
TR_API tr_module *tr_remote_module(tr_rref *module);
/* References to its parameters, in the order of tr_parameters(), into out, which has room for `most`; their number. -1 when it
 * failed, or out has too little room (TR_INVALID says how many there are). With a `most` of 0 it only counts. */
TR_API int tr_remote_parameters(tr_rref *module, tr_rref **out, int most);
/* The same of a module of this worker's: those that are here, and those of remote modules in it, where they are. What stands
 * in several places counts once. */
TR_API int tr_dist_parameters(tr_rpc *rpc, tr_module *module, tr_rref **out, int most);

#ifdef __cplusplus
}
#endif

#endif
