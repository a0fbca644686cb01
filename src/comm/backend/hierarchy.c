#include "comm/backend/hierarchy.h"

#include "comm/algo/wide_type.h"

#include <stdlib.h>

/* ---- Parts ------------------------------------------------------------------------------------------------------- */

static void complete(const tr__hierarchy_call *k, tr_collective *part)
{
    part->size = sizeof *part;
    part->dtype = k->c->dtype;
    part->timeout_ms = k->c->timeout_ms;
}

tr_status tr__hierarchy_within(const tr__hierarchy_call *k, tr_collective part)
{
    complete(k, &part);
    if (k->h->shm) return tr__shm_run_part(k->h->shm, &part, k->whole, ++k->h->parts);
    tr__collective_alone(&part);
    return TR_OK;
}

tr_status tr__hierarchy_across(const tr__hierarchy_call *k, tr_collective part, int members)
{
    tr__hierarchy *h = k->h;
    tr__tcp_subset subset = {.ranks = h->subset, .count = members, .host = h->hosts.host};
    while (subset.own < members - 1 && h->subset[subset.own] != h->rank) subset.own++;
    complete(k, &part);
    return tr__tcp_run_part(h->tcp, &part, &subset);
}

/* ---- Rails ------------------------------------------------------------------------------------------------------- */

/* Does the call have a root? Then that leads its host, so that nothing goes a longer way than it must. */
static bool rooted(const tr_collective *c)
{
    return tr__kind_of(c->kind)->from_root || tr__kind_of(c->kind)->to_root;
}

int tr__hierarchy_leader(const tr__hierarchy_call *k)
{
    const tr__hosts *hosts = &k->h->hosts;
    return rooted(k->c) && hosts->host[k->c->root] == k->h->host ? hosts->place[k->c->root] : 0;
}

int tr__hierarchy_rails(const tr__hierarchy_call *k, int64_t bytes, bool whole_blocks)
{
    const tr__hosts *hosts = &k->h->hosts;
    bool fits = !whole_blocks || hosts->least == hosts->most;
    return bytes >= TR__RAIL_BYTES && fits ? hosts->least : 1;
}

tr_status tr__hierarchy_rail(const tr__hierarchy_call *k, int rails, tr_collective part)
{
    const tr__hosts *hosts = &k->h->hosts;
    int place = k->h->place;
    if (rails > 1 ? place >= rails : place != tr__hierarchy_leader(k)) return TR_OK;
    for (int host = 0; host < hosts->count; host++) k->h->subset[host] = tr__hosts_ranks(hosts, host)[rails > 1 ? place : 0];
    if (rails == 1 && rooted(k->c)) k->h->subset[hosts->host[k->c->root]] = k->c->root;
    return tr__hierarchy_across(k, part, hosts->count);
}

tr__range tr__hierarchy_share(const tr__hierarchy_call *k, int rails, int64_t count)
{
    tr__hierarchy *h = k->h;
    int first = rails == 1 ? tr__hierarchy_leader(k) : 0;
    for (int place = 0; place < tr__hosts_size(&h->hosts, h->host); place++) {
        bool rides = place >= first && place < first + rails;
        tr__range share = rides ? tr__slice(count, k->size, rails, place - first) : (tr__range){count, count};
        h->counts[place] = tr__length(share);
        h->offsets[place] = share.begin;
    }
    return (tr__range){h->offsets[h->place], h->offsets[h->place] + h->counts[h->place]};
}

tr_status tr__hierarchy_spread(const tr__hierarchy_call *k, int rails, const void *mine)
{
    const tr__hierarchy *h = k->h;
    if (rails == 1)
        return tr__hierarchy_within(k, (tr_collective){.kind = TR_BROADCAST, .in = mine, .out = k->c->out, .count = k->c->count,
            .root = tr__hierarchy_leader(k)});
    return tr__hierarchy_within(k, (tr_collective){.kind = TR_ALL_GATHER_V, .in = mine, .out = k->c->out,
        .count = h->counts[h->place], .out_counts = h->counts, .out_offsets = h->offsets});
}

/* ---- The call ---------------------------------------------------------------------------------------------------- */

