/* The launcher, on small shell commands: its environment, reports, signals, output, and that it leaves nothing behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <trireme/comm.h>
#include <trireme/launch.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* What the ranks said: lines such as "0> text\n", "0! text\n" from stderr. */
typedef struct said {
    char text[256 << 10];
    size_t used, lines, longest;
    const char *signal_after; /* this many of these lines, and the launcher gets an interrupt */
    int signal_lines;
    int block_ms;             /* how long the first line takes */
} said;

static said heard;
static tr_launch_report report;

static void collect(int rank, bool is_stderr, const char *line, size_t length, void *user)
{
    said *s = user;
    if (s->block_ms) usleep((useconds_t)s->block_ms * 1000);
    s->block_ms = 0;
    s->lines++;
    if (length > s->longest) s->longest = length;
    if (s->used + length + 16 < sizeof s->text)
        s->used += (size_t)sprintf(s->text + s->used, "%d%c %.*s\n", rank, is_stderr ? '!' : '>', (int)length, line);
    if (s->signal_after && strlen(s->signal_after) == length && !memcmp(s->signal_after, line, length) &&
        --s->signal_lines == 0)
        kill(getpid(), SIGINT);
}

static int forget(void **state)
{
    (void)state;
    memset(&heard, 0, sizeof heard);
    return 0;
}

/* In a script: goes on when all ranks have come there. The token is another one at each start. */
#define ALL_COME ": >$HERE/$TRIREME_TOKEN.$RANK; until [ $(ls $HERE | grep -c $TRIREME_TOKEN) = $WORLD_SIZE ]; do sleep .01; done; "

static int make_here(void **state)
{
    static char folder[] = "/tmp/trireme-launch-XXXXXX";
    (void)state;
    return mkdtemp(folder) ? setenv("HERE", folder, 1) : -1;
}

static int remove_here(void **state)
{
    (void)state;
    return system("rm -r \"$HERE\"");
}

#define SHELL(script) ((const char *const[]){"sh", "-c", script, NULL})
#define RUN(script, ranks, ...) \
    tr_launch(SHELL(script), ranks, .output = collect, .user = &heard, .report = &report, ##__VA_ARGS__)

#define assert_said(line)                                                       \
    do {                                                                        \
        if (!strstr(heard.text, line)) fail_msg("not said in:\n%s", heard.text); \
    } while (0)

/* The number that a line "prefix NUMBER" ends with. */
static pid_t said_pid(const char *prefix)
{
    const char *at = strstr(heard.text, prefix);
    assert_non_null(at);
    return atoi(at + strlen(prefix));
}

static bool alive(pid_t pid)
{
    char path[64], stat[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    if (!f) return false;
    size_t n = fread(stat, 1, sizeof stat - 1, f);
    stat[n] = '\0';
    fclose(f);
    const char *after = strrchr(stat, ')');
    return after && after[2] != 'Z' && after[2] != 'X';
}

static void assert_no_children(void)
{
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

/* ---- A job that goes well ---------------------------------------------------------------------------------------- */

static void test_environment(void **state)
{
    (void)state;
    const char *const extra[] = {"COLOUR=green", "WORLD_SIZE=99", NULL};
    tr_status status = RUN("echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR ${MASTER_PORT:+port}"
                           " ${#TRIREME_TOKEN} $TRIREME_STORE $COLOUR; echo fine >&2", 3, .env = extra);
    assert_int_equal(status, TR_OK);
    assert_said("0> 0/3 0/3 127.0.0.1 port 64 1 green\n");
    assert_said("2> 2/3 2/3 127.0.0.1 port 64 1 green\n");
    assert_said("1! fine\n");
    assert_int_equal(heard.lines, 6);
    assert_int_equal(report.first_rank, -1);
    assert_string_equal(report.text, "");
    assert_no_children();
}

static void test_signals_and_descriptors_are_fresh(void **state)
{
    (void)state;
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, &old);
    void (*pipe_before)(int) = signal(SIGPIPE, SIG_IGN);
    tr_status status = RUN("grep -E 'Sig(Blk|Ign)' /proc/self/status", 1);
    signal(SIGPIPE, pipe_before);
    sigprocmask(SIG_SETMASK, &old, NULL);
    assert_int_equal(status, TR_OK);
    assert_said("0> SigBlk:\t0000000000000000\n");
    /* Signals 32 and 33 are libc's own, which it lets nobody set: they are what they were before us. */
    const char *ignored = strstr(heard.text, "0> SigIgn:\t");
    assert_non_null(ignored);
    assert_int_equal(strtoull(ignored + strlen("0> SigIgn:\t"), NULL, 16) & ~0x180000000u, 0);

    /* The same descriptors as any child has. */
    char want[256] = "0> ";
    FILE *f = popen("echo /proc/self/fd/*", "r");
    assert_non_null(f);
    assert_non_null(fgets(want + 3, sizeof want - 3, f));
    pclose(f);
    assert_int_equal(RUN("echo /proc/self/fd/*", 1), TR_OK);
    assert_said(want);
}

static void test_standard_input(void **state)
{
    (void)state;
    int ends[2], old = dup(STDIN_FILENO);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "for rank 0\n", 11), 11);
    close(ends[1]);
    dup2(ends[0], STDIN_FILENO);
    close(ends[0]);
    tr_status status = RUN("read line; echo \"got ${line:-nothing}\"", 2);
    dup2(old, STDIN_FILENO);
    close(old);
    assert_int_equal(status, TR_OK);
    assert_said("0> got for rank 0\n");
    assert_said("1> got nothing\n");
}

