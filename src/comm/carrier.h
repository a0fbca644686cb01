/*
 * Carriers: groups whose connections a module above uses for messages of its own. Ranks of one host show each other
 * memory over the sockets that their monitors watch; ranks of different hosts have a stream, which is the data connection
 * of a carrier, as no collectives run there once the module has begun. A rank that dies breaks the carrier as a group, but
 * not what the others have with each other.
 */
#ifndef TR_COMM_CARRIER_H
#define TR_COMM_CARRIER_H

#include "net/wire.h"

#include <trireme/comm.h>

/* Memory of another rank of this host, mapped here. */
typedef struct tr__carried_memory {
    uint64_t id;
    char *memory;
    size_t bytes;
    bool in_process; /* of a thread of this process: held, not mapped again */
} tr__carried_memory;

/* From the threads of the monitors, which must not be kept waiting. */
typedef struct tr__carried {
    void *user;
    /* Another rank has shown memory for a purpose that the module knows. */
    void (*shown)(void *user, int rank, int purpose, const tr__carried_memory *memory);
    /* It has died, or has left. More than once, maybe. */
    void (*gone)(void *user, int rank, bool left);
} tr__carried;

/* A group of the same ranks with a carrier's means. Collective. */
tr_group *tr__carrier_new(tr_group *group);
/* From now on. The ranks show each other nothing before all have called it, which a collective after it makes sure of;
 * *carried must live as long as the carrier. */
void tr__carrier_watch(tr_group *carrier, const tr__carried *carried);

/* Does the rank live on this host? */
bool tr__carrier_near(const tr_group *carrier, int rank);
/* Shows memory that lies at the beginning of a shared segment of ours to a rank of this host. */
tr_status tr__carrier_show(tr_group *carrier, int rank, const void *memory, int purpose);
void tr__carrier_unmap(const tr__carried_memory *memory);
/* The connection to a rank of another host, which stays the carrier's; waits until it is there. */
tr_status tr__carrier_wire(const tr_group *carrier, int rank, tr__wire **wire);
/* The job's key; NULL: it has none. The carrier's own. */
tr__tls_key *tr__carrier_key(const tr_group *carrier);
/* "pid 77 on host b" of a rank, for messages; an empty text when it is not known. */
char *tr__carrier_name(const tr_group *carrier, int rank, char text[128]);
/* More ranks on this machine than cores. */
bool tr__carrier_crowded(const tr_group *carrier);

#endif
