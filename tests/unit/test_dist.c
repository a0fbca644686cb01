/* Distributed autograd and optimizers over RPC, between threads as workers. ctest: timeout=240 */
#include "dist_ranks.h"

#include "parallel/dist/dist.h"
#include "rpc/agent.h"

#include <trireme/train.h>

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- Backward ------------------------------------------------------------------------------------------------------------ */

static void run_pattern(rank *r, dist_worker *w, dist_pattern pattern, tr_dist_mode mode)
{
    TR_SCOPE;
    tr_module *nets[DIST_WORKERS];
    make_twins(nets);
    TR_DIST_CONTEXT(w->rpc, context);
    tr_tensor *x = dist_input(), *loss = dist_loss(w, pattern, x), *twin = dist_loss_here(nets, pattern, x);
    CHECK(dist_difference(loss, twin) < 1e-12);
    for (int round = 0; round < 2; round++) {
        OK(tr_dist_backward(context, loss, .mode = mode, .retain_graph = round == 0));
        OK(tr_backward(twin, .retain_graph = round == 0));
        check_grads(r, w, nets);
    }
}

static void patterns_on_w0(rank *r, dist_worker *w)
{
    for (int pattern = 0; pattern < DIST_PATTERN_COUNT && !r->failure[0]; pattern++)
        for (int mode = TR_DIST_FAST; mode <= TR_DIST_SMART && !r->failure[0]; mode++)
            run_pattern(r, w, (dist_pattern)pattern, (tr_dist_mode)mode);
}

static void run_patterns(rank *r) { serve_or(r, patterns_on_w0); }

static void every_pattern_leaves_the_gradients_of_one_process(void **state)
{
    (void)state;
    run(DIST_WORKERS, run_patterns, NULL);
}

/* ---- As PyTorch has it --------------------------------------------------------------------------------------------------- */

static tr_tensor_list *recorded(void)
{
    char path[4096];
    const char *source = getenv("SOURCE");
    snprintf(path, sizeof path, "%s/tests/recorded/dist.safetensors", source ? source : ".");
    return tr_safetensors_load(path);
}

static tr_tensor *find(const tr_tensor_list *list, const char *pattern, int worker, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "%s%sw%d.%s", pattern, pattern[0] ? "." : "", worker, what);
    return tr_list_find(list, name);
}

static void compare_with_torch(rank *r, dist_worker *w, const tr_tensor_list *list)
{
    static const char *const names[] = {"chain", "nested", "cycle", "fan"}, *const leaves[] = {"weight", "bias"};
    for (int pattern = 0; pattern < 4; pattern++) {
        TR_SCOPE;
        TR_DIST_CONTEXT(w->rpc, context);
        OK(tr_dist_backward(context, dist_loss(w, (dist_pattern)pattern, tr_list_find(list, "x"))));
        for (int i = 0; i < DIST_WORKERS * DIST_PARAMETERS; i++) {
            tr_tensor *want = find(list, names[pattern], i / DIST_PARAMETERS, leaves[i % DIST_PARAMETERS]);
            tr_tensor *got = dist_fetch_grad(w, i / DIST_PARAMETERS, i % DIST_PARAMETERS);
            CHECK((tr_status_of(got) == TR_OK) == (want != NULL));
            if (want) CHECK(dist_difference(got, want) < 1e-12);
        }
    }
}

static void run_recorded(rank *r)
{
    dist_worker w;
    tr_tensor_list *list = recorded(), *own = tr_list_new();
    OK(tr_status_of(list));
    OK(dist_begin(&w, r->group));
    OK(tr_list_add(own, "weight", find(list, "", r->number, "weight")));
    OK(tr_list_add(own, "bias", find(list, "", r->number, "bias")));
    OK(tr_load_state_dict(w.net, own));
    OK(tr_barrier(r->group));
    if (r->number == 0) compare_with_torch(r, &w, list);
    OK(tr_barrier(r->group));
    OK(tr_rpc_stop(w.rpc));
}

static void gradients_are_those_of_pytorchs_distributed_autograd(void **state)
{
    (void)state;
    run(DIST_WORKERS, run_recorded, NULL);
}

/* ---- Several contexts ---------------------------------------------------------------------------------------------------- */

