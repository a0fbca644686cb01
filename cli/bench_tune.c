/*
 * trireme bench tune: how long each collective takes by each algorithm between the ranks at hand, the constants of the
 * cost model that explain it best, and the table of algorithms that follows.
 *
 * A group's table sends all of its collectives by one algorithm; the ranks join once for each algorithm, and again in
 * every round, so that a machine that others use disturbs all alike.
 */
#include "bench.h"
#include "bench_result.h"

#include "clock.h"
#include "options.h"
#include "tune.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    ROUNDS = 3,
    CALLS_MOST = 200,
    RANKS_MOST = 64,          /* more are predicted */
    BYTES_LEAST = 64,         /* smaller messages are the same, and tell the others that a call is done */
    POOL_MOST = 64 << 20,     /* of a rank, both ways: larger calls are left out */
};

typedef struct tune {
    int ranks;
    tr__sizes sizes;
    double budget_ms; /* for the calls of one time in one round */
    const char *output, *json;
    tr_group *group;
    int rank, world;
    char *in, *out;
    double echo_us;   /* a message to all ranks and back, of the present group */
    tr__times times;
    double (*rounds)[ROUNDS]; /* [times.count] */
    tr_network network;
} tune;

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static tr_status call(const tune *t, tr_collective_kind kind, int64_t bytes)
{
    tr_collective c = {.size = sizeof c, .kind = kind, .in = t->in, .out = t->out, .dtype = TR_F32,
        .count = bytes / (int64_t)sizeof(float), .file = __FILE__, .line = __LINE__};
    return tr_run_collective(t->group, &c);
}

/* From the call until all ranks are done, as rank 0, the root, sees it. Where it is done before the others, they tell it.
 * Where they are done before it, it tells them to begin, and begins itself when they do. Where all need the data of all,
 * nothing is to be told, but ranks that are out of step take turns at being late, so two calls are timed as one. */
static tr_status time_once(const tune *t, tr_collective_kind kind, int64_t bytes, double *us)
{
    bool from_root = kind == TR_BROADCAST || kind == TR_SCATTER, to_root = kind == TR_REDUCE || kind == TR_GATHER;
    if (to_root) TRY(call(t, TR_SCATTER, sizeof(float)));
    for (double told = tr__now_us(); to_root && t->rank == 0 && tr__now_us() - told < t->echo_us / 2;) continue;
    double begin = tr__now_us();
    TRY(call(t, kind, bytes));
    if (from_root) TRY(call(t, TR_GATHER, sizeof(float)));
    if (!from_root && !to_root) TRY(call(t, kind, bytes));
    *us = (tr__now_us() - begin) / (from_root || to_root ? 1 : 2);
    return TR_OK;
}

/* The median of several, without what telling takes. */
static tr_status measure(const tune *t, tr_collective_kind kind, int64_t bytes, int calls, double *us)
{
    double times[CALLS_MOST], unused;
    TRY(time_once(t, kind, bytes, &unused));
    for (int i = 0; i < calls; i++) TRY(time_once(t, kind, bytes, &times[i]));
    *us = tr__median(times, calls);
    if (kind == TR_BROADCAST || kind == TR_SCATTER) *us = fmax(*us - t->echo_us / 2, *us / 10);
    return TR_OK;
}

/* As many calls as fit in the budget, on all ranks the same. */
static tr_status measure_in_budget(const tune *t, tr_collective_kind kind, int64_t bytes, double *us)
{
    double first = 1;
    TRY(measure(t, kind, bytes, 1, &first));
    int32_t calls = (int32_t)fmax(2, fmin(CALLS_MOST, 1e3 * t->budget_ms / first));
    TRY(tr_broadcast(t->group, &calls, 1, .dtype = TR_I32));
    return measure(t, kind, bytes, calls, us);
}

/* ---- Rounds ------------------------------------------------------------------------------------------------------ */

/* All by one algorithm where it exists; what tells the others that a call is done goes directly. */
static void rows_of(int algorithm, char *rows, size_t size)
{
    int used = snprintf(rows, size, "gather ranks 2- bytes 0-4 direct;scatter ranks 2- bytes 0-4 direct;");
    for (int k = 0; k < TR__TUNE_KINDS; k++)
        if (tr__tune_exists(tr__tune_kinds[k], algorithm))
            used += snprintf(rows + used, size - (size_t)used, "%s ranks 2- bytes 0- %s;",
                tr__tune_kind_name(tr__tune_kinds[k]), tr__tune_algorithms[algorithm]);
}

static tr_status measure_algorithm(tune *t, int algorithm, int round)
{
    TR_SCOPE;
    char rows[640];
    rows_of(algorithm, rows, sizeof rows);
    t->group = tr_join(.transport = "tcp", .algorithms = rows);
    TRY(tr_status_of(t->group));
    t->echo_us = 0;
    TRY(measure_in_budget(t, TR_SCATTER, sizeof(float), &t->echo_us));
    for (int i = 0; i < t->times.count; i++) {
        const tr__time *time = &t->times.list[i];
        if (time->algorithm == algorithm) TRY(measure_in_budget(t, time->kind, time->bytes, &t->rounds[i][round]));
    }
    return tr_leave(t->group);
}

