/*
 * Large buffers.
 *
 * Shared: every rank has mapped every buffer. Rank r reduces slice r of all inputs into slice r of all outputs, in
 * place: each byte is read once and written once, by one rank.
 *
 * Staged: buffers are private, so they pass through the ranks' staging areas in chunks. Of each chunk a rank copies
 * what the others will reduce into its own area (fill), reduces its own slice from the others' areas and its private
 * memory into its private memory and its own area (fold), and copies the others' slices out of theirs (collect):
 *
 *     turn c:  fill(c), signal FILLED
 *              wait for DONE of all, collect(c - 2)
 *              wait for FILLED of all, fold(c - 1), signal DONE
 *
 * The three run interleaved on different chunks, so a rank seldom waits. The area is a ring of RING = 4 places; fill(c)
 * takes the place of chunk c - 4. That is safe: we have collected c - 3, so all ranks have folded c - 3, and each of
 * them has collected c - 4 before that. fold(c) writes only where we have filled.
 */
#include "comm/algo/reduce.h"
#include "comm/algo/slice.h"
#include "comm/transport/shm.h"

#include <string.h>

static size_t element(const tr__shm_call *call)
{
    return tr_dtype_size(call->c->dtype);
}

/* ---- Shared ------------------------------------------------------------------------------------------------------ */

/* Where the buffers of a rank are in this process. */
static tr_status find_buffers(tr__shm *t, tr__shm_call *call, int rank, char **in, char **out)
{
    *in = (char *)call->c->in;
    *out = call->c->out;
    if (rank == t->rank) return TR_OK;
    const tr__shm_slot *slot = &t->peers[rank].control->slots[call->sequence & 1];
    tr__shm_place in_place = slot->in, out_place = slot->out;
    TR__TRY(tr__shm_find(t, call, rank, in_place, call->bytes, in));
    *out = *in;
    if (out_place.segment == in_place.segment && out_place.offset == in_place.offset) return TR_OK;
    return tr__shm_find(t, call, rank, out_place, call->bytes, out);
}

tr_status tr__shm_reduce_shared(tr__shm *t, tr__shm_call *call)
{
    const tr_collective *c = call->c;
    tr__range slice = tr__slice(c->count, element(call), t->world_size, t->rank);
    size_t offset = (size_t)slice.begin * element(call);
    for (int rank = 0; rank < t->world_size; rank++) {
        char *in, *out;
        TR__TRY(find_buffers(t, call, rank, &in, &out));
        t->in[rank] = in + offset;
        t->out[rank] = out + offset;
    }
    __builtin_prefetch(&t->control->done, 1);
    tr__reduce_find(c->dtype, c->op)(t->in, t->world_size, t->out, t->world_size, slice.end - slice.begin);
    tr__shm_signal(t, TR__SHM_DONE, ++t->steps);
    return tr__shm_await(t, call, TR__SHM_DONE, t->steps, -1);
}

tr_status tr__shm_broadcast_shared(tr__shm *t, tr__shm_call *call)
{
    const tr_collective *c = call->c;
    t->steps++;
    if (t->rank == c->root) {
        if (c->out != c->in) memcpy(c->out, c->in, call->bytes);
        return tr__shm_await(t, call, TR__SHM_DONE, t->steps, -1);
    }
    char *in;
    tr__shm_place place = t->peers[c->root].control->slots[call->sequence & 1].in;
    TR__TRY(tr__shm_find(t, call, c->root, place, call->bytes, &in));
    memcpy(c->out, in, call->bytes);
    tr__shm_signal(t, TR__SHM_DONE, t->steps);
    return TR_OK;
}

/* ---- Staged ------------------------------------------------------------------------------------------------------ */

/* Makes our staging area at its first use and lets the peers find it. */
static tr_status need_staging(tr__shm *t)
{
    if (t->staging) return TR_OK;
    void *staging = tr_shared_alloc((size_t)TR__SHM_RING * TR__SHM_CHUNK);
    if (!staging) return tr__fail_context(TR_NO_MEMORY, "group '%s': staging area", t->group);
    tr__shm_place place;
    bool shared;
    tr_status status = tr__shm_show(t, staging, 1, &place, &shared);
    if (status != TR_OK) {
        tr_shared_free(staging);
        return status;
    }
    t->staging = staging;
    t->stagings[t->rank] = staging;
    atomic_store(&t->control->staging, place.segment);
    return TR_OK;
}

static tr_status find_staging(tr__shm *t, tr__shm_call *call, int rank)
{
    if (rank == t->rank) return TR_OK;
    tr__shm_place place = {.segment = atomic_load(&t->peers[rank].control->staging)};
    return tr__shm_find(t, call, rank, place, (size_t)TR__SHM_RING * TR__SHM_CHUNK, &t->stagings[rank]);
}

/* One chunk of a staged collective. */
typedef struct chunk {
    uint64_t step;    /* its number in the life of the group, from 1: the counters' value when it is there */
    tr__range range;  /* elements of the buffer */
    size_t ring;      /* byte offset of its place in every staging area */
} chunk;

static chunk chunk_at(const tr__shm *t, const tr__shm_call *call, int64_t index)
{
    uint64_t step = t->steps + 1 + (uint64_t)index;
    tr__range range = tr__chunk(call->c->count, element(call), TR__SHM_CHUNK, index);
    return (chunk){step, range, step % TR__SHM_RING * TR__SHM_CHUNK};
}

/* A rank's slice of a chunk: elements from the chunk's beginning. */
static tr__range slice_of(const tr__shm *t, const tr__shm_call *call, const chunk *k, int rank)
{
    return tr__slice(k->range.end - k->range.begin, element(call), t->world_size, rank);
}

