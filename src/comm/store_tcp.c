/*
 * The TCP store's client: blocking requests with a deadline. A request takes a connection that is idle or opens one
 * more, so that a thread which waits for a key does not keep others from setting it.
 */
#include "base/clock.h"
#include "comm/store.h"
#include "comm/store_frame.h"
#include "comm/store_server.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    GRACE_MS = 5000,      /* that the server's answer to a wait may be late */
    IDLE_MOST = 8,        /* connections that are kept for the next request */
    RETRY_FIRST_MS = 10,  /* between two tries to connect, doubling up to */
    RETRY_MOST_MS = 200,
};

typedef struct tcp_store {
    tr_store store;
    tr__server *server; /* when this process serves */
    char host[256];
    char token[TR__TOKEN_MAX + 1];
    pthread_mutex_t lock;
    int idle[IDLE_MOST], idle_count;
} tcp_store;

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

static int64_t deadline_in(int timeout_ms)
{
    return tr__now_ns() + (int64_t)timeout_ms * 1000000;
}

/* Waits until the socket is ready; an errno. */
static int await_socket(int fd, short events, int64_t deadline)
{
    for (;;) {
        int64_t left = (deadline - tr__now_ns() + 999999) / 1000000;
        struct pollfd p = {.fd = fd, .events = events};
        int ready = poll(&p, 1, left > 0 ? (left < INT32_MAX ? (int)left : INT32_MAX) : 0);
        if (ready > 0) return 0;
        if (ready == 0) return ETIMEDOUT;
        if (errno != EINTR) return errno;
    }
}

static int send_pieces(int fd, struct iovec *pieces, int count, int64_t deadline)
{
    while (count > 0) {
        struct msghdr m = {.msg_iov = pieces, .msg_iovlen = (size_t)count};
        ssize_t sent = sendmsg(fd, &m, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR) return errno;
        if (sent < 0) {
            int error = await_socket(fd, POLLOUT, deadline);
            if (error) return error;
            continue;
        }
        while (count > 0 && (size_t)sent >= pieces->iov_len) {
            sent -= (ssize_t)pieces->iov_len;
            pieces++;
            count--;
        }
        if (count == 0) break;
        pieces->iov_base = (char *)pieces->iov_base + sent;
        pieces->iov_len -= (size_t)sent;
    }
    return 0;
}

static int receive_bytes(int fd, unsigned char *bytes, size_t count, int64_t deadline)
{
    while (count > 0) {
        ssize_t got = recv(fd, bytes, count, 0);
        if (got == 0) return ECONNRESET;
        if (got < 0 && errno != EAGAIN && errno != EINTR) return errno;
        if (got < 0) {
            int error = await_socket(fd, POLLIN, deadline);
            if (error) return error;
            continue;
        }
        bytes += got;
        count -= (size_t)got;
    }
    return 0;
}

/* ---- A request and its reply ------------------------------------------------------------------------------------- */

/* *bytes gets the reply's bytes, to be freed, in which frame lies. An errno; EPROTO: the other end is no store. */
static int exchange(int fd, const tr__frame *request, int64_t deadline, tr__frame *frame, unsigned char **bytes)
{
    unsigned char head[TR__FRAME_HEAD], header[TR__FRAME_HEADER];
    struct iovec pieces[TR__FRAME_PIECES];
    enum { LIMIT = TR__FRAME_HEADER + 1 + TR__VALUE_MAX };
    *bytes = NULL;
    int error = send_pieces(fd, pieces, tr__frame_pieces(request, head, pieces), deadline);
    if (!error) error = receive_bytes(fd, header, sizeof header, deadline);
    if (error) return error;
    if (tr__frame_parse(header, sizeof header, LIMIT, frame) != 0)
        return EPROTO; /* no reply is as short as its header */
    size_t body = header[0] | (size_t)header[1] << 8 | (size_t)header[2] << 16 | (size_t)header[3] << 24;
    *bytes = malloc(sizeof header + body + 1);
    if (!*bytes) return ENOMEM;
    memcpy(*bytes, header, sizeof header);
    error = receive_bytes(fd, *bytes + sizeof header, body, deadline);
    if (!error && tr__frame_parse(*bytes, sizeof header + body, LIMIT, frame) <= 0) error = EPROTO;
    if (!error && frame->type != TR__FRAME_REPLY) error = EPROTO;
    if (!error) return 0;
    free(*bytes);
    *bytes = NULL;
    return error;
}

/* ---- Connections ------------------------------------------------------------------------------------------------- */

static int connect_to(const struct addrinfo *to, int64_t deadline, int *fd)
{
    *fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0) return errno;
    int error = 0;
    socklen_t size = sizeof error;
    if (connect(*fd, to->ai_addr, to->ai_addrlen) != 0 && (error = errno) == EINPROGRESS) {
        error = await_socket(*fd, POLLOUT, deadline);
        if (!error && getsockopt(*fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    }
    if (!error && setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) != 0) error = errno;
    if (!error) return 0;
    close(*fd);
    return error;
}

