/*
 * Collectives over several hosts: made of parts, each within the hosts (shared memory) or across them (TCP). Which part
 * follows which is a function of the call alone, so ranks whose calls agree agree on their parts; every part carries the
 * whole call's signature, so ranks whose calls differ find out.
 */
#ifndef TR_COMM_BACKEND_HIERARCHY_H
#define TR_COMM_BACKEND_HIERARCHY_H

#include "comm/algo/hosts.h"
#include "comm/memory.h"
#include "comm/transport/shm.h"
#include "comm/transport/tcp.h"

typedef struct tr__hierarchy tr__hierarchy;

/* Takes the hosts over. shm joins the ranks of this host, NULL when there is only this one; tcp joins all. */
tr_status tr__hierarchy_new(tr__hosts *hosts, int rank, tr__shm *shm, tr__tcp *tcp, tr__hierarchy **made);
tr_status tr__hierarchy_run(tr__hierarchy *h, const tr_collective *collective, uint64_t sequence);
void tr__hierarchy_free(tr__hierarchy *h);

/* ---- Between its files ------------------------------------------------------------------------------------------- */

enum { TR__RAIL_BYTES = 64 << 10 }; /* a call below goes through one rank of each host */

struct tr__hierarchy {
    tr__hosts hosts;
    int rank, host, place; /* ours */
    tr__shm *shm;
    tr__tcp *tcp;
    uint64_t parts;            /* within the host, so far */
    int *subset;               /* [world_size]: who takes part across hosts */
    int64_t *counts, *offsets; /* [world_size]: of a part */
    int64_t *more_counts, *more_offsets;
    tr__memory partial, packed, wide; /* lent to calls */
};

/* A call that is running. */
typedef struct tr__hierarchy_call {
    tr__hierarchy *h;
    const tr_collective *c; /* what is carried out: the program's, or: */
    tr_collective folded;   /* the sums it stands for, in the type in which they are folded */
    const tr__shm_whole *whole;
    size_t size;            /* of an element */
    bool averages;          /* the sum is to be divided when all is folded */
} tr__hierarchy_call;

/* A part among the ranks of this host; roots and blocks go by their places there. */
tr_status tr__hierarchy_within(const tr__hierarchy_call *k, tr_collective part);
/* A part among h->subset[0 … members - 1]; roots and blocks go by their places there. */
tr_status tr__hierarchy_across(const tr__hierarchy_call *k, tr_collective part, int members);
/* How many rails a call takes that moves so many bytes; `whole_blocks`: each carries the blocks of its own ranks. Rail i joins the
 * i-th ranks of all hosts; if there is but one, it joins the hosts' leaders. */
int tr__hierarchy_rails(const tr__hierarchy_call *k, int64_t bytes, bool whole_blocks);
/* The place on our host of its leader: the root's if it is there, else 0. */
int tr__hierarchy_leader(const tr__hierarchy_call *k);
/* A part among the ranks of our rail; nothing for a rank that is on none. */
tr_status tr__hierarchy_rail(const tr__hierarchy_call *k, int rails, tr_collective part);
/* Shares count elements out among the rails: h->counts and h->offsets of the ranks of this host. Returns our share. */
tr__range tr__hierarchy_share(const tr__hierarchy_call *k, int rails, int64_t count);
/* The rails of this host have their shares of the output, at `mine`, and give them to all of its ranks. */
tr_status tr__hierarchy_spread(const tr__hierarchy_call *k, int rails, const void *mine);

static inline char *tr__hierarchy_at(const tr__hierarchy_call *k, const void *buffer, int64_t element)
{
    return element ? (char *)buffer + (size_t)element * k->size : (char *)buffer;
}

/* hierarchy_reduce.c */
tr_status tr__hierarchy_reduce(const tr__hierarchy_call *k);
/* hierarchy_move.c */
tr_status tr__hierarchy_move(const tr__hierarchy_call *k);

#endif
