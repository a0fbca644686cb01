#include "comm/algo/schedule.h"

#include <string.h>

static const char *const names[TR__ALGORITHM_COUNT] = {
#define ROW(name, text) [TR__##name] = text,
    TR__ALGORITHM_MAP(ROW)
#undef ROW
};

const char *tr__algorithm_name(tr__algorithm algorithm)
{
    return (unsigned)algorithm < TR__ALGORITHM_COUNT ? names[algorithm] : "no algorithm";
}

const tr__kind tr__kinds[TR__KINDS] = {
    [TR_ALL_REDUCE] = {.reduces = true},
    [TR_REDUCE] = {.reduces = true, .to_root = true},
    [TR_BROADCAST] = {.from_root = true},
    [TR_ALL_GATHER] = {.out_blocks = true},
    [TR_GATHER] = {.to_root = true, .out_blocks = true},
    [TR_SCATTER] = {.from_root = true, .in_blocks = true},
    [TR_REDUCE_SCATTER] = {.reduces = true, .in_blocks = true},
    [TR_ALL_TO_ALL] = {.in_blocks = true, .out_blocks = true},
    [TR_ALL_GATHER_V] = {.out_blocks = true, .variable = true},
    [TR_GATHER_V] = {.to_root = true, .out_blocks = true, .variable = true},
    [TR_SCATTER_V] = {.from_root = true, .in_blocks = true, .variable = true},
    [TR_ALL_TO_ALL_V] = {.in_blocks = true, .out_blocks = true, .variable = true},
    [TR_SEND] = {.point_to_point = true},
    [TR_RECV] = {.point_to_point = true},
    [TR_BARRIER] = {0},
    [TR__REMOTE_WAIT] = {.point_to_point = true},
};

const char *tr__kind_name(tr_collective_kind kind)
{
    static const char *const kinds[TR_COLLECTIVE_COUNT] = {
#define ROW(name, text) [TR_##name] = text,
        TR_COLLECTIVE_MAP(ROW)
#undef ROW
    };
    return kinds[kind];
}

int tr__algorithm_find(const char *name)
{
    int algorithm = TR__ALGORITHM_COUNT - 1;
    while (algorithm >= 0 && strcmp(tr__algorithm_name(algorithm), name) != 0) algorithm--;
    return algorithm;
}

/* ---- Parts ------------------------------------------------------------------------------------------------------- */

static tr__range block_of(const int64_t *counts, const int64_t *offsets, int64_t count, int rank)
{
    if (!counts) return (tr__range){count * rank, count * (rank + 1)};
    return (tr__range){offsets[rank], offsets[rank] + counts[rank]};
}

tr__range tr__in_block(const tr__schedule *s, int rank)
{
    return block_of(s->in_counts, s->in_offsets, s->count, rank);
}

tr__range tr__out_block(const tr__schedule *s, int rank)
{
    return block_of(s->out_counts, s->out_offsets, s->count, rank);
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

tr__step tr__exchange_step(int to, tr__part send, int from, tr__part receive)
{
    return (tr__step){.action = TR_SCHEDULE_EXCHANGE, .to = to, .from = from, .send = send, .receive = receive};
}

tr__step tr__send_step(int to, tr__part part)
{
    return (tr__step){.action = TR_SCHEDULE_EXCHANGE, .to = to, .from = -1, .send = part};
}

tr__step tr__receive_step(int from, tr__part part)
{
    return (tr__step){.action = TR_SCHEDULE_EXCHANGE, .to = -1, .from = from, .receive = part};
}

tr__step tr__copy_step(tr__part from, tr__part to)
{
    return (tr__step){.action = TR_SCHEDULE_COPY, .to = -1, .from = -1, .own = from, .receive = to};
}

tr__step tr__finish_step(tr__part part)
{
    return (tr__step){.action = TR_SCHEDULE_FINISH, .to = -1, .from = -1, .receive = part};
}

/* ---- All schedules ----------------------------------------------------------------------------------------------- */

static tr__walk *const walks[TR_COLLECTIVE_COUNT][TR__ALGORITHM_COUNT] = {
    [TR_ALL_REDUCE] = {[TR__RING] = tr__ring_all_reduce, [TR__HALVING] = tr__halving_all_reduce,
        [TR__DOUBLING] = tr__doubling_all_reduce, [TR__TREE] = tr__tree_all_reduce,
        [TR__DIRECT] = tr__direct_reduction},
    [TR_REDUCE] = {[TR__RING] = tr__ring_reduce, [TR__TREE] = tr__tree_reduce, [TR__DIRECT] = tr__direct_reduction},
    [TR_BROADCAST] = {[TR__RING] = tr__ring_broadcast, [TR__TREE] = tr__tree_broadcast, [TR__DIRECT] = tr__direct_move},
    [TR_ALL_GATHER] = {[TR__RING] = tr__ring_all_gather, [TR__DOUBLING] = tr__doubling_all_gather,
        [TR__DIRECT] = tr__direct_move},
    [TR_GATHER] = {[TR__TREE] = tr__tree_gather, [TR__DIRECT] = tr__direct_move},
    [TR_SCATTER] = {[TR__TREE] = tr__tree_scatter, [TR__DIRECT] = tr__direct_move},
    [TR_REDUCE_SCATTER] = {[TR__RING] = tr__ring_reduce_scatter, [TR__DIRECT] = tr__direct_reduction},
    [TR_ALL_TO_ALL] = {[TR__DIRECT] = tr__direct_move},
    [TR_ALL_GATHER_V] = {[TR__RING] = tr__ring_all_gather, [TR__DIRECT] = tr__direct_move},
    [TR_GATHER_V] = {[TR__DIRECT] = tr__direct_move},
    [TR_SCATTER_V] = {[TR__DIRECT] = tr__direct_move},
    [TR_ALL_TO_ALL_V] = {[TR__DIRECT] = tr__direct_move},
    [TR_BARRIER] = {[TR__DOUBLING] = tr__doubling_barrier},
};

/* A rank that is alone copies. */
tr__cursor tr__schedule_walk(const tr__schedule *s, int64_t wanted)
{
    tr__cursor c = {.wanted = wanted};
    if (s->world_size > 1)
        walks[s->kind][s->algorithm](s, &c);
    else if (s->kind != TR_BARRIER && tr__run_one(&c))
        c.step = tr__copy_step((tr__part){TR__IN, tr__in_block(s, 0)}, (tr__part){TR__OUT, tr__out_block(s, 0)});
    return c;
}

bool tr__schedule_exists(tr_collective_kind kind, tr__algorithm algorithm)
{
    return (unsigned)kind < TR_COLLECTIVE_COUNT && (unsigned)algorithm < TR__ALGORITHM_COUNT && walks[kind][algorithm];
}
