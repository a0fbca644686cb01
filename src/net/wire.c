#include "net/wire.h"

#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    PART = 64 << 10,    /* encrypted, or taken from the socket, at once: stays in a core's cache */
    LITTLE = 16 << 10,  /* taken for who wants no more: most connections never carry much, and need not hold a part */
    MOST = 1 << 20,     /* received at once, before others get their turn */
};

bool tr__wire_would_block(void)
{
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

int tr__wire_await(int socket, short events, int64_t deadline)
{
    for (;;) {
        int64_t left_ms = (deadline - tr__now_ns() + 999999) / 1000000;
        struct pollfd p = {.fd = socket, .events = events};
        int ready = poll(&p, 1, left_ms > 0 ? (left_ms < INT32_MAX ? (int)left_ms : INT32_MAX) : 0);
        if (ready > 0) return 0;
        if (ready == 0) return ETIMEDOUT;
        if (errno != EINTR) return errno;
    }
}

bool tr__wire_open(tr__wire *w, int socket, tr__tls_key *key, tr__tls_side side)
{
    *w = (tr__wire){.socket = socket};
    if (key) w->tls = tr__tls_new(key, side);
    if (!key || w->tls) return true;
    tr__wire_close(w);
    return false;
}

bool tr__wire_encrypt(tr__wire *w, tr__tls_key *key, tr__tls_side side)
{
    char came[TR__CHECKED_AHEAD];
    size_t count = tr__checked_take_rest(&w->in, came);
    w->tls = tr__tls_new(key, side);
    return w->tls && tr__tls_feed(w->tls, came, count);
}

int tr__wire_begin(tr__wire *w, tr__tls_key *key)
{
    char first;
    ssize_t got = recv(w->socket, &first, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got < 0) return tr__wire_would_block() ? 0 : -1;
    errno = got == 0 ? ECONNRESET : EPROTO;
    if (got == 0 || (first == TR__TLS_RECORD) != (key != NULL)) return -1;
    errno = ENOMEM;
    return !key || tr__wire_encrypt(w, key, TR__TLS_SERVER) ? 1 : -1;
}

void tr__wire_close(tr__wire *w)
{
    tr__tls_free(w->tls);
    tr__checked_free(&w->in);
    if (w->socket >= 0) close(w->socket);
    *w = (tr__wire){.socket = -1};
}

bool tr__wire_pending(const tr__wire *w)
{
    char *bytes;
    return w->tls && tr__tls_outgoing(w->tls, &bytes) > w->sent;
}

/* Sends what is pending. False, and errno, when the socket does not take all of it. `more`: as much again follows at once,
 * so the kernel need not make a packet of its own of the last few bytes. */
static bool flush(tr__wire *w, bool more)
{
    char *bytes;
    size_t count = tr__tls_outgoing(w->tls, &bytes);
    int flags = MSG_NOSIGNAL | MSG_DONTWAIT | (more ? MSG_MORE : 0);
    while (w->sent < count) {
        ssize_t sent = send(w->socket, bytes + w->sent, count - w->sent, flags);
        if (sent < 0) return false;
        w->sent += (size_t)sent;
    }
    if (count) tr__tls_sent(w->tls);
    w->sent = 0;
    return true;
}

/* Takes some of what has come from the socket: as recv(). */
static ssize_t take_records(tr__wire *w, size_t most)
{
    char *records = tr__tls_room(w->tls, most);
    ssize_t got = -1;
    errno = ENOMEM;
    if (records) got = recv(w->socket, records, most, MSG_DONTWAIT);
    if (got > 0) tr__tls_came(w->tls, (size_t)got);
    w->in.drained = got < (ssize_t)most;
    return got;
}

int tr__wire_shake_hands(tr__wire *w)
{
    while (w->tls && !tr__tls_ready(w->tls)) {
        int done = tr__tls_handshake(w->tls);
        bool sent = flush(w, false), too_long = done == 0 && w->heard == TR__TLS_HANDSHAKE_MAX;
        if (done < 0 || too_long) errno = EPROTO;
        if (!sent || done < 0 || too_long) return -1; /* what does not fit into an empty socket never will */
        if (done > 0) break;
        ssize_t got = take_records(w, TR__TLS_HANDSHAKE_MAX - w->heard); /* what follows it at once may wait in the socket */
        if (got < 0 && tr__wire_would_block()) return 0;
        if (got == 0) errno = ECONNRESET;
        if (got <= 0) return -1;
        w->heard += (size_t)got;
    }
    return 1;
}

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

/* As long as the socket keeps up. What lies here encrypted is never much more than a part. */
static ssize_t send_encrypted(tr__wire *w, const struct iovec *parts, int count)
{
    size_t taken = 0, waiting = 0;
    if (!flush(w, false)) return -1;
    for (int i = 0; i < count; i++) {
        for (size_t at = 0, size; at < parts[i].iov_len; at += size) {
            if (waiting >= PART && !flush(w, true)) return tr__wire_would_block() ? (ssize_t)taken : -1;
            size = parts[i].iov_len - at < PART ? parts[i].iov_len - at : PART;
            if (!tr__tls_write(w->tls, (char *)parts[i].iov_base + at, size)) {
                errno = ENOMEM;
                return -1;
            }
            taken += size;
            waiting = waiting < PART ? waiting + size : size;
        }
    }
    return flush(w, false) || tr__wire_would_block() ? (ssize_t)taken : -1;
}

ssize_t tr__wire_send(tr__wire *w, const struct iovec *parts, int count)
{
    if (w->tls) return send_encrypted(w, parts, count);
    if (w->checked) return tr__checked_send(&w->out, w->socket, parts, count);
    struct msghdr m = {.msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)count};
    return sendmsg(w->socket, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

int tr__wire_push(tr__wire *w, struct iovec **parts, int *count)
{
    while (*count > 0 || tr__wire_pending(w)) {
        ssize_t sent = tr__wire_send(w, *parts, *count);
        if (sent < 0) return tr__wire_would_block() ? EAGAIN : errno;
        for (; *count > 0 && (size_t)sent >= (*parts)->iov_len; ++*parts, --*count) sent -= (ssize_t)(*parts)->iov_len;
        if (*count == 0) continue;
        (*parts)->iov_base = (char *)(*parts)->iov_base + sent;
        (*parts)->iov_len -= (size_t)sent;
    }
    return 0;
}

/* ---- Receiving --------------------------------------------------------------------------------------------------- */

/* At least one byte, or as recv(). */
static ssize_t decrypt_some(tr__wire *w, char *bytes, size_t most)
{
    for (;;) {
        ssize_t read = tr__tls_read(w->tls, bytes, most);
        if (read > 0) return read;
        if (read < 0) {
            errno = EBADMSG;
            return -1;
        }
        ssize_t got = take_records(w, most <= LITTLE ? LITTLE : PART);
        if (got <= 0) return got;
    }
}

ssize_t tr__wire_receive(tr__wire *w, const struct iovec *parts, int count, bool stays)
{
    if (!w->tls && !w->checked) {
        struct msghdr m = {.msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)count};
        return recvmsg(w->socket, &m, MSG_DONTWAIT);
    }
    size_t all = 0;
    for (int i = 0; i < count; i++) {
        bool last = stays && i == count - 1;
        for (size_t at = 0; at < parts[i].iov_len;) {
            char *to = (char *)parts[i].iov_base + at;
            size_t room = parts[i].iov_len - at;
            ssize_t got = 0;
            if (all < MOST) got = w->tls ? decrypt_some(w, to, room) : tr__checked_receive(&w->in, w->socket, to, room, last);
            if (got <= 0) return all ? (ssize_t)all : got; /* an end or a failure comes again */
            at += (size_t)got;
            all += (size_t)got;
        }
    }
    return (ssize_t)all;
}
