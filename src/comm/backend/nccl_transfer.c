/*
 * Sends and receives over NCCL. What runs on one communicator runs in order, so a receive would hold up whatever
 * comes after it. Each rank therefore has a channel to each other one, a communicator of these two and a stream, which
 * is made when the first message needs it: the sender draws the id, and the store carries it.
 *
 * NCCL matches by order alone. A message is preceded by its signature, by which the receiver finds the receive of
 * that tag, and sees whether it fits. A message without a receive holds up those behind it on its channel.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "comm/backend/nccl_group.h"
#include "net/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOOK_NS = 1000000, KEY = TR__RENDEZVOUS_KEY, SEND_MS = 1000 };

/* ---- Which transfers a channel has ------------------------------------------------------------------------------- */

static tr__nccl_channel *channel_of(const tr__nccl_group *g, const tr_collective *c)
{
    return &g->channels[c->peer + (c->kind == TR_SEND ? 0 : g->base.member.world_size)];
}

/* The first that was posted, of any tag or of one. */
static tr__nccl_transfer *find(const tr__nccl_group *g, const tr__nccl_channel *channel, bool any_tag, int tag)
{
    for (tr__transfer *t = g->base.first; t; t = t->next) {
        const tr_collective *c = &t->work->collective;
        if (channel_of(g, c) == channel && (any_tag || c->tag == tag)) return (tr__nccl_transfer *)t;
    }
    return NULL;
}

/* ---- Making a channel -------------------------------------------------------------------------------------------- */

static char *key_of(const tr__nccl_group *g, const tr__nccl_channel *channel, char key[KEY])
{
    char from[32];
    int rank = g->base.member.rank;
    snprintf(from, sizeof from, "nccl-from-%d", channel->sends ? rank : channel->peer);
    return tr__rendezvous_key(&g->base.meeting, from, channel->sends ? channel->peer : rank, key);
}

/* TR_TIMEOUT: the store has not answered, which may have the id nevertheless; the same one is sent again. The group's lock is
 * held. */
static tr_status send_id(const tr__nccl_group *g, tr__nccl_channel *channel)
{
    char key[KEY];
    tr__change id = {.kind = TR__CHANGE_SET, .value = &channel->id, .bytes = sizeof channel->id};
    if (!channel->drawn) TR__NCCL_TRY(g->l, NULL, ncclGetUniqueId, &channel->id);
    channel->drawn = true;
    return tr__store_change(g->base.member.store, key_of(g, channel, key), &id, SEND_MS, NULL, NULL);
}

/* TR_TIMEOUT: it is not there yet. */
static tr_status receive_id(const tr__nccl_group *g, tr__nccl_channel *channel)
{
    char key[KEY];
    TR__FREED void *value = NULL;
    size_t bytes;
    TR__TRY(tr__store_get(g->base.member.store, key_of(g, channel, key), 0, &value, &bytes));
    if (bytes != sizeof channel->id)
        return tr__fail(TR_FORMAT, "nccl: the id has %zu bytes, expected %zu", bytes, sizeof channel->id);
    memcpy(&channel->id, value, sizeof channel->id);
    return TR_OK;
}

static tr_status make_channel(const tr__nccl_group *g, tr__nccl_channel *channel)
{
    if (tr__now_ns() < channel->look) return TR_OK;
    channel->look = tr__now_ns() + LOOK_NS;
    tr_status status = channel->sends ? send_id(g, channel) : receive_id(g, channel);
    if (status == TR_TIMEOUT) return TR_OK;
    TR__TRY(status);
    TR__TRY(tr__nccl_stream_new(g, &channel->stream, &channel->handle));
    TR__TRY(g->table->event_new(g->device.index, &channel->event));
    TR__TRY(tr__nccl_comm_new(g, &channel->id, channel->sends ? 0 : 1, 2, &channel->comm));
    channel->stage = TR__NCCL_MAKING;
    return TR_OK;
}

/* ---- Parts of a message --------------------------------------------------------------------------------------- */

