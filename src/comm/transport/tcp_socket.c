/* What the ranks' connections ask of the kernel. */
#include "base/log.h"
#include "comm/transport/tcp.h"
#include "net/link.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

enum {
    LATEST_MS = 2 * TR__LINK_LOST_MS, /* without an answer: later than the monitor gives a host up */
    NEAR_US = 1000,                   /* a round trip within one site */
};

/* The monitor notices a host that is gone by its silence (net/link.h). While it does not run yet, the kernel does, on the control
 * connection only: a peer that is stopped, or slow to read, has room there, and on others TCP_USER_TIMEOUT would end the wait for
 * it. */
void tr__tcp_set_up_socket(int socket, int lane)
{
    int on = 1, latest = LATEST_MS;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    bool bounded = tr__link_bound_retries(socket), control = lane == TR__TCP_CONTROL_LANE;
    if (control || !bounded) tr__link_probe(socket);
    if (control) setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &latest, sizeof latest);
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
