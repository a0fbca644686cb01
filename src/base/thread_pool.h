/*
 * A thread pool: a loop's iterations shared out over a fixed set of threads. One pool per logical CPU device.
 */
#ifndef TR_BASE_THREAD_POOL_H
#define TR_BASE_THREAD_POOL_H

#include <stdint.h>

typedef struct tr__pool tr__pool;

/* threads counts the calling thread: 1 makes a pool without threads. NULL without memory or threads. */
tr__pool *tr__pool_new(int threads);
void tr__pool_free(tr__pool *pool);
int tr__pool_threads(const tr__pool *pool);

/* Calls body(arg, begin, end) over [0, n) on this thread and the pool's, in pieces of equal size, at least half of grain; returns
 * when all are done. When the pool is at work for another thread, or for this one (a nested loop), it all runs here. */
typedef void (*tr__pool_body)(void *arg, int64_t begin, int64_t end);
void tr__pool_for(tr__pool *pool, int64_t n, int64_t grain, tr__pool_body body, void *arg);

#endif
