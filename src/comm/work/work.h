/*
 * Work: a posted collective, from its descriptor to its result.
 */
#ifndef TR_COMM_WORK_WORK_H
#define TR_COMM_WORK_WORK_H

#include "base/object.h"
#include "comm/record/recorder.h"
#include "comm/work/staging.h"

#include <trireme/comm.h>

struct tr_work {
    tr__object object;
    tr_collective collective; /* complete and checked */
    int64_t *arrays;          /* its counts and offsets, or NULL */
    atomic_uint done;         /* a futex word: 0, then 1 */
    atomic_bool awaited;      /* somebody is in tr_wait(): until it is done, the program goes no further */
    tr__error *failure;       /* why it went badly; written before done */
    tr__recorder *recorder;   /* the group's, and what it calls this work */
    uint64_t record;
    tr__staging *staging;     /* NULL: the buffers are the caller's */
    const void *tensors[2];   /* that the buffers are of, kept; or NULL */
    tr_work *next;            /* in the group's queue */
    tr_work **parts;          /* of a list: one reference each; the rest above means nothing */
    int part_count;
};

extern const tr__type tr__work_type;

/* Puts down the result, which is this thread's latest failure when it is not TR_OK, and wakes who waits. */
void tr__work_finish(tr_work *work, tr_status status);

#endif
