/* Calls that do not match, bad arguments, ranks that leave or stay away, and memory that goes. */
#include "base/clock.h"
#include "comm/backend/backend.h"
#include "comm/group/group.h"
#include "comm/transport/shm.h"
#include "comm_ranks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Calls that do not match ------------------------------------------------------------------------------------- */

typedef struct clash {
    tr_collective mine, theirs; /* rank 0's, the others' */
    const char *words[2];
} clash;

static void call_differently(rank *r)
{
    const clash *c = r->arg;
    double data[2048] = {0};
    tr_collective call = r->number == 0 ? c->mine : c->theirs;
    call.size = sizeof call;
    call.out = data;
    call.file = r->number == 0 ? "src/mine.c" : "src/theirs.c";
    call.line = r->number == 0 ? 11 : 22;
    OK(tr_barrier(r->group));
    CHECK(tr_run_collective(r->group, &call) == TR_MISMATCH);
    SAYS(c->words[0]);
    SAYS(c->words[1]);
    SAYS("rank 0");
    SAYS("src/mine.c:11");
    SAYS("src/theirs.c:22");
    CHECK(tr_barrier(r->group) == TR_MISMATCH);
    SAYS("is broken");
    SAYS("src/theirs.c:22");
    CHECK(tr_wait(tr_all_reduce_async(r->group, data, 1, .dtype = TR_F64)) == TR_MISMATCH);
}

static void different_calls_are_errors_everywhere(void **state)
{
    (void)state;
    const clash clashes[] = {
        {{.kind = TR_ALL_REDUCE, .count = 4}, {.kind = TR_BROADCAST, .count = 4}, {"all_reduce #2", "broadcast #2"}},
        {{.kind = TR_BARRIER}, {.kind = TR_ALL_REDUCE, .count = 2048}, {"barrier #2", "f32[2048]"}},
        {{.kind = TR_ALL_REDUCE, .count = 4}, {.kind = TR_ALL_REDUCE, .count = 5}, {"f32[4]", "f32[5]"}},
        {{.kind = TR_ALL_REDUCE, .count = 3}, {.kind = TR_ALL_REDUCE, .count = 2000}, {"f32[3]", "f32[2000]"}},
        {{.kind = TR_ALL_REDUCE, .count = 4, .dtype = TR_F16}, {.kind = TR_ALL_REDUCE, .count = 4, .dtype = TR_BF16},
            {"f16[4]", "bf16[4]"}},
        {{.kind = TR_ALL_REDUCE, .count = 4}, {.kind = TR_ALL_REDUCE, .count = 4, .op = TR_MAX}, {"sum of", "max of"}},
        {{.kind = TR_BROADCAST, .count = 2000}, {.kind = TR_BROADCAST, .count = 2000, .root = 1},
            {"from rank 0", "from rank 1"}},
        {{.kind = TR_REDUCE, .count = 9}, {.kind = TR_REDUCE, .count = 9, .root = 1}, {"to rank 0", "to rank 1"}},
        {{.kind = TR_ALL_GATHER, .count = 4}, {.kind = TR_ALL_TO_ALL, .count = 4}, {"all_gather #2", "all_to_all #2"}},
        {{.kind = TR_GATHER, .count = 4}, {.kind = TR_SCATTER, .count = 4}, {"gather #2", "scatter #2"}},
        {{.kind = TR_ALL_TO_ALL, .count = 1, .dtype = TR_U8}, {.kind = TR_ALL_TO_ALL, .count = 1000},
            {"u8[1]", "f32[1000]"}},
    };
    for (int world = 2; world <= 4; world++)
        for (size_t c = 0; c < sizeof clashes / sizeof *clashes; c++) run(world, call_differently, &clashes[c]);
}

typedef struct block_clash {
    tr_collective_kind kind;
    int64_t unit;         /* elements */
    const char *words[2];
} block_clash;

