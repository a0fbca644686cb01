#include "launch/spawn.h"

#include "base/object.h"

#include <trireme/launch.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* The guard is forked before any rank and only ever makes async-signal-safe calls. The groups come to it over a socket;
 * end of file means that the launcher is gone, for nobody else has the other end. */
static void guard(int socket) __attribute__((noreturn));
static void guard(int socket)
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
    for (int i = 0; i < count; i++) kill(-groups[i], SIGKILL);
    _exit(0);
}

tr_status tr__guard_start(tr__guard *g)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
        return tr__fail_errno(TR_IO, errno, "launch: cannot open a socket (see ulimit -n)");
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* and so they stay in the guard */
    g->pid = fork();
    int error = errno;
    if (g->pid == 0) {
        close(ends[1]);
        guard(ends[0]);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    close(ends[0]);
    g->socket = ends[1];
    if (g->pid > 0) return TR_OK;
    close(g->socket);
    return tr__fail_errno(error == ENOMEM ? TR_NO_MEMORY : TR_IO, error,
        "launch: cannot start a process (too little memory, or see ulimit -u)");
}

tr_status tr__guard_add(const tr__guard *g, pid_t group)
{
    ssize_t put;
    while ((put = send(g->socket, &group, sizeof group, MSG_NOSIGNAL)) < 0 && errno == EINTR) continue;
    return put == sizeof group ? TR_OK : tr__fail_errno(TR_IO, errno, "launch: cannot reach the guard process");
}

void tr__guard_stop(tr__guard *g)
{
    kill(g->pid, SIGKILL);
    while (waitpid(g->pid, NULL, 0) < 0 && errno == EINTR) continue;
    close(g->socket);
}
