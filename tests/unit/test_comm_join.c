/* Joining: again and again, side by side, in vain, with wrong options, by the environment. */
#include "comm_ranks.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Joining ----------------------------------------------------------------------------------------------------- */

static void join_again(rank *r)
{
    for (int turn = 0; turn < 8; turn++) {
        float x = 1;
        OK(tr_all_reduce(r->group, &x, 1));
        CHECK(x == (float)r->world);
        CHECK(tr_rank(r->group) == r->number && tr_world_size(r->group) == r->world);
        CHECK(tr_local_rank(r->group) == r->number);
        OK(tr_leave(r->group));
        r->group = join_group(r, NULL);
        OK(tr_status_of(r->group));
    }
}

static void a_group_can_be_joined_again(void **state)
{
    (void)state;
    run(2, join_again, NULL);
    run(4, join_again, NULL);
}

static void side_by_side(rank *r)
{
    TR_SCOPE;
    tr_group *a = join_group(r, "a"), *b = join_group(r, "b");
    OK(tr_status_of(a));
    OK(tr_status_of(b));
    int64_t x = r->number, y = -r->number;
    tr_work *work = tr_all_reduce_async(a, &x, 1, .dtype = TR_I64, .op = TR_MAX);
    OK(tr_all_reduce(b, &y, 1, .dtype = TR_I64, .op = TR_MIN));
    OK(tr_wait(work));
    CHECK(x == r->world - 1 && y == -(r->world - 1));
    OK(tr_leave(b));
    OK(tr_barrier(a));
    OK(tr_barrier(r->group));
}

static void groups_stand_side_by_side(void **state)
{
    (void)state;
    run(3, side_by_side, NULL);
}

static void ranks_meet_in_a_tcp_store(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = tr_store_tcp("127.0.0.1", 0, .serve = true, .token = "secret", .timeout_ms = JOIN_MS);
    assert_int_equal(tr_status_of(store), TR_OK);
    run_on(store, 3, join_again, NULL);
}

static void join_without_limit(rank *r)
{
    for (int turn = 0; turn < 6; turn++) {
        TR_SCOPE;
        usleep((unsigned)r->number * 3000); /* let there be something to wait for */
        tr_group *group = tr_join(.store = r->store, .rank = r->number, .world_size = r->world, .timeout_ms = INT_MAX,
            .name = "patient", .transport = turn % 2 ? "tcp" : "shm");
        OK(tr_status_of(group));
        OK(tr_barrier(group));
        OK(tr_leave(group));
    }
    OK(tr_leave(r->group));
}

static void the_longest_timeout_is_no_limit(void **state)
{
    (void)state;
    run(RANKS_MOST, join_without_limit, NULL);
}

static void missing_ranks_are_named(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = tr_store_memory();
    FAILS(TR_TIMEOUT, tr_status_of(tr_join(.store = store, .rank = 1, .world_size = 3, .timeout_ms = 50)),
        "of 3 ranks, ranks 0 and 2 did not join");
    FAILS(TR_TIMEOUT, tr_status_of(tr_join(.store = store, .rank = 1, .world_size = 2, .timeout_ms = 50)),
        "of 2 ranks, rank 0 did not join");
    FAILS(TR_TIMEOUT,
          tr_status_of(tr_join(.store = store, .rank = 0, .world_size = 100, .timeout_ms = 50, .name = "x")),
          "1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 89 more");
    run_on(store, 2, join_again, NULL); /* a try that failed leaves the number free */
}

static void the_timeout_may_come_from_the_environment(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = tr_store_memory();
#define JOIN(...) tr_status_of(tr_join(.store = store, .rank = 0, .world_size = 2, ##__VA_ARGS__))
    setenv("TRIREME_TIMEOUT", "1", 1);
    FAILS(TR_TIMEOUT, JOIN(), "did not join within 1 s");
    FAILS(TR_TIMEOUT, JOIN(.timeout_ms = 50), "did not join within 0.05 s");
    setenv("TRIREME_TIMEOUT", "0", 1);
    FAILS(TR_INVALID, JOIN(), "TRIREME_TIMEOUT=0 is not in 1 …");
    setenv("TRIREME_TIMEOUT", "soon", 1);
    FAILS(TR_INVALID, JOIN(), "TRIREME_TIMEOUT=soon is not a number");
    unsetenv("TRIREME_TIMEOUT");
#undef JOIN
}

