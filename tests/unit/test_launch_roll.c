/* The roll call of a job's launchers: whoever is missing, goes again or cannot take part is named on all nodes. */
#include "launch/roll_call.h"

#include "base/clock.h"
#include "base/object.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST = 4, PATIENCE_MS = 60000 };

typedef struct node {
    tr__roll roll;
    int members[MOST];
    pthread_t thread;
    tr_status status;
    char text[1024];
} node;

static void *take_part(void *argument)
{
    node *n = argument;
    n->status = tr__roll_call(&n->roll);
    if (n->status) snprintf(n->text, sizeof n->text, "%s", tr_error_message());
    return NULL;
}

/* On node 0 all are expected. */
static void start_with(node *n, tr__roll roll)
{
    *n = (node){.roll = roll, .members = {0, 1, 2, 3}};
    n->roll.deadline = tr__in_ms(roll.timeout_ms);
    n->roll.members = n->members;
    n->roll.member_count = roll.count;
    assert_int_equal(pthread_create(&n->thread, NULL, take_part, n), 0);
}

static void start(node *n, tr_store *store, int number, int count, int timeout_ms)
{
    start_with(n, (tr__roll){.store = store, .node = number, .count = count, .least = count, .timeout_ms = timeout_ms});
}

static void ends(node *n, tr_status status, const char *words)
{
    pthread_join(n->thread, NULL);
    if (n->status != status || !strstr(n->text, words))
        fail_msg("node %d says '%s' (%s), not '%s'", n->roll.node, n->text, tr_status_name(n->status), words);
}

static void await_node(tr_store *store, int number)
{
    char key[32];
    snprintf(key, sizeof key, "node/%d", number);
    assert_int_equal(tr_store_wait(store, key, PATIENCE_MS), TR_OK);
}

static void all_come(void **state)
{
    (void)state;
    for (int count = 2; count <= MOST; count++) {
        TR_SCOPE;
        tr_store *store = tr_store_memory();
        node nodes[MOST];
        for (int i = 0; i < count; i++) start(&nodes[i], store, i, count, PATIENCE_MS);
        for (int i = 0; i < count; i++) {
            ends(&nodes[i], TR_OK, "");
            assert_int_equal(nodes[i].roll.member_count, count);
        }
    }
}

static void takes_part(const node *n, const int *numbers, int count)
{
    assert_int_equal(n->roll.member_count, count);
    assert_memory_equal(n->members, numbers, (size_t)count * sizeof *numbers);
}

/* Two of four are needed, and two come; or all four, who are waited for until the last call. */
static void who_is_not_needed_is_waited_for_until_the_last_call(void **state)
{
    (void)state;
    for (int come = 2; come <= 4; come += 2) {
        TR_SCOPE;
        tr_store *store = tr_store_memory();
        node nodes[4];
        tr__roll roll = {.store = store, .count = 4, .least = 2, .timeout_ms = PATIENCE_MS};
        roll.last_call_ms = come == 2 ? 0 : PATIENCE_MS;
        for (; roll.node < come; roll.node++) start_with(&nodes[roll.node], roll);
        for (int i = 0; i < come; i++) ends(&nodes[i], TR_OK, "");
        for (int i = 0; i < come; i++) takes_part(&nodes[i], (const int[]){0, 1, 2, 3}, come);
    }
}

/* Of three that were there, node 1 is known to be lost. Whoever comes now is taken, too. */
static void who_is_lost_is_not_expected(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = tr_store_memory();
    node nodes[3];
    tr__roll roll = {.store = store, .node = 2, .count = 3, .least = 2, .timeout_ms = PATIENCE_MS, .last_call_ms = PATIENCE_MS};
    roll.returns = true;
    start_with(&nodes[2], roll);
    await_node(store, 2);
    roll.node = 0;
    nodes[0] = (node){.roll = roll, .members = {0, 2}};
    nodes[0].roll.deadline = tr__in_ms(PATIENCE_MS);
    nodes[0].roll.members = nodes[0].members;
    nodes[0].roll.member_count = 2;
    assert_int_equal(pthread_create(&nodes[0].thread, NULL, take_part, &nodes[0]), 0);
    for (int i = 0; i < 3; i += 2) ends(&nodes[i], TR_OK, "");
    for (int i = 0; i < 3; i += 2) takes_part(&nodes[i], (const int[]){0, 2}, 2);
    roll.node = 1;
    roll.returns = false;
    start_with(&nodes[1], roll); /* it comes too late, and is told who takes part */
    ends(&nodes[1], TR_OK, "");
    takes_part(&nodes[1], (const int[]){0, 2}, 2);
    assert_true(nodes[1].roll.missed && !nodes[0].roll.missed && !nodes[2].roll.missed);
    node second; /* of the same number as one that takes part */
    roll.node = 2;
    start_with(&second, roll);
    ends(&second, TR_OK, "");
    assert_true(second.roll.missed);
}

