/* trireme bench rpc: how long a call to a function of another process takes that gives back what it gets. */
#include "bench.h"
#include "bench_result.h"

#include "clock.h"
#include "options.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 5, CALLS_MOST = 2000, CALLS_LEAST = 20, ROUND_US = 150000, CALLERS_MOST = 64, CALLER_CALLS = 2000 };

typedef struct rpc_bench {
    tr__sizes sizes;
    int callers;
    bool insecure;
    bool operator_too; /* also a function with a result of its own; the peer's is an operator that it has built in */
    const char *peer, *json, *transport;
    tr_rpc *rpc;
    tr__bare_stream *stream; /* for bare rounds of the same bytes; NULL: the ranks share memory */
    tr__peer other;
    double us[TR__SIZES_MAX], raw_us[TR__SIZES_MAX], peer_us[TR__SIZES_MAX]; /* medians */
    double operator_us[TR__SIZES_MAX], peer_operator_us[TR__SIZES_MAX];
    double rate, peer_rate; /* calls per second of all callers */
} rpc_bench;

static tr_tensor *echo(tr_tensor *x)
{
    return x;
}
TR_RPC(echo, TENSOR, RETURNS(TENSOR));

static tr_tensor *add_one(tr_tensor *x)
{
    return tr_add(x, tr_scalar(1, TR_F32));
}
TR_RPC(add_one, TENSOR, RETURNS(TENSOR));

/* ---- One caller -------------------------------------------------------------------------------------------------- */

static tr_status call(const rpc_bench *b, const char *function, tr_tensor *x)
{
    TR_SCOPE;
    return tr_future_wait(tr_rpc_sync(b->rpc, "server", function, x));
}

/* The median time of so many calls. */
static tr_status time_calls(const rpc_bench *b, const char *function, tr_tensor *x, int calls, double *us)
{
    double times[CALLS_MOST];
    for (int i = 0; i < calls; i++) {
        double began = tr__now_us();
        TRY(call(b, function, x));
        times[i] = tr__now_us() - began;
    }
    *us = tr__median(times, calls);
    return TR_OK;
}

static bool ask_peer(rpc_bench *b, const char *what, long long first, int second, double *answer)
{
    char line[96];
    snprintf(line, sizeof line, "%s %lld %d", what, first, second);
    return tr__peer_ask(&b->other, line, answer);
}

/* The median of as many bare rounds, when the last call is long enough ago for the threads that served it to sleep. */
static tr_status time_raw(const rpc_bench *b, int64_t bytes, int rounds, double *us)
{
    double times[CALLS_MOST];
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (!tr__bare_stream_time(b->stream, bytes, rounds, times)) return tr_fail(TR_IO, "the bare connection has failed");
    *us = tr__median(times, rounds);
    return TR_OK;
}

/* We, the bare connection and the peer take turns. */
static tr_status measure_size(rpc_bench *b, int size)
{
    TR_SCOPE;
    int64_t bytes = b->sizes.bytes[size];
    tr_tensor *x = tr_zeros(TR_SHAPE(bytes / 4));
    double ours[ROUNDS], raw[ROUNDS], theirs[ROUNDS], added[ROUNDS], their_added[ROUNDS], once = 0;
    TRY(time_calls(b, "echo", x, CALLS_LEAST, &once));
    int calls = once > 0 ? (int)(ROUND_US / once) : CALLS_MOST;
    calls = calls > CALLS_MOST ? CALLS_MOST : calls < CALLS_LEAST ? CALLS_LEAST : calls;
    int peer_calls = calls / 5 > CALLS_LEAST ? calls / 5 : CALLS_LEAST;
    for (int round = 0; round < ROUNDS; round++) {
        TRY(time_calls(b, "echo", x, calls, &ours[round]));
        if (b->stream) TRY(time_raw(b, bytes, calls, &raw[round]));
        if (b->peer && !ask_peer(b, "echo", (long long)bytes, peer_calls, &theirs[round])) return TR_CHILD;
        if (!b->operator_too) continue;
        TRY(time_calls(b, "add_one", x, calls, &added[round]));
        if (!ask_peer(b, "operator", (long long)bytes, peer_calls, &their_added[round])) return TR_CHILD;
    }
    b->us[size] = tr__median(ours, ROUNDS);
    if (b->stream) b->raw_us[size] = tr__median(raw, ROUNDS);
    if (b->peer) b->peer_us[size] = tr__median(theirs, ROUNDS);
    if (b->operator_too) b->operator_us[size] = tr__median(added, ROUNDS);
    if (b->operator_too) b->peer_operator_us[size] = tr__median(their_added, ROUNDS);
    return TR_OK;
}

