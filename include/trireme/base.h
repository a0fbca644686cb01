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
    X(PEER, "another rank failed, died or left")                                    \
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

/* The message of the latest failure on this thread, such as "matmul: inner sizes differ: [32, 784] x [512, 10]". Valid
 * until the next failure on this thread; never NULL. It is safe to show on a terminal: tr_printable() has been applied
 * to the names of files, tensors and hosts in it. */
TR_API const char *tr_error_message(void);

/* The status of any Trireme object: TR_OK, or the failure that made it an object in error; the failure's message is
 * then this thread's tr_error_message(). NULL is TR_OK ("none"). */
TR_API TR_MUST_CHECK tr_status tr_status_of(const void *object);

/* TR_CHECK(expression) is for programs; the library itself never exits or prints. On a failure it prints where, what
 * and why, and calls exit(1). After TR_PEER it calls exit(TR_EXIT_PEER), and the launcher then looks for the cause in
 * another rank. 69 is EX_UNAVAILABLE of sysexits.h. */
enum { TR_EXIT_PEER = 69 };
#define TR_CHECK(expression) tr__check((expression), #expression, __FILE__, __LINE__)
TR_API void tr_check_failed(tr_status status, const char *expression, const char *file, int line) __attribute__((noreturn, cold));
static inline void tr__check(tr_status status, const char *expression, const char *file, int line)
{
    if (status != TR_OK) tr_check_failed(status, expression, file, line); /* so the compiler knows what holds after it */
}
/* The same after a loop that ends with TR_END, which is no failure:
 *  while ((s = tr_loader_next(loader, &b)) == TR_OK) { … } TR_CHECK_END(s); */
#define TR_CHECK_END(expression) tr__check(tr__unless_end(expression), #expression, __FILE__, __LINE__)
static inline tr_status tr__unless_end(tr_status status) { return status == TR_END ? TR_OK : status; }

/* Makes a failure from a program's own code (a dataset, a module, an op): sets this thread's message, returns status. */
TR_API tr_status tr_fail(tr_status status, const char *format, ...) TR_PRINTF(2, 3);

/* Makes text from a file or another foreign source (a tensor's name, say) safe to show. It replaces in place each byte
 * of a control character, which could act on a terminal, by '?'. Newlines and tabs stay, and so do all other
 * characters, in UTF-8 or not. Returns text. */
TR_API char *tr_printable(char *text);

/* ---- Objects and scopes --------------------------------------------------------------------------------------- */

/* Every pointer type of the library (tr_tensor, tr_module, tr_group, …) is such an object, unless its comment gives
 * another rule. */

/* Takes a reference of your own: the object lives until tr_release(), also after its scope has ended. Returns the
 * object. */
#define tr_keep(object) ((__typeof__(object))tr_object_keep(object))
/* Moves the object from the innermost scope to the scope around it. A function with a TR_SCOPE returns its result this
 * way. */
#define tr_escape(object) ((__typeof__(object))tr_object_escape(object))
/* Releases a reference that tr_keep() took. NULL does nothing. Thread-safe. Releasing an object that was not kept is an
 * error: the object stays with its scopes, and is in error from then on (TR_STATE). */
TR_API void tr_release(const void *object);

TR_API void *tr_object_keep(const void *object);
TR_API void *tr_object_escape(const void *object);

/* Scopes nest per thread. Objects that are created outside every scope belong to the thread and are released when it
 * ends. */
TR_API void tr_scope_push(void);
TR_API void tr_scope_pop(void);

/* Opens a scope that lasts to the end of the enclosing block, also when the block is left by break, return or goto. */
#define TR_SCOPE                                                                                       \
    __attribute__((cleanup(tr__scope_leave), unused)) char TR__JOIN(tr__scope_, __LINE__) = tr__scope_enter()
#define TR__JOIN(a, b) TR__JOIN2(a, b)
#define TR__JOIN2(a, b) a##b
static inline char tr__scope_enter(void) { tr_scope_push(); return 0; }
static inline void tr__scope_leave(char *unused) { (void)unused; tr_scope_pop(); }

/* Objects of a program's own: a struct that begins with a tr_object, whose fields belong to the library. */
typedef struct tr_object_type {
    const char *name;            /* "cluster", for messages */
    size_t size;                 /* of the struct */
    void (*destroy)(void *self); /* frees what the object holds, not the object; runs on objects in error, too */
} tr_object_type;
typedef struct tr_object {
    const void *type;
    int64_t references;
    void *error;
} tr_object;
/* Returns a zeroed object that belongs to the innermost scope. *type must live longer than the object. When memory is
 * short it is an object in error: call tr_status_of() before you write to it. */
