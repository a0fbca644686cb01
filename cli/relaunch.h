/* A command that starts this program again, as the ranks of a job. */
#ifndef TRIREME_CLI_RELAUNCH_H
#define TRIREME_CLI_RELAUNCH_H

/* Exit code of a rank whose peers died, or that failed as all did: it has said nothing, for somebody else says more. */
enum { TR__EXIT_PEER = 3 };

/* Runs this program with arguments (NULL-terminated, without its name) on so many ranks. Rank 0 keeps the terminal;
 * what the others print gets their number in front. env: more NAME=value, NULL-terminated. Returns the exit code, after
 * a message when no rank has said itself what went wrong. */
int tr__relaunch(const char *command, const char *const *arguments, int ranks, const char *const *env);

/* For a rank: ends a little later than one that has something to say, for the launcher takes the first death for the
 * cause. Returns TR__EXIT_PEER. */
int tr__exit_quietly(void);

#endif
