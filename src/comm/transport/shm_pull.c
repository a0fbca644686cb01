/*
 * broadcast, gathers, scatters and all_to_alls: givers publish their input, and everyone copies the blocks that it gets
 * out of it. Each giver's way is its own: inline in its slot, where it lies, or through its staging area.
 *
 * Staged, a giver fills chunk i while the others pull chunk i - 1. fill(i) takes the place of chunk i - 4 in the ring
 * when all have pulled that. A giver whose memory or staging area is read waits at the end until all have done so.
 */
#include "base/copy.h"
#include "comm/transport/shm.h"

#include <string.h>

typedef enum way { INLINE, PLACED, STAGED } way;

static way way_of(const tr__shm *t, const tr__shm_call *call, int rank)
{
    uint32_t what = atomic_load_explicit(&tr__shm_slot_of(t, call, rank)->call.what, memory_order_relaxed);
    return what & TR__SHM_INLINED ? INLINE : what & TR__SHM_PLACED ? PLACED : STAGED;
}

/* Does the rank read what another one gives? */
static bool gets_from(const tr__shm *t, const tr__shm_call *call, int rank)
{
    return rank != t->rank && tr__collective_gets(call->c, t->rank) && tr__shm_publishes(call->c, rank);
}

/* ---- Blocks of different lengths --------------------------------------------------------------------------------- */

/* The longest block that a rank gives. */
static int64_t longest_of(const tr__shm *t, const tr__shm_call *call, int rank)
{
    return call->kind->variable ? tr__shm_slot_of(t, call, rank)->longest : call->c->count;
}

/* What a peer gives us: elements from the beginning of what it publishes. */
static tr__shm_block given(const tr__shm *t, const tr__shm_call *call, int rank)
{
    if (call->kind->variable && call->kind->in_blocks)
        return tr__shm_table(t->peers[rank].control, t->world_size, call->sequence)[t->rank];
    return (tr__shm_block){call->kind->in_blocks ? t->rank * call->c->count : 0, longest_of(t, call, rank)};
}

/* Does everyone give us what we expect? Of all_gather_v the signatures have told. */
static tr_status check_blocks(const tr__shm *t, const tr__shm_call *call)
{
    for (int rank = 0; rank < t->world_size; rank++) {
        if (!gets_from(t, call, rank)) continue;
        tr__range out = tr__collective_out(call->c, rank);
        int64_t count = given(t, call, rank).count, expected = tr__length(out);
        if (count == expected) continue;
        tr__signature give, get;
        tr__shm_signature(tr__shm_slot_of(t, call, rank), call->sequence, &give);
        tr__shm_signature(tr__shm_slot_of(t, call, t->rank), call->sequence, &get);
        return tr__block_mismatch(t->group, t->peers[rank].rank, &give, count, t->peers[t->rank].rank, &get, expected);
    }
    return TR_OK;
}

/* ---- Staged ------------------------------------------------------------------------------------------------------ */

static void fill_piece(tr__shm *t, const tr__shm_call *call, int to, int64_t index)
{
    tr__shm_piece p = tr__shm_piece_at(t, call, tr__collective_in(call->c, to), index, to);
    if (p.bytes) memcpy(t->staging + p.staged, (const char *)call->c->in + p.begin, p.bytes);
}

tr_status tr__shm_pull_fill(tr__shm *t, tr__shm_call *call, int64_t index)
{
    if (index >= TR__SHM_RING) TR__TRY(tr__shm_await(t, call, TR__SHM_DONE, tr__shm_step(t, index) - TR__SHM_RING, -1));
    if (!call->kind->in_blocks) {
        fill_piece(t, call, 0, index); /* one block for all */
    } else {
        for (int to = 0; to < t->world_size; to++)
            if (to != t->rank) fill_piece(t, call, to, index);
    }
    tr__shm_signal(t, TR__SHM_FILLED, tr__shm_step(t, index));
    return TR_OK;
}

static tr_status pull_chunk(tr__shm *t, tr__shm_call *call, int64_t index)
{
    for (int i = 1; i < t->world_size; i++) {
        int from = (t->rank + i) % t->world_size; /* not all at one rank's memory at a time */
        if (!gets_from(t, call, from) || way_of(t, call, from) != STAGED) continue;
        tr__shm_piece p = tr__shm_piece_at(t, call, tr__collective_out(call->c, from), index, t->rank);
        if (!p.bytes) continue;
        TR__TRY(tr__shm_await(t, call, TR__SHM_FILLED, tr__shm_step(t, index), from));
        TR__TRY(tr__shm_stage_find(t, call, from));
        memcpy((char *)call->c->out + p.begin, t->stagings[from] + p.staged, p.bytes);
    }
    tr__shm_signal(t, TR__SHM_DONE, tr__shm_step(t, index));
    return TR_OK;
}

/* Chunks of the blocks that we get, as long as we expect them. */
static int64_t wanted_chunks(const tr__shm *t, const tr__shm_call *call)
{
    int64_t most = 0;
    for (int from = 0; from < t->world_size; from++) {
        if (!gets_from(t, call, from) || way_of(t, call, from) != STAGED) continue;
        tr__range block = tr__collective_out(call->c, from);
        int64_t chunks = tr__shm_chunks(t, call, tr__length(block));
        if (chunks > most) most = chunks;
    }
    return most;
}

