/*
 * Descriptors run out while ranks of a host share memory or join: the rank that has none left is the one that is named,
 * nobody waits for what cannot come, and what else the ranks have goes on.
 *
 * ctest: serial
 */
#include "base/clock.h"
#include "comm/group/group.h"
#include "comm/transport/shm.h"
#include "comm/transport/tcp.h"
#include "entries.h"
#include "processes.h"
#include "rpc/agent.h"

#include <trireme/ops.h>

#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { COUNT = 50000, SHORT_MS = 30000 };

/* What the kernel is to refuse, so many times. */
static atomic_int refused_sends, refused_accepts, asked_accepts;

ssize_t __real_sendmsg(int socket, const struct msghdr *message, int flags),
    __wrap_sendmsg(int, const struct msghdr *, int);
ssize_t __wrap_sendmsg(int socket, const struct msghdr *message, int flags)
{
    if (!message->msg_controllen || atomic_load(&refused_sends) == 0) return __real_sendmsg(socket, message, flags);
    atomic_fetch_sub(&refused_sends, 1);
    errno = ETOOMANYREFS;
    return -1;
}

int __real_accept4(int socket, struct sockaddr *from, socklen_t *bytes, int flags),
    __wrap_accept4(int, struct sockaddr *, socklen_t *, int);
int __wrap_accept4(int socket, struct sockaddr *from, socklen_t *bytes, int flags)
{
    atomic_fetch_add(&asked_accepts, 1);
    if (atomic_load(&refused_accepts) == 0) return __real_accept4(socket, from, bytes, flags);
    errno = EMFILE;
    return -1;
}

/* Leaves this process so many descriptors; below 0: as many as it had. */
static tr_status leave_descriptors(int count)
{
    static struct rlimit usual;
    if (!usual.rlim_max) CHECK(getrlimit(RLIMIT_NOFILE, &usual) == 0);
    struct rlimit limit = usual;
    int taken[4]; /* the lowest that are free; the last of them is refused */
    CHECK(count < (int)(sizeof taken / sizeof *taken));
    for (int i = 0; i <= count; i++) CHECK((taken[i] = dup(0)) >= 0);
    if (count >= 0) limit.rlim_cur = (rlim_t)taken[count];
    for (int i = 0; i <= count; i++) CHECK(close(taken[i]) == 0);
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    return TR_OK;
}

/* Rank 0 gives what lies in shared memory. */
static tr_status pass_on(const rank *r, tr_group *group, float *buffer)
{
    memset(buffer, 0, COUNT * sizeof *buffer);
    for (int i = 0; i < COUNT && r->number == 0; i++) buffer[i] = (float)i;
    TRY(tr_broadcast(group, buffer, COUNT, .timeout_ms = SHORT_MS));
    for (int i = 0; i < COUNT; i++) CHECK(buffer[i] == (float)i);
    return TR_OK;
}

static float *make_buffer(const rank *r)
{
    static float own[COUNT];
    return r->number == 0 ? tr_shared_alloc(sizeof own) : own;
}

static tr_status cannot_receive(rank *r)
{
    float *buffer = make_buffer(r);
    if (r->number == 1) TRY(leave_descriptors(0));
    TRY(tr_barrier(r->group)); /* rank 0 shows its buffer right behind it */
    tr_status status = pass_on(r, r->group, buffer);
    TRY(leave_descriptors(-1));
    if (r->number == 1) {
        CHECK(status == TR_IO);
        SAYS("this process has no descriptor left to map 200704 bytes of rank 0");
    } else if (status != TR_OK) { /* it may be done before the others have failed */
        CHECK(status == TR_PEER);
        SAYS("rank 1 (pid ");
        SAYS("no descriptor left");
    }
    if (r->number == 0) tr_shared_free(buffer);
    return tr_leave(r->group);
}

static void a_rank_that_cannot_take_a_descriptor_names_itself(void **state)
{
    (void)state;
    run_job_in(&(setting){.transport = "shm"}, 2, cannot_receive, NULL);
}

/* The failure concerns one group; what was not shown is shown when another one needs it. */
static tr_status cannot_show(rank *r)
{
    float *buffer = make_buffer(r);
    tr_group *other = tr_group_split(r->group, 0, 0);
    TRY(tr_status_of(other));
    TRY(tr_barrier(other));
    if (r->number == 0) TRY(leave_descriptors(0));
    tr_status status = pass_on(r, other, buffer);
    TRY(leave_descriptors(-1));
    CHECK(status == (r->number == 0 ? TR_IO : TR_PEER));
    SAYS("no descriptor to share memory with rank 1");
    TRY(pass_on(r, r->group, buffer));
    TRY(tr_leave(other));
    if (r->number == 0) tr_shared_free(buffer);
    return tr_leave(r->group);
}

