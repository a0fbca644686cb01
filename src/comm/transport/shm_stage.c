/*
 * The staging areas: shared memory that the transport has of its own, through which private buffers pass in chunks.
 * An area is a ring of RING = 4 places. Of chunk i each block of a buffer has its i-th piece in a place; where blocks
 * go to different ranks (or are folded by different ranks) the pieces stand side by side, so that all ranks have work
 * in every chunk:
 *
 *     a place:  | piece i of block 0 | piece i of block 1 | … | piece i of block P - 1 |
 *
 * Chunks are numbered over the life of the group, alike on all ranks: these steps are what the counters count.
 */
#include "comm/transport/shm.h"

/* Every block has at least a line in a place. */
static size_t place_bytes(const tr__shm *t)
{
    size_t least = (size_t)t->world_size * TR__CACHE_LINE;
    return least > TR__SHM_CHUNK ? least : TR__SHM_CHUNK;
}

static size_t area_bytes(const tr__shm *t)
{
    return TR__SHM_RING * place_bytes(t);
}

tr_status tr__shm_stage_make(tr__shm *t)
{
    if (t->staging) return TR_OK;
    void *staging = tr_shared_alloc(area_bytes(t));
    if (!staging) return tr__fail_context(TR_NO_MEMORY, "group '%s': staging area", t->group);
    tr__shm_place place;
    bool shared;
    tr_status status = tr__shm_show(t, staging, 1, &place, &shared);
    if (status != TR_OK) {
        tr_shared_free(staging);
        return status;
    }
    t->staging = t->stagings[t->rank] = staging;
    atomic_store(&t->control->staging, place.segment);
    return TR_OK;
}

tr_status tr__shm_stage_find(tr__shm *t, tr__shm_call *call, int rank)
{
    if (rank == t->rank) return TR_OK;
    tr__shm_place place = {.segment = atomic_load(&t->peers[rank].control->staging)};
    tr__shm_view view;
    TR__TRY(tr__shm_find(t, call, rank, place, area_bytes(t), &view));
    t->stagings[rank] = view.memory;
    return TR_OK;
}

static size_t piece_bytes(const tr__shm *t, const tr__shm_call *call)
{
    bool side_by_side = call->kind->reduces || call->kind->in_blocks;
    if (!side_by_side) return place_bytes(t);
    return place_bytes(t) / (size_t)t->world_size / TR__CACHE_LINE * TR__CACHE_LINE;
}

int64_t tr__shm_chunks(const tr__shm *t, const tr__shm_call *call, int64_t block)
{
    return block > 0 ? tr__chunk_count(block, call->size, piece_bytes(t, call)) : 0;
}

tr__shm_piece tr__shm_piece_at(const tr__shm *t, const tr__shm_call *call, tr__range block, int64_t index, int number)
{
    size_t piece = piece_bytes(t, call);
    uint64_t step = tr__shm_step(t, index);
    tr__range range = tr__chunk(tr__length(block), call->size, piece, index);
    size_t beside = call->kind->reduces || call->kind->in_blocks ? (size_t)number * piece : 0;
    return (tr__shm_piece){
        .begin = (size_t)(block.begin + range.begin) * call->size,
        .bytes = (size_t)tr__length(range) * call->size,
        .staged = step % TR__SHM_RING * place_bytes(t) + beside,
    };
}
