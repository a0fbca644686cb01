/* Making and ending an endpoint, the groups that are attached to it, and their control blocks. */
#include "net/endpoint.h"

#include "base/clock.h"
#include "base/list.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum {
    FEW_BLOCKS = 16, MANY_BLOCKS = 256, /* made at a time: at first, and at most; each time twice as many */
    READ_MS = 1000, /* how long we wait for a peer to read */
    LOOK_NS = 100000,
};

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

void tr__shm_queue_add(tr__shm_queue *queue, tr__shm_queued *queued)
{
    queued->next = NULL;
    if (queue->last)
        queue->last->next = queued;
    else
        queue->first = queued;
    queue->last = queued;
}

void tr__shm_queue_free(tr__shm_queue *queue)
{
    TR__FOR_EACH(queued, queue->first) {
        if (queued->fd >= 0) close(queued->fd);
        free(queued);
    }
    *queue = (tr__shm_queue){0};
}

tr__shm_queued *tr__endpoint_message(const tr__endpoint *e, int peer, const tr__shm_message *message, int fd)
{
    tr__shm_queued *queued = malloc(sizeof *queued);
    if (!queued) {
        if (fd >= 0) close(fd);
        tr__fail(TR_NO_MEMORY, "group '%s': no memory for a message to rank %d", e->name, e->peers[peer].rank);
        return NULL;
    }
    *queued = (tr__shm_queued){.peer = peer, .fd = fd, .message = *message};
    queued->message.magic = TR__SHM_MAGIC;
    queued->message.rank = e->rank;
    return queued;
}

tr_status tr__endpoint_post(tr__endpoint *e, int peer, const tr__shm_message *message, int fd)
{
    tr__shm_queued *queued = tr__endpoint_message(e, peer, message, fd);
    if (!queued) return TR_NO_MEMORY;
    TR__LOCKED(&e->lock);
    tr__shm_queue_add(&e->peers[peer].outgoing, queued);
    return TR_OK;
}

void tr__endpoint_kick(tr__endpoint *e)
{
    eventfd_write(e->kick, 1); /* fails only when it is set already */
}

static bool has_outgoing(tr__endpoint *e)
{
    bool any = false;
    TR__LOCKED(&e->lock);
    for (int i = 0; i < e->world_size; i++) any |= e->peers[i].outgoing.first != NULL;
    return any;
}

void tr__endpoint_flush(tr__endpoint *e)
{
    int64_t until = tr__in_ms(READ_MS);
    while (has_outgoing(e) && tr__now_ns() < until) nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
}

void tr__endpoint_tell(tr__endpoint *e)
{
    TR__LOCKED(&e->lock);
    pthread_cond_broadcast(&e->changed);
}

/* ---- Control blocks ---------------------------------------------------------------------------------------------- */

/* Shared memory for some blocks, one behind the other. */
struct tr__endpoint_blocks {
    tr__endpoint_blocks *next;
    char *memory;
    size_t begin; /* of the first */
    int count;
    bool taken[]; /* [count] */
};

static tr_status make_blocks(tr__endpoint *e, size_t begin, int count)
{
    tr__endpoint_blocks *b = calloc(1, sizeof *b + (size_t)count * sizeof *b->taken);
    if (b) *b = (tr__endpoint_blocks){.next = e->blocks, .begin = begin, .count = count};
    if (b) b->memory = tr_shared_alloc(begin + (size_t)count * e->block_bytes);
    if (b && b->memory) {
        tr__pages_map(b->memory, begin + (size_t)count * e->block_bytes); /* all at once: a fault each costs more */
        e->blocks = b;
        return TR_OK;
    }
    free(b);
    return b ? tr__fail_context(TR_NO_MEMORY, "group '%s'", e->name)
             : tr__fail(TR_NO_MEMORY, "group '%s': no memory for a group", e->name);
}

/* The peers map what we have just made. Then nobody needs its descriptor any more. All of them hear of it, or none, as memory that
 * one has mapped for a group that is not made stays mapped. */
static tr_status show_blocks(tr__endpoint *e)
{
    tr__segment segment;
    tr__segment_find(e->blocks->memory, 1, &segment);
    tr__shm_message message = {.type = TR__SHM_BLOCKS, .id = segment.id, .bytes = segment.bytes};
    tr__shm_queue messages = {0};
    tr_status status = TR_OK;
    for (int i = 0; i < e->world_size && status == TR_OK; i++) {
        tr__shm_queued *queued = NULL;
        if (i != e->rank) status = tr__endpoint_showing(e, i, &segment, &message, &queued);
        if (queued) tr__shm_queue_add(&messages, queued);
    }
    if (status != TR_OK) {
        tr__shm_queue_free(&messages);
        return status;
    }
    pthread_mutex_lock(&e->lock);
    TR__FOR_EACH(queued, messages.first) tr__shm_queue_add(&e->peers[queued->peer].outgoing, queued);
    pthread_mutex_unlock(&e->lock);
    tr__endpoint_kick(e);
    tr__segment_close(segment.memory);
    return TR_OK;
}

