/* Texts as tokens, and batches of windows from them. */
#include "data/text/text.h"

#include "base/given.h"
#include "base/rng.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void destroy(void *self)
{
    tr_text *text = self;
    free(text->path);
    free(text->bytes);
    free(text->tokens);
}

static const tr__type text_type = {"text", sizeof(tr_text), destroy};

/* Both parts in tokens of their own, so that training sees nothing of validation. */
static tr_status tokenize(tr_text *text, const tr_tokenizer *tokenizer)
{
    TR__TRY(tr_status_of(tokenizer));
    tr__tokenizer_text(tokenizer, text->tokenizer);
    while (text->training > 0 && text->training < text->count && (text->bytes[text->training] & 0xc0) == 0x80)
        text->training--; /* not within a character */
    tr__token_ids ids = {0};
    tr_status status = tr__ids_reserve(&ids, 1); /* so that the list exists even without a token */
    if (status == TR_OK)
        status = tr__tokenizer_encode(tokenizer, text->bytes, (size_t)text->training, false, &ids);
    text->training_tokens = (int64_t)ids.count;
    if (status == TR_OK)
        status = tr__tokenizer_encode(tokenizer, text->bytes + text->training, (size_t)(text->count - text->training),
            false, &ids);
    text->tokens = ids.at;
    text->token_count = (int64_t)ids.count;
    free(text->bytes);
    text->bytes = NULL;
    return status;
}

static tr_status fill(tr_text *text, const tr_text_options *options)
{
    double share = TR__OR(options, validation, 0.1);
    if (!(share >= 0 && share < 1))
        return tr__fail(TR_INVALID, "text: the share for validation must be at least 0 and less than 1, not %g", share);
    if (!options->path) return tr__fail(TR_INVALID, "text: no path was given");
    text->path = strdup(options->path);
    if (!text->path) return tr__fail(TR_NO_MEMORY, "text: out of memory");
    TR__TRY(tr__text_read(text, options->suffixes));
    text->training = text->count - (int64_t)((double)text->count * share);
    return options->tokenizer ? tokenize(text, options->tokenizer) : TR_OK;
}

tr_text *tr_text_load_with(const tr_text_options *options)
{
    tr_text *text = tr__object_new(&text_type);
    if (text->object.error) return text;
    if (fill(text, options) != TR_OK) tr__object_break(text);
    return text;
}

int64_t tr_text_bytes(const tr_text *text, bool validation)
{
    if (!text || tr__error_of(text)) return 0;
    return validation ? text->count - text->training : text->training;
}

int tr_text_files(const tr_text *text)
{
    return text && !tr__error_of(text) ? text->files : 0;
}

int64_t tr_text_tokens(const tr_text *text, bool validation)
{
    if (!text || tr__error_of(text) || !text->tokens) return tr_text_bytes(text, validation);
    return validation ? text->token_count - text->training_tokens : text->training_tokens;
}

uint64_t tr_text_hash(const tr_text *text)
{
    if (!text || tr__error_of(text)) return 0;
    const unsigned char *bytes = text->tokens ? (const unsigned char *)text->tokens : text->bytes;
    int64_t count = text->tokens ? text->token_count * (int64_t)sizeof *text->tokens : text->count;
    uint64_t hash = tr__mix((uint64_t)count, 0);
    for (int64_t i = 0; i < count; i += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + i, count - i < 8 ? (size_t)(count - i) : 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u; /* odd, so that nothing is lost */
        hash ^= hash >> 29;
    }
    return hash;
}

/* ---- Batches ---------------------------------------------------------------------------------------------------- */

int64_t tr__tokens_of_window(int64_t context, const tr_masking *m)
{
    return m ? context - (m->begin >= 0) - (m->end >= 0) : context + 1;
}

int64_t tr__text_windows(const tr_text *text, int64_t context, const tr_masking *m)
{
    int64_t tokens = tr_text_tokens(text, true), every = tr__tokens_of_window(context, m);
    if (m) return tokens / every;
    return tokens ? (tokens - 1) / context : 0;
}

