#include "parallel/buffers.h"

#include <trireme/parallel.h>

#include <stdlib.h>

enum { ALIGN = 64 }; /* bytes: where a buffer begins */

static int64_t bytes_of(const tr_tensor *t)
{
    int64_t bytes = tr__numel(t->shape) * (int64_t)tr_dtype_size(t->dtype);
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Makes t read and write the flat memory at a number of bytes, with the values that it has. */
static tr_status move_to(tr_tensor *t, const tr_tensor *flat, int64_t at)
{
    TR_SCOPE;
    tr_tensor *before = tr__tensor_view(t, t->shape, t->stride, t->offset);
    TR__TRY(tr_status_of(before));
    tr__storage *old = t->storage;
    t->storage = tr__storage_ref(flat->storage);
    t->offset = at / (int64_t)tr_dtype_size(t->dtype);
    tr__row_major(t->shape, t->stride);
    tr__storage_unref(old);
    return tr_copy_into(t, before);
}

/* Those that lie on a device, from the i-th of the list on, which is the first. */
static tr_status gather_on(tr__buffers *b, int first)
{
    tr_device device = tr__device_of(b->list->entries[first].tensor);
    int64_t bytes = 0;
    for (int i = first; i < b->list->count; i++) {
        const tr_tensor *t = b->list->entries[i].tensor;
        if (tr_device_equal(tr__device_of(t), device)) bytes += bytes_of(t);
    }
    tr_tensor *flat = tr_zeros(TR_SHAPE(bytes), .dtype = TR_U8, .device = device, .shared = device.kind == TR_CPU);
    TR__TRY(tr_status_of(flat));
    b->flat[b->n_flat++] = tr_keep(flat);
    int64_t at = 0;
    for (int i = first; i < b->list->count; i++) {
        tr_tensor *t = b->list->entries[i].tensor;
        if (!tr_device_equal(tr__device_of(t), device)) continue;
        TR__TRY(move_to(t, flat, at));
        at += bytes_of(t);
    }
    return TR_OK;
}

static const tr_tensor *flat_on(const tr__buffers *b, tr_device device)
{
    for (int i = 0; i < b->n_flat; i++)
        if (tr_device_equal(tr__device_of(b->flat[i]), device)) return b->flat[i];
    return NULL;
}

tr_status tr__buffers_gather(tr__buffers *b, tr_tensor_list *list)
{
    TR__TRY(tr_status_of(list));
    *b = (tr__buffers){.list = tr_keep(list), .flat = calloc((size_t)list->count + 1, sizeof *b->flat)};
    if (!b->flat) return tr__fail(TR_NO_MEMORY, "out of memory for %d buffers", list->count);
    TR_SCOPE;
    for (int i = 0; i < list->count; i++)
        if (!flat_on(b, tr__device_of(list->entries[i].tensor))) TR__TRY(gather_on(b, i));
    return TR_OK;
}

tr_status tr__buffers_broadcast(const tr__buffers *b, tr_group *group)
{
    for (int i = 0; i < b->n_flat; i++) {
        tr_status status = tr_broadcast_tensor(group, b->flat[i], 0);
        if (status != TR_OK) return tr__fail_context(status, "ddp: broadcasting the buffers from rank 0");
    }
    for (int i = 0; b->list && i < b->list->count; i++) {
        tr_tensor *t = b->list->entries[i].tensor;
        const tr_tensor *flat = flat_on(b, tr__device_of(t));
        tr_status status = TR_OK;
        if (flat && t->storage == flat->storage) tr__touch(t);
        else status = tr_broadcast_tensor(group, t, 0);
        if (status != TR_OK)
            return tr__fail_context(status, "ddp: broadcasting \"%s\" from rank 0", b->list->entries[i].name);
    }
    return TR_OK;
}

void tr__buffers_release(tr__buffers *b)
{
    for (int i = 0; i < b->n_flat; i++) tr_release(b->flat[i]);
    free(b->flat);
    tr_release(b->list);
}
