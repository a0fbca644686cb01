/*
 * Trireme, remote procedure calls: every rank of a group is a worker with a name, runs functions that it has
 * registered for the others, and holds values that the others refer to. Functions are known by name and signature; no
 * code travels.
 *
 *     static tr_tensor *scale(tr_tensor *x, double by) { return tr_mul(x, tr_full(by, tr_shape_of(x))); }
 *     TR_RPC(scale, TENSOR, F64, RETURNS(TENSOR));
 *
 *     tr_rpc *rpc = tr_rpc_start(world, .name = tr_rank(world) ? "ps" : "trainer");
 *     TR_CHECK(tr_rpc_register(rpc, &scale_rpc));
 *     tr_tensor *y = tr_future_tensor(tr_rpc_sync(rpc, "ps", "scale", x, 2.0));
 *     TR_CHECK(tr_rpc_stop(rpc));
 *
 * Arguments and results are values: a tensor arrives as a copy. docs/rpc.md says how it all works.
 */
#ifndef TRIREME_RPC_H
#define TRIREME_RPC_H

#include <trireme/comm.h>
#include <trireme/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tr_rpc tr_rpc;       /* this rank as a worker; an object, thread-safe */
typedef struct tr_future tr_future; /* a call, under way or done; an object, thread-safe */
typedef struct tr_rref tr_rref;     /* a reference to a value that lives on one worker; an object, thread-safe */
typedef struct tr_rpc_reply tr_rpc_reply; /* the deferred reply to a call; an object, thread-safe */

/* ---- Values: what arguments and results can be ------------------------------------------------------------------- */

typedef struct tr_bytes {
    const void *data;
    size_t size;
} tr_bytes;

/* X(NAME, member, C type, "text"). An OBJECT is any object of the library, such as a module. A reference can hold it,
 * and functions on its owner get it, but it is never sent. */
#define TR_VALUE_MAP(X)                                \
    X(NONE, none, int, "none")                         \
    X(TENSOR, tensor, tr_tensor *, "tensor")           \
    X(I64, i64, int64_t, "i64")                        \
    X(F64, f64, double, "f64")                         \
    X(STRING, string, const char *, "string")          \
    X(BYTES, bytes, tr_bytes, "bytes")                 \
    X(RREF, rref, tr_rref *, "rref")                   \
    X(TENSORS, tensors, tr_tensor_list *, "tensors")   \
    X(OBJECT, object, void *, "object")
typedef enum tr_value_kind {
#define TR__VALUE_NAME(name, member, type, text) TR_VALUE_##name,
    TR_VALUE_MAP(TR__VALUE_NAME)
#undef TR__VALUE_NAME
    TR_VALUE_COUNT
} tr_value_kind;

typedef struct tr_value {
    tr_value_kind kind;
    union {
#define TR__VALUE_MEMBER(name, member, type, text) type member;
        TR_VALUE_MAP(TR__VALUE_MEMBER)
#undef TR__VALUE_MEMBER
    };
} tr_value;

enum { TR_VALUES_MAX = 8 }; /* arguments of a function */

