/*
 * MPI, as the rest of the library sees it. mpi*.c stand behind it when MPI was found at configure time, else mpi_stub.c.
 */
#ifndef TR_COMM_BACKEND_MPI_H
#define TR_COMM_BACKEND_MPI_H

#include "comm/backend/backend.h"
#include "comm/join/job_place.h"

/* "Open MPI v4.1.4"; "no MPI" in a build without it. */
const char *tr__mpi_name(void);
/* Was this process started so that MPI finds its peers? Does not start MPI. */
bool tr__mpi_launched(void);
/* Starts MPI when need be and fills in the rank, the world size, the local rank, and a store that all ranks of the MPI job
 * share: rank 0 serves it, and its address and a secret travel by MPI's own broadcast. All ranks must call it. */
tr_status tr__mpi_place(int timeout_ms, tr__place *place);

#endif
