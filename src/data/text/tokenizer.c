/* Tokenizers: texts to ids and back, with the special tokens between the pieces of a text. */
#include "data/text/tokenizer.h"

#include "base/crc32c.h"
#include "base/given.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void destroy(void *self)
{
    tr_tokenizer *t = self;
    tr__strings_free(&t->tokens);
    free(t->special);
    free(t->merges.slots);
}

const tr__type tr__tokenizer_type = {"tokenizer", sizeof(tr_tokenizer), destroy};

tr_tokenizer *tr_tokenizer_load_with(const tr_tokenizer_options *options)
{
    tr_tokenizer *t = tr__object_new(&tr__tokenizer_type);
    if (tr_status_of(t) != TR_OK) return t;
    if (tr__tokenizer_load(t, options) != TR_OK) tr__object_break(t);
    return t;
}

/* ---- Making -------------------------------------------------------------------------------------------------------- */

tr_status tr__tokenizer_add_special(tr_tokenizer *t, int id)
{
    if (tr__tokenizer_is_special(t, id)) return TR_OK;
    int *special = realloc(t->special, ((size_t)t->special_count + 1) * sizeof *special);
    if (!special) return tr__fail(TR_NO_MEMORY, "tokenizer: out of memory");
    special[t->special_count++] = id;
    t->special = special;
    return TR_OK;
}

static tr_status find_or_fail(const tr_tokenizer *t, const char *name, int *id)
{
    *id = tr__strings_find(&t->tokens, name, strlen(name));
    return *id >= 0 ? TR_OK : tr__fail(TR_FORMAT, "the vocabulary of word pieces has no %s", name);
}

tr_status tr__tokenizer_finish(tr_tokenizer *t)
{
    for (int b = 0; b < 256; b++) t->of_byte[b] = tr__strings_find(&t->tokens, (unsigned char[]){(unsigned char)b}, 1);
    if (t->kind == TR__BYTE_PAIR) return TR_OK;
    TR__TRY(find_or_fail(t, "[UNK]", &t->unknown));
    TR__TRY(find_or_fail(t, "[CLS]", &t->begin));
    return find_or_fail(t, "[SEP]", &t->end);
}

/* ---- Asking -------------------------------------------------------------------------------------------------------- */

bool tr__tokenizer_is_special(const tr_tokenizer *t, int id)
{
    for (int i = 0; i < t->special_count; i++)
        if (t->special[i] == id) return true;
    return false;
}

int tr_tokenizer_vocab(const tr_tokenizer *t)
{
    return t && !tr__error_of(t) ? t->tokens.count : 0;
}

int tr_tokenizer_id(const tr_tokenizer *t, const char *token)
{
    return t && token && !tr__error_of(t) ? tr__strings_find(&t->tokens, token, strlen(token)) : -1;
}

const char *tr_tokenizer_token(const tr_tokenizer *t, int id, size_t *bytes)
{
    size_t unwanted;
    if (!bytes) bytes = &unwanted;
    *bytes = 0;
    if (id < 0 || id >= tr_tokenizer_vocab(t)) return NULL;
    return (const char *)tr__strings_at(&t->tokens, id, bytes);
}

/* Merges and special tokens count in any order: files of several kinds list them in their own. */
char *tr__tokenizer_text(const tr_tokenizer *t, char text[TR__TOKENIZER_TEXT])
{
    const int kind[] = {t->kind, t->space_before, t->cleaning.spaced_ideographs, t->cleaning.without_accents,
        t->cleaning.lower};
    uint32_t unordered = 0, crc = tr__crc32c(0, kind, sizeof kind);
    for (int id = 0; id < t->tokens.count; id++) {
        size_t bytes;
        const unsigned char *token = tr__strings_at(&t->tokens, id, &bytes);
        crc = tr__crc32c(tr__crc32c(crc, &bytes, sizeof bytes), token, bytes);
    }
    for (int i = 0; i < t->special_count; i++) unordered += tr__crc32c(0, &t->special[i], sizeof *t->special);
    for (uint32_t i = 0; i < t->merges.slot_count; i++)
        if (t->merges.slots[i].left >= 0) unordered += tr__crc32c(0, &t->merges.slots[i], sizeof *t->merges.slots);
    crc = tr__crc32c(crc, &unordered, sizeof unordered);
    snprintf(text, TR__TOKENIZER_TEXT, "%d tokens (CRC-32C %08" PRIx32 ")", t->tokens.count, crc);
    return text;
}

