/*
 * The bare transports of a group, for a module above that sends messages of its own: a twin (tr__group_twin()) of the program's
 * group, so what the program does with its own does not matter. Ranks of one host show each other memory over the sockets that
 * their monitors watch. Ranks of different hosts have a stream, the data connection of the twin, where no collectives run once the
 * module has begun. A rank that dies breaks the twin as a group, but not what the others have with each other.
 */
#ifndef TR_COMM_RAW_H
#define TR_COMM_RAW_H

#include "net/endpoint.h"
#include "net/wire.h"

#include <trireme/comm.h>

/* From the threads of the monitors, which must not be kept waiting. */
typedef struct tr__raw_events {
    void *user;
    /* Another rank has shown memory, for a purpose of the module's. The module owns the mapping: tr__shm_mapping_close(). */
    void (*shown)(void *user, int rank, int purpose, const tr__shm_mapping *memory);
    /* It has died, or has left. More than once, maybe. */
    void (*gone)(void *user, int rank, bool left);
} tr__raw_events;

/* From now on. The ranks show each other nothing before all have called it, which a collective after it makes sure of;
 * *events must live as long as the group. */
void tr__raw_watch(tr_group *group, const tr__raw_events *events);

/* Does the rank live on this host? */
bool tr__raw_is_local(const tr_group *group, int rank);
/* Shows memory that lies at the beginning of a shared segment of ours to a rank of this host. */
tr_status tr__raw_show(tr_group *group, int rank, const void *memory, int purpose);
/* The connection to a rank of another host, which stays the group's; waits until it is there. */
tr_status tr__raw_wire(const tr_group *group, int rank, tr__wire **wire);
/* The job's key; NULL: it has none. The group's own. */
tr__tls_key *tr__raw_key(const tr_group *group);
/* "pid 77 on host b" of a rank, for messages; an empty text when it is not known. */
char *tr__raw_name(const tr_group *group, int rank, char text[128]);
/* More ranks on this machine than cores. */
bool tr__raw_crowded(const tr_group *group);

#endif
