/*
 * The native backend: ranks find each other through the store and reach each other through shared memory when all are
 * on one host, over TCP when each is on a host of its own, else through both. A world of one needs neither.
 */
#include "base/memory.h"
#include "base/object.h"
#include "base/thread.h"
#include "comm/backend/backend.h"
#include "comm/backend/hierarchy.h"
#include "comm/p2p/p2p.h"

#include <stdlib.h>
#include <string.h>

typedef struct native {
    tr__member member;
    tr__rendezvous *meeting; /* NULL: the ranks met in the group that this one was made within */
    tr__failure *failure; /* of the group; NULL in a world of one */
    tr__shm *shm; /* joins the ranks of this host, */
    tr__tcp *tcp; /* joins all; NULL: not needed */
    tr__hierarchy *hierarchy; /* over both; NULL: one of them, or none, carries everything */
    pthread_mutex_t lock;
    tr__p2p *p2p; /* under the lock: sends and receives, over both; NULL: there have been none */
} native;

static bool asked_for(const native *n, const char *transport)
{
    return n->member.transport && strcmp(n->member.transport, transport) == 0;
}

/* Ranks do not know yet where the others are, so they listen for both kinds. */
static tr_status listen_for_all(native *n, tr__endpoint_record *mine)
{
    strcpy(mine->address, "-");
    strcpy(mine->tcp_address, "-");
    TR__TRY(tr__random_text(mine->cookie, sizeof mine->cookie));
    TR__TRY(tr__random_text(mine->tcp_cookie, sizeof mine->tcp_cookie));
    if (!asked_for(n, "tcp")) TR__TRY(tr__shm_new(&n->member, n->failure, mine, &n->shm));
    if (!asked_for(n, "shm")) TR__TRY(tr__tcp_new(&n->member, n->failure, mine, &n->tcp));
    return TR_OK;
}

static tr_status check_transports(const native *n, const tr__endpoint_record *records)
{
    const tr__endpoint_record *mine = &records[n->member.rank];
    int elsewhere = -1, unlike = -1; /* a rank of another machine; one that is to encrypt where we are not, or the other way round */
    for (int rank = 0; rank < n->member.world_size; rank++) {
        bool shm = strcmp(records[rank].address, "-") != 0, tcp = strcmp(records[rank].tcp_address, "-") != 0;
        if (shm != (n->shm != NULL) || tcp != (n->tcp != NULL))
            return tr__fail(TR_MISMATCH, "group '%s': ranks %d and %d are to use different transports; all must be given "
                "the same .transport", n->member.group, n->member.rank, rank);
        if (elsewhere < 0 && strcmp(records[rank].machine, mine->machine) != 0) elsewhere = rank;
        if (unlike < 0 && records[rank].tls != mine->tls) unlike = rank;
        if (tcp && records[rank].table != mine->table)
            return tr__fail(TR_MISMATCH, "group '%s': rank %d (on host %s) and rank %d (on host %s) have different tables of "
                "algorithms; all must be given the same .algorithms or TRIREME_ALGORITHMS, and files with the same rows",
                n->member.group, n->member.rank, mine->host, rank, records[rank].host);
    }
    if (unlike >= 0) {
        const tr__endpoint_record *wants = mine->tls ? mine : &records[unlike], *other = mine->tls ? &records[unlike] : mine;
        return tr__fail(TR_MISMATCH, "group '%s': rank %d (on host %s) is to encrypt its connections and rank %d (on host %s) is "
            "not; all must be given the same .encrypt or TRIREME_ENCRYPT", n->member.group, wants->rank, wants->host,
            other->rank, other->host);
    }
    if (elsewhere >= 0 && !n->tcp)
        return tr__fail(TR_UNSUPPORTED, "group '%s': rank %d is on host %s and rank %d on host %s; the transport 'shm' "
            "joins ranks that share one host's memory and network namespace", n->member.group, n->member.rank,
            mine->host, elsewhere, records[elsewhere].host);
    return TR_OK;
}

static bool on_one_host(const void *arg, int a, int b)
{
    const tr__endpoint_record *records = arg;
    return strcmp(records[a].machine, records[b].machine) == 0;
}

/* Shared memory first: it points to TCP (t->tcp). */
static void close_both(tr__shm **shm, tr__tcp **tcp)
{
    if (*shm) tr__shm_close(*shm);
    if (*tcp) tr__tcp_close(*tcp);
    *shm = NULL;
    *tcp = NULL;
}

/* Which transports it is to be, alike on all ranks; one of two that is not needed goes. A rank that is alone on its host needs no
 * shared memory, but takes part in what the others do in parts. */
static void choose_transports(tr__shm **shm, tr__tcp **tcp, const tr__hosts *hosts, int rank)
{
    if (!*shm || !*tcp) return;
    if (hosts->count == 1) {
        tr__tcp_close(*tcp);
        *tcp = NULL;
    } else if (tr__hosts_size(hosts, hosts->host[rank]) == 1) {
        tr__shm_close(*shm);
        *shm = NULL;
    }
}