/* ---- Encoding ------------------------------------------------------------------------------------------------------ */

tr_status tr__ids_reserve(tr__token_ids *ids, size_t more)
{
    if (ids->room - ids->count >= more) return TR_OK;
    size_t room = 2 * ids->room + more + 64;
    int32_t *at = realloc(ids->at, room * sizeof *at);
    if (!at) return tr__fail(TR_NO_MEMORY, "tokenizer: no memory for %zu tokens", room);
    ids->at = at;
    ids->room = room;
    return TR_OK;
}

/* The longest special token that stands at text, its length in *bytes; -1: none. */
static int special_at(const tr_tokenizer *t, const unsigned char *text, size_t left, size_t *bytes)
{
    int id = -1;
    *bytes = 0;
    for (int i = 0; i < t->special_count; i++) {
        size_t length;
        const unsigned char *name = tr__strings_at(&t->tokens, t->special[i], &length);
        if (length <= *bytes || length > left || memcmp(name, text, length) != 0) continue;
        id = t->special[i];
        *bytes = length;
    }
    return id;
}

/* The first special token in a text, and where it stands; -1: none. */
static int next_special(const tr_tokenizer *t, const unsigned char *text, size_t left, size_t *at, size_t *bytes)
{
    bool begins[256] = {false};
    for (int i = 0; i < t->special_count; i++) {
        size_t length;
        const unsigned char *name = tr__strings_at(&t->tokens, t->special[i], &length);
        if (length) begins[*name] = true;
    }
    for (*at = 0; *at < left; ++*at) {
        int id = begins[text[*at]] ? special_at(t, text + *at, left - *at, bytes) : -1;
        if (id >= 0) return id;
    }
    *bytes = 0;
    return -1;
}

static tr_status add(tr__token_ids *ids, int id)
{
    TR__TRY(tr__ids_reserve(ids, 1));
    ids->at[ids->count++] = id;
    return TR_OK;
}

tr_status tr__tokenizer_encode(const tr_tokenizer *t, const void *given, size_t left, bool plain, tr__token_ids *ids)
{
    const unsigned char *text = given;
    tr__pair_encoder *encoder = NULL;
    tr_status status = TR_OK;
    while (left && status == TR_OK) {
        size_t at = left, bytes = 0;
        int id = plain ? -1 : next_special(t, text, left, &at, &bytes);
        status = t->kind == TR__BYTE_PAIR ? tr__byte_pair_encode(&encoder, t, text, at, ids)
                                          : tr__word_piece_encode(t, text, at, ids);
        if (id >= 0 && status == TR_OK) status = add(ids, id);
        text += at + bytes;
        left -= at + bytes;
    }
    tr__pair_encoder_free(encoder);
    return status;
}

/* *first: how many of the tokens belong to the first text, with what stands around it. */
static tr_status encode_texts(const tr_encode_options *o, tr__token_ids *ids, size_t *first)
{
    TR__TRY(tr_status_of(o->tokenizer));
    if (!o->tokenizer || !o->text) return tr__fail(TR_INVALID, "encode: it takes a tokenizer and a text, not NULL");
    const tr_tokenizer *t = o->tokenizer;
    bool around = t->kind == TR__WORD_PIECE && !o->bare;
    size_t bytes = TR__GIVEN(o, bytes) ? o->bytes : strlen(o->text);
    if (around) TR__TRY(add(ids, t->begin));
    TR__TRY(tr__tokenizer_encode(t, o->text, bytes, o->plain, ids));
    if (around) TR__TRY(add(ids, t->end));
    *first = ids->count;
    if (!o->pair) return TR_OK;
    TR__TRY(tr__tokenizer_encode(t, o->pair, strlen(o->pair), o->plain, ids));
    return around ? add(ids, t->end) : TR_OK;
}

