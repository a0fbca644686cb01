/*
 * The NCCL backend: collectives between GPUs, each rank on its own, which is the one that its local rank has the
 * number of. A communicator that does not block and a stream of its own, which an event orders behind the caller's:
 * the group's thread hands NCCL one call after another and watches for its end, while the program goes on computing.
 * Whoever waits looks at the event and at NCCL's asynchronous error, so timeouts, cancelling and dead peers end a
 * wait, by ncclCommAbort. Nothing here waits inside the driver for what another rank may never do.
 *
 * Buffers in host memory, and on other GPUs of the rank, pass through the GPU.
 */
#include "comm/backend/nccl_group.h"

#include "base/clock.h"
#include "base/memory.h"
#include "net/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Whose failure it was ---------------------------------------------------------------------------------------- */

enum { KEY = TR__RENDEZVOUS_KEY, REASON = 400, TELL_MS = 1000 };

static const char reason_key[] = "nccl-failed";

void tr__nccl_tell(const tr__nccl_group *g, tr_status status)
{
    char key[KEY], text[REASON];
    if (status == TR_PEER) return; /* which is another rank's to tell */
    TR__KEEP_ERROR;
    int length = snprintf(text, sizeof text, "rank %d failed: %s", g->base.member.rank, tr_error_message());
    tr__change reason = {.kind = TR__CHANGE_SET, .value = text, .bytes = length < REASON ? (size_t)length : REASON - 1};
    tr__rendezvous_key(&g->base.meeting, reason_key, -1, key);
    /* When that fails, too, NCCL's word must do; the rank that serves the store may be the one that stands still. */
    (void)!tr__store_change(g->base.member.store, key, &reason, TELL_MS, NULL, NULL);
}

