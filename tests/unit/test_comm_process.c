/*
 * Groups whose ranks are processes: data across them, and ranks that are killed or stopped at every phase of a call.
 * The parent forks the ranks before it has any thread, watches them, and is the only one to use cmocka's checks.
 *
 * ctest: serial
 */
#include "base/clock.h"
#include "comm/transport/shm.h"
#include "entries.h"
#include "processes.h"

#include <trireme/comm.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- Data -------------------------------------------------------------------------------------------------------- */

typedef enum buffer_kind { PRIVATE, SHARED, MIXED, KINDS } buffer_kind;

static float *make_buffer(buffer_kind kind, const rank *r, int64_t count)
{
    bool shared = kind == SHARED || (kind == MIXED && r->number % 2);
    return shared ? tr_shared_alloc((size_t)count * sizeof(float)) : malloc((size_t)count * sizeof(float));
}

static void free_buffer(buffer_kind kind, const rank *r, float *x)
{
    if (kind == SHARED || (kind == MIXED && r->number % 2))
        tr_shared_free(x);
    else
        free(x);
}

static tr_status reduce_and_broadcast(rank *r, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = (float)(i % 1000 + r->number);
    TRY(tr_all_reduce(r->group, x, n, .op = TR_AVG));
    for (int64_t i = 0; i < n; i++) { /* the mean of 0 … world - 1 above i % 1000, up to rounding */
        float wanted = (float)(i % 1000) + (float)(r->world - 1) * 0.5f;
        CHECK(x[i] > wanted - 0.001f && x[i] < wanted + 0.001f);
    }
    for (int root = 0; root < r->world; root++) {
        for (int64_t i = 0; i < n; i++) x[i] = r->number == root ? (float)(i + root) : -1;
        TRY(tr_broadcast(r->group, x, n, .root = root));
        for (int64_t i = 0; i < n; i++) CHECK(x[i] == (float)(i + root));
    }
    return TR_OK;
}

static tr_status move_data(rank *r)
{
    static const int64_t counts[] = {1, 7, 1000, 1025, 40000, 300001};
    for (int turn = 0; turn < 2; turn++) {
        for (buffer_kind kind = 0; kind < KINDS; kind++) {
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                float *x = make_buffer(kind, r, counts[c]);
                CHECK(x);
                tr_status status = reduce_and_broadcast(r, x, counts[c]);
                free_buffer(kind, r, x);
                TRY(status);
            }
        }
    }
    return tr_leave(r->group);
}

static void processes_share_data(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) run_job(world, move_data, NULL);
    run_job_in(&(setting){.refused = 7}, 3, move_data, NULL);
}

/* ---- Nothing is left --------------------------------------------------------------------------------------------- */

static tr_status come_and_go(rank *r)
{
    TRY(tr_leave(r->group)); /* so that what libraries open once is open */
    tr_scope_push();
    int descriptors = count_entries("/proc/self/fd"), mappings = count_mappings(),
        threads = count_entries("/proc/self/task");
    for (int turn = 0; turn < 3; turn++) {
        TR_SCOPE;
        tr_group *g = tr_join(.store = r->store, .rank = r->number, .world_size = r->world, .timeout_ms = JOIN_MS);
        TRY(tr_status_of(g));
        r->group = g;
        float *x = make_buffer(MIXED, r, 50000), *y = make_buffer(SHARED, r, 50000);
        CHECK(x && y);
        tr_status status = reduce_and_broadcast(r, x, 50000);
        if (status == TR_OK) status = tr_wait(tr_all_reduce_async(g, y, 50000));
        free_buffer(MIXED, r, x);
        free_buffer(SHARED, r, y);
        TRY(status);
        if (turn != 1) TRY(tr_leave(g)); /* else the scope drops it */
    }
    tr_scope_pop();
    CHECK(count_mappings() == mappings);
    CHECK(more_entries("/proc/self/task", threads) == 0); /* rank 0 serves: its threads stay the same */
    CHECK(more_entries("/proc/self/fd", descriptors + r->world) == 0); /* the store's, which rank 0 serves */
    return TR_OK;
}

