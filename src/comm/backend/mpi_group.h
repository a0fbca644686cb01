/*
 * A group over MPI: a communicator, and the call that is under way.
 */
#ifndef TR_COMM_BACKEND_MPI_GROUP_H
#define TR_COMM_BACKEND_MPI_GROUP_H

#include "comm/backend/late.h"
#include "comm/backend/mpi_library.h"
#include "comm/collective.h"
#include "comm/rendezvous.h"

typedef struct tr__mpi_group {
    tr__member member;
    tr__rendezvous meeting;
    const tr__mpi_library *library;
    MPI_Comm comm;         /* MPI_COMM_NULL in a world of one */
    tr__late late;         /* of the call under way */
    atomic_bool cancelled;
    tr__error *broken;     /* the first cause */
    void *scratch;         /* for reductions in another type, and of blocks that must lie together */
    size_t scratch_bytes;
} tr__mpi_group;

/* Runs one collective of a group of several ranks. */
tr_status tr__mpi_run(tr__mpi_group *group, const tr_collective *collective);

/* Waits for requests until the call's deadline. A failure leaves them under way: MPI cannot take a collective back. */
tr_status tr__mpi_wait(tr__mpi_group *group, int count, MPI_Request *requests, MPI_Status *statuses);

#endif
