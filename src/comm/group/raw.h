/*
 * The bare transports of a group, for a module above that sends messages of its own: a twin (tr__group_twin()) of the program's
 * group, so what the program does with its own does not matter. Ranks of one host show each other memory.
 * Ranks of different hosts have a stream, the data connection of the twin, where no collectives run once the module has begun. A
 * rank that dies breaks the twin as a group, but not what the others have with each other.
 */
#ifndef TR_COMM_GROUP_RAW_H
#define TR_COMM_GROUP_RAW_H

#include "comm/record/recorder.h"
#include "comm/transport/raw_events.h"
#include "net/endpoint.h"
#include "net/wire.h"

#include <trireme/comm.h>

/* From now on; *events must live as long as the group. */
void tr__raw_watch(tr_group *group, const tr__raw_events *events);

/* Does the rank live on this host? */
bool tr__raw_is_local(const tr_group *group, int rank);
/* Shows memory that lies at the beginning of a shared segment of ours to a rank of this host, which is to be told its number. */
tr_status tr__raw_show(tr_group *group, int rank, const void *memory, uint64_t *segment);
/* Holds what a rank of this host has shown, until tr__shm_mapping_close(). Waits for it until then (a time of tr__now_ns(); 0: does
 * not); false: it has not come. */
bool tr__raw_hold(const tr_group *group, int rank, uint64_t segment, int64_t until, tr__shm_mapping *mapping);
/* May this rank read private memory of a rank of this host? tr__raw_read is false when that rank or its memory is gone. */
bool tr__raw_crosses(const tr_group *group, int rank);
bool tr__raw_read(const tr_group *group, int rank, uint64_t from, size_t bytes, void *to);
/* Between these two what ranks take back, or leave behind, can still be held. */
void tr__raw_use(const tr_group *group);
void tr__raw_idle(const tr_group *group);
/* The connection to a rank of another host, which stays the group's; waits until it is there. */
tr_status tr__raw_wire(const tr_group *group, int rank, tr__wire **wire);
/* The job's key; NULL: it has none. The group's own. */
tr__tls_key *tr__raw_key(const tr_group *group);
/* "pid 77 on host b" of a rank, for messages; an empty text when it is not known. */
char *tr__raw_name(const tr_group *group, int rank, char text[128]);
/* The group's flight record, which says from now on that the group is for remote procedure calls; NULL: it has none. */
tr__recorder *tr__raw_recorder(const tr_group *group);
/* More ranks on this machine than cores. */
bool tr__raw_crowded(const tr_group *group);

#endif
