/*
 * The engine: walks a graph from its root to its leaves and computes gradients.
 *
 * A first walk counts how many gradients will arrive at every node and leaf. A node is ready when all have. Of the ready nodes
 * the one that was recorded last runs, so gradients become final in about the reverse order of the forward. Boundaries (send
 * and receive) come first: a node with a boundary among its inputs computes that gradient first, and the others when it has
 * been sent. All state of a walk is in the tr__backward; graphs are only read, so walks over graphs that share nodes may
 * follow each other or interleave.
 */
#include "autograd/arena.h"
#include "autograd/engine.h"
#include "ops/segment.h"

#include "base/clock.h"
#include "base/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A node or a leaf, while gradients arrive. */
typedef struct stop {
    const void *key;   /* the node or the leaf */
    tr__node *node;    /* or NULL, and */
    tr_tensor *leaf;
    int pending;       /* gradients that have yet to arrive */
    bool begun;        /* its gradients for boundaries have been computed */
    bool reached;      /* it has run; a leaf: its hooks have */
    tr_tensor *grads[TR_OP_MAX_OUTPUTS]; /* references: of the node's outputs, or [0] of the leaf; NULL: none so far */
} stop;

struct tr__backward {
    bool retain;
    bool as_now; /* parameters that were written to since the forward are read as they are now, not refused */
    const tr__gradient_sink *sink; /* of a detached backward; NULL: gradients go to the leaves */
    stop *stops;
    size_t count, capacity;
    size_t counted;    /* stops whose edges have been counted */
    size_t unfinished; /* stops that have not run */
    size_t *table;     /* open addressing from key to stop + 1; 0: empty */
    size_t table_size; /* a power of two, at least twice capacity */
    size_t *ready;     /* a heap of stops whose gradients are complete, latest node first */
    size_t n_ready;
    tr__backward_callback *callbacks;
    size_t n_callbacks;
    bool finished;     /* the callbacks have been called */
    bool deferred;     /* a hook of the current leaf called tr__backward_defer() */
    const tr__node *used_up; /* in a graph whose gradients go to the leaves: an earlier backward released it; or NULL */
};

static tr_status no_memory(void)
{
    return tr__fail(TR_NO_MEMORY, "backward: out of memory");
}

/* ---- Stops ------------------------------------------------------------------------------------------------------------ */

static size_t slot_of(const tr__backward *b, const void *key)
{
    size_t at = ((uintptr_t)key >> 4) * 0x9e3779b97f4a7c15u >> 20 & (b->table_size - 1);
    while (b->table[at] && b->stops[b->table[at] - 1].key != key) at = (at + 1) & (b->table_size - 1);
    return at;
}

static tr_status make_room(tr__backward *b)
{
    size_t capacity = b->capacity ? 2 * b->capacity : 8; /* few, as many graphs are small and memory takes time */
    stop *stops = realloc(b->stops, capacity * sizeof *stops);
    if (stops) b->stops = stops;
    size_t *ready = realloc(b->ready, capacity * sizeof *ready);
    if (ready) b->ready = ready;
    size_t *table = calloc(4 * capacity, sizeof *table);
    if (!stops || !ready || !table) {
        free(table);
        return no_memory();
    }
    free(b->table);
    b->table = table;
    b->table_size = 4 * capacity;
    b->capacity = capacity;
    for (size_t i = 0; i < b->count; i++) b->table[slot_of(b, b->stops[i].key)] = i + 1;
    return TR_OK;
}

/* The stop of a node or leaf, made at the first call. */
static tr_status find_stop(tr__backward *b, tr__node *node, tr_tensor *leaf, size_t *index)
{
    if (b->count == b->capacity) TR__TRY(make_room(b));
    const void *key = node ? (const void *)node : (const void *)leaf;
    size_t slot = slot_of(b, key);
    if (!b->table[slot]) {
        if (leaf && leaf->leaf->consumer) TR__TRY(leaf->leaf->consumer->expect(leaf->leaf->consumer, b));
        b->stops[b->count] = (stop){.key = key, .node = node, .leaf = leaf};
        b->table[slot] = ++b->count;
        b->unfinished++;
    }
    *index = b->table[slot] - 1;
    return TR_OK;
}

/* Does the graph continue at another worker? node may be NULL. */
static bool is_boundary(const tr__node *node)
{
    return node && node->op->flags & TR__OP_BOUNDARY;
}

