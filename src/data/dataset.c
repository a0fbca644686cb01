/* Datasets: a program's own, rows of tensors, slices, subsets and maps of others. */
#include "data/dataset.h"

#include "base/rng.h"
#include "data/content.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void destroy(void *self)
{
    tr_dataset *set = self;
    if (set->kind) set->kind->destroy(set);
    if (set->owns_source) free((void *)set->source);
}

static const tr__type dataset_type = {"dataset", sizeof(tr_dataset), destroy};

tr_dataset *tr__dataset_new(const tr__dataset_kind *kind, const char *name, size_t state_bytes)
{
    tr_dataset *set = tr__object_new_sized(&dataset_type, state_bytes);
    if (tr__error_of(set)) return set;
    set->kind = kind;
    set->name = name;
    return set;
}

tr_dataset *tr__dataset_failed(void)
{
    return tr__object_failed(&dataset_type);
}

void tr__dataset_sum(tr_dataset *set, tr__content *content)
{
    set->kind->sum(set, content);
}

uint64_t tr_dataset_hash(tr_dataset *set)
{
    tr__content content = {0};
    if (set && !tr__error_of(set)) tr__dataset_sum(set, &content);
    return content.crc32c;
}

/* ---- Samples ----------------------------------------------------------------------------------------------------- */

uint64_t tr__sample_seed(uint64_t epoch_seed, int64_t index)
{
    return tr__mix(epoch_seed, (uint64_t)index);
}

tr_status tr__sample_failed(const tr_dataset *set, int64_t index, tr_status status)
{
    return tr__fail_context(status, "sample %" PRId64 " of %s", index, set->name);
}

const char *tr__field_name(int field)
{
    static const char *const names[TR__FIELDS] = {"x", "y", "more[0]", "more[1]", "more[2]", "more[3]", "more[4]", "more[5]"};
    return names[field];
}

static tr_status write_sample(tr_dataset *set, int64_t index, tr_sample *out)
{
    void *places[TR__FIELDS] = {NULL};
    for (int f = 0; f < TR__FIELDS; f++) {
        const tr__layout *layout = &set->fields[f];
        if (!layout->present) continue;
        tr_tensor *t = *tr__field(out, f) = tr__tensor_new(layout->shape, layout->dtype, tr_cpu(0));
        TR__TRY(tr_status_of(t));
        places[f] = tr__ptr(t);
    }
    return set->kind->write(set, index, places);
}

static tr_status get_sample(tr_dataset *set, int64_t index, uint64_t seed, tr_sample *out)
{
    TR__TRY(set->kind->get(set, index, seed, out));
    if (!out->x) return tr__fail(TR_INVALID, "it has no x");
    for (int f = 0; f < TR__FIELDS; f++) TR__TRY(tr_status_of(*tr__field(out, f)));
    return TR_OK;
}

static tr_status make_sample(tr_dataset *set, int64_t index, uint64_t seed, tr_sample *out)
{
    *out = (tr_sample){0};
    return tr__laid_out(set) ? write_sample(set, index, out) : get_sample(set, index, seed, out);
}

tr_status tr__dataset_sample(tr_dataset *set, int64_t index, uint64_t seed, tr_sample *out)
{
    tr_status status = make_sample(set, index, seed, out);
    return status == TR_OK ? TR_OK : tr__sample_failed(set, index, status);
}

int64_t tr_dataset_count(const tr_dataset *set)
{
    return set && !tr__error_of(set) ? set->count : 0;
}

tr_status tr_dataset_at(tr_dataset *set, int64_t index, tr_sample *out)
{
    if (!set) return tr__fail(TR_INVALID, "dataset_at: the dataset is NULL");
    if (!out) return tr__fail(TR_INVALID, "dataset_at: out is NULL");
    TR__TRY(tr_status_of(set));
    if (index < 0 || index >= set->count)
        return tr__fail(TR_INVALID, "dataset_at: no sample %" PRId64 ": %s has %" PRId64, index, set->name, set->count);
    return tr__dataset_sample(set, index, tr__sample_seed(tr__mix(0, 0), index), out);
}

/* ---- A program's own, and changed ones --------------------------------------------------------------------------- */

typedef struct made {
    tr_dataset *base; /* a reference: the function changes its samples; NULL: it makes them */
    tr_dataset_function function;
    void *user;
    void (*release)(void *user);
    char *name; /* of one without base */
} made;

