#include "net/link.h"

#include <limits.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>

#ifndef TCP_RTO_MAX_MS /* Linux 6.15 */
#define TCP_RTO_MAX_MS 44
#endif

/* With this bound and tcp_retries2 at 8, the least that RFC 1122 allows, the kernel gives up after 13 s; at its default of 15,
 * after 27 s. */
enum { RETRY_MOST_MS = 2000 };

bool tr__link_bound_retries(int socket)
{
    int most = RETRY_MOST_MS;
    return setsockopt(socket, IPPROTO_TCP, TCP_RTO_MAX_MS, &most, sizeof most) == 0;
}

void tr__link_probe(int socket)
{
    int on = 1, idle = 2, every = 1, count = 30;
    setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

static bool is_bounded(int socket)
{
    int most = 0;
    socklen_t length = sizeof most;
    return getsockopt(socket, IPPROTO_TCP, TCP_RTO_MAX_MS, &most, &length) == 0 && most > 0 && most <= RETRY_MOST_MS;
}

/* Does the kernel ask the other end every two seconds at least, as the connection is now? */
static bool is_asked(int socket, const struct tcp_info *info)
{
    int probed = 0;
    socklen_t length = sizeof probed;
    getsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &probed, &length);
    bool idle = info->tcpi_unacked == 0 && info->tcpi_notsent_bytes == 0;
    return idle ? probed : is_bounded(socket);
}

/* Its silence says nothing: the other end, which may be stopped, has no room for what is to be sent, and TCP asks for it
 * at intervals that have no bound here; or it is idle, and nobody asks. Two questions without an answer do say something: where
 * the way out of this host is cut, too, nothing is under way, and TCP asks as if there were no room. */
static bool may_be_silent(int socket, const struct tcp_info *info)
{
    return info->tcpi_unacked == 0 && info->tcpi_probes < 2 && !is_asked(socket, info);
}

/* What the kernel knows of an open connection; false: nothing. */
static bool is_open(int socket, struct tcp_info *info)
{
    enum { CLOSED = 7 };
    socklen_t length = sizeof *info;
    *info = (struct tcp_info){0};
    return socket >= 0 && getsockopt(socket, IPPROTO_TCP, TCP_INFO, info, &length) == 0 &&
           length >= offsetof(struct tcp_info, tcpi_notsent_bytes) + sizeof info->tcpi_notsent_bytes && info->tcpi_state != CLOSED;
}

static unsigned heard_ms_of(const struct tcp_info *info)
{
    return info->tcpi_last_ack_recv < info->tcpi_last_data_recv ? info->tcpi_last_ack_recv : info->tcpi_last_data_recv;
}

bool tr__link_heard(int socket)
{
    struct tcp_info info;
    return is_open(socket, &info) && heard_ms_of(&info) < TR__LINK_LOST_MS;
}

bool tr__link_lost(const int *sockets, int count)
{
    bool asked = false, known = false;
    unsigned silent_ms = UINT_MAX;
    for (int i = 0; i < count; i++) {
        struct tcp_info info;
        if (!is_open(sockets[i], &info)) continue;
        unsigned heard_ms = heard_ms_of(&info);
        if (heard_ms < TR__LINK_LOST_MS) return false;
        if (heard_ms < silent_ms) silent_ms = heard_ms;
        asked |= is_asked(sockets[i], &info);
        known |= !may_be_silent(sockets[i], &info);
    }
    return known && silent_ms >= (asked ? TR__LINK_LOST_MS : TR__LINK_LOST_LATE_MS);
}
