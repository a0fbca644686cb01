/*
 * Waiting for peers. A rank that waits spins first, as the answer is often a cache miss away; then lets others run, as
 * the peer may want this core; then sleeps on its own bell, after writing down who should ring it.
 */
#include "base/clock.h"
#include "base/futex.h"
#include "base/log.h"
#include "base/thread.h"
#include "comm/transport/shm.h"
#include "comm/transport/tcp.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

enum {
    SPINS_LEAST = 20,
    SPINS_MOST = 500,      /* some 20 us */
    YIELDS = 20,
    YIELDS_NS = 2000000,   /* at most: on a busy machine one can take long, and nobody knows yet whom we wait for */
    SLEEP_MS = 100,        /* a peer that is killed between writing and ringing rings never */
};

static inline _Atomic uint64_t *counter(tr__shm_control *control, tr__shm_word word)
{
    switch (word) {
    case TR__SHM_FILLED: return &control->filled;
    case TR__SHM_DONE: return &control->done;
    default: return &control->slots[word].entered;
    }
}

void tr__shm_ring(tr__shm_control *control)
{
    atomic_fetch_add(&control->bell, 1);
    tr__futex_wake(&control->bell, 1);
}

void tr__shm_signal(tr__shm *t, tr__shm_word word, uint64_t value)
{
    /* Sequentially consistent, as is the sleeper's side: either it sees the value, or we see that it sleeps. */
    atomic_exchange(counter(t->control, word), value);
    for (int rank = 0; rank < t->world_size; rank++) {
        tr__shm_control *peer = t->peers[rank].control;
        if (atomic_load(&peer->waits_for) == t->rank + 1) tr__shm_ring(peer);
    }
}

/* ---- Who is late, in words --------------------------------------------------------------------------------------- */

/* A peer's memory is not trusted with our array bounds. */
static void read_call(const tr__call_words *words, const tr__shm_file file, uint64_t sequence, tr__signature *s)
{
    *s = tr__call_read(words, file, sizeof(tr__shm_file));
    s->sequence = sequence;
    if ((unsigned)s->kind >= TR_COLLECTIVE_COUNT) s->kind = TR_BARRIER;
    if ((unsigned)s->op >= TR_REDUCE_OP_COUNT) s->op = TR_SUM;
}

void tr__shm_signature(const tr__shm_slot *slot, uint64_t sequence, tr__signature *signature)
{
    uint64_t whole = atomic_load_explicit(&slot->whole, memory_order_relaxed);
    read_call(&slot->call, slot->file, whole ? whole : sequence, signature);
}

uint64_t tr__shm_entered(const tr__shm_control *control)
{
    uint64_t even = atomic_load(&control->slots[0].entered), odd = atomic_load(&control->slots[1].entered);
    return even > odd ? even : odd;
}

bool tr__shm_last_call(const tr__shm_control *control, tr__signature *signature, bool *finished)
{
    uint64_t latest = tr__shm_entered(control);
    if (latest == 0) return false;
    tr__shm_signature(&control->slots[latest & 1], latest, signature);
    *finished = atomic_load(&control->finished) >= latest;
    return true;
}

bool tr__shm_last_transfer(const tr__shm_control *control, tr__signature *signature, bool *finished)
{
    uint64_t latest = atomic_load(&control->transfers);
    const tr__shm_transfer *transfer = &control->transfer[latest & 1];
    if (latest == 0 || atomic_load(&transfer->entered) < tr__shm_entered(control)) return false;
    read_call(&transfer->call, transfer->file, 0, signature);
    *finished = atomic_load(&control->transferred) >= latest;
    return true;
}

static char *call_text(const tr__shm *t, const tr__shm_call *call, char text[TR__CALL_TEXT])
{
    if (!call->c) return strcpy(text, "joining");
    tr__signature signature;
    tr__shm_signature(tr__shm_slot_of(t, call, t->rank), call->sequence, &signature);
    return tr__signature_text(&signature, text);
}

char *tr__shm_state_text(const tr__shm_peer *peer, char text[TR__SHM_STATE_TEXT])
{
    tr__signature s;
    char call[TR__CALL_TEXT];
    int used;
    bool finished = false, called = tr__shm_last_call(peer->control, &s, &finished);
    if (called)
        used = snprintf(text, TR__SHM_STATE_TEXT, "rank %d %s %s", peer->rank, finished ? "has done" : "is in",
            tr__signature_text(&s, call));
    else
        used = snprintf(text, TR__SHM_STATE_TEXT, "rank %d has entered no collective yet", peer->rank);
    if (tr__shm_last_transfer(peer->control, &s, &finished))
        snprintf(text + used, TR__SHM_STATE_TEXT - (size_t)used, " and %s %s", finished ? "has done" : "is in",
            tr__signature_text(&s, call));
    return text;
}

