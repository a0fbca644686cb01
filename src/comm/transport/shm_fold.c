/*
 * all_reduce, reduce and reduce_scatter: rank r folds block r of all inputs. Of a reduce_scatter the blocks are the
 * caller's; of the others they are equal slices, and the results go to all ranks or to the root.
 *
 * Inline: everyone folds what it needs from the slots by itself.
 *
 * Shared: every rank has mapped every buffer. Rank r folds block r of all inputs into the outputs, in place: each byte
 * is read once and written once, by one rank.
 *
 * Staged: of each chunk a rank copies the pieces that the others fold into its own staging area (fill), folds its own
 * piece from the others' areas and its private memory into its private memory and its own area (fold), and copies the
 * others' results out of theirs (collect):
 *
 *     turn c:  fill(c), signal FILLED
 *              wait for DONE of all, collect(c - 2)
 *              wait for FILLED of all, fold(c - 1), signal DONE
 *
 * The three run interleaved on different chunks, so a rank seldom waits. fill(c) takes the place of chunk c - 4 in the
 * ring. That is safe: we have collected c - 3, so all ranks have folded c - 3, and each of them has collected c - 4
 * before that. fold(c) writes only where we have filled. Ranks that have nothing to collect wait all the same.
 */
#include "comm/algo/reduce.h"
#include "comm/transport/shm.h"

#include <string.h>

/* Elements of the input that a rank folds. */
static tr__range block_of(const tr__shm *t, const tr__shm_call *call, int rank)
{
    const tr_collective *c = call->c;
    return call->kind->in_blocks ? tr__collective_in(c, rank) : tr__slice(c->count, call->size, t->world_size, rank);
}

/* Bytes from the beginning of our part of the output to that of a range of the input: block r of a reduce_scatter is
 * all that rank r gets. */
static size_t place_in_output(const tr__shm *t, const tr__shm_call *call, size_t begin)
{
    return call->kind->in_blocks ? begin - (size_t)block_of(t, call, t->rank).begin * call->size : begin;
}

static void fold(tr__shm *t, const tr__shm_call *call, int outs, size_t bytes)
{
    const tr_collective *c = call->c;
    tr__reduce_find(c->dtype, c->op)(t->in, t->world_size, t->out, outs, (int64_t)(bytes / call->size));
}

void tr__shm_fold_inline(tr__shm *t, tr__shm_call *call)
{
    if (!tr__collective_gets(call->c, t->rank)) return;
    size_t begin = call->kind->in_blocks ? (size_t)block_of(t, call, t->rank).begin * call->size : 0;
    for (int rank = 0; rank < t->world_size; rank++) t->in[rank] = tr__shm_inline(t, call, rank) + begin;
    t->out[0] = call->c->out;
    fold(t, call, 1, tr__collective_bytes(call->c));
}

/* ---- Shared ------------------------------------------------------------------------------------------------------ */

/* Where the buffers of a rank are in this process; *out is NULL for one that we do not write to. */
static tr_status find_buffers(tr__shm *t, tr__shm_call *call, int rank, char **in, char **out)
{
    const tr_collective *c = call->c;
    bool own = rank == t->rank, writes = call->kind->in_blocks ? own : tr__collective_gets(c, rank);
    *in = (char *)c->in;
    *out = writes ? c->out : NULL;
    if (own) return TR_OK;
    const tr__shm_slot *slot = &t->peers[rank].control->slots[call->sequence & 1];
    tr__shm_place in_place = slot->in, out_place = slot->out;
    TR__TRY(tr__shm_find(t, call, rank, in_place, call->bytes, in));
    if (!writes) return TR_OK;
    *out = *in;
    if (out_place.segment == in_place.segment && out_place.offset == in_place.offset) return TR_OK;
    return tr__shm_find(t, call, rank, out_place, call->bytes, out);
}