static void what_could_not_be_shown_is_shown_again(void **state)
{
    (void)state;
    run_job_in(&(setting){.transport = "shm"}, 2, cannot_show, NULL);
}

/* There is a descriptor for a group's memory, and none to show it to all others. Who could have been shown it maps nothing. */
static tr_status cannot_split(rank *r)
{
    const int *left = r->arg;
    int mappings = count_mappings(), ms = 0;
    TRY(tr_barrier(r->group)); /* all have counted */
    tr_group *made = tr_group_split(r->group, r->number == 0 ? -1 : 0, 0);
    TRY(tr_status_of(made));
    if (made) TRY(tr_leave(made));
    /* What the others show for groups has come before rank 0 has no descriptor to take it with. */
    while (r->number == 0 && count_mappings() < mappings + 2 && ms++ < PATIENCE_MS) usleep(1000);
    for (int turn = 0; turn < 3; turn++) {
        TRY(tr_barrier(r->group));
        if (r->number == 0) TRY(leave_descriptors(*left));
        made = tr_group_split(r->group, 0, 0);
        TRY(leave_descriptors(-1));
        CHECK(tr_status_of(made) == (r->number == 0 ? TR_IO : TR_PEER));
    }
    made = tr_group_split(r->group, 0, 0);
    float x = 1;
    TRY(tr_status_of(made));
    TRY(tr_all_reduce(made, &x, 1));
    CHECK(x == 3);
    CHECK(count_mappings() == mappings + 4); /* what each rank has shown now, after all else, and the flight record */
    TRY(tr_leave(made));
    return tr_leave(r->group);
}

static void a_group_whose_memory_could_not_be_shown_is_made_anew(void **state)
{
    (void)state;
    for (int left = 1; left <= 2; left++) run_job_in(&(setting){.transport = "shm"}, 3, cannot_split, &left);
}

/* Mappings of what rank 0 has shown. */
static size_t count_shown(tr__endpoint *e)
{
    pthread_mutex_lock(&e->lock);
    size_t count = e->peers[0].mapping_count;
    pthread_mutex_unlock(&e->lock);
    return count;
}

/* Rank 1 has none left, neither for its own memory for groups nor for that of rank 0. The group is not made, and nothing else is
 * lost: for the latter it has one in reserve. */
static tr_status cannot_make_a_group(rank *r)
{
    tr__shm *shm;
    tr__tcp *tcp;
    tr__native_transports(r->group->state, &shm, &tcp);
    size_t before = count_shown(shm->endpoint);
    if (r->number == 1) TRY(leave_descriptors(0));
    TRY(tr_barrier(r->group)); /* rank 0 shows its memory behind it */
    tr_group *made = tr_group_split(r->group, 0, 0);
    CHECK(tr_status_of(made) != TR_OK);
    SAYS(r->number == 1 ? "Too many open files" : "rank 1 could not make its part of a group");
    for (int ms = 0; r->number == 1 && count_shown(shm->endpoint) == before && ms < PATIENCE_MS; ms++)
        usleep(1000); /* until what rank 0 has shown is here */
    TRY(tr_barrier(r->group));
    TRY(leave_descriptors(-1));
    made = tr_group_split(r->group, 0, 0);
    float x = 1;
    TRY(tr_status_of(made));
    TRY(tr_all_reduce(made, &x, 1));
    CHECK(x == 2);
    TRY(tr_leave(made));
    return tr_leave(r->group);
}

static void control_blocks_are_mapped_without_descriptors(void **state)
{
    (void)state;
    run_job_in(&(setting){.transport = "shm"}, 2, cannot_make_a_group, NULL);
}

static int64_t count(const tr_tensor *x)
{
    return tr_numel(x);
}
TR_RPC(count, TENSOR, RETURNS(I64));

