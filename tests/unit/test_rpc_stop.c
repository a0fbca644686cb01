/* tr_rpc_stop() where workers stand still, go on, or are late: whom it waits for, whom it gives up, and what it says. */
#include "rpc_workers.h"

#include "base/clock.h"
#include "rpc/agent.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

enum { SHORT_MS = 3000 };

static atomic_int *halted; /* worker 1 has come to that: which the processes share */

static tr_status halt(void)
{
    if (!atomic_exchange(halted, 1)) raise(SIGSTOP);
    return TR_OK;
}
TR_RPC(halt, RETURNS(NONE));

/* Waits for a call to worker 1, for longer than anyone is waited for. */
static int64_t lean(int64_t x)
{
    tr_value v = tr_value_i64(x);
    tr_rpc_call c = {.size = sizeof c, .rpc = tr_rpc_current(), .to = "worker1", .function = "twice", .arguments = &v,
        .count = 1, .timeout_ms = 2 * PATIENCE_MS};
    return tr_future_wait(tr_rpc_sync_with(&c));
}
TR_RPC(lean, I64, RETURNS(I64));

static tr_rpc *start(const rank *r)
{
    tr_rpc *rpc = start_worker(r);
    (void)!(tr_rpc_register(rpc, &halt_rpc) == TR_OK ? tr_rpc_register(rpc, &lean_rpc) : TR_OK);
    return rpc;
}

static tr_status stop_without(tr_rpc *rpc, const char *whom, const char *why)
{
    rpc->timeout_ms = SHORT_MS; /* from here on */
    CHECK(tr_rpc_stop(rpc) == TR_TIMEOUT);
    TRY(says("tr_rpc_stop: given up after 3 s"));
    TRY(says(whom));
    return says(why);
}

/* One stands still, in the middle of a function. */
static tr_status go_on_beside_a_statue(rank *r)
{
    TR_SCOPE;
    halted = &r->post[-r->number].reports;
    tr_rpc *rpc = start(r);
    TRY(tr_status_of(rpc));
    TRY(tr_barrier(r->group));
    if (r->number == 1) {
        while (!atomic_load(&r->post->turns)) usleep(1000);
        tr_status status = tr_rpc_stop(rpc); /* the others have given up on this one, which it may hear now, or not */
        return status == TR_TIMEOUT ? says("worker 1 (\"worker1\") does not answer") : status;
    }
    if (r->number == 0) {
        tr_rpc_call c = {.size = sizeof c, .rpc = rpc, .to = "worker1", .function = "halt", .timeout_ms = 100};
        do CHECK(tr_future_wait(tr_rpc_sync_with(&c)) == TR_TIMEOUT);
        while (!atomic_load(halted)); /* it was given up before the function has begun */
        TRY(says("rpc: halt on \"worker1\": no answer within 0.1 s"));
    }
    TRY(call_worker(rpc, 2 - r->number));
    return stop_without(rpc, "worker 1 (\"worker1\")", "does not answer");
}

static void check_all(const job *j)
{
    for (int i = 0; i < j->world; i++)
        if (j->posts[i].status != TR_OK || !j->posts[i].ended)
            fail_msg("rank %d: %s (%s)", i, j->posts[i].text, tr_status_name(j->posts[i].status));
}

static void a_worker_that_stands_still_is_named(void **state)
{
    (void)state;
    static const int hosts[] = {0, 1, 0};
    job j;
    start_job_in(&j, &(setting){.hosts = hosts}, 3, go_on_beside_a_statue, NULL);
    reap(&j, 0);
    reap(&j, 2);
    atomic_store(&j.posts[1].turns, 1);
    kill(j.ranks[1].pid, SIGCONT);
    reap(&j, 1);
    check_all(&j);
    finish(&j);
}

/* A function here waits for the one that stands still, and nothing else will end its call. */
static tr_status stop_beneath_a_function(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = start(r);
    TRY(tr_status_of(rpc));
    TRY(tr_barrier(r->group));
    if (r->number == 1) {
        raise(SIGSTOP);
        return TR_OK;
    }
    usleep(200000); /* or it stands still a little later, which is as well */
    tr_future *f = tr_rpc_async(rpc, "worker0", "lean", 1);
    usleep(100000);
    TRY(stop_without(rpc, "worker 1 (\"worker1\")", "does not answer"));
    return tr_future_done(f) ? TR_OK : tr_fail(TR_INTERNAL, "the call is still under way");
}

static void giving_up_ends_what_waits_for_it(void **state)
{
    (void)state;
    job j;
    start_job(&j, 2, stop_beneath_a_function, NULL);
    reap(&j, 0);
    kill(j.ranks[1].pid, SIGCONT);
    reap(&j, 1);
    check_all(&j);
    finish(&j);
}

/* How often this thread has slept. */
static long sleeps(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
}