static void test_rank0_inherits(void **state)
{
    (void)state;
    assert_int_equal(RUN("test $RANK = 0 || echo said", 3, .rank0_inherits = true), TR_OK);
    assert_null(strstr(heard.text, "0>"));
    assert_said("1> said\n");
    assert_int_equal(tr_launch(SHELL("exit 0"), 2), TR_OK);
}

/* This program as a rank: all meet at the store that the launcher serves. */
static int rank_main(void)
{
    TR_SCOPE;
    tr_store *store = tr_store_tcp(getenv("MASTER_ADDR"), atoi(getenv("MASTER_PORT")), .token = getenv("TRIREME_TOKEN"));
    int64_t here;
    TR_CHECK(tr_store_add(store, "here", 1, &here));
    if (here == atoi(getenv("WORLD_SIZE"))) TR_CHECK(tr_store_set(store, "all", "yes", 3));
    void *all;
    size_t bytes;
    TR_CHECK(tr_store_get(store, "all", &all, &bytes));
    puts(all);
    free(all);
    return 0;
}

static void test_ranks_meet_at_the_store(void **state)
{
    (void)state;
    const char *const self[] = {"/proc/self/exe", "rank", NULL};
    assert_int_equal(tr_launch(self, 4, .output = collect, .user = &heard), TR_OK);
    assert_int_equal(heard.lines, 4);
    assert_said("3> yes\n");
}

static const char *const *argv_of_rank(int rank, void *user)
{
    static const char *const commands[][4] = {{"sh", "-c", "echo first", NULL}, {"sh", "-c", "echo second", NULL}};
    return user == &heard ? commands[rank] : NULL;
}

/* Each rank has its own command. With a text, stdin begins with it, and ends for the others when a rank has failed. */
static void test_commands_and_stdin(void **state)
{
    (void)state;
    tr_status status = RUN("exit 9", 2, .argv_of = argv_of_rank);
    assert_int_equal(status, TR_OK);
    assert_said("0> first\n");
    assert_said("1> second\n");
    forget(NULL);
    const char *script = "read line; echo $line; test $RANK = 0 && exit 3; cat; echo ended";
    assert_int_equal(RUN(script, 2, .stdin_text = "a secret\n"), TR_CHILD);
    assert_said("0> a secret\n");
    assert_said("1> a secret\n");
    assert_said("1> ended\n");
    assert_int_equal(report.exit_code, 3);
}

