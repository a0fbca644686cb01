/*
 * A group over NCCL: its communicator, stream and GPU, and the lanes of its sends and receives.
 */
#ifndef TR_COMM_BACKEND_NCCL_GROUP_H
#define TR_COMM_BACKEND_NCCL_GROUP_H

#include "comm/backend/nccl_library.h"
#include "comm/backend/polled.h"
#include "comm/collective.h"

/* Memory on the GPU for a buffer that is not. What is outgrown is kept: cudaFree() would wait for all that runs on the
 * GPU, and that may wait for another rank. */
typedef struct tr__nccl_staging {
    void *blocks[48]; /* each at least twice as long as the one before */
    int count;
    size_t bytes;     /* of the last one */
} tr__nccl_staging;

typedef struct tr__nccl_transfer {
    tr__transfer base;
    cudaEvent_t ready; /* when the caller's stream is done with what it was given before */
} tr__nccl_transfer;

/* What one rank sends to another one. */
typedef struct tr__nccl_lane {
    enum { TR__LANE_ABSENT, TR__LANE_MAKING, TR__LANE_IDLE, TR__LANE_HEAD, TR__LANE_DATA } stage;
    int peer;
    bool sends;                 /* else receives */
    ncclComm_t comm;            /* of the two ranks; the sender is its rank 0 */
    cudaStream_t stream;
    cudaEvent_t event;
    bool taken;                 /* NCCL has taken the message's part, and the event marks its end */
    int64_t look;               /* when to look again whether the sender has made the lane */
    tr__nccl_transfer *current; /* whose data are under way */
    tr__signature head, *head_on_gpu;
    tr__nccl_staging staging;
    void *back_to;              /* what has been received is copied from staging to here; NULL: it is not */
    const void *back_from;
    size_t back_bytes;
} tr__nccl_lane;

typedef struct tr__nccl_group {
    tr__polled base;
    const tr__nccl_library *l;
    int device;
    ncclComm_t comm;
    cudaStream_t stream;
    cudaEvent_t event;
    tr__nccl_staging staging[2]; /* in, out */
    tr__nccl_lane *lanes;        /* [2 * world_size]: to each rank, then from each */
} tr__nccl_group;

ncclDataType_t tr__nccl_type(tr_dtype dtype);
/* Does NCCL go on with what it was given? Fails when the communicator did. */
tr_status tr__nccl_check(const tr__nccl_group *group, ncclComm_t comm, bool *under_way);
/* The copy on the GPU of a buffer that is not there; `fill`: with its contents. */
tr_status tr__nccl_stage(const tr__nccl_group *group, tr__nccl_staging *staging, cudaStream_t stream, const void **buffer,
    size_t bytes, bool fill);
void tr__nccl_unstage(const tr__nccl_group *group, tr__nccl_staging *staging);

/* Sends and receives, as tr__polled_type wants them. */
tr_status tr__nccl_begin(tr__polled *group, tr__transfer *transfer);
tr_status tr__nccl_advance(tr__polled *group);
void tr__nccl_drop(tr__polled *group, tr__transfer *transfer);

/* The lanes, none of which exists before the first message. */
tr_status tr__nccl_lanes_new(tr__nccl_group *group);
void tr__nccl_lanes_free(tr__nccl_group *group);

#endif
