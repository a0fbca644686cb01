/*
 * A group: its members, its backend, and its queue of posted work.
 */
#ifndef TR_COMM_GROUP_H
#define TR_COMM_GROUP_H

#include "base/object.h"
#include "comm/backend/checks.h"
#include "comm/recorder.h"

#include <pthread.h>

enum { TR__GROUP_NAME = 64, TR__GROUP_TIMEOUT_MS = 600000, TR__GROUP_REPORT_MS = 10000, TR__GROUP_UNEXPECTED = 64 << 20 };

struct tr_group {
    tr__object object;
    char name[TR__GROUP_NAME];
    int rank, world_size, local_rank;
    tr_device device; /* as given to tr_join */
    int timeout_ms;
    char *transport, *address, *algorithms; /* as given to tr_join, for sub-groups; NULL: not given */
    char *job, *flight_dir; /* for the recorder; NULL: not known */
    int report_ms;
    bool encrypt; /* connections to other hosts */
    int64_t unexpected_bytes; /* of messages to a rank, at most, that it has not asked for */
    tr__recorder *recorder; /* NULL in a world of one */
    const tr__backend *backend;
    void *state;     /* the backend's; NULL: never joined, or left */
    bool check;      /* compares the ranks' calls, as the backend cannot tell by itself that they differ */
    tr__checks *checks; /* NULL: it does not, or there is nobody to differ */
    tr_store *store; /* where the ranks met; kept because rank 0 may serve it */

    pthread_mutex_t lock; /* for what follows */
    pthread_cond_t changed;
    bool running;         /* a collective is under way, in whatever thread */
    bool closed;          /* takes no more work */
    bool has_thread;
    pthread_t thread;     /* runs what was posted */
    tr_work *first, *last;
    uint64_t sequence;    /* of the latest collective; written by who runs it */
    int subgroups;        /* made of it so far */
    int series;           /* of collectives, begun so far */
};

extern const tr__type tr__group_type;

/* Locks and condition of a new group, before anything can fail. */
void tr__group_init(tr_group *group);
/* Copies what may be NULL. */
tr_status tr__group_set(tr_group *group, const char *transport, const char *address, const char *algorithms);
/* How the group can be watched from outside; copies what may be NULL. A report_ms of 0 is the default. */
tr_status tr__group_watch(tr_group *group, const char *job, const char *flight_dir, int report_ms);
/* A group of the same ranks over the native backend. Collective. Never NULL. */
tr_group *tr__group_twin(tr_group *group);
/* Meets the other ranks in the store (NULL in a world of one) and keeps it; names, ranks and backend are set. For a group within
 * another: where they have met already, if they have, and the other group's recorder. */
tr_status tr__group_enter(tr_group *group, tr_store *store, tr__seat *seat, void **part, tr__recorder *beside,
    int timeout_ms);

#endif
