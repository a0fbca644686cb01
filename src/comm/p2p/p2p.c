/* Messages: their frames, which receive each is for, and who may send how much. All of it runs under the engine's lock. */
#include "comm/p2p/p2p.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PIECES = 16 }; /* that are read of one peer, before the others get their turn */

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

static void append(tr__p2p_ops *list, tr__p2p_op *op)
{
    op->next = NULL;
    if (list->last)
        list->last->next = op;
    else
        list->first = op;
    list->last = op;
}

static void take_out(tr__p2p_ops *list, tr__p2p_op *op)
{
    tr__p2p_op **at = &list->first, *before = NULL;
    while (*at != op) {
        before = *at;
        at = &before->next;
    }
    *at = op->next;
    if (list->last == op) list->last = before;
}

static tr__p2p_op *find_id(const tr__p2p_ops *list, uint64_t id)
{
    tr__p2p_op *op = list->first;
    while (op && op->frame.id != id) op = op->next;
    return op;
}

static tr__p2p_op *find_tag(const tr__p2p_ops *list, int tag)
{
    tr__p2p_op *op = list->first;
    while (op && op->frame.tag != tag) op = op->next;
    return op;
}

static void drop_arrival(tr__p2p_peer *peer, tr__p2p_op *a)
{
    take_out(&peer->arrived, a);
    if (a->data) peer->kept -= a->payload;
    if (a->data != (char *)(a + 1)) free(a->data);
    free(a);
}

/* A receive from any rank is from this peer. */
static void set_source(tr_collective *c, const tr__p2p_peer *peer)
{
    c->peer = peer->rank;
    if (c->source) *c->source = peer->rank;
}

tr__p2p_peer *tr__p2p_peer_of(tr__p2p *p, tr_collective *c)
{
    tr__p2p_peer *oldest = p->anyone;
    uint64_t number = UINT64_MAX;
    if (c->peer != TR_ANY_SOURCE) {
        if (c->source) *c->source = c->peer;
        return &p->peers[c->peer];
    }
    for (int rank = 0; rank < p->world_size; rank++) {
        const tr__p2p_op *a = find_tag(&p->peers[rank].arrived, c->tag);
        if (!a || a->number > number) continue;
        number = a->number;
        oldest = &p->peers[rank];
    }
    if (oldest != p->anyone) set_source(c, oldest);
    return oldest;
}

/* The receive that a message with this tag is for: the first that was posted, of those from this peer and from any. The
 * latter leaves the list of `anyone`. */
static tr__p2p_op *find_receive(tr__p2p_peer *peer, int tag)
{
    tr__p2p *p = peer->engine;
    tr__p2p_op *own = find_tag(&peer->lists[TR__P2P_POSTED], tag), *open = find_tag(&p->anyone->lists[TR__P2P_POSTED], tag);
    if (!open || (own && own->number < open->number)) return own;
    if (!peer->by_ring && p->anyone->by_ring) { /* it is the reader's now: the threads that drive rings count it no more */
        tr__p2p_sign_off(p, open);
        p->helped -= !open->driven;
    }
    set_source(&open->work->collective, peer);
    take_out(&p->anyone->lists[TR__P2P_POSTED], open);
    append(&peer->lists[TR__P2P_POSTED], open);
    return open;
}

const tr__p2p_op *tr__p2p_any(const tr__p2p_peer *peer)
{
    for (int i = 0; i < TR__P2P_LISTS; i++)
        for (const tr__p2p_op *op = peer->lists[i].first; op; op = op->next)
            if (op->work) return op;
    return NULL;
}

tr__signature tr__p2p_call(const tr__p2p *p, const tr__p2p_op *op)
{
    tr__signature call;
    tr__signature_of(&op->work->collective, p->world_size, 0, &call);
    return call;
}

tr__signature tr__p2p_sent(const tr__p2p *p, const tr__p2p_frame *frame)
{
    tr__signature call = {.kind = TR_SEND, .dtype = (tr_dtype)frame->dtype, .count = frame->count, .peer = p->rank,
        .tag = frame->tag, .line = frame->line};
    memcpy(call.file, frame->file, sizeof call.file);
    return call;
}

