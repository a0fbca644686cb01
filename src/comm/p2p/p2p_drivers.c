/* The drivers: a ring in shared memory for each direction to a rank of this host, a connection to each rank elsewhere; and
 * what there is to say of receives that wait for a message from any rank. */
#include "comm/p2p/p2p.h"

#include <errno.h>
#include <stdio.h>

/* ---- Rings ------------------------------------------------------------------------------------------------------- */

static tr_status open_ring(tr__p2p_peer *peer)
{
    return tr__shm_channel_open(peer->engine->shm, peer->local, &peer->outbound);
}

static ssize_t some(size_t bytes)
{
    errno = EAGAIN;
    return bytes ? (ssize_t)bytes : -1;
}

static ssize_t ring_put(tr__p2p_peer *peer, const struct iovec parts[2])
{
    size_t bytes = tr__shm_channel_put(peer->outbound, &peer->read_seen, parts, 2);
    if (bytes) tr__shm_mail(peer->local->control); /* it copies out while we copy in */
    return some(bytes);
}

static void ring_drained(tr__p2p_peer *peer)
{
    tr__shm_mail(peer->local->control);
}

static ssize_t ring_get(tr__p2p_peer *peer, void *to, size_t bytes)
{
    tr__shm_channel *from = atomic_load(&peer->local->inbound);
    size_t got = from ? tr__shm_channel_get(from, to, bytes) : 0;
    if (got && got < bytes) ring_drained(peer); /* it copies in while we copy out */
    return some(got);
}

/* For peers that report what we are at. */
static void ring_begin(tr__p2p_peer *peer, tr__p2p_op *op)
{
    tr__shm_control *control = peer->engine->shm->control;
    op->number = atomic_load_explicit(&control->transfers, memory_order_relaxed) + 1;
    tr__shm_transfer *transfer = &control->transfer[op->number & 1];
    atomic_store_explicit(&transfer->entered, tr__shm_entered(control), memory_order_relaxed);
    tr__shm_sign(&transfer->call, transfer->file, &op->work->collective, 0);
    atomic_store_explicit(&control->transfers, op->number, memory_order_release);
}

static void ring_end(tr__p2p_peer *peer, const tr__p2p_op *op)
{
    tr__shm_control *control = peer->engine->shm->control;
    if (op->number == atomic_load_explicit(&control->transfers, memory_order_relaxed))
        atomic_store_explicit(&control->transferred, op->number, memory_order_release);
}

static bool ring_left(const tr__p2p_peer *peer)
{
    return atomic_load(&peer->local->left);
}

static tr_status ring_check_peers(const tr__p2p_peer *peer, int timeout_ms)
{
    return tr__shm_check_peers(peer->engine->shm, timeout_ms);
}

static int ring_culprit(const tr__p2p_peer *peer, char name[TR__P2P_NAME], char state[TR__P2P_STATE])
{
    const tr__p2p *p = peer->engine;
    const tr__shm_peer *late = &p->shm->peers[tr__shm_culprit(p->shm, (int)(peer->local - p->shm->peers))];
    int elsewhere = p->tcp ? tr__tcp_describe(p->tcp, late->rank, name, state) : late->rank;
    if (elsewhere != late->rank) return elsewhere;
    snprintf(name, TR__P2P_NAME, "rank %d (pid %ld)", late->rank, late->pid);
    tr__shm_state_text(late, state);
    return late->rank;
}

const tr__p2p_driver tr__p2p_ring = {.eager = 16 << 10, .open = open_ring, .put = ring_put, .get = ring_get,
    .drained = ring_drained, .begin = ring_begin, .end = ring_end, .left = ring_left, .check_peers = ring_check_peers,
    .culprit = ring_culprit};

/* ---- Connections ------------------------------------------------------------------------------------------------- */

/* NULL: there is none yet. */
static tr__wire *wire(const tr__p2p_peer *peer)
{
    return tr__tcp_wire(peer->engine->tcp, peer->rank, TR__P2P_CHANNEL);
}

