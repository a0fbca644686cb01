/*
 * The MPI backend: joining, waiting, leaving. Its calls are MPI's nonblocking ones, which this end tests until they are
 * done: so they make progress in the group's own thread while the program computes, and a deadline and a broken group are
 * noticed, which a blocking call would not.
 */
#include "comm/backend/mpi.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/memory.h"
#include "comm/backend/mpi_group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

static tr_status test_all(int count, MPI_Request *requests, MPI_Status *statuses, int *done)
{
    int error = MPI_Testall(count, requests, done, statuses);
    for (int i = 0; error == MPI_ERR_IN_STATUS && i < count; i++)
        if (statuses[i].MPI_ERROR != MPI_SUCCESS && statuses[i].MPI_ERROR != MPI_ERR_PENDING)
            error = statuses[i].MPI_ERROR;
    return error == MPI_SUCCESS ? TR_OK : tr__mpi_fail(error, "the transfer");
}

tr_status tr__mpi_wait(tr__mpi_group *g, int count, MPI_Request *requests, MPI_Status *statuses)
{
    int64_t began = tr__now_ns();
    for (int done = 0;;) {
        TR__TRY(test_all(count, requests, statuses, &done));
        if (done) return TR_OK;
        tr_status status = tr__polled_rest(&g->base, began);
        if (status == TR_OK) continue;
        atomic_store(&g->stuck, true);
        return status;
    }
}

/* ---- Joining ----------------------------------------------------------------------------------------------------- */

/* The number that a rank has in the MPI job, from its record; holder: [size of the job], who has which, -1 for nobody. */
static tr_status read_number(const tr__mpi_group *g, int rank, const tr__endpoint_record *record, int *holder, int *number)
{
    const tr__mpi_library *l = g->library;
    const char *group = g->base.member.group;
    int size = 0;
    if (sscanf(record->address, "mpi:%d/%d", number, &size) != 2 || *number < 0 || (size == l->size && *number >= size))
        return tr__fail(TR_MISMATCH, "group '%s': rank %d has not joined with the mpi backend", group, rank);
    if (size != l->size || holder[*number] >= 0)
        return tr__fail(TR_STATE, "group '%s': rank %d (process %d of %d in MPI) and rank %d (process %d of %d) are "
            "not of one MPI job; start all with one mpirun or srun --mpi=pmix", group, g->base.member.rank, l->rank,
            l->size, rank, *number, size);
    holder[*number] = rank;
    return TR_OK;
}

static tr_status read_numbers(const tr__mpi_group *g, const tr__endpoint_record *records, int *in_world)
{
    int ranks = g->base.member.world_size;
    TR__FREED int *holder = tr__zeroed((size_t)g->library->size, sizeof *holder);
    if (!holder) return tr__fail(TR_NO_MEMORY, "group '%s': no memory for %d ranks", g->base.member.group, ranks);
    for (int i = 0; i < g->library->size; i++) holder[i] = -1;
    for (int rank = 0; rank < ranks; rank++) TR__TRY(read_number(g, rank, &records[rank], holder, &in_world[rank]));
    return TR_OK;
}

/* Communicators of these ranks. Joins of several groups may be under way in several threads: the tag keeps them apart. */
static tr_status make_communicators(tr__mpi_group *g, const int *in_world)
{
    const char *name = g->base.member.group;
    uint64_t hash = tr__hash(TR__HASH_BEGIN ^ (uint64_t)g->base.meeting.generation, name, strlen(name));
    MPI_Group all, ranks;
    TR__MPI_TRY(MPI_Comm_group, g->library->world, &all);
    TR__MPI_TRY(MPI_Group_incl, all, g->base.member.world_size, in_world, &ranks);
    TR__MPI_TRY(MPI_Comm_create_group, g->library->world, ranks, (int)(hash >> 33) % 32768, &g->comm);
    TR__MPI_TRY(MPI_Group_free, &ranks);
    TR__MPI_TRY(MPI_Group_free, &all);
    TR__MPI_TRY(MPI_Comm_set_errhandler, g->comm, MPI_ERRORS_RETURN);
    TR__MPI_TRY(MPI_Comm_dup, g->comm, &g->beside);
    TR__MPI_TRY(MPI_Comm_set_errhandler, g->beside, MPI_ERRORS_RETURN);
    return TR_OK;
}

/* The store says who is there, and names who is missing; MPI then meets without waiting. */
static tr_status meet(tr__mpi_group *g)
{
    char address[40];
    int ranks = g->base.member.world_size;
    snprintf(address, sizeof address, "mpi:%d/%d", g->library->rank, g->library->size);
    TR__FREED int *in_world = tr__zeroed((size_t)ranks, sizeof *in_world);
    TR__FREED tr__endpoint_record *records = NULL;
    if (!in_world) return tr__fail(TR_NO_MEMORY, "group '%s': no memory for %d ranks", g->base.member.group, ranks);
    TR__TRY(tr__polled_meet(&g->base, address, &records));
    TR__TRY(read_numbers(g, records, in_world));
    return make_communicators(g, in_world);
}

static tr_status join(tr__polled *p)
{
    tr__mpi_group *g = (tr__mpi_group *)p;
    g->comm = g->beside = MPI_COMM_NULL;
    tr__mpi_count_groups(1, false);
    TR__TRY(tr__mpi_start(&g->library));
    return p->member.world_size > 1 ? meet(g) : TR_OK;
}

/* A rank that did not come in time may not come to the end of MPI either. */
static void close_group(tr__polled *p)
{
    tr__mpi_group *g = (tr__mpi_group *)p;
    const tr__error *why = atomic_load(&p->broken);
    bool stuck = atomic_load(&g->stuck), late = why && why->status == TR_TIMEOUT;
    if (!stuck) {
        if (g->comm != MPI_COMM_NULL) MPI_Comm_free(&g->comm);
        if (g->beside != MPI_COMM_NULL) MPI_Comm_free(&g->beside);
        free(g->scratch.at);
    }
    free(g->requests);
    free(g->transfers);
    free(g->statuses);
    free(g->done);
    tr__mpi_count_groups(-1, stuck || late);
}

/* ---- The backend ------------------------------------------------------------------------------------------------- */

static const tr__polled_type type = {
    .state_bytes = sizeof(tr__mpi_group),
    .transfer_bytes = sizeof(tr__mpi_transfer),
    .join = join,
    .run = tr__mpi_run,
    .begin = tr__mpi_begin,
    .advance = tr__mpi_advance,
    .drop = tr__mpi_drop,
    .close = close_group,
};

const tr__backend tr__mpi_backend = {.name = "mpi", .polled = &type, TR__POLLED_FUNCTIONS};
