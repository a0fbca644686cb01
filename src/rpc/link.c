/*
 * Messages on their way: a frame, its body, the places of its pieces, and the pieces that do not lie in blocks (blocks.c).
 * They are a stream of bytes to each worker, which one engine writes and reads in parts, as they fit:
 *
 *   to a worker of this host   through a ring in shared memory; a bell wakes a thread that sleeps there
 *   to one of another          over the group's data connection (net/wire.h): through TLS where the job has a key, else in
 *                              records with a checksum; epoll tells when there is something, and when there is room
 *
 * What a stream does not take at once is copied and goes later. That the worker has died is known from elsewhere, so the end
 * of the stream alone counts only after a while.
 */
#include "rpc/agent.h"

#include "base/clock.h"
#include "base/futex.h"
#include "comm/transport/shm_channel.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

enum {
    CUT_MS = 500,
    SHOW_MS = 10000, /* how long a block may come after the message that names it, if the agent's timeout is shorter */
    SHARE = 1 << 20, /* bytes that are read from one worker before the others have their turn */
    IOV_MOST = 64,
    OFFERED = 2 << 20, /* bytes of a piece from which on the receiver helps to copy it: they are more than a core's cache holds */
    COMES = EPOLLIN | EPOLLRDHUP,
};

typedef struct chunk { /* did not go out at once */
    struct chunk *next;
    size_t at, bytes;
    char data[];
} chunk;

typedef enum stage { FRAME, BODY, PLACES, PIECES } stage;

struct tr__rpc_stream {
    int worker;
    /* To another host: */
    tr__wire *wire;        /* the group's; NULL: to this host */
    int watch;
    atomic_bool ready;     /* epoll says that there is something, */
    atomic_bool closes;    /* and that the stream ends behind it */
    /* To this host: */
    tr__shm_channel *out;  /* this worker's ring */
    tr__shm_channel *in;   /* the other's, in `ring` */
    tr__rpc_bell *bell;    /* the other's, in `page` */
    tr__shm_mapping ring, page;
    uint64_t seen;         /* how far the worker has read, as was known last */
    uint64_t at, until;    /* how far we have read, and there is to read */
    atomic_bool stalled;   /* a block has not come; reading goes on when it has */
    _Atomic int64_t stalled_since;
    atomic_int copying;    /* a tr__rpc_copying: of the piece that is to come next, */
    _Atomic uint32_t seen_copied; /* when the worker had copied so many */

    _Atomic int64_t ended; /* when the stream ended; 0: not yet */
    atomic_bool broken;    /* what comes makes no sense: it is read no more */
    atomic_bool awaits_room; /* for what did not go out: we are to be told */
    _Alignas(TR__CACHE_LINE) pthread_mutex_t lock; /* for what goes out; with TLS for what comes in, too */
    chunk *first, **last;
    bool cut;              /* a message went out in part: nothing may follow */
    /* What is coming in; under the agent's `reading`. */
    stage stage;
    tr__rpc_frame frame;
    tr__rpc_inbound *message;
    size_t got;            /* of the stage, or of the piece */
    int piece;
    tr__rpc_place *places;
};

/* ---- Rings ------------------------------------------------------------------------------------------------------- */

static void ring_bell(tr__rpc_bell *bell)
{
    if (atomic_load(&bell->awake) > 0) return;
    atomic_fetch_add(&bell->count, 1);
    if (atomic_load(&bell->sleepers) > 0) tr__futex_wake(&bell->count, 1);
}

/* Bytes that were written and not read. Of a damaged worker it may be any number. */
static uint64_t bytes_in(tr__shm_channel *ring)
{
    return atomic_load(&ring->written) - atomic_load(&ring->read);
}

/* Lets the writer know how far we have read. */
static void give_room(tr__rpc_stream *f)
{
    if (f->at == atomic_load_explicit(&f->in->read, memory_order_relaxed)) return;
    atomic_store(&f->in->read, f->at);
    if (atomic_load(&f->in->waits)) ring_bell(f->bell);
}

/* As recv(). */
static ssize_t receive_from_ring(tr__rpc_stream *f, void *to, size_t want)
{
    if (f->at == f->until) {
        give_room(f);
        bool closed = atomic_load(&f->out->closed);
        f->until = atomic_load(&f->in->written);
        if (f->at == f->until && closed) return 0;
    }
    uint64_t there = f->until - f->at;
    errno = there ? EPROTO : EAGAIN;
    if (!there || there > TR__SHM_STREAM) return -1;
    size_t got = there < want ? (size_t)there : want;
    tr__shm_channel_peek(f->in, f->at, to, got);
    f->at += got;
    return (ssize_t)got;
}

