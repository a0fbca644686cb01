/*
 * Groups over TCP whose ranks are processes: killed and stopped ones, and two network namespaces, joined by a pair of
 * virtual interfaces, that stand for two hosts. The latter need root, and are skipped without.
 *
 * ctest: serial timeout=240
 */
#include "base/clock.h"
#include "processes.h"
#include "sanitized.h"
#include "spaces.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const setting over_tcp = {.transport = "tcp"}, over_tls = {.transport = "tcp", .encrypt = true};

/* ---- Data -------------------------------------------------------------------------------------------------------- */

/* Sums and averages that are exact, in all sizes that the table has rows for, and everyone's blocks to everyone. */
static tr_status check_sizes(rank *r)
{
    static const int64_t counts[] = {1, 1000, 4096, 100003, 600001};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        int64_t n = counts[c];
        float *x = malloc((size_t)n * sizeof *x), *all = malloc((size_t)(n * r->world) * sizeof *all);
        CHECK(x && all);
        for (int64_t i = 0; i < n; i++) x[i] = (float)(i % 1000 + r->number);
        TRY(tr_all_reduce(r->group, x, n));
        for (int64_t i = 0; i < n; i++)
            CHECK(x[i] == (float)(r->world * (i % 1000) + r->world * (r->world - 1) / 2));
        for (int64_t i = 0; i < n; i++) x[i] = (float)(i % 1000 + r->number);
        TRY(tr_all_gather(r->group, x, all, n));
        for (int64_t i = 0; i < n * r->world; i++) CHECK(all[i] == (float)(i % n % 1000 + i / n));
        free(x);
        free(all);
    }
    TRY(tr_barrier(r->group));
    return tr_leave(r->group);
}

static void processes_share_data(void **state)
{
    (void)state;
    for (int world = 2; world <= RANKS_MOST; world++) run_job_in(&over_tcp, world, check_sizes, NULL);
    for (int world = 2; world <= 4; world += 2) run_job_in(&over_tls, world, check_sizes, NULL);
}

/* What comes before the program asks for it is kept, but the program is not kept from asking: it was, and nearly all that a
 * peer sent without a pause lay in memory by then. */
static tr_status send_without_a_pause(rank *r)
{
    enum { COUNT = 100000, MESSAGES = 2000 };
    struct rusage before, after;
    float *x = calloc(COUNT, sizeof *x);
    CHECK(x);
    getrusage(RUSAGE_SELF, &before);
    for (int i = 0; i < MESSAGES; i++) {
        if (r->number == 0) {
            x[0] = (float)i;
            TRY(tr_send(r->group, x, COUNT, .peer = 1));
        } else {
            TRY(tr_recv(r->group, x, COUNT, .peer = 0));
            CHECK(x[0] == (float)i);
        }
    }
    getrusage(RUSAGE_SELF, &after);
    free(x);
    CHECK(SANITIZED || (after.ru_maxrss - before.ru_maxrss) * 1024 < (long)MESSAGES * COUNT * (long)sizeof *x / 2);
    TRY(tr_barrier(r->group));
    return tr_leave(r->group);
}

static void who_sends_without_a_pause_does_not_fill_the_receivers_memory(void **state)
{
    (void)state;
    run_job_in(&over_tcp, 2, send_without_a_pause, NULL);
}

/* ---- Killed and stopped ------------------------------------------------------------------------------------------- */

typedef enum activity { BARRIER, SMALL, LARGE, BROADCAST, IDLE, ACTIVITIES } activity;

static const char *const words[ACTIVITIES] = {"barrier #", "all_reduce #", "all_reduce #", "broadcast #", "barrier #"};

static tr_status act(rank *r, activity a, float *x, int64_t n)
{
    if (a == SMALL) return tr_all_reduce(r->group, x, 100);
    if (a == LARGE) return tr_all_reduce(r->group, x, n);
    if (a == BROADCAST) return tr_broadcast(r->group, x, n, .root = atomic_load(&r->post->turns) % r->world);
    if (a == IDLE) usleep(2000); /* dies most likely outside any call */
    return tr_barrier(r->group);
}

static tr_status act_until_it_fails(rank *r)
{
    enum { COUNT = 1000000 };
    float *x = calloc(COUNT, sizeof *x);
    CHECK(x);
    tr_status status;
    while ((status = act(r, *(const activity *)r->arg, x, COUNT)) == TR_OK) atomic_fetch_add(&r->post->turns, 1);
    atomic_store(&r->post->ended, tr__now_ns());
    free(x);
    return status;
}

static void kill_one(const setting *s, int world, int victim, activity a, int delay_us)
{
    job j;
    int64_t killed = kill_one_of(&j, s, world, victim, act_until_it_fails, &a, delay_us);
    for (int i = 0; i < world; i++)
        if (i != victim) check_survivor(&j, i, victim, killed, (const char *[]){" on host ", "died", words[a]});
    finish(&j);
}

