/* Calls: from the arguments to a request, and from a reply to the future's value. */
#include "rpc/agent.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- How they are called ----------------------------------------------------------------------------------------- */

enum { CALL_TEXT = TR__RPC_NAME_MAX + TR__RPC_WORKER_NAME + 16 };

/* What a failure of a call begins with: "rpc: head on \"back\"". A message of a module has the name that the program knows it by,
 * behind a dot: "distributed step on \"back\"", or "distributed step" where the failure itself names the worker. */
static const char *call_text(const tr_rpc *rpc, const char *function, int worker, bool is_named, char text[CALL_TEXT])
{
    const char *name = rpc->links[worker].name;
    if (function[0] != '.')
        snprintf(text, CALL_TEXT, "rpc: %s on \"%s\"", function, name);
    else if (is_named)
        snprintf(text, CALL_TEXT, "%s", function + 1);
    else
        snprintf(text, CALL_TEXT, "%s on \"%s\"", function + 1, name);
    return text;
}

/* ---- The flight record ------------------------------------------------------------------------------------------- */

/* The recorder goes with the group, and threads of the program's may begin or end a wait then. */
static uint64_t write_record(tr_rpc *rpc, int worker, bool through_others, const char *what)
{
    bool open = tr__rpc_enter(&rpc->recording);
    uint64_t number = open ? tr__recorder_wait(rpc->recorder, worker, through_others, what) : 0;
    tr__rpc_leave(&rpc->recording);
    return number;
}

/* A long name of a function is cut, so that what follows is still there. */
static uint64_t record_call(const tr_future *f, const char *state)
{
    enum { LEAST = 16 };
    char on[TR__RPC_WORKER_NAME + 32], text[CALL_TEXT + 32];
    bool module = f->function[0] == '.';
    const char *begin = module ? "" : "rpc ";
    int rest = snprintf(on, sizeof on, " on \"%s\"%s", f->rpc->links[f->worker].name, state) + (int)strlen(begin);
    int room = TR__RECORD_FILE - 1 - rest;
    size_t length = tr__recorder_fit(f->function + module, (size_t)(room > LEAST ? room : LEAST));
    snprintf(text, sizeof text, "%s%.*s%s", begin, (int)length, f->function + module, on);
    return write_record(f->rpc, f->worker, false, text);
}

uint64_t tr__rpc_record_wait(const tr_future *f)
{
    return f->id ? record_call(f, "") : write_record(f->rpc, -1, false, "a value that is made here"); /* no call */
}

uint64_t tr__rpc_record_sleep(tr_rpc *rpc, int worker, const char *what)
{
    return write_record(rpc, worker, true, what);
}

void tr__rpc_record_end(tr_rpc *rpc, uint64_t record)
{
    if (!record) return;
    if (tr__rpc_enter(&rpc->recording)) tr__recorder_end(rpc->recorder, record, TR_OK);
    tr__rpc_leave(&rpc->recording);
}

/* ---- Calls under way --------------------------------------------------------------------------------------------- */

static tr__rpc_pending **bucket_of(tr_rpc *rpc, uint64_t id)
{
    return &rpc->calls[id % TR__RPC_CALL_BUCKETS];
}

/* Under the lock: takes a call out of the table. Its future's reference is the caller's now; NULL: it was given up before. */
static tr_future *remove_call(tr_rpc *rpc, tr__rpc_pending **at)
{
    tr__rpc_pending *c = *at;
    tr_future *f = c->future;
    *at = c->next;
    rpc->links[c->worker].charged -= c->bytes;
    rpc->links[c->worker].calls--;
    rpc->call_count -= f != NULL;
    free(c);
    pthread_cond_broadcast(&rpc->calls_changed);
    return f;
}

/* Under the lock: the place of a call in the table, or of the end of its bucket. */
static tr__rpc_pending **find_call(tr_rpc *rpc, uint64_t id)
{
    tr__rpc_pending **at = bucket_of(rpc, id);
    while (*at && (*at)->id != id) at = &(*at)->next;
    return at;
}