/* All workers are trainers at the same time, each in a context of its own. */
static void run_own_contexts(rank *r)
{
    dist_worker w;
    OK(dist_begin(&w, r->group));
    for (int i = 0; i < 10; i++) {
        TR_SCOPE;
        tr_module *nets[DIST_WORKERS];
        make_twins(nets);
        double by = r->number * 10 + i + 1;
        tr_tensor *x = tr_full(by / 50, TR_SHAPE(DIST_BATCH, DIST_WIDTH), .dtype = TR_F64), *twin = x;
        TR_DIST_CONTEXT(w.rpc, context);
        for (int k = 0; k < DIST_WORKERS; k++) {
            x = tr_future_tensor(tr_rpc_sync(w.rpc, tr_rpc_name(w.rpc, k), "layer", x));
            twin = tr_tanh(tr_forward(nets[k], twin));
        }
        OK(tr_dist_backward(context, tr_sum(x), .mode = i % 2 ? TR_DIST_SMART : TR_DIST_FAST));
        OK(tr_backward(tr_sum(twin)));
        check_grads(r, &w, nets);
        CHECK(!r->failure[0]);
    }
    OK(tr_barrier(r->group));
    OK(tr_rpc_stop(w.rpc));
}

static void contexts_at_the_same_time_do_not_mix(void **state)
{
    (void)state;
    run(DIST_WORKERS, run_own_contexts, NULL);
}

/* ---- Optimizers ---------------------------------------------------------------------------------------------------------- */

static tr_tensor_list *all_parameters(tr_module *const *nets)
{
    tr_tensor_list *list = tr_list_new();
    for (int i = 0; i < DIST_WORKERS; i++)
        for (int k = 0; k < DIST_PARAMETERS; k++) {
            char name[16];
            snprintf(name, sizeof name, "%d", i * DIST_PARAMETERS + k);
            if (tr_list_add(list, name, tr_list_at(tr_parameters(nets[i]), k)) != TR_OK) return NULL;
        }
    return list;
}

static tr_optimizer *twin_of(int kind, tr_tensor_list *parameters)
{
    switch (kind) {
    case TR_DIST_RULE_SGD: return tr_sgd(parameters, .lr = 0.1, .momentum = 0.9, .nesterov = true);
    case TR_DIST_RULE_ADAM: return tr_adam(parameters, .lr = 0.1, .amsgrad = true);
    case TR_DIST_RULE_ADAMW: return tr_adamw(parameters, .lr = 0.1, .weight_decay = 0.1, .decay_matrices_only = true);
    case TR_DIST_RULE_RMSPROP: return tr_rmsprop(parameters, .lr = 0.1, .momentum = 0.5, .centered = true);
    case TR_DIST_RULE_ADAMAX: return tr_adamax(parameters, .lr = 0.1, .weight_decay = 0.1);
    case TR_DIST_RULE_NADAM: return tr_nadam(parameters, .lr = 0.1, .momentum_decay = 0.01, .decoupled = true);
    case TR_DIST_RULE_RADAM: return tr_radam(parameters, .lr = 0.1, .beta2 = 0.8);
    case TR_DIST_RULE_ADADELTA: return tr_adadelta(parameters, .lr = 0.5, .rho = 0.8);
    case TR_DIST_RULE_RPROP: return tr_rprop(parameters, .lr = 0.1, .most = 1);
    case TR_DIST_RULE_LION: return tr_lion(parameters, .lr = 0.01, .weight_decay = 0.1);
    case TR_DIST_RULE_LAMB: return tr_lamb(parameters, .lr = 0.1, .matrices_only = true);
    case TR_DIST_RULE_LARS: return tr_lars(parameters, .lr = 0.1, .trust = 0.1);
    case TR_DIST_RULE_MUON: return tr_muon(parameters, .lr = 0.1, .iterations = 3);
    default: return tr_adagrad(parameters, .lr = 0.1, .lr_decay = 0.1, .initial_accumulator = 0.1);
    }
}

