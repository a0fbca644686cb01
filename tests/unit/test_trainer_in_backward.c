/*
 * Trainers step in backward where nothing needs all gradients: the parameters, the optimizer's state and the metrics are those of a
 * step after backward, bit for bit, without memory for all gradients. What needs them has them, and so do the program's own
 * backwards between steps.
 */
#include "comm_ranks.h"
#include "warnings.h"

#include "device/device.h"

#include <trireme/trireme.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 6, STEPS = 12 }; /* steps 1 and 11 are looked at */

/* ---- Models ------------------------------------------------------------------------------------------------------ */

typedef struct kind {
    const char *name;
    tr_module *(*make)(void);
    tr_shape sample;
    int classes;
    bool adamw;
} kind;

static tr_module *mlp(void)
{
    return tr_sequential(tr_linear(100, 300, .seed = 1), tr_relu_layer(), tr_linear(300, 200, .seed = 2), tr_dropout_layer(0.1),
        tr_linear(200, 10, .seed = 3));
}

static tr_module *lenet(void)
{
    return tr_lenet(.classes = 10, .seed = 1);
}

static tr_module *gpt(void)
{
    return tr_gpt(.vocab = 60, .context = 8, .layers = 2, .heads = 2, .dim = 32, .dropout = 0.1, .seed = 3);
}

static tr_module *in_f64(void)
{
    return tr_sequential(tr_linear(100, 10, .seed = 1, .dtype = TR_F64));
}

enum { INSIDE = 2048, OUTSIDE = 4096 }; /* a weight of 64 MiB, whose gradient comes by blocks of rows */

static tr_module *large(void)
{
    return tr_sequential(tr_linear(INSIDE, OUTSIDE, .seed = 1, .dtype = TR_F64), tr_linear(OUTSIDE, 3, .seed = 2, .dtype = TR_F64));
}

static const kind kinds[] = {{"mlp", mlp, {1, {100}}, 10, false}, {"lenet", lenet, {3, {1, 28, 28}}, 10, false},
    {"gpt", gpt, {1, {8}}, 60, true}};

static tr_optimizer *adamw(tr_tensor_list *parameters, void *user)
{
    (void)user;
    return tr_adamw(parameters, .weight_decay = 0.1);
}

/* Each sample's x: k->sample; its y a class, or, of a GPT, the tokens themselves. */
static tr_dataset *make_set(const kind *k)
{
    enum { SAMPLES = 4 * BATCH };
    tr_shape shape = {.ndim = k->sample.ndim + 1, .dim = {SAMPLES}};
    for (int d = 0; d < k->sample.ndim; d++) shape.dim[d + 1] = k->sample.dim[d];
    tr_tensor *x = tr_rand(7, shape);
    if (k->adamw) x = tr_cast(tr_affine(x, k->classes - 1, 0), TR_I32);
    if (k->make == in_f64 || k->make == large) x = tr_cast(x, TR_F64);
    tr_tensor *y = k->adamw ? x : tr_cast(tr_affine(tr_rand(8, TR_SHAPE(SAMPLES)), k->classes - 1, 0), TR_I32);
    return tr_dataset_tensors(x, y);
}

typedef struct training {
    tr_module *net;
    tr_optimizer *optimizer;
    tr_trainer *trainer;
    tr_metrics_row rows[STEPS];
} training;

static tr_optimizer *note_optimizer(tr_tensor_list *parameters, void *user)
{
    training *t = user;
    t->optimizer = tr_sgd(parameters, .lr = 0.05, .momentum = 0.9);
    return t->optimizer;
}

static tr_optimizer *note_adamw(tr_tensor_list *parameters, void *user)
{
    training *t = user;
    t->optimizer = adamw(parameters, NULL);
    return t->optimizer;
}

static void begin(training *t, const kind *k, tr_classifier_trainer_options o)
{
    *t = (training){.net = k->make()};
    o.size = sizeof o;
    o.given = ".workers"; /* 0: batches that a thread makes ahead would come between the measurements of memory */
    o.model = t->net;
    o.set = make_set(k);
    o.global_batch = BATCH;
    o.steps = STEPS;
    o.seed = 5;
    o.optimizer = k->adamw ? note_adamw : note_optimizer;
    o.user = t;
    t->trainer = tr_classifier_trainer_with(&o);
    TR_CHECK(tr_status_of(t->trainer));
}

