/* The model of what schedules cost, against the formulas that are known for them. */
#include "cost.h"

#include "comm/algo/schedule.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

/* 10 us, 1 GB/s, no overhead: rounds and bytes alone. And one where bytes cost nothing. */
static const tr__network network = {.latency = 1e-5, .bandwidth = 1e9, .piece = 65536},
                         latency_only = {.latency = 1e-5, .bandwidth = 1e15, .piece = 65536};

static double cost_on(const tr__network *n, tr_collective_kind kind, tr__algorithm algorithm, int world, int64_t bytes)
{
    double seconds;
    tr_schedule s = {.kind = kind, .algorithm = algorithm, .world_size = world, .count = bytes / 4,
        .segment = (4 << 20) / 4};
    assert_int_equal(tr__cost(&s, 4, n, &seconds), TR_OK);
    return seconds;
}

static double cost(tr_collective_kind kind, tr__algorithm algorithm, int world, int64_t bytes)
{
    return cost_on(&network, kind, algorithm, world, bytes);
}

static void near(double got, double wanted, double tolerance)
{
    if (fabs(got - wanted) > tolerance * wanted) fail_msg("%g s instead of %g s", got, wanted);
}

/* Of messages whose bytes count for nothing: rounds. */
static void check_rounds(tr_collective_kind kind, tr__algorithm algorithm, int world, int rounds)
{
    near(cost_on(&latency_only, kind, algorithm, world, kind == TR_BARRIER ? 0 : 4 * world), rounds * 1e-5, 0.01);
}

static void small_messages_cost_rounds(void **state)
{
    (void)state;
    for (int log = 1; log <= 12; log++) {
        check_rounds(TR_ALL_REDUCE, TR__DOUBLING, 1 << log, log);
        check_rounds(TR_ALL_REDUCE, TR__HALVING, 1 << log, 2 * log);
        check_rounds(TR_ALL_REDUCE, TR__TREE, 1 << log, 2 * log);
        check_rounds(TR_BROADCAST, TR__TREE, 1 << log, log);
        check_rounds(TR_BARRIER, TR__DOUBLING, 1 << log, log);
    }
    check_rounds(TR_ALL_REDUCE, TR__RING, 32, 2 * 31);
    check_rounds(TR_ALL_REDUCE, TR__DIRECT, 32, 2);
    check_rounds(TR_ALL_TO_ALL, TR__DIRECT, 32, 1);
}

/* Of large ones: bytes. N each way and once more for all_reduce, less what a rank keeps to itself. */
static void large_messages_cost_bytes(void **state)
{
    (void)state;
    int64_t bytes = (int64_t)1 << 30;
    double n = (double)bytes / 1e9;
    for (int world = 2; world <= 64; world *= 2) {
        double share = (world - 1.0) / world;
        near(cost(TR_ALL_REDUCE, TR__RING, world, bytes), 2 * share * n, 0.01);
        near(cost(TR_ALL_REDUCE, TR__HALVING, world, bytes), 2 * share * n, 0.01);
        near(cost(TR_BROADCAST, TR__RING, world, bytes), n, 0.01); /* a pipeline */
        near(cost(TR_ALL_GATHER, TR__RING, world, bytes / world), share * n, 0.01);
        near(cost(TR_REDUCE_SCATTER, TR__RING, world, bytes / world), share * n, 0.01);
    }
    near(cost(TR_ALL_REDUCE, TR__TREE, 2, bytes), 2 * n, 0.01); /* the sum is finished before it goes down */
    near(cost(TR_ALL_REDUCE, TR__DIRECT, 8, bytes), 2 * 7.0 / 8 * n, 0.02);
    near(cost(TR_BROADCAST, TR__DIRECT, 9, bytes), 8 * n, 0.01);
}

/* What the table is for: there is no algorithm that is best everywhere. */
static void thousands_of_ranks(void **state)
{
    (void)state;
    assert_true(cost(TR_ALL_REDUCE, TR__DOUBLING, 4096, 64) < cost(TR_ALL_REDUCE, TR__HALVING, 4096, 64));
    assert_true(cost(TR_ALL_REDUCE, TR__HALVING, 4096, 4 << 20) < cost(TR_ALL_REDUCE, TR__DOUBLING, 4096, 4 << 20));
    assert_true(cost(TR_ALL_REDUCE, TR__HALVING, 512, 1 << 20) < cost(TR_ALL_REDUCE, TR__RING, 512, 1 << 20));
    assert_true(cost(TR_BROADCAST, TR__TREE, 4096, 64) < cost(TR_BROADCAST, TR__RING, 4096, 64) / 100);
}

