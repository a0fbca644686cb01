/* A folder of images, in a sub-folder for each class. */
#include "base/folder.h"
#include "base/memory.h"
#include "data/content.h"
#include "data/dataset.h"
#include "data/file.h"
#include "data/image/image.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { MOST_PIXELS_A_SIDE = 1 << 15 };

typedef struct entry {
    char *path;
    int64_t label, bytes;
} entry;

typedef struct image_folder {
    char *folder;
    char **classes;
    int64_t classes_count;
    entry *entries;
    size_t room; /* for entries */
    int64_t max_pixels; /* of an image */
} image_folder;

/* ---- Samples ----------------------------------------------------------------------------------------------------- */

/* x: [3, height, width], f32 0 … 1 or u8 0 … 255 */
static tr_status write_image(tr_dataset *set, const unsigned char *bytes, size_t count, void *x)
{
    const tr__layout *layout = &set->fields[0];
    int64_t most = ((const image_folder *)tr__dataset_state(set))->max_pixels, n = tr__numel(layout->shape);
    int height = (int)layout->shape.dim[1], width = (int)layout->shape.dim[2];
    if (layout->dtype == TR_F32) {
        float *planes = x;
        TR__TRY(tr__image_decode(bytes, count, most, width, height, planes));
        for (int64_t i = 0; i < n; i++) planes[i] /= 255.0f;
        return TR_OK;
    }
    float *planes = malloc((size_t)n * sizeof *planes);
    if (!planes) return tr__fail(TR_NO_MEMORY, "no memory to scale an image");
    tr_status status = tr__image_decode(bytes, count, most, width, height, planes);
    for (int64_t i = 0; status == TR_OK && i < n; i++) ((unsigned char *)x)[i] = (unsigned char)(planes[i] + 0.5f);
    free(planes);
    return status;
}

static tr_status read_image(tr_dataset *set, const char *path, void *x)
{
    unsigned char *bytes;
    size_t count;
    TR__TRY(tr__file_read(path, &bytes, &count));
    tr_status status = write_image(set, bytes, count, x);
    free(bytes);
    return status;
}

static tr_status write_sample(tr_dataset *set, int64_t index, void *const places[TR__FIELDS])
{
    const image_folder *f = tr__dataset_state(set);
    *(int64_t *)places[1] = f->entries[index].label;
    tr_status status = read_image(set, f->entries[index].path, places[0]);
    return status == TR_OK ? TR_OK : tr__fail_context(status, "%s", f->entries[index].path);
}

static void destroy(tr_dataset *set)
{
    image_folder *f = tr__dataset_state(set);
    for (int64_t i = 0; i < set->count; i++) free(f->entries[i].path);
    for (int64_t i = 0; i < f->classes_count; i++) free(f->classes[i]);
    free(f->entries);
    free(f->classes);
    free(f->folder);
}

/* The folder may lie elsewhere on each host: names in it, classes and sizes count. */
static void sum(tr_dataset *set, tr__content *content)
{
    const image_folder *f = tr__dataset_state(set);
    size_t folder = strlen(f->folder);
    for (int64_t i = 0; i < set->count; i++) {
        const entry *e = &f->entries[i];
        const int64_t numbers[] = {e->label, e->bytes};
        tr__content_add(content, e->path + folder, strlen(e->path + folder) + 1);
        tr__content_add(content, numbers, sizeof numbers);
    }
}

static const tr__dataset_kind kind = {.write = write_sample, .destroy = destroy, .sum = sum};

/* ---- The folder -------------------------------------------------------------------------------------------------- */

static bool is_image(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot && (!strcasecmp(dot, ".jpg") || !strcasecmp(dot, ".jpeg") || !strcasecmp(dot, ".png"));
}

static tr_status add_entry(tr_dataset *set, const char *path, int64_t label, int64_t bytes)
{
    image_folder *f = tr__dataset_state(set);
    bool grown = tr__grow(&f->entries, (size_t)set->count, &f->room, sizeof *f->entries);
    char *copy = grown ? strdup(path) : NULL;
    if (!copy) return tr__fail(TR_NO_MEMORY, "image_folder: out of memory");
    f->entries[set->count++] = (entry){copy, label, bytes};
    return TR_OK;
}

/* Calls visit for each folder and each regular file in a folder, in order of names. label: -1 in the folder itself, whose
 * sub-folders are the classes. */
typedef tr_status (*entry_function)(tr_dataset *set, const char *path, const char *name, const struct stat *info, int64_t label);

/* Skips what is neither, or cannot be examined, such as a dangling link; but a missing image is an error, and so is a link that
 * leads back up, which the kernel follows forty times: its images would be there as often. */
