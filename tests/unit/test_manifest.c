/* Damage to a checkpoint: whatever byte it is in, it is refused, named, and the checkpoint before it is found instead.
 */
#include "files.h"

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

enum { OLD = 20, LATEST = 40, ROWS = 3 };

static const char *const names[] = {"model.safetensors", "state.safetensors", "history.safetensors", "manifest.json"};
enum { FILES = sizeof names / sizeof *names };

static char folder[512];

static const char *file_of(int step, const char *name)
{
    static char path[600];
    snprintf(path, sizeof path, "%s/checkpoint-%d/%s", folder, step, name);
    return path;
}

static void save(int64_t step, const double *loss, int keep, bool keep_best)
{
    TR_SCOPE;
    tr_tensor_list *model = tr_list_new(), *state = tr_list_new();
    uint64_t seed = (uint64_t)step;
    TR_CHECK(tr_list_set_metadata(model, "layers", "2"));
    TR_CHECK(tr_list_add(model, "0.weight", tr_randn(seed, TR_SHAPE(40, 30))));
    TR_CHECK(tr_list_add(model, "0.bias", tr_randn(seed + 1, TR_SHAPE(40), .dtype = TR_BF16)));
    TR_CHECK(tr_list_add(state, "0.weight.m", tr_randn(seed + 2, TR_SHAPE(40, 30))));
    TR_CHECK(tr_list_add(state, "step", tr_full((double)step, TR_SHAPE(1), .dtype = TR_I64)));
    tr_metrics *metrics = tr_metrics_open(files_path("metrics.csv"));
    for (int64_t i = step - ROWS + 1; i <= step; i++) {
        tr_metrics_row row = {.step = i,
                              .items = 64 * i,
                              .lr = 0.1,
                              .loss = 1,
                              .validation_loss = NAN,
                              .grad_norm = NAN,
                              .validation_accuracy = NAN};
        TR_CHECK(tr_metrics_add(metrics, &row));
    }
    TR_CHECK(tr_checkpoint_save(folder, step, model, state, .metrics = metrics, .loss = loss, .keep = keep,
                                .keep_best = keep_best));
    unlink(files_path("metrics.csv"));
}

/* What a program puts under the name of a trainer's settings need not be a hash. */
static void metadata_spoils_no_manifest(void **state)
{
    (void)state;
    TR_SCOPE;
    static const char *const settings[] = {"a \"quoted\" word", "", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"};
    for (int i = 0; i < 3; i++) {
        tr_tensor_list *model = tr_list_new();
        tr_checkpoint_report report;
        TR_CHECK(tr_list_set_metadata(model, "trireme.settings", settings[i]));
        TR_CHECK(tr_checkpoint_save(files_path("settings"), i, model, tr_list_new()));
        char path[600];
        snprintf(path, sizeof path, "%s/checkpoint-%d", files_path("settings"), i);
        TR_CHECK(tr_checkpoint_verify(path, .report = &report));
        assert_int_equal(strlen(report.settings), 64);
        assert_int_equal(strcmp(report.settings, settings[i]) == 0, i == 2);
        TR_CHECK(tr_checkpoint_load(path, &model, NULL));
        assert_string_equal(tr_list_metadata(model, "trireme.settings"), settings[i]);
    }
}

/* A folder with two checkpoints that are whole. */
static int two_checkpoints(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s", files_path("run"));
    char command[600];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0) return -1;
    save(OLD, NULL, 2, false);
    save(LATEST, NULL, 2, false);
    return 0;
}

static char *read_file(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    struct stat s;
    assert_true(f && fstat(fileno(f), &s) == 0);
    char *data = malloc((size_t)s.st_size + 1);
    assert_non_null(data);
    *bytes = fread(data, 1, (size_t)s.st_size, f);
    fclose(f);
    return data;
}

