/* Workers that are processes, one of which is killed at any moment of training: the trainer hears who it was, and goes on
 * with the other. ctest: timeout=240 */
#include "processes.h"

#include "dist_nets.h"

#include <trireme/parallel.h>

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static atomic_int told_to_finish; /* in each process */

static tr_status finish_up(void)
{
    atomic_store(&told_to_finish, 1);
    return TR_OK;
}
TR_RPC(finish_up, RETURNS(NONE));

static tr_status train_step(dist_worker *w, tr_dist_optimizer *optimizer, tr_dist_mode mode)
{
    TR_SCOPE;
    TR_DIST_CONTEXT(w->rpc, context);
    TRY(tr_dist_backward(context, dist_loss(w, DIST_NESTED, dist_input()), .mode = mode));
    return tr_dist_step(optimizer, context);
}

static tr_status train_with_the_other(dist_worker *w)
{
    TR_SCOPE;
    TR_DIST_CONTEXT(w->rpc, context);
    tr_tensor *y = tr_future_tensor(tr_rpc_sync(w->rpc, "w1", "layer", dist_input()));
    TRY(tr_dist_backward(context, tr_sum(y)));
    TRY(tr_status_of(dist_fetch_grad(w, 1, 0)));
    return tr_future_wait(tr_rpc_sync(w->rpc, "w1", "finish_up"));
}

static tr_status train(rank *r, dist_worker *w)
{
    tr_rref *parameters[DIST_WORKERS * DIST_PARAMETERS];
    TRY(dist_parameters(w, parameters));
    tr_dist_optimizer *optimizer = tr_dist_optimizer_new(w->rpc, parameters, DIST_WORKERS * DIST_PARAMETERS,
        TR_DIST_SGD(.lr = 1e-3));
    TRY(tr_status_of(optimizer));
    tr_status status = TR_OK;
    for (int i = 0; status == TR_OK; i++) {
        status = train_step(w, optimizer, i % 2 ? TR_DIST_SMART : TR_DIST_FAST);
        atomic_fetch_add(&r->post->turns, 1);
    }
    char why[512];
    snprintf(why, sizeof why, "%s", tr_error_message());
    if (status != TR_PEER || !strstr(why, "w2")) return tr_fail(TR_INTERNAL, "training ended with: %s", why);
    return train_with_the_other(w);
}

/* Also who made no call to the lost one hears of it. */
static tr_status stop_without(tr_rpc *rpc, const char *lost)
{
    tr_status status = tr_rpc_stop(rpc);
    char name[16];
    snprintf(name, sizeof name, "(\"%s\"", lost);
    bool named = status == TR_PEER && strstr(tr_error_message(), "tr_rpc_stop: worker") && strstr(tr_error_message(), name);
    return named ? TR_OK : tr_fail(TR_INTERNAL, "tr_rpc_stop: %s: %s", tr_status_name(status), tr_error_message());
}

static tr_status work(rank *r)
{
    dist_worker w;
    TRY(dist_begin(&w, r->group));
    TRY(tr_rpc_register(w.rpc, &finish_up_rpc));
    TRY(tr_barrier(r->group));
    if (r->number == 0) {
        TR_SCOPE;
        TRY(train(r, &w));
    } else {
        atomic_store(&r->post->turns, 3);
        for (int ms = 0; !atomic_load(&told_to_finish) && ms < PATIENCE_MS; ms++) usleep(1000);
    }
    return stop_without(w.rpc, "w2");
}

static void a_killed_worker_is_named_and_the_others_go_on(void **state)
{
    (void)state;
    for (int trial = 0; trial < 6; trial++) {
        job j;
        kill_one_of(&j, &(setting){0}, DIST_WORKERS, 2, work, NULL, trial * 700);
        for (int i = 0; i < 2; i++)
            if (j.posts[i].status != TR_OK || !atomic_load(&j.posts[i].ended))
                fail_msg("trial %d: w%d: %s (%s)", trial, i, j.posts[i].text, tr_status_name(j.posts[i].status));
        finish(&j);
    }
}

/* ---- One of two trainers, under DDP ---------------------------------------------------------------------------------------- */

static tr_status train_replica(rank *r, dist_worker *w, tr_module *ddp)
{
    tr_status status = TR_OK;
    while (status == TR_OK) {
        TR_SCOPE;
        TR_DIST_CONTEXT(w->rpc, context);
        tr_tensor *y = tr_forward(ddp, tr_future_tensor(tr_rpc_sync(w->rpc, "w2", "layer", dist_input())));
        status = tr_dist_backward(context, tr_sum(tr_mul(y, y)));
        atomic_fetch_add(&r->post->turns, 1);
    }
    return status;
}

static tr_status work_in_replicas(rank *r)
{
    dist_worker w;
    TRY(dist_begin(&w, r->group));
    TRY(tr_rpc_register(w.rpc, &finish_up_rpc));
    tr_group *trainers = tr_group_split(r->group, r->number < 2 ? 0 : -1, r->number);
    if (trainers) {
        TR_SCOPE;
        tr_status status = train_replica(r, &w, tr_ddp(dist_net(10), trainers));
        char why[512];
        snprintf(why, sizeof why, "%s", tr_error_message());
        if (status != TR_PEER || !strstr(why, "rank 1")) return tr_fail(TR_INTERNAL, "training ended with: %s", why);
        TRY(tr_future_wait(tr_rpc_sync(w.rpc, "w2", "finish_up")));
    } else {
        atomic_store(&r->post->turns, 3);
        for (int ms = 0; !atomic_load(&told_to_finish) && ms < PATIENCE_MS; ms++) usleep(1000);
    }
    return stop_without(w.rpc, "w1");
}

