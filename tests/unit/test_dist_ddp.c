/* DDP in distributed backwards: w0 and w1 are trainers with replicas of a dense part, w2 has a layer of its own. */
#include "comm_ranks.h"
#include "dist_nets.h"

#include <trireme/parallel.h>

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { TRAINERS = 2, SERVER = 2 };

/* A worker, whose net is under DDP on trainers. */
typedef struct member {
    dist_worker w;
    tr_group *trainers; /* NULL on the server */
    tr_module *inner;
} member;

/* ---- The dense part: its second layer takes part on the last trainer only --------------------------------------------- */

typedef struct dense {
    tr_module *first, *second;
    bool both;
} dense;

static tr_tensor *dense_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    const dense *d = tr_module_state(self);
    tr_tensor *y = tr_forward(d->first, inputs[0]);
    return d->both ? tr_add(y, tr_forward(d->second, inputs[0])) : y;
}

static tr_module *make_dense(int trainer)
{
    tr_module *net = tr_module_new("dense", sizeof(dense), dense_forward);
    dense *d = tr_module_state(net);
    d->first = tr_module_add(net, "first", dist_net(10));
    d->second = tr_module_add(net, "second", dist_net(11));
    d->both = trainer == TRAINERS - 1;
    return net;
}

static const tr_ddp_hook *hook; /* of what comes; NULL: none */

static void begin(rank *r, member *m)
{
    OK(dist_begin(&m->w, r->group));
    m->trainers = tr_group_split(r->group, r->number < TRAINERS ? 0 : -1, r->number);
    if (m->trainers) {
        m->inner = make_dense(r->number);
        m->w.net = tr_ddp(m->inner, m->trainers, .bucket_mb = 1e-9, .hook = hook);
        OK(tr_status_of(m->w.net));
    }
    OK(tr_barrier(r->group));
}

static void end(rank *r, const member *m)
{
    OK(tr_barrier(r->group));
    OK(tr_rpc_stop(m->w.rpc));
}

/* ---- What the trainers ask, and the same in one process ---------------------------------------------------------------- */

static tr_tensor *input_of(int trainer)
{
    return tr_randn(20 + (uint64_t)trainer, TR_SHAPE(DIST_BATCH, DIST_WIDTH), .dtype = TR_F64);
}

static tr_tensor *loss_of(tr_module *net, tr_tensor *served)
{
    tr_tensor *y = tr_forward(net, served);
    return tr_sum(tr_mul(y, y));
}

static tr_tensor *ask(const member *m, tr_tensor *x)
{
    return tr_future_tensor(tr_rpc_sync(m->w.rpc, "w2", "layer", x));
}

/* The gradients of the trainers' losses: of the dense part the mean, of the server's layer this trainer's. */
static void twin_gradients(rank *r, tr_tensor **dense_mean, tr_tensor **server)
{
    tr_module *nets[TRAINERS], *layer = dist_net(SERVER);
    for (int i = 0; i < TRAINERS; i++) {
        nets[i] = make_dense(i);
        if (i == r->number) tr_clear_grad(tr_list_at(tr_parameters(layer), 0));
        OK(tr_backward(loss_of(nets[i], tr_tanh(tr_forward(layer, input_of(i))))));
        if (i == r->number) *server = tr_mul(tr_grad(tr_list_at(tr_parameters(layer), 0)), tr_ones(TR_SHAPE(1), .dtype = TR_F64));
        tr_clear_grad(tr_list_at(tr_parameters(layer), 0));
    }
    for (int i = 0; i < 2 * DIST_PARAMETERS; i++) {
        tr_tensor *sum = NULL;
        for (int k = 0; k < TRAINERS; k++) {
            tr_tensor *g = tr_grad(tr_list_at(tr_parameters(nets[k]), i));
            if (g) sum = sum ? tr_add(sum, g) : g;
        }
        dense_mean[i] = tr_affine(sum, 1.0 / TRAINERS, 0);
    }
}

static void check_round(rank *r, member *m, tr_dist_context *context, int round)
{
    tr_tensor *want[2 * DIST_PARAMETERS], *server = NULL;
    twin_gradients(r, want, &server);
    for (int i = 0; i < 2 * DIST_PARAMETERS; i++) {
        tr_tensor *leaf = tr_list_at(tr_parameters(m->inner), i), *got = tr_dist_grad(context, leaf);
        CHECK(got && dist_difference(got, tr_affine(want[i], round, 0)) < 1e-12);
        CHECK(tr_grad(leaf) == NULL);
    }
    CHECK(dist_difference(dist_fetch_grad(&m->w, SERVER, 0), tr_affine(server, round, 0)) < 1e-12);
}

