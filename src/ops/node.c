#include "ops/segment.h"

#include <stdlib.h>
#include <string.h>

/* ---- Making and freeing nodes --------------------------------------------------------------------------------------- */

/* Process-wide: nodes are numbered in the order they are made, over all threads. */
static atomic_uint_fast64_t next_sequence = 1;

/* One block of memory holds the node and its arrays. */
static tr__node *new_node(const tr_op_call *call)
{
    size_t ins = (size_t)call->n_inputs, outs = (size_t)call->n_outputs;
    size_t attrs_at = sizeof(tr__node) + ins * (sizeof(tr__edge) + sizeof(tr__input) + sizeof(tr__saved));
    attrs_at = (attrs_at + outs * (sizeof(tr__saved) + sizeof(unsigned)) + 15) / 16 * 16;
    tr__node *node = calloc(1, attrs_at + call->op->attrs_size);
    if (!node) {
        tr__fail(TR_NO_MEMORY, "out of memory");
        return NULL;
    }
    atomic_init(&node->refs, 1);
    node->op = call->op;
    node->sequence = atomic_fetch_add_explicit(&next_sequence, 1, memory_order_relaxed);
    node->n_inputs = call->n_inputs;
    node->n_outputs = call->n_outputs;
    node->edges = (tr__edge *)(node + 1);
    node->inputs = (tr__input *)(node->edges + ins);
    node->saved_inputs = (tr__saved *)(node->inputs + ins);
    node->saved_outputs = node->saved_inputs + ins;
    node->made = (unsigned *)(node->saved_outputs + outs);
    node->attrs = (char *)node + attrs_at;
    if (call->attrs) memcpy(node->attrs, call->attrs, call->op->attrs_size);
    return node;
}

tr__node *tr__node_keep(tr__node *node)
{
    if (node) atomic_fetch_add_explicit(&node->refs, 1, memory_order_relaxed);
    return node;
}

void tr__node_drop(tr__node *node, tr__node **unreferenced)
{
    if (!node || atomic_fetch_sub_explicit(&node->refs, 1, memory_order_acq_rel) != 1) return;
    node->next_unreferenced = *unreferenced;
    *unreferenced = node;
}

void tr__saved_drop_tensor(tr__saved *saved)
{
    if (!saved->tensor) return;
    if (!tr__bad(saved->tensor)) tr__count_saved(saved->tensor, -1);
    tr__unref(saved->tensor); /* an alias: it holds no node */
    saved->tensor = NULL;
}

void tr__saved_release(tr__saved *saved, tr__node **unreferenced)
{
    tr__saved_drop_tensor(saved);
    tr__node_drop(saved->maker, unreferenced);
    if (saved->segment) tr__segment_release(saved, unreferenced);
    *saved = (tr__saved){0};
}

static void release_saved(tr__node *node, tr__node **unreferenced)
{
    for (int i = 0; i < node->n_inputs; i++) tr__saved_release(&node->saved_inputs[i], unreferenced);
    for (int i = 0; i < node->n_outputs; i++) tr__saved_release(&node->saved_outputs[i], unreferenced);
}

void tr__nodes_free(tr__node *unreferenced)
{
    while (unreferenced) {
        tr__node *node = unreferenced;
        unreferenced = node->next_unreferenced;
        release_saved(node, &unreferenced);
        for (int i = 0; i < node->n_inputs; i++) {
            tr__node_drop(node->edges[i].node, &unreferenced);
            tr__unref(node->edges[i].leaf);
        }
        free(node);
    }
}

void tr__node_unref(tr__node *node)
{
    tr__node *unreferenced = NULL;
    tr__node_drop(node, &unreferenced);
    tr__nodes_free(unreferenced);
}

tr__edge tr__edge_to(tr_tensor *t)
{
    return t->node ? (tr__edge){.node = t->node, .output = t->output} : (tr__edge){.leaf = t};
}

tr__edge tr__edge_keep(tr__edge edge)
{
    tr__node_keep(edge.node);
    tr__ref(edge.leaf);
    return edge;
}

void tr__edge_drop(tr__edge edge)
{
    tr__node_unref(edge.node);
    tr__unref(edge.leaf);
}

void tr__node_release(tr__node *node)
{
    tr__node *unreferenced = NULL;
    node->released = true;
    release_saved(node, &unreferenced);
    tr__nodes_free(unreferenced);
}

