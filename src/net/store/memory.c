/* The store inside one process: a map, a lock, and a condition that every change signals. */
#include "base/clock.h"
#include "base/thread.h"
#include "net/store/store.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

typedef struct memory_store {
    tr_store store;
    tr__map map;
    pthread_mutex_t lock;
    pthread_cond_t changed;
} memory_store;

static tr_status memory_change(tr_store *store, const char *key, tr__change *c, int timeout_ms, void **value, size_t *bytes)
{
    (void)timeout_ms; /* it always answers */
    memory_store *m = (memory_store *)store;
    TR__LOCKED(&m->lock);
    tr__entry *entry = tr__map_find(&m->map, key, strlen(key), true);
    tr_status status = tr__store_changed(store, key, entry ? tr__map_change(&m->map, entry, c) : TR_NO_MEMORY);
    if (entry && status == TR_OK && value) status = tr__store_copy(store, entry->value, value, bytes);
    if (entry) tr__map_prune(&m->map, entry);
    pthread_cond_broadcast(&m->changed);
    return status;
}

static tr_status memory_get(tr_store *store, const char *key, int timeout_ms, void **value, size_t *bytes)
{
    memory_store *m = (memory_store *)store;
    int64_t deadline = tr__in_ms(timeout_ms);
    tr__entry *entry;
    bool waits = timeout_ms > 0;
    TR__LOCKED(&m->lock);
    while (!(entry = tr__map_find(&m->map, key, strlen(key), false)) && waits)
        waits = tr__condition_wait(&m->changed, &m->lock, deadline);
    if (!entry) return tr__store_timed_out(store, key, timeout_ms);
    return value ? tr__store_copy(store, entry->value, value, bytes) : TR_OK;
}

static const tr__store_ops memory_ops = {memory_get, memory_change, NULL};

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
