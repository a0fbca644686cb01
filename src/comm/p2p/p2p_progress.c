/*
 * Who works on sends and receives. Over rings: the thread that waits for one (tr_send, tr_recv), and for posted ones a thread
 * of the group, each on all of them; who finds nothing to do sleeps on the rank's mail. Over connections: whoever starts one
 * writes what the kernel takes, and a second thread, the reader, sleeps on the connections and does the rest.
 */
#include "base/clock.h"
#include "base/futex.h"
#include "base/log.h"
#include "base/thread.h"
#include "comm/p2p/p2p.h"

#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SPINS = 200, YIELDS = 20, LOOK_MS = 100, DOZE_MS = 60000, OPENED_MS = 1000, RING_EAGER = 16 << 10 };

/* ---- The lock: callers before the reader -------------------------------------------------------------------------- */

static void lock_as_caller(tr__p2p *p)
{
    atomic_fetch_add(&p->callers, 1);
    pthread_mutex_lock(&p->lock);
    atomic_fetch_sub(&p->callers, 1);
}

/* While peers send without a pause, the reader lets go of the lock for moments only, and a caller whom that wakes comes too
 * late: it asked for its next message after up to half a second. */
static void lock_as_reader(tr__p2p *p)
{
    while (atomic_load(&p->callers)) sched_yield();
    pthread_mutex_lock(&p->lock);
}

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

/* The group is broken, or this thread's latest failure breaks it: ends all. Where that came from no send or receive of ours, each says
 * what it was that failed. */
static void end_all(tr__p2p *p, bool with_call)
{
    (void)!tr__failure_break(p->failure); /* the peers can see it before the buffers of sends are the program's */
    tr__p2p_drop_all(p, with_call);
    tr__recorder_held(p->recorder, NULL);
}

/* ---- Operations that wait ----------------------------------------------------------------------------------------- */

typedef struct patience {
    int64_t now, next;       /* when to look again */
    const tr__p2p_op *stuck; /* the program waits for it. What is only posted keeps nobody waiting */
    tr__p2p_peer *on;
    tr__held held;           /* a peer that long has not received what it was sent */
} patience;

/* What there is to say of a peer that keeps us waiting by not receiving; late: who keeps us waiting. */
static char *held_text(const tr__p2p_peer *peer, const tr__p2p_op *op, int late, char text[TR__HELD_TEXT])
{
    tr__held held = late == peer->rank ? tr__p2p_unasked(peer, op) : (tr__held){0};
    return tr__held_text(&held, text);
}

/* What a receive has instead of its message: one of the peer's that no receive has asked for, as its tag is another one. */
enum { OTHER_TEXT = TR__CALL_TEXT + 64 };
static char *other_text(const tr__p2p_peer *peer, const tr__p2p_op *op, char text[OTHER_TEXT])
{
    text[0] = 0;
    bool comes = op->frame.id || peer->reading == op; /* its own message: it was announced, or part of it is here */
    if (op->work->collective.kind != TR_RECV || comes || !peer->arrived.first) return text;
    char call[TR__CALL_TEXT];
    tr__signature sent = tr__p2p_sent(peer->engine, &peer->arrived.first->frame);
    snprintf(text, OTHER_TEXT, "; what came from it is for another tag: %s", tr__signature_text(&sent, call));
    return text;
}

static tr_status timed_out(const tr__p2p_peer *peer, const tr__p2p_op *op)
{
    char call[TR__CALL_TEXT], name[TR__P2P_NAME], state[TR__P2P_STATE], held[TR__HELD_TEXT], other[OTHER_TEXT];
    tr__signature s = tr__p2p_call(peer->engine, op);
    int timeout_ms = op->work->collective.timeout_ms;
    TR__TRY(tr__p2p_check_peers(peer, timeout_ms));
    int late = tr__p2p_culprit(peer, name, state);
    return tr__fail(TR_TIMEOUT, "%s: rank %d waited %g s for %s%s; %s%s", tr__signature_text(&s, call), peer->engine->rank,
        timeout_ms / 1000.0, name, held_text(peer, op, late, held), state, other_text(peer, op, other));
}

