#include "train/manifest.h"

#include "base/c_locale.h"
#include "base/crc32c.h"
#include "base/folder.h"
#include "base/json_string.h"
#include "tensor/checksum.h"
#include "train/safetensors_header.h"

#include <trireme/train.h>

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT = 1, MOST_BYTES = 256 << 20 };

static const char file_name[] = "manifest.json";

/* How the file ends: its own checksum in eight digits between the two. */
static const char tail_begin[] = "  \"crc32c\": \"", tail_end[] = "\"\n}\n";
enum { TAIL = sizeof tail_begin - 1 + 8 + sizeof tail_end - 1 };

/* ---- Making ------------------------------------------------------------------------------------------------------- */

static void add_metadata(tr__sha256 *hash, const tr_tensor_list *list)
{
    for (int i = 0; i < tr_list_metadata_count(list); i++) {
        const char *key = tr_list_metadata_key(list, i), *value = tr_list_metadata(list, key);
        if (strcmp(key, tr__save_key) == 0) continue;
        tr__sha256_add(hash, key, strlen(key) + 1);
        tr__sha256_add(hash, value, strlen(value) + 1);
    }
}

static tr_status add_tensors(tr__sha256 *hash, const tr_tensor_list *list)
{
    for (int i = 0; i < tr_list_count(list); i++) {
        uint32_t sum;
        TR__TRY(tr__checksum(tr_list_at(list, i), &sum));
        tr__sha256_add(hash, tr_list_name(list, i), strlen(tr_list_name(list, i)) + 1);
        tr__sha256_add(hash, &sum, sizeof sum);
    }
    return TR_OK;
}

tr_status tr__manifest_new(tr__manifest *m, int64_t step, double loss, const tr_tensor_list *model,
                           const tr_tensor_list *state)
{
    *m = (tr__manifest){.step = step, .loss = loss};
    TR__TRY(tr_status_of(model));
    TR__TRY(tr_status_of(state));
    snprintf(m->version, sizeof m->version, "%s", tr_version());
    tr__sha256 hash;
    TR__TRY(tr__sha256_begin(&hash));
    add_metadata(&hash, model);
    char metadata[TR__SHA256_TEXT], save[TR__SHA256_TEXT];
    tr__sha256_end(&hash, metadata);
    const char *settings = tr_list_metadata(model, tr__settings_key);
    size_t length = settings ? strlen(settings) : 0;
    bool is_hash = length == TR__SHA256_TEXT - 1 && strspn(settings, "0123456789abcdef") == length;
    strcpy(m->settings, is_hash ? settings : metadata);

    TR__TRY(tr__sha256_begin(&hash));
    tr__sha256_add(&hash, metadata, sizeof metadata);
    tr__sha256_add(&hash, &step, sizeof step);
    tr_status status = add_tensors(&hash, model);
    if (status == TR_OK) status = add_tensors(&hash, state);
    tr__sha256_end(&hash, save);
    snprintf(m->save, sizeof m->save, "%.*s", TR__SAVE_TEXT - 1, save);
    return status;
}

void tr__manifest_free(tr__manifest *m)
{
    for (int i = 0; i < m->count; i++) tr__file_record_free(&m->files[i].record);
    m->count = 0;
}

tr_status tr__manifest_save_file(tr__manifest *m, const char *folder, const char *name, const tr_tensor_list *list)
{
    char path[PATH_MAX];
    TR__TRY(tr__path_join(path, folder, name));
    snprintf(m->files[m->count].name, sizeof m->files[0].name, "%s", name);
    return tr__safetensors_save(path, list, m->save, &m->files[m->count++].record);
}

const tr__file_record *tr__manifest_file(const tr__manifest *m, const char *name)
{
    for (int i = 0; i < m->count; i++)
        if (strcmp(m->files[i].name, name) == 0) return &m->files[i].record;
    return NULL;
}

/* ---- Writing ------------------------------------------------------------------------------------------------------ */

static void write_file(FILE *to, const char *name, const tr__file_record *r)
{
    fprintf(to,
            "    \"%s\": {\"bytes\": %" PRIu64 ", \"sha256\": \"%s\", \"header\": \"%08" PRIx32 "\", \"tensors\": {",
            name, r->bytes, r->sha256, r->header_crc32c);
    for (int i = 0; i < r->count; i++) {
        fputs(i ? ",\n      " : "\n      ", to);
        tr__json_string(to, r->tensors[i].name);
        fprintf(to, ": \"%08" PRIx32 "\"", r->tensors[i].crc32c);
    }
    fputs("}}", to);
}

