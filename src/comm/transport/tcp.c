/* Making and ending a group's TCP transport, and the failures that break it. */
#include "comm/transport/tcp.h"

#include "base/clock.h"
#include "base/thread.h"
#include "comm/transport/tcp_flow.h"
#include "net/store/store.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

static void broken(void *user, bool tell)
{
    tr__tcp *t = user;
    char name[TR__TCP_NAME], text[TR__FRAME_TEXT];
    if (tell) {
        tr_status status = tr__failure_for_peers(t->failure, tr__tcp_name(&t->peers[t->rank], name), t->group);
        snprintf(text, sizeof text, "%s", tr_error_message());
        tr__tcp_frame frame = tr__tcp_frame_of(NULL, TR__TCP_BROKEN, strlen(text));
        frame.status = status;
        tr__tcp_tell_all(t, &frame, text);
    }
    tr__tcp_wake(t);
}

char *tr__tcp_name(const tr__tcp_peer *peer, char text[TR__TCP_NAME])
{
    snprintf(text, TR__TCP_NAME, "rank %d (pid %ld on host %s)", peer->rank, peer->pid, peer->host);
    return text;
}

/* ---- Connections ------------------------------------------------------------------------------------------------- */

tr__wire *tr__tcp_wire(tr__tcp *t, int rank, tr__channel channel)
{
    tr__network_connection *c = atomic_load_explicit(&t->peers[rank].connections[channel], memory_order_acquire);
    return c ? &c->wire : NULL;
}

tr__wire *tr__tcp_need_wire(tr__tcp *t, int rank, tr__channel channel, bool *never)
{
    tr__tcp_peer *peer = &t->peers[rank];
    tr__wire *wire = tr__tcp_wire(t, rank, channel);
    *never = false;
    if (wire) return wire;
    if (atomic_load(&peer->left)) { /* but what it sent before may be on its way */
        bool under_way = tr__network_under_way(t->network, t->place->members[rank], channel, t->place->id);
        wire = tr__tcp_wire(t, rank, channel);
        *never = !wire && !under_way;
    } else if (!atomic_exchange(&peer->asked[channel], true)) {
        tr_status status = tr__network_call(t->network, t->place->members[rank], channel, t->place->id);
        if (status != TR_OK) atomic_store(&peer->asked[channel], false);
    }
    return wire;
}

tr_status tr__tcp_await_wire(tr__tcp *t, int rank, tr__channel channel, int timeout_ms, tr__wire **wire)
{
    enum { LOOK_NS = 5000000 };
    int64_t deadline = tr__in_ms(timeout_ms);
    bool never = false, late = false;
    while (!never && !late && !tr__failure_there(t->failure)) {
        int64_t now = tr__now_ns();
        late = now >= deadline; /* read before the peers: who has come by then is seen */
        bool left = atomic_load(&t->peers[rank].left);
        *wire = tr__tcp_need_wire(t, rank, channel, &never);
        if (*wire) return TR_OK;
        /* What becomes of the connection of a rank that has left may be told just before we sleep. */
        int64_t until = left && deadline - now > LOOK_NS ? now + LOOK_NS : deadline;
        TR__LOCKED(&t->lock);
        bool news = tr__tcp_wire(t, rank, channel) || atomic_load(&t->peers[rank].left) != left || tr__failure_there(t->failure);
        if (!never && !late && !news) tr__condition_wait(&t->changed, &t->lock, until);
    }
    char name[TR__TCP_NAME];
    if (tr__failure_there(t->failure)) return tr__failure_tell(t->failure);
    return never ? tr__fail(TR_PEER, "%s has left group '%s'", tr__tcp_name(&t->peers[rank], name), t->group)
                 : tr__tcp_timed_out(t, NULL, rank, timeout_ms);
}

tr_status tr__tcp_need_event(tr__tcp *t, int *event)
{
    if (*event >= 0) return TR_OK;
    TR__LOCKED(&t->lock);
    *event = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK); /* what happened until now may not have been seen */
    return *event >= 0 ? TR_OK : tr__fail_errno(TR_IO, errno, "group '%s': no eventfd", t->group);
}

/* Under the lock. It fails only when the event is set already. */
static void set_event(int event)
{
    ssize_t written = event >= 0 ? write(event, &(uint64_t){1}, sizeof(uint64_t)) : 0;
    (void)written;
}

void tr__tcp_wake(tr__tcp *t)
{
    TR__LOCKED(&t->lock);
    set_event(t->kick);
    set_event(t->wake);
    pthread_cond_broadcast(&t->changed);
}

void tr__tcp_wake_reader(tr__tcp *t)
{
    TR__LOCKED(&t->lock);
    set_event(t->wake);
}