static tr_dist_rule rule_of(int kind)
{
    switch (kind) {
    case TR_DIST_RULE_SGD: return TR_DIST_SGD(.lr = 0.1, .momentum = 0.9, .nesterov = true);
    case TR_DIST_RULE_ADAM: return TR_DIST_ADAM(.lr = 0.1, .amsgrad = true);
    case TR_DIST_RULE_ADAMW: return TR_DIST_ADAMW(.lr = 0.1, .weight_decay = 0.1, .decay_matrices_only = true);
    case TR_DIST_RULE_RMSPROP: return TR_DIST_RMSPROP(.lr = 0.1, .momentum = 0.5, .centered = true);
    case TR_DIST_RULE_ADAMAX: return TR_DIST_ADAMAX(.lr = 0.1, .weight_decay = 0.1);
    case TR_DIST_RULE_NADAM: return TR_DIST_NADAM(.lr = 0.1, .momentum_decay = 0.01, .decoupled = true);
    case TR_DIST_RULE_RADAM: return TR_DIST_RADAM(.lr = 0.1, .beta2 = 0.8);
    case TR_DIST_RULE_ADADELTA: return TR_DIST_ADADELTA(.lr = 0.5, .rho = 0.8);
    case TR_DIST_RULE_RPROP: return TR_DIST_RPROP(.lr = 0.1, .most = 1);
    case TR_DIST_RULE_LION: return TR_DIST_LION(.lr = 0.01, .weight_decay = 0.1);
    case TR_DIST_RULE_LAMB: return TR_DIST_LAMB(.lr = 0.1, .matrices_only = true);
    case TR_DIST_RULE_LARS: return TR_DIST_LARS(.lr = 0.1, .trust = 0.1);
    case TR_DIST_RULE_MUON: return TR_DIST_MUON(.lr = 0.1, .iterations = 3);
    default: return TR_DIST_ADAGRAD(.lr = 0.1, .lr_decay = 0.1, .initial_accumulator = 0.1);
    }
}

static void check_parameters(rank *r, tr_rref **parameters, tr_tensor_list *twins)
{
    for (int i = 0; i < tr_list_count(twins); i++) {
        tr_tensor *there = tr_future_tensor(tr_rref_to_here(parameters[i]));
        OK(tr_status_of(there));
        CHECK(dist_difference(tr_detach(there), tr_detach(tr_list_at(twins, i))) < 1e-12);
    }
}

/* The workers' parameters get the twins' values. */
static void copy_parameters(rank *r, tr_rref **parameters, tr_tensor_list *twins)
{
    for (int i = 0; i < tr_list_count(twins); i++)
        OK(tr_copy_into(tr_list_at(twins, i), tr_future_tensor(tr_rref_to_here(parameters[i]))));
}

/* What a kind of optimizer takes of all parameters: Muon only the matrices. Names are numbers, as the references'. */
static int select_parameters(int kind, tr_rref *const *parameters, const tr_tensor_list *twins, tr_rref **taken,
    tr_tensor_list *taken_twins)
{
    int n = 0;
    for (int i = 0; i < tr_list_count(twins); i++) {
        char name[16];
        if (kind == TR_DIST_RULE_MUON && tr_ndim(tr_list_at(twins, i)) != 2) continue;
        snprintf(name, sizeof name, "%d", n);
        if (tr_list_add(taken_twins, name, tr_list_at(twins, i)) != TR_OK) break;
        taken[n++] = parameters[i];
    }
    return n;
}

static void train_with(rank *r, dist_worker *w, int kind, tr_rref **parameters)
{
    TR_SCOPE;
    tr_module *nets[DIST_WORKERS];
    tr_rref *taken[DIST_WORKERS * DIST_PARAMETERS];
    make_twins(nets);
    tr_tensor_list *twins = all_parameters(nets), *taken_twins = tr_list_new();
    copy_parameters(r, parameters, twins);
    int count = select_parameters(kind, parameters, twins, taken, taken_twins);
    tr_optimizer *twin = twin_of(kind, taken_twins);
    tr_dist_optimizer *optimizer = tr_dist_optimizer_new(w->rpc, taken, count, rule_of(kind));
    OK(tr_status_of(optimizer));
    for (int step = 0; step < 4; step++) {
        TR_SCOPE;
        TR_DIST_CONTEXT(w->rpc, context);
        double norm, twin_norm, lr = tr_step_lr(step, 0.1, 2);
        tr_zero_grad(twin);
        OK(tr_dist_backward(context, dist_loss(w, DIST_FAN, dist_input())));
        OK(tr_backward(dist_loss_here(nets, DIST_FAN, dist_input())));
        OK(tr_dist_clip_grad_norm(optimizer, context, 0.5, &norm));
        OK(tr_clip_grad_norm(twin, 0.5, &twin_norm));
        CHECK(fabs(norm - twin_norm) < 1e-12);
        OK(tr_dist_set_lr(optimizer, lr));
        OK(tr_set_lr(twin, lr));
        OK(tr_dist_step(optimizer, context));
        OK(tr_step(twin));
        check_parameters(r, parameters, twins);
        CHECK(!r->failure[0]);
    }
    tr_tensor_list *state = tr_dist_optimizer_state(optimizer), *twin_state = tr_optimizer_state(twin);
    CHECK(tr_list_count(state) == tr_list_count(twin_state));
    for (int i = 0; i < tr_list_count(state); i++) {
        tr_tensor *same = tr_list_find(twin_state, tr_list_name(state, i));
        CHECK(same && fabs(tr_item(tr_sum(tr_list_at(state, i))) - tr_item(tr_sum(same))) < 1e-10);
    }
    OK(tr_dist_optimizer_load(optimizer, state));
}

