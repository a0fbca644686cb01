/* The store of another program or framework, behind functions that it gives. */
#include "base/given.h"
#include "net/store/store.h"
#include "net/tls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct custom_store {
    tr_store store;
    tr_store_custom_options given; /* its texts are not kept */
} custom_store;

static custom_store *of(tr_store *store)
{
    return (custom_store *)store;
}

/* Values have a NUL behind them, which other stores need not write. Takes over *value. */
static tr_status terminate(const tr_store *store, void **value, size_t bytes)
{
    char *text = *value ? realloc(*value, bytes + 1) : NULL;
    if (*value && !text) {
        free(*value);
        *value = NULL;
        return tr__fail(TR_NO_MEMORY, "%s: no memory for a value of %zu bytes", store->name, bytes);
    }
    if (text) text[bytes] = 0;
    *value = text;
    return TR_OK;
}

static tr_status custom_get(tr_store *store, const char *key, int timeout_ms, void **value, size_t *bytes)
{
    void *got = NULL;
    size_t got_bytes = 0;
    uint64_t before = tr__failures();
    TR__TRY(tr__fail_unsaid(of(store)->given.get(of(store)->given.user, key, timeout_ms, &got, &got_bytes), before));
    if (!got) return tr__fail(TR_INTERNAL, "%s: its get() said that key '%s' is there, and gave no value", store->name, key);
    TR__TRY(terminate(store, &got, got_bytes));
    if (!value) {
        free(got);
        return TR_OK;
    }
    *value = got;
    *bytes = got_bytes;
    return TR_OK;
}

static tr_status custom_change(tr_store *store, const char *key, tr__change *c, int timeout_ms, void **value, size_t *bytes)
{
    const tr_store_custom_options *o = &of(store)->given;
    uint64_t before = tr__failures();
    switch (c->kind) {
    case TR__CHANGE_SET: return tr__fail_unsaid(o->set(o->user, key, c->value, c->bytes), before);
    case TR__CHANGE_ADD: return tr__fail_unsaid(o->add(o->user, key, c->amount, &c->sum), before);
    case TR__CHANGE_DELETE:
        if (o->delete_key) return tr__fail_unsaid(o->delete_key(o->user, key, &c->changed), before);
        return tr__fail(TR_UNSUPPORTED, "%s: it cannot delete key '%s': it was made without .delete_key", store->name, key);
    case TR__CHANGE_COMPARE_SET: break;
    }
    *value = NULL;
    *bytes = 0;
    TR__TRY(tr__fail_unsaid(o->compare_set(o->user, key, c->expected, c->expected_bytes, c->value, c->bytes, timeout_ms, value,
        bytes), before));
    return terminate(store, value, *bytes);
}

static const tr__store_ops custom_ops = {custom_get, custom_change, NULL};

static void custom_destroy(void *self)
{
    custom_store *s = self;
    tr__tls_key_unref(s->store.key);
    if (s->given.release) s->given.release(s->given.user);
}

static const tr__type custom_type = {.name = "store", .size = sizeof(custom_store), .destroy = custom_destroy};

static tr_status open_store(custom_store *s, const tr_store_custom_options *o)
{
    if (!o->set || !o->get || !o->add || !o->compare_set)
        return tr__fail(TR_INVALID, "tr_store_custom: the functions set, get, add and compare_set are needed");
    if (o->host && strlen(o->host) >= sizeof s->store.host)
        return tr__fail(TR_INVALID, "tr_store_custom: host '%.40s…' is too long", o->host);
    if (TR__OR(o, timeout_ms, TR__STORE_TIMEOUT_MS) < 1)
        return tr__fail(TR_INVALID, "tr_store_custom: a timeout of %d ms must be positive", o->timeout_ms);
    s->store.timeout_ms = TR__OR(o, timeout_ms, TR__STORE_TIMEOUT_MS);
    s->store.anywhere = (o->token && o->token[0]) || o->insecure;
    if (o->token && o->token[0]) TR__TRY(tr__tls_key_new(o->token, &s->store.key));
    if (o->host) strcpy(s->store.host, o->host);
    snprintf(s->store.name, sizeof s->store.name, "%s", o->name ? o->name : "custom store");
    s->given = *o;
    s->store.ops = &custom_ops;
    return TR_OK;
}

tr_store *tr_store_custom_with(const tr_store_custom_options *options)
{
    tr_store_custom_options o = {0};
    if (options) memcpy(&o, options, options->size < sizeof o ? options->size : sizeof o);
    custom_store *s = tr__object_new(&custom_type);
    if (!tr__error_of(s) && open_store(s, &o) != TR_OK) tr__object_break(s);
    return &s->store;
}
