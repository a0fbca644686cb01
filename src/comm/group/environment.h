/*
 * Where this process stands in its job, by its environment: the variables of whichever launcher started it, or what MPI
 * says when the library was built with it.
 */
#ifndef TR_COMM_GROUP_ENVIRONMENT_H
#define TR_COMM_GROUP_ENVIRONMENT_H

#include <trireme/comm.h>

typedef struct tr__place {
    int rank, world_size, local_rank; /* local_rank below 0: the rank, as all are on this host */
    char host[256];                   /* where the ranks meet */
    int port;
    bool serve;                       /* by rank 0 */
    int restarts;                     /* how often the launcher that serves there has started the ranks again */
    const char *path;                 /* of a file to meet at, instead of host and port */
    const char *token;
    bool insecure;
    const char *transport, *address;
    tr_store *store;                  /* instead of host and port; borrowed */
} tr__place;

enum { TR__PORT_MAX = 65535, TR__RANKS_MAX = 1 << 20 };

/* Fills in what the environment says; a world of one when it says nothing. by_mpi: as MPI has it, whatever the
 * variables are. */
tr_status tr__environment_place(bool by_mpi, int timeout_ms, tr__place *place);

/* The same for a process that was given its rank and the world size, which stand in place: where the ranks meet, and what else is
 * said. A rank of 0 may be one that was not given: the environment's counts. What MPI says must agree. */
tr_status tr__environment_meeting(bool by_mpi, int timeout_ms, tr__place *place);

/* A whole number in least … most; name is for the message. */
tr_status tr__environment_number(const char *name, const char *text, int least, int most, int *number);

#endif