enum { ELSEWHERE_TEXT = TR__CALL_TEXT + 256 };

typedef struct lateness {
    char ranks[64];                     /* "rank 2 (pid 77)", "ranks 1, 2, 5" */
    char state[TR__SHM_STATE_TEXT + ELSEWHERE_TEXT]; /* what the first of them is at, here and in another group */
} lateness;

/* What a rank counts of the messages between it and another. */
static const tr__shm_post_count *counts(const tr__shm *t, int rank, int other)
{
    return &t->peers[rank].link->page->counts[t->attachment->members[other]];
}

/* Has `from` sent messages to a rank whose monitor has not come to them? */
static bool has_unread(const tr__shm *t, int rank, int from)
{
    return (int)(atomic_load(&counts(t, from, rank)->sent) - atomic_load(&counts(t, rank, from)->handled)) > 0;
}

/* A rank's word about another (+ 1), which is not trusted with our array bounds; 0: none. */
static int said(const tr__shm *t, const atomic_int *word)
{
    int on = atomic_load(word);
    return on > 0 && on <= t->world_size ? on : 0;
}

/* The rank (+ 1) that another one waits for; 0: none. */
static int stuck_on(const tr__shm *t, int rank)
{
    tr__shm_control *control = t->peers[rank].control;
    const tr__shm_stuck *s = &control->stuck;
    int collective = said(t, &s->collective), message = said(t, &s->message), on = said(t, &s->buffer);
    uint32_t word = atomic_load(&s->word);
    if (collective && word <= TR__SHM_DONE)
        return atomic_load(counter(t->peers[collective - 1].control, word)) < atomic_load(&s->value) ? collective : 0;
    if (!on && atomic_load(&s->mail) == atomic_load(&control->mail)) on = message;
    return on && !has_unread(t, rank, on - 1) ? on : 0; /* a channel may be there, or a buffer, and it does not know */
}

int tr__shm_culprit(const tr__shm *t, int rank)
{
    for (int hops = 0; hops < t->world_size; hops++) {
        int stuck = stuck_on(t, rank);
        if (!stuck || stuck == t->rank + 1) break;
        rank = stuck - 1;
    }
    return rank;
}

static bool is_late(const tr__shm *t, tr__shm_word word, uint64_t value, int only, int rank)
{
    if (rank == t->rank || (only >= 0 && rank != only)) return false;
    return atomic_load(counter(t->peers[rank].control, word)) < value;
}

/* Does a rank of a group wait for another one in a collective? Appends in which, and for whom. */
static bool describe_wait(const tr__shm *t, int rank, int self, char *text, size_t bytes)
{
    for (int i = 0; i < t->world_size; i++)
        if (!t->peers[i].control) return false; /* they are about to meet */
    const tr__shm_control *control = t->peers[rank].control;
    int awaited = stuck_on(t, rank) - 1;
    bool finished;
    tr__signature s;
    char call[TR__CALL_TEXT];
    if (awaited < 0 || !atomic_load(&control->stuck.collective) || !tr__shm_last_call(control, &s, &finished)) return false;
    snprintf(text, bytes, ", and %s in %s of group '%s' for rank %d%s", tr__failure_there(t->failure) ? "has waited" : "waits",
        tr__signature_text(&s, call), t->group, t->peers[awaited].rank, t->attachment->members[awaited] != self ? ""
        : ": ranks must make their calls in groups that they share in one order");
    return true;
}

/* What a rank that is late here waits for in another group that we share with it: maybe for us. */
static void describe_elsewhere(const tr__shm *t, int rank, char *text, size_t bytes)
{
    tr__endpoint *e = t->endpoint;
    TR__LOCKED(&e->hearing); /* groups come and go */
    for (const tr__attachment *a = e->attachments; a; a = a->next) {
        int place = a->calls && a != t->attachment ? a->places[t->attachment->members[rank]] : -1;
        if (place >= 0 && describe_wait(a->user, place, e->rank, text, bytes)) return;
    }
}