tr_status tr__manifest_write(const tr__manifest *m, const char *folder)
{
    TR__C_NUMBERS;
    char path[PATH_MAX], *text = NULL;
    TR__TRY(tr__path_join(path, folder, file_name));
    size_t length = 0;
    FILE *to = open_memstream(&text, &length);
    if (!to) return tr__fail(TR_NO_MEMORY, "%s: out of memory", path);
    fprintf(to, "{\n  \"format\": %d,\n  \"save\": \"%s\",\n  \"step\": %" PRId64 ",\n", FORMAT, m->save, m->step);
    if (isfinite(m->loss)) fprintf(to, "  \"loss\": %.17g,\n", m->loss);
    fprintf(to, "  \"trireme\": \"%s\",\n  \"settings\": \"%s\",\n  \"files\": {\n", m->version, m->settings);
    for (int i = 0; i < m->count; i++) {
        write_file(to, m->files[i].name, &m->files[i].record);
        fputs(i + 1 < m->count ? ",\n" : "\n", to);
    }
    fputs("  },\n", to);
    bool lost = fflush(to) != 0; /* text is what has been written so far */
    if (!lost) fprintf(to, "%s%08" PRIx32 "%s", tail_begin, tr__crc32c(0, text, length), tail_end);
    lost |= ferror(to);
    tr_status status = fclose(to) != 0 || lost ? tr__fail(TR_NO_MEMORY, "%s: out of memory", path)
                                               : tr_write_file(path, text, length);
    free(text);
    return status;
}

/* ---- Reading ------------------------------------------------------------------------------------------------------ */

static bool read_hex(const cJSON *item, uint32_t *out)
{
    const char *text = cJSON_GetStringValue(item);
    char *end;
    if (!text || strlen(text) != 8 || strspn(text, "0123456789abcdef") != 8) return false;
    *out = (uint32_t)strtoul(text, &end, 16);
    return true;
}

static bool read_text(const cJSON *object, const char *key, char *to, size_t bytes)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    return text && strlen(text) < bytes && strcpy(to, text);
}

static bool read_whole(const cJSON *object, const char *key, uint64_t *out)
{
    return tr__json_whole(cJSON_GetObjectItemCaseSensitive(object, key), out);
}

static bool read_file(const cJSON *object, const char *save, tr__file_record *r)
{
    const cJSON *tensors = cJSON_GetObjectItemCaseSensitive(object, "tensors"), *item;
    strcpy(r->save, save);
    if (!read_whole(object, "bytes", &r->bytes) || !read_text(object, "sha256", r->sha256, sizeof r->sha256) ||
        !read_hex(cJSON_GetObjectItemCaseSensitive(object, "header"), &r->header_crc32c) || !cJSON_IsObject(tensors))
        return false;
    r->tensors = calloc((size_t)cJSON_GetArraySize(tensors) + 1, sizeof *r->tensors);
    if (!r->tensors) return false;
    cJSON_ArrayForEach(item, tensors)
    {
        r->tensors[r->count].name = strdup(item->string);
        if (!r->tensors[r->count++].name || !read_hex(item, &r->tensors[r->count - 1].crc32c)) return false;
    }
    tr__file_record_sort(r);
    return true;
}

static bool read_manifest(const cJSON *json, tr__manifest *m)
{
    uint64_t format = 0, step = 0;
    const cJSON *files = cJSON_GetObjectItemCaseSensitive(json, "files"), *item;
    const cJSON *loss = cJSON_GetObjectItemCaseSensitive(json, "loss");
    if (!read_whole(json, "format", &format) || format != FORMAT || !read_whole(json, "step", &step) ||
        !read_text(json, "save", m->save, sizeof m->save) ||
        !read_text(json, "trireme", m->version, sizeof m->version) ||
        !read_text(json, "settings", m->settings, sizeof m->settings) || !cJSON_IsObject(files))
        return false;
    m->step = (int64_t)step;
    m->loss = cJSON_IsNumber(loss) ? loss->valuedouble : NAN;
    cJSON_ArrayForEach(item, files)
    {
        if (m->count == TR__MANIFEST_FILES || strlen(item->string) >= sizeof m->files[0].name) return false;
        strcpy(m->files[m->count].name, item->string);
        if (!read_file(item, m->save, &m->files[m->count++].record)) return false;
    }
    return true;
}

/* The file ends with its checksum, which covers all before that line. */
static bool is_whole(const char *text, size_t length)
{
    char tail[TAIL + 1];
    if (length < TAIL) return false;
    snprintf(tail, sizeof tail, "%s%08" PRIx32 "%s", tail_begin, tr__crc32c(0, text, length - TAIL), tail_end);
    return memcmp(text + length - TAIL, tail, TAIL) == 0;
}

tr_status tr__manifest_read(tr__manifest *m, const char *folder)
{
    TR__C_NUMBERS;
    *m = (tr__manifest){.loss = NAN};
    char path[PATH_MAX];
    tr__plain_file file;
    TR__TRY(tr__path_join(path, folder, file_name));
    TR__TRY(tr__plain_open(&file, path, "the manifest of a checkpoint"));
    size_t length = file.bytes < MOST_BYTES ? (size_t)file.bytes : 0;
    char *text = malloc(length + 1);
    tr_status status = text ? tr__plain_read(&file, 0, text, length) : tr__fail(TR_NO_MEMORY, "no memory for %s", path);
    tr__plain_close(&file);
    if (status == TR_OK && !is_whole(text, length))
        status = tr__fail(TR_FORMAT, "%s: is damaged: its own checksum does not hold", path);
    if (status == TR_OK) {
        cJSON *json = cJSON_ParseWithLength(text, length);
        if (!json || !read_manifest(json, m))
            status = tr__fail(TR_FORMAT, "%s: is no manifest that Trireme %s can read", path, tr_version());
        cJSON_Delete(json);
    }
    free(text);
    return status;
}
