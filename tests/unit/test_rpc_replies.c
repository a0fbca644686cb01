/* Replies that functions leave to others: answered by any thread, in any order, late, twice or never. Ranks as threads; how a
 * caller's death ends them is in test_rpc_process.c. */
#include "comm_ranks.h"

#include "rpc/agent.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

/* ---- A worker that puts its answers off ------------------------------------------------------------------------------ */

enum { MANY = 10000 };

typedef struct shelf {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int count;
    int64_t numbers[MANY];
    tr_rpc_reply *replies[MANY]; /* kept */
} shelf;

/* Puts the call aside; answers nothing. */
static int64_t put_aside(void *state, int64_t number)
{
    shelf *s = state;
    pthread_mutex_lock(&s->lock);
    s->numbers[s->count] = number;
    s->replies[s->count++] = tr_keep(tr_rpc_defer());
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return -1;
}
TR_RPC_WITH_STATE(put_aside, I64, RETURNS(I64));

static tr_status put_aside_and_fail(void *state, int64_t number, int64_t *out)
{
    *out = put_aside(state, number);
    return tr_fail(TR_SHAPE, "the hold is full");
}
TR_RPC_WITH_STATE(put_aside_and_fail, I64, TRIES(I64));

static tr_tensor *put_tensor_aside(void *state, tr_tensor *x)
{
    put_aside(state, tr_numel(x));
    return NULL;
}
TR_RPC_WITH_STATE(put_tensor_aside, TENSOR, RETURNS(TENSOR));

static tr_status forget(void)
{
    return tr_status_of(tr_rpc_defer()); /* nobody keeps it */
}
TR_RPC(forget, RETURNS(NONE));

static tr_status defer_twice(void)
{
    tr_rpc_reply *reply = tr_rpc_defer();
    if (tr_status_of(tr_rpc_defer()) != TR_STATE) return TR_INTERNAL;
    return tr_reply_fail(reply, TR_SHAPE, tr_error_message());
}
TR_RPC(defer_twice, RETURNS(NONE));

static int64_t twice(int64_t x)
{
    return 2 * x;
}
TR_RPC(twice, I64, RETURNS(I64));

