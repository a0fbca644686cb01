/* What is concluded from flight records about ranks that wait: who keeps whom, in which calls. */
#include "base/clock.h"
#include "comm_ranks.h"
#include "recorders.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Enters a call and stays in it. */
static void enter(tr__recorder *r, tr_collective_kind kind, uint64_t sequence, int peer)
{
    tr_collective c = call_number(8);
    c.kind = kind;
    c.peer = peer;
    assert_true(tr__recorder_start(r, 0, &c, sequence) != 0);
}

static void expect(const char *job, const char *words)
{
    char *text;
    assert_int_equal(tr_job_explain(job, &text), TR_OK);
    if (!strstr(text, words)) fail_msg("nothing of '%s' in:\n%s", words, text);
    free(text);
}

static void expect_lasting(const char *job, const char *words, int64_t began)
{
    char *text;
    assert_int_equal(tr_job_explain(job, &text), TR_OK);
    check_lasting(text, words, began);
    free(text);
}

static void who_waits_for_whom(void **state)
{
    (void)state;
    tr__recorder *r[4];
    int64_t began = tr__now_ns();
    for (int i = 0; i < 4; i++) {
        r[i] = open_rank("world", i, 4, "native", NULL);
        tr__recorder_waits_for(r[i], (int[]){3}, i == 3 ? 0 : 1);
    }
    expect_lasting("unit", "joining for ", began);
    expect_lasting("unit", "is what ranks 0, 1 and 2 wait for: it has not joined (for ", began);
    for (int i = 0; i < 4; i++) {
        tr__recorder_joined(r[i]);
        make_call(r[i], 1);
    }
    expect("unit", "=> nobody waits");

    /* 0 waits for 1, which waits for 2, which is in no call. */
    began = tr__now_ns();
    enter(r[0], TR_ALL_REDUCE, 2, 0);
    tr__recorder_waits_for(r[0], (int[]){1}, 1);
    enter(r[1], TR_ALL_REDUCE, 2, 0);
    tr__recorder_waits_for(r[1], (int[]){2}, 1);
    char words[256];
    snprintf(words, sizeof words, "=> rank 2 (pid %d) is what ranks 0 and 1 wait for: it has not entered all_reduce #2 (sum "
        "of f32[8] at tests/train.c:8) (for ", (int)getpid());
    expect_lasting("unit", words, began);
    for (int i = 0; i < 4; i++) tr__recorder_close(r[i]);
}

/* What is told of waits that began later than one moment and by another one. */
static void expect_stalls(int64_t after, int64_t until, const char *words)
{
    tr__records all;
    char *text;
    read_own(&all, 3);
    assert_int_equal(tr__records_stalls(&all, "unit", after, until, &text), TR_OK);
    if (!words[0]) assert_string_equal(text, "");
    if (!strstr(text, words)) fail_msg("nothing of '%s' in:\n%s", words, text);
    free(text);
    assert_int_equal(tr__records_stalls(&all, "another", after, until, &text), TR_OK);
    assert_string_equal(text, "");
    free(text);
    tr__records_free(&all);
}

static void a_stall_is_told_when_it_began_then(void **state)
{
    (void)state;
    tr__recorder *r[3];
    int64_t at[4] = {tr__now_ns()};
    for (int i = 0; i < 3; i++) {
        r[i] = open_rank("world", i, 3, "native", NULL);
        tr__recorder_joined(r[i]);
        make_call(r[i], 1);
    }
    expect_stalls(0, tr__now_ns(), "");
    for (int i = 0; i < 2; i++) {
        at[i + 1] = tr__now_ns();
        enter(r[i], TR_ALL_REDUCE, 2, 0);
        tr__recorder_waits_for(r[i], (int[]){2}, 1);
    }
    at[3] = tr__now_ns();
    char words[256];
    snprintf(words, sizeof words, "group 'world': rank 2 (pid %d) is what ranks 0 and 1 wait for: it has not entered "
        "all_reduce #2 (sum of f32[8] at tests/train.c:8) (for ", (int)getpid());
    expect_stalls(0, at[3], words); /* the longer of the two waits counts */
    expect_stalls(at[1] - 1, at[2], words);
    expect_stalls(0, at[1] - 1, "");
    expect_stalls(at[2], at[3], "");

    enter(r[2], TR_RECV, 0, 0);
    expect_stalls(0, tr__now_ns(), "group 'world': ranks 0, 1 and 2 wait for each other: look where their calls differ");
    expect_stalls(tr__now_ns(), INT64_MAX, "");
    for (int i = 0; i < 3; i++) tr__recorder_close(r[i]);
}

