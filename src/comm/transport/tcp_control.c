/*
 * What the ranks tell each other beside their data, as the endpoint's monitor hears it (net/network_monitor.c), whose thread must not
 * be kept waiting. A control connection that ends without a goodbye to the group is a dead rank.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "comm/transport/tcp.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- Frames ------------------------------------------------------------------------------------------------------ */

tr__tcp_frame tr__tcp_frame_of(const tr__signature *s, enum tr__tcp_type type, size_t bytes)
{
    static const tr__signature none;
    if (!s) s = &none;
    tr__tcp_frame f = {.magic = TR__NETWORK_MAGIC, .version = TR__NETWORK_VERSION, .type = (uint8_t)type, .bytes = bytes,
        .kind = (uint8_t)s->kind, .dtype = (uint8_t)s->dtype, .op = (uint8_t)s->op, .sequence = s->sequence,
        .layout = s->layout, .count = s->count, .root = s->root, .peer = s->peer, .tag = s->tag, .line = s->line,
        .waits_for = -1};
    memcpy(f.file, s->file, sizeof f.file);
    return f;
}

bool tr__tcp_read_frame(const tr__tcp_frame *f, tr__signature *call)
{
    if (f->magic != TR__NETWORK_MAGIC || f->version != TR__NETWORK_VERSION) return false;
    if (f->kind >= TR_COLLECTIVE_COUNT || f->dtype >= TR_DTYPE_COUNT || f->op >= TR_REDUCE_OP_COUNT) return false;
    if (f->type != TR__TCP_DATA && f->bytes > TR__FRAME_TEXT) return false;
    *call = (tr__signature){.sequence = f->sequence, .kind = f->kind, .dtype = f->dtype, .op = f->op, .root = f->root,
        .peer = f->peer, .tag = f->tag, .count = f->count, .layout = f->layout, .line = f->line};
    memcpy(call->file, f->file, sizeof call->file);
    call->file[sizeof call->file - 1] = 0;
    return true;
}

const tr__signature *tr__tcp_own_call(const tr__tcp *t, const tr__signature *theirs)
{
    const tr__signature *past = &t->past[theirs->sequence % TR__TCP_PAST];
    bool is_past = theirs->sequence > 0 && past->sequence == theirs->sequence;
    return is_past && !tr__signature_agrees(past, theirs) ? past : &t->last;
}

void tr__tcp_tell_all(tr__tcp *t, const tr__tcp_frame *frame, const char *text)
{
    tr__network_frame ours;
    memcpy(&ours, frame, sizeof ours);
    tr__network_tell_all(t->place, &ours, text);
}

/* ---- Hearing ----------------------------------------------------------------------------------------------------- */

static void note_call(tr__tcp_peer *peer, const tr__signature *call)
{
    peer->call = *call;
    peer->called = true;
    if (call->sequence) peer->numbered = *call;
}

void tr__tcp_heard(tr__tcp *t, tr__tcp_peer *peer, const tr__signature *call)
{
    TR__LOCKED(&t->lock);
    note_call(peer, call);
}

/* "during all_reduce #3 (…)", "after all_reduce #3 (…)": where this rank is. */
static void write_moment(tr__tcp *t, char *text, size_t size)
{
    char call[TR__CALL_TEXT];
    TR__LOCKED(&t->lock);
    if (t->has_last)
        snprintf(text, size, "%s %s", t->running ? "during" : "after", tr__signature_text(&t->last, call));
    else
        snprintf(text, size, "before the first collective");
}

/* Under the endpoint's `hearing`. A program that is in no call learns of the failure at its next call; the log tells it now. While
 * the members are not known, the program is in the call that makes the group, and this rank is not known either. */
static void log_if_idle(tr__tcp *t)
{
    pthread_mutex_lock(&t->lock);
    bool idle = !t->running && t->place->count;
    pthread_mutex_unlock(&t->lock);
    if (idle) tr__log(TR_LOG_WARN, "group '%s' is broken, as rank %d finds: %s", t->group, t->rank, tr_error_message());
}

static tr_status died(tr__tcp *t, const tr__tcp_peer *peer, const char *moment, int error)
{
    char name[TR__TCP_NAME], end[TR__END_TEXT];
    tr__tcp_name(peer, name);
    if (error && error != ECONNRESET && error != EPIPE) /* its host, or the way to it: nobody answers there */
        tr__fail_errno(TR_PEER, error, "%s cannot be reached any more, %s", name, moment);
    else
        tr__fail(TR_PEER, "%s %s %s", name, tr__end_text(peer->visible ? peer->pid : 0, t->group, end), moment);
    return tr__failure_break(t->failure);
}

