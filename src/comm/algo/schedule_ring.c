/*
 * Ring: rank r sends to r + 1 and receives from r - 1, always different blocks, so all links are busy all the time.
 *
 * Reduction, steps k = 0 … P - 2: send block r - k - 1, receive block r - k - 2 and fold it with our own data. Block b
 * begins at rank b + 1 and goes round, so that rank b ends up with it; it is folded in the order b + 1, b + 2, … b.
 * Gathering, steps k = 0 … P - 2: send block r - k, receive block r - k - 1.
 */
#include "comm/algo/schedule.h"

/* The part of our input that belongs to block b. */
static tr__part contribution(const tr__schedule *s, int b)
{
    tr__range range = s->kind == TR_REDUCE_SCATTER ? tr__in_block(s, b) : tr__split(s->count, s->world_size, b);
    return (tr__part){TR__IN, range};
}

/* Where block b is put in step k when it has been folded: in the output when there is room for it, else in one of two
 * places in scratch memory, as it is sent on while the next one comes in. */
static tr__part folded(const tr__schedule *s, int b, int64_t k)
{
    tr__range range = contribution(s, b).range;
    if (s->kind == TR_ALL_REDUCE || (s->kind == TR_REDUCE && s->rank == s->root)) return (tr__part){TR__OUT, range};
    if (s->kind == TR_REDUCE) return (tr__part){TR__SCRATCH, range};
    int64_t length = range.end - range.begin;
    if (b == s->rank) return (tr__part){TR__OUT, {0, length}};
    int64_t place = (k & 1) * s->count;
    return (tr__part){TR__SCRATCH, {place, place + length}};
}

static void reduce_blocks(const tr__schedule *s, tr__cursor *c)
{
    int64_t k;
    int world = s->world_size;
    if (!tr__run(c, world - 1, &k)) return;
    int give = tr__wrap(s->rank - k - 1, world), take = tr__wrap(s->rank - k - 2, world);
    tr__part send = k == 0 ? contribution(s, give) : folded(s, give, k - 1);
    c->step = tr__exchange_step(tr__wrap(s->rank + 1, world), send, tr__wrap(s->rank - 1, world), folded(s, take, k));
    c->step.own = contribution(s, take);
    c->step.take = TR__FOLD_BEFORE;
}

static void finish_block(const tr__schedule *s, tr__cursor *c)
{
    if (tr__run_one(c)) c->step = tr__finish_step(folded(s, s->rank, 0));
}

static tr__part gathered(const tr__schedule *s, int b)
{
    tr__range range = s->kind == TR_ALL_REDUCE ? tr__split(s->count, s->world_size, b) : tr__out_block(s, b);
    return (tr__part){TR__OUT, range};
}

static void gather_blocks(const tr__schedule *s, tr__cursor *c)
{
    int64_t k;
    int world = s->world_size;
    if (!tr__run(c, world - 1, &k)) return;
    c->step = tr__exchange_step(tr__wrap(s->rank + 1, world), gathered(s, tr__wrap(s->rank - k, world)),
        tr__wrap(s->rank - 1, world), gathered(s, tr__wrap(s->rank - k - 1, world)));
}

void tr__ring_all_reduce(const tr__schedule *s, tr__cursor *c)
{
    reduce_blocks(s, c);
    finish_block(s, c);
    gather_blocks(s, c);
}

void tr__ring_reduce_scatter(const tr__schedule *s, tr__cursor *c)
{
    c->scratch = 2 * s->count;
    reduce_blocks(s, c);
    finish_block(s, c);
}

/* The blocks are folded around the ring, then each rank sends its own to the root. */
void tr__ring_reduce(const tr__schedule *s, tr__cursor *c)
{
    int64_t k;
    bool root = s->rank == s->root;
    c->scratch = root ? 0 : s->count;
    reduce_blocks(s, c);
    finish_block(s, c);
    if (!root && tr__run_one(c)) c->step = tr__send_step(s->root, folded(s, s->rank, 0));
    if (root && tr__run(c, s->world_size - 1, &k)) {
        int from = tr__wrap(s->rank - k - 1, s->world_size);
        c->step = tr__receive_step(from, folded(s, from, 0));
    }
}

void tr__ring_all_gather(const tr__schedule *s, tr__cursor *c)
{
    tr__part own = gathered(s, s->rank);
    if (tr__run_one(c)) c->step = tr__copy_step(tr__whole(TR__IN, own.range.end - own.range.begin), own);
    gather_blocks(s, c);
}

/* A chain that begins at the root. Each rank sends on what has come so far. */
void tr__ring_broadcast(const tr__schedule *s, tr__cursor *c)
{
    int world = s->world_size, place = tr__wrap(s->rank - s->root, world);
    tr__part out = tr__whole(TR__OUT, s->count), in = tr__whole(TR__IN, s->count);
    if (place > 0 && tr__run_one(c)) c->step = tr__receive_step(tr__wrap(s->rank - 1, world), out);
    if (place < world - 1 && tr__run_one(c))
        c->step = tr__send_step(tr__wrap(s->rank + 1, world), place > 0 ? out : in);
    if (place == 0 && tr__run_one(c)) c->step = tr__copy_step(in, out);
}