/* ---- Going out --------------------------------------------------------------------------------------------------- */

/* Under the lock: of some parts, how many bytes the stream takes; 0: it is full; -1: it has failed, which the reader sees. */
static ssize_t offer(tr__rpc_stream *f, const struct iovec *parts, int count)
{
    ssize_t sent;
    if (f->cut || (!f->wire && atomic_load_explicit(&f->out->closed, memory_order_relaxed))) return -1;
    if (!f->wire) return (ssize_t)tr__shm_channel_put(f->out, &f->seen, parts, count);
    do sent = tr__wire_send(f->wire, parts, count < IOV_MOST ? count : IOV_MOST);
    while (sent < 0 && errno == EINTR);
    return sent < 0 && tr__wire_would_block() ? 0 : sent;
}

static void drop_first(tr__rpc_stream *f)
{
    chunk *c = f->first;
    f->first = c->next;
    if (!f->first) f->last = &f->first;
    free(c);
}

/* Something has not gone to the stream. */
static bool is_pending(const tr__rpc_stream *f)
{
    return f->first || (f->wire && tr__wire_pending(f->wire));
}

/* Under the lock. What a stream that has failed did not take is dropped. */
static bool flush(tr__rpc_stream *f)
{
    for (chunk *c; (c = f->first);) {
        ssize_t sent = offer(f, &(struct iovec){c->data + c->at, c->bytes - c->at}, 1);
        if (sent == 0) return true;
        c->at += sent > 0 ? (size_t)sent : 0;
        if (sent < 0 || c->at == c->bytes) drop_first(f);
    }
    return !is_pending(f) || offer(f, NULL, 0) == 0;
}

static struct epoll_event events_of(const tr__rpc_stream *f)
{
    uint32_t room = atomic_load(&f->awaits_room) ? EPOLLOUT : 0;
    return (struct epoll_event){.events = COMES | EPOLLET | room, .data.u32 = (uint32_t)f->worker};
}

/* Under the lock. Most often there is room, and it would wake threads that sleep to be told so; of a socket, who asks again
 * is told when there has been some since it refused. */
static void watch_room(tr__rpc_stream *f)
{
    bool wanted = is_pending(f);
    if (atomic_load(&f->awaits_room) == wanted) return;
    atomic_store(&f->awaits_room, wanted);
    struct epoll_event e = events_of(f);
    if (f->wire)
        epoll_ctl(f->watch, EPOLL_CTL_MOD, f->wire->socket, &e);
    else
        atomic_store(&f->out->waits, wanted);
}

/* Under the lock: a ring may have got room before its reader knew that we wait for some. For a socket, epoll reports room. */
static void go_on_sending(tr__rpc_stream *f)
{
    watch_room(f);
    if (f->wire || !is_pending(f)) return;
    flush(f);
    watch_room(f);
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

/* Under the lock: sends what it can of the parts and queues the rest. False: no memory; the stream is cut. */
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
        if (parts[at].iov_len && !queue_bytes(f, parts[at].iov_base, parts[at].iov_len)) f->cut = true;
    while (f->cut && f->first) drop_first(f);
    return !f->cut;
}

enum { FEW = 4 };

/* Of a piece that goes out. */
typedef struct held {
    void *memory;     /* its block, but for one that is passed on; or a copy, of a tensor that does not lie row-major in our
                       * memory; or NULL */
    const void *from; /* what was offered: it is copied into the block when the message has gone; or NULL */
} held;

typedef struct outgoing { /* a message */
    struct iovec *parts;
    tr__rpc_place *places;
    held *held;
    int count;
    struct iovec few_parts[FEW + 3];
    tr__rpc_place few_places[FEW];
    held few_held[FEW];
} outgoing;

static bool begin_outgoing(outgoing *o, size_t pieces)
{
    bool few = pieces <= FEW;
    o->count = 0;
    o->parts = few ? o->few_parts : malloc((pieces + 3) * sizeof *o->parts);
    o->places = few ? o->few_places : malloc(pieces * sizeof *o->places);
    o->held = few ? o->few_held : malloc(pieces * sizeof *o->held);
    for (size_t i = 0; o->held && i < pieces; i++) o->held[i] = (held){0};
    return o->parts && o->places && o->held;
}