/* Whether ready stop x runs before y. Only nodes become ready: leaves finish in arrive(). */
static bool earlier(const tr__backward *b, size_t x, size_t y)
{
    const tr__node *p = b->stops[x].node, *q = b->stops[y].node;
    bool boundary = is_boundary(p);
    return boundary != is_boundary(q) ? boundary : p->sequence > q->sequence;
}

static void push_ready(tr__backward *b, size_t index)
{
    size_t at = b->n_ready++;
    while (at && earlier(b, index, b->ready[(at - 1) / 2])) {
        b->ready[at] = b->ready[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    b->ready[at] = index;
}

static size_t pop_ready(tr__backward *b)
{
    size_t top = b->ready[0], last = b->ready[--b->n_ready], at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= b->n_ready) break;
        if (child + 1 < b->n_ready && earlier(b, b->ready[child + 1], b->ready[child])) child++;
        if (!earlier(b, b->ready[child], last)) break;
        b->ready[at] = b->ready[child];
        at = child;
    }
    b->ready[at] = last;
    return top;
}

/* With attrs alone: what leaves the graph says that this backward does not follow it, and a TR__OP_JOINT op tells its ranks. */
static tr_status call_bare(const tr__node *node)
{
    tr_backward_call call = {.op = node->op, .attrs = node->attrs};
    return node->op->backward(&call);
}

/* Counts how many gradients will arrive at each stop that can be reached from those not yet counted. */
static tr_status count_arrivals(tr__backward *b)
{
    for (; b->counted < b->count; b->counted++) { /* new stops are appended */
        tr__node *node = b->stops[b->counted].node;
        if (is_boundary(node)) TR__TRY(b->sink ? b->sink->enter(b->sink->user, node) : call_bare(node));
        if (node && node->graph_left && b->sink) b->sink->graph_left(b->sink->user, node);
        if (node && node->released && !b->sink && !b->used_up) b->used_up = node;
        for (int k = 0; node && k < node->n_inputs; k++) {
            tr__edge edge = node->edges[k];
            if (!edge.node && !edge.leaf) continue;
            size_t index;
            TR__TRY(find_stop(b, edge.node, edge.leaf, &index));
            b->stops[index].pending++;
        }
    }
    return TR_OK;
}

tr_status tr__backward_expect(tr__backward *b, tr__edge edge)
{
    size_t index;
    TR__TRY(find_stop(b, edge.node, edge.leaf, &index));
    b->stops[index].pending++;
    return count_arrivals(b);
}

static tr_status fail_released(const tr__node *node)
{
    return tr__fail(TR_STATE, "backward: an earlier backward through %s released what the graph had saved; pass "
        ".retain_graph = true to the first one", node->op->name);
}

/* ---- Arriving gradients ----------------------------------------------------------------------------------------------------- */

/* *place (+)= g; takes g's reference. */
static tr_status add_up(tr_tensor **place, tr_tensor *g)
{
    if (!*place) {
        *place = g;
        return TR_OK;
    }
    TR_SCOPE;
    tr_tensor *sum = tr_keep(tr_add(*place, g));
    tr__unref(*place);
    tr__unref(g);
    *place = sum;
    return tr_status_of(sum);
}

/* leaf->grad (+)= g, unless g is the leaf's place in its arena already. */
static tr_status accumulate(tr_tensor *t, tr_tensor *g)
{
    tr__leaf *leaf = t->leaf;
    if (g == leaf->grad) return TR_OK;
    TR__TRY(tr__grad_touch(t, true));
    TR_SCOPE;
    if (leaf->has_grad) return tr_copy_into(leaf->grad, tr_add(leaf->grad, g));
    leaf->has_grad = true;
    if (tr__arena_has_place(t)) return tr_copy_into(leaf->grad, g);
    /* Without other references g itself becomes the gradient. */
    bool ours = atomic_load(&g->object.refs) == 1 && atomic_load(&g->storage->refs) == 1 && tr_is_contiguous(g);
    tr__unref(leaf->grad);
    leaf->grad = ours ? tr__ref(g) : tr_keep(tr__tensor_new(g->shape, g->dtype, tr__device_of(g)));
    TR__TRY(tr_status_of(leaf->grad));
    return ours ? TR_OK : tr_copy_into(leaf->grad, g);
}

