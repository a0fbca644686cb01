/* Messages: their frames, and which receive each is for. Everything here runs under the lock of struct tr__shm_p2p. */
#include "comm/transport/shm_p2p.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { EAGER = 1, OFFER, CLEAR, DATA, FIN };

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

static void append(tr__shm_ops *list, tr__shm_op *op)
{
    op->next = NULL;
    if (list->last)
        list->last->next = op;
    else
        list->first = op;
    list->last = op;
}

static void take_out(tr__shm_ops *list, tr__shm_op *op)
{
    tr__shm_op **at = &list->first, *before = NULL;
    while (*at != op) {
        before = *at;
        at = &before->next;
    }
    *at = op->next;
    if (list->last == op) list->last = before;
}

/* The receive that a message with this tag is for: the first that was posted. */
static tr__shm_op *find_receive(const tr__shm_lane *lane, int tag)
{
    tr__shm_op *op = lane->posted.first;
    while (op && op->work->collective.tag != tag) op = op->next;
    return op;
}

static tr__shm_op *find_id(const tr__shm_ops *list, uint64_t id)
{
    tr__shm_op *op = list->first;
    while (op && op->id != id) op = op->next;
    return op;
}

static tr__shm_arrival *find_arrival(const tr__shm_lane *lane, int tag)
{
    tr__shm_arrival *a = lane->first;
    while (a && a->frame.tag != tag) a = a->next;
    return a;
}

