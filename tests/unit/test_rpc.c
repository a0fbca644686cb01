/* Remote procedure calls: ranks as threads. */
#include "comm_ranks.h"
#include "sanitized.h"

#include "rpc/agent.h"

#include <trireme/autograd.h>
#include <trireme/ops.h>
#include <trireme/rpc.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- Functions that are called ----------------------------------------------------------------------------------- */

static tr_tensor *echo(tr_tensor *x)
{
    return x;
}
TR_RPC(echo, TENSOR, RETURNS(TENSOR));

static int64_t add(int64_t a, int64_t b)
{
    return a + b;
}
TR_RPC(add, I64, I64, RETURNS(I64));

static double half(double x)
{
    return x / 2;
}
TR_RPC(half, F64, RETURNS(F64));

static const char *greet(const char *name)
{
    static _Thread_local char text[64];
    snprintf(text, sizeof text, "hello, %s", name);
    return text;
}
TR_RPC(greet, STRING, RETURNS(STRING));

static tr_bytes same_bytes(tr_bytes b)
{
    return b;
}
TR_RPC(same_bytes, BYTES, RETURNS(BYTES));

static tr_tensor_list *same_list(tr_tensor_list *list)
{
    return list;
}
TR_RPC(same_list, TENSORS, RETURNS(TENSORS));

static tr_status nothing(void)
{
    return TR_OK;
}
TR_RPC(nothing, RETURNS(NONE));

static tr_status broken(void)
{
    return tr_fail(TR_SHAPE, "the sails do not fit");
}
TR_RPC(broken, RETURNS(NONE));

static tr_tensor *bad_tensor(void)
{
    return tr_zeros(TR_SHAPE(-3));
}
TR_RPC(bad_tensor, RETURNS(TENSOR));

static tr_status count_up(void *state, int64_t by, int64_t *out)
{
    *out = __atomic_add_fetch((int64_t *)state, by, __ATOMIC_SEQ_CST);
    return TR_OK;
}
TR_RPC_WITH_STATE(count_up, I64, TRIES(I64));

/* f(n) = f(n - 1) + n, each step on the next worker. It begins as on a thread of its own, also on one that waits in another call. */
static tr_status sum_round(int64_t n, int64_t *out)
{
    tr_rpc *rpc = tr_rpc_current();
    *out = 0;
    if (tr_autocast() != TR_F32 || !tr_grad_enabled()) return tr_fail(TR_STATE, "sum_round: in another call's mode");
    if (n == 0) return TR_OK;
    TR_AUTOCAST(TR_BF16);
    TR_NO_GRAD;
    int next = (tr_rpc_rank(rpc) + 1) % tr_rpc_workers(rpc);
    tr_future *f = tr_rpc_sync(rpc, tr_rpc_name(rpc, next), "sum_round", n - 1);
    *out = tr_future_i64(f) + n;
    return tr_future_wait(f);
}
TR_RPC(sum_round, I64, TRIES(I64));

static const tr_rpc_function *const all[] = {&echo_rpc, &add_rpc, &half_rpc, &greet_rpc, &same_bytes_rpc, &same_list_rpc,
    &nothing_rpc, &broken_rpc, &bad_tensor_rpc, &sum_round_rpc};

static tr_rpc *start(rank *r, int64_t *counter)
{
    char name[16];
    snprintf(name, sizeof name, "w%d", r->number);
    tr_rpc *rpc = tr_rpc_start(r->group, .name = name);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (tr_rpc_register(rpc, all[i]) != TR_OK) return rpc;
    tr_status status = tr_rpc_register(rpc, &count_up_rpc, .state = counter);
    (void)status;
    return rpc;
}

/* ---- All kinds of values ------------------------------------------------------------------------------------------ */

