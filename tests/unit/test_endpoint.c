/*
 * Groups that share their process's endpoints: what one of them takes, and gives back; who of them fails when a process dies; groups
 * that are left here and still used there. Ranks are processes, on one host, over TCP, and on several pretended hosts.
 *
 * ctest: serial
 */
#include "base/clock.h"
#include "comm/group/group.h"
#include "comm/transport/shm.h"
#include "comm/transport/tcp.h"
#include "entries.h"
#include "processes.h"
#include "together.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static tr_status sum_ranks(const rank *r, tr_group *group, int64_t wanted)
{
    int64_t sum = r->number;
    TRY(tr_status_of(group));
    TRY(tr_all_reduce(group, &sum, 1, .dtype = TR_I64));
    CHECK(sum == wanted);
    return TR_OK;
}

/* Three ranks each. */
static const setting settings[] = {
    {0},
    {.transport = "tcp"},
    {.hosts = (const int[]){0, 1, 2, 3}},
    {.hosts = (const int[]){0, 0, 1, 1}},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

static void run_everywhere(rank_body body)
{
    for (int i = 0; i < SETTINGS; i++) run_job_in(&settings[i], 3, body, &settings[i]);
}

/* Groups that the endpoints know of, those that have ended here and not yet elsewhere among them, and connections that are ending. */
static int count_attached(const rank *r)
{
    int count = 0, groups = 0;
    tr__shm *shm;
    tr__tcp *tcp;
    tr__native_transports(r->group->state, &shm, &tcp);
    if (shm) {
        pthread_mutex_lock(&shm->endpoint->lock);
        for (const tr__attachment *a = shm->endpoint->attachments; a; a = a->next) count++;
        pthread_mutex_unlock(&shm->endpoint->lock);
    }
    if (!tcp) return count;
    pthread_mutex_lock(&tcp->network->hearing);
    for (const tr__network_group *g = tcp->network->groups; g; g = g->next) groups++;
    pthread_mutex_unlock(&tcp->network->hearing);
    pthread_mutex_lock(&tcp->network->lock);
    for (int peer = 0; peer < r->world; peer++)
        for (const tr__network_connection *c = tcp->network->peers[peer].connections; c; c = c->next) groups += c->ending;
    pthread_mutex_unlock(&tcp->network->lock);
    return count > groups ? count : groups;
}

/* ---- What a group takes ------------------------------------------------------------------------------------------ */

typedef struct resources {
    int descriptors, threads, mappings, files;
} resources;

static resources count_resources(void)
{
    return (resources){count_entries("/proc/self/fd"), count_entries("/proc/self/task"), count_mappings(),
        count_shared_files()};
}

/* A few groups at once, used in all ways, then left, or dropped. */
static tr_status make_use_and_leave(rank *r, int turn)
{
    enum { AT_ONCE = 4 };
    TR_SCOPE;
    tr_group *made[AT_ONCE];
    float shared[1000] = {0};
    for (int i = 0; i < AT_ONCE; i++) made[i] = tr_group_split(r->group, i % 2 ? r->number % 2 : 0, -r->number);
    for (int i = AT_ONCE - 1; i >= 0; i--) {
        TRY(sum_ranks(r, made[i], i % 2 == 0 ? 3 : r->number % 2 ? 1 : 2));
        TRY(tr_all_reduce(made[i], shared, 1000));
        int other = 1 - tr_rank(made[i]);
        if (turn % 8 || tr_rank(made[i]) > 1 || tr_world_size(made[i]) < 2) continue;
        TRY(tr_rank(made[i]) ? tr_send(made[i], shared, 1000, .peer = other) : tr_recv(made[i], shared, 1000, .peer = other));
    }
    for (int i = 0; i < AT_ONCE; i++)
        if (i) TRY(tr_leave(made[i])); /* else the scope drops it */
    return TR_OK;
}

/* The others' goodbyes have come. */
static tr_status await_only_world(const rank *r)
{
    for (int ms = 0; ms < PATIENCE_MS && count_attached(r) > 1; ms++) usleep(1000);
    CHECK(count_attached(r) == 1);
    return TR_OK;
}

static tr_status make_many(rank *r)
{
    resources before = {0};
    for (int turn = 0; turn < 260; turn++) {
        if (turn == 10) before = count_resources();
        TRY(make_use_and_leave(r, turn));
        TRY(tr_barrier(r->group));
        TRY(await_only_world(r));
        TRY(tr_barrier(r->group)); /* a thousand in all, and nobody counts while another is still at work */
    }
    resources after = count_resources();
    CHECK(after.descriptors <= before.descriptors + 1); /* what the world sleeps on may have been made meanwhile */
    CHECK(more_entries("/proc/self/task", before.threads) == 0);
    CHECK(after.mappings == before.mappings);
    CHECK(after.files == before.files);
    TRY(tr_barrier(r->group));
    TRY(tr_leave(r->group));
    CHECK(count_mappings() == 0);
    return TR_OK;
}

static void a_thousand_groups_leave_nothing(void **state)
{
    (void)state;
    run_everywhere(make_many);
}

static tr_status keep_many(rank *r)
{
    enum { GROUPS = 100 };
    tr_group *made[GROUPS];
    resources one = {0};
    for (int i = 0; i < GROUPS; i++) {
        made[i] = tr_group_split(r->group, 0, 0);
        TRY(sum_ranks(r, made[i], 3));
        if (i == 0) one = count_resources();
    }
    resources all = count_resources();
    const setting *s = r->arg;
    int used = s->transport || s->hosts ? r->world : 0; /* between hosts, a connection with each rank, and what its thread sleeps on */
    CHECK(all.descriptors <= one.descriptors + 1 + used * (GROUPS - 1)); /* the monitor may have been replacing its spare one */
    CHECK(more_entries("/proc/self/task", one.threads) == 0);
    TRY(tr_leave(r->group)); /* they live on without it */
    for (int i = 0; i < GROUPS; i++) TRY(sum_ranks(r, made[i], 3));
    for (int i = 0; i < GROUPS; i++) TRY(tr_leave(made[i]));
    CHECK(count_mappings() == 0);
    return TR_OK;
}

static void groups_cost_no_descriptor_and_no_thread(void **state)
{
    (void)state;
    run_everywhere(keep_many);
}

/* ---- Deaths ------------------------------------------------------------------------------------------------------ */

static tr_status die_in_two_of_three(rank *r)
{
    static const int first[] = {0, 1}, second[] = {0, 2};
    int64_t pids[3] = {0}, pid = getpid();
    char victim[32];
    TRY(tr_all_gather(r->group, &pid, pids, 1, .dtype = TR_I64));
    snprintf(victim, sizeof victim, " (pid %d", (int)pids[2]);
    tr_group *safe = tr_group_new(r->group, first, 2), *lost = tr_group_new(r->group, second, 2), *left = tr_group_split(r->group, 0, 0);
    TRY(tr_status_of(safe));
    TRY(tr_status_of(lost));
    TRY(sum_ranks(r, left, 3));
    TRY(tr_leave(left)); /* the victim dies in a group that all have left, too */
    if (lost) TRY(sum_ranks(r, lost, 2));
    TRY(pass_barrier_together(r->group, r->store));
    if (r->number == 2) raise(SIGKILL);

    int64_t began = tr__now_ns();
    CHECK(sum_ranks(r, r->group, 3) == TR_PEER);
    SAYS("rank 2");
    SAYS(victim);
    SAYS(" died");
    if (lost) {
        CHECK(sum_ranks(r, lost, 2) == TR_PEER);
        SAYS("rank 1"); /* as it is known there */
        SAYS(victim);
    }
    CHECK(tr__now_ns() - began < 5000000000);
    enum { COUNT = 50000 };
    float *shared = tr_shared_alloc(COUNT * sizeof *shared);
    for (int turn = 0; turn < 20; turn++) {
        TRY(sum_ranks(r, safe, 1));
        TRY(tr_all_reduce(safe, shared, COUNT));
        TRY(r->number ? tr_recv(safe, shared, COUNT, .peer = 0) : tr_send(safe, shared, COUNT, .peer = 1));
        if (turn == 5) TRY(tr_leave(r->group));
        if (turn == 10 && lost) TRY(tr_leave(lost));
        tr_group *within = tr_group_split(safe, 0, 0);
        TRY(sum_ranks(r, within, 1));
        TRY(tr_leave(within));
    }
    tr_shared_free(shared);
    return tr_leave(safe);
}

static void a_death_breaks_the_groups_that_it_concerns(void **state)
{
    (void)state;
    for (int s = 0; s < SETTINGS; s++) {
        job j;
        start_job_in(&j, &settings[s], 3, die_in_two_of_three, NULL);
        for (int i = 0; i < 3; i++) reap(&j, i);
        for (int i = 0; i < 2; i++)
            if (j.posts[i].status != TR_OK || !j.posts[i].ended) fail_msg("rank %d: %s", i, j.posts[i].text);
        finish(&j);
    }
}

static tr_status split_until_it_fails(rank *r)
{
    tr_status status = TR_OK;
    while (status == TR_OK) {
        TR_SCOPE;
        tr_group *all = tr_group_split(r->group, 0, 0), *some = NULL;
        status = tr_status_of(all);
        if (status == TR_OK) some = tr_group_split(all, 0, 0);
        if (status == TR_OK) status = sum_ranks(r, some, r->world * (r->world - 1) / 2);
        if (status == TR_OK) atomic_fetch_add(&r->post->turns, 1);
    }
    char why[512];
    snprintf(why, sizeof why, "%s", tr_error_message());
    atomic_store(&r->post->ended, tr__now_ns());
    tr_group *never = tr_group_split(r->group, 0, 0);
    CHECK(tr_status_of(never) == TR_PEER);
    TRY(tr_leave(r->group));
    CHECK(count_mappings() == 0);
    return tr_fail(status, "%s", why);
}

static void a_rank_that_dies_in_a_split_is_named(void **state)
{
    (void)state;
    for (int turn = 0; turn < 12 * SETTINGS; turn++) { /* between hosts, while connections are made */
        job j;
        int victim = turn % 4;
        int64_t killed = kill_one_of(&j, &settings[turn / 4 % SETTINGS], 4, victim, split_until_it_fails, NULL, 100 * turn);
        for (int i = 0; i < 4; i++)
            if (i != victim) check_survivor(&j, i, victim, killed, (const char *[]){") died", "", ""});
        finish(&j);
    }
}

/* ---- One by one -------------------------------------------------------------------------------------------------- */

static tr_status leave_first(rank *r)
{
    tr_group *old = tr_group_split(r->group, 0, 0);
    TRY(sum_ranks(r, old, 3));
    if (r->number == 0) TRY(tr_leave(old));
    for (int turn = 0; turn < 40; turn++) { /* more than the blocks that there are: those of `old` are not among them */
        tr_group *made = tr_group_split(r->group, 0, 0);
        TRY(sum_ranks(r, made, 3));
        TRY(tr_leave(made));
    }
    if (r->number > 0) {
        CHECK(sum_ranks(r, old, 3) == TR_PEER);
        SAYS("left group 'world.1-0'");
    }
    TRY(tr_barrier(r->group));
    if (r->number > 0) TRY(tr_leave(old));
    TRY(await_only_world(r));
    TRY(sum_ranks(r, r->group, 3));
    return tr_leave(r->group);
}

static void a_group_is_left_rank_by_rank(void **state)
{
    (void)state;
    run_everywhere(leave_first);
}

/* What a rank sends before it leaves arrives, also where its connection was made for that; who needs more of it learns that it has
 * left, without a connection as well. */
static tr_status send_and_leave(rank *r)
{
    enum { TURNS = 20, COUNT = 3 };
    for (int turn = 0; turn < TURNS; turn++) {
        int from = turn % 3, to = (from + 1 + turn / 3 % 2) % 3;
        tr_group *made = tr_group_split(r->group, 0, 0);
        float data[COUNT] = {(float)turn, (float)from, (float)to};
        TRY(tr_status_of(made));
        if (r->number == from) TRY(tr_send(made, data, COUNT, .peer = to));
        if (r->number != to) TRY(tr_leave(made));
        if (r->number != to) continue;
        usleep(turn % 4 * 1000);
        memset(data, 0, sizeof data);
        TRY(tr_recv(made, data, COUNT, .peer = from));
        CHECK(data[0] == (float)turn && data[1] == (float)from && data[2] == (float)to);
        CHECK(tr_recv(made, data, COUNT, .peer = 3 - from - to) == TR_PEER);
        SAYS("left group");
        TRY(tr_leave(made));
    }
    return tr_leave(r->group);
}

static void what_was_sent_before_leaving_arrives(void **state)
{
    (void)state;
    run_everywhere(send_and_leave);
}

/* All connect with all at once. */
static tr_status exchange_at_once(rank *r)
{
    for (int turn = 0; turn < 100; turn++) {
        int64_t mine[3], theirs[3];
        tr_group *made = tr_group_split(r->group, 0, -r->number);
        for (int i = 0; i < 3; i++) mine[i] = turn * 100 + tr_rank(made) * 10 + i;
        TRY(tr_all_to_all(made, mine, theirs, 1, .dtype = TR_I64));
        for (int i = 0; i < 3; i++) CHECK(theirs[i] == turn * 100 + i * 10 + tr_rank(made));
        TRY(tr_leave(made));
    }
    return tr_leave(r->group);
}

static void all_connect_at_once(void **state)
{
    (void)state;
    run_everywhere(exchange_at_once);
}

/* Rank 1 may make no file as long as that, so it has no memory for more groups: the others learn so, and the parent stays sound. */
static tr_status split_without_memory(rank *r)
{
    struct rlimit usual, little;
    CHECK(getrlimit(RLIMIT_FSIZE, &usual) == 0);
    little = usual;
    little.rlim_cur = 4096;
    signal(SIGXFSZ, SIG_IGN);
    if (r->number == 1) CHECK(setrlimit(RLIMIT_FSIZE, &little) == 0);
    tr_group *made = tr_group_split(r->group, 0, 0);
    if (r->number == 1) CHECK(setrlimit(RLIMIT_FSIZE, &usual) == 0);
    CHECK(tr_status_of(made) == (r->number == 1 ? TR_NO_MEMORY : TR_PEER));
    if (r->number != 1) SAYS("rank 1 could not make its part");
    made = tr_group_split(r->group, 0, 0);
    TRY(sum_ranks(r, made, 3));
    TRY(tr_leave(made));
    return tr_leave(r->group);
}

static void a_rank_without_memory_for_a_group_is_named(void **state)
{
    (void)state;
    run_job(3, split_without_memory, NULL);
}

/* Memory of one size has run out. */
static atomic_size_t missing;
static atomic_int refused;
void *__real_malloc(size_t bytes), *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes)
{
    if (!bytes || bytes != atomic_load(&missing)) return __real_malloc(bytes);
    atomic_fetch_add(&refused, 1);
    return NULL;
}

