/* NumPy's .npz archives: a ZIP archive with a member NAME.npy for each array. */
#include "base/regular_file.h"
#include "tensor/list.h"
#include "train/npy.h"
#include "train/zip.h"

#include "data/unicode.h"

#include <trireme/train.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char suffix[] = ".npy";

/* ---- Reading --------------------------------------------------------------------------------------------------------- */

static tr_status read_on(void *user, void *to, uint64_t bytes)
{
    return tr__zip_read(user, to, bytes);
}

static tr_status read_member(const tr__zip *zip, const tr__zip_member *m, tr_tensor_list *list)
{
    TR_SCOPE;
    char *name = NULL; /* for messages */
    size_t length = strlen(m->name), end = sizeof suffix - 1;
    if (asprintf(&name, "%s: %s", zip->file.path, m->name) < 0) return tr__fail(TR_NO_MEMORY, "out of memory");
    tr__zip_stream stream;
    tr_status status = tr__zip_begin(&stream, zip, m);
    tr_tensor *t = NULL;
    if (status == TR_OK) {
        t = tr__npy_read(&(tr__npy_source){.name = name, .bytes = m->bytes, .read = read_on, .user = &stream});
        status = tr_status_of(t);
        tr__zip_end(&stream);
    }
    free(name);
    TR__TRY(status);
    if (length >= end && strcmp(m->name + length - end, suffix) == 0) m->name[length - end] = '\0';
    if (tr_list_find(list, m->name)) return tr__fail(TR_FORMAT, "%s: has two arrays named %s", zip->file.path, m->name);
    return tr_list_add(list, m->name, t);
}

static tr_status read_members(const tr__zip *zip, int64_t max_bytes, tr_tensor_list *list)
{
    /* Whether the program wants so much is checked before any array is unpacked. */
    uint64_t sum = 0;
    bool absurd = false;
    for (int i = 0; i < zip->count; i++) absurd |= __builtin_add_overflow(sum, zip->members[i].bytes, &sum);
    int64_t allowed = tr__unpacked_most((int64_t)zip->file.bytes, max_bytes);
    if (absurd || sum > (uint64_t)allowed)
        return tr__fail(TR_FORMAT, "%s: its %" PRIu64 " bytes unpack to %" PRIu64 ", more than the %" PRId64
            " that .max_bytes allows", zip->file.path, zip->file.bytes, absurd ? UINT64_MAX : sum, allowed);
    for (int i = 0; i < zip->count; i++) TR__TRY(read_member(zip, &zip->members[i], list));
    return TR_OK;
}

tr_tensor_list *tr_npz_load_with(const tr_npz_load_options *options)
{
    TR_SCOPE;
    tr__zip zip;
    tr_tensor_list *list = tr_list_new();
    tr_status status = tr_status_of(list);
    if (status == TR_OK && options->max_bytes < 0)
        status = tr__fail(TR_INVALID, "npz: .max_bytes must be 0 or more, not %" PRId64, options->max_bytes);
    if (status == TR_OK) status = tr__zip_open(&zip, options->path);
    if (status != TR_OK) return tr_escape((tr_tensor_list *)tr__object_failed(&tr__list_type));
    status = read_members(&zip, options->max_bytes, list);
    tr__zip_close(&zip);
    return tr_escape(status == TR_OK ? list : (tr_tensor_list *)tr__object_failed(&tr__list_type));
}

/* ---- Writing --------------------------------------------------------------------------------------------------------- */

static tr_status write_member(tr__zip_writer *w, const char *name, const tr_tensor *t)
{
    TR_SCOPE;
    const tr_tensor *flat = tr__row_major_on_cpu(t);
    TR__TRY(tr_status_of(flat));
    char header[TR__NPY_HEADER_MOST], *member = NULL;
    size_t length;
    TR__TRY(tr__npy_header(name, flat, header, &length));
    if (asprintf(&member, "%s%s", name, suffix) < 0) return tr__fail(TR_NO_MEMORY, "out of memory");
    tr__zip_piece pieces[] = {
        {header, length}, {tr__ptr(flat), (uint64_t)tr__numel(flat->shape) * tr_dtype_size(flat->dtype)}};
    tr_status status = tr__zip_add(w, member, pieces, 2);
    free(member);
    return status;
}

tr_status tr_npz_save_with(const tr_npz_save_options *options)
{
    const tr_tensor_list *list = options->list;
    if (!options->path || !list) return tr__fail(TR_INVALID, "npz: a path and a list are needed");
    TR__TRY(tr_status_of(list));
    for (int i = 0; i < tr_list_count(list); i++) {
        const char *name = tr_list_name(list, i);
        if (!tr__is_utf8(name, strlen(name))) return tr__fail(TR_INVALID, "the name \"%s\" is not UTF-8", name);
    }
    tr__zip_writer writer;
    TR__TRY(tr__zip_create(&writer, options->path, options->compress));
    tr_status status = TR_OK;
    for (int i = 0; i < tr_list_count(list) && status == TR_OK; i++)
        status = write_member(&writer, tr_list_name(list, i), tr_list_at(list, i));
    return tr__zip_finish(&writer, status);
}
