/*
 * Distributed autograd on RPC: what calls carry along, and how the messages of a backward travel.
 *
 * A call's note says in which context it is made, which of its tensors have gradients, and what the sender knows them as.
 * A message is an internal call. Its handler must not wait for what it causes: it takes over the reply, which answers the message
 * when that is done.
 */
#include "parallel/dist/rpc.h"

#include "base/clock.h"
#include "base/given.h"
#include "nn/module.h"
#include "ops/segment.h"
#include "tensor/list.h"

#include <stdlib.h>
#include <string.h>

enum { TENSORS_MOST = 64 }; /* in a call that carry gradients */
enum { NO_CONTEXT = -1 };

/* ---- The context that is current on a thread ----------------------------------------------------------------------------- */

typedef struct frame {
    struct frame *outer;
    tr_dist_context *context; /* a reference, or NULL: none */
    /* Of a function that was called: what its thread was in before, where it runs it while it waits within another one. */
    bool grad;
    tr__segment_state segments;
    const tr__lent_mode *lent;
} frame;

static _Thread_local frame *innermost;

static bool push_frame(tr_dist_context *context)
{
    frame *f = malloc(sizeof *f);
    if (!f) return false;
    *f = (frame){.outer = innermost, .context = context};
    innermost = f;
    return true;
}

static void pop_frame(frame **at)
{
    frame *f = *at;
    *at = f->outer;
    tr__unref(f->context);
    free(f);
}

/* The worker's context that this thread is in; NULL: none. */
static tr_dist_context *current(const tr__dist_worker *w)
{
    tr_dist_context *c = innermost ? innermost->context : NULL;
    return c && c->dist == &w->dist ? c : NULL;
}

/* ---- Notes ------------------------------------------------------------------------------------------------------------ */

typedef struct note {
    tr__dist_id context; /* of worker NO_CONTEXT: none */
    uint64_t tensors;  /* bit i: the i-th tensor has a gradient */
    uint64_t graph_left; /* bit i: it would have, but its graph does not go on: it stays here, or stayed somewhere else before */
    int64_t first;     /* the sender's number for the first of them */
    int64_t answers, n_answers; /* of a reply: what the request's were known as */
} note;
_Static_assert(sizeof(note) <= TR__RPC_NOTE, "the note fits");

static bool read_note(const tr__rpc_note *from, note *out)
{
    if (from->bytes != sizeof *out) return false;
    memcpy(out, from->data, sizeof *out);
    return true;
}

/* Numbers count up from 0; what is far beyond them must not be added to. */
static bool is_sound(const note *n)
{
    const int64_t most = INT64_MAX / 2;
    return n->first >= 0 && n->first <= most && n->answers >= 0 && n->answers <= most && n->n_answers >= 0 &&
           n->n_answers <= TENSORS_MOST;
}

static void write_note(const note *from, tr__rpc_note *out)
{
    out->bytes = sizeof *from;
    memcpy(out->data, from, sizeof *from);
}

static int groups_of(uint64_t tensors)
{
    return (__builtin_popcountll(tensors) + TR__DIST_TENSORS - 1) / TR__DIST_TENSORS;
}

/* Goes over the tensors of values, in lists too. visit may put another in place. */
typedef tr_status (*visit_fn)(void *user, int i, tr_tensor **tensor);

static tr_status visit_list(tr_value *value, int *i, visit_fn visit, void *user)
{
    tr_tensor_list *list = value->tensors, *changed = NULL;
    for (int k = 0; list && k < list->count; k++) {
        tr_tensor *t = list->entries[k].tensor;
        TR__TRY(visit(user, (*i)++, &t));
        if (t != list->entries[k].tensor) changed = list; /* the list is one of the message's own */
        if (!changed) continue;
        tr__ref(t);
        tr__unref(list->entries[k].tensor);
        list->entries[k].tensor = t;
    }
    return TR_OK;
}

static tr_status visit_tensors(tr_value *values, int n, visit_fn visit, void *user)
{
    int i = 0;
    for (int k = 0; k < n; k++) {
        if (values[k].kind == TR_VALUE_TENSOR && values[k].tensor) TR__TRY(visit(user, i++, &values[k].tensor));
        if (values[k].kind == TR_VALUE_TENSORS) TR__TRY(visit_list(&values[k], &i, visit, user));
    }
    return TR_OK;
}