/* All zero; NULL: there is none. Not before it is taken again, as peers of a first group that gave up joining may yet look at it. */
static void *free_block(tr__endpoint *e)
{
    for (tr__endpoint_blocks *b = e->blocks; b; b = b->next)
        for (int i = 0; i < b->count; i++) {
            if (b->taken[i]) continue;
            b->taken[i] = true;
            return memset(b->memory + b->begin + (size_t)i * e->block_bytes, 0, e->block_bytes);
        }
    return NULL;
}

static tr_status take_block(tr__endpoint *e, void **block)
{
    *block = free_block(e);
    if (*block) return TR_OK;
    int count = e->blocks->count < FEW_BLOCKS ? FEW_BLOCKS : 2 * e->blocks->count;
    TR__TRY(make_blocks(e, 0, count < MANY_BLOCKS ? count : MANY_BLOCKS));
    tr_status status = show_blocks(e);
    if (status == TR_OK) {
        *block = free_block(e);
        return TR_OK;
    }
    tr__endpoint_blocks *unknown = e->blocks; /* to a peer, which would wait for its memory in vain */
    e->blocks = unknown->next;
    tr_shared_free(unknown->memory);
    free(unknown);
    return status;
}

static void return_block(tr__endpoint *e, char *block)
{
    for (tr__endpoint_blocks *b = e->blocks; b; b = b->next)
        if (block >= b->memory && block < b->memory + b->begin + (size_t)b->count * e->block_bytes)
            b->taken[(size_t)(block - b->memory - b->begin) / e->block_bytes] = false;
}

void tr__endpoint_place(const tr__attachment *a, uint64_t *segment, uint64_t *offset)
{
    tr__segment found = {0};
    tr__segment_find(a->block, 1, &found);
    *segment = found.id;
    *offset = (uint64_t)((char *)a->block - (char *)found.memory);
}

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

static void free_attachment(tr__attachment *a)
{
    tr__shm_queue_free(&a->early);
    free(a);
}

tr_status tr__endpoint_attach(tr__endpoint *e, uint64_t id, const tr__attached *calls, void *user, tr__attachment **attachment)
{
    size_t world = (size_t)e->world_size;
    tr__attachment *a = calloc(1, sizeof *a + world * (2 * sizeof *a->members + sizeof *a->left));
    if (!a) return tr__fail(TR_NO_MEMORY, "group '%s': no memory for a group", e->name);
    *a = (tr__attachment){.endpoint = e, .id = id, .calls = calls, .user = user, .places = a->members + world,
        .left = (bool *)(a->members + 2 * world)};
    for (size_t i = 0; i < world; i++) a->places[i] = -1;
    TR__LOCKED(&e->hearing);
    tr_status status = take_block(e, &a->block);
    if (status != TR_OK) {
        free_attachment(a);
        return status;
    }
    TR__LOCKED(&e->lock);
    a->next = e->attachments;
    e->attachments = a;
    e->users++;
    *attachment = a;
    return TR_OK;
}

/* Has every other member taken leave, or is there none that knows of us? */
static bool is_over(const tr__attachment *a)
{
    for (int i = 0; i < a->count; i++)
        if (!a->left[i] && a->members[i] != a->endpoint->rank) return false;
    return true;
}

/* Under `hearing`: a group that has ended here goes when nobody can touch its control block any more. */
void tr__attachment_retire(tr__attachment *a)
{
    tr__endpoint *e = a->endpoint;
    if (a->calls || !is_over(a)) return;
    pthread_mutex_lock(&e->lock);
    TR__UNLINK(e->attachments, a);
    pthread_mutex_unlock(&e->lock);
    return_block(e, a->block);
    free_attachment(a);
}

void tr__attachment_pass(tr__attachment *a, int peer, const tr__shm_message *message, int fd)
{
    int member = a->places[peer];
    if (member >= 0 && message->type == TR__SHM_GOODBYE) a->left[member] = true;
    if (member >= 0 && a->calls)
        a->calls->heard(a->user, member, message, fd);
    else if (fd >= 0)
        close(fd);
}

void tr__attachment_gone(tr__attachment *a, int peer)
{
    int member = a->places[peer];
    if (member < 0) return;
    a->left[member] = true;
    if (a->calls) a->calls->gone(a->user, member);
}

void tr__endpoint_enter(tr__attachment *a, int count)
{
    tr__endpoint *e = a->endpoint;
    TR__LOCKED(&e->hearing);
    pthread_mutex_lock(&e->lock);
    for (int i = 0; i < count; i++) a->places[a->members[i]] = i;
    a->count = count;
    pthread_mutex_unlock(&e->lock);
    for (tr__shm_queued *queued = a->early.first; queued; queued = queued->next) {
        tr__attachment_pass(a, queued->peer, &queued->message, queued->fd);
        queued->fd = -1;
    }
    tr__shm_queue_free(&a->early);
    for (int i = 0; i < count; i++)
        if (e->peers[a->members[i]].gone) tr__attachment_gone(a, a->members[i]);
}