static tr_status move_bytes(const tr__nccl_group *g, tr__nccl_channel *channel, const tr__nccl_buffer *b)
{
    if (channel->sends)
        TR__NCCL_TRY(g->l, channel->comm, ncclSend, b->at, b->bytes, ncclUint8, 1, channel->comm, channel->handle);
    else
        TR__NCCL_TRY(g->l, channel->comm, ncclRecv, b->at, b->bytes, ncclUint8, 0, channel->comm, channel->handle);
    return TR_OK;
}

static tr_status launch_head(tr__nccl_group *g, tr__nccl_channel *channel)
{
    tr__nccl_transfer *t = find(g, channel, true, 0);
    if (!t) return TR_OK;
    if (channel->sends) {
        channel->current = t;
        tr__signature_of(&t->base.work->collective, g->base.member.world_size, 0, &channel->head);
    }
    channel->stage = TR__NCCL_HEAD;
    channel->taken = false;
    TR__TRY(tr__nccl_stage(g, channel->stream, tr_cpu(0), &channel->head, sizeof channel->head, channel->sends,
        &channel->head_copy));
    return move_bytes(g, channel, &channel->head_copy);
}

static tr_status launch_data(tr__nccl_group *g, tr__nccl_channel *channel)
{
    const tr_collective *c = &channel->current->base.work->collective;
    const void *buffer = channel->sends ? c->in : c->out;
    size_t bytes = tr__collective_bytes(c);
    channel->stage = TR__NCCL_DATA;
    channel->taken = false;
    if (channel->current->ready) TR__TRY(g->table->stream_wait(g->device.index, channel->stream, channel->current->ready));
    TR__TRY(tr__nccl_stage(g, channel->stream, c->device, buffer, bytes, channel->sends, &channel->data));
    return bytes ? move_bytes(g, channel, &channel->data) : TR_OK;
}

/* Has the part of a message that was launched arrived, or gone? */
static tr_status has_passed(const tr__nccl_group *g, tr__nccl_channel *channel, bool *passed)
{
    bool under_way;
    *passed = false;
    TR__TRY(tr__nccl_check(g, channel->comm, &under_way));
    if (under_way) return TR_OK;
    if (!channel->taken) TR__TRY(g->table->event_record(g->device.index, channel->stream, channel->event));
    channel->taken = true;
    return g->table->event_done(g->device.index, channel->event, passed);
}

/* The head is here, or has gone. */
static tr_status end_head(tr__nccl_group *g, tr__nccl_channel *channel)
{
    tr_status status = TR_OK;
    if (!channel->head_copy.copy) return TR_OK; /* before; its receive has not been posted yet */
    if (!channel->sends) status = tr__nccl_unstage(g, channel->stream, tr_cpu(0), &channel->head, &channel->head_copy);
    tr__nccl_drop_copy(g, channel->stream, &channel->head_copy);
    return status;
}

/* Finds the receive that the head is for, if it has been posted. */
static tr_status match(tr__nccl_group *g, tr__nccl_channel *channel)
{
    const tr__signature *theirs = &channel->head;
    tr__signature mine;
    channel->head.file[TR__PLACE_TEXT - 1] = 0;
    if (theirs->kind != TR_SEND || (unsigned)theirs->dtype >= TR_DTYPE_COUNT)
        return tr__fail(TR_FORMAT, "rank %d has sent a damaged message", channel->peer);
    channel->current = find(g, channel, false, theirs->tag);
    if (!channel->current) return TR_OK;
    tr__signature_of(&channel->current->base.work->collective, g->base.member.world_size, 0, &mine);
    if (theirs->dtype == mine.dtype && theirs->count == mine.count) return TR_OK;
    return tr__call_mismatch(g->base.member.group, channel->peer, theirs, g->base.member.rank, &mine);
}

/* ---- Going on ------------------------------------------------------------------------------------------------- */