static void await_calls(shelf *s, int count)
{
    pthread_mutex_lock(&s->lock);
    while (s->count < count) pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

static int calls_of(shelf *s)
{
    pthread_mutex_lock(&s->lock);
    int count = s->count;
    pthread_mutex_unlock(&s->lock);
    return count;
}

static tr_status answer(shelf *s, int i)
{
    tr_status status = tr_reply_with(s->replies[i], tr_value_i64(2 * s->numbers[i]));
    tr_release(s->replies[i]);
    s->replies[i] = NULL;
    return status;
}

static tr_rpc *start(rank *r, shelf *s, const tr_rpc_options *options)
{
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    tr_rpc_options o = options ? *options : (tr_rpc_options){.size = sizeof o};
    char name[16];
    snprintf(name, sizeof name, "w%d", r->number);
    o.size = sizeof o;
    o.group = r->group;
    o.name = name;
    tr_rpc *rpc = tr_rpc_start_with(&o);
    const tr_rpc_function *const plain[] = {&forget_rpc, &defer_twice_rpc, &twice_rpc};
    const tr_rpc_function *const with_state[] = {&put_aside_rpc, &put_aside_and_fail_rpc, &put_tensor_aside_rpc};
    for (int i = 0; i < 3; i++)
        if (tr_rpc_register(rpc, plain[i]) != TR_OK || tr_rpc_register(rpc, with_state[i], .state = s) != TR_OK) break;
    return rpc;
}

static tr_future *call(tr_rpc *rpc, const char *to, const char *function, int64_t number, int timeout_ms)
{
    tr_value v = tr_value_i64(number);
    tr_rpc_call c = {.size = sizeof c, .rpc = rpc, .to = to, .function = function, .arguments = &v, .count = 1,
        .timeout_ms = timeout_ms};
    return tr_rpc_async_with(&c);
}

static void nap(int64_t ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static const int apart[] = {0, 1, 2};

/* On one host, and on several. */
static void run_both(int world, rank_body body)
{
    run(world, body, NULL);
    run_hosts(apart, world, body, NULL);
}

/* ---- Answers ---------------------------------------------------------------------------------------------------------- */

/* The program's thread of rank 1 answers the calls of all, itself included. That which came first is rank 0's, and is answered when
 * all others have been. */
static void answer_backwards(rank *r)
{
    TR_SCOPE;
    enum { EACH = 5 };
    shelf *s = calloc(1, sizeof *s);
    tr_rpc *rpc = start(r, s, NULL);
    OK(tr_status_of(rpc));
    OK(tr_barrier(r->group));
    tr_future *first = r->number == 0 ? call(rpc, "w1", "put_aside", 7, 0) : NULL, *f[EACH];
    if (r->number == 1) await_calls(s, 1);
    OK(tr_barrier(r->group));
    for (int i = 0; i < EACH; i++) f[i] = call(rpc, "w1", "put_aside", 10 * r->number + i, 0);
    if (r->number == 1) {
        int calls = 1 + EACH * r->world;
        await_calls(s, calls);
        for (int i = calls - 1; i > 0; i--) OK(answer(s, i));
    }
    for (int i = 0; i < EACH; i++) CHECK(tr_future_i64(f[i]) == 2 * (10 * r->number + i));
    CHECK(!first || !tr_future_done(first));
    OK(tr_barrier(r->group));
    if (r->number == 1) OK(answer(s, 0));
    CHECK(!first || tr_future_i64(first) == 14);
    OK(tr_rpc_stop(rpc));
    free(s);
}

static void any_thread_answers_in_any_order(void **state)
{
    (void)state;
    run_both(3, answer_backwards);
}

/* What kinds of answers there are, and what the caller hears. */
static void answer_badly(rank *r)
{
    TR_SCOPE;
    shelf *s = calloc(1, sizeof *s);
    tr_rpc *rpc = start(r, s, NULL);
    OK(tr_status_of(rpc));
    OK(tr_barrier(r->group));
    if (r->number == 0) {
        CHECK(tr_future_wait(tr_rpc_sync(rpc, "w1", "forget")) == TR_STATE);
        SAYS("rpc: forget on \"w1\": the function put its answer off, and nobody gave one");
        CHECK(tr_future_wait(tr_rpc_sync(rpc, "w1", "defer_twice")) == TR_SHAPE);
        SAYS("rpc: defer_twice on \"w1\": tr_rpc_defer: the function has taken its reply already");
        CHECK(tr_future_wait(tr_rpc_sync(rpc, "w1", "put_aside_and_fail", 0)) == TR_SHAPE);
        SAYS("the hold is full");
        tr_future *f[4];
        f[0] = tr_rpc_async(rpc, "w1", "put_tensor_aside", tr_ones(TR_SHAPE(1)));
        for (int i = 1; i < 4; i++) f[i] = tr_rpc_async(rpc, "w1", "put_tensor_aside", tr_ones(TR_SHAPE(1 + i)));
        int lost = 0, failed = 0, bad = 0;
        for (int i = 0; i < 4; i++) {
            tr_status status = tr_future_wait(f[i]);
            lost += status == TR_STATE && strstr(tr_error_message(), "rpc: put_tensor_aside on \"w1\": the function put its answer off");
            failed += status == TR_DTYPE && strstr(tr_error_message(), "rpc: put_tensor_aside on \"w1\": no such sail");
            bad += status == TR_SHAPE && strstr(tr_error_message(), "rpc: put_tensor_aside on \"w1\": ");
        }
        CHECK(lost == 1 && failed == 1 && bad == 1);
    }
    if (r->number == 1) {
        await_calls(s, 5);
        CHECK(tr_reply_with(s->replies[0], tr_value_i64(1)) == TR_STATE); /* its function has failed */
        SAYS("rpc: the call of put_aside_and_fail by \"w0\" has been answered already");
        tr_release(s->replies[0]);
        OK(tr_reply_fail(s->replies[1], TR_DTYPE, "no such sail"));
        CHECK(tr_reply_fail(s->replies[1], TR_DTYPE, "no such sail") == TR_STATE);
        tr_release(s->replies[1]);
        OK(tr_reply_with(s->replies[2], tr_value_tensor(tr_zeros(TR_SHAPE(-3)))));
        tr_release(s->replies[2]);
        CHECK(tr_reply_with(s->replies[3], tr_value_i64(1)) == TR_INVALID);
        SAYS("tr_reply_with: put_tensor_aside returns tensor, not i64");
        CHECK(tr_reply_fail(s->replies[3], TR_OK, "well") == TR_INVALID);
        OK(tr_reply_with(s->replies[3], tr_value_tensor(tr_ones(TR_SHAPE(7)))));
        tr_release(s->replies[3]);
        tr_release(s->replies[4]);
        CHECK(tr_reply_with(NULL, tr_value_none()) == TR_INVALID);
        tr_rpc_reply *outside = tr_rpc_defer();
        CHECK(tr_status_of(outside) == TR_STATE);
        SAYS("tr_rpc_defer: this thread runs no function for another worker");
        CHECK(tr_reply_with(outside, tr_value_none()) == TR_STATE);
    }
    OK(tr_rpc_stop(rpc));
    free(s);
}

static void who_answers_never_twice_or_wrongly_hears_so(void **state)
{
    (void)state;
    run_both(2, answer_badly);
}

typedef struct rival {
    pthread_t thread;
    tr_rpc_reply *reply;
    int64_t number;
    tr_status status;
} rival;

static void *answer_first(void *arg)
{
    rival *a = arg;
    a->status = tr_reply_with(a->reply, tr_value_i64(a->number));
    return NULL;
}

static void race(rank *r)
{
    TR_SCOPE;
    enum { TURNS = 50, RIVALS = 3 };
    shelf *s = calloc(1, sizeof *s);
    tr_rpc *rpc = start(r, s, NULL);
    OK(tr_status_of(rpc));
    OK(tr_barrier(r->group));
    for (int turn = 0; turn < TURNS; turn++) {
        TR_SCOPE;
        if (r->number == 0) {
            int64_t got = tr_future_i64(tr_rpc_sync(rpc, "w1", "put_aside", turn));
            CHECK(got >= 1 && got <= RIVALS);
            continue;
        }
        await_calls(s, turn + 1);
        rival rivals[RIVALS];
        int won = 0;
        for (int i = 0; i < RIVALS; i++) {
            rivals[i] = (rival){.reply = s->replies[turn], .number = i + 1};
            CHECK(pthread_create(&rivals[i].thread, NULL, answer_first, &rivals[i]) == 0);
        }
        for (int i = 0; i < RIVALS; i++) pthread_join(rivals[i].thread, NULL);
        for (int i = 0; i < RIVALS; i++) won += rivals[i].status == TR_OK;
        tr_release(s->replies[turn]);
        CHECK(won == 1);
    }
    OK(tr_rpc_stop(rpc));
    free(s);
}

static void one_of_many_answers_counts(void **state)
{
    (void)state;
    run(2, race, NULL);
}

/* ---- Time ------------------------------------------------------------------------------------------------------------- */

/* The first call times out, the second is cancelled, the third waits. After the end there are no threads of the agent's, and the
 * fourth is answered nevertheless. */
static void answer_late(rank *r)
{
    TR_SCOPE;
    shelf *s = calloc(1, sizeof *s);
    tr_rpc *rpc = start(r, s, NULL);
    OK(tr_status_of(rpc));
    OK(tr_barrier(r->group));
    tr_future *last = NULL;
    if (r->number == 0) {
        CHECK(tr_future_wait(call(rpc, "w1", "put_aside", 1, 20)) == TR_TIMEOUT);
        SAYS("rpc: put_aside on \"w1\": no answer within 0.02 s");
        tr_future *f = call(rpc, "w1", "put_aside", 2, 0);
        OK(tr_future_cancel(f));
        CHECK(tr_future_wait(f) == TR_CANCELLED);
        CHECK(tr_future_wait(call(rpc, "w1", "put_aside", 3, 20)) == TR_TIMEOUT);
        last = call(rpc, "w1", "put_aside", 4, 0);
    } else {
        int count = 0; /* up to the fourth; the second one may never have begun */
        do await_calls(s, ++count);
        while (s->numbers[count - 1] != 4);
        for (int i = 0; i < count; i++)
            if (s->numbers[i] != 3) OK(answer(s, i));
    }
    if (last) CHECK(tr_future_i64(last) == 8);
    if (r->number == 0) CHECK(tr_future_i64(tr_rpc_sync(rpc, "w1", "twice", 21)) == 42);
    OK(tr_rpc_stop(rpc));
    for (int i = 0; i < s->count; i++)
        if (s->replies[i]) OK(answer(s, i));
    free(s);
}

static void an_answer_that_nobody_waits_for_is_dropped(void **state)
{
    (void)state;
    run_both(2, answer_late);
}

static void *answer_while_stopping(void *shelf_of)
{
    shelf *s = shelf_of;
    await_calls(s, 3);
    nap(30);
    for (int i = 0; i < 3; i++) (void)!answer(s, i);
    return NULL;
}

/* All are in tr_rpc_stop(), most likely, when the answers come. */
static void stop_beneath_replies(rank *r)
{
    TR_SCOPE;
    shelf *s = calloc(1, sizeof *s);
    tr_rpc *rpc = start(r, s, NULL);
    OK(tr_status_of(rpc));
    OK(tr_barrier(r->group));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, answer_while_stopping, s) == 0);
    tr_future *f[3];
    for (int i = 0; i < 3; i++) f[i] = call(rpc, tr_rpc_name(rpc, 1 - r->number), "put_aside", i, 0);
    OK(tr_rpc_stop(rpc));
    for (int i = 0; i < 3; i++) CHECK(tr_future_done(f[i]) && tr_future_i64(f[i]) == 2 * i);
    pthread_join(thread, NULL);
    free(s);
}