/* Ranks 0 and 2 leave a new group before rank 1 knows that it has members, and rank 1 has no room for what they say. */
static tr_status hear_early_without_memory(rank *r)
{
    enum { NUMBER = 77 };
    tr__seat seat = {.parent = r->group->state};
    tr__shm_place block;
    const setting *s = r->arg;
    TRY(tr__native_prepare(&seat, NUMBER, &block));
    if (r->number == 1) atomic_store(&missing, s->transport || s->hosts ? sizeof(tr__early_frame) : sizeof(tr__shm_queued));
    TRY(tr_barrier(r->group));
    if (r->number == 1) {
        int64_t end = tr__now_ns() + 10 * (int64_t)1000000000;
        while (!tr__failure_there(seat.failure) && tr__now_ns() < end) usleep(1000);
        atomic_store(&missing, 0);
        CHECK(tr__failure_there(seat.failure) && tr__failure_tell(seat.failure) == TR_NO_MEMORY);
        SAYS("group 'world': no memory for a message of rank ");
    }
    tr__fail(TR_STATE, "this rank does not come");
    tr__native_abandon(&seat);
    return tr_leave(r->group);
}

static void a_message_that_there_is_no_memory_for_is_an_error(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) run_job_in(&settings[i], 3, hear_early_without_memory, &settings[i]);
}

