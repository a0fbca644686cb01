/* Training a classifier with threads as ranks: any split of the batch gives the same losses and the same accuracy, whole
 * epochs follow each other, and a run that is resumed in the middle of an epoch gives the same numbers. */
#include <trireme/trireme.h>

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST_RANKS = 3, SAMPLES = 50, BATCH = 12, EPOCH = SAMPLES / BATCH, STEPS = 3 * EPOCH };

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/trireme-classifier-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

/* x: [6], class: whether the first is above the second. Its random numbers move x a little. */
static tr_status get(const tr_sample_call *call, tr_sample *out)
{
    out->x = tr_affine(tr_rand(1000 + (uint64_t)call->index, TR_SHAPE(6)), 6, -3);
    const float *x = tr_data(out->x);
    out->y = tr_scalar(x[0] > x[1], TR_I64);
    out->x = tr_add(out->x, tr_affine(tr_rand(call->seed, TR_SHAPE(6)), 0.01, 0));
    return tr_status_of(out->x);
}

/* The same, but of every sixth sample. */
static tr_status get_most(const tr_sample_call *call, tr_sample *out)
{
    return call->index % 6 == 3 ? tr_fail(TR_FORMAT, "it is damaged") : get(call, out);
}

typedef struct rank {
    tr_store *store; /* NULL: alone */
    int rank, world_size;
    int64_t micro_batch, stop_at;
    int workers;
    const char *folder;
    bool resume, bad;      /* bad: some samples are */
    bool loses_validation; /* the last rank does not get through one, and so the others lose a peer in it */
    tr_status status;
    char message[512];
    double loss[STEPS + 1], accuracy[STEPS + 1]; /* by step */
    tr_fit_report report;
} rank;

static void on_step(const tr_metrics_row *row, void *user)
{
    rank *r = user;
    r->loss[row->step] = row->loss;
    r->accuracy[row->step] = row->validation_accuracy;
    if (row->items != row->step * BATCH) r->loss[row->step] = NAN;
}

static tr_status get_unless_lost(const tr_sample_call *call, tr_sample *out)
{
    const rank *r = call->user;
    if (r->loses_validation && r->rank == r->world_size - 1) return tr_fail(TR_STATE, "lost");
    return r->bad ? get_most(call, out) : get(call, out);
}

static tr_status train(rank *r)
{
    tr_group *group = NULL;
    if (r->store) group = tr_join(.store = r->store, .rank = r->rank, .world_size = r->world_size);
    /* Masks go by places in the batch, where good samples close up. */
    tr_module *model = tr_sequential(tr_linear(6, 16, .seed = 1 + (uint64_t)r->rank), tr_relu_layer(),
        tr_dropout_layer(r->bad ? 0 : 0.1), tr_linear(16, 2, .seed = 2));
    tr_dataset *set = tr_dataset_new(SAMPLES, r->bad ? get_most : get);
    tr_dataset *validation = tr_dataset_slice(tr_dataset_new(SAMPLES, get_unless_lost, .user = r), 0, 17);
    tr_trainer *trainer = tr_classifier_trainer(model, set, .validation = validation, .group = group,
        .global_batch = BATCH, .micro_batch = r->micro_batch, .steps = STEPS, .lr = 0.3, .workers = r->workers,
        .resume = r->resume ? r->folder : NULL, .on_bad = r->bad ? TR_SKIP : TR_FAIL,
        .allow_different = r->loses_validation ? "validation.samples" : NULL);
    tr_status status = tr_status_of(trainer);
    if (status == TR_OK)
        status = tr_fit(trainer, .folder = r->folder, .stop_at = r->stop_at, .validate_every = EPOCH, .on_step = on_step,
            .user = r, .report = &r->report);
    r->report.metrics = NULL; /* it goes with this scope */
    if (status == TR_OK && group) status = tr_leave(group);
    return status;
}

static void *run(void *argument)
{
    TR_SCOPE;
    rank *r = argument;
    r->status = train(r);
    if (r->status != TR_OK) strncpy(r->message, tr_error_message(), sizeof r->message - 1);
    return NULL;
}

/* Runs ranks like `like` as threads; their results come in ranks. */
static void try_ranks(rank like, int world_size, rank ranks[MOST_RANKS])
{
    TR_SCOPE;
    pthread_t threads[MOST_RANKS];
    like.world_size = world_size;
    like.store = world_size > 1 ? tr_store_memory() : NULL;
    for (int i = 0; i < world_size; i++) {
        ranks[i] = like;
        ranks[i].rank = i;
        assert_int_equal(pthread_create(&threads[i], NULL, run, &ranks[i]), 0);
    }
    for (int i = 0; i < world_size; i++) pthread_join(threads[i], NULL);
}

