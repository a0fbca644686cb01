/*
 * tokenizer.json, as Hugging Face's tokenizers write it:
 *
 *   { "added_tokens": [{"id": 0, "content": "<|endoftext|>", …}], "normalizer": …, "pre_tokenizer": …, "post_processor": …,
 *     "model": {"type": "BPE", "vocab": {"token": id}, "merges": ["left right", …]} }
 *
 * Of what these parts can be, those of GPT-2 and of BERT are taken.
 */
#include "data/text/tokenizer_json.h"

#include "base/atomic_file.h"
#include "base/json_string.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Asking the tree ------------------------------------------------------------------------------------------------ */

static const cJSON *member(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

/* A member that is a text; "" for one that is not there, or null. */
static const char *text_of(const cJSON *object, const char *name)
{
    const char *text = cJSON_GetStringValue(member(object, name));
    return text ? text : "";
}

static tr_status check_type(const cJSON *json, const char *part, const char *want, const char *or)
{
    const cJSON *object = member(json, part);
    const char *type = text_of(object, "type");
    if (!object || cJSON_IsNull(object)) type = "none";
    if (strcmp(type, want) == 0 || (or && strcmp(type, or) == 0)) return TR_OK;
    return tr__fail(TR_UNSUPPORTED, "its %s is %.40s; Trireme has %s%s%s", part, type, want, or ? " and " : "",
        or ? or : "");
}

/* Switches that must be off. */
static tr_status check_off(const cJSON *object, const char *part, const char *const *names)
{
    for (; *names; names++) {
        const cJSON *value = member(object, *names);
        bool off = !value || cJSON_IsNull(value) || cJSON_IsFalse(value) || (cJSON_IsString(value) && !*value->valuestring);
        if (!off) return tr__fail(TR_UNSUPPORTED, "its %s has %s, which Trireme does not", part, *names);
    }
    return TR_OK;
}

/* ---- Tokens --------------------------------------------------------------------------------------------------------- */

/* A token's bytes from the characters that stand for them, into at most TR__TOKEN_MOST. */
static tr_status bytes_of(const char *written, size_t length, unsigned char *bytes, size_t *count)
{
    int step;
    *count = 0;
    for (size_t at = 0; at < length; at += (size_t)step) {
        int byte = tr__character_byte(tr__utf8_read((const unsigned char *)written + at, length - at, &step));
        if (byte < 0 || *count == TR__TOKEN_MOST)
            return tr__fail(TR_FORMAT, "the token \"%.*s\" %s", (int)(length < 40 ? length : 40), written,
                byte < 0 ? "holds a character that stands for no byte" : "is too long");
        bytes[(*count)++] = (unsigned char)byte;
    }
    return TR_OK;
}

typedef struct named {
    const char *name;
    bool added;
} named;

static tr_status note(named *names, int count, const char *name, const cJSON *id, bool added)
{
    double number = cJSON_IsNumber(id) ? id->valuedouble : -1;
    if (!name || !(number >= 0 && number < count) || number != (int)number)
        return tr__fail(TR_FORMAT, "the token \"%.40s\" has no id from 0 to %d", name ? name : "", count - 1);
    named *place = &names[(int)number];
    if (place->name && strcmp(place->name, name) != 0)
        return tr__fail(TR_FORMAT, "\"%.40s\" and \"%.40s\" have the same id, %d", place->name, name, (int)number);
    *place = (named){name, place->added || added};
    return TR_OK;
}

static tr_status check_added(const tr_tokenizer *t, const cJSON *item)
{
    static const char *const off[] = {"single_word", "lstrip", "rstrip", NULL};
    TR__TRY(check_off(item, "added token", off));
    if (!cJSON_IsTrue(member(item, "special")) || (t->kind == TR__WORD_PIECE && cJSON_IsTrue(member(item, "normalized"))))
        return tr__fail(TR_UNSUPPORTED, "its added token \"%.40s\" is part of the text, which Trireme does not have",
            text_of(item, "content"));
    return TR_OK;
}

/* All names by their ids. */
static tr_status collect(const tr_tokenizer *t, const cJSON *vocab, const cJSON *added, named *names, int most)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, vocab) TR__TRY(note(names, most, item->string, item, false));
    cJSON_ArrayForEach(item, added)
    {
        TR__TRY(check_added(t, item));
        TR__TRY(note(names, most, cJSON_GetStringValue(member(item, "content")), member(item, "id"), true));
    }
    return TR_OK;
}