TR_API void *tr_object_new(const tr_object_type *type);
/* Puts an object in error with this thread's latest failure; its first error stays. Returns the error's status. */
TR_API tr_status tr_object_break(void *object);

/* ---- Named optional arguments ---------------------------------------------------------------------------------- */

/*
 * tr_adamw(params, .lr = 1e-3) calls
 *     tr_adamw_with(&(tr_adamw_options){.size = …, .given = ".lr = 1e-3", .parameters = params, .lr = 1e-3}).
 * An options struct starts with its size and with the text of the options that the call names. The required arguments come
 * next, by position. The optional ones follow, by name; an optional argument without a name does not compile.
 *
 * An option that the call names counts, also when its value is 0. An option that it does not name has the default that the
 * header gives. A C struct cannot tell .lr = 0 from no .lr, so the text of the call tells. A program that fills in the
 * struct itself and calls the _with function, as bindings do, leaves .given NULL: then 0 means the default, and in a double
 * TR_ZERO means 0.
 */
#define TR_ZERO (-0.0)

/* Whether the macro call that filled in `options`, one of the library's options structs, names this option. */
TR_API bool tr_given(const void *options, const char *name);

#define TR__FIRST(a, ...) a
#define TR__SECOND(a, b, ...) b
#define TR__AFTER1(a, ...) __VA_ARGS__
#define TR__AFTER2(a, b, ...) __VA_ARGS__
#define TR__AFTER3(a, b, c, ...) __VA_ARGS__
#define TR__AFTER4(a, b, c, d, ...) __VA_ARGS__
#define TR__AFTER5(a, b, c, d, e, ...) __VA_ARGS__
#define TR__STRING(...) TR__STRING_(__VA_ARGS__)
#define TR__STRING_(...) #__VA_ARGS__

/* `option` is the first optional argument, or nothing. After an object, an option with a name reads as an assignment to
 * a member; one without a name is a syntax error, so the compiler refuses tr_linear(4, 8, true). The assignment is
 * never made. */
#define TR__OPTIONS_HAVE_NAMES(type, option) (1 || ((void)(TR__SOME(type) option), 1))
#define TR__HEAD(type, ...)                                                        \
    .size = sizeof(type) * TR__OPTIONS_HAVE_NAMES(type, TR__FIRST(__VA_ARGS__, )), \
    .given = __extension__ TR__STRING(__VA_ARGS__)
/* The same without this check, for calls in which an argument may be an array or a struct in braces: the preprocessor
 * splits those at their commas. */
#define TR__HEAD_BRACES(type, ...) .size = sizeof(type), .given = __extension__ TR__STRING(__VA_ARGS__)

#ifndef __cplusplus
#define TR__SOME(type) (type){.size = 0}
#define TR__LITERAL(type, ...) (&(type){__VA_ARGS__})
#define TR__TAKE0(head, type, ...) TR__LITERAL(type, head(type, __VA_ARGS__), __VA_ARGS__)
#define TR__TAKE1(head, type, a, ...) TR__LITERAL(type, head(type, TR__AFTER1(__VA_ARGS__, )), .a = __VA_ARGS__)
#define TR__TAKE2(head, type, a, b, ...) TR__LITERAL(type, head(type, TR__AFTER2(__VA_ARGS__, , )), .a = __VA_ARGS__)
#define TR__TAKE3(head, type, a, b, c, ...) TR__LITERAL(type, head(type, TR__AFTER3(__VA_ARGS__, , , )), .a = __VA_ARGS__)
#define TR__TAKE4(head, type, a, b, c, d, ...) TR__LITERAL(type, head(type, TR__AFTER4(__VA_ARGS__, , , , )), .a = __VA_ARGS__)
#define TR__TAKE5(head, type, a, b, c, d, e, ...) \
    TR__LITERAL(type, head(type, TR__AFTER5(__VA_ARGS__, , , , , )), .a = __VA_ARGS__)
#else
/* C++20 has no compound literals and does not mix named with positional initialisers; the pragma keeps its
 * -Wmissing-field-initializers from asking for the fields that are left to their defaults. */
