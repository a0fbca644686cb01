/*
 * Groups over several hosts whose ranks are processes, on pretended hosts: killed and stopped ones.
 *
 * ctest: serial timeout=240
 */
#include "base/clock.h"
#include "processes.h"

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

typedef struct layout {
    int world;
    int hosts[RANKS_MOST];
} layout;

static const layout layouts[] = {{4, {0, 0, 1, 1}}, {4, {0, 0, 0, 1}}, {5, {0, 1, 2, 1, 2}}};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

/* ---- Killed ------------------------------------------------------------------------------------------------------- */

typedef enum activity { BARRIER, SMALL, LARGE, BROADCAST, GATHER, ALL_TO_ALL, IDLE, ACTIVITIES } activity;

enum { COUNT = 1000000 };

static tr_status act(rank *r, activity a, float *x)
{
    int turn = atomic_load(&r->post->turns);
    if (a == SMALL) return tr_all_reduce(r->group, x, 100);
    if (a == LARGE) return tr_all_reduce(r->group, x, COUNT);
    if (a == BROADCAST) return tr_broadcast(r->group, x, COUNT, .root = turn % r->world);
    if (a == GATHER) return tr_gather(r->group, x, x + COUNT, COUNT / r->world, .root = turn % r->world);
    if (a == ALL_TO_ALL) return tr_all_to_all(r->group, x, x + COUNT, COUNT / r->world);
    if (a == IDLE) usleep(2000); /* dies most likely outside any call */
    return tr_barrier(r->group);
}

static tr_status act_until_it_fails(rank *r)
{
    float *x = calloc(2 * COUNT, sizeof *x);
    CHECK(x);
    tr_status status;
    while ((status = act(r, *(const activity *)r->arg, x)) == TR_OK) atomic_fetch_add(&r->post->turns, 1);
    atomic_store(&r->post->ended, tr__now_ns());
    free(x);
    return status;
}

static const char *const death[] = {"died", "", ""};

static void kill_one(const layout *l, int victim, activity a, int delay_us)
{
    job j;
    int64_t killed =
        kill_one_of(&j, &(setting){.hosts = l->hosts}, l->world, victim, act_until_it_fails, &a, delay_us);
    for (int i = 0; i < l->world; i++)
        if (i != victim) check_survivor(&j, i, victim, killed, death);
    finish(&j);
}

static void a_killed_rank_is_named_by_all_others(void **state)
{
    (void)state;
    static const int delays[] = {0, 300, 1700};
    for (activity a = 0; a < ACTIVITIES; a++) {
        for (int l = 0; l < LAYOUTS; l++) {
            for (int d = 0; d < 2; d++)
                kill_one(&layouts[l], (int)(a + 3 * d + l) % layouts[l].world, a, delays[(a + d) % 3]);
        }
    }
}

/* ---- Busy and stopped --------------------------------------------------------------------------------------------- */

/* Rank 1 is in no call, so rank 0 waits for it in the memory of their host; and yet hears of a death elsewhere. */
static tr_status wait_for_a_busy_one(rank *r)
{
    atomic_fetch_add(&r->post->turns, 1);
    if (r->number == 1) {
        while (tr_store_wait(r->store, "nothing", 100) == TR_TIMEOUT && getppid() != 1)
            if (atomic_load(&r->post[-1].ended)) break; /* rank 0's */
    }
    tr_status status = tr_barrier(r->group);
    atomic_store(&r->post->ended, tr__now_ns());
    return status;
}

static void a_death_is_heard_of_past_a_busy_rank(void **state)
{
    (void)state;
    job j;
    setting s = {.hosts = layouts[0].hosts};
    start_job_in(&j, &s, 4, wait_for_a_busy_one, NULL);
    for (int i = 0; i < 4; i++) await_turns(&j, i, 1);
    usleep(20000);
    int64_t killed = tr__now_ns();
    kill(j.ranks[3].pid, SIGKILL);
    for (int i = 0; i < 4; i++) reap(&j, i);
    for (int i = 0; i < 3; i += 2) check_survivor(&j, i, 3, killed, death);
    assert_int_equal(j.posts[1].status, TR_PEER);
    finish(&j);
}

static tr_status act_with_a_timeout(rank *r)
{
    float *x = calloc(3 * COUNT, sizeof *x);
    CHECK(x);
    tr_status status;
    while ((status = tr_all_reduce(r->group, x, 3 * COUNT, .timeout_ms = atomic_load(&r->post->patience_ms))) == TR_OK)
        atomic_fetch_add(&r->post->turns, 1);
    free(x);
    return status;
}

static void a_stopped_rank_is_a_timeout(void **state)
{
    (void)state;
    for (int l = 0; l < LAYOUTS; l++) {
        job j;
        char name[64];
        int world = layouts[l].world;
        setting s = {.hosts = layouts[l].hosts};
        stop_one_of(&j, &s, world, 1, act_with_a_timeout, NULL);
        snprintf(name, sizeof name, "for rank 1 (pid %ld", (long)j.ranks[1].pid);
        for (int i = 0; i < world; i++)
            if (j.posts[i].status != TR_TIMEOUT || !strstr(j.posts[i].text, name))
                fail_msg("rank %d says '%s'", i, j.posts[i].text);
        finish(&j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_is_named_by_all_others),
        cmocka_unit_test(a_death_is_heard_of_past_a_busy_rank),
        cmocka_unit_test(a_stopped_rank_is_a_timeout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