static void report(const tr__p2p_peer *peer, const tr__p2p_op *op)
{
    const tr__p2p *p = peer->engine;
    char call[TR__CALL_TEXT], name[TR__P2P_NAME], state[TR__P2P_STATE], held[TR__HELD_TEXT], other[OTHER_TEXT];
    tr__signature s = tr__p2p_call(p, op);
    int late = tr__p2p_culprit(peer, name, state);
    tr__log(TR_LOG_WARN, "group '%s': rank %d has waited %g s in %s for %s%s; %s%s", p->group, p->rank, p->report_ms / 1000.0,
        tr__signature_text(&s, call), name, held_text(peer, op, late, held), state, other_text(peer, op, other));
}

/* Has a peer left, and was all that it sent read? A death breaks the group by itself. */
static bool is_gone(const tr__p2p_peer *peer)
{
    bool never = false;
    if (peer->local) return peer->drained;
    if (!tr__p2p_left(peer)) return false;
    if (!peer->closed) tr__tcp_need_wire(peer->engine->tcp, peer->rank, TR__P2P_CHANNEL, &never);
    return peer->closed || never;
}

static tr_status check_anyone(tr__p2p *p, const tr__p2p_op *op)
{
    char text[TR__CALL_TEXT];
    for (int rank = 0; rank < p->world_size; rank++)
        if (rank != p->rank && !is_gone(&p->peers[rank])) return TR_OK;
    tr__signature call = tr__p2p_call(p, op);
    return tr__fail(TR_PEER, "all other ranks have left group '%s', but %s needs one of them", p->group,
        tr__signature_text(&call, text));
}

static tr_status left_early(const tr__p2p_peer *peer, const tr__p2p_op *op)
{
    char text[TR__CALL_TEXT];
    tr__signature call = tr__p2p_call(peer->engine, op);
    return tr__fail(TR_PEER, "rank %d (pid %ld) left group '%s', but %s needs it", peer->rank, peer->local->pid,
        peer->engine->group, tr__signature_text(&call, text));
}

static tr_status look(tr__p2p_peer *peer, tr__p2p_op *op, patience *w)
{
    if (peer->local && is_gone(peer)) return left_early(peer, op); /* of connections, who reads them finds out */
    int64_t timeout_ns = (int64_t)op->work->collective.timeout_ms * 1000000;
    int64_t report_ns = (int64_t)peer->engine->report_ms * 1000000;
    if (!op->began) {
        op->began = w->now;
        op->deadline = w->now + timeout_ns;
    }
    bool expired = w->now >= op->deadline;
    if (expired && op->expired) return timed_out(peer, op);
    op->expired = expired; /* what has come while this process was stopped is read before the next look */
    if (peer->rank == TR_ANY_SOURCE) TR__TRY(check_anyone(peer->engine, op));
    if (op->deadline < w->next) w->next = expired ? w->now : op->deadline;
    if (!op->driven && !atomic_load(&op->work->awaited)) return TR_OK;
    if (!w->stuck || peer->local) {
        w->stuck = op;
        w->on = peer;
    }
    int64_t waited = w->now - op->began;
    if (waited >= LOOK_MS * (int64_t)1000000 && !w->held.bytes) w->held = tr__p2p_unasked(peer, op);
    if (waited < report_ns && op->began + report_ns < w->next) w->next = op->began + report_ns;
    if (waited >= report_ns && !op->reported) {
        op->reported = true;
        report(peer, op);
    }
    return TR_OK;
}

/* Ranks of other hosts do not see in our memory whom we wait for. */
static void tell_other_hosts(tr__p2p *p, const tr__p2p_op *stuck)
{
    int rank = stuck ? stuck->work->collective.peer : -1;
    if (!p->tcp || rank == p->told) return;
    if (stuck) p->told_in = tr__p2p_call(p, stuck);
    tr__tcp_announce(p->tcp, &p->told_in, rank);
    p->told = rank;
}

/* Before somebody sleeps, LOOK_MS at the most. */
static tr_status look_at_all(tr__p2p *p, patience *w)
{
    *w = (patience){.now = tr__now_ns()};
    w->next = w->now + LOOK_MS * (int64_t)1000000;
    for (int i = 0; i < TR__P2P_LISTS * (p->world_size + 1); i++) {
        tr__p2p_peer *peer = &p->peers[i / TR__P2P_LISTS];
        for (tr__p2p_op *op = peer->lists[i % TR__P2P_LISTS].first; op; op = op->next)
            if (op->work) TR__TRY(look(peer, op, w));
    }
    bool long_since = p->tcp && w->stuck && w->now - w->stuck->began >= tr__tcp_announce_ms(p->tcp) * (int64_t)1000000;
    tell_other_hosts(p, long_since ? w->stuck : NULL);
    if (w->held.bytes || p->holder) tr__recorder_held(p->recorder, w->held.bytes ? &w->held : NULL);
    p->holder = w->held.bytes > 0;
    return TR_OK;
}

