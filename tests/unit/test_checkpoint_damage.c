/*
 * Damage trials: a training's newest checkpoint is damaged at random, and the training goes on. Each must go on from
 * the checkpoint before, with its weights; none may take a byte that was not saved. All of a trial follows from its
 * seed, and seed % 8 says what is done:
 *
 *   0         a page of 4 KiB is zeroed, as when a write was lost
 *   1         files come from other checkpoints: the step before, another training, the same training run again
 *   2         a file is cut short, or is gone
 *   3 to 7    a bit is flipped
 *
 * so that the 1,600 trials that run without arguments are 1,000 flipped bits and 200 each of the others. Arguments, for
 * `make soak` and for looking into a failure: -runs=N -seed=S, N trials with the seeds S, S + 1, …
 *
 * ctest: timeout=180
 */
#include "files.h"
#include "sanitized.h"
#include "trial.h"

#include <trireme/trireme.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { OLD = 4, LATEST = 8, PAGE = 4096 };

static const char *const names[] = {"model.safetensors", "state.safetensors", "history.safetensors", "manifest.json"};
enum { FILES = sizeof names / sizeof *names };

static unsigned long long runs = SANITIZED ? 160 : 1600, first_seed = 1;

/* ---- What there is to damage ------------------------------------------------------------------------------------- */

typedef struct content {
    char *data;
    size_t bytes;
} content;

/* A checkpoint as it was saved. */
typedef struct saved {
    const char *run;
    int step;
    content files[FILES];
} saved;

/* The first one is damaged, the second one is to be found in its place. */
static saved checkpoints[] = {{"run", LATEST, {{0}}},
                              {"run", OLD, {{0}}},
                              {"other", LATEST, {{0}}},
                              {"other", OLD, {{0}}},
                              {"again", LATEST, {{0}}}};
enum { CHECKPOINTS = sizeof checkpoints / sizeof *checkpoints };

static char folder[512];
static tr_text *text;
static tr_tensor_list *weights; /* of the second one */

static tr_trainer *new_trainer(uint64_t seed, const char *resume)
{
    tr_module *model = tr_gpt(.vocab = 256, .context = 16, .layers = 1, .heads = 2, .dim = 32, .seed = seed);
    return tr_trainer_new(model, text, .context = 16, .global_batch = 2, .steps = 100, .seed = seed, .resume = resume,
                      .validation_windows = 4);
}

static void train(const char *run, uint64_t seed)
{
    TR_SCOPE;
    tr_trainer *trainer = new_trainer(seed, NULL);
    TR_CHECK(tr_fit(trainer, .folder = files_path(run), .stop_at = LATEST, .save_every = OLD, .validate_every = OLD));
}

static const char *path_of(const saved *s, int file)
{
    static char path[700];
    snprintf(path, sizeof path, "%s/checkpoint-%d/%s", files_path(s->run), s->step, names[file]);
    return path;
}

static content read_content(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct stat s;
    assert_true(f && fstat(fileno(f), &s) == 0);
    content c = {malloc((size_t)s.st_size + 1), (size_t)s.st_size};
    assert_non_null(c.data);
    assert_int_equal(fread(c.data, 1, c.bytes, f), c.bytes);
    fclose(f);
    return c;
}