static void fill(tr__shm *t, tr__shm_call *call, const chunk *k)
{
    size_t size = element(call);
    const char *in = (const char *)call->c->in + (size_t)k->range.begin * size;
    char *area = (char *)t->staging + k->ring;
    tr__range own = slice_of(t, call, k, t->rank);
    size_t begin = (size_t)own.begin * size, end = (size_t)own.end * size;
    size_t bytes = (size_t)(k->range.end - k->range.begin) * size;
    memcpy(area, in, begin);
    memcpy(area + end, in + end, bytes - end);
    tr__shm_signal(t, TR__SHM_FILLED, k->step);
}

static tr_status fold(tr__shm *t, tr__shm_call *call, const chunk *k)
{
    const tr_collective *c = call->c;
    size_t size = element(call);
    tr__range own = slice_of(t, call, k, t->rank);
    size_t in_area = k->ring + (size_t)own.begin * size, in_buffer = (size_t)(k->range.begin + own.begin) * size;
    TR__TRY(tr__shm_await(t, call, TR__SHM_FILLED, k->step, -1));
    for (int rank = 0; rank < t->world_size; rank++) {
        TR__TRY(find_staging(t, call, rank));
        t->in[rank] = t->stagings[rank] + in_area;
    }
    t->in[t->rank] = (const char *)c->in + in_buffer;
    t->out[0] = (char *)c->out + in_buffer;
    t->out[1] = (char *)t->staging + in_area;
    tr__reduce_find(c->dtype, c->op)(t->in, t->world_size, t->out, 2, own.end - own.begin);
    tr__shm_signal(t, TR__SHM_DONE, k->step);
    return TR_OK;
}

static tr_status collect(tr__shm *t, tr__shm_call *call, const chunk *k)
{
    size_t size = element(call);
    TR__TRY(tr__shm_await(t, call, TR__SHM_DONE, k->step, -1));
    char *out = (char *)call->c->out + (size_t)k->range.begin * size;
    for (int rank = 0; rank < t->world_size; rank++) {
        if (rank == t->rank) continue;
        tr__range slice = slice_of(t, call, k, rank);
        size_t at = (size_t)slice.begin * size;
        memcpy(out + at, t->stagings[rank] + k->ring + at, (size_t)(slice.end - slice.begin) * size);
    }
    return TR_OK;
}

tr_status tr__shm_fill_first(tr__shm *t, tr__shm_call *call)
{
    TR__TRY(need_staging(t));
    if (call->c->kind != TR_ALL_REDUCE) return TR_OK;
    chunk first = chunk_at(t, call, 0);
    fill(t, call, &first);
    call->filled = true;
    return TR_OK;
}

tr_status tr__shm_reduce_staged(tr__shm *t, tr__shm_call *call)
{
    TR__TRY(need_staging(t));
    int64_t chunks = tr__chunk_count(call->c->count, element(call), TR__SHM_CHUNK);
    for (int64_t i = 0; i < chunks + 2; i++) {
        chunk filling = chunk_at(t, call, i), folding = chunk_at(t, call, i - 1), collecting = chunk_at(t, call, i - 2);
        if (i < chunks && !(i == 0 && call->filled)) fill(t, call, &filling);
        if (i >= 2) TR__TRY(collect(t, call, &collecting));
        if (i >= 1 && i <= chunks) TR__TRY(fold(t, call, &folding));
    }
    t->steps += (uint64_t)chunks;
    return TR_OK;
}

/* The root fills its area RING chunks ahead of the slowest; the others copy out. */
static tr_status give_chunk(tr__shm *t, tr__shm_call *call, const chunk *k, int64_t index)
{
    size_t size = element(call);
    if (index >= TR__SHM_RING) TR__TRY(tr__shm_await(t, call, TR__SHM_DONE, k->step - TR__SHM_RING, -1));
    const char *in = (const char *)call->c->in + (size_t)k->range.begin * size;
    memcpy((char *)t->staging + k->ring, in, (size_t)(k->range.end - k->range.begin) * size);
    tr__shm_signal(t, TR__SHM_FILLED, k->step);
    return TR_OK;
}

static tr_status take_chunk(tr__shm *t, tr__shm_call *call, const chunk *k)
{
    size_t size = element(call);
    int root = call->c->root;
    TR__TRY(tr__shm_await(t, call, TR__SHM_FILLED, k->step, root));
    TR__TRY(find_staging(t, call, root));
    char *out = (char *)call->c->out + (size_t)k->range.begin * size;
    memcpy(out, t->stagings[root] + k->ring, (size_t)(k->range.end - k->range.begin) * size);
    tr__shm_signal(t, TR__SHM_DONE, k->step);
    return TR_OK;
}

tr_status tr__shm_broadcast_staged(tr__shm *t, tr__shm_call *call)
{
    bool root = t->rank == call->c->root;
    int64_t chunks = tr__chunk_count(call->c->count, element(call), TR__SHM_CHUNK);
    for (int64_t i = 0; i < chunks; i++) {
        chunk k = chunk_at(t, call, i);
        TR__TRY(root ? give_chunk(t, call, &k, i) : take_chunk(t, call, &k));
    }
    t->steps += (uint64_t)chunks;
    if (!root) return TR_OK;
    if (call->c->out != call->c->in) memcpy(call->c->out, call->c->in, call->bytes);
    /* The area is the next call's. */
    return tr__shm_await(t, call, TR__SHM_DONE, t->steps, -1);
}
