/*
 * Every schedule, carried out without I/O: for all world sizes up to 33, every root and many counts, each send meets
 * exactly its receive, ranks that wait for both sides of every step never wait in a circle, and the result is what the
 * collective is defined to be, with the same bits on all ranks.
 *
 * ctest: timeout=300
 */
#include "comm/algo/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WORLD_MOST = 33 };

/* An element: a sum that wraps, so that each contribution counts exactly once, and one whose last bits tell in which
 * order it was made. */
typedef struct item {
    uint64_t sum;
    float order;
} item;

static item item_of(int rank, int64_t i)
{
    uint64_t x = ((uint64_t)rank * 1000003 + (uint64_t)i + 1) * 0x9e3779b97f4a7c15;
    return (item){x ^ x >> 29, (float)(x >> 40) * 1.1e-3f};
}

static item fold(item a, item b)
{
    return (item){a.sum + b.sum, a.order + b.order};
}

/* What FINISH does here: easy to see whether it was done once. */
static item finish(item a)
{
    return (item){a.sum * 3, a.order * 3};
}

/* ---- Ranks without I/O ------------------------------------------------------------------------------------------- */

typedef struct rank {
    tr__schedule s;
    item *memory[TR__BUFFER_COUNT];
    int64_t lengths[TR__BUFFER_COUNT];
    int64_t step, steps;
    tr__step now;
    bool sent, received;
} rank;

typedef struct plan {
    tr_collective_kind kind;
    tr__algorithm algorithm;
    int world, root;
    int64_t count, segment;
    bool in_place; /* all_reduce: the same memory for input and output */
} plan;

static char *plan_text(const plan *p)
{
    static char text[200];
    snprintf(text, sizeof text, "kind %d, %s, %d ranks, root %d, count %ld, segment %ld", (int)p->kind,
        tr__algorithm_name(p->algorithm), p->world, p->root, (long)p->count, (long)p->segment);
    return text;
}

static item *at(const plan *p, const rank *r, tr__part part)
{
    if (part.range.begin < 0 || part.range.end < part.range.begin || part.range.end > r->lengths[part.buffer])
        fail_msg("%s: rank %d: [%ld, %ld) is not in buffer %d of %ld", plan_text(p), r->s.rank,
            (long)part.range.begin, (long)part.range.end, (int)part.buffer, (long)r->lengths[part.buffer]);
    return r->memory[part.buffer] + part.range.begin;
}

static int64_t length_of(tr__part part)
{
    return part.range.end - part.range.begin;
}

static void take_in(const plan *p, const rank *r, const item *came)
{
    item *to = at(p, r, r->now.receive);
    const item *own = r->now.take == TR__TAKE ? NULL : at(p, r, r->now.own);
    if (own) assert_int_equal(length_of(r->now.own), length_of(r->now.receive));
    for (int64_t i = 0; i < length_of(r->now.receive); i++)
        to[i] = !own ? came[i] : r->now.take == TR__FOLD_BEFORE ? fold(came[i], own[i]) : fold(own[i], came[i]);
}

static void fold_all(const plan *p, const rank *r)
{
    int64_t n = length_of(r->now.receive);
    item *to = at(p, r, r->now.receive);
    for (int64_t i = 0; i < n; i++) {
        item sum = {0};
        for (int from = 0; from < p->world; from++) {
            tr__part part = r->now.own;
            if (from != r->s.rank) {
                int64_t shift = (from - (from > r->s.rank)) * r->now.stride;
                part = r->now.send;
                part.range = (tr__range){part.range.begin + shift, part.range.end + shift};
            }
            assert_int_equal(length_of(part), n);
            item x = at(p, r, part)[i];
            sum = from == 0 ? x : fold(sum, x);
        }
        to[i] = finish(sum);
    }
}

static void do_locally(const plan *p, rank *r)
{
    item *to = at(p, r, r->now.receive);
    int64_t n = length_of(r->now.receive);
    if (r->now.action == TR_SCHEDULE_COPY) {
        assert_int_equal(length_of(r->now.own), n);
        if (n) memmove(to, at(p, r, r->now.own), (size_t)n * sizeof *to);
    }
    if (r->now.action == TR_SCHEDULE_FINISH)
        for (int64_t i = 0; i < n; i++) to[i] = finish(to[i]);
    if (r->now.action == TR_SCHEDULE_FOLD) fold_all(p, r);
}

