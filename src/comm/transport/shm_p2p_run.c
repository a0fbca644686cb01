/*
 * Who works on sends and receives: the thread that waits for one (tr_send, tr_recv), and for posted ones a thread of
 * the group, each on all of them. Whoever finds nothing to do sleeps on the rank's mail.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "comm/futex.h"
#include "comm/transport/shm_p2p.h"
#include "comm/transport/tcp.h"

#include <sched.h>
#include <stdlib.h>

enum { SPINS = 200, YIELDS = 20, SLEEP_MS = 100, REPORT_MS = 10000 };

/* ---- Operations that wait in vain -------------------------------------------------------------------------------- */

typedef struct patience {
    int64_t now, next; /* when to look again */
    int stuck;         /* a rank (+ 1) that the program waits for; 0: none. What is only posted keeps nobody waiting */
    const tr__shm_op *stuck_in;
} patience;

static tr__signature call_of(const tr__shm *t, const tr__shm_op *op)
{
    tr__signature call;
    tr__signature_of(&op->work->collective, t->world_size, 0, &call);
    return call;
}

/* Ranks of other hosts do not see in our segment whom we wait for. */
static void tell_other_hosts(tr__shm *t, int rank)
{
    if (!t->tcp || rank == t->p2p->told) return;
    tr__tcp_announce(t->tcp, &t->p2p->told_in, rank);
    t->p2p->told = rank;
}

static void tell_if_long(tr__shm *t, const patience *p)
{
    if (!p->stuck || p->now - p->stuck_in->began < TR__TCP_ANNOUNCE_MS * (int64_t)1000000) return;
    t->p2p->told_in = call_of(t, p->stuck_in);
    tell_other_hosts(t, t->peers[p->stuck - 1].rank);
}

static tr_status look(tr__shm *t, tr__shm_op *op, void *arg)
{
    patience *p = arg;
    char text[TR__CALL_TEXT], state[TR__SHM_STATE_TEXT];
    int place = tr__shm_place_of(t, op->work->collective.peer);
    const tr__shm_peer *peer = &t->peers[tr__shm_culprit(t, place)];
    if (!op->helped || atomic_load(&op->work->awaited)) {
        p->stuck = place + 1;
        p->stuck_in = op;
    }
    if (!op->began) {
        op->began = p->now;
        op->deadline = p->now + (int64_t)op->work->collective.timeout_ms * 1000000;
    }
    int64_t waited = p->now - op->began, report_at = (int64_t)REPORT_MS * 1000000;
    if (p->now >= op->deadline) {
        tr__signature call = call_of(t, op);
        TR__TRY(tr__shm_heed(t, op->work->collective.timeout_ms)); /* as in a collective: shm_wait.c */
        if (t->tcp) TR__TRY(tr__tcp_blame(t->tcp, &call, peer->rank, op->work->collective.timeout_ms));
        return tr__fail(TR_TIMEOUT, "%s: rank %d waited %g s for rank %d (pid %ld); %s",
            tr__shm_p2p_text(t, op, text), t->peers[t->rank].rank, (double)(op->deadline - op->began) / 1e9, peer->rank,
            peer->pid, tr__shm_state_text(peer, state));
    }
    if (waited > report_at && !op->reported) {
        op->reported = true;
        tr__log(TR_LOG_WARN, "group '%s': rank %d has waited %d s in %s for rank %d (pid %ld); %s", t->group,
            t->peers[t->rank].rank, REPORT_MS / 1000, tr__shm_p2p_text(t, op, text), peer->rank, peer->pid, tr__shm_state_text(peer, state));
    }
    if (op->deadline < p->next) p->next = op->deadline;
    return TR_OK;
}

static tr_status look_for_left(tr__shm *t, tr__shm_op *op, void *arg)
{
    const bool *left = arg;
    int place = tr__shm_place_of(t, op->work->collective.peer);
    const tr__shm_peer *peer = &t->peers[place];
    if (!left[place]) return TR_OK;
    char text[TR__CALL_TEXT];
    return tr__fail(TR_PEER, "rank %d (pid %ld) left group '%s', but %s needs it", peer->rank, peer->pid, t->group,
        tr__shm_p2p_text(t, op, text));
}