/* Rank 0 connects with rank 1, which has no room for the connection for a while. */
static tr_status connect_without_memory(rank *r)
{
    int64_t word = 7 * (1 - r->number);
    TRY(tr_barrier(r->group));
    if (r->number == 1) atomic_store(&missing, sizeof(tr__network_connection));
    TRY(tr_barrier(r->group));
    if (r->number == 0) {
        TRY(tr_send(r->group, &word, 1, .peer = 1, .dtype = TR_I64));
    } else {
        int64_t end = tr__now_ns() + 10 * (int64_t)1000000000;
        while (atomic_load(&refused) < 3 && tr__now_ns() < end) usleep(1000);
        atomic_store(&missing, 0);
        CHECK(atomic_load(&refused) > 0);
        TRY(tr_recv(r->group, &word, 1, .peer = 0, .dtype = TR_I64));
        CHECK(word == 7);
    }
    TRY(tr_barrier(r->group));
    return tr_leave(r->group);
}

static void a_connection_that_there_is_no_memory_for_comes_later(void **state)
{
    (void)state;
    run_job_in(&(setting){.transport = "tcp"}, 2, connect_without_memory, NULL);
}

/* A message with more of them than one. */
static void descriptors_that_nobody_expects_are_closed(void **state)
{
    (void)state;
    int ends[2], fd;
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(2 * sizeof(int))];
    } control = {.header = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(2 * sizeof(int))}};
    tr__shm_message message = {.magic = TR__SHM_MAGIC};
    struct iovec body = {&message, sizeof message};
    struct msghdr m = {.msg_iov = &body, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control.space};
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    memcpy(CMSG_DATA(&control.header), ends, sizeof ends);
    assert_int_equal(sendmsg(ends[0], &m, 0), sizeof message);
    int before = count_entries("/proc/self/fd");
    assert_int_equal(tr__shm_receive(ends[1], &message, &fd), sizeof message);
    if (fd >= 0) close(fd);
    assert_int_equal(count_entries("/proc/self/fd"), before);
    close(ends[0]);
    close(ends[1]);
}

