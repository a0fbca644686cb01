/* `trireme train resnet18` and its like: classifiers of images. */
#include "train.h"

#include "bench_result.h"
#include "train_image_data.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* ---- The models -------------------------------------------------------------------------------------------------- */

typedef struct net_wish {
    const char *name;
    int classes, channels, size;
    uint64_t seed;
} net_wish;

typedef tr_module *builder(const net_wish *request);

static tr_module *lenet(const net_wish *w)
{
    return tr_lenet(.classes = w->classes, .seed = w->seed);
}

static tr_module *vit(const net_wish *w)
{
    tr_vit_options o = {.size = sizeof o, .given = ".seed", .classes = w->classes, .channels = w->channels, .seed = w->seed};
    tr_status status = tr_vit_preset(w->name, &o);
    if (status != TR_OK) return tr_module_fail(status, "%s", tr_error_message());
    o.image = w->size;
    return tr_vit_with(&o);
}

#define BUILDER(name)                                                                                                  \
    static tr_module *name(const net_wish *w)                                                                          \
    {                                                                                                                  \
        return tr_##name(.classes = w->classes, .channels = w->channels, .seed = w->seed);                             \
    }
BUILDER(resnet18)
BUILDER(resnet34)
BUILDER(resnet50)
BUILDER(resnet101)
BUILDER(vgg11)
BUILDER(vgg13)
BUILDER(vgg16)
BUILDER(vgg19)
#undef BUILDER

#define RESNET_FREE "fc.* *.num_batches_tracked"

static const struct model {
    const char *name;
    builder *build;
    int channels, size; /* that it takes; 0: any */
    int patch;          /* that sizes are multiples of; 0: any */
    int batch;
    double lr;
    const char *free; /* of --init's weights, what need not fit: the head, for other classes, and counts of batches */
} models[] = {
    {"lenet", lenet, 1, 28, 0, 32, 0.02, "fc3.*"},
    {"resnet18", resnet18, 0, 0, 0, 64, 0.05, RESNET_FREE},
    {"resnet34", resnet34, 0, 0, 0, 64, 0.05, RESNET_FREE},
    {"resnet50", resnet50, 0, 0, 0, 64, 0.05, RESNET_FREE},
    {"resnet101", resnet101, 0, 0, 0, 64, 0.05, RESNET_FREE},
    {"vgg11", vgg11, 0, 0, 0, 64, 0.01, "classifier.6.*"},
    {"vgg13", vgg13, 0, 0, 0, 64, 0.01, "classifier.6.*"},
    {"vgg16", vgg16, 0, 0, 0, 64, 0.01, "classifier.6.*"},
    {"vgg19", vgg19, 0, 0, 0, 64, 0.01, "classifier.6.*"},
    {"vit_nano", vit, 0, 0, 4, 64, 0.02, "heads.head.*"},
    {"vit_b_16", vit, 0, 0, 16, 64, 0.01, "heads.head.*"},
    {"vit_b_32", vit, 0, 0, 32, 64, 0.01, "heads.head.*"},
    {"vit_l_16", vit, 0, 0, 16, 64, 0.01, "heads.head.*"},
    {"vit_l_32", vit, 0, 0, 32, 64, 0.01, "heads.head.*"},
    {"vit_h_14", vit, 0, 0, 14, 64, 0.01, "heads.head.*"},
};

typedef struct images {
    const struct model *model;
    int epochs, size, workers, max_pixels;
    double validation;
    const char *augment, *batch_norm, *on_bad;
    tr__image_data images; /* training NULL: not read yet */
} images;

/* ---- Options ----------------------------------------------------------------------------------------------------- */

static const tr__setting settings[] = {
    {"size", true},     {"validation", true},  {"augment", true}, {"batch-norm", true},
    {"workers", false}, {"max-pixels", false}, {"on-bad", false}, {0},
};

