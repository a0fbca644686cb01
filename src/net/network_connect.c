/*
 * Connections on their way. Each rank listens on one address, and publishes it in the store with a one-time cookie. While
 * joining it connects to neighbours below it and accepts those above. Who connects must bring our cookie; the answer brings
 * the other's. Anyone else is dropped without an answer, and holds nobody up. Where connections are encrypted, all that is
 * said within TLS, and peers without the job's key do not come so far.
 *
 * The first bytes of a connection tell: the hello has the cookie, and the first message of TLS a MAC by the job's key. They follow
 * the end of TCP's handshake at once, so a peer has proved itself when it is accepted, or a moment later. Only those who have
 * proved nothing yet must give way when places run out, and until they speak they cost a descriptor each.
 */
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/list.h"
#include "base/log.h"
#include "base/thread.h"
#include "net/link.h"
#include "net/network.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

enum {
    RETRY_MS = 5,    /* after a refusal: a record of an earlier try to join, */
    PAUSES_MOST = 7, /* how often the pause before a neighbour that refuses is asked again doubles, */
    REACH_MS = 100,  /* and while there is no way to a rank's host: its link may come back; or no descriptor here */
    HELD_MS = 1,     /* between two looks at whether a group knows its members */
    TRY_MS = 10000,  /* to connect and begin: what was lost on the way would be sent again later still */
    ENDED_MS = 1000, /* that a rank refuses to be our neighbour: its goodbye is on its way, or it is dead */
    SPARE = 256,     /* places for connections that come in, beyond the ranks', and */
    BACKLOG = 1024,  /* in the kernel, until we look there */
    LOGGED_MOST = 10,
    LATEST_MS = 2 * TR__LINK_LOST_MS, /* without an answer: later than the monitor gives a host up */
    SHORT_US = 1000, /* a round trip within one site */
};

/* ---- The listener ------------------------------------------------------------------------------------------------ */

static int open_socket(const tr__address *a)
{
    return socket(a->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

tr_status tr__network_listen(tr__network_endpoint *n, const tr__network_options *o)
{
    tr__address a;
    socklen_t length = sizeof a.room;
    TR__TRY(tr__address_choose(n->name, o->wanted, o->anywhere, o->towards, &a));
    TR__TRY(tr__random_text(n->cookie, sizeof n->cookie));
    n->listener = open_socket(&a);
    if (n->listener < 0 || bind(n->listener, &a.any, tr__address_length(&a)) != 0 ||
        listen(n->listener, TR__CHANNELS * n->world_size + BACKLOG) != 0 || getsockname(n->listener, &a.any, &length) != 0)
        return tr__fail_errno(TR_IO, errno, "group '%s': cannot listen for the other ranks", n->name);
    int most = TR__CHANNELS * n->world_size + SPARE;
    n->incoming = calloc((size_t)most, sizeof *n->incoming);
    if (!n->incoming) return tr__fail(TR_NO_MEMORY, "group '%s': no memory to join %d ranks", n->name, n->world_size);
    for (n->incoming_most = 0; n->incoming_most < most; n->incoming_most++) n->incoming[n->incoming_most].wire.socket = -1;
    return tr__address_write(&a, n->address);
}

/* ---- What connections ask of the kernel -------------------------------------------------------------------------- */

static bool has_short_rounds(int socket)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    bool known = getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 &&
                 length >= offsetof(struct tcp_info, tcpi_min_rtt) + sizeof info.tcpi_min_rtt;
    return known && info.tcpi_min_rtt < SHORT_US;
}

/* BBR sends by the clock, at the rate that it believes the path to have. Between neighbours whose rounds are shorter
 * than a timer's, that is work for nothing: it took a third of the throughput, whatever the number of connections. Reno
 * is in every kernel, and open to every user. */
static bool stop_pacing(int socket)
{
    char name[16] = "";
    socklen_t length = sizeof name;
    bool paces = getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0 && strncmp(name, "bbr", 3) == 0;
    return paces && has_short_rounds(socket) && setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, "reno", strlen("reno")) == 0;
}

/* The monitor notices a host that is gone by its silence (net/link.h). While it does not run yet, the kernel does, on the control
 * connection only: a peer that is stopped, or slow to read, has room there for what joining sends, and where there is none
 * TCP_USER_TIMEOUT would end the wait for it. */
