/* A command that starts this program again, as the ranks of a job. */
#ifndef TRIREME_CLI_RELAUNCH_H
#define TRIREME_CLI_RELAUNCH_H

#include <stdbool.h>

/* Runs this program with the arguments argv[1] … (NULL-terminated) on so many ranks; argv[0] is written. Rank 0 keeps the terminal;
 * what the others print gets their number in front. All start again up to max_restarts times after one failed, one fewer
 * each time while more than min_ranks are left (0: as many). env: more NAME=value, NULL-terminated. Returns the exit code, after
 * a message when no rank has said itself what went wrong. A rank whose peers died, or that failed as all did, says nothing and
 * ends with TR_EXIT_PEER: somebody else says more. */
int tr__relaunch(const char *command, const char **argv, int ranks, int max_restarts, int min_ranks, const char *const *env);

/* Has a launcher started this process as one of its ranks? One that mpirun or srun has started alone, a shell in a batch
 * job say, is as if no launcher were there. The pointers are tr_launched()'s. */
bool tr__is_rank(int *rank, int *world_size, int *local_world_size);

/* --device and --backend of a command that starts so many ranks: what every one of them would complain of is said once. -1 when
 * all is well, else the exit code, after a message. */
int tr__check_device(const char *command, const char *device, const char *backend, int ranks);

#endif
