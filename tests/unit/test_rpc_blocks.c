/* Tensors that go to and fro in shared memory: ranks as threads, which see each other's blocks at the same addresses. */
#include "comm_ranks.h"

#include "base/thread.h"
#include "rpc/agent.h"
#include "tensor/tensor.h"

#include <trireme/autograd.h>
#include <trireme/ops.h>
#include <trireme/optim.h>
#include <trireme/rpc.h>

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { FLOATS = 30000 };

/* ---- Functions that are called ----------------------------------------------------------------------------------- */

static void *_Atomic seen;         /* where the latest function's tensor lay */
static tr_tensor *_Atomic of_mine; /* what a function has kept */

static tr_tensor *echo(tr_tensor *x)
{
    atomic_store(&seen, tr_data(x));
    return x;
}
TR_RPC(echo, TENSOR, RETURNS(TENSOR));

static tr_tensor *count_up(tr_tensor *x)
{
    float *v = tr_data(x);
    for (int64_t i = 0; i < tr_numel(x); i++) v[i] += 1;
    return echo(x);
}
TR_RPC(count_up, TENSOR, RETURNS(TENSOR));

static tr_tensor *in_rows(tr_tensor *x)
{
    return tr_reshape(echo(x), TR_SHAPE(100, -1));
}
TR_RPC(in_rows, TENSOR, RETURNS(TENSOR));

static tr_tensor *a_little_of(tr_tensor *x)
{
    return tr_slice(echo(x), 0, 0, FLOATS / 4);
}
TR_RPC(a_little_of, TENSOR, RETURNS(TENSOR));

static tr_tensor *the_end_of(tr_tensor *x)
{
    return tr_slice(echo(x), 0, 100, FLOATS);
}
TR_RPC(the_end_of, TENSOR, RETURNS(TENSOR));

static tr_tensor *transposed(tr_tensor *x)
{
    return tr_transpose(tr_reshape(echo(x), TR_SHAPE(100, -1)), 0, 1);
}
TR_RPC(transposed, TENSOR, RETURNS(TENSOR));

static tr_tensor *keep_it(tr_tensor *x)
{
    atomic_store(&of_mine, tr_keep(x));
    return echo(x);
}
TR_RPC(keep_it, TENSOR, RETURNS(TENSOR));

static tr_tensor *keep_rows(tr_tensor *x)
{
    atomic_store(&of_mine, tr_keep(in_rows(x)));
    return x;
}
TR_RPC(keep_rows, TENSOR, RETURNS(TENSOR));

static tr_tensor_list *same_list(tr_tensor_list *list)
{
    atomic_store(&seen, tr_data(tr_list_at(list, 0)));
    return list;
}
TR_RPC(same_list, TENSORS, RETURNS(TENSORS));

static tr_tensor_list *twice_in_a_list(tr_tensor *x)
{
    tr_tensor_list *list = tr_list_new();
    if (tr_list_add(list, "a", echo(x)) != TR_OK || tr_list_add(list, "b", x) != TR_OK) return NULL;
    return list;
}
TR_RPC(twice_in_a_list, TENSOR, RETURNS(TENSORS));

static tr_tensor *relay(tr_tensor *x)
{
    return tr_future_tensor(tr_rpc_sync(tr_rpc_current(), "w2", "echo", x));
}
TR_RPC(relay, TENSOR, RETURNS(TENSOR));

static tr_tensor *relay_and_return(tr_tensor *x)
{
    return tr_status_of(relay(x)) == TR_OK ? x : NULL;
}
TR_RPC(relay_and_return, TENSOR, RETURNS(TENSOR));

static atomic_bool keeps;

/* Makes a tensor; once it keeps that, too. */
static tr_tensor *fives(int64_t n)
{
    tr_tensor *x = tr_add(tr_full(2, TR_SHAPE(n)), tr_full(3, TR_SHAPE(n)));
    if (atomic_exchange(&keeps, false)) atomic_store(&of_mine, tr_keep(x));
    return echo(x);
}
TR_RPC(fives, I64, RETURNS(TENSOR));

