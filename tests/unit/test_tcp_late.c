/* Groups over TCP: a rank that comes late to a call, and with another one than the others. Threads as ranks. */
#include "comm/group/group.h"
#include "comm/transport/tcp.h"
#include "comm_ranks.h"

#include <time.h>
#include <unistd.h>

static tr__tcp *tcp_of(const rank *r)
{
    struct tr__shm *shm;
    tr__tcp *tcp;
    tr__native_transports(r->group->state, &shm, &tcp);
    return tcp;
}

/* Until all others have told us that they wait in the call of that number. */
static bool await_the_others(const rank *r, uint64_t number)
{
    tr__tcp *t = tcp_of(r);
    int waiting = 0;
    for (int ms = 0; ms < JOIN_MS && waiting < r->world - 1; ms++) {
        usleep(1000);
        waiting = 0;
        pthread_mutex_lock(&t->lock);
        for (int other = 0; other < r->world; other++) waiting += t->peers[other].numbered.sequence == number;
        pthread_mutex_unlock(&t->lock);
    }
    return waiting == r->world - 1;
}

/* By the time that the others could object to it, this call would have ended: nothing of it is on its way to them. */
static void come_with_another_call(rank *r)
{
    float x[4] = {0};
    tr_status status;
    OK(tr_barrier(r->group));
    if (r->number == r->world - 1) {
        CHECK(await_the_others(r, 2));
        status = tr_broadcast(r->group, x, 4, .root = 0, .timeout_ms = 1);
    } else {
        status = tr_all_reduce(r->group, x, 4);
    }
    CHECK(status == TR_MISMATCH);
    SAYS("different calls");
    SAYS("all_reduce #2 (sum of f32[4] at ");
    SAYS("broadcast #2 (f32[4] from rank 0 at ");
}

static void who_comes_late_with_another_call_finds_it_at_once(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) run_tcp(world, come_with_another_call, NULL, NULL);
}

/* Rank 1's call ends before the usual time to say where one waits; and yet it says so. */
static void wait_for_a_moment(rank *r)
{
    float x[4] = {0};
    OK(tr_barrier(r->group));
    if (r->number == 0) CHECK(await_the_others(r, 2));
    tr_status status = tr_broadcast(r->group, x, 4, .root = 1 - r->number, .timeout_ms = r->number ? 50 : JOIN_MS);
    CHECK(status == TR_MISMATCH || status == TR_TIMEOUT); /* if it was over by then, as on a busy machine */
}

static void short_calls_are_told_of_too(void **state)
{
    (void)state;
    run_tcp(2, wait_for_a_moment, NULL, NULL);
}

/* The last rank is deaf while the others wait for it and give up, as if it had been stopped; when it wakes, theirs is the
 * reason, and not that it now does something else. */
static void wake_to_a_broken_group(rank *r)
{
    float x[5] = {0};
    bool last = r->number == r->world - 1;
    OK(tr_barrier(r->group));
    if (last) {
        pthread_mutex_lock(&tcp_of(r)->lock);
        tr_status waited = tr_store_wait(r->store, "all have given up", JOIN_MS);
        pthread_mutex_unlock(&tcp_of(r)->lock);
        OK(waited);
    }
    CHECK(tr_all_reduce(r->group, x, last ? 5 : 4, .timeout_ms = 120) == TR_TIMEOUT);
    SAYS("all_reduce #2 (sum of f32[4] at ");
    SAYS("waited 0.12 s for rank ");
    if (!last) say_given_up(r);
}

static void who_wakes_to_a_broken_group_learns_why(void **state)
{
    (void)state;
    for (int turn = 0; turn < 6; turn++) run_tcp(2 + turn % 2, wake_to_a_broken_group, NULL, NULL);
}

/* What rank 0 would say if it gave up on rank 1, when that is what it has heard of ranks 1 and 2. */
static void explain(rank *r, tr__tcp_wait_edge of_1, tr__tcp_wait_edge of_2)
{
    tr__tcp *t = tcp_of(r);
    pthread_mutex_lock(&t->network->hearing); /* what they really say comes later */
    pthread_mutex_lock(&t->lock);
    t->peers[1].waits[0] = of_1;
    t->peers[2].waits[0] = of_2;
    pthread_mutex_unlock(&t->lock);
    tr_status status = tr__tcp_timed_out(t, &t->last, 1, 1000);
    pthread_mutex_unlock(&t->network->hearing);
    (void)status;
}

