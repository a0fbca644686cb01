/* Answering: from a request to a reply, by the function that it asks for or by whoever that leaves the reply to. */
#include "rpc/agent.h"

#include "base/log.h"
#include "base/thread.h"
#include "tensor/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An answer that a caller waits for. */
typedef struct owed {
    tr_rpc *rpc;
    int to;
    uint64_t call;
    const char *function;  /* NULL: not known yet */
    tr_rref *kept;         /* of KEEP: where the result stays, */
    tr__rref_number value; /* and its number */
    tr__rpc_note note;     /* the request's */
    bool hooked;           /* a module's hooks see the answer, which is given between enter() and leave() */
} owed;

struct tr_rpc_reply {
    tr__object object;
    owed owed;             /* with references of its own */
    const tr_rpc_function *signature; /* NULL: a module's handler, which answers with values of any kind */
    atomic_bool answered;
};

typedef struct serving {   /* a request that is carried out */
    tr__rpc_inbound *m;
    owed owed;
    bool outermost;        /* the thread does nothing else */
    unsigned flags;
    tr__rref_number id;
    int count, first;      /* first: 1 when a value of ours comes before what was sent */
    tr_value *values;
    tr_value few[TR_VALUES_MAX + 1];
    const tr__rpc_entry *entry;
    tr_rpc_reply *deferred; /* a reference, once the function has taken it */
    tr_value result;
} serving;

/* What this thread runs for another worker; NULL: nothing. */
static _Thread_local serving *current;

int tr_rpc_caller(void)
{
    return current ? current->m->from : -1;
}

tr_rpc *tr_rpc_current(void)
{
    return current ? current->owed.rpc : NULL;
}

/* ---- Replies ----------------------------------------------------------------------------------------------------- */

static tr_status send_reply(const owed *o, tr_status status, const tr__rpc_writer *w)
{
    return tr__rpc_send(o->rpc, o->to, (tr__rpc_frame){.type = TR__RPC_REPLY, .id = o->call, .status = status}, w);
}

static tr_status send_result(const owed *o, const tr_value *result, const tr__rpc_note *note, bool passes_on)
{
    tr__rpc_writer w;
    tr__rpc_hand_over h;
    tr__rpc_write_to(&w, &h, o->rpc, o->to);
    w.passes_on = passes_on;
    tr__rpc_write_note(&w, note);
    tr__rpc_write_value(&w, result);
    if (o->kept) tr__rpc_write_bytes(&w, &o->value, sizeof o->value);
    tr_status status = w.status == TR_OK ? send_reply(o, TR_OK, &w) : w.status;
    tr__rpc_written(&w, &h, status);
    return status;
}

/* With this thread's latest failure. */
static tr_status send_failure(const owed *o, tr_status why, const tr__rpc_note *note)
{
    tr__rpc_writer w;
    tr__rpc_writer_begin(&w);
    tr__rpc_write_note(&w, note);
    tr__rpc_write_text(&w, tr_error_message());
    if (o->kept) tr__rpc_write_bytes(&w, &o->value, sizeof o->value);
    tr_status status = send_reply(o, why, &w);
    tr__rpc_writer_end(&w);
    return status;
}

/* With the result, or this thread's latest failure. The caller hears of a result that cannot be sent, too; returns why it cannot.
 * passes_on: who answers has the one reference to the result, and drops it then. */
static tr_status answer(const owed *o, tr_status status, tr_value result, bool passes_on)
{
    tr_rpc *rpc = o->rpc;
    tr__rpc_note note = o->note;
    if (!o->hooked) {
        bool unread = note.bytes && note.bytes < TR__RPC_NOTE && !atomic_load(&rpc->has_hooks);
        note.bytes = unread ? note.bytes + 1 : 0;
        if (unread) note.data[note.bytes - 1] = 0;
    }
    tr__rpc_note without_value = note;
    if (!current || current->outermost) tr__rpc_stay_awake(rpc);
    if (o->kept && !tr__error_of(o->kept)) { /* what tr_remote() asked for stays here, a failure with the function's name */
        if (status != TR_OK && o->function) tr__fail_context(status, "%s", o->function + (o->function[0] == '.'));
        tr__refs_made(o->kept, status == TR_OK ? &result : NULL);
        result = tr_value_none();
        status = TR_OK;
    }
    tr_status sent = status;
    if (sent == TR_OK && o->hooked) sent = tr__rpc_outgoing(rpc, o->to, true, &result, 1, &note);
    if (sent == TR_OK) {
        sent = send_result(o, &result, &note, passes_on);
        if (sent != TR_OK && o->hooked) tr__rpc_unsent(rpc, &note);
    }
    if (sent != TR_OK && o->hooked) {
        TR__KEEP_ERROR;
        (void)!tr__rpc_outgoing(rpc, o->to, true, NULL, 0, &without_value);
    }
    if (sent != TR_OK && send_failure(o, sent, &without_value) != TR_OK)
        tr__log(TR_LOG_DEBUG, "rpc: no reply to %s of worker %d: %s", o->function ? o->function : "a call", o->to,
            tr_error_message());
    return status == TR_OK ? sent : TR_OK;
}

