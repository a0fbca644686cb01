/* Distributed optimizers that step during a backward, as gradients become complete: as if they had stepped after it. */
#include "dist_ranks.h"

enum { PARAMETERS = DIST_WORKERS * DIST_PARAMETERS };

/* What w0 trains, and the same in this process. */
typedef struct pair {
    dist_worker *w;
    tr_rref *there[PARAMETERS];
    tr_module *nets[DIST_WORKERS];
    tr_tensor_list *here;
    tr_dist_optimizer *optimizer;
    tr_optimizer *twin;
} pair;

static void make_pair(rank *r, dist_worker *w, bool adamw, pair *p)
{
    p->w = w;
    p->here = tr_list_new();
    OK(dist_parameters(w, p->there));
    for (int i = 0; i < PARAMETERS; i++) {
        char name[16];
        int worker = i / DIST_PARAMETERS;
        snprintf(name, sizeof name, "%d", i);
        if (i % DIST_PARAMETERS == 0) p->nets[worker] = dist_net(worker);
        OK(tr_list_add(p->here, name, tr_list_at(tr_parameters(p->nets[worker]), i % DIST_PARAMETERS)));
        OK(tr_copy_into(tr_list_at(p->here, i), tr_future_tensor(tr_rref_to_here(p->there[i])))); /* as former tests left them */
    }
    tr_dist_rule rule = adamw ? TR_DIST_ADAMW(.lr = 0.1) : TR_DIST_SGD(.lr = 0.1, .momentum = 0.9, .nesterov = true);
    p->twin = adamw ? tr_adamw(p->here, .lr = 0.1) : tr_sgd(p->here, .lr = 0.1, .momentum = 0.9, .nesterov = true);
    p->optimizer = tr_dist_optimizer_new(w->rpc, p->there, PARAMETERS, rule);
    OK(tr_status_of(p->optimizer));
}

static void check_pair(rank *r, const pair *p)
{
    for (int i = 0; i < PARAMETERS; i++) {
        tr_tensor *there = tr_future_tensor(tr_rref_to_here(p->there[i]));
        OK(tr_status_of(there));
        CHECK(dist_difference(tr_detach(there), tr_detach(tr_list_at(p->here, i))) < 1e-12);
    }
}

/* ---- As after it --------------------------------------------------------------------------------------------------------- */

/* Parameters are used in several calls, or in none; what a backward reaches has been stepped when it ends. */
static void train_pattern(rank *r, pair *p, dist_pattern pattern, tr_dist_mode mode)
{
    TR_SCOPE;
    TR_DIST_CONTEXT(p->w->rpc, context);
    tr_zero_grad(p->twin);
    OK(tr_dist_step_in_backward(p->optimizer, context));
    OK(tr_dist_backward(context, dist_loss(p->w, pattern, dist_input()), .mode = mode));
    OK(tr_backward(dist_loss_here(p->nets, pattern, dist_input())));
    OK(tr_step(p->twin));
    check_pair(r, p);
    OK(tr_dist_step(p->optimizer, context)); /* nothing is left */
    check_pair(r, p);
    OK(tr_dist_step(p->optimizer, context)); /* once more, with all, as ever */
    OK(tr_step(p->twin));
    check_pair(r, p);
}

static void patterns_on_w0(rank *r, dist_worker *w)
{
    for (int adamw = 0; adamw < 2; adamw++) {
        pair p;
        make_pair(r, w, adamw, &p);
        for (int i = 0; i < 2 * DIST_PATTERN_COUNT && !r->failure[0]; i++)
            train_pattern(r, &p, (dist_pattern)(i / 2), i % 2 ? TR_DIST_SMART : TR_DIST_FAST);
    }
}

static void run_patterns(rank *r) { serve_or(r, patterns_on_w0); }

static void steps_during_a_backward_are_those_after_it(void **state)
{
    (void)state;
    run(DIST_WORKERS, run_patterns, NULL);
}

/* ---- Several backwards --------------------------------------------------------------------------------------------------- */