/* The tensors of a message that have gradients. */
typedef struct gathered {
    uint64_t tensors, graph_left; /* which, as in a note */
    int n;
    tr_tensor *list[TENSORS_MOST];
} gathered;

static tr_status gather_without_context(void *user, int i, tr_tensor **tensor)
{
    gathered *g = user;
    bool left = !tr__bad(*tensor) && ((*tensor)->requires_grad || (*tensor)->graph_left);
    if (left && i < TENSORS_MOST) g->graph_left |= (uint64_t)1 << i;
    return TR_OK;
}

static tr_status gather_leaving(void *user, int i, tr_tensor **tensor)
{
    gathered *g = user;
    if (tr__bad(*tensor) || !(*tensor)->requires_grad) return gather_without_context(user, i, tensor);
    if (i >= TENSORS_MOST)
        return tr__fail(TR_UNSUPPORTED, "rpc: a tensor with a gradient behind the first %d tensors of a call", TENSORS_MOST);
    g->tensors |= (uint64_t)1 << i;
    g->list[g->n++] = *tensor;
    return TR_OK;
}

static tr_status outgoing(void *user, int to, bool is_reply, tr_value *values, int n, tr__rpc_note *out)
{
    tr__dist_worker *w = user;
    note request = {0}, own = {0};
    if (is_reply) read_note(out, &request);
    out->bytes = 0;
    tr_dist_context *c = current(w);
    bool in_context = c && !c->released;
    gathered g = {0};
    if (tr__grad_mode()) TR__TRY(visit_tensors(values, n, in_context ? gather_leaving : gather_without_context, &g));
    if (!in_context) {
        own = (note){.context = {NO_CONTEXT, 0}, .graph_left = g.graph_left};
        if (g.graph_left) write_note(&own, out);
        return TR_OK;
    }
    own = (note){.context = c->id, .tensors = g.tensors, .graph_left = g.graph_left, .answers = request.first,
        .n_answers = groups_of(request.tensors)};
    if (!is_reply) tr__dist_touches(c, to);
    if (g.n) TR__TRY(tr__dist_sends(c, to, is_reply, g.list, g.n, &own.first));
    write_note(&own, out);
    return TR_OK;
}

static void unsent(void *user, const tr__rpc_note *out)
{
    tr__dist_worker *w = user;
    note own;
    tr_dist_context *c = read_note(out, &own) ? tr__dist_context_find(&w->dist, own.context, false) : NULL;
    if (c) tr__dist_unsends(c, own.first, groups_of(own.tensors));
    tr__unref(c);
}

static tr_status gather_arriving(void *user, int i, tr_tensor **tensor)
{
    gathered *g = user;
    tr_tensor *t = *tensor;
    if (i >= TENSORS_MOST || !(g->tensors >> i & 1)) return TR_OK;
    if (!tr_dtype_is_float(t->dtype))
        return tr__fail(TR_FORMAT, "rpc: a tensor of %s came with a gradient", tr_dtype_name(t->dtype));
    /* A view: a call to oneself brings the sender's own. */
    *tensor = tr__tensor_view(t, t->shape, t->stride, t->offset);
    TR__TRY(tr_status_of(*tensor));
    g->list[g->n++] = *tensor;
    return TR_OK;
}

static tr_status mark_graph_left(void *user, int i, tr_tensor **tensor)
{
    const note *came = user;
    if (i < TENSORS_MOST && came->graph_left >> i & 1) (*tensor)->graph_left = true;
    return TR_OK;
}

/* Does a reply bring back the request's note, as there is no distributed autograd at the one who answers? */
static bool is_unread(const tr__rpc_note *in, note *sent)
{
    if (in->bytes != sizeof *sent + 1) return false;
    memcpy(sent, in->data, sizeof *sent);
    return true;
}

