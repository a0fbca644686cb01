#include "comm/backend/polling_backend.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "comm/collective.h"
#include "net/store/store.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    SPIN_NS = 20000,       /* the answer is often a few microseconds away */
    YIELD_NS = 1000000,    /* then others may have the core */
    SLEEP_PART = 64,       /* then it sleeps for this part of the time that it has waited, */
    SLEEP_MOST_NS = 500000,
    LOOK_NS = 1000000,     /* between two looks at the deadlines */
};

/* ---- How a group breaks ------------------------------------------------------------------------------------------ */

/* With this thread's latest failure, unless it is broken already. */
void tr__polled_give_up(void *state)
{
    tr__polled *p = state;
    tr__error *why = tr__error_take(), *none = NULL;
    if (!atomic_compare_exchange_strong(&p->broken, &none, why)) tr__error_unref(why);
}

static bool is_broken(tr__polled *p)
{
    return atomic_load(&p->broken) != NULL;
}

static tr_status check_sound(tr__polled *p)
{
    const tr__error *why = atomic_load(&p->broken);
    if (!why) return TR_OK;
    char group[96];
    size_t length = (size_t)snprintf(group, sizeof group, "group '%s': ", p->member.group);
    bool named = strncmp(why->message, group, length) == 0;
    return tr__fail(why->status, "group '%s' is broken: %s", p->member.group, why->message + (named ? length : 0));
}

/* Says which call it was that failed. */
static tr_status explain(tr__polled *p, const tr_collective *c, uint64_t sequence, tr_status status)
{
    char text[TR__CALL_TEXT];
    tr__fail_context(status, "group '%s': %s", p->member.group, tr__collective_text(c, p->member.world_size, sequence, text));
    if (status != TR_UNSUPPORTED) tr__polled_give_up(p);
    return status;
}

/* ---- Who is late ------------------------------------------------------------------------------------------------- */

enum { NAMED = 6, AT_ONCE = 64, NOTE_MS = 1000 };

void tr__polled_begin_to_wait(tr__polled *p, uint64_t sequence, int timeout_ms)
{
    tr__late *l = &p->late;
    int64_t half = timeout_ms / 2 < p->member.report_ms ? timeout_ms / 2 : p->member.report_ms;
    *l = (tr__late){.sequence = sequence, .begin = tr__now_ns()};
    l->deadline = l->begin + (int64_t)timeout_ms * 1000000;
    l->note = l->begin + half * 1000000;
    l->look = l->begin + (int64_t)timeout_ms * 875000; /* before the first to time out can take the store along */
}

/* The store gets little time: the rank that serves it may be the one that is late. */
static void note_wait(tr__polled *p)
{
    tr__late *l = &p->late;
    char key[TR__RENDEZVOUS_KEY], number[24];
    tr__change note = {.kind = TR__CHANGE_SET, .value = number};
    note.bytes = (size_t)snprintf(number, sizeof number, "%" PRIu64, l->sequence);
    tr__rendezvous_key(&p->meeting, "waits", p->member.rank, key);
    l->silent = tr__store_change(p->member.store, key, &note, NOTE_MS, NULL, NULL) != TR_OK;
    tr__log(TR_LOG_WARN, "group '%s': rank %d has waited %.3g s in collective #%" PRIu64, p->member.group,
        p->member.rank, (double)(tr__now_ns() - l->begin) / 1e9, l->sequence);
}

/* Of those that have not noted that they wait, too. Our own note shows whether the store answers. */
static void find_late(tr__polled *p)
{
    tr__late *l = &p->late;
    int late[NAMED], count = 0, own = p->member.rank;
    for (int first = 0; first < p->member.world_size && !l->silent; first += AT_ONCE) {
        char texts[AT_ONCE + 1][TR__RENDEZVOUS_KEY];
        const char *keys[AT_ONCE + 1];
        tr__store_value values[AT_ONCE + 1] = {0};
        int asked = p->member.world_size - first < AT_ONCE ? p->member.world_size - first : AT_ONCE;
        for (int i = 0; i <= asked; i++) keys[i] = tr__rendezvous_key(&p->meeting, "waits", i < asked ? first + i : own, texts[i]);
        tr_status status = tr__store_gather(p->member.store, keys, asked + 1, 0, values);
        l->silent = (status != TR_OK && status != TR_TIMEOUT) || !values[asked].data;
        for (int i = 0; i < asked && !l->silent; i++) {
            bool waits = values[i].data && strtoull(values[i].data, NULL, 10) >= l->sequence;
            if (first + i != own && !waits && count++ < NAMED) late[count - 1] = first + i;
        }
        tr__store_values_free(values, asked + 1);
    }
    if (count && !l->silent) tr__ranks_text(late, count < NAMED ? count : NAMED, count, l->names);
}

/* TR_TIMEOUT after the deadline, when the caller has looked once more since, for this process may have been stopped: "rank 0 waited
 * 600 s for rank 2". */
