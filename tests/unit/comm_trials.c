#include "comm_trials.h"

#include "comm/algo/reduce.h"
#include "comm/collective.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

/* ---- Every kind of collective --------------------------------------------------------------------------------------- */

static int64_t value(int number, int64_t i)
{
    return (int64_t)number * 1000003 + i * 7 + 1;
}

static int64_t sum_of_values(int world, int64_t i)
{
    return world * value(0, i) + (value(1, 0) - value(0, 0)) * (world * (world - 1) / 2);
}

/* What rank a has for rank b, in the kinds with _V. */
static int64_t amount(tr_collective_kind kind, int a, int b, int64_t count)
{
    return kind == TR_ALL_TO_ALL_V ? (count + 3 * a + 2 * b) % (count + 2) : (count + 5 * a) % (count + 2);
}

typedef struct blocks {
    int64_t counts[RANKS_MOST], offsets[RANKS_MOST], end;
} blocks;

static blocks blocks_of(const rank *r, tr_collective_kind kind, int64_t count, bool in)
{
    blocks b = {.end = 1};
    bool variable = kind >= TR_ALL_GATHER_V && kind <= TR_ALL_TO_ALL_V;
    for (int other = 0; other < r->world; other++) {
        int64_t n = !variable ? count
                    : kind != TR_ALL_TO_ALL_V ? amount(kind, other, 0, count)
                    : in ? amount(kind, r->number, other, count) : amount(kind, other, r->number, count);
        b.counts[other] = n;
        b.offsets[other] = variable ? b.end : count * other;
        b.end = b.offsets[other] + n + 1;
    }
    return b;
}

typedef struct trial {
    tr_collective c;
    blocks in, out;
    int64_t *in_memory, *out_memory;
} trial;

static void check_sums(rank *r, const trial *t, int64_t shift)
{
    for (int64_t i = 0; i < t->c.count; i++) CHECK(t->out_memory[i] == sum_of_values(r->world, shift + i));
}

/* Block `from` of the output is what rank `from` has from its element `first` on. */
static void check_block(rank *r, const trial *t, int from, int64_t first)
{
    for (int64_t i = 0; i < t->out.counts[from]; i++)
        CHECK(t->out_memory[t->out.offsets[from] + i] == value(from, first + i));
}

static void check_trial(rank *r, const trial *t)
{
    tr_collective_kind kind = t->c.kind;
    bool root = t->c.root == r->number;
    if (kind == TR_ALL_REDUCE || (kind == TR_REDUCE && root)) check_sums(r, t, 0);
    if (kind == TR_REDUCE_SCATTER) check_sums(r, t, t->c.count * r->number);
    if (kind == TR_BROADCAST)
        for (int64_t i = 0; i < t->c.count; i++) CHECK(t->out_memory[i] == value(t->c.root, i));
    bool gathers = kind == TR_ALL_GATHER || kind == TR_ALL_GATHER_V || (root && (kind == TR_GATHER || kind == TR_GATHER_V));
    for (int from = 0; from < r->world && gathers; from++) check_block(r, t, from, 0);
    if (kind == TR_SCATTER || kind == TR_SCATTER_V)
        for (int64_t i = 0; i < t->c.count; i++)
            CHECK(t->out_memory[i] == value(t->c.root, t->in.offsets[r->number] + i));
    for (int from = 0; from < r->world && (kind == TR_ALL_TO_ALL || kind == TR_ALL_TO_ALL_V); from++) {
        rank other = {.number = from, .world = r->world};
        blocks theirs = blocks_of(&other, kind, t->c.count, true);
        check_block(r, t, from, theirs.offsets[r->number]);
    }
}

static void try_once(rank *r, tr_collective_kind kind, int64_t count, int root)
{
    trial t = {.c = {.size = sizeof t.c, .kind = kind, .count = count, .root = root, .dtype = TR_I64, .file = __FILE__,
        .line = __LINE__}};
    t.in = blocks_of(r, kind, count, true);
    t.out = blocks_of(r, kind, count, false);
    if (kind == TR_ALL_GATHER_V || kind == TR_GATHER_V || kind == TR_SCATTER_V) t.c.count = t.in.counts[r->number];
    if (kind == TR_SCATTER_V || kind == TR_ALL_TO_ALL_V) {
        t.c.in_counts = t.in.counts;
        t.c.in_offsets = t.in.offsets;
    }
    if (kind == TR_ALL_GATHER_V || kind == TR_GATHER_V || kind == TR_ALL_TO_ALL_V) {
        t.c.out_counts = t.out.counts;
        t.c.out_offsets = t.out.offsets;
    }
    size_t bytes = (size_t)(t.in.end + t.out.end + count) * sizeof(int64_t);
    t.in_memory = malloc(bytes);
    t.out_memory = malloc(bytes);
    for (int64_t i = 0; i < t.in.end; i++) t.in_memory[i] = value(r->number, i);
    t.c.in = t.in_memory;
    t.c.out = t.out_memory;
    if (kind != TR_BARRIER || count == 0) {
        tr_status status = tr_run_collective(r->group, &t.c);
        if (status == TR_OK)
            check_trial(r, &t);
        else
            snprintf(r->failure, sizeof r->failure, "%s, rank %d: %s", r->algorithms, r->number, tr_error_message());
    }
    free(t.in_memory);
    free(t.out_memory);
}