/* ---- Frames on their way out -------------------------------------------------------------------------------------- */

/* Also after a failure the operation is in a list. */
static tr_status queue(tr__p2p_peer *peer, tr__p2p_op *op)
{
    op->sent = 0;
    op->frame.taken = peer->returned = peer->taken;
    append(&peer->lists[TR__P2P_OUT], op);
    return peer->local ? tr__shm_channel_open(peer->engine->shm, peer->local, &peer->outbound) : TR_OK;
}

static bool is_charged(int type)
{
    return type == TR__P2P_EAGER || type == TR__P2P_PUSH;
}

static tr_status queue_send(tr__p2p_peer *peer, tr__p2p_op *op, enum tr__p2p_type type)
{
    const tr_collective *c = &op->work->collective;
    op->frame = (tr__p2p_frame){.magic = TR__P2P_MAGIC, .type = (uint8_t)type, .dtype = (uint8_t)c->dtype, .tag = c->tag,
        .line = c->line, .held = op->held, .count = c->count, .id = op->frame.id, .place = op->frame.place};
    strcpy(op->frame.file, tr__place_text(c->file, sizeof op->frame.file));
    op->payload = type == TR__P2P_RTS ? 0 : tr__collective_bytes(c);
    if (is_charged(type)) peer->charged += op->payload + TR__P2P_ENVELOPE;
    return queue(peer, op);
}

/* A frame of the engine's own. */
static tr_status reply(tr__p2p_peer *peer, const tr__p2p_frame *frame)
{
    tr__p2p *p = peer->engine;
    tr__p2p_op *op = malloc(sizeof *op);
    if (!op) return tr__fail(TR_NO_MEMORY, "group '%s': no memory for an answer to rank %d", p->group, peer->rank);
    *op = (tr__p2p_op){.frame = *frame};
    op->frame.magic = TR__P2P_MAGIC;
    p->pending += frame->type == TR__P2P_FIN; /* the others may stay behind when the group is left */
    return queue(peer, op);
}

/* An operation that is in no list any more. */
static void finish(tr__p2p_peer *peer, tr__p2p_op *op, tr_status status)
{
    tr__p2p *p = peer->engine;
    p->pending -= op->work || op->frame.type == TR__P2P_FIN;
    if (op->work) {
        if (peer->by_ring) tr__p2p_sign_off(p, op);
        p->helped -= peer->by_ring && !op->driven;
        tr__work_finish(op->work, status);
        tr__unref(op->work);
    } else if (op->frame.type == TR__P2P_CREDITS) {
        peer->crediting = false;
    }
    free(op);
    if (p->shm) tr__shm_mail(p->shm->control); /* who drives it may sleep */
}

/* ---- Credit ------------------------------------------------------------------------------------------------------ */

static bool fits(const tr__p2p_peer *peer, size_t bytes)
{
    uint64_t most = peer->engine->limit + TR__P2P_CREDIT; /* so much that was received the peer may not have told yet */
    return bytes <= peer->eager && peer->charged - peer->credited + bytes + TR__P2P_ENVELOPE <= most;
}

/* A peer that has left reads no more, and what it sent may be lost when it is sent something. */
static tr_status give_credit(tr__p2p_peer *peer)
{
    if (peer->crediting || peer->closed || tr__p2p_left(peer)) return TR_OK;
    const tr__p2p_op *oldest = peer->arrived.first;
    while (oldest && !oldest->data) oldest = oldest->next;
    peer->crediting = true;
    return reply(peer, &(tr__p2p_frame){.type = TR__P2P_CREDITS, .dtype = TR_U8, .count = (int64_t)peer->kept,
        .tag = oldest ? oldest->frame.tag : -1});
}

static tr_status give_credit_if_due(tr__p2p_peer *peer)
{
    return peer->taken - peer->returned >= TR__P2P_CREDIT ? give_credit(peer) : TR_OK;
}