static tr_status add_token(tr_tokenizer *t, int id, const named *token)
{
    unsigned char bytes[TR__TOKEN_MOST];
    const void *from = token->name;
    size_t count = strlen(token->name);
    if (!token->added && t->kind == TR__BYTE_PAIR) {
        TR__TRY(bytes_of(token->name, count, bytes, &count));
        from = bytes;
    }
    int number;
    bool fresh;
    if (!tr__is_utf8(token->name, strlen(token->name))) return tr__fail(TR_FORMAT, "token %d is not UTF-8", id);
    TR__TRY(tr__strings_add(&t->tokens, from, count, &number, &fresh));
    if (!fresh) return tr__fail(TR_FORMAT, "tokens %d and %d are the same, \"%.40s\"", number, id, token->name);
    return token->added ? tr__tokenizer_add_special(t, id) : TR_OK;
}

static tr_status add_tokens(tr_tokenizer *t, const named *names, int most)
{
    int count = most;
    while (count && !names[count - 1].name) count--; /* added tokens that the vocabulary has, too */
    if (!count) return tr__fail(TR_FORMAT, "there are no tokens");
    for (int id = 0; id < count; id++) {
        if (!names[id].name) return tr__fail(TR_FORMAT, "of %d tokens none has the id %d", count, id);
        TR__TRY(add_token(t, id, &names[id]));
    }
    return TR_OK;
}

static tr_status read_tokens(tr_tokenizer *t, const cJSON *vocab, const cJSON *added)
{
    if (!cJSON_IsObject(vocab)) return tr__fail(TR_FORMAT, "the vocabulary is no JSON object of tokens and ids");
    int most = cJSON_GetArraySize(vocab) + cJSON_GetArraySize(added);
    named *names = calloc((size_t)most + 1, sizeof *names);
    if (!names) return tr__fail(TR_NO_MEMORY, "out of memory");
    tr_status status = collect(t, vocab, added, names, most);
    if (status == TR_OK) status = add_tokens(t, names, most);
    free(names);
    return status;
}

tr_status tr__json_byte_pairs(tr_tokenizer *t, const cJSON *vocab, const cJSON *added)
{
    t->kind = TR__BYTE_PAIR;
    return read_tokens(t, vocab, added);
}

/* ---- Merges --------------------------------------------------------------------------------------------------------- */

static tr_status find_token(const tr_tokenizer *t, const unsigned char *bytes, size_t count, const char *what, int *id)
{
    *id = tr__strings_find(&t->tokens, bytes, count);
    return *id >= 0 ? TR_OK : tr__fail(TR_FORMAT, "the vocabulary does not have %s of a merge", what);
}

tr_status tr__json_merge(tr_tokenizer *t, const char *left, size_t left_bytes, const char *right, size_t right_bytes)
{
    unsigned char both[2 * TR__TOKEN_MOST];
    size_t first, second;
    int ids[3];
    TR__TRY(bytes_of(left, left_bytes, both, &first));
    TR__TRY(bytes_of(right, right_bytes, both + first, &second));
    TR__TRY(find_token(t, both, first, "the left side", &ids[0]));
    TR__TRY(find_token(t, both + first, second, "the right side", &ids[1]));
    TR__TRY(find_token(t, both, first + second, "the result", &ids[2]));
    return tr__merges_add(&t->merges, ids[0], ids[1], ids[2]);
}

/* "left right", or ["left", "right"] */
static tr_status read_merge(tr_tokenizer *t, const cJSON *item)
{
    const char *left = cJSON_GetStringValue(item), *right = left ? strchr(left, ' ') : NULL;
    size_t length = right ? (size_t)(right++ - left) : 0;
    if (cJSON_IsArray(item) && cJSON_GetArraySize(item) == 2) {
        left = cJSON_GetStringValue(cJSON_GetArrayItem(item, 0));
        right = cJSON_GetStringValue(cJSON_GetArrayItem(item, 1));
        length = left ? strlen(left) : 0;
    }
    if (!left || !right) return tr__fail(TR_FORMAT, "it is no pair of tokens");
    return tr__json_merge(t, left, length, right, strlen(right));
}

/* ---- The whole ------------------------------------------------------------------------------------------------------ */

