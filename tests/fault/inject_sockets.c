/*
 * System calls on the connections between ranks over TCP, and the real-time clock. Only calls that do not wait are hit,
 * once the rank has joined: those of the store and of the handshakes are others. What comes when depends on the
 * machine, so a fault finds the same number of a call, and not always the same bytes.
 */
#include "inject.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

ssize_t __real_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __real_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t __real_recv(int fd, void *to, size_t bytes, int flags);
int __real_clock_gettime(clockid_t clock, struct timespec *now);

enum { MOST_PARTS = 32, BUSY_CALLS = 20 };

static bool watched(int fd, int flags)
{
    int domain = 0;
    socklen_t length = sizeof domain;
    if (!(flags & MSG_DONTWAIT) || !injected() || atomic_load(&injected()->moments[injected_rank()]) < MOMENT_JOINED)
        return false;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && (domain == AF_INET || domain == AF_INET6);
}

/* Control messages are short, and sent whole or not at all; their connection is the one that has a time limit. */
static bool is_control(int fd)
{
    int limit_ms = 0;
    socklen_t length = sizeof limit_ms;
    return getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, &length) == 0 && limit_ms;
}

static size_t bytes_in(const struct msghdr *m)
{
    size_t bytes = 0;
    for (size_t i = 0; i < m->msg_iovlen; i++) bytes += m->msg_iov[i].iov_len;
    return bytes;
}

/* The first bytes of a message. */
static struct msghdr cut_to(const struct msghdr *m, size_t bytes, struct iovec parts[MOST_PARTS])
{
    struct msghdr cut = *m;
    cut.msg_iov = parts;
    if (m->msg_iovlen > MOST_PARTS) abort();
    for (size_t i = 0; i < m->msg_iovlen; i++) {
        parts[i] = m->msg_iov[i];
        if (parts[i].iov_len > bytes) parts[i].iov_len = bytes;
        bytes -= parts[i].iov_len;
    }
    return cut;
}

/* ---- What may happen in a send or a receive ---------------------------------------------------------------------- */

/* What stands in the way of the n-th call: true, and errno, when it has failed. */
static bool hindered(int fd, int64_t n)
{
    const fault *f = &injected()->fault;
    bool now = n == f->at;
    if (injects(FAULT_SOCKET_BUSY) && n >= f->at && n < f->at + BUSY_CALLS) {
        injected_now("calls %lld to %lld on sockets say EAGAIN", (long long)f->at, (long long)f->at + BUSY_CALLS - 1);
        errno = EAGAIN;
        return true;
    }
    if (injects(FAULT_SOCKET_STALL) && now) {
        injected_now("call %lld on sockets takes %d ms", (long long)n, f->pause_ms);
        nanosleep(&(struct timespec){0, f->pause_ms * 1000000L}, NULL);
    }
    if (!injects(FAULT_SOCKET_RESET) || !now) return false;
    injected_now("call %lld on sockets: the connection is reset", (long long)n);
    connect(fd, &(struct sockaddr){.sa_family = AF_UNSPEC}, sizeof(struct sockaddr)); /* sends a reset */
    errno = ECONNRESET;
    return true;
}

static bool is_interrupted(void)
{
    if (!injects(FAULT_SOCKET_PARTS) || injected_below(4)) return false;
    errno = injected_below(2) ? EINTR : EAGAIN;
    return true;
}

static void send_all(int fd, const char *bytes, size_t count)
{
    for (size_t at = 0; at < count;) {
        struct iovec rest = {(char *)bytes + at, count - at};
        ssize_t sent = __real_sendmsg(fd, &(struct msghdr){.msg_iov = &rest, .msg_iovlen = 1}, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, -1);
        if (sent < 0 && errno != EAGAIN && errno != EINTR) return;
        if (sent > 0) at += (size_t)sent;
    }
}

