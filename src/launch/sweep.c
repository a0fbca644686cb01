#include "launch/spawn.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads up to bytes of /proc/pid/name; 0 when the process is gone or not ours to look at. */
static size_t read_proc(pid_t pid, const char *name, char *text, size_t bytes)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    size_t used = 0;
    ssize_t got;
    while (used < bytes && ((got = read(fd, text + used, bytes - used)) > 0 || (got < 0 && errno == EINTR)))
        if (got > 0) used += (size_t)got;
    close(fd);
    return used;
}

/* The process group of a process that is alive; 0 when it is not. */
static pid_t living_group(pid_t pid)
{
    char stat[512];
    size_t n = read_proc(pid, "stat", stat, sizeof stat - 1);
    stat[n] = '\0';
    char *after = strrchr(stat, ')'); /* the name before it may hold anything */
    char state;
    int parent, group;
    if (!after || sscanf(after + 1, " %c %d %d", &state, &parent, &group) != 3) return 0;
    return strchr("ZXx", state) ? 0 : group;
}

/* Whose is a process? With its launcher's mark go those of the launchers around that one, before it. */
static enum owner { NOT_OURS, OURS, OF_LAUNCHER_INSIDE } owner_of(pid_t pid, const char *mark, char *environment, size_t bytes)
{
    size_t n = read_proc(pid, "environ", environment, bytes), length = strlen(mark);
    const char *at = n ? memmem(environment, n, mark, length) : NULL;
    if (!at) return NOT_OURS;
    return at + length < environment + n && at[length] == ':' ? OF_LAUNCHER_INSIDE : OURS;
}

int tr__sweep(const pid_t *groups, int count, const char *mark, int signal)
{
    enum { environment_bytes = 256 << 10 };
    /* Not opendir(): ThreadSanitizer does not see it, and takes the descriptor for the one that had its number before. */
    int fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *proc = fd >= 0 ? fdopendir(fd) : NULL;
    char *environment = malloc(environment_bytes);
    int found = 0;
    struct dirent *entry;
    while (proc && environment && (entry = readdir(proc))) {
        if (!isdigit((unsigned char)*entry->d_name)) continue;
        pid_t pid = atoi(entry->d_name), group = living_group(pid);
        if (pid == getpid() || !group) continue;
        int i = 0;
        while (i < count && groups[i] != group) i++;
        bool stray = i == count;
        enum owner owner = stray ? owner_of(pid, mark, environment, environment_bytes) : OURS;
        if (owner == NOT_OURS) continue;
        found++;
        bool told = owner == OF_LAUNCHER_INSIDE && signal != SIGKILL; /* by its launcher: a second signal might mean more */
        if (stray && signal && !told) kill(pid, signal);
    }
    free(environment);
    if (proc) closedir(proc);
    else if (fd >= 0) close(fd);
    return found;
}