static void kinds(rank *r)
{
    TR_SCOPE;
    int64_t counter = 0;
    tr_rpc *rpc = start(r, &counter);
    OK(tr_status_of(rpc));
    OK(tr_barrier(r->group));
    for (int to = 0; to < r->world; to++) {
        const char *name = tr_rpc_name(rpc, to);
        CHECK(tr_future_i64(tr_rpc_sync(rpc, name, "add", 40, 2)) == 42);
        CHECK(tr_future_f64(tr_rpc_sync(rpc, name, "half", 3.0)) == 1.5);
        const char *greeting = tr_future_string(tr_rpc_sync(rpc, name, "greet", "you"));
        CHECK(greeting && strcmp(greeting, "hello, you") == 0);
        OK(tr_future_wait(tr_rpc_sync(rpc, name, "nothing")));
        const int64_t sizes[] = {0, 1, 2, 3, 511, 512, 513, 100000, 3000000};
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            TR_SCOPE;
            tr_tensor *x = tr_arange(sizes[i], TR_I32, tr_cpu(0));
            tr_tensor *y = tr_future_tensor(tr_rpc_sync(rpc, name, "echo", x));
            OK(tr_status_of(y));
            CHECK(tr_dtype_of(y) == TR_I32 && tr_numel(y) == sizes[i] && y != x);
            CHECK(sizes[i] == 0 || memcmp(tr_data(x), tr_data(y), (size_t)sizes[i] * 4) == 0);
            tr_bytes b = {sizes[i] ? tr_data(x) : "", (size_t)sizes[i] * 4};
            tr_future *f = tr_rpc_sync(rpc, name, "same_bytes", b);
            tr_bytes c = tr_future_bytes(f);
            OK(tr_future_wait(f));
            CHECK(c.size == b.size && (!b.size || memcmp(b.data, c.data, b.size) == 0));
        }
        tr_tensor_list *list = tr_list_new();
        OK(tr_list_add(list, "a", tr_ones(TR_SHAPE(2, 3))));
        OK(tr_list_add(list, "b", tr_full(2, TR_SHAPE(1000), .dtype = TR_F64)));
        OK(tr_list_set_metadata(list, "key", "value"));
        tr_tensor_list *back = tr_future_tensors(tr_rpc_sync(rpc, name, "same_list", list));
        OK(tr_status_of(back));
        CHECK(tr_list_count(back) == 2 && tr_item(tr_future_tensor(tr_rpc_sync(rpc, name, "echo", tr_scalar(7, TR_F32)))) == 7);
        CHECK(strcmp(tr_list_metadata(back, "key"), "value") == 0);
    }
    OK(tr_rpc_stop(rpc));
}

static void values_of_all_kinds_come_back(void **state)
{
    (void)state;
    run(1, kinds, NULL);
    run(2, kinds, NULL);
    run(3, kinds, NULL);
}

/* ---- Errors ------------------------------------------------------------------------------------------------------- */

static void fail_in_all_ways(rank *r, tr_rpc *rpc, const char *to)
{
    CHECK(tr_future_wait(tr_rpc_sync(rpc, to, "broken")) == TR_SHAPE);
    SAYS("rpc: broken on \"");
    SAYS(to);
    SAYS("the sails do not fit");
    CHECK(tr_future_wait(tr_rpc_sync(rpc, to, "no_such", 1)) == TR_NOT_FOUND);
    SAYS("no function of that name");
    CHECK(tr_future_wait(tr_rpc_sync(rpc, to, "add", 1, 2.0)) == TR_INVALID);
    SAYS("it is i64, i64 -> i64, and was called with i64, f64");
    CHECK(!strstr(tr_error_message(), "reference"));
    CHECK(tr_future_wait(tr_rref_call(tr_remote(rpc, to, "half", 1.0), "add", 1)) == TR_INVALID);
    SAYS("and was called with f64, i64; the first is what the reference leads to");
    CHECK(tr_future_wait(tr_rpc_sync(rpc, to, "add", 1)) == TR_INVALID);
    CHECK(tr_status_of(tr_rpc_sync(rpc, to, "add", 1)) == TR_INVALID && tr_status_of(tr_rpc_sync(rpc, to, "add", 1, 2)) == TR_OK);
    CHECK(tr_future_wait(tr_rpc_sync(rpc, "nobody", "add", 1, 2)) == TR_NOT_FOUND);
    SAYS("there is no worker \"nobody\"");
    CHECK(tr_future_wait(tr_rpc_sync(rpc, to, "bad_tensor")) != TR_OK);
    CHECK(tr_future_i64(tr_rpc_sync(rpc, to, "half", 1.0)) == 0);
    SAYS("returned f64, not i64");
    tr_tensor *bad = tr_zeros(TR_SHAPE(-1));
    CHECK(tr_status_of(tr_future_tensor(tr_rpc_sync(rpc, to, "echo", bad))) != TR_OK);
    SAYS("rpc: echo on");
    CHECK(tr_future_i64(tr_rpc_sync(rpc, to, "add", 1, 2)) == 3); /* nothing is broken by all that */
    OK(tr_future_wait(NULL));
}