static void stopping_waits_for_answers(void **state)
{
    (void)state;
    run_both(2, stop_beneath_replies);
}

/* Nobody answers, and stopping does not last longer than the call. */
static void stop_without_answers(rank *r)
{
    TR_SCOPE;
    shelf *s = calloc(1, sizeof *s);
    tr_rpc *rpc = start(r, s, NULL);
    OK(tr_status_of(rpc));
    OK(tr_barrier(r->group));
    tr_future *f = r->number == 0 ? call(rpc, "w1", "put_aside", 1, 200) : NULL;
    OK(tr_rpc_stop(rpc));
    if (f) CHECK(tr_future_wait(f) == TR_TIMEOUT);
    for (int i = 0; i < s->count; i++) tr_release(s->replies[i]);
    free(s);
}

static void stopping_ends_with_the_calls_timeout(void **state)
{
    (void)state;
    run_both(2, stop_without_answers);
}

/* A value of ours that is to be made by an answer that never comes: who waits for it must not do so for ever. */
typedef struct value_wait {
    tr_rref *ref;
    tr_status status;
} value_wait;

static void *wait_for_value(void *arg)
{
    value_wait *w = arg;
    tr_value value;
    w->status = tr_rref_local(w->ref, &value);
    return NULL;
}

static void stop_beneath_values(rank *r)
{
    TR_SCOPE;
    shelf *s = calloc(1, sizeof *s);
    value_wait *w = calloc(1, sizeof *w);
    tr_rpc *rpc = start(r, s, NULL);
    OK(tr_status_of(rpc));
    OK(tr_barrier(r->group));
    tr_value v = tr_value_i64(1);
    tr_rpc_call c = {.size = sizeof c, .rpc = rpc, .to = tr_rpc_name(rpc, r->number), .function = "put_aside", .arguments = &v,
        .count = 1, .timeout_ms = 25};
    tr_future *copy;
    do { /* given up before the function has begun: then with more time */
        c.timeout_ms *= 2;
        w->ref = tr_remote_with(&c);
        copy = tr_rref_to_here(w->ref);
        while (!calls_of(s) && !tr_future_done(copy)) nap(1);
    } while (!calls_of(s));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, wait_for_value, w) == 0);
    CHECK(!tr_future_done(copy));
    OK(tr_rpc_stop(rpc));
    CHECK(tr_future_done(copy) && tr_future_wait(copy) == TR_STATE);
    SAYS("\" has stopped (tr_rpc_stop)");
    pthread_join(thread, NULL);
    CHECK(w->status == TR_STATE);
    tr_release(s->replies[0]);
    free(w);
    free(s);
}