/* Goes on to the next step that needs others. */
static void advance(const plan *p, rank *r)
{
    for (r->step++; r->step < r->steps; r->step++) {
        r->now = tr__schedule_step(&r->s, r->step);
        r->sent = r->now.to < 0;
        r->received = r->now.from < 0;
        if (r->now.action == TR_SCHEDULE_EXCHANGE) return;
        do_locally(p, r);
    }
}

/* The transfer from rank a to rank b if both are at it; a rendezvous: neither goes on without the other. What is sent
 * is what was there when the step began, so a step may not receive where it sends from. */
static bool transfer(const plan *p, rank *a, rank *b)
{
    if (b->step >= b->steps || b->received || b->now.from != a->s.rank) return false;
    if (length_of(a->now.send) != length_of(b->now.receive))
        fail_msg("%s: rank %d sends %ld to rank %d, which takes %ld", plan_text(p), a->s.rank,
            (long)length_of(a->now.send), b->s.rank, (long)length_of(b->now.receive));
    take_in(p, b, at(p, a, a->now.send));
    a->sent = b->received = true;
    return true;
}

static void check_step(const plan *p, const rank *r)
{
    if (r->now.to < 0 || r->now.from < 0) return;
    const item *send = at(p, r, r->now.send), *receive = at(p, r, r->now.receive);
    if (send < receive + length_of(r->now.receive) && receive < send + length_of(r->now.send) &&
        length_of(r->now.send) && length_of(r->now.receive))
        fail_msg("%s: rank %d sends and receives in the same place in step %ld", plan_text(p), r->s.rank,
            (long)r->step);
}

static void carry_out(const plan *p, rank *ranks)
{
    for (int i = 0; i < p->world; i++) {
        advance(p, &ranks[i]);
        if (ranks[i].step < ranks[i].steps) check_step(p, &ranks[i]);
    }
    for (bool going = true; going;) {
        going = false;
        for (int i = 0; i < p->world; i++) {
            rank *r = &ranks[i];
            while (r->step < r->steps) {
                if (!r->sent) going |= transfer(p, r, &ranks[r->now.to]);
                if (!r->received && ranks[r->now.from].step < ranks[r->now.from].steps &&
                    !ranks[r->now.from].sent && ranks[r->now.from].now.to == i)
                    going |= transfer(p, &ranks[r->now.from], r);
                if (!r->sent || !r->received) break;
                advance(p, r);
                if (r->step < r->steps) check_step(p, r);
                going = true;
            }
        }
    }
    for (int i = 0; i < p->world; i++)
        if (ranks[i].step < ranks[i].steps)
            fail_msg("%s: rank %d waits for ever in step %ld", plan_text(p), i, (long)ranks[i].step);
}

/* ---- What a collective is ---------------------------------------------------------------------------------------- */

/* Variable blocks: rank a has this much for rank b, or gives this much to all. */
static int64_t amount(const plan *p, int a, int b)
{
    return p->kind == TR_ALL_TO_ALL_V ? (p->count + 3 * a + 5 * b) % (p->count + 3)
                                      : (p->count + 7 * a) % (p->count + 3);
}

static bool is_variable(tr_collective_kind kind)
{
    return kind == TR_ALL_GATHER_V || kind == TR_GATHER_V || kind == TR_SCATTER_V || kind == TR_ALL_TO_ALL_V;
}

/* Counts and offsets; the end of the last block. */
static int64_t variable_blocks(const plan *p, int r, bool in, const int64_t **counts, const int64_t **offsets)
{
    int64_t *blocks = calloc(2 * (size_t)p->world, sizeof *blocks);
    int64_t used = 2; /* offsets need not begin at zero, nor leave no gap */
    for (int other = 0; other < p->world; other++) {
        int64_t n = p->kind != TR_ALL_TO_ALL_V ? amount(p, other, 0) : in ? amount(p, r, other) : amount(p, other, r);
        blocks[other] = n;
        blocks[p->world + other] = used;
        used += n + 1;
    }
    *counts = blocks;
    *offsets = blocks + p->world;
    return used;
}

