/*
 * The limits beside what goes between hosts, on one bare TCP stream, as the system sets it up, between ranks 0 and 1. Beside
 * a collective: how long it takes to move the bytes that a rank has to send, from rank 1 to rank 0, when nothing else moves
 * meanwhile, in either direction. Beside a call: as many bytes there and back, by two threads that block in recv().
 */
#include "bench.h"

#include "clock.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PIECE = 1 << 20, PATIENCE_S = 20 };

struct tr__bare_stream {
    int rank, socket; /* -1: none, as of ranks beyond 1 */
    char *piece;
    bool bounces; /* has a thread that gives back what comes */
    pthread_t bouncer;
};

/* What the bouncer is told before each series. */
typedef struct series {
    int64_t bytes, rounds;
} series;

struct addrinfo *tr__find_rank0(int socktype, const char *port)
{
    const struct addrinfo hints = {.ai_socktype = socktype, .ai_flags = AI_NUMERICSERV};
    const char *host = getenv("MASTER_ADDR");
    if (host && !strcasecmp(host, "localhost")) host = "127.0.0.1"; /* also where no /etc/hosts says so */
    struct addrinfo *found = NULL;
    if (host && getaddrinfo(host, port, &hints, &found) == 0) return found;
    tr_fail(TR_IO, "cannot find the address of %s for the bare stream", host ? host : "rank 0 (MASTER_ADDR is not set)");
    return NULL;
}

static int listen_at(const struct addrinfo *a, int32_t *port)
{
    struct sockaddr_storage bound;
    socklen_t length = sizeof bound;
    char text[8];
    int s = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval patience = {.tv_sec = PATIENCE_S};
    bool fine = s >= 0 && setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0 &&
                bind(s, a->ai_addr, a->ai_addrlen) == 0 && listen(s, 1) == 0 &&
                getsockname(s, (struct sockaddr *)&bound, &length) == 0 &&
                getnameinfo((struct sockaddr *)&bound, length, NULL, 0, text, sizeof text, NI_NUMERICSERV) == 0;
    *port = fine ? (int32_t)strtol(text, NULL, 10) : 0;
    return s;
}

static tr_status unconnected(void)
{
    return tr_fail(TR_IO, "cannot connect the bare stream: %s", strerror(errno));
}

static tr_status connect_to(tr__bare_stream *s, int port)
{
    char text[16];
    snprintf(text, sizeof text, "%d", port);
    struct addrinfo *found = tr__find_rank0(SOCK_STREAM, text);
    tr_status status = TR_OK;
    if (!found) return TR_IO;
    s->socket = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s->socket < 0 || connect(s->socket, found->ai_addr, found->ai_addrlen) != 0) status = unconnected();
    freeaddrinfo(found);
    return status;
}

/* Rank 0 listens and says where; a port of 0 tells all that it cannot. */
static tr_status connect_both(tr__bare_stream *s, tr_group *group)
{
    struct addrinfo *found = s->rank == 0 ? tr__find_rank0(SOCK_STREAM, "0") : NULL;
    int32_t port = 0;
    int listener = found ? listen_at(found, &port) : -1;
    tr_status status = tr_broadcast(group, &port, 1, .dtype = TR_I32);
    if (status == TR_OK && !port) status = tr_fail(TR_IO, "rank 0 cannot open a socket for the bare stream");
    if (status == TR_OK && s->rank == 0) {
        s->socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (s->socket < 0) status = unconnected();
    }
    if (status == TR_OK && s->rank == 1) status = connect_to(s, port);
    if (found) freeaddrinfo(found);
    if (listener >= 0) close(listener);
    return status;
}

static tr_status no_memory(void)
{
    return tr_fail(TR_NO_MEMORY, "no memory for the bare stream: %s", strerror(errno));
}

tr_status tr__bare_stream_open(tr_group *group, tr__bare_stream **stream)
{
    tr__bare_stream *s = calloc(1, sizeof *s);
    if (!s) return no_memory();
    *stream = s;
    s->rank = tr_rank(group);
    s->socket = -1;
    s->piece = calloc(1, PIECE);
    return s->piece ? connect_both(s, group) : no_memory();
}

/* memory NULL: they are the piece, again and again. False: the connection has failed. */
static bool move(const tr__bare_stream *s, bool out, char *memory, int64_t bytes)
{
    for (int64_t done = 0; done < bytes;) {
        char *at = memory ? memory + done : s->piece;
        size_t most = memory || bytes - done < PIECE ? (size_t)(bytes - done) : PIECE;
        ssize_t n = out ? send(s->socket, at, most, MSG_NOSIGNAL) : recv(s->socket, at, most, 0);
        if (n > 0) done += n;
        if (n == 0) errno = ECONNRESET;
        if (n == 0 || (n < 0 && errno != EINTR)) return false;
    }
    return true;
}

/* Rank 0 asks for the bytes, so that its time has all of them in it. */
tr_status tr__bare_stream_run(const tr__bare_stream *s, int64_t bytes)
{
    if (s->rank > 1 || (move(s, s->rank == 0, NULL, 1) && move(s, s->rank == 1, NULL, bytes))) return TR_OK;
    return tr_fail(TR_IO, "the bare stream is broken: %s", strerror(errno));
}

/* Until rank 0 closes the stream. */
static void *bounce(void *arg)
{
    tr__bare_stream *s = arg;
    for (series given; move(s, false, (char *)&given, sizeof given);) {
        char *memory = malloc((size_t)given.bytes);
        bool lasts = memory != NULL;
        for (int64_t i = 0; lasts && i < given.rounds; i++)
            lasts = move(s, false, memory, given.bytes) && move(s, true, memory, given.bytes);
        free(memory);
        if (!lasts) shutdown(s->socket, SHUT_RDWR); /* tells rank 0 */
    }
    return NULL;
}

tr_status tr__bare_stream_bounces(tr__bare_stream *s)
{
    if (s->socket < 0) return TR_OK;
    setsockopt(s->socket, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    if (s->rank == 1) s->bounces = pthread_create(&s->bouncer, NULL, bounce, s) == 0;
    return s->rank == 0 || s->bounces ? TR_OK : tr_fail(TR_NO_MEMORY, "cannot start a thread");
}

bool tr__bare_stream_time(const tr__bare_stream *s, int64_t bytes, int rounds, double *us)
{
    series given = {bytes, rounds};
    char *memory = calloc(1, (size_t)bytes);
    bool lasts = memory && move(s, true, (char *)&given, sizeof given);
    for (int i = 0; lasts && i < rounds; i++) {
        double began = tr__now_us();
        lasts = move(s, true, memory, bytes) && move(s, false, memory, bytes);
        us[i] = tr__now_us() - began;
    }
    free(memory);
    return lasts;
}

void tr__bare_stream_close(tr__bare_stream *s)
{
    if (!s) return;
    if (s->bounces) pthread_join(s->bouncer, NULL);
    if (s->socket >= 0) close(s->socket);
    free(s->piece);
    free(s);
}
