#include "tensor/tensor.h"

#include <stdlib.h>

static _Thread_local const tr__storage_source *source __attribute__((tls_model("initial-exec")));

const tr__storage_source *tr__storage_source_set(const tr__storage_source *now)
{
    const tr__storage_source *before = source;
    source = now;
    return before;
}

tr__storage *tr__storage_new(tr_device device, size_t bytes, bool shared)
{
    if (shared && device.kind != TR_CPU) {
        tr__fail(TR_UNSUPPORTED, "only CPU memory can be shared between processes");
        return NULL;
    }
    tr__storage *storage = calloc(1, sizeof *storage);
    if (!storage) {
        tr__fail(TR_NO_MEMORY, "out of memory");
        return NULL;
    }
    storage->device = device;
    storage->bytes = bytes;
    storage->kind = shared ? TR__SHARED : TR__OWNED;
    atomic_init(&storage->refs, 1);
    bool sourced = source && source->bytes == bytes && !shared && device.kind == TR_CPU && source->make(source->user, storage);
    if (sourced) storage->kind = TR__WRAPPED;
    else if (shared) storage->data = tr_shared_alloc(bytes);
    else if (tr__device_allocate(device, bytes ? bytes : 1, &storage->data) != TR_OK) storage->data = NULL;
    if (storage->data) return storage;
    free(storage);
    return NULL;
}

void tr__storage_vacate(tr__storage *storage)
{
    if (storage->data) tr__device_release(storage->device, storage->data, storage->bytes ? storage->bytes : 1);
    storage->data = NULL;
}

tr_status tr__storage_occupy(tr__storage *storage)
{
    if (storage->data) return TR_OK;
    return tr__device_allocate(storage->device, storage->bytes ? storage->bytes : 1, &storage->data);
}

void tr__storage_unref(tr__storage *storage)
{
    if (!storage || atomic_fetch_sub_explicit(&storage->refs, 1, memory_order_acq_rel) != 1) return;
    switch (storage->kind) {
    case TR__OWNED:
        tr__storage_vacate(storage);
        break;
    case TR__SHARED:
        tr_shared_free(storage->data);
        break;
    case TR__WRAPPED:
        if (storage->release) storage->release(storage->data, storage->user);
        break;
    }
    free(storage->sections);
    free(storage);
}

/* ---- Versions ---------------------------------------------------------------------------------------------------- */

tr_status tr__storage_divide(tr__storage *storage, const size_t *begins, int n)
{
    tr__section *sections = calloc((size_t)n, sizeof *sections);
    if (!sections) return tr__fail(TR_NO_MEMORY, "out of memory");
    for (int i = 0; i < n; i++) sections[i].begin = begins[i];
    storage->sections = sections;
    storage->n_sections = n;
    return TR_OK;
}

/* The last section that begins at the byte or before it. */
static int section_at(const tr__storage *storage, size_t byte)
{
    int low = 0, high = storage->n_sections;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (storage->sections[middle].begin <= byte) low = middle;
        else high = middle;
    }
    return low;
}

void tr__extent(const tr_tensor *t, size_t *begin, size_t *end)
{
    int64_t first = t->offset, last = t->offset;
    bool empty = tr__numel(t->shape) == 0;
    for (int d = 0; d < t->shape.ndim && !empty; d++) {
        int64_t way = t->stride[d] * (t->shape.dim[d] - 1);
        if (way < 0) first += way;
        else last += way;
    }
    *begin = (size_t)first * tr_dtype_size(t->dtype);
    *end = empty ? *begin : (size_t)(last + 1) * tr_dtype_size(t->dtype);
}

unsigned tr__version(const tr_tensor *t)
{
    const tr__storage *s = t->storage;
    if (!s->sections) return atomic_load_explicit(&s->version, memory_order_relaxed);
    size_t begin, end;
    unsigned version = 0;
    tr__extent(t, &begin, &end);
    for (int i = section_at(s, begin); i < s->n_sections && s->sections[i].begin < end; i++)
        version += atomic_load_explicit(&s->sections[i].version, memory_order_relaxed);
    return version;
}

void tr__version_set(tr_tensor *t, unsigned version)
{
    tr__storage *s = t->storage;
    size_t begin, end;
    tr__extent(t, &begin, &end);
    atomic_uint *own = s->sections ? &s->sections[section_at(s, begin)].version : &s->version;
    atomic_store_explicit(own, version, memory_order_relaxed);
}

void tr__count_saved(const tr_tensor *t, int change)
{
    const tr__storage *s = t->storage;
    if (!s || !s->sections) return;
    size_t begin, end;
    tr__extent(t, &begin, &end);
    for (int i = section_at(s, begin); i < s->n_sections && s->sections[i].begin < end; i++)
        atomic_fetch_add_explicit(&s->sections[i].saved, change, memory_order_relaxed);
}

int tr__saved_count(const tr_tensor *t)
{
    const tr__storage *s = t->storage;
    if (!s->sections) return 0;
    size_t begin, end;
    int most = 0;
    tr__extent(t, &begin, &end);
    for (int i = section_at(s, begin); i < s->n_sections && s->sections[i].begin < end; i++) {
        int saved = atomic_load_explicit(&s->sections[i].saved, memory_order_relaxed);
        if (saved > most) most = saved;
    }
    return most;
}

bool tr__is_saved(const tr_tensor *t)
{
    return tr__saved_count(t) > 0;
}

void tr__storage_touch(tr__storage *s, size_t begin, size_t end)
{
    if (!s->sections) atomic_fetch_add_explicit(&s->version, 1, memory_order_relaxed);
    for (int i = section_at(s, begin); i < s->n_sections && s->sections[i].begin < end; i++)
        atomic_fetch_add_explicit(&s->sections[i].version, 1, memory_order_relaxed);
}

void tr__touch(tr_tensor *t)
{
    size_t begin, end;
    tr__extent(t, &begin, &end);
    tr__storage_touch(t->storage, begin, end);
}