/* NULL: nobody waits for it any more. */
static tr_future *take_call(tr_rpc *rpc, uint64_t id)
{
    TR__LOCKED(&rpc->calls_lock);
    tr__rpc_pending **at = find_call(rpc, id);
    return *at ? remove_call(rpc, at) : NULL;
}

/* One of those to a worker, of which nothing comes any more; NULL: all have been taken. */
static tr_future *take_call_to(tr_rpc *rpc, int worker)
{
    tr_future *f = NULL;
    TR__LOCKED(&rpc->calls_lock);
    for (int i = 0; i < TR__RPC_CALL_BUCKETS && !f; i++)
        for (tr__rpc_pending **at = &rpc->calls[i]; *at && !f;) {
            if ((*at)->worker == worker)
                f = remove_call(rpc, at);
            else
                at = &(*at)->next;
        }
    return f;
}

/* Under the lock: takes the future of a call that its worker may carry out yet. The call keeps its room until then. */
static tr_future *abandon_call(tr_rpc *rpc, tr__rpc_pending *c)
{
    tr_future *f = c ? c->future : NULL;
    if (!f) return NULL;
    c->future = NULL;
    rpc->call_count--;
    return f;
}

/* Ends a call, which is out of the table, with this thread's latest failure. */
static void end_badly(tr_future *f)
{
    if (f->making) tr__refs_remote_done(f->rpc, f->making, false);
    f->making = NULL;
    tr__future_fail(f, tr__error_take());
    tr__unref(f);
}

void tr__rpc_fail_calls(tr_rpc *rpc, int worker, const tr__error *why)
{
    char text[CALL_TEXT];
    for (tr_future *f; (f = take_call_to(rpc, worker));) {
        tr__fail_context(tr__fail_stored(why), "%s", call_text(rpc, f->function, worker, true, text));
        end_badly(f);
    }
    TR__LOCKED(&rpc->calls_lock);
    pthread_cond_broadcast(&rpc->calls_changed);
}

/* Ends a call that was abandoned, with this thread's latest failure. What it has asked to be made is made all the same, and only
 * the reply says that it can be dropped. */
static void give_up(tr_rpc *rpc, tr_future *f)
{
    tr__rpc_tell(rpc, f->worker, (tr__rpc_frame){.type = TR__RPC_CANCEL, .id = f->id}, NULL, 0, NULL);
    f->making = NULL;
    end_badly(f);
}

int64_t tr__rpc_expire_calls(tr_rpc *rpc, int64_t now)
{
    enum { LOOK_S = 60 };
    char text[CALL_TEXT];
    for (;;) {
        tr_future *late = NULL;
        int64_t next = now + LOOK_S * (int64_t)1000000000;
        pthread_mutex_lock(&rpc->calls_lock);
        for (int i = 0; i < TR__RPC_CALL_BUCKETS && rpc->call_count && !late; i++)
            for (tr__rpc_pending *c = rpc->calls[i]; c && !late; c = c->next) {
                if (!c->future) continue;
                if (c->future->deadline <= now)
                    late = abandon_call(rpc, c);
                else if (c->future->deadline < next)
                    next = c->future->deadline;
            }
        if (!late) rpc->next_deadline = next;
        pthread_mutex_unlock(&rpc->calls_lock);
        if (!late) return next;
        call_text(rpc, late->function, late->worker, false, text);
        tr__fail(TR_TIMEOUT, "%s: no answer within %g s", text, late->timeout_ms / 1000.0);
        give_up(rpc, late);
    }
}

tr_status tr_future_cancel(tr_future *f)
{
    if (!f) return TR_OK;
    TR__TRY(tr__fail_stored(f->object.error));
    if (!f->rpc || tr_future_done(f)) return TR_OK;
    pthread_mutex_lock(&f->rpc->calls_lock);
    tr_future *taken = abandon_call(f->rpc, *find_call(f->rpc, f->id));
    pthread_mutex_unlock(&f->rpc->calls_lock);
    if (!taken) return TR_OK; /* it is about to end by itself */
    char text[CALL_TEXT];
    tr__fail(TR_CANCELLED, "%s: given up by the caller", call_text(f->rpc, f->function, f->worker, false, text));
    give_up(f->rpc, taken);
    return TR_OK;
}

