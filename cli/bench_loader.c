/*
 * trireme bench loader: how long an epoch of batches takes that nothing else is done with. A peer's epochs take turns with
 * ours.
 */
#include "bench.h"
#include "bench_result.h"

#include "clock.h"
#include "options.h"
#include "terminal.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 28, PIXELS = SIDE * SIDE, IMAGE_SIDE = 224, MOST_ROUNDS = 1000 };

typedef struct bench_loader {
    const char *samples, *folder, *peer, *json;
    int count, batch, workers, rounds;
    bool processes;
} bench_loader;

/* ---- Samples ----------------------------------------------------------------------------------------------------- */

/* Digits as MNIST's: bytes, of which each sample is normalised when it is asked for. */
typedef struct digits {
    int64_t count;
    unsigned char pixels[]; /* [count, PIXELS] */
} digits;

static tr_status get_digit(const tr_sample_call *call, tr_sample *out)
{
    const digits *d = call->user;
    const unsigned char *from = d->pixels + call->index * PIXELS;
    out->x = tr_empty(TR_SHAPE(1, SIDE, SIDE));
    float *x = tr_data(out->x);
    for (int i = 0; x && i < PIXELS; i++) x[i] = ((float)from[i] / 255.0f - 0.1307f) / 0.3081f;
    out->y = tr_scalar((double)(call->index % 10), TR_I64);
    return TR_OK;
}

static tr_dataset *make_digits(const void *argument, size_t bytes)
{
    int64_t count = 0;
    memcpy(&count, argument, bytes);
    digits *d = malloc(sizeof *d + (size_t)count * PIXELS);
    if (d) {
        d->count = count;
        for (int64_t i = 0; i < count * PIXELS; i++) d->pixels[i] = (unsigned char)(i * 2654435761u >> 24);
    }
    tr_dataset *set = tr_dataset_new(d ? count : -1, get_digit, .user = d, .release = free, .name = "digits");
    if (tr_status_of(set) != TR_OK) free(d); /* it was not taken */
    return set;
}

static tr_dataset *make_rows(const void *argument, size_t bytes)
{
    int64_t count = 0;
    memcpy(&count, argument, bytes);
    return tr_dataset_tensors(tr_zeros(TR_SHAPE(count, 1, SIDE, SIDE)), tr_zeros(TR_SHAPE(count), .dtype = TR_I64));
}

static tr_dataset *make_set(const bench_loader *b)
{
    int64_t count = b->count;
    if (!strcmp(b->samples, "rows")) return tr_dataset_from(make_rows, &count, sizeof count);
    if (!strcmp(b->samples, "digits")) return tr_dataset_from(make_digits, &count, sizeof count);
    return tr_image_folder(b->folder, .height = IMAGE_SIDE, .width = IMAGE_SIDE);
}

/* ---- Epochs ------------------------------------------------------------------------------------------------------ */

static tr_status our_epoch(tr_loader *loader, int64_t count, double *us_per_sample)
{
    double begin = tr__now_us();
    tr_batch b;
    tr_status status;
    while ((status = tr_loader_next(loader, &b)) == TR_OK) continue;
    *us_per_sample = (tr__now_us() - begin) / (double)count;
    return status == TR_END ? TR_OK : status;
}

static bool start_peer(const bench_loader *b, tr__peer *peer)
{
    char word[PATH_MAX];
    return tr__peer_start(peer, tr_threads(tr_cpu(0)), "%s --samples %s --count %d --batch %d --workers %d%s%s", b->peer,
        b->samples, b->count, b->batch, b->workers, b->folder ? " --folder " : "",
        b->folder ? tr__shell_word(b->folder, word, sizeof word) : "");
}

/* One epoch before those that count starts the workers of both. False after a message. */
static bool measure(const bench_loader *b, tr__peer *peer, tr_loader *loader, int64_t count, double *ours, double *theirs)
{
    bool well = !b->peer || start_peer(b, peer);
    for (int i = -1; i < b->rounds && well; i++) {
        int at = i < 0 ? 0 : i;
        well = !b->peer || i % 2 == 0 || tr__peer_ask(peer, "epoch", &theirs[at]);
        if (well && our_epoch(loader, count, &ours[at]) != TR_OK) {
            tr__failed(TR__BENCH);
            well = false;
        }
        if (well && b->peer && i % 2 == 0) well = tr__peer_ask(peer, "epoch", &theirs[at]);
    }
    tr__peer_stop(peer);
    return well;
}