static void transfers_wait_for_their_peer(void **state)
{
    (void)state;
    tr__recorder *a = open_rank("world", 0, 2, "native", NULL), *b = open_rank("world", 1, 2, "native", NULL);
    tr__recorder_joined(a);
    tr__recorder_joined(b);
    enter(a, TR_RECV, 0, 1);
    expect("unit", "is what rank 0 waits for: its part of recv (f32[8] from rank 1, tag 8 at tests/train.c:8) is not there");
    enter(b, TR_RECV, 0, 0);
    expect("unit", "=> ranks 0 and 1 wait for each other");

    /* Beside a collective, whose waiting goes on when they end. */
    int64_t began = tr__now_ns();
    enter(a, TR_ALL_REDUCE, 7, 0);
    tr__recorder_waits_for(a, (int[]){1}, 1);
    tr_collective c = call_number(3);
    c.kind = TR_SEND;
    c.peer = 1;
    tr__recorder_end(a, tr__recorder_start(a, 0, &c, 0), TR_OK);
    expect_lasting("unit", "in all_reduce #7 (sum of f32[8] at tests/train.c:8) for ", began);
    tr__records records;
    read_own(&records, 2);
    assert_int_equal(records.list[0].waits_count, 1);
    tr__records_free(&records);
    tr__recorder_close(a);
    tr__recorder_close(b);
}

/* Threads of one rank wait in several remote calls; what is said of a culprit is the wait for it. */
static void the_call_that_waits_for_a_culprit_is_named(void **state)
{
    (void)state;
    tr__recorder *r[3];
    for (int i = 0; i < 3; i++) {
        r[i] = open_rank("world", i, 3, "native", NULL);
        tr__recorder_joined(r[i]);
    }
    assert_true(tr__recorder_wait(r[0], -1, false, "a value that is made here") != 0);
    expect("unit", "=> nobody waits");
    uint64_t first = tr__recorder_wait(r[0], 1, false, "rpc first on \"one\"");
    int64_t between = tr__now_ns(), began = between + 1;
    while (tr__now_ns() <= began) continue;
    assert_true(tr__recorder_wait(r[0], 2, false, "rpc second on \"two\"") != 0);
    assert_true(tr__recorder_wait(r[0], 2, false, "rpc third on \"two\"") != 0);
    char words[128];
    const char *is_awaited = "is what rank 0 waits for: it has not answered rpc";
    snprintf(words, sizeof words, "rank 1 (pid %d) %s first on \"one\" (", (int)getpid(), is_awaited);
    expect("unit", words);
    snprintf(words, sizeof words, "rank 2 (pid %d) %s second on \"two\" (", (int)getpid(), is_awaited);
    expect("unit", words);
    expect_stalls(between, tr__now_ns(), "it has not answered rpc second on");
    tr__recorder_end(r[0], first, TR_OK);
    expect("unit", words);
    for (int i = 0; i < 3; i++) tr__recorder_close(r[i]);
}

/* Over MPI nobody tells whom it waits for, nor that calls differ. */
static void differences_are_pointed_out(void **state)
{
    (void)state;
    tr__recorder *a = open_rank("world", 0, 3, "mpi", NULL), *b = open_rank("world", 1, 3, "mpi", NULL);
    tr__recorder_joined(a);
    tr__recorder_joined(b);
    make_call(a, 1);
    make_call(b, 1);
    enter(a, TR_ALL_REDUCE, 2, 0);
    expect("unit", "is what rank 0 waits for: it has not entered all_reduce #2");
    enter(b, TR_BROADCAST, 2, 0);
    expect("unit", "=> ranks 0 and 1 make different calls: all_reduce #2 (sum of f32[8] at tests/train.c:8), broadcast #2");
    tr__recorder_waits_for(a, (int[]){2}, 1);
    make_call(b, 9);
    expect("unit", "=> the ranks are out of step: rank 0 is in all_reduce #2 (sum of f32[8] at tests/train.c:8), rank 1 has "
        "come to #9");
    expect("unit", "rank 2                        has not joined yet, as far as is known here");
    tr__recorder_peer(a, 2, 4711, "elsewhere");
    tr__recorder_peer(b, 2, 4711, "elsewhere");
    expect("unit", "=> rank 2 (pid 4711 on host elsewhere) is what rank 0 waits for: all_reduce #2");
    tr__recorder_close(a);
    tr__recorder_close(b);
}

