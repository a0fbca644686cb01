/*
 * Work: a posted collective, from its descriptor to its result.
 */
#ifndef TR_COMM_WORK_H
#define TR_COMM_WORK_H

#include "base/object.h"

#include <trireme/comm.h>

struct tr_work {
    tr__object object;
    tr_collective collective; /* complete and checked */
    atomic_uint done;         /* a futex word: 0, then 1 */
    tr__error *failure;       /* why it went badly; written before done */
    tr_work *next;            /* in the group's queue */
};

extern const tr__type tr__work_type;

/* Puts down the result, which is this thread's latest failure when it is not TR_OK, and wakes who waits. */
void tr__work_finish(tr_work *work, tr_status status);

#endif
