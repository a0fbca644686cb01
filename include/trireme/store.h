/*
 * Trireme, stores: a small map of keys to values, through which the ranks of a job meet.
 */
#ifndef TRIREME_STORE_H
#define TRIREME_STORE_H

#include <trireme/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tr_store tr_store;

/* A store inside one process whose ranks are threads: give the same store to every rank. Thread-safe. */
TR_API tr_store *tr_store_memory(void);

typedef struct tr_store_file_options {
    size_t size;
    const char *given;
    const char *path;
    int timeout_ms; /* for every wait; default 300,000 */
} tr_store_file_options;
/* A store in a file, for processes of one user that share a file system with POSIX locks. Opening it clears what an
 * earlier job left there. The last process that closes the store removes the file. */
#define tr_store_file(...) TR__NEW1(tr_store_file, path, __VA_ARGS__)
TR_API tr_store *tr_store_file_with(const tr_store_file_options *options);

typedef struct tr_store_tcp_options {
    size_t size;
    const char *given;
    const char *host;   /* a name or an address; "localhost" is the loopback, 127.0.0.1 before ::1 */
    int port;           /* 0 with .serve: any free port, see tr_store_port() */
    bool serve;         /* this process also runs the server, until the store object is released */
    int listen_fd;      /* with .serve: a listening socket to take over instead of binding (> 0) */
    const char *token;  /* the job's secret: all data go through TLS 1.3 with it; without a token: loopback only,
                           unencrypted */
    int timeout_ms;     /* for connecting and for every wait; default 300,000 */
    bool insecure;      /* allow any address without a token: whoever reaches the store may read and write */
    int64_t max_bytes;  /* with .serve: the most bytes of all keys and values; default 256 MiB. A set above it is
                           TR_UNSUPPORTED */
} tr_store_tcp_options;
#define tr_store_tcp(...) TR__NEW2(tr_store_tcp, host, port, __VA_ARGS__)
TR_API tr_store *tr_store_tcp_with(const tr_store_tcp_options *options);
TR_API int tr_store_port(const tr_store *store);

/* A store made of the functions of another program or framework, for bindings. The functions may be called from any
 * thread, several at once, and report failures with tr_fail(). Values that they return come from malloc(). */
typedef struct tr_store_custom_options {
    size_t size;
    const char *given;
    tr_status (*set)(void *user, const char *key, const void *value, size_t bytes);
    /* Waits up to timeout_ms (0: does not wait) for the key, then TR_TIMEOUT. */
    tr_status (*get)(void *user, const char *key, int timeout_ms, void **value, size_t *bytes);
    tr_status (*add)(void *user, const char *key, int64_t amount, int64_t *sum);
    /* As tr_store_compare_set(). *value gets the value that the key has afterwards; NULL when the key is then absent. */
    tr_status (*compare_set)(void *user, const char *key, const void *expected, size_t expected_bytes, const void *desired,
        size_t desired_bytes, int timeout_ms, void **value, size_t *bytes);
    void *user;
    void (*release)(void *user); /* called when the store is released; NULL: nothing to do */
    const char *name;   /* for messages; default: "custom store" */
    const char *host;   /* where it is served, so that ranks find their own address towards it; NULL: not known */
    const char *token;  /* the job's secret, for encrypted connections between the ranks; NULL: none */
    int timeout_ms;     /* of a get without its own; default 300,000 */
    bool insecure;      /* without a token: ranks that meet here may listen on any address, not loopback only */
    /* As tr_store_delete(); NULL: the store cannot. */
    tr_status (*delete_key)(void *user, const char *key, bool *deleted);
} tr_store_custom_options;
#define tr_store_custom(...) TR__NEW4(tr_store_custom, set, get, add, compare_set, __VA_ARGS__)
TR_API tr_store *tr_store_custom_with(const tr_store_custom_options *options);
/* The same store, with "prefix/" in front of every key. */
TR_API tr_store *tr_store_prefix(tr_store *store, const char *prefix);

/* Keys have up to 1,024 bytes, values up to 16 MiB. All functions are thread-safe. */
TR_API TR_MUST_CHECK tr_status tr_store_set(tr_store *store, const char *key, const void *value, size_t bytes);
/* Waits until key is there, then gives a copy of its value; free it with free(). A NUL follows the value. */
TR_API TR_MUST_CHECK tr_status tr_store_get(tr_store *store, const char *key, void **value, size_t *bytes);
/* Adds amount to the number in key; an absent key counts as 0. *sum gets the sum; sum may be NULL. */
TR_API TR_MUST_CHECK tr_status tr_store_add(tr_store *store, const char *key, int64_t amount, int64_t *sum);
/* Waits at most timeout_ms until key is there; after that TR_TIMEOUT. 0: the store's own limit. */
TR_API TR_MUST_CHECK tr_status tr_store_wait(tr_store *store, const char *key, int timeout_ms);
/* Removes a key and its value. *deleted, unless deleted is NULL, says whether the key was there. TR_UNSUPPORTED for a
 * custom store without .delete_key. */
TR_API TR_MUST_CHECK tr_status tr_store_delete(tr_store *store, const char *key, bool *deleted);
/* Sets key to desired if its value equals expected, or if it is absent and expected is NULL. *value gets the value that
 * it has afterwards. */
TR_API TR_MUST_CHECK tr_status tr_store_compare_set(tr_store *store, const char *key, const void *expected,
    size_t expected_bytes, const void *desired, size_t desired_bytes, void **value, size_t *bytes);

#ifdef __cplusplus
}
#endif

#endif