static void test_own_children_are_left_alone(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) _exit(7);
    assert_int_equal(RUN("exit 0", 2), TR_OK);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(WEXITSTATUS(status), 7);
}

/* ---- Output ------------------------------------------------------------------------------------------------------ */

static void test_lines(void **state)
{
    (void)state;
    assert_int_equal(RUN("printf 'a\\n\\nb\\rc\\r\\nlast'", 1), TR_OK);
    assert_string_equal(heard.text, "0> a\n0> \n0> b\n0> c\n0> last\n");
}

static void test_long_lines_are_split(void **state)
{
    (void)state;
    /* 20,001 two-byte characters behind one byte: no piece may end inside of one. */
    assert_int_equal(RUN("printf x; i=0; while [ $i -lt 20001 ]; do printf 'é'; i=$((i+1)); done", 1), TR_OK);
    assert_int_equal(heard.lines, 3);
    assert_true(heard.longest <= 16 << 10);
    size_t bytes = 0;
    for (char *line = strtok(heard.text, "\n"); line; line = strtok(NULL, "\n")) {
        line += 3;
        assert_true(((unsigned char)*line & 0xc0) != 0x80);
        bytes += strlen(line);
    }
    assert_int_equal(bytes, 1 + 2 * 20001);
    /* One that just fits is whole, and no empty one follows; neither behind two that just fit together. */
    memset(&heard, 0, sizeof heard);
    assert_int_equal(RUN("long() { head -c $1 /dev/zero | tr '\\0' x; echo; }; long 16384; long 32768; long 16385", 1), TR_OK);
    assert_int_equal(heard.lines, 1 + 2 + 2);
    assert_true(heard.longest == 16 << 10);
}

