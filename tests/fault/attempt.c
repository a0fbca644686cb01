#include "trial.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* HANG_MS: far beyond what an attempt takes (a quarter of a second), and what a rank waits for others. LOOK_US: how
 * often the moments of ranks are looked at. */
enum { HANG_MS = 100000, LEFT_MS = 20000, LOOK_US = 300 };

bool object(char wrong[TEXT], const char *format, ...)
{
    va_list arguments;
    size_t used = strlen(wrong);
    va_start(arguments, format);
    vsnprintf(wrong + used, TEXT - used, format, arguments);
    va_end(arguments);
    used = strlen(wrong);
    snprintf(wrong + used, TEXT - used, "\n");
    return false;
}

fault_page *attempt_page(const char *dir)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/page", dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(fault_page)) != 0) abort();
    fault_page *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (page == MAP_FAILED) abort();
    return page;
}

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

static void set_up(const attempt *a)
{
    char path[PATH_MAX];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsid();
    snprintf(path, sizeof path, "%s/output", a->dir);
    int out = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600), in = open("/dev/null", O_RDONLY);
    if (out < 0 || in < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0) _exit(126);
    snprintf(path, sizeof path, "%s/tmp", a->dir);
    setenv("TMPDIR", path, 1);
    snprintf(path, sizeof path, "%s/page", a->dir);
    setenv(FAULT_PAGE, path, 1);
    setenv("TRIREME_CHECK", "wire", 1); /* checksums over TCP also where ranks know that they share a host */
    setenv("OMP_NUM_THREADS", "1", 1);
}

static pid_t start(const attempt *a)
{
    char folder[PATH_MAX], text[PATH_MAX];
    snprintf(folder, sizeof folder, "%s/disk/out", a->dir);
    snprintf(text, sizeof text, "%s/../text", a->dir);
    pid_t pid = fork();
    if (pid) return pid;
    set_up(a);
    a->page->launcher = getpid();
    execl(TRIREME, TRIREME, "run", "-n", "4", FAULT_JOB, folder, text, (char *)NULL);
    _exit(127);
}

/* ---- Killing and stopping ---------------------------------------------------------------------------------------- */

static bool kills(const fault *f)
{
    return f->kind == FAULT_KILL || f->kind == FAULT_KILL_LAUNCHER || f->kind == FAULT_FLIP_WRITE ||
           f->kind == FAULT_TORN_WRITE || f->kind == FAULT_ROT;
}

/* What is to happen to processes, as soon as its moment has come. due: 0, or when; struck: how often it has. */
static void strike(const attempt *a, int64_t *due, int *struck)
{
    fault_page *p = a->page;
    const fault *f = &p->fault;
    if ((!kills(f) && f->kind != FAULT_STOP) || *struck == 2) return;
    if (!*due && atomic_load(&p->moments[f->victim]) >= f->moment) *due = now_us() + f->delay_us;
    if (!*due || now_us() < *due) return;
    pid_t victim = f->kind == FAULT_KILL_LAUNCHER ? p->launcher : atomic_load(&p->pids[f->victim]);
    bool first = ++*struck == 1;
    kill(victim, f->kind != FAULT_STOP ? SIGKILL : first ? SIGSTOP : SIGCONT);
    if (f->kind == FAULT_STOP && first)
        *due += f->pause_ms * (int64_t)1000;
    else
        *struck = 2;
    if (kills(f) || first) {
        if (f->kind != FAULT_FLIP_WRITE && f->kind != FAULT_TORN_WRITE) atomic_store(&p->fired, true);
    }
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

/* The processes that have become ours, or still are. */
static void list_children(char *list, size_t bytes, int sig)
{
    char path[64];
    pid_t pid;
    size_t n = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *f = fopen(path, "re");
    list[0] = 0;
    while (f && fscanf(f, "%d", &pid) == 1) {
        if (n < bytes) n += (size_t)snprintf(list + n, bytes - n, " %d", (int)pid);
        if (sig) kill(pid, sig);
    }
    if (f) fclose(f);
}

static void explain(const attempt *a, char wrong[TEXT])
{
    char command[PATH_MAX], line[512];
    snprintf(command, sizeof command, "%s why %d 2>&1", TRIREME, (int)a->page->launcher);
    FILE *f = popen(command, "re");
    while (f && fgets(line, sizeof line, f)) object(wrong, "  %.*s", (int)strcspn(line, "\n"), line);
    if (f) pclose(f);
}

/* Reaps whoever ends, until nobody is left; then what does not end is an error. */
static bool reap_all(char wrong[TEXT])
{
    char list[256];
    for (int64_t until = now_us() + LEFT_MS * (int64_t)1000; now_us() < until; usleep(LOOK_US)) {
        while (waitpid(-1, NULL, WNOHANG) > 0) continue;
        if (waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD) return true;
    }
    list_children(list, sizeof list, 0);
    object(wrong, "these processes are left behind:%s", list);
    do list_children(list, sizeof list, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0);
    return false;
}

static void read_output(attempt *a)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/output", a->dir);
    FILE *f = fopen(path, "re");
    size_t length = f ? fread(a->output, 1, sizeof a->output - 1, f) : 0;
    a->output[length] = 0;
    if (f) fclose(f);
}

bool attempt_run(attempt *a, char wrong[TEXT])
{
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t launcher = start(a);
    if (launcher < 0) return object(wrong, "no process can be started: %s", strerror(errno));
    int64_t due = 0, until = now_us() + HANG_MS * (int64_t)1000;
    int struck = 0, status = 0;
    bool ended = false, well = true;
    while (!(ended = waitpid(launcher, &status, WNOHANG) == launcher) && now_us() < until) {
        strike(a, &due, &struck);
        usleep(LOOK_US);
    }
    if (struck == 1) kill(atomic_load(&a->page->pids[a->page->fault.victim]), SIGCONT);
    if (!ended) {
        well = object(wrong, "it hangs; after %d s:", HANG_MS / 1000);
        explain(a, wrong);
        kill(launcher, SIGKILL);
        waitpid(launcher, &status, 0);
    }
    if (!reap_all(wrong)) well = false;
    a->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    read_output(a);
    if (a->page->wrong[0]) well = object(wrong, "the model of the disk: %s", a->page->wrong);
    return well;
}