TR_API const char *tr_value_kind_name(tr_value_kind kind); /* "tensor" */
static inline tr_value tr_value_none(void)
{
    tr_value v = {TR_VALUE_NONE, {0}};
    return v;
}
static inline tr_value tr_value_tensor(tr_tensor *x)
{
    tr_value v = tr_value_none();
    v.kind = TR_VALUE_TENSOR;
    v.tensor = x;
    return v;
}
static inline tr_value tr_value_i64(int64_t x)
{
    tr_value v = tr_value_none();
    v.kind = TR_VALUE_I64;
    v.i64 = x;
    return v;
}
static inline tr_value tr_value_f64(double x)
{
    tr_value v = tr_value_none();
    v.kind = TR_VALUE_F64;
    v.f64 = x;
    return v;
}
static inline tr_value tr_value_string(const char *x)
{
    tr_value v = tr_value_none();
    v.kind = TR_VALUE_STRING;
    v.string = x;
    return v;
}
static inline tr_value tr_value_bytes(tr_bytes x)
{
    tr_value v = tr_value_none();
    v.kind = TR_VALUE_BYTES;
    v.bytes = x;
    return v;
}
static inline tr_value tr_value_rref(tr_rref *x)
{
    tr_value v = tr_value_none();
    v.kind = TR_VALUE_RREF;
    v.rref = x;
    return v;
}
static inline tr_value tr_value_tensors(tr_tensor_list *x)
{
    tr_value v = tr_value_none();
    v.kind = TR_VALUE_TENSORS;
    v.tensors = x;
    return v;
}
static inline tr_value tr_value_object(void *x)
{
    tr_value v = tr_value_none();
    v.kind = TR_VALUE_OBJECT;
    v.object = x;
    return v;
}
static inline tr_value tr_value_same(tr_value x) { return x; }

/* TR_VALUES(x, 2.0, "name"): makes 1 to 9 values from C expressions; integers become i64, floats f64. */
#ifndef __cplusplus
#define TR_VALUE(x) \
    _Generic((x), tr_tensor *: tr_value_tensor, tr_rref *: tr_value_rref, tr_tensor_list *: tr_value_tensors, \
        tr_bytes: tr_value_bytes, tr_value: tr_value_same, char *: tr_value_string, const char *: tr_value_string, \
        float: tr_value_f64, double: tr_value_f64, default: tr_value_i64)(x)
#define TR_VALUES(...) ((tr_value[]){TR__EACH(TR_VALUE, __VA_ARGS__)})
#else
#define TR_VALUE(x) tr__value(x)
#define TR_VALUES(...) (std::initializer_list<tr_value>{TR__EACH(TR_VALUE, __VA_ARGS__)}.begin())
#endif
#define TR__COUNT(...) TR__COUNT_(__VA_ARGS__, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define TR__COUNT_(a, b, c, d, e, f, g, h, i, n, ...) n
#define TR__EACH(m, ...) TR__JOIN(TR__EACH_, TR__COUNT(__VA_ARGS__))(m, __VA_ARGS__)
#define TR__EACH_1(m, x) m(x)
#define TR__EACH_2(m, x, ...) m(x), TR__EACH_1(m, __VA_ARGS__)
#define TR__EACH_3(m, x, ...) m(x), TR__EACH_2(m, __VA_ARGS__)
#define TR__EACH_4(m, x, ...) m(x), TR__EACH_3(m, __VA_ARGS__)
#define TR__EACH_5(m, x, ...) m(x), TR__EACH_4(m, __VA_ARGS__)
#define TR__EACH_6(m, x, ...) m(x), TR__EACH_5(m, __VA_ARGS__)
#define TR__EACH_7(m, x, ...) m(x), TR__EACH_6(m, __VA_ARGS__)
#define TR__EACH_8(m, x, ...) m(x), TR__EACH_7(m, __VA_ARGS__)
#define TR__EACH_9(m, x, ...) m(x), TR__EACH_8(m, __VA_ARGS__)

/* ---- Functions that others may call ------------------------------------------------------------------------------ */

/* Calls the function with values of the kinds in its signature. On a failure the message is the thread's latest. */
typedef tr_status (*tr_rpc_body)(void *state, const tr_value *arguments, tr_value *result);

typedef struct tr_rpc_function {
    size_t size;
    const char *name;
    int count; /* of arguments */
    tr_value_kind kinds[TR_VALUES_MAX];
    tr_value_kind returns;
    tr_rpc_body body;
    bool with_state;
} tr_rpc_function;