static tr_status check_late(tr__polled *p, int64_t now)
{
    tr__late *l = &p->late;
    bool expired = now > l->deadline;
    if (expired && l->expired)
        return tr__fail(TR_TIMEOUT, "rank %d waited %.3g s for %s", p->member.rank, (double)(now - l->begin) / 1e9,
            l->names[0] ? l->names : l->silent ? "the transfer, and the store does not answer, where ranks say that they wait"
                                               : "the transfer, and no rank is known to be late");
    l->expired = expired;
    if (!p->member.store) return TR_OK;
    if (!l->noted && now > l->note) {
        l->noted = true;
        note_wait(p);
    }
    if (!l->looked && now > l->look) {
        l->looked = true;
        find_late(p);
    }
    return TR_OK;
}

/* ---- Collectives ------------------------------------------------------------------------------------------------- */

static void rest(int64_t waited)
{
    if (waited < SPIN_NS) return;
    if (waited < YIELD_NS) {
        sched_yield();
        return;
    }
    int64_t nap = waited / SLEEP_PART;
    nanosleep(&(struct timespec){.tv_nsec = nap < SLEEP_MOST_NS ? nap : SLEEP_MOST_NS}, NULL);
}

tr_status tr__polled_rest(tr__polled *p, int64_t began)
{
    int64_t now = tr__now_ns();
    TR__TRY(tr__fail_stored(atomic_load(&p->broken)));
    TR__TRY(check_late(p, now));
    rest(now - began);
    return TR_OK;
}

tr_status tr__polled_run(void *state, const tr_collective *c, uint64_t sequence)
{
    tr__polled *p = state;
    TR__TRY(check_sound(p));
    if (p->member.world_size == 1) {
        tr__collective_alone(c);
        return TR_OK;
    }
    tr__polled_begin_to_wait(p, sequence, c->timeout_ms);
    tr_status status = p->type->run(p, c);
    return status == TR_OK ? TR_OK : explain(p, c, sequence, status);
}

/* ---- Sends and receives; all under the lock ---------------------------------------------------------------------- */

static void finish(tr__polled *p, tr__transfer *t, tr_status status)
{
    *t->at = t->next;
    if (t->next)
        t->next->at = t->at;
    else
        p->last = t->at;
    p->helped -= t->helped;
    p->moved = tr__now_ns();
    tr__error *why = status == TR_OK ? NULL : tr__error_take();
    p->type->drop(p, t);
    tr__error_restore(why);
    tr__work_finish(t->work, status);
    tr__unref(t->work);
    free(t);
}

void tr__polled_end(tr__polled *p, tr__transfer *t, tr_status status)
{
    finish(p, t, status == TR_OK ? TR_OK : explain(p, &t->work->collective, 0, status));
}

/* With the group's failure, and which transfer it met. */
static void end_all(tr__polled *p)
{
    for (tr__transfer *t; (t = p->first);) {
        char text[TR__CALL_TEXT];
        tr_status status = tr__fail_stored(atomic_load(&p->broken));
        finish(p, t, tr__fail_context(status, "%s", tr__collective_text(&t->work->collective, p->member.world_size, 0, text)));
    }
}

static void report(const tr__polled *p, tr__transfer *t, int64_t now)
{
    const tr_collective *c = &t->work->collective;
    char text[TR__CALL_TEXT];
    t->reported = true;
    tr__log(TR_LOG_WARN, "group '%s': rank %d has waited %.3g s in %s for rank %d", p->member.group, p->member.rank,
        (double)(now - t->began) / 1e9, tr__collective_text(c, p->member.world_size, 0, text), c->peer);
}

static void look_at_deadlines(tr__polled *p)
{
    int64_t now = tr__now_ns();
    if (now < p->look) return;
    p->look = now + LOOK_NS;
    for (tr__transfer *t = p->first; t; t = t->next) {
        bool expired = now >= t->deadline;
        if (expired && t->expired) {
            tr__fail(TR_TIMEOUT, "rank %d waited %.3g s for rank %d", p->member.rank, (double)(now - t->began) / 1e9,
                t->work->collective.peer);
            tr__polled_end(p, t, TR_TIMEOUT);
            return; /* which has broken the group */
        }
        t->expired = expired;
        if (!t->reported && now - t->began > (int64_t)p->member.report_ms * 1000000) report(p, t, now);
    }
}

static void work_once(tr__polled *p)
{
    if (!p->first) return;
    if (!is_broken(p) && p->type->advance(p) != TR_OK) tr__polled_give_up(p);
    if (!is_broken(p)) look_at_deadlines(p);
    if (is_broken(p)) end_all(p);
}

/* ---- The thread, for those that nobody waits for ----------------------------------------------------------------- */

