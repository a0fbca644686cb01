/* Making and ending a group's transport, and the failures that break it. */
#include "comm/transport/shm.h"

#include "base/clock.h"
#include "base/copy.h"
#include "base/thread.h"
#include "comm/transport/tcp.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

/* Keeps this thread's latest failure if it is the first, and wakes our waiters. */
static bool keep_failure(tr__shm *t, bool own)
{
    bool first = tr__failure_keep(&t->failure, own);
    atomic_store(&t->control->gave_up, 1);
    pthread_mutex_lock(&t->lock);
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    tr__shm_ring(t->control);
    tr__shm_mail(t->control);
    return first;
}

/* With us, the transport to other hosts is broken. */
static void break_tcp(tr__shm *t)
{
    if (!t->tcp) return;
    tr__failure_tell(&t->failure);
    tr__tcp_break_too(t->tcp, t->failure.own);
}

tr_status tr__shm_break_quietly(tr__shm *t)
{
    if (keep_failure(t, false)) break_tcp(t);
    return tr__failure_tell(&t->failure);
}

void tr__shm_tell_failure(tr__shm *t)
{
    char name[64];
    const tr__shm_peer *self = &t->peers[t->rank];
    snprintf(name, sizeof name, "rank %d (pid %ld)", self->rank, self->pid);
    tr__shm_message message = {.type = TR__SHM_BROKEN, .status = tr__failure_for_peers(&t->failure, name, t->group)};
    snprintf(message.text, sizeof message.text, "%s", tr_error_message());
    for (int rank = 0; rank < t->world_size; rank++) {
        /* Without memory for the letter the peer finds out by its own timeout. */
        tr_status posted = rank == t->rank ? TR_OK : tr__shm_post(t, &t->peers[rank], &message, -1);
        (void)posted;
    }
    tr__shm_kick(t);
}

static tr_status break_loudly(tr__shm *t, bool own)
{
    bool first = keep_failure(t, own);
    /* In any case, as in tr__tcp_break(), and before the peers here are told: what they pass on to other hosts comes back
     * over TCP, and must not be there before our own reason is. */
    break_tcp(t);
    if (first) tr__shm_tell_failure(t);
    return tr__failure_tell(&t->failure);
}

tr_status tr__shm_break(tr__shm *t)
{
    return break_loudly(t, false);
}

tr_status tr__shm_give_up(tr__shm *t)
{
    return break_loudly(t, true);
}

void tr__shm_break_too(tr__shm *t, bool own)
{
    if (keep_failure(t, own)) tr__shm_tell_failure(t);
}

static bool any_gave_up(const tr__shm *t)
{
    bool any = false;
    for (int rank = 0; rank < t->world_size; rank++) any |= atomic_load(&t->peers[rank].control->gave_up) != 0;
    return any;
}

tr_status tr__shm_heed(tr__shm *t, int timeout_ms)
{
    return any_gave_up(t) ? tr__shm_await_reason(t, timeout_ms) : TR_OK;
}

tr_status tr__shm_await_reason(tr__shm *t, int timeout_ms)
{
    int64_t until = tr__now_ns() + (int64_t)timeout_ms * 1000000;
    struct timespec deadline = {until / 1000000000, until % 1000000000};
    pthread_mutex_lock(&t->lock);
    while (!tr__failure_there(&t->failure) && pthread_cond_timedwait(&t->changed, &t->lock, &deadline) != ETIMEDOUT)
        continue;
    pthread_mutex_unlock(&t->lock);
    return tr__failure_there(&t->failure) ? tr__failure_tell(&t->failure) : TR_OK;
}

/* ---- Letters ----------------------------------------------------------------------------------------------------- */

tr_status tr__shm_post(tr__shm *t, tr__shm_peer *peer, const tr__shm_message *message, int fd)
{
    tr__shm_letter *letter = malloc(sizeof *letter);
    if (!letter) {
        if (fd >= 0) close(fd);
        return tr__fail(TR_NO_MEMORY, "group '%s': no memory for a message to rank %d", t->group, peer->rank);
    }
    *letter = (tr__shm_letter){.fd = fd, .message = *message};
    letter->message.magic = TR__SHM_MAGIC;
    letter->message.rank = t->rank;
    pthread_mutex_lock(&t->lock);
    if (peer->last)
        peer->last->next = letter;
    else
        peer->first = letter;
    peer->last = letter;
    pthread_mutex_unlock(&t->lock);
    return TR_OK;
}

void tr__shm_kick(tr__shm *t)
{
    ssize_t written = write(t->kick, &(uint64_t){1}, sizeof(uint64_t)); /* fails only when it is set already */
    (void)written;
}

/* ---- Making ------------------------------------------------------------------------------------------------------ */

static tr_status make_control(tr__shm *t)
{
    t->control = tr_shared_alloc(tr__shm_control_bytes(t->world_size));
    if (!t->control) return tr__fail_context(TR_NO_MEMORY, "group '%s'", t->group);
    t->control->magic = TR__SHM_MAGIC;
    t->control->version = 4;
    t->control->rank = t->rank;
    t->control->world_size = t->world_size;
    t->peers[t->rank].control = t->control;
    return TR_OK;
}