/* ---- Several callers --------------------------------------------------------------------------------------------- */

static void *be_caller(void *arg)
{
    TR_SCOPE;
    const rpc_bench *b = arg;
    tr_tensor *x = tr_zeros(TR_SHAPE(1));
    for (int i = 0; i < CALLER_CALLS; i++)
        if (call(b, "echo", x) != TR_OK) return arg;
    return NULL;
}

static tr_status rate_once(rpc_bench *b, double *rate)
{
    pthread_t threads[CALLERS_MOST];
    int started = 0;
    bool failed = false;
    double began = tr__now_us();
    while (started < b->callers && pthread_create(&threads[started], NULL, be_caller, b) == 0) started++;
    for (int i = 0; i < started; i++) {
        void *result;
        pthread_join(threads[i], &result);
        failed |= result != NULL;
    }
    *rate = 1e6 * started * CALLER_CALLS / (tr__now_us() - began);
    return failed || started < b->callers ? tr_fail(TR_INTERNAL, "a caller failed") : TR_OK;
}

static tr_status measure_rate(rpc_bench *b)
{
    double ours[ROUNDS], theirs[ROUNDS];
    for (int round = 0; round < ROUNDS && b->callers; round++) {
        TRY(rate_once(b, &ours[round]));
        if (b->peer && !ask_peer(b, "callers", b->callers, CALLER_CALLS / 10, &theirs[round])) return TR_CHILD;
    }
    if (!b->callers) return TR_OK;
    b->rate = tr__median(ours, ROUNDS);
    if (b->peer) b->peer_rate = tr__median(theirs, ROUNDS);
    return TR_OK;
}

/* ---- Reporting --------------------------------------------------------------------------------------------------- */

static void print_results(const rpc_bench *b)
{
    printf("echo of f32 by another process, medians in microseconds\n%12s %11s%s%s%s\n", "bytes", "trireme",
        b->stream ? "         raw   / raw" : "", b->peer ? "        peer   ratio" : "",
        b->operator_too ? "     add one        peer   ratio" : "");
    for (int i = 0; i < b->sizes.count; i++) {
        printf("%12lld %11.1f", (long long)b->sizes.bytes[i], b->us[i]);
        if (b->stream) printf(" %11.1f %7.2f", b->raw_us[i], b->us[i] / b->raw_us[i]);
        if (b->peer) printf(" %11.1f %7.1f", b->peer_us[i], b->peer_us[i] / b->us[i]);
        if (b->operator_too)
            printf(" %11.1f %11.1f %7.1f", b->operator_us[i], b->peer_operator_us[i], b->peer_operator_us[i] / b->operator_us[i]);
        printf("\n");
    }
    if (b->callers) printf("%d callers: %.0f calls/s", b->callers, b->rate);
    if (b->callers && b->peer) printf(", peer %.0f, ratio %.1f", b->peer_rate, b->rate / b->peer_rate);
    if (b->callers) printf("\n");
}

static int write_results(const rpc_bench *b)
{
    const char *way = !b->stream ? "shared" : b->insecure ? "hosts-clear" : "hosts-tls";
    cJSON *o = tr__result_new(b->other.version, "rpc/%s%s", way, b->peer ? "" : "/alone");
    cJSON *results = cJSON_AddArrayToObject(o, "results");
    for (int i = 0; i < b->sizes.count; i++) {
        cJSON *r = cJSON_CreateObject();
        TR__ADD_NUMBERS(r, {"bytes", (double)b->sizes.bytes[i]}, {"median_us", b->us[i]});
        if (b->stream) TR__ADD_NUMBERS(r, {"raw_median_us", b->raw_us[i]}, {"of_raw", b->us[i] / b->raw_us[i]});
        if (b->peer) TR__ADD_NUMBERS(r, {"peer_median_us", b->peer_us[i]}, {"ratio", b->peer_us[i] / b->us[i]});
        if (b->operator_too)
            TR__ADD_NUMBERS(r, {"operator_us", b->operator_us[i]}, {"peer_operator_us", b->peer_operator_us[i]},
                {"operator_ratio", b->peer_operator_us[i] / b->operator_us[i]});
        cJSON_AddItemToArray(results, r);
    }
    cJSON_AddNumberToObject(o, "callers", b->callers);
    if (b->callers) cJSON_AddNumberToObject(o, "calls_per_s", b->rate);
    if (b->callers && b->peer) TR__ADD_NUMBERS(o, {"peer_calls_per_s", b->peer_rate}, {"calls_ratio", b->rate / b->peer_rate});
    return tr__write_json(TR__BENCH, o, b->json);
}

