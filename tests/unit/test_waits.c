/*
 * Waits whose thread did not run while their time came to its end, and whom they wait for has come meanwhile. Threads as ranks. Rank
 * 0's clock is this test's: at one reading of it all that happens there happens.
 */
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

/* arg: the reading of the clock in the second barrier at which the other rank comes. */
static void come_as_time_is_up(rank *r)
{
    struct tr__shm *shm;
    struct tr__tcp *tcp;
    tr__native_transports(r->group->state, &shm, &tcp);
    OK(tr_barrier(r->group)); /* makes the connection */
    if (r->number == 1) {
        sem_wait(&may_come);
        tr_status status = tr_barrier(r->group);
        sem_post(&has_come);
        OK(status);
    } else {
        awaited_socket = tcp ? tr__tcp_wire(tcp, 1, TR__DATA_CHANNEL)->socket : -1;
        readings_left = *(const int *)r->arg;
        tr_status status = tr_barrier(r->group);
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
    run(2, come_as_time_is_up, &(const int){27});
}

/* Over TCP: the recorder, the first sleep, the recorder, and the second sleep. */
static void who_comes_as_time_is_up_counts_over_tcp(void **state)
{
    (void)state;
    run_tcp(2, come_as_time_is_up, NULL, &(const int){4});
}

int main(void)
{
    sem_init(&may_come, 0, 0);
    sem_init(&has_come, 0, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_comes_as_time_is_up_counts_in_shared_memory),
        cmocka_unit_test(who_comes_as_time_is_up_counts_over_tcp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