static tr_status incoming(void *user, int from, bool is_reply, tr_value *values, int n, const tr__rpc_note *in)
{
    tr__dist_worker *w = user;
    note came;
    if (is_reply && is_unread(in, &came)) {
        if (came.context.worker != NO_CONTEXT) atomic_store(&w->not_started, from + 1);
        return came.tensors ? visit_tensors(values, n, mark_graph_left, &(note){.graph_left = UINT64_MAX}) : TR_OK;
    }
    if (!read_note(in, &came)) return TR_OK;
    if (!is_sound(&came)) return tr__fail(TR_FORMAT, "rpc: a call's note has numbers that no worker gives");
    if (came.graph_left) TR__TRY(visit_tensors(values, n, mark_graph_left, &came));
    if (came.context.worker == NO_CONTEXT) return TR_OK;
    tr_dist_context *c = tr__dist_context_find(&w->dist, came.context, !is_reply);
    if (!c) { /* it has ended: the worker may have heard of that before it heard of the call */
        tr__dist_message over = {.kind = TR__DIST_RELEASE, .context = came.context};
        w->dist.port.send(w, from, &over, NULL);
        return TR_OK;
    }
    gathered g = {.tensors = came.tensors};
    tr_status status = visit_tensors(values, n, gather_arriving, &g);
    if (status == TR_OK && g.n != __builtin_popcountll(came.tensors))
        status = tr__fail(TR_FORMAT, "rpc: a call's note speaks of tensors that it does not have");
    if (status == TR_OK) status = tr__dist_receives(c, from, came.first, g.list, g.n);
    if (is_reply && g.n) tr__dist_was_answered(c, came.answers, came.n_answers);
    tr__unref(c);
    return status;
}

static void enter(void *user, const tr__rpc_note *in)
{
    tr__dist_worker *w = user;
    note came;
    tr_dist_context *c = read_note(in, &came) ? tr__dist_context_find(&w->dist, came.context, true) : NULL;
    if (!push_frame(c)) {
        tr__unref(c);
        return;
    }
    innermost->grad = tr__grad_mode_set(true);
    innermost->segments = tr__segment_switch((tr__segment_state){0});
    innermost->lent = tr__mode_lend(NULL);
}

static void leave(void *user)
{
    (void)user;
    if (!innermost) return;
    tr__grad_mode_set(innermost->grad);
    (void)tr__segment_switch(innermost->segments);
    (void)tr__mode_lend(innermost->lent);
    pop_frame(&innermost);
}

/* ---- Messages that go out --------------------------------------------------------------------------------------------- */

/* The header of a message, in front of its gradients. */
typedef struct header {
    int64_t kind, context_worker, context_number, pass, smart, retain, status;
} header;

/* The message as values: bytes for the header, and behind it the numbers or the text; then the gradients. */
static tr_future *post(tr__dist_worker *w, int to, const tr__dist_message *m, int timeout_ms)
{
    size_t behind = m->text ? strlen(m->text) : (size_t)m->n_numbers * sizeof *m->numbers;
    header h = {m->kind, m->context.worker, m->context.number, m->pass, m->smart, m->retain, m->status};
    char *data = malloc(sizeof h + behind);
    if (!data) return tr__object_fail(&tr__future_type, TR_NO_MEMORY, "backward: out of memory");
    memcpy(data, &h, sizeof h);
    if (behind) memcpy(data + sizeof h, m->text ? (const void *)m->text : m->numbers, behind);
    tr_value values[1 + TR__DIST_TENSORS] = {tr_value_bytes((tr_bytes){data, sizeof h + behind})};
    for (int i = 0; i < m->n_gradients; i++)
        values[1 + i] = m->gradients[i] ? tr_value_tensor(m->gradients[i]) : tr_value_none();
    tr_future *future = tr__rpc_internal(w->rpc, to, TR__DIST_MESSAGE, values, 1 + m->n_gradients, timeout_ms);
    free(data);
    return future;
}

static void was_answered(tr_future *future, void *token)
{
    tr_status status = tr_future_wait(future);
    tr__dist_answered(token, status, status == TR_OK ? "" : tr_error_message());
}