/* A message that has not gone gives its blocks back. */
static void end_outgoing(tr__rpc_link *link, outgoing *o, const tr__rpc_writer *w, bool sent)
{
    for (int i = 0; o->held && i < w->piece_count; i++) {
        void *memory = o->held[i].memory;
        if (link->stream->wire)
            free(memory);
        else if (memory && sent)
            tr__block_left(memory);
        else if (memory)
            tr__block_give_back(memory);
        if (w->passes_on && !sent && w->pieces[i].tensor) tr__block_keep(link, w->pieces[i].tensor);
    }
    if (w->piece_count <= FEW) return;
    free(o->parts);
    free(o->places);
    free(o->held);
}

static tr_status add_piece(tr_rpc *rpc, tr__rpc_link *link, outgoing *o, int i, const tr__rpc_writer *w)
{
    const tr__rpc_piece *p = &w->pieces[i];
    bool beside = !link->stream->wire;
    void *memory = NULL;
    o->places[i] = (tr__rpc_place){.bytes = p->bytes};
    if (beside && w->passes_on && p->tensor) o->places[i].segment = tr__block_pass_on(link, p->tensor);
    if (o->places[i].segment) return TR_OK;
    const void *data = !p->tensor ? p->data : tr_is_contiguous(p->tensor) ? tr_data(p->tensor) : NULL;
    if (!beside && data) {
        o->parts[o->count++] = (struct iovec){(void *)data, p->bytes};
        return TR_OK;
    }
    if (beside) {
        o->held[i].memory = tr__block_take(rpc, link, p->bytes, &memory, &o->places[i].segment);
        if (!o->held[i].memory) return TR_NO_MEMORY;
        if (data && link->crosses && p->bytes >= OFFERED) {
            o->held[i].from = data;
            tr__block_offer(o->held[i].memory, data, p->bytes);
            return TR_OK;
        }
    } else {
        memory = o->held[i].memory = malloc(p->bytes);
        if (!memory) return tr__fail(TR_NO_MEMORY, "rpc: no memory for %llu bytes", (unsigned long long)p->bytes);
        o->parts[o->count++] = (struct iovec){memory, p->bytes};
    }
    tr_status status = tr__rpc_piece_copy(p, memory);
    if (beside) tr__block_filled(o->held[i].memory);
    return status;
}

/* Copies what was offered. */
static void copy_offered(const tr__rpc_link *link, const outgoing *o, const tr__rpc_writer *w)
{
    tr__rpc_stream *f = link->stream;
    for (int i = 0; i < w->piece_count; i++) {
        if (!o->held[i].from) continue;
        tr__block_copy(o->held[i].memory, o->held[i].from, w->pieces[i].bytes);
        atomic_fetch_add(&f->out->copied, 1);
        ring_bell(f->bell);
    }
}

tr_status tr__link_send(tr_rpc *rpc, tr__rpc_link *link, const tr__rpc_frame *frame, const tr__rpc_writer *w)
{
    tr__rpc_stream *f = link->stream;
    outgoing o;
    size_t pieces = (size_t)w->piece_count;
    tr_status status = begin_outgoing(&o, pieces) ? TR_OK : tr__fail(TR_NO_MEMORY, "rpc: no memory for a message");
    if (status == TR_OK) {
        o.parts[o.count++] = (struct iovec){(void *)frame, sizeof *frame};
        o.parts[o.count++] = (struct iovec){w->at, w->used};
        o.parts[o.count++] = (struct iovec){o.places, pieces * sizeof *o.places};
    }
    for (int i = 0; i < w->piece_count && status == TR_OK; i++) status = add_piece(rpc, link, &o, i, w);
    if (status == TR_OK) {
        pthread_mutex_lock(&f->lock);
        bool sent = send_parts(f, o.parts, o.count);
        go_on_sending(f);
        pthread_mutex_unlock(&f->lock);
        if (!f->wire) ring_bell(f->bell);
        if (sent) copy_offered(link, &o, w);
        if (!sent) { /* it went in part, maybe: what follows would make no sense there */
            tr__rpc_lose(rpc, link->worker, TR__RPC_DAMAGED);
            status = tr__fail(TR_NO_MEMORY, "rpc: no memory for a message");
        }
    }
    end_outgoing(link, &o, w, status == TR_OK);
    return status;
}

