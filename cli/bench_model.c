/*
 * Whole training steps of a model: forgetting the gradients, forward, cross-entropy, backward, the optimizer's step;
 * each turn followed by a peer's and by oneDNN's own sgemm, so that whatever else the machine does slows all of them.
 * Short steps are taken several in a row, which is how they come in training.
 */
#include "bench.h"
#include "bench_result.h"

#include "clock.h"
#include "options.h"
#include "relaunch.h"
#include "system.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

typedef struct bench_run {
    const tr__bench *bench;
    int rank, world;
    tr_group *group; /* NULL: one rank */
    tr__workload work;
    tr__peer peer;
    double *ours, *theirs; /* milliseconds of a step, by turn; one piece of memory with the next two */
    double *peaks;         /* GFLOP/s of one thread's sgemm, right beside each turn */
    double *checks;        /* milliseconds that comparing replicas takes; NaN where there are none */
    double rss_mb, rss_mb_sum;
    double own_mb;    /* the same with memory that several ranks map, each other's gradients, divided among them */
    double faults;    /* pages that the measured steps touched for the first time, per step; of several ranks the most */
    double device_mb; /* what tensors held at most on rank 0's device */
} bench_run;

/* Page faults of this process that were met without reading a file. */
static double minor_faults(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_minflt;
}

/* The line `key: N kB` of a file in /proc, in MB; 0 where there is none. */
static double megabytes_of(const char *path, const char *key)
{
    char text[128];
    return tr__line_of(path, key, text, sizeof text) ? strtod(text, NULL) / 1024 : 0;
}

