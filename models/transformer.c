/*
 * The Transformer (Vaswani et al. 2017), with PyTorch's names:
 *
 *   src ── encoder.layers.0 ── … ── encoder.norm ── memory
 *   tgt ── decoder.layers.0 ── … ── decoder.norm ── output, each of whose layers looks at memory
 *
 *   a layer   x = norm1(x + self_attn(x))
 *             x = norm2(x + multihead_attn(x, memory, memory))     in a decoder only; its last norm is norm3
 *             x = norm2(x + linear2(activation(linear1(x))))
 *   norm_first  x = x + self_attn(norm1(x)), …
 *
 * The sums and the inside of the two linear layers have dropouts; attention's probabilities have none.
 */
#include "encoder.h"
#include "seeds.h"
#include "sizes.h"

#include <math.h>
#include <stdio.h>

enum { MOST_BESIDES = 3 }; /* inputs of a layer besides x */
enum { PARTS = 3 }; /* of a layer, each with its norm and dropout: itself, memory, the two linear layers */

typedef struct layer {
    bool norm_first;
    tr_activation_kind separate; /* where a dropout stands behind the activation; otherwise linear2 applies it */
    tr_module *self_attention, *cross_attention; /* the latter NULL in an encoder */
    tr_module *linear1, *linear2, *inside;       /* inside: the dropout between them */
    tr_module *norms[PARTS], *drops[PARTS];
} layer;

typedef struct stack {
    tr_module *norm; /* NULL: none */
    int extras;      /* inputs besides x that each layer gets */
    int layers;
    tr_module *layer[];
} stack;

typedef struct transformer {
    tr_module *encoder, *decoder;
} transformer;

/* ---- A layer ----------------------------------------------------------------------------------------------------- */

static tr_tensor *input_or_none(tr_tensor *const *inputs, int n, int i)
{
    return i < n ? inputs[i] : NULL;
}

/* What a part of a layer is given of x, */
static tr_tensor *enter(const layer *l, int part, tr_tensor *x)
{
    return l->norm_first ? tr_forward(l->norms[part], x) : x;
}

/* and what becomes of it: y is what the part made. */
static tr_tensor *leave(const layer *l, int part, tr_tensor *x, tr_tensor *y)
{
    tr_tensor *sum = tr_add(x, tr_forward(l->drops[part], y));
    return l->norm_first ? sum : tr_forward(l->norms[part], sum);
}

/* x: [batch, seq, dim] -> the same */
static tr_tensor *look_at_itself(const layer *l, tr_tensor *x, tr_tensor *mask)
{
    TR_SCOPE;
    return tr_escape(leave(l, 0, x, tr_forward(l->self_attention, enter(l, 0, x), mask)));
}

/* x: [batch, seq, dim], memory: [batch, keys, dim] -> as x */
static tr_tensor *look_at_memory(const layer *l, tr_tensor *x, tr_tensor *memory, tr_tensor *mask)
{
    TR_SCOPE;
    return tr_escape(leave(l, 1, x, tr_forward(l->cross_attention, enter(l, 1, x), memory, memory, mask)));
}

static tr_tensor *activate(tr_activation_kind kind, tr_tensor *x)
{
    if (kind == TR_RELU) return tr_relu(x);
    if (kind == TR_GELU) return tr_gelu(x);
    return kind == TR_GELU_EXACT ? tr_gelu_exact(x) : x;
}

static tr_tensor *think(const layer *l, tr_tensor *x)
{
    TR_SCOPE;
    int part = l->cross_attention ? 2 : 1;
    tr_tensor *wide = tr_forward(l->linear1, enter(l, part, x)); /* [batch, seq, inner] */
    wide = tr_forward(l->inside, activate(l->separate, wide));
    return tr_escape(leave(l, part, x, tr_forward(l->linear2, wide)));
}

/* x, mask of x; a decoder's: x, memory, mask of x, mask of memory. Masks may be missing. */
static tr_tensor *layer_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    TR_SCOPE;
    const layer *l = tr_module_state(self);
    bool decodes = l->cross_attention != NULL;
    tr_tensor *x = look_at_itself(l, inputs[0], input_or_none(inputs, n, decodes ? 2 : 1));
    if (decodes) x = look_at_memory(l, x, inputs[1], input_or_none(inputs, n, 3));
    return tr_escape(think(l, x));
}

tr_module *tr__xavier_linear(int64_t in, int64_t out, tr_activation_kind activation, uint64_t *seed)
{
    double deviation = sqrt(2.0 / (double)(in + out));
    return tr_linear(in, out, .activation = activation, .init_std = deviation, .seed = tr__next_seed(seed));
}

