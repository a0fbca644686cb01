#include "base/process.h"

#include "base/object.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* ---- Environment ------------------------------------------------------------------------------------------------- */

char **tr__environment_copy(size_t extra)
{
    size_t n = 0;
    while (environ && environ[n]) n++;
    char **entries = calloc(n + extra + 1, sizeof *entries);
    for (size_t i = 0; entries && i < n; i++) entries[i] = environ[i];
    return entries;
}

void tr__environment_set(char **entries, char *entry)
{
    size_t name = strcspn(entry, "=") + 1;
    while (*entries && strncmp(*entries, entry, name) != 0) entries++;
    *entries = entry;
}

/* ---- Processes --------------------------------------------------------------------------------------------------- */

static bool asks(int sig)
{
    return sig == SIGINT || sig == SIGTERM || sig == SIGHUP || sig == SIGQUIT || sig == SIGUSR1 || sig == SIGUSR2;
}

/* In the child, between fork and exec: async-signal-safe calls only, for another thread may have held any lock. */
static void become(const tr__process_options *o, pid_t parent, int report) __attribute__((noreturn));
static void become(const tr__process_options *o, pid_t parent, int report)
{
    bool ready = prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && (!o->own_group || setpgid(0, 0) == 0);
    if (getppid() != parent) _exit(127); /* it died before the death signal was asked for */
    /* What has its number already, as when this process's own was closed, may be one that exec closes. */
    for (int i = 0; i < 3 && o->stdio && ready; i++)
        ready = o->stdio[i] == i ? fcntl(i, F_SETFD, 0) == 0 || errno == EBADF : dup2(o->stdio[i], i) == i;
    for (int i = 0; i < 3 && ready; i++) ready = o->keep[i] <= 0 || fcntl(o->keep[i], F_SETFD, 0) == 0;
    if (ready) {
        for (int s = 1; s < NSIG; s++) signal(s, o->not_asked && asks(s) ? SIG_IGN : SIG_DFL);
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        execvpe(o->file, (char *const *)o->argv, o->env);
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

tr_status tr__process_start(const tr__process_options *options, pid_t *pid)
{
    int report[2];
    if (pipe2(report, O_CLOEXEC) < 0) return tr__fail_errno(TR_IO, errno, "cannot open a pipe (see ulimit -n)");

    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* this program's handlers must not run in the child */
    pid_t parent = getpid(), child = fork();
    int error = errno;
    if (child == 0) become(options, parent, report[1]);
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
    return exec_failed(options->file, error);
}