static long resident_kib(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

static void test_slow_reader_holds_the_ranks(void **state)
{
    (void)state;
    long before = resident_kib();
    heard.block_ms = 500;
    assert_int_equal(RUN("yes 'a line of thirty-two characters' | head -n 400000", 2), TR_OK);
    assert_int_equal(heard.lines, 800000); /* 26 MB, of which none is lost */
    assert_true(resident_kib() - before < 8 << 10);
}

/* Has both print their process ids, kills rank 1 and lets no output by until rank 0 has been ended. */
static void hold_until_ended(int rank, bool is_stderr, const char *line, size_t length, void *user)
{
    pid_t *pids = user;
    (void)is_stderr;
    if (pids[rank]) return;
    char number[16] = "";
    memcpy(number, line, length < sizeof number ? length : sizeof number - 1);
    pids[rank] = atoi(number);
    if (!pids[0] || !pids[1]) return;
    kill(pids[1], SIGKILL);
    for (int ms = 0; ms < 60000 && alive(pids[0]); ms++) usleep(1000);
    if (alive(pids[0])) pids[1] = -1;
}

static void test_deaths_are_seen_while_output_waits(void **state)
{
    (void)state;
    pid_t pids[2] = {0};
    assert_int_equal(tr_launch(SHELL("echo $$; [ $RANK = 0 ] || exec sleep 1000; exec yes"), 2, .output = hold_until_ended,
        .user = pids, .report = &report), TR_CHILD);
    assert_true(pids[1] > 0);
    assert_int_equal(report.first_rank, 1);
    assert_int_equal(report.signal, SIGKILL);
}

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

static void test_exit_code(void **state)
{
    (void)state;
    assert_int_equal(RUN("if [ $RANK = 1 ]; then echo one; echo two >&2; sleep 0.05; exit 3; fi; exec sleep 60", 3), TR_CHILD);
    assert_int_equal(report.first_rank, 1);
    assert_int_equal(report.exit_code, 3);
    assert_int_equal(report.signal, 0);
    assert_true(report.seconds < 50); /* sleep ends by SIGTERM */
    assert_non_null(strstr(report.text, "rank 1 (pid "));
    assert_non_null(strstr(report.text, "exited with 3 after "));
    assert_non_null(strstr(report.text, "; its last lines:\n    "));
    assert_non_null(strstr(report.text, "\n    one"));
    assert_non_null(strstr(report.text, "\n    two"));
    assert_string_equal(tr_error_message(), report.text);
    assert_no_children();

    assert_int_equal(RUN("sh -c 'kill -9 $$'; exit $?", 1), TR_CHILD);
    assert_int_equal(report.exit_code, 137);
    assert_non_null(strstr(report.text, "exited with 137 (128 + signal 9, Killed) after"));
}

static void test_ranks_start_again(void **state)
{
    (void)state;
    const char *fails_twice = "echo start $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; " ALL_COME
                              "[ $TORCHELASTIC_RESTART_COUNT = 2 ] || [ $RANK = 0 ] || exit 3; exec sleep 0.2";
    assert_int_equal(RUN(fails_twice, 2, .max_restarts = 5), TR_OK);
    assert_said("0> start 0 of 5\n");
    assert_said("1> start 2 of 5\n");
    assert_null(strstr(heard.text, "start 3"));
    assert_string_equal(report.text, "");
    assert_no_children();

    assert_int_equal(RUN(fails_twice, 2, .max_restarts = 1), TR_CHILD);
    assert_int_equal(report.first_rank, 1);
    assert_int_equal(report.exit_code, 3);
    assert_null(strstr(heard.text, "start 2 of 1"));
    assert_int_equal(RUN("exit 0", 2, .max_restarts = -1), TR_INVALID);
    assert_no_children();
}

/* Whichever rank fails, those that are left are 0, 1, …; and no more are left out than may be. */
static void test_a_job_shrinks(void **state)
{
    (void)state;
    const char *fails_twice = "echo start $TORCHELASTIC_RESTART_COUNT: $LOCAL_RANK of $LOCAL_WORLD_SIZE, $WORLD_SIZE; " ALL_COME
                              "[ $TORCHELASTIC_RESTART_COUNT = 2 ] || [ $RANK = 1 ] || exec sleep 60;"
                              " [ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 3";
    assert_int_equal(RUN(fails_twice, 4, .max_restarts = 5, .min_ranks = 2), TR_OK);
    assert_said("3> start 0: 3 of 4, 4\n");
    assert_said("2> start 1: 2 of 3, 3\n");
    assert_said("1> start 2: 1 of 2, 2\n");
    assert_null(strstr(heard.text, "3> start 1"));
    assert_null(strstr(heard.text, "2> start 2"));
    assert_int_equal(RUN(fails_twice, 3, .max_restarts = 5, .min_ranks = 3), TR_OK);
    assert_said("2> start 2: 2 of 3, 3\n");
    assert_int_equal(RUN("exit 0", 2, .max_restarts = 1, .min_ranks = -1), TR_INVALID);
    assert_int_equal(RUN("exit 0", 2, .min_ranks = 1), TR_INVALID);
    assert_non_null(strstr(tr_error_message(), ".min_ranks is 1: it takes 0 and more, above 0 only with .max_restarts"));
    assert_no_children();
}

static void test_an_interrupt_starts_nothing_again(void **state)
{
    (void)state;
    heard.signal_after = "up";
    heard.signal_lines = 2;
    assert_int_equal(RUN("trap 'exit 7' INT; echo up; while :; do sleep 0.05; done", 2, .max_restarts = 5, .pass_signals = true),
        TR_INTERRUPTED);
    assert_int_equal(heard.lines, 2);
    assert_int_equal(tr_launch(((const char *const[]){"./missing", NULL}), 2, .output = collect, .user = &heard, .report = &report,
        .max_restarts = 5), TR_NOT_FOUND);
}

static void test_last_lines_are_the_last(void **state)
{
    (void)state;
    assert_int_equal(RUN("i=0; while [ $i -lt 50 ]; do i=$((i+1)); printf 'line %d\\033\\n' $i; done; exit 1", 1), TR_CHILD);
    assert_non_null(strstr(report.text, ":\n    line 41 \n"));
    assert_non_null(strstr(report.text, "\n    line 50 "));
    assert_int_equal(RUN("i=0; while [ $i -lt 50 ]; do i=$((i+1)); printf '%0500d\\n' $i; done; exit 1", 1), TR_CHILD);
    assert_true(strlen(report.text) < sizeof report.text - 1);
    assert_int_equal(RUN("exit 1", 1), TR_CHILD);
    assert_null(strstr(report.text, "last lines"));
    assert_int_equal(RUN("printf '\\302\\2332J of UTF-8\\n\\2332J\\n'; exit 1", 1), TR_CHILD); /* control characters, too */
    assert_string_equal(report.text, tr_error_message());
}

static void test_killed_rank_ends_the_job(void **state)
{
    (void)state;
    /* The others do not want to end. */
    assert_int_equal(RUN("if [ $RANK = 1 ]; then sleep 0.1; kill -9 $$; fi; trap '' TERM; while :; do sleep 0.1; done", 3),
        TR_CHILD);
    assert_int_equal(report.first_rank, 1);
    assert_int_equal(report.signal, SIGKILL);
    assert_int_equal(report.exit_code, 137);
    assert_non_null(strstr(report.text, "was killed by signal 9 (Killed) after "));
    assert_true(report.seconds < 30); /* they would go on for ever */
    assert_no_children();
}

static void test_grace(void **state)
{
    (void)state;
    assert_int_equal(RUN("trap 'sleep 1.2; echo saved; exit 0' TERM; " ALL_COME "if [ $RANK = 0 ]; then exit 1; fi;"
                         " while :; do sleep 0.05; done", 2, .grace_ms = 20000), TR_CHILD);
    assert_int_equal(report.first_rank, 0);
    assert_said("1> saved\n");
}

/* An exit is waited with for a moment, in which a busy machine may not let rank 1 come so far: then once more. */
static void test_signal_comes_before_exit(void **state)
{
    (void)state;
    report.signal = 0;
    for (int turn = 0; turn < 20 && report.signal != SIGSEGV; turn++)
        assert_int_equal(RUN(ALL_COME "if [ $RANK = 0 ]; then exit 1; fi; kill -SEGV $$; sleep 60", 2), TR_CHILD);
    assert_int_equal(report.first_rank, 1);
    assert_int_equal(report.signal, SIGSEGV);
}

/* Rank 0 fails as soon as the other, who lost it, is dead; the other way round its exit comes first anyway. */
static void test_effect_comes_after_its_cause(void **state)
{
    (void)state;
    char folder[] = "/tmp/trireme-test-XXXXXX", setting[64];
    assert_non_null(mkdtemp(folder));
    snprintf(setting, sizeof setting, "FOLDER=%s", folder);
    tr_status status = RUN("cd $FOLDER; if [ $RANK = 1 ]; then echo $$ >new; mv new peer; exit 69; fi;"
                           " until [ -e peer ]; do :; done; read -r pid <peer;"
                           " while read -r stat </proc/$pid/stat; do case $stat in *') Z '*) break; esac; done; exit 5", 2,
        .env = (const char *const[]){setting, NULL});
    char peer[64];
    snprintf(peer, sizeof peer, "%s/peer", folder);
    unlink(peer);
    rmdir(folder);
    assert_int_equal(status, TR_CHILD);
    assert_int_equal(report.first_rank, 0);
    assert_int_equal(report.exit_code, 5);

    /* When nobody else fails, it is all that there is to tell. */
    const char *const self[] = {"/proc/self/exe", "lose", NULL};
    assert_int_equal(tr_launch(self, 1, .output = collect, .user = &heard, .report = &report), TR_CHILD);
    assert_int_equal(report.exit_code, TR_EXIT_PEER);
}

static void assert_reported(const char *words)
{
    if (!strstr(report.text, words)) fail_msg("'%s' does not say '%s'", report.text, words);
}

/* All others say that they lost a rank: it is the one that does not. */
static void test_the_only_rank_that_lost_nobody_is_the_culprit(void **state)
{
    (void)state;
    assert_int_equal(RUN("[ $RANK != 1 ] || exit 0; echo rank 1 is gone; exit 69", 3), TR_CHILD);
    assert_int_equal(report.first_rank, 1);
    assert_int_equal(report.exit_code, 0);
    assert_reported("rank 1 (pid ");
    assert_reported(") exited with 0 after ");
    assert_reported(" still needed it and exited with 69; its last lines:\n    rank 1 is gone");

    /* It has some time to fail by itself, and then is ended. */
    assert_int_equal(RUN("[ $RANK = 0 ] || exit 69; sleep 1; exit 5", 3), TR_CHILD);
    assert_int_equal(report.first_rank, 0);
    assert_int_equal(RUN("[ $RANK = 0 ] || exit 69; trap 'exit 5' TERM; while :; do sleep 0.05; done", 2), TR_CHILD);
    assert_int_equal(report.first_rank, 0);
    assert_int_equal(report.exit_code, 5);
    assert_reported(") went on until it was ended after ");
    assert_reported(", though rank 1 (pid ");
    assert_reported(") had lost it and exited with 69");

    /* Of several it cannot be told, unless one exited with 0 before it left. */
    assert_int_equal(RUN("[ $RANK = 0 ] && exit 69; exit 0", 3), TR_CHILD);
    assert_int_equal(report.first_rank, 0);
    assert_int_equal(report.exit_code, TR_EXIT_PEER);
    assert_int_equal(RUN("[ $RANK != 1 ] || exit 0; [ $RANK = 0 ] && exit 69; exec sleep 60", 3), TR_CHILD);
    assert_int_equal(report.first_rank, 1);
    assert_no_children();
}

static void test_program_that_cannot_run(void **state)
{
    (void)state;
    const char *const missing[] = {"./prgram", NULL}, *const folder[] = {"/", NULL}, *const unknown[] = {"prgram", NULL};
    assert_int_equal(tr_launch(missing, 2, .report = &report), TR_NOT_FOUND);
    assert_string_equal(tr_error_message(), "cannot run ./prgram: No such file or directory");
    assert_string_equal(report.text, tr_error_message());
    assert_int_equal(tr_launch(folder, 1), TR_IO);
    assert_string_equal(tr_error_message(), "cannot run /: Permission denied");
    assert_int_equal(tr_launch(unknown, 1), TR_NOT_FOUND);

    char script[] = "/tmp/trireme-test-XXXXXX";
    int fd = mkstemp(script);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "#!/no/such/shell\n", 17), 17);
    fchmod(fd, 0700);
    close(fd);
    assert_int_equal(tr_launch(((const char *const[]){script, NULL}), 1), TR_NOT_FOUND);
    assert_non_null(strstr(tr_error_message(), "the interpreter that it names is missing"));
    unlink(script);
    assert_no_children();
}