static void every_schedule_ends_on_paper(void **state)
{
    (void)state;
    for (int kind = 0; kind < TR_COLLECTIVE_COUNT; kind++) {
        bool pairs = kind == TR_SEND || kind == TR_RECV, arrays = kind >= TR_ALL_GATHER_V && kind <= TR_ALL_TO_ALL_V;
        for (int algorithm = 0; algorithm < TR__ALGORITHM_COUNT && !pairs && !arrays; algorithm++)
            for (int world = 2; world <= 33 && tr__schedule_exists(kind, algorithm); world++)
                assert_true(cost(kind, algorithm, world, 1000) >= 1e-5);
    }
}

/* What a program gets of a schedule is the schedule that the transport carries out. */
static void schedules_are_public(void **state)
{
    (void)state;
    tr_schedule s;
    assert_int_equal(tr_schedule_find(TR_ALL_REDUCE, "ring", 5, 1000, &s), TR_OK);
    for (s.rank = 0; s.rank < 5; s.rank++) {
        const tr__schedule own = {.kind = TR_ALL_REDUCE, .algorithm = TR__RING, .rank = s.rank, .world_size = 5, .count = 1000,
            .segment = s.segment};
        assert_true(tr_schedule_steps(&s) == tr__schedule_steps(&own) && tr_schedule_steps(&s) >= 8);
        for (int64_t i = 0; i < tr_schedule_steps(&s); i++) {
            tr_schedule_step a = tr_schedule_step_at(&s, i);
            tr__step b = tr__schedule_step(&own, i);
            assert_int_equal(a.action, b.action);
            assert_true(a.to == b.to && a.from == b.from && a.stride == b.stride && a.folds == (b.take != TR__TAKE));
            assert_true(a.send.begin == b.send.range.begin && a.send.end == b.send.range.end);
            assert_true(a.receive.begin == b.receive.range.begin && a.receive.buffer == (int)b.receive.buffer);
            assert_true(a.own.begin == b.own.range.begin && a.own.end == b.own.range.end);
        }
    }
    assert_int_equal(tr_schedule_find(TR_ALL_TO_ALL, "ring", 5, 1000, &s), TR_NOT_FOUND);
    assert_int_equal(tr_schedule_find(TR_SEND, NULL, 5, 1000, &s), TR_UNSUPPORTED);
    assert_int_equal(tr_schedule_find(TR_BARRIER, NULL, 0, 0, &s), TR_INVALID);
}

static void anyone_can_ask(void **state)
{
    (void)state;
    double a, b, c;
    tr_network n = {.latency_us = 10, .overhead_us = 1, .gbytes_per_s = 1};
    assert_int_equal(tr_predict(TR_ALL_REDUCE, NULL, 64, 16, &n, &a), TR_OK);
    assert_int_equal(tr_predict(TR_ALL_REDUCE, "doubling", 64, 16, &n, &b), TR_OK);
    assert_int_equal(tr_predict(TR_ALL_REDUCE, "ring", 64, 16, &n, &c), TR_OK);
    assert_true(a == b && a < c);
    assert_int_equal(tr_predict(TR_ALL_TO_ALL, "ring", 64, 16, &n, &a), TR_NOT_FOUND);
    assert_int_equal(tr_predict(TR_SEND, NULL, 64, 16, &n, &a), TR_UNSUPPORTED);
    assert_int_equal(tr_predict(TR_BARRIER, NULL, 0, 16, &n, &a), TR_INVALID);
    n.gbytes_per_s = 0;
    assert_int_equal(tr_predict(TR_BARRIER, NULL, 2, 16, &n, &a), TR_INVALID);
    char *text = tr_algorithms("barrier ranks 2- bytes 0- doubling", 0);
    assert_non_null(text);
    assert_memory_equal(text, "barrier ranks 2- bytes 0- doubling\nall_reduce ", 46);
    free(text);
    assert_null(tr_algorithms("nonsense", 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_messages_cost_rounds),
        cmocka_unit_test(large_messages_cost_bytes),
        cmocka_unit_test(thousands_of_ranks),
        cmocka_unit_test(every_schedule_ends_on_paper),
        cmocka_unit_test(schedules_are_public),
        cmocka_unit_test(anyone_can_ask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
