/*
 * Trireme, communication: stores, process groups, collectives. Works on plain memory, so it is usable alone, as MPI is.
 *
 * All ranks of a group make the same calls in the same order. Every native message carries its signature, so calls that
 * differ are an error (TR_MISMATCH) on every rank that names the ranks and both calls; a dead rank is an error
 * (TR_PEER) on every survivor that names it. After either the group is broken and says so to every later call.
 */
#ifndef TRIREME_COMM_H
#define TRIREME_COMM_H

#include <trireme/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Store: a small key-value map that the ranks of a job share -------------------------------------------------- */

typedef struct tr_store tr_store;

/* Inside one process (ranks as threads): the store is then given to every rank. Thread-safe. */
TR_API tr_store *tr_store_memory(void);

typedef struct tr_store_tcp_options {
    size_t size;
    const char *host;
    int port;           /* 0 with .serve: any free port, see tr_store_port() */
    bool serve;         /* this process also runs the server, until the store object goes */
    int listen_fd;      /* with .serve: a listening socket to take over instead of binding (> 0) */
    const char *token;  /* the job's secret; without one the server binds to loopback only */
    int timeout_ms;     /* for connecting and for every wait; 0: 300,000 */
} tr_store_tcp_options;
#define tr_store_tcp(...) TR__NEW2(tr_store_tcp, host, port, __VA_ARGS__)
TR_API tr_store *tr_store_tcp_with(const tr_store_tcp_options *options);
TR_API int tr_store_port(const tr_store *store);
/* The same store with every key under "prefix/". */
TR_API tr_store *tr_store_prefix(tr_store *store, const char *prefix);

/* Keys to 1,024 bytes, values to 16 MiB. Thread-safe. */
TR_API TR_MUST_CHECK tr_status tr_store_set(tr_store *store, const char *key, const void *value, size_t bytes);
/* Waits until key is there, then gives a copy of its value, to be freed with free(). A NUL follows it. */
TR_API TR_MUST_CHECK tr_status tr_store_get(tr_store *store, const char *key, void **value, size_t *bytes);
TR_API TR_MUST_CHECK tr_status tr_store_add(tr_store *store, const char *key, int64_t amount, int64_t *sum);
TR_API TR_MUST_CHECK tr_status tr_store_wait(tr_store *store, const char *key, int timeout_ms);
/* Sets key to desired if it equals expected (or is absent and expected is NULL); value gets what it is now. */
TR_API TR_MUST_CHECK tr_status tr_store_compare_set(tr_store *store, const char *key, const void *expected,
    size_t expected_bytes, const void *desired, size_t desired_bytes, void **value, size_t *bytes);

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

typedef struct tr_group tr_group;

typedef struct tr_join_options {
    size_t size;
    const char *init;      /* NULL or "env://": RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT (one rank when
                              they are absent); "tcp://host:port" with .rank and .world_size; rank 0 serves */
    int rank, world_size;
    tr_store *store;       /* instead of init: ranks meet here, with .rank and .world_size */
    const char *token;     /* the job's secret; NULL: TRIREME_TOKEN from the environment */
    const char *backend;   /* NULL: "native" */
    const char *name;      /* groups side by side on one store have different names; NULL: "world" */
    int timeout_ms;        /* for joining and for each collective; 0: 600,000 */
} tr_join_options;
/* Joins the job and returns its world group. A group can be left and joined again. A world of one opens no socket, and
 * its collectives only copy. docs/communication.md says how ranks find and trust each other. */
#define tr_join(...) TR__NEW0(tr_join, __VA_ARGS__)
TR_API tr_group *tr_join_with(const tr_join_options *options);
/* Waits for what is under way, says goodbye and closes. The group stays an object until its scope goes; later calls on
 * it fail. A process that ends without it has died, as far as the others can see. */
TR_API TR_MUST_CHECK tr_status tr_leave(tr_group *group);

TR_API int tr_rank(const tr_group *group);        /* 0 in error */
TR_API int tr_world_size(const tr_group *group);  /* 1 in error */
TR_API int tr_local_rank(const tr_group *group);
/* cuda:LOCAL_RANK when there is one, else cpu:0. */
TR_API tr_device tr_group_device(const tr_group *group);

