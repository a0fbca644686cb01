/*
 * A group: its members, its backend, and its queue of posted work.
 */
#ifndef TR_COMM_GROUP_H
#define TR_COMM_GROUP_H

#include "base/object.h"
#include "comm/backend/backend.h"

#include <pthread.h>

enum { TR__GROUP_NAME = 64, TR__GROUP_TIMEOUT_MS = 600000 };

struct tr_group {
    tr__object object;
    char name[TR__GROUP_NAME];
    int rank, world_size, local_rank;
    int timeout_ms;
    const tr__backend *backend;
    void *state;     /* the backend's; NULL: never joined, or left */
    tr_store *store; /* where the ranks met; kept because rank 0 may serve it */

    pthread_mutex_t lock; /* for what follows */
    pthread_cond_t changed;
    bool running;         /* a collective is under way, in whatever thread */
    bool closed;          /* takes no more work */
    bool has_thread;
    pthread_t thread;     /* runs what was posted */
    tr_work *first, *last;
    uint64_t sequence;    /* of the latest collective; written by who runs it */
};

extern const tr__type tr__group_type;

/* Locks and condition of a new group, before anything can fail. */
void tr__group_init(tr_group *group);

#endif
