/*
 * Messages to workers of other hosts: a frame, its body, the sizes of its pieces and the pieces themselves, which go out from where
 * they are and come in where they stay. They travel over the group's data connection (net/wire.h): through TLS where the job has a
 * key, else in records with a checksum. What it does not take at once is copied and goes later. That the worker has died is known
 * from the control connection, so the end of the stream alone counts only after a while.
 */
#include "rpc/agent.h"

#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum {
    FINISH_MS = 5000,
    CUT_MS = 500,
    IOV_MOST = 64,
    COMES = EPOLLIN | EPOLLRDHUP,
};

typedef struct chunk { /* did not go out at once */
    struct chunk *next;
    size_t at, bytes;
    char data[];
} chunk;

typedef enum stage { FRAME, BODY, SIZES, PIECES } stage;

struct tr__rpc_stream {
    tr__wire *wire;        /* the group's */
    int watch, worker;
    atomic_bool ready;     /* epoll says that there is something, */
    atomic_bool closes;    /* and that the stream ends behind it */
    _Atomic int64_t ended; /* when the stream ended; 0: not yet */
    pthread_mutex_t lock;  /* for what goes out; with TLS for what comes in, too */
    chunk *first, **last;
    bool awaits_room;      /* for these: epoll is to tell */
    /* What is coming in; under the agent's `reading`. */
    stage stage;
    tr__rpc_frame frame;
    tr__rpc_inbound *message;
    size_t got;            /* of the stage, or of the piece */
    int piece;
    uint64_t *sizes;
};

/* ---- Going out --------------------------------------------------------------------------------------------------- */

/* Under the lock: of some parts, how many bytes the wire takes; 0: it is full; -1: it has failed, which is seen by who reads. */
static ssize_t offer(tr__rpc_stream *f, const struct iovec *parts, int count)
{
    ssize_t sent;
    do sent = tr__wire_send(f->wire, parts, count < IOV_MOST ? count : IOV_MOST);
    while (sent < 0 && errno == EINTR);
    return sent < 0 && tr__wire_would_block() ? 0 : sent;
}

/* Something has not gone to the socket. */
static bool is_pending(const tr__rpc_stream *f)
{
    return f->first || tr__wire_pending(f->wire);
}

/* Under the lock. False: the wire has failed. */
static bool flush(tr__rpc_stream *f)
{
    for (chunk *c; (c = f->first);) {
        ssize_t sent = offer(f, &(struct iovec){c->data + c->at, c->bytes - c->at}, 1);
        if (sent <= 0) return sent == 0;
        c->at += (size_t)sent;
        if (c->at < c->bytes) continue;
        f->first = c->next;
        if (!f->first) f->last = &f->first;
        free(c);
    }
    return !tr__wire_pending(f->wire) || offer(f, NULL, 0) == 0;
}

static struct epoll_event events_of(const tr__rpc_stream *f)
{
    uint32_t room = f->awaits_room ? EPOLLOUT : 0;
    return (struct epoll_event){.events = COMES | EPOLLET | room, .data.u32 = (uint32_t)f->worker};
}

/* Under the lock. Most often there is room, and it would wake threads that sleep to be told so; who asks again is told when
 * there has been some since the socket refused. */
static void watch_room(tr__rpc_stream *f)
{
    if (f->awaits_room == is_pending(f)) return;
    f->awaits_room = !f->awaits_room;
    struct epoll_event e = events_of(f);
    epoll_ctl(f->watch, EPOLL_CTL_MOD, f->wire->socket, &e);
}

/* Under the lock. */
static bool queue_bytes(tr__rpc_stream *f, const void *bytes, size_t count)
{
    chunk *c = malloc(sizeof *c + count);
    if (!c) return false;
    *c = (chunk){.bytes = count};
    memcpy(c->data, bytes, count);
    *f->last = c;
    f->last = &c->next;
    return true;
}

