/*
 * The connections between ranks on different hosts. Each rank listens on one address, hangs it up in the store with a
 * one-time cookie, connects to all ranks below it and lets in those above, all at once. Whoever knocks must bring our
 * cookie; the answer brings the visitor's. Anyone else is dropped without an answer: what he says, and how long it
 * takes him, is nothing to the others. Where connections are encrypted, all that is said within TLS, and who lacks the
 * job's key does not come so far.
 *
 * The first bytes of a connection tell: the hello has the cookie, and the first message of TLS a MAC by the job's key. They follow
 * the end of TCP's handshake at once, so a peer has proved itself when it is accepted, or a moment later. Only those who have
 * proved nothing yet must give way when places run out, and until they speak they cost a descriptor each.
 */
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "base/resolve.h"
#include "comm/record.h"
#include "comm/transport/tcp.h"
#include "net/link.h"
#include "net/origin.h"
#include "net/store/store.h"

#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    LOOK_MS = 100,   /* between two looks at whether those we wait for are alive */
    ASK_MS = 250,    /* between two looks at why connections ended */
    RETRY_MS = 5,    /* after a refusal: a card of an earlier try to join, */
    REACH_MS = 100,  /* and while there is no way to a rank's host: its link may come back */
    TRY_MS = 10000,  /* to connect and begin: what was lost on the way would be sent again later still */
    SPARE = 256,     /* places for visitors beyond the ranks, and */
    BACKLOG = 1024,  /* in the kernel, until we look there */
    LOGGED_MOST = 10,
};

typedef union address {
    struct sockaddr any;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
    struct sockaddr_storage room;
} address;

static socklen_t length_of(const address *a)
{
    return a->any.sa_family == AF_INET6 ? sizeof a->in6 : sizeof a->in;
}

/* ---- Where we listen --------------------------------------------------------------------------------------------- */

static bool is_loopback(const address *a)
{
    if (a->any.sa_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&a->in6.sin6_addr);
    return (ntohl(a->in.sin_addr.s_addr) >> 24) == 127;
}