static void optimizers_on_w0(rank *r, dist_worker *w)
{
    tr_rref *parameters[DIST_WORKERS * DIST_PARAMETERS];
    OK(dist_parameters(w, parameters));
    for (int kind = 0; kind < TR_DIST_RULES && !r->failure[0]; kind++) train_with(r, w, kind, parameters);
}

static void run_optimizers(rank *r) { serve_or(r, optimizers_on_w0); }

static void optimizers_step_as_in_one_process(void **state)
{
    (void)state;
    run(DIST_WORKERS, run_optimizers, NULL);
}

/* ---- Failures ------------------------------------------------------------------------------------------------------------ */

static tr_status break_backward(tr_tensor *leaf, tr_tensor *gradient, void *user)
{
    (void)leaf, (void)gradient, (void)user;
    return tr_fail(TR_INVALID, "the hook does not like it");
}

static void run_failures(rank *r)
{
    dist_worker w;
    OK(dist_begin(&w, r->group));
    tr_tensor *weight = tr_list_at(tr_parameters(w.net), 0);
    int hook = r->number == 2 ? tr_grad_hook_add(weight, break_backward, NULL) : -1;
    OK(tr_barrier(r->group));
    if (r->number == 0) {
        TR_SCOPE;
        for (int mode = TR_DIST_FAST; mode <= TR_DIST_SMART; mode++) {
            TR_DIST_CONTEXT(w.rpc, context);
            tr_tensor *loss = dist_loss(&w, DIST_NESTED, dist_input());
            CHECK(tr_dist_backward(context, loss, .mode = (tr_dist_mode)mode) == TR_INVALID);
            SAYS("the hook does not like it");
            CHECK(tr_dist_backward(context, tr_mul(loss, loss), .gradient = loss, .count = -1) == TR_INVALID);
            tr_tensor *x = tr_randn(1, TR_SHAPE(1, DIST_WIDTH), .dtype = TR_F64);
            tr_tensor *h = tr_future_tensor(tr_rpc_sync(w.rpc, "w1", "layer", x));
            CHECK(tr_backward(tr_sum(h)) == TR_STATE);
            SAYS("tr_dist_backward");
        }
        CHECK(tr_dist_backward(NULL, weight) == TR_INVALID);
        CHECK(tr_dist_context_current(w.rpc) == NULL);
        tr_rref *bad = tr_rref_new(w.rpc, tr_value_i64(3));
        CHECK(tr_status_of(tr_dist_optimizer_new(w.rpc, &bad, 1, TR_DIST_SGD(.lr = 0.1))) == TR_INVALID);
        SAYS("parameter 0 is of kind i64, not a tensor");
        int none = tr_remote_parameters(tr_remote(w.rpc, "w1", "no_net"), &bad, 1);
        CHECK(none == -1 && tr_status_of(tr_dist_optimizer_new(w.rpc, &bad, none, TR_DIST_SGD(.lr = 0.1))) == TR_NOT_FOUND);
        SAYS("module.count on \"w1\": no_net: no function of that name is registered there");
    }
    OK(tr_barrier(r->group));
    if (hook >= 0) tr_grad_hook_remove(weight, hook);
    OK(tr_rpc_stop(w.rpc));
}

