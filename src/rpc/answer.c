/* Answering: from a request to a reply. */
#include "rpc/message.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

/* What this thread runs for another worker. */
static _Thread_local struct {
    tr_rpc *rpc;
    int from;
} current = {NULL, -1};

int tr_rpc_caller(void)
{
    return current.rpc ? current.from : -1;
}

tr_rpc *tr_rpc_current(void)
{
    return current.rpc;
}

typedef struct serving { /* a request that is carried out */
    tr_rpc *rpc;
    tr__rpc_inbound *m;
    bool outermost;        /* the thread does nothing else */
    unsigned flags;
    const char *name;
    tr__rref_token token;
    tr__rref_number id;
    tr__rpc_note note;
    int count, first;      /* first: 1 when a value of ours comes before what was sent */
    tr_value *values;
    tr_value few[TR_VALUES_MAX + 1];
    const tr__rpc_entry *entry;
    tr_rref *kept;         /* of KEEP */
    tr_value result;
} serving;

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
    s->name = tr__rpc_read_text(r);
    if (!s->name) return tr__rpc_damaged("a request without a function");
    if (s->flags & TR__CALL_KEEP) {
        TR__TRY(read_raw(r, &s->token, sizeof s->token));
        s->kept = tr__refs_making(s->rpc, &s->token);
        TR__TRY(tr_status_of(s->kept));
    }
    if (s->flags & TR__CALL_DEREFERENCE) TR__TRY(read_raw(r, &s->id, sizeof s->id));
    tr__rpc_read_note(r, &s->note);
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
    tr__rpc_take_in t = {s->rpc, s->m->from};
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
    return tr__fail(TR_INVALID, "it is %s, and was called with %s", tr__rpc_signature_text(f, wanted),
        tr__rpc_kinds_text(s->values, count, given));
}

static tr_status find_function(serving *s)
{
    s->entry = tr__rpc_find_function(s->rpc, s->name);
    if (s->entry) return TR_OK;
    return tr__fail(TR_NOT_FOUND, "no function of that name is registered there (tr_rpc_register)");
}

static tr_status check_result(const serving *s)
{
    const tr_value *v = &s->result;
    const void *object = v->kind == TR_VALUE_TENSOR ? (const void *)v->tensor
                         : v->kind == TR_VALUE_TENSORS ? (const void *)v->tensors
                         : v->kind == TR_VALUE_RREF ? (const void *)v->rref
                         : v->kind == TR_VALUE_OBJECT ? v->object : NULL;
    return tr_status_of(object);
}

static tr_status run_function(serving *s)
{
    tr_rpc *rpc = s->rpc;
    if (tr__rpc_is_hooked(rpc, s->name) && rpc->hooks.incoming)
        TR__TRY(rpc->hooks.incoming(rpc->hooks.user, s->m->from, false, s->values + s->first, s->count, &s->note));
    if (s->entry->handler) return s->entry->handler(s->entry->state, s->m->from, s->values, s->count + s->first, &s->result);
    TR__TRY(check_arguments(s));
    TR__TRY(s->entry->function.body(s->entry->state, s->values, &s->result));
    return check_result(s);
}

static tr_status carry_out(serving *s)
{
    if (s->m->cancelled) return tr__fail(TR_CANCELLED, "given up by the caller");
    TR__TRY(find_function(s));
    if (s->first) TR__TRY(tr__refs_value(s->rpc, s->id, &s->values[0]));
    return run_function(s);
}

static tr_status send_reply(const serving *s, tr_status status, const tr__rpc_writer *w)
{
    tr__rpc_frame frame = {.type = TR__RPC_REPLY, .id = s->m->frame.id, .status = status};
    return tr__rpc_send(s->rpc, s->m->from, frame, w);
}

static tr_status send_result(const serving *s)
{
    tr__rpc_writer w;
    tr__rpc_hand_over h;
    tr__rpc_write_to(&w, &h, s->rpc, s->m->from);
    tr__rpc_write_note(&w, &s->note);
    tr__rpc_write_value(&w, &s->result);
    tr_status status = w.status == TR_OK ? send_reply(s, TR_OK, &w) : w.status;
    tr__rpc_written(&w, &h, status);
    return status;
}

/* With this thread's latest failure. */
static tr_status send_failure(const serving *s, tr_status why)
{
    tr__rpc_writer w;
    tr__rpc_writer_begin(&w);
    tr__rpc_write_text(&w, tr_error_message());
    tr_status status = send_reply(s, why, &w);
    tr__rpc_writer_end(&w);
    return status;
}

/* The caller hears of a result that cannot be sent, too. */
static void reply(serving *s, tr_status status)
{
    bool hooked = s->name && tr__rpc_is_hooked(s->rpc, s->name) && !(s->flags & TR__CALL_KEEP);
    if (status == TR_OK && hooked) status = tr__rpc_outgoing(s->rpc, s->m->from, true, &s->result, 1, &s->note);
    if (status == TR_OK) {
        status = send_result(s);
        if (status != TR_OK && hooked) tr__rpc_unsent(s->rpc, &s->note);
    }
    if (status != TR_OK && send_failure(s, status) != TR_OK)
        tr__log(TR_LOG_DEBUG, "rpc: no reply to %s of worker %d: %s", s->name ? s->name : "a call", s->m->from,
            tr_error_message());
}

/* What tr_remote() asked for stays here, the failure too. */
static tr_status keep(serving *s, tr_status status)
{
    if (!s->kept || tr__error_of(s->kept)) return status;
    tr__refs_made(s->kept, status == TR_OK ? &s->result : NULL);
    s->result = tr_value_none();
    return TR_OK;
}

static void enter(const serving *s, bool in)
{
    tr_rpc *rpc = s->rpc;
    if (in && rpc->hooks.enter) rpc->hooks.enter(rpc->hooks.user, &s->note);
    if (!in && rpc->hooks.leave) rpc->hooks.leave(rpc->hooks.user);
}

static void serve(serving *s)
{
    TR_SCOPE;
    s->result = tr_value_none();
    tr_status status = read_request(s);
    bool entered = status == TR_OK && tr__rpc_is_hooked(s->rpc, s->name);
    if (entered) enter(s, true);
    if (status == TR_OK) status = carry_out(s);
    status = keep(s, status);
    if (!s->m->cancelled || s->kept) { /* who asked for a value to be kept must hear when it can be dropped */
        if (s->outermost) tr__rpc_promise(s->rpc);
        reply(s, status);
    }
    if (entered) enter(s, false);
    if (s->values != s->few) free(s->values);
}

void tr__rpc_serve(tr_rpc *rpc, tr__rpc_inbound *m)
{
    tr_rpc *outer = current.rpc;
    serving s = {.rpc = rpc, .m = m, .outermost = !outer};
    int outer_from = current.from;
    current.rpc = rpc;
    current.from = m->from;
    serve(&s);
    current.rpc = outer;
    current.from = outer_from;
    tr__inbound_free(m);
}
