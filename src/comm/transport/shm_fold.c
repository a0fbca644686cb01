/*
 * all_reduce, reduce and reduce_scatter: rank r folds block r of all inputs. Of a reduce_scatter the blocks are the
 * caller's; of the others they are equal slices, and the results go to all ranks or to the root.
 *
 * Inline: everyone folds what it needs from the slots by itself.
 *
 * Placed: every rank can reach every buffer where it lies. Rank r folds block r of all inputs into the outputs: each byte is read
 * once and written once, by one rank. Of buffers that are mapped, that is one pass. Private ones are read, folded and written in
 * pieces through a scratch that stays in the second cache. Nobody else touches block r meanwhile, so it may all be in place.
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

/* ---- Placed ------------------------------------------------------------------------------------------------------ */

static tr__shm_view beyond(tr__shm_view view, size_t bytes)
{
    return (tr__shm_view){view.memory ? view.memory + bytes : NULL, view.address + bytes};
}

/* Where the buffers of a rank are. */
static tr_status find_buffers(tr__shm *t, tr__shm_call *call, int rank, size_t begin)
{
    const tr_collective *c = call->c;
    bool own = rank == t->rank, writes = call->kind->in_blocks ? own : tr__collective_gets(c, rank);
    tr__shm_view in = {.memory = (char *)c->in}, out = {.memory = c->out};
    if (!own) {
        const tr__shm_slot *slot = tr__shm_slot_of(t, call, rank);
        tr__shm_place in_place = slot->in, out_place = slot->out;
        TR__TRY(tr__shm_find(t, call, rank, in_place, call->bytes, &in));
        bool same = out_place.segment == in_place.segment && out_place.offset == in_place.offset;
        out = in;
        if (writes && !same) TR__TRY(tr__shm_find(t, call, rank, out_place, call->bytes, &out));
    }
    t->views[rank] = (tr__shm_fold_views){.in = beyond(in, begin)};
    if (writes) t->views[rank].out = beyond(out, place_in_output(t, call, begin));
    return TR_OK;
}

/* Bytes that are folded at a time: all, if all is mapped. */
static tr_status piece_bytes(tr__shm *t, size_t bytes, size_t *piece)
{
    bool mapped = true;
    *piece = bytes;
    for (int rank = 0; rank < t->world_size; rank++)
        mapped &= t->views[rank].in.memory && (t->views[rank].out.memory || !t->views[rank].out.address);
    if (mapped) return TR_OK;
    if (!t->scratch) t->scratch = tr__pages_alloc(TR__SHM_SCRATCH);
    if (!t->scratch) return tr__fail(TR_NO_MEMORY, "group '%s': no memory to fold private buffers", t->group);
    *piece = TR__SHM_SCRATCH / (size_t)t->world_size / TR__CACHE_LINE * TR__CACHE_LINE;
    return TR_OK;
}

/* Reads what is private, each rank from another one first, folds, and writes what is private. */
static tr_status fold_piece(tr__shm *t, tr__shm_call *call, size_t begin, size_t bytes, size_t piece)
{
    int outs = 0;
    TR__TRY(tr__shm_cross(t, call, -1));
    call->crossed = true;
    for (int i = 0; i < t->world_size; i++) {
        int rank = (t->rank + i) % t->world_size;
        tr__shm_view in = beyond(t->views[rank].in, begin), out = t->views[rank].out;
        char *scratch = in.memory ? NULL : t->scratch + (size_t)rank * piece;
        if (scratch) TR__TRY(tr__shm_copy(t, call, rank, in.address, bytes, scratch, NULL));
        t->in[rank] = scratch ? scratch : in.memory;
        if (out.memory) t->out[outs++] = out.memory + begin;
    }
    if (!outs) t->out[outs++] = t->scratch + (size_t)t->rank * piece; /* our own input is not read */
    fold(t, call, outs, bytes);
    for (int i = 1; i < t->world_size; i++) {
        int rank = (t->rank + i) % t->world_size;
        tr__shm_view out = t->views[rank].out;
        if (!out.memory && out.address) TR__TRY(tr__shm_copy(t, call, rank, out.address + begin, bytes, NULL, t->out[0]));
    }
    tr__shm_cross_end(t);
    return TR_OK;
}

tr_status tr__shm_fold_placed(tr__shm *t, tr__shm_call *call)
{
    tr__range block = block_of(t, call, t->rank);
    size_t begin = (size_t)block.begin * call->size, bytes = (size_t)tr__length(block) * call->size, piece;
    for (int rank = 0; rank < t->world_size; rank++) TR__TRY(find_buffers(t, call, rank, begin));
    TR__TRY(piece_bytes(t, bytes, &piece));
    __builtin_prefetch(&t->control->done, 1);
    for (size_t at = 0; at < bytes; at += piece)
        TR__TRY(fold_piece(t, call, at, bytes - at < piece ? bytes - at : piece, piece));
    tr__shm_signal(t, TR__SHM_DONE, ++t->steps);
    return tr__shm_await(t, call, TR__SHM_DONE, t->steps, -1);
}

/* ---- Staged ------------------------------------------------------------------------------------------------------ */

static tr__shm_piece piece_of(const tr__shm *t, const tr__shm_call *call, int rank, int64_t index)
{
    return tr__shm_piece_at(t, call, block_of(t, call, rank), index, rank);
}

void tr__shm_fold_fill(tr__shm *t, tr__shm_call *call, int64_t index)
{
    for (int rank = 0; rank < t->world_size; rank++) {
        tr__shm_piece p = piece_of(t, call, rank, index);
        if (rank != t->rank && p.bytes) memcpy(t->staging + p.staged, (const char *)call->c->in + p.begin, p.bytes);
    }
    tr__shm_signal(t, TR__SHM_FILLED, tr__shm_step(t, index));
}

static tr_status fold_chunk(tr__shm *t, tr__shm_call *call, int64_t index)
{
    const tr_collective *c = call->c;
    tr__shm_piece own = piece_of(t, call, t->rank, index);
    TR__TRY(tr__shm_await(t, call, TR__SHM_FILLED, tr__shm_step(t, index), -1));
    for (int rank = 0; rank < t->world_size; rank++) {
        TR__TRY(tr__shm_stage_find(t, call, rank));
        t->in[rank] = t->stagings[rank] + own.staged;
    }
    if (own.bytes) { /* else the call may have no memory */
        int outs = 0;
        bool gets = tr__collective_gets(c, t->rank);
        t->in[t->rank] = (const char *)c->in + own.begin;
        if (gets) t->out[outs++] = (char *)c->out + place_in_output(t, call, own.begin);
        /* What others collect. */
        if (!call->kind->in_blocks && !(call->kind->to_root && gets)) t->out[outs++] = t->staging + own.staged;
        fold(t, call, outs, own.bytes);
    }
    tr__shm_signal(t, TR__SHM_DONE, tr__shm_step(t, index));
    return TR_OK;
}

static tr_status collect(tr__shm *t, tr__shm_call *call, int64_t index)
{
    TR__TRY(tr__shm_await(t, call, TR__SHM_DONE, tr__shm_step(t, index), -1));
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
    int64_t chunks = tr__shm_chunks(t, call, tr__length(longest));
    for (int64_t i = 0; i < chunks + 2; i++) {
        if (i < chunks && !(i == 0 && call->filled)) tr__shm_fold_fill(t, call, i);
        if (i >= 2) TR__TRY(collect(t, call, i - 2));
        if (i >= 1 && i <= chunks) TR__TRY(fold_chunk(t, call, i - 1));
    }
    t->steps += (uint64_t)chunks;
    return TR_OK;
}
