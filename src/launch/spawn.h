/* What a job's processes are given, what ends them with their parent, and the job that tr_launch() and tr_spawn() share. */
#ifndef TR_LAUNCH_SPAWN_H
#define TR_LAUNCH_SPAWN_H

#include "base/process_call.h"

#include <trireme/launch.h>

#include <sys/types.h>

/* The environment of a job's ranks: this process's, the caller's additions, and the contract on top. Made once; only the
 * numbers of the rank change between two processes. */
typedef struct tr__env {
    char **entries; /* as execve() takes it; the strings are borrowed or lie in text */
    const tr__call *call;
    int first_rank;
    char text[15][320];
} tr__env;

typedef struct tr__env_options {
    const char *const *extra; /* NAME=value, NULL-terminated; or NULL */
    int first_rank, ranks, world; /* of this node, and of all */
    int node;
    const char *host; /* where the store is */
    int port;
    const char *token, *job;
    int restarts, max_restarts;
    int64_t began_ns;     /* when the job's ranks were first started, by the wall clock of node 0 */
    const char *mark;     /* what only processes of this launcher carry */
    const tr__call *call; /* what the ranks are to run; NULL: a program */
} tr__env_options;

tr_status tr__env_make(tr__env *env, const tr__env_options *options);
void tr__env_set_rank(tr__env *env, int local_rank);
void tr__env_free(tr__env *env);

/* How many processes of the job are alive, zombies apart: members of the groups, and strays, which have left them but
 * still carry the launcher's mark in their environment. The strays are sent the signal, 0 for none; but those of a launcher
 * inside the job, which carry its mark too, only SIGKILL: for the rest they have their launcher. Async-signal-safe. */
int tr__sweep(const pid_t *groups, int count, const char *mark, int signal);

/* What tr_spawn() asks of tr_launch() besides. Zero: nothing. */
typedef struct tr__launch_extra {
    const tr__call *call; /* the ranks make this call in processes of this program, and argv is what they are called by */
    int *victim;          /* gets the rank that exited with TR_EXIT_PEER first, if the one that it lost is reported */
} tr__launch_extra;
tr_status tr__launch(const tr_launch_options *options, const tr__launch_extra *extra);

#endif