static tr_status say_hello(tcp_store *s, int fd, int64_t deadline)
{
    tr__frame hello = {.type = TR__FRAME_HELLO, .value = s->token, .value_bytes = strlen(s->token)}, answer;
    unsigned char *bytes;
    int error = exchange(fd, &hello, deadline, &answer, &bytes);
    free(bytes);
    if (error == EPROTO) return tr__fail(TR_FORMAT, "%s: what answers there is no Trireme store", s->store.name);
    if (error) return tr__fail_errno(TR_IO, error, "%s: said hello in vain", s->store.name);
    if (answer.code == TR__REPLY_OK) return TR_OK;
    return tr__fail(TR_AUTH, "%s: %s; TRIREME_TOKEN must be the same for all ranks", s->store.name,
        s->token[0] ? "the store does not accept our token" : "the store wants a token, and we have none");
}

/* One try over all addresses of the host. TR_IO: trying again may help. */
static tr_status open_connection(tcp_store *s, int64_t deadline, int *fd)
{
    char service[8];
    snprintf(service, sizeof service, "%d", s->store.port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *found;
    int error = getaddrinfo(s->host, service, &hints, &found);
    if (error == EAI_AGAIN) return tr__fail(TR_IO, "%s: %s", s->store.name, gai_strerror(error));
    if (error) return tr__fail(TR_NOT_FOUND, "%s: %s", s->store.name, gai_strerror(error));
    error = EADDRNOTAVAIL;
    for (const struct addrinfo *a = found; a && error; a = a->ai_next) error = connect_to(a, deadline, fd);
    freeaddrinfo(found);
    if (error) return tr__fail_errno(TR_IO, error, "%s: cannot connect", s->store.name);
    tr_status status = say_hello(s, *fd, deadline);
    if (status != TR_OK) close(*fd);
    return status;
}

/* Tries until the deadline: the server may start later than we do. */
static tr_status connect_first(tcp_store *s)
{
    int64_t deadline = deadline_in(s->store.timeout_ms);
    for (int pause_ms = RETRY_FIRST_MS;; pause_ms = 2 * pause_ms < RETRY_MOST_MS ? 2 * pause_ms : RETRY_MOST_MS) {
        int fd;
        tr_status status = open_connection(s, deadline, &fd);
        if (status == TR_OK) s->idle[s->idle_count++] = fd;
        if (status != TR_IO) return status;
        if (tr__now_ns() + (int64_t)pause_ms * 1000000 >= deadline)
            return tr__fail(TR_TIMEOUT, "%s, tried for %g s", tr_error_message(), s->store.timeout_ms / 1000.0);
        nanosleep(&(struct timespec){.tv_nsec = pause_ms * 1000000L}, NULL);
    }
}

static tr_status take_connection(tcp_store *s, int64_t deadline, int *fd)
{
    pthread_mutex_lock(&s->lock);
    bool idle = s->idle_count > 0;
    if (idle) *fd = s->idle[--s->idle_count];
    pthread_mutex_unlock(&s->lock);
    return idle ? TR_OK : open_connection(s, deadline, fd);
}

static void give_back(tcp_store *s, int fd)
{
    pthread_mutex_lock(&s->lock);
    bool room = s->idle_count < IDLE_MOST;
    if (room) s->idle[s->idle_count++] = fd;
    pthread_mutex_unlock(&s->lock);
    if (!room) close(fd);
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static tr_status failed(const tcp_store *s, const char *key, int error, int timeout_ms)
{
    if (error == ETIMEDOUT)
        return tr__fail(TR_TIMEOUT, "%s: no answer about key '%s' within %g s", s->store.name, key,
                        timeout_ms / 1000.0);
    if (error == EPROTO) return tr__fail(TR_FORMAT, "%s: damaged answer about key '%s'", s->store.name, key);
    return tr__fail_errno(error == ENOMEM ? TR_NO_MEMORY : TR_IO, error, "%s: lost while asking about key '%s'",
        s->store.name, key);
}

static tr_status refused(const tcp_store *s, const char *key, const tr__frame *request, tr__frame_code code)
{
    switch (code) {
    case TR__REPLY_TIMEOUT: return tr__store_timed_out(&s->store, key, (int)request->timeout_ms);
    case TR__REPLY_NO_NUMBER:
        return tr__fail(TR_FORMAT, "%s: key '%s' holds no number, or its sum leaves 64 bits", s->store.name, key);
    case TR__REPLY_NO_MEMORY:
        return tr__fail(TR_NO_MEMORY, "%s: the server has no memory for key '%s'", s->store.name, key);
    default: return tr__fail(TR_FORMAT, "%s: unexpected answer about key '%s'", s->store.name, key);
    }
}

/* The request with its key; *value gets the reply's value, or NULL when there is none. */
static tr_status ask(tr_store *store, const char *key, tr__frame *request, int timeout_ms, void **value, size_t *bytes)
{
    tcp_store *s = (tcp_store *)store;
    int64_t deadline = deadline_in(timeout_ms);
    int fd;
    TR__TRY(take_connection(s, deadline, &fd));
    request->key = key;
    request->key_bytes = strlen(key);
    tr__frame answer;
    unsigned char *received;
    int error = exchange(fd, request, deadline, &answer, &received);
    if (error) {
        close(fd);
        return failed(s, key, error, timeout_ms);
    }
    give_back(s, fd);
    bool present = answer.code == TR__REPLY_OK;
    if (!present && answer.code != TR__REPLY_ABSENT) {
        free(received);
        return refused(s, key, request, answer.code);
    }
    if (value && present) {
        memmove(received, answer.value, answer.value_bytes);
        received[answer.value_bytes] = 0;
        *bytes = answer.value_bytes;
        *value = received;
        return TR_OK;
    }
    free(received);
    if (value) *value = NULL, *bytes = 0;
    return TR_OK;
}

static tr_status tcp_set(tr_store *store, const char *key, const void *value, size_t bytes)
{
    tr__frame request = {.type = TR__FRAME_SET, .value = value, .value_bytes = bytes};
    return ask(store, key, &request, store->timeout_ms, NULL, NULL);
}

static tr_status tcp_get(tr_store *store, const char *key, int timeout_ms, void **value, size_t *bytes)
{
    tr__frame request = {.type = value ? TR__FRAME_GET : TR__FRAME_WAIT, .timeout_ms = (uint32_t)timeout_ms};
    return ask(store, key, &request, timeout_ms + GRACE_MS, value, bytes);
}

static tr_status tcp_add(tr_store *store, const char *key, int64_t amount, int64_t *sum)
{
    tr__frame request = {.type = TR__FRAME_ADD, .amount = amount};
    void *text = NULL;
    size_t bytes;
    TR__TRY(ask(store, key, &request, store->timeout_ms, &text, &bytes));
    if (text) *sum = strtoll(text, NULL, 10);
    free(text);
    return TR_OK;
}

static tr_status tcp_compare_set(tr_store *store, const char *key, const void *expected, size_t expected_bytes,
    const void *desired, size_t desired_bytes, int timeout_ms, void **value, size_t *bytes)
{
    tr__frame request = {.type = TR__FRAME_COMPARE_SET, .value = desired, .value_bytes = desired_bytes};
    request.expected = expected;
    request.expected_bytes = expected ? expected_bytes : 0;
    return ask(store, key, &request, timeout_ms, value, bytes);
}

static const tr__store_ops tcp_ops = {tcp_set, tcp_get, tcp_add, tcp_compare_set};

/* ---- The object -------------------------------------------------------------------------------------------------- */

static void tcp_destroy(void *self)
{
    tcp_store *s = self;
    for (int i = 0; i < s->idle_count; i++) close(s->idle[i]);
    if (s->server) tr__server_stop(s->server);
    OPENSSL_cleanse(s->token, sizeof s->token);
    if (s->store.ops) pthread_mutex_destroy(&s->lock);
}

static const tr__type tcp_type = {.name = "store", .size = sizeof(tcp_store), .destroy = tcp_destroy};

static tr_status check_options(const tr_store_tcp_options *o)
{
    if (!o->host || !o->host[0]) return tr__fail(TR_INVALID, "tr_store_tcp: a host is needed");
    if (strlen(o->host) >= sizeof((tcp_store *)0)->host)
        return tr__fail(TR_INVALID, "tr_store_tcp: host '%.40s…' is too long", o->host);
    if (o->port < 0 || o->port > 65535 || (o->port == 0 && !o->serve))
        return tr__fail(TR_INVALID, "tr_store_tcp: port %d is not in %d … 65535", o->port, o->serve ? 0 : 1);
    if (o->token && strlen(o->token) > TR__TOKEN_MAX)
        return tr__fail(TR_INVALID, "tr_store_tcp: a token has at most %d bytes", TR__TOKEN_MAX);
    if (o->timeout_ms < 0) return tr__fail(TR_INVALID, "tr_store_tcp: a timeout of %d ms is negative", o->timeout_ms);
    return TR_OK;
}

static tr_status open_store(tcp_store *s, const tr_store_tcp_options *o)
{
    TR__TRY(check_options(o));
    pthread_mutex_init(&s->lock, NULL);
    s->store.ops = &tcp_ops;
    s->store.timeout_ms = o->timeout_ms ? o->timeout_ms : TR__STORE_TIMEOUT_MS;
    s->store.port = o->port;
    strcpy(s->host, o->host);
    strcpy(s->token, o->token ? o->token : "");
    if (o->serve) TR__TRY(tr__server_start(o->host, o->port, o->listen_fd, o->token, &s->server, &s->store.port));
    snprintf(s->store.name, sizeof s->store.name, "store %s:%d", s->host, s->store.port);
    return connect_first(s);
}

tr_store *tr_store_tcp_with(const tr_store_tcp_options *options)
{
    tr_store_tcp_options o = {0};
    if (options) memcpy(&o, options, options->size < sizeof o ? options->size : sizeof o);
    tcp_store *s = tr__object_new(&tcp_type);
    if (!tr__error_of(s) && open_store(s, &o) != TR_OK) tr__object_break(s);
    return &s->store;
}
