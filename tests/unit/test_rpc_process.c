/* Workers that are killed or stopped, at any time: calls to them fail with the reason, all others go on. */
/* ctest: serial */
#include "processes.h"

#include "base/clock.h"
#include "rpc/agent.h"

#include <trireme/ops.h>
#include <trireme/rpc.h>

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static tr_tensor *echo(tr_tensor *x)
{
    return x;
}
TR_RPC(echo, TENSOR, RETURNS(TENSOR));

static tr_status sleep_ms(int64_t ms)
{
    usleep((unsigned)(1000 * ms));
    return TR_OK;
}
TR_RPC(sleep_ms, I64, RETURNS(NONE));

/* Lets the next worker do it. */
static tr_status pass(int64_t size, double *out)
{
    tr_rpc *rpc = tr_rpc_current();
    int next = (tr_rpc_rank(rpc) + 1) % tr_rpc_workers(rpc);
    tr_future *f = tr_rpc_sync(rpc, tr_rpc_name(rpc, next), "echo", tr_ones(TR_SHAPE(size)));
    *out = tr_item(tr_future_tensor(f));
    return tr_future_wait(f);
}
TR_RPC(pass, I64, TRIES(F64));

static tr_tensor *make(int64_t size)
{
    return tr_full(5, TR_SHAPE(size));
}
TR_RPC(make, I64, RETURNS(TENSOR));

static tr_tensor *make_slowly(int64_t size)
{
    usleep(200000);
    return make(size);
}
TR_RPC(make_slowly, I64, RETURNS(TENSOR));

static int64_t count_of(tr_rref *ref)
{
    return tr_numel(tr_future_tensor(tr_rref_to_here(ref)));
}
TR_RPC(count_of, RREF, RETURNS(I64));

/* What is going on with a worker when it dies. */
typedef enum phase { SMALL_CALLS, LARGE_CALLS, HUGE_CALLS, NESTED_CALLS, REFERENCES, PHASES } phase;

static tr_rpc *start(const rank *r)
{
    tr_rpc *rpc = tr_rpc_start(r->group, .timeout_ms = JOIN_MS);
    const tr_rpc_function *const all[] = {&echo_rpc, &sleep_ms_rpc, &pass_rpc, &make_rpc, &count_of_rpc};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (tr_rpc_register(rpc, all[i]) != TR_OK) return rpc;
    return rpc;
}

static tr_status act(tr_rpc *rpc, int to, phase what)
{
    TR_SCOPE;
    const char *name = tr_rpc_name(rpc, to), *other = tr_rpc_name(rpc, (to + 1) % tr_rpc_workers(rpc));
    if (what == SMALL_CALLS) return tr_future_wait(tr_rpc_sync(rpc, name, "echo", tr_ones(TR_SHAPE(1))));
    if (what == LARGE_CALLS) return tr_future_wait(tr_rpc_sync(rpc, name, "echo", tr_ones(TR_SHAPE(100000))));
    if (what == HUGE_CALLS) return tr_future_wait(tr_rpc_sync(rpc, name, "echo", tr_ones(TR_SHAPE(1000000))));
    if (what == NESTED_CALLS) return tr_future_wait(tr_rpc_sync(rpc, name, "pass", 1));
    tr_rref *ref = tr_remote(rpc, name, "make", 1000);
    tr_future *f = tr_rpc_sync(rpc, other, "count_of", ref);
    return tr_future_wait(f);
}

enum { VICTIM = 1 };

/* The victim's calls fail, or, of those that only lead to it, not for ever. */
static tr_status go_on_without(const rank *r, tr_rpc *rpc, phase what)
{
    CHECK(tr_future_wait(tr_rpc_sync(rpc, tr_rpc_name(rpc, VICTIM), "echo", tr_ones(TR_SHAPE(1)))) == TR_PEER);
    CHECK(strstr(tr_error_message(), "worker 1") && strstr(tr_error_message(), "worker1"));
    CHECK(strstr(tr_error_message(), "died") || strstr(tr_error_message(), "closed its connection"));
    if (rpc->links[VICTIM].local) { /* as where a rank of a new agent finds one dead whose memory it looks for */
        CHECK(tr__link_find_ring(rpc, &rpc->links[VICTIM], 0) == TR_PEER);
        CHECK(strstr(tr_error_message(), "worker 1 (\"worker1\"") && strstr(tr_error_message(), "died"));
    }
    for (int i = 0; i < 20; i++)
        for (int to = 0; to < r->world; to++)
            if (to != VICTIM) TRY(act(rpc, to, what == LARGE_CALLS || what == HUGE_CALLS ? what : SMALL_CALLS));
    CHECK(tr_rpc_stop(rpc) == TR_PEER);
    CHECK(strstr(tr_error_message(), "tr_rpc_stop: worker 1"));
    return TR_OK;
}

