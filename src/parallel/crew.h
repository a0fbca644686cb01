/*
 * A crew: threads that do one job together, one member per device or stage. Member 0 is whoever calls, the others are threads
 * of the crew's own.
 */
#ifndef TR_PARALLEL_CREW_H
#define TR_PARALLEL_CREW_H

#include "base/object.h"

typedef struct tr__crew tr__crew;

/* An object. Threads may share it: their jobs follow each other. */
tr__crew *tr__crew_new(int members);

/* What a member does, in a scope of its own and in the caller's grad mode; it must not wait for another job of the crew. A member
 * that gives up because another has failed returns TR_CANCELLED. */
typedef tr_status (*tr__crew_body)(void *arg, int member);
/* Runs body for members 0 … members - 1 at the same time (more than the crew has is an error) and returns when all are done.
 * Of failures the first member's counts that was not TR_CANCELLED. */
tr_status tr__crew_run(tr__crew *crew, int members, tr__crew_body body, void *arg);

#endif
