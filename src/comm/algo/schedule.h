/*
 * Schedules: what each rank sends, receives and folds, step by step, for every collective and algorithm. Pure functions
 * of (kind, algorithm, rank, world size, count, step), with no memory and no transport behind them; a transport carries
 * the steps out (transport/tcp_run.c), a test simulates them (tests/unit/test_schedules.c), and a model predicts what
 * they cost (tools/cost.h).
 *
 * A rank does its steps in order. Within a step it sends and receives at once. The k-th transfer that rank a sends to
 * rank b is the k-th that b receives from a, of the same length. Ranks that finish a step only when its transfers are
 * finished never wait for each other in a circle; a transport may run ahead as far as the parts of a buffer allow.
 *
 * All ranks end with the same bits: an element is folded along one path, in an order that does not depend on timing,
 * and copied from there, or folded in the same order everywhere.
 */
#ifndef TR_COMM_ALGO_SCHEDULE_H
#define TR_COMM_ALGO_SCHEDULE_H

#include "comm/algo/slice.h"

#include <trireme/comm.h>

/* What a kind does, so that a backend needs few cases. A buffer "in blocks" has one block for each rank, else it is one
 * block that concerns everyone. */
typedef struct tr__kind {
    bool reduces;                /* has an op */
    bool from_root, to_root;     /* only the root gives, only the root gets */
    bool in_blocks, out_blocks;
    bool variable;               /* _V: the arrays say how long blocks are */
    bool point_to_point;
} tr__kind;

/* In flight records alone: a thread waits for what another rank does, which the text in the place of the file says. */
enum { TR__REMOTE_WAIT = TR_COLLECTIVE_COUNT, TR__KINDS };

/* kind is one of the enums'. */
extern const tr__kind tr__kinds[TR__KINDS];
static inline const tr__kind *tr__kind_of(tr_collective_kind kind)
{
    return &tr__kinds[kind];
}
/* "all_reduce": of one of the public enum's. */
const char *tr__kind_name(tr_collective_kind kind);

/* X(NAME, "text"): P ranks, N bytes
 *   ring      each rank talks to its two neighbours; P - 1 steps of N/P bytes, twice for all_reduce. broadcast: a chain
 *   halving   recursive halving, then doubling: 2 log2(P) steps, N bytes each way in all. For all_reduce
 *   doubling  recursive doubling: log2(P) steps, of N bytes for all_reduce (Bruck's all_gather, dissemination barrier)
 *   tree      binomial tree: log2(P) steps of N bytes; all_reduce goes up it and down again
 *   direct    every rank with every other: one step of P - 1 transfers of N/P bytes, twice for all_reduce. Elements
 *             are folded all at once and in rank order */
#define TR__ALGORITHM_MAP(X) \
    X(RING, "ring") X(HALVING, "halving") X(DOUBLING, "doubling") X(TREE, "tree") X(DIRECT, "direct")
typedef enum tr__algorithm {
#define TR__ALGORITHM_NAME(name, text) TR__##name,
    TR__ALGORITHM_MAP(TR__ALGORITHM_NAME)
#undef TR__ALGORITHM_NAME
    TR__ALGORITHM_COUNT
} tr__algorithm;

const char *tr__algorithm_name(tr__algorithm algorithm);
/* -1: there is none of that name. */
int tr__algorithm_find(const char *name);

typedef struct tr__schedule {
    tr_collective_kind kind;
    tr__algorithm algorithm;
    int rank, world_size, root;
    int64_t count; /* elements, as in tr_collective */
    /* [world_size], for the kinds with _V, as in tr_collective; NULL: rank r's block begins at r * count. */
    const int64_t *in_counts, *in_offsets, *out_counts, *out_offsets;
    int64_t segment; /* most elements that pass through scratch memory at once; 0: all */
} tr__schedule;

/* Where data is: the caller's buffers, or memory that the transport lends for the call. Ranges are in elements. */
typedef enum tr__buffer { TR__IN, TR__OUT, TR__SCRATCH, TR__BUFFER_COUNT } tr__buffer;
typedef struct tr__part {
    tr__buffer buffer;
    tr__range range;
} tr__part;

typedef enum tr__take {
    TR__TAKE,        /* what comes in is put into `receive` */
    TR__FOLD_BEFORE, /* receive = what comes in op own */
    TR__FOLD_AFTER,  /* receive = own op what comes in */
} tr__take;

typedef struct tr__step {
    tr_schedule_action action;
    int to, from;
    tr__part send, receive, own;
    tr__take take;
    int64_t stride;
} tr__step;

/* A schedule is written as a walk over all its steps, in runs of steps that look alike; the cursor picks one. */
typedef struct tr__cursor {
    int64_t wanted, next; /* the step that is looked for, and the number of the next run's first */
    int64_t scratch;
    tr__step step;
} tr__cursor;
typedef void tr__walk(const tr__schedule *s, tr__cursor *c);

/* Is there such a schedule? */
bool tr__schedule_exists(tr_collective_kind kind, tr__algorithm algorithm);
tr__cursor tr__schedule_walk(const tr__schedule *schedule, int64_t wanted);
static inline int64_t tr__schedule_steps(const tr__schedule *s) { return tr__schedule_walk(s, -1).next; }
static inline tr__step tr__schedule_step(const tr__schedule *s, int64_t step) { return tr__schedule_walk(s, step).step; }
/* Elements of scratch memory that the rank needs. */
static inline int64_t tr__schedule_scratch(const tr__schedule *s) { return tr__schedule_walk(s, -1).scratch; }

/* ---- For the algorithms' files ----------------------------------------------------------------------------------- */

/* A run of n steps comes: is the one that is looked for among them? Then says which. */
static inline bool tr__run(tr__cursor *c, int64_t n, int64_t *index)
{
    *index = c->wanted - c->next;
    c->next += n;
    return *index >= 0 && *index < n;
}

static inline bool tr__run_one(tr__cursor *c)
{
    int64_t index;
    return tr__run(c, 1, &index);
}

static inline int tr__wrap(int64_t place, int world_size)
{
    int64_t rest = place % world_size;
    return (int)(rest < 0 ? rest + world_size : rest);
}

tr__range tr__in_block(const tr__schedule *s, int rank);
tr__range tr__out_block(const tr__schedule *s, int rank);

static inline tr__part tr__whole(tr__buffer buffer, int64_t count)
{
    return (tr__part){buffer, {0, count}};
}

/* Steps with one or two sides. */
tr__step tr__send_step(int to, tr__part part);
tr__step tr__receive_step(int from, tr__part part);
tr__step tr__exchange_step(int to, tr__part send, int from, tr__part receive);
tr__step tr__copy_step(tr__part from, tr__part to);
tr__step tr__finish_step(tr__part part);

tr__walk tr__ring_all_reduce, tr__ring_reduce, tr__ring_broadcast, tr__ring_all_gather, tr__ring_reduce_scatter;
tr__walk tr__halving_all_reduce, tr__doubling_all_reduce, tr__doubling_all_gather, tr__doubling_barrier;
tr__walk tr__tree_all_reduce, tr__tree_reduce, tr__tree_broadcast, tr__tree_gather, tr__tree_scatter;
tr__walk tr__direct_reduction, tr__direct_move;

#endif
