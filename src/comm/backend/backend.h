/*
 * A backend carries a group's collectives. The group (comm/group.c) checks the calls, puts them in order, and runs one
 * at a time, in the caller's thread or in its own; a backend sees only complete descriptors.
 */
#ifndef TR_COMM_BACKEND_BACKEND_H
#define TR_COMM_BACKEND_BACKEND_H

#include <trireme/comm.h>

/* Who joins, and where the ranks meet. */
typedef struct tr__member {
    const char *group; /* its name */
    int rank, world_size;
    tr_store *store;   /* NULL when world_size is 1 */
    int timeout_ms;
} tr__member;

typedef struct tr__backend {
    const char *name;
    /* Meets the other ranks; *state is what the other functions get. */
    tr_status (*join)(const tr__member *member, void **state);
    /* Runs one collective to its end, in any thread, never two at once. After a failure the group is broken: every
     * later run fails at once, with the first cause. sequence counts the group's collectives from 1. */
    tr_status (*run)(void *state, const tr_collective *collective, uint64_t sequence);
    /* Makes a run that is under way give up soon; the group is then broken. From any thread. */
    void (*cancel)(void *state, const char *why);
    /* Says goodbye and frees the state. No run is under way. */
    void (*leave)(void *state);
} tr__backend;

extern const tr__backend tr__native_backend;

#endif