static tr_status measure_all(tune *t)
{
    tr_status status = TR_OK;
    bool shows = t->rank == 0 && isatty(STDERR_FILENO);
    for (int round = 0; round < ROUNDS && status == TR_OK; round++)
        for (int a = 0; a < TR__TUNE_ALGORITHMS && status == TR_OK; a++) {
            if (shows) fprintf(stderr, "\r\033[Kround %d of %d: %s", round + 1, ROUNDS, tr__tune_algorithms[a]);
            status = measure_algorithm(t, a, round);
        }
    if (shows) fprintf(stderr, "\r\033[K");
    for (int i = 0; i < t->times.count && status == TR_OK; i++)
        t->times.list[i].measured_us = tr__median(t->rounds[i], ROUNDS);
    return status;
}

/* What a rank has of memory for a call, in or out. */
static int64_t pool_of(const tune *t, int64_t bytes)
{
    return bytes * t->world;
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static tr_status prepare(tune *t)
{
    size_t most = (size_t)TR__TUNE_KINDS * TR__TUNE_ALGORITHMS * (size_t)t->sizes.count;
    int64_t pool = pool_of(t, BYTES_LEAST);
    qsort(t->sizes.bytes, (size_t)t->sizes.count, sizeof *t->sizes.bytes, by_size);
    t->times = (tr__times){.ranks = t->world, .list = calloc(most, sizeof *t->times.list)};
    t->rounds = calloc(most, sizeof *t->rounds);
    if (!t->times.list || !t->rounds) return tr_fail(TR_NO_MEMORY, "out of memory");
    for (int k = 0; k < TR__TUNE_KINDS; k++)
        for (int i = 0; i < t->sizes.count; i++)
            for (int a = 0; a < TR__TUNE_ALGORITHMS; a++) {
                int64_t bytes = t->sizes.bytes[i];
                bool twice = i > 0 && bytes == t->sizes.bytes[i - 1];
                if (twice || pool_of(t, bytes) > POOL_MOST || !tr__tune_exists(tr__tune_kinds[k], a)) continue;
                t->times.list[t->times.count++] = (tr__time){tr__tune_kinds[k], a, bytes, 0, 0};
                if (pool_of(t, bytes) > pool) pool = pool_of(t, bytes);
            }
    t->in = calloc(1, (size_t)pool);
    t->out = calloc(1, (size_t)pool);
    return t->in && t->out ? TR_OK : tr_fail(TR_NO_MEMORY, "out of memory");
}

/* ---- The report -------------------------------------------------------------------------------------------------- */

/* One line for each kind and size, one column for each algorithm. */
static void print_times(const tune *t)
{
    const tr__time *list = t->times.list;
    printf("microseconds on %d ranks over TCP, measured / predicted\n%-14s %9s", t->world, "", "bytes");
    for (int a = 0; a < TR__TUNE_ALGORITHMS; a++) printf(" %17s", tr__tune_algorithms[a]);
    for (int i = 0; i < t->times.count;) {
        int first = i;
        printf("\n%-14s %9lld", tr__tune_kind_name(list[i].kind), (long long)list[i].bytes);
        for (int a = 0; a < TR__TUNE_ALGORITHMS; a++) {
            char cell[48] = "";
            bool here = i < t->times.count && list[i].kind == list[first].kind && list[i].bytes == list[first].bytes &&
                        list[i].algorithm == a;
            if (here) snprintf(cell, sizeof cell, "%.*f / %.*f", list[i].measured_us < 100, list[i].measured_us,
                               list[i].predicted_us < 100, list[i].predicted_us);
            if (here) i++;
            printf(" %17s", cell);
        }
    }
    printf("\n");
}

static void print_constants(const tune *t, const tr__tune_error *e)
{
    const tr_network *n = &t->network;
    const tr__time *worst = &t->times.list[e->worst_at];
    printf("\nlatency %.1f us, overhead %.2f us a message and side, links %.2f GB/s each way, through sockets %.2f GB/s,\n"
           "adding up %.2f GB/s\n", n->latency_us, n->overhead_us, n->gbytes_per_s, n->copy_gbytes_per_s, n->fold_gbytes_per_s);
    printf("predictions are off by a factor of %.2f (median), %.2f (nine of ten are better), %.2f at worst (%s of %lld bytes by "
           "%s);\nwhat they would choose takes %.0f %% longer than the fastest on average, %.0f %% at worst\n",
        e->median, e->ninth, e->worst, tr__tune_kind_name(worst->kind), (long long)worst->bytes,
        tr__tune_algorithms[worst->algorithm], 100 * (e->chosen_mean - 1), 100 * (e->chosen_worst - 1));
}

static bool write_table(const tune *t)
{
    char day[32];
    time_t now = time(NULL);
    struct tm date;
    strftime(day, sizeof day, "%Y-%m-%d", localtime_r(&now, &date));
    FILE *file = fopen(t->output, "w");
    bool written = file && fprintf(file, "# Of `trireme bench tune`, %s, %d ranks over TCP: TRIREME_ALGORITHMS=@FILE gives it "
                                         "to a job,\n# the same to all ranks.\n", day, t->world) > 0;
    if (written && tr__tune_write(&t->times, &t->network, file) != TR_OK) written = false;
    if (file && fclose(file) != 0) written = false;
    if (written) printf("written: %s\n", t->output);
    else tr__complain(TR__BENCH, "cannot write %s: %s", t->output, file && !errno ? tr_error_message() : strerror(errno));
    return written;
}

static cJSON *time_object(const tr__time *time)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "kind", tr__tune_kind_name(time->kind));
    cJSON_AddStringToObject(o, "algorithm", tr__tune_algorithms[time->algorithm]);
    TR__ADD_NUMBERS(o, {"bytes", (double)time->bytes}, {"median_us", time->measured_us}, {"predicted_us", time->predicted_us});
    return o;
}