static void set_up(const plan *p, rank *r, int number)
{
    *r = (rank){.step = -1};
    r->s = (tr__schedule){.kind = p->kind, .algorithm = p->algorithm, .rank = number, .world_size = p->world,
        .root = p->root, .count = p->count, .segment = p->segment};
    bool root = number == p->root;
    int64_t all = p->count * p->world;
    int64_t in = p->count, out = p->count;
    switch (p->kind) {
    case TR_REDUCE: out = root ? p->count : 0; break;
    case TR_BROADCAST: in = root ? p->count : 0; break;
    case TR_ALL_GATHER: out = all; break;
    case TR_GATHER: out = root ? all : 0; break;
    case TR_SCATTER: in = root ? all : 0; break;
    case TR_REDUCE_SCATTER: in = all; break;
    case TR_ALL_TO_ALL: in = out = all; break;
    default: break;
    }
    if (is_variable(p->kind)) {
        if (p->kind != TR_ALL_TO_ALL_V) r->s.count = amount(p, number, 0);
        bool has_in = p->kind == TR_ALL_TO_ALL_V || (p->kind == TR_SCATTER_V && root);
        bool has_out = p->kind == TR_ALL_TO_ALL_V || p->kind == TR_ALL_GATHER_V || (p->kind == TR_GATHER_V && root);
        in = has_in ? variable_blocks(p, number, true, &r->s.in_counts, &r->s.in_offsets)
                    : p->kind == TR_SCATTER_V ? 0 : r->s.count;
        out = has_out ? variable_blocks(p, number, false, &r->s.out_counts, &r->s.out_offsets)
                      : p->kind == TR_GATHER_V ? 0 : r->s.count;
    }
    r->steps = tr__schedule_steps(&r->s);
    r->lengths[TR__IN] = in;
    r->lengths[TR__OUT] = out;
    r->lengths[TR__SCRATCH] = tr__schedule_scratch(&r->s);
    for (int b = 0; b < TR__BUFFER_COUNT; b++)
        r->memory[b] = calloc((size_t)r->lengths[b] + 1, sizeof(item));
    for (int64_t i = 0; i < in; i++) r->memory[TR__IN][i] = item_of(number, i);
    if (!p->in_place) return;
    free(r->memory[TR__OUT]);
    r->memory[TR__OUT] = r->memory[TR__IN];
}

static void tear_down(const plan *p, rank *r)
{
    for (int b = 0; b < TR__BUFFER_COUNT; b++)
        if (!(b == TR__OUT && p->in_place)) free(r->memory[b]);
    free((void *)r->s.in_counts);
    free((void *)r->s.out_counts);
}

static void expect(const plan *p, const rank *r, int64_t i, item wanted)
{
    if (r->memory[TR__OUT][i].sum == wanted.sum) return;
    fail_msg("%s: rank %d has a wrong element %ld", plan_text(p), r->s.rank, (long)i);
}

static void check_reduced(const plan *p, const rank *ranks, int number, int64_t shift)
{
    for (int64_t i = 0; i < p->count; i++) {
        item sum = {0};
        for (int r = 0; r < p->world; r++) sum.sum += item_of(r, shift + i).sum;
        expect(p, &ranks[number], i, p->world == 1 ? sum : finish(sum));
        if (p->kind == TR_ALL_REDUCE) /* bit by bit */
            assert_memory_equal(&ranks[number].memory[TR__OUT][i].order, &ranks[0].memory[TR__OUT][i].order, 4);
    }
}

/* The block of `from` at rank r is what `from` gave, from its element `first` on. */
static void check_block(const plan *p, const rank *r, int from, tr__range block, int64_t first)
{
    for (int64_t i = block.begin; i < block.end; i++) expect(p, r, i, item_of(from, first + i - block.begin));
}

static void check_rank(const plan *p, const rank *ranks, int number)
{
    const rank *r = &ranks[number];
    bool root = number == p->root;
    switch (p->kind) {
    case TR_ALL_REDUCE: check_reduced(p, ranks, number, 0); break;
    case TR_REDUCE:
        if (root) check_reduced(p, ranks, number, 0);
        break;
    case TR_REDUCE_SCATTER: check_reduced(p, ranks, number, p->count * number); break;
    case TR_BROADCAST: check_block(p, r, p->root, (tr__range){0, p->count}, 0); break;
    case TR_ALL_GATHER:
    case TR_ALL_GATHER_V:
    case TR_GATHER:
    case TR_GATHER_V:
        for (int from = 0; from < p->world && r->lengths[TR__OUT]; from++)
            check_block(p, r, from, tr__out_block(&r->s, from), 0);
        break;
    case TR_SCATTER:
    case TR_SCATTER_V:
        check_block(p, r, p->root, (tr__range){0, r->s.count}, tr__in_block(&ranks[p->root].s, number).begin);
        break;
    case TR_ALL_TO_ALL:
    case TR_ALL_TO_ALL_V:
        for (int from = 0; from < p->world; from++)
            check_block(p, r, from, tr__out_block(&r->s, from), tr__in_block(&ranks[from].s, number).begin);
        break;
    default: break;
    }
}

