/*
 * ResNet (He et al. 2016), with torchvision's names:
 *
 *   x ── conv1 ── bn1 ── relu ── max pool ── layer1 ── layer2 ── layer3 ── layer4 ── average pool ── fc ── logits
 *   basic block:  relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut(x))
 *   bottleneck:   relu(bn3(conv3(relu(bn2(conv2(relu(bn1(conv1(x)))))))) + shortcut(x)), 1x1, 3x3 with the stride, 1x1
 *   shortcut:     x itself, or downsample(x): a 1x1 convolution and a norm where the size or the channels change
 *
 * Each block has a scope of its own, so of what it makes only what backward reads outlives it.
 */
#include "seeds.h"
#include "sizes.h"

#include <trireme/models.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { STAGES = 4, BLOCK_CONVS = 3 };

typedef struct block {
    int convs; /* 2: basic, 3: bottleneck */
    tr_module *conv[BLOCK_CONVS], *bn[BLOCK_CONVS]; /* a norm takes the ReLU behind it along, and the last the addition */
    tr_module *downsample; /* NULL: the shortcut is x itself */
} block;

typedef struct resnet {
    tr_module *conv1, *bn1, *layers[STAGES], *fc;
} resnet;

/* ---- Running ----------------------------------------------------------------------------------------------------- */

/* x: [batch, in, h, w] -> [batch, out, h/stride, w/stride] */
static tr_tensor *block_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    TR_SCOPE;
    const block *b = tr_module_state(self);
    tr_tensor *x = inputs[0], *y = x;
    int last = b->convs - 1;
    for (int i = 0; i < last; i++) y = tr_forward(b->bn[i], tr_forward(b->conv[i], y));
    y = tr_forward(b->conv[last], y);
    return tr_escape(tr_forward(b->bn[last], y, b->downsample ? tr_forward(b->downsample, x) : x));
}

/* x: [batch, 3, h, w] -> [batch, 64, h/4, w/4] */
static tr_tensor *stem(const resnet *r, tr_tensor *x)
{
    TR_SCOPE;
    tr_tensor *y = tr_forward(r->bn1, tr_forward(r->conv1, x));
    return tr_escape(tr_max_pool2d(y, 3, .stride = 2, .padding = 1));
}

/* x: [batch, 3, h, w] -> logits: [batch, classes] */
static tr_tensor *resnet_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    const resnet *r = tr_module_state(self);
    char text[160];
    if (n != 1 || !inputs[0]) return tr_tensor_fail(TR_INVALID, "resnet: it takes one input, images");
    if (tr_ndim(inputs[0]) != 4)
        return tr_tensor_fail(TR_SHAPE, "resnet: images must be [batch, channels, height, width], they are %s",
            tr_shape_text(tr_shape_of(inputs[0]), text));
    tr_tensor *x = stem(r, inputs[0]);
    for (int i = 0; i < STAGES; i++) x = tr_forward(r->layers[i], x);
    x = tr_adaptive_avg_pool2d(x, 1, 1); /* [batch, channels, 1, 1] */
    return tr_forward(r->fc, tr_reshape(x, TR_SHAPE(tr_size(x, 0), -1)));
}

/* ---- Building ---------------------------------------------------------------------------------------------------- */

typedef struct plan {
    uint64_t seed, drawn;
    bool bottleneck;
    int blocks[STAGES];
} plan;

/* Drawn from normal(0, 2 / (kernel^2 out)): He et al. 2015, by what the convolution gives. */
static tr_module *conv(plan *p, int64_t in, int64_t out, int kernel, int stride)
{
    return tr_conv2d(in, out, kernel, .stride = stride, .padding = kernel / 2, .no_bias = true,
        .init_std = sqrt(2.0 / ((double)kernel * kernel * (double)out)), .seed = tr__layer_seed(p->seed, p->drawn++));
}