tr_status tr__shm_fold_shared(tr__shm *t, tr__shm_call *call)
{
    tr__range block = block_of(t, call, t->rank);
    size_t begin = (size_t)block.begin * call->size;
    int outs = 0;
    for (int rank = 0; rank < t->world_size; rank++) {
        char *in, *out;
        TR__TRY(find_buffers(t, call, rank, &in, &out));
        t->in[rank] = in + begin;
        if (out) t->out[outs++] = out + place_in_output(t, call, begin);
    }
    __builtin_prefetch(&t->control->done, 1);
    fold(t, call, outs, (size_t)(block.end - block.begin) * call->size);
    tr__shm_signal(t, TR__SHM_DONE, ++t->steps);
    return tr__shm_await(t, call, TR__SHM_DONE, t->steps, -1);
}

/* ---- Staged ------------------------------------------------------------------------------------------------------ */

static tr__shm_piece piece_of(const tr__shm *t, const tr__shm_call *call, int rank, int64_t index)
{
    return tr__shm_piece_at(t, call, block_of(t, call, rank), index, rank);
}

static uint64_t step_of(const tr__shm *t, int64_t index)
{
    return t->steps + 1 + (uint64_t)index;
}

void tr__shm_fold_fill(tr__shm *t, tr__shm_call *call, int64_t index)
{
    for (int rank = 0; rank < t->world_size; rank++) {
        tr__shm_piece p = piece_of(t, call, rank, index);
        if (rank != t->rank && p.bytes) memcpy(t->staging + p.staged, (const char *)call->c->in + p.begin, p.bytes);
    }
    tr__shm_signal(t, TR__SHM_FILLED, step_of(t, index));
}

static tr_status fold_chunk(tr__shm *t, tr__shm_call *call, int64_t index)
{
    const tr_collective *c = call->c;
    tr__shm_piece own = piece_of(t, call, t->rank, index);
    TR__TRY(tr__shm_await(t, call, TR__SHM_FILLED, step_of(t, index), -1));
    for (int rank = 0; rank < t->world_size; rank++) {
        TR__TRY(tr__shm_stage_find(t, call, rank));
        t->in[rank] = t->stagings[rank] + own.staged;
    }
    t->in[t->rank] = (const char *)c->in + own.begin;
    int outs = 0;
    bool gets = tr__collective_gets(c, t->rank);
    if (gets) t->out[outs++] = (char *)c->out + place_in_output(t, call, own.begin);
    /* What others collect. */
    if (!call->kind->in_blocks && !(call->kind->to_root && gets)) t->out[outs++] = t->staging + own.staged;
    fold(t, call, outs, own.bytes);
    tr__shm_signal(t, TR__SHM_DONE, step_of(t, index));
    return TR_OK;
}

static tr_status collect(tr__shm *t, tr__shm_call *call, int64_t index)
{
    TR__TRY(tr__shm_await(t, call, TR__SHM_DONE, step_of(t, index), -1));
    if (call->kind->in_blocks || !tr__collective_gets(call->c, t->rank)) return TR_OK;
    for (int rank = 0; rank < t->world_size; rank++) {
        tr__shm_piece p = piece_of(t, call, rank, index);
        if (rank != t->rank && p.bytes) memcpy((char *)call->c->out + p.begin, t->stagings[rank] + p.staged, p.bytes);
    }
    return TR_OK;
}

tr_status tr__shm_fold_staged(tr__shm *t, tr__shm_call *call)
{
    TR__TRY(tr__shm_stage_make(t));
    tr__range longest = block_of(t, call, 0); /* no block is longer than the first */
    int64_t chunks = tr__shm_chunks(t, call, longest.end - longest.begin);
    for (int64_t i = 0; i < chunks + 2; i++) {
        if (i < chunks && !(i == 0 && call->filled)) tr__shm_fold_fill(t, call, i);
        if (i >= 2) TR__TRY(collect(t, call, i - 2));
        if (i >= 1 && i <= chunks) TR__TRY(fold_chunk(t, call, i - 1));
    }
    t->steps += (uint64_t)chunks;
    return TR_OK;
}