/* A launcher that has come and is gone: where nodes may be missing its place is free for another one. */
static void the_place_of_one_that_is_gone_is_free(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = tr_store_memory();
    assert_int_equal(tr_store_set(store, "node/1", "4711 far 7", 10), TR_OK);
    node nodes[2];
    tr__roll roll = {.store = store, .count = 3, .least = 2, .timeout_ms = PATIENCE_MS, .last_call_ms = 0};
    for (roll.node = 0; roll.node < 2; roll.node++) start_with(&nodes[roll.node], roll);
    for (int i = 0; i < 2; i++) ends(&nodes[i], TR_OK, "");
    takes_part(&nodes[1], (const int[]){0, 1}, 2);
}

/* Nor does it stay taken where nobody calls the roll yet, and another launcher waits for that. */
static void who_waits_takes_over_from_one_that_is_gone(void **state)
{
    (void)state;
    TR_SCOPE;
    static const char gone[] = "4711 far 7";
    tr_store *store = tr_store_memory();
    assert_int_equal(tr_store_set(store, "node/1", gone, sizeof gone - 1), TR_OK);
    node nodes[2];
    tr__roll roll = {.store = store, .node = 1, .count = 3, .least = 2, .timeout_ms = PATIENCE_MS, .late = true};
    start_with(&nodes[1], roll);
    int64_t until = tr__in_ms(PATIENCE_MS / 2);
    for (bool same = true; same; usleep(10000)) {
        void *text;
        size_t bytes;
        assert_int_equal(tr_store_get(store, "node/1", &text, &bytes), TR_OK);
        same = strcmp(text, gone) == 0;
        free(text);
        assert_true(tr__now_ns() < until);
    }
    roll.node = 0;
    roll.late = false;
    start_with(&nodes[0], roll);
    for (int i = 0; i < 2; i++) ends(&nodes[i], TR_OK, "");
    takes_part(&nodes[1], (const int[]){0, 1}, 2);
}

static void too_few_are_named(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = tr_store_memory();
    node nodes[2];
    tr__roll roll = {.store = store, .count = 4, .least = 3, .timeout_ms = PATIENCE_MS, .last_call_ms = 0};
    roll.node = 1;
    start_with(&nodes[1], roll);
    await_node(store, 1);
    roll.node = 0;
    roll.timeout_ms = 300;
    start_with(&nodes[0], roll);
    for (int i = 0; i < 2; i++)
        ends(&nodes[i], TR_TIMEOUT, "of 4 nodes, of which 3 are needed, nodes 2 and 3 did not come within 0.3 s");
}

static void who_never_came_is_named(void **state)
{
    (void)state;
    for (int early = 0; early < 2; early++) { /* whose time is up first */
        TR_SCOPE;
        tr_store *store = tr_store_memory();
        node nodes[2];
        start(&nodes[1 - early], store, 1 - early, 4, PATIENCE_MS);
        if (early == 0) await_node(store, 1);
        start(&nodes[early], store, early, 4, 300);
        for (int i = 0; i < 2; i++) ends(&nodes[i], TR_TIMEOUT, "of 4 nodes, nodes 2 and 3 did not come within 0.3 s");
    }
}

