#include "comm/transport/tcp_flow.h"

#include "comm/algo/wide_type.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

/* ---- Hazards ----------------------------------------------------------------------------------------------------- */

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* How much of m can be used from its beginning without touching `other`. */
static size_t clear_of(tr__memory m, tr__memory other)
{
    if (!m.bytes || !other.bytes || other.at >= m.at + m.bytes || m.at >= other.at + other.bytes) return m.bytes;
    return other.at > m.at ? (size_t)(other.at - m.at) : 0;
}

static tr__memory rest_of(tr__memory m, size_t done)
{
    return (tr__memory){m.at ? m.at + done : NULL, m.bytes - done}; /* NULL: of a barrier */
}

/* How much of m a step may read, or write, now. */
static size_t allowed(const tr__tcp_call *call, int64_t step, tr__memory m, bool writing)
{
    size_t bytes = m.bytes;
    for (int64_t earlier = call->first; earlier <= step && bytes; earlier++) {
        const tr__tcp_slot *s = tr__tcp_slot_at(call, earlier);
        m.bytes = bytes;
        if (writing && s->out.open) bytes = least(bytes, clear_of(m, rest_of(s->out.memory, s->out.done)));
        if (earlier == step) break;
        if (s->in.open || s->local) {
            bytes = least(bytes, clear_of(m, rest_of(s->in.memory, s->in.done)));
            if (writing && s->own.bytes) bytes = least(bytes, clear_of(m, rest_of(s->own, s->in.done)));
            if (writing) bytes = least(bytes, clear_of(m, s->others));
        }
    }
    return bytes;
}

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

static void block(tr__tcp_call *call, int peer, short events)
{
    const tr__wire *wire = tr__tcp_wire(call->t, peer, TR__DATA_CHANNEL);
    call->ranks[call->blocked] = peer;
    call->t->polled[call->blocked++] = (struct pollfd){.fd = wire ? wire->socket : -1, .events = events};
}

/* There is no connection yet: waits for it, or for the reason why there never will be. */
static tr_status without_connection(tr__tcp_call *call, int peer, bool never)
{
    tr__tcp *t = call->t;
    if (never) return tr__tcp_lost(t, &t->peers[peer], &t->last, 0);
    block(call, peer, 0);
    return TR_OK;
}

tr_status tr__tcp_push(tr__tcp_call *call, int64_t step, bool *moved)
{
    tr__tcp *t = call->t;
    tr__tcp_slot *s = tr__tcp_slot_at(call, step);
    tr__tcp_transfer *out = &s->out;
    tr__memory rest = rest_of(out->memory, out->done);
    size_t ready = allowed(call, step, rest, false);
    bool never;
    tr__wire *wire = tr__tcp_need_wire(t, s->step.to, TR__DATA_CHANNEL, &never);
    if (!wire) return without_connection(call, s->step.to, never);
    bool too_little = ready < rest.bytes && ready < TR__TCP_PIECE;
    if (too_little && !tr__wire_pending(wire)) return TR_OK;
    tr__tcp_frame frame = tr__tcp_frame_of(&t->last, TR__TCP_DATA, out->memory.bytes);
    frame.algorithm = (uint8_t)call->schedule.algorithm;
    struct iovec parts[2] = {{(char *)&frame + out->framed, sizeof frame - out->framed},
        {rest.at, least(ready, TR__TCP_GULP)}};
    ssize_t sent = tr__wire_send(wire, parts, too_little ? 0 : 2);
    if (sent < 0 && tr__wire_would_block()) {
        block(call, s->step.to, POLLOUT);
        return TR_OK;
    }
    if (sent < 0) return tr__tcp_lost(t, &t->peers[s->step.to], &t->last, errno);
    size_t of_frame = least((size_t)sent, sizeof frame - out->framed);
    out->framed += of_frame;
    out->done += (size_t)sent - of_frame;
    out->open = out->framed < sizeof frame || out->done < out->memory.bytes || tr__wire_pending(wire);
    *moved = true;
    return TR_OK;
}

/* ---- Receiving --------------------------------------------------------------------------------------------------- */

