/* Groups with threads as ranks: every operation on every type, buffers of every kind, work posted ahead, calls that
 * do not match, ranks that leave or stay away, and joining again and again. */
#include "base/clock.h"
#include "base/half.h"

#include <trireme/comm.h>

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS_MOST = 5, JOIN_MS = 60000 };

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

typedef struct rank rank;
typedef void (*rank_body)(rank *r);

struct rank {
    int number, world;
    tr_store *store;
    tr_group *group;
    rank_body body;
    const void *arg;
    char failure[2048];
};

/* In a rank's thread, where cmocka's checks must not be used: notes the first failure and ends the body. */
#define CHECK(condition)                                                                                       \
    do {                                                                                                       \
        if (!(condition)) {                                                                                    \
            snprintf(r->failure, sizeof r->failure, "line %d: rank %d of %d: %s (%s)", __LINE__, r->number, r->world, \
                #condition, tr_error_message());                                                               \
            return;                                                                                            \
        }                                                                                                      \
    } while (0)
#define OK(expression) CHECK((expression) == TR_OK)
#define SAYS(words) CHECK(strstr(tr_error_message(), words))

static tr_group *join(const rank *r, const char *name)
{
    return tr_join(.store = r->store, .rank = r->number, .world_size = r->world, .name = name, .timeout_ms = JOIN_MS);
}

static void run_rank(rank *r)
{
    TR_SCOPE;
    r->group = join(r, NULL);
    OK(tr_status_of(r->group));
    r->body(r);
}

static void *rank_thread(void *arg)
{
    run_rank(arg);
    return NULL;
}

static void run_on(tr_store *store, int world, rank_body body, const void *arg)
{
    rank ranks[RANKS_MOST] = {0};
    pthread_t threads[RANKS_MOST];
    for (int i = 0; i < world; i++) {
        ranks[i] = (rank){.number = i, .world = world, .store = store, .body = body, .arg = arg};
        assert_int_equal(pthread_create(&threads[i], NULL, rank_thread, &ranks[i]), 0);
    }
    for (int i = 0; i < world; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < world; i++)
        if (ranks[i].failure[0]) fail_msg("%s", ranks[i].failure);
}

static void run(int world, rank_body body, const void *arg)
{
    TR_SCOPE;
    run_on(tr_store_memory(), world, body, arg);
}

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

static double get(tr_dtype dtype, const void *memory, int64_t i)
{
    switch (dtype) {
    case TR_F32: return ((const float *)memory)[i];
    case TR_F64: return ((const double *)memory)[i];
    case TR_F16: return (double)tr__f16_to_f32(((const uint16_t *)memory)[i]);
    case TR_BF16: return (double)tr__bf16_to_f32(((const uint16_t *)memory)[i]);
    case TR_I64: return (double)((const int64_t *)memory)[i];
    case TR_I32: return ((const int32_t *)memory)[i];
    default: return ((const uint8_t *)memory)[i];
    }
}

static void put(tr_dtype dtype, void *memory, int64_t i, double value)
{
    switch (dtype) {
    case TR_F32: ((float *)memory)[i] = (float)value; break;
    case TR_F64: ((double *)memory)[i] = value; break;
    case TR_F16: ((uint16_t *)memory)[i] = tr__f32_to_f16((float)value); break;
    case TR_BF16: ((uint16_t *)memory)[i] = tr__f32_to_bf16((float)value); break;
    case TR_I64: ((int64_t *)memory)[i] = (int64_t)value; break;
    case TR_I32: ((int32_t *)memory)[i] = (int32_t)value; break;
    default: ((uint8_t *)memory)[i] = (uint8_t)value; break;
    }
}

/* Exact in every type: 0, 1 or 2. */
static double sample(tr_dtype dtype, int number, int64_t i)
{
    int n = (int)((i * 7 + number * 5 + (i >> 6)) % 3);
    return dtype == TR_BOOL ? n == 0 : n;
}

static double reduced(tr_dtype dtype, tr_reduce_op op, int world, int64_t i)
{
    double sum = 0, product = 1, least = 9, most = 0;
    for (int n = 0; n < world; n++) {
        double x = sample(dtype, n, i);
        sum += x;
        product *= x;
        least = fmin(least, x);
        most = fmax(most, x);
    }
    if (op == TR_SUM) return dtype == TR_BOOL ? most : sum;
    if (op == TR_AVG) return tr_dtype_is_float(dtype) ? sum / world : trunc(sum / world);
    return op == TR_MIN ? least : op == TR_MAX ? most : product;
}

static bool near_enough(tr_dtype dtype, double a, double b)
{
    double digits = dtype == TR_BF16 ? 0x1p-8 : dtype == TR_F16 ? 0x1p-11 : dtype == TR_F32 ? 0x1p-22 : 0x1p-50;
    return fabs(a - b) <= digits * fabs(b);
}

/* ---- Buffers ----------------------------------------------------------------------------------------------------- */

typedef enum buffer_kind { PRIVATE, SHARED, MIXED, KINDS } buffer_kind;

static bool is_shared(buffer_kind kind, const rank *r)
{
    return kind == SHARED || (kind == MIXED && r->number % 2 == 0);
}

static void *make_buffer(buffer_kind kind, const rank *r, size_t bytes)
{
    return is_shared(kind, r) ? tr_shared_alloc(bytes) : malloc(bytes + 1);
}

static void free_buffer(buffer_kind kind, const rank *r, void *memory)
{
    if (is_shared(kind, r))
        tr_shared_free(memory);
    else
        free(memory);
}

/* ---- all_reduce and broadcast ------------------------------------------------------------------------------------ */

typedef struct shape {
    buffer_kind kind;
    const int64_t *counts; /* ends with -1 */
    size_t shift;          /* bytes: buffers that begin in the middle of a cache line */
} shape;

static void reduce_once(rank *r, const shape *s, tr_dtype dtype, tr_reduce_op op, int64_t count, unsigned char *x)
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
                if (!(dtype == TR_BOOL && op == TR_AVG))
                    reduce_once(r, s, dtype, op, count, (unsigned char *)memory + s->shift);
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
        usleep(50000);
        CHECK(tr_barrier(r->group) == TR_PEER);
        SAYS("without tr_leave()");
        return;
    }
    tr_scope_push();
    tr_group *dropped = join(r, "dropped");
    tr_work *first = tr_keep(tr_all_reduce_async(dropped, x, 4)), *second = tr_keep(tr_all_reduce_async(dropped, x, 4));
    tr_scope_pop();
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
        r->group = join(r, "dropped");
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
    CHECK(tr_wait(tr_all_reduce_async(r->group, data, 1)) == TR_MISMATCH);
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
    };
    for (int world = 2; world <= 4; world++)
        for (size_t c = 0; c < sizeof clashes / sizeof *clashes; c++) run(world, call_differently, &clashes[c]);
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
    CHECK(tr_all_reduce(g, x, 4, .op = (tr_reduce_op)7) == TR_INVALID);
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
        usleep(400000);
        CHECK(tr_barrier(r->group) == TR_TIMEOUT); /* the others have given up */
        SAYS("rank 1");
        return;
    }
    CHECK(tr_all_reduce(r->group, x, 4, .timeout_ms = 100) == TR_TIMEOUT);
    SAYS("all_reduce #2 (sum of f32[4] at ");
    SAYS("rank 1 (pid ");
    SAYS("all_reduce #1");
    CHECK(tr_barrier(r->group) == TR_TIMEOUT);
    SAYS("is broken");
}

