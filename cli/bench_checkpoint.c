/*
 * trireme bench checkpoint: how fast a checkpoint is saved, loaded and verified, beside the same tensors without
 * checksums, and beside a peer's. All take turns, so that what the disk and other programs do meets each alike.
 */
#include "bench.h"
#include "bench_result.h"

#include "clock.h"
#include "options.h"
#include "terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { MOST_ROUNDS = 100, DIM = 768, LAYERS = 12, VOCAB = 50257, CONTEXT = 1024 };

typedef struct bench_checkpoint {
    const char *folder, *peer, *json;
    int megabytes, rounds, threads;
    tr_tensor_list *model, *state;
    double bytes; /* of their tensors */
    char path[PATH_MAX], checkpoint[PATH_MAX], plain_model[PATH_MAX],
        plain_state[PATH_MAX]; /* in a folder that goes in the end */
    tr__peer program;
} bench_checkpoint;

/* ---- What is saved ----------------------------------------------------------------------------------------------- */

/* A parameter, and AdamW's two moments of it, unless there is enough already. At the end only some rows are taken. */
static tr_status add_parameter(bench_checkpoint *b, const char *name, int64_t rows, int64_t columns)
{
    TR_SCOPE;
    int64_t row_bytes = 3 * 4 * columns, left = (int64_t)b->megabytes * 1000000 - (int64_t)b->bytes;
    if (b->megabytes && left < row_bytes * rows) rows = left / row_bytes;
    if (rows < 1) return TR_OK;
    static const char *const endings[] = {"", ".exp_avg", ".exp_avg_sq"};
    for (int i = 0; i < 3; i++) {
        char full[128];
        snprintf(full, sizeof full, "%s%s", name, endings[i]);
        tr_tensor *t = tr_randn(tr_next_seed(), TR_SHAPE(rows, columns));
        TRY(tr_list_add(i ? b->state : b->model, full, t));
    }
    b->bytes += (double)(rows * row_bytes);
    return TR_OK;
}

/* GPT-2's shapes: vectors as one row. Its 148 parameters are 124 million numbers. */
static tr_status make_tensors(bench_checkpoint *b)
{
    static const struct {
        const char *name;
        int64_t rows, columns;
    } block[] = {
        {"ln_1.weight", 1, DIM},
        {"ln_1.bias", 1, DIM},
        {"attn.c_attn.weight", DIM, 3 * DIM},
        {"attn.c_attn.bias", 1, 3 * DIM},
        {"attn.c_proj.weight", DIM, DIM},
        {"attn.c_proj.bias", 1, DIM},
        {"ln_2.weight", 1, DIM},
        {"ln_2.bias", 1, DIM},
        {"mlp.c_fc.weight", DIM, 4 * DIM},
        {"mlp.c_fc.bias", 1, 4 * DIM},
        {"mlp.c_proj.weight", 4 * DIM, DIM},
        {"mlp.c_proj.bias", 1, DIM},
    };
    b->model = tr_list_new();
    b->state = tr_list_new();
    TRY(tr_status_of(b->model));
    for (int layer = 0; layer < LAYERS; layer++) {
        for (size_t i = 0; i < sizeof block / sizeof *block; i++) {
            char name[64];
            snprintf(name, sizeof name, "h.%d.%s", layer, block[i].name);
            TRY(add_parameter(b, name, block[i].rows, block[i].columns));
        }
    }
    TRY(add_parameter(b, "wte.weight", VOCAB, DIM));
    TRY(add_parameter(b, "wpe.weight", CONTEXT, DIM));
    TRY(add_parameter(b, "ln_f.weight", 1, DIM));
    return add_parameter(b, "ln_f.bias", 1, DIM);
}

/* ---- What is timed ----------------------------------------------------------------------------------------------- */

static tr_status save(bench_checkpoint *b)
{
    return tr_checkpoint_save(b->path, 1, b->model, b->state, .keep = 1);
}

