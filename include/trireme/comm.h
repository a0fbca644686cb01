/*
 * Trireme, communication: process groups, collectives. Works on plain memory, so it is usable alone, as MPI is.
 *
 * All ranks of a group make the same calls in the same order. Every native message carries the signature of its call.
 * When calls differ, every rank gets TR_MISMATCH; the message names the ranks and both calls. When a rank fails, dies
 * or exits early, every other rank gets TR_PEER; the message names that rank. After either error the group is broken,
 * and every later call on it says so.
 */
#ifndef TRIREME_COMM_H
#define TRIREME_COMM_H

#include <trireme/store.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

typedef struct tr_group tr_group;

typedef struct tr_join_options {
    size_t size;
    const char *given;
    const char *init;      /* NULL or "env://": RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT of the
                              environment (one rank when they are absent); .rank and .world_size, when given, replace
                              the first two. "tcp://host:port" with .rank and .world_size: rank 0 serves the store
                              there. "file://path" with .rank and .world_size: a file that all ranks can open */
    int rank, world_size;
    tr_store *store;       /* instead of .init: the store where ranks meet, with .rank and .world_size */
    const char *token;     /* the job's secret; NULL: TRIREME_TOKEN from the environment */
    const char *backend;   /* NULL: "native"; "mpi", "nccl" */
    const char *name;      /* groups that use one store at the same time have different names; NULL: "world" */
    int timeout_ms;        /* for joining and for each collective; default: TRIREME_TIMEOUT (in seconds), else 600,000 */
    bool insecure;         /* without a token: allow any address, not only loopback, as in tr_store_tcp_options */
    const char *transport; /* native: "shm", "tcp"; NULL: shared memory within a host, TCP between hosts */
    const char *address;   /* TCP: the IP address or network interface where the others reach this rank; NULL:
                              TRIREME_ADDRESS, else the one that reaches the store. Without a token (or .insecure):
                              loopback only */
    const char *algorithms; /* TCP: rows that come before the built-in table of algorithms, as
                              "all_reduce ranks 2-16 bytes 0-1M ring; …", or "@FILE"; NULL: TRIREME_ALGORITHMS.
                              The same for all ranks */
    const char *flight_dir; /* when a collective fails, the latest calls are written to files in this folder; NULL:
                              TRIREME_FLIGHT_DIR, else nowhere. docs/debugging.md tells what is in them */
    int report_ms;         /* when a collective has waited this long, the log function is told, with the missing ranks;
                              default 10,000 */
    bool check;            /* compare the ranks' calls before each collective (the native backend always does); or
                              TRIREME_CHECK=1 */
    bool encrypt;          /* TCP: connections between the ranks use TLS 1.3 with the job's token, which is then
                              required; or TRIREME_ENCRYPT=1. The same for all ranks */
    int64_t unexpected_bytes; /* native: when so many bytes of messages wait at another rank, which has not asked for
                                 them, a send to that rank waits until it receives; default 64 MiB. Each message counts
                                 256 bytes more; 4 MiB more may be on their way. Each group within the group has this
                                 limit for itself */
    tr_device device;      /* nccl: the GPU that carries this rank's data, also in groups within the group; default:
                              cuda:LOCAL_RANK, counted from 0 again when there are fewer GPUs. Buffers on the rank's
                              other GPUs and in host memory are copied to it and back */
} tr_join_options;
/* Joins the job and returns its world group when all ranks are there. After .timeout_ms it returns a group in error,
 * whose message names the missing ranks. A group can be left and joined again. A world of one rank opens no socket, and
 * its collectives only copy. docs/communication.md says how ranks find and trust each other. */
#define tr_join(...) TR__NEW0(tr_join, __VA_ARGS__)
TR_API tr_group *tr_join_with(const tr_join_options *options);
/* What the launcher of this process (torchrun, Trireme's own, mpirun or srun) says in the environment: tr_join() will
 * use this rank. False without a launcher, with a world of one. A value that is absent, or no number, is 0 for the rank
 * and 1 for the others. Any pointer may be NULL. */