static int options(tr__train *t, tr__option *out)
{
    static const char *const ways[] = {"none", "shift", "mirror", NULL}, *const norms[] = {"rank", "group", NULL};
    static const char *const bad[] = {"fail", "skip", NULL};
    images *m = t->own;
    const int many = INT_MAX;
    const tr__option own[] = {
        {"size", 0, "N", "pixels a side that the model sees (28 for lenet; the images' own, at least 32; 224)",
         TR__INTEGER(&m->size, 1, 4096)},
        {"validation", 0, "P", "share of the images that is held back, where there is no set for it",
         TR__NUMBER(&m->validation, 0, 0.9)},
        {"augment", 0, "HOW", "in training, shift images a little; mirror: every second one is mirrored, too",
         TR__TEXT(&m->augment), .choices = ways},
        {"batch-norm", 0, "OVER", "statistics over what a rank has of the batch, or over the group's",
         TR__TEXT(&m->batch_norm), .choices = norms},
        {"workers", 0, "N", "threads of each rank that make batches", TR__INTEGER(&m->workers, 1, 64)},
        {"max-pixels", 0, "N", "the most pixels, width x height, that an image in a folder may have",
         TR__INTEGER(&m->max_pixels, 1, many)},
        {"on-bad", 0, "WHAT", "an image that cannot be read ends the training, or is named, counted and left out",
         TR__TEXT(&m->on_bad), .choices = bad},
        {"epochs", 0, "N", "times through the images (10)", TR__INTEGER(&m->epochs, 1, 1000000)},
        {"steps", 0, "N", "steps of the schedule, instead of --epochs", TR__INTEGER(&t->steps, 1, many)},
        {"batch", 0, "N", "images in a step, of all ranks together (64; lenet: 32)",
         TR__INTEGER(&t->batch, 1, 1000000)},
        {"micro-batch", 0, "N", "images that a rank computes at once (its share)",
         TR__INTEGER(&t->micro_batch, 1, 1000000)},
        {"lr", 0, "X", "learning rate after the warm-up (0.05; lenet and vit_nano 0.02, vgg and other vit 0.01)",
         TR__NUMBER(&t->lr, 1e-12, 1000)},
        {"warmup", 0, "N", "steps of warm-up (none)", TR__INTEGER(&t->warmup, 0, many)},
    };
    memcpy(out, own, sizeof own);
    return (int)(sizeof own / sizeof *own);
}

static int fill_in(tr__train *t)
{
    images *m = t->own;
    if (!t->batch) t->batch = m->model->batch;
    int code = tr__train_method(t, "sgd", m->model->lr);
    if (code >= 0) return code;
    if (t->recompute && (!strcmp(t->model, "lenet") || !strncmp(t->model, "vgg", 3)))
        return TR__MISUSE(t->command, "--recompute: %s has no blocks, whose inputs alone could be kept", t->model);
    if (m->epochs && tr__train_given(t, "steps"))
        return TR__MISUSE(t->command, "--epochs and --steps say the same: give one of them");
    if (m->model->size && m->size && m->size != m->model->size)
        return TR__MISUSE(t->command, "%s takes images of %d pixels a side, not --size %d", m->model->name, m->model->size,
            m->size);
    return -1;
}

/* ---- The images ------------------------------------------------------------------------------------------------ */

static tr_status open_image_data(const tr__train *t)
{
    images *m = t->own;
    const tr__image_request request = {.folder = t->data,
                                   .channels = m->model->channels,
                                   .size = m->size ? m->size : m->model->size,
                                   .max_pixels = m->max_pixels,
                                   .validation = m->validation,
                                   .augment = m->augment};
    return tr__image_data_open(&request, &m->images);
}

/* As training starts; fresh: not from a checkpoint. */
static tr_status build(tr__train *t, bool fresh, tr_module **model)
{
    const images *m = t->own;
    const tr__preparation *p = &m->images.preparations[0];
    const net_wish request = {.name = m->model->name,
                           .classes = (int)m->images.classes,
                           .channels = p->channels,
                           .size = p->size,
                           .seed = (uint64_t)t->seed};
    *model = m->model->build(&request);
    tr_status status = tr_status_of(*model);
    return status == TR_OK && fresh ? tr__train_begin_with(t, *model, &(tr__train_weights){.partial = m->model->free}) : status;
}

static int check(tr__train *t, int64_t world)
{
    images *m = t->own;
    if (t->batch < world)
        return tr__complain(t->command, "a batch of %d images cannot be shared out over %" PRId64 " ranks: give a larger "
            "--batch or fewer --ranks", t->batch, world);
    if (open_image_data(t) != TR_OK) return tr__complain(t->command, "%s", tr_error_message());
    const tr__preparation *p = &m->images.preparations[0];
    int64_t training = tr_dataset_count(m->images.training), validation = tr_dataset_count(m->images.validation);
    if (training < t->batch)
        return tr__complain(t->command, "%s has %" PRId64 " images to train on, fewer than a batch of %d", t->data, training,
            t->batch);
    if (t->keep_best && !t->resume && !validation)
        return tr__complain(t->command, "--keep-best: %s has no images to validate on: give a --validation above 0", t->data);
    if (p->size < 32 && !m->model->size)
        return tr__complain(t->command, "%s takes images of 32 pixels a side and more, not --size %d", m->model->name, p->size);
    if (m->model->patch && p->size % m->model->patch)
        return tr__complain(t->command, "%s cuts images into patches of %d pixels a side: %d is not a multiple; give another "
            "--size", m->model->name, m->model->patch, p->size);
    m->size = p->size;
    int64_t epoch = training / t->batch;
    if (m->epochs || !t->steps) {
        int64_t steps = epoch * (m->epochs ? m->epochs : 10);
        if (steps > INT_MAX) return tr__complain(t->command, "%d epochs are %" PRId64 " steps: too many", m->epochs, steps);
        t->steps = (int)steps;
        m->epochs = 0; /* ranks are told the steps */
    }
    if (!t->eval_every) t->eval_every = (int)epoch;
    if (!t->save_every) t->save_every = (int)epoch;
    char content[sizeof t->content];
    snprintf(content, sizeof content, "%" PRId64 " + %" PRId64 " images of %" PRId64 " classes, %dx%dx%d, %08" PRIx64 " %08" PRIx64,
             training, validation, m->images.classes, p->channels, p->size, p->size, tr_dataset_hash(m->images.training),
             tr_dataset_hash(m->images.validation));
    return tr__train_content(t, content);
}

