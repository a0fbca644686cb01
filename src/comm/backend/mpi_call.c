/*
 * Collectives as MPI's nonblocking calls.
 *
 * MPI counts in int, so long buffers go in pieces. Sums that Trireme folds in a wider type than they have (f16 and bf16 in
 * f32, averages of i32 in i64 and of u8 in i32) are widened piece by piece, reduced by MPI in that type, and rounded once.
 * The order in which MPI folds is its own.
 */
#include "base/memory.h"
#include "comm/algo/wide_type.h"
#include "comm/backend/mpi_group.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { STAGE_ELEMENTS = 1 << 20 }; /* of all ranks together, in one piece that is widened */

typedef struct call {
    tr__mpi_group *g;
    const tr_collective *c;
    MPI_Comm comm;
    int rank, ranks;
    size_t size; /* bytes of an element */
    MPI_Datatype type;
} call;

MPI_Datatype tr__mpi_type(tr_dtype dtype)
{
    switch (dtype) {
    case TR_F32: return MPI_FLOAT;
    case TR_F64: return MPI_DOUBLE;
    case TR_F16:
    case TR_BF16: return MPI_UINT16_T; /* only moved */
    case TR_I64: return MPI_INT64_T;
    case TR_I32: return MPI_INT32_T;
    default: return MPI_UINT8_T;
    }
}

