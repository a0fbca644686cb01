/*
 * Control connections: what the ranks tell each other beside their data. Nobody reads them while no collective runs,
 * so what happens meanwhile is found at the next call.
 */
#include "base/log.h"
#include "comm/transport/tcp.h"

#include <errno.h>
#include <poll.h>
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
static void tell(int socket, const tr__tcp_frame *frame, const char *text)
{
    struct iovec parts[2] = {{(void *)frame, sizeof *frame}, {(void *)text, (size_t)frame->bytes}};
    struct msghdr m = {.msg_iov = parts, .msg_iovlen = frame->bytes ? 2 : 1};
    ssize_t sent;
    while ((sent = sendmsg(socket, &m, MSG_NOSIGNAL | MSG_DONTWAIT)) < 0 && errno == EINTR) continue;
    if (sent > 0 && (size_t)sent < sizeof *frame + frame->bytes) shutdown(socket, SHUT_WR);
}

void tr__tcp_tell_all(tr__tcp *t, const tr__tcp_frame *frame, const char *text)
{
    pthread_mutex_lock(&t->lock); /* messages of two threads do not mix */
    for (int rank = 0; rank < t->world_size; rank++)
        if (t->peers[rank].sockets[TR__TCP_CONTROL_LANE] >= 0)
            tell(t->peers[rank].sockets[TR__TCP_CONTROL_LANE], frame, text);
    pthread_mutex_unlock(&t->lock);
}

/* ---- Hearing ----------------------------------------------------------------------------------------------------- */

static char *last_text(const tr__tcp *t, char text[TR__CALL_TEXT])
{
    return t->has_last ? tr__signature_text(&t->last, text) : strcpy(text, "joining");
}

static tr_status died(tr__tcp *t, tr__tcp_peer *peer, int error)
{
    char name[TR__TCP_NAME], text[TR__CALL_TEXT];
    tr__tcp_name(peer, name);
    last_text(t, text);
    if (error && error != ECONNRESET && error != EPIPE) /* its host, or the way to it: keep-alive found nobody */
        tr__fail_errno(TR_PEER, error, "%s cannot be reached any more, during %s", name, text);
    else
        tr__fail(TR_PEER, "%s died during %s", name, text);
    return tr__tcp_break(t);
}

/* The control connection is at its end. */
static tr_status hang_up(tr__tcp *t, tr__tcp_peer *peer, int error)
{
    pthread_mutex_lock(&t->lock);
    epoll_ctl(t->watch, EPOLL_CTL_DEL, peer->sockets[TR__TCP_CONTROL_LANE], NULL);
    close(peer->sockets[TR__TCP_CONTROL_LANE]);
    peer->sockets[TR__TCP_CONTROL_LANE] = -1;
    pthread_mutex_unlock(&t->lock);
    return peer->left ? TR_OK : died(t, peer, error);
}

static tr_status handle(tr__tcp *t, tr__tcp_peer *peer, const tr__signature *call)
{
    const tr__tcp_frame *f = &peer->frame;
    switch (f->type) {
    case TR__TCP_CALL:
        peer->call = *call;
        peer->called = peer->announced = true;
        peer->waits_for = f->waits_for;
        const tr__signature *ours = tr__tcp_own_call(t, call);
        if (ours->sequence != call->sequence || !call->sequence || tr__signature_agrees(ours, call)) return TR_OK;
        tr__call_mismatch(t->group, t->rank, ours, peer->rank, call);
        return tr__tcp_break(t);
    case TR__TCP_BROKEN:
        peer->text[f->bytes < TR__TCP_TEXT ? f->bytes : TR__TCP_TEXT - 1] = 0;
        /* What one rank does on request is to the others a peer that fails them. */
        tr__fail(f->status > 0 && f->status != TR_CANCELLED ? f->status : TR_PEER, "%s", peer->text);
        return tr__tcp_break(t);
    case TR__TCP_GOODBYE: peer->left = true; return TR_OK;
    default: break;
    }
    char name[TR__TCP_NAME];
    tr__fail(TR_FORMAT, "%s sent a message of unknown type %d", tr__tcp_name(peer, name), f->type);
    return tr__tcp_break(t);
}

/* Reads what has come from a peer; *open is set to whether more may come. */
static tr_status hear_peer(tr__tcp *t, tr__tcp_peer *peer, bool *open)
{
    for (;;) {
        *open = peer->sockets[TR__TCP_CONTROL_LANE] >= 0;
        if (!*open) return TR_OK;
        bool framed = peer->got >= sizeof peer->frame;
        char *to = framed ? peer->text + (peer->got - sizeof peer->frame) : (char *)&peer->frame + peer->got;
        size_t want = framed ? sizeof peer->frame + peer->frame.bytes - peer->got : sizeof peer->frame - peer->got;
        ssize_t got = want ? recv(peer->sockets[TR__TCP_CONTROL_LANE], to, want, MSG_DONTWAIT) : 0;
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return TR_OK;
        if (want && got <= 0) {
            TR__TRY(hang_up(t, peer, got < 0 ? errno : 0));
            continue;
        }
        peer->got += (size_t)got;
        if (peer->got < sizeof peer->frame) continue;
        tr__signature call;
        if (!tr__tcp_read_frame(&peer->frame, &call) || peer->frame.type == TR__TCP_DATA) {
            char name[TR__TCP_NAME];
            tr__fail(TR_FORMAT, "%s sent a damaged message", tr__tcp_name(peer, name));
            return tr__tcp_break(t);
        }
        if (peer->got < sizeof peer->frame + peer->frame.bytes) continue;
        peer->got = 0;
        TR__TRY(handle(t, peer, &call));
    }
}

tr_status tr__tcp_hear(tr__tcp *t)
{
    enum { EVENTS = 16 };
    struct epoll_event events[EVENTS];
    int ready = epoll_wait(t->watch, events, EVENTS, 0);
    for (int i = 0; i < ready; i++) {
        bool open;
        if (events[i].data.fd != t->rank) TR__TRY(hear_peer(t, &t->peers[events[i].data.fd], &open));
    }
    return atomic_load(&t->broken) ? tr__tcp_failure(t) : TR_OK;
}

/* ---- A data connection ends -------------------------------------------------------------------------------------- */

static tr_status left_early(tr__tcp *t, tr__tcp_peer *peer)
{
    char name[TR__TCP_NAME], here[TR__CALL_TEXT], text[TR__CALL_TEXT] = "joining";
    if (peer->called) tr__signature_text(&peer->call, text);
    tr__fail(TR_PEER, "%s left group '%s' after %s, but %s needs it", tr__tcp_name(peer, name), t->group, text,
        last_text(t, here));
    return tr__tcp_break(t);
}

/* The control connection tells why; both ends of a dead process go at once. */
tr_status tr__tcp_lost(tr__tcp *t, tr__tcp_peer *peer, int error)
{
    enum { LOOK_MS = 1000 };
    bool open = true;
    while (open && !peer->left) {
        struct pollfd p = {.fd = peer->sockets[TR__TCP_CONTROL_LANE], .events = POLLIN};
        if (poll(&p, 1, LOOK_MS) == 0) return died(t, peer, error);
        TR__TRY(hear_peer(t, peer, &open));
    }
    return left_early(t, peer);
}
