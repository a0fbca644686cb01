/*
 * Groups over several hosts with threads as ranks, on pretended hosts: every collective on every layout, and errors.
 *
 * ctest: timeout=600
 */
#include "base/object.h"
#include "comm/algo/reduce.h"
#include "comm/control.h"
#include "comm_trials.h"
#include "sanitized.h"
#include "together.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct layout {
    int world;
    int hosts[RANKS_MOST];
} layout;

static const layout layouts[] = {
    {4, {0, 0, 1, 1}},          /* two and two */
    {4, {0, 1, 0, 1}},          /* the same, in turns */
    {4, {0, 0, 0, 1}},          /* three and one */
    {5, {0, 1, 1, 0, 0}},       /* three and two, mixed: rails, but no whole blocks on them */
    {6, {0, 0, 1, 1, 2, 2}},    /* three hosts */
    {7, {0, 1, 2, 1, 1, 2, 1}}, /* one, four and two, mixed */
};
/* The other builds run all. */
enum { LAYOUTS = THREADS_SANITIZED ? 4 : sizeof layouts / sizeof *layouts };

static void run_everywhere(rank_body body, const void *arg)
{
    for (int l = 0; l < LAYOUTS; l++) run_hosts(layouts[l].hosts, layouts[l].world, body, arg);
}

/* ---- Data -------------------------------------------------------------------------------------------------------- */

static void every_collective_on_every_layout(void **state)
{
    (void)state;
    for (int k = 0; k < TR_COLLECTIVE_COUNT; k++) {
        tr_collective_kind kind = k;
        if (kind != TR_SEND && kind != TR_RECV) run_everywhere(try_kind, &kind);
    }
}

/* Short and long ones go different ways. */
static void reduce_long_ones(rank *r)
{
    enum { COUNT = 20011 };
    static const tr_collective_kind kinds[] = {TR_ALL_REDUCE, TR_REDUCE, TR_REDUCE_SCATTER};
    size_t bytes = (size_t)COUNT * (size_t)r->world * 8;
    unsigned char *in = malloc(bytes), *out = malloc(bytes);
    CHECK(in && out);
    for (int i = 0; i < 3 * TR_DTYPE_COUNT * TR_REDUCE_OP_COUNT; i++) {
        tr_dtype dtype = i / 3 / TR_REDUCE_OP_COUNT;
        tr_reduce_op op = i / 3 % TR_REDUCE_OP_COUNT;
        tr_collective c = {.size = sizeof c, .kind = kinds[i % 3], .in = in, .out = out, .count = COUNT, .dtype = dtype,
            .op = op, .root = r->world - 1};
        if (!tr__reduce_find(dtype, op)) continue;
        bool scatters = c.kind == TR_REDUCE_SCATTER;
        int64_t given = scatters ? (int64_t)COUNT * r->world : COUNT, first = scatters ? (int64_t)COUNT * r->number : 0;
        for (int64_t n = 0; n < given; n++) put(dtype, in, n, sample(dtype, r->number, n));
        OK(tr_run_collective(r->group, &c));
        if (c.kind == TR_REDUCE && r->number != c.root) continue;
        for (int64_t n = 0; n < COUNT; n++)
            CHECK(near_enough(dtype, get(dtype, out, n), reduced(dtype, op, r->world, first + n)));
    }
    free(in);
    free(out);
    OK(tr_leave(r->group));
}

static void every_type_and_operation(void **state)
{
    (void)state;
    run_everywhere(reduce_all_types, NULL);
    run_everywhere(reduce_long_ones, NULL);
}

/* A sum of many bf16 has been rounded once: to the nearest of the exact one. */
static void sum_narrow(rank *r)
{
    enum { COUNT = 40000 };
    unsigned char *x = malloc(COUNT * 2), nearest[2];
    CHECK(x);
    for (int64_t i = 0; i < COUNT; i++) put(TR_BF16, x, i, r->number == 0 ? 256 : 1);
    OK(tr_all_reduce(r->group, (void *)x, COUNT, .dtype = TR_BF16));
    put(TR_BF16, nearest, 0, 256 + r->world - 1);
    for (int64_t i = 0; i < COUNT; i++) CHECK(memcmp(x + 2 * i, nearest, 2) == 0);
    free(x);
    OK(tr_leave(r->group));
}

