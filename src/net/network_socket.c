/* What the endpoint's connections ask of the kernel. */
#include "base/log.h"
#include "net/link.h"
#include "net/network.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

enum {
    LATEST_MS = 2 * TR__LINK_LOST_MS, /* without an answer: later than the monitor gives a host up */
    SHORT_US = 1000,                   /* a round trip within one site */
};

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
void tr__network_set_up_socket(tr__network_endpoint *n, int socket, tr__channel channel)
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