static tr_status take_step(training *t, int step)
{
    TR_SCOPE;
    bool stop = false;
    return tr_trainer_step(t->trainer, &t->rows[step], &stop);
}

static void assert_same(const char *what, tr_tensor_list *a, tr_tensor_list *b)
{
    assert_true(tr_list_count(a) > 0 && tr_list_count(a) == tr_list_count(b));
    for (int i = 0; i < tr_list_count(a); i++) {
        tr_tensor *s = tr_list_at(a, i), *t = tr_list_at(b, i);
        size_t bytes = (size_t)tr_numel(s) * tr_dtype_size(tr_dtype_of(s));
        if (memcmp(tr_data(s), tr_data(t), bytes) != 0) fail_msg("%s: %s differs", what, tr_list_name(a, i));
    }
}

static int gradients_of(const training *t)
{
    tr_tensor_list *list = tr_parameters(t->net);
    int n = 0;
    for (int i = 0; i < tr_list_count(list); i++) n += tr_grad(tr_list_at(list, i)) != NULL;
    return n;
}

static double bytes_of_parameters(const training *t)
{
    tr_tensor_list *list = tr_parameters(t->net);
    double sum = 0;
    for (int i = 0; i < tr_list_count(list); i++) sum += 4.0 * (double)tr_numel(tr_list_at(list, i));
    return sum;
}

static double in_use(void)
{
    size_t now, peak;
    tr__cpu_memory(0, &now, &peak);
    return (double)now;
}

/* ---- The same bits, in less memory ------------------------------------------------------------------------------- */

static void it_changes_no_bit(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        TR_SCOPE;
        training after, in;
        double memory[3] = {in_use()};
        begin(&after, &kinds[i], (tr_classifier_trainer_options){.step_after_backward = true});
        TR_CHECK(take_step(&after, 0));
        memory[1] = in_use();
        begin(&in, &kinds[i], (tr_classifier_trainer_options){0});
        TR_CHECK(take_step(&in, 0));
        memory[2] = in_use();
        double saved = 2 * memory[1] - memory[0] - memory[2];
        assert_true(saved > 0.9 * bytes_of_parameters(&in));
        assert_int_equal(gradients_of(&after), tr_list_count(tr_parameters(after.net)));
        assert_int_equal(gradients_of(&in), 0);
        for (int step = 1; step < STEPS; step++) {
            TR_CHECK(take_step(&after, step));
            TR_CHECK(take_step(&in, step));
        }
        for (int step = 0; step < STEPS; step++) {
            assert_true(after.rows[step].loss == in.rows[step].loss);
            assert_int_equal(isnan(in.rows[step].grad_norm), step % 10 != 0);
            assert_true(step % 10 || after.rows[step].grad_norm == in.rows[step].grad_norm);
        }
        assert_same(kinds[i].name, tr_state_dict(after.net), tr_state_dict(in.net));
        assert_same(kinds[i].name, tr_optimizer_state(after.optimizer), tr_optimizer_state(in.optimizer));
    }
}

static void what_needs_all_gradients_has_them(void **state)
{
    (void)state;
    const tr_classifier_trainer_options all[] = {{.clip = 1}, {.micro_batch = 2}, {.stop_on_spike = true}, {.step_after_backward = true}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        TR_SCOPE;
        training t;
        begin(&t, &kinds[0], all[i]);
        TR_CHECK(take_step(&t, 0));
        assert_int_equal(gradients_of(&t), tr_list_count(tr_parameters(t.net)));
    }
}

/* Between steps: backwards and steps of the program's own, and another optimizer of the same parameters. */
static void the_program_may_use_the_parameters(void **state)
{
    (void)state;
    TR_SCOPE;
    training plain, t;
    begin(&plain, &kinds[0], (tr_classifier_trainer_options){.step_after_backward = true});
    begin(&t, &kinds[0], (tr_classifier_trainer_options){0});
    training *both[] = {&plain, &t};
    for (int step = 0; step < 6; step++) {
        for (int k = 0; k < 2; k++) {
            TR_SCOPE;
            TR_CHECK(take_step(both[k], step));
            if (step == 1) { /* twice, as gradients add up */
                tr_zero_grad(both[k]->optimizer);
                for (int i = 0; i < 2; i++) TR_CHECK(tr_backward(tr_sum(tr_forward(both[k]->net, tr_ones(TR_SHAPE(1, 100))))));
                assert_int_equal(gradients_of(both[k]), tr_list_count(tr_parameters(both[k]->net)));
                TR_CHECK(tr_step(both[k]->optimizer));
            }
        }
        assert_same("between steps", tr_parameters(plain.net), tr_parameters(t.net));
        if (step == 3)
            for (int k = 0; k < 2; k++) {
                tr_optimizer *other = tr_sgd(tr_parameters(both[k]->net), .lr = 0.01);
                TR_CHECK(take_step(both[k], step));
                TR_CHECK(tr_step(other));
            }
    }
    assert_same("beside another optimizer", tr_parameters(plain.net), tr_parameters(t.net));
}