/* The words of ranks that are stopped stay: here rank 1's, and then rank 2's. */
static void hear_stale_words(rank *r)
{
    const tr__tcp_wait_edge none = {.on = -1};
    OK(tr_barrier(r->group));
    if (r->number == 0) {
        explain(r, (tr__tcp_wait_edge){2, 1, 100}, none);
        SAYS("waited 1 s for rank 2 ");
        explain(r, (tr__tcp_wait_edge){2, 1, 100}, (tr__tcp_wait_edge){1, 1, 200});
        SAYS("waited 1 s for rank 1 ");
        explain(r, (tr__tcp_wait_edge){2, 1, 300}, (tr__tcp_wait_edge){1, 1, 200});
        SAYS("waited 1 s for rank 2 ");
        pthread_mutex_lock(&tcp_of(r)->lock);
        tcp_of(r)->peers[2].numbered.sequence = 2; /* in which it has done with what rank 1 waited for */
        pthread_mutex_unlock(&tcp_of(r)->lock);
        explain(r, (tr__tcp_wait_edge){2, 1, 300}, (tr__tcp_wait_edge){1, 2, 200});
        SAYS("waited 1 s for rank 1 ");
        explain(r, none, none);
        OK(tr_store_set(r->store, "explained", "", 0));
    }
    OK(tr_store_wait(r->store, "explained", JOIN_MS)); /* a rank that has left is another reason */
    OK(tr_leave(r->group));
}

static void who_is_stopped_is_named_not_who_waits_for_it(void **state)
{
    (void)state;
    run_tcp(3, hear_stale_words, NULL, NULL);
    run_tcp(4, hear_stale_words, NULL, NULL);
}

static int64_t time_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * (int64_t)1000000000 + t.tv_nsec;
}

/* Rank 0 awaits a connection with rank 1, which has left, while one is still being made. It sleeps, until the time is up or the
 * connection has come to nothing. */
static void await_one_that_has_left(rank *r)
{
    enum { WAIT_MS = 200 };
    tr__tcp *t = tcp_of(r);
    tr__wire *wire = NULL;
    OK(tr_barrier(r->group));
    if (r->number == 0) {
        pthread_mutex_lock(&t->network->hearing); /* nothing comes of it yet */
        tr_status asked = tr__network_call(t->network, 1, TR__P2P_CHANNEL, t->place->id);
        bool left = atomic_exchange(&t->peers[1].left, true);
        int64_t began = time_of(CLOCK_MONOTONIC), busy = time_of(CLOCK_THREAD_CPUTIME_ID);
        tr_status waited = asked == TR_OK ? tr__tcp_await_wire(t, 1, TR__P2P_CHANNEL, WAIT_MS, &wire) : asked;
        int64_t passed = time_of(CLOCK_MONOTONIC) - began;
        busy = time_of(CLOCK_THREAD_CPUTIME_ID) - busy;
        pthread_mutex_unlock(&t->network->hearing);
        CHECK(waited == TR_TIMEOUT && !left && passed >= WAIT_MS * (int64_t)1000000);
        SAYS("waited 0.2 s for rank 1 ");
        CHECK(busy < passed / 4);
        CHECK(tr__tcp_await_wire(t, 1, TR__P2P_CHANNEL, JOIN_MS, &wire) == TR_PEER);
        SAYS("has left group");
        atomic_store(&t->peers[1].left, false);
    }
    OK(tr_barrier(r->group));
}

static void who_awaits_a_connection_of_one_that_has_left_sleeps(void **state)
{
    (void)state;
    run_tcp(2, await_one_that_has_left, NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_comes_late_with_another_call_finds_it_at_once),
        cmocka_unit_test(short_calls_are_told_of_too),
        cmocka_unit_test(who_wakes_to_a_broken_group_learns_why),
        cmocka_unit_test(who_is_stopped_is_named_not_who_waits_for_it),
        cmocka_unit_test(who_awaits_a_connection_of_one_that_has_left_sleeps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
