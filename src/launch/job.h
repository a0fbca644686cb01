/*
 * A job that a launcher runs: what its parts share. launch.c starts, watches and ends the ranks, job_report.c says how they ended.
 */
#ifndef TR_LAUNCH_JOB_H
#define TR_LAUNCH_JOB_H

#include "base/clock.h"
#include "base/object.h"
#include "launch/guard.h"
#include "launch/nodes.h"
#include "launch/output.h"
#include "launch/spawn.h"
#include "launch/stalls.h"

#include <signal.h>

/*
 * A job goes through these stages, always forwards, each time that its ranks are started. After a failure the others get a moment to
 * fail by themselves, for what they then say is worth reading; then they are asked to end, then killed. With the default grace that
 * is 1.3 s.
 */
typedef enum tr__job_stage { RUNNING, SETTLING, ENDING, KILLING } tr__job_stage;

typedef struct tr__job_rank {
    struct tr__job *job;
    pid_t pid;
    int pidfd; /* -1: this kernel has none */
    int leash; /* the other end of its stdin; -1: none */
    bool running;
    int code, status; /* as in siginfo_t: CLD_EXITED and the exit code, or CLD_KILLED, CLD_DUMPED and the signal */
    double seconds;   /* from the job's start to its death */
    uv_poll_t death;
} tr__job_rank;

typedef struct tr__job {
    tr_launch_options options;
    tr__launch_extra extra;
    tr_launch_report *report;
    char token[65]; /* of a job on this node alone */
    char mark[65];
    tr__nodes nodes; /* .count is 0 when there is only this one */
    int first_rank;  /* of this node's: elsewhere here ranks are counted from 0 */
    int restarts;    /* how often the ranks were started again */
    int64_t began_ns; /* when they were first started, by the wall clock of node 0 */
    tr__env env;
    tr__guard guard;
    tr__stalls stalls;
    tr__output output;
    tr__job_rank *ranks;
    pid_t *groups; /* [started], the ranks' process ids again */
    int started, running;
    bool ticking; /* some deaths are seen by looking */

    uv_loop_t loop;
    uv_timer_t timer;
    uv_poll_t signals;
    int signal_fd;
    sigset_t old_mask;
    uint32_t latest_signal, latest_sender; /* as in signalfd_siginfo; */
    double latest_at;                      /* in seconds */

    tr__job_stage stage;
    double deadline;      /* of the stage */
    double start, grace;  /* seconds */
    int first;            /* the rank that failed first; -1: none */
    int interrupt;        /* the first signal that was passed on; 0: none */
    bool heard;           /* from another node: the same signal to this launcher itself is not a second one */
    bool stopped;         /* and a rank has ended by it */
    bool gave_up;         /* the user did not want to wait */
    bool clean;           /* the latest sweep found nothing, */
    double clean_since;   /* at this time */
    bool swept;           /* nothing of the job is alive */
    tr__error *error;     /* a rank, or another guard, could not be started: why; NULL: all could */
    unsigned long oom_kills; /* at the start */
} tr__job;

static inline double tr__launch_now(void)
{
    return (double)tr__now_ns() * 1e-9;
}

static inline bool tr__by_signal(const tr__job_rank *r)
{
    return r->code == CLD_KILLED || r->code == CLD_DUMPED;
}

/* Are all that have failed so far, here and on other nodes, victims of a rank that is still to come? */
bool tr__job_only_victims(const tr__job *j);
/* How many processes the kernel has killed for lack of memory so far, on the whole machine. */
unsigned long tr__count_oom_kills(void);
/* Tells the other nodes how this one stands; once all of it has ended, its report is where they can read it. */
void tr__job_tell_nodes(tr__job *j, bool ended);
/* When all have ended: fills in the report, the job's or, where nobody waits for the other nodes any more, this node's. */
tr_status tr__job_conclude(tr__job *j);

#endif
