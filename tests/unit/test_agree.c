/* What ranks must hold alike: differences are found on every rank, named, and shown with their values. */
#include "comm/group/agree.h"
#include "comm_ranks.h"

#include <trireme/trireme.h>

#include <math.h>
#include <stdlib.h>

static void same_values(rank *r)
{
    char shape[] = "12 layers";
    OK(tr_agree(r->group, "lr", 1e-3));
    OK(tr_agree(r->group, "half", 0.5f));
    OK(tr_agree(r->group, "folds", 5));
    OK(tr_agree(r->group, "tokens", INT64_MAX));
    OK(tr_agree(r->group, "model", shape));
    OK(tr_agree(r->group, "preset", "nano"));
    OK(tr_agree_bytes(r->group, "nothing", NULL, 0));
}

static void values_that_are_the_same_pass(void **state)
{
    (void)state;
    run(1, same_values, NULL);
    run(3, same_values, NULL);
    run_tcp(2, same_values, NULL, NULL);
}

static void different_values(rank *r)
{
    const char *message = "tr_agree: ranks differ: lr is 0.001 on ranks 0 and 2, 0.01 on rank 1";
    CHECK(tr_agree(r->group, "lr", r->number == 1 ? 0.01 : 0.001) == TR_MISMATCH);
    if (strcmp(tr_error_message(), message) != 0) SAYS("the message is another");
    CHECK(tr_agree(r->group, "folds", r->number) == TR_MISMATCH);
    SAYS("folds is 0 on rank 0, 1 on rank 1, 2 on rank 2");
    CHECK(tr_agree(r->group, "preset", r->number == 2 ? "mini" : "nano") == TR_MISMATCH);
    SAYS("preset is nano on ranks 0 and 1, mini on rank 2");

    /* Numbers that print alike with six digits are not the same. */
    CHECK(tr_agree(r->group, "lr", r->number ? 0.1 : 0.1 + 1e-16) == TR_MISMATCH);

    float x = 1;
    OK(tr_all_reduce(r->group, &x, 1)); /* the group goes on */
    CHECK(x == 3);
}

static void differences_are_shown_with_their_ranks(void **state)
{
    (void)state;
    run(3, different_values, NULL);
}

/* Each would give some samples to two ranks and others to none. */
static void different_orders(rank *r)
{
    TR_SCOPE;
    OK(tr_status_of(tr_distributed_sampler(9, .group = r->group, .seed = 3)));
    OK(tr_status_of(tr_distributed_sampler(9, .group = r->group, .in_order = true, .seed = (uint64_t)r->number)));
    tr_sampler *seeds = tr_distributed_sampler(9, .group = r->group, .seed = (uint64_t)r->number + 7);
    CHECK(tr_status_of(seeds) == TR_MISMATCH);
    SAYS("distributed_sampler: ranks differ: seed is 7 on rank 0, 8 on rank 1");
    CHECK(tr_status_of(tr_distributed_sampler(9, .group = r->group, .in_order = r->number == 1)) == TR_MISMATCH);
    SAYS("order is shuffled on rank 0, by index on rank 1");
    CHECK(tr_status_of(tr_distributed_sampler(9 + r->number, .group = r->group)) == TR_MISMATCH);
    SAYS("count is 9 on rank 0, 10 on rank 1");
    CHECK(tr_status_of(tr_distributed_sampler(9, .group = r->group, .drop_last = r->number == 1)) == TR_MISMATCH);
    SAYS("drop_last is false on rank 0, true on rank 1");
    CHECK(tr_status_of(tr_distributed_sampler(9, .group = r->group, .global_batch = 4 + r->number)) == TR_MISMATCH);
    SAYS("global_batch is 4 on rank 0, 5 on rank 1");

    tr_dataset *set = tr_dataset_tensors(tr_ones(TR_SHAPE(8, 2)), NULL);
    tr_loader *loader = tr_loader_new(set, .batch = 2, .shuffle = true, .seed = (uint64_t)r->number, .group = r->group);
    CHECK(tr_status_of(loader) == TR_MISMATCH);
    SAYS("seed is 0 on rank 0, 1 on rank 1");
}

static void orders_that_differ_are_refused(void **state)
{
    (void)state;
    run(2, different_orders, NULL);
}