TR_API bool tr_launched(int *rank, int *world_size, int *local_world_size);
/* Waits for work under way, tells the other ranks, and closes the group; it works after a failure, too. No other thread
 * may be in a call on the group. The object stays until its scope ends; later calls on it fail (TR_STATE). When a
 * process ends without this call, the other ranks take it for dead. */
TR_API TR_MUST_CHECK tr_status tr_leave(tr_group *group);
/* Breaks the group, from any thread: work that is under way or posted here fails with TR_CANCELLED and the reason, and
 * the other ranks get TR_PEER with the reason. It does not wait. Leave the group afterwards as any other. On a group
 * that was left, and has no work under way, it does nothing. */
TR_API void tr_abort(tr_group *group, const char *reason);

/* Groups within a group. Collective: all ranks of `group` make the call, in the same order as its other calls. The
 * ranks of the new group get it; the others get NULL. The new group uses the parent's backend and time limits, works at
 * the same time as the parent and other groups, and needs a tr_leave() of its own. tr_local_rank() is the same in it. */
/* Ranks with the same color form a group, ordered by key, then by their rank. A rank with a negative color is in none. */
#define tr_group_split(group, color, key) tr_group_split_at((group), (color), (key), TR__FILE, TR__LINE)
TR_API tr_group *tr_group_split_at(tr_group *group, int color, int key, const char *file, int line);
/* A group of the listed ranks; the list is the same on all ranks. ranks[i] becomes rank i. */
#define tr_group_new(group, ...) tr_group_new_at((group), __VA_ARGS__, TR__FILE, TR__LINE)
TR_API tr_group *tr_group_new_at(tr_group *group, const int *ranks, int count, const char *file, int line);

TR_API int tr_rank(const tr_group *group);        /* 0 in error */
TR_API int tr_world_size(const tr_group *group);  /* 1 in error */
TR_API int tr_local_rank(const tr_group *group);
/* cuda:LOCAL_RANK when there is one, else cpu:0. */
TR_API tr_device tr_group_device(const tr_group *group);
/* The device on which a program was told to run this rank. "cuda:1": as tr_device_parse(). "cuda", a kind without a
 * number: the ranks of a host take its devices in turn. "cpu": cpu:0. group NULL: as for rank 0. */
TR_API TR_MUST_CHECK tr_status tr_group_device_named(const tr_group *group, const char *text, tr_device *out);

/* ---- Collectives ------------------------------------------------------------------------------------------------- */

/* X(NAME, "text"). in: what a rank gives; out: what it gets; W: the world size. In the kinds with _V the ranks give
 * different amounts, which the arrays contain.
 *                   in              out              who gives, who gets
 *   ALL_REDUCE      count           count            all, all
 *   REDUCE          count           count            all, the root
 *   BROADCAST       count           count            the root, all
 *   ALL_GATHER      count           W * count        all, all
 *   GATHER          count           W * count        all, the root
 *   SCATTER         W * count       count            the root, all
 *   REDUCE_SCATTER  W * count       count            all, all: rank r gets block r, reduced
 *   ALL_TO_ALL      W * count       W * count        all, all: block b of in goes to rank b, block a of out is from a
 *   ALL_GATHER_V    count           out_counts       count is out_counts[rank]; all ranks give the same out_counts
 *   GATHER_V        count           out_counts       the arrays are needed at the root only
 *   SCATTER_V       in_counts       count            the arrays are needed at the root only
 *   ALL_TO_ALL_V    in_counts       out_counts       what a sends to b is what b expects from a
 *   SEND, RECV      count           count            one rank, one rank */
#define TR_COLLECTIVE_MAP(X)                                                                                \
    X(ALL_REDUCE, "all_reduce") X(REDUCE, "reduce") X(BROADCAST, "broadcast") X(ALL_GATHER, "all_gather")   \
    X(GATHER, "gather") X(SCATTER, "scatter") X(REDUCE_SCATTER, "reduce_scatter")                           \
    X(ALL_TO_ALL, "all_to_all") X(ALL_GATHER_V, "all_gather_v") X(GATHER_V, "gather_v")                     \
    X(SCATTER_V, "scatter_v") X(ALL_TO_ALL_V, "all_to_all_v") X(SEND, "send") X(RECV, "recv")               \
    X(BARRIER, "barrier")
