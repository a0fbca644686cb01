/*
 * Sends and receives over NCCL. What runs on one communicator runs in order, so a receive would hold up whatever
 * comes after it. Each rank therefore has a lane to each other one, a communicator of these two and a stream, which
 * is made when the first message needs it: the sender draws the id, and the store carries it.
 *
 * NCCL matches by order alone. A message is preceded by its signature, by which the receiver finds the receive of
 * that tag, and sees whether it fits. A message without a receive holds up those behind it on its lane.
 */
#include "base/clock.h"
#include "comm/backend/nccl_group.h"
#include "net/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOOK_NS = 1000000, KEY = TR__RENDEZVOUS_KEY };

/* ---- Which transfers a lane has ---------------------------------------------------------------------------------- */

static tr__nccl_lane *lane_of(const tr__nccl_group *g, const tr_collective *c)
{
    return &g->lanes[c->peer + (c->kind == TR_SEND ? 0 : g->base.member.world_size)];
}

/* The first that was posted, of any tag or of one. */
static tr__nccl_transfer *find(const tr__nccl_group *g, const tr__nccl_lane *lane, bool any_tag, int tag)
{
    for (tr__transfer *t = g->base.first; t; t = t->next) {
        const tr_collective *c = &t->work->collective;
        if (lane_of(g, c) == lane && (any_tag || c->tag == tag)) return (tr__nccl_transfer *)t;
    }
    return NULL;
}

/* ---- Making a lane ----------------------------------------------------------------------------------------------- */

static char *key_of(const tr__nccl_group *g, const tr__nccl_lane *lane, char key[KEY])
{
    char from[32];
    int rank = g->base.member.rank;
    snprintf(from, sizeof from, "nccl-from-%d", lane->sends ? rank : lane->peer);
    return tr__rendezvous_key(&g->base.meeting, from, lane->sends ? lane->peer : rank, key);
}

static tr_status send_id(const tr__nccl_group *g, const tr__nccl_lane *lane, ncclUniqueId *id)
{
    char key[KEY];
    TR__NCCL_TRY(g->l, NULL, ncclGetUniqueId, id);
    return tr_store_set(g->base.member.store, key_of(g, lane, key), id, sizeof *id);
}

/* TR_TIMEOUT: it is not there yet. */
static tr_status receive_id(const tr__nccl_group *g, const tr__nccl_lane *lane, ncclUniqueId *id)
{
    char key[KEY];
    void *value = NULL;
    size_t bytes;
    TR__TRY(tr__store_get(g->base.member.store, key_of(g, lane, key), 0, &value, &bytes));
    if (bytes == sizeof *id) memcpy(id, value, sizeof *id);
    free(value);
    return bytes == sizeof *id ? TR_OK : tr__fail(TR_FORMAT, "nccl: the id has %zu bytes, expected %zu", bytes,
        sizeof *id);
}

static tr_status make_lane(const tr__nccl_group *g, tr__nccl_lane *lane)
{
    ncclUniqueId id;
    if (tr__now_ns() < lane->look) return TR_OK;
    lane->look = tr__now_ns() + LOOK_NS;
    tr_status status = lane->sends ? send_id(g, lane, &id) : receive_id(g, lane, &id);
    if (status == TR_TIMEOUT && !lane->sends) return TR_OK;
    TR__TRY(status);
    TR__TRY(tr__nccl_stream_new(g, &lane->stream, &lane->handle));
    TR__TRY(g->table->event_new(g->device.index, &lane->event));
    TR__TRY(tr__nccl_comm_new(g, &id, lane->sends ? 0 : 1, 2, &lane->comm));
    lane->stage = TR__LANE_MAKING;
    return TR_OK;
}

/* ---- Parts of a message ------------------------------------------------------------------------------------------ */