/* ---- Coming in --------------------------------------------------------------------------------------------------- */

static void send_more(tr__rpc_stream *f)
{
    pthread_mutex_lock(&f->lock);
    uint64_t before = f->wire ? 0 : atomic_load(&f->out->written);
    flush(f);
    watch_room(f);
    bool news = !f->wire && atomic_load(&f->out->written) != before;
    pthread_mutex_unlock(&f->lock);
    if (news) ring_bell(f->bell);
}

void tr__link_ready(tr__rpc_link *link, uint32_t events)
{
    tr__rpc_stream *f = link->stream;
    if (events & EPOLLOUT) send_more(f);
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) atomic_store(&f->closes, true);
    if (events & ~(uint32_t)EPOLLOUT) atomic_store(&f->ready, true);
}

void tr__link_shown(tr_rpc *rpc, tr__rpc_link *link)
{
    if (link->stream && atomic_exchange(&link->stream->stalled, false)) tr__rpc_kick(rpc);
}

bool tr__link_waiting(const tr__rpc_link *link)
{
    tr__rpc_stream *f = link->stream;
    if (!f || atomic_load_explicit(&link->ending, memory_order_relaxed) >= TR__RPC_DAMAGED) return false;
    if (atomic_load_explicit(&f->broken, memory_order_relaxed)) return false;
    if (f->wire) return atomic_load(&f->ready);
    if (!f->in) return false;
    if (atomic_load_explicit(&f->awaits_room, memory_order_relaxed) && bytes_in(f->out) <= TR__SHM_STREAM / 2) return true;
    int copying = atomic_load(&f->copying);
    if (copying == TR__RPC_COPYING) return true;
    if (copying == TR__RPC_AWAITED) return atomic_load(&f->in->copied) != atomic_load(&f->seen_copied);
    if (atomic_load(&f->stalled)) return false;
    bool closed = atomic_load_explicit(&f->out->closed, memory_order_relaxed) && !atomic_load(&f->ended);
    return bytes_in(f->in) || closed || atomic_load(&f->stalled_since);
}

tr__rpc_ending tr__link_over(const tr_rpc *rpc, const tr__rpc_link *link, int64_t now, bool *pending)
{
    const tr__rpc_stream *f = link->stream;
    int64_t patience_ms = rpc->timeout_ms > SHOW_MS ? rpc->timeout_ms : SHOW_MS;
    int64_t ended = f ? atomic_load(&f->ended) : 0, stalled = f ? atomic_load(&f->stalled_since) : 0;
    *pending |= ended || stalled;
    if (ended && now - ended > CUT_MS * (int64_t)1000000) return TR__RPC_CUT;
    return stalled && now - stalled > patience_ms * 1000000 ? TR__RPC_NOT_SHOWN : TR__RPC_LASTS;
}

/* As tr__wire_receive(). */
static ssize_t receive(tr__rpc_stream *f, void *to, size_t want)
{
    if (!f->wire) return receive_from_ring(f, to, want);
    bool encrypted = f->wire->tls != NULL;
    if (encrypted) pthread_mutex_lock(&f->lock);
    ssize_t got;
    do got = tr__wire_receive(f->wire, &(struct iovec){to, want}, 1, true);
    while (got < 0 && errno == EINTR);
    if (encrypted) pthread_mutex_unlock(&f->lock);
    return got;
}

/* Epoll tells when more comes, but of a stream's end only once. What has come into a ring meanwhile is read the next time. */
static bool is_drained(const tr__rpc_stream *f)
{
    if (f->stage != FRAME || f->got) return false;
    if (!f->wire) return f->at == f->until;
    return tr__wire_drained(f->wire) && !atomic_load(&f->closes);
}

/* Where what comes next goes, and how much of it. */
static void *next_place(tr__rpc_stream *f, size_t *want)
{
    switch (f->stage) {
    case FRAME: *want = sizeof f->frame; return &f->frame;
    case BODY: *want = f->frame.body; return f->message->body;
    case PLACES: *want = (size_t)f->frame.pieces * sizeof *f->places; return f->places;
    default:
        *want = f->places[f->piece].segment ? 0 : f->places[f->piece].bytes;
        return f->message->pieces[f->piece].memory;
    }
}

