#include "comm_numbers.h"
#include "trial.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { AT_ONCE = 4, GUARD = 16, GUARD_BYTE = 0xa5 };

/* A rank's blocks in a buffer, in elements. */
typedef struct blocks {
    int64_t counts[TRIAL_RANKS], offsets[TRIAL_RANKS], end;
} blocks;

/* A collective, or a send and a recv in a ring. What all ranks must agree on comes from the seed that they share; the
 * rest is each rank's own. */
typedef struct call {
    tr_collective_kind kind;
    tr_dtype dtype;
    tr_reduce_op op;
    int root, to, from, tag;
    int64_t count, salt;
    bool in_place;
    blocks in_blocks, out_blocks;
    char *in, *out; /* one of them may be NULL */
    bool in_shared, out_shared;
    tr_collective parts[2];
    int part_count;
} call;

typedef struct player {
    const trial *t;
    int rank;
    uint64_t shared, own; /* states of random numbers: alike on all ranks, and not */
} player;

/* ---- Which call ---------------------------------------------------------------------------------------------------- */

static bool has_blocks_of_all(tr_collective_kind kind) /* as the ranks of each other give different amounts */
{
    return kind == TR_ALL_GATHER_V || kind == TR_GATHER_V || kind == TR_SCATTER_V || kind == TR_ALL_TO_ALL_V;
}

static bool is_reduction(tr_collective_kind kind)
{
    return kind == TR_ALL_REDUCE || kind == TR_REDUCE || kind == TR_REDUCE_SCATTER;
}

static bool is_message(tr_collective_kind kind)
{
    return kind == TR_SEND || kind == TR_RECV;
}

/* Most are small, some need several chunks or many pieces. */
static int64_t draw_count(player *p)
{
    static const int most[] = {9, 40, 1025, 3000, 70000, 300000};
    if (p->t->count) return p->t->count;
    int size = trial_below(&p->shared, 16);
    return trial_below(&p->shared, most[size < 5 ? 0 : size < 9 ? 1 : size < 11 ? 2 : size < 13 ? 3 : size < 15 ? 4 : 5]);
}

/* How much a rank gives another, without asking it. */
static int64_t share(const call *c, int from, int to)
{
    uint64_t state = (uint64_t)(c->salt * 31 + from * 8 + to);
    return has_blocks_of_all(c->kind) ? (int64_t)(trial_draw(&state) % (uint64_t)(c->count + 1)) : c->count;
}

static void lay_out(player *p, const call *c, blocks *b, bool incoming)
{
    bool pairs = c->kind == TR_ALL_TO_ALL || c->kind == TR_ALL_TO_ALL_V;
    int gap = has_blocks_of_all(c->kind) ? trial_below(&p->own, 3) : 0;
    for (int i = 0; i < p->t->world; i++) {
        int other = pairs ? p->rank : 0;
        b->counts[i] = incoming ? share(c, i, other) : share(c, other, i);
        b->offsets[i] = b->end;
        b->end += b->counts[i] + gap;
    }
}

static bool can_be_in_place(tr_collective_kind kind)
{
    return kind != TR_SCATTER_V && kind != TR_ALL_TO_ALL_V && kind != TR_SCATTER && !is_message(kind);
}

static call draw_call(player *p)
{
    call c = {.kind = p->t->kind == TRIAL_ANY ? (tr_collective_kind)trial_below(&p->shared, TR_COLLECTIVE_COUNT)
                                              : (tr_collective_kind)p->t->kind};
    do {
        c.dtype = (tr_dtype)trial_below(&p->shared, TR_DTYPE_COUNT);
        c.op = (tr_reduce_op)trial_below(&p->shared, TR_REDUCE_OP_COUNT);
    } while (!op_exists(c.dtype, c.op));
    c.root = trial_below(&p->shared, p->t->world);
    int step = 1 + trial_below(&p->shared, p->t->world - 1);
    c.to = (p->rank + step) % p->t->world;
    c.from = (p->rank + p->t->world - step) % p->t->world;
    c.tag = trial_below(&p->shared, 3);
    c.count = c.kind == TR_BARRIER ? 0 : draw_count(p);
    c.salt = trial_below(&p->shared, 1 << 20);
    c.in_place = c.kind == TR_BROADCAST || (can_be_in_place(c.kind) && trial_below(&p->own, 3) == 0);
    lay_out(p, &c, &c.in_blocks, false);
    lay_out(p, &c, &c.out_blocks, true);
    return c;
}

