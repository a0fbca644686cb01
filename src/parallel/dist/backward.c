/*
 * A worker's part in a backward.
 *
 * The part is a detached backward (autograd/engine.h) over the local graph. What comes from outside is put in its inbox; one
 * thread at a time takes things out and runs the engine. A worker takes part from its first gradient on: who sent that is
 * its parent, and gets the answer when the part and all that it has engaged are done (Dijkstra and Scholten 1980). All
 * other messages are answered at once. So the root knows when all is done, and whoever calls a worker that dies knows it.
 *
 * FAST: a worker that is engaged expects a gradient for everything that it sent in the context. For that to come true, a
 * worker tells those from whom it received what its own graph does not use that there is no gradient, at once; and a
 * worker that may get no gradient itself, since it gave back nothing, is told to start.
 *
 * SMART: before that, marks walk the graph from the roots: a worker expects gradients for what was marked, and marks at
 * other workers what its graph reaches from there. A mark is answered when those that it caused have been. When the
 * root's have, gradients go out; what has no mark is not touched.
 */
#include "parallel/dist/part.h"

#include "base/list.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/thread.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What a message's answer is for. */
typedef struct token {
    tr_dist_context *context; /* references */
    tr__dist_part *part;
    tr__marking *marking;
    bool counted; /* in outstanding */
} token;

/* ---- Making and ending parts ------------------------------------------------------------------------------------- */

static void free_item(tr__item *it)
{
    for (int i = 0; i < it->n_gradients; i++) tr__unref(it->gradients[i]);
    free(it);
}

void tr__dist_part_unref(tr__dist_part *p)
{
    if (!p || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1) return;
    if (p->engine) (void)!tr__backward_free(p->engine, tr__fail(TR_CANCELLED, "backward: the context was ended"));
    for (int i = 0; i < p->n_roots; i++) {
        tr__unref(p->roots[i]);
        tr__unref(p->root_gradients[i]);
    }
    free(p->roots);
    free(p->root_gradients);
    TR__FOR_EACH(it, p->first) free_item(it);
    free(p->found);
    if (p->error) tr__error_unref(p->error);
    pthread_cond_destroy(&p->ended);
    free(p);
}

tr_status tr__part_no_memory(void)
{
    return tr__fail(TR_NO_MEMORY, "backward: out of memory");
}

static tr_status take_leaf(void *user, tr_tensor *leaf, tr_tensor *grad, tr_tensor **sum)
{
    tr_dist_context *c = ((tr__dist_part *)user)->context;
    TR__LOCKED(&c->lock);
    return tr__dist_grads_add(&c->grads, leaf, grad, sum);
}

static tr_tensor *get_gradient(void *user, const tr_tensor *leaf)
{
    return tr_dist_grad(((tr__dist_part *)user)->context, leaf);
}

static tr_status put_gradient(void *user, tr_tensor *leaf, tr_tensor *grad)
{
    tr_dist_context *c = ((tr__dist_part *)user)->context;
    tr_tensor *kept;
    TR__LOCKED(&c->lock);
    tr_tensor *there = tr__dist_grads_find(c->grads, leaf);
    return there ? tr_copy_into(there, grad) : tr__dist_grads_add(&c->grads, leaf, grad, &kept);
}

static tr_status complete_leaf(void *user, tr_tensor *leaf)
{
    tr_dist_context *c = ((tr__dist_part *)user)->context;
    pthread_mutex_lock(&c->lock);
    tr__dist_early *early = c->early;
    tr_tensor *gradient = early ? tr__dist_grads_find(c->grads, leaf) : NULL;
    pthread_mutex_unlock(&c->lock);
    while (early) {
        TR__TRY(early->use(early, leaf, gradient));
        pthread_mutex_lock(&c->lock);
        early = early->next;
        pthread_mutex_unlock(&c->lock);
    }
    return TR_OK;
}

/* What this node stands for in the context; NULL: it is of another one. */
static const tr__dist_received *received_by(const tr__dist_part *p, const tr__node *node)
{
    const tr__dist_received *r = node->attrs;
    if (tr__dist_context_is(p->context, r->context)) return r;
    tr__fail(TR_STATE, "backward: a tensor that came from worker %d in another context is part of the graph; that "
        "context's graph ends with it", (int)r->from);
    return NULL;
}

