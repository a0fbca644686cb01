/* Making one batch: samples are written, or copied, side by side into fresh tensors. */
#include "data/batch.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Where samples of one layout are put together. */
typedef struct pile {
    tr_tensor *rows; /* [count, …]; NULL: samples have no such part */
    tr__layout layout;
    size_t bytes; /* of a row */
} pile;

static tr_status given_up(const tr__recipe *r)
{
    if (!atomic_load_explicit(r->stop, memory_order_relaxed)) return TR_OK;
    return tr__fail(TR_CANCELLED, "the batch was given up");
}

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

/* ---- Samples that write themselves ------------------------------------------------------------------------------- */

static tr_status write_rows(const tr__recipe *r, tr_sample *batch)
{
    tr_dataset *set = r->set;
    pile x = {0}, y = {0};
    TR__TRY(pile_up(&x, r, &set->x));
    if (set->has_y) TR__TRY(pile_up(&y, r, &set->y));
    for (int64_t i = 0; i < r->count; i++) {
        TR__TRY(given_up(r));
        tr_status status = set->kind->write(set, r->indices[i], place(&x, i), place(&y, i));
        if (status != TR_OK) return tr__sample_failed(set, r->indices[i], status);
    }
    *batch = (tr_sample){x.rows, y.rows};
    return TR_OK;
}

/* ---- Samples that are tensors ------------------------------------------------------------------------------------ */

static tr_status get(const tr__recipe *r, int64_t i, tr_sample *sample)
{
    TR__TRY(given_up(r));
    return tr__dataset_sample(r->set, r->indices[i], tr__sample_seed(r->seed, r->indices[i]), sample);
}

/* Copies one part of sample i to its row; the first sample says what they look like. */
static tr_status stack_part(const tr__recipe *r, const char *part, int64_t i, const tr_tensor *t, pile *p)
{
    if (i > 0 && !t != !p->rows)
        return tr__fail(TR_INVALID, "it has %s %s, unlike sample %" PRId64 " of the same batch", t ? "a" : "no", part,
            r->indices[0]);
    if (!t) return TR_OK;
    if (t->dtype != p->layout.dtype || !tr__shape_equal(t->shape, p->layout.shape))
        return tr__fail(TR_SHAPE,
            "its %s is %s of %s, and that of sample %" PRId64 " of the same batch %s of %s: give the "
            "loader a .collate",
            part, TR__TEXT(t->shape), tr_dtype_name(t->dtype), r->indices[0], TR__TEXT(p->layout.shape),
            tr_dtype_name(p->layout.dtype));
    return tr_copy_out(t, place(p, i), p->bytes);
}

static tr_status stack_sample(const tr__recipe *r, int64_t i, const tr_sample *sample, pile *x, pile *y)
{
    tr_status status = stack_part(r, "x", i, sample->x, x);
    if (status == TR_OK) status = stack_part(r, "y", i, sample->y, y);
    return status == TR_OK ? TR_OK : tr__sample_failed(r->set, r->indices[i], status);
}

static tr_status begin_piles(const tr__recipe *r, const tr_sample *first, pile *x, pile *y)
{
    TR__TRY(pile_up(x, r, &(tr__layout){first->x->shape, first->x->dtype}));
    return first->y ? pile_up(y, r, &(tr__layout){first->y->shape, first->y->dtype}) : TR_OK;
}

static tr_status stack_rows(const tr__recipe *r, tr_sample *batch)
{
    pile x = {0}, y = {0};
    tr_sample first;
    TR__TRY(get(r, 0, &first));
    TR__TRY(begin_piles(r, &first, &x, &y));
    TR__TRY(stack_sample(r, 0, &first, &x, &y));
    for (int64_t i = 1; i < r->count; i++) {
        TR_SCOPE;
        tr_sample sample;
        TR__TRY(get(r, i, &sample));
        TR__TRY(stack_sample(r, i, &sample, &x, &y));
    }
    *batch = (tr_sample){x.rows, y.rows};
    return TR_OK;
}

static tr_status collate_samples(const tr__recipe *r, tr_sample *samples, tr_sample *batch)
{
    for (int64_t i = 0; i < r->count; i++) TR__TRY(get(r, i, &samples[i]));
    uint64_t before = tr__failures();
    tr_status status = tr__fail_unsaid(r->collate(samples, r->count, r->user, batch), before);
    if (status == TR_OK && !batch->x) status = tr__fail(TR_INVALID, "it made no x");
    if (status == TR_OK) status = tr_status_of(batch->x);
    if (status == TR_OK) status = tr_status_of(batch->y);
    if (status == TR_OK) return TR_OK;
    return tr__fail_context(status, "collate of the %" PRId64 " samples from %" PRId64 " of %s on", r->count,
        r->indices[0], r->set->name);
}

static tr_status collate(const tr__recipe *r, tr_sample *batch)
{
    tr_sample *samples = calloc((size_t)r->count, sizeof *samples);
    if (!samples) return tr__fail(TR_NO_MEMORY, "loader: no memory for %" PRId64 " samples", r->count);
    tr_status status = collate_samples(r, samples, batch);
    free(samples);
    return status;
}

/* ---- Either ------------------------------------------------------------------------------------------------------ */

static tr_status move(tr_tensor **t, tr_device device)
{
    if (!*t || tr_device_equal(tr__device_of(*t), device)) return TR_OK;
    tr_tensor *moved = tr__tensor_new((*t)->shape, (*t)->dtype, device);
    TR__TRY(tr_status_of(moved));
    TR__TRY(tr_copy_into(moved, *t));
    *t = moved;
    return TR_OK;
}

tr_status tr__batch_keep(const tr_sample *made, tr_device device, tr_sample *batch)
{
    tr_tensor *x = made->x, *y = made->y;
    TR__TRY(move(&x, device));
    TR__TRY(move(&y, device));
    *batch = (tr_sample){tr__ref(x), tr__ref(y)};
    return TR_OK;
}

tr_status tr__batch_make(const tr__recipe *r, tr_sample *batch)
{
    TR_SCOPE;
    tr_sample made = {NULL, NULL};
    if (r->collate)
        TR__TRY(collate(r, &made));
    else if (r->set->laid_out)
        TR__TRY(write_rows(r, &made));
    else
        TR__TRY(stack_rows(r, &made));
    return tr__batch_keep(&made, r->device, batch);
}