/* Two steps of a trainer that goes then; model and optimizer are kept, the latter since the first step. */
static void train_and_keep(training *t, tr_classifier_trainer_options o, int gradients_at_first)
{
    TR_SCOPE;
    begin(t, &kinds[0], o);
    tr_keep(t->net);
    TR_CHECK(take_step(t, 0));
    assert_int_equal(gradients_of(t), gradients_at_first);
    tr_keep(t->optimizer);
    TR_CHECK(take_step(t, 1));
    assert_int_equal(gradients_of(t), 6);
}

/* The optimizer may then be asked for what needs all gradients, and goes on where the trainer has gone. */
static void who_keeps_the_optimizer_has_gradients(void **state)
{
    (void)state;
    TR_SCOPE;
    training plain, t, *both[] = {&plain, &t};
    train_and_keep(&plain, (tr_classifier_trainer_options){.step_after_backward = true}, 6);
    train_and_keep(&t, (tr_classifier_trainer_options){0}, 0);
    for (int k = 0; k < 2; k++) {
        TR_CHECK(tr_clip_grad_norm(both[k]->optimizer, 0.1, NULL));
        tr_zero_grad(both[k]->optimizer);
        TR_CHECK(tr_backward(tr_sum(tr_forward(both[k]->net, tr_ones(TR_SHAPE(1, 100))))));
        TR_CHECK(tr_step(both[k]->optimizer));
    }
    assert_same("with an optimizer of one's own", tr_parameters(plain.net), tr_parameters(t.net));
    for (int k = 0; k < 2; k++) {
        tr_release(both[k]->optimizer);
        tr_release(both[k]->net);
    }
}

/* Nobody averages gradients that are used up as they come. */
static void around_ddp(rank *r)
{
    TR_SCOPE;
    training before, after;
    begin(&after, &kinds[0], (tr_classifier_trainer_options){0});
    TR_CHECK(take_step(&after, 0));
    CHECK(gradients_of(&after) == 0);
    OK(tr_status_of(tr_ddp(after.net, r->group)));
    tr_module *net = mlp();
    OK(tr_status_of(tr_ddp(net, r->group)));
    before.net = net;
    before.trainer = tr_classifier_trainer(net, make_set(&kinds[0]), .global_batch = BATCH, .steps = STEPS);
    OK(tr_status_of(before.trainer));
    training *both[] = {&before, &after};
    for (int k = 0; k < 2; k++) {
        OK(take_step(both[k], 1));
        CHECK(gradients_of(both[k]) == tr_list_count(tr_parameters(both[k]->net)));
    }
}

static void a_model_within_ddp_keeps_its_gradients(void **state)
{
    (void)state;
    run(2, around_ddp, NULL);
}

/* ---- Several ranks ----------------------------------------------------------------------------------------------- */

static bool alike(tr_tensor_list *a, tr_tensor_list *b)
{
    bool same = true;
    for (int i = 0; i < tr_list_count(a); i++) {
        tr_tensor *s = tr_list_at(a, i), *t = tr_list_at(b, i);
        same &= memcmp(tr_data(s), tr_data(t), (size_t)tr_numel(s) * tr_dtype_size(tr_dtype_of(s))) == 0;
    }
    return same;
}

