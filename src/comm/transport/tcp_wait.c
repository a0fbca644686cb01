/*
 * Waiting for peers: sleeping until a connection is ready, telling the others when that takes long, and giving up.
 *
 * Ranks that make different calls may wait for each other without a byte on its way. So a rank that has waited for
 * tr__tcp_announce_ms() tells all others which call it is in and for whom it waits, and that it goes on when it does:
 * whoever is in another call of the same number sees the mismatch, and when time is up everyone can say who it was that
 * stayed away.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "comm/transport/tcp.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- Who is late, in words --------------------------------------------------------------------------------------- */

/* A peer's edge in the graph of who waits for whom; NULL: it waits for nobody. One of a call that the other has left behind no
 * longer holds, even if the peer has not taken it back: it may have been stopped before it could. */
static const tr__tcp_wait_edge *wait_of(const tr__tcp *t, int rank)
{
    for (int i = 0; i < 2; i++) {
        const tr__tcp_wait_edge *edge = &t->peers[rank].waits[i];
        if (edge->on < 0) continue;
        if (!edge->sequence || t->peers[edge->on].numbered.sequence <= edge->sequence) return edge;
    }
    return NULL;
}

/* In a cycle one edge no longer holds. Ranks that wait repeat theirs before the end, a stopped one cannot: the culprit is the
 * rank whose edge is the oldest. */
static int oldest_in_cycle(const tr__tcp *t, int rank)
{
    int oldest = rank;
    for (int next = wait_of(t, rank)->on; next != rank; next = wait_of(t, next)->on)
        if (wait_of(t, next)->heard < wait_of(t, oldest)->heard) oldest = next;
    return oldest;
}

/* The rank that all wait for: the one we wait for may itself wait for another, in this call or an earlier one, and so on. */
static int culprit(const tr__tcp *t, int rank)
{
    for (int hops = 0; hops < t->world_size; hops++) {
        const tr__tcp_wait_edge *edge = wait_of(t, rank);
        if (!edge || edge->on == t->rank) return rank;
        rank = edge->on;
    }
    return oldest_in_cycle(t, rank);
}

int tr__tcp_describe(tr__tcp *t, int rank, char name[TR__TCP_NAME], char state[TR__TCP_STATE])
{
    TR__LOCKED(&t->lock);
    const tr__tcp_peer *peer = &t->peers[culprit(t, rank)];
    char text[TR__CALL_TEXT];
    tr__tcp_name(peer, name);
    if (peer->left)
        snprintf(state, TR__TCP_STATE, "rank %d has left", peer->rank);
    else if (!peer->called)
        snprintf(state, TR__TCP_STATE, "rank %d has not been heard of since it joined", peer->rank);
    else
        snprintf(state, TR__TCP_STATE, "rank %d was last heard of in %s", peer->rank,
            tr__signature_text(&peer->call, text));
    return peer->rank;
}

typedef struct lateness {
    char here[TR__CALL_TEXT], name[TR__TCP_NAME], state[TR__TCP_STATE];
} lateness;

static void describe(tr__tcp *t, const tr__signature *call, int rank, lateness *l)
{
    strcpy(l->here, "joining");
    if (call) tr__signature_text(call, l->here);
    tr__tcp_describe(t, rank, l->name, l->state);
}

tr_status tr__tcp_timed_out(tr__tcp *t, const tr__signature *call, int rank, int timeout_ms)
{
    lateness l;
    describe(t, call, rank, &l);
    return tr__fail(TR_TIMEOUT, "%s: rank %d waited %g s for %s; %s", l.here, t->rank, timeout_ms / 1000.0, l.name,
        l.state);
}

static const tr__signature *own_call(const tr__tcp *t)
{
    return t->has_last ? &t->last : NULL;
}

static void report(tr__tcp *t, int rank)
{
    lateness l;
    describe(t, own_call(t), rank, &l);
    tr__log(TR_LOG_WARN, "group '%s': rank %d has waited %g s in %s for %s; %s", t->group, t->rank,
        t->report_ms / 1000.0, l.here, l.name, l.state);
}