static tr_status enter_received(void *user, const tr__node *node)
{
    tr__dist_part *p = user;
    const tr__dist_received *r = received_by(p, node);
    if (!r) return TR_STATE;
    pthread_mutex_lock(&p->context->lock);
    p->context->received[r->index].pass = p->pass;
    pthread_mutex_unlock(&p->context->lock);
    if (!p->smart) return TR_OK;
    if (!tr__grow(&p->found, (size_t)p->n_found, &p->found_room, sizeof *p->found)) return tr__part_no_memory();
    p->found[p->n_found++] = (tr__found){(int)r->from, r->number};
    return TR_OK;
}

/* Nothing fails, as a program may mean it: what a frozen part of the model at another worker gave, say. */
static void tell_of_graph_left(void *user, const tr__node *node)
{
    tr__dist *dist = ((tr__dist_part *)user)->context->dist;
    if (atomic_exchange(&dist->told_of_graph_left, true)) return;
    tr__log(TR_LOG_WARN, "distributed autograd: on worker %d an input of \"%s\" came from another worker in a call outside the context: "
        "its graph stayed there, and parameters behind it get no gradient. Make the context (TR_DIST_CONTEXT) before the calls that "
        "it is for; where no gradient is wanted, compute the tensor under TR_NO_GRAD, or tr_detach() it. This is said once.",
        dist->port.self, node->op->name);
}

static tr_status leave_received(void *user, const tr__node *node, tr_tensor *const *grads);

/* A part of a pass, with a reference for the context. */
tr__dist_part *tr__part_new(tr_dist_context *c, int64_t pass, bool smart, bool retain)
{
    tr__dist_part *p = calloc(1, sizeof *p);
    if (p) {
        atomic_init(&p->refs, 1);
        p->context = c;
        p->pass = pass;
        p->smart = smart;
        p->retain = retain;
        p->parent_worker = -1;
        p->last = &p->first;
        p->sink = (tr__gradient_sink){.user = p, .leaf = take_leaf, .get = get_gradient, .put = put_gradient,
            .complete = complete_leaf, .enter = enter_received, .graph_left = tell_of_graph_left, .leave = leave_received};
        p->engine = tr__backward_new(&p->sink, retain);
        tr__condition_init(&p->ended);
    }
    if (p && p->engine) return p;
    tr__dist_part_unref(p);
    tr__part_no_memory();
    return NULL;
}

tr__dist_part *tr__part_ref(tr__dist_part *p)
{
    atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
    return p;
}

tr__dist_part *tr__part_of(tr_dist_context *c)
{
    TR__LOCKED(&c->lock);
    return c->part ? tr__part_ref(c->part) : NULL;
}

/* ---- How a part ends --------------------------------------------------------------------------------------------- */

/* Under the lock: it is over, and the caller answers the parent when it has left the lock. */
static void *end_locked(tr__dist_part *p, tr_status status)
{
    p->over = true;
    if (status != TR_OK) {
        p->error = tr__error_take();
        p->context->aborted = p->pass;
    }
    void *parent = p->parent;
    p->parent = NULL;
    pthread_cond_broadcast(&p->ended);
    return parent;
}

static void answer(const tr__dist_part *p, void *call, tr_status status, const char *text)
{
    const tr__dist_port *port = &p->context->dist->port;
    if (call) port->answer(port->user, call, status, text);
}

/* Frees the engine of a failed part, when no thread is in it. */
static void drop_engine(tr__dist_part *p)
{
    pthread_mutex_lock(&p->context->lock);
    bool ours = p->engine && p->over && !p->running && !p->interrupting;
    if (ours) p->running = true;
    pthread_mutex_unlock(&p->context->lock);
    if (!ours) return;
    (void)!tr__backward_free(p->engine, tr__fail_stored(p->error));
    TR__LOCKED(&p->context->lock);
    p->engine = NULL;
    p->running = false;
    pthread_cond_broadcast(&p->ended);
}

/* A hook's ending may wait for workers that wait for us. */
static void interrupt(tr__dist_part *p)
{
    tr__backward_cancel(p->engine, tr__fail_stored(p->error));
    TR__LOCKED(&p->context->lock);
    p->interrupting = false;
}