static void train_in(rank *r, member *m, tr_dist_mode mode)
{
    TR_SCOPE;
    TR_DIST_CONTEXT(m->w.rpc, context);
    tr_tensor *loss = loss_of(m->w.net, ask(m, input_of(r->number)));
    for (int round = 1; round <= 2; round++) {
        OK(tr_dist_backward(context, loss, .mode = mode, .retain_graph = round == 1));
        check_round(r, m, context, round);
    }
}

static void run_contexts(rank *r)
{
    member m = {0};
    begin(r, &m);
    for (int mode = TR_DIST_FAST; m.trainers && mode <= TR_DIST_SMART && !r->failure[0]; mode++)
        train_in(r, &m, (tr_dist_mode)mode);
    end(r, &m);
}

static tr_status post_sum(const tr_ddp_bucket *b, tr_work **work, void *user)
{
    (void)user;
    *work = tr_all_reduce_tensor_async(b->group, b->gradients, TR_SUM);
    return TR_OK;
}

static tr_status halve(const tr_ddp_bucket *b, void *user)
{
    (void)user;
    return tr_copy_into(b->gradients, tr_affine(b->gradients, 1.0 / TRAINERS, 0));
}

static void each_context_gets_the_mean_over_the_trainers(void **state)
{
    (void)state;
    run(TRAINERS + 1, run_contexts, NULL);
    hook = &(tr_ddp_hook){.start = post_sum, .finish = halve};
    run(TRAINERS + 1, run_contexts, NULL);
    hook = NULL;
}

/* Off: contexts keep what is theirs; on again, what has been gathered is averaged. */
static void run_sync(rank *r)
{
    member m = {0};
    begin(r, &m);
    if (m.trainers) {
        TR_SCOPE;
        TR_DIST_CONTEXT(m.w.rpc, context);
        tr_tensor *loss = loss_of(m.w.net, ask(&m, input_of(r->number)));
        OK(tr_ddp_sync(m.w.net, false));
        OK(tr_dist_backward(context, loss, .retain_graph = true));
        CHECK((tr_dist_grad(context, tr_list_at(tr_parameters(m.inner), 2)) != NULL) == (r->number == TRAINERS - 1));
        OK(tr_ddp_sync(m.w.net, true));
        OK(tr_dist_backward(context, loss));
        check_round(r, &m, context, 2);
    }
    end(r, &m);
}

static void without_sync_contexts_gather_and_exchange_later(void **state)
{
    (void)state;
    run(TRAINERS + 1, run_sync, NULL);
}

/* An optimizer that steps during the backward waits for the mean. */
static void run_early(rank *r)
{
    member m = {0};
    begin(r, &m);
    if (m.trainers) {
        TR_SCOPE;
        tr_rref *own[2 * DIST_PARAMETERS];
        tr_tensor_list *parameters = tr_parameters(m.inner), *before = tr_parameters(make_dense(r->number));
        for (int i = 0; i < tr_list_count(parameters); i++)
            own[i] = tr_rref_new(m.w.rpc, tr_value_tensor(tr_list_at(parameters, i)));
        tr_dist_optimizer *optimizer = tr_dist_optimizer_new(m.w.rpc, own, 2 * DIST_PARAMETERS, TR_DIST_SGD(.lr = 1));
        OK(tr_status_of(optimizer));
        TR_DIST_CONTEXT(m.w.rpc, context);
        OK(tr_dist_step_in_backward(optimizer, context));
        OK(tr_dist_backward(context, loss_of(m.w.net, ask(&m, input_of(r->number)))));
        tr_tensor *mean[2 * DIST_PARAMETERS], *server = NULL;
        twin_gradients(r, mean, &server);
        for (int i = 0; i < tr_list_count(parameters); i++) {
            tr_tensor *want = tr_sub(tr_detach(tr_list_at(before, i)), mean[i]);
            CHECK(dist_difference(tr_detach(tr_list_at(parameters, i)), want) < 1e-12);
        }
    }
    end(r, &m);
}

static void steps_during_the_backward_wait_for_the_mean(void **state)
{
    (void)state;
    run(TRAINERS + 1, run_early, NULL);
}

/* ---- Clipping ---------------------------------------------------------------------------------------------------------- */

static tr_tensor *w2_weight(void *state)
{
    return tr_list_at(tr_parameters(((member *)state)->w.net), 0);
}
TR_RPC_WITH_STATE(w2_weight, RETURNS(TENSOR));