/* A message for which the peer was charged has been received. */
static tr_status took(tr__p2p_peer *peer, size_t bytes)
{
    peer->taken += bytes + TR__P2P_ENVELOPE;
    peer->told = false;
    return give_credit_if_due(peer);
}

static void let_go(tr__p2p_peer *peer, tr__p2p_op *op)
{
    take_out(&peer->lists[TR__P2P_OFFERED], op);
    peer->held -= op->held;
    op->held = false;
}

/* Sends held messages that fit now. Messages of one tag keep their order by their announcements. */
static tr_status push_held(tr__p2p_peer *peer)
{
    tr__p2p_op *next;
    for (tr__p2p_op *op = peer->lists[TR__P2P_OFFERED].first; op && peer->held; op = next) {
        next = op->next;
        if (!op->held || !fits(peer, tr__collective_bytes(&op->work->collective))) continue;
        let_go(peer, op);
        TR__TRY(queue_send(peer, op, TR__P2P_PUSH));
    }
    return TR_OK;
}

tr__held tr__p2p_unasked(const tr__p2p_peer *peer, const tr__p2p_op *op)
{
    bool charged = is_charged(op->frame.type);
    if (op->work->collective.kind != TR_SEND || !(op->held || charged)) return (tr__held){0};
    if (peer->lying) return (tr__held){peer->rank, peer->lying_tag, peer->lying};
    uint64_t own = charged ? op->payload + TR__P2P_ENVELOPE : 0;
    return (tr__held){peer->rank, -1, peer->charged - peer->credited - own};
}

/* ---- Receives and their messages --------------------------------------------------------------------------------- */

static tr_status check_match(const tr__p2p_peer *peer, const tr__p2p_op *op, const tr__p2p_frame *frame)
{
    const tr__p2p *p = peer->engine;
    const tr_collective *c = &op->work->collective;
    if (frame->dtype == (int)c->dtype && frame->count == c->count) return TR_OK;
    TR__TRY(tr__p2p_check_peers(peer, c->timeout_ms));
    tr__signature get = tr__p2p_call(p, op), give = tr__p2p_sent(p, frame);
    return tr__call_mismatch(p->group, peer->rank, &give, p->rank, &get);
}

/* A receive that is in no list has got an announcement. */
static tr_status answer(tr__p2p_peer *peer, tr__p2p_op *op, const tr__p2p_frame *rts)
{
    const tr_collective *c = &op->work->collective;
    tr__p2p_frame frame = {.type = TR__P2P_CTS, .dtype = TR_U8, .id = rts->id};
    op->frame.id = rts->id;
    append(&peer->lists[TR__P2P_CLEARED], op);
    if (!peer->local || !rts->place.segment) return reply(peer, &frame);
    tr__shm *t = peer->engine->shm;
    int from = (int)(peer->local - t->peers);
    TR__TRY(tr__shm_fetch(t, from, rts->place, tr__collective_bytes(c), c->out, op->began, c->timeout_ms));
    take_out(&peer->lists[TR__P2P_CLEARED], op);
    finish(peer, op, TR_OK);
    frame.type = TR__P2P_FIN;
    return reply(peer, &frame);
}

/* The bytes of the message that is being read are for this receive, which is in no list. */
static void receive_into(tr__p2p_peer *peer, tr__p2p_op *op, size_t there)
{
    append(&peer->lists[TR__P2P_CLEARED], op); /* where it is found after a failure */
    peer->reading = op;
    peer->to = (char *)op->work->collective.out + there;
}

/* A new receive gets a message that has come, is coming, or was announced. */
static tr_status deliver(tr__p2p_peer *peer, tr__p2p_op *op, const tr__p2p_op *a)
{
    if (!a->data) return answer(peer, op, &a->frame);
    bool coming = peer->reading == a;
    size_t there = coming ? a->payload - peer->left_over : a->payload, placed = 0;
    if (coming && peer->remote) placed = tr__tcp_wire(peer->engine->tcp, peer->rank, TR__P2P_CHANNEL)->in.placed;
    if (there + placed) memcpy(op->work->collective.out, a->data, there + placed);
    if (coming)
        receive_into(peer, op, there);
    else
        finish(peer, op, TR_OK);
    return TR_OK;
}