/*
 * TR_RPC(name, KINDS of the arguments…, how it returns) makes name_rpc of a function of that name, which gets and
 * returns the C types of TR_VALUE_MAP. It returns by
 *   RETURNS(TENSOR)  the value; an object in error fails the call
 *   RETURNS(NONE)    a tr_status
 *   TRIES(I64)       a tr_status; the value through a pointer that is its last argument
 * The first argument of a TR_RPC_WITH_STATE function is the void * with which it was registered. Objects that a function
 * makes belong to a scope around its call. Arguments are valid until it returns; objects among them can be kept.
 */
#define TR_RPC(name, ...) TR__JOIN(TR__RPC_, TR__COUNT(__VA_ARGS__))(name, PLAIN, __VA_ARGS__)
#define TR_RPC_WITH_STATE(name, ...) TR__JOIN(TR__RPC_, TR__COUNT(__VA_ARGS__))(name, STATE, __VA_ARGS__)

/* The C text of argument i. */
#define TR__ARG_TENSOR(i) a[i].tensor
#define TR__ARG_I64(i) a[i].i64
#define TR__ARG_F64(i) a[i].f64
#define TR__ARG_STRING(i) a[i].string
#define TR__ARG_BYTES(i) a[i].bytes
#define TR__ARG_RREF(i) a[i].rref
#define TR__ARG_TENSORS(i) a[i].tensors
#define TR__ARG_OBJECT(i) a[i].object
/* What RETURNS(KIND) and TRIES(KIND) are: the kind, and the statement that makes the call. `lead` stands before the
 * arguments, `comma` between them and what follows. */
#define TR__RESULT_RETURNS(kind) TR_VALUE_##kind
#define TR__RESULT_TRIES(kind) TR_VALUE_##kind
#define TR__CALL_RETURNS(kind) TR__CALL_RETURNS_##kind
#define TR__CALL_TRIES(kind) TR__CALL_TRIES_##kind
#define TR__CALL_RETURNS_NONE(name, lead, comma, ...) return name(lead __VA_ARGS__)
#define TR__CALL_RETURNS_TENSOR(name, lead, comma, ...) \
    *out = tr_value_tensor(name(lead __VA_ARGS__)); \
    return TR_OK
#define TR__CALL_RETURNS_I64(name, lead, comma, ...) \
    *out = tr_value_i64(name(lead __VA_ARGS__)); \
    return TR_OK
#define TR__CALL_RETURNS_F64(name, lead, comma, ...) \
    *out = tr_value_f64(name(lead __VA_ARGS__)); \
    return TR_OK
#define TR__CALL_RETURNS_STRING(name, lead, comma, ...) \
    *out = tr_value_string(name(lead __VA_ARGS__)); \
    return TR_OK
#define TR__CALL_RETURNS_BYTES(name, lead, comma, ...) \
    *out = tr_value_bytes(name(lead __VA_ARGS__)); \
    return TR_OK
#define TR__CALL_RETURNS_RREF(name, lead, comma, ...) \
    *out = tr_value_rref(name(lead __VA_ARGS__)); \
    return TR_OK
#define TR__CALL_RETURNS_TENSORS(name, lead, comma, ...) \
    *out = tr_value_tensors(name(lead __VA_ARGS__)); \
    return TR_OK
#define TR__CALL_RETURNS_OBJECT(name, lead, comma, ...) \
    *out = tr_value_object(name(lead __VA_ARGS__)); \
    return TR_OK
#define TR__CALL_TRIES_TENSOR(name, lead, comma, ...) \
    *out = tr_value_none(); \
    out->kind = TR_VALUE_TENSOR; \
    return name(lead __VA_ARGS__ comma &out->tensor)
#define TR__CALL_TRIES_I64(name, lead, comma, ...) \
    *out = tr_value_none(); \
    out->kind = TR_VALUE_I64; \
    return name(lead __VA_ARGS__ comma &out->i64)
#define TR__CALL_TRIES_F64(name, lead, comma, ...) \
    *out = tr_value_none(); \
    out->kind = TR_VALUE_F64; \
    return name(lead __VA_ARGS__ comma &out->f64)