static void nothing_is_left_behind(void **state)
{
    (void)state;
    int descriptors = count_entries("/proc/self/fd"), files = count_shared_files();
    run_job(3, come_and_go, NULL);
    assert_int_equal(count_entries("/proc/self/fd"), descriptors);
    assert_int_equal(count_shared_files(), files);
    assert_int_equal(count_mappings(), 0);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

/* ---- Killed ranks ------------------------------------------------------------------------------------------------ */

/* What ranks do over and over until it fails. */
typedef enum activity { TINY, INLINE, PRIVATE_DATA, REGISTERED, BROADCAST, MEETING, POSTED, IDLE, ACTIVITIES } activity;

static const char *const words[ACTIVITIES] = {
    [TINY] = "all_reduce #",
    [INLINE] = "all_reduce #",
    [PRIVATE_DATA] = "all_reduce #",
    [REGISTERED] = "all_reduce #",
    [BROADCAST] = "broadcast #",
    [MEETING] = "barrier #",
    [POSTED] = "all_reduce #",
    [IDLE] = "barrier #",
};

static tr_status act(rank *r, activity a, float *private_data, float *shared_data, int64_t n)
{
    switch (a) {
    case TINY: return tr_all_reduce(r->group, private_data, 1);
    case INLINE: return tr_all_reduce(r->group, private_data, 1000);
    case PRIVATE_DATA: return tr_all_reduce(r->group, private_data, n);
    case REGISTERED: return tr_all_reduce(r->group, shared_data, n);
    case BROADCAST: return tr_broadcast(r->group, private_data, n);
    case POSTED: {
        TR_SCOPE;
        tr_work *first = tr_all_reduce_async(r->group, shared_data, n);
        tr_work *second = tr_all_reduce_async(r->group, private_data, n);
        tr_status one = tr_wait(first), two = tr_wait(second);
        return one != TR_OK ? one : two;
    }
    case IDLE:
        usleep(2000); /* dies most likely outside any call */
        return tr_barrier(r->group);
    default: return tr_barrier(r->group);
    }
}

static tr_status act_until_it_fails(rank *r)
{
    enum { COUNT = 1000000 };
    activity a = *(const activity *)r->arg;
    float *private_data = calloc(COUNT, sizeof *private_data),
          *shared_data = tr_shared_alloc(COUNT * sizeof *shared_data);
    CHECK(private_data && shared_data);
    tr_status status;
    while ((status = act(r, a, private_data, shared_data, COUNT)) == TR_OK) atomic_fetch_add(&r->post->turns, 1);
    int64_t ended = tr__now_ns();
    /* The group stays broken, and says why. */
    tr_status again = tr_barrier(r->group);
    if (again == status && !strstr(tr_error_message(), "is broken")) again = tr_fail(TR_INTERNAL, "not broken");
    if (again == status && strstr(tr_error_message(), "is broken: group")) again = tr_fail(TR_INTERNAL, "the group is named twice");
    free(private_data);
    tr_shared_free(shared_data);
    atomic_store(&r->post->ended, ended);
    return again == status ? status : again;
}

static void check_survivors(const job *j, int victim, const char *during, int64_t killed)
{
    for (int i = 0; i < j->world; i++)
        if (i != victim) check_survivor(j, i, victim, killed, (const char *[]){") died", during, __FILE__ ":"});
}

static void kill_one(const setting *s, int world, int victim, activity a, int delay_us)
{
    job j;
    int64_t killed = kill_one_of(&j, s, world, victim, act_until_it_fails, &a, delay_us);
    check_survivors(&j, victim, words[a], killed);
    finish(&j);
}

static void a_killed_rank_is_named_by_all_others(void **state)
{
    (void)state;
    static const int delays[] = {0, 300, 1700};
    for (activity a = 0; a < ACTIVITIES; a++) {
        for (int d = 0; d < 3; d++) kill_one(&(setting){0}, 2, d % 2, a, delays[d]);
        kill_one(&(setting){0}, 4, (int)a % 4, a, delays[a % 3]);
    }
    for (int d = 0; d < 3; d++) kill_one(&(setting){.refused = 7}, 3, d, d % 2 ? BROADCAST : PRIVATE_DATA, delays[d]);
}

/* Dies in the middle of joining: the others may not wait for ever. */
static tr_status join_only(rank *r)
{
    atomic_fetch_add(&r->post->turns, 1);
    return tr_barrier(r->group);
}

/* What ranks do in any other collective, over and over until it fails. */
typedef struct any_call {
    tr_collective_kind kind;
    bool shared;
} any_call;

static tr_status call_until_it_fails(rank *r)
{
    enum { COUNT = 150000 }; /* elements of a block */
    const any_call *a = r->arg;
    size_t bytes = (size_t)r->world * COUNT * sizeof(float);
    char *in = a->shared ? tr_shared_alloc(bytes) : calloc(bytes, 1), *out = calloc(bytes, 1);
    CHECK(in && out);
    int64_t counts[RANKS_MOST];
    for (int i = 0; i < RANKS_MOST; i++) counts[i] = COUNT;
    const int64_t *each = tr__kind_of(a->kind)->variable ? counts : NULL;
    tr_collective c = {.size = sizeof c, .kind = a->kind, .in = in, .out = out, .count = COUNT, .in_counts = each,
        .out_counts = each, .root = 1, .file = __FILE__, .line = __LINE__};
    int next = (r->number + 1) % r->world, before = (r->number + r->world - 1) % r->world;
    tr_collective ring[] = {TR_COLLECTIVE(TR_SEND, .in = in, .count = COUNT, .peer = next),
        TR_COLLECTIVE(TR_RECV, .out = out, .count = COUNT, .peer = before)};
    tr_status status = TR_OK;
    while (status == TR_OK) {
        status = a->kind == TR_SEND ? tr_run_list(r->group, ring, 2) : tr_run_collective(r->group, &c);
        atomic_fetch_add(&r->post->turns, status == TR_OK);
    }
    int64_t ended = tr__now_ns();
    free(out);
    if (a->shared)
        tr_shared_free(in);
    else
        free(in);
    atomic_store(&r->post->ended, ended);
    return status;
}

static void kill_one_in(const any_call *a, int victim, const char *during)
{
    job j;
    start_job(&j, 3, call_until_it_fails, a);
    await_turns(&j, victim, 2);
    usleep(500);
    int64_t killed = tr__now_ns();
    kill(j.ranks[victim].pid, SIGKILL);
    for (int i = 0; i < 3; i++) reap(&j, i);
    check_survivors(&j, victim, during, killed);
    finish(&j);
}

static void a_killed_rank_is_named_whatever_runs(void **state)
{
    (void)state;
    static const char *const names[] = {[TR_REDUCE] = "reduce #", [TR_BROADCAST] = "broadcast #",
        [TR_ALL_GATHER] = "all_gather #", [TR_GATHER] = "gather #", [TR_SCATTER] = "scatter #",
        [TR_REDUCE_SCATTER] = "reduce_scatter #", [TR_ALL_TO_ALL] = "all_to_all #",
        [TR_ALL_GATHER_V] = "all_gather_v #", [TR_GATHER_V] = "gather_v #", [TR_SCATTER_V] = "scatter_v #",
        [TR_ALL_TO_ALL_V] = "all_to_all_v #",
        [TR_SEND] = "f32[150000] "};
    for (tr_collective_kind kind = TR_REDUCE; kind <= TR_SEND; kind++)
        for (int shared = 0; shared < 2; shared++)
            kill_one_in(&(any_call){kind, shared}, (int)(kind + shared) % 3, names[kind]);
}

static void a_rank_killed_while_it_joins_is_an_error(void **state)
{
    (void)state;
    for (int delay_us = 0; delay_us < 8000; delay_us += 1000) {
        job j;
        start_job(&j, 3, join_only, NULL);
        usleep((unsigned)delay_us);
        kill(j.ranks[2].pid, SIGKILL);
        reap(&j, 2);
        for (int i = 0; i < 2; i++) { /* when it was killed before it came, those that wait for it must be ended, too */
            for (int ms = 0; ms < 300 && !atomic_load(&j.posts[i].ended); ms++) usleep(1000);
            if (!atomic_load(&j.posts[i].ended)) kill(j.ranks[i].pid, SIGKILL);
            reap(&j, i);
            tr_status status = j.posts[i].status; /* TR_IO: rank 0, which serves the store, was the first to give up */
            bool fine =
                status == TR_PEER || status == TR_OK || (i > 0 && status == TR_IO) || !atomic_load(&j.posts[i].ended);
            if (!fine) fail_msg("rank %d: %s (%s)", i, j.posts[i].text, tr_status_name(j.posts[i].status));
        }
        finish(&j);
    }
}

/* ---- Ranks that exit before they leave --------------------------------------------------------------------------- */

static tr_status exit_early(rank *r)
{
    TRY(tr_barrier(r->group));
    if (r->number == r->world - 1) {
        atomic_store(&r->post->ended, tr__now_ns());
        _exit(*(const int *)r->arg);
    }
    tr_status status = tr_barrier(r->group);
    atomic_store(&r->post->ended, tr__now_ns());
    return status;
}

static void a_rank_that_exits_is_not_said_to_have_died(void **state)
{
    (void)state;
    enum { WORLD = 3, EXITS = 2 };
    const int codes[] = {0, 3}, hosts[WORLD] = {0, 0, 1};
    const setting settings[] = {{0}, {.transport = "tcp"}, {.hosts = hosts}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        for (size_t k = 0; k < sizeof codes / sizeof *codes; k++) {
            job j;
            char want[96];
            bool visible = !settings[i].hosts; /* on another machine nobody can see how it ended */
            if (visible) snprintf(want, sizeof want, "exited with %d without leaving group 'world', ", codes[k]);
            else strcpy(want, "died, exited without leaving group 'world', or lost its connection, ");
            start_job_in(&j, &settings[i], WORLD, exit_early, &codes[k]);
            for (int number = 0; number < WORLD; number++) reap(&j, number);
            for (int number = 0; number < EXITS; number++)
                check_survivor(&j, number, EXITS, j.posts[EXITS].ended, (const char *[]){want, "barrier #", __FILE__ ":"});
            finish(&j);
        }
}

/* ---- One after another ----------------------------------------------------------------------------------------------- */

static tr_status act_and_exit(rank *r)
{
    tr_status status = act_until_it_fails(r);
    if (r->number == 0) _exit(69);
    return status;
}

/* Rank 0 ends as it has lost rank 1, and rank 2 comes to hear of both at once. */
static void the_first_of_two_dead_ranks_is_named(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        job j;
        const activity a = TINY;
        start_job_in(&j, &(setting){.transport = k ? "tcp" : "shm"}, 3, act_and_exit, &a);
        for (int i = 0; i < 3; i++) await_turns(&j, i, 3);
        stop_rank(&j, 2);
        kill(j.ranks[1].pid, SIGKILL);
        reap(&j, 1);
        reap(&j, 0);
        int64_t ended = tr__now_ns();
        kill(j.ranks[2].pid, SIGCONT);
        reap(&j, 2);
        check_survivor(&j, 2, 1, ended, (const char *[]){") died", "all_reduce #", __FILE__ ":"});
        finish(&j);
    }
}

enum { LEAVERS = 4 };
static atomic_int waits; /* of the monitor, of peers alone and not for ever: for one that may have ended before another */

int poll(struct pollfd *polled, nfds_t count, int timeout_ms)
{
    struct timespec timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
    if (count == LEAVERS && timeout_ms > 0) atomic_fetch_add(&waits, 1);
    return (int)syscall(SYS_ppoll, polled, count, timeout_ms < 0 ? NULL : &timeout, NULL, 0);
}

static tr_status leave_in_turn(rank *r)
{
    atomic_store(&r->post->turns, 1);
    while (atomic_load(&r->post->turns) < 2) usleep(1000);
    usleep(50000); /* so that it has heard of those that left before */
    TRY(tr_leave(r->group));
    CHECK(r->number != 3 || atomic_load(&waits) == 0);
    return TR_OK;
}

/* Rank 3 comes to hear at once that rank 2 and then rank 1 have left, and need not wait to know which was the first. */
static void ranks_that_leave_in_turn_are_not_waited_for(void **state)
{
    (void)state;
    job j;
    start_job(&j, LEAVERS, leave_in_turn, NULL);
    for (int i = 0; i < LEAVERS; i++) await_turns(&j, i, 1);
    stop_rank(&j, 3);
    for (int turn = 0; turn < LEAVERS; turn++) {
        int leaver = (const int[]){2, 1, 3, 0}[turn]; /* rank 0 has the store */
        if (leaver == 3) kill(j.ranks[3].pid, SIGCONT);
        atomic_store(&j.posts[leaver].turns, 2);
        reap(&j, leaver);
    }
    for (int i = 0; i < LEAVERS; i++)
        if (j.posts[i].status != TR_OK) fail_msg("rank %d: %s", i, j.posts[i].text);
    finish(&j);
}

/* ---- Stopped ranks ----------------------------------------------------------------------------------------------- */

static tr_status act_with_a_timeout(rank *r)
{
    enum { COUNT = 300000 };
    float *x = r->arg ? tr_shared_alloc(COUNT * sizeof *x) : calloc(COUNT, sizeof *x);
    CHECK(x);
    tr_status status;
    while ((status = tr_all_reduce(r->group, x, COUNT, .timeout_ms = atomic_load(&r->post->patience_ms))) == TR_OK)
        atomic_fetch_add(&r->post->turns, 1);
    if (r->arg)
        tr_shared_free(x);
    else
        free(x);
    return status;
}

static void stop_one(const setting *s, int world, int victim, const void *shared)
{
    job j;
    stop_one_of(&j, s, world, victim, act_with_a_timeout, shared);
    char name[64];
    snprintf(name, sizeof name, "rank %d (pid %ld)", victim, (long)j.ranks[victim].pid);
    int timeouts = 0;
    for (int i = 0; i < world; i++) {
        const post *p = &j.posts[i];
        assert_true(p->ended && (p->status == TR_TIMEOUT || p->status == TR_PEER));
        timeouts += p->status == TR_TIMEOUT && strstr(p->text, name);
    }
    if (timeouts == 0) fail_msg("nobody says that %s is late: '%s'", name, j.posts[victim == 0].text);
    finish(&j);
}

static void a_stopped_rank_is_a_timeout(void **state)
{
    (void)state;
    stop_one(&(setting){0}, 2, 1, NULL);
    stop_one(&(setting){.refused = 3}, 2, 1, NULL);
    stop_one(&(setting){0}, 2, 0, "shared");
    stop_one(&(setting){0}, 3, 1, "shared");
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* Rank 1 may have control segments and channels, but no staging area. */
static tr_status run_out_of_memory(rank *r)
{
    enum { COUNT = 300000 };
    struct rlimit little = {512 << 10, 512 << 10};
    TRY(tr_barrier(r->group));
    if (r->number == 1) {
        signal(SIGXFSZ, SIG_IGN);
        CHECK(setrlimit(RLIMIT_FSIZE, &little) == 0);
    }
    float *x = calloc(COUNT, sizeof *x);
    CHECK(x);
    tr_status status = tr_all_reduce(r->group, x, COUNT);
    free(x);
    return status;
}

static void a_rank_without_shared_memory_is_an_error_everywhere(void **state)
{
    (void)state;
    for (int world = 2; world <= 3; world++) {
        job j;
        start_job_in(&j, &(setting){.refused = 7}, world, run_out_of_memory, NULL);
        for (int i = 0; i < world; i++) reap(&j, i);
        char name[64];
        snprintf(name, sizeof name, "rank 1 (pid %d) gave up group 'world': ", (int)j.ranks[1].pid);
        for (int i = 0; i < world; i++) {
            bool said = strstr(j.posts[i].text, "bytes of shared memory") && (i == 1 || strstr(j.posts[i].text, name));
            if (j.posts[i].status != (i == 1 ? TR_NO_MEMORY : TR_PEER) || !said)
                fail_msg("rank %d: %s (%s)", i, j.posts[i].text, tr_status_name(j.posts[i].status));
        }
        finish(&j);
    }
}

/* ---- The environment --------------------------------------------------------------------------------------------- */

/* Joins by env:// and again, with rank 0 serving the store each time anew. */
static tr_status join_by_environment(const job *j, int number)
{
    char text[4][16];
    snprintf(text[0], sizeof text[0], "%d", number);
    snprintf(text[1], sizeof text[1], "%d", j->world);
    snprintf(text[2], sizeof text[2], "%d", j->port);
    setenv("RANK", text[0], 1);
    setenv("WORLD_SIZE", text[1], 1);
    setenv("MASTER_PORT", text[2], 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("TRIREME_TOKEN", "secret", 1);
    for (int turn = 0; turn < 4; turn++) {
        TR_SCOPE;
        tr_group *g = tr_join(.timeout_ms = JOIN_MS);
        TRY(tr_status_of(g));
        float x = 1;
        TRY(tr_all_reduce(g, &x, 1));
        CHECK(x == (float)j->world && tr_rank(g) == number);
        TRY(tr_leave(g));
    }
    return TR_OK;
}

static void rank_0_serves_as_under_torchrun(void **state)
{
    (void)state;
    job j = {.world = 3};
    close(listen_on_loopback(&j.port));
    j.posts = mmap(NULL, sizeof *j.posts * RANKS_ROOM, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < j.world; i++) {
        if ((j.ranks[i].pid = fork()) != 0) continue;
        j.posts[i].status = join_by_environment(&j, i);
        snprintf(j.posts[i].text, sizeof j.posts[i].text, "%s", tr_error_message());
        _exit(0);
    }
    for (int i = 0; i < j.world; i++) reap(&j, i);
    for (int i = 0; i < j.world; i++)
        if (j.posts[i].status != TR_OK) fail_msg("rank %d: %s", i, j.posts[i].text);
    finish(&j);
}

/* ---- Uninvited --------------------------------------------------------------------------------------------------- */

static int connect_to(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path + 1, name, strlen(name));
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, length) != 0) return -1;
    return fd;
}

