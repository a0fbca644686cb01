/* Sends and receives, and lists of works, with threads as ranks: any size, any order, both ways at once, beside
 * collectives; what does not match, and ranks that leave or stay away. */
#include "comm/group/group.h"
#include "comm/transport/shm_channel.h"
#include "comm_ranks.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

static void fill(int64_t *x, int64_t n, int from, int tag)
{
    for (int64_t i = 0; i < n; i++) x[i] = from * 1000000007LL + tag * 1009 + i;
}

static bool holds(const int64_t *x, int64_t n, int from, int tag)
{
    for (int64_t i = 0; i < n; i++)
        if (x[i] != from * 1000000007LL + tag * 1009 + i) return false;
    return true;
}

static const int64_t sizes[] = {0, 1, 100, 2048, 2049, 30000, 200003};
enum { SIZES = sizeof sizes / sizeof *sizes, LONGEST = 200003 };

/* Round a ring, blocking: rank 0 begins. */
static void pass_on(rank *r)
{
    buffer_kind kind = *(const buffer_kind *)r->arg;
    int next = (r->number + 1) % r->world, before = (r->number + r->world - 1) % r->world;
    int64_t *x = make_buffer(kind, r, LONGEST * 8);
    CHECK(x);
    for (int s = 0; s < SIZES; s++) {
        int64_t n = sizes[s];
        if (r->number == 0) {
            fill(x, n, 7, s);
            OK(tr_send(r->group, x, n, .dtype = TR_I64, .peer = next, .tag = s));
            memset(x, 0, (size_t)n * 8);
        }
        OK(tr_recv(r->group, x, n, .dtype = TR_I64, .peer = before, .tag = s));
        CHECK(holds(x, n, 7, s));
        if (r->number != 0) OK(tr_send(r->group, x, n, .dtype = TR_I64, .peer = next, .tag = s));
    }
    free_buffer(kind, r, x);
    OK(tr_leave(r->group));
}

static void messages_go_round(void **state)
{
    (void)state;
    for (int world = 2; world <= 8; world += 1 + world / 4)
        for (buffer_kind kind = 0; kind < KINDS; kind++) run(world, pass_on, &kind);
}

/* Everyone sends to everyone and then receives, all posted; every rank posts its sends first. */
static void exchange(rank *r)
{
    buffer_kind kind = *(const buffer_kind *)r->arg;
    int64_t *in[RANKS_MOST], *out[RANKS_MOST];
    TR_SCOPE;
    for (int s = 0; s < SIZES; s++) {
        tr_work *works[2 * RANKS_MOST] = {NULL};
        for (int peer = 0; peer < r->world; peer++) {
            out[peer] = make_buffer(kind, r, (size_t)sizes[s] * 8 + 8);
            in[peer] = make_buffer(kind, r, (size_t)sizes[s] * 8 + 8);
            CHECK(in[peer] && out[peer]);
            fill(out[peer], sizes[s], r->number, peer);
            if (peer != r->number)
                works[peer] = tr_send_async(r->group, out[peer], sizes[s], .dtype = TR_I64, .peer = peer, .tag = 3);
        }
        for (int peer = 0; peer < r->world; peer++)
            if (peer != r->number)
                works[r->world + peer] = tr_recv_async(r->group, in[peer], sizes[s], .dtype = TR_I64, .peer = peer,
                    .tag = 3);
        for (int w = 2 * r->world - 1; w >= 0; w--) OK(tr_wait(works[w]));
        for (int peer = 0; peer < r->world; peer++) {
            CHECK(peer == r->number || holds(in[peer], sizes[s], peer, r->number));
            free_buffer(kind, r, in[peer]);
            free_buffer(kind, r, out[peer]);
        }
    }
}

static void all_can_send_first(void **state)
{
    (void)state;
    for (int world = 2; world <= 5; world++)
        for (buffer_kind kind = 0; kind < KINDS; kind++) run(world, exchange, &kind);
}

/* Messages of one tag keep their order, those of different tags may be asked for in any. Some are received before they
 * are sent, some after. */
static void mix_tags(rank *r)
{
    enum { MESSAGES = 60, TAGS = 3 };
    static const int64_t lengths[] = {1, 5000, 300};
    TR_SCOPE;
    int64_t *x = calloc(MESSAGES * 5000, 8);
    tr_work *works[MESSAGES];
    CHECK(x);
    if (r->number == 0) {
        usleep(20000);
        for (int m = 0; m < MESSAGES; m++) {
            fill(x + m * 5000, lengths[m % TAGS], 0, m);
            works[m] = tr_send_async(r->group, x + m * 5000, lengths[m % TAGS], .dtype = TR_I64, .peer = 1,
                .tag = m % TAGS);
        }
    } else {
        for (int tag = TAGS - 1; tag >= 0; tag--) { /* all of a tag, then all of the next */
            if (tag == 0) usleep(50000);
            for (int m = tag; m < MESSAGES; m += TAGS)
                works[m] = tr_recv_async(r->group, x + m * 5000, lengths[tag], .dtype = TR_I64, .peer = 0, .tag = tag);
            if (tag == 1) OK(tr_wait(works[MESSAGES - 2]));
        }
    }
    for (int m = 0; m < MESSAGES; m++) OK(tr_wait(works[m]));
    for (int m = 0; m < MESSAGES; m++) CHECK(holds(x + m * 5000, lengths[m % TAGS], 0, m));
    free(x);
}