/* Under the lock: sends what it can of the parts and queues the rest. False: no memory. */
static bool send_parts(tr__rpc_stream *f, struct iovec *parts, int count)
{
    ssize_t sent = 1;
    int at = 0;
    while (!f->first && at < count && (sent = offer(f, parts + at, count - at)) > 0) {
        for (; at < count && (size_t)sent >= parts[at].iov_len; at++) sent -= (ssize_t)parts[at].iov_len;
        if (at == count) break;
        parts[at].iov_base = (char *)parts[at].iov_base + sent;
        parts[at].iov_len -= (size_t)sent;
    }
    for (; at < count && sent >= 0; at++)
        if (parts[at].iov_len && !queue_bytes(f, parts[at].iov_base, parts[at].iov_len)) return false;
    return true;
}

typedef struct outgoing {
    struct iovec *iov;
    uint64_t *sizes;
    void **copies; /* of tensors that do not lie row-major in memory */
    int count;
} outgoing;

static tr_status add_piece(outgoing *o, int i, const tr__rpc_piece *p)
{
    const void *data = p->tensor ? NULL : p->data;
    if (p->tensor && tr_is_contiguous(p->tensor)) data = tr_data(p->tensor);
    if (!data) {
        o->copies[i] = malloc(p->bytes);
        if (!o->copies[i]) return tr__fail(TR_NO_MEMORY, "rpc: no memory for %llu bytes", (unsigned long long)p->bytes);
        TR__TRY(tr_copy_out(p->tensor, o->copies[i], p->bytes));
        data = o->copies[i];
    }
    o->sizes[i] = p->bytes;
    o->iov[o->count++] = (struct iovec){(void *)data, p->bytes};
    return TR_OK;
}

static tr_status collect(outgoing *o, const tr__rpc_frame *frame, const tr__rpc_writer *w)
{
    size_t pieces = (size_t)w->piece_count;
    o->iov = calloc(pieces + 3, sizeof *o->iov);
    o->sizes = calloc(pieces + 1, sizeof *o->sizes);
    o->copies = calloc(pieces + 1, sizeof *o->copies);
    if (!o->iov || !o->sizes || !o->copies) return tr__fail(TR_NO_MEMORY, "rpc: no memory for a message");
    o->iov[o->count++] = (struct iovec){(void *)frame, sizeof *frame};
    o->iov[o->count++] = (struct iovec){w->at, w->used};
    o->iov[o->count++] = (struct iovec){o->sizes, pieces * sizeof *o->sizes};
    for (int i = 0; i < w->piece_count; i++) TR__TRY(add_piece(o, i, &w->pieces[i]));
    return TR_OK;
}

static tr_status send_message(tr_rpc *rpc, tr__rpc_link *link, const tr__rpc_frame *frame, const tr__rpc_writer *w)
{
    tr__rpc_stream *f = link->stream;
    outgoing o = {0};
    tr_status status = collect(&o, frame, w);
    if (status == TR_OK) {
        pthread_mutex_lock(&f->lock);
        bool sent = send_parts(f, o.iov, o.count);
        watch_room(f);
        pthread_mutex_unlock(&f->lock);
        if (!sent) { /* it went in part, maybe: what follows would make no sense there */
            tr__rpc_lose(rpc, link->worker, TR__RPC_DAMAGED);
            status = tr__fail(TR_NO_MEMORY, "rpc: no memory for a message");
        }
    }
    for (int i = 0; o.copies && i < w->piece_count; i++) free(o.copies[i]);
    free(o.copies);
    free(o.sizes);
    free(o.iov);
    return status;
}

/* ---- Coming in --------------------------------------------------------------------------------------------------- */

void tr__stream_ready(tr__rpc_link *link, uint32_t events)
{
    tr__rpc_stream *f = link->stream;
    if (events & EPOLLOUT) {
        pthread_mutex_lock(&f->lock);
        flush(f);
        watch_room(f);
        pthread_mutex_unlock(&f->lock);
    }
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) atomic_store(&f->closes, true);
    if (events & ~(uint32_t)EPOLLOUT) atomic_store(&f->ready, true);
}

