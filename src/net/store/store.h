/*
 * Stores: what every kind fills in, and what the library itself calls on them.
 */
#ifndef TR_NET_STORE_STORE_H
#define TR_NET_STORE_STORE_H

#include "base/object.h"
#include "net/store/map.h"

#include <trireme/store.h>

enum { TR__KEY_MAX = 1024, TR__VALUE_MAX = 16 << 20, TR__STORE_TIMEOUT_MS = 300000, TR__STORE_BYTES = 256 << 20 };

typedef struct tr__store_value {
    void *data; /* to be freed, with a NUL behind it; NULL: the key has no value */
    size_t bytes;
} tr__store_value;

/* Keys and values arrive checked. Thread-safe. */
typedef struct tr__store_ops {
    /* Waits up to timeout_ms (0: does not wait) for the key; then TR_TIMEOUT. value may be NULL: only wait. */
    tr_status (*get)(tr_store *store, const char *key, int timeout_ms, void **value, size_t *bytes);
    /* *value is what the key holds then, NULL: nothing; of a COMPARE_SET, for which alone value is not NULL. Gives up when the
     * store does not answer within timeout_ms. */
    tr_status (*change)(tr_store *store, const char *key, tr__change *change, int timeout_ms, void **value, size_t *bytes);
    /* As tr__store_gather; NULL: one get after the other does as well. */
    tr_status (*gather)(tr_store *store, const char *const *keys, int count, int timeout_ms, tr__store_value *values);
} tr__store_ops;

/* Each kind of store begins with this. */
struct tr_store {
    tr__object object;
    const tr__store_ops *ops;
    char name[300]; /* "store 10.0.0.1:29500", for messages */
    int timeout_ms; /* of a get without its own */
    char host[256]; /* where it is served; "": in this process */
    int port;       /* of the TCP store; else 0 */
    struct tr__tls_key *key; /* of the job's token; NULL: there is none */
    bool anywhere;  /* ranks that meet here may listen on any address: there is a token, or .insecure was said */
};

/* As tr_store_get, with its own timeout in milliseconds; 0 does not wait. */
tr_status tr__store_get(tr_store *store, const char *key, int timeout_ms, void **value, size_t *bytes);
/* Waits for the values of all keys, in one request where the store can. On TR_TIMEOUT the values that are there come all
 * the same; after another failure none. In a TCP store all together have at most TR__VALUE_MAX bytes. */
tr_status tr__store_gather(tr_store *store, const char *const *keys, int count, int timeout_ms, tr__store_value *values);
void tr__store_values_free(tr__store_value *values, int count);
/* Changes a key, as the functions for programs do. */
tr_status tr__store_change(tr_store *store, const char *key, tr__change *change, int timeout_ms, void **value, size_t *bytes);
/* As tr_store_compare_set, with its own timeout. */
tr_status tr__store_compare_set(tr_store *store, const char *key, const void *expected, size_t expected_bytes,
    const void *desired, size_t desired_bytes, int timeout_ms, void **value, size_t *bytes);
/* As tr_store_tcp_with; but where the program has several groups, those that meet at the same address with the same token
 * share the server. */
tr_store *tr__store_tcp_shared(const tr_store_tcp_options *options);
/* A copy for the caller of what a map holds; *value NULL: nothing. */
tr_status tr__store_copy(const tr_store *store, const tr__map_value *from, void **value, size_t *bytes);
/* The failure of a change to a map, or TR_OK. */
tr_status tr__store_changed(const tr_store *store, const char *key, int status);
/* The failure of a wait that took too long. */
tr_status tr__store_timed_out(const tr_store *store, const char *key, int timeout_ms);

#endif
