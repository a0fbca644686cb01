/*
 * trireme bench all-reduce and the others: how long a collective takes, by size. Every rank makes the same calls back to
 * back; rank 0's times count. Rounds alternate with the peer's and, for all-reduce, with the bare loop that is its limit.
 */
#include "bench.h"
#include "bench_result.h"

#include "clock.h"
#include "options.h"
#include "terminal.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 5, MOST_CALLS = 2000, PAGE = 4096 };

/* Bytes of a rank's input and output when a collective of `bytes` runs on n ranks: bytes, or n blocks of them. */
typedef struct bench_kind {
    const char *name;
    tr_collective_kind kind;
    bool in_blocks, out_blocks;
} bench_kind;

static const bench_kind kinds[] = {
    {"all-reduce", TR_ALL_REDUCE, false, false},  {"reduce", TR_REDUCE, false, false},
    {"broadcast", TR_BROADCAST, false, false},    {"all-gather", TR_ALL_GATHER, false, true},
    {"gather", TR_GATHER, false, true},           {"scatter", TR_SCATTER, true, false},
    {"reduce-scatter", TR_REDUCE_SCATTER, true, false}, {"all-to-all", TR_ALL_TO_ALL, true, true},
    {"send-recv", TR_SEND, false, false},         {"barrier", TR_BARRIER, false, false},
};

/* Where the numbers lie: the same registered memory again and again, more of it than the caches hold, or memory that the
 * other ranks cannot map. */
typedef enum bench_place { WARM, COLD, PRIVATE, LIMIT, RING, PEER, PLACES } bench_place;
static const char *const place_names[PLACES] = {"warm", "cold", "private", "limit", "ring", "peer"};

typedef struct collective_run {
    const bench_kind *kind;
    int ranks;
    tr__sizes sizes;
    int cold_mb;
    const char *peer_command, *json, *transport;
    tr_group *group;
    int rank, world;
    char *shared, *own;   /* [pool] */
    int64_t pool;         /* bytes */
    tr__probe *probe;     /* NULL: not an all_reduce, one rank, or ranks on several hosts, which have a stream, */
    tr__bare_stream *stream;
    tr__bare_ring *ring;       /* and of an all_reduce bare streams between all ranks, too */
    tr__peer peer;
    double median_us[TR__SIZES_MAX][PLACES]; /* NaN: not measured */
} collective_run;

/* ---- One call ---------------------------------------------------------------------------------------------------- */

static int64_t in_bytes(const collective_run *r, int64_t bytes) { return bytes * (r->kind->in_blocks ? r->world : 1); }
static int64_t out_bytes(const collective_run *r, int64_t bytes) { return bytes * (r->kind->out_blocks ? r->world : 1); }

/* What a call takes of the pool, in whole pages. */
static int64_t stride(const collective_run *r, int64_t bytes)
{
    int64_t need = in_bytes(r, bytes) + PAGE + out_bytes(r, bytes);
    return (need + PAGE - 1) / PAGE * PAGE;
}

/* A number goes to the next rank and back from the one before: half of it is what a message takes. */
static tr_status send_and_receive(const collective_run *r, char *memory, int64_t count)
{
    if (r->world == 1 || r->rank > 1) return TR_OK;
    TRY(r->rank == 0 ? tr_send(r->group, memory, count, .peer = 1) : tr_recv(r->group, memory, count, .peer = 0));
    return r->rank == 0 ? tr_recv(r->group, memory, count, .peer = 1) : tr_send(r->group, memory, count, .peer = 0);
}

static tr_status call(const collective_run *r, char *memory, int64_t bytes)
{
    int64_t count = bytes / (int64_t)sizeof(float);
    if (r->kind->kind == TR_SEND) return send_and_receive(r, memory, count);
    bool in_place = !r->kind->in_blocks && !r->kind->out_blocks;
    tr_collective c = {.size = sizeof c, .kind = r->kind->kind, .in = memory, .out = memory, .count = count,
        .dtype = TR_F32, .file = __FILE__, .line = __LINE__};
    if (!in_place) c.out = memory + (in_bytes(r, bytes) + PAGE - 1) / PAGE * PAGE;
    return tr_run_collective(r->group, &c);
}