static tr_status visit_entry(tr_dataset *set, const char *path, const char *name, int64_t label, entry_function visit)
{
    struct stat info;
    if (stat(path, &info) != 0) {
        if (label < 0 || (errno != ELOOP && !is_image(name))) return TR_OK;
        return tr__fail_errno(TR_IO, errno, "image_folder: cannot look at %s", path);
    }
    return S_ISDIR(info.st_mode) || S_ISREG(info.st_mode) ? visit(set, path, name, &info, label) : TR_OK;
}

static tr_status walk(tr_dataset *set, const char *folder, int64_t label, entry_function visit)
{
    struct dirent **entries;
    int n = tr__folder_scan(folder, &entries);
    if (n < 0)
        return tr__fail_errno(errno == ENOENT ? TR_NOT_FOUND : TR_IO, errno, "image_folder: cannot read the folder %s", folder);
    tr_status status = TR_OK;
    for (int i = 0; i < n; i++) {
        char path[PATH_MAX];
        if (status == TR_OK) status = tr__path_join(path, folder, entries[i]->d_name);
        if (status == TR_OK) status = visit_entry(set, path, entries[i]->d_name, label, visit);
        free(entries[i]);
    }
    free(entries);
    return status;
}

/* Within a class: its images, sub-folders too. */
static tr_status visit_image(tr_dataset *set, const char *path, const char *name, const struct stat *info, int64_t label)
{
    if (S_ISDIR(info->st_mode)) return walk(set, path, label, visit_image);
    return is_image(name) ? add_entry(set, path, label, info->st_size) : TR_OK;
}

static tr_status visit_class(tr_dataset *set, const char *path, const char *name, const struct stat *info, int64_t label)
{
    (void)label;
    if (!S_ISDIR(info->st_mode)) return TR_OK;
    image_folder *f = tr__dataset_state(set);
    char **classes = realloc(f->classes, (size_t)(f->classes_count + 1) * sizeof *classes);
    if (classes) f->classes = classes;
    if (!classes || !(classes[f->classes_count] = strdup(name)))
        return tr__fail(TR_NO_MEMORY, "image_folder: out of memory");
    int64_t number = f->classes_count++, before = set->count;
    TR__TRY(walk(set, path, number, visit_image));
    if (set->count > before) return TR_OK;
    return tr__fail(TR_INVALID, "image_folder: there is no .jpg, .jpeg or .png in %s", path);
}

static tr_status fill(tr_dataset *set, const tr_image_folder_options *o)
{
    image_folder *f = tr__dataset_state(set);
    if (!o->folder) return tr__fail(TR_INVALID, "image_folder: no folder was given");
    if (o->height < 1 || o->width < 1 || o->height > MOST_PIXELS_A_SIDE || o->width > MOST_PIXELS_A_SIDE)
        return tr__fail(TR_INVALID, "image_folder: .height and .width must be 1 to %d, not %d and %d",
            MOST_PIXELS_A_SIDE, o->height, o->width);
    if (o->max_pixels < 0 || o->max_pixels > INT32_MAX)
        return tr__fail(TR_INVALID, "image_folder: .max_pixels must be 1 to %d, or 0 for %d, not %" PRId64, INT32_MAX,
            TR__IMAGE_PIXELS, o->max_pixels);
    f->max_pixels = o->max_pixels ? o->max_pixels : TR__IMAGE_PIXELS;
    f->folder = strdup(o->folder);
    if (!f->folder) return tr__fail(TR_NO_MEMORY, "image_folder: out of memory");
    set->name = f->folder;
    TR__TRY(walk(set, o->folder, -1, visit_class));
    if (!f->classes_count)
        return tr__fail(TR_INVALID, "image_folder: %s has no sub-folders, one for each class", o->folder);
    set->fields[0] = (tr__layout){true, TR_SHAPE(3, o->height, o->width), o->raw ? TR_U8 : TR_F32};
    set->fields[1] = (tr__layout){true, TR_SCALAR, TR_I64};
    return TR_OK;
}

TR__MAKE_AGAIN(tr_image_folder_with, tr_image_folder_options)

tr_dataset *tr_image_folder_with(const tr_image_folder_options *options)
{
    tr_dataset *set = tr__dataset_new(&kind, "image_folder", sizeof(image_folder));
    if (tr__error_of(set)) return set;
    if (fill(set, options) != TR_OK) tr__object_break(set);
    tr__dataset_set_folder(set, make_again, options, sizeof *options, options->folder);
    return set;
}

const char *tr_image_folder_class(const tr_dataset *set, int64_t label)
{
    if (!set || tr__error_of(set) || set->kind != &kind) return NULL;
    const image_folder *f = tr__dataset_state((tr_dataset *)set);
    return label >= 0 && label < f->classes_count ? f->classes[label] : NULL;
}