void try_kind(rank *r)
{
    static const int64_t counts[] = {0, 1, 7, 1000, 70001};
    tr_collective_kind kind = *(const tr_collective_kind *)r->arg;
    int roots = tr__kind_of(kind)->from_root || tr__kind_of(kind)->to_root ? r->world : 1;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (int root = 0; root < roots && !r->failure[0]; root++) try_once(r, kind, counts[c], root);
    CHECK(!r->failure[0]);
    OK(tr_leave(r->group));
}

/* ---- Types and operations ---------------------------------------------------------------------------------------- */

void reduce_all_types(rank *r)
{
    static const int64_t counts[] = {1, 33, 5003};
    unsigned char x[5003 * 8];
    for (int dtype = 0; dtype < TR_DTYPE_COUNT; dtype++) {
        for (int op = 0; op < TR_REDUCE_OP_COUNT; op++) {
            if (!tr__reduce_find(dtype, op)) continue;
            for (int c = 0; c < 3; c++) {
                for (int64_t i = 0; i < counts[c]; i++) put(dtype, x, i, sample(dtype, r->number, i));
                OK(tr_all_reduce(r->group, (void *)x, counts[c], .dtype = dtype, .op = op));
                for (int64_t i = 0; i < counts[c]; i++)
                    CHECK(near_enough(dtype, get(dtype, x, i), reduced(dtype, op, r->world, i)));
            }
        }
    }
    OK(tr_leave(r->group));
}

/* ---- Large data, the same bits ------------------------------------------------------------------------------------ */

static float noise(int number, int64_t i)
{
    uint32_t bits = (uint32_t)(i * 2654435761u) ^ (uint32_t)number * 0x9e3779b9u;
    return (float)(bits >> 4) * 0x1p-20f - 100.0f;
}

void reduce_large(rank *r)
{
    enum { COUNT = 3000017 };
    float *in = malloc(COUNT * sizeof *in), *out = malloc(COUNT * sizeof *out), *zero = malloc(COUNT * sizeof *zero);
    CHECK(in && out && zero);
    for (int turn = 0; turn < 2; turn++) {
        for (int64_t i = 0; i < COUNT; i++) in[i] = noise(r->number, i);
        if (turn == 1) memcpy(out, in, COUNT * sizeof *in);
        OK(tr_all_reduce(r->group, out, COUNT, .in = turn ? out : in, .op = TR_AVG));
        memcpy(zero, out, COUNT * sizeof *in);
        OK(tr_broadcast(r->group, zero, COUNT));
        CHECK(memcmp(zero, out, COUNT * sizeof *in) == 0);
        for (int64_t i = 0; i < COUNT; i += 13) { /* some of whatever any rank has added up */
            double wanted = 0;
            for (int n = 0; n < r->world; n++) wanted += (double)noise(n, i) / r->world;
            CHECK(fabs(out[i] - wanted) < 1e-3);
        }
    }
    free(in);
    free(out);
    free(zero);
    OK(tr_leave(r->group));
}

void meet_in_place(rank *r)
{
    enum { COUNT = 40000 };
    int64_t *x = malloc((size_t)r->world * COUNT * sizeof *x);
    CHECK(x);
    int64_t all = (int64_t)r->world * COUNT;
    for (int64_t i = 0; i < all; i++) x[i] = value(r->number, i);
    OK(tr_all_to_all(r->group, x, x, COUNT, .dtype = TR_I64));
    for (int64_t i = 0; i < all; i++) CHECK(x[i] == value((int)(i / COUNT), r->number * COUNT + i % COUNT));
    for (int64_t i = 0; i < all; i++) x[i] = value(r->number, i);
    OK(tr_all_gather(r->group, NULL, x, COUNT, .dtype = TR_I64));
    for (int64_t i = 0; i < all; i++) CHECK(x[i] == value((int)(i / COUNT), i));
    for (int64_t i = 0; i < all; i++) x[i] = value(r->number, i);
    int64_t *own = x + (int64_t)r->number * COUNT;
    OK(tr_reduce_scatter(r->group, x, own, COUNT, .dtype = TR_I64));
    for (int64_t i = 0; i < COUNT; i++) CHECK(own[i] == sum_of_values(r->world, r->number * COUNT + i));
    free(x);
    OK(tr_leave(r->group));
}

