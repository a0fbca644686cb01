/* trireme run: starts a program as the ranks of a job, shows their output, and says why a job failed. */
#include "clock.h"
#include "command.h"
#include "options.h"
#include "terminal.h"

#include <trireme/launch.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void print_line(int rank, bool is_stderr, const char *line, size_t length, void *user)
{
    char tag[32];
    snprintf(tag, sizeof tag, "[%*d] ", *(int *)user, rank);
    tr__print_line(is_stderr ? STDERR_FILENO : STDOUT_FILENO, tag, line, length);
}

typedef struct settings {
    int ranks, nodes, min_nodes, node_rank, timeout, max_restarts, min_ranks;
    double grace, patience;
    bool no_prefix, stop_on_eof;
    const char *job, *flight_dir, *log_dir, *nnodes, *rendezvous, *token_file;
} settings;

/* "3" or "2:3". */
static int read_nodes(settings *s)
{
    tr__option row = {TR__INTEGER(&s->min_nodes, 1, 65536)};
    const char *most = s->nnodes, *colon = most ? strchr(most, ':') : NULL;
    char least[16] = "";
    if (colon) snprintf(least, sizeof least, "%.*s", (int)(colon - most), most);
    if (colon && !tr__option_set("run", &row, "--nnodes", least)) return TR__EXIT_USAGE;
    row.into = &s->nodes;
    if (most && !tr__option_set("run", &row, "--nnodes", colon ? colon + 1 : most)) return TR__EXIT_USAGE;
    return s->min_nodes <= s->nodes ? -1 : TR__MISUSE("run", "--nnodes %s: MIN is above MAX", most);
}

static int parse(int argc, char **argv, settings *s, int *operands)
{
    const tr__option options[] = {
        {"ranks", 'n', "N", "processes to start here", TR__INTEGER(&s->ranks, 1, TR_LAUNCH_MAX_RANKS)},
        {"max-restarts", 0, "N", "how often to start all ranks again after one failed",
         TR__INTEGER(&s->max_restarts, 0, INT_MAX)},
        {"min-ranks", 0, "N", "with --max-restarts: start one rank fewer each time, while N are left on all nodes",
         TR__INTEGER(&s->min_ranks, 1, INT_MAX)},
        {"grace", 0, "SECONDS", "how long ranks get to end when another one failed", TR__NUMBER(&s->grace, 0.001, 3600)},
        {"timeout", 0, "SECONDS", "how long a rank waits for others, in a collective or to join (600)",
         TR__INTEGER(&s->timeout, 1, INT_MAX / 1000)},
        {"no-prefix", 0, NULL, "let the ranks write to this terminal themselves; with --log-dir, only there", TR__FLAG(&s->no_prefix)},
        {"log-dir", 0, "FOLDER", "write each rank's output to a file rank-R.log there, too", TR__TEXT(&s->log_dir)},
        {"job", 0, "NAME", "the job's name, for trireme why; this process's id when not given", TR__TEXT(&s->job)},
        {"flight-dir", 0, "FOLDER", "where ranks write their latest calls when a collective fails", TR__TEXT(&s->flight_dir)},
        {"nnodes", 0, "[MIN:]MAX", "machines that take part; the command is run on each", TR__TEXT(&s->nnodes)},
        {"node-rank", 0, "N", "which of them this is, from 0", TR__INTEGER(&s->node_rank, 0, 65535)},
        {"rendezvous", 0, "HOST:PORT", "where node 0 listens and the others find it", TR__TEXT(&s->rendezvous)},
        {"rendezvous-timeout", 0, "SECONDS", "how long to wait for the other nodes", TR__NUMBER(&s->patience, 0.1, 86400)},
        {"token-file", 0, "FILE", "holds the job's secret (-: stdin's first line); else TRIREME_TOKEN", TR__TEXT(&s->token_file)},
        {"stop-on-eof", 0, NULL, "when stdin ends, stop the ranks, and kill them after the grace; they do not read it", TR__FLAG(&s->stop_on_eof)},
        {0},
    };
    const tr__syntax syntax = {"run", "PROGRAM [ARGUMENT…]",
        "Runs PROGRAM as the ranks of a job, with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set. When one\n"
        "rank fails, the others are ended, and it is said which one failed first and why; with --max-restarts all start again,\n"
        "and a program that finds its latest checkpoint goes on from there. With --nnodes the same command, with another\n"
        "--node-rank, runs on each machine, and all have the same secret. With MIN:MAX and --max-restarts the job goes on\n"
        "without a lost node other than node 0, while MIN are left. A PROGRAM.py that is not executable is run by the first\n"
        "python3 of PATH.",
        options, .operands = {1, INT_MAX}, .stop_at_operand = true};
    *operands = argc;
    int code = tr__parse(&syntax, operands, argv);
    if (code < 0) code = read_nodes(s);
    if (code >= 0 || s->nodes > 1) return code; /* of several nodes, the one that cannot take part tells the others */
    if (s->min_ranks && !s->max_restarts)
        return TR__MISUSE("run", "--min-ranks %d, but without --max-restarts no ranks are started again", s->min_ranks);
    if (s->node_rank || s->rendezvous)
        return TR__MISUSE("run", "--node-rank and --rendezvous are for jobs on several machines: --nnodes says how many");
    return -1;
}

