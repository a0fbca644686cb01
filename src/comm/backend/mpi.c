/*
 * The MPI backend: joining, waiting, leaving. Its calls are MPI's nonblocking ones, which this end tests until they are
 * done: so they make progress in the group's own thread while the program computes, and a deadline and a cancelled group
 * are noticed, which a blocking call would not.
 */
#include "comm/backend/mpi.h"

#include "base/clock.h"
#include "comm/backend/mpi_group.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    SPIN_NS = 20000,      /* the answer is often a few microseconds away */
    YIELD_NS = 1000000,   /* then others may have the core */
    SLEEP_PART = 64,      /* then it sleeps for this part of the time that it has waited, */
    SLEEP_MOST_NS = 500000,
};

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

static void pause_after(int64_t waited)
{
    if (waited < SPIN_NS) return;
    if (waited < YIELD_NS) {
        sched_yield();
        return;
    }
    int64_t nap = waited / SLEEP_PART;
    nanosleep(&(struct timespec){.tv_nsec = nap < SLEEP_MOST_NS ? nap : SLEEP_MOST_NS}, NULL);
}

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
    int64_t begin = tr__now_ns();
    for (int done = 0;;) {
        TR__TRY(test_all(count, requests, statuses, &done));
        if (done) return TR_OK;
        int64_t now = tr__now_ns();
        if (atomic_load(&g->cancelled)) return tr__fail(TR_CANCELLED, "it was given up");
        TR__TRY(tr__late_check(&g->late, now));
        pause_after(now - begin);
    }
}

/* ---- Joining ----------------------------------------------------------------------------------------------------- */

/* The ranks' numbers in the MPI job, read from their cards. */
static tr_status read_cards(tr__mpi_group *g, int *in_world)
{
    int size = g->member.world_size, *holder = malloc((size_t)g->library->size * sizeof *holder);
    if (!holder) return tr__fail(TR_NO_MEMORY, "group '%s': no memory for %d ranks", g->member.group, size);
    for (int i = 0; i < g->library->size; i++) holder[i] = -1;
    tr_status status = TR_OK;
    for (int rank = 0; rank < size && status == TR_OK; rank++) {
        tr__card card;
        int world = 0;
        status = tr__rendezvous_read(&g->meeting, rank, &card);
        if (status != TR_OK) break;
        int *number = &in_world[rank];
        if (sscanf(card.address, "mpi:%d/%d", number, &world) != 2 || *number < 0 || *number >= g->library->size)
            status = tr__fail(TR_MISMATCH, "group '%s': rank %d has not joined with the mpi backend", g->member.group,
                rank);
        else if (world != g->library->size || holder[*number] >= 0)
            status = tr__fail(TR_STATE, "group '%s': rank %d (process %d of %d in MPI) and rank %d (process %d of %d) are "
                "not of one MPI job; start all with one mpirun or srun --mpi=pmix", g->member.group, g->member.rank,
                g->library->rank, g->library->size, rank, *number, world);
        else
            holder[*number] = rank;
    }
    free(holder);
    return status;
}

/* A communicator of these ranks. Joins of several groups may be under way in several threads: the tag keeps them apart. */
static tr_status make_communicator(tr__mpi_group *g, const int *in_world)
{
    uint64_t hash = 0xcbf29ce484222325 ^ (uint64_t)g->meeting.generation;
    for (const char *c = g->member.group; *c; c++) hash = (hash ^ (unsigned char)*c) * 0x100000001b3;
    MPI_Group all, ranks;
    TR__MPI_TRY(MPI_Comm_group, g->library->world, &all);
    TR__MPI_TRY(MPI_Group_incl, all, g->member.world_size, in_world, &ranks);
    TR__MPI_TRY(MPI_Comm_create_group, g->library->world, ranks, (int)(hash >> 33) % 32768, &g->comm);
    TR__MPI_TRY(MPI_Group_free, &ranks);
    TR__MPI_TRY(MPI_Group_free, &all);
    TR__MPI_TRY(MPI_Comm_set_errhandler, g->comm, MPI_ERRORS_RETURN);
    return TR_OK;
}