static void add_norms(tr_module *module, layer *l, const tr_transformer_options *o, const tr__layer_names *names, int parts)
{
    for (int i = 0; i < parts; i++) {
        char name[24];
        snprintf(name, sizeof name, "dropout%d", i + 1);
        l->norms[i] = tr_module_add(module, names->norms[i], tr_layer_norm(o->dim, .eps = o->eps));
        l->drops[i] = tr_module_add(module, name, tr_dropout_layer(o->dropout));
    }
}

static tr_module *attention_of(const tr_transformer_options *o, bool causal, uint64_t *seed)
{
    return tr_multihead_attention(o->dim, o->heads, .causal = causal, .seed = tr__next_seed(seed));
}

static tr_module *layer_new(const tr_transformer_options *o, const tr__layer_names *names, bool decodes, uint64_t *seed)
{
    TR_SCOPE;
    tr_module *module = tr_module_new("layer", sizeof(layer), layer_forward), *mlp = module;
    layer *l = tr_module_state(module);
    if (!l) return tr_escape(module);
    bool drops = o->dropout > 0;
    l->norm_first = o->norm_first;
    tr_module_detail(module, "%s, activation %d", o->norm_first ? "norm first" : "norm last", (int)o->activation);
    l->separate = drops ? o->activation : TR_NO_ACTIVATION;
    l->self_attention = tr_module_add(module, names->attention, attention_of(o, o->causal, seed));
    if (decodes) l->cross_attention = tr_module_add(module, "multihead_attn", attention_of(o, false, seed));
    if (names->mlp) mlp = tr_module_add(module, names->mlp, tr_module_new(names->mlp, 0, NULL));
    l->linear1 = tr_module_add(mlp, names->linear1, tr__xavier_linear(o->dim, o->inner, TR_NO_ACTIVATION, seed));
    l->linear2 = tr_module_add(mlp, names->linear2,
        tr__xavier_linear(o->inner, o->dim, drops ? TR_NO_ACTIVATION : o->activation, seed));
    l->inside = tr_module_add(module, "dropout", tr_dropout_layer(o->dropout));
    add_norms(module, l, o, names, decodes ? PARTS : PARTS - 1);
    return tr_escape(module);
}

tr_module *tr__encoder_layer(const tr_transformer_options *options, const tr__layer_names *names, uint64_t *seed)
{
    return layer_new(options, names, false, seed);
}

/* ---- Layers, one behind the other -------------------------------------------------------------------------------- */

static tr_status check_sequence(const char *what, const tr_tensor *x)
{
    char text[160];
    if (!x) return tr_fail(TR_INVALID, "%s is NULL", what);
    if (tr_ndim(x) == 3) return TR_OK;
    return tr_fail(TR_SHAPE, "%s is %s: it must be [batch, seq, dim]", what, tr_shape_text(tr_shape_of(x), text));
}

tr_tensor *tr__run_layers(tr_module *const *layers, int count, tr_tensor *x, tr_tensor *const *besides, int n)
{
    tr_tensor *inputs[1 + MOST_BESIDES];
    for (int i = 0; i < n; i++) inputs[1 + i] = besides[i];
    for (int i = 0; i < count; i++) {
        TR_SCOPE;
        inputs[0] = x;
        tr_tensor *y = tr_keep(tr_forward_n(layers[i], inputs, 1 + n));
        tr_release(x);
        x = y;
    }
    return x;
}

/* x, what the layers look at besides. */
static tr_tensor *run_stack(const stack *s, tr_tensor *const *inputs, int n)
{
    tr_tensor *besides[MOST_BESIDES] = {NULL};
    for (int i = 1; i < n; i++) besides[i - 1] = inputs[i];
    tr_tensor *x = tr__run_layers(s->layer, s->layers, tr_keep(inputs[0]), besides, s->extras);
    tr_tensor *out = s->norm ? tr_forward(s->norm, x) : tr_reshape(x, tr_shape_of(x));
    tr_release(x);
    return out;
}

static tr_tensor *encoder_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    if (n < 1 || n > 2) return tr_tensor_fail(TR_INVALID, "it takes x and a mask or none, not %d inputs", n);
    tr_status status = check_sequence("x", inputs[0]);
    return status == TR_OK ? run_stack(tr_module_state(self), inputs, n) : tr_tensor_fail(status, "%s", tr_error_message());
}

static tr_tensor *decoder_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    if (n < 2 || n > 4)
        return tr_tensor_fail(TR_INVALID, "it takes x, memory, and masks of each or none, not %d inputs", n);
    tr_status status = check_sequence("x", inputs[0]);
    if (status == TR_OK) status = check_sequence("memory", inputs[1]);
    return status == TR_OK ? run_stack(tr_module_state(self), inputs, n) : tr_tensor_fail(status, "%s", tr_error_message());
}

