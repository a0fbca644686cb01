/* trireme cluster: checks machines that are reached by ssh, and runs, shows and stops jobs on them. */
#include "command.h"
#include "options.h"
#include "terminal.h"

#include <trireme/tools.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct settings {
    const char *hosts, *ssh, *command, *state, *job;
    int slots, port, rank, timeout, max_restarts, min_ranks;
    double patience;
    bool detach, follow;
} settings;

/* Rows that several of the commands have. */
#define HOSTS(s) {"hosts", 0, "FILE", "a host on each line: name slots=N address=A; this machine when not given", TR__TEXT(&(s)->hosts)}
#define SLOTS(s) {"slots", 0, "N", "without --hosts: ranks on this machine; its cores when not given", TR__INTEGER(&(s)->slots, 1, TR_LAUNCH_MAX_RANKS)}
#define SSH(s) {"ssh", 0, "COMMAND", "what to reach hosts by, with options: \"ssh -p 2222\"", TR__TEXT(&(s)->ssh)}
#define COMMAND(s) {"trireme", 0, "PATH", "this command on the hosts; where it is here when not given", TR__TEXT(&(s)->command)}
#define STATE(s) {"state", 0, "FOLDER", "what is remembered of jobs; ~/.local/state/trireme/jobs when not given", TR__TEXT(&(s)->state)}

static tr_cluster *open_cluster(const settings *s)
{
    static char self[PATH_MAX];
    const char *command = s->command ? s->command : realpath("/proc/self/exe", self);
    return tr_cluster_open(s->hosts, .slots = s->slots, .ssh = s->ssh, .command = command, .state = s->state);
}

/* ---- check ----------------------------------------------------------------------------------------------------------- */

static void print_finding(const tr_cluster_host *host, tr_status status, int cores, const char *text, void *user)
{
    (void)user;
    if (status == TR_OK)
        printf("%-20s ok      %d slots, %d cores%s\n", host->name, host->slots, cores,
            host->slots > cores ? ": more slots than cores" : "");
    else
        printf("%-20s failed  %s\n", host->name, text);
}

static int check_hosts(const char *command, const settings *s)
{
    if (!s->hosts || !s->slots) return -1;
    return TR__MISUSE(command, "--slots %d, but --hosts %s says how many ranks each host has: leave one of them out", s->slots, s->hosts);
}

static int check(int argc, char **argv)
{
    settings s = {0};
    const tr__option options[] = {HOSTS(&s), SLOTS(&s), SSH(&s), COMMAND(&s), {0}};
    const tr__syntax syntax = {"cluster check", "[PROGRAM]",
        "Asks every host whether it can be reached without a password, has this version of Trireme, and PROGRAM.",
        options, .operands = {0, 1}};
    int status = tr__parse(&syntax, &argc, argv);
    if (status < 0) status = check_hosts("cluster check", &s);
    if (status >= 0) return status;
    tr_cluster *cluster = open_cluster(&s);
    if (tr_status_of(cluster) != TR_OK) return tr__failed("cluster check");
    return tr_cluster_check(cluster, argc ? argv[0] : NULL, print_finding, NULL) ? TR__EXIT_FAILED : TR__EXIT_OK;
}

/* ---- start ----------------------------------------------------------------------------------------------------------- */

static void print_line(int host, bool is_stderr, const char *line, size_t length, void *user)
{
    (void)host, (void)user;
    tr__print_line(is_stderr ? STDERR_FILENO : STDOUT_FILENO, "", line, length);
}

static void print_failure(const tr_cluster_host *host, tr_status status, int cores, const char *text, void *user)
{
    (void)host, (void)cores, (void)user;
    if (status) tr__complain("cluster start", "%s", text);
}

static int run(tr_cluster *cluster, const settings *s, const char *const *argv, tr_launch_output output)
{
    tr_launch_report report;
    tr_status status = tr_cluster_run(cluster, argv, .job = s->job, .output = output, .pass_signals = true, .report = &report,
        .port = s->port, .rendezvous_ms = (int)(s->patience * 1000), .timeout_ms = s->timeout * 1000,
        .max_restarts = s->max_restarts, .min_ranks = s->min_ranks);
    if (status == TR_OK) return TR__EXIT_OK;
    if (output) tr__complain("cluster start", "%s", tr_error_message());
    return status == TR_INTERRUPTED ? report.exit_code : TR__EXIT_FAILED;
}

