/* What modules above need of a group beyond <trireme/comm.h>. */
#ifndef TR_COMM_CONTROL_H
#define TR_COMM_CONTROL_H

#include <trireme/comm.h>

/* Breaks the group with this thread's latest failure, which is this rank's own: what is under way gives up soon, here
 * with that failure, and on the other ranks with TR_PEER, which names this rank and the reason. From any thread. */
void tr__group_give_up(tr_group *group);
/* The time limit of a collective that has none of its own. */
int tr__group_timeout_ms(const tr_group *group);

/*
 * Collectives of one kind and size that belong to different things, as buckets of two modules do: given such a tag, they meet
 * their like on the other ranks, or are a mismatch that says "series 2.0". The k-th call of tr__group_series() on a group
 * gives k, on all ranks. A variant (0 … 127) tells apart what of one thing the ranks have done differently: "series 2.0, variant 93".
 */
enum { TR__SERIES = 4096, TR__VARIANTS = 128 };
int tr__group_series(tr_group *group);
static inline int tr__series_tag(int series, int place)
{
    return -1 - (series % TR__SERIES * TR__SERIES + place % TR__SERIES);
}
static inline int tr__variant_tag(int tag, int variant)
{
    return tag - variant % TR__VARIANTS * TR__SERIES * TR__SERIES;
}

#endif
