/*
 * Comparing the calls of the ranks before each collective, over a backend whose messages are not ours, and so carry no signature
 * (MPI, NCCL). The ranks exchange signatures by an all_gather, which match each other even when the calls do not. Calls that
 * differ become an error on every rank, in the same words, before any data has moved. A send and a recv concern two ranks
 * only, and pass unchecked.
 *
 * Over MPI that is an all_gather of MPI's. Data of NCCL are on GPUs, and signatures are the host's: they go over a native group
 * of the same ranks, which also hears at once of a rank that dies or fails, and breaks NCCL's group with the reason.
 */
#ifndef TR_COMM_BACKEND_CHECKS_H
#define TR_COMM_BACKEND_CHECKS_H

#include "comm/backend/backend.h"

typedef struct tr__checks tr__checks;

/* Of a group of several ranks that has joined, with this state of its backend. */
tr_status tr__checks_new(const tr__member *member, void *state, tr__checks **made);
/* Before each collective. What fails breaks the group. */
tr_status tr__checks_compare(tr__checks *k, const tr_collective *c, uint64_t sequence);
/* The group is given up with this thread's latest failure. */
void tr__checks_give_up(tr__checks *k);
void tr__checks_free(tr__checks *k); /* NULL: nothing */

#endif