typedef enum tr_collective_kind {
#define TR__COLLECTIVE_NAME(name, text) TR_##name,
    TR_COLLECTIVE_MAP(TR__COLLECTIVE_NAME)
#undef TR__COLLECTIVE_NAME
    TR_COLLECTIVE_COUNT
} tr_collective_kind;

/* X(NAME, "text"). The last three are bitwise, for integers and bool. */
#define TR_REDUCE_OP_MAP(X)                                                     \
    X(SUM, "sum") X(AVG, "avg") X(MIN, "min") X(MAX, "max") X(PROD, "prod")     \
    X(BAND, "band") X(BOR, "bor") X(BXOR, "bxor")
typedef enum tr_reduce_op {
#define TR__REDUCE_NAME(name, text) TR_##name,
    TR_REDUCE_OP_MAP(TR__REDUCE_NAME)
#undef TR__REDUCE_NAME
    TR_REDUCE_OP_COUNT
} tr_reduce_op;

/* For .peer of a receive: any other rank. */
typedef enum tr_any_peer { TR_ANY_SOURCE = -1 } tr_any_peer;

struct tr_device_stream;

/* A collective is a descriptor; a backend turns it into work. All ranks get the same bits. Elements are reduced in the
 * order of the ranks; between hosts in an order that depends on the algorithm, never on timing; over MPI and NCCL in
 * theirs. f16 and bf16 are reduced in f32. Integers wrap around, and their average rounds towards zero. A NaN anywhere
 * gives NaN, also for MIN and MAX. For bool, SUM and MAX mean "any", PROD and MIN mean "all", and AVG does not exist.
 * After a failure the contents of the output are undefined.
 *
 * In place: for all_reduce, reduce, broadcast and all_to_all, .in may be NULL or equal .out. For all_gather, gather and
 * their forms with _V, .in may be NULL or the rank's own block of .out. For reduce_scatter, and for scatter at the
 * root, .out may be the rank's own block of .in; for scatter at the root a NULL .out means that block. Other overlaps
 * are errors. A rank that gives nothing needs no .in, and a rank that gets nothing needs no .out. Memory from
 * tr_shared_alloc() (or a .shared tensor) moves without a copy in between.
 *
 * Buffers on a device: .device says where both buffers are. NCCL takes buffers on cuda. For every other backend and
 * device the group stages the data in pinned host memory, which costs two copies. The call uses the data that .stream
 * has written when the call is made. When the work is done, everything that is enqueued later sees the result. */
typedef struct tr_collective {
    size_t size;
    tr_collective_kind kind;
    void *out;
    int64_t count;        /* elements, see the table above */
    const void *in;
    tr_dtype dtype;
    tr_reduce_op op;
    int root;
    int peer, tag;        /* of a send or recv: the other rank, for a recv also TR_ANY_SOURCE; and a number from 0 on,
                             the same on both ranks */
    /* [world_size], in elements; read before the call returns. Without offsets the blocks follow each other. */
    const int64_t *in_counts, *in_offsets, *out_counts, *out_offsets;
    int timeout_ms;       /* 0: the group's */
    const char *file;     /* where the caller is, for messages */
    int line;
    int in_element, out_element; /* the C types behind in and out, as far as a macro can tell; they must be .dtype's; 0:
                                    not known */
    tr_device device;     /* where both buffers are; cpu by default */
    struct tr_device_stream *stream; /* the device's stream (trireme/device.h) that writes .in; NULL: its default stream */
    int *source;          /* recv: gets the rank that sent the message; must live as long as .out; may be NULL */
} tr_collective;

/* Work that is under way or done. The buffers belong to it until tr_wait() has returned. It may outlive its group, and
 * may be released before it is done. Any thread may wait for it, several at once. */
typedef struct tr_work tr_work;

