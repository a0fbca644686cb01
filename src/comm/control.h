/* What modules above need of a group beyond <trireme/comm.h>. */
#ifndef TR_COMM_CONTROL_H
#define TR_COMM_CONTROL_H

#include <trireme/comm.h>

/* Breaks the group with this thread's latest failure: what is under way, here and on the other ranks, gives up soon. From
 * any thread. */
void tr__group_give_up(tr_group *group);
/* The time limit of a collective that has none of its own. */
int tr__group_timeout_ms(const tr_group *group);

#endif