static void errors(rank *r)
{
    TR_SCOPE;
    int64_t counter = 0;
    tr_rpc *rpc = start(r, &counter);
    OK(tr_status_of(rpc));
    OK(tr_barrier(r->group));
    for (int to = 0; to < r->world; to++) fail_in_all_ways(r, rpc, tr_rpc_name(rpc, to));
    CHECK(tr_rpc_register(rpc, &add_rpc) == TR_STATE);
    SAYS("i64, i64 -> i64");
    OK(tr_rpc_stop(rpc));
    CHECK(tr_future_wait(tr_rpc_sync(rpc, "w0", "add", 1, 2)) == TR_STATE);
    SAYS("after tr_rpc_stop()");
    CHECK(tr_rpc_stop(rpc) == TR_STATE);
    CHECK(tr_status_of(tr_rpc_start(NULL)) == TR_INVALID);
}

static void failures_come_back_with_their_message(void **state)
{
    (void)state;
    run(2, errors, NULL);
}

static void same_names(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = tr_rpc_start(r->group, .name = r->number < 2 ? "twin" : "other");
    CHECK(tr_status_of(rpc) == TR_INVALID);
    SAYS("ranks 0 and 1 are both named \"twin\"");
}

static void two_workers_of_one_name_are_an_error_everywhere(void **state)
{
    (void)state;
    run(3, same_names, NULL);
}

/* ---- Many at once ------------------------------------------------------------------------------------------------- */

static void nested(rank *r)
{
    TR_SCOPE;
    int64_t counter = 0;
    tr_rpc *rpc = start(r, &counter);
    OK(tr_status_of(rpc));
    OK(tr_barrier(r->group));
    enum { DEPTH = THREADS_SANITIZED ? 40 : 100, AT_ONCE = 6 }; /* more than an agent has threads, where there is one */
    tr_future *f[AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++) f[i] = tr_rpc_async(rpc, tr_rpc_name(rpc, i % r->world), "sum_round", DEPTH + i);
    OK(tr_future_wait_all(f, AT_ONCE));
    for (int i = 0; i < AT_ONCE; i++) CHECK(tr_future_i64(f[i]) == (DEPTH + i) * (DEPTH + i + 1) / 2);
    OK(tr_rpc_stop(rpc));
}

static void calls_may_call_each_other_to_any_depth(void **state)
{
    (void)state;
    run(1, nested, NULL);
    run(3, nested, NULL);
}

typedef struct caller {
    tr_rpc *rpc;
    pthread_t thread;
    tr_status status;
} caller;

enum { CALLERS = 8, CALLS = 100 };

static void *call_often(void *arg)
{
    TR_SCOPE;
    caller *c = arg;
    for (int i = 0; i < CALLS && c->status == TR_OK; i++)
        c->status = tr_future_wait(tr_rpc_sync(c->rpc, i % 2 ? "w1" : "w0", "count_up", 1));
    return NULL;
}

static void count_done(tr_future *future, void *user)
{
    if (tr_future_wait(future) == TR_OK) __atomic_add_fetch((int *)user, 1, __ATOMIC_SEQ_CST);
}

static void crowd(rank *r)
{
    TR_SCOPE;
    int64_t counter = 0;
    tr_rpc *rpc = start(r, &counter);
    OK(tr_status_of(rpc));
    OK(tr_barrier(r->group));
    caller callers[CALLERS];
    for (int i = 0; i < CALLERS; i++) {
        callers[i] = (caller){.rpc = rpc};
        CHECK(pthread_create(&callers[i].thread, NULL, call_often, &callers[i]) == 0);
    }
    for (int i = 0; i < CALLERS; i++) pthread_join(callers[i].thread, NULL);
    for (int i = 0; i < CALLERS; i++) OK(callers[i].status);
    enum { AT_ONCE = 50 };
    int done = 0;
    tr_future *f[AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++) {
        f[i] = tr_rpc_async(rpc, "w1", "count_up", 0);
        OK(tr_future_then(f[i], count_done, &done));
    }
    int any = tr_future_wait_any(f, AT_ONCE);
    CHECK(any >= 0 && tr_future_done(f[any]));
    OK(tr_future_wait_all(f, AT_ONCE));
    OK(tr_rpc_stop(rpc));
    CHECK(__atomic_load_n(&done, __ATOMIC_SEQ_CST) == AT_ONCE);
    CHECK(counter == r->world * CALLERS * CALLS / 2);
}