static void drop_arrival(tr__shm_lane *lane, tr__shm_arrival *arrival)
{
    tr__shm_arrival **at = &lane->first, *before = NULL;
    while (*at != arrival) {
        before = *at;
        at = &before->next;
    }
    *at = arrival->next;
    if (lane->last == arrival) lane->last = before;
    free(arrival);
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static tr__shm_lane *lane_of(const tr__shm *t, const tr__shm_op *op)
{
    return &t->p2p->lanes[tr__shm_place_of(t, op->work->collective.peer)];
}

static tr__shm_peer *peer_of(const tr__shm *t, const tr__shm_op *op)
{
    return &t->peers[tr__shm_place_of(t, op->work->collective.peer)];
}

/* For peers that report what we are at. */
static void note_beginning(tr__shm *t, tr__shm_op *op)
{
    tr__shm_control *control = t->control;
    op->number = atomic_load_explicit(&control->transfers, memory_order_relaxed) + 1;
    tr__shm_transfer *transfer = &control->transfer[op->number & 1];
    atomic_store_explicit(&transfer->entered, tr__shm_entered(control), memory_order_relaxed);
    tr__shm_sign(&transfer->call, transfer->file, &op->work->collective, 0);
    atomic_store_explicit(&control->transfers, op->number, memory_order_release);
}

static void note_end(tr__shm *t, const tr__shm_op *op)
{
    if (op->number == atomic_load_explicit(&t->control->transfers, memory_order_relaxed))
        atomic_store_explicit(&t->control->transferred, op->number, memory_order_release);
}

/* The operation is in no list any more. */
static void finish(tr__shm *t, tr__shm_op *op, tr_status status)
{
    note_end(t, op);
    t->p2p->pending--;
    if (op->helped) t->p2p->helped--;
    tr__work_finish(op->work, status);
    tr__unref(op->work);
    free(op);
    tr__shm_mail(t->control); /* who drives it may sleep */
}

/* Sends a frame, and the buffer behind it with EAGER and DATA. Also after a failure the operation is in a list. */
static tr_status send_frame(tr__shm *t, tr__shm_op *op, uint32_t type)
{
    const tr_collective *c = &op->work->collective;
    tr__shm_lane *lane = lane_of(t, op);
    op->frame = (tr__shm_frame){.type = type, .dtype = (int32_t)c->dtype, .tag = c->tag, .line = c->line,
        .count = c->count, .id = op->id, .place = op->frame.place};
    strcpy(op->frame.file, tr__place_text(c->file));
    op->sent = 0;
    op->payload = type == EAGER || type == DATA ? tr__collective_bytes(c) : 0;
    append(&lane->out, op);
    return tr__shm_channel_open(t, peer_of(t, op), &lane->outbound);
}

static tr_status begin_send(tr__shm *t, tr__shm_op *op)
{
    const tr_collective *c = &op->work->collective;
    size_t bytes = tr__collective_bytes(c);
    op->id = ++t->p2p->sends;
    op->frame.place = (tr__shm_place){0};
    if (bytes <= TR__SHM_EAGER) return send_frame(t, op, EAGER);
    tr_status status = tr__shm_offer(t, c->in, bytes, &op->frame.place), sent = send_frame(t, op, OFFER);
    return status == TR_OK ? sent : status;
}

/* ---- Receives and their messages --------------------------------------------------------------------------------- */

static tr_status check_match(const tr__shm *t, const tr__shm_op *op, const tr__shm_frame *frame)
{
    const tr_collective *c = &op->work->collective;
    if (frame->dtype == (int32_t)c->dtype && frame->count == c->count) return TR_OK;
    tr__signature get, give = {.kind = TR_SEND, .dtype = (tr_dtype)frame->dtype, .count = frame->count,
        .peer = t->peers[t->rank].rank, .tag = frame->tag, .line = frame->line};
    memcpy(give.file, frame->file, sizeof give.file);
    tr__signature_of(c, t->world_size, 0, &get);
    return tr__call_mismatch(t->group, c->peer, &give, t->peers[t->rank].rank, &get);
}

/* A receive that is in no list has got an OFFER. */
static tr_status answer(tr__shm *t, tr__shm_op *op, const tr__shm_frame *offer)
{
    const tr_collective *c = &op->work->collective;
    op->id = offer->id;
    op->frame.place = (tr__shm_place){0};
    if (!offer->place.segment) return send_frame(t, op, CLEAR);
    int from = tr__shm_place_of(t, c->peer);
    tr_status status = tr__shm_fetch(t, from, offer->place, tr__collective_bytes(c), c->out, op->began, c->timeout_ms);
    tr_status sent = send_frame(t, op, FIN);
    return status == TR_OK ? sent : status;
}

/* A receive that is in no list has got a message that was kept. */
static tr_status deliver(tr__shm *t, tr__shm_op *op, tr__shm_arrival *a)
{
    const tr_collective *c = &op->work->collective;
    tr__shm_lane *lane = lane_of(t, op);
    tr_status status = check_match(t, op, &a->frame);
    if (status != TR_OK) {
        append(&lane->posted, op);
    } else if (a->frame.type == OFFER) {
        status = answer(t, op, &a->frame);
    } else {
        if (c->count) memcpy(c->out, a->data, tr__collective_bytes(c));
        finish(t, op, TR_OK);
    }
    drop_arrival(lane, a);
    return status;
}

static tr_status begin_receive(tr__shm *t, tr__shm_op *op)
{
    tr__shm_lane *lane = lane_of(t, op);
    int tag = op->work->collective.tag;
    tr__shm_arrival *a = find_receive(lane, tag) ? NULL : find_arrival(lane, tag);
    if (a && a->complete) return deliver(t, op, a);
    append(&lane->posted, op);
    return TR_OK;
}

tr_status tr__shm_p2p_begin(tr__shm *t, tr__shm_op *op)
{
    note_beginning(t, op);
    return op->work->collective.kind == TR_SEND ? begin_send(t, op) : begin_receive(t, op);
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

static tr_status damaged(const tr__shm *t, int rank)
{
    return tr__fail(TR_FORMAT, "rank %d (pid %ld) sent a damaged frame", t->peers[rank].rank, t->peers[rank].pid);
}

/* A message for which there is no receive. */
static tr_status keep(tr__shm *t, int rank, size_t bytes)
{
    tr__shm_lane *lane = &t->p2p->lanes[rank];
    tr__shm_arrival *a = malloc(sizeof *a + bytes);
    if (!a)
        return tr__fail(TR_NO_MEMORY, "group '%s': no memory for a message of rank %d that nobody has received",
            t->group, t->peers[rank].rank);
    *a = (tr__shm_arrival){.complete = bytes == 0, .frame = lane->frame};
    if (lane->last)
        lane->last->next = a;
    else
        lane->first = a;
    lane->last = a;
    lane->arrival = a;
    lane->to = a->data;
    return TR_OK;
}

/* EAGER or OFFER */
static tr_status message_comes(tr__shm *t, int rank, size_t bytes)
{
    tr__shm_lane *lane = &t->p2p->lanes[rank];
    tr__shm_op *op = find_receive(lane, lane->frame.tag);
    lane->left = lane->frame.type == EAGER ? bytes : 0;
    if (!op) return keep(t, rank, lane->left);
    TR__TRY(check_match(t, op, &lane->frame));
    take_out(&lane->posted, op);
    if (lane->frame.type == OFFER) return answer(t, op, &lane->frame);
    append(&lane->cleared, op); /* where it is found after a failure */
    lane->receiver = op;
    lane->to = op->work->collective.out;
    return TR_OK;
}

static tr_status frame_comes(tr__shm *t, int rank)
{
    tr__shm_lane *lane = &t->p2p->lanes[rank];
    const tr__shm_frame *f = &lane->frame;
    lane->receiver = NULL;
    lane->arrival = NULL;
    lane->left = 0;
    lane->frame.file[TR__PLACE_TEXT - 1] = 0;
    int64_t bytes;
    if ((unsigned)f->dtype >= TR_DTYPE_COUNT || f->count < 0 ||
        __builtin_mul_overflow(f->count, (int64_t)tr_dtype_size((tr_dtype)f->dtype), &bytes))
        return damaged(t, rank);
    if (f->type == OFFER || (f->type == EAGER && bytes <= TR__SHM_EAGER)) return message_comes(t, rank, (size_t)bytes);
    tr__shm_ops *list = f->type == DATA ? &lane->cleared : &lane->offered;
    tr__shm_op *op = f->type == DATA || f->type == CLEAR || f->type == FIN ? find_id(list, f->id) : NULL;
    if (!op) return damaged(t, rank);
    if (f->type == DATA) {
        lane->receiver = op;
        lane->to = op->work->collective.out;
        lane->left = tr__collective_bytes(&op->work->collective);
        return TR_OK;
    }
    take_out(&lane->offered, op);
    if (f->type == CLEAR) return send_frame(t, op, DATA);
    finish(t, op, TR_OK);
    return TR_OK;
}

/* A frame and all that follows it is here. */
static tr_status frame_ends(tr__shm *t, int rank)
{
    tr__shm_lane *lane = &t->p2p->lanes[rank];
    lane->got = 0;
    if (lane->receiver) {
        take_out(&lane->cleared, lane->receiver);
        finish(t, lane->receiver, TR_OK);
    }
    tr__shm_arrival *a = lane->arrival;
    lane->arrival = NULL;
    lane->receiver = NULL;
    if (!a) return TR_OK;
    a->complete = true;
    tr__shm_op *op = find_receive(lane, a->frame.tag); /* posted while it came */
    if (!op) return TR_OK;
    take_out(&lane->posted, op);
    return deliver(t, op, a);
}

/* Takes a frame, or of what follows it, as much as is there; *got is 0 when nothing is. */
static tr_status take(tr__shm *t, int rank, tr__shm_channel *from, size_t *got)
{
    tr__shm_lane *lane = &t->p2p->lanes[rank];
    size_t head = sizeof lane->frame - lane->got;
    if (head) {
        *got = tr__shm_channel_get(from, (char *)&lane->frame + lane->got, head);
        lane->got += *got;
        if (*got < head) return TR_OK;
        TR__TRY(frame_comes(t, rank));
    } else {
        *got = tr__shm_channel_get(from, lane->to, lane->left);
        lane->to += *got;
        lane->left -= *got;
        if (lane->left && *got) tr__shm_mail(t->peers[rank].control); /* it copies in while we copy out */
    }
    return lane->left ? TR_OK : frame_ends(t, rank);
}

static tr_status read_lane(tr__shm *t, int rank, bool *moved)
{
    tr__shm_channel *from = atomic_load(&t->peers[rank].inbound);
    tr_status status = TR_OK;
    bool any = false;
    for (size_t got = 1; from && got && status == TR_OK; any |= got > 0) status = take(t, rank, from, &got);
    if (any) tr__shm_mail(t->peers[rank].control); /* there is room again */
    *moved |= any;
    return status;
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

/* As much as there is room for; true when the whole frame and what follows it has gone. */
static bool write_op(tr__shm *t, tr__shm_op *op, bool *moved)
{
    const tr_collective *c = &op->work->collective;
    tr__shm_lane *lane = lane_of(t, op);
    size_t head = sizeof op->frame, total = head + op->payload, put;
    while (op->sent < total) {
        size_t of_head = op->sent < head ? op->sent : head, of_payload = op->sent - of_head;
        const struct iovec parts[2] = {{(char *)&op->frame + of_head, head - of_head},
            {op->payload ? (char *)c->in + of_payload : NULL, op->payload - of_payload}};
        put = tr__shm_channel_put(lane->outbound, &lane->read_seen, parts);
        if (!put) return false;
        op->sent += put;
        *moved = true;
        tr__shm_mail(peer_of(t, op)->control); /* it copies out while we copy in */
    }
    return true;
}

static void write_lane(tr__shm *t, int rank, bool *moved)
{
    tr__shm_lane *lane = &t->p2p->lanes[rank];
    for (tr__shm_op *op; (op = lane->out.first) && write_op(t, op, moved);) {
        take_out(&lane->out, op);
        if (op->frame.type == OFFER)
            append(&lane->offered, op);
        else if (op->frame.type == CLEAR)
            append(&lane->cleared, op);
        else
            finish(t, op, TR_OK);
    }
}

/* ---- All --------------------------------------------------------------------------------------------------------- */

tr_status tr__shm_p2p_advance(tr__shm *t, bool *moved)
{
    for (int rank = 0; rank < t->world_size; rank++) {
        if (rank == t->rank) continue;
        TR__TRY(read_lane(t, rank, moved));
        write_lane(t, rank, moved);
    }
    return TR_OK;
}

static tr__shm_ops *list_of(tr__shm_lane *lane, int number)
{
    tr__shm_ops *lists[] = {&lane->out, &lane->offered, &lane->cleared, &lane->posted};
    return lists[number];
}

tr_status tr__shm_p2p_each(tr__shm *t, tr_status (*look)(tr__shm *t, tr__shm_op *op, void *arg), void *arg)
{
    for (int i = 0; i < 4 * t->world_size; i++)
        for (tr__shm_op *op = list_of(&t->p2p->lanes[i / 4], i % 4)->first; op; op = op->next)
            TR__TRY(look(t, op, arg));
    return TR_OK;
}

char *tr__shm_p2p_text(const tr__shm *t, const tr__shm_op *op, char text[TR__CALL_TEXT])
{
    tr__signature s;
    tr__signature_of(&op->work->collective, t->world_size, 0, &s);
    return tr__signature_text(&s, text);
}

void tr__shm_p2p_fail_all(tr__shm *t, bool elsewhere)
{
    char text[TR__CALL_TEXT];
    for (int i = 0; i < 4 * t->world_size; i++) {
        tr__shm_ops *list = list_of(&t->p2p->lanes[i / 4], i % 4);
        for (tr__shm_op *op; (op = list->first);) {
            take_out(list, op);
            tr_status status = tr__failure_tell(&t->failure);
            if (elsewhere) tr__fail_context(status, "%s", tr__shm_p2p_text(t, op, text));
            finish(t, op, status);
        }
        t->p2p->lanes[i / 4].got = t->p2p->lanes[i / 4].left = 0;
        t->p2p->lanes[i / 4].receiver = NULL;
        t->p2p->lanes[i / 4].arrival = NULL;
    }
}
