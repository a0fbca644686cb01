/*
 * Trireme, base: version, status codes and errors, objects and scopes, data types, devices, logging.
 *
 * Conventions that hold for the whole library (docs/conventions.md says more):
 *  - A function that returns an object returns an object *in error* when it fails. Every function that takes an
 *    object passes its error on, so an expression is checked once, at its end. NULL means "none", never "failed".
 *  - A function that acts returns a tr_status, which the compiler does not let you ignore.
 *  - Objects are reference-counted. What a function returns belongs to the innermost scope of the calling thread,
 *    which drops its references when it ends; tr_keep() makes a reference yours.
 *  - Functions are thread-safe on different objects; one object is used by one thread at a time unless said otherwise.
 *  - Sizes are in elements unless a name says bytes; times are in the unit that the name says.
 */
#ifndef TRIREME_BASE_H
#define TRIREME_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TR_VERSION_MAJOR 0
#define TR_VERSION_MINOR 1
#define TR_VERSION_PATCH 0

#if defined(_WIN32)
#error "Trireme runs on Linux"
#endif

#define TR_API __attribute__((visibility("default")))
#define TR_MUST_CHECK __attribute__((warn_unused_result))
#define TR_PRINTF(format_at, arguments_at) __attribute__((format(printf, format_at, arguments_at)))