static void many_threads_call_at_once(void **state)
{
    (void)state;
    const int apart[] = {0, 1};
    run(2, crowd, NULL);
    run_hosts(apart, 2, crowd, NULL);
}

static tr_status doze(int64_t ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
    return TR_OK;
}
TR_RPC(doze, I64, RETURNS(NONE));

typedef struct again {
    tr_rpc *rpc;
    tr_status status;
    atomic_bool over;
} again;

static void call_again(tr_future *future, void *user)
{
    TR_SCOPE;
    (void)future;
    again *a = user;
    a->status = tr_future_wait(tr_rpc_sync(a->rpc, "w1", "doze", 50));
    atomic_store(&a->over, true);
}

typedef struct partner {
    tr_future *future;
    atomic_int over;
} partner;

static void wait_for_other(tr_future *future, void *user)
{
    (void)future;
    partner *o = user;
    if (tr_future_wait(o->future) == TR_OK) atomic_fetch_add(&o->over, 1);
}

static void rest_a_while(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* Replies that come together: one's callback waits for the other. */
static void wait_for_each_other(rank *r, tr_rpc *rpc)
{
    TR_SCOPE;
    tr_future *a = tr_rpc_async(rpc, "w1", "doze", 1), *b = tr_rpc_async(rpc, "w1", "doze", 1);
    partner of_a = {.future = b}, of_b = {.future = a};
    OK(tr_future_then(a, wait_for_other, &of_a));
    OK(tr_future_then(b, wait_for_other, &of_b));
    while (!tr_future_done(a) || !tr_future_done(b)) rest_a_while();
    for (int ms = 0; ms < JOIN_MS && !(atomic_load(&of_a.over) && atomic_load(&of_b.over)); ms++) rest_a_while();
    CHECK(atomic_load(&of_a.over) && atomic_load(&of_b.over));
}

/* The reply to the second call comes when all threads sleep: somebody must be woken for it. */
static void wait_in_callbacks(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = start(r, &(int64_t){0});
    OK(tr_rpc_register(rpc, &doze_rpc));
    OK(tr_barrier(r->group));
    for (int i = 0; i < 10 && r->number == 0; i++) {
        again a = {.rpc = rpc};
        tr_future *f = tr_rpc_async(rpc, "w1", "doze", 0);
        OK(tr_future_then(f, call_again, &a));
        OK(tr_future_wait(f));
        while (!atomic_load(&a.over)) rest_a_while();
        OK(a.status);
        wait_for_each_other(r, rpc);
    }
    OK(tr_rpc_stop(rpc));
}

static void callbacks_may_wait(void **state)
{
    (void)state;
    run(2, wait_in_callbacks, NULL);
}

/* More than the queue and the ring hold. */
static void flood(rank *r)
{
    TR_SCOPE;
    enum { AT_ONCE = 60, MEDIUM = 400 };
    tr_rpc *rpc = tr_rpc_start(r->group, .queue_mb = 1);
    OK(tr_rpc_register(rpc, &echo_rpc));
    OK(tr_barrier(r->group));
    tr_tensor *large = tr_full(2, TR_SHAPE(100000)), *medium = tr_full(3, TR_SHAPE(500));
    const char *to = tr_rpc_name(rpc, 1 - r->number);
    tr_future *f[AT_ONCE + MEDIUM];
    for (int i = 0; i < AT_ONCE; i++) f[i] = tr_rpc_async(rpc, to, "echo", large);
    for (int i = 0; i < MEDIUM; i++) f[AT_ONCE + i] = tr_rpc_async(rpc, to, "echo", medium);
    OK(tr_future_wait_all(f, AT_ONCE + MEDIUM));
    for (int i = 0; i < AT_ONCE; i++) CHECK(((float *)tr_data(tr_future_tensor(f[i])))[99999] == 2);
    for (int i = 0; i < MEDIUM; i++) CHECK(((float *)tr_data(tr_future_tensor(f[AT_ONCE + i])))[499] == 3);
    OK(tr_rpc_stop(rpc));
}

static void who_calls_too_much_waits(void **state)
{
    (void)state;
    const int apart[] = {0, 1};
    run(2, flood, NULL);
    run_hosts(apart, 2, flood, NULL);
}

static atomic_int gate, holding;

static double hold(tr_tensor *x)
{
    atomic_fetch_add(&holding, 1);
    while (!atomic_load(&gate)) rest_a_while();
    return (double)tr_numel(x);
}
TR_RPC(hold, TENSOR, RETURNS(F64));

/* The third call waits for room, and `trireme why` would say for whom. */
static void fill_queue(rank *r)
{
    TR_SCOPE;
    enum { HELD = 3, FLOATS = 100000 };
    tr_rpc *rpc = tr_rpc_start(r->group, .queue_mb = 1);
    OK(tr_rpc_register(rpc, &hold_rpc));
    OK(tr_barrier(r->group));
    bool named = r->number == 0;
    for (int ms = 0; ms < JOIN_MS && !named; ms++) {
        char pid[24], *text;
        snprintf(pid, sizeof pid, "%d", (int)getpid());
        OK(tr_job_explain(pid, &text));
        named = strstr(text, "is what rank 0 waits for: it has not answered rpc hold on \"worker1\" (queue is full)");
        free(text);
        rest_a_while();
    }
    if (r->number == 1) atomic_store(&gate, 1);
    CHECK(named);
    tr_future *f[HELD];
    for (int i = 0; i < HELD && r->number == 0; i++) f[i] = tr_rpc_async(rpc, "worker1", "hold", tr_full(2, TR_SHAPE(FLOATS)));
    for (int i = 0; i < HELD && r->number == 0; i++) CHECK(tr_future_f64(f[i]) == FLOATS);
    OK(tr_rpc_stop(rpc));
}

static void a_wait_for_a_full_queue_is_recorded(void **state)
{
    (void)state;
    atomic_store(&gate, 0);
    run(2, fill_queue, NULL);
}

static atomic_int pouring;

/* Sends its caller more than fits into the queue, as that does here. */
static tr_status pour(void)
{
    enum { CALLS_OUT = 3, FLOATS = 200000 };
    tr_rpc *rpc = tr_rpc_current();
    tr_future *f[CALLS_OUT];
    atomic_fetch_add(&pouring, 1);
    while (atomic_load(&pouring) < 2) rest_a_while();
    for (int i = 0; i < CALLS_OUT; i++)
        f[i] = tr_rpc_async(rpc, tr_rpc_name(rpc, tr_rpc_caller()), "echo", tr_full(2, TR_SHAPE(FLOATS)));
    return tr_future_wait_all(f, CALLS_OUT);
}
TR_RPC(pour, RETURNS(NONE));

/* Each worker's only thread waits for room, which the other one's makes. */
static void pour_at_once(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = tr_rpc_start(r->group, .queue_mb = 1, .threads = 1);
    OK(tr_rpc_register(rpc, &echo_rpc));
    OK(tr_rpc_register(rpc, &pour_rpc));
    OK(tr_barrier(r->group));
    OK(tr_future_wait(tr_rpc_sync(rpc, tr_rpc_name(rpc, 1 - r->number), "pour")));
    OK(tr_rpc_stop(rpc));
}

static void a_function_that_waits_for_room_leaves_its_thread_to_others(void **state)
{
    (void)state;
    const int apart[] = {0, 1};
    atomic_store(&pouring, 0);
    run(2, pour_at_once, NULL);
    atomic_store(&pouring, 0);
    run_hosts(apart, 2, pour_at_once, NULL);
}

/* The worker has what its callers have given up, and so it counts. */
static void give_up_often(rank *r)
{
    TR_SCOPE;
    enum { FLOATS = 100000, FIT = 2 };
    tr_rpc *rpc = tr_rpc_start(r->group, .queue_mb = 1);
    OK(tr_rpc_register(rpc, &hold_rpc));
    OK(tr_barrier(r->group));
    tr_value x = tr_value_tensor(tr_full(2, TR_SHAPE(FLOATS)));
    tr_rpc_call c = {.size = sizeof c, .rpc = rpc, .to = "worker1", .function = "hold", .arguments = &x, .count = 1,
        .timeout_ms = 20};
    for (int i = 0; i < FIT && r->number == 0; i++) {
        tr_future *f = tr_rpc_async(rpc, "worker1", "hold", x.tensor);
        while (atomic_load(&holding) <= i) rest_a_while(); /* one that is given up before it runs is answered at once */
        OK(tr_future_cancel(f));
        CHECK(tr_future_wait(f) == TR_CANCELLED);
    }
    for (int i = 0; i < FIT && r->number == 0; i++) {
        CHECK(tr_future_wait(tr_rpc_sync_with(&c)) == TR_TIMEOUT);
        SAYS("the queue stayed full for 0.02 s: 2 calls are under way there");
    }
    OK(tr_barrier(r->group));
    atomic_store(&gate, 1);
    c.timeout_ms = 0;
    if (r->number == 0) CHECK(tr_future_f64(tr_rpc_sync_with(&c)) == FLOATS);
    OK(tr_rpc_stop(rpc));
}

static void what_was_given_up_takes_room_until_it_is_answered(void **state)
{
    (void)state;
    const int apart[] = {0, 1};
    atomic_store(&gate, 0);
    atomic_store(&holding, 0);
    run(2, give_up_often, NULL);
    atomic_store(&gate, 0);
    atomic_store(&holding, 0);
    run_hosts(apart, 2, give_up_often, NULL);
}

/* A module's, on the clock. */
static void send_news(void *user, int worker, const char *why)
{
    TR_SCOPE;
    (void)why;
    tr_value news = tr_value_tensor(tr_full(worker, TR_SHAPE(100000)));
    if (tr_rpc_rank(user) == 0) (void)!tr_status_of(tr__rpc_internal(user, 1, ".news", &news, 1, 0));
}

/* Rank 2 goes while the queue from rank 0 to rank 1 is full. */
static void lose_one_beside_a_full_queue(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = tr_rpc_start(r->group, .queue_mb = 1, .timeout_ms = 10 * JOIN_MS);
    const tr__rpc_hooks hooks = {.user = rpc, .gone = send_news};
    OK(tr_rpc_register(rpc, &hold_rpc));
    OK(tr__rpc_set_hooks(rpc, &hooks));
    tr_future *held[2] = {NULL};
    for (int i = 0; i < 2 && r->number == 0; i++) held[i] = tr_rpc_async(rpc, "worker1", "hold", tr_full(2, TR_SHAPE(100000)));
    OK(tr_barrier(r->group));
    if (r->number == 2) return; /* drops its agent */
    if (r->number == 0) {
        while (!atomic_load(&rpc->links[2].gone)) rest_a_while();
        tr_value x = tr_value_tensor(tr_zeros(TR_SHAPE(1)));
        tr_rpc_call c = {.size = sizeof c, .rpc = rpc, .to = "worker0", .function = "hold", .arguments = &x, .count = 1,
            .timeout_ms = 20};
        CHECK(tr_future_wait(tr_rpc_sync_with(&c)) == TR_TIMEOUT);
        atomic_store(&gate, 1);
        OK(tr_future_wait_all(held, 2));
    }
    OK(tr_rpc_stop(rpc));
}

static void the_clock_does_not_wait_for_room(void **state)
{
    (void)state;
    atomic_store(&gate, 0);
    run(3, lose_one_beside_a_full_queue, NULL);
}

static void wrong_options(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = tr_rpc_start(r->group, .threads = r->number == 1 ? -1 : 2);
    CHECK(tr_status_of(rpc) == (r->number == 1 ? TR_INVALID : TR_PEER));
    SAYS(r->number == 1 ? ".threads = -1" : "rank 1 was given options");
}

static void wrong_options_are_an_error_everywhere(void **state)
{
    (void)state;
    run(2, wrong_options, NULL);
}

/* ---- References --------------------------------------------------------------------------------------------------- */

static tr_tensor *make_table(int64_t rows)
{
    return tr_full(3, TR_SHAPE(rows, 2));
}
TR_RPC(make_table, I64, RETURNS(TENSOR));

static double sum_of(tr_tensor *table, double by)
{
    double sum = 0;
    for (int64_t i = 0; i < tr_numel(table); i++) sum += ((const float *)tr_data(table))[i];
    return sum * by;
}
TR_RPC(sum_of, TENSOR, F64, RETURNS(F64));

static double sum_here(tr_rref *ref)
{
    return sum_of(tr_future_tensor(tr_rref_to_here(ref)), 1);
}
TR_RPC(sum_here, RREF, RETURNS(F64));

static tr_rref *pass_on(tr_rref *ref)
{
    return ref;
}
TR_RPC(pass_on, RREF, RETURNS(RREF));

static tr_status sum_elsewhere(tr_rref *ref, const char *where, double *out)
{
    tr_future *f = tr_rpc_sync(tr_rpc_current(), where, "sum_here", ref);
    *out = tr_future_f64(f);
    return tr_future_wait(f);
}
TR_RPC(sum_elsewhere, RREF, STRING, TRIES(F64));

static void references(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = tr_rpc_start(r->group);
    OK(tr_status_of(rpc));
    const tr_rpc_function *const functions[] = {&make_table_rpc, &sum_of_rpc, &sum_here_rpc, &pass_on_rpc,
        &sum_elsewhere_rpc, &broken_rpc};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) OK(tr_rpc_register(rpc, functions[i]));
    OK(tr_barrier(r->group));
    for (int owner = 0; owner < r->world; owner++) {
        TR_SCOPE;
        const char *at = tr_rpc_name(rpc, owner), *other = tr_rpc_name(rpc, (owner + 1) % r->world);
        tr_rref *table = tr_remote(rpc, at, "make_table", 10);
        CHECK(tr_rref_owner(table) == owner);
        CHECK(tr_future_f64(tr_rref_call(table, "sum_of", 2.0)) == 120);
        CHECK(sum_here(table) == 60);
        CHECK(tr_future_f64(tr_rpc_sync(rpc, other, "sum_here", table)) == 60);
        CHECK(tr_future_f64(tr_rpc_sync(rpc, at, "sum_elsewhere", table, other)) == 60);
        CHECK(tr_future_f64(tr_rpc_sync(rpc, other, "sum_elsewhere", table, at)) == 60);
        tr_rref *back = tr_future_rref(tr_rpc_sync(rpc, other, "pass_on", table));
        OK(tr_status_of(back));
        CHECK(tr_rref_owner(back) == owner && sum_here(back) == 60);
        tr_rref *lost = tr_remote(rpc, at, "broken");
        CHECK(tr_future_wait(tr_rref_to_here(lost)) == TR_SHAPE);
        SAYS("broken: the sails do not fit");
        CHECK(tr_future_wait(tr_rref_call(tr_remote(rpc, at, "no_such"), "sum_of", 2.0)) == TR_NOT_FOUND);
        SAYS("no_such: no function of that name is registered there"); /* not sum_of */
        tr_value value;
        tr_rref *own = tr_rref_new(rpc, tr_value_string("anchor"));
        OK(tr_rref_local(own, &value));
        CHECK(value.kind == TR_VALUE_STRING && strcmp(value.string, "anchor") == 0);
        if (owner != r->number) {
            CHECK(tr_rref_local(table, &value) == TR_INVALID);
            SAYS("not here");
        }
    }
    OK(tr_rpc_stop(rpc));
}