/* ---- The report -------------------------------------------------------------------------------------------------- */

/* version: the peer's. */
static int report(const bench_loader *b, int64_t count, const char *version, double *ours, double *theirs)
{
    double ratio = b->peer ? tr__median_ratio(theirs, ours, b->rounds) : 0; /* before the medians sort both */
    double us = tr__median(ours, b->rounds);
    printf("%s, %lld samples in batches of %d, %d %s, median of %d epochs\n", b->samples, (long long)count, b->batch,
        b->workers, b->processes ? "worker processes" : "worker threads", b->rounds);
    printf("a sample         %10.3f us: %.0f /s\n", us, 1e6 / us);
    cJSON *o = tr__result_new(version, "loader/%s/%d%s%s", b->samples, b->workers, b->processes ? "-processes" : "",
        b->peer ? "" : "/alone");
    cJSON_AddStringToObject(o, "samples", b->samples);
    cJSON_AddBoolToObject(o, "processes", b->processes);
    TR__ADD_NUMBERS(o, {"count", (double)count}, {"batch", b->batch}, {"workers", b->workers}, {"us_per_sample", us},
        {"samples_per_s", 1e6 / us});
    if (b->peer) {
        double peer_us = tr__median(theirs, b->rounds);
        printf("the peer's       %10.3f us; ours take %.2f times less, pair by pair\n", peer_us, ratio);
        TR__ADD_NUMBERS(o, {"peer_us_per_sample", peer_us}, {"ratio", ratio});
    }
    return tr__write_json(TR__BENCH, o, b->json);
}

static int run(void *self)
{
    const bench_loader *b = self;
    TR_SCOPE;
    tr_dataset *set = make_set(b);
    int64_t count = tr_dataset_count(set);
    tr_loader *loader = tr_loader_new(set, .batch = b->batch, .workers = b->workers, .processes = b->processes,
        .shuffle = true);
    if (tr_status_of(loader) != TR_OK) return tr__failed(TR__BENCH);
    tr__peer peer = {0};
    double ours[MOST_ROUNDS], theirs[MOST_ROUNDS];
    if (!measure(b, &peer, loader, count, ours, theirs)) return TR__EXIT_FAILED;
    return report(b, count, peer.version, ours, theirs);
}

static int check(void *self)
{
    const bench_loader *b = self;
    if (!strcmp(b->samples, "folder") != !b->folder) return -1;
    return TR__MISUSE(TR__BENCH, "--samples folder and --folder belong together");
}

int tr__bench_loader(int argc, char **argv)
{
    bench_loader b = {.samples = "digits", .count = 20000, .batch = 64, .rounds = 5};
    const tr__option options[] = {
        {"samples", 0, "NAME", "rows of a tensor; digits: 28 x 28 bytes, normalised; or images of --folder",
            TR__CHOICE(&b.samples, "rows", "digits", "folder")},
        {"folder", 0, "FOLDER", "JPEG or PNG files in a folder for each class; scaled to 224 x 224", TR__TEXT(&b.folder)},
        {"count", 0, "N", "samples, where there is no folder", TR__INTEGER(&b.count, 1, 10000000)},
        {"batch", 0, "N", "samples in a batch", TR__INTEGER(&b.batch, 1, 1000000)},
        {"workers", 0, "N", "threads, or processes; 0: none (0)", TR__INTEGER(&b.workers, 0, 1024)},
        {"processes", 0, NULL, "workers make their batches in processes", TR__FLAG(&b.processes)},
        {"rounds", 0, "N", "epochs that count", TR__INTEGER(&b.rounds, 1, MOST_ROUNDS)},
        {"peer", 0, "COMMAND",
            "a program to take turns with: it gets --samples, --folder, --count, --batch and --workers, prints\n"
            "                            \"ready\"; for each line that it reads it runs an epoch and prints the microseconds "
            "of a sample",
            TR__TEXT(&b.peer)},
        {"json", 0, "FILE", "write the results as a JSON object", TR__OUTPUT(&b.json)},
        {0},
    };
    const tr__syntax syntax = {"bench loader", NULL, "Times a loader's batches, with which nothing else is done.", options,
        .operands = {0, 0}};
    return tr__bench_run(&(tr__bench_job){&syntax, NULL, check, run, &b}, argc, argv);
}
