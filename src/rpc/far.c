/*
 * Messages to workers of other hosts: a stream, through TLS where the job has a key. A frame is followed by its body, the
 * sizes of its pieces and the pieces themselves; those go out from where they are and come in where they stay. What the
 * socket does not take at once is copied and goes later. The stream is the carrier's data connection: that the worker has
 * died is known from the control connection, so the end of the stream alone counts only after a while.
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
    RECORDS = 64 << 10, /* taken from the socket at once, */
    AHEAD = 16 << 10,   /* and of what they hold: TLS's longest record, and more than TR__CHECKED_AHEAD */
    PART = 64 << 10,    /* encrypted before it is sent */
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

struct tr__rpc_far {
    int socket, watch, worker;
    tr__tls *tls;          /* NULL: in the clear */
    atomic_bool ready;     /* epoll says that there is something, */
    atomic_bool closes;    /* and that the stream ends behind it */
    _Atomic int64_t ended; /* when the stream ended; 0: not yet */
    pthread_mutex_t lock;  /* for what goes out, and for tls */
    chunk *first, **last;
    bool awaits_room;      /* for these: epoll is to tell */
    /* What is coming in; under the agent's `reading`. */
    stage stage;
    tr__rpc_frame frame;
    tr__rpc_inbound *message;
    size_t got;            /* of the stage, or of the piece */
    int piece;
    uint64_t *sizes;
    bool drained;          /* the socket gave less than it was asked for: epoll tells when there is more */
    size_t ahead_at, ahead_end;
    unsigned char ahead[AHEAD];
};

/* ---- Going out --------------------------------------------------------------------------------------------------- */

