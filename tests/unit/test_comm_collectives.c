/* Every collective with threads as ranks, against what a plain loop says: all types, operations, roots and buffers, in
 * place and not, blocks of equal and of different lengths. ctest: timeout=240 */
#include "comm_ranks.h"
#include "refusals.h"
#include "sanitized.h"

#include <stdlib.h>

/* ---- Blocks of equal lengths ------------------------------------------------------------------------------------- */

typedef struct plan {
    buffer_kind buffers;
    const int64_t *counts; /* ends with -1 */
    bool all_types;        /* else f32 sums only */
} plan;

typedef struct example {
    tr_collective_kind kind;
    tr_dtype dtype;
    tr_reduce_op op;
    int64_t count;
    int root;
    bool in_place;
} example;

static bool in_blocks(tr_collective_kind kind)
{
    return kind == TR_SCATTER || kind == TR_REDUCE_SCATTER || kind == TR_ALL_TO_ALL;
}

static bool out_blocks(tr_collective_kind kind)
{
    return kind == TR_GATHER || kind == TR_ALL_GATHER || kind == TR_ALL_TO_ALL;
}

static bool reduces(tr_collective_kind kind)
{
    return kind == TR_ALL_REDUCE || kind == TR_REDUCE || kind == TR_REDUCE_SCATTER;
}

static bool gives(const rank *r, const example *e)
{
    return (e->kind != TR_BROADCAST && e->kind != TR_SCATTER) || r->number == e->root;
}

static bool gets(const rank *r, const example *e)
{
    return (e->kind != TR_REDUCE && e->kind != TR_GATHER) || r->number == e->root;
}

/* Element i of what a rank gets, where its input is element number i of sample(). */
static double expected(const rank *r, const example *e, int64_t i)
{
    int64_t block = e->count ? i / e->count : 0, own = r->number * e->count;
    switch (e->kind) {
    case TR_ALL_REDUCE:
    case TR_REDUCE: return reduced(e->dtype, e->op, r->world, i);
    case TR_REDUCE_SCATTER: return reduced(e->dtype, e->op, r->world, own + i);
    case TR_BROADCAST: return sample(e->dtype, e->root, i);
    case TR_SCATTER: return sample(e->dtype, e->root, own + i);
    case TR_ALL_TO_ALL: return sample(e->dtype, (int)block, own + i % e->count);
    default: return sample(e->dtype, (int)block, i % e->count);
    }
}

/* Where in and out lie in two buffers of [world * count] elements and more, or in one. */
static void place(const rank *r, const example *e, char *a, char *b, char **in, char **out)
{
    size_t own = (size_t)(r->number * e->count) * tr_dtype_size(e->dtype);
    *in = a;
    *out = e->in_place ? a : b;
    if (e->in_place && in_blocks(e->kind) && !out_blocks(e->kind)) *out = a + own;
    if (e->in_place && out_blocks(e->kind) && !in_blocks(e->kind)) *in = a + own;
}

static void check_result(rank *r, const example *e, const char *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double wanted = expected(r, e, i), got = get(e->dtype, out, i);
        if (near_enough(e->dtype, got, wanted)) continue;
        snprintf(r->failure, sizeof r->failure,
            "kind %d, %s op %d count %d root %d%s: rank %d of %d has %g at %d, not %g",
            (int)e->kind, tr_dtype_name(e->dtype), (int)e->op, (int)e->count, e->root, e->in_place ? " in place" : "",
            r->number, r->world, got, (int)i, wanted);
        return;
    }
}

static void run_example(rank *r, const example *e, char *a, char *b)
{
    char *in, *out;
    int64_t given = in_blocks(e->kind) ? r->world * e->count : e->count;
    int64_t gotten = out_blocks(e->kind) ? r->world * e->count : e->count;
    place(r, e, a, b, &in, &out);
    if (gets(r, e)) memset(out, 0xee, (size_t)gotten * tr_dtype_size(e->dtype) + 1);
    if (gives(r, e))
        for (int64_t i = 0; i < given; i++) put(e->dtype, in, i, sample(e->dtype, r->number, i));
    tr_collective c = {.size = sizeof c, .kind = e->kind, .dtype = e->dtype, .op = e->op, .root = e->root,
        .count = e->count, .file = __FILE__, .line = __LINE__};
    c.in = gives(r, e) ? in : NULL;
    c.out = gets(r, e) ? out : NULL;
    OK(tr_run_collective(r->group, &c));
    if (!gets(r, e)) return;
    check_result(r, e, out, gotten);
    unsigned char behind = (unsigned char)out[(size_t)gotten * tr_dtype_size(e->dtype)];
    if (!e->in_place && !r->failure[0]) CHECK(behind == 0xee);
    if (!e->in_place && gives(r, e) && !r->failure[0])
        for (int64_t i = 0; i < given; i++) CHECK(get(e->dtype, in, i) == sample(e->dtype, r->number, i));
}