static void set_up_socket(tr__network_endpoint *n, int socket, tr__channel channel)
{
    int on = 1, latest = LATEST_MS;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    bool bounded = tr__link_bound_retries(socket), control = channel == TR__CONTROL_CHANNEL;
    if (control || !bounded || tr__network_relays(n)) tr__link_probe(socket);
    if (control && !n->has_monitor) setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &latest, sizeof latest);
    if (!control && stop_pacing(socket) && !n->unpaced++)
        tr__log(TR_LOG_INFO, "group '%s': rank %d uses the congestion control 'reno' instead of the system's 'bbr' where round "
            "trips take less than %d us", n->name, n->rank, SHORT_US);
}

/* ---- Handshake --------------------------------------------------------------------------------------------------- */

static uint32_t sum_of(const tr__hello *hello)
{
    return tr__crc32c(0, hello, offsetof(tr__hello, sum));
}

/* A copy, as a join's last look at the records changes some when others use them already. */
static tr__network_record record_of(tr__network_endpoint *n, int rank)
{
    TR__LOCKED(&n->hearing);
    return n->peers[rank].record;
}

static tr_status send_hello(tr__network_endpoint *n, tr__attempt *a)
{
    tr__hello hello = {.magic = TR__NETWORK_MAGIC, .version = TR__NETWORK_VERSION, .rank = n->rank,
        .channel = (int16_t)a->channel, .checked = n->checked, .group = a->group};
    tr__network_record record = record_of(n, a->rank);
    memcpy(hello.cookie, record.cookie, sizeof hello.cookie);
    memcpy(hello.address, n->address, sizeof hello.address);
    hello.sum = sum_of(&hello);
    ssize_t sent = tr__wire_send(&a->wire, &(struct iovec){&hello, sizeof hello}, 1);
    if (sent == (ssize_t)sizeof hello && !tr__wire_pending(&a->wire)) return TR_OK;
    return tr__fail_errno(TR_PEER, errno, "group '%s': rank %d does not take our call", n->name, a->rank);
}

enum { DAMAGED = -2 };

/* Takes in what there is of a hello. 1: it is whole and right; 0: more is to come; -1: whoever it is, not one of us; DAMAGED: nor is
 * it a hello. */
static int hear_hello(const tr__network_endpoint *n, tr__attempt *a)
{
    if (a->got == sizeof a->hello) return 1; /* held */
    struct iovec rest = {(char *)&a->hello + a->got, sizeof a->hello - a->got};
    ssize_t got = tr__wire_receive(&a->wire, &rest, 1, false);
    if (got < 0 && tr__wire_would_block()) return 0;
    if (got <= 0) return -1;
    a->got += (size_t)got;
    if (a->got >= 8 && (a->hello.magic != TR__NETWORK_MAGIC || a->hello.version != TR__NETWORK_VERSION)) return DAMAGED;
    if (a->got < sizeof a->hello) return 0;
    if (a->hello.sum != sum_of(&a->hello)) return DAMAGED;
    a->hello.address[sizeof a->hello.address - 1] = 0;
    return CRYPTO_memcmp(a->hello.cookie, n->cookie, sizeof a->hello.cookie) == 0 ? 1 : -1;
}

/* Under the lock. */
static tr__attempt *find_attempt(const tr__network_endpoint *n, int rank, tr__channel channel, uint64_t group)
{
    tr__attempt *a = n->outgoing;
    while (a && (a->rank != rank || a->channel != channel || a->group != group)) a = a->next;
    return a;
}

bool tr__network_under_way(tr__network_endpoint *n, int rank, tr__channel channel, uint64_t group)
{
    TR__LOCKED(&n->lock);
    return find_attempt(n, rank, channel, group);
}

/* May a connection of this kind be made now? 1: yes; 0: not yet, as this rank or the group does not know its members; -1: no. Control
 * connections: while joining those that are there from the start, later those in place of some of them. A rank that leaves may still
 * make one, to pass on what it has heard. */
