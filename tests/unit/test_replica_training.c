/*
 * A training whose replicas stop being replicas: a bit that flips in one rank's weights or moments is found within the
 * interval, with the rank and the tensor; and a training that goes back ends with the bits of one that nothing happened
 * to.
 */
#include "comm_ranks.h"
#include "files.h"
#include "numbers.h"
#include "warnings.h"

#include <trireme/trireme.h>

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { SAMPLES = 90, STEPS = 24, CHECK_EVERY = 4 };

/* What happens to a training, and what is to come of it. */
typedef struct plan {
    int odd, at;        /* on this rank, after this step; odd -1: nothing */
    const char *tensor; /* of the model, or with a suffix of the optimizer's */
    bool lowest;        /* the lowest bit of its first element, which no weight shows at once */
    int times;          /* how often, whenever the step comes; 0: once */
    int64_t check_every, save_every;
    bool roll_back;
    const char *folder; /* NULL: none */
    const char *from;   /* the folder of the checkpoint that it goes on from; NULL: none */
    int64_t stop_at;
    const char *words;  /* of the failure; NULL: none is to come */
    int rolled_back;
    bool spoil; /* the newest checkpoint is damaged at the same time */
} plan;

/* A rank's training. */
typedef struct run_of {
    const plan *plan;
    int number, flips;
    tr_module *net;
    tr_optimizer *optimizer; /* the trainer's own */
    double losses[STEPS + 1];
    tr_fit_report report;
} run_of;

static tr_optimizer *make_optimizer(tr_tensor_list *parameters, void *user)
{
    run_of *r = user;
    return r->optimizer = tr_adam(parameters, .lr = 0.01);
}

static void flip(const run_of *r)
{
    TR_SCOPE;
    tr_tensor *t = tr_list_find(tr_state_dict(r->net), r->plan->tensor);
    if (!t) t = tr_list_find(tr_optimizer_state(r->optimizer), r->plan->tensor);
    ((unsigned char *)tr_data(t))[r->plan->lowest ? 0 : 2] ^= r->plan->lowest ? 1 : 0x10;
}

static void spoil_newest(const char *folder)
{
    char path[4096], file[4200];
    int64_t step;
    if (tr_checkpoint_find(folder, path, &step) != TR_OK) return;
    snprintf(file, sizeof file, "%s/model.safetensors", path);
    FILE *f = fopen(file, "r+");
    if (!f) return;
    fseek(f, -3, SEEK_END);
    fputc(0x5a, f);
    fclose(f);
}

static void on_step(const tr_metrics_row *row, void *user)
{
    run_of *r = user;
    int most = r->plan->times ? r->plan->times : 1;
    r->losses[row->step] = row->loss;
    if (r->number == r->plan->odd && row->step == r->plan->at && r->flips++ < most) flip(r);
    if (r->number == 0 && row->step == r->plan->at && r->plan->spoil) spoil_newest(r->plan->folder);
}

/* Images of 3 x 4 x 4, and their classes. */
static tr_dataset *make_set(void)
{
    int32_t classes[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) classes[i] = i * 7 % 3;
    return tr_dataset_tensors(tr_randn(5, TR_SHAPE(SAMPLES, 3, 4, 4)),
                              tr_from(classes, TR_SHAPE(SAMPLES), .dtype = TR_I32));
}

static tr_module *make_net(void)
{
    return tr_sequential(tr_conv2d(3, 6, 3, .seed = 1), tr_batch_norm2d(6), tr_flatten_layer(),
                         tr_linear(24, 3, .seed = 2));
}

