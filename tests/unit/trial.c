#include "trial.h"

#include "base/clock.h"
#include "entries.h"
#include "hosts.h"
#include "net/link.h"
#include "spaces.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* NOTICE_MS: in which a survivor must know of a kill, on a machine that is busy with other things; from the silence alone it would
 * know after TR__LINK_LOST_MS. SILENT_MS: after which a host that says nothing is given up. HANG_MS: of a rank that should have
 * ended. */
enum { HOSTS = 3, PLENTY_MS = 60000, JOIN_MS = 4000, NOTICE_MS = 10000, SILENT_MS = TR__LINK_LOST_LATE_MS, HANG_MS = 90000 };

static const char token[] = "a secret of the trials'";

static struct {
    pid_t server;
    int alive, port; /* the server ends when `alive` is closed */
    bool spaces;     /* it is on the first of the hosts that are network namespaces */
    double slowest_ms;
    char temporary[32]; /* a TMPDIR of their own */
} all = {.alive = -1};

/* ---- What is to happen --------------------------------------------------------------------------------------------- */

static trial random_trial(uint64_t seed)
{
    static const trial_fault faults[] = {TRIAL_NOTHING, TRIAL_DELAY, TRIAL_DELAY, TRIAL_DELAY, TRIAL_PAUSE, TRIAL_PAUSE,
        TRIAL_PAUSE, TRIAL_PAUSE, TRIAL_STOP, TRIAL_STOP, TRIAL_STOP, TRIAL_STOP, TRIAL_KILL, TRIAL_KILL, TRIAL_KILL,
        TRIAL_KILL, TRIAL_KILL, TRIAL_KILL, TRIAL_KILL, TRIAL_KILL};
    uint64_t draw = seed;
    trial t = {.seed = seed, .world = 2 + trial_below(&draw, TRIAL_FEW - 1), .memory = TRIAL_MIXED, .kind = TRIAL_ANY,
        .join_ms = PLENTY_MS, .timeout_ms = PLENTY_MS};
    t.transport = trial_below(&draw, 2) ? "shm" : "tcp";
    t.fault = faults[trial_below(&draw, sizeof faults / sizeof *faults)];
    t.victim = trial_below(&draw, t.world);
    t.turns = 4 + trial_below(&draw, 17);
    t.moment = trial_below(&draw, t.turns + 2);
    t.delay_us = trial_below(&draw, 1 + trial_below(&draw, 4000));
    t.pause_ms = 1 + trial_below(&draw, 300);
    if (t.fault == TRIAL_STOP) t.timeout_ms = 1500;
    if (t.moment == 0 && (t.fault == TRIAL_STOP || t.fault == TRIAL_KILL)) t.join_ms = JOIN_MS;
    return t;
}

uint64_t trial_sweep_seed(tr_collective_kind kind, int way, trial_fault fault, int phase)
{
    return TRIAL_SWEEP | (uint64_t)kind | (uint64_t)way << 4 | (uint64_t)fault << 8 | (uint64_t)phase << 16;
}

static trial sweep_trial(uint64_t seed)
{
    int way = (int)(seed >> 4 & 15);
    static const int hosts[] = {0, 0, 1};
    trial t = {.seed = seed, .world = 3, .transport = way ? "shm" : "tcp", .kind = (int)(seed & 15) % TR_COLLECTIVE_COUNT,
        .memory = way > 1 ? TRIAL_SHARED : TRIAL_PRIVATE, .count = 100000, .turns = 6, .moment = 4,
        .fault = (trial_fault)(seed >> 8 & 15), .phase = (int)(seed >> 16 & 255), .join_ms = PLENTY_MS};
    if (way > 2) t.transport = NULL, t.hosts = hosts, t.memory = TRIAL_MIXED;
    t.victim = (int)(seed >> 16) % t.world;
    t.timeout_ms = t.fault == TRIAL_STOP ? 500 : PLENTY_MS;
    return t;
}

