/*
 * Making one batch: samples are written, or copied, side by side into fresh tensors.
 *
 * With .on_bad = TR_SKIP a sample that cannot be made is replaced by another one of the dataset, so that a batch has as
 * many samples as were asked for, and all ranks make as many steps of the same size. Which one depends on (the epoch's
 * seed, the sample's number, the attempt) alone: it is the same for any number of workers and ranks. Replacements come
 * at the batch's end, behind the good samples, and count as duplicates.
 */
#include "data/batch.h"

#include "base/rng.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The most replacements tried for a bad sample: when all are bad, most of the dataset is. */
enum { MOST_REPLACEMENTS = 100 };

/* Where samples of one layout are put together. */
typedef struct pile {
    tr_tensor *rows; /* [count, …]; NULL: samples have no such field */
    tr__layout layout;
    size_t bytes; /* of a row */
} pile;

typedef struct maker {
    const tr__recipe *recipe;
    tr__batch_result *batch;
    bool unmade;        /* the last failure was a sample's, not the batch's */
    pile piles[TR__FIELDS]; /* without a .collate */
    int64_t first;      /* the index of the sample that set their layout */
    tr_sample *samples; /* [count], for a .collate */
} maker;

static tr_status pile_up(pile *p, const tr__recipe *r, const tr__layout *layout)
{
    tr_shape shape = {.ndim = layout->shape.ndim + 1};
    if (shape.ndim > TR_MAX_DIMS)
        return tr__fail(TR_SHAPE, "samples of %s have no room for a batch dimension", TR__TEXT(layout->shape));
    shape.dim[0] = r->count;
    memcpy(shape.dim + 1, layout->shape.dim, sizeof(int64_t) * (size_t)layout->shape.ndim);
    p->rows = tr__tensor_new(shape, layout->dtype, r->device.kind == TR_CPU ? r->device : tr_cpu(0));
    p->layout = *layout;
    p->bytes = tr__layout_bytes(layout);
    return tr_status_of(p->rows);
}

static void *place(const pile *p, int64_t i)
{
    return p->rows ? (char *)tr__ptr(p->rows) + (size_t)i * p->bytes : NULL;
}

/* ---- One sample -------------------------------------------------------------------------------------------------- */

static tr_status get(maker *m, int64_t index, tr_sample *sample)
{
    const tr__recipe *r = m->recipe;
    tr_status status = tr__dataset_sample(r->set, index, tr__sample_seed(r->seed, index), sample);
    m->unmade = status != TR_OK;
    return status;
}

/* Copies one field of a sample to its row; the first sample sets the layout. */
static tr_status stack_field(const maker *m, int field, int64_t at, const tr_tensor *t)
{
    const pile *p = &m->piles[field];
    if (!t != !p->rows)
        return tr__fail(TR_INVALID, "it has %s %s, unlike sample %" PRId64 " of the same batch", t ? "a" : "no",
            tr__field_name(field), m->first);
    if (!t) return TR_OK;
    if (t->dtype != p->layout.dtype || !tr__shape_equal(t->shape, p->layout.shape))
        return tr__fail(TR_SHAPE,
            "its %s is %s of %s, and that of sample %" PRId64 " of the same batch %s of %s: give the "
            "loader a .collate",
            tr__field_name(field), TR__TEXT(t->shape), tr_dtype_name(t->dtype), m->first, TR__TEXT(p->layout.shape),
            tr_dtype_name(p->layout.dtype));
    return tr_copy_out(t, place(p, at), p->bytes);
}

static tr_status stack_sample(const maker *m, int64_t at, int64_t index, tr_sample *sample)
{
    tr_status status = TR_OK;
    for (int f = 0; f < TR__FIELDS && status == TR_OK; f++) status = stack_field(m, f, at, *tr__field(sample, f));
    return status == TR_OK ? TR_OK : tr__sample_failed(m->recipe->set, index, status);
}

static tr_status stack_row(maker *m, int64_t at, int64_t index)
{
    TR_SCOPE;
    tr_sample sample;
    TR__TRY(get(m, index, &sample));
    return stack_sample(m, at, index, &sample);
}

/* Without a scope of its own: the piles stay. */
static tr_status stack_first_row(maker *m, int64_t at, int64_t index)
{
    tr_sample sample;
    TR__TRY(get(m, index, &sample));
    for (int f = 0; f < TR__FIELDS; f++) {
        const tr_tensor *t = *tr__field(&sample, f);
        if (t) TR__TRY(pile_up(&m->piles[f], m->recipe, &(tr__layout){true, t->shape, t->dtype}));
    }
    m->first = index;
    return stack_sample(m, at, index, &sample);
}

/* Makes a sample and puts it into place `at` of the batch. */
static inline tr_status put(maker *m, int64_t at, int64_t index)
{
    const tr__recipe *r = m->recipe;
    m->unmade = false;
    if (atomic_load_explicit(r->stop, memory_order_relaxed)) return tr__fail(TR_CANCELLED, "the batch was given up");
    if (r->begun) atomic_fetch_add_explicit(r->begun, 1, memory_order_relaxed);
    if (r->collate) return get(m, index, &m->samples[at]);
    if (tr__laid_out(r->set)) { /* the dataset writes it in place */
        void *places[TR__FIELDS];
        for (int f = 0; f < TR__FIELDS; f++) places[f] = place(&m->piles[f], at);
        tr_status status = r->set->kind->write(r->set, index, places);
        m->unmade = status != TR_OK;
        return status == TR_OK ? TR_OK : tr__sample_failed(r->set, index, status);
    }
    return m->piles[0].rows ? stack_row(m, at, index) : stack_first_row(m, at, index);
}

