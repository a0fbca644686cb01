#include "tensor/tensor.h"

#include <stdlib.h>

static void *owned_alloc(tr_device device, size_t bytes)
{
    if (tr__device_check(device) != TR_OK) return NULL;
    void *data = tr__device(device.kind)->alloc(device.index, bytes ? bytes : 1);
    if (data) return data;
    char name[16];
    tr__fail(TR_NO_MEMORY, "no memory for %zu bytes on %s", bytes, tr_device_name(device, name));
    return NULL;
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
    storage->data = shared ? tr_shared_alloc(bytes) : owned_alloc(device, bytes);
    if (!storage->data) {
        free(storage);
        return NULL;
    }
    atomic_init(&storage->refs, 1);
    storage->device = device;
    storage->bytes = bytes;
    storage->kind = shared ? TR__SHARED : TR__OWNED;
    return storage;
}

void tr__storage_unref(tr__storage *storage)
{
    if (!storage || atomic_fetch_sub_explicit(&storage->refs, 1, memory_order_acq_rel) != 1) return;
    switch (storage->kind) {
    case TR__OWNED:
        tr__device(storage->device.kind)->free(storage->device.index, storage->data, storage->bytes ? storage->bytes : 1);
        break;
    case TR__SHARED:
        tr_shared_free(storage->data);
        break;
    case TR__WRAPPED:
        if (storage->release) storage->release(storage->data, storage->user);
        break;
    }
    free(storage);
}