static bool exists(const example *e)
{
    if (!reduces(e->kind)) return e->op == TR_SUM;
    return op_exists(e->dtype, e->op);
}

static void run_kind(rank *r, const plan *p, example e, char *a, char *b)
{
    int dtypes = p->all_types ? TR_DTYPE_COUNT : 1, ops = p->all_types ? TR_REDUCE_OP_COUNT : 1;
    bool rooted = e.kind == TR_BROADCAST || e.kind == TR_SCATTER || e.kind == TR_REDUCE || e.kind == TR_GATHER;
    for (int dtype = 0; dtype < dtypes; dtype++) {
        for (int op = 0; op < ops; op++) {
            for (e.root = 0; e.root < (rooted ? r->world : 1); e.root++) {
                e.dtype = (tr_dtype)dtype;
                e.op = (tr_reduce_op)op;
                e.in_place = !e.in_place;
                if (exists(&e) && !r->failure[0]) run_example(r, &e, a, b);
            }
        }
    }
}

static void run_plan(rank *r)
{
    const plan *p = r->arg;
    for (int c = 0; p->counts[c] >= 0 && !r->failure[0]; c++) {
        size_t bytes = (size_t)(p->counts[c] * r->world) * 8 + 64;
        char *a = make_buffer(p->buffers, r, bytes), *b = make_buffer(p->buffers, r, bytes);
        CHECK(a && b);
        for (int kind = 0; kind <= TR_ALL_TO_ALL; kind++)
            for (int in_place = 0; in_place < 2; in_place++)
                run_kind(r, p, (example){.kind = kind, .count = p->counts[c], .in_place = in_place}, a, b);
        free_buffer(p->buffers, r, a);
        free_buffer(p->buffers, r, b);
    }
    if (!r->failure[0]) OK(tr_leave(r->group));
}

/* The other builds run all. */
static const int worlds[] = {1, 2, 3, 5, 4, 8};
enum { WORLDS = THREADS_SANITIZED ? 4 : sizeof worlds / sizeof *worlds };

static void collectives_do_what_they_say(void **state)
{
    (void)state;
    static const int64_t counts[] = {0, 1, 7, 65, -1}, long_ones[] = {1500, 5001, -1};
    for (int w = 0; w < WORLDS; w++) {
        for (buffer_kind kind = 0; kind < KINDS; kind++) {
            run(worlds[w], run_plan, &(plan){kind, counts, true});
            run(worlds[w], run_plan, &(plan){kind, long_ones, false});
        }
    }
}

/* Many chunks, a whole number of them and not. */
static void long_buffers_pass_in_chunks(void **state)
{
    (void)state;
    static const int64_t counts[] = {65536, 400001, -1};
    for (int world = 2; world <= 3; world++)
        for (buffer_kind kind = 0; kind < KINDS; kind++) run(world, run_plan, &(plan){kind, counts, false});
}

/* The last test: from now on private buffers are staged. */
static void long_buffers_are_staged(void **state)
{
    assert_true(refuse_cross_memory());
    long_buffers_pass_in_chunks(state);
}

/* ---- Blocks of different lengths --------------------------------------------------------------------------------- */

typedef struct variable_plan {
    buffer_kind buffers;
    int64_t scale; /* elements of a unit of length */
    int64_t gap;   /* between blocks, where nothing may be written; -1: none, and no offsets given */
} variable_plan;

/* What a gives b in an all_to_all_v, and in the other kinds (b = 0) gives or gets. */
static int64_t length(const variable_plan *p, int a, int b)
{
    return (a * 3 + b * 5 + a * b) % 4 * p->scale;
}