static void send_message(void *user, int to, const tr__dist_message *m, void *token)
{
    TR_SCOPE;
    /* A backward may take longer than a call: who began it says when it is over. */
    tr_future *future = post(user, to, m, token ? TR__RPC_NO_TIMEOUT : 0);
    tr_status status = token ? tr__future_then_quick(future, was_answered, token) : TR_OK;
    if (status != TR_OK) tr__dist_answered(token, status, tr_error_message());
}

/* ---- Messages that come in -------------------------------------------------------------------------------------------- */

static void answer_message(void *user, void *call, tr_status status, const char *text)
{
    (void)user;
    (void)!(status == TR_OK ? tr_reply_with(call, tr_value_none()) : tr_reply_fail(call, status, text));
    tr__unref(call);
}

/* Into a message, whose gradients and numbers are put into the room given. *behind: what to free. */
static tr_status unpack(const tr_value *values, int n, tr__dist_message *m, tr_tensor **gradients, void **behind)
{
    header h;
    if (n < 1 || n > 1 + TR__DIST_TENSORS || values[0].kind != TR_VALUE_BYTES || values[0].bytes.size < sizeof h)
        return tr__fail(TR_FORMAT, "backward: a damaged message");
    memcpy(&h, values[0].bytes.data, sizeof h);
    size_t bytes = values[0].bytes.size - sizeof h;
    bool tells = h.kind == TR__DIST_ABORT || h.kind == TR__DIST_RELEASE;
    if (h.kind < 0 || h.kind >= TR__DIST_KINDS || (!tells && bytes % sizeof(int64_t)) ||
        (h.kind == TR__DIST_GRADIENT && bytes != sizeof(int64_t)))
        return tr__fail(TR_FORMAT, "backward: a message of kind %d with %zu bytes", (int)h.kind, bytes);
    *behind = calloc(1, bytes + 1);
    if (!*behind) return tr__fail(TR_NO_MEMORY, "backward: out of memory");
    memcpy(*behind, (const char *)values[0].bytes.data + sizeof h, bytes);
    *m = (tr__dist_message){.kind = (tr__dist_kind)h.kind, .context = {h.context_worker, h.context_number}, .pass = h.pass,
        .smart = h.smart, .retain = h.retain, .gradients = gradients, .n_gradients = n - 1,
        .status = h.status > TR_END && h.status <= TR_INTERNAL ? (tr_status)h.status : TR_INTERNAL};
    if (tells) {
        m->text = *behind;
    } else {
        m->numbers = *behind;
        m->n_numbers = (int)(bytes / sizeof(int64_t));
    }
    for (int i = 1; i < n; i++) {
        if (values[i].kind != TR_VALUE_NONE && values[i].kind != TR_VALUE_TENSOR)
            return tr__fail(TR_FORMAT, "backward: a gradient of kind %s, not a tensor", tr_value_kind_name(values[i].kind));
        gradients[i - 1] = values[i].kind == TR_VALUE_TENSOR ? values[i].tensor : NULL;
    }
    return TR_OK;
}

static tr_status handle_message(void *user, int from, const tr_value *values, int n, tr_value *result)
{
    tr__dist_worker *w = user;
    tr__dist_message m;
    tr_tensor *gradients[TR__DIST_TENSORS];
    void *behind = NULL;
    *result = tr_value_none();
    tr_status status = unpack(values, n, &m, gradients, &behind);
    tr_rpc_reply *reply = status == TR_OK ? tr_keep(tr_rpc_defer()) : NULL;
    if (status == TR_OK) status = tr_status_of(reply);
    if (status == TR_OK) tr__dist_handle(&w->dist, from, &m, reply);
    free(behind);
    return status;
}

/* ---- A worker that dies; starting ----------------------------------------------------------------------------------------- */

static void gone(void *user, int worker, const char *why)
{
    tr__dist_gone(user, worker, why);
}