static tr_status make_tables(tr__shm *t)
{
    size_t world = (size_t)t->world_size;
    t->peers = calloc(world, sizeof *t->peers);
    t->in = calloc(world, sizeof *t->in);
    t->out = calloc(world, sizeof *t->out);
    t->stagings = calloc(world, sizeof *t->stagings);
    if (!t->peers || !t->in || !t->out || !t->stagings)
        return tr__fail(TR_NO_MEMORY, "group '%s': no memory for %d ranks", t->group, t->world_size);
    for (int rank = 0; rank < t->world_size; rank++) {
        t->peers[rank].rank = rank;
        t->peers[rank].socket = -1;
    }
    t->peers[t->rank].pid = (long)getpid();
    return TR_OK;
}

static tr_status make_parts(tr__shm *t, tr__card *card)
{
    TR__TRY(make_tables(t));
    TR__TRY(make_control(t));
    t->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (t->kick < 0) return tr__fail_errno(TR_IO, errno, "group '%s': no eventfd", t->group);
    TR__TRY(tr__shm_p2p_new(t));
    return tr__shm_listen(t, card);
}

tr_status tr__shm_new(const tr__member *member, tr__card *card, tr__shm **transport)
{
    tr__shm *t = calloc(1, sizeof *t);
    if (!t) return tr__fail(TR_NO_MEMORY, "group '%s': no memory", member->group);
    snprintf(t->group, sizeof t->group, "%s", member->group);
    t->rank = member->rank;
    t->world_size = member->world_size;
    t->report_ms = member->report_ms;
    t->recorder = member->recorder;
    t->kick = t->door.socket = -1;
    atomic_init(&t->dead, -1);
    t->crowded = tr__cores() < t->world_size;
    t->cache_bytes = tr__shared_cache();
    pthread_mutex_init(&t->lock, NULL);
    tr__condition_init(&t->changed);
    tr__failure_init(&t->failure);
    tr_status status = make_parts(t, card);
    if (status == TR_OK)
        *transport = t;
    else
        tr__shm_close(t);
    return status;
}

tr_status tr__shm_settle(tr__shm *t, const tr__hosts *hosts, tr__tcp *tcp)
{
    int host = hosts->host[t->rank], place = hosts->place[t->rank], count = tr__hosts_size(hosts, host);
    t->places = malloc((size_t)hosts->world_size * sizeof *t->places);
    if (!t->places) return tr__fail(TR_NO_MEMORY, "group '%s': no memory for its ranks' places", t->group);
    for (int rank = 0; rank < hosts->world_size; rank++)
        t->places[rank] = hosts->host[rank] == host ? hosts->place[rank] : -1;
    t->peers[t->rank].control = NULL;
    t->rank = t->control->rank = place;
    t->world_size = t->control->world_size = count;
    for (int other = 0; other < count; other++) t->peers[other].rank = tr__hosts_ranks(hosts, host)[other];
    t->peers[place].control = t->control;
    t->peers[place].pid = (long)getpid();
    t->tcp = tcp;
    tr__tcp_link(tcp, t);
    return TR_OK;
}

tr_status tr__shm_meet(tr__shm *t, tr__rendezvous *meeting, tr__card *cards)
{
    TR__TRY(tr__shm_connect(t, meeting, cards));
    tr__shm_watch(t);
    TR__TRY(tr__shm_monitor_start(t));
    if (!t->tcp) TR__TRY(tr__rendezvous_use(meeting)); /* else when those of other hosts are connected, too */
    /* Nobody may leave, and take its control segment along, before all have mapped it. */
    tr__shm_call joining = {.timeout_ms = tr__rendezvous_rest_ms(meeting)};
    tr__shm_signal(t, TR__SHM_DONE, ++t->steps);
    tr_status status = tr__shm_await(t, &joining, TR__SHM_DONE, t->steps, -1);
    return status == TR_OK ? TR_OK : tr__shm_break(t);
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

static void free_peer(tr__shm *t, tr__shm_peer *peer)
{
    if (peer->socket >= 0) close(peer->socket);
    tr__shm_segment_went(t, peer, 0);
    tr__shm_unmap(peer, &peer->channel_mapping);
    tr__shm_unmap(peer, &peer->control_mapping);
    free(peer->mappings);
    for (tr__shm_letter *letter = peer->first, *next; letter; letter = next) {
        next = letter->next;
        if (letter->fd >= 0) close(letter->fd);
        free(letter);
    }
}

void tr__shm_close(tr__shm *t)
{
    if (t->has_monitor) tr__shm_p2p_end(t);
    if (t->watching) tr__segment_unwatch(&t->watcher);
    if (t->has_monitor) tr__shm_monitor_stop(t);
    if (t->tcp) tr__tcp_link(t->tcp, NULL);
    for (int rank = 0; t->peers && rank < t->world_size; rank++) free_peer(t, &t->peers[rank]);
    if (t->door.socket >= 0) close(t->door.socket);
    if (t->kick >= 0) close(t->kick);
    tr__shm_p2p_free(t);
    tr_shared_free(t->staging);
    tr_shared_free(t->control);
    free(t->announced);
    free(t->polled);
    free(t->peers);
    free(t->in);
    free(t->out);
    free(t->stagings);
    free(t->places);
    tr__failure_clear(&t->failure);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->changed);
    free(t);
}