/* The first token of a training window: uniform over the places where one fits. */
static int64_t draw_start(const tr_text_batch_options *o, int64_t sample)
{
    uint64_t places = (uint64_t)(tr_text_tokens(o->text, false) - tr__tokens_of_window(o->context, o->masking) + 1);
    tr__philox r = tr__philox_at(tr__mix(o->seed, 0), o->step, o->first_sample + (uint64_t)sample);
    uint64_t word = (uint64_t)r.word[0] << 32 | r.word[1];
    return (int64_t)((unsigned __int128)word * places >> 64);
}

static tr_status check_masking(const tr_text_batch_options *o)
{
    const tr_masking *m = o->masking;
    if (!m) return TR_OK;
    if (m->mask < 0 || m->vocab < 1 || !(m->share >= 0 && m->share <= 1))
        return tr__fail(TR_INVALID, "text_batch: masking takes a mask, a vocabulary and a share of at most 1, not %d, %d and %g",
            m->mask, m->vocab, m->share);
    if (tr__tokens_of_window(o->context, m) >= 1) return TR_OK;
    return tr__fail(TR_INVALID, "text_batch: a context of %" PRId64 " leaves no token of the text between first and last",
        o->context);
}

/* Checks the call; *windows: how many there are, fewer than batch at the end of the validation part. */
static tr_status check(const tr_text_batch_options *o, int64_t *windows)
{
    if (!o->text) return tr__fail(TR_INVALID, "text_batch: the text is NULL");
    TR__TRY(tr_status_of(o->text));
    if (o->batch < 1 || o->context < 1 || o->batch > INT64_MAX / 8 / o->context)
        return tr__fail(TR_INVALID, "text_batch: batch and context must be positive, and batch * context below 2^60: not %" PRId64
            " and %" PRId64, o->batch, o->context);
    TR__TRY(check_masking(o));
    if (o->validation && TR__GIVEN(o, step))
        return tr__fail(TR_INVALID, "text_batch: .step selects training windows; of the validation part it is "
            ".first_sample = k * batch");
    int64_t tokens = tr_text_tokens(o->text, o->validation), least = tr__tokens_of_window(o->context, o->masking);
    if (tokens < least)
        return tr__fail(TR_INVALID, "text_batch: the %s part of %s has %" PRId64 " %s; a context of %" PRId64
            " takes at least %" PRId64, o->validation ? "validation" : "training", o->text->path, tokens,
            o->text->tokens ? "tokens" : "bytes", o->context, least);
    *windows = o->batch;
    if (!o->validation) return TR_OK;
    int64_t all = tr__text_windows(o->text, o->context, o->masking);
    if (o->first_sample >= (uint64_t)all)
        return tr__fail(TR_END, "text_batch: the validation part has %" PRId64 " windows", all);
    if (*windows > all - (int64_t)o->first_sample) *windows = all - (int64_t)o->first_sample;
    return TR_OK;
}

static int32_t token_at(const tr_text *text, int64_t i)
{
    return text->tokens ? text->tokens[i] : text->bytes[i];
}

tr_tensor *tr_text_ids(const tr_text *text, bool validation)
{
    if (!text) return tr__tensor_fail(TR_INVALID, "text_ids: the text is NULL");
    if (tr__error_of(text)) return tr__tensor_pass(text);
    int64_t n = tr_text_tokens(text, validation), from = validation ? tr_text_tokens(text, false) : 0;
    tr_tensor *ids = tr_empty(TR_SHAPE(n), .dtype = TR_I32);
    if (tr__bad(ids)) return ids;
    int32_t *to = tr__ptr(ids);
    for (int64_t i = 0; i < n; i++) to[i] = token_at(text, from + i);
    return ids;
}

/* ---- Masks ------------------------------------------------------------------------------------------------------- */

/* A random number below `below`, of draw number `draw` for a window. */
static int64_t draw_below(const tr_text_batch_options *o, int64_t sample, int64_t draw, int64_t below)
{
    uint64_t key = tr__mix(tr__mix(o->seed, 1), o->validation ? 0 : o->step);
    tr__philox r = tr__philox_at(key, o->first_sample + (uint64_t)sample, (uint64_t)draw);
    return (int64_t)((uint64_t)r.word[0] * (uint64_t)below >> 32);
}

