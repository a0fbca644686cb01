/* tr_spawn, and the calls in other processes (base/process_call.h) that it stands on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/process_call.h"

#include <trireme/comm.h>
#include <trireme/launch.h>
#include <trireme/ops.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static tr_launch_report report;

static void assert_says(const char *text)
{
    if (!strstr(tr_error_message(), text)) fail_msg("'%s' does not say '%s'", tr_error_message(), text);
}

#define CHECK(condition)                                                                        \
    do {                                                                                        \
        if (!(condition)) return tr_fail(TR_INTERNAL, "line %d: %s", __LINE__, #condition);     \
    } while (0)
#define TRY(expression)                    \
    do {                                   \
        tr_status try_ = (expression);     \
        if (try_ != TR_OK) return try_;    \
    } while (0)

/* ---- What goes in, and what comes back ---------------------------------------------------------------------------- */

enum { MANY = 3 << 20 | 7 };

static unsigned char pattern(size_t i)
{
    return (unsigned char)(i * 2654435761u >> 24);
}

static tr_status check_bytes(int rank, void *argument, size_t bytes)
{
    char number[16];
    snprintf(number, sizeof number, "%d", rank);
    CHECK(strcmp(getenv("RANK"), number) == 0);
    CHECK(strcmp(getenv("COLOUR"), "green") == 0);
    CHECK(!getenv("TRIREME_SPAWN") && !tr_spawned());
    CHECK(bytes == MANY);
    unsigned char *text = argument;
    for (size_t i = 0; i < bytes; i++) CHECK(text[i] == pattern(i));
    memset(text, rank, bytes); /* a copy of its own */
    return TR_OK;
}

static void test_the_argument_arrives(void **state)
{
    (void)state;
    unsigned char *text = malloc(MANY);
    for (size_t i = 0; i < MANY; i++) text[i] = pattern(i);
    const char *const env[] = {"COLOUR=green", NULL};
    tr_status status = tr_spawn(check_bytes, 3, .argument = text, .bytes = MANY, .env = env, .report = &report);
    if (status) fail_msg("%s", tr_error_message());
    assert_int_equal(report.first_rank, -1);
    assert_int_equal(text[0], pattern(0));
    free(text);
}

static tr_status no_argument(int rank, void *argument, size_t bytes)
{
    (void)rank;
    CHECK(!argument && !bytes);
    return TR_OK;
}

static void test_without_an_argument(void **state)
{
    (void)state;
    assert_int_equal(tr_spawn(no_argument, 1), TR_OK);
}

static tr_status add_ranks(int rank, void *argument, size_t bytes)
{
    (void)bytes;
    TR_SCOPE;
    tr_group *world = tr_join();
    int64_t sum = rank + *(int64_t *)argument;
    TRY(tr_all_reduce(world, &sum, 1, .dtype = TR_I64));
    CHECK(tr_rank(world) == rank && sum == 36);
    return tr_leave(world);
}

/* The launcher has threads of its own by then, and they hold whatever they hold. */
static void test_ranks_join_after_the_parent_has_computed(void **state)
{
    (void)state;
    TR_SCOPE;
    assert_int_equal(tr_set_threads(2), TR_OK);
    tr_tensor *x = tr_matmul(tr_ones(TR_SHAPE(64, 64)), tr_ones(TR_SHAPE(64, 64)));
    assert_int_equal(tr_status_of(x), TR_OK);
    if (tr_spawn(add_ranks, 3, .argument = &(int64_t){11}, .bytes = sizeof(int64_t))) fail_msg("%s", tr_error_message());
}

static tr_status compute(int rank, void *argument, size_t bytes)
{
    (void)rank, (void)argument, (void)bytes;
    TR_SCOPE;
    TRY(tr_set_threads(2));
    tr_tensor *x = tr_matmul(tr_ones(TR_SHAPE(64, 64)), tr_ones(TR_SHAPE(64, 64)));
    CHECK(tr_item(tr_sum(x)) == 64 * 64 * 64);
    return TR_OK;
}

static void test_ranks_compute_with_threads(void **state)
{
    (void)state;
    if (tr_spawn(compute, 2)) fail_msg("%s", tr_error_message());
}

/* A function of a library: the C library's abs(0). */
static void test_a_function_of_a_library(void **state)
{
    (void)state;
    int (*absolute)(int) = abs;
    tr_spawn_function function;
    memcpy(&function, &absolute, sizeof function);
    if (tr_spawn(function, 1)) fail_msg("%s", tr_error_message());
}

/* ---- Failures ----------------------------------------------------------------------------------------------------- */

/* One fails, and the others then fail because of it. */
static tr_status fail_one(int rank, void *argument, size_t bytes)
{
    (void)bytes;
    TR_SCOPE;
    tr_group *world = tr_join();
    TRY(tr_barrier(world));
    if (rank == *(int *)argument) return tr_fail(TR_SHAPE, "a shape of [%d, 784]", rank + 30);
    return tr_barrier(world);
}

static void test_the_first_failure_comes_back(void **state)
{
    (void)state;
    for (int guilty = 0; guilty < 3; guilty++) {
        tr_status status = tr_spawn(fail_one, 3, .argument = &guilty, .bytes = sizeof guilty, .report = &report);
        char want[64];
        snprintf(want, sizeof want, "rank %d: a shape of [%d, 784]", guilty, guilty + 30);
        assert_string_equal(tr_error_message(), want);
        assert_string_equal(report.text, want);
        assert_int_equal(status, TR_SHAPE);
        assert_int_equal(report.first_rank, guilty);
    }
}

