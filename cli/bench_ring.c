/*
 * What the hosts' processors allow an all_reduce, when the ranks, and the network between them, may share cores: every rank
 * sends to the next what it would have to, takes as much in from the one before, and adds the first half of that to
 * numbers of its own. These are bare streams: nobody waits for what another has added, agrees with anybody, or makes the
 * sums come out right.
 */
#include "bench.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PIECE = 1 << 20, STAGE = 512 << 10, PATIENCE_S = 20 };

struct tr__bare_ring {
    int world, to, from; /* sockets: to the next rank, from the one before */
    float *numbers, *stage;
};

/* One series of transfers. */
typedef struct transfer {
    const tr__bare_ring *ring;
    size_t half, sent, got; /* bytes; twice half of them go each way */
    size_t carried;         /* of a number that has come in part, at the stage's beginning */
} transfer;

/* ---- Connections ------------------------------------------------------------------------------------------------- */

/* The address from which this host reaches rank 0's. */
static bool find_own(struct sockaddr_storage *own, socklen_t *length)
{
    struct addrinfo *a = tr__find_rank0(SOCK_DGRAM, "9");
    if (!a) return false;
    int s = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    *length = sizeof *own;
    bool fine = s >= 0 && connect(s, a->ai_addr, a->ai_addrlen) == 0 &&
                getsockname(s, (struct sockaddr *)own, length) == 0;
    if (s >= 0) close(s);
    freeaddrinfo(a);
    return fine;
}

/* On any free port; -1: it cannot. */
static int open_listener(struct sockaddr_storage *own)
{
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    socklen_t length;
    if (!find_own(own, &length)) return -1;
    if (own->ss_family == AF_INET6) ((struct sockaddr_in6 *)own)->sin6_port = 0;
    else ((struct sockaddr_in *)own)->sin_port = 0;
    int s = socket(own->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0) return -1;
    bool fine = setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0 &&
                bind(s, (struct sockaddr *)own, length) == 0 && listen(s, 1) == 0 &&
                getsockname(s, (struct sockaddr *)own, &length) == 0;
    if (fine) return s;
    close(s);
    return -1;
}

/* As the transport's own: without delay, and not paced by a clock. */
static bool set_up(int s)
{
    if (s < 0 || setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) != 0) return false;
    return setsockopt(s, IPPROTO_TCP, TCP_CONGESTION, "reno", strlen("reno")) == 0;
}

static tr_status connect_ring(tr__bare_ring *r, tr_group *group, struct sockaddr_storage *addresses)
{
    struct sockaddr_storage own = {0};
    int listener = open_listener(&own), rank = tr_rank(group);
    if (listener < 0) own = (struct sockaddr_storage){0}; /* tells all */
    tr_status status = tr_all_gather(group, &own, addresses, sizeof own, .dtype = TR_U8);
    for (int i = 0; i < r->world && status == TR_OK; i++)
        if (!addresses[i].ss_family) status = tr_fail(TR_IO, "rank %d cannot open a socket for the bare ring", i);
    if (status == TR_OK) {
        const struct sockaddr_storage *next = &addresses[(rank + 1) % r->world];
        r->to = socket(next->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bool there = r->to >= 0 && connect(r->to, (const struct sockaddr *)next, sizeof *next) == 0;
        r->from = there ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (!there || !set_up(r->to) || !set_up(r->from))
            status = tr_fail(TR_IO, "rank %d cannot connect the bare ring: %s", rank, strerror(errno));
    }
    if (listener >= 0) close(listener);
    return status;
}

static tr_status no_memory(void)
{
    return tr_fail(TR_NO_MEMORY, "no memory for the bare ring: %s", strerror(errno));
}

tr_status tr__bare_ring_open(tr_group *group, int64_t most, tr__bare_ring **ring)
{
    tr__bare_ring *r = calloc(1, sizeof *r);
    if (!r) return no_memory();
    *ring = r;
    *r = (tr__bare_ring){.world = tr_world_size(group), .to = -1, .from = -1};
    r->numbers = calloc(1, (size_t)most);
    r->stage = malloc(STAGE + sizeof(float));
    struct sockaddr_storage *addresses = calloc((size_t)r->world, sizeof *addresses);
    tr_status status = r->numbers && r->stage && addresses ? connect_ring(r, group, addresses) : no_memory();
    free(addresses);
    return status;
}

void tr__bare_ring_close(tr__bare_ring *r)
{
    if (!r) return;
    if (r->to >= 0) close(r->to);
    if (r->from >= 0) close(r->from);
    free(r->numbers);
    free(r->stage);
    free(r);
}

/* ---- Moving ------------------------------------------------------------------------------------------------------ */

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static void add(float *restrict to, const float *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++) to[i] += from[i];
}

static ssize_t send_some(transfer *t)
{
    size_t at = t->sent % t->half;
    const char *from = (const char *)t->ring->numbers + at;
    ssize_t n = send(t->ring->to, from, least(t->half - at, PIECE), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) t->sent += (size_t)n;
    return n;
}

static ssize_t receive_some(transfer *t)
{
    const tr__bare_ring *r = t->ring;
    if (t->got >= t->half) {
        size_t at = t->got - t->half;
        ssize_t n = recv(r->from, (char *)r->numbers + at, least(t->half - at, PIECE), MSG_DONTWAIT);
        if (n > 0) t->got += (size_t)n;
        return n;
    }
    ssize_t n = recv(r->from, (char *)r->stage + t->carried, least(t->half - t->got, STAGE - t->carried), MSG_DONTWAIT);
    if (n <= 0) return n;
    size_t there = t->carried + (size_t)n, whole = there / sizeof(float);
    add(r->numbers + (t->got - t->carried) / sizeof(float), r->stage, whole);
    t->got += (size_t)n;
    t->carried = there % sizeof(float);
    memcpy(r->stage, r->stage + whole, t->carried);
    return n;
}

static bool lasts(ssize_t n)
{
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

static tr_status broken(int error)
{
    return tr_fail(TR_IO, "the bare ring is broken: %s", strerror(error));
}

/* Until one of the two can go on. */
static tr_status wait_for_sockets(int to, int from)
{
    struct pollfd fds[2] = {{.fd = to, .events = POLLOUT}, {.fd = from, .events = POLLIN}};
    int n = poll(fds, 2, PATIENCE_S * 1000);
    if (n == 0) return broken(ETIMEDOUT);
    return n > 0 || errno == EINTR ? TR_OK : broken(errno);
}

tr_status tr__bare_ring_run(const tr__bare_ring *r, int64_t bytes)
{
    transfer t = {.ring = r, .half = (size_t)(bytes / r->world * (r->world - 1)) / sizeof(float) * sizeof(float)};
    while (t.sent < 2 * t.half || t.got < 2 * t.half) {
        bool sends = t.sent < 2 * t.half, receives = t.got < 2 * t.half;
        ssize_t out = sends ? send_some(&t) : -1;
        if (sends && !lasts(out)) return broken(errno);
        ssize_t in = receives ? receive_some(&t) : -1;
        if (receives && !lasts(in)) return broken(in == 0 ? ECONNRESET : errno);
        if (out > 0 || in > 0) continue;
        TRY(wait_for_sockets(sends ? r->to : -1, receives ? r->from : -1));
    }
    return TR_OK;
}