/* The others do not wait for it, and know that the failure is not theirs. */
static void one_without_data(rank *r)
{
    TR_SCOPE;
    tr_dataset *set = r->number ? tr_mnist("nowhere") : tr_dataset_tensors(tr_ones(TR_SHAPE(8, 2)), NULL);
    CHECK(tr_status_of(tr_loader_new(set, .batch = 2, .group = r->group)) == (r->number ? TR_NOT_FOUND : TR_PEER));
    SAYS(r->number ? "nowhere" : "rank 1 failed: mnist: ");
    OK(tr_barrier(r->group));
}

static void a_loader_that_one_rank_cannot_make_fails_on_all(void **state)
{
    (void)state;
    run(2, one_without_data, NULL);
}

/* A rank that has failed takes part in what the ranks do together, so that the others hear of it. */
static void one_failed_before(rank *r)
{
    bool fails = r->number == 1;
    tr_status own = fails ? tr_fail(TR_IO, "the disk is full") : TR_OK;
    CHECK(tr__agree(r->group, "test", own, NULL) == (fails ? TR_IO : TR_PEER));
    CHECK(!strcmp(tr_error_message(), fails ? "the disk is full" : "rank 1 failed: the disk is full"));

    tr__facts facts = {0};
    tr__facts_say(&facts, "number", "%d", r->number); /* what differs besides does not matter */
    own = r->number ? tr_fail(TR_IO, "the disk of %d is full", r->number) : TR_OK;
    CHECK(tr__agree_once(r->group, "test", own, &facts) == (r->number ? TR_IO : TR_PEER));
    SAYS(r->number == 2 ? "the disk of 2 is full" : r->number ? "the disk of 1" : "ranks 1 and 2 failed: the disk of 1 is full");

    double sums[] = {1, r->number};
    OK(tr__agree_sums(r->group, "test", TR_OK, sums, 2));
    CHECK(sums[0] == 3 && sums[1] == 3);
    own = fails ? tr_fail(TR_IO, "the disk is full") : TR_OK;
    CHECK(tr__agree_sums(r->group, "test", own, sums, 2) == (fails ? TR_IO : TR_PEER));
    SAYS(fails ? "the disk is full" : "rank 1 failed: the disk is full");
    CHECK(sums[0] == 3 && sums[1] == 3);

    CHECK(tr_agree(r->group, "", r->number) == TR_MISMATCH); /* no rank failed */
    CHECK(tr_agree_bytes(r->group, "model", fails ? NULL : "nano", 4) == (fails ? TR_INVALID : TR_PEER));
    SAYS(fails ? "the value is NULL" : "rank 1 failed: tr_agree: the value is NULL");
    OK(tr_barrier(r->group)); /* the group goes on */
}

static void what_failed_on_one_rank_is_known_to_all(void **state)
{
    (void)state;
    run(3, one_failed_before, NULL);
    run_tcp(3, one_failed_before, NULL, NULL);
}

/* What is made by all ranks together, when one of them has nothing to make it of. */
static void one_bad_argument(rank *r)
{
    TR_SCOPE;
    bool fails = r->number == 1;
    tr_status expected = fails ? TR_INVALID : TR_PEER;
    tr_dataset *set = tr_dataset_tensors(tr_ones(TR_SHAPE(8, 2)), NULL);
    CHECK(tr_status_of(tr_loader_new(set, .batch = fails ? -1 : 2, .group = r->group)) == expected);
    SAYS(fails ? "loader: a batch of -1" : "rank 1 failed: loader: a batch of -1 samples");
    CHECK(tr_status_of(tr_distributed_sampler(fails ? -1 : 8, .group = r->group)) == expected);
    SAYS(fails ? "the count" : "rank 1 failed: distributed_sampler: the count must be 0 or more, not -1");
    CHECK(tr_status_of(tr_ddp(fails ? tr_linear(0, 2) : tr_linear(2, 2), r->group)) == expected);
    SAYS(fails ? "linear" : "rank 1 failed: linear: ");
    CHECK(tr_status_of(tr_ddp(fails ? NULL : tr_linear(2, 2), r->group)) == expected);
    SAYS(fails ? "not NULL" : "rank 1 failed: ddp: it takes a module and a group, not NULL");
    tr_optimizer *adam = tr_adam(tr_parameters(tr_linear(2, 2)), .lr = fails ? -1 : 1);
    CHECK(tr_shard_optimizer(adam, r->group) == expected);
    SAYS(fails ? "lr" : "rank 1 failed: adam: lr ");
    CHECK(tr_shard_optimizer(fails ? NULL : adam, r->group) == expected);
    SAYS(fails ? "not NULL" : "rank 1 failed: shard_optimizer: it takes an optimizer and a group, not NULL");
    CHECK(tr_check_replicas(r->group, tr_parameters(fails ? tr_linear(0, 2) : tr_linear(2, 2))) == expected);
    SAYS(fails ? "linear" : "rank 1 failed: linear: ");
    OK(tr_barrier(r->group));
}

