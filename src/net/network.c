/* Making and ending an endpoint between hosts, the groups that are attached to it, and what it lends and sends for them. */
#include "net/network.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/thread.h"
#include "net/link.h"

#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- Control messages -------------------------------------------------------------------------------------------- */

bool tr__network_watch(tr__network_endpoint *n, tr__network_connection *c, bool reads, bool waits)
{
    bool before = c->reads || c->waits, after = reads || waits, same = c->reads == reads && c->waits == waits;
    struct epoll_event e = {.events = (reads ? EPOLLIN : 0u) | (waits ? EPOLLOUT : 0u), .data.ptr = c};
    int change = before && after ? EPOLL_CTL_MOD : after ? EPOLL_CTL_ADD : EPOLL_CTL_DEL;
    c->reads = reads;
    c->waits = waits;
    return same || epoll_ctl(n->watch, change, c->wire.socket, &e) == 0;
}

/* Under the lock. NULL: nothing. */
static void drop_news(tr__news *news)
{
    if (news && --news->users == 0) free(news);
}

void tr__network_close(tr__network_connection *c)
{
    tr__wire_close(&c->wire);
    drop_news(c->begun);
    free(c);
}

/* The next message for a neighbour; NULL: none. One that has not read for so long that what it is to get next is forgotten does
 * without. */
static tr__news *next_news(tr__network_endpoint *n, tr__network_connection *c)
{
    if (c->at < n->news_first) c->at = n->news_first;
    for (; c->at < n->news_end; c->at++) {
        tr__news *news = n->news[c->at % n->news_most];
        bool concerns = news->to < 0 ? news->from != c->peer->rank : news->to == c->peer->rank;
        if (concerns) return n->news[c->at++ % n->news_most];
    }
    return NULL;
}

/* Sends the rest of the message that has begun, or of what TLS has of earlier ones. */
static ssize_t send_rest(tr__network_connection *c)
{
    tr__news *news = c->begun;
    if (!news) return tr__wire_send(&c->wire, NULL, 0);
    size_t framed = c->part < sizeof news->frame ? c->part : sizeof news->frame, told = c->part - framed;
    struct iovec parts[2] = {{news->frame.bytes + framed, sizeof news->frame - framed},
        {news->text + told, (size_t)news->frame.head.bytes - told}};
    return tr__wire_send(&c->wire, parts, 2);
}

void tr__network_push(tr__network_endpoint *n, tr__network_connection *c)
{
    while (!c->cut) {
        if (!c->begun && (c->begun = next_news(n, c))) c->begun->users++;
        if (!c->begun && !tr__wire_pending(&c->wire)) break;
        ssize_t sent = send_rest(c);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && tr__wire_would_block()) {
            tr__network_watch(n, c, c->reads, true);
            return;
        }
        c->cut = sent < 0; /* it is at its end, as the monitor will see */
        if (!c->begun || c->cut) continue;
        c->part += (size_t)sent;
        if (c->part < sizeof c->begun->frame + c->begun->frame.head.bytes) continue;
        drop_news(c->begun);
        c->begun = NULL;
        c->part = 0;
    }
    tr__network_watch(n, c, c->reads, false);
}

void tr__network_post(tr__network_endpoint *n, int to, int from, const tr__network_frame *frame, const char *text)
{
    size_t bytes = (size_t)frame->head.bytes;
    tr__news *news = malloc(sizeof *news + bytes);
    if (!news) return; /* without memory the others find out by themselves, or at their timeout */
    *news = (tr__news){.users = 1, .to = to, .from = from, .frame = *frame};
    if (bytes) memcpy(news->text, text, bytes);
    tr__frame_head *head = &news->frame.head;
    head->magic = TR__NETWORK_MAGIC;
    head->version = TR__NETWORK_VERSION;
    TR__LOCKED(&n->lock);
    if (from == n->rank) head->origin = n->rank;
    if (from == n->rank && to < 0) head->number = ++n->said;
    n->spread += to < 0;
    if (n->news_end - n->news_first == n->news_most) drop_news(n->news[n->news_first++ % n->news_most]);
    n->news[n->news_end++ % n->news_most] = news;
    for (tr__network_connection *c = n->controls; c; c = c->next) tr__network_push(n, c);
}

void tr__network_tell_all(tr__network_group *g, const tr__network_frame *frame, const char *text)
{
    tr__network_frame ours = *frame;
    ours.head.group = g->id;
    tr__network_post(g->network, -1, g->network->rank, &ours, text);
}