/* Takes the channel's next step when it can be taken; *moved says whether. */
static tr_status step(tr__nccl_group *g, tr__nccl_channel *channel, bool *moved)
{
    bool under_way = true, passed = false;
    int before = (int)channel->stage;
    switch (channel->stage) {
    case TR__NCCL_ABSENT:
        if (find(g, channel, true, 0)) TR__TRY(make_channel(g, channel));
        break;
    case TR__NCCL_MAKING:
        TR__TRY(tr__nccl_check(g, channel->comm, &under_way));
        if (!under_way) channel->stage = TR__NCCL_IDLE;
        break;
    case TR__NCCL_IDLE: TR__TRY(launch_head(g, channel)); break;
    case TR__NCCL_HEAD:
        TR__TRY(has_passed(g, channel, &passed));
        if (passed) TR__TRY(end_head(g, channel));
        if (passed && !channel->sends) TR__TRY(match(g, channel));
        if (passed && channel->current) TR__TRY(launch_data(g, channel));
        break;
    default: {
        TR__TRY(has_passed(g, channel, &passed));
        if (!passed) break;
        tr__nccl_transfer *done = channel->current;
        const tr_collective *c = &done->base.work->collective;
        if (!channel->sends) TR__TRY(tr__nccl_unstage(g, channel->stream, c->device, c->out, &channel->data));
        tr__nccl_drop_copy(g, channel->stream, &channel->data);
        channel->current = NULL;
        channel->stage = TR__NCCL_IDLE;
        tr__polled_end(&g->base, &done->base, TR_OK);
    }
    }
    *moved = (int)channel->stage != before;
    return TR_OK;
}

tr_status tr__nccl_advance(tr__polled *p)
{
    tr__nccl_group *g = (tr__nccl_group *)p;
    for (int i = 0; i < 2 * p->member.world_size; i++)
        for (bool moved = true; moved;) {
            tr_status status = step(g, &g->channels[i], &moved);
            if (status == TR_OK) continue;
            tr__nccl_tell(g, status);
            return tr__fail_context(status, "messages %s rank %d", g->channels[i].sends ? "to" : "from", g->channels[i].peer);
        }
    return TR_OK;
}

tr_status tr__nccl_begin(tr__polled *p, tr__transfer *transfer)
{
    return tr__nccl_ready((tr__nccl_group *)p, &transfer->work->collective, &((tr__nccl_transfer *)transfer)->ready);
}

/* One that is dropped before it is done takes its channel along: that ends the kernel that waits on the GPU. */
void tr__nccl_drop(tr__polled *p, tr__transfer *transfer)
{
    tr__nccl_group *g = (tr__nccl_group *)p;
    tr__nccl_transfer *t = (tr__nccl_transfer *)transfer;
    tr__nccl_channel *channel = channel_of(g, &transfer->work->collective);
    if (atomic_load(&p->broken) && channel->comm) {
        g->l->ncclCommAbort(channel->comm);
        channel->comm = NULL;
    }
    if (t->ready) g->table->event_free(transfer->work->collective.device.index, t->ready);
}

/* ---- Beginning and end ---------------------------------------------------------------------------------------- */

tr_status tr__nccl_channels_new(tr__nccl_group *g)
{
    int world = g->base.member.world_size;
    g->channels = calloc(2 * (size_t)world, sizeof *g->channels);
    if (!g->channels) return tr__fail(TR_NO_MEMORY, "no memory for %d ranks", world);
    for (int i = 0; i < 2 * world; i++) g->channels[i] = (tr__nccl_channel){.peer = i % world, .sends = i < world};
    return TR_OK;
}

void tr__nccl_channels_free(tr__nccl_group *g)
{
    for (int i = 0; g->channels && i < 2 * g->base.member.world_size; i++) {
        tr__nccl_channel *channel = &g->channels[i];
        tr__nccl_drop_copy(g, channel->stream, &channel->head_copy);
        tr__nccl_drop_copy(g, channel->stream, &channel->data);
        if (channel->event) g->table->event_free(g->device.index, channel->event);
        if (channel->stream) g->table->stream_free(g->device.index, channel->stream);
    }
    free(g->channels);
}