static void stopping_ends_waits_for_values(void **state)
{
    (void)state;
    run_both(2, stop_beneath_values);
}

/* ---- Many ------------------------------------------------------------------------------------------------------------- */

static void owe_many(rank *r)
{
    TR_SCOPE;
    shelf *s = calloc(1, sizeof *s);
    tr_rpc *rpc = start(r, s, NULL);
    OK(tr_status_of(rpc));
    OK(tr_barrier(r->group));
    if (r->number == 0) {
        tr_future **f = malloc(MANY * sizeof *f);
        for (int i = 0; i < MANY; i++) f[i] = call(rpc, "w1", "put_aside", i, 0);
        int wrong = 0;
        for (int i = 0; i < MANY; i++) wrong += tr_future_i64(f[i]) != 2 * i;
        free(f);
        CHECK(wrong == 0);
    } else {
        await_calls(s, MANY);
        CHECK(rpc->threads <= 8); /* no thread waits for an answer */
        for (int i = 0; i < MANY; i++) OK(answer(s, (i * 7919 + 1) % MANY));
    }
    OK(tr_rpc_stop(rpc));
    free(s);
}

static void ten_thousand_are_owed_at_once(void **state)
{
    (void)state;
    run_both(2, owe_many);
}

/* f(n) = f(n - 1) + n, on the next worker; the answer comes when the next worker's has. */
static int64_t sum_later(int64_t n);
TR_RPC(sum_later, I64, RETURNS(I64));

