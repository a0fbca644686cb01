/*
 * Gradients before they are applied: one that is not finite ends the training, a spike is a warning, and both name the
 * rank and the parameter that they came from, though averaging has made them everybody's. What averaging has made
 * different ends it, too.
 */
#include "comm_ranks.h"
#include "files.h"
#include "numbers.h"
#include "warnings.h"

#include <trireme/trireme.h>

#include <math.h>

enum { SAMPLES = 360, BATCH = 9, STEPS = 40, FEATURES = 5, LATE_SAMPLE = 3 };

/* ---- A classifier ------------------------------------------------------------------------------------------------ */

typedef struct plan {
    int odd;      /* the rank whose own copy of the data is bad; -1: every rank's */
    int sample;   /* which sample of it; -1: each */
    double value; /* what its features are multiplied with; 0: nothing is done */
    int64_t micro_batch;
    double clip;
    bool plain; /* without a batch norm, which would take away what is large */
    bool stop_on_spike;
    bool step_after_backward;
    int hooked_step; /* in this step's first backward the odd rank's "0.weight" has a gradient times value; 0: in none
                      */
    tr_status status;
    const char *words; /* of the failure, or of the log */
} plan;

typedef struct run_of {
    const plan *plan;
    tr_module *net;
    tr_trainer *trainer;
    int64_t steps;
    int backwards; /* with the hook */
    tr_fit_report report;
} run_of;

static tr_dataset *make_set(const plan *p, int number)
{
    int32_t classes[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) classes[i] = i * 7 % 3;
    tr_tensor *x = tr_randn(5, TR_SHAPE(SAMPLES, FEATURES));
    float *values = tr_data(x);
    bool bad = p->value != 0 && !p->hooked_step && (p->odd < 0 || p->odd == number);
    for (int i = 0; bad && i < SAMPLES; i++)
        for (int k = 0; k < FEATURES; k++)
            if (p->sample < 0 || p->sample == i) values[i * FEATURES + k] *= (float)p->value;
    return tr_dataset_tensors(x, tr_from(classes, TR_SHAPE(SAMPLES), .dtype = TR_I32));
}

static tr_status spoil(tr_tensor *leaf, tr_tensor *grad, void *user)
{
    (void)leaf;
    run_of *r = user;
    if (++r->backwards == r->plan->hooked_step) *(float *)tr_data(grad) *= (float)r->plan->value;
    return TR_OK;
}

static tr_status train(run_of *r, tr_group *group, const char *resume, int64_t stop_at, const char *folder)
{
    const plan *p = r->plan;
    int number = group ? tr_rank(group) : 0;
    tr_module *first = tr_linear(FEATURES, 8, .seed = 1), *last = tr_linear(8, 3, .seed = 2);
    r->net = p->plain ? tr_sequential(first, tr_relu_layer(), tr_relu_layer(), last)
                      : tr_sequential(first, tr_batch_norm1d(8), tr_relu_layer(), last);
    r->trainer = tr_classifier_trainer(r->net, make_set(p, number), .group = group, .global_batch = BATCH,
                                       .steps = STEPS, .micro_batch = p->micro_batch, .clip = p->clip, .lr = 0.01,
                                       .resume = resume, .stop_on_spike = p->stop_on_spike, .allow_different = "data",
                                       .step_after_backward = p->step_after_backward);
    if (p->hooked_step && p->odd == number) tr_grad_hook_add(tr_list_find(tr_state_dict(r->net), "0.weight"), spoil, r);
    return tr_fit(r->trainer, .folder = number ? NULL : folder, .stop_at = stop_at, .report = &r->report);
}

static void fail_as_planned(rank *r)
{
    const plan *p = r->arg;
    TR_SCOPE;
    run_of of = {.plan = p};
    tr_status status = train(&of, r->group, NULL, 0, NULL);
    CHECK(status == p->status);
    if (status == TR_OK) return;
    SAYS(p->words);
    SAYS("nothing was applied");
    CHECK(of.report.common_failure);

    /* As after the steps before the failure. */
    const plan sound = {.micro_batch = p->micro_batch, .clip = p->clip};
    run_of before = {.plan = tr_trainer_steps(of.trainer) ? p : &sound};
    if (!tr_trainer_steps(of.trainer)) return;
    OK(train(&before, r->group, NULL, tr_trainer_steps(of.trainer), NULL));
    CHECK(hash_of_list(tr_parameters(of.net), 0) == hash_of_list(tr_parameters(before.net), 0));
}

