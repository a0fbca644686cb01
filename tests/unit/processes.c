#include "processes.h"

#include "base/clock.h"
#include "hosts.h"
#include "refusals.h"
#include "spaces.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static tr_store *open_store(const rank *r, const job *j)
{
    const char *token = j->setting.spaces || j->setting.encrypt || j->setting.token ? "a secret of the test's" : NULL;
    if (j->setting.spaces) return tr_store_tcp(j->setting.host, j->port, .serve = r->number == 0, .token = token);
    if (r->number > 0) return tr_store_tcp("127.0.0.1", j->port, .token = token);
    return tr_store_tcp("127.0.0.1", j->port, .serve = true, .listen_fd = j->listener, .token = token);
}

tr_status join_and_run(rank *r, const job *j, rank_body body)
{
    TR_SCOPE;
    const char *space = j->setting.spaces ? j->setting.spaces[r->number] : NULL;
    if (space && !space_enter(space)) return tr_fail(TR_IO, "cannot enter the network namespace %s", space);
    if (j->setting.refused >> r->number & 1 && !refuse_cross_memory()) return tr_fail(TR_IO, "cannot refuse calls of the kernel");
    r->store = open_store(r, j);
    if (j->setting.hosts) r->store = store_on_host(r->store, j->setting.hosts[r->number]);
    TRY(tr_status_of(r->store));
    r->group = tr_join(.store = r->store, .rank = r->number, .world_size = r->world, .timeout_ms = JOIN_MS,
        .transport = j->setting.transport, .report_ms = j->setting.report_ms ? j->setting.report_ms : 10000,
        .unexpected_bytes = j->setting.unexpected_bytes ? j->setting.unexpected_bytes : 64 << 20, .encrypt = j->setting.encrypt);
    TRY(tr_status_of(r->group));
    return body(r);
}

void start_job_in(job *j, const setting *s, int world, rank_body body, const void *arg)
{
    *j = (job){.world = world, .setting = *s};
    j->listener = listen_on_loopback(&j->port);
    j->posts = mmap(NULL, sizeof *j->posts * RANKS_ROOM, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(j->posts != MAP_FAILED);
    for (int i = 0; i < world; i++) {
        rank *r = &j->ranks[i];
        *r = (rank){.number = i, .world = world, .post = &j->posts[i], .arg = arg};
        atomic_store(&r->post->patience_ms, PATIENCE_MS);
        r->pid = fork();
        assert_true(r->pid >= 0);
        if (r->pid > 0) continue;
        if (i > 0) close(j->listener);
        r->post->status = join_and_run(r, j, body);
        snprintf(r->post->text, sizeof r->post->text, "%s", tr_error_message());
        atomic_store(&r->post->ended, tr__now_ns());
        _exit(0);
    }
    close(j->listener);
}

void start_job(job *j, int world, rank_body body, const void *arg)
{
    start_job_in(j, &(setting){0}, world, body, arg);
}

void await_turns(const job *j, int number, int turns)
{
    for (int ms = 0; atomic_load(&j->posts[number].turns) < turns; ms++) {
        if (ms > PATIENCE_MS || atomic_load(&j->posts[number].ended))
            fail_msg("rank %d does not get going: %s", number, j->posts[number].text);
        usleep(1000);
    }
}

void await_stop(const job *j, int number)
{
    int how;
    assert_int_equal(waitpid(j->ranks[number].pid, &how, WUNTRACED), j->ranks[number].pid);
    if (!WIFSTOPPED(how)) fail_msg("rank %d has ended before it stopped: %s", number, j->posts[number].text);
}

void stop_rank(const job *j, int number)
{
    kill(j->ranks[number].pid, SIGSTOP);
    await_stop(j, number);
}

void reap(job *j, int number)
{
    int how;
    for (int ms = 0; ms < PATIENCE_MS; ms++) {
        if (waitpid(j->ranks[number].pid, &how, WNOHANG) != 0) return;
        usleep(1000);
    }
    kill(j->ranks[number].pid, SIGKILL);
    waitpid(j->ranks[number].pid, &how, 0);
    fail_msg("rank %d hangs", number);
}

void finish(job *j)
{
    munmap(j->posts, sizeof *j->posts * RANKS_ROOM);
}

void run_job_in(const setting *s, int world, rank_body body, const void *arg)
{
    job j;
    start_job_in(&j, s, world, body, arg);
    for (int i = 0; i < world; i++) reap(&j, i);
    for (int i = 0; i < world; i++)
        if (j.posts[i].status != TR_OK || !j.posts[i].ended)
            fail_msg("rank %d of %d: %s (%s)", i, world, j.posts[i].text, tr_status_name(j.posts[i].status));
    finish(&j);
}

void run_job(int world, rank_body body, const void *arg)
{
    run_job_in(&(setting){0}, world, body, arg);
}

/* ---- Killed and stopped ranks ------------------------------------------------------------------------------------- */

static void start_and_let_turn(job *j, const setting *s, int world, rank_body body, const void *arg)
{
    start_job_in(j, s, world, body, arg);
    for (int i = 0; i < world; i++) await_turns(j, i, 3);
}

int64_t kill_one_of(job *j, const setting *s, int world, int victim, rank_body body, const void *arg, int delay_us)
{
    start_and_let_turn(j, s, world, body, arg);
    usleep((unsigned)delay_us);
    int64_t killed = tr__now_ns();
    kill(j->ranks[victim].pid, SIGKILL);
    for (int i = 0; i < world; i++) reap(j, i);
    return killed;
}

void check_survivor(const job *j, int number, int victim, int64_t killed, const char *const words[3])
{
    const post *p = &j->posts[number];
    char name[64];
    snprintf(name, sizeof name, "rank %d (pid %ld", victim, (long)j->ranks[victim].pid);
    bool said = strstr(p->text, name);
    for (int i = 0; i < 3; i++) said = said && strstr(p->text, words[i]);
    if (p->status != TR_PEER || !said)
        fail_msg("rank %d says '%s' (%s), not '%s', '%s', '%s' and '%s'", number, p->text, tr_status_name(p->status),
            name, words[0], words[1], words[2]);
    if (p->ended - killed > 10000000000) /* by silence alone a rank is given up after 15 s */
        fail_msg("rank %d took %g s to notice", number, (double)(p->ended - killed) / 1e9);
}

/* Ten times as long as a turn takes now, and two seconds at least. */
static int patience_for(const job *j)
{
    enum { TURNS = 3, LEAST_MS = 2000, MOST_MS = 20000 };
    int64_t began = tr__now_ns();
    await_turns(j, 0, atomic_load(&j->posts[0].turns) + TURNS);
    int64_t ms = 10 * (tr__now_ns() - began) / TURNS / 1000000;
    return ms < LEAST_MS ? LEAST_MS : ms > MOST_MS ? MOST_MS : (int)ms;
}

void stop_one_of(job *j, const setting *s, int world, int victim, rank_body body, const void *arg)
{
    start_and_let_turn(j, s, world, body, arg);
    int patience_ms = patience_for(j);
    for (int i = 0; i < world; i++) atomic_store(&j->posts[i].patience_ms, patience_ms);
    for (int i = 0; i < world; i++) await_turns(j, i, atomic_load(&j->posts[i].turns) + 2); /* calls have that by then */
    stop_rank(j, victim);
    for (int i = 0; i < world; i++)
        if (i != victim) reap(j, i);
    kill(j->ranks[victim].pid, SIGCONT); /* it wakes up in a group that has given up on it */
    reap(j, victim);
}
