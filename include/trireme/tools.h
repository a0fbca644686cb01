/*
 * Trireme's tools: what the `trireme` command is made of and other programs may use too. A library of its own beside
 * the core (-ltrireme-tools), written on the core's public headers; trireme.h does not include it.
 */
#ifndef TRIREME_TOOLS_H
#define TRIREME_TOOLS_H

#include <trireme/trireme.h>

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Charts and progress ----------------------------------------------------------------------------------------- */

/* A series of a line chart: n points (x[i], y[i]), x rising; those that are not finite are left out. */
typedef struct tr_series {
    const char *name;
    const double *x, *y;
    int n;
} tr_series;
/* Draws count series as text of at most width x height cells, lines ended by newlines: braille and box characters, or
 * ASCII. The first series is a line, the others are marks. Returns the length that was needed, as snprintf does. */
TR_API size_t tr_chart_text(const tr_series *series, int count, int width, int height, bool ascii, char *text,
    size_t bytes);
/* Writes the chart as an SVG file, atomically. */
TR_API TR_MUST_CHECK tr_status tr_chart_svg(const char *path, const char *title, const tr_series *series, int count);
/* Draws loss and validation loss over the steps into FOLDER/loss.svg; without a row, nothing. For tr_fit(.draw = …). */
TR_API TR_MUST_CHECK tr_status tr_chart_loss(const tr_metrics *metrics, const char *folder);

/* Shows how training goes: in a terminal one line that is written over, elsewhere a line now and then. An object. */
typedef struct tr_progress tr_progress;
typedef struct tr_progress_options {
    size_t size;
    const char *given;
    FILE *to;
    bool plain;         /* lines even in a terminal */
    bool ascii;
    double interval_s;  /* the least time between two updates; default 0.1 in a terminal, else 10 */
    const char *item;   /* whose rate is shown; NULL: "token" */
} tr_progress_options;
#define tr_progress_new(...) tr_progress_new_with(TR__NAMED_OPTIONS1(tr_progress_options, to, __VA_ARGS__))
TR_API tr_progress *tr_progress_new_with(const tr_progress_options *options);
/* Call it after each of `steps` steps. */
TR_API void tr_progress_step(tr_progress *progress, const tr_metrics_row *row, int64_t steps);
/* Prints a line of text, above the bar. */
TR_API void tr_progress_note(tr_progress *progress, const char *text);
/* Ends the bar's line, with the last state in it. */
TR_API void tr_progress_end(tr_progress *progress);

/* ---- Predicting -------------------------------------------------------------------------------------------------- */

typedef struct tr_network {
    double latency_us;        /* on the way, one way */
    double overhead_us;       /* of a rank's time for each message, on either side */
    double gbytes_per_s;      /* of one rank, in each direction */
    double copy_gbytes_per_s; /* at which a rank puts bytes into sockets and takes them out, both together; 0: no
                                 limit */
    double fold_gbytes_per_s; /* at which it adds up or copies what is in memory; 0: no limit */
} tr_network;

/* How long a collective would take on a network (NULL: the one in the table of tr_algorithms(NULL, 0)), by simulating
 * the steps of all ranks. The arguments before it are as in tr_schedule_find(). */
TR_API TR_MUST_CHECK tr_status tr_predict(tr_collective_kind kind, const char *algorithm, int world_size, int64_t bytes,
    const tr_network *network, double *seconds);

/* ---- Clusters: machines that are reached by ssh ------------------------------------------------------------------ */

typedef struct tr_cluster tr_cluster;

typedef struct tr_cluster_host {
    const char *name;    /* for ssh; "localhost" is this machine, without ssh */
    int slots;           /* ranks to run there */
    const char *address; /* where the other hosts reach it; the name without "user@" when the file has no address */
} tr_cluster_host;

