/*
 * Trireme, stores: a small map of keys to values that the ranks of a job share, and where they meet.
 */
#ifndef TRIREME_STORE_H
#define TRIREME_STORE_H

#include <trireme/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tr_store tr_store;

/* Inside one process (ranks as threads): the store is then given to every rank. Thread-safe. */
TR_API tr_store *tr_store_memory(void);

typedef struct tr_store_file_options {
    size_t size;
    const char *given;
    const char *path;
    int timeout_ms; /* for every wait; default 300,000 */
} tr_store_file_options;
/* In a file, for processes of one user that share a file system with POSIX locks. What a former job has left there is
 * cleared, and the last that closes the store removes the file. */
#define tr_store_file(...) TR__NEW1(tr_store_file, path, __VA_ARGS__)
TR_API tr_store *tr_store_file_with(const tr_store_file_options *options);

typedef struct tr_store_tcp_options {
    size_t size;
    const char *given;
    const char *host;   /* a name or an address; "localhost" is the loopback, 127.0.0.1 before ::1 */
    int port;           /* 0 with .serve: any free port, see tr_store_port() */
    bool serve;         /* this process also runs the server, until the store object goes */
    int listen_fd;      /* with .serve: a listening socket to take over instead of binding (> 0) */
    const char *token;  /* the job's secret: all goes through TLS 1.3 with it; without one, loopback only, in the clear */
    int timeout_ms;     /* for connecting and for every wait; default 300,000 */
    bool insecure;      /* without a token: on any address all the same; whoever reaches it may read and write */
    int64_t max_bytes;  /* with .serve: that keys and values may take; default 256 MiB. More is TR_UNSUPPORTED to who sets it */
} tr_store_tcp_options;
#define tr_store_tcp(...) TR__NEW2(tr_store_tcp, host, port, __VA_ARGS__)
TR_API tr_store *tr_store_tcp_with(const tr_store_tcp_options *options);
TR_API int tr_store_port(const tr_store *store);

/* Functions of another program's or framework's store, through which ranks are to meet: what a binding passes in. They may be
 * called from any thread, several at once, and make their failures with tr_fail(). Values that they give come from malloc(). */
typedef struct tr_store_custom_options {
    size_t size;
    const char *given;
    tr_status (*set)(void *user, const char *key, const void *value, size_t bytes);
    /* Waits up to timeout_ms (0: does not wait) for the key, then TR_TIMEOUT. */
    tr_status (*get)(void *user, const char *key, int timeout_ms, void **value, size_t *bytes);
    tr_status (*add)(void *user, const char *key, int64_t amount, int64_t *sum);
    /* As tr_store_compare_set(). *value stays NULL where the key is absent and stays so; else the value that it has now. */
    tr_status (*compare_set)(void *user, const char *key, const void *expected, size_t expected_bytes, const void *desired,
        size_t desired_bytes, int timeout_ms, void **value, size_t *bytes);
    void *user;
    void (*release)(void *user); /* when the store goes; NULL: nothing is to be done */
    const char *name;   /* for messages; default: "custom store" */
    const char *host;   /* where it is served, so that ranks find their own address towards it; NULL: not known */
    const char *token;  /* the job's secret, for connections between the ranks that are encrypted; NULL: none */
    int timeout_ms;     /* of a get without its own; default 300,000 */
    bool insecure;      /* without a token: ranks that meet here may listen on any address, not loopback only */
    /* As tr_store_delete(); NULL: the store cannot. */
    tr_status (*delete_key)(void *user, const char *key, bool *deleted);
} tr_store_custom_options;
#define tr_store_custom(...) TR__NEW4(tr_store_custom, set, get, add, compare_set, __VA_ARGS__)
TR_API tr_store *tr_store_custom_with(const tr_store_custom_options *options);
/* The same store with every key under "prefix/". */
TR_API tr_store *tr_store_prefix(tr_store *store, const char *prefix);

/* Keys to 1,024 bytes, values to 16 MiB. Thread-safe. */
TR_API TR_MUST_CHECK tr_status tr_store_set(tr_store *store, const char *key, const void *value, size_t bytes);
/* Waits until key is there, then gives a copy of its value, to be freed with free(). A NUL follows it. */
TR_API TR_MUST_CHECK tr_status tr_store_get(tr_store *store, const char *key, void **value, size_t *bytes);
TR_API TR_MUST_CHECK tr_status tr_store_add(tr_store *store, const char *key, int64_t amount, int64_t *sum);
TR_API TR_MUST_CHECK tr_status tr_store_wait(tr_store *store, const char *key, int timeout_ms);
/* Takes a key and its value out; *deleted, unless deleted is NULL, tells whether it was there. TR_UNSUPPORTED by a custom store
 * without .delete_key. */
TR_API TR_MUST_CHECK tr_status tr_store_delete(tr_store *store, const char *key, bool *deleted);
/* Sets key to desired if it equals expected (or is absent and expected is NULL); value gets what it is now. */
TR_API TR_MUST_CHECK tr_status tr_store_compare_set(tr_store *store, const char *key, const void *expected,
    size_t expected_bytes, const void *desired, size_t desired_bytes, void **value, size_t *bytes);

#ifdef __cplusplus
}
#endif

#endif