static void write_content(const char *path, const char *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static char said[2048]; /* by the log */

static void note_log(tr_log_level level, const char *message, void *user)
{
    (void)level, (void)user;
    snprintf(said, sizeof said, "%s", message);
}

static int begin(void **state)
{
    if (files_begin(state) != 0) return -1;
    char line[64], *all = malloc(40000);
    size_t length = 0;
    for (int i = 0; i < 900; i++) {
        snprintf(line, sizeof line, "%d times %d is %d;\n", i, i % 7, i * (i % 7));
        memcpy(all + length, line, strlen(line));
        length += strlen(line);
    }
    text = tr_keep(tr_text_load(files_write("text", all, length)));
    free(all);
    train("run", 1);
    train("other", 2);
    train("again", 1);
    snprintf(folder, sizeof folder, "%s", files_path("run"));
    for (int i = 0; i < CHECKPOINTS; i++)
        for (int k = 0; k < FILES; k++) checkpoints[i].files[k] = read_content(path_of(&checkpoints[i], k));
    weights = tr_keep(tr_safetensors_load(path_of(&checkpoints[1], 0)));
    tr_set_log(note_log, NULL, TR_LOG_WARN);
    return tr_status_of(weights) == TR_OK ? 0 : -1;
}

static int end(void **state)
{
    for (int i = 0; i < CHECKPOINTS; i++)
        for (int k = 0; k < FILES; k++) free(checkpoints[i].files[k].data);
    tr_release(text);
    tr_release(weights);
    return files_end(state);
}

/* ---- Damage ------------------------------------------------------------------------------------------------------ */

/* What is written in place of a file; a NULL: it stays. gone: it is removed. */
typedef struct damage {
    content files[FILES];
    bool owned[FILES], gone;
    char what[160];
} damage;

/* Half of the time each file is as likely as the others, half of the time each byte. */
static int draw_file(uint64_t *random)
{
    if (trial_below(random, 2)) return trial_below(random, FILES);
    size_t all = 0;
    for (int k = 0; k < FILES; k++) all += checkpoints[0].files[k].bytes;
    size_t at = trial_draw(random) % all;
    int k = 0;
    while (at >= checkpoints[0].files[k].bytes) at -= checkpoints[0].files[k++].bytes;
    return k;
}

static content copy_of(content c)
{
    content copy = {malloc(c.bytes + 1), c.bytes};
    assert_non_null(copy.data);
    memcpy(copy.data, c.data, c.bytes);
    return copy;
}

static void take_files(damage *d, uint64_t *random)
{
    const saved *from = &checkpoints[1 + trial_below(random, CHECKPOINTS - 1)];
    if (trial_below(random, 8) == 0) { /* one file in another's place */
        int k = trial_below(random, FILES), other = (k + 1 + trial_below(random, FILES - 1)) % FILES;
        d->files[k] = from->files[other];
        snprintf(d->what, sizeof d->what, "%s is %s of %s, step %d", names[k], names[other], from->run, from->step);
        return;
    }
    int which = 1 + trial_below(random, (1 << FILES) - 1); /* any of them, and any together */
    for (int k = 0; k < FILES; k++)
        if (which >> k & 1) d->files[k] = from->files[k];
    snprintf(d->what, sizeof d->what, "files %x of %s, step %d", which, from->run, from->step);
}

static void draw_damage(damage *d, uint64_t seed, uint64_t *random)
{
    *d = (damage){.what = ""};
    if (seed % 8 == 1) {
        take_files(d, random);
        return;
    }
    int k = draw_file(random);
    content c = d->files[k] = copy_of(checkpoints[0].files[k]);
    d->owned[k] = true;
    if (seed % 8 == 0) {
        size_t at = trial_draw(random) % ((c.bytes + PAGE - 1) / PAGE) * PAGE;
        memset(c.data + at, 0, c.bytes - at < PAGE ? c.bytes - at : PAGE);
        snprintf(d->what, sizeof d->what, "%s: the page at byte %zu is zeroed", names[k], at);
    } else if (seed % 8 == 2) {
        d->gone = trial_below(random, 8) == 0;
        d->files[k].bytes = trial_draw(random) % c.bytes;
        snprintf(d->what, sizeof d->what, "%s: %s %zu bytes", names[k], d->gone ? "gone, not" : "cut to",
                 d->files[k].bytes);
    } else {
        size_t bit = trial_draw(random) % (8 * c.bytes);
        c.data[bit / 8] ^= (char)(1 << bit % 8);
        snprintf(d->what, sizeof d->what, "%s: bit %zu is flipped", names[k], bit);
    }
}

static void forget(damage *d)
{
    for (int k = 0; k < FILES; k++)
        if (d->owned[k]) free(d->files[k].data);
}

/* Zeroes that were zeroes, or all files of another save of the step together, are a checkpoint as it was saved: no
 * damage. */
static bool is_damaged(const damage *d)
{
    if (d->gone) return true;
    for (int i = 0; i < CHECKPOINTS; i++) {
        bool same = checkpoints[i].step == LATEST;
        for (int k = 0; k < FILES && same; k++) {
            content now = d->files[k].data ? d->files[k] : checkpoints[0].files[k], then = checkpoints[i].files[k];
            same = now.bytes == then.bytes && memcmp(now.data, then.data, now.bytes) == 0;
        }
        if (same) return false;
    }
    return true;
}

static void put(const damage *d, bool back)
{
    for (int k = 0; k < FILES; k++) {
        const char *path = path_of(&checkpoints[0], k);
        content c = back ? checkpoints[0].files[k] : d->files[k];
        if (!d->files[k].data) continue;
        if (d->gone && !back)
            assert_int_equal(unlink(path), 0);
        else
            write_content(path, c.data, c.bytes);
    }
}

/* ---- Trials ------------------------------------------------------------------------------------------------------ */

static bool has_old_weights(tr_module *model)
{
    tr_tensor_list *now = tr_state_dict(model);
    for (int i = 0; i < tr_list_count(weights); i++) {
        tr_tensor *then = tr_list_at(weights, i), *t = tr_list_find(now, tr_list_name(weights, i));
        if (!t || tr_numel(t) != tr_numel(then) || memcmp(tr_data(t), tr_data(then), (size_t)tr_numel(t) * 4) != 0)
            return false;
    }
    return tr_list_count(now) == tr_list_count(weights);
}

/* What is wrong with what comes of the damage; NULL: nothing. */
static const char *try_to_go_on(void)
{
    TR_SCOPE;
    char newest[600];
    snprintf(newest, sizeof newest, "%s/checkpoint-%d", folder, LATEST);
    if (tr_checkpoint_verify(newest) != TR_FORMAT) return "tr_checkpoint_verify() finds nothing";
    *said = 0;
    tr_module *model = tr_gpt(.vocab = 256, .context = 16, .layers = 1, .heads = 2, .dim = 32, .seed = 3);
    tr_trainer *trainer =
        tr_trainer_new(model, text, .context = 16, .global_batch = 2, .steps = 100, .seed = 1, .resume = folder);
    if (tr_status_of(trainer) != TR_OK) return tr_error_message();
    if (tr_trainer_steps(trainer) != OLD) return "the damaged checkpoint is accepted";
    if (tr_trainer_passed_over(trainer) != 1) return "the trainer does not say that it has passed over one";
    if (!has_old_weights(model)) return "its weights are not those of the checkpoint before";
    return strstr(said, "checkpoint-8 is damaged (") ? NULL : "the log does not say that it is damaged";
}

static void no_damage_is_accepted(void **state)
{
    (void)state;
    int tried[8] = {0}, failed = 0;
    for (uint64_t i = 0; i < runs; i++) {
        uint64_t seed = first_seed + i, random = seed;
        damage d;
        for (draw_damage(&d, seed, &random); !is_damaged(&d); draw_damage(&d, seed, &random)) forget(&d);
        put(&d, false);
        const char *wrong = try_to_go_on();
        if (wrong) print_error("-runs=1 -seed=%llu: %s: %s\n", (unsigned long long)seed, d.what, wrong);
        failed += wrong != NULL;
        put(&d, true);
        forget(&d);
        tried[seed % 8]++;
    }
    print_message("%d bits, %d pages, %d sets of files, %d cuts: %d accepted or not healed\n",
                  tried[3] + tried[4] + tried[5] + tried[6] + tried[7], tried[0], tried[1], tried[2], failed);
    assert_int_equal(failed, 0);
    TR_SCOPE; /* it was the damage alone */
    assert_int_equal(tr_trainer_steps(new_trainer(1, folder)), LATEST);
}

/* metrics.csv is written and never read: the rows are the checkpoint's, whatever the file has become. */
static void a_damaged_metrics_file_is_written_anew(void **state)
{
    (void)state;
    char path[600];
    snprintf(path, sizeof path, "%s/metrics.csv", folder);
    content whole = read_content(path);
    for (uint64_t i = 0; i < (SANITIZED ? 20 : 200); i++) {
        TR_SCOPE;
        uint64_t random = first_seed + i;
        content c = copy_of(whole);
        size_t bit = trial_draw(&random) % (8 * c.bytes);
        c.data[bit / 8] ^= (char)(1 << bit % 8);
        write_content(path, c.data, c.bytes);
        free(c.data);
        tr_fit_report report;
        tr_trainer *trainer = new_trainer(1, folder);
        assert_int_equal(tr_fit(trainer, .folder = folder, .stop_at = LATEST, .report = &report), TR_OK);
        content now = read_content(path);
        if (now.bytes != whole.bytes || memcmp(now.data, whole.data, now.bytes) != 0)
            fail_msg("bit %zu is in the history", bit);
        free(now.data);
    }
    free(whole.data);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (sscanf(argv[i], "-runs=%llu", &runs) != 1 && sscanf(argv[i], "-seed=%llu", &first_seed) != 1)
            return fprintf(stderr, "%s [-runs=N] [-seed=S]\n", argv[0]), 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_damage_is_accepted),
        cmocka_unit_test(a_damaged_metrics_file_is_written_anew),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