/* ---- All of them ------------------------------------------------------------------------------------------------- */

/* A lack of memory is not the sample's fault. */
static bool is_bad(const maker *m, tr_status status)
{
    return m->recipe->on_bad == TR_SKIP && m->unmade && status != TR_NO_MEMORY && status != TR_CANCELLED &&
           status != TR_INTERNAL;
}

/* Fills place `at` with another sample in place of a bad one. */
static tr_status replace(maker *m, int64_t at, int64_t bad)
{
    const tr__recipe *r = m->recipe;
    tr_status status = TR_OK;
    for (uint64_t attempt = 0; attempt < MOST_REPLACEMENTS; attempt++) {
        int64_t index = (int64_t)(tr__mix(tr__sample_seed(r->seed, bad), attempt) % (uint64_t)r->choice);
        status = put(m, at, index);
        if (status == TR_OK) m->batch->indices[at] = index;
        if (status == TR_OK || !is_bad(m, status)) return status;
        TR__TRY(tr__skips_add(&m->batch->skips, index, tr_error_message()));
    }
    return tr__fail_context(status, "sample %" PRId64 " is bad, and so are %d others that were to replace it; the last",
        bad, MOST_REPLACEMENTS);
}

/* Good ones from the front, replacements from the back. */
static tr_status put_all(maker *m)
{
    const tr__recipe *r = m->recipe;
    int64_t good = 0, counted = 0, bad = 0;
    for (int64_t i = 0; i < r->count; i++) {
        int64_t index = r->indices[i];
        tr_status status = put(m, good, index);
        if (status == TR_OK) {
            if (m->batch->indices) m->batch->indices[good] = index;
            counted += i < r->once;
            good++;
            continue;
        }
        if (!is_bad(m, status)) return status;
        TR__TRY(tr__skips_add(&m->batch->skips, index, tr_error_message()));
        if (!m->batch->indices) { /* the first that is bad: those before it are as they were asked for */
            m->batch->indices = malloc((size_t)r->count * sizeof *r->indices);
            if (!m->batch->indices) return tr__fail(TR_NO_MEMORY, "no memory for %" PRId64 " numbers of samples", r->count);
            memcpy(m->batch->indices, r->indices, (size_t)good * sizeof *r->indices);
        }
        TR__TRY(replace(m, r->count - ++bad, index));
    }
    m->batch->duplicates = r->count - counted;
    return TR_OK;
}

static tr_status collate_samples(const tr__recipe *r, tr_sample *samples, tr_sample *made)
{
    uint64_t before = tr__failures();
    tr_status status = tr__fail_unsaid(r->collate(samples, r->count, r->user, made), before);
    if (status == TR_OK && !made->x) status = tr__fail(TR_INVALID, "it made no x");
    for (int f = 0; f < TR__FIELDS && status == TR_OK; f++) status = tr_status_of(*tr__field(made, f));
    if (status == TR_OK) return TR_OK;
    return tr__fail_context(status, "collate of the %" PRId64 " samples from %" PRId64 " of %s on", r->count,
        r->indices[0], r->set->name);
}

static tr_status make(maker *m, tr_sample *made)
{
    const tr__recipe *r = m->recipe;
    if (r->collate) {
        m->samples = calloc((size_t)r->count, sizeof *m->samples);
        if (!m->samples) return tr__fail(TR_NO_MEMORY, "loader: no memory for %" PRId64 " samples", r->count);
        TR__TRY(put_all(m));
        return collate_samples(r, m->samples, made);
    }
    for (int f = 0; f < TR__FIELDS; f++)
        if (r->set->fields[f].present) TR__TRY(pile_up(&m->piles[f], r, &r->set->fields[f]));
    TR__TRY(put_all(m));
    for (int f = 0; f < TR__FIELDS; f++) *tr__field(made, f) = m->piles[f].rows;
    return TR_OK;
}

/* ---- The batch --------------------------------------------------------------------------------------------------- */

static tr_status move(tr_tensor **t, tr_device device)
{
    if (!*t || tr_device_equal(tr__device_of(*t), device)) return TR_OK;
    tr_tensor *moved = tr__tensor_new((*t)->shape, (*t)->dtype, device);
    TR__TRY(tr_status_of(moved));
    TR__TRY(tr_copy_into(moved, *t));
    *t = moved;
    return TR_OK;
}

tr_status tr__batch_keep(tr_sample *made, tr_device device, tr_sample *batch)
{
    for (int f = 0; f < TR__FIELDS; f++) TR__TRY(move(tr__field(made, f), device));
    for (int f = 0; f < TR__FIELDS; f++) *tr__field(batch, f) = tr__ref(*tr__field(made, f));
    return TR_OK;
}

void tr__batch_drop(tr__batch_result *batch)
{
    for (int f = 0; f < TR__FIELDS; f++) tr__unref(*tr__field(&batch->made, f));
    free(batch->indices);
    tr__skips_drop(&batch->skips);
    *batch = (tr__batch_result){0};
}

tr_status tr__batch_make(const tr__recipe *recipe, tr__batch_result *batch)
{
    TR_SCOPE;
    *batch = (tr__batch_result){0};
    maker m = {.recipe = recipe, .batch = batch};
    tr_sample made = {0};
    tr_status status = make(&m, &made);
    if (status == TR_OK) status = tr__batch_keep(&made, recipe->device, &batch->made);
    free(m.samples);
    return status;
}
