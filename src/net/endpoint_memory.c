/*
 * Which memory the peers have shown each other. Where a buffer lies in a shared segment, the peers of a group get the segment's
 * descriptor over their sockets once, whichever group needs it first; from then on a segment's number and an offset are enough.
 * A segment that its owner frees is unmapped everywhere, but never under a thread that may use it, and not while it is held.
 */
#define _GNU_SOURCE
#include "net/endpoint.h"

#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Our own ----------------------------------------------------------------------------------------------------- */

struct tr__endpoint_segment {
    uint64_t id;
    bool *told; /* [world_size]: the peers that know it */
};

/* Under the lock. */
static tr__endpoint_segment *find_shown(const tr__endpoint *e, uint64_t id)
{
    for (size_t i = 0; i < e->shown_count; i++)
        if (e->shown[i].id == id) return &e->shown[i];
    return NULL;
}

/* Under the lock. NULL: no memory. */
static tr__endpoint_segment *add_shown(tr__endpoint *e, uint64_t id)
{
    if (!tr__grow(&e->shown, e->shown_count, &e->shown_room, sizeof *e->shown)) return NULL;
    bool *told = calloc((size_t)e->world_size, sizeof *told);
    if (!told) return NULL;
    e->shown[e->shown_count] = (tr__endpoint_segment){id, told};
    return &e->shown[e->shown_count++];
}

tr_status tr__endpoint_descriptor(const tr__endpoint_peer *peer, const tr__segment *segment, int *fd)
{
    /* A copy for each message: the owner may free the segment, after a failure, before the message is gone. */
    *fd = peer->in_process ? -1 : fcntl(segment->fd, F_DUPFD_CLOEXEC, 0);
    if (*fd >= 0 || peer->in_process) return TR_OK;
    return tr__fail_errno(TR_IO, errno, "no descriptor to share memory with rank %d (pid %ld)", peer->rank, peer->pid);
}

tr_status tr__endpoint_showing(const tr__endpoint *e, int peer, const tr__segment *segment, const tr__shm_message *message,
    tr__shm_queued **queued)
{
    int fd;
    TR__TRY(tr__endpoint_descriptor(&e->peers[peer], segment, &fd));
    *queued = tr__endpoint_message(e, peer, message, fd);
    return *queued ? TR_OK : TR_NO_MEMORY;
}

static bool is_told(tr__endpoint *e, uint64_t id, int peer)
{
    TR__LOCKED(&e->lock);
    const tr__endpoint_segment *s = find_shown(e, id);
    return s && s->told[peer];
}

/* A peer counts as told, for all threads, only when its message is queued: another group that shows it the segment meanwhile does
 * not rely on one that may fail. */
static tr_status tell(tr__endpoint *e, int peer, const tr__segment *segment, const tr__shm_message *message)
{
    tr__shm_queued *queued = NULL;
    TR__TRY(tr__endpoint_showing(e, peer, segment, message, &queued));
    pthread_mutex_lock(&e->lock);
    tr__endpoint_segment *s = find_shown(e, segment->id);
    if (!s) s = add_shown(e, segment->id);
    if (s && !s->told[peer]) {
        s->told[peer] = true;
        tr__shm_queue_add(&e->peers[peer].outgoing, queued);
        queued = NULL;
    }
    pthread_mutex_unlock(&e->lock);
    tr__shm_queue_free(&(tr__shm_queue){queued, queued});
    return s ? TR_OK : tr__fail(TR_NO_MEMORY, "group '%s': no memory to share a buffer", e->name);
}

tr_status tr__endpoint_show(tr__endpoint *e, const tr__segment *segment, const int *peers, int count, uint64_t group)
{
    const tr__shm_message message = {.type = TR__SHM_SEGMENT, .group = group, .id = segment->id, .bytes = segment->bytes};
    bool any = false;
    tr_status status = TR_OK;
    for (int i = 0; i < count && status == TR_OK; i++) {
        if (peers[i] == e->rank || is_told(e, segment->id, peers[i])) continue;
        status = tell(e, peers[i], segment, &message);
        any |= status == TR_OK;
    }
    if (any) tr__endpoint_kick(e);
    return status;
}

