/* Remote modules, between threads as workers. ctest: timeout=240 */
#include "dist_ranks.h"
#include "sanitized.h"

#include "ops/segment.h"

#include <trireme/models.h>

static void modules_on_w0(rank *r, dist_worker *w)
{
    tr_module *nets[DIST_WORKERS];
    make_twins(nets);
    TR_DIST_CONTEXT(w->rpc, context);
    tr_rref *ref = tr_remote(w->rpc, "w2", "net");
    tr_module *there = tr_remote_module(ref), *again = tr_remote_module(ref);
    OK(tr_status_of(there));
    tr_module *net = tr_sequential(w->net, there), *twin = tr_sequential(nets[0], nets[2]);
    tr_tensor *x = tr_randn(3, TR_SHAPE(DIST_BATCH, DIST_WIDTH), .dtype = TR_F64);
    OK(tr_dist_backward(context, tr_sum(tr_forward(net, x))));
    OK(tr_backward(tr_sum(tr_forward(twin, x))));
    check_grads(r, w, nets);
    enum { both = 2 * DIST_PARAMETERS };
    tr_rref *parameters[both + 1] = {NULL};
    tr_module *twice = tr_sequential(there, w->net, there, w->net, again);
    CHECK(tr_dist_parameters(w->rpc, twice, NULL, 0) == both);
    int beyond = tr_dist_parameters(w->rpc, twice, parameters, both - 1);
    CHECK(beyond == -1 && !parameters[both - 1]);
    CHECK(tr_status_of(tr_dist_optimizer_new(w->rpc, parameters, beyond, TR_DIST_SGD(.lr = 0.1))) == TR_INVALID);
    CHECK(tr_dist_parameters(w->rpc, twice, parameters, both + 1) == both && !parameters[both]);
    for (int i = 0; i < both; i++) {
        CHECK(tr_rref_owner(parameters[i]) == (i < DIST_PARAMETERS ? 2 : 0));
        tr_tensor *same = tr_list_at(tr_parameters(nets[i < DIST_PARAMETERS ? 2 : 0]), i % DIST_PARAMETERS);
        CHECK(dist_difference(tr_detach(tr_future_tensor(tr_rref_to_here(parameters[i]))), tr_detach(same)) == 0);
    }
    tr_module *none = tr_remote_module(tr_remote(w->rpc, "w2", "no such function"));
    CHECK(tr_dist_parameters(w->rpc, tr_sequential(w->net, none), parameters, both) == -1);
    SAYS("no function of that name");
    tr_tensor *y = tr_forward(there, tr_zeros(TR_SHAPE(1, 9), .dtype = TR_F64));
    CHECK(tr_status_of(y) == TR_SHAPE);
    SAYS("w2");
}

static void run_modules(rank *r) { serve_or(r, modules_on_w0); }

static void a_remote_module_is_called_like_a_local_one(void **state)
{
    (void)state;
    run(DIST_WORKERS, run_modules, NULL);
}

static tr_module *make_transformer(void)
{
    return tr_transformer(.dim = 8, .heads = 2, .layers = 1, .seed = 1);
}

static void *transformer(void) { return make_transformer(); }
TR_RPC(transformer, RETURNS(OBJECT));

static void run_masks(rank *r)
{
    dist_worker w;
    OK(dist_begin(&w, r->group));
    OK(tr_rpc_register(w.rpc, &transformer_rpc));
    OK(tr_barrier(r->group));
    if (r->number == 0) {
        TR_SCOPE;
        tr_module *there = tr_remote_module(tr_remote(w.rpc, "w1", "transformer")), *twin = make_transformer();
        tr_tensor *src = tr_randn(1, TR_SHAPE(2, 5, 8)), *tgt = tr_randn(2, TR_SHAPE(2, 3, 8));
        tr_tensor *keys = tr_less(tr_rand(3, TR_SHAPE(2, 5)), tr_scalar(0.7, TR_F32));
        tr_tensor *y = tr_forward(there, src, tgt, keys, NULL, keys);
        OK(tr_status_of(y));
        CHECK(dist_difference(y, tr_detach(tr_forward(twin, src, tgt, keys, NULL, keys))) == 0);
        y = tr_forward(there, src, tgt, keys, NULL, NULL);
        OK(tr_status_of(y));
        CHECK(dist_difference(y, tr_detach(tr_forward(twin, src, tgt, keys))) == 0);
        CHECK(tr_status_of(tr_forward(there, src, tgt, NULL, NULL, NULL, NULL)) == TR_INVALID); /* the module counts NULLs, too */
        SAYS("not 6 inputs");
        CHECK(tr_status_of(tr_forward(there, src, src, src, src, src, src, src, src, src)) == TR_INVALID);
        SAYS("9 inputs, of at most 8");
    }
    OK(tr_barrier(r->group));
    OK(tr_rpc_stop(w.rpc));
}

