#include <trireme/launch.h>

#include "base/given.h"
#include "base/log.h"
#include "base/process.h"
#include "launch/job.h"

#include "comm/join/rendezvous.h"
#include "comm/record/ranks_text.h"

#include <trireme/comm.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

static const double moment_seconds = 0.3, default_grace_seconds = 1.0, kill_seconds = 2.0;
static const double leash_moment_seconds = 3.0; /* ranks on a leash are launchers, which take some time to agree */
static const double at_once_seconds = 0.1; /* between two signals that are one */
static const uint64_t tick_ms = 20; /* how often deadlines are looked at, once there are any */
static const double sweep_pause_seconds = 0.01;
static const uint64_t sweep_pause_ms = 11; /* that, and what the loop's clock is rounded by */

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

/* The groups keep their numbers until the ranks are reaped, at the very end, so no stranger can be hit. */
static void signal_groups(const tr__job *j, int sig)
{
    bool asks = sig == SIGTERM || sig == SIGINT || sig == SIGHUP || sig == SIGQUIT;
    for (int i = 0; i < j->started; i++) {
        kill(-j->groups[i], sig);
        if (asks) kill(-j->groups[i], SIGCONT); /* a process that is stopped would never see it */
    }
}

static void cut_leash(tr__job_rank *r)
{
    if (r->leash >= 0) close(r->leash);
    r->leash = -1;
}

