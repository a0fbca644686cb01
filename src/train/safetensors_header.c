/*
 * The safetensors format: 8 bytes, the header's length (little-endian); the header, a JSON object
 *
 *   { "__metadata__": {"key": "text"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, … }
 *
 * then the data, row-major and little-endian, where offsets count from the header's end and leave no hole.
 */
#include "train/safetensors_header.h"

#include "base/crc32c.h"
#include "data/text/unicode.h"
#include "tensor/list.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char tr__metadata_key[] = "__metadata__";

const char *const tr__safetensors_dtypes[TR_DTYPE_COUNT] = {
    [TR_F32] = "F32",
    [TR_F64] = "F64",
    [TR_F16] = "F16",
    [TR_BF16] = "BF16",
    [TR_I64] = "I64",
    [TR_I32] = "I32",
    [TR_U8] = "U8",
    [TR_BOOL] = "BOOL",
};

/* Of the format, but not of Trireme. */
static const char *const other_dtypes[] = {"I8", "I16", "U16", "U32", "U64", "F8_E4M3", "F8_E5M2", "F8_E8M0", "C64"};

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

tr_status tr__file_damaged(const tr__safetensors_reader *r, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return tr__fail(TR_FORMAT, "%s: %s", r->file.path, text);
}

static tr_status open_file(tr__safetensors_reader *r, const char *path)
{
    TR__TRY(tr__plain_open(&r->file, path, "a safetensors file"));
    uint64_t file_bytes = r->file.bytes;
    if (file_bytes < 10) return tr__file_damaged(r, "is no safetensors file: it has only %" PRIu64 " bytes", file_bytes);
    TR__TRY(tr__plain_read(&r->file, 0, &r->header_bytes, sizeof r->header_bytes));
    if (r->header_bytes > file_bytes - 8)
        return tr__file_damaged(r,
            "is cut short or no safetensors file: its header should have %" PRIu64
            " bytes, the whole file has %" PRIu64,
            r->header_bytes, file_bytes);
    if (r->header_bytes > TR__MOST_HEADER)
        return tr__file_damaged(
            r, "its header of %" PRIu64 " bytes is longer than the %d allowed", r->header_bytes, TR__MOST_HEADER);
    r->data_begin = 8 + r->header_bytes;
    r->data_bytes = file_bytes - r->data_begin;
    return TR_OK;
}

static tr_status parse_header(tr__safetensors_reader *r)
{
    size_t length = (size_t)r->header_bytes;
    char *text = malloc(length + 1);
    if (!text) return tr__fail(TR_NO_MEMORY, "no memory for a header of %zu bytes", length);
    tr_status status = tr__plain_read(&r->file, 8, text, length);
    text[length] = '\0';
    r->header_crc32c = tr__crc32c(tr__crc32c(0, &r->header_bytes, sizeof r->header_bytes), text, length);
    int64_t stray = status == TR_OK ? tr__first_not_utf8(text, length) : -1;
    if (status == TR_OK && *text != '{')
        status = tr__file_damaged(r, "is no safetensors file: its header does not begin with {");
    if (status == TR_OK && stray >= 0) status = tr__file_damaged(r, "its header is not UTF-8 at byte %" PRId64, stray);
    if (status == TR_OK) {
        const char *end = NULL;
        r->json = cJSON_ParseWithLengthOpts(text, length, &end, false);
        /* Spaces may follow, to align the data. */
        if (!r->json)
            status = tr__file_damaged(r, "its header is no JSON from byte %zu on", end ? (size_t)(end - text) : 0);
        else if (end + strspn(end, " \t\r\n") != text + length)
            status = tr__file_damaged(r, "its header goes on after the JSON object, at byte %zu", (size_t)(end - text));
    }
    free(text);
    return status;
}

bool tr__json_whole(const cJSON *number, uint64_t *out)
{
    if (!cJSON_IsNumber(number)) return false;
    double value = number->valuedouble;
    if (!(value >= 0 && value <= 9007199254740992.0)) return false;
    *out = (uint64_t)value;
    return (double)*out == value;
}

