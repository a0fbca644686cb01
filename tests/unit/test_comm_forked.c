/* A child that was forked from a rank has the group's memory and descriptors, and none of its threads. */
#include "comm_ranks.h"
#include "sanitized.h"

#include <trireme/store.h>

#include <sys/wait.h>
#include <unistd.h>

enum { HANGS_S = 60 };

/* Ends the innermost scope in a child of this process, with all that it holds; the child's exit code, or -1: it hangs. */
static int drop_in_a_child(tr_group *group)
{
    int how;
    pid_t child = fork();
    if (child == 0) {
        alarm(HANGS_S);
        bool refused = !group || (tr_leave(group) == TR_STATE && strstr(tr_error_message(), "was forked"));
        tr_scope_pop();
        _exit(refused ? 0 : 1);
    }
    return child > 0 && waitpid(child, &how, 0) == child && WIFEXITED(how) ? WEXITSTATUS(how) : -1;
}

/* The group has a thread of its own, and those of its endpoints and messages. The peers do not hear that it was left. */
static void fork_and_go_on(rank *r)
{
    int other = 1 - r->number;
    int64_t one = 1, got = 0;
    OK(tr_wait(tr_all_reduce_async(r->group, &got, 1, .dtype = TR_I64)));
    tr_work *receive = tr_recv_async(r->group, &got, 1, .dtype = TR_I64, .peer = other);
    OK(tr_send(r->group, &one, 1, .dtype = TR_I64, .peer = other));
    OK(tr_wait(receive));
    if (r->number == 0) CHECK(drop_in_a_child(r->group) == 0);
    OK(tr_barrier(r->group));
    OK(tr_leave(r->group));
}

static void a_child_drops_a_group(void **state)
{
    (void)state;
    if (SANITIZED) skip();
    run(2, fork_and_go_on, NULL);
    run_tcp(2, fork_and_go_on, NULL, NULL);
}

static void a_child_drops_a_store_that_is_served(void **state)
{
    (void)state;
    if (SANITIZED) skip();
    tr_scope_push();
    tr_store *store = tr_store_tcp("127.0.0.1", 0, .serve = true);
    assert_int_equal(tr_status_of(store), TR_OK);
    assert_int_equal(drop_in_a_child(NULL), 0);
    assert_int_equal(tr_store_set(store, "key", "", 0), TR_OK);
    tr_scope_pop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_child_drops_a_group),
        cmocka_unit_test(a_child_drops_a_store_that_is_served),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