static tr_status begin_receive(tr__p2p_peer *peer, tr__p2p_op *op)
{
    op->frame.tag = op->work->collective.tag;
    op->number = ++peer->engine->receives;
    tr__p2p_op *a = find_tag(&peer->arrived, op->frame.tag);
    tr_status status = a ? check_match(peer, op, &a->frame) : TR_OK;
    if (!a || status != TR_OK) {
        append(&peer->lists[TR__P2P_POSTED], op);
        return status;
    }
    bool whole = a->data && a != peer->reading;
    size_t bytes = a->payload;
    status = deliver(peer, op, a);
    drop_arrival(peer, a);
    return whole ? took(peer, bytes) : status;
}

static tr_status begin_send(tr__p2p_peer *peer, tr__p2p_op *op)
{
    const tr_collective *c = &op->work->collective;
    size_t bytes = tr__collective_bytes(c);
    op->frame.id = ++peer->engine->sends;
    if (fits(peer, bytes)) return queue_send(peer, op, TR__P2P_EAGER);
    op->held = bytes <= peer->eager && bytes <= peer->engine->limit;
    peer->held += op->held;
    tr_status status = peer->local ? tr__shm_offer(peer->engine->shm, c->in, bytes, &op->frame.place) : TR_OK;
    tr_status queued = queue_send(peer, op, TR__P2P_RTS);
    return status == TR_OK ? queued : status;
}