/* The same on several hosts, several ranks on one of them at least. */
static trial hosts_trial(uint64_t seed)
{
    static const struct {
        int world, hosts[TRIAL_RANKS];
    } layouts[] = {{3, {0, 0, 1}}, {4, {0, 0, 1, 1}}, {4, {0, 1, 0, 1}}, {5, {0, 1, 1, 0, 0}}, {5, {0, 1, 2, 1, 0}},
        {9, {0, 1, 2, 0, 1, 2, 0, 1, 2}}, {12, {0, 0, 1, 1, 0, 0, 2, 2, 1, 1, 2, 2}}};
    uint64_t draw = ~seed;
    int layout = trial_below(&draw, sizeof layouts / sizeof *layouts);
    trial t = random_trial(seed);
    t.world = layouts[layout].world;
    t.hosts = layouts[layout].hosts;
    t.victim %= t.world;
    t.transport = NULL;
    return t;
}

/* Mostly killed, as a stop takes as long as the others have to join. */
static trial join_trial(uint64_t seed)
{
    trial t = hosts_trial(seed);
    uint64_t draw = seed ^ 0x5a5a;
    t.fault = trial_below(&draw, 8) ? TRIAL_KILL : TRIAL_STOP;
    t.moment = 0;
    t.delay_us = trial_below(&draw, 1 + trial_below(&draw, 6000));
    t.join_ms = t.timeout_ms = JOIN_MS; /* the victim may be in before it happens */
    return t;
}

/* Links are what they are, or slow, or lose packets; and one may be cut. */
static trial spaces_trial(uint64_t seed)
{
    static const trial_fault cuts[] = {TRIAL_CUT, TRIAL_CUT, TRIAL_SEVER};
    trial t = hosts_trial(seed);
    uint64_t draw = seed ^ 0xa5a5;
    t.spaces = true;
    if (trial_below(&draw, 5) == 0) {
        t.fault = cuts[trial_below(&draw, 3)];
        t.join_ms = t.timeout_ms = PLENTY_MS; /* whatever fault it was before */
    }
    if (t.fault == TRIAL_CUT) t.pause_ms = 100 + trial_below(&draw, TR__LINK_CUT_MS - 600);
    if (t.fault == TRIAL_STOP) t.timeout_ms = 4000; /* what is lost takes its time, too */
    if (t.moment == 0 && (t.fault == TRIAL_SEVER || t.fault == TRIAL_STOP)) t.join_ms = 2 * JOIN_MS;
    int delay_us = trial_below(&draw, 3000), loss = trial_below(&draw, 20);
    switch (trial_below(&draw, 4)) {
    case 0: snprintf(t.netem, sizeof t.netem, "delay %dus", delay_us); break;
    case 1: snprintf(t.netem, sizeof t.netem, "loss %d.%d%%", loss / 10, loss % 10); break;
    case 2: snprintf(t.netem, sizeof t.netem, "delay %dus loss %d.%d%%", delay_us, loss / 10, loss % 10); break;
    default: break;
    }
    return t;
}

trial trial_of(uint64_t seed)
{
    if (seed >= TRIAL_SPACES) return spaces_trial(seed);
    if (seed >= TRIAL_JOINS) return join_trial(seed);
    if (seed >= TRIAL_HOSTS) return hosts_trial(seed);
    return seed < TRIAL_SWEEP ? random_trial(seed) : sweep_trial(seed);
}

/* ---- A rank -------------------------------------------------------------------------------------------------------- */

static tr_store *open_store(const trial *t, int rank, trial_post *post)
{
    char text[SPACE_TEXT];
    if (t->spaces && !space_enter(space_name(t->hosts[rank], text))) return tr_store_tcp(NULL, 0);
    if (t->spaces) return tr_store_tcp(space_address(0, text), all.port, .token = token, .timeout_ms = t->join_ms);
    tr_store *store = tr_store_tcp("127.0.0.1", all.port);
    return t->hosts ? store_on_host_telling(store, t->hosts[rank], &post->record) : store;
}

