/* Groups within groups, with threads as ranks: who is in which, at work at the same time, calls that differ, and
 * several worlds side by side. */
#include "comm_ranks.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORLD = 6 };

/* The sum over the group of each member's rank in the world. */
static int64_t sum_of_ranks(const rank *r, tr_group *group)
{
    int64_t sum = r->number;
    return tr_all_reduce(group, &sum, 1, .dtype = TR_I64) == TR_OK ? sum : -1;
}

static void split_into_odd_and_even(rank *r)
{
    /* Keys turn the order round; those that are equal keep it. */
    tr_group *half = tr_group_split(r->group, r->number % 2, -(r->number / 2));
    OK(tr_status_of(half));
    CHECK(tr_world_size(half) == WORLD / 2);
    CHECK(tr_rank(half) == WORLD / 2 - 1 - r->number / 2);
    CHECK(tr_local_rank(half) == tr_local_rank(r->group));
    CHECK(sum_of_ranks(r, half) == (r->number % 2 ? 1 + 3 + 5 : 0 + 2 + 4));
    CHECK(sum_of_ranks(r, r->group) == 15);
    int64_t root = r->number;
    OK(tr_broadcast(half, &root, 1, .dtype = TR_I64, .root = 1));
    CHECK(root == 2 + r->number % 2);

    tr_group *pair = tr_group_split(half, tr_rank(half) > 0, 0); /* of a sub-group: one rank, and two */
    OK(tr_status_of(pair));
    CHECK(tr_world_size(pair) == (tr_rank(half) > 0 ? 2 : 1));
    CHECK(sum_of_ranks(r, pair) >= 0);
    OK(tr_leave(pair));
    OK(tr_leave(half));
    OK(tr_leave(r->group));
}

static void split(void **state)
{
    (void)state;
    run(WORLD, split_into_odd_and_even, NULL);
}

static void in_none(rank *r)
{
    tr_group *some = tr_group_split(r->group, r->number < 2 ? 7 : -1, 0);
    CHECK((some != NULL) == (r->number < 2));
    OK(tr_status_of(some));
    if (some) CHECK(sum_of_ranks(r, some) == 1);
    if (some) OK(tr_leave(some));
    tr_group *none = tr_group_split(r->group, -1, 0);
    CHECK(!none);
    OK(tr_leave(r->group));
}

static void a_negative_color_is_in_none(void **state)
{
    (void)state;
    run(4, in_none, NULL);
}

static void list_two_and_three(rank *r)
{
    static const int first[] = {4, 0, 2}, second[] = {2, 3};
    tr_group *a = tr_group_new(r->group, first, 3), *b = tr_group_new(r->group, second, 2);
    OK(tr_status_of(a));
    OK(tr_status_of(b));
    CHECK((a != NULL) == (r->number % 2 == 0));
    CHECK((b != NULL) == (r->number == 2 || r->number == 3));
    if (a) CHECK(tr_rank(a) == (r->number == 4 ? 0 : r->number == 0 ? 1 : 2)); /* in the order of the list */
    for (int i = 0; i < 50; i++) { /* rank 2 is in all three */
        tr_work *world = NULL, *in_a = NULL, *in_b = NULL;
        int64_t x = 1, y = 1, z = 1;
        TR_SCOPE;
        if (b) in_b = tr_all_reduce_async(b, &z, 1, .dtype = TR_I64);
        world = tr_all_reduce_async(r->group, &x, 1, .dtype = TR_I64);
        if (a) in_a = tr_all_reduce_async(a, &y, 1, .dtype = TR_I64);
        OK(tr_wait(world));
        if (in_a) OK(tr_wait(in_a));
        if (in_b) OK(tr_wait(in_b));
        CHECK(x == 5 && y == (a ? 3 : 1) && z == (b ? 2 : 1));
    }
    if (a) OK(tr_leave(a));
    if (b) OK(tr_leave(b));
    OK(tr_leave(r->group));
}

static void lists(void **state)
{
    (void)state;
    run(5, list_two_and_three, NULL);
}

static void make_different_calls(rank *r)
{
    static const int mine[] = {0, 1}, others[] = {1, 0}, twice[] = {1, 1}, beyond[] = {0, 3};
    tr_group *g = r->number == 0 ? tr_group_split(r->group, 0, 0) : tr_group_new(r->group, mine, 2);
    CHECK(tr_status_of(g) == TR_MISMATCH);
    SAYS("rank 0 tr_group_split(), rank 1 tr_group_new()");
    g = tr_group_new(r->group, r->number == 2 ? others : mine, 2);
    CHECK(tr_status_of(g) == TR_MISMATCH);
    SAYS("different ranks at rank 0 and at rank 2");
    g = tr_group_new(r->group, r->number == 1 ? twice : mine, 2);
    CHECK(tr_status_of(g) == (r->number == 1 ? TR_INVALID : TR_MISMATCH));
    SAYS(r->number == 1 ? "rank 1 twice" : "rank 1 a call with bad arguments");
    g = tr_group_new(r->group, beyond, 2);
    CHECK(tr_status_of(g) == TR_INVALID);
    SAYS("rank 3, which is not in 0 … 2");
    g = tr_group_new(r->group, NULL, 0);
    CHECK(tr_status_of(g) == TR_INVALID);
    CHECK(sum_of_ranks(r, r->group) == 3); /* the group is as sound as before */
    OK(tr_leave(r->group));
    CHECK(tr_status_of(tr_group_split(r->group, 0, 0)) == TR_STATE);
    SAYS("has left");
}

