/* Making and ending an endpoint between hosts, the groups that are attached to it, and what it lends and sends for them. */
#include "net/network.h"

#include "base/check.h"
#include "base/clock.h"
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

/* A message is short, and its connection all but always empty. When it does not fit, the peer has not read for so long
 * that it must do without: a message in part would be taken for damage. */
void tr__network_send(tr__wire *wire, const tr__network_frame *frame, const char *text)
{
    struct iovec parts[2] = {{(void *)frame, sizeof *frame}, {(void *)text, (size_t)frame->head.bytes}};
    ssize_t sent;
    while ((sent = tr__wire_send(wire, parts, frame->head.bytes ? 2 : 1)) < 0 && errno == EINTR) continue;
    bool in_part = sent < 0 ? !tr__wire_withdraw(wire) : (size_t)sent < sizeof *frame + frame->head.bytes;
    if (in_part) shutdown(wire->socket, SHUT_WR);
}

void tr__network_tell(tr__network_group *g, int member, const tr__network_frame *frame, const char *text)
{
    tr__network_endpoint *n = g->network;
    tr__network_frame ours = *frame;
    ours.head.magic = TR__NETWORK_MAGIC;
    ours.head.version = TR__NETWORK_VERSION;
    ours.head.group = g->id;
    pthread_mutex_lock(&n->lock); /* messages of two threads do not mix */
    tr__network_connection *control = n->peers[g->members[member]].control;
    if (control) tr__network_send(&control->wire, &ours, text);
    pthread_mutex_unlock(&n->lock);
}

void tr__network_tell_all(tr__network_group *g, const tr__network_frame *frame, const char *text)
{
    for (int member = 0; member < g->count; member++) tr__network_tell(g, member, frame, text);
}

void tr__network_kick(tr__network_endpoint *n)
{
    ssize_t written = write(n->kick, &(uint64_t){1}, sizeof(uint64_t)); /* fails only when it is set already */
    (void)written;
}

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

static void free_group(tr__network_group *g)
{
    for (tr__early_frame *early = g->early, *next; early; early = next) {
        next = early->next;
        free(early);
    }
    free(g->members);
    free(g->places);
    free(g);
}

tr_status tr__network_attach(tr__network_endpoint *n, uint64_t id, const tr__network_calls *calls, void *user, tr__network_group **group)
{
    size_t world = (size_t)n->world_size;
    tr__network_group *g = calloc(1, sizeof *g);
    if (!g) return tr__fail(TR_NO_MEMORY, "group '%s': no memory for a group", n->name);
    *g = (tr__network_group){.network = n, .id = id, .calls = calls, .user = user, .last_early = &g->early};
    g->members = calloc(world, sizeof *g->members);
    g->places = malloc(world * sizeof *g->places);
    if (!g->members || !g->places) {
        free_group(g);
        return tr__fail(TR_NO_MEMORY, "group '%s': no memory for a group", n->name);
    }
    for (size_t i = 0; i < world; i++) g->places[i] = -1;
    pthread_mutex_lock(&n->hearing);
    g->next = n->groups;
    n->groups = g;
    n->users++;
    pthread_mutex_unlock(&n->hearing);
    *group = g;
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

tr_status tr__network_connect(tr__network_group *g, int member, tr__channel channel)
{
    TR__TRY(tr__network_call(g->network, g->members[member], channel, g->id));
    tr__network_kick(g->network);
    return TR_OK;
}

static bool watch(tr__network_endpoint *n, tr__network_connection *c)
{
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    return epoll_ctl(n->watch, EPOLL_CTL_ADD, c->wire.socket, &e) == 0;
}

tr_status tr__network_adopt(tr__network_endpoint *n, int rank, tr__channel channel, uint64_t group, tr__wire *wire,
    tr__network_connection **connection)
{
    tr__network_peer *peer = &n->peers[rank];
    tr__network_connection *c = malloc(sizeof *c);
    if (!c) return tr__fail(TR_NO_MEMORY, "group '%s': no memory for a connection to rank %d", n->name, rank);
    *c = (tr__network_connection){.wire = *wire, .peer = peer, .channel = channel, .group = group};
    *wire = (tr__wire){.socket = -1};
    pthread_mutex_lock(&n->lock);
    bool watched = true;
    if (channel == TR__CONTROL_CHANNEL) {
        n->met++;
        peer->control = c;
        watched = watch(n, c);
    } else {
        c->next = peer->connections;
        peer->connections = c;
    }
    pthread_mutex_unlock(&n->lock);
    *connection = c;
    return watched ? TR_OK : tr__fail_errno(TR_IO, errno, "group '%s': no epoll", n->name);
}

/* Under the lock. The peer reads up to the end of what was sent. What it has sent is read by the monitor: a connection is reset
 * when it is closed with unread bytes, and what we sent last would be lost with it. */
static void begin_to_end(tr__network_endpoint *n, tr__network_connection *c)
{
    shutdown(c->wire.socket, SHUT_WR);
    c->ending = true;
    (void)!watch(n, c); /* if it cannot, the connection stays until the endpoint ends */
}

void tr__network_give_back(tr__network_endpoint *n, tr__network_connection *c)
{
    pthread_mutex_lock(&n->lock);
    begin_to_end(n, c);
    pthread_mutex_unlock(&n->lock);
}

static void give_back_all(tr__network_group *g)
{
    tr__network_endpoint *n = g->network;
    pthread_mutex_lock(&n->lock);
    for (int i = 0; i < g->count; i++)
        for (tr__network_connection *c = n->peers[g->members[i]].connections; c; c = c->next)
            if (c->group == g->id && !c->ending) begin_to_end(n, c);
    pthread_mutex_unlock(&n->lock);
}

void tr__network_detach(tr__network_group *g, bool sound)
{
    tr__network_endpoint *n = g->network;
    pthread_mutex_lock(&n->hearing);
    tr__network_group **at = &n->groups;
    while (*at != g) at = &(*at)->next;
    *at = g->next;
    give_back_all(g);
    n->hasty = !sound;
    bool last = --n->users == 0;
    pthread_mutex_unlock(&n->hearing);
    free_group(g);
    if (last) tr__network_free(n);
}

/* ---- Making ------------------------------------------------------------------------------------------------------ */

static tr_status make_parts(tr__network_endpoint *n, const tr__network_options *o)
{
    n->peers = calloc((size_t)n->world_size, sizeof *n->peers);
    if (!n->peers) return tr__fail(TR_NO_MEMORY, "group '%s': no memory for %d ranks", n->name, n->world_size);
    for (int rank = 0; rank < n->world_size; rank++) n->peers[rank].rank = rank;
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

static void close_connection(tr__network_connection *c)
{
    tr__wire_close(&c->wire);
    free(c);
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
            close_connection(peer->control);
        }
        for (tr__network_connection *c = peer->connections, *next; c; c = next) {
            next = c->next;
            read_out(c->wire.socket, moment, end);
            close_connection(c);
        }
    }
}

void tr__network_free(tr__network_endpoint *n)
{
    tr__network_monitor_stop(n);
    tr__network_drop_attempts(n);
    if (n->listener >= 0) close(n->listener);
    if (n->peers) part(n);
    tr__tls_key_unref(n->job_key);
    if (n->watch >= 0) close(n->watch);
    if (n->kick >= 0) close(n->kick);
    free(n->peers);
    free(n->incoming);
    free(n->polled);
    free(n->attempts);
    pthread_mutex_destroy(&n->hearing);
    pthread_mutex_destroy(&n->lock);
    free(n);
}