/* In a session of its own, without this terminal. Until the job is known, the child can say through a pipe why it is not. */
static int run_detached(tr_cluster *cluster, const settings *s, const char *const *argv)
{
    int says[2];
    pid_t child = pipe2(says, O_CLOEXEC) == 0 ? fork() : -1; /* this process has no threads yet */
    if (child < 0) return tr__complain("cluster start", "cannot start a process: %s", strerror(errno));
    if (child == 0) {
        setsid();
        int nothing = open("/dev/null", O_RDWR);
        for (int i = 0; i < 3 && nothing >= 0; i++) dup2(nothing, i);
        int code = run(cluster, s, argv, NULL);
        if (code != TR__EXIT_OK) dprintf(says[1], "%s", tr_error_message());
        exit(code);
    }
    close(says[1]);
    tr_cluster_job job = {0};
    while (tr_cluster_status(cluster, s->job, &job) != TR_OK || job.pid != child) {
        char why[2048] = "";
        if (waitpid(child, NULL, WNOHANG) == child)
            return tr__complain("cluster start", "%s", read(says[0], why, sizeof why - 1) > 0 ? why : "the job ended before it began");
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    printf("%s\n", s->job);
    return TR__EXIT_OK;
}

static int start(int argc, char **argv)
{
    settings s = {.patience = 60};
    const tr__option options[] = {HOSTS(&s), SLOTS(&s), SSH(&s), COMMAND(&s), STATE(&s),
        {"job", 0, "NAME", "the job's name; made of the time when not given", TR__TEXT(&s.job)},
        {"port", 0, "N", "where the hosts meet, on the first; any of 20000 to 29999 when not given", TR__INTEGER(&s.port, 1, 65535)},
        {"rendezvous-timeout", 0, "SECONDS", "how long hosts wait for each other", TR__NUMBER(&s.patience, 0.1, 86400)},
        {"timeout", 0, "SECONDS", "how long a rank waits for others, in a collective or to join (600)",
         TR__INTEGER(&s.timeout, 1, INT_MAX / 1000)},
        {"max-restarts", 0, "N", "how often to start all ranks again after one failed",
         TR__INTEGER(&s.max_restarts, 0, INT_MAX)},
        {"min-ranks", 0, "N", "with --max-restarts: start one rank fewer each time, while N are left on all hosts",
         TR__INTEGER(&s.min_ranks, 1, INT_MAX)},
        {"detach", 0, NULL, "go on in the background, and print the job's name", TR__FLAG(&s.detach)},
        {0}};
    const tr__syntax syntax = {"cluster start", "PROGRAM [ARGUMENT…]",
        "Runs PROGRAM on all hosts as one job, in this folder on each, and shows its output. The job ends when this command does.",
        options, .operands = {1, INT_MAX}, .stop_at_operand = true};
    int status = tr__parse(&syntax, &argc, argv);
    if (status < 0) status = check_hosts("cluster start", &s);
    if (status >= 0) return status;
    if (s.min_ranks && !s.max_restarts)
        return TR__MISUSE("cluster start", "--min-ranks %d, but without --max-restarts no ranks are started again", s.min_ranks);
    char name[64];
    snprintf(name, sizeof name, "%lld-%d", (long long)time(NULL), (int)getpid());
    if (!s.job) s.job = name;
    tr_cluster *cluster = open_cluster(&s);
    if (tr_status_of(cluster) != TR_OK) return tr__failed("cluster start");
    if (tr_cluster_check(cluster, argv[0], print_failure, NULL)) return TR__EXIT_FAILED;
    const char *const *command = (const char *const *)argv;
    return s.detach ? run_detached(cluster, &s, command) : run(cluster, &s, command, print_line);
}

/* ---- status, logs, stop ---------------------------------------------------------------------------------------------- */

static int parse_job(int argc, char **argv, const tr__syntax *syntax, settings *s)
{
    int operands = argc, status = tr__parse(syntax, &operands, argv);
    if (status < 0) s->job = operands ? argv[0] : NULL;
    return status;
}

static int status_of_job(int argc, char **argv)
{
    settings s = {0};
    const tr__option options[] = {STATE(&s), {0}};
    const tr__syntax syntax = {"cluster status", "[JOB]", "Says how a job stands; the one that was started last, without JOB.",
        options, .operands = {0, 1}};
    int parsed = parse_job(argc, argv, &syntax, &s);
    if (parsed >= 0) return parsed;
    tr_cluster_job job;
    tr_status status = tr_cluster_status(open_cluster(&s), s.job, &job);
    if (status != TR_OK) return tr__failed("cluster status");
    printf("%s: %s\n  %d ranks on %d hosts, bound to process %d\n", job.name, tr_printable(job.program), job.ranks,
           job.hosts, job.pid);
    double seconds = difftime(time(NULL), (time_t)(job.started_ms / 1000));
    if (job.running) printf("  running for %.0f s\n", seconds);
    else
        printf("  ended: %s\n", tr_printable(job.text));
    return tr__printed("cluster status");
}

static void print_rank(int rank, bool is_stderr, const char *line, size_t length, void *user)
{
    const settings *s = user;
    if (s->rank < 0 || s->rank == rank) print_line(rank, is_stderr, line, length, NULL);
}

static int logs(int argc, char **argv)
{
    settings s = {.rank = -1};
    const tr__option options[] = {STATE(&s),
        {"follow", 'f', NULL, "go on until the job ends", TR__FLAG(&s.follow)},
        {"rank", 0, "N", "of this rank only", TR__INTEGER(&s.rank, 0, INT_MAX)}, {0}};
    const tr__syntax syntax = {"cluster logs", "[JOB]", "Shows what a job has printed; the one that was started last, without JOB.",
        options, .operands = {0, 1}};
    int parsed = parse_job(argc, argv, &syntax, &s);
    if (parsed >= 0) return parsed;
    tr_cluster *cluster = open_cluster(&s);
    tr_cluster_job job;
    tr_status status = tr_cluster_status(cluster, s.job, &job);
    if (status == TR_OK && s.rank >= job.ranks)
        return tr__complain("cluster logs", "job %s has %d ranks: there is no rank %d", job.name, job.ranks, s.rank);
    if (status == TR_OK) status = tr_cluster_logs(cluster, job.name, s.follow, print_rank, &s);
    return status == TR_OK ? TR__EXIT_OK : tr__failed("cluster logs");
}

static int stop(int argc, char **argv)
{
    settings s = {.patience = 30};
    const tr__option options[] = {STATE(&s),
        {"timeout", 0, "SECONDS", "how long its ranks get before they are killed", TR__NUMBER(&s.patience, 0.1, 86400)}, {0}};
    const tr__syntax syntax = {"cluster stop", "[JOB]",
        "Stops a job on all its hosts, and returns when nothing of it is left; the one that was started last, without JOB.",
        options, .operands = {0, 1}};
    int parsed = parse_job(argc, argv, &syntax, &s);
    if (parsed >= 0) return parsed;
    return tr_cluster_stop(open_cluster(&s), s.job, (int)(s.patience * 1000)) ? tr__failed("cluster stop") : TR__EXIT_OK;
}

/* ---- Which ------------------------------------------------------------------------------------------------------------ */

int tr__cli_cluster(int argc, char **argv)
{
    static const tr__subcommand commands[] = {
        {"check", check, "can all hosts take part?"},
        {"start", start, "run a program on all hosts"},
        {"status", status_of_job, "say how a job stands"},
        {"logs", logs, "show what a job has printed"},
        {"stop", stop, "stop a job everywhere"},
        {0},
    };
    return tr__run_subcommand("cluster", "Runs programs on machines that are reached by ssh.", commands, argc, argv);
}