static void a_failure_anywhere_ends_the_backward_with_its_cause(void **state)
{
    (void)state;
    run(DIST_WORKERS, run_failures, NULL);
}

/* The layer's result, from a thread of the program's: it belongs to the context of the call nevertheless. */
typedef struct deferred_layer {
    tr_rpc_reply *reply; /* kept */
    tr_tensor *y;        /* kept */
} deferred_layer;

static void *give_layer(void *arg)
{
    deferred_layer *d = arg;
    (void)!tr_reply_with(d->reply, tr_value_tensor(d->y));
    tr_release(d->reply);
    tr_release(d->y);
    free(d);
    return NULL;
}

static tr_tensor *later_layer(void *state, tr_tensor *x)
{
    deferred_layer *d = malloc(sizeof *d);
    pthread_t thread;
    *d = (deferred_layer){tr_keep(tr_rpc_defer()), tr_keep(tr_tanh(tr_forward(((dist_worker *)state)->net, x)))};
    if (pthread_create(&thread, NULL, give_layer, d) == 0) pthread_detach(thread);
    return NULL;
}
TR_RPC_WITH_STATE(later_layer, TENSOR, RETURNS(TENSOR));

static void run_deferred_layers(rank *r)
{
    dist_worker w;
    OK(dist_begin(&w, r->group));
    OK(tr_rpc_register(w.rpc, &later_layer_rpc, .state = &w));
    OK(tr_barrier(r->group));
    for (int mode = TR_DIST_FAST; r->number == 0 && mode <= TR_DIST_SMART; mode++) {
        TR_SCOPE;
        tr_module *nets[DIST_WORKERS];
        make_twins(nets);
        TR_DIST_CONTEXT(w.rpc, context);
        tr_tensor *h = tr_forward(w.net, dist_input());
        tr_tensor *y = tr_future_tensor(tr_rpc_sync(w.rpc, "w1", "later_layer", h));
        OK(tr_dist_backward(context, tr_sum(y), .mode = (tr_dist_mode)mode));
        OK(tr_backward(tr_sum(tr_tanh(tr_forward(nets[1], tr_forward(nets[0], dist_input()))))));
        check_grads(r, &w, nets);
    }
    OK(tr_barrier(r->group));
    OK(tr_rpc_stop(w.rpc));
}

static void an_answer_of_another_thread_belongs_to_its_calls_context(void **state)
{
    (void)state;
    run(DIST_WORKERS, run_deferred_layers, NULL);
}

static tr_tensor *tanh_twice(tr_tensor *x)
{
    return tr_tanh(tr_tanh(x));
}
TR_RPC(tanh_twice, TENSOR, RETURNS(TENSOR));

/* Of so much that whoever waits for the gradient goes to sleep. */
static double train_here(const char *with)
{
    tr_rpc *rpc = tr_rpc_current();
    TR_DIST_CONTEXT(rpc, context);
    tr_tensor *x = tr_require_grad(tr_full(0.5, TR_SHAPE(1 << 20)));
    tr_tensor *y = tr_future_tensor(tr_rpc_sync(rpc, with, "tanh_twice", x));
    if (tr_dist_backward(context, tr_sum(y), .timeout_ms = 20000) != TR_OK) return -1;
    return tr_item(tr_sum(tr_dist_grad(context, x)));
}
TR_RPC(train_here, STRING, RETURNS(F64));

/* Each worker's only thread is at a backward, and yet both take the other's gradients. */
static void train_with_one_thread(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = tr_rpc_start(r->group, .name = r->number ? "w1" : "w0", .threads = 1);
    OK(tr_dist_start(rpc));
    OK(tr_rpc_register(rpc, &tanh_twice_rpc));
    OK(tr_rpc_register(rpc, &train_here_rpc));
    OK(tr_barrier(r->group));
    const char *other = r->number ? "w0" : "w1", *own = r->number ? "w1" : "w0";
    CHECK(tr_future_f64(tr_rpc_sync(rpc, other, "train_here", own)) > 0);
    OK(tr_rpc_stop(rpc));
}

static void a_backward_in_a_function_leaves_its_thread_to_others(void **state)
{
    (void)state;
    run(2, train_with_one_thread, NULL);
}