typedef struct side {
    int64_t counts[RANKS_MOST], offsets[RANKS_MOST], total; /* elements, gaps included */
} side;

static void lay_out(const variable_plan *p, int world, int number, bool give, bool each, side *s)
{
    *s = (side){.total = 0};
    for (int n = 0; n < world; n++) {
        s->counts[n] = !each ? length(p, n, 0) : give ? length(p, number, n) : length(p, n, number);
        s->offsets[n] = s->total;
        s->total += s->counts[n] + (p->gap < 0 ? 0 : p->gap);
    }
}

/* An element of the block that a gives b. */
static int64_t token(int a, int b, int64_t i)
{
    return a * 1000003 + b * 10007 + i;
}

static void fill_blocks(const side *s, int world, int a, int b, int64_t *x)
{
    for (int n = 0; n < world; n++)
        for (int64_t i = 0; i < s->counts[n]; i++)
            x[s->offsets[n] + i] = token(a < 0 ? n : a, b < 0 ? n : b, i);
}

typedef struct variable_call {
    tr_collective c;
    side in, out;
    int64_t *x, *y, *wanted; /* [most] */
    int64_t most;
} variable_call;

static void run_variable(rank *r, const variable_plan *p, variable_call *v, tr_collective_kind kind, int root)
{
    bool each = kind == TR_ALL_TO_ALL_V, scatters = kind == TR_SCATTER_V;
    bool gets_all = kind == TR_ALL_GATHER_V || (kind == TR_GATHER_V && r->number == root);
    int64_t own = length(p, r->number, 0);
    lay_out(p, r->world, r->number, true, each, &v->in);
    lay_out(p, r->world, r->number, false, each, &v->out);
    for (int64_t i = 0; i < v->most; i++) v->x[i] = v->y[i] = v->wanted[i] = -1;
    if (each || (scatters && r->number == root)) fill_blocks(&v->in, r->world, each ? r->number : root, -1, v->x);
    if (!each && !scatters)
        for (int64_t i = 0; i < own; i++) v->x[i] = token(r->number, 0, i);
    if (each || gets_all) fill_blocks(&v->out, r->world, -1, each ? r->number : 0, v->wanted);
    if (scatters)
        for (int64_t i = 0; i < own; i++) v->wanted[i] = token(root, r->number, i);
    v->c = (tr_collective){.size = sizeof v->c, .kind = kind, .dtype = TR_I64, .root = root, .count = each ? 0 : own,
        .in = v->x, .out = v->y, .file = __FILE__, .line = __LINE__};
    v->c.in_counts = v->in.counts;
    v->c.out_counts = v->out.counts;
    if (p->gap >= 0) v->c.in_offsets = v->in.offsets, v->c.out_offsets = v->out.offsets;
    OK(tr_run_collective(r->group, &v->c));
    for (int64_t i = 0; i < v->most; i++) CHECK(v->y[i] == v->wanted[i]);
}

static void run_variable_plan(rank *r)
{
    const variable_plan *p = r->arg;
    variable_call v = {.most = r->world * (3 * p->scale + (p->gap < 0 ? 0 : p->gap)) + 1};
    v.x = make_buffer(p->buffers, r, (size_t)v.most * 8);
    v.y = make_buffer(p->buffers, r, (size_t)v.most * 8);
    v.wanted = malloc((size_t)v.most * 8);
    CHECK(v.x && v.y && v.wanted);
    for (int kind = TR_ALL_GATHER_V; kind <= TR_ALL_TO_ALL_V; kind++)
        for (int root = 0; root < r->world && !r->failure[0]; root++) run_variable(r, p, &v, kind, root);
    free_buffer(p->buffers, r, v.x);
    free_buffer(p->buffers, r, v.y);
    free(v.wanted);
}

static void blocks_may_differ_in_length(void **state)
{
    (void)state;
    static const int64_t scales[] = {1, 100, 1000, 40000};
    for (int w = 0; w < WORLDS; w++)
        for (buffer_kind kind = 0; kind < KINDS; kind++)
            for (int s = 0; s < (worlds[w] > 3 ? 3 : 4); s++)
                run(worlds[w], run_variable_plan, &(variable_plan){kind, scales[s], s % 2 ? 5 : -1});
}

/* ---- The interface ----------------------------------------------------------------------------------------------- */

