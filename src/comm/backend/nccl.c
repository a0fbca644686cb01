/*
 * The NCCL backend: collectives between GPUs, each rank on its own. A communicator that does not block and a stream of its
 * own: whoever waits polls the stream and NCCL's asynchronous error, so timeouts, cancelling and dead peers end a wait, by
 * ncclCommAbort. Buffers in host memory pass through the GPU's.
 */
#include "comm/backend/nccl.h"

#include "base/clock.h"
#include "comm/backend/late.h"
#include "comm/backend/nccl_library.h"
#include "comm/collective.h"
#include "comm/rendezvous.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct nccl_group {
    tr__member member;
    tr__rendezvous meeting;
    const tr__nccl_library *l;
    int device;
    ncclComm_t comm;
    cudaStream_t stream;
    cudaEvent_t event;
    void *staging[2];         /* on the GPU: in, out */
    size_t staging_bytes[2];
    tr__late late;
    atomic_bool cancelled;
    tr__error *broken;        /* the first cause */
} nccl_group;

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

static tr_status check_wait(nccl_group *g, int64_t begin)
{
    enum { SPIN_NS = 20000, NAP_NS = 20000 };
    int64_t now = tr__now_ns();
    if (atomic_load(&g->cancelled)) return tr__fail(TR_CANCELLED, "it was given up");
    TR__TRY(tr__late_check(&g->late, now));
    if (now - begin > SPIN_NS) nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    return TR_OK;
}

static tr_status check_comm(const nccl_group *g, bool *under_way)
{
    ncclResult_t state = ncclSuccess;
    TR__NCCL_TRY(g->l, g->comm, ncclCommGetAsyncError, g->comm, &state);
    *under_way = state == ncclInProgress;
    return state == ncclSuccess || state == ncclInProgress ? TR_OK : tr__nccl_fail(g->l, state, g->comm, "NCCL");
}

/* Until NCCL has taken what it was given. */
static tr_status wait_for_comm(nccl_group *g)
{
    int64_t begin = tr__now_ns();
    for (bool under_way = true;;) {
        TR__TRY(check_comm(g, &under_way));
        if (!under_way) return TR_OK;
        TR__TRY(check_wait(g, begin));
    }
}

static tr_status wait_for_stream(nccl_group *g)
{
    int64_t begin = tr__now_ns();
    TR__CUDA_TRY(g->l, cudaEventRecord, g->event, g->stream);
    for (;;) {
        bool under_way;
        cudaError_t state = g->l->cudaEventQuery(g->event);
        if (state == cudaSuccess) return TR_OK;
        if (state != cudaErrorNotReady) return tr__cuda_fail(g->l, state, "the GPU's work");
        TR__TRY(check_comm(g, &under_way));
        TR__TRY(check_wait(g, begin));
    }
}

/* ---- Types ------------------------------------------------------------------------------------------------------- */