static tr_status train(run_of *r, tr_group *group)
{
    const plan *p = r->plan;
    r->net = make_net();
    tr_dataset *set = make_set();
    tr_trainer *trainer = tr_classifier_trainer(r->net, set, .validation = set, .group = group, .global_batch = 9,
                                                .steps = STEPS, .workers = 1, .clip = 1, .optimizer = make_optimizer,
                                                .user = r, .check_replicas = p->check_every, .resume = p->from);
    return tr_fit(trainer, .folder = r->number ? NULL : p->folder, .save_every = r->number ? 0 : p->save_every,
                  .stop_at = p->stop_at, .validate_every = 6, .roll_back = p->roll_back, .on_step = on_step, .user = r,
                  .report = &r->report);
}

/* Of all that training has made. */
static uint64_t hash_of(const run_of *r)
{
    TR_SCOPE;
    return hash_of_list(tr_optimizer_state(r->optimizer), hash_of_list(tr_state_dict(r->net), 0));
}

static void train_as_planned(rank *r)
{
    const plan *p = r->arg;
    TR_SCOPE;
    run_of damaged = {.plan = p, .number = r->number};
    tr_status status = train(&damaged, r->group);
    if (p->words) {
        CHECK(status == TR_MISMATCH);
        SAYS(p->words);
        CHECK(damaged.report.common_failure);
        return;
    }
    OK(status);
    CHECK(damaged.report.rolled_back == p->rolled_back);

    const plan undisturbed = {.odd = -1, .check_every = p->check_every};
    run_of whole = {.plan = &undisturbed, .number = r->number};
    OK(train(&whole, r->group));
    CHECK(memcmp(damaged.losses, whole.losses, sizeof whole.losses) == 0);
    CHECK(hash_of(&damaged) == hash_of(&whole));
    CHECK(damaged.report.initial_loss == whole.report.initial_loss &&
          damaged.report.final_loss == whole.report.final_loss);
    CHECK(damaged.report.validation_loss == whole.report.validation_loss);
}

/* ---- Found ------------------------------------------------------------------------------------------------------- */

static void a_flipped_bit_ends_the_training(void **state)
{
    (void)state;
    const plan plans[] = {
        {2, 5, "3.weight", .check_every = CHECK_EVERY,
         .words = "replicas were alike after step 4 and differ after step 8: rank 2 differs from the other 2 "
                  "ranks in \"3.weight\" ("},
        {1, 8, "3.bias.exp_avg", .check_every = CHECK_EVERY,
         .words = "alike after step 8 and differ after step 12: rank 1 differs from the other 2 ranks in "},
        {0, 7, "0.weight.exp_avg_sq", .check_every = 1,
         .words = "alike after step 7 and differ after step 8: rank 0 differs from the other 2 ranks in "
                  "\"0.weight\" and 1 other tensor ("},
        {2, 23, "1.running_var", .check_every = CHECK_EVERY, .words = NULL}, /* rank 0's become everybody's */
    };
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) run(3, train_as_planned, &plans[i]);
}

static void moments_are_named(void **state)
{
    (void)state;
    run(4, train_as_planned,
        &(plan){3, 12, "3.weight.exp_avg_sq", .lowest = true, .check_every = 1,
                .words = "rank 3 differs from the other 3 ranks in \"exp_avg_sq of 3.weight\""});
}

static void two_ranks_differ(void **state)
{
    (void)state;
    run(2, train_as_planned,
        &(plan){1, 5, "0.bias", .check_every = CHECK_EVERY,
                .words = "no majority of the 2 ranks tells which is right"});
}

/* Before a save, though the interval is not over: nothing that differs is saved. */
static void what_differs_is_not_saved(void **state)
{
    (void)state;
    const plan p = {2,
                    3,
                    "3.weight",
                    .check_every = 1000,
                    .save_every = 5,
                    .folder = files_path("unsaved"),
                    .words = "alike after step 0 and differ after step 5: rank 2"};
    run(3, train_as_planned, &p);
    char path[4096];
    int64_t step;
    assert_int_equal(tr_checkpoint_find(p.folder, path, &step), TR_NOT_FOUND);
}

static void nothing_is_compared_when_it_is_off(void **state)
{
    (void)state;
    run(2, train_as_planned, &(plan){-1, .check_every = 0});
}