/* The n-th send goes out damaged. False: it does not. */
static bool sent_damaged(int fd, const struct msghdr *m, int64_t n)
{
    const fault *f = &injected()->fault;
    size_t count = bytes_in(m);
    bool one = injects(FAULT_SOCKET_CUT) || injects(FAULT_SOCKET_FLIP) || injects(FAULT_SOCKET_DROP) ||
               injects(FAULT_SOCKET_REPEAT) || injects(FAULT_SOCKET_SWAP);
    if (!one || n < f->at || count < 2 || atomic_load(&injected()->fired)) return false;
    char *bytes = malloc(count);
    if (!bytes) abort();
    for (size_t i = 0, at = 0; i < m->msg_iovlen; at += m->msg_iov[i++].iov_len)
        if (m->msg_iov[i].iov_len) memcpy(bytes + at, m->msg_iov[i].iov_base, m->msg_iov[i].iov_len);
    size_t middle = 1 + (size_t)injected_below((int64_t)count - 1);
    size_t part = 1 + (size_t)injected_below((int64_t)(count - middle));
    switch (f->kind) {
    case FAULT_SOCKET_CUT:
        injected_now("send %lld of %zu bytes ends after %zu, and the connection with it", (long long)n, count, middle);
        send_all(fd, bytes, middle);
        shutdown(fd, SHUT_WR);
        break;
    case FAULT_SOCKET_FLIP:
        injected_now("send %lld of %zu bytes: a bit of byte %zu differs", (long long)n, count, middle);
        bytes[middle] ^= (char)(1 << injected_below(8));
        send_all(fd, bytes, count);
        break;
    case FAULT_SOCKET_DROP:
        injected_now("send %lld of %zu bytes lacks %zu from byte %zu on", (long long)n, count, part, middle);
        send_all(fd, bytes, middle);
        send_all(fd, bytes + middle + part, count - middle - part);
        break;
    case FAULT_SOCKET_REPEAT:
        injected_now("send %lld of %zu bytes has its first %zu twice", (long long)n, count, middle);
        send_all(fd, bytes, middle);
        send_all(fd, bytes, count);
        break;
    default:
        injected_now("send %lld of %zu bytes begins with byte %zu", (long long)n, count, middle);
        send_all(fd, bytes + middle, count - middle);
        send_all(fd, bytes, middle);
        break;
    }
    free(bytes);
    return true;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags)
{
    if (!watched(fd, flags)) return __real_sendmsg(fd, message, flags);
    int64_t n = atomic_fetch_add(&injected()->counts[injected_rank()].sends, 1);
    size_t count = bytes_in(message);
    if (hindered(fd, n)) return -1;
    if (sent_damaged(fd, message, n)) return (ssize_t)count;
    if (!injects(FAULT_SOCKET_PARTS) || count < 2 || is_control(fd)) return __real_sendmsg(fd, message, flags);
    injected_now("sends and receives end early");
    if (is_interrupted()) return -1;
    struct iovec parts[MOST_PARTS];
    struct msghdr cut = cut_to(message, 1 + (size_t)injected_below((int64_t)count), parts);
    return __real_sendmsg(fd, &cut, flags);
}

ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags)
{
    if (!watched(fd, flags)) return __real_recvmsg(fd, message, flags);
    size_t count = bytes_in(message);
    atomic_fetch_add(&injected()->counts[injected_rank()].receives, 1);
    if (!injects(FAULT_SOCKET_PARTS) || count < 2) return __real_recvmsg(fd, message, flags);
    if (is_interrupted()) return -1;
    struct iovec parts[MOST_PARTS];
    struct msghdr cut = cut_to(message, 1 + (size_t)injected_below((int64_t)count), parts);
    return __real_recvmsg(fd, &cut, flags);
}

ssize_t __wrap_recv(int fd, void *to, size_t bytes, int flags)
{
    if (!watched(fd, flags)) return __real_recv(fd, to, bytes, flags);
    atomic_fetch_add(&injected()->counts[injected_rank()].receives, 1);
    if (!injects(FAULT_SOCKET_PARTS) || bytes < 2) return __real_recv(fd, to, bytes, flags);
    return is_interrupted() ? -1 : __real_recv(fd, to, 1 + (size_t)injected_below((int64_t)bytes), flags);
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = __real_clock_gettime(clock, now);
    if (clock != CLOCK_REALTIME || !injected() || injected()->fault.kind != FAULT_CLOCK) return result;
    enum { DECADE = 315360000 };
    time_t jump = injected_below(2 * DECADE) - DECADE;
    injected_now("the clock of rank %d is off by %lld s", injected_rank(), (long long)jump);
    now->tv_sec += jump;
    return result;
}