static void test_wrong_arguments(void **state)
{
    (void)state;
    const char *const nothing[] = {NULL}, *const empty[] = {"", NULL};
    assert_int_equal(tr_launch(nothing, 1), TR_INVALID);
    assert_int_equal(tr_launch(empty, 1), TR_INVALID);
    assert_int_equal(RUN("exit 0", 0), TR_INVALID);
    assert_int_equal(RUN("exit 0", 4097), TR_INVALID);
    assert_string_equal(tr_error_message(), "launch: 4097 ranks: it takes 1 to 4096");
    assert_int_equal(RUN("exit 0", 1, .grace_ms = -1), TR_INVALID);
    signal(SIGCHLD, SIG_IGN);
    assert_int_equal(RUN("exit 0", 1), TR_STATE);
    signal(SIGCHLD, SIG_DFL);
}

/* ---- In a process of its own, whose limits may be changed ---------------------------------------------------------- */

static int few_descriptors(void)
{
    struct rlimit limit = {48, 48};
    if (setrlimit(RLIMIT_NOFILE, &limit)) return 1;
    if (RUN("sleep 60", 100) != TR_IO) return 2;
    if (!strstr(tr_error_message(), "ulimit -n")) return 3;
    return waitpid(-1, NULL, WNOHANG) < 0 ? 0 : 4; /* what had started is gone */
}