/* Only w0 has called tr_dist_start(). */
static void run_half_started(rank *r)
{
    tr_rpc *rpc = tr_rpc_start(r->group, .name = r->number ? "w1" : "w0");
    OK(tr_status_of(rpc));
    OK(tr_rpc_register(rpc, &tanh_twice_rpc));
    OK(tr_barrier(r->group));
    if (r->number == 0) {
        TR_SCOPE;
        OK(tr_dist_start(rpc));
        TR_DIST_CONTEXT(rpc, context);
        for (int with = 0; with < 2; with++) { /* a gradient in the argument */
            tr_tensor *x = tr_ones(TR_SHAPE(2), .requires_grad = with), *y = tr_future_tensor(tr_rpc_sync(rpc, "w1", "tanh_twice", x));
            CHECK(tr_dist_backward(context, tr_sum(y)) == TR_STATE);
            SAYS("worker 1 (\"w1\") answered a call of a context without tr_dist_start()");
        }
        tr_rref *layer = tr_remote(rpc, "w1", "tanh_twice", tr_ones(TR_SHAPE(2)));
        CHECK(tr_status_of(tr_forward(tr_remote_module(layer), tr_ones(TR_SHAPE(2)))) == TR_NOT_FOUND);
        SAYS("module.forward on \"w1\": tr_dist_start() has not been called there");
    }
    OK(tr_barrier(r->group));
    OK(tr_rpc_stop(rpc));
}

static void a_worker_without_tr_dist_start_is_named(void **state)
{
    (void)state;
    run(2, run_half_started, NULL);
}

/* Answers when its caller has given up, with a result that has a gradient. */
static atomic_int given_up;

static tr_tensor *late_layer(void *state, tr_tensor *x)
{
    for (int ms = 0; !atomic_load(&given_up) && ms < JOIN_MS; ms++) usleep(1000);
    return tr_tanh(tr_forward(((dist_worker *)state)->net, x));
}
TR_RPC_WITH_STATE(late_layer, TENSOR, RETURNS(TENSOR));

static void run_late_replies(rank *r)
{
    dist_worker w;
    OK(dist_begin(&w, r->group));
    OK(tr_rpc_register(w.rpc, &late_layer_rpc, .state = &w));
    OK(tr_barrier(r->group));
    for (int mode = TR_DIST_FAST; r->number == 0 && mode <= TR_DIST_SMART; mode++) {
        TR_SCOPE;
        TR_DIST_CONTEXT(w.rpc, context);
        tr_tensor *h = tr_forward(w.net, dist_input());
        tr_rpc_call late = {.size = sizeof late, .rpc = w.rpc, .to = "w1", .function = "late_layer",
            .arguments = TR_VALUES(h), .count = 1, .timeout_ms = 5};
        atomic_store(&given_up, 0);
        CHECK(tr_future_wait(tr_rpc_sync_with(&late)) == TR_TIMEOUT);
        atomic_store(&given_up, 1);
        tr_tensor *y = tr_future_tensor(tr_rpc_sync(w.rpc, "w2", "layer", h));
        OK(tr_dist_backward(context, tr_sum(y), .mode = (tr_dist_mode)mode));
        OK(tr_status_of(dist_fetch_grad(&w, 2, 0)));
    }
    OK(tr_barrier(r->group));
    OK(tr_rpc_stop(w.rpc));
}

static void a_reply_that_comes_too_late_is_not_waited_for(void **state)
{
    (void)state;
    run(DIST_WORKERS, run_late_replies, NULL);
}

/* A result that has a gradient, and does not fit into a message. */
static tr_tensor_list *flood(void *state, tr_tensor *x)
{
    enum { TENSORS = 4100, LARGE = 600 };
    tr_tensor_list *list = tr_list_new();
    tr_tensor *large = tr_zeros(TR_SHAPE(LARGE));
    char name[16];
    if (tr_list_add(list, "y", tr_forward(((dist_worker *)state)->net, x)) != TR_OK) return list;
    for (int i = 0; i < TENSORS; i++) {
        snprintf(name, sizeof name, "%d", i);
        if (tr_list_add(list, name, large) != TR_OK) return list;
    }
    return list;
}
TR_RPC_WITH_STATE(flood, TENSOR, RETURNS(TENSORS));

