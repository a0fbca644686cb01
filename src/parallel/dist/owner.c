/* The owners' side of distributed optimizers: one of ours for the parameters that live here. */
#include "parallel/dist/rpc.h"

#include "base/list.h"
#include "base/thread.h"
#include "optim/optimizer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct tr__dist_owned {
    struct tr__dist_owned *next;
    int64_t number;
    tr_optimizer *optimizer;    /* kept */
    tr_tensor_list *parameters; /* kept */
} owned;

/* ---- One step at a time -------------------------------------------------------------------------------------------------- */

/* Orders, and steps during a backward, share the leaves' places for gradients: each takes its turn, in the order in which they
 * came. */
static void await_turn(tr__dist_worker *w)
{
    TR__LOCKED(&w->lock);
    int64_t mine = w->next_turn++;
    while (w->turn != mine) pthread_cond_wait(&w->turns, &w->lock);
}

static void end_turn(tr__dist_worker *w)
{
    TR__LOCKED(&w->lock);
    w->turn++;
    pthread_cond_broadcast(&w->turns);
}

/* ---- Orders ------------------------------------------------------------------------------------------------------------ */

static owned *find(tr__dist_worker *w, int64_t number)
{
    TR__LOCKED(&w->lock);
    owned *o = w->optimizers;
    while (o && o->number != number) o = o->next;
    if (!o) tr__fail(TR_NOT_FOUND, "dist optimizer: worker %d has none of number %" PRId64, w->dist.port.self, number);
    return o;
}

/* values: the rule, its settings, and each parameter's name and reference. */
static tr_status make(tr__dist_worker *w, const tr_value *values, int n, tr_value *result)
{
    tr_tensor_list *list = tr_list_new();
    TR__TRY(tr_status_of(list));
    for (int i = 2; i + 1 < n; i += 2) {
        tr_value value;
        if (values[i].kind != TR_VALUE_STRING || values[i + 1].kind != TR_VALUE_RREF)
            return tr__fail(TR_FORMAT, "dist optimizer: a damaged list of parameters");
        TR__TRY(tr_rref_local(values[i + 1].rref, &value));
        if (value.kind != TR_VALUE_TENSOR)
            return tr__fail(TR_INVALID, "dist optimizer: parameter %s is of kind %s, not a tensor", values[i].string,
                tr_value_kind_name(value.kind));
        TR__TRY(tr_list_add(list, values[i].string, value.tensor));
    }
    double settings[TR__DIST_SETTINGS];
    tr_bytes given = values[1].bytes;
    if (given.size > sizeof settings) return tr__fail(TR_FORMAT, "dist optimizer: %zu bytes of settings", given.size);
    memcpy(settings, given.data, given.size);
    await_turn(w); /* parameters move */
    tr_optimizer *optimizer = tr__dist_rule_make(values[0].i64, settings, (int)(given.size / sizeof *settings), list);
    end_turn(w);
    TR__TRY(tr_status_of(optimizer));
    owned *o = malloc(sizeof *o);
    if (!o) return tr__fail(TR_NO_MEMORY, "dist optimizer: out of memory");
    pthread_mutex_lock(&w->lock);
    *o = (owned){w->optimizers, ++w->next_optimizer, tr_keep(optimizer), tr_keep(list)};
    w->optimizers = o;
    pthread_mutex_unlock(&w->lock);
    *result = tr_value_i64(o->number);
    return TR_OK;
}

/* The context, with a reference; NULL: this worker took no part in it, so that it has no gradients. */
static tr_dist_context *context_of(tr__dist_worker *w, const tr_value *values)
{
    return tr__dist_context_find(&w->dist, (tr__dist_id){values[1].i64, values[2].i64}, false);
}

/* Puts a gradient where the optimizer reads it. */
static tr_status place_gradient(tr_tensor *leaf, tr_tensor *gradient)
{
    TR__TRY(tr_copy_into(leaf->leaf->grad, gradient));
    leaf->leaf->has_grad = true;
    return TR_OK;
}

/* ---- Steps during a backward -------------------------------------------------------------------------------------------- */

typedef struct leaf_place {
    const tr_tensor *leaf;
    int at;
} leaf_place;

/* An optimizer that steps parameters as their gradients in a context become complete. Each step takes a turn, in which the
 * fields that change are read and written. */