/* Rank 1 gives, or gets, or says, one unit more than the others believe. */
static void differ_in_blocks(rank *r)
{
    const block_clash *c = r->arg;
    float *x = calloc((size_t)c->unit * 8, sizeof *x), *y = calloc((size_t)c->unit * 8, sizeof *y);
    int64_t even[] = {c->unit, c->unit, c->unit}, odd[] = {c->unit, 2 * c->unit, c->unit};
    bool more = r->number == 1 && c->kind != TR_ALL_TO_ALL_V;
    int64_t to_zero[] = {r->number == 1 ? 2 * c->unit : c->unit, c->unit, c->unit};
    tr_collective call = {.size = sizeof call, .kind = c->kind, .in = x, .out = y,
        .count = more ? 2 * c->unit : c->unit, .in_counts = c->kind == TR_ALL_TO_ALL_V ? to_zero : even,
        .out_counts = more ? odd : even, .file = "src/here.c", .line = 10 + r->number};
    tr_status status = x && y ? tr_run_collective(r->group, &call) : TR_NO_MEMORY;
    free(x);
    free(y);
    CHECK(status == TR_MISMATCH);
    SAYS(c->words[0]);
    SAYS(c->words[1]);
    SAYS("src/here.c:10");
    SAYS("src/here.c:11");
    CHECK(tr_barrier(r->group) == TR_MISMATCH);
}

static void blocks_that_differ_are_errors_everywhere(void **state)
{
    (void)state;
    for (int64_t unit = 1; unit < 100000; unit *= 300) {
        run(3, differ_in_blocks, &(block_clash){TR_ALL_GATHER_V, unit, {".out_counts differ", "all_gather_v #1"}});
        run(3, differ_in_blocks, &(block_clash){TR_GATHER_V, unit, {"where rank 0 expects", "gather_v #1"}});
        run(3, differ_in_blocks, &(block_clash){TR_SCATTER_V, unit, {"where rank 1 expects", "scatter_v #1"}});
        run(3, differ_in_blocks, &(block_clash){TR_ALL_TO_ALL_V, unit, {"rank 1 gives", "where rank 0 expects"}});
    }
}

static void bad_arguments(rank *r)
{
    float x[4] = {1, 1, 1, 1};
    tr_group *g = r->group;
    CHECK(tr_all_reduce(g, x, -1) == TR_INVALID);
    SAYS("count of -1");
    CHECK(tr_all_reduce(g, NULL, 4) == TR_INVALID);
    SAYS("NULL");
    CHECK(tr_all_reduce(g, x, INT64_MAX) == TR_INVALID);
    CHECK(tr_all_reduce(g, x, 4, .dtype = (tr_dtype)99) == TR_INVALID);
    SAYS("99");
    CHECK(tr_all_reduce(g, x, 4, .op = (tr_reduce_op)99) == TR_INVALID);
    CHECK(tr_all_reduce(g, x, 4, .dtype = TR_BOOL, .op = TR_AVG) == TR_DTYPE);
    SAYS("avg of bool");
    CHECK(tr_broadcast(g, x, 4, .root = r->world) == TR_INVALID);
    SAYS("root 2");
    CHECK(tr_broadcast(g, x, 4, .root = -1) == TR_INVALID);
    CHECK(tr_all_reduce(g, x, 4, .timeout_ms = -1) == TR_INVALID);
    CHECK(tr_wait(tr_all_reduce_async(g, x, -1)) == TR_INVALID);
    CHECK(tr_run_collective(g, NULL) == TR_INVALID);
    CHECK(tr_run_collective(g, &(tr_collective){.size = sizeof(tr_collective), .kind = 99}) == TR_UNSUPPORTED);
    CHECK(tr_all_reduce(NULL, x, 4) == TR_INVALID);
    OK(tr_wait(NULL));
    CHECK(tr_work_done(NULL));
    OK(tr_all_reduce(g, x, 4)); /* no such call has touched the group */
    CHECK(x[3] == (float)r->world);
    OK(tr_all_reduce(g, NULL, 0));
    OK(tr_leave(g));
}

static void bad_arguments_leave_the_group_whole(void **state)
{
    (void)state;
    run(2, bad_arguments, NULL);
}

/* ---- Ranks that go or stay away ---------------------------------------------------------------------------------- */