/* Of the shared memory that this process maps, what the other processes that map it have to answer for. */
static double others_shared_mb(void)
{
    double mapped = megabytes_of("/proc/self/status", "RssShmem");
    return mapped > 0 ? mapped - megabytes_of("/proc/self/smaps_rollup", "Pss_Shmem") : 0;
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

/* In a scope of its own: backward gives what the net made up as it goes. */
static tr_tensor *loss_of(const tr__workload *w)
{
    TR_SCOPE;
    TR_AUTOCAST(w->autocast);
    return tr_escape(w->loss ? w->loss(w->net, w->x, w->y, NULL) : tr_cross_entropy(tr_forward(w->net, w->x), w->y));
}

static tr_status train(const tr__workload *w)
{
    tr_zero_grad(w->optimizer);
    tr_status status = tr_backward(loss_of(w));
    return status == TR_OK ? tr_step(w->optimizer) : status;
}

/* The inputs are the workload's own x and y. */
static tr_status train_captured(tr_tensor *const *inputs, int n, tr_tensor **output, void *user)
{
    (void)inputs;
    (void)n;
    (void)output;
    return train(user);
}

static tr_status step(const tr__workload *w)
{
    TR_SCOPE;
    TRY(tr_seed(w->net, 1)); /* for VGG's dropouts */
    return w->captured ? tr_captured_run_n(w->captured, NULL, NULL, 0) : train(w);
}

/* All ranks begin together, also after rank 0 was busy with something else: the others sleep meanwhile. */
static tr_status timed_steps(const bench_run *r, double *ms)
{
    if (r->group) TRY(tr_barrier(r->group));
    double begin = tr__now_us();
    for (int i = 0; i < r->work.in_a_row; i++) TRY(step(&r->work));
    TRY(tr_device_synchronize(r->work.device));
    *ms = 1e-3 * (tr__now_us() - begin) / r->work.in_a_row;
    return TR_OK;
}

/* What tr_ddp() and a trainer do every CHECK_EVERY steps. */
enum { CHECK_EVERY = 100 };
static tr_status timed_check(const bench_run *r, double *ms)
{
    TR_SCOPE;
    *ms = NAN;
    if (!r->group || r->bench->fully_sharded) return TR_OK;
    TRY(tr_barrier(r->group));
    double begin = tr__now_us();
    TRY(tr_check_replicas(r->group, tr_state_dict(r->work.net)));
    TRY(tr_check_replicas(r->group, tr_optimizer_state(r->work.optimizer)));
    *ms = 1e-3 * (tr__now_us() - begin);
    return TR_OK;
}

static tr_status peer_steps(bench_run *r, double *ms)
{
    if (!r->peer.pid) return TR_OK;
    char count[16];
    snprintf(count, sizeof count, "%d", r->work.in_a_row);
    return tr__peer_ask(&r->peer, count, ms) ? TR_OK : TR_CHILD;
}

/* Whoever was second in one turn is first in the next. */
static tr_status turn(bench_run *r, int i, tr__sgemm *matrices)
{
    if (i % 2) TRY(peer_steps(r, &r->theirs[i]));
    double before = minor_faults();
    TRY(timed_steps(r, &r->ours[i]));
    r->faults += (minor_faults() - before) / (r->bench->steps * r->work.in_a_row);
    TRY(timed_check(r, &r->checks[i]));
    if (i % 2 == 0) TRY(peer_steps(r, &r->theirs[i]));
    bool on_cpu = r->work.device.kind == TR_CPU;
    if (r->rank == 0) r->peaks[i] = on_cpu ? tr__sgemm_peak(matrices) : NAN;
    return TR_OK;
}

static tr_status measure(bench_run *r)
{
    const tr__bench *b = r->bench;
    double unused;
    tr_status status = TR_OK;
    for (int i = 0; i < b->warmup && status == TR_OK; i++) status = timed_steps(r, &unused);
    /* Taken before the matrices for sgemm come; a step needs no more than the ones before. */
    struct rusage usage;
    tr_device_memory memory = {.size = sizeof memory};
    getrusage(RUSAGE_SELF, &usage);
    r->rss_mb = r->rss_mb_sum = (double)usage.ru_maxrss / 1024;
    r->own_mb = r->rss_mb - others_shared_mb();
    if (status == TR_OK) status = tr_device_memory_of(r->work.device, &memory);
    r->device_mb = (double)memory.peak / (1 << 20);
    if (status == TR_OK && r->rank == 0 && b->peer && !tr__peer_start(&r->peer, tr_threads(tr_cpu(0)), "%s", b->peer))
        status = TR_CHILD;
    if (tr_threads(tr_cpu(0)) == 1 && r->world > 1) tr__take_core(r->rank, r->world);
    tr__sgemm matrices = {0};
    for (int i = 0; i < b->steps && status == TR_OK; i++) status = turn(r, i, &matrices);
    tr__sgemm_free(&matrices);
    if (r->rank == 0) tr__peer_stop(&r->peer);
    if (status == TR_OK && r->group) status = tr_all_reduce(r->group, &r->faults, 1, .dtype = TR_F64, .op = TR_MAX);
    if (status == TR_OK && r->group) status = tr_all_reduce(r->group, &r->own_mb, 1, .dtype = TR_F64, .op = TR_MAX);
    if (status == TR_OK && r->group) status = tr_all_reduce(r->group, &r->rss_mb, 1, .dtype = TR_F64, .op = TR_MAX);
    if (status == TR_OK && r->group) status = tr_all_reduce(r->group, &r->rss_mb_sum, 1, .dtype = TR_F64);
    return status;
}

/* ---- The report -------------------------------------------------------------------------------------------------- */

static double median(const double *values, int n)
{
    double *sorted = malloc((size_t)n * sizeof *sorted), middle = NAN;
    if (!sorted) return NAN;
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    middle = tr__median(sorted, n);
    free(sorted);
    return middle;
}

typedef struct results {
    double step_ms, items_per_s, gflops, peak, share, peer_ms, ratio; /* the last two: NaN without a peer */
    double check_ms, check_percent; /* NaN without replicas */
} results;

static results summarize(const bench_run *r)
{
    const tr__bench *b = r->bench;
    results s = {.step_ms = median(r->ours, b->steps), .peer_ms = NAN, .ratio = NAN};
    s.items_per_s = r->work.items * r->world / s.step_ms * 1e3;
    s.check_ms = median(r->checks, b->steps);
    s.check_percent = 100 * s.check_ms / (CHECK_EVERY * s.step_ms);
    s.gflops = r->work.flops / s.step_ms * 1e-6;
    s.peak = median(r->peaks, b->steps);
    /* Milliseconds that the arithmetic takes at the peak of each turn, over those that the step took. */
    double *at_peak = malloc((size_t)b->steps * sizeof *at_peak);
    for (int i = 0; at_peak && i < b->steps; i++)
        at_peak[i] = r->work.flops * 1e-6 / (r->peaks[i] * tr_threads(tr_cpu(0)));
    s.share = at_peak ? tr__median_ratio(at_peak, r->ours, b->steps) : NAN;
    free(at_peak);
    if (!b->peer) return s;
    s.peer_ms = median(r->theirs, b->steps);
    s.ratio = tr__median_ratio(r->theirs, r->ours, b->steps);
    return s;
}

static void print_report(const bench_run *r, const results *s)
{
    const tr__bench *b = r->bench;
    const tr__workload *w = &r->work;
    int threads = tr_threads(tr_cpu(0));
    printf("%s, %.0f %ss on each of %d rank%s on %s with %d thread%s, %s, %d times %d step%s%s%s%s\n", b->model, w->items, w->item,
        r->world, r->world > 1 ? "s" : "", b->device, threads, threads > 1 ? "s" : "", b->dtype, b->steps,
        w->in_a_row, w->in_a_row > 1 ? "s in a row" : "", w->in_backward ? ", updates in backward" : "",
        b->bf16_state ? ", state in bf16" : "", b->fully_sharded ? ", fully sharded" : "");
    tr_captured_counts runs = {.size = sizeof runs};
    if (w->captured && tr_captured_count(w->captured, &runs) == TR_OK)
        printf("captured         %8" PRId64 " steps launched as a graph, %" PRId64 " op by op\n",
            runs.captured + runs.launched, runs.called);
    printf("step             %8.2f ms (median)\n", s->step_ms);
    printf("%ss%*s %8.0f /s\n", w->item, 15 - (int)strlen(w->item), "", s->items_per_s);
    printf("peak memory      %8.1f MB%s\n", r->own_mb, r->world > 1 ? " (the most of a rank)" : "");
    printf("minor faults     %8.1f in a step\n", r->faults);
    printf("matrix work      %8.1f GFLOP/s on a rank: %.2f GFLOP in a step\n", s->gflops, w->flops * 1e-9);
    if (w->device.kind == TR_CPU)
        printf("sgemm's peak     %8.1f GFLOP/s on a thread; share of it, pair by pair: %.1f %%\n", s->peak, 100 * s->share);
    else
        printf("device's memory  %8.1f MB\n", r->device_mb);
    if (r->group && !b->fully_sharded)
        printf("replica check    %8.2f ms: every %d steps %.4f %% of the time\n", s->check_ms, CHECK_EVERY,
            s->check_percent);
    if (b->peer)
        printf("peer's step      %8.2f ms (median); ours is %.2f times as fast, pair by pair\n", s->peer_ms, s->ratio);
    printf("counted: %s\n", w->formula);
}

static cJSON *to_json(const bench_run *r, const results *s)
{
    const tr__bench *b = r->bench;
    bool native = strcmp(b->backend, "native") == 0;
    cJSON *o = tr__result_new(r->peer.version, "model/%s/%dx%d/%s%s%s%s%s%s%s%s%s", b->dtype, r->world, tr_threads(tr_cpu(0)),
        b->model, r->work.device.kind == TR_CPU ? "" : "/cuda", native ? "" : "/", native ? "" : b->backend,
        b->step_after_backward ? "/step-after-backward" : "", b->capture ? "/capture" : "", b->bf16_state ? "/bf16-state" : "",
        b->fully_sharded ? "/fully-sharded" : "", b->peer ? "" : "/alone");
    cJSON_AddStringToObject(o, "model", b->model);
    cJSON_AddStringToObject(o, "device", b->device);
    cJSON_AddStringToObject(o, "backend", b->backend);
    cJSON_AddStringToObject(o, "dtype", b->dtype);
    cJSON_AddStringToObject(o, "optimizer", b->optimizer);
    cJSON_AddBoolToObject(o, "step_in_backward", r->work.in_backward);
    cJSON_AddBoolToObject(o, "capture", b->capture);
    cJSON_AddBoolToObject(o, "bf16_state", b->bf16_state);
    cJSON_AddBoolToObject(o, "fully_sharded", b->fully_sharded);
    TR__ADD_NUMBERS(o, {"batch", b->batch}, {"ranks", r->world}, {"threads", tr_threads(tr_cpu(0))}, {"steps", b->steps},
        {"steps_in_a_row", r->work.in_a_row}, {"step_ms_median", s->step_ms}, {"peak_rss_mb", r->rss_mb},
        {"peak_rss_mb_sum", r->rss_mb_sum}, {"peak_own_mb", r->own_mb}, {"device_peak_mb", r->device_mb},
        {"minor_faults_per_step", r->faults}, {"flops_per_step", r->work.flops}, {"gflops", s->gflops}, {"peak_gflops", s->peak},
        {"share_of_peak", s->share}, {"replica_check_ms", s->check_ms}, {"replica_check_percent", s->check_percent});
    if (b->seq) TR__ADD_NUMBERS(o, {"seq", b->seq});
    if (b->size) TR__ADD_NUMBERS(o, {"size", b->size});
    char rate[32];
    snprintf(rate, sizeof rate, "%ss_per_s", r->work.item);
    TR__ADD_NUMBERS(o, {rate, s->items_per_s});
    cJSON_AddStringToObject(o, "flops_counted", r->work.formula);
    cJSON_AddItemToObject(o, "step_ms", cJSON_CreateDoubleArray(r->ours, b->steps));
    if (b->peer) {
        cJSON_AddStringToObject(o, "peer", b->peer);
        cJSON_AddItemToObject(o, "peer_step_ms", cJSON_CreateDoubleArray(r->theirs, b->steps));
        TR__ADD_NUMBERS(o, {"peer_step_ms_median", s->peer_ms}, {"ratio", s->ratio});
    }
    return o;
}

static int report(const bench_run *r)
{
    results s = summarize(r);
    print_report(r, &s);
    return tr__write_json(TR__BENCH, to_json(r, &s), r->bench->json);
}

static int run_and_report(bench_run *r)
{
    tr_status status = TR_OK;
    if (r->bench->threads) status = tr_set_threads(r->bench->threads);
    if (status == TR_OK) status = tr__workload_make(r->bench, r->rank, r->group, &r->work);
    if (status == TR_OK && r->bench->capture) {
        r->work.captured = tr_capture(train_captured, &r->work, .device = r->work.device);
        status = tr_status_of(r->work.captured);
    }
    if (status == TR_OK) status = measure(r);
    if (status != TR_OK) return tr__bench_failed(status);
    int code = r->rank == 0 ? report(r) : TR__EXIT_OK;
    if (r->group && (status = tr_leave(r->group)) != TR_OK) return tr__bench_failed(status);
    return code;
}

int tr__bench_rank(void *bench)
{
    TR_SCOPE;
    const tr__bench *b = bench;
    bench_run r = {.bench = b, .world = 1};
    if (tr__is_rank(NULL, NULL, NULL)) {
        r.group = tr_join(.backend = b->backend);
        tr_status status = tr_status_of(r.group);
        if (status != TR_OK) return tr__bench_failed(status);
        r.rank = tr_rank(r.group);
        r.world = tr_world_size(r.group);
    }
    r.ours = calloc(4 * (size_t)b->steps, sizeof *r.ours);
    if (!r.ours) return tr__complain(TR__BENCH, "out of memory");
    r.theirs = r.ours + b->steps;
    r.peaks = r.theirs + b->steps;
    r.checks = r.peaks + b->steps;
    int code = run_and_report(&r);
    free(r.ours);
    return code;
}