/* ---- Memory -------------------------------------------------------------------------------------------------------- */

static char *allocate(player *p, bool *shared, size_t bytes)
{
    *shared = p->t->memory == TRIAL_SHARED || (p->t->memory == TRIAL_MIXED && trial_below(&p->own, 2));
    char *memory = *shared ? tr_shared_alloc(bytes + GUARD) : malloc(bytes + GUARD);
    if (memory) memset(memory, GUARD_BYTE, bytes + GUARD);
    return memory;
}

static void release(char *memory, bool shared)
{
    if (shared)
        tr_shared_free(memory);
    else
        free(memory);
}

static void release_call(call *c)
{
    release(c->in, c->in_shared && c->in);
    release(c->out, c->out_shared && c->out);
}

static int64_t in_length(const player *p, const call *c)
{
    switch (c->kind) {
    case TR_REDUCE_SCATTER: return c->count * p->t->world;
    case TR_SCATTER:
    case TR_SCATTER_V: return p->rank == c->root ? c->in_blocks.end : 0;
    case TR_ALL_TO_ALL:
    case TR_ALL_TO_ALL_V: return c->in_blocks.end;
    case TR_ALL_GATHER_V:
    case TR_GATHER_V: return c->out_blocks.counts[p->rank];
    default: return c->count;
    }
}

static int64_t out_length(const player *p, const call *c)
{
    switch (c->kind) {
    case TR_ALL_GATHER:
    case TR_ALL_GATHER_V:
    case TR_ALL_TO_ALL:
    case TR_ALL_TO_ALL_V: return c->out_blocks.end;
    case TR_GATHER:
    case TR_GATHER_V: return p->rank == c->root ? c->out_blocks.end : 0;
    case TR_SCATTER_V: return share(c, 0, p->rank);
    default: return c->count;
    }
}

/* ---- Numbers: of a block, who gives it to whom, and the place ------------------------------------------------------- */

static double mark(const call *c, int from, int to, int64_t i)
{
    int64_t n = (c->salt + from * 31 + to * 17 + i + (i >> 7)) % 113;
    return (double)(c->dtype == TR_BOOL ? n % 2 : n);
}

static void put_block(const call *c, char *memory, int64_t offset, int64_t count, int from, int to)
{
    for (int64_t i = 0; i < count; i++) put(c->dtype, memory, offset + i, mark(c, from, to, i));
}

static bool has_block(const call *c, const char *memory, int64_t offset, int64_t count, int from, int to)
{
    for (int64_t i = 0; i < count; i++)
        if (get(c->dtype, memory, offset + i) != mark(c, from, to, i)) return false;
    return true;
}

/* Writes what this rank gives to where it is read. */
static void fill(const player *p, const call *c, char *in)
{
    const blocks *b = &c->in_blocks;
    bool scatters = c->kind == TR_SCATTER || c->kind == TR_SCATTER_V;
    bool to_each = scatters || c->kind == TR_ALL_TO_ALL || c->kind == TR_ALL_TO_ALL_V;
    int64_t length = in_length(p, c);
    if (is_reduction(c->kind))
        for (int64_t i = 0; i < length; i++) put(c->dtype, in, i, sample(c->dtype, p->rank, i + c->salt));
    else if (to_each)
        for (int to = 0; to < p->t->world && length > 0; to++)
            put_block(c, in, b->offsets[to], b->counts[to], p->rank, to);
    else
        put_block(c, in, 0, length, p->rank, is_message(c->kind) ? c->to : 0);
}

/* Where in `out` a call in place finds its input. */
static char *own_input(const player *p, const call *c)
{
    bool gathers = c->kind == TR_ALL_GATHER || c->kind == TR_ALL_GATHER_V || c->kind == TR_GATHER || c->kind == TR_GATHER_V;
    return c->out + (gathers ? (size_t)c->out_blocks.offsets[p->rank] * tr_dtype_size(c->dtype) : 0);
}