void meet(rank *r)
{
    atomic_int *board = (atomic_int *)r->arg;
    for (int turn = 1; turn <= 50; turn++) {
        atomic_store(&board[r->number], turn);
        OK(tr_barrier(r->group));
        for (int n = 0; n < r->world; n++) CHECK(atomic_load(&board[n]) == turn);
        OK(tr_barrier(r->group));
    }
    OK(tr_leave(r->group));
}

/* ---- Sends and receives ------------------------------------------------------------------------------------------ */

void pass_on(rank *r)
{
    enum { COUNT = 300000 };
    int64_t *x = malloc(COUNT * sizeof *x);
    CHECK(x);
    for (int64_t n = 1; n <= COUNT; n = n * 60 + 1) {
        for (int turn = 0; turn < 3; turn++) { /* once round the world */
            if (r->number > 0) OK(tr_recv(r->group, x, n, .peer = r->number - 1, .tag = turn, .dtype = TR_I64));
            for (int64_t i = 0; i < n; i++) x[i] = r->number == 0 ? i + turn : x[i] + 1;
            OK(tr_send(r->group, x, n, .peer = (r->number + 1) % r->world, .tag = turn, .dtype = TR_I64));
            if (r->number == 0) {
                OK(tr_recv(r->group, x, n, .peer = r->world - 1, .tag = turn, .dtype = TR_I64));
                for (int64_t i = 0; i < n; i++) CHECK(x[i] == i + turn + r->world - 1);
            }
        }
        if (r->number == 1) OK(tr_send(r->group, x, 1, .peer = 2, .tag = 9, .dtype = TR_I64)); /* between two only */
        if (r->number == 2) OK(tr_recv(r->group, x, 1, .peer = 1, .tag = 9, .dtype = TR_I64));
        OK(tr_barrier(r->group));
    }
    free(x);
    OK(tr_leave(r->group));
}

void cross(rank *r)
{
    enum { COUNT = 500000, TAGS = 3 };
    int64_t *out = malloc(COUNT * sizeof *out), *in = malloc(TAGS * COUNT * sizeof *in);
    tr_work *works[2 * RANKS_MOST * TAGS];
    CHECK(out && in);
    for (int64_t i = 0; i < COUNT; i++) out[i] = value(r->number, i);
    for (int turn = 0; turn < 2; turn++) {
        TR_SCOPE;
        int posted = 0, peer = (r->number + 1) % r->world, from = (r->number + r->world - 1) % r->world;
        memset(in, 0, TAGS * COUNT * sizeof *in);
        for (int half = 0; half < 2; half++) {
            for (int tag = 0; tag < TAGS; tag++) {
                if (half == turn)
                    works[posted++] = tr_send_async(r->group, out, COUNT - tag, .peer = peer, .tag = tag, .dtype = TR_I64);
                else
                    works[posted++] = tr_recv_async(r->group, in + (TAGS - 1 - tag) * COUNT, COUNT - (TAGS - 1 - tag),
                        .peer = from, .tag = TAGS - 1 - tag, .dtype = TR_I64);
            }
            if (half == 0) OK(tr_barrier(r->group));
        }
        for (int w = 0; w < posted; w++) OK(tr_wait(works[w]));
        for (int tag = 0; tag < TAGS; tag++)
            for (int64_t i = 0; i < COUNT - tag; i++) CHECK(in[tag * COUNT + i] == value(from, i));
    }
    free(out);
    free(in);
    OK(tr_leave(r->group));
}

/* ---- What goes wrong --------------------------------------------------------------------------------------------- */

void stay_away(rank *r)
{
    float x[4] = {0};
    OK(tr_barrier(r->group));
    if (r->number == 1) wait_until_given_up(r);
    tr_status status = tr_all_reduce(r->group, x, 4, .timeout_ms = 1000);
    CHECK(status == TR_TIMEOUT);
    if (r->number == 1) return;
    SAYS("waited 1 s for rank 1");
    SAYS("all_reduce #2 (sum of f32[4]");
    say_given_up(r);
}

void leave_early(rank *r)
{
    OK(tr_barrier(r->group));
    if (r->number == 0) {
        OK(tr_leave(r->group));
        return;
    }
    tr_status status = tr_barrier(r->group);
    CHECK(status == TR_PEER);
    SAYS("rank 0");
    SAYS("left group 'world'");
    SAYS("barrier #2");
}