static int no_pidfd(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 1;
    if (RUN("exit 0", 2) != TR_OK) return 2;
    if (RUN("test $RANK = 0 || exit 5; sleep 60", 2) != TR_CHILD) return 3;
    return report.first_rank == 1 && report.exit_code == 5 ? 0 : 4;
}

static int closed_stdio(void)
{
    close(0), close(1), close(2);
    return RUN("echo here; echo there >&2", 2) == TR_OK && heard.lines == 4 ? 0 : 1;
}

/* From the line "ready" on, no thread of this process can fork. */
static void forbid_forks(int rank, bool is_stderr, const char *line, size_t length, void *user)
{
    (void)rank, (void)is_stderr, (void)user;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (length != 5 || memcmp(line, "ready", 5) != 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return;
    if (!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program))
        close(creat(getenv("FORBIDDEN"), 0600));
}

static int no_other_guard(void)
{
    char folder[] = "/tmp/trireme-launch-XXXXXX", path[64];
    if (!mkdtemp(folder)) return 1;
    snprintf(path, sizeof path, "%s/forbidden", folder);
    setenv("FORBIDDEN", path, 1);
    tr_status status = tr_launch(SHELL("echo ready; until [ -e $FORBIDDEN ]; do sleep 0.02; done;"
        " until guard=$(grep -l \"(trireme-guard) . $PPID \" /proc/[0-9]*/stat 2>/dev/null); [ \"$guard\" ]; do sleep 0.02; done;"
        " kill -9 $(echo $guard | cut -d / -f 3);"
        " exec sleep 60"), 1, .output = forbid_forks, .report = &report);
    unlink(path);
    rmdir(folder);
    if (status != TR_IO) return 2;
    return strstr(tr_error_message(), "was killed, and there is no other: launch: cannot start a process") ? 0 : 3;
}