/* As try_ranks(), and all must end well. */
static void run_ranks(rank like, int world_size, rank ranks[MOST_RANKS])
{
    try_ranks(like, world_size, ranks);
    for (int i = 0; i < world_size; i++)
        if (ranks[i].status != TR_OK) fail_msg("rank %d: %s", i, ranks[i].message);
}

static void test_any_split_learns_the_same(void **state)
{
    (void)state;
    rank alone[MOST_RANKS] = {0};
    run_ranks((rank){0}, 1, alone);
    assert_true(alone->report.final_loss < 0.7 * alone->report.initial_loss);
    assert_true(alone->report.validation_accuracy > 0.8);
    assert_true(alone->report.best_validation_accuracy >= alone->report.validation_accuracy);
    assert_true(isnan(alone->accuracy[1]) && !isnan(alone->accuracy[EPOCH]));
    for (int split = 1; split < 6; split++) {
        rank ranks[MOST_RANKS] = {0};
        int world_size = split % 3 + 1;
        run_ranks((rank){.micro_batch = split % 2 ? 5 : 0, .workers = split % 4}, world_size, ranks);
        for (int i = 0; i < world_size; i++)
            for (int s = 1; s <= STEPS; s++) {
                assert_true(fabs(ranks[i].loss[s] - alone->loss[s]) < 1e-5);
                assert_true(isnan(alone->accuracy[s]) || ranks[i].accuracy[s] == alone->accuracy[s]);
            }
    }
}

/* Whichever rank skips a bad sample: the losses, the score of the good ones, and the count are the same. */
static void test_bad_samples_are_skipped_alike(void **state)
{
    (void)state;
    rank alone[MOST_RANKS] = {0};
    run_ranks((rank){.bad = true}, 1, alone);
    assert_true(alone->report.final_loss < 0.7 * alone->report.initial_loss);
    double right = 14 * alone->report.validation_accuracy; /* of 17 samples three are bad */
    assert_true(fabs(right - round(right)) < 1e-9);
    assert_true(alone->report.skipped > 3 * 3);
    for (int world_size = 2; world_size <= MOST_RANKS; world_size++) {
        rank ranks[MOST_RANKS] = {0};
        run_ranks((rank){.bad = true, .workers = 2}, world_size, ranks);
        for (int s = 1; s <= STEPS; s++) assert_true(fabs(ranks[1].loss[s] - alone->loss[s]) < 1e-5);
        assert_true(ranks[1].report.validation_accuracy == alone->report.validation_accuracy);
        assert_int_equal(ranks[1].report.skipped, alone->report.skipped);
    }
    TR_SCOPE;
    tr_trainer *t = tr_classifier_trainer(tr_linear(6, 2), tr_dataset_new(SAMPLES, get_most), .global_batch = BATCH);
    assert_int_equal(tr_fit(t), TR_FORMAT); /* unless skipping was asked for */
    assert_non_null(strstr(tr_error_message(), "it is damaged"));
    assert_int_equal(tr_trainer_skipped(t), 0);
}

static void test_a_resumed_run_is_as_an_unbroken_one(void **state)
{
    (void)state;
    for (int world_size = 1; world_size <= 2; world_size++) {
        char path[96], command[128];
        snprintf(path, sizeof path, "%s/broken%d", folder, world_size);
        snprintf(command, sizeof command, "mkdir %s", path);
        assert_int_equal(system(command), 0);
        rank whole[MOST_RANKS] = {0}, parts[MOST_RANKS] = {0};
        run_ranks((rank){0}, world_size, whole);
        const int stops[] = {2, EPOCH, EPOCH + 3, STEPS}; /* the second: where an epoch ends */
        for (int i = 0, from = 0; i < 4; from = stops[i++]) {
            run_ranks((rank){.folder = path, .stop_at = stops[i], .resume = from > 0}, world_size, parts);
            for (int s = from + 1; s <= stops[i]; s++) assert_true(parts->loss[s] == whole->loss[s]);
        }
        assert_true(parts->report.validation_accuracy == whole->report.validation_accuracy);
        assert_true(parts->report.validation_loss == whole->report.validation_loss);
    }
}

/* Fails once, at the sample that it is told. */
static tr_status get_at_second_try(const tr_sample_call *call, tr_sample *out)
{
    atomic_int *broken = call->user;
    int index = (int)call->index;
    if (atomic_compare_exchange_strong(broken, &index, -1)) return tr_fail(TR_IO, "the disk is slow");
    return get(call, out);
}