static void one_leaves(rank *r)
{
    float *x = calloc(10000, sizeof *x);
    tr_status status = tr_all_reduce(r->group, x, 10000);
    if (status == TR_OK && r->number == 1) {
        status = tr_leave(r->group);
    } else if (status == TR_OK) {
        status = tr_all_reduce(r->group, x, 10000);
        if (status == TR_PEER && strstr(tr_error_message(), "rank 1") && strstr(tr_error_message(), "all_reduce #2"))
            status = tr_barrier(r->group) == TR_PEER ? TR_OK : TR_INTERNAL; /* and so for ever */
    }
    free(x);
    OK(status);
}

static void a_rank_that_left_is_missed_by_name(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) run(world, one_leaves, NULL);
}

/* The last call of a group must be safe to be the last: whoever is done first leaves while others still collect. */
static void leave_at_once(rank *r)
{
    enum { COUNT = 300000 };
    float *x = malloc(COUNT * sizeof *x);
    CHECK(x);
    for (int i = 0; i < COUNT; i++) x[i] = 1;
    tr_status status = tr_all_reduce(r->group, x, COUNT);
    if (status == TR_OK) status = tr_leave(r->group);
    bool right = true;
    for (int i = 0; i < COUNT; i++) right &= x[i] == (float)r->world;
    free(x);
    OK(status);
    CHECK(right);
}

static void leaving_right_after_a_call_harms_nobody(void **state)
{
    (void)state;
    for (int turn = 0; turn < 10; turn++) run(2 + turn % 4, leave_at_once, NULL);
}

static void one_stays_away(rank *r)
{
    float x[4] = {0};
    OK(tr_all_reduce(r->group, x, 4));
    if (r->number == 1) {
        wait_until_given_up(r);
        CHECK(tr_barrier(r->group) == TR_TIMEOUT); /* why they gave up, not what they had called */
        SAYS("all_reduce #2 (sum of f32[4] at ");
        SAYS("rank 1 (pid ");
        return;
    }
    CHECK(tr_all_reduce(r->group, x, 4, .timeout_ms = *(const int *)r->arg) == TR_TIMEOUT);
    SAYS("all_reduce #2 (sum of f32[4] at ");
    SAYS("rank 1 (pid ");
    SAYS("all_reduce #1");
    CHECK(tr_barrier(r->group) == TR_TIMEOUT);
    SAYS("is broken");
    say_given_up(r);
}

/* Of more than two, one that is kept from the call for the whole of the timeout is named, too. */
static void a_rank_that_stays_away_is_a_timeout(void **state)
{
    (void)state;
    for (int turn = 0; turn < 14; turn++) {
        int world = turn < 8 ? 2 : 3 + turn % 2, timeout_ms = world == 2 ? 100 : 1000;
        run(world, one_stays_away, &timeout_ms);
    }
}

/* The monitor saw that nobody uses mappings, and just then a call began: what it finds stays until it is over. */
static void sweep_late(rank *r)
{
    struct tr__tcp *tcp;
    struct tr__shm *t;
    enum { COUNT = 100000 };
    float *x = make_buffer(SHARED, r, COUNT * sizeof *x);
    CHECK(x);
    memset(x, 0, COUNT * sizeof *x);
    OK(tr_all_reduce(r->group, x, COUNT));
    if (r->number == 0) {
        tr__native_transports(r->group->state, &t, &tcp);
        tr__endpoint_peer *peer = t->peers[1].link;
        size_t blocks = 0;
        for (size_t i = 0; i < peer->mapping_count; i++) blocks += peer->mappings[i].stays;
        CHECK(peer->mapping_count > blocks);
        tr__shm_use(t);
        tr__endpoint_unmapped(t->endpoint, peer, 0);
        tr__endpoint_sweep(t->endpoint);
        CHECK(peer->mapping_count > blocks);
        tr__shm_idle(t);
        CHECK(peer->mapping_count == blocks);
    }
    OK(tr_barrier(r->group));
    free_buffer(SHARED, r, x);
    OK(tr_leave(r->group));
}

static void nothing_is_unmapped_under_a_call(void **state)
{
    (void)state;
    run(2, sweep_late, NULL);
}

