/*
 * Sends and receives over TCP, beside the collectives: a third connection between each pair of ranks, and a thread that
 * starts with the first send or receive. Messages of a pair follow each other behind their frames; each is for the first
 * receive of its tag, and waits in memory when there is none yet. As whatever comes is taken, ranks that all send first do
 * not block each other.
 */
#include "base/clock.h"
#include "base/thread.h"
#include "comm/transport/tcp.h"
#include "comm/work.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

typedef struct op { /* a send or receive that is under way */
    struct op *next;
    tr_work *work;
    tr__signature call;
    size_t bytes, framed, done; /* of a send: of the frame and the data */
    int64_t began, deadline;
} op;

typedef struct arrival { /* a message that nobody has asked for yet */
    struct arrival *next;
    tr__signature call;
    size_t bytes, done;
    char data[];
} arrival;

typedef struct lane {
    op *sends, *receives; /* the oldest first */
    arrival *arrivals;
    bool closed;
    /* The message that is coming in: for a receive, or to be kept. */
    size_t framed;
    tr__tcp_frame frame;
    op *into;
    arrival *kept;
} lane;

struct tr__tcp_p2p {
    pthread_mutex_t lock;
    _Atomic int callers; /* that wait for the lock */
    lane *lanes;         /* [world_size] */
    int pending;
    int kick; /* eventfd: something is new for the thread */
    bool has_thread, stopping;
    pthread_t thread;
    struct pollfd *polled; /* [world_size + 1] */
    int stuck;             /* the rank that the peers have been told the program waits for; -1: none */
    tr__signature stuck_in;
};

/* ---- The lock: callers before the thread --------------------------------------------------------------------------- */

static void lock_as_caller(tr__tcp_p2p *p)
{
    atomic_fetch_add(&p->callers, 1);
    pthread_mutex_lock(&p->lock);
    atomic_fetch_sub(&p->callers, 1);
}

/* While peers send without a pause, the thread lets go of the lock for moments only, and a caller whom that wakes comes too
 * late: it asked for its next message after up to half a second, and what had come by then filled the memory. */
static void lock_as_thread(tr__tcp_p2p *p)
{
    while (atomic_load(&p->callers)) sched_yield();
    pthread_mutex_lock(&p->lock);
}

/* ---- Operations; all under the lock ------------------------------------------------------------------------------- */

static void finish(tr__tcp *t, op *o, tr_status status)
{
    t->p2p->pending--;
    tr__work_finish(o->work, status);
    tr__unref(o->work);
    free(o);
}

static void append(op **list, op *o)
{
    while (*list) list = &(*list)->next;
    *list = o;
}

static void fail_list(tr__tcp *t, op **list)
{
    for (op *o; (o = *list);) {
        *list = o->next;
        finish(t, o, tr__failure_tell(&t->failure));
    }
}

static void fail_all(tr__tcp *t)
{
    for (int rank = 0; rank < t->world_size; rank++) {
        lane *l = &t->p2p->lanes[rank];
        fail_list(t, &l->sends);
        fail_list(t, &l->receives);
        if (l->into) finish(t, l->into, tr__failure_tell(&t->failure));
        l->into = NULL;
        l->closed = true;
    }
}

static op *any_op(const lane *l)
{
    return l->into ? l->into : l->sends ? l->sends : l->receives;
}

static void hang_up(tr__tcp *t, int rank, int error)
{
    lane *l = &t->p2p->lanes[rank];
    l->closed = true;
    tr_status status = TR_OK;
    if (error == EBADMSG)
        status = tr__tcp_damaged(t, &t->peers[rank]);
    else if (any_op(l))
        status = tr__tcp_lost(t, &t->peers[rank], &any_op(l)->call, error);
    (void)status; /* the thread sees that the group is broken */
}

static tr__wire *wire_to(const tr__tcp *t, int rank)
{
    return &t->peers[rank].wires[TR__TCP_P2P_LANE];
}

