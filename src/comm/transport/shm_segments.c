/*
 * Memory that the ranks show each other. A collective finds out by itself that a buffer lies in shared memory; the first time it
 * does, the endpoint lets the peers map it, and from then on a segment's number and an offset are enough.
 */
#include "base/clock.h"
#include "base/thread.h"
#include "comm/transport/shm.h"

#include <string.h>

/* ---- Our own ----------------------------------------------------------------------------------------------------- */

static tr_status announce(tr__shm *t, const tr__segment *segment)
{
    return tr__endpoint_show(t->endpoint, segment, t->attachment->members, t->world_size, 0);
}

/* Other peers cannot be shown what its owner has closed, such as a block of remote calls: it is private to them. */
static bool find_showable(const void *memory, size_t bytes, tr__segment *segment)
{
    return tr__segment_find(memory, bytes, segment) && segment->fd >= 0;
}

tr_status tr__shm_show(tr__shm *t, const void *memory, size_t bytes, tr__shm_place *place, bool *shared)
{
    uint64_t generation = tr__segment_generation();
    uintptr_t at = (uintptr_t)memory, begin = (uintptr_t)t->own.memory;
    bool same = t->own.id && generation == t->own_generation && at >= begin && at - begin < t->own.bytes &&
                bytes <= t->own.bytes - (at - begin);
    if (!same) {
        tr__segment found;
        *shared = find_showable(memory, bytes, &found);
        if (!*shared) return TR_OK; /* t->own is as it was */
        t->own = found;
        t->own_generation = generation;
        TR__TRY(announce(t, &t->own));
    }
    *shared = true;
    *place = (tr__shm_place){t->own.id, (uintptr_t)memory - (uintptr_t)t->own.memory};
    return TR_OK;
}

tr_status tr__shm_offer(tr__shm *t, const void *memory, size_t bytes, tr__shm_place *place)
{
    tr__segment segment;
    *place = (tr__shm_place){0};
    if (!find_showable(memory, bytes, &segment)) return TR_OK;
    TR__TRY(announce(t, &segment));
    *place = (tr__shm_place){segment.id, (uintptr_t)memory - (uintptr_t)segment.memory};
    return TR_OK;
}

/* ---- Finding ----------------------------------------------------------------------------------------------------- */

/* Waits until the monitor has mapped the segment. *began: since when the call waits, for this or for anything else; 0:
 * it did not yet. */
static tr_status look_up(tr__shm *t, int64_t *began, int timeout_ms, tr__shm_peer *peer, uint64_t id,
    tr__shm_mapping *mapping)
{
    tr__endpoint *e = t->endpoint;
    uint64_t since = tr__attachment_since(t->attachment);
    TR__LOCKED(&e->lock);
    for (bool in_time = true;; in_time = tr__condition_wait(&e->changed, &e->lock, *began + (int64_t)timeout_ms * 1000000)) {
        const tr__shm_mapping *found = tr__endpoint_mapping(peer->link, id, since);
        if (found) {
            *mapping = *found;
            return TR_OK;
        }
        if (tr__failure_there(t->failure)) return tr__failure_tell(t->failure);
        if (atomic_load(&peer->left))
            return tr__fail(TR_PEER, "rank %d (pid %ld) left in the middle of a call", peer->rank, peer->pid);
        if (!in_time)
            return tr__fail(TR_TIMEOUT, "rank %d (pid %ld) did not show its buffer within %g s", peer->rank, peer->pid,
                timeout_ms / 1000.0);
        atomic_store(&t->control->stuck.buffer, (int)(peer - t->peers) + 1);
        if (!*began) *began = tr__now_ns();
    }
}

static tr_status place_in(const tr__shm_peer *peer, const tr__shm_mapping *mapping, tr__shm_place place, size_t bytes,
    char **memory)
{
    if (bytes > mapping->bytes || place.offset > mapping->bytes - bytes)
        return tr__fail(TR_FORMAT, "rank %d (pid %ld) shows a buffer that reaches beyond its segment", peer->rank,
            peer->pid);
    *memory = mapping->memory + place.offset;
    return TR_OK;
}

tr_status tr__shm_find(tr__shm *t, tr__shm_call *call, int rank, tr__shm_place place, size_t bytes, tr__shm_view *view)
{
    tr__shm_peer *peer = &t->peers[rank];
    *view = (tr__shm_view){.address = place.offset};
    if (!place.segment && place.offset && t->endpoint->crosses) return TR_OK;
    uint64_t version = atomic_load(&t->endpoint->version); /* nothing is unmapped while a collective runs */
    if (peer->seen.id != place.segment || peer->seen_version != version) {
        TR__TRY(look_up(t, &call->began, call->timeout_ms, peer, place.segment, &peer->seen));
        peer->seen_version = version;
    }
    return place_in(peer, &peer->seen, place, bytes, &view->memory);
}

tr_status tr__shm_fetch(tr__shm *t, int rank, tr__shm_place place, size_t bytes, void *to, int64_t began,
    int timeout_ms)
{
    tr__shm_peer *peer = &t->peers[rank];
    tr__shm_mapping mapping;
    char *from = NULL;
    tr__shm_use(t);
    tr_status status = look_up(t, &began, timeout_ms, peer, place.segment, &mapping);
    if (status == TR_OK) status = place_in(peer, &mapping, place, bytes, &from);
    if (status == TR_OK) {
        memcpy(to, from, bytes);
        atomic_thread_fence(memory_order_acquire); /* what it gives up is its program's again, to be changed */
        if (atomic_load(&peer->control->gave_up)) status = tr__shm_lost(t, peer, timeout_ms);
    }
    tr__shm_idle(t);
    return status;
}

/* ---- Control blocks ---------------------------------------------------------------------------------------------- */

tr_status tr__shm_find_control(tr__shm *t, tr__shm_call *call, int rank, tr__shm_place place, tr__shm_control **control)
{
    tr__shm_peer *peer = &t->peers[rank];
    tr__shm_mapping mapping;
    char *memory = NULL;
    TR__TRY(look_up(t, &call->began, call->timeout_ms, peer, place.segment, &mapping));
    TR__TRY(place_in(peer, &mapping, place, tr__shm_control_bytes(t->world_size), &memory));
    tr__shm_control *found = (tr__shm_control *)memory;
    bool fits = mapping.stays && place.offset % TR__CACHE_LINE == 0 && found->magic == TR__SHM_MAGIC;
    if (!fits) return tr__fail(TR_FORMAT, "group '%s': rank %d shows no control block of ours", t->group, peer->rank);
    *control = found;
    return TR_OK;
}