static void destroy(void *user)
{
    tr__dist_worker *w = user;
    tr__dist_owner_end(w);
    tr__dist_end(&w->dist);
    pthread_cond_destroy(&w->turns);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

tr_status tr_dist_start(tr_rpc *rpc)
{
    if (!rpc) return tr__fail(TR_INVALID, "dist: rpc is NULL");
    TR__TRY(tr_status_of(rpc));
    if (tr__rpc_user(rpc)) return TR_OK;
    tr__dist_worker *w = calloc(1, sizeof *w);
    if (!w) return tr__fail(TR_NO_MEMORY, "dist: out of memory");
    w->rpc = rpc;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->turns, NULL);
    tr__dist_init(&w->dist, &(tr__dist_port){w, tr_rpc_rank(rpc), tr_rpc_workers(rpc), send_message, answer_message});
    tr__rpc_hooks hooks = {w, outgoing, unsent, incoming, enter, leave, gone, destroy};
    tr_status status = tr__rpc_set_hooks(rpc, &hooks);
    if (status != TR_OK) {
        destroy(w);
        return status;
    }
    TR__TRY(tr__rpc_handle(rpc, TR__DIST_MESSAGE, handle_message, w, true));
    TR__TRY(tr__dist_owner_start(w));
    return tr__dist_module_start(rpc);
}

tr__dist_worker *tr__dist_worker_of(tr_rpc *rpc)
{
    if (!rpc) tr__fail(TR_INVALID, "dist: rpc is NULL");
    if (!rpc || tr_status_of(rpc) != TR_OK) return NULL;
    tr__dist_worker *w = tr__rpc_user(rpc);
    if (!w) tr__fail(TR_STATE, "dist: tr_dist_start() comes first, on every worker");
    return w;
}

/* ---- Contexts and backward, as programs see them -------------------------------------------------------------------------- */

tr_dist_context *tr_dist_context_new(tr_rpc *rpc)
{
    tr__dist_worker *w = tr__dist_worker_of(rpc);
    if (!w) return tr_keep((tr_dist_context *)tr__object_failed(&tr__dist_context_type));
    tr_dist_context *c = tr__dist_context_new(&w->dist);
    if (!c->object.error && !push_frame(tr__ref(c))) {
        tr__unref(c);
        tr__fail(TR_NO_MEMORY, "dist context: out of memory");
        tr__object_break(c);
    }
    return c;
}

void tr_dist_context_end(tr_dist_context *c)
{
    if (!c) return;
    for (frame **at = &innermost; *at; at = &(*at)->outer)
        if ((*at)->context == c) {
            pop_frame(at);
            break;
        }
    TR__KEEP_ERROR; /* of what the block failed with, not of what is told to workers that died */
    if (!c->object.error) tr__dist_context_release(c);
    tr__unref(c);
}

tr_dist_context *tr_dist_context_current(tr_rpc *rpc)
{
    tr__dist_worker *w = tr__dist_worker_of(rpc);
    return w ? current(w) : NULL;
}

tr_status tr__dist_check_context(const char *what, const tr_dist_context *c)
{
    if (!c) return tr__fail(TR_INVALID, "%s: the context is NULL", what);
    TR__TRY(tr_status_of(c));
    return c->released ? tr__fail(TR_STATE, "%s: the context has ended", what) : TR_OK;
}

/* The graph of a root ends where distributed autograd has not been started, which is then worth saying. */
static tr_status check_root(const tr__dist_worker *w, const tr_backward_options *o)
{
    int worker = atomic_load(&((tr__dist_worker *)w)->not_started) - 1;
    bool lost = worker >= 0 && o->root && !tr__bad(o->root) && !o->root->requires_grad;
    if (!lost) return tr__backward_check_root(o);
    return tr__fail(TR_STATE, "tr_dist_backward: the root %s depends on nothing that requires a gradient, as far as is known: worker %d "
        "(\"%s\") answered a call of a context without tr_dist_start(), which must be called on every worker",
        TR__TEXT(o->root->shape), worker, tr_rpc_name(w->rpc, worker));
}

