/* What `trireme bench model` trains, on random data. */
#include "bench.h"

#include <string.h>

bool tr__has_sequences(const char *model)
{
    return strcmp(model, "mlp") != 0 && strcmp(model, "lenet") != 0;
}

static tr_status check(const tr__workload *w)
{
    tr_status status = tr_status_of(w->net);
    if (status == TR_OK) status = tr_status_of(w->optimizer);
    if (status == TR_OK) status = tr_status_of(w->x);
    return status == TR_OK ? tr_status_of(w->y) : status;
}

/* In DDP when there is a group; the parameters are the module's either way. */
static tr_module *replicate(tr_module *module, tr_group *group)
{
    return group ? tr_ddp(module, group) : module;
}

/* Whole numbers in [0, limit). */
static tr_tensor *numbers_below(int64_t limit, uint64_t seed, tr_shape shape)
{
    return tr_cast(tr_affine(tr_rand(seed, shape), (double)limit - 1, 0), TR_I32);
}

static tr_status make_gpt(const tr__bench *b, uint64_t seed, tr_group *group, tr__workload *w)
{
    tr_gpt_options o = {.size = sizeof o};
    tr_status status = tr_gpt_preset(strcmp(b->model, "gpt-mini") == 0 ? "mini" : b->model, &o);
    if (status != TR_OK) return status;
    if (o.context < b->seq) o.context = b->seq;
    tr_module *model = tr_gpt_with(&o);
    double tokens = (double)b->batch * b->seq, dim = o.dim, weights = o.layers * 12 * dim * dim + o.vocab * dim;
    *w = (tr__workload){
        .net = replicate(model, group),
        .optimizer = tr_adamw(tr_parameters(model), .lr = 3e-4, .weight_decay = 0.1),
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

enum { PIXELS = 784, HIDDEN = 512, CLASSES = 10 };

static tr_status make_mlp(const tr__bench *b, uint64_t seed, tr_group *group, tr__workload *w)
{
    tr_module *model = tr_sequential(tr_linear(PIXELS, HIDDEN, .seed = 1),
        tr_linear(HIDDEN, HIDDEN, .activation = TR_RELU, .seed = 2),
        tr_linear(HIDDEN, CLASSES, .activation = TR_RELU, .seed = 3));
    double first = PIXELS * HIDDEN, others = HIDDEN * (HIDDEN + CLASSES);
    *w = (tr__workload){
        .net = replicate(model, group),
        .optimizer = tr_sgd(tr_parameters(model), .lr = 0.01),
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

/* Of LeNet's layers, in one sample's forward: multiplications with additions. */
enum { CONV1 = 28 * 28 * 6 * 25, CONV2 = 10 * 10 * 16 * 6 * 25, DENSE = 400 * 120 + 120 * 84 + 84 * CLASSES };

static tr_status make_lenet(const tr__bench *b, uint64_t seed, tr_group *group, tr__workload *w)
{
    tr_module *model = tr_lenet(.classes = CLASSES, .seed = 1);
    *w = (tr__workload){
        .net = replicate(model, group),
        .optimizer = tr_sgd(tr_parameters(model), .lr = 0.01, .momentum = 0.9),
        .x = tr_rand(seed, TR_SHAPE(b->batch, 1, 28, 28)),
        .y = numbers_below(CLASSES, seed + 1, TR_SHAPE(b->batch)),
        .in_a_row = 50,
        .item = "sample",
        .items = b->batch,
        .flops = (4.0 * CONV1 + 6.0 * (CONV2 + DENSE)) * b->batch,
        .formula = "6*M*B (M: multiplications of a sample's forward, B: samples), and 4*M*B for the first layer, whose input "
                   "needs no gradient",
    };
    return check(w);
}

tr_status tr__workload_make(const tr__bench *b, int rank, tr_group *group, tr__workload *w)
{
    uint64_t seed = 2 * (uint64_t)rank;
    if (tr__has_sequences(b->model)) return make_gpt(b, seed, group, w);
    return strcmp(b->model, "lenet") == 0 ? make_lenet(b, seed, group, w) : make_mlp(b, seed, group, w);
}