static void enter(const owed *o, bool in)
{
    tr_rpc *rpc = o->rpc;
    if (in && rpc->hooks.enter) rpc->hooks.enter(rpc->hooks.user, &o->note);
    if (!in && rpc->hooks.leave) rpc->hooks.leave(rpc->hooks.user);
}

/* ---- Replies that a function leaves to others -------------------------------------------------------------------- */

/* Answers once, in the call's context, with a value or this thread's latest failure. */
static tr_status settle(tr_rpc_reply *r, tr_status status, tr_value value)
{
    TR_SCOPE;
    const owed *o = &r->owed;
    if (atomic_exchange(&r->answered, true))
        return tr__fail(TR_STATE, "rpc: the call of %s by \"%s\" has been answered already", o->function, o->rpc->links[o->to].name);
    bool open = tr__rpc_enter(&o->rpc->answering), hooked = open && o->hooked;
    if (hooked) enter(o, true);
    tr_status sent = open ? answer(o, status, value, false) : TR_OK;
    if (hooked) enter(o, false);
    tr__rpc_leave(&o->rpc->answering);
    /* Nobody waits for an answer that cannot come any more. */
    return atomic_load(&o->rpc->links[o->to].gone) ? TR_OK : sent;
}

static void destroy_reply(void *self)
{
    tr_rpc_reply *r = self;
    if (!r->owed.rpc) return;
    TR__KEEP_ERROR;
    if (!atomic_load(&r->answered))
        (void)!settle(r, tr__fail(TR_STATE, "the function put its answer off, and nobody gave one: its reply was dropped"),
            tr_value_none());
    tr__unref(r->owed.kept);
    tr__unref(r->owed.rpc);
}

static const tr__type reply_type = {.name = "rpc reply", .size = sizeof(tr_rpc_reply), .destroy = destroy_reply};

tr_rpc_reply *tr_rpc_defer(void)
{
    if (!current || current->deferred)
        return tr__object_fail(&reply_type, TR_STATE, current ? "tr_rpc_defer: the function has taken its reply already"
                                                              : "tr_rpc_defer: this thread runs no function for another worker");
    tr_rpc_reply *r = tr__object_new(&reply_type);
    if (tr__error_of(r)) return r;
    r->owed = current->owed;
    r->owed.function = current->entry->name;
    tr__ref(r->owed.rpc);
    tr__ref(r->owed.kept);
    r->signature = current->entry->handler ? NULL : &current->entry->function;
    return current->deferred = tr__ref(r);
}

static tr_status check_reply(const char *what, const tr_rpc_reply *r)
{
    return r ? tr__fail_stored(tr__error_of(r)) : tr__fail(TR_INVALID, "%s: a reply is needed (tr_rpc_defer), not NULL", what);
}

tr_status tr_reply_with(tr_rpc_reply *r, tr_value value)
{
    TR__TRY(check_reply("tr_reply_with", r));
    if (r->signature && value.kind != r->signature->returns)
        return tr__fail(TR_INVALID, "tr_reply_with: %s returns %s, not %s", r->owed.function,
            tr_value_kind_name(r->signature->returns), tr_value_kind_name(value.kind));
    return settle(r, tr_status_of(tr__rpc_value_object(&value)), value);
}

tr_status tr_reply_fail(tr_rpc_reply *r, tr_status status, const char *message)
{
    TR__TRY(check_reply("tr_reply_fail", r));
    if (status <= TR_END || status > TR_INTERNAL || !message)
        return tr__fail(TR_INVALID, "tr_reply_fail: a failure (a tr_status behind TR_END) and a message are needed, not %d and %s",
            (int)status, message ? message : "NULL");
    return settle(r, tr__fail(status, "%s", message), tr_value_none());
}

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

static tr_status read_raw(tr__rpc_reader *r, void *to, size_t bytes)
{
    if (r->bad || bytes > (size_t)(r->end - r->at)) return tr__rpc_damaged("a request is cut short");
    memcpy(to, r->at, bytes);
    r->at += bytes;
    return TR_OK;
}

