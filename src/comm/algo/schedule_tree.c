/*
 * Binomial tree. A rank's place is its distance from the root, v = r - root modulo P. The parent of v is v without its
 * lowest bit, its children are v + 1, v + 2, v + 4, … below that bit; below child v + 2^j are the places v + 2^j …
 * v + 2^(j + 1) - 1, so that every subtree is a run of places.
 */
#include "comm/algo/schedule.h"

/* The tree as a rank sees it. */
typedef struct node {
    int place, parent; /* the parent as a rank; -1: none */
    int children;
    int span;          /* places of its subtree, itself included */
} node;

static int rank_at(const tr__schedule *s, int place)
{
    return tr__wrap((int64_t)s->root + place, s->world_size);
}

static node find_node(const tr__schedule *s)
{
    int world = s->world_size, place = tr__wrap(s->rank - s->root, world);
    node n = {.place = place, .parent = place ? rank_at(s, place & (place - 1)) : -1};
    int64_t low = place ? place & -place : (int64_t)1 << 31, bit = 1;
    while (bit < low && place + bit < world) {
        n.children++;
        bit *= 2;
    }
    n.span = (int)(low < world - place ? low : world - place);
    return n;
}

/* Whole buffers come up the tree; a parent's places precede its children's. */
static void go_up(const tr__schedule *s, tr__cursor *c, tr__buffer sum)
{
    int64_t k;
    node n = find_node(s);
    tr__part in = tr__whole(TR__IN, s->count), folded = tr__whole(sum, s->count);
    if (tr__run(c, n.children, &k)) {
        c->step = tr__receive_step(rank_at(s, n.place + (1 << k)), folded);
        c->step.own = k == 0 ? in : folded;
        c->step.take = TR__FOLD_AFTER;
    }
    if (n.parent >= 0 && tr__run_one(c)) c->step = tr__send_step(n.parent, n.children ? folded : in);
    if (n.parent < 0 && tr__run_one(c)) c->step = tr__finish_step(folded);
}

/* Whole buffers go down the tree, to the largest subtree first. */
static void go_down(const tr__schedule *s, tr__cursor *c, tr__buffer source)
{
    int64_t k;
    node n = find_node(s);
    tr__part out = tr__whole(TR__OUT, s->count);
    if (n.parent >= 0 && tr__run_one(c)) c->step = tr__receive_step(n.parent, out);
    if (tr__run(c, n.children, &k)) {
        int child = rank_at(s, n.place + (1 << (n.children - 1 - k)));
        c->step = tr__send_step(child, n.parent >= 0 ? out : tr__whole(source, s->count));
    }
}

void tr__tree_all_reduce(const tr__schedule *s, tr__cursor *c)
{
    go_up(s, c, TR__OUT);
    go_down(s, c, TR__OUT);
}

void tr__tree_reduce(const tr__schedule *s, tr__cursor *c)
{
    bool keeps = s->rank == s->root || find_node(s).children == 0;
    c->scratch = keeps ? 0 : s->count;
    go_up(s, c, s->rank == s->root ? TR__OUT : TR__SCRATCH);
}

void tr__tree_broadcast(const tr__schedule *s, tr__cursor *c)
{
    go_down(s, c, TR__IN);
    if (s->rank == s->root && tr__run_one(c))
        c->step = tr__copy_step(tr__whole(TR__IN, s->count), tr__whole(TR__OUT, s->count));
}

/* ---- Blocks: gather and scatter -----------------------------------------------------------------------------------
 *
 * A rank below the root keeps its subtree's blocks in scratch memory in the order of places; the root's buffer has them
 * in the order of ranks. A subtree whose ranks go past P - 1 is two runs of ranks, so it is sent in two pieces.
 */

/* Piece 0 or 1 of the subtree at `place`, as places. */
static tr__range piece_of(const tr__schedule *s, int place, int span, int64_t piece)
{
    int64_t end = place + span, cut = s->world_size - s->root; /* the place of rank 0, when it is not the root */
    if (place >= cut || end <= cut) return piece == 0 ? (tr__range){place, end} : (tr__range){end, end};
    return piece == 0 ? (tr__range){place, cut} : (tr__range){cut, end};
}

/* Where a run of places is, at a rank whose own place is `base`. */
static tr__part blocks_at(const tr__schedule *s, tr__buffer roots, int base, tr__range places)
{
    bool root = base == 0;
    int64_t first = root ? rank_at(s, (int)places.begin % s->world_size) : places.begin - base;
    int64_t length = places.end - places.begin;
    return (tr__part){root ? roots : TR__SCRATCH, {first * s->count, (first + length) * s->count}};
}

static int span_of_child(const tr__schedule *s, int place, int64_t bit)
{
    int64_t rest = s->world_size - place;
    return (int)(bit < rest ? bit : rest);
}

/* What rank v keeps for itself: its own block. */
static tr__part own_block(const tr__schedule *s, tr__buffer roots, int place)
{
    return blocks_at(s, roots, place, (tr__range){place, place + 1});
}

void tr__tree_gather(const tr__schedule *s, tr__cursor *c)
{
    int64_t k;
    node n = find_node(s);
    bool leaf = n.children == 0;
    tr__part in = tr__whole(TR__IN, s->count);
    c->scratch = n.parent >= 0 && !leaf ? n.span * s->count : 0;
    if (!leaf && tr__run_one(c)) c->step = tr__copy_step(in, own_block(s, TR__OUT, n.place));
    if (tr__run(c, 2 * (int64_t)n.children, &k)) {
        int child = n.place + (1 << (k / 2)), span = span_of_child(s, child, 1 << (k / 2));
        tr__part part = blocks_at(s, TR__OUT, n.place, piece_of(s, child, span, k % 2));
        c->step = tr__receive_step(rank_at(s, child), part);
    }
    if (n.parent >= 0 && tr__run(c, 2, &k)) {
        tr__range places = piece_of(s, n.place, n.span, k);
        bool empty = places.begin == places.end;
        tr__part part = leaf ? tr__whole(TR__IN, empty ? 0 : s->count) : blocks_at(s, TR__OUT, n.place, places);
        c->step = tr__send_step(n.parent, part);
    }
}

void tr__tree_scatter(const tr__schedule *s, tr__cursor *c)
{
    int64_t k;
    node n = find_node(s);
    bool leaf = n.children == 0;
    tr__part out = tr__whole(TR__OUT, s->count);
    c->scratch = n.parent >= 0 && !leaf ? n.span * s->count : 0;
    if (n.parent >= 0 && tr__run(c, 2, &k)) {
        tr__range places = piece_of(s, n.place, n.span, k);
        bool empty = places.begin == places.end;
        tr__part part = leaf ? tr__whole(TR__OUT, empty ? 0 : s->count) : blocks_at(s, TR__IN, n.place, places);
        c->step = tr__receive_step(n.parent, part);
    }
    if (tr__run(c, 2 * (int64_t)n.children, &k)) {
        int64_t bit = n.children - 1 - k / 2;
        int child = n.place + (1 << bit), span = span_of_child(s, child, 1 << bit);
        tr__part part = blocks_at(s, TR__IN, n.place, piece_of(s, child, span, k % 2));
        c->step = tr__send_step(rank_at(s, child), part);
    }
    if (!leaf && tr__run_one(c)) c->step = tr__copy_step(own_block(s, TR__IN, n.place), out);
}