/* Threads: several threads may make calls on one group, as long as all ranks see the calls in one order. The descriptor
 * and its arrays are copied. Wrong arguments break nothing (TR_INVALID, TR_DTYPE, TR_UNSUPPORTED). A failure of the
 * collective itself breaks the group: TR_MISMATCH, TR_TIMEOUT or TR_FORMAT on all ranks, TR_PEER on those that lose a
 * rank. A rank that fails by itself (TR_NO_MEMORY, TR_IO, TR_CANCELLED) keeps its own status, and the others get
 * TR_PEER with its message. */
/* Starts a collective; the work runs in the group's own thread, in the order of posting. Never blocks on a peer. */
TR_API tr_work *tr_post(tr_group *group, const tr_collective *collective);
/* Waits until the work is done and returns its status. It may be called again. NULL counts as done. */
TR_API TR_MUST_CHECK tr_status tr_wait(tr_work *work);
/* Waits at most timeout_ms; after that TR_TIMEOUT. The work goes on, and can be waited for again. */
TR_API TR_MUST_CHECK tr_status tr_wait_for(tr_work *work, int timeout_ms);
/* Whether the work has ended, well or badly. Never blocks. */
TR_API bool tr_work_done(tr_work *work);
/* Runs a collective to its end, after everything that was posted before it. It runs in the calling thread when nothing
 * was posted. */
TR_API TR_MUST_CHECK tr_status tr_run_collective(tr_group *group, const tr_collective *collective);

/* Posts several collectives as one work, which is done when all are; its status is the first failure. Nothing starts
 * unless all entries are valid. TR_COLLECTIVE(TR_SEND, .in = x, .count = n, .peer = 1) makes an entry. */
TR_API tr_work *tr_post_list(tr_group *group, const tr_collective *list, int count);
TR_API TR_MUST_CHECK tr_status tr_run_list(tr_group *group, const tr_collective *list, int count);

/* A send is done when its buffer may be used again. Short messages are buffered (not over NCCL), longer ones wait for
 * their receive; over TCP all are buffered. Beyond .unexpected_bytes of tr_join() to one rank, every send to it waits
 * for its receive. A receive gets the message with its tag, whatever other messages came before it. Messages between
 * two ranks with the same tag are received in the order of the sends. Sends and receives are not ordered with other
 * collectives and do not wait for them. Size and type must agree; otherwise the group is broken (TR_MISMATCH).
 *
 * tr_recv(group, buffer, count, .peer = TR_ANY_SOURCE, .source = &rank) gets a message with its tag from any rank: the
 * one that has been here longest, else the next one to come. A message goes to the receive that was posted first, of
 * those for its rank and those for any rank. When all other ranks have left and no message is here, it fails (TR_PEER).
 * Native only; other backends give TR_UNSUPPORTED. */

/* Byte strings whose lengths the other ranks do not know. tr_all_gather_bytes(group, data, bytes, &all, sizes): all
 * gets the bytes of every rank, one after the other, and sizes ([world_size], int64_t) their lengths.
 * tr_broadcast_bytes(group, &data, &bytes, root): sends the root's *data of *bytes bytes; the root keeps its memory,
 * and the others get a copy. Free the memory that these allocate with free(); a NUL follows the bytes. Each is two
 * collectives, in the order of the calls. */
#define tr_all_gather_bytes(group, data, bytes, all, sizes) \
    tr_all_gather_bytes_at((group), (data), (bytes), (all), (sizes), TR__FILE, TR__LINE)
#define tr_broadcast_bytes(group, data, bytes, root) \
    tr_broadcast_bytes_at((group), (data), (bytes), (root), TR__FILE, TR__LINE)
TR_API TR_MUST_CHECK tr_status tr_all_gather_bytes_at(tr_group *group, const void *data, size_t bytes, void **all,
    int64_t *sizes, const char *file, int line);
TR_API TR_MUST_CHECK tr_status tr_broadcast_bytes_at(tr_group *group, void **data, size_t *bytes, int root,
    const char *file, int line);

