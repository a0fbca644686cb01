/* What modules above need of a group beyond <trireme/comm.h>. */
#ifndef TR_COMM_CONTROL_H
#define TR_COMM_CONTROL_H

#include <trireme/comm.h>

/* Breaks the group with this thread's latest failure, which is this rank's own: what is under way gives up soon, here
 * with that failure, and on the other ranks with TR_PEER, which names this rank and the reason. From any thread. */
void tr__group_give_up(tr_group *group);
/* Returns status. If this rank's part in a joint operation failed, breaks the group with that failure. */
static inline tr_status tr__group_tell(tr_group *group, tr_status status)
{
    if (status != TR_OK && tr_world_size(group) > 1) tr__group_give_up(group);
    return status;
}
/* The time limit of a collective that has none of its own. */
int tr__group_timeout_ms(const tr_group *group);

/*
 * Buckets of two modules may have one size: given such a tag, a bucket meets its like on the other ranks, or is a mismatch that
 * says "bucket 0 of module 2". The k-th call of tr__group_next_module() on a group gives k, on all ranks. A variant (1 … 127) says
 * which parameters of the module are frozen in this backward, "bucket 0 of module 2, frozen set 93"; 0: none is.
 */
enum { TR__BUCKETS = 4096, TR__VARIANTS = 128 };
int tr__group_next_module(tr_group *group);
static inline int tr__bucket_tag(int module, int bucket)
{
    return -1 - (module % TR__BUCKETS * TR__BUCKETS + bucket % TR__BUCKETS);
}
static inline int tr__variant_tag(int tag, int variant)
{
    return tag - variant % TR__VARIANTS * TR__BUCKETS * TR__BUCKETS;
}

#endif