typedef struct early {
    tr__dist_early base; /* first */
    tr__dist_worker *worker;
    int64_t number;
    tr_optimizer *optimizer;    /* kept: it may go before the context */
    tr_tensor_list *parameters; /* kept */
    bool armed;      /* until the context's next step */
    bool *stepped;   /* since it was armed; in the list's order */
    leaf_place places[]; /* where each parameter stands there, by address */
} early;

static int compare_places(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const leaf_place *)a)->leaf, y = (uintptr_t)((const leaf_place *)b)->leaf;
    return (x > y) - (x < y);
}

static tr_status step_one(early *e, int i, tr_tensor *gradient)
{
    tr_tensor *leaf = tr_list_at(e->parameters, i);
    if (e->stepped[i])
        return tr__fail(TR_STATE, "dist optimizer: parameter %s was stepped in an earlier backward of the context; what came now is "
            "lost to it: call tr_dist_step_in_backward() before the last backward only", tr_list_name(e->parameters, i));
    e->stepped[i] = true;
    tr_status status = place_gradient(leaf, gradient);
    if (status == TR_OK) status = tr__step_one(e->optimizer, i);
    tr_clear_grad(leaf);
    return status;
}

static tr_status use_gradient(tr__dist_early *self, tr_tensor *leaf, tr_tensor *gradient)
{
    early *e = (early *)self;
    const leaf_place *found = bsearch(&(leaf_place){.leaf = leaf}, e->places, (size_t)tr_list_count(e->parameters),
        sizeof *e->places, compare_places);
    if (!found || !gradient) return TR_OK;
    await_turn(e->worker);
    tr_status status = e->armed ? step_one(e, found->at, gradient) : TR_OK;
    end_turn(e->worker);
    return status;
}

static void free_early(tr__dist_early *self)
{
    early *e = (early *)self;
    tr__unref(e->optimizer);
    tr__unref(e->parameters);
    free(e->stepped);
    free(e);
}

/* Of an optimizer in a context; NULL: it has never been armed there. */
static early *find_early(tr_dist_context *c, int64_t number)
{
    pthread_mutex_lock(&c->lock);
    tr__dist_early *e = c->early;
    while (e && !(e->use == use_gradient && ((early *)e)->number == number)) e = e->next;
    pthread_mutex_unlock(&c->lock);
    return (early *)e;
}

static early *add_early(tr__dist_worker *w, const owned *o, tr_dist_context *c)
{
    size_t n = (size_t)tr_list_count(o->parameters);
    early *e = calloc(1, sizeof *e + n * sizeof *e->places);
    bool *stepped = calloc(n, sizeof *stepped);
    if (!e || !stepped) {
        free(e);
        free(stepped);
        tr__fail(TR_NO_MEMORY, "dist optimizer: out of memory");
        return NULL;
    }
    e->base = (tr__dist_early){.use = use_gradient, .free = free_early};
    e->worker = w;
    e->number = o->number;
    e->optimizer = tr_keep(o->optimizer);
    e->parameters = tr_keep(o->parameters);
    e->stepped = stepped;
    for (size_t i = 0; i < n; i++) e->places[i] = (leaf_place){tr_list_at(o->parameters, (int)i), (int)i};
    qsort(e->places, n, sizeof *e->places, compare_places);
    TR__LOCKED(&c->lock);
    tr__dist_early **at = &c->early;
    while (*at) at = &(*at)->next;
    *at = &e->base;
    return e;
}

/* The context may be new here. */
static tr_status arm(tr__dist_worker *w, const owned *o, const tr_value *values)
{
    tr_dist_context *c = tr__dist_context_find(&w->dist, (tr__dist_id){values[1].i64, values[2].i64}, true);
    if (!c) return tr__fail(TR_NOT_FOUND, "dist optimizer: the context is over on worker %d", w->dist.port.self);
    early *e = find_early(c, o->number);
    if (!e) e = add_early(w, o, c);
    if (e && !e->armed) memset(e->stepped, 0, (size_t)tr_list_count(e->parameters) * sizeof *e->stepped);
    if (e) e->armed = true;
    tr__unref(c);
    return e ? TR_OK : TR_NO_MEMORY;
}

/* ---- Steps after it ------------------------------------------------------------------------------------------------------- */

