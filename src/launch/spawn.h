/* Starting a job's processes: their environment, descriptors and signals, and what ends them with their parent. */
#ifndef TR_LAUNCH_SPAWN_H
#define TR_LAUNCH_SPAWN_H

#include <trireme/base.h>

#include <sys/types.h>

/* The environment of a job's ranks: this process's, the caller's additions, and the contract on top. Made once; only the
 * numbers of the rank change between two processes. */
typedef struct tr__env {
    char **entries; /* NULL-terminated, as execve() takes it; the strings are borrowed or lie in text */
    size_t count;
    char text[9][128];
} tr__env;

tr_status tr__env_make(tr__env *env, const char *const *extra, int ranks, int port, const char *token, const char *job);
void tr__env_set_rank(tr__env *env, int rank);
void tr__env_free(tr__env *env);

/* Runs argv as a process in a process group of its own, which dies with this one. stdio become its descriptors 0, 1, 2;
 * each is that number already or a higher one. A program that cannot be run is an error here, with its reason. */
tr_status tr__spawn(const char *const *argv, char *const *env, const int stdio[3], pid_t *pid);

/* A process that kills the groups given to it when this process is gone, however it went: the ranks' own death signal
 * does not reach what they have started. */
typedef struct tr__guard {
    pid_t pid;
    int socket;
} tr__guard;

tr_status tr__guard_start(tr__guard *guard);
tr_status tr__guard_add(const tr__guard *guard, pid_t group);
void tr__guard_stop(tr__guard *guard);

/* How many processes of the job are alive, zombies apart: members of the groups, and strays, which have left them but
 * still carry the job's token in their environment. The strays are sent the signal, 0 for none. */
int tr__sweep(const pid_t *groups, int count, const char *token, int signal);

#endif
