/*
 * A group over NCCL: its communicator, stream and GPU, and the channels of its sends and receives.
 */
#ifndef TR_COMM_BACKEND_NCCL_GROUP_H
#define TR_COMM_BACKEND_NCCL_GROUP_H

#include "comm/backend/nccl_library.h"
#include "comm/backend/polling_backend.h"
#include "comm/collective.h"
#include "device/device.h"

/* Where NCCL finds a buffer: itself, when it is on the group's GPU, else a copy there. */
typedef struct tr__nccl_buffer {
    void *at, *copy; /* copy NULL: none */
    size_t bytes;
} tr__nccl_buffer;

typedef struct tr__nccl_transfer {
    tr__transfer base;
    /* when the caller's stream is done with what it was given before; NULL: the buffer is the host's */
    tr_device_event *ready;
} tr__nccl_transfer;

/* What one rank sends to another one. */
typedef struct tr__nccl_channel {
    enum { TR__NCCL_ABSENT, TR__NCCL_MAKING, TR__NCCL_IDLE, TR__NCCL_HEAD, TR__NCCL_DATA } stage;
    int peer;
    bool sends;                 /* else receives */
    ncclComm_t comm;            /* of the two ranks; the sender is its rank 0 */
    tr_device_stream *stream;
    tr__cuda_stream handle;
    tr_device_event *event;
    bool taken;                 /* NCCL has taken the message's part, and the event marks its end */
    int64_t look;               /* when to ask the store again */
    ncclUniqueId id;            /* of the communicator, */
    bool drawn;                 /* which this rank has drawn */
    tr__nccl_transfer *current; /* whose data are under way */
    tr__signature head;         /* in the host's memory, and */
    tr__nccl_buffer head_copy, data;
} tr__nccl_channel;

typedef struct tr__nccl_group {
    tr__polled base;
    const tr__nccl_library *l;
    const tr_device_table *table; /* of cuda */
    tr_device device;
    ncclComm_t comm;
    tr_device_stream *stream;
    tr__cuda_stream handle;       /* NCCL's name of the stream */
    tr_device_event *event;
    tr__nccl_channel *channels;   /* [2 * world_size]: to each rank, then from each */
} tr__nccl_group;

/* Does NCCL go on with what it was given? Fails when the communicator did. */
tr_status tr__nccl_check(const tr__nccl_group *group, ncclComm_t comm, bool *under_way);
/* Before communicators are aborted: tells the other ranks why, by the store, unless the thread's latest failure is
 * theirs. */
void tr__nccl_tell(const tr__nccl_group *group, tr_status status);
/* A stream of the group's GPU, and NCCL's name of it. What was made before a failure is *stream. */
tr_status tr__nccl_stream_new(const tr__nccl_group *group, tr_device_stream **stream, tr__cuda_stream *handle);
/* Begins to make a communicator. */
tr_status tr__nccl_comm_new(const tr__nccl_group *group, const ncclUniqueId *id, int rank, int ranks, ncclComm_t *comm);

/* An event after what the call's stream has been given; *event NULL: the buffers are the host's, and ready. */
tr_status tr__nccl_ready(const tr__nccl_group *group, const tr_collective *c, tr_device_event **event);
/* The buffer, or on `stream` a copy of it on the group's GPU; `fill`: with its contents. */
tr_status tr__nccl_stage(const tr__nccl_group *group, tr_device_stream *stream, tr_device from, const void *buffer,
    size_t bytes, bool fill, tr__nccl_buffer *b);
/* Copies the copy back, if there is one; the stream has come by what writes it. Returns when it is there. */
tr_status tr__nccl_unstage(const tr__nccl_group *group, tr_device_stream *stream, tr_device to, void *buffer,
    const tr__nccl_buffer *b);
void tr__nccl_drop_copy(const tr__nccl_group *group, tr_device_stream *stream, tr__nccl_buffer *b);

/* Sends and receives, as tr__polled_type wants them. */
tr_status tr__nccl_begin(tr__polled *group, tr__transfer *transfer);
tr_status tr__nccl_advance(tr__polled *group);
void tr__nccl_drop(tr__polled *group, tr__transfer *transfer);

/* The channels, none of which exists before the first message. */
tr_status tr__nccl_channels_new(tr__nccl_group *group);
void tr__nccl_channels_free(tr__nccl_group *group);

#endif
