/*
 * What ranks do in the tests of more than one transport. Each body leaves the group, unless the group is broken.
 */
#ifndef COMM_TRIALS_H
#define COMM_TRIALS_H

#include "comm_ranks.h"

/* arg: a tr_collective_kind, with many counts and all roots, held against what it is to give. */
void try_kind(rank *r);
/* all_reduce of every type and operation. */
void reduce_all_types(rank *r);
/* Every rank's result is rank 0's, bit for bit, and close to the right one. */
void reduce_large(rank *r);
void meet_in_place(rank *r);
/* arg: an atomic_int for each rank. */
void meet(rank *r);
/* Once round the world. */
void pass_on(rank *r);
/* Everyone sends to everyone before it receives, more than sockets hold, in an order of tags that nobody receives in,
 * and the other way round; with a collective in between. */
void cross(rank *r);
/* Rank 1 stays away, rank 0 leaves early. */
void stay_away(rank *r);
void leave_early(rank *r);

#endif
