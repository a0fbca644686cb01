/* Groups over TCP: a rank that comes late to a call, and with another one than the others. Threads as ranks. */
#include "comm/group.h"
#include "comm/transport/tcp.h"
#include "comm_ranks.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_comes_late_with_another_call_finds_it_at_once),
        cmocka_unit_test(short_calls_are_told_of_too),
        cmocka_unit_test(who_wakes_to_a_broken_group_learns_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