static void run_unsent_replies(rank *r)
{
    dist_worker w;
    OK(dist_begin(&w, r->group));
    OK(tr_rpc_register(w.rpc, &flood_rpc, .state = &w));
    OK(tr_barrier(r->group));
    for (int mode = TR_DIST_FAST; r->number == 0 && mode <= TR_DIST_SMART; mode++) {
        TR_SCOPE;
        TR_DIST_CONTEXT(w.rpc, context);
        tr_tensor *h = tr_forward(w.net, dist_input());
        CHECK(tr_future_wait(tr_rpc_sync(w.rpc, "w1", "flood", h)) == TR_INVALID);
        SAYS("rpc: flood on \"w1\": rpc: a message has at most");
        tr_tensor *y = tr_future_tensor(tr_rpc_sync(w.rpc, "w1", "layer", h));
        OK(tr_dist_backward(context, tr_sum(y), .mode = (tr_dist_mode)mode));
        OK(tr_status_of(dist_fetch_grad(&w, 1, 0)));
    }
    OK(tr_barrier(r->group));
    OK(tr_rpc_stop(w.rpc));
}

static void a_reply_that_cannot_be_sent_is_not_waited_for(void **state)
{
    (void)state;
    run(DIST_WORKERS, run_unsent_replies, NULL);
}

/* ---- A context that ends before a call in it begins -------------------------------------------------------------------- */

static tr_status refuse(tr_rref *ref)
{
    (void)ref;
    return tr_fail(TR_SHAPE, "it does not fit");
}
TR_RPC(refuse, RREF, RETURNS(NONE));

static int calls_under_way(tr_rpc *rpc)
{
    pthread_mutex_lock(&rpc->calls_lock);
    int count = rpc->call_count;
    pthread_mutex_unlock(&rpc->calls_lock);
    return count;
}

static bool has_contexts(const dist_worker *w)
{
    tr__dist *d = tr__rpc_user(w->rpc);
    pthread_mutex_lock(&d->lock);
    bool has = d->contexts;
    pthread_mutex_unlock(&d->lock);
    return has;
}

/* w1's threads stop at the references in two calls, while another one is told that their context has ended. The first call fails,
 * the result of the second one stays. */
static void run_overtaken(rank *r)
{
    dist_worker w;
    OK(dist_begin(&w, r->group));
    OK(tr_rpc_register(w.rpc, &refuse_rpc));
    if (r->number == 1) pthread_mutex_lock(&w.rpc->refs_lock);
    OK(tr_barrier(r->group));
    if (r->number == 0) {
        TR_SCOPE;
        tr_rref *ref = tr_rref_new(w.rpc, tr_value_i64(1)), *stays;
        tr_future *f;
        {
            TR_DIST_CONTEXT(w.rpc, context);
            f = tr_rpc_async(w.rpc, "w1", "refuse", ref);
            stays = tr_remote(w.rpc, "w1", "refuse", ref);
        }
        while (calls_under_way(w.rpc) > 2) usleep(1000);
        OK(tr_barrier(r->group));
        CHECK(tr_future_wait(f) == TR_SHAPE);
        CHECK(tr_future_wait(tr_rref_to_here(stays)) == TR_SHAPE);
    } else {
        OK(tr_barrier(r->group));
        if (r->number == 1) pthread_mutex_unlock(&w.rpc->refs_lock);
    }
    OK(tr_barrier(r->group));
    for (int ms = 0; has_contexts(&w) && ms < JOIN_MS / 4; ms++) usleep(1000);
    CHECK(!has_contexts(&w));
    OK(tr_rpc_stop(w.rpc));
}

static void a_context_that_ended_before_its_calls_is_no_more(void **state)
{
    (void)state;
    run(DIST_WORKERS, run_overtaken, NULL);
}

/* ---- Tensors that travelled outside the context --------------------------------------------------------------------------- */

typedef struct heard {
    atomic_int count;
    char text[1024]; /* the first */
} heard;

static void hear(tr_log_level level, const char *message, void *user)
{
    heard *h = user;
    if (level == TR_LOG_WARN && atomic_fetch_add(&h->count, 1) == 0) snprintf(h->text, sizeof h->text, "%s", message);
}

static void run_heard(void (*body)(rank *r), heard *h)
{
    *h = (heard){0};
    tr_set_log(hear, h, TR_LOG_WARN);
    run(DIST_WORKERS, body, h);
    tr_set_log(NULL, NULL, TR_LOG_OFF);
}

