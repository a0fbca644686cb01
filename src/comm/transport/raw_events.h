/*
 * What a module above hears of the other ranks of a group whose bare transports it uses (comm/group/raw.h): from the threads of the
 * monitors, which must not be kept waiting.
 */
#ifndef TR_COMM_TRANSPORT_RAW_EVENTS_H
#define TR_COMM_TRANSPORT_RAW_EVENTS_H

#include <stdbool.h>

typedef struct tr__raw_events {
    void *user;
    /* Memory that another rank has shown can be held now. */
    void (*shown)(void *user, int rank);
    /* Memory that it has shown cannot be mapped here, with this thread's latest failure: it can never be held. */
    void (*missed)(void *user, int rank);
    /* It has died, or has left. More than once, maybe. by_memory: its memory's monitor says so, of a rank of this host; what the
     * rank has shown is unmapped after this call, unless tr__raw_use() is in effect. */
    void (*gone)(void *user, int rank, bool left, bool by_memory);
} tr__raw_events;

#endif