static void a_killed_rank_is_named_by_all_others(void **state)
{
    (void)state;
    static const int delays[] = {0, 300, 1700};
    for (activity a = 0; a < ACTIVITIES; a++) {
        for (int d = 0; d < 3; d++) kill_one(&over_tcp, 2, d % 2, a, delays[d]);
        kill_one(&over_tcp, 4, (int)a % 4, a, delays[a % 3]);
        kill_one(&over_tcp, 5, (int)(a + 2) % 5, a, delays[a % 3]);
        kill_one(&over_tls, 3, (int)(a + 1) % 3, a, delays[a % 3]);
    }
}

/* ---- Idle --------------------------------------------------------------------------------------------------------- */

static void note(tr_log_level level, const char *message, void *user)
{
    (void)level;
    rank *r = user;
    snprintf(r->post->text, sizeof r->post->text, "%s", message);
    atomic_store(&r->post->turns, 2);
}

/* Rank 0 is in no call, rank 1 has asked rank 0, who is alive, for a message; neither needs the last rank. */
static tr_status wait_for_news(rank *r)
{
    float x[4];
    tr_set_log(note, r, TR_LOG_WARN);
    TRY(tr_barrier(r->group));
    atomic_store(&r->post->turns, 1);
    if (r->number == 1) return tr_recv(r->group, x, 4, .peer = 0);
    for (int ms = 0; ms < PATIENCE_MS && atomic_load(&r->post->turns) < 2; ms++) usleep(1000);
    CHECK(atomic_load(&r->post->turns) == 2);
    atomic_store(&r->post->ended, tr__now_ns());
    return tr_barrier(r->group);
}

static void idle_ranks_know_at_once(void **state)
{
    (void)state;
    enum { WORLD = 3, VICTIM = 2 };
    job j;
    start_job_in(&j, &over_tcp, WORLD, wait_for_news, NULL);
    for (int i = 0; i < WORLD; i++) await_turns(&j, i, 1);
    usleep(50000); /* rank 1 is most likely waiting by now */
    int64_t killed = tr__now_ns();
    kill(j.ranks[VICTIM].pid, SIGKILL);
    for (int i = 0; i < WORLD; i++) reap(&j, i);
    for (int i = 0; i < VICTIM; i++)
        check_survivor(&j, i, VICTIM, killed,
            (const char *[]){" on host ", "died of signal 9 (Killed) after barrier #1", ""});
    finish(&j);
}

static tr_status act_with_a_timeout(rank *r)
{
    enum { COUNT = 3000000 };
    float *x = calloc(COUNT, sizeof *x);
    CHECK(x);
    tr_status status;
    while ((status = tr_all_reduce(r->group, x, COUNT, .timeout_ms = atomic_load(&r->post->patience_ms))) == TR_OK)
        atomic_fetch_add(&r->post->turns, 1);
    free(x);
    return status;
}

static void a_stopped_rank_is_a_timeout(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) {
        job j;
        char name[64];
        stop_one_of(&j, &over_tcp, world, 1, act_with_a_timeout, NULL);
        snprintf(name, sizeof name, "for rank 1 (pid %ld", (long)j.ranks[1].pid);
        for (int i = 0; i < world; i++)
            if (j.posts[i].status != TR_TIMEOUT || !strstr(j.posts[i].text, name))
                fail_msg("rank %d says '%s'", i, j.posts[i].text);
        finish(&j);
    }
}

/* Rank 1 stops itself before it receives the fourth message, which rank 0 sends when that is known. */
static tr_status send_with_a_timeout(rank *r)
{
    enum { COUNT = 3000000, BEFORE = 3 };
    float *x = calloc(COUNT, sizeof *x);
    CHECK(x);
    tr_status status = TR_OK;
    for (int turn = 0; status == TR_OK; turn++) {
        if (turn == BEFORE && r->number == 1) raise(SIGSTOP);
        while (turn == BEFORE && r->number == 0 && !atomic_load(&r->post->reports)) usleep(1000);
        status = r->number == 0 ? tr_send(r->group, x, COUNT, .peer = 1, .timeout_ms = turn < BEFORE ? PATIENCE_MS : 500)
                                : tr_recv(r->group, x, COUNT, .peer = 0, .timeout_ms = PATIENCE_MS);
    }
    free(x);
    return status;
}

/* Messages that nobody has asked for are kept, so only a process that is stopped does not read. */
static void a_receiver_that_does_not_read_is_a_timeout(void **state)
{
    (void)state;
    job j;
    char name[64];
    start_job_in(&j, &over_tcp, 2, send_with_a_timeout, NULL);
    await_stop(&j, 1);
    atomic_store(&j.posts[0].reports, 1);
    reap(&j, 0);
    kill(j.ranks[1].pid, SIGCONT);
    reap(&j, 1);
    snprintf(name, sizeof name, "waited 0.5 s for rank 1 (pid %ld", (long)j.ranks[1].pid);
    if (j.posts[0].status != TR_TIMEOUT || !strstr(j.posts[0].text, name))
        fail_msg("rank 0 says '%s'", j.posts[0].text);
    assert_int_equal(j.posts[1].status, TR_TIMEOUT);
    finish(&j);
}