/* What a record has of a peer's host ends earlier than what it has of its own. */
static void a_dead_peer_is_known_to_be_of_a_host_with_a_long_name(void **state)
{
    (void)state;
    int fd = -1, how;
    pid_t child = fork();
    if (child == 0) _exit(0);
    assert_true(child > 0 && waitpid(child, &how, 0) == child);
    tr__recorder *r = open_rank("world", 0, 2, "native", NULL);
    tr__record_header *h = open_own(&fd);
    close(fd);
    memset(h->host, 'h', sizeof h->host - 1);
    tr__recorder_peer(r, 1, child, NULL);
    tr__recorder_joined(r);
    char words[64];
    snprintf(words, sizeof words, "rank 1 (pid %d, dead) ", (int)child);
    expect("unit", words);
    munmap(h, sizeof *h);
    tr__recorder_close(r);
}

/* Rank 1 stays out of the call because it is in one of another group. Rank 0 is another process. */
static void the_other_group_is_named(void **state)
{
    (void)state;
    int ready[2], over[2];
    char byte = 0;
    assert_true(pipe(ready) == 0 && pipe(over) == 0);
    pid_t child = fork();
    if (child == 0) {
        tr__recorder *r = open_rank("world", 0, 2, "native", NULL);
        tr__recorder_joined(r);
        enter(r, TR_BARRIER, 5, 0);
        tr__recorder_waits_for(r, (int[]){1}, 1);
        close(over[1]);
        bool told = write(ready[1], &byte, 1) == 1 && read(over[0], &byte, 1) == 0;
        _exit(!told);
    }
    close(over[0]);
    tr__recorder *world = open_rank("world", 1, 2, "native", NULL), *pair = open_rank("pair", 0, 2, "native", NULL);
    tr__recorder_joined(world);
    tr__recorder_joined(pair);
    enter(pair, TR_BARRIER, 3, 0);
    tr__recorder_waits_for(pair, (int[]){1}, 1);
    assert_true(child > 0 && read(ready[0], &byte, 1) == 1);
    char words[256];
    snprintf(words, sizeof words, "=> rank 1 (pid %d) is what rank 0 waits for: it has not entered barrier #5 (at "
        "tests/train.c:8); in group 'pair' it is in barrier #3 (at tests/train.c:8) and waits for rank 1", (int)getpid());
    expect("unit", words);
    tr__recorder_close(world);
    tr__recorder_close(pair);
    close(over[1]);
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_int_equal(how, 0);
    close(ready[0]);
    close(ready[1]);
}

/* Whatever it has written down: it is not what keeps it from going on. */
static void a_stopped_rank_waits_for_nobody(void **state)
{
    (void)state;
    int how;
    char *text;
    pid_t child = fork();
    if (child == 0) {
        tr__recorder *r = open_rank("world", 0, 2, "native", NULL);
        tr__recorder_joined(r);
        enter(r, TR_BARRIER, 5, 0);
        tr__recorder_waits_for(r, (int[]){1}, 1);
        raise(SIGSTOP);
        _exit(0);
    }
    assert_true(child > 0 && waitpid(child, &how, WUNTRACED) == child && WIFSTOPPED(how));
    tr__recorder *one = open_rank("world", 1, 2, "native", NULL);
    tr__recorder_joined(one);
    assert_int_equal(tr_job_explain("unit", &text), TR_OK);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &how, 0), child);
    if (!strstr(text, ", stopped)") || strstr(text, "for each other")) fail_msg("%s", text);
    free(text);
    tr__recorder_close(one);
}

/* Ranks' records in several groups, told as those of processes 1001, 1002, … by their numbers in the job. */
static char *explain_processes(const int *process, int count, bool stalls)
{
    tr__records all;
    char *text;
    read_own(&all, count);
    for (int i = 0; i < count; i++) all.list[i].pid = 1001 + process[i];
    assert_int_equal(stalls ? tr__records_stalls(&all, "unit", 0, tr__now_ns(), &text)
                            : tr__records_explain(&all, "unit", &text), TR_OK);
    tr__records_free(&all);
    return text;
}

static tr__recorder *waiting(const char *group, int number, int world, tr_collective_kind kind, uint64_t sequence, int awaited)
{
    tr__recorder *r = open_rank(group, number, world, "native", NULL);
    tr__recorder_joined(r);
    if (awaited < 0) return r;
    enter(r, kind, sequence, 0);
    tr__recorder_waits_for(r, &awaited, 1);
    return r;
}

