/* Where tokenizers come from: vocab.json and merges.txt, vocab.txt, or tokenizer.json. */
#include "data/file.h"
#include "data/text/tokenizer.h"
#include "data/text/tokenizer_json.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A file's text, to be freed. Its failures name the file. */
static tr_status read_text(const char *path, char **text, size_t *bytes)
{
    tr_status status = tr__file_read(path, (unsigned char **)text, bytes);
    return status == TR_OK ? TR_OK : tr__fail_context(status, "%s", path);
}

static tr_status read_json(const char *path, cJSON **json)
{
    char *text = NULL;
    size_t bytes = 0;
    TR__TRY(read_text(path, &text, &bytes));
    const char *end = NULL;
    *json = cJSON_ParseWithLengthOpts(text, bytes, &end, false);
    size_t at = end ? (size_t)(end - text) : 0;
    free(text);
    return *json ? TR_OK : tr__fail(TR_FORMAT, "%s: is no JSON from byte %zu on", path, at);
}

/* The next line of a text; *text moves on. A carriage return at its end is dropped. */
static const char *next_line(const char **text, const char *end, size_t *length)
{
    const char *line = *text, *stop = memchr(line, '\n', (size_t)(end - line));
    *text = stop ? stop + 1 : end;
    *length = (size_t)((stop ? stop : end) - line);
    if (*length && line[*length - 1] == '\r') --*length;
    return line;
}

/* ---- vocab.json and merges.txt -------------------------------------------------------------------------------------- */

/* Lines "left right", after one that begins with #version. */
static tr_status read_merges(tr_tokenizer *t, const char *text, size_t bytes)
{
    const char *end = text + bytes;
    for (int number = 1; text < end; number++) {
        size_t length;
        const char *line = next_line(&text, end, &length), *space = memchr(line, ' ', length);
        if (!length || (number == 1 && length >= 8 && !memcmp(line, "#version", 8))) continue;
        if (!space) return tr__fail(TR_FORMAT, "line %d has no two tokens with a space between", number);
        size_t left = (size_t)(space - line);
        tr_status status = tr__json_merge(t, line, left, space + 1, length - left - 1);
        if (status != TR_OK) return tr__fail_context(status, "line %d", number);
    }
    return TR_OK;
}

static tr_status load_pairs(tr_tokenizer *t, const char *vocab, const char *merges)
{
    cJSON *json = NULL;
    TR__TRY(read_json(vocab, &json));
    tr_status status = tr__json_byte_pairs(t, json, NULL);
    cJSON_Delete(json);
    if (status != TR_OK) return tr__fail_context(status, "%s", vocab);
    int end_of_text = tr__strings_find(&t->tokens, "<|endoftext|>", 13);
    if (end_of_text >= 0) TR__TRY(tr__tokenizer_add_special(t, end_of_text));
    char *text = NULL;
    size_t bytes = 0;
    TR__TRY(read_text(merges, &text, &bytes));
    status = read_merges(t, text, bytes);
    free(text);
    return status == TR_OK ? TR_OK : tr__fail_context(status, "%s", merges);
}

/* ---- vocab.txt ------------------------------------------------------------------------------------------------------ */