/* The same bytes by the same code, without checksums and without a manifest. */
static tr_status save_plain(bench_checkpoint *b)
{
    tr_status status = tr_safetensors_save(b->plain_model, b->model);
    return status == TR_OK ? tr_safetensors_save(b->plain_state, b->state) : status;
}

static tr_status load(bench_checkpoint *b)
{
    TR_SCOPE;
    tr_tensor_list *model, *state;
    return tr_checkpoint_load(b->checkpoint, &model, &state);
}

static tr_status load_plain(bench_checkpoint *b)
{
    TR_SCOPE;
    tr_status status = tr_status_of(tr_safetensors_load(b->plain_model));
    return status == TR_OK ? tr_status_of(tr_safetensors_load(b->plain_state)) : status;
}

static tr_status verify(bench_checkpoint *b)
{
    TR_SCOPE;
    return tr_checkpoint_verify(b->checkpoint);
}

enum {
    SAVE,
    PLAIN_SAVE,
    LOAD,
    PLAIN_LOAD,
    VERIFY,
    COLD_LOAD,
    COLD_PLAIN_LOAD,
    COLD_VERIFY,
    TORCH_SAVE,
    DCP_SAVE,
    TORCH_LOAD,
    DCP_LOAD,
    TORCH_COLD_LOAD,
    DCP_COLD_LOAD,
    MEASURES
};

/* Every second round goes through them from the end. */
static const struct measure {
    const char *key, *words;
    tr_status (*run)(bench_checkpoint *b); /* NULL: the peer is asked for its key */
    int beside;                            /* what its ratio is to; itself: it has none */
    bool cold;
} measures[MEASURES] = {
    [SAVE] = {"save", "save, with checksums", save, PLAIN_SAVE, false},
    [PLAIN_SAVE] = {"plain_save", "save, without", save_plain, PLAIN_SAVE, false},
    [LOAD] = {"load", "load, with checksums", load, PLAIN_LOAD, false},
    [PLAIN_LOAD] = {"plain_load", "load, without", load_plain, PLAIN_LOAD, false},
    [VERIFY] = {"verify", "verify, with SHA-256", verify, PLAIN_LOAD, false},
    [COLD_LOAD] = {"cold_load", "load from the disk, with checksums", load, COLD_PLAIN_LOAD, true},
    [COLD_PLAIN_LOAD] = {"cold_plain_load", "load from the disk, without", load_plain, COLD_PLAIN_LOAD, true},
    [COLD_VERIFY] = {"cold_verify", "verify from the disk", verify, COLD_PLAIN_LOAD, true},
    [TORCH_SAVE] = {"torch_save", "torch.save", NULL, SAVE, false},
    [DCP_SAVE] = {"dcp_save", "torch.distributed.checkpoint, save", NULL, SAVE, false},
    [TORCH_LOAD] = {"torch_load", "torch.load", NULL, LOAD, false},
    [DCP_LOAD] = {"dcp_load", "torch.distributed.checkpoint, load", NULL, LOAD, false},
    [TORCH_COLD_LOAD] = {"torch_cold_load", "torch.load from the disk", NULL, COLD_LOAD, true},
    [DCP_COLD_LOAD] = {"dcp_cold_load", "torch.distributed.checkpoint, load from the disk", NULL, COLD_LOAD, true},
};

/* Brings a file that is on the disk out of the page cache, or all of it into the cache. */
static void prepare(const char *path, bool cold)
{
    char piece[1 << 16];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    if (cold) posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    while (!cold && read(fd, piece, sizeof piece) > 0) continue;
    close(fd);
}

static void prepare_all(const bench_checkpoint *b, bool cold)
{
    char model[PATH_MAX + 32], state[PATH_MAX + 32];
    stpcpy(stpcpy(model, b->checkpoint), "/model.safetensors");
    stpcpy(stpcpy(state, b->checkpoint), "/state.safetensors");
    prepare(model, cold);
    prepare(state, cold);
    prepare(b->plain_model, cold);
    prepare(b->plain_state, cold);
}

