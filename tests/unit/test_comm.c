/* all_reduce and broadcast with threads as ranks, on every type and buffers of every kind, and work posted ahead. */
#include "comm_ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- all_reduce and broadcast ------------------------------------------------------------------------------------ */

typedef struct shape {
    buffer_kind kind;
    const int64_t *counts; /* ends with -1 */
    size_t shift;          /* bytes: buffers that begin in the middle of a cache line */
} shape;

static void reduce_once(rank *r, const shape *s, tr_dtype dtype, tr_reduce_op op, int64_t count, void *x)
{
    for (int64_t i = 0; i < count; i++) put(dtype, x, i, sample(dtype, r->number, i));
    OK(tr_all_reduce(r->group, x, count, .dtype = dtype, .op = op));
    for (int64_t i = 0; i < count; i++) {
        double wanted = reduced(dtype, op, r->world, i), got = get(dtype, x, i);
        if (near_enough(dtype, got, wanted)) continue;
        snprintf(r->failure, sizeof r->failure, "kind %d, %s op %d count %d: rank %d of %d has %g at %d, not %g",
            (int)s->kind, tr_dtype_name(dtype), (int)op, (int)count, r->number, r->world, got, (int)i, wanted);
        return;
    }
}

static void reduce_everything(rank *r)
{
    const shape *s = r->arg;
    for (int c = 0; s->counts[c] >= 0; c++) {
        int64_t count = s->counts[c];
        char *memory = make_buffer(s->kind, r, (size_t)count * 8 + s->shift);
        CHECK(memory);
        for (int dtype = 0; dtype < TR_DTYPE_COUNT; dtype++)
            for (int op = 0; op < TR_REDUCE_OP_COUNT && !r->failure[0]; op++)
                if (!(dtype == TR_BOOL && op == TR_AVG) && !(op >= TR_BAND && tr_dtype_is_float(dtype)))
                    reduce_once(r, s, dtype, op, count, memory + s->shift);
        free_buffer(s->kind, r, memory);
        CHECK(!r->failure[0]);
    }
    OK(tr_leave(r->group));
}

static void all_reduce_reduces_all(void **state)
{
    (void)state;
    static const int64_t small[] = {0, 1, 5, 33, 1024, 1025, -1}, large[] = {40000, -1};
    for (int world = 1; world <= RANKS_MOST; world++) {
        for (buffer_kind kind = 0; kind < KINDS; kind++) {
            run(world, reduce_everything, &(shape){kind, small, 0});
            run(world, reduce_everything, &(shape){kind, small, 24});
        }
    }
    for (buffer_kind kind = 0; kind < KINDS; kind++) {
        run(2, reduce_everything, &(shape){kind, large, 0});
        run(3, reduce_everything, &(shape){kind, large, 8});
    }
}

static float noise(int number, int64_t i)
{
    uint32_t bits = (uint32_t)(i * 2654435761u) ^ (uint32_t)number * 0x9e3779b9u;
    return (float)(bits >> 4) * 0x1p-20f - 100.0f;
}

/* The ranks' bits are those of folding in rank order, whatever the timing. */
static void same_bits(rank *r)
{
    enum { COUNT = 150007 };
    buffer_kind kind = *(const buffer_kind *)r->arg;
    float *x = make_buffer(kind, r, COUNT * sizeof *x);
    CHECK(x);
    for (int turn = 0; turn < 4; turn++) {
        for (int64_t i = 0; i < COUNT; i++) x[i] = noise(r->number + turn, i);
        int64_t count = turn == 3 ? 777 : COUNT - turn * 1000; /* the last is small enough to go along inline */
        OK(tr_all_reduce(r->group, x, count, .op = TR_AVG));
        for (int64_t i = 0; i < count; i++) {
            float wanted = noise(turn, i);
            for (int n = 1; n < r->world; n++) wanted += noise(n + turn, i);
            wanted *= (float)(1.0 / r->world);
            CHECK(x[i] == wanted);
        }
    }
    free_buffer(kind, r, x);
}

static void results_have_the_same_bits_everywhere(void **state)
{
    (void)state;
    for (int world = 2; world <= RANKS_MOST; world++)
        for (buffer_kind kind = 0; kind < KINDS; kind++) run(world, same_bits, &kind);
}