static void take_a_taken_rank(rank *r)
{
    OK(tr_barrier(r->group));
    if (r->number == 0) {
        TR_SCOPE;
        tr_group *second = tr_join(.store = r->store, .rank = 1, .world_size = 2, .timeout_ms = JOIN_MS);
        CHECK(tr_status_of(second) == TR_STATE);
        SAYS("rank 1 of group 'world' is taken");
    }
    OK(tr_barrier(r->group));
}

static void a_rank_cannot_be_taken_twice(void **state)
{
    (void)state;
    run(2, take_a_taken_rank, NULL);
}

static void *join_a_larger_world(void *store)
{
    TR_SCOPE;
    tr_group *g = tr_join(.store = store, .rank = 1, .world_size = 3, .timeout_ms = JOIN_MS);
    return (void *)(intptr_t)tr_status_of(g);
}

static void world_sizes_must_agree(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = tr_store_memory();
    pthread_t thread;
    void *status;
    pthread_create(&thread, NULL, join_a_larger_world, store);
    FAILS(TR_MISMATCH, tr_status_of(tr_join(.store = store, .rank = 0, .world_size = 2, .timeout_ms = JOIN_MS)),
        "rank 0 joins with a world size of 2, rank 1 with 3");
    pthread_join(thread, &status);
    assert_int_equal((tr_status)(intptr_t)status, TR_MISMATCH);
}

static void bad_options_are_told(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = tr_store_memory();
    FAILS(TR_INVALID, tr_status_of(tr_join(.store = store)), ".world_size of 0");
    FAILS(TR_INVALID, tr_status_of(tr_join(.store = store, .rank = 2, .world_size = 2)), ".rank of 2 is not in 0 … 1");
    FAILS(TR_INVALID, tr_status_of(tr_join(.store = store, .rank = -1, .world_size = 2)), ".rank of -1");
    FAILS(TR_UNSUPPORTED, tr_status_of(tr_join(.backend = "smoke")), "'smoke'");
    FAILS(TR_INVALID, tr_status_of(tr_join(.name = "a/b")), ".name");
    FAILS(TR_INVALID, tr_status_of(tr_join(.name = "")), ".name");
    FAILS(TR_INVALID, tr_status_of(tr_join(.timeout_ms = -5)), "-5");
    FAILS(TR_INVALID, tr_status_of(tr_join(.init = "smoke://x")), "tcp://host:port");
    FAILS(TR_INVALID, tr_status_of(tr_join(.init = "tcp://host", .world_size = 2)), "no port");
    FAILS(TR_INVALID, tr_status_of(tr_join(.init = "tcp://:1", .world_size = 2)), "no host");
    FAILS(TR_INVALID, tr_status_of(tr_join(.init = "tcp://h:port", .world_size = 2)), "not a number");
    FAILS(TR_INVALID, tr_status_of(tr_join(.init = "tcp://h:99999", .world_size = 2)), "65535");
    tr_store *bad = tr_store_tcp(NULL, 1);
    FAILS(TR_INVALID, tr_status_of(tr_join(.store = bad, .world_size = 2)), "host");
    tr_group *broken = tr_join(.backend = "smoke");
    FAILS(TR_UNSUPPORTED, tr_barrier(broken), "'smoke'");
    FAILS(TR_UNSUPPORTED, tr_wait(tr_all_reduce_async(broken, NULL, 0)), "'smoke'");
    FAILS(TR_UNSUPPORTED, tr_leave(broken), "'smoke'");
    assert_int_equal(tr_rank(broken), 0);
    assert_int_equal(tr_world_size(broken), 1);
    assert_int_equal(tr_world_size(NULL), 1);
}