typedef struct tr_cluster_options {
    size_t size;
    const char *given;
    const char *hosts;   /* a file with a line for each host, "name slots=8 address=10.0.0.1", and comments after #;
                            NULL: this machine alone */
    int slots;           /* without .hosts: ranks on this machine, 0: its cores; beside .hosts an error */
    const char *ssh;     /* the command and its options, separated by blanks; NULL: "ssh" */
    const char *command; /* Trireme's command on the hosts; NULL: "trireme" */
    const char *state;   /* the folder with the jobs' records; NULL: trireme/jobs in XDG_STATE_HOME or in
                            ~/.local/state */
} tr_cluster_options;
#define tr_cluster_open(...) tr_cluster_open_with(TR__NAMED_OPTIONS1(tr_cluster_options, hosts, __VA_ARGS__))
TR_API tr_cluster *tr_cluster_open_with(const tr_cluster_options *options);
TR_API int tr_cluster_count(const tr_cluster *cluster); /* its hosts; 0 in error */
TR_API const tr_cluster_host *tr_cluster_host_at(const tr_cluster *cluster, int i); /* borrowed; NULL when out of
                                                                                       range */

/* Gets the result of checking a host: TR_OK and its cores, or the reason why it cannot take part. */
typedef void (*tr_cluster_finding)(const tr_cluster_host *host, tr_status status, int cores, const char *text, void *user);
/* Checks all hosts at once: can they be reached without a password, and do they have this version of Trireme and the
 * program (NULL: no program)? Calls finding for each host in order. Returns the first failure. */
TR_API TR_MUST_CHECK tr_status tr_cluster_check(tr_cluster *cluster, const char *program, tr_cluster_finding finding,
    void *user);

typedef struct tr_cluster_run_options {
    size_t size;
    const char *given;
    tr_cluster *cluster;
    const char *const *argv;       /* as in tr_launch_options, and so are the following */
    const char *job;               /* NULL: a name made of the time */
    tr_launch_output output;       /* gets each line as the host's launcher prints it; its rank is the *host's*
                                      number */
    void *user;
    bool pass_signals;
    tr_launch_report *report;
    int port;                      /* of the rendezvous, on the first host; 0: a random one of 20000 to 29999 */
    int rendezvous_ms;
    int timeout_ms;                /* of joining and collectives (TRIREME_TIMEOUT), rounded up to seconds; 0: the
                                      default */
    int max_restarts;              /* of all ranks on all hosts; default 0 */
    int min_ranks;                 /* as tr_launch()'s */
} tr_cluster_run_options;
/* Runs a program on all hosts as one job and waits for it. It runs in this folder's path on each host; the first host
 * has the first ranks. When this process ends, however it ends, all ranks are ended. */
#define tr_cluster_run(...) tr_cluster_run_with(TR__BRACES2(tr_cluster_run_options, cluster, argv, __VA_ARGS__))
TR_API TR_MUST_CHECK tr_status tr_cluster_run_with(const tr_cluster_run_options *options);

typedef struct tr_cluster_job {
    char name[TR_LAUNCH_JOB_NAME + 1];
    bool running;
    int pid;             /* of the process that runs it */
    int hosts, ranks;
    int64_t started_ms;  /* since 1970 */
    char program[256];
    char text[1024];     /* how it ended; empty while it runs */
} tr_cluster_job;
/* Looks up a job in the cluster's state folder, of any process. job NULL: the one that was started last. */
TR_API TR_MUST_CHECK tr_status tr_cluster_status(tr_cluster *cluster, const char *job, tr_cluster_job *out);
/* Gives its output so far, and with follow until it ends; each line begins with its rank. */
TR_API TR_MUST_CHECK tr_status tr_cluster_logs(tr_cluster *cluster, const char *job, bool follow, tr_launch_output output,
    void *user);
/* Asks its ranks to end, as SIGTERM does, and waits until all have ended; after timeout_ms (0: 30,000) it kills
 * them. */
TR_API TR_MUST_CHECK tr_status tr_cluster_stop(tr_cluster *cluster, const char *job, int timeout_ms);

#ifdef __cplusplus
}
#endif

#endif
