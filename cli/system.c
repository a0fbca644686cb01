/* What the system says about itself: files of /proc, limits of control groups. */
#include "system.h"

#include "options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first line of a file, without its newline; false when there is none. */
bool tr__first_line(const char *path, char *text, size_t bytes)
{
    FILE *file = fopen(path, "re");
    if (!file) return false;
    bool read = fgets(text, (int)bytes, file);
    fclose(file);
    if (read) text[strcspn(text, "\n")] = '\0';
    return read;
}

/* What follows "key:" in a file of such lines, as /proc has them. */
bool tr__line_of(const char *path, const char *key, char *text, size_t bytes)
{
    FILE *file = fopen(path, "re");
    bool found = false;
    while (file && !found && fgets(text, (int)bytes, file)) {
        const char *colon = strchr(text, ':');
        found = colon && !strncmp(text, key, strlen(key)) && strspn(text + strlen(key), " \t:") > 0;
        if (found) memmove(text, colon + 1, strlen(colon));
    }
    if (file) fclose(file);
    return found;
}

double tr__meminfo_gib(const char *key)
{
    char text[128];
    return tr__line_of("/proc/meminfo", key, text, sizeof text) ? atof(text) / (1 << 20) : 0;
}

/* A limit that a control group sets: the first number in the file, over the second one if there is; none: infinite. */
static double read_limit(const char *folder, const char *group, const char *file)
{
    char path[1200], text[128];
    double limit, period;
    snprintf(path, sizeof path, "%s%s/%s", folder, group, file);
    if (!tr__first_line(path, text, sizeof text)) return INFINITY;
    int numbers = sscanf(text, "%lf %lf", &limit, &period);
    return numbers < 1 || limit <= 0 ? INFINITY : numbers == 2 && period > 0 ? limit / period : limit;
}

/* The number in a line "key number" of a file; 0 when there is none. */
static double number_of(const char *path, const char *key)
{
    char name[64];
    double value, found = 0;
    FILE *file = fopen(path, "re");
    while (file && fscanf(file, "%63s %lf", name, &value) == 2)
        if (!strcmp(name, key)) found = value;
    if (file) fclose(file);
    return found;
}

/* The least limit of this process's control group and those around it. used: what of it is left, where files that could be dropped
 * from memory are no use; NULL: all of it. */
static double group_limit(const char *folder, const char *group, const char *file, const char *used)
{
    char at[1024], path[1200];
    snprintf(at, sizeof at, "%s", strcmp(group, "/") ? group : "");
    double least = INFINITY;
    for (;;) {
        double limit = read_limit(folder, at, file), use = used ? read_limit(folder, at, used) : 0;
        snprintf(path, sizeof path, "%s%s/memory.stat", folder, at);
        if (used) use -= number_of(path, "inactive_file");
        if (isfinite(limit) && isfinite(use)) least = fmin(least, limit - use);
        char *slash = strrchr(at, '/');
        if (!slash) return least;
        *slash = '\0';
    }
}

/* The control group of a controller in version 1 ("4:cpu,cpuacct:/path"), of "" in version 2 ("0::/path"). */
static bool own_group(const char *controller, char *group, size_t bytes)
{
    char line[1200];
    FILE *file = fopen("/proc/self/cgroup", "re");
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        if (!path) continue;
        *path++ = '\0';
        found = *controller ? tr__is_listed(controller, names + 1) : !names[1];
        if (found) snprintf(group, bytes, "%.*s", (int)strcspn(path, "\n"), path);
    }
    if (file) fclose(file);
    return found;
}

/* Cores that the control group's quota amounts to. */
double tr__core_quota(void)
{
    char group[1024];
    double least = own_group("", group, sizeof group) ? group_limit("/sys/fs/cgroup", group, "cpu.max", NULL) : INFINITY;
    if (own_group("cpu", group, sizeof group)) {
        double quota = group_limit("/sys/fs/cgroup/cpu", group, "cpu.cfs_quota_us", NULL);
        double period = group_limit("/sys/fs/cgroup/cpu", group, "cpu.cfs_period_us", NULL);
        least = fmin(least, isfinite(period) ? quota / period : INFINITY);
    }
    return least;
}

/* In bytes: what the control groups allow, or what they leave. */
static double group_memory(bool left)
{
    char group[1024];
    double least = INFINITY;
    if (own_group("", group, sizeof group))
        least = group_limit("/sys/fs/cgroup", group, "memory.max", left ? "memory.current" : NULL);
    if (own_group("memory", group, sizeof group))
        least = fmin(least,
            group_limit("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes", left ? "memory.usage_in_bytes" : NULL));
    return least;
}

double tr__memory_limit_gib(void)
{
    return group_memory(false) / (1 << 30);
}

double tr__memory_left_gib(void)
{
    return fmin(fmax(group_memory(true), 0) / (1 << 30), tr__meminfo_gib("MemAvailable"));
}