static void tags_are_kept_apart_and_in_order(void **state)
{
    (void)state;
    for (int turn = 0; turn < 5; turn++) run(2, mix_tags, NULL);
}

/* A message passes while the group's queue is held up by a collective that waits for the very rank. */
static void overtake(rank *r)
{
    TR_SCOPE;
    float x[4] = {1, 2, 3, 4}, y = 5;
    if (r->number == 0) {
        tr_work *barrier = tr_barrier_async(r->group);
        OK(tr_recv(r->group, &y, 1, .peer = 1));
        CHECK(y == 6);
        OK(tr_send(r->group, x, 4, .peer = 1));
        OK(tr_wait(barrier));
    } else {
        y = 6;
        OK(tr_send(r->group, &y, 1, .peer = 0));
        OK(tr_recv(r->group, x, 4, .peer = 0));
        OK(tr_barrier(r->group));
    }
}

static void messages_do_not_wait_for_collectives(void **state)
{
    (void)state;
    for (int turn = 0; turn < 20; turn++) run(2, overtake, NULL);
}

/* A short message is buffered: its sender may be gone when it is received. */
static void send_and_leave(rank *r)
{
    float x[100] = {7};
    if (r->number == 0) {
        OK(tr_send(r->group, x, 100, .peer = 1));
        OK(tr_leave(r->group));
        return;
    }
    x[0] = 0;
    usleep(30000);
    OK(tr_recv(r->group, x, 100, .peer = 0));
    CHECK(x[0] == 7);
    CHECK(tr_recv(r->group, x, 100, .peer = 0) == TR_PEER);
    SAYS("rank 0");
    SAYS("left");
    SAYS("recv (f32[100] from rank 0, tag 0 at ");
}

static void a_sender_may_leave(void **state)
{
    (void)state;
    for (int turn = 0; turn < 10; turn++) run(2, send_and_leave, NULL);
}

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

static void run_lists(rank *r)
{
    enum { COUNT = 50000 };
    TR_SCOPE;
    int next = (r->number + 1) % r->world, before = (r->number + r->world - 1) % r->world;
    float *x = calloc(COUNT, sizeof *x), *y = calloc(COUNT, sizeof *y), sum = 1, most = (float)r->number;
    CHECK(x && y);
    x[COUNT - 1] = (float)r->number;
    tr_collective list[] = {
        TR_COLLECTIVE(TR_ALL_REDUCE, .out = &sum, .count = 1),
        TR_COLLECTIVE(TR_SEND, .in = x, .count = COUNT, .peer = next),
        TR_COLLECTIVE(TR_RECV, .out = y, .count = COUNT, .peer = before),
        TR_COLLECTIVE(TR_ALL_REDUCE, .out = &most, .count = 1, .op = TR_MAX),
    };
    tr_work *all = tr_post_list(r->group, list, 4);
    OK(tr_wait(all));
    CHECK(tr_work_done(all));
    CHECK(sum == (float)r->world && most == (float)(r->world - 1) && y[COUNT - 1] == (float)before);
    OK(tr_wait(all));
    OK(tr_run_list(r->group, NULL, 0));
    list[2].count = -1; /* nothing of it starts */
    CHECK(tr_run_list(r->group, list, 4) == TR_INVALID);
    SAYS("entry 2 of 4: recv: a count of -1");
    CHECK(tr_run_list(r->group, NULL, 1) == TR_INVALID);
    OK(tr_barrier(r->group));
    free(x);
    free(y);
}

static void lists_finish_as_one(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) run(world, run_lists, NULL);
}

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

typedef struct mismatch {
    int64_t sent, received;
    tr_dtype sent_as;
    const char *words[2];
} mismatch;

static void differ(rank *r)
{
    const mismatch *m = r->arg;
    void *x = calloc(100000, sizeof(double));
    CHECK(x);
    tr_status status;
    if (r->number == 0) {
        status = tr_send(r->group, x, m->sent, .peer = 1, .dtype = m->sent_as, .tag = 5);
        if (status == TR_OK) status = tr_barrier(r->group); /* it was buffered */
    } else {
        status = tr_recv(r->group, x, m->received, .peer = 0, .tag = 5);
    }
    free(x);
    CHECK(status == TR_MISMATCH);
    SAYS(m->words[0]);
    SAYS(m->words[1]);
    SAYS("rank 0 send (");
    SAYS("rank 1 recv (");
    SAYS("to rank 1, tag 5 at ");
    CHECK(tr_send(r->group, &m, 1, .peer = 1 - r->number, .dtype = TR_U8) == TR_MISMATCH);
    SAYS("is broken");
}