static void narrow_sums_are_rounded_once(void **state)
{
    (void)state;
    run_everywhere(sum_narrow, NULL);
}

static void large_buffers_have_the_same_bits_everywhere(void **state)
{
    (void)state;
    for (int l = 0; l < LAYOUTS; l += 2) run_hosts(layouts[l].hosts, layouts[l].world, reduce_large, NULL);
}

static void collectives_work_in_place(void **state)
{
    (void)state;
    run_everywhere(meet_in_place, NULL);
}

/* Memory that the ranks of a host map from each other, private memory, and some of each. */
static void use_buffers(rank *r)
{
    enum { COUNT = 100003 };
    for (buffer_kind kind = 0; kind < KINDS; kind++) {
        size_t bytes = COUNT * sizeof(int32_t);
        int32_t *x = make_buffer(kind, r, bytes), *all = make_buffer(kind, r, bytes * (size_t)r->world);
        CHECK(x && all);
        for (int turn = 0; turn < 3; turn++) {
            for (int i = 0; i < COUNT; i++) x[i] = i + r->number;
            OK(tr_all_reduce(r->group, x, COUNT, .dtype = TR_I32));
            for (int i = 0; i < COUNT; i++) CHECK(x[i] == i * r->world + r->world * (r->world - 1) / 2);
            for (int i = 0; i < COUNT; i++) x[i] = i + r->number;
            OK(tr_all_gather(r->group, x, all, COUNT, .dtype = TR_I32));
            for (int i = 0; i < COUNT * r->world; i++) CHECK(all[i] == i % COUNT + i / COUNT);
            OK(tr_broadcast(r->group, all, COUNT, .dtype = TR_I32, .root = turn % r->world));
            for (int i = 0; i < COUNT; i++) CHECK(all[i] == i);
        }
        free_buffer(kind, r, x);
        free_buffer(kind, r, all);
    }
    OK(tr_leave(r->group));
}

static void buffers_may_be_shared_or_private(void **state)
{
    (void)state;
    run_everywhere(use_buffers, NULL);
}

static void nobody_leaves_a_barrier_early(void **state)
{
    (void)state;
    for (int l = 0; l < LAYOUTS; l++) {
        atomic_int board[RANKS_MOST] = {0};
        run_hosts(layouts[l].hosts, layouts[l].world, meet, board);
    }
}

static void ranks_send_to_each_other(void **state)
{
    (void)state;
    run_everywhere(pass_on, NULL);
    run_everywhere(cross, NULL);
}

static void post_many(rank *r)
{
    enum { WORKS = 40, COUNT = 5000 };
    static _Thread_local int64_t x[WORKS][COUNT];
    tr_work *works[WORKS];
    for (int w = 0; w < WORKS; w++)
        for (int i = 0; i < COUNT; i++) x[w][i] = w + i + r->number;
    for (int w = 0; w < WORKS; w++) works[w] = tr_all_reduce_async(r->group, x[w], COUNT, .dtype = TR_I64);
    for (int w = WORKS - 1; w >= 0; w--) OK(tr_wait(works[w]));
    for (int w = 0; w < WORKS; w++)
        for (int i = 0; i < COUNT; i++) CHECK(x[w][i] == (int64_t)(w + i) * r->world + r->world * (r->world - 1) / 2);
    OK(tr_run_list(r->group, (tr_collective[]){TR_COLLECTIVE(TR_ALL_REDUCE, .out = x[0], .count = COUNT, .dtype = TR_I64),
        TR_COLLECTIVE(TR_BARRIER)}, 2));
    OK(tr_leave(r->group));
}

static void work_can_be_posted(void **state)
{
    (void)state;
    run_everywhere(post_many, NULL);
}

/* ---- Groups within groups, and again ------------------------------------------------------------------------------ */