/* The ranks of this host, then all. */
static tr_status connect_both(native *n, tr__hosts *hosts, tr__endpoint_record *records)
{
    if (n->shm) {
        tr__shm_settle(n->shm, hosts, n->tcp);
        TR__TRY(tr__shm_meet(n->shm, n->meeting, records));
    }
    TR__TRY(tr__hierarchy_new(hosts, n->member.rank, n->shm, n->tcp, &n->hierarchy));
    TR__TRY(tr__tcp_meet(n->tcp, n->meeting, records));
    if (n->shm) n->shm->crowded |= n->tcp->crowded;
    return TR_OK;
}

static tr_status connect_all(native *n, tr__endpoint_record *records)
{
    tr__hosts hosts;
    TR__TRY(check_transports(n, records));
    TR__TRY(tr__hosts_make(&hosts, n->member.world_size, on_one_host, records));
    bool both = n->shm && n->tcp && hosts.count > 1 && hosts.most > 1;
    choose_transports(&n->shm, &n->tcp, &hosts, n->member.rank);
    n->meeting->chained = both || n->member.world_size > TR__MESH_MOST;
    tr_status status = both     ? connect_both(n, &hosts, records)
                       : n->shm ? tr__shm_meet(n->shm, n->meeting, records)
                                : tr__tcp_meet(n->tcp, n->meeting, records);
    tr__hosts_free(&hosts);
    return status;
}

/* Reads the records of all, in the first generation in which they are all there. */
static tr_status find_all(native *n, tr__endpoint_record *records)
{
    for (tr__endpoint_record *mine = &records[n->member.rank];;) {
        TR__TRY(listen_for_all(n, mine));
        TR__TRY(tr__rendezvous_publish(n->meeting, mine));
        tr_status status = tr__rendezvous_read_all(n->meeting, records);
        if (status == TR_OK || !n->meeting->used) return status;
        close_both(&n->shm, &n->tcp);
        TR__TRY(tr__rendezvous_go_on(n->meeting, mine));
    }
}

static tr_status meet(native *n, tr__endpoint_record *records)
{
    tr__endpoint_record *mine = &records[n->member.rank];
    if (n->member.transport && !asked_for(n, "shm") && !asked_for(n, "tcp"))
        return tr__fail(TR_INVALID, "group '%s': there is no transport '%s'; there are 'shm' and 'tcp'", n->member.group,
            n->member.transport);
    tr__endpoint_record_here(&n->member, mine);
    mine->tls = n->member.encrypt;
    TR__TRY(tr__rendezvous_register(n->meeting, &n->member, mine));
    TR__TRY(find_all(n, records));
    tr_status status = connect_all(n, records);
    return status == TR_OK ? TR_OK : tr__rendezvous_explain(n->meeting, records, atomic_load(&n->failure->dead), status);
}

static void close_transports(native *n)
{
    if (n->p2p) tr__p2p_end(n->p2p);
    close_both(&n->shm, &n->tcp);
    tr__hierarchy_free(n->hierarchy);
    tr__failure_free(n->failure);
}

static void destroy(native *n)
{
    pthread_mutex_destroy(&n->lock);
    free(n->meeting);
    free(n);
}

/* Frees all; the failure that the thread has just made stays its latest. */
static void give_up(native *n, tr_status status)
{
    TR__KEEP_ERROR;
    bool met = n->meeting && n->meeting->member;
    if (met) tr__rendezvous_give_up(n->meeting, status);
    close_transports(n);
    if (met) tr__rendezvous_withdraw(n->meeting);
    destroy(n);
}

/* ---- A group within another -------------------------------------------------------------------------------------- */

uint64_t tr__native_number(void *state)
{
    const native *n = state;
    return n->tcp ? n->tcp->place->id : n->shm->attachment->id;
}

tr_status tr__native_prepare(tr__seat *seat, uint64_t number, tr__shm_place *block)
{
    native *parent = seat->parent;
    seat->failure = tr__failure_new();
    if (!seat->failure) return TR_NO_MEMORY;
    if (parent->shm) TR__TRY(tr__shm_prepare(parent->shm, number, seat->failure, &seat->shm, block));
    return parent->tcp ? tr__tcp_prepare(parent->tcp, number, seat->failure, &seat->tcp) : TR_OK;
}

void tr__native_drop(tr__seat *seat)
{
    close_both(&seat->shm, &seat->tcp);
    tr__failure_free(seat->failure);
    seat->failure = NULL;
}

void tr__native_abandon(tr__seat *seat)
{
    const native *parent = seat->parent;
    if (!seat->failure) return;
    tr__error *why = tr__error_take();
    if (seat->tcp) tr__tcp_enter_all(seat->tcp, parent->tcp);
    if (seat->shm) tr__shm_enter_all(seat->shm, parent->shm);
    tr__fail_stored(why);
    (void)!tr__failure_give_up(seat->failure);
    tr__native_drop(seat);
    tr__error_restore(why);
}

/* By the hosts of the parent's ranks. */
static bool share_host(const void *arg, int a, int b)
{
    const tr__seat *seat = arg;
    const int *host = ((const native *)seat->parent)->hierarchy->hosts.host;
    return host[seat->ranks[a]] == host[seat->ranks[b]];
}

