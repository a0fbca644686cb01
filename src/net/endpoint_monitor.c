/*
 * The monitor: the endpoint's thread, which watches the sockets to the peers. A socket that closes is a peer that has ended; the
 * kernel tells at once, however it died. The thread sleeps in poll() and costs nothing else.
 */
#define _GNU_SOURCE
#include "base/clock.h"
#include "base/list.h"
#include "base/thread.h"
#include "net/endpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    LOST_MS = 20,    /* between the ends of a dead process's sockets, on a busy machine */
    FLUSH_MS = 1000, /* how long a goodbye may take to send: a peer that is stopped does not read */
    AGAIN_MS = 10,   /* between two tries to send what the kernel has no room for */
};

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
        char space[CMSG_LEN(sizeof(int))]; /* without the padding, which would let a second descriptor in */
    } control;
    struct msghdr m = {.msg_iov = &body, .msg_iovlen = 1, .msg_control = control.space,
        .msg_controllen = CMSG_LEN(sizeof(int))};
    *fd = -1;
    ssize_t got;
    while ((got = recvmsg(socket, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) continue;
    if (got < 0) return got;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(fd, CMSG_DATA(c), sizeof(int));
    else if (m.msg_flags & MSG_CTRUNC)
        *fd = TR__SHM_LOST;
    message->cookie[TR__COOKIE_TEXT - 1] = 0;
    message->text[sizeof message->text - 1] = 0;
    return got;
}

/* ---- What comes in ----------------------------------------------------------------------------------------------- */

static tr__attachment *attached(const tr__endpoint *e, uint64_t id)
{
    tr__attachment *a = e->attachments;
    while (a && a->id != id) a = a->next;
    return a;
}

/* Its members are not known yet. */
static void keep_early(tr__attachment *a, int peer, const tr__shm_message *message, int fd)
{
    tr__shm_queued *queued = malloc(sizeof *queued);
    if (queued) {
        *queued = (tr__shm_queued){.peer = peer, .fd = fd, .message = *message};
        tr__shm_queue_add(&a->early, queued);
        return;
    }
    if (fd >= 0) close(fd);
    tr__fail(TR_NO_MEMORY, "group '%s': no memory for a message of rank %d", a->endpoint->name, a->endpoint->peers[peer].rank);
    a->calls->failed(a->user);
}

/* What is for a group that we have left, or are not in, is dropped. */
static void hear_for_group(tr__endpoint *e, int peer, const tr__shm_message *message, int fd)
{
    tr__attachment *a = attached(e, message->group);
    if (a && a->count) {
        tr__attachment_pass(a, peer, message, fd);
        tr__attachment_retire(a);
    } else if (a && a->calls) {
        keep_early(a, peer, message, fd);
    } else if (fd >= 0) {
        close(fd);
    }
}

/* Tells the groups of a peer that its memory is here, or of this thread's latest failure. */
static void tell_groups(tr__endpoint *e, int peer, tr_status status)
{
    TR__FOR_EACH(a, e->attachments) {
        int member = a->places[peer];
        if (member < 0 || !a->calls) continue;
        if (status == TR_OK) a->calls->mapped(a->user, member);
        else a->calls->failed(a->user);
    }
}

static void hear(tr__endpoint *e, int peer, const tr__shm_message *message, int fd)
{
    tr_status status = TR_OK;
    switch (message->type) {
    case TR__SHM_SEGMENT:
    case TR__SHM_BLOCKS:
        status = tr__endpoint_mapped(e, peer, message, fd);
        pthread_mutex_lock(&e->hearing);
        bool of_one = status != TR_OK && message->group; /* which alone needs it */
        const tr__attachment *a = of_one ? attached(e, message->group) : NULL;
        if (!of_one) tell_groups(e, peer, status);
        if (a && a->calls && a->places[peer] >= 0) a->calls->missed(a->user, a->places[peer]);
        pthread_mutex_unlock(&e->hearing);
        tr__endpoint_tell(e);
        return;
    case TR__SHM_UNMAP:
        if (message->id) tr__endpoint_unmapped(e, &e->peers[peer], message->id);
        if (fd >= 0) close(fd);
        return;
    default:
        pthread_mutex_lock(&e->hearing);
        hear_for_group(e, peer, message, fd);
        pthread_mutex_unlock(&e->hearing);
    }
}

/* The socket is at its end. */
static void hang_up(tr__endpoint *e, int peer)
{
    tr__endpoint_peer *p = &e->peers[peer];
    close(p->socket);
    p->socket = -1;
    atomic_fetch_add(&e->page->lost, 1);
    pthread_mutex_lock(&e->hearing);
    p->gone = true;
    TR__FOR_EACH(a, e->attachments) { /* those that have ended here may go */
        tr__attachment_gone(a, peer);
        tr__attachment_retire(a);
    }
    pthread_mutex_unlock(&e->hearing);
    tr__endpoint_unmapped(e, p, 0);
}

static void damaged(tr__endpoint *e, int peer)
{
    tr_status status = tr__fail(TR_FORMAT, "rank %d (pid %ld) sent a damaged message", e->peers[peer].rank, e->peers[peer].pid);
    TR__LOCKED(&e->hearing);
    tell_groups(e, peer, status);
}

/* Is the next message memory for control blocks? Without a descriptor for it none of the groups with that peer could go on, while
 * of other memory only the call fails that needs it. */
static bool brings_blocks(int socket)
{
    uint32_t begin[2]; /* magic and type */
    return recv(socket, begin, sizeof begin, MSG_PEEK | MSG_DONTWAIT) == sizeof begin && begin[1] == TR__SHM_BLOCKS;
}

/* Returns whether the socket is at its end. */
static bool receive_all(tr__endpoint *e, int peer)
{
    for (;;) {
        tr__shm_message message;
        int fd;
        if (e->spare >= 0 && brings_blocks(e->peers[peer].socket)) {
            close(e->spare);
            e->spare = -1;
        }
        ssize_t got = tr__shm_receive(e->peers[peer].socket, &message, &fd);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
        if (got < 0 && errno == ECONNRESET) continue; /* what it sent before is still to be read */
        if (got <= 0) return true;
        if (got == (ssize_t)sizeof message && message.magic == TR__SHM_MAGIC && message.rank == peer) {
            hear(e, peer, &message, fd);
            if (e->spare < 0) e->spare = fcntl(e->kick, F_DUPFD_CLOEXEC, 0);
            atomic_fetch_add(&e->page->counts[peer].handled, 1);
            continue;
        }
        if (fd >= 0) close(fd);
        damaged(e, peer);
    }
}

static bool has_lost_more(const tr__endpoint *e, int peer)
{
    const tr__endpoint_page *page = e->peers[peer].page;
    return page && atomic_load(&page->lost) > atomic_load(&e->page->lost);
}

/* Whoever loses a rank may end soon after it. A peer at its end that has lost more peers than we have is told of last: the one
 * that went before it is the reason, and its socket is at its end, too, or will be in a moment. */
static void receive_polled(tr__endpoint *e)
{
    for (bool last = atomic_load(&e->stopping);; last = true) {
        bool deferred = false;
        for (int i = 0; i < e->world_size; i++) {
            struct pollfd *polled = &e->polled[i];
            if (polled->fd < 0 || !(polled->revents & (POLLIN | POLLHUP | POLLERR)) || !receive_all(e, i)) continue;
            polled->fd = -1;
            if (!has_lost_more(e, i)) hang_up(e, i);
        }
        for (int i = 0; i < e->world_size; i++) {
            if (e->polled[i].fd >= 0 || e->peers[i].socket < 0) continue;
            if (!last && has_lost_more(e, i)) deferred = true;
            else hang_up(e, i);
        }
        if (!deferred) return;
        (void)poll(e->polled, (nfds_t)e->world_size, LOST_MS);
    }
}

/* ---- What goes out ----------------------------------------------------------------------------------------------- */

static tr__shm_queued *first_queued(tr__endpoint *e, const tr__endpoint_peer *peer)
{
    TR__LOCKED(&e->lock);
    return peer->outgoing.first;
}

static void drop_queued(tr__endpoint *e, tr__endpoint_peer *peer)
{
    pthread_mutex_lock(&e->lock);
    tr__shm_queued *queued = peer->outgoing.first;
    peer->outgoing.first = queued->next;
    if (!peer->outgoing.first) peer->outgoing.last = NULL;
    pthread_mutex_unlock(&e->lock);
    if (queued->fd >= 0) close(queued->fd);
    free(queued);
}

/* What is to be polled for before the rest can be sent; 0: nothing is left, or *again: the kernel has no memory, or too many
 * descriptors are on their way between processes of this user, which nothing tells the end of. */
static short flush(tr__endpoint *e, tr__endpoint_peer *peer, bool *again)
{
    for (tr__shm_queued *queued; (queued = first_queued(e, peer)); drop_queued(e, peer)) {
        if (peer->socket < 0) continue;
        ssize_t sent = tr__shm_send(peer->socket, &queued->message, queued->fd);
        if (sent >= 0) {
            atomic_fetch_add(&e->page->counts[queued->peer].sent, 1);
            continue;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK) return POLLOUT;
        *again = errno == ENOBUFS || errno == ENOMEM || errno == ETOOMANYREFS;
        if (*again) return 0;
        /* Any other failure is a peer that has gone, which reading will tell. */
    }
    return 0;
}

/* ---- The thread -------------------------------------------------------------------------------------------------- */

/* Returns whether messages are left; *again: some of them must be tried again after a while. */
static bool flush_all(tr__endpoint *e, bool *again)
{
    bool unsent = false;
    *again = false;
    for (int i = 0; i < e->world_size; i++) {
        bool later = false;
        short room = flush(e, &e->peers[i], &later);
        e->polled[i] = (struct pollfd){.fd = e->peers[i].socket, .events = (short)(POLLIN | room)};
        unsent |= room || later;
        *again |= later;
    }
    e->polled[e->world_size] = (struct pollfd){.fd = e->kick, .events = POLLIN};
    return unsent;
}

static void *monitor(void *arg)
{
    tr__endpoint *e = arg;
    int64_t stop_at = 0;
    for (;;) {
        uint64_t kicks;
        while (read(e->kick, &kicks, sizeof kicks) > 0) continue;
        bool stopping = atomic_load(&e->stopping); /* read before the messages: the goodbyes are among them */
        bool again, unsent = flush_all(e, &again);
        if (stopping && !stop_at) stop_at = tr__in_ms(FLUSH_MS);
        if (stopping && (!unsent || tr__now_ns() >= stop_at)) return NULL;
        if (poll(e->polled, (nfds_t)e->world_size + 1, stopping || again ? AGAIN_MS : -1) <= 0) continue;
        receive_polled(e);
    }
}

tr_status tr__endpoint_start(tr__endpoint *e)
{
    tr__endpoint_watch(e);
    int error = tr__thread_start(&e->monitor, monitor, e);
    if (error) return tr__fail_errno(TR_NO_MEMORY, error, "group '%s': cannot start its monitor", e->name);
    e->has_monitor = true;
    return TR_OK;
}

void tr__endpoint_monitor_stop(tr__endpoint *e)
{
    atomic_store(&e->stopping, true);
    tr__endpoint_kick(e);
    pthread_join(e->monitor, NULL);
    e->has_monitor = false;
}
