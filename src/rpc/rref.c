/* References: objects over the bookkeeping of rref_state.h. A value of ours is a future of our own, done when it is made. */
#include "rpc/agent.h"

#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- Bookkeeping ------------------------------------------------------------------------------------------------- */

static void send_refer(void *user, int to, const tr__refer *message)
{
    tr_rpc *rpc = user;
    rpc->links[to].refers_sent++;
    tr__rpc_tell(rpc, to, (tr__rpc_frame){.type = TR__RPC_REFER}, message, sizeof *message, NULL);
}

static void value_freed(void *user, void *value)
{
    tr_rpc *rpc = user;
    tr_future *f = value;
    f->next = rpc->freed;
    rpc->freed = f;
}

/* Its entry still has it, and another thread may free that before we have failed the value. */
static void value_lost(void *user, void *value)
{
    tr_rpc *rpc = user;
    tr_future *f = tr__ref(value);
    f->lost = true;
    f->next_lost = rpc->lost;
    rpc->lost = f;
}

/* A value that has not been made never will be, and who waits for it hears why. */
static void fail_value(tr_rpc *rpc, tr_future *f, bool stopped)
{
    TR__KEEP_ERROR;
    if (stopped)
        tr__fail_context(tr__rpc_has_stopped(rpc), "the value has not been made");
    else
        tr__fail(TR_NOT_FOUND, "the value will not be made: the worker that asked for it is gone, or could not ask");
    tr__future_fail(f, tr__error_take());
}

static tr_rpc *lock(tr_rpc *rpc)
{
    pthread_mutex_lock(&rpc->refs_lock);
    return rpc;
}

/* Lets go of the lock, and of values that nobody refers to any more, or that are lost. */
static void unlock(tr_rpc **held)
{
    tr_rpc *rpc = *held;
    tr_future *freed = rpc->freed, *lost = rpc->lost;
    bool stopped = !rpc->refs;
    rpc->freed = rpc->lost = NULL;
    pthread_mutex_unlock(&rpc->refs_lock);
    for (tr_future *f = lost, *next; f; f = next) {
        next = f->next_lost;
        fail_value(rpc, f, false);
        tr__unref(f);
    }
    TR__FOR_EACH(f, freed) {
        if (!f->lost && !tr_future_done(f)) fail_value(rpc, f, stopped);
        tr__unref(f);
    }
}

/* Holds the table from here to the end of the block. rpc->refs is NULL once the agent has stopped, beside a call of another thread
 * that began before. */
#define HELD(rpc) __attribute__((cleanup(unlock), unused)) tr_rpc *held = lock(rpc)

static tr_status used_late(void)
{
    return tr__fail(TR_STATE, "rpc: a reference is used after tr_rpc_stop()");
}

static tr_status fetch(void *unused, int from, const tr_value *arguments, int count, tr_value *result)
{
    (void)unused;
    (void)from;
    if (count != 1) return tr__rpc_damaged("a value is fetched without a reference");
    *result = arguments[0];
    return TR_OK;
}

tr_status tr__refs_start(tr_rpc *rpc)
{
    tr__rref_events events = {.user = rpc, .send = send_refer, .freed = value_freed, .lost = value_lost};
    rpc->refs = tr__rref_table_new(rpc->rank, rpc->world, &events);
    if (!rpc->refs) return tr__fail(TR_NO_MEMORY, "rpc: no memory for references");
    return tr__rpc_handle(rpc, TR__RPC_FETCH, fetch, NULL, false);
}

void tr__refs_free(tr_rpc *rpc)
{
    HELD(rpc);
    tr__rref_table *refs = rpc->refs;
    rpc->refs = NULL;
    tr__rref_table_free(refs);
}