static tr_status join_and_play(const trial *t, int rank, trial_post *post)
{
    char name[32];
    TR_SCOPE;
    snprintf(name, sizeof name, "trial-%llx", (unsigned long long)t->seed);
    tr_store *store = open_store(t, rank, post);
    if (tr_status_of(store) != TR_OK) return tr_status_of(store);
    tr_group *g = tr_join(.store = store, .rank = rank, .world_size = t->world, .name = name, .timeout_ms = t->join_ms,
        .transport = t->transport);
    tr_status status = tr_status_of(g);
    if (status == TR_OK) status = trial_series(t, rank, g, post);
    snprintf(post->text, sizeof post->text, "%s", status == TR_OK ? "" : tr_error_message());
    atomic_store(&post->ended, tr__now_ns());
    if (status == TR_OK) atomic_store(&post->moment, t->turns + 1);
    tr_status left = tr_leave(g);
    return status == TR_OK ? left : status;
}

static void *do_nothing(void *arg)
{
    return arg;
}

/* ThreadSanitizer starts a thread of its own beside a program's first one, and keeps it. */
static void have_had_a_thread(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, do_nothing, NULL) == 0) pthread_join(thread, NULL);
}

static void be_rank(const trial *t, int rank, trial_post *post)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(all.alive);
    have_had_a_thread();
    int descriptors = count_entries("/proc/self/fd"), threads = count_entries("/proc/self/task");
    post->status = join_and_play(t, rank, post);
    if (post->status != TR_OK && !post->text[0]) snprintf(post->text, sizeof post->text, "%s", tr_error_message());
    int more = more_entries("/proc/self/fd", descriptors), busy = more_entries("/proc/self/task", threads);
    if ((more || busy) && !post->wrong[0])
        snprintf(post->wrong, sizeof post->wrong, "%d descriptors and %d threads are left", more, busy);
    exit(0); /* with all that sanitizers look at then */
}

/* ---- The driver ---------------------------------------------------------------------------------------------------- */

typedef struct course {
    const trial *t;
    trial_post *posts;
    pid_t pids[TRIAL_RANKS];
    int how[TRIAL_RANKS]; /* they ended */
    int64_t struck;
    char *wrong;
} course;

static bool objects(course *c, const char *format, ...) TR_PRINTF(2, 3);
static bool objects(course *c, const char *format, ...)
{
    va_list arguments;
    size_t used = strlen(c->wrong);
    va_start(arguments, format);
    vsnprintf(c->wrong + used, TRIAL_TEXT - used, format, arguments);
    va_end(arguments);
    used = strlen(c->wrong);
    snprintf(c->wrong + used, TRIAL_TEXT - used, "\n");
    return false;
}

static bool cuts(const trial *t)
{
    return t->fault == TRIAL_CUT || t->fault == TRIAL_SEVER;
}

bool trial_is_seen(const trial *t)
{
    bool seen = false;
    if (t->seed < TRIAL_JOINS || t->spaces || t->fault != TRIAL_KILL) return false;
    for (int rank = 0; rank < t->world; rank++) seen |= rank != t->victim && t->hosts[rank] == t->hosts[t->victim];
    return seen;
}

/* A rank that goes before it has published its endpoint record has just not come. */
static bool has_come(const trial *t, const trial_post *victim)
{
    return atomic_load(&victim->moment) >= t->moment && (t->seed < TRIAL_JOINS || t->spaces || atomic_load(&victim->record));
}

/* Waits for the moment; the victim may be done before it comes. */
static void strike(course *c)
{
    const trial *t = c->t;
    trial_post *victim = &c->posts[t->victim];
    int64_t until = tr__now_ns() + (int64_t)HANG_MS * 1000000;
    while (!has_come(t, victim) && !atomic_load(&victim->ended) && tr__now_ns() < until) usleep(20);
    int64_t delay_ns = t->delay_us * (int64_t)1000 + atomic_load(&victim->turn_ns) / 256 * t->phase;
    for (int64_t end = tr__now_ns() + delay_ns, left; (left = end - tr__now_ns()) > 0;)
        if (left > 200000) usleep((unsigned)(left / 1000 - 100));
    c->struck = tr__now_ns();
    if (cuts(t))
        space_link(t->hosts[t->victim], false);
    else
        kill(c->pids[t->victim], t->fault == TRIAL_KILL ? SIGKILL : SIGSTOP);
    if (t->fault != TRIAL_PAUSE && t->fault != TRIAL_CUT) return;
    usleep((unsigned)t->pause_ms * 1000);
    if (cuts(t))
        space_link(t->hosts[t->victim], true);
    else
        kill(c->pids[t->victim], SIGCONT);
}

