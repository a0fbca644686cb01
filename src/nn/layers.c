/* The modules that come with the library. */
#include "nn/module.h"

#include "autograd/capture.h"
#include "base/given.h"
#include "base/rng.h"
#include "ops/op.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

tr_tensor *tr__missing_input(const tr_module *self, int n)
{
    if (n == 1) return tr_tensor_fail(TR_INVALID, "%s: it takes one input, which is NULL", tr_module_name(self));
    return tr_tensor_fail(TR_INVALID, "%s: it takes one input, not %d", tr_module_name(self), n);
}

static tr_tensor *layer_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    return n == 1 && inputs[0] ? self->layer(self, inputs[0]) : tr__missing_input(self, n);
}

tr_module *tr__layer_new(const char *name, size_t state_bytes, tr__layer *layer)
{
    tr_module *module = tr_module_new(name, state_bytes, layer_forward);
    if (!tr__error_of(module)) module->layer = layer;
    return module;
}

tr_module *tr__layer_of(const char *name, const void *state, size_t state_bytes, tr__layer *layer)
{
    tr_module *module = tr__layer_new(name, state_bytes, layer);
    if (!tr__error_of(module)) memcpy(module->state, state, state_bytes);
    return module;
}

/* ---- Linear: y = x W^T + b (+ residual) -------------------------------------------------------------------------- */

typedef struct linear {
    tr_tensor *weight, *bias; /* [out, in], or [in, out] with in_out; [out] or NULL */
    bool in_out;
    tr_activation_kind activation; /* of x */
} linear;

/* x: [..., in], residual?: [..., out] -> [..., out] */
static tr_tensor *linear_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    const linear *l = self->state;
    if (n < 1 || n > 2 || !inputs[0]) return tr__missing_input(self, n == 2 ? 1 : n);
    tr_tensor *residual = n == 2 ? inputs[1] : NULL;
    return tr_linear_op(inputs[0], l->weight, .bias = l->bias, .residual = residual, .in_out = l->in_out,
        .activation = l->activation);
}

tr_module *tr_linear_with(const tr_linear_options *o)
{
    if (o->in_features < 1 || o->out_features < 1)
        return tr_module_fail(TR_INVALID, "linear: in_features and out_features must be positive, not %" PRId64
            " and %" PRId64, o->in_features, o->out_features);
    if (!(o->init_std >= 0))
        return tr_module_fail(TR_INVALID, "linear: init_std must not be negative, it is %g", o->init_std);
    TR_SCOPE;
    tr_module *module = tr_module_new("linear", sizeof(linear), linear_forward);
    linear *l = tr_module_state(module);
    if (!l) return tr_escape(module);
    l->in_out = o->in_out;
    l->activation = o->activation;
    if (l->activation) tr_module_detail(module, "%sactivation %d of its input", l->in_out ? "in_out, " : "", (int)l->activation);
    else if (l->in_out) tr_module_detail(module, "in_out"); /* a square weight's shape does not tell */
    tr_shape shape = o->in_out ? TR_SHAPE(o->in_features, o->out_features) : TR_SHAPE(o->out_features, o->in_features);
    const tr__affine_start start = {.weight = shape, .out = o->out_features, .fan_in = o->in_features,
        .normal = TR__GIVEN(o, init_std), .std = o->init_std, .no_bias = o->no_bias, .seed = tr__seed_of(o, o->seed),
        .dtype = o->dtype};
    tr__init_affine(module, &start, &l->weight, &l->bias);
    return tr_escape(module);
}

/* ---- Embedding --------------------------------------------------------------------------------------------------- */

typedef struct embedding {
    tr_tensor *weight; /* [rows, dim] */
} embedding;

/* ids: [...] -> [..., dim] */
static tr_tensor *embedding_forward(tr_module *self, tr_tensor *x)
{
    const embedding *e = self->state;
    return tr_embedding_op(x, e->weight);
}

tr_module *tr_embedding_with(const tr_embedding_options *o)
{
    if (o->rows < 1 || o->dim < 1)
        return tr_module_fail(TR_INVALID, "embedding: rows and dim must be positive, not %" PRId64 " and %" PRId64,
            o->rows, o->dim);
    if (!(o->init_std >= 0))
        return tr_module_fail(TR_INVALID, "embedding: init_std must not be negative, it is %g", o->init_std);
    TR_SCOPE;
    tr_module *module = tr__layer_new("embedding", sizeof(embedding), embedding_forward);
    embedding *e = tr_module_state(module);
    if (!e) return tr_escape(module);
    e->weight = tr_module_parameter(module, "weight", tr__init_normal(TR_SHAPE(o->rows, o->dim), o->dtype,
        tr__mix(tr__seed_of(o, o->seed), 0), TR__OR(o, init_std, 1)));
    return tr_escape(module);
}

/* ---- Layer norm, RMS norm, group norm ---------------------------------------------------------------------------- */

typedef struct norm {
    tr_tensor *weight, *bias; /* [dim], of group norms [channels]; RMS norms have no bias */
    int64_t groups;           /* of group norms */
    double eps;
} norm;

/* x: [..., dim] -> as x */
static tr_tensor *layer_norm_forward(tr_module *self, tr_tensor *x)
{
    const norm *l = self->state;
    return tr_layer_norm_op(x, l->weight, l->bias, l->eps);
}

/* x: [..., dim] -> as x */
static tr_tensor *rms_norm_forward(tr_module *self, tr_tensor *x)
{
    const norm *l = self->state;
    return tr_rms_norm_op(x, l->weight, l->eps);
}