static tr_status read_metadata(const tr__safetensors_reader *r, const cJSON *object, tr_tensor_list *list)
{
    if (!cJSON_IsObject(object)) return tr__file_damaged(r, "its %s is no object", tr__metadata_key);
    const cJSON *item;
    cJSON_ArrayForEach(item, object)
    {
        if (!cJSON_IsString(item)) return tr__file_damaged(r, "its metadata \"%s\" is no text", item->string);
        TR__TRY(tr_list_set_metadata(list, item->string, item->valuestring));
    }
    return TR_OK;
}

static tr_status read_dtype(const tr__safetensors_reader *r, const char *name, const cJSON *item, tr_dtype *out)
{
    if (!cJSON_IsString(item)) return tr__file_damaged(r, "tensor \"%s\" has no dtype", name);
    for (int d = 0; d < TR_DTYPE_COUNT; d++) {
        *out = (tr_dtype)d;
        if (strcmp(item->valuestring, tr__safetensors_dtypes[d]) == 0) return TR_OK;
    }
    for (size_t i = 0; i < sizeof other_dtypes / sizeof *other_dtypes; i++)
        if (strcmp(item->valuestring, other_dtypes[i]) == 0)
            return tr__fail(TR_UNSUPPORTED, "%s: tensor \"%s\" is of dtype %s, which Trireme does not have", r->file.path,
                name, other_dtypes[i]);
    return tr__file_damaged(r, "tensor \"%s\" has no dtype of the format: \"%.20s\"", name, item->valuestring);
}

static tr_status read_shape(const tr__safetensors_reader *r, const char *name, const cJSON *item, tr_shape *out)
{
    if (!cJSON_IsArray(item)) return tr__file_damaged(r, "tensor \"%s\" has no shape", name);
    if (cJSON_GetArraySize(item) > TR_MAX_DIMS)
        return tr__fail(TR_UNSUPPORTED, "%s: tensor \"%s\" has %d dimensions, more than %d", r->file.path, name,
            cJSON_GetArraySize(item), TR_MAX_DIMS);
    *out = TR_SCALAR;
    const cJSON *dim;
    cJSON_ArrayForEach(dim, item)
    {
        uint64_t size;
        if (!tr__json_whole(dim, &size))
            return tr__file_damaged(r, "tensor \"%s\" has a size that is no whole number to 2^53", name);
        out->dim[out->ndim++] = (int64_t)size;
    }
    return TR_OK;
}

static tr_status read_entry(const tr__safetensors_reader *r, const cJSON *item, tr__safetensors_entry *e)
{
    e->name = item->string;
    if (!cJSON_IsObject(item)) return tr__file_damaged(r, "the entry of tensor \"%s\" is no object", e->name);
    TR__TRY(read_dtype(r, e->name, cJSON_GetObjectItemCaseSensitive(item, "dtype"), &e->dtype));
    TR__TRY(read_shape(r, e->name, cJSON_GetObjectItemCaseSensitive(item, "shape"), &e->shape));
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 ||
        !tr__json_whole(cJSON_GetArrayItem(offsets, 0), &e->begin) || !tr__json_whole(cJSON_GetArrayItem(offsets, 1), &e->end) ||
        e->begin > e->end)
        return tr__file_damaged(r, "tensor \"%s\" has no two data_offsets, rising", e->name);
    if (e->end > r->data_bytes)
        return tr__file_damaged(r, "is cut short: tensor \"%s\" ends at byte %" PRIu64 " of the data, which has %" PRIu64,
            e->name, e->end, r->data_bytes);

    int64_t bytes;
    if (!tr__shape_bytes(e->shape, e->dtype, &bytes) || (uint64_t)bytes != e->end - e->begin)
        return tr__file_damaged(r, "tensor \"%s\", %s of %s, has %" PRIu64 " bytes of data", e->name,
            tr_shape_text(e->shape, (char[160]){0}), tr_dtype_name(e->dtype), e->end - e->begin);
    return TR_OK;
}

static tr_status read_entries(tr__safetensors_reader *r, tr_tensor_list *list)
{
    r->entries = calloc((size_t)cJSON_GetArraySize(r->json) + 1, sizeof *r->entries);
    if (!r->entries) return tr__fail(TR_NO_MEMORY, "out of memory");
    const cJSON *item;
    cJSON_ArrayForEach(item, r->json)
    {
        if (strcmp(item->string, tr__metadata_key) == 0)
            TR__TRY(read_metadata(r, item, list));
        else
            TR__TRY(read_entry(r, item, &r->entries[r->count++]));
    }
    return TR_OK;
}

