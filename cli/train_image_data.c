#include "train_image_data.h"

#include "options.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- Preparing images --------------------------------------------------------------------------------------- */

/* The next of a image's random numbers, in 0 … n-1 (splitmix64: Steele, Lea & Flood 2014). */
static int draw(uint64_t *state, int n)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (int)((z ^ (z >> 31)) % (uint64_t)n);
}

/* Where a image is taken from: out[y][x] = in[y + top][x + left], mirrored or not. */
typedef struct placement {
    int height, width, top, left;
    bool mirrored;
} placement;

/* The middle of one lies on the middle of the other, but for up to an eighth of the size when it is shifted. */
static placement place(const tr__preparation *p, tr_shape shape, uint64_t seed)
{
    placement at = {.height = (int)shape.dim[1], .width = (int)shape.dim[2]};
    at.top = (at.height - p->size) / 2;
    at.left = (at.width - p->size) / 2;
    if (!p->shift) return at;
    int reach = p->size / 8;
    at.top += draw(&seed, 2 * reach + 1) - reach;
    at.left += draw(&seed, 2 * reach + 1) - reach;
    at.mirrored = p->mirror && draw(&seed, 2);
    return at;
}

/* What lies outside is black. */
static float value_at(const uint8_t *plane, const placement *at, int size, int y, int x)
{
    int row = y + at->top, column = (at->mirrored ? size - 1 - x : x) + at->left;
    bool inside = row >= 0 && row < at->height && column >= 0 && column < at->width;
    return inside ? (float)plane[row * at->width + column] / 255.0f : 0;
}

/* One channel, [size, size], of a image of `channels` others: its own one, or their mean when grey is wanted. */
static void put_plane(const tr__preparation *p, const placement *at, const uint8_t *image, int channels, int c,
                      float *out)
{
    int first = c < channels ? c : 0, last = p->channels == 1 ? channels - 1 : first;
    int64_t plane = (int64_t)at->height * at->width;
    for (int y = 0; y < p->size; y++)
        for (int x = 0; x < p->size; x++) {
            float sum = 0;
            for (int k = first; k <= last; k++) sum += value_at(image + k * plane, at, p->size, y, x);
            out[y * p->size + x] = (sum / (float)(last - first + 1) - p->mean[c]) / p->deviation[c];
        }
}

/* x: u8 [channels, height, width] -> f32 [p->channels, p->size, p->size] */
static tr_status prepare(const tr_sample_call *call, tr_sample *sample)
{
    const tr__preparation *p = call->user;
    tr_shape shape = tr_shape_of(sample->x);
    tr_tensor *out = tr_empty(TR_SHAPE(p->channels, p->size, p->size));
    if (tr_status_of(out) != TR_OK) return tr_status_of(out);
    placement at = place(p, shape, call->seed);
    float *to = tr_data(out);
    for (int c = 0; c < p->channels; c++)
        put_plane(p, &at, tr_data(sample->x), (int)shape.dim[0], c, to + (int64_t)c * p->size * p->size);
    sample->x = out;
    return TR_OK;
}

/* ---- What is in the folder --------------------------------------------------------------------------------------- */

static bool has(const char *folder, const char *name)
{
    char path[PATH_MAX];
    struct stat s;
    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path && stat(path, &s) == 0;
}

/* The images of MNIST's part "train" or "t10k", by any name that tr_mnist() knows. */
static bool has_mnist(const char *folder, const char *part)
{
    static const char *const ends[] = {"-images-idx3-ubyte", "-images-idx3-ubyte.gz", "-images.idx3-ubyte",
                                       "-images.idx3-ubyte.gz"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s%s", part, ends[i]);
        if (has(folder, name)) return true;
    }
    return false;
}

/* Sets as they are stored, before they are made ready; validation NULL: there is none of its own. */
typedef struct stored {
    tr_dataset *training, *validation;
    bool sorted; /* by class: images in folders */
} stored;

static stored open_mnist(const char *folder)
{
    bool train = has_mnist(folder, "train"), test = has_mnist(folder, "t10k");
    stored s = {.training = tr_mnist(folder, .train = train, .raw = true)};
    if (train && test) s.validation = tr_mnist(folder, .raw = true);
    return s;
}

static stored open_cifar(const char *folder)
{
    stored s = {.training = tr_cifar10(folder, .train = true, .raw = true)};
    if (has(folder, "test_batch.bin")) s.validation = tr_cifar10(folder, .raw = true);
    return s;
}

/* Images in folders come in the size that is wanted, as RGB, whatever their own. */
static int size_in_folders(const tr__image_request *request)
{
    return request->size ? request->size : 224;
}

static tr_dataset *open_images(const tr__image_request *request, const char *folder)
{
    int size = size_in_folders(request);
    return tr_image_folder(folder, .height = size, .width = size, .raw = true, .max_pixels = request->max_pixels);
}

static stored open_folder(const tr__image_request *request)
{
    const char *folder = request->folder;
    const char *validation = has(folder, "val") ? "val" : has(folder, "test") ? "test" : NULL;
    if (!has(folder, "train") || !validation) return (stored){open_images(request, folder), NULL, true};
    char path[2][PATH_MAX];
    snprintf(path[0], PATH_MAX, "%s/train", folder);
    snprintf(path[1], PATH_MAX, "%s/%s", folder, validation);
    return (stored){open_images(request, path[0]), open_images(request, path[1]), true};
}