/* Ends the part with this thread's latest failure. */
void tr__part_fail(tr__dist_part *p, tr_status status)
{
    pthread_mutex_lock(&p->context->lock);
    bool first = !p->over, waits = first && p->finishing;
    void *parent = first ? end_locked(p, status) : NULL;
    p->interrupting |= waits;
    pthread_mutex_unlock(&p->context->lock);
    if (parent) answer(p, parent, p->error->status, p->error->message);
    if (waits) interrupt(p);
    if (first) drop_engine(p);
}

static bool complete(const tr__dist_part *p)
{
    return p->finished && !p->over && !p->running && !p->first && !p->outstanding;
}

/* Ends the part when all is done. It may fail meanwhile, at its deadline: then somebody may wait for its engine to go. */
static void end_when_complete(tr__dist_part *p)
{
    tr_dist_context *c = p->context;
    pthread_mutex_lock(&c->lock);
    bool done = complete(p);
    if (done) p->running = true; /* nobody else ends it */
    pthread_mutex_unlock(&c->lock);
    if (!done) return;
    tr_status status = tr__backward_free(p->engine, TR_OK);
    pthread_mutex_lock(&c->lock);
    p->engine = NULL;
    p->running = false;
    void *parent = p->over ? NULL : end_locked(p, status);
    pthread_cond_broadcast(&p->ended);
    pthread_mutex_unlock(&c->lock);
    if (parent) answer(p, parent, status, status == TR_OK ? "" : p->error->message);
}

/* ---- The inbox --------------------------------------------------------------------------------------------------- */

tr__item *tr__part_item(int kind, const int64_t *numbers, int n_numbers)
{
    tr__item *it = calloc(1, sizeof *it + (size_t)n_numbers * sizeof *it->numbers);
    if (!it) {
        tr__part_no_memory();
        return NULL;
    }
    it->kind = kind;
    it->n_numbers = n_numbers;
    if (n_numbers) memcpy(it->numbers, numbers, (size_t)n_numbers * sizeof *numbers);
    return it;
}

/* Under the lock. */
void tr__part_push(tr__dist_part *p, tr__item *it)
{
    *p->last = it;
    p->last = &it->next;
}

/* ---- Messages that go out ---------------------------------------------------------------------------------------- */

/* When all marks are answered, the one that caused them is; the root goes on, in its own thread. */
static void mark_answered(tr__dist_part *p, tr__marking *m)
{
    pthread_mutex_lock(&p->context->lock);
    bool done = --m->waiting == 0;
    if (done && !m->call && !p->over) {
        p->engaged = true;
        tr__part_push(p, m->roots);
        m->roots = NULL;
        pthread_cond_broadcast(&p->ended);
    }
    const tr__error *error = p->error;
    pthread_mutex_unlock(&p->context->lock);
    if (!done) return;
    if (m->call) answer(p, m->call, error ? error->status : TR_OK, error ? error->message : "");
    free(m->roots);
    free(m);
}

void tr__dist_answered(void *t, tr_status status, const char *text)
{
    token *k = t;
    tr__dist_part *p = k->part;
    if (status != TR_OK) tr__part_fail(p, tr__fail(status, "%s", text));
    if (k->counted) {
        pthread_mutex_lock(&k->context->lock);
        p->outstanding--;
        pthread_mutex_unlock(&k->context->lock);
        end_when_complete(p);
    }
    if (k->marking) mark_answered(p, k->marking);
    tr__dist_part_unref(p);
    tr__unref(k->context);
    free(k);
}

/* Sends a message of this pass. counted: the part is not done before the answer. */
static tr_status send(tr__dist_part *p, int to, tr__dist_message *message, tr__marking *m, bool counted)
{
    token *k = malloc(sizeof *k);
    if (!k) return tr__part_no_memory();
    *k = (token){tr__ref(p->context), tr__part_ref(p), m, counted};
    pthread_mutex_lock(&p->context->lock);
    if (counted) p->outstanding++;
    if (m) m->waiting++;
    pthread_mutex_unlock(&p->context->lock);
    message->context = p->context->id;
    message->pass = p->pass;
    message->smart = p->smart;
    message->retain = p->retain;
    const tr__dist_port *port = &p->context->dist->port;
    port->send(port->user, to, message, k);
    return TR_OK;
}

