#include "base/object.h"

#include "base/memory.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Thread-local state: the scope stack, the grad mode, autocast's dtype, the count of seeds given out, the latest failure's message,
 * and the place of the program's call that is under way. The scope stack is one array of handles; `marks` holds where each scope
 * begins in it. Handles outside every scope sit below the first mark and are released when the thread ends.
 */
typedef struct mark {
    size_t begin;
    uint64_t scope; /* its number on this thread, from 1 */
} mark;

typedef struct thread_state {
    tr__object **handles;
    size_t count, capacity;
    mark *marks;
    size_t depth, mark_capacity;
    uint64_t scopes;    /* pushed so far */
    size_t lost_scopes; /* pushed when there was no memory for a mark: they pop without effect */
    bool no_grad;
    tr_dtype autocast; /* TR_F32: none */
    tr__call_site place; /* of the program's call that is under way */
    uint64_t seeds;    /* that this thread has given to modules made without one */
    bool has_exit_hook;
    uint64_t failures; /* so many; */
    tr_status status;  /* of the latest one, and its message */
    char message[1024];
} thread_state;

static _Thread_local thread_state state __attribute__((tls_model("initial-exec")));

static tr__error no_memory_error = {.refs = 1, .status = TR_NO_MEMORY, .message = "out of memory"};

/* What stands in an object's head from its end until the memory is used again. */
static tr__error gone_error = {.refs = 1, .status = TR_STATE, .message = "this object is gone: its scope has ended, or it was "
    "released; tr_keep() and tr_escape() make one outlive its scope"};

/* What tr__object_new returns when there is no memory: large enough, and zero but for the error, to be read as any type. */
static struct {
    tr__object object;
    char zero[2048];
} no_memory_object = {.object = {.refs = 1, .error = &no_memory_error}};

static bool immortal(const void *object)
{
    return object == (const void *)&no_memory_object;
}

/* ---- Failures ------------------------------------------------------------------------------------------------- */

tr_status tr__fail_v(tr_status status, const char *format, va_list arguments)
{
    /* The arguments may point into the current message: format into a copy. */
    char text[sizeof state.message];
    vsnprintf(text, sizeof text, format, arguments);
    memcpy(state.message, tr_printable(text), sizeof text);
    state.status = status;
    state.failures++;
    return status;
}

tr_status (tr__fail)(tr_status status, const char *format, ...)
{
    TR__FAIL_AS_TOLD(status, format);
    return status;
}

tr_status (tr__fail_errno)(tr_status status, int error, const char *format, ...)
{
    TR__FAIL_AS_TOLD(status, format);
    char text[128];
    return tr__fail(status, "%s: %s", state.message, strerror_r(error, text, sizeof text));
}

tr_status (tr__fail_context)(tr_status status, const char *format, ...)
{
    char old[sizeof state.message];
    memcpy(old, state.message, sizeof old);
    TR__FAIL_AS_TOLD(status, format);
    return tr__fail(status, "%s: %s", state.message, old);
}

uint64_t tr__failures(void)
{
    return state.failures;
}

tr_status tr__fail_unsaid(tr_status status, uint64_t failures_before)
{
    if (status == TR_OK || state.failures != failures_before) return status;
    return tr__fail(status, "%s", tr_status_text(status));
}

tr_status tr__fail_stored(const tr__error *error)
{
    if (!error) return TR_OK;
    return tr__fail(error->status, "%s", error->message);
}

tr__error *tr__error_take(void)
{
    size_t length = strlen(state.message);
    tr__error *error = malloc(sizeof *error + length + 1);
    if (!error) {
        atomic_fetch_add(&no_memory_error.refs, 1);
        return &no_memory_error;
    }
    atomic_init(&error->refs, 1);
    error->status = state.status ? state.status : TR_INTERNAL;
    error->source = NULL;
    error->root_length = error->path_length = 0;
    memcpy(error->message, state.message, length + 1);
    return error;
}

void tr__error_unref(tr__error *error)
{
    /* no_memory_error is not on the heap; its first reference is never given back. The analyser cannot know. */
    if (error && atomic_fetch_sub(&error->refs, 1) == 1) free(error); /* NOLINT(clang-analyzer-unix.Malloc) */
}

tr_status tr__error_restore(tr__error *error)
{
    tr_status status = tr__fail_stored(error);
    tr__error_unref(error);
    return status;
}

const char *tr_error_message(void)
{
    return state.message;
}