/* ---- The environment --------------------------------------------------------------------------------------------- */

static const char *const variables[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
    "MASTER_PORT", "TRIREME_STORE", "TRIREME_TOKEN"};

/* Values in the order of `variables`; NULL: unset. */
static void set_environment(const char *const values[8])
{
    for (int i = 0; i < 8; i++) {
        if (values[i])
            setenv(variables[i], values[i], 1);
        else
            unsetenv(variables[i]);
    }
}

static tr_status join_by(const char *const values[8])
{
    set_environment(values);
    TR_SCOPE;
    return tr_status_of(tr_join(.timeout_ms = 200));
}
#define JOIN_BY(...) join_by((const char *const[8]){__VA_ARGS__})

static void a_wrong_environment_is_told(void **state)
{
    (void)state;
    FAILS(TR_INVALID, JOIN_BY("0"), "RANK is set, but WORLD_SIZE is not");
    FAILS(TR_INVALID, JOIN_BY(NULL, "2"), "WORLD_SIZE is set, but RANK is not");
    FAILS(TR_INVALID, JOIN_BY("x", "2"), "RANK=x is not a number");
    FAILS(TR_INVALID, JOIN_BY("", "2"), "but RANK is not");
    FAILS(TR_INVALID, JOIN_BY("2", "2"), "RANK=2 is not in 0 … 1");
    FAILS(TR_INVALID, JOIN_BY("-1", "2"), "RANK=-1 is not in 0 … 1");
    FAILS(TR_INVALID, JOIN_BY("0", "0"), "WORLD_SIZE=0 is not in");
    FAILS(TR_INVALID, JOIN_BY("0", "2 "), "WORLD_SIZE=2  is not a number");
    FAILS(TR_INVALID, JOIN_BY("0", "2", "1", "1"), "LOCAL_RANK=1 is not in 0 … 0");
    FAILS(TR_INVALID, JOIN_BY("0", "2", "0", "3"), "LOCAL_WORLD_SIZE=3 is not in 1 … 2");
    FAILS(TR_INVALID, JOIN_BY("0", "2", "0", "2", "127.0.0.1"), "MASTER_PORT is not");
    FAILS(TR_INVALID, JOIN_BY("0", "2", "0", "2", NULL, "29500"), "MASTER_ADDR is not");
    FAILS(TR_INVALID, JOIN_BY("0", "2", "0", "2", "127.0.0.1", "0"), "MASTER_PORT=0 is not in 1 … 65535");
    FAILS(TR_AUTH, JOIN_BY("0", "2", "0", "2", "0.0.0.0", "29999"), "loopback");
    FAILS(TR_TIMEOUT, JOIN_BY("0", "2", "0", "2", "127.0.0.1", "1", "1"), "127.0.0.1:1"); /* hosted, but not there */
    set_environment((const char *const[8]){NULL});
}

/* What tr_launched() says under a launcher whose variables are these. */
static void launched_is(const char *const variables_of[3], const char *const values[3], bool there, int number, int world, int local)
{
    for (int i = 0; i < 3; i++)
        if (values[i]) setenv(variables_of[i], values[i], 1);
    int found[3] = {-1, -1, -1};
    assert_int_equal(tr_launched(&found[0], &found[1], &found[2]), there);
    assert_int_equal(tr_launched(NULL, NULL, NULL), there);
    assert_int_equal(found[0], number);
    assert_int_equal(found[1], world);
    assert_int_equal(found[2], local);
    for (int i = 0; i < 3; i++) unsetenv(variables_of[i]);
}