/* The gradients of what a worker sent go back; none: there are none. Whom this part knows to be engaged does not end
 * before it has them: only others are waited for. */
static tr_status send_gradients(tr__dist_part *p, int to, int64_t number, tr_tensor *const *grads, int n)
{
    bool engaged = to == p->context->id.worker || to == p->parent_worker;
    tr__dist_message message = {.kind = TR__DIST_GRADIENT, .numbers = &number, .n_numbers = 1, .gradients = grads,
        .n_gradients = n};
    return send(p, to, &message, NULL, !engaged);
}

static tr_status leave_received(void *user, const tr__node *node, tr_tensor *const *grads)
{
    tr__dist_part *p = user;
    const tr__dist_received *r = received_by(p, node);
    if (!r) return TR_STATE;
    bool any = false;
    for (int i = 0; i < node->n_outputs; i++) any |= grads[i] != NULL;
    return send_gradients(p, (int)r->from, r->number, grads, any ? node->n_outputs : 0);
}

/* ---- Taking part ------------------------------------------------------------------------------------------------- */

static tr_status expect_sent(tr__dist_part *p, tr__dist_sent *s)
{
    s->pass = p->pass;
    s->arrived = false;
    for (int i = 0; i < s->n; i++) TR__TRY(tr__backward_expect(p->engine, s->places[i].edge));
    return TR_OK;
}

static tr_status expect_roots(tr__dist_part *p)
{
    for (int i = 0; i < p->n_roots; i++) TR__TRY(tr__backward_expect(p->engine, tr__edge_to(p->roots[i])));
    return TR_OK;
}

static tr__dist_sent *sent_at(tr_dist_context *c, int64_t number)
{
    TR__LOCKED(&c->lock);
    return number >= 0 && number < c->n_sent ? c->sent[number] : NULL;
}

/* Entry i of what was received; false behind the last. */
static bool received_at(tr_dist_context *c, int64_t i, tr__dist_recv *out)
{
    TR__LOCKED(&c->lock);
    bool is = i < c->n_received;
    if (is) *out = c->received[i];
    return is;
}

/* Tells workers that were sent something, and sent back nothing with a gradient, to start. */
static tr_status start_silent(tr__dist_part *p, int64_t n_sent)
{
    tr_dist_context *c = p->context;
    int64_t *numbers = malloc(((size_t)n_sent + 1) * sizeof *numbers);
    if (!numbers) return tr__part_no_memory();
    tr_status status = TR_OK;
    for (int to = 0; to < c->dist->port.workers && status == TR_OK; to++) {
        int n = 0;
        pthread_mutex_lock(&c->lock);
        for (int64_t i = 0; c->touched[to] && i < n_sent; i++)
            if (c->sent[i]->to == to && !c->sent[i]->answered) numbers[n++] = i;
        pthread_mutex_unlock(&c->lock);
        tr__dist_message message = {.kind = TR__DIST_START, .numbers = numbers, .n_numbers = n};
        if (n) status = send(p, to, &message, NULL, true);
    }
    free(numbers);
    return status;
}

/* FAST: everything that was sent takes part. */
static tr_status engage(tr__dist_part *p)
{
    tr_dist_context *c = p->context;
    pthread_mutex_lock(&c->lock);
    int64_t n_sent = c->n_sent;
    pthread_mutex_unlock(&c->lock);
    TR__TRY(expect_roots(p));
    for (int64_t i = 0; i < n_sent; i++) {
        tr__dist_sent *s = sent_at(c, i);
        pthread_mutex_lock(&c->lock);
        bool unsent = s->unsent;
        pthread_mutex_unlock(&c->lock);
        if (!unsent) TR__TRY(expect_sent(p, s));
    }
    tr__dist_recv r;
    for (int64_t i = 0; received_at(c, i, &r); i++)
        if (r.pass != p->pass) TR__TRY(send_gradients(p, r.from, r.number, NULL, 0));
    return start_silent(p, n_sent);
}

