/* Workers that do not end, that go without tr_rpc_stop(), or that send what is no message: a clear error at who deals with them, in
 * time, and all others go on. How tr_rpc_stop() deals with late ones is in test_rpc_stop.c, how workers that are killed end in
 * test_rpc_process.c. */
#include "entries.h"
#include "rpc_workers.h"

#include "base/clock.h"
#include "comm/record/record.h"
#include "rpc/agent.h"

#include <trireme/ops.h>

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static atomic_int mirrored;

static tr_tensor *mirror(tr_tensor *x)
{
    atomic_fetch_add(&mirrored, 1);
    return x;
}
TR_RPC(mirror, TENSOR, RETURNS(TENSOR));

static tr_rpc *start(const rank *r)
{
    tr_rpc *rpc = start_worker(r);
    (void)!tr_rpc_register(rpc, &mirror_rpc);
    return rpc;
}

/* ---- The flight record ---------------------------------------------------------------------------------------------- */

/* A wait of this process's agent, over or not, with this text. */
static tr_status find_wait(const char *text, int for_whom)
{
    tr__records all;
    bool found = false;
    TRY(tr__records_read(getpid(), &all));
    for (int i = 0; i < all.count; i++)
        for (int k = 0; k < all.list[i].call_count; k++) {
            const tr__signature *s = &all.list[i].calls[k].signature;
            found |= all.list[i].rpc && strcmp(s->file, text) == 0 && s->peer == for_whom;
        }
    tr__records_free(&all);
    return found ? TR_OK : tr_fail(TR_INTERNAL, "no wait '%s' for %d is recorded", text, for_whom);
}

#define LONG_NAME "holds_until_it_is_seen_that_its_caller_waits_for_it"

static atomic_int *seen; /* which both processes share */

static int64_t hold(int64_t x)
{
    while (!atomic_load(seen)) usleep(1000);
    return x;
}
TR_RPC(hold, I64, RETURNS(I64));

typedef struct awaited {
    const char *text;
    int for_whom;
    pthread_t thread;
} awaited;

static void *see(void *arg)
{
    const awaited *a = arg;
    for (int ms = 0; ms < PATIENCE_MS && find_wait(a->text, a->for_whom) != TR_OK; ms++) usleep(1000);
    atomic_store(seen, 1);
    return NULL;
}

static tr_status begin_to_see(awaited *a)
{
    atomic_store(seen, 0);
    CHECK(pthread_create(&a->thread, NULL, see, a) == 0);
    return TR_OK;
}

static tr_status end_seeing(const awaited *a)
{
    pthread_join(a->thread, NULL);
    return find_wait(a->text, a->for_whom);
}

/* Whom it waits for is known of a call, and of a value that is made here nobody. */
static tr_status wait_for_values(rank *r)
{
    TR_SCOPE;
    seen = &r->post[-r->number].reports;
    tr_rpc *rpc = start(r);
    tr_rpc_function long_named = hold_rpc;
    long_named.name = LONG_NAME;
    TRY(tr_status_of(rpc));
    TRY(tr_rpc_register(rpc, &hold_rpc));
    TRY(tr_rpc_register(rpc, &long_named));
    TRY(tr_barrier(r->group));
    if (r->number) {
        tr_value value;
        awaited here = {.text = "a value that is made here", .for_whom = -1}, there = {.text = "rpc hold on \"worker0\""},
                long_one = {.text = "rpc holds_until_it_is_seen_that_its_caller on \"worker0\""};
        TRY(begin_to_see(&here));
        TRY(tr_rref_local(tr_remote(rpc, "worker1", "hold", 1), &value));
        TRY(end_seeing(&here));
        TRY(begin_to_see(&there));
        TRY(tr_future_wait(tr_rpc_sync(rpc, "worker0", "hold", 1)));
        TRY(end_seeing(&there));
        TRY(begin_to_see(&long_one));
        TRY(tr_future_wait(tr_rpc_sync(rpc, "worker0", LONG_NAME, 1)));
        TRY(end_seeing(&long_one));
    }
    return tr_rpc_stop(rpc);
}

static void waits_are_recorded(void **state)
{
    (void)state;
    run_job(2, wait_for_values, NULL);
}