static void a_rank_with_bad_data_is_named(void **state)
{
    (void)state;
    const plan plans[] = {
        {1, -1, NAN, .clip = 1, .status = TR_INVALID,
         .words = "step 1: the loss is not a number; it comes from rank 1, where the loss is nan, the gradient of "
                  "\"3.weight\" (linear, [3, 8]) is the first that backward made not finite, and the input of its sample "},
        {2, -1, INFINITY, .clip = 0, .status = TR_INVALID, .words = "it comes from rank 2, where the loss is nan"},
        {0, -1, NAN, .micro_batch = 2, .plain = true, .status = TR_INVALID,
         .words = "it comes from rank 0, where the loss is nan"},
    };
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        run(3, fail_as_planned, &plans[i]);
        run(4, fail_as_planned, &plans[i]);
    }
    /* One sample, which every rank's copy has, comes to one of them on the way. */
    run(3, fail_as_planned,
        &(plan){-1, 77, NAN, .clip = 1, .status = TR_INVALID,
                .words = "the loss is not a number; it comes from rank "});
}

static void one_process_names_the_parameter(void **state)
{
    (void)state;
    TR_SCOPE;
    const plan p = {-1, -1, NAN, .clip = 1};
    run_of of = {.plan = &p};
    FAILS(TR_INVALID, train(&of, NULL, NULL, 0, NULL),
          "step 1: the loss is not a number; the gradient of \"3.weight\" (linear, [3, 8]) is the first that backward made not "
          "finite, and the input of its sample 0 of the batch is not finite; nothing was applied");
    assert_true(of.report.common_failure);
    /* What fails next is reported for itself. */
    FAILS(TR_IO, tr_fit(of.trainer, .folder = "/dev/null/nowhere", .report = &of.report), "/dev/null/nowhere");
    assert_false(of.report.common_failure);
}

/* A rank's gradient is spoilt after it was computed: once more it is sound. */
static void damage_on_the_way_is_told_from_bad_data(void **state)
{
    (void)state;
    run(3, fail_as_planned,
        &(plan){1, -1, INFINITY, .clip = 1, .hooked_step = 5, .status = TR_INVALID,
                .words = "step 5: the gradients' norm is inf; computed again, each rank's own gradients are finite"});
}

/* Without clipping nine of ten steps are not looked at: what they apply shows in the next loss. */
static void weights_that_were_spoilt_before_are_named(void **state)
{
    (void)state;
    run(3, fail_as_planned,
        &(plan){1, -1, INFINITY, .clip = 0, .hooked_step = 5, .status = TR_INVALID,
                .words = "step 6: the loss is not a number; \"0.weight\" (linear, [8, 5]) is not finite since an earlier step"});
    run(3, fail_as_planned,
        &(plan){1, -1, INFINITY, .clip = 0, .hooked_step = 11, .step_after_backward = true, .status = TR_INVALID,
                .words = "step 11: the gradients' norm is inf; computed again, each rank's own"});
}

/* Where ranks step in backward the average is known when parameters before it have been updated. */
static void fail_in_backward(rank *r)
{
    TR_SCOPE;
    run_of of = {.plan = r->arg};
    CHECK(train(&of, r->group, NULL, 0, NULL) == TR_INVALID);
    SAYS("step 11: the gradients' norm is inf; the gradient of \"0.weight\" (linear, [8, 5]) is the first in backward whose norm is "
         "not finite, when ");
    SAYS(" of the 6 parameters had been updated; it comes from rank 1, whose own gradients are not finite");
    CHECK(!strstr(tr_error_message(), "diverged"));
    CHECK(of.report.common_failure);
}

static void an_average_that_is_not_finite_names_rank_and_parameter(void **state)
{
    (void)state;
    run(3, fail_in_backward, &(plan){1, -1, INFINITY, .clip = 0, .hooked_step = 11});
}

/* ---- Spikes ------------------------------------------------------------------------------------------------------ */

/* A warning, after which the training goes on as one that has not looked: a resumed one has too few norms to know a
 * spike by. */
