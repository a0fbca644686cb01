/*
 * tr_cluster_run: the launchers of all hosts, `trireme run --nnodes …` through ssh, are the ranks of a job of this process.
 * What holds them is their stdin: it begins with the job's secret; a byte in it passes an interrupt on; and when it ends, by
 * this process's will or its death, they end their ranks, and kill those that do not after a grace.
 */
#include "cluster.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum { GRACE_MS = 15000, PORT_FIRST = 20000, PORTS = 10000, COMMAND_BYTES = 16 << 10 };

/* A launcher on a host. */
typedef struct launcher {
    char *words; /* of ssh */
    const char *argv[TR__SSH_WORDS];
    char command[COMMAND_BYTES];
    char cause[1024]; /* why the job ended, in its words */
    char last[256];   /* its last line, or ssh's */
    bool in_cause;    /* the lines that follow belong to it */
} launcher;

typedef struct run {
    const tr_cluster *cluster;
    tr_cluster_run_options options;
    launcher *launchers; /* [count] */
    tr__job_files files;
    char folder[PATH_MAX];
    char job[TR_LAUNCH_JOB_NAME + 1];
    int port;
} run;

/* ---- Output ---------------------------------------------------------------------------------------------------------- */

static void append(char *text, size_t bytes, const char *line, size_t length)
{
    size_t used = strlen(text);
    snprintf(text + used, bytes - used, "%s%.*s", used ? "\n" : "", (int)length, line);
}

/* A launcher says why a job has ended as "trireme run --stop-on-eof: …", and indents what else belongs to that. True for such a
 * line: all launchers say it, and it is the report's. */
static bool remember(launcher *l, bool is_stderr, const char *line, size_t length)
{
    static const char begin[] = "trireme run --stop-on-eof: ";
    size_t skip = sizeof begin - 1;
    bool begins = is_stderr && length > skip && !memcmp(line, begin, skip);
    if (begins) {
        l->cause[0] = '\0';
        append(l->cause, sizeof l->cause, line + skip, length - skip);
        l->in_cause = true;
    } else if (is_stderr && l->in_cause && length && *line == ' ') {
        append(l->cause, sizeof l->cause, line, length);
    } else if (is_stderr) {
        l->in_cause = false;
    }
    if (is_stderr && l->in_cause) return true;
    if (length) snprintf(l->last, sizeof l->last, "%.*s", (int)length, line);
    return false;
}

static void take_line(int host, bool is_stderr, const char *line, size_t length, void *user)
{
    run *r = user;
    if (remember(&r->launchers[host], is_stderr, line, length)) return;
    fwrite(line, 1, length, r->files.log);
    fputc('\n', r->files.log);
    fflush(r->files.log);
    if (r->options.output) r->options.output(host, is_stderr, line, length, r->options.user);
}

/* ---- Commands -------------------------------------------------------------------------------------------------------- */

static tr_status compose(run *r, int i)
{
    const tr_cluster *c = r->cluster;
    const tr_cluster_host *host = &c->hosts[i];
    launcher *l = &r->launchers[i];
    tr__text t = {l->command, 0, sizeof l->command, false};
    tr__text_add(&t, "cd");
    tr__text_quote(&t, r->folder);
    tr__text_add(&t, " && exec");
    if (strcmp(host->address, host->name) != 0) {
        tr__text_add(&t, " env");
        char setting[300];
        snprintf(setting, sizeof setting, "TRIREME_ADDRESS=%s", host->address);
        tr__text_quote(&t, setting);
    }
    tr__text_quote(&t, c->command);
    tr__text_add(&t, " run --token-file - --stop-on-eof -n %d --job", host->slots);
    tr__text_quote(&t, r->job);
    if (r->options.timeout_ms) tr__text_add(&t, " --timeout %d", (r->options.timeout_ms - 1) / 1000 + 1);
    if (r->options.max_restarts) tr__text_add(&t, " --max-restarts %d", r->options.max_restarts);
    if (r->options.min_ranks) tr__text_add(&t, " --min-ranks %d", r->options.min_ranks);
    if (c->count > 1) {
        int ms = r->options.rendezvous_ms ? r->options.rendezvous_ms : 300000;
        tr__text_add(&t, " --nnodes %d --node-rank %d --rendezvous-timeout %d.%03d --rendezvous", c->count, i, ms / 1000,
            ms % 1000);
        char at[300];
        snprintf(at, sizeof at, strchr(c->hosts[0].address, ':') ? "[%s]:%d" : "%s:%d", c->hosts[0].address, r->port);
        tr__text_quote(&t, at);
    }
    tr__text_add(&t, " --");
    for (int k = 0; r->options.argv[k]; k++) tr__text_quote(&t, r->options.argv[k]);
    TRY(tr__text_status(&t));
    return tr__ssh_command(c, host, l->command, l->argv, &l->words);
}

static const char *const *argv_of(int host, void *user)
{
    return ((run *)user)->launchers[host].argv;
}

/* ---- The job --------------------------------------------------------------------------------------------------------- */

