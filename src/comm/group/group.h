/*
 * A group: its members, its backend, and its queue of posted work.
 */
#ifndef TR_COMM_GROUP_GROUP_H
#define TR_COMM_GROUP_GROUP_H

#include "base/object.h"
#include "comm/backend/checks.h"
#include "comm/record/recorder.h"

#include <pthread.h>

enum { TR__GROUP_NAME = 64, TR__GROUP_TIMEOUT_MS = 600000, TR__GROUP_REPORT_MS = 10000, TR__GROUP_UNEXPECTED = 64 << 20 };

struct tr_group {
    tr__object object;
    char name[TR__GROUP_NAME];
    tr__member member;            /* as what it has joined; the texts are the group's own, as these two: */
    const char *job, *flight_dir; /* of the recorder; NULL: not known */
    void *state;          /* the backend's; NULL: never joined, or left */
    unsigned forks;       /* of the process, when it joined: a child of it has none of the group's threads */
    bool check;           /* compares the ranks' calls, as the backend cannot tell by itself that they differ */
    tr__checks *checks;   /* NULL: it does not, or there is nobody to differ */

    pthread_mutex_t lock; /* for what follows */
    pthread_cond_t changed;
    bool running;         /* a collective is under way, in whatever thread */
    bool closed;          /* takes no more work */
    bool has_thread;
    pthread_t thread;     /* runs what was posted */
    tr_work *first, *last;
    uint64_t sequence;    /* of the latest collective; written by who runs it */
    int subgroups;        /* made of it so far */
    int modules;          /* numbers that tr__group_next_module() has given so far */
};

extern const tr__type tr__group_type;

/* What a new group is to join as, with copies of the texts; a member's report_ms of 0 is the default. */
tr_status tr__group_init(tr_group *group, const char *name, const tr__member *member, const char *job, const char *flight_dir);
/* A group of the same ranks over the native backend. Collective. Never NULL. */
tr_group *tr__group_twin(tr_group *group);
/* Meets the other ranks, in the member's store, which is kept, or where its seat says. beside: the recorder of the group that this
 * one is within. */
tr_status tr__group_enter(tr_group *group, tr__member *member, tr__recorder *beside);

#endif