/* A thread of the program's may wake after the agent has ended, and the record with it. */
static tr_status wake_late(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = start(r);
    TRY(tr_status_of(rpc));
    uint64_t wait = tr__rpc_record_sleep(rpc, 1 - r->number, "something");
    CHECK(wait > 0);
    TRY(tr_rpc_stop(rpc));
    tr__rpc_record_end(rpc, wait);
    CHECK(tr__rpc_record_sleep(rpc, 1 - r->number, "something") == 0);
    return TR_OK;
}

static void the_record_ends_before_a_wait(void **state)
{
    (void)state;
    run_job(2, wake_late, NULL);
}

/* ---- Not stopping --------------------------------------------------------------------------------------------------- */

/* Calls that end by their function, by their timeout and with their worker. */
static tr_status begin_and_leave(const rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = start(r);
    TRY(tr_status_of(rpc));
    TRY(tr_barrier(r->group));
    tr_value v = tr_value_i64(150);
    for (int i = 0; i < 6; i++) {
        tr_rpc_call c = {.size = sizeof c, .rpc = rpc, .worker = i % 2, .function = "doze", .arguments = &v, .count = 1,
            .timeout_ms = i < 4 ? JOIN_MS : 50};
        TRY(tr_status_of(tr_rpc_async_with(&c)));
    }
    return TR_OK;
}

/* The last reference to an agent is that of a call, which ends on a thread of the agent's. */
static tr_status drop_what_is_under_way(rank *r)
{
    int before = count_entries("/proc/self/task");
    TRY(begin_and_leave(r));
    CHECK(more_entries("/proc/self/task", before) == 0);
    return TR_OK;
}

static void an_agent_that_is_dropped_ends_after_its_calls(void **state)
{
    (void)state;
    static const int far[] = {0, 1};
    run_job(2, drop_what_is_under_way, NULL);
    run_job_in(&(setting){.hosts = far}, 2, drop_what_is_under_way, NULL);
}

/* Serves some calls and drops its agent. */
static tr_status mirror_some(const rank *r, int calls)
{
    TR_SCOPE;
    tr_rpc *rpc = start(r);
    TRY(tr_status_of(rpc));
    TRY(tr_barrier(r->group));
    while (atomic_load(&mirrored) < calls || tr__rpc_requests(rpc)) usleep(1000);
    return TR_OK;
}

/* Worker 0 reads nothing until worker 1 is gone, and then what that has left: tensors, in blocks of its. */
static tr_status read_what_was_left(rank *r)
{
    enum { CALLS = 8, FLOATS = 4096 };
    if (r->number) {
        TRY(mirror_some(r, CALLS));
        return tr_barrier(r->group);
    }
    TR_SCOPE;
    tr_future *calls[CALLS];
    tr_rpc *rpc = start(r);
    TRY(tr_status_of(rpc));
    TRY(tr_barrier(r->group));
    pthread_mutex_lock(&rpc->reading);
    for (int i = 0; i < CALLS; i++) calls[i] = tr_rpc_async(rpc, "worker1", "mirror", tr_full(i, TR_SHAPE(FLOATS)));
    for (int ms = 0; ms < PATIENCE_MS && atomic_load(&rpc->links[1].ending) == TR__RPC_LASTS; ms++) usleep(1000);
    usleep(200000); /* its blocks are taken back right after */
    pthread_mutex_unlock(&rpc->reading);
    for (int i = 0; i < CALLS; i++) {
        TRY(tr_future_wait(calls[i]));
        CHECK(tr_item(tr_sum(tr_future_tensor(calls[i]))) == (double)i * FLOATS);
    }
    while (!atomic_load(&rpc->links[1].gone)) usleep(1000);
    CHECK(call_worker(rpc, 1) == TR_PEER);
    TRY(says("has stopped"));
    TRY(tr_barrier(r->group));
    return tr_rpc_stop(rpc); /* it left, and is no loss */
}

static void answers_are_read_whose_worker_has_dropped_its_agent(void **state)
{
    (void)state;
    static const int far[] = {0, 1};
    run_job(2, read_what_was_left, NULL);
    run_job_in(&(setting){.hosts = far}, 2, read_what_was_left, NULL);
}

/* ---- A worker that sends much --------------------------------------------------------------------------------------- */

static size_t bytes_found(const tr_rpc *rpc)
{
    size_t bytes = 0;
    for (const tr__rpc_inbound *m = rpc->found; m; m = m->next) bytes += m->frame.body + m->frame.payload;
    return bytes;
}