/* ---- Over rings: a round of work ---------------------------------------------------------------------------------- */

/* Who has left is seen before the rings are read to the end. */
static tr_status advance(tr__p2p *p, bool *moved)
{
    for (int rank = 0; rank < p->world_size; rank++) {
        tr__p2p_peer *peer = &p->peers[rank];
        if (!peer->local) continue;
        bool any = false, left = tr__p2p_left(peer);
        TR__TRY(tr__p2p_read(peer, &any));
        if (left && !any && !peer->drained) any = peer->drained = true; /* whoever waits for it looks again */
        TR__TRY(tr__p2p_write(peer, &any));
        *moved |= any;
    }
    return TR_OK;
}

static bool work_once(tr__p2p *p)
{
    bool moved = false;
    if (!p->pending) return false;
    if (tr__failure_there(p->failure)) {
        end_all(p, true);
        return true;
    }
    if (advance(p, &moved) != TR_OK) {
        end_all(p, false);
        return true;
    }
    if (moved) {
        atomic_store(&p->shm->control->stuck.message, 0);
        tell_other_hosts(p, NULL);
    }
    return moved;
}

/* Leaves the lock while it sleeps: until mail comes, or it is time to look. */
static void sleep_on_mail(tr__p2p *p, bool (*done)(tr__p2p *p, const void *arg), const void *arg)
{
    tr__shm_control *control = p->shm->control;
    patience w;
    if (look_at_all(p, &w) != TR_OK) {
        end_all(p, false);
        return;
    }
    int stuck = w.stuck && w.on->local ? p->shm->places[w.on->rank] + 1 : 0;
    /* Who does something from now on sees that we sleep; what was done before, a last look finds. */
    atomic_fetch_add(&control->mail_sleepers, 1);
    unsigned mail = atomic_load(&control->mail);
    if (!work_once(p) && !done(p, arg)) {
        atomic_store(&control->stuck.mail, mail);
        atomic_store(&control->stuck.message, stuck);
        pthread_mutex_unlock(&p->lock);
        tr__futex_wait(&control->mail, mail, w.next - w.now);
        pthread_mutex_lock(&p->lock);
    }
    atomic_fetch_sub(&control->mail_sleepers, 1);
}

/* Works until done(p, arg). */
static void work_until(tr__p2p *p, bool (*done)(tr__p2p *p, const void *arg), const void *arg)
{
    int turns = YIELDS + (p->shm->crowded ? 0 : SPINS);
    for (int turn = 0;; turn++) {
        bool moved = work_once(p);
        if (done(p, arg)) return;
        if (moved) turn = 0;
        if (turn < turns) {
            pthread_mutex_unlock(&p->lock);
            if (turn < SPINS && !p->shm->crowded)
                tr__relax();
            else
                sched_yield();
            pthread_mutex_lock(&p->lock);
        } else {
            sleep_on_mail(p, done, arg);
        }
    }
}

static bool work_done(tr__p2p *p, const void *arg)
{
    (void)p;
    return tr_work_done((tr_work *)arg);
}

void tr__p2p_drive(tr__p2p *p, const tr_work *work)
{
    if (!p->shm) return;
    lock_as_caller(p); /* as the reader may find out meanwhile whom it is with */
    int rank = work->collective.peer;
    const tr__p2p_peer *peer = rank == TR_ANY_SOURCE ? p->anyone : &p->peers[rank];
    if (peer->by_ring) work_until(p, work_done, work);
    pthread_mutex_unlock(&p->lock);
}

static bool none_left(tr__p2p *p, const void *count)
{
    (void)p;
    return *(const int *)count == 0;
}

static void *help(void *arg)
{
    tr__p2p *p = arg;
    TR__LOCKED(&p->lock);
    while (!p->stopping) {
        if (p->helped)
            work_until(p, none_left, &p->helped);
        else
            pthread_cond_wait(&p->wanted, &p->lock);
    }
    return NULL;
}