/* Through the macros, posted, and without naming what stays in its place. */
static void call_by_name(rank *r)
{
    enum { MOST = RANKS_MOST };
    int n = r->number, w = r->world;
    float x[MOST] = {0}, y[MOST] = {0};
    int64_t counts[MOST];
    for (int i = 0; i < MOST; i++) counts[i] = 1;

    x[n] = (float)n;
    OK(tr_all_gather(r->group, NULL, x, 1));
    for (int i = 0; i < w; i++) CHECK(x[i] == (float)i);
    OK(tr_all_to_all(r->group, NULL, x, 1));
    for (int i = 0; i < w; i++) CHECK(x[i] == (float)n);
    OK(tr_reduce_scatter(r->group, x, y, 1));
    CHECK(y[0] == (float)(w * (w - 1) / 2));
    OK(tr_reduce(r->group, y, 1, .root = w - 1, .op = TR_MAX));
    OK(tr_gather(r->group, x, n == 0 ? y : NULL, 1));
    for (int i = 0; n == 0 && i < w; i++) CHECK(y[i] == (float)i);
    x[0] = -1;
    OK(tr_scatter(r->group, n == 0 ? y : NULL, n == 0 ? NULL : x, 1));
    CHECK(n == 0 || x[0] == (float)n);

    TR_SCOPE;
    y[0] = (float)n;
    tr_work *first = tr_all_gather_v_async(r->group, y, x, 1, .out_counts = counts);
    tr_work *second = tr_all_to_all_v_async(r->group, x, y, .in_counts = counts, .out_counts = counts);
    tr_work *third = tr_barrier_async(r->group);
    memset(counts, 0xff, sizeof counts); /* read already */
    OK(tr_wait(first));
    for (int i = 0; i < w; i++) CHECK(x[i] == (float)i);
    OK(tr_wait(second));
    for (int i = 0; i < w; i++) CHECK(y[i] == (float)n);
    OK(tr_wait(third));
}

static void calls_have_short_names(void **state)
{
    (void)state;
    for (int w = 0; w < WORLDS; w++) run(worlds[w], call_by_name, NULL);
}

/* Strings of any length, none among them, and long ones. */
static void exchange_bytes(rank *r)
{
    static const size_t lengths[] = {0, 5, 3000, 100000};
    for (int shift = 0; shift < 4; shift++) {
        char own[100000];
        size_t bytes = lengths[(r->number + shift) % 4], at = 0, got = 17;
        memset(own, 'a' + r->number, sizeof own);
        void *all, *copy = own;
        int64_t sizes[RANKS_MOST];
        OK(tr_all_gather_bytes(r->group, bytes ? own : NULL, bytes, &all, sizes));
        for (int n = 0; n < r->world; n++) {
            bool right = sizes[n] == (int64_t)lengths[(n + shift) % 4];
            for (int64_t i = 0; right && i < sizes[n]; i++) right = ((char *)all)[at++] == 'a' + n;
            if (!right) free(all);
            CHECK(right);
        }
        bool ended = ((char *)all)[at] == 0;
        free(all);
        CHECK(ended);
        int root = r->world - 1;
        if (r->number == root) got = bytes;
        OK(tr_broadcast_bytes(r->group, &copy, &got, root));
        bool right = got == lengths[(root + shift) % 4] && (!got || ((char *)copy)[got - 1] == 'a' + root);
        if (copy != own) free(copy);
        CHECK(right);
    }
}

static void bytes_of_any_length_are_exchanged(void **state)
{
    (void)state;
    for (int w = 0; w < WORLDS; w++) run(worlds[w], exchange_bytes, NULL);
}

static void give_no_place(rank *r)
{
    void *all = NULL;
    size_t bytes = 5;
    int64_t sizes[RANKS_MOST];
    CHECK(tr_all_gather_bytes(r->group, "x", 1, NULL, sizes) == TR_INVALID);
    CHECK(tr_all_gather_bytes(r->group, "x", 1, &all, NULL) == TR_INVALID);
    SAYS("tr_all_gather_bytes: where the bytes or their sizes are to go is NULL");
    CHECK(tr_all_gather_bytes(r->group, NULL, 1, &all, sizes) == TR_INVALID);
    SAYS("the data is NULL");
    CHECK(tr_broadcast_bytes(r->group, NULL, &bytes, 0) == TR_INVALID);
    CHECK(tr_broadcast_bytes(r->group, &all, &bytes, r->number) == TR_INVALID);
    SAYS("tr_broadcast_bytes: the root's data is NULL");
    OK(tr_barrier(r->group)); /* the group is whole */
}