/* ---- Threads of one group ---------------------------------------------------------------------------------------- */

enum { TURNS = 1000000 };

typedef struct mapping_user {
    pthread_t thread;
    tr__attachment *attachment;
    bool moved; /* the version that it went by was raised while it was busy */
} mapping_user;

static void *use_and_end(void *arg)
{
    mapping_user *u = arg;
    for (int i = 0; i < TURNS; i++) {
        tr__attachment_busy(u->attachment);
        uint64_t since = tr__attachment_since(u->attachment);
        atomic_fetch_add(&u->attachment->endpoint->version, 1); /* a peer takes something back */
        u->moved |= tr__attachment_since(u->attachment) != since;
        tr__attachment_idle(u->attachment);
    }
    return NULL;
}

static void threads_that_use_mappings_go_by_one_version(void **state)
{
    (void)state;
    enum { THREADS = 2 };
    tr__endpoint endpoint = {.world_size = 0};
    tr__attachment attachment = {.endpoint = &endpoint};
    mapping_user users[THREADS];
    for (int i = 0; i < THREADS; i++) {
        users[i] = (mapping_user){.attachment = &attachment};
        assert_int_equal(pthread_create(&users[i].thread, NULL, use_and_end, &users[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(users[i].thread, NULL);
    for (int i = 0; i < THREADS; i++) assert_false(users[i].moved);
}

/* A peer may look at it, as it hears that a rank has given up joining. */
static void a_control_block_stays_until_it_is_taken_again(void **state)
{
    (void)state;
    static const tr__attached calls;
    tr__endpoint *e;
    tr__attachment *first, *second, *third;
    assert_int_equal(tr__endpoint_new("world", 0, 1, 64, &e), TR_OK);
    assert_int_equal(tr__endpoint_attach(e, 1, &calls, NULL, &first), TR_OK);
    assert_int_equal(tr__endpoint_attach(e, 2, &calls, NULL, &second), TR_OK);
    int *word = second->block;
    *word = 7;
    tr__endpoint_detach(second);
    assert_int_equal(*word, 7);
    assert_int_equal(tr__endpoint_attach(e, 3, &calls, NULL, &third), TR_OK);
    assert_true(third->block == word && *word == 0);
    tr__endpoint_detach(third);
    tr__endpoint_detach(first);
}

static void *give_up(void *failure)
{
    tr__fail(TR_NO_MEMORY, "no memory for a message");
    (void)!tr__failure_give_up(failure);
    return NULL;
}

/* The monitor of shared memory finds a failure while TCP takes its members in: the peers are told who fails. */
static void a_failure_while_joining_names_this_rank(void **state)
{
    (void)state;
    TR_SCOPE;
    const tr__member member = {.group = "world", .world_size = 2, .store = tr_store_memory()};
    tr__endpoint_record record = {.pid = 7, .host = "bay"};
    tr__failure *failure = tr__failure_new();
    tr__tcp *t;
    pthread_t thread;
    char name[TR__TCP_NAME];
    assert_int_equal(tr__tcp_new(&member, failure, &record, &t), TR_OK);
    assert_string_equal(tr__tcp_name(&t->peers[0], name), "rank 0 (pid 7 on host bay)");
    assert_int_equal(pthread_create(&thread, NULL, give_up, failure), 0);
    t->network->peers[0].record = (tr__network_record){.pid = 7, .host = "bay"};
    tr__tcp_know_members(t);
    pthread_join(thread, NULL);
    tr__tcp_close(t);
    tr__failure_free(failure);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thousand_groups_leave_nothing),
        cmocka_unit_test(groups_cost_no_descriptor_and_no_thread),
        cmocka_unit_test(a_death_breaks_the_groups_that_it_concerns),
        cmocka_unit_test(a_rank_that_dies_in_a_split_is_named),
        cmocka_unit_test(a_group_is_left_rank_by_rank),
        cmocka_unit_test(what_was_sent_before_leaving_arrives),
        cmocka_unit_test(all_connect_at_once),
        cmocka_unit_test(a_rank_without_memory_for_a_group_is_named),
        cmocka_unit_test(a_message_that_there_is_no_memory_for_is_an_error),
        cmocka_unit_test(a_connection_that_there_is_no_memory_for_comes_later),
        cmocka_unit_test(descriptors_that_nobody_expects_are_closed),
        cmocka_unit_test(threads_that_use_mappings_go_by_one_version),
        cmocka_unit_test(a_failure_while_joining_names_this_rank),
        cmocka_unit_test(a_control_block_stays_until_it_is_taken_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
