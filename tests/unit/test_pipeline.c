/* Pipelines: schedules on paper; stages on devices of a process and on ranks give what one device gives. */
#include "comm_ranks.h"

#include "parallel/pipeline_schedule.h"
#include "tensor/tensor.h"

#include <trireme/trireme.h>

#include <math.h>
#include <stdlib.h>

/* ---- Schedules on paper ------------------------------------------------------------------------------------------------ */

enum { MOST_STAGES = 8, MOST_MICRO = 16, FORWARD = 1, BACKWARD = 2 /* how long they take */ };

typedef struct paper {
    int stages, micro;
    tr__pipeline_action actions[MOST_STAGES][2 * MOST_MICRO];
    int done[MOST_STAGES][2][MOST_MICRO]; /* when each forward and backward ends; 0: not yet */
    int at[MOST_STAGES], clock[MOST_STAGES];
    int held[MOST_STAGES], most[MOST_STAGES]; /* micro-batches between forward and backward */
} paper;

/* When what an action needs from its neighbour and itself is there; -1: it is not known yet. */
static int ready_at(const paper *p, int s, tr__pipeline_action a)
{
    int from = a.backward ? s + 1 : s - 1;
    if (a.backward && !p->done[s][0][a.micro]) return -1;
    if (from < 0 || from == p->stages) return 0;
    int end = p->done[from][a.backward][a.micro];
    return end ? end : -1;
}

static bool advance(paper *p, int s)
{
    if (p->at[s] == 2 * p->micro) return false;
    tr__pipeline_action a = p->actions[s][p->at[s]];
    int ready = ready_at(p, s, a), start = ready > p->clock[s] ? ready : p->clock[s];
    if (ready < 0) return false;
    assert_int_equal(p->done[s][a.backward][a.micro], 0); /* each once */
    p->clock[s] = start + (a.backward ? BACKWARD : FORWARD);
    p->done[s][a.backward][a.micro] = p->clock[s];
    p->held[s] += a.backward ? -1 : 1;
    if (p->held[s] > p->most[s]) p->most[s] = p->held[s];
    p->at[s]++;
    return true;
}

static void carry_out(paper *p, tr_pipeline_schedule schedule, int stages, int micro)
{
    *p = (paper){.stages = stages, .micro = micro};
    for (int s = 0; s < stages; s++) tr__pipeline_schedule(schedule, s, stages, micro, p->actions[s]);
    for (bool moved = true; moved;) {
        moved = false;
        for (int s = 0; s < stages; s++) moved |= advance(p, s);
    }
    for (int s = 0; s < stages; s++) assert_int_equal(p->at[s], 2 * micro); /* nobody waits for ever */
}

static void schedules_take_the_least_time_and_hold_what_they_may(void **state)
{
    (void)state;
    static paper p;
    for (int stages = 1; stages <= MOST_STAGES; stages++)
        for (int micro = 1; micro <= MOST_MICRO; micro++)
            for (int schedule = TR_1F1B; schedule <= TR_GPIPE; schedule++) {
                carry_out(&p, (tr_pipeline_schedule)schedule, stages, micro);
                /* Bubbles are (p - 1)/(m + p - 1) of the time. */
                assert_int_equal(p.clock[0], (micro + stages - 1) * (FORWARD + BACKWARD));
                for (int s = 0; s < stages; s++) {
                    int held = schedule == TR_GPIPE || micro < stages - s ? micro : stages - s;
                    assert_int_equal(p.most[s], held);
                }
            }
}

/* ---- Against one device ------------------------------------------------------------------------------------------------- */

enum { STAGES = 3, ROWS = 24, STEPS = 3 };

static tr_tensor *mean_loss(tr_tensor *output, tr_tensor *target, void *user)
{
    (void)user;
    return tr_cross_entropy(output, target);
}

static void make_stages(tr_module *stages[STAGES])
{
    stages[0] = tr_sequential(tr_embedding(20, 12, .seed = 1), tr_dropout_layer(0.2), tr_linear(12, 16, .seed = 2));
    stages[1] = tr_sequential(tr_activation_layer(tr_gelu), tr_layer_norm(16), tr_linear(16, 16, .seed = 3), tr_dropout_layer(0.3));
    stages[2] = tr_sequential(tr_activation_layer(tr_tanh), tr_linear(16, 5, .seed = 4));
}