/* A step of an optimizer that is made for it. */
static tr_tensor *local_train(tr_tensor *w)
{
    tr_tensor *p = tr_require_grad(tr_clone(w));
    tr_tensor_list *list = tr_list_new();
    if (tr_list_add(list, "p", p) != TR_OK) return NULL;
    tr_optimizer *adam = tr_adam(list, .lr = 0.5);
    if (tr_backward(tr_sum(p)) != TR_OK || tr_step(adam) != TR_OK) return NULL;
    TR_NO_GRAD;
    return tr_clone(tr_detach(p));
}
TR_RPC(local_train, TENSOR, RETURNS(TENSOR));

enum { KEPT = 80 };
static tr_tensor *collection[KEPT];
static int collected;

/* Keeps another tensor of the size of its result. */
static tr_tensor *collect(int64_t n)
{
    collection[collected++] = tr_keep(tr_full(1, TR_SHAPE(n)));
    return echo(tr_full(5, TR_SHAPE(n)));
}
TR_RPC(collect, I64, RETURNS(TENSOR));

static void scribble(void *data, void *user)
{
    (void)user;
    memset(data, 0x7f, FLOATS * sizeof(float));
}

/* Its argument, and a tensor whose memory an object of its scope ends. */
static tr_tensor_list *lend(tr_tensor *x)
{
    static float lent[FLOATS];
    for (int i = 0; i < FLOATS; i++) lent[i] = (float)i;
    tr_tensor_list *list = tr_list_new();
    tr_tensor *owner = tr_wrap(lent, TR_SHAPE(FLOATS), TR_F32, scribble, NULL);
    tr_tensor *borrower = tr_wrap((float *)tr_data(owner), TR_SHAPE(FLOATS), TR_F32, NULL, NULL);
    return tr_list_add(list, "a", x) == TR_OK && tr_list_add(list, "b", borrower) == TR_OK ? list : NULL;
}
TR_RPC(lend, TENSOR, RETURNS(TENSORS));

static atomic_int made_by_callback; /* 1: in memory of its own; 2: elsewhere */

static void make_one(tr_future *future, void *user)
{
    TR_SCOPE;
    (void)future;
    (void)user;
    tr_tensor *x = tr_empty(TR_SHAPE(FLOATS));
    atomic_store(&made_by_callback, !tr__bad(x) && x->storage->kind == TR__OWNED ? 1 : 2);
}

/* Waits for a call, whose callback this thread runs most often. */
static tr_tensor *wait_there(int64_t n)
{
    tr_future *call = tr_rpc_async(tr_rpc_current(), "w0", "fives", n / 2);
    atomic_store(&made_by_callback, 0);
    if (tr_future_then(call, make_one, NULL) != TR_OK || tr_future_wait(call) != TR_OK) return NULL;
    while (!atomic_load(&made_by_callback)) sched_yield();
    return tr_full(5, TR_SHAPE(n));
}
TR_RPC(wait_there, I64, RETURNS(TENSOR));

static tr_rpc *start(const rank *r)
{
    static const tr_rpc_function *const all[] = {&echo_rpc, &count_up_rpc, &in_rows_rpc, &a_little_of_rpc, &the_end_of_rpc,
        &transposed_rpc, &keep_it_rpc, &keep_rows_rpc, &same_list_rpc, &twice_in_a_list_rpc, &relay_rpc, &relay_and_return_rpc,
        &fives_rpc, &local_train_rpc, &collect_rpc, &lend_rpc, &wait_there_rpc};
    char name[16];
    snprintf(name, sizeof name, "w%d", r->number);
    tr_rpc *rpc = tr_rpc_start(r->group, .name = name);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (tr_rpc_register(rpc, all[i]) != TR_OK) return rpc;
    return tr_barrier(r->group) == TR_OK ? rpc : NULL;
}

static tr_tensor *numbers(void)
{
    return tr_arange(FLOATS, TR_F32, tr_cpu(0));
}