/* By themselves and where they are told to; a loss that is not finite on one rank is known to all before anything is applied. */
static void on_ranks(rank *r)
{
    TR_SCOPE;
    const kind *k = r->arg;
    training after, in, told;
    begin(&after, k, (tr_classifier_trainer_options){.group = r->group, .step_after_backward = true});
    begin(&in, k, (tr_classifier_trainer_options){.group = r->group});
    begin(&told, k, (tr_classifier_trainer_options){.group = r->group, .step_in_backward = true});
    for (int step = 0; step < STEPS; step++) {
        OK(take_step(&after, step));
        OK(take_step(&in, step));
        OK(take_step(&told, step));
        CHECK(gradients_of(&after) > 0);
        CHECK(gradients_of(&in) == 0);
        CHECK(tr_status_of(tr_grad(tr_list_at(tr_parameters(told.net), 0))) == TR_STATE);
        CHECK(after.rows[step].loss == in.rows[step].loss && in.rows[step].loss == told.rows[step].loss);
        CHECK(step % 10 || after.rows[step].grad_norm == in.rows[step].grad_norm);
        CHECK(alike(tr_state_dict(after.net), tr_state_dict(in.net)));
        CHECK(alike(tr_state_dict(after.net), tr_state_dict(told.net)));
    }
    CHECK(alike(tr_optimizer_state(after.optimizer), tr_optimizer_state(in.optimizer)));
    CHECK(tr_clip_grad_norm(told.optimizer, 1, NULL) == TR_UNSUPPORTED);
    SAYS("steps in backward (tr_step_in_backward())");
    tr_tensor_list *list = tr_parameters(in.net);
    float *last = tr_data(tr_list_at(list, tr_list_count(list) - 1)), sound = *last;
    if (r->number == 1) *last = NAN;
    CHECK(take_step(&in, 0) == TR_INVALID);
    SAYS("the loss is not a number");
    SAYS("nothing was applied");
    if (r->number == 1) *last = sound;
    CHECK(alike(tr_state_dict(after.net), tr_state_dict(in.net)));
    OK(take_step(&after, 0));
    OK(take_step(&in, 0));
    CHECK(alike(tr_state_dict(after.net), tr_state_dict(in.net)));
    OK(tr_leave(r->group));
}

static void ranks_give_the_same_bits(void **state)
{
    (void)state;
    for (int world = 2; world <= 3; world++)
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) run(world, on_ranks, &kinds[i]);
}

/* All ranks do as the one that needs its gradients, in each step anew. */
static void for_one_rank(rank *r)
{
    TR_SCOPE;
    training after, t;
    begin(&after, &kinds[0], (tr_classifier_trainer_options){.group = r->group, .step_after_backward = true});
    begin(&t, &kinds[0], (tr_classifier_trainer_options){.group = r->group});
    int all = tr_list_count(tr_parameters(t.net));
    for (int step = 0; step < 6; step++) {
        bool keeps = step / 2 == 1;
        if (step == 2 && r->number == 1) tr_keep(t.optimizer);
        if (step == 4 && r->number == 1) tr_release(t.optimizer);
        OK(take_step(&after, step));
        OK(take_step(&t, step));
        CHECK(gradients_of(&t) == (keeps ? all : 0));
        CHECK(alike(tr_state_dict(after.net), tr_state_dict(t.net)));
    }
    const tr_classifier_trainer_options needs[] = {{.clip = 1}, {.stop_on_spike = true}, {.allow_different = "clip"},
        {.micro_batch = r->number ? 1 : 0}, {.step_after_backward = r->number == 0}};
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        tr_classifier_trainer_options o = needs[i];
        o.group = r->group;
        begin(&t, &kinds[0], o);
        OK(take_step(&t, 0));
        CHECK(gradients_of(&t) == all);
    }
    OK(tr_leave(r->group));
}

static void gradients_stay_for_the_rank_that_needs_them(void **state)
{
    (void)state;
    run(2, for_one_rank, NULL);
}

/* ---- What is not finite ------------------------------------------------------------------------------------------ */

/* In the backward of this number a gradient is multiplied by the factor. */
typedef struct spoiler {
    int backwards, when;
    float factor;
} spoiler;

static tr_status spoil(tr_tensor *leaf, tr_tensor *grad, void *user)
{
    (void)leaf;
    spoiler *s = user;
    if (++s->backwards == s->when) *(float *)tr_data(grad) *= s->factor;
    return TR_OK;
}

static void assert_says(tr_status status, const char *part)
{
    if (status != TR_INVALID || !strstr(tr_error_message(), part))
        fail_msg("status %d: \"%s\" lacks \"%s\"", status, tr_error_message(), part);
}

