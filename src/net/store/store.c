/* The public face of stores, which checks arguments, and the store that puts a prefix before every key. */
#include "net/store/store.h"

#include "base/clock.h"
#include "base/memory.h"
#include "net/tls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Checks ------------------------------------------------------------------------------------------------------ */

static tr_status check_store(const tr_store *store)
{
    if (!store) return tr__fail(TR_INVALID, "a store is needed, not NULL");
    return tr__fail_stored(tr__error_of(store));
}

static tr_status check_key(const tr_store *store, const char *key)
{
    TR__TRY(check_store(store));
    if (!key || !key[0]) return tr__fail(TR_INVALID, "%s: a key has at least one character", store->name);
    size_t length = strlen(key);
    if (length > TR__KEY_MAX)
        return tr__fail(TR_INVALID, "%s: key '%.32s…' has %zu bytes; at most %d are allowed", store->name, key, length,
            TR__KEY_MAX);
    return TR_OK;
}

static tr_status check_value(const tr_store *store, const char *key, const void *value, size_t bytes)
{
    if (bytes > 0 && !value)
        return tr__fail(TR_INVALID, "%s: the value of %zu bytes for key '%s' is NULL", store->name, bytes, key);
    if (bytes > TR__VALUE_MAX)
        return tr__fail(TR_INVALID, "%s: the value for key '%s' has %zu bytes; at most %d are allowed", store->name,
                        key, bytes, TR__VALUE_MAX);
    return TR_OK;
}

tr_status tr__store_timed_out(const tr_store *store, const char *key, int timeout_ms)
{
    return tr__fail(TR_TIMEOUT, "%s: nobody set key '%s' within %g s", store->name, key, timeout_ms / 1000.0);
}

tr_status tr__store_copy(const tr_store *store, const tr__map_value *from, void **value, size_t *bytes)
{
    *value = NULL;
    *bytes = 0;
    if (!from) return TR_OK;
    *value = malloc(from->bytes + 1);
    if (!*value) return tr__fail(TR_NO_MEMORY, "%s: no memory for a value of %zu bytes", store->name, from->bytes);
    memcpy(*value, from->data, from->bytes + 1);
    *bytes = from->bytes;
    return TR_OK;
}

tr_status tr__store_changed(const tr_store *store, const char *key, int status)
{
    if (status == TR_NO_MEMORY) return tr__fail(status, "%s: no memory for key '%s'", store->name, key);
    if (status == TR_FORMAT) return tr__fail(status, "%s: key '%s' holds no number, or its sum leaves 64 bits", store->name, key);
    return status;
}

/* ---- Public functions -------------------------------------------------------------------------------------------- */

tr_status tr__store_change(tr_store *store, const char *key, tr__change *c, int timeout_ms, void **value, size_t *bytes)
{
    TR__TRY(check_key(store, key));
    TR__TRY(check_value(store, key, c->value, c->bytes));
    TR__TRY(check_value(store, key, c->expected, c->expected_bytes));
    return store->ops->change(store, key, c, timeout_ms, value, bytes);
}

tr_status tr_store_set(tr_store *store, const char *key, const void *value, size_t bytes)
{
    TR__TRY(check_store(store));
    tr__change c = {.kind = TR__CHANGE_SET, .value = value, .bytes = bytes};
    return tr__store_change(store, key, &c, store->timeout_ms, NULL, NULL);
}

tr_status tr__store_get(tr_store *store, const char *key, int timeout_ms, void **value, size_t *bytes)
{
    TR__TRY(check_key(store, key));
    return store->ops->get(store, key, timeout_ms, value, bytes);
}

tr_status tr_store_get(tr_store *store, const char *key, void **value, size_t *bytes)
{
    TR__TRY(check_store(store));
    if (!value || !bytes) return tr__fail(TR_INVALID, "%s: value and bytes have no place to go to", store->name);
    return tr__store_get(store, key, store->timeout_ms, value, bytes);
}

tr_status tr_store_wait(tr_store *store, const char *key, int timeout_ms)
{
    TR__TRY(check_store(store));
    if (timeout_ms < 0) return tr__fail(TR_INVALID, "%s: a timeout of %d ms is negative", store->name, timeout_ms);
    return tr__store_get(store, key, timeout_ms ? timeout_ms : store->timeout_ms, NULL, NULL);
}

tr_status tr_store_add(tr_store *store, const char *key, int64_t amount, int64_t *sum)
{
    TR__TRY(check_store(store));
    tr__change c = {.kind = TR__CHANGE_ADD, .amount = amount};
    TR__TRY(tr__store_change(store, key, &c, store->timeout_ms, NULL, NULL));
    if (sum) *sum = c.sum;
    return TR_OK;
}

tr_status tr_store_delete(tr_store *store, const char *key, bool *deleted)
{
    TR__TRY(check_store(store));
    tr__change c = {.kind = TR__CHANGE_DELETE};
    tr_status status = tr__store_change(store, key, &c, store->timeout_ms, NULL, NULL);
    if (deleted) *deleted = status == TR_OK && c.changed;
    return status;
}

tr_status tr__store_compare_set(tr_store *store, const char *key, const void *expected, size_t expected_bytes,
    const void *desired, size_t desired_bytes, int timeout_ms, void **value, size_t *bytes)
{
    TR__TRY(check_store(store));
    if (!value || !bytes) return tr__fail(TR_INVALID, "%s: value and bytes have no place to go to", store->name);
    tr__change c = {.kind = TR__CHANGE_COMPARE_SET, .value = desired, .bytes = desired_bytes, .expected = expected,
        .expected_bytes = expected ? expected_bytes : 0};
    return tr__store_change(store, key, &c, timeout_ms, value, bytes);
}