static tr_status move_bytes(const tr__nccl_group *g, tr__nccl_lane *lane, const tr__nccl_buffer *b)
{
    if (lane->sends)
        TR__NCCL_TRY(g->l, lane->comm, ncclSend, b->at, b->bytes, ncclUint8, 1, lane->comm, lane->handle);
    else
        TR__NCCL_TRY(g->l, lane->comm, ncclRecv, b->at, b->bytes, ncclUint8, 0, lane->comm, lane->handle);
    return TR_OK;
}

static tr_status launch_head(tr__nccl_group *g, tr__nccl_lane *lane)
{
    tr__nccl_transfer *t = find(g, lane, true, 0);
    if (!t) return TR_OK;
    if (lane->sends) {
        lane->current = t;
        tr__signature_of(&t->base.work->collective, g->base.member.world_size, 0, &lane->head);
    }
    lane->stage = TR__LANE_HEAD;
    lane->taken = false;
    TR__TRY(tr__nccl_stage(g, lane->stream, tr_cpu(0), &lane->head, sizeof lane->head, lane->sends, &lane->head_copy));
    return move_bytes(g, lane, &lane->head_copy);
}

static tr_status launch_data(tr__nccl_group *g, tr__nccl_lane *lane)
{
    const tr_collective *c = &lane->current->base.work->collective;
    const void *buffer = lane->sends ? c->in : c->out;
    size_t bytes = tr__collective_bytes(c);
    lane->stage = TR__LANE_DATA;
    lane->taken = false;
    if (lane->current->ready) TR__TRY(g->table->stream_wait(g->device.index, lane->stream, lane->current->ready));
    TR__TRY(tr__nccl_stage(g, lane->stream, c->device, buffer, bytes, lane->sends, &lane->data));
    return bytes ? move_bytes(g, lane, &lane->data) : TR_OK;
}

/* Has the part of a message that was launched arrived, or gone? */
static tr_status has_passed(const tr__nccl_group *g, tr__nccl_lane *lane, bool *passed)
{
    bool under_way;
    *passed = false;
    TR__TRY(tr__nccl_check(g, lane->comm, &under_way));
    if (under_way) return TR_OK;
    if (!lane->taken) TR__TRY(g->table->event_record(g->device.index, lane->stream, lane->event));
    lane->taken = true;
    return g->table->event_done(g->device.index, lane->event, passed);
}

/* The head is here, or has gone. */
static tr_status end_head(tr__nccl_group *g, tr__nccl_lane *lane)
{
    tr_status status = TR_OK;
    if (!lane->head_copy.copy) return TR_OK; /* before; its receive has not been posted yet */
    if (!lane->sends) status = tr__nccl_unstage(g, lane->stream, tr_cpu(0), &lane->head, &lane->head_copy);
    tr__nccl_drop_copy(g, lane->stream, &lane->head_copy);
    return status;
}

/* Finds the receive that the head is for, if it has been posted. */
static tr_status match(tr__nccl_group *g, tr__nccl_lane *lane)
{
    const tr__signature *theirs = &lane->head;
    tr__signature mine;
    lane->head.file[TR__PLACE_TEXT - 1] = 0;
    if (theirs->kind != TR_SEND || (unsigned)theirs->dtype >= TR_DTYPE_COUNT)
        return tr__fail(TR_FORMAT, "rank %d has sent a damaged message", lane->peer);
    lane->current = find(g, lane, false, theirs->tag);
    if (!lane->current) return TR_OK;
    tr__signature_of(&lane->current->base.work->collective, g->base.member.world_size, 0, &mine);
    if (theirs->dtype == mine.dtype && theirs->count == mine.count) return TR_OK;
    return tr__call_mismatch(g->base.member.group, lane->peer, theirs, g->base.member.rank, &mine);
}

/* ---- Going on ---------------------------------------------------------------------------------------------------- */

