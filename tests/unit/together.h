/* What tests of groups do beside the group, so that breaking it concerns nobody too early. */
#ifndef TOGETHER_H
#define TOGETHER_H

#include <trireme/comm.h>
#include <trireme/store.h>

/* A barrier that every rank has left when it returns, as the store knows: on TCP, a rank that wakes late still needs another's
 * message when two more have left, and breaking the group then would break the barrier for it. */
tr_status pass_barrier_together(tr_group *group, tr_store *store);

#endif
