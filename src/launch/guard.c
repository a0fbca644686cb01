#include "launch/guard.h"
#include "launch/spawn.h"

#include "base/log.h"
#include "base/object.h"

#include <trireme/launch.h>

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- The guard itself ---------------------------------------------------------------------------------------------- */

/* Groups are killed in one go: no member escapes by a fork. Strays may fork while they are looked for, and show no
 * environment in the middle of an exec: so there have to be none twice in a row. */
static void kill_all(const pid_t *groups, int count, const char *mark)
{
    enum { PAUSE_MS = 10, PASSES_MOST = 1000 }; /* ten seconds: what is left then cannot be killed */
    for (int i = 0; i < count; i++) kill(-groups[i], SIGKILL);
    for (int pass = 0, clean = 0; pass < PASSES_MOST && clean < 2; pass++) {
        clean = tr__sweep(NULL, 0, mark, SIGKILL) ? 0 : clean + 1;
        poll(NULL, 0, PAUSE_MS);
    }
}

/* The guard is forked before any rank and only ever makes async-signal-safe calls. The groups come to it over a socket;
 * end of file means that the launcher is gone, for nobody else has the other end. */
static void guard(int socket, const char *mark) __attribute__((noreturn));
static void guard(int socket, const char *mark)
{
    setsid();
    prctl(PR_SET_NAME, "trireme-guard");
    /* Whatever this process had open must not stay open because of the guard. */
    if (close_range(0, socket - 1, 0) < 0 || close_range(socket + 1, ~0u, 0) < 0) {
        for (int fd = (int)sysconf(_SC_OPEN_MAX); fd >= 0; fd--)
            if (fd != socket) close(fd);
    }
    pid_t groups[TR_LAUNCH_MAX_RANKS];
    int count = 0;
    while (count < TR_LAUNCH_MAX_RANKS && read(socket, &groups[count], sizeof *groups) == sizeof *groups) count++;
    char more;
    while (read(socket, &more, 1) > 0) continue;
    kill_all(groups, count, mark);
    _exit(0);
}

/* ---- Here -------------------------------------------------------------------------------------------------------- */

static tr_status start(tr__guard *g)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
        return tr__fail_errno(TR_IO, errno, "launch: cannot open a socket (see ulimit -n)");
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* and so they stay in the guard */
    pid_t pid = fork();
    int error = errno;
    if (pid == 0) {
        close(ends[1]);
        guard(ends[0], g->options.mark);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    close(ends[0]);
    if (pid > 0) {
        g->pid = pid;
        g->socket = ends[1];
        return TR_OK;
    }
    close(ends[1]);
    return tr__fail_errno(error == ENOMEM ? TR_NO_MEMORY : TR_IO, error,
        "launch: cannot start a process (too little memory, or see ulimit -u)");
}

static tr_status tell(const tr__guard *g, pid_t group)
{
    ssize_t put;
    while ((put = send(g->socket, &group, sizeof group, MSG_NOSIGNAL)) < 0 && errno == EINTR) continue;
    return put == sizeof group ? TR_OK : tr__fail_errno(TR_IO, errno, "launch: cannot reach the guard process");
}

static tr_status watch(tr__guard *g);

static tr_status replace(tr__guard *g)
{
    pid_t old = g->pid;
    tr__guard_stop(g);
    tr_status status = start(g);
    for (int i = 0; i < g->groups && status == TR_OK; i++) status = tell(g, g->options.groups[i]);
    if (status == TR_OK) status = watch(g);
    if (status)
        return tr__fail_context(status, "the job's guard, process %d, was killed, and there is no other", (int)old);
    tr__log(TR_LOG_WARN, "launch: the job's guard, process %d, was killed; process %d is in its place", (int)old,
            (int)g->pid);
    return TR_OK;
}

/* Who kills the guard may kill the launcher next. */
static void on_closed(uv_handle_t *poll)
{
    tr__guard *g = poll->data;
    if (g->pid && replace(g) != TR_OK) g->options.lost(g->options.user);
}

static void on_death(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events; /* it never writes: this is the end of file */
    uv_close((uv_handle_t *)poll, on_closed);
}

static tr_status watch(tr__guard *g)
{
    if (uv_poll_init(g->options.loop, &g->death, g->socket) < 0)
        return tr__fail(TR_NO_MEMORY, "launch: cannot watch the guard process %d", (int)g->pid);
    g->death.data = g;
    uv_poll_start(&g->death, UV_READABLE, on_death);
    return TR_OK;
}

tr_status tr__guard_start(tr__guard *g, const tr__guard_options *options)
{
    *g = (tr__guard){.options = *options};
    TR__TRY(start(g));
    tr_status status = watch(g);
    if (status) tr__guard_stop(g);
    return status;
}

tr_status tr__guard_add(tr__guard *g)
{
    return tell(g, g->options.groups[g->groups++]);
}

void tr__guard_stop(tr__guard *g)
{
    if (!g->pid) return;
    if (uv_is_active((uv_handle_t *)&g->death)) uv_poll_stop(&g->death);
    kill(g->pid, SIGKILL);
    while (waitpid(g->pid, NULL, 0) < 0 && errno == EINTR) continue;
    close(g->socket);
    g->pid = 0;
}