/* Under the lock: 1: all is out; 0: the socket is full; -1: it has failed. */
static int flush(tr__rpc_far *f)
{
    for (chunk *c; (c = f->first);) {
        ssize_t sent = send(f->socket, c->data + c->at, c->bytes - c->at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
        c->at += (size_t)sent;
        if (c->at < c->bytes) continue;
        f->first = c->next;
        if (!f->first) f->last = &f->first;
        free(c);
    }
    return 1;
}

static struct epoll_event events_of(const tr__rpc_far *f)
{
    uint32_t room = f->awaits_room ? EPOLLOUT : 0;
    return (struct epoll_event){.events = COMES | EPOLLET | room, .data.u32 = (uint32_t)f->worker};
}

/* Under the lock. Most often there is room, and it would wake threads that sleep to be told so; who asks again is told when
 * there has been some since the socket refused. */
static void watch_room(tr__rpc_far *f)
{
    if (f->awaits_room == (f->first != NULL)) return;
    f->awaits_room = f->first != NULL;
    struct epoll_event e = events_of(f);
    epoll_ctl(f->watch, EPOLL_CTL_MOD, f->socket, &e);
}

/* Under the lock. */
static bool queue_bytes(tr__rpc_far *f, const void *bytes, size_t count)
{
    chunk *c = malloc(sizeof *c + count);
    if (!c) return false;
    *c = (chunk){.bytes = count};
    memcpy(c->data, bytes, count);
    *f->last = c;
    f->last = &c->next;
    return true;
}

/* Under the lock: sends what it can of the pieces and queues the rest. A socket that fails is seen by who reads. `more`: as
 * much again follows at once, so the kernel need not make a packet of its own of the last few bytes. */
static bool send_pieces(tr__rpc_far *f, struct iovec *iov, int count, bool more)
{
    int flags = MSG_NOSIGNAL | MSG_DONTWAIT | (more ? MSG_MORE : 0);
    int at = 0;
    while (!f->first && at < count) {
        struct msghdr m = {.msg_iov = iov + at, .msg_iovlen = (size_t)(count - at < IOV_MOST ? count - at : IOV_MOST)};
        ssize_t sent = sendmsg(f->socket, &m, flags);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return true;
        if (sent < 0) break;
        for (; at < count && (size_t)sent >= iov[at].iov_len; at++) sent -= (ssize_t)iov[at].iov_len;
        if (at == count) break;
        iov[at].iov_base = (char *)iov[at].iov_base + sent;
        iov[at].iov_len -= (size_t)sent;
    }
    for (; at < count; at++)
        if (iov[at].iov_len && !queue_bytes(f, iov[at].iov_base, iov[at].iov_len)) return false;
    return true;
}

/* Under the lock. */
static bool send_records(tr__rpc_far *f, bool more)
{
    char *bytes;
    size_t count = tr__tls_outgoing(f->tls, &bytes);
    bool done = !count || send_pieces(f, &(struct iovec){bytes, count}, 1, more);
    tr__tls_sent(f->tls);
    return done;
}

static bool send_encrypted(tr__rpc_far *f, const struct iovec *iov, int count)
{
    size_t waiting = 0;
    for (int i = 0; i < count; i++)
        for (size_t at = 0; at < iov[i].iov_len; at += PART) {
            size_t part = iov[i].iov_len - at < PART ? iov[i].iov_len - at : PART;
            if (waiting >= PART && !send_records(f, true)) return false;
            waiting = waiting < PART ? waiting + part : part;
            if (!tr__tls_write(f->tls, (char *)iov[i].iov_base + at, part)) return false;
        }
    return send_records(f, false);
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

tr_status tr__far_send(tr_rpc *rpc, tr__rpc_link *link, const tr__rpc_frame *frame, const tr__rpc_writer *w)
{
    tr__rpc_far *f = link->far;
    outgoing o = {0};
    tr_status status = collect(&o, frame, w);
    if (status == TR_OK) {
        pthread_mutex_lock(&f->lock);
        bool sent = f->tls ? send_encrypted(f, o.iov, o.count) : send_pieces(f, o.iov, o.count, false);
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

void tr__far_ready(tr__rpc_link *link, uint32_t events)
{
    tr__rpc_far *f = link->far;
    if (events & EPOLLOUT) {
        pthread_mutex_lock(&f->lock);
        flush(f);
        watch_room(f);
        pthread_mutex_unlock(&f->lock);
    }
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) atomic_store(&f->closes, true);
    if (events & ~(uint32_t)EPOLLOUT) atomic_store(&f->ready, true);
}

bool tr__far_waiting(const tr__rpc_link *link)
{
    return atomic_load(&link->far->ready) && atomic_load(&link->ending) != TR__RPC_DAMAGED;
}

bool tr__far_cut(const tr__rpc_link *link, int64_t now, bool *pending)
{
    int64_t ended = atomic_load(&link->far->ended);
    *pending |= ended != 0;
    return ended && now - ended > CUT_MS * (int64_t)1000000;
}

/* What the socket has, into these places. Bytes; 0: nothing is there now; -1: the end. That takes a call of its own where
 * the stream ends, for epoll has told of that already. */
static ssize_t receive_raw(tr__rpc_far *f, struct iovec *iov, int count)
{
    if (f->drained && !atomic_load(&f->closes)) return 0;
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)count};
    size_t room = 0;
    for (int i = 0; i < count; i++) room += iov[i].iov_len;
    ssize_t got;
    do got = recvmsg(f->socket, &m, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    f->drained = got < 0 || (size_t)got < room;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
    return got > 0 ? got : -1;
}

static ssize_t receive_decrypted(tr__rpc_far *f, void *to, size_t want)
{
    ssize_t got;
    pthread_mutex_lock(&f->lock);
    while ((got = tr__tls_read(f->tls, to, want)) == 0) {
        char *records = tr__tls_room(f->tls, RECORDS);
        ssize_t raw = records ? receive_raw(f, &(struct iovec){records, RECORDS}, 1) : -1;
        if (raw == 0) break;
        got = -1;
        if (raw < 0) break;
        tr__tls_came(f->tls, (size_t)raw);
    }
    pthread_mutex_unlock(&f->lock);
    return got;
}

/* Small parts come through `ahead`, so that most messages take one call. */
static ssize_t receive(tr__rpc_far *f, void *to, size_t want)
{
    if (f->ahead_at == f->ahead_end) {
        struct iovec iov[] = {{to, want}, {f->ahead, AHEAD}};
        bool straight = want >= AHEAD;
        ssize_t got = f->tls     ? receive_decrypted(f, straight ? to : f->ahead, straight ? want : AHEAD)
                      : straight ? receive_raw(f, iov, 2)
                                 : receive_raw(f, iov + 1, 1);
        if (got <= 0) return got;
        size_t beyond = !straight ? (size_t)got : (size_t)got > want ? (size_t)got - want : 0;
        f->ahead_at = 0;
        f->ahead_end = beyond;
        if (straight) return got - (ssize_t)beyond;
    }
    size_t left = f->ahead_end - f->ahead_at, count = want < left ? want : left;
    memcpy(to, f->ahead + f->ahead_at, count);
    f->ahead_at += count;
    return (ssize_t)count;
}

/* Where what comes next goes, and how much of it. */
static void *next_place(tr__rpc_far *f, size_t *want)
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
    tr__rpc_far *f = link->far;
    if (!tr__rpc_frame_sound(&f->frame)) return false;
    f->message = tr__inbound_new(link->worker, &f->frame);
    f->sizes = calloc((size_t)f->frame.pieces + 1, sizeof *f->sizes);
    return f->message && f->sizes;
}

static bool make_pieces(tr__rpc_far *f)
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
    tr__rpc_far *f = link->far;
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

void tr__far_read(tr_rpc *rpc, tr__rpc_link *link)
{
    tr__rpc_far *f = link->far;
    atomic_store(&f->ready, false);
    f->drained = false;
    for (;;) {
        size_t want;
        char *place = next_place(f, &want);
        ssize_t got = f->got < want ? receive(f, place + f->got, want - f->got) : 0;
        if (got < 0) {
            if (!atomic_load(&f->ended)) atomic_store(&f->ended, tr__now_ns());
            tr__rpc_wake_clock(rpc);
            return;
        }
        if (got == 0 && f->got < want) return;
        f->got += (size_t)got;
        if (f->got < want) continue;
        if (!go_on(rpc, link)) {
            tr__rpc_lose(rpc, link->worker, TR__RPC_DAMAGED);
            return;
        }
    }
}

/* ---- Opening and ending ------------------------------------------------------------------------------------------ */

static tr_status await(const tr__rpc_far *f, short events, int64_t deadline)
{
    for (;;) {
        int64_t left = (deadline - tr__now_ns()) / 1000000;
        struct pollfd p = {.fd = f->socket, .events = events};
        int ready = poll(&p, 1, left > 0 ? (int)left : 0);
        if (ready > 0) return TR_OK;
        if (ready == 0) return tr__fail(TR_TIMEOUT, "rpc: a worker of another host does not answer");
        if (errno != EINTR) return tr__fail_errno(TR_IO, errno, "rpc: a worker of another host");
    }
}

/* Worker by worker, in the order of their ranks: nobody waits in a circle. The lower one serves. */
static tr_status shake_hands(tr_rpc *rpc, tr__rpc_far *f, int worker, const char *came, size_t count)
{
    int64_t deadline = tr__now_ns() + (int64_t)rpc->timeout_ms * 1000000;
    f->tls = tr__tls_new(tr__carrier_key(rpc->carrier), rpc->rank < worker ? TR__TLS_SERVER : TR__TLS_CLIENT);
    if (!f->tls || !tr__tls_feed(f->tls, came, count)) return tr__fail(TR_NO_MEMORY, "rpc: no memory for TLS");
    for (;;) {
        int done = tr__tls_handshake(f->tls);
        if (!send_records(f, false)) return tr__fail(TR_NO_MEMORY, "rpc: no memory for TLS");
        while (f->first && flush(f) == 0) TR__TRY(await(f, POLLOUT, deadline));
        if (done > 0) return TR_OK;
        if (done < 0) return tr__fail(TR_AUTH, "rpc: worker %d does not have the job's token, or speaks no TLS", worker);
        unsigned char byte[1 << 12];
        TR__TRY(await(f, POLLIN, deadline));
        ssize_t got = recv(f->socket, byte, sizeof byte, MSG_DONTWAIT);
        if (got == 0) return tr__fail(TR_PEER, "rpc: worker %d closed the connection while joining", worker);
        if (got > 0 && !tr__tls_feed(f->tls, byte, (size_t)got)) return tr__fail(TR_NO_MEMORY, "rpc: no memory for TLS");
    }
}

tr_status tr__far_open(tr_rpc *rpc, tr__rpc_link *link, int socket, const char *came, size_t count)
{
    tr__rpc_far *f = calloc(1, sizeof *f);
    if (!f) return tr__fail(TR_NO_MEMORY, "rpc: no memory for a worker");
    f->socket = socket;
    f->watch = rpc->watch;
    f->worker = link->worker;
    f->last = &f->first;
    pthread_mutex_init(&f->lock, NULL);
    link->far = f;
    if (tr__carrier_key(rpc->carrier))
        TR__TRY(shake_hands(rpc, f, link->worker, came, count));
    else
        memcpy(f->ahead, came, f->ahead_end = count);
    /* What has come with the handshake gives no event of its own. */
    atomic_store(&f->ready, true);
    struct epoll_event e = events_of(f);
    if (epoll_ctl(rpc->watch, EPOLL_CTL_ADD, socket, &e) == 0) return TR_OK;
    return tr__fail_errno(TR_IO, errno, "rpc: no epoll");
}

void tr__far_refuse(tr__rpc_link *link)
{
    shutdown(link->far->socket, SHUT_RDWR);
}

void tr__far_finish(tr__rpc_link *link)
{
    tr__rpc_far *f = link->far;
    int64_t deadline = tr__now_ns() + FINISH_MS * (int64_t)1000000;
    tr_status waited = TR_OK;
    int done = 0;
    while (done == 0 && waited == TR_OK && !atomic_load(&link->gone)) {
        pthread_mutex_lock(&f->lock);
        done = flush(f);
        pthread_mutex_unlock(&f->lock);
        if (done == 0) waited = await(f, POLLOUT, deadline);
    }
}

void tr__far_free(tr__rpc_link *link)
{
    tr__rpc_far *f = link->far;
    if (!f) return;
    for (chunk *c = f->first, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    if (f->message) tr__inbound_free(f->message);
    free(f->sizes);
    tr__tls_free(f->tls);
    pthread_mutex_destroy(&f->lock);
    free(f);
    link->far = NULL;
}