static void a_rank_that_stays_away_is_a_timeout(void **state)
{
    (void)state;
    run(2, one_stays_away, NULL);
    run(4, one_stays_away, NULL);
}

/* ---- Joining ----------------------------------------------------------------------------------------------------- */

static void join_again(rank *r)
{
    for (int turn = 0; turn < 8; turn++) {
        float x = 1;
        OK(tr_all_reduce(r->group, &x, 1));
        CHECK(x == (float)r->world);
        CHECK(tr_rank(r->group) == r->number && tr_world_size(r->group) == r->world);
        CHECK(tr_local_rank(r->group) == r->number);
        OK(tr_leave(r->group));
        r->group = join(r, NULL);
        OK(tr_status_of(r->group));
    }
}

static void a_group_can_be_joined_again(void **state)
{
    (void)state;
    run(2, join_again, NULL);
    run(4, join_again, NULL);
}

static void side_by_side(rank *r)
{
    TR_SCOPE;
    tr_group *a = join(r, "a"), *b = join(r, "b");
    OK(tr_status_of(a));
    OK(tr_status_of(b));
    int64_t x = r->number, y = -r->number;
    tr_work *work = tr_all_reduce_async(a, &x, 1, .dtype = TR_I64, .op = TR_MAX);
    OK(tr_all_reduce(b, &y, 1, .dtype = TR_I64, .op = TR_MIN));
    OK(tr_wait(work));
    CHECK(x == r->world - 1 && y == -(r->world - 1));
    OK(tr_leave(b));
    OK(tr_barrier(a));
    OK(tr_barrier(r->group));
}

static void groups_stand_side_by_side(void **state)
{
    (void)state;
    run(3, side_by_side, NULL);
}

static void ranks_meet_in_a_tcp_store(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = tr_store_tcp("127.0.0.1", 0, .serve = true, .token = "secret", .timeout_ms = JOIN_MS);
    assert_int_equal(tr_status_of(store), TR_OK);
    run_on(store, 3, join_again, NULL);
}