/* The replicas' norm is that of the mean, the same on all trainers; with the server's gradients, each one's own, it would not be. */
static void run_clip(rank *r)
{
    member m = {0};
    begin(r, &m);
    if (!m.trainers) OK(tr_rpc_register(m.w.rpc, &w2_weight_rpc, .state = &m));
    OK(tr_barrier(r->group));
    if (m.trainers) {
        TR_SCOPE;
        tr_rref *all[2 * DIST_PARAMETERS + 1];
        for (int i = 0; i < 2 * DIST_PARAMETERS; i++)
            all[i] = tr_rref_new(m.w.rpc, tr_value_tensor(tr_list_at(tr_parameters(m.inner), i)));
        all[2 * DIST_PARAMETERS] = tr_remote(m.w.rpc, "w2", "w2_weight");
        tr_dist_optimizer *replicas = tr_dist_optimizer_new(m.w.rpc, all, 2 * DIST_PARAMETERS, TR_DIST_SGD(.lr = 1));
        tr_dist_optimizer *both = tr_dist_optimizer_new(m.w.rpc, all, 2 * DIST_PARAMETERS + 1, TR_DIST_SGD(.lr = 1));
        OK(tr_status_of(both));
        TR_DIST_CONTEXT(m.w.rpc, context);
        OK(tr_dist_backward(context, loss_of(m.w.net, ask(&m, input_of(r->number)))));
        CHECK(tr_dist_clip_grad_norm(both, context, 0.1, NULL) == TR_UNSUPPORTED);
        SAYS("parameter 0 is a replica under tr_ddp()");
        tr_tensor *mean[2 * DIST_PARAMETERS], *server = NULL;
        twin_gradients(r, mean, &server);
        double norm, squares = 0;
        for (int i = 0; i < 2 * DIST_PARAMETERS; i++) squares += tr_item(tr_sum(tr_mul(mean[i], mean[i])));
        OK(tr_dist_clip_grad_norm(replicas, context, 0.1, &norm));
        CHECK(norm * norm - squares < 1e-12 * squares && squares - norm * norm < 1e-12 * squares);
    }
    end(r, &m);
}

static void replicas_are_clipped_by_their_own_norm(void **state)
{
    (void)state;
    run(TRAINERS + 1, run_clip, NULL);
}

/* ---- One context for all trainers, which another worker drives ------------------------------------------------------------ */

/* w2 calls both trainers, or one that calls the other: in one backward, each waits for the other's gradients. */
static void drive(rank *r, member *m, bool nested, tr_dist_mode mode)
{
    TR_SCOPE;
    tr_module *nets[TRAINERS] = {make_dense(0), make_dense(1)};
    TR_DIST_CONTEXT(m->w.rpc, context);
    tr_tensor *x = input_of(0), *y[TRAINERS], *twin[TRAINERS];
    for (int i = 0; i < TRAINERS; i++) twin[i] = tr_tanh(tr_forward(nets[i], nested && i ? twin[0] : x));
    if (nested) {
        y[0] = tr_future_tensor(tr_rpc_sync(m->w.rpc, "w0", "relay", x, "w1"));
    } else {
        tr_future *both[TRAINERS];
        for (int i = 0; i < TRAINERS; i++) both[i] = tr_rpc_async(m->w.rpc, tr_rpc_name(m->w.rpc, i), "layer", x);
        y[0] = tr_add(tr_future_tensor(both[0]), tr_future_tensor(both[1]));
    }
    OK(tr_dist_backward(context, tr_sum(tr_mul(y[0], y[0])), .mode = mode));
    y[0] = tr_add(twin[0], twin[1]);
    OK(tr_backward(tr_sum(tr_mul(y[0], y[0]))));
    for (int i = 0; i < 2 * DIST_PARAMETERS; i++) {
        tr_tensor *g[TRAINERS], *sum = tr_grad(tr_list_at(tr_parameters(nets[1]), i));
        if (i < DIST_PARAMETERS) sum = tr_add(sum, tr_grad(tr_list_at(tr_parameters(nets[0]), i)));
        for (int k = 0; k < TRAINERS; k++) {
            g[k] = dist_fetch_grad(&m->w, k, i);
            CHECK(dist_difference(g[k], tr_affine(sum, 1.0 / TRAINERS, 0)) < 1e-12);
        }
    }
}

static void run_driven(rank *r)
{
    member m = {0};
    begin(r, &m);
    for (int kind = 0; r->number == SERVER && kind < 4 && !r->failure[0]; kind++)
        drive(r, &m, kind / 2, kind % 2 ? TR_DIST_SMART : TR_DIST_FAST);
    end(r, &m);
}

static void trainers_of_one_context_do_not_wait_for_ever(void **state)
{
    (void)state;
    run(TRAINERS + 1, run_driven, NULL);
}

