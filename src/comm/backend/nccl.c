/*
 * The NCCL backend: collectives between GPUs, each rank on its own. A communicator that does not block and a stream of its
 * own: whoever waits polls the stream and NCCL's asynchronous error, so timeouts, cancelling and dead peers end a wait, by
 * ncclCommAbort. Buffers in host memory pass through the GPU's.
 */
#include "comm/backend/nccl.h"

#include "base/clock.h"
#include "comm/backend/nccl_group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

tr_status tr__nccl_check(const tr__nccl_group *g, ncclComm_t comm, bool *under_way)
{
    ncclResult_t state = ncclSuccess;
    TR__NCCL_TRY(g->l, comm, ncclCommGetAsyncError, comm, &state);
    *under_way = state == ncclInProgress;
    return state == ncclSuccess || state == ncclInProgress ? TR_OK : tr__nccl_fail(g->l, state, comm, "NCCL");
}

/* Until NCCL has taken what it was given. */
static tr_status wait_for_comm(tr__nccl_group *g, ncclComm_t comm)
{
    int64_t began = tr__now_ns();
    for (bool under_way = true;;) {
        TR__TRY(tr__nccl_check(g, comm, &under_way));
        if (!under_way) return TR_OK;
        TR__TRY(tr__polled_rest(&g->base, began));
    }
}

static tr_status wait_for_stream(tr__nccl_group *g)
{
    int64_t began = tr__now_ns();
    TR__CUDA_TRY(g->l, cudaEventRecord, g->event, g->stream);
    for (;;) {
        bool under_way;
        cudaError_t state = g->l->cudaEventQuery(g->event);
        if (state == cudaSuccess) return TR_OK;
        if (state != cudaErrorNotReady) return tr__cuda_fail(g->l, state, "the GPU's work");
        TR__TRY(tr__nccl_check(g, g->comm, &under_way));
        TR__TRY(tr__polled_rest(&g->base, began));
    }
}

/* ---- Types ------------------------------------------------------------------------------------------------------- */

ncclDataType_t tr__nccl_type(tr_dtype dtype)
{
    static const ncclDataType_t types[TR_DTYPE_COUNT] = {
        [TR_F32] = ncclFloat32, [TR_F64] = ncclFloat64, [TR_F16] = ncclFloat16, [TR_BF16] = ncclBfloat16,
        [TR_I64] = ncclInt64, [TR_I32] = ncclInt32, [TR_U8] = ncclUint8, [TR_BOOL] = ncclUint8,
    };
    return types[dtype];
}

/* NCCL has no bitwise operations; of bool, all but BXOR are minimum or maximum. */
static bool op_of(const tr_collective *c, ncclRedOp_t *op)
{
    static const ncclRedOp_t ops[] = {[TR_SUM] = ncclSum, [TR_AVG] = ncclAvg, [TR_MIN] = ncclMin, [TR_MAX] = ncclMax,
        [TR_PROD] = ncclProd};
    bool is_bool = c->dtype == TR_BOOL;
    if (c->op == TR_BXOR || (c->op > TR_PROD && !is_bool)) return false;
    if (is_bool)
        *op = c->op == TR_SUM || c->op == TR_MAX || c->op == TR_BOR ? ncclMax : ncclMin;
    else
        *op = ops[c->op];
    return true;
}

/* ---- Collectives ------------------------------------------------------------------------------------------------- */

/* Blocks go from each giver to each getter, in one group of sends and receives. */
static tr_status post_blocks(tr__nccl_group *g, const tr_collective *c)
{
    size_t size = tr_dtype_size(c->dtype);
    ncclDataType_t type = tr__nccl_type(c->dtype);
    int self = g->base.member.rank;
    for (int peer = 0; peer < g->base.member.world_size; peer++) {
        if (tr__collective_gives(c, self) && tr__collective_gets(c, peer)) {
            tr__range r = tr__collective_in(c, peer);
            TR__NCCL_TRY(g->l, g->comm, ncclSend, (const char *)c->in + (size_t)r.begin * size,
                (size_t)(r.end - r.begin), type, peer, g->comm, g->stream);
        }
        if (tr__collective_gives(c, peer) && tr__collective_gets(c, self)) {
            tr__range r = tr__collective_out(c, peer);
            TR__NCCL_TRY(g->l, g->comm, ncclRecv, (char *)c->out + (size_t)r.begin * size, (size_t)(r.end - r.begin),
                type, peer, g->comm, g->stream);
        }
    }
    return TR_OK;
}