static void a_bad_argument_of_one_rank_fails_on_all(void **state)
{
    (void)state;
    run(3, one_bad_argument, NULL);
}

/* In a time that grows with their number, not with its square: that would take an hour. */
static void so_many_facts(rank *r)
{
    char name[32];
    tr__facts facts = {0};
    for (int i = 0; i < 200000; i++) {
        snprintf(name, sizeof name, "tensor %d", i);
        tr__facts_add(&facts, &(tr__fact){.name = name, .value = i == 199999 && r->number ? "b" : "a", .bytes = 1});
    }
    CHECK(tr__agree_once(r->group, "model", TR_OK, &facts) == TR_MISMATCH);
    SAYS("model: ranks differ: tensor 199999 is a on rank 0, b on ranks 1 and 2");
}

static void a_difference_among_many_facts_is_found_soon(void **state)
{
    (void)state;
    run(3, so_many_facts, NULL);
}

static void different_bytes(rank *r)
{
    char *large = malloc(1000);
    CHECK(large);
    memset(large, 'a', 1000);
    large[999] = r->number ? 'b' : 'a';
    tr_status status = tr_agree_bytes(r->group, "text", large, 1000);
    char message[512];
    snprintf(message, sizeof message, "%s", tr_error_message());
    large[0] = 1; /* no longer text */
    tr_status binary = tr_agree_bytes(r->group, "data", large, 1000);
    free(large);
    CHECK(status == TR_MISMATCH && binary == TR_MISMATCH);
    SAYS("data is 1000 bytes with CRC-32C ");
    CHECK(strstr(message, "aaa…, 1000 bytes with CRC-32C "));
}

static void long_values_are_cut(void **state)
{
    (void)state;
    run(2, different_bytes, NULL);
}

/* The first count of these: what differs between ranks is "x" or "y". */
static tr_status compare(rank *r, int count, const char *letter)
{
    const tr__fact list[] = {{.name = "seed", .value = "1", .bytes = 1},
                             {.name = "a", .value = letter, .bytes = 1},
                             {.name = "b", .value = letter, .bytes = 1},
                             {.name = "c", .value = letter, .bytes = 1},
                             {.name = "d", .value = letter, .bytes = 1}};
    tr__facts facts = {0};
    for (int i = 0; i < count; i++) tr__facts_add(&facts, &list[i]);
    return tr__agree_once(r->group, "trainer", TR_OK, &facts);
}

static void many_facts(rank *r)
{
    const char *letter = r->number ? "x" : "y";
    CHECK(compare(r, 5, letter) == TR_MISMATCH);
    SAYS("trainer: ranks differ: a is y on rank 0, x on rank 1; b is y on rank 0, x on rank 1; c is y on rank 0, x on "
         "rank 1; …");
    CHECK(compare(r, r->number ? 1 : 2, letter) == TR_MISMATCH);
    SAYS("trainer: ranks differ: a is y on rank 0, no such value on rank 1");
    CHECK(compare(r, r->number ? 2 : 1, letter) == TR_MISMATCH);
    SAYS("trainer: ranks differ: a is no such value on rank 0, x on rank 1");
    OK(compare(r, 1, letter));
    OK(compare(r, 0, letter));
}

static void several_facts_are_compared_at_once(void **state)
{
    (void)state;
    run(2, many_facts, NULL);
}

static char logged[512];

static void take_log(tr_log_level level, const char *message, void *user)
{
    (void)user;
    if (level == TR_LOG_WARN) snprintf(logged + strlen(logged), sizeof logged - strlen(logged), "%s|", message);
}

