/*
 * The control connections as a whole. Up to TR__MESH_MOST ranks have one each with each. Among more, a rank has one with
 * those that are 1 and ceil(sqrt N) places before and behind it, and what it tells all goes from neighbour to neighbour:
 * a message bears the rank that it is from and a number, so who knows it already drops it. On each connection messages
 * keep their order, so nobody hears that a rank has ended before what it said last.
 *
 * When a rank has gone, those that are behind it take the next one ahead, and both send each other what they have heard
 * of late: no message is lost while some connection is made anew. A rank that leaves goes only when those that are ahead
 * of it and stay have heard all that it has.
 *
 * How all ranks learn that all have joined: up and down a tree of these connections, so that joining opens no others.
 */
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/thread.h"
#include "net/link.h"
#include "net/network.h"

#include <errno.h>
#include <string.h>
#include <time.h>

/* ---- Who has one with whom --------------------------------------------------------------------------------------- */

/* ceil(sqrt N) */
static int stride(const tr__network_endpoint *n)
{
    int s = 1;
    while (s * s < n->world_size) s++;
    return s;
}

bool tr__network_linked(const tr__network_endpoint *n, int a, int b)
{
    int world = n->world_size, apart = (b - a + world) % world, s = stride(n);
    return !tr__network_relays(n) || apart == 1 || apart == s || apart == world - 1 || apart == world - s;
}

/* Next to a rank on its way to rank 0; -1: it is that. */
static int parent_of(const tr__network_endpoint *n, int rank)
{
    int s = stride(n);
    if (rank == 0) return -1;
    if (!tr__network_relays(n)) return 0;
    return rank % s ? rank - 1 : rank - s;
}

/* Under `hearing`. The neighbours ahead: the first ranks that are there from 1 and stride() places on; -1: none. */
static void find_ahead(const tr__network_endpoint *n, int ahead[2])
{
    const int from[2] = {1, stride(n)};
    for (int i = 0; i < 2; i++) {
        ahead[i] = -1;
        for (int k = 0; k < n->world_size && ahead[i] < 0; k++) {
            int rank = (n->rank + from[i] + k) % n->world_size;
            if (rank != n->rank && !n->peers[rank].gone) ahead[i] = rank;
        }
    }
}

void tr__network_relink(tr__network_endpoint *n)
{
    int ahead[2];
    if (!tr__network_relays(n)) return;
    TR__LOCKED(&n->hearing);
    if (!n->relink) return;
    n->relink = false;
    find_ahead(n, ahead);
    for (int i = 0; i < 2; i++)
        if (ahead[i] >= 0 && !n->peers[ahead[i]].control) /* only this thread makes or ends any */
            n->relink |= tr__network_call(n, ahead[i], TR__CONTROL_CHANNEL, TR__FIRST_GROUP) != TR_OK;
}

/* ---- What neighbours pass on ------------------------------------------------------------------------------------- */

bool tr__network_relay(tr__network_endpoint *n, tr__network_peer *neighbour)
{
    const tr__network_frame *frame = &neighbour->frame;
    tr__network_peer *origin = &n->peers[frame->head.origin];
    bool relays = tr__network_relays(n);
    if (origin->rank == n->rank || (!relays && origin != neighbour)) return false;
    if ((int32_t)(frame->head.number - origin->heard) <= 0) return false;
    origin->heard = frame->head.number;
    if (relays) tr__network_post(n, -1, neighbour->rank, frame, neighbour->text);
    return true;
}

static bool host_is_silent(int error)
{
    return error == ETIMEDOUT || error == EHOSTUNREACH || error == EHOSTDOWN || error == ENETUNREACH || error == ENETDOWN;
}

/* At the same address, but for the port, and of the same name: one address may lead to several hosts. */
static bool share_host(const tr__network_record *a, const tr__network_record *b)
{
    size_t address = (size_t)(strrchr(a->address, ':') - a->address);
    return strncmp(a->address, b->address, address + 1) == 0 && strchr(b->address + address + 1, ':') == NULL &&
           strcmp(a->host, b->host) == 0;
}

