/* tr_checkpoint_verify() and tr_check_finite(): each part of a checkpoint is looked at, and what is wrong with it is
 * named.
 */
#include "files.h"

#include "train/manifest.h"

#include <trireme/trireme.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    LONG = 5000003
}; /* elements of a tensor that takes more than one buffer of 16 MiB, and no whole number of pieces */

static char path[600]; /* of the checkpoint */

static const char *file_of(const char *name)
{
    static char file[700];
    snprintf(file, sizeof file, "%s/%s", path, name);
    return file;
}

static void save(int64_t step, double spoiled)
{
    TR_SCOPE;
    tr_tensor_list *model = tr_list_new(), *state = tr_list_new();
    const double loss = 1.75;
    tr_tensor *large = tr_rand(1, TR_SHAPE(LONG)), *table = tr_randn(2, TR_SHAPE(40, 30));
    float *numbers = tr_data(large), *rows = tr_data(table);
    if (!isfinite(spoiled)) {
        numbers[LONG - 2] = (float)spoiled;
        rows[10 * 30 + 7] = NAN;
        rows[10 * 30 + 9] = -INFINITY;
    }
    TR_CHECK(tr_list_set_metadata(model, "layers", "2"));
    TR_CHECK(tr_list_add(model, "large", large));
    TR_CHECK(tr_list_add(model, "table", table));
    TR_CHECK(tr_list_add(model, "mask", tr_full(1, TR_SHAPE(9), .dtype = TR_BOOL)));
    TR_CHECK(tr_list_add(state, "table.m", tr_randn(3, TR_SHAPE(40, 30), .dtype = TR_F64)));
    tr_metrics *metrics = tr_metrics_open(files_path("metrics.csv"));
    tr_metrics_row row = {.step = step,
                          .items = 64,
                          .lr = 0.1,
                          .loss = 1,
                          .validation_loss = NAN,
                          .grad_norm = NAN,
                          .validation_accuracy = NAN};
    TR_CHECK(tr_metrics_add(metrics, &row));
    TR_CHECK(tr_checkpoint_save(files_path("run"), step, model, state, .metrics = metrics, .loss = &loss));
    unlink(files_path("metrics.csv"));
    snprintf(path, sizeof path, "%s/checkpoint-%d", files_path("run"), (int)step);
}

static int new_checkpoint(void **state)
{
    (void)state;
    char command[600];
    snprintf(command, sizeof command, "rm -rf %s", files_path("run"));
    if (system(command) != 0) return -1;
    save(7, 0);
    return 0;
}

/* ---- What is told ------------------------------------------------------------------------------------------------ */

enum { MOST = 32 };
static struct told {
    char file[64], tensor[64], damage[600];
    int64_t begin, end, nans, infinities, first;
} told[MOST];
static int count;

static void note(const tr_checkpoint_part *part, void *user)
{
    assert_ptr_equal(user, told);
    assert_true(count < MOST);
    struct told *t = &told[count++];
    *t = (struct told){.begin = part->begin,
                       .end = part->end,
                       .nans = part->nans,
                       .infinities = part->infinities,
                       .first = part->first_not_finite};
    snprintf(t->file, sizeof t->file, "%s", part->file);
    snprintf(t->tensor, sizeof t->tensor, "%s", part->tensor ? part->tensor : "");
    snprintf(t->damage, sizeof t->damage, "%s", part->damage ? part->damage : "");
}

static tr_status verify(const char *what, tr_checkpoint_report *report)
{
    count = 0;
    return tr_checkpoint_verify(what, .report = report, .on_part = note, .user = told);
}

static const struct told *find(const char *file, const char *tensor)
{
    for (int i = 0; i < count; i++)
        if (strcmp(told[i].file, file) == 0 && strcmp(told[i].tensor, tensor) == 0) return &told[i];
    fail_msg("nothing was told of %s %s", file, tensor);
    return NULL;
}