/* ---- Measuring --------------------------------------------------------------------------------------------------- */

/* What a rank, or the root, has to send when nothing goes twice over its link. */
static int64_t sent_bytes(const collective_run *r, int64_t bytes)
{
    return r->kind->kind == TR_ALL_REDUCE ? 2 * bytes * (r->world - 1) / r->world : bytes;
}

/* The median of `calls` calls, in microseconds. */
static tr_status measure(const collective_run *r, bench_place place, int64_t bytes, int calls, double *us)
{
    static double times[MOST_CALLS];
    int64_t step = stride(r, bytes), at = 0;
    char *memory = place == PRIVATE ? r->own : r->shared;
    tr_status status = tr_barrier(r->group);
    for (int i = 0; i < calls && status == TR_OK; i++) {
        double begin = tr__now_us();
        if (place == LIMIT && r->stream) status = tr__bare_stream_run(r->stream, sent_bytes(r, bytes));
        else if (place == RING) status = tr__bare_ring_run(r->ring, bytes);
        else if (place == LIMIT) tr__probe_run(r->probe, bytes);
        else status = call(r, memory + at, bytes);
        times[i] = tr__now_us() - begin;
        if (place != COLD) continue;
        at += step;
        if (at + step > r->pool) at = 0;
    }
    *us = tr__median(times, calls) / (r->kind->kind == TR_SEND && place != LIMIT ? 2 : 1);
    return status;
}

/* How many calls of so many microseconds take about a fifth of a second. */
static int calls_for(double us)
{
    return us > 0 && us < 2e5 / 5 ? (int)fmin(MOST_CALLS, 2e5 / us) : 5;
}

/* For all ranks the same. */
static tr_status count_calls(const collective_run *r, int64_t bytes, int *calls)
{
    double us;
    TRY(measure(r, WARM, bytes, 5, &us));
    int32_t n = calls_for(us);
    TRY(tr_broadcast(r->group, &n, 1, .dtype = TR_I32));
    *calls = n;
    return TR_OK;
}

/* The peer's first round only tells how many calls make up a good one. */
static tr_status ask_peer(collective_run *r, int64_t bytes, int *calls, double *us)
{
    char line[128];
    snprintf(line, sizeof line, "%s %lld %d", r->kind->name, (long long)bytes, *calls);
    if (!tr__peer_ask(&r->peer, line, us)) return TR_CHILD;
    *calls = calls_for(*us);
    return TR_OK;
}

static bool wanted(const collective_run *r, bench_place place)
{
    if (place == LIMIT) return r->probe || r->stream;
    if (place == RING) return r->ring;
    return place != PEER || r->peer_command;
}

static tr_status measure_size(collective_run *r, int size)
{
    double rounds[PLACES][ROUNDS];
    int64_t bytes = r->sizes.bytes[size];
    int calls = 0, peer_calls = 5;
    TRY(count_calls(r, bytes, &calls));
    for (int round = 0; round < ROUNDS; round++) {
        for (bench_place place = 0; place < PLACES; place++) {
            if (!wanted(r, place)) continue;
            double *us = &rounds[place][round];
            if (place != PEER) TRY(measure(r, place, bytes, calls, us));
            else if (r->rank == 0) TRY(ask_peer(r, bytes, &peer_calls, us));
        }
    }
    for (bench_place place = 0; place < PLACES; place++)
        r->median_us[size][place] = wanted(r, place) && r->rank == 0 ? tr__median(rounds[place], ROUNDS) : NAN;
    return TR_OK;
}

/* A name is a program in bench/peer of the source, beside which this one was built or in which it runs. */
static void find_peer(const collective_run *r, char *command, size_t size)
{
    char self[PATH_MAX] = "", path[PATH_MAX + 64];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash = length > 0 ? strrchr(self, '/') : NULL;
    if (slash) *slash = '\0';
    const char *const folders[] = {"bench/peer", "../bench/peer"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s%s%s/%s", i ? self : "", i ? "/" : "", folders[i], r->peer_command);
        if (strchr(r->peer_command, ' ') || access(path, X_OK) != 0) continue;
        char word[PATH_MAX + 64];
        snprintf(command, size, "%s --ranks %d", tr__shell_word(path, word, sizeof word), r->world);
        return;
    }
    snprintf(command, size, "%s", r->peer_command);
}

