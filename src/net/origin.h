/*
 * How many connections that have proved nothing yet come from where: when there are too many, the oldest of an address that has
 * the most gives way, so nobody takes the places of others.
 */
#ifndef TR_NET_ORIGIN_H
#define TR_NET_ORIGIN_H

#include <stdint.h>

enum { TR__ORIGINS = 1024 };

/* Addresses are counted by a hash under a random key; of IPv6 the first half, which is what one host may choose from. */
typedef struct tr__origins {
    uint64_t key; /* 0: not yet chosen */
    int counts[TR__ORIGINS];
} tr__origins;

/* Which count a connection belongs to. */
int tr__origin_of(tr__origins *origins, int socket);

#endif