enum { ANNOUNCED = 2 << 20 }; /* f32; more than goes out unasked for */
static const setting few_bytes = {.transport = "tcp", .unexpected_bytes = 1 << 20};

static tr_status stop_behind_an_announcement(rank *r)
{
    float small[2] = {0}, *large = calloc(ANNOUNCED, sizeof *large);
    CHECK(large);
    TR_SCOPE;
    tr_work *works[2] = {NULL};
    tr_status status;
    if (r->number == 1) {
        works[0] = tr_send_async(r->group, small, 1, .peer = 0, .tag = 6);
        works[1] = tr_send_async(r->group, large, ANNOUNCED, .peer = 0, .tag = 9);
        status = tr_send(r->group, small, 2, .peer = 0, .tag = 7);
        raise(SIGSTOP);
        for (int i = 0; i < 2 && status == TR_OK; i++) status = tr_wait(works[i]);
    } else {
        status = tr_recv(r->group, small, 2, .peer = 1, .tag = 7); /* what was sent before it is here */
        while (status == TR_OK && !atomic_load(&r->post->reports)) usleep(1000);
        if (status == TR_OK) status = tr_recv(r->group, large, ANNOUNCED, .peer = 1, .tag = 9, .timeout_ms = 500);
    }
    free(large);
    return status;
}

/* A message of another tag is no reason for a receive whose own has been announced. */
static void a_message_that_stops_on_its_way_is_a_timeout(void **state)
{
    (void)state;
    job j;
    start_job_in(&j, &few_bytes, 2, stop_behind_an_announcement, NULL);
    await_stop(&j, 1);
    atomic_store(&j.posts[0].reports, 1);
    reap(&j, 0);
    kill(j.ranks[1].pid, SIGCONT);
    reap(&j, 1);
    if (j.posts[0].status != TR_TIMEOUT || !strstr(j.posts[0].text, "waited 0.5 s for rank 1 (pid ") ||
        strstr(j.posts[0].text, "another tag"))
        fail_msg("rank 0 says '%s'", j.posts[0].text);
    finish(&j);
}

static void count_reports(tr_log_level level, const char *message, void *user)
{
    (void)level;
    rank *r = user;
    if (strstr(message, "has waited 0.3 s in all_reduce #")) atomic_fetch_add(&r->post->reports, 1);
}

static tr_status act_and_count_reports(rank *r)
{
    static const activity large = LARGE;
    tr_set_log(count_reports, r, TR_LOG_WARN);
    r->arg = &large;
    return act_until_it_fails(r);
}

/* Stopped until the others have reported it, then continued: nothing is lost. */
static void a_rank_that_is_stopped_for_long_is_reported_and_goes_on(void **state)
{
    (void)state;
    enum { WORLD = 3 };
    static const setting soon = {.transport = "tcp", .report_ms = 300};
    job j;
    start_job_in(&j, &soon, WORLD, act_and_count_reports, NULL);
    for (int i = 0; i < WORLD; i++) await_turns(&j, i, 3);
    stop_rank(&j, 1);
    for (int i = 0; i < WORLD; i += 2) {
        for (int ms = 0; ms < PATIENCE_MS && !atomic_load(&j.posts[i].reports); ms++) usleep(1000);
        if (!atomic_load(&j.posts[i].reports)) fail_msg("rank %d reports nothing", i);
    }
    int turns = atomic_load(&j.posts[0].turns);
    kill(j.ranks[1].pid, SIGCONT);
    for (int i = 0; i < WORLD; i++) await_turns(&j, i, turns + 3);
    kill(j.ranks[1].pid, SIGKILL);
    for (int i = 0; i < WORLD; i++) reap(&j, i);
    finish(&j);
}

/* ---- Two hosts ---------------------------------------------------------------------------------------------------- */

static char names[2][SPACE_TEXT], address[SPACE_TEXT];
static const char *const hosts[] = {names[0], names[1], names[0], names[1], names[0]};
static const setting two_hosts = {.host = address, .spaces = hosts};

static bool make_hosts(void)
{
    for (int i = 0; i < 2; i++) space_name(i, names[i]);
    space_address(0, address);
    return spaces_make(2);
}

static int remove_hosts(void **state)
{
    (void)state;
    spaces_remove();
    return 0;
}

static void two_hosts_share_data(void **state)
{
    (void)state;
    if (!make_hosts()) skip();
    for (int world = 2; world <= RANKS_MOST; world++) run_job_in(&two_hosts, world, check_sizes, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_share_data),
        cmocka_unit_test(who_sends_without_a_pause_does_not_fill_the_receivers_memory),
        cmocka_unit_test(a_killed_rank_is_named_by_all_others),
        cmocka_unit_test(idle_ranks_know_at_once),
        cmocka_unit_test(a_stopped_rank_is_a_timeout),
        cmocka_unit_test(a_receiver_that_does_not_read_is_a_timeout),
        cmocka_unit_test(a_message_that_stops_on_its_way_is_a_timeout),
        cmocka_unit_test(a_rank_that_is_stopped_for_long_is_reported_and_goes_on),
        cmocka_unit_test_teardown(two_hosts_share_data, remove_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
