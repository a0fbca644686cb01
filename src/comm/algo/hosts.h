/*
 * Which ranks share a host, and how a collective over several hosts is shared out among them. Pure.
 */
#ifndef TR_COMM_ALGO_HOSTS_H
#define TR_COMM_ALGO_HOSTS_H

#include <trireme/comm.h>

#include <stdbool.h>

typedef struct tr__hosts {
    int world_size, count; /* ranks, hosts */
    int least, most;       /* ranks that a host holds */
    int *host, *place;     /* [world_size]: a rank's host, and how many ranks below it are there, too */
    int *ranks;            /* [world_size]: by host, and in their order on each; hosts in the order of their first ranks */
    int *first;            /* [count + 1]: host h holds ranks[first[h]] … ranks[first[h + 1] - 1] */
} tr__hosts;

/* together(arg, a, b): are these two ranks on one host? */
tr_status tr__hosts_make(tr__hosts *hosts, int world_size, bool (*together)(const void *arg, int a, int b),
    const void *arg);
void tr__hosts_free(tr__hosts *hosts);

static inline int tr__hosts_size(const tr__hosts *hosts, int host)
{
    return hosts->first[host + 1] - hosts->first[host];
}

/* The ranks of a host, in their order. */
static inline const int *tr__hosts_ranks(const tr__hosts *hosts, int host)
{
    return hosts->ranks + hosts->first[host];
}

#endif
