/*
 * The monitor: the endpoint's thread, which sleeps on the control connections. One that ends is a dead peer, unless that has left;
 * the kernel tells at once, however it died, so a rank that computes, sleeps, or waits for somebody else knows as soon as one that
 * waits for that peer. A host that is gone tells nothing: once a second the monitor looks for how long nothing has come from there.
 * It also makes the connections that groups ask for, and reads those that they have given back up to their end.
 */
#include "base/clock.h"
#include "base/list.h"
#include "base/thread.h"
#include "net/link.h"
#include "net/network.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

/* ---- For groups -------------------------------------------------------------------------------------------------- */

tr__network_group *tr__network_find(const tr__network_endpoint *n, uint64_t id)
{
    tr__network_group *g = n->groups;
    while (g && g->id != id) g = g->next;
    return g;
}

/* Its members are not known yet. */
static void keep_early(tr__network_group *g, const tr__network_peer *peer)
{
    int origin = peer->frame.head.origin;
    tr__early_frame *early = malloc(sizeof *early);
    if (!early) {
        tr__fail(TR_NO_MEMORY, "group '%s': no memory for a message of rank %d", g->network->name, origin);
        g->calls->failed(g->user);
        return;
    }
    *early = (tr__early_frame){.peer = origin, .frame = peer->frame};
    memcpy(early->text, peer->text, sizeof early->text);
    *g->last_early = early;
    g->last_early = &early->next;
}

static void pass(tr__network_group *g, int peer, const tr__network_frame *frame, const char *text)
{
    int member = g->places[peer];
    if (member >= 0) g->calls->heard(g->user, member, frame, text);
}

void tr__network_pass_early(tr__network_group *g)
{
    for (tr__early_frame *early; (early = g->early);) {
        pass(g, early->peer, &early->frame, early->text);
        g->early = early->next;
        free(early);
    }
    g->last_early = &g->early;
}

/* Under `hearing`. What is for a group that has ended here, or is not ours, is dropped. */
static void handle(tr__network_endpoint *n, tr__network_peer *peer)
{
    const tr__frame_head *head = &peer->frame.head;
    tr__network_group *g = tr__network_find(n, head->group);
    bool of_endpoint = head->type >= TR__FRAME_HERE;
    if (!of_endpoint && !tr__network_relay(n, peer)) return;
    if (of_endpoint)
        tr__network_hear_link(n, peer);
    else if (g && !g->count)
        keep_early(g, peer);
    else if (g)
        pass(g, head->origin, &peer->frame, peer->text);
}

/* ---- Control connections ----------------------------------------------------------------------------------------- */

void tr__network_say_gone(tr__network_endpoint *n, tr__network_peer *peer, int error)
{
    if (peer->gone) return;
    peer->gone = true;
    peer->error = error;
    for (tr__network_group *g = n->groups; g; g = g->next)
        if (g->places[peer->rank] >= 0) g->calls->gone(g->user, g->places[peer->rank], error);
}

/* Under `hearing`. It is at its end. */
static void hang_up(tr__network_endpoint *n, tr__network_peer *peer, int error)
{
    pthread_mutex_lock(&n->lock);
    tr__network_connection *control = peer->control;
    epoll_ctl(n->watch, EPOLL_CTL_DEL, control->wire.socket, NULL);
    TR__UNLINK(n->controls, control);
    peer->control = NULL;
    peer->got = 0;
    tr__network_close(control);
    pthread_mutex_unlock(&n->lock);
    tr__network_lose(n, peer, error);
}

/* Under `hearing`. It sends what is damaged: nobody knows where its next message would begin, so nothing more is read. The
 * connection stays, as the groups tell all members why they end, and this one, too. */
static void stop_reading(tr__network_endpoint *n, tr__network_peer *peer)
{
    pthread_mutex_lock(&n->lock);
    tr__network_watch(n, peer->control, false, peer->control->waits);
    pthread_mutex_unlock(&n->lock);
    peer->damaged = true;
    tr__network_lose(n, peer, EBADMSG);
}

/* Under the lock, as others may be telling that peer something. */
static ssize_t hear_bytes(tr__network_endpoint *n, tr__network_peer *peer, char *to, size_t want)
{
    TR__LOCKED(&n->lock);
    return tr__wire_receive(&peer->control->wire, &(struct iovec){to, want}, 1, false);
}

static bool is_sound(const tr__network_endpoint *n, const tr__frame_head *head)
{
    return head->magic == TR__NETWORK_MAGIC && head->version == TR__NETWORK_VERSION && head->bytes <= TR__FRAME_TEXT &&
           head->origin >= 0 && head->origin < n->world_size;
}

void tr__network_hear(tr__network_endpoint *n, tr__network_peer *peer)
{
    while (peer->control && !peer->damaged) {
        bool framed = peer->got >= sizeof peer->frame;
        char *to = framed ? peer->text + (peer->got - sizeof peer->frame) : peer->frame.bytes + peer->got;
        size_t want = framed ? sizeof peer->frame + peer->frame.head.bytes - peer->got : sizeof peer->frame - peer->got;
        ssize_t got = want ? hear_bytes(n, peer, to, want) : 0;
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && tr__wire_would_block()) return;
        bool damaged = want && got < 0 && errno == EBADMSG && !peer->control->wire.tls; /* TLS then sends no more, either */
        if (want && got <= 0 && !damaged) {
            hang_up(n, peer, got < 0 ? errno : 0);
            return;
        }
        if (!damaged) peer->got += (size_t)got;
        if (!damaged && peer->got < sizeof peer->frame) continue;
        if (damaged || !is_sound(n, &peer->frame.head)) {
            stop_reading(n, peer);
            return;
        }
        if (peer->got < sizeof peer->frame + peer->frame.head.bytes) continue;
        peer->got = 0;
        handle(n, peer);
    }
}