static void launchers_are_known_before_joining(void **state)
{
    (void)state;
    static const char *const torchrun[] = {"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"};
    static const char *const mpirun[] = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"};
    static const char *const mpich[] = {"PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"};
    static const char *const srun[] = {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"};
    launched_is(torchrun, (const char *const[3]){NULL}, false, 0, 1, 1);
    launched_is(torchrun, (const char *const[3]){"2", "4", "3"}, true, 2, 4, 3);
    launched_is(torchrun, (const char *const[3]){"-1", "0", "2x"}, true, 0, 1, 1);
    launched_is(mpirun, (const char *const[3]){"1", "8", "2"}, true, 1, 8, 2);
    launched_is(mpich, (const char *const[3]){"3", "5", "5"}, true, 3, 5, 5);
    launched_is(srun, (const char *const[3]){"6", "7", "9"}, true, 6, 7, 1);
    launched_is(srun, (const char *const[3]){"6", NULL, "9"}, false, 0, 1, 1); /* the shell of a batch job */
}

static void one_rank_needs_nothing(void **state)
{
    (void)state;
    TR_SCOPE;
    assert_int_equal(JOIN_BY(NULL), TR_OK);
    assert_int_equal(JOIN_BY("0", "1"), TR_OK); /* no address is needed */
    tr_group *g = tr_join();
    float in[3] = {1, 2, 3}, out[3] = {0};
    assert_int_equal(tr_all_reduce(g, out, 3, .in = in, .op = TR_AVG), TR_OK);
    assert_memory_equal(in, out, sizeof in);
    assert_int_equal(tr_broadcast(g, out, 3), TR_OK);
    assert_int_equal(tr_barrier(g), TR_OK);
    tr_device here = tr_group_device(g);
    assert_true(here.index == 0);
    assert_int_equal(tr_group_device_named(g, "cpu", &here), TR_OK);
    assert_true(tr_device_equal(here, tr_cpu(0)));
    assert_int_equal(tr_group_device_named(g, "cpu:9999", &here), TR_DEVICE);
    assert_int_equal(tr_group_device_named(NULL, "cpu:0", &here), TR_OK);
    assert_int_equal(tr_leave(g), TR_OK);
    set_environment((const char *const[8]){NULL});
}

/* Ranks that are given count, as in init_process_group(), and the environment says where they meet. */
static void meet_at(rank *r)
{
    tr_group *g = tr_join(.rank = r->number, .world_size = r->world, .timeout_ms = JOIN_MS);
    OK(tr_status_of(g));
    CHECK(tr_rank(g) == r->number && tr_world_size(g) == r->world);
    int64_t sum = r->number;
    OK(tr_all_reduce(g, &sum, 1, .dtype = TR_I64));
    CHECK(sum == r->world * (r->world - 1) / 2);
    OK(tr_leave(g));
}

static void ranks_that_are_given_count(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = tr_store_tcp("127.0.0.1", 0, .serve = true);
    char port[16];
    snprintf(port, sizeof port, "%d", tr_store_port(store));
    set_environment((const char *const[8]){NULL, NULL, NULL, NULL, "127.0.0.1", port, "1"});
    run(3, meet_at, NULL);
    set_environment((const char *const[8]){"0", "9", "0", "1", "127.0.0.1", port, "1"});
    run(2, meet_at, NULL);
    set_environment((const char *const[8]){NULL});
    FAILS(TR_INVALID, tr_status_of(tr_join(.rank = 1, .world_size = 2)), ".world_size is set, but MASTER_PORT is not");
    FAILS(TR_INVALID, tr_status_of(tr_join(.rank = 1)), "a .world_size of 0");
    assert_int_equal(tr_status_of(tr_join(.world_size = 1)), TR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_can_be_joined_again),
        cmocka_unit_test(groups_stand_side_by_side),
        cmocka_unit_test(ranks_meet_in_a_tcp_store),
        cmocka_unit_test(the_longest_timeout_is_no_limit),
        cmocka_unit_test(missing_ranks_are_named),
        cmocka_unit_test(the_timeout_may_come_from_the_environment),
        cmocka_unit_test(a_rank_cannot_be_taken_twice),
        cmocka_unit_test(world_sizes_must_agree),
        cmocka_unit_test(bad_options_are_told),
        cmocka_unit_test(a_wrong_environment_is_told),
        cmocka_unit_test(launchers_are_known_before_joining),
        cmocka_unit_test(one_rank_needs_nothing),
        cmocka_unit_test(ranks_that_are_given_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
