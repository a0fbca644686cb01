/*
 * Trireme, launcher: runs a program, or a function of this program, as the ranks of a job on this machine, and owns the
 * processes.
 */
#ifndef TRIREME_LAUNCH_H
#define TRIREME_LAUNCH_H

#include <trireme/base.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TR_LAUNCH_MAX_RANKS 4096
#define TR_LAUNCH_JOB_NAME 63 /* bytes of the longest name of a job */

typedef struct tr_launch_report {
    int first_rank;        /* the first cause: the first rank that failed by itself, or else the rank that others lost
                              (they exited with TR_EXIT_PEER); -1: no rank failed, a signal stopped the job, or a node
                              is lost */
    int exit_code;         /* its exit code, or 128 + signal; 0 for a rank that exited while others needed it */
    int signal;            /* the signal that killed it or stopped the job, or 0 */
    double seconds;        /* the job's run time, since its ranks were last started */
    char text[1024];       /* "rank 1 (pid 4242) was killed by signal 9 (Killed) after 3.2 s; its last lines: …" */
} tr_launch_report;

/* Gets one line of a rank's output, without its newline; a line of more than 16 KiB comes in pieces. Called from one
 * thread, not the caller's. While it blocks, the ranks block in their writes, and the launcher still sees deaths and
 * signals. */
typedef void (*tr_launch_output)(int rank, bool is_stderr, const char *line, size_t length, void *user);

typedef struct tr_launch_options {
    size_t size;
    const char *given;
    const char *const *argv;       /* program and arguments, NULL-terminated; the program is found through PATH */
    int ranks;                     /* processes to start, 1 to TR_LAUNCH_MAX_RANKS */
    const char *const *env;        /* additional NAME=value, NULL-terminated; or NULL */
    tr_launch_output output;       /* gets each line of each rank; NULL: the ranks inherit stdout and stderr */
    void *user;
    bool rank0_inherits;           /* rank 0 inherits stdout and stderr although .output is set (for a progress bar) */
    int grace_ms;                  /* from SIGTERM to SIGKILL when a failed job is ended; default 1,000 */
    bool pass_signals;             /* pass this process's SIGINT, SIGTERM, SIGHUP or SIGQUIT on to the ranks, once, and
                                      wait for them; a second signal kills them. SIGUSR1, SIGUSR2 and SIGTSTP are passed
                                      on, too */
    tr_launch_report *report;      /* filled in, or NULL */
    const char *job;               /* the job's name, for `trireme why` (TRIREME_JOB); NULL: this process's id, or with
                                      several nodes the rendezvous */
    const char *log_dir;           /* a folder, made if it is missing: each rank's output goes to rank-R.log there,
                                      too */
    int nodes;                     /* machines of the job, at most; default 1. The launcher is called on each of them */
    int node_rank;                 /* of this machine, 0 to nodes - 1 */
    const char *rendezvous;        /* "host:port": where node 0 serves the store and the others connect */
    const char *token;             /* the job's secret, the same on all nodes; NULL: TRIREME_TOKEN; with one node a new
                                      secret */
    int rendezvous_ms;             /* how long to wait for the other nodes; default 300,000 */
    const char *const *(*argv_of)(int rank, void *user); /* each rank's own argv; NULL: argv is everybody's */
    const char *stdin_text;        /* the ranks are launchers on other machines, `ssh HOST trireme run --stop-on-eof …`:
                                      their stdin is a socket that begins with this text. A signal reaches them there,
                                      as the byte 3 (^C), and the end of stdin asks them to end. When one fails, the
                                      others have three seconds to end by themselves. Their output has prefixes
                                      already */
    int max_restarts;              /* how often all ranks, on all nodes, are ended and started again after one has
                                      failed; default 0. Programs resume from their latest checkpoint;
                                      TORCHELASTIC_RESTART_COUNT is the number of restarts so far. No restart after a
                                      signal to the launcher, ranks that cannot be started, or, unless .min_nodes
                                      allows for it, a lost node */
    int min_ranks;                 /* with it the job shrinks at each restart: one rank fewer on the node of the rank
                                      that failed first, as long as so many ranks are left on all nodes together, and
                                      one on that node; default 0: all ranks start again */
    int min_nodes;                 /* when this many nodes have come, the job begins without the others 30 s later (or
                                      after .rendezvous_ms, if shorter). With .max_restarts it goes on without a lost node
                                      other than node 0 while this many are left. Default: .nodes */
} tr_launch_options;
/* Starts the ranks with torchrun's environment (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
 * MASTER_PORT), serves their store, waits for them, and ends all when one fails; docs/launching.md has the details.
 * With .nodes the ranks of node 0 come first, then those of node 1, …; all launchers report the same first cause. Rank
 * 0 keeps stdin unless it is a terminal; the others read /dev/null. TR_OK when all ranks exited with 0; TR_CHILD, with
 * the first cause in report and message, when one failed; TR_INTERRUPTED when they ended by a signal that was passed
 * on. The log gets a line when ranks on this host have waited for another one for ten seconds. The ranks die with this
 * process, however it ends. With .pass_signals, other threads must block these signals. */
#define tr_launch(...) tr_launch_with(TR__BRACES2(tr_launch_options, argv, ranks, __VA_ARGS__))
TR_API TR_MUST_CHECK tr_status tr_launch_with(const tr_launch_options *options);

typedef struct tr_spawn_options {
    size_t size;
    const char *given;
    tr_spawn_function function;
    int ranks;
    const void *argument;          /* each rank gets a copy of these bytes, which hold no pointers into this process */
    size_t bytes;
    const char *const *env;        /* this and the following: as in tr_launch_options */
    tr_launch_output output;
    void *user;
    bool rank0_inherits;
    int grace_ms;
    bool pass_signals;
    tr_launch_report *report;
    const char *job;
    const char *log_dir;
} tr_spawn_options;
/* Runs function(rank, argument, bytes) in so many processes, the ranks of a job in which tr_join() works, and waits for
 * them. The processes run this program's executable: main() begins with TR_SPAWN_ENTRY. When one fails, it ends the
 * others and returns that rank's status and message, "rank 2: matmul: inner sizes differ: …". A rank that ends without
 * returning is TR_CHILD. All else is as with tr_launch(). A rank cannot spawn. */
#define tr_spawn(...) tr_spawn_with(TR__BRACES2(tr_spawn_options, function, ranks, __VA_ARGS__))
TR_API TR_MUST_CHECK tr_status tr_spawn_with(const tr_spawn_options *options);

#ifdef __cplusplus
}
#endif

#endif
