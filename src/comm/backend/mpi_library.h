/*
 * MPI in this process: started once, ended with the process, shared by all groups.
 */
#ifndef TR_COMM_BACKEND_MPI_LIBRARY_H
#define TR_COMM_BACKEND_MPI_LIBRARY_H

#include "base/object.h"

#include <mpi.h>

/* MPI_MIN and MPI_MAX may lose a NaN, and differ from rank to rank then. These are ours. */
typedef enum tr__mpi_own_op { TR__MPI_MIN_F32, TR__MPI_MAX_F32, TR__MPI_MIN_F64, TR__MPI_MAX_F64, TR__MPI_OWN_OPS } tr__mpi_own_op;

typedef struct tr__mpi_library {
    MPI_Comm world;          /* a duplicate of MPI_COMM_WORLD whose errors come back */
    int rank, size;          /* in the MPI job */
    int local_rank;          /* among the ranks of this host */
    bool one_host;
    int tag_most;
    MPI_Op own_ops[TR__MPI_OWN_OPS];
} tr__mpi_library;

/* Starts MPI, unless that was done. Blocks until all ranks of the MPI job do it. */
tr_status tr__mpi_start(const tr__mpi_library **library);

/* A failure with MPI's text. what: the MPI function. */
tr_status tr__mpi_fail(int error, const char *what);
#define TR__MPI_TRY(function, ...)                                                  \
    do {                                                                            \
        int tr__error_code = function(__VA_ARGS__);                                 \
        if (tr__error_code != MPI_SUCCESS) return tr__mpi_fail(tr__error_code, #function); \
    } while (0)

/* Groups that are joined, and whether one has given up what MPI goes on with, or a rank that did not come in time: MPI is
 * ended in order only when none is left and none has. A rank that ends without that is one that died, to mpirun. */
void tr__mpi_count_groups(int more, bool alone);

#endif
