/*
 * GPT-2 (Radford et al. 2019), with Hugging Face's names:
 *
 *   ids ── wte ─┬─ + ── h.0 ── … ── h.N-1 ── ln_f ── wte^T ── logits
 *          wpe ─┘
 *   h.i:   x + attn.c_proj(attention(attn.c_attn(ln_1(x)))), then x + mlp.c_proj(gelu(mlp.c_fc(ln_2(x))))
 *
 * Each half of a block has a scope of its own, so of what it makes only what backward reads outlives it: without a
 * graph nothing does.
 */
#include "encoder.h"
#include "seeds.h"
#include "sizes.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

typedef struct block {
    int heads;
    bool drops;
    tr_module *ln_1, *c_attn, *attn_proj, *attn_drop;
    tr_module *ln_2, *c_fc, *mlp_proj, *mlp_drop;
} block;

typedef struct gpt {
    int64_t context;
    int layers;
    tr_module *wte, *wpe, *drop, *ln_f;
    tr_tensor *head; /* wte's weight, [vocab, dim] */
    tr_module *blocks[];
} gpt;

/* ---- Running ----------------------------------------------------------------------------------------------------- */

/* The normed input is gone when this returns: x: [batch, seq, dim] -> [batch, seq, out]. */
static tr_tensor *norm_and_project(tr_module *norm, tr_module *projection, tr_tensor *x)
{
    TR_SCOPE;
    return tr_escape(tr_forward(projection, tr_forward(norm, x)));
}

/* projection(y) + x. Without dropout in between, the gemm adds x. */
static tr_tensor *project_onto(tr_module *projection, tr_module *dropout, bool drops, tr_tensor *y, tr_tensor *x)
{
    if (!drops || !tr_module_training(dropout)) return tr_forward(projection, y, x);
    return tr_add(tr_forward(dropout, tr_forward(projection, y)), x);
}

/* x: [batch, seq, dim] -> [batch, seq, dim] */
static tr_tensor *attend(const block *b, tr_tensor *x)
{
    TR_SCOPE;
    tr_tensor *qkv = norm_and_project(b->ln_1, b->c_attn, x); /* [batch, seq, 3*dim] */
    tr_tensor *o = tr_self_attention(qkv, b->heads, .causal = true); /* [batch, seq, dim] */
    return tr_escape(project_onto(b->attn_proj, b->attn_drop, b->drops, o, x));
}

/* x: [batch, seq, dim] -> [batch, seq, dim] */
static tr_tensor *think(const block *b, tr_tensor *x)
{
    TR_SCOPE;
    tr_tensor *wide = norm_and_project(b->ln_2, b->c_fc, x); /* [batch, seq, 4*dim] */
    return tr_escape(project_onto(b->mlp_proj, b->mlp_drop, b->drops, wide, x)); /* mlp_proj applies GELU to it */
}

static tr_tensor *block_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    const block *b = tr_module_state(self);
    return think(b, attend(b, inputs[0]));
}

/* ids: [batch, seq] -> [batch, seq, dim] */
static tr_tensor *embed(const gpt *g, tr_tensor *ids)
{
    TR_SCOPE;
    tr_tensor *positions = tr_arange(tr_size(ids, 1), TR_I32, tr_device_of(ids));
    tr_tensor *x = tr_add(tr_forward(g->wte, ids), tr_forward(g->wpe, positions));
    return tr_escape(tr_forward(g->drop, x));
}

/* ids: [batch, seq] -> logits: [batch, seq, vocab] */
static tr_tensor *gpt_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    const gpt *g = tr_module_state(self);
    if (n != 1 || !inputs[0]) return tr_tensor_fail(TR_INVALID, "gpt: it takes one input, ids");
    tr_tensor *ids = inputs[0];
    char text[160];
    if (tr_ndim(ids) != 2)
        return tr_tensor_fail(TR_SHAPE, "gpt: ids must be [batch, seq], they are %s",
            tr_shape_text(tr_shape_of(ids), text));
    if (tr_size(ids, 1) > g->context)
        return tr_tensor_fail(TR_SHAPE, "gpt: a sequence of %" PRId64 " tokens does not fit the context of %" PRId64,
            tr_size(ids, 1), g->context);

    tr_tensor *x;
    {
        TR_SCOPE;
        x = tr_keep(embed(g, ids));
    }
    x = tr__run_layers(g->blocks, g->layers, x, NULL, 0);
    tr_tensor *normed = tr_forward(g->ln_f, x);
    tr_release(x);
    return tr_linear_op(normed, g->head);
}

/* ---- Building ---------------------------------------------------------------------------------------------------- */

/* What is drawn at the start: normal(0, 0.02), and smaller by sqrt(2*layers) for the projections onto the residual
 * stream, so that its variance does not grow with depth. */
typedef struct start {
    const tr_gpt_options *options;
    double std, residual_std;
    uint64_t drawn; /* seeds used so far */
} start;

static uint64_t next_seed(start *s)
{
    return tr__layer_seed(s->options->seed, s->drawn++);
}