/* By the context's gradients, but for those that have been used. */
static tr_status step(tr__dist_worker *w, const owned *o, const tr_value *values)
{
    tr_dist_context *c = context_of(w, values);
    early *e = c ? find_early(c, o->number) : NULL;
    tr_status status = TR_OK;
    for (int i = 0; i < tr_list_count(o->parameters) && status == TR_OK; i++) {
        tr_tensor *leaf = tr_list_at(o->parameters, i), *g = c ? tr_dist_grad(c, leaf) : NULL;
        tr_clear_grad(leaf);
        if (g && !(e && e->armed && e->stepped[i])) status = place_gradient(leaf, g);
    }
    if (status == TR_OK) status = tr_step(o->optimizer);
    tr_zero_grad(o->optimizer);
    if (e) e->armed = false;
    tr__unref(c);
    return status;
}

/* A norm needs all gradients before any is used. */
static tr_status check_unused(const owned *o, tr_dist_context *c)
{
    const early *e = find_early(c, o->number);
    if (!e || !e->armed) return TR_OK;
    return tr__fail(TR_STATE, "tr_dist_clip_grad_norm: the optimizer steps during this context's backward, when the norm is not known "
        "yet: do without tr_dist_step_in_backward(), or clip each gradient in a hook");
}

/* A context's norm is that of its own gradients. Of a parameter that other ranks have, too, they must find the same. */
static tr_status check_own(const owned *o, int64_t owners)
{
    for (int i = 0; i < tr_list_count(o->parameters); i++) {
        const char *name = tr_list_name(o->parameters, i);
        tr__leaf *leaf = tr_list_at(o->parameters, i)->leaf;
        if (leaf->shards || leaf->stages)
            return tr__fail(TR_UNSUPPORTED, "tr_dist_clip_grad_norm: parameter %s is a shard, or of a pipeline's stage, of which other ranks "
                "have the rest: use tr_backward() and tr_clip_grad_norm()", name);
        if (atomic_load(&leaf->averagers) && owners > 1)
            return tr__fail(TR_UNSUPPORTED, "tr_dist_clip_grad_norm: parameter %s is a replica under tr_ddp(), and the norm over other "
                "workers' parameters differs between the contexts of its ranks, whose replicas would drift apart: give those under "
                "tr_ddp() an optimizer of their own", name);
    }
    return TR_OK;
}

static tr_status sum_squares(tr__dist_worker *w, const owned *o, const tr_value *values, tr_value *result)
{
    TR__TRY(check_own(o, values[3].i64));
    tr_dist_context *c = context_of(w, values);
    double total = 0;
    tr_status status = c ? check_unused(o, c) : TR_OK;
    for (int i = 0; c && status == TR_OK && i < tr_list_count(o->parameters); i++) {
        TR_SCOPE;
        tr_tensor *g = tr_dist_grad(c, tr_list_at(o->parameters, i));
        if (g) g = tr_cast(g, TR_F64);
        if (g) total += tr_item(tr_sum(tr_mul(g, g)));
    }
    tr__unref(c);
    *result = tr_value_f64(total);
    return status;
}

static tr_status scale(tr__dist_worker *w, const owned *o, const tr_value *values)
{
    tr_dist_context *c = context_of(w, values);
    tr_status status = TR_OK;
    for (int i = 0; c && i < tr_list_count(o->parameters) && status == TR_OK; i++) {
        TR_SCOPE;
        tr_tensor *leaf = tr_list_at(o->parameters, i), *g = tr_dist_grad(c, leaf);
        tr_tensor *scaled = g ? tr_affine(g, values[3].f64, 0) : NULL;
        status = tr_status_of(scaled);
        if (!g || status != TR_OK) continue;
        TR__LOCKED(&c->lock);
        tr__dist_grads_replace(c->grads, leaf, scaled);
    }
    tr__unref(c);
    return status;
}

/* Moments may be written to while they travel: copies. */
static tr_status give_state(const owned *o, tr_value *result)
{
    tr_tensor_list *copy = tr_list_new();
    tr_tensor_list *state = tr_optimizer_state(o->optimizer);
    tr_status status = tr_status_of(state);
    for (int i = 0; i < tr_list_count(state) && status == TR_OK; i++) {
        tr_tensor *from = tr_list_at(state, i), *to = tr__tensor_new(from->shape, from->dtype, tr__device_of(from));
        status = tr_copy_into(to, from);
        if (status == TR_OK) status = tr_list_add(copy, tr_list_name(state, i), to);
    }
    *result = tr_value_tensors(copy);
    return status;
}