/* The same, where one is needed: it is made, unless the peer has left and will never have one. */
static tr__wire *need_wire(const tr__p2p_peer *peer)
{
    bool never;
    tr__wire *there = tr__tcp_need_wire(peer->engine->tcp, peer->rank, TR__P2P_CHANNEL, &never);
    errno = never ? EPIPE : EAGAIN;
    return there;
}

static ssize_t stream_put(tr__p2p_peer *peer, const struct iovec parts[2])
{
    tr__wire *to = need_wire(peer);
    return to ? tr__wire_send(to, parts, 2) : -1;
}

static ssize_t stream_get(tr__p2p_peer *peer, void *to, size_t bytes)
{
    tr__wire *from = need_wire(peer);
    return from ? tr__wire_receive(from, &(struct iovec){to, bytes}, 1, true) : -1;
}

static bool stream_pending(const tr__p2p_peer *peer)
{
    const tr__wire *to = wire(peer);
    return to && tr__wire_pending(to);
}

static size_t stream_placed(const tr__p2p_peer *peer)
{
    return tr__wire_placed(wire(peer));
}

static bool stream_left(const tr__p2p_peer *peer)
{
    return atomic_load(&peer->remote->left);
}

static tr_status stream_lost(tr__p2p_peer *peer, const tr__signature *call, int error)
{
    if (call) return tr__tcp_lost(peer->engine->tcp, peer->remote, call, error);
    return error == EBADMSG ? tr__tcp_damaged(peer->engine->tcp, peer->remote) : TR_OK;
}

static tr_status stream_check_peers(const tr__p2p_peer *peer, int timeout_ms)
{
    (void)timeout_ms;
    return tr__tcp_check_peers(peer->engine->tcp);
}

static int stream_culprit(const tr__p2p_peer *peer, char name[TR__P2P_NAME], char state[TR__P2P_STATE])
{
    return tr__tcp_describe(peer->engine->tcp, peer->rank, name, state);
}

const tr__p2p_driver tr__p2p_stream = {.eager = PTRDIFF_MAX, .put = stream_put, .get = stream_get, .pending = stream_pending,
    .placed = stream_placed, .left = stream_left, .lost = stream_lost, .check_peers = stream_check_peers, .culprit = stream_culprit};

/* ---- Anyone ------------------------------------------------------------------------------------------------------ */

static void anyone_begin(tr__p2p_peer *peer, tr__p2p_op *op)
{
    if (peer->by_ring) ring_begin(peer, op);
}

static void anyone_end(tr__p2p_peer *peer, const tr__p2p_op *op)
{
    if (peer->by_ring) ring_end(peer, op);
}

static tr_status anyone_check_peers(const tr__p2p_peer *peer, int timeout_ms)
{
    const tr__p2p *p = peer->engine;
    return p->shm ? tr__shm_check_peers(p->shm, timeout_ms) : tr__tcp_check_peers(p->tcp);
}

static int anyone_culprit(const tr__p2p_peer *peer, char name[TR__P2P_NAME], char state[TR__P2P_STATE])
{
    const tr__p2p *p = peer->engine;
    const tr__p2p_arrival *oldest = NULL;
    int from = 0;
    for (int rank = 0; rank < p->world_size; rank++) {
        const tr__p2p_arrival *a = p->peers[rank].arrivals;
        if (!a || (oldest && oldest->number < a->number)) continue;
        oldest = a;
        from = rank;
    }
    snprintf(name, TR__P2P_NAME, "any rank");
    if (oldest)
        snprintf(state, TR__P2P_STATE, "what is here has other tags, the oldest from rank %d with tag %d", from,
            oldest->frame.tag);
    else
        snprintf(state, TR__P2P_STATE, "no message is here that it has not received");
    return TR_ANY_SOURCE;
}

const tr__p2p_driver tr__p2p_anyone = {.begin = anyone_begin, .end = anyone_end, .check_peers = anyone_check_peers,
    .culprit = anyone_culprit};
