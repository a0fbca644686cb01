/* Contexts: what a worker notes of the tensors that come and go in one, and its gradients there. */
#include "parallel/dist/part.h"

#include "base/list.h"
#include "base/memory.h"
#include "base/thread.h"

#include <stdlib.h>
#include <string.h>

/* ---- Gradients, by leaf ------------------------------------------------------------------------------------------ */

typedef struct grad_entry {
    tr_tensor *leaf, *grad; /* kept */
} grad_entry;

/* Open addressing; a power of two places, at most half of them taken. */
struct tr__dist_grads {
    grad_entry *places;
    size_t size, count;
};

static grad_entry *place_of(const struct tr__dist_grads *grads, const tr_tensor *leaf)
{
    size_t at = ((uintptr_t)leaf >> 4) * 0x9e3779b97f4a7c15u >> 20 & (grads->size - 1);
    while (grads->places[at].leaf && grads->places[at].leaf != leaf) at = (at + 1) & (grads->size - 1);
    return &grads->places[at];
}

static tr_status grow_grads(struct tr__dist_grads *grads)
{
    struct tr__dist_grads larger = {.size = grads->size ? 2 * grads->size : 64, .count = grads->count};
    larger.places = calloc(larger.size, sizeof *larger.places);
    if (!larger.places) return tr__fail(TR_NO_MEMORY, "backward: out of memory");
    for (size_t i = 0; i < grads->size; i++)
        if (grads->places[i].leaf) *place_of(&larger, grads->places[i].leaf) = grads->places[i];
    free(grads->places);
    *grads = larger;
    return TR_OK;
}

tr_tensor *tr__dist_grads_find(const struct tr__dist_grads *grads, const tr_tensor *leaf)
{
    return grads && grads->count ? place_of(grads, leaf)->grad : NULL;
}

void tr__dist_grads_replace(struct tr__dist_grads *grads, const tr_tensor *leaf, tr_tensor *grad)
{
    grad_entry *entry = place_of(grads, leaf);
    tr_tensor *old = entry->grad;
    entry->grad = tr_keep(grad);
    tr__unref(old);
}

/* g itself when nobody else has it, else a copy: what is kept must not change with what others have. Kept. */
static tr_tensor *own(tr_tensor *g)
{
    bool ours = atomic_load(&g->object.refs) == 1 && atomic_load(&g->storage->refs) == 1 && tr_is_contiguous(g);
    if (ours) return tr__ref(g);
    TR_SCOPE;
    tr_tensor *copy = tr_keep(tr__tensor_new(g->shape, g->dtype, tr__device_of(g)));
    if (!tr__bad(copy) && tr_copy_into(copy, g) != TR_OK) tr__object_break(copy);
    return copy;
}

tr_status tr__dist_grads_add(struct tr__dist_grads **grads, tr_tensor *leaf, tr_tensor *grad, tr_tensor **sum)
{
    if (!*grads) *grads = calloc(1, sizeof **grads);
    if (!*grads) return tr__fail(TR_NO_MEMORY, "backward: out of memory");
    if (2 * (*grads)->count >= (*grads)->size) TR__TRY(grow_grads(*grads));
    grad_entry *entry = place_of(*grads, leaf);
    tr_tensor *next;
    if (entry->grad) {
        TR_SCOPE;
        next = tr_keep(tr_add(entry->grad, grad));
    } else {
        next = own(grad);
    }
    if (tr__bad(next)) {
        tr_status status = tr_status_of(next);
        tr__unref(next);
        return status;
    }
    if (!entry->leaf) {
        entry->leaf = tr__ref(leaf);
        (*grads)->count++;
    }
    tr__unref(entry->grad);
    entry->grad = *sum = next;
    return TR_OK;
}

static void free_grads(struct tr__dist_grads *grads)
{
    if (!grads) return;
    for (size_t i = 0; i < grads->size; i++) {
        tr__unref(grads->places[i].leaf);
        tr__unref(grads->places[i].grad);
    }
    free(grads->places);
    free(grads);
}

tr_tensor *tr_dist_grad(tr_dist_context *context, const tr_tensor *leaf)
{
    if (!context || tr__error_of(context) || !leaf) return NULL;
    TR__LOCKED(&context->lock);
    return tr__dist_grads_find(context->grads, leaf);
}

