/* What tests count: descriptors in /proc/self/fd, threads in /proc/self/task, files. */
#ifndef TR_TESTS_ENTRIES_H
#define TR_TESTS_ENTRIES_H

#include <dirent.h>

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

#endif