/* One line. From stdin no byte more than that is read: the rest is rank 0's. */
static bool read_line(int fd, char *text, size_t bytes)
{
    size_t used = 0;
    while (used < bytes && read(fd, text + used, 1) == 1 && text[used] != '\n') used++;
    text[used < bytes ? used : 0] = '\0';
    return used > 0 && used < bytes;
}

static bool read_token(const char *file, char *token, size_t bytes)
{
    bool is_stdin = strcmp(file, "-") == 0;
    int fd = is_stdin ? STDIN_FILENO : open(file, O_RDONLY | O_CLOEXEC);
    struct stat s;
    if (fd < 0 || fstat(fd, &s) < 0) {
        tr__complain("run", "cannot read the secret from %s: %s", file, strerror(errno));
        return false;
    }
    bool open_to_others = !is_stdin && S_ISREG(s.st_mode) && (s.st_mode & 077);
    bool there = !open_to_others && read_line(fd, token, bytes);
    if (!is_stdin) close(fd);
    if (open_to_others)
        tr__complain("run", "others may read the secret in %s: chmod 600 %s", file, file);
    else if (!there)
        tr__complain("run", "%s does not begin with a line of 1 to %zu bytes, the job's secret", file, bytes - 1);
    return there;
}

typedef struct watch {
    int fd;
    double grace;
} watch;

/* Two signals of one process that follow each other closely count as one, in the kernel where the first is still pending, and in
 * the launcher: between them there are this many seconds. */
static const double apart_seconds = 0.2;

/* Reads what is left of stdin, through ssh say, to see it end; then whoever started this is gone, or has no more patience. A
 * ^C in it is passed on before that, as the signal would be. The ranks get the grace from the first signal on. */
static void *watch_stdin(void *argument)
{
    enum { INTERRUPT = 3 };
    const watch *w = argument;
    char text[256];
    ssize_t got;
    double asked = 0; /* when; 0: not yet */
    while ((got = read(w->fd, text, sizeof text)) > 0 || (got < 0 && errno == EINTR)) {
        if (asked || got < 0 || !memchr(text, INTERRUPT, (size_t)got)) continue;
        asked = 1e-6 * tr__now_us();
        kill(getpid(), SIGTERM);
    }
    if (!asked) {
        asked = 1e-6 * tr__now_us();
        kill(getpid(), SIGTERM);
    }
    double left = asked + fmax(w->grace, apart_seconds) - 1e-6 * tr__now_us();
    if (left > 0) nanosleep(&(struct timespec){(time_t)left, (long)(fmod(left, 1) * 1e9)}, NULL);
    kill(getpid(), SIGTERM); /* a second one kills the ranks */
    return NULL;
}