/* Checks that a value is the same on all ranks: tr_agree(group, "lr", 1e-3), tr_agree(group, "folds", 5),
 * tr_agree(group, "preset", "nano"). tr_agree_bytes() takes any bytes, up to 1 MiB. When the value differs, every rank
 * gets TR_MISMATCH, and the message shows each value with its ranks: "lr is 0.001 on ranks 0 and 1, 0.01 on rank 2".
 * A bad value on one rank is TR_PEER on the others. The group can still be used. When the value is the same, the cost is
 * one collective of eight bytes. Use it for values that are set once, not in every step. */
TR_API TR_MUST_CHECK tr_status tr_agree_text(tr_group *group, const char *name, const char *value);
TR_API TR_MUST_CHECK tr_status tr_agree_integer(tr_group *group, const char *name, int64_t value);
TR_API TR_MUST_CHECK tr_status tr_agree_number(tr_group *group, const char *name, double value);
TR_API TR_MUST_CHECK tr_status tr_agree_bytes(tr_group *group, const char *name, const void *value, size_t bytes);
#ifndef __cplusplus
#define tr_agree(group, name, value)                                                                                   \
    _Generic((value), char *: tr_agree_text, const char *: tr_agree_text, float: tr_agree_number, double: tr_agree_number, \
        default: tr_agree_integer)((group), (name), (value))
#endif

/* tr_all_reduce(group, buffer, count, .dtype = TR_F32, .op = TR_AVG): in place; the default is the sum of f32.
 * tr_all_gather(group, in, out, count, .dtype = TR_I64). tr_all_to_all_v(group, in, out, .in_counts = a, .out_counts =
 * b). tr_send(group, buffer, count, .peer = 1). Functions with _async start the work and return it. */
#define tr_all_reduce(group, ...) tr_run_collective((group), TR__IN_PLACE(TR_ALL_REDUCE, __VA_ARGS__))
#define tr_all_reduce_async(group, ...) tr_post((group), TR__IN_PLACE(TR_ALL_REDUCE, __VA_ARGS__))
#define tr_reduce(group, ...) tr_run_collective((group), TR__IN_PLACE(TR_REDUCE, __VA_ARGS__))
#define tr_reduce_async(group, ...) tr_post((group), TR__IN_PLACE(TR_REDUCE, __VA_ARGS__))
#define tr_broadcast(group, ...) tr_run_collective((group), TR__IN_PLACE(TR_BROADCAST, __VA_ARGS__))
#define tr_broadcast_async(group, ...) tr_post((group), TR__IN_PLACE(TR_BROADCAST, __VA_ARGS__))
#define tr_all_gather(group, ...) tr_run_collective((group), TR__IN_OUT(TR_ALL_GATHER, __VA_ARGS__))
#define tr_all_gather_async(group, ...) tr_post((group), TR__IN_OUT(TR_ALL_GATHER, __VA_ARGS__))
#define tr_gather(group, ...) tr_run_collective((group), TR__IN_OUT(TR_GATHER, __VA_ARGS__))
#define tr_gather_async(group, ...) tr_post((group), TR__IN_OUT(TR_GATHER, __VA_ARGS__))
#define tr_scatter(group, ...) tr_run_collective((group), TR__IN_OUT(TR_SCATTER, __VA_ARGS__))
#define tr_scatter_async(group, ...) tr_post((group), TR__IN_OUT(TR_SCATTER, __VA_ARGS__))
#define tr_reduce_scatter(group, ...) tr_run_collective((group), TR__IN_OUT(TR_REDUCE_SCATTER, __VA_ARGS__))
#define tr_reduce_scatter_async(group, ...) tr_post((group), TR__IN_OUT(TR_REDUCE_SCATTER, __VA_ARGS__))
#define tr_all_to_all(group, ...) tr_run_collective((group), TR__IN_OUT(TR_ALL_TO_ALL, __VA_ARGS__))
#define tr_all_to_all_async(group, ...) tr_post((group), TR__IN_OUT(TR_ALL_TO_ALL, __VA_ARGS__))
#define tr_all_gather_v(group, ...) tr_run_collective((group), TR__IN_OUT(TR_ALL_GATHER_V, __VA_ARGS__))
#define tr_all_gather_v_async(group, ...) tr_post((group), TR__IN_OUT(TR_ALL_GATHER_V, __VA_ARGS__))
#define tr_gather_v(group, ...) tr_run_collective((group), TR__IN_OUT(TR_GATHER_V, __VA_ARGS__))
#define tr_gather_v_async(group, ...) tr_post((group), TR__IN_OUT(TR_GATHER_V, __VA_ARGS__))
#define tr_scatter_v(group, ...) tr_run_collective((group), TR__IN_OUT(TR_SCATTER_V, __VA_ARGS__))
#define tr_scatter_v_async(group, ...) tr_post((group), TR__IN_OUT(TR_SCATTER_V, __VA_ARGS__))
#define tr_all_to_all_v(group, in, out, ...) \
    tr_run_collective((group), TR__IN_OUT(TR_ALL_TO_ALL_V, in, out, 0, __VA_ARGS__))
