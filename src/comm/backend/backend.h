/*
 * A backend carries a group's collectives. The group (comm/group/group.c) checks the calls, puts them in order, and runs one
 * at a time, in the caller's thread or in its own; a backend sees only complete descriptors.
 */
#ifndef TR_COMM_BACKEND_BACKEND_H
#define TR_COMM_BACKEND_BACKEND_H

#include "comm/join/member.h"

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
    /* Divides what the ranks of the group have of the library's, so that groups within it need not meet there anew: all ranks
     * call it, after all that was posted before; those of one color (-1: none) are to be a group, in the order of their keys.
     * *part, if there is any, is for join() of that group, or for drop_part(). NULL, both: there is nothing to divide. */
    tr_status (*split)(void *state, int color, int key, int timeout_ms, void **part);
    void (*drop_part)(void *state, void *part);
    /* Says goodbye and frees the state. No run is under way. */
    void (*leave)(void *state);
    const struct tr__polled_type *polled; /* of a backend that tr__polled_join() joins, else NULL */
    bool signs; /* finds by itself that ranks make different calls */
    bool any_source; /* receives from TR_ANY_SOURCE */
    tr_device_kind memory; /* whose buffers it takes, beside the host's; TR_CPU: no others, the group stages them */
};

extern const tr__backend tr__native_backend, tr__mpi_backend, tr__nccl_backend;

/* The native backend's transports; NULL: it has none of the kind. */
struct tr__shm;
struct tr__tcp;
struct tr__shm_place;
void tr__native_transports(void *state, struct tr__shm **shm, struct tr__tcp **tcp);

/* The number by which the endpoints of all ranks know a group. */
uint64_t tr__native_number(void *state);
/* Makes the sides of the group of that number, which hear from now on what is for it; says where its control block is, if it has
 * one. */
tr_status tr__native_prepare(tr__seat *seat, uint64_t number, struct tr__shm_place *block);
/* The others may know of it, but this rank cannot come, because of this thread's latest failure: tells those who may wait for it. */
void tr__native_abandon(tr__seat *seat);
/* Nobody else knows of it. */
void tr__native_drop(tr__seat *seat);

#endif
