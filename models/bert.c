/*
 * BERT (Devlin et al. 2019), with Hugging Face's names:
 *
 *   ids, types ── bert.embeddings ── bert.encoder.layer.0 ── … ── layer.N-1 ── head
 *   layer.i:   y = attention.output.LayerNorm(x + attention.output.dense(attend(attention.self.query, key, value)))
 *              output.LayerNorm(y + output.dense(gelu(intermediate.dense(y))))
 *   head:      masked LM   cls.predictions: words^T LayerNorm(gelu(dense(x))) + bias
 *              classifier  classifier(tanh(bert.pooler.dense(x at the first token)))
 *
 * Attention's probabilities have no dropout here; the embeddings and the two sums of each layer have.
 */
#include "encoder.h"
#include "seeds.h"
#include "sizes.h"

#include <inttypes.h>
#include <stdio.h>

static const double EPS = 1e-12;

typedef struct layer {
    int64_t heads;
    bool drops;
    tr_module *query, *key, *value, *attended, *attention_drop, *attention_norm;
    tr_module *wide, *narrow, *drop, *norm;
} layer;

typedef struct bert {
    tr_bert_head head;
    int64_t positions;
    int layers;
    tr_module *words, *places, *types, *norm, *drop; /* embeddings */
    tr_module *transform, *transform_norm;           /* of the masked-LM head */
    tr_tensor *words_weight, *bias;                  /* [vocab, dim], [vocab] */
    tr_module *pooler, *classifier_drop, *classifier;
    tr_module *encoder[];
} bert;

/* ---- Running ----------------------------------------------------------------------------------------------------- */

/* x: [batch, seq, dim] -> [batch, heads, seq, dim/heads], a view */
static tr_tensor *heads_of(tr_tensor *x, int64_t heads)
{
    return tr_transpose(tr_reshape(x, TR_SHAPE(tr_size(x, 0), tr_size(x, 1), heads, -1)), 1, 2);
}

/* dropout(projection(y)) + x */
static tr_tensor *add_to(const layer *l, tr_tensor *x, tr_module *projection, tr_module *drop, tr_tensor *y)
{
    if (!l->drops || !tr_module_training(drop)) return tr_forward(projection, y, x);
    TR_SCOPE;
    return tr_escape(tr_add(tr_forward(drop, tr_forward(projection, y)), x));
}

/* x: [batch, seq, dim], mask: [batch, 1, 1, seq] bool or NULL -> [batch, seq, dim] */
static tr_tensor *attend(const layer *l, tr_tensor *x, tr_tensor *mask)
{
    TR_SCOPE;
    tr_tensor *q = heads_of(tr_forward(l->query, x), l->heads);
    tr_tensor *k = heads_of(tr_forward(l->key, x), l->heads);
    tr_tensor *v = heads_of(tr_forward(l->value, x), l->heads);
    tr_tensor *o = tr_transpose(tr_attention(q, k, v, .mask = mask), 1, 2); /* [batch, seq, heads, dim/heads] */
    o = tr_reshape(o, tr_shape_of(x));
    return tr_escape(tr_forward(l->attention_norm, add_to(l, x, l->attended, l->attention_drop, o)));
}

/* x, mask as above; the mask may be missing */
static tr_tensor *layer_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    TR_SCOPE;
    const layer *l = tr_module_state(self);
    tr_tensor *y = attend(l, inputs[0], n > 1 ? inputs[1] : NULL);
    tr_tensor *wide = tr_forward(l->wide, y); /* [batch, seq, inner]; narrow applies GELU to it */
    return tr_escape(tr_forward(l->norm, add_to(l, y, l->narrow, l->drop, wide)));
}