typedef enum progress { DONE, STALLED, BROKEN } progress;

static progress make_message(tr__rpc_link *link)
{
    tr__rpc_stream *f = link->stream;
    if (!tr__rpc_frame_sound(&f->frame)) return BROKEN;
    f->message = tr__inbound_new(link->worker, &f->frame);
    f->places = f->frame.pieces ? malloc(f->frame.pieces * sizeof *f->places) : NULL;
    return f->message && (f->places || !f->frame.pieces) ? DONE : BROKEN;
}

/* A piece lies in a block. If one of the worker's has not come yet, reading goes on when it has; it may come while we look. */
static progress find_block(tr_rpc *rpc, tr__rpc_link *link, tr__rpc_place place, tr__rpc_arrived *piece)
{
    tr__rpc_stream *f = link->stream;
    tr__shm_mapping mapping;
    if (place.segment & TR__RPC_YOURS)
        return tr__block_came_back(link, place.segment & ~TR__RPC_YOURS, place.bytes, piece) ? DONE : BROKEN;
    bool found = tr__raw_hold(rpc->group, link->worker, place.segment, 0, &mapping);
    if (!found) {
        atomic_store(&f->stalled, true);
        found = tr__raw_hold(rpc->group, link->worker, place.segment, 0, &mapping);
        if (!found && !atomic_load(&f->stalled_since)) atomic_store(&f->stalled_since, tr__now_ns());
        if (!found) tr__rpc_wake_clock(rpc); /* which does not wait for ever */
        if (!found) return STALLED;
    }
    atomic_store(&f->stalled, false);
    atomic_store(&f->stalled_since, 0);
    return tr__block_arrived(link, &mapping, place.bytes, piece) ? DONE : BROKEN;
}

/* A piece that the worker has not copied to the end is copied from here, too. Reading goes on when it is there. */
static progress copy_piece(tr_rpc *rpc, tr__rpc_link *link, const tr__rpc_arrived *piece)
{
    tr__rpc_stream *f = link->stream;
    atomic_store(&f->seen_copied, atomic_load(&f->in->copied)); /* before we look */
    tr__rpc_copying copying = tr__block_help(rpc, link, piece);
    atomic_store(&f->copying, (int)copying);
    return copying == TR__RPC_COPIED ? DONE : STALLED;
}

static progress make_pieces(tr_rpc *rpc, tr__rpc_link *link)
{
    tr__rpc_stream *f = link->stream;
    uint64_t left = f->frame.payload;
    for (int i = 0; i < f->frame.pieces; i++) {
        tr__rpc_arrived *piece = &f->message->pieces[i];
        tr__rpc_place place = f->places[i];
        if (place.bytes > left || (place.segment && f->wire)) return BROKEN;
        left -= place.bytes;
        bool found = piece->memory != NULL; /* since we looked last */
        if (!found && !place.segment && !tr__rpc_piece_alloc(piece, place.bytes)) return BROKEN;
        progress p = !found && place.segment ? find_block(rpc, link, place, piece) : DONE;
        bool theirs = place.segment && !(place.segment & TR__RPC_YOURS);
        if (p == DONE && theirs) p = copy_piece(rpc, link, piece);
        if (p != DONE) return p;
    }
    return left == 0 ? DONE : BROKEN;
}

/* A stage is whole. BROKEN: it makes no sense, or there is no memory for it. */
static progress go_on(tr_rpc *rpc, tr__rpc_link *link)
{
    tr__rpc_stream *f = link->stream;
    progress p = f->stage == FRAME ? make_message(link) : f->stage == PLACES ? make_pieces(rpc, link) : DONE;
    if (p != DONE) return p;
    f->got = 0;
    if (f->stage == PIECES)
        f->piece++;
    else
        f->stage++;
    if (f->stage < PIECES || f->piece < f->frame.pieces) return DONE;
    tr__rpc_found(rpc, f->message);
    free(f->places);
    f->message = NULL;
    f->places = NULL;
    f->piece = 0;
    f->stage = FRAME;
    return DONE;
}

/* Of one that has ended already, that stays the reason. */
static void give_up_reading(tr_rpc *rpc, tr__rpc_link *link, tr__rpc_ending reason)
{
    atomic_store(&link->stream->broken, true);
    tr__rpc_lose(rpc, link->worker, reason);
}

