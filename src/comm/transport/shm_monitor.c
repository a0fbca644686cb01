/*
 * The monitor: a thread per group that watches the sockets to the peers. A socket that closes without a goodbye is a
 * dead peer; the kernel tells at once, however it died. The thread sleeps in poll() and costs nothing else.
 */
#define _GNU_SOURCE
#include "base/clock.h"
#include "base/thread.h"
#include "comm/transport/shm.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FLUSH_MS = 1000 }; /* how long a goodbye may take to send: a peer that is stopped does not read */

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

ssize_t tr__shm_send(int socket, const tr__shm_message *message, int fd)
{
    struct iovec body = {(void *)message, sizeof *message};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {.space = {0}};
    struct msghdr m = {.msg_iov = &body, .msg_iovlen = 1};
    if (fd >= 0) {
        m.msg_control = control.space;
        m.msg_controllen = sizeof control.space;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    ssize_t sent;
    while ((sent = sendmsg(socket, &m, MSG_NOSIGNAL | MSG_DONTWAIT)) < 0 && errno == EINTR) continue;
    return sent;
}

ssize_t tr__shm_receive(int socket, tr__shm_message *message, int *fd)
{
    struct iovec body = {message, sizeof *message};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr m = {.msg_iov = &body, .msg_iovlen = 1, .msg_control = control.space,
        .msg_controllen = sizeof control.space};
    *fd = -1;
    ssize_t got;
    while ((got = recvmsg(socket, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) continue;
    if (got < 0) return got;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(fd, CMSG_DATA(c), sizeof(int));
    message->cookie[TR__COOKIE_TEXT - 1] = 0;
    message->text[sizeof message->text - 1] = 0;
    return got;
}

/* ---- What comes in ----------------------------------------------------------------------------------------------- */

static void died(tr__shm *t, tr__shm_peer *peer)
{
    tr__signature s;
    char end[TR__END_TEXT], text[TR__CALL_TEXT];
    bool finished;
    if (!tr__failure_there(&t->failure)) atomic_store(&t->dead, peer->rank);
    tr__end_text(peer->visible ? peer->pid : 0, t->group, end);
    if (!tr__shm_last_transfer(peer->control, &s, &finished) && !tr__shm_last_call(peer->control, &s, &finished))
        tr__fail(TR_PEER, "rank %d (pid %ld) %s before its first call", peer->rank, peer->pid, end);
    else
        tr__fail(TR_PEER, "rank %d (pid %ld) %s %s %s", peer->rank, peer->pid, end, finished ? "after" : "during",
            tr__signature_text(&s, text));
    tr__shm_break_quietly(t); /* the others see it themselves */
}

static tr_status shown(tr__shm *t, tr__shm_peer *peer, const tr__shm_message *message, int fd)
{
    const tr__carried *carried = atomic_load(&t->carried);
    tr__shm_mapping mapping;
    TR__TRY(tr__shm_map(peer, message->id, message->bytes, fd, &mapping));
    if (!mapping.memory) return TR_OK;
    tr__carried_memory memory = {mapping.id, mapping.memory, mapping.bytes, peer->in_process};
    if (carried)
        carried->shown(carried->user, peer->rank, message->status, &memory);
    else
        tr__shm_unmap(peer, &mapping);
    return TR_OK;
}

static void gave_up(tr__shm *t, const tr__shm_peer *peer, const tr__shm_message *message)
{
    if (message->text[0])
        tr__fail(tr__failure_is_common(message->status) ? message->status : TR_PEER, "%s", message->text);
    else
        tr__fail(TR_PEER, "rank %d (pid %ld) gave up group '%s' and does not say why", peer->rank, peer->pid, t->group);
    tr__shm_break_quietly(t);
}

/* The counts of our messages to or from a peer. */
static tr__shm_post_count *post_count(const tr__shm *t, const tr__shm_peer *peer)
{
    return &tr__shm_post_counts(t->control, t->world_size)[peer - t->peers];
}

static void handle(tr__shm *t, tr__shm_peer *peer, const tr__shm_message *message, int fd)
{
    switch (message->type) {
    case TR__SHM_SEGMENT:
        if (tr__shm_segment_came(t, peer, message->id, message->bytes, fd) != TR_OK) tr__shm_break(t);
        return; /* fd went along */
    case TR__SHM_STREAMS:
        if (tr__shm_channel_came(t, peer, message->id, message->bytes, fd) != TR_OK) tr__shm_break(t);
        return;
    case TR__SHM_SHOWN:
        if (shown(t, peer, message, fd) != TR_OK) tr__shm_break(t);
        return;
    case TR__SHM_UNMAP:
        if (message->id) tr__shm_segment_went(t, peer, message->id);
        break;
    case TR__SHM_BROKEN:
        gave_up(t, peer, message);
        break;
    case TR__SHM_GOODBYE:
        pthread_mutex_lock(&t->lock);
        atomic_store(&peer->left, true);
        pthread_cond_broadcast(&t->changed);
        pthread_mutex_unlock(&t->lock);
        tr__shm_ring(t->control);
        tr__shm_mail(t->control);
        break;
    default:
        tr__fail(TR_FORMAT, "rank %d (pid %ld) sent a message of unknown type %u", peer->rank, peer->pid,
                 message->type);
        tr__shm_break(t);
    }
    if (fd >= 0) close(fd);
}

/* The socket is at its end. */
static void hang_up(tr__shm *t, tr__shm_peer *peer)
{
    close(peer->socket);
    peer->socket = -1;
    atomic_store(&peer->gone, true);
    if (!atomic_load(&peer->left)) died(t, peer);
    const tr__carried *carried = atomic_load(&t->carried);
    if (carried) carried->gone(carried->user, peer->rank, atomic_load(&peer->left));
    tr__shm_segment_went(t, peer, 0);
}

static void receive_all(tr__shm *t, tr__shm_peer *peer)
{
    for (;;) {
        tr__shm_message message;
        int fd;
        ssize_t got = tr__shm_receive(peer->socket, &message, &fd);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (got < 0 && errno == ECONNRESET) continue; /* what it sent before is still to be read */
        if (got <= 0) {
            hang_up(t, peer);
            return;
        }
        if (got == (ssize_t)sizeof message && message.magic == TR__SHM_MAGIC && message.rank == (int)(peer - t->peers)) {
            handle(t, peer, &message, fd);
            atomic_fetch_add(&post_count(t, peer)->handled, 1);
            continue;
        }
        if (fd >= 0) close(fd);
        tr__fail(TR_FORMAT, "rank %d (pid %ld) sent a damaged message", peer->rank, peer->pid);
        tr__shm_break(t);
    }
}

/* ---- What goes out ----------------------------------------------------------------------------------------------- */

static tr__shm_letter *first_letter(tr__shm *t, tr__shm_peer *peer)
{
    pthread_mutex_lock(&t->lock);
    tr__shm_letter *letter = peer->first;
    pthread_mutex_unlock(&t->lock);
    return letter;
}

static void drop_letter(tr__shm *t, tr__shm_peer *peer)
{
    pthread_mutex_lock(&t->lock);
    tr__shm_letter *letter = peer->first;
    peer->first = letter->next;
    if (!peer->first) peer->last = NULL;
    pthread_mutex_unlock(&t->lock);
    if (letter->fd >= 0) close(letter->fd);
    free(letter);
}

/* Sends what the socket takes; true when letters are left. */
static bool flush(tr__shm *t, tr__shm_peer *peer)
{
    for (tr__shm_letter *letter; (letter = first_letter(t, peer)); drop_letter(t, peer)) {
        if (peer->socket < 0) continue;
        ssize_t sent = tr__shm_send(peer->socket, &letter->message, letter->fd);
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
        if (sent >= 0) atomic_fetch_add(&post_count(t, peer)->sent, 1);
        /* Any other failure is a peer that has gone, which reading will tell. */
    }
    return false;
}

/* ---- The thread -------------------------------------------------------------------------------------------------- */

/* Returns whether letters are left. */
static bool flush_all(tr__shm *t)
{
    bool unsent = false;
    for (int rank = 0; rank < t->world_size; rank++) {
        bool left = flush(t, &t->peers[rank]);
        short events = (short)(POLLIN | (left ? POLLOUT : 0));
        t->polled[rank] = (struct pollfd){.fd = t->peers[rank].socket, .events = events};
        unsent |= left;
    }
    t->polled[t->world_size] = (struct pollfd){.fd = t->kick, .events = POLLIN};
    return unsent;
}

static void *monitor(void *arg)
{
    tr__shm *t = arg;
    int64_t stop_at = 0;
    for (;;) {
        uint64_t kicks;
        while (read(t->kick, &kicks, sizeof kicks) > 0) continue;
        bool stopping = atomic_load(&t->stopping); /* read before the letters: the goodbyes are among them */
        bool unsent = flush_all(t);
        if (stopping && !stop_at) stop_at = tr__now_ns() + (int64_t)FLUSH_MS * 1000000;
        if (stopping && (!unsent || tr__now_ns() >= stop_at)) return NULL;
        if (poll(t->polled, (nfds_t)t->world_size + 1, stopping ? 10 : -1) <= 0) continue;
        for (int rank = 0; rank < t->world_size; rank++)
            if (t->polled[rank].revents & (POLLIN | POLLHUP | POLLERR)) receive_all(t, &t->peers[rank]);
    }
}

tr_status tr__shm_monitor_start(tr__shm *t)
{
    t->polled = calloc((size_t)t->world_size + 1, sizeof *t->polled);
    if (!t->polled) return tr__fail(TR_NO_MEMORY, "group '%s': no memory for its monitor", t->group);
    int error = tr__thread_start(&t->monitor, monitor, t);
    if (error) return tr__fail_errno(TR_NO_MEMORY, error, "group '%s': cannot start its monitor", t->group);
    t->has_monitor = true;
    return TR_OK;
}

void tr__shm_monitor_stop(tr__shm *t)
{
    /* Of a group that is broken, the reason goes first: a peer must not take our leaving for it. */
    if (tr__failure_there(&t->failure)) tr__shm_tell_failure(t);
    tr__shm_message message = {.type = TR__SHM_GOODBYE};
    for (int rank = 0; rank < t->world_size; rank++) {
        /* Without memory for the letter the peer takes us for dead, which is no worse for it. */
        tr_status status = rank == t->rank ? TR_OK : tr__shm_post(t, &t->peers[rank], &message, -1);
        (void)status;
    }
    atomic_store(&t->stopping, true);
    tr__shm_kick(t);
    pthread_join(t->monitor, NULL);
    t->has_monitor = false;
}