static int write_json(const tune *t, const tr__tune_error *e)
{
    cJSON *o = tr__result_new(NULL, "tune/%d", t->world), *network = cJSON_AddObjectToObject(o, "network");
    cJSON_AddNumberToObject(o, "ranks", t->world);
    TR__ADD_NUMBERS(network, {"latency_us", t->network.latency_us}, {"overhead_us", t->network.overhead_us},
        {"gbytes_per_s", t->network.gbytes_per_s}, {"copy_gbytes_per_s", t->network.copy_gbytes_per_s},
        {"fold_gbytes_per_s", t->network.fold_gbytes_per_s});
    TR__ADD_NUMBERS(o, {"error_median", e->median}, {"error_worst", e->worst});
    cJSON *results = cJSON_AddArrayToObject(o, "results");
    for (int i = 0; i < t->times.count; i++) cJSON_AddItemToArray(results, time_object(&t->times.list[i]));
    return tr__write_json(TR__BENCH, o, t->json);
}

static int report(tune *t)
{
    tr__tune_error error;
    tr_status status = tr__tune_fit(&t->times, &t->network);
    if (status == TR_OK) status = tr__tune_judge(&t->times, &error);
    if (status != TR_OK) return tr__bench_failed(status);
    print_times(t);
    print_constants(t, &error);
    return !t->output || write_table(t) ? write_json(t, &error) : TR__EXIT_FAILED;
}

/* ---- The command ------------------------------------------------------------------------------------------------- */

/* Who the ranks are is known after joining only. */
static tr_status join_first(tune *t)
{
    TR_SCOPE;
    tr_group *group = tr_join(.transport = "tcp");
    t->rank = tr_rank(group);
    t->world = tr_world_size(group);
    tr_status status = tr_status_of(group);
    return status == TR_OK ? tr_leave(group) : status;
}

static int run_rank(void *self)
{
    tune *t = self;
    tr_status status = join_first(t);
    if (status == TR_OK) status = prepare(t);
    if (status == TR_OK) tr__take_core(t->rank, t->world);
    if (status == TR_OK) status = measure_all(t);
    int code = status != TR_OK ? tr__bench_failed(status) : t->rank == 0 ? report(t) : TR__EXIT_OK;
    free(t->in);
    free(t->out);
    free(t->times.list);
    free(t->rounds);
    return code;
}

static int check_sizes(void *self)
{
    const tune *t = self;
    for (int i = 0; i < t->sizes.count; i++)
        if (t->sizes.bytes[i] < BYTES_LEAST)
            return TR__MISUSE("bench tune", "--bytes begin at %d, not at %lld", BYTES_LEAST, (long long)t->sizes.bytes[i]);
    return tr__check_f32(&t->sizes);
}

int tr__bench_tune(int argc, char **argv)
{
    tune t = {.ranks = 2, .budget_ms = 25,
        .sizes = {9, {64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20}}};
    const tr__option options[] = {
        {"ranks", 'n', "N", "processes, when no launcher has started this one", TR__INTEGER(&t.ranks, 2, RANKS_MOST)},
        {"bytes", 0, "LIST", "sizes, such as 64,4K,1M: what a rank gives (scatter, reduce-scatter: to each rank)",
            TR__SIZES(&t.sizes)},
        {"budget", 0, "MS", "milliseconds for each algorithm and size in each of three rounds", TR__NUMBER(&t.budget_ms, 0.1, 60000)},
        {"output", 'o', "FILE", "write the table here, for TRIREME_ALGORITHMS=@FILE", TR__OUTPUT(&t.output)},
        {"json", 0, "FILE", "write the results as a JSON object", TR__OUTPUT(&t.json)},
        {0},
    };
    const tr__syntax syntax = {"bench tune", NULL,
        "Times the collectives by every algorithm over TCP, fits the constants of the cost model to them, shows what it\n"
        "predicts beside what was measured, and writes a table of algorithms. Under a launcher the ranks may be on\n"
        "several hosts.",
        options, .operands = {0, 0}};
    return tr__bench_run(&(tr__bench_job){&syntax, &t.ranks, check_sizes, run_rank, &t}, argc, argv);
}
