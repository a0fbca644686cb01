/* Finding what the ranks have started. The guard, which is forked from a program that may have threads, does so, too:
 * therefore all here is async-signal-safe, without stdio and malloc. */
#include "launch/spawn.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/pidfd.h>
#include <unistd.h>

enum { NAME = 16 }; /* of a process's folder: its number */

/* Opens /proc/PID/file; -1 when the process is gone or not ours to look at. */
static int open_file(int proc, const char *pid, const char *file)
{
    char path[NAME + 16];
    stpcpy(stpcpy(stpcpy(path, pid), "/"), file);
    return openat(proc, path, O_RDONLY | O_CLOEXEC);
}

static ssize_t read_again(int fd, char *text, size_t bytes)
{
    ssize_t got;
    while ((got = read(fd, text, bytes)) < 0 && errno == EINTR) continue;
    return got;
}

static pid_t number(const char *text)
{
    pid_t n = 0;
    while (*text >= '0' && *text <= '9') n = n * 10 + (*text++ - '0');
    return n;
}

/* The process group of a process that is alive; 0 when it is not. */
static pid_t living_group(int proc, const char *pid)
{
    char stat[512];
    int fd = open_file(proc, pid, "stat");
    if (fd < 0) return 0;
    ssize_t got = read_again(fd, stat, sizeof stat - 1);
    close(fd);
    stat[got > 0 ? got : 0] = '\0';
    /* "PID (name) state parent group …"; the name may hold anything */
    const char *state = strrchr(stat, ')');
    const char *parent = state && state[1] ? strchr(state + 2, ' ') : NULL;
    const char *group = parent ? strchr(parent + 1, ' ') : NULL;
    return group && !strchr("ZXx", state[2]) ? number(group + 1) : 0;
}

/* Whose is a process? With its launcher's mark go those of the launchers around that one, before it. */
typedef enum owner { NOT_OURS, OURS, OF_LAUNCHER_INSIDE } owner;

static owner owner_of(int proc, const char *pid, const char *mark)
{
    char part[16 << 10]; /* of the environment; its last bytes, as many as the mark has, stay there for the next read */
    size_t length = strlen(mark), used = 0;
    int fd = open_file(proc, pid, "environ");
    if (fd < 0) return NOT_OURS;
    owner found = NOT_OURS;
    for (ssize_t got = 1; got > 0 && found == NOT_OURS;) {
        got = read_again(fd, part + used, sizeof part - used);
        if (got > 0) used += (size_t)got;
        const char *at = memmem(part, used, mark, length);
        bool followed = at && at + length < part + used;
        if (at && (followed || got <= 0)) found = followed && at[length] == ':' ? OF_LAUNCHER_INSIDE : OURS;
        size_t past = used > length ? used - length : 0;
        memmove(part, part + past, used - past);
        used -= past;
    }
    close(fd);
    return found;
}

/* Once it is held by a descriptor, its number is its own: so whether it is ours is asked again. */
static void signal_stray(int proc, const char *pid, const char *mark, int signal)
{
    int held = pidfd_open(number(pid), 0);
    if (held >= 0) {
        if (owner_of(proc, pid, mark) != NOT_OURS) pidfd_send_signal(held, signal, NULL, 0);
        close(held);
    } else if (errno != ESRCH) { /* older kernels and strict sandboxes have no pidfd */
        kill(number(pid), signal);
    }
}

/* Looks at one process; true when it is of the job. */
static bool visit(int proc, const char *name, const pid_t *groups, int count, const char *mark, int signal)
{
    pid_t group = living_group(proc, name);
    if (!group || number(name) == getpid()) return false;
    for (int i = 0; i < count; i++)
        if (groups[i] == group) return true;
    owner whose = owner_of(proc, name, mark);
    bool told = whose == OF_LAUNCHER_INSIDE && signal != SIGKILL; /* by its launcher: a second signal might mean more */
    if (whose != NOT_OURS && signal && !told) signal_stray(proc, name, mark, signal);
    return whose != NOT_OURS;
}

int tr__sweep(const pid_t *groups, int count, const char *mark, int signal)
{
    _Alignas(struct dirent64) char entries[8 << 10];
    int found = 0, proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ssize_t got;
    while (proc >= 0 && (got = getdents64(proc, entries, sizeof entries)) > 0) {
        for (ssize_t at = 0; at < got;) {
            const struct dirent64 *entry = (const struct dirent64 *)(entries + at);
            at += entry->d_reclen;
            bool process = number(entry->d_name) > 0 && strlen(entry->d_name) < NAME;
            if (process) found += visit(proc, entry->d_name, groups, count, mark, signal);
        }
    }
    if (proc >= 0) close(proc);
    return found;
}
