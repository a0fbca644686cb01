/* Units in a forward and a backward: when the parameters come and go, and gradients go to the shards. */
#include "parallel/fully_shard.h"

#include "comm/control.h"
#include "parallel/object_tensor.h"

#include <stdlib.h>

/* ---- Parameters come and go ------------------------------------------------------------------------------------- */

static void set_away(const tr__unit *u, tr__unit_param *p, bool away)
{
    tr__error *error = p->whole->object.error;
    if (away == (error != NULL)) return;
    if (away) atomic_fetch_add(&u->away->refs, 1);
    p->whole->object.error = away ? u->away : NULL;
    tr__error_unref(error);
}

/* Nobody may use the whole tensors, whether their memory stays or not: a later tr_step() writes to the shards alone. */
static void forbid(const tr__unit *u)
{
    for (int i = 0; i < u->n_params; i++) set_away(u, &u->params[i], true);
}

/* A parameter's version is its shard's: it has been written to when that has. To gather it again is not to write. */
static void allow(const tr__unit *u)
{
    for (int i = 0; i < u->n_params; i++) {
        tr__unit_param *p = &u->params[i];
        set_away(u, p, false);
        tr__version_set(p->whole, tr__version(p->shard));
    }
}

/* The first parameter that was written to, its shard here or itself, since it was gathered; NULL: none. */
static const tr_tensor *written(const tr__unit *u)
{
    for (int i = 0; i < u->n_params; i++)
        if (tr__version(u->params[i].whole) != tr__version(u->params[i].shard)) return u->params[i].whole;
    return NULL;
}

void tr__unit_vacate(tr__unit *u)
{
    forbid(u);
    tr__storage_vacate(u->whole->parameters->storage);
    u->here = false;
}

static tr_status gather(tr__unit *u)
{
    tr_tensor *whole = u->whole->parameters;
    const tr_tensor *own = u->own->parameters;
    bool known = tr__call_site_enter(NULL, 0).file; /* a forward does not say where the program calls it */
    TR__CALLED_AT(known ? NULL : u->site.file, u->site.line);
    TR__TRY(tr__storage_occupy(whole->storage));
    TR__TRY(tr_all_gather_v(u->group, tr__ptr(own), tr__ptr(whole), u->counts[tr_rank(u->group)], .out_counts = u->counts,
        .dtype = whole->dtype, .device = tr__device_of(whole), .tag = tr__bucket_tag(u->number, 0)));
    allow(u);
    u->here = true;
    return TR_OK;
}

/* ---- Gradients --------------------------------------------------------------------------------------------------- */

/* Fills the gradients from one element to another with zeros. */
static tr_status clear(const tr_tensor *gradients, int64_t from, int64_t to)
{
    if (from == to) return TR_OK;
    tr_tensor *range = tr__tensor_view(gradients, TR_SHAPE(to - from), NULL, gradients->offset + from);
    return tr_fill(range, 0);
}

/* Memory for the gradients of whole, in which each parameter that learns has its place; all else there is zero. A gradient that is
 * there already, as one that was final before the outputs' was, stays until reduce(): the engine may be adding to it. */
static tr_status make_gradients(tr__unit *u)
{
    TR_SCOPE;
    const tr_tensor *whole = u->whole->parameters;
    int64_t count = u->each * tr_world_size(u->group), cleared = 0;
    tr_tensor *gradients = tr_empty(TR_SHAPE(count), .dtype = whole->dtype, .device = tr__device_of(whole));
    TR__TRY(tr_status_of(gradients));
    u->whole->gradients = tr_keep(gradients);
    for (int i = 0; i < u->n_params; i++) {
        tr_tensor *t = u->params[i].whole;
        const tr__arena_slot *slot = tr__arena_slot_of(t);
        if (!u->params[i].learns || t->leaf->has_grad) continue;
        TR__TRY(clear(gradients, cleared, slot->offset));
        tr_tensor *place = tr__tensor_view(gradients, t->shape, NULL, gradients->offset + slot->offset);
        TR__TRY(tr_status_of(place));
        tr__unref(t->leaf->grad);
        t->leaf->grad = tr_keep(place);
        cleared = slot->offset + slot->count;
    }
    return clear(gradients, cleared, count);
}

