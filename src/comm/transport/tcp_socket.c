/* What the ranks' connections ask of the kernel. */
#include "base/log.h"
#include "comm/transport/tcp.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

enum {
    LOST_MS = 10000, /* without an answer from a host that was reached before */
    NEAR_US = 1000,  /* a round trip within one site */
};

/* A host that is gone is noticed by its silence: on the control connection only, as a peer that is stopped, or slow to
 * read, still answers there. */
void tr__tcp_set_up_socket(int socket, int lane)
{
    int on = 1, idle = 3, every = 1, count = 7, lost = LOST_MS;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (lane != TR__TCP_CONTROL_LANE) return;
    setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &lost, sizeof lost);
}

static bool is_near(int socket)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    bool known = getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 &&
                 length >= offsetof(struct tcp_info, tcpi_min_rtt) + sizeof info.tcpi_min_rtt;
    return known && info.tcpi_min_rtt < NEAR_US;
}

/* BBR sends by the clock, at the rate that it believes the path to have. Between neighbours whose rounds are shorter
 * than a timer's, that is work for nothing: it took a third of the throughput, whatever the number of connections. Reno
 * is in every kernel, and open to every user. */
static bool stop_pacing(int socket)
{
    char name[16] = "";
    socklen_t length = sizeof name;
    bool paces = getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0 && strncmp(name, "bbr", 3) == 0;
    return paces && is_near(socket) && setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, "reno", strlen("reno")) == 0;
}

void tr__tcp_choose_pace(tr__tcp *t)
{
    int changed = 0;
    for (int rank = 0; rank < t->world_size; rank++)
        for (int lane = TR__TCP_DATA_LANE; lane < TR__TCP_LANES; lane++)
            changed += t->peers[rank].wires[lane].socket >= 0 && stop_pacing(t->peers[rank].wires[lane].socket);
    if (changed)
        tr__log(TR_LOG_INFO, "group '%s': %d connections of rank %d use the congestion control 'reno' instead of the "
            "system's 'bbr', as their round trips take less than %d us", t->group, changed, t->rank, NEAR_US);
}