static tr_tensor *ids(void)
{
    return tr_cast(tr_affine(tr_rand(4, TR_SHAPE(ROWS, 3)), 19.9, 0), TR_I32);
}

static tr_tensor *targets(void)
{
    return tr_argmax(tr_randn(3, TR_SHAPE(ROWS, 3, 5)), 2);
}

static tr_status train_whole(tr_module *whole, double losses[STEPS])
{
    tr_optimizer *opt = tr_adamw(tr_parameters(whole), .lr = 1e-2);
    tr_tensor *x = ids(), *y = targets();
    for (int step = 0; step < STEPS; step++) {
        TR_SCOPE;
        TR__TRY(tr_seed(whole, 5, .step = (uint64_t)step, .first_sample = 7));
        tr_zero_grad(opt);
        tr_tensor *loss = tr_cross_entropy(tr_forward(whole, x), y);
        TR__TRY(tr_backward(loss));
        TR__TRY(tr_step(opt));
        losses[step] = tr_item(loss);
    }
    return TR_OK;
}

/* whole holds the stages: seeds go by its paths. x and y may be NULL where they are not needed. */
static tr_status train_pipe(tr_pipeline *pipe, tr_module *whole, tr_optimizer *opt, tr_tensor *x, tr_tensor *y,
    double losses[STEPS])
{
    for (int step = 0; step < STEPS; step++) {
        TR_SCOPE;
        TR__TRY(tr_seed(whole, 5, .step = (uint64_t)step, .first_sample = 7));
        tr_zero_grad(opt);
        TR__TRY(tr_pipeline_step(pipe, x, y, &losses[step]));
        TR__TRY(tr_step(opt));
    }
    return TR_OK;
}

static double difference(tr_tensor *a, tr_tensor *b)
{
    return tr_item(tr_max(tr_abs(tr_sub(tr_to(tr_detach(a), tr_cpu(0)), tr_to(tr_detach(b), tr_cpu(0))))));
}

/* How far apart two modules with the same names are. */
static double apart(tr_module *a, tr_module *b)
{
    tr_tensor_list *x = tr_parameters(a), *y = tr_parameters(b);
    double worst = tr_list_count(x) == tr_list_count(y) ? 0 : (double)INFINITY;
    for (int i = 0; i < tr_list_count(x); i++) worst = fmax(worst, difference(tr_list_at(x, i), tr_list_at(y, i)));
    return worst;
}

static void threads_are_like_one_device(void **state)
{
    (void)state;
    TR_SCOPE;
    double expected[STEPS], got[STEPS];
    tr_module *parts[STAGES], *one;
    make_stages(parts);
    one = tr_sequential_n(parts, STAGES);
    assert_int_equal(train_whole(one, expected), TR_OK);
    for (int schedule = TR_1F1B; schedule <= TR_GPIPE; schedule++)
        for (int micro = 1; micro <= 8; micro *= 2)
            for (int spread = 0; spread < 2; spread++) {
                TR_SCOPE;
                make_stages(parts);
                tr_module *whole = tr_sequential_n(parts, STAGES);
                for (int i = 0; spread && i < STAGES; i++) assert_int_equal(tr_module_to(parts[i], tr_cpu(i)), TR_OK);
                tr_pipeline *pipe = tr_pipeline_new(parts, STAGES, .loss = mean_loss, .micro_batches = micro,
                    .schedule = (tr_pipeline_schedule)schedule);
                tr_optimizer *opt = tr_adamw(tr_parameters(whole), .lr = 1e-2);
                assert_int_equal(train_pipe(pipe, whole, opt, ids(), targets(), got), TR_OK);
                for (int i = 0; i < STEPS; i++) assert_true(fabs(got[i] - expected[i]) < 1e-5);
                assert_true(apart(whole, one) < 2e-5);
            }
}