/* What the launchers say comes before how they ended; the first that failed comes first. */
static void explain(const run *r, tr_launch_report *report)
{
    int first = report->first_rank, told = first;
    for (int i = 0; i < r->cluster->count && !*r->launchers[told].cause; i++) told = i;
    const launcher *l = &r->launchers[told];
    if (*l->cause) {
        snprintf(report->text, sizeof report->text, "%s", l->cause);
    } else {
        l = &r->launchers[first];
        snprintf(report->text, sizeof report->text, "%s: its launcher, or ssh, ended with exit code %d: %s%s",
            r->cluster->hosts[first].name, report->exit_code, *l->last ? l->last : "it said nothing", tr__ssh_advice(l->last));
    }
    report->first_rank = -1; /* the text has it */
}

static tr_status launch(run *r, tr_launch_report *report)
{
    unsigned char secret[32];
    char token[2 * sizeof secret + 2] = "";
    if (getrandom(secret, sizeof secret, 0) != sizeof secret)
        return tr_fail(TR_IO, "cluster: no random numbers from the kernel");
    for (size_t i = 0; i < sizeof secret; i++) snprintf(token + 2 * i, 3, "%02x", secret[i]);
    strcat(token, "\n");
    tr_status status = tr_launch(r->options.argv, r->cluster->count, .argv_of = argv_of, .stdin_text = token,
        .output = take_line, .user = r, .grace_ms = GRACE_MS, .pass_signals = r->options.pass_signals, .report = report, .job = r->job);
    if (status != TR_CHILD) return status;
    if (report->first_rank >= 0 && report->exit_code == 128 + SIGTERM) report->exit_code = 1;
    explain(r, report);
    return tr_fail(status, "%s", report->text);
}

static tr_status name_job(run *r)
{
    time_t now = time(NULL);
    struct tm local;
    char stamp[32];
    if (!localtime_r(&now, &local) || !strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &local))
        return tr_fail(TR_IO, "cluster: what time is it?");
    snprintf(r->job, sizeof r->job, "%s-%d", stamp, (int)getpid());
    return TR_OK;
}

static tr_status prepare(run *r)
{
    const tr_cluster_run_options *o = &r->options;
    if (!o->argv || !o->argv[0] || !*o->argv[0]) return tr_fail(TR_INVALID, "cluster: no program: argv is empty");
    if (o->timeout_ms < 0) return tr_fail(TR_INVALID, "cluster: a .timeout_ms of %d must be positive", o->timeout_ms);
    if (o->max_restarts < 0)
        return tr_fail(TR_INVALID, "cluster: .max_restarts is %d: it takes 0 and more", o->max_restarts);
    if (o->min_ranks < 0 || (o->min_ranks && !o->max_restarts))
        return tr_fail(TR_INVALID, "cluster: .min_ranks is %d: it takes 0 and more, above 0 only with .max_restarts", o->min_ranks);
    if (o->port < 0 || o->port > 65535) return tr_fail(TR_INVALID, "cluster: port %d is not in 0 … 65535", o->port);
    if (!getcwd(r->folder, sizeof r->folder))
        return tr_fail(TR_IO, "cluster: this folder has no name: %s", strerror(errno));
    if (o->job) snprintf(r->job, sizeof r->job, "%s", o->job);
    else TRY(name_job(r));
    uint16_t any;
    if (getrandom(&any, sizeof any, 0) != sizeof any)
        return tr_fail(TR_IO, "cluster: no random numbers from the kernel");
    r->port = o->port ? o->port : PORT_FIRST + any % PORTS;
    r->launchers = calloc((size_t)r->cluster->count, sizeof *r->launchers);
    if (!r->launchers) return tr_fail(TR_NO_MEMORY, "cluster: no memory for %d hosts", r->cluster->count);
    for (int i = 0; i < r->cluster->count; i++) TRY(compose(r, i));
    return TR_OK;
}

static tr_status run_job(run *r, tr_launch_report *report)
{
    TRY(prepare(r));
    int ranks = 0;
    for (int i = 0; i < r->cluster->count; i++) ranks += r->cluster->hosts[i].slots;
    TRY(tr__job_begin(r->cluster, r->options.job ? r->options.job : r->job, ranks, r->options.argv, &r->files));
    tr_status status = launch(r, report);
    tr__job_end(&r->files, status ? tr_error_message() : "all ranks ended well");
    return status;
}

tr_status tr_cluster_run_with(const tr_cluster_run_options *options)
{
    run r = {0};
    tr_launch_report unused;
    memcpy(&r.options, options, options->size < sizeof r.options ? options->size : sizeof r.options);
    tr_launch_report *report = r.options.report ? r.options.report : &unused;
    *report = (tr_launch_report){.first_rank = -1};
    r.cluster = r.options.cluster;
    TRY(tr__cluster_there(r.cluster, "cluster_run"));
    tr_status status = run_job(&r, report);
    for (int i = 0; i < r.cluster->count && r.launchers; i++) free(r.launchers[i].words);
    free(r.launchers);
    return status;
}