static tr_status made_get(tr_dataset *set, int64_t index, uint64_t seed, tr_sample *out)
{
    const made *m = tr__dataset_state(set);
    if (m->base) TR__TRY(make_sample(m->base, index, seed, out));
    uint64_t before = tr__failures();
    return tr__fail_unsaid(m->function(&(tr_sample_call){.index = index, .seed = seed, .user = m->user}, out), before);
}

static void made_destroy(tr_dataset *set)
{
    made *m = tr__dataset_state(set);
    if (m->release && !set->object.error) m->release(m->user);
    tr__unref(m->base);
    free(m->name);
}

static void made_sum(tr_dataset *set, tr__content *content)
{
    const made *m = tr__dataset_state(set);
    content->computed = true;
    if (m->base) tr__dataset_sum(m->base, content);
}

static const tr__dataset_kind made_kind = {.get = made_get, .destroy = made_destroy, .sum = made_sum};

static tr_status own_fill(tr_dataset *set, const tr_dataset_options *options)
{
    made *m = tr__dataset_state(set);
    if (!options->get) return tr__fail(TR_INVALID, "dataset_new: there is no function to get samples with");
    if (options->count < 0)
        return tr__fail(TR_INVALID, "dataset_new: the count must be 0 or more, not %" PRId64, options->count);
    m->name = strdup(options->name ? options->name : "dataset");
    if (!m->name) return tr__fail(TR_NO_MEMORY, "dataset_new: out of memory");
    m->function = options->get;
    m->user = options->user;
    m->release = options->release;
    set->name = m->name;
    set->count = options->count;
    return TR_OK;
}

tr_dataset *tr_dataset_fail(tr_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    tr__fail_v(status, format, arguments);
    va_end(arguments);
    return tr__dataset_failed();
}

tr_dataset *tr_dataset_new_with(const tr_dataset_options *options)
{
    tr_dataset *set = tr__dataset_new(&made_kind, "dataset", sizeof(made));
    if (!tr__error_of(set) && own_fill(set, options) != TR_OK) tr__object_break(set);
    return set;
}

/* Takes count and name from the dataset that another is built on. */
static tr_status stand_on(const char *what, tr_dataset *set, tr_dataset **place, tr_dataset *base)
{
    if (!base) return tr__fail(TR_INVALID, "%s: the dataset is NULL", what);
    TR__TRY(tr_status_of(base));
    *place = tr__ref(base);
    set->name = base->name;
    set->count = base->count;
    return TR_OK;
}

static tr_status map_fill(tr_dataset *set, tr_dataset *base, tr_dataset_function function, void *user)
{
    made *m = tr__dataset_state(set);
    TR__TRY(stand_on("dataset_map", set, &m->base, base));
    if (!function) return tr__fail(TR_INVALID, "dataset_map: the function is NULL");
    m->function = function;
    m->user = user;
    return TR_OK;
}

tr_dataset *tr_dataset_map(tr_dataset *base, tr_dataset_function function, void *user)
{
    tr_dataset *set = tr__dataset_new(&made_kind, "map", sizeof(made));
    if (!tr__error_of(set) && map_fill(set, base, function, user) != TR_OK) tr__object_break(set);
    return set;
}

/* ---- Rows of tensors --------------------------------------------------------------------------------------------- */

typedef struct tensors {
    tr_tensor *rows[TR__FIELDS]; /* references */
} tensors;

static tr_status tensors_write(tr_dataset *set, int64_t index, void *const places[TR__FIELDS])
{
    const tensors *t = tr__dataset_state(set);
    for (int f = 0; f < TR__FIELDS; f++) {
        if (!places[f]) continue;
        size_t bytes = tr__layout_bytes(&set->fields[f]);
        memcpy(places[f], (const char *)tr__ptr(t->rows[f]) + (size_t)index * bytes, bytes);
    }
    return TR_OK;
}

static void tensors_destroy(tr_dataset *set)
{
    const tensors *t = tr__dataset_state(set);
    for (int f = 0; f < TR__FIELDS; f++) tr__unref(t->rows[f]);
}

static void tensors_sum(tr_dataset *set, tr__content *content)
{
    const tensors *t = tr__dataset_state(set);
    for (int f = 0; f < TR__FIELDS; f++)
        if (t->rows[f]) tr__content_add(content, tr__ptr(t->rows[f]), (size_t)set->count * tr__layout_bytes(&set->fields[f]));
}

static const tr__dataset_kind tensors_kind = {.write = tensors_write, .destroy = tensors_destroy, .sum = tensors_sum};