/* What is there, but not more than a worker's share. */
static void read_stream(tr_rpc *rpc, tr__rpc_link *link)
{
    tr__rpc_stream *f = link->stream;
    size_t share = SHARE;
    do {
        size_t want;
        char *place = next_place(f, &want);
        size_t part = want - f->got < share ? want - f->got : share;
        ssize_t got = part ? receive(f, place + f->got, part) : 0;
        if (got < 0 && errno != EBADMSG && errno != EPROTO && tr__wire_would_block()) return;
        if (got < 0 && (errno == EBADMSG || errno == EPROTO)) {
            give_up_reading(rpc, link, errno == EBADMSG ? TR__RPC_CORRUPT : TR__RPC_DAMAGED);
            return;
        }
        if (got < 0 || (got == 0 && f->got < want)) {
            if (!atomic_load(&f->ended)) atomic_store(&f->ended, tr__now_ns());
            tr__rpc_wake_clock(rpc);
            return;
        }
        f->got += (size_t)got;
        share -= (size_t)got;
        progress p = f->got == want ? go_on(rpc, link) : DONE;
        if (p == BROKEN) give_up_reading(rpc, link, TR__RPC_DAMAGED);
        if (p != DONE) return;
    } while (share && !is_drained(f));
    if (f->wire && !is_drained(f)) atomic_store(&f->ready, true);
}