static tr_status barrier(const tr__hierarchy_call *k)
{
    tr_collective part = {.kind = TR_BARRIER};
    TR__TRY(tr__hierarchy_within(k, part));
    TR__TRY(tr__hierarchy_rail(k, 1, part));
    return tr__hierarchy_within(k, part);
}

/* Sums and products of types in which something would be lost from part to part are folded in a wider one, and rounded at
 * the end. */
static tr_status reduce_wide(tr__hierarchy_call *k, const tr_collective *given)
{
    tr__hierarchy *h = k->h;
    tr_collective *folded = &k->folded;
    int world = h->hosts.world_size;
    int64_t in_count = given->count * (given->kind == TR_REDUCE_SCATTER ? world : 1);
    k->size = tr_dtype_size(folded->dtype);
    TR__TRY(tr__memory_need(&h->wide, (size_t)(in_count + given->count) * k->size));
    folded->in = h->wide.at;
    folded->out = given->out ? tr__hierarchy_at(k, h->wide.at, in_count) : NULL;
    tr__widen(given->dtype, given->op, given->in, h->wide.at, in_count);
    TR__TRY(tr__hierarchy_reduce(k));
    if (given->out) tr__narrow(given->dtype, given->op, world, folded->out, given->out, given->count);
    return TR_OK;
}

static tr_status reduce(tr__hierarchy_call *k)
{
    const tr_collective *given = k->c;
    k->folded = *given;
    k->c = &k->folded;
    if (given->op != TR_MIN && given->op != TR_MAX) k->folded.dtype = tr__wide_type(given->dtype, given->op);
    if (given->op == TR_AVG) k->folded.op = TR_SUM;
    if (k->folded.dtype != given->dtype) return reduce_wide(k, given);
    k->averages = given->op == TR_AVG;
    return tr__hierarchy_reduce(k);
}

tr_status tr__hierarchy_run(tr__hierarchy *h, const tr_collective *c, uint64_t sequence)
{
    tr__shm_whole whole = {.call = c, .sequence = sequence};
    tr__hierarchy_call k = {.h = h, .c = c, .whole = &whole, .size = tr_dtype_size(c->dtype)};
    TR__TRY(tr__tcp_enter(h->tcp, c, sequence));
    whole.layout = h->tcp->last.layout;
    tr_status status = c->kind == TR_BARRIER             ? barrier(&k)
                       : tr__kind_of(c->kind)->reduces ? reduce(&k)
                                                         : tr__hierarchy_move(&k);
    if (status != TR_OK) status = tr__failure_break(h->tcp->failure);
    if (status == TR_OK && h->shm) tr__shm_finish(h->shm, h->parts);
    if (status != TR_OK && h->shm) tr__shm_fail(h->shm, &whole);
    tr__tcp_exit(h->tcp);
    return status;
}

/* ---- Making ------------------------------------------------------------------------------------------------------ */

tr_status tr__hierarchy_new(tr__hosts *hosts, int rank, tr__shm *shm, tr__tcp *tcp, tr__hierarchy **made)
{
    size_t world = (size_t)hosts->world_size;
    tr__hierarchy *h = calloc(1, sizeof *h);
    int *subset = calloc(world, sizeof *subset);
    int64_t *arrays = calloc(4 * world, sizeof *arrays);
    if (!h || !subset || !arrays) {
        free(h);
        free(subset);
        free(arrays);
        return tr__fail(TR_NO_MEMORY, "no memory for a group of %zu ranks", world);
    }
    *h = (tr__hierarchy){.hosts = *hosts, .rank = rank, .host = hosts->host[rank], .place = hosts->place[rank],
        .shm = shm, .tcp = tcp, .subset = subset, .counts = arrays, .offsets = arrays + world,
        .more_counts = arrays + 2 * world, .more_offsets = arrays + 3 * world};
    *hosts = (tr__hosts){0};
    *made = h;
    return TR_OK;
}

void tr__hierarchy_free(tr__hierarchy *h)
{
    if (!h) return;
    tr__hosts_free(&h->hosts);
    free(h->subset);
    free(h->counts); /* and all that follow */
    free(h->partial.at);
    free(h->packed.at);
    free(h->wide.at);
    free(h);
}