static void lose_one(tr__network_endpoint *n, tr__network_peer *peer, int error)
{
    if (peer->told) return;
    peer->told = true;
    union {
        tr__gone_frame gone;
        tr__network_frame frame;
    } news = {.gone = {.head.type = TR__FRAME_GONE, .rank = peer->rank, .error = error}};
    if (tr__network_relays(n)) tr__network_post(n, -1, n->rank, &news.frame, NULL);
    tr__network_say_gone(n, peer, error);
}

bool tr__network_is_heard(tr__network_endpoint *n, const tr__network_peer *peer)
{
    TR__LOCKED(&n->lock);
    bool heard = peer->control != NULL;
    for (const tr__network_connection *c = peer->connections; c && !heard; c = c->next)
        heard = !c->ending && tr__link_heard(c->wire.socket);
    return heard;
}

/* With a host all of its ranks are gone, unless one of them is heard of or it is this one; else those without a neighbour
 * elsewhere would be found one after the other, as each becomes somebody's neighbour. */
void tr__network_lose(tr__network_endpoint *n, tr__network_peer *peer, int error)
{
    n->relink = true;
    lose_one(n, peer, error);
    if (!tr__network_relays(n) || !host_is_silent(error) || !strchr(peer->record.address, ':')) return;
    for (int rank = 0; rank < n->world_size; rank++)
        if (share_host(&peer->record, &n->peers[rank].record) && (rank == n->rank || tr__network_is_heard(n, &n->peers[rank])))
            return;
    for (int rank = 0; rank < n->world_size; rank++)
        if (share_host(&peer->record, &n->peers[rank].record)) lose_one(n, &n->peers[rank], error);
}

static void hear_gone(tr__network_endpoint *n, const tr__network_frame *frame)
{
    tr__gone_frame gone;
    memcpy(&gone, frame, sizeof gone);
    if (gone.rank < 0 || gone.rank >= n->world_size || gone.rank == n->rank) return;
    n->relink = n->peers[gone.rank].told = true;
    tr__network_say_gone(n, &n->peers[gone.rank], gone.error);
}

/* ---- Joining ----------------------------------------------------------------------------------------------------- */

static void tell_neighbour(tr__network_endpoint *n, int rank, uint8_t type, uint32_t number)
{
    const tr__network_frame frame = {.head = {.type = type, .number = number}};
    tr__network_post(n, rank, n->rank, &frame, NULL);
}

/* Under `hearing`. The first rank below this one in the tree that has not said that it is there; -1: none. */
static int missing_below(const tr__network_endpoint *n)
{
    for (int rank = n->rank + 1; rank < n->world_size; rank++)
        if (parent_of(n, rank) == n->rank && !n->peers[rank].here) return rank;
    return -1;
}

/* Under `hearing`. */
static void wake_groups(tr__network_endpoint *n)
{
    for (tr__network_group *g = n->groups; g; g = g->next) g->calls->all_here(g->user);
}

/* Under `hearing`. All ranks are there: tells those below. */
static void say_all_here(tr__network_endpoint *n)
{
    n->all_here = true;
    for (int rank = n->rank + 1; rank < n->world_size; rank++)
        if (parent_of(n, rank) == n->rank) tell_neighbour(n, rank, TR__FRAME_ALL_HERE, n->records);
    wake_groups(n);
}

/* Under `hearing`. A rank is there, this one or one below it, with all that are below it. */
static void note_here(tr__network_endpoint *n, tr__network_peer *peer, uint32_t records)
{
    peer->here = true;
    n->records += records;
    if (!n->peers[n->rank].here || missing_below(n) >= 0) return;
    if (n->rank == 0)
        wake_groups(n);
    else
        tell_neighbour(n, parent_of(n, n->rank), TR__FRAME_HERE, n->records);
}

