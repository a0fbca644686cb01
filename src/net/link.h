/*
 * Links between hosts: a cut that is mended within TR__LINK_CUT_MS is only a delay, a host that is gone is noticed soon after.
 *
 * TCP sends what was not acknowledged again after 0.2, 0.4, 0.8 … s, so after a cut of 10 s it may ask only at 20 s. Since
 * Linux 6.15 a connection can have an upper bound for that interval. Elsewhere the connections between two hosts are judged
 * together: one that has nothing under way is probed at a constant interval, and answers as soon as the link is back.
 */
#ifndef TR_NET_LINK_H
#define TR_NET_LINK_H

#include <stdbool.h>

enum {
    TR__LINK_CUT_MS = 10000,
    /* Without a sign of life from a host that is asked all the time: a cut, and how long after it, and before it, nothing may
     * have been asked (2 s each), and a second for the answer. */
    TR__LINK_LOST_MS = 15000,
    /* While all connections there have bytes under way, and TCP asks at intervals that double: twice a cut, and the same. */
    TR__LINK_LOST_LATE_MS = 24000,
};

/* Bounds the interval at which the kernel sends again. False: it cannot. */
bool tr__link_bound_retries(int socket);
/* Probes the other end at a constant interval while the connection has nothing under way. The kernel by itself gives up late. */
void tr__link_probe(int socket);
/* Has this connection brought a sign of life within TR__LINK_LOST_MS? */
bool tr__link_heard(int socket);
/* Is the host at the other end of these connections gone, or the way there? Those that are -1 or closed do not count. */
bool tr__link_lost(const int *sockets, int count);

#endif
