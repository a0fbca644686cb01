/* Texts as bytes, and batches of windows from them. */
#include "data/text.h"

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
}

static const tr__type text_type = {"text", sizeof(tr_text), destroy};

static tr_status fill(tr_text *text, const tr_text_options *options)
{
    double share = options->validation;
    if (share == 0 && !signbit(share)) share = 0.1;
    if (!(share >= 0 && share < 1))
        return tr__fail(TR_INVALID, "text: the share for validation must be at least 0 and less than 1, not %g", share);
    if (!options->path) return tr__fail(TR_INVALID, "text: no path was given");
    text->path = strdup(options->path);
    if (!text->path) return tr__fail(TR_NO_MEMORY, "text: out of memory");
    TR__TRY(tr__text_read(text, options->suffixes));
    text->training = text->count - (int64_t)((double)text->count * share);
    return TR_OK;
}

tr_text *tr_text_with(const tr_text_options *options)
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

uint64_t tr_text_hash(const tr_text *text)
{
    if (!text || tr__error_of(text)) return 0;
    uint64_t hash = tr__mix((uint64_t)text->count, 0);
    for (int64_t i = 0; i < text->count; i += 8) {
        uint64_t word = 0;
        memcpy(&word, text->bytes + i, text->count - i < 8 ? (size_t)(text->count - i) : 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u; /* odd, so that nothing is lost */
        hash ^= hash >> 29;
    }
    return hash;
}

/* ---- Batches ---------------------------------------------------------------------------------------------------- */

/* The first byte of a training window: uniform over the places where context + 1 bytes fit. */
static int64_t draw_start(const tr_text_batch_options *o, int64_t sample)
{
    uint64_t places = (uint64_t)(o->text->training - o->context);
    tr__philox r = tr__philox_at(tr__mix(o->seed, 0), o->step, o->first_sample + (uint64_t)sample);
    uint64_t word = (uint64_t)r.word[0] << 32 | r.word[1];
    return (int64_t)((unsigned __int128)word * places >> 64);
}

/* Checks the call; *windows: how many there are, fewer than batch at the end of the validation part. */
static tr_status check(const tr_text_batch_options *o, int64_t *windows)
{
    if (!o->text) return tr__fail(TR_INVALID, "text_batch: the text is NULL");
    TR__TRY(tr_status_of(o->text));
    if (o->batch < 1 || o->context < 1 || o->batch > INT64_MAX / 8 / o->context)
        return tr__fail(TR_INVALID, "text_batch: batch and context must be positive, not %" PRId64 " and %" PRId64,
            o->batch, o->context);
    int64_t bytes = tr_text_bytes(o->text, o->validation);
    if (bytes <= o->context)
        return tr__fail(TR_INVALID, "text_batch: the %s part of %s has %" PRId64 " bytes; a context of %" PRId64
            " takes at least %" PRId64, o->validation ? "validation" : "training", o->text->path, bytes, o->context,
            o->context + 1);
    *windows = o->batch;
    if (!o->validation) return TR_OK;
    int64_t all = (bytes - 1) / o->context;
    if (o->first_sample >= (uint64_t)all)
        return tr__fail(TR_END, "text_batch: the validation part has %" PRId64 " windows", all);
    if (*windows > all - (int64_t)o->first_sample) *windows = all - (int64_t)o->first_sample;
    return TR_OK;
}

static tr_status make_batch(const tr_text_batch_options *o, tr_tensor **x, tr_tensor **y)
{
    int64_t windows = 0;
    TR__TRY(check(o, &windows));
    tr_tensor *input = tr_empty(TR_SHAPE(windows, o->context), .dtype = TR_I32);
    tr_tensor *target = tr_empty(TR_SHAPE(windows, o->context), .dtype = TR_I32);
    TR__TRY(tr_status_of(input));
    TR__TRY(tr_status_of(target));
    int32_t *in = tr__ptr(input), *out = tr__ptr(target);
    int64_t first = o->validation ? o->text->training + (int64_t)o->first_sample * o->context : 0;
    for (int64_t i = 0; i < windows; i++) {
        const unsigned char *from = o->text->bytes + (o->validation ? first + i * o->context : draw_start(o, i));
        for (int64_t k = 0; k < o->context; k++) {
            in[i * o->context + k] = from[k];
            out[i * o->context + k] = from[k + 1];
        }
    }
    *x = input;
    *y = target;
    return TR_OK;
}

tr_status tr_text_batch_with(const tr_text_batch_options *options, tr_tensor **x, tr_tensor **y)
{
    tr_status status = make_batch(options, x, y);
    if (status != TR_OK) *x = *y = tr__tensor_failed();
    return status;
}