static void flip(const char *name, int64_t at)
{
    FILE *f = fopen(file_of(name), "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)at, at < 0 ? SEEK_END : SEEK_SET), 0);
    int byte = fgetc(f);
    assert_int_equal(fseek(f, -1, SEEK_CUR), 0);
    fputc(byte ^ 16, f);
    assert_int_equal(fclose(f), 0);
}

/* ---- Tests ------------------------------------------------------------------------------------------------------- */

static void a_whole_checkpoint_is_described(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_checkpoint_report r;
    assert_int_equal(verify(path, &r), TR_OK);
    assert_true(r.has_manifest);
    assert_int_equal(r.step, 7);
    assert_true(r.loss == 1.75);
    assert_int_equal(strlen(r.save), 32);
    assert_string_equal(r.version, tr_version());
    assert_int_equal(strlen(r.settings), 64);
    assert_int_equal(r.files, 3);
    assert_int_equal(r.tensors, 3 + 1 + 9);
    assert_int_equal(r.damaged, 0);
    assert_int_equal(r.not_finite, 0);
    assert_int_equal(count, 3 + 13);
    assert_string_equal(tr_list_metadata(r.about, "layers"), "2");
    assert_int_equal(tr_list_count(r.about), 0);
    const struct told *large = find("model.safetensors", "large"), *model = find("model.safetensors", "");
    assert_int_equal(large->end - large->begin, 4 * LONG);
    assert_int_equal(model->begin, 0);
    assert_true(model->end > 4 * LONG && r.bytes > model->end);
    assert_int_equal(large->first, -1);
}

static void every_damage_is_named(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_checkpoint_report r;
    assert_int_equal(verify(path, &r), TR_OK);
    int64_t begin = find("model.safetensors", "large")->begin, end = find("model.safetensors", "large")->end;
    flip("model.safetensors", end - 1);
    flip("state.safetensors", -1);
    flip("history.safetensors", 20);
    assert_int_equal(verify(path, &r), TR_FORMAT);
    assert_int_equal(r.damaged, 3);
    assert_int_equal(r.files, 3);
    char words[128];
    snprintf(words, sizeof words, "tensor \"large\", bytes %lld to %lld", (long long)begin, (long long)end);
    assert_non_null(strstr(find("model.safetensors", "large")->damage, words));
    assert_non_null(strstr(find("state.safetensors", "table.m")->damage, "tensor \"table.m\""));
    assert_non_null(strstr(find("history.safetensors", "")->damage, "header"));
    assert_string_equal(find("model.safetensors", "table")->damage, "");
    assert_non_null(strstr(tr_error_message(), words));
    assert_non_null(strstr(tr_error_message(), "2 more parts are damaged"));
}

static void what_is_missing_is_named(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_checkpoint_report r;
    unlink(file_of("state.safetensors"));
    assert_int_equal(verify(path, &r), TR_FORMAT);
    assert_int_equal(r.damaged, 1);
    assert_non_null(strstr(find("state.safetensors", "")->damage, "is missing"));
    unlink(file_of("manifest.json"));
    assert_int_equal(verify(path, &r), TR_FORMAT);
    assert_false(r.has_manifest);
    assert_non_null(strstr(tr_error_message(), "manifest.json beside it, which is missing"));
    assert_int_equal(verify(files_path("nowhere"), &r), TR_NOT_FOUND);
}

static void a_damaged_manifest_is_named(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_checkpoint_report r;
    flip("manifest.json", 40);
    assert_int_equal(verify(path, &r), TR_FORMAT);
    assert_int_equal(r.damaged, 1);
    assert_non_null(strstr(find("manifest.json", "")->damage, "its own checksum does not hold"));
}

/* As if damage had been drawn that leaves all CRC-32C alone. */
static void the_hash_sees_what_no_checksum_does(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_checkpoint_report r;
    tr__manifest m;
    assert_int_equal(tr__manifest_read(&m, path), TR_OK);
    char *digit = ((tr__file_record *)tr__manifest_file(&m, "state.safetensors"))->sha256;
    *digit = *digit == '0' ? '1' : '0';
    assert_int_equal(tr__manifest_write(&m, path), TR_OK);
    tr__manifest_free(&m);
    assert_int_equal(verify(path, &r), TR_FORMAT);
    assert_int_equal(r.damaged, 1);
    assert_non_null(strstr(find("state.safetensors", "")->damage, "SHA-256"));
}

static void numbers_that_are_not_finite_are_counted(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_checkpoint_report r;
    save(8, INFINITY);
    assert_int_equal(verify(path, &r), TR_OK);
    assert_int_equal(r.not_finite, 2); /* the history's NaN do not count */
    assert_int_equal(r.damaged, 0);
    const struct told *large = find("model.safetensors", "large"), *table = find("model.safetensors", "table");
    assert_int_equal(large->infinities, 1);
    assert_int_equal(large->nans, 0);
    assert_int_equal(large->first, LONG - 2);
    assert_int_equal(table->nans, 1);
    assert_int_equal(table->infinities, 1);
    assert_int_equal(table->first, 307);
    assert_int_equal(find("history.safetensors", "validation_loss")->nans, 0);
}

static void files_alone_are_verified(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_checkpoint_report r;
    assert_int_equal(verify(file_of("model.safetensors"), &r), TR_OK);
    assert_true(r.has_manifest);
    assert_int_equal(r.files, 1);
    flip("model.safetensors", -1);
    assert_int_equal(verify(file_of("model.safetensors"), &r), TR_FORMAT);
    assert_int_equal(verify(file_of("state.safetensors"), &r), TR_OK);
    /* Elsewhere nothing says what it was to contain; but a bool is 0 or 1. */
    assert_int_equal(rename(file_of("model.safetensors"), files_path("m.safetensors")), 0);
    assert_int_equal(verify(files_path("m.safetensors"), &r), TR_FORMAT);
    assert_false(r.has_manifest);
    assert_non_null(strstr(find("m.safetensors", "mask")->damage, "bool holds the value 17"));
    assert_int_equal(tr_safetensors_save(files_path("m.safetensors"), tr_list_new()), TR_OK);
    assert_int_equal(verify(files_path("m.safetensors"), &r), TR_OK);
    assert_false(r.has_manifest);
}

static void lists_are_checked_for_what_is_not_finite(void **state)
{
    (void)state;
    TR_SCOPE;
    const tr_dtype dtypes[] = {TR_F32, TR_F64, TR_F16, TR_BF16};
    for (int i = 0; i < 4; i++) {
        tr_tensor_list *list = tr_list_new();
        tr_tensor *x = tr_full(65504, TR_SHAPE(3, 4), .dtype = dtypes[i]);
        TR_CHECK(tr_list_add(list, "counts", tr_full(-1, TR_SHAPE(3), .dtype = TR_I64)));
        TR_CHECK(tr_list_add(list, "h.0.weight", x));
        assert_int_equal(tr_check_finite(list), TR_OK);
        TR_CHECK(tr_fill(tr_slice(tr_slice(x, 0, 1, 2), 1, 2, 4), NAN));
        TR_CHECK(tr_fill(tr_slice(tr_slice(x, 0, 2, 3), 1, 0, 1), -INFINITY));
        TR_CHECK(tr_list_add(list, "h.1.weight", tr_transpose(x, 0, 1)));
        assert_int_equal(tr_check_finite(list), TR_INVALID);
        const char *words = "2 NaN and 1 infinite of 12 values, the first at [1, 2]; 1 more tensor has such numbers";
        if (!strstr(tr_error_message(), "tensor \"h.0.weight\", [3, 4] of ") || !strstr(tr_error_message(), words))
            fail_msg("%s: %s", tr_dtype_name(dtypes[i]), tr_error_message());
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_whole_checkpoint_is_described, new_checkpoint),
        cmocka_unit_test_setup(every_damage_is_named, new_checkpoint),
        cmocka_unit_test_setup(what_is_missing_is_named, new_checkpoint),
        cmocka_unit_test_setup(a_damaged_manifest_is_named, new_checkpoint),
        cmocka_unit_test_setup(the_hash_sees_what_no_checksum_does, new_checkpoint),
        cmocka_unit_test_setup(numbers_that_are_not_finite_are_counted, new_checkpoint),
        cmocka_unit_test_setup(files_alone_are_verified, new_checkpoint),
        cmocka_unit_test(lists_are_checked_for_what_is_not_finite),
    };
    return cmocka_run_group_tests(tests, files_begin, files_end);
}
