/* Finding a job's processes in /proc, on processes whose environment is made up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "launch/spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { READ = 16 << 10 }; /* what a sweep reads at once */

/* A mark that no other process carries, also when this program runs twice. */
static const char *mark(void)
{
    static char text[65];
    snprintf(text, sizeof text, "%032d%032d", (int)getpid(), (int)getppid());
    return text;
}

/* A process that sleeps, with these variables alone; NULL: without a variable. It is started under the name, if there is one. */
static pid_t start(const char *first, const char *second, const char *name)
{
    char *env[] = {(char *)first, (char *)second, NULL};
    int running[2];
    char byte;
    assert_int_equal(pipe(running), 0);
    pid_t pid = fork();
    if (pid == 0) {
        setsid();
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* of a test that fails nothing is left */
        close(running[0]); /* the other end goes on exec, as the next line has it */
        dup3(running[1], 9, O_CLOEXEC);
        close(running[1]);
        execle(name ? name : "/bin/sleep", "sleep", "1000", NULL, env);
        _exit(127);
    }
    close(running[1]);
    assert_int_equal(read(running[0], &byte, 1), 0);
    close(running[0]);
    return pid;
}

/* How it has ended: the signal. */
static int end(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    return WTERMSIG(status);
}

static bool has_ended(pid_t pid)
{
    siginfo_t info = {0};
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT), 0);
    return info.si_pid == pid;
}

static void test_mark_anywhere_in_the_environment(void **state)
{
    (void)state;
    static char before[3 * READ], own[128];
    snprintf(own, sizeof own, "TRIREME_LAUNCH=%s", mark());
    int places = 0;
    for (int at = READ - 100; at <= READ + 20; at += 10, places++) {
        memset(before, 'x', sizeof before);
        before[0] = 'A', before[1] = '=';
        size_t length = (size_t)(places % 2 ? at : at + READ - 64);
        before[length] = '\0';
        pid_t pid = start(before, places % 3 ? own : NULL, NULL);
        int found = tr__sweep(NULL, 0, mark(), SIGKILL);
        if (found != (places % 3 ? 1 : 0)) fail_msg("%d found with the mark at byte %zu", found, length + 1);
        if (!found) kill(pid, SIGKILL);
        assert_int_equal(end(pid), SIGKILL);
    }
}

static void test_mark_of_a_launcher_inside(void **state)
{
    (void)state;
    char own[128], inside[128];
    snprintf(own, sizeof own, "TRIREME_LAUNCH=another:%s", mark());
    snprintf(inside, sizeof inside, "TRIREME_LAUNCH=%s:another", mark());
    pid_t pids[] = {start(own, NULL, NULL), start(inside, NULL, NULL)};
    assert_int_equal(tr__sweep(NULL, 0, mark(), 0), 2);
    assert_int_equal(tr__sweep(NULL, 0, mark(), SIGTERM), 2);
    assert_int_equal(end(pids[0]), SIGTERM);
    assert_false(has_ended(pids[1])); /* its launcher asks it to end */
    assert_int_equal(tr__sweep(NULL, 0, mark(), SIGKILL), 1);
    assert_int_equal(end(pids[1]), SIGKILL);
    assert_int_equal(tr__sweep(NULL, 0, mark(), 0), 0);
}

static void test_members_of_groups(void **state)
{
    (void)state;
    pid_t pid = start(NULL, NULL, NULL), group = pid;
    assert_int_equal(tr__sweep(&group, 1, mark(), SIGKILL), 1);
    assert_false(has_ended(pid)); /* that is for who signals the group */
    kill(pid, SIGKILL);
    while (!has_ended(pid)) usleep(1000);
    assert_int_equal(tr__sweep(&group, 1, mark(), 0), 0); /* a zombie has ended */
    assert_int_equal(end(pid), SIGKILL);
}

static void test_any_name(void **state)
{
    (void)state;
    char folder[] = "/tmp/trireme-sweep-XXXXXX", path[64], own[128];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/) Z 1 (", folder);
    assert_int_equal(symlink("/bin/sleep", path), 0);
    snprintf(own, sizeof own, "TRIREME_LAUNCH=%s", mark());
    pid_t pid = start(own, NULL, path);
    assert_int_equal(tr__sweep(NULL, 0, mark(), SIGKILL), 1);
    assert_int_equal(end(pid), SIGKILL);
    unlink(path);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mark_anywhere_in_the_environment),
        cmocka_unit_test(test_mark_of_a_launcher_inside),
        cmocka_unit_test(test_members_of_groups),
        cmocka_unit_test(test_any_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