/* Passes an interrupt on, after which ranks may take their time. */
static void pass_interrupt(tr__job *j, int sig)
{
    static const char word = 3; /* what ^C sends in a terminal */
    if (!j->options.stdin_text) signal_groups(j, sig);
    for (int i = 0; i < j->started; i++)
        if (j->ranks[i].leash >= 0) (void)!send(j->ranks[i].leash, &word, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* A failure has become known. There is more time for a culprit that is still to come than for others once it has. */
static void settle(tr__job *j)
{
    if (j->stage > SETTLING) return;
    double seconds = tr__job_only_victims(j) ? TR__CULPRIT_MS * 1e-3 : moment_seconds;
    double deadline = tr__launch_now() + (j->options.stdin_text ? leash_moment_seconds : seconds);
    if (j->stage == RUNNING || deadline < j->deadline) j->deadline = deadline;
    j->stage = SETTLING;
}

/* next: ENDING or KILLING. */
static void enter(tr__job *j, tr__job_stage next)
{
    if (next <= j->stage) return;
    j->stage = next;
    j->deadline = tr__launch_now() + (next == ENDING ? j->grace : kill_seconds);
    if (next == KILLING || !j->options.stdin_text) signal_groups(j, next == ENDING ? SIGTERM : SIGKILL);
    for (int i = 0; i < j->started && next == ENDING; i++) cut_leash(&j->ranks[i]); /* who is on one ends soon */
    tr__sweep(j->groups, j->started, j->mark, next == ENDING ? SIGTERM : SIGKILL);
}

static double counts_at_seconds(const tr__job_rank *r)
{
    return r->seconds + tr__handicap_ms(tr__by_signal(r) ? r->status : 0, r->status) * 1e-3;
}

/* After an interrupt any exit is the program's way to stop, whichever rank comes first. Launchers on a leash have judged
 * theirs already. */
static bool by_interrupt(const tr__job *j, const tr__job_rank *r)
{
    if (!j->interrupt) return false;
    if (tr__by_signal(r)) return r->status == j->interrupt;
    return !j->options.stdin_text || r->status == 128 + SIGTERM;
}

/* Looks for the first cause: the first failure, by tr__handicap_ms(), before the launcher itself began to end the job. */
static void judge(tr__job *j, tr__job_rank *r)
{
    int index = (int)(r - j->ranks);
    bool ours = (j->stage == ENDING && r->status == SIGTERM) || j->stage == KILLING;
    /* After a failure, here or on another node, an exit on SIGTERM tells nothing. */
    bool asked = j->stage >= ENDING && !tr__by_signal(r) && (j->first >= 0 || j->nodes.count);
    if (by_interrupt(j, r)) {
        j->stopped = true;
    } else if ((tr__by_signal(r) && ours) || asked) {
        return;
    } else if (j->stopped && j->options.stdin_text) {
        settle(j); /* it failed because another one was stopped */
    } else if (j->first < 0 || counts_at_seconds(r) < counts_at_seconds(&j->ranks[j->first])) {
        j->first = index;
        settle(j);
    }
}

/* A rank of tr_spawn() that ends before its function has returned has failed, with exit code 0 too: the others may wait for
 * it without end. */
static bool left_its_call(const tr__job *j, int index)
{
    return j->extra.call && tr__call_progress_of(j->extra.call, index) != TR__CALL_RETURNED;
}

/* Is it dead? It is not reaped yet: see signal_groups(). */
static void check_death(tr__job_rank *r)
{
    tr__job *j = r->job;
    siginfo_t info = {0};
    int failed = waitid(P_PID, (id_t)r->pid, &info, WEXITED | WNOHANG | WNOWAIT);
    if (!r->running || (!failed && !info.si_pid) || (failed && errno == EINTR)) return;
    r->running = false;
    r->code = failed ? CLD_EXITED : info.si_code;
    r->status = failed ? -1 : info.si_status; /* -1: another wait() in this program took it */
    r->seconds = tr__launch_now() - j->start;
    j->running--;
    if (r->pidfd >= 0) uv_poll_stop(&r->death);
    if (r->code != CLD_EXITED || r->status || left_its_call(j, (int)(r - j->ranks))) judge(j, r);
}

static void on_death(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events;
    check_death(poll->data);
}

/* Ends what the ranks have left behind; true when there is nothing, or nothing that can be ended. A process shows no environment in
 * the middle of an exec, and one that was forked meanwhile may be missed: so nothing has to be found twice in a row. */
static bool sweep(tr__job *j)
{
    double now = tr__launch_now();
    if (j->clean && now < j->clean_since + sweep_pause_seconds) return false;
    int again = j->stage == KILLING ? SIGKILL : 0; /* for what was forked meanwhile */
    if (again) signal_groups(j, again);
    bool was_clean = j->clean;
    j->clean = !tr__sweep(j->groups, j->started, j->mark, again);
    if (j->clean) {
        j->clean_since = now;
        return was_clean;
    }
    bool late = now > j->deadline;
    if (j->stage == KILLING) return late;
    if (j->stage < ENDING) enter(j, ENDING);
    else if (late) enter(j, KILLING);
    return false;
}

/* What the time asks for; true when nothing of the job is left here. */
static bool step(tr__job *j)
{
    bool late = j->stage != RUNNING && tr__launch_now() > j->deadline;
    if (j->running) {
        if (late && j->stage < KILLING) enter(j, j->stage + 1);
        return false;
    }
    if (!j->swept) {
        j->swept = sweep(j);
        if (!j->swept) return false;
        tr__output_drain(&j->output);
    }
    return tr__output_idle(&j->output);
}

/* ---- Signals ----------------------------------------------------------------------------------------------------- */

static void pass_on(tr__job *j, int sig)
{
    switch (sig) {
    case SIGUSR1:
    case SIGUSR2:
        if (!j->options.stdin_text) signal_groups(j, sig);
        break;
    case SIGTSTP: /* ^Z: the terminal stops only this process, for the ranks are in groups of their own */
        signal_groups(j, SIGSTOP);
        raise(SIGSTOP);
        signal_groups(j, SIGCONT);
        break;
    default:
        if (j->interrupt && j->heard) {
            j->heard = false;
        } else if (j->interrupt) {
            /* Launchers at the end of a leash that is cut now kill; without that time they would be left to it alone. */
            enter(j, j->options.stdin_text && j->stage < ENDING ? ENDING : KILLING);
            if (!j->running) tr__output_end(&j->output); /* who reads it is in no hurry, but the user is */
            j->gave_up = true;
        } else {
            j->interrupt = sig;
            pass_interrupt(j, sig);
        }
    }
}

/* timeout(1) sends its signal to the process and then to the process's group: that is one. */
static bool is_repeated(tr__job *j, const struct signalfd_siginfo *info)
{
    double now = tr__launch_now();
    bool repeated = info->ssi_signo == j->latest_signal && info->ssi_pid == j->latest_sender &&
        now - j->latest_at < at_once_seconds;
    j->latest_signal = info->ssi_signo;
    j->latest_sender = info->ssi_pid;
    j->latest_at = now;
    return repeated;
}

static void on_signal(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events;
    tr__job *j = poll->data;
    struct signalfd_siginfo info;
    while (read(j->signal_fd, &info, sizeof info) == sizeof info)
        if (!is_repeated(j, &info)) pass_on(j, (int)info.ssi_signo);
}

/* Signals come to a descriptor instead of to handlers, so the program's own are never touched. */
static tr_status open_signals(tr__job *j)
{
    sigset_t set;
    sigemptyset(&set);
    static const int passed[] = {SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP};
    for (size_t i = 0; i < sizeof passed / sizeof *passed; i++) sigaddset(&set, passed[i]);
    struct sigaction hangup;
    sigaction(SIGHUP, NULL, &hangup);
    if (hangup.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP); /* ignored: under nohup */

    j->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (j->signal_fd < 0) return tr__fail_errno(TR_IO, errno, "launch: cannot watch signals");
    if (uv_poll_init(&j->loop, &j->signals, j->signal_fd) < 0)
        return tr__fail(TR_NO_MEMORY, "launch: cannot watch signals");
    j->signals.data = j;
    uv_poll_start(&j->signals, UV_READABLE, on_signal);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    return TR_OK;
}

/* Of all nodes. */
static int world_size_of(const tr__job *j)
{
    return j->nodes.count ? j->nodes.world : j->options.ranks;
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

/* stdio of a rank: what it inherits, /dev/null, or the write ends of new pipes. */
static tr_status open_stdio(tr__job *j, int index, int nothing, int stdio[3])
{
    bool is_first = j->first_rank + index == 0;
    stdio[0] = is_first && !isatty(STDIN_FILENO) ? STDIN_FILENO : nothing;
    stdio[1] = STDOUT_FILENO;
    stdio[2] = STDERR_FILENO;
    bool piped = j->options.output || j->options.log_dir;
    if (!piped || (is_first && j->options.rank0_inherits)) return TR_OK;
    TR__TRY(tr__output_add(&j->output, &j->loop, index, false, &stdio[1]));
    tr_status status = tr__output_add(&j->output, &j->loop, index, true, &stdio[2]);
    if (status) close(stdio[1]);
    return status;
}

/* Older kernels and strict sandboxes have no pidfd: then the timer looks after the rank. */
static tr_status watch(tr__job *j, tr__job_rank *r)
{
    r->pidfd = pidfd_open(r->pid, 0);
    if (r->pidfd < 0) {
        j->ticking = true;
        return errno == EMFILE || errno == ENFILE
            ? tr__fail_errno(TR_IO, errno, "cannot watch process %d (see ulimit -n)", (int)r->pid) : TR_OK;
    }
    if (uv_poll_init(&j->loop, &r->death, r->pidfd) < 0) {
        close(r->pidfd);
        r->pidfd = -1;
        return tr__fail(TR_NO_MEMORY, "cannot watch process %d", (int)r->pid);
    }
    r->death.data = r;
    uv_poll_start(&r->death, UV_READABLE, on_death);
    return TR_OK;
}

static tr_status open_leash(const tr__job *j, tr__job_rank *r, int *read_end)
{
    int ends[2];
    size_t bytes = strlen(j->options.stdin_text);
    /* Not a pipe: one whose reader is gone would raise SIGPIPE here. */
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
        return tr__fail_errno(TR_IO, errno, "launch: cannot open a socket (see ulimit -n)");
    *read_end = ends[0];
    r->leash = ends[1];
    return send(r->leash, j->options.stdin_text, bytes, MSG_NOSIGNAL) == (ssize_t)bytes ? TR_OK
        : tr__fail_errno(TR_IO, errno, "launch: cannot write to a socket");
}

static tr_status start_rank(tr__job *j, int index, int nothing)
{
    tr__job_rank *r = &j->ranks[index];
    int stdio[3];
    r->leash = -1;
    TR__TRY(open_stdio(j, index, nothing, stdio));
    tr__env_set_rank(&j->env, index);
    const char *const *argv = j->options.argv_of ? j->options.argv_of(index, j->options.user) : j->options.argv;
    const tr__process_options process = {
        .file = j->extra.call ? TR__CALL_PROGRAM : argv[0],
        .argv = argv,
        .env = j->env.entries,
        .stdio = stdio,
        .keep = {j->extra.call ? j->extra.call->fd : 0},
        .own_group = true,
    };
    tr_status status = j->options.stdin_text ? open_leash(j, r, &stdio[0]) : TR_OK;
    if (status == TR_OK) status = tr__process_start(&process, &r->pid);
    for (int i = 1; i < 3; i++)
        if (stdio[i] > STDERR_FILENO) close(stdio[i]);
    if (r->leash >= 0) close(stdio[0]);
    if (status) cut_leash(r);
    TR__TRY(status);
    r->job = j;
    r->pidfd = -1;
    r->running = true;
    j->groups[j->started++] = r->pid;
    j->running++;
    TR__TRY(tr__guard_add(&j->guard));
    return watch(j, r);
}

static tr_status start_ranks(tr__job *j)
{
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing < 0) return tr__fail_errno(TR_IO, errno, "launch: cannot open /dev/null");
    tr_status status = TR_OK;
    for (int i = 0; i < j->options.ranks && status == TR_OK; i++) {
        status = start_rank(j, i, nothing);
        if (status && j->started) tr__fail_context(status, "launch: rank %d of %d", j->first_rank + i, world_size_of(j));
    }
    close(nothing);
    return status;
}

/* ---- Other nodes -------------------------------------------------------------------------------------------------- */

/* Tells the other nodes, and does what they tell; true when they are done, too. */
static bool step_nodes(tr__job *j, bool ended)
{
    if (!j->nodes.count || j->gave_up) return true;
    if (!j->nodes.over) tr__job_tell_nodes(j, ended);
    if (tr__nodes_step(&j->nodes)) {
        if (j->nodes.lost || tr__nodes_first_failure(&j->nodes)) settle(j);
        int sig = 0;
        for (int i = 0; i < j->nodes.count && !sig; i++) sig = j->nodes.all[i].interrupt;
        if (sig && !j->interrupt) {
            pass_on(j, sig);
            j->heard = true;
        }
    }
    return j->nodes.over || j->nodes.lost;
}

/* ---- The job ----------------------------------------------------------------------------------------------------- */

static void reap(tr__job *j)
{
    for (int i = 0; i < j->started; i++) {
        while (waitpid(j->groups[i], NULL, 0) < 0 && errno == EINTR) continue;
        if (j->ranks[i].pidfd >= 0) close(j->ranks[i].pidfd);
        cut_leash(&j->ranks[i]);
    }
}

static void on_tick(uv_timer_t *timer)
{
    tr__job *j = timer->data;
    for (int i = 0; i < j->started; i++)
        if (j->ranks[i].running && j->ranks[i].pidfd < 0) check_death(&j->ranks[i]);
}

static void supervise(tr__job *j)
{
    for (;;) {
        bool ended = step(j);
        if (step_nodes(j, ended) && ended) break;
        bool timed = j->ticking || j->stage != RUNNING || !j->running;
        uint64_t first_ms = j->clean ? sweep_pause_ms : tick_ms;
        if (timed && !uv_is_active((uv_handle_t *)&j->timer)) uv_timer_start(&j->timer, on_tick, first_ms, tick_ms);
        uv_run(&j->loop, UV_RUN_ONCE);
    }
}

static void close_handle(uv_handle_t *handle, void *unused)
{
    (void)unused;
    if (!uv_is_closing(handle)) uv_close(handle, NULL);
}

/* With loop, output and guard ready: from the first rank's start to the last one's end. */
static tr_status run_ranks(tr__job *j)
{
    if (start_ranks(j)) {
        j->error = tr__error_take(); /* what comes now may fail too, but this is what to report */
        enter(j, KILLING);
        tr__output_end(&j->output);
    }
    supervise(j);
    tr__guard_stop(&j->guard);
    tr_status status = tr__job_conclude(j);
    tr__error_unref(j->error);
    reap(j);
    return status;
}

static void on_guard_lost(void *user)
{
    tr__job *j = user;
    if (j->error) return;
    j->error = tr__error_take();
    enter(j, ENDING);
}

static tr_status run_with_store(tr__job *j, const tr__env_options *where)
{
    TR__TRY(tr__env_make(&j->env, where));
    tr__stalls_watch(&j->stalls, &j->loop, where->job);
    TR__TRY(tr__guard_start(&j->guard, &(tr__guard_options){.loop = &j->loop, .mark = j->mark, .groups = j->groups,
        .lost = on_guard_lost, .user = j}));
    const tr__output_options output = {.first_rank = j->first_rank, .ranks = j->options.ranks,
        .function = j->options.output, .user = j->options.user, .log_dir = j->options.log_dir,
        .prefixed = j->options.stdin_text != NULL, .append = j->restarts > 0};
    tr_status status = tr__output_open(&j->output, &j->loop, &output);
    if (status) {
        tr__guard_stop(&j->guard);
        return status;
    }
    return run_ranks(j);
}

static tr_status run_with_loop(tr__job *j)
{
    TR_SCOPE; /* the store of a node that is alone serves until the job is over */
    uv_timer_init(&j->loop, &j->timer);
    j->timer.data = j;
    TR__TRY(tr__random_text(j->mark, sizeof j->mark));
    if (j->options.pass_signals) TR__TRY(open_signals(j)); /* before any thread, for threads inherit the mask */
    char name[TR_LAUNCH_JOB_NAME + 1];
    tr__env_options where = {.extra = j->options.env, .first_rank = j->first_rank, .ranks = j->options.ranks,
        .world = world_size_of(j), .mark = j->mark, .job = j->options.job ? j->options.job : name, .restarts = j->restarts,
        .max_restarts = j->options.max_restarts, .began_ns = j->began_ns, .call = j->extra.call};
    if (j->nodes.count) {
        snprintf(name, sizeof name, "%s", j->options.rendezvous);
        where.node = j->nodes.rank;
        where.host = j->nodes.host;
        where.port = j->nodes.port;
        where.token = j->options.token;
        j->ticking = true;
    } else {
        TR__TRY(tr__random_text(j->token, sizeof j->token));
        tr_store *store = tr_store_tcp("127.0.0.1", 0, .serve = true, .token = j->token);
        TR__TRY(tr_status_of(store));
        snprintf(name, sizeof name, "%d", (int)getpid());
        where.host = "127.0.0.1";
        where.port = tr_store_port(store);
        where.token = j->token;
    }
    return run_with_store(j, &where);
}

/* A daemon may have closed 0, 1 and 2. While they are filled, nothing of ours gets these numbers (libuv would abort). */
static int fill_stdio(int fillers[3])
{
    int count = 0, fd;
    while ((fd = open("/dev/null", O_RDWR | O_CLOEXEC)) >= 0 && fd <= STDERR_FILENO) fillers[count++] = fd;
    if (fd >= 0) close(fd);
    return count;
}

static tr_status run_job(tr__job *j)
{
    int error = uv_loop_init(&j->loop);
    if (error) return tr__fail(TR_IO, "launch: cannot make an event loop: %s", uv_strerror(error));
    pthread_sigmask(SIG_BLOCK, NULL, &j->old_mask);
    tr_status status = run_with_loop(j);
    tr__output_end(&j->output);
    uv_walk(&j->loop, close_handle, NULL);
    uv_run(&j->loop, UV_RUN_DEFAULT);
    uv_loop_close(&j->loop);
    if (j->signal_fd >= 0) close(j->signal_fd);
    /* From here a signal ends a program that waits for whoever reads its output. */
    pthread_sigmask(SIG_SETMASK, &j->old_mask, NULL);
    tr__output_free(&j->output);
    tr__env_free(&j->env);
    return status;
}

/* A job as it is before its ranks are started, the first time and each time that they are started again. */
static void begin(tr__job *j)
{
    *j = (tr__job){.options = j->options, .extra = j->extra, .report = j->report, .nodes = j->nodes, .first_rank = j->first_rank,
        .restarts = j->restarts, .began_ns = j->began_ns, .ranks = j->ranks, .groups = j->groups, .grace = j->grace,
        .signal_fd = -1, .first = -1, .start = tr__launch_now(), .oom_kills = tr__count_oom_kills()};
    memset(j->ranks, 0, (size_t)j->options.ranks * sizeof *j->ranks);
    *j->report = (tr_launch_report){.first_rank = -1};
}

/* If the job may shrink, the node of the first failure starts one rank fewer. */
static void shrink(tr__job *j)
{
    int local = j->report->first_rank - j->first_rank;
    bool here = j->report->first_rank >= 0 && local >= 0 && local < j->options.ranks;
    bool may = j->options.min_ranks && world_size_of(j) > j->options.min_ranks;
    if (may && here && j->options.ranks > 1) j->options.ranks--;
}

/* Are the ranks to be started again? One has failed by itself, or was lost with its node before all had ended; nobody has stopped
 * the job, and the other nodes go on, too. */
static bool begins_again(tr__job *j, tr_status status)
{
    bool failed = status == TR_CHILD || (j->nodes.lost && !j->nodes.over);
    if (!failed || j->restarts >= j->options.max_restarts) return false;
    if (j->nodes.count ? !tr__nodes_begin_again(&j->nodes, j->interrupt) : j->interrupt) return false;
    if (*j->report->text) tr__log(TR_LOG_WARN, "launch: %s", j->report->text);
    if (j->nodes.lost && strcmp(j->report->text, j->nodes.lost_text) != 0) tr__log(TR_LOG_WARN, "launch: %s", j->nodes.lost_text);
    shrink(j);
    j->restarts++;
    return true;
}

/* before: ranks of the time before. */
static void announce(const tr__job *j, int before)
{
    const tr__nodes *n = &j->nodes;
    int world = world_size_of(j);
    char how_many[32] = "all", list[TR__RANKS_TEXT], where[TR__RANKS_TEXT + 32] = "";
    if (n->least < n->most) {
        tr__ranks_text(n->members, n->count, n->count, list);
        snprintf(where, sizeof where, ", on node%s", list + strlen("rank"));
    }
    if (world < before) snprintf(how_many, sizeof how_many, "%d of %d", world, before);
    if (world > before) snprintf(how_many, sizeof how_many, "%d", world);
    if (j->restarts)
        tr__log(TR_LOG_WARN, "launch: %s ranks are started again%s, time %d of %d", how_many, where, j->restarts,
            j->options.max_restarts);
    else if (n->count < n->most)
        tr__log(TR_LOG_WARN, "launch: %d ranks are started%s, of up to %d nodes", world, where, n->most);
}

/* The nodes meet before signals are taken from this program, each time that their ranks are started. */
static tr_status meet_and_run(tr__job *j)
{
    bool alone = j->options.nodes <= 1;
    if (!alone && !j->options.token) j->options.token = getenv("TRIREME_TOKEN");
    j->began_ns = tr__wall_ns();
    int before = world_size_of(j);
    tr_status status;
    do {
        *j->report = (tr_launch_report){.first_rank = -1};
        status = alone ? TR_OK : tr__nodes_meet(&j->nodes, &j->options, j->options.token);
        if (!alone) {
            j->first_rank = j->nodes.first_rank;
            j->began_ns = j->nodes.began_ns;
            j->restarts = j->nodes.meeting;
        }
        if (status == TR_OK) {
            announce(j, before);
            begin(j);
            status = run_job(j);
            before = world_size_of(j);
        }
    } while (begins_again(j, status));
    if (!alone) tr__nodes_leave(&j->nodes);
    return status;
}

static tr_status check_options(const tr_launch_options *o)
{
    if (!o->argv || !o->argv[0] || !*o->argv[0]) return tr__fail(TR_INVALID, "launch: no program: argv is empty");
    if (o->ranks < 1 || o->ranks > TR_LAUNCH_MAX_RANKS)
        return tr__fail(TR_INVALID, "launch: %d ranks: it takes 1 to %d", o->ranks, TR_LAUNCH_MAX_RANKS);
    if (o->max_restarts < 0)
        return tr__fail(TR_INVALID, "launch: .max_restarts is %d: it takes 0 and more", o->max_restarts);
    if (o->min_ranks < 0 || (o->min_ranks && !o->max_restarts))
        return tr__fail(TR_INVALID, "launch: .min_ranks is %d: it takes 0 and more, above 0 only with .max_restarts", o->min_ranks);
    if (o->grace_ms < 0) return tr__fail(TR_INVALID, "launch: grace_ms is %d: it takes 0 and more", o->grace_ms);
    if (o->job && (!*o->job || strlen(o->job) > TR_LAUNCH_JOB_NAME || strpbrk(o->job, "/ \t\n")))
        return tr__fail(TR_INVALID, "launch: a job's name has 1 … %d bytes and no slash or blank", TR_LAUNCH_JOB_NAME);
    if (TR__OR(o, nodes, 1) < 1 || TR__OR(o, rendezvous_ms, 1) < 1)
        return tr__fail(TR_INVALID, "launch: .nodes is %d and .rendezvous_ms %d: they must be positive", o->nodes, o->rendezvous_ms);
    if (o->min_nodes < 0 || o->min_nodes > TR__OR(o, nodes, 1))
        return tr__fail(TR_INVALID, "launch: .min_nodes is %d: it takes 1 to .nodes, which is %d", o->min_nodes,
            TR__OR(o, nodes, 1));
    if (o->nodes <= 1 && (o->node_rank || o->rendezvous))
        return tr__fail(TR_INVALID, "launch: .node_rank and .rendezvous are for jobs on several nodes: .nodes says how many");
    struct sigaction child;
    sigaction(SIGCHLD, NULL, &child);
    if (child.sa_handler == SIG_IGN || (child.sa_flags & SA_NOCLDWAIT))
        return tr__fail(TR_STATE, "launch: this program ignores SIGCHLD, so the kernel drops the exit codes of its children: "
            "call signal(SIGCHLD, SIG_DFL) before");
    return TR_OK;
}

tr_status tr__launch(const tr_launch_options *options, const tr__launch_extra *extra)
{
    tr_launch_report unused;
    tr__job j = {.extra = *extra};
    memcpy(&j.options, options, options->size < sizeof j.options ? options->size : sizeof j.options);
    j.options.size = sizeof j.options;
    j.report = j.options.report ? j.options.report : &unused;
    *j.report = (tr_launch_report){.first_rank = -1};
    tr_status sound = check_options(&j.options);
    if (sound != TR_OK) {
        tr__nodes_refuse(&j.options, j.options.token ? j.options.token : getenv("TRIREME_TOKEN"), sound);
        return sound;
    }

    j.ranks = calloc((size_t)j.options.ranks, sizeof *j.ranks);
    j.groups = calloc((size_t)j.options.ranks, sizeof *j.groups);
    j.grace = TR__GIVEN(&j.options, grace_ms) ? j.options.grace_ms * 1e-3 : default_grace_seconds;
    int fillers[3], filled = fill_stdio(fillers);
    tr_status status = j.ranks && j.groups ? meet_and_run(&j)
        : tr__fail(TR_NO_MEMORY, "launch: no memory for %d ranks", j.options.ranks);
    while (filled > 0) close(fillers[--filled]);
    free(j.ranks);
    free(j.groups);
    return status;
}

tr_status tr_launch_with(const tr_launch_options *options)
{
    return tr__launch(options, &(tr__launch_extra){0});
}