/* Has it n numbers that count up from the first? */
static bool counts(const tr_tensor *x, int64_t n, float first)
{
    const float *v = tr_data(x);
    if (tr_numel(x) != n) return false;
    for (int64_t i = 0; i < n; i++)
        if (v[i] != first + (float)i) return false;
    return true;
}

/* ---- What comes back as it was sent ------------------------------------------------------------------------------ */

static void get_back(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = start(r);
    OK(tr_status_of(rpc));
    tr_tensor *x = numbers();
    for (int turn = 0; turn < 3 && r->number == 0; turn++) {
        TR_SCOPE;
        tr_tensor *same = tr_future_tensor(tr_rpc_sync(rpc, "w1", "echo", x));
        CHECK(tr_data(same) == atomic_load(&seen) && counts(same, FLOATS, 0));
        tr_tensor *more = tr_future_tensor(tr_rpc_sync(rpc, "w1", "count_up", x));
        CHECK(tr_data(more) == atomic_load(&seen) && counts(more, FLOATS, 1) && counts(x, FLOATS, 0) && counts(same, FLOATS, 0));
        tr_tensor *rows = tr_future_tensor(tr_rpc_sync(rpc, "w1", "in_rows", x));
        CHECK(tr_data(rows) == atomic_load(&seen) && counts(rows, FLOATS, 0) && tr_size(rows, 1) == FLOATS / 100);
        tr_tensor_list *list = tr_list_new();
        OK(tr_list_add(list, "x", x));
        OK(tr_list_add(list, "y", more));
        tr_tensor_list *back = tr_future_tensors(tr_rpc_sync(rpc, "w1", "same_list", list));
        CHECK(tr_data(tr_list_at(back, 0)) == atomic_load(&seen) && counts(tr_list_at(back, 0), FLOATS, 0));
        CHECK(counts(tr_list_at(back, 1), FLOATS, 1) && tr_data(tr_list_at(back, 1)) != tr_data(more));
    }
    OK(tr_rpc_stop(rpc));
}

static void an_argument_that_comes_back_is_not_copied(void **state)
{
    (void)state;
    run(2, get_back, NULL);
}

/* ---- What is copied all the same --------------------------------------------------------------------------------- */

static void get_copies(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = start(r);
    OK(tr_status_of(rpc));
    tr_tensor *x = numbers();
    for (int rows = 0; rows < 2 && r->number == 0; rows++) { /* kept there: nobody sees what the other writes */
        tr_tensor *y = tr_future_tensor(tr_rpc_sync(rpc, "w1", rows ? "keep_rows" : "keep_it", x));
        tr_tensor *kept = atomic_load(&of_mine);
        CHECK(tr_data(y) != atomic_load(&seen) && tr_data(kept) == atomic_load(&seen));
        OK(tr_fill(y, 7));
        CHECK(counts(kept, FLOATS, 0));
        OK(tr_fill(kept, 8));
        CHECK(((float *)tr_data(y))[0] == 7);
        tr_release(kept);
    }
    if (r->number == 0) {
        tr_tensor *little = tr_future_tensor(tr_rpc_sync(rpc, "w1", "a_little_of", x));
        CHECK(tr_data(little) != atomic_load(&seen) && counts(little, FLOATS / 4, 0));
        tr_tensor *end = tr_future_tensor(tr_rpc_sync(rpc, "w1", "the_end_of", x));
        CHECK(counts(end, FLOATS - 100, 100));
        tr_tensor *columns = tr_future_tensor(tr_rpc_sync(rpc, "w1", "transposed", x));
        CHECK(tr_size(columns, 1) == 100 && ((float *)tr_data(columns))[1] == FLOATS / 100);
        tr_tensor_list *two = tr_future_tensors(tr_rpc_sync(rpc, "w1", "twice_in_a_list", x));
        tr_tensor *a = tr_list_at(two, 0), *b = tr_list_at(two, 1);
        CHECK(tr_data(a) != tr_data(b) && counts(a, FLOATS, 0) && counts(b, FLOATS, 0));
        tr_tensor_list *lent = tr_future_tensors(tr_rpc_sync(rpc, "w1", "lend", x));
        CHECK(counts(tr_list_at(lent, 0), FLOATS, 0) && counts(tr_list_at(lent, 1), FLOATS, 0));
    }
    OK(tr_rpc_stop(rpc));
}