static tr_status read_words(tr_tokenizer *t, const char *text, size_t bytes)
{
    const char *end = text + bytes;
    for (int number = 1; text < end; number++) {
        size_t length;
        const char *line = next_line(&text, end, &length);
        int id;
        bool fresh;
        if (!tr__is_utf8(line, length)) return tr__fail(TR_FORMAT, "line %d is not UTF-8", number);
        TR__TRY(tr__strings_add(&t->tokens, line, length, &id, &fresh));
        if (!fresh)
            return tr__fail(TR_FORMAT, "line %d is the same token as line %d: \"%.*s\"", number, id + 1,
                (int)(length < 40 ? length : 40), line);
    }
    static const char *const special[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
    for (size_t i = 0; i < sizeof special / sizeof *special; i++) {
        int id = tr__strings_find(&t->tokens, special[i], strlen(special[i]));
        if (id >= 0) TR__TRY(tr__tokenizer_add_special(t, id));
    }
    return TR_OK;
}

/* Whether tokenizer_config.json keeps capitals; without such a file *cased stays. */
static tr_status read_config(const char *path, bool *cased)
{
    struct stat info;
    if (stat(path, &info) != 0) return TR_OK;
    cJSON *json = NULL;
    TR__TRY(read_json(path, &json));
    const cJSON *lower = cJSON_GetObjectItemCaseSensitive(json, "do_lower_case");
    if (cJSON_IsBool(lower)) *cased = *cased || cJSON_IsFalse(lower);
    cJSON_Delete(json);
    return TR_OK;
}

static tr_status load_words(tr_tokenizer *t, const char *path, bool cased)
{
    char *text = NULL;
    size_t bytes = 0;
    t->kind = TR__WORD_PIECE;
    t->cleaning = (tr__cleaning){.spaced_ideographs = true, .without_accents = !cased, .lower = !cased};
    TR__TRY(read_text(path, &text, &bytes));
    tr_status status = read_words(t, text, bytes);
    free(text);
    return status == TR_OK ? TR_OK : tr__fail_context(status, "%s", path);
}

/* ---- Which ---------------------------------------------------------------------------------------------------------- */

static tr_status load_json(tr_tokenizer *t, const char *path)
{
    cJSON *json = NULL;
    TR__TRY(read_json(path, &json));
    tr_status status = tr__json_tokenizer(t, json);
    cJSON_Delete(json);
    return status == TR_OK ? TR_OK : tr__fail_context(status, "%s", path);
}

/* A file's name behind the first length bytes of a path; they end with a slash, or length is 0. */
static tr_status named(char out[PATH_MAX], const char *path, size_t length, const char *name)
{
    if (snprintf(out, PATH_MAX, "%.*s%s", (int)length, path, name) < PATH_MAX) return TR_OK;
    return tr__fail(TR_INVALID, "the path is too long: %.60s…", path);
}

static bool is_named(const char *path, const char *end)
{
    size_t length = strlen(path), more = strlen(end);
    return length >= more && strcmp(path + length - more, end) == 0;
}

static tr_status load_file(tr_tokenizer *t, const tr_tokenizer_options *o, const char *path)
{
    char other[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t folder = slash ? (size_t)(slash - path) + 1 : 0;
    bool cased = o->cased;
    if (is_named(path, "vocab.json")) {
        TR__TRY(named(other, path, folder, "merges.txt"));
        return load_pairs(t, path, other);
    }
    if (!is_named(path, ".txt")) return load_json(t, path);
    TR__TRY(named(other, path, folder, "tokenizer_config.json"));
    TR__TRY(read_config(other, &cased));
    return load_words(t, path, cased);
}

static tr_status load(tr_tokenizer *t, const tr_tokenizer_options *o)
{
    static const char *const names[] = {"tokenizer.json", "vocab.json", "vocab.txt"};
    struct stat info;
    if (!o->path) return tr__fail(TR_INVALID, "no path was given");
    if (stat(o->path, &info) != 0 || !S_ISDIR(info.st_mode)) return load_file(t, o, o->path);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char folder[PATH_MAX], path[PATH_MAX];
        TR__TRY(named(folder, o->path, strlen(o->path), "/"));
        TR__TRY(named(path, folder, strlen(folder), names[i]));
        if (stat(path, &info) == 0) return load_file(t, o, path);
    }
    return tr__fail(TR_NOT_FOUND, "there is no tokenizer.json, vocab.json or vocab.txt in the folder %s", o->path);
}

tr_status tr__tokenizer_load(tr_tokenizer *t, const tr_tokenizer_options *options)
{
    tr_status status = load(t, options);
    if (status == TR_OK) status = tr__tokenizer_finish(t);
    return status == TR_OK ? TR_OK : tr__fail_context(status, "tokenizer");
}
