/*
 * A group over MPI: its communicators, and what is under way.
 */
#ifndef TR_COMM_BACKEND_MPI_GROUP_H
#define TR_COMM_BACKEND_MPI_GROUP_H

#include "comm/backend/mpi_library.h"
#include "comm/backend/polling_backend.h"
#include "comm/collective.h"
#include "comm/memory.h"

/* MPI counts in int, so long buffers go in pieces; tests have short ones. */
#ifndef TR__MPI_PIECE_BYTES
#define TR__MPI_PIECE_BYTES (1 << 30)
#endif

typedef struct tr__mpi_transfer {
    tr__transfer base;
    int left;      /* pieces that are under way */
    int64_t bytes; /* that have come */
} tr__mpi_transfer;

typedef struct tr__mpi_group {
    tr__polled base;
    const tr__mpi_library *library;
    MPI_Comm comm;         /* of the collectives; MPI_COMM_NULL in a world of one */
    MPI_Comm beside;       /* of sends and receives, whose tags are the program's */
    tr__memory scratch;    /* for reductions in another type, and of blocks that must lie together */
    atomic_bool stuck;     /* MPI goes on with what was given up, and holds on to communicators and memory */

    /* The pieces of sends and receives that are under way. */
    MPI_Request *requests;           /* [room], as are the following */
    tr__mpi_transfer **transfers;    /* whose request that is */
    MPI_Status *statuses;
    int *done;                       /* indices of those that MPI has just ended */
    int request_count, room;
} tr__mpi_group;

MPI_Datatype tr__mpi_type(tr_dtype dtype);

/* Runs one collective of a group of several ranks. */
tr_status tr__mpi_run(tr__polled *group, const tr_collective *collective);
/* Waits for requests until the call's deadline. A failure leaves them under way: MPI cannot take a collective back. */
tr_status tr__mpi_wait(tr__mpi_group *group, int count, MPI_Request *requests, MPI_Status *statuses);

/* Sends and receives, as tr__polled_type wants them. */
tr_status tr__mpi_begin(tr__polled *group, tr__transfer *transfer);
tr_status tr__mpi_advance(tr__polled *group);
void tr__mpi_drop(tr__polled *group, tr__transfer *transfer);

#endif