static void what_stays_there_is_copied(void **state)
{
    (void)state;
    run(2, get_copies, NULL);
}

static void pass_around(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = start(r);
    OK(tr_status_of(rpc));
    tr_tensor *x = numbers();
    for (int turn = 0; turn < 3 && r->number == 0; turn++) {
        CHECK(counts(tr_future_tensor(tr_rpc_sync(rpc, "w1", "relay", x)), FLOATS, 0));
        CHECK(counts(tr_future_tensor(tr_rpc_sync(rpc, "w1", "relay_and_return", x)), FLOATS, 0));
    }
    OK(tr_rpc_stop(rpc));
}

static void workers_pass_on_what_others_sent_them(void **state)
{
    (void)state;
    run(3, pass_around, NULL);
}

/* ---- What a function makes --------------------------------------------------------------------------------------- */

static bool is_full_of(const tr_tensor *x, int64_t n, float value)
{
    const float *v = tr_data(x);
    for (int64_t i = 0; i < n; i++)
        if (v[i] != value) return false;
    return tr_numel(x) == n;
}

/* The first result of its size is copied, one that is kept, and the next. */
static void get_results(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = start(r);
    OK(tr_status_of(rpc));
    for (int turn = 0; turn < 6 && r->number == 0; turn++) {
        TR_SCOPE;
        bool kept = turn == 2;
        atomic_store(&keeps, kept);
        tr_tensor *x = tr_future_tensor(tr_rpc_sync(rpc, "w1", "fives", FLOATS)), *mine = atomic_exchange(&of_mine, NULL);
        CHECK(is_full_of(x, FLOATS, 5) && (tr_data(x) == atomic_load(&seen)) == (turn == 1 || turn > 3));
        OK(tr_fill(x, 6));
        CHECK(!kept || is_full_of(mine, FLOATS, 5));
        tr_release(mine);
    }
    for (int64_t n = FLOATS / 2; n < FLOATS && r->number == 0; n += FLOATS / 8)
        CHECK(is_full_of(tr_future_tensor(tr_rpc_sync(rpc, "w1", "fives", n)), n, 5));
    OK(tr_rpc_stop(rpc));
}

static void results_are_made_where_the_caller_can_have_them(void **state)
{
    (void)state;
    atomic_store(&of_mine, NULL);
    run(2, get_results, NULL);
}

static void train_there(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = start(r);
    OK(tr_status_of(rpc));
    tr_tensor *w = tr_full(1, TR_SHAPE(FLOATS)), *first = NULL;
    for (int turn = 0; turn < 4 && r->number == 0; turn++) {
        tr_tensor *x = tr_future_tensor(tr_rpc_sync(rpc, "w1", "local_train", w));
        if (!first) first = x;
        OK(tr_status_of(x));
        CHECK(is_full_of(x, FLOATS, ((const float *)tr_data(first))[0]));
    }
    OK(tr_rpc_stop(rpc));
}

static void an_optimizer_that_a_function_makes_begins_at_zero(void **state)
{
    (void)state;
    run(2, train_there, NULL);
}

/* Worker 1 makes its results in blocks from the second call on, as long as what it has kept lies in less than 64 of them. */
static void let_it_collect(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = start(r);
    OK(tr_status_of(rpc));
    for (int turn = 0; turn < KEPT && r->number == 0; turn++) {
        TR_SCOPE;
        tr_tensor *x = tr_future_tensor(tr_rpc_sync(rpc, "w1", "collect", FLOATS));
        CHECK(is_full_of(x, FLOATS, 5) && (tr_data(x) == atomic_load(&seen)) == (turn > 0 && turn < 64));
    }
    for (int i = 0; i < KEPT && r->number == 0; i++) {
        CHECK(is_full_of(collection[i], FLOATS, 1));
        tr_release(collection[i]);
    }
    if (r->number == 0) {
        tr_tensor *x = tr_future_tensor(tr_rpc_sync(rpc, "w1", "fives", FLOATS));
        CHECK(is_full_of(x, FLOATS, 5));
        x = tr_future_tensor(tr_rpc_sync(rpc, "w1", "fives", FLOATS));
        CHECK(tr_data(x) == atomic_load(&seen));
    }
    OK(tr_rpc_stop(rpc));
}