/* ---- Making ------------------------------------------------------------------------------------------------------ */

static tr_status make_tables(tr__tcp *t)
{
    size_t world = (size_t)t->world_size;
    t->peers = calloc(world, sizeof *t->peers);
    t->slots = calloc(TR__TCP_WINDOW, sizeof *t->slots);
    t->polled = calloc(2 * TR__TCP_WINDOW + 1, sizeof *t->polled);
    t->stage = malloc(TR__TCP_STAGE);
    t->folded = calloc(world, sizeof *t->folded);
    if (!t->peers || !t->slots || !t->polled || !t->stage || !t->folded)
        return tr__fail(TR_NO_MEMORY, "group '%s': no memory for %d ranks", t->group, t->world_size);
    for (int rank = 0; rank < t->world_size; rank++) {
        t->peers[rank].rank = rank;
        t->peers[rank].waits[0].on = t->peers[rank].waits[1].on = -1;
    }
    return TR_OK;
}

/* Of at most so many ranks. */
static tr_status make(const char *group, int rank, int world_size, tr__failure *failure, tr__tcp **made)
{
    tr__tcp *t = *made = calloc(1, sizeof *t);
    if (!t) return tr__fail(TR_NO_MEMORY, "group '%s': no memory", group);
    snprintf(t->group, sizeof t->group, "%s", group);
    t->rank = rank;
    t->world_size = world_size;
    t->kick = t->wake = -1;
    t->failure = failure;
    t->on_failure = (tr__failure_listener){.broken = broken, .user = t};
    pthread_mutex_init(&t->lock, NULL);
    tr__condition_init(&t->changed);
    return make_tables(t);
}

static tr_status take_settings(tr__tcp *t, const tr__member *member)
{
    t->report_ms = member->report_ms;
    t->recorder = member->recorder;
    return tr__choice_read(&t->choices, member->algorithms, NULL);
}

/* ---- The first group of an endpoint ------------------------------------------------------------------------------ */

static tr_status open_endpoint(tr__tcp *t, const tr__member *member, tr__endpoint_record *record)
{
    tr__network_endpoint *n;
    const tr_store *store = member->store;
    tr__network_options o = {.name = member->group, .rank = member->rank, .world_size = member->world_size,
        .wanted = member->address, .towards = store->host, .anywhere = store->anywhere, .job_key = store->key,
        .encrypt = member->encrypt};
    /* The key that the store has: who met there has proved it. */
    if (member->encrypt && !store->key)
        return tr__fail(TR_AUTH, "group '%s': connections are encrypted with the job's token, and there is none; set "
            "TRIREME_TOKEN, the same for all ranks, and let them meet at an address or in a file, or go without .encrypt and "
            "TRIREME_ENCRYPT", t->group);
    TR__TRY(tr__network_new(&o, &n));
    tr_status status = tr__network_attach(n, TR__FIRST_GROUP, &tr__tcp_calls, t, &t->place);
    if (status != TR_OK) {
        tr__network_free(n);
        return status;
    }
    t->network = n;
    tr__tcp_peer *own = &t->peers[t->rank]; /* for the peers, should shared memory break the group while this one is joined */
    own->pid = record->pid;
    memcpy(own->host, record->host, sizeof own->host);
    for (int rank = 0; rank < t->world_size; rank++) t->place->members[rank] = rank;
    tr__network_enter(t->place, t->world_size);
    tr__failure_listen(t->failure, &t->on_failure);
    memcpy(record->tcp_address, n->address, sizeof record->tcp_address);
    memcpy(record->tcp_cookie, n->cookie, sizeof record->tcp_cookie);
    return TR_OK;
}

tr_status tr__tcp_new(const tr__member *member, tr__failure *failure, tr__endpoint_record *record, tr__tcp **transport)
{
    tr__tcp *t;
    tr_status status = make(member->group, member->rank, member->world_size, failure, &t);
    if (!t) return status;
    if (status == TR_OK) status = take_settings(t, member);
    record->table = tr__choice_digest(&t->choices);
    if (status == TR_OK) status = open_endpoint(t, member, record);
    if (status == TR_OK)
        *transport = t;
    else
        tr__tcp_close(t);
    return status;
}

void tr__tcp_know_members(tr__tcp *t)
{
    int here = 0; /* ranks in other network namespaces of this machine count: they use the same cores */
    for (int rank = 0; rank < t->world_size; rank++) {
        const tr__network_record *record = &t->network->peers[t->place->members[rank]].record;
        tr__tcp_peer *peer = &t->peers[rank];
        here += record->same_kernel;
        if (rank == t->rank && peer->pid) continue; /* any thread reads it */
        peer->pid = record->pid;
        peer->visible = record->visible;
        memcpy(peer->host, record->host, sizeof peer->host);
    }
    t->crowded = tr__cores() < here;
}

