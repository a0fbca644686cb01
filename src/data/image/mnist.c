/* MNIST, and the sets that come in files of the same names. */
#include "data/dataset.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, MOST_PIXELS_A_SIDE = 1 << 15 };

/* The path of one of the set's files, by whichever of its usual names it is there. */
static tr_status find(const char *folder, const char *part, const char *what, int dims, char path[PATH_BYTES])
{
    static const char *const forms[] = {"%s/%s-%s-idx%d-ubyte", "%s/%s-%s-idx%d-ubyte.gz", "%s/%s-%s.idx%d-ubyte",
        "%s/%s-%s.idx%d-ubyte.gz"};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        int length = snprintf(path, PATH_BYTES, forms[i], folder, part, what, dims);
        if (length < PATH_BYTES && access(path, F_OK) == 0) return TR_OK;
    }
    return tr__fail(TR_NOT_FOUND, "mnist: there is no %s-%s-idx%d-ubyte in %s, nor is there one with .gz", part, what,
        dims, folder);
}

static tr_status load(const tr_image_set_options *o, const char *what, int dims, tr_tensor **out)
{
    char path[PATH_BYTES];
    TR__TRY(find(o->folder, o->train ? "train" : "t10k", what, dims, path));
    *out = tr_idx_load(path, .max_bytes = o->max_bytes);
    TR__TRY(tr_status_of(*out));
    tr_tensor *t = *out;
    if (t->dtype == TR_U8 && t->shape.ndim == dims) return TR_OK;
    return tr__fail(TR_FORMAT, "mnist: %s holds %s of %s, not bytes in %d dimensions", path, TR__TEXT(t->shape),
        tr_dtype_name(t->dtype), dims);
}

/* images: [n, height, width], labels: [n] */
static tr_status check_shapes(const tr_image_set_options *o, tr_shape images, tr_shape labels)
{
    if (images.dim[0] != labels.dim[0])
        return tr__fail(TR_FORMAT, "mnist: %s has images %s and labels %s: not as many", o->folder, TR__TEXT(images),
            TR__TEXT(labels));
    for (int d = 1; d < 3; d++)
        if (images.dim[d] < 1 || images.dim[d] > MOST_PIXELS_A_SIDE)
            return tr__fail(TR_FORMAT, "mnist: %s has images of %" PRId64 " x %" PRId64 " pixels, not 1 to %d a side",
                o->folder, images.dim[1], images.dim[2], MOST_PIXELS_A_SIDE);
    return TR_OK;
}

static tr_dataset *from_files(const tr_image_set_options *o)
{
    tr_tensor *images, *labels;
    if (!o->folder) return tr_dataset_fail(TR_INVALID, "mnist: no folder was given");
    if (load(o, "images", 3, &images) != TR_OK || load(o, "labels", 1, &labels) != TR_OK)
        return tr__dataset_failed();
    if (check_shapes(o, images->shape, labels->shape) != TR_OK) return tr__dataset_failed();
    tr_shape s = images->shape;
    tr_tensor *channel = tr__tensor_view(images, TR_SHAPE(s.dim[0], 1, s.dim[1], s.dim[2]), NULL, 0);
    if (tr_status_of(channel) != TR_OK) return tr__dataset_failed();
    return tr__byte_images("mnist", channel, labels, o->raw);
}

TR__MAKE_AGAIN(tr_mnist_with, tr_image_set_options)

tr_dataset *tr_mnist_with(const tr_image_set_options *options)
{
    TR_SCOPE;
    tr_dataset *set = from_files(options);
    tr__dataset_set_folder(set, make_again, options, sizeof *options, options->folder);
    return tr_escape(set);
}