static void flush(tr__tcp *t, int rank)
{
    lane *l = &t->p2p->lanes[rank];
    tr__wire *wire = wire_to(t, rank);
    for (op *o; (o = l->sends) && !l->closed;) {
        tr__tcp_frame frame = tr__tcp_frame_of(&o->call, TR__TCP_DATA, o->bytes);
        struct iovec parts[2] = {{(char *)&frame + o->framed, sizeof frame - o->framed},
            {(char *)o->work->collective.in + o->done, o->bytes - o->done}};
        ssize_t sent = tr__wire_send(wire, parts, 2);
        if (sent < 0 && tr__wire_would_block()) return;
        if (sent < 0) {
            hang_up(t, rank, errno);
            return;
        }
        size_t of_frame = (size_t)sent < parts[0].iov_len ? (size_t)sent : parts[0].iov_len;
        o->framed += of_frame;
        o->done += (size_t)sent - of_frame;
        if (o->framed < sizeof frame || o->done < o->bytes || tr__wire_pending(wire)) continue;
        l->sends = o->next;
        finish(t, o, TR_OK);
    }
}

/* ---- Messages that come in ----------------------------------------------------------------------------------------- */

static tr_status check_fit(tr__tcp *t, int rank, const op *o, const tr__signature *theirs)
{
    if (theirs->dtype == o->call.dtype && theirs->count == o->call.count) return TR_OK;
    TR__TRY(tr__tcp_heed(t));
    tr__call_mismatch(t->group, rank, theirs, t->rank, &o->call);
    return tr__tcp_break(t);
}

static void end_message(tr__tcp *t, lane *l)
{
    l->framed = 0;
    l->kept = NULL;
    if (l->into) finish(t, l->into, TR_OK);
    l->into = NULL;
}

/* An empty message has come with its frame: nothing follows that would wake the thread to end it. */
static void end_if_empty(tr__tcp *t, lane *l)
{
    if (l->frame.bytes == 0) end_message(t, l);
}

static tr_status begin_message(tr__tcp *t, int rank)
{
    lane *l = &t->p2p->lanes[rank];
    tr__signature theirs;
    bool sound = tr__tcp_read_frame(&l->frame, &theirs) && l->frame.type == TR__TCP_DATA && theirs.kind == TR_SEND &&
                 theirs.count >= 0 && l->frame.bytes <= PTRDIFF_MAX / 2 &&
                 l->frame.bytes == (uint64_t)theirs.count * tr_dtype_size(theirs.dtype);
    if (!sound) {
        char name[TR__TCP_NAME];
        tr__fail(TR_FORMAT, "%s sent a damaged message", tr__tcp_name(&t->peers[rank], name));
        return tr__tcp_break(t);
    }
    op **at = &l->receives;
    while (*at && (*at)->call.tag != theirs.tag) at = &(*at)->next;
    if (*at) {
        TR__TRY(check_fit(t, rank, *at, &theirs));
        l->into = *at;
        *at = l->into->next;
        end_if_empty(t, l);
        return TR_OK;
    }
    l->kept = malloc(sizeof *l->kept + l->frame.bytes);
    if (!l->kept) {
        tr__fail(TR_NO_MEMORY, "group '%s': no memory for %zu bytes from rank %d that no receive is there for", t->group,
            (size_t)l->frame.bytes, rank);
        return tr__tcp_break(t);
    }
    *l->kept = (arrival){.call = theirs, .bytes = l->frame.bytes};
    arrival **last = &l->arrivals;
    while (*last) last = &(*last)->next;
    *last = l->kept;
    end_if_empty(t, l);
    return TR_OK;
}

/* Takes what is there, up to some 16 pieces: the others want their turn. */
static void take_in(tr__tcp *t, int rank)
{
    lane *l = &t->p2p->lanes[rank];
    for (int piece = 0; piece < 16 && !l->closed; piece++) {
        size_t *done = l->into ? &l->into->done : l->kept ? &l->kept->done : &l->framed;
        char *to = l->into ? (char *)l->into->work->collective.out : l->kept ? l->kept->data : (char *)&l->frame;
        size_t size = l->into ? l->into->bytes : l->kept ? l->kept->bytes : sizeof l->frame;
        struct iovec rest = {to + *done, size - *done};
        ssize_t got = *done < size ? tr__wire_receive(wire_to(t, rank), &rest, 1, true) : 0;
        if (got < 0 && tr__wire_would_block()) return;
        if (*done < size && got <= 0) {
            hang_up(t, rank, got < 0 ? errno : 0);
            return;
        }
        *done += (size_t)got;
        if (*done < size) continue;
        if (l->into || l->kept)
            end_message(t, l);
        else if (begin_message(t, rank) != TR_OK)
            return;
    }
}