static void references_are_handed_around(void **state)
{
    (void)state;
    run(1, references, NULL);
    run(2, references, NULL);
    run(4, references, NULL);
}

static tr_rref *_Atomic kept_ref;

static tr_status keep(tr_rref *ref)
{
    atomic_store(&kept_ref, tr_keep(ref));
    return TR_OK;
}
TR_RPC(keep, RREF, RETURNS(NONE));

/* Rank 1 hands on a reference to a value that rank 0 is to make, and goes before it has asked for that. */
static void go_before_asking(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = tr_rpc_start(r->group);
    OK(tr_rpc_register(rpc, &keep_rpc));
    OK(tr_barrier(r->group));
    if (r->number == 1) {
        tr__rref_token never_sent;
        OK(tr_future_wait(tr_rpc_sync(rpc, "worker0", "keep", tr__refs_remote(rpc, 0, &never_sent))));
        return; /* drops its agent */
    }
    tr_rref *ref;
    tr_value value;
    while (!(ref = atomic_load(&kept_ref))) rest_a_while();
    for (int i = 0; i < 2; i++) { /* who waits, and who comes later */
        CHECK(tr_rref_local(ref, &value) == TR_NOT_FOUND);
        SAYS("the value will not be made: the worker that asked for it is gone, or could not ask");
    }
    tr_release(ref);
    OK(tr_rpc_stop(rpc));
}