/* ---- Asking ------------------------------------------------------------------------------------------------------ */

/* Waits for room in the queue to a worker, where this thread may, takes it, and puts the call into the table. */
static tr_status admit(tr_rpc *rpc, tr_future *f, uint64_t bytes)
{
    tr__rpc_link *link = &rpc->links[f->worker];
    tr__rpc_pending *c = malloc(sizeof *c);
    if (!c) return tr__fail(TR_NO_MEMORY, "no memory for a call");
    bool for_ever = f->deadline == INT64_MAX, may_wait = tr__rpc_may_wait();
    int patience_ms = for_ever ? rpc->timeout_ms : f->timeout_ms;
    int64_t until_room = for_ever ? tr__now_ns() + (int64_t)patience_ms * 1000000 : f->deadline;
    bool earlier = false, full = true, gone = false, closing = false, waits = false;
    uint64_t wait = 0;
    int awake = 0;
    pthread_mutex_lock(&rpc->calls_lock);
    for (;;) {
        full = may_wait && (link->calls >= TR__RPC_CALLS_MOST || (link->calls && link->charged + bytes > rpc->queue_bytes));
        gone = atomic_load(&link->gone);
        closing = atomic_load(&rpc->closing); /* under the lock: calls that are in the table are failed after it is set */
        if (!full || gone || closing || tr__now_ns() >= until_room) break;
        pthread_mutex_unlock(&rpc->calls_lock);
        if (!waits) {
            awake = tr__rpc_block(rpc); /* what makes room may have to run here */
            wait = record_call(f, " (queue is full)");
            waits = true;
        }
        tr__rpc_poll(rpc);
        (void)tr__rpc_help(rpc);
        int64_t soon = tr__now_ns() + 1000000;
        pthread_mutex_lock(&rpc->calls_lock);
        tr__condition_wait(&rpc->calls_changed, &rpc->calls_lock, soon);
    }
    bool admitted = !full && !gone && !closing;
    if (admitted) {
        f->id = ++rpc->next_id;
        *c = (tr__rpc_pending){*bucket_of(rpc, f->id), f->id, bytes, f->worker, tr__ref(f)};
        *bucket_of(rpc, f->id) = c;
        link->calls++;
        link->charged += bytes;
        rpc->call_count++;
        rpc->calls_ever++;
        earlier = f->deadline < rpc->next_deadline;
        if (earlier) rpc->next_deadline = f->deadline;
    }
    int under_way = link->calls;
    pthread_mutex_unlock(&rpc->calls_lock);
    if (!admitted) free(c);
    tr__rpc_record_end(rpc, wait);
    if (waits) tr__rpc_unblock(rpc, awake);
    if (earlier) tr__rpc_wake_clock(rpc);
    if (gone) return tr__fail_stored(link->why);
    if (closing) return tr__rpc_has_stopped(rpc);
    if (full) return tr__fail(TR_TIMEOUT, "the queue stayed full for %g s: %d calls are under way there", patience_ms / 1000.0,
        under_way);
    return TR_OK;
}

static void write_request(tr__rpc_writer *w, const tr__rpc_plan *p, const tr__rref_token *token, const tr_value *values,
    const tr__rpc_note *note)
{
    tr__rpc_write_u32(w, (p->kept ? TR__CALL_KEEP : 0) | (p->ref ? TR__CALL_DEREFERENCE : 0));
    tr__rpc_write_text(w, p->function);
    if (p->kept) tr__rpc_write_bytes(w, token, sizeof *token);
    if (p->ref) tr__rpc_write_bytes(w, &p->ref->id, sizeof p->ref->id);
    tr__rpc_write_note(w, note);
    tr__rpc_write_u32(w, (uint32_t)p->count);
    for (int i = 0; i < p->count; i++) tr__rpc_write_value(w, &values[i]);
}