/* A message that has come, or is coming, for a new receive. Takes the receive over when there is one. */
static tr_status take_arrival(tr__tcp *t, int rank, op *o, bool *taken)
{
    lane *l = &t->p2p->lanes[rank];
    arrival **at = &l->arrivals;
    while (*at && (*at)->call.tag != o->call.tag) at = &(*at)->next;
    arrival *a = *at;
    *taken = a != NULL;
    if (!a) return TR_OK;
    TR__TRY(check_fit(t, rank, o, &a->call));
    size_t there = a->done + (l->kept == a ? tr__wire_placed(wire_to(t, rank)) : 0);
    if (there) memcpy(o->work->collective.out, a->data, there);
    *at = a->next;
    o->done = a->done;
    if (l->kept == a) {
        l->kept = NULL;
        l->into = o; /* the rest follows */
    } else {
        finish(t, o, TR_OK);
    }
    free(a);
    return TR_OK;
}

/* ---- The thread ----------------------------------------------------------------------------------------------------- */

static void check_deadline(tr__tcp *t, int rank, const op *o, int64_t now, int64_t *next)
{
    if (!o || tr__failure_there(&t->failure)) return;
    if (now >= o->deadline) {
        if (tr__tcp_heed(t) == TR_OK)
            (void)!tr__tcp_timed_out(t, &o->call, rank, o->work->collective.timeout_ms);
        (void)!tr__tcp_break(t);
    } else if (o->deadline < *next) {
        *next = o->deadline;
    }
}

/* Has the program long waited for it? What is only posted keeps nobody waiting. */
static bool is_stuck(const op *o, int64_t now)
{
    return atomic_load(&o->work->awaited) && now - o->began >= TR__TCP_ANNOUNCE_MS * (int64_t)1000000;
}

/* Tells the peers when that begins and ends. */
static void tell_of_waiting(tr__tcp *t, int64_t now)
{
    tr__tcp_p2p *p = t->p2p;
    int stuck = -1;
    for (int rank = 0; rank < t->world_size && stuck < 0; rank++) {
        const op *o = any_op(&p->lanes[rank]);
        if (!o || !is_stuck(o, now)) continue;
        stuck = rank;
        p->stuck_in = o->call;
    }
    if (stuck != p->stuck) tr__tcp_announce(t, &p->stuck_in, stuck);
    p->stuck = stuck;
}

/* What to wait for; returns the milliseconds to the next deadline, or 0 when something has come already. */
static int prepare(tr__tcp *t)
{
    tr__tcp_p2p *p = t->p2p;
    int64_t now = tr__now_ns();
    int64_t next = now + (p->pending ? TR__TCP_ANNOUNCE_MS : 60000) * (int64_t)1000000;
    bool holds = false;
    if (!tr__failure_there(&t->failure)) tell_of_waiting(t, now);
    for (int rank = 0; rank < t->world_size; rank++) {
        lane *l = &p->lanes[rank];
        check_deadline(t, rank, l->into, now, &next);
        for (const op *o = l->sends; o; o = o->next) check_deadline(t, rank, o, now, &next);
        for (const op *o = l->receives; o; o = o->next) check_deadline(t, rank, o, now, &next);
        int socket = l->closed ? -1 : wire_to(t, rank)->socket;
        holds |= !l->closed && tr__wire_holds(wire_to(t, rank));
        p->polled[rank] = (struct pollfd){.fd = socket, .events = (short)(POLLIN | (l->sends ? POLLOUT : 0))};
    }
    p->polled[t->world_size] = (struct pollfd){.fd = p->kick, .events = POLLIN};
    return holds ? 0 : (int)((next - now) / 1000000) + 1;
}