/* Rank 1 of 2, but before it joins it connects to rank 0 as a stranger: with garbage, with a wrong cookie, and
 * without a word. Rank 0 must hang up on the first two, and join all the same. */
static tr_status intrude(const job *j)
{
    TR_SCOPE;
    tr_store *store = tr_store_tcp("127.0.0.1", j->port);
    void *record;
    size_t bytes;
    TRY(tr_status_of(store));
    TRY(tr_store_get(store, "group/world/endpoint/1/0", &record, &bytes));
    char address[128] = "";
    const char *found = strstr(record, "address ");
    if (found) sscanf(found, "address %127s", address);
    free(record);
    CHECK(address[0]);
    int garbage = connect_to(address), liar = connect_to(address), silent = connect_to(address);
    CHECK(garbage >= 0 && liar >= 0 && silent >= 0);
    tr__shm_message hello = {.magic = TR__SHM_MAGIC, .type = TR__SHM_HELLO, .rank = 1, .cookie = "0123456789abcdef"};
    CHECK(send(garbage, "let me in", 9, MSG_NOSIGNAL) == 9);
    CHECK(tr__shm_send(liar, &hello, -1) == (ssize_t)sizeof hello);
    tr_group *g = tr_join(.store = store, .rank = 1, .world_size = 2, .timeout_ms = JOIN_MS);
    TRY(tr_status_of(g));
    char byte;
    CHECK(recv(garbage, &byte, 1, 0) <= 0); /* hung up */
    CHECK(recv(liar, &byte, 1, 0) <= 0);
    TRY(tr_barrier(g));
    close(garbage);
    close(liar);
    close(silent);
    return tr_leave(g);
}