/* ---- Over connections: the reader --------------------------------------------------------------------------------- */

/* What to wait for; returns for how many milliseconds, 0 when something has come already. */
static int prepare(tr__p2p *p, bool idle)
{
    bool holds = false;
    patience w;
    if (tr__failure_there(p->failure)) {
        if (p->pending) end_all(p, true);
        w = (patience){.next = LOOK_MS * (int64_t)1000000};
    } else if (look_at_all(p, &w) != TR_OK) {
        end_all(p, false);
    }
    for (int rank = 0; rank < p->world_size; rank++) {
        tr__p2p_peer *peer = &p->peers[rank];
        bool open = peer->remote && !peer->closed;
        const tr__wire *wire = open ? tr__tcp_wire(p->tcp, rank, TR__P2P_CHANNEL) : NULL;
        holds |= wire && tr__wire_holds(wire);
        p->polled[rank] = (struct pollfd){.fd = wire ? wire->socket : -1, .events = POLLIN};
        if (peer->lists[TR__P2P_OUT].first) p->polled[rank].events |= POLLOUT;
    }
    p->polled[p->world_size] = (struct pollfd){.fd = p->tcp->wake, .events = POLLIN};
    p->dozing = idle && !p->pending && !holds;
    return holds ? 0 : p->dozing ? DOZE_MS : (int)((w.next - w.now) / 1000000) + 1;
}

static tr_status serve(tr__p2p_peer *peer, const struct pollfd *polled)
{
    bool moved = false, came = polled->revents & (POLLIN | POLLHUP | POLLERR);
    bool fresh = polled->fd < 0 && tr__p2p_any(peer); /* its connection has come, or is to be asked for, or will never come */
    const tr__wire *wire = tr__tcp_wire(peer->engine->tcp, peer->rank, TR__P2P_CHANNEL);
    if (came || fresh || (wire && tr__wire_holds(wire))) TR__TRY(tr__p2p_read(peer, &moved));
    return moved || fresh || polled->revents & POLLOUT ? tr__p2p_write(peer, &moved) : TR_OK;
}