static int is_wanted(tr__network_endpoint *n, const tr__attempt *a, bool incoming)
{
    const tr__network_peer *peer = &n->peers[a->rank];
    if (a->channel == TR__CONTROL_CHANNEL) {
        bool there = !peer->gone || (incoming && peer->leaving), early = n->joining && !tr__network_linked(n, n->rank, a->rank);
        if (peer->control || !there || (!n->joining && !tr__network_relays(n))) return -1;
        return early ? 0 : 1;
    }
    TR__LOCKED(&n->hearing);
    const tr__network_group *g = tr__network_find(n, a->group);
    int member = g ? g->places[a->rank] : -1;
    if (g && !g->count) return 0;
    return member >= 0 && !peer->gone && g->calls->wants(g->user, member, a->channel, true) ? 1 : -1;
}

/* Both ends have said who they are. What crosses no network needs no checksums, unless they are asked for. */
static tr_status complete(tr__network_endpoint *n, tr__attempt *a)
{
    if (a->hello.checked != n->checked)
        return tr__fail(TR_MISMATCH, "group '%s': TRIREME_CHECK has the word wire on rank %d and not on rank %d; give it to all "
            "ranks or to none", n->name, n->checked ? n->rank : a->rank, n->checked ? a->rank : n->rank);
    a->wire.checked = !n->key && (n->checked || !record_of(n, a->rank).same_host);
    set_up_socket(n, a->wire.socket, a->channel);
    tr__network_connection *c = a->made;
    a->made = NULL;
    TR__TRY(tr__network_adopt(n, a->rank, a->channel, a->group, &a->wire, c));
    if (a->channel == TR__CONTROL_CHANNEL) return TR_OK;
    TR__LOCKED(&n->hearing);
    const tr__network_group *g = tr__network_find(n, a->group);
    int member = g ? g->places[a->rank] : -1;
    if (member >= 0 && g->calls->wants(g->user, member, a->channel, false)) {
        g->calls->connected(g->user, member, a->channel, c);
        return TR_OK;
    }
    TR__LOCKED(&n->lock);
    tr__network_give_back(n, c);
    return TR_OK;
}

static void drop(tr__attempt *a)
{
    tr__wire_close(&a->wire);
    a->got = 0;
}

/* ---- Going out --------------------------------------------------------------------------------------------------- */

tr_status tr__network_call(tr__network_endpoint *n, int rank, tr__channel channel, uint64_t group)
{
    tr__attempt *a = malloc(sizeof *a);
    tr__network_connection *made = malloc(sizeof *made);
    bool memory = a && made;
    pthread_mutex_lock(&n->lock);
    bool needed = memory && !find_attempt(n, rank, channel, group);
    if (needed) {
        *a = (tr__attempt){.next = n->outgoing, .wire.socket = -1, .rank = rank, .channel = channel, .group = group, .made = made};
        n->outgoing = a;
    }
    pthread_mutex_unlock(&n->lock);
    if (!needed) {
        free(a);
        free(made);
    }
    tr__network_kick(n);
    return memory ? TR_OK : tr__fail(TR_NO_MEMORY, "group '%s': no memory for a connection to rank %d", n->name, rank);
}

static void remove_attempt(tr__network_endpoint *n, tr__attempt *a)
{
    pthread_mutex_lock(&n->lock);
    TR__UNLINK(n->outgoing, a);
    pthread_mutex_unlock(&n->lock);
    drop(a);
    free(a->made);
    free(a);
}

static tr_status cannot_reach(tr__network_endpoint *n, tr__attempt *a, int error)
{
    tr__network_record record = record_of(n, a->rank);
    a->error = error == ECONNREFUSED ? ECONNRESET : error;
    return tr__fail_errno(TR_IO, error, "group '%s': rank %d cannot reach rank %d on host %s at %s; .address or "
        "TRIREME_ADDRESS says which of its addresses a rank is reached at", n->name, n->rank, a->rank, record.host, record.address);
}

static tr_status again(tr__network_endpoint *n, tr__attempt *a)
{
    drop(a);
    a->stage = TR__IDLE;
    a->retry = tr__in_ms(RETRY_MS);
    return n->joining ? n->joining->refused(n->joining->user, a->rank) : TR_OK;
}