static void add_conv(plan *p, tr_module *module, block *b, int i, int64_t in, int64_t out, int kernel, int stride)
{
    char name[24];
    snprintf(name, sizeof name, "conv%d", i + 1);
    b->conv[i] = tr_module_add(module, name, conv(p, in, out, kernel, stride));
    snprintf(name, sizeof name, "bn%d", i + 1);
    b->bn[i] = tr_module_add(module, name, tr_batch_norm2d(out, .relu = true));
}

static tr_module *block_new(plan *p, int64_t in, int64_t width, int64_t out, int stride)
{
    TR_SCOPE;
    tr_module *module = tr_module_new("block", sizeof(block), block_forward);
    block *b = tr_module_state(module);
    if (!b) return tr_escape(module);
    b->convs = p->bottleneck ? 3 : 2;
    if (p->bottleneck) {
        add_conv(p, module, b, 0, in, width, 1, 1);
        add_conv(p, module, b, 1, width, width, 3, stride);
        add_conv(p, module, b, 2, width, out, 1, 1);
    } else {
        add_conv(p, module, b, 0, in, width, 3, stride);
        add_conv(p, module, b, 1, width, out, 3, 1);
    }
    if (stride != 1 || in != out)
        b->downsample = tr_module_add(module, "downsample", tr_sequential(conv(p, in, out, 1, stride), tr_batch_norm2d(out)));
    return tr_escape(module);
}

/* A stage: its first block changes size and channels. *channels: what comes in, then what goes out. */
static tr_module *stage_new(plan *p, int stage, int64_t *channels)
{
    TR_SCOPE;
    tr_module *blocks[64];
    int64_t width = 64 << stage, out = p->bottleneck ? 4 * width : width;
    for (int i = 0; i < p->blocks[stage]; i++) {
        blocks[i] = block_new(p, *channels, width, out, i == 0 && stage > 0 ? 2 : 1);
        *channels = out;
    }
    return tr_escape(tr_sequential_n(blocks, p->blocks[stage]));
}

static tr_module *resnet_new(plan *p, const tr_resnet_options *o)
{
    TR_SCOPE;
    int64_t classes = TR__SIZE_OR(o, classes, 1000), channels = 64;
    if (classes < 1) return tr_escape(tr_module_fail(TR_INVALID, "resnet: %d classes: at least 1", (int)classes));
    tr_module *module = tr_module_new("resnet", sizeof(resnet), resnet_forward);
    resnet *r = tr_module_state(module);
    if (!r) return tr_escape(module);
    p->seed = tr__model_seed(o, o->seed);
    r->conv1 = tr_module_add(module, "conv1", conv(p, TR__SIZE_OR(o, channels, 3), 64, 7, 2));
    r->bn1 = tr_module_add(module, "bn1", tr_batch_norm2d(64, .relu = true));
    for (int i = 0; i < STAGES; i++) {
        char name[24];
        snprintf(name, sizeof name, "layer%d", i + 1);
        r->layers[i] = tr_module_add(module, name, stage_new(p, i, &channels));
    }
    r->fc = tr_module_add(module, "fc", tr_linear(channels, classes, .seed = tr__layer_seed(p->seed, p->drawn++)));
    return tr_escape(module);
}

tr_module *tr_resnet18_with(const tr_resnet_options *options)
{
    return resnet_new(&(plan){.blocks = {2, 2, 2, 2}}, options);
}

tr_module *tr_resnet34_with(const tr_resnet_options *options)
{
    return resnet_new(&(plan){.blocks = {3, 4, 6, 3}}, options);
}

tr_module *tr_resnet50_with(const tr_resnet_options *options)
{
    return resnet_new(&(plan){.bottleneck = true, .blocks = {3, 4, 6, 3}}, options);
}

tr_module *tr_resnet101_with(const tr_resnet_options *options)
{
    return resnet_new(&(plan){.bottleneck = true, .blocks = {3, 4, 23, 3}}, options);
}