/* ---- The contexts of a worker ------------------------------------------------------------------------------------ */

static void destroy(void *self)
{
    tr_dist_context *c = self;
    if (!c->dist) return; /* in error from the start */
    for (int64_t i = 0; i < c->n_sent; i++) {
        for (int k = 0; k < c->sent[i]->n; k++) tr__edge_drop(c->sent[i]->places[k].edge);
        free(c->sent[i]);
    }
    free(c->sent);
    free(c->received);
    free(c->touched);
    free_grads(c->grads);
    TR__FOR_EACH(e, c->early) e->free(e);
    tr__dist_part_unref(c->part);
    tr__error_unref(c->abort_reason);
    pthread_mutex_destroy(&c->lock);
}

const tr__type tr__dist_context_type = {"dist context", sizeof(tr_dist_context), destroy};

void tr__dist_init(tr__dist *dist, const tr__dist_port *port)
{
    *dist = (tr__dist){.port = *port};
    pthread_mutex_init(&dist->lock, NULL);
}

void tr__dist_end(tr__dist *dist)
{
    while (dist->contexts) {
        tr_dist_context *c = dist->contexts;
        dist->contexts = c->next;
        c->released = true;
        tr__unref(c);
    }
    pthread_mutex_destroy(&dist->lock);
}

bool tr__dist_context_is(const tr_dist_context *c, tr__dist_id id)
{
    return c->id.worker == id.worker && c->id.number == id.number;
}

/* Under dist->lock. The list has one reference, the caller gets another. */
static tr_dist_context *add_context(tr__dist *dist, tr__dist_id id)
{
    tr_dist_context *c = tr__object_new_kept(&tr__dist_context_type);
    if (c->object.error) return c;
    c->touched = calloc((size_t)dist->port.workers, 1);
    if (!c->touched) {
        tr__fail(TR_NO_MEMORY, "dist context: out of memory");
        tr__object_break(c);
        return c;
    }
    pthread_mutex_init(&c->lock, NULL);
    c->dist = dist;
    c->id = id;
    c->next = dist->contexts;
    dist->contexts = c;
    return tr__ref(c);
}

tr_dist_context *tr__dist_context_new(tr__dist *dist)
{
    TR__LOCKED(&dist->lock);
    return add_context(dist, (tr__dist_id){dist->port.self, ++dist->next_number});
}

tr_dist_context *tr__dist_context_find(tr__dist *dist, tr__dist_id id, bool make)
{
    TR__LOCKED(&dist->lock);
    tr_dist_context *c = dist->contexts;
    while (c && !tr__dist_context_is(c, id)) c = c->next;
    /* What this worker made itself and does not know any more has been released. */
    if (c)
        tr__ref(c);
    else if (make && id.worker >= 0 && id.worker < dist->port.workers && id.worker != dist->port.self)
        c = add_context(dist, id);
    if (!c || !c->object.error) return c;
    tr__unref(c);
    return NULL;
}

/* Takes it off the list; false when it is off already. */
static bool unlist(tr_dist_context *c)
{
    tr__dist *dist = c->dist;
    TR__LOCKED(&dist->lock);
    bool listed = !c->released;
    c->released = true;
    TR__UNLINK(dist->contexts, c);
    return listed;
}

void tr__dist_context_release(tr_dist_context *c)
{
    if (!unlist(c)) return;
    const tr__dist_port *port = &c->dist->port;
    tr__dist_message message = {.kind = TR__DIST_RELEASE, .context = c->id};
    tr__dist_part *p = tr__part_of(c);
    if (p) tr__part_fail(p, tr__fail(TR_CANCELLED, "the context was ended")); /* unless it is over: its error stays as it is now */
    if (p && p->error) { /* this may overtake the message that aborts the backward */
        message.pass = p->pass;
        message.status = p->error->status;
        message.text = p->error->message;
    }
    for (int to = 0; to < port->workers; to++) {
        pthread_mutex_lock(&c->lock);
        bool touched = c->touched[to] && to != port->self;
        pthread_mutex_unlock(&c->lock);
        if (touched) port->send(port->user, to, &message, NULL);
    }
    tr__dist_part_unref(p);
    tr__unref(c);
}