/* Reads of worker 1 until so much has come. The most that came at once. */
static size_t most_at_once(tr_rpc *rpc, size_t wanted)
{
    size_t most = 0;
    int64_t until = tr__now_ns() + PATIENCE_MS * (int64_t)1000000;
    pthread_mutex_lock(&rpc->reading);
    for (size_t found = bytes_found(rpc), before; found < wanted && tr__now_ns() < until;) {
        tr__rpc_poll(rpc); /* which finds that somebody reads, but hears what epoll says */
        if (tr__link_waiting(&rpc->links[1])) tr__link_read(rpc, &rpc->links[1]);
        before = found;
        found = bytes_found(rpc);
        if (found - before > most) most = found - before;
    }
    pthread_mutex_unlock(&rpc->reading);
    return most;
}

/* Worker 1 sends 32 MiB to worker 0. */
static tr_status read_by_shares(rank *r)
{
    enum { CALLS = 512, BYTES = 64 << 10, SHARE = 1 << 20 };
    TR_SCOPE;
    tr_rpc *rpc = start(r);
    TRY(tr_status_of(rpc));
    TRY(tr_barrier(r->group));
    if (r->number) {
        tr_future *calls[CALLS];
        char *text = text_of(BYTES);
        for (int i = 0; text && i < CALLS; i++) calls[i] = tr_rpc_async(rpc, "worker0", "length", text);
        free(text);
        for (int i = 0; i < CALLS; i++) TRY(tr_future_wait(calls[i]));
    } else {
        size_t most = most_at_once(rpc, (size_t)CALLS * BYTES / 2);
        if (most > SHARE + BYTES) return tr_fail(TR_INTERNAL, "%zu bytes were read at once", most);
    }
    return tr_rpc_stop(rpc);
}

static void one_who_sends_much_is_read_a_share_at_a_time(void **state)
{
    (void)state;
    static const int far[] = {0, 1};
    run_job_in(&(setting){.hosts = far}, 2, read_by_shares, NULL);
}

/* ---- With a token --------------------------------------------------------------------------------------------------- */

/* The connections of collectives are in the clear, as they are without .encrypt. */
static tr_status call_through_tls(rank *r)
{
    TR_SCOPE;
    tr__wire *wire;
    tr_rpc *rpc = start(r);
    TRY(tr_status_of(rpc));
    TRY(tr_barrier(r->group));
    TRY(call_worker(rpc, 1 - r->number));
    TRY(tr__raw_wire(rpc->group, 1 - r->number, &wire));
    CHECK(wire->tls);
    return tr_rpc_stop(rpc);
}

static void calls_between_hosts_are_encrypted(void **state)
{
    (void)state;
    static const int far[] = {0, 1};
    run_job_in(&(setting){.hosts = far, .token = true}, 2, call_through_tls, NULL);
}

/* ---- What is no message --------------------------------------------------------------------------------------------- */

/* Workers 1 to 4 send something to worker 0 by which it cannot go on. */
static tr_status send_nonsense(tr_rpc *rpc, int number)
{
    tr__rpc_writer w;
    tr__rpc_writer_begin(&w);
    tr__rpc_write_text(&w, "a body");
    tr__rpc_frame frame = {.magic = TR__RPC_MAGIC, .version = TR__RPC_VERSION, .type = TR__RPC_REQUEST,
        .body = (uint32_t)w.used};
    if (number == 1) frame.magic = 0x0a0d4649;
    if (number == 2) frame.body = TR__RPC_BODY_MAX + 1;
    if (number == 3) frame.type = TR__RPC_TYPES;
    if (number == 4) frame.version++;
    tr__rpc_link *link = &rpc->links[0];
    tr_status status = tr__link_send(rpc, link, &frame, &w);
    tr__rpc_writer_end(&w);
    return status;
}

static tr_status meet_nonsense(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = start(r);
    TRY(tr_status_of(rpc));
    TRY(tr_barrier(r->group));
    if (r->number) TRY(send_nonsense(rpc, r->number));
    for (int i = 1; i < r->world && !r->number; i++) {
        tr_status status;
        while ((status = call_worker(rpc, i)) == TR_OK) continue; /* it has not come yet */
        CHECK(status == TR_FORMAT);
        TRY(says("sends what is no message of ours"));
    }
    if (r->number) {
        tr_status status;
        while ((status = call_worker(rpc, 0)) == TR_OK) continue;
        CHECK(status == TR_PEER);
        TRY(says("has closed its connection"));
        TRY(call_worker(rpc, r->number % (r->world - 1) + 1)); /* with others it is as before */
    }
    TRY(tr_barrier(r->group));
    CHECK(tr_rpc_stop(rpc) == (r->number ? TR_PEER : TR_FORMAT));
    return says("tr_rpc_stop: worker ");
}