static void *read_connections(void *arg)
{
    tr__p2p *p = arg;
    int ready = 0;
    lock_as_reader(p);
    for (;;) {
        int wait_ms = prepare(p, ready == 0);
        if (p->stopping && !p->pending) break;
        pthread_mutex_unlock(&p->lock);
        ready = poll(p->polled, (nfds_t)p->world_size + 1, wait_ms);
        lock_as_reader(p);
        uint64_t wakes;
        while (read(p->tcp->wake, &wakes, sizeof wakes) > 0) continue;
        for (int rank = 0; rank < p->world_size; rank++) {
            bool open = p->peers[rank].remote && !p->peers[rank].closed;
            if (open && serve(&p->peers[rank], &p->polled[rank]) != TR_OK) end_all(p, false);
        }
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

static tr_status need_thread(tr__p2p *p, bool *has, pthread_t *thread, void *(*run)(void *))
{
    if (*has) return TR_OK;
    int error = tr__thread_start(thread, run, p);
    if (error) return tr__fail_errno(TR_NO_MEMORY, error, "group '%s': no thread for sends and receives", p->group);
    *has = true;
    return TR_OK;
}

static tr_status start(tr__p2p *p, tr_work *work, bool driven)
{
    tr__p2p_peer *peer = tr__p2p_peer_of(p, &work->collective);
    bool moved;
    if (tr__failure_there(p->failure)) return tr__failure_check(p->failure, p->group);
    if (peer->by_stream) {
        TR__TRY(tr__tcp_need_event(p->tcp, &p->tcp->wake));
        TR__TRY(need_thread(p, &p->has_reader, &p->reader, read_connections));
    }
    if (peer->by_ring && !driven) TR__TRY(need_thread(p, &p->has_thread, &p->thread, help));
    tr__p2p_op *op = malloc(sizeof *op);
    if (!op) return tr__fail(TR_NO_MEMORY, "group '%s': no memory for a message", p->group);
    *op = (tr__p2p_op){.work = tr__ref(work), .driven = driven};
    int before = p->pending++;
    p->helped += peer->by_ring && !driven;
    tr_status status = tr__p2p_begin(peer, op);
    if (status == TR_OK && peer->remote) status = tr__p2p_write(peer, &moved);
    if (status == TR_OK && peer->closed && p->pending > before) status = tr__p2p_lost(peer, 0);
    if (status != TR_OK) end_all(p, false);
    if (peer->by_ring) work_once(p);
    if (p->helped) pthread_cond_signal(&p->wanted);
    bool soon = work->collective.timeout_ms < 10 * LOOK_MS;
    if (peer->by_stream && p->pending && (p->dozing || soon || peer->lists[TR__P2P_OUT].first)) tr__tcp_wake_reader(p->tcp);
    return TR_OK;
}

void tr__p2p_start(tr__p2p *p, tr_work *work, bool driven)
{
    lock_as_caller(p);
    tr_status status = start(p, work, driven);
    if (status != TR_OK) tr__work_finish(work, status);
    pthread_mutex_unlock(&p->lock);
}

bool tr__p2p_pending(tr__p2p *p)
{
    lock_as_caller(p);
    bool pending = p->pending > 0;
    pthread_mutex_unlock(&p->lock);
    return pending;
}

/* ---- Beginning and end ------------------------------------------------------------------------------------------- */

static void destroy(tr__p2p *p)
{
    for (int rank = 0; p->peers && rank < p->world_size; rank++) tr_shared_free(p->peers[rank].outbound);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wanted);
    free(p->peers);
    free(p->polled);
    free(p);
}

tr_status tr__p2p_new(const tr__member *member, tr__failure *failure, tr__shm *shm, tr__tcp *tcp, tr__p2p **engine)
{
    size_t world = (size_t)member->world_size;
    tr__p2p *p = calloc(1, sizeof *p);
    if (!p) return tr__fail(TR_NO_MEMORY, "group '%s': no memory", member->group);
    *p = (tr__p2p){.group = member->group, .rank = member->rank, .world_size = member->world_size, .told = -1,
        .failure = failure, .shm = shm, .tcp = tcp, .report_ms = member->report_ms, .recorder = member->recorder,
        .limit = (uint64_t)member->unexpected_bytes};
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wanted, NULL);
    p->peers = calloc(world + 1, sizeof *p->peers);
    p->polled = calloc(world + 1, sizeof *p->polled);
    if (!p->peers || !p->polled) {
        destroy(p);
        return tr__fail(TR_NO_MEMORY, "group '%s': no memory for %zu ranks", member->group, world);
    }
    for (int rank = 0; rank < p->world_size; rank++) {
        int place = shm ? shm->places[rank] : -1;
        bool other = rank != p->rank, local = place >= 0;
        p->peers[rank] = (tr__p2p_peer){.engine = p, .rank = rank, .eager = local ? RING_EAGER : PTRDIFF_MAX,
            .by_ring = other && local, .by_stream = other && !local, .local = other && local ? &shm->peers[place] : NULL,
            .remote = other && !local ? &tcp->peers[rank] : NULL};
    }
    p->anyone = &p->peers[world];
    *p->anyone = (tr__p2p_peer){.engine = p, .rank = TR_ANY_SOURCE, .by_ring = shm != NULL, .by_stream = tcp != NULL};
    *engine = p;
    return TR_OK;
}

/* Has everyone whom we have sent something got hold of our ring? Ranks of one process could not after we are gone; those that
 * leave as well do not want it. */
static bool rings_are_open(tr__p2p *p, const void *deadline)
{
    if (tr__failure_there(p->failure) || tr__now_ns() > *(const int64_t *)deadline) return true;
    for (int rank = 0; rank < p->world_size; rank++) {
        const tr__p2p_peer *peer = &p->peers[rank];
        if (peer->outbound && !atomic_load(&peer->outbound->opened) && !atomic_load(&peer->local->left)) return false;
    }
    return true;
}

void tr__p2p_end(tr__p2p *p)
{
    int64_t deadline = tr__now_ns() + OPENED_MS * (int64_t)1000000;
    lock_as_caller(p);
    if (p->shm) {
        work_until(p, none_left, &p->pending);
        work_until(p, rings_are_open, &deadline);
    }
    p->stopping = true;
    pthread_cond_signal(&p->wanted);
    pthread_mutex_unlock(&p->lock);
    if (p->has_reader) tr__tcp_wake_reader(p->tcp);
    if (p->has_thread) pthread_join(p->thread, NULL);
    if (p->has_reader) pthread_join(p->reader, NULL);
    tr__p2p_drop_all(p, false);
    destroy(p);
}