/* The other end does not want the connection. It may stay so, as when it was told that this rank is gone. */
static tr_status refused(tr__network_endpoint *n, tr__attempt *a)
{
    TR__TRY(again(n, a));
    bool neighbour = a->channel == TR__CONTROL_CHANNEL && !n->joining;
    if (neighbour) a->retry = tr__in_ms((int64_t)RETRY_MS << a->refusals);
    if (neighbour && a->refusals < PAUSES_MOST) a->refusals++;
    return TR_OK;
}

/* Connecting has failed. A link that is cut may come back; an address that leads nowhere is an error a little later. A rank that is
 * to be a neighbour and listens no more is dead, if nobody says soon that it has left, but not where this host lacks something. */
static tr_status connect_later(tr__network_endpoint *n, tr__attempt *a, int error)
{
    int64_t now = tr__now_ns();
    bool neighbour = a->channel == TR__CONTROL_CHANNEL && !n->joining, ended = neighbour && error == ECONNREFUSED;
    if (ended && a->unreachable && now - a->unreachable > ENDED_MS * (int64_t)1000000) return cannot_reach(n, a, error);
    if (ended && !a->unreachable) a->unreachable = now;
    bool passes = error == ECONNREFUSED || error == ECONNRESET || error == EAGAIN || error == EINTR || error == ETIMEDOUT;
    if (passes) return again(n, a);
    bool no_way = error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN || error == EHOSTDOWN;
    if (!a->unreachable) a->unreachable = now;
    bool shortage = neighbour && (error == EADDRNOTAVAIL || error == ENOBUFS || error == ENOMEM);
    if (!shortage && (!no_way || now - a->unreachable > TR__LINK_LOST_MS * (int64_t)1000000))
        return cannot_reach(n, a, error);
    TR__TRY(again(n, a));
    a->retry = tr__in_ms(REACH_MS);
    return TR_OK;
}

/* It has taken too long. Nobody else may have a connection with a rank that is to be a neighbour, as when all that had one have died
 * with its host: where nothing has answered for as long as a link may be silent, it is gone. One that is stopped answers up to there. */
static tr_status call_slow_again(tr__network_endpoint *n, tr__attempt *a)
{
    bool neighbour = a->channel == TR__CONTROL_CHANNEL && !n->joining, silent = a->stage == TR__CONNECTING;
    if (silent && !a->silent) a->silent = a->since;
    if (neighbour && silent && tr__now_ns() - a->silent > TR__LINK_LOST_MS * (int64_t)1000000 &&
        !tr__network_is_heard(n, &n->peers[a->rank]))
        return cannot_reach(n, a, ETIMEDOUT);
    return again(n, a);
}

static tr_status begin(tr__network_endpoint *n, tr__attempt *a)
{
    tr__address to;
    tr__network_record record = record_of(n, a->rank);
    if (!tr__address_parse(record.address, &to))
        return tr__fail(TR_FORMAT, "group '%s': the record of rank %d has no address: '%s'", n->name, a->rank, record.address);
    if (tr__is_loopback(&to.any) && !record.same_host)
        return tr__fail(TR_AUTH, "group '%s': rank %d on host %s listens at %s only, where rank %d on host %s cannot "
            "reach it. Ranks on several hosts need a token (TRIREME_TOKEN, the same for all), and a store that they "
            "reach at an address of its host's own, or TRIREME_ADDRESS", n->name, a->rank, record.host, record.address, n->rank,
            n->peers[n->rank].record.host);
    int socket = open_socket(&to);
    if (socket < 0 && a->channel == TR__CONTROL_CHANNEL && !n->joining) { /* no descriptor here: try again */
        a->retry = tr__in_ms(REACH_MS);
        return TR_OK;
    }
    if (socket < 0) return tr__fail_errno(TR_IO, errno, "group '%s': no socket to rank %d", n->name, a->rank);
    if (!tr__wire_open(&a->wire, socket, n->key, TR__TLS_CLIENT))
        return tr__fail(TR_NO_MEMORY, "group '%s': no memory to encrypt a connection to rank %d", n->name, a->rank);
    tr__link_bound_retries(socket);
    a->stage = TR__CONNECTING;
    a->since = tr__now_ns();
    if (connect(socket, &to.any, tr__address_length(&to)) == 0 || errno == EINPROGRESS) return TR_OK;
    return connect_later(n, a, errno);
}

