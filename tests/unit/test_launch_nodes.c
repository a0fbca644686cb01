/* Launchers of several nodes: they agree on how the job has ended, also where one of them dies meanwhile. */
#include "launch/nodes.h"
#include "sockets.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { NODES = 3, PATIENCE_MS = 60000 };

typedef struct node {
    tr__nodes nodes;
    tr_launch_options options;
    pthread_t thread;
    tr_status status;
    tr_launch_report report;
    char text[1024];
} node;

static void *meet(void *argument)
{
    node *n = argument;
    n->status = tr__nodes_meet(&n->nodes, &n->options, "a-secret-of-the-tests");
    if (n->status) snprintf(n->text, sizeof n->text, "%s", tr_error_message());
    return NULL;
}

static void *conclude(void *argument)
{
    node *n = argument;
    n->status = tr__nodes_conclude(&n->nodes, "", &n->report);
    return NULL;
}

static void *conclude_and_leave(void *argument)
{
    conclude(argument);
    tr__nodes_leave(&((node *)argument)->nodes);
    return NULL;
}

static void run(node *n, void *(*function)(void *))
{
    assert_int_equal(pthread_create(&n->thread, NULL, function, n), 0);
}

static void meet_all(node *all, int least)
{
    static const char *const argv[] = {"/bin/true", NULL};
    int port, socket = listen_on_loopback(&port);
    char at[32];
    snprintf(at, sizeof at, "127.0.0.1:%d", port);
    close(socket);
    for (int i = 0; i < NODES; i++) {
        all[i] = (node){.options = {.size = sizeof(tr_launch_options), .argv = argv, .ranks = 1, .nodes = NODES, .min_nodes = least,
            .node_rank = i, .rendezvous = at, .rendezvous_ms = PATIENCE_MS}};
        run(&all[i], meet);
    }
    for (int i = 0; i < NODES; i++) pthread_join(all[i].thread, NULL);
    for (int i = 0; i < NODES; i++)
        if (all[i].status) fail_msg("node %d: %s", i, all[i].text);
}

/* Node 2 dies after its last word. One of the others has got that, and the other has not. */
static void lose_one(node *all, int one)
{
    tr__word last = {.ended = true};
    tr__nodes *other = &all[1 - one].nodes;
    for (int i = 0; i < NODES; i++) all[one].nodes.all[i] = last;
    all[one].nodes.over = true;
    tr__nodes_step(&all[2].nodes);
    tr__nodes_leave(&all[2].nodes);
    while (!other->lost) {
        tr__nodes_step(other);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    assert_int_equal(other->lost_node, 2);
}

static void say_how_it_ends(node *all, bool over_first)
{
    meet_all(all, 2);
    lose_one(all, 0);
    for (int i = 0; i < 2; i++) {
        run(&all[over_first ? i : 1 - i], conclude);
        assert_int_equal(tr_store_wait(all[1].nodes.here, "end", PATIENCE_MS), TR_OK);
    }
    for (int i = 0; i < 2; i++) pthread_join(all[i].thread, NULL);
}

static void what_one_knows_to_be_over_is_over_for_all(void **state)
{
    (void)state;
    node all[NODES];
    say_how_it_ends(all, true);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(all[i].status, TR_OK);
        tr__nodes_leave(&all[i].nodes);
    }
}

static void a_node_that_one_says_is_lost_is_lost_for_all(void **state)
{
    (void)state;
    node all[NODES];
    say_how_it_ends(all, false);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(all[i].status, TR_CHILD);
        assert_non_null(strstr(all[i].report.text, "is gone, and all its ranks: "));
        assert_int_equal(all[i].nodes.lost_node, 2);
        assert_true(tr__nodes_begin_again(&all[i].nodes, 0));
        tr__nodes_leave(&all[i].nodes);
    }
}

/* Node 0 serves the store until all have asked, also where the job cannot go on. */
static void node_0_waits_for_those_that_have_yet_to_ask(void **state)
{
    (void)state;
    node all[NODES];
    meet_all(all, NODES);
    lose_one(all, 1);
    run(&all[0], conclude_and_leave);
    assert_int_equal(tr_store_wait(all[1].nodes.here, "end", PATIENCE_MS), TR_OK);
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* in which it would leave if it did not wait */
    conclude(&all[1]);
    pthread_join(all[0].thread, NULL);
    for (int i = 0; i < 2; i++) assert_int_equal(all[i].status, TR_CHILD);
    assert_non_null(strstr(all[1].report.text, "is gone, and all its ranks: "));
    tr__nodes_leave(&all[1].nodes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_one_knows_to_be_over_is_over_for_all),
        cmocka_unit_test(a_node_that_one_says_is_lost_is_lost_for_all),
        cmocka_unit_test(node_0_waits_for_those_that_have_yet_to_ask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