/* In place: a reduce_scatter in its input, all others in their output, where they have one. */
static bool prepare_memory(player *p, call *c)
{
    size_t size = tr_dtype_size(c->dtype);
    bool gatherless = (c->kind == TR_GATHER || c->kind == TR_GATHER_V) && p->rank != c->root;
    c->in_place = c->in_place && !gatherless;
    bool within_in = c->in_place && c->kind == TR_REDUCE_SCATTER;
    if (!c->in_place || within_in) c->in = allocate(p, &c->in_shared, (size_t)in_length(p, c) * size);
    if (!within_in) c->out = allocate(p, &c->out_shared, (size_t)out_length(p, c) * size);
    if ((!c->in && (!c->in_place || within_in)) || (!c->out && !within_in)) return false;
    bool gives = c->kind != TR_BROADCAST || p->rank == c->root;
    if (gives) fill(p, c, c->in ? c->in : own_input(p, c));
    return true;
}

static void write_down(const player *p, call *c)
{
    size_t size = tr_dtype_size(c->dtype);
    tr_collective whole = {.size = sizeof whole, .kind = c->kind, .in = c->in, .out = c->out, .count = c->count,
        .dtype = c->dtype, .op = c->op, .root = c->root, .timeout_ms = p->t->timeout_ms, .file = __FILE__,
        .line = __LINE__};
    c->part_count = 1;
    if (is_message(c->kind)) {
        c->parts[0] = c->parts[1] = whole;
        int send = c->kind == TR_RECV; /* comes second */
        c->parts[send].kind = TR_SEND, c->parts[send].peer = c->to, c->parts[send].tag = c->tag;
        c->parts[!send].kind = TR_RECV, c->parts[!send].peer = c->from, c->parts[!send].tag = c->tag;
        c->part_count = 2;
        return;
    }
    if (!c->out) whole.out = c->in + (size_t)(c->count * p->rank) * size; /* the reduce_scatter in place */
    if (c->kind == TR_ALL_GATHER_V || c->kind == TR_GATHER_V) whole.count = c->out_blocks.counts[p->rank];
    if (c->kind == TR_SCATTER_V) whole.count = share(c, 0, p->rank);
    if (has_blocks_of_all(c->kind)) {
        whole.in_counts = c->in_blocks.counts, whole.in_offsets = c->in_blocks.offsets;
        whole.out_counts = c->out_blocks.counts, whole.out_offsets = c->out_blocks.offsets;
    }
    c->parts[0] = whole;
}

/* ---- Results ------------------------------------------------------------------------------------------------------- */

static bool is_reduced(const player *p, const call *c)
{
    const char *out = (const char *)c->parts[0].out;
    int64_t first = c->salt + (c->kind == TR_REDUCE_SCATTER ? p->rank * c->count : 0);
    if (c->kind == TR_REDUCE && p->rank != c->root) return true;
    for (int64_t i = 0; i < c->count; i++)
        if (!near_enough(c->dtype, get(c->dtype, out, i), reduced(c->dtype, c->op, p->t->world, first + i))) return false;
    return true;
}

static bool has_moved(const player *p, const call *c)
{
    const blocks *b = &c->out_blocks;
    bool pairs = c->kind == TR_ALL_TO_ALL || c->kind == TR_ALL_TO_ALL_V;
    int64_t length = out_length(p, c);
    if (is_message(c->kind)) return has_block(c, c->out, 0, length, c->from, p->rank);
    if (c->kind == TR_BROADCAST) return has_block(c, c->out, 0, length, c->root, 0);
    if (c->kind == TR_SCATTER || c->kind == TR_SCATTER_V) return has_block(c, c->out, 0, length, c->root, p->rank);
    for (int from = 0; from < p->t->world && length > 0; from++)
        if (!has_block(c, c->out, b->offsets[from], b->counts[from], from, pairs ? p->rank : 0)) return false;
    return true;
}

static bool guard_is_there(const char *memory, int64_t length, tr_dtype dtype)
{
    for (int i = 0; i < GUARD && memory; i++)
        if ((unsigned char)memory[(size_t)length * tr_dtype_size(dtype) + (size_t)i] != GUARD_BYTE) return false;
    return true;
}