void tr__endpoint_detach(tr__attachment *a)
{
    tr__endpoint *e = a->endpoint;
    pthread_mutex_lock(&e->hearing);
    a->calls = NULL;
    atomic_store(&a->use, 0); /* nobody uses mappings for the group any more */
    if (atomic_load(&e->has_gone)) tr__endpoint_sweep(e);
    tr__shm_queue_free(&a->early);
    tr__attachment_retire(a);
    bool last = --e->users == 0;
    pthread_mutex_unlock(&e->hearing);
    if (last) tr__endpoint_free(e);
}

/* ---- Making ------------------------------------------------------------------------------------------------------ */

static tr_status make_parts(tr__endpoint *e)
{
    e->peers = calloc((size_t)e->world_size, sizeof *e->peers);
    e->polled = calloc((size_t)e->world_size + 1, sizeof *e->polled);
    if (!e->peers || !e->polled)
        return tr__fail(TR_NO_MEMORY, "group '%s': no memory for %d ranks", e->name, e->world_size);
    for (int i = 0; i < e->world_size; i++) {
        e->peers[i].rank = i;
        e->peers[i].socket = -1;
    }
    e->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (e->kick < 0) return tr__fail_errno(TR_IO, errno, "group '%s': no eventfd", e->name);
    e->spare = fcntl(e->kick, F_DUPFD_CLOEXEC, 0);
    TR__TRY(make_blocks(e, e->page_bytes, 1));
    e->page = (tr__endpoint_page *)e->blocks->memory;
    e->page->magic = TR__SHM_MAGIC;
    e->page->version = TR__SHM_VERSION;
    if (getrandom(&e->nonce, sizeof e->nonce, 0) != (ssize_t)sizeof e->nonce)
        return tr__fail_errno(TR_IO, errno, "group '%s': no random number", e->name);
    e->page->nonce = e->nonce;
    e->page->nonce_at = (uintptr_t)&e->nonce;
    tr__endpoint_settle(e, e->rank, e->world_size);
    return TR_OK;
}

void tr__endpoint_settle(tr__endpoint *e, int rank, int world_size)
{
    e->peers[e->rank].page = NULL;
    e->rank = e->page->rank = rank;
    e->world_size = e->page->world_size = world_size;
    e->peers[rank].page = e->page;
    e->peers[rank].pid = (long)getpid();
}

tr_status tr__endpoint_new(const char *name, int rank, int world_size, size_t block_bytes, tr__endpoint **endpoint)
{
    tr__endpoint *e = calloc(1, sizeof *e);
    if (!e) return tr__fail(TR_NO_MEMORY, "group '%s': no memory", name);
    snprintf(e->name, sizeof e->name, "%s", name);
    e->rank = rank;
    e->world_size = world_size;
    e->page_bytes = tr__round_up(sizeof *e->page + (size_t)world_size * sizeof *e->page->counts, TR__CACHE_LINE);
    e->block_bytes = tr__round_up(block_bytes, TR__CACHE_LINE);
    e->kick = e->spare = -1;
    pthread_mutex_init(&e->hearing, NULL);
    pthread_mutex_init(&e->lock, NULL);
    tr__condition_init(&e->changed);
    tr_status status = make_parts(e);
    if (status == TR_OK)
        *endpoint = e;
    else
        tr__endpoint_free(e);
    return status;
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

/* A peer in this process could not get hold of memory that we have shown it when that is freed before it has read so. */
static void await_readers(tr__endpoint *e)
{
    int64_t until = tr__in_ms(READ_MS);
    for (int i = 0; i < e->world_size; i++) {
        const tr__endpoint_peer *peer = &e->peers[i];
        if (i == e->rank || !peer->in_process || !peer->page) continue;
        while (atomic_load(&peer->page->counts[e->rank].handled) != atomic_load(&e->page->counts[i].sent) &&
               !atomic_load(&peer->page->ended) && tr__now_ns() < until)
            nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    }
}

void tr__endpoint_free(tr__endpoint *e)
{
    if (e->watcher.freed) tr__segment_unwatch(&e->watcher);
    if (e->has_monitor) {
        tr__endpoint_monitor_stop(e);
        atomic_store(&e->page->ended, 1);
        await_readers(e);
    }
    for (int i = 0; e->peers && i < e->world_size; i++) {
        tr__endpoint_peer *peer = &e->peers[i];
        if (peer->socket >= 0) close(peer->socket);
        for (size_t k = 0; k < peer->mapping_count; k++) tr__shm_mapping_close(&peer->mappings[k]);
        free(peer->mappings);
        tr__shm_queue_free(&peer->outgoing);
    }
    TR__FOR_EACH(a, e->attachments) free_attachment(a);
    TR__FOR_EACH(b, e->blocks) {
        tr_shared_free(b->memory);
        free(b);
    }
    if (e->kick >= 0) close(e->kick);
    if (e->spare >= 0) close(e->spare);
    tr__endpoint_forget(e);
    free(e->polled);
    free(e->peers);
    pthread_mutex_destroy(&e->hearing);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->changed);
    free(e);
}
