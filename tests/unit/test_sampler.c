/* Samplers: PyTorch's rule, as recorded from it (tests/recorded/record_sampler.py); and shuffled orders. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <trireme/trireme.h>

static void assert_failed(tr_status got, tr_status status, const char *part)
{
    assert_int_equal(got, status);
    if (!strstr(tr_error_message(), part)) fail_msg("\"%s\" lacks \"%s\"", tr_error_message(), part);
}

/* order: [world_size, length] */
static void compare(int64_t count, bool drop_last, const tr_tensor *order)
{
    int world_size = (int)tr_size(order, 0);
    int64_t length = tr_size(order, 1), *got = calloc((size_t)length + 1, sizeof *got), duplicates = 0;
    for (int rank = 0; rank < world_size; rank++) {
        TR_SCOPE;
        tr_sampler *s = tr_distributed_sampler(count, .rank = rank, .world_size = world_size, .in_order = true,
            .drop_last = drop_last);
        assert_int_equal(tr_sampler_length(s), length);
        TR_CHECK(tr_sampler_indices(s, got));
        assert_memory_equal(got, (const int64_t *)tr_data(order) + rank * length, (size_t)length * sizeof *got);
        duplicates += tr_sampler_duplicates(s);
    }
    assert_int_equal(duplicates, drop_last ? 0 : length * world_size - count);
    free(got);
}

static void test_as_pytorch(void **state)
{
    (void)state;
    TR_SCOPE;
    char path[4096];
    const char *source = getenv("SOURCE");
    snprintf(path, sizeof path, "%s/tests/recorded/sampler.safetensors", source ? source : ".");
    tr_tensor_list *list = tr_safetensors_load(path);
    TR_CHECK(tr_status_of(list));
    assert_true(tr_list_count(list) > 100);
    for (int i = 0; i < tr_list_count(list); i++) {
        int64_t count;
        int world_size;
        char rule[8];
        assert_int_equal(sscanf(tr_list_name(list, i), "order.%" SCNd64 ".%d.%7s", &count, &world_size, rule), 3);
        assert_int_equal(tr_size(tr_list_at(list, i), 0), world_size);
        compare(count, !strcmp(rule, "drop"), tr_list_at(list, i));
    }
}

enum { COUNT = 103, WORLD = 4, LENGTH = 26 };

/* All ranks' samples of an epoch, in the order in which they come: number i is rank i % WORLD's. */
static void draw(uint64_t seed, int64_t epoch, int64_t order[LENGTH * WORLD])
{
    TR_SCOPE;
    for (int rank = 0; rank < WORLD; rank++) {
        int64_t own[LENGTH];
        tr_sampler *s = tr_distributed_sampler(COUNT, .rank = rank, .world_size = WORLD, .seed = seed);
        TR_CHECK(tr_sampler_set_epoch(s, epoch));
        assert_int_equal(tr_sampler_length(s), LENGTH);
        assert_int_equal(tr_sampler_duplicates(s), rank == WORLD - 1);
        TR_CHECK(tr_sampler_indices(s, own));
        for (int i = 0; i < LENGTH; i++) order[i * WORLD + rank] = own[i];
    }
}

static void test_an_epoch_is_a_permutation(void **state)
{
    (void)state;
    int64_t order[LENGTH * WORLD];
    for (int64_t epoch = 0; epoch < 20; epoch++) {
        bool seen[COUNT] = {false};
        draw(7, epoch, order);
        for (int i = 0; i < COUNT; i++) {
            assert_in_range(order[i], 0, COUNT - 1);
            assert_false(seen[order[i]]);
            seen[order[i]] = true;
        }
        assert_int_equal(order[COUNT], order[0]); /* the one that makes ranks even */
    }
}

static void test_seed_and_epoch_say_the_order(void **state)
{
    (void)state;
    int64_t a[LENGTH * WORLD], b[LENGTH * WORLD];
    draw(1, 0, a);
    draw(1, 0, b);
    assert_memory_equal(a, b, sizeof a);
    draw(1, 1, b);
    assert_memory_not_equal(a, b, sizeof a);
    draw(2, 0, b);
    assert_memory_not_equal(a, b, sizeof a);
    /* Philox is the same on every machine: this order may never change, or runs could not be resumed elsewhere. */
    int64_t first[10];
    TR_SCOPE;
    TR_CHECK(tr_sampler_indices(tr_distributed_sampler(10, .seed = 1), first));
    static const int64_t always[10] = {0, 1, 5, 9, 8, 3, 7, 4, 2, 6};
    assert_memory_equal(first, always, sizeof first);
}