static void *work_off(void *arg)
{
    tr__tcp *t = arg;
    tr__tcp_p2p *p = t->p2p;
    lock_as_thread(p);
    for (;;) {
        int wait_ms = prepare(t);
        if (tr__failure_there(&t->failure)) {
            fail_all(t);
            wait_ms = prepare(t); /* nothing but the kick */
        }
        if (p->stopping && p->pending == 0) break;
        pthread_mutex_unlock(&p->lock);
        poll(p->polled, (nfds_t)t->world_size + 1, wait_ms);
        lock_as_thread(p);
        uint64_t kicks;
        while (read(p->kick, &kicks, sizeof kicks) > 0) continue;
        for (int rank = 0; rank < t->world_size; rank++) {
            bool came = p->polled[rank].revents & (POLLIN | POLLHUP | POLLERR);
            if (came || tr__wire_holds(wire_to(t, rank))) take_in(t, rank);
            if (p->polled[rank].revents & POLLOUT) flush(t, rank);
        }
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static tr_status need_thread(tr__tcp *t)
{
    if (t->p2p->has_thread) return TR_OK;
    int error = tr__thread_start(&t->p2p->thread, work_off, t);
    if (error) return tr__fail_errno(TR_NO_MEMORY, error, "group '%s': cannot start its thread", t->group);
    t->p2p->has_thread = true;
    return TR_OK;
}

void tr__tcp_p2p_wake(tr__tcp *t)
{
    ssize_t written = write(t->p2p->kick, &(uint64_t){1}, sizeof(uint64_t)); /* fails only when it is set already */
    (void)written;
}

/* ---- From outside ---------------------------------------------------------------------------------------------------- */

static tr_status start(tr__tcp *t, tr_work *work)
{
    const tr_collective *c = &work->collective;
    lane *l = &t->p2p->lanes[c->peer];
    tr__signature call;
    tr__signature_of(c, t->world_size, 0, &call);
    TR__TRY(tr__failure_check(&t->failure, t->group));
    TR__TRY(need_thread(t));
    op *o = malloc(sizeof *o);
    if (!o) return tr__fail(TR_NO_MEMORY, "group '%s': no memory", t->group);
    *o = (op){.work = tr__ref(work), .call = call, .bytes = tr__collective_bytes(c)};
    o->began = tr__now_ns();
    o->deadline = o->began + (int64_t)c->timeout_ms * 1000000;
    t->p2p->pending++;
    bool taken = false;
    tr_status status = c->kind == TR_RECV ? take_arrival(t, c->peer, o, &taken) : TR_OK;
    if (status == TR_OK && !taken && l->closed) status = tr__tcp_lost(t, &t->peers[c->peer], &call, 0);
    if (status != TR_OK) {
        finish(t, o, status);
        return TR_OK;
    }
    if (!taken) append(c->kind == TR_SEND ? &l->sends : &l->receives, o);
    flush(t, c->peer);
    return TR_OK;
}

void tr__tcp_p2p_start(tr__tcp *t, tr_work *work)
{
    lock_as_caller(t->p2p);
    tr_status status = start(t, work);
    if (status != TR_OK) tr__work_finish(work, status);
    bool needed = t->p2p->pending > 0;
    pthread_mutex_unlock(&t->p2p->lock);
    if (needed) tr__tcp_p2p_wake(t);
}

bool tr__tcp_p2p_pending(tr__tcp *t)
{
    lock_as_caller(t->p2p);
    bool pending = t->p2p->pending > 0;
    pthread_mutex_unlock(&t->p2p->lock);
    return pending;
}

tr_status tr__tcp_p2p_new(tr__tcp *t)
{
    size_t world = (size_t)t->world_size;
    tr__tcp_p2p *p = t->p2p = calloc(1, sizeof *p);
    if (!p) return tr__fail(TR_NO_MEMORY, "group '%s': no memory", t->group);
    pthread_mutex_init(&p->lock, NULL);
    p->kick = p->stuck = -1;
    p->lanes = calloc(world, sizeof *p->lanes);
    p->polled = calloc(world + 1, sizeof *p->polled);
    p->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!p->lanes || !p->polled) return tr__fail(TR_NO_MEMORY, "group '%s': no memory for %zu ranks", t->group, world);
    return p->kick >= 0 ? TR_OK : tr__fail_errno(TR_IO, errno, "group '%s': no eventfd", t->group);
}

void tr__tcp_p2p_finish(tr__tcp *t)
{
    tr__tcp_p2p *p = t->p2p;
    if (!p || !p->has_thread) return;
    lock_as_caller(p);
    p->stopping = true;
    pthread_mutex_unlock(&p->lock);
    tr__tcp_p2p_wake(t);
    pthread_join(p->thread, NULL);
}

void tr__tcp_p2p_free(tr__tcp *t)
{
    tr__tcp_p2p *p = t->p2p;
    if (!p) return;
    for (int rank = 0; p->lanes && rank < t->world_size; rank++) {
        for (arrival *a = p->lanes[rank].arrivals, *next; a; a = next) {
            next = a->next;
            free(a);
        }
    }
    if (p->kick >= 0) close(p->kick);
    pthread_mutex_destroy(&p->lock);
    free(p->lanes);
    free(p->polled);
    free(p);
    t->p2p = NULL;
}
