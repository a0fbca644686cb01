/*
 * all_reduce, reduce and reduce_scatter over several hosts. L ranks on each host, N bytes:
 *
 *   short calls           longer ones, on R rails: the first R ranks of each host, R the fewest that a host holds
 *   reduce to a leader    reduce_scatter within the host: rail i holds share i of its host's result
 *   across leaders        across the hosts, all rails at once: N/R bytes each
 *   back from the leader  all_gather within the host (reduce: gather at the root; reduce_scatter: nothing)
 *
 * Each element takes one way, so all ranks get the same bits. It is folded by its host's ranks in their order, and then
 * across the hosts as the table's algorithm does.
 */
#include "comm/algo/wide_type.h"
#include "comm/backend/hierarchy.h"

#include <string.h>

/* Folds within the host: rail i holds its share of the sum of `all` elements at `mine`. */
static tr_status fold(const tr__hierarchy_call *k, int rails, int64_t all, void *mine)
{
    const tr_collective *c = k->c;
    const tr__hierarchy *h = k->h;
    int leader = tr__hierarchy_leader(k);
    if (rails == 1)
        return tr__hierarchy_within(k, (tr_collective){.kind = TR_REDUCE, .in = c->in, .op = c->op, .count = all,
            .out = h->place == leader ? mine : NULL, .root = leader});
    return tr__hierarchy_within(k, (tr_collective){.kind = TR_REDUCE_SCATTER, .in = c->in, .out = mine, .op = c->op,
        .count = h->counts[h->place], .in_counts = h->counts, .in_offsets = h->offsets});
}

/* The average is a sum until all is folded. */
static void divide(const tr__hierarchy_call *k, void *sum, int64_t count)
{
    if (k->averages) tr__narrow(k->c->dtype, TR_AVG, k->h->hosts.world_size, sum, sum, count);
}

/* ---- all_reduce, reduce ------------------------------------------------------------------------------------------ */

static tr_status all_reduce(const tr__hierarchy_call *k)
{
    const tr_collective *c = k->c;
    int rails = tr__hierarchy_rails(k, c->count * (int64_t)k->size, false);
    tr__range share = tr__hierarchy_share(k, rails, c->count);
    int64_t count = tr__length(share);
    void *mine = tr__hierarchy_at(k, c->out, share.begin);
    TR__TRY(fold(k, rails, c->count, mine));
    TR__TRY(tr__hierarchy_rail(k, rails,
        (tr_collective){.kind = TR_ALL_REDUCE, .in = mine, .out = mine, .count = count, .op = c->op}));
    divide(k, mine, count);
    return tr__hierarchy_spread(k, rails, mine);
}

/* A leader that is the root has the result where it is to be. */
static tr_status reduce(const tr__hierarchy_call *k)
{
    const tr_collective *c = k->c;
    const tr__hierarchy *h = k->h;
    int root_host = h->hosts.host[c->root], rails = tr__hierarchy_rails(k, c->count * (int64_t)k->size, false);
    int64_t count = tr__length(tr__hierarchy_share(k, rails, c->count));
    char *mine = c->out;
    if (rails > 1 || h->rank != c->root) {
        TR__TRY(tr__memory_need(&k->h->partial, (size_t)count * k->size));
        mine = h->partial.at;
    }
    TR__TRY(fold(k, rails, c->count, mine));
    TR__TRY(tr__hierarchy_rail(k, rails,
        (tr_collective){.kind = TR_REDUCE, .in = mine, .out = mine, .count = count, .op = c->op, .root = root_host}));
    if (h->host != root_host) return TR_OK;
    divide(k, mine, count);
    if (rails == 1) return TR_OK;
    return tr__hierarchy_within(k, (tr_collective){.kind = TR_GATHER_V, .in = mine, .out = c->out, .count = count,
        .root = h->hosts.place[c->root], .out_counts = h->counts, .out_offsets = h->offsets});
}

/* ---- reduce_scatter ---------------------------------------------------------------------------------------------- */

/* Each host's blocks, side by side with room for those of the largest host. */
static void pack(const tr__hierarchy_call *k, const char *from, char *to)
{
    const tr__hosts *hosts = &k->h->hosts;
    size_t block = tr__collective_bytes(k->c);
    for (int rank = 0; rank < hosts->world_size && block; rank++) {
        size_t at = (size_t)hosts->host[rank] * (size_t)hosts->most + (size_t)hosts->place[rank];
        memcpy(to + at * block, from + (size_t)rank * block, block);
    }
}

/* The leader needs all blocks of its host's sum, these packed, and those of its own host once more. */
static tr_status reduce_scatter_by_leaders(const tr__hierarchy_call *k)
{
    const tr_collective *c = k->c;
    const tr__hosts *hosts = &k->h->hosts;
    bool leads = k->h->place == 0;
    int64_t most = c->count * hosts->most, all = c->count * hosts->world_size;
    size_t packed = (size_t)(most * hosts->count) * k->size;
    char *sum = NULL;
    if (leads) {
        TR__TRY(tr__memory_need(&k->h->partial, (size_t)(all + most) * k->size));
        TR__TRY(tr__memory_need(&k->h->packed, packed));
        sum = tr__hierarchy_at(k, k->h->partial.at, all);
    }
    TR__TRY(fold(k, 1, all, k->h->partial.at));
    if (leads) {
        if (packed && hosts->most > hosts->least) memset(k->h->packed.at, 0, packed);
        pack(k, k->h->partial.at, k->h->packed.at);
        TR__TRY(tr__hierarchy_rail(k, 1, (tr_collective){.kind = TR_REDUCE_SCATTER, .in = k->h->packed.at, .out = sum,
            .count = most, .op = c->op}));
        divide(k, sum, most);
    }
    return tr__hierarchy_within(k, (tr_collective){.kind = TR_SCATTER, .in = sum, .out = c->out, .count = c->count});
}

/* Rail i carries the blocks of the i-th ranks of all hosts, which need not lie together. */
static tr_status reduce_scatter(const tr__hierarchy_call *k)
{
    const tr_collective *c = k->c;
    tr__hierarchy *h = k->h;
    const tr__hosts *hosts = &h->hosts;
    int rails = tr__hierarchy_rails(k, c->count * hosts->world_size * (int64_t)k->size, true);
    if (rails == 1) return reduce_scatter_by_leaders(k);
    TR__TRY(tr__memory_need(&h->partial, tr__collective_bytes(c) * (size_t)hosts->count));
    for (int host = 0; host < hosts->count; host++) {
        for (int place = 0; place < rails; place++) {
            h->counts[place] = c->count;
            h->offsets[place] = c->count * tr__hosts_ranks(hosts, host)[place];
        }
        TR__TRY(fold(k, rails, c->count * rails, tr__hierarchy_at(k, h->partial.at, c->count * host)));
    }
    TR__TRY(tr__hierarchy_rail(k, rails, (tr_collective){.kind = TR_REDUCE_SCATTER, .in = h->partial.at, .out = c->out,
        .count = c->count, .op = c->op}));
    divide(k, c->out, c->count);
    return TR_OK;
}

tr_status tr__hierarchy_reduce(const tr__hierarchy_call *k)
{
    switch (k->c->kind) {
    case TR_ALL_REDUCE: return all_reduce(k);
    case TR_REDUCE: return reduce(k);
    default: return reduce_scatter(k);
    }
}