void tr__refs_heard(tr_rpc *rpc, const tr__rpc_inbound *m)
{
    tr__refer message;
    if (m->frame.body != sizeof message) return;
    memcpy(&message, m->body, sizeof message);
    lock(rpc);
    if (rpc->refs) tr__rref_message(rpc->refs, m->from, &message);
    unlock(&rpc);
    atomic_fetch_add(&rpc->links[m->from].refers_heard, 1); /* with all that it has caused */
    atomic_store(&rpc->moved, tr__now_ns());
}

void tr__refs_gone(tr_rpc *rpc, int worker)
{
    HELD(rpc);
    tr__rref_gone(rpc->refs, worker);
}

uint64_t tr__refs_sent(tr_rpc *rpc, uint64_t *unheard)
{
    uint64_t sent = 0;
    *unheard = 0;
    HELD(rpc);
    for (int i = 0; i < rpc->world; i++) {
        tr__rpc_link *link = &rpc->links[i];
        sent += link->refers_sent;
        if (!atomic_load(&link->gone)) *unheard += link->refers_sent - atomic_load(&link->refers_heard);
    }
    return sent;
}

void tr__refs_report(tr_rpc *rpc)
{
    enum { NAMED = 8 };
    tr__rref_number ids[NAMED];
    char list[NAMED * 32] = "";
    size_t used = 0;
    lock(rpc);
    int count = tr__rref_held(rpc->refs, ids, NAMED);
    unlock(&rpc);
    for (int i = 0; i < count && i < NAMED; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%d:%" PRIu64, i ? ", " : "", ids[i].maker,
            ids[i].number & 0xffffffffff);
    if (count == 0) return;
    tr__log(TR_LOG_WARN, "rpc: \"%s\" stops while other workers still hold references to %d value%s of its own, which "
        "end with it: drop those before tr_rpc_stop() (maker:number %s%s)", rpc->links[rpc->rank].name, count,
        count == 1 ? "" : "s", list, count > NAMED ? ", …" : "");
}

/* ---- Objects ----------------------------------------------------------------------------------------------------- */

static void destroy(void *self)
{
    tr_rref *ref = self;
    if (ref->entry) {
        HELD(ref->rpc);
        if (ref->rpc->refs) tr__rref_release(ref->rpc->refs, ref->entry);
    }
    tr__unref(ref->rpc);
}

const tr__type tr__rref_type = {.name = "rref", .size = sizeof(tr_rref), .destroy = destroy};

/* Under the lock: takes the handle over; NULL: there is none. */
static tr_rref *new_rref(tr_rpc *rpc, tr__rref_entry *entry, const char *why)
{
    if (!rpc->refs) {
        (void)!used_late();
        return tr__object_failed(&tr__rref_type);
    }
    if (!entry) return tr__object_fail(&tr__rref_type, TR_NO_MEMORY, "rpc: %s", why);
    tr_rref *ref = tr__object_new(&tr__rref_type);
    if (tr__error_of(ref)) {
        tr__rref_release(rpc->refs, entry);
        return ref;
    }
    ref->rpc = tr__ref(rpc);
    ref->entry = entry;
    ref->id = tr__rref_entry_id(entry);
    ref->owner = tr__rref_entry_owner(entry);
    return ref;
}

static tr_status check_open(tr_rpc *rpc)
{
    TR__TRY(tr__rpc_check(rpc));
    HELD(rpc);
    return rpc->refs ? TR_OK : used_late();
}

tr_status tr__refs_check(const tr_rref *ref)
{
    if (!ref) return tr__fail(TR_INVALID, "rpc: a reference is needed, not NULL");
    TR__TRY(tr_status_of(ref));
    return check_open(ref->rpc);
}

int tr_rref_owner(const tr_rref *ref)
{
    return ref && !tr__error_of(ref) ? ref->owner : -1;
}

/* Under the lock: the future that stands for a value of ours. */
static tr_future *slot_of(tr_rpc *rpc, tr__rref_entry *entry)
{
    tr_future *slot = tr__rref_value(entry);
    if (slot) return slot;
    slot = tr__future_new_loose(rpc);
    if (tr__error_of(slot)) return NULL;
    tr__rref_set_value(entry, slot);
    if (tr__rref_lost(entry)) fail_value(rpc, slot, false);
    return slot;
}

