#include "rpc/agent.h"

#include "base/clock.h"
#include "base/futex.h"
#include "base/list.h"
#include "tensor/list.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Values that are kept ---------------------------------------------------------------------------------------- */

const void *tr__rpc_value_object(const tr_value *v)
{
    switch (v->kind) {
    case TR_VALUE_TENSOR: return v->tensor;
    case TR_VALUE_RREF: return v->rref;
    case TR_VALUE_TENSORS: return v->tensors;
    case TR_VALUE_OBJECT: return v->object;
    default: return NULL;
    }
}

void tr__rpc_value_ref(const tr_value *v)
{
    tr_object_keep(tr__rpc_value_object(v));
}

tr_status tr__rpc_value_keep(const tr_value *v, tr_value *kept, tr__rpc_inbound **texts)
{
    *kept = *v;
    *texts = NULL;
    bool bytes = v->kind == TR_VALUE_BYTES, string = v->kind == TR_VALUE_STRING;
    const void *data = bytes ? v->bytes.data : string ? v->string : NULL;
    if (!data) {
        tr__rpc_value_ref(v);
        return TR_OK;
    }
    size_t size = bytes ? v->bytes.size : strlen(v->string) + 1;
    const tr__rpc_frame frame = {.pieces = 1};
    tr__rpc_inbound *m = tr__inbound_new(0, &frame);
    if (!m || !tr__rpc_piece_alloc(m->pieces, size)) {
        if (m) tr__inbound_free(m);
        return tr__fail(TR_NO_MEMORY, "rpc: no memory for %zu bytes", size);
    }
    *texts = m;
    memcpy(m->pieces->memory, data, size);
    if (bytes)
        kept->bytes.data = m->pieces->memory;
    else
        kept->string = m->pieces->memory;
    return TR_OK;
}

/* ---- Making and ending ------------------------------------------------------------------------------------------- */

static void destroy(void *self)
{
    tr_future *f = self;
    TR__FOR_EACH(t, f->thens) free(t);
    tr__unref(tr__rpc_value_object(&f->value));
    if (f->message) tr__inbound_free(f->message);
    tr__error_unref(f->failure);
    tr__unref(f->held);
    tr__unref(f->kept);
    if (f->rpc) pthread_mutex_destroy(&f->lock);
    if (!f->loose) tr__unref(f->rpc);
}

const tr__type tr__future_type = {.name = "future", .size = sizeof(tr_future), .destroy = destroy};

tr_future *tr__future_new(tr_rpc *rpc)
{
    tr_future *f = tr__object_new(&tr__future_type);
    if (tr__error_of(f)) return f;
    pthread_mutex_init(&f->lock, NULL);
    f->rpc = tr__ref(rpc);
    return f;
}

tr_future *tr__future_new_loose(tr_rpc *rpc)
{
    tr_future *f = tr__object_new_kept(&tr__future_type);
    if (tr__error_of(f)) return f;
    pthread_mutex_init(&f->lock, NULL);
    f->rpc = rpc;
    f->loose = true;
    return f;
}

/* What the end needs is set: lets the world know. */
static void settle(tr_future *f)
{
    pthread_mutex_lock(&f->lock);
    atomic_store(&f->done, 1);
    tr__rpc_then *thens = f->thens;
    f->thens = NULL;
    pthread_mutex_unlock(&f->lock);
    if (atomic_load(&f->sleepers) > 0) tr__futex_wake(&f->done, INT32_MAX);
    if (atomic_load(&f->rpc->any_waiters) > 0) {
        atomic_fetch_add(&f->rpc->any_ended, 1);
        tr__futex_wake(&f->rpc->any_ended, INT32_MAX);
    }
    for (tr__rpc_then **at = &thens, *t; (t = *at);) {
        if (t->quick) {
            *at = t->next;
            t->callback(f, t->user);
            free(t);
        } else {
            t->future = tr__ref(f);
            at = &t->next;
        }
    }
    tr__rpc_call_back(thens);
}

void tr__future_finish(tr_future *f, const tr_value *value, tr__rpc_inbound *message)
{
    f->value = *value;
    f->message = message;
    settle(f);
}