static void nobody_waits_for_a_value_whose_request_is_lost(void **state)
{
    (void)state;
    run(2, go_before_asking, NULL);
}

/* More bytes than a message has beside its tensors: they travel as a tensor's do, and so they may stay, too. */
static void keep_many_bytes(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = tr_rpc_start(r->group);
    OK(tr_status_of(rpc));
    size_t size = TR__RPC_BODY_MAX + (size_t)1;
    char *data = calloc(size, 1);
    data[size - 1] = 7;
    tr_rref *ref = tr_rref_new(rpc, tr_value_bytes((tr_bytes){data, size}));
    tr_value value;
    OK(tr_rref_local(ref, &value));
    CHECK(value.bytes.size == size && value.bytes.data != data && ((const char *)value.bytes.data)[size - 1] == 7);
    free(data);
    OK(tr_rpc_stop(rpc));
}

static void many_bytes_may_stay(void **state)
{
    (void)state;
    run(1, keep_many_bytes, NULL);
}

/* ---- Other hosts -------------------------------------------------------------------------------------------------- */

static void workers_of_other_hosts(void **state)
{
    (void)state;
    const int apart[] = {0, 1, 2}, mixed[] = {0, 0, 1, 1};
    run_tcp(2, kinds, NULL, NULL);
    run_hosts(apart, 3, kinds, NULL);
    run_hosts(mixed, 4, kinds, NULL);
    run_hosts(apart, 3, nested, NULL);
    run_hosts(mixed, 4, nested, NULL);
    run_hosts(mixed, 4, references, NULL);
    run_hosts(apart, 2, errors, NULL);
}