static void messages_that_differ_are_errors_on_both_sides(void **state)
{
    (void)state;
    static const mismatch all[] = {
        {4, 5, TR_F32, {"f32[4]", "f32[5]"}},
        {4, 4, TR_I32, {"i32[4]", "f32[4]"}},
        {50000, 4, TR_F32, {"f32[50000]", "f32[4]"}},
        {4, 50000, TR_F32, {"f32[4]", "f32[50000]"}},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) run(2, differ, &all[i]);
}

static void wait_in_vain(rank *r)
{
    float x[4] = {0};
    OK(tr_barrier(r->group));
    if (r->number == 0) {
        OK(tr_recv(r->group, x, 4, .peer = 1, .tag = 7)); /* what was sent before it is here */
        CHECK(tr_recv(r->group, x, 4, .peer = 1, .tag = 9, .timeout_ms = 100) == TR_TIMEOUT);
        SAYS("recv (f32[4] from rank 1, tag 9 at ");
        SAYS("waited 0.1 s for rank 1 (pid ");
        SAYS("rank 1 has done barrier #1");
        SAYS("; what came from it is for another tag: send (f32[2] to rank 0, tag 6 at ");
        return;
    }
    OK(tr_send(r->group, x, 2, .peer = 0, .tag = 6));
    OK(tr_send(r->group, x, 4, .peer = 0, .tag = 7));
    TR_SCOPE;
    tr_work *work = tr_recv_async(r->group, x, 4, .peer = 0, .tag = 8);
    CHECK(tr_wait(work) == TR_TIMEOUT); /* the group is broken for all */
    SAYS("tag 9");
}

static void a_receive_without_a_message_is_a_timeout(void **state)
{
    (void)state;
    run(2, wait_in_vain, NULL);
}

/* The group goes while a receive waits. */
static void drop(rank *r)
{
    float x[4];
    tr_scope_push();
    tr_group *dropped = join_group(r, "dropped");
    tr_work *work = tr_status_of(dropped) == TR_OK && r->number == 0
                        ? tr_keep(tr_recv_async(dropped, x, 4, .peer = 1)) : NULL;
    tr_status status = TR_OK;
    if (r->number == 1) status = tr_recv(dropped, x, 4, .peer = 0);
    bool told = r->number == 0 || (status == TR_PEER && strstr(tr_error_message(), "without tr_leave()"));
    tr_scope_pop();
    CHECK(told);
    if (work) status = tr_wait(work);
    if (work) CHECK(status == TR_CANCELLED);
    tr_release(work);
}

static void a_dropped_group_gives_its_messages_up(void **state)
{
    (void)state;
    run(2, drop, NULL);
}

/* Of a send that was given up, the buffer is the program's again, and the receiver may not have heard of it. */
static atomic_int stage; /* of both ranks */

static void await_stage(int wanted)
{
    while (atomic_load(&stage) < wanted) sched_yield();
}

static void give_up(rank *r)
{
    enum { COUNT = 100000 };
    float *x = tr_shared_alloc(COUNT * sizeof *x);
    CHECK(x);
    for (int i = 0; i < COUNT; i++) x[i] = 1;
    tr__shm *shm;
    struct tr__tcp *tcp;
    tr__native_transports(r->group->state, &shm, &tcp);
    if (r->number == 0) {
        OK(tr_send(r->group, x, COUNT, .peer = 1)); /* makes the ring */
        await_stage(1);
        TR_SCOPE;
        tr_work *work = tr_send_async(r->group, x, COUNT, .peer = 1);
        await_stage(2);
        tr_abort(r->group, "enough");
        CHECK(tr_wait(work) != TR_OK);
        for (int i = 0; i < COUNT; i++) x[i] = 2;
        atomic_store(&stage, 3);
    } else {
        OK(tr_recv(r->group, x, COUNT, .peer = 0));
        const tr__shm_channel *ring = atomic_load(&shm->peers[0].inbound);
        uint64_t before = atomic_load(&ring->written);
        pthread_mutex_lock(&shm->endpoint->hearing); /* its monitor comes no further */
        atomic_store(&stage, 1);
        while (atomic_load(&ring->written) == before) sched_yield();
        atomic_store(&stage, 2);
        await_stage(3);
        tr_status status = tr_recv(r->group, x, COUNT, .peer = 0, .timeout_ms = 500);
        pthread_mutex_unlock(&shm->endpoint->hearing);
        CHECK(status != TR_OK);
    }
    tr_shared_free(x);
}

static void what_a_rank_has_given_up_is_not_received(void **state)
{
    (void)state;
    run(2, give_up, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_go_round),
        cmocka_unit_test(all_can_send_first),
        cmocka_unit_test(tags_are_kept_apart_and_in_order),
        cmocka_unit_test(messages_do_not_wait_for_collectives),
        cmocka_unit_test(a_sender_may_leave),
        cmocka_unit_test(lists_finish_as_one),
        cmocka_unit_test(messages_that_differ_are_errors_on_both_sides),
        cmocka_unit_test(a_receive_without_a_message_is_a_timeout),
        cmocka_unit_test(a_dropped_group_gives_its_messages_up),
        cmocka_unit_test(what_a_rank_has_given_up_is_not_received),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