/* ---- Failures --------------------------------------------------------------------------------------------------------------- */

static tr_status break_backward(tr_tensor *leaf, tr_tensor *gradient, void *user)
{
    (void)leaf, (void)gradient, (void)user;
    return tr_fail(TR_INVALID, "the hook does not like it");
}

static void run_failure(rank *r)
{
    member m = {0};
    begin(r, &m);
    if (m.trainers) {
        TR_SCOPE;
        TR_DIST_CONTEXT(m.w.rpc, context);
        if (r->number == 1) CHECK(tr_grad_hook_add(tr_list_at(tr_parameters(m.inner), 0), break_backward, NULL) >= 0);
        tr_tensor *loss = loss_of(m.w.net, ask(&m, input_of(r->number)));
        tr_status own = r->number == 1 ? TR_INVALID : TR_PEER;
        CHECK(tr_dist_backward(context, loss) == own);
        SAYS("the hook does not like it");
        if (r->number == 0) SAYS("rank 1 (pid ");
        CHECK(tr_barrier(m.trainers) == own);
        SAYS("is broken");
    }
    end(r, &m);
}

static void a_trainer_that_fails_is_named_to_the_others(void **state)
{
    (void)state;
    run(TRAINERS + 1, run_failure, NULL);
}

/* w1 takes no part: w0 waits for it, in a backward of its own or of w2's, until that one's time is up. */
static void run_absent(rank *r)
{
    member m = {0};
    begin(r, &m);
    int root = *(const int *)r->arg;
    if (r->number == root) {
        TR_SCOPE;
        TR_DIST_CONTEXT(m.w.rpc, context);
        tr_tensor *y = root == 0 ? tr_forward(m.w.net, ask(&m, input_of(0)))
                                 : tr_future_tensor(tr_rpc_sync(m.w.rpc, "w0", "layer", input_of(0)));
        CHECK(tr_dist_backward(context, tr_sum(y), .timeout_ms = 300) == TR_TIMEOUT);
        if (root == 0) SAYS("rank 1");
    }
    if (r->number == 0) CHECK(tr_barrier(m.trainers) == TR_TIMEOUT); /* it hears of that */
    end(r, &m);
}

static void waiting_for_a_trainer_ends_with_the_backwards_time(void **state)
{
    (void)state;
    for (int root = 0; root <= SERVER; root += SERVER) run(TRAINERS + 1, run_absent, &root);
}

/* ---- One backward at a time ------------------------------------------------------------------------------------------------ */

static atomic_int refused; /* backwards, of w0 */

typedef struct attempt {
    const member *m;
    tr_status status;
    char text[256];
} attempt;

static void *try_backward(void *arg)
{
    attempt *a = arg;
    TR_SCOPE;
    TR_DIST_CONTEXT(a->m->w.rpc, context);
    a->status = tr_dist_backward(context, loss_of(a->m->w.net, ask(a->m, input_of(0))));
    snprintf(a->text, sizeof a->text, "%s", tr_error_message());
    if (a->status != TR_OK) atomic_fetch_add(&refused, 1);
    return NULL;
}

static void run_two(rank *r)
{
    member m = {0};
    begin(r, &m);
    if (r->number == 0) {
        attempt a[2] = {{.m = &m}, {.m = &m}};
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, try_backward, &a[1]) == 0);
        try_backward(&a[0]);
        pthread_join(thread, NULL);
        const attempt *bad = &a[a[0].status == TR_OK];
        CHECK(a[0].status == TR_OK || a[1].status == TR_OK);
        CHECK(bad->status == TR_STATE && strstr(bad->text, "one at a time"));
    }
    if (r->number == 1) {
        while (!atomic_load(&refused)) usleep(1000);
        attempt a = {.m = &m};
        try_backward(&a);
        OK(a.status);
    }
    end(r, &m);
}

static void a_second_backward_at_the_same_time_is_refused(void **state)
{
    (void)state;
    run(TRAINERS + 1, run_two, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_context_gets_the_mean_over_the_trainers),
        cmocka_unit_test(without_sync_contexts_gather_and_exchange_later),
        cmocka_unit_test(steps_during_the_backward_wait_for_the_mean),
        cmocka_unit_test(replicas_are_clipped_by_their_own_norm),
        cmocka_unit_test(trainers_of_one_context_do_not_wait_for_ever),
        cmocka_unit_test(a_trainer_that_fails_is_named_to_the_others),
        cmocka_unit_test(waiting_for_a_trainer_ends_with_the_backwards_time),
        cmocka_unit_test(a_second_backward_at_the_same_time_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
