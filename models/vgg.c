/*
 * VGG (Simonyan & Zisserman 2015), with torchvision's names: features.0, features.3, …, classifier.0, .3, .6.
 *
 *   x ── features: 3x3 convolutions (each with a norm when asked for) and ReLUs, five max pools ── average pool to 7x7
 *     ── classifier: linear, relu, dropout, linear, relu, dropout, linear ── logits
 */
#include "seeds.h"
#include "sizes.h"

#include <trireme/models.h>

#include <math.h>

enum { POOL = 0, MOST_LAYERS = 64, POOLED = 7, WIDE = 4096 };

/* Channels of the convolutions, and POOL. The letters are the paper's. */
static const int A[] = {64, POOL, 128, POOL, 256, 256, POOL, 512, 512, POOL, 512, 512, POOL, -1};
static const int B[] = {64, 64, POOL, 128, 128, POOL, 256, 256, POOL, 512, 512, POOL, 512, 512, POOL, -1};
static const int D[] = {64, 64, POOL, 128, 128, POOL, 256, 256, 256, POOL, 512, 512, 512, POOL, 512, 512, 512, POOL, -1};
static const int E[] = {64, 64, POOL, 128, 128, POOL, 256, 256, 256, 256, POOL, 512, 512, 512, 512, POOL,
    512, 512, 512, 512, POOL, -1};

typedef struct vgg {
    tr_module *features, *classifier;
} vgg;

/* x: [batch, 3, h, w] -> logits: [batch, classes] */
static tr_tensor *vgg_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    const vgg *v = tr_module_state(self);
    char text[160];
    if (n != 1 || !inputs[0]) return tr_tensor_fail(TR_INVALID, "vgg: it takes one input, images");
    if (tr_ndim(inputs[0]) != 4)
        return tr_tensor_fail(TR_SHAPE, "vgg: images must be [batch, channels, height, width], they are %s",
            tr_shape_text(tr_shape_of(inputs[0]), text));
    tr_tensor *x = tr_forward(v->features, inputs[0]);  /* [batch, 512, h/32, w/32] */
    x = tr_adaptive_avg_pool2d(x, POOLED, POOLED);      /* [batch, 512, 7, 7] */
    return tr_forward(v->classifier, tr_reshape(x, TR_SHAPE(tr_size(x, 0), -1)));
}

static tr_module *features_new(const int *layout, const tr_vgg_options *o, uint64_t seed)
{
    tr_module *layers[MOST_LAYERS];
    int n = 0;
    int64_t in = TR__SIZE_OR(o, channels, 3);
    for (; *layout >= 0; layout++) {
        if (*layout == POOL) {
            layers[n++] = tr_max_pool2d_layer(2);
            continue;
        }
        /* He et al. 2015: normal(0, 2 / (9 out)), and no bias at the start */
        layers[n] = tr_conv2d(in, *layout, 3, .padding = 1, .init_std = sqrt(2.0 / (9.0 * *layout)),
            .seed = tr__layer_seed(seed, (uint64_t)n));
        n++;
        if (o->batch_norm) layers[n++] = tr_batch_norm2d(*layout);
        layers[n++] = tr_activation_layer(tr_relu);
        in = *layout;
    }
    return tr_sequential_n(layers, n);
}

static tr_module *classifier_new(const tr_vgg_options *o, uint64_t seed)
{
    bool given = o->dropout != 0 || signbit(o->dropout) || tr_given(o, "dropout");
    double p = given ? o->dropout : 0.5;
    int64_t classes = TR__SIZE_OR(o, classes, 1000);
    tr_module *first = tr_linear(512 * POOLED * POOLED, WIDE, .init_std = 0.01, .seed = tr__layer_seed(seed, 100));
    tr_module *second = tr_linear(WIDE, WIDE, .init_std = 0.01, .seed = tr__layer_seed(seed, 101));
    tr_module *last = tr_linear(WIDE, classes, .init_std = 0.01, .seed = tr__layer_seed(seed, 102));
    return tr_sequential(first, tr_activation_layer(tr_relu), tr_dropout_layer(p), second, tr_activation_layer(tr_relu),
        tr_dropout_layer(p), last);
}

static tr_module *vgg_new(const int *layout, const tr_vgg_options *o)
{
    TR_SCOPE;
    tr_module *module = tr_module_new("vgg", sizeof(vgg), vgg_forward);
    vgg *v = tr_module_state(module);
    if (!v) return tr_escape(module);
    uint64_t seed = tr__model_seed(o, o->seed);
    v->features = tr_module_add(module, "features", features_new(layout, o, seed));
    v->classifier = tr_module_add(module, "classifier", classifier_new(o, seed));
    return tr_escape(module);
}

tr_module *tr_vgg11_with(const tr_vgg_options *options) { return vgg_new(A, options); }
tr_module *tr_vgg13_with(const tr_vgg_options *options) { return vgg_new(B, options); }
tr_module *tr_vgg16_with(const tr_vgg_options *options) { return vgg_new(D, options); }
tr_module *tr_vgg19_with(const tr_vgg_options *options) { return vgg_new(E, options); }