/* The store says who is there, and names who is missing; MPI then meets without waiting. */
static tr_status meet(tr__mpi_group *g)
{
    tr__card mine;
    tr__card_here(&g->member, &mine);
    snprintf(mine.address, sizeof mine.address, "mpi:%d/%d", g->library->rank, g->library->size);
    strcpy(mine.tcp_address, "-");
    TR__TRY(tr__random_text(mine.cookie, sizeof mine.cookie));
    TR__TRY(tr__random_text(mine.tcp_cookie, sizeof mine.tcp_cookie));
    TR__TRY(tr__rendezvous_claim(&g->meeting, &g->member, &mine));
    TR__TRY(tr__rendezvous_publish(&g->meeting, &mine));
    int *in_world = malloc((size_t)g->member.world_size * sizeof *in_world);
    if (!in_world)
        return tr__fail(TR_NO_MEMORY, "group '%s': no memory for %d ranks", g->member.group, g->member.world_size);
    tr_status status = read_cards(g, in_world);
    if (status == TR_OK) status = make_communicator(g, in_world);
    free(in_world);
    return status;
}

static void give_up(tr__mpi_group *g, tr_status status)
{
    tr__error *why = tr__error_take();
    if (g->meeting.member) tr__rendezvous_withdraw(&g->meeting, status);
    free(g);
    tr__fail_stored(why);
    tr__error_unref(why);
}

static tr_status mpi_join(const tr__member *member, void **state)
{
    tr__mpi_group *g = calloc(1, sizeof *g);
    if (!g) return tr__fail(TR_NO_MEMORY, "group '%s': no memory", member->group);
    g->member = *member;
    g->comm = MPI_COMM_NULL;
    tr_status status = tr__mpi_start(&g->library);
    if (status == TR_OK && member->world_size > 1) status = meet(g);
    if (status != TR_OK) {
        give_up(g, status);
        return status;
    }
    tr__mpi_group_opened();
    *state = g;
    return TR_OK;
}

/* ---- Running and leaving ----------------------------------------------------------------------------------------- */

static tr_status break_group(tr__mpi_group *g, const tr_collective *c, uint64_t sequence, tr_status status)
{
    tr__signature call;
    char text[TR__CALL_TEXT];
    tr__signature_of(c, g->member.world_size, tr__kind_of(c->kind)->point_to_point ? 0 : sequence, &call);
    tr__fail_context(status, "group '%s': %s", g->member.group, tr__signature_text(&call, text));
    g->broken = tr__error_take();
    return status;
}

static tr_status mpi_run(void *state, const tr_collective *c, uint64_t sequence)
{
    tr__mpi_group *g = state;
    if (g->broken) {
        tr_status status = tr__fail_stored(g->broken);
        return tr__fail_context(status, "group '%s' is broken", g->member.group);
    }
    if (g->comm == MPI_COMM_NULL) {
        if (tr__kind_of(c->kind)->point_to_point)
            return tr__fail(TR_UNSUPPORTED, "%s: a group of one rank has no peer", tr__kind_name(c->kind));
        tr__collective_alone(c);
        return TR_OK;
    }
    tr__late_start(&g->late, &g->member, g->meeting.generation, sequence, c->timeout_ms);
    tr_status status = tr__mpi_run(g, c);
    return status == TR_OK ? TR_OK : break_group(g, c, sequence, status);
}

static void mpi_cancel(void *state, const char *why)
{
    (void)why; /* the group's own message has it */
    atomic_store(&((tr__mpi_group *)state)->cancelled, true);
}

static void mpi_leave(void *state)
{
    tr__mpi_group *g = state;
    tr__error *latest = tr__error_take();
    if (g->meeting.member) tr__rendezvous_withdraw(&g->meeting, TR_OK);
    /* A broken group's requests are still under way and hold on to the communicator and the scratch memory. */
    if (!g->broken) {
        if (g->comm != MPI_COMM_NULL) MPI_Comm_free(&g->comm);
        free(g->scratch);
    }
    tr__mpi_group_closed(g->broken);
    tr__error_unref(g->broken);
    free(g);
    tr__fail_stored(latest);
    tr__error_unref(latest);
}

const tr__backend tr__mpi_backend = {
    .name = "mpi",
    .join = mpi_join,
    .run = mpi_run,
    .cancel = mpi_cancel,
    .leave = mpi_leave,
};