/* The first goes through all workers, the second, which steps, through w1 alone: the rest is left for the end. */
static void gather_on_w0(rank *r, dist_worker *w)
{
    pair p;
    make_pair(r, w, false, &p);
    CHECK(!r->failure[0]);
    TR_DIST_CONTEXT(w->rpc, context);
    tr_tensor *x = dist_input(), *y = tr_future_tensor(tr_rpc_sync(w->rpc, "w1", "layer", x));
    OK(tr_dist_backward(context, dist_loss(w, DIST_CHAIN, x)));
    OK(tr_dist_step_in_backward(p.optimizer, context));
    OK(tr_dist_backward(context, tr_sum(y), .mode = TR_DIST_SMART));
    OK(tr_backward(dist_loss_here(p.nets, DIST_CHAIN, x)));
    OK(tr_backward(tr_sum(tr_tanh(tr_forward(p.nets[1], x)))));
    OK(tr_step(p.twin));
    tr_tensor *untouched = tr_future_tensor(tr_rref_to_here(p.there[0]));
    CHECK(dist_difference(tr_detach(untouched), tr_detach(tr_list_at(p.here, 0))) > 1e-6);
    OK(tr_dist_step(p.optimizer, context));
    check_pair(r, &p);
}

static void run_gather(rank *r) { serve_or(r, gather_on_w0); }

static void what_backwards_before_gave_counts_too(void **state)
{
    (void)state;
    run(DIST_WORKERS, run_gather, NULL);
}

/* ---- Hooks --------------------------------------------------------------------------------------------------------------- */

static tr_status halve(tr_tensor *leaf, tr_tensor *gradient, void *user)
{
    (void)leaf, (void)user;
    return tr_copy_into(gradient, tr_affine(gradient, 0.5, 0));
}

/* w1 scales its weight's gradient. */
static void run_hooks(rank *r)
{
    dist_worker w;
    OK(dist_begin(&w, r->group));
    if (r->number == 1) CHECK(tr_grad_hook_add(tr_list_at(tr_parameters(w.net), 0), halve, NULL) >= 0);
    OK(tr_barrier(r->group));
    if (r->number == 0) {
        TR_SCOPE;
        pair p;
        make_pair(r, &w, false, &p);
        CHECK(!r->failure[0] && tr_grad_hook_add(tr_list_at(tr_parameters(p.nets[1]), 0), halve, NULL) >= 0);
        train_pattern(r, &p, DIST_FAN, TR_DIST_FAST);
    }
    OK(tr_barrier(r->group));
    OK(tr_rpc_stop(w.rpc));
}

static void hooks_run_before_the_step(void **state)
{
    (void)state;
    run(DIST_WORKERS, run_hooks, NULL);
}

/* ---- What cannot be ------------------------------------------------------------------------------------------------------ */

static void refusals_on_w0(rank *r, dist_worker *w)
{
    pair p;
    make_pair(r, w, false, &p);
    CHECK(!r->failure[0]);
    TR_DIST_CONTEXT(w->rpc, context);
    tr_tensor *loss = dist_loss(w, DIST_CHAIN, dist_input());
    OK(tr_dist_step_in_backward(p.optimizer, context));
    CHECK(tr_dist_clip_grad_norm(p.optimizer, context, 1, NULL) == TR_STATE);
    SAYS("the norm is not known");
    OK(tr_dist_backward(context, loss, .retain_graph = true));
    CHECK(tr_dist_clip_grad_norm(p.optimizer, context, 1, NULL) == TR_STATE);
    CHECK(tr_dist_backward(context, loss) == TR_STATE);
    SAYS("before the last backward only");
    OK(tr_dist_step(p.optimizer, context));
    OK(tr_dist_clip_grad_norm(p.optimizer, context, 1, NULL));
    CHECK(tr_dist_step_in_backward(NULL, context) == TR_INVALID);
    CHECK(tr_dist_step_in_backward(p.optimizer, NULL) == TR_INVALID);
}

static void run_refusals(rank *r) { serve_or(r, refusals_on_w0); }

static void clipping_and_a_second_backward_are_refused(void **state)
{
    (void)state;
    run(DIST_WORKERS, run_refusals, NULL);
}

/* ---- Several trainers ---------------------------------------------------------------------------------------------------- */

/* All workers train at the same time, each in contexts of its own and the layer of its neighbour, by optimizers of all layers:
 * at an owner steps during a backward meet those of others, which touch all of its leaves. The output is linear in the weight,
 * so that each step changes that by the same amount, and none may be lost. */