static void a_function_keeps_only_so_many_blocks(void **state)
{
    (void)state;
    collected = 0;
    run(2, let_it_collect, NULL);
}

static void call_back_there(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = start(r);
    OK(tr_status_of(rpc));
    for (int turn = 0; turn < 4 && r->number == 0; turn++) {
        CHECK(is_full_of(tr_future_tensor(tr_rpc_sync(rpc, "w1", "wait_there", FLOATS)), FLOATS, 5));
        CHECK(atomic_load(&made_by_callback) == 1);
    }
    OK(tr_rpc_stop(rpc));
}

static void what_a_callback_makes_is_no_result(void **state)
{
    (void)state;
    run(2, call_back_there, NULL);
}

/* ---- Whose a block is -------------------------------------------------------------------------------------------- */

static void hold_results(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = start(r);
    OK(tr_status_of(rpc));
    if (r->number == 0) {
        tr_tensor *x = numbers(), *first, *second;
        {
            TR_SCOPE;
            first = tr_keep(tr_future_tensor(tr_rpc_sync(rpc, "w1", "echo", x)));
        }
        {
            TR_SCOPE;
            second = tr_keep(tr_future_tensor(tr_rpc_sync(rpc, "w1", "count_up", first)));
        }
        const void *place = tr_data(first);
        CHECK(place != tr_data(second) && counts(first, FLOATS, 0) && counts(second, FLOATS, 1));
        tr_release(first);
        tr_tensor *third = tr_future_tensor(tr_rpc_sync(rpc, "w1", "echo", x));
        CHECK(tr_data(third) == place && counts(third, FLOATS, 0) && counts(second, FLOATS, 1));
        tr_release(second);
    }
    OK(tr_rpc_stop(rpc));
}

static void a_block_is_used_again_when_its_result_goes(void **state)
{
    (void)state;
    run(2, hold_results, NULL);
}

static void hold_beyond_the_end(rank *r)
{
    tr_tensor *result = NULL;
    {
        TR_SCOPE;
        tr_rpc *rpc = start(r);
        OK(tr_status_of(rpc));
        if (r->number == 0) result = tr_keep(tr_future_tensor(tr_rpc_sync(rpc, "w1", "count_up", numbers())));
        OK(tr_rpc_stop(rpc));
    }
    OK(tr_barrier(r->group)); /* the agents are gone, and the blocks with them */
    if (r->number == 0) CHECK(counts(result, FLOATS, 1));
    tr_release(result);
}

static void results_outlive_the_agent(void **state)
{
    (void)state;
    run(2, hold_beyond_the_end, NULL);
}