/* Of those that are late, the ones that wait for nobody else. */
static void describe(const tr__shm *t, tr__shm_word word, uint64_t value, int only, lateness *l)
{
    int count = 0, first = -1, late = only >= 0 ? only : (t->rank + 1) % t->world_size; /* it may have just come */
    size_t used = 0;
    for (int rank = 0; rank < t->world_size; rank++) {
        if (!is_late(t, word, value, only, rank)) continue;
        late = rank;
        if (stuck_on(t, rank)) continue;
        if (count++ == 0) first = rank;
        if (used + 24 < sizeof l->ranks)
            used +=
                (size_t)snprintf(l->ranks + used, sizeof l->ranks - used, "%s%d", count > 1 ? ", " : "ranks ",
                    t->peers[rank].rank);
    }
    if (first < 0) first = tr__shm_culprit(t, late);
    const tr__shm_peer *peer = &t->peers[first];
    if (count <= 1) snprintf(l->ranks, sizeof l->ranks, "rank %d (pid %ld)", peer->rank, peer->pid);
    if (count > 1 && used + 24 >= sizeof l->ranks) snprintf(l->ranks + used, sizeof l->ranks - used, " of %d", count);
    size_t length = strlen(tr__shm_state_text(peer, l->state));
    describe_elsewhere(t, first, l->state + length, sizeof l->state - length);
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

typedef struct survey {
    int late; /* a rank that has not reached the value; -1: all have */
    int left; /* one that never will; -1: none */
} survey;

/* Of several late ranks the one before us in the circle is picked: where ranks take turns on a core it comes last,
 * so one sleep is often enough. */
static survey look(const tr__shm *t, tr__shm_word word, uint64_t value, int only)
{
    survey s = {-1, -1};
    for (int i = 1; i < t->world_size; i++) {
        int rank = (t->rank + i) % t->world_size;
        /* Left is read before the counter: a peer counts first and leaves then. */
        bool left = atomic_load(&t->peers[rank].left);
        if (!is_late(t, word, value, only, rank)) continue;
        s.late = rank;
        if (left) s.left = rank;
    }
    return s;
}

static tr_status gone(tr__shm *t, tr__shm_call *call, int rank)
{
    char here[TR__CALL_TEXT], text[TR__CALL_TEXT] = "joining";
    tr__signature s;
    bool finished;
    if (tr__shm_last_call(t->peers[rank].control, &s, &finished)) tr__signature_text(&s, text);
    return tr__fail(TR_PEER, "rank %d (pid %ld) left group '%s' after %s, but %s needs it", t->peers[rank].rank,
        t->peers[rank].pid, t->group, text, call_text(t, call, here));
}

/* Peers whose time is up, too, give up before they take back whom they wait for, and know better who it was: what is seen
 * here counts only while nobody has. */
static tr_status timed_out(tr__shm *t, tr__shm_call *call, tr__shm_word word, uint64_t value, int only)
{
    lateness l;
    char here[TR__CALL_TEXT];
    describe(t, word, value, only, &l);
    TR__TRY(tr__shm_check_peers(t, call->timeout_ms));
    return tr__fail(TR_TIMEOUT, "%s: rank %d waited %g s for %s; %s", call_text(t, call, here),
        t->peers[t->rank].rank, call->timeout_ms / 1000.0, l.ranks, l.state);
}

static void report(tr__shm *t, tr__shm_call *call, tr__shm_word word, uint64_t value, int only)
{
    lateness l;
    char here[TR__CALL_TEXT];
    call->reported = true;
    describe(t, word, value, only, &l);
    tr__log(TR_LOG_WARN, "group '%s': rank %d has waited %g s in %s for %s; %s", t->group,
        t->peers[t->rank].rank, t->report_ms / 1000.0, call_text(t, call, here), l.ranks, l.state);
}

/* Of the ranks that are late, the one to wait for: one that waits for nobody else, if there is one, and of several the
 * last in the circle, as above; -1: all have come by now. */
static int pick_late(const tr__shm *t, tr__shm_word word, uint64_t value, int only)
{
    int late = -1, free_one = -1;
    for (int i = 1; i < t->world_size; i++) {
        int rank = (t->rank + i) % t->world_size;
        if (!is_late(t, word, value, only, rank)) continue;
        late = rank;
        if (!stuck_on(t, rank)) free_one = rank;
    }
    return free_one >= 0 ? free_one : late;
}

/* For who looks at this rank from outside, and for the peers. Returns the rank that they are told, to be slept for: who
 * sleeps for another stays asleep when that one comes, and seems to stand still. */
static int record_waits(const tr__shm *t, tr__shm_word word, uint64_t value, int only)
{
    int late[TR__RECORD_WAITS], count = 0, stuck = pick_late(t, word, value, only);
    for (int rank = 0; rank < t->world_size && count < TR__RECORD_WAITS; rank++)
        if (is_late(t, word, value, only, rank)) late[count++] = t->peers[rank].rank;
    tr__recorder_waits_for(t->recorder, late, count);
    tr__shm_stuck *mine = &t->control->stuck;
    atomic_store(&mine->word, word);
    atomic_store(&mine->value, value);
    atomic_store(&mine->collective, stuck + 1); /* and stays when it fails: the others are about to, as well */
    return stuck;
}

static void sleep_for(tr__shm *t, int rank, tr__shm_word word, uint64_t value, int64_t ns)
{
    unsigned bell = atomic_load(&t->control->bell);
    atomic_store(&t->control->waits_for, rank + 1);
    bool late = atomic_load(counter(t->peers[rank].control, word)) < value;
    if (late && !tr__failure_there(t->failure) && !atomic_load(&t->peers[rank].left))
        tr__futex_wait(&t->control->bell, bell, ns);
    atomic_store(&t->control->waits_for, 0);
}

/* The group is broken. But whoever is in the same call over several hosts, and has got further than the failure, may have
 * all that it needs; it comes to an end soon, one way or the other. */
static bool may_still_come(const tr__shm *t, const tr__shm_call *call, int rank, int64_t *since)
{
    enum { PATIENCE_NS = 500000000 };
    int64_t now = tr__now_ns();
    if (!*since) *since = now;
    if (now - *since > PATIENCE_NS) return false;
    const tr__shm_peer *peer = &t->peers[rank];
    if (!call->whole || atomic_load(&peer->gone) || atomic_load(&peer->left)) return false;
    uint64_t latest = tr__shm_entered(peer->control), whole = call->whole->sequence;
    return atomic_load(&peer->control->slots[latest & 1].whole) == whole && atomic_load(&peer->control->failed) != whole;
}

static tr_status await_long(tr__shm *t, tr__shm_call *call, tr__shm_word word, uint64_t value, int only)
{
    int64_t broken_since = 0, yields_end = tr__now_ns() + YIELDS_NS;
    for (int turn = 0;; turn++) {
        /* Failure and clock are read before the peers' state: only a peer that is still late after that counts as late. */
        bool broken = tr__failure_there(t->failure);
        int64_t now = tr__now_ns();
        survey s = look(t, word, value, only);
        if (s.late < 0) {
            tr__recorder_waits_for(t->recorder, NULL, 0);
            atomic_store(&t->control->stuck.collective, 0);
            if (t->tcp) tr__tcp_go_on(t->tcp, &t->tcp->local_wait);
            return TR_OK;
        }
        if (broken && !may_still_come(t, call, s.late, &broken_since)) return tr__failure_tell(t->failure);
        if (s.left >= 0) return gone(t, call, s.left);
        if (turn < YIELDS && now < yields_end) {
            sched_yield();
            continue;
        }
        if (!call->began) call->began = now;
        int64_t rest = call->began + (int64_t)call->timeout_ms * 1000000 - now;
        /* Other hosts may wait for us, and who is late here for another host. */
        if (t->tcp) TR__TRY(tr__tcp_local_wait(t->tcp, t->peers[s.late].rank, call->began, now, call->timeout_ms));
        if (call->meeting) tr__rendezvous_waits_for(call->meeting, call->records, t->peers[s.late].rank);
        if (rest <= 0) return timed_out(t, call, word, value, only);
        if (!call->reported && now - call->began > (int64_t)t->report_ms * 1000000) report(t, call, word, value, only);
        int awaited = record_waits(t, word, value, only);
        if (awaited < 0) continue;
        if (broken) sched_yield(); /* nobody rings any more */
        int64_t most = (int64_t)SLEEP_MS * 1000000;
        sleep_for(t, awaited, word, value, rest < most ? rest : most);
    }
}

tr_status tr__shm_await(tr__shm *t, tr__shm_call *call, tr__shm_word word, uint64_t value, int only)
{
    int spins = 0;
    for (int rank = 0; rank < t->world_size; rank++) {
        if (rank == t->rank || (only >= 0 && rank != only)) continue;
        _Atomic uint64_t *at = counter(t->peers[rank].control, word);
        while (atomic_load_explicit(at, memory_order_acquire) < value) {
            if (spins++ < t->spins) {
                tr__relax();
                continue;
            }
            /* In vain: next time less of it. */
            t->spins = t->crowded ? 0 : t->spins / 2 > SPINS_LEAST ? t->spins / 2 : SPINS_LEAST;
            return await_long(t, call, word, value, only);
        }
    }
    if (spins && t->spins < SPINS_MOST) t->spins += 1 + t->spins / 8;
    return TR_OK;
}
