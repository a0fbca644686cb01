/*
 * Waits whose thread did not run while their time came to its end, and whom they wait for has come meanwhile. Threads as ranks. Rank
 * 0's clock is this test's: at one reading of it all that happens there happens.
 */
#include "base/clock.h"
#include "comm/backend/polling_backend.h"
#include "comm/group/group.h"
#include "comm/transport/tcp.h"
#include "comm_ranks.h"

#include <poll.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static sem_t may_come, has_come;

/* Of the thread that waits: how many readings are left until then, and so much is its clock ahead. */
static _Thread_local int readings_left;
static _Thread_local time_t ahead_s;
static _Thread_local int awaited_socket; /* that what the other rank sends comes in at; -1: none */

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (clock == CLOCK_MONOTONIC && readings_left && --readings_left == 0) {
        sem_post(&may_come);
        sem_wait(&has_come);
        if (awaited_socket >= 0) (void)!poll(&(struct pollfd){.fd = awaited_socket, .events = POLLIN}, 1, JOIN_MS);
        ahead_s = 2 * JOIN_MS / 1000;
    }
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_MONOTONIC) now->tv_sec += ahead_s;
    return result;
}

/* arg: what is called, and the reading of the clock in it at which the other rank comes. */
typedef struct wait {
    tr_status (*call)(rank *r);
    int reading;
} wait;

static tr_status meet(rank *r)
{
    return tr_barrier(r->group);
}

static tr_status pass_a_message(rank *r)
{
    int32_t word = 7;
    if (r->number == 1) return tr_send(r->group, &word, 1, .peer = 0, .dtype = TR_I32);
    tr_status status = tr_recv(r->group, &word, 1, .peer = 1, .dtype = TR_I32);
    return status == TR_OK && word != 7 ? TR_INTERNAL : status;
}

static void come_as_time_is_up(rank *r)
{
    const wait *w = r->arg;
    struct tr__shm *shm;
    struct tr__tcp *tcp;
    tr__native_transports(r->group->state, &shm, &tcp);
    OK(w->call(r)); /* makes the connection */
    OK(tr_barrier(r->group));
    if (r->number == 1) {
        sem_wait(&may_come);
        tr_status status = w->call(r);
        sem_post(&has_come);
        OK(status);
    } else {
        awaited_socket = tcp ? tr__tcp_wire(tcp, 1, TR__DATA_CHANNEL)->socket : -1;
        readings_left = w->reading;
        tr_status status = w->call(r);
        bool passed = readings_left == 0;
        readings_left = 0;
        ahead_s = 0;
        OK(status);
        CHECK(passed);
    }
    OK(tr_barrier(r->group));
}

/* In shared memory the flight recorder reads the clock, and the wait each turn: of which 21 at most come before the recorder does so
 * once more. */
static void who_comes_as_time_is_up_counts_in_shared_memory(void **state)
{
    (void)state;
    run(2, come_as_time_is_up, &(const wait){meet, 27});
}

/* Over a ring, whichever reading of the clock it is: the recorder's, or one of a look before a sleep. */
static void a_message_that_comes_as_time_is_up_counts(void **state)
{
    (void)state;
    for (int reading = 2; reading < 8; reading++) run(2, come_as_time_is_up, &(const wait){pass_a_message, reading});
}

/* Over TCP: the recorder, the first sleep, the recorder, and the second sleep. */
static void who_comes_as_time_is_up_counts_over_tcp(void **state)
{
    (void)state;
    run_tcp(2, come_as_time_is_up, NULL, &(const wait){meet, 4});
}

/* A backend that asks its library again and again does so once more. */
static void a_library_is_asked_once_more_when_time_is_up(void **state)
{
    (void)state;
    tr__polled p = {.member = {.report_ms = JOIN_MS}};
    tr__polled_begin_to_wait(&p, 1, 1);
    int64_t began = tr__now_ns();
    ahead_s = 1;
    assert_int_equal(tr__polled_rest(&p, began), TR_OK);
    FAILS(TR_TIMEOUT, tr__polled_rest(&p, began), "rank 0 waited ");
    ahead_s = 0;
}

int main(void)
{
    sem_init(&may_come, 0, 0);
    sem_init(&has_come, 0, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_comes_as_time_is_up_counts_in_shared_memory),
        cmocka_unit_test(who_comes_as_time_is_up_counts_over_tcp),
        cmocka_unit_test(a_message_that_comes_as_time_is_up_counts),
        cmocka_unit_test(a_library_is_asked_once_more_when_time_is_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