typedef struct link {
    tr_rpc_reply *reply;
    int64_t n;
} link;

static void add_and_answer(tr_future *future, void *user)
{
    link *l = user;
    tr_status status = tr_future_wait(future);
    (void)!(status == TR_OK ? tr_reply_with(l->reply, tr_value_i64(tr_future_i64(future) + l->n))
                            : tr_reply_fail(l->reply, status, tr_error_message()));
    tr_release(l->reply);
    free(l);
}

static int64_t sum_later(int64_t n)
{
    tr_rpc *rpc = tr_rpc_current();
    if (n == 0) return 0;
    link *l = malloc(sizeof *l);
    *l = (link){tr_keep(tr_rpc_defer()), n};
    int next = (tr_rpc_rank(rpc) + 1) % tr_rpc_workers(rpc);
    (void)!tr_future_then(tr_rpc_async(rpc, tr_rpc_name(rpc, next), "sum_later", n - 1), add_and_answer, l);
    return 0;
}

static void wait_with_one_thread(rank *r)
{
    TR_SCOPE;
    enum { AT_ONCE = 50, DEPTH = 40 };
    shelf *s = calloc(1, sizeof *s);
    tr_rpc *rpc = start(r, s, &(tr_rpc_options){.threads = 1});
    OK(tr_rpc_register(rpc, &sum_later_rpc));
    OK(tr_barrier(r->group));
    tr_future *f[AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++) f[i] = call(rpc, tr_rpc_name(rpc, i % r->world), "sum_later", DEPTH, 0);
    for (int i = 0; i < AT_ONCE; i++) CHECK(tr_future_i64(f[i]) == DEPTH * (DEPTH + 1) / 2);
    OK(tr_rpc_stop(rpc));
    free(s);
}

static void one_thread_is_enough(void **state)
{
    (void)state;
    run_both(3, wait_with_one_thread);
}

/* ---- Values that stay -------------------------------------------------------------------------------------------------- */