static bool read_address(const char *text, const char *port, address *a)
{
    struct addrinfo *found, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    if (getaddrinfo(text, port, &hints, &found) != 0) return false;
    memcpy(&a->room, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return true;
}

/* The first address of a network interface; IPv4 before IPv6. */
static bool interface_address(const char *name, address *a)
{
    struct ifaddrs *all;
    bool found = false;
    if (getifaddrs(&all) != 0) return false;
    for (int family = 0; family < 2 && !found; family++) {
        for (struct ifaddrs *i = all; i && !found; i = i->ifa_next) {
            if (!i->ifa_addr || strcmp(i->ifa_name, name) != 0) continue;
            if (i->ifa_addr->sa_family != (family ? AF_INET6 : AF_INET)) continue;
            memcpy(&a->room, i->ifa_addr, family ? sizeof a->in6 : sizeof a->in);
            found = true;
        }
    }
    freeifaddrs(all);
    return found;
}

/* Our end of the way to a host: a datagram socket that is connected sends nothing, but has an address. */
static bool address_towards(const char *host, address *a)
{
    struct addrinfo *found, hints = {.ai_socktype = SOCK_DGRAM};
    if (tr__resolve(host, "9", &hints, &found) != 0) return false;
    bool known = false;
    for (struct addrinfo *i = found; i && !known; i = i->ai_next) {
        int s = socket(i->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        socklen_t length = sizeof a->room;
        known = s >= 0 && connect(s, i->ai_addr, i->ai_addrlen) == 0 && getsockname(s, &a->any, &length) == 0;
        if (s >= 0) close(s);
    }
    freeaddrinfo(found);
    a->in.sin_port = 0; /* the datagram socket's; in the same place for both families */
    return known;
}

static tr_status choose_address(const tr__tcp *t, const tr__member *member, address *a)
{
    const char *wanted = member->address;
    memset(a, 0, sizeof *a);
    if (wanted && *wanted) {
        if (!read_address(wanted, NULL, a) && !interface_address(wanted, a))
            return tr__fail(TR_INVALID, "group '%s': '%s' is neither an IP address nor a network interface of this "
                "host with one", t->group, wanted);
        if (!member->store->anywhere && !is_loopback(a))
            return tr__fail(TR_AUTH, "group '%s': without a token ranks listen on loopback only, not on '%s'; set "
                "TRIREME_TOKEN, the same for all ranks", t->group, wanted);
        return TR_OK;
    }
    bool known = member->store->anywhere && member->store->host[0] && address_towards(member->store->host, a);
    return known || read_address("127.0.0.1", NULL, a) ? TR_OK : tr__fail(TR_INTERNAL, "no loopback");
}

/* "10.0.0.1 41234" as "10.0.0.1:41234", or "[fe80::1]:41234". */
static tr_status write_address(const address *a, char *text, size_t size)
{
    char host[INET6_ADDRSTRLEN + 20], port[8];
    int error = getnameinfo(&a->any, length_of(a), host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    if (error) return tr__fail(TR_IO, "an address of our own cannot be written: %s", gai_strerror(error));
    snprintf(text, size, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
    return TR_OK;
}

static bool parse_address(const char *text, address *a)
{
    char host[80];
    const char *colon = strrchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : 0;
    if (length == 0 || length >= sizeof host) return false;
    memcpy(host, text, length);
    host[length] = 0;
    char *begin = host;
    if (host[0] == '[' && host[length - 1] == ']') {
        host[length - 1] = 0;
        begin++;
    }
    return read_address(begin, colon + 1, a);
}

static int open_socket(const address *a)
{
    return socket(a->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

tr_status tr__tcp_listen(tr__tcp *t, const tr__member *member, tr__card *card)
{
    address a;
    socklen_t length = sizeof a.room;
    TR__TRY(choose_address(t, member, &a));
    TR__TRY(tr__random_text(t->door.cookie, sizeof t->door.cookie));
    memcpy(card->tcp_cookie, t->door.cookie, sizeof card->tcp_cookie);
    t->door.socket = open_socket(&a);
    if (t->door.socket < 0 || bind(t->door.socket, &a.any, length_of(&a)) != 0 ||
        listen(t->door.socket, TR__TCP_LANES * t->world_size + BACKLOG) != 0 ||
        getsockname(t->door.socket, &a.any, &length) != 0)
        return tr__fail_errno(TR_IO, errno, "group '%s': cannot listen for the other ranks", t->group);
    return write_address(&a, card->tcp_address, sizeof card->tcp_address);
}

/* ---- Handshake --------------------------------------------------------------------------------------------------- */

typedef enum stage { IDLE, CONNECTING, SHAKING, ANSWERING, READY } stage;

/* A connection on its way: one of ours to a rank below, or a visitor's. */
typedef struct contact {
    tr__wire wire;
    int rank, lane;
    stage stage;
    int64_t retry; /* IDLE: when to try (again) */
    int64_t since; /* CONNECTING, SHAKING: when that began */
    int64_t unreachable; /* since when there has been no way to the rank's host; 0: there is one */
    /* A visitor: */
    bool promising;  /* what it said first is right */
    int origin;      /* until then it is counted there */
    uint64_t number; /* in the order in which they came */
    size_t got;
    tr__tcp_hello hello;
} contact;

typedef struct joining {
    tr__tcp *t;
    tr__rendezvous *meeting;
    tr__card *cards;
    int missing; /* connections */
    contact *calls, *visitors;
    int call_count, visitor_most;
    uint64_t visits;
    tr__origins origins;
    int turned_away;
    struct pollfd *fds;
    int64_t *hung_up; /* since when ranks that we were connected to have gone; 0: they have not */
    int64_t asked;    /* when we last looked for their reasons, */
    int64_t looked;   /* and whether those that are missing are alive */
} joining;

static uint32_t sum_of(const tr__tcp_hello *hello)
{
    return tr__crc32c(0, hello, offsetof(tr__tcp_hello, sum));
}

static tr_status send_hello(joining *j, int rank, int lane, tr__wire *wire)
{
    tr__tcp_hello hello = {.magic = TR__TCP_MAGIC, .version = TR__TCP_VERSION, .rank = j->t->rank, .lane = (int16_t)lane,
        .checked = j->t->checked};
    memcpy(hello.cookie, j->cards[rank].tcp_cookie, sizeof hello.cookie);
    snprintf(hello.address, sizeof hello.address, "%s", j->cards[j->t->rank].tcp_address);
    hello.sum = sum_of(&hello);
    ssize_t sent = tr__wire_send(wire, &(struct iovec){&hello, sizeof hello}, 1);
    if (sent == (ssize_t)sizeof hello && !tr__wire_pending(wire)) return TR_OK;
    return tr__fail_errno(TR_PEER, errno, "group '%s': rank %d does not take our call", j->t->group, rank);
}

/* Takes in what there is of a hello. 1: it is whole and right; 0: more is to come; -1: whoever it is, not one of us. */
static int hear_hello(const joining *j, contact *c)
{
    struct iovec rest = {(char *)&c->hello + c->got, sizeof c->hello - c->got};
    ssize_t got = tr__wire_receive(&c->wire, &rest, 1, false);
    if (got < 0 && tr__wire_would_block()) return 0;
    if (got <= 0) return -1;
    c->got += (size_t)got;
    if (c->got >= 8 && (c->hello.magic != TR__TCP_MAGIC || c->hello.version != TR__TCP_VERSION)) return -1;
    if (c->got < sizeof c->hello) return 0;
    if (c->hello.sum != sum_of(&c->hello)) return -1;
    c->hello.address[sizeof c->hello.address - 1] = 0;
    return CRYPTO_memcmp(c->hello.cookie, j->t->door.cookie, sizeof c->hello.cookie) == 0 ? 1 : -1;
}

/* Both ends have said who they are. What crosses no network needs no checksums, unless they are asked for. */
static tr_status settle(joining *j, contact *c)
{
    const char *here = j->cards[j->t->rank].machine, *there = j->cards[c->rank].machine;
    if (c->hello.checked != j->t->checked)
        return tr__fail(TR_MISMATCH, "group '%s': TRIREME_CHECK has the word wire on rank %d and not on rank %d; give it to all "
            "ranks or to none", j->t->group, j->t->checked ? j->t->rank : c->rank, j->t->checked ? c->rank : j->t->rank);
    c->wire.checked = !j->t->key && (j->t->checked || strcmp(here, there) != 0);
    tr__tcp_set_up_socket(c->wire.socket, c->lane);
    j->t->peers[c->rank].wires[c->lane] = c->wire;
    c->wire = (tr__wire){.socket = -1};
    c->stage = READY;
    j->missing--;
    return TR_OK;
}

static void drop(contact *c)
{
    tr__wire_close(&c->wire);
    c->got = 0;
}

/* ---- Going out --------------------------------------------------------------------------------------------------- */

/* Connections to a rank are missing. */
static bool is_missing(const joining *j, int rank)
{
    bool missing = false;
    for (int lane = 0; lane < TR__TCP_LANES && rank != j->t->rank; lane++)
        missing |= j->t->peers[rank].wires[lane].socket < 0;
    return missing;
}

/* All that we wait for: on a host that stands still those wait, too, who would have come. */
static tr_status too_late(const joining *j)
{
    int *missing = malloc((size_t)j->t->world_size * sizeof *missing), count = 0;
    char list[TR__RANKS_TEXT];
    if (!missing) return tr__fail(TR_NO_MEMORY, "group '%s': no memory for %d ranks", j->t->group, j->t->world_size);
    for (int rank = 0; rank < j->t->world_size; rank++)
        if (is_missing(j, rank)) missing[count++] = rank;
    if (count) j->meeting->late = missing[0];
    const tr__card *first = &j->cards[count ? missing[0] : j->t->rank];
    tr__ranks_text(missing, count, count, list);
    free(missing);
    return tr__fail(TR_TIMEOUT, "group '%s': %s (%spid %ld on host %s, at %s) did not come to the meeting within %g s",
        j->t->group, list, count > 1 ? "the first: " : "", first->pid, first->host, first->tcp_address,
        j->meeting->member->timeout_ms / 1000.0);
}

static tr_status check_alive(const joining *j, int rank)
{
    TR__TRY(tr__rendezvous_check(j->meeting, j->cards, rank));
    return tr__now_ns() < j->meeting->deadline ? TR_OK : too_late(j);
}

static tr_status cannot_reach(const joining *j, int rank, int error)
{
    const tr__card *card = &j->cards[rank];
    return tr__fail_errno(TR_IO, error, "group '%s': rank %d cannot reach rank %d on host %s at %s; .address or "
        "TRIREME_ADDRESS says which of its addresses a rank is reached at", j->t->group, j->t->rank, rank, card->host,
        card->tcp_address);
}

/* What refuses us is no longer, or not yet, the rank: a new card will follow. */
static tr_status again(joining *j, contact *c)
{
    drop(c);
    c->stage = IDLE;
    c->retry = tr__now_ns() + RETRY_MS * (int64_t)1000000;
    TR__TRY(check_alive(j, c->rank));
    tr_status status = tr__rendezvous_read(j->meeting, c->rank, j->cards);
    return status == TR_TIMEOUT ? too_late(j) : status;
}

static bool passes(int error)
{
    return error == ECONNREFUSED || error == ECONNRESET || error == EAGAIN || error == EINTR || error == ETIMEDOUT;
}

/* Connecting has failed. A link that is cut may come back; an address that leads nowhere is an error a little later. */
static tr_status connect_later(joining *j, contact *c, int error)
{
    if (passes(error)) return again(j, c);
    int64_t now = tr__now_ns();
    bool no_way = error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN || error == EHOSTDOWN;
    if (!c->unreachable) c->unreachable = now;
    if (!no_way || now - c->unreachable > TR__LINK_LOST_MS * (int64_t)1000000) return cannot_reach(j, c->rank, error);
    TR__TRY(again(j, c));
    c->retry = tr__now_ns() + REACH_MS * (int64_t)1000000;
    return TR_OK;
}

static tr_status call_rank(joining *j, contact *c)
{
    address a;
    const tr__card *card = &j->cards[c->rank];
    if (!parse_address(card->tcp_address, &a))
        return tr__fail(TR_FORMAT, "group '%s': the card of rank %d has no address: '%s'", j->t->group, c->rank,
            card->tcp_address);
    if (is_loopback(&a) && strcmp(card->machine, j->cards[j->t->rank].machine) != 0)
        return tr__fail(TR_AUTH, "group '%s': rank %d on host %s listens at %s only, where rank %d on host %s cannot "
            "reach it. Ranks on several hosts need a token (TRIREME_TOKEN, the same for all), and a store that they "
            "reach at an address of its host's own, or TRIREME_ADDRESS", j->t->group, c->rank, card->host,
            card->tcp_address, j->t->rank, j->cards[j->t->rank].host);
    int socket = open_socket(&a);
    if (socket < 0) return tr__fail_errno(TR_IO, errno, "group '%s': no socket to rank %d", j->t->group, c->rank);
    if (!tr__wire_open(&c->wire, socket, j->t->key, TR__TLS_CLIENT))
        return tr__fail(TR_NO_MEMORY, "group '%s': no memory to encrypt a connection to rank %d", j->t->group, c->rank);
    tr__link_bound_retries(socket);
    c->stage = CONNECTING;
    c->since = tr__now_ns();
    if (connect(socket, &a.any, length_of(&a)) == 0 || errno == EINPROGRESS) return TR_OK;
    return connect_later(j, c, errno);
}

/* Something happened on a connection of ours. */
static tr_status go_on(joining *j, contact *c)
{
    if (c->stage == CONNECTING) {
        int error = 0;
        socklen_t length = sizeof error;
        getsockopt(c->wire.socket, SOL_SOCKET, SO_ERROR, &error, &length);
        if (error) return connect_later(j, c, error);
        c->stage = SHAKING;
        c->unreachable = 0;
    }
    if (c->stage == SHAKING) {
        int done = tr__wire_shake_hands(&c->wire);
        if (done == 0) return TR_OK;
        c->stage = ANSWERING;
        return done > 0 && send_hello(j, c->rank, c->lane, &c->wire) == TR_OK ? TR_OK : again(j, c);
    }
    int heard = hear_hello(j, c);
    bool right = heard == 1 && c->hello.rank == c->rank && c->hello.lane == c->lane;
    if (heard == 0) return TR_OK;
    return right ? settle(j, c) : again(j, c);
}

/* ---- Letting in -------------------------------------------------------------------------------------------------- */

/* It has shown that it may come in, or goes. */
static void count_out(joining *j, contact *c)
{
    if (!c->promising) j->origins.counts[c->origin]--;
    c->promising = true;
}

static void send_away(joining *j, contact *c)
{
    count_out(j, c);
    drop(c);
}

/* Of two visitors, does the first give way to another one rather than the second? */
static bool gives_way(const joining *j, const contact *a, const contact *b)
{
    int of_a = j->origins.counts[a->origin], of_b = j->origins.counts[b->origin];
    if (a->promising != b->promising) return b->promising;
    return of_a == of_b ? a->number < b->number : of_a > of_b;
}

/* The visitor who goes when there is no place for another one; NULL: there is no visitor. */
static contact *first_to_go(joining *j)
{
    contact *first = NULL;
    for (int i = 0; i < j->visitor_most; i++)
        if (j->visitors[i].wire.socket >= 0 && (!first || gives_way(j, &j->visitors[i], first))) first = &j->visitors[i];
    return first;
}

static contact *find_place(joining *j)
{
    for (int i = 0; i < j->visitor_most; i++)
        if (j->visitors[i].wire.socket < 0) return &j->visitors[i];
    contact *place = first_to_go(j);
    send_away(j, place);
    return place;
}

/* Takes in what a visitor has said, as hear_hello(). */
static int hear_first(joining *j, contact *c)
{
    unsigned char first;
    if (c->stage == IDLE) {
        ssize_t got = recv(c->wire.socket, &first, 1, MSG_PEEK | MSG_DONTWAIT);
        if (got < 0 && tr__wire_would_block()) return 0;
        if (got <= 0 || (j->t->key && first != TR__TLS_RECORD)) return -1;
        if (!tr__wire_open(&c->wire, c->wire.socket, j->t->key, TR__TLS_SERVER)) return -1;
        c->stage = SHAKING;
    }
    int heard = tr__wire_shake_hands(&c->wire);
    if (heard == 0 && tr__tls_promising(c->wire.tls)) count_out(j, c);
    return heard > 0 ? hear_hello(j, c) : heard;
}

static tr_status hear_visitor(joining *j, contact *c)
{
    tr__tcp *t = j->t;
    int heard = hear_first(j, c);
    if (heard == 0) return TR_OK;
    int rank = c->hello.rank, lane = c->hello.lane;
    bool welcome = heard == 1 && rank > t->rank && rank < t->world_size && lane >= 0 && lane < TR__TCP_LANES &&
                   t->peers[rank].wires[lane].socket < 0;
    if (!welcome) {
        if (++j->turned_away <= LOGGED_MOST)
            tr__log(TR_LOG_WARN, "group '%s': rank %d turned a visitor away%s", t->group, t->rank,
                j->turned_away == LOGGED_MOST ? "; more of these will not be reported" : "");
        send_away(j, c);
        return TR_OK;
    }
    count_out(j, c);
    /* A visitor with another address has hung up a new card since we read the old one. */
    if (strcmp(j->cards[rank].tcp_address, c->hello.address) != 0)
        TR__TRY(tr__rendezvous_read(j->meeting, rank, j->cards));
    if (send_hello(j, rank, lane, &c->wire) != TR_OK) {
        drop(c);
        return TR_OK;
    }
    c->rank = rank;
    c->lane = lane;
    return settle(j, c);
}

/* As many at once as there are places. Those who have spoken already are heard before the next one comes. */
static tr_status let_in(joining *j)
{
    for (int i = 0; i < j->visitor_most; i++) {
        int socket = accept4(j->t->door.socket, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (socket < 0 && (errno == EMFILE || errno == ENFILE)) {
            contact *first = first_to_go(j);
            if (!first || first->promising) return TR_OK;
            send_away(j, first);
            continue;
        }
        if (socket < 0) return TR_OK;
        tr__link_bound_retries(socket);
        contact *place = find_place(j);
        *place = (contact){.wire.socket = socket, .stage = IDLE, .number = j->visits++,
            .origin = tr__origin_of(&j->origins, socket)};
        j->origins.counts[place->origin]++;
        TR__TRY(hear_visitor(j, place));
    }
    return TR_OK;
}

/* ---- Meeting ----------------------------------------------------------------------------------------------------- */

static tr_status call_those_due(joining *j)
{
    int64_t now = tr__now_ns();
    for (int i = 0; i < j->call_count; i++) {
        contact *c = &j->calls[i];
        bool slow = c->stage == CONNECTING || c->stage == SHAKING; /* later it has said hello, and the answer is on its way */
        if (slow && now - c->since > TRY_MS * (int64_t)1000000) TR__TRY(again(j, c));
        if (c->stage == IDLE && c->retry <= now) TR__TRY(call_rank(j, c));
    }
    return TR_OK;
}

/* The ranks that we are connected to already; now and then, as it asks the store. */
static tr_status check_settled(joining *j)
{
    int64_t now = tr__now_ns();
    bool due = now - j->asked >= ASK_MS * (int64_t)1000000;
    if (due) j->asked = now;
    for (int rank = 0; rank < j->t->world_size; rank++) {
        struct pollfd end = {.fd = j->t->peers[rank].wires[TR__TCP_CONTROL_LANE].socket, .events = POLLRDHUP};
        if (end.fd < 0 || poll(&end, 1, 0) <= 0) continue;
        if (!j->hung_up[rank]) j->hung_up[rank] = now;
        if (due) TR__TRY(tr__rendezvous_hung_up(j->meeting, j->cards, rank, j->hung_up[rank]));
    }
    return TR_OK;
}

static tr_status check_missing(joining *j)
{
    TR__TRY(tr__failure_there(&j->t->failure) ? tr__failure_tell(&j->t->failure) : TR_OK); /* of shared memory */
    TR__TRY(tr__rendezvous_heed(j->meeting));
    TR__TRY(check_settled(j));
    for (int rank = 0; rank < j->t->world_size; rank++)
        if (is_missing(j, rank)) TR__TRY(check_alive(j, rank));
    return TR_OK;
}

static tr_status hear_all(joining *j)
{
    bool retries = false;
    struct pollfd *visitors = j->fds + 1 + j->call_count;
    TR__TRY(call_those_due(j));
    j->fds[0] = (struct pollfd){.fd = j->t->door.socket, .events = POLLIN};
    for (int i = 0; i < j->call_count; i++) {
        contact *c = &j->calls[i];
        j->fds[1 + i] = (struct pollfd){.fd = c->wire.socket, .events = c->stage == CONNECTING ? POLLOUT : POLLIN};
        retries |= c->stage == IDLE;
    }
    for (int i = 0; i < j->visitor_most; i++)
        visitors[i] = (struct pollfd){.fd = j->visitors[i].wire.socket, .events = POLLIN};
    nfds_t count = (nfds_t)(1 + j->call_count + j->visitor_most);
    int ready = poll(j->fds, count, retries ? RETRY_MS : LOOK_MS);
    for (int i = 0; i < j->call_count; i++)
        if (j->fds[1 + i].revents && j->calls[i].wire.socket >= 0) TR__TRY(go_on(j, &j->calls[i]));
    for (int i = 0; i < j->visitor_most; i++)
        if (visitors[i].revents) TR__TRY(hear_visitor(j, &j->visitors[i]));
    if (j->fds[0].revents) TR__TRY(let_in(j));
    int64_t now = tr__now_ns(); /* where strangers never pause, those that are missing are looked for, too */
    if (ready > 0 && now < j->meeting->deadline && now - j->looked < LOOK_MS * (int64_t)1000000) return TR_OK;
    j->looked = now;
    return check_missing(j);
}

static tr_status meet_all(joining *j)
{
    for (int i = 0; i < j->call_count; i++)
        j->calls[i] = (contact){.wire.socket = -1, .rank = i / TR__TCP_LANES, .lane = i % TR__TCP_LANES};
    for (int i = 0; i < j->visitor_most; i++) j->visitors[i].wire.socket = -1;
    while (j->missing > 0) TR__TRY(hear_all(j));
    return TR_OK;
}

tr_status tr__tcp_connect(tr__tcp *t, tr__rendezvous *meeting, tr__card *cards)
{
    joining j = {.t = t, .meeting = meeting, .cards = cards, .missing = TR__TCP_LANES * (t->world_size - 1),
        .call_count = TR__TCP_LANES * t->rank};
    j.visitor_most = TR__TCP_LANES * (t->world_size - t->rank) + SPARE;
    j.calls = calloc((size_t)j.call_count + 1, sizeof *j.calls);
    j.visitors = calloc((size_t)j.visitor_most, sizeof *j.visitors);
    j.fds = calloc((size_t)(1 + j.call_count + j.visitor_most), sizeof *j.fds);
    tr_status status = TR_NO_MEMORY;
    j.hung_up = calloc((size_t)t->world_size, sizeof *j.hung_up);
    if (j.calls && j.visitors && j.fds && j.hung_up) {
        status = meet_all(&j);
        for (int i = 0; i < j.call_count; i++) drop(&j.calls[i]);
        for (int i = 0; i < j.visitor_most; i++) drop(&j.visitors[i]);
    } else {
        tr__fail(TR_NO_MEMORY, "no memory to join %d ranks", t->world_size);
    }
    free(j.calls);
    free(j.visitors);
    free(j.fds);
    free(j.hung_up);
    close(t->door.socket);
    t->door.socket = -1;
    return status;
}
