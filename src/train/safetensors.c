/*
 * The safetensors format: 8 bytes, the header's length (little-endian); the header, a JSON object
 *
 *   { "__metadata__": {"key": "text"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, … }
 *
 * then the data, row-major and little-endian, where offsets count from the header's end and leave no hole.
 */
#include "base/crc32c.h"
#include "base/thread.h"
#include "device/device.h"
#include "tensor/list.h"
#include "train/atomic_file.h"
#include "train/file_record.h"
#include "train/json_string.h"
#include "train/plain_file.h"

#include <trireme/train.h>

#include <cjson/cJSON.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file's byte order is taken for the machine's");

enum { most_header = 100 << 20 }; /* bytes; the format's own limit is about the same */

static const char metadata_key[] = "__metadata__";

static const char *const dtype_names[TR_DTYPE_COUNT] = {
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

/* The bytes of one UTF-8 character of more than one byte: no overlong forms, no surrogates (Unicode, table 3-7). 0:
 * none. */
static size_t character_bytes(const unsigned char *s, size_t left)
{
    static const struct {
        unsigned char first, last; /* the first byte's range, */
        unsigned char low, high;   /* and the second's */
        size_t bytes;
    } rows[] = {
        {0xc2, 0xdf, 0x80, 0xbf, 2},
        {0xe0, 0xe0, 0xa0, 0xbf, 3},
        {0xe1, 0xec, 0x80, 0xbf, 3},
        {0xed, 0xed, 0x80, 0x9f, 3},
        {0xee, 0xef, 0x80, 0xbf, 3},
        {0xf0, 0xf0, 0x90, 0xbf, 4},
        {0xf1, 0xf3, 0x80, 0xbf, 4},
        {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (*s < rows[i].first || *s > rows[i].last || left < rows[i].bytes) continue;
        if (s[1] < rows[i].low || s[1] > rows[i].high) return 0;
        for (size_t k = 2; k < rows[i].bytes; k++)
            if ((s[k] & 0xc0) != 0x80) return 0;
        return rows[i].bytes;
    }
    return 0;
}

/* JSON text is UTF-8. Gives the offset of the first byte that is not, or -1. */
static int64_t first_not_utf8(const char *text, size_t length)
{
    for (size_t i = 0; i < length;) {
        const unsigned char *s = (const unsigned char *)text + i;
        size_t bytes = *s < 0x80 ? 1 : character_bytes(s, length - i);
        if (!bytes) return (int64_t)i;
        i += bytes;
    }
    return -1;
}

/* ---- Writing ---------------------------------------------------------------------------------------------------- */

static uint64_t bytes_of(const tr_tensor *t)
{
    return (uint64_t)tr_numel(t) * tr_dtype_size(tr_dtype_of(t));
}

static tr_status check_text(const char *what, const char *text)
{
    if (first_not_utf8(text, strlen(text)) < 0) return TR_OK;
    return tr__fail(TR_INVALID, "%s \"%s\" is not UTF-8", what, text);
}

static tr_status check_list(const tr_tensor_list *list)
{
    TR__TRY(tr_status_of(list));
    for (int i = 0; i < tr_list_count(list); i++) {
        TR__TRY(tr_status_of(tr_list_at(list, i)));
        TR__TRY(check_text("the name", tr_list_name(list, i)));
        if (strcmp(tr_list_name(list, i), metadata_key) == 0)
            return tr__fail(TR_INVALID, "no tensor can be named \"%s\": it is the metadata's name", metadata_key);
    }
    for (int i = 0; i < tr_list_metadata_count(list); i++) {
        const char *key = tr_list_metadata_key(list, i);
        TR__TRY(check_text("the metadata key", key));
        TR__TRY(check_text("the metadata", tr_list_metadata(list, key)));
    }
    return TR_OK;
}

/* Larger elements first, so that each tensor lies aligned in the file; otherwise in the list's order. */
static void order_by_alignment(const tr_tensor_list *list, int *order)
{
    int n = 0;
    for (size_t size = 8; size; size /= 2)
        for (int i = 0; i < tr_list_count(list); i++)
            if (tr_dtype_size(tr_dtype_of(tr_list_at(list, i))) == size) order[n++] = i;
}

static void write_metadata(FILE *to, const tr_tensor_list *list, const char *id)
{
    fprintf(to, "\"%s\":{", metadata_key);
    if (id) fprintf(to, "\"%s\":\"%s\"", tr__save_key, id);
    bool first = !id;
    for (int i = 0; i < tr_list_metadata_count(list); i++) {
        const char *key = tr_list_metadata_key(list, i);
        if (strcmp(key, tr__save_key) == 0) continue; /* of the save that this list was loaded from */
        if (!first) fputc(',', to);
        first = false;
        tr__json_string(to, key);
        fputc(':', to);
        tr__json_string(to, tr_list_metadata(list, key));
    }
    fputc('}', to);
}

static void write_entry(FILE *to, const char *name, const tr_tensor *t, uint64_t begin)
{
    tr__json_string(to, name);
    fprintf(to, ":{\"dtype\":\"%s\",\"shape\":[", dtype_names[tr_dtype_of(t)]);
    for (int d = 0; d < tr_ndim(t); d++) fprintf(to, "%s%" PRId64, d ? "," : "", tr_size(t, d));
    fprintf(to, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin, begin + bytes_of(t));
}

/* The header with its length in front, to be freed; NULL without memory. */
static char *make_header(const tr_tensor_list *list, const int *order, const char *id, size_t *length)
{
    char *text = NULL;
    bool has_metadata = id || tr_list_metadata_count(list);
    FILE *to = open_memstream(&text, length);
    if (!to) return NULL;
    uint64_t size = 0;
    fwrite(&size, sizeof size, 1, to);
    fputc('{', to);
    if (has_metadata) write_metadata(to, list, id);
    for (int i = 0; i < tr_list_count(list); i++) {
        const tr_tensor *t = tr_list_at(list, order[i]);
        if (i || has_metadata) fputc(',', to);
        write_entry(to, tr_list_name(list, order[i]), t, size);
        size += bytes_of(t);
    }
    fputc('}', to);
    while (ftell(to) % 8) fputc(' ', to); /* the data begins aligned */
    bool lost = ferror(to);
    if (fclose(to) != 0 || lost) {
        free(text);
        return NULL;
    }
    size = *length - sizeof size;
    memcpy(text, &size, sizeof size);
    return text;
}

static tr_status write_tensor(tr__atomic_file *file, const tr_tensor *t)
{
    TR_SCOPE;
    const tr_tensor *flat = tr__row_major_on_cpu(t);
    TR__TRY(tr_status_of(flat));
    return tr__atomic_write(file, tr_data(flat), (size_t)bytes_of(flat));
}

/* What is written, and the record of it, which a thread of its own computes from memory while the file is written and synced. */
typedef struct writing {
    const tr_tensor_list *list;
    const int *order;
    const char *header;
    size_t header_bytes;
    tr__file_record *record;
    tr__error *failure; /* of the thread; NULL: none */
} writing;

static tr_status record_tensor(const char *name, const tr_tensor *t, tr__sha256 *hash, tr__tensor_record *record)
{
    enum { PIECE = 256 << 10 }; /* stays in the second cache from the checksum to the hash */
    TR_SCOPE;
    const tr_tensor *flat = tr__row_major_on_cpu(t);
    TR__TRY(tr_status_of(flat));
    record->name = strdup(name);
    if (!record->name) return tr__fail(TR_NO_MEMORY, "out of memory");
    const char *at = tr_data(flat);
    for (uint64_t left = bytes_of(flat); left;) {
        size_t bytes = left < PIECE ? (size_t)left : PIECE;
        record->crc32c = tr__crc32c(record->crc32c, at, bytes);
        tr__sha256_add(hash, at, bytes);
        at += bytes;
        left -= bytes;
    }
    return TR_OK;
}

static tr_status make_record(const writing *w)
{
    tr__file_record *r = w->record;
    int count = tr_list_count(w->list);
    tr__sha256 hash;
    r->bytes = w->header_bytes;
    r->header_crc32c = tr__crc32c(0, w->header, w->header_bytes);
    r->tensors = calloc((size_t)count + 1, sizeof *r->tensors);
    if (!r->tensors) return tr__fail(TR_NO_MEMORY, "no memory for checksums of %d tensors", count);
    TR__TRY(tr__sha256_begin(&hash));
    tr__sha256_add(&hash, w->header, w->header_bytes);
    tr_status status = TR_OK;
    for (int i = 0; i < count && status == TR_OK; i++) {
        const tr_tensor *t = tr_list_at(w->list, w->order[i]);
        r->bytes += bytes_of(t);
        status = record_tensor(tr_list_name(w->list, w->order[i]), t, &hash, &r->tensors[i]);
        r->count = i + 1;
    }
    tr__sha256_end(&hash, r->sha256);
    tr__file_record_sort(r);
    return status;
}

static void *record_thread(void *arg)
{
    writing *w = arg;
    if (make_record(w) != TR_OK) w->failure = tr__error_take();
    return NULL;
}

static tr_status write_file(const char *path, writing *w)
{
    if (w->header_bytes - 8 > most_header)
        return tr__fail(TR_INVALID, "%s: a header of %zu bytes is too long", path, w->header_bytes - 8);
    tr__atomic_file file;
    TR__TRY(tr__atomic_open(&file, path));
    pthread_t thread;
    bool beside = w->record && tr__thread_start(&thread, record_thread, w) == 0;
    if (w->record && !beside) record_thread(w);
    tr_status status = tr__atomic_write(&file, w->header, w->header_bytes);
    for (int i = 0; i < tr_list_count(w->list) && status == TR_OK; i++)
        status = write_tensor(&file, tr_list_at(w->list, w->order[i]));
    if (status == TR_OK) status = tr__atomic_commit(&file);
    else tr__atomic_abandon(&file);
    if (beside) pthread_join(thread, NULL);
    if (status == TR_OK && w->failure) status = tr__fail_stored(w->failure);
    tr__error_unref(w->failure);
    return status;
}

tr_status tr__safetensors_save(const char *path, const tr_tensor_list *list, const char *id, tr__file_record *record)
{
    if (record) {
        *record = (tr__file_record){0};
        if (id) snprintf(record->save, sizeof record->save, "%s", id);
    }
    TR__TRY(check_list(list));
    int *order = malloc(((size_t)tr_list_count(list) + 1) * sizeof *order);
    size_t length = 0;
    char *header = NULL;
    if (order) {
        order_by_alignment(list, order);
        header = make_header(list, order, id, &length);
    }
    writing w = {.list = list, .order = order, .header = header, .header_bytes = length, .record = record};
    tr_status status = header ? write_file(path, &w) : tr__fail(TR_NO_MEMORY, "out of memory");
    free(header);
    free(order);
    return status;
}

tr_status tr_safetensors_save(const char *path, const tr_tensor_list *list)
{
    return tr__safetensors_save(path, list, NULL, NULL);
}

/* ---- Reading ---------------------------------------------------------------------------------------------------- */

typedef struct entry {
    const char *name; /* in the JSON tree */
    tr_dtype dtype;
    tr_shape shape;
    uint64_t begin, end; /* in the data */
} entry;

typedef struct reader {
    tr__plain_file file;
    uint64_t header_bytes, data_bytes;
    uint32_t header_crc32c;
    cJSON *json;
    entry *entries;
    int count;
    const tr__file_record *record; /* what the file is to contain; NULL: not known */
} reader;

static tr_status damaged(const reader *r, const char *format, ...) TR_PRINTF(2, 3);
static tr_status damaged(const reader *r, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return tr__fail(TR_FORMAT, "%s: %s", r->file.path, text);
}

static tr_status open_file(reader *r, const char *path)
{
    TR__TRY(tr__plain_open(&r->file, path, "a safetensors file"));
    uint64_t file_bytes = r->file.bytes;
    if (file_bytes < 10) return damaged(r, "is no safetensors file: it has only %" PRIu64 " bytes", file_bytes);
    TR__TRY(tr__plain_read(&r->file, 0, &r->header_bytes, sizeof r->header_bytes));
    if (r->header_bytes > file_bytes - 8)
        return damaged(r,
            "is cut short or no safetensors file: its header should have %" PRIu64
            " bytes, the whole file has %" PRIu64,
            r->header_bytes, file_bytes);
    if (r->header_bytes > most_header)
        return damaged(
            r, "its header of %" PRIu64 " bytes is longer than the %d allowed", r->header_bytes, most_header);
    r->data_bytes = file_bytes - 8 - r->header_bytes;
    return TR_OK;
}

static tr_status parse_header(reader *r)
{
    size_t length = (size_t)r->header_bytes;
    char *text = malloc(length + 1);
    if (!text) return tr__fail(TR_NO_MEMORY, "no memory for a header of %zu bytes", length);
    tr_status status = tr__plain_read(&r->file, 8, text, length);
    text[length] = '\0';
    r->header_crc32c = tr__crc32c(tr__crc32c(0, &r->header_bytes, sizeof r->header_bytes), text, length);
    int64_t stray = status == TR_OK ? first_not_utf8(text, length) : -1;
    if (status == TR_OK && *text != '{')
        status = damaged(r, "is no safetensors file: its header does not begin with {");
    if (status == TR_OK && stray >= 0) status = damaged(r, "its header is not UTF-8 at byte %" PRId64, stray);
    if (status == TR_OK) {
        const char *end = NULL;
        r->json = cJSON_ParseWithLengthOpts(text, length, &end, false);
        /* Spaces may follow, to align the data. */
        if (!r->json)
            status = damaged(r, "its header is no JSON from byte %zu on", end ? (size_t)(end - text) : 0);
        else if (end + strspn(end, " \t\r\n") != text + length)
            status = damaged(r, "its header goes on after the JSON object, at byte %zu", (size_t)(end - text));
    }
    free(text);
    return status;
}

/* JSON numbers come as doubles: whole ones are exact to 2^53. */
static bool whole(const cJSON *number, uint64_t *out)
{
    if (!cJSON_IsNumber(number)) return false;
    double value = number->valuedouble;
    if (!(value >= 0 && value <= 9007199254740992.0)) return false;
    *out = (uint64_t)value;
    return (double)*out == value;
}

static tr_status read_metadata(const reader *r, const cJSON *object, tr_tensor_list *list)
{
    if (!cJSON_IsObject(object)) return damaged(r, "its %s is no object", metadata_key);
    const cJSON *item;
    cJSON_ArrayForEach(item, object)
    {
        if (!cJSON_IsString(item)) return damaged(r, "its metadata \"%s\" is no text", item->string);
        TR__TRY(tr_list_set_metadata(list, item->string, item->valuestring));
    }
    return TR_OK;
}

static tr_status read_dtype(const reader *r, const char *name, const cJSON *item, tr_dtype *out)
{
    if (!cJSON_IsString(item)) return damaged(r, "tensor \"%s\" has no dtype", name);
    for (int d = 0; d < TR_DTYPE_COUNT; d++) {
        *out = (tr_dtype)d;
        if (strcmp(item->valuestring, dtype_names[d]) == 0) return TR_OK;
    }
    for (size_t i = 0; i < sizeof other_dtypes / sizeof *other_dtypes; i++)
        if (strcmp(item->valuestring, other_dtypes[i]) == 0)
            return tr__fail(TR_UNSUPPORTED, "%s: tensor \"%s\" is of dtype %s, which Trireme does not have", r->file.path,
                name, other_dtypes[i]);
    return damaged(r, "tensor \"%s\" has no dtype of the format: \"%.20s\"", name, item->valuestring);
}

static tr_status read_shape(const reader *r, const char *name, const cJSON *item, tr_shape *out)
{
    if (!cJSON_IsArray(item)) return damaged(r, "tensor \"%s\" has no shape", name);
    if (cJSON_GetArraySize(item) > TR_MAX_DIMS)
        return tr__fail(TR_UNSUPPORTED, "%s: tensor \"%s\" has %d dimensions, more than %d", r->file.path, name,
            cJSON_GetArraySize(item), TR_MAX_DIMS);
    *out = TR_SCALAR;
    const cJSON *dim;
    cJSON_ArrayForEach(dim, item)
    {
        uint64_t size;
        if (!whole(dim, &size)) return damaged(r, "tensor \"%s\" has a size that is no whole number to 2^53", name);
        out->dim[out->ndim++] = (int64_t)size;
    }
    return TR_OK;
}

static tr_status read_entry(const reader *r, const cJSON *item, entry *e)
{
    e->name = item->string;
    if (!cJSON_IsObject(item)) return damaged(r, "the entry of tensor \"%s\" is no object", e->name);
    TR__TRY(read_dtype(r, e->name, cJSON_GetObjectItemCaseSensitive(item, "dtype"), &e->dtype));
    TR__TRY(read_shape(r, e->name, cJSON_GetObjectItemCaseSensitive(item, "shape"), &e->shape));
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 ||
        !whole(cJSON_GetArrayItem(offsets, 0), &e->begin) || !whole(cJSON_GetArrayItem(offsets, 1), &e->end) ||
        e->begin > e->end)
        return damaged(r, "tensor \"%s\" has no two data_offsets, rising", e->name);
    if (e->end > r->data_bytes)
        return damaged(r, "is cut short: tensor \"%s\" ends at byte %" PRIu64 " of the data, which has %" PRIu64,
            e->name, e->end, r->data_bytes);

    int64_t bytes;
    if (!tr__shape_bytes(e->shape, e->dtype, &bytes) || (uint64_t)bytes != e->end - e->begin)
        return damaged(r, "tensor \"%s\", %s of %s, has %" PRIu64 " bytes of data", e->name,
            tr_shape_text(e->shape, (char[160]){0}), tr_dtype_name(e->dtype), e->end - e->begin);
    return TR_OK;
}

static tr_status read_entries(reader *r, tr_tensor_list *list)
{
    r->entries = calloc((size_t)cJSON_GetArraySize(r->json) + 1, sizeof *r->entries);
    if (!r->entries) return tr__fail(TR_NO_MEMORY, "out of memory");
    const cJSON *item;
    cJSON_ArrayForEach(item, r->json)
    {
        if (strcmp(item->string, metadata_key) == 0)
            TR__TRY(read_metadata(r, item, list));
        else
            TR__TRY(read_entry(r, item, &r->entries[r->count++]));
    }
    return TR_OK;
}

static int by_offset(const void *a, const void *b)
{
    const entry *x = *(entry *const *)a, *y = *(entry *const *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(entry *const *)a)->name, (*(entry *const *)b)->name);
}

