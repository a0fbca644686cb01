/*
 * broadcast, gathers, scatters and all_to_alls over several hosts.
 *
 *   broadcast    to a leader of each host, which passes it on. Long: within the root's host first, whose rails send a
 *                share each, which the other hosts put together
 *   all_gather   short, or on hosts of different sizes: gathered at leaders, who tell each other and then their hosts.
 *                Else rail i gathers the blocks of the i-th ranks of all hosts, and each host puts them together
 *   gather, scatter, all_to_all: within the hosts through memory, and every rank with every other one elsewhere; a
 *                leader would only make the same bytes go a longer way
 */
#include "comm/backend/hierarchy.h"

#include <string.h>

/* ---- broadcast --------------------------------------------------------------------------------------------------- */

static tr_status broadcast(const tr__hierarchy_call *k)
{
    const tr_collective *c = k->c;
    tr__hierarchy *h = k->h;
    int root_host = h->hosts.host[c->root], rails = tr__hierarchy_rails(k, c->count * (int64_t)k->size, false);
    bool at_root = h->host == root_host, shared = rails > 1;
    const void *in = h->rank == c->root ? c->in : c->out;
    if (shared && at_root) TR__TRY(tr__hierarchy_spread(k, 1, in)); /* the rails send what they get now */
    tr__range share = tr__hierarchy_share(k, rails, c->count);
    void *mine = tr__hierarchy_at(k, c->out, share.begin);
    if (shared) in = mine;
    TR__TRY(tr__hierarchy_rail(k, rails,
        (tr_collective){.kind = TR_BROADCAST, .in = in, .out = mine, .count = tr__length(share), .root = root_host}));
    return shared && at_root ? TR_OK : tr__hierarchy_spread(k, rails, in);
}

/* ---- all_gather -------------------------------------------------------------------------------------------------- */

static int64_t all_elements(const tr__hierarchy_call *k)
{
    int64_t all = 0;
    for (int rank = 0; rank < k->h->hosts.world_size; rank++) all += tr__length(tr__collective_out(k->c, rank));
    return all;
}

/* Blocks of the output, or of the input, of the ranks in a list: counts and offsets of a part. */
static void list_blocks(const tr__hierarchy_call *k, const int *ranks, int count, bool out)
{
    int64_t *counts = out ? k->h->counts : k->h->more_counts, *offsets = out ? k->h->offsets : k->h->more_offsets;
    for (int i = 0; i < count; i++) {
        tr__range block = out ? tr__collective_out(k->c, ranks[i]) : tr__collective_in(k->c, ranks[i]);
        counts[i] = tr__length(block);
        offsets[i] = block.begin;
    }
}

static tr_status all_gather_by_rails(const tr__hierarchy_call *k)
{
    const tr_collective *c = k->c;
    tr__hierarchy *h = k->h;
    const tr__hosts *hosts = &h->hosts;
    for (int host = 0; host < hosts->count; host++) h->subset[host] = tr__hosts_ranks(hosts, host)[h->place];
    list_blocks(k, h->subset, hosts->count, true);
    tr_collective part = {.kind = TR_ALL_GATHER_V, .in = c->in, .out = c->out, .count = c->count,
        .out_counts = h->counts, .out_offsets = h->offsets};
    TR__TRY(tr__hierarchy_across(k, part, hosts->count));
    for (int host = 0; host < hosts->count; host++) {
        list_blocks(k, tr__hosts_ranks(hosts, host), hosts->least, true);
        part.count = h->counts[h->place];
        part.in = tr__hierarchy_at(k, c->out, h->offsets[h->place]);
        TR__TRY(tr__hierarchy_within(k, part));
    }
    return TR_OK;
}

/* Do all blocks lie in the output one behind the other, those of a host together? */
static bool in_order(const tr__hierarchy_call *k)
{
    const int *ranks = k->h->hosts.ranks;
    int64_t at = tr__collective_out(k->c, ranks[0]).begin;
    for (int i = 0; i < k->h->hosts.world_size; i++) {
        tr__range block = tr__collective_out(k->c, ranks[i]);
        if (block.begin != at) return false;
        at = block.end;
    }
    return true;
}

/* Where blocks go that lie in the order of the hosts: from element 0 of memory that is packed so. */
static void list_packed(const tr__hierarchy_call *k)
{
    tr__hierarchy *h = k->h;
    int64_t at = 0;
    for (int i = 0; i < h->hosts.world_size; i++) {
        int rank = h->hosts.ranks[i];
        h->offsets[i] = at;
        h->counts[i] = tr__length(tr__collective_out(k->c, rank));
        at += h->counts[i];
    }
    for (int host = 0; host < h->hosts.count; host++) {
        int first = h->hosts.first[host], next = h->hosts.first[host + 1];
        h->more_offsets[host] = h->offsets[first];
        h->more_counts[host] = h->offsets[next - 1] + h->counts[next - 1] - h->offsets[first];
    }
}

static void unpack(const tr__hierarchy_call *k, const char *packed)
{
    const tr__hierarchy *h = k->h;
    for (int i = 0; i < h->hosts.world_size; i++) {
        tr__range block = tr__collective_out(k->c, h->hosts.ranks[i]);
        if (!tr__length(block)) continue;
        memcpy(tr__hierarchy_at(k, k->c->out, block.begin), tr__hierarchy_at(k, packed, h->offsets[i]),
            (size_t)tr__length(block) * k->size);
    }
}