static bool reap_rank(course *c, int rank)
{
    for (int ms = 0; ms < HANG_MS; ms++) {
        if (waitpid(c->pids[rank], &c->how[rank], WNOHANG) == c->pids[rank]) return true;
        usleep(1000);
    }
    kill(c->pids[rank], SIGKILL);
    waitpid(c->pids[rank], &c->how[rank], 0);
    return objects(c, "rank %d hangs", rank);
}

/* "… rank 2 (pid 77) …", or among those that are late, "… ranks 1 and 2; …". While joining there may be no number yet. */
static bool names(const course *c, const char *text, int rank)
{
    char name[48];
    snprintf(name, sizeof name, c->t->moment == 0 ? "rank %d " : "rank %d (pid %ld", rank, (long)c->pids[rank]);
    if (strstr(text, name)) return true;
    const char *list = strstr(text, " ranks ");
    const char *at = list ? list + strlen(" ranks ") : "";
    for (char *end; strspn(at, "0123456789"); at = end + strspn(end, " ,and"))
        if (strtol(at, &end, 10) == rank) return true;
    return false;
}

/* Who was killed or stopped; where a host was cut off, somebody on the other side of the cut, or the store while joining. */
static bool names_culprit(const course *c, const char *text, int from)
{
    const trial *t = c->t;
    bool named = false;
    if (t->fault != TRIAL_SEVER) return names(c, text, t->victim);
    int cut = t->hosts[t->victim];
    for (int rank = 0; rank < t->world; rank++)
        named |= (t->hosts[rank] == cut) != (t->hosts[from] == cut) && names(c, text, rank);
    return named || (t->moment == 0 && strstr(text, "store "));
}

/* A survivor has finished in order, or names the culprit, and has done so in time. */
static bool judge_survivor(course *c, int rank)
{
    const trial *t = c->t;
    const trial_post *p = &c->posts[rank];
    bool joining = t->moment == 0, severed = t->fault == TRIAL_SEVER;
    bool hurt = t->fault == TRIAL_KILL || t->fault == TRIAL_STOP || severed;
    double took_ms = (double)(p->ended - c->struck) / 1e6, bound_ms = NOTICE_MS;
    if (t->fault == TRIAL_STOP) bound_ms += t->timeout_ms;
    if (severed) bound_ms += SILENT_MS;
    /* Of many, some register when others have told of the death already: they wait in vain for the next try. */
    bool in_vain = joining && strstr(p->text, "died, or exited, while joining before");
    if (joining && (in_vain || !trial_is_seen(t))) bound_ms += t->join_ms;
    if (p->status == TR_OK) return true;
    if (!hurt) return objects(c, "rank %d failed: %s", rank, p->text);
    bool may_time_out = t->fault == TRIAL_STOP || in_vain || (joining && !trial_is_seen(t));
    bool kind = p->status == TR_PEER || (may_time_out && p->status == TR_TIMEOUT) ||
                (severed && joining && p->status == TR_IO);
    if (!kind || !names_culprit(c, p->text, rank))
        return objects(c, "rank %d says '%s' (%s), nothing of rank %d (pid %ld)", rank, p->text, tr_status_name(p->status),
            t->victim, (long)c->pids[t->victim]);
    if (took_ms > bound_ms) return objects(c, "rank %d took %.0f ms to notice", rank, took_ms);
    if (t->fault == TRIAL_KILL && !joining && took_ms > all.slowest_ms) all.slowest_ms = took_ms;
    return true;
}

static bool judge_rank(course *c, int rank)
{
    const trial_post *p = &c->posts[rank];
    bool killed = WIFSIGNALED(c->how[rank]) && WTERMSIG(c->how[rank]) == SIGKILL;
    if (rank == c->t->victim && c->t->fault == TRIAL_KILL && killed) return true;
    if (!WIFEXITED(c->how[rank]) || WEXITSTATUS(c->how[rank]) != 0)
        return objects(c, "rank %d ended by itself with status 0x%x", rank, (unsigned)c->how[rank]);
    if (p->wrong[0]) return objects(c, "rank %d: %s", rank, p->wrong);
    if (rank == c->t->victim && c->t->fault == TRIAL_STOP) return true;
    return judge_survivor(c, rank);
}

