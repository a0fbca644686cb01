/* What tests count: descriptors in /proc/self/fd, threads in /proc/self/task, files, mappings. */
#ifndef TR_TESTS_ENTRIES_H
#define TR_TESTS_ENTRIES_H

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Of a folder; 0 when there is none. */
static inline int count_entries(const char *folder)
{
    int count = 0;
    DIR *d = opendir(folder);
    if (!d) return 0;
    while (readdir(d)) count++;
    closedir(d);
    return count;
}

/* How many more it has than before. A thread that was joined stands there a little longer, and others may be slower to hang up. */
static inline int more_entries(const char *folder, int before)
{
    int more = count_entries(folder) - before;
    for (int ms = 0; ms < 60000 && more > 0; ms++) {
        usleep(1000);
        more = count_entries(folder) - before;
    }
    return more > 0 ? more : 0;
}

/* Names of ours in /dev/shm, where other programs have theirs. */
static inline int count_shared_files(void)
{
    int count = 0;
    struct dirent *entry;
    DIR *d = opendir("/dev/shm");
    while (d && (entry = readdir(d))) count += strstr(entry->d_name, "trireme") != NULL;
    if (d) closedir(d);
    return count;
}

/* Of our segments, in this process. */
static inline int count_mappings(void)
{
    int count = 0;
    char line[512];
    FILE *f = fopen("/proc/self/maps", "re");
    while (f && fgets(line, sizeof line, f)) count += strstr(line, "memfd:trireme") != NULL;
    if (f) fclose(f);
    return count;
}

#endif
