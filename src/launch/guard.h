/*
 * A process that kills all of the job when this process is gone, however it went: the groups of the ranks, and strays, as
 * tr__sweep() finds them. The ranks' own death signal does not reach what they have started. When it is killed itself, another
 * one takes its place.
 */
#ifndef TR_LAUNCH_GUARD_H
#define TR_LAUNCH_GUARD_H

#include <trireme/base.h>

#include <sys/types.h>
#include <uv.h>

typedef struct tr__guard_options {
    uv_loop_t *loop;
    const char *mark;          /* of the launcher, borrowed */
    const pid_t *groups;       /* borrowed; those that tr__guard_add() has told of */
    void (*lost)(void *user);  /* no other one can be started: the thread's latest failure says why */
    void *user;
} tr__guard_options;

typedef struct tr__guard {
    tr__guard_options options;
    pid_t pid;       /* 0: there is none */
    int socket;      /* has an end of file when the guard is gone */
    int groups;      /* how many it knows */
    uv_poll_t death; /* of the loop, which is to close it */
} tr__guard;

/* On failure the guard is as one that was stopped. */
tr_status tr__guard_start(tr__guard *guard, const tr__guard_options *options);
/* There is one group more. */
tr_status tr__guard_add(tr__guard *guard);
void tr__guard_stop(tr__guard *guard);

#endif