#define TR__CALL_TRIES_STRING(name, lead, comma, ...) \
    *out = tr_value_none(); \
    out->kind = TR_VALUE_STRING; \
    return name(lead __VA_ARGS__ comma &out->string)
#define TR__CALL_TRIES_BYTES(name, lead, comma, ...) \
    *out = tr_value_none(); \
    out->kind = TR_VALUE_BYTES; \
    return name(lead __VA_ARGS__ comma &out->bytes)
#define TR__CALL_TRIES_RREF(name, lead, comma, ...) \
    *out = tr_value_none(); \
    out->kind = TR_VALUE_RREF; \
    return name(lead __VA_ARGS__ comma &out->rref)
#define TR__CALL_TRIES_TENSORS(name, lead, comma, ...) \
    *out = tr_value_none(); \
    out->kind = TR_VALUE_TENSORS; \
    return name(lead __VA_ARGS__ comma &out->tensors)
#define TR__CALL_TRIES_OBJECT(name, lead, comma, ...) \
    *out = tr_value_none(); \
    out->kind = TR_VALUE_OBJECT; \
    return name(lead __VA_ARGS__ comma &out->object)
#define TR__COMMA ,
#define TR__LEAD_PLAIN
#define TR__LEAD_STATE state,
#define TR__LEAD_ONLY_PLAIN
#define TR__LEAD_ONLY_STATE state
#define TR__AFTER_ONLY_PLAIN
#define TR__AFTER_ONLY_STATE ,
#define TR__WITH_PLAIN false
#define TR__WITH_STATE true
#define TR__RPC_BODY(name) static tr_status name##_rpc_body(void *state, const tr_value *a, tr_value *out)
#define TR__RPC_UNUSED (void)state; (void)a; (void)out
#define TR__RPC_TABLE(name_, flag, how, count_, ...)                                                                   \
    __attribute__((unused)) static const tr_rpc_function name_##_rpc = {.size = sizeof(tr_rpc_function), \
        .name = #name_, .count = (count_), .kinds = {__VA_ARGS__}, .returns = TR__RESULT_##how, \
        .body = name_##_rpc_body, .with_state = TR__WITH_##flag}
#define TR__RPC_1(name, flag, how)                                                                                     \
    TR__RPC_BODY(name)                                                                                                 \
    {                                                                                                                  \
        TR__RPC_UNUSED;                                                                                                \
        TR__CALL_##how(name, TR__LEAD_ONLY_##flag, TR__AFTER_ONLY_##flag, );                                           \
    }                                                                                                                  \
    TR__RPC_TABLE(name, flag, how, 0, TR_VALUE_NONE)