tr_status tr__tcp_damaged(tr__tcp *t, const tr__tcp_peer *peer)
{
    char name[TR__TCP_NAME], moment[TR__CALL_TEXT + 32];
    write_moment(t, moment, sizeof moment);
    tr__fail(TR_FORMAT, "%s sent a damaged message, %s, %s", tr__tcp_name(peer, name),
        t->network->key ? "which does not decrypt" : "whose checksum is wrong", moment);
    return tr__failure_break(t->failure);
}

static tr_status hang_up(tr__tcp *t, tr__tcp_peer *peer, int error)
{
    char moment[TR__CALL_TEXT + 32];
    bool left = atomic_load(&peer->left);
    if (!left) tr__failure_note_death(t->failure, peer->rank);
    const tr__raw_events *events = atomic_load(&t->raw);
    if (events) events->gone(events->user, peer->rank, left, false);
    if (left) return TR_OK;
    if (error == EBADMSG) return tr__tcp_damaged(t, peer);
    write_moment(t, moment, sizeof moment);
    return died(t, peer, moment, error);
}

/* A call that differs from ours breaks the group only when all that has come is read: if this rank is late, the reason why the
 * others gave up may be among it. */
static void hear_call(tr__tcp *t, tr__tcp_peer *peer, const tr__tcp_frame *frame, const tr__signature *call)
{
    pthread_mutex_lock(&t->lock);
    note_call(peer, call);
    if (call->sequence > t->ahead) t->ahead = call->sequence;
    int waits_for = frame->waits_for;
    bool exists = waits_for >= 0 && waits_for < t->world_size && waits_for != peer->rank;
    peer->waits[tr__kind_of(call->kind)->point_to_point] =
        (tr__tcp_wait_edge){exists ? waits_for : -1, call->sequence, tr__now_ns()};
    tr__signature ours = *tr__tcp_own_call(t, call);
    pthread_mutex_unlock(&t->lock);
    if (ours.sequence != call->sequence || !call->sequence || tr__signature_agrees(&ours, call) || t->mismatch.there) return;
    t->mismatch = (tr__tcp_mismatch){true, peer->rank, ours, *call};
    atomic_store(&t->network->unsettled, true);
}

/* call: its last one; without a number when it has made none. */
static void hear_goodbye(tr__tcp *t, tr__tcp_peer *peer, const tr__signature *call)
{
    pthread_mutex_lock(&t->lock);
    atomic_store(&peer->left, true);
    if (call->sequence) note_call(peer, call);
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    const tr__raw_events *events = atomic_load(&t->raw);
    if (events) events->gone(events->user, peer->rank, true, false);
    tr__tcp_wake(t); /* it makes no connection any more */
}

static tr_status hear_failure(tr__tcp *t, tr__tcp_peer *peer, const tr__tcp_frame *f, const char *text)
{
    char name[TR__TCP_NAME];
    if (f->bytes && text[0])
        tr__fail(tr__failure_is_common(f->status) ? f->status : TR_PEER, "%.*s", (int)f->bytes, text);
    else
        tr__fail(TR_PEER, "%s gave up group '%s' and does not say why", tr__tcp_name(peer, name), t->group);
    return tr__failure_break(t->failure);
}

static tr_status handle(tr__tcp *t, tr__tcp_peer *peer, const tr__tcp_frame *f, const char *text)
{
    tr__signature call;
    char name[TR__TCP_NAME];
    if (!tr__tcp_read_frame(f, &call) || f->type == TR__TCP_DATA) {
        tr__fail(TR_FORMAT, "%s sent a damaged message", tr__tcp_name(peer, name));
        return tr__failure_break(t->failure);
    }
    switch (f->type) {
    case TR__TCP_CALL: hear_call(t, peer, f, &call); return TR_OK;
    case TR__TCP_BROKEN: return hear_failure(t, peer, f, text);
    case TR__TCP_GOODBYE: hear_goodbye(t, peer, &call); return TR_OK;
    default: break;
    }
    tr__fail(TR_FORMAT, "%s sent a message of unknown type %d", tr__tcp_name(peer, name), f->type);
    return tr__failure_break(t->failure);
}

/* ---- What the endpoint calls ------------------------------------------------------------------------------------- */