static bool time_one(bench_checkpoint *b, const struct measure *m, double *seconds)
{
    if (!m->run) return tr__peer_ask(&b->program, m->key, seconds);
    if (m->run != save && m->run != save_plain) prepare_all(b, m->cold);
    double begin = tr__now_us();
    if (m->run(b) != TR_OK) {
        tr__complain(TR__BENCH, "%s", tr_error_message());
        return false;
    }
    *seconds = 1e-6 * (tr__now_us() - begin);
    return true;
}

/* A file system that is memory has nothing to read from a disk. */
static bool has_disk(const bench_checkpoint *b)
{
    enum { TMPFS = 0x01021994 };
    struct statfs s;
    return statfs(b->path, &s) == 0 && s.f_type != TMPFS;
}

/* Process-wide, as signals are: the one that asked for an end, or 0. The first lets the measure under way end and the files be removed; a
 * second one ends the process at once. */
static volatile sig_atomic_t stop_signal;

static void on_stop(int sig)
{
    stop_signal = sig;
}

static void watch_signals(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction action = {.sa_handler = on_stop, .sa_flags = (int)SA_RESETHAND | SA_RESTART}, old;
        sigaction(signals[i], NULL, &old);
        if (old.sa_handler != SIG_IGN) sigaction(signals[i], &action, NULL); /* ignored: under nohup */
    }
}

/* The first round is not counted: it makes the files and warms up. */
static bool measure_all(bench_checkpoint *b, double seconds[MEASURES][MOST_ROUNDS])
{
    bool disk = has_disk(b);
    for (int round = -1; round < b->rounds; round++) {
        for (int i = 0; i < MEASURES; i++) {
            int at = round % 2 == 0 ? MEASURES - 1 - i : i;
            const struct measure *m = &measures[at];
            if ((m->cold && !disk) || (!m->run && !b->peer)) continue;
            if (stop_signal || !time_one(b, m, &seconds[at][round < 0 ? 0 : round])) return false;
        }
    }
    return true;
}

/* ---- The report -------------------------------------------------------------------------------------------------- */

/* Pair by pair: of ours, which share of the speed without checksums is left; of a peer's, how many times as fast ours
 * is. */
static double ratio_of(const bench_checkpoint *b, double seconds[MEASURES][MOST_ROUNDS], int i)
{
    const double *it = seconds[i], *beside = seconds[measures[i].beside];
    return measures[i].run ? tr__median_ratio(beside, it, b->rounds) : tr__median_ratio(it, beside, b->rounds);
}

static cJSON *report(const bench_checkpoint *b, double seconds[MEASURES][MOST_ROUNDS])
{
    bool disk = has_disk(b);
    cJSON *o = tr__result_new(b->program.version, "checkpoint%s", b->peer ? "" : "/alone");
    TR__ADD_NUMBERS(o, {"bytes", b->bytes}, {"tensors", tr_list_count(b->model) + tr_list_count(b->state)},
        {"threads", tr_threads(tr_cpu(0))}, {"rounds", b->rounds});
    cJSON_AddBoolToObject(o, "disk", disk);
    printf("%.2f GB in %d tensors, %d threads, %s, median of %d rounds\n", 1e-9 * b->bytes,
           tr_list_count(b->model) + tr_list_count(b->state), tr_threads(tr_cpu(0)),
           disk ? "files on a disk" : "files in memory", b->rounds);
    double ratios[MEASURES] = {0}; /* before the medians sort what they are of */
    bool made[MEASURES];
    for (int i = 0; i < MEASURES; i++) {
        made[i] = (disk || !measures[i].cold) && (b->peer || measures[i].run);
        if (made[i]) ratios[i] = ratio_of(b, seconds, i);
    }
    for (int i = 0; i < MEASURES; i++) {
        const struct measure *m = &measures[i];
        if (!made[i]) continue;
        char key[64], text[64] = "";
        double speed = 1e-9 * b->bytes / tr__median(seconds[i], b->rounds); /* GB/s */
        snprintf(key, sizeof key, "%s_gbps", m->key);
        cJSON_AddNumberToObject(o, key, speed);
        if (m->beside != i) {
            snprintf(key, sizeof key, "%s_%s", m->key, m->run ? "share" : "ratio");
            cJSON_AddNumberToObject(o, key, ratios[i]);
            if (m->run)
                snprintf(text, sizeof text, "%.0f %% of the speed without", 100 * ratios[i]);
            else
                snprintf(text, sizeof text, "ours is %.2f times as fast", ratios[i]);
        }
        printf("%-48s %6.2f GB/s  %s\n", m->words, speed, text);
    }
    return o;
}