/* ---- Saving ---------------------------------------------------------------------------------------------------------- */

/* Cheap nodes in a row that run again for one saved tensor, which is as many as models have (a norm and its activation). Of a
 * longer chain every third output is kept: else each would be recomputed from the chain's start. */
enum { MOST_RECOMPUTED = 2 };

/* Not where another segment of recomputed ops would have to run first: that one may need the one before it, and so on, and all of
 * them would be in memory at once. */
static bool is_recomputed(const tr_tensor *t)
{
    const tr__node *maker = t->node;
    if (!maker || maker->made[t->output] != tr__version(t)) return false; /* written to since the op made it */
    bool needs_other = maker->segment && maker->segment != tr__segment_number();
    return maker->op->flags & TR_OP_CHEAP && maker->depth < MOST_RECOMPUTED && !needs_other;
}

tr_status tr__saved_set(tr__saved *saved, const tr_tensor *t, bool may_recompute)
{
    if (may_recompute && is_recomputed(t)) {
        saved->maker = tr__node_keep(t->node);
        saved->output = t->output;
        return TR_OK;
    }
    tr_status status;
    bool is_leaf = t->requires_grad && !t->node;
    if (!is_leaf && tr__segment_saves(saved, t, &status)) return status;
    return tr__saved_keep(saved, t);
}

/* Does t show a leaf's elements: is it a leaf, a view of one, or a detached view of an arena? */
static bool is_of_leaf(const tr_tensor *t)
{
    if (t->storage->of_leaves) return true;
    if (!t->node) return t->requires_grad;
    const tr__node *node = t->node;
    while (node && node->op->flags & TR__OP_VIEW) {
        if (node->edges[0].leaf) return true;
        node = node->edges[0].node;
    }
    return false;
}

tr_status tr__saved_keep(tr__saved *saved, const tr_tensor *t)
{
    saved->tensor = tr__tensor_alias(t);
    saved->of_leaf = is_of_leaf(t);
    saved->version = tr__version(t);
    TR__TRY(tr_status_of(saved->tensor));
    tr__count_saved(saved->tensor, 1);
    return TR_OK;
}

/* A tensor in error: a new reference. */
static tr_tensor *kept_error(void)
{
    TR_SCOPE;
    return tr_keep(tr__tensor_failed());
}

static tr_tensor *recompute(const tr__saved *saved, bool as_now)
{
    const tr__node *maker = saved->maker;
    if (maker->released) {
        tr__fail(TR_STATE, "the output of %s is needed again, but an earlier backward released what it is computed from: "
            "pass .retain_graph = true there", maker->op->name);
        return kept_error();
    }
    tr_tensor *inputs[TR_OP_MAX_INPUTS] = {NULL}, *outputs[TR_OP_MAX_OUTPUTS] = {NULL};
    tr_status status = TR_OK;
    TR_SCOPE;
    for (int i = 0; i < maker->n_inputs && status == TR_OK; i++) {
        inputs[i] = tr__saved_get(&maker->saved_inputs[i], as_now);
        status = tr_status_of(inputs[i]);
    }
    tr_op_call call = {maker->op, maker->attrs, maker->n_inputs, 0, inputs, outputs};
    if (status == TR_OK) status = tr__compute(&call);
    for (int i = 0; i < maker->n_inputs; i++) tr__unref(inputs[i]);
    return tr_keep(status == TR_OK ? outputs[saved->output] : tr__tensor_failed());
}

tr_tensor *tr__saved_get(const tr__saved *saved, bool as_now)
{
    if (saved->maker) return recompute(saved, as_now);
    if (saved->segment) return tr__segment_get(saved, as_now);
    if (!saved->tensor) return NULL;
    if (tr__is_vacant(saved->tensor)) {
        tr__fail(TR_STATE, "it needs a parameter %s whose memory is not here: it is in the tr_fully_shard() of a module whose "
            "outputs this backward does not come through", TR__TEXT(saved->tensor->shape));
        return kept_error();
    }
    if (saved->version != tr__version(saved->tensor) && !(as_now && saved->of_leaf)) {
        tr__fail(TR_STATE, "it needs a tensor %s that was written to after the forward, as by tr_step() or tr_copy_into(): make "
            "the forward again", TR__TEXT(saved->tensor->shape));
        return kept_error();
    }
    return tr__ref(saved->tensor);
}