static void told_facts(rank *r)
{
    const char *cpu = r->number == 1 ? "avx2" : "avx512";
    tr__facts facts = {0};
    tr__facts_add(&facts, &(tr__fact){.name = "cpu", .value = cpu, .bytes = strlen(cpu), .told = true});
    tr_status alone = tr__agree(r->group, "trainer", TR_OK, &facts);
    tr__facts_add(&facts, &(tr__fact){.name = "lr", .value = &"123"[r->number], .bytes = 1});
    tr_status both = tr__agree(r->group, "trainer", TR_OK, &facts);
    tr__facts_free(&facts);
    CHECK(alone == TR_OK && both == TR_MISMATCH);
    SAYS("trainer: ranks differ: lr is 1 on rank 0, 2 on rank 1, 3 on rank 2");
}

static void some_differences_are_only_told(void **state)
{
    (void)state;
    tr_set_log(take_log, NULL, TR_LOG_WARN);
    *logged = 0;
    run(3, told_facts, NULL);
    tr_set_log(NULL, NULL, TR_LOG_WARN);
    const char *line = "trainer: ranks differ: cpu is avx512 on ranks 0 and 2, avx2 on rank 1|";
    char twice[512]; /* rank 0's, of each comparison */
    snprintf(twice, sizeof twice, "%s%s", line, line);
    assert_string_equal(logged, twice);
}

static void numbers_have_few_digits(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0.1, "0.1"}, {1e-3, "0.001"}, {3, "3"}, {1.0 / 3, "0.3333333333333333"}, {0.1 + 0.2, "0.30000000000000004"},
        {1e300, "1e+300"}, {-0.0, "-0"}, {INFINITY, "inf"}};
    char text[TR__NUMBER_TEXT];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(tr__number_text(cases[i].value, text), cases[i].text);
    assert_string_equal(tr__number_text(NAN, text), "nan");
}

static void bad_values_are_refused(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_group *alone = tr_join();
    FAILS(TR_INVALID, tr_agree_text(alone, NULL, "x"), "the name is NULL");
    FAILS(TR_INVALID, tr_agree_text(alone, "preset", NULL), "the value is NULL");
    FAILS(TR_INVALID, tr_agree_bytes(alone, "data", "", (1 << 20) + 1), "compare its hash");
    assert_int_equal(tr_leave(alone), TR_OK);
}

/* Rank 1 is a record in the store that another version of the library has written. */
static void meet(const char *record, const char *words)
{
    TR_SCOPE;
    tr_store *store = tr_store_memory();
    assert_int_equal(tr_store_set(store, "group/world/endpoint/1/1", record, strlen(record)), TR_OK);
    tr_group *group = tr_join(.store = store, .rank = 0, .world_size = 2, .timeout_ms = JOIN_MS);
    FAILS(TR_MISMATCH, tr_status_of(group), words);
}

static void versions_must_be_the_same(void **state)
{
    (void)state;
    char words[128];
    snprintf(words, sizeof words,
             "rank 0 runs Trireme %s, rank 1 runs Trireme 9.8.7: all ranks of a job need the same version",
             tr_version());
    meet("trireme-endpoint 6 version 9.8.7 what comes later", words);
    meet("trireme-endpoint 4 rank 1 of 2 pid 1 in 0 host h", "rank 1 runs Trireme of an earlier version");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_that_are_the_same_pass), cmocka_unit_test(differences_are_shown_with_their_ranks),
        cmocka_unit_test(orders_that_differ_are_refused), cmocka_unit_test(a_loader_that_one_rank_cannot_make_fails_on_all),
        cmocka_unit_test(what_failed_on_one_rank_is_known_to_all), cmocka_unit_test(a_bad_argument_of_one_rank_fails_on_all),
        cmocka_unit_test(a_difference_among_many_facts_is_found_soon),
        cmocka_unit_test(long_values_are_cut),           cmocka_unit_test(several_facts_are_compared_at_once),
        cmocka_unit_test(some_differences_are_only_told), cmocka_unit_test(numbers_have_few_digits),
        cmocka_unit_test(bad_values_are_refused),        cmocka_unit_test(versions_must_be_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