static tr_status call_until_one_dies(rank *r)
{
    TR_SCOPE;
    phase what = *(const phase *)r->arg;
    tr_rpc *rpc = start(r);
    TRY(tr_status_of(rpc));
    TRY(tr_barrier(r->group));
    tr_status status = TR_OK;
    for (int turn = 0; status == TR_OK; turn++) {
        for (int to = 0; to < r->world && status == TR_OK; to++) status = act(rpc, to, what);
        if (status == TR_OK) atomic_fetch_add(&r->post->turns, 1);
    }
    return status == TR_PEER || status == TR_NOT_FOUND ? go_on_without(r, rpc, what) : status;
}

static void kill_in(phase what, const setting *s, int world, int delay_us)
{
    job j;
    kill_one_of(&j, s, world, VICTIM, call_until_one_dies, &what, delay_us);
    for (int i = 0; i < world; i++)
        if (i != VICTIM && (j.posts[i].status != TR_OK || !j.posts[i].ended))
            fail_msg("phase %d, rank %d: %s", what, i, j.posts[i].text);
    finish(&j);
}

static void others_go_on_when_a_worker_is_killed(void **state)
{
    (void)state;
    static const int apart[] = {0, 1, 2};
    for (int what = 0; what < PHASES; what++) {
        kill_in((phase)what, &(setting){0}, 3, 300 * what);
        kill_in((phase)what, &(setting){.hosts = apart}, 3, 200 * what);
    }
    for (int i = 0; i < 8; i++) kill_in(HUGE_CALLS, &(setting){0}, 2, 170 * i); /* as many as cores: both copy */
}

/* ---- A caller that dies, to whom answers are owed ------------------------------------------------------------------- */

enum { OWED = 3 };
static tr_rpc_reply *owed[OWED]; /* kept */
static atomic_int owed_count;

static int64_t put_aside(int64_t number)
{
    tr_rpc_reply *reply = tr_keep(tr_rpc_defer());
    int at = atomic_fetch_add(&owed_count, 1);
    if (at < OWED) owed[at] = reply;
    return number;
}
TR_RPC(put_aside, I64, RETURNS(I64));

/* All report three turns, so that the victim is killed when worker 0 owes it three answers. */
static tr_status owe_who_dies(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = start(r);
    TRY(tr_status_of(rpc));
    TRY(tr_rpc_register(rpc, &put_aside_rpc));
    TRY(tr_barrier(r->group));
    tr_status status = TR_OK;
    for (int i = 0; i < OWED && r->number == VICTIM; i++) status = tr_status_of(tr_rpc_async(rpc, "worker0", "put_aside", i));
    TRY(status);
    while (r->number == 0 && atomic_load(&owed_count) < OWED) usleep(100);
    atomic_fetch_add(&r->post->turns, 3);
    while (status == TR_OK) status = act(rpc, VICTIM, SMALL_CALLS);
    CHECK(status == TR_PEER);
    for (int i = 0; i < OWED && r->number == 0; i++) {
        TRY(i ? tr_reply_with(owed[i], tr_value_i64(1)) : tr_reply_fail(owed[i], TR_SHAPE, "too long"));
        CHECK(tr_reply_with(owed[i], tr_value_i64(1)) == TR_STATE);
        tr_release(owed[i]);
    }
    return go_on_without(r, rpc, SMALL_CALLS);
}

static void answers_that_are_owed_go_with_their_caller(void **state)
{
    (void)state;
    static const int apart[] = {0, 1, 2};
    const setting *const settings[] = {&(setting){0}, &(setting){.hosts = apart}};
    for (int i = 0; i < 2; i++) {
        job j;
        kill_one_of(&j, settings[i], 3, VICTIM, owe_who_dies, NULL, 0);
        for (int k = 0; k < 3; k++)
            if (k != VICTIM && (j.posts[k].status != TR_OK || !j.posts[k].ended)) fail_msg("rank %d: %s", k, j.posts[k].text);
        finish(&j);
    }
}