/* Rank 1 cannot map the block that an argument comes in. It names itself, and at once; rank 0 loses it. */
static tr_status cannot_take_a_block(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = tr_rpc_start(r->group, .timeout_ms = JOIN_MS);
    TRY(tr_status_of(rpc));
    TRY(tr_rpc_register(rpc, &count_rpc));
    TRY(tr_barrier(r->group));
    if (r->number == 1) TRY(leave_descriptors(0));
    TRY(tr_barrier(r->group));
    int64_t began = tr__now_ns();
    if (r->number == 0) {
        CHECK(tr_future_wait(tr_rpc_sync(rpc, "worker1", "count", tr_full(1, TR_SHAPE(1 << 20)))) == TR_PEER);
        SAYS("worker 1 (\"worker1\"");
    } else {
        while (!atomic_load(&rpc->links[0].gone) && tr__now_ns() - began < (int64_t)JOIN_MS * 1000000) usleep(1000);
        CHECK(atomic_load(&rpc->links[0].gone));
        TRY(leave_descriptors(-1));
        CHECK(tr_future_wait(tr_rpc_sync(rpc, "worker0", "count", tr_full(1, TR_SHAPE(1)))) == TR_IO);
        SAYS("worker 0 (\"worker0\") cannot be heard any more: this process has no descriptor left to map");
    }
    CHECK(tr__now_ns() - began < (int64_t)JOIN_MS / 2 * 1000000);
    tr_status stopped = tr_rpc_stop(rpc); /* rank 0 may find that rank 1 has stopped */
    CHECK(r->number == 0 || stopped == TR_IO);
    return tr_leave(r->group);
}

static void a_worker_that_cannot_map_a_block_says_so(void **state)
{
    (void)state;
    run_job_in(&(setting){.transport = "shm"}, 2, cannot_take_a_block, NULL);
}

static tr_status cannot_send_yet(rank *r)
{
    float *buffer = make_buffer(r);
    if (r->number == 0) atomic_store(&refused_sends, 3);
    TRY(pass_on(r, r->group, buffer));
    CHECK(atomic_load(&refused_sends) == 0);
    if (r->number == 0) tr_shared_free(buffer);
    return tr_leave(r->group);
}

static void a_message_that_the_kernel_has_no_room_for_goes_later(void **state)
{
    (void)state;
    run_job_in(&(setting){.transport = "shm"}, 2, cannot_send_yet, NULL);
}

static tr_status cannot_accept(rank *r)
{
    if (r->number == 0) atomic_store(&refused_accepts, 1);
    tr_group *again = tr_join(.store = r->store, .rank = r->number, .world_size = r->world, .name = "again",
        .transport = "shm", .timeout_ms = SHORT_MS);
    CHECK(r->number == 0 ? tr_status_of(again) == TR_IO : tr_status_of(again) != TR_OK);
    SAYS(r->number == 0 ? "rank 0 cannot accept a connection of another rank" : "rank 0");
    return tr_leave(r->group);
}

static void a_rank_that_can_accept_nobody_says_so(void **state)
{
    (void)state;
    run_job_in(&(setting){.transport = "shm"}, 2, cannot_accept, NULL);
}

/* A connection waits at a rank that has no descriptor for it: its thread looks now and then. Later peers connect. */
static tr_status cannot_accept_yet(rank *r)
{
    tr__shm *shm;
    tr__tcp *tcp;
    struct sockaddr_in listener;
    socklen_t bytes = sizeof listener;
    tr__native_transports(r->group->state, &shm, &tcp);
    CHECK(getsockname(tcp->network->listener, (struct sockaddr *)&listener, &bytes) == 0);
    atomic_store(&asked_accepts, 0);
    atomic_store(&refused_accepts, 1);
    int stranger = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(stranger >= 0 && connect(stranger, (struct sockaddr *)&listener, bytes) == 0);
    for (int ms = 0; ms < PATIENCE_MS && atomic_load(&asked_accepts) == 0; ms++) usleep(1000);
    CHECK(atomic_load(&asked_accepts) > 0);
    int64_t began = tr__now_ns();
    int before = atomic_load(&asked_accepts);
    usleep(500000);
    int64_t ms = (tr__now_ns() - began) / 1000000;
    CHECK((atomic_load(&asked_accepts) - before) * 25 <= ms + 50); /* 40 times a second at most: it looks every 100 ms */
    atomic_store(&refused_accepts, 0);
    close(stranger);
    float x = 1;
    TRY(tr_all_reduce(r->group, &x, 1));
    CHECK(x == 2);
    return tr_leave(r->group);
}

static void a_rank_without_descriptors_sleeps(void **state)
{
    (void)state;
    run_job_in(&(setting){.transport = "tcp"}, 2, cannot_accept_yet, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_cannot_take_a_descriptor_names_itself),
        cmocka_unit_test(what_could_not_be_shown_is_shown_again),
        cmocka_unit_test(a_group_whose_memory_could_not_be_shown_is_made_anew),
        cmocka_unit_test(control_blocks_are_mapped_without_descriptors),
        cmocka_unit_test(a_worker_that_cannot_map_a_block_says_so),
        cmocka_unit_test(a_message_that_the_kernel_has_no_room_for_goes_later),
        cmocka_unit_test(a_rank_that_can_accept_nobody_says_so),
        cmocka_unit_test(a_rank_without_descriptors_sleeps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