/* Takes the lane's next step when it can be taken; *moved says whether. */
static tr_status step(tr__nccl_group *g, tr__nccl_lane *lane, bool *moved)
{
    bool under_way = true, passed = false;
    int before = (int)lane->stage;
    switch (lane->stage) {
    case TR__LANE_ABSENT:
        if (find(g, lane, true, 0)) TR__TRY(make_lane(g, lane));
        break;
    case TR__LANE_MAKING:
        TR__TRY(tr__nccl_check(g, lane->comm, &under_way));
        if (!under_way) lane->stage = TR__LANE_IDLE;
        break;
    case TR__LANE_IDLE: TR__TRY(launch_head(g, lane)); break;
    case TR__LANE_HEAD:
        TR__TRY(has_passed(g, lane, &passed));
        if (passed) TR__TRY(end_head(g, lane));
        if (passed && !lane->sends) TR__TRY(match(g, lane));
        if (passed && lane->current) TR__TRY(launch_data(g, lane));
        break;
    default: {
        TR__TRY(has_passed(g, lane, &passed));
        if (!passed) break;
        tr__nccl_transfer *done = lane->current;
        const tr_collective *c = &done->base.work->collective;
        if (!lane->sends) TR__TRY(tr__nccl_unstage(g, lane->stream, c->device, c->out, &lane->data));
        tr__nccl_drop_copy(g, lane->stream, &lane->data);
        lane->current = NULL;
        lane->stage = TR__LANE_IDLE;
        tr__polled_end(&g->base, &done->base, TR_OK);
    }
    }
    *moved = (int)lane->stage != before;
    return TR_OK;
}

tr_status tr__nccl_advance(tr__polled *p)
{
    tr__nccl_group *g = (tr__nccl_group *)p;
    for (int i = 0; i < 2 * p->member.world_size; i++)
        for (bool moved = true; moved;) {
            tr_status status = step(g, &g->lanes[i], &moved);
            if (status == TR_OK) continue;
            tr__nccl_tell(g, status);
            return tr__fail_context(status, "messages %s rank %d", g->lanes[i].sends ? "to" : "from", g->lanes[i].peer);
        }
    return TR_OK;
}

tr_status tr__nccl_begin(tr__polled *p, tr__transfer *transfer)
{
    return tr__nccl_ready((tr__nccl_group *)p, &transfer->work->collective, &((tr__nccl_transfer *)transfer)->ready);
}

/* One that is dropped before it is done takes its lane along: that ends the kernel that waits on the GPU. */
void tr__nccl_drop(tr__polled *p, tr__transfer *transfer)
{
    tr__nccl_group *g = (tr__nccl_group *)p;
    tr__nccl_transfer *t = (tr__nccl_transfer *)transfer;
    tr__nccl_lane *lane = lane_of(g, &transfer->work->collective);
    if (atomic_load(&p->broken) && lane->comm) {
        g->l->ncclCommAbort(lane->comm);
        lane->comm = NULL;
    }
    if (t->ready) g->table->event_free(transfer->work->collective.device.index, t->ready);
}

/* ---- Beginning and end ------------------------------------------------------------------------------------------- */

tr_status tr__nccl_lanes_new(tr__nccl_group *g)
{
    int world = g->base.member.world_size;
    g->lanes = calloc(2 * (size_t)world, sizeof *g->lanes);
    if (!g->lanes) return tr__fail(TR_NO_MEMORY, "no memory for %d ranks", world);
    for (int i = 0; i < 2 * world; i++) g->lanes[i] = (tr__nccl_lane){.peer = i % world, .sends = i < world};
    return TR_OK;
}

void tr__nccl_lanes_free(tr__nccl_group *g)
{
    for (int i = 0; g->lanes && i < 2 * g->base.member.world_size; i++) {
        tr__nccl_lane *lane = &g->lanes[i];
        tr__nccl_drop_copy(g, lane->stream, &lane->head_copy);
        tr__nccl_drop_copy(g, lane->stream, &lane->data);
        if (lane->event) g->table->event_free(g->device.index, lane->event);
        if (lane->stream) g->table->stream_free(g->device.index, lane->stream);
    }
    free(g->lanes);
}