static void heard(void *user, int member, const tr__network_frame *frame, const char *text)
{
    tr__tcp *t = user;
    tr__tcp_frame f;
    memcpy(&f, frame, sizeof f);
    bool sound = !tr__failure_there(t->failure);
    if (handle(t, &t->peers[member], &f, text) != TR_OK && sound) log_if_idle(t);
}

static void heard_all(void *user)
{
    tr__tcp *t = user;
    const tr__tcp_mismatch *m = &t->mismatch;
    if (m->there && !tr__failure_there(t->failure)) {
        tr__call_mismatch(t->group, t->rank, &m->ours, m->rank, &m->theirs);
        if (tr__failure_break(t->failure) != TR_OK) log_if_idle(t);
    }
    t->mismatch.there = false;
}

static void gone(void *user, int member, int error)
{
    tr__tcp *t = user;
    bool sound = !tr__failure_there(t->failure);
    if (hang_up(t, &t->peers[member], error) != TR_OK && sound) log_if_idle(t);
}

static bool wants(void *user, int member, tr__channel channel, bool before)
{
    tr__tcp *t = user;
    tr__tcp_peer *peer = &t->peers[member];
    bool over = atomic_load(&peer->left) || tr__failure_there(t->failure);
    return !atomic_load(&peer->connections[channel]) && !(before && over);
}

static void connected(void *user, int member, tr__channel channel, tr__network_connection *connection)
{
    tr__tcp *t = user;
    if (connection) atomic_store(&t->peers[member].connections[channel], connection);
    tr__tcp_wake(t);
}

static void failed(void *user)
{
    tr__tcp *t = user;
    if (!tr__failure_there(t->failure) && tr__failure_break(t->failure) != TR_OK) log_if_idle(t);
}

static void all_here(void *user)
{
    tr__tcp_wake(user);
}

const tr__network_calls tr__tcp_calls = {heard, heard_all, gone, wants, connected, failed, all_here};

/* ---- Before a failure of our own --------------------------------------------------------------------------------- */

tr_status tr__tcp_check_peers(tr__tcp *t)
{
    enum { LOOK_NS = 1000000000, PAUSE_NS = 500000 };
    int64_t until = tr__now_ns() + LOOK_NS;
    while (!tr__failure_there(t->failure) && tr__network_behind(t->network) && tr__now_ns() < until)
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    pthread_mutex_lock(&t->network->hearing); /* what it has read it has dealt with */
    pthread_mutex_unlock(&t->network->hearing);
    return tr__failure_tell(t->failure);
}

/* ---- Another connection ends -------------------------------------------------------------------------------------- */

static tr_status left_early(tr__tcp *t, const tr__tcp_peer *peer, const tr__signature *call)
{
    char name[TR__TCP_NAME], here[TR__CALL_TEXT], text[TR__CALL_TEXT] = "joining";
    pthread_mutex_lock(&t->lock);
    bool took_part = call->sequence && peer->numbered.sequence >= call->sequence;
    if (peer->called) tr__signature_text(&peer->call, text);
    pthread_mutex_unlock(&t->lock);
    tr__tcp_name(peer, name);
    tr__signature_text(call, here);
    if (took_part) /* what it had sent did not arrive */
        tr__fail(TR_PEER, "%s lost its connection to rank %d during %s, and has left group '%s'", name, t->rank, here, t->group);
    else
        tr__fail(TR_PEER, "%s left group '%s' after %s, but %s needs it", name, t->group, text, here);
    return tr__failure_break(t->failure);
}

/* The control connection tells why; all ends of a dead process go at once. */
tr_status tr__tcp_lost(tr__tcp *t, tr__tcp_peer *peer, const tr__signature *call, int error)
{
    enum { LOOK_NS = 1000000000 };
    int64_t deadline = tr__now_ns() + LOOK_NS;
    if (error == EBADMSG) return tr__tcp_damaged(t, peer);
    pthread_mutex_lock(&t->lock);
    while (!tr__failure_there(t->failure) && !peer->left && tr__condition_wait(&t->changed, &t->lock, deadline)) continue;
    bool left = peer->left, broken = tr__failure_there(t->failure);
    pthread_mutex_unlock(&t->lock);
    if (broken) return tr__failure_tell(t->failure);
    if (left) return left_early(t, peer, call);
    char moment[TR__CALL_TEXT + 32], text[TR__CALL_TEXT];
    snprintf(moment, sizeof moment, "during %s", tr__signature_text(call, text));
    return died(t, peer, moment, error);
}
