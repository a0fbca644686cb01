/* The store inside one process: a map, a lock, and a condition that every change signals. */
#include "base/clock.h"
#include "base/thread.h"
#include "net/store/map.h"
#include "net/store/store.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct memory_store {
    tr_store store;
    tr__map map;
    pthread_mutex_t lock;
    pthread_cond_t changed;
} memory_store;

/* Finds or makes the entry under the lock, which the caller gives back with finish(). */
static tr__entry *begin(memory_store *m, const char *key)
{
    pthread_mutex_lock(&m->lock);
    return tr__map_find(&m->map, key, strlen(key), true);
}

static tr_status finish(memory_store *m, tr__entry *entry, const char *key, int status)
{
    if (entry) tr__map_prune(&m->map, entry);
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    if (status == TR_NO_MEMORY) return tr__fail(status, "%s: no memory for key '%s'", m->store.name, key);
    if (status == TR_FORMAT)
        return tr__fail(status, "%s: key '%s' holds no number, or its sum leaves 64 bits", m->store.name, key);
    return status;
}

static tr_status memory_set(tr_store *store, const char *key, const void *value, size_t bytes)
{
    memory_store *m = (memory_store *)store;
    tr__entry *entry = begin(m, key);
    return finish(m, entry, key, entry ? tr__map_set(&m->map, entry, value, bytes) : TR_NO_MEMORY);
}

static tr_status memory_add(tr_store *store, const char *key, int64_t amount, int64_t *sum)
{
    memory_store *m = (memory_store *)store;
    tr__entry *entry = begin(m, key);
    return finish(m, entry, key, entry ? tr__map_add(&m->map, entry, amount, sum) : TR_NO_MEMORY);
}

static tr_status memory_compare_set(tr_store *store, const char *key, const void *expected, size_t expected_bytes,
    const void *desired, size_t desired_bytes, int timeout_ms, void **value, size_t *bytes)
{
    (void)timeout_ms; /* it always answers */
    memory_store *m = (memory_store *)store;
    tr__entry *entry = begin(m, key);
    bool changed;
    int status =
        entry ? tr__map_compare_set(&m->map, entry, expected, expected_bytes, desired, desired_bytes, &changed) : TR_NO_MEMORY;
    if (status == TR_OK) status = tr__store_copy(store, entry->value, value, bytes);
    return finish(m, entry, key, status);
}

static tr_status memory_get(tr_store *store, const char *key, int timeout_ms, void **value, size_t *bytes)
{
    memory_store *m = (memory_store *)store;
    int64_t until = tr__now_ns() + (int64_t)timeout_ms * 1000000;
    struct timespec deadline = {until / 1000000000, until % 1000000000};
    tr__entry *entry;
    int waited = timeout_ms > 0 ? 0 : ETIMEDOUT;
    pthread_mutex_lock(&m->lock);
    while (!(entry = tr__map_find(&m->map, key, strlen(key), false)) && waited != ETIMEDOUT)
        waited = pthread_cond_timedwait(&m->changed, &m->lock, &deadline);
    tr_status status = entry ? TR_OK : tr__store_timed_out(store, key, timeout_ms);
    if (entry && value) status = tr__store_copy(store, entry->value, value, bytes);
    pthread_mutex_unlock(&m->lock);
    return status;
}

static tr_status memory_delete(tr_store *store, const char *key, bool *deleted)
{
    memory_store *m = (memory_store *)store;
    pthread_mutex_lock(&m->lock);
    tr__entry *entry = tr__map_find(&m->map, key, strlen(key), false);
    *deleted = entry && tr__map_delete(&m->map, entry);
    return finish(m, entry, key, TR_OK);
}

static const tr__store_ops memory_ops = {memory_set, memory_get, memory_add, memory_compare_set, memory_delete, NULL};

static void memory_destroy(void *self)
{
    memory_store *m = self;
    if (!m->store.ops) return;
    tr__map_clear(&m->map);
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->changed);
}

static const tr__type memory_type = {.name = "store", .size = sizeof(memory_store), .destroy = memory_destroy};

tr_store *tr_store_memory(void)
{
    memory_store *m = tr__object_new(&memory_type);
    if (tr__error_of(m)) return &m->store;
    tr__condition_init(&m->changed);
    pthread_mutex_init(&m->lock, NULL);
    m->store.ops = &memory_ops;
    m->store.timeout_ms = TR__STORE_TIMEOUT_MS;
    snprintf(m->store.name, sizeof m->store.name, "memory store");
    return &m->store;
}