static bool waiting(const tr__rpc_link *link)
{
    return atomic_load(&link->stream->ready) && atomic_load(&link->ending) < TR__RPC_DAMAGED;
}

static bool is_cut(const tr__rpc_link *link, int64_t now, bool *pending)
{
    int64_t ended = atomic_load(&link->stream->ended);
    *pending |= ended != 0;
    return ended && now - ended > CUT_MS * (int64_t)1000000;
}

/* As tr__wire_receive(). */
static ssize_t receive(tr__rpc_stream *f, void *to, size_t want)
{
    bool encrypted = f->wire->tls != NULL;
    if (encrypted) pthread_mutex_lock(&f->lock);
    ssize_t got;
    do got = tr__wire_receive(f->wire, &(struct iovec){to, want}, 1, true);
    while (got < 0 && errno == EINTR);
    if (encrypted) pthread_mutex_unlock(&f->lock);
    return got;
}

/* Epoll tells when there is more. That the stream ends it has told already. */
static bool is_drained(const tr__rpc_stream *f)
{
    return f->stage == FRAME && !f->got && tr__wire_drained(f->wire) && !atomic_load(&f->closes);
}

/* Where what comes next goes, and how much of it. */
static void *next_place(tr__rpc_stream *f, size_t *want)
{
    switch (f->stage) {
    case FRAME: *want = sizeof f->frame; return &f->frame;
    case BODY: *want = f->frame.body; return f->message->body;
    case SIZES: *want = (size_t)f->frame.pieces * sizeof *f->sizes; return f->sizes;
    default: *want = f->message->pieces[f->piece].bytes; return f->message->pieces[f->piece].memory;
    }
}

static bool make_message(tr__rpc_link *link)
{
    tr__rpc_stream *f = link->stream;
    if (!tr__rpc_frame_sound(&f->frame)) return false;
    f->message = tr__inbound_new(link->worker, &f->frame);
    f->sizes = calloc((size_t)f->frame.pieces + 1, sizeof *f->sizes);
    return f->message && f->sizes;
}

static bool make_pieces(tr__rpc_stream *f)
{
    uint64_t left = f->frame.payload;
    for (int i = 0; i < f->frame.pieces; i++) {
        if (f->sizes[i] > left) return false;
        left -= f->sizes[i];
        if (!tr__rpc_piece_alloc(&f->message->pieces[i], f->sizes[i])) return false;
    }
    return left == 0;
}

/* A stage is whole. False: it makes no sense, or there is no memory for it. */
static bool go_on(tr_rpc *rpc, tr__rpc_link *link)
{
    tr__rpc_stream *f = link->stream;
    f->got = 0;
    if (f->stage == FRAME && !make_message(link)) return false;
    if (f->stage == SIZES && !make_pieces(f)) return false;
    if (f->stage == PIECES)
        f->piece++;
    else
        f->stage++;
    if (f->stage < PIECES || f->piece < f->frame.pieces) return true;
    tr__rpc_found(rpc, f->message);
    free(f->sizes);
    f->message = NULL;
    f->sizes = NULL;
    f->piece = 0;
    f->stage = FRAME;
    return true;
}

static void read_stream(tr_rpc *rpc, tr__rpc_link *link)
{
    tr__rpc_stream *f = link->stream;
    atomic_store(&f->ready, false);
    do {
        size_t want;
        char *place = next_place(f, &want);
        ssize_t got = f->got < want ? receive(f, place + f->got, want - f->got) : 0;
        if (got < 0 && errno != EBADMSG && tr__wire_would_block()) return;
        if (got < 0 && errno == EBADMSG) {
            tr__rpc_lose(rpc, link->worker, TR__RPC_CORRUPT);
            return;
        }
        if (got < 0 || (got == 0 && f->got < want)) {
            if (!atomic_load(&f->ended)) atomic_store(&f->ended, tr__now_ns());
            tr__rpc_wake_clock(rpc);
            return;
        }
        f->got += (size_t)got;
        if (f->got == want && !go_on(rpc, link)) {
            tr__rpc_lose(rpc, link->worker, TR__RPC_DAMAGED);
            return;
        }
    } while (!is_drained(f));
}