#define FAILS(status_, expression, words)                                                                     \
    do {                                                                                                      \
        assert_int_equal((expression), status_);                                                              \
        if (!strstr(tr_error_message(), words)) fail_msg("'%s' says nothing of '%s'", tr_error_message(), words); \
    } while (0)

static void missing_ranks_are_named(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = tr_store_memory();
    FAILS(TR_TIMEOUT, tr_status_of(tr_join(.store = store, .rank = 1, .world_size = 3, .timeout_ms = 50)),
        "of 3 ranks, ranks 0, 2 did not join");
    FAILS(TR_TIMEOUT, tr_status_of(tr_join(.store = store, .rank = 1, .world_size = 2, .timeout_ms = 50)),
        "of 2 ranks, rank 0 did not join");
    FAILS(TR_TIMEOUT,
          tr_status_of(tr_join(.store = store, .rank = 0, .world_size = 100, .timeout_ms = 50, .name = "x")),
          "1, 2, 3, 4, 5, 6, 7, 8 and 91 more");
    run_on(store, 2, join_again, NULL); /* a try that failed leaves the number free */
}

static void take_a_taken_rank(rank *r)
{
    OK(tr_barrier(r->group));
    if (r->number == 0) {
        TR_SCOPE;
        tr_group *second = tr_join(.store = r->store, .rank = 1, .world_size = 2, .timeout_ms = JOIN_MS);
        CHECK(tr_status_of(second) == TR_STATE);
        SAYS("rank 1 of group 'world' is taken");
    }
    OK(tr_barrier(r->group));
}

static void a_rank_cannot_be_taken_twice(void **state)
{
    (void)state;
    run(2, take_a_taken_rank, NULL);
}

static void *join_a_larger_world(void *store)
{
    TR_SCOPE;
    tr_group *g = tr_join(.store = store, .rank = 1, .world_size = 3, .timeout_ms = JOIN_MS);
    return (void *)(intptr_t)tr_status_of(g);
}

static void world_sizes_must_agree(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = tr_store_memory();
    pthread_t thread;
    void *status;
    pthread_create(&thread, NULL, join_a_larger_world, store);
    FAILS(TR_MISMATCH, tr_status_of(tr_join(.store = store, .rank = 0, .world_size = 2, .timeout_ms = JOIN_MS)),
        "rank 0 joins with a world size of 2, rank 1 with 3");
    pthread_join(thread, &status);
    assert_int_equal((tr_status)(intptr_t)status, TR_MISMATCH);
}

static void bad_options_are_told(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = tr_store_memory();
    FAILS(TR_INVALID, tr_status_of(tr_join(.store = store)), ".world_size of 0");
    FAILS(TR_INVALID, tr_status_of(tr_join(.store = store, .rank = 2, .world_size = 2)), ".rank of 2 is not in 0 … 1");
    FAILS(TR_INVALID, tr_status_of(tr_join(.store = store, .rank = -1, .world_size = 2)), ".rank of -1");
    FAILS(TR_UNSUPPORTED, tr_status_of(tr_join(.backend = "smoke")), "'smoke'");
    FAILS(TR_INVALID, tr_status_of(tr_join(.name = "a/b")), ".name");
    FAILS(TR_INVALID, tr_status_of(tr_join(.name = "")), ".name");
    FAILS(TR_INVALID, tr_status_of(tr_join(.timeout_ms = -5)), "-5");
    FAILS(TR_INVALID, tr_status_of(tr_join(.init = "file:///x")), "tcp://host:port");
    FAILS(TR_INVALID, tr_status_of(tr_join(.init = "tcp://host", .world_size = 2)), "no port");
    FAILS(TR_INVALID, tr_status_of(tr_join(.init = "tcp://:1", .world_size = 2)), "no host");
    FAILS(TR_INVALID, tr_status_of(tr_join(.init = "tcp://h:port", .world_size = 2)), "not a number");
    FAILS(TR_INVALID, tr_status_of(tr_join(.init = "tcp://h:99999", .world_size = 2)), "65535");
    tr_store *bad = tr_store_tcp(NULL, 1);
    FAILS(TR_INVALID, tr_status_of(tr_join(.store = bad, .world_size = 2)), "host");
    tr_group *broken = tr_join(.backend = "smoke");
    FAILS(TR_UNSUPPORTED, tr_barrier(broken), "'smoke'");
    FAILS(TR_UNSUPPORTED, tr_wait(tr_all_reduce_async(broken, NULL, 0)), "'smoke'");
    FAILS(TR_UNSUPPORTED, tr_leave(broken), "'smoke'");
    assert_int_equal(tr_rank(broken), 0);
    assert_int_equal(tr_world_size(broken), 1);
    assert_int_equal(tr_world_size(NULL), 1);
}