void tr__tcp_announce(tr__tcp *t, const tr__signature *call, int rank)
{
    tr__tcp_frame frame = tr__tcp_frame_of(call, TR__TCP_CALL, 0);
    frame.waits_for = rank;
    tr__tcp_tell_all(t, &frame, NULL);
}

void tr__tcp_go_on(tr__tcp *t, tr__tcp_patience *p)
{
    if (p->announced) tr__tcp_announce(t, &t->last, -1);
    *p = (tr__tcp_patience){0};
}

/* ---- Sleeping ---------------------------------------------------------------------------------------------------- */

int tr__tcp_announce_ms(const tr__tcp *t)
{
    enum { LEAST_MS = 100, MORE_MS = 2 }; /* for each rank that passes messages on */
    int world = t->network->world_size;
    return LEAST_MS + (world > TR__MESH_MOST ? MORE_MS * world : 0);
}

/* What is due after so many milliseconds without progress; *next is set to when the next is. A call that is given less
 * time speaks earlier: else a short one would end before anyone could object. */
static void do_what_is_due(tr__tcp *t, tr__tcp_patience *p, int64_t waited, int timeout_ms, int rank, int64_t *next)
{
    /* Again shortly before the end: what has changed meanwhile belongs into the message. */
    int64_t late = timeout_ms - timeout_ms / 8;
    int64_t soon = timeout_ms / 2 < tr__tcp_announce_ms(t) ? timeout_ms / 2 : tr__tcp_announce_ms(t);
    if (p->announced == 0 && waited >= soon) {
        tr__tcp_announce(t, &t->last, rank);
        p->announced = 1;
    }
    if (p->announced == 1 && waited >= late) {
        tr__tcp_announce(t, &t->last, rank);
        p->announced = 2;
    }
    if (!p->reported && waited >= t->report_ms) {
        report(t, rank);
        p->reported = true;
    }
    *next = p->announced == 0 ? soon : p->announced == 1 ? late : timeout_ms;
    if (!p->reported && t->report_ms < *next) *next = t->report_ms;
    if (*next > timeout_ms) *next = timeout_ms;
}

tr_status tr__tcp_wait(tr__tcp *t, tr__tcp_patience *p, int timeout_ms, const int *ranks, int count)
{
    int64_t now = tr__now_ns(), next;
    if (!p->since) p->since = now;
    tr__recorder_waits_for(t->recorder, ranks, count);
    int64_t waited = (now - p->since) / 1000000;
    do_what_is_due(t, p, waited, timeout_ms, ranks[0], &next);
    if (waited >= timeout_ms && !p->expired) {
        p->expired = true;
        return TR_OK;
    }
    if (waited >= timeout_ms) {
        TR__TRY(tr__tcp_check_peers(t));
        return tr__tcp_timed_out(t, own_call(t), ranks[0], timeout_ms);
    }
    TR__TRY(tr__tcp_need_event(t, &t->kick));
    t->polled[count] = (struct pollfd){.fd = t->kick, .events = POLLIN};
    int ready = poll(t->polled, (nfds_t)count + 1, (int)(next - waited) + 1);
    if (ready < 0 && errno != EINTR) return tr__fail_errno(TR_IO, errno, "group '%s': poll", t->group);
    uint64_t kicks;
    if (t->polled[count].revents) (void)!read(t->kick, &kicks, sizeof kicks); /* before we look for what it was */
    return tr__failure_there(t->failure) ? tr__failure_tell(t->failure) : TR_OK;
}

tr_status tr__tcp_local_wait(tr__tcp *t, int rank, int64_t since, int64_t now, int timeout_ms)
{
    int64_t waited = (now - since) / 1000000, next;
    if (t->local_wait.since != since) t->local_wait = (tr__tcp_patience){.since = since, .reported = true};
    do_what_is_due(t, &t->local_wait, waited, timeout_ms, rank, &next);
    if (waited < timeout_ms) return TR_OK;
    TR__TRY(tr__tcp_check_peers(t));
    pthread_mutex_lock(&t->lock);
    bool itself = culprit(t, rank) == rank;
    pthread_mutex_unlock(&t->lock);
    return itself ? TR_OK : tr__tcp_timed_out(t, own_call(t), rank, timeout_ms);
}