/* The frame of a transfer has come: is it the one that the schedule has here? */
static tr_status check_frame(tr__tcp_call *call, tr__tcp_slot *s)
{
    tr__tcp *t = call->t;
    tr__tcp_peer *peer = &t->peers[s->step.from];
    tr__signature theirs;
    char name[TR__TCP_NAME];
    if (!tr__tcp_read_frame(&s->frame, &theirs) || s->frame.type != TR__TCP_DATA)
        return tr__fail(TR_FORMAT, "%s sent a damaged message", tr__tcp_name(peer, name));
    tr__tcp_heard(t, peer, &theirs);
    const tr__signature *ours = &t->last;
    bool agrees = theirs.sequence == ours->sequence && tr__signature_agrees(ours, &theirs);
    if (!agrees) TR__TRY(tr__tcp_check_peers(t));
    if (!agrees) return tr__call_mismatch(t->group, t->rank, tr__tcp_own_call(t, &theirs), peer->rank, &theirs);
    if (s->frame.algorithm != call->schedule.algorithm)
        return tr__fail(TR_MISMATCH, "group '%s': for the same call rank %d uses the algorithm '%s' and rank %d '%s'; "
            "all ranks must be given the same .algorithms", t->group, t->rank,
            tr__algorithm_name(call->schedule.algorithm), peer->rank, tr__algorithm_name(s->frame.algorithm));
    if (s->frame.bytes == s->in.memory.bytes) return TR_OK;
    return tr__block_mismatch(t->group, peer->rank, &theirs, (int64_t)(s->frame.bytes / call->element), t->rank, ours,
        (int64_t)(s->in.memory.bytes / call->element));
}

/* Folds whole elements that lie at `from`. */
static void fold(tr__tcp_call *call, tr__tcp_slot *s, const char *from, size_t bytes)
{
    const void *own = s->own.at ? s->own.at + s->in.done : NULL, *in[2] = {own, from};
    if (s->step.take == TR__FOLD_BEFORE) {
        in[0] = from;
        in[1] = own;
    }
    void *to = s->in.memory.at ? s->in.memory.at + s->in.done : NULL;
    if (bytes) call->fold(in, 2, &to, 1, (int64_t)(bytes / call->element));
    s->in.done += bytes;
}

/* `bytes` have come into the stage behind what was carried: folds the whole elements and carries the rest. */
static void fold_stage(tr__tcp_call *call, tr__tcp_slot *s, size_t bytes)
{
    char *stage = call->t->stage;
    size_t there = s->carried + bytes, whole = there - there % call->element;
    fold(call, s, stage, whole);
    s->carried = there - whole;
    memcpy(s->carry, stage + whole, s->carried);
}

/* Where the next bytes of a transfer go. */
static tr__memory place_for(tr__tcp_call *call, int64_t step)
{
    tr__tcp_slot *s = tr__tcp_slot_at(call, step);
    tr__memory rest = rest_of(s->in.memory, s->in.done);
    size_t free_bytes = allowed(call, step, rest, true);
    if (s->step.take == TR__TAKE) return (tr__memory){rest.at, least(free_bytes, TR__TCP_GULP)};
    if (s->own.bytes) free_bytes = least(free_bytes, allowed(call, step, rest_of(s->own, s->in.done), false));
    free_bytes = least(free_bytes - free_bytes % call->element, TR__TCP_STAGE);
    memcpy(call->t->stage, s->carry, s->carried);
    return (tr__memory){call->t->stage + s->carried, free_bytes > s->carried ? free_bytes - s->carried : 0};
}

/* The socket gave nothing: waits for it, or for the reason why it never will. */
static tr_status without_bytes(tr__tcp_call *call, const tr__tcp_slot *s, ssize_t got)
{
    tr__tcp *t = call->t;
    if (got < 0 && tr__wire_would_block()) {
        block(call, s->step.from, POLLIN);
        return TR_OK;
    }
    return tr__tcp_lost(t, &t->peers[s->step.from], &t->last, got < 0 ? errno : 0);
}