/* The same, with a reference of the caller's: tr_rpc_stop() may free the value while that waits for it. */
static tr_status hold_slot(const tr_rref *ref, tr_future **slot)
{
    HELD(ref->rpc);
    *slot = ref->rpc->refs ? tr__ref(slot_of(ref->rpc, ref->entry)) : NULL;
    if (!ref->rpc->refs) return used_late();
    return *slot ? TR_OK : tr__fail(TR_NO_MEMORY, "rpc: no memory for a reference");
}

/* Ends a future with a copy of a value, or (NULL) this thread's latest failure, and gives its reference up. */
static void end_with(tr_future *f, const tr_value *value)
{
    tr_value kept;
    tr__rpc_inbound *texts;
    if (value && tr__rpc_value_keep(value, &kept, &texts) == TR_OK)
        tr__future_finish(f, &kept, texts);
    else
        tr__future_fail(f, tr__error_take());
    tr__unref(f);
}

tr_rref *tr_rref_new(tr_rpc *rpc, tr_value value)
{
    if (check_open(rpc) != TR_OK) return tr__object_failed(&tr__rref_type);
    lock(rpc);
    tr__rref_entry *entry = rpc->refs ? tr__rref_own(rpc->refs) : NULL;
    bool there = entry && slot_of(rpc, entry);
    tr_rref *ref = new_rref(rpc, entry, "no memory for a reference");
    unlock(&rpc);
    if (tr__error_of(ref)) return ref;
    if (!there) return tr__object_fail(&tr__rref_type, TR_NO_MEMORY, "rpc: no memory for a reference");
    tr__refs_made(ref, &value);
    return ref;
}

/* ---- Values that others make ------------------------------------------------------------------------------------- */

tr_rref *tr__refs_remote(tr_rpc *rpc, int owner, tr__rref_token *token)
{
    HELD(rpc);
    return new_rref(rpc, rpc->refs ? tr__rref_remote(rpc->refs, owner, token) : NULL, "no memory for a reference");
}

void tr__refs_remote_done(tr_rpc *rpc, tr__rref_entry *entry, bool made)
{
    HELD(rpc);
    if (rpc->refs) tr__rref_remote_done(rpc->refs, entry, made);
}

void tr__refs_remote_late(tr_rpc *rpc, int owner, tr__rref_number value, bool made)
{
    HELD(rpc);
    tr__rref_entry *entry = rpc->refs ? tr__rref_find(rpc->refs, value) : NULL;
    if (entry && tr__rref_entry_owner(entry) == owner) tr__rref_remote_done(rpc->refs, entry, made);
}

tr_rref *tr__refs_making(tr_rpc *rpc, const tr__rref_token *token, const char *function)
{
    HELD(rpc);
    tr__rref_entry *entry = rpc->refs ? tr__rref_made(rpc->refs, token) : NULL;
    tr_future *slot = entry ? slot_of(rpc, entry) : NULL;
    if (slot) snprintf(slot->function, sizeof slot->function, "%s", function + (function[0] == '.'));
    return new_rref(rpc, entry, "a value that was to be made here is given up already");
}

void tr__refs_made(tr_rref *ref, const tr_value *value)
{
    tr_future *slot;
    if (hold_slot(ref, &slot) == TR_OK) end_with(slot, value);
}

/* ---- Their values ------------------------------------------------------------------------------------------------ */