static void start(course *c)
{
    fflush(NULL);
    for (int rank = 0; rank < c->t->world; rank++) {
        c->pids[rank] = fork();
        if (c->pids[rank] == 0) be_rank(c->t, rank, &c->posts[rank]);
    }
}

/* A kernel without netem leaves them as they are. */
static void shape_links(const trial *t)
{
    for (int host = 0; host < HOSTS; host++)
        if (!space_shape(host, t->netem[0] ? t->netem : NULL)) space_shape(host, NULL);
}

static bool run_course(course *c)
{
    const trial *t = c->t;
    bool well = true;
    if (t->spaces) shape_links(t);
    start(c);
    if (t->fault > TRIAL_DELAY) strike(c);
    for (int rank = 0; rank < t->world; rank++)
        if (rank != t->victim) well = reap_rank(c, rank) && well;
    if (t->fault == TRIAL_STOP) kill(c->pids[t->victim], SIGCONT); /* it wakes up in a group that has given up on it */
    well = reap_rank(c, t->victim) && well;
    if (t->fault == TRIAL_SEVER) space_link(t->hosts[t->victim], true);
    for (int rank = 0; rank < t->world && well; rank++) well = judge_rank(c, rank);
    return well;
}

/* Nothing of ours has a name in the file system. */
static int count_files(void)
{
    return count_shared_files() + count_entries(all.temporary);
}

bool trial_run(const trial *t, char wrong[TRIAL_TEXT])
{
    size_t bytes = TRIAL_RANKS * sizeof(trial_post);
    course c = {.t = t, .wrong = wrong};
    wrong[0] = 0;
    c.posts = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (c.posts == MAP_FAILED) return objects(&c, "no memory");
    int descriptors = count_entries("/proc/self/fd"), files = count_files();
    bool well = run_course(&c);
    if (count_entries("/proc/self/fd") != descriptors) well = objects(&c, "the driver has other descriptors than before");
    if (count_files() != files) well = objects(&c, "files are left in /dev/shm or TMPDIR");
    if (waitpid(-1, NULL, WNOHANG) != 0) well = objects(&c, "the store's process has died");
    munmap(c.posts, bytes);
    return well;
}

double trial_slowest_ms(void)
{
    return all.slowest_ms;
}

/* ---- The store ----------------------------------------------------------------------------------------------------- */

static int serve(int ready, int alive)
{
    char byte, name[SPACE_TEXT], address[SPACE_TEXT];
    TR_SCOPE;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (all.spaces && !space_enter(space_name(0, name))) return 1;
    tr_store *store = all.spaces ? tr_store_tcp(space_address(0, address), 0, .serve = true, .token = token)
                                 : tr_store_tcp("127.0.0.1", 0, .serve = true);
    int port = tr_status_of(store) == TR_OK ? tr_store_port(store) : 0;
    if (write(ready, &port, sizeof port) != sizeof port || !port) return 1;
    while (read(alive, &byte, 1) < 0 && errno == EINTR) continue;
    return 0;
}

bool trials_begin(bool spaces)
{
    int ready[2], alive[2];
    if (spaces && !spaces_make(HOSTS)) return false;
    strcpy(all.temporary, "/tmp/trireme-trials-XXXXXX");
    if (!mkdtemp(all.temporary) || setenv("TMPDIR", all.temporary, 1) != 0) return false;
    all.spaces = spaces;
    if (pipe(ready) != 0 || pipe(alive) != 0) return false;
    fflush(NULL);
    all.server = fork();
    if (all.server == 0) {
        close(alive[1]);
        exit(serve(ready[1], alive[0]));
    }
    close(ready[1]);
    close(alive[0]);
    all.alive = alive[1];
    bool serves = all.server > 0 && read(ready[0], &all.port, sizeof all.port) == sizeof all.port && all.port > 0;
    close(ready[0]);
    return serves;
}

void trials_end(void)
{
    close(all.alive);
    waitpid(all.server, NULL, 0);
    rmdir(all.temporary);
    all.alive = -1;
    if (all.spaces) spaces_remove();
}