/* A call that has waited for its whole timeout elsewhere does not wait as long again for a buffer that never comes. */
static void look_for_no_buffer(rank *r)
{
    enum { TIMEOUT_MS = 600000 };
    struct tr__tcp *tcp;
    struct tr__shm *t;
    tr__native_transports(r->group->state, &t, &tcp);
    OK(tr_barrier(r->group));
    if (r->number == 0) {
        const tr__shm_place nowhere = {.segment = 1234567};
        int64_t long_ago = tr__now_ns() - (TIMEOUT_MS + 1) * (int64_t)1000000;
        tr__shm_view view;
        char byte;
        CHECK(tr__shm_find(t, &(tr__shm_call){.began = long_ago, .timeout_ms = TIMEOUT_MS}, 1, nowhere, 1, &view) ==
              TR_TIMEOUT);
        SAYS("did not show its buffer within 600 s");
        CHECK(tr__shm_fetch(t, 1, nowhere, 1, &byte, long_ago, TIMEOUT_MS) == TR_TIMEOUT);
        tr__shm_call fresh = {.timeout_ms = 1};
        CHECK(tr__shm_find(t, &fresh, 1, nowhere, 1, &view) == TR_TIMEOUT);
        CHECK(fresh.began); /* what else this call waits for has less time left */
        atomic_store(&t->control->stuck.buffer, 0);
    }
    OK(tr_barrier(r->group));
    OK(tr_leave(r->group));
}

static void a_buffer_gets_what_is_left_of_the_timeout(void **state)
{
    (void)state;
    run(2, look_for_no_buffer, NULL);
}

/* Rank 0 looks at words that it writes in the name of rank 1, which is in no call meanwhile: that it waits for rank 2. */
static void write_words(rank *r)
{
    struct tr__tcp *tcp;
    struct tr__shm *t;
    tr__native_transports(r->group->state, &t, &tcp);
    tr__shm_control *one = t->peers[1].control;
    atomic_uint *sent = &t->peers[2].link->page->counts[1].sent;
    CHECK(tr__shm_culprit(t, 1) == 1);
    atomic_store(&one->stuck.mail, atomic_load(&one->mail));
    atomic_store(&one->stuck.message, 3);
    CHECK(tr__shm_culprit(t, 1) == 2);
    atomic_fetch_add(sent, 1); /* a channel, say */
    CHECK(tr__shm_culprit(t, 1) == 1);
    atomic_fetch_sub(sent, 1);
    atomic_fetch_add(&one->mail, 1);
    CHECK(tr__shm_culprit(t, 1) == 1);
    atomic_store(&one->stuck.buffer, 3);
    CHECK(tr__shm_culprit(t, 1) == 2);
    atomic_fetch_add(sent, 1);
    CHECK(tr__shm_culprit(t, 1) == 1);
    atomic_store(&one->stuck.buffer, 77); /* no rank */
    CHECK(tr__shm_culprit(t, 1) == 1);
    atomic_fetch_sub(sent, 1);
    atomic_store(&one->stuck.buffer, 0);
    atomic_store(&one->stuck.message, 0);
}

typedef struct looking {
    atomic_int idle; /* ranks that are in no call, nor on their way out of one */
    atomic_bool done;
} looking;

static void look_at_words(rank *r)
{
    looking *l = (looking *)r->arg;
    atomic_fetch_add(&l->idle, 1);
    while (r->number == 0 && atomic_load(&l->idle) < r->world) usleep(100);
    if (r->number == 0) {
        write_words(r);
        atomic_store(&l->done, true);
    }
    while (!atomic_load(&l->done)) usleep(100);
    OK(tr_leave(r->group));
}

/* A rank that is stopped cannot say so any more. */
static void a_word_counts_until_what_it_waits_for_has_come(void **state)
{
    (void)state;
    looking l = {0};
    run(3, look_at_words, &l);
}

/* ---- Waiting for a while, and giving up -------------------------------------------------------------------------- */