static uint32_t sum_of(const char *cookie)
{
    return tr__crc32c(0, cookie, TR__COOKIE_TEXT);
}

void tr__network_begin_to_meet(tr__network_endpoint *n)
{
    TR__LOCKED(&n->hearing);
    note_here(n, &n->peers[n->rank], sum_of(n->cookie));
}

int tr__network_missing(tr__network_endpoint *n)
{
    TR__LOCKED(&n->hearing);
    int below = missing_below(n);
    return n->all_here ? -1 : below >= 0 ? below : parent_of(n, n->rank);
}

void tr__network_begin(tr__network_endpoint *n)
{
    TR__LOCKED(&n->hearing);
    say_all_here(n);
}

bool tr__network_has_all_records(const tr__network_endpoint *n)
{
    uint32_t sum = 0;
    for (int rank = 0; rank < n->world_size; rank++)
        sum += sum_of(rank == n->rank ? n->cookie : n->peers[rank].record.cookie);
    return sum == n->records;
}

/* ---- Leaving ----------------------------------------------------------------------------------------------------- */

/* Have the neighbours ahead heard all that this rank has? Asks those of which that is not known. */
static bool have_all(tr__network_endpoint *n)
{
    int ahead[2];
    bool all = true, ask[2] = {false, false};
    TR__LOCKED(&n->hearing);
    find_ahead(n, ahead);
    pthread_mutex_lock(&n->lock);
    uint32_t spread = n->spread;
    for (int i = 0; i < 2; i++) {
        tr__network_connection *c = ahead[i] >= 0 ? n->peers[ahead[i]].control : NULL;
        all &= ahead[i] < 0 || (c && c->passed == spread);
        ask[i] = c && c->marked != spread;
        if (c) c->marked = spread;
    }
    pthread_mutex_unlock(&n->lock);
    for (int i = 0; i < 2; i++)
        if (ask[i]) tell_neighbour(n, ahead[i], TR__FRAME_MARK, spread);
    return all;
}

void tr__network_take_leave(tr__network_endpoint *n)
{
    enum { PAUSE_NS = 500000 };
    const tr__network_frame leaving = {.head.type = TR__FRAME_LEAVING};
    pthread_mutex_lock(&n->hearing);
    bool joined = n->all_here;
    pthread_mutex_unlock(&n->hearing);
    if (!tr__network_relays(n) || !joined) return;
    int64_t until = tr__in_ms(n->hasty ? 200 : 1000);
    tr__network_post(n, -1, n->rank, &leaving, NULL);
    while (!have_all(n) && tr__now_ns() < until) nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
}

/* ---- Hearing ----------------------------------------------------------------------------------------------------- */

void tr__network_hear_link(tr__network_endpoint *n, tr__network_peer *peer)
{
    const tr__frame_head *head = &peer->frame.head;
    bool below = parent_of(n, peer->rank) == n->rank, above = parent_of(n, n->rank) == peer->rank;
    switch (head->type) {
    case TR__FRAME_HERE:
        if (below && !peer->here) note_here(n, peer, head->number);
        break;
    case TR__FRAME_ALL_HERE:
        if (above) n->records = head->number;
        if (above && !n->all_here) say_all_here(n);
        break;
    case TR__FRAME_MARK: tell_neighbour(n, peer->rank, TR__FRAME_MARKED, head->number); break;
    case TR__FRAME_MARKED:
        if (peer->control) peer->control->passed = head->number;
        break;
    case TR__FRAME_GONE:
        if (tr__network_relay(n, peer)) hear_gone(n, &peer->frame);
        break;
    case TR__FRAME_LEAVING: {
        tr__network_peer *origin = &n->peers[head->origin];
        if (!tr__network_relay(n, peer)) break;
        n->relink = origin->told = origin->leaving = true;
        tr__network_say_gone(n, origin, 0);
        break;
    }
    default: break;
    }
}