/* Marks everything that was found on the way, each worker by one message. */
static tr_status send_marks(tr__dist_part *p, tr__marking *m)
{
    int64_t *numbers = malloc(((size_t)p->n_found + 1) * sizeof *numbers);
    if (!numbers) return tr__part_no_memory();
    tr_status status = TR_OK;
    for (int to = 0; to < p->context->dist->port.workers && status == TR_OK; to++) {
        int n = 0;
        for (int i = 0; i < p->n_found; i++)
            if (p->found[i].worker == to) numbers[n++] = p->found[i].number;
        tr__dist_message message = {.kind = TR__DIST_MARK, .numbers = numbers, .n_numbers = n};
        if (n) status = send(p, to, &message, m, false);
    }
    free(numbers);
    p->n_found = 0;
    return status;
}

/* SMART: marks walk on; the root's begin at its roots. */
static tr_status mark(tr__dist_part *p, const tr__item *it)
{
    if (!it->marking->call) TR__TRY(expect_roots(p));
    for (int i = 0; i < it->n_numbers; i++) {
        tr__dist_sent *s = sent_at(p->context, it->numbers[i]);
        if (!s) return tr__fail(TR_FORMAT, "backward: a mark for number %" PRId64 ", which was never sent", it->numbers[i]);
        if (s->pass != p->pass) TR__TRY(expect_sent(p, s));
    }
    return send_marks(p, it->marking);
}

static tr_status check_gradients(const tr__dist_sent *s, tr_tensor *const *gradients, int n)
{
    if (n != s->n)
        return tr__fail(TR_FORMAT, "backward: %d gradients for %d tensors that were sent", n, s->n);
    for (int i = 0; i < n; i++) {
        const tr__input *like = &s->places[i].like;
        const tr_tensor *g = gradients[i];
        if (!g || (tr__shape_equal(g->shape, like->shape) && g->dtype == like->dtype)) continue;
        return tr__fail(TR_FORMAT, "backward: a gradient of %s %s for a tensor %s %s", tr_dtype_name(g->dtype),
            TR__TEXT(g->shape), tr_dtype_name(like->dtype), TR__TEXT(like->shape));
    }
    return TR_OK;
}

static tr_status arrive_gradients(tr__dist_part *p, const tr__item *it)
{
    tr__dist_sent *s = sent_at(p->context, it->numbers[0]);
    if (!s) return tr__fail(TR_FORMAT, "backward: a gradient for number %" PRId64 ", which was never sent", it->numbers[0]);
    bool expected = s->pass == p->pass && !s->arrived;
    if (!expected && it->n_gradients == 0) return TR_OK; /* it crossed the call, or another that said so */
    if (!expected)
        return tr__fail(TR_STATE, "backward: a gradient came from worker %d that was not to come: calls in the context "
            "must be done before its backward", s->to);
    s->arrived = true;
    if (it->n_gradients) TR__TRY(check_gradients(s, it->gradients, it->n_gradients));
    for (int i = 0; i < s->n; i++)
        TR__TRY(tr__backward_arrive(p->engine, s->places[i].edge, it->n_gradients ? it->gradients[i] : NULL));
    return TR_OK;
}