/* Rank 1 comes only when the others have seen that their work is not done yet. */
static void wait_for_a_while(rank *r)
{
    atomic_int *seen = (atomic_int *)r->arg;
    float x[4] = {1, 1, 1, 1};
    while (r->number == 1 && atomic_load(seen) < r->world - 1) usleep(1000);
    tr_work *work = tr_all_reduce_async(r->group, x, 4);
    if (r->number != 1) {
        CHECK(tr_wait_for(work, 0) == TR_TIMEOUT);
        CHECK(tr_wait_for(work, 20) == TR_TIMEOUT);
        SAYS("all_reduce is not done after 0.02 s");
        CHECK(!tr_work_done(work));
        atomic_fetch_add(seen, 1);
    }
    OK(tr_wait_for(work, 20000));
    OK(tr_wait_for(work, 0));
    CHECK(x[0] == (float)r->world);
    CHECK(tr_wait_for(work, -1) == TR_INVALID);
    OK(tr_wait_for(NULL, 0));
    tr_collective both[] = {TR_COLLECTIVE(TR_ALL_REDUCE, .out = x, .count = 4), TR_COLLECTIVE(TR_BARRIER)};
    OK(tr_wait_for(tr_post_list(r->group, both, 2), 20000));
    OK(tr_leave(r->group));
}

static void waiting_for_a_while_leaves_the_work_alone(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) {
        atomic_int seen = 0;
        run(world, wait_for_a_while, &seen);
        atomic_store(&seen, 0);
        run_tcp(world, wait_for_a_while, NULL, &seen);
    }
}

/* Rank 0 waits in a call and has posted another; a thread of its own gives both up. */
static void *abort_soon(void *group)
{
    usleep(30000);
    tr_abort(group, "the user lost interest");
    return NULL;
}

static void abort_a_call(rank *r)
{
    float x[4] = {0};
    atomic_bool *given_up = (atomic_bool *)r->arg;
    OK(tr_barrier(r->group));
    if (r->number == 0) {
        pthread_t thread;
        tr_work *first = tr_barrier_async(r->group), *second = tr_all_reduce_async(r->group, x, 4);
        CHECK(pthread_create(&thread, NULL, abort_soon, r->group) == 0);
        tr_status one = tr_wait(first), two = tr_wait(second);
        pthread_join(thread, NULL);
        atomic_store(given_up, true);
        CHECK(one == TR_CANCELLED);
        CHECK(two == TR_CANCELLED);
        SAYS("the user lost interest");
        CHECK(tr_barrier(r->group) == TR_CANCELLED);
    } else {
        while (!atomic_load(given_up)) usleep(1000); /* two barriers would end well */
        tr_status status = tr_barrier(r->group); /* over TCP rank 0 may have come before it gave up, and the news later */
        if (status == TR_OK) status = tr_barrier(r->group);
        CHECK(status == TR_PEER);
        SAYS("rank 0 (pid ");
        SAYS("the user lost interest");
    }
    OK(tr_leave(r->group));
    tr_abort(r->group, "too late to matter");
    tr_abort(NULL, NULL);
}

static void a_call_is_given_up_from_another_thread(void **state)
{
    (void)state;
    for (int world = 2; world <= 3; world++) {
        atomic_bool given_up[2] = {false, false};
        run(world, abort_a_call, &given_up[0]);
        run_tcp(world, abort_a_call, NULL, &given_up[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(different_calls_are_errors_everywhere),
        cmocka_unit_test(blocks_that_differ_are_errors_everywhere),
        cmocka_unit_test(bad_arguments_leave_the_group_whole),
        cmocka_unit_test(a_rank_that_left_is_missed_by_name),
        cmocka_unit_test(leaving_right_after_a_call_harms_nobody),
        cmocka_unit_test(a_rank_that_stays_away_is_a_timeout),
        cmocka_unit_test(nothing_is_unmapped_under_a_call),
        cmocka_unit_test(a_buffer_gets_what_is_left_of_the_timeout),
        cmocka_unit_test(a_word_counts_until_what_it_waits_for_has_come),
        cmocka_unit_test(waiting_for_a_while_leaves_the_work_alone),
        cmocka_unit_test(a_call_is_given_up_from_another_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