static void try_plan(const plan *p)
{
    static rank ranks[WORLD_MOST];
    for (int i = 0; i < p->world; i++) set_up(p, &ranks[i], i);
    carry_out(p, ranks);
    for (int i = 0; i < p->world; i++) check_rank(p, ranks, i);
    for (int i = 0; i < p->world; i++) tear_down(p, &ranks[i]);
}

/* ---- Tests ------------------------------------------------------------------------------------------------------- */

static bool has_root(tr_collective_kind kind)
{
    return kind == TR_REDUCE || kind == TR_BROADCAST || kind == TR_GATHER || kind == TR_SCATTER ||
           kind == TR_GATHER_V || kind == TR_SCATTER_V;
}

static void try_all(plan p)
{
    static const int64_t counts[] = {0, 1, 5, 31, 67, 256};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        p.count = counts[c];
        for (p.root = 0; p.root < (has_root(p.kind) ? p.world : 1); p.root++) {
            p.segment = 0;
            p.in_place = false;
            try_plan(&p);
            if (p.kind == TR_ALL_REDUCE) {
                p.in_place = true;
                try_plan(&p);
            }
            for (p.segment = 1; p.algorithm == TR__DIRECT && p.segment < p.count; p.segment = p.segment * 4 + 3)
                try_plan(&p);
        }
    }
}

static void every_schedule_does_what_its_collective_is(void **state)
{
    (void)state;
    for (int kind = 0; kind < TR_COLLECTIVE_COUNT; kind++) {
        if (kind == TR_SEND || kind == TR_RECV) continue;
        bool any = false;
        for (int algorithm = 0; algorithm < TR__ALGORITHM_COUNT; algorithm++) {
            if (!tr__schedule_exists(kind, algorithm)) continue;
            any = true;
            for (int world = 1; world <= WORLD_MOST; world++)
                try_all((plan){.kind = kind, .algorithm = algorithm, .world = world});
        }
        assert_true(any);
    }
}

/* Nobody leaves a barrier before all have come: what a rank has heard of, directly or not, is everyone. */
static void a_barrier_hears_of_everyone(void **state)
{
    (void)state;
    for (int world = 2; world <= WORLD_MOST; world++) {
        uint64_t knows[WORLD_MOST], next[WORLD_MOST];
        tr__schedule s = {.kind = TR_BARRIER, .algorithm = TR__DOUBLING, .world_size = world};
        for (int r = 0; r < world; r++) knows[r] = (uint64_t)1 << r;
        for (int64_t step = 0; step < tr__schedule_steps(&s); step++) {
            for (s.rank = 0; s.rank < world; s.rank++)
                next[s.rank] = knows[s.rank] | knows[tr__schedule_step(&s, step).from];
            memcpy(knows, next, sizeof knows);
        }
        for (int r = 0; r < world; r++) assert_int_equal(knows[r], ((uint64_t)1 << world) - 1);
    }
}

/* A step is found without walking through those before it, however many ranks there are. */
static void large_worlds_are_quick(void **state)
{
    (void)state;
    enum { WORLD = 1 << 20 };
    for (int algorithm = 0; algorithm < TR__ALGORITHM_COUNT; algorithm++) {
        tr__schedule s = {.kind = TR_ALL_REDUCE, .algorithm = algorithm, .rank = WORLD / 3, .world_size = WORLD,
            .count = (int64_t)1 << 40};
        int64_t steps = tr__schedule_steps(&s), sent = 0;
        for (int64_t step = 0; step < steps; step++) {
            tr__step now = tr__schedule_step(&s, step);
            if (now.action == TR_SCHEDULE_EXCHANGE && now.to >= 0) sent += length_of(now.send);
        }
        assert_true(sent > 0);
        if (algorithm == TR__RING || algorithm == TR__DIRECT) /* 2 (P - 1) / P of the data */
            assert_true(sent < 2 * s.count && sent > 2 * s.count - (s.count >> 18));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_does_what_its_collective_is),
        cmocka_unit_test(a_barrier_hears_of_everyone),
        cmocka_unit_test(large_worlds_are_quick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