/* ---- Time --------------------------------------------------------------------------------------------------------- */

static atomic_int *let_go; /* which both processes share */

static tr_status hold(void)
{
    while (!atomic_load(let_go)) usleep(1000);
    return TR_OK;
}
TR_RPC(hold, RETURNS(NONE));

static tr_status be_impatient(rank *r)
{
    TR_SCOPE;
    let_go = &r->post[-r->number].reports;
    tr_rpc *rpc = start(r);
    TRY(tr_status_of(rpc));
    TRY(tr_rpc_register(rpc, &hold_rpc));
    TRY(tr_barrier(r->group));
    if (r->number == 0) {
        tr_rpc_call call = {.size = sizeof call, .rpc = rpc, .to = "worker1", .function = "hold", .timeout_ms = 20};
        CHECK(tr_future_wait(tr_rpc_sync_with(&call)) == TR_TIMEOUT);
        CHECK(strstr(tr_error_message(), "no answer within 0.02 s"));
        tr_future *f = tr_rpc_async(rpc, "worker1", "hold");
        TRY(tr_future_cancel(f));
        CHECK(tr_future_wait(f) == TR_CANCELLED);
        atomic_store(let_go, 1);
        TRY(tr_future_wait(tr_rpc_sync(rpc, "worker1", "echo", tr_ones(TR_SHAPE(1)))));
    }
    return tr_rpc_stop(rpc);
}

static void calls_end_in_time_or_on_request(void **state)
{
    (void)state;
    run_job(2, be_impatient, NULL);
}

/* Nobody ends before all are done, however late calls come. */
static tr_status stop_while_calls_run(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = start(r);
    TRY(tr_status_of(rpc));
    TRY(tr_barrier(r->group));
    tr_future *slow[3];
    for (int i = 0; i < r->world; i++) slow[i] = tr_rpc_async(rpc, tr_rpc_name(rpc, i), "sleep_ms", 50 * (r->number + 1));
    TRY(tr_rpc_stop(rpc));
    for (int i = 0; i < r->world; i++) {
        CHECK(tr_future_done(slow[i]));
        TRY(tr_future_wait(slow[i]));
    }
    return TR_OK;
}

static void stopping_waits_for_what_is_under_way(void **state)
{
    (void)state;
    run_job(3, stop_while_calls_run, NULL);
}

static void note(tr_log_level level, const char *message, void *user)
{
    if (level == TR_LOG_WARN) snprintf(user, 512, "%s", message);
}

static tr_status leave_a_reference(rank *r)
{
    TR_SCOPE;
    char said[512] = "";
    tr_set_log(note, said, TR_LOG_WARN);
    tr_rpc *rpc = start(r);
    TRY(tr_status_of(rpc));
    TRY(tr_barrier(r->group));
    if (r->number == 0) {
        tr_rref *ref = tr_remote(rpc, "worker1", "make", 3);
        TRY(tr_future_wait(tr_rref_to_here(ref)));
        TRY(tr_rpc_stop(rpc));
        CHECK(tr_future_wait(tr_rref_to_here(ref)) == TR_STATE);
        CHECK(tr_status_of(tr_rref_new(rpc, tr_value_i64(1))) == TR_STATE);
        return TR_OK;
    }
    TRY(tr_rpc_stop(rpc));
    tr_set_log(NULL, NULL, TR_LOG_OFF);
    CHECK(strstr(said, "\"worker1\" stops while other workers still hold references to 1 value of its own, which end with it"));
    return TR_OK;
}

static void references_that_leak_are_reported(void **state)
{
    (void)state;
    run_job(2, leave_a_reference, NULL);
}

/* Functions that outlast their calls, and some that have not begun by then. What they make can be had all the same, and goes
 * when the references have gone. */