static void drop_gradients(tr__unit *u)
{
    for (int i = 0; i < u->n_params; i++) {
        tr__leaf *leaf = u->params[i].whole->leaf;
        leaf->has_grad = false;
        tr__unref(leaf->grad);
        leaf->grad = NULL;
    }
    tr__unref(u->whole->gradients);
    u->whole->gradients = NULL;
}

/* Puts a parameter's gradient into its place; one of zero where it took no part. */
static tr_status place_gradient(const tr_tensor *gradients, const tr_tensor *t)
{
    const tr_tensor *grad = t->leaf->grad;
    if (!t->leaf->has_grad || grad->storage == gradients->storage) return tr__arena_zero_missing(t);
    return tr_copy_into(tr__tensor_view(gradients, t->shape, NULL, gradients->offset + tr__arena_slot_of(t)->offset), grad);
}

/* Adds this rank's block of the averages to the gradients of its shards. */
static tr_status reduce(tr__unit *u)
{
    TR_SCOPE;
    tr_tensor *gradients = u->whole->gradients;
    int64_t own = u->each * tr_rank(u->group);
    for (int i = 0; i < u->n_params; i++)
        if (u->params[i].learns) TR__TRY(place_gradient(gradients, u->params[i].whole));
    char *memory = tr__ptr(gradients);
    TR__TRY(tr_reduce_scatter(u->group, memory, memory + (size_t)own * tr_dtype_size(gradients->dtype), u->each, .op = TR_AVG,
        .dtype = gradients->dtype, .device = tr__device_of(gradients), .tag = tr__bucket_tag(u->number, 0)));
    for (int i = 0; i < u->n_params; i++) {
        tr_tensor *t = u->params[i].shard, *place = t->leaf->grad;
        if (!u->params[i].learns) continue;
        tr_tensor *average = tr__tensor_view(gradients, t->shape, NULL, gradients->offset + own + tr__arena_slot_of(t)->offset);
        TR__TRY(tr_status_of(average));
        TR__TRY(tr_copy_into(place, t->leaf->has_grad ? tr_add(place, average) : average));
        t->leaf->has_grad = true;
    }
    drop_gradients(u);
    return TR_OK;
}

/* ---- In a backward ----------------------------------------------------------------------------------------------- */

static void break_group(const tr__unit *u, tr_status status)
{
    TR__KEEP_ERROR;
    tr__fail_context(status, "fully_shard: backward failed");
    tr__group_give_up(u->group);
}

static tr_status backward_ends(void *user, tr_status status)
{
    tr__unit *u = user;
    if (!u->running) return status;
    if (status == TR_OK && u->whole->gradients) status = reduce(u);
    if (status != TR_OK) break_group(u, status);
    drop_gradients(u);
    tr__unit_vacate(u);
    u->running = NULL;
    return status;
}

static tr_status refuse_consumers(const tr__unit *u)
{
    for (int i = 0; i < u->n_params; i++)
        if (u->params[i].shard->leaf->consumer)
            return tr__fail(TR_UNSUPPORTED, "fully_shard: an optimizer steps the parameter %s in backward (tr_step_in_backward()); "
                "call tr_step()", TR__TEXT(u->params[i].whole->shape));
    return TR_OK;
}

/* The backward has come to the unit. Where the memory stayed and a shard was written to since, what was saved is refused. */
static tr_status begin(tr__unit *u, tr__backward *backward)
{
    if (u->running == backward) return TR_OK;
    if (tr__backward_sink(backward))
        return tr__fail(TR_UNSUPPORTED, "fully_shard: a distributed context keeps gradients of whole parameters; use "
            "tr_backward()");
    TR__TRY(refuse_consumers(u));
    tr__backward *none = NULL;
    if (!atomic_compare_exchange_strong(&u->running, &none, backward))
        return tr__fail(TR_STATE, "fully_shard: another backward through the module is under way: one at a time, in the same order "
            "on all ranks");
    u->pending = 0;
    tr_status status = tr__backward_on_end(backward, (tr__backward_callback){.finish = backward_ends, .user = u, .held = u});
    if (status != TR_OK) {
        u->running = NULL;
        return status;
    }
    if (!u->here) return gather(u);
    allow(u);
    return TR_OK;
}