static void assert_passes_apart(int (*function)(void))
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(function());
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void test_apart(void **state)
{
    (void)state;
    assert_passes_apart(few_descriptors);
    assert_passes_apart(no_pidfd);
    assert_passes_apart(no_other_guard);
    assert_passes_apart(closed_stdio);
}

/* ---- What ranks leave behind --------------------------------------------------------------------------------------- */

static void test_descendants_are_ended(void **state)
{
    (void)state;
    assert_int_equal(RUN("sleep 60 & echo child $!; setsid sleep 60 & echo stray $!; exit 0", 1), TR_OK);
    assert_false(alive(said_pid("child ")));
    assert_false(alive(said_pid("stray ")));
}

static void test_wrapped_program_gets_its_grace(void **state)
{
    (void)state;
    /* The wrapping shell dies of SIGTERM at once; the program inside must still be let to save. */
    assert_int_equal(RUN("test $RANK = 0 && { " ALL_COME "exit 1; };"
                         " sh -c 'trap \"sleep 0.3; echo saved; exit 0\" TERM; " ALL_COME "while :; do sleep 0.05; done'; true", 2,
                         .grace_ms = 20000), TR_CHILD);
    assert_said("1> saved\n");
}

/* ---- Signals ----------------------------------------------------------------------------------------------------- */