/* ---- Collectives ------------------------------------------------------------------------------------------------- */

typedef enum tr_collective_kind { TR_ALL_REDUCE, TR_BROADCAST, TR_BARRIER, TR_COLLECTIVE_COUNT } tr_collective_kind;

/* X(NAME, "text") */
#define TR_REDUCE_OP_MAP(X) X(SUM, "sum") X(AVG, "avg") X(MIN, "min") X(MAX, "max") X(PROD, "prod")
typedef enum tr_reduce_op {
#define TR__REDUCE_NAME(name, text) TR_##name,
    TR_REDUCE_OP_MAP(TR__REDUCE_NAME)
#undef TR__REDUCE_NAME
    TR_REDUCE_OP_COUNT
} tr_reduce_op;

/* A collective is a descriptor; a backend turns it into work. All ranks get the same bits: each element is folded in
 * the order of the ranks. f16 and bf16 are folded in f32; integers wrap, and their average rounds towards zero; a
 * NaN anywhere gives NaN, also for MIN and MAX. bool: SUM and MAX are "any", PROD and MIN are "all", AVG does not
 * exist. After a failure the contents of the output are undefined. */
typedef struct tr_collective {
    size_t size;
    tr_collective_kind kind;
    const void *in;       /* may equal out */
    void *out;            /* memory from tr_shared_alloc() (or a .shared tensor) is reduced in place, without a copy */
    int64_t count;        /* elements */
    tr_dtype dtype;
    tr_reduce_op op;
    int root;
    int timeout_ms;       /* 0: the group's */
    const char *file;     /* where the caller is, for messages */
    int line;
} tr_collective;

/* Under way or done. The buffers belong to it until tr_wait() has returned. */
typedef struct tr_work tr_work;

/* Starts a collective; the work runs in the group's own thread, in the order of posting. Never blocks on a peer. */
TR_API tr_work *tr_post(tr_group *group, const tr_collective *collective);
/* Waits until the work is done and gives its status; may be called again. */
TR_API TR_MUST_CHECK tr_status tr_wait(tr_work *work);
/* Done, well or badly? Never blocks. */
TR_API bool tr_work_done(tr_work *work);
/* Runs a collective in the calling thread (after what was posted before it). */
TR_API TR_MUST_CHECK tr_status tr_run_collective(tr_group *group, const tr_collective *collective);

/* tr_all_reduce(group, buffer, count, .dtype = TR_F32, .op = TR_AVG): in place, by default the sum of f32. */
#define tr_all_reduce(group, ...) tr_run_collective((group), TR__COLLECTIVE(TR_ALL_REDUCE, __VA_ARGS__))
#define tr_broadcast(group, ...) tr_run_collective((group), TR__COLLECTIVE(TR_BROADCAST, __VA_ARGS__))
#define tr_all_reduce_async(group, ...) tr_post((group), TR__COLLECTIVE(TR_ALL_REDUCE, __VA_ARGS__))
#define tr_broadcast_async(group, ...) tr_post((group), TR__COLLECTIVE(TR_BROADCAST, __VA_ARGS__))
#define tr_barrier(group) tr_run_collective((group), TR__COLLECTIVE(TR_BARRIER, NULL, 0))
#ifndef __cplusplus
#define TR__COLLECTIVE(kind_, ...) \
    (&(tr_collective){                                                                                          \
        .size = sizeof(tr_collective), .kind = (kind_), .file = __FILE__, .line = __LINE__, .out = __VA_ARGS__})
#else
#define TR__COLLECTIVE(kind_, ...) \
    tr__collective(TR__OPTIONS2(tr_collective, out, count, __VA_ARGS__), kind_, __FILE__, __LINE__)
#endif

#ifdef __cplusplus
} /* extern "C" */
inline const tr_collective *tr__collective(const tr_collective *given, tr_collective_kind kind, const char *file,
    int line)
{
    tr_collective *c = const_cast<tr_collective *>(given); /* a temporary of the calling expression */
    c->kind = kind;
    c->file = file;
    c->line = line;
    return c;
}
#endif

#endif
