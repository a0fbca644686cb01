/*
 * Direct: every rank with every other. In step k = 0 … P - 2 rank r sends to r + k + 1 and receives from r - k - 1, so
 * that no two ranks send to the same one in the same step. The steps of a run do not depend on each other.
 */
#include "comm/algo/schedule.h"

static int rank_after(const tr__schedule *s, int64_t k)
{
    return tr__wrap(s->rank + k + 1, s->world_size);
}

static int rank_before(const tr__schedule *s, int64_t k)
{
    return tr__wrap(s->rank - k - 1, s->world_size);
}

/* ---- Reduction ----------------------------------------------------------------------------------------------------
 *
 * Each rank is sent its block of everyone's data, folds it in one go, and passes the result on: to all (all_reduce), to
 * the root (reduce), or not at all (reduce_scatter). What comes in waits in scratch memory, so large data is cut in
 * segments. The next segment is sent before one is folded, so the links are not idle meanwhile:
 *
 *     exchange(0)   exchange(1) fold(0) pass_on(0)   exchange(2) fold(1) pass_on(1)   …   fold(n - 1) pass_on(n - 1)
 *
 * Two segments are under way at a time, each with a place in scratch memory for every other rank and, in a reduce, one
 * for the result.
 */

/* What is cut in segments is each block of reduce_scatter, and the buffer otherwise. */
static int64_t segment_length(const tr__schedule *s)
{
    return s->segment > 0 && s->segment < s->count ? s->segment : s->count;
}

static int64_t segments(const tr__schedule *s)
{
    return s->count > 0 ? (s->count - 1) / segment_length(s) + 1 : 1;
}

/* Block b of a segment, as a range of the input (and of all_reduce's output). */
static tr__range block_of(const tr__schedule *s, int64_t segment, int b)
{
    int64_t length = segment_length(s), begin = segment * length;
    int64_t rest = s->count - begin < length ? s->count - begin : length;
    tr__range block = {s->count * b, s->count * b + rest};
    if (s->kind != TR_REDUCE_SCATTER) block = tr__split(rest, s->world_size, b);
    return (tr__range){block.begin + begin, block.end + begin};
}

/* The most elements of a block in a segment: the size of a place in scratch memory. */
static int64_t place_length(const tr__schedule *s)
{
    int64_t length = segment_length(s);
    return s->kind == TR_REDUCE_SCATTER ? length : (length + s->world_size - 1) / s->world_size;
}

/* Where block `rank` of a segment, from rank `from`, waits. from == rank: where the result is put. */
static tr__part place_of(const tr__schedule *s, int64_t segment, int from)
{
    tr__range block = block_of(s, segment, s->rank);
    int64_t index = from == s->rank ? s->world_size - 1 : from - (from > s->rank);
    int64_t at = ((segment & 1) * s->world_size + index) * place_length(s);
    return (tr__part){TR__SCRATCH, {at, at + block.end - block.begin}};
}

static tr__part result_of(const tr__schedule *s, int64_t segment)
{
    tr__range block = block_of(s, segment, s->rank);
    if (s->kind == TR_REDUCE && s->rank != s->root) return place_of(s, segment, s->rank);
    int64_t shift = s->kind == TR_REDUCE_SCATTER ? s->count * s->rank : 0;
    return (tr__part){TR__OUT, {block.begin - shift, block.end - shift}};
}

static void exchange(const tr__schedule *s, tr__cursor *c, int64_t segment, int64_t k)
{
    int to = rank_after(s, k), from = rank_before(s, k);
    tr__part send = {TR__IN, block_of(s, segment, to)};
    c->step = tr__exchange_step(to, send, from, place_of(s, segment, from));
}

static void fold(const tr__schedule *s, tr__cursor *c, int64_t segment)
{
    c->step = (tr__step){.action = TR_SCHEDULE_FOLD, .to = -1, .from = -1, .stride = place_length(s)};
    c->step.own = (tr__part){TR__IN, block_of(s, segment, s->rank)};
    c->step.send = place_of(s, segment, s->rank == 0 ? 1 : 0);
    c->step.receive = result_of(s, segment);
}

static void pass_on(const tr__schedule *s, tr__cursor *c, int64_t segment, int64_t k)
{
    int to = rank_after(s, k), from = rank_before(s, k);
    tr__part all = {TR__OUT, block_of(s, segment, from)};
    if (s->kind == TR_ALL_REDUCE)
        c->step = tr__exchange_step(to, result_of(s, segment), from, all);
    else if (s->rank == s->root)
        c->step = tr__receive_step(from, all);
    else
        c->step = tr__send_step(s->root, result_of(s, segment));
}

void tr__direct_reduction(const tr__schedule *s, tr__cursor *c)
{
    int64_t k, others = s->world_size - 1, n = segments(s);
    int64_t passing = s->kind == TR_REDUCE_SCATTER ? 0 : s->kind == TR_REDUCE && s->rank != s->root ? 1 : others;
    c->scratch = (n > 1 ? 2 : 1) * s->world_size * place_length(s);
    if (tr__run(c, others, &k)) exchange(s, c, 0, k);
    int64_t turn = others + 1 + passing;
    if (tr__run(c, (n - 1) * turn, &k)) {
        int64_t segment = k / turn, at = k % turn;
        if (at < others)
            exchange(s, c, segment + 1, at);
        else if (at == others)
            fold(s, c, segment);
        else
            pass_on(s, c, segment, at - others - 1);
    }
    if (tr__run_one(c)) fold(s, c, n - 1);
    if (tr__run(c, passing, &k)) pass_on(s, c, n - 1, k);
}

/* ---- Moving ------------------------------------------------------------------------------------------------------ */

/* What we give a rank, and where what it gives us goes. */
static tr__part part_for(const tr__schedule *s, int to)
{
    const tr__kind *kind = tr__kind_of(s->kind);
    if (kind->in_blocks) return (tr__part){TR__IN, tr__in_block(s, to)};
    return tr__whole(TR__IN, kind->out_blocks ? tr__length(tr__out_block(s, s->rank)) : s->count);
}

static tr__part part_from(const tr__schedule *s, int from)
{
    const tr__kind *kind = tr__kind_of(s->kind);
    if (kind->out_blocks) return (tr__part){TR__OUT, tr__out_block(s, from)};
    return tr__whole(TR__OUT, kind->in_blocks ? tr__length(tr__in_block(s, s->rank)) : s->count);
}

/* Where there is a root, the others send to it, or receive from it, and nothing else. */
void tr__direct_move(const tr__schedule *s, tr__cursor *c)
{
    const tr__kind *kind = tr__kind_of(s->kind);
    bool root = s->rank == s->root, gives = !kind->from_root || root, gets = !kind->to_root || root;
    bool sends = gives && !(kind->to_root && root), receives = gets && !(kind->from_root && root);
    int64_t k;
    if (tr__run(c, gives && gets ? s->world_size - 1 : 1, &k)) {
        int to = kind->to_root ? s->root : rank_after(s, k), from = kind->from_root ? s->root : rank_before(s, k);
        c->step = !receives ? tr__send_step(to, part_for(s, to)) : !sends ? tr__receive_step(from, part_from(s, from))
                  : tr__exchange_step(to, part_for(s, to), from, part_from(s, from));
    }
    if (gives && gets && tr__run_one(c)) c->step = tr__copy_step(part_for(s, s->rank), part_from(s, s->rank));
}