static tr_status move_blocks(tr__nccl_group *g, const tr_collective *c)
{
    TR__NCCL_TRY(g->l, g->comm, ncclGroupStart);
    tr_status status = post_blocks(g, c);
    tr__error *why = status == TR_OK ? NULL : tr__error_take();
    ncclResult_t ended = g->l->ncclGroupEnd();
    if (why) {
        tr__fail_stored(why);
        tr__error_unref(why);
        return status;
    }
    return ended == ncclSuccess || ended == ncclInProgress ? TR_OK
                                                           : tr__nccl_fail(g->l, ended, g->comm, "ncclGroupEnd");
}

/* Buffers are on the GPU. */
static tr_status start(tr__nccl_group *g, const tr_collective *c, ncclRedOp_t op)
{
    const tr__nccl_library *l = g->l;
    size_t n = (size_t)c->count;
    ncclDataType_t type = tr__nccl_type(c->dtype);
    switch (c->kind) {
    case TR_ALL_REDUCE:
        TR__NCCL_TRY(l, g->comm, ncclAllReduce, c->in, c->out, n, type, op, g->comm, g->stream);
        return TR_OK;
    case TR_REDUCE:
        TR__NCCL_TRY(l, g->comm, ncclReduce, c->in, c->out, n, type, op, c->root, g->comm, g->stream);
        return TR_OK;
    case TR_BROADCAST:
        TR__NCCL_TRY(l, g->comm, ncclBroadcast, c->in ? c->in : c->out, c->out, n, type, c->root, g->comm, g->stream);
        return TR_OK;
    case TR_ALL_GATHER:
        TR__NCCL_TRY(l, g->comm, ncclAllGather, c->in, c->out, n, type, g->comm, g->stream);
        return TR_OK;
    case TR_REDUCE_SCATTER:
        TR__NCCL_TRY(l, g->comm, ncclReduceScatter, c->in, c->out, n, type, op, g->comm, g->stream);
        return TR_OK;
    default: return move_blocks(g, c);
    }
}

/* ---- Host memory ------------------------------------------------------------------------------------------------- */

static bool on_gpu(const tr__nccl_group *g, const void *buffer)
{
    struct cudaPointerAttributes a;
    return g->l->cudaPointerGetAttributes(&a, buffer) == cudaSuccess &&
           (a.type == cudaMemoryTypeDevice || a.type == cudaMemoryTypeManaged);
}

static size_t extent(const tr__nccl_group *g, const tr_collective *c, tr__range (*block)(const tr_collective *, int))
{
    int64_t end = 0;
    for (int rank = 0; rank < g->base.member.world_size; rank++)
        if (block(c, rank).end > end) end = block(c, rank).end;
    return (size_t)end * tr_dtype_size(c->dtype);
}

static tr_status need_staging(const tr__nccl_group *g, tr__nccl_staging *staging, size_t bytes)
{
    enum { MOST = sizeof staging->blocks / sizeof *staging->blocks };
    if (staging->bytes >= bytes) return TR_OK;
    if (bytes < 2 * staging->bytes) bytes = 2 * staging->bytes;
    if (staging->count == MOST) return tr__fail(TR_NO_MEMORY, "no memory for %zu bytes on the GPU", bytes);
    TR__CUDA_TRY(g->l, cudaMalloc, &staging->blocks[staging->count], bytes);
    staging->count++;
    staging->bytes = bytes;
    return TR_OK;
}

tr_status tr__nccl_stage(const tr__nccl_group *g, tr__nccl_staging *staging, cudaStream_t stream, const void **buffer,
    size_t bytes, bool fill)
{
    if (!bytes || on_gpu(g, *buffer)) return TR_OK;
    TR__TRY(need_staging(g, staging, bytes));
    void *copy = staging->blocks[staging->count - 1];
    if (fill) TR__CUDA_TRY(g->l, cudaMemcpyAsync, copy, *buffer, bytes, cudaMemcpyHostToDevice, stream);
    *buffer = copy;
    return TR_OK;
}