/* ids, types: [batch, seq]; types may be NULL: all 0 */
static tr_tensor *embed(const bert *b, tr_tensor *ids, tr_tensor *types)
{
    TR_SCOPE;
    tr_tensor *positions = tr_arange(tr_size(ids, 1), TR_I32, tr_device_of(ids));
    if (!types) types = tr_zeros(tr_shape_of(ids), .dtype = TR_I32, .device = tr_device_of(ids));
    tr_tensor *x = tr_add(tr_forward(b->words, ids), tr_forward(b->types, types));
    x = tr_forward(b->norm, tr_add(x, tr_forward(b->places, positions)));
    return tr_escape(tr_forward(b->drop, x));
}

/* x: [batch, seq, dim], asked: [n] or NULL -> what the head gives */
static tr_tensor *apply_head(const bert *b, tr_tensor *x, tr_tensor *asked)
{
    if (b->head == TR_BERT_BARE) return tr_reshape(x, tr_shape_of(x));
    TR_SCOPE;
    if (b->head == TR_BERT_MASKED_LM) {
        if (asked) x = tr_index_select(tr_reshape(x, TR_SHAPE(-1, tr_size(x, 2))), 0, asked); /* [n, dim] */
        x = tr_forward(b->transform_norm, tr_gelu_exact(tr_forward(b->transform, x)));
        x = tr_linear_op(x, b->words_weight, .bias = b->bias);
    } else {
        tr_tensor *first = tr_select(x, 1, 0); /* [batch, dim] */
        x = tr_forward(b->classifier, tr_forward(b->classifier_drop, tr_tanh(tr_forward(b->pooler, first))));
    }
    return tr_escape(x);
}

static tr_status check_inputs(const bert *b, tr_tensor *const *inputs, int n)
{
    char text[160], ids[160];
    if (n < 1 || n > 4 || !inputs[0])
        return tr_fail(TR_INVALID, "bert: it takes ids, and a mask, token types and asked places or NULL, not %d inputs", n);
    if (tr_ndim(inputs[0]) != 2)
        return tr_fail(TR_SHAPE, "bert: ids must be [batch, seq], they are %s",
            tr_shape_text(tr_shape_of(inputs[0]), text));
    if (tr_size(inputs[0], 1) > b->positions)
        return tr_fail(TR_SHAPE, "bert: a sequence of %" PRId64 " tokens does not fit %" PRId64 " positions",
            tr_size(inputs[0], 1), b->positions);
    if (n > 3 && inputs[3] && b->head != TR_BERT_MASKED_LM)
        return tr_fail(TR_INVALID, "bert: the places that are asked about are for the masked-LM head only");
    for (int i = 1; i < n && i < 3; i++)
        if (inputs[i] && (tr_ndim(inputs[i]) != 2 || tr_size(inputs[i], 0) != tr_size(inputs[0], 0) ||
                             tr_size(inputs[i], 1) != tr_size(inputs[0], 1)))
            return tr_fail(TR_SHAPE, "bert: the %s %s, the ids %s: they must be alike",
                i == 1 ? "mask is" : "token types are", tr_shape_text(tr_shape_of(inputs[i]), text),
                tr_shape_text(tr_shape_of(inputs[0]), ids));
    return TR_OK;
}

/* ids (, mask: [batch, seq] bool (, types: [batch, seq] (, asked: [n]))) */
static tr_tensor *bert_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    const bert *b = tr_module_state(self);
    tr_status status = check_inputs(b, inputs, n);
    if (status != TR_OK) return tr_tensor_fail(status, "%s", tr_error_message());
    tr_tensor *mask = n > 1 ? inputs[1] : NULL;
    if (mask) mask = tr_reshape(mask, TR_SHAPE(tr_size(mask, 0), 1, 1, tr_size(mask, 1)));

    tr_tensor *x = tr_keep(embed(b, inputs[0], n > 2 ? inputs[2] : NULL));
    x = tr__run_layers(b->encoder, b->layers, x, &mask, 1);
    tr_tensor *out = apply_head(b, x, n > 3 ? inputs[3] : NULL);
    tr_release(x);
    return out;
}