static void a_gradient_that_is_not_finite_is_named(void **state)
{
    (void)state;
    TR_SCOPE;
    training t;
    begin(&t, &kinds[0], (tr_classifier_trainer_options){0});
    tr_tensor_list *list = tr_parameters(t.net);
    spoiler s = {.when = 11, .factor = INFINITY};
    tr_tensor *middle = tr_list_find(list, "2.weight"), *first = tr_list_find(list, "0.weight");
    assert_true(tr_grad_hook_add(middle, spoil, &s) >= 0);
    for (int step = 0; step < 10; step++) TR_CHECK(take_step(&t, step));
    float before[2] = {*(float *)tr_data(first), *(float *)tr_data(middle)};
    assert_says(take_step(&t, 10), "step 11: the gradients' norm is inf; the gradient of \"2.weight\" (linear, [200, 300]) is "
        "the first in backward whose norm is not finite, when ");
    assert_true(strstr(tr_error_message(), "of the 6 parameters had been updated") != NULL);
    assert_true(*(float *)tr_data(first) == before[0] && *(float *)tr_data(middle) == before[1]);
    TR_CHECK(take_step(&t, 10)); /* goes on */
    assert_true(*(float *)tr_data(middle) != before[1]);
}

static tr_status make_huge(tr_tensor *leaf, tr_tensor *grad, void *size)
{
    (void)leaf;
    *(double *)tr_data(grad) = *(const double *)size;
    return TR_OK;
}

/* In f64 finite gradients have norms that are not: of each alone, or of all together, when all have been applied. */
static void norms_that_overflow_are_told(void **state)
{
    (void)state;
    TR_SCOPE;
    const kind k = {"f64", in_f64, {1, {100}}, 10, false};
    double sizes[] = {1e154, 1e200};
    const char *const words[] = {
        "step 1: the gradients' norm is inf: every gradient is finite, and the sum of their squares overflows; all 2 parameters had been "
        "updated",
        "step 1: the gradients' norm is inf; the gradient of \"0.weight\" (linear, [10, 100]) is the first in backward "
        "whose norm is not finite, when 0 of the 2 parameters had been updated"};
    for (int i = 0; i < 2; i++) {
        training t;
        begin(&t, &k, (tr_classifier_trainer_options){0});
        tr_tensor_list *list = tr_parameters(t.net);
        for (int p = 0; p < 2; p++) assert_true(tr_grad_hook_add(tr_list_at(list, p), make_huge, &sizes[i]) >= 0);
        double *weight = tr_data(tr_list_find(list, "0.weight")), before = *weight;
        assert_says(take_step(&t, 0), words[i]);
        assert_int_equal(*weight != before, i == 0);
    }
}

/* Of a gradient that comes by rows those of the blocks before have been applied, and the message says how many. */
static void rows_that_had_been_updated_are_told(void **state)
{
    (void)state;
    TR_SCOPE;
    enum { BAD = 4000, BLOCK = 1024, UPDATED = BAD / BLOCK * BLOCK };
    const kind k = {"large", large, {1, {INSIDE}}, 3, false};
    training t;
    begin(&t, &k, (tr_classifier_trainer_options){0});
    tr_tensor_list *list = tr_parameters(t.net);
    double *weight = tr_data(tr_list_find(list, "0.weight")), *next = tr_data(tr_list_find(list, "1.weight"));
    /* A feature that is 0, and whose gradient is too large to be squared. */
    memset(weight + (size_t)BAD * INSIDE, 0, INSIDE * sizeof *weight);
    ((double *)tr_data(tr_list_find(list, "0.bias")))[BAD] = 0;
    for (int class = 0; class < 3; class++) next[class * OUTSIDE + BAD] = 1e200;
    double before[] = {weight[0], weight[(size_t)UPDATED * INSIDE - 1], weight[(size_t)UPDATED * INSIDE]};
    assert_says(take_step(&t, 0), "step 1: the gradients' norm is inf; the gradient of \"0.weight\" (linear, [4096, 2048]) is the first "
        "in backward whose norm is not finite, when 2 of the 4 parameters had been updated, and the first 3072 rows of this one");
    assert_true(weight[0] != before[0] && weight[(size_t)UPDATED * INSIDE - 1] != before[1]);
    assert_true(weight[(size_t)UPDATED * INSIDE] == before[2]);
}