#ifdef __cplusplus
extern "C" {
#endif

/* "0.1.0": the version of the library that is running, which may be newer than this header. */
TR_API const char *tr_version(void);

/* ---- Status and errors ---------------------------------------------------------------------------------------- */

/* X(name, what went wrong in general) */
#define TR_STATUS_MAP(X)                                                            \
    X(OK, "success")                                                                \
    X(END, "no more items: the end of an epoch or a stream, not a failure")         \
    X(INVALID, "an argument is out of its domain")                                  \
    X(SHAPE, "shapes do not fit")                                                   \
    X(DTYPE, "data types do not fit")                                               \
    X(DEVICE, "a device is missing or does not fit")                                \
    X(UNSUPPORTED, "not supported in this build or on this device")                 \
    X(NO_MEMORY, "out of memory")                                                   \
    X(IO, "reading, writing or connecting failed")                                  \
    X(FORMAT, "damaged or foreign data")                                            \
    X(NOT_FOUND, "no such name")                                                    \
    X(STATE, "called at the wrong time")                                            \
    X(TIMEOUT, "nothing came in time")                                              \
    X(PEER, "another rank died or left")                                            \
    X(MISMATCH, "ranks made different calls")                                       \
    X(AUTH, "not allowed in")                                                       \
    X(CANCELLED, "given up on request")                                             \
    X(INTERRUPTED, "stopped by a signal")                                           \
    X(CHILD, "a child process or a worker failed")                                  \
    X(INTERNAL, "a bug in Trireme")

typedef enum tr_status_code {
#define TR__STATUS_NAME(name, text) TR_##name,
    TR_STATUS_MAP(TR__STATUS_NAME)
#undef TR__STATUS_NAME
} tr_status_code;

/* TR_OK, TR_END or a failure. A distinct integer type, so that a conditional (`s == TR_END ? TR_OK : s`) stays one. */
typedef int tr_status;

/* "TR_SHAPE", and "shapes do not fit". Never NULL; thread-safe. */
TR_API const char *tr_status_name(tr_status status);
TR_API const char *tr_status_text(tr_status status);

/* The message of the failure most recently returned on this thread, such as
 * "matmul: inner sizes differ: [32, 784] x [512, 10]". Valid until the next failure on this thread; never NULL. */
TR_API const char *tr_error_message(void);

/* The status of any Trireme object: TR_OK, or the failure that made it an object in error; the failure's message is
 * then this thread's tr_error_message(). NULL is TR_OK ("none"). */
TR_API TR_MUST_CHECK tr_status tr_status_of(const void *object);

/* For programs (the library itself never exits or prints): on failure print where, what and why, and exit(1), or with
 * TR_EXIT_PEER after TR_PEER: the launcher then looks for the cause in another rank. It is sysexits.h's EX_UNAVAILABLE. */
enum { TR_EXIT_PEER = 69 };
#define TR_CHECK(expression) tr_check((expression), #expression, __FILE__, __LINE__)
TR_API void tr_check(tr_status status, const char *expression, const char *file, int line);

/* Makes a failure from a program's own code (a dataset, a module, an op): sets this thread's message, returns status. */
TR_API tr_status tr_fail(tr_status status, const char *format, ...) TR_PRINTF(2, 3);

/* ---- Objects and scopes --------------------------------------------------------------------------------------- */

/* Every pointer type of the library that has no other rule (tr_tensor, tr_module, tr_group, …) is such an object. */

/* Takes a reference of your own: the object lives until tr_release(), whatever its scope does. Returns it. */
#define tr_keep(object) ((__typeof__(object))tr_object_keep(object))
/* Hands the object to the scope around the innermost one: how a function with a TR_SCOPE returns its result. */
#define tr_escape(object) ((__typeof__(object))tr_object_escape(object))
/* Gives a reference back that tr_keep() took. NULL does nothing. Thread-safe. */
TR_API void tr_release(const void *object);

TR_API void *tr_object_keep(const void *object);
TR_API void *tr_object_escape(const void *object);

/* Scopes nest per thread. What is created outside every scope belongs to the thread and goes when the thread ends. */
TR_API void tr_scope_push(void);
TR_API void tr_scope_pop(void);

/* A scope to the end of the enclosing block, however it is left: break, return and goto included. */
#define TR_SCOPE                                                                                       \
    __attribute__((cleanup(tr__scope_leave), unused)) char TR__JOIN(tr__scope_, __LINE__) = tr__scope_enter()
#define TR__JOIN(a, b) TR__JOIN2(a, b)
#define TR__JOIN2(a, b) a##b
static inline char tr__scope_enter(void) { tr_scope_push(); return 0; }
static inline void tr__scope_leave(char *unused) { (void)unused; tr_scope_pop(); }

/* ---- Named optional arguments ---------------------------------------------------------------------------------- */

/*
 * tr_adamw(params, .lr = 1e-3) calls tr_adamw_with(&(tr_adamw_options){ .size = …, .params = params, .lr = 1e-3 }).
 * An options struct starts with its size, so that fields can be added; the required arguments come next. Zero means
 * "default" in every optional field; where zero itself is meant, a float or double field takes TR_ZERO, and an integer what its
 * comment says (TR_IGNORE_ZERO).
 * Bindings call the _with function.
 */
#define TR_ZERO (-0.0)

#ifndef __cplusplus
#define TR__OPTIONS0(type, ...) (&(type){.size = sizeof(type), __VA_ARGS__})
#define TR__OPTIONS1(type, a, ...) (&(type){.size = sizeof(type), .a = __VA_ARGS__})
#define TR__OPTIONS2(type, a, b, ...) TR__OPTIONS1(type, a, __VA_ARGS__)
#define TR__OPTIONS3(type, a, b, c, ...) TR__OPTIONS1(type, a, __VA_ARGS__)
#else
/* C++20 has no compound literals and does not mix named with positional initialisers; the pragma keeps its
 * -Wmissing-field-initializers from asking for the fields that are left to their defaults. */
#pragma GCC system_header
#define TR__OPTIONS0(type, ...) tr__address_of(type{.size = sizeof(type), __VA_ARGS__})
#define TR__OPTIONS1(type, a, ...) TR__OPTIONS1_(type, a, __VA_ARGS__)
#define TR__OPTIONS1_(type, a, x, ...) TR__OPTIONS0(type, .a = x __VA_OPT__(, ) __VA_ARGS__)
#define TR__OPTIONS2(type, a, b, ...) TR__OPTIONS2_(type, a, b, __VA_ARGS__)
#define TR__OPTIONS2_(type, a, b, x, y, ...) TR__OPTIONS0(type, .a = x, .b = y __VA_OPT__(, ) __VA_ARGS__)
#define TR__OPTIONS3(type, a, b, c, ...) TR__OPTIONS3_(type, a, b, c, __VA_ARGS__)
#define TR__OPTIONS3_(type, a, b, c, x, y, z, ...) \
    TR__OPTIONS0(type, .a = x, .b = y, .c = z __VA_OPT__(, ) __VA_ARGS__)
#endif
/* With 0 to 3 required arguments, whose field names are given. */
#define TR__NEW0(name, ...) name##_with(TR__OPTIONS0(name##_options, __VA_ARGS__))
#define TR__NEW1(name, a, ...) name##_with(TR__OPTIONS1(name##_options, a, __VA_ARGS__))
#define TR__NEW2(name, a, b, ...) name##_with(TR__OPTIONS2(name##_options, a, b, __VA_ARGS__))
#define TR__NEW3(name, a, b, c, ...) name##_with(TR__OPTIONS3(name##_options, a, b, c, __VA_ARGS__))

/* ---- Data types ------------------------------------------------------------------------------------------------ */

/* X(NAME, "text", bytes). F32 is zero, so it is the default of every .dtype. */
#define TR_DTYPE_MAP(X) \
    X(F32, "f32", 4)    \
    X(F64, "f64", 8)    \
    X(F16, "f16", 2)    \
    X(BF16, "bf16", 2)  \
    X(I64, "i64", 8)    \
    X(I32, "i32", 4)    \
    X(U8, "u8", 1)      \
    X(BOOL, "bool", 1)

typedef enum tr_dtype {
#define TR__DTYPE_NAME(name, text, bytes) TR_##name,
    TR_DTYPE_MAP(TR__DTYPE_NAME)
#undef TR__DTYPE_NAME
    TR_DTYPE_COUNT
} tr_dtype;

TR_API size_t tr_dtype_size(tr_dtype dtype);      /* bytes per element; 0 for a value that is no dtype */
TR_API const char *tr_dtype_name(tr_dtype dtype); /* "bf16" */
TR_API bool tr_dtype_is_float(tr_dtype dtype);

/* ---- Devices --------------------------------------------------------------------------------------------------- */

typedef enum tr_device_kind { TR_CPU, TR_CUDA, TR_DEVICE_KIND_COUNT } tr_device_kind;

/* cpu:0 is the default. Logical CPU devices each own a slice of the cores (TRIREME_CPU_DEVICES=N). Passed by value. */
typedef struct tr_device {
    tr_device_kind kind;
    int index;
} tr_device;

static inline tr_device tr_cpu(int index) { tr_device d = {TR_CPU, index}; return d; }
static inline tr_device tr_cuda(int index) { tr_device d = {TR_CUDA, index}; return d; }
static inline bool tr_device_equal(tr_device a, tr_device b) { return a.kind == b.kind && a.index == b.index; }

/* How many devices of a kind this process has; 0 when there is none or its plug-in is absent. Thread-safe. */
TR_API int tr_device_count(tr_device_kind kind);
/* "cpu", "cpu:1", "cuda:0" to a device. Fails on anything else, and on a device that does not exist. */
TR_API TR_MUST_CHECK tr_status tr_device_parse(const char *text, tr_device *out);
/* Writes "cpu:0" into text (at least 16 bytes) and returns it. */
TR_API char *tr_device_name(tr_device device, char text[16]);

/* Sets how many threads each logical CPU device computes with, 1 and more; 0 goes back to the default: the cores this
 * process may use, divided by the CPU devices and by LOCAL_WORLD_SIZE. Call it before the first computation or between
 * two; the old pool ends. */
TR_API TR_MUST_CHECK tr_status tr_set_threads(int threads);
TR_API int tr_threads(tr_device device);

/* ---- Shared memory -------------------------------------------------------------------------------------------- */

/* Memory that the ranks of one host map from each other: collectives on it make no copy. Zeroed, page-aligned, freed
 * with tr_shared_free(). NULL when there is none (tr_error_message() says why). */
TR_API void *tr_shared_alloc(size_t bytes);
TR_API void tr_shared_free(void *memory);

/* ---- Functions in processes of their own ------------------------------------------------------------------------ */

/* What tr_spawn() runs, and what a loader's worker processes are made of. argument points to a copy of the process's own,
 * page-aligned; NULL when there are no bytes. A failure reaches who started the process, with its message. */
typedef tr_status (*tr_spawn_function)(int rank, void *argument, size_t bytes);

/* The first statement of main() in a program whose functions are to run in other processes. They are started from the
 * program's own executable, never forked from a process that has computed; here is where they leave main(). */
#define TR_SPAWN_ENTRY                            \
    do {                                          \
        if (tr_spawned()) return tr_spawn_run();  \
    } while (0)
/* Whether this process was started to run a function and has not begun to. */
TR_API bool tr_spawned(void);
/* Runs it; the exit code for main() to return. */
TR_API int tr_spawn_run(void);

/* ---- Logging --------------------------------------------------------------------------------------------------- */

typedef enum tr_log_level { TR_LOG_OFF, TR_LOG_ERROR, TR_LOG_WARN, TR_LOG_INFO, TR_LOG_DEBUG } tr_log_level;
typedef void (*tr_log_function)(tr_log_level level, const char *message, void *user);

/* Where the library's messages go: nowhere until this is called. The function may be called from any thread. */
TR_API void tr_set_log(tr_log_function function, void *user, tr_log_level level);

#ifdef __cplusplus
} /* extern "C" */
template <class T> inline const T *tr__address_of(const T &options) { return &options; }
#endif

#endif
