/*
 * Where this process stands in its job, by its environment: the variables of whichever launcher started it, or what MPI
 * says when the library was built with it.
 */
#ifndef TR_COMM_GROUP_ENVIRONMENT_H
#define TR_COMM_GROUP_ENVIRONMENT_H

#include "comm/join/job_place.h"

/* Fills in what the environment says; a world of one when it says nothing. by_mpi: as MPI has it, whatever the
 * variables are. */
tr_status tr__environment_place(bool by_mpi, int timeout_ms, tr__place *place);

/* The same for a process that was given its rank and the world size, which stand in place: where the ranks meet, and what else is
 * said. A rank of 0 may be one that was not given: the environment's counts. What MPI says must agree. */
tr_status tr__environment_meeting(bool by_mpi, int timeout_ms, tr__place *place);

#endif