/* ---- Opening and ending ------------------------------------------------------------------------------------------ */

static tr_status await(const tr__rpc_stream *f, short events, int64_t deadline)
{
    for (;;) {
        int64_t left = (deadline - tr__now_ns()) / 1000000;
        struct pollfd p = {.fd = f->wire->socket, .events = events};
        int ready = poll(&p, 1, left > 0 ? (int)left : 0);
        if (ready > 0) return TR_OK;
        if (ready == 0) return tr__fail(TR_TIMEOUT, "rpc: a worker of another host does not answer");
        if (errno != EINTR) return tr__fail_errno(TR_IO, errno, "rpc: a worker of another host");
    }
}

/* Worker by worker, in the order of their ranks: nobody waits in a circle. The lower one serves. */
static tr_status shake_hands(tr_rpc *rpc, const tr__rpc_stream *f)
{
    int64_t deadline = tr__now_ns() + (int64_t)rpc->timeout_ms * 1000000;
    if (!tr__wire_encrypt(f->wire, tr__raw_key(rpc->group), rpc->rank < f->worker ? TR__TLS_SERVER : TR__TLS_CLIENT))
        return tr__fail(TR_NO_MEMORY, "rpc: no memory for TLS");
    for (int done; (done = tr__wire_shake_hands(f->wire)) <= 0;) {
        if (done < 0)
            return tr__fail(TR_AUTH, "rpc: worker %d does not have the job's token, or closed the connection", f->worker);
        TR__TRY(await(f, POLLIN, deadline));
    }
    return TR_OK;
}

tr_status tr__stream_open(tr_rpc *rpc, tr__rpc_link *link, tr__wire *wire)
{
    tr__rpc_stream *f = calloc(1, sizeof *f);
    if (!f) return tr__fail(TR_NO_MEMORY, "rpc: no memory for a worker");
    f->wire = wire;
    f->watch = rpc->watch;
    f->worker = link->worker;
    f->last = &f->first;
    pthread_mutex_init(&f->lock, NULL);
    link->stream = f;
    link->driver = &tr__rpc_by_stream;
    if (!wire->tls && tr__raw_key(rpc->group)) TR__TRY(shake_hands(rpc, f));
    /* What has come already gives no event of its own. */
    atomic_store(&f->ready, true);
    struct epoll_event e = events_of(f);
    if (epoll_ctl(rpc->watch, EPOLL_CTL_ADD, wire->socket, &e) == 0) return TR_OK;
    return tr__fail_errno(TR_IO, errno, "rpc: no epoll");
}

static void refuse(tr__rpc_link *link)
{
    shutdown(link->stream->wire->socket, SHUT_RDWR);
}

static void finish(tr__rpc_link *link)
{
    tr__rpc_stream *f = link->stream;
    int64_t deadline = tr__now_ns() + FINISH_MS * (int64_t)1000000;
    bool left = true;
    while (left && !atomic_load(&link->gone)) {
        pthread_mutex_lock(&f->lock);
        left = flush(f) && is_pending(f);
        pthread_mutex_unlock(&f->lock);
        if (left && await(f, POLLOUT, deadline) != TR_OK) return;
    }
}

static void free_stream(tr__rpc_link *link)
{
    tr__rpc_stream *f = link->stream;
    for (chunk *c = f->first, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    if (f->message) tr__inbound_free(f->message);
    free(f->sizes);
    pthread_mutex_destroy(&f->lock);
    free(f);
    link->stream = NULL;
    link->driver = NULL;
}

const tr__rpc_driver tr__rpc_by_stream = {.send = send_message, .waiting = waiting, .read = read_stream, .over = is_cut,
    .how = TR__RPC_CUT, .refuse = refuse, .finish = finish, .free = free_stream};
