/*
 * Links between hosts that are cut: for up to ten seconds it is a delay, whatever the ranks do; for good it is an error that names
 * the rank. The hosts are two network namespaces, which needs root. Jobs of all kinds run side by side, each on a kernel that can
 * bound the time between TCP's retries and on one that cannot.
 *
 *   -cut=MS   how long the cut lasts that is mended
 *
 * ctest: serial timeout=180
 */
#include "base/clock.h"
#include "net/link.h"
#include "processes.h"
#include "spaces.h"

#include <trireme/rpc.h>

#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

static int cut_ms = 8000;

/* ---- Two kernels --------------------------------------------------------------------------------------------------- */

static bool old_kernel;

/* In place of the C library's, for the library's own calls. */
int setsockopt(int fd, int level, int name, const void *value, socklen_t length)
{
    enum { RTO_MAX_MS = 44 };
    if (!old_kernel || level != IPPROTO_TCP || name != RTO_MAX_MS)
        return (int)syscall(SYS_setsockopt, fd, level, name, value, length);
    errno = ENOPROTOOPT;
    return -1;
}

/* ---- What the ranks do --------------------------------------------------------------------------------------------- */

typedef enum moment { WHOLE, CUT, OVER } moment;
static _Atomic int *now; /* a moment, which all processes share */

/* Each goes on until rank 0 finds that it is over. */
static tr_status reduce(rank *r)
{
    enum { COUNT = 300000 };
    float *x = malloc(COUNT * sizeof *x), over = 0;
    CHECK(x);
    while (!over) {
        for (int i = 0; i < COUNT; i++) x[i] = (float)(i % 1000 + r->number);
        x[0] = atomic_load(now) == OVER && r->number == 0;
        TRY(tr_all_reduce(r->group, x, COUNT));
        for (int i = 1; i < COUNT; i++) CHECK(x[i] == (float)(2 * (i % 1000) + 1));
        over = x[0];
        atomic_fetch_add(&r->post->turns, 1);
    }
    free(x);
    return TR_OK;
}

static tr_status send_to_and_fro(rank *r)
{
    enum { COUNT = 100000 };
    float *x = calloc(COUNT, sizeof *x), over = 0;
    CHECK(x);
    for (int turn = 0; !over; turn++) {
        if (r->number == 0) {
            x[0] = atomic_load(now) == OVER;
            x[COUNT - 1] = (float)turn;
            TRY(tr_send(r->group, x, COUNT, .peer = 1));
            TRY(tr_recv(r->group, x, COUNT, .peer = 1));
        } else {
            TRY(tr_recv(r->group, x, COUNT, .peer = 0));
            TRY(tr_send(r->group, x, COUNT, .peer = 0));
        }
        CHECK(x[COUNT - 1] == (float)turn);
        over = x[0];
        atomic_fetch_add(&r->post->turns, 1);
    }
    free(x);
    return TR_OK;
}

static int64_t next_of(int64_t number)
{
    return number + 1;
}
TR_RPC(next_of, I64, RETURNS(I64));

static tr_status call(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = tr_rpc_start(r->group, .timeout_ms = JOIN_MS);
    TRY(tr_status_of(rpc));
    TRY(tr_rpc_register(rpc, &next_of_rpc));
    TRY(tr_barrier(r->group));
    for (int64_t turn = 0; atomic_load(now) != OVER; turn++) {
        TR_SCOPE;
        tr_future *f = tr_rpc_sync(rpc, tr_rpc_name(rpc, 1 - r->number), "next_of", turn);
        TRY(tr_future_wait(f));
        CHECK(tr_future_i64(f) == turn + 1);
        atomic_fetch_add(&r->post->turns, 1);
    }
    return tr_rpc_stop(rpc);
}

/* Groups one after the other: ranks meet in the store, connect, leave. */
static tr_status join_again(rank *r)
{
    float over = 0;
    for (int turn = 0; !over; turn++) {
        TR_SCOPE;
        char name[32];
        snprintf(name, sizeof name, "group-%d", turn);
        tr_group *g = tr_join(.store = r->store, .rank = r->number, .world_size = r->world, .name = name, .timeout_ms = JOIN_MS);
        TRY(tr_status_of(g));
        over = atomic_load(now) == OVER && r->number == 0;
        TRY(tr_all_reduce(g, &over, 1));
        TRY(tr_leave(g));
        atomic_fetch_add(&r->post->turns, 1);
    }
    return TR_OK;
}

/* A group that is joined while there is no link; before and after that the ranks do nothing. */
static tr_status join_meanwhile(rank *r)
{
    TR_SCOPE;
    float over = 0;
    atomic_store(&r->post->turns, 3);
    while (atomic_load(now) == WHOLE) usleep(1000);
    tr_group *g = tr_join(.store = r->store, .rank = r->number, .world_size = r->world, .name = "meanwhile", .timeout_ms = JOIN_MS);
    TRY(tr_status_of(g));
    while (!over) {
        over = atomic_load(now) == OVER && r->number == 0;
        TRY(tr_all_reduce(g, &over, 1));
        atomic_fetch_add(&r->post->turns, 1);
    }
    return tr_leave(g);
}

/* Ranks that are in no call, whose connections are idle. */
static tr_status sleep_long(rank *r)
{
    float x = 1;
    atomic_store(&r->post->turns, 3);
    while (atomic_load(now) != OVER) usleep(1000);
    TRY(tr_all_reduce(r->group, &x, 1));
    CHECK(x == 2);
    return TR_OK;
}

typedef struct activity {
    const char *name;
    rank_body body;
    bool encrypt;
    bool old; /* kernel */
} activity;

static tr_status act(rank *r)
{
    const activity *a = r->arg;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails does not say when it is over */
    TRY(a->body(r));
    return tr_leave(r->group);
}