/* Gradients are to come: of the parameters that learn now, and of p (or NULL), which may have learned in the forward only. */
static tr_status expect(tr__unit *u, const tr__unit_param *p)
{
    if (u->whole->gradients) return TR_OK;
    u->pending = 0;
    for (int i = 0; i < u->n_params; i++) {
        tr__unit_param *q = &u->params[i];
        q->learns = q->shard->requires_grad || q == p;
        u->pending += q->learns;
    }
    return u->pending > 0 ? make_gradients(u) : TR_OK;
}

/* Ends the unit's part in the backward, unless a node has yet to read a parameter, as where a frozen one is. */
static tr_status end(tr__unit *u)
{
    if (!u->running || u->pending > 0) return TR_OK;
    if (u->whole->gradients) TR__TRY(reduce(u));
    for (int i = 0; i < u->n_params; i++)
        if (tr__is_saved(u->params[i].whole)) return TR_OK;
    tr__unit_vacate(u);
    u->running = NULL;
    return TR_OK;
}

static tr_status gradient_is_final(tr_tensor *leaf, tr_tensor *grad, void *user, tr__backward *backward)
{
    tr__unit_param *p = user;
    tr__unit *u = p->unit;
    (void)leaf;
    if (!grad) { /* the backward has failed before, maybe without a node of the unit's, as that of an auxiliary loss */
        tr__group_give_up(u->group);
        return TR_OK;
    }
    TR__TRY(begin(u, backward));
    TR__TRY(expect(u, p));
    u->pending -= p->learns;
    p->learns = true;
    return end(u);
}

/* ---- Nodes where a backward comes to a unit, and leaves it ------------------------------------------------------------ */

typedef struct edge_attrs {
    tr__unit *unit; /* the holder's */
    bool leaves;    /* a backward leaves the unit here */
    bool learns;    /* some parameter did in this forward */
} edge_attrs;

enum { HOLDER, X };

static tr_status edge_infer(tr_op_call *call)
{
    const tr_tensor *x = call->inputs[X];
    call->outputs[0] = tr__tensor_view(x, x->shape, x->stride, x->offset);
    call->n_outputs = 1;
    return tr_status_of(call->outputs[0]);
}

static tr_status edge_forward(tr_op_call *call)
{
    (void)call; /* the output is the input */
    return TR_OK;
}

static tr_status edge_backward(tr_backward_call *call)
{
    const edge_attrs *a = call->attrs;
    if (!call->grad_outputs) { /* TR__OP_JOINT: the backward has failed before it came here */
        if (!a->leaves) tr__group_give_up(a->unit->group);
        if (!a->unit->running) tr__unit_vacate(a->unit);
        return TR_OK;
    }
    TR__TRY(a->leaves ? end(a->unit) : begin(a->unit, tr__backward_of(call)));
    if (!a->leaves && a->learns) TR__TRY(expect(a->unit, NULL));
    tr_tensor *dy = call->grad_outputs[0];
    call->grad_inputs[X] = tr__tensor_view(dy, dy->shape, dy->stride, dy->offset);
    return tr_status_of(call->grad_inputs[X]);
}

static const tr_op unit_edge = {
    .size = sizeof(tr_op),
    .name = "fully_shard",
    .attrs_size = sizeof(edge_attrs),
    .infer = edge_infer,
    .forward = edge_forward,
    .backward = edge_backward,
    .saves_inputs = 1u << HOLDER,
    .flags = TR__OP_ANYWHERE | TR__OP_JOINT,
};

/* x behind such a node; x itself where no gradient goes through it. The holder is a leaf, which a node that is recomputed keeps as
 * it is: so the unit is gathered before its forward runs again. */
static tr_tensor *edge(tr_tensor *x, const edge_attrs *attrs)
{
    if (!x || tr__bad(x) || !x->requires_grad || !tr_grad_enabled()) return x;
    tr_tensor *holder = tr__object_tensor(attrs->unit, tr__device_of(x));
    if (tr__bad(holder)) return holder;
    holder->dtype = TR_F32;
    tr_tensor *inputs[] = {[HOLDER] = tr_require_grad(holder), [X] = x};
    return tr_apply(&unit_edge, attrs, inputs, 2, NULL);
}

/* ---- In a forward ------------------------------------------------------------------------------------------------- */