tr_status tr_fail(tr_status status, const char *format, ...)
{
    TR__FAIL_AS_TOLD(status, format);
    return status;
}

tr_status tr_status_of(const void *object)
{
    return tr__fail_stored(tr__error_of(object));
}

/* ---- Scopes ---------------------------------------------------------------------------------------------------- */

static void give_back(tr__object *o, int64_t ref)
{
    if (atomic_fetch_sub_explicit(&o->refs, ref, memory_order_acq_rel) != ref) return;
    if (o->type->destroy) o->type->destroy(o);
    tr__error_unref(o->error);
    /* For who still has a pointer to it, which is their error; volatile, as a compiler may leave out what nobody may read. */
    *(tr__error *volatile *)&o->error = &gone_error;
    free(o);
}

static void drop_handles(size_t down_to)
{
    /* Newest first: what was built last stands on what was built before. Destroying may not add handles. */
    while (state.count > down_to) give_back(state.handles[--state.count], TR__SCOPE_REF);
}

static void thread_ends(void *unused)
{
    (void)unused;
    drop_handles(0);
    free(state.handles);
    free(state.marks);
    state.handles = NULL;
    state.marks = NULL;
    state.capacity = state.mark_capacity = state.depth = 0;
    state.has_exit_hook = false;
}

/* Process-wide: the key whose destructor releases a thread's handles. */
static pthread_key_t exit_key;
static bool has_exit_key; /* else others have taken all keys, and what a thread has outside its scopes stays when it ends */
static pthread_once_t exit_once = PTHREAD_ONCE_INIT;

static void make_exit_key(void)
{
    has_exit_key = pthread_key_create(&exit_key, thread_ends) == 0;
}

static void hook_thread_exit(void)
{
    pthread_once(&exit_once, make_exit_key);
    state.has_exit_hook = has_exit_key && pthread_setspecific(exit_key, &state) == 0;
}

/* tr__grow() of one of the thread's two lists, which go when it ends. */
static bool grow(void *list, size_t count, size_t *room, size_t bytes)
{
    if (!state.has_exit_hook) hook_thread_exit();
    return tr__grow(list, count, room, bytes);
}

static bool scope_add(tr__object *object)
{
    bool full = state.count == state.capacity;
    if (full && !grow(&state.handles, state.count, &state.capacity, sizeof *state.handles)) return false;
    state.handles[state.count++] = object;
    return true;
}

void tr_scope_push(void)
{
    bool full = state.depth == state.mark_capacity;
    if (full && !grow(&state.marks, state.depth, &state.mark_capacity, sizeof *state.marks))
        state.lost_scopes++;
    else
        state.marks[state.depth++] = (mark){state.count, ++state.scopes};
}

void tr_scope_pop(void)
{
    if (state.lost_scopes) {
        state.lost_scopes--;
    } else if (state.depth) {
        drop_handles(state.marks[--state.depth].begin);
    }
}

uint64_t tr__scope_innermost(size_t *held)
{
    const mark *innermost = state.depth ? &state.marks[state.depth - 1] : &(mark){0, 0};
    *held = state.count - innermost->begin;
    return innermost->scope;
}

void *tr__scope_ref(const void *object)
{
    if (!object || immortal(object)) return (void *)object;
    atomic_fetch_add_explicit(&((tr__object *)object)->refs, TR__SCOPE_REF, memory_order_relaxed);
    (void)scope_add((tr__object *)object); /* without memory it stays for ever, which is better than being gone */
    return (void *)object;
}

/* Has it ended, as far as can be told? References to it must not be counted: its head is the allocator's. */
static bool gone(const void *object)
{
    return ((const tr__object *)object)->error == &gone_error;
}

bool tr__object_is(const void *object, const tr__type *type)
{
    return ((const tr__object *)object)->type == type || immortal(object) || gone(object);
}

void *tr_object_keep(const void *object)
{
    if (object && !immortal(object) && !gone(object)) tr__ref(object);
    return (void *)object;
}

void *tr_object_escape(const void *object)
{
    if (!object || immortal(object) || state.depth == 0 || state.lost_scopes) return (void *)object;
    /* Under the innermost mark: the object's new handle goes where the mark is, and the mark moves up by one. */
    mark *innermost = &state.marks[state.depth - 1];
    size_t begin = innermost->begin;
    for (size_t i = state.count; i-- > begin;) {
        if (state.handles[i] != object) continue;
        tr__object *displaced = state.handles[begin];
        state.handles[begin] = state.handles[i];
        if (i != begin) state.handles[i] = displaced;
        innermost->begin++;
        return (void *)object;
    }
    return (void *)object; /* not of the innermost scope: it outlives it anyway */
}