/* Whoever comes with another token learns so, and is nobody's worker; those who are there call each other as before. */
static void beside_a_stranger(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = tr_rpc_start(r->group);
    OK(tr_rpc_register(rpc, &make_table_rpc));
    OK(tr_barrier(r->group));
    tr_store *store = tr_store_tcp("127.0.0.1", tr_store_port(r->store), .token = "a guess", .timeout_ms = JOIN_MS);
    tr_group *group = tr_join(.store = store, .rank = 1 - r->number, .world_size = 2, .timeout_ms = JOIN_MS);
    tr_rpc *stranger = tr_rpc_start(group, .name = "stranger");
    CHECK(tr_status_of(stranger) == TR_AUTH);
    SAYS("token");
    CHECK(tr_status_of(tr_rpc_sync(stranger, tr_rpc_name(rpc, 1 - r->number), "make_table", 3)) == TR_AUTH);
    CHECK(tr_rpc_workers(rpc) == 2 && tr_rpc_worker(rpc, "stranger") == -1);
    tr_rref *table = tr_remote(rpc, tr_rpc_name(rpc, 1 - r->number), "make_table", 3);
    OK(tr_future_wait(tr_rref_to_here(table)));
    OK(tr_rpc_stop(rpc));
}

static void a_wrong_token_makes_no_worker(void **state)
{
    (void)state;
    run_tls(NULL, 2, beside_a_stranger, NULL);
    run_tls((const int[]){0, 1}, 2, beside_a_stranger, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_of_all_kinds_come_back),
        cmocka_unit_test(failures_come_back_with_their_message),
        cmocka_unit_test(two_workers_of_one_name_are_an_error_everywhere),
        cmocka_unit_test(calls_may_call_each_other_to_any_depth),
        cmocka_unit_test(many_threads_call_at_once),
        cmocka_unit_test(callbacks_may_wait),
        cmocka_unit_test(who_calls_too_much_waits),
        cmocka_unit_test(a_wait_for_a_full_queue_is_recorded),
        cmocka_unit_test(a_function_that_waits_for_room_leaves_its_thread_to_others),
        cmocka_unit_test(what_was_given_up_takes_room_until_it_is_answered),
        cmocka_unit_test(the_clock_does_not_wait_for_room),
        cmocka_unit_test(wrong_options_are_an_error_everywhere),
        cmocka_unit_test(references_are_handed_around),
        cmocka_unit_test(nobody_waits_for_a_value_whose_request_is_lost),
        cmocka_unit_test(many_bytes_may_stay),
        cmocka_unit_test(workers_of_other_hosts),
        cmocka_unit_test(a_wrong_token_makes_no_worker),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