/* Waits for the one request that an MPI function has just started. */
static tr_status finish(const call *k, int error, const char *what, MPI_Request *request)
{
    if (error != MPI_SUCCESS) return tr__mpi_fail(error, what);
    MPI_Status status;
    return tr__mpi_wait(k->g, 1, request, &status);
}
#define RUN(k, function, ...)                                                                          \
    ({                                                                                                 \
        MPI_Request request_ = MPI_REQUEST_NULL;                                                       \
        int error_ = function(__VA_ARGS__, (k)->comm, &request_);                                      \
        finish(k, error_, #function, &request_);                                                       \
    })

static const char *at(const call *k, const void *base, int64_t element)
{
    return (const char *)base + (size_t)element * k->size;
}

/* ---- Reductions -------------------------------------------------------------------------------------------------- */

static MPI_Op op_of(const call *k, tr_dtype wide)
{
    const MPI_Op *own = k->g->library->own_ops;
    bool is_bool = wide == TR_BOOL;
    switch (k->c->op) {
    case TR_MIN:
        if (is_bool) return MPI_BAND;
        return wide == TR_F32 ? own[TR__MPI_MIN_F32] : wide == TR_F64 ? own[TR__MPI_MIN_F64] : MPI_MIN;
    case TR_MAX:
        if (is_bool) return MPI_BOR;
        return wide == TR_F32 ? own[TR__MPI_MAX_F32] : wide == TR_F64 ? own[TR__MPI_MAX_F64] : MPI_MAX;
    case TR_PROD: return is_bool ? MPI_BAND : MPI_PROD;
    case TR_BAND: return MPI_BAND;
    case TR_BOR: return MPI_BOR;
    case TR_BXOR: return MPI_BXOR;
    default: return is_bool ? MPI_BOR : MPI_SUM;
    }
}

/* The MPI call on a piece that lies together. in may be MPI_IN_PLACE; out is NULL where nothing is got. */
static tr_status reduce_piece(const call *k, const void *in, void *out, int count, tr_dtype wide)
{
    MPI_Datatype type = tr__mpi_type(wide);
    MPI_Op op = op_of(k, wide);
    switch (k->c->kind) {
    case TR_ALL_REDUCE: return RUN(k, MPI_Iallreduce, in, out, count, type, op);
    case TR_REDUCE: return RUN(k, MPI_Ireduce, in, out, count, type, op, k->c->root);
    default: return RUN(k, MPI_Ireduce_scatter_block, in, out, count, type, op);
    }
}

/* [begin, begin + count) of every block, through memory in between: in the wide type, blocks side by side. */
static tr_status reduce_staged(const call *k, int64_t begin, int64_t count, tr_dtype wide)
{
    const tr_collective *c = k->c;
    int blocks = c->kind == TR_REDUCE_SCATTER ? k->ranks : 1;
    size_t bytes = (size_t)count * tr_dtype_size(wide);
    TR__TRY(tr__memory_need(&k->g->scratch, bytes * (size_t)(blocks + 1)));
    char *in = k->g->scratch.at, *out = in + bytes * (size_t)blocks;
    for (int b = 0; b < blocks; b++)
        tr__widen(c->dtype, c->op, at(k, c->in, b * c->count + begin), in + bytes * (size_t)b, count);
    bool gets = tr__collective_gets(c, k->rank);
    TR__TRY(reduce_piece(k, in, gets ? out : NULL, (int)count, wide));
    if (gets) tr__narrow(c->dtype, c->op, k->ranks, out, (void *)at(k, c->out, begin), count);
    return TR_OK;
}

static tr_status reduce_directly(const call *k, int64_t begin, int64_t count)
{
    const tr_collective *c = k->c;
    const void *in = at(k, c->in, begin);
    bool gets = tr__collective_gets(c, k->rank);
    void *out = gets ? (void *)at(k, c->out, begin) : NULL;
    TR__TRY(reduce_piece(k, in == out ? MPI_IN_PLACE : in, out, (int)count, c->dtype));
    if (gets) tr__narrow(c->dtype, c->op, k->ranks, out, out, count);
    return TR_OK;
}

/* Blocks of a reduce_scatter must lie together, so a long one, and one whose result lies in its input, is staged. */
static tr_status reduce(const call *k)
{
    const tr_collective *c = k->c;
    tr_dtype wide = tr__wide_type(c->dtype, c->op);
    int blocks = c->kind == TR_REDUCE_SCATTER ? k->ranks : 1;
    bool inside = c->out && c->out >= c->in && (const char *)c->out < at(k, c->in, blocks * c->count);
    bool staged = wide != c->dtype || (blocks > 1 && (inside || c->count > TR__MPI_PIECE_BYTES / 8 / blocks));
    int64_t most = staged ? STAGE_ELEMENTS / blocks : TR__MPI_PIECE_BYTES / (int64_t)k->size;
    if (most < 1) most = 1;
    for (int64_t begin = 0; begin < c->count; begin += most) {
        int64_t count = c->count - begin < most ? c->count - begin : most;
        TR__TRY(staged ? reduce_staged(k, begin, count, wide) : reduce_directly(k, begin, count));
    }
    return TR_OK;
}

/* ---- Many transfers at once -------------------------------------------------------------------------------------- */

/* Requests that are posted together, each up to TR__MPI_PIECE_BYTES; requests NULL: they are only counted. */
typedef struct batch {
    MPI_Request *requests;
    MPI_Status *statuses;
    int64_t count;
} batch;

/* Posts a transfer of count elements at buffer with peer, in pieces, which arrive in order. */
static tr_status post(const call *k, bool send, const void *buffer, int64_t count, int peer, batch *b)
{
    int64_t most = TR__MPI_PIECE_BYTES / (int64_t)k->size;
    for (int64_t begin = 0; begin < count || (begin == 0 && count == 0); begin += most) {
        int n = (int)(count - begin < most ? count - begin : most);
        MPI_Request *request = b->requests ? &b->requests[b->count] : NULL;
        void *place = (void *)at(k, buffer, begin);
        b->count++;
        if (request && send)
            TR__MPI_TRY(MPI_Isend, place, n, k->type, peer, 0, k->comm, request);
        else if (request)
            TR__MPI_TRY(MPI_Irecv, place, n, k->type, peer, 0, k->comm, request);
    }
    return TR_OK;
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

static bool concerns(const call *k, int peer, bool send)
{
    const tr_collective *c = k->c;
    int giver = send ? k->rank : peer, getter = send ? peer : k->rank;
    return peer != k->rank && tr__collective_gives(c, giver) && tr__collective_gets(c, getter);
}

static tr_status post_blocks(const call *k, batch *b)
{
    const tr_collective *c = k->c;
    for (int step = 1; step < k->ranks; step++) {
        int from = (k->rank - step + k->ranks) % k->ranks, to = (k->rank + step) % k->ranks;
        if (concerns(k, from, false)) {
            tr__range r = tr__collective_out(c, from);
            TR__TRY(post(k, false, at(k, c->out, r.begin), tr__length(r), from, b));
        }
        if (concerns(k, to, true)) {
            tr__range r = tr__collective_in(c, to);
            TR__TRY(post(k, true, at(k, c->in, r.begin), tr__length(r), to, b));
        }
    }
    return TR_OK;
}

/* Every giver sends to every getter: for the _V kinds, whose places may be beyond an int, and for long blocks. */
static tr_status move_blocks(const call *k)
{
    batch counted = {0};
    TR__TRY(post_blocks(k, &counted));
    size_t room = (size_t)counted.count + 1;
    TR__FREED MPI_Request *requests = room < INT_MAX ? tr__zeroed(room, sizeof *requests + sizeof(MPI_Status)) : NULL;
    if (!requests) return tr__fail(TR_NO_MEMORY, "no memory for %zu MPI requests", room);
    batch b = {requests, (MPI_Status *)(void *)(requests + room), 0};
    tr__collective_keep_own(k->c, k->rank, false);
    TR__TRY(post_blocks(k, &b));
    return tr__mpi_wait(k->g, (int)b.count, b.requests, b.statuses);
}

/* Equal blocks, as MPI has them. */
static tr_status move_equal(const call *k)
{
    const tr_collective *c = k->c;
    int n = (int)c->count;
    const void *own = c->out ? at(k, c->out, c->count * k->rank) : NULL;
    const void *in = c->in && c->in == own ? MPI_IN_PLACE : c->in;
    switch (c->kind) {
    case TR_ALL_GATHER: return RUN(k, MPI_Iallgather, in, n, k->type, c->out, n, k->type);
    case TR_GATHER: return RUN(k, MPI_Igather, in, n, k->type, c->out, n, k->type, c->root);
    case TR_SCATTER: {
        bool inside = c->in && c->out == at(k, c->in, c->count * k->rank);
        return RUN(k, MPI_Iscatter, c->in, n, k->type, inside ? MPI_IN_PLACE : c->out, n, k->type, c->root);
    }
    default:
        return RUN(k, MPI_Ialltoall, c->in == c->out ? MPI_IN_PLACE : c->in, n, k->type, c->out, n, k->type);
    }
}

static tr_status broadcast(const call *k)
{
    const tr_collective *c = k->c;
    bool root = k->rank == c->root;
    int64_t most = TR__MPI_PIECE_BYTES / (int64_t)k->size;
    for (int64_t begin = 0; begin < c->count; begin += most) {
        int64_t count = c->count - begin < most ? c->count - begin : most;
        void *buffer = (void *)at(k, root ? c->in : c->out, begin);
        TR__TRY(RUN(k, MPI_Ibcast, buffer, (int)count, k->type, c->root));
    }
    if (root && c->out && c->out != c->in) memcpy(c->out, c->in, tr__collective_bytes(c));
    return TR_OK;
}

/* An all_to_all in place of blocks that are too long for MPI's own would send what was just received. */
static tr_status move_from_copy(const call *k)
{
    size_t bytes = tr__collective_bytes(k->c) * (size_t)k->ranks;
    TR__TRY(tr__memory_need(&k->g->scratch, bytes));
    memcpy(k->g->scratch.at, k->c->in, bytes);
    tr_collective copied = *k->c;
    copied.in = k->g->scratch.at;
    call with_copy = *k;
    with_copy.c = &copied;
    return move_blocks(&with_copy);
}

/* ---- All --------------------------------------------------------------------------------------------------------- */

tr_status tr__mpi_run(tr__polled *p, const tr_collective *c)
{
    tr__mpi_group *g = (tr__mpi_group *)p;
    const tr__kind *kind = tr__kind_of(c->kind);
    call k = {.g = g, .c = c, .comm = g->comm, .rank = p->member.rank, .ranks = p->member.world_size,
        .size = tr_dtype_size(c->dtype), .type = tr__mpi_type(c->dtype)};
    if (c->kind == TR_BARRIER) {
        MPI_Request request = MPI_REQUEST_NULL;
        return finish(&k, MPI_Ibarrier(k.comm, &request), "MPI_Ibarrier", &request);
    }
    if (kind->reduces) return reduce(&k);
    if (c->kind == TR_BROADCAST) return broadcast(&k);
    if (kind->variable) return move_blocks(&k);
    if (c->count <= TR__MPI_PIECE_BYTES / (int64_t)k.size / k.ranks) return move_equal(&k);
    return c->kind == TR_ALL_TO_ALL && c->in == c->out ? move_from_copy(&k) : move_blocks(&k);
}