static void split_and_join_again(rank *r)
{
    for (int turn = 0; turn < 3; turn++) {
        tr_group *part = tr_group_split(r->group, turn == 0 ? r->hosts[r->number] : r->number % 2, -r->number);
        OK(tr_status_of(part));
        int64_t x[3] = {1, r->number, r->hosts[r->number]}, wanted[3] = {0};
        for (int other = 0; other < r->world; other++) {
            bool with = turn == 0 ? r->hosts[other] == x[2] : other % 2 == r->number % 2;
            int64_t theirs[3] = {1, other, r->hosts[other]};
            for (int i = 0; i < 3 && with; i++) wanted[i] += theirs[i];
        }
        OK(tr_all_reduce(part, x, 3, .dtype = TR_I64));
        CHECK(memcmp(x, wanted, sizeof x) == 0 && x[0] == tr_world_size(part));
        OK(tr_leave(part));
        OK(tr_leave(r->group));
        r->group = join_group(r, NULL);
        OK(tr_status_of(r->group));
    }
    OK(tr_leave(r->group));
}

static void groups_can_be_split_and_joined_again(void **state)
{
    (void)state;
    run_everywhere(split_and_join_again, NULL);
}

/* ---- What goes wrong ---------------------------------------------------------------------------------------------- */

typedef struct mismatch {
    tr_collective most, odd; /* what the odd one calls, and the others */
    const char *words[2];
} mismatch;

typedef struct odd_rank {
    const mismatch *mismatch;
    int odd;
} odd_rank;

static void differ(rank *r)
{
    static _Thread_local int64_t in[20000 * RANKS_MOST], out[20000 * RANKS_MOST];
    static const int64_t counts[RANKS_MOST] = {3, 3, 3, 3, 3, 3, 3, 3};
    const odd_rank *o = r->arg;
    tr_collective c = r->number == o->odd ? o->mismatch->odd : o->mismatch->most;
    c.size = sizeof c;
    c.in = in;
    c.out = c.kind == TR_ALL_REDUCE ? in : out;
    if (c.kind == TR_GATHER_V) c.out_counts = counts;
    if (c.root < 0) c.root = r->number;
    tr_status status = tr_barrier(r->group); /* all have joined; who is the last to hear of it may hear of the rest first */
    if (status == TR_OK) status = tr_run_collective(r->group, &c);
    for (int turn = 0; turn < 3 && status == TR_OK; turn++) status = tr_barrier(r->group); /* who only sends */
    CHECK(status == TR_MISMATCH);
    SAYS(o->mismatch->words[0]);
    SAYS(o->mismatch->words[1]);
    CHECK(tr_barrier(r->group) == TR_MISMATCH);
    SAYS("is broken");
}

static void different_calls_are_an_error_everywhere(void **state)
{
    (void)state;
    static const mismatch mismatches[] = {
        {{.kind = TR_ALL_REDUCE, .count = 4}, {.kind = TR_ALL_REDUCE, .count = 5}, {"f32[4]", "f32[5]"}},
        {{.kind = TR_ALL_REDUCE, .count = 4}, {.kind = TR_ALL_REDUCE, .count = 20000}, {"f32[4]", "f32[20000]"}},
        {{.kind = TR_ALL_REDUCE, .count = 4}, {.kind = TR_ALL_REDUCE, .count = 4, .op = TR_MAX}, {"sum of", "max of"}},
        {{.kind = TR_ALL_REDUCE, .count = 4}, {.kind = TR_BARRIER}, {"all_reduce #2", "barrier #2"}},
        {{.kind = TR_BROADCAST, .count = 4}, {.kind = TR_BROADCAST, .count = 4, .root = -1}, {"broadcast #2", "from rank"}},
        {{.kind = TR_ALL_REDUCE, .count = 4}, {.kind = TR_GATHER, .count = 4}, {"all_reduce #2", "gather #2"}},
        {{.kind = TR_GATHER, .count = 4}, {.kind = TR_REDUCE_SCATTER, .count = 4}, {"gather #2", "reduce_scatter #2"}},
        {{.kind = TR_GATHER_V, .count = 3}, {.kind = TR_GATHER_V, .count = 2}, {"gives 2 elements", "gather_v #2"}},
    };
    for (size_t d = 0; d < sizeof mismatches / sizeof *mismatches; d++) {
        for (int l = 0; l < LAYOUTS; l++) {
            odd_rank o = {&mismatches[d], 1 + (int)d % (layouts[l].world - 1)};
            run_hosts(layouts[l].hosts, layouts[l].world, differ, &o);
        }
    }
}

