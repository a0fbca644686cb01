/* Replicas that are compared on the way: by DDP and by the trainer. */
#ifndef TR_PARALLEL_REPLICAS_H
#define TR_PARALLEL_REPLICAS_H

#include <trireme/comm.h>
#include <trireme/tensor.h>

enum { TR__CHECK_EVERY = 100 }; /* steps, or backwards, between two comparisons where the program does not say */

/* How often to compare: as the program says (0 and -1: never), and always where TRIREME_CHECK has the word replicas. Below 0 where
 * the program says what makes no sense. */
int64_t tr__replicas_every(int64_t every);

/* tr_check_replicas(), whose message begins with `words` ("replicas differ"). *differ: they do, so that all ranks fail
 * alike and the group is sound. */
tr_status tr__replicas_compare(tr_group *group, const tr_tensor_list *list, const char *words, bool *differ);

#endif
