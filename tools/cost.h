/*
 * What a schedule costs, by a model of the network: the steps of all ranks are simulated, up to thousands of ranks,
 * without sending a byte.
 *
 * A rank has one way out and one way in, both full speed at once, and one thread that carries out its steps: as many
 * sends ahead as the executor has under way, receives in turn. A transfer takes up each way for bytes / bandwidth, and
 * the thread of the sender and that of the receiver for overhead + bytes / copy each; what is folded or copied on the
 * spot takes the thread bytes / fold. The last byte arrives `latency` after it left. A transfer whose data is still
 * coming in from an earlier step follows it by one piece: the executor forwards what it has.
 */
#ifndef TR_TOOLS_COST_H
#define TR_TOOLS_COST_H

#include <trireme/tools.h>

typedef struct tr__network {
    double latency, overhead; /* seconds: on the way, and of a rank's thread for each transfer, on either side */
    double bandwidth;         /* bytes per second, of a rank in each direction */
    double copy, fold;        /* bytes per second of a rank's thread, through sockets and in memory; 0: no time at all */
    double piece;             /* bytes that are forwarded at once */
} tr__network;

/* Seconds until the last rank is done. `like` is the schedule of any rank; element_bytes as of its dtype. */
tr_status tr__cost(const tr_schedule *like, int64_t element_bytes, const tr__network *network, double *seconds);

#endif
