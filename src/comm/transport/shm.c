/* Making and ending a group's transport, and the failures that break it. */
#include "comm/transport/shm.h"

#include "base/clock.h"
#include "base/copy.h"
#include "base/thread.h"
#include "comm/transport/tcp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

/* Without memory for the message a peer finds out by its own timeout. */
static void tell_all(tr__shm *t, const tr__shm_message *message)
{
    for (int rank = 0; rank < t->world_size; rank++)
        if (rank != t->rank) (void)!tr__shm_post(t, &t->peers[rank], message, -1);
    tr__endpoint_kick(t->endpoint);
}

/* Each peer keeps the first reason that it learns. */
static void tell_failure(tr__shm *t)
{
    char name[64];
    const tr__shm_peer *self = &t->peers[t->rank];
    snprintf(name, sizeof name, "rank %d (pid %ld)", self->rank, self->pid);
    tr__shm_message message = {.type = TR__SHM_BROKEN, .status = tr__failure_for_peers(t->failure, name, t->group)};
    snprintf(message.text, sizeof message.text, "%s", tr_error_message());
    tell_all(t, &message);
}

static void broken(void *user, bool tell)
{
    tr__shm *t = user;
    atomic_store(&t->control->gave_up, 1);
    tr__endpoint_tell(t->endpoint);
    tr__shm_ring(t->control);
    tr__shm_mail(t->control);
    if (tell) tell_failure(t);
}

tr_status tr__shm_check_peers(tr__shm *t, int timeout_ms)
{
    bool any = false;
    for (int rank = 0; rank < t->world_size; rank++) any |= atomic_load(&t->peers[rank].control->gave_up) != 0;
    return any ? tr__shm_await_reason(t, timeout_ms) : TR_OK;
}

