/*
 * What a group is told by its endpoint's monitor, whose thread must not be kept waiting: messages of its members, and that their
 * processes have ended. Who ends without a goodbye to the group has died, and breaks it.
 */
#include "base/log.h"
#include "comm/transport/shm.h"

#include <unistd.h>

static void died(tr__shm *t, tr__shm_peer *peer)
{
    tr__signature s;
    char end[TR__END_TEXT], text[TR__CALL_TEXT];
    bool finished;
    tr__failure_note_death(t->failure, peer->rank);
    tr__end_text(peer->visible ? peer->pid : 0, t->group, end);
    bool called = peer->control && (tr__shm_last_transfer(peer->control, &s, &finished) ||
                                       tr__shm_last_call(peer->control, &s, &finished));
    if (!called)
        tr__fail(TR_PEER, "rank %d (pid %ld) %s before its first call", peer->rank, peer->pid, end);
    else
        tr__fail(TR_PEER, "rank %d (pid %ld) %s %s %s", peer->rank, peer->pid, end, finished ? "after" : "during",
            tr__signature_text(&s, text));
    tr__failure_break_by(t->failure, false, &t->on_failure); /* the others see it themselves */
}

static void gave_up(tr__shm *t, const tr__shm_peer *peer, const tr__shm_message *message)
{
    if (message->text[0])
        tr__fail(tr__failure_is_common(message->status) ? message->status : TR_PEER, "%s", message->text);
    else
        tr__fail(TR_PEER, "rank %d (pid %ld) gave up group '%s' and does not say why", peer->rank, peer->pid, t->group);
    tr__failure_break_by(t->failure, false, &t->on_failure);
}

static void say_gone(tr__shm *t, const tr__shm_peer *peer)
{
    const tr__raw_events *events = atomic_load(&t->raw);
    if (events) events->gone(events->user, peer->rank, atomic_load(&peer->left), true);
}

static void said_goodbye(tr__shm *t, tr__shm_peer *peer)
{
    atomic_store(&peer->left, true);
    tr__endpoint_tell(t->endpoint);
    tr__shm_ring(t->control);
    tr__shm_mail(t->control);
    say_gone(t, peer);
}

static void heard(void *user, int member, const tr__shm_message *message, int fd)
{
    tr__shm *t = user;
    tr__shm_peer *peer = &t->peers[member];
    switch (message->type) {
    case TR__SHM_STREAMS:
        if (tr__shm_channel_came(t, peer, message->id, message->bytes, fd) != TR_OK) tr__failure_break(t->failure);
        return; /* fd went along */
    case TR__SHM_BROKEN:
        gave_up(t, peer, message);
        break;
    case TR__SHM_GOODBYE:
        said_goodbye(t, peer);
        break;
    default:
        tr__fail(TR_FORMAT, "rank %d (pid %ld) sent a message of unknown type %u", peer->rank, peer->pid,
                 message->type);
        tr__failure_break(t->failure);
    }
    if (fd >= 0) close(fd);
}

/* Taken back here, before the message counts as dealt with, and not by the thread that waits: if the process is stopped before
 * that thread runs, the peers must not believe that it still waits for this one. If it does, it says so again. */
static void mapped(void *user, int member)
{
    tr__shm *t = user;
    int waiting = member + 1;
    if (atomic_load(&t->control->stuck.buffer) == waiting)
        atomic_compare_exchange_strong(&t->control->stuck.buffer, &waiting, 0);
    const tr__raw_events *events = atomic_load(&t->raw);
    if (events) events->shown(events->user, t->peers[member].rank);
}

static void missed(void *user, int member)
{
    tr__shm *t = user;
    const tr__raw_events *events = atomic_load(&t->raw);
    if (events)
        events->missed(events->user, t->peers[member].rank);
    else
        tr__log(TR_LOG_WARN, "group '%s': %s", t->group, tr_error_message());
}

static void gone(void *user, int member)
{
    tr__shm *t = user;
    tr__shm_peer *peer = &t->peers[member];
    atomic_store(&peer->gone, true);
    if (atomic_load(&peer->left)) return;
    died(t, peer);
    say_gone(t, peer);
}

static void failed(void *user)
{
    tr__shm *t = user;
    (void)!tr__failure_break(t->failure);
}

const tr__attached tr__shm_attached = {heard, mapped, gone, failed, missed};
