/* Images and labels that are held as bytes, one a pixel and channel: MNIST, CIFAR-10. */
#include "data/content.h"
#include "data/dataset.h"

#include <string.h>

typedef struct byte_images {
    tr_tensor *images, *labels; /* references */
} byte_images;

static tr_status write_image(tr_dataset *set, int64_t index, void *const places[TR__FIELDS])
{
    const byte_images *b = tr__dataset_state(set);
    int64_t n = tr__numel(set->fields[0].shape);
    const uint8_t *from = (const uint8_t *)tr__ptr(b->images) + index * n;
    if (set->fields[0].dtype == TR_U8) {
        memcpy(places[0], from, (size_t)n);
    } else {
        float *to = places[0];
        for (int64_t i = 0; i < n; i++) to[i] = (float)from[i] / 255.0f;
    }
    *(int64_t *)places[1] = ((const uint8_t *)tr__ptr(b->labels))[index];
    return TR_OK;
}

static void destroy(tr_dataset *set)
{
    const byte_images *b = tr__dataset_state(set);
    tr__unref(b->images);
    tr__unref(b->labels);
}

static void sum(tr_dataset *set, tr__content *content)
{
    const byte_images *b = tr__dataset_state(set);
    tr__content_add(content, tr__ptr(b->images), (size_t)tr__numel(b->images->shape));
    tr__content_add(content, tr__ptr(b->labels), (size_t)set->count);
}

static const tr__dataset_kind kind = {.write = write_image, .destroy = destroy, .sum = sum};

tr_dataset *tr__byte_images(const char *name, tr_tensor *images, tr_tensor *labels, bool raw)
{
    tr_dataset *set = tr__dataset_new(&kind, name, sizeof(byte_images));
    if (tr__error_of(set)) return set;
    byte_images *b = tr__dataset_state(set);
    b->images = tr__ref(images);
    b->labels = tr__ref(labels);
    tr_shape s = images->shape;
    set->count = s.dim[0];
    set->fields[0] = (tr__layout){true, TR_SHAPE(s.dim[1], s.dim[2], s.dim[3]), raw ? TR_U8 : TR_F32};
    set->fields[1] = (tr__layout){true, TR_SCALAR, TR_I64};
    return set;
}