void tr__dist_gone(tr__dist *dist, int worker, const char *text)
{
    for (;;) {
        pthread_mutex_lock(&dist->lock);
        tr_dist_context *c = dist->contexts;
        while (c && c->id.worker != worker) c = c->next;
        tr__ref(c);
        pthread_mutex_unlock(&dist->lock);
        if (!c) return;
        tr__dist_part_fail(c, TR_PEER, text);
        tr__dist_context_release(c);
        tr__unref(c);
    }
}

/* ---- What comes and goes ----------------------------------------------------------------------------------------- */

static tr_status no_memory(void)
{
    return tr__fail(TR_NO_MEMORY, "dist context: out of memory");
}

static tr_status note_sent(tr_dist_context *c, int to, bool is_reply, tr_tensor *const *tensors, int n)
{
    bool room = tr__grow(&c->sent, (size_t)c->n_sent, &c->sent_room, sizeof(tr__dist_sent *));
    tr__dist_sent *s = room ? calloc(1, sizeof *s) : NULL;
    if (!s) return no_memory();
    *s = (tr__dist_sent){.to = to, .n = n, .answered = is_reply};
    for (int i = 0; i < n; i++) {
        s->places[i].edge = tr__edge_keep(tr__edge_to(tensors[i]));
        s->places[i].like = (tr__input){tensors[i]->shape, tensors[i]->dtype, tr__device_of(tensors[i])};
    }
    c->sent[c->n_sent++] = s;
    if (!is_reply) c->touched[to] = 1;
    return TR_OK;
}

tr_status tr__dist_sends(tr_dist_context *c, int to, bool is_reply, tr_tensor *const *tensors, int n, int64_t *first)
{
    tr_status status = TR_OK;
    TR__LOCKED(&c->lock);
    *first = c->n_sent;
    for (int i = 0; i < n && status == TR_OK; i += TR__DIST_TENSORS)
        status = note_sent(c, to, is_reply, &tensors[i], n - i < TR__DIST_TENSORS ? n - i : TR__DIST_TENSORS);
    for (int64_t i = *first; i < c->n_sent && status != TR_OK; i++) c->sent[i]->unsent = c->sent[i]->answered = true;
    return status;
}

void tr__dist_touches(tr_dist_context *c, int worker)
{
    TR__LOCKED(&c->lock);
    c->touched[worker] = 1;
}

void tr__dist_was_answered(tr_dist_context *c, int64_t first, int64_t count)
{
    TR__LOCKED(&c->lock);
    for (int64_t i = first; i >= 0 && i < first + count && i < c->n_sent; i++) c->sent[i]->answered = true;
}

/* tr_backward() itself does not know where the graph goes on. */
static tr_status ends_here(tr_backward_call *call)
{
    const tr__dist_received *r = call->attrs;
    return tr__fail(TR_STATE, "backward: the graph goes on at worker %d: tr_dist_backward() follows it there",
        (int)r->from);
}

static const tr_op received_op = {
    .size = sizeof(tr_op),
    .name = "received",
    .attrs_size = sizeof(tr__dist_received),
    .backward = ends_here,
    .flags = TR__OP_BOUNDARY,
};

static tr_status note_received(tr_dist_context *c, int from, int64_t number, tr__dist_received *attrs)
{
    if (!tr__grow(&c->received, (size_t)c->n_received, &c->received_room, sizeof *c->received)) return no_memory();
    *attrs = (tr__dist_received){c->id, from, number, c->n_received};
    c->received[c->n_received++] = (tr__dist_recv){.from = from, .number = number};
    return TR_OK;
}

static tr_status receive(tr_dist_context *c, int from, int64_t number, tr_tensor *const *tensors, int n)
{
    tr__dist_received attrs;
    pthread_mutex_lock(&c->lock);
    tr_status status = note_received(c, from, number, &attrs);
    pthread_mutex_unlock(&c->lock);
    TR__TRY(status);
    TR__TRY(tr__record_boundary(&received_op, &attrs, tensors, n));
    tr__dist_part_late(c, &attrs);
    return TR_OK;
}

tr_status tr__dist_receives(tr_dist_context *c, int from, int64_t first, tr_tensor *const *tensors, int n)
{
    for (int i = 0; i < n; i += TR__DIST_TENSORS)
        TR__TRY(receive(c, from, first++, &tensors[i], n - i < TR__DIST_TENSORS ? n - i : TR__DIST_TENSORS));
    return TR_OK;
}