/* The gradient and the hooks live while these run, whatever a hook removes or clears. */
static tr_status call_hooks(tr__backward *b, tr_tensor *t, tr_tensor *final)
{
    tr_status status = TR_OK;
    tr__ref(final);
    for (tr__hook *hook = NULL; status == TR_OK && (hook = tr__hooks_next(t->leaf, hook));) {
        if (hook->function) status = hook->function(t, final, hook->user, b);
        else if (final) status = hook->plain(t, final, hook->user);
    }
    if (status != TR_OK) tr__hooks_leave(t->leaf);
    tr__unref(final);
    return status;
}

static tr_status finish_leaf(tr__backward *b, stop *at)
{
    tr_tensor *t = at->leaf, *g = at->grads[0];
    b->unfinished--;
    at->reached = !g;
    if (!g) return TR_OK;
    if (b->sink)
        TR__TRY(b->sink->leaf(b->sink->user, t, g, &g));
    else
        TR__TRY(accumulate(t, g));
    tr_tensor *final = b->sink ? g : t->leaf->grad;
    tr__unref(at->grads[0]);
    at->grads[0] = NULL;
    b->deferred = false;
    TR__TRY(call_hooks(b, t, final));
    at->reached = true;
    if (b->deferred) return TR_OK;
    if (t->leaf->consumer) return t->leaf->consumer->consume(t->leaf->consumer);
    return b->sink ? b->sink->complete(b->sink->user, t) : TR_OK;
}

/*
 * *sum (+)= g; takes g's reference. A kernel may have added a gradient directly to the leaf's place in its arena: then g, or
 * the sum, is that place itself.
 */
static tr_status add_to_leaf(tr_tensor **sum, tr_tensor *g, const tr_tensor *place)
{
    if (!*sum || (*sum != place && g != place)) return add_up(sum, g);
    TR_SCOPE;
    tr_tensor *other = g == place ? *sum : g;
    tr_status status = other == place ? TR_OK : tr_copy_into((tr_tensor *)place, tr_add((tr_tensor *)place, other));
    tr__unref(other);
    *sum = (tr_tensor *)place;
    return status;
}

/* g arrives over an edge, with its reference; NULL: no gradient. */
static tr_status arrive(tr__backward *b, tr__edge edge, tr_tensor *g)
{
    size_t index = b->table[slot_of(b, edge.node ? (const void *)edge.node : (const void *)edge.leaf)] - 1;
    stop *at = &b->stops[index];
    tr_status status = TR_OK;
    /* A detached backward leaves the leaf's place alone: other backwards may be using it. */
    if (g && edge.leaf && b->sink) status = add_up(&at->grads[0], g);
    if (g && edge.leaf && !b->sink) status = add_to_leaf(&at->grads[0], g, edge.leaf->leaf->grad);
    if (g && edge.node) status = add_up(&at->grads[edge.output], g);
    if (--at->pending > 0 || status != TR_OK) return status;
    if (edge.leaf) return finish_leaf(b, at);
    push_ready(b, index);
    return TR_OK;
}

/* ---- Running a node --------------------------------------------------------------------------------------------------------- */

/* Whose backward it was, of an op that is not the library's own, and the likeliest cause of a NULL in it. */
static tr_status failed_backward(const tr_op *op, tr_status status)
{
    if (tr__op_builtin(op)) return status;
    bool lacks = strstr(tr_error_message(), " NULL");
    const char *hint = lacks ? " (it has the inputs and outputs that .saves_inputs and .saves_outputs name)" : "";
    return tr__fail_context(status, "%s: its backward%s", op->name, hint);
}

static tr_status check_gradient(const tr__node *node, int i, const tr_tensor *g)
{
    if (tr__bad(g)) return failed_backward(node->op, tr_status_of(g));
    const tr__input *input = &node->inputs[i];
    if (!tr_device_equal(tr__device_of(g), input->device))
        return tr__fail(TR_DEVICE, "%s: its backward gave input %d, on %s, a gradient on %s", node->op->name, i,
            tr_device_name(input->device, (char[16]){0}), tr_device_name(tr__device_of(g), (char[16]){0}));
    bool fits = tr__shape_equal(g->shape, input->shape);
    if (fits && g->dtype == input->dtype) return TR_OK;
    return tr__fail(fits ? TR_DTYPE : TR_SHAPE, "%s: its backward gave input %d, %s %s, a gradient of another %s, %s %s",
        node->op->name, i, tr_dtype_name(input->dtype), TR__TEXT(input->shape), fits ? "dtype" : "shape",
        tr_dtype_name(g->dtype), TR__TEXT(g->shape));
}