static void broadcast_everything(rank *r)
{
    static const int64_t counts[] = {0, 1, 4, 512, 513, 100000, 300001};
    buffer_kind kind = *(const buffer_kind *)r->arg;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        int64_t *x = make_buffer(kind, r, (size_t)counts[c] * sizeof *x);
        CHECK(x);
        for (int root = 0; root < r->world; root++) {
            for (int64_t i = 0; i < counts[c]; i++) x[i] = r->number == root ? i * 3 + root : -1;
            OK(tr_broadcast(r->group, x, counts[c], .dtype = TR_I64, .root = root));
            for (int64_t i = 0; i < counts[c]; i++) CHECK(x[i] == i * 3 + root);
        }
        free_buffer(kind, r, x);
    }
    OK(tr_leave(r->group));
}

static void broadcast_reaches_all(void **state)
{
    (void)state;
    for (int world = 1; world <= RANKS_MOST; world++)
        for (buffer_kind kind = 0; kind < KINDS; kind++) run(world, broadcast_everything, &kind);
}

static void out_of_place(rank *r)
{
    static const int64_t counts[] = {3, 500, 5000, 200000};
    buffer_kind kind = *(const buffer_kind *)r->arg;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        int64_t n = counts[c];
        int32_t *in = make_buffer(kind, r, (size_t)n * sizeof *in),
                *out = make_buffer(kind, r, (size_t)n * sizeof *out);
        CHECK(in && out);
        for (int64_t i = 0; i < n; i++) in[i] = (int32_t)i + r->number;
        OK(tr_all_reduce(r->group, out, n, .in = in, .dtype = TR_I32, .op = TR_MAX));
        for (int64_t i = 0; i < n; i++) CHECK(in[i] == (int32_t)i + r->number && out[i] == (int32_t)i + r->world - 1);
        OK(tr_broadcast(r->group, out, n, .in = in, .dtype = TR_I32, .root = r->world - 1));
        for (int64_t i = 0; i < n; i++) CHECK(in[i] == (int32_t)i + r->number && out[i] == (int32_t)i + r->world - 1);
        free_buffer(kind, r, in);
        free_buffer(kind, r, out);
    }
}

static void input_and_output_may_differ(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++)
        for (buffer_kind kind = 0; kind < KINDS; kind++) run(world, out_of_place, &kind);
}

/* What was written before a barrier is seen after it: plain memory of one process, so ThreadSanitizer watches, too. */
static void meet(rank *r)
{
    int *board = (int *)r->arg;
    for (int turn = 1; turn <= 50; turn++) {
        board[r->number] = turn;
        OK(tr_barrier(r->group));
        for (int n = 0; n < r->world; n++) CHECK(board[n] == turn);
        OK(tr_barrier(r->group));
    }
}

static void barriers_order_memory(void **state)
{
    (void)state;
    for (int world = 1; world <= RANKS_MOST; world++) {
        int board[RANKS_MOST] = {0};
        run(world, meet, board);
    }
}

/* Segments come and go; the number of one that is gone is never taken for a new one. */
static void buffers_come_and_go(rank *r)
{
    enum { COUNT = 5000 };
    for (int turn = 0; turn < 40; turn++) {
        float *x = tr_shared_alloc(COUNT * sizeof *x);
        CHECK(x);
        for (int i = 0; i < COUNT; i++) x[i] = (float)(turn + r->number);
        OK(tr_all_reduce(r->group, x, COUNT));
        for (int i = 0; i < COUNT; i++) CHECK(x[i] == (float)(turn * r->world + r->world * (r->world - 1) / 2));
        tr_shared_free(x);
    }
}

static void segments_are_mapped_and_unmapped(void **state)
{
    (void)state;
    run(3, buffers_come_and_go, NULL);
}

static void memory_that_is_not_there_is_an_error(void **state)
{
    (void)state;
    for (int shift = 50; shift < 64; shift += 13) {
        assert_null(tr_shared_alloc((size_t)1 << shift)); /* neither a SIGBUS later nor the kernel's OOM killer now */
        if (!strstr(tr_error_message(), "shared memory")) fail_msg("'%s'", tr_error_message());
    }
    tr_shared_free(NULL);
}

/* ---- Posted work ------------------------------------------------------------------------------------------------- */

typedef struct waiter {
    tr_work *work;
    tr_status status;
} waiter;

static void *wait_elsewhere(void *arg)
{
    waiter *w = arg;
    w->status = tr_wait(w->work);
    return NULL;
}