/* ---- The command ------------------------------------------------------------------------------------------------- */

static int remove_one(const char *path, const struct stat *s, int kind, struct FTW *ftw)
{
    (void)s, (void)kind, (void)ftw;
    remove(path);
    return 0;
}

static bool make_folder(bench_checkpoint *b)
{
    if (snprintf(b->path, sizeof b->path, "%s/trireme-bench-XXXXXX", b->folder) >= PATH_MAX - 40 || !mkdtemp(b->path)) {
        tr__complain(TR__BENCH, "cannot make a folder in %s: %s", b->folder, strerror(errno));
        return false;
    }
    stpcpy(stpcpy(b->checkpoint, b->path), "/checkpoint-1");
    stpcpy(stpcpy(b->plain_model, b->path), "/plain-model.safetensors");
    stpcpy(stpcpy(b->plain_state, b->path), "/plain-state.safetensors");
    return true;
}

static int run(void *self)
{
    bench_checkpoint *b = self;
    TR_SCOPE;
    double seconds[MEASURES][MOST_ROUNDS] = {{0}};
    tr_status status = b->threads ? tr_set_threads(b->threads) : TR_OK;
    if (status == TR_OK) status = make_tensors(b);
    if (status != TR_OK) return tr__bench_failed(status);
    watch_signals();
    if (!make_folder(b)) return TR__EXIT_FAILED;
    char word[PATH_MAX];
    bool well = !b->peer || tr__peer_start(&b->program, tr_threads(tr_cpu(0)), "%s --megabytes %.0f --folder %s/peer", b->peer,
        1e-6 * b->bytes, tr__shell_word(b->path, word, sizeof word));
    well = well && measure_all(b, seconds);
    tr__peer_stop(&b->program);
    cJSON *o = well ? report(b, seconds) : NULL;
    nftw(b->path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    if (stop_signal) {
        signal(stop_signal, SIG_DFL);
        raise(stop_signal);
    }
    return well ? tr__write_json(TR__BENCH, o, b->json) : TR__EXIT_FAILED;
}

int tr__bench_checkpoint(int argc, char **argv)
{
    bench_checkpoint b = {.folder = ".", .rounds = 5};
    const tr__option options[] = {
        {"megabytes", 0, "N", "of model and state together (GPT-2 with 124M parameters and AdamW's state: 1,493)",
         TR__INTEGER(&b.megabytes, 1, 1000000)},
        {"folder", 0, "FOLDER", "where the files are written, and removed in the end", TR__TEXT(&b.folder)},
        {"rounds", 0, "N", "that count", TR__INTEGER(&b.rounds, 1, MOST_ROUNDS)},
        {"threads", 0, "N", "threads (all cores)", TR__INTEGER(&b.threads, 1, 1024)},
        {"peer", 0, "COMMAND",
         "a program to take turns with: it gets --megabytes and --folder, prints \"ready\", and for each of the lines\n"
         "                            torch_save, torch_load, torch_cold_load, dcp_save, dcp_load, dcp_cold_load "
         "prints the\n"
         "                            seconds that this took",
         TR__TEXT(&b.peer)},
        {"json", 0, "FILE", "write the results as a JSON object", TR__OUTPUT(&b.json)},
        {0},
    };
    const tr__syntax syntax = {
        "bench checkpoint", NULL,
        "Times saving, loading and verifying a checkpoint, beside the same tensors as safetensors files without "
        "checksums.\n"
        "Files are read back from the page cache, and (\"from the disk\") after they were dropped from it.",
        options, .operands = {0, 0}};
    return tr__bench_run(&(tr__bench_job){&syntax, NULL, NULL, run, &b}, argc, argv);
}
