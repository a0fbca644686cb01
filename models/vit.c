/*
 * The Vision Transformer (Dosovitskiy et al. 2021), with torchvision's names:
 *
 *   images ── conv_proj: a token for each patch ── class_token in front ── + encoder.pos_embedding
 *          ── encoder.layers.encoder_layer_0 ── … ── encoder.ln ── heads.head of the first token
 *   a layer   x + self_attention(ln_1(x)), then x + mlp.3(gelu(mlp.0(ln_2(x))))
 */
#include "encoder.h"
#include "seeds.h"
#include "sizes.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static const double EPS = 1e-6;

typedef struct vit {
    int64_t image, channels;
    tr_module *patches, *drop, *norm, *head;
    tr_tensor *class_token, *places; /* [1, 1, dim], [1, 1 + patches, dim] */
    int layers;
    tr_module *layer[];
} vit;

/* ---- Running ----------------------------------------------------------------------------------------------------- */

/* x: [batch, channels, height, width] -> [batch, 1 + patches, dim] */
static tr_tensor *embed(const vit *v, tr_tensor *x)
{
    TR_SCOPE;
    tr_tensor *patches = tr_forward(v->patches, x); /* [batch, dim, rows, columns] */
    int64_t batch = tr_size(patches, 0), dim = tr_size(patches, 1);
    patches = tr_transpose(tr_reshape(patches, TR_SHAPE(batch, dim, -1)), 1, 2);
    tr_tensor *first = tr_expand(v->class_token, TR_SHAPE(batch, 1, dim));
    tr_tensor *tokens = tr_cat((tr_tensor *[]){first, patches}, 2, 1);
    return tr_escape(tr_forward(v->drop, tr_add(tokens, v->places)));
}

static tr_tensor *vit_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    const vit *v = tr_module_state(self);
    char text[160];
    if (n != 1 || !inputs[0]) return tr_tensor_fail(TR_INVALID, "vit: it takes one input, images");
    if (tr_ndim(inputs[0]) != 4 || tr_size(inputs[0], 1) != v->channels || tr_size(inputs[0], 2) != v->image ||
        tr_size(inputs[0], 3) != v->image)
        return tr_tensor_fail(TR_SHAPE, "vit: images must be [batch, %" PRId64 ", %" PRId64 ", %" PRId64 "], they are %s",
            v->channels, v->image, v->image, tr_shape_text(tr_shape_of(inputs[0]), text));

    tr_tensor *x = tr__run_layers(v->layer, v->layers, tr_keep(embed(v, inputs[0])), NULL, 0);
    tr_tensor *first = tr_select(x, 1, 0); /* [batch, dim] */
    tr_release(x);
    return tr_forward(v->head, tr_forward(v->norm, first)); /* the norm of the others would be for nothing */
}

/* ---- Building ---------------------------------------------------------------------------------------------------- */

static void add_layers(tr_module *encoder, vit *v, const tr_vit_options *o, uint64_t *seed)
{
    static const tr__layer_names names = {"self_attention", {"ln_1", "ln_2"}, "mlp", "0", "3"};
    tr_transformer_options layer = {.size = sizeof layer,
                                    .dim = o->dim,
                                    .heads = o->heads,
                                    .inner = o->inner,
                                    .dropout = o->dropout,
                                    .eps = EPS,
                                    .activation = TR_GELU_EXACT,
                                    .norm_first = true};
    tr_module *layers = tr_module_add(encoder, "layers", tr_module_new("layers", 0, NULL));
    v->layers = o->layers;
    for (int i = 0; i < o->layers; i++) {
        char name[32];
        snprintf(name, sizeof name, "encoder_layer_%d", i);
        v->layer[i] = tr_module_add(layers, name, tr__encoder_layer(&layer, &names, seed));
    }
}