/* Two names alike, two tensors over one another, or bytes that belong to none, are signs of damage, or of a file that
 * hides something. */
static tr_status check_layout(const reader *r, const entry **sorted)
{
    for (int i = 0; i < r->count; i++) sorted[i] = &r->entries[i];
    qsort(sorted, (size_t)r->count, sizeof *sorted, by_name);
    for (int i = 1; i < r->count; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            return damaged(r, "has two tensors named \"%s\"", sorted[i]->name);

    qsort(sorted, (size_t)r->count, sizeof *sorted, by_offset);
    uint64_t at = 0;
    for (int i = 0; i < r->count; i++) {
        const entry *e = sorted[i];
        if (e->begin < at) return damaged(r, "tensors \"%s\" and \"%s\" overlap", sorted[i - 1]->name, e->name);
        if (e->begin > at)
            return damaged(r, "%" PRIu64 " bytes before tensor \"%s\" belong to none", e->begin - at, e->name);
        at = e->end;
    }
    if (at != r->data_bytes) return damaged(r, "%" PRIu64 " bytes at its end belong to no tensor", r->data_bytes - at);
    return TR_OK;
}

enum { PIECE = 1 << 20 }; /* of a tensor's data: what one thread reads and sums at once */

typedef struct reading {
    const reader *r;
    const entry *e;
    char *to;
    uint32_t *sums;       /* of each piece */
    tr__error **failures; /* of each piece; NULL: none */
} reading;

static uint64_t piece_bytes(const entry *e, int64_t piece)
{
    uint64_t left = e->end - e->begin - (uint64_t)piece * PIECE;
    return left < PIECE ? left : PIECE;
}

static void read_pieces(void *arg, int64_t begin, int64_t end)
{
    const reading *g = arg;
    for (int64_t i = begin; i < end; i++) {
        uint64_t at = (uint64_t)i * PIECE, bytes = piece_bytes(g->e, i);
        if (tr__plain_read(&g->r->file, 8 + g->r->header_bytes + g->e->begin + at, g->to + at, bytes) != TR_OK)
            g->failures[i] = tr__error_take();
        else if (g->r->record)
            g->sums[i] = tr__crc32c(0, g->to + at, bytes);
    }
}

/* The bytes of a tensor, by all threads of the CPU; *sum gets their CRC-32C where the reader has a record. */
static tr_status read_data(const reader *r, const entry *e, void *to, uint32_t *sum)
{
    int64_t pieces = (int64_t)((e->end - e->begin + PIECE - 1) / PIECE);
    uint32_t *sums = calloc((size_t)pieces + 1, sizeof *sums);
    tr__error **failures = calloc((size_t)pieces + 1, sizeof *failures);
    tr_status status = TR_OK;
    if (sums && failures) {
        reading g = {.r = r, .e = e, .to = to, .sums = sums, .failures = failures};
        tr__pool_for(tr__cpu_pool((tr_device){0}), pieces, 1, read_pieces, &g);
    } else {
        status = tr__fail(TR_NO_MEMORY, "out of memory");
        pieces = 0;
    }
    *sum = 0;
    for (int64_t i = 0; i < pieces; i++) {
        if (status == TR_OK) status = tr__fail_stored(failures[i]);
        tr__error_unref(failures[i]);
        *sum = tr__crc32c_combine(*sum, sums[i], piece_bytes(e, i));
    }
    free(failures);
    free(sums);
    return status;
}

static tr_status check_sum(const reader *r, const entry *e, uint32_t sum)
{
    const tr__tensor_record *expected = tr__file_record_find(r->record, e->name);
    uint64_t data = 8 + r->header_bytes;
    if (!expected) return damaged(r, "holds a tensor \"%s\" that its checkpoint's manifest does not have", e->name);
    if (sum == expected->crc32c) return TR_OK;
    return damaged(r, "is damaged in tensor \"%s\", bytes %" PRIu64 " to %" PRIu64 ": CRC-32C %08" PRIx32
        ", its checkpoint's manifest says %08" PRIx32, e->name, data + e->begin, data + e->end, sum, expected->crc32c);
}

static tr_status read_tensor(const reader *r, const entry *e, tr_tensor_list *list)
{
    TR_SCOPE;
    tr_tensor *t = tr_empty(e->shape, .dtype = e->dtype);
    TR__TRY(tr_status_of(t));
    uint64_t bytes = e->end - e->begin;
    uint32_t sum;
    TR__TRY(read_data(r, e, tr_data(t), &sum));
    if (r->record) TR__TRY(check_sum(r, e, sum));
    const unsigned char *values = tr_data(t);
    for (uint64_t i = 0; e->dtype == TR_BOOL && i < bytes; i++)
        if (values[i] > 1) return damaged(r, "tensor \"%s\" of bool holds the value %d", e->name, values[i]);
    return tr_list_add(list, e->name, t);
}

/* A file of another save is whole in itself, so it is told from a damaged one. */
static tr_status check_header(const reader *r)
{
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(r->json, metadata_key);
    const char *save = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(metadata, tr__save_key));
    const tr__file_record *expected = r->record;
    if (!expected || r->header_crc32c == expected->header_crc32c) return TR_OK;
    if (save && strcmp(save, expected->save) != 0)
        return damaged(r, "belongs to another checkpoint: it is of the save %.32s, the manifest beside it of %s", save,
            expected->save);
    return damaged(r, "is damaged in its header, bytes 0 to %" PRIu64 ": CRC-32C %08" PRIx32
        ", its checkpoint's manifest says %08" PRIx32, 8 + r->header_bytes, r->header_crc32c, expected->header_crc32c);
}