/* The sides that are needed, and what they make together. Before the seat is given up, so that it can be abandoned. */
static tr_status choose_sides(native *n, tr__seat *seat, const tr__hosts **hosts)
{
    tr__hosts made;
    if (!((const native *)seat->parent)->hierarchy) return TR_OK;
    TR__TRY(tr__hosts_make(&made, n->member.world_size, share_host, seat));
    choose_transports(&seat->shm, &seat->tcp, &made, n->member.rank);
    bool both = made.count > 1 && made.most > 1;
    tr_status status = both ? tr__hierarchy_new(&made, n->member.rank, seat->shm, seat->tcp, &n->hierarchy) : TR_OK;
    tr__hosts_free(&made);
    if (n->hierarchy) *hosts = &n->hierarchy->hosts;
    return status;
}

/* TCP first: of a failure, the peers of other hosts are told before those of this one, which pass on to them what they learn. */
static tr_status take_seat(native *n, tr__seat *seat)
{
    const native *parent = seat->parent;
    const tr__hosts *hosts = NULL;
    TR__TRY(choose_sides(n, seat, &hosts));
    n->shm = seat->shm;
    n->tcp = seat->tcp;
    n->failure = seat->failure;
    seat->shm = NULL;
    seat->tcp = NULL;
    seat->failure = NULL;
    if (n->tcp) (void)!tr__tcp_begin(n->tcp, parent->tcp, seat->ranks, &n->member); /* what fails breaks the group */
    if (n->shm) (void)!tr__shm_enter(n->shm, parent->shm, seat, hosts, n->tcp, &n->member);
    return tr__failure_tell(n->failure);
}

/* ---- The backend ------------------------------------------------------------------------------------------------- */

/* Where the ranks have met already, in a group that this one is made within, or through the store. */
static tr_status find_others(native *n)
{
    if (n->member.seat) return take_seat(n, n->member.seat);
    size_t world = (size_t)n->member.world_size;
    TR__FREED tr__endpoint_record *records = tr__zeroed(world, sizeof *records);
    n->meeting = calloc(1, sizeof *n->meeting);
    if (!records || !n->meeting) return tr__fail(TR_NO_MEMORY, "group '%s': no memory for %zu ranks", n->member.group, world);
    n->failure = tr__failure_new();
    return n->failure ? meet(n, records) : TR_NO_MEMORY;
}

static tr_status native_join(const tr__member *member, void **state)
{
    native *n = calloc(1, sizeof *n);
    if (!n) return tr__fail(TR_NO_MEMORY, "group '%s': no memory", member->group);
    n->member = *member;
    pthread_mutex_init(&n->lock, NULL);
    tr_status status = member->world_size == 1 ? TR_OK : find_others(n);
    if (status == TR_OK)
        *state = n;
    else
        give_up(n, status);
    return status;
}

static tr_status native_run(void *state, const tr_collective *c, uint64_t sequence)
{
    native *n = state;
    if (n->hierarchy) return tr__hierarchy_run(n->hierarchy, c, sequence);
    if (n->tcp) return tr__tcp_run(n->tcp, c, sequence);
    if (n->shm) return tr__shm_run(n->shm, c, sequence);
    tr__collective_alone(c);
    return TR_OK;
}

static tr__p2p *known_p2p(native *n)
{
    TR__LOCKED(&n->lock);
    return n->p2p;
}

/* The engine of the group's sends and receives is made for the first of them. */
static void native_start(void *state, tr_work *work, bool driven)
{
    native *n = state;
    pthread_mutex_lock(&n->lock);
    tr_status status = n->p2p ? TR_OK : tr__p2p_new(&n->member, n->failure, n->shm, n->tcp, &n->p2p);
    pthread_mutex_unlock(&n->lock);
    if (status == TR_OK)
        tr__p2p_start(n->p2p, work, driven);
    else
        tr__work_finish(work, status);
}

static void native_drive(void *state, const tr_work *work)
{
    tr__p2p *p2p = known_p2p(state);
    if (p2p) tr__p2p_drive(p2p, work);
}

static bool native_pending(void *state)
{
    tr__p2p *p2p = known_p2p(state);
    return p2p && tr__p2p_pending(p2p);
}

static void native_give_up(void *state)
{
    native *n = state;
    if (n->failure) (void)!tr__failure_give_up(n->failure);
}

static void native_leave(void *state)
{
    native *n = state;
    if (n->meeting) tr__rendezvous_withdraw(n->meeting);
    close_transports(n);
    destroy(n);
}

void tr__native_transports(void *state, tr__shm **shm, tr__tcp **tcp)
{
    native *n = state;
    *shm = n->shm;
    *tcp = n->tcp;
}

const tr__backend tr__native_backend = {
    .name = "native",
    .join = native_join,
    .run = native_run,
    .start = native_start,
    .drive = native_drive,
    .pending = native_pending,
    .give_up = native_give_up,
    .leave = native_leave,
    .signs = true,
    .any_source = true,
};