static void bytes_without_a_place_are_refused(void **state)
{
    (void)state;
    run(2, give_no_place, NULL);
}

/* The root goes on to send its bytes: it must hear that nobody has a place for them. */
static void send_too_much(rank *r)
{
    static char beginning[1 << 20];
    void *data = r->number == 0 ? beginning : NULL;
    size_t bytes = r->number == 0 ? (size_t)1 << 60 : 0;
    CHECK(tr_broadcast_bytes(r->group, &data, &bytes, 0) == (r->number == 0 ? TR_PEER : TR_NO_MEMORY));
    SAYS("no memory for 1152921504606846976 bytes");
}

static void bytes_that_nobody_has_memory_for_break_the_group(void **state)
{
    (void)state;
    run(2, send_too_much, NULL);
}

static void call_wrongly(rank *r)
{
    float x[8] = {0}, y[8] = {0};
    int64_t counts[2] = {1, 2}, bad[2] = {1, -2};
    int64_t far_away[2] = {0, INT64_MAX};
    tr_group *g = r->group;
    CHECK(tr_all_gather(g, x, x + 1, 4) == TR_INVALID);
    SAYS("overlap");
    CHECK(tr_reduce_scatter(g, x, NULL, 4) == TR_INVALID);
    SAYS("NULL");
    CHECK(tr_reduce_scatter(g, x, x + 1, 4) == TR_INVALID);
    CHECK(tr_all_reduce(g, x, 4, .in = x + 1) == TR_INVALID);
    CHECK(tr_all_to_all(g, x, y, INT64_MAX / 8) == TR_INVALID);
    CHECK(tr_all_reduce(g, x, 4, .op = TR_BXOR) == TR_DTYPE);
    SAYS("bxor of f32");
    CHECK(tr_gather(g, x, y, 4, .root = 2) == TR_INVALID);
    SAYS("gather: root 2");
    CHECK(tr_all_gather_v(g, x, y, 1) == TR_INVALID);
    SAYS(".out_counts is needed");
    CHECK(tr_all_gather_v(g, x, y, 5, .out_counts = counts) == TR_INVALID);
    SAYS("count is 5, but .out_counts");
    CHECK(tr_all_gather_v(g, x, y, 1, .out_counts = bad) == TR_INVALID);
    SAYS(".out_counts[1] = -2");
    CHECK(tr_all_gather_v(g, x, y, 1, .out_counts = counts, .out_offsets = far_away) == TR_INVALID);
    CHECK(tr_all_to_all_v(g, x, x, .in_counts = counts, .out_counts = counts) == TR_INVALID);
    SAYS("overlap");
    bad[0] = bad[1] = r->number == 0 ? 2 : 1;
    CHECK(tr_all_to_all_v(g, x, y, .in_counts = counts, .out_counts = bad) == TR_INVALID);
    SAYS("gives itself");
    CHECK(tr_send(g, x, 1, .peer = 2) == TR_INVALID);
    SAYS("send: peer 2");
    CHECK(tr_recv(g, x, 1, .peer = 1 - r->number, .tag = -1) == TR_INVALID);
    SAYS("tag of -1");
    CHECK(tr_recv(g, x, 1, .peer = r->number) == TR_INVALID);
    SAYS("is this rank itself");
    OK(tr_barrier(g)); /* the group is whole */
}

static void wrong_arguments_leave_the_group_whole(void **state)
{
    (void)state;
    run(2, call_wrongly, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_do_what_they_say),
        cmocka_unit_test(long_buffers_pass_in_chunks),
        cmocka_unit_test(blocks_may_differ_in_length),
        cmocka_unit_test(calls_have_short_names),
        cmocka_unit_test(bytes_of_any_length_are_exchanged),
        cmocka_unit_test(bytes_without_a_place_are_refused),
        cmocka_unit_test(bytes_that_nobody_has_memory_for_break_the_group),
        cmocka_unit_test(wrong_arguments_leave_the_group_whole),
        cmocka_unit_test(long_buffers_are_staged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