static tr_tensor *ask_layer(dist_worker *w, const char *to, tr_tensor *x)
{
    return tr_future_tensor(tr_rpc_sync(w->rpc, to, "layer", x));
}

/* w1's layer is asked before there is a context; w0's own layer goes on from there. */
static void asks_too_early(rank *r, dist_worker *w)
{
    const heard *h = r->arg;
    tr_tensor *y = tr_affine(ask_layer(w, "w1", dist_input()), 2, 0);
    for (int mode = TR_DIST_FAST; mode <= TR_DIST_SMART; mode++) {
        TR_DIST_CONTEXT(w->rpc, context);
        OK(tr_dist_backward(context, tr_sum(tr_forward(w->net, y)), .mode = (tr_dist_mode)mode));
        CHECK(tr_dist_grad(context, tr_list_at(tr_parameters(w->net), 0)));
        CHECK(tr_status_of(dist_fetch_grad(w, 1, 0)) == TR_NOT_FOUND);
        CHECK(atomic_load(&h->count) == 1);
    }
    CHECK(strstr(h->text, "on worker 0 an input of \"linear\" came from another worker in a call outside the context"));
    CHECK(strstr(h->text, "Make the context (TR_DIST_CONTEXT) before the calls"));
    TR_DIST_CONTEXT(w->rpc, context);
    CHECK(tr_dist_backward(context, tr_sum(y)) == TR_STATE);
    SAYS("stayed at another worker: make the distributed context before the calls");
    OK(tr_dist_backward(context, tr_sum(ask_layer(w, "w2", y)))); /* on w2, which gets it in a context, it is no better */
    CHECK(atomic_load(&h->count) == 2);
}

static void run_asks_too_early(rank *r) { serve_or(r, asks_too_early); }

static void what_travelled_before_the_context_is_told_once(void **state)
{
    (void)state;
    heard h;
    run_heard(run_asks_too_early, &h);
}

/* Evaluation outside contexts, parameters that are looked at, what is frozen, and what is detached. */
static void asks_on_purpose(rank *r, dist_worker *w)
{
    tr_rref *parameters[DIST_WORKERS * DIST_PARAMETERS];
    OK(dist_parameters(w, parameters));
    tr_tensor *y = ask_layer(w, "w1", dist_input()), *weight = tr_future_tensor(tr_rref_to_here(parameters[2]));
    CHECK(tr_item(tr_sum(tr_forward(w->net, y))) != 0 && tr_item(tr_sum(weight)) != 0);
    TR_DIST_CONTEXT(w->rpc, context);
    tr_tensor *there = ask_layer(w, "w1", dist_input());
    OK(tr_dist_backward(context, tr_sum(tr_forward(w->net, tr_mul(there, tr_detach(y))))));
    OK(tr_status_of(dist_fetch_grad(w, 1, 0)));
    CHECK(atomic_load(&((const heard *)r->arg)->count) == 0);
}

static void run_asks_on_purpose(rank *r) { serve_or(r, asks_on_purpose); }

static void what_no_backward_meets_is_not_told(void **state)
{
    (void)state;
    heard h;
    run_heard(run_asks_on_purpose, &h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pattern_leaves_the_gradients_of_one_process),
        cmocka_unit_test(gradients_are_those_of_pytorchs_distributed_autograd),
        cmocka_unit_test(contexts_at_the_same_time_do_not_mix),
        cmocka_unit_test(optimizers_step_as_in_one_process),
        cmocka_unit_test(a_failure_anywhere_ends_the_backward_with_its_cause),
        cmocka_unit_test(an_answer_of_another_thread_belongs_to_its_calls_context),
        cmocka_unit_test(a_backward_in_a_function_leaves_its_thread_to_others),
        cmocka_unit_test(a_worker_without_tr_dist_start_is_named),
        cmocka_unit_test(a_reply_that_comes_too_late_is_not_waited_for),
        cmocka_unit_test(a_reply_that_cannot_be_sent_is_not_waited_for),
        cmocka_unit_test(a_context_that_ended_before_its_calls_is_no_more),
        cmocka_unit_test(what_travelled_before_the_context_is_told_once),
        cmocka_unit_test(what_no_backward_meets_is_not_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