/* ---- The two ranks ----------------------------------------------------------------------------------------------- */

static tr_status measure_all(rpc_bench *b)
{
    if (b->peer && !tr__peer_start(&b->other, 1, "%s", b->peer)) return TR_CHILD;
    b->operator_too = b->operator_too && b->peer;
    tr_status status = TR_OK;
    for (int i = 0; i < b->sizes.count && status == TR_OK; i++) status = measure_size(b, i);
    if (status == TR_OK) status = measure_rate(b);
    if (b->peer) tr__peer_stop(&b->other);
    return status;
}

/* Between ranks that do not share memory. */
static tr_status open_stream(rpc_bench *b, tr_group *world)
{
    int local;
    tr_launched(NULL, NULL, &local);
    bool shares = local == tr_world_size(world) && !b->transport;
    if (shares) return TR_OK;
    tr_status status = tr__bare_stream_open(world, &b->stream);
    if (status == TR_OK) status = tr__bare_stream_bounces(b->stream);
    return status == TR_IO ? tr_fail(TR_IO, "no bare connection between the ranks") : status;
}

static tr_status run_agent(rpc_bench *b, tr_group *world)
{
    b->rpc = tr_rpc_start(world, .name = tr_rank(world) ? "server" : "client");
    TRY(tr_rpc_register(b->rpc, &echo_rpc));
    TRY(tr_rpc_register(b->rpc, &add_one_rpc));
    TRY(tr_barrier(world));
    if (tr_rank(world) == 0) TRY(measure_all(b));
    return tr_rpc_stop(b->rpc);
}

static tr_status run_rank(rpc_bench *b, tr_group *world)
{
    tr_status status = open_stream(b, world);
    if (status == TR_OK) status = run_agent(b, world);
    tr__bare_stream_close(b->stream);
    return status == TR_OK ? tr_leave(world) : status;
}

static int be_rank(void *self)
{
    rpc_bench *b = self;
    TR_SCOPE;
    tr_group *world = tr_join(.transport = b->transport, .insecure = b->insecure);
    if (tr_status_of(world) == TR_OK) tr__take_core(tr_rank(world), tr_world_size(world));
    tr_status status = run_rank(b, world);
    if (status != TR_OK) return tr__bench_failed(status);
    if (tr_rank(world) != 0) return TR__EXIT_OK;
    print_results(b);
    return write_results(b);
}

static int check_sizes(void *self)
{
    return tr__check_f32(&((const rpc_bench *)self)->sizes);
}

int tr__bench_rpc(int argc, char **argv)
{
    rpc_bench b = {.sizes = {.bytes = {4, 64 << 10, 4 << 20}, .count = 3}, .callers = 8};
    const tr__option options[] = {
        {"bytes", 0, "LIST", "sizes of the tensor, such as 4,64K,4M", TR__SIZES(&b.sizes)},
        {"callers", 0, "N", "threads that call at once, for the rate; 0: none", TR__INTEGER(&b.callers, 0, CALLERS_MOST)},
        {"peer", 0, "COMMAND",
            "a program to take turns with: it prints \"ready\"; for \"echo BYTES CALLS\" the median\n"
            "                            microseconds of a call, for \"callers N CALLS\" the calls per second",
            TR__TEXT(&b.peer)},
        {"operator", 0, NULL,
            "with --peer: also a function that adds 1 to the tensor; for \"operator BYTES CALLS\" the peer\n"
            "                            times an operator that it has built in, where an echo may run in its interpreter",
            TR__FLAG(&b.operator_too)},
        {"transport", 0, "NAME", "tcp: between ranks of one host, too; then, and between hosts, beside a bare connection",
            TR__TEXT(&b.transport)},
        {"insecure", 0, NULL, "between hosts that trust their network, without TRIREME_TOKEN: in the clear",
            TR__FLAG(&b.insecure)},
        {"json", 0, "FILE", "write the results as a JSON object", TR__OUTPUT(&b.json)},
        {0},
    };
    const tr__syntax syntax = {"bench rpc", NULL,
        "Times calls to a function of another process that gives back the tensor that it gets.", options,
        .operands = {0, 0}};
    return tr__bench_run(&(tr__bench_job){&syntax, &(int){2}, check_sizes, be_rank, &b}, argc, argv);
}