/* Something happened on a connection of ours. *done: it is there. */
static tr_status go_on(tr__network_endpoint *n, tr__attempt *a, bool *done)
{
    if (a->stage == TR__CONNECTING) {
        int error = 0;
        socklen_t length = sizeof error;
        getsockopt(a->wire.socket, SOL_SOCKET, SO_ERROR, &error, &length);
        if (error) return connect_later(n, a, error);
        a->stage = TR__SHAKING;
        a->unreachable = a->silent = 0;
    }
    if (a->stage == TR__SHAKING) {
        int shaken = tr__wire_shake_hands(&a->wire);
        if (shaken == 0) return TR_OK;
        a->stage = TR__ANSWERING;
        return shaken > 0 && send_hello(n, a) == TR_OK ? TR_OK : refused(n, a);
    }
    int heard = hear_hello(n, a);
    if (heard == 0) return TR_OK;
    /* The other end takes the connection for made, and to try again would look like this rank's end there. Under TLS nobody can have
     * changed it; while joining both have other ways to find out. */
    if (heard == DAMAGED && !n->key && !n->joining) {
        a->error = EBADMSG;
        return tr__fail(TR_FORMAT, "group '%s': rank %d sent a damaged message, as the first of a connection", n->name, a->rank);
    }
    bool right = heard == 1 && a->hello.rank == a->rank && a->hello.channel == (int)a->channel && a->hello.group == a->group;
    if (!right) return refused(n, a);
    *done = true;
    return complete(n, a);
}

/* After the first join nobody waits for this rank's attempts as such: the groups are told that theirs came to nothing. */
static tr_status end_attempt(tr__network_endpoint *n, tr__attempt *a, tr_status status)
{
    if (n->joining) {
        if (status == TR_OK) remove_attempt(n, a);
        return status;
    }
    int rank = a->rank;
    uint64_t id = a->group;
    int error = a->error ? a->error : ECONNRESET;
    tr__channel channel = a->channel;
    remove_attempt(n, a); /* first: who is told looks whether one is under way */
    TR__LOCKED(&n->hearing);
    if (channel == TR__CONTROL_CHANNEL) {
        n->relink = true;
        bool ours = status == TR_NO_MEMORY; /* then it is called again */
        if (status != TR_OK && !ours) tr__network_lose(n, &n->peers[rank], error);
        return TR_OK;
    }
    const tr__network_group *g = tr__network_find(n, id);
    int member = g ? g->places[rank] : -1;
    if (member >= 0 && status != TR_OK)
        g->calls->failed(g->user);
    else if (member >= 0)
        g->calls->connected(g->user, member, channel, NULL);
    return TR_OK;
}

/* ---- Letting in -------------------------------------------------------------------------------------------------- */

/* It has shown that it may come in, or goes. */
static void count_out(tr__network_endpoint *n, tr__attempt *a)
{
    if (!a->proved) n->origins.counts[a->origin]--;
    a->proved = true;
}

static void send_away(tr__network_endpoint *n, tr__attempt *a)
{
    count_out(n, a);
    drop(a);
}

/* Of two that came in, does the first give way to another one rather than the second? */
static bool gives_way(const tr__network_endpoint *n, const tr__attempt *a, const tr__attempt *b)
{
    int of_a = n->origins.counts[a->origin], of_b = n->origins.counts[b->origin];
    if (a->proved != b->proved) return b->proved;
    return of_a == of_b ? a->number < b->number : of_a > of_b;
}

/* The one that goes when there is no place for another; NULL: none has come in. */
static tr__attempt *first_to_go(tr__network_endpoint *n)
{
    tr__attempt *first = NULL;
    for (int i = 0; i < n->incoming_most; i++)
        if (n->incoming[i].wire.socket >= 0 && (!first || gives_way(n, &n->incoming[i], first))) first = &n->incoming[i];
    return first;
}

static tr__attempt *find_place(tr__network_endpoint *n)
{
    for (int i = 0; i < n->incoming_most; i++)
        if (n->incoming[i].wire.socket < 0) return &n->incoming[i];
    tr__attempt *place = first_to_go(n);
    send_away(n, place);
    return place;
}