static tr_status request(tr_rpc *rpc, const tr__rpc_plan *p, tr_future *f, const tr__rref_token *token)
{
    tr_value few[TR_VALUES_MAX], *values = p->count > TR_VALUES_MAX ? malloc((size_t)p->count * sizeof *values) : few;
    if (!values) return tr__fail(TR_NO_MEMORY, "no memory for %d arguments", p->count);
    if (p->count) memcpy(values, p->values, (size_t)p->count * sizeof *values);
    tr__rpc_note note = {0};
    tr__rpc_writer w;
    tr__rpc_hand_over h;
    tr__rpc_write_to(&w, &h, rpc, p->worker);
    bool hooked = tr__rpc_is_hooked(rpc, p->function);
    tr_status status = hooked ? tr__rpc_outgoing(rpc, p->worker, false, values, p->count, &note) : TR_OK;
    if (status == TR_OK) {
        write_request(&w, p, token, values, &note);
        status = w.status;
    }
    if (status == TR_OK) status = admit(rpc, f, w.used + w.payload);
    if (status == TR_OK) status = tr__rpc_send(rpc, p->worker, (tr__rpc_frame){.type = TR__RPC_REQUEST, .id = f->id}, &w);
    if (status != TR_OK && hooked) tr__rpc_unsent(rpc, &note);
    if (f->id) {
        tr_future *taken = status == TR_OK ? NULL : take_call(rpc, f->id);
        if (status != TR_OK && !taken) {
            status = TR_OK; /* it has its failure already */
            if (p->kept) tr__refs_remote_late(rpc, p->worker, token->id, false);
        }
        tr__unref(taken);
    }
    tr__rpc_written(&w, &h, status);
    if (values != few) free(values);
    return status;
}

static tr_status check_plan(const tr_rpc *rpc, const tr__rpc_plan *p)
{
    if (!p->function || !p->function[0] || strlen(p->function) > TR__RPC_NAME_MAX)
        return tr__fail(TR_INVALID, "rpc: a function's name has 1 … %d bytes", TR__RPC_NAME_MAX);
    int most = p->function[0] == '.' ? TR__RPC_COUNT_MAX : TR_VALUES_MAX;
    if (p->count < 0 || p->count > most || (p->count && !p->values))
        return tr__fail(TR_INVALID, "rpc: %s with %d arguments; there are at most %d", p->function, p->count, most);
    if (p->timeout_ms < 0)
        return tr__fail(TR_INVALID, "rpc: %s with a .timeout_ms of %d, which is negative", p->function, p->timeout_ms);
    /* Functions that run for workers that have not stopped yet go on. */
    if (atomic_load(&((tr_rpc *)rpc)->stopped) && tr_rpc_current() != rpc && p->function[0] != '.')
        return tr__fail(TR_STATE, "rpc: %s is called after tr_rpc_stop()", p->function);
    return TR_OK;
}

static void begin(tr_rpc *rpc, const tr__rpc_plan *p, tr_future *f)
{
    TR_SCOPE;
    tr__rref_token token = {0};
    tr_rref *kept = NULL;
    tr_status status = check_plan(rpc, p);
    if (status == TR_OK) {
        f->worker = p->worker;
        f->timeout_ms = p->timeout_ms ? p->timeout_ms : rpc->timeout_ms;
        f->deadline = f->timeout_ms == TR__RPC_NO_TIMEOUT ? INT64_MAX : tr__now_ns() + (int64_t)f->timeout_ms * 1000000;
        snprintf(f->function, sizeof f->function, "%s", p->function);
        f->held = tr__ref(p->ref);
        if (p->kept) *p->kept = kept = tr_escape(tr__refs_remote(rpc, p->worker, &token));
        status = tr_status_of(kept);
        if (kept && status == TR_OK) {
            f->making = kept->entry;
            f->kept = tr__ref(kept);
        }
        if (status == TR_OK) status = request(rpc, p, f, &token);
        if (status == TR_OK) return;
        char text[CALL_TEXT];
        tr__fail_context(status, "%s", call_text(rpc, p->function, p->worker, true, text));
    }
    if (kept) tr__object_break(kept);
    tr__ref(f);
    end_badly(f);
}

tr_future *tr__rpc_begin(tr_rpc *rpc, const tr__rpc_plan *plan)
{
    tr_future *f = tr__future_new(rpc);
    if (!tr__error_of(f)) begin(rpc, plan, f);
    return f;
}

/* ---- The public calls -------------------------------------------------------------------------------------------- */