/* x: [batch, channels, …] -> as x */
static tr_tensor *group_norm_forward(tr_module *self, tr_tensor *x)
{
    const norm *l = self->state;
    return tr_group_norm_op(x, l->groups, l->weight, l->bias, l->eps);
}

/* groups 0: not a group norm. */
static tr_module *norm_new(const char *name, tr__layer *forward, int64_t size, int64_t groups, double eps, tr_dtype dtype)
{
    if (!(eps >= 0)) return tr_module_fail(TR_INVALID, "%s: eps must not be negative, it is %g", name, eps);
    TR_SCOPE;
    tr_module *module = tr__layer_new(name, sizeof(norm), forward);
    norm *l = tr_module_state(module);
    if (!l) return tr_escape(module);
    l->groups = groups;
    l->eps = eps;
    if (groups) tr_module_detail(module, "groups %" PRId64 ", eps %.9g", groups, eps);
    else tr_module_detail(module, "eps %.9g", eps);
    l->weight = tr_module_parameter(module, "weight", tr_ones(TR_SHAPE(size), .dtype = dtype));
    if (forward != rms_norm_forward) l->bias = tr_module_parameter(module, "bias", tr_zeros(TR_SHAPE(size), .dtype = dtype));
    return tr_escape(module);
}

tr_module *tr_layer_norm_with(const tr_layer_norm_options *o)
{
    if (o->dim < 1) return tr_module_fail(TR_INVALID, "layer_norm: dim must be positive, not %" PRId64, o->dim);
    return norm_new("layer_norm", layer_norm_forward, o->dim, 0, TR__OR(o, eps, 1e-5), o->dtype);
}

tr_module *tr_rms_norm_with(const tr_rms_norm_options *o)
{
    if (o->dim < 1) return tr_module_fail(TR_INVALID, "rms_norm: dim must be positive, not %" PRId64, o->dim);
    return norm_new("rms_norm", rms_norm_forward, o->dim, 0, TR__OR(o, eps, 1e-6), o->dtype);
}

tr_module *tr_group_norm_with(const tr_group_norm_options *o)
{
    if (o->groups < 1 || o->channels < 1 || o->channels % o->groups)
        return tr_module_fail(TR_INVALID, "group_norm: %" PRId64 " channels do not divide into %" PRId64 " groups",
            o->channels, o->groups);
    return norm_new("group_norm", group_norm_forward, o->channels, o->groups, TR__OR(o, eps, 1e-5), o->dtype);
}

/* ---- Dropout ----------------------------------------------------------------------------------------------------- */

typedef struct dropout {
    double p;
} dropout;

/* In a captured step: what tr_seed() gave the module before the run. */
static tr_status renew_dropout(const tr__live_source *source, void *attrs)
{
    const tr_module *module = source->object;
    tr_dropout_attrs *a = attrs;
    a->seed = tr__mix(module->mode.seed, module->mode.path);
    a->step = module->mode.step;
    a->first_sample = module->mode.first_sample;
    return TR_OK;
}

static const tr__live_source_type dropout_source = {.renew = renew_dropout};

static tr_tensor *dropout_forward(tr_module *self, tr_tensor *x)
{
    const dropout *d = self->state;
    if (d->p == 0 || tr__evaluates(self)) return x;
    tr__mode mode = tr__mode_of(self);
    /* Without a seed every step would drop the same elements, and nobody would notice. */
    if (!mode.seeded && !tr_recomputing()) /* which draws what it drew first */
        return tr_tensor_fail(TR_STATE, "dropout: no random numbers: call tr_seed(model, seed, .step = …) before each "
            "forward in training, or tr_eval(model)");
    tr_dropout_attrs attrs = {.p = d->p, .seed = tr__mix(mode.seed, mode.path), .step = mode.step,
        .first_sample = mode.first_sample,
        .source = tr__capture_source(&(tr__live_source){.object = self, .type = &dropout_source})};
    return tr_apply(tr__op(dropout), &attrs, &x, 1, NULL);
}

tr_module *tr_dropout_layer(double p)
{
    if (!(p >= 0 && p < 1)) return tr_module_fail(TR_INVALID, "dropout: p must be in [0, 1), it is %g", p);
    tr_module *module = tr__layer_of("dropout", &(dropout){p}, sizeof(dropout), dropout_forward);
    tr_module_detail(module, "p %.9g", p);
    return module;
}

/* ---- Sequential -------------------------------------------------------------------------------------------------- */

/* Releases each module's input once its output exists, so that without a graph only two activations live at a time. */
static tr_tensor *sequential_forward(tr_module *self, tr_tensor *x)
{
    int last = self->count - 1; /* skip members that are not modules, such as a user's parameters */
    while (last >= 0 && self->members[last].kind != TR__CHILD) last--;
    if (last < 0) return x;
    x = tr_keep(x);
    for (int i = 0; i < last; i++) {
        if (self->members[i].kind != TR__CHILD) continue;
        TR_SCOPE;
        tr_tensor *y = tr_keep(tr_forward(self->members[i].child, x));
        tr_release(x);
        x = y;
    }
    tr_tensor *y = tr_forward(self->members[last].child, x);
    if (y == x) tr__scope_ref(y); /* a module that changes nothing, as a dropout in evaluation */
    tr_release(x);
    return y;
}

tr_module *tr_sequential_n(tr_module *const *modules, int n)
{
    if (n > 0 && !modules) return tr_module_fail(TR_INVALID, "sequential: the modules are NULL");
    tr_module *sequential = tr__layer_new("sequential", 0, sequential_forward);
    for (int i = 0; i < n; i++) {
        if (!modules[i]) return tr_module_fail(TR_INVALID, "sequential: module %d of %d is NULL", i, n);
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        tr_module_add(sequential, name, modules[i]);
    }
    return sequential;
}