static tr_status get_saved(const tr__saved *saved, int n, bool as_now, tr_tensor **out)
{
    for (int i = 0; i < n; i++) {
        out[i] = tr__saved_get(&saved[i], as_now);
        TR__TRY(tr_status_of(out[i]));
    }
    return TR_OK;
}

/* Is the gradient of input i all that its leaf gets in this backward, with nobody else to read the leaf, which this node may
 * have saved? */
static bool is_sole(const tr__backward *b, const tr__node *node, int i)
{
    const tr_tensor *leaf = node->edges[i].leaf;
    if (!leaf || !leaf->requires_grad || b->sink || b->retain || b->as_now) return false;
    const stop *at = &b->stops[b->table[slot_of(b, leaf)] - 1];
    return at->pending == 1 && !at->grads[0] && tr__saved_count(leaf) <= (node->saved_inputs[i].tensor != NULL);
}

static tr_status run_backward(const tr_op *op, tr_backward_call *call)
{
    if (!tr__profiling()) return op->backward(call);
    tr__span span = {.kind = TR__SPAN_BACKWARD, .begin = tr__now_ns()};
    tr_status status = op->backward(call);
    snprintf(span.name, sizeof span.name, "%s", op->name);
    tr__profile_add(span);
    return status;
}

/* Places for the leaves' gradients that are averaged and then used up, before they are computed. */
static tr_status borrow_places(const tr__backward *b, const tr__node *node, const bool *needs)
{
    for (int i = 0; i < node->n_inputs && !b->sink; i++) {
        const tr__leaf *leaf = needs[i] && node->edges[i].leaf ? node->edges[i].leaf->leaf : NULL;
        if (leaf && leaf->consumer && leaf->averager && !leaf->grad) TR__TRY(leaf->averager->lend(leaf->averager));
    }
    return TR_OK;
}

/* Calls the op's backward for the inputs that need a gradient; grads: references. */
static tr_status call_backward(const tr__backward *b, const tr__node *node, const bool *needs,
    tr_tensor *const *grad_outputs, tr_tensor **grads)
{
    tr_tensor *inputs[TR_OP_MAX_INPUTS] = {NULL}, *outputs[TR_OP_MAX_OUTPUTS] = {NULL};
    TR_SCOPE;
    tr_status status = borrow_places(b, node, needs);
    if (status == TR_OK) status = get_saved(node->saved_inputs, node->n_inputs, b->as_now, inputs);
    if (status == TR_OK) status = get_saved(node->saved_outputs, node->n_outputs, b->as_now, outputs);
    bool lacks = status != TR_OK;
    tr__backward_step step = {
        .call = {node->op, node->attrs, node->n_inputs, node->n_outputs, inputs, outputs, grad_outputs, needs, grads},
        .node = node,
        .backward = (tr__backward *)b,
        .retain = b->retain,
        .detached = b->sink != NULL,
        .as_now = b->as_now,
    };
    for (int i = 0; i < node->n_inputs; i++) step.sole[i] = needs[i] && is_sole(b, node, i);
    tr_dtype autocast = tr__autocast_set(TR_F32); /* the forward chose the dtypes */
    if (status == TR_OK) status = run_backward(node->op, &step.call);
    tr__autocast_set(autocast);
    for (int i = 0; i < node->n_inputs; i++) {
        if (!needs[i] || status != TR_OK) grads[i] = NULL;
        if (grads[i]) status = check_gradient(node, i, grads[i]);
        if (status != TR_OK) grads[i] = NULL;
        tr_keep(grads[i]);
    }
    for (int i = 0; i < node->n_inputs; i++) tr__unref(inputs[i]);
    for (int i = 0; i < node->n_outputs; i++) tr__unref(outputs[i]);
    if (lacks || (status != TR_OK && tr__checks_numbers())) tr__fail_context(status, "backward of %s", node->op->name);
    return status;
}

/* Which inputs' gradients a stop computes now; any: its outputs have gradients. Returns whether it runs again for the others. */
static bool choose(const tr__backward *b, const stop *at, bool any, bool *now)
{
    const tr__node *node = at->node;
    bool first = false, rest = false;
    for (int i = 0; i < node->n_inputs; i++) {
        now[i] = node->edges[i].node || node->edges[i].leaf;
        first |= is_boundary(node->edges[i].node);
        rest |= now[i] && !is_boundary(node->edges[i].node);
    }
    bool split = any && b->sink && node->op->flags & TR__OP_BY_INPUT && first && rest;
    for (int i = 0; split && i < node->n_inputs; i++) now[i] &= is_boundary(node->edges[i].node) != at->begun;
    return split && !at->begun;
}