void tr__nccl_unstage(const tr__nccl_group *g, tr__nccl_staging *staging)
{
    for (int i = 0; i < staging->count; i++) g->l->cudaFree(staging->blocks[i]);
}

/* Outputs are copied to the GPU as well: what lies between their blocks must come back as it was. */
static tr_status run_on_gpu(tr__nccl_group *g, const tr_collective *c, ncclRedOp_t op)
{
    tr_collective d = *c;
    int self = g->base.member.rank;
    size_t in = tr__collective_gives(c, self) ? extent(g, c, tr__collective_in) : 0;
    size_t out = tr__collective_gets(c, self) ? extent(g, c, tr__collective_out) : 0;
    const void *to = c->out;
    TR__TRY(tr__nccl_stage(g, &g->staging[0], g->stream, &d.in, in, true));
    TR__TRY(tr__nccl_stage(g, &g->staging[1], g->stream, &to, out, true));
    d.out = (void *)to;
    TR__TRY(start(g, &d, op));
    TR__TRY(wait_for_comm(g, g->comm));
    if (d.out != c->out)
        TR__CUDA_TRY(g->l, cudaMemcpyAsync, c->out, d.out, out, cudaMemcpyDeviceToHost, g->stream);
    return wait_for_stream(g);
}

static tr_status start_and_wait(tr__nccl_group *g, const tr_collective *c)
{
    ncclRedOp_t op = ncclSum;
    if (tr__kind_of(c->kind)->reduces && !op_of(c, &op))
        return tr__fail(TR_UNSUPPORTED, "NCCL has no bitwise operations; there are sum, avg, min, max and prod");
    TR__CUDA_TRY(g->l, cudaSetDevice, g->device);
    /* After what the caller's stream (the default one) was given before. */
    TR__CUDA_TRY(g->l, cudaEventRecord, g->event, NULL);
    TR__CUDA_TRY(g->l, cudaStreamWaitEvent, g->stream, g->event, 0);
    uint8_t here = 1;
    tr_collective barrier = {.kind = TR_ALL_REDUCE, .in = &here, .out = &here, .count = 1, .dtype = TR_U8};
    return run_on_gpu(g, c->kind == TR_BARRIER ? &barrier : c, op);
}

static tr_status run(tr__polled *p, const tr_collective *c)
{
    tr__nccl_group *g = (tr__nccl_group *)p;
    tr_status status = start_and_wait(g, c);
    if (status == TR_OK || status == TR_UNSUPPORTED) return status;
    g->l->ncclCommAbort(g->comm); /* ends the kernels that wait on the GPU */
    g->comm = NULL;
    return status;
}

/* ---- Joining ----------------------------------------------------------------------------------------------------- */

/* The ranks of this host take its GPUs in their order. */
static tr_status find_device(tr__nccl_group *g, const tr__endpoint_record *records, int devices)
{
    const tr__endpoint_record *mine = &records[g->base.member.rank];
    for (int rank = 0; rank < g->base.member.world_size; rank++) {
        if (strcmp(records[rank].address, "nccl") != 0)
            return tr__fail(TR_MISMATCH, "rank %d has not joined with the nccl backend", rank);
        g->device += rank < g->base.member.rank && strcmp(records[rank].machine, mine->machine) == 0;
    }
    if (g->device >= devices)
        return tr__fail(TR_DEVICE, "nccl: each rank needs a GPU of its own: rank %d is number %d on host %s, which has "
            "%d; start no more ranks there than GPUs, or " TR__NCCL_INSTEAD, g->base.member.rank, g->device + 1,
            mine->host, devices);
    return TR_OK;
}

/* Rank 0 makes the id, and the store carries it. */
static tr_status share_id(tr__nccl_group *g, ncclUniqueId *id)
{
    char key[200];
    snprintf(key, sizeof key, "group/%s/nccl/%ld", g->base.member.group, g->base.meeting.generation);
    if (g->base.member.rank == 0) {
        TR__NCCL_TRY(g->l, NULL, ncclGetUniqueId, id);
        return tr_store_set(g->base.member.store, key, id, sizeof *id);
    }
    void *value;
    size_t bytes;
    TR__TRY(tr_store_get(g->base.member.store, key, &value, &bytes));
    if (bytes == sizeof *id) memcpy(id, value, sizeof *id);
    free(value);
    return bytes == sizeof *id ? TR_OK : tr__fail(TR_FORMAT, "nccl: the id has %zu bytes, expected %zu", bytes,
        sizeof *id);
}

