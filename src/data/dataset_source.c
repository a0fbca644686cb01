/* How datasets are made again in other processes. */
#include "data/dataset.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

void tr__dataset_set_source(tr_dataset *set, tr_dataset_make make, const void *argument, size_t bytes)
{
    if (tr__error_of(set)) return;
    tr__source *source = malloc(sizeof *source + bytes);
    if (!source) {
        tr__fail(TR_NO_MEMORY, "%s: out of memory", set->name);
        tr__object_break(set);
        return;
    }
    source->make = make;
    source->count = set->count;
    source->bytes = bytes;
    if (bytes) memcpy(source->argument, argument, bytes);
    set->source = source;
    set->source_begin = 0;
    set->owns_source = true;
}

void tr__dataset_set_folder(tr_dataset *set, tr_dataset_make make, const void *options, size_t bytes,
    const char *folder)
{
    if (tr__error_of(set)) return;
    char path[PATH_MAX]; /* in full: the program may change its working folder before its workers start */
    if (!realpath(folder, path)) {
        tr__fail_errno(TR_IO, errno, "%s: cannot find the full path of %s", set->name, folder);
        tr__object_break(set);
        return;
    }
    unsigned char argument[512 + PATH_MAX];
    size_t length = strlen(path) + 1;
    memcpy(argument, options, bytes);
    memcpy(argument + bytes, path, length);
    tr__dataset_set_source(set, make, argument, bytes + length);
}

/* Another process makes what make() made here: a slice of all of it, so that the same object may be made twice. */
tr_dataset *tr_dataset_from(tr_dataset_make make, const void *argument, size_t bytes)
{
    TR_SCOPE;
    tr_dataset *made = make ? make(argument, bytes) : NULL;
    if (!made) return tr_escape(tr_dataset_fail(TR_INVALID, "dataset_from: the function %s", make ? "made none" : "is NULL"));
    tr_dataset *set = tr_dataset_slice(made, 0, tr_dataset_count(made));
    tr__dataset_set_source(set, make, argument, bytes);
    return tr_escape(set);
}
