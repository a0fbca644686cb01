/* A program of somebody else's, held in step with ours. */
#include "bench.h"

#include "options.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* Settings of matrix and OpenMP libraries, which a shell may have left over; and what makes a process one of our ranks.
 */
static bool is_unwanted(const char *entry)
{
    static const char *const prefixes[] = {"OPENBLAS_", "GOTO_", "BLIS_", "OMP_", "GOMP_", "KMP_", "MKL_", "DNNL_",
        "ONEDNN_", "TRIREME_",
        "RANK=", "WORLD_SIZE=", "LOCAL_RANK=", "LOCAL_WORLD_SIZE=", "MASTER_ADDR=", "MASTER_PORT="};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (!strncmp(entry, prefixes[i], strlen(prefixes[i]))) return true;
    return false;
}

/* To be freed; it does not own its entries. */
static char **clean_environment(char *threads)
{
    size_t count = 0, kept = 0;
    while (environ[count]) count++;
    char **clean = calloc(count + 2, sizeof *clean);
    for (size_t i = 0; clean && i < count; i++)
        if (!is_unwanted(environ[i])) clean[kept++] = environ[i];
    if (clean) clean[kept] = threads;
    return clean;
}

/* The child's ends become its stdin and stdout; all the others close on exec. It leads a process group of its own. It is
 * a shell that waits for the command rather than become it: between turns the shell at least is stopped, so that the
 * kernel sends SIGHUP to the group if we are killed. */
static int spawn(const char *command, char **env, int in, int out, pid_t *pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t defaults;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    char *const argv[] = {"sh", "-c", "eval \"$1\"; exit $?", "sh", (char *)command, NULL};
    int error = posix_spawn(pid, "/bin/sh", &actions, &attributes, argv, env);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return error;
}

/* ---- Turns ------------------------------------------------------------------------------------------------------- */

typedef struct process {
    pid_t pid, parent, group;
} process;

/* /proc/PID/NAME as text; false: there is no such process any more. */
static bool read_proc(pid_t pid, const char *name, char *text, size_t size)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);
    if (fd >= 0) close(fd);
    if (n >= 0) text[n] = 0;
    return n > 0;
}

/* All processes of the machine, to be freed; NULL without /proc or memory. */
static process *list_processes(size_t *count)
{
    DIR *all = opendir("/proc");
    process *list = NULL;
    size_t room = 0;
    *count = 0;
    for (struct dirent *entry; all && (entry = readdir(all));) {
        process p = {.pid = (pid_t)strtol(entry->d_name, NULL, 10)};
        char stat[512], *name_end;
        if (p.pid <= 0 || !read_proc(p.pid, "stat", stat, sizeof stat)) continue;
        /* PID (NAME) STATE PARENT GROUP …, and NAME may hold anything. */
        if (!(name_end = strrchr(stat, ')')) || sscanf(name_end + 1, " %*c %d %d", &p.parent, &p.group) != 2) continue;
        if (*count == room) {
            process *longer = realloc(list, (room = 2 * room + 256) * sizeof *list);
            if (!longer) break;
            list = longer;
        }
        list[(*count)++] = p;
    }
    if (all) closedir(all);
    return list;
}

/* Puts the peer's processes first, and returns how many they are: its process group, and the descendants of its
 * processes in whatever group. */
static size_t find_peers(process *list, size_t count, pid_t leader)
{
    size_t peers = 0;
    for (size_t known = SIZE_MAX; peers != known;) {
        known = peers;
        for (size_t i = peers; i < count; i++) {
            bool is_peers = list[i].group == leader;
            for (size_t j = 0; j < peers && !is_peers; j++) is_peers = list[i].parent == list[j].pid;
            if (!is_peers) continue;
            process p = list[i];
            list[i] = list[peers];
            list[peers++] = p;
        }
    }
    return peers;
}

/* Does it start processes in groups of their own, as mpirun starts ranks? */
static bool is_launcher(const process *p, const process *peers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (peers[i].parent == p->pid && peers[i].group == peers[i].pid) return true;
    return false;
}

/* Between its turns the peer is stopped: some poll while they wait, and would take the cores from ours. A launcher is
 * not stopped: it is idle, may report each SIGCONT, and must end its ranks, which get no SIGHUP, if we are killed. The
 * shell has stopped before any other process is, and goes on after them: stopped ranks would outlive us without it. */