static tr_status read_head(serving *s, tr__rpc_reader *r)
{
    s->flags = tr__rpc_read_u32(r);
    s->owed.function = tr__rpc_read_text(r);
    if (!s->owed.function) return tr__rpc_damaged("a request without a function");
    if (s->flags & TR__CALL_KEEP) {
        tr__rref_token token;
        TR__TRY(read_raw(r, &token, sizeof token));
        s->owed.value = token.id;
        s->owed.kept = tr__refs_making(s->owed.rpc, &token, s->owed.function);
        TR__TRY(tr_status_of(s->owed.kept));
    }
    if (s->flags & TR__CALL_DEREFERENCE) TR__TRY(read_raw(r, &s->id, sizeof s->id));
    tr__rpc_read_note(r, &s->owed.note);
    uint32_t count = tr__rpc_read_u32(r);
    if (r->bad || count > TR__RPC_COUNT_MAX) return tr__rpc_damaged("a request's arguments");
    s->count = (int)count;
    s->first = (s->flags & TR__CALL_DEREFERENCE) != 0;
    s->values = s->few;
    if (s->count + s->first > TR_VALUES_MAX + 1) s->values = malloc((size_t)(s->count + 1) * sizeof *s->values);
    return s->values ? TR_OK : tr__fail(TR_NO_MEMORY, "no memory for %d arguments", s->count);
}

/* All of it, also when the function cannot be called: references among the arguments must be taken in. */
static tr_status read_request(serving *s)
{
    tr__rpc_take_in t = {s->owed.rpc, s->m->from};
    tr__rpc_reader r = tr__rpc_read_from(s->m, &t);
    TR__TRY(read_head(s, &r));
    for (int i = 0; i < s->count; i++) TR__TRY(tr__rpc_read_value(&r, &s->values[s->first + i]));
    return TR_OK;
}

static tr_status check_arguments(const serving *s)
{
    const tr_rpc_function *f = &s->entry->function;
    int count = s->count + s->first;
    bool fits = count == f->count;
    for (int i = 0; fits && i < count; i++) fits = s->values[i].kind == f->kinds[i];
    char given[256], wanted[256];
    if (fits) return TR_OK;
    return tr__fail(TR_INVALID, "it is %s, and was called with %s%s", tr__rpc_signature_text(f, wanted),
        tr__rpc_kinds_text(s->values, count, given), s->first ? "; the first is what the reference leads to" : "");
}

static tr_status find_function(serving *s)
{
    s->entry = tr__rpc_find_function(s->owed.rpc, s->owed.function);
    if (s->entry) return TR_OK;
    bool of_module = s->owed.function[0] == '.' || strncmp(s->owed.function, "module.", 7) == 0;
    if (of_module && !atomic_load(&s->owed.rpc->has_hooks)) /* of a module that has not been started */
        return tr__fail(TR_NOT_FOUND, "tr_dist_start() has not been called there; remote modules and distributed autograd "
            "need it on every worker");
    return tr__fail(TR_NOT_FOUND, "no function of that name is registered there (tr_rpc_register)");
}

/* Notes the size of a result that nothing else refers to: the function's next result of that size is allocated in a block. */
static void expect_result(tr__rpc_entry *entry, const tr_value *result, bool in_block)
{
    enum { WORTH_IT = 16 << 10 };
    const tr_tensor *x = result->kind == TR_VALUE_TENSOR && !tr__error_of(result->tensor) ? result->tensor : NULL;
    const tr__storage *s = x && x->storage->bytes >= WORTH_IT ? x->storage : NULL;
    bool alone = s && tr__refs(x) == 1 && atomic_load(&s->refs) == 1;
    if (alone && in_block) return; /* as was expected, or it is an argument */
    bool whole = alone && tr_is_contiguous(x) && s->bytes == (size_t)tr__numel(x->shape) * tr_dtype_size(x->dtype);
    size_t bytes = whole && s->kind == TR__OWNED && s->device.kind == TR_CPU ? s->bytes : 0;
    if (atomic_load(&entry->result_bytes) != bytes) atomic_store(&entry->result_bytes, bytes);
}