static void drop(tr__dist_worker *w, owned *o)
{
    pthread_mutex_lock(&w->lock);
    TR__UNLINK(w->optimizers, o);
    pthread_mutex_unlock(&w->lock);
    tr__unref(o->optimizer);
    tr__unref(o->parameters);
    free(o);
}

/* What each order's values are: their kinds, behind the number. */
static const struct {
    int n;
    tr_value_kind kinds[4];
} signatures[TR__DIST_ORDERS] = {
    [TR__DIST_MAKE] = {2, {TR_VALUE_I64, TR_VALUE_BYTES}},
    [TR__DIST_EARLY] = {3, {TR_VALUE_I64, TR_VALUE_I64, TR_VALUE_I64}},
    [TR__DIST_STEP] = {3, {TR_VALUE_I64, TR_VALUE_I64, TR_VALUE_I64}},
    [TR__DIST_NORM] = {4, {TR_VALUE_I64, TR_VALUE_I64, TR_VALUE_I64, TR_VALUE_I64}},
    [TR__DIST_SCALE] = {4, {TR_VALUE_I64, TR_VALUE_I64, TR_VALUE_I64, TR_VALUE_F64}},
    [TR__DIST_LR] = {2, {TR_VALUE_I64, TR_VALUE_F64}},
    [TR__DIST_STATE] = {1, {TR_VALUE_I64}},
    [TR__DIST_LOAD] = {2, {TR_VALUE_I64, TR_VALUE_TENSORS}},
    [TR__DIST_DROP] = {1, {TR_VALUE_I64}},
};

static tr_status carry_out(tr__dist_worker *w, owned *o, tr__dist_order order, const tr_value *values, tr_value *result)
{
    switch (order) {
    case TR__DIST_EARLY: return arm(w, o, values);
    case TR__DIST_STEP: return step(w, o, values);
    case TR__DIST_NORM: return sum_squares(w, o, values, result);
    case TR__DIST_SCALE: return scale(w, o, values);
    case TR__DIST_LR: return tr_set_lr(o->optimizer, values[1].f64);
    case TR__DIST_STATE: return give_state(o, result);
    case TR__DIST_LOAD: return tr_optimizer_load(o->optimizer, values[1].tensors);
    default: drop(w, o); return TR_OK;
    }
}

tr_status tr__dist_obey(tr__dist_worker *w, tr__dist_order order, const tr_value *values, int n, tr_value *result)
{
    bool fits = n == signatures[order].n || (order == TR__DIST_MAKE && n > 2);
    for (int i = 0; fits && i < signatures[order].n; i++) fits = values[i].kind == signatures[order].kinds[i];
    if (!fits) return tr__fail(TR_FORMAT, "dist optimizer: a damaged order");
    *result = tr_value_none();
    if (order == TR__DIST_MAKE) return make(w, values, n, result);
    await_turn(w);
    owned *o = find(w, values[0].i64);
    tr_status status = o ? carry_out(w, o, order, values, result) : TR_NOT_FOUND;
    end_turn(w);
    return status;
}

/* A handler for each order, since handlers do not get their names. */
#define HANDLER(name, text)                                                                                            \
    static tr_status handle_##name(void *user, int from, const tr_value *values, int n, tr_value *result)              \
    {                                                                                                                  \
        (void)from;                                                                                                    \
        return tr__dist_obey(user, TR__DIST_##name, values, n, result);                                                \
    }
TR__DIST_OWNER_MAP(HANDLER)

tr_status tr__dist_owner_start(tr__dist_worker *w)
{
#define REGISTER(name, text) TR__TRY(tr__rpc_handle(w->rpc, text, handle_##name, w, false));
    TR__DIST_OWNER_MAP(REGISTER)
#undef REGISTER
    return TR_OK;
}

void tr__dist_owner_end(tr__dist_worker *w)
{
    while (w->optimizers) drop(w, w->optimizers);
}

tr_future *tr__dist_order_to(tr__dist_worker *w, int to, tr__dist_order order, const tr_value *values, int n)
{
#define NAME(name, text) text,
    static const char *const names[] = {TR__DIST_OWNER_MAP(NAME)};
#undef NAME
    return tr__rpc_internal(w->rpc, to, names[order], values, n, 0);
}