#pragma GCC system_header
#define TR__SOME(type) (*tr__nowhere<type>())
#define TR__LITERAL(type, ...) tr__address_of(type{__VA_ARGS__})
#define TR__TAKE0(head, type, ...) TR__LITERAL(type, head(type, __VA_ARGS__) __VA_OPT__(, ) __VA_ARGS__)
#define TR__TAKE1(head, type, a, ...) TR__TAKE1_(head, type, a, __VA_ARGS__)
#define TR__TAKE1_(head, type, a, x, ...) TR__LITERAL(type, head(type, __VA_ARGS__), .a = x __VA_OPT__(, ) __VA_ARGS__)
#define TR__TAKE2(head, type, a, b, ...) TR__TAKE2_(head, type, a, b, __VA_ARGS__)
#define TR__TAKE2_(head, type, a, b, x, y, ...) \
    TR__LITERAL(type, head(type, __VA_ARGS__), .a = x, .b = y __VA_OPT__(, ) __VA_ARGS__)
#define TR__TAKE3(head, type, a, b, c, ...) TR__TAKE3_(head, type, a, b, c, __VA_ARGS__)
#define TR__TAKE3_(head, type, a, b, c, x, y, z, ...) \
    TR__LITERAL(type, head(type, __VA_ARGS__), .a = x, .b = y, .c = z __VA_OPT__(, ) __VA_ARGS__)
#define TR__TAKE4(head, type, a, b, c, d, ...) TR__TAKE4_(head, type, a, b, c, d, __VA_ARGS__)
#define TR__TAKE4_(head, type, a, b, c, d, w, x, y, z, ...) \
    TR__LITERAL(type, head(type, __VA_ARGS__), .a = w, .b = x, .c = y, .d = z __VA_OPT__(, ) __VA_ARGS__)
#define TR__TAKE5(head, type, a, b, c, d, e, ...) TR__TAKE5_(head, type, a, b, c, d, e, __VA_ARGS__)
#define TR__TAKE5_(head, type, a, b, c, d, e, v, w, x, y, z, ...) \
    TR__LITERAL(type, head(type, __VA_ARGS__), .a = v, .b = w, .c = x, .d = y, .e = z __VA_OPT__(, ) __VA_ARGS__)
#endif
/* With 0 to 5 required arguments, whose field names are given. */
#define TR__NAMED_OPTIONS0(type, ...) TR__TAKE0(TR__HEAD, type, __VA_ARGS__)
#define TR__NAMED_OPTIONS1(type, a, ...) TR__TAKE1(TR__HEAD, type, a, __VA_ARGS__)
#define TR__NAMED_OPTIONS2(type, a, b, ...) TR__TAKE2(TR__HEAD, type, a, b, __VA_ARGS__)
#define TR__NAMED_OPTIONS3(type, a, b, c, ...) TR__TAKE3(TR__HEAD, type, a, b, c, __VA_ARGS__)
#define TR__NAMED_OPTIONS4(type, a, b, c, d, ...) TR__TAKE4(TR__HEAD, type, a, b, c, d, __VA_ARGS__)
#define TR__BRACES1(type, a, ...) TR__TAKE1(TR__HEAD_BRACES, type, a, __VA_ARGS__)
#define TR__BRACES2(type, a, b, ...) TR__TAKE2(TR__HEAD_BRACES, type, a, b, __VA_ARGS__)
#define TR__BRACES3(type, a, b, c, ...) TR__TAKE3(TR__HEAD_BRACES, type, a, b, c, __VA_ARGS__)
#define TR__BRACES4(type, a, b, c, d, ...) TR__TAKE4(TR__HEAD_BRACES, type, a, b, c, d, __VA_ARGS__)
#define TR__BRACES5(type, a, b, c, d, e, ...) TR__TAKE5(TR__HEAD_BRACES, type, a, b, c, d, e, __VA_ARGS__)
#define TR__NEW0(name, ...) name##_with(TR__NAMED_OPTIONS0(name##_options, __VA_ARGS__))
#define TR__NEW1(name, a, ...) name##_with(TR__NAMED_OPTIONS1(name##_options, a, __VA_ARGS__))
#define TR__NEW2(name, a, b, ...) name##_with(TR__NAMED_OPTIONS2(name##_options, a, b, __VA_ARGS__))
#define TR__NEW3(name, a, b, c, ...) name##_with(TR__NAMED_OPTIONS3(name##_options, a, b, c, __VA_ARGS__))
#define TR__NEW4(name, a, b, c, d, ...) name##_with(TR__NAMED_OPTIONS4(name##_options, a, b, c, d, __VA_ARGS__))