static void a_killed_trainer_is_named_to_the_other(void **state)
{
    (void)state;
    for (int trial = 0; trial < 3; trial++) {
        job j;
        kill_one_of(&j, &(setting){0}, DIST_WORKERS, 1, work_in_replicas, NULL, trial * 900);
        for (int i = 0; i < DIST_WORKERS; i += 2)
            if (j.posts[i].status != TR_OK || !atomic_load(&j.posts[i].ended))
                fail_msg("trial %d: w%d: %s (%s)", trial, i, j.posts[i].text, tr_status_name(j.posts[i].status));
        finish(&j);
    }
}

/* ---- In the middle of what it does ------------------------------------------------------------------------------- */

typedef enum phase { FORWARD, HAND_OVER, BACKWARD, STEP, PHASES } phase;

static tr_tensor *fall(tr_tensor *x)
{
    raise(SIGKILL);
    return x;
}
TR_RPC(fall, TENSOR, RETURNS(TENSOR));

static int64_t fall_with(tr_rref *ref)
{
    raise(SIGKILL);
    return tr_rref_owner(ref);
}
TR_RPC(fall_with, RREF, RETURNS(I64));

static tr_status fall_at(tr_tensor *leaf, tr_tensor *gradient, void *user)
{
    (void)leaf, (void)gradient, (void)user;
    raise(SIGKILL);
    return TR_OK;
}

/* Until it hears of the death, which comes at some time. */
static tr_status step_on(dist_worker *w, tr_dist_context *context)
{
    tr_rref *parameters[DIST_WORKERS * DIST_PARAMETERS];
    TRY(dist_parameters(w, parameters));
    tr_dist_optimizer *optimizer = tr_dist_optimizer_new(w->rpc, parameters, DIST_WORKERS * DIST_PARAMETERS,
        TR_DIST_SGD(.lr = 1e-3));
    TRY(tr_status_of(optimizer));
    tr_future *falling = tr_rpc_async(w->rpc, "w2", "fall", dist_input());
    tr_status status = TR_OK;
    while (status == TR_OK) status = tr_dist_step(optimizer, context);
    return tr_future_wait(falling) == TR_PEER ? status : tr_fail(TR_INTERNAL, "w2 has not fallen");
}

static tr_status lose_it_in(dist_worker *w, phase when)
{
    TR_SCOPE;
    TR_DIST_CONTEXT(w->rpc, context);
    if (when == HAND_OVER) {
        tr_rref *ref = tr_remote(w->rpc, "w1", "layer", dist_input());
        CHECK(tr_future_wait(tr_rpc_sync(w->rpc, "w2", "fall_with", ref)) == TR_PEER);
        CHECK(strstr(tr_error_message(), "w2"));
        TRY(tr_future_wait(tr_rref_to_here(ref))); /* the value is there still */
        return tr_future_wait(tr_rpc_sync(w->rpc, "w2", "layer", dist_input()));
    }
    tr_tensor *h = tr_forward(w->net, dist_input());
    tr_tensor *y = tr_future_tensor(tr_rpc_sync(w->rpc, "w2", when == FORWARD ? "fall" : "layer", h));
    TRY(tr_status_of(y));
    TRY(tr_dist_backward(context, tr_sum(y)));
    return when == STEP ? step_on(w, context) : TR_OK;
}

static tr_status work_until(rank *r)
{
    dist_worker w;
    phase when = *(const phase *)r->arg;
    TRY(dist_begin(&w, r->group));
    TRY(tr_rpc_register(w.rpc, &finish_up_rpc));
    TRY(tr_rpc_register(w.rpc, &fall_rpc));
    TRY(tr_rpc_register(w.rpc, &fall_with_rpc));
    if (when == BACKWARD && r->number == 2) (void)!tr_grad_hook_add(tr_list_at(tr_parameters(w.net), 0), fall_at, NULL);
    TRY(tr_barrier(r->group));
    if (r->number == 0) {
        tr_status status = lose_it_in(&w, when);
        if (status != TR_PEER || !strstr(tr_error_message(), "w2"))
            return tr_fail(TR_INTERNAL, "it ended with: %s (%s)", tr_error_message(), tr_status_name(status));
        TRY(train_with_the_other(&w));
    } else {
        for (int ms = 0; !atomic_load(&told_to_finish) && ms < PATIENCE_MS; ms++) usleep(1000);
    }
    return stop_without(w.rpc, "w2");
}

static void who_dies_in_any_phase_is_named(void **state)
{
    (void)state;
    for (phase when = 0; when < PHASES; when++) {
        job j;
        start_job(&j, DIST_WORKERS, work_until, &when);
        for (int i = 0; i < DIST_WORKERS; i++) reap(&j, i);
        for (int i = 0; i < 2; i++)
            if (j.posts[i].status != TR_OK || !atomic_load(&j.posts[i].ended))
                fail_msg("phase %d: w%d: %s (%s)", (int)when, i, j.posts[i].text, tr_status_name(j.posts[i].status));
        finish(&j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_worker_is_named_and_the_others_go_on),
        cmocka_unit_test(a_killed_trainer_is_named_to_the_other),
        cmocka_unit_test(who_dies_in_any_phase_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
