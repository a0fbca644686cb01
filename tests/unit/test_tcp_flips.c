/*
 * Bits that flip between the ranks of a group over TCP in the clear, in collectives and in calls: every rank has right results or an
 * error, and somebody names the peer. Ranks are threads on pretended hosts; recv() and recvmsg() of this program flip a bit of what a TCP socket gives.
 *
 *   test_tcp_flips [-runs=N [-seed=S]]
 */
#define _GNU_SOURCE
#include "comm_ranks.h"
#include "net/network.h"
#include "trial.h"

#include <trireme/rpc.h>

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- The flip ----------------------------------------------------------------------------------------------------- */

static atomic_bool armed;
static _Atomic int64_t seen, target; /* bytes that TCP sockets gave while armed; of these, the one that is damaged */
static atomic_int bit;
static atomic_bool greetings; /* only the bytes of greetings count, and are damaged */
static atomic_bool greeting;  /* the bit was in one */

/* What a connection made on demand begins with. */
static bool is_greeting(const struct iovec *parts, size_t count, ssize_t got)
{
    const tr__hello *hello = parts[0].iov_base;
    return count == 1 && got == sizeof *hello && parts[0].iov_len == sizeof *hello && hello->magic == TR__NETWORK_MAGIC;
}

/* Flips the bit if it is among these bytes. */
static void pass(int fd, const struct iovec *parts, size_t count, ssize_t got)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    if (got <= 0 || !atomic_load(&armed)) return;
    if (getsockname(fd, (struct sockaddr *)&address, &length) != 0 || address.ss_family == AF_UNIX) return;
    bool greets = is_greeting(parts, count, got);
    if (atomic_load(&greetings) && !greets) return;
    int64_t begin = atomic_fetch_add(&seen, got), at = atomic_load(&target) - begin;
    if (at < 0 || at >= got) return;
    atomic_store(&greeting, greets);
    for (size_t i = 0; i < count; at -= (int64_t)parts[i++].iov_len) {
        if (at >= (int64_t)parts[i].iov_len) continue;
        ((unsigned char *)parts[i].iov_base)[at] ^= (unsigned char)(1 << atomic_load(&bit));
        return;
    }
}

ssize_t recv(int fd, void *bytes, size_t count, int flags)
{
    static ssize_t (*_Atomic real)(int, void *, size_t, int);
    if (!real) real = (ssize_t(*)(int, void *, size_t, int))dlsym(RTLD_NEXT, "recv");
    ssize_t got = real(fd, bytes, count, flags);
    if (!(flags & MSG_PEEK)) pass(fd, &(struct iovec){bytes, count}, 1, got);
    return got;
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    static ssize_t (*_Atomic real)(int, struct msghdr *, int);
    if (!real) real = (ssize_t(*)(int, struct msghdr *, int))dlsym(RTLD_NEXT, "recvmsg");
    ssize_t got = real(fd, message, flags);
    pass(fd, message->msg_iov, message->msg_iovlen, got);
    return got;
}

/* ---- What the ranks do --------------------------------------------------------------------------------------------- */

enum { COUNT = 60000, RANKS = 3 };

typedef struct outcome {
    void (*work)(rank *r);
    atomic_int failed, named; /* ranks with an error; those whose error says that a peer's message was damaged */
} outcome;

static float value(int from, int64_t i)
{
    return (float)((from * 7 + i) % 64);
}

/* False when a call has failed, which is noted. */
static bool well(rank *r, tr_status status)
{
    if (status == TR_OK) return true;
    outcome *o = (outcome *)r->arg;
    atomic_fetch_add(&o->failed, 1);
    if (getenv("SHOW")) fprintf(stderr, "rank %d: %s\n", r->number, tr_error_message());
    bool cut_off = strstr(tr_error_message(), "has closed its connection"); /* what a worker hears that is not believed any more */
    if (cut_off || strstr(tr_error_message(), "sent a damaged message")) atomic_fetch_add(&o->named, 1);
    return false;
}

static void work(rank *r)
{
    float *own = malloc(COUNT * sizeof *own), *all = malloc((size_t)r->world * COUNT * sizeof *all);
    int next = (r->number + 1) % r->world, before = (r->number + r->world - 1) % r->world;
    bool sound = own && all;
    int64_t wrong = 0;
    for (int turn = 0; turn < 2 && sound; turn++) {
        int64_t count = turn ? 500 : COUNT;
        for (int64_t i = 0; i < count; i++) own[i] = value(r->number, i);
        sound = well(r, tr_all_reduce(r->group, own, count));
        for (int64_t i = 0; i < count && sound; i++) wrong += own[i] != value(0, i) + value(1, i) + value(2, i);
        for (int64_t i = 0; i < count; i++) own[i] = value(r->number, i);
        sound = sound && well(r, tr_all_gather(r->group, own, all, count));
        for (int64_t i = 0; i < r->world * count && sound; i++) wrong += all[i] != value((int)(i / count), i % count);
        tr_work *sent = sound ? tr_send_async(r->group, own, count, .peer = next) : NULL;
        sound = sound && well(r, tr_recv(r->group, all, count, .peer = before)) && well(r, tr_wait(sent));
        for (int64_t i = 0; i < count && sound; i++) wrong += all[i] != value(before, i);
    }
    free(own);
    free(all);
    CHECK(wrong == 0);
}