/* Under TR_NO_GRAD: the loss of one device, no gradients, and what one micro-batch takes at a time. */
static void forwards_alone_measure_a_batch(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *parts[STAGES], *whole;
    make_stages(parts);
    whole = tr_sequential_n(parts, STAGES);
    tr_pipeline *pipe = tr_pipeline_new(parts, STAGES, .loss = mean_loss, .micro_batches = 4);
    double loss, training;
    assert_int_equal(tr_seed(whole, 5), TR_OK);
    assert_int_equal(tr_pipeline_step(pipe, ids(), targets(), &training), TR_OK);
    tr_tensor *gradient = tr_grad(tr_list_at(tr_parameters(whole), 0)), *before = tr_clone(gradient);
    assert_int_equal(tr_eval(whole), TR_OK);
    {
        TR_NO_GRAD;
        assert_int_equal(tr_pipeline_step(pipe, ids(), targets(), &loss), TR_OK);
        assert_true(fabs(loss - tr_item(tr_cross_entropy(tr_forward(whole, ids()), targets()))) < 1e-5);
    }
    assert_true(fabs(loss - training) > 1e-5);
    assert_ptr_equal(tr_grad(tr_list_at(tr_parameters(whole), 0)), gradient);
    assert_true(difference(gradient, before) == 0);
    assert_int_equal(tr_pipeline_step(pipe, ids(), targets(), &training), TR_OK); /* with backwards again */
    assert_true(fabs(loss - training) < 1e-6 && difference(gradient, before) > 0);
}

/* A dropout in several places, and in two stages, draws the same numbers in all of them, as on one device; so does one in the
 * replicas of a stage. */
static void dropouts_may_stand_in_several_places(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_randn(3, TR_SHAPE(ROWS, 8)), *y = tr_argmax(tr_slice(x, 1, 0, 5), 1);
    for (int replicas = 1; replicas <= 2; replicas++) {
        tr_module *drop = tr_dropout_layer(0.5);
        tr_module *stages[] = {tr_sequential(tr_linear(8, 8, .seed = 1), drop, tr_linear(8, 8, .seed = 2), drop),
            tr_sequential(drop, tr_linear(8, 5, .seed = 3), tr_dropout_layer(0.3))};
        tr_module *whole = tr_sequential_n(stages, 2);
        assert_int_equal(tr_seed(whole, 5), TR_OK);
        double expected = tr_item(tr_cross_entropy(tr_forward(whole, x), y)), got;
        for (int i = 0; i < 2 && replicas > 1; i++) stages[i] = tr_data_parallel(stages[i], .count = replicas);
        tr_pipeline *pipe = tr_pipeline_new(stages, 2, .loss = mean_loss, .micro_batches = 4);
        assert_int_equal(tr_pipeline_step(pipe, x, y, &got), TR_OK);
        assert_true(fabs(got - expected) < 1e-5);
    }
}

static void gradients_add_up_and_nothing_stays_behind(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *stages[] = {tr_linear(1, 1, .no_bias = true), tr_activation_layer(tr_neg)};
    tr_tensor *w = tr_list_at(tr_parameters(stages[0]), 0);
    tr_pipeline *pipe = tr_pipeline_new(stages, 2, .loss = mean_loss);
    assert_int_equal(tr_status_of(pipe), TR_OK);
    FAILS(TR_INVALID, tr_pipeline_step(pipe, tr_ones(TR_SHAPE(8, 1)), NULL, NULL), "stage 1 on cpu:0, forward of micro-batch 0");
    size_t before, after, peak;
    tr_tensor *y = tr_zeros(TR_SHAPE(8), .dtype = TR_I64), *x = tr_ones(TR_SHAPE(8, 1));
    for (int i = 0; i < 3; i++) {
        TR_SCOPE;
        if (i == 1) tr__cpu_memory(0, &before, &peak);
        assert_int_equal(tr_pipeline_step(pipe, x, y, NULL), TR_OK);
    }
    tr__cpu_memory(0, &after, &peak);
    assert_int_equal(before, after);
    assert_non_null(tr_grad(w));
}

static tr_tensor *sum_loss(tr_tensor *output, tr_tensor *target, void *user)
{
    (void)target, (void)user;
    return tr_mean(output);
}

static void a_loss_may_do_without_targets(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *stages[] = {tr_linear(1, 1, .no_bias = true), tr_activation_layer(tr_neg)};
    tr_tensor *w = tr_list_at(tr_parameters(stages[0]), 0);
    tr_pipeline *pipe = tr_pipeline_new(stages, 2, .loss = sum_loss);
    for (int i = 1; i <= 2; i++) {
        assert_int_equal(tr_pipeline_step(pipe, tr_full(3, TR_SHAPE(8, 1)), NULL, NULL), TR_OK);
        assert_true(tr_item(tr_grad(w)) == -3 * i);
    }
}