static tr_status read_byte_pairs(tr_tokenizer *t, const cJSON *json, const cJSON *model)
{
    static const char *const off[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback",
        "ignore_merges", NULL};
    TR__TRY(check_type(json, "normalizer", "none", NULL));
    TR__TRY(check_type(json, "pre_tokenizer", "ByteLevel", NULL));
    TR__TRY(check_type(json, "post_processor", "ByteLevel", "none"));
    TR__TRY(check_off(model, "model", off));
    const cJSON *words = member(json, "pre_tokenizer"), *item;
    if (cJSON_IsFalse(member(words, "use_regex")))
        return tr__fail(TR_UNSUPPORTED, "its pre_tokenizer does not cut words as GPT-2 does");
    t->space_before = cJSON_IsTrue(member(words, "add_prefix_space"));
    TR__TRY(tr__json_byte_pairs(t, member(model, "vocab"), member(json, "added_tokens")));
    int number = 0;
    cJSON_ArrayForEach(item, member(model, "merges"))
    {
        tr_status status = read_merge(t, item);
        if (status != TR_OK) return tr__fail_context(status, "merge %d", number);
        number++;
    }
    return TR_OK;
}

static tr_status read_word_pieces(tr_tokenizer *t, const cJSON *json, const cJSON *model)
{
    const cJSON *cleaning = member(json, "normalizer"), *accents = member(cleaning, "strip_accents");
    const cJSON *longest = member(model, "max_input_chars_per_word");
    TR__TRY(check_type(json, "normalizer", "BertNormalizer", NULL));
    TR__TRY(check_type(json, "pre_tokenizer", "BertPreTokenizer", NULL));
    TR__TRY(check_type(json, "post_processor", "TemplateProcessing", "BertProcessing"));
    if (!cJSON_IsTrue(member(cleaning, "clean_text")) || strcmp(text_of(model, "unk_token"), "[UNK]") != 0 ||
        strcmp(text_of(model, "continuing_subword_prefix"), "##") != 0 ||
        (longest && (!cJSON_IsNumber(longest) || longest->valuedouble != 100)))
        return tr__fail(TR_UNSUPPORTED, "it is not BERT's: clean_text, [UNK], ## and words of at most 100 characters");
    t->kind = TR__WORD_PIECE;
    t->cleaning.spaced_ideographs = cJSON_IsTrue(member(cleaning, "handle_chinese_chars"));
    t->cleaning.lower = cJSON_IsTrue(member(cleaning, "lowercase"));
    t->cleaning.without_accents = cJSON_IsBool(accents) ? cJSON_IsTrue(accents) : t->cleaning.lower;
    return read_tokens(t, member(model, "vocab"), member(json, "added_tokens"));
}

tr_status tr__json_tokenizer(tr_tokenizer *t, const cJSON *json)
{
    const cJSON *model = member(json, "model");
    TR__TRY(check_type(json, "model", "BPE", "WordPiece"));
    return strcmp(text_of(model, "type"), "BPE") == 0 ? read_byte_pairs(t, json, model)
                                                      : read_word_pieces(t, json, model);
}

/* ---- Writing -------------------------------------------------------------------------------------------------------- */

/* The characters of a token in files, at most twice as many bytes. */
static size_t written(const tr_tokenizer *t, int id, unsigned char text[2 * TR__TOKEN_MOST])
{
    size_t count, length = 0;
    const unsigned char *bytes = tr__strings_at(&t->tokens, id, &count);
    bool as_it_is = t->kind == TR__WORD_PIECE || tr__tokenizer_is_special(t, id);
    if (count > TR__TOKEN_MOST) count = TR__TOKEN_MOST; /* checked before */
    for (size_t i = 0; i < count; i++) {
        if (as_it_is)
            text[length++] = bytes[i];
        else
            length += (size_t)tr__utf8_write(tr__byte_character(bytes[i]), text + length);
    }
    return length;
}

static void write_added(FILE *to, const tr_tokenizer *t)
{
    fputs("  \"added_tokens\": [", to);
    for (int i = 0; i < t->special_count; i++) {
        unsigned char text[2 * TR__TOKEN_MOST];
        fprintf(to, "%s\n    {\"id\": %d, \"content\": ", i ? "," : "", t->special[i]);
        tr__json_bytes(to, text, written(t, t->special[i], text));
        fputs(", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}",
            to);
    }
    fputs("\n  ],\n", to);
}

static void write_vocabulary(FILE *to, const tr_tokenizer *t)
{
    fputs("    \"vocab\": {", to);
    for (int id = 0; id < t->tokens.count; id++) {
        unsigned char text[2 * TR__TOKEN_MOST];
        fputs(id ? ",\n      " : "\n      ", to);
        tr__json_bytes(to, text, written(t, id, text));
        fprintf(to, ": %d", id);
    }
    fputs("\n    }", to);
}