/* ---- Gone back --------------------------------------------------------------------------------------------------- */

/* The columns step, samples, lr, loss, validation_loss of each row; and grad_norm and validation_accuracy, which are
 * bits, too. */
static void read_rows(const char *folder, double rows[STEPS + 1][9])
{
    char path[600], line[512];
    snprintf(path, sizeof path, "%s/metrics.csv", folder);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    int n = 0;
    assert_non_null(fgets(line, sizeof line, f));
    while (fgets(line, sizeof line, f)) {
        assert_true(n < STEPS);
        char *at = line;
        for (int k = 0; k < 9; k++) {
            rows[n][k] = *at == ',' || *at == '\n' ? -1 : strtod(at, &at);
            at += *at == ',';
        }
        rows[n][5] = rows[n][7] = 0; /* rate and time */
        assert_int_equal((int)rows[n][0], n + 1);
        n++;
    }
    fclose(f);
    assert_int_equal(n, STEPS);
}

static void a_training_goes_back_and_ends_as_if_nothing_had_been(void **state)
{
    (void)state;
    const plan plans[] = {
        {2, 10, "3.weight", .roll_back = true, .save_every = 8, .rolled_back = 1},
        {0, 2, "0.weight", .roll_back = true, .save_every = 8, .rolled_back = 1}, /* the start was saved */
        {1, 9, "0.weight.exp_avg", .times = 3, .roll_back = true, .save_every = 8, .rolled_back = 3},
        {0, 21, "3.bias", .roll_back = true, .save_every = 8, .rolled_back = 1}, /* found before the last save */
    };
    const char *const said[] = {
        "rank 2 differs from the other 2 ranks in \"3.weight\"",
        "going back from step 4 to the checkpoint of step 0",
        "going back from step 12 to the checkpoint of step 8",
        "differ after step 24: rank 0 differs from the other 2 ranks in \"3.bias\"",
    };
    double undisturbed[STEPS + 1][9], rows[STEPS + 1][9];
    const plan none = {-1, .save_every = 8, .check_every = CHECK_EVERY, .folder = files_path("undisturbed")};
    run(3, train_as_planned, &none);
    read_rows(none.folder, undisturbed);
    for (int i = 0; i < 4; i++) {
        char name[32];
        plan p = plans[i];
        snprintf(name, sizeof name, "back%d", i);
        p.folder = files_path(name);
        p.check_every = CHECK_EVERY;
        warnings_keep();
        run(3, train_as_planned, &p);
        WARNED(said[i]);
        read_rows(p.folder, rows);
        for (int k = 0; k < STEPS; k++) assert_memory_equal(rows[k], undisturbed[k], sizeof rows[k]);
    }
    warnings_end();
}

static void begin_and_go_on_elsewhere(rank *r)
{
    const plan *plans = r->arg, undisturbed = {.odd = -1, .check_every = CHECK_EVERY};
    TR_SCOPE;
    run_of begun = {.plan = &plans[0], .number = r->number}, gone_on = {.plan = &plans[1], .number = r->number};
    run_of whole = {.plan = &undisturbed, .number = r->number};
    OK(train(&begun, r->group));
    OK(train(&gone_on, r->group));
    OK(train(&whole, r->group));
    CHECK(gone_on.report.rolled_back == 1);
    CHECK(hash_of(&gone_on) == hash_of(&whole));
}

/* The folder that it is saved into is another one than that of the checkpoint that it goes on from. */
static void a_training_that_goes_on_elsewhere_goes_back_to_its_start(void **state)
{
    (void)state;
    const char *from = files_path("began"), *to = files_path("went_on");
    const plan plans[] = {
        {.odd = -1, .check_every = CHECK_EVERY, .folder = from, .stop_at = 8},
        {1, 10, "3.weight", .roll_back = true, .check_every = CHECK_EVERY, .folder = to, .from = from},
    };
    warnings_keep();
    run(3, begin_and_go_on_elsewhere, plans);
    warnings_end();
    WARNED("going back from step 12 to the checkpoint of step 8");
}