/* ---- Connections that are ending --------------------------------------------------------------------------------- */

static void end_connection(tr__network_endpoint *n, tr__network_connection *c)
{
    pthread_mutex_lock(&n->lock);
    TR__UNLINK(c->peer->connections, c);
    pthread_mutex_unlock(&n->lock);
    epoll_ctl(n->watch, EPOLL_CTL_DEL, c->wire.socket, NULL);
    tr__network_close(c);
}

static void read_out(tr__network_endpoint *n, tr__network_connection *c)
{
    char rest[16 << 10];
    ssize_t got = recv(c->wire.socket, rest, sizeof rest, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && !tr__wire_would_block())) end_connection(n, c);
}

/* ---- The thread -------------------------------------------------------------------------------------------------- */

/* Is the host at the other end gone, or the way there? Connections stay open as long as the kernel hopes. */
static bool is_lost(tr__network_endpoint *n, const tr__network_peer *peer)
{
    enum { MOST = 64 }; /* of a peer's connections; that of control is always asked */
    int sockets[MOST], count = 0;
    TR__LOCKED(&n->lock);
    if (peer->control) sockets[count++] = peer->control->wire.socket;
    for (const tr__network_connection *c = peer->connections; c && count < MOST; c = c->next)
        if (!c->ending) sockets[count++] = c->wire.socket;
    return count && tr__link_lost(sockets, count);
}

/* A peer without a control connection is lost for this rank alone: the path between the two is cut, or else those that
 * have one will tell. */
static void find_lost(tr__network_endpoint *n)
{
    for (int rank = 0; rank < n->world_size; rank++) {
        tr__network_peer *peer = &n->peers[rank];
        if (!is_lost(n, peer)) continue;
        TR__LOCKED(&n->hearing);
        if (peer->control)
            hang_up(n, peer, ETIMEDOUT);
        else
            tr__network_say_gone(n, peer, ETIMEDOUT);
    }
}

/* After the others: who has lost a neighbour says so at once on a connection with a new one, and why may still lie on the
 * old ones. */
static void hear_fresh(tr__network_endpoint *n)
{
    n->fresh = false;
    TR__LOCKED(&n->hearing);
    for (int rank = 0; rank < n->world_size; rank++) {
        tr__network_peer *peer = &n->peers[rank];
        if (!peer->control || !peer->control->fresh) continue;
        peer->control->fresh = false;
        tr__network_hear(n, peer);
    }
}

/* Reads all that has come. */
static void hear_all(tr__network_endpoint *n)
{
    enum { EVENTS = 16 };
    struct epoll_event events[EVENTS];
    int ready = epoll_wait(n->watch, events, EVENTS, 0);
    for (int i = 0; i < ready; i++) {
        tr__network_connection *c = events[i].data.ptr;
        if (c->ending) {
            read_out(n, c);
            continue;
        }
        TR__LOCKED(&n->hearing);
        pthread_mutex_lock(&n->lock);
        if (events[i].events & EPOLLOUT) tr__network_push(n, c);
        pthread_mutex_unlock(&n->lock);
        tr__network_hear(n, c->peer);
    }
    if (ready < EVENTS && n->fresh) hear_fresh(n);
    TR__LOCKED(&n->hearing);
    bool settles = ready == 0 && atomic_exchange(&n->unsettled, false);
    for (tr__network_group *g = n->groups; settles && g; g = g->next) g->calls->heard_all(g->user);
}

static void *monitor(void *arg)
{
    enum { LOOK_MS = 1000 };
    tr__network_endpoint *n = arg;
    int64_t look = tr__in_ms(LOOK_MS);
    hear_all(n); /* what came with the last bytes of joining */
    while (!atomic_load(&n->stopping)) {
        int events;
        (void)!tr__network_step(n, atomic_load(&n->unsettled) || n->fresh ? 0 : LOOK_MS, &events); /* without memory: again */
        hear_all(n);
        tr__network_relink(n);
        if (tr__now_ns() < look) continue;
        find_lost(n);
        look = tr__in_ms(LOOK_MS);
    }
    return NULL;
}

bool tr__network_behind(tr__network_endpoint *n)
{
    struct epoll_event any;
    return epoll_wait(n->watch, &any, 1, 0) > 0;
}

/* From now on it, not the kernel, gives hosts up: its control connections may wait for a stopped peer to read. */
tr_status tr__network_monitor_start(tr__network_endpoint *n)
{
    int never = 0;
    for (int rank = 0; rank < n->world_size; rank++)
        if (n->peers[rank].control)
            setsockopt(n->peers[rank].control->wire.socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &never, sizeof never);
    n->has_monitor = true;
    int error = tr__thread_start(&n->monitor, monitor, n);
    n->has_monitor = error == 0;
    if (error) return tr__fail_errno(TR_NO_MEMORY, error, "group '%s': cannot start its monitor", n->name);
    return TR_OK;
}

void tr__network_monitor_stop(tr__network_endpoint *n)
{
    if (!n->has_monitor) return;
    atomic_store(&n->stopping, true);
    tr__network_kick(n);
    pthread_join(n->monitor, NULL);
    n->has_monitor = false;
}