void tr__network_kick(tr__network_endpoint *n)
{
    eventfd_write(n->kick, 1); /* fails only when it is set already */
}

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

tr_status tr__network_attach(tr__network_endpoint *n, uint64_t id, const tr__network_calls *calls, void *user, tr__network_group **group)
{
    size_t world = (size_t)n->world_size;
    tr__network_group *g = calloc(1, sizeof *g + 2 * world * sizeof *g->members);
    if (!g) return tr__fail(TR_NO_MEMORY, "group '%s': no memory for a group", n->name);
    *g = (tr__network_group){.network = n, .id = id, .calls = calls, .user = user, .places = g->members + world,
        .last_early = &g->early};
    for (size_t i = 0; i < world; i++) g->places[i] = -1;
    *group = g; /* before the monitor calls */
    TR__LOCKED(&n->hearing);
    g->next = n->groups;
    n->groups = g;
    n->users++;
    return TR_OK;
}

void tr__network_enter(tr__network_group *g, int count)
{
    tr__network_endpoint *n = g->network;
    pthread_mutex_lock(&n->hearing);
    for (int i = 0; i < count; i++) g->places[g->members[i]] = i;
    g->count = count;
    tr__network_pass_early(g);
    for (int i = 0; i < count; i++) {
        const tr__network_peer *peer = &n->peers[g->members[i]];
        if (peer->gone) g->calls->gone(g->user, i, peer->error);
    }
    pthread_mutex_unlock(&n->hearing);
    tr__network_kick(n); /* a connection may have come for it */
}

/* ---- Connections of groups --------------------------------------------------------------------------------------- */

tr_status tr__network_adopt(tr__network_endpoint *n, int rank, tr__channel channel, uint64_t group, tr__wire *wire,
    tr__network_connection *c)
{
    tr__network_peer *peer = &n->peers[rank];
    *c = (tr__network_connection){.wire = *wire, .peer = peer, .channel = channel, .group = group};
    *wire = (tr__wire){.socket = -1};
    TR__LOCKED(&n->lock);
    if (channel != TR__CONTROL_CHANNEL) {
        c->next = peer->connections;
        peer->connections = c;
        return TR_OK;
    }
    n->met++;
    peer->control = c;
    c->fresh = n->fresh = true;
    c->at = n->news_first;
    c->next = n->controls;
    n->controls = c;
    if (!tr__network_watch(n, c, true, false)) return tr__fail_errno(TR_IO, errno, "group '%s': no epoll", n->name);
    tr__network_push(n, c);
    return TR_OK;
}

/* The peer reads up to the end of what was sent. What it has sent is read by the monitor: a connection is reset when it is closed
 * with unread bytes, and what we sent last would be lost with it. */
void tr__network_give_back(tr__network_endpoint *n, tr__network_connection *c)
{
    shutdown(c->wire.socket, SHUT_WR);
    c->ending = true;
    tr__network_watch(n, c, true, false); /* if it cannot, the connection stays until the endpoint ends */
}

void tr__network_detach(tr__network_group *g, bool sound)
{
    tr__network_endpoint *n = g->network;
    pthread_mutex_lock(&n->hearing);
    TR__UNLINK(n->groups, g);
    pthread_mutex_lock(&n->lock);
    for (int i = 0; i < g->count; i++)
        for (tr__network_connection *c = n->peers[g->members[i]].connections; c; c = c->next)
            if (c->group == g->id && !c->ending) tr__network_give_back(n, c);
    pthread_mutex_unlock(&n->lock);
    n->hasty = !sound;
    bool last = --n->users == 0;
    pthread_mutex_unlock(&n->hearing);
    TR__FOR_EACH(early, g->early) free(early);
    free(g);
    if (last) tr__network_free(n);
}

/* ---- Making ------------------------------------------------------------------------------------------------------ */

/* Messages that are kept: of neighbours that have not read for long, and where ranks pass them on, those that a new neighbour may
 * lack. */
enum { UNSENT = 64, RELAYED = 1024 };

