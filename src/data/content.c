#include "data/content.h"

#include "base/crc32c.h"
#include "data/dataset.h"
#include "tensor/checksum.h"

#include <inttypes.h>
#include <stdio.h>

enum { PIECES = 64, PIECE_BYTES = 1 << 20, SAMPLE_TEXT = 192 };

void tr__content_add(tr__content *c, const void *data, size_t bytes)
{
    const size_t whole = (size_t)PIECES * PIECE_BYTES;
    if (bytes <= whole) {
        c->crc32c = tr__crc32c(c->crc32c, data, bytes);
        return;
    }
    c->sampled = true;
    c->crc32c = tr__crc32c(c->crc32c, &bytes, sizeof bytes);
    for (size_t i = 0; i < PIECES; i++) { /* the first one begins it, the last one ends it */
        size_t at = (bytes - PIECE_BYTES) / (PIECES - 1) * i;
        if (i == PIECES - 1) at = bytes - PIECE_BYTES;
        c->crc32c = tr__crc32c(c->crc32c, (const char *)data + at, PIECE_BYTES);
    }
}

/* ---- Datasets ------------------------------------------------------------------------------------------------------ */

static void add_tensor(tr__content *c, const tr_tensor *t)
{
    if (!t) return;
    uint32_t sum = 0;
    tr_status status = tr__checksum(t, &sum); /* one that cannot be summed counts as such */
    tr__content_add(c, &status, sizeof status);
    tr__content_add(c, &sum, sizeof sum);
    tr__content_add(c, &t->dtype, sizeof t->dtype);
    tr__content_add(c, t->shape.dim, (size_t)t->shape.ndim * sizeof *t->shape.dim);
}

/* The first, middle and last sample, as the program's function makes them. */
static void say_values(tr_dataset *set, const char *name, tr__facts *facts)
{
    TR_SCOPE;
    const int64_t numbers[] = {0, set->count / 2, set->count - 1};
    tr__content sum = {0};
    char looks[SAMPLE_TEXT] = "";
    int bad = 0;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        tr_sample sample;
        tr_status status = tr_dataset_at(set, numbers[i], &sample); /* a bad one is bad on all ranks */
        tr__content_add(&sum, &status, sizeof status);
        bad += status != TR_OK;
        if (status != TR_OK) continue;
        for (int f = 0; f < TR__FIELDS; f++) add_tensor(&sum, *tr__field(&sample, f));
        if (!*looks) snprintf(looks, sizeof looks, " of %s %s", tr_dtype_name(sample.x->dtype), TR__TEXT(sample.x->shape));
    }
    tr__facts_say(facts, name, "CRC-32C %08" PRIx32 " of samples 0, %" PRId64 " and %" PRId64 "%s (%d cannot be made)",
        sum.crc32c, numbers[1], numbers[2], looks, bad);
}

void tr__dataset_say(tr_dataset *set, const char *name, bool values, tr__facts *facts)
{
    if (!set) {
        tr__facts_say(facts, name, "none");
        return;
    }
    tr__content content = {0};
    tr__dataset_sum(set, &content);
    char looks[SAMPLE_TEXT] = "", under[64];
    const tr__layout *x = &set->fields[0];
    if (x->present) snprintf(looks, sizeof looks, " of %s %s", tr_dtype_name(x->dtype), TR__TEXT(x->shape));
    tr__facts_say(facts, name, "%" PRId64 " samples%s (CRC-32C %08" PRIx32 "%s)", set->count, looks, content.crc32c,
        content.sampled ? " of a sample" : "");
    snprintf(under, sizeof under, "%s.samples", name);
    if (!content.computed || !set->count) return;
    if (values)
        say_values(set, under, facts);
    else
        tr__facts_say(facts, under, "not asked for");
}
