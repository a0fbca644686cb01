/*
 * Trireme, launcher: runs a program, or a function of this one, as the ranks of a job on this machine and owns its processes.
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
    int first_rank;        /* the first cause: the first rank that failed by itself, or else the one that others lost,
                              who exited with TR_EXIT_PEER; -1: none failed, a signal stopped the job, or a node is lost */
    int exit_code;         /* its exit code, or 128 + signal; 0 of a rank that exited while others needed it */
    int signal;            /* what killed it (or stopped the job), or 0 */
    double seconds;        /* the job's run time */
    char text[1024];       /* "rank 1 (pid 4242) was killed by signal 9 (Killed) after 3.2 s; its last lines: …" */
} tr_launch_report;

/* One line of a rank, without its newline; lines of more than 16 KiB come in pieces. Called from one thread, which is not
 * the caller's. It may block: then the ranks wait in their writes, while the launcher still sees deaths and signals. */
typedef void (*tr_launch_output)(int rank, bool is_stderr, const char *line, size_t length, void *user);

typedef struct tr_launch_options {
    size_t size;
    const char *given;
    const char *const *argv;       /* program and arguments, NULL-terminated; found through PATH */
    int ranks;                     /* processes to start, 1 to TR_LAUNCH_MAX_RANKS */
    const char *const *env;        /* extra NAME=value, NULL-terminated; or NULL */
    tr_launch_output output;       /* gets each line of each rank; NULL: the ranks inherit stdout and stderr */
    void *user;
    bool rank0_inherits;           /* rank 0 keeps this process's stdout and stderr (for a progress bar) */
    int grace_ms;                  /* from SIGTERM to SIGKILL when a failed job is ended; default 1,000 */
    bool pass_signals;             /* pass this process's SIGINT, SIGTERM, SIGHUP, SIGQUIT on to the ranks, once, and
                                      wait for them; a second one kills. SIGUSR1, SIGUSR2 and SIGTSTP are passed on too */
    tr_launch_report *report;      /* filled in, or NULL */
    const char *job;               /* its name, for `trireme why` (TRIREME_JOB); NULL: this process's id; of a job on
                                      several nodes its rendezvous */
    const char *log_dir;           /* a folder, made if need be: each rank's output goes to rank-R.log there, too */
    int nodes;                     /* machines that take part; default 1. On each the launcher is called with */
    int node_rank;                 /* which of them it is, 0 to nodes - 1, and with */
    const char *rendezvous;        /* "host:port": where node 0 serves the store, and the others find it */
    const char *token;             /* the job's secret, the same on all nodes; NULL: TRIREME_TOKEN. One node makes its own */
    int rendezvous_ms;             /* how long to wait for the other nodes; default 300,000 */
} tr_launch_options;
/* Starts the ranks with torchrun's environment (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
 * MASTER_PORT), holds their store, waits for them, and ends all when one fails; docs/launching.md has the details.
 * With .nodes the ranks of node 0 come first, then those of node 1, …; all launchers report the same first cause.
 * Rank 0 keeps stdin unless it is a terminal, the others read /dev/null. TR_OK when all exited with 0; TR_CHILD, with
 * the first cause in report and message, when one failed; TR_INTERRUPTED when they ended by a signal that was passed on.
 * A rank that others on this host wait for is told to this process's log function after ten seconds.
 * The ranks die with this process, whatever kills it. With .pass_signals, other threads must have these signals blocked. */
#define tr_launch(...) tr_launch_with(TR__BRACES2(tr_launch_options, argv, ranks, __VA_ARGS__))
TR_API TR_MUST_CHECK tr_status tr_launch_with(const tr_launch_options *options);

typedef struct tr_spawn_options {
    size_t size;
    const char *given;
    tr_spawn_function function;
    int ranks;
    const void *argument;          /* each rank gets a copy of these bytes: no pointers into this process */
    size_t bytes;
    const char *const *env;        /* this and what follows: as in tr_launch_options */
    tr_launch_output output;
    void *user;
    bool rank0_inherits;
    int grace_ms;
    bool pass_signals;
    tr_launch_report *report;
    const char *job;
    const char *log_dir;
} tr_spawn_options;
/* Runs function(rank, argument, bytes) in so many processes, the ranks of a job, in which tr_join() works, and waits for
 * them. The processes are started from this program's executable: main() begins with TR_SPAWN_ENTRY. When one fails, the
 * others are ended; its status and message come back, as "rank 2: matmul: inner sizes differ: …". A rank that ends in
 * another way than by returning is TR_CHILD, and all else is as with tr_launch(). Ranks do not spawn in their turn. */