tr_status tr__refs_value(tr_rpc *rpc, tr__rref_number id, tr_value *value)
{
    lock(rpc);
    tr__rref_entry *entry = rpc->refs ? tr__rref_await(rpc->refs, id) : NULL;
    tr_future *slot = entry ? slot_of(rpc, entry) : NULL;
    tr_rref *holds = entry ? new_rref(rpc, entry, "no memory for a reference") : NULL;
    unlock(&rpc);
    if (!entry) return tr__fail(TR_NOT_FOUND, "the value is gone: who handed the reference over died meanwhile");
    TR__TRY(tr_status_of(holds));
    if (!slot) return tr__fail(TR_NO_MEMORY, "no memory for a reference");
    /* Who asks waits no longer either; and what makes the value may have been lost with a worker. */
    int timeout_ms = rpc->timeout_ms;
    if (!tr__future_await(slot, tr__now_ns() + (int64_t)timeout_ms * 1000000)) {
        char function[sizeof slot->function];
        lock(rpc);
        snprintf(function, sizeof function, "%s", slot->function);
        unlock(&rpc);
        if (function[0]) return tr__fail(TR_TIMEOUT, "%s has not made the value within %g s", function, timeout_ms / 1000.0);
        return tr__fail(TR_TIMEOUT, "the request to make the value has not come within %g s", timeout_ms / 1000.0);
    }
    TR__TRY(tr_future_wait(slot));
    *value = slot->value;
    return TR_OK;
}

tr_status tr_rref_local(tr_rref *ref, tr_value *out)
{
    TR__TRY(tr__refs_check(ref));
    if (ref->owner != ref->rpc->rank)
        return tr__fail(TR_INVALID, "tr_rref_local: the value lives at \"%s\", not here; tr_rref_to_here() copies it",
            ref->rpc->links[ref->owner].name);
    tr_future *slot;
    TR__TRY(hold_slot(ref, &slot));
    tr_status status = tr_future_wait(slot);
    if (status == TR_OK) *out = slot->value;
    tr__unref(slot);
    return status;
}

/* A value of ours that another future is to have, too. */
static void copy_outcome(tr_future *slot, void *user)
{
    end_with(user, tr__fail_stored(slot->failure) == TR_OK ? &slot->value : NULL);
}

static tr_future *here(tr_rref *ref)
{
    tr_future *f = tr__future_new(ref->rpc);
    if (tr__error_of(f)) return f;
    snprintf(f->function, sizeof f->function, "a reference");
    f->worker = ref->owner;
    f->held = tr__ref(ref);
    tr_future *slot;
    if (hold_slot(ref, &slot) != TR_OK || tr_future_then(slot, copy_outcome, tr__ref(f)) != TR_OK) tr__object_break(f);
    tr__unref(slot);
    return f;
}

tr_future *tr_rref_to_here(tr_rref *ref)
{
    if (tr__refs_check(ref) != TR_OK) return tr__object_failed(&tr__future_type);
    if (ref->owner == ref->rpc->rank) return here(ref);
    tr__rpc_plan plan = {.function = TR__RPC_FETCH, .worker = ref->owner, .ref = ref};
    return tr__rpc_begin(ref->rpc, &plan);
}

/* ---- On their way ------------------------------------------------------------------------------------------------ */

tr_status tr__refs_hand_over(tr_rpc *rpc, tr_rref *ref, int to, tr__rref_token *token)
{
    if (ref->rpc != rpc)
        return tr__fail(TR_INVALID, "rpc: a reference of one agent is handed over by another one");
    HELD(rpc);
    if (!rpc->refs) return used_late();
    bool done = tr__rref_hand_over(rpc->refs, ref->entry, to, token);
    return done ? TR_OK : tr__fail(TR_NO_MEMORY, "rpc: no memory for a reference");
}

void tr__refs_undo(tr_rpc *rpc, const tr__rref_token *token)
{
    HELD(rpc);
    if (rpc->refs) tr__rref_undo(rpc->refs, token);
}

tr_rref *tr__refs_take_in(tr_rpc *rpc, int from, const tr__rref_token *token)
{
    HELD(rpc);
    return new_rref(rpc, rpc->refs ? tr__rref_take_in(rpc->refs, from, token) : NULL,
        "a reference to a value that is gone, or no memory for it");
}
