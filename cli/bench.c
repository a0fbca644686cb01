/* trireme bench: how fast training is here. */
#include "bench.h"
#include "bench_result.h"

#include "command.h"
#include "options.h"
#include "relaunch.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What was not given depends on the model. */
static int complete_options(void *self)
{
    tr__bench *b = self;
    const tr__usual *usual = tr__usual_of(b->model);
    if (b->seq && !usual->seq) return TR__MISUSE(TR__BENCH, "--seq: the samples of %s are no sequences", b->model);
    if (b->size && usual->size < 224)
        return TR__MISUSE(TR__BENCH, "--size: the samples of %s are %s", b->model, usual->size ? "28 x 28" : "no images");
    if (b->capture && (b->ranks > 1 || tr__is_rank(NULL, NULL, NULL)))
        return TR__MISUSE(TR__BENCH, "--capture: ranks exchange gradients within a step, which no graph has; it takes one rank");
    if (b->fully_sharded && b->ranks == 1 && !tr__is_rank(NULL, NULL, NULL))
        return TR__MISUSE(TR__BENCH, "--fully-sharded: one rank has nothing to share; give --ranks 2 or more");
    int code = tr__check_device(TR__BENCH, b->device, b->backend, b->ranks);
    if (code >= 0) return code;
    if (!b->batch) b->batch = usual->batch;
    if (!b->seq) b->seq = usual->seq;
    if (!b->size) b->size = usual->size;
    if (!b->optimizer) b->optimizer = usual->optimizer;
    return -1;
}

static int bench_model(int argc, char **argv)
{
    tr__bench b = {.model = "gpt-mini", .dtype = "f32", .device = "cpu", .backend = "native", .ranks = 1, .steps = 20, .warmup = 3};
    const tr__option options[] = {
        {"model", 0, "NAME", "what is trained", TR__CHOICE(&b.model, "nano", "gpt-mini", "gpt2", "bert-tiny", "bert-base", "mlp",
            "lenet", "resnet18", "resnet50", "vgg11")},
        {"batch", 0, "N", "sequences or samples on each rank (8; gpt2, bert-base, resnet50, vgg11: 4; mlp, lenet: 64)",
            TR__INTEGER(&b.batch, 1, 100000)},
        {"size", 0, "N", "pixels a side of images (224)", TR__INTEGER(&b.size, 32, 4096)},
        {"optimizer", 0, "NAME", "momentum: SGD with it (adamw for texts, sgd for mlp, momentum for images)",
            TR__CHOICE(&b.optimizer, "adamw", "sgd", "momentum")},
        {"step-after-backward", 0, NULL,
            "keep all gradients for a step at the end; else, on the CPU, each parameter is updated as its gradient is\n"
            "                            final, of several ranks when its bucket is averaged, as trainers do",
            TR__FLAG(&b.step_after_backward)},
        {"capture", 0, NULL, "launch steps as a graph of the device, where it has graphs (cuda); one rank", TR__FLAG(&b.capture)},
        {"fully-sharded", 0, NULL, "each rank has a shard of the parameters (tr_fully_shard()), not a replica (tr_ddp())",
            TR__FLAG(&b.fully_sharded)},
        {"bf16-state", 0, NULL, "the optimizer's state in bf16, rounded stochastically", TR__FLAG(&b.bf16_state)},
        {"seq", 0, "N", "tokens in a sequence (256; gpt2: 64, BERTs: 128)", TR__INTEGER(&b.seq, 1, 1000000)},
        {"dtype", 0, "NAME", "of the numbers; bf16: under autocast, the parameters f32", TR__CHOICE(&b.dtype, "f32", "bf16")},
        {"ranks", 'n', "N", "processes", TR__INTEGER(&b.ranks, 1, TR_LAUNCH_MAX_RANKS)},
        {"device", 0, "NAME", "where each rank computes: cpu, cuda (the ranks of a host take theirs in turn) or cuda:1",
            TR__TEXT(&b.device)},
        {"backend", 0, "NAME", "what carries the ranks' collectives (nccl: each rank on a GPU of its own)",
            TR__CHOICE(&b.backend, "native", "nccl", "mpi")},
        {"threads", 0, "N", "threads of each rank (its share of the cores)", TR__INTEGER(&b.threads, 1, 1024)},
        {"steps", 0, "N", "turns that are timed: a step each, or several in a row (of short models, and on devices)", TR__INTEGER(&b.steps, 1, 1000000)},
        {"warmup", 0, "N", "steps before them", TR__INTEGER(&b.warmup, 0, 1000000)},
        {"peer", 0, "COMMAND",
            "a program to take turns with: it prints \"ready\"; for each line that it reads it runs\n"
            "                            as many steps as the line says and prints the milliseconds of one",
            TR__TEXT(&b.peer)},
        {"json", 0, "FILE", "write the results as a JSON object", TR__OUTPUT(&b.json)},
        {0},
    };
    const tr__syntax syntax = {"bench model", NULL,
        "Times whole training steps (forward, backward, the optimizer's), beside the peak of oneDNN's own sgemm in\n"
        "the same run.",
        options, .operands = {0, 0}};
    return tr__bench_run(&(tr__bench_job){&syntax, &b.ranks, complete_options, tr__bench_rank, &b}, argc, argv);
}