static tr_status all_gather_by_leaders(const tr__hierarchy_call *k)
{
    const tr_collective *c = k->c;
    tr__hierarchy *h = k->h;
    int64_t all = all_elements(k);
    bool ordered = in_order(k);
    if (!ordered) TR__TRY(tr__memory_need(&h->packed, (size_t)all * k->size));
    char *packed = ordered ? tr__hierarchy_at(k, c->out, tr__collective_out(c, h->hosts.ranks[0]).begin) : h->packed.at;
    list_packed(k);
    const int64_t *counts = h->counts + h->hosts.first[h->host], *offsets = h->offsets + h->hosts.first[h->host];
    TR__TRY(tr__hierarchy_within(k, (tr_collective){.kind = TR_GATHER_V, .in = c->in, .out = packed, .count = c->count,
        .out_counts = counts, .out_offsets = offsets}));
    TR__TRY(tr__hierarchy_rail(k, 1, (tr_collective){.kind = TR_ALL_GATHER_V, .out = packed,
        .in = tr__hierarchy_at(k, packed, h->more_offsets[h->host]), .count = h->more_counts[h->host],
        .out_counts = h->more_counts, .out_offsets = h->more_offsets}));
    TR__TRY(tr__hierarchy_within(k, (tr_collective){.kind = TR_BROADCAST, .in = packed, .out = packed, .count = all}));
    if (!ordered) unpack(k, packed);
    return TR_OK;
}

static tr_status all_gather(const tr__hierarchy_call *k)
{
    bool rails = tr__hierarchy_rails(k, all_elements(k) * (int64_t)k->size, true) > 1;
    return rails ? all_gather_by_rails(k) : all_gather_by_leaders(k);
}

/* ---- gather, scatter --------------------------------------------------------------------------------------------- */

/* The root, then all ranks of other hosts. Returns how many. */
static int make_remote_subset(const tr__hierarchy_call *k)
{
    tr__hierarchy *h = k->h;
    int count = 0;
    h->subset[count++] = k->c->root;
    for (int rank = 0; rank < h->hosts.world_size; rank++)
        if (h->hosts.host[rank] != h->hosts.host[k->c->root]) h->subset[count++] = rank;
    return count;
}

/* `part` is a gather_v or scatter_v, complete but for its blocks. */
static tr_status to_and_from_root(const tr__hierarchy_call *k, tr_collective part)
{
    tr__hierarchy *h = k->h;
    const tr__hosts *hosts = &h->hosts;
    bool root = h->rank == k->c->root, gathers = part.kind == TR_GATHER_V;
    if (root && gathers) {
        part.out_counts = h->counts;
        part.out_offsets = h->offsets;
    } else if (root) {
        part.in_counts = h->more_counts;
        part.in_offsets = h->more_offsets;
    }
    if (h->host == hosts->host[k->c->root]) {
        part.root = hosts->place[k->c->root];
        if (root) list_blocks(k, tr__hosts_ranks(hosts, h->host), tr__hosts_size(hosts, h->host), gathers);
        TR__TRY(tr__hierarchy_within(k, part));
        if (!root) return TR_OK;
    }
    int members = make_remote_subset(k);
    part.root = 0;
    if (root) list_blocks(k, h->subset, members, gathers);
    return tr__hierarchy_across(k, part, members);
}

/* ---- all_to_all -------------------------------------------------------------------------------------------------- */

/* Pairs of one host exchange nothing in the part across. */
static tr_status all_to_all(const tr__hierarchy_call *k)
{
    const tr_collective *c = k->c;
    tr__hierarchy *h = k->h;
    const tr__hosts *hosts = &h->hosts;
    tr_collective part = {.kind = TR_ALL_TO_ALL_V, .in = c->in, .out = c->out, .in_counts = h->more_counts,
        .in_offsets = h->more_offsets, .out_counts = h->counts, .out_offsets = h->offsets};
    if (c->in == c->out && c->in) { /* the blocks are overwritten in an order of their own */
        size_t bytes = (size_t)(c->count * hosts->world_size) * k->size;
        TR__TRY(tr__memory_need(&h->packed, bytes));
        if (bytes) memcpy(h->packed.at, c->in, bytes);
        part.in = h->packed.at;
    }
    for (int out = 0; out < 2; out++) list_blocks(k, tr__hosts_ranks(hosts, h->host), tr__hosts_size(hosts, h->host), out);
    TR__TRY(tr__hierarchy_within(k, part));
    for (int rank = 0; rank < hosts->world_size; rank++) h->subset[rank] = rank;
    for (int out = 0; out < 2; out++) list_blocks(k, h->subset, hosts->world_size, out);
    return tr__hierarchy_across(k, part, hosts->world_size);
}

/* ---- All --------------------------------------------------------------------------------------------------------- */

tr_status tr__hierarchy_move(const tr__hierarchy_call *k)
{
    tr_collective part = {.in = k->c->in, .out = k->c->out, .count = k->c->count};
    switch (k->c->kind) {
    case TR_BROADCAST: return broadcast(k);
    case TR_ALL_GATHER:
    case TR_ALL_GATHER_V: return all_gather(k);
    case TR_GATHER:
    case TR_GATHER_V: part.kind = TR_GATHER_V; return to_and_from_root(k, part);
    case TR_SCATTER:
    case TR_SCATTER_V: part.kind = TR_SCATTER_V; return to_and_from_root(k, part);
    default: return all_to_all(k);
    }
}