/* What the machine allows: memory can be mapped where all are on one host. Between hosts one stream is the limit of those
 * that send everything once. */
static tr_status open_limit(collective_run *r, int64_t most)
{
    bool reduces = r->kind->kind == TR_ALL_REDUCE;
    if (r->world == 1 || !(reduces || r->kind->kind == TR_BROADCAST || r->kind->kind == TR_SEND)) return TR_OK;
    int local;
    tr_launched(NULL, NULL, &local);
    bool one_host = local == r->world;
    if (one_host) return reduces ? tr__probe_open(r->group, most, &r->probe) : TR_OK;
    tr_status status = tr__bare_stream_open(r->group, &r->stream);
    return status == TR_OK && reduces ? tr__bare_ring_open(r->group, most, &r->ring) : status;
}

static tr_status prepare(collective_run *r)
{
    int64_t most = 0;
    for (int i = 0; i < r->sizes.count; i++) most = r->sizes.bytes[i] > most ? r->sizes.bytes[i] : most;
    r->pool = stride(r, most);
    if (r->pool < (int64_t)r->cold_mb << 20) r->pool = (int64_t)r->cold_mb << 20;
    r->shared = tr_shared_alloc((size_t)r->pool);
    r->own = malloc((size_t)stride(r, most));
    if (!r->shared || !r->own) {
        tr__complain(TR__BENCH, "no memory for %lld bytes and as many again; ask for smaller --bytes or --cold-mb",
            (long long)r->pool);
        return TR_CHILD;
    }
    memset(r->shared, 0, (size_t)r->pool);
    memset(r->own, 0, (size_t)stride(r, most));
    TRY(open_limit(r, most));
    char command[2 * PATH_MAX];
    if (r->peer_command) find_peer(r, command, sizeof command);
    if (r->peer_command && r->rank == 0 && !tr__peer_start(&r->peer, 1, "%s", command)) return TR_CHILD;
    tr__take_core(r->rank, r->world);
    return TR_OK;
}

/* ---- The report -------------------------------------------------------------------------------------------------- */

/* Gigabytes per second of the whole buffer: all ranks' blocks where there are blocks. */
static double speed(const collective_run *r, int size)
{
    double bytes = (double)r->sizes.bytes[size] * (r->kind->in_blocks || r->kind->out_blocks ? r->world : 1);
    return bytes / r->median_us[size][WARM] * 1e-3;
}

static void print_report(const collective_run *r)
{
    printf("%s of f32 on %d ranks, medians in microseconds\n%12s %11s %9s", r->kind->name, r->world, "bytes", "warm", "GB/s");
    for (bench_place place = COLD; place < PLACES; place++)
        if (wanted(r, place)) printf(" %11s", place_names[place]);
    printf("%s\n", r->peer_command ? "  peer / warm" : "");
    for (int i = 0; i < r->sizes.count; i++) {
        const double *us = r->median_us[i];
        printf("%12lld %11.2f %9.2f", (long long)r->sizes.bytes[i], us[WARM], speed(r, i));
        for (bench_place place = COLD; place < PLACES; place++)
            if (wanted(r, place)) printf(" %11.2f", us[place]);
        if (r->peer_command) printf(" %12.1f", us[PEER] / us[WARM]);
        printf("\n");
    }
}

static cJSON *size_object(const collective_run *r, int i)
{
    const double *us = r->median_us[i];
    cJSON *o = cJSON_CreateObject();
    TR__ADD_NUMBERS(o, {"bytes", (double)r->sizes.bytes[i]}, {"median_us", us[WARM]}, {"algbw_gbps", speed(r, i)},
        {"cold_us", us[COLD]}, {"private_us", us[PRIVATE]});
    if (wanted(r, LIMIT)) TR__ADD_NUMBERS(o, {"limit_us", us[LIMIT]}, {"share_of_limit", us[LIMIT] / us[WARM]});
    if (wanted(r, RING)) TR__ADD_NUMBERS(o, {"ring_us", us[RING]}, {"share_of_ring", us[RING] / us[WARM]});
    if (wanted(r, PEER)) TR__ADD_NUMBERS(o, {"peer_us", us[PEER]}, {"ratio", us[PEER] / us[WARM]});
    return o;
}