static tr_status be_intruded(rank *r)
{
    TRY(tr_barrier(r->group));
    return tr_leave(r->group);
}

static void strangers_are_turned_away(void **state)
{
    (void)state;
    job j = {.world = 2};
    j.listener = listen_on_loopback(&j.port);
    j.posts = mmap(NULL, sizeof *j.posts * RANKS_ROOM, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < j.world; i++) {
        rank *r = &j.ranks[i];
        *r = (rank){.number = i, .world = 2, .post = &j.posts[i]};
        if ((r->pid = fork()) != 0) continue;
        r->post->status = i == 0 ? join_and_run(r, &j, be_intruded) : intrude(&j);
        snprintf(r->post->text, sizeof r->post->text, "%s", tr_error_message());
        _exit(0);
    }
    close(j.listener);
    for (int i = 1; i >= 0; i--) reap(&j, i);
    for (int i = 0; i < 2; i++)
        if (j.posts[i].status != TR_OK) fail_msg("rank %d: %s", i, j.posts[i].text);
    finish(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_share_data),
        cmocka_unit_test(nothing_is_left_behind),
        cmocka_unit_test(a_killed_rank_is_named_by_all_others),
        cmocka_unit_test(a_killed_rank_is_named_whatever_runs),
        cmocka_unit_test(a_rank_killed_while_it_joins_is_an_error),
        cmocka_unit_test(a_rank_that_exits_is_not_said_to_have_died),
        cmocka_unit_test(the_first_of_two_dead_ranks_is_named),
        cmocka_unit_test(ranks_that_leave_in_turn_are_not_waited_for),
        cmocka_unit_test(a_stopped_rank_is_a_timeout),
        cmocka_unit_test(a_rank_without_shared_memory_is_an_error_everywhere),
        cmocka_unit_test(rank_0_serves_as_under_torchrun),
        cmocka_unit_test(strangers_are_turned_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