/* Takes in what it has said, as hear_hello(). */
static int hear_first(tr__network_endpoint *n, tr__attempt *a)
{
    int begun = a->stage == TR__IDLE ? tr__wire_begin(&a->wire, n->key) : 1;
    if (begun <= 0) return begun;
    a->stage = TR__SHAKING;
    int heard = tr__wire_shake_hands(&a->wire);
    if (heard == 0 && tr__tls_has_proof(a->wire.tls)) count_out(n, a);
    return heard > 0 ? hear_hello(n, a) : heard;
}

/* Is what it has said, as a whole, from a peer that may connect? As is_wanted(). Of two that connect with each other at once the
 * higher rank does: what the lower one has begun waits, in case that fails. */
static int is_welcome(tr__network_endpoint *n, tr__attempt *a)
{
    const tr__hello *hello = &a->hello;
    bool known = hello->rank >= 0 && hello->rank < n->world_size && hello->rank != n->rank && hello->channel >= 0 &&
                 hello->channel < TR__CHANNELS;
    if (!known) return -1;
    a->rank = hello->rank;
    a->channel = (tr__channel)hello->channel;
    a->group = hello->group;
    int wanted = is_wanted(n, a, true);
    return wanted > 0 && a->rank < n->rank && tr__network_under_way(n, a->rank, a->channel, a->group) ? 0 : wanted;
}

static tr_status hear_incoming(tr__network_endpoint *n, tr__attempt *a)
{
    int heard = hear_first(n, a);
    bool is_peer = heard > 0;
    if (is_peer) {
        count_out(n, a);
        heard = is_welcome(n, a);
    }
    if (heard == 0) return TR_OK;
    if (heard < 0) {
        if (!is_peer && ++n->turned_away <= LOGGED_MOST)
            tr__log(TR_LOG_WARN, "group '%s': rank %d refused a connection%s", n->name, n->rank,
                n->turned_away == LOGGED_MOST ? "; more of these will not be reported" : "");
        send_away(n, a);
        return TR_OK;
    }
    /* One with another address has published a new record since we read the old one. */
    if (n->joining && strcmp(n->peers[a->rank].record.address, a->hello.address) != 0)
        TR__TRY(n->joining->moved(n->joining->user, a->rank));
    a->made = malloc(sizeof *a->made);
    if (!a->made) return TR_OK; /* it waits for that */
    tr_status status = send_hello(n, a) == TR_OK ? complete(n, a) : TR_OK;
    free(a->made);
    drop(a);
    return status;
}

