/*
 * Which memory the ranks have shown each other. A collective finds out by itself that a buffer lies in shared memory;
 * the first time it does, the peers get the segment's descriptor over their sockets, and from then on a segment's
 * number and an offset are enough. A segment that its owner frees is unmapped everywhere, but never under a collective
 * that runs.
 */
#define _GNU_SOURCE
#include "base/clock.h"
#include "comm/transport/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- Our own ----------------------------------------------------------------------------------------------------- */

/* Under the lock. */
static bool is_announced(const tr__shm *t, uint64_t id)
{
    for (size_t i = 0; i < t->announced_count; i++)
        if (t->announced[i] == id) return true;
    return false;
}

/* Notes that the peers know of a segment; false when they do already, or without memory (*status). */
static bool note(tr__shm *t, uint64_t id, tr_status *status)
{
    *status = TR_OK;
    pthread_mutex_lock(&t->lock);
    bool fresh = !is_announced(t, id);
    if (fresh && t->announced_count == t->announced_capacity) {
        size_t capacity = t->announced_capacity ? 2 * t->announced_capacity : 8;
        uint64_t *grown = realloc(t->announced, capacity * sizeof *grown);
        if (grown) {
            t->announced = grown;
            t->announced_capacity = capacity;
        } else {
            *status = tr__fail(TR_NO_MEMORY, "group '%s': no memory to share a buffer", t->group);
            fresh = false;
        }
    }
    if (fresh) t->announced[t->announced_count++] = id;
    pthread_mutex_unlock(&t->lock);
    return fresh;
}

static tr_status announce(tr__shm *t, const tr__segment *segment)
{
    tr_status status;
    if (!note(t, segment->id, &status)) return status;
    tr__shm_message message = {.type = TR__SHM_SEGMENT, .id = segment->id, .bytes = segment->bytes};
    for (int rank = 0; rank < t->world_size; rank++) {
        tr__shm_peer *peer = &t->peers[rank];
        if (rank == t->rank) continue;
        /* A copy for each letter: the owner may free the segment, after a failure, before the letter is gone. */
        int fd = peer->in_process ? -1 : fcntl(segment->fd, F_DUPFD_CLOEXEC, 0);
        if (fd < 0 && !peer->in_process)
            return tr__fail_errno(TR_IO, errno, "group '%s': no descriptor to share a buffer", t->group);
        TR__TRY(tr__shm_post(t, peer, &message, fd));
    }
    tr__shm_kick(t);
    return TR_OK;
}

tr_status tr__shm_show(tr__shm *t, const void *memory, size_t bytes, tr__shm_place *place, bool *shared)
{
    uint64_t generation = tr__segment_generation();
    uintptr_t at = (uintptr_t)memory, begin = (uintptr_t)t->own.memory;
    bool same = t->own.id && generation == t->own_generation && at >= begin && at - begin < t->own.bytes &&
                bytes <= t->own.bytes - (at - begin);
    if (!same) {
        *shared = tr__segment_find(memory, bytes, &t->own);
        if (!*shared) return TR_OK; /* t->own is as it was */
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
    if (!tr__segment_find(memory, bytes, &segment)) return TR_OK;
    TR__TRY(announce(t, &segment));
    *place = (tr__shm_place){segment.id, (uintptr_t)memory - (uintptr_t)segment.memory};
    return TR_OK;
}

/* One of this process's segments is freed: the peers that know it are told. */
static void own_freed(void *user, uint64_t id)
{
    tr__shm *t = user;
    bool known = false;
    pthread_mutex_lock(&t->lock);
    for (size_t i = 0; i < t->announced_count && !known; i++) {
        known = t->announced[i] == id;
        if (known) t->announced[i] = t->announced[--t->announced_count];
    }
    pthread_mutex_unlock(&t->lock);
    if (!known) return;
    tr__shm_message message = {.type = TR__SHM_UNMAP, .id = id};
    for (int rank = 0; rank < t->world_size; rank++) {
        /* Without memory for the letter the peer keeps its mapping until the group ends. */
        tr_status status = rank == t->rank ? TR_OK : tr__shm_post(t, &t->peers[rank], &message, -1);
        (void)status;
    }
    tr__shm_kick(t);
}

void tr__shm_watch(tr__shm *t)
{
    t->watcher = (tr__segment_watcher){.freed = own_freed, .user = t};
    tr__segment_watch(&t->watcher);
    t->watching = true;
}

/* ---- The peers' -------------------------------------------------------------------------------------------------- */

/* The file must be as long as said, and stay so: otherwise touching it is a SIGBUS. */
static tr_status check_file(const tr__shm_peer *peer, int fd, size_t bytes)
{
    struct stat s;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &s) != 0 || s.st_size < 0 || (size_t)s.st_size < bytes ||
        !bytes)
        return tr__fail(TR_FORMAT, "rank %d (pid %ld) shows a segment that is not what it says", peer->rank, peer->pid);
    return TR_OK;
}