/* ref: what the function is called on; kept: where the reference to its result goes; or NULL. */
static tr_future *call_with(const tr_rpc_call *given, tr_rref *ref, tr_rref **kept)
{
    tr_rpc_call c = {0};
    if (given) memcpy(&c, given, given->size < sizeof c ? given->size : sizeof c);
    tr__rpc_plan plan = {.function = c.function, .values = c.arguments, .count = c.count, .timeout_ms = c.timeout_ms, .ref = ref,
        .kept = kept};
    if (tr__rpc_check(c.rpc) != TR_OK || tr__rpc_find_worker(c.rpc, c.to, c.worker, &plan.worker) != TR_OK)
        return tr__object_failed(&tr__future_type);
    return tr__rpc_begin(c.rpc, &plan);
}

static tr_rref *keep_with(const tr_rpc_call *call, tr_rref *ref)
{
    tr_rref *kept = NULL;
    tr_future *f = call_with(call, ref, &kept);
    if (kept) return kept;
    (void)!tr_future_wait(f); /* never began */
    return tr__object_failed(&tr__rref_type);
}

tr_future *tr_rpc_async_with(const tr_rpc_call *call)
{
    return call_with(call, NULL, NULL);
}

tr_future *tr_rpc_sync_with(const tr_rpc_call *call)
{
    tr_future *f = call_with(call, NULL, NULL);
    if (tr_future_wait(f) != TR_OK) tr_object_break(f); /* no other thread has it yet */
    return f;
}

tr_rref *tr_remote_with(const tr_rpc_call *call)
{
    return keep_with(call, NULL);
}

/* values[0] is the function's name. */
static tr_rpc_call call_of(tr_rpc *rpc, const char *to, int worker, const tr_value *values, int count)
{
    return (tr_rpc_call){.size = sizeof(tr_rpc_call), .rpc = rpc, .to = to, .worker = worker,
        .function = count && values[0].kind == TR_VALUE_STRING ? values[0].string : NULL, .arguments = values + 1,
        .count = count - 1};
}

tr_future *tr_rpc_go(tr_rpc *rpc, const char *to, const tr_value *values, int count, bool wait)
{
    tr_rpc_call call = call_of(rpc, to, -1, values, count);
    return wait ? tr_rpc_sync_with(&call) : tr_rpc_async_with(&call);
}

tr_rref *tr_rpc_remote_go(tr_rpc *rpc, const char *to, const tr_value *values, int count)
{
    tr_rpc_call call = call_of(rpc, to, -1, values, count);
    return tr_remote_with(&call);
}

tr_future *tr_rref_go(tr_rref *ref, const tr_value *values, int count)
{
    if (tr__refs_check(ref) != TR_OK) return tr__object_failed(&tr__future_type);
    tr_rpc_call call = call_of(ref->rpc, NULL, ref->owner, values, count);
    return call_with(&call, ref, NULL);
}

tr_rref *tr_rref_remote_go(tr_rref *ref, const tr_value *values, int count)
{
    if (tr__refs_check(ref) != TR_OK) return tr__object_failed(&tr__rref_type);
    tr_rpc_call call = call_of(ref->rpc, NULL, ref->owner, values, count);
    return keep_with(&call, ref);
}

tr_future *tr__rpc_internal(tr_rpc *rpc, int to, const char *name, const tr_value *arguments, int count, int timeout_ms)
{
    tr__rpc_plan plan = {.function = name, .values = arguments, .count = count, .timeout_ms = timeout_ms};
    if (tr__rpc_check(rpc) != TR_OK || tr__rpc_find_worker(rpc, NULL, to, &plan.worker) != TR_OK)
        return tr__object_failed(&tr__future_type);
    return tr__rpc_begin(rpc, &plan);
}

/* ---- The answer is here ------------------------------------------------------------------------------------------ */

static void read_kept(const tr__rpc_reader *r, tr__rref_number *kept)
{
    if (!r->bad && (size_t)(r->end - r->at) == sizeof *kept) memcpy(kept, r->at, sizeof *kept);
}