/* Worker 2 lets go of a value of worker 1's, and then loses worker 0, but not worker 1. So worker 0, which asks who is done, never
 * hears that the message which worker 1 has heard was sent. */
static tr_status drop_and_meet_nonsense(rank *r)
{
    TR_SCOPE;
    tr_status status = TR_OK;
    tr_rpc *rpc = start(r);
    TRY(tr_status_of(rpc));
    TRY(tr_barrier(r->group));
    if (r->number == 2) {
        TR_SCOPE;
        TRY(tr_future_wait(tr_rref_to_here(tr_remote(rpc, "worker1", "twice", 21))));
        TRY(send_nonsense(rpc, 1));
    }
    while (r->number != 1 && status == TR_OK) status = call_worker(rpc, 2 - r->number);
    CHECK(r->number == 1 || status == (r->number ? TR_PEER : TR_FORMAT));
    TRY(tr_barrier(r->group));
    CHECK(tr_rpc_stop(rpc) == (r->number == 2 ? TR_PEER : TR_FORMAT));
    return says("tr_rpc_stop: worker ");
}

static void what_is_no_message_ends_that_link_alone(void **state)
{
    (void)state;
    static const int near[] = {0, 0, 0, 0, 0}, far[] = {0, 1, 2, 1, 2};
    run_job_in(&(setting){.hosts = near}, 5, meet_nonsense, NULL);
    run_job_in(&(setting){.hosts = far}, 5, meet_nonsense, NULL);
}

static void messages_of_who_is_lost_are_not_waited_for(void **state)
{
    (void)state;
    run_job(3, drop_and_meet_nonsense, NULL);
}

/* Workers 0 and 1 lose each other, and worker 2, whose links last, hears of it from one of them. */
static tr_status hear_of_a_loss(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = start(r);
    TRY(tr_status_of(rpc));
    TRY(tr_barrier(r->group));
    if (r->number == 1) TRY(send_nonsense(rpc, 1));
    while (r->number < 2 && call_worker(rpc, 1 - r->number) == TR_OK) continue;
    TRY(tr_barrier(r->group));
    tr_status status = tr_rpc_stop(rpc);
    bool by_0 = status == TR_FORMAT && says("tr_rpc_stop: worker 1 (\"worker1\"") == TR_OK;
    bool by_1 = status == TR_PEER && says("tr_rpc_stop: worker 0 (\"worker0\"") == TR_OK;
    if ((by_0 && r->number != 1) || (by_1 && r->number != 0)) return TR_OK;
    return tr_fail(TR_INTERNAL, "tr_rpc_stop: %s", tr_status_name(status));
}

static void all_hear_who_was_lost(void **state)
{
    (void)state;
    static const int far[] = {0, 1, 2};
    run_job(3, hear_of_a_loss, NULL);
    run_job_in(&(setting){.hosts = far}, 3, hear_of_a_loss, NULL);
}

/* A message with a piece that lies there. */
static tr_status send_place(tr_rpc *rpc, tr__rpc_place place)
{
    tr__rpc_writer w;
    tr__rpc_writer_begin(&w);
    tr__rpc_write_bytes(&w, &place, sizeof place);
    tr__rpc_frame frame = {.magic = TR__RPC_MAGIC, .version = TR__RPC_VERSION, .type = TR__RPC_REQUEST, .pieces = 1,
        .payload = place.bytes};
    tr_status status = tr__link_send(rpc, &rpc->links[0], &frame, &w);
    tr__rpc_writer_end(&w);
    return status;
}

/* Worker 1's message has a piece in a block that nobody has shown. It may come late, and does not. */
static tr_status name_no_block(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = start(r);
    TRY(tr_status_of(rpc));
    int64_t before = tr__now_ns();
    TRY(tr_barrier(r->group));
    if (r->number) TRY(send_place(rpc, (tr__rpc_place){.segment = INT64_MAX, .bytes = 3000}));
    rpc->timeout_ms = 100; /* shorter than a block is waited for in any case */
    for (int ms = 0; ms < PATIENCE_MS && !atomic_load(&rpc->links[1 - r->number].gone); ms++) usleep(1000);
    if (r->number == 0) {
        CHECK(call_worker(rpc, 1) == TR_TIMEOUT);
        TRY(says("has not shown in time the shared memory that a message of its names"));
        CHECK(tr__now_ns() - before > 9000000000);
    }
    return tr_barrier(r->group);
}