static void post_ahead(rank *r)
{
    enum { WORKS = 24, COUNT = 20000 };
    float *x[WORKS], flag = 1;
    tr_work *works[WORKS];
    for (int turn = 0; turn < 3; turn++) {
        TR_SCOPE;
        for (int w = 0; w < WORKS; w++) {
            x[w] = make_buffer(w % 2 ? SHARED : PRIVATE, r, COUNT * sizeof **x);
            CHECK(x[w]);
            for (int i = 0; i < COUNT; i++) x[w][i] = (float)(i % 100 + w + r->number);
            works[w] = tr_all_reduce_async(r->group, x[w], w % 5 ? COUNT : 10, .op = TR_MAX);
        }
        flag = (float)r->number;
        OK(tr_all_reduce(r->group, &flag, 1)); /* behind all that was posted */
        CHECK(flag == (float)(r->world * (r->world - 1)) / 2);
        for (int w = 0; w < WORKS; w++) CHECK(tr_work_done(works[w]));
        waiter elsewhere = {.work = works[3]};
        pthread_t thread;
        pthread_create(&thread, NULL, wait_elsewhere, &elsewhere);
        pthread_join(thread, NULL);
        CHECK(elsewhere.status == TR_OK);
        for (int w = WORKS - 1; w >= 0; w--) {
            OK(tr_wait(works[w]));
            OK(tr_wait(works[w]));
            for (int i = 0; i < COUNT; i++)
                CHECK(x[w][i] == (float)(i % 100 + w + (w % 5 || i < 10 ? r->world - 1 : r->number)));
            free_buffer(w % 2 ? SHARED : PRIVATE, r, x[w]);
        }
    }
    OK(tr_leave(r->group));
}

static void posted_work_runs_in_order(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++) run(world, post_ahead, NULL);
}

static void post_and_leave(rank *r)
{
    float x[4] = {1, 2, 3, 4};
    tr_work *work = tr_broadcast_async(r->group, x, 4, .root = 0);
    OK(tr_leave(r->group)); /* waits for it */
    CHECK(tr_work_done(work));
    OK(tr_wait(work));
    work = tr_all_reduce_async(r->group, x, 4);
    CHECK(tr_wait(work) == TR_STATE);
    SAYS("has left");
    CHECK(tr_all_reduce(r->group, x, 4) == TR_STATE);
    CHECK(tr_leave(r->group) == TR_STATE);
}

static void leaving_waits_for_posted_work(void **state)
{
    (void)state;
    run(1, post_and_leave, NULL);
    run(3, post_and_leave, NULL);
}

/* Rank 0 lets go of its group while a call waits in vain for rank 1, and another one behind it. */
static void drop(rank *r)
{
    float x[4] = {0};
    TR_SCOPE;
    if (r->number == 1) {
        OK(tr_store_wait(r->store, "dropped", JOIN_MS)); /* a barrier is another call than those */
        CHECK(tr_barrier(r->group) == TR_PEER);
        SAYS("without tr_leave()");
        return;
    }
    tr_scope_push();
    tr_group *dropped = join_group(r, "dropped");
    tr_work *first = tr_keep(tr_all_reduce_async(dropped, x, 4)), *second = tr_keep(tr_all_reduce_async(dropped, x, 4));
    tr_scope_pop();
    OK(tr_store_set(r->store, "dropped", "", 0));
    bool given_up = tr_wait(first) == TR_CANCELLED && tr_wait(second) == TR_CANCELLED;
    tr_release(first);
    tr_release(second);
    CHECK(given_up);
}

static void *drop_rank(void *arg)
{
    rank *r = arg;
    if (r->number == 1) {
        TR_SCOPE;
        r->group = join_group(r, "dropped");
        drop(r);
    } else {
        drop(r);
    }
    return NULL;
}

static void a_dropped_group_gives_its_work_up(void **state)
{
    (void)state;
    TR_SCOPE;
    rank ranks[2] = {{.number = 0, .world = 2}, {.number = 1, .world = 2}};
    pthread_t threads[2];
    ranks[0].store = ranks[1].store = tr_store_memory();
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, drop_rank, &ranks[i]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++)
        if (ranks[i].failure[0]) fail_msg("%s", ranks[i].failure);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_reduce_reduces_all),
        cmocka_unit_test(results_have_the_same_bits_everywhere),
        cmocka_unit_test(broadcast_reaches_all),
        cmocka_unit_test(input_and_output_may_differ),
        cmocka_unit_test(barriers_order_memory),
        cmocka_unit_test(segments_are_mapped_and_unmapped),
        cmocka_unit_test(memory_that_is_not_there_is_an_error),
        cmocka_unit_test(posted_work_runs_in_order),
        cmocka_unit_test(leaving_waits_for_posted_work),
        cmocka_unit_test(a_dropped_group_gives_its_work_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
