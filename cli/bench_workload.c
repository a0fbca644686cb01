/* What `trireme bench model` trains, on random data. */
#include "bench.h"

#include "train_text.h"

#include <stdio.h>
#include <string.h>

const tr__usual *tr__usual_of(const char *model)
{
    static const tr__usual models[] = {
        {"nano", "adamw", .batch = 8, .seq = 256},
        {"gpt-mini", "adamw", .batch = 8, .seq = 256},
        {"gpt2", "adamw", .batch = 4, .seq = 64},
        {"bert-tiny", "adamw", .batch = 8, .seq = 128},
        {"bert-base", "adamw", .batch = 4, .seq = 128},
        {"mlp", "sgd", .batch = 64},
        {"lenet", "momentum", .batch = 64, .size = 28},
        {"resnet18", "momentum", .batch = 8, .size = 224},
        {"resnet50", "momentum", .batch = 4, .size = 224},
        {"vgg11", "momentum", .batch = 4, .size = 224},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (strcmp(model, models[i].model) == 0) return &models[i];
    return NULL;
}

static tr_status check(const tr__workload *w)
{
    TRY(tr_status_of(w->net));
    TRY(tr_status_of(w->optimizer));
    TRY(tr_status_of(w->x));
    return tr_status_of(w->y);
}

/* Where a rank computes. */
typedef struct place {
    tr_group *group; /* or NULL */
    bool shards;     /* ranks have shards of the parameters, not replicas */
    tr_device device;
} place;

/* The module, on the device from now on. */
static tr_module *placed(tr_module *module, const place *at)
{
    tr_status status = tr_module_to(module, at->device);
    return status == TR_OK ? module : tr_module_fail(status, "%s", tr_error_message());
}

/* When there is a group: in DDP, or with its parameters sharded, those of each block together. */
static tr_module *distribute(tr_module *module, const place *at)
{
    static const char *const blocks[] = {"h", "bert.encoder.layer", "layer1", "layer2", "layer3", "layer4"};
    if (!at->group) return module;
    if (!at->shards) return tr_ddp(module, at->group);
    tr_status status = TR_OK;
    for (size_t k = 0; k < sizeof blocks / sizeof *blocks; k++) {
        char path[64];
        tr_module *block;
        for (int i = 0; status == TR_OK; i++) {
            snprintf(path, sizeof path, "%s.%d", blocks[k], i);
            if (!(block = tr_module_find(module, path))) break;
            status = tr_fully_shard(block, at->group);
        }
    }
    if (status == TR_OK) status = tr_fully_shard(module, at->group);
    return status == TR_OK ? module : tr_module_fail(status, "%s", tr_error_message());
}

static tr_optimizer *optimizer_of(const tr__bench *b, tr_module *model)
{
    if (strcmp(b->optimizer, "adamw") == 0)
        return tr_adamw(tr_parameters(model), .lr = 3e-4, .weight_decay = 0.1, .bf16_state = b->bf16_state);
    return tr_sgd(tr_parameters(model), .lr = 0.01, .momentum = strcmp(b->optimizer, "momentum") == 0 ? 0.9 : 0,
        .bf16_state = b->bf16_state);
}

/* Whole numbers in [0, limit). */
static tr_tensor *numbers_below(int64_t limit, uint64_t seed, tr_shape shape)
{
    return tr_cast(tr_affine(tr_rand(seed, shape), (double)limit - 1, 0), TR_I32);
}

/* ---- Texts ------------------------------------------------------------------------------------------------------- */

static tr_status make_gpt(const tr__bench *b, uint64_t seed, const place *at, tr__workload *w)
{
    tr_gpt_options o = {.size = sizeof o};
    TRY(tr_gpt_preset(strcmp(b->model, "gpt-mini") == 0 ? "mini" : b->model, &o));
    if (o.context < b->seq) o.context = b->seq;
    tr_module *model = placed(tr_gpt_with(&o), at);
    double tokens = (double)b->batch * b->seq, dim = o.dim, weights = o.layers * 12 * dim * dim + o.vocab * dim;
    *w = (tr__workload){
        .net = distribute(model, at),
        .x = numbers_below(o.vocab, seed, TR_SHAPE(b->batch, b->seq)),
        .y = numbers_below(o.vocab, seed + 1, TR_SHAPE(b->batch, b->seq)),
        .in_a_row = 1,
        .item = "token",
        .items = tokens,
        .flops = 6 * weights * tokens + 6.0 * o.layers * dim * b->seq * tokens,
        .formula = "6*N*T for the linear layers (N: weights in matrix products, T: tokens) + 6*layers*dim*seq*T "
                   "for attention (the causal half; nothing that is computed again is counted)",
    };
    return check(w);
}

/* The token itself for three of twenty, which are to be told; the others are not asked about. */
static tr_tensor *masked_labels(tr_tensor *ids, int64_t *asked)
{
    tr_tensor *labels = tr_full(-100, tr_shape_of(ids), .dtype = TR_I32);
    *asked = 0;
    if (tr_status_of(ids) != TR_OK || tr_status_of(labels) != TR_OK) return labels;
    const int32_t *id = tr_data(ids);
    int32_t *label = tr_data(labels);
    for (int64_t i = 0; i < tr_numel(ids); i++) {
        if (i % 20 != 0 && i % 20 != 7 && i % 20 != 13) continue;
        label[i] = id[i];
        ++*asked;
    }
    return labels;
}

static tr_status make_bert(const tr__bench *b, uint64_t seed, const place *at, tr__workload *w)
{
    bool tiny = strcmp(b->model, "bert-tiny") == 0;
    const int vocab = 30522, layers = tiny ? 2 : 12;
    const double dim = tiny ? 128 : 768, tokens = (double)b->batch * b->seq;
    tr_module *model = placed(tr_bert(.head = TR_BERT_MASKED_LM, .vocab = vocab, .layers = layers, .heads = tiny ? 2 : 12,
                                      .dim = (int)dim, .positions = b->seq > 512 ? b->seq : 512, .seed = 1), at);
    int64_t asked;
    tr_tensor *ids = numbers_below(vocab, seed, TR_SHAPE(b->batch, b->seq)), *labels = masked_labels(ids, &asked);
    *w = (tr__workload){
        .net = distribute(model, at),
        .x = ids,
        .y = labels,
        .loss = tr__language_bert.loss,
        .in_a_row = tiny ? 10 : 1,
        .item = "token",
        .items = tokens,
        .flops = 72 * layers * dim * dim * tokens + 6 * (dim * dim + vocab * dim) * (double)asked +
                 12.0 * layers * dim * b->seq * tokens,
        .formula = "6*N*T for the layers' linear ones (N: weights in matrix products, T: tokens) + 6*H*A for the head (H: its "
                   "weights, A: the tokens that are asked about) + 12*layers*dim*seq*T for attention (nothing that is computed "
                   "again is counted)",
    };
    return check(w);
}

/* ---- A small network --------------------------------------------------------------------------------------------- */

enum { PIXELS = 784, HIDDEN = 512, CLASSES = 10 };

static tr_status make_mlp(const tr__bench *b, uint64_t seed, const place *at, tr__workload *w)
{
    tr_module *model = placed(
        tr_sequential(tr_linear(PIXELS, HIDDEN, .seed = 1), tr_linear(HIDDEN, HIDDEN, .activation = TR_RELU, .seed = 2),
                      tr_linear(HIDDEN, CLASSES, .activation = TR_RELU, .seed = 3)), at);
    double first = PIXELS * HIDDEN, others = HIDDEN * (HIDDEN + CLASSES);
    *w = (tr__workload){
        .net = distribute(model, at),
        .x = tr_rand(seed, TR_SHAPE(b->batch, PIXELS)),
        .y = numbers_below(CLASSES, seed + 1, TR_SHAPE(b->batch)),
        .in_a_row = 50,
        .item = "sample",
        .items = b->batch,
        .flops = (4 * first + 6 * others) * b->batch,
        .formula = "6*N*B (N: weights, B: samples), and 4*N*B for the first layer, whose input needs no gradient",
    };
    return check(w);
}

/* ---- Images ------------------------------------------------------------------------------------------------------ */

/* Multiplications with additions in a sample's forward: of the first layer, and of all the others. */
typedef struct work {
    double first, others;
} work;

static work lenet_work(int size)
{
    (void)size; /* it takes one only */
    return (work){28 * 28 * 6 * 25, 10 * 10 * 16 * 6 * 25 + 400 * 120 + 120 * 84 + 84 * CLASSES};
}

/* Of a stage's blocks: *size comes in and goes out, *channels as well. */
static double stage_work(int stage, int blocks, bool bottleneck, int *size, int *channels)
{
    double sum = 0, width = 64 << stage;
    int out = (bottleneck ? 256 : 64) << stage;
    for (int i = 0; i < blocks; i++) {
        bool halves = i == 0 && stage > 0;
        double before = (double)*size * *size, in = *channels;
        if (halves) *size = (*size + 1) / 2;
        double after = (double)*size * *size;
        if (bottleneck)
            sum += before * in * width + after * (9 * width * width + width * out);
        else
            sum += after * 9 * (in * width + width * width);
        if (halves || *channels != out) sum += after * in * out; /* the shortcut */
        *channels = out;
    }
    return sum;
}

static work resnet_work(int size, bool bottleneck, const int blocks[4])
{
    int at = (size + 1) / 2, channels = 64;
    work w = {.first = (double)at * at * 64 * 3 * 49};
    at = (at + 1) / 2; /* the max pool */
    for (int i = 0; i < 4; i++) w.others += stage_work(i, blocks[i], bottleneck, &at, &channels);
    w.others += channels * 1000.0;
    return w;
}

static work resnet18_work(int size)
{
    return resnet_work(size, false, (const int[]){2, 2, 2, 2});
}

static work resnet50_work(int size)
{
    return resnet_work(size, true, (const int[]){3, 4, 6, 3});
}

static work vgg11_work(int size)
{
    static const int convolutions[8][3] = {/* channels in and out, halvings before */
                                           {3, 64, 0},    {64, 128, 1},  {128, 256, 2}, {256, 256, 2},
                                           {256, 512, 3}, {512, 512, 3}, {512, 512, 4}, {512, 512, 4}};
    double works[8];
    work w = {.others = 512 * 49 * 4096.0 + 4096 * 4096.0 + 4096 * 1000.0};
    for (int i = 0; i < 8; i++) {
        double side = size >> convolutions[i][2];
        works[i] = side * side * 9 * convolutions[i][0] * convolutions[i][1];
        if (i) w.others += works[i];
    }
    w.first = works[0];
    return w;
}

#define BUILDER(name) \
    static tr_module *name(void) { return tr_##name(.seed = 1); }
BUILDER(lenet)
BUILDER(resnet18)
BUILDER(resnet50)
BUILDER(vgg11)
#undef BUILDER

static const struct image_model {
    const char *name;
    tr_module *(*build)(void);
    work (*work)(int size);
    int channels, classes, in_a_row;
} image_models[] = {
    {"lenet", lenet, lenet_work, 1, CLASSES, 50},
    {"resnet18", resnet18, resnet18_work, 3, 1000, 1},
    {"resnet50", resnet50, resnet50_work, 3, 1000, 1},
    {"vgg11", vgg11, vgg11_work, 3, 1000, 1},
};

static const struct image_model *image_model(const char *name)
{
    for (size_t i = 0; i < sizeof image_models / sizeof *image_models; i++)
        if (strcmp(name, image_models[i].name) == 0) return &image_models[i];
    return NULL;
}

static tr_status make_images(const struct image_model *m, const tr__bench *b, uint64_t seed, const place *at,
                             tr__workload *w)
{
    tr_module *model = placed(m->build(), at);
    work layers = m->work(b->size);
    *w = (tr__workload){
        .net = distribute(model, at),
        .x = tr_rand(seed, TR_SHAPE(b->batch, m->channels, b->size, b->size)),
        .y = numbers_below(m->classes, seed + 1, TR_SHAPE(b->batch)),
        .in_a_row = m->in_a_row,
        .item = "sample",
        .items = b->batch,
        .flops = (4 * layers.first + 6 * layers.others) * b->batch,
        .formula =
            "6*M*B (M: multiplications of a sample's forward, B: samples), and 4*M*B for the first layer, whose input "
            "needs no gradient",
    };
    return check(w);
}

static tr_status make(const tr__bench *b, uint64_t seed, const place *at, tr__workload *w)
{
    if (strncmp(b->model, "bert", 4) == 0) return make_bert(b, seed, at, w);
    if (tr__usual_of(b->model)->seq) return make_gpt(b, seed, at, w);
    const struct image_model *m = image_model(b->model);
    return m ? make_images(m, b, seed, at, w) : make_mlp(b, seed, at, w);
}

enum { DEVICE_STEPS = 10 };

tr_status tr__workload_make(const tr__bench *b, int rank, tr_group *group, tr__workload *w)
{
    place at = {.group = group, .shards = b->fully_sharded};
    TRY(tr_group_device_named(group, b->device, &at.device));
    TRY(make(b, 2 * (uint64_t)rank, &at, w));
    w->optimizer = optimizer_of(b, w->net);
    w->device = at.device;
    /* A device works behind the host: a step alone would also time the first launch and the wait at the end. */
    if (at.device.kind != TR_CPU && w->in_a_row < DEVICE_STEPS) w->in_a_row = DEVICE_STEPS;
    w->autocast = strcmp(b->dtype, "bf16") == 0 ? TR_BF16 : TR_F32;
    w->x = tr_to(w->x, at.device);
    w->y = tr_to(w->y, at.device);
    TRY(check(w));
    /* As a trainer chooses. */
    w->in_backward = !b->step_after_backward && !b->capture && !b->fully_sharded && at.device.kind == TR_CPU;
    return tr_step_in_backward(w->optimizer, w->in_backward);
}
