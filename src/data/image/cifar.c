/* CIFAR-10's binary files: records of a label and 3 x 32 x 32 bytes, planes of red, green and blue. */
#include "data/dataset.h"
#include "data/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096, PIXELS = 3 * 32 * 32, RECORD = 1 + PIXELS, CLASSES = 10, MOST_FILES = 5 };

/* One file as it was read. */
typedef struct part {
    char path[PATH_BYTES];
    unsigned char *bytes;
    size_t count;
} part;

static tr_status read_part(part *p)
{
    tr_status status = tr__file_read(p->path, &p->bytes, &p->count);
    if (status != TR_OK) return tr__fail_context(status, "cifar10: %s", p->path);
    if (p->count == 0 || p->count % RECORD)
        return tr__fail(TR_FORMAT, "cifar10: %s has %zu bytes, which are no records of %d", p->path, p->count,
            (int)RECORD);
    for (size_t i = 0; i < p->count / RECORD; i++)
        if (p->bytes[i * RECORD] >= CLASSES)
            return tr__fail(TR_FORMAT, "cifar10: record %zu of %s has the label %d, not 0 to %d", i, p->path,
                p->bytes[i * RECORD], CLASSES - 1);
    return TR_OK;
}

static tr_status read_parts(const tr_image_set_options *o, part *parts, int *n)
{
    *n = o->train ? MOST_FILES : 1;
    for (int i = 0; i < *n; i++) {
        if (o->train)
            snprintf(parts[i].path, PATH_BYTES, "%s/data_batch_%d.bin", o->folder, i + 1);
        else
            snprintf(parts[i].path, PATH_BYTES, "%s/test_batch.bin", o->folder);
        TR__TRY(read_part(&parts[i]));
    }
    return TR_OK;
}

/* Sorts records into images and labels. */
static tr_dataset *from_parts(const part *parts, int n, bool raw)
{
    int64_t count = 0;
    for (int i = 0; i < n; i++) count += (int64_t)(parts[i].count / RECORD);
    tr_tensor *images = tr__tensor_new(TR_SHAPE(count, 3, 32, 32), TR_U8, tr_cpu(0));
    tr_tensor *labels = tr__tensor_new(TR_SHAPE(count), TR_U8, tr_cpu(0));
    if (tr_status_of(images) != TR_OK || tr_status_of(labels) != TR_OK) return tr__dataset_failed();
    unsigned char *image = tr__ptr(images), *label = tr__ptr(labels);
    for (int i = 0; i < n; i++)
        for (size_t at = 0; at < parts[i].count; at += RECORD, image += PIXELS) {
            *label++ = parts[i].bytes[at];
            memcpy(image, parts[i].bytes + at + 1, PIXELS);
        }
    return tr__byte_images("cifar10", images, labels, raw);
}

TR__MAKE_AGAIN(tr_cifar10_with, tr_image_set_options)

tr_dataset *tr_cifar10_with(const tr_image_set_options *options)
{
    TR_SCOPE;
    if (!options->folder) return tr_escape(tr_dataset_fail(TR_INVALID, "cifar10: no folder was given"));
    part *parts = calloc(MOST_FILES, sizeof *parts);
    int n = 0;
    tr_status status = parts ? read_parts(options, parts, &n) : tr__fail(TR_NO_MEMORY, "cifar10: out of memory");
    tr_dataset *set = status == TR_OK ? from_parts(parts, n, options->raw) : tr__dataset_failed();
    for (int i = 0; i < n; i++) free(parts[i].bytes);
    free(parts);
    tr__dataset_set_folder(set, make_again, options, sizeof *options, options->folder);
    return tr_escape(set);
}