/* More than a ring holds is under way to each of three that stand still. Whom it has given up this one does not wait for until they
 * read, looking each millisecond, as it does for the others. */
static tr_status stop_beside_statues(rank *r)
{
    enum { CALLS = 600, BYTES = 1 << 10, FEW = 500 }; /* short enough to go through the ring */
    TR_SCOPE;
    tr_rpc *rpc = start(r);
    TRY(tr_status_of(rpc));
    TRY(tr_barrier(r->group));
    if (r->number) {
        raise(SIGSTOP);
        return TR_OK;
    }
    usleep(200000);
    char *text = text_of(BYTES);
    for (int i = 0; text && i < 3 * CALLS; i++) TRY(tr_status_of(tr_rpc_async(rpc, tr_rpc_name(rpc, 1 + i % 3), "length", text)));
    free(text);
    rpc->timeout_ms = 100;
    long before = sleeps();
    CHECK(tr_rpc_stop(rpc) == TR_TIMEOUT);
    long slept = sleeps() - before;
    return slept < FEW ? TR_OK : tr_fail(TR_INTERNAL, "they were waited for, in %ld sleeps", slept);
}

static void statues_are_not_waited_for(void **state)
{
    (void)state;
    job j;
    start_job(&j, 4, stop_beside_statues, NULL);
    reap(&j, 0);
    for (int i = 1; i < 4; i++) {
        kill(j.ranks[i].pid, SIGCONT);
        reap(&j, i);
    }
    check_all(&j);
    finish(&j);
}

/* Their timeout is shorter than the pauses between two looks. */
static tr_status stop_late_in_a_hurry(rank *r)
{
    float well = 0;
    for (int turn = 0; turn < 20 && well == 0; turn++) { /* who is kept from an answer for so long is given up: then once more */
        TR_SCOPE;
        tr_rpc *rpc = start(r);
        TRY(tr_status_of(rpc));
        TRY(tr_barrier(r->group));
        rpc->timeout_ms = r->number ? 80 : JOIN_MS;
        if (r->number == 0) usleep(500000);
        well = tr_rpc_stop(rpc) == TR_OK;
        TRY(tr_all_reduce(r->group, &well, 1, .op = TR_MIN));
    }
    CHECK(well == 1);
    return TR_OK;
}

static void a_short_timeout_is_counted_from_a_question(void **state)
{
    (void)state;
    run_job(2, stop_late_in_a_hurry, NULL);
}

static void count_reminders(tr_log_level level, const char *message, void *user)
{
    const rank *r = user;
    char words[64];
    int last = *(const int *)r->arg;
    snprintf(words, sizeof words, "worker %d (\"worker%d\") has not called it", last, last);
    if (level == TR_LOG_WARN && strstr(message, "tr_rpc_stop: waiting, after 3 s") && strstr(message, words))
        atomic_fetch_add(&r->post->reports, 1);
}

/* One goes on with something else, until the others have said that they wait for it. */
static tr_status stop_before_the_last(rank *r)
{
    TR_SCOPE;
    int last = *(const int *)r->arg;
    tr_rpc *rpc = start(r);
    TRY(tr_status_of(rpc));
    TRY(tr_barrier(r->group));
    if (r->number == last) {
        while (!atomic_load(&r->post->turns)) usleep(1000);
        TRY(call_worker(rpc, (last + 1) % r->world)); /* they serve as before */
        return tr_rpc_stop(rpc);
    }
    tr_set_log(count_reminders, r, TR_LOG_WARN);
    rpc->timeout_ms = SHORT_MS;
    return tr_rpc_stop(rpc);
}

static void who_does_not_stop_is_waited_for_and_named(void **state)
{
    (void)state;
    static const int lasts[] = {0, 2}; /* one who would ask the others, and one who would be asked */
    for (int i = 0; i < 2; i++) {
        job j;
        int other = (lasts[i] + 1) % 3;
        start_job(&j, 3, stop_before_the_last, &lasts[i]);
        for (int ms = 0; ms < PATIENCE_MS && !atomic_load(&j.posts[other].reports); ms++) usleep(1000);
        assert_true(atomic_load(&j.posts[other].reports) > 0);
        atomic_store(&j.posts[lasts[i]].turns, 1);
        for (int k = 0; k < 3; k++) reap(&j, k);
        check_all(&j);
        finish(&j);
    }
}

/* Longer than the timeout, but not without a call. */
static tr_status stop_while_another_works(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = start(r);
    TRY(tr_status_of(rpc));
    TRY(tr_barrier(r->group));
    int64_t until = tr__now_ns() + 5 * SHORT_MS / 4 * (int64_t)1000000;
    while (r->number == 1 && tr__now_ns() < until) {
        TRY(call_worker(rpc, 2));
        usleep(1000);
    }
    rpc->timeout_ms = r->number == 1 ? JOIN_MS : SHORT_MS;
    return tr_rpc_stop(rpc);
}