/* As many at once as there are places. Those who have spoken already are heard before the next one comes. */
static tr_status let_in(tr__network_endpoint *n)
{
    for (int i = 0; i < n->incoming_most; i++) {
        int socket = accept4(n->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (socket < 0 && (errno == EMFILE || errno == ENFILE)) {
            tr__attempt *first = first_to_go(n);
            if (first && !first->proved) {
                send_away(n, first);
                continue;
            }
            n->full_until = tr__in_ms(REACH_MS); /* connections that wait would keep this thread awake */
        }
        if (socket < 0) return TR_OK;
        tr__link_bound_retries(socket);
        tr__attempt *place = find_place(n);
        *place = (tr__attempt){.wire.socket = socket, .stage = TR__IDLE, .number = n->came++, .since = tr__now_ns(),
            .origin = tr__origin_of(&n->origins, socket)};
        n->origins.counts[place->origin]++;
        TR__TRY(hear_incoming(n, place));
    }
    return TR_OK;
}

/* ---- One step ---------------------------------------------------------------------------------------------------- */

/* Begins what is due, and gives up what is not wanted any more. */
static tr_status call_those_due(tr__network_endpoint *n)
{
    pthread_mutex_lock(&n->lock);
    tr__attempt *first = n->outgoing; /* others are put before it, and only this thread takes any away */
    pthread_mutex_unlock(&n->lock);
    int64_t now = tr__now_ns();
    TR__FOR_EACH(a, first) {
        tr_status status = TR_OK;
        bool slow = a->stage == TR__CONNECTING || a->stage == TR__SHAKING; /* later it has said hello, and the answer is on its way */
        /* One that has said hello may be used at the other end, which may have left since. */
        bool wanted = a->stage == TR__ANSWERING || n->joining || is_wanted(n, a, false) > 0;
        if (wanted && slow && now - a->since > TRY_MS * (int64_t)1000000) status = call_slow_again(n, a);
        if (status == TR_OK && wanted && a->stage == TR__IDLE && a->retry <= now) status = begin(n, a);
        if (status != TR_OK || !wanted) TR__TRY(end_attempt(n, a, status));
    }
    return TR_OK;
}

/* Who came in has said hello, and waits: the group does not know its members yet, an attempt of ours goes first, or there is no
 * memory. */
static bool is_held(const tr__attempt *a)
{
    return a->got == sizeof a->hello;
}

enum { FIXED = 3 }; /* what is polled beside attempts: the listener, the endpoint's connections, the kick */

/* What is to be polled: those, our attempts from *first on, and those that came in. *wait_ms becomes less when something is due
 * before. */
static tr_status prepare(tr__network_endpoint *n, tr__attempt **first, int *count, int *wait_ms)
{
    int most = FIXED + n->incoming_most;
    pthread_mutex_lock(&n->lock);
    *first = n->outgoing;
    for (const tr__attempt *a = *first; a; a = a->next) most++;
    pthread_mutex_unlock(&n->lock);
    if (most > n->poll_most) {
        struct pollfd *polled = realloc(n->polled, (size_t)most * sizeof *polled);
        if (!polled) return tr__fail(TR_NO_MEMORY, "group '%s': no memory for %d connections", n->name, most);
        n->polled = polled;
        n->poll_most = most;
    }
    int64_t now = tr__now_ns();
    bool full = n->full_until > now;
    int least = full && *wait_ms > REACH_MS ? REACH_MS : *wait_ms;
    struct pollfd *at = n->polled;
    *at++ = (struct pollfd){.fd = full ? -1 : n->listener, .events = POLLIN};
    *at++ = (struct pollfd){.fd = n->joining ? -1 : n->watch, .events = POLLIN};
    *at++ = (struct pollfd){.fd = n->kick, .events = POLLIN};
    for (const tr__attempt *a = *first; a; a = a->next) {
        *at++ = (struct pollfd){.fd = a->wire.socket, .events = a->stage == TR__CONNECTING ? POLLOUT : POLLIN};
        int64_t due_ms = a->retry > now ? (a->retry - now) / 1000000 + 1 : 1;
        if (a->stage == TR__IDLE && due_ms < least) least = (int)due_ms;
    }
    for (int i = 0; i < n->incoming_most; i++) {
        tr__attempt *a = &n->incoming[i];
        if (a->wire.socket < 0) continue;
        bool silent = !n->joining && now - a->since > 2 * TRY_MS * (int64_t)1000000;
        if (silent) {
            send_away(n, a);
            continue;
        }
        if (is_held(a) && least > HELD_MS) least = HELD_MS;
        *at++ = (struct pollfd){.fd = is_held(a) ? -1 : a->wire.socket, .events = POLLIN};
    }
    *count = (int)(at - n->polled);
    *wait_ms = least;
    return TR_OK;
}

tr_status tr__network_step(tr__network_endpoint *n, int timeout_ms, int *ready)
{
    tr__attempt *first = NULL;
    int count = 0;
    eventfd_t kicks;
    TR__TRY(call_those_due(n));
    TR__TRY(prepare(n, &first, &count, &timeout_ms));
    *ready = poll(n->polled, (nfds_t)count, timeout_ms);
    eventfd_read(n->kick, &kicks);
    const struct pollfd *polled = n->polled + FIXED;
    TR__FOR_EACH(a, first) {
        bool done = false;
        if (!polled++->revents) continue;
        tr_status status = go_on(n, a, &done);
        if (status != TR_OK || done) TR__TRY(end_attempt(n, a, status));
    }
    for (int i = 0; i < n->incoming_most; i++) {
        tr__attempt *a = &n->incoming[i];
        if (a->wire.socket < 0) continue;
        bool came = polled++->revents;
        if (came || is_held(a)) TR__TRY(hear_incoming(n, a));
    }
    return n->polled[0].revents ? let_in(n) : TR_OK;
}

void tr__network_drop_attempts(tr__network_endpoint *n)
{
    while (n->outgoing) remove_attempt(n, n->outgoing);
    for (int i = 0; i < n->incoming_most; i++) drop(&n->incoming[i]);
}