void tr__link_read(tr_rpc *rpc, tr__rpc_link *link)
{
    tr__rpc_stream *f = link->stream;
    if (atomic_load(&f->broken)) return;
    if (f->wire) {
        atomic_store(&f->ready, false);
        read_stream(rpc, link);
        return;
    }
    if (atomic_load(&f->awaits_room)) send_more(f);
    f->until = atomic_load(&f->in->written);
    f->at = atomic_load_explicit(&f->in->read, memory_order_relaxed);
    read_stream(rpc, link);
    give_room(f);
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

static tr_status await(const tr__rpc_stream *f, short events, int64_t deadline)
{
    int error = tr__wire_await(f->wire->socket, events, deadline);
    if (error == ETIMEDOUT) return tr__fail(TR_TIMEOUT, "rpc: a worker of another host does not answer");
    return error ? tr__fail_errno(TR_IO, error, "rpc: a worker of another host") : TR_OK;
}

/* Worker by worker, in the order of their ranks: nobody waits in a circle. The lower one serves. */
static tr_status shake_hands(tr_rpc *rpc, const tr__rpc_stream *f)
{
    int64_t deadline = tr__now_ns() + (int64_t)rpc->timeout_ms * 1000000;
    if (!tr__wire_encrypt(f->wire, tr__raw_key(rpc->group), rpc->rank < f->worker ? TR__TLS_SERVER : TR__TLS_CLIENT))
        return tr__fail(TR_NO_MEMORY, "rpc: no memory for TLS");
    for (int done; (done = tr__wire_shake_hands(f->wire)) <= 0;) {
        if (done < 0)
            return tr__fail(TR_AUTH, "rpc: worker %d does not have the job's token, or closed the connection",
                f->worker);
        TR__TRY(await(f, POLLIN, deadline));
    }
    return TR_OK;
}

static tr_status new_stream(tr__rpc_link *link)
{
    tr__rpc_stream *f = aligned_alloc(TR__CACHE_LINE, sizeof *f);
    if (!f) return tr__fail(TR_NO_MEMORY, "rpc: no memory for a worker");
    memset(f, 0, sizeof *f);
    f->worker = link->worker;
    f->last = &f->first;
    pthread_mutex_init(&f->lock, NULL);
    pthread_mutex_init(&link->blocks.lock, NULL);
    link->stream = f;
    return TR_OK;
}

tr_status tr__link_connect(tr_rpc *rpc, tr__rpc_link *link, tr__wire *wire)
{
    TR__TRY(new_stream(link));
    tr__rpc_stream *f = link->stream;
    f->wire = wire;
    f->watch = rpc->watch;
    if (!wire->tls && tr__raw_key(rpc->group)) TR__TRY(shake_hands(rpc, f));
    /* What has come already gives no event of its own. */
    atomic_store(&f->ready, true);
    struct epoll_event e = events_of(f);
    if (epoll_ctl(rpc->watch, EPOLL_CTL_ADD, wire->socket, &e) == 0) return TR_OK;
    return tr__fail_errno(TR_IO, errno, "rpc: no epoll");
}

tr_status tr__link_make_ring(tr__rpc_link *link)
{
    TR__TRY(new_stream(link));
    link->stream->out = tr_shared_alloc(sizeof *link->stream->out);
    return link->stream->out ? TR_OK : TR_NO_MEMORY;
}

tr_status tr__link_show_ring(tr_rpc *rpc, tr__rpc_link *link)
{
    uint64_t page, ring;
    TR__TRY(tr__raw_show(rpc->group, link->worker, rpc->page, &page));
    TR__TRY(tr__raw_show(rpc->group, link->worker, link->stream->out, &ring));
    link->blocks.id = ring;
    atomic_store(&rpc->page->rings[link->worker], ring);
    return TR_OK;
}

/* Memory that the worker shows as it starts, of so many bytes at least. */
static tr_status await_memory(tr_rpc *rpc, const tr__rpc_link *link, uint64_t segment, size_t bytes,
    tr__shm_mapping *mapping)
{
    enum { LOOK_MS = 100 };
    int64_t deadline = tr__now_ns() + (int64_t)rpc->timeout_ms * 1000000, now = 0;
    bool there = false;
    while (!there && now < deadline && atomic_load(&link->ending) == TR__RPC_LASTS) {
        now = tr__now_ns();
        there = tr__raw_hold(rpc->group, link->worker, segment, now + LOOK_MS * (int64_t)1000000, mapping);
    }
    if (there && mapping->bytes >= bytes) return TR_OK;
    tr__rpc_ending ending = (tr__rpc_ending)atomic_load(&link->ending);
    if (ending != TR__RPC_LASTS) return tr__fail_context(tr__rpc_say_why(rpc, link, ending), "tr_rpc_start");
    return tr__fail(TR_TIMEOUT, "rpc: worker %d has not shown its memory", link->worker);
}

tr_status tr__link_find_ring(tr_rpc *rpc, tr__rpc_link *link, uint64_t page)
{
    tr__rpc_stream *f = link->stream;
    size_t bytes = sizeof *rpc->page + (size_t)rpc->world * sizeof *rpc->page->rings;
    TR__TRY(await_memory(rpc, link, page, bytes, &f->page));
    tr__rpc_page *theirs = (tr__rpc_page *)(void *)f->page.memory;
    if (theirs->magic != TR__RPC_MAGIC || theirs->version != TR__RPC_VERSION)
        return tr__fail(TR_UNSUPPORTED, "rpc: worker %d runs another version of Trireme", link->worker);
    f->bell = &theirs->bell;
    TR__TRY(await_memory(rpc, link, atomic_load(&theirs->rings[rpc->rank]), sizeof *f->in, &f->ring));
    f->in = (tr__shm_channel *)(void *)f->ring.memory;
    link->crosses = !rpc->crowded && tr__raw_crosses(rpc->group, link->worker);
    return TR_OK;
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

void tr__link_refuse(tr__rpc_link *link)
{
    tr__rpc_stream *f = link->stream;
    if (f->wire) {
        shutdown(f->wire->socket, SHUT_RDWR);
        return;
    }
    atomic_store(&f->in->closed, 1);
    ring_bell(f->bell);
}

void tr__link_finish(tr__rpc_link *link, int64_t deadline)
{
    tr__rpc_stream *f = link->stream;
    bool left = true;
    while (left && !atomic_load(&link->gone)) {
        pthread_mutex_lock(&f->lock);
        left = flush(f) && is_pending(f);
        pthread_mutex_unlock(&f->lock);
        if (left && !f->wire) ring_bell(f->bell);
        if (left && f->wire && await(f, POLLOUT, deadline) != TR_OK) return;
        if (left && !f->wire && tr__now_ns() > deadline) return;
        if (left && !f->wire) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

void tr__link_free(tr__rpc_link *link)
{
    tr__rpc_stream *f = link->stream;
    while (f->first) drop_first(f);
    if (f->message) tr__inbound_free(f->message);
    free(f->places);
    tr__blocks_free(link);
    tr__shm_mapping_close(&f->ring);
    tr__shm_mapping_close(&f->page);
    tr_shared_free(f->out);
    pthread_mutex_destroy(&f->lock);
    pthread_mutex_destroy(&link->blocks.lock);
    free(f);
    link->stream = NULL;
}