static tr_status map_file(const tr__shm_peer *peer, size_t bytes, int fd, char **memory)
{
    TR__TRY(check_file(peer, fd, bytes));
    /* The pages are there; mapping them all now saves a fault each in the first collective. */
    *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (*memory == MAP_FAILED)
        return tr__fail_errno(TR_NO_MEMORY, errno, "cannot map %zu bytes of rank %d (pid %ld)", bytes, peer->rank,
            peer->pid);
    return TR_OK;
}

tr_status tr__shm_map(tr__shm_peer *peer, uint64_t id, size_t bytes, int fd, tr__shm_mapping *mapping)
{
    *mapping = (tr__shm_mapping){.id = id, .bytes = bytes};
    tr__segment segment;
    if (peer->in_process) {
        if (fd >= 0) close(fd);
        if (tr__segment_ref(id, &segment)) {
            mapping->memory = segment.memory;
            mapping->bytes = segment.bytes;
        }
        return TR_OK; /* else its owner has freed it meanwhile, so nobody will ask for it */
    }
    if (fd < 0)
        return tr__fail(TR_FORMAT, "rank %d (pid %ld) shows a segment without descriptor", peer->rank, peer->pid);
    tr_status status = map_file(peer, bytes, fd, &mapping->memory);
    close(fd);
    return status;
}

void tr__shm_unmap(tr__shm_peer *peer, const tr__shm_mapping *mapping)
{
    if (!mapping->memory) return;
    if (peer->in_process)
        tr__segment_unref(mapping->id);
    else
        munmap(mapping->memory, mapping->bytes);
}

/* Under the lock. */
static tr_status add_mapping(tr__shm_peer *peer, const tr__shm_mapping *mapping)
{
    if (peer->mapping_count == peer->mapping_capacity) {
        size_t capacity = peer->mapping_capacity ? 2 * peer->mapping_capacity : 8;
        tr__shm_mapping *grown = realloc(peer->mappings, capacity * sizeof *grown);
        if (!grown)
            return tr__fail(TR_NO_MEMORY, "no memory to map a buffer of rank %d (pid %ld)", peer->rank, peer->pid);
        peer->mappings = grown;
        peer->mapping_capacity = capacity;
    }
    peer->mappings[peer->mapping_count++] = *mapping;
    return TR_OK;
}

tr_status tr__shm_segment_came(tr__shm *t, tr__shm_peer *peer, uint64_t id, size_t bytes, int fd)
{
    tr__shm_mapping mapping;
    TR__TRY(tr__shm_map(peer, id, bytes, fd, &mapping));
    if (!mapping.memory) return TR_OK;
    pthread_mutex_lock(&t->lock);
    tr_status status = add_mapping(peer, &mapping);
    /* Taken back here, before the message counts as handled, and not by the thread that waits: if the process is stopped
     * before that thread runs, the peers must not believe that it still waits for this one. If it does, it says so again. */
    int waiting = (int)(peer - t->peers) + 1;
    atomic_compare_exchange_strong(&t->control->stuck.buffer, &waiting, 0);
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    if (status != TR_OK) tr__shm_unmap(peer, &mapping);
    return status;
}

void tr__shm_segment_went(tr__shm *t, tr__shm_peer *peer, uint64_t id)
{
    pthread_mutex_lock(&t->lock);
    for (size_t i = 0; i < peer->mapping_count; i++)
        if (id == 0 || peer->mappings[i].id == id) peer->mappings[i].gone = true;
    atomic_store(&t->has_gone, true);
    pthread_mutex_unlock(&t->lock);
    /* A collective that starts after this look cannot need the segment: its owner has done with it. */
    if (!atomic_load(&t->busy)) tr__shm_sweep(t);
}

/* Takes one mapping out that is gone, unless somebody uses mappings: then whoever is the last to do so sweeps. A call
 * may begin just now, and what it finds must stay: it is busy before it looks at the version, or under the lock. The
 * version is raised before we look whether anyone is busy: either we see the call, or it does not see the mapping. */