static void owe_references(rank *r)
{
    TR_SCOPE;
    shelf *s = calloc(1, sizeof *s);
    tr_rpc *rpc = start(r, s, NULL);
    OK(tr_status_of(rpc));
    OK(tr_barrier(r->group));
    if (r->number == 0) {
        tr_rref *made = tr_remote(rpc, "w1", "put_aside", 1), *lost = tr_remote(rpc, "w1", "put_aside", 2);
        tr_future *f = tr_rref_to_here(made);
        CHECK(tr_future_i64(tr_rref_call(made, "twice")) == 4);
        CHECK(tr_future_i64(f) == 2);
        CHECK(tr_future_wait(tr_rref_to_here(lost)) == TR_STATE);
        SAYS("the function put its answer off");
        tr_value v = tr_value_i64(3); /* its call ends before the value is made, most likely not before the function begins */
        tr_rpc_call c = {.size = sizeof c, .rpc = rpc, .to = "w1", .function = "put_aside", .arguments = &v, .count = 1,
            .timeout_ms = 10};
        do {
            c.timeout_ms *= 2;
            f = tr_rref_to_here(tr_remote_with(&c));
        } while (tr_future_wait(f) == TR_CANCELLED);
        CHECK(tr_future_i64(f) == 6);
    } else {
        await_calls(s, 2);
        for (int i = 0; i < 2; i++) {
            if (s->numbers[i] == 1) OK(answer(s, i));
            else tr_release(s->replies[i]);
        }
        await_calls(s, 3);
        nap(50);
        OK(answer(s, 2));
    }
    OK(tr_rpc_stop(rpc));
    free(s);
}

static void values_that_stay_are_made_later(void **state)
{
    (void)state;
    run_both(2, owe_references);
}

/* The owner says whose value it is that does not come in time. */
static void ask_in_vain(rank *r)
{
    TR_SCOPE;
    shelf *s = calloc(1, sizeof *s);
    tr_rpc *rpc = start(r, s, NULL);
    OK(tr_status_of(rpc));
    if (r->number == 1) rpc->timeout_ms = 50;
    OK(tr_barrier(r->group));
    tr_rref *late = r->number ? NULL : tr_remote(rpc, "w1", "put_aside", 1);
    if (r->number == 1) await_calls(s, 1);
    OK(tr_barrier(r->group));
    if (r->number == 0) {
        CHECK(tr_future_wait(tr_rref_call(late, "twice")) == TR_TIMEOUT);
        SAYS("rpc: twice on \"w1\": put_aside has not made the value within 0.05 s");
    }
    OK(tr_barrier(r->group));
    rpc->timeout_ms = JOIN_MS;
    if (r->number == 1) OK(answer(s, 0));
    OK(tr_rpc_stop(rpc));
    free(s);
}

static void a_value_that_is_late_is_named(void **state)
{
    (void)state;
    run_both(2, ask_in_vain);
}

/* ---- Functions that never return ------------------------------------------------------------------------------------ */

static atomic_int let_go, blocked;

static tr_status block(void)
{
    atomic_store(&blocked, 1);
    while (!atomic_load(&let_go)) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return TR_OK;
}
TR_RPC(block, RETURNS(NONE));

static tr_status slow(void)
{
    nanosleep(&(struct timespec){.tv_sec = 2}, NULL);
    return TR_OK;
}
TR_RPC(slow, RETURNS(NONE));

/* Its caller has given it up: tr_rpc_stop() ends on both, and says what still runs where. One whose caller waits may be slow.
 * arg: the rank that it runs on. */