/* ---- A round of work --------------------------------------------------------------------------------------------- */

/* Whose peers have left: seen before their channels are read to the end. */
static bool who_left(const tr__shm *t, bool *left)
{
    bool any = false;
    for (int rank = 0; rank < t->world_size; rank++) any |= left[rank] = atomic_load(&t->peers[rank].left);
    return any;
}

static tr_status advance(tr__shm *t, bool *moved)
{
    bool any = who_left(t, t->p2p->left);
    TR__TRY(tr__shm_p2p_advance(t, moved));
    return any && !*moved ? tr__shm_p2p_each(t, look_for_left, t->p2p->left) : TR_OK;
}

/* Under the lock. A failure is the group's and ends all. */
static bool work_once(tr__shm *t)
{
    bool moved = false, broken = tr__failure_there(&t->failure);
    if (!t->p2p->pending) return false;
    if (!broken && advance(t, &moved) == TR_OK) {
        if (moved) {
            atomic_store(&t->control->stuck.message, 0);
            tell_other_hosts(t, -1);
        }
        return moved;
    }
    if (!broken) tr__shm_break(t);
    tr__shm_p2p_fail_all(t, broken);
    return true;
}

/* Under the lock, which it leaves while it sleeps: until mail comes, or it is time to look. */
static void sleep_on_mail(tr__shm *t, bool (*done)(tr__shm *t, const void *arg), const void *arg)
{
    patience p = {.now = tr__now_ns()};
    p.next = p.now + (int64_t)SLEEP_MS * 1000000;
    if (tr__shm_p2p_each(t, look, &p) != TR_OK) {
        tr__shm_break(t);
        tr__shm_p2p_fail_all(t, false);
        return;
    }
    tell_if_long(t, &p);
    /* Who does something from now on sees that we sleep; what was done before, a last look finds. */
    atomic_fetch_add(&t->control->mail_sleepers, 1);
    unsigned mail = atomic_load(&t->control->mail);
    if (!work_once(t) && !done(t, arg)) {
        atomic_store(&t->control->stuck.mail, mail);
        atomic_store(&t->control->stuck.message, p.stuck);
        pthread_mutex_unlock(&t->p2p->lock);
        tr__futex_wait(&t->control->mail, mail, p.next - p.now);
        pthread_mutex_lock(&t->p2p->lock);
    }
    atomic_fetch_sub(&t->control->mail_sleepers, 1);
}

static void pause_for(const tr__shm *t, int turn)
{
    if (turn < SPINS && !t->crowded) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        return;
    }
    sched_yield();
}

/* Under the lock: works until done(t, arg). */
static void work_until(tr__shm *t, bool (*done)(tr__shm *t, const void *arg), const void *arg)
{
    int turns = YIELDS + (t->crowded ? 0 : SPINS);
    for (int turn = 0;; turn++) {
        bool moved = work_once(t);
        if (done(t, arg)) return;
        if (moved) turn = 0;
        if (turn < turns) {
            pthread_mutex_unlock(&t->p2p->lock);
            pause_for(t, turn);
            pthread_mutex_lock(&t->p2p->lock);
        } else {
            sleep_on_mail(t, done, arg);
        }
    }
}

/* ---- The caller -------------------------------------------------------------------------------------------------- */

static bool work_done(tr__shm *t, const void *arg)
{
    (void)t;
    return tr_work_done((tr_work *)arg);
}

void tr__shm_p2p_drive(tr__shm *t, const tr_work *work)
{
    pthread_mutex_lock(&t->p2p->lock);
    work_until(t, work_done, work);
    pthread_mutex_unlock(&t->p2p->lock);
}

/* ---- The thread -------------------------------------------------------------------------------------------------- */

static bool nothing_to_help(tr__shm *t, const void *arg)
{
    (void)arg;
    return t->p2p->helped == 0;
}

