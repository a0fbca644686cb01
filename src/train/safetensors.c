/* Files of the safetensors format: safetensors_header.c tells what it is. */
#include "base/atomic_file.h"
#include "base/crc32c.h"
#include "base/json_string.h"
#include "base/thread.h"
#include "data/text/unicode.h"
#include "device/device.h"
#include "tensor/list.h"
#include "train/safetensors_header.h"

#include <trireme/train.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file's byte order is taken for the machine's");

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

static uint64_t bytes_of(const tr_tensor *t)
{
    return (uint64_t)tr_numel(t) * tr_dtype_size(tr_dtype_of(t));
}

static tr_status check_text(const char *what, const char *text)
{
    if (tr__is_utf8(text, strlen(text))) return TR_OK;
    return tr__fail(TR_INVALID, "%s \"%s\" is not UTF-8", what, text);
}

static tr_status check_list(const tr_tensor_list *list)
{
    TR__TRY(tr_status_of(list));
    for (int i = 0; i < tr_list_count(list); i++) {
        TR__TRY(tr_status_of(tr_list_at(list, i)));
        TR__TRY(check_text("the name", tr_list_name(list, i)));
        if (strcmp(tr_list_name(list, i), tr__metadata_key) == 0)
            return tr__fail(TR_INVALID, "no tensor can be named \"%s\": it is the metadata's name", tr__metadata_key);
    }
    for (int i = 0; i < tr_list_metadata_count(list); i++) {
        const char *key = tr_list_metadata_key(list, i);
        TR__TRY(check_text("the metadata key", key));
        TR__TRY(check_text("the metadata", tr_list_metadata(list, key)));
    }
    return TR_OK;
}

static void write_metadata(FILE *to, const tr_tensor_list *list, const char *id)
{
    fprintf(to, "\"%s\":{", tr__metadata_key);
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
        tr__json_string(to, tr_list_name(list, order[i]));
        fprintf(to, ":{\"dtype\":\"%s\",\"shape\":[", tr__safetensors_dtypes[tr_dtype_of(t)]);
        for (int d = 0; d < tr_ndim(t); d++) fprintf(to, "%s%" PRId64, d ? "," : "", tr_size(t, d));
        fprintf(to, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", size, size + bytes_of(t));
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
    if (w->header_bytes - 8 > TR__MOST_HEADER)
        return tr__fail(TR_INVALID, "%s: a header of %zu bytes is too long", path, w->header_bytes - 8);
    tr__atomic_file file;
    TR__TRY(tr__atomic_open(&file, path));
    pthread_t thread;
    bool beside = w->record && tr__thread_start(&thread, record_thread, w) == 0;
    if (w->record && !beside) record_thread(w);
    tr_status status = tr__atomic_write(&file, w->header, w->header_bytes);
    for (int i = 0; i < tr_list_count(w->list) && status == TR_OK; i++) {
        TR_SCOPE;
        const tr_tensor *flat = tr__row_major_on_cpu(tr_list_at(w->list, w->order[i]));
        status = tr_status_of(flat);
        if (status == TR_OK) status = tr__atomic_write(&file, tr_data(flat), (size_t)bytes_of(flat));
    }
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
        int n = 0;
        for (size_t size = 8; size; size /= 2) /* larger elements first: each tensor lies aligned in the file */
            for (int i = 0; i < tr_list_count(list); i++)
                if (tr_dtype_size(tr_dtype_of(tr_list_at(list, i))) == size) order[n++] = i;
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
    if (path && !list) return tr__fail(TR_INVALID, "safetensors_save: the list is NULL");
    return tr__safetensors_save(path, list, NULL, NULL);
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

/* Of a tensor's data: what one thread takes at once, and how much of that it reads before it sums it. The latter stays in the second
 * cache from the one to the other. */
enum { PIECE = 1 << 20, STRIDE = 128 << 10 };

typedef struct reading {
    const tr__safetensors_reader *r;
    const tr__safetensors_entry *e;
    char *to;
    uint32_t *sums;       /* of each piece */
    tr__error **failures; /* of each piece; NULL: none */
} reading;

static uint64_t piece_bytes(const tr__safetensors_entry *e, int64_t piece)
{
    uint64_t left = e->end - e->begin - (uint64_t)piece * PIECE;
    return left < PIECE ? left : PIECE;
}

static tr_status read_piece(const reading *g, int64_t piece)
{
    const tr__safetensors_reader *r = g->r;
    uint64_t at = (uint64_t)piece * PIECE, end = at + piece_bytes(g->e, piece), stride = r->record ? STRIDE : PIECE;
    for (; at < end; at += stride) {
        uint64_t bytes = end - at < stride ? end - at : stride;
        TR__TRY(tr__plain_read(&r->file, r->data_begin + g->e->begin + at, g->to + at, bytes));
        if (r->record) g->sums[piece] = tr__crc32c(g->sums[piece], g->to + at, bytes);
    }
    return TR_OK;
}

static void read_pieces(void *arg, int64_t begin, int64_t end)
{
    const reading *g = arg;
    for (int64_t i = begin; i < end; i++)
        if (read_piece(g, i) != TR_OK) g->failures[i] = tr__error_take();
}

/* The bytes of a tensor, by all threads of the CPU; *sum gets their CRC-32C where the reader has a record. */
static tr_status read_data(const tr__safetensors_reader *r, const tr__safetensors_entry *e, void *to, uint32_t *sum)
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

static tr_status read_tensor(const tr__safetensors_reader *r, const tr__safetensors_entry *e, tr_tensor_list *list)
{
    TR_SCOPE;
    tr_tensor *t = tr_empty(e->shape, .dtype = e->dtype);
    TR__TRY(tr_status_of(t));
    uint64_t bytes = e->end - e->begin;
    uint32_t sum;
    TR__TRY(read_data(r, e, tr_data(t), &sum));
    if (r->record) TR__TRY(tr__safetensors_check(r, e, sum));
    const unsigned char *values = tr_data(t);
    for (uint64_t i = 0; e->dtype == TR_BOOL && i < bytes; i++)
        if (values[i] > 1) return tr__file_damaged(r, "tensor \"%s\" of bool holds the value %d", e->name, values[i]);
    return tr_list_add(list, e->name, t);
}

tr_tensor_list *tr__safetensors_load(const char *path, const tr__file_record *record)
{
    TR_SCOPE;
    tr_tensor_list *list = tr_list_new();
    tr__safetensors_reader r;
    tr_status status = tr__safetensors_open(&r, path, record, list);
    for (int i = 0; i < r.count && status == TR_OK; i++) status = read_tensor(&r, &r.entries[i], list);
    tr__safetensors_close(&r);
    return tr_escape(status == TR_OK ? list : (tr_tensor_list *)tr__object_failed(&tr__list_type));
}

tr_tensor_list *tr_safetensors_load(const char *path)
{
    return tr__safetensors_load(path, NULL);
}
