/*
 * Sends and receives over MPI: nonblocking, and tested all together. They have a communicator of their own, where nothing
 * else has tags; MPI puts messages and receives of one tag together in the order of the calls.
 */
#include "comm/backend/mpi_group.h"

#include <limits.h>
#include <stdlib.h>

/* ---- The requests under way -------------------------------------------------------------------------------------- */

static tr_status grow(void *array, size_t size, int64_t room)
{
    void *more = realloc(*(void **)array, (size_t)room * size);
    if (!more) return tr__fail(TR_NO_MEMORY, "no memory for %lld MPI requests", (long long)room);
    *(void **)array = more;
    return TR_OK;
}

static tr_status need_room(tr__mpi_group *g, int64_t pieces)
{
    int64_t room = g->request_count + pieces;
    if (room <= g->room) return TR_OK;
    if (room < 2 * (int64_t)g->room) room = 2 * (int64_t)g->room;
    if (room > INT_MAX) return tr__fail(TR_NO_MEMORY, "%lld MPI requests are more than MPI counts", (long long)room);
    TR__TRY(grow(&g->requests, sizeof *g->requests, room));
    TR__TRY(grow(&g->transfers, sizeof(void *), room));
    TR__TRY(grow(&g->statuses, sizeof *g->statuses, room));
    TR__TRY(grow(&g->done, sizeof *g->done, room));
    g->room = (int)room;
    return TR_OK;
}

/* Closes the gaps that ended requests have left. */
static void close_up(tr__mpi_group *g)
{
    int kept = 0;
    for (int i = 0; i < g->request_count; i++) {
        if (!g->transfers[i]) continue;
        g->requests[kept] = g->requests[i];
        g->transfers[kept++] = g->transfers[i];
    }
    g->request_count = kept;
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

static tr_status post(tr__mpi_group *g, tr__mpi_transfer *t, const tr_collective *c, int64_t begin, int count)
{
    size_t offset = (size_t)begin * tr_dtype_size(c->dtype);
    MPI_Datatype type = tr__mpi_type(c->dtype);
    MPI_Request *request = &g->requests[g->request_count];
    if (c->kind == TR_SEND)
        TR__MPI_TRY(MPI_Isend, (const char *)c->in + offset, count, type, c->peer, c->tag, g->beside, request);
    else
        TR__MPI_TRY(MPI_Irecv, (char *)c->out + offset, count, type, c->peer, c->tag, g->beside, request);
    g->transfers[g->request_count++] = t;
    t->left++;
    return TR_OK;
}

/* A message's last piece is shorter than the others, and may be empty: by that its end is known. */
tr_status tr__mpi_begin(tr__polled *p, tr__transfer *transfer)
{
    tr__mpi_group *g = (tr__mpi_group *)p;
    tr__mpi_transfer *t = (tr__mpi_transfer *)transfer;
    const tr_collective *c = &t->base.work->collective;
    int64_t most = TR__MPI_PIECE_BYTES / (int64_t)tr_dtype_size(c->dtype), begin = 0;
    if (c->tag > g->library->tag_most)
        return tr__fail(TR_UNSUPPORTED, "this MPI has tags to %d", g->library->tag_most);
    TR__TRY(need_room(g, c->count / most + 1));
    for (; begin <= c->count; begin += most) {
        int64_t left = c->count - begin;
        TR__TRY(post(g, t, c, begin, (int)(left < most ? left : most)));
    }
    return TR_OK;
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

/* Pieces are posted in their order. */
static bool is_last(const tr__mpi_group *g, int index, const tr__mpi_transfer *t)
{
    for (int i = index + 1; i < g->request_count; i++)
        if (g->transfers[i] == t) return false;
    return true;
}

static tr_status check_length(const tr_collective *c, int64_t bytes)
{
    int64_t expected = c->count * (int64_t)tr_dtype_size(c->dtype);
    if (c->kind == TR_SEND || bytes == expected) return TR_OK;
    return tr__fail(TR_MISMATCH, "rank %d has sent %lld bytes where %lld are expected", c->peer, (long long)bytes,
        (long long)expected);
}

static tr_status check_error(const tr_collective *c, int error)
{
    int class = MPI_SUCCESS;
    if (error == MPI_SUCCESS) return TR_OK;
    MPI_Error_class(error, &class);
    if (class == MPI_ERR_TRUNCATE)
        return tr__fail(TR_MISMATCH, "rank %d has sent more than the %lld elements of %s that are expected", c->peer,
            (long long)c->count, tr_dtype_name(c->dtype));
    return tr__fail_context(tr__mpi_fail(error, c->kind == TR_SEND ? "MPI_Isend" : "MPI_Irecv"), "rank %d", c->peer);
}

/* A request has ended. error counts when it is not MPI_SUCCESS. */
static void end_piece(tr__mpi_group *g, int index, const MPI_Status *end, int error)
{
    tr__mpi_transfer *t = g->transfers[index];
    if (!t) return; /* another piece of it has failed */
    const tr_collective *c = &t->base.work->collective;
    int bytes = 0;
    g->transfers[index] = NULL;
    t->left--;
    tr_status status = check_error(c, error);
    if (status == TR_OK && c->kind == TR_RECV) MPI_Get_count(end, MPI_BYTE, &bytes);
    t->bytes += bytes;
    bool ends = t->left == 0 || (c->kind == TR_RECV && bytes < TR__MPI_PIECE_BYTES && !is_last(g, index, t));
    if (status == TR_OK && ends) status = check_length(c, t->bytes);
    if (status != TR_OK || ends) tr__polled_end(&g->base, &t->base, status);
}

tr_status tr__mpi_advance(tr__polled *p)
{
    tr__mpi_group *g = (tr__mpi_group *)p;
    int count = 0;
    int error = MPI_Testsome(g->request_count, g->requests, &count, g->done, g->statuses);
    if (error != MPI_SUCCESS && error != MPI_ERR_IN_STATUS) return tr__mpi_fail(error, "MPI_Testsome");
    for (int i = 0; i < count; i++)
        end_piece(g, g->done[i], &g->statuses[i], error == MPI_SUCCESS ? MPI_SUCCESS : g->statuses[i].MPI_ERROR);
    if (count > 0) close_up(g);
    return TR_OK;
}

/* A receive that no message has met ends here and now: waiting for what was cancelled does not depend on other ranks. */
static bool take_back(MPI_Request *receive)
{
    int done = 0;
    return MPI_Cancel(receive) == MPI_SUCCESS && MPI_Test(receive, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done;
}

/* A send, or a message that is half here, MPI finishes some time or never. */
void tr__mpi_drop(tr__polled *p, tr__transfer *transfer)
{
    tr__mpi_group *g = (tr__mpi_group *)p;
    tr__mpi_transfer *t = (tr__mpi_transfer *)transfer;
    for (int i = 0; t->left && i < g->request_count; i++) {
        if (g->transfers[i] != t) continue;
        g->transfers[i] = NULL;
        t->left--;
        if (g->requests[i] == MPI_REQUEST_NULL) continue; /* it has ended beside the one that failed */
        if (t->base.work->collective.kind == TR_RECV && take_back(&g->requests[i])) continue;
        MPI_Request_free(&g->requests[i]);
        atomic_store(&g->stuck, true);
    }
}