static void stop_beside_a_function(rank *r)
{
    int at = *(const int *)r->arg;
    TR_SCOPE;
    tr_rpc *rpc = tr_rpc_start(r->group, .timeout_ms = 1000);
    OK(tr_status_of(rpc));
    OK(tr_rpc_register(rpc, &block_rpc));
    OK(tr_rpc_register(rpc, &slow_rpc));
    OK(tr_barrier(r->group));
    if (r->number != at) {
        tr_rpc_call c = {.size = sizeof c, .rpc = rpc, .to = tr_rpc_name(rpc, at), .function = "block", .timeout_ms = 500};
        do CHECK(tr_future_wait(tr_rpc_sync_with(&c)) == TR_TIMEOUT);
        while (!atomic_load(&blocked)); /* it was given up before the function has begun */
        c.function = "slow";
        c.timeout_ms = JOIN_MS;
        CHECK(tr_status_of(tr_rpc_async_with(&c)) == TR_OK); /* under way in tr_rpc_stop() */
    }
    OK(tr_barrier(r->group));
    CHECK(tr_rpc_stop(rpc) == TR_TIMEOUT);
    char who[160];
    snprintf(who, sizeof who, "worker %d (\"worker%d\") still runs \"block\" for worker %d (\"worker%d\"), whose call has ended",
        at, at, 1 - at, 1 - at);
    SAYS(who);
    CHECK(!strstr(tr_error_message(), "slow"));
    OK(tr_barrier(r->group)); /* the group is sound */
    OK(tr_leave(r->group));
    atomic_store(&let_go, 1);
}

static void a_function_that_never_returns_holds_no_stop_up(void **state)
{
    (void)state;
    for (int at = 0; at < 2; at++) {
        atomic_store(&let_go, 0);
        atomic_store(&blocked, 0);
        run(2, stop_beside_a_function, &at);
    }
}

/* ---- Calls that have begun when the agent stops ---------------------------------------------------------------------- */

typedef enum crossing_kind { HANDS_OVER, DEREFERENCES, KEEPS, CROSSINGS } crossing_kind;

typedef struct crossing { /* a call by another thread than the one that stops */
    crossing_kind kind;
    tr_rpc *rpc;
    tr_rref *ref; /* a value of worker 1's */
    atomic_bool begun, stopped;
    char failure[256]; /* "": there was none, or not TR_STATE */
} crossing;

/* Between the checks of a call and its request. */
static tr_status await_the_stop(void *user, int to, bool is_reply, tr_value *values, int n, tr__rpc_note *note)
{
    crossing *c = user;
    (void)to, (void)is_reply, (void)values, (void)n, (void)note;
    atomic_store(&c->begun, true);
    while (!atomic_load(&c->stopped)) nap(1);
    return TR_OK;
}

static void *cross(void *arg)
{
    TR_SCOPE;
    crossing *c = arg;
    tr_value v = c->kind == HANDS_OVER ? tr_value_rref(c->ref) : tr_value_i64(1);
    tr_rpc_call call = {.size = sizeof call, .rpc = c->rpc, .to = "w1", .function = "twice", .arguments = &v, .count = 1};
    tr_status status = c->kind == KEEPS ? tr_status_of(tr_remote_with(&call))
        : tr_future_wait(c->kind == HANDS_OVER ? tr_rpc_async_with(&call) : tr_rref_call(c->ref, "twice"));
    if (status == TR_STATE) snprintf(c->failure, sizeof c->failure, "%s", tr_error_message());
    return NULL;
}

static void stop_beside_a_call(rank *r)
{
    TR_SCOPE;
    shelf *s = calloc(1, sizeof *s);
    crossing c = {.kind = *(const crossing_kind *)r->arg, .rpc = start(r, s, NULL)};
    const tr__rpc_hooks hooks = {.user = &c, .outgoing = await_the_stop};
    OK(tr_status_of(c.rpc));
    OK(tr_barrier(r->group));
    pthread_t thread;
    if (r->number == 0) {
        c.ref = tr_remote(c.rpc, "w1", "twice", 21);
        CHECK(tr_future_i64(tr_rref_to_here(c.ref)) == 42);
        OK(tr__rpc_set_hooks(c.rpc, &hooks));
        CHECK(pthread_create(&thread, NULL, cross, &c) == 0);
        while (!atomic_load(&c.begun)) nap(1);
    }
    OK(tr_rpc_stop(c.rpc));
    atomic_store(&c.stopped, true);
    if (r->number == 0) {
        pthread_join(thread, NULL);
        const char *why = c.kind == HANDS_OVER ? "a reference is used after tr_rpc_stop()" : "\"w0\" has stopped (tr_rpc_stop)";
        CHECK(strstr(c.failure, why));
    }
    free(s);
}