static void who_goes_again_is_named(void **state)
{
    (void)state;
    TR_SCOPE;
    static const char gone[] = "4711 far 7";
    tr_store *store = tr_store_memory();
    node nodes[2];
    for (int i = 0; i < 2; i++) start(&nodes[i], store, i, 4, PATIENCE_MS);
    assert_int_equal(tr_store_set(store, "node/2", gone, sizeof gone - 1), TR_OK);
    for (int i = 0; i < 2; i++) ends(&nodes[i], TR_PEER, "node 2 (pid 4711 on host far) had come, and its launcher is gone");
}

/* All have come, but not at the same time. */
static void who_was_there_is_not_counted(void **state)
{
    (void)state;
    TR_SCOPE;
    static const char gone[] = "4711 far 7";
    tr_store *store = tr_store_memory();
    assert_int_equal(tr_store_set(store, "node/2", gone, sizeof gone - 1), TR_OK);
    node nodes[2];
    for (int i = 0; i < 2; i++) start(&nodes[i], store, i, 3, PATIENCE_MS);
    for (int i = 0; i < 2; i++) ends(&nodes[i], TR_PEER, "node 2 (pid 4711 on host far) had come, and its launcher is gone");
}

static void who_cannot_take_part_says_why(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = tr_store_memory();
    node nodes[2];
    for (int i = 0; i < 2; i++) start(&nodes[i], store, i, 3, PATIENCE_MS);
    await_node(store, 1);
    const tr__roll late = {.store = store, .node = 2, .count = 3, .least = 3};
    tr__roll_refuse(&late, tr__fail(TR_INVALID, "its arguments are wrong"));
    assert_string_equal(tr_error_message(), "its arguments are wrong");
    for (int i = 0; i < 2; i++) ends(&nodes[i], TR_INVALID, ") cannot take part: its arguments are wrong");
    tr__roll afterwards = nodes[1].roll;
    afterwards.node = 2;
    assert_int_equal(tr__roll_call(&afterwards), TR_INVALID); /* who comes late does not wait, either */
}

static void a_number_is_taken_once(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = tr_store_memory();
    node first;
    start(&first, store, 1, 3, PATIENCE_MS);
    await_node(store, 1);
    assert_int_equal(tr_store_set(store, "node/1", "4711 far 0", 10), TR_OK);
    node second;
    start(&second, store, 1, 3, PATIENCE_MS);
    pthread_join(second.thread, NULL);
    assert_int_equal(second.status, TR_STATE);
    if (!strstr(second.text, "node 1 is taken: process ")) fail_msg("it says '%s'", second.text);
    tr__roll_refuse(&second.roll, tr__fail(TR_STATE, "%s", second.text));
    ends(&first, TR_STATE, "cannot take part: node 1 is taken");
}

/* Node 0 is killed: before this process has threads. */
static void the_end_of_node_0_is_told(void **state)
{
    (void)state;
    TR_SCOPE;
    int out[2], port;
    assert_int_equal(pipe(out), 0);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        tr_store *store = tr_store_tcp("127.0.0.1", 0, .serve = true);
        port = tr_store_port(store);
        if (write(out[1], &port, sizeof port) != sizeof port) _exit(1);
        for (;;) pause();
    }
    assert_int_equal(read(out[0], &port, sizeof port), sizeof port);
    tr_store *store = tr_store_tcp("127.0.0.1", port);
    assert_int_equal(tr_status_of(store), TR_OK);
    node other;
    start(&other, store, 1, 3, PATIENCE_MS);
    await_node(store, 1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    ends(&other, TR_IO, "node 0, which serves the job's store, is gone");
    close(out[0]);
    close(out[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_of_node_0_is_told),
        cmocka_unit_test(all_come),
        cmocka_unit_test(who_is_not_needed_is_waited_for_until_the_last_call),
        cmocka_unit_test(who_is_lost_is_not_expected),
        cmocka_unit_test(the_place_of_one_that_is_gone_is_free),
        cmocka_unit_test(who_waits_takes_over_from_one_that_is_gone),
        cmocka_unit_test(too_few_are_named),
        cmocka_unit_test(who_never_came_is_named),
        cmocka_unit_test(who_goes_again_is_named),
        cmocka_unit_test(who_was_there_is_not_counted),
        cmocka_unit_test(who_cannot_take_part_says_why),
        cmocka_unit_test(a_number_is_taken_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
