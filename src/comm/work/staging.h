/*
 * Buffers that lie on a device whose memory the group's backend does not take: a collective runs on a copy in the host's
 * (pinned) memory. The copy is enqueued when the collective is posted, on a stream beside the caller's, so that it waits for what
 * makes the data and for nothing that is enqueued later; the result is on the device when the work is done.
 */
#ifndef TR_COMM_WORK_STAGING_H
#define TR_COMM_WORK_STAGING_H

#include <trireme/comm.h>

typedef struct tr__staging tr__staging;

/* Puts host memory in the place of a complete collective's buffers and enqueues the copy of what this rank gives. *out: NULL when
 * the buffers lie in the host's memory anyway. */
tr_status tr__staging_begin(tr_collective *c, int rank, int world_size, tr__staging **out);
/* Waits until the copy is there. NULL: it is. */
tr_status tr__staging_ready(tr__staging *staging);
/* After TR_OK copies what this rank got to the device, and waits for that. Frees it. Returns the first failure. */
tr_status tr__staging_end(tr__staging *staging, tr_status status);

#endif