static tr_module *vit_new(const tr_vit_options *o)
{
    TR_SCOPE;
    int64_t side = o->image / o->patch, dim = o->dim;
    uint64_t seed = tr__model_seed(o, o->seed);
    tr_module *module = tr_module_new("vit", sizeof(vit) + (size_t)o->layers * sizeof(tr_module *), vit_forward);
    vit *v = tr_module_state(module);
    if (!v) return tr_escape(module);
    v->image = o->image;
    v->channels = o->channels;
    v->class_token = tr_module_parameter(module, "class_token", tr_zeros(TR_SHAPE(1, 1, dim)));
    double deviation = 1 / sqrt((double)o->channels * o->patch * o->patch);
    v->patches = tr_module_add(module, "conv_proj", tr_conv2d(o->channels, dim, o->patch, .stride = o->patch,
        .init_std = deviation, .seed = tr__next_seed(&seed)));
    tr_module *encoder = tr_module_add(module, "encoder", tr_module_new("encoder", 0, NULL));
    tr_tensor *places = tr_affine(tr_randn(tr__next_seed(&seed), TR_SHAPE(1, 1 + side * side, dim)), 0.02, 0);
    v->places = tr_module_parameter(encoder, "pos_embedding", places);
    v->drop = tr_module_add(encoder, "dropout", tr_dropout_layer(o->dropout));
    add_layers(encoder, v, o, &seed);
    v->norm = tr_module_add(encoder, "ln", tr_layer_norm(dim, .eps = EPS));
    tr_module *heads = tr_module_add(module, "heads", tr_module_new("heads", 0, NULL));
    /* Zeros: at first no class is likelier than another. */
    v->head = tr_module_add(heads, "head", tr_linear(dim, o->classes, .init_std = 0, .seed = 0));
    return tr_escape(module);
}

tr_module *tr_vit_with(const tr_vit_options *options)
{
    tr_vit_options o = *options;
    o.classes = TR__SIZE_OR(&o, classes, 1000);
    o.channels = TR__SIZE_OR(&o, channels, 3);
    o.image = TR__SIZE_OR(&o, image, 224);
    o.patch = TR__SIZE_OR(&o, patch, 16);
    o.layers = TR__SIZE_OR(&o, layers, 12);
    o.heads = TR__SIZE_OR(&o, heads, 12);
    o.dim = TR__SIZE_OR(&o, dim, 768);
    o.inner = TR__SIZE_OR(&o, inner, 4 * o.dim);
    if (o.classes < 1 || o.channels < 1 || o.layers < 1 || o.heads < 1 || o.dim < 1 || o.inner < 1)
        return tr_module_fail(TR_INVALID, "vit: sizes must be positive: classes %d, channels %d, layers %d, heads %d, dim %d, "
            "inner %d", o.classes, o.channels, o.layers, o.heads, o.dim, o.inner);
    if (o.patch < 1 || o.image < o.patch || o.image % o.patch)
        return tr_module_fail(TR_INVALID, "vit: image must be a multiple of patch: %d is not one of %d", o.image, o.patch);
    if (o.dim % o.heads)
        return tr_module_fail(TR_INVALID, "vit: dim must be a multiple of heads: %d is not one of %d", o.dim, o.heads);
    return vit_new(&o);
}

tr_status tr_vit_preset(const char *name, tr_vit_options *options)
{
    static const tr__preset presets[] = {
        {"vit_nano", {32, 4, 4, 4, 64}},
        {"vit_b_16", {224, 16, 12, 12, 768}},
        {"vit_b_32", {224, 32, 12, 12, 768}},
        {"vit_l_16", {224, 16, 24, 16, 1024}},
        {"vit_l_32", {224, 32, 24, 16, 1024}},
        {"vit_h_14", {224, 14, 32, 16, 1280}},
        {0},
    };
    int *into[] = {&options->image, &options->patch, &options->layers, &options->heads, &options->dim, NULL};
    return tr__preset_fill("vit", presets, name, into);
}