tr_status tr__p2p_begin(tr__p2p_peer *peer, tr__p2p_op *op)
{
    if (peer->by_ring) tr__p2p_sign(peer->engine, op);
    return op->work->collective.kind == TR_SEND ? begin_send(peer, op) : begin_receive(peer, op);
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

static tr_status damaged(const tr__p2p_peer *peer)
{
    long pid = peer->local ? peer->local->pid : peer->remote->pid;
    return tr__fail(TR_FORMAT, "rank %d (pid %ld) sent a damaged message", peer->rank, pid);
}

/* Bytes for which there is no receive. */
static tr_status keep(tr__p2p_peer *peer, tr__p2p_op *a, char *data)
{
    a->data = data;
    peer->kept += a->payload;
    peer->reading = a;
    peer->to = data;
    peer->left_over = a->payload;
    return TR_OK;
}

static tr_status no_memory(const tr__p2p_peer *peer)
{
    return tr__fail(TR_NO_MEMORY, "group '%s': no memory for %zu bytes from rank %d that no receive is there for",
        peer->engine->group, peer->bytes, peer->rank);
}

/* EAGER or RTS */
static tr_status message_comes(tr__p2p_peer *peer)
{
    const tr__p2p_frame *f = &peer->frame;
    bool eager = f->type == TR__P2P_EAGER;
    tr__p2p_op *op = find_receive(peer, f->tag);
    if (op) {
        TR__TRY(check_match(peer, op, f));
        take_out(&peer->lists[TR__P2P_POSTED], op);
        if (!eager) return answer(peer, op, f);
        receive_into(peer, op, 0);
        peer->left_over = peer->bytes;
        return TR_OK;
    }
    tr__p2p_op *a = malloc(sizeof *a + (eager ? peer->bytes : 0));
    if (!a) return no_memory(peer);
    *a = (tr__p2p_op){.frame = *f, .number = ++peer->engine->arrivals, .payload = peer->bytes};
    append(&peer->arrived, a);
    if (eager) return keep(peer, a, (char *)(a + 1));
    if (!f->held || peer->told) return TR_OK;
    peer->told = true;
    return give_credit(peer);
}

/* DATA or PUSH */
static tr_status data_comes(tr__p2p_peer *peer)
{
    tr__p2p_op *op = find_id(&peer->lists[TR__P2P_CLEARED], peer->frame.id);
    if (op) {
        take_out(&peer->lists[TR__P2P_CLEARED], op);
        receive_into(peer, op, 0);
        peer->left_over = peer->bytes = tr__collective_bytes(&op->work->collective);
        return TR_OK;
    }
    tr__p2p_op *a = find_id(&peer->arrived, peer->frame.id);
    if (!a || a->data || peer->frame.type != TR__P2P_PUSH || a->payload != peer->bytes) return damaged(peer);
    char *data = malloc(a->payload + 1);
    return data ? keep(peer, a, data) : no_memory(peer);
}

/* CTS or FIN: of a send that was announced. */
static tr_status answer_comes(tr__p2p_peer *peer)
{
    tr__p2p_op *op = find_id(&peer->lists[TR__P2P_OFFERED], peer->frame.id);
    bool cleared = peer->frame.type == TR__P2P_CTS;
    if (!op) return cleared && peer->frame.id - 1 < peer->engine->sends ? TR_OK : damaged(peer);
    let_go(peer, op);
    if (cleared) return queue_send(peer, op, TR__P2P_DATA);
    finish(peer, op, TR_OK);
    return TR_OK;
}

static tr_status frame_comes(tr__p2p_peer *peer)
{
    tr__p2p_frame *f = &peer->frame;
    int64_t bytes;
    f->file[TR__PLACE_TEXT - 1] = 0;
    if (f->magic != TR__P2P_MAGIC || f->dtype >= TR_DTYPE_COUNT || f->count < 0 ||
        __builtin_mul_overflow(f->count, (int64_t)tr_dtype_size((tr_dtype)f->dtype), &bytes) || bytes > PTRDIFF_MAX / 2)
        return damaged(peer);
    if (f->taken - peer->credited > peer->charged - peer->credited) return damaged(peer);
    if (f->taken != peer->credited) {
        peer->credited = f->taken;
        peer->lying = 0;
        TR__TRY(push_held(peer));
    }
    peer->bytes = (size_t)bytes;
    switch (f->type) {
    case TR__P2P_EAGER: return peer->bytes <= peer->eager ? message_comes(peer) : damaged(peer);
    case TR__P2P_RTS: return message_comes(peer);
    case TR__P2P_DATA:
    case TR__P2P_PUSH: return data_comes(peer);
    case TR__P2P_CTS:
    case TR__P2P_FIN: return answer_comes(peer);
    case TR__P2P_CREDITS:
        peer->lying = peer->bytes;
        peer->lying_tag = f->tag;
        return TR_OK;
    default: return damaged(peer);
    }
}

/* A frame and all that follows it is here. */
static tr_status frame_ends(tr__p2p_peer *peer)
{
    tr__p2p_op *op = peer->reading;
    peer->got = 0;
    peer->reading = NULL;
    if (!op || !op->work) return TR_OK;
    take_out(&peer->lists[TR__P2P_CLEARED], op);
    finish(peer, op, TR_OK);
    return is_charged(peer->frame.type) ? took(peer, peer->bytes) : TR_OK;
}

tr_status tr__p2p_lost(tr__p2p_peer *peer, int error)
{
    const tr__p2p_op *op = tr__p2p_any(peer);
    tr__tcp *tcp = peer->engine->tcp;
    peer->closed = true;
    if (!op) return error == EBADMSG ? tr__tcp_damaged(tcp, peer->remote) : TR_OK;
    tr__signature call = tr__p2p_call(peer->engine, op);
    return tr__tcp_lost(tcp, peer->remote, &call, error);
}

/* Bytes of a frame, or of what follows it. */
static tr_status take(tr__p2p_peer *peer, size_t of_frame, size_t got)
{
    if (of_frame) {
        peer->got += got;
        if (got < of_frame) return TR_OK;
        TR__TRY(frame_comes(peer));
    } else {
        peer->to += got;
        peer->left_over -= got;
    }
    return peer->left_over ? TR_OK : frame_ends(peer);
}

tr_status tr__p2p_read(tr__p2p_peer *peer, bool *moved)
{
    tr_status status = TR_OK;
    bool any = false;
    for (int piece = 0; piece < PIECES && status == TR_OK && !peer->closed; piece++) {
        size_t of_frame = sizeof peer->frame - peer->got;
        char *to = of_frame ? (char *)&peer->frame + peer->got : peer->to;
        ssize_t got = tr__p2p_get(peer, to, of_frame ? of_frame : peer->left_over);
        if (got < 0 && tr__wire_would_block()) break;
        if (got <= 0) return tr__p2p_lost(peer, got < 0 ? errno : 0);
        any = true;
        status = take(peer, of_frame, (size_t)got);
    }
    if (any && peer->local) tr__shm_mail(peer->local->control); /* there is room again */
    *moved |= any;
    return status;
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

/* A frame and all that follows it has gone. */
static tr_status written(tr__p2p_peer *peer, tr__p2p_op *op)
{
    if (op->work && op->frame.type == TR__P2P_RTS) {
        append(&peer->lists[TR__P2P_OFFERED], op);
        return op->held ? push_held(peer) : TR_OK; /* credit may have come meanwhile */
    }
    bool credit = op->frame.type == TR__P2P_CREDITS;
    finish(peer, op, TR_OK);
    return credit ? give_credit_if_due(peer) : TR_OK;
}

/* Has the connection taken something that it has not sent yet? */
static bool is_on_its_way(const tr__p2p_peer *peer)
{
    const tr__wire *wire = peer->remote ? tr__tcp_wire(peer->engine->tcp, peer->rank, TR__P2P_CHANNEL) : NULL;
    return wire && tr__wire_pending(wire);
}

tr_status tr__p2p_write(tr__p2p_peer *peer, bool *moved)
{
    tr__p2p_op *op;
    while ((op = peer->lists[TR__P2P_OUT].first) && !peer->closed) {
        size_t head = sizeof op->frame, total = head + op->payload;
        while (op->sent < total || is_on_its_way(peer)) {
            size_t of_head = op->sent < head ? op->sent : head, of_payload = op->sent - of_head;
            const struct iovec parts[2] = {{(char *)&op->frame + of_head, head - of_head},
                {op->payload ? (char *)op->work->collective.in + of_payload : NULL, op->payload - of_payload}};
            ssize_t put = tr__p2p_put(peer, parts);
            if (put < 0) return tr__wire_would_block() ? TR_OK : tr__p2p_lost(peer, errno);
            op->sent += (size_t)put;
            *moved = true;
        }
        take_out(&peer->lists[TR__P2P_OUT], op);
        TR__TRY(written(peer, op));
    }
    return TR_OK;
}

/* ---- The end ------------------------------------------------------------------------------------------------------ */

static tr_status fail_op(const tr__p2p *p, const tr__p2p_op *op, bool with_call)
{
    char text[TR__CALL_TEXT];
    tr_status status = tr__failure_tell(p->failure);
    if (!with_call) return status;
    tr__signature call = tr__p2p_call(p, op);
    return tr__fail_context(status, "%s", tr__signature_text(&call, text));
}

void tr__p2p_drop_all(tr__p2p *p, bool with_call)
{
    for (int i = 0; i < TR__P2P_LISTS * (p->world_size + 1); i++) {
        tr__p2p_peer *peer = &p->peers[i / TR__P2P_LISTS];
        tr__p2p_ops *list = &peer->lists[i % TR__P2P_LISTS];
        for (tr__p2p_op *op; (op = list->first);) {
            take_out(list, op);
            finish(peer, op, op->work ? fail_op(p, op, with_call) : TR_OK);
        }
        while (peer->arrived.first) drop_arrival(peer, peer->arrived.first);
        peer->got = peer->left_over = 0;
        peer->held = 0;
        peer->reading = NULL;
        peer->closed = true;
    }
}