tr_status tr_store_compare_set(tr_store *store, const char *key, const void *expected, size_t expected_bytes,
    const void *desired, size_t desired_bytes, void **value, size_t *bytes)
{
    TR__TRY(check_store(store));
    return tr__store_compare_set(store, key, expected, expected_bytes, desired, desired_bytes, store->timeout_ms, value,
        bytes);
}

void tr__store_values_free(tr__store_value *values, int count)
{
    for (int i = 0; i < count; i++) free(values[i].data);
    memset(values, 0, (size_t)count * sizeof *values);
}

/* One after the other, where asking costs no way to anybody. */
static tr_status gather_singly(tr_store *store, const char *const *keys, int count, int timeout_ms,
    tr__store_value *values)
{
    int64_t deadline = tr__in_ms(timeout_ms);
    tr_status status = TR_OK;
    for (int i = 0; i < count; i++) {
        int64_t left = (deadline - tr__now_ns()) / 1000000;
        tr_status one = store->ops->get(store, keys[i], left > 0 ? (int)left : 0, &values[i].data, &values[i].bytes);
        if (one != TR_OK && one != TR_TIMEOUT) return one;
        if (one == TR_TIMEOUT) status = one;
    }
    return status;
}

tr_status tr__store_gather(tr_store *store, const char *const *keys, int count, int timeout_ms, tr__store_value *values)
{
    TR__TRY(check_store(store));
    for (int i = 0; i < count; i++) TR__TRY(check_key(store, keys[i]));
    if (count == 0) return TR_OK;
    memset(values, 0, (size_t)count * sizeof *values);
    tr_status status = (store->ops->gather ? store->ops->gather : gather_singly)(store, keys, count, timeout_ms, values);
    if (status != TR_OK && status != TR_TIMEOUT) tr__store_values_free(values, count);
    return status;
}

int tr_store_port(const tr_store *store)
{
    return store && !tr__error_of(store) ? store->port : 0;
}

/* ---- Prefix ------------------------------------------------------------------------------------------------------ */

typedef struct prefix_store {
    tr_store store;
    tr_store *inner;
    size_t length;
    char prefix[TR__KEY_MAX + 1]; /* with its slash */
} prefix_store;

/* The inner store checks the whole key again, so a key that is too long now fails there. */
static char *with_prefix(tr_store *store, const char *key, char whole[2 * TR__KEY_MAX + 2])
{
    prefix_store *p = (prefix_store *)store;
    memcpy(whole, p->prefix, p->length);
    strcpy(whole + p->length, key);
    return whole;
}

static tr_status prefix_get(tr_store *store, const char *key, int timeout_ms, void **value, size_t *bytes)
{
    char whole[2 * TR__KEY_MAX + 2];
    return tr__store_get(((prefix_store *)store)->inner, with_prefix(store, key, whole), timeout_ms, value, bytes);
}

static tr_status prefix_change(tr_store *store, const char *key, tr__change *c, int timeout_ms, void **value, size_t *bytes)
{
    char whole[2 * TR__KEY_MAX + 2];
    return tr__store_change(((prefix_store *)store)->inner, with_prefix(store, key, whole), c, timeout_ms, value, bytes);
}

static tr_status prefix_gather(tr_store *store, const char *const *keys, int count, int timeout_ms,
    tr__store_value *values)
{
    enum { WHOLE = 2 * TR__KEY_MAX + 2 };
    TR__FREED const char **whole = tr__zeroed((size_t)count, sizeof *whole);
    TR__FREED char *texts = tr__zeroed((size_t)count, WHOLE);
    if (!whole || !texts) return tr__fail(TR_NO_MEMORY, "%s: no memory for %d keys", store->name, count);
    for (int i = 0; i < count; i++) whole[i] = with_prefix(store, keys[i], texts + (size_t)i * WHOLE);
    return tr__store_gather(((prefix_store *)store)->inner, whole, count, timeout_ms, values);
}

static const tr__store_ops prefix_ops = {prefix_get, prefix_change, prefix_gather};

static void prefix_destroy(void *self)
{
    tr__tls_key_unref(((prefix_store *)self)->store.key);
    tr__unref(((prefix_store *)self)->inner);
}

static const tr__type prefix_type = {.name = "store", .size = sizeof(prefix_store), .destroy = prefix_destroy};

tr_store *tr_store_prefix(tr_store *store, const char *prefix)
{
    if (store && tr__error_of(store)) return tr__object_pass(&prefix_type, store);
    if (!store) return tr__object_fail(&prefix_type, TR_INVALID, "tr_store_prefix: a store is needed, not NULL");
    if (!prefix || !prefix[0] || strlen(prefix) >= TR__KEY_MAX)
        return tr__object_fail(&prefix_type, TR_INVALID, "%s: a prefix has 1 … %d bytes", store->name, TR__KEY_MAX - 1);
    prefix_store *p = tr__object_new(&prefix_type);
    if (tr__error_of(p)) return &p->store;
    p->store.ops = &prefix_ops;
    p->store.timeout_ms = store->timeout_ms;
    strcpy(p->store.host, store->host);
    p->store.anywhere = store->anywhere;
    p->store.key = tr__tls_key_ref(store->key);
    p->store.port = store->port;
    memcpy(p->store.name, store->name, sizeof p->store.name);
    p->inner = tr__ref(store);
    p->length = (size_t)snprintf(p->prefix, sizeof p->prefix, "%s/", prefix);
    return &p->store;
}