static void let_run(const tr__peer *p, bool run)
{
    if (p->pid <= 0) return;
    siginfo_t info;
    if (!run && kill(p->pid, SIGSTOP) == 0)
        while (waitid(P_PID, (id_t)p->pid, &info, WSTOPPED | WEXITED | WNOWAIT) < 0 && errno == EINTR) continue;
    size_t count;
    process *list = list_processes(&count);
    count = find_peers(list, count, p->pid);
    for (size_t i = 0; i < count; i++)
        if (list[i].pid != p->pid && !is_launcher(&list[i], list, count)) kill(list[i].pid, run ? SIGCONT : SIGSTOP);
    free(list);
    if (run) kill(p->pid, SIGCONT);
}

/* ---- Lines ------------------------------------------------------------------------------------------------------- */

static bool has_ended(const tr__peer *p)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

/* The next line of what the peer prints, valid until the next call; NULL: there is none. A process that the peer has
 * left behind may hold the pipe open for good, so the end of the peer ends its output, too. */
static const char *read_line(tr__peer *p)
{
    enum { LOOK_MS = 50 };
    p->count -= p->taken;
    memmove(p->text, p->text + p->taken, p->count);
    p->taken = 0;
    for (bool ended = false;;) {
        char *end = memchr(p->text, '\n', p->count);
        if (end) {
            *end = 0;
            p->taken = (size_t)(end - p->text) + 1;
            return p->text;
        }
        if (p->count == sizeof p->text) p->count = 0; /* such a line is not for us */
        struct pollfd output = {.fd = p->from, .events = POLLIN};
        int ready = poll(&output, 1, ended ? 0 : LOOK_MS);
        if (ready > 0) {
            ssize_t n = read(p->from, p->text + p->count, sizeof p->text - p->count);
            if (n <= 0) return NULL;
            p->count += (size_t)n;
        } else if (ended) {
            return NULL;
        } else {
            ended = has_ended(p);
        }
    }
}

/* ---- A peer's life ----------------------------------------------------------------------------------------------- */

/* Whoever failed is not waited for: it gets SIGTERM at once, and all that it has started. */
static bool failed(tr__peer *p, const char *what, const char *why)
{
    tr__complain(TR__BENCH, "%s: %s", what, why);
    if (p->pid > 0) kill(-p->pid, SIGTERM);
    tr__peer_stop(p);
    return false;
}

bool tr__peer_start(tr__peer *p, int threads, const char *command, ...)
{
    int to[2] = {-1, -1}, from[2] = {-1, -1};
    char omp[32], *text = NULL;
    va_list args;
    va_start(args, command);
    int length = vasprintf(&text, command, args);
    va_end(args);
    if (length < 0) return failed(p, "cannot start the peer", strerror(ENOMEM));
    snprintf(omp, sizeof omp, "OMP_NUM_THREADS=%d", threads);
    signal(SIGPIPE, SIG_IGN); /* a peer that ends is a message, not our end */
    char **env = clean_environment(omp);
    bool ready = env && pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0;
    pid_t pid = 0;
    int error = ready ? spawn(text, env, to[0], from[1], &pid) : errno;
    free(text);
    free(env);
    if (to[0] >= 0) close(to[0]);
    if (from[1] >= 0) close(from[1]);
    if (error) {
        if (to[1] >= 0) close(to[1]);
        if (from[0] >= 0) close(from[0]);
        return failed(p, "cannot start the peer", strerror(error));
    }
    *p = (tr__peer){.pid = pid, .to = to[1], .from = from[0]};
    for (const char *line; (line = read_line(p));) {
        if (strncmp(line, "ready", 5) != 0 || (line[5] && line[5] != ' ')) continue;
        snprintf(p->version, sizeof p->version, "%s", line + 5 + strspn(line + 5, " "));
        let_run(p, false);
        return true;
    }
    return failed(p, "--peer", "it ended before it printed \"ready\"");
}

bool tr__peer_ask(tr__peer *p, const char *ask, double *answer)
{
    let_run(p, true);
    const char *line = dprintf(p->to, "%s\n", ask) >= 0 ? read_line(p) : NULL;
    let_run(p, false);
    if (!line) return failed(p, "--peer", "it ended before its work was done");
    char *end;
    *answer = strtod(line, &end);
    if (end == line || !(*answer > 0) || !isfinite(*answer)) return failed(p, "--peer: not a time", line);
    return true;
}

void tr__peer_stop(tr__peer *p)
{
    if (p->pid <= 0) return;
    let_run(p, true);
    close(p->to);
    while (read_line(p)) continue; /* so that it can print to its end */
    close(p->from);
    siginfo_t info;
    while (waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOWAIT) < 0 && errno == EINTR) continue;
    kill(-p->pid, SIGTERM); /* what it has left behind; not yet waited for, its number is nobody else's */
    while (waitpid(p->pid, NULL, 0) < 0 && errno == EINTR) continue;
    p->pid = 0;
}