static bool take_gone(tr__shm *t, tr__shm_peer *peer, tr__shm_mapping *mapping)
{
    bool found = false;
    pthread_mutex_lock(&t->lock);
    for (size_t i = 0; i < peer->mapping_count && !found; i++) {
        if (!peer->mappings[i].gone) continue;
        atomic_store(&t->has_gone, true); /* for who is busy */
        atomic_fetch_add(&t->version, 1);
        if (atomic_load(&t->busy)) break;
        *mapping = peer->mappings[i];
        peer->mappings[i] = peer->mappings[--peer->mapping_count];
        found = true;
    }
    pthread_mutex_unlock(&t->lock);
    return found;
}

void tr__shm_sweep(tr__shm *t)
{
    atomic_store(&t->has_gone, false);
    tr__shm_mapping mapping;
    for (int rank = 0; rank < t->world_size; rank++)
        while (take_gone(t, &t->peers[rank], &mapping)) tr__shm_unmap(&t->peers[rank], &mapping);
}

void tr__shm_idle(tr__shm *t)
{
    if (atomic_fetch_sub(&t->busy, 1) == 1 && atomic_load(&t->has_gone)) tr__shm_sweep(t);
}

/* ---- Finding ----------------------------------------------------------------------------------------------------- */

/* Under the lock. */
static const tr__shm_mapping *mapping_of(const tr__shm_peer *peer, uint64_t id)
{
    for (size_t i = 0; i < peer->mapping_count; i++)
        if (peer->mappings[i].id == id) return &peer->mappings[i];
    return NULL;
}

/* Waits until the monitor has mapped the segment. *began: since when the call waits, for this or for anything else; 0:
 * it did not yet. */
static tr_status look_up(tr__shm *t, int64_t *began, int timeout_ms, tr__shm_peer *peer, uint64_t id,
    tr__shm_mapping *mapping)
{
    tr_status status = TR_OK;
    const tr__shm_mapping *found;
    pthread_mutex_lock(&t->lock);
    while (!(found = mapping_of(peer, id)) && !tr__failure_there(&t->failure) && !atomic_load(&peer->left)) {
        atomic_store(&t->control->stuck.buffer, (int)(peer - t->peers) + 1);
        if (!*began) *began = tr__now_ns();
        int64_t until = *began + (int64_t)timeout_ms * 1000000;
        struct timespec deadline = {until / 1000000000, until % 1000000000};
        if (pthread_cond_timedwait(&t->changed, &t->lock, &deadline) != ETIMEDOUT) continue;
        status = tr__fail(TR_TIMEOUT, "rank %d (pid %ld) did not show its buffer within %g s", peer->rank, peer->pid,
            timeout_ms / 1000.0);
        break;
    }
    if (found) {
        *mapping = *found;
        status = TR_OK;
    } else if (status == TR_OK) {
        status = tr__failure_there(&t->failure)
                     ? tr__failure_tell(&t->failure)
                     : tr__fail(TR_PEER, "rank %d (pid %ld) left in the middle of a call", peer->rank, peer->pid);
    }
    pthread_mutex_unlock(&t->lock);
    return status;
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

tr_status tr__shm_find(tr__shm *t, tr__shm_call *call, int rank, tr__shm_place place, size_t bytes, char **memory)
{
    tr__shm_peer *peer = &t->peers[rank];
    uint64_t version = atomic_load(&t->version); /* nothing is unmapped while a collective runs */
    if (peer->seen.id != place.segment || peer->seen_version != version) {
        TR__TRY(look_up(t, &call->began, call->timeout_ms, peer, place.segment, &peer->seen));
        peer->seen_version = version;
    }
    return place_in(peer, &peer->seen, place, bytes, memory);
}

tr_status tr__shm_fetch(tr__shm *t, int rank, tr__shm_place place, size_t bytes, void *to, int64_t began,
    int timeout_ms)
{
    tr__shm_peer *peer = &t->peers[rank];
    tr__shm_mapping mapping;
    char *from = NULL;
    atomic_fetch_add(&t->busy, 1);
    tr_status status = look_up(t, &began, timeout_ms, peer, place.segment, &mapping);
    if (status == TR_OK) status = place_in(peer, &mapping, place, bytes, &from);
    if (status == TR_OK) memcpy(to, from, bytes);
    tr__shm_idle(t);
    return status;
}