/* *kept: of tr_remote(), the number of what was to be made; of maker -1: of another call. */
static tr_status read_reply(tr_rpc *rpc, tr__rpc_inbound *m, const tr_future *f, tr_value *value, tr__rref_number *kept)
{
    *kept = (tr__rref_number){.maker = -1};
    tr__rpc_take_in t = {rpc, m->from};
    tr__rpc_reader r = tr__rpc_read_from(m, &t);
    tr__rpc_note note;
    tr__rpc_read_note(&r, &note);
    bool ok = m->frame.status == TR_OK, sound = m->frame.status > TR_END && m->frame.status <= TR_INTERNAL;
    const char *text = ok ? NULL : tr__rpc_read_text(&r);
    if (ok) TR__TRY(tr__rpc_read_value(&r, value));
    read_kept(&r, kept);
    /* A reply that nobody waits for any more has its note, too: what came with it will not be used, and its sender waits to
     * hear so. */
    bool hooked = f ? tr__rpc_is_hooked(rpc, f->function) : atomic_load(&rpc->has_hooks) && note.bytes;
    tr_status seen = TR_OK;
    if (hooked && rpc->hooks.incoming) seen = rpc->hooks.incoming(rpc->hooks.user, m->from, true, value, ok, &note);
    if (ok) return seen;
    return tr__fail(sound ? m->frame.status : TR_FORMAT, "%s", text ? text : "a damaged message");
}

static void finish_call(tr_rpc *rpc, tr__rpc_inbound *m)
{
    TR_SCOPE;
    tr_value value = tr_value_none();
    tr_future *f = take_call(rpc, m->frame.id); /* NULL: it was given up */
    tr__rref_number kept;
    tr_status status = read_reply(rpc, m, f, &value, &kept); /* also when it is too late: a reference must be taken in */
    if (!f) {
        if (kept.maker >= 0) tr__refs_remote_late(rpc, m->from, kept, m->frame.status == TR_OK);
        tr__log(TR_LOG_DEBUG, "rpc: a reply of worker %d came too late", m->from);
        tr__inbound_free(m);
        return;
    }
    if (status != TR_OK) {
        char text[CALL_TEXT];
        tr__fail_context(status, "%s", call_text(rpc, f->function, f->worker, false, text));
        tr__inbound_free(m);
        end_badly(f);
        return;
    }
    if (f->making) tr__refs_remote_done(rpc, f->making, true);
    f->making = NULL;
    tr__rpc_value_ref(&value);
    tr__future_finish(f, &value, m);
    tr__unref(f);
}

/* Does this thread attend to a request that has been read up to its function's name? */
static bool is_attended(tr_rpc *rpc, tr__rpc_reader *r)
{
    const tr__rpc_attention *a = tr__rpc_attends(rpc);
    tr__rpc_note note;
    tr_value first = tr_value_none();
    if (!a) return false;
    tr__rpc_read_note(r, &note);
    bool is = tr__rpc_read_u32(r) && !r->bad && r->at < r->end && *r->at == TR_VALUE_BYTES;
    return is && tr__rpc_read_value(r, &first) == TR_OK && a->wants(a->user, first.bytes);
}

static void take_request(tr_rpc *rpc, tr__rpc_inbound *m)
{
    tr__rpc_reader r = {.at = m->body, .end = m->body + m->frame.body};
    uint32_t flags = tr__rpc_read_u32(&r);
    const char *name = tr__rpc_read_text(&r);
    const tr__rpc_entry *entry = name && name[0] == '.' ? tr__rpc_find_function(rpc, name) : NULL;
    if (entry && entry->attended && !flags && is_attended(rpc, &r))
        tr__rpc_serve_later(m);
    else
        tr__rpc_enqueue(rpc, m);
}

void tr__rpc_arrived_message(tr_rpc *rpc, tr__rpc_inbound *m)
{
    switch (m->frame.type) {
    case TR__RPC_REQUEST: take_request(rpc, m); return;
    case TR__RPC_REPLY: finish_call(rpc, m); return;
    case TR__RPC_CANCEL: tr__rpc_cancel(rpc, m->from, m->frame.id); break;
    case TR__RPC_REFER: tr__refs_heard(rpc, m); break;
    default: tr__drain_heard(rpc, m); break;
    }
    tr__inbound_free(m);
}