/* NCCL knows only that another rank has failed; the store may know which, and why. */
static tr_status fail_with_peer(const tr__nccl_group *g, ncclComm_t comm)
{
    char key[KEY];
    TR__FREED void *value = NULL;
    size_t bytes;
    tr__rendezvous_key(&g->base.meeting, reason_key, -1, key);
    if (tr__store_get(g->base.member.store, key, 0, &value, &bytes) == TR_OK)
        return tr__fail(TR_PEER, "%.*s", (int)bytes, (char *)value);
    return tr__nccl_fail(g->l, ncclRemoteError, comm, "NCCL");
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

tr_status tr__nccl_check(const tr__nccl_group *g, ncclComm_t comm, bool *under_way)
{
    ncclResult_t state = ncclSuccess;
    TR__NCCL_TRY(g->l, comm, ncclCommGetAsyncError, comm, &state);
    *under_way = state == ncclInProgress;
    if (state == ncclRemoteError) return fail_with_peer(g, comm);
    return state == ncclSuccess || state == ncclInProgress ? TR_OK : tr__nccl_fail(g->l, state, comm, "NCCL");
}

/* Until NCCL has taken what it was given: only then is it on the stream. */
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
    TR__TRY(g->table->event_record(g->device.index, g->stream, g->event));
    for (bool done = false, under_way;;) {
        TR__TRY(g->table->event_done(g->device.index, g->event, &done));
        if (done) return TR_OK;
        TR__TRY(tr__nccl_check(g, g->comm, &under_way));
        TR__TRY(tr__polled_rest(&g->base, began));
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
static tr_status post_blocks(tr__nccl_group *g, const tr_collective *c)
{
    size_t size = tr_dtype_size(c->dtype);
    ncclDataType_t type = type_of(c->dtype);
    int self = g->base.member.rank;
    for (int peer = 0; peer < g->base.member.world_size; peer++) {
        if (tr__collective_gives(c, self) && tr__collective_gets(c, peer)) {
            tr__range r = tr__collective_in(c, peer);
            TR__NCCL_TRY(g->l, g->comm, ncclSend, (const char *)c->in + (size_t)r.begin * size,
                (size_t)tr__length(r), type, peer, g->comm, g->handle);
        }
        if (tr__collective_gives(c, peer) && tr__collective_gets(c, self)) {
            tr__range r = tr__collective_out(c, peer);
            TR__NCCL_TRY(g->l, g->comm, ncclRecv, (char *)c->out + (size_t)r.begin * size, (size_t)tr__length(r),
                type, peer, g->comm, g->handle);
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
    if (why) return tr__error_restore(why);
    return ended == ncclSuccess || ended == ncclInProgress ? TR_OK
                                                           : tr__nccl_fail(g->l, ended, g->comm, "ncclGroupEnd");
}

/* Buffers are on the GPU. */
static tr_status start(tr__nccl_group *g, const tr_collective *c, ncclRedOp_t op)
{
    const tr__nccl_library *l = g->l;
    size_t n = (size_t)c->count;
    ncclDataType_t type = type_of(c->dtype);
    const void *in = c->in ? c->in : c->out; /* of a broadcast the others have none */
    switch (c->kind) {
    case TR_ALL_REDUCE: TR__NCCL_TRY(l, g->comm, ncclAllReduce, in, c->out, n, type, op, g->comm, g->handle); break;
    case TR_REDUCE: TR__NCCL_TRY(l, g->comm, ncclReduce, in, c->out, n, type, op, c->root, g->comm, g->handle); break;
    case TR_BROADCAST: TR__NCCL_TRY(l, g->comm, ncclBroadcast, in, c->out, n, type, c->root, g->comm, g->handle); break;
    case TR_ALL_GATHER: TR__NCCL_TRY(l, g->comm, ncclAllGather, in, c->out, n, type, g->comm, g->handle); break;
    case TR_REDUCE_SCATTER: TR__NCCL_TRY(l, g->comm, ncclReduceScatter, in, c->out, n, type, op, g->comm, g->handle); break;
    default: return move_blocks(g, c);
    }
    return TR_OK;
}

/* ---- Buffers elsewhere ------------------------------------------------------------------------------------------- */

tr_status tr__nccl_stage(const tr__nccl_group *g, tr_device_stream *stream, tr_device from, const void *buffer,
    size_t bytes, bool fill, tr__nccl_buffer *b)
{
    *b = (tr__nccl_buffer){.at = (void *)buffer, .bytes = bytes};
    if (!bytes || tr_device_equal(from, g->device)) return TR_OK;
    TR__TRY(g->table->allocate(g->device.index, stream, bytes, &b->copy));
    b->at = b->copy;
    if (!fill) return TR_OK;
    if (from.kind == TR_CPU) return g->table->copy_in(g->device.index, stream, b->copy, buffer, bytes);
    return g->table->copy_peer(g->device.index, stream, b->copy, from.index, buffer, bytes);
}

tr_status tr__nccl_unstage(const tr__nccl_group *g, tr_device_stream *stream, tr_device to, void *buffer,
    const tr__nccl_buffer *b)
{
    tr_device_stream *side;
    if (!b->copy) return TR_OK;
    if (to.kind == TR_CPU) {
        TR__TRY(g->table->copy_out(g->device.index, stream, buffer, b->copy, b->bytes));
        return g->table->stream_synchronize(g->device.index, stream);
    }
    TR__TRY(tr__device_side_stream(to, &side));
    TR__TRY(g->table->copy_peer(to.index, side, buffer, g->device.index, b->copy, b->bytes));
    return g->table->stream_synchronize(to.index, side);
}

void tr__nccl_drop_copy(const tr__nccl_group *g, tr_device_stream *stream, tr__nccl_buffer *b)
{
    if (b->copy) g->table->release(g->device.index, stream, b->copy, b->bytes);
    b->copy = NULL;
}

tr_status tr__nccl_ready(const tr__nccl_group *g, const tr_collective *c, tr_device_event **event)
{
    *event = NULL;
    if (c->device.kind == TR_CPU) return TR_OK;
    TR__TRY(g->table->event_new(c->device.index, event));
    return g->table->event_record(c->device.index, c->stream, *event);
}

/* ---- Running one ------------------------------------------------------------------------------------------------- */

/* NCCL may receive a block before the one in its place has gone: in place, blocks are sent from a copy. */
static tr_status copy_input(const tr__nccl_group *g, tr__nccl_buffer *in)
{
    const void *given = in->at;
    TR__TRY(g->table->allocate(g->device.index, g->stream, in->bytes, &in->copy));
    in->at = in->copy;
    return g->table->copy_within(g->device.index, g->stream, in->copy, given, in->bytes);
}

/* The bytes between the blocks of a _V kind's result go to the GPU as well, as they must come back as they were. */
static tr_status run_staged(tr__nccl_group *g, const tr_collective *c, ncclRedOp_t op, tr__nccl_buffer *in,
    tr__nccl_buffer *out)
{
    tr_collective d = *c;
    int self = g->base.member.rank, world = g->base.member.world_size;
    size_t size = tr_dtype_size(c->dtype);
    size_t in_bytes = tr__collective_gives(c, self) ? (size_t)tr__collective_extent(c, world, false) * size : 0;
    size_t out_bytes = tr__collective_gets(c, self) ? (size_t)tr__collective_extent(c, world, true) * size : 0;
    TR__TRY(tr__nccl_stage(g, g->stream, c->device, c->in, in_bytes, true, in));
    if (c->kind == TR_ALL_TO_ALL && c->in == c->out && in_bytes && !in->copy) TR__TRY(copy_input(g, in));
    TR__TRY(tr__nccl_stage(g, g->stream, c->device, c->out, out_bytes, tr__kind_of(c->kind)->variable, out));
    d.in = in->at;
    d.out = out->at;
    TR__TRY(start(g, &d, op));
    TR__TRY(wait_for_comm(g, g->comm));
    TR__TRY(wait_for_stream(g));
    return tr__nccl_unstage(g, g->stream, c->device, c->out, out);
}

static tr_status start_and_wait(tr__nccl_group *g, const tr_collective *c, tr__nccl_buffer *in, tr__nccl_buffer *out)
{
    ncclRedOp_t op = ncclSum;
    if (tr__kind_of(c->kind)->reduces && !op_of(c, &op))
        return tr__fail(TR_UNSUPPORTED, "NCCL has no bitwise operations; there are sum, avg, min, max and prod");
    if (c->op == TR_AVG && (c->dtype == TR_I32 || c->dtype == TR_U8) && tr__kind_of(c->kind)->reduces)
        return tr__fail(TR_UNSUPPORTED, "NCCL adds up an average of %s in that type, where it may overflow; reduce i64 or f32",
            tr_dtype_name(c->dtype));
    uint8_t here = 1;
    tr_collective barrier = {.kind = TR_ALL_REDUCE, .in = &here, .out = &here, .count = 1, .dtype = TR_U8};
    if (c->kind == TR_BARRIER) c = &barrier;
    tr_device_event *ready;
    tr_status status = tr__nccl_ready(g, c, &ready);
    if (status == TR_OK && ready) status = g->table->stream_wait(g->device.index, g->stream, ready);
    if (status == TR_OK) status = run_staged(g, c, op, in, out);
    if (ready) g->table->event_free(c->device.index, ready);
    return status;
}

static tr_status run(tr__polled *p, const tr_collective *c)
{
    tr__nccl_group *g = (tr__nccl_group *)p;
    tr__nccl_buffer in = {0}, out = {0};
    tr_status status = start_and_wait(g, c, &in, &out);
    if (status != TR_OK && status != TR_UNSUPPORTED) {
        tr__nccl_tell(g, status);
        g->l->ncclCommAbort(g->comm); /* ends the kernels that wait on the GPU, which use the copies, too */
        g->comm = NULL;
    }
    tr__nccl_drop_copy(g, g->stream, &in);
    tr__nccl_drop_copy(g, g->stream, &out);
    return status;
}

/* ---- Joining ----------------------------------------------------------------------------------------------------- */

/* What a rank says in its record: "nccl:GPU", with the driver's name of the GPU, as CUDA_VISIBLE_DEVICES may give it
 * another number here. */
static void describe(const tr__nccl_group *g, char *text, size_t bytes)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    for (int i = 0; visible && i < g->device.index; i++) {
        visible = strchr(visible, ',');
        if (visible) visible++;
    }
    if (visible && *visible) snprintf(text, bytes, "nccl:%.*s", (int)strcspn(visible, ", "), visible);
    else snprintf(text, bytes, "nccl:%d", g->device.index);
}

/* No two ranks have the same GPU, which NCCL would take for a mistake, too, but name by its bus. */
static tr_status check_others(const tr__nccl_group *g, const tr__endpoint_record *records)
{
    int rank = g->base.member.rank;
    const tr__endpoint_record *mine = &records[rank];
    for (int other = 0; other < g->base.member.world_size; other++) {
        const tr__endpoint_record *theirs = &records[other];
        if (strncmp(theirs->address, "nccl:", 5) != 0)
            return tr__fail(TR_MISMATCH, "rank %d has not joined with the nccl backend", other);
        if (other != rank && strcmp(mine->machine, theirs->machine) == 0 && strcmp(mine->address, theirs->address) == 0)
            return tr__fail(TR_DEVICE, "nccl: each rank needs a GPU of its own: ranks %d and %d on host %s both have "
                "GPU %s; start no more ranks there than GPUs, of which LOCAL_RANK or .device chooses (rank %d sees %d), "
                "or " TR__NCCL_INSTEAD,
                rank < other ? rank : other, rank < other ? other : rank, mine->host, mine->address + 5, rank,
                tr_device_count(TR_CUDA));
    }
    return TR_OK;
}

/* Rank 0 makes the id, and the store carries it, or why there is none. */
static tr_status share_id(tr__nccl_group *g, ncclUniqueId *id)
{
    const tr__member *m = &g->base.member;
    char key[KEY];
    tr__rendezvous_key(&g->base.meeting, "nccl", -1, key);
    if (m->rank == 0) {
        ncclResult_t result = g->l->ncclGetUniqueId(id);
        if (result == ncclSuccess) return tr_store_set(m->store, key, id, sizeof *id);
        const char *why = g->l->ncclGetErrorString(result);
        TR__TRY(tr_store_set(m->store, key, why, strnlen(why, sizeof *id - 1)));
        return tr__nccl_fail(g->l, result, NULL, "ncclGetUniqueId");
    }
    TR__FREED void *value = NULL;
    size_t bytes;
    TR__TRY(tr__store_get(m->store, key, m->timeout_ms, &value, &bytes));
    if (bytes != sizeof *id) return tr__fail(TR_PEER, "rank 0 got no id from NCCL: %.*s", (int)bytes, (char *)value);
    memcpy(id, value, sizeof *id);
    return TR_OK;
}

/* The GPU and the library, before the others are told that this rank is here. */
static tr_status open_gpu(tr__nccl_group *g)
{
    const tr__member *m = &g->base.member;
    char name[16];
    bool given = m->device.kind != TR_CPU || m->device.index != 0;
    if (given && m->device.kind != TR_CUDA)
        return tr__fail(TR_INVALID, "nccl: the .device %s is no GPU of kind cuda", tr_device_name(m->device, name));
    tr_status status = tr__device_check(given ? m->device : tr_cuda(0));
    if (status != TR_OK)
        return tr__fail_context(status, "nccl: this rank has no GPU; make one usable, or " TR__NCCL_INSTEAD);
    g->table = tr__plugin(TR_CUDA);
    g->device = given ? m->device : tr_cuda(m->local_rank % tr_device_count(TR_CUDA));
    if (!g->table->stream_handle)
        return tr__fail(TR_UNSUPPORTED, "nccl: the cuda plug-in has no stream_handle(): build it against this Trireme, "
            "or " TR__NCCL_INSTEAD);
    return tr__nccl_open(&g->l);
}

tr_status tr__nccl_stream_new(const tr__nccl_group *g, tr_device_stream **stream, tr__cuda_stream *handle)
{
    void *opaque;
    TR__TRY(g->table->stream_new(g->device.index, stream));
    TR__TRY(g->table->stream_handle(g->device.index, *stream, &opaque));
    *handle = opaque;
    return TR_OK;
}

tr_status tr__nccl_comm_new(const tr__nccl_group *g, const ncclUniqueId *id, int rank, int ranks, ncclComm_t *comm)
{
    ncclConfig_t config = TR__NCCL_NON_BLOCKING;
    tr_device_event *event;
    /* Whatever the plug-in makes leaves its device as this thread's current one, which NCCL takes. */
    TR__TRY(g->table->event_new(g->device.index, &event));
    g->table->event_free(g->device.index, event);
    TR__NCCL_TRY(g->l, NULL, ncclCommInitRankConfig, comm, ranks, *id, rank, &config);
    return TR_OK;
}

/* The communicator: the part of that of the group around this one, or a new one. */
static tr_status make_comm(tr__nccl_group *g)
{
    const tr__member *m = &g->base.member;
    ncclUniqueId id;
    if (m->part && *m->part) {
        g->comm = *m->part;
        *m->part = NULL;
    } else {
        TR__TRY(share_id(g, &id));
    }
    tr__polled_begin_to_wait(&g->base, 0, m->timeout_ms);
    if (!g->comm) TR__TRY(tr__nccl_comm_new(g, &id, m->rank, m->world_size, &g->comm));
    return wait_for_comm(g, g->comm);
}

static tr_status meet(tr__nccl_group *g)
{
    char address[sizeof ((tr__endpoint_record *)0)->address];
    TR__FREED tr__endpoint_record *records = NULL;
    TR__TRY(open_gpu(g));
    describe(g, address, sizeof address);
    TR__TRY(tr__polled_meet(&g->base, address, &records));
    TR__TRY(check_others(g, records));
    TR__TRY(tr__nccl_channels_new(g));
    TR__TRY(tr__nccl_stream_new(g, &g->stream, &g->handle));
    TR__TRY(g->table->event_new(g->device.index, &g->event));
    return make_comm(g);
}

static tr_status join(tr__polled *p)
{
    if (p->member.world_size == 1) return TR_OK;
    tr_status status = meet((tr__nccl_group *)p);
    return status == TR_OK ? TR_OK : tr__fail_context(status, "group '%s'", p->member.group);
}

/* ---- Groups within the group ------------------------------------------------------------------------------------- */

/* All ranks of the group come here, also those that will be in none. The parts share no resources with the whole: where
 * they did, a group that is aborted would take the others along. */
static tr_status split_comm(tr__nccl_group *g, int color, int key, ncclComm_t *part)
{
    TR__TRY(tr__fail_stored(atomic_load(&g->base.broken)));
    TR__NCCL_TRY(g->l, g->comm, ncclCommSplit, g->comm, color, key, part, NULL);
    return wait_for_comm(g, g->comm);
}

static tr_status split(void *state, int color, int key, int timeout_ms, void **part)
{
    tr__nccl_group *g = state;
    const tr__member *m = &g->base.member;
    ncclComm_t made = NULL;
    *part = NULL;
    if (m->world_size == 1 || !g->l->ncclCommSplit) return TR_OK;
    tr__polled_begin_to_wait(&g->base, 0, timeout_ms);
    tr_status status = split_comm(g, color, key, &made);
    if (status == TR_OK) {
        *part = made;
        return TR_OK;
    }
    tr__nccl_tell(g, status);
    if (g->comm) g->l->ncclCommAbort(g->comm); /* from here on NCCL writes no `made` any more */
    g->comm = NULL;
    if (made) g->l->ncclCommAbort(made);
    tr__fail_context(status, "group '%s': a group within it", m->group);
    tr__polled_give_up(&g->base);
    return status;
}

static void drop_part(void *state, void *part)
{
    const tr__nccl_group *g = state;
    g->l->ncclCommAbort(part);
}

/* ---- Leaving ----------------------------------------------------------------------------------------------------- */

/* The communicator number i of the group and its channels. */
static ncclComm_t *comm_of(tr__nccl_group *g, int i)
{
    return i == 0 ? &g->comm : &g->channels[i - 1].comm;
}

/* In order: all are told before any is waited for, as the other ranks may end theirs in another sequence. */
static tr_status finalize(tr__nccl_group *g, int comms)
{
    const tr__member *m = &g->base.member;
    tr__polled_begin_to_wait(&g->base, 0, m->timeout_ms);
    for (int i = 0; i < comms; i++)
        if (*comm_of(g, i)) TR__NCCL_TRY(g->l, *comm_of(g, i), ncclCommFinalize, *comm_of(g, i));
    for (int i = 0; i < comms; i++)
        if (*comm_of(g, i)) TR__TRY(wait_for_comm(g, *comm_of(g, i)));
    return TR_OK;
}

static void close_group(tr__polled *p)
{
    tr__nccl_group *g = (tr__nccl_group *)p;
    int comms = g->channels ? 1 + 2 * p->member.world_size : 0;
    tr__error *broken = atomic_load(&p->broken);
    if (comms && broken) tr__nccl_tell(g, tr__fail_stored(broken));
    bool ended = comms && g->comm && !broken && finalize(g, comms) == TR_OK;
    for (int i = 0; i < comms; i++) {
        if (!*comm_of(g, i)) continue;
        if (ended)
            g->l->ncclCommDestroy(*comm_of(g, i));
        else
            g->l->ncclCommAbort(*comm_of(g, i));
    }
    tr__nccl_channels_free(g);
    if (g->event) g->table->event_free(g->device.index, g->event);
    if (g->stream) g->table->stream_free(g->device.index, g->stream);
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

const tr__backend tr__nccl_backend = {.name = "nccl", .polled = &type, .memory = TR_CUDA, .split = split,
    .drop_part = drop_part, TR__POLLED_FUNCTIONS};