static void *help(void *arg)
{
    tr__polled *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->stopping) {
        if (!p->helped) {
            pthread_cond_wait(&p->wanted, &p->lock);
            continue;
        }
        work_once(p);
        int64_t idle = tr__now_ns() - p->moved;
        pthread_mutex_unlock(&p->lock);
        rest(idle);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static tr_status need_thread(tr__polled *p)
{
    if (p->has_thread) return TR_OK;
    int error = tr__thread_start(&p->thread, help, p);
    if (error)
        return tr__fail_errno(TR_NO_MEMORY, error, "group '%s': no thread for sends and receives", p->member.group);
    p->has_thread = true;
    return TR_OK;
}

/* ---- The callers ------------------------------------------------------------------------------------------------- */

static tr_status start(tr__polled *p, tr_work *work, bool driven)
{
    TR__TRY(check_sound(p));
    if (!driven) TR__TRY(need_thread(p));
    tr__transfer *t = calloc(1, p->type->transfer_bytes);
    if (!t) return tr__fail(TR_NO_MEMORY, "group '%s': no memory for a message", p->member.group);
    t->work = tr__ref(work);
    t->helped = !driven;
    t->began = tr__now_ns();
    t->deadline = t->began + (int64_t)work->collective.timeout_ms * 1000000;
    t->at = p->last;
    *p->last = t;
    p->last = &t->next;
    p->helped += t->helped;
    p->moved = t->began;
    tr_status status = p->type->begin(p, t);
    if (status != TR_OK) tr__polled_end(p, t, status);
    work_once(p);
    if (p->helped) pthread_cond_signal(&p->wanted);
    return TR_OK;
}

void tr__polled_start(void *state, tr_work *work, bool driven)
{
    tr__polled *p = state;
    TR__LOCKED(&p->lock);
    tr_status status = start(p, work, driven);
    if (status != TR_OK) tr__work_finish(work, status);
}

void tr__polled_drive(void *state, const tr_work *work)
{
    tr__polled *p = state;
    for (int64_t began = tr__now_ns(); work ? !tr_work_done((tr_work *)work) : tr__polled_pending(p); rest(tr__now_ns() - began)) {
        TR__LOCKED(&p->lock);
        work_once(p);
    }
}

bool tr__polled_pending(void *state)
{
    tr__polled *p = state;
    TR__LOCKED(&p->lock);
    return p->first;
}

/* ---- Joining and leaving ----------------------------------------------------------------------------------------- */

tr_status tr__polled_meet(tr__polled *p, const char *address, tr__endpoint_record **records)
{
    tr__endpoint_record mine;
    *records = malloc((size_t)p->member.world_size * sizeof **records);
    if (!*records)
        return tr__fail(TR_NO_MEMORY, "group '%s': no memory for %d ranks", p->member.group, p->member.world_size);
    tr__endpoint_record_here(&p->member, &mine);
    strncpy(mine.address, address, sizeof mine.address - 1);
    strcpy(mine.tcp_address, "-");
    TR__TRY(tr__random_text(mine.cookie, sizeof mine.cookie));
    TR__TRY(tr__random_text(mine.tcp_cookie, sizeof mine.tcp_cookie));
    TR__TRY(tr__rendezvous_register(&p->meeting, &p->member, &mine));
    for (;;) {
        TR__TRY(tr__rendezvous_publish(&p->meeting, &mine));
        tr_status status = tr__rendezvous_read_all(&p->meeting, *records);
        if (status == TR_OK) return tr__rendezvous_use(&p->meeting); /* the library knows no step before its last */
        if (!p->meeting.used) return status;
        TR__TRY(tr__rendezvous_go_on(&p->meeting, &mine));
    }
}

/* The thread's latest failure stays what it is. */
static void close_state(tr__polled *p)
{
    TR__KEEP_ERROR;
    if (p->meeting.member) tr__rendezvous_withdraw(&p->meeting);
    p->type->close(p);
    tr__error_unref(atomic_load(&p->broken));
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wanted);
    free(p);
}

tr_status tr__polled_join(const tr__member *member, void **state)
{
    const tr__polled_type *type = member->backend->polled;
    tr__polled *p = calloc(1, type->state_bytes);
    if (!p) return tr__fail(TR_NO_MEMORY, "group '%s': no memory", member->group);
    p->type = type;
    p->member = *member;
    p->last = &p->first;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wanted, NULL);
    tr_status status = type->join(p);
    if (status == TR_OK) {
        *state = p;
    } else {
        tr__polled_give_up(p);
        close_state(p);
    }
    return status;
}

void tr__polled_leave(void *state)
{
    tr__polled *p = state;
    tr__polled_drive(p, NULL);
    pthread_mutex_lock(&p->lock);
    p->stopping = true;
    pthread_cond_signal(&p->wanted);
    pthread_mutex_unlock(&p->lock);
    if (p->has_thread) pthread_join(p->thread, NULL);
    close_state(p);
}
