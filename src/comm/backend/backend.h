/*
 * A backend carries a group's collectives. The group (comm/group.c) checks the calls, puts them in order, and runs one
 * at a time, in the caller's thread or in its own; a backend sees only complete descriptors.
 */
#ifndef TR_COMM_BACKEND_BACKEND_H
#define TR_COMM_BACKEND_BACKEND_H

#include "comm/recorder.h"

#include <trireme/comm.h>

/* Who joins, and where the ranks meet. */
typedef struct tr__backend tr__backend;
typedef struct tr__shm_seat tr__shm_seat;
typedef struct tr__member {
    const char *group; /* its name */
    int rank, world_size;
    tr_store *store;   /* NULL when world_size is 1, or with a seat */
    tr__shm_seat *seat; /* of the native backend, in a group within another: they have met there; NULL: they have not */
    int timeout_ms;
    int report_ms;     /* after which a wait is told to the log function */
    tr__recorder *recorder; /* is to be told whom this rank waits for; NULL in a world of one */
    const char *transport, *address, *algorithms; /* as in tr_join_options; during join only */
    bool encrypt;           /* connections to other hosts go through TLS */
    uint64_t unexpected_bytes; /* of messages to a rank, at most, that it has not asked for */
    const tr__backend *behind; /* whose calls the checking backend compares */
} tr__member;

struct tr__backend {
    const char *name;
    /* Meets the other ranks; *state is what the other functions get. */
    tr_status (*join)(const tr__member *member, void **state);
    /* Runs one collective (no send or recv) to its end, in any thread, never two at once. After a failure the group is
     * broken: every later run and start fails at once, with the first cause. sequence counts the group's collectives
     * from 1. */
    tr_status (*run)(void *state, const tr_collective *collective, uint64_t sequence);
    /* Sends and receives beside the collectives, of any thread, several at once. start() takes a reference of the work,
     * which it finishes some time. `driven`: the caller calls drive() next, which helps until the work is done. */
    void (*start)(void *state, tr_work *work, bool driven);
    void (*drive)(void *state, const tr_work *work);
    bool (*pending)(void *state); /* is any under way? leave() waits for them */
    /* Breaks the group with this thread's latest failure, which is this rank's own: what is under way gives up soon.
     * The native backend tells the other ranks, which get TR_PEER with this rank and the reason. From any thread. */
    void (*give_up)(void *state);
    /* Says goodbye and frees the state. No run is under way. */
    void (*leave)(void *state);
    bool signs; /* finds by itself that ranks make different calls */
    tr_device_kind memory; /* whose buffers it takes, beside the host's; TR_CPU: no others, the group stages them */
};

extern const tr__backend tr__native_backend, tr__checked_backend;

/* The native backend's transports; NULL: it has none of the kind. */
struct tr__shm;
struct tr__tcp;
void tr__native_transports(void *state, struct tr__shm **shm, struct tr__tcp **tcp);

#endif
