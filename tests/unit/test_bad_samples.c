/* Samples that cannot be made, and loaders that skip them: what batches hold instead, what is counted and told. */
#include "files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <trireme/trireme.h>

enum { COUNT = 60, GOOD = 50 };

static void assert_failed(tr_status got, tr_status status, const char *part)
{
    assert_int_equal(got, status);
    if (!strstr(tr_error_message(), part)) fail_msg("\"%s\" lacks \"%s\"", tr_error_message(), part);
}

/* Of 60 samples 10 are bad: 3, 9, 15, … */
static bool is_bad(int64_t index)
{
    return index % 6 == 3;
}

/* x: [2] with the number and a random one, y: ten times the number */
static tr_status get(const tr_sample_call *call, tr_sample *out)
{
    if (is_bad(call->index)) return tr_fail(TR_FORMAT, "number %d is damaged", (int)call->index);
    tr_tensor *number = tr_full((double)call->index, TR_SHAPE(1));
    out->x = tr_cat((tr_tensor *[]){number, tr_rand(call->seed, TR_SHAPE(1))}, 2, 0);
    out->y = tr_scalar(10 * (double)call->index, TR_I64);
    return TR_OK;
}

static tr_dataset *make(const void *argument, size_t bytes)
{
    (void)argument, (void)bytes;
    return tr_dataset_new(COUNT, get, .name = "numbers");
}

static tr_dataset *numbers(void)
{
    return tr_dataset_from(make, NULL, 0);
}

/* ---- What is told ------------------------------------------------------------------------------------------------ */

static struct {
    int count, of_sample[COUNT];
    char latest[1024];
} told;

static void hear(tr_log_level level, const char *message, void *user)
{
    (void)user;
    const char *sample = strstr(message, "sample ");
    assert_int_equal(level, TR_LOG_WARN);
    assert_non_null(sample);
    int index = atoi(sample + strlen("sample "));
    assert_in_range(index, 0, COUNT - 1);
    told.of_sample[index]++;
    told.count++;
    snprintf(told.latest, sizeof told.latest, "%s", message);
}

static int begin_hearing(void **state)
{
    (void)state;
    memset(&told, 0, sizeof told);
    tr_set_log(hear, NULL, TR_LOG_WARN);
    return 0;
}

static int end_hearing(void **state)
{
    (void)state;
    tr_set_log(NULL, NULL, TR_LOG_OFF);
    return 0;
}

/* ---- Batches ----------------------------------------------------------------------------------------------------- */

/* An epoch's batches: what they hold, in order, and how often each sample was counted. */
typedef struct epoch {
    int64_t batches, samples, duplicates;
    int64_t counted[COUNT];
    int64_t indices[2 * COUNT];
    float x[4 * COUNT];
} epoch;

/* Every batch is as large as was asked for, and of good samples that are what they say they are. */
static void go_through(tr_loader *loader, int64_t batch, epoch *e)
{
    tr_batch b;
    tr_status status;
    memset(e, 0, sizeof *e);
    while ((status = tr_loader_next(loader, &b)) == TR_OK) {
        TR_SCOPE;
        if (e->batches < tr_loader_batches(loader) - 1) assert_int_equal(b.count, batch);
        assert_int_equal(tr_size(b.x, 0), b.count);
        const float *x = tr_data(b.x);
        for (int64_t i = 0; i < b.count; i++) {
            assert_false(is_bad(b.indices[i]));
            assert_true(x[2 * i] == (float)b.indices[i]);
            assert_int_equal(((int64_t *)tr_data(b.y))[i], 10 * b.indices[i]);
            if (i < b.count - b.duplicates) e->counted[b.indices[i]]++;
        }
        memcpy(e->indices + e->samples, b.indices, (size_t)b.count * sizeof *b.indices);
        memcpy(e->x + 2 * e->samples, x, (size_t)b.count * 2 * sizeof *x);
        e->samples += b.count;
        e->duplicates += b.duplicates;
        e->batches++;
    }
    if (status != TR_END) fail_msg("%s", tr_error_message());
    assert_int_equal(e->batches, tr_loader_batches(loader));
}