static void run_trainers(rank *r)
{
    enum { STEPS = 30 };
    const double lr = 0.01;
    dist_worker w;
    tr_rref *parameters[PARAMETERS];
    OK(dist_begin(&w, r->group));
    OK(dist_parameters(&w, parameters));
    tr_dist_optimizer *optimizer = tr_dist_optimizer_new(w.rpc, parameters, PARAMETERS, TR_DIST_SGD(.lr = lr));
    OK(tr_status_of(optimizer));
    OK(tr_barrier(r->group)); /* no parameters move any more */
    tr_module *there = tr_remote_module(tr_remote(w.rpc, tr_rpc_name(w.rpc, (r->number + 1) % DIST_WORKERS), "net"));
    for (int i = 0; i < STEPS; i++) {
        TR_SCOPE;
        TR_DIST_CONTEXT(w.rpc, context);
        if ((i + r->number) % 3) OK(tr_dist_step_in_backward(optimizer, context));
        OK(tr_dist_backward(context, tr_sum(tr_forward(there, dist_input()))));
        OK(tr_dist_step(optimizer, context));
    }
    OK(tr_barrier(r->group));
    tr_module *twin = dist_net(r->number);
    OK(tr_backward(tr_sum(tr_forward(twin, dist_input()))));
    tr_tensor *weight = tr_list_at(tr_parameters(twin), 0), *all = tr_affine(tr_grad(weight), -lr * STEPS, 0);
    CHECK(dist_difference(tr_detach(tr_list_at(tr_parameters(w.net), 0)), tr_add(tr_detach(weight), all)) < 1e-12);
    OK(tr_barrier(r->group));
    OK(tr_rpc_stop(w.rpc));
}

static void steps_of_contexts_at_the_same_time_are_all_made(void **state)
{
    (void)state;
    run(DIST_WORKERS, run_trainers, NULL);
}

/* ---- What backward makes again ------------------------------------------------------------------------------------------- */

enum { DEEP_MOST = 16 };

static tr_tensor *deep_loss(tr_module *net)
{
    tr_tensor *y = tr_forward(net, tr_randn(3, TR_SHAPE(2, 3, DIST_WIDTH), .dtype = TR_F64));
    return tr_sum(tr_mul(y, y));
}

static void check_deep(rank *r, tr_module *net, tr_module *twin)
{
    tr_tensor_list *got = tr_parameters(net), *want = tr_parameters(twin);
    for (int i = 0; i < tr_list_count(want); i++)
        CHECK(dist_difference(tr_detach(tr_list_at(got, i)), tr_detach(tr_list_at(want, i))) < 1e-12);
}

/* Parameters are stepped during the backward and, before that, by another context after the forward. */
static void train_deep(rank *r, dist_worker *w, bool recompute)
{
    tr_module *net = w->net = tr_keep(dist_deep_net(recompute)), *twin = dist_deep_net(false);
    tr_rref *parameters[DEEP_MOST];
    int n = tr_remote_parameters(tr_remote(w->rpc, "w0", "net"), parameters, DEEP_MOST);
    CHECK(n == tr_list_count(tr_parameters(net)));
    tr_dist_optimizer *optimizer = tr_dist_optimizer_new(w->rpc, parameters, n, TR_DIST_SGD(.lr = 0.1));
    OK(tr_status_of(optimizer));
    tr_optimizer *here = tr_sgd(tr_parameters(twin), .lr = 0.1);
    TR_DIST_CONTEXT(w->rpc, late);
    tr_tensor *loss = deep_loss(net);
    {
        TR_DIST_CONTEXT(w->rpc, context);
        OK(tr_dist_step_in_backward(optimizer, context));
        OK(tr_dist_backward(context, deep_loss(net)));
        OK(tr_backward(deep_loss(twin)));
        OK(tr_step(here));
        check_deep(r, net, twin);
    }
    OK(tr_dist_backward(late, loss));
}

static void run_deep(rank *r)
{
    dist_worker w;
    OK(dist_begin(&w, r->group));
    tr_module *plain = w.net;
    for (int recompute = 0; recompute < 2 && !r->failure[0]; recompute++) {
        TR_SCOPE;
        train_deep(r, &w, recompute);
        tr_release(w.net);
        w.net = plain;
    }
    OK(tr_rpc_stop(w.rpc));
}

static void what_is_made_again_is_made_of_weights_as_they_are(void **state)
{
    (void)state;
    run(1, run_deep, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_during_a_backward_are_those_after_it),
        cmocka_unit_test(what_backwards_before_gave_counts_too),
        cmocka_unit_test(hooks_run_before_the_step),
        cmocka_unit_test(clipping_and_a_second_backward_are_refused),
        cmocka_unit_test(steps_of_contexts_at_the_same_time_are_all_made),
        cmocka_unit_test(what_is_made_again_is_made_of_weights_as_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