/* A step whose batch could not be made, and is tried again, learns that batch, and those after it their own. */
static void test_a_step_that_is_tried_again_learns_its_own_batch(void **state)
{
    (void)state;
    double losses[2][STEPS];
    int failures = 0;
    for (int i = 0; i < 2; i++) {
        TR_SCOPE;
        atomic_int broken = i ? 17 : -1;
        tr_dataset *set = tr_dataset_new(SAMPLES, get_at_second_try, .user = &broken);
        tr_trainer *t = tr_classifier_trainer(tr_linear(6, 2, .seed = 2), set, .global_batch = BATCH, .steps = STEPS, .lr = 0.3);
        for (int s = 0; s < STEPS;) {
            tr_metrics_row row;
            bool stop = false;
            tr_status status = tr_trainer_step(t, &row, &stop);
            assert_true(status == TR_OK || (status == TR_IO && failures++ == 0));
            if (status == TR_OK) losses[i][s++] = row.loss;
        }
    }
    assert_int_equal(failures, 1);
    for (int s = 0; s < STEPS; s++) assert_true(losses[0][s] == losses[1][s]);
}

static tr_status get_mislabelled(const tr_sample_call *call, tr_sample *out)
{
    tr_status status = get(call, out);
    out->y = tr_scalar(7, TR_I64);
    return status;
}

/* A label that the model does not know ends training at the first validation: not what was learned until then. */
static void test_a_failed_validation_comes_after_the_save(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_trainer *t = tr_classifier_trainer(tr_linear(6, 2), tr_dataset_new(SAMPLES, get),
        .validation = tr_dataset_new(5, get_mislabelled), .global_batch = BATCH, .steps = STEPS);
    assert_int_equal(tr_fit(t, .folder = folder, .validate_every = EPOCH, .save_every = EPOCH), TR_INVALID);
    assert_non_null(strstr(tr_error_message(), "7"));
    char path[4096];
    int64_t step;
    TR_CHECK(tr_checkpoint_find(folder, path, &step));
    assert_int_equal(step, EPOCH);
}

/* The checkpoint of the step is there without its validation, which is made up for at resume: on the way, and at the end. */
static void test_a_lost_validation_is_made_up_for(void **state)
{
    (void)state;
    for (int world_size = 1; world_size <= 2; world_size++) {
        for (int at = EPOCH; at <= STEPS; at += STEPS - EPOCH) {
            char path[96], command[512];
            rank whole[MOST_RANKS] = {0}, parts[MOST_RANKS] = {0};
            snprintf(path, sizeof path, "%s/whole", folder);
            run_ranks((rank){.folder = path}, world_size, whole);
            snprintf(path, sizeof path, "%s/broken", folder);
            if (at > EPOCH) run_ranks((rank){.folder = path, .stop_at = at - 1}, world_size, parts);
            try_ranks((rank){.folder = path, .stop_at = at, .resume = at > EPOCH, .loses_validation = true}, world_size, parts);
            assert_int_equal(parts->status, world_size > 1 ? TR_PEER : TR_STATE);
            run_ranks((rank){.folder = path, .resume = true}, world_size, parts);
            for (int i = 0; i < world_size; i++) {
                assert_true(parts[i].report.validation_loss == whole->report.validation_loss);
                assert_true(parts[i].report.validation_accuracy == whole->report.validation_accuracy);
                assert_true(parts[i].report.best_validation_loss == whole->report.best_validation_loss);
            }
            snprintf(command, sizeof command, "cd %s && for d in whole broken; do cut -d , -f 1-5,7,9 $d/metrics.csv >$d.csv; done; "
                "cmp whole.csv broken.csv", folder);
            assert_int_equal(system(command), 0);
            run_ranks((rank){.folder = path, .resume = true, .loses_validation = true}, world_size, parts); /* it is saved */
            assert_true(parts->report.validation_loss == whole->report.validation_loss);
            snprintf(command, sizeof command, "rm -r %s/*", folder);
            assert_int_equal(system(command), 0);
        }
    }
}

/* ---- Stopping while a worker hangs --------------------------------------------------------------------------------- */

/* Samples are made without delay but for n, from `first` on as they are begun: these take so long, or hang. */
static struct {
    atomic_int begun, asked;
    int first, n, delay_us;
    atomic_bool hanging;
} slow;

static tr_status get_slowly(const tr_sample_call *call, tr_sample *out)
{
    int number = atomic_fetch_add(&slow.begun, 1);
    bool late = number >= slow.first && number < slow.first + slow.n;
    if (late && slow.delay_us) usleep((useconds_t)slow.delay_us);
    while (late && slow.hanging) usleep(1000);
    return get(call, out);
}