static int report(const collective_run *r)
{
    print_report(r);
    if (!r->json) return TR__EXIT_OK;
    const char *peer = !r->peer_command ? "alone" : strpbrk(r->peer_command, " /") ? "other" : r->peer_command;
    const char *way = r->stream ? "hosts" : r->transport ? r->transport : "shared";
    cJSON *o = tr__result_new(r->peer.version, "%s/%s/%d/%s", r->kind->name, way, r->world, peer);
    cJSON *results = cJSON_AddArrayToObject(o, "results");
    cJSON_AddStringToObject(o, "collective", r->kind->name);
    cJSON_AddStringToObject(o, "dtype", "f32");
    cJSON_AddNumberToObject(o, "ranks", r->world);
    if (r->peer_command) cJSON_AddStringToObject(o, "peer", r->peer_command);
    for (int i = 0; i < r->sizes.count; i++) cJSON_AddItemToArray(results, size_object(r, i));
    return tr__write_json(TR__BENCH, o, r->json);
}

/* ---- The command ------------------------------------------------------------------------------------------------- */

static int run_rank(void *self)
{
    collective_run *r = self;
    TR_SCOPE;
    r->group = tr_join(.transport = r->transport);
    r->rank = tr_rank(r->group);
    r->world = tr_world_size(r->group);
    tr_status status = tr_status_of(r->group);
    if (status == TR_OK) status = prepare(r);
    for (int i = 0; i < r->sizes.count && status == TR_OK; i++) status = measure_size(r, i);
    if (r->rank == 0) tr__peer_stop(&r->peer);
    tr__probe_close(r->probe);
    tr__bare_stream_close(r->stream);
    tr__bare_ring_close(r->ring);
    int code = status != TR_OK ? tr__bench_failed(status) : r->rank == 0 ? report(r) : TR__EXIT_OK;
    if (status == TR_OK && tr_leave(r->group) != TR_OK) code = tr__bench_failed(TR_PEER);
    tr_shared_free(r->shared);
    free(r->own);
    return code;
}

static int check_sizes(void *self)
{
    return tr__check_f32(&((const collective_run *)self)->sizes);
}

int tr__bench_collective(int argc, char **argv)
{
    const bench_kind *kind = kinds;
    while (strcmp(kind->name, argv[0]) != 0) kind++; /* the benches have only names that exist */
    collective_run *r = calloc(1, sizeof *r);
    if (!r) return tr__complain(TR__BENCH, "out of memory");
    *r = (collective_run){.kind = kind, .ranks = 2, .cold_mb = 128,
        .sizes = {7, {4, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 25 << 20, 64 << 20}}};
    if (kind->kind == TR_BARRIER) r->sizes = (tr__sizes){1, {0}};
    const tr__option options[] = {
        {"ranks", 'n', "N", "processes", TR__INTEGER(&r->ranks, 1, TR_LAUNCH_MAX_RANKS)},
        {"bytes", 0, "LIST", "sizes, such as 4,64K,1M: of the buffer, or of each rank's block", TR__SIZES(&r->sizes)},
        {"cold-mb", 0, "N", "memory that the cold calls go round in", TR__INTEGER(&r->cold_mb, 1, 65536)},
        {"peer", 0, "NAME",
            "gloo or mpi: PyTorch's Gloo or the installed MPI, in turns; or a command that prints\n"
            "                            \"ready\", then for every line \"NAME BYTES CALLS\" the median in microseconds",
            TR__TEXT(&r->peer_command)},
        {"transport", 0, "NAME", "tcp: between all ranks, also those of one host", TR__TEXT(&r->transport)},
        {"json", 0, "FILE", "write the results as a JSON object", TR__OUTPUT(&r->json)},
        {0},
    };
    char command[64];
    snprintf(command, sizeof command, "bench %s", argv[0]);
    const tr__syntax syntax = {command, NULL, "Times a collective of f32 by size, and beside it the limits and a peer.",
        options, .operands = {0, 0}};
    int code = tr__bench_run(&(tr__bench_job){&syntax, &r->ranks, check_sizes, run_rank, r}, argc, argv);
    free(r);
    return code;
}