/* What comes with checksums is folded from where it lies: `most` bytes may be. *whole is not set where elements are cut. */
static tr_status fold_in_place(tr__tcp_call *call, tr__tcp_slot *s, size_t most, bool *moved, bool *whole)
{
    tr__wire *wire = tr__tcp_wire(call->t, s->step.from, TR__DATA_CHANNEL);
    const char *there;
    size_t bytes;
    *whole = true;
    int found = tr__checked_peek(&wire->in, wire->socket, &there, &bytes);
    if (found <= 0) return without_bytes(call, s, found);
    bytes = least(bytes, most);
    *whole = bytes >= call->element && (uintptr_t)there % call->element == 0;
    if (!*whole) return TR_OK;
    bytes -= bytes % call->element;
    fold(call, s, there, bytes);
    tr__checked_skip(&wire->in, bytes);
    s->in.open = s->in.done < s->in.memory.bytes;
    *moved = true;
    return TR_OK;
}

tr_status tr__tcp_pull(tr__tcp_call *call, int64_t step, bool *moved)
{
    tr__tcp *t = call->t;
    tr__tcp_slot *s = tr__tcp_slot_at(call, step);
    bool never;
    tr__wire *wire = tr__tcp_need_wire(t, s->step.from, TR__DATA_CHANNEL, &never);
    if (!wire) return without_connection(call, s->step.from, never);
    tr__memory place = place_for(call, step);
    size_t of_frame = sizeof s->frame - s->in.framed;
    if (!of_frame && !place.bytes) return TR_OK;

    bool takes = s->step.take == TR__TAKE, in_place = !takes && wire->checked && place.bytes >= TR__TCP_PIECE && !s->carried;
    if (in_place && !of_frame) {
        bool whole;
        tr_status status = fold_in_place(call, s, place.bytes, moved, &whole);
        if (status != TR_OK || whole) return status;
    }

    struct iovec parts[2] = {{(char *)&s->frame + s->in.framed, of_frame}, {place.at, place.bytes}};
    ssize_t got = tr__wire_receive(wire, parts, in_place && of_frame ? 1 : 2, takes);
    if (got <= 0) return without_bytes(call, s, got);
    *moved = true;
    of_frame = least(of_frame, (size_t)got);
    s->in.framed += of_frame;
    if (s->in.framed < sizeof s->frame) return TR_OK;
    if (of_frame) TR__TRY(check_frame(call, s));
    if (takes)
        s->in.done += (size_t)got - of_frame;
    else
        fold_stage(call, s, (size_t)got - of_frame);
    s->in.open = s->in.done < s->in.memory.bytes;
    return TR_OK;
}

/* ---- Local actions ----------------------------------------------------------------------------------------------- */

static void fold_local(tr__tcp_call *call, tr__tcp_slot *s, const void **in)
{
    const tr__schedule *schedule = &call->schedule;
    for (int rank = 0, other = 0; rank < schedule->world_size; rank++) {
        in[rank] = s->own.at;
        if (rank != schedule->rank) in[rank] = s->others.at + (size_t)(other++ * s->step.stride) * call->element;
    }
    void *out = s->in.memory.at;
    call->fold_all(in, schedule->world_size, &out, 1, (int64_t)(s->in.memory.bytes / call->element));
}

void tr__tcp_act(tr__tcp_call *call, int64_t step, bool *moved)
{
    tr__tcp_slot *s = tr__tcp_slot_at(call, step);
    bool clear = allowed(call, step, s->in.memory, true) == s->in.memory.bytes &&
                 allowed(call, step, s->own, false) == s->own.bytes &&
                 allowed(call, step, s->others, false) == s->others.bytes;
    if (!clear) return;
    if (s->step.action == TR_SCHEDULE_COPY && s->own.at != s->in.memory.at && s->own.bytes)
        memmove(s->in.memory.at, s->own.at, s->own.bytes);
    if (s->step.action == TR_SCHEDULE_FINISH) /* of an average: a sum until now, in a type that is wide enough */
        tr__narrow(call->c->dtype, TR_AVG, call->schedule.world_size, s->in.memory.at, s->in.memory.at,
            (int64_t)(s->in.memory.bytes / call->element));
    if (s->step.action == TR_SCHEDULE_FOLD && s->in.memory.bytes) fold_local(call, s, call->t->folded);
    s->local = false;
    *moved = true;
}