static void test_interrupt_is_passed_on_once(void **state)
{
    (void)state;
    heard.signal_after = "ready";
    heard.signal_lines = 2;
    assert_int_equal(RUN("n=0; trap 'n=$((n+1))' INT; echo ready; while [ $n = 0 ]; do sleep 0.05; done; sleep 0.3;"
                         " echo $n interrupt; exit 0", 2, .pass_signals = true), TR_OK);
    assert_said("0> 1 interrupt\n");
    assert_said("1> 1 interrupt\n");
}

static void test_interrupt_ends_those_that_do_not_care(void **state)
{
    (void)state;
    heard.signal_after = "ready";
    heard.signal_lines = 2;
    assert_int_equal(RUN("echo ready; exec sleep 60", 2, .pass_signals = true), TR_INTERRUPTED);
    assert_int_equal(report.first_rank, -1);
    assert_int_equal(report.signal, SIGINT);
    assert_int_equal(report.exit_code, 130);
    assert_non_null(strstr(report.text, "stopped by signal 2 (Interrupt) after"));
}

static void test_second_interrupt_kills(void **state)
{
    (void)state;
    heard.signal_after = "ready";
    heard.signal_lines = 1;
    /* It says "ready" again when the first one comes. */
    assert_int_equal(RUN("trap 'kill -INT $PPID' INT; trap '' TERM; echo ready; while :; do sleep 0.05; done", 1,
        .pass_signals = true), TR_INTERRUPTED);
    assert_int_equal(report.signal, SIGINT);
    assert_true(report.seconds < 30); /* it would go on for ever */
}

static void test_mask_is_restored(void **state)
{
    (void)state;
    sigset_t before, after;
    sigprocmask(SIG_BLOCK, NULL, &before);
    assert_int_equal(RUN("exit 0", 1, .pass_signals = true), TR_OK);
    sigprocmask(SIG_BLOCK, NULL, &after);
    for (int s = 1; s < NSIG; s++) assert_int_equal(sigismember(&before, s), sigismember(&after, s));
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "rank")) return rank_main();
    if (argc > 1 && !strcmp(argv[1], "lose")) TR_CHECK(tr_fail(TR_PEER, "rank 0 is gone"));
#define TEST(name) cmocka_unit_test_setup(name, forget)
    const struct CMUnitTest tests[] = {
        TEST(test_environment),
        TEST(test_signals_and_descriptors_are_fresh),
        TEST(test_standard_input),
        TEST(test_rank0_inherits),
        TEST(test_ranks_meet_at_the_store),
        TEST(test_commands_and_stdin),
        TEST(test_own_children_are_left_alone),
        TEST(test_lines),
        TEST(test_long_lines_are_split),
        TEST(test_slow_reader_holds_the_ranks),
        TEST(test_deaths_are_seen_while_output_waits),
        TEST(test_exit_code),
        TEST(test_ranks_start_again),
        TEST(test_a_job_shrinks),
        TEST(test_an_interrupt_starts_nothing_again),
        TEST(test_last_lines_are_the_last),
        TEST(test_killed_rank_ends_the_job),
        TEST(test_grace),
        TEST(test_signal_comes_before_exit),
        TEST(test_effect_comes_after_its_cause),
        TEST(test_the_only_rank_that_lost_nobody_is_the_culprit),
        TEST(test_program_that_cannot_run),
        TEST(test_wrong_arguments),
        TEST(test_apart),
        TEST(test_descendants_are_ended),
        TEST(test_wrapped_program_gets_its_grace),
        TEST(test_interrupt_is_passed_on_once),
        TEST(test_interrupt_ends_those_that_do_not_care),
        TEST(test_second_interrupt_kills),
        TEST(test_mask_is_restored),
    };
    return cmocka_run_group_tests(tests, make_here, remove_here);
}
