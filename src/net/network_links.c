/*
 * The control connections as a whole: whom a rank has one with, and how all ranks learn that all have joined. That goes up and down
 * a tree of control connections, so that joining opens no others.
 */
#include "net/network.h"

/* Next to a rank on its way to rank 0. */
static int parent_of(const tr__network_endpoint *n, int rank)
{
    (void)n;
    return rank > 0 ? 0 : -1;
}

/* Sends one that is not a group's. */
static void tell_neighbour(tr__network_endpoint *n, int rank, uint8_t type)
{
    const tr__network_frame frame = {.head = {.magic = TR__NETWORK_MAGIC, .version = TR__NETWORK_VERSION, .type = type}};
    pthread_mutex_lock(&n->lock);
    tr__network_connection *control = n->peers[rank].control;
    if (control) tr__network_send(&control->wire, &frame, NULL);
    pthread_mutex_unlock(&n->lock);
}

/* Under `hearing`. The first rank below this one in the tree that is not known to be there with all below it; -1: none. */
static int missing_below(const tr__network_endpoint *n)
{
    for (int rank = n->rank + 1; rank < n->world_size; rank++)
        if (parent_of(n, rank) == n->rank && !n->peers[rank].here) return rank;
    return -1;
}

/* Under `hearing`. All ranks are there: tells those below, and the groups. */
static void say_all_here(tr__network_endpoint *n)
{
    n->all_here = true;
    for (int rank = n->rank + 1; rank < n->world_size; rank++)
        if (parent_of(n, rank) == n->rank) tell_neighbour(n, rank, TR__FRAME_ALL_HERE);
    for (tr__network_group *g = n->groups; g; g = g->next) g->calls->all_here(g->user);
}

/* Under `hearing`. This rank or one below it has come. */
static void say_here(tr__network_endpoint *n)
{
    if (!n->peers[n->rank].here || missing_below(n) >= 0) return;
    if (n->rank == 0)
        say_all_here(n);
    else
        tell_neighbour(n, parent_of(n, n->rank), TR__FRAME_HERE);
}

void tr__network_begin_to_meet(tr__network_endpoint *n)
{
    pthread_mutex_lock(&n->hearing);
    n->peers[n->rank].here = true;
    say_here(n);
    pthread_mutex_unlock(&n->hearing);
}

void tr__network_hear_link(tr__network_endpoint *n, tr__network_peer *peer)
{
    bool below = parent_of(n, peer->rank) == n->rank, above = parent_of(n, n->rank) == peer->rank;
    if (peer->frame.head.type == TR__FRAME_HERE && below && !peer->here) {
        peer->here = true;
        say_here(n);
    } else if (peer->frame.head.type == TR__FRAME_ALL_HERE && above && !n->all_here) {
        say_all_here(n);
    }
}

int tr__network_missing(tr__network_endpoint *n)
{
    pthread_mutex_lock(&n->hearing);
    int below = missing_below(n), missing = n->all_here ? -1 : below >= 0 ? below : parent_of(n, n->rank);
    pthread_mutex_unlock(&n->hearing);
    return missing;
}