/* A stage that refuses a micro-batch; another stage waits for it then. */
static tr_tensor *refuse(tr_tensor *x)
{
    if (tr_item(tr_slice(tr_reshape(x, TR_SHAPE(-1)), 0, 0, 1)) == 4) return tr_tensor_fail(TR_INVALID, "no fours");
    return x;
}

static void a_stage_that_fails_ends_the_others(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *stages[] = {tr_activation_layer(tr_neg), tr_sequential(tr_activation_layer(tr_neg), tr_activation_layer(refuse)),
        tr_linear(1, 1)};
    assert_int_equal(tr_module_to(stages[2], tr_cpu(1)), TR_OK);
    tr_pipeline *pipe = tr_pipeline_new(stages, 3, .loss = sum_loss);
    tr_tensor *x = tr_reshape(tr_arange(8, TR_F32, tr_cpu(0)), TR_SHAPE(8, 1));
    FAILS(TR_INVALID, tr_pipeline_step(pipe, x, NULL, NULL), "stage 1 on cpu:0, forward of micro-batch 2");
    assert_non_null(strstr(tr_error_message(), "no fours"));
    assert_int_equal(tr_pipeline_step(pipe, tr_neg(x), NULL, NULL), TR_OK); /* the next one is not disturbed */
}

static void wrong_arguments_are_errors(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *linear = tr_linear(2, 2), *ok[] = {linear, tr_linear(2, 2)}, *split[] = {tr_linear(2, 2), NULL};
    tr_module *tied[] = {linear, tr_sequential(linear)};
    FAILS(TR_INVALID, tr_status_of(tr_pipeline_new(ok, 0, .loss = sum_loss)), "at least 1");
    FAILS(TR_INVALID, tr_status_of(tr_pipeline_new(ok, 2)), ".loss");
    FAILS(TR_INVALID, tr_status_of(tr_pipeline_new(ok, 2, .loss = sum_loss, .micro_batches = -1)), "at least 1");
    FAILS(TR_INVALID, tr_status_of(tr_pipeline_new(split, 2, .loss = sum_loss)), "stage 1 is NULL");
    FAILS(TR_INVALID, tr_status_of(tr_pipeline_new(tied, 2, .loss = sum_loss)), "stages 0 and 1 share \"0.weight\"");
    tr_module *there = tr_linear(2, 2);
    assert_int_equal(tr_module_to(there, tr_cpu(1)), TR_OK);
    split[1] = tr_sequential(tr_linear(2, 2), there);
    FAILS(TR_DEVICE, tr_status_of(tr_pipeline_new(split, 2, .loss = sum_loss)), "\"0.weight\" on cpu:0 and \"1.weight\" on cpu:1");
    tr_pipeline *pipe = tr_pipeline_new(ok, 2, .loss = sum_loss);
    FAILS(TR_SHAPE, tr_pipeline_step(pipe, tr_ones(TR_SHAPE(6, 2)), NULL, NULL), "4 micro-batches do not divide the 6 rows of x: 3 would");
    FAILS(TR_SHAPE, tr_pipeline_step(pipe, tr_ones(TR_SHAPE(8, 2)), tr_ones(TR_SHAPE(4)), NULL), "different numbers of rows");
    FAILS(TR_INVALID, tr_pipeline_step(pipe, NULL, NULL, NULL), "x is NULL");
    FAILS(TR_SHAPE, tr_pipeline_step(pipe, tr_ones(TR_SCALAR), NULL, NULL), "scalar");
    FAILS(TR_SHAPE, tr_pipeline_step(pipe, tr_ones(TR_SHAPE(0, 2)), NULL, NULL), "a multiple of 4");
}

/* ---- Memory ---------------------------------------------------------------------------------------------------------------- */

/* What stage 0 of two holds at most, of 8 micro-batches: 2 with 1F1B, 8 with GPipe. On a device of its own, as peaks stay. */
static size_t peak_on(int device, tr_pipeline_schedule schedule)
{
    TR_SCOPE;
    tr_module *stages[] = {
        tr_sequential(tr_linear(4, 512), tr_activation_layer(tr_tanh), tr_activation_layer(tr_tanh)), /* few weights */
        tr_linear(512, 4),
    };
    assert_int_equal(tr_module_to(stages[0], tr_cpu(device)), TR_OK);
    tr_pipeline *pipe = tr_pipeline_new(stages, 2, .loss = sum_loss, .micro_batches = 8, .schedule = schedule);
    assert_int_equal(tr_pipeline_step(pipe, tr_ones(TR_SHAPE(1024, 4)), NULL, NULL), TR_OK);
    size_t in_use, peak;
    tr__cpu_memory(device, &in_use, &peak);
    return peak;
}