/* The gradients that a stop has computed arrive over its edges. */
static tr_status pass_on(tr__backward *b, const tr__node *node, const bool *now, tr_tensor *const *grads, tr_status status)
{
    for (int i = 0; i < node->n_inputs; i++) {
        if (!now[i]) continue;
        if (status == TR_OK)
            status = arrive(b, node->edges[i], grads[i]);
        else
            tr__unref(grads[i]);
    }
    return status;
}

static void drop_gradients(stop *at)
{
    for (int i = 0; i < at->node->n_outputs; i++) {
        tr__unref(at->grads[i]);
        at->grads[i] = NULL;
    }
}

static tr_status run_node(tr__backward *b, size_t index)
{
    stop *at = &b->stops[index];
    tr__node *node = at->node;
    tr_tensor *grads[TR_OP_MAX_INPUTS] = {NULL};
    bool now[TR_OP_MAX_INPUTS], any = false;
    tr_status status = TR_OK;
    for (int i = 0; i < node->n_outputs; i++) any |= at->grads[i] != NULL;
    if (any && node->released) return fail_released(node);
    bool again = choose(b, at, any, now);
    if (b->sink && is_boundary(node))
        status = b->sink->leave(b->sink->user, node, at->grads);
    else if (any)
        status = call_backward(b, node, now, at->grads, grads);
    at->reached = status == TR_OK;
    if (again && status == TR_OK) {
        at->begun = true;
        push_ready(b, index);
        return pass_on(b, node, now, grads, status);
    }
    b->unfinished--;
    drop_gradients(at);
    if (any && !b->retain && status == TR_OK) tr__node_release(node);
    return pass_on(b, node, now, grads, status);
}

/* ---- Backwards ----------------------------------------------------------------------------------------------------------------- */

tr_status tr__backward_on_end(tr__backward *b, tr__backward_callback callback)
{
    tr__backward_callback *callbacks = realloc(b->callbacks, (b->n_callbacks + 1) * sizeof *callbacks);
    if (!callbacks) return no_memory();
    b->callbacks = callbacks;
    b->callbacks[b->n_callbacks++] = callback;
    tr__ref(callback.held);
    return TR_OK;
}

tr_status tr__backward_arrive(tr__backward *b, tr__edge edge, tr_tensor *gradient)
{
    TR_SCOPE;
    TR_NO_GRAD;
    return arrive(b, edge, tr_keep(gradient));
}

tr_status tr__backward_run(tr__backward *b)
{
    TR_SCOPE;
    TR_NO_GRAD;
    while (b->n_ready) TR__TRY(run_node(b, pop_ready(b)));
    return TR_OK;
}

bool tr__backward_done(const tr__backward *b)
{
    return b->unfinished == 0;
}

const tr__gradient_sink *tr__backward_sink(const tr__backward *b)
{
    return b->sink;
}

tr__backward *tr__backward_of(const tr_backward_call *call)
{
    return ((const tr__backward_step *)(const void *)call)->backward;
}

void tr__backward_defer(tr__backward *b)
{
    b->deferred = true;
}

tr_status tr__backward_finish(tr__backward *b, tr_status status)
{
    TR_SCOPE;
    TR_NO_GRAD;
    for (int last = 0; last < 2 && !b->finished; last++)
        for (size_t i = 0; i < b->n_callbacks; i++) {
            if (b->callbacks[i].last != last) continue;
            tr_status ended = b->callbacks[i].finish(b->callbacks[i].user, status);
            if (status == TR_OK) status = ended;
        }
    b->finished = true;
    return status;
}

void tr__backward_cancel(const tr__backward *b, tr_status status)
{
    for (size_t i = 0; i < b->n_callbacks; i++)
        if (b->callbacks[i].cancel) b->callbacks[i].cancel(b->callbacks[i].user, b, status);
}

static void tell_segments(const tr__saved *saved, int n)
{
    for (int i = 0; i < n; i++)
        if (saved[i].segment) tr__segment_tell(saved[i].segment);
}

