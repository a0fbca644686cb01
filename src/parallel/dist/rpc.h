/* A worker's distributed autograd on its RPC agent: what the messages of optimizers need of it, too. */
#ifndef TR_PARALLEL_DIST_RPC_H
#define TR_PARALLEL_DIST_RPC_H

#include "parallel/dist/dist.h"
#include "rpc/rpc.h"

typedef struct tr__dist_worker {
    tr__dist dist; /* first */
    tr_rpc *rpc;   /* holds this, not the other way round */
    pthread_mutex_t lock;
    struct tr__dist_owned *optimizers; /* this worker's parts of them */
    int64_t next_optimizer;
    int64_t next_turn, turn; /* steps are made in the order in which they came */
    pthread_cond_t turns;
    atomic_int not_started; /* 1 more than a worker that answered a call of a context without tr_dist_start(); 0: none has */
} tr__dist_worker;

/* NULL: tr_dist_start() has not been called, and the failure says so. */
tr__dist_worker *tr__dist_worker_of(tr_rpc *rpc);
/* The context is sound and this worker's. */
tr_status tr__dist_check_context(const char *what, const tr_dist_context *context);

/* Messages have the names that programs read in failures and in `trireme why`, behind a dot (rpc/rpc.h). */
#define TR__DIST_MESSAGE ".distributed backward"
/* The owners' side of optimizers (owner.c): messages whose first value is its number, and for most the context's.
 * X(NAME, "message") */
#define TR__DIST_OWNER_MAP(X)                                                                                     \
    X(MAKE, ".distributed optimizer") /* rule, settings, name, rref, name, rref, … -> number */                   \
    X(EARLY, ".distributed step in backward") /* number, context: step in its backwards, as gradients become complete */ \
    X(STEP, ".distributed step") /* number, context */                                                            \
    X(NORM, ".norm of distributed gradients") /* number, context, owners -> the sum of the gradients' squares */  \
    X(SCALE, ".clipping of distributed gradients") /* number, context, factor */                                  \
    X(LR, ".learning rate of a distributed optimizer") /* number, learning rate */                                \
    X(STATE, ".state of a distributed optimizer") /* number -> tensors */                                         \
    X(LOAD, ".loading of a distributed optimizer") /* number, tensors */                                          \
    X(DROP, ".end of a distributed optimizer") /* number */
typedef enum tr__dist_order {
#define TR__DIST_ORDER(name, text) TR__DIST_##name,
    TR__DIST_OWNER_MAP(TR__DIST_ORDER)
#undef TR__DIST_ORDER
    TR__DIST_ORDERS
} tr__dist_order;
tr_status tr__dist_owner_start(tr__dist_worker *worker);
void tr__dist_owner_end(tr__dist_worker *worker);
/* Sends an order; to this worker itself, too. */
tr_future *tr__dist_order_to(tr__dist_worker *worker, int to, tr__dist_order order, const tr_value *values, int n);
/* Carries one out on this worker, in this thread. */
tr_status tr__dist_obey(tr__dist_worker *worker, tr__dist_order order, const tr_value *values, int n, tr_value *result);

enum { TR__DIST_SETTINGS = 8 };
/* The numbers in a rule's options, and back, with the parameters that they are for. */
int tr__dist_rule_settings(const tr_dist_rule *rule, double settings[TR__DIST_SETTINGS]);
tr_optimizer *tr__dist_rule_make(int64_t kind, const double *settings, int n, tr_tensor_list *parameters);

/* The functions of modules that others call (module.c). */
tr_status tr__dist_module_start(tr_rpc *rpc);
/* Is it what tr_remote_module() returned? */
bool tr__is_remote_module(const tr_module *module);

#endif