tr_status tr__shm_await_reason(tr__shm *t, int timeout_ms)
{
    int64_t deadline = tr__now_ns() + (int64_t)timeout_ms * 1000000;
    TR__LOCKED(&t->endpoint->lock);
    while (!tr__failure_there(t->failure) && tr__condition_wait(&t->endpoint->changed, &t->endpoint->lock, deadline)) continue;
    return tr__failure_tell(t->failure);
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

tr_status tr__shm_post(tr__shm *t, tr__shm_peer *peer, const tr__shm_message *message, int fd)
{
    tr__shm_message ours = *message;
    ours.group = t->attachment->id;
    return tr__endpoint_post(t->endpoint, t->attachment->members[peer - t->peers], &ours, fd);
}

/* ---- Making ------------------------------------------------------------------------------------------------------ */

/* Of a group of at most so many ranks, of which so many are on this host. */
static tr_status make(const char *group, int world_size, int here, tr__failure *failure, tr__shm **made)
{
    size_t count = (size_t)here;
    tr__shm *t = *made = calloc(1, sizeof *t);
    if (!t) return tr__fail(TR_NO_MEMORY, "group '%s': no memory", group);
    *t = (tr__shm){.failure = failure, .on_failure = {.broken = broken, .user = t}, .listener.socket = -1,
        .places = malloc((size_t)world_size * sizeof *t->places), .peers = calloc(count, sizeof *t->peers),
        .in = calloc(count, sizeof *t->in), .out = calloc(count, sizeof *t->out), .views = calloc(count, sizeof *t->views),
        .stagings = calloc(count, sizeof *t->stagings)};
    snprintf(t->group, sizeof t->group, "%s", group);
    if (!t->places || !t->peers || !t->in || !t->out || !t->views || !t->stagings)
        return tr__fail(TR_NO_MEMORY, "group '%s': no memory for %d ranks", t->group, world_size);
    return TR_OK;
}

/* From now on the group hears what is for it. */
static tr_status attach(tr__shm *t, tr__endpoint *e, uint64_t id)
{
    t->endpoint = e;
    TR__TRY(tr__endpoint_attach(e, id, &tr__shm_attached, t, &t->attachment));
    t->control = t->attachment->block;
    t->control->magic = TR__SHM_MAGIC;
    return TR_OK;
}

/* Who is on this host, of all ranks of the group; hosts NULL: all are. */
static void take_places(tr__shm *t, const tr__hosts *hosts, int own, int world_size)
{
    t->world_size = 0;
    for (int rank = 0; rank < world_size; rank++)
        t->places[rank] = !hosts || hosts->host[rank] == hosts->host[own] ? t->world_size++ : -1;
    t->rank = t->places[own];
}

/* When the places are known, and attachment->members says what they are to the endpoint. */
static void make_peers(tr__shm *t, int world_size)
{
    for (int rank = 0; rank < world_size; rank++) {
        int place = t->places[rank];
        if (place < 0) continue;
        tr__endpoint_peer *link = &t->endpoint->peers[t->attachment->members[place]];
        t->peers[place] = (tr__shm_peer){.rank = rank, .link = link, .pid = link->pid, .visible = link->visible};
    }
    t->peers[t->rank].control = t->control;
}

/* ---- The first group of an endpoint ------------------------------------------------------------------------------ */

enum { FIRST = 1 }; /* its number */

static tr_status open_endpoint(tr__shm *t, int rank, int world_size, tr__endpoint_record *record)
{
    tr__endpoint *e;
    TR__TRY(tr__endpoint_new(t->group, rank, world_size, tr__shm_control_bytes(world_size), &e));
    tr_status status = attach(t, e, FIRST);
    if (status != TR_OK) {
        tr__endpoint_free(e);
        t->endpoint = NULL;
        return status;
    }
    for (int i = 0; i < world_size; i++) t->attachment->members[i] = i;
    take_places(t, NULL, rank, world_size);
    make_peers(t, world_size);
    return tr__shm_listen(t, record);
}

tr_status tr__shm_new(const tr__member *member, tr__failure *failure, tr__endpoint_record *record, tr__shm **transport)
{
    tr__shm *t;
    tr_status status = make(member->group, member->world_size, member->world_size, failure, &t);
    if (!t) return status;
    t->report_ms = member->report_ms;
    t->recorder = member->recorder;
    t->cores = tr__cores();
    t->crowded = t->cores < member->world_size;
    t->cache_bytes = tr__shared_cache();
    if (status == TR_OK) status = open_endpoint(t, member->rank, member->world_size, record);
    if (status == TR_OK)
        *transport = t;
    else
        tr__shm_close(t);
    return status;
}

void tr__shm_settle(tr__shm *t, const tr__hosts *hosts, tr__tcp *tcp)
{
    take_places(t, hosts, t->rank, hosts->world_size);
    tr__endpoint_settle(t->endpoint, t->rank, t->world_size);
    make_peers(t, hosts->world_size);
    for (int other = 0; other < t->world_size; other++) t->peers[other].link->rank = t->peers[other].rank;
    t->tcp = tcp;
}

tr_status tr__shm_begin(tr__shm *t)
{
    tr__endpoint_enter(t->attachment, t->world_size);
    TR__TRY(tr__endpoint_start(t->endpoint));
    t->met = true;
    tr__failure_listen(t->failure, &t->on_failure);
    return TR_OK;
}

tr_status tr__shm_meet(tr__shm *t, tr__rendezvous *meeting, tr__endpoint_record *records)
{
    TR__TRY(tr__shm_connect(t, meeting, records));
    TR__TRY(tr__shm_begin(t));
    if (!t->tcp) TR__TRY(tr__rendezvous_use(meeting)); /* else when those of other hosts are connected, too */
    tr__endpoint_probe(t->endpoint);
    /* Nobody may leave, and take its memory along, before all have mapped it. */
    tr__shm_call joining = {.meeting = meeting, .records = records, .timeout_ms = tr__rendezvous_rest_ms(meeting)};
    tr__shm_signal(t, TR__SHM_DONE, ++t->steps);
    tr_status status = tr__shm_await(t, &joining, TR__SHM_DONE, t->steps, -1);
    if (status == TR_TIMEOUT) meeting->late = meeting->said;
    if (status != TR_OK) return tr__failure_break(t->failure);
    if (meeting->said >= 0) tr__rendezvous_waits_for(meeting, records, -1);
    tr__endpoint_agree(t->endpoint);
    return TR_OK;
}

/* ---- A group within another -------------------------------------------------------------------------------------- */

/* Of the whole group, also on other hosts. */
static int group_size(const tr__shm *t)
{
    return t->tcp ? t->tcp->world_size : t->world_size;
}

tr_status tr__shm_prepare(tr__shm *parent, uint64_t id, tr__failure *failure, tr__shm **made, tr__shm_place *block)
{
    tr__shm *t;
    tr_status status = make(parent->group, group_size(parent), parent->world_size, failure, &t);
    if (status == TR_OK) status = attach(t, parent->endpoint, id);
    if (status != TR_OK) {
        if (t) tr__shm_close(t);
        return status;
    }
    t->cores = parent->cores;
    t->cache_bytes = parent->cache_bytes;
    tr__endpoint_place(t->attachment, &block->segment, &block->offset);
    *made = t;
    return TR_OK;
}

/* Its members are known, and what ranks they are, as the monitor names them from now on. */
static void enter(tr__shm *t)
{
    t->met = true;
    tr__endpoint_enter(t->attachment, t->world_size);
    tr__failure_listen(t->failure, &t->on_failure);
}

/* Where the peers' control blocks are. */
static tr_status find_controls(tr__shm *t, const tr__seat *seat, int timeout_ms)
{
    tr__shm_call joining = {.timeout_ms = timeout_ms};
    for (int place = 0; place < t->world_size; place++) {
        tr__shm_control *control;
        if (place == t->rank) continue;
        TR__TRY(tr__shm_find_control(t, &joining, place, seat->blocks[seat->ranks[t->peers[place].rank]], &control));
        TR__LOCKED(&t->endpoint->hearing); /* the monitor looks at it when the peer dies */
        t->peers[place].control = control;
        if (atomic_load(&t->peers[place].inbound)) tr__shm_mail(control);
    }
    return TR_OK;
}

tr_status tr__shm_enter(tr__shm *t, const tr__shm *parent, const tr__seat *seat, const tr__hosts *hosts, tr__tcp *tcp,
    const tr__member *member)
{
    snprintf(t->group, sizeof t->group, "%s", member->group);
    t->report_ms = member->report_ms;
    t->recorder = member->recorder;
    t->tcp = tcp;
    take_places(t, hosts, member->rank, member->world_size);
    t->crowded = t->cores < t->world_size || (tcp && tcp->crowded);
    for (int rank = 0; rank < member->world_size; rank++)
        if (t->places[rank] >= 0)
            t->attachment->members[t->places[rank]] = parent->attachment->members[parent->places[seat->ranks[rank]]];
    make_peers(t, member->world_size);
    for (int i = 0; i < t->world_size; i++) tr__recorder_peer(t->recorder, t->peers[i].rank, t->peers[i].pid, NULL);
    enter(t);
    tr_status status = find_controls(t, seat, member->timeout_ms);
    return status == TR_OK ? TR_OK : tr__failure_give_up(t->failure);
}

void tr__shm_enter_all(tr__shm *t, const tr__shm *parent)
{
    memcpy(t->attachment->members, parent->attachment->members, (size_t)parent->world_size * sizeof(int));
    memcpy(t->places, parent->places, (size_t)group_size(parent) * sizeof(int));
    t->rank = parent->rank;
    t->world_size = parent->world_size;
    make_peers(t, group_size(parent));
    enter(t);
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

/* Of a group that is broken, the reason goes first: a peer must not take our leaving for it. Without memory for the goodbye a
 * peer takes us for dead when this process ends, which is no worse for it. */
static void say_goodbye(tr__shm *t)
{
    const tr__shm_message goodbye = {.type = TR__SHM_GOODBYE};
    bool broken = tr__failure_there(t->failure);
    if (broken) tell_failure(t);
    tell_all(t, &goodbye);
    if (broken) tr__endpoint_flush(t->endpoint); /* the program may end now, and the reason must not be lost */
}

void tr__shm_close(tr__shm *t)
{
    tr__failure_ignore(t->failure, &t->on_failure);
    if (t->met) say_goodbye(t);
    if (t->attachment) tr__endpoint_detach(t->attachment);
    for (int rank = 0; t->peers && rank < t->world_size; rank++)
        tr__shm_mapping_close(&t->peers[rank].channel_mapping);
    if (t->listener.socket >= 0) close(t->listener.socket);
    tr_shared_free(t->staging);
    free(t->peers);
    free(t->in);
    free(t->out);
    free(t->views);
    free(t->stagings);
    tr__pages_free(t->scratch, TR__SHM_SCRATCH);
    free(t->buffers);
    free(t->places);
    free(t);
}
