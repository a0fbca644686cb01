#include "hosts.h"

#include "comm/join/rendezvous.h"
#include "net/store/store.h"
#include "net/tls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct host_store {
    tr_store store;
    tr_store *real;
    int host;
    atomic_bool *published;
} host_store;

static host_store *of(tr_store *store)
{
    return (host_store *)store;
}

/* Replaces the first `from` in text, which has room. */
static void replace(char *text, const char *from, const char *to)
{
    char *at = strstr(text, from);
    if (!at) return;
    memmove(at + strlen(to), at + strlen(from), strlen(at + strlen(from)) + 1);
    memcpy(at, to, strlen(to));
}

/* " machine BOOT/NAMESPACE address" as this rank publishes it, and as ranks of one host read it. */
static void machine_texts(const host_store *h, char plain[200], char named[200])
{
    tr__endpoint_record record = {0};
    tr__endpoint_record_here(&(tr__member){.world_size = 1}, &record);
    snprintf(plain, 200, " machine %s address", record.machine);
    snprintf(named, 200, " machine %s#%d address", record.machine, h->host);
}

enum { RECORD = 1024 };

/* Ranks of other hosts must not be met at a loopback address, and on one machine there need not be another. Linux takes
 * 0.0.0.0 for this host. False: this key is not that of an endpoint record. */
static bool rename_record(const host_store *h, const char *key, const void *value, size_t bytes, char record[RECORD])
{
    char plain[200], named[200];
    if (!strstr(key, "/endpoint/") || !value || bytes + 200 > RECORD) return false;
    memcpy(record, value, bytes);
    record[bytes] = 0;
    machine_texts(h, plain, named);
    replace(record, plain, named);
    replace(record, " tcp 127.0.0.1:", " tcp 0.0.0.0:");
    return true;
}

static tr_status host_change(tr_store *store, const char *key, tr__change *c, int timeout_ms, void **value, size_t *bytes)
{
    char record[RECORD];
    tr__change renamed = *c;
    bool publishes = c->kind == TR__CHANGE_SET && rename_record(of(store), key, c->value, c->bytes, record);
    if (publishes) renamed.value = record, renamed.bytes = strlen(record);
    if (c->kind == TR__CHANGE_COMPARE_SET && rename_record(of(store), key, c->expected, c->expected_bytes, record))
        renamed.expected = record, renamed.expected_bytes = strlen(record);
    TR__TRY(tr__store_change(of(store)->real, key, &renamed, timeout_ms, value, bytes));
    c->sum = renamed.sum;
    c->changed = renamed.changed;
    if (publishes && of(store)->published) atomic_store(of(store)->published, true);
    return TR_OK;
}

static tr_status host_get(tr_store *store, const char *key, int timeout_ms, void **value, size_t *bytes)
{
    char plain[200], named[200];
    TR__TRY(tr__store_get(of(store)->real, key, timeout_ms, value, bytes));
    if (!value || !strstr(key, "/endpoint/")) return TR_OK;
    machine_texts(of(store), plain, named);
    replace(*value, named, plain);
    *bytes = strlen(*value);
    return TR_OK;
}

static const tr__store_ops ops = {.get = host_get, .change = host_change};

static void destroy(void *self)
{
    tr__tls_key_unref(of(self)->store.key);
    tr__unref(of(self)->real);
}

static const tr__type type = {.name = "store", .size = sizeof(host_store), .destroy = destroy};

tr_store *store_on_host(tr_store *store, int host)
{
    return store_on_host_telling(store, host, NULL);
}

tr_store *store_on_host_telling(tr_store *store, int host, atomic_bool *published)
{
    host_store *h = tr__object_new(&type);
    if (tr__error_of(h)) return &h->store;
    h->store.ops = &ops;
    h->store.timeout_ms = store->timeout_ms;
    memcpy(h->store.name, store->name, sizeof store->name);
    memcpy(h->store.host, store->host, sizeof store->host);
    h->store.port = store->port;
    h->store.anywhere = store->anywhere;
    h->store.key = tr__tls_key_ref(store->key);
    h->real = tr__ref(store);
    h->host = host;
    h->published = published;
    return &h->store;
}