static void assert_same(const epoch *a, const epoch *b)
{
    assert_memory_equal(a->indices, b->indices, sizeof a->indices);
    assert_memory_equal(a->x, b->x, sizeof a->x);
    assert_int_equal(a->duplicates, b->duplicates);
}

/* Good samples come once and are counted; others fill the batches up. Threads, processes and none make the same. */
static void test_batches_stay_full(void **state)
{
    (void)state;
    epoch alone[2], e;
    int64_t skipped = 0;
    for (int workers = 0; workers < 5; workers++) {
        TR_SCOPE;
        memset(&told, 0, sizeof told);
        tr_loader *loader = tr_loader_new(numbers(), .batch = 7, .shuffle = true, .seed = 5, .on_bad = TR_SKIP,
            .workers = workers % 3 + workers / 3, .processes = workers >= 3);
        for (int i = 0; i < 2; i++) {
            go_through(loader, 7, workers ? &e : &alone[i]);
            if (workers) assert_same(&e, &alone[i]);
        }
        assert_int_equal(alone[0].samples, COUNT);
        assert_int_equal(alone[0].duplicates, COUNT - GOOD);
        for (int i = 0; i < COUNT; i++) assert_int_equal(alone[1].counted[i], !is_bad(i));
        /* Each time that a bad one is met counts, and a replacement may be bad, too; the log has each once. */
        assert_in_range(tr_loader_skipped(loader), 2 * (COUNT - GOOD), 4 * (COUNT - GOOD));
        if (workers) assert_int_equal(tr_loader_skipped(loader), skipped);
        skipped = tr_loader_skipped(loader);
        assert_int_equal(told.count, COUNT - GOOD);
        for (int i = 0; i < COUNT; i++) assert_int_equal(told.of_sample[i], is_bad(i));
        assert_non_null(strstr(told.latest, " of numbers: number "));
    }
}