#define tr_all_to_all_v_async(group, in, out, ...) \
    tr_post((group), TR__IN_OUT(TR_ALL_TO_ALL_V, in, out, 0, __VA_ARGS__))
#define tr_send(group, in, ...) tr_run_collective((group), TR__IN_OUT(TR_SEND, in, NULL, __VA_ARGS__))
#define tr_send_async(group, in, ...) tr_post((group), TR__IN_OUT(TR_SEND, in, NULL, __VA_ARGS__))
#define tr_recv(group, ...) tr_run_collective((group), TR__IN_PLACE(TR_RECV, __VA_ARGS__))
#define tr_recv_async(group, ...) tr_post((group), TR__IN_PLACE(TR_RECV, __VA_ARGS__))
#define tr_barrier(group) tr_run_collective((group), TR__IN_PLACE(TR_BARRIER, NULL, 0))
#define tr_barrier_async(group) tr_post((group), TR__IN_PLACE(TR_BARRIER, NULL, 0))
#ifndef __cplusplus
#define TR_COLLECTIVE(kind_, ...) \
    ((tr_collective){.size = sizeof(tr_collective), .kind = (kind_), .file = TR__FILE, .line = TR__LINE, __VA_ARGS__})
#define TR__IN_PLACE(kind_, ...)                                                                                  \
    (&(tr_collective){.size = sizeof(tr_collective), .kind = (kind_), .file = TR__FILE, .line = TR__LINE,        \
        .out_element = TR__ELEMENT(TR__FIRST(__VA_ARGS__, )), .out = __VA_ARGS__})
#define TR__IN_OUT(kind_, in_, ...)                                                                                \
    (&(tr_collective){.size = sizeof(tr_collective), .kind = (kind_), .file = TR__FILE, .line = TR__LINE,         \
        .in_element = TR__ELEMENT(in_), .in = (in_), .out_element = TR__ELEMENT(TR__FIRST(__VA_ARGS__, )), \
        .out = __VA_ARGS__})
#else
#define TR_COLLECTIVE(kind_, ...) \
    (*tr__collective(TR__COLLECTIVE(__VA_ARGS__), kind_, 0, 0, TR__FILE, TR__LINE))
#define TR__IN_PLACE(kind_, out_, count_, ...)                                                                       \
    tr__collective(TR__COLLECTIVE(.out = out_, .count = count_ __VA_OPT__(, ) __VA_ARGS__), kind_, 0, tr__element(out_), \
        TR__FILE, TR__LINE)
#define TR__IN_OUT(kind_, in_, out_, count_, ...)                                                                   \
    tr__collective(TR__COLLECTIVE(.out = out_, .count = count_, .in = in_ __VA_OPT__(, ) __VA_ARGS__), kind_,      \
        tr__element(in_), tr__element(out_), TR__FILE, TR__LINE)
#define TR__COLLECTIVE(...) TR__LITERAL(tr_collective, .size = sizeof(tr_collective) __VA_OPT__(, ) __VA_ARGS__)
#endif

/* ---- Algorithms between hosts ------------------------------------------------------------------------------------- */