static void check_call(const player *p, const call *c, trial_post *post)
{
    const char *what = NULL;
    if (is_reduction(c->kind) ? !is_reduced(p, c) : !has_moved(p, c)) what = "a wrong result";
    if (!guard_is_there(c->in, in_length(p, c), c->dtype) || !guard_is_there(c->out, out_length(p, c), c->dtype))
        what = "bytes written behind a buffer";
    if (what && !post->wrong[0])
        snprintf(post->wrong, sizeof post->wrong, "%s: kind %d, dtype %d, op %d, count %lld, root %d, turn %d%s", what,
            (int)c->kind, (int)c->dtype, (int)c->op, (long long)c->count, c->root, atomic_load(&post->moment),
            c->in_place ? ", in place" : "");
}

/* ---- Turns --------------------------------------------------------------------------------------------------------- */

static tr_status run_one(player *p, tr_group *g, const call *c)
{
    if (c->part_count == 1) return tr_run_collective(g, &c->parts[0]);
    if (trial_below(&p->own, 2)) return tr_run_list(g, c->parts, 2);
    tr_work *first = tr_post(g, &c->parts[0]);
    tr_status second = tr_run_collective(g, &c->parts[1]), status = tr_wait(first);
    return status == TR_OK ? second : status;
}

static tr_status post_all(player *p, tr_group *g, const call *calls, int count)
{
    TR_SCOPE;
    tr_work *works[2 * AT_ONCE];
    int posted = 0;
    for (int i = 0; i < count; i++) {
        if (calls[i].part_count == 2 && trial_below(&p->own, 2)) {
            works[posted++] = tr_post_list(g, calls[i].parts, 2);
            continue;
        }
        for (int k = 0; k < calls[i].part_count; k++) works[posted++] = tr_post(g, &calls[i].parts[k]);
    }
    tr_status status = TR_OK;
    for (int i = 0; i < posted; i++) { /* the message is the first failure's */
        tr_status one = status == TR_OK ? tr_wait(works[i]) : TR_OK;
        if (one != TR_OK) status = one;
    }
    for (int i = 0; i < posted && status != TR_OK; i++) /* and still the buffers are not ours before all is done */
        while (!tr_work_done(works[i])) usleep(100);
    return status;
}

static tr_status make_calls(player *p, tr_group *g, call *calls, int count, int turn, trial_post *post)
{
    const trial *t = p->t;
    if (t->fault == TRIAL_DELAY && p->rank == t->victim && turn == t->moment) usleep((unsigned)t->pause_ms * 1000);
    int64_t began = tr__now_ns();
    atomic_store(&post->moment, turn);
    bool alone = count == 1 && trial_below(&p->own, 3) > 0;
    tr_status status = alone ? run_one(p, g, &calls[0]) : post_all(p, g, calls, count);
    atomic_store(&post->turn_ns, tr__now_ns() - began);
    return status;
}

static tr_status take_turn(player *p, tr_group *g, int turn, trial_post *post)
{
    call calls[AT_ONCE] = {0};
    int count = p->t->kind != TRIAL_ANY || trial_below(&p->shared, 2) ? 1 : 2 + trial_below(&p->shared, AT_ONCE - 1);
    tr_status status = TR_OK;
    for (int i = 0; i < count; i++) {
        calls[i] = draw_call(p);
        if (!prepare_memory(p, &calls[i])) status = tr_fail(TR_NO_MEMORY, "no memory for a call");
        write_down(p, &calls[i]);
    }
    if (status == TR_OK) status = make_calls(p, g, calls, count, turn, post);
    for (int i = 0; i < count; i++) {
        if (status == TR_OK) check_call(p, &calls[i], post);
        release_call(&calls[i]);
    }
    return status;
}

tr_status trial_series(const trial *t, int rank, tr_group *group, trial_post *post)
{
    player p = {.t = t, .rank = rank, .shared = t->seed, .own = t->seed ^ (uint64_t)(rank + 1) << 40};
    tr_status status = TR_OK;
    for (int turn = 1; turn <= t->turns && status == TR_OK; turn++) status = take_turn(&p, group, turn, post);
    return status;
}
