/*
 * Control connections: what the ranks tell each other beside their data. The monitor, a thread per group, sleeps on
 * them: a connection that ends without a goodbye is a dead peer, and the kernel tells at once, however it died. So a
 * rank that computes, sleeps, or waits for somebody else knows it as soon as one that waits for that peer. A host that is
 * gone tells nothing: once a second the monitor looks for how long nothing has come from there.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "comm/transport/tcp.h"
#include "net/link.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* ---- Frames ------------------------------------------------------------------------------------------------------ */

tr__tcp_frame tr__tcp_frame_of(const tr__signature *s, enum tr__tcp_type type, size_t bytes)
{
    static const tr__signature none;
    if (!s) s = &none;
    tr__tcp_frame f = {.magic = TR__TCP_MAGIC, .version = TR__TCP_VERSION, .type = (uint8_t)type, .bytes = bytes,
        .kind = (uint8_t)s->kind, .dtype = (uint8_t)s->dtype, .op = (uint8_t)s->op, .sequence = s->sequence,
        .layout = s->layout, .count = s->count, .root = s->root, .peer = s->peer, .tag = s->tag, .line = s->line,
        .waits_for = -1};
    memcpy(f.file, s->file, sizeof f.file);
    return f;
}

bool tr__tcp_read_frame(const tr__tcp_frame *f, tr__signature *call)
{
    if (f->magic != TR__TCP_MAGIC || f->version != TR__TCP_VERSION) return false;
    if (f->kind >= TR_COLLECTIVE_COUNT || f->dtype >= TR_DTYPE_COUNT || f->op >= TR_REDUCE_OP_COUNT) return false;
    if (f->type != TR__TCP_DATA && f->bytes > TR__TCP_TEXT) return false;
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

/* ---- Telling ----------------------------------------------------------------------------------------------------- */

/* A message is short, and its connection all but always empty. When it does not fit, the peer has not read for so long
 * that it must do without: a message in part would be taken for damage. */
static void tell(tr__wire *wire, const tr__tcp_frame *frame, const char *text)
{
    struct iovec parts[2] = {{(void *)frame, sizeof *frame}, {(void *)text, (size_t)frame->bytes}};
    ssize_t sent;
    while ((sent = tr__wire_send(wire, parts, frame->bytes ? 2 : 1)) < 0 && errno == EINTR) continue;
    bool in_part = sent < 0 ? !tr__wire_withdraw(wire) : (size_t)sent < sizeof *frame + frame->bytes;
    if (in_part) shutdown(wire->socket, SHUT_WR);
}

void tr__tcp_tell_all(tr__tcp *t, const tr__tcp_frame *frame, const char *text)
{
    pthread_mutex_lock(&t->lock); /* messages of two threads do not mix */
    for (int rank = 0; rank < t->world_size; rank++)
        if (t->peers[rank].wires[TR__TCP_CONTROL_LANE].socket >= 0)
            tell(&t->peers[rank].wires[TR__TCP_CONTROL_LANE], frame, text);
    pthread_mutex_unlock(&t->lock);
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
    pthread_mutex_lock(&t->lock);
    note_call(peer, call);
    pthread_mutex_unlock(&t->lock);
}

/* "during all_reduce #3 (…)", "after all_reduce #3 (…)": where this rank is. */
static void write_moment(tr__tcp *t, char *text, size_t size)
{
    char call[TR__CALL_TEXT];
    pthread_mutex_lock(&t->lock);
    if (t->has_last)
        snprintf(text, size, "%s %s", t->running ? "during" : "after", tr__signature_text(&t->last, call));
    else
        snprintf(text, size, "before the first collective");
    pthread_mutex_unlock(&t->lock);
}

/* A program that is in no call will not hear of it before its next one; who reads the log does. */
static void log_if_idle(tr__tcp *t)
{
    pthread_mutex_lock(&t->lock);
    bool idle = !t->running;
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
    return tr__tcp_break(t);
}

tr_status tr__tcp_damaged(tr__tcp *t, const tr__tcp_peer *peer)
{
    char name[TR__TCP_NAME], moment[TR__CALL_TEXT + 32];
    write_moment(t, moment, sizeof moment);
    tr__fail(TR_FORMAT, "%s sent a damaged message, %s, %s", tr__tcp_name(peer, name),
        t->key ? "which does not decrypt" : "whose checksum is wrong", moment);
    return tr__tcp_break(t);
}

/* The control connection is at its end. */
static tr_status hang_up(tr__tcp *t, tr__tcp_peer *peer, int error)
{
    char moment[TR__CALL_TEXT + 32];
    pthread_mutex_lock(&t->lock);
    epoll_ctl(t->watch, EPOLL_CTL_DEL, peer->wires[TR__TCP_CONTROL_LANE].socket, NULL);
    tr__wire_close(&peer->wires[TR__TCP_CONTROL_LANE]);
    if (!peer->left && !tr__failure_there(&t->failure)) t->dead = peer->rank;
    pthread_mutex_unlock(&t->lock);
    const tr__carried *carried = atomic_load(&t->carried);
    if (carried) carried->gone(carried->user, peer->rank, peer->left);
    if (peer->left) return TR_OK;
    if (error == EBADMSG) return tr__tcp_damaged(t, peer);
    write_moment(t, moment, sizeof moment);
    return died(t, peer, moment, error);
}

/* A call that is not ours is no reason yet: who comes late to it may be about to hear that the others gave up. */
static void hear_call(tr__tcp *t, tr__tcp_peer *peer, const tr__signature *call)
{
    pthread_mutex_lock(&t->lock);
    note_call(peer, call);
    if (call->sequence > t->ahead) t->ahead = call->sequence;
    int waits_for = peer->frame.waits_for;
    bool exists = waits_for >= 0 && waits_for < t->world_size && waits_for != peer->rank;
    peer->claims[tr__kind_of(call->kind)->point_to_point] =
        (tr__tcp_claim){exists ? waits_for : -1, call->sequence, tr__now_ns()};
    tr__signature ours = *tr__tcp_own_call(t, call);
    pthread_mutex_unlock(&t->lock);
    if (ours.sequence != call->sequence || !call->sequence || tr__signature_agrees(&ours, call) || t->dispute.there) return;
    t->dispute = (tr__tcp_dispute){true, peer->rank, ours, *call};
}

/* call: its last one; without a number when it has made none. */
static void hear_goodbye(tr__tcp *t, tr__tcp_peer *peer, const tr__signature *call)
{
    pthread_mutex_lock(&t->lock);
    peer->left = true;
    if (call->sequence) note_call(peer, call);
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

static tr_status hear_failure(tr__tcp *t, tr__tcp_peer *peer)
{
    const tr__tcp_frame *f = &peer->frame;
    char name[TR__TCP_NAME];
    peer->text[f->bytes < TR__TCP_TEXT ? f->bytes : TR__TCP_TEXT - 1] = 0;
    if (peer->text[0])
        tr__fail(tr__failure_is_common(f->status) ? f->status : TR_PEER, "%s", peer->text);
    else
        tr__fail(TR_PEER, "%s gave up group '%s' and does not say why", tr__tcp_name(peer, name), t->group);
    return tr__tcp_break(t);
}

static tr_status handle(tr__tcp *t, tr__tcp_peer *peer, const tr__signature *call)
{
    const tr__tcp_frame *f = &peer->frame;
    switch (f->type) {
    case TR__TCP_CALL: hear_call(t, peer, call); return TR_OK;
    case TR__TCP_BROKEN: return hear_failure(t, peer);
    case TR__TCP_GOODBYE: hear_goodbye(t, peer, call); return TR_OK;
    default: break;
    }
    char name[TR__TCP_NAME];
    tr__fail(TR_FORMAT, "%s sent a message of unknown type %d", tr__tcp_name(peer, name), f->type);
    return tr__tcp_break(t);
}

/* What else comes from there is not read: nobody knows where a message would begin. */
static tr_status damaged(tr__tcp *t, const tr__tcp_peer *peer)
{
    char name[TR__TCP_NAME];
    epoll_ctl(t->watch, EPOLL_CTL_DEL, peer->wires[TR__TCP_CONTROL_LANE].socket, NULL);
    tr__fail(TR_FORMAT, "%s sent a damaged message", tr__tcp_name(peer, name));
    return tr__tcp_break(t);
}

/* Under the lock, as others may be telling that peer something. */
static ssize_t hear_bytes(tr__tcp *t, tr__tcp_peer *peer, char *to, size_t want)
{
    pthread_mutex_lock(&t->lock);
    ssize_t got = tr__wire_receive(&peer->wires[TR__TCP_CONTROL_LANE], &(struct iovec){to, want}, 1, false);
    int error = errno;
    pthread_mutex_unlock(&t->lock);
    errno = error;
    return got;
}

/* Reads what has come from a peer. */
static tr_status hear_peer(tr__tcp *t, tr__tcp_peer *peer)
{
    for (;;) {
        bool framed = peer->got >= sizeof peer->frame;
        char *to = framed ? peer->text + (peer->got - sizeof peer->frame) : (char *)&peer->frame + peer->got;
        size_t want = framed ? sizeof peer->frame + peer->frame.bytes - peer->got : sizeof peer->frame - peer->got;
        ssize_t got = want ? hear_bytes(t, peer, to, want) : 0;
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && tr__wire_would_block()) return TR_OK;
        if (want && got <= 0) return hang_up(t, peer, got < 0 ? errno : 0);
        peer->got += (size_t)got;
        if (peer->got < sizeof peer->frame) continue;
        tr__signature call;
        if (!tr__tcp_read_frame(&peer->frame, &call) || peer->frame.type == TR__TCP_DATA) return damaged(t, peer);
        if (peer->got < sizeof peer->frame + peer->frame.bytes) continue;
        peer->got = 0;
        TR__TRY(handle(t, peer, &call));
    }
}

/* ---- The monitor -------------------------------------------------------------------------------------------------- */

static void hear(tr__tcp *t, tr__tcp_peer *peer)
{
    bool sound = !tr__failure_there(&t->failure);
    pthread_mutex_lock(&t->hearing);
    if (hear_peer(t, peer) != TR_OK && sound) log_if_idle(t);
    pthread_mutex_unlock(&t->hearing);
}

static void settle_dispute(tr__tcp *t)
{
    const tr__tcp_dispute *d = &t->dispute;
    if (d->there && !tr__failure_there(&t->failure)) {
        tr__call_mismatch(t->group, t->rank, &d->ours, d->rank, &d->theirs);
        if (tr__tcp_break(t) != TR_OK) log_if_idle(t);
    }
    t->dispute.there = false;
}

/* Ranks whose hosts have fallen silent. Their connections stay open as long as the kernel hopes. */
static void find_lost(tr__tcp *t)
{
    for (int rank = 0; rank < t->world_size; rank++) {
        tr__tcp_peer *peer = &t->peers[rank];
        int sockets[TR__TCP_LANES];
        for (int lane = 0; lane < TR__TCP_LANES; lane++) sockets[lane] = peer->wires[lane].socket;
        if (sockets[TR__TCP_CONTROL_LANE] < 0 || !tr__link_lost(sockets, TR__TCP_LANES)) continue;
        bool sound = !tr__failure_there(&t->failure);
        pthread_mutex_lock(&t->hearing);
        if (hang_up(t, peer, ETIMEDOUT) != TR_OK && sound) log_if_idle(t);
        pthread_mutex_unlock(&t->hearing);
    }
}

static void *monitor(void *arg)
{
    enum { EVENTS = 16, LOOK_MS = 1000 };
    tr__tcp *t = arg;
    struct epoll_event events[EVENTS];
    int64_t look = tr__now_ns() + LOOK_MS * (int64_t)1000000;
    for (int rank = 0; rank < t->world_size; rank++) /* what came with the last bytes of joining */
        if (tr__wire_holds(&t->peers[rank].wires[TR__TCP_CONTROL_LANE])) hear(t, &t->peers[rank]);
    while (!atomic_load(&t->stopping)) {
        int ready = epoll_wait(t->watch, events, EVENTS, t->dispute.there ? 0 : LOOK_MS);
        for (int i = 0; i < ready; i++)
            if (events[i].data.fd != t->rank) hear(t, &t->peers[events[i].data.fd]);
        if (ready == 0) settle_dispute(t);
        if (tr__now_ns() < look) continue;
        find_lost(t);
        look = tr__now_ns() + LOOK_MS * (int64_t)1000000;
    }
    return NULL;
}

tr_status tr__tcp_heed(tr__tcp *t)
{
    enum { LOOK_NS = 1000000000, PAUSE_NS = 500000 };
    struct epoll_event any;
    int64_t until = tr__now_ns() + LOOK_NS;
    while (!tr__failure_there(&t->failure) && epoll_wait(t->watch, &any, 1, 0) > 0 && tr__now_ns() < until)
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    pthread_mutex_lock(&t->hearing); /* what it has read it has dealt with */
    pthread_mutex_unlock(&t->hearing);
    return tr__failure_there(&t->failure) ? tr__failure_tell(&t->failure) : TR_OK;
}

tr_status tr__tcp_monitor_start(tr__tcp *t)
{
    int error = tr__thread_start(&t->monitor, monitor, t);
    if (error) return tr__fail_errno(TR_NO_MEMORY, error, "group '%s': cannot start its monitor", t->group);
    t->has_monitor = true;
    return TR_OK;
}

void tr__tcp_monitor_stop(tr__tcp *t)
{
    if (!t->has_monitor) return;
    atomic_store(&t->stopping, true);
    ssize_t written = write(t->kick, &(uint64_t){1}, sizeof(uint64_t));
    (void)written;
    pthread_join(t->monitor, NULL);
    t->has_monitor = false;
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
    return tr__tcp_break(t);
}

/* The control connection tells why; all ends of a dead process go at once. */
tr_status tr__tcp_lost(tr__tcp *t, tr__tcp_peer *peer, const tr__signature *call, int error)
{
    enum { LOOK_NS = 1000000000 };
    int64_t until = tr__now_ns() + LOOK_NS;
    struct timespec deadline = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    int waited = 0;
    if (error == EBADMSG) return tr__tcp_damaged(t, peer);
    pthread_mutex_lock(&t->lock);
    while (!tr__failure_there(&t->failure) && !peer->left && waited == 0)
        waited = pthread_cond_timedwait(&t->changed, &t->lock, &deadline);
    bool left = peer->left, broken = tr__failure_there(&t->failure);
    pthread_mutex_unlock(&t->lock);
    if (broken) return tr__failure_tell(&t->failure);
    if (left) return left_early(t, peer, call);
    char moment[TR__CALL_TEXT + 32], text[TR__CALL_TEXT];
    snprintf(moment, sizeof moment, "during %s", tr__signature_text(call, text));
    return died(t, peer, moment, error);
}