static tr_status take_rows(const char *which, const tr_tensor *rows, tr__layout *layout)
{
    TR__TRY(tr_status_of(rows));
    if (tr__device_of(rows).kind != TR_CPU || !tr_is_contiguous(rows) || rows->shape.ndim == 0)
        return tr__fail(TR_INVALID, "dataset_tensors: %s %s must be a contiguous CPU tensor with a row per sample",
            which, TR__TEXT(rows->shape));
    layout->present = true;
    layout->dtype = rows->dtype;
    layout->shape.ndim = rows->shape.ndim - 1;
    memcpy(layout->shape.dim, rows->shape.dim + 1, sizeof(int64_t) * (size_t)layout->shape.ndim);
    return TR_OK;
}

static tr_status tensors_fill(tr_dataset *set, const tr_dataset_tensors_options *o)
{
    tensors *t = tr__dataset_state(set);
    tr_sample all = {.x = o->x, .y = o->y};
    memcpy(all.more, o->more, sizeof all.more);
    if (!all.x) return tr__fail(TR_INVALID, "dataset_tensors: x is NULL");
    for (int f = 0; f < TR__FIELDS; f++) {
        tr_tensor *rows = *tr__field(&all, f);
        if (!rows) continue;
        TR__TRY(take_rows(tr__field_name(f), rows, &set->fields[f]));
        if (rows->shape.dim[0] != all.x->shape.dim[0])
            return tr__fail(TR_SHAPE, "dataset_tensors: x %s and %s %s have different numbers of rows", TR__TEXT(all.x->shape),
                tr__field_name(f), TR__TEXT(rows->shape));
        t->rows[f] = tr__ref(rows);
    }
    set->count = all.x->shape.dim[0];
    return TR_OK;
}

tr_dataset *tr_dataset_tensors_with(const tr_dataset_tensors_options *options)
{
    tr_dataset *set = tr__dataset_new(&tensors_kind, "tensors", sizeof(tensors));
    if (!tr__error_of(set) && tensors_fill(set, options) != TR_OK) tr__object_break(set);
    return set;
}

/* ---- Slices and subsets of another dataset ----------------------------------------------------------------------- */

typedef struct selection {
    tr_dataset *base; /* a reference */
    int64_t begin;
    int64_t *indices; /* of the chosen ones; NULL: those from begin on */
} selection;

static int64_t place_of(const selection *s, int64_t index)
{
    return s->indices ? s->indices[index] : s->begin + index;
}

static tr_status selection_get(tr_dataset *set, int64_t index, uint64_t seed, tr_sample *out)
{
    const selection *s = tr__dataset_state(set);
    return s->base->kind->get(s->base, place_of(s, index), seed, out);
}

static tr_status selection_write(tr_dataset *set, int64_t index, void *const places[TR__FIELDS])
{
    const selection *s = tr__dataset_state(set);
    return s->base->kind->write(s->base, place_of(s, index), places);
}

static void selection_destroy(tr_dataset *set)
{
    const selection *s = tr__dataset_state(set);
    tr__unref(s->base);
    free(s->indices);
}

static void selection_sum(tr_dataset *set, tr__content *content)
{
    const selection *s = tr__dataset_state(set);
    const int64_t stretch[] = {s->begin, set->count};
    if (s->indices) tr__content_add(content, s->indices, (size_t)set->count * sizeof *s->indices);
    else tr__content_add(content, stretch, sizeof stretch);
    tr__dataset_sum(s->base, content);
}

static const tr__dataset_kind selection_kind = {
    .get = selection_get, .write = selection_write, .destroy = selection_destroy, .sum = selection_sum};

/* Also takes the layout. */
static tr_status select_from(const char *what, tr_dataset *set, tr_dataset *base)
{
    TR__TRY(stand_on(what, set, &((selection *)tr__dataset_state(set))->base, base));
    memcpy(set->fields, base->fields, sizeof set->fields);
    return TR_OK;
}

static tr_status slice_fill(tr_dataset *set, tr_dataset *base, int64_t begin, int64_t end)
{
    selection *s = tr__dataset_state(set);
    TR__TRY(select_from("dataset_slice", set, base));
    if (begin < 0 || end < begin || end > base->count)
        return tr__fail(TR_INVALID, "dataset_slice: no samples [%" PRId64 ", %" PRId64 "): %s has %" PRId64, begin, end,
            base->name, base->count);
    s->begin = begin;
    set->count = end - begin;
    set->source = base->source;
    set->source_begin = base->source_begin + begin;
    return TR_OK;
}

tr_dataset *tr_dataset_slice(tr_dataset *base, int64_t begin, int64_t end)
{
    tr_dataset *set = tr__dataset_new(&selection_kind, "slice", sizeof(selection));
    if (!tr__error_of(set) && slice_fill(set, base, begin, end) != TR_OK) tr__object_break(set);
    return set;
}