/* ---- The environment --------------------------------------------------------------------------------------------- */

static const char *const variables[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
    "MASTER_PORT", "TRIREME_STORE", "TRIREME_TOKEN"};

/* Values in the order of `variables`; NULL: unset. */
static void set_environment(const char *const values[8])
{
    for (int i = 0; i < 8; i++) {
        if (values[i])
            setenv(variables[i], values[i], 1);
        else
            unsetenv(variables[i]);
    }
}

static tr_status join_by(const char *const values[8])
{
    set_environment(values);
    TR_SCOPE;
    return tr_status_of(tr_join(.timeout_ms = 200));
}
#define JOIN_BY(...) join_by((const char *const[8]){__VA_ARGS__})

static void a_wrong_environment_is_told(void **state)
{
    (void)state;
    FAILS(TR_INVALID, JOIN_BY("0"), "RANK is set, but WORLD_SIZE is not");
    FAILS(TR_INVALID, JOIN_BY(NULL, "2"), "WORLD_SIZE is set, but RANK is not");
    FAILS(TR_INVALID, JOIN_BY("x", "2"), "RANK=x is not a number");
    FAILS(TR_INVALID, JOIN_BY("", "2"), "but RANK is not");
    FAILS(TR_INVALID, JOIN_BY("2", "2"), "RANK=2 is not in 0 … 1");
    FAILS(TR_INVALID, JOIN_BY("-1", "2"), "RANK=-1 is not in 0 … 1");
    FAILS(TR_INVALID, JOIN_BY("0", "0"), "WORLD_SIZE=0 is not in");
    FAILS(TR_INVALID, JOIN_BY("0", "2 "), "WORLD_SIZE=2  is not a number");
    FAILS(TR_INVALID, JOIN_BY("0", "2", "1", "1"), "LOCAL_RANK=1 is not in 0 … 0");
    FAILS(TR_INVALID, JOIN_BY("0", "2", "0", "3"), "LOCAL_WORLD_SIZE=3 is not in 1 … 2");
    FAILS(TR_INVALID, JOIN_BY("0", "2", "0", "2", "127.0.0.1"), "MASTER_PORT is not");
    FAILS(TR_INVALID, JOIN_BY("0", "2", "0", "2", NULL, "29500"), "MASTER_ADDR is not");
    FAILS(TR_INVALID, JOIN_BY("0", "2", "0", "2", "127.0.0.1", "0"), "MASTER_PORT=0 is not in 1 … 65535");
    FAILS(TR_AUTH, JOIN_BY("0", "2", "0", "2", "0.0.0.0", "29999"), "loopback");
    FAILS(TR_TIMEOUT, JOIN_BY("0", "2", "0", "2", "127.0.0.1", "1", "1"), "127.0.0.1:1"); /* hosted, but not there */
    set_environment((const char *const[8]){NULL});
}

static void one_rank_needs_nothing(void **state)
{
    (void)state;
    TR_SCOPE;
    assert_int_equal(JOIN_BY(NULL), TR_OK);
    assert_int_equal(JOIN_BY("0", "1"), TR_OK); /* no address is needed */
    tr_group *g = tr_join();
    float in[3] = {1, 2, 3}, out[3] = {0};
    assert_int_equal(tr_all_reduce(g, out, 3, .in = in, .op = TR_AVG), TR_OK);
    assert_memory_equal(in, out, sizeof in);
    assert_int_equal(tr_broadcast(g, out, 3), TR_OK);
    assert_int_equal(tr_barrier(g), TR_OK);
    tr_device here = tr_group_device(g);
    assert_true(here.index == 0);
    assert_int_equal(tr_leave(g), TR_OK);
    set_environment((const char *const[8]){NULL});
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
        cmocka_unit_test(different_calls_are_errors_everywhere),
        cmocka_unit_test(bad_arguments_leave_the_group_whole),
        cmocka_unit_test(a_rank_that_left_is_missed_by_name),
        cmocka_unit_test(leaving_right_after_a_call_harms_nobody),
        cmocka_unit_test(a_rank_that_stays_away_is_a_timeout),
        cmocka_unit_test(a_group_can_be_joined_again),
        cmocka_unit_test(groups_stand_side_by_side),
        cmocka_unit_test(ranks_meet_in_a_tcp_store),
        cmocka_unit_test(missing_ranks_are_named),
        cmocka_unit_test(a_rank_cannot_be_taken_twice),
        cmocka_unit_test(world_sizes_must_agree),
        cmocka_unit_test(bad_options_are_told),
        cmocka_unit_test(a_wrong_environment_is_told),
        cmocka_unit_test(one_rank_needs_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