static void *help(void *arg)
{
    tr__shm *t = arg;
    tr__shm_p2p *p = t->p2p;
    pthread_mutex_lock(&p->lock);
    while (!p->stopping) {
        if (p->helped)
            work_until(t, nothing_to_help, NULL);
        else
            pthread_cond_wait(&p->wanted, &p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static tr_status need_thread(tr__shm *t)
{
    if (t->p2p->has_thread) return TR_OK;
    int error = tr__thread_start(&t->p2p->thread, help, t);
    if (error) return tr__fail_errno(TR_NO_MEMORY, error, "group '%s': no thread for sends and receives", t->group);
    t->p2p->has_thread = true;
    return TR_OK;
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

static tr_status start(tr__shm *t, tr_work *work, bool driven)
{
    tr__shm_p2p *p = t->p2p;
    TR__TRY(tr__failure_check(&t->failure, t->group));
    if (!driven) TR__TRY(need_thread(t));
    tr__shm_op *op = malloc(sizeof *op);
    if (!op) return tr__fail(TR_NO_MEMORY, "group '%s': no memory for a message", t->group);
    *op = (tr__shm_op){.work = tr__ref(work), .helped = !driven};
    p->pending++;
    p->helped += !driven;
    if (tr__shm_p2p_begin(t, op) != TR_OK) {
        tr__shm_break(t);
        tr__shm_p2p_fail_all(t, false);
    }
    work_once(t);
    if (p->helped) pthread_cond_signal(&p->wanted);
    return TR_OK;
}

void tr__shm_p2p_start(tr__shm *t, tr_work *work, bool driven)
{
    pthread_mutex_lock(&t->p2p->lock);
    tr_status status = start(t, work, driven);
    if (status != TR_OK) tr__work_finish(work, status);
    pthread_mutex_unlock(&t->p2p->lock);
}

bool tr__shm_p2p_pending(tr__shm *t)
{
    pthread_mutex_lock(&t->p2p->lock);
    bool pending = t->p2p->pending > 0;
    pthread_mutex_unlock(&t->p2p->lock);
    return pending;
}

/* ---- Beginning and end ------------------------------------------------------------------------------------------- */

tr_status tr__shm_p2p_new(tr__shm *t)
{
    size_t world = (size_t)t->world_size;
    tr__shm_p2p *p = t->p2p = calloc(1, sizeof *p);
    if (p) {
        pthread_mutex_init(&p->lock, NULL);
        pthread_cond_init(&p->wanted, NULL);
        p->lanes = calloc(world, sizeof *p->lanes);
        p->left = calloc(world, sizeof *p->left);
        p->told = -1;
    }
    if (p && p->lanes && p->left) return TR_OK;
    return tr__fail(TR_NO_MEMORY, "group '%s': no memory for %d ranks", t->group, t->world_size);
}

/* Has everyone whom we have sent something got hold of the channel? Ranks of one process could not after we are gone;
 * those that leave as well do not want it. */
static bool channels_are_open(tr__shm *t, const void *deadline)
{
    if (tr__failure_there(&t->failure) || tr__now_ns() > *(const int64_t *)deadline) return true;
    for (int rank = 0; rank < t->world_size; rank++) {
        tr__shm_channel *channel = t->p2p->lanes[rank].outbound;
        if (channel && !atomic_load(&channel->opened) && !atomic_load(&t->peers[rank].left)) return false;
    }
    return true;
}

static bool nothing_pending(tr__shm *t, const void *arg)
{
    (void)arg;
    return t->p2p->pending == 0;
}

void tr__shm_p2p_end(tr__shm *t)
{
    tr__shm_p2p *p = t->p2p;
    int64_t deadline = tr__now_ns() + (int64_t)1000000000;
    pthread_mutex_lock(&p->lock);
    work_until(t, nothing_pending, NULL);
    work_until(t, channels_are_open, &deadline);
    p->stopping = true;
    pthread_cond_signal(&p->wanted);
    pthread_mutex_unlock(&p->lock);
    if (p->has_thread) pthread_join(p->thread, NULL);
}

void tr__shm_p2p_free(tr__shm *t)
{
    tr__shm_p2p *p = t->p2p;
    if (!p) return;
    for (int rank = 0; p->lanes && rank < t->world_size; rank++) {
        tr_shared_free(p->lanes[rank].outbound);
        for (tr__shm_arrival *a = p->lanes[rank].first, *next; a; a = next) {
            next = a->next;
            free(a);
        }
    }
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wanted);
    free(p->lanes);
    free(p->left);
    free(p);
}