/* ---- All benches ------------------------------------------------------------------------------------------------- */

/* As many ranks as the launcher has started, where nothing else was asked for and there may be so many. */
static int take_world(const tr__bench_job *job, uint64_t given, int world)
{
    const tr__option *o = job->syntax->options;
    while (o->name && o->into != job->ranks) o++;
    double least = o->name ? o->least : *job->ranks, most = o->name ? o->most : *job->ranks;
    if (o->name && (given >> (o - job->syntax->options) & 1) && *job->ranks != world)
        return TR__MISUSE(TR__BENCH, "--%s %d, but the launcher has started %d: leave --%s out", o->name, *job->ranks, world,
            o->name);
    if (world < least || world > most)
        return TR__MISUSE(TR__BENCH, "it takes at %s %.0f ranks, and the launcher has started %d", world < least ? "least" : "most",
            world < least ? least : most, world);
    *job->ranks = world;
    return -1;
}

/* What rank 0 is to write, before hours have gone into it. */
static int check_files(const tr__syntax *syntax)
{
    int code = -1;
    for (const tr__option *o = syntax->options; o->name && code < 0; o++)
        if (o->writes) code = tr__check_writable(TR__BENCH, *(const char **)o->into);
    return code;
}

int tr__bench_run(const tr__bench_job *job, int argc, char **argv)
{
    int rank = 0, world = 1;
    bool is_rank = job->ranks && tr__is_rank(&rank, &world, NULL);
    uint64_t options = 0;
    tr__syntax syntax = *job->syntax;
    syntax.given = &options;
    const char **given = calloc((size_t)argc + 3, sizeof *given); /* "bench" and the arguments, which parsing rearranges */
    if (!given) return tr__complain(TR__BENCH, "out of memory");
    given[1] = "bench";
    for (int i = 0; i < argc; i++) given[i + 2] = argv[i];
    int code = tr__parse(&syntax, &argc, argv);
    if (code < 0 && is_rank) code = take_world(job, options, world);
    if (code < 0 && job->check) code = job->check(job->self);
    if (code < 0 && rank == 0) code = check_files(&syntax);
    bool launches = job->ranks && *job->ranks > 1 && !is_rank;
    if (code < 0) code = launches ? tr__relaunch(TR__BENCH, given, *job->ranks, 0, 0, NULL) : job->rank(job->self);
    free(given);
    return code == TR__EXIT_OK ? tr__printed(TR__BENCH) : code;
}

int tr__bench_failed(tr_status status)
{
    if (status == TR_PEER) return TR_EXIT_PEER;
    if (status != TR_CHILD) tr__complain(TR__BENCH, "%s", tr_error_message());
    return TR__EXIT_FAILED;
}

int tr__check_f32(const tr__sizes *sizes)
{
    for (int i = 0; i < sizes->count; i++)
        if (sizes->bytes[i] % (int64_t)sizeof(float))
            return TR__MISUSE(TR__BENCH, "--bytes: sizes are multiples of 4 (f32), not %lld", (long long)sizes->bytes[i]);
    return -1;
}

void tr__take_core(int rank, int world_size)
{
    cpu_set_t allowed, own;
    if (sched_getaffinity(0, sizeof allowed, &allowed) < 0 || CPU_COUNT(&allowed) < world_size) return;
    int core = 0;
    for (int left = rank; left >= 0; core++) left -= CPU_ISSET(core, &allowed);
    CPU_ZERO(&own);
    CPU_SET(core - 1, &own);
    sched_setaffinity(0, sizeof own, &own);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double tr__median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, by_value);
    return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

double tr__median_ratio(const double *a, const double *b, int n)
{
    double *ratios = malloc((size_t)n * sizeof *ratios);
    if (!ratios) return NAN;
    for (int i = 0; i < n; i++) ratios[i] = a[i] / b[i];
    double middle = tr__median(ratios, n);
    free(ratios);
    return middle;
}

int tr__cli_bench(int argc, char **argv)
{
    static const tr__subcommand benches[] = {
        {"model", bench_model, "training steps of a model"},
        {"all-reduce, reduce, broadcast, all-gather, gather, scatter, reduce-scatter, all-to-all, send-recv, barrier",
            tr__bench_collective, "a collective, by size"},
        {"tune", tr__bench_tune, "collectives by every algorithm, and the table of algorithms that fits them"},
        {"predict", tr__bench_predict, "what a collective would cost on up to thousands of ranks"},
        {"store", tr__bench_store, "clients that come to a store"},
        {"join", tr__bench_join, "ranks that become a group"},
        {"groups", tr__bench_groups, "groups within a group"},
        {"rpc", tr__bench_rpc, "calls to a function of another process"},
        {"loader", tr__bench_loader, "batches of a dataset"},
        {"checkpoint", tr__bench_checkpoint, "saving, loading and verifying a checkpoint"},
        {"dist-autograd", tr__bench_dist, "a training step over two workers"},
        {"report", tr__bench_report, "the page of results, made from what the others have written by --json"},
        {0},
    };
    return tr__run_subcommand("bench", "Measures speed.", benches, argc, argv);
}