static tr_status subset_fill(tr_dataset *set, tr_dataset *base, const int64_t *indices, int64_t count)
{
    selection *s = tr__dataset_state(set);
    TR__TRY(select_from("dataset_subset", set, base));
    if (count < 0) return tr__fail(TR_INVALID, "dataset_subset: the count must be 0 or more, not %" PRId64, count);
    if (count && !indices) return tr__fail(TR_INVALID, "dataset_subset: indices is NULL");
    for (int64_t i = 0; i < count; i++)
        if (indices[i] < 0 || indices[i] >= base->count)
            return tr__fail(TR_INVALID, "dataset_subset: no sample %" PRId64 ": %s has %" PRId64, indices[i], base->name,
                base->count);
    s->indices = malloc((size_t)(count ? count : 1) * sizeof *s->indices);
    if (!s->indices) return tr__fail(TR_NO_MEMORY, "dataset_subset: no memory for %" PRId64 " numbers", count);
    if (count) memcpy(s->indices, indices, (size_t)count * sizeof *indices);
    set->count = count;
    return TR_OK;
}

tr_dataset *tr_dataset_subset(tr_dataset *base, const int64_t *indices, int64_t count)
{
    tr_dataset *set = tr__dataset_new(&selection_kind, "subset", sizeof(selection));
    if (!tr__error_of(set) && subset_fill(set, base, indices, count) != TR_OK) tr__object_break(set);
    return set;
}

/* ---- Random parts ------------------------------------------------------------------------------------------------ */

/* How many samples each part has: lengths[i] of `count`. */
static tr_status part_lengths(const tr_dataset_split_options *o, int64_t *lengths)
{
    double sum = 0;
    for (int i = 0; i < o->count; i++) {
        if (!(o->shares[i] >= 0))
            return tr__fail(TR_INVALID, "dataset_split: part %d has a share of %g: it must be 0 or more", i, o->shares[i]);
        sum += o->shares[i];
    }
    bool fractions = fabs(sum - 1) < 1e-9;
    if (!fractions && sum != (double)o->set->count)
        return tr__fail(TR_INVALID, "dataset_split: the sum of the shares is %g: it must be 1, of fractions, or the %" PRId64
            " samples of %s", sum, o->set->count, o->set->name);
    int64_t left = o->set->count;
    for (int i = 0; i < o->count; i++) {
        double share = fractions ? o->shares[i] * (double)o->set->count : o->shares[i];
        lengths[i] = (int64_t)(fractions ? share + 1e-9 * share : share); /* 0.29 * 100 is less than 29 */
        if (!fractions && (double)lengths[i] != share)
            return tr__fail(TR_INVALID, "dataset_split: part %d cannot have %g samples", i, share);
        if (lengths[i] > left) lengths[i] = left;
        left -= lengths[i];
    }
    for (int i = 0; left > 0; i = (i + 1) % o->count, left--) lengths[i]++;
    return TR_OK;
}

static tr_status split(const tr_dataset_split_options *o)
{
    if (!o->set || !o->shares)
        return tr__fail(TR_INVALID, "dataset_split: %s NULL", o->set ? "shares are" : "the dataset is");
    TR__TRY(tr_status_of(o->set));
    tr_sampler *sampler = tr_distributed_sampler(o->set->count, .seed = o->seed);
    int64_t *indices = malloc((size_t)(o->set->count + 1) * sizeof *indices), begin = 0;
    int64_t *lengths = calloc((size_t)o->count, sizeof *lengths);
    tr_status status = indices && lengths ? part_lengths(o, lengths)
        : tr__fail(TR_NO_MEMORY, "dataset_split: no memory for %" PRId64 " numbers", o->set->count);
    if (status == TR_OK) status = tr_sampler_indices(sampler, indices);
    for (int i = 0; i < o->count && status == TR_OK; begin += lengths[i++]) {
        o->parts[i] = tr_dataset_subset(o->set, indices + begin, lengths[i]);
        status = tr_status_of(o->parts[i]);
    }
    free(indices);
    free(lengths);
    return status;
}

tr_status tr_dataset_split_with(const tr_dataset_split_options *options)
{
    if (!options->parts || options->count < 1)
        return tr__fail(TR_INVALID, "dataset_split: %s%d parts", options->parts ? "cannot make " : "parts is NULL, for ",
            options->count);
    tr_status status = split(options);
    for (int i = 0; i < options->count && status != TR_OK; i++) options->parts[i] = tr__dataset_failed();
    return status;
}