static tr_status make_parts(tr__network_endpoint *n, const tr__network_options *o)
{
    n->peers = calloc((size_t)n->world_size, sizeof *n->peers);
    if (!n->peers) return tr__fail(TR_NO_MEMORY, "group '%s': no memory for %d ranks", n->name, n->world_size);
    for (int rank = 0; rank < n->world_size; rank++) n->peers[rank].rank = rank;
    n->news_most = tr__network_relays(n) ? RELAYED + 4 * (uint64_t)n->world_size : UNSENT;
    n->news = calloc(n->news_most, sizeof(tr__news *));
    if (!n->news) return tr__fail(TR_NO_MEMORY, "group '%s': no memory for %d ranks", n->name, n->world_size);
    n->watch = epoll_create1(EPOLL_CLOEXEC);
    n->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (n->watch < 0 || n->kick < 0) return tr__fail_errno(TR_IO, errno, "group '%s': no epoll", n->name);
    return tr__network_listen(n, o);
}

tr_status tr__network_new(const tr__network_options *o, tr__network_endpoint **network)
{
    tr__network_endpoint *n = calloc(1, sizeof *n);
    if (!n) return tr__fail(TR_NO_MEMORY, "group '%s': no memory", o->name);
    snprintf(n->name, sizeof n->name, "%s", o->name);
    n->rank = o->rank;
    n->world_size = o->world_size;
    n->checked = tr__check_asks("wire");
    n->job_key = o->job_key ? tr__tls_key_ref(o->job_key) : NULL;
    n->key = o->encrypt ? n->job_key : NULL;
    n->listener = n->watch = n->kick = -1;
    pthread_mutex_init(&n->hearing, NULL);
    pthread_mutex_init(&n->lock, NULL);
    tr_status status = make_parts(n, o);
    if (status == TR_OK)
        *network = n;
    else
        tr__network_free(n);
    return status;
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

/* Have all bytes arrived that were sent, in the peer's kernel at least? */
static bool has_arrived(int socket)
{
    int left = 0;
    return ioctl(socket, SIOCOUTQ, &left) != 0 || left == 0;
}

/* Reads until the peer stops sending; or until `moment`, if by then it has what we sent; or until `end`, or its host is gone. */
static void read_out(int socket, int64_t moment, int64_t end)
{
    enum { LOOK_MS = 10 };
    struct pollfd p = {.fd = socket, .events = POLLIN};
    char rest[4096];
    for (;;) {
        int64_t now = tr__now_ns(), left = (moment - now) / 1000000;
        if (left <= 0 && (now >= end || has_arrived(socket) || tr__link_lost(&socket, 1))) return;
        if (poll(&p, 1, left > 0 ? (int)left : LOOK_MS) > 0 && recv(socket, rest, sizeof rest, MSG_DONTWAIT) <= 0) return;
    }
}

/* A connection is reset when it is closed with unread bytes, or when some come after that, and what we sent last is lost
 * with it if it has not arrived, as where packets are lost or a link is down for a while: the peer would take us for dead.
 * So we stop sending, and read what a peer still says. */
static void part(tr__network_endpoint *n)
{
    enum { PART_MS = 200 };
    int64_t now = tr__now_ns(), moment = now + PART_MS * (int64_t)1000000;
    int64_t end = n->hasty ? moment : now + TR__LINK_LOST_LATE_MS * (int64_t)1000000;
    for (int rank = 0; rank < n->world_size; rank++)
        if (n->peers[rank].control) shutdown(n->peers[rank].control->wire.socket, SHUT_WR);
    for (int rank = 0; rank < n->world_size; rank++) {
        tr__network_peer *peer = &n->peers[rank];
        if (peer->control) {
            read_out(peer->control->wire.socket, moment, end);
            tr__network_close(peer->control);
        }
        TR__FOR_EACH(c, peer->connections) {
            read_out(c->wire.socket, moment, end);
            tr__network_close(c);
        }
    }
}

void tr__network_free(tr__network_endpoint *n)
{
    tr__network_take_leave(n);
    tr__network_monitor_stop(n);
    tr__network_drop_attempts(n);
    if (n->listener >= 0) close(n->listener);
    if (n->peers) part(n);
    tr__tls_key_unref(n->job_key);
    if (n->watch >= 0) close(n->watch);
    if (n->kick >= 0) close(n->kick);
    for (; n->news_first < n->news_end; n->news_first++) drop_news(n->news[n->news_first % n->news_most]);
    free(n->news);
    free(n->peers);
    free(n->incoming);
    free(n->polled);
    pthread_mutex_destroy(&n->hearing);
    pthread_mutex_destroy(&n->lock);
    free(n);
}