/* The newest checkpoint is damaged meanwhile: the one before it is gone back to. */
static void damage_to_a_checkpoint_is_passed_over(void **state)
{
    (void)state;
    plan p = {1,
              19,
              "3.weight",
              .roll_back = true,
              .save_every = 8,
              .check_every = 3,
              .rolled_back = 1,
              .folder = files_path("both"),
              .spoil = true};
    warnings_keep();
    run(3, train_as_planned, &p);
    warnings_end();
    WARNED("going back from step 21 to the checkpoint of step 8");
}

static void going_back_has_an_end(void **state)
{
    (void)state;
    run(3, train_as_planned,
        &(plan){2, 9, "3.weight", .times = 9, .roll_back = true, .save_every = 8, .check_every = CHECK_EVERY,
                .folder = files_path("again"), .words = "went back to step 8 3 times, and it happened again"});
}

static void go_back_without(rank *r)
{
    const plan *p = r->arg;
    TR_SCOPE;
    run_of without = {.plan = p, .number = r->number};
    tr_status status = train(&without, r->group);
    CHECK(r->number && p->check_every ? status == TR_PEER : status == TR_INVALID);
    if (status == TR_INVALID) SAYS(p->words);
}

static void going_back_needs_checks_and_a_folder(void **state)
{
    (void)state;
    run(2, go_back_without, &(plan){-1, .roll_back = true, .check_every = 0, .words = ".check_replicas = 0"});
    run(2, go_back_without, &(plan){-1, .roll_back = true, .check_every = 5, .words = "needs a .folder"});
}

static tr_optimizer *make_sharded(tr_tensor_list *parameters, void *user)
{
    tr_optimizer *optimizer = tr_adam(parameters, .lr = 0.01);
    TR_CHECK(tr_shard_optimizer(optimizer, user));
    return optimizer;
}

/* A trainer's checkpoints are rank 0's, which has a share of the state only: it says so before it trains. Without them it trains. */
static void train_sharded(rank *r)
{
    TR_SCOPE;
    const char *folder = r->arg;
    tr_trainer *t = tr_classifier_trainer(make_net(), make_set(), .group = r->group, .steps = 3, .optimizer = make_sharded,
        .user = r->group);
    CHECK(tr_fit(t, .folder = r->number == 0 ? folder : NULL) == TR_UNSUPPORTED);
    SAYS("tr_shard_optimizer()");
    OK(tr_fit(t));
    CHECK(tr_trainer_steps(t) == 3);
    t = tr_classifier_trainer(make_net(), make_set(), .group = r->group, .steps = 3, .optimizer = make_sharded,
        .user = r->group, .resume = folder);
    CHECK(tr_status_of(t) == TR_UNSUPPORTED);
}

static void sharded_optimizers_are_not_saved(void **state)
{
    (void)state;
    run(3, train_sharded, files_path("sharded"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flipped_bit_ends_the_training),
        cmocka_unit_test(moments_are_named),
        cmocka_unit_test(two_ranks_differ),
        cmocka_unit_test(what_differs_is_not_saved),
        cmocka_unit_test(nothing_is_compared_when_it_is_off),
        cmocka_unit_test(a_training_goes_back_and_ends_as_if_nothing_had_been),
        cmocka_unit_test(a_training_that_goes_on_elsewhere_goes_back_to_its_start),
        cmocka_unit_test(damage_to_a_checkpoint_is_passed_over),
        cmocka_unit_test(going_back_has_an_end),
        cmocka_unit_test(going_back_needs_checks_and_a_folder),
        cmocka_unit_test(sharded_optimizers_are_not_saved),
    };
    return cmocka_run_group_tests(tests, files_begin, files_end);
}