/* Each of the orders of three comes about as often: within five standard deviations. */
static void test_all_orders_are_as_likely(void **state)
{
    (void)state;
    TR_SCOPE;
    enum { DRAWS = 6000 };
    int seen[27] = {0};
    tr_sampler *s = tr_distributed_sampler(3, .seed = 5);
    for (int64_t epoch = 0; epoch < DRAWS; epoch++) {
        int64_t o[3];
        TR_CHECK(tr_sampler_set_epoch(s, epoch));
        TR_CHECK(tr_sampler_indices(s, o));
        seen[9 * o[0] + 3 * o[1] + o[2]]++;
    }
    static const int orders[6] = {5, 7, 11, 15, 19, 21};
    for (int i = 0; i < 6; i++) assert_in_range(seen[orders[i]], 1000 - 145, 1000 + 145);
}

/* Of each batch a rank takes a stretch, so all together take it in one order, whatever their number. */
static void test_ranks_share_each_batch(void **state)
{
    (void)state;
    enum { BATCH = 10, WHOLE = COUNT / BATCH * BATCH };
    int64_t alone[WHOLE], own[WHOLE];
    tr_sampler *one = tr_distributed_sampler(COUNT, .seed = 3, .global_batch = BATCH);
    assert_int_equal(tr_sampler_length(one), WHOLE);
    TR_CHECK(tr_sampler_indices(one, alone));
    for (int world = 2; world <= WORLD; world++) {
        int64_t taken = 0;
        for (int rank = 0; rank < world; rank++) {
            TR_SCOPE;
            tr_sampler *s = tr_distributed_sampler(COUNT, .rank = rank, .world_size = world, .seed = 3,
                .global_batch = BATCH);
            int64_t first = BATCH * rank / world, share = BATCH * (rank + 1) / world - first;
            assert_int_equal(tr_sampler_length(s), WHOLE / BATCH * share);
            assert_int_equal(tr_sampler_duplicates(s), 0);
            TR_CHECK(tr_sampler_indices(s, own));
            for (int64_t i = 0; i < tr_sampler_length(s); i++, taken++)
                assert_int_equal(own[i], alone[i / share * BATCH + first + i % share]);
        }
        assert_int_equal(taken, WHOLE);
    }
    int64_t all = 0;
    for (int rank = 0; rank < 3; rank++)
        all += tr_sampler_length(tr_distributed_sampler(INT64_MAX, .rank = rank, .world_size = 3, .global_batch = INT64_MAX));
    assert_true(all == INT64_MAX);
    tr_sampler *none = tr_distributed_sampler(COUNT, .world_size = 4, .global_batch = 3);
    assert_failed(tr_status_of(none), TR_INVALID, "a batch of 3 cannot be shared out over 4 ranks");
}

static void test_what_is_no_sampler(void **state)
{
    (void)state;
    TR_SCOPE;
    int64_t out[4];
    assert_failed(tr_status_of(tr_distributed_sampler(-1)), TR_INVALID, "not -1");
    tr_sampler *bad = tr_distributed_sampler(4, .rank = 2, .world_size = 2);
    assert_failed(tr_status_of(bad), TR_INVALID, "no rank 2 in a world of 2");
    assert_failed(tr_sampler_indices(bad, out), TR_INVALID, "no rank 2");
    assert_failed(tr_sampler_set_epoch(tr_distributed_sampler(4), -1), TR_INVALID, "not -1");
    assert_int_equal(tr_sampler_length(bad), 0);
    assert_int_equal(tr_sampler_duplicates(bad), 0);
    assert_failed(tr_sampler_indices(NULL, out), TR_INVALID, "NULL");
    assert_failed(tr_sampler_indices(tr_distributed_sampler(3), NULL), TR_INVALID, "sampler_indices: out is NULL");
    tr_group *nobody = tr_join(.init = "nonsense://", .rank = 0, .world_size = 2);
    assert_failed(tr_status_of(tr_distributed_sampler(4, .group = nobody)), TR_INVALID, "nonsense");
}

/* The bytes of its order are more than a size can say. */
static void test_a_count_beyond_all_memory(void **state)
{
    (void)state;
    TR_SCOPE;
    int64_t first;
    tr_sampler *sampler = tr_distributed_sampler((int64_t)1 << 61, .world_size = 1 << 30);
    assert_failed(tr_sampler_indices(sampler, &first), TR_NO_MEMORY, "no memory for an order of 2305843009213693952");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_pytorch),
        cmocka_unit_test(test_an_epoch_is_a_permutation),
        cmocka_unit_test(test_seed_and_epoch_say_the_order),
        cmocka_unit_test(test_all_orders_are_as_likely),
        cmocka_unit_test(test_ranks_share_each_batch),
        cmocka_unit_test(test_a_count_beyond_all_memory),
        cmocka_unit_test(test_what_is_no_sampler),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