static void a_call_that_meets_the_stop_fails(void **state)
{
    (void)state;
    for (crossing_kind kind = 0; kind < CROSSINGS; kind++) run(2, stop_beside_a_call, &kind);
}

static void count_release(void *memory, void *count)
{
    (void)memory;
    atomic_fetch_add((atomic_int *)count, 1);
}

/* A message from rank 1 with one piece, as a thread of the program's has read it that was stopped before it dealt with it. */
static void deal_with(tr_rpc *rpc, tr__rpc_message_type type, uint32_t body, atomic_int *released)
{
    const tr__rpc_frame frame = {.type = type, .body = body, .pieces = 1};
    tr__rpc_inbound *m = tr__inbound_new(1, &frame);
    memset(m->body, 0, body);
    m->pieces[0] = (tr__rpc_arrived){.memory = (char *)released, .release = count_release, .user = released};
    tr__rpc_arrived_message(rpc, m);
}

static void read_before_the_stop(rank *r)
{
    atomic_int released = 0;
    {
        TR_SCOPE;
        tr_rpc *rpc = tr_rpc_start(r->group);
        OK(tr_status_of(rpc));
        OK(tr_rpc_stop(rpc));
        deal_with(rpc, TR__RPC_REFER, sizeof(tr__refer), &released);
        deal_with(rpc, TR__RPC_REQUEST, 64, &released);
    }
    CHECK(atomic_load(&released) == 2);
}

static void what_was_read_before_the_stop_is_dropped(void **state)
{
    (void)state;
    run(2, read_before_the_stop, NULL);
}

enum { HELD = 300 };

static void *drop_one_by_one(void *refs)
{
    for (int i = 0; i < HELD; i++) {
        tr_release(((tr_rref **)refs)[i]); /* its owner is told */
        nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    }
    return NULL;
}

static void drop_while_stopping(rank *r)
{
    TR_SCOPE;
    shelf *s = calloc(1, sizeof *s);
    tr_rpc *rpc = start(r, s, NULL);
    tr_rref *refs[HELD];
    pthread_t thread;
    OK(tr_status_of(rpc));
    OK(tr_barrier(r->group));
    for (int i = 0; i < HELD && r->number == 0; i++) {
        TR_SCOPE;
        refs[i] = tr_keep(tr_remote(rpc, "w1", "twice", i));
        CHECK(tr_future_i64(tr_rref_to_here(refs[i])) == 2 * i);
    }
    if (r->number == 0) CHECK(pthread_create(&thread, NULL, drop_one_by_one, refs) == 0);
    OK(tr_rpc_stop(rpc));
    if (r->number == 0) pthread_join(thread, NULL);
    free(s);
}

static void references_are_dropped_beside_the_stop(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) run_both(2, drop_while_stopping);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_thread_answers_in_any_order),
        cmocka_unit_test(who_answers_never_twice_or_wrongly_hears_so),
        cmocka_unit_test(one_of_many_answers_counts),
        cmocka_unit_test(an_answer_that_nobody_waits_for_is_dropped),
        cmocka_unit_test(stopping_waits_for_answers),
        cmocka_unit_test(stopping_ends_with_the_calls_timeout),
        cmocka_unit_test(stopping_ends_waits_for_values),
        cmocka_unit_test(ten_thousand_are_owed_at_once),
        cmocka_unit_test(one_thread_is_enough),
        cmocka_unit_test(values_that_stay_are_made_later),
        cmocka_unit_test(a_value_that_is_late_is_named),
        cmocka_unit_test(a_function_that_never_returns_holds_no_stop_up),
        cmocka_unit_test(a_call_that_meets_the_stop_fails),
        cmocka_unit_test(what_was_read_before_the_stop_is_dropped),
        cmocka_unit_test(references_are_dropped_beside_the_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
