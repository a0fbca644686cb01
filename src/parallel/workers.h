/*
 * Worker threads for one device or pipeline stage each, which run the same function at the same time. Worker 0 is the calling
 * thread.
 */
#ifndef TR_PARALLEL_WORKERS_H
#define TR_PARALLEL_WORKERS_H

#include "base/object.h"

typedef struct tr__workers tr__workers;

/* An object. Threads may share it: their calls of tr__workers_run() follow each other. */
tr__workers *tr__workers_new(int count);

/* What a worker runs, in a scope of its own and in the caller's grad mode, autocast and place; it must not call tr__workers_run()
 * on the same workers. A function that stops because another has failed returns TR_CANCELLED. */
typedef tr_status (*tr__workers_function)(void *arg, int worker);
/* Runs function on workers 0 … count - 1 (no more than there are) and returns when all have. If several fail, the failure of
 * the first worker is reported that is not TR_CANCELLED. */
tr_status tr__workers_run(tr__workers *workers, int count, tr__workers_function function, void *arg);

#endif
