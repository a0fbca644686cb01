/*
 * Objects, errors and scopes: what every other part stands on.
 *
 * An object is a struct that begins with tr__object. It is made by tr__object_new(), which gives its one reference to the
 * calling thread's innermost scope, and it is destroyed by its type's destroy() when its last reference goes.
 */
#ifndef TR_BASE_OBJECT_H
#define TR_BASE_OBJECT_H

#include <trireme/base.h>

#include <stdarg.h>
#include <stdatomic.h>

typedef struct tr__error {
    atomic_int refs;
    tr_status status;
    const void *source; /* the module that returned it last, to be compared only (nn/module.c); NULL: none */
    size_t root_length; /* of "sequential.", what the message begins with where the path would begin with a number */
    size_t path_length; /* of the path from source to where it failed, which follows */
    char message[];     /* NUL-terminated */
} tr__error;

/* .size: the unnamed objects in error have it too, zeroed. */
typedef tr_object_type tr__type;

typedef struct tr__object {
    const tr__type *type;
    _Atomic int64_t refs; /* those of scopes count TR__SCOPE_REF each, all others 1 */
    tr__error *error;     /* NULL: sound */
} tr__object;
#define TR__SCOPE_REF (INT64_C(1) << 32)
_Static_assert(sizeof(tr__object) == sizeof(tr_object), "tr_object keeps the room for it in a program's objects");

/* A zeroed object in the innermost scope. Never NULL: without memory it is the shared object in error. */
void *tr__object_new(const tr__type *type);
/* As tr__object_new, with extra bytes behind the struct. */
void *tr__object_new_sized(const tr__type *type, size_t bytes);
/* As tr__object_new, but its one reference is the caller's, not a scope's. */
void *tr__object_new_kept(const tr__type *type);

/* An object of type in error, with this thread's latest failure: `tr__fail(…); return tr__object_failed(&type)`. */
void *tr__object_failed(const tr__type *type);
/* Makes a failure and an object in error with it, in one go. */
void *tr__object_fail(const tr__type *type, tr_status status, const char *format, ...) TR_PRINTF(3, 4);
/* An object of type with the error of another object: how errors are passed on. */
void *tr__object_pass(const tr__type *type, const void *in_error);
/* Puts an existing object in error with this thread's latest failure; the first error stays. Returns its status. */
tr_status tr__object_break(void *object);

/* Notes which module returned this object in error (tr__error.source). Its error must not be shared yet. */
void tr__error_set_source(void *object, const void *source, size_t root_length, size_t path_length);

static inline const tr__error *tr__error_of(const void *object)
{
    return object ? ((const tr__object *)object)->error : NULL;
}

/* Is it an object of the type? Those that are gone, or that no memory was left for, do not show theirs, and pass. */
bool tr__object_is(const void *object, const tr__type *type);

/* How many references there are, of scopes and of others. */
static inline int64_t tr__refs(const void *object)
{
    int64_t refs = atomic_load(&((tr__object *)object)->refs);
    return refs / TR__SCOPE_REF + refs % TR__SCOPE_REF;
}

/* One more reference; returns object. NULL stays NULL. */
static inline void *tr__ref(const void *object)
{
    if (object) atomic_fetch_add_explicit(&((tr__object *)object)->refs, 1, memory_order_relaxed);
    return (void *)object;
}
/* One more, which belongs to the calling thread's innermost scope; returns object. */
void *tr__scope_ref(const void *object);
/* This thread's innermost scope, by a number that no other of its scopes has; 0: outside every scope. *held: its objects. */
uint64_t tr__scope_innermost(size_t *held);
/* One less, which is not a scope's. */
void tr__unref(const void *object);

/* The one place where failures are made: sets this thread's message and returns status. Break here to catch them all. */
tr_status tr__fail(tr_status status, const char *format, ...) TR_PRINTF(2, 3);
tr_status tr__fail_v(tr_status status, const char *format, va_list arguments) TR_PRINTF(2, 0);
/* In a function whose last parameter before ... is format: the failure that it is told. */
#define TR__FAIL_AS_TOLD(status, format)              \
    do {                                              \
        va_list told;                                 \
        va_start(told, format);                       \
        tr__fail_v(status, format, told);             \
        va_end(told);                                 \
    } while (0)
/* The same with ": " and the text of errno at the end. */
tr_status tr__fail_errno(tr_status status, int error, const char *format, ...) TR_PRINTF(3, 4);
/* Puts words in front of this thread's latest message: how callers say what they were at. Returns status. */
tr_status tr__fail_context(tr_status status, const char *format, ...) TR_PRINTF(2, 3);
/* Sets the thread's message to a stored error's and returns its status; TR_OK for NULL. */
tr_status tr__fail_stored(const tr__error *error);

#ifdef __clang_analyzer__
/* The analyser cannot see that a failure returns its status, and would follow paths on which that is TR_OK. */
#define tr__fail(status, ...) ((void)(tr__fail)(status, __VA_ARGS__), (status))
#define tr__fail_errno(status, ...) ((void)(tr__fail_errno)(status, __VA_ARGS__), (status))
#define tr__fail_context(status, ...) ((void)(tr__fail_context)(status, __VA_ARGS__), (status))
#endif
/* How many failures this thread has had. With the number from before a function of the program's was called, the next one sees
 * whether that said what went wrong: when it returned a bare status, its message becomes the status's. Returns status. */
uint64_t tr__failures(void);
tr_status tr__fail_unsaid(tr_status status, uint64_t failures_before);
/* A copy of this thread's latest failure, to be carried to another thread; one reference. Never NULL. */
tr__error *tr__error_take(void);
void tr__error_unref(tr__error *error);
/* Makes a stored error this thread's latest failure, and gives its reference up. Returns its status; TR_OK for NULL. */
tr_status tr__error_restore(tr__error *error);
/* From here to the end of the block: what fails leaves this thread's latest failure as it is. */
#define TR__KEEP_ERROR __attribute__((cleanup(tr__error_kept), unused)) tr__error *tr__kept_error = tr__error_take()
static inline void tr__error_kept(tr__error **error)
{
    tr__error_restore(*error);
}

/* `return` on failure. */
#define TR__TRY(expression)                                \
    do {                                                   \
        tr_status tr__status = (expression);               \
        if (tr__status != TR_OK) return tr__status;        \
    } while (0)

/* A line of the program. Until the end of the block this thread's calls between ranks are told as made there (TR__FILE), unless
 * file is NULL: then by the place that is known already, if any. */
typedef struct tr__call_site {
    const char *file; /* NULL: not known */
    int line;
} tr__call_site;
#define TR__CALLED_AT(file, line)                                                              \
    __attribute__((cleanup(tr__call_site_leave), unused)) tr__call_site tr__call_site_before = \
        tr__call_site_enter(file, line)
tr__call_site tr__call_site_enter(const char *file, int line);
void tr__call_site_leave(tr__call_site *before);

/* Whether ops record a graph on this thread. */
bool tr__grad_mode(void);
bool tr__grad_mode_set(bool on);
/* The dtype that products are computed in on this thread; TR_F32: none, ops take their inputs as they come. */
tr_dtype tr__autocast(void);
tr_dtype tr__autocast_set(tr_dtype dtype);
/* Counts this thread's calls, from 0: what tr_next_seed() makes seeds of. */
uint64_t tr__seeds_next(void);

#endif
