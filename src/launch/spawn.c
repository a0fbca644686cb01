#include "launch/spawn.h"

#include "base/object.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* ---- Environment ------------------------------------------------------------------------------------------------- */

static void env_set(tr__env *env, char *entry)
{
    size_t name = strcspn(entry, "=") + 1;
    for (size_t i = 0; i < env->count; i++) {
        if (!strncmp(env->entries[i], entry, name)) {
            env->entries[i] = entry;
            return;
        }
    }
    env->entries[env->count++] = entry;
}

static size_t count_entries(const char *const *entries)
{
    size_t n = 0;
    while (entries && entries[n]) n++;
    return n;
}

tr_status tr__env_make(tr__env *env, const char *const *extra, int ranks, int port, const char *token, const char *job)
{
    enum { contract = sizeof env->text / sizeof *env->text };
    size_t inherited = count_entries((const char *const *)environ), more = count_entries(extra);
    env->count = 0;
    env->entries = calloc(inherited + more + contract + 1, sizeof *env->entries);
    if (!env->entries) return tr__fail(TR_NO_MEMORY, "launch: no memory for the environment of the ranks");

    for (size_t i = 0; i < inherited; i++) env->entries[env->count++] = environ[i];
    for (size_t i = 0; i < more; i++) env_set(env, (char *)extra[i]);
    size_t bytes = sizeof *env->text;
    snprintf(env->text[2], bytes, "WORLD_SIZE=%d", ranks);
    snprintf(env->text[3], bytes, "LOCAL_WORLD_SIZE=%d", ranks);
    snprintf(env->text[4], bytes, "MASTER_ADDR=127.0.0.1");
    snprintf(env->text[5], bytes, "MASTER_PORT=%d", port);
    snprintf(env->text[6], bytes, "TRIREME_TOKEN=%s", token);
    snprintf(env->text[7], bytes, "TRIREME_STORE=1");
    if (job)
        snprintf(env->text[8], bytes, "TRIREME_JOB=%s", job);
    else
        snprintf(env->text[8], bytes, "TRIREME_JOB=%d", (int)getpid());
    tr__env_set_rank(env, 0);
    for (int i = 0; i < contract; i++) env_set(env, env->text[i]);
    return TR_OK;
}

void tr__env_set_rank(tr__env *env, int rank)
{
    snprintf(env->text[0], sizeof *env->text, "RANK=%d", rank);
    snprintf(env->text[1], sizeof *env->text, "LOCAL_RANK=%d", rank);
}

void tr__env_free(tr__env *env)
{
    free(env->entries);
    env->entries = NULL;
}

/* ---- Processes --------------------------------------------------------------------------------------------------- */

/* In the child, between fork and exec: async-signal-safe calls only, for another thread may have held any lock. */
static void become(const char *const *argv, char *const *env, const int stdio[3], pid_t parent, int report)
    __attribute__((noreturn));
static void become(const char *const *argv, char *const *env, const int stdio[3], pid_t parent, int report)
{
    bool ready = prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && setpgid(0, 0) == 0;
    if (getppid() != parent) _exit(127); /* it died before the death signal was asked for */
    for (int i = 0; i < 3 && ready; i++) ready = stdio[i] == i || dup2(stdio[i], i) == i;
    if (ready) {
        for (int s = 1; s < NSIG; s++) signal(s, SIG_DFL);
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        execvpe(argv[0], (char *const *)argv, env);
    }
    int error = errno;
    while (write(report, &error, sizeof error) < 0 && errno == EINTR) continue;
    _exit(127);
}

static tr_status exec_failed(const char *program, int error)
{
    bool is_path = strchr(program, '/');
    if (error == ENOENT && is_path && access(program, F_OK) == 0)
        return tr__fail(TR_NOT_FOUND, "cannot run %s: the interpreter that it names is missing", program);
    if (error == ENOENT && !is_path && access(program, X_OK) == 0)
        return tr__fail(TR_NOT_FOUND, "cannot run %s: not found in PATH; the one in this folder is ./%s", program, program);
    return tr__fail_errno(error == ENOENT ? TR_NOT_FOUND : TR_IO, error, "cannot run %s", program);
}

tr_status tr__spawn(const char *const *argv, char *const *env, const int stdio[3], pid_t *pid)
{
    int report[2];
    if (pipe2(report, O_CLOEXEC) < 0) return tr__fail_errno(TR_IO, errno, "cannot open a pipe (see ulimit -n)");

    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* this program's handlers must not run in the child */
    pid_t parent = getpid(), child = fork();
    int error = errno;
    if (child == 0) become(argv, env, stdio, parent, report[1]);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    close(report[1]);
    if (child < 0) {
        close(report[0]);
        return tr__fail_errno(error == ENOMEM ? TR_NO_MEMORY : TR_IO, error,
            "cannot start a process (too little memory, or see ulimit -u)");
    }

    /* The pipe closes on exec: an empty read says that the program runs. */
    ssize_t got;
    while ((got = read(report[0], &error, sizeof error)) < 0 && errno == EINTR) continue;
    close(report[0]);
    if (got == 0) {
        *pid = child;
        return TR_OK;
    }
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR) continue;
    return exec_failed(argv[0], error);
}