static bool write_merges(FILE *to, const tr_tokenizer *t)
{
    tr__merge *sorted = calloc((size_t)t->merges.count + 1, sizeof *sorted);
    if (!sorted) return false;
    for (uint32_t i = 0; i < t->merges.slot_count; i++)
        if (t->merges.slots[i].left >= 0) sorted[t->merges.slots[i].rank] = t->merges.slots[i];
    fputs(",\n    \"merges\": [", to);
    for (int i = 0; i < t->merges.count; i++) {
        unsigned char both[4 * TR__TOKEN_MOST + 1];
        size_t length = written(t, sorted[i].left, both);
        both[length++] = ' ';
        length += written(t, sorted[i].right, both + length);
        fputs(i ? ",\n      " : "\n      ", to);
        tr__json_bytes(to, both, length);
    }
    fputs("\n    ]", to);
    free(sorted);
    return true;
}

static const char *truth(bool value)
{
    return value ? "true" : "false";
}

static void write_byte_pair_parts(FILE *to, const tr_tokenizer *t)
{
    const char *space = truth(t->space_before);
    fprintf(to, "  \"normalizer\": null,\n"
        "  \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": %s, \"trim_offsets\": true, "
        "\"use_regex\": true},\n"
        "  \"post_processor\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": false, "
        "\"use_regex\": true},\n"
        "  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, "
        "\"use_regex\": true},\n"
        "  \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": null,\n"
        "    \"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, \"ignore_merges\": false,\n",
        space);
}

static void write_word_piece_parts(FILE *to, const tr_tokenizer *t)
{
    const tr__cleaning *c = &t->cleaning;
    fprintf(to, "  \"normalizer\": {\"type\": \"BertNormalizer\", \"clean_text\": true, \"handle_chinese_chars\": %s, "
        "\"strip_accents\": %s, \"lowercase\": %s},\n"
        "  \"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"},\n"
        "  \"post_processor\": {\"type\": \"BertProcessing\", \"sep\": [\"[SEP]\", %d], \"cls\": [\"[CLS]\", %d]},\n"
        "  \"decoder\": {\"type\": \"WordPiece\", \"prefix\": \"##\", \"cleanup\": true},\n"
        "  \"model\": {\"type\": \"WordPiece\", \"unk_token\": \"[UNK]\", \"continuing_subword_prefix\": \"##\", "
        "\"max_input_chars_per_word\": 100,\n",
        truth(c->spaced_ideographs), truth(c->without_accents), truth(c->lower), t->end, t->begin);
}

static tr_status check_lengths(const tr_tokenizer *t)
{
    for (int id = 0; id < t->tokens.count; id++) {
        size_t count;
        tr__strings_at(&t->tokens, id, &count);
        if (count > TR__TOKEN_MOST) return tr__fail(TR_INVALID, "token %d has %zu bytes, more than %d", id, count, TR__TOKEN_MOST);
    }
    return TR_OK;
}

static bool write_all(FILE *to, const tr_tokenizer *t)
{
    fputs("{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n", to);
    write_added(to, t);
    bool whole = true;
    if (t->kind == TR__BYTE_PAIR)
        write_byte_pair_parts(to, t);
    else
        write_word_piece_parts(to, t);
    write_vocabulary(to, t);
    if (t->kind == TR__BYTE_PAIR) whole = write_merges(to, t);
    fputs("\n  }\n}\n", to);
    return whole && !ferror(to);
}

tr_status tr_tokenizer_save(const tr_tokenizer *t, const char *path)
{
    TR__TRY(tr_status_of(t));
    if (!t || !path) return tr__fail(TR_INVALID, "tokenizer_save: it takes a tokenizer and a path, not NULL");
    TR__TRY(check_lengths(t));
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    bool whole = to && write_all(to, t);
    if (to && fclose(to) != 0) whole = false;
    tr__atomic_file file;
    tr_status status = whole ? tr__atomic_open(&file, path) : tr__fail(TR_NO_MEMORY, "out of memory");
    if (status == TR_OK) status = tr__atomic_write(&file, text, bytes);
    if (status == TR_OK) status = tr__atomic_commit(&file);
    free(text);
    return status == TR_OK ? TR_OK : tr__fail_context(status, "tokenizer");
}