/* The table that chooses the algorithms, as text (docs/communication.md): first the rows of `first` (NULL: those of
 * TRIREME_ALGORITHMS; "@FILE": those of a file), then the built-in rows. world_size: only the rows for so many ranks;
 * 0: all rows. The result can be given as `first`; free it with free(). NULL when `first` is wrong. */
TR_API char *tr_algorithms(const char *first, int world_size);

/* What each rank does in a collective between hosts, step by step: pure functions, which send nothing. */
typedef struct tr_schedule {
    tr_collective_kind kind;
    int algorithm;
    int rank, world_size, root;
    int64_t count;   /* elements, as in tr_collective */
    int64_t segment; /* the most elements that pass through scratch memory at once; 0: all */
} tr_schedule;
/* Fills in the schedule of rank 0. bytes is what a rank gives (scatter, reduce_scatter and all_to_all: for each rank);
 * an element is one byte. algorithm: "ring", …; NULL: the one that the table of tr_algorithms(NULL, 0) chooses.
 * TR_UNSUPPORTED for send, recv and kinds with _V; TR_NOT_FOUND when the kind has no such algorithm. */
TR_API TR_MUST_CHECK tr_status tr_schedule_find(tr_collective_kind kind, const char *algorithm, int world_size,
    int64_t bytes, tr_schedule *schedule);

/* A part of the buffer in (0), out (1) or scratch (2), in elements. */
typedef struct tr_schedule_part {
    int buffer;
    int64_t begin, end;
} tr_schedule_part;
typedef enum tr_schedule_action {
    TR_SCHEDULE_EXCHANGE, /* sends `send` to rank `to`, and receives into `receive` from rank `from`; -1: no rank */
    TR_SCHEDULE_COPY,     /* copies `own` to `receive` */
    TR_SCHEDULE_FINISH,   /* `receive` is reduced over all ranks: an average is divided */
    TR_SCHEDULE_FOLD,     /* reduces `own` and the other ranks' parts into `receive`; the i-th is `send` moved by i * stride */
} tr_schedule_action;
typedef struct tr_schedule_step {
    tr_schedule_action action;
    int to, from;
    tr_schedule_part send, receive, own;
    bool folds;           /* what is received is reduced with `own` */
    int64_t stride;
} tr_schedule_step;
TR_API int64_t tr_schedule_steps(const tr_schedule *schedule);
TR_API tr_schedule_step tr_schedule_step_at(const tr_schedule *schedule, int64_t index); /* 0 to steps - 1 */

/* ---- Looking at running jobs ------------------------------------------------------------------------------------- */

/* Explains the jobs of this user on this host, as text: who is in which call since when, who waits for whom, and who is
 * the likely culprit. Free *text with free(). Groups of several ranks keep a record of their calls that other processes
 * can read: so ranks that hang or are stopped need not answer. job: a job's name (TRIREME_JOB), or the process id of
 * its launcher or of a rank; NULL: all jobs. TR_NOT_FOUND when there is none. `trireme why` prints this. */
TR_API TR_MUST_CHECK tr_status tr_job_explain(const char *job, char **text);

#ifdef __cplusplus
} /* extern "C" */
inline const tr_collective *tr__collective(const tr_collective *given, tr_collective_kind kind, int in_element,
    int out_element, const char *file, int line)
{
    tr_collective *c = const_cast<tr_collective *>(given); /* a temporary of the calling expression */
    c->kind = kind;
    c->in_element = in_element;
    c->out_element = out_element;
    c->file = file;
    c->line = line;
    return c;
}
inline tr_status tr_agree(tr_group *group, const char *name, const char *value) { return tr_agree_text(group, name, value); }
inline tr_status tr_agree(tr_group *group, const char *name, char *value) { return tr_agree_text(group, name, value); }
inline tr_status tr_agree(tr_group *group, const char *name, double value) { return tr_agree_number(group, name, value); }
inline tr_status tr_agree(tr_group *group, const char *name, float value) { return tr_agree_number(group, name, value); }
template <class T> inline tr_status tr_agree(tr_group *group, const char *name, T value)
{
    return tr_agree_integer(group, name, static_cast<int64_t>(value));
}
#endif

#endif