/* The place of a call in the program, for messages. TR__HERE fills in the last fields of options. Inside the library it
 * is the place of the program's call that led there. */
#ifndef TR__IN_LIBRARY
#define TR__FILE __FILE__
#define TR__LINE __LINE__
#else
#define TR__FILE tr__call_file(__FILE__)
#define TR__LINE tr__call_line(__LINE__)
const char *tr__call_file(const char *own);
int tr__call_line(int own);
#endif
#define TR__HERE .file = TR__FILE, .line = TR__LINE

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

/* The C type that a pointer points to, as a number. Functions that take memory as void * beside a dtype use it to
 * refuse a pointer of another type. 0: not known, as with void * and char *. From 1 on: the type of the dtype with the
 * number one less. */
#define TR__ELEMENT_HALF 100  /* unsigned short, which may hold f16 or bf16 */
#define TR__ELEMENT_OTHER 101 /* numbers that no dtype has */
#if __SIZEOF_LONG__ == 8
#define TR__ELEMENT_LONG 5
#else
#define TR__ELEMENT_LONG 6
#endif
#ifndef __cplusplus
/* Evaluates nothing. The preprocessor splits an array in braces, such as (double[]){1, 2}, at its comma. So when data
 * begins with parentheses, only the type or expression in them counts. */
#define TR__ELEMENT(data) TR__ELEMENT_AT((const __typeof__(**(__typeof__ TR__TYPED(data) *)0) *)0)
#define TR__ELEMENT_AT(p)                                                                                         \
    _Generic(p, TR__AT(float, 1), TR__AT(double, 2), TR__AT(long, TR__ELEMENT_LONG),                              \
        TR__AT(unsigned long, TR__ELEMENT_LONG), TR__AT(long long, 5), TR__AT(unsigned long long, 5),             \
        TR__AT(int, 6), TR__AT(unsigned, 6), TR__AT(unsigned char, 7), TR__AT(_Bool, 8),                          \
        TR__AT(unsigned short, TR__ELEMENT_HALF), TR__AT(short, TR__ELEMENT_OTHER),                               \
        TR__AT(signed char, TR__ELEMENT_OTHER), default: 0)
#define TR__AT(type, element) const type *: element, const type(*)[]: element
#define TR__TYPED(data) TR__TYPED_(TR__PARENTHESES data, (data), )
#define TR__TYPED_(...) TR__SECOND(__VA_ARGS__)
#define TR__PARENTHESES(...) ~, (__VA_ARGS__),
#define TR__IN_PARENTHESES(x) TR__IN_PARENTHESES_(TR__FOUND_PARENTHESES x, 0, ) /* does x begin with them? 1, or 0 */
#define TR__IN_PARENTHESES_(...) TR__SECOND(__VA_ARGS__)
#define TR__FOUND_PARENTHESES(...) ~, 1,
#else
#define TR__ELEMENT(data) tr__element(data)
#endif

/* The length of an array of pointers; 0 for a pointer, because the compiler does not know how many elements it points
 * to. */
#ifndef __cplusplus
#define TR__ROOM(array) \
    (__builtin_types_compatible_p(__typeof__(array), __typeof__(&(array)[0])) ? 0 : (int)(sizeof(array) / sizeof(void *)))
#else
#define TR__ROOM(array) tr__room(array)
#endif

/* ---- Devices --------------------------------------------------------------------------------------------------- */

/* The kinds with a fixed number. Kinds of other plug-ins get a number from TR_CUDA + 1 on, which may differ between
 * processes: programs find them by name (trireme/device.h). */
typedef enum tr_device_kind { TR_CPU, TR_CUDA, TR_DEVICE_KINDS = 16 /* the most kinds in one process */ } tr_device_kind;

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
/* Parses the name of a device: "cpu", "cpu:1", "cuda:0", "toy:1". TR_INVALID when text is not the name of a device;
 * TR_DEVICE when the device does not exist, for example because no plug-in brings its kind. */
TR_API TR_MUST_CHECK tr_status tr_device_parse(const char *text, tr_device *out);
/* Writes "cpu:0" into text (at least 16 bytes) and returns it. */
TR_API char *tr_device_name(tr_device device, char text[16]);

/* Sets how many threads each logical CPU device computes with, 1 and more; 0 goes back to the default: the cores this
 * process may use, divided by the CPU devices and by LOCAL_WORLD_SIZE. Call it before the first computation or between
 * two; the old pool ends. */