static tr_status link_input(tr__node *node, int i, tr_tensor *x)
{
    node->inputs[i] = (tr__input){x->shape, x->dtype, tr__device_of(x)};
    if (x->requires_grad) node->edges[i] = tr__edge_keep(tr__edge_to(x));
    if (!(node->op->saves_inputs >> i & 1)) return TR_OK;
    tr__saved *saved = &node->saved_inputs[i];
    TR__TRY(tr__saved_set(saved, x, true));
    const tr__node *maker = saved->maker;
    bool is_in_slot = !maker && !saved->tensor; /* also when the segment runs again and saves it for the first run's nodes */
    if (is_in_slot || (maker && maker->segment)) node->segment = tr__segment_number();
    if (maker && node->depth <= maker->depth) node->depth = (unsigned char)(maker->depth + 1);
    return TR_OK;
}

/* What is computed again reads them, frozen ones, too, of which there may be no node. */
static tr_status note_parameters(const tr_op_call *call)
{
    for (int i = 0; i < call->n_inputs; i++)
        if (call->inputs[i] && tr__is_parameter(call->inputs[i])) TR__TRY(tr__segment_note(call->inputs[i]));
    return TR_OK;
}

tr_status tr__record_op(const tr_op_call *call)
{
    if (!tr__grad_mode()) return TR_OK;
    if (tr__segment_runs()) TR__TRY(note_parameters(call));
    if (!call->op->backward) return TR_OK;
    bool graph_left = false, requires_grad = false;
    for (int i = 0; i < call->n_inputs; i++) {
        graph_left |= call->inputs[i] && call->inputs[i]->graph_left;
        requires_grad |= call->inputs[i] && call->inputs[i]->requires_grad;
    }
    if (!requires_grad) {
        for (int i = 0; i < call->n_outputs && graph_left; i++)
            call->outputs[i]->graph_left = tr_dtype_is_float(call->outputs[i]->dtype);
        return TR_OK;
    }
    tr__node *node = new_node(call);
    if (!node) return TR_NO_MEMORY;
    node->graph_left = graph_left;
    tr_status status = TR_OK;
    for (int i = 0; i < call->n_inputs && status == TR_OK; i++)
        if (call->inputs[i]) status = link_input(node, i, call->inputs[i]);
    for (int i = 0; i < call->n_outputs && status == TR_OK; i++)
        if (node->op->saves_outputs >> i & 1) status = tr__saved_set(&node->saved_outputs[i], call->outputs[i], false);
    for (int i = 0; i < call->n_outputs && status == TR_OK; i++) {
        tr_tensor *y = call->outputs[i];
        if (!tr_dtype_is_float(y->dtype)) continue;
        node->made[i] = tr__version(y);
        y->node = tr__node_keep(node);
        y->output = i;
        y->requires_grad = true;
    }
    tr__node_unref(node);
    return status;
}

tr_status tr__record_boundary(const tr_op *op, const void *attrs, tr_tensor *const *outputs, int n)
{
    tr__node *node = new_node(&(tr_op_call){.op = op, .attrs = attrs, .n_outputs = n});
    if (!node) return TR_NO_MEMORY;
    for (int i = 0; i < n; i++) {
        outputs[i]->node = tr__node_keep(node);
        outputs[i]->output = i;
        outputs[i]->requires_grad = true;
    }
    tr__node_unref(node);
    return TR_OK;
}

/* ---- Leaves ---------------------------------------------------------------------------------------------------------- */

/* The leaf data of t, made at the first call; NULL: out of memory. */
static tr__leaf *leaf_of(tr_tensor *t)
{
    if (t->leaf) return t->leaf;
    t->leaf = calloc(1, sizeof *t->leaf);
    if (t->leaf)
        pthread_mutex_init(&t->leaf->hooks_lock, NULL);
    else
        tr__fail(TR_NO_MEMORY, "out of memory");
    return t->leaf;
}

void tr__leaf_free(tr__leaf *leaf)
{
    for (tr__hook *hook = leaf->hooks; hook;) {
        tr__hook *next = hook->next;
        free(hook);
        hook = next;
    }
    pthread_mutex_destroy(&leaf->hooks_lock);
    if (leaf->arena_place) *leaf->arena_place = NULL;
    tr__unref(leaf->grad);
    tr__unref(leaf->arena);
    tr__unref(leaf->shards);
    tr__unref(leaf->stages);
    free(leaf);
}