tr_tensor *tr_bert_loss(tr_module *net, tr_tensor *ids, tr_tensor *mask, tr_tensor *types, tr_tensor *labels)
{
    if (!labels) return tr_tensor_fail(TR_INVALID, "bert_loss: labels are NULL");
    TR_SCOPE;
    tr_tensor *ignored = tr_full(-100, TR_SCALAR, .dtype = tr_dtype_of(labels), .device = tr_device_of(labels));
    tr_tensor *asked = tr_flatnonzero(tr_not_equal(labels, ignored)); /* [n] */
    tr_tensor *logits = tr_forward(net, ids, mask, types, asked);     /* [n, vocab] */
    return tr_escape(tr_cross_entropy(logits, tr_index_select(tr_reshape(labels, TR_SHAPE(-1)), 0, asked)));
}

/* ---- Building ---------------------------------------------------------------------------------------------------- */

typedef struct start {
    tr_bert_options o; /* with the defaults filled in */
    uint64_t drawn;
} start;

static uint64_t next_seed(start *s)
{
    return tr__layer_seed(s->o.seed, s->drawn++);
}

static tr_module *dense(start *s, int64_t in, int64_t out, tr_activation_kind activation)
{
    return tr_linear(in, out, .init_std = 0.02, .activation = activation, .seed = next_seed(s));
}

static tr_module *table(start *s, int64_t rows)
{
    return tr_embedding(rows, s->o.dim, .init_std = 0.02, .seed = next_seed(s));
}

/* A module that only holds others under a name. */
static tr_module *part(tr_module *parent, const char *name)
{
    return tr_module_add(parent, name, tr_module_new(name, 0, NULL));
}

static tr_module *layer_new(start *s)
{
    TR_SCOPE;
    int64_t dim = s->o.dim;
    tr_module *module = tr_module_new("layer", sizeof(layer), layer_forward);
    layer *l = tr_module_state(module);
    if (!l) return tr_escape(module);
    l->heads = s->o.heads;
    tr_module_detail(module, "heads %d", s->o.heads);
    l->drops = s->o.dropout > 0;
    tr_module *attention = part(module, "attention"), *self = part(attention, "self"), *output = part(attention, "output");
    l->query = tr_module_add(self, "query", dense(s, dim, dim, TR_NO_ACTIVATION));
    l->key = tr_module_add(self, "key", dense(s, dim, dim, TR_NO_ACTIVATION));
    l->value = tr_module_add(self, "value", dense(s, dim, dim, TR_NO_ACTIVATION));
    l->attended = tr_module_add(output, "dense", dense(s, dim, dim, TR_NO_ACTIVATION));
    l->attention_norm = tr_module_add(output, "LayerNorm", tr_layer_norm(dim, .eps = EPS));
    l->attention_drop = tr_module_add(output, "dropout", tr_dropout_layer(s->o.dropout));
    l->wide = tr_module_add(part(module, "intermediate"), "dense", dense(s, dim, s->o.inner, TR_NO_ACTIVATION));
    output = part(module, "output");
    l->narrow = tr_module_add(output, "dense", dense(s, s->o.inner, dim, TR_GELU_EXACT));
    l->norm = tr_module_add(output, "LayerNorm", tr_layer_norm(dim, .eps = EPS));
    l->drop = tr_module_add(output, "dropout", tr_dropout_layer(s->o.dropout));
    return tr_escape(module);
}

static void add_embeddings(start *s, bert *b, tr_module *inside)
{
    tr_module *embeddings = part(inside, "embeddings");
    b->words = tr_module_add(embeddings, "word_embeddings", table(s, s->o.vocab));
    b->places = tr_module_add(embeddings, "position_embeddings", table(s, s->o.positions));
    b->types = tr_module_add(embeddings, "token_type_embeddings", table(s, s->o.types));
    b->norm = tr_module_add(embeddings, "LayerNorm", tr_layer_norm(s->o.dim, .eps = EPS));
    b->drop = tr_module_add(embeddings, "dropout", tr_dropout_layer(s->o.dropout));
}