static tr_status outlast_remote_calls(rank *r)
{
    TR_SCOPE;
    char said[512] = "";
    tr_set_log(note, said, TR_LOG_WARN);
    tr_rpc *rpc = tr_rpc_start(r->group, .timeout_ms = JOIN_MS, .threads = 1);
    TRY(tr_status_of(rpc));
    TRY(tr_rpc_register(rpc, &make_slowly_rpc));
    TRY(tr_barrier(r->group));
    for (int i = 0; i < 4 && r->number == 0; i++) {
        TR_SCOPE;
        tr_value size = tr_value_i64(3);
        tr_rpc_call c = {.size = sizeof c, .rpc = rpc, .worker = i / 2, .function = "make_slowly", .arguments = &size, .count = 1,
            .timeout_ms = 50};
        tr_rref *ref = tr_remote_with(&c);
        TRY(tr_status_of(ref));
        if (i % 2) continue; /* this one is dropped while it waits in the queue, or runs */
        for (; tr_future_wait(tr_rref_to_here(ref)) == TR_CANCELLED; ref = tr_remote_with(&c))
            c.timeout_ms *= 2; /* it had not begun */
        CHECK(tr_numel(tr_future_tensor(tr_rref_to_here(ref))) == 3);
        TRY(tr_status_of(tr_rpc_async(rpc, tr_rpc_name(rpc, c.worker), "make_slowly", 1)));
    }
    TRY(tr_rpc_stop(rpc));
    tr_set_log(NULL, NULL, TR_LOG_OFF);
    return said[0] ? tr_fail(TR_INTERNAL, "%s", said) : TR_OK;
}

static void values_go_whose_calls_took_too_long(void **state)
{
    (void)state;
    run_job(2, outlast_remote_calls, NULL);
}

/* ---- Values at the time of the call -------------------------------------------------------------------------------- */

/* Both sides copy what is large, and what the caller writes afterwards goes nowhere. */
static tr_status write_after_calls(rank *r)
{
    enum { FLOATS = 1000000, CALLS = 4, TURNS = 10 };
    tr_rpc *rpc = start(r);
    TRY(tr_status_of(rpc));
    TRY(tr_barrier(r->group));
    for (int turn = 0; turn < TURNS && r->number == 0; turn++) {
        TR_SCOPE;
        tr_future *calls[CALLS];
        tr_tensor *x = tr_full(turn, TR_SHAPE(FLOATS + turn));
        for (int i = 0; i < CALLS; i++) {
            calls[i] = tr_rpc_async(rpc, "worker1", "echo", x);
            TRY(tr_fill(x, 1000 * i + 1000));
        }
        for (int i = 0; i < CALLS; i++) {
            const float *v = tr_data(tr_future_tensor(calls[i]));
            TRY(tr_future_wait(calls[i]));
            float wanted = (float)(i ? 1000 * i : turn);
            for (int at = 0; at < FLOATS + turn; at++)
                if (v[at] != wanted) return tr_fail(TR_INTERNAL, "call %d.%d: [%d] is %g, not %g", turn, i, at, v[at], wanted);
        }
    }
    return tr_rpc_stop(rpc);
}

static void calls_have_the_values_of_their_time(void **state)
{
    (void)state;
    run_job(2, write_after_calls, NULL);
}

/* ---- Results in collectives ---------------------------------------------------------------------------------------- */

/* A result lies in memory that its worker alone was shown. */
static tr_status reduce_what_came_back(rank *r)
{
    TR_SCOPE;
    enum { FLOATS = 100000 };
    tr_rpc *rpc = start(r);
    TRY(tr_status_of(rpc));
    TRY(tr_barrier(r->group));
    tr_tensor *mine = tr_full(1 + r->number, TR_SHAPE(FLOATS));
    tr_tensor *x = tr_future_tensor(tr_rpc_sync(rpc, tr_rpc_name(rpc, (r->number + 1) % r->world), "echo", mine));
    TRY(tr_status_of(x));
    for (int i = 0; i < 2; i++) TRY(tr_all_reduce(r->group, tr_data(x), FLOATS));
    CHECK(tr_item(tr_sum(x)) == 18.0 * FLOATS);
    return tr_rpc_stop(rpc);
}

static void results_take_part_in_collectives(void **state)
{
    (void)state;
    run_job(3, reduce_what_came_back, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_end_in_time_or_on_request),
        cmocka_unit_test(stopping_waits_for_what_is_under_way),
        cmocka_unit_test(values_go_whose_calls_took_too_long),
        cmocka_unit_test(calls_have_the_values_of_their_time),
        cmocka_unit_test(results_take_part_in_collectives),
        cmocka_unit_test(references_that_leak_are_reported),
        cmocka_unit_test(others_go_on_when_a_worker_is_killed),
        cmocka_unit_test(answers_that_are_owed_go_with_their_caller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
