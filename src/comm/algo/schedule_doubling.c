/*
 * Recursive doubling and halving: in step k a rank meets the one at distance 2^k, so log2(P) steps reach everyone.
 *
 * With a world size that is no power of two, Q the power below it, the first 2 (P - Q) ranks pair up: the odd one gives
 * its data to the even one before it and gets the result at the end. The Q ranks that are left are numbered anew, in
 * order, so that data is always folded in the order of ranks.
 */
#include "comm/algo/schedule.h"

/* ---- The ranks that take part ------------------------------------------------------------------------------------ */

typedef struct participants {
    int size, rounds; /* Q = 2^rounds */
    int pairs;        /* P - Q */
    int number;       /* ours among the Q; -1: we only give and get */
} participants;

static participants find_participants(const tr__schedule *s)
{
    participants t = {.size = 1};
    while (t.size <= s->world_size / 2) {
        t.size *= 2;
        t.rounds++;
    }
    t.pairs = s->world_size - t.size;
    bool paired = s->rank < 2 * t.pairs;
    t.number = !paired ? s->rank - t.pairs : s->rank % 2 == 0 ? s->rank / 2 : -1;
    return t;
}

static int rank_of(const participants *t, int number)
{
    return number < t->pairs ? 2 * number : number + t->pairs;
}

static bool has_pair(const participants *t)
{
    return t->number >= 0 && t->number < t->pairs;
}

/* Folds the odd rank's data into `folded`, or gives ours. */
static void join_pairs(const tr__schedule *s, tr__cursor *c, const participants *t, tr__part folded)
{
    tr__part in = tr__whole(TR__IN, s->count);
    if (t->number < 0 && tr__run_one(c)) c->step = tr__send_step(s->rank - 1, in);
    if (has_pair(t) && tr__run_one(c)) {
        c->step = tr__receive_step(s->rank + 1, folded);
        c->step.own = in;
        c->step.take = TR__FOLD_AFTER;
    }
}

static void part_pairs(const tr__schedule *s, tr__cursor *c, const participants *t)
{
    tr__part out = tr__whole(TR__OUT, s->count);
    if (t->number < 0 && tr__run_one(c)) c->step = tr__receive_step(s->rank - 1, out);
    if (has_pair(t) && tr__run_one(c)) c->step = tr__send_step(s->rank + 1, out);
}

/* ---- all_reduce by doubling: whole buffers ------------------------------------------------------------------------ */

/* What has been folded before round k. It alternates between the output, which may be the input, and scratch memory,
 * as it is sent while the next one is made. */
static tr__part folded_before(const tr__schedule *s, const participants *t, int64_t k)
{
    if (k == 0 && !has_pair(t)) return tr__whole(TR__IN, s->count);
    return tr__whole(k % 2 ? TR__SCRATCH : TR__OUT, s->count);
}

void tr__doubling_all_reduce(const tr__schedule *s, tr__cursor *c)
{
    int64_t k;
    participants t = find_participants(s);
    c->scratch = s->count;
    join_pairs(s, c, &t, folded_before(s, &t, 0));
    if (t.number >= 0) {
        if (tr__run(c, t.rounds, &k)) {
            int other = t.number ^ (1 << k), peer = rank_of(&t, other);
            tr__part own = folded_before(s, &t, k), next = folded_before(s, &t, k + 1);
            c->step = tr__exchange_step(peer, own, peer, next);
            c->step.own = own;
            c->step.take = other < t.number ? TR__FOLD_BEFORE : TR__FOLD_AFTER;
        }
        tr__part out = tr__whole(TR__OUT, s->count);
        if (t.rounds % 2 && tr__run_one(c)) c->step = tr__copy_step(folded_before(s, &t, t.rounds), out);
        if (tr__run_one(c)) c->step = tr__finish_step(out);
    }
    part_pairs(s, c, &t);
}

/* ---- all_reduce by halving and doubling ---------------------------------------------------------------------------
 *
 * In round k ranks at distance 2^k share out what both hold, a half for each, and send the other half; then each holds
 * a Q-th of the sum, and the rounds run backwards to collect the rest.
 */