#define tr_spawn(...) tr_spawn_with(TR__BRACES2(tr_spawn_options, function, ranks, __VA_ARGS__))
TR_API TR_MUST_CHECK tr_status tr_spawn_with(const tr_spawn_options *options);

/* ---- Clusters: machines that are reached by ssh ------------------------------------------------------------------ */

typedef struct tr_cluster tr_cluster;

typedef struct tr_cluster_host {
    const char *name;    /* as ssh is told it; "localhost" is this machine, without ssh */
    int slots;           /* ranks that it takes */
    const char *address; /* where the other hosts reach it; the name, without "user@", when the file has none */
} tr_cluster_host;

typedef struct tr_cluster_options {
    size_t size;
    const char *given;
    const char *hosts;   /* a file with a line for each host, "name slots=8 address=10.0.0.1", and comments after #; NULL:
                            this machine alone */
    int slots;           /* of this machine alone; 0: its cores */
    const char *ssh;     /* the command, and what it is always given, with blanks between; NULL: "ssh" */
    const char *command; /* what runs Trireme on the hosts; NULL: "trireme" */
    const char *state;   /* a folder that remembers jobs; NULL: trireme/jobs in XDG_STATE_HOME or in ~/.local/state */
} tr_cluster_options;
#define tr_cluster_open(...) TR__NEW1(tr_cluster, hosts, __VA_ARGS__)
TR_API tr_cluster *tr_cluster_with(const tr_cluster_options *options);
TR_API int tr_cluster_count(const tr_cluster *cluster); /* of hosts; 0 in error */
TR_API const tr_cluster_host *tr_cluster_host_at(const tr_cluster *cluster, int i); /* its own; NULL outside */

/* What was found on a host: TR_OK and its cores, or what keeps it from taking part. */
typedef void (*tr_cluster_finding)(const tr_cluster_host *host, tr_status status, int cores, const char *text, void *user);
/* Asks all hosts at once whether they can be reached without a password, have this version of Trireme and the program (NULL:
 * any), and tells of each, in order. The first failure. */
TR_API TR_MUST_CHECK tr_status tr_cluster_check(tr_cluster *cluster, const char *program, tr_cluster_finding finding,
    void *user);

typedef struct tr_cluster_run_options {
    size_t size;
    const char *given;
    tr_cluster *cluster;
    const char *const *argv;       /* as in tr_launch_options, and so is what follows */
    const char *job;               /* NULL: a name is made of the time */
    tr_launch_output output;       /* gets each line as its launcher prints it, with the number of the *host* as rank */
    void *user;
    bool pass_signals;
    tr_launch_report *report;
    int port;                      /* of the rendezvous, on the first host; 0: a random one of 20000 to 29999 */
    int rendezvous_ms;
    int timeout_ms;                /* how long ranks wait for others, as TRIREME_TIMEOUT: rounded up to seconds; 0: not said */
} tr_cluster_run_options;
/* Runs a program on all hosts as one job, in this folder on each, and waits for it: the first host has the first ranks.
 * The job is bound to this process: when it dies, however it dies, all ranks are ended. */
#define tr_cluster_run(...) tr_cluster_run_with(TR__BRACES2(tr_cluster_run_options, cluster, argv, __VA_ARGS__))
TR_API TR_MUST_CHECK tr_status tr_cluster_run_with(const tr_cluster_run_options *options);

typedef struct tr_cluster_job {
    char name[TR_LAUNCH_JOB_NAME + 1];
    bool running;
    int pid;             /* of the process that it is bound to */
    int hosts, ranks;
    int64_t started_ms;  /* since 1970 */
    char program[256];
    char text[1024];     /* how it ended, when it has */
} tr_cluster_job;
/* A job that this cluster's state folder knows, of whichever process. job NULL: the one that was started last. */
TR_API TR_MUST_CHECK tr_status tr_cluster_status(tr_cluster *cluster, const char *job, tr_cluster_job *out);
/* Its output so far, and with follow until it ends; each line begins with its rank. */
TR_API TR_MUST_CHECK tr_status tr_cluster_logs(tr_cluster *cluster, const char *job, bool follow, tr_launch_output output,
    void *user);
/* Asks its ranks to end, as SIGTERM does, and waits until nothing of it is left; after timeout_ms (0: 30,000) it is killed. */
TR_API TR_MUST_CHECK tr_status tr_cluster_stop(tr_cluster *cluster, const char *job, int timeout_ms);

#ifdef __cplusplus
}
#endif

#endif