/* From here on the ranks have another stdin. */
static bool start_watch(watch *w)
{
    pthread_t thread;
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    w->fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    bool ready = nothing >= 0 && w->fd >= 0 && dup2(nothing, STDIN_FILENO) == STDIN_FILENO;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    ready = ready && pthread_create(&thread, NULL, watch_stdin, w) == 0 && pthread_detach(thread) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!ready) tr__complain("run", "cannot watch stdin: %s", strerror(errno));
    return ready;
}

/* A Python program that is no executable is run by python3, the first one of PATH: a virtual environment's while that is
 * active. -u, as torchrun does: lines are seen when they are written. Returns a new list of arguments; NULL: no memory. */
static const char **command_of(char **argv)
{
    static const char *const python[] = {"python3", "-u"};
    size_t count = 0, length = strlen(argv[0]);
    while (argv[count]) count++;
    bool is_python = length > 3 && strcmp(argv[0] + length - 3, ".py") == 0;
    size_t front = is_python && access(argv[0], F_OK) == 0 && access(argv[0], X_OK) != 0 ? sizeof python / sizeof *python : 0;
    const char **command = calloc(front + count + 1, sizeof *command);
    if (!command) return NULL;
    memcpy(command, python, front * sizeof *command);
    memcpy(command + front, argv, count * sizeof *command);
    return command;
}

int tr__cli_run(int argc, char **argv)
{
    settings s = {.ranks = 1, .nodes = 1, .grace = 1, .patience = 300};
    int operands, status = parse(argc, argv, &s, &operands);
    if (status >= 0) return status;
    char token[1024];
    if (s.token_file && !read_token(s.token_file, token, sizeof token)) return TR__EXIT_FAILED;

    static watch watched; /* for as long as its thread runs */
    watched.grace = s.grace;
    if (s.stop_on_eof && !start_watch(&watched)) return TR__EXIT_FAILED;

    int width = snprintf(NULL, 0, "%d", s.ranks * s.nodes - 1);
    char flight[PATH_MAX + 32], timeout[64];
    const char *env[3] = {NULL};
    int set = 0;
    snprintf(flight, sizeof flight, "TRIREME_FLIGHT_DIR=%s", s.flight_dir ? s.flight_dir : "");
    snprintf(timeout, sizeof timeout, "TRIREME_TIMEOUT=%d", s.timeout);
    if (s.flight_dir) env[set++] = flight;
    if (s.timeout) env[set++] = timeout;
    tr__print_warnings("run");
    const char **command = command_of(argv);
    if (!command) return tr__complain("run", "no memory for the command");
    tr_launch_report report;
    tr_status launched = tr_launch((const char *const *)command, s.ranks, .output = s.no_prefix ? NULL : print_line,
        .user = &width, .env = env, .grace_ms = (int)(s.grace * 1000), .pass_signals = true, .report = &report, .job = s.job,
        .log_dir = s.log_dir, .nodes = s.nodes, .min_nodes = s.min_nodes, .node_rank = s.node_rank, .rendezvous = s.rendezvous,
        .rendezvous_ms = (int)(s.patience * 1000), .max_restarts = s.max_restarts, .min_ranks = s.min_ranks,
        .token = s.token_file ? token : NULL);
    free(command);
    if (launched == TR_OK) return TR__EXIT_OK;
    /* `trireme cluster`, which starts launchers so, tells this from warnings by its beginning. */
    tr__complain(s.stop_on_eof ? "run --stop-on-eof" : "run", "%s", *report.text ? report.text : tr_error_message());
    return launched == TR_INTERRUPTED ? report.exit_code : TR__EXIT_FAILED;
}