/* All are here; what comes from the first time to the second may be damaged. */
static void meet(rank *r, bool begins)
{
    atomic_int *ready = (atomic_int *)((outcome *)r->arg + 1);
    atomic_fetch_add(ready, 1);
    while (atomic_load(ready) < (begins ? 1 : 2) * r->world) usleep(100);
    atomic_store(&armed, begins);
}

static tr_tensor *echo(tr_tensor *x)
{
    return x;
}
TR_RPC(echo, TENSOR, RETURNS(TENSOR));

/* Calls of all workers by all, with small tensors and with large ones. Only what these say is damaged. */
static void call_others(rank *r)
{
    TR_SCOPE;
    bool sound = true;
    int64_t wrong = 0;
    tr_rpc *rpc = tr_rpc_start(r->group, .timeout_ms = JOIN_MS);
    OK(tr_rpc_register(rpc, &echo_rpc));
    meet(r, true);
    for (int turn = 0; turn < 3 * r->world && sound; turn++) {
        int to = turn % r->world;
        if (to == r->number) continue;
        int64_t count = turn < r->world ? COUNT : 300;
        tr_tensor *x = tr_zeros(TR_SHAPE(count));
        for (int64_t i = 0; i < count; i++) ((float *)tr_data(x))[i] = value(r->number, i);
        tr_future *f = tr_rpc_sync(rpc, tr_rpc_name(rpc, to), "echo", x);
        sound = well(r, tr_future_wait(f));
        const float *y = sound ? tr_data(tr_future_tensor(f)) : NULL;
        for (int64_t i = 0; y && i < count; i++) wrong += y[i] != value(r->number, i);
    }
    meet(r, false);
    well(r, tr_rpc_stop(rpc)); /* who sent a damaged message is lost */
    CHECK(wrong == 0);
}

static void work_together(rank *r)
{
    if (!well(r, tr_barrier(r->group))) return;
    meet(r, true); /* nobody is in the barrier any more */
    work(r);
    meet(r, false);
}

static void body(rank *r)
{
    ((outcome *)r->arg)->work(r);
}

static outcome run_flipped(void (*what)(rank *r), int64_t at, int which)
{
    struct {
        outcome outcome;
        atomic_int ready;
    } shared = {.outcome = {.work = what}};
    static const int hosts[RANKS] = {0, 1, 2};
    atomic_store(&seen, 0);
    atomic_store(&target, at);
    atomic_store(&bit, which);
    atomic_store(&greeting, false);
    run_hosts(hosts, RANKS, body, &shared);
    return shared.outcome;
}

static unsigned long long runs = 100, seed = 1;

static void overlook_none(void (*what)(rank *r), unsigned long long times)
{
    outcome o = run_flipped(what, -1, 0);
    assert_int_equal(o.failed, 0);
    int64_t bytes = atomic_load(&seen);
    assert_true(bytes > 2 * RANKS * COUNT * (int64_t)sizeof(float));
    for (unsigned long long i = 0; i < times; i++) {
        uint64_t draws = seed + i;
        int64_t at = (int64_t)(trial_draw(&draws) % (uint64_t)bytes);
        o = run_flipped(what, at, (int)(trial_draw(&draws) % 8));
        bool flipped = atomic_load(&seen) > at; /* calls are timed differently: there may be fewer bytes */
        bool made_again = atomic_load(&greeting) && !o.failed; /* as below */
        if (flipped && !o.named && !made_again) fail_msg("-runs=1 -seed=%llu: nobody names who sent a damaged message", seed + i);
        if (!flipped) assert_int_equal(o.failed, 0);
    }
}

static void no_flip_is_overlooked(void **state)
{
    (void)state;
    overlook_none(work_together, runs);
}

/* Who is not believed any more hears so after half a second. */
static void no_flip_in_a_call_is_overlooked(void **state)
{
    (void)state;
    overlook_none(call_others, (runs + 4) / 5);
}

/* The one that is called refuses a damaged greeting, and the connection is made again. An answer that is damaged is an error that
 * names who sent it: there the connection counts as made already. */
static void a_damaged_greeting_is_repeated_or_an_error(void **state)
{
    (void)state;
    atomic_store(&greetings, true);
    outcome o = run_flipped(work_together, -1, 0);
    int64_t bytes = atomic_load(&seen), errors = 0, repeated = 0;
    assert_true(bytes >= 2 * (int64_t)sizeof(tr__hello));
    for (int64_t at = 0; at < bytes; at += 13) {
        o = run_flipped(work_together, at, (int)(at % 8));
        bool flipped = atomic_load(&seen) > at;
        if (o.failed && !o.named) fail_msg("byte %lld: %d ranks fail, and nobody names who sent it", (long long)at, o.failed);
        errors += flipped && o.named;
        repeated += flipped && !o.failed;
    }
    assert_true(errors > 0 && repeated > 0);
    atomic_store(&greetings, false);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (sscanf(argv[i], "-runs=%llu", &runs) != 1 && sscanf(argv[i], "-seed=%llu", &seed) != 1)
            return fprintf(stderr, "%s [-runs=N [-seed=S]]\n", argv[0]), 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_flip_is_overlooked),
        cmocka_unit_test(no_flip_in_a_call_is_overlooked),
        cmocka_unit_test(a_damaged_greeting_is_repeated_or_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