static void inputs_of_a_remote_module_may_be_null(void **state)
{
    (void)state;
    run(DIST_WORKERS, run_masks, NULL);
}

/* What it gives depends on its mode, and on what its dropouts draw. */
static tr_module *noisy_net(void)
{
    return tr_sequential(dist_net(2), tr_batch_norm1d(DIST_WIDTH, .dtype = TR_F64), tr_sequential(tr_dropout_layer(0.5)));
}

static void *noisy(void *state) { return state; }
TR_RPC_WITH_STATE(noisy, RETURNS(OBJECT));
/* evaluate: 1: all of it; 2: all but its batch norm */
static tr_status set_noisy(void *state, int64_t recompute, int64_t evaluate)
{
    tr_status status = tr_set_recompute(state, recompute);
    if (status == TR_OK) status = evaluate ? tr_eval(state) : tr_train(state);
    return status == TR_OK && evaluate == 2 ? tr_train(tr_module_find(state, "1")) : status;
}
TR_RPC_WITH_STATE(set_noisy, I64, I64, RETURNS(NONE));

/* Forward and backward, of a net that has a remote part and of its twin. */
static void compare_modes(rank *r, dist_worker *w, tr_module *net, tr_module *twin)
{
    TR_DIST_CONTEXT(w->rpc, context);
    tr_tensor *weight = tr_randn(4, TR_SHAPE(8, DIST_WIDTH), .dtype = TR_F64);
    tr_tensor *x = tr_require_grad(tr_randn(3, TR_SHAPE(8, DIST_WIDTH), .dtype = TR_F64)), *there = tr_forward(net, x);
    OK(tr_status_of(there));
    tr_tensor *here = tr_forward(twin, x);
    CHECK(dist_difference(tr_detach(there), tr_detach(here)) == 0);
    OK(tr_seed(net, 1) == TR_OK ? tr_seed(twin, 1) : TR_INTERNAL); /* what is computed again draws what it drew */
    OK(tr_dist_backward(context, tr_sum(tr_mul(there, weight))));
    OK(tr_backward(tr_sum(tr_mul(here, weight))));
    CHECK(dist_difference(tr_dist_grad(context, x), tr_grad(x)) < 1e-12);
}

static void modes_on_w0(rank *r, dist_worker *w)
{
    tr_rref *ref = tr_remote(w->rpc, "w2", "noisy");
    tr_module *net = tr_sequential(tr_dropout_layer(0.5), tr_remote_module(ref), tr_activation_layer(tr_gelu));
    tr_module *twin = tr_sequential(tr_dropout_layer(0.5), noisy_net(), tr_activation_layer(tr_gelu));
    tr_module *other = tr_remote_module(ref);
    tr_tensor *x = tr_randn(3, TR_SHAPE(8, DIST_WIDTH), .dtype = TR_F64);
    for (int recompute = 0; recompute < 4 && !r->failure[0]; recompute++) {
        OK(tr_future_wait(tr_rpc_sync(w->rpc, "w2", "set_noisy", recompute & 1, 0)));
        OK(tr_set_recompute(net, recompute & 2) == TR_OK ? tr_set_recompute(twin, recompute & 2) : TR_INTERNAL);
        for (int step = 0; step < 3; step++) {
            TR_SCOPE;
            OK(tr_train(net) == TR_OK ? tr_train(twin) : TR_INTERNAL);
            OK(tr_seed(net, 9, .step = (uint64_t)step, .first_sample = 5));
            OK(tr_seed(twin, 9, .step = (uint64_t)step, .first_sample = 5));
            compare_modes(r, w, net, twin);
            OK(tr_eval(net) == TR_OK ? tr_eval(twin) : TR_INTERNAL);
            compare_modes(r, w, net, twin);
        }
    }
    OK(tr_future_wait(tr_rpc_sync(w->rpc, "w2", "set_noisy", 1, 2)));
    compare_modes(r, w, net, twin); /* which evaluate: backward computes nothing again in the owner's mode */
    OK(tr_future_wait(tr_rpc_sync(w->rpc, "w2", "set_noisy", 1, 0)));
    CHECK(tr_status_of(tr_forward(other, x)) == TR_STATE); /* others have modes and seeds of their own */
    SAYS("no random numbers");
    OK(tr_future_wait(tr_rpc_sync(w->rpc, "w2", "set_noisy", 0, 1)));
    CHECK(dist_difference(tr_forward(other, x), tr_forward(other, x)) == 0); /* the owner evaluates */
}

