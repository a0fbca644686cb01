#include "base/process_call.h"

#include "base/clock.h"
#include "base/function_place.h"
#include "base/object.h"
#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

static const char variable[] = "TRIREME_SPAWN";
static const char magic[8] = "trcall1";

typedef struct result {
    atomic_int progress; /* tr__call_progress; what follows is set before it becomes TR__CALL_RETURNED */
    tr_status status;
    int64_t returned_ns;
    char message[TR__CALL_MESSAGE];
} result;

/* The memfd: this, and the argument from argument_at on. */
typedef struct tr__call_shared {
    char magic[8];
    pid_t caller;
    int processes;
    tr__function_place function;
    size_t argument_at, argument_bytes; /* the former is a multiple of the page size */
    result results[];
} tr__call_shared;

/* Process-wide: whether tr_spawn_run() is under way. */
static atomic_bool inside;

/* ---- The caller --------------------------------------------------------------------------------------------------- */

static size_t whole_pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

static tr_status write_all(int fd, const char *bytes, size_t count, off_t at)
{
    while (count > 0) {
        ssize_t put = pwrite(fd, bytes, count, at);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return tr__fail_errno(TR_NO_MEMORY, errno, "spawn: no memory for the argument");
        bytes += put, at += put, count -= (size_t)put;
    }
    return TR_OK;
}

static tr_status fill(tr__call *call, const tr__call_shared *head, const void *argument)
{
    if (ftruncate(call->fd, (off_t)(head->argument_at + head->argument_bytes)) < 0)
        return tr__fail_errno(TR_NO_MEMORY, errno, "spawn: no memory for %zu bytes", head->argument_bytes);
    TR__TRY(write_all(call->fd, argument, head->argument_bytes, (off_t)head->argument_at));
    call->mapped = head->argument_at;
    call->shared = mmap(NULL, call->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, call->fd, 0);
    if (call->shared == MAP_FAILED) return tr__fail_errno(TR_NO_MEMORY, errno, "spawn: cannot map the call");
    memcpy(call->shared, head, sizeof *head);
    return TR_OK;
}

tr_status tr__call_make(tr__call *call, tr_spawn_function function, const void *argument, size_t bytes, int processes)
{
    if (tr_spawned())
        return tr__fail(TR_STATE, "spawn: this process was itself started to run a function, but its main() does not begin "
                                  "with TR_SPAWN_ENTRY");
    tr__call_shared head = {.caller = getpid(), .processes = processes, .argument_bytes = bytes};
    memcpy(head.magic, magic, sizeof magic);
    TR__TRY(tr__place_of((tr__any_function)function, &head.function));
    head.argument_at = whole_pages(sizeof head + (size_t)processes * sizeof(result));
    call->fd = memfd_create("trireme-call", MFD_CLOEXEC);
    if (call->fd < 0) return tr__fail_errno(TR_IO, errno, "spawn: cannot make a memfd (see ulimit -n)");
    tr_status status = fill(call, &head, argument);
    if (status) close(call->fd);
    return status;
}

void tr__call_free(tr__call *call)
{
    munmap(call->shared, call->mapped);
    close(call->fd);
}

void tr__call_variable(const tr__call *call, int number, char text[TR__CALL_VARIABLE])
{
    snprintf(text, TR__CALL_VARIABLE, "%s=%d:%d", variable, call->fd, number);
}

tr__call_progress tr__call_progress_of(const tr__call *call, int number)
{
    return (tr__call_progress)atomic_load(&call->shared->results[number].progress);
}

int64_t tr__call_returned_ns(const tr__call *call, int number)
{
    return call->shared->results[number].returned_ns;
}

tr_status tr__call_result(const tr__call *call, int number)
{
    const result *r = &call->shared->results[number];
    switch (tr__call_progress_of(call, number)) {
    case TR__CALL_RETURNED:
        return r->status ? tr__fail(r->status, "%.*s", TR__CALL_MESSAGE - 1, r->message) : TR_OK;
    case TR__CALL_RUNNING:
        return tr__fail(TR_CHILD, "the process ended before its function returned");
    default:
        return tr__fail(TR_CHILD, "the process ended without running its function: main() must begin with TR_SPAWN_ENTRY");
    }
}

/* ---- The process that was started ------------------------------------------------------------------------------- */

/* Which call's process this is; false: none's, or not from its beginning on. */
static bool find_call(int *fd, int *number, tr__call_shared *head)
{
    const char *text = getenv(variable);
    char more;
    return text && sscanf(text, "%d:%d%c", fd, number, &more) == 2 && pread(*fd, head, sizeof *head, 0) == sizeof *head &&
        !memcmp(head->magic, magic, sizeof magic) && head->caller == getppid() && *number >= 0 && *number < head->processes;
}

bool tr_spawned(void)
{
    int fd, number;
    tr__call_shared head;
    return find_call(&fd, &number, &head);
}

bool tr__call_inside(void)
{
    return atomic_load(&inside);
}

/* The argument is the process's own: what it writes there nobody else sees. */
static tr_status run(int fd, int number, const tr__call_shared *head)
{
    tr__any_function function = NULL;
    TR__TRY(tr__place_function(&head->function, &function));
    size_t bytes = head->argument_bytes;
    void *argument = NULL;
    if (bytes) argument = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, (off_t)head->argument_at);
    if (argument == MAP_FAILED) return tr__fail_errno(TR_NO_MEMORY, errno, "spawn: cannot map the argument");
    close(fd);
    TR_SCOPE;
    return ((tr_spawn_function)function)(number, argument, bytes);
}

int tr_spawn_run(void)
{
    int fd, number;
    tr__call_shared head;
    if (!find_call(&fd, &number, &head)) return EXIT_FAILURE;
    tr__call_shared *shared = mmap(NULL, head.argument_at, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED) return EXIT_FAILURE;
    unsetenv(variable);
    prctl(PR_SET_NAME, program_invocation_short_name); /* the kernel calls it "exe" */
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    result *r = &shared->results[number];
    atomic_store(&r->progress, TR__CALL_RUNNING);
    atomic_store(&inside, true);
    r->status = run(fd, number, &head);
    if (r->status) snprintf(r->message, sizeof r->message, "%s", tr_error_message());
    r->returned_ns = tr__now_ns();
    atomic_store(&r->progress, TR__CALL_RETURNED);
    return r->status == TR_PEER ? TR_EXIT_PEER : r->status ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* ---- Starting such a process ------------------------------------------------------------------------------------- */

tr_status tr__call_start(const tr__call *call, int number, const int keep[2], pid_t *pid)
{
    char text[TR__CALL_VARIABLE];
    tr__call_variable(call, number, text);
    char **env = tr__environment_copy(1);
    if (!env) return tr__fail(TR_NO_MEMORY, "spawn: no memory for the environment of a process");
    tr__environment_set(env, text);
    const char *argv[] = {program_invocation_name, NULL};
    const tr__process_options o = {.file = TR__CALL_PROGRAM, .argv = argv, .env = env,
        .keep = {call->fd, keep[0], keep[1]}, .not_asked = true};
    tr_status status = tr__process_start(&o, pid);
    free(env);
    return status;
}