/* learning: how many parameters do. In a backward, where the forward is recomputed, they are there already. */
static tr_status enter(tr__unit *u, int *learning)
{
    *learning = 0;
    TR__TRY(refuse_consumers(u));
    for (int i = 0; i < u->n_params; i++) {
        tr__unit_param *p = &u->params[i];
        p->whole->requires_grad = p->shard->requires_grad;
        *learning += p->whole->requires_grad;
    }
    if (u->running) return TR_OK;
    const tr_tensor *changed = tr_recomputing() ? written(u) : NULL;
    if (!changed) return gather(u);
    return tr__fail(TR_STATE, "fully_shard: a parameter %s with which the module is to be computed again was written to after the "
        "forward", TR__TEXT(changed->shape));
}

static tr_status compute(tr__unit *u, tr_module *module, tr_tensor *const *inputs, int n, tr_tensor **outputs)
{
    int learning;
    TR__TRY(enter(u, &learning));
    tr_tensor **given = calloc((size_t)n + 1, sizeof *given);
    if (!given) return tr__fail(TR_NO_MEMORY, "fully_shard: out of memory");
    /* Parameters that learn are done with when their gradients are final; after frozen ones this comes last. */
    for (int i = 0; i < n; i++)
        given[i] = learning < u->n_params ? edge(inputs[i], &(edge_attrs){.unit = u, .leaves = true}) : inputs[i];
    tr_status status = tr__module_compute(module, given, n, outputs);
    free(given);
    const tr_tensor *changed = written(u);
    if (status == TR_OK && changed)
        status = tr__fail(TR_UNSUPPORTED, "fully_shard: the forward of \"%s\" wrote to its parameter %s, which would be lost: "
            "write to the tensors of tr_parameters() outside the forward", module->name, TR__TEXT(changed->shape));
    for (int i = 0; i < module->n_outputs && status == TR_OK; i++) {
        status = outputs[i] ? tr_status_of(outputs[i]) : TR_OK;
        if (status == TR_OK && outputs[i] && outputs[i]->storage == u->whole->parameters->storage)
            status = tr__fail(TR_UNSUPPORTED, "fully_shard: an output %s of \"%s\" shows a parameter, whose memory goes after the "
                "forward: return a copy", TR__TEXT(outputs[i]->shape), module->name);
        if (status == TR_OK) outputs[i] = edge(outputs[i], &(edge_attrs){.unit = u, .learns = learning > 0});
    }
    return status;
}

static tr_status run(tr__around *around, tr_module *module, tr_tensor *const *inputs, int n, tr_tensor **outputs)
{
    tr__unit *u = (tr__unit *)(void *)around;
    tr_status status = compute(u, module, inputs, n, outputs);
    bool grad = false;
    for (int i = 0; i < module->n_outputs && status == TR_OK; i++) grad |= outputs[i] && outputs[i]->requires_grad;
    if (!u->running) {
        if (grad && (u->keep || !u->enclosed)) forbid(u);
        else tr__unit_vacate(u);
    }
    return tr__group_tell(u->group, status);
}

/* ---- A unit's life ------------------------------------------------------------------------------------------------- */

tr_status tr__unit_start(tr__unit *u)
{
    u->around.run = run;
    for (int i = 0; i < u->n_params; i++) {
        tr__unit_param *p = &u->params[i];
        p->hook = tr__leaf_hook_add(p->whole, gradient_is_final, p);
        if (p->hook < 0) return tr__fail(TR_NO_MEMORY, "out of memory");
        atomic_fetch_add(&p->whole->leaf->averagers, 1);
    }
    TR__KEEP_ERROR;
    tr__fail(TR_STATE, "the memory of this parameter is on other ranks: it is in the tr_fully_shard() of a module whose forward is "
        "not under way");
    u->away = tr__error_take();
    return TR_OK;
}

static void destroy(void *self)
{
    tr__unit *u = self;
    for (int i = 0; i < u->n_params; i++) {
        tr__unit_param *p = &u->params[i];
        if (p->hook >= 0) {
            set_away(u, p, false); /* no hook is taken from a leaf in error */
            tr_grad_hook_remove(p->whole, p->hook);
            atomic_fetch_sub(&p->whole->leaf->averagers, 1);
            if (u->away) set_away(u, p, true);
        }
        tr__unref(p->whole);
        tr__unref(p->shard);
    }
    free(u->params);
    free(u->counts);
    tr__unref(u->whole);
    tr__unref(u->own);
    tr__error_unref(u->away);
    tr__unref(u->group);
}

const tr__type tr__unit_type = {"unit of sharded parameters", sizeof(tr__unit), destroy};
