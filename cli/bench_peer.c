/* A program of somebody else's, held in step with ours. */
#include "bench.h"

#include "options.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
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

/* The child's ends become its stdin and stdout; all the others close on exec. It leads a process group of its own, to be
 * stopped as a whole; where we are killed meanwhile, the kernel ends the group with SIGHUP. */
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
    char *const argv[] = {"sh", "-c", (char *)command, NULL};
    int error = posix_spawn(pid, "/bin/sh", &actions, &attributes, argv, env);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return error;
}

static bool failed(const char *what, const char *why)
{
    tr__complain(TR__BENCH, "%s: %s", what, why);
    return false;
}

/* Between its turns: some poll while they wait, and would take the cores from ours. */
static void let_run(const tr__peer *p, bool run)
{
    if (p->pid > 0) kill(-p->pid, run ? SIGCONT : SIGSTOP);
}

static bool await_ready(tr__peer *p)
{
    char line[4096];
    while (fgets(line, sizeof line, p->from)) {
        if (strcmp(line, "ready\n") != 0) continue;
        let_run(p, false);
        return true;
    }
    return failed("--peer", "it ended before it printed \"ready\"");
}

bool tr__peer_start(tr__peer *p, const char *command, int threads)
{
    int to[2], from[2];
    char omp[32];
    snprintf(omp, sizeof omp, "OMP_NUM_THREADS=%d", threads);
    signal(SIGPIPE, SIG_IGN); /* a peer that ends is a message, not our end */
    char **env = clean_environment(omp);
    if (!env || pipe2(to, O_CLOEXEC) < 0 || pipe2(from, O_CLOEXEC) < 0) {
        free(env);
        return failed("cannot start the peer", strerror(errno));
    }
    pid_t pid = 0;
    int error = spawn(command, env, to[0], from[1], &pid);
    free(env);
    close(to[0]);
    close(from[1]);
    *p = (tr__peer){.pid = pid, .to = fdopen(to[1], "w"), .from = fdopen(from[0], "r")};
    if (error || !p->to || !p->from) return failed("cannot start the peer", strerror(error ? error : errno));
    return await_ready(p);
}

bool tr__peer_ask(tr__peer *p, const char *ask, double *answer)
{
    char line[256], *end;
    let_run(p, true);
    bool answered = fprintf(p->to, "%s\n", ask) >= 0 && fflush(p->to) == 0 && fgets(line, sizeof line, p->from);
    let_run(p, false);
    if (!answered) return failed("--peer", "it ended before its work was done");
    *answer = strtod(line, &end);
    if (end == line || !(*answer > 0) || !isfinite(*answer)) return failed("--peer: not a time", line);
    return true;
}

void tr__peer_stop(tr__peer *p)
{
    let_run(p, true);
    if (p->to) fclose(p->to);
    if (p->from) {
        char rest[4096];
        while (fgets(rest, sizeof rest, p->from)) continue; /* so that it can print to its end */
        fclose(p->from);
    }
    while (p->pid > 0 && waitpid(p->pid, NULL, 0) < 0 && errno == EINTR) continue;
    *p = (tr__peer){0};
}
