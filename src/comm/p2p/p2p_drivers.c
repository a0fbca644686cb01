/* What carries frames: a ring in shared memory for each direction to a rank of this host, a connection to each rank elsewhere. */
#include "comm/p2p/p2p.h"

#include <errno.h>
#include <stdio.h>

/* NULL: there is none yet. It is made, unless the peer has left and will never have one. */
static tr__wire *need_wire(const tr__p2p_peer *peer)
{
    bool never;
    tr__wire *wire = tr__tcp_need_wire(peer->engine->tcp, peer->rank, TR__P2P_CHANNEL, &never);
    errno = never ? EPIPE : EAGAIN;
    return wire;
}

ssize_t tr__p2p_put(tr__p2p_peer *peer, const struct iovec parts[2])
{
    if (peer->remote) {
        tr__wire *wire = need_wire(peer);
        return wire ? tr__wire_send(wire, parts, 2) : -1;
    }
    size_t bytes = tr__shm_channel_put(peer->outbound, &peer->read_seen, parts, 2);
    if (bytes) tr__shm_mail(peer->local->control); /* it copies out while we copy in */
    errno = EAGAIN;
    return bytes ? (ssize_t)bytes : -1;
}

ssize_t tr__p2p_get(tr__p2p_peer *peer, void *to, size_t bytes)
{
    if (peer->remote) {
        tr__wire *wire = need_wire(peer);
        return wire ? tr__wire_receive(wire, &(struct iovec){to, bytes}, 1, true) : -1;
    }
    tr__shm_channel *from = atomic_load(&peer->local->inbound);
    size_t got = from ? tr__shm_channel_get(from, to, bytes) : 0;
    if (got && got < bytes) tr__shm_mail(peer->local->control); /* it copies in while we copy out */
    errno = EAGAIN;
    return got ? (ssize_t)got : -1;
}

void tr__p2p_sign(const tr__p2p *p, tr__p2p_op *op)
{
    tr__shm_control *control = p->shm->control;
    op->signed_as = atomic_load_explicit(&control->transfers, memory_order_relaxed) + 1;
    tr__shm_transfer *transfer = &control->transfer[op->signed_as & 1];
    atomic_store_explicit(&transfer->entered, tr__shm_entered(control), memory_order_relaxed);
    tr__call_write(&transfer->call, transfer->file, sizeof transfer->file, &op->work->collective, 0);
    atomic_store_explicit(&control->transfers, op->signed_as, memory_order_release);
}

void tr__p2p_sign_off(const tr__p2p *p, const tr__p2p_op *op)
{
    tr__shm_control *control = p->shm->control;
    if (op->signed_as == atomic_load_explicit(&control->transfers, memory_order_relaxed))
        atomic_store_explicit(&control->transferred, op->signed_as, memory_order_release);
}

tr_status tr__p2p_check_peers(const tr__p2p_peer *peer, int timeout_ms)
{
    const tr__p2p *p = peer->engine;
    return p->shm && !peer->remote ? tr__shm_check_peers(p->shm, timeout_ms) : tr__tcp_check_peers(p->tcp);
}

/* What there is to say of a receive that waits for a message from any rank. */
static int describe_anyone(const tr__p2p *p, char name[TR__P2P_NAME], char state[TR__P2P_STATE])
{
    const tr__p2p_op *oldest = NULL;
    int from = 0;
    for (int rank = 0; rank < p->world_size; rank++) {
        const tr__p2p_op *a = p->peers[rank].arrived.first;
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

int tr__p2p_culprit(const tr__p2p_peer *peer, char name[TR__P2P_NAME], char state[TR__P2P_STATE])
{
    const tr__p2p *p = peer->engine;
    if (peer->rank == TR_ANY_SOURCE) return describe_anyone(p, name, state);
    if (peer->remote) return tr__tcp_describe(p->tcp, peer->rank, name, state);
    const tr__shm_peer *late = &p->shm->peers[tr__shm_culprit(p->shm, (int)(peer->local - p->shm->peers))];
    int elsewhere = p->tcp ? tr__tcp_describe(p->tcp, late->rank, name, state) : late->rank;
    if (elsewhere != late->rank) return elsewhere;
    snprintf(name, TR__P2P_NAME, "rank %d (pid %ld)", late->rank, late->pid);
    tr__shm_state_text(late, state);
    return late->rank;
}