static void a_block_that_does_not_come_is_named(void **state)
{
    (void)state;
    run_job(2, name_no_block, NULL);
}

/* Worker 1's message has a piece in a block of worker 0's that it was not sent. */
static tr_status return_no_block(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = start(r);
    TRY(tr_status_of(rpc));
    TRY(tr_barrier(r->group));
    if (r->number) TRY(send_place(rpc, (tr__rpc_place){.segment = TR__RPC_YOURS | 1, .bytes = 3000}));
    tr_status status;
    while ((status = call_worker(rpc, 1 - r->number)) == TR_OK) continue; /* it has not come yet */
    CHECK(status == (r->number ? TR_PEER : TR_FORMAT));
    TRY(says(r->number ? "has closed its connection" : "sends what is no message of ours"));
    return tr_barrier(r->group);
}

static void a_block_that_was_not_sent_cannot_come_back(void **state)
{
    (void)state;
    run_job(2, return_no_block, NULL);
}

/* Worker 0 is stopped while worker 1 writes nonsense and dies: it then hears of both at once. Worker 0's threads sleep afterwards. */
typedef enum moment { BEFORE, STOPPED, DEAD } moment;
static _Atomic int *now; /* a moment, which both and the test share */

static tr_status write_nonsense_and_die(rank *r)
{
    TR_SCOPE;
    tr_rpc *rpc = start(r);
    TRY(tr_status_of(rpc));
    TRY(tr_barrier(r->group));
    atomic_fetch_add(&r->post->turns, 1);
    while (atomic_load(now) != (r->number ? STOPPED : DEAD)) usleep(1000);
    if (r->number) {
        (void)!send_nonsense(rpc, 1);
        raise(SIGKILL);
    }
    usleep(300000);
    clock_t before = clock();
    usleep(700000);
    CHECK(clock() - before < CLOCKS_PER_SEC / 5);
    tr_status status;
    while ((status = call_worker(rpc, 1)) == TR_OK) continue;
    CHECK(status == TR_FORMAT || status == TR_PEER);
    return TR_OK;
}

static void nobody_waits_for_the_rest_of_nonsense(void **state)
{
    (void)state;
    now = mmap(NULL, sizeof *now, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(now != MAP_FAILED);
    for (int turn = 0; turn < 3; turn++) {
        job j;
        siginfo_t ended;
        atomic_store(now, BEFORE);
        start_job(&j, 2, write_nonsense_and_die, NULL);
        for (int i = 0; i < 2; i++) await_turns(&j, i, 1);
        stop_rank(&j, 0);
        atomic_store(now, STOPPED);
        assert_int_equal(waitid(P_PID, (id_t)j.ranks[1].pid, &ended, WEXITED | WNOWAIT), 0);
        atomic_store(now, DEAD);
        assert_int_equal(kill(j.ranks[0].pid, SIGCONT), 0);
        reap(&j, 0);
        if (j.posts[0].status != TR_OK) fail_msg("%s", j.posts[0].text);
        finish(&j);
    }
    munmap((void *)now, sizeof *now);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waits_are_recorded),
        cmocka_unit_test(the_record_ends_before_a_wait),
        cmocka_unit_test(an_agent_that_is_dropped_ends_after_its_calls),
        cmocka_unit_test(answers_are_read_whose_worker_has_dropped_its_agent),
        cmocka_unit_test(one_who_sends_much_is_read_a_share_at_a_time),
        cmocka_unit_test(a_block_that_does_not_come_is_named),
        cmocka_unit_test(a_block_that_was_not_sent_cannot_come_back),
        cmocka_unit_test(calls_between_hosts_are_encrypted),
        cmocka_unit_test(what_is_no_message_ends_that_link_alone),
        cmocka_unit_test(messages_of_who_is_lost_are_not_waited_for),
        cmocka_unit_test(all_hear_who_was_lost),
        cmocka_unit_test(nobody_waits_for_the_rest_of_nonsense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