static void add_head(start *s, bert *b, tr_module *module, tr_module *inside)
{
    int64_t dim = s->o.dim;
    if (b->head == TR_BERT_MASKED_LM) {
        tr_module *predictions = part(part(module, "cls"), "predictions"), *transform = part(predictions, "transform");
        b->transform = tr_module_add(transform, "dense", dense(s, dim, dim, TR_NO_ACTIVATION));
        b->transform_norm = tr_module_add(transform, "LayerNorm", tr_layer_norm(dim, .eps = EPS));
        b->words_weight = tr_list_find(tr_parameters(b->words), "weight");
        b->bias = tr_module_parameter(predictions, "bias", tr_zeros(TR_SHAPE(s->o.vocab)));
    } else if (b->head == TR_BERT_CLASSIFIER) {
        b->pooler = tr_module_add(part(inside, "pooler"), "dense", dense(s, dim, dim, TR_NO_ACTIVATION));
        b->classifier_drop = tr_module_add(module, "dropout", tr_dropout_layer(s->o.dropout));
        b->classifier = tr_module_add(module, "classifier", dense(s, dim, s->o.classes, TR_NO_ACTIVATION));
    }
}

static tr_module *bert_new(start *s)
{
    TR_SCOPE;
    tr_module *module = tr_module_new("bert", sizeof(bert) + (size_t)s->o.layers * sizeof(tr_module *), bert_forward);
    bert *b = tr_module_state(module);
    if (!b) return tr_escape(module);
    b->head = s->o.head;
    b->positions = s->o.positions;
    b->layers = s->o.layers;
    tr_module *inside = part(module, "bert");
    add_embeddings(s, b, inside);
    tr_module *stack = part(part(inside, "encoder"), "layer");
    for (int i = 0; i < s->o.layers; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        b->encoder[i] = tr_module_add(stack, name, layer_new(s));
    }
    add_head(s, b, module, inside);
    return tr_escape(module);
}

tr_module *tr_bert_with(const tr_bert_options *options)
{
    start s = {.o = *options};
    tr_bert_options *o = &s.o;
    o->vocab = TR__SIZE_OR(o, vocab, 30522);
    o->positions = TR__SIZE_OR(o, positions, 512);
    o->types = TR__SIZE_OR(o, types, 2);
    o->layers = TR__SIZE_OR(o, layers, 12);
    o->heads = TR__SIZE_OR(o, heads, 12);
    o->dim = TR__SIZE_OR(o, dim, 768);
    o->inner = TR__SIZE_OR(o, inner, 4 * o->dim);
    o->classes = TR__SIZE_OR(o, classes, 2);
    if (o->vocab < 1 || o->positions < 1 || o->types < 1 || o->layers < 1 || o->heads < 1 || o->dim < 1 || o->inner < 1 ||
        o->classes < 1)
        return tr_module_fail(TR_INVALID, "bert: sizes must be positive: vocab %d, positions %d, types %d, layers %d, "
            "heads %d, dim %d, inner %d, classes %d", o->vocab, o->positions, o->types, o->layers, o->heads, o->dim,
            o->inner, o->classes);
    if (o->dim % o->heads)
        return tr_module_fail(TR_INVALID, "bert: dim must be a multiple of heads: %d is not one of %d", o->dim, o->heads);
    o->seed = tr__model_seed(o, o->seed);
    return bert_new(&s);
}

tr_status tr_bert_preset(const char *name, tr_bert_options *options)
{
    static const tr__preset presets[] = {
        {"nano", {259, 64, 4, 4, 128}},
        {"mini", {259, 256, 6, 6, 384}},
        {"base", {30522, 512, 12, 12, 768}},
        {"large", {30522, 512, 24, 16, 1024}},
        {0},
    };
    int *into[] = {&options->vocab, &options->positions, &options->layers, &options->heads, &options->dim, NULL};
    return tr__preset_fill("bert", presets, name, into);
}