/* The loss is known before backward: nothing is applied, and its gradients say where it comes from. */
static void a_loss_that_is_not_finite_applies_nothing(void **state)
{
    (void)state;
    TR_SCOPE;
    training t, untouched;
    begin(&t, &kinds[0], (tr_classifier_trainer_options){0});
    begin(&untouched, &kinds[0], (tr_classifier_trainer_options){0});
    TR_CHECK(take_step(&t, 0));
    TR_CHECK(take_step(&untouched, 0));
    tr_tensor *bias = tr_list_find(tr_parameters(t.net), "4.bias");
    float sound = *(float *)tr_data(bias);
    *(float *)tr_data(bias) = NAN;
    assert_says(take_step(&t, 1), "step 2: the loss is not a number; \"4.bias\" (linear, [10]) is not finite since an earlier step");
    *(float *)tr_data(bias) = sound;
    assert_same("after a loss of NaN", tr_parameters(untouched.net), tr_parameters(t.net));
    TR_CHECK(take_step(&t, 1));
}

/* Its norm is known when it has been applied. */
static void a_spike_names_the_parameter(void **state)
{
    (void)state;
    TR_SCOPE;
    training t;
    const int64_t looked_at = 211;
    begin(&t, &kinds[0], (tr_classifier_trainer_options){.lr = 1e-6});
    spoiler s = {.when = (int)looked_at, .factor = 1e9F};
    assert_true(tr_grad_hook_add(tr_list_find(tr_parameters(t.net), "2.weight"), spoil, &s) >= 0);
    warnings_keep();
    tr_metrics_row row;
    for (int64_t step = 0; step < looked_at; step++) {
        TR_SCOPE;
        TR_CHECK(tr_trainer_step(t.trainer, &row, &(bool){false}));
    }
    assert_true(row.grad_norm > 1e3);
    WARNED("step 211: the gradients' norm is ");
    WARNED("; it comes from \"2.weight\" (linear, [200, 300]) (");
    warnings_end();
}

/* The gradient of rank 1 is spoilt before the ranks average it. */
static void spike_on_a_rank(rank *r)
{
    TR_SCOPE;
    training t;
    const int64_t looked_at = 211;
    begin(&t, &kinds[0], (tr_classifier_trainer_options){.group = r->group, .lr = 1e-6});
    spoiler s = {.when = (int)looked_at, .factor = 1e9F};
    if (r->number == 1) CHECK(tr_grad_hook_add(tr_list_find(tr_parameters(t.net), "0.weight"), spoil, &s) >= 0);
    tr_metrics_row row;
    for (int64_t step = 0; step < looked_at; step++) {
        TR_SCOPE;
        OK(tr_trainer_step(t.trainer, &row, &(bool){false}));
    }
    CHECK(row.grad_norm > 1e3);
    OK(tr_leave(r->group));
}

static void a_spike_names_the_rank(void **state)
{
    (void)state;
    warnings_keep();
    run(3, spike_on_a_rank, NULL);
    const char *said[] = {"step 211: the gradients' norm is ", "; it comes from rank 1, whose own is ", " (the others': ",
                          " at most), and in the average from \"0.weight\" (linear, ["};
    for (int i = 0; i < 4; i++) WARNED(said[i]);
    warnings_end();
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *net = mlp();
    tr_dataset *set = make_set(&kinds[0]);
    tr_trainer *spike = tr_classifier_trainer(net, set, .global_batch = BATCH, .steps = 1, .step_in_backward = true, .stop_on_spike = true);
    assert_int_equal(tr_status_of(spike), TR_UNSUPPORTED);
    assert_true(strstr(tr_error_message(), "no .stop_on_spike") != NULL);
    tr_trainer *both = tr_classifier_trainer(net, set, .global_batch = BATCH, .steps = 1, .step_in_backward = true,
        .step_after_backward = true);
    assert_int_equal(tr_status_of(both), TR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_changes_no_bit),
        cmocka_unit_test(what_needs_all_gradients_has_them),
        cmocka_unit_test(the_program_may_use_the_parameters),
        cmocka_unit_test(who_keeps_the_optimizer_has_gradients),
        cmocka_unit_test(a_model_within_ddp_keeps_its_gradients),
        cmocka_unit_test(ranks_give_the_same_bits),
        cmocka_unit_test(gradients_stay_for_the_rank_that_needs_them),
        cmocka_unit_test(a_gradient_that_is_not_finite_is_named),
        cmocka_unit_test(norms_that_overflow_are_told),
        cmocka_unit_test(rows_that_had_been_updated_are_told),
        cmocka_unit_test(a_loss_that_is_not_finite_applies_nothing),
        cmocka_unit_test(a_spike_names_the_parameter),
        cmocka_unit_test(a_spike_names_the_rank),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