/* One of this process's segments is freed: the peers that know it are told. */
static void own_freed(void *user, uint64_t id)
{
    tr__endpoint *e = user;
    bool *told = NULL;
    pthread_mutex_lock(&e->lock);
    tr__endpoint_segment *s = find_shown(e, id);
    if (s) {
        told = s->told;
        *s = e->shown[--e->shown_count];
    }
    pthread_mutex_unlock(&e->lock);
    if (!told) return;
    tr__shm_message message = {.type = TR__SHM_UNMAP, .id = id};
    for (int i = 0; i < e->world_size; i++) {
        /* Without memory for the message the peer keeps its mapping until one of us ends. */
        tr_status status = told[i] ? tr__endpoint_post(e, i, &message, -1) : TR_OK;
        (void)status;
    }
    free(told);
    tr__endpoint_kick(e);
}

void tr__endpoint_watch(tr__endpoint *e)
{
    e->watcher = (tr__segment_watcher){.freed = own_freed, .user = e};
    tr__segment_watch(&e->watcher);
}

void tr__endpoint_forget(tr__endpoint *e)
{
    for (size_t i = 0; i < e->shown_count; i++) free(e->shown[i].told);
    free(e->shown);
}

/* ---- The peers' -------------------------------------------------------------------------------------------------- */

/* The file must be as long as said, and stay so: otherwise touching it is a SIGBUS. */
static tr_status check_file(const tr__endpoint_peer *peer, int fd, size_t bytes)
{
    struct stat s;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &s) != 0 || s.st_size < 0 || (size_t)s.st_size < bytes ||
        !bytes)
        return tr__fail(TR_FORMAT, "rank %d (pid %ld) shows a segment that is not what it says", peer->rank, peer->pid);
    return TR_OK;
}

static tr_status map_file(const tr__endpoint_peer *peer, size_t bytes, int fd, char **memory)
{
    TR__TRY(check_file(peer, fd, bytes));
    /* The pages are there; mapping them all now saves a fault each in the first collective. */
    char *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (mapped == MAP_FAILED)
        return tr__fail_errno(TR_NO_MEMORY, errno, "cannot map %zu bytes of rank %d (pid %ld)", bytes, peer->rank,
            peer->pid);
    *memory = mapped;
    return TR_OK;
}

static tr_status open_memory(const tr__endpoint_peer *peer, int fd, tr__shm_mapping *mapping)
{
    tr__segment segment;
    if (fd == TR__SHM_LOST)
        return tr__fail_errno(TR_IO, EMFILE, "this process has no descriptor left to map %zu bytes of rank %d (pid %ld); raise "
            "the limit (ulimit -n)", mapping->bytes, peer->rank, peer->pid);
    if (!peer->in_process && fd < 0)
        return tr__fail(TR_FORMAT, "rank %d (pid %ld) shows a segment without descriptor", peer->rank, peer->pid);
    if (!peer->in_process) return map_file(peer, mapping->bytes, fd, &mapping->memory);
    if (tr__segment_ref(mapping->id, &segment)) {
        mapping->memory = segment.memory;
        mapping->bytes = segment.bytes;
    }
    return TR_OK; /* else its owner has freed it meanwhile, so nobody will ask for it */
}

tr_status tr__shm_mapping_open(const tr__endpoint_peer *peer, uint64_t id, size_t bytes, int fd, tr__shm_mapping *mapping)
{
    *mapping = (tr__shm_mapping){.id = id, .bytes = bytes, .in_process = peer->in_process, .holders = malloc(sizeof(atomic_int))};
    tr_status status = mapping->holders ? open_memory(peer, fd, mapping)
        : tr__fail(TR_NO_MEMORY, "no memory to map a buffer of rank %d (pid %ld)", peer->rank, peer->pid);
    if (fd >= 0) close(fd);
    if (mapping->memory)
        atomic_init(mapping->holders, 1);
    else
        free(mapping->holders);
    return status;
}

void tr__shm_mapping_close(const tr__shm_mapping *mapping)
{
    if (!mapping->memory || atomic_fetch_sub(mapping->holders, 1) != 1) return;
    free(mapping->holders);
    if (mapping->in_process)
        tr__segment_unref(mapping->id);
    else
        munmap(mapping->memory, mapping->bytes);
}