#define TR__RPC_2(name, flag, A, how) \
    TR__RPC_BODY(name) \
    { \
        TR__RPC_UNUSED; \
        TR__CALL_##how(name, TR__LEAD_##flag, TR__COMMA, TR__ARG_##A(0)); \
    } \
    TR__RPC_TABLE(name, flag, how, 1, TR_VALUE_##A)
#define TR__RPC_3(name, flag, A, B, how) \
    TR__RPC_BODY(name) \
    { \
        TR__RPC_UNUSED; \
        TR__CALL_##how(name, TR__LEAD_##flag, TR__COMMA, TR__ARG_##A(0), TR__ARG_##B(1)); \
    } \
    TR__RPC_TABLE(name, flag, how, 2, TR_VALUE_##A, TR_VALUE_##B)
#define TR__RPC_4(name, flag, A, B, C, how) \
    TR__RPC_BODY(name) \
    { \
        TR__RPC_UNUSED; \
        TR__CALL_##how(name, TR__LEAD_##flag, TR__COMMA, TR__ARG_##A(0), TR__ARG_##B(1), TR__ARG_##C(2)); \
    } \
    TR__RPC_TABLE(name, flag, how, 3, TR_VALUE_##A, TR_VALUE_##B, TR_VALUE_##C)
#define TR__RPC_5(name, flag, A, B, C, D, how) \
    TR__RPC_BODY(name) \
    { \
        TR__RPC_UNUSED; \
        TR__CALL_##how(name, TR__LEAD_##flag, TR__COMMA, TR__ARG_##A(0), TR__ARG_##B(1), TR__ARG_##C(2), \
            TR__ARG_##D(3)); \
    } \
    TR__RPC_TABLE(name, flag, how, 4, TR_VALUE_##A, TR_VALUE_##B, TR_VALUE_##C, TR_VALUE_##D)
#define TR__RPC_6(name, flag, A, B, C, D, E, how) \
    TR__RPC_BODY(name) \
    { \
        TR__RPC_UNUSED; \
        TR__CALL_##how(name, TR__LEAD_##flag, TR__COMMA, TR__ARG_##A(0), TR__ARG_##B(1), TR__ARG_##C(2), \
            TR__ARG_##D(3), TR__ARG_##E(4)); \
    } \
    TR__RPC_TABLE(name, flag, how, 5, TR_VALUE_##A, TR_VALUE_##B, TR_VALUE_##C, TR_VALUE_##D, TR_VALUE_##E)
#define TR__RPC_7(name, flag, A, B, C, D, E, F, how) \
    TR__RPC_BODY(name) \
    { \
        TR__RPC_UNUSED; \
        TR__CALL_##how(name, TR__LEAD_##flag, TR__COMMA, TR__ARG_##A(0), TR__ARG_##B(1), TR__ARG_##C(2), \
            TR__ARG_##D(3), TR__ARG_##E(4), TR__ARG_##F(5)); \
    } \
    TR__RPC_TABLE(name, flag, how, 6, TR_VALUE_##A, TR_VALUE_##B, TR_VALUE_##C, TR_VALUE_##D, \
        TR_VALUE_##E, TR_VALUE_##F)
#define TR__RPC_8(name, flag, A, B, C, D, E, F, G, how) \
    TR__RPC_BODY(name) \
    { \
        TR__RPC_UNUSED; \
        TR__CALL_##how(name, TR__LEAD_##flag, TR__COMMA, TR__ARG_##A(0), TR__ARG_##B(1), TR__ARG_##C(2), \
            TR__ARG_##D(3), TR__ARG_##E(4), TR__ARG_##F(5), TR__ARG_##G(6)); \
    } \
    TR__RPC_TABLE(name, flag, how, 7, TR_VALUE_##A, TR_VALUE_##B, TR_VALUE_##C, TR_VALUE_##D, \
        TR_VALUE_##E, TR_VALUE_##F, TR_VALUE_##G)
#define TR__RPC_9(name, flag, A, B, C, D, E, F, G, H, how) \
    TR__RPC_BODY(name) \
    { \
        TR__RPC_UNUSED; \
        TR__CALL_##how(name, TR__LEAD_##flag, TR__COMMA, TR__ARG_##A(0), TR__ARG_##B(1), TR__ARG_##C(2), \
            TR__ARG_##D(3), TR__ARG_##E(4), TR__ARG_##F(5), TR__ARG_##G(6), TR__ARG_##H(7)); \
    } \
    TR__RPC_TABLE(name, flag, how, 8, TR_VALUE_##A, TR_VALUE_##B, TR_VALUE_##C, TR_VALUE_##D, \
        TR_VALUE_##E, TR_VALUE_##F, TR_VALUE_##G, TR_VALUE_##H)

/* ---- Workers ----------------------------------------------------------------------------------------------------- */

typedef struct tr_rpc_options {
    size_t size;
    const char *given;
    tr_group *group;
    const char *name; /* this worker's, 1 to 63 bytes; NULL: "workerN", N its rank */
    int threads;      /* threads that run functions at the same time; default 4. A thread that waits for another call
                         does not count */
    int timeout_ms;   /* limit of a call without its own limit, and of a worker's answer in tr_rpc_stop(); default
                         60,000 */
    int queue_mb;     /* MiB of calls under way to one worker; a caller above it waits for room. A call that was given up
                         counts until the worker is through with it. 0: 256 */
    const char *file; /* where the call is, for messages: the macro sets both */
    int line;
} tr_rpc_options;
/* Makes the ranks of a group workers. Collective; two workers with one name are an error on all ranks. The calls do not
 * depend on what the group does meanwhile, or on whether it is broken. */
#define tr_rpc_start(...) tr_rpc_start_with(TR__NAMED_OPTIONS1(tr_rpc_options, group, __VA_ARGS__, TR__HERE))
TR_API tr_rpc *tr_rpc_start_with(const tr_rpc_options *options);
/* Waits until all workers have called it and no call is under way anywhere, then stops. It does not wait for workers
 * that were lost by then. When one was lost, all other workers are told, whether or not that one had called it, and
 * return the reason with its name:
 *   TR_PEER     it died, exited without tr_rpc_stop(), or its connection was cut;
 *   TR_FORMAT   it sent a damaged message, or something that is no message;
 *   TR_TIMEOUT  it did not make available in time the shared memory that one of its messages names;
 *   another     this worker could not map such memory (TR_NO_MEMORY, TR_IO).
 * This worker has stopped all the same, and a program that goes on without a lost worker takes these for success. A
 * worker that drops its agent without tr_rpc_stop() has stopped, and is not lost.
 *
 * When nothing happens for the agent's timeout, the log function is told for whom all wait (TR_LOG_WARN). A worker that
 * does not answer for as long is given up on all workers: TR_TIMEOUT, with its name. A function is given up in the same
 * way, with its name and its worker's, when it still runs after all have called tr_rpc_stop(), and for the agent's
 * timeout nobody has waited for a call and no function has ended: then its caller has given it up. For a function that
 * needs longer, the caller must wait as long (the call's .timeout_ms). The agent lasts until that function has
 * returned; what the function uses must last as long.
 *
 * Values of this worker that others still refer to are reported to the log function, too. All references end, and waits
 * for values that were not made fail. Later calls fail (TR_STATE), also those that other threads are just starting.
 * tr_rpc_stop() itself fails so when it is called twice, or by a function that runs for another worker. */
TR_API TR_MUST_CHECK tr_status tr_rpc_stop(tr_rpc *rpc);
TR_API int tr_rpc_rank(const tr_rpc *rpc);
TR_API int tr_rpc_workers(const tr_rpc *rpc);
TR_API int tr_rpc_worker(const tr_rpc *rpc, const char *name);      /* its rank; -1 when there is none */
TR_API const char *tr_rpc_name(const tr_rpc *rpc, int worker);      /* NULL when there is none */
/* In a function that runs for another worker: the rank of the caller; otherwise -1. */
TR_API int tr_rpc_caller(void);
/* The agent that runs the function this thread is in; NULL outside such a function. */
TR_API tr_rpc *tr_rpc_current(void);

typedef struct tr_rpc_register_options {
    size_t size;
    const char *given;
    tr_rpc *rpc;
    const tr_rpc_function *function;
    void *state; /* what the function gets, if it takes one */
} tr_rpc_register_options;
/* Lets other workers call the function by its name. A second function with that name is an error. */
#define tr_rpc_register(...) tr_rpc_register_with(TR__BRACES2(tr_rpc_register_options, rpc, function, __VA_ARGS__))
TR_API TR_MUST_CHECK tr_status tr_rpc_register_with(const tr_rpc_register_options *options);

/* ---- Deferred replies -------------------------------------------------------------------------------------------- */

/*
 * In a function that runs for another worker: takes over the reply to the call. The function can then return at once,
 * and any thread can reply later, with data that came or were computed meanwhile:
 *
 *     static tr_tensor *next_batch(int64_t size) { queue_push(&waiting, tr_keep(tr_rpc_defer()), size); return NULL; }
 *
 *     TR_CHECK(tr_reply_with(reply, tr_value_tensor(batch)));        (another thread)
 *     tr_release(reply);
 *
 * What the function then returns is ignored, unless it is a failure: that answers the call if nobody has replied yet.
 * No thread waits meanwhile. The call goes on at its caller until its timeout, and tr_rpc_stop() waits for it there. A
 * reply after that, or after the caller died, is dropped. When the last reference to a reply is released without an
 * answer, the call fails and its error says so. An agent that is dropped without tr_rpc_stop() lasts until its replies
 * are released. tr_rpc_defer() returns a reply in error outside such a function, and the second time in one.
 */
TR_API tr_rpc_reply *tr_rpc_defer(void);
/* Replies with a value of the kind that the function returns; an object in error fails the call. Only once: a second
 * reply is an error (TR_STATE). TR_OK also when nobody waits for the reply any more. Any other failure says why the
 * value cannot be sent; the caller gets that failure, too. Before this returns the value is copied, or for tr_remote()
 * kept. */
TR_API TR_MUST_CHECK tr_status tr_reply_with(tr_rpc_reply *reply, tr_value value);
/* Replies with a failure. */
TR_API TR_MUST_CHECK tr_status tr_reply_fail(tr_rpc_reply *reply, tr_status status, const char *message);

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

typedef struct tr_rpc_call {
    size_t size;
    tr_rpc *rpc;
    const char *to;        /* a worker's name; NULL: the worker with the rank .worker */
    int worker;
    const char *function;
    const tr_value *arguments;
    int count;
    int timeout_ms;        /* 0: the agent's */
} tr_rpc_call;
/* tr_rpc_async(rpc, "ps", "add", a, b) calls a function with up to 8 arguments. It returns at once, unless the queue is
 * full (.queue_mb of the agent); the arguments may be changed afterwards. tr_rpc_sync() also waits for the result. When
 * a call fails, the message is "rpc: add on \"ps\": " and the remote message. tr_future_wait() returns its status, and
 * the future that tr_rpc_sync() returned is in error. */
#define tr_rpc_async(rpc, to, ...) tr_rpc_go((rpc), (to), TR_VALUES(__VA_ARGS__), TR__COUNT(__VA_ARGS__), false)
#define tr_rpc_sync(rpc, to, ...) tr_rpc_go((rpc), (to), TR_VALUES(__VA_ARGS__), TR__COUNT(__VA_ARGS__), true)
/* Runs the function on the other worker and leaves the result there. Returns a reference to the result at once. */
#define tr_remote(rpc, to, ...) tr_rpc_remote_go((rpc), (to), TR_VALUES(__VA_ARGS__), TR__COUNT(__VA_ARGS__))
TR_API tr_future *tr_rpc_async_with(const tr_rpc_call *call);
TR_API tr_future *tr_rpc_sync_with(const tr_rpc_call *call);
TR_API tr_rref *tr_remote_with(const tr_rpc_call *call);

/* Waits for the call and returns its status. It may be called again, from any thread. A thread that waits runs other
 * calls meanwhile. */
TR_API TR_MUST_CHECK tr_status tr_future_wait(tr_future *future);
TR_API bool tr_future_done(const tr_future *future);
/* Calls callback(future, user) when the call is done, in any thread; at once when it is already done. The callback must
 * be short and must not wait. */
TR_API TR_MUST_CHECK tr_status tr_future_then(tr_future *future, void (*callback)(tr_future *future, void *user),
    void *user);
/* tr_future_wait_all(): the first failure in the list's order. tr_future_wait_any(): the index of one that is done; -1
 * for an empty list. */
TR_API TR_MUST_CHECK tr_status tr_future_wait_all(tr_future *const *list, int count);
TR_API int tr_future_wait_any(tr_future *const *list, int count);
/* Gives the call up: it ends with TR_CANCELLED, unless it is already done. A function that has not begun on the other
 * worker never will. */
TR_API TR_MUST_CHECK tr_status tr_future_cancel(tr_future *future);
/* These wait for the result and return it. When the call failed, or the result is of another kind, they return an
 * object in error, 0, NaN or NULL, and tr_error_message() has the failure. What a pointer points to belongs to the
 * future. */
TR_API const tr_value *tr_future_value(tr_future *future); /* NULL when it failed */
TR_API tr_tensor *tr_future_tensor(tr_future *future);
TR_API int64_t tr_future_i64(tr_future *future);
TR_API double tr_future_f64(tr_future *future);
TR_API const char *tr_future_string(tr_future *future);
TR_API tr_bytes tr_future_bytes(tr_future *future);
TR_API tr_rref *tr_future_rref(tr_future *future);
TR_API tr_tensor_list *tr_future_tensors(tr_future *future);

/* ---- References -------------------------------------------------------------------------------------------------- */

/* A reference to a value that lives on this worker, for other workers to use. */
TR_API tr_rref *tr_rref_new(tr_rpc *rpc, tr_value value);
TR_API int tr_rref_owner(const tr_rref *ref); /* -1 in error */
/* A future with a copy of the value; on the owner with the value itself. There it waits until tr_remote()'s function
 * has made the value. */
TR_API tr_future *tr_rref_to_here(tr_rref *ref);
/* On the owner only: the value itself, which belongs to the reference. Waits as above. */
TR_API TR_MUST_CHECK tr_status tr_rref_local(tr_rref *ref, tr_value *out);
/* tr_rref_call(ref, "method", a, b): runs a function on the owner with the value itself as its first argument. */
#define tr_rref_call(ref, ...) tr_rref_go((ref), TR_VALUES(__VA_ARGS__), TR__COUNT(__VA_ARGS__))
/* The same, but the result stays on the owner; returns a reference to it. */
#define tr_rref_remote(ref, ...) tr_rref_remote_go((ref), TR_VALUES(__VA_ARGS__), TR__COUNT(__VA_ARGS__))

/* For the macros: the first value is the function's name. */
TR_API tr_future *tr_rpc_go(tr_rpc *rpc, const char *to, const tr_value *values, int count, bool wait);
TR_API tr_rref *tr_rpc_remote_go(tr_rpc *rpc, const char *to, const tr_value *values, int count);
TR_API tr_future *tr_rref_go(tr_rref *ref, const tr_value *values, int count);
TR_API tr_rref *tr_rref_remote_go(tr_rref *ref, const tr_value *values, int count);

#ifdef __cplusplus
} /* extern "C" */
#include <initializer_list>
inline tr_value tr__value(tr_tensor *x) { return tr_value_tensor(x); }
inline tr_value tr__value(tr_rref *x) { return tr_value_rref(x); }
inline tr_value tr__value(tr_tensor_list *x) { return tr_value_tensors(x); }
inline tr_value tr__value(tr_bytes x) { return tr_value_bytes(x); }
inline tr_value tr__value(tr_value x) { return x; }
inline tr_value tr__value(const char *x) { return tr_value_string(x); }
inline tr_value tr__value(double x) { return tr_value_f64(x); }
inline tr_value tr__value(float x) { return tr_value_f64(x); }
inline tr_value tr__value(int x) { return tr_value_i64(x); }
inline tr_value tr__value(long x) { return tr_value_i64(x); }
inline tr_value tr__value(long long x) { return tr_value_i64(x); }
inline tr_value tr__value(unsigned x) { return tr_value_i64(x); }
inline tr_value tr__value(unsigned long x) { return tr_value_i64(static_cast<int64_t>(x)); }
#endif

#endif