static void run_modes(rank *r)
{
    dist_worker w;
    tr_module *net = noisy_net();
    OK(dist_begin(&w, r->group));
    OK(tr_rpc_register(w.rpc, &noisy_rpc, .state = net));
    OK(tr_rpc_register(w.rpc, &set_noisy_rpc, .state = net));
    OK(tr_barrier(r->group));
    if (r->number == 0) {
        TR_SCOPE;
        modes_on_w0(r, &w);
    }
    OK(tr_barrier(r->group));
    OK(tr_rpc_stop(w.rpc));
}

static void a_remote_module_runs_in_its_callers_mode(void **state)
{
    (void)state;
    run(DIST_WORKERS, run_modes, NULL);
}

/* Each call makes the next one, until all threads of the agent wait: from then on these run what comes. */
enum { CALLS = THREADS_SANITIZED ? 20 : 520 };
typedef struct deep {
    tr_rpc *rpc;
    tr_module *next;
} deep;

static tr_tensor *deep_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    TR_SCOPE;
    TR_AUTOCAST(TR_BF16);
    const deep *d = tr_module_state(self);
    if (tr_item(inputs[0]) > 0) return tr_escape(tr_forward(d->next, tr_affine(inputs[0], 1, -1)));
    tr_future *alone = tr_rpc_sync(d->rpc, "w0", "runs_alone");
    return tr_escape(tr_scalar(tr_future_wait(alone) == TR_OK ? (double)tr_future_i64(alone) : -1, TR_F64));
}

static void *deep_module(void *state) { return state; }
TR_RPC_WITH_STATE(deep_module, RETURNS(OBJECT));
static int64_t runs_alone(void *state)
{
    return tr_module_training(state) && tr_autocast() == TR_F32 && !tr__segment_runs();
}
TR_RPC_WITH_STATE(runs_alone, RETURNS(I64));

static void run_deep(rank *r)
{
    TR_SCOPE;
    dist_worker w;
    tr_module *module = tr_module_new("deep", sizeof(deep), deep_forward);
    OK(dist_begin(&w, r->group));
    OK(tr_rpc_register(w.rpc, &deep_module_rpc, .state = module));
    OK(tr_rpc_register(w.rpc, &runs_alone_rpc, .state = module));
    deep *d = tr_module_state(module);
    *d = (deep){w.rpc, tr_remote_module(tr_remote(w.rpc, "w0", "deep_module"))};
    for (int recompute = 0; recompute < 2; recompute++) {
        TR_DIST_CONTEXT(w.rpc, context);
        OK(recompute ? tr_train(d->next) : tr_eval(d->next));
        OK(tr_set_recompute(module, recompute));
        CHECK(tr_item(tr_forward(d->next, tr_require_grad(tr_scalar(CALLS, TR_F64)))) == 1);
    }
    OK(tr_rpc_stop(w.rpc));
}

static void what_a_waiting_thread_runs_is_not_in_its_mode(void **state)
{
    (void)state;
    run(1, run_deep, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_remote_module_is_called_like_a_local_one),
        cmocka_unit_test(inputs_of_a_remote_module_may_be_null),
        cmocka_unit_test(a_remote_module_runs_in_its_callers_mode),
        cmocka_unit_test(what_a_waiting_thread_runs_is_not_in_its_mode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