/* Process 0 is in a call of group 'a' that process 1 has not come to, which is in one of 'b' that process 0 has not come to. */
static void a_circle_across_groups_is_told_once(void **state)
{
    (void)state;
    tr__recorder *r[] = {waiting("a", 0, 2, TR_ALL_REDUCE, 7, 1), waiting("a", 1, 2, TR_ALL_REDUCE, 0, -1),
        waiting("b", 0, 2, TR_BARRIER, 0, -1), waiting("b", 1, 2, TR_BARRIER, 9, 0)};
    const char *words = "rank 0 (pid 1001) waits in all_reduce #7 (sum of f32[8] at tests/train.c:8) of group 'a' for rank 1 (pid "
        "1002), which waits in barrier #9 (at tests/train.c:8) of group 'b' for rank 0 (pid 1001): ranks must make their calls in "
        "groups that they share in one order (for ";
    char *text = explain_processes((int[]){0, 1, 0, 1}, 4, false), *at = strstr(text, words);
    if (!at || strncmp(at - 5, "  => ", 5) != 0) fail_msg("nothing of '%s' in:\n%s", words, text);
    assert_null(strstr(at + 1, "=> "));
    assert_true(strstr(text, "=> ") == at - 3); /* nobody is the culprit of one group alone */
    free(text);
    text = explain_processes((int[]){0, 1, 0, 1}, 4, true);
    assert_ptr_equal(strstr(text, words), text);
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
    free(text);

    /* Of ranks that are threads it is not known whose wait is whose. */
    text = explain_processes((int[]){0, 0, 0, 0}, 4, false);
    assert_null(strstr(text, "one order"));
    free(text);
    for (int i = 0; i < 4; i++) tr__recorder_close(r[i]);
}

/* 0 waits in 'a' for 1, which waits there for 2, which waits for 0 in 'b', where its number is 1. Process 3 waits for 0 in
 * 'c' and is beside the circle; in 'd' nobody waits, which is not worth a word then. */
static void a_circle_may_lead_through_several_ranks(void **state)
{
    (void)state;
    tr__recorder *r[] = {waiting("a", 0, 3, TR_ALL_REDUCE, 7, 1), waiting("a", 1, 3, TR_ALL_REDUCE, 7, 2),
        waiting("a", 2, 3, TR_ALL_REDUCE, 0, -1), waiting("b", 0, 2, TR_BARRIER, 0, -1), waiting("b", 1, 2, TR_BARRIER, 9, 0),
        waiting("c", 0, 2, TR_BARRIER, 0, -1), waiting("c", 1, 2, TR_BARRIER, 3, 0), waiting("d", 0, 2, TR_BARRIER, 0, -1)};
    const char *words = " of group 'a' for rank 2 (pid 1003), which waits as rank 1 in barrier #9 (at tests/train.c:8) of "
        "group 'b' for rank 0 (pid 1001): ranks must make their calls in groups that they share in one order (for ";
    char *text = explain_processes((int[]){0, 1, 2, 0, 2, 0, 3, 0}, 8, false);
    if (!strstr(text, words)) fail_msg("nothing of '%s' in:\n%s", words, text);
    assert_non_null(strstr(text, "  => rank 0 (pid 1001) waits in all_reduce #7"));
    assert_non_null(strstr(text, "=> rank 0 (pid 1001) is what rank 1 waits for: it has not entered barrier #3"));
    assert_null(strstr(text, "nobody waits"));
    free(text);

    /* Once 2 waits for nobody there is no circle: it is what the others wait for. */
    tr__recorder_waits_for(r[4], NULL, 0);
    text = explain_processes((int[]){0, 1, 2, 0, 2, 0, 3, 0}, 8, false);
    assert_null(strstr(text, "one order"));
    assert_non_null(strstr(text, "=> rank 2 (pid 1003) is what ranks 0 and 1 wait for"));
    free(text);
    for (int i = 0; i < 8; i++) tr__recorder_close(r[i]);
}

/* Process 0 is in a call of group 'a' that process 1 has not come to, which waits for a remote call of process 0. That is at work in
 * it: the threads of an agent's do not wait for the program's. */