/* The roots with their gradients, in the innermost scope. */
static tr_status list_roots(const tr__dist_worker *w, const tr_dist_backward_options *o, tr_tensor **roots,
    tr_tensor **gradients, int *n)
{
    *n = 0;
    for (int i = o->root ? -1 : 0; i < o->count; i++) {
        tr_backward_options root = {.size = sizeof root, .root = i < 0 ? o->root : o->roots[i]};
        root.gradient = i < 0 ? o->gradient : o->gradients ? o->gradients[i] : NULL;
        TR__TRY(check_root(w, &root));
        roots[*n] = root.root;
        gradients[*n] = root.gradient;
        if (!root.gradient)
            gradients[*n] = tr_ones(root.root->shape, .dtype = root.root->dtype, .device = tr__device_of(root.root));
        TR__TRY(tr_status_of(gradients[(*n)++]));
    }
    return *n ? TR_OK : tr__fail(TR_INVALID, "tr_dist_backward: no root");
}

/* Whoever waits for a backward carries out what comes for it: gradients, in SMART marks. */
static bool wants(const void *context, tr_bytes message)
{
    const tr_dist_context *c = context;
    header h;
    if (message.size < sizeof h) return false;
    memcpy(&h, message.data, sizeof h);
    bool ours = tr__dist_context_is(c, (tr__dist_id){h.context_worker, h.context_number});
    return ours && (h.kind == TR__DIST_GRADIENT || h.kind == TR__DIST_MARK);
}

static bool has_news(const void *context)
{
    tr_dist_context *c = (tr_dist_context *)context;
    return tr__dist_over(c) || tr__dist_marked(c);
}

/* Unlike a thread that only sleeps, one that looks for messages helps. */
static tr_status await(tr_dist_context *c, int timeout_ms, int64_t deadline_ns)
{
    tr_rpc *rpc = ((tr__dist_worker *)c->dist)->rpc;
    int awake = tr__rpc_block(rpc);
    const tr__rpc_attention *outer = tr__rpc_attend(&(tr__rpc_attention){rpc, wants, c});
    for (tr__rpc_watch(rpc, has_news, c, deadline_ns); tr__dist_marked(c); tr__rpc_watch(rpc, has_news, c, deadline_ns))
        tr__dist_continue(c);
    tr__rpc_attend(outer);
    bool sleeps = !tr__dist_over(c);
    uint64_t wait = sleeps ? tr__rpc_record_sleep(rpc, tr__dist_awaited(c), &TR__DIST_MESSAGE[1]) : 0;
    tr_status status = tr__dist_await(c, timeout_ms);
    tr__rpc_record_end(rpc, wait);
    tr__rpc_unblock(rpc, awake);
    return status;
}

static tr_status run_backward(tr_dist_context *c, const tr_dist_backward_options *o, tr_tensor **roots,
    tr_tensor **gradients)
{
    int n;
    TR_SCOPE;
    TR__TRY(list_roots((tr__dist_worker *)c->dist, o, roots, gradients, &n));
    int timeout_ms = TR__OR(o, timeout_ms, 60000);
    if (timeout_ms < 1) return tr__fail(TR_INVALID, "tr_dist_backward: a .timeout_ms of %d must be positive", timeout_ms);
    int64_t deadline_ns = tr__now_ns() + (int64_t)timeout_ms * 1000000;
    TR__TRY(tr__dist_begin(c, roots, gradients, n, o->mode == TR_DIST_SMART, o->retain_graph, deadline_ns));
    return await(c, timeout_ms, deadline_ns);
}

tr_status tr_dist_backward_with(const tr_dist_backward_options *o)
{
    TR__CALLED_AT(o->file, o->line);
    tr_dist_context *c = o->context;
    TR__TRY(tr__dist_check_context("tr_dist_backward", c));
    if (c->id.worker != c->dist->port.self)
        return tr__fail(TR_STATE, "tr_dist_backward: the context was made by worker %d, which is to call it, not %d",
            (int)c->id.worker, c->dist->port.self);
    if (o->count < 0 || !o->count != !o->roots || (o->gradients && !o->roots))
        return tr__fail(TR_INVALID, "tr_dist_backward: .roots come with their .count, 1 and more, not %d, and .gradients with "
            ".roots", o->count);
    tr_tensor **lists = calloc(2 * ((size_t)o->count + 1), sizeof *lists);
    if (!lists) return tr__fail(TR_NO_MEMORY, "backward: out of memory");
    tr_status status = run_backward(c, o, lists, lists + o->count + 1);
    free(lists);
    return status;
}