static void one_forward_one_backward_holds_less(void **state)
{
    (void)state;
    size_t gpipe = peak_on(2, TR_GPIPE), other = peak_on(3, TR_1F1B);
    assert_true(gpipe > 2 * other);
}

/* ---- Ranks ------------------------------------------------------------------------------------------------------------------ */

/* pp stages in dp copies: the copies share the batch. */
static void train_ranks(rank *r)
{
    int copies = r->world / STAGES;
    double expected[STEPS], got[STEPS];
    for (int schedule = TR_1F1B; schedule <= TR_GPIPE; schedule++) {
        TR_SCOPE;
        tr_module *one, *whole, *parts[STAGES];
        make_stages(parts);
        one = tr_sequential_n(parts, STAGES);
        OK(train_whole(one, expected));
        make_stages(parts);
        whole = tr_sequential_n(parts, STAGES);
        tr_mesh *mesh = tr_mesh_new(r->group, .pp = STAGES, .dp = copies);
        OK(tr_status_of(mesh));
        tr_group *pp = tr_mesh_group(mesh, TR_MESH_PP), *dp = tr_mesh_group(mesh, TR_MESH_DP);
        int here = tr_rank(pp);
        tr_module *stage = copies > 1 ? tr_ddp(parts[here], dp) : parts[here];
        tr_pipeline *pipe = tr_pipeline_new(&stage, 1, .loss = here == STAGES - 1 ? mean_loss : NULL, .micro_batches = 4,
            .schedule = (tr_pipeline_schedule)schedule, .group = pp);
        OK(tr_status_of(pipe));
        tr_optimizer *opt = tr_adamw(tr_parameters(stage), .lr = 1e-2);
        int64_t rows = ROWS / copies, first = rows * tr_rank(dp);
        for (int step = 0; step < STEPS; step++) {
            TR_SCOPE;
            OK(tr_seed(whole, 5, .step = (uint64_t)step, .first_sample = (uint64_t)(7 + first)));
            tr_zero_grad(opt);
            OK(tr_pipeline_step(pipe, here == 0 ? tr_slice(ids(), 0, first, first + rows) : NULL,
                here == STAGES - 1 ? tr_slice(targets(), 0, first, first + rows) : NULL, &got[step]));
            OK(tr_all_reduce(dp, &got[step], 1, .dtype = TR_F64, .op = TR_AVG));
            OK(tr_step(opt));
        }
        for (int i = 0; i < STEPS; i++) CHECK(fabs(got[i] - expected[i]) < 1e-5);
        tr_tensor_list *a = tr_parameters(parts[here]), *b = tr_parameters(one);
        for (int i = 0; i < tr_list_count(a); i++) {
            char name[64];
            snprintf(name, sizeof name, "%d.%s", here, tr_list_name(a, i));
            CHECK(difference(tr_list_at(a, i), tr_list_find(b, name)) < 2e-5);
        }
        TR_NO_GRAD;
        double loss;
        tr_tensor *gradient = tr_clone(tr_grad(tr_list_at(a, 0)));
        OK(tr_eval(one) == TR_OK ? tr_eval(whole) : TR_INTERNAL);
        OK(tr_pipeline_step(pipe, here == 0 ? ids() : NULL, here == STAGES - 1 ? targets() : NULL, &loss));
        CHECK(fabs(loss - tr_item(tr_cross_entropy(tr_forward(one, ids()), targets()))) < 1e-4);
        CHECK(difference(tr_grad(tr_list_at(a, 0)), gradient) == 0);
        OK(tr_mesh_leave(mesh));
    }
    OK(tr_leave(r->group));
}

static void ranks_are_like_one_device(void **state)
{
    (void)state;
    run(STAGES, train_ranks, NULL);
    run(2 * STAGES, train_ranks, NULL);
    run_tcp(STAGES, train_ranks, NULL, NULL);
}