static void go_on_behind_a_spike(rank *r)
{
    const plan *p = r->arg;
    TR_SCOPE;
    run_of watched = {.plan = p}, first = {.plan = p}, second = {.plan = p, .backwards = 24};
    OK(train(&watched, r->group, NULL, 0, NULL));
    char folder[600];
    snprintf(folder, sizeof folder, "%s", p->words);
    OK(train(&first, r->group, NULL, 24, folder));
    OK(train(&second, r->group, folder, 0, NULL));
    CHECK(hash_of_list(tr_state_dict(watched.net), 0) == hash_of_list(tr_state_dict(second.net), 0));
}

static void a_spike_is_a_warning_and_the_training_goes_on(void **state)
{
    (void)state;
    warnings_keep();
    plan p = {1, -1, 1e6, .clip = 1, .hooked_step = 25, .words = files_path("spike")};
    run(3, go_on_behind_a_spike, &p);
    warnings_end();
    const char *said[] = {"step 25: the gradients' norm is ", " times the median of the steps before (",
                          "computed again, no rank's own is above "};
    for (int i = 0; i < 3; i++) WARNED(said[i]);
}

/* One sample, which comes to rank 0 in step 38. */
static void a_spike_names_rank_and_parameter(void **state)
{
    (void)state;
    warnings_keep();
    plan p = {-1, LATE_SAMPLE, 1e7, .clip = 1, .plain = true, .status = TR_OK};
    run(3, fail_as_planned, &p);
    const char *said[] = {"step 38: the gradients' norm is ", "; it comes from rank 0", ", whose own is ",
                          " (the others': ", "at most), and there from \"3.weight\" (linear, [3, 8]) ("};
    for (int i = 0; i < 5; i++) WARNED(said[i]);
    warnings_end();
    p.stop_on_spike = true;
    p.status = TR_INVALID;
    p.words = "; it comes from rank ";
    run(3, fail_as_planned, &p);
}

/* ---- Gradients that averaging has left different ----------------------------------------------------------------- */

/* A parameter that the optimizer has and DDP does not: what it does to the loss differs from rank to rank. */
typedef struct outside {
    int number;
    tr_tensor *extra;
} outside;

static tr_optimizer *with_extra(tr_tensor_list *parameters, void *user)
{
    outside *o = user;
    o->extra = tr_require_grad(tr_zeros(TR_SHAPE(4)));
    return tr_list_add(parameters, "extra", o->extra) == TR_OK ? tr_sgd(parameters, .lr = 0.01) : NULL;
}

static tr_tensor *loss_with_extra(tr_module *net, tr_tensor *x, tr_tensor *y, void *user)
{
    outside *o = user;
    return tr_add(tr_cross_entropy(tr_forward(net, x), y), tr_sum(tr_affine(o->extra, 1 + o->number / 2, 0)));
}

static void leave_one_out(rank *r)
{
    TR_SCOPE;
    outside o = {.number = r->number};
    const char *path = r->arg;
    tr_module *net = tr_gpt(.vocab = 256, .context = 8, .layers = 1, .heads = 1, .dim = 8, .seed = 1);
    tr_trainer *trainer = tr_trainer_new(net, tr_text_load(path), .group = r->group, .context = 8, .steps = 9,
                                     .optimizer = with_extra, .loss = loss_with_extra, .user = &o);
    tr_metrics_row row;
    CHECK(tr_trainer_step(trainer, &row, &(bool){false}) == TR_MISMATCH);
    SAYS("step 1: averaged gradients differ, nothing was applied: rank 2 differs from the "
         "other 2 ranks in \"gradient of extra\"");
    CHECK(tr_trainer_steps(trainer) == 0 && ((const float *)tr_data(o.extra))[0] == 0);
}

static void averaged_gradients_that_differ_are_named(void **state)
{
    (void)state;
    char text[4000];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)('a' + i * i % 7);
    char path[600];
    snprintf(path, sizeof path, "%s", files_write("text", text, sizeof text));
    run(3, leave_one_out, path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_with_bad_data_is_named),
        cmocka_unit_test(one_process_names_the_parameter),
        cmocka_unit_test(damage_on_the_way_is_told_from_bad_data),
        cmocka_unit_test(weights_that_were_spoilt_before_are_named),
        cmocka_unit_test(an_average_that_is_not_finite_names_rank_and_parameter),
        cmocka_unit_test(a_spike_is_a_warning_and_the_training_goes_on),
        cmocka_unit_test(a_spike_names_rank_and_parameter),
        cmocka_unit_test(averaged_gradients_that_differ_are_named),
    };
    return cmocka_run_group_tests(tests, files_begin, files_end);
}