tr_tensor *tr_encode_with(const tr_encode_options *options)
{
    tr__token_ids ids = {0};
    size_t first = 0;
    tr_tensor *tokens = NULL;
    if (encode_texts(options, &ids, &first) == TR_OK)
        tokens = tr_from(ids.at, TR_SHAPE((int64_t)ids.count), .dtype = TR_I32);
    free(ids.at);
    if (!tokens) tokens = tr__tensor_failed();
    if (!options->types) return tokens;
    *options->types = tr_status_of(tokens) == TR_OK ? tr_zeros(TR_SHAPE((int64_t)ids.count), .dtype = TR_I32) : tokens;
    for (size_t i = first; tr_status_of(*options->types) == TR_OK && i < ids.count; i++)
        ((int32_t *)tr_data(*options->types))[i] = 1;
    return tokens;
}

/* ---- Decoding ------------------------------------------------------------------------------------------------------ */

/* Text that goes into a buffer as far as there is room, and is counted in any case. */
typedef struct writer {
    char *text;
    size_t bytes, length;
} writer;

static void put(writer *w, const void *bytes, size_t count)
{
    if (w->length < w->bytes) {
        size_t room = w->bytes - w->length;
        memcpy(w->text + w->length, bytes, count < room ? count : room);
    }
    w->length += count;
}

/* Before these no space is written. */
static bool clings(const unsigned char *token, size_t count)
{
    static const char *const begins[] = {".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re"};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (strlen(begins[i]) <= count && memcmp(token, begins[i], strlen(begins[i])) == 0) return true;
    return false;
}

static void put_token(writer *w, const tr_tokenizer *t, int id, bool first)
{
    size_t count;
    const unsigned char *token = tr__strings_at(&t->tokens, id, &count);
    if (t->kind == TR__WORD_PIECE && !first) {
        bool inside = count >= 2 && memcmp(token, "##", 2) == 0;
        if (!inside && !clings(token, count)) put(w, " ", 1);
        token += inside ? 2 : 0;
        count -= inside ? 2 : 0;
    }
    put(w, token, count);
}

/* The tokens as i32 or i64, one after the other, whatever their shape. */
static tr_status check_ids(const tr_decode_options *o)
{
    TR__TRY(tr_status_of(o->tokenizer));
    TR__TRY(tr_status_of(o->ids));
    if (!o->tokenizer || !o->ids) return tr__fail(TR_INVALID, "decode: it takes a tokenizer and ids, not NULL");
    tr_dtype dtype = tr_dtype_of(o->ids);
    if (dtype == TR_I32 || dtype == TR_I64) return TR_OK;
    return tr__fail(TR_INVALID, "decode: ids are i32 or i64, not %s", tr_dtype_name(dtype));
}

static tr_status write_tokens(const tr_decode_options *o, const void *ids, writer *w)
{
    bool wide = tr_dtype_of(o->ids) == TR_I64, first = true;
    for (int64_t i = 0; i < tr_numel(o->ids); i++) {
        int64_t id = wide ? ((const int64_t *)ids)[i] : ((const int32_t *)ids)[i];
        if (id < 0 || id >= o->tokenizer->tokens.count)
            return tr__fail(TR_INVALID, "decode: %" PRId64 " is no token, they are 0 to %d", id,
                o->tokenizer->tokens.count - 1);
        if (!o->special && tr__tokenizer_is_special(o->tokenizer, (int)id)) continue;
        put_token(w, o->tokenizer, (int)id, first);
        first = false;
    }
    return TR_OK;
}

tr_status tr_decode_with(const tr_decode_options *o)
{
    if (o->length) *o->length = 0;
    if (o->text && o->bytes) *o->text = '\0';
    TR__TRY(check_ids(o));
    size_t bytes = (size_t)tr_numel(o->ids) * tr_dtype_size(tr_dtype_of(o->ids));
    void *ids = malloc(bytes + 1);
    if (!ids) return tr__fail(TR_NO_MEMORY, "decode: no memory for %" PRId64 " tokens", tr_numel(o->ids));
    writer w = {.text = o->text, .bytes = o->text && o->bytes ? o->bytes - 1 : 0};
    tr_status status = tr_copy_out(o->ids, ids, bytes);
    if (status == TR_OK) status = write_tokens(o, ids, &w);
    free(ids);
    if (o->text && o->bytes) o->text[w.length < w.bytes ? w.length : w.bytes] = '\0';
    if (o->length) *o->length = w.length;
    return status;
}