/* Waits until all have come, as in a barrier, which it is to those who report or find whom it waits for. Rank 0 lets them begin. */
static tr_status await_all(tr__tcp *t, tr__rendezvous *meeting, int timeout_ms)
{
    tr__tcp_patience patience = {0};
    int rank;
    tr__network_begin_to_meet(t->network);
    while ((rank = tr__network_missing(t->network)) >= 0) {
        t->polled[0] = (struct pollfd){.fd = -1};
        tr_status status = tr__tcp_wait(t, &patience, timeout_ms, &rank, 1);
        /* Else others have gone on, to a call that failed. */
        if (status != TR_OK && tr__network_missing(t->network) >= 0) return status;
    }
    if (t->network->rank == 0) {
        TR__TRY(tr__rendezvous_use(meeting));
        tr__network_begin(t->network);
    }
    tr__tcp_go_on(t, &patience);
    return TR_OK;
}

tr_status tr__tcp_meet(tr__tcp *t, tr__rendezvous *meeting, tr__endpoint_record *records)
{
    TR__TRY(tr__tcp_connect(t, meeting, records));
    TR__TRY(tr__network_monitor_start(t->network));
    /* A rank has joined when all have: nobody's first collective meets a rank that failed to join. */
    const tr_collective all = {.kind = TR_BARRIER, .timeout_ms = tr__rendezvous_rest_ms(meeting), .file = "tr_join"};
    TR__TRY(tr__tcp_enter(t, &all, 0));
    tr_status status = await_all(t, meeting, all.timeout_ms);
    if (status != TR_OK) status = tr__failure_break(t->failure);
    if (status == TR_OK && !tr__network_has_all_records(t->network)) status = tr__tcp_renew(t, meeting, records);
    tr__tcp_exit(t);
    TR__LOCKED(&t->lock);
    t->has_last = false;
    for (int rank = 0; rank < t->world_size; rank++) t->peers[rank].called = false;
    return status;
}

/* ---- A group within another -------------------------------------------------------------------------------------- */

tr_status tr__tcp_prepare(tr__tcp *parent, uint64_t id, tr__failure *failure, tr__tcp **made)
{
    tr__tcp *t;
    tr_status status = make(parent->group, 0, parent->world_size, failure, &t);
    if (!t) return status;
    t->network = parent->network;
    if (status == TR_OK) status = tr__network_attach(parent->network, id, &tr__tcp_calls, t, &t->place);
    if (status == TR_OK)
        *made = t;
    else
        tr__tcp_close(t);
    return status;
}

/* The members are those ranks of the parent (NULL: all). */
static void enter(tr__tcp *t, const tr__tcp *parent, int rank, const int *ranks, int world_size)
{
    t->rank = rank;
    t->world_size = world_size;
    for (int i = 0; i < world_size; i++) t->place->members[i] = parent->place->members[ranks ? ranks[i] : i];
    tr__tcp_know_members(t);
    tr__network_enter(t->place, world_size);
    tr__failure_listen(t->failure, &t->on_failure);
}

tr_status tr__tcp_begin(tr__tcp *t, const tr__tcp *parent, const int *ranks, const tr__member *member)
{
    snprintf(t->group, sizeof t->group, "%s", member->group);
    tr_status status = take_settings(t, member);
    enter(t, parent, member->rank, ranks, member->world_size);
    for (int i = 0; i < t->world_size; i++) tr__recorder_peer(t->recorder, i, t->peers[i].pid, t->peers[i].host);
    return status == TR_OK ? TR_OK : tr__failure_give_up(t->failure);
}

void tr__tcp_enter_all(tr__tcp *t, const tr__tcp *parent)
{
    enter(t, parent, parent->rank, NULL, parent->world_size);
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

/* Those of a group that is broken have been told so. */
void tr__tcp_close(tr__tcp *t)
{
    if (t->place) {
        bool sound = !tr__failure_there(t->failure);
        tr__tcp_frame goodbye = tr__tcp_frame_of(t->has_last ? &t->last : NULL, TR__TCP_GOODBYE, 0);
        if (sound) tr__tcp_tell_all(t, &goodbye, NULL);
        tr__failure_ignore(t->failure, &t->on_failure); /* after the goodbye: of a failure until here the peers have been told */
        tr__network_detach(t->place, sound);
    }
    if (t->kick >= 0) close(t->kick);
    if (t->wake >= 0) close(t->wake);
    free(t->peers);
    free(t->slots);
    free(t->polled);
    free(t->stage);
    free(t->scratch.at);
    free(t->folded);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    free(t);
}
