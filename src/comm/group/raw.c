#include "comm/group/raw.h"

#include "comm/group/group.h"
#include "comm/transport/shm.h"
#include "comm/transport/tcp.h"

#include <stdio.h>

typedef struct transports {
    tr__shm *shm;
    tr__tcp *tcp;
} transports;

static transports of(const tr_group *group)
{
    transports t = {NULL, NULL};
    if (group->state) tr__native_transports(group->state, &t.shm, &t.tcp);
    return t;
}

/* A rank of this host; NULL: it is on another. */
static tr__shm_peer *neighbour(const transports *t, int rank)
{
    int place = t->shm ? t->shm->places[rank] : -1;
    return place >= 0 ? &t->shm->peers[place] : NULL;
}

void tr__raw_watch(tr_group *group, const tr__raw_events *events)
{
    transports t = of(group);
    if (t.shm) atomic_store(&t.shm->raw, events);
    if (t.tcp) atomic_store(&t.tcp->raw, events);
}

bool tr__raw_is_local(const tr_group *group, int rank)
{
    transports t = of(group);
    return neighbour(&t, rank) != NULL;
}

/* Among the peers of the endpoint. */
static int peer_of(const transports *t, int rank)
{
    return t->shm->attachment->members[t->shm->places[rank]];
}

tr_status tr__raw_show(tr_group *group, int rank, const void *memory, uint64_t *segment)
{
    transports t = of(group);
    tr__segment found;
    if (!neighbour(&t, rank) || !tr__segment_find(memory, 1, &found) || found.memory != memory)
        return tr__fail(TR_INTERNAL, "group '%s': %p cannot be shown to rank %d", group->name, memory, rank);
    int peer = peer_of(&t, rank);
    *segment = found.id;
    return tr__endpoint_show(t.shm->endpoint, &found, &peer, 1, t.shm->attachment->id);
}

bool tr__raw_hold(const tr_group *group, int rank, uint64_t segment, int64_t until, tr__shm_mapping *mapping)
{
    transports t = of(group);
    return neighbour(&t, rank) && tr__endpoint_hold(t.shm->endpoint, peer_of(&t, rank), segment, until, mapping);
}

bool tr__raw_crosses(const tr_group *group, int rank)
{
    transports t = of(group);
    return neighbour(&t, rank) && t.shm->endpoint->crosses && !t.shm->endpoint->peers[peer_of(&t, rank)].in_process;
}

bool tr__raw_read(const tr_group *group, int rank, uint64_t from, size_t bytes, void *to)
{
    transports t = of(group);
    return neighbour(&t, rank) && tr__endpoint_read(t.shm->endpoint, peer_of(&t, rank), from, bytes, to) == 0;
}

void tr__raw_use(const tr_group *group)
{
    transports t = of(group);
    if (t.shm) tr__shm_use(t.shm);
}

void tr__raw_idle(const tr_group *group)
{
    transports t = of(group);
    if (t.shm) tr__shm_idle(t.shm);
}

tr_status tr__raw_wire(const tr_group *group, int rank, tr__wire **wire)
{
    transports t = of(group);
    if (!t.tcp) return tr__fail(TR_INTERNAL, "group '%s': rank %d is on this host", group->name, rank);
    return tr__tcp_await_wire(t.tcp, rank, TR__DATA_CHANNEL, group->member.timeout_ms, wire);
}

tr__tls_key *tr__raw_key(const tr_group *group)
{
    transports t = of(group);
    return t.tcp ? t.tcp->network->job_key : NULL;
}

char *tr__raw_name(const tr_group *group, int rank, char text[128])
{
    transports t = of(group);
    tr__shm_peer *peer = neighbour(&t, rank);
    text[0] = 0;
    if (peer)
        snprintf(text, 128, "pid %ld", peer->pid);
    else if (t.tcp)
        snprintf(text, 128, "pid %ld on host %s", t.tcp->peers[rank].pid, t.tcp->peers[rank].host);
    return text;
}

tr__recorder *tr__raw_recorder(const tr_group *group)
{
    tr__recorder_is_rpc(group->member.recorder);
    return group->member.recorder;
}

bool tr__raw_crowded(const tr_group *group)
{
    transports t = of(group);
    return (t.shm && t.shm->crowded) || (t.tcp && t.tcp->crowded);
}