static void a_remote_call_is_in_no_circle(void **state)
{
    (void)state;
    tr__recorder *r[] = {waiting("a", 0, 2, TR_ALL_REDUCE, 7, 1), waiting("a", 1, 2, TR_ALL_REDUCE, 0, -1),
        waiting("a.1-0", 0, 2, TR_BARRIER, 0, -1), waiting("a.1-0", 1, 2, TR_BARRIER, 0, -1)};
    for (int i = 2; i < 4; i++) tr__recorder_is_rpc(r[i]);
    assert_true(tr__recorder_wait(r[3], 0, false, "rpc slow on \"zero\"") != 0);
    char *text = explain_processes((int[]){0, 1, 0, 1}, 4, false);
    assert_null(strstr(text, "one order"));
    const char *words = "=> rank 0 (pid 1001) is what rank 1 waits for: it has not answered rpc slow on \"zero\"";
    if (!strstr(text, words)) fail_msg("nothing of '%s' in:\n%s", words, text);
    free(text);
    for (int i = 0; i < 4; i++) tr__recorder_close(r[i]);
}

/* Of ranks that are threads it is not known whose wait is whose: in 'b' process 0 has two, one of which waits. */
static void threads_are_in_no_circle(void **state)
{
    (void)state;
    tr__recorder *r[] = {waiting("a", 0, 2, TR_ALL_REDUCE, 7, 1), waiting("a", 1, 2, TR_ALL_REDUCE, 0, -1),
        waiting("b", 0, 3, TR_BARRIER, 0, -1), waiting("b", 1, 3, TR_BARRIER, 0, -1), waiting("b", 2, 3, TR_BARRIER, 9, 0)};
    char *text = explain_processes((int[]){0, 1, 0, 1, 1}, 5, false);
    assert_null(strstr(text, "one order"));
    assert_non_null(strstr(text, "=> rank 1 (pid 1002) is what rank 0 waits for: it has not entered all_reduce #7"));
    free(text);
    for (int i = 0; i < 5; i++) tr__recorder_close(r[i]);
}

/* A rank that has died lives on in a record when a child of it holds that. */
static void a_dead_rank_is_told_from_its_child(void **state)
{
    (void)state;
    int over[2], how;
    char byte;
    assert_int_equal(pipe(over), 0);
    pid_t child = fork();
    if (child == 0) {
        usleep(20000); /* a process is told from another one by when it began, to 10 ms */
        tr__recorder *r = open_rank("world", 0, 2, "native", NULL);
        tr__recorder_joined(r);
        usleep(20000);
        if (fork() == 0) {
            close(over[1]);
            _exit(read(over[0], &byte, 1) != 0);
        }
        _exit(0);
    }
    assert_true(child > 0 && waitpid(child, &how, 0) == child);
    char words[64];
    snprintf(words, sizeof words, "rank 0 (pid %d, dead) ", (int)child);
    expect("unit", words);
    close(over[0]);
    close(over[1]);
}

static void jobs_are_found_by_name_and_process(void **state)
{
    (void)state;
    char *text;
    assert_int_equal(tr_job_explain("no-such-job", NULL), TR_INVALID);
    tr__recorder *r = open_rank("world", 0, 2, "native", NULL);
    FAILS(TR_NOT_FOUND, tr_job_explain("no-such-job", &text), "there is no job 'no-such-job'");
    assert_null(text);
    char pid[24];
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    expect(pid, "job unit on host");
    snprintf(pid, sizeof pid, "%d", (int)getppid());
    expect(pid, "job unit on host");
    expect(NULL, "job unit on host");
    tr__recorder_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_waits_for_whom),
        cmocka_unit_test(a_stall_is_told_when_it_began_then),
        cmocka_unit_test(transfers_wait_for_their_peer),
        cmocka_unit_test(the_call_that_waits_for_a_culprit_is_named),
        cmocka_unit_test(differences_are_pointed_out),
        cmocka_unit_test(a_dead_peer_is_known_to_be_of_a_host_with_a_long_name),
        cmocka_unit_test(the_other_group_is_named),
        cmocka_unit_test(a_stopped_rank_waits_for_nobody),
        cmocka_unit_test(a_circle_across_groups_is_told_once),
        cmocka_unit_test(a_circle_may_lead_through_several_ranks),
        cmocka_unit_test(a_remote_call_is_in_no_circle),
        cmocka_unit_test(threads_are_in_no_circle),
        cmocka_unit_test(a_dead_rank_is_told_from_its_child),
        cmocka_unit_test(jobs_are_found_by_name_and_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