/* ---- Objects --------------------------------------------------------------------------------------------------- */

/* refs: the first reference, a scope's or another. */
static tr__object *object_alloc(const tr__type *type, size_t bytes, int64_t refs)
{
    tr__object *object = calloc(1, bytes);
    if (!object) {
        tr__fail_stored(&no_memory_error);
        return NULL;
    }
    object->type = type;
    atomic_init(&object->refs, refs);
    return object;
}

void *tr__object_new_sized(const tr__type *type, size_t bytes)
{
    tr__object *object = object_alloc(type, type->size + bytes, TR__SCOPE_REF);
    if (!object) return &no_memory_object;
    if (!scope_add(object)) {
        free(object);
        tr__fail_stored(&no_memory_error);
        return &no_memory_object;
    }
    return object;
}

void *tr__object_new(const tr__type *type)
{
    return tr__object_new_sized(type, 0);
}

void *tr__object_new_kept(const tr__type *type)
{
    tr__object *object = object_alloc(type, type->size, 1);
    return object ? (void *)object : (void *)&no_memory_object;
}

void *tr_object_new(const tr_object_type *type)
{
    return tr__object_new(type);
}

tr_status tr_object_break(void *object)
{
    return tr__object_break(object);
}

void tr__error_set_source(void *object, const void *source, size_t root_length, size_t path_length)
{
    tr__object *o = object;
    if (immortal(o) || !o->error || o->error == &no_memory_error) return;
    o->error->source = source;
    o->error->root_length = root_length;
    o->error->path_length = path_length;
}

tr_status tr__object_break(void *object)
{
    tr__object *o = object;
    if (!o->error) o->error = tr__error_take();
    return o->error->status;
}

static void *object_in_error(const tr__type *type, tr__error *error)
{
    tr__object *object = tr__object_new(type);
    if (immortal(object))
        tr__error_unref(error);
    else
        object->error = error;
    return object;
}

void *tr__object_fail(const tr__type *type, tr_status status, const char *format, ...)
{
    TR__FAIL_AS_TOLD(status, format);
    return object_in_error(type, tr__error_take());
}

void *tr__object_failed(const tr__type *type)
{
    return object_in_error(type, tr__error_take());
}

void *tr__object_pass(const tr__type *type, const void *in_error)
{
    tr__error *error = ((const tr__object *)in_error)->error;
    if (gone(in_error)) { /* a copy: by that error itself, this object would count as gone */
        tr__fail_stored(error);
        return tr__object_failed(type);
    }
    atomic_fetch_add(&error->refs, 1);
    return object_in_error(type, error);
}

void tr__unref(const void *object)
{
    if (object && !immortal(object)) give_back((tr__object *)object, 1);
}

void tr_release(const void *object)
{
    tr__object *o = (tr__object *)object;
    if (!o || gone(o)) return;
    if (immortal(o) || atomic_load_explicit(&o->refs, memory_order_relaxed) % TR__SCOPE_REF > 0) {
        tr__unref(o);
        return;
    }
    tr__fail(TR_STATE, "tr_release: no tr_keep() took a reference to this %s: only its scope has one, which it gives back when "
        "it ends", o->type->name);
    tr__object_break(o);
}

/* ---- Grad mode --------------------------------------------------------------------------------------------------- */

bool tr__grad_mode(void)
{
    return !state.no_grad;
}

bool tr__grad_mode_set(bool on)
{
    bool was = !state.no_grad;
    state.no_grad = !on;
    return was;
}

tr_dtype tr__autocast(void)
{
    return state.autocast;
}

tr_dtype tr__autocast_set(tr_dtype dtype)
{
    tr_dtype was = state.autocast;
    state.autocast = dtype;
    return was;
}

tr__call_site tr__call_site_enter(const char *file, int line)
{
    tr__call_site before = state.place;
    if (file) state.place = (tr__call_site){file, line};
    return before;
}

void tr__call_site_leave(tr__call_site *before)
{
    state.place = *before;
}

const char *tr__call_file(const char *own)
{
    return state.place.file ? state.place.file : own;
}

int tr__call_line(int own)
{
    return state.place.file ? state.place.line : own;
}

uint64_t tr__seeds_next(void)
{
    return state.seeds++;
}