static tr_status read_file(reader *r, const char *path, tr_tensor_list *list)
{
    TR__TRY(open_file(r, path));
    TR__TRY(parse_header(r));
    TR__TRY(check_header(r));
    TR__TRY(read_entries(r, list));
    const entry **sorted = calloc((size_t)r->count + 1, sizeof *sorted);
    if (!sorted) return tr__fail(TR_NO_MEMORY, "out of memory");
    tr_status status = check_layout(r, sorted);
    free(sorted);
    if (status == TR_OK && r->record && r->count != r->record->count)
        status = damaged(r, "holds %d tensors, its checkpoint's manifest says %d", r->count, r->record->count);
    for (int i = 0; i < r->count && status == TR_OK; i++) status = read_tensor(r, &r->entries[i], list);
    return status;
}

tr_tensor_list *tr__safetensors_load(const char *path, const tr__file_record *record)
{
    TR_SCOPE;
    tr_tensor_list *list = tr_list();
    reader r = {.file.fd = -1, .record = record};
    tr_status status = tr_status_of(list);
    if (status == TR_OK) status = read_file(&r, path, list);
    tr__plain_close(&r.file);
    cJSON_Delete(r.json);
    free(r.entries);
    return tr_escape(status == TR_OK ? list : (tr_tensor_list *)tr__object_failed(&tr__list_type));
}

tr_tensor_list *tr_safetensors_load(const char *path)
{
    return tr__safetensors_load(path, NULL);
}
