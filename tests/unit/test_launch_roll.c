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
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST = 4, PATIENCE_MS = 60000 };

typedef struct node {
    tr__roll roll;
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

static void start(node *n, tr_store *store, int number, int count, int timeout_ms)
{
    *n = (node){.roll = {store, number, count, timeout_ms, tr__now_ns() + (int64_t)timeout_ms * 1000000}};
    assert_int_equal(pthread_create(&n->thread, NULL, take_part, n), 0);
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
    snprintf(key, sizeof key, "launch/node/%d", number);
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
        for (int i = 0; i < count; i++) ends(&nodes[i], TR_OK, "");
    }
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
    assert_int_equal(tr_store_set(store, "launch/node/2", gone, sizeof gone - 1), TR_OK);
    for (int i = 0; i < 2; i++) ends(&nodes[i], TR_PEER, "node 2 (pid 4711 on host far) had come, and its launcher is gone");
}

/* All have come, but not at the same time. */
static void who_was_there_is_not_counted(void **state)
{
    (void)state;
    TR_SCOPE;
    static const char gone[] = "4711 far 7";
    tr_store *store = tr_store_memory();
    assert_int_equal(tr_store_set(store, "launch/node/2", gone, sizeof gone - 1), TR_OK);
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
    const tr__roll late = {.store = store, .node = 2};
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
    assert_int_equal(tr_store_set(store, "launch/node/1", "4711 far 0", 10), TR_OK);
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
        cmocka_unit_test(who_never_came_is_named),
        cmocka_unit_test(who_goes_again_is_named),
        cmocka_unit_test(who_was_there_is_not_counted),
        cmocka_unit_test(who_cannot_take_part_says_why),
        cmocka_unit_test(a_number_is_taken_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