static int by_value(const void *a, const void *b)
{
    const float *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Any number of ranks makes as many steps, of the same samples with the same random numbers, and skips as many. */
static void test_ranks_stay_in_step(void **state)
{
    (void)state;
    enum { BATCH = 12, BATCHES = COUNT / BATCH };
    float alone[BATCHES][2 * BATCH], together[BATCHES][2 * BATCH];
    int64_t skipped_alone = 0;
    for (int world = 1; world <= 4; world++) {
        TR_SCOPE;
        int64_t taken[BATCHES] = {0}, skipped = 0, counted = 0;
        for (int rank = 0; rank < world; rank++) {
            tr_sampler *sampler =
                tr_distributed_sampler(COUNT, .rank = rank, .world_size = world, .seed = 2, .global_batch = BATCH);
            tr_loader *loader = tr_loader_new(numbers(), .batch = BATCH / world, .sampler = sampler, .on_bad = TR_SKIP,
                .workers = rank);
            tr_batch b;
            for (int i = 0; i < BATCHES; i++) {
                TR_CHECK(tr_loader_next(loader, &b));
                assert_int_equal(b.count, BATCH / world);
                memcpy(together[i] + 2 * taken[i], tr_data(b.x), (size_t)b.count * 2 * sizeof(float));
                taken[i] += b.count;
                counted += b.count - b.duplicates;
            }
            assert_int_equal(tr_loader_next(loader, &b), TR_END);
            skipped += tr_loader_skipped(loader);
        }
        for (int i = 0; i < BATCHES; i++) qsort(together[i], BATCH, 2 * sizeof(float), by_value);
        if (world == 1) memcpy(alone, together, sizeof alone);
        if (world == 1) skipped_alone = skipped;
        assert_memory_equal(together, alone, sizeof alone);
        assert_int_equal(skipped, skipped_alone);
        assert_int_equal(counted, GOOD);
    }
}

/* What is repeated to make ranks even stays behind the samples that count, also when it is bad itself. */
static void test_duplicates_stay_at_the_end(void **state)
{
    (void)state;
    int64_t counted[COUNT] = {0};
    for (int rank = 0; rank < 7; rank++) {
        TR_SCOPE;
        epoch e;
        tr_sampler *sampler = tr_distributed_sampler(COUNT, .rank = rank, .world_size = 7, .in_order = true);
        tr_loader *loader = tr_loader_new(numbers(), .batch = 4, .sampler = sampler, .on_bad = TR_SKIP);
        go_through(loader, 4, &e);
        assert_int_equal(e.samples, 9);
        for (int i = 0; i < COUNT; i++) counted[i] += e.counted[i];
    }
    for (int i = 0; i < COUNT; i++) assert_int_equal(counted[i], !is_bad(i));
}

/* Replacements are among those that the sampler chooses from. */
static void test_replacements_are_the_samplers(void **state)
{
    (void)state;
    TR_SCOPE;
    epoch e;
    tr_loader *loader = tr_loader_new(numbers(), .batch = 5, .sampler = tr_distributed_sampler(10), .on_bad = TR_SKIP);
    for (int i = 0; i < 20; i++) {
        go_through(loader, 5, &e);
        for (int k = 0; k < 10; k++) assert_in_range(e.indices[k], 0, 9);
    }
}

static tr_status one_after_the_other(const tr_sample *samples, int64_t count, void *user, tr_sample *batch)
{
    (void)user;
    tr_tensor *x[8], *y[8];
    for (int64_t i = 0; i < count; i++) {
        x[i] = tr_reshape(samples[i].x, TR_SHAPE(1, 2));
        y[i] = tr_reshape(samples[i].y, TR_SHAPE(1));
    }
    batch->x = tr_cat(x, (int)count, 0);
    batch->y = tr_cat(y, (int)count, 0);
    return TR_OK;
}

static void test_collate_gets_good_samples(void **state)
{
    (void)state;
    TR_SCOPE;
    epoch stacked, collated;
    go_through(tr_loader_new(numbers(), .batch = 8, .on_bad = TR_SKIP), 8, &stacked);
    go_through(tr_loader_new(numbers(), .batch = 8, .on_bad = TR_SKIP, .collate = one_after_the_other), 8, &collated);
    assert_same(&stacked, &collated);
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

/* Samples that write themselves into a batch: of four files one is no image, and is named. */
static void test_a_bad_image_is_named(void **state)
{
    (void)state;
    TR_SCOPE;
    unsigned char file[512];
    png_image image = {.version = PNG_IMAGE_VERSION, .width = 1, .height = 1, .format = PNG_FORMAT_GRAY};
    for (int i = 0; i < 4; i++) {
        char name[32];
        png_alloc_size_t bytes = sizeof file;
        unsigned char grey = (unsigned char)(50 * i);
        assert_true(png_image_write_to_memory(&image, file, &bytes, 0, &grey, 0, NULL));
        snprintf(name, sizeof name, "images/class/%d.png", i);
        files_write(name, file, i == 1 ? bytes / 2 : bytes);
    }
    tr_dataset *set = tr_image_folder(files_path("images"), .height = 1, .width = 1, .raw = true);
    for (int processes = 0; processes < 2; processes++) {
        tr_batch b;
        memset(&told, 0, sizeof told);
        tr_loader *loader = tr_loader_new(set, .batch = 4, .workers = 1, .processes = processes, .on_bad = TR_SKIP);
        TR_CHECK(tr_loader_next(loader, &b));
        assert_int_equal(b.count, 4);
        assert_int_equal(b.duplicates, 1);
        for (int i = 0; i < 4; i++) assert_int_equal(((uint8_t *)tr_data(b.x))[3 * i], 50 * b.indices[i]);
        assert_true(b.indices[0] == 0 && b.indices[1] == 2 && b.indices[2] == 3 && b.indices[3] != 1);
        assert_int_equal(told.count, 1);
        assert_non_null(strstr(told.latest, "loader: skipped sample 1 of "));
        assert_non_null(strstr(told.latest, "images/class/1.png: it is a damaged PNG file"));
        loader = tr_loader_new(set, .batch = 4, .workers = 1, .processes = processes); /* unless the program says so */
        assert_failed(tr_loader_next(loader, &b), TR_FORMAT, "loader: sample 1 of ");
    }
}

/* ---- What is not skipped ----------------------------------------------------------------------------------------- */

static tr_status get_none(const tr_sample_call *call, tr_sample *out)
{
    (void)out;
    return tr_fail(TR_IO, "the disk of number %d is gone", (int)call->index);
}

static tr_status get_large(const tr_sample_call *call, tr_sample *out)
{
    if (call->index == 3) return tr_fail(TR_NO_MEMORY, "number 3 is too large");
    out->x = tr_zeros(TR_SHAPE(call->index == 1 ? 2 : 1));
    return TR_OK;
}

static void test_what_is_not_skipped(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_batch b;
    tr_loader *loader = tr_loader_new(tr_dataset_new(COUNT, get_none), .batch = 30, .on_bad = TR_SKIP);
    for (int i = 0; i < 2; i++)
        assert_failed(tr_loader_next(loader, &b), TR_IO,
            i ? "loader: sample 30 is bad, and so are 100 others" : "that were to replace it; the last: sample ");
    assert_int_equal(tr_loader_next(loader, &b), TR_END);
    assert_int_equal(tr_loader_skipped(loader), 2 * 101);
    assert_in_range(told.count, 30, COUNT);

    loader = tr_loader_new(tr_dataset_new(4, get_large), .batch = 2, .on_bad = TR_SKIP);
    assert_failed(tr_loader_next(loader, &b), TR_SHAPE, "sample 1 of dataset: its x is [2] of f32");
    assert_failed(tr_loader_next(loader, &b), TR_NO_MEMORY, "number 3 is too large");
    assert_int_equal(tr_loader_skipped(loader), 0);
    loader = tr_loader_new(numbers(), .on_bad = (tr_on_bad)2);
    assert_failed(tr_status_of(loader), TR_INVALID, "TR_FAIL or TR_SKIP, not 2");
    assert_int_equal(tr_loader_skipped(NULL), 0);
}

/* A failing batch of a process brings what it has skipped, too. */
static tr_dataset *make_none(const void *argument, size_t bytes)
{
    (void)argument, (void)bytes;
    return tr_dataset_new(COUNT, get_none);
}

static void test_processes_tell_of_failing_batches(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_batch b;
    tr_loader *loader = tr_loader_new(tr_dataset_from(make_none, NULL, 0), .batch = 30, .on_bad = TR_SKIP, .workers = 1,
        .processes = true);
    assert_failed(tr_loader_next(loader, &b), TR_IO, "loader: sample 0 is bad, and so are 100 others");
    assert_int_equal(tr_loader_skipped(loader), 101);
    assert_int_equal(told.of_sample[0], 1);
}

int main(void)
{
    TR_SPAWN_ENTRY;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_batches_stay_full, begin_hearing, end_hearing),
        cmocka_unit_test_setup_teardown(test_ranks_stay_in_step, begin_hearing, end_hearing),
        cmocka_unit_test_setup_teardown(test_duplicates_stay_at_the_end, begin_hearing, end_hearing),
        cmocka_unit_test_setup_teardown(test_replacements_are_the_samplers, begin_hearing, end_hearing),
        cmocka_unit_test_setup_teardown(test_collate_gets_good_samples, begin_hearing, end_hearing),
        cmocka_unit_test_setup_teardown(test_a_bad_image_is_named, begin_hearing, end_hearing),
        cmocka_unit_test_setup_teardown(test_what_is_not_skipped, begin_hearing, end_hearing),
        cmocka_unit_test_setup_teardown(test_processes_tell_of_failing_batches, begin_hearing, end_hearing),
    };
    return cmocka_run_group_tests(tests, files_begin, files_end);
}
