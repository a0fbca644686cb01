/*
 * The native backend: ranks find each other through the store and reach each other through shared memory. A world of
 * one needs neither.
 */
#include "base/object.h"
#include "comm/backend/backend.h"
#include "comm/collective.h"
#include "comm/transport/shm.h"

#include <stdlib.h>
#include <string.h>

typedef struct native {
    tr__member member;
    tr__rendezvous meeting;
    tr__shm *shm; /* NULL in a world of one */
} native;

static tr_status read_cards(native *n, tr__card *cards)
{
    const tr__card *mine = &cards[n->member.rank];
    for (int rank = 0; rank < n->member.world_size; rank++) {
        if (rank == n->member.rank) continue;
        TR__TRY(tr__rendezvous_read(&n->meeting, rank, &cards[rank]));
        if (strcmp(cards[rank].machine, mine->machine) != 0)
            return tr__fail(TR_UNSUPPORTED,
                            "group '%s': rank %d is on host %s and rank %d on host %s; the native backend "
                            "joins ranks that share one host's memory and network namespace",
                            n->member.group, n->member.rank, mine->host, rank, cards[rank].host);
    }
    return TR_OK;
}

static tr_status meet(native *n, tr__card *cards)
{
    tr__card *mine = &cards[n->member.rank];
    tr__card_here(&n->member, mine);
    TR__TRY(tr__rendezvous_claim(&n->meeting, &n->member, mine));
    TR__TRY(tr__shm_new(&n->member, mine, &n->shm));
    TR__TRY(tr__rendezvous_publish(&n->meeting, mine));
    TR__TRY(read_cards(n, cards));
    return tr__shm_meet(n->shm, &n->meeting, cards);
}

/* Frees all; the failure that the thread has just made stays its latest. */
static void give_up(native *n, tr_status status)
{
    tr__error *why = tr__error_take();
    if (n->shm) tr__shm_close(n->shm);
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
    if (n->shm) return tr__shm_run(n->shm, c, sequence);
    if (c->in != c->out) memmove(c->out, c->in, tr__collective_bytes(c)); /* what one rank has is everyone's */
    return TR_OK;
}

static void native_cancel(void *state, const char *why)
{
    native *n = state;
    if (!n->shm) return;
    tr__fail(TR_CANCELLED, "rank %d gave up group '%s': %s", n->member.rank, n->member.group, why);
    tr__shm_break(n->shm);
}

static void native_leave(void *state)
{
    native *n = state;
    if (n->shm) {
        tr__rendezvous_withdraw(&n->meeting, TR_OK);
        tr__shm_close(n->shm);
    }
    free(n);
}

const tr__backend tr__native_backend = {
    .name = "native",
    .join = native_join,
    .run = native_run,
    .cancel = native_cancel,
    .leave = native_leave,
};