/* Samples [0, count) of set in two: a share of them at the end is held back, or, of a set that is sorted by class, one
 * of so many. */
static tr_status hold_back(stored *s, double share)
{
    int64_t count = tr_dataset_count(s->training), held = (int64_t)((double)count * share), kept = 0, taken = 0;
    int64_t *order = malloc((size_t)(count ? count : 1) * sizeof *order);
    if (!order) return tr_fail(TR_NO_MEMORY, "no memory for the order of %lld images", (long long)count);
    for (int64_t i = 0; i < count; i++) {
        bool back = s->sorted ? (int64_t)((double)(i + 1) * share) > (int64_t)((double)i * share) : i >= count - held;
        order[back ? count - 1 - taken++ : kept++] = i;
    }
    tr_dataset *all = s->training;
    s->training = tr_dataset_subset(all, order, kept);
    s->validation = taken ? tr_dataset_subset(all, order + kept, taken) : NULL;
    free(order);
    return TR_OK;
}

/* One more than the highest label, where that is more than *classes. */
static tr_status count_labels(tr_dataset *set, int64_t *classes)
{
    for (int64_t i = 0; set && i < tr_dataset_count(set); i++) {
        TR_SCOPE;
        tr_sample sample;
        TRY(tr_dataset_at(set, i, &sample));
        int64_t label = *(const int64_t *)tr_data(sample.y);
        if (label >= *classes) *classes = label + 1;
    }
    return tr_status_of(set);
}

/* The classes of a folder have names; those of files are their labels, and one may be in the set for validation alone. */
static tr_status count_classes(const stored *s, int64_t *classes)
{
    *classes = 0;
    while (s->sorted && tr_image_folder_class(s->training, *classes)) ++*classes;
    if (s->sorted) return TR_OK;
    TRY(count_labels(s->training, classes));
    return count_labels(s->validation, classes);
}

static tr_status check_same_classes(const stored *s)
{
    for (int64_t i = 0; s->validation && s->sorted; i++) {
        const char *one = tr_image_folder_class(s->training, i), *other = tr_image_folder_class(s->validation, i);
        if (!one && !other) break;
        if (!one || !other || strcmp(one, other) != 0)
            return tr_fail(TR_INVALID,
                           "class %lld is \"%s\" where the training images are and \"%s\" where those for "
                           "validation are: both folders must have the same sub-folders",
                           (long long)i, one ? one : "", other ? other : "");
    }
    return tr_status_of(s->validation);
}

/* ---- All together ------------------------------------------------------------------------------------------------ */

/* Means and deviations of the values of MNIST, CIFAR-10 and ImageNet. */
static const struct colours {
    const char *kind;
    float mean[3], deviation[3];
} mnist = {"MNIST", {0.1307f, 0.1307f, 0.1307f}, {0.3081f, 0.3081f, 0.3081f}},
  cifar = {"CIFAR-10", {0.4914f, 0.4822f, 0.4465f}, {0.2470f, 0.2435f, 0.2616f}},
  imagenet = {"images", {0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}};

static tr_status prepare_all(const tr__image_request *request, const stored *s, const struct colours *colours,
                             tr__image_data *p)
{
    int channels = 3, height = size_in_folders(request);
    if (tr_dataset_count(s->training) == 0) return tr_fail(TR_INVALID, "%s has no images to train on", request->folder);
    if (!s->sorted) {
        tr_sample first;
        TRY(tr_dataset_at(s->training, 0, &first));
        channels = (int)tr_size(first.x, 0);
        height = (int)tr_size(first.x, 1);
    }
    p->kind = colours->kind;
    for (int i = 0; i < 2; i++) {
        tr__preparation *to = &p->preparations[i];
        *to = (tr__preparation){.channels = request->channels ? request->channels : channels,
                                .size = request->size    ? request->size
                                        : height < 32 ? 32
                                                      : height,
                                .shift = i == 0 && strcmp(request->augment, "none") != 0,
                                .mirror = i == 0 && strcmp(request->augment, "mirror") == 0};
        memcpy(to->mean, colours->mean, sizeof to->mean);
        memcpy(to->deviation, colours->deviation, sizeof to->deviation);
    }
    p->training = tr_dataset_map(s->training, prepare, &p->preparations[0]);
    p->validation = s->validation ? tr_dataset_map(s->validation, prepare, &p->preparations[1]) : NULL;
    TRY(tr_status_of(p->training));
    return tr_status_of(p->validation);
}

tr_status tr__image_data_open(const tr__image_request *request, tr__image_data *images)
{
    const char *folder = request->folder;
    const struct colours *colours = &imagenet;
    stored s;
    if (has_mnist(folder, "train") || has_mnist(folder, "t10k")) {
        s = open_mnist(folder);
        colours = &mnist;
    } else if (has(folder, "data_batch_1.bin")) {
        s = open_cifar(folder);
        colours = &cifar;
    } else {
        s = open_folder(request);
    }
    TRY(tr_status_of(s.training));
    TRY(check_same_classes(&s));
    TRY(count_classes(&s, &images->classes));
    if (!s.validation && request->validation > 0) TRY(hold_back(&s, request->validation));
    return prepare_all(request, &s, colours, images);
}