static void step_otherwise(rank *r)
{
    tr_module *stage = tr_linear(1, 1);
    tr_pipeline *four = tr_pipeline_new(&stage, 1, .loss = sum_loss, .group = r->group, .micro_batches = 2 + 2 * r->number);
    CHECK(tr_pipeline_step(four, tr_ones(TR_SHAPE(4, 1)), NULL, NULL) == TR_MISMATCH);
    SAYS("pipeline: ranks differ: micro_batches is 2 on rank 0, 4 on rank 1");
    tr_pipeline *turns = tr_pipeline_new(&stage, 1, .loss = sum_loss, .group = r->group,
        .schedule = r->number ? TR_GPIPE : TR_1F1B);
    CHECK(tr_pipeline_step(turns, tr_ones(TR_SHAPE(4, 1)), NULL, NULL) == TR_MISMATCH);
    SAYS("pipeline: ranks differ: schedule is 1F1B on rank 0, GPipe on rank 1");
    tr_pipeline *same = tr_pipeline_new(&stage, 1, .loss = sum_loss, .group = r->group);
    OK(tr_pipeline_step(same, tr_ones(TR_SHAPE(4, 1)), NULL, NULL));
}

static void ranks_of_other_options_are_refused(void **state)
{
    (void)state;
    run(2, step_otherwise, NULL);
}

typedef struct odd_one {
    int rank;      /* runs forwards alone */
    int64_t width; /* of what goes between the stages: small messages go at once, large ones when they are received */
} odd_one;

/* Gradients must neither be waited for nor be taken for those of the next step. */
static void forget_the_gradients(rank *r)
{
    const odd_one *odd = r->arg;
    tr_module *stage = r->number ? tr_linear(odd->width, 1) : tr_linear(1, odd->width);
    tr_pipeline *pipe = tr_pipeline_new(&stage, 1, .loss = sum_loss, .group = r->group);
    OK(tr_pipeline_step(pipe, tr_ones(TR_SHAPE(4, 1)), NULL, NULL));
    bool grad = tr_set_grad(r->number != odd->rank);
    CHECK(tr_pipeline_step(pipe, tr_ones(TR_SHAPE(4, 1)), NULL, NULL) == (r->number ? TR_MISMATCH : TR_PEER));
    tr_set_grad(grad);
    SAYS("pipeline: stage 1 on cpu:0, forward of micro-batch 0: ");
    SAYS(odd->rank ? "this rank is under TR_NO_GRAD, rank 0 is not: all ranks are, or none"
                   : "this rank is not under TR_NO_GRAD, rank 0 is: all ranks are, or none");
    CHECK(tr_barrier(r->group) != TR_OK);
}

static void ranks_that_do_not_all_want_gradients_are_refused(void **state)
{
    (void)state;
    for (int odd = 0; odd < 2; odd++) {
        run(2, forget_the_gradients, &(odd_one){odd, 1});
        run(2, forget_the_gradients, &(odd_one){odd, 1 << 18});
    }
}

/* Else rank 1 would take the activations of the step that it has left out for those of the next one. */
static void refuse_a_batch(rank *r)
{
    tr_module *stage = tr_linear(1, 1);
    tr_pipeline *pipe = tr_pipeline_new(&stage, 1, .loss = sum_loss, .group = r->group);
    OK(tr_pipeline_step(pipe, tr_ones(TR_SHAPE(4, 1)), NULL, NULL));
    OK(tr_barrier(r->group)); /* rank 0 has the loss of that step */
    tr_status status = tr_pipeline_step(pipe, tr_ones(TR_SHAPE(4, 1)), r->number ? tr_ones(TR_SHAPE(3, 1)) : NULL, NULL);
    CHECK(status == (r->number ? TR_SHAPE : TR_PEER));
    SAYS("4 micro-batches do not divide the 3 rows of y");
    CHECK(tr_pipeline_step(pipe, tr_ones(TR_SHAPE(4, 1)), NULL, NULL) != TR_OK);
    tr_tensor *three = tr_ones(TR_SHAPE(3, 1)); /* a rank's own mistake is its own failure, whatever broke the group */
    CHECK(tr_pipeline_step(pipe, three, three, NULL) == TR_SHAPE);
    SAYS(r->number ? "do not divide the 3 rows of y" : "do not divide the 3 rows of x");
}

static void a_batch_that_one_rank_refuses_ends_the_step_on_all(void **state)
{
    (void)state;
    run(2, refuse_a_batch, NULL);
    run_tcp(2, refuse_a_batch, NULL, NULL);
}