static tr_status meet(tr__nccl_group *g)
{
    int devices = 0;
    TR__TRY(tr__nccl_count_devices(g->l, &devices)); /* before the others are told that this rank is here */
    tr__endpoint_record *records = NULL;
    tr_status status = tr__polled_meet(&g->base, "nccl", &records);
    if (status == TR_OK) status = find_device(g, records, devices);
    free(records);
    if (status != TR_OK) return status;
    TR__TRY(tr__nccl_lanes_new(g));
    TR__CUDA_TRY(g->l, cudaSetDevice, g->device);
    TR__CUDA_TRY(g->l, cudaStreamCreateWithFlags, &g->stream, cudaStreamNonBlocking);
    TR__CUDA_TRY(g->l, cudaEventCreateWithFlags, &g->event, cudaEventDisableTiming);
    ncclUniqueId id;
    TR__TRY(share_id(g, &id));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const tr__member *m = &g->base.member;
    tr__late_start(&g->base.late, m, g->base.meeting.generation, 0, m->timeout_ms);
    TR__NCCL_TRY(g->l, NULL, ncclCommInitRankConfig, &g->comm, m->world_size, id, m->rank, &config);
    return wait_for_comm(g, g->comm);
}

static tr_status join(tr__polled *p)
{
    tr__nccl_group *g = (tr__nccl_group *)p;
    if (p->member.world_size == 1) return TR_OK;
    tr_status status = tr__nccl_open(&g->l);
    if (status == TR_OK) status = meet(g);
    return status == TR_OK ? TR_OK : tr__fail_context(status, "group '%s'", p->member.group);
}

/* ---- Leaving ----------------------------------------------------------------------------------------------------- */

/* The communicator number i of the group and its lanes. */
static ncclComm_t *comm_of(tr__nccl_group *g, int i)
{
    return i == 0 ? &g->comm : &g->lanes[i - 1].comm;
}

/* In order: all are told before any is waited for, as the other ranks may end theirs in another sequence. */
static tr_status finalize(tr__nccl_group *g, int comms)
{
    const tr__member *m = &g->base.member;
    tr__late_start(&g->base.late, m, g->base.meeting.generation, 0, m->timeout_ms);
    for (int i = 0; i < comms; i++)
        if (*comm_of(g, i)) TR__NCCL_TRY(g->l, *comm_of(g, i), ncclCommFinalize, *comm_of(g, i));
    for (int i = 0; i < comms; i++)
        if (*comm_of(g, i)) TR__TRY(wait_for_comm(g, *comm_of(g, i)));
    return TR_OK;
}

static void close_group(tr__polled *p)
{
    tr__nccl_group *g = (tr__nccl_group *)p;
    int comms = g->lanes ? 1 + 2 * p->member.world_size : 0;
    bool ended = comms && g->comm && !atomic_load(&p->broken) && finalize(g, comms) == TR_OK;
    for (int i = 0; i < comms; i++) {
        if (!*comm_of(g, i)) continue;
        if (ended)
            g->l->ncclCommDestroy(*comm_of(g, i));
        else
            g->l->ncclCommAbort(*comm_of(g, i));
    }
    for (int i = 0; i < 2; i++) tr__nccl_unstage(g, &g->staging[i]);
    tr__nccl_lanes_free(g);
    if (g->event) g->l->cudaEventDestroy(g->event);
    if (g->stream) g->l->cudaStreamDestroy(g->stream);
}

/* ---- The backend ------------------------------------------------------------------------------------------------- */

static const tr__polled_type type = {
    .state_bytes = sizeof(tr__nccl_group),
    .transfer_bytes = sizeof(tr__nccl_transfer),
    .join = join,
    .run = run,
    .begin = tr__nccl_begin,
    .advance = tr__nccl_advance,
    .drop = tr__nccl_drop,
    .close = close_group,
};

static tr_status join_group(const tr__member *member, void **state)
{
    return tr__polled_join(&type, member, state);
}

const tr__backend tr__nccl_backend = {.name = "nccl", .join = join_group, .memory = TR_CUDA, TR__POLLED_FUNCTIONS};