static void calls_that_differ(void **state)
{
    (void)state;
    run(3, make_different_calls, NULL);
    assert_int_equal(tr_status_of(tr_group_split(NULL, 0, 0)), TR_INVALID);
}

static void alone_again(rank *r)
{
    tr_group *self = tr_group_split(r->group, 0, 0);
    OK(tr_status_of(self));
    CHECK(tr_world_size(self) == 1 && sum_of_ranks(r, self) == 0);
    OK(tr_leave(self));
    OK(tr_leave(r->group));
}

static void a_world_of_one(void **state)
{
    (void)state;
    run(1, alone_again, NULL);
}

/* Sub-groups of one life of a group are not those of the next; the second time around other ranks are together. */
static void make_and_leave(rank *r)
{
    for (int life = 0; life < 3; life++) {
        TR_SCOPE;
        tr_group *world = life ? join_group(r, NULL) : r->group, *other = join_group(r, "other");
        OK(tr_status_of(world));
        OK(tr_status_of(other));
        tr_group *part = tr_group_split(world, (r->number + life) % 3 == 0, 0);
        OK(tr_status_of(part));
        CHECK(sum_of_ranks(r, part) >= 0);
        CHECK(sum_of_ranks(r, other) == 6);
        if (life != 1) OK(tr_leave(part)); /* and once it is forgotten */
        OK(tr_leave(world));
        OK(tr_leave(other));
    }
}

static void joined_again(void **state)
{
    (void)state;
    run(4, make_and_leave, NULL);
}

/* Ranks that are threads hold each other's memory, which its owner may free at any time after it has left. */
static void come_and_go_within(rank *r)
{
    enum { COUNT = 20000 };
    float *shared = make_buffer(SHARED, r, COUNT * sizeof *shared);
    CHECK(shared);
    memset(shared, 0, COUNT * sizeof *shared);
    tr_group *last = NULL;
    for (int turn = 0; turn < 60; turn++) {
        TR_SCOPE;
        tr_group *half = tr_group_split(r->group, r->number % 2, 0), *all = tr_group_split(r->group, 0, r->number);
        OK(tr_status_of(half));
        CHECK(sum_of_ranks(r, all) == 6 && sum_of_ranks(r, half) == (r->number % 2 ? 4 : 2));
        OK(tr_all_reduce(turn % 2 ? half : all, shared, COUNT));
        if (turn % 7 == 0) OK(tr_rank(half) ? tr_recv(half, shared, COUNT, .peer = 0) : tr_send(half, shared, COUNT, .peer = 1));
        if ((turn + r->number) % 3) OK(tr_leave(half));
        if (last) {
            OK(tr_leave(last));
            tr_release(last);
        }
        last = tr_keep(all);
    }
    OK(tr_leave(r->group)); /* what was made of it stays */
    CHECK(sum_of_ranks(r, last) == 6);
    free_buffer(SHARED, r, shared);
    tr_group *pair = tr_group_split(last, r->number / 2, 0);
    OK(tr_status_of(pair));
    if (r->number == 0) OK(tr_leave(pair));
    if (r->number == 1) CHECK(sum_of_ranks(r, pair) < 0);
    if (r->number == 1) SAYS("rank 0 (pid ");
    if (r->number > 1) CHECK(sum_of_ranks(r, pair) == 5);
    tr_release(last); /* without leaving it, as the last */
}

static void groups_come_and_go(void **state)
{
    (void)state;
    run(4, come_and_go_within, NULL);
}

/* Rank 0 calls in one group and then in the other, and rank 1 the other way round: each waits for the other, until its
 * time is up. Who comes last, at least, sees where the other waits. */
static atomic_int told;

static void call_in_another_order(rank *r)
{
    tr_group *a = tr_group_split(r->group, 0, 0), *b = tr_group_split(r->group, 0, 1);
    tr_group *mine = r->number ? b : a;
    OK(tr_barrier(a));
    OK(tr_barrier(b));
    float x = 1;
    CHECK(tr_all_reduce(mine, &x, 1, .timeout_ms = 500) == TR_TIMEOUT);
    char words[128];
    snprintf(words, sizeof words, "%s for rank %d: ranks must make their calls in groups that they share in one order",
        r->number ? ".1-0'" : ".2-0'", r->number);
    if (strstr(tr_error_message(), words)) {
        atomic_fetch_add(&told, 1);
        SAYS(" in all_reduce #2 (sum of f32[1] at ");
        SAYS(" has done barrier #1 (");
    }
    OK(tr_barrier(r->group));
    OK(tr_leave(a));
    OK(tr_leave(b));
    OK(tr_leave(r->group));
}

static void calls_in_another_order_are_named(void **state)
{
    (void)state;
    atomic_store(&told, 0);
    run(2, call_in_another_order, NULL);
    assert_true(atomic_load(&told) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split),
        cmocka_unit_test(a_negative_color_is_in_none),
        cmocka_unit_test(lists),
        cmocka_unit_test(calls_that_differ),
        cmocka_unit_test(a_world_of_one),
        cmocka_unit_test(joined_again),
        cmocka_unit_test(groups_come_and_go),
        cmocka_unit_test(calls_in_another_order_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
