/*
 * Telling the launcher's log function who keeps the ranks on this host waiting, once for each wait of ten seconds. It is read
 * from their flight records: so a rank may be stopped, over any backend, and its program need not listen to its own log.
 */
#ifndef TR_LAUNCH_STALLS_H
#define TR_LAUNCH_STALLS_H

#include <stdint.h>
#include <uv.h>

typedef struct tr__stalls {
    const char *job; /* its name, borrowed */
    int64_t seen_ns; /* waits that began by then have been told, if there were any */
    uv_timer_t timer;
} tr__stalls;

/* From now on, if there is a log function; the loop is to close the timer. */
void tr__stalls_watch(tr__stalls *stalls, uv_loop_t *loop, const char *job);

#endif