/* Masks one token: x: [context] is the input, y: [context] the target. */
static void hide(const tr_text_batch_options *o, int64_t sample, int64_t draw, int32_t *x, int32_t *y)
{
    const tr_masking *m = o->masking;
    int64_t way = draw_below(o, sample, draw, 10);
    *y = *x;
    if (way < 8)
        *x = m->mask;
    else if (way == 8)
        *x = (int32_t)draw_below(o, sample, draw + 1, m->vocab);
}

/* Masks a fixed number of the n tokens from x on, each as likely, by selection sampling. */
static void mask_window(const tr_text_batch_options *o, int64_t sample, int64_t n, int32_t *x, int32_t *y)
{
    double share = o->masking->share > 0 ? o->masking->share : 0.15;
    int64_t wanted = (int64_t)(share * (double)n + 0.5);
    if (wanted < 1) wanted = 1;
    for (int64_t i = 0; i < n && wanted; i++) {
        if (draw_below(o, sample, 3 * i, n - i) >= wanted) continue;
        hide(o, sample, 3 * i + 1, &x[i], &y[i]);
        wanted--;
    }
}

static void fill_masked(const tr_text_batch_options *o, int64_t sample, int64_t from, int32_t *x, int32_t *y)
{
    const tr_masking *m = o->masking;
    int64_t n = tr__tokens_of_window(o->context, m), first = m->begin >= 0;
    for (int64_t k = 0; k < o->context; k++) y[k] = -100;
    for (int64_t k = 0; k < n; k++) x[first + k] = token_at(o->text, from + k);
    if (first) x[0] = m->begin;
    if (m->end >= 0) x[o->context - 1] = m->end;
    mask_window(o, sample, n, x + first, y + first);
}

/* ---- A batch ----------------------------------------------------------------------------------------------------- */

static tr_status make_batch(const tr_text_batch_options *o)
{
    int64_t windows = 0, every = o->masking ? tr__tokens_of_window(o->context, o->masking) : o->context;
    TR__TRY(check(o, &windows));
    tr_tensor *input = tr_empty(TR_SHAPE(windows, o->context), .dtype = TR_I32);
    tr_tensor *target = tr_empty(TR_SHAPE(windows, o->context), .dtype = TR_I32);
    TR__TRY(tr_status_of(input));
    TR__TRY(tr_status_of(target));
    for (int64_t i = 0; i < windows; i++) {
        int32_t *in = (int32_t *)tr__ptr(input) + i * o->context, *out = (int32_t *)tr__ptr(target) + i * o->context;
        int64_t from = o->validation ? tr_text_tokens(o->text, false) + ((int64_t)o->first_sample + i) * every : draw_start(o, i);
        if (o->masking) fill_masked(o, i, from, in, out);
        for (int64_t k = 0; !o->masking && k < o->context; k++) {
            in[k] = token_at(o->text, from + k);
            out[k] = token_at(o->text, from + k + 1);
        }
    }
    *o->x = input;
    *o->y = target;
    return TR_OK;
}

tr_status tr_text_batch_with(const tr_text_batch_options *options)
{
    if (!options->x || !options->y) return tr__fail(TR_INVALID, "text_batch: %s is NULL", options->x ? "y" : "x");
    tr_status status = make_batch(options);
    if (status != TR_OK) *options->x = *options->y = tr__tensor_failed();
    return status;
}

void tr__text_say(const tr_text *text, tr__facts *facts)
{
    tr__content content = {0};
    int64_t training = tr_text_tokens(text, false), count = training + tr_text_tokens(text, true);
    if (text->tokens)
        tr__content_add(&content, text->tokens, (size_t)count * sizeof *text->tokens);
    else
        tr__content_add(&content, text->bytes, (size_t)count);
    tr__facts_say(facts, "tokenizer", "%s", *text->tokenizer ? text->tokenizer : "none");
    tr__facts_say(facts, "data", "%" PRId64 " %s (%" PRId64 " to train on, CRC-32C %08" PRIx32 "%s)", count,
        text->tokens ? "tokens" : "bytes", training, content.crc32c, content.sampled ? " of a sample" : "");
}