static tr_module *conv1d(start *s, int64_t in, int64_t out, double std, tr_activation_kind activation)
{
    return tr_linear(in, out, .in_out = true, .init_std = std, .activation = activation, .seed = next_seed(s));
}

static tr_module *block_new(start *s)
{
    TR_SCOPE;
    int64_t dim = s->options->dim;
    double p = s->options->dropout;
    tr_module *module = tr_module_new("block", sizeof(block), block_forward);
    block *b = tr_module_state(module);
    if (!b) return tr_escape(module);
    b->heads = s->options->heads;
    b->drops = p > 0;

    b->ln_1 = tr_module_add(module, "ln_1", tr_layer_norm(dim));
    tr_module *attn = tr_module_new("attention", 0, NULL);
    tr_module_detail(attn, "heads %d", b->heads);
    b->c_attn = tr_module_add(attn, "c_attn", conv1d(s, dim, 3 * dim, s->std, TR_NO_ACTIVATION));
    b->attn_proj = tr_module_add(attn, "c_proj", conv1d(s, dim, dim, s->residual_std, TR_NO_ACTIVATION));
    b->attn_drop = tr_module_add(attn, "resid_dropout", tr_dropout_layer(p));
    tr_module_add(module, "attn", attn);

    b->ln_2 = tr_module_add(module, "ln_2", tr_layer_norm(dim));
    tr_module *mlp = tr_module_new("mlp", 0, NULL);
    b->c_fc = tr_module_add(mlp, "c_fc", conv1d(s, dim, 4 * dim, s->std, TR_NO_ACTIVATION));
    b->mlp_proj = tr_module_add(mlp, "c_proj", conv1d(s, 4 * dim, dim, s->residual_std, TR_GELU));
    b->mlp_drop = tr_module_add(mlp, "dropout", tr_dropout_layer(p));
    tr_module_add(module, "mlp", mlp);
    return tr_escape(module);
}

static tr_module *gpt_new(const tr_gpt_options *o)
{
    TR_SCOPE;
    start s = {.options = o, .std = 0.02, .residual_std = 0.02 / sqrt(2.0 * o->layers)};
    tr_module *module = tr_module_new("gpt", sizeof(gpt) + (size_t)o->layers * sizeof(tr_module *), gpt_forward);
    gpt *g = tr_module_state(module);
    if (!g) return tr_escape(module);
    g->context = o->context;
    g->layers = o->layers;
    g->wte = tr_module_add(module, "wte", tr_embedding(o->vocab, o->dim, .init_std = s.std, .seed = next_seed(&s)));
    g->wpe = tr_module_add(module, "wpe", tr_embedding(o->context, o->dim, .init_std = s.std, .seed = next_seed(&s)));
    g->drop = tr_module_add(module, "drop", tr_dropout_layer(o->dropout));
    tr_module *h = tr_module_new("blocks", 0, NULL);
    for (int i = 0; i < o->layers; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        g->blocks[i] = tr_module_add(h, name, block_new(&s));
    }
    tr_module_add(module, "h", h);
    g->ln_f = tr_module_add(module, "ln_f", tr_layer_norm(o->dim));
    g->head = tr_list_find(tr_parameters(g->wte), "weight");
    return tr_escape(module);
}

tr_module *tr_gpt_with(const tr_gpt_options *options)
{
    tr_gpt_options o = *options;
    o.vocab = TR__SIZE_OR(&o, vocab, 256);
    o.context = TR__SIZE_OR(&o, context, 256);
    o.layers = TR__SIZE_OR(&o, layers, 6);
    o.heads = TR__SIZE_OR(&o, heads, 6);
    o.dim = TR__SIZE_OR(&o, dim, 384);
    if (o.vocab < 1 || o.context < 1 || o.layers < 1 || o.heads < 1 || o.dim < 1)
        return tr_module_fail(TR_INVALID,
            "gpt: sizes must be positive: vocab %d, context %d, layers %d, heads %d, dim %d",
            o.vocab, o.context, o.layers, o.heads, o.dim);
    if (o.dim % o.heads)
        return tr_module_fail(TR_INVALID, "gpt: dim must be a multiple of heads: %d is not one of %d", o.dim, o.heads);
    o.seed = tr__model_seed(&o, o.seed);
    return gpt_new(&o);
}

tr_status tr_gpt_preset(const char *name, tr_gpt_options *options)
{
    static const tr__preset presets[] = {
        {"nano", {256, 64, 4, 4, 128}},
        {"mini", {256, 256, 6, 6, 384}},
        {"gpt2", {50257, 1024, 12, 12, 768}},
        {"gpt2-medium", {50257, 1024, 24, 16, 1024}},
        {"gpt2-large", {50257, 1024, 36, 20, 1280}},
        {"gpt2-xl", {50257, 1024, 48, 25, 1600}},
        {0},
    };
    int *into[] = {&options->vocab, &options->context, &options->layers, &options->heads, &options->dim, NULL};
    return tr__preset_fill("gpt", presets, name, into);
}
