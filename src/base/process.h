/* Starting a program as a child that dies with this process. */
#ifndef TR_BASE_PROCESS_H
#define TR_BASE_PROCESS_H

#include <trireme/base.h>

#include <sys/types.h>

typedef struct tr__process_options {
    const char *file;        /* found through PATH */
    const char *const *argv; /* NULL-terminated */
    char *const *env;        /* NULL-terminated */
    const int *stdio;        /* [3], its descriptors 0, 1, 2: each is that number already or a higher one; NULL: ours */
    int keep[3];             /* those > 0: further descriptors that it gets, under the same numbers */
    bool own_group;          /* it leads a process group of its own */
    bool not_asked;          /* it ignores SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2, which its whole group may
                                get: they are for this process, which ends it by other means */
} tr__process_options;

/* Runs a program, with default actions for all other signals and none blocked. A program that cannot be run is an error
 * here, with its reason. The kernel kills the child when the calling *thread* ends. Who starts it waits for it. */
tr_status tr__process_start(const tr__process_options *options, pid_t *pid);

/* Environments are arrays of "NAME=value", borrowed. The array has room for extra + 1 more entries and is the caller's to
 * free; NULL without memory. */
char **tr__environment_copy(size_t extra);
/* Replaces the entry of the same name, or appends it. */
void tr__environment_set(char **entries, char *entry);

#endif