/* One call more of one kind on a rank: its next call meets the others' same call of an earlier number. */
static void run_ahead(rank *r)
{
    static _Thread_local float x[4 * RANKS_MOST], y[4 * RANKS_MOST];
    tr_status status = tr_barrier(r->group);
    if (r->number == 1 && status == TR_OK) status = tr_gather(r->group, x, y, 4, .root = r->world - 1);
    for (int turn = 0; turn < 3 && status == TR_OK; turn++) status = tr_all_reduce(r->group, x, 4);
    CHECK(status == TR_MISMATCH);
    SAYS("gather #2");
    SAYS("all_reduce #2");
}

static void calls_of_different_numbers_do_not_meet(void **state)
{
    (void)state;
    run_everywhere(run_ahead, NULL);
}

static void a_rank_that_stays_away_is_a_timeout(void **state)
{
    (void)state;
    run_everywhere(stay_away, NULL);
}

static void a_rank_that_leaves_early_is_an_error(void **state)
{
    (void)state;
    run_everywhere(leave_early, NULL);
}

/* Rank 1 gives up without a word; the others wait for different ranks, by different ways. */
static void drop_the_group(rank *r)
{
    float x[4] = {0};
    tr_status status = tr_barrier(r->group);
    if (r->number == 1) {
        tr_all_reduce_async(r->group, x, 4);
        usleep(50000);
        return;
    }
    bool receives = r->number == r->world - 1;
    if (status == TR_OK) status = receives ? tr_recv(r->group, x, 4, .peer = 0) : tr_barrier(r->group);
    CHECK(status == TR_PEER || status == TR_MISMATCH);
    if (status == TR_PEER) SAYS("rank 1 (pid ");
    if (status == TR_PEER) SAYS(") gave up group 'world': the program dropped the group");
}

/* A rank's own failure, whatever its status, is to the others the loss of that rank. */
static void give_up(rank *r)
{
    const tr_status *own = r->arg;
    OK(pass_barrier_together(r->group, r->store));
    if (r->number == r->world - 1) {
        tr__fail(*own, "the disk is full");
        tr__group_give_up(r->group);
        CHECK(tr_barrier(r->group) == *own);
        SAYS("group 'world' is broken: the disk is full");
        return;
    }
    char name[32];
    snprintf(name, sizeof name, "rank %d (pid ", r->world - 1);
    CHECK(tr_barrier(r->group) == TR_PEER);
    SAYS(name);
    SAYS(") gave up group 'world': the disk is full");
    CHECK(tr_barrier(r->group) == TR_PEER);
    SAYS("group 'world' is broken: rank ");
}

static void a_rank_that_gives_up_is_a_lost_peer(void **state)
{
    (void)state;
    const tr_status statuses[] = {TR_IO, TR_FORMAT, TR_TIMEOUT, TR_CANCELLED};
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++) {
        run_everywhere(give_up, &statuses[i]);
        run(3, give_up, &statuses[i]);
        run_tcp(3, give_up, NULL, &statuses[i]);
    }
}

static void a_group_that_is_dropped_wakes_everyone(void **state)
{
    (void)state;
    run_everywhere(drop_the_group, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_collective_on_every_layout),
        cmocka_unit_test(every_type_and_operation),
        cmocka_unit_test(narrow_sums_are_rounded_once),
        cmocka_unit_test(large_buffers_have_the_same_bits_everywhere),
        cmocka_unit_test(collectives_work_in_place),
        cmocka_unit_test(buffers_may_be_shared_or_private),
        cmocka_unit_test(nobody_leaves_a_barrier_early),
        cmocka_unit_test(ranks_send_to_each_other),
        cmocka_unit_test(work_can_be_posted),
        cmocka_unit_test(groups_can_be_split_and_joined_again),
        cmocka_unit_test(different_calls_are_an_error_everywhere),
        cmocka_unit_test(calls_of_different_numbers_do_not_meet),
        cmocka_unit_test(a_rank_that_stays_away_is_a_timeout),
        cmocka_unit_test(a_rank_that_leaves_early_is_an_error),
        cmocka_unit_test(a_rank_that_gives_up_is_a_lost_peer),
        cmocka_unit_test(a_group_that_is_dropped_wakes_everyone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
