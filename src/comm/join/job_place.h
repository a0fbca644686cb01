/* Where a process stands in its job, and where the ranks meet. */
#ifndef TR_COMM_JOIN_JOB_PLACE_H
#define TR_COMM_JOIN_JOB_PLACE_H

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

/* A whole number in least … most; name is for the message. */
tr_status tr__environment_number(const char *name, const char *text, int least, int most, int *number);

#endif