/* A worker may send back what it was sent, and only that; and a process that was forked meanwhile makes nothing in blocks. */
static void come_back(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = start(r);
    OK(tr_status_of(rpc));
    if (r->number == 0) {
        tr__rpc_link *link = &rpc->links[1];
        tr__block_target target = {rpc, link, tr__forks() - 1};
        tr__storage made = {.bytes = FLOATS};
        CHECK(!tr__block_make(&target, &made));
        target.forks = tr__forks();
        CHECK(tr__block_make(&target, &made));
        tr__rpc_arrived piece;
        CHECK(!tr__block_came_back(link, (uint64_t)(uintptr_t)made.user, FLOATS, &piece));
        made.release(made.data, made.user);
        uint64_t segment;
        void *memory;
        tr__rpc_shared_block *b = tr__block_take(rpc, link, FLOATS, &memory, &segment);
        CHECK(b && memory == made.data);
        CHECK(!tr__block_came_back(link, segment, FLOATS, &piece)); /* it is being filled, */
        atomic_store(&((tr__rpc_block_head *)((char *)memory - TR__RPC_BLOCK_HEAD))->busy, 0); /* whatever the worker says: */
        void *other;
        uint64_t other_segment;
        tr__rpc_shared_block *b2 = tr__block_take(rpc, link, FLOATS, &other, &other_segment);
        CHECK(b2 && b2 != b);
        tr__block_give_back(b2);
        tr__block_filled(b);
        tr__block_left(b);
        CHECK(tr__block_came_back(link, segment, FLOATS, &piece) && piece.memory == memory);
        tr__rpc_arrived again;
        CHECK(!tr__block_came_back(link, segment, FLOATS, &again));
        piece.release(piece.memory, piece.user);
    }
    OK(tr_rpc_stop(rpc));
}

static void only_what_was_sent_can_come_back(void **state)
{
    (void)state;
    run(2, come_back, NULL);
}

/* ---- Copying by both sides --------------------------------------------------------------------------------------- */

enum { CHUNK = 256 << 10, CHUNKS = 4, PIECE = CHUNKS * CHUNK - 100 };

/* As a receiver of another process does it that has taken the last chunk, and been stopped with it (progress: blocks.c). */
static void stand_still(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = start(r);
    OK(tr_status_of(rpc));
    static const uint64_t reading = (uint64_t)1 << 48, got = (uint64_t)2 << 48, refused = (uint64_t)3 << 48;
    const uint64_t afterwards[] = {refused, got, refused};
    for (int way = 0; way < 3 && r->number == 0; way++) {
        uint64_t segment;
        void *memory;
        tr__rpc_shared_block *b = tr__block_take(rpc, &rpc->links[1], PIECE, &memory, &segment);
        CHECK(b);
        char *piece = malloc(PIECE);
        memset(piece, 1, PIECE);
        memset(memory, 0, PIECE);
        tr__rpc_block_head *head = (tr__rpc_block_head *)((char *)memory - TR__RPC_BLOCK_HEAD);
        tr__block_offer(b, piece, PIECE);
        CHECK(atomic_load(&head->copying) && atomic_load(&head->progress) == (uint64_t)CHUNKS << 24);
        uint64_t taken = (uint64_t)(CHUNKS - 1) << 24, state = way == 0 ? reading : afterwards[way];
        atomic_store(&head->progress, taken | state);
        tr__block_copy(b, piece, PIECE);
        CHECK(!atomic_load(&head->copying) && atomic_load(&head->progress) == (taken | (CHUNKS - 1) | afterwards[way]));
        size_t there = afterwards[way] == refused ? PIECE : PIECE / CHUNK * CHUNK;
        for (size_t i = 0; i < PIECE; i++) CHECK(((char *)memory)[i] == (i < there));
        tr__block_give_back(b);
        free(piece);
    }
    OK(tr_rpc_stop(rpc));
}

static void a_sender_does_not_wait_for_a_receiver_that_stands_still(void **state)
{
    (void)state;
    run(2, stand_still, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_argument_that_comes_back_is_not_copied),
        cmocka_unit_test(what_stays_there_is_copied),
        cmocka_unit_test(workers_pass_on_what_others_sent_them),
        cmocka_unit_test(results_are_made_where_the_caller_can_have_them),
        cmocka_unit_test(an_optimizer_that_a_function_makes_begins_at_zero),
        cmocka_unit_test(a_function_keeps_only_so_many_blocks),
        cmocka_unit_test(what_a_callback_makes_is_no_result),
        cmocka_unit_test(a_block_is_used_again_when_its_result_goes),
        cmocka_unit_test(only_what_was_sent_can_come_back),
        cmocka_unit_test(results_outlive_the_agent),
        cmocka_unit_test(a_sender_does_not_wait_for_a_receiver_that_stands_still),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