/* Goes as far as we give or get anything. What else there is to be done of `chunks`, a peer may have made up. */
static tr_status pull_staged(tr__shm *t, tr__shm_call *call, int64_t chunks)
{
    int64_t own = 0, turns = wanted_chunks(t, call);
    if (tr__shm_publishes(call->c, t->rank) && way_of(t, call, t->rank) == STAGED) {
        TR__TRY(tr__shm_stage_make(t));
        own = tr__shm_chunks(t, call, longest_of(t, call, t->rank));
    }
    if (turns < own) turns = own;
    for (int64_t i = 0; i <= turns; i++) {
        if (i < own && !(i == 0 && call->filled)) TR__TRY(tr__shm_pull_fill(t, call, i));
        if (i >= 1) TR__TRY(pull_chunk(t, call, i - 1));
    }
    if (turns < chunks) tr__shm_signal(t, TR__SHM_DONE, tr__shm_step(t, chunks - 1));
    t->steps += (uint64_t)chunks;
    return TR_OK;
}

/* ---- Inline and in place ----------------------------------------------------------------------------------------- */

/* Do the buffers of all ranks together exceed the cache that they share? Of the _V kinds each rank judges by its own. */
static bool exceeds_cache(const tr__shm *t, const tr__shm_call *call)
{
    const tr_collective *c = call->c;
    int outs = call->kind->out_blocks ? t->world_size : 1;
    size_t out = 0, givers = call->kind->from_root ? 1 : (size_t)t->world_size,
           getters = call->kind->to_root ? 1 : (size_t)t->world_size;
    for (int rank = 0; tr__collective_gets(c, t->rank) && rank < outs; rank++) {
        tr__range block = tr__collective_out(c, rank);
        out += (size_t)tr__length(block) * call->size;
    }
    return givers * call->bytes + getters * out > t->cache_bytes;
}

static tr_status pull_block(tr__shm *t, tr__shm_call *call, int from)
{
    way w = way_of(t, call, from);
    tr__range to = tr__collective_out(call->c, from);
    size_t bytes = (size_t)tr__length(to) * call->size;
    if (w == STAGED || !bytes) return TR_OK;
    size_t begin = (size_t)given(t, call, from).offset * call->size;
    char *out = (char *)call->c->out + (size_t)to.begin * call->size;
    tr__shm_view view = {0};
    if (w == PLACED) {
        tr__shm_place place = tr__shm_slot_of(t, call, from)->in;
        place.offset += begin;
        TR__TRY(tr__shm_find(t, call, from, place, bytes, &view));
        TR__TRY(tr__shm_cross(t, call, from));
        call->crossed = true;
        if (view.memory)
            tr__copy(out, view.memory, bytes, call->streams);
        else
            TR__TRY(tr__shm_copy(t, call, from, view.address, bytes, out, NULL));
        tr__shm_cross_end(t);
    } else {
        if (bytes > TR__SHM_INLINE || begin > TR__SHM_INLINE - bytes)
            return tr__fail(TR_FORMAT, "rank %d (pid %ld) shows a block beyond its slot", t->peers[from].rank,
                t->peers[from].pid);
        tr__copy(out, tr__shm_inline(t, call, from) + begin, bytes, call->streams);
    }
    return TR_OK;
}

/* ---- All --------------------------------------------------------------------------------------------------------- */

tr_status tr__shm_pull(tr__shm *t, tr__shm_call *call)
{
    const tr_collective *c = call->c;
    bool placed = false, checks = call->kind->variable && c->kind != TR_ALL_GATHER_V;
    int64_t chunks = 0;
    if (checks) TR__TRY(check_blocks(t, call));
    for (int rank = 0; rank < t->world_size; rank++) {
        if (!tr__shm_publishes(c, rank)) continue;
        way w = way_of(t, call, rank);
        int64_t staged = w == STAGED ? tr__shm_chunks(t, call, longest_of(t, call, rank)) : 0;
        placed |= w == PLACED;
        if (staged > chunks) chunks = staged;
    }
    call->streams = exceeds_cache(t, call);
    tr__collective_keep_own(c, t->rank, call->streams);
    if (chunks) TR__TRY(pull_staged(t, call, chunks));
    for (int i = 1; i < t->world_size; i++) {
        int from = (t->rank + i) % t->world_size;
        if (gets_from(t, call, from)) TR__TRY(pull_block(t, call, from));
    }
    /* A rank that found a wrong count has failed by now, and lets nobody pass. */
    if (placed || checks) tr__shm_signal(t, TR__SHM_DONE, ++t->steps);
    bool is_read = tr__shm_publishes(c, t->rank) && way_of(t, call, t->rank) != INLINE;
    if (!checks && !is_read) return TR_OK;
    return tr__shm_await(t, call, TR__SHM_DONE, t->steps, call->kind->to_root && !checks ? c->root : -1);
}