static tr_tensor *no_loss(tr_tensor *output, tr_tensor *target, void *user)
{
    (void)target;
    return *(bool *)user ? tr_tensor_fail(TR_IO, "the loss is lost") : tr_sum(output);
}

/* In the first step the others would wait for the options of a rank whose pipeline could not be made. */
static void step_in_error(rank *r)
{
    bool fails = r->number == 1, lost = false;
    tr_module *stage = tr_linear(1, 1), *bad = tr_linear(0, 1);
    tr_tensor *x = tr_ones(TR_SHAPE(4, 1));
    tr_pipeline *pipes[] = {
        tr_pipeline_new(&stage, 1, .loss = sum_loss, .group = r->group, .micro_batches = fails ? -1 : 4),
        tr_pipeline_new(fails ? &bad : &stage, 1, .loss = sum_loss, .group = r->group),
        tr_pipeline_new(&stage, fails ? 0 : 1, .loss = sum_loss, .group = r->group),
    };
    const char *says[] = {"pipeline: -1 micro-batches", "linear: ", "pipeline: 0 stages"};
    for (int i = 0; i < 3; i++)
        for (int times = 0; times < 2; times++) {
            CHECK(tr_pipeline_step(pipes[i], x, NULL, NULL) == (fails ? TR_INVALID : TR_PEER));
            SAYS(says[i]);
            if (!fails) SAYS("rank 1 failed: ");
        }

    tr_pipeline *pipe = tr_pipeline_new(&stage, 1, .loss = no_loss, .user = &lost, .group = r->group);
    OK(tr_pipeline_step(pipe, x, NULL, NULL));
    OK(tr_barrier(r->group));
    lost = true;
    CHECK(tr_pipeline_step(pipe, x, NULL, NULL) == (r->number == r->world - 1 ? TR_IO : TR_PEER));
    SAYS("the loss is lost");
    CHECK(tr_barrier(r->group) != TR_OK);
}

static void a_pipeline_in_error_on_one_rank_fails_on_all(void **state)
{
    (void)state;
    run(3, step_in_error, NULL);
    run_tcp(2, step_in_error, NULL, NULL);
}

static void fail_at_once(rank *r)
{
    tr_module *stage = tr_linear(1, 1);
    CHECK(tr_status_of(tr_pipeline_new((tr_module *[]){stage, stage}, 2, .loss = sum_loss, .group = r->group)) == TR_INVALID);
    SAYS("its one stage, not 2");
    tr_pipeline *pipe = tr_pipeline_new(&stage, 1, .loss = sum_loss, .group = r->group);
    if (r->number == 0) {
        CHECK(tr_pipeline_step(pipe, tr_ones(TR_SHAPE(6, 1)), NULL, NULL) == TR_SHAPE);
    } else {
        CHECK(tr_pipeline_step(pipe, NULL, NULL, NULL) == TR_PEER);
        SAYS("rank 0");
        SAYS("4 micro-batches do not divide the 6 rows of x");
    }
    (void)!tr_leave(r->group);
}

static void a_rank_that_fails_first_is_named(void **state)
{
    (void)state;
    run(2, fail_at_once, NULL);
}

int main(void)
{
    setenv("TRIREME_CPU_DEVICES", "4", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedules_take_the_least_time_and_hold_what_they_may),
        cmocka_unit_test(threads_are_like_one_device),
        cmocka_unit_test(forwards_alone_measure_a_batch),
        cmocka_unit_test(dropouts_may_stand_in_several_places),
        cmocka_unit_test(gradients_add_up_and_nothing_stays_behind),
        cmocka_unit_test(a_loss_may_do_without_targets),
        cmocka_unit_test(a_stage_that_fails_ends_the_others),
        cmocka_unit_test(wrong_arguments_are_errors),
        cmocka_unit_test(one_forward_one_backward_holds_less),
        cmocka_unit_test(ranks_are_like_one_device),
        cmocka_unit_test(ranks_of_other_options_are_refused),
        cmocka_unit_test(ranks_that_do_not_all_want_gradients_are_refused),
        cmocka_unit_test(a_batch_that_one_rank_refuses_ends_the_step_on_all),
        cmocka_unit_test(a_pipeline_in_error_on_one_rank_fails_on_all),
        cmocka_unit_test(a_rank_that_fails_first_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