static void write_file(const char *path, const char *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static char message[1024]; /* of the latest refusal */

/* Is the latest checkpoint refused, and the one before it found in its place? */
static void assert_refused_and_healed(const char *what)
{
    TR_SCOPE;
    char path[4096];
    int64_t step = 0;
    tr_tensor_list *model, *state;
    snprintf(path, sizeof path, "%s/checkpoint-%d", folder, LATEST);
    tr_status status = tr_checkpoint_load(path, &model, &state);
    snprintf(message, sizeof message, "%s", tr_error_message());
    if (status == TR_OK) { /* it is in the history, which the caller did not ask for */
        status = tr_status_of(tr_metrics_open(files_path("metrics.csv"), .checkpoint = path));
        snprintf(message, sizeof message, "%s", tr_error_message());
        unlink(files_path("metrics.csv"));
    }
    if (status != TR_FORMAT) fail_msg("%s: %s (%s)", what, tr_status_name(status), message);
    if (!strstr(message, "checkpoint-40")) fail_msg("%s: names no file: %s", what, message);
    assert_int_equal(tr_checkpoint_find_whole(folder, path, &step), TR_OK);
    if (step != OLD) fail_msg("%s: step %d was found", what, (int)step);
}

static uint32_t draw(uint32_t *state, size_t below)
{
    *state = *state * 1664525 + 1013904223;
    return (uint32_t)((uint64_t)*state * below >> 32);
}

static void log_nothing(tr_log_level level, const char *text, void *user)
{
    (void)level, (void)text, (void)user;
}

/* Every place of every file is hit: 1,000 single bits, spread over the four. */
static void a_flipped_bit_is_refused(void **state)
{
    (void)state;
    uint32_t random = 7;
    for (int i = 0; i < 1000; i++) {
        const char *path = file_of(LATEST, names[i % FILES]);
        size_t bytes;
        char *data = read_file(path, &bytes), what[64];
        size_t bit = draw(&random, 8 * bytes);
        snprintf(what, sizeof what, "%s, bit %zu", names[i % FILES], bit);
        data[bit / 8] ^= (char)(1 << bit % 8);
        write_file(path, data, bytes);
        assert_refused_and_healed(what);
        data[bit / 8] ^= (char)(1 << bit % 8);
        write_file(file_of(LATEST, names[i % FILES]), data, bytes);
        free(data);
    }
    char path[4096];
    int64_t step;
    assert_int_equal(tr_checkpoint_find_whole(folder, path, &step), TR_OK);
    assert_int_equal(step, LATEST);
}

/* A page of zeroes, as a file system leaves that lost a write; a file that is cut short, or has bytes behind its end.
 */
static void zeroes_and_cuts_are_refused(void **state)
{
    (void)state;
    uint32_t random = 9;
    for (int i = 0; i < 400; i++) {
        const char *name = names[i / 2 % FILES];
        size_t bytes;
        char *data = read_file(file_of(LATEST, name), &bytes), *damaged = malloc(bytes + 1), what[80];
        memcpy(damaged, data, bytes);
        size_t at = draw(&random, bytes), left = bytes;
        if (i % 2) {
            left = i % 10 == 1 ? bytes + 1 : at;
            damaged[bytes] = 0;
        } else {
            size_t length = bytes - at < 4096 ? bytes - at : 4096;
            memset(damaged + at, 0, length);
            if (memcmp(damaged, data, bytes) == 0) damaged[at] = 1; /* they were zeroes */
        }
        snprintf(what, sizeof what, "%s, %s at %zu", name, i % 2 ? "cut" : "zeroes", at);
        write_file(file_of(LATEST, name), damaged, left);
        assert_refused_and_healed(what);
        write_file(file_of(LATEST, name), data, bytes);
        free(damaged);
        free(data);
    }
}

/* A whole file of another checkpoint of the same model, one that is missing, and a checkpoint under another name. */
static void files_of_another_save_are_refused(void **state)
{
    (void)state;
    for (int i = 0; i < FILES; i++) {
        size_t bytes, old_bytes;
        char *data = read_file(file_of(LATEST, names[i]), &bytes), *old = read_file(file_of(OLD, names[i]), &old_bytes);
        write_file(file_of(LATEST, names[i]), old, old_bytes);
        assert_refused_and_healed(names[i]);
        if (i < FILES - 1 && !strstr(message, "belongs to another checkpoint: it is of the save "))
            fail_msg("%s: %s", names[i], message);
        unlink(file_of(LATEST, names[i]));
        assert_refused_and_healed(names[i]);
        write_file(file_of(LATEST, names[i]), data, bytes);
        free(old);
        free(data);
    }
    char from[600], to[600], path[4096];
    int64_t step;
    snprintf(from, sizeof from, "%s/checkpoint-%d", folder, LATEST);
    snprintf(to, sizeof to, "%s/checkpoint-60", folder);
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(tr_checkpoint_find_whole(folder, path, &step), TR_OK);
    assert_int_equal(step, OLD);
    snprintf(from, sizeof from, "%s/best", folder);
    assert_int_equal(rename(to, from), 0); /* a name that says no step is anybody's choice */
    assert_int_equal(tr_checkpoint_find_whole(from, path, &step), TR_OK);
}

static void damage_says_where_it_is(void **state)
{
    (void)state;
    TR_SCOPE;
    size_t bytes;
    char *data = read_file(file_of(LATEST, names[0]), &bytes);
    data[bytes - 1] ^= 1; /* of the last tensor: those of two bytes come behind those of four */
    write_file(file_of(LATEST, names[0]), data, bytes);
    free(data);
    assert_refused_and_healed("the last byte");
    char words[128];
    snprintf(words, sizeof words, "is damaged in tensor \"0.bias\", bytes %zu to %zu: CRC-32C ", bytes - 80, bytes);
    if (!strstr(message, words)) fail_msg("'%s' says nothing of '%s'", message, words);
}

/* As a power cut may leave it, on a disk that says of more than it has that it was synced. */
static void a_checkpoint_without_its_files_is_passed_over(void **state)
{
    (void)state;
    TR_SCOPE;
    char path[4096];
    int64_t step;
    tr_tensor_list *model;
    for (int i = 0; i < FILES; i++) unlink(file_of(LATEST, names[i]));
    assert_int_equal(tr_checkpoint_find_whole(folder, path, &step), TR_OK);
    assert_int_equal(step, OLD);
    snprintf(path, sizeof path, "%s/checkpoint-%d", folder, LATEST);
    assert_int_equal(tr_checkpoint_load(path, &model, NULL), TR_FORMAT);
    assert_non_null(strstr(tr_error_message(), "/model.safetensors: No such file"));
    snprintf(path, sizeof path, "%s/checkpoint-1234", folder);
    assert_int_equal(tr_checkpoint_load(path, &model, NULL), TR_NOT_FOUND);
}

static int logged;

static void count_log(tr_log_level level, const char *text, void *user)
{
    (void)level, (void)user;
    logged += strstr(text, "nothing of it was verified") != NULL;
}

static void files_from_elsewhere_load_unverified(void **state)
{
    (void)state;
    TR_SCOPE;
    char path[600];
    tr_tensor_list *model, *loaded;
    snprintf(path, sizeof path, "%s/checkpoint-%d", folder, LATEST);
    assert_int_equal(tr_checkpoint_load(path, &model, NULL), TR_OK);
    assert_int_equal(mkdir(files_path("elsewhere"), 0700), 0);
    assert_int_equal(tr_safetensors_save(files_path("elsewhere/model.safetensors"), model), TR_OK);
    logged = 0;
    tr_set_log(count_log, NULL, TR_LOG_WARN);
    assert_int_equal(tr_checkpoint_load(files_path("elsewhere"), &loaded, NULL), TR_OK);
    tr_set_log(log_nothing, NULL, TR_LOG_WARN);
    assert_int_equal(logged, 1);
    assert_int_equal(tr_list_count(loaded), tr_list_count(model));
}

static bool is_there(int step)
{
    return access(file_of(step, names[0]), F_OK) == 0;
}

static void the_newest_and_the_best_are_kept(void **state)
{
    (void)state;
    const double losses[] = {3, 1, 2, 2.5, 2.25};
    for (int i = 0; i < 5; i++) save(100 + i, &losses[i], 3, true);
    assert_true(is_there(101) && is_there(102) && is_there(103) && is_there(104));
    assert_false(is_there(100) || is_there(LATEST) || is_there(OLD));
    save(105, NULL, 1, false);
    assert_true(is_there(105));
    assert_false(is_there(101) || is_there(104));
    TR_SCOPE;
    assert_int_equal(tr_checkpoint_save(folder, 1, tr_list_new(), tr_list_new(), .keep = -1), TR_INVALID);
    assert_int_equal(tr_checkpoint_save(folder, 1, tr_list_new(), tr_list_new(), .keep = 0), TR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metadata_spoils_no_manifest),
        cmocka_unit_test_setup(a_flipped_bit_is_refused, two_checkpoints),
        cmocka_unit_test_setup(zeroes_and_cuts_are_refused, two_checkpoints),
        cmocka_unit_test_setup(files_of_another_save_are_refused, two_checkpoints),
        cmocka_unit_test_setup(damage_says_where_it_is, two_checkpoints),
        cmocka_unit_test_setup(a_checkpoint_without_its_files_is_passed_over, two_checkpoints),
        cmocka_unit_test_setup(files_from_elsewhere_load_unverified, two_checkpoints),
        cmocka_unit_test_setup(the_newest_and_the_best_are_kept, two_checkpoints),
    };
    tr_set_log(log_nothing, NULL, TR_LOG_WARN);
    return cmocka_run_group_tests(tests, files_begin, files_end);
}