static int by_offset(const void *a, const void *b)
{
    const tr__safetensors_entry *x = *(tr__safetensors_entry *const *)a, *y = *(tr__safetensors_entry *const *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(tr__safetensors_entry *const *)a)->name, (*(tr__safetensors_entry *const *)b)->name);
}

/* Two names alike, two tensors over one another, or bytes that belong to none, are signs of damage, or of a file that
 * hides something. */
static tr_status check_layout(tr__safetensors_reader *r)
{
    const tr__safetensors_entry **sorted = r->by_offset = calloc((size_t)r->count + 1, sizeof *sorted);
    if (!sorted) return tr__fail(TR_NO_MEMORY, "out of memory");
    for (int i = 0; i < r->count; i++) sorted[i] = &r->entries[i];
    qsort(sorted, (size_t)r->count, sizeof *sorted, by_name);
    for (int i = 1; i < r->count; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            return tr__file_damaged(r, "has two tensors named \"%s\"", sorted[i]->name);

    qsort(sorted, (size_t)r->count, sizeof *sorted, by_offset);
    uint64_t at = 0;
    for (int i = 0; i < r->count; i++) {
        const tr__safetensors_entry *e = sorted[i];
        if (e->begin < at) return tr__file_damaged(r, "tensors \"%s\" and \"%s\" overlap", sorted[i - 1]->name, e->name);
        if (e->begin > at)
            return tr__file_damaged(r, "%" PRIu64 " bytes before tensor \"%s\" belong to none", e->begin - at, e->name);
        at = e->end;
    }
    if (at != r->data_bytes) return tr__file_damaged(r, "%" PRIu64 " bytes at its end belong to no tensor", r->data_bytes - at);
    return TR_OK;
}

/* A file of another save is whole in itself, so it is told from a damaged one. */
static tr_status check_header(const tr__safetensors_reader *r)
{
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(r->json, tr__metadata_key);
    const char *save = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(metadata, tr__save_key));
    const tr__file_record *expected = r->record;
    if (!expected || r->header_crc32c == expected->header_crc32c) return TR_OK;
    if (save && strcmp(save, expected->save) != 0)
        return tr__file_damaged(r, "belongs to another checkpoint: it is of the save %.32s, the manifest beside it of %s", save,
            expected->save);
    return tr__file_damaged(r, "is damaged in its header, bytes 0 to %" PRIu64 ": CRC-32C %08" PRIx32
        ", its checkpoint's manifest says %08" PRIx32, r->data_begin, r->header_crc32c, expected->header_crc32c);
}

tr_status tr__safetensors_check(const tr__safetensors_reader *r, const tr__safetensors_entry *e, uint32_t sum)
{
    const tr__tensor_record *expected = tr__file_record_find(r->record, e->name);
    uint64_t data = r->data_begin;
    if (!expected) return tr__file_damaged(r, "holds a tensor \"%s\" that its checkpoint's manifest does not have", e->name);
    if (sum == expected->crc32c) return TR_OK;
    return tr__file_damaged(r, "is damaged in tensor \"%s\", bytes %" PRIu64 " to %" PRIu64 ": CRC-32C %08" PRIx32
        ", its checkpoint's manifest says %08" PRIx32, e->name, data + e->begin, data + e->end, sum, expected->crc32c);
}


tr_status tr__safetensors_open(tr__safetensors_reader *r, const char *path, const tr__file_record *record,
    tr_tensor_list *metadata)
{
    *r = (tr__safetensors_reader){.file.fd = -1, .record = record};
    TR__TRY(open_file(r, path));
    TR__TRY(parse_header(r));
    TR__TRY(check_header(r));
    TR__TRY(read_entries(r, metadata));
    TR__TRY(check_layout(r));
    if (!record || r->count == record->count) return TR_OK;
    return tr__file_damaged(r, "holds %d tensors, its checkpoint's manifest says %d", r->count, record->count);
}

void tr__safetensors_close(tr__safetensors_reader *r)
{
    tr__plain_close(&r->file);
    cJSON_Delete(r->json);
    free(r->entries);
    free(r->by_offset);
}