static void who_works_is_waited_for(void **state)
{
    (void)state;
    run_job(3, stop_while_another_works, NULL);
}

/* Worker 0, which asks, hears of a message that is on its way only in its fifth round. */
static void *hear_late(void *agent)
{
    tr_rpc *rpc = agent;
    bool late = false, ended = false;
    while (!late && !ended) {
        usleep(1000);
        pthread_mutex_lock(&rpc->drain_lock);
        late = rpc->round >= 5;
        ended = rpc->ended;
        pthread_mutex_unlock(&rpc->drain_lock);
    }
    atomic_fetch_add(&rpc->links[1].refers_heard, 1);
    return ended ? rpc : NULL;
}

static tr_status stop_before_all_is_heard(rank *r)
{
    TR_SCOPE;
    pthread_t thread;
    void *early = NULL;
    tr_rpc *rpc = start(r);
    TRY(tr_status_of(rpc));
    pthread_mutex_lock(&rpc->refs_lock);
    if (r->number) rpc->links[0].refers_sent++; /* as of a reference that it has just dropped */
    pthread_mutex_unlock(&rpc->refs_lock);
    TRY(tr_barrier(r->group));
    CHECK(r->number || pthread_create(&thread, NULL, hear_late, rpc) == 0);
    tr_status status = tr_rpc_stop(rpc);
    if (!r->number) pthread_join(thread, &early);
    return early ? tr_fail(TR_INTERNAL, "it ended while a message about references was on its way") : status;
}

static void messages_about_references_are_waited_for(void **state)
{
    (void)state;
    run_job(2, stop_before_all_is_heard, NULL);
}

/* ---- A thread that is still at a message when a worker is given up -------------------------------------------------------- */

typedef struct slow_send {
    tr_rpc *rpc;
    atomic_bool held, released;
} slow_send;

/* Nobody gets memory for worker 1 until a while after the agent has begun to end. */
static void *hold_blocks(void *arg)
{
    slow_send *s = arg;
    pthread_mutex_lock(&s->rpc->links[1].blocks.lock);
    atomic_store(&s->held, true);
    while (!atomic_load(&s->rpc->closing)) usleep(1000);
    usleep(300000);
    atomic_store(&s->released, true);
    pthread_mutex_unlock(&s->rpc->links[1].blocks.lock);
    return NULL;
}

static void *send_large(void *arg)
{
    TR_SCOPE;
    slow_send *s = arg;
    tr_value x = tr_value_tensor(tr_ones(TR_SHAPE(1 << 16)));
    (void)!tr_status_of(tr__rpc_internal(s->rpc, 1, ".large", &x, 1, TR__RPC_NO_TIMEOUT)); /* whose deadline wakes no clock */
    return NULL;
}

static bool has_call(tr_rpc *rpc)
{
    pthread_mutex_lock(&rpc->calls_lock);
    bool has = rpc->call_count > 0;
    pthread_mutex_unlock(&rpc->calls_lock);
    return has;
}

static tr_status stop_beneath_a_send(rank *r)
{
    TR_SCOPE;
    slow_send s = {.rpc = start(r)};
    pthread_t holder, sender;
    TRY(tr_status_of(s.rpc));
    TRY(tr_barrier(r->group));
    if (r->number) {
        raise(SIGSTOP);
        return TR_OK;
    }
    CHECK(pthread_create(&holder, NULL, hold_blocks, &s) == 0);
    while (!atomic_load(&s.held)) usleep(1000);
    CHECK(pthread_create(&sender, NULL, send_large, &s) == 0);
    while (!has_call(s.rpc)) usleep(1000);
    while (!atomic_load(&s.rpc->sending)) usleep(1000); /* it waits for a block */
    s.rpc->timeout_ms = 100;
    tr_status status = tr_rpc_stop(s.rpc);
    bool waited = atomic_load(&s.released);
    pthread_join(holder, NULL);
    pthread_join(sender, NULL);
    CHECK(status == TR_TIMEOUT);
    return waited ? TR_OK : tr_fail(TR_INTERNAL, "the group was left while a thread was sending");
}

static void a_thread_that_sends_is_waited_for(void **state)
{
    (void)state;
    job j;
    start_job(&j, 2, stop_beneath_a_send, NULL);
    reap(&j, 0);
    kill(j.ranks[1].pid, SIGCONT);
    reap(&j, 1);
    check_all(&j);
    finish(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_that_stands_still_is_named),
        cmocka_unit_test(giving_up_ends_what_waits_for_it),
        cmocka_unit_test(statues_are_not_waited_for),
        cmocka_unit_test(a_short_timeout_is_counted_from_a_question),
        cmocka_unit_test(who_does_not_stop_is_waited_for_and_named),
        cmocka_unit_test(who_works_is_waited_for),
        cmocka_unit_test(messages_about_references_are_waited_for),
        cmocka_unit_test(a_thread_that_sends_is_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