static tr_status end_otherwise(int rank, void *argument, size_t bytes)
{
    (void)bytes;
    const char *how = argument;
    if (rank != 1) return TR_OK;
    if (!strcmp(how, "kill")) raise(SIGKILL);
    if (!strcmp(how, "exit 0")) exit(0);
    exit(3);
}

static void test_a_rank_that_does_not_return(void **state)
{
    (void)state;
    static const struct {
        char how[8];
        const char *says;
    } cases[] = {{"kill", "was killed by signal 9"}, {"exit 3", "exited with 3"},
        {"exit 0", "rank 1: the process ended before its function returned"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tr_status status = tr_spawn(end_otherwise, 2, .argument = cases[i].how, .bytes = sizeof cases[i].how, .report = &report);
        assert_int_equal(status, TR_CHILD);
        assert_says(cases[i].says);
        assert_says("rank 1");
        assert_int_equal(report.first_rank, 1);
    }
}

/* Rank 1 leaves with exit code 0, while the others wait: for nothing, or for it. */
static tr_status wait_for_the_truant(int rank, void *argument, size_t bytes)
{
    (void)bytes;
    if (!*(bool *)argument) {
        if (rank == 1) exit(0);
        for (;;) pause();
    }
    TR_SCOPE;
    tr_group *world = tr_join();
    TRY(tr_barrier(world));
    if (rank == 1) exit(0);
    return tr_barrier(world);
}

static void test_a_truant_is_noticed_while_others_wait(void **state)
{
    (void)state;
    for (int joined = 0; joined < 2; joined++) {
        tr_status status = tr_spawn(wait_for_the_truant, 4, .argument = &(bool){joined}, .bytes = sizeof(bool), .report = &report);
        assert_int_equal(status, TR_CHILD);
        assert_says("rank 1: the process ended before its function returned");
        assert_int_equal(report.first_rank, 1);
    }
}

/* main() without the entry; see there. */
static void test_a_program_without_the_entry(void **state)
{
    (void)state;
    const char *const env[] = {"TEST_FORGETS_ENTRY=1", NULL};
    assert_int_equal(tr_spawn(no_argument, 2, .env = env), TR_CHILD);
    assert_says("without running its function: main() must begin with TR_SPAWN_ENTRY");
}

static int forget_entry(void)
{
    bool refused = tr_spawn(no_argument, 2) == TR_STATE && strstr(tr_error_message(), "TR_SPAWN_ENTRY");
    if (!refused) pause(); /* the test hangs instead of passing */
    return 0;
}

static tr_status nest(int rank, void *argument, size_t bytes)
{
    (void)rank, (void)argument, (void)bytes;
    return tr_spawn(no_argument, 1);
}

static void test_ranks_do_not_spawn(void **state)
{
    (void)state;
    assert_int_equal(tr_spawn(nest, 1), TR_STATE);
    assert_string_equal(tr_error_message(), "rank 0: spawn: a rank of tr_spawn does not spawn in its turn");
}

static void test_wrong_arguments(void **state)
{
    (void)state;
    assert_int_equal(tr_spawn(no_argument, 0), TR_INVALID);
    assert_says("spawn: 0 ranks");
    assert_int_equal(tr_spawn(NULL, 1), TR_INVALID);
    assert_says("not in this program");
    assert_int_equal(tr_spawn(no_argument, 1, .bytes = 3), TR_INVALID);
    assert_says("spawn: .argument, which is NULL, comes with its .bytes, not 3");
}

/* ---- Calls, as who has no launcher makes them --------------------------------------------------------------------- */

static tr_status write_number(int number, void *argument, size_t bytes)
{
    (void)bytes;
    int fd = *(int *)argument;
    if (number == 2) return tr_fail(TR_FORMAT, "sample %d is damaged", number);
    CHECK(write(fd, &number, sizeof number) == sizeof number);
    return TR_OK;
}

static void test_calls(void **state)
{
    (void)state;
    enum { workers = 3 };
    int ends[2], sum = 0, number;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    tr__call call;
    assert_int_equal(tr__call_make(&call, write_number, &ends[1], sizeof ends[1], workers), TR_OK);
    for (int i = 0; i < workers; i++) {
        pid_t pid;
        assert_int_equal(tr__call_progress_of(&call, i), TR__CALL_OUTSIDE);
        assert_int_equal(tr__call_start(&call, i, (const int[2]){ends[1]}, &pid), TR_OK);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        assert_int_equal(tr__call_progress_of(&call, i), TR__CALL_RETURNED);
        assert_int_equal(tr__call_result(&call, i), i == 2 ? TR_FORMAT : TR_OK);
    }
    assert_string_equal(tr_error_message(), "sample 2 is damaged");
    close(ends[1]);
    while (read(ends[0], &number, sizeof number) == sizeof number) sum += number + 1;
    assert_int_equal(sum, 1 + 2);
    close(ends[0]);
    tr__call_free(&call);
}

int main(void)
{
    if (getenv("TEST_FORGETS_ENTRY")) return forget_entry();
    TR_SPAWN_ENTRY;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_argument_arrives),
        cmocka_unit_test(test_without_an_argument),
        cmocka_unit_test(test_ranks_join_after_the_parent_has_computed),
        cmocka_unit_test(test_ranks_compute_with_threads),
        cmocka_unit_test(test_a_function_of_a_library),
        cmocka_unit_test(test_the_first_failure_comes_back),
        cmocka_unit_test(test_a_rank_that_does_not_return),
        cmocka_unit_test(test_a_truant_is_noticed_while_others_wait),
        cmocka_unit_test(test_a_program_without_the_entry),
        cmocka_unit_test(test_ranks_do_not_spawn),
        cmocka_unit_test(test_wrong_arguments),
        cmocka_unit_test(test_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