/* After a failure: tells the ops, segments and leaves that were not reached, because other ranks wait for them. */
static void tell_unreached(tr__backward *b)
{
    for (size_t i = 0; i < b->count; i++) {
        const tr__node *node = b->stops[i].node;
        tr_tensor *leaf = b->stops[i].leaf;
        if (b->stops[i].reached) continue;
        if (node && !node->released) {
            if (node->op->flags & TR__OP_JOINT) (void)!call_bare(node);
            tell_segments(node->saved_inputs, node->n_inputs);
            tell_segments(node->saved_outputs, node->n_outputs);
        }
        if (leaf && atomic_load(&leaf->leaf->averagers)) (void)!call_hooks(b, leaf, NULL);
    }
}

/* Frees what a backward has. */
static tr_status finish(tr__backward *b, tr_status status)
{
    /* used_up: refused before anything was sent, most likely on all ranks, whose groups need not break. */
    if (status != TR_OK && !b->used_up) tell_unreached(b);
    status = tr__backward_finish(b, status);
    for (size_t i = 0; i < b->count; i++)
        for (int k = 0; k < TR_OP_MAX_OUTPUTS; k++) tr__unref(b->stops[i].grads[k]);
    for (size_t i = 0; i < b->n_callbacks; i++) tr__unref(b->callbacks[i].held);
    free(b->stops);
    free(b->table);
    free(b->ready);
    free(b->callbacks);
    return status;
}

tr__backward *tr__backward_new(const tr__gradient_sink *sink, bool retain)
{
    tr__backward *b = calloc(1, sizeof *b);
    if (!b) {
        no_memory();
        return NULL;
    }
    b->sink = sink;
    b->as_now = true;
    b->retain = retain;
    return b;
}

tr_status tr__backward_free(tr__backward *b, tr_status status)
{
    status = finish(b, status);
    free(b);
    return status;
}

static tr_status walk(tr__backward *b, tr_tensor *root, tr_tensor *gradient)
{
    TR__TRY(tr__backward_expect(b, tr__edge_to(root)));
    if (b->used_up) return fail_released(b->used_up);
    TR__TRY(tr__backward_arrive(b, tr__edge_to(root), gradient));
    return tr__backward_run(b);
}

tr_status tr__backward_check_root(const tr_backward_options *o)
{
    if (!o->root) return tr__fail(TR_INVALID, "backward: no root");
    TR__TRY(tr_status_of(o->root));
    TR__TRY(tr_status_of(o->gradient));
    if (!o->root->requires_grad && o->root->graph_left)
        return tr__fail(TR_STATE, "backward: the graph of the root %s stayed at another worker: make the distributed context before "
            "the calls that it is for", TR__TEXT(o->root->shape));
    if (!o->root->requires_grad)
        return tr__fail(TR_STATE, "backward: the root %s depends on nothing that requires a gradient", TR__TEXT(o->root->shape));
    if (!o->gradient && tr__numel(o->root->shape) != 1)
        return tr__fail(TR_SHAPE, "backward: the root is %s, not a scalar: give .gradient of that shape", TR__TEXT(o->root->shape));
    if (o->gradient && (!tr__shape_equal(o->gradient->shape, o->root->shape) || o->gradient->dtype != o->root->dtype))
        return tr__fail(TR_SHAPE, "backward: the root is %s %s but .gradient is %s %s", tr_dtype_name(o->root->dtype),
            TR__TEXT(o->root->shape), tr_dtype_name(o->gradient->dtype), TR__TEXT(o->gradient->shape));
    return TR_OK;
}

tr_status tr__backward_to_leaves(const tr_backward_options *options, bool as_now)
{
    TR__TRY(tr__backward_check_root(options));
    TR_SCOPE;
    TR_NO_GRAD;
    /* A view: the program may give a leaf's own gradient, which, where it arrives at the leaf, is taken for added already. */
    tr_tensor *root = options->root, *gradient = options->gradient
        ? tr_detach(options->gradient) : tr_ones(root->shape, .dtype = root->dtype, .device = tr__device_of(root));
    TR__TRY(tr_status_of(gradient));
    tr__backward backward = {.retain = options->retain_graph, .as_now = as_now};
    tr_status status = walk(&backward, root, gradient);
    return finish(&backward, status);
}

tr_status tr_backward_with(const tr_backward_options *options)
{
    TR__CALLED_AT(options->file, options->line);
    return tr__backward_to_leaves(options, false);
}
