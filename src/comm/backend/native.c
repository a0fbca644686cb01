/*
 * The native backend: ranks find each other through the store and reach each other through shared memory when all are
 * on one host, else over TCP. A world of one needs neither.
 */
#include "base/object.h"
#include "comm/backend/backend.h"
#include "comm/collective.h"
#include "comm/transport/shm.h"
#include "comm/transport/tcp.h"

#include <stdlib.h>
#include <string.h>

typedef struct native {
    tr__member member;
    tr__rendezvous meeting;
    tr__shm *shm; /* the one that carries the collectives is not NULL; in a world of one both are */
    tr__tcp *tcp;
} native;

static bool asked_for(const native *n, const char *transport)
{
    return n->member.transport && strcmp(n->member.transport, transport) == 0;
}

static tr_status check_transport(const native *n)
{
    if (!n->member.transport || asked_for(n, "shm") || asked_for(n, "tcp")) return TR_OK;
    return tr__fail(TR_INVALID, "group '%s': there is no transport '%s'; there are 'shm' and 'tcp'", n->member.group,
        n->member.transport);
}

/* Ranks do not know yet where the others are, so they listen for both kinds. */
static tr_status open_doors(native *n, tr__card *mine)
{
    strcpy(mine->address, "-");
    strcpy(mine->tcp_address, "-");
    TR__TRY(tr__random_text(mine->cookie, sizeof mine->cookie));
    TR__TRY(tr__random_text(mine->tcp_cookie, sizeof mine->tcp_cookie));
    if (!asked_for(n, "tcp")) TR__TRY(tr__shm_new(&n->member, mine, &n->shm));
    if (!asked_for(n, "shm")) TR__TRY(tr__tcp_new(&n->member, mine, &n->tcp));
    return TR_OK;
}

/* A rank of another machine; below 0: there is none. */
static int find_elsewhere(const native *n, const tr__card *cards)
{
    for (int rank = 0; rank < n->member.world_size; rank++)
        if (strcmp(cards[rank].machine, cards[n->member.rank].machine) != 0) return rank;
    return -1;
}

/* Which transport it is to be, alike on all ranks; the other one goes. */
static tr_status choose_transport(native *n, const tr__card *cards)
{
    const tr__card *mine = &cards[n->member.rank];
    int elsewhere = find_elsewhere(n, cards);
    for (int rank = 0; rank < n->member.world_size; rank++) {
        bool shm = strcmp(cards[rank].address, "-") != 0, tcp = strcmp(cards[rank].tcp_address, "-") != 0;
        if (shm != (n->shm != NULL) || tcp != (n->tcp != NULL))
            return tr__fail(TR_MISMATCH, "group '%s': ranks %d and %d are to use different transports; all must be given "
                "the same .transport", n->member.group, n->member.rank, rank);
        if (tcp && cards[rank].table != mine->table)
            return tr__fail(TR_MISMATCH, "group '%s': rank %d (on host %s) and rank %d (on host %s) have different tables of "
                "algorithms; all must be given the same .algorithms or TRIREME_ALGORITHMS, and files with the same rows",
                n->member.group, n->member.rank, mine->host, rank, cards[rank].host);
    }
    if (elsewhere >= 0 && !n->tcp)
        return tr__fail(TR_UNSUPPORTED, "group '%s': rank %d is on host %s and rank %d on host %s; the transport 'shm' "
            "joins ranks that share one host's memory and network namespace", n->member.group, n->member.rank,
            mine->host, elsewhere, cards[elsewhere].host);
    if (n->shm && n->tcp && elsewhere < 0) {
        tr__tcp_close(n->tcp);
        n->tcp = NULL;
    } else if (n->shm && n->tcp) {
        tr__shm_close(n->shm);
        n->shm = NULL;
    }
    return TR_OK;
}

static tr_status meet(native *n, tr__card *cards)
{
    tr__card *mine = &cards[n->member.rank];
    TR__TRY(check_transport(n));
    tr__card_here(&n->member, mine);
    TR__TRY(tr__rendezvous_claim(&n->meeting, &n->member, mine));
    TR__TRY(open_doors(n, mine));
    TR__TRY(tr__rendezvous_publish(&n->meeting, mine));
    TR__TRY(tr__rendezvous_read_all(&n->meeting, cards));
    TR__TRY(choose_transport(n, cards));
    return n->shm ? tr__shm_meet(n->shm, &n->meeting, cards) : tr__tcp_meet(n->tcp, &n->meeting, cards);
}

/* Frees all; the failure that the thread has just made stays its latest. */
static void give_up(native *n, tr_status status)
{
    tr__error *why = tr__error_take();
    if (n->shm) tr__shm_close(n->shm);
    if (n->tcp) tr__tcp_close(n->tcp);
    if (n->meeting.member) tr__rendezvous_withdraw(&n->meeting, status);
    free(n);
    tr__fail_stored(why);
    tr__error_unref(why);
}

static tr_status native_join(const tr__member *member, void **state)
{
    native *n = calloc(1, sizeof *n);
    if (!n) return tr__fail(TR_NO_MEMORY, "group '%s': no memory", member->group);
    n->member = *member;
    if (member->world_size > 1) {
        tr__card *cards = calloc((size_t)member->world_size, sizeof *cards);
        tr_status status = cards ? meet(n, cards) : tr__fail(TR_NO_MEMORY, "group '%s': no memory for %d ranks",
                                                       member->group, member->world_size);
        free(cards);
        if (status != TR_OK) {
            give_up(n, status);
            return status;
        }
    }
    *state = n;
    return TR_OK;
}

static tr_status native_run(void *state, const tr_collective *c, uint64_t sequence)
{
    native *n = state;
    if (n->tcp) return tr__tcp_run(n->tcp, c, sequence);
    if (n->shm) return tr__shm_run(n->shm, c, sequence);
    tr__collective_alone(c);
    return TR_OK;
}

static void native_start(void *state, tr_work *work, bool driven)
{
    native *n = state;
    if (n->shm) tr__shm_p2p_start(n->shm, work, driven);
    if (n->tcp) tr__tcp_p2p_start(n->tcp, work);
}

static void native_drive(void *state, const tr_work *work)
{
    native *n = state;
    if (n->shm) tr__shm_p2p_drive(n->shm, work); /* over TCP the group's thread does it all */
}

static bool native_pending(void *state)
{
    native *n = state;
    return (n->shm && tr__shm_p2p_pending(n->shm)) || (n->tcp && tr__tcp_p2p_pending(n->tcp));
}

static void native_give_up(void *state)
{
    native *n = state;
    tr_status broken = n->shm ? tr__shm_break(n->shm) : n->tcp ? tr__tcp_break(n->tcp) : TR_OK;
    (void)broken;
}

static void native_leave(void *state)
{
    native *n = state;
    if (n->shm || n->tcp) tr__rendezvous_withdraw(&n->meeting, TR_OK);
    if (n->shm) tr__shm_close(n->shm);
    if (n->tcp) tr__tcp_close(n->tcp);
    free(n);
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
};