/* ---- The jobs ------------------------------------------------------------------------------------------------------ */

enum { JOBS_MOST = 16, WORLD = 2 };

static char names[WORLD][SPACE_TEXT], address[SPACE_TEXT];
static const char *const hosts[] = {names[0], names[1]};

typedef struct jobs {
    int count;
    job jobs[JOBS_MOST];
} jobs;

static bool start_jobs(jobs *j, const activity *all, int count)
{
    for (int i = 0; i < WORLD; i++) space_name(i, names[i]);
    space_address(0, address);
    if (!spaces_make(WORLD)) {
        print_message("network namespaces cannot be made here, which takes root: skipped\n");
        return false;
    }
    now = mmap(NULL, sizeof *now, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(now != MAP_FAILED);
    *j = (jobs){.count = count};
    for (int i = 0; i < count; i++) {
        old_kernel = all[i].old;
        start_job_in(&j->jobs[i], &(setting){.host = address, .spaces = hosts, .encrypt = all[i].encrypt}, WORLD, act, &all[i]);
    }
    for (int i = 0; i < count; i++)
        for (int r = 0; r < WORLD; r++) await_turns(&j->jobs[i], r, 3);
    return true;
}

static void finish_jobs(jobs *j)
{
    for (int i = 0; i < j->count; i++) finish(&j->jobs[i]);
    munmap((void *)now, sizeof *now);
}

static int remove_hosts(void **state)
{
    (void)state;
    spaces_remove();
    return 0;
}

static void a_cut_is_a_delay(void **state)
{
    (void)state;
    static const activity all[] = {{"reduces", reduce, false, false}, {"reduces", reduce, true, false},
        {"sends", send_to_and_fro, false, false}, {"calls", call, false, false}, {"joins", join_again, false, false},
        {"joins meanwhile", join_meanwhile, true, false}, {"sleeps", sleep_long, false, false},
        {"reduces", reduce, false, true}, {"sends", send_to_and_fro, false, true}, {"calls", call, false, true},
        {"joins", join_again, false, true}, {"joins meanwhile", join_meanwhile, false, true}};
    enum { COUNT = sizeof all / sizeof *all };
    jobs j;
    int turns[COUNT];
    if (!start_jobs(&j, all, COUNT)) skip();
    assert_true(space_link(0, false));
    atomic_store(now, CUT);
    usleep(1000 * (unsigned)cut_ms);
    for (int i = 0; i < COUNT; i++) turns[i] = atomic_load(&j.jobs[i].posts[0].turns);
    assert_true(space_link(0, true));
    int64_t mended = tr__now_ns();
    for (int i = 0; i < COUNT; i++) {
        for (int r = 0; r < WORLD && all[i].body != sleep_long; r++) await_turns(&j.jobs[i], r, turns[i] + 3);
        print_message("%s%s%s: went on %.1f s after a cut of %.1f s, at the latest\n", all[i].name, all[i].encrypt ? ", encrypted" : "",
            all[i].old ? ", on an old kernel" : "", (double)(tr__now_ns() - mended) / 1e9, cut_ms / 1000.0);
    }
    atomic_store(now, OVER);
    for (int i = 0; i < COUNT; i++)
        for (int r = 0; r < WORLD; r++) {
            reap(&j.jobs[i], r);
            const post *p = &j.jobs[i].posts[r];
            if (p->status != TR_OK) fail_msg("%s, rank %d: %s (%s)", all[i].name, r, p->text, tr_status_name(p->status));
        }
    finish_jobs(&j);
}

/* An older kernel may have bytes under way on all connections of a pair, and asks late on them; one with nothing under way it probes
 * as a newer one does. */
static void a_cut_for_good_is_an_error(void **state)
{
    (void)state;
    static const activity all[] = {{"reduces", reduce, false, false}, {"reduces", reduce, true, true},
        {"sends", send_to_and_fro, false, true}, {"sends", send_to_and_fro, false, false}, {"calls", call, false, false}};
    enum { COUNT = sizeof all / sizeof *all, SPARE_MS = 5000 };
    jobs j;
    if (!start_jobs(&j, all, COUNT)) skip();
    int64_t cut = tr__now_ns();
    assert_true(space_link(0, false));
    for (int i = 0; i < COUNT; i++)
        for (int r = 0; r < WORLD; r++) {
            char name[64];
            reap(&j.jobs[i], r);
            const post *p = &j.jobs[i].posts[r];
            snprintf(name, sizeof name, "%d (pid %ld", 1 - r, (long)j.jobs[i].ranks[1 - r].pid);
            bool named = all[i].body == call ? strstr(p->text, r ? "worker0" : "worker1") != NULL
                                             : strstr(p->text, name) && strstr(p->text, "cannot be reached any more");
            double took = (double)(p->ended - cut) / 1e9;
            int most_ms = SPARE_MS + (all[i].old ? TR__LINK_LOST_LATE_MS : TR__LINK_LOST_MS);
            print_message("%s%s: %.1f s: %s\n", all[i].name, all[i].old ? ", on an old kernel" : "", took, p->text);
            if (p->status != TR_PEER || !named || took > most_ms / 1e3)
                fail_msg("%s, rank %d, after %g s: %s (%s)", all[i].name, r, took, p->text, tr_status_name(p->status));
        }
    finish_jobs(&j);
}

int main(int argc, char **argv)
{
    if (argc > 1 && (argc > 2 || sscanf(argv[1], "-cut=%d", &cut_ms) != 1)) return fprintf(stderr, "%s [-cut=MS]\n", argv[0]), 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_cut_is_a_delay, remove_hosts),
        cmocka_unit_test_teardown(a_cut_for_good_is_an_error, remove_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