bool tr__is_parameter(const tr_tensor *t)
{
    return !t->node && t->leaf;
}

tr_tensor *tr_require_grad(tr_tensor *t)
{
    if (!t) return tr__tensor_fail(TR_INVALID, "require_grad: it takes a tensor, not NULL");
    if (tr__bad(t)) return t;
    if (t->node) return tr__tensor_fail(TR_STATE, "require_grad: %s made this tensor; only leaves can be marked", t->node->op->name);
    if (!tr_dtype_is_float(t->dtype))
        return tr__tensor_fail(TR_DTYPE, "require_grad: only floats have gradients, not %s", tr_dtype_name(t->dtype));
    if (!leaf_of(t)) return tr__tensor_failed();
    t->requires_grad = true;
    t->graph_left = false; /* the program takes its gradient from here */
    return t;
}

bool tr_requires_grad(const tr_tensor *t)
{
    return t && !tr__bad(t) && t->requires_grad;
}

/* ---- For backward functions -------------------------------------------------------------------------------------------- */

tr_shape tr__input_shape(const tr_backward_call *call, int i)
{
    return ((const tr__backward_step *)(const void *)call)->node->inputs[i].shape;
}

tr_dtype tr__input_dtype(const tr_backward_call *call, int i)
{
    return ((const tr__backward_step *)(const void *)call)->node->inputs[i].dtype;
}

bool tr__retains(const tr_backward_call *call)
{
    return ((const tr__backward_step *)(const void *)call)->retain;
}

bool tr__as_now(const tr_backward_call *call)
{
    return ((const tr__backward_step *)(const void *)call)->as_now;
}

/* The node and the call hold one reference each; any other view would hold one of the storage. */
bool tr__is_spare(const tr_backward_call *call, int i)
{
    const tr_tensor *t = call->inputs[i];
    return !tr__retains(call) && tr__is_in_rows(t) && t->storage->kind == TR__OWNED && tr__refs(t) <= 2 &&
        atomic_load(&t->storage->refs) == 1;
}

tr_tensor *tr__grad_target(tr_backward_call *call, int i, bool *accumulate)
{
    const tr__backward_step *step = (tr__backward_step *)(void *)call;
    const tr__node *node = step->node;
    tr_tensor *leaf = node->edges[i].leaf;
    bool stays = leaf && leaf->leaf->arena && !step->detached, has_place = stays && leaf->leaf->grad;
    *accumulate = stays && leaf->leaf->has_grad;
    tr_tensor *target = has_place ? leaf->leaf->grad
        : tr__tensor_new(node->inputs[i].shape, node->inputs[i].dtype, node->inputs[i].device);
    if (!stays || tr__bad(target)) return target;
    if (tr__grad_touch(leaf, true) != TR_OK) return tr__tensor_failed();
    tr__touch(target); /* the kernel writes there, where a graph may have saved the gradient so far */
    if (!has_place) leaf->leaf->grad = tr_keep(target);
    leaf->leaf->has_grad = true;
    return target;
}

tr__grad_consumer *tr__takes_rows(const tr_backward_call *call, int i)
{
    const tr__backward_step *step = (const tr__backward_step *)(const void *)call;
    if (!step->sole[i]) return NULL;
    const tr__leaf *leaf = step->node->edges[i].leaf->leaf;
    bool read = leaf->hooks || leaf->has_grad;
    return leaf->consumer && leaf->consumer->consume_rows && !read ? leaf->consumer : NULL;
}

tr_tensor *tr__zeros_like(const tr_tensor *x, tr_shape shape)
{
    tr_tensor *zero = tr_zeros(TR_SCALAR, .dtype = x->dtype, .device = tr__device_of(x));
    return shape.ndim ? tr_expand(zero, shape) : zero;
}

tr_tensor *tr__sum_to(tr_tensor *g, tr_shape shape)
{
    if (tr__bad(g) || tr__shape_equal(g->shape, shape)) return g;
    tr_reduce_options o = {.size = sizeof o, .x = g, .keep = true};
    int missing = g->shape.ndim - shape.ndim;
    for (int d = 0; d < g->shape.ndim; d++)
        if (d < missing || (shape.dim[d - missing] == 1 && g->shape.dim[d] != 1)) o.dims.dim[o.dims.count++] = d;
    tr_tensor *sum = o.dims.count ? tr_sum_with(&o) : g;
    return missing ? tr_reshape(sum, shape) : sum;
}