void tr__future_fail(tr_future *f, tr__error *failure)
{
    f->failure = failure;
    settle(f);
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

enum { NAP_NS = 10000000 };

bool tr_future_done(const tr_future *future)
{
    return !future || tr__error_of(future) || atomic_load(&((tr_future *)future)->done);
}

static bool is_done(const void *future)
{
    return atomic_load_explicit(&((tr_future *)future)->done, memory_order_acquire);
}

bool tr__future_await(tr_future *f, int64_t deadline)
{
    tr_rpc *rpc = f->rpc;
    if (is_done(f)) return true;
    int awake = tr__rpc_block(rpc);
    tr__rpc_watch(rpc, is_done, f, deadline); /* what comes next is most often what we wait for */
    uint64_t wait = is_done(f) ? 0 : tr__rpc_record_wait(f);
    for (int64_t left; !atomic_load(&f->done) && (left = deadline - tr__now_ns()) > 0;) {
        bool alone = tr__rpc_help(rpc);
        int64_t nap = alone && left > NAP_NS ? NAP_NS : deadline == INT64_MAX ? -1 : left;
        atomic_fetch_add(&f->sleepers, 1);
        if (!atomic_load(&f->done)) tr__futex_wait(&f->done, 0, nap);
        atomic_fetch_sub(&f->sleepers, 1);
    }
    tr__rpc_record_end(rpc, wait);
    tr__rpc_unblock(rpc, awake);
    return atomic_load(&f->done);
}

tr_status tr_future_wait(tr_future *f)
{
    if (!f) return TR_OK;
    TR__TRY(tr__fail_stored(f->object.error));
    tr__future_await(f, INT64_MAX);
    return tr__fail_stored(f->failure);
}

tr_status tr_future_wait_all(tr_future *const *list, int count)
{
    tr__error *first = NULL;
    for (int i = 0; i < count; i++)
        if (tr_future_wait(list[i]) != TR_OK && !first) first = tr__error_take();
    return tr__error_restore(first);
}

/* ---- Any of several ---------------------------------------------------------------------------------------------- */

static int find_done(tr_future *const *list, int count)
{
    for (int i = 0; i < count; i++)
        if (tr_future_done(list[i])) return i;
    return -1;
}

/* Futures of another agent than the first one's are found by looking every now and then. */
int tr_future_wait_any(tr_future *const *list, int count)
{
    int found = find_done(list, count);
    if (found >= 0 || count <= 0) return found;
    tr_rpc *rpc = list[0]->rpc;
    int awake = tr__rpc_block(rpc);
    uint64_t wait = tr__rpc_record_wait(list[0]); /* the others may go to other workers, but one is enough to find the trouble */
    atomic_fetch_add(&rpc->any_waiters, 1);
    for (unsigned seen; seen = atomic_load(&rpc->any_ended), (found = find_done(list, count)) < 0;) {
        tr__rpc_poll(rpc);
        tr__rpc_help(rpc);
        tr__futex_wait(&rpc->any_ended, seen, NAP_NS);
    }
    atomic_fetch_sub(&rpc->any_waiters, 1);
    tr__rpc_record_end(rpc, wait);
    tr__rpc_unblock(rpc, awake);
    return found;
}

static tr_status then_call(tr_future *f, void (*callback)(tr_future *future, void *user), void *user, bool quick)
{
    if (!f || !callback) return tr__fail(TR_INVALID, "tr_future_then: a future and a callback are needed, not NULL");
    tr__rpc_then *then = NULL;
    if (!tr_future_done(f)) {
        then = malloc(sizeof *then);
        if (!then) return tr__fail(TR_NO_MEMORY, "tr_future_then: no memory");
        *then = (tr__rpc_then){.callback = callback, .user = user, .quick = quick};
        pthread_mutex_lock(&f->lock);
        bool done = atomic_load(&f->done);
        tr__rpc_then **at = &f->thens;
        while (*at) at = &(*at)->next; /* in the order in which they were asked for */
        if (!done) *at = then;
        pthread_mutex_unlock(&f->lock);
        if (!done) return TR_OK;
    }
    free(then);
    callback(f, user);
    return TR_OK;
}

tr_status tr_future_then(tr_future *f, void (*callback)(tr_future *future, void *user), void *user)
{
    return then_call(f, callback, user, false);
}

tr_status tr__future_then_quick(tr_future *f, void (*callback)(tr_future *future, void *user), void *user)
{
    return then_call(f, callback, user, true);
}

/* ---- What came back ---------------------------------------------------------------------------------------------- */

const tr_value *tr_future_value(tr_future *f)
{
    if (!f) tr__fail(TR_INVALID, "rpc: a future is needed, not NULL");
    return f && tr_future_wait(f) == TR_OK ? &f->value : NULL;
}

static const tr_value *value_of(tr_future *f, tr_value_kind kind)
{
    const tr_value *v = tr_future_value(f);
    if (!v || v->kind == kind) return v;
    tr__fail(TR_INVALID, "rpc: %s returned %s, not %s", f->function, tr_value_kind_name(v->kind), tr_value_kind_name(kind));
    return NULL;
}

/* `otherwise`: when the call has failed, or returned something else. */
#define RESULT(KIND, member, type, otherwise)                   \
    type tr_future_##member(tr_future *f)                       \
    {                                                           \
        const tr_value *v = value_of(f, TR_VALUE_##KIND);       \
        return v ? v->member : (otherwise);                     \
    }
RESULT(TENSOR, tensor, tr_tensor *, tr__tensor_failed())
RESULT(I64, i64, int64_t, 0)
RESULT(F64, f64, double, (double)NAN)
RESULT(STRING, string, const char *, NULL)
RESULT(BYTES, bytes, tr_bytes, ((tr_bytes){NULL, 0}))
RESULT(RREF, rref, tr_rref *, tr__object_failed(&tr__rref_type))
RESULT(TENSORS, tensors, tr_tensor_list *, tr__object_failed(&tr__list_type))