/* So late that it is while the program waits for those samples. */
static bool should_stop(void *user)
{
    (void)user;
    return atomic_fetch_add(&slow.asked, 1) >= 10;
}

static tr_status train_slowly(rank *r, bool resume, bool in_validation)
{
    TR_SCOPE;
    slow.begun = slow.asked = 0;
    tr_module *model = tr_linear(6, 2, .seed = 2);
    tr_dataset *set = tr_dataset_new(SAMPLES, in_validation ? get : get_slowly);
    tr_dataset *judged = in_validation ? tr_dataset_new(9, get_slowly) : NULL;
    tr_trainer *trainer = tr_classifier_trainer(model, set, .validation = judged, .global_batch = BATCH, .steps = STEPS,
        .lr = 0.3, .resume = resume ? folder : NULL);
    TR_CHECK(tr_status_of(trainer));
    tr_status status = tr_fit(trainer, .folder = folder, .validate_every = 2, .on_step = on_step,
        .should_stop = should_stop, .user = r, .report = &r->report);
    r->report.metrics = NULL;
    slow.hanging = false; /* for the trainer's end waits for its workers */
    return status;
}

static int64_t saved_step(void)
{
    char path[4096];
    int64_t step = -1;
    TR_CHECK(tr_checkpoint_find(folder, path, &step));
    return step;
}

static void test_a_worker_that_hangs_is_no_reason_to_go_on(void **state)
{
    (void)state;
    rank r = {0};
    slow.first = 2 * BATCH + 3; /* in the batch of the third step */
    slow.n = SAMPLES;
    slow.delay_us = 0;
    slow.hanging = true;
    assert_int_equal(train_slowly(&r, false, false), TR_OK);
    assert_true(r.report.stopped);
    assert_int_equal(saved_step(), 2);

    slow.first = 4; /* in the validation after the fourth step */
    slow.hanging = true;
    assert_int_equal(train_slowly(&r, true, true), TR_OK);
    assert_true(r.report.stopped);
    assert_int_equal(saved_step(), 4);
}

static void test_a_worker_that_is_slow_is_waited_for(void **state)
{
    (void)state;
    rank r = {0};
    slow.first = slow.n = BATCH;
    slow.delay_us = 450000; /* of the second step the batch takes longer than a worker may hang */
    slow.hanging = false;
    assert_int_equal(train_slowly(&r, false, false), TR_OK);
    assert_true(r.report.stopped);
    assert_true(saved_step() >= 2);
}

static void test_wrong_options_are_refused(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *model = tr_linear(6, 2);
    tr_dataset *set = tr_dataset_new(SAMPLES, get);
    assert_int_equal(tr_status_of(tr_classifier_trainer(NULL, set)), TR_INVALID);
    assert_int_equal(tr_status_of(tr_classifier_trainer(model, NULL)), TR_INVALID);
    assert_int_equal(tr_status_of(tr_classifier_trainer(model, set, .lr = -1)), TR_INVALID);
    assert_int_equal(tr_status_of(tr_classifier_trainer(model, set)), TR_INVALID);
    assert_non_null(strstr(tr_error_message(), "a batch of 64 samples from a dataset of 50"));
    assert_int_equal(tr_status_of(tr_classifier_trainer(model, set, .global_batch = 8, .validation = tr_mnist("/nowhere"))),
        TR_NOT_FOUND);
    tr_dataset *no_classes = tr_dataset_tensors(tr_rand(1, TR_SHAPE(10, 6)), NULL);
    assert_int_equal(tr_fit(tr_classifier_trainer(model, no_classes, .global_batch = 2)), TR_INVALID);
    assert_non_null(strstr(tr_error_message(), "have no y"));
    tr_dataset *no_index = tr_dataset_tensors(tr_rand(1, TR_SHAPE(10, 6)), tr_rand(2, TR_SHAPE(10, 2)));
    assert_int_equal(tr_fit(tr_classifier_trainer(model, no_index, .global_batch = 2)), TR_DTYPE);
    assert_non_null(strstr(tr_error_message(), "y of the dataset's samples is f32: it must be the class index"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_split_learns_the_same),
        cmocka_unit_test(test_bad_samples_are_skipped_alike),
        cmocka_unit_test_setup_teardown(test_a_resumed_run_is_as_an_unbroken_one, make_folder, remove_folder),
        cmocka_unit_test(test_a_step_that_is_tried_again_learns_its_own_batch),
        cmocka_unit_test_setup_teardown(test_a_failed_validation_comes_after_the_save, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_a_lost_validation_is_made_up_for, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_a_worker_that_hangs_is_no_reason_to_go_on, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_a_worker_that_is_slow_is_waited_for, make_folder, remove_folder),
        cmocka_unit_test(test_wrong_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