tr_status tr__endpoint_mapped(tr__endpoint *e, int peer, const tr__shm_message *message, int fd)
{
    tr__shm_mapping mapping;
    tr__endpoint_peer *p = &e->peers[peer];
    TR__TRY(tr__shm_mapping_open(p, message->id, message->bytes, fd, &mapping));
    if (!mapping.memory) return TR_OK;
    mapping.stays = message->type != TR__SHM_SEGMENT;
    pthread_mutex_lock(&e->lock);
    bool room = tr__grow(&p->mappings, p->mapping_count, &p->mapping_room, sizeof *p->mappings);
    if (room) p->mappings[p->mapping_count++] = mapping;
    pthread_mutex_unlock(&e->lock);
    if (room) return TR_OK;
    tr__shm_mapping_close(&mapping);
    return tr__fail(TR_NO_MEMORY, "no memory to map a buffer of rank %d (pid %ld)", p->rank, p->pid);
}

const tr__shm_mapping *tr__endpoint_mapping(const tr__endpoint_peer *peer, uint64_t id, uint64_t since)
{
    for (size_t i = peer->mapping_count; i-- > 0;) { /* most often it is one of the latest */
        const tr__shm_mapping *m = &peer->mappings[i];
        if (m->id == id && (!m->gone || m->gone > since)) return m;
    }
    return NULL;
}

bool tr__endpoint_hold(tr__endpoint *e, int peer, uint64_t id, int64_t until, tr__shm_mapping *mapping)
{
    const tr__shm_mapping *found;
    pthread_mutex_lock(&e->lock);
    while (!(found = tr__endpoint_mapping(&e->peers[peer], id, 0)) && until > 0 &&
           tr__condition_wait(&e->changed, &e->lock, until))
        continue;
    if (found) *mapping = *found;
    if (found) atomic_fetch_add(found->holders, 1);
    pthread_mutex_unlock(&e->lock);
    return found != NULL;
}

/* ---- Unmapping --------------------------------------------------------------------------------------------------- */

/* A thread that begins to use mappings after the version was raised cannot find what is gone since then: it says that it is
 * busy, since a version that it has read, before it looks for any, and we raise the version before we look whether it is busy. */
void tr__endpoint_unmapped(tr__endpoint *e, tr__endpoint_peer *peer, uint64_t id)
{
    pthread_mutex_lock(&e->lock);
    uint64_t now = atomic_fetch_add(&e->version, 1) + 1;
    for (size_t i = 0; i < peer->mapping_count; i++) {
        tr__shm_mapping *m = &peer->mappings[i];
        if (!m->stays && !m->gone && (id == 0 || m->id == id)) m->gone = now;
    }
    pthread_mutex_unlock(&e->lock);
    tr__endpoint_sweep(e);
}

/* Under the lock: does a thread of one of the peer's groups work that began before the mapping went? */
static bool is_used(const tr__endpoint *e, int peer, const tr__shm_mapping *mapping)
{
    for (const tr__attachment *a = e->attachments; a; a = a->next) {
        uint64_t use = a->places[peer] >= 0 ? atomic_load(&a->use) : 0;
        if (use % (1 << TR__USE_BITS) && use >> TR__USE_BITS < mapping->gone) return true;
    }
    return false;
}

/* Takes one mapping out that is gone and not used. */
static bool take_gone(tr__endpoint *e, int peer, tr__shm_mapping *mapping)
{
    tr__endpoint_peer *p = &e->peers[peer];
    bool found = false;
    TR__LOCKED(&e->lock);
    for (size_t i = 0; i < p->mapping_count && !found; i++) {
        if (!p->mappings[i].gone) continue;
        atomic_store(&e->has_gone, true); /* for who uses it: before we look whether anyone does */
        if (is_used(e, peer, &p->mappings[i])) continue;
        *mapping = p->mappings[i];
        p->mappings[i] = p->mappings[--p->mapping_count];
        found = true;
    }
    return found;
}

void tr__endpoint_sweep(tr__endpoint *e)
{
    atomic_store(&e->has_gone, false);
    tr__shm_mapping mapping;
    for (int i = 0; i < e->world_size; i++)
        while (take_gone(e, i, &mapping)) tr__shm_mapping_close(&mapping);
}