TR_API TR_MUST_CHECK tr_status tr_set_threads(int threads);
TR_API int tr_threads(tr_device device);

/* ---- Shared memory -------------------------------------------------------------------------------------------- */

/* Memory that the ranks of one host can map: collectives on it make no copy. Zeroed and page-aligned; free it with
 * tr_shared_free(). NULL on failure; tr_error_message() says why. */
TR_API void *tr_shared_alloc(size_t bytes);
TR_API void tr_shared_free(void *memory);
/* Replacements for posix_memalign() and free(), for a library that allocates through function pointers. Blocks of 64
 * KiB and more come from shared segments. The C library provides smaller blocks, blocks aligned to more than 4,096
 * bytes, and all blocks when there is no shared memory; tr_shared_memalign_free() frees those, too. A segment has 64
 * MiB or more and stays with the process for later blocks. A child of fork() has private copies: the parent does not
 * see what the child writes, but where the child has not written it may see later writes of the parent. Thread-safe. */
TR_API int tr_shared_memalign(void **memory, size_t alignment, size_t bytes);
TR_API void tr_shared_memalign_free(void *memory);

/* ---- Functions in processes of their own ------------------------------------------------------------------------ */

/* A function that tr_spawn(), or a loader with worker processes, runs in another process. argument points to the
 * process's own copy of the bytes, page-aligned; NULL when there are no bytes. A failure reaches the process that
 * started this one, with its message. */
typedef tr_status (*tr_spawn_function)(int rank, void *argument, size_t bytes);

/* Put this first in main() of a program whose functions run in other processes. These processes start from the
 * program's own executable; they are never forked from a process that has already computed. In such a process main()
 * returns here. */
#define TR_SPAWN_ENTRY                            \
    do {                                          \
        if (tr_spawned()) return tr_spawn_run();  \
    } while (0)
/* Whether this process was started to run a function and has not started it yet. */
TR_API bool tr_spawned(void);
/* Runs that function. Returns the exit code that main() must return. */
TR_API int tr_spawn_run(void);

/* ---- Logging --------------------------------------------------------------------------------------------------- */

typedef enum tr_log_level { TR_LOG_OFF, TR_LOG_ERROR, TR_LOG_WARN, TR_LOG_INFO, TR_LOG_DEBUG } tr_log_level;
typedef void (*tr_log_function)(tr_log_level level, const char *message, void *user);

/* Sets where the library's messages go. Without this call they go nowhere, or to stderr when the environment asks for
 * them: TRIREME_LOG=error, warn, info or debug. The function may be called from any thread. */
TR_API void tr_set_log(tr_log_function function, void *user, tr_log_level level);

#ifdef __cplusplus
} /* extern "C" */
template <class T> inline const T *tr__address_of(const T &options) { return &options; }
template <class T> constexpr T *tr__nowhere() { return nullptr; }
template <class T> constexpr int tr__element_code = 0;
template <> inline constexpr int tr__element_code<float> = 1;
template <> inline constexpr int tr__element_code<double> = 2;
template <> inline constexpr int tr__element_code<long> = TR__ELEMENT_LONG;
template <> inline constexpr int tr__element_code<unsigned long> = TR__ELEMENT_LONG;
template <> inline constexpr int tr__element_code<long long> = 5;
template <> inline constexpr int tr__element_code<unsigned long long> = 5;
template <> inline constexpr int tr__element_code<int> = 6;
template <> inline constexpr int tr__element_code<unsigned> = 6;
template <> inline constexpr int tr__element_code<unsigned char> = 7;
template <> inline constexpr int tr__element_code<bool> = 8;
template <> inline constexpr int tr__element_code<unsigned short> = TR__ELEMENT_HALF;
template <> inline constexpr int tr__element_code<short> = TR__ELEMENT_OTHER;
template <> inline constexpr int tr__element_code<signed char> = TR__ELEMENT_OTHER;
template <class T, size_t n> constexpr int tr__element_code<T[n]> = tr__element_code<T>;
template <class T> constexpr int tr__element_code<const T> = tr__element_code<T>;
template <class T> constexpr int tr__element(T *) { return tr__element_code<T>; }
constexpr int tr__element(const void *) { return 0; } /* NULL, nullptr */
template <class T> constexpr int tr__room_of = 0;
template <class T, size_t n> constexpr int tr__room_of<T (&)[n]> = (int)n;
template <class T> constexpr int tr__room(T &&) { return tr__room_of<T>; }
#endif

#endif