static ncclDataType_t type_of(tr_dtype dtype)
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
static tr_status post_blocks(nccl_group *g, const tr_collective *c)
{
    size_t size = tr_dtype_size(c->dtype);
    ncclDataType_t type = type_of(c->dtype);
    int self = g->member.rank;
    for (int peer = 0; peer < g->member.world_size; peer++) {
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

static tr_status move_blocks(nccl_group *g, const tr_collective *c)
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
static tr_status start(nccl_group *g, const tr_collective *c, ncclRedOp_t op)
{
    const tr__nccl_library *l = g->l;
    size_t n = (size_t)c->count;
    ncclDataType_t type = type_of(c->dtype);
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
    case TR_SEND:
        TR__NCCL_TRY(l, g->comm, ncclSend, c->in, n, type, c->peer, g->comm, g->stream);
        return TR_OK;
    case TR_RECV:
        TR__NCCL_TRY(l, g->comm, ncclRecv, c->out, n, type, c->peer, g->comm, g->stream);
        return TR_OK;
    default: return move_blocks(g, c);
    }
}

/* ---- Host memory ------------------------------------------------------------------------------------------------- */

static bool on_gpu(const nccl_group *g, const void *buffer)
{
    struct cudaPointerAttributes a;
    return g->l->cudaPointerGetAttributes(&a, buffer) == cudaSuccess &&
           (a.type == cudaMemoryTypeDevice || a.type == cudaMemoryTypeManaged);
}

static size_t extent(const nccl_group *g, const tr_collective *c, tr__range (*block)(const tr_collective *, int))
{
    int64_t end = 0;
    for (int rank = 0; rank < g->member.world_size; rank++)
        if (block(c, rank).end > end) end = block(c, rank).end;
    return (size_t)end * tr_dtype_size(c->dtype);
}

/* Copies a host buffer to the GPU and puts the copy's address in its place. Outputs are copied as well: what lies between
 * their blocks must come back as it was. */
static tr_status stage(nccl_group *g, int which, const void **buffer, size_t bytes)
{
    if (!bytes || on_gpu(g, *buffer)) return TR_OK;
    if (g->staging_bytes[which] < bytes) {
        if (g->staging[which]) TR__CUDA_TRY(g->l, cudaFree, g->staging[which]);
        g->staging[which] = NULL;
        g->staging_bytes[which] = 0;
        TR__CUDA_TRY(g->l, cudaMalloc, &g->staging[which], bytes);
        g->staging_bytes[which] = bytes;
    }
    TR__CUDA_TRY(g->l, cudaMemcpyAsync, g->staging[which], *buffer, bytes, cudaMemcpyHostToDevice, g->stream);
    *buffer = g->staging[which];
    return TR_OK;
}

static tr_status run_on_gpu(nccl_group *g, const tr_collective *c, ncclRedOp_t op)
{
    tr_collective d = *c;
    int self = g->member.rank;
    size_t in = tr__collective_gives(c, self) ? extent(g, c, tr__collective_in) : 0;
    size_t out = tr__collective_gets(c, self) ? extent(g, c, tr__collective_out) : 0;
    const void *to = c->out;
    TR__TRY(stage(g, 0, &d.in, in));
    TR__TRY(stage(g, 1, &to, out));
    d.out = (void *)to;
    TR__TRY(start(g, &d, op));
    TR__TRY(wait_for_comm(g));
    if (d.out != c->out)
        TR__CUDA_TRY(g->l, cudaMemcpyAsync, c->out, d.out, out, cudaMemcpyDeviceToHost, g->stream);
    return wait_for_stream(g);
}

static tr_status run(nccl_group *g, const tr_collective *c)
{
    ncclRedOp_t op = ncclSum;
    if (tr__kind_of(c->kind)->reduces && !op_of(c, &op)) return tr__collective_refuse(c, "nccl");
    TR__CUDA_TRY(g->l, cudaSetDevice, g->device);
    /* After what the caller's stream (the default one) was given before. */
    TR__CUDA_TRY(g->l, cudaEventRecord, g->event, NULL);
    TR__CUDA_TRY(g->l, cudaStreamWaitEvent, g->stream, g->event, 0);
    uint8_t here = 1;
    tr_collective barrier = {.kind = TR_ALL_REDUCE, .in = &here, .out = &here, .count = 1, .dtype = TR_U8};
    return run_on_gpu(g, c->kind == TR_BARRIER ? &barrier : c, op);
}

/* ---- Joining ----------------------------------------------------------------------------------------------------- */

/* The ranks of this host take its GPUs in their order. */
static tr_status find_device(nccl_group *g, int devices)
{
    tr__card mine, other;
    tr__card_here(&g->member, &mine);
    for (int rank = 0; rank < g->member.world_size; rank++) {
        if (rank == g->member.rank) continue;
        TR__TRY(tr__rendezvous_read(&g->meeting, rank, &other));
        if (strcmp(other.address, "nccl") != 0)
            return tr__fail(TR_MISMATCH, "rank %d has not joined with the nccl backend", rank);
        g->device += rank < g->member.rank && strcmp(other.machine, mine.machine) == 0;
    }
    if (g->device >= devices)
        return tr__fail(TR_DEVICE, "NCCL needs a GPU for each rank; rank %d is number %d on host %s, which has %d",
            g->member.rank, g->device + 1, mine.host, devices);
    return TR_OK;
}

/* Rank 0 makes the id, and the store carries it. */
static tr_status share_id(nccl_group *g, ncclUniqueId *id)
{
    char key[200];
    snprintf(key, sizeof key, "group/%s/nccl/%ld", g->member.group, g->meeting.generation);
    if (g->member.rank == 0) {
        TR__NCCL_TRY(g->l, NULL, ncclGetUniqueId, id);
        return tr_store_set(g->member.store, key, id, sizeof *id);
    }
    void *value;
    size_t bytes;
    TR__TRY(tr_store_get(g->member.store, key, &value, &bytes));
    if (bytes == sizeof *id) memcpy(id, value, sizeof *id);
    free(value);
    return bytes == sizeof *id ? TR_OK : tr__fail(TR_FORMAT, "an NCCL id of %zu bytes is none", bytes);
}

static tr_status meet(nccl_group *g)
{
    tr__card mine;
    int devices = 0;
    TR__CUDA_TRY(g->l, cudaGetDeviceCount, &devices); /* before the others are told that this rank is here */
    tr__card_here(&g->member, &mine);
    strcpy(mine.address, "nccl");
    strcpy(mine.tcp_address, "-");
    TR__TRY(tr__random_text(mine.cookie, sizeof mine.cookie));
    TR__TRY(tr__random_text(mine.tcp_cookie, sizeof mine.tcp_cookie));
    TR__TRY(tr__rendezvous_claim(&g->meeting, &g->member, &mine));
    TR__TRY(tr__rendezvous_publish(&g->meeting, &mine));
    TR__TRY(find_device(g, devices));
    TR__CUDA_TRY(g->l, cudaSetDevice, g->device);
    TR__CUDA_TRY(g->l, cudaStreamCreateWithFlags, &g->stream, cudaStreamNonBlocking);
    TR__CUDA_TRY(g->l, cudaEventCreateWithFlags, &g->event, cudaEventDisableTiming);
    ncclUniqueId id;
    TR__TRY(share_id(g, &id));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    tr__late_start(&g->late, &g->member, g->meeting.generation, 0, g->member.timeout_ms);
    TR__NCCL_TRY(g->l, NULL, ncclCommInitRankConfig, &g->comm, g->member.world_size, id, g->member.rank, &config);
    return wait_for_comm(g);
}

static void release(nccl_group *g)
{
    if (g->comm && g->broken) g->l->ncclCommAbort(g->comm);
    if (g->comm && !g->broken) {
        tr__late_start(&g->late, &g->member, g->meeting.generation, 0, g->member.timeout_ms);
        g->l->ncclCommFinalize(g->comm);
        if (wait_for_comm(g) == TR_OK)
            g->l->ncclCommDestroy(g->comm);
        else
            g->l->ncclCommAbort(g->comm);
    }
    for (int i = 0; i < 2; i++)
        if (g->staging[i]) g->l->cudaFree(g->staging[i]);
    if (g->event) g->l->cudaEventDestroy(g->event);
    if (g->stream) g->l->cudaStreamDestroy(g->stream);
    tr__error_unref(g->broken);
    free(g);
}

static tr_status nccl_join(const tr__member *member, void **state)
{
    nccl_group *g = calloc(1, sizeof *g);
    if (!g) return tr__fail(TR_NO_MEMORY, "group '%s': no memory", member->group);
    g->member = *member;
    tr_status status = member->world_size > 1 ? tr__nccl_open(&g->l) : TR_OK;
    if (status == TR_OK && member->world_size > 1) status = meet(g);
    if (status != TR_OK) {
        tr__fail_context(status, "group '%s'", member->group);
        g->broken = tr__error_take();
        if (g->meeting.member) tr__rendezvous_withdraw(&g->meeting, status);
        tr__error *why = tr__error_take();
        release(g);
        tr__fail_stored(why);
        tr__error_unref(why);
        return status;
    }
    *state = g;
    return TR_OK;
}

/* ---- Running and leaving ----------------------------------------------------------------------------------------- */

static tr_status nccl_run(void *state, const tr_collective *c, uint64_t sequence)
{
    nccl_group *g = state;
    if (g->broken) {
        tr_status status = tr__fail_stored(g->broken);
        return tr__fail_context(status, "group '%s' is broken", g->member.group);
    }
    if (g->member.world_size == 1) {
        if (tr__kind_of(c->kind)->point_to_point) return tr__collective_refuse(c, "nccl");
        tr__collective_alone(c);
        return TR_OK;
    }
    tr__late_start(&g->late, &g->member, g->meeting.generation, sequence, c->timeout_ms);
    tr_status status = run(g, c);
    if (status == TR_OK || status == TR_UNSUPPORTED) return status;
    tr__signature call;
    char text[TR__CALL_TEXT];
    tr__signature_of(c, g->member.world_size, sequence, &call);
    tr__fail_context(status, "group '%s': %s", g->member.group, tr__signature_text(&call, text));
    g->broken = tr__error_take();
    g->l->ncclCommAbort(g->comm); /* ends the kernels that wait on the GPU */
    g->comm = NULL;
    return status;
}

static void nccl_cancel(void *state, const char *why)
{
    (void)why; /* the group's own message has it */
    atomic_store(&((nccl_group *)state)->cancelled, true);
}

static void nccl_leave(void *state)
{
    nccl_group *g = state;
    if (g->meeting.member) tr__rendezvous_withdraw(&g->meeting, TR_OK);
    tr__error *latest = tr__error_take();
    release(g);
    tr__fail_stored(latest);
    tr__error_unref(latest);
}

const tr__backend tr__nccl_backend = {
    .name = "nccl",
    .join = nccl_join,
    .run = nccl_run,
    .cancel = nccl_cancel,
    .leave = nccl_leave,
};