/* What rank `number` holds after k rounds of halving. */
static tr__range held_after(const tr__schedule *s, int number, int64_t k)
{
    tr__range held = {0, s->count};
    for (int64_t round = 0; round < k; round++) {
        int64_t middle = held.begin + (held.end - held.begin + 1) / 2;
        if (number >> round & 1)
            held.begin = middle;
        else
            held.end = middle;
    }
    return held;
}

void tr__halving_all_reduce(const tr__schedule *s, tr__cursor *c)
{
    int64_t k;
    participants t = find_participants(s);
    join_pairs(s, c, &t, tr__whole(TR__OUT, s->count));
    if (t.number >= 0) {
        if (tr__run(c, t.rounds, &k)) {
            int other = t.number ^ (1 << k), peer = rank_of(&t, other);
            tr__buffer own = k == 0 && !has_pair(&t) ? TR__IN : TR__OUT;
            tr__range kept = held_after(s, t.number, k + 1);
            c->step = tr__exchange_step(peer, (tr__part){own, held_after(s, other, k + 1)}, peer,
                (tr__part){TR__OUT, kept});
            c->step.own = (tr__part){own, kept};
            c->step.take = other < t.number ? TR__FOLD_BEFORE : TR__FOLD_AFTER;
        }
        if (tr__run_one(c)) c->step = tr__finish_step((tr__part){TR__OUT, held_after(s, t.number, t.rounds)});
        if (tr__run(c, t.rounds, &k)) {
            int64_t round = t.rounds - 1 - k;
            int other = t.number ^ (1 << round), peer = rank_of(&t, other);
            c->step = tr__exchange_step(peer, (tr__part){TR__OUT, held_after(s, t.number, round + 1)}, peer,
                (tr__part){TR__OUT, held_after(s, other, round + 1)});
        }
    }
    part_pairs(s, c, &t);
}

/* ---- Any world size: Bruck's all_gather, dissemination barrier ------------------------------------------------------ */

static int rounds_of(int world_size)
{
    int rounds = 0;
    while ((int64_t)1 << rounds < world_size) rounds++;
    return rounds;
}

/* Blocks first … first + n - 1 modulo P, as one or two runs of ranks: piece 0 or 1 of them. */
static tr__part blocks(const tr__schedule *s, int64_t first, int64_t n, int64_t piece)
{
    int64_t begin = tr__wrap(first, s->world_size), end = begin + n, world = s->world_size;
    tr__range run = end <= world ? (tr__range){begin, piece ? begin : end}
                    : piece      ? (tr__range){0, end - world}
                                 : (tr__range){begin, world};
    return (tr__part){TR__OUT, {run.begin * s->count, run.end * s->count}};
}

/* Before round k rank r has the blocks r … r + 2^k - 1, and sends them to r - 2^k. */
void tr__doubling_all_gather(const tr__schedule *s, tr__cursor *c)
{
    int64_t k;
    int world = s->world_size;
    if (tr__run_one(c)) c->step = tr__copy_step(tr__whole(TR__IN, s->count), blocks(s, s->rank, 1, 0));
    if (tr__run(c, 2 * (int64_t)rounds_of(world), &k)) {
        int64_t distance = (int64_t)1 << (k / 2), n = distance < world - distance ? distance : world - distance;
        c->step = tr__exchange_step(tr__wrap(s->rank - distance, world), blocks(s, s->rank, n, k % 2),
            tr__wrap(s->rank + distance, world), blocks(s, s->rank + distance, n, k % 2));
    }
}

void tr__doubling_barrier(const tr__schedule *s, tr__cursor *c)
{
    int64_t k;
    int world = s->world_size;
    tr__part nothing = {TR__IN, {0, 0}};
    if (tr__run(c, rounds_of(world), &k)) {
        int64_t distance = (int64_t)1 << k;
        c->step = tr__exchange_step(tr__wrap(s->rank + distance, world), nothing,
            tr__wrap(s->rank - distance, world), nothing);
    }
}