static tr_status process(tr__dist_part *p, const tr__item *it)
{
    switch (it->kind) {
    case TR__DIST_ENGAGE: return engage(p);
    case TR__DIST_ROOTS:
        for (int i = 0; i < p->n_roots; i++)
            TR__TRY(tr__backward_arrive(p->engine, tr__edge_to(p->roots[i]), p->root_gradients[i]));
        break;
    case TR__DIST_GRADIENT: TR__TRY(arrive_gradients(p, it)); break;
    case TR__DIST_MARK: return mark(p, it);
    case TR__DIST_START: return TR_OK; /* it is engaged by now */
    }
    return tr__backward_run(p->engine);
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

/* The next item; NULL, and p->finishing is set: the graph here has been gone through, and no more can come. Under the lock.
 * False: there is nothing to do. */
static bool next_task(tr__dist_part *p, tr__item **it)
{
    *it = p->first;
    if (*it && !(p->first = (*it)->next)) p->last = &p->first;
    if (!*it && !p->over) p->finishing = p->engaged && !p->finished && tr__backward_done(p->engine);
    return *it || p->finishing;
}

/* Takes items out, unless another thread is at it: then that one does. When the part is over, only marks are answered. What hooks
 * have left for the end may wait for others, so it is done here, by a thread that may wait, and before the answers of those whom
 * this part has engaged: they may be the others. */
void tr__part_drain(tr__dist_part *p)
{
    tr_dist_context *c = p->context;
    tr__item *it;
    TR__CALLED_AT(p->site.file, p->site.line);
    pthread_mutex_lock(&c->lock);
    bool runs = !p->running;
    if (runs) p->running = true;
    while (runs && next_task(p, &it)) {
        bool over = p->over;
        pthread_mutex_unlock(&c->lock);
        tr_status status = over ? TR_OK : it ? process(p, it) : tr__backward_finish(p->engine, TR_OK);
        if (status != TR_OK) tr__part_fail(p, status);
        if (it && it->marking) mark_answered(p, it->marking);
        if (it) free_item(it);
        pthread_mutex_lock(&c->lock);
        p->finished |= p->finishing;
        p->finishing = false;
    }
    if (runs) p->running = false;
    pthread_mutex_unlock(&c->lock);
    if (!runs) return;
    drop_engine(p);
    end_when_complete(p);
}

/* ---- Messages that come in --------------------------------------------------------------------------------------- */

static tr__item *item_of(const tr__dist_message *m, void *call)
{
    tr__item *it = tr__part_item(m->kind, m->numbers, m->n_numbers);
    if (!it) return NULL;
    for (int i = 0; i < m->n_gradients; i++) it->gradients[it->n_gradients++] = tr_keep(m->gradients[i]);
    if (it->kind != TR__DIST_MARK) return it;
    it->marking = calloc(1, sizeof *it->marking);
    if (it->marking) {
        *it->marking = (tr__marking){.call = call, .waiting = 1};
        return it;
    }
    free_item(it);
    tr__part_no_memory();
    return NULL;
}

/* Under the lock: the part that the message is for, made when it is the first of its pass. */
static tr_status part_for(tr_dist_context *c, const tr__dist_message *m, tr__dist_part **part, tr__dist_part **replaced)
{
    if (c->part && c->part->pass == m->pass) {
        *part = tr__part_ref(c->part);
        return TR_OK;
    }
    if (m->pass == c->aborted && c->abort_reason) return tr__fail_stored(c->abort_reason);
    if (m->pass <= c->aborted || m->pass < c->passes) return tr__fail(TR_CANCELLED, "backward: it has been ended");
    if (c->id.worker == c->dist->port.self)
        return tr__fail(TR_FORMAT, "backward: a message of pass %" PRId64 ", but %" PRId64 " have begun", m->pass, c->passes);
    tr__dist_part *p = tr__part_new(c, m->pass, m->smart, m->retain);
    if (!p) return TR_NO_MEMORY;
    *replaced = c->part;
    c->part = p;
    c->passes = m->pass;
    *part = tr__part_ref(p);
    return TR_OK;
}

/* A message of a backward. */
static tr_status take_part(tr_dist_context *c, int from, const tr__dist_message *m, void *call, bool *later)
{
    tr__item *it = item_of(m, call), *first = tr__part_item(TR__DIST_ENGAGE, NULL, 0);
    tr__dist_part *p = NULL, *replaced = NULL;
    tr_status status = it && first ? TR_OK : TR_NO_MEMORY;
    pthread_mutex_lock(&c->lock);
    if (status == TR_OK) status = part_for(c, m, &p, &replaced);
    if (p && !p->over && p->engaged && it->kind == TR__DIST_MARK) {
        status = tr__fail(TR_FORMAT, "backward: worker %d marks what has begun to run", from);
    } else if (p && !p->over) {
        bool engages = !p->engaged && it->kind != TR__DIST_MARK;
        if (engages && !p->smart) {
            tr__part_push(p, first);
            first = NULL;
        }
        if (engages) {
            p->engaged = true;
            p->parent = call;
            p->parent_worker = from;
        }
        *later = engages || it->kind == TR__DIST_MARK; /* it is answered */
        tr__part_push(p, it);
        it = NULL;
    } else if (p) {
        status = tr__fail_stored(p->error);
    }
    pthread_mutex_unlock(&c->lock);
    if (replaced) tr__part_fail(replaced, tr__fail(TR_CANCELLED, "backward: another one has begun"));
    tr__dist_part_unref(replaced);
    free(first);
    if (it) {
        free(it->marking);
        free_item(it);
    }
    if (p) tr__part_drain(p);
    tr__dist_part_unref(p);
    return status;
}

static void abort_pass(tr_dist_context *c, const tr__dist_message *m)
{
    if (c->id.worker == c->dist->port.self) return; /* who made it begins and ends its passes */
    pthread_mutex_lock(&c->lock);
    bool ours = c->part && c->part->pass == m->pass;
    if (c->aborted < m->pass) {
        c->aborted = m->pass;
        tr__error_unref(c->abort_reason);
        tr__fail(m->status, "%s", m->text);
        c->abort_reason = tr__error_take();
    }
    pthread_mutex_unlock(&c->lock);
    if (ours) tr__dist_part_fail(c, m->status, m->text);
}

/* A worker that is to start gets told what was sent to it and not answered. What never came here has no gradient. */
static void refuse_unknown(tr__dist *dist, tr_dist_context *c, int from, const tr__dist_message *m)
{
    tr__dist_message none = {.kind = TR__DIST_GRADIENT, .context = m->context, .pass = m->pass, .retain = m->retain,
        .n_numbers = 1};
    for (int i = 0; i < m->n_numbers; i++) {
        tr__dist_recv r;
        bool came = false;
        for (int64_t k = 0; c && !came && received_at(c, k, &r); k++) came = r.from == from && r.number == m->numbers[i];
        none.numbers = &m->numbers[i];
        if (!came) dist->port.send(dist->port.user, from, &none, NULL);
    }
}

void tr__dist_handle(tr__dist *dist, int from, const tr__dist_message *m, void *call)
{
    TR_SCOPE;
    bool later = false;
    tr_status status = TR_OK;
    tr_dist_context *c = tr__dist_context_find(dist, m->context, false);
    if (m->kind == TR__DIST_START) refuse_unknown(dist, c, from, m);
    if (!c) { /* not heard of, or not any more */
        if (m->kind == TR__DIST_GRADIENT || m->kind == TR__DIST_MARK)
            status = tr__fail(TR_NOT_FOUND, "backward: context %" PRId64 " of worker %" PRId64 " is over on worker %d",
                m->context.number, m->context.worker, dist->port.self);
    } else if (m->kind == TR__DIST_RELEASE) {
        if (*m->text) abort_pass(c, m);
        tr__dist_context_release(c);
    } else if (m->kind == TR__DIST_ABORT) {
        abort_pass(c, m);
    } else {
        status = take_part(c, from, m, call, &later);
    }
    if (!later) dist->port.answer(dist->port.user, call, status, status == TR_OK ? "" : tr_error_message());
    tr__unref(c);
}

void tr__dist_part_fail(tr_dist_context *c, tr_status status, const char *text)
{
    tr__dist_part *p = tr__part_of(c);
    if (p) tr__part_fail(p, tr__fail(status, "%s", text));
    tr__dist_part_unref(p);
}

/* A FAST part that is under way may expect gradients by now: it hears that there are none. */
void tr__dist_unsends(tr_dist_context *c, int64_t first, int64_t count)
{
    tr_status status = TR_OK;
    pthread_mutex_lock(&c->lock);
    tr__dist_part *p = c->part && c->part->engaged && !c->part->over && !c->part->smart ? tr__part_ref(c->part) : NULL;
    for (int64_t i = first; i < first + count && i < c->n_sent; i++) {
        tr__item *none = p ? tr__part_item(TR__DIST_GRADIENT, &i, 1) : NULL;
        c->sent[i]->unsent = c->sent[i]->answered = true;
        if (none) tr__part_push(p, none);
        if (p && !none) status = TR_NO_MEMORY;
    }
    pthread_mutex_unlock(&c->lock);
    if (p && status != TR_OK) tr__part_fail(p, status);
    if (p) tr__part_drain(p);
    tr__dist_part_unref(p);
}

/* Said at once and here: the thread may be one that must not wait. */
void tr__dist_part_late(tr_dist_context *c, const tr__dist_received *received)
{
    pthread_mutex_lock(&c->lock);
    tr__dist_part *p = c->part && c->part->engaged && !c->part->over && !c->part->smart ? tr__part_ref(c->part) : NULL;
    pthread_mutex_unlock(&c->lock);
    tr_status status = p ? send_gradients(p, (int)received->from, received->number, NULL, 0) : TR_OK;
    if (status != TR_OK) tr__part_fail(p, status);
    tr__dist_part_unref(p);
}
