/* Who joins a group, and where its ranks meet. */
#ifndef TR_COMM_JOIN_MEMBER_H
#define TR_COMM_JOIN_MEMBER_H

#include "comm/record/recorder.h"

#include <trireme/comm.h>

typedef struct tr__backend tr__backend;
typedef struct tr__seat tr__seat;
typedef struct tr__member {
    const tr__backend *backend;
    const char *group; /* its name */
    int rank, world_size, local_rank;
    tr_device device;  /* as in tr_join_options */
    tr_store *store;   /* where the ranks meet, and kept because rank 0 may serve it; NULL when world_size is 1, or with a seat */
    tr__seat *seat;    /* of the native backend, in a group within another: they have met there; NULL: they have not */
    int timeout_ms;
    int report_ms;     /* after which a wait is told to the log function */
    tr__recorder *recorder; /* is to be told whom this rank waits for; NULL in a world of one */
    const char *transport, *address, *algorithms; /* as in tr_join_options; NULL: not given */
    bool encrypt;           /* connections to other hosts go through TLS */
    int64_t unexpected_bytes; /* of messages to a rank, at most, that it has not asked for */
    void **part; /* what split() gave this rank in the group around this one: join() may take it, and then sets it to NULL.
                    NULL: there is nothing */
} tr__member;

/* A native group within another one, before its ranks have agreed on it, which has a side of each transport that the other has. */
struct tr__seat {
    void *parent;                       /* the other's state; NULL: the members meet in the store */
    struct tr__shm *shm;                /* whoever takes these three over sets them to NULL */
    struct tr__tcp *tcp;
    struct tr__failure *failure;
    const int *ranks;                   /* [member->world_size]: in the other group */
    const struct tr__shm_place *blocks; /* the control blocks of the other group's ranks */
};

#endif