static tr_module *stack_new(const tr_transformer_options *o, int layers, bool decodes, uint64_t *seed)
{
    static const tr__layer_names names = {"self_attn", {"norm1", "norm2", "norm3"}, NULL, "linear1", "linear2"};
    TR_SCOPE;
    tr_module *module = tr_module_new(decodes ? "decoder" : "encoder",
        sizeof(stack) + (size_t)layers * sizeof(tr_module *), decodes ? decoder_forward : encoder_forward);
    stack *s = tr_module_state(module);
    if (!s) return tr_escape(module);
    s->extras = decodes ? 3 : 1;
    s->layers = layers;
    tr_module *list = tr_module_add(module, "layers", tr_module_new("layers", 0, NULL));
    for (int i = 0; i < layers; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        s->layer[i] = tr_module_add(list, name, layer_new(o, &names, decodes, seed));
    }
    if (o->final_norm) s->norm = tr_module_add(module, "norm", tr_layer_norm(o->dim, .eps = o->eps));
    return tr_escape(module);
}

/* ---- Both -------------------------------------------------------------------------------------------------------- */

/* src, tgt (, masks of src, of tgt, of memory) */
static tr_tensor *transformer_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    const transformer *t = tr_module_state(self);
    if (n < 2 || n > 5)
        return tr_tensor_fail(TR_INVALID, "it takes src, tgt, and masks of src, tgt and memory or none, not %d inputs", n);
    tr_tensor *memory = tr_forward(t->encoder, inputs[0], input_or_none(inputs, n, 2));
    return tr_forward(t->decoder, inputs[1], memory, input_or_none(inputs, n, 3), input_or_none(inputs, n, 4));
}

/* Fills in the defaults; an error for what cannot be. */
static tr_status complete(tr_transformer_options *o)
{
    o->dim = TR__SIZE_OR(o, dim, 512);
    o->heads = TR__SIZE_OR(o, heads, 8);
    o->layers = TR__SIZE_OR(o, layers, 6);
    o->decoder_layers = TR__SIZE_OR(o, decoder_layers, o->layers);
    o->inner = TR__SIZE_OR(o, inner, 4 * o->dim);
    if (o->eps == 0 && !tr_given(o, "eps")) o->eps = 1e-5;
    if (o->activation == TR_NO_ACTIVATION && !tr_given(o, "activation")) o->activation = TR_RELU;
    if (o->dim < 1 || o->heads < 1 || o->layers < 1 || o->decoder_layers < 1 || o->inner < 1)
        return tr_fail(TR_INVALID, "transformer: sizes must be positive: dim %d, heads %d, layers %d, decoder_layers %d, "
            "inner %d", o->dim, o->heads, o->layers, o->decoder_layers, o->inner);
    if (o->dim % o->heads)
        return tr_fail(TR_INVALID, "transformer: dim must be a multiple of heads: %d is not one of %d", o->dim, o->heads);
    return TR_OK;
}

static tr_module *stack_alone(const tr_transformer_options *options, bool decodes)
{
    tr_transformer_options o = *options;
    uint64_t seed = tr__model_seed(&o, o.seed);
    tr_status status = complete(&o);
    return status == TR_OK ? stack_new(&o, o.layers, decodes, &seed) : tr_module_fail(status, "%s", tr_error_message());
}

tr_module *tr_transformer_encoder_with(const tr_transformer_options *options)
{
    return stack_alone(options, false);
}

tr_module *tr_transformer_decoder_with(const tr_transformer_options *options)
{
    return stack_alone(options, true);
}

tr_module *tr_transformer_with(const tr_transformer_options *options)
{
    TR_SCOPE;
    tr_transformer_options o = *options;
    uint64_t seed = tr__model_seed(&o, o.seed);
    tr_status status = complete(&o);
    if (status != TR_OK) return tr_escape(tr_module_fail(status, "%s", tr_error_message()));
    tr_module *module = tr_module_new("transformer", sizeof(transformer), transformer_forward);
    transformer *t = tr_module_state(module);
    if (!t) return tr_escape(module);
    o.final_norm = true;
    tr_transformer_options encoder = o;
    encoder.causal = false; /* the decoder alone says one after the other */
    t->encoder = tr_module_add(module, "encoder", stack_new(&encoder, o.layers, false, &seed));
    t->decoder = tr_module_add(module, "decoder", stack_new(&o, o.decoder_layers, true, &seed));
    return tr_escape(module);
}