/* Memory of the size that the latest result had is allocated in blocks: the next result most often has that size, too. */
static tr_status call_body(serving *s)
{
    tr__block_target target = {s->owed.rpc, &s->owed.rpc->links[s->owed.to], tr__forks()};
    const tr__storage_source source = {atomic_load(&((tr__rpc_entry *)s->entry)->result_bytes), tr__block_make, &target};
    if (source.bytes && target.link->local && !s->owed.kept) tr__storage_source_set(&source);
    tr_status status = s->entry->function.body(s->entry->state, s->values, &s->result);
    tr__storage_source_set(NULL);
    return status;
}

static tr_status run_function(serving *s)
{
    tr_rpc *rpc = s->owed.rpc;
    if (s->owed.hooked && rpc->hooks.incoming)
        TR__TRY(rpc->hooks.incoming(rpc->hooks.user, s->m->from, false, s->values + s->first, s->count, &s->owed.note));
    if (s->entry->handler) return s->entry->handler(s->entry->state, s->m->from, s->values, s->count + s->first, &s->result);
    TR__TRY(check_arguments(s));
    TR__TRY(call_body(s));
    return tr_status_of(tr__rpc_value_object(&s->result));
}

static tr_status carry_out(serving *s)
{
    if (s->m->cancelled) return tr__fail(TR_CANCELLED, "given up by the caller");
    TR__TRY(find_function(s));
    if (s->first) TR__TRY(tr__refs_value(s->owed.rpc, s->id, &s->values[0]));
    return run_function(s);
}

static void set_running(tr_rpc *rpc, tr__rpc_run *run, bool runs)
{
    TR__LOCKED(&rpc->queue_lock);
    tr__rpc_run **at = &rpc->runs;
    while (!runs && *at != run) at = &(*at)->next;
    if (runs) run->next = *at;
    *at = runs ? run : run->next;
    rpc->runs_ended += !runs;
}

uint64_t tr__rpc_busy(tr_rpc *rpc, char text[TR__RPC_BUSY])
{
    text[0] = 0;
    TR__LOCKED(&rpc->queue_lock);
    const tr__rpc_run *run = rpc->runs;
    while (run && run->next) run = run->next;
    if (run)
        snprintf(text, TR__RPC_BUSY, "\"%.64s\" for worker %d (\"%s\")", run->function + (run->function[0] == '.'), run->from,
            rpc->links[run->from].name);
    return rpc->runs_ended;
}

/* The function's scope ends before the answer only if the block of its result may be passed on with the answer. */
static void serve(serving *s)
{
    TR_SCOPE;
    tr_scope_push();
    s->result = tr_value_none();
    tr_status status = read_request(s);
    s->owed.hooked = status == TR_OK && tr__rpc_is_hooked(s->owed.rpc, s->owed.function);
    if (s->owed.hooked) enter(&s->owed, true);
    if (status == TR_OK) {
        tr__rpc_run run = {.function = s->owed.function, .from = s->m->from};
        set_running(s->owed.rpc, &run, true);
        status = carry_out(s);
        set_running(s->owed.rpc, &run, false);
    }
    /* A value that is kept here is not looked at: other calls may already write to it. */
    bool sent = status == TR_OK && !s->deferred && !s->owed.kept;
    bool ours = sent && tr__block_holds(&s->owed.rpc->links[s->owed.to], &s->result);
    const void *object = ours ? tr__rpc_value_object(&s->result) : NULL;
    tr__ref(object);
    if (ours) tr_scope_pop();
    bool passes_on = ours && tr__refs(object) == 1;
    if (sent) expect_result((tr__rpc_entry *)s->entry, &s->result, ours);
    if (s->deferred && status != TR_OK)
        (void)!settle(s->deferred, status, s->result); /* unless it has been answered */
    else if (!s->deferred) /* also what is cancelled: at its caller it takes room until then */
        (void)!answer(&s->owed, status, s->result, passes_on);
    if (s->owed.hooked) enter(&s->owed, false);
    tr__unref(s->deferred);
    if (s->values != s->few) free(s->values);
    tr__unref(object);
    if (!ours) tr_scope_pop();
}

void tr__rpc_serve(tr_rpc *rpc, tr__rpc_inbound *m)
{
    serving *outer = current, s = {.m = m, .owed = {.rpc = rpc, .to = m->from, .call = m->frame.id}, .outermost = !outer};
    /* This thread may wait in another function: its modes are not this one's. */
    bool grad = tr__grad_mode_set(true);
    tr_dtype autocast = tr__autocast_set(TR_F32);
    const tr__storage_source *source = tr__storage_source_set(NULL);
    current = &s;
    serve(&s);
    current = outer;
    tr__grad_mode_set(grad);
    tr__autocast_set(autocast);
    tr__storage_source_set(source);
    tr__inbound_free(m);
}