/* ---- Training ---------------------------------------------------------------------------------------------------- */

static const char *folder(const tr__train *t)
{
    return t->model;
}

static tr_status trainer(tr__train *t, tr_group *group, const char *resume, tr_trainer **out)
{
    const images *m = t->own;
    tr_module *model;
    if (!m->images.training) TRY(open_image_data(t));
    TRY(build(t, !resume, &model));
    if (group && strcmp(m->batch_norm, "group") == 0) TRY(tr_convert_sync_batch_norm(model, group));
    TRY(tr__train_prepare(t, group, model));
    t->parameters = tr_list_numel(tr_parameters(model));
    *out = tr_classifier_trainer(
        model, m->images.training, .validation = m->images.validation, .group = group, .global_batch = t->batch,
        .micro_batch = t->micro_batch, .steps = t->steps, .warmup_steps = t->warmup, .lr = t->lr, .min_lr = t->min_lr,
        .momentum = t->momentum, .weight_decay = t->weight_decay, .clip = t->clip,
        .autocast = tr__train_autocast(t), .optimizer = tr__train_optimizer_maker(t), .user = t,
        .step_in_backward = t->step_in_backward, .check_replicas = t->check_replicas,
        .stop_on_spike = t->stop_on_spike,
        .seed = (uint64_t)t->seed, .workers = m->workers, .resume = resume,
        .on_bad = strcmp(m->on_bad, "skip") == 0 ? TR_SKIP : TR_FAIL, .allow_different = t->allow_different);
    return tr_status_of(*out);
}

static void introduce(const tr__train *t)
{
    const images *m = t->own;
    const tr__preparation *p = &m->images.preparations[0];
    fprintf(stderr, "%s: %.2fM parameters, %" PRId64 " classes, images of %dx%dx%d\n", t->model,
            (double)t->parameters / 1e6, m->images.classes, p->channels, p->size, p->size);
    fprintf(stderr, "%s (%s): %" PRId64 " to train on, %" PRId64 " to validate\n", t->data, m->images.kind,
            tr_dataset_count(m->images.training), tr_dataset_count(m->images.validation));
}

static void report(const tr__train *t, cJSON *object)
{
    const images *m = t->own;
    TR__ADD_NUMBERS(object, {"classes", (double)m->images.classes}, {"size", m->images.preparations[0].size},
        {"samples", (double)tr_dataset_count(m->images.training)},
        {"validation_samples", (double)tr_dataset_count(m->images.validation)}, {"momentum", t->momentum});
}

static const tr__train_kind kind = {
    .about = "Trains a classifier of images, on one process or several, and keeps what it learned.",
    .data_help = "a folder: MNIST's files, CIFAR-10's binary ones, or images in a sub-folder for each class",
    .data_missing =
        "--data PATH is missing: a folder with MNIST's files, CIFAR-10's, or a sub-folder of images for each class",
    .item = "sample",
    .options = options,
    .settings = settings,
    .fill_in = fill_in,
    .check = check,
    .folder = folder,
    .model = build,
    .trainer = trainer,
    .introduce = introduce,
    .report = report,
};

bool tr__train_images_begin(tr__train *t, const char *model)
{
    static images own; /* of the one command that a process runs */
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        if (strcmp(model, models[i].name) != 0) continue;
        own = (images){.model = &models[i],
                       .workers = 1,
                       .max_pixels = 1 << 26,
                       .validation = 0.1,
                       .augment = "none",
                       .batch_norm = "rank",
                       .on_bad = "fail"};
        t->kind = &kind;
        t->own = &own;
        t->weight_decay = 5e-4;
        return true;
    }
    return false;
}
