/* Evaluation: the score of any number of ranks is that of one, padding is not counted, modes come back, failures
 * are told. */
#include "comm_ranks.h"

#include <trireme/trireme.h>

#include <math.h>

enum { SAMPLES = 23, CLASSES = 4, DIM = 3 };

/* x: [SAMPLES, DIM], y: [SAMPLES], some of them ignored */
static tr_dataset *samples(void)
{
    tr_tensor *x = tr_randn(1, TR_SHAPE(SAMPLES, DIM)), *y = tr_empty(TR_SHAPE(SAMPLES), .dtype = TR_I64);
    for (int64_t i = 0; i < SAMPLES; i++) ((int64_t *)tr_data(y))[i] = i % 6 == 5 ? -100 : i * i % CLASSES;
    return tr_dataset_tensors(x, y);
}

static tr_module *model(void)
{
    return tr_sequential(tr_linear(DIM, CLASSES, .seed = 2), tr_dropout_layer(0.5));
}

/* The same, in one piece. */
static tr_score expected(void)
{
    TR_NO_GRAD;
    tr_tensor *x = tr_randn(1, TR_SHAPE(SAMPLES, DIM)), *y = tr_empty(TR_SHAPE(SAMPLES), .dtype = TR_I64);
    tr_module *net = model();
    TR_CHECK(tr_eval(net));
    tr_tensor *logits = tr_forward(net, x);
    TR_CHECK(tr_status_of(logits));
    tr_score s = {.count = SAMPLES - SAMPLES / 6};
    for (int64_t i = 0; i < SAMPLES; i++) {
        int64_t target = ((int64_t *)tr_data(y))[i] = i % 6 == 5 ? -100 : i * i % CLASSES, best = 0;
        const float *row = (const float *)tr_data(logits) + i * CLASSES;
        for (int64_t c = 1; c < CLASSES; c++) best = row[c] > row[best] ? c : best;
        s.correct += best == target;
    }
    s.loss = tr_item(tr_cross_entropy(logits, y));
    return s;
}

static void score_alike(rank *r)
{
    TR_SCOPE;
    const tr_score *want = r->arg;
    for (int workers = 0; workers < 2; workers++) {
        tr_loader *loader = tr_loader_new(samples(), .batch = 4, .workers = workers, .group = r->group);
        tr_score got = {0};
        OK(tr_evaluate(model(), loader, .group = r->group, .score = &got));
        CHECK(got.count == want->count && got.correct == want->correct);
        CHECK(fabs(got.loss - want->loss) < 1e-6);
        CHECK(got.accuracy == (double)want->correct / (double)want->count);
    }
}

static void test_any_number_of_ranks_scores_alike(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_score want = expected();
    for (int world = 1; world < 5; world++) run(world, score_alike, &want);
    run(RANKS_MOST, score_alike, &want);
}

/* Without .group it is the loader's, also by a sampler; where ranks are divided otherwise, nothing is counted. */
static void divided_as_the_loader(rank *r)
{
    TR_SCOPE;
    const tr_score *want = r->arg;
    tr_score got = {0};
    tr_loader *own = tr_loader_new(samples(), .batch = 4, .group = r->group), *whole = tr_loader_new(samples(), .batch = 4);
    OK(tr_evaluate(model(), own, .score = &got));
    CHECK(got.count == want->count && got.correct == want->correct);
    tr_sampler *by_group = tr_distributed_sampler(SAMPLES, .group = r->group);
    OK(tr_evaluate(model(), tr_loader_new(samples(), .sampler = by_group), .score = &got));
    CHECK(got.count == want->count && got.correct == want->correct);
    tr_sampler *by_numbers = tr_distributed_sampler(SAMPLES, .rank = r->number, .world_size = r->world);
    tr_loader *numbered = tr_loader_new(samples(), .sampler = by_numbers);
    OK(tr_evaluate(model(), numbered, .group = r->group, .score = &got));
    CHECK(got.count == want->count && got.correct == want->correct);

    CHECK(tr_evaluate(model(), whole, .group = r->group) == TR_INVALID);
    SAYS("each of the 3 ranks of .group would judge all samples: make the loader with the same .group");
    CHECK(tr_evaluate(model(), numbered) == TR_INVALID);
    SAYS("part of 3: evaluate with .group");
    tr_group *pair = tr_group_split(r->group, r->number == 2, r->number);
    OK(tr_status_of(pair));
    CHECK(tr_evaluate(model(), own, .group = pair) == TR_INVALID);
    SAYS(r->number == 2 ? "rank 2's of 3, and in .group this is rank 0 of 1" : "evaluate with the loader's group");
    OK(tr_evaluate(model(), whole, .score = &got));
    CHECK(got.count == want->count);
}

static void test_the_group_is_the_loaders(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_score want = expected();
    run(3, divided_as_the_loader, &want);
}

/* What somebody has taken of an epoch already, or what came before a failure, counts as well. */
static void test_an_epoch_is_gone_through_from_its_start(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_score want = expected(), got;
    for (int workers = 0; workers < 3; workers++) {
        tr_loader *loader = tr_loader_new(samples(), .batch = 4, .workers = workers);
        tr_batch b;
        TR_CHECK(tr_loader_next(loader, &b));
        TR_CHECK(tr_loader_next(loader, &b));
        TR_CHECK(tr_evaluate(model(), loader, .score = &got));
        assert_int_equal(got.count, want.count);
        assert_int_equal(tr_evaluate(tr_linear(DIM + 1, CLASSES), loader), TR_SHAPE);
        TR_CHECK(tr_evaluate(model(), loader, .score = &got));
        assert_int_equal(got.count, want.count);
        TR_CHECK(tr_loader_seek(loader, 3, 5));
        TR_CHECK(tr_evaluate(model(), loader, .score = &got));
        assert_int_equal(got.count, want.count);
    }
}

/* ---- Modes, other losses ----------------------------------------------------------------------------------------- */

static void test_modes_come_back(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *frozen = model(), *net = tr_sequential(tr_dropout_layer(0.1), frozen);
    TR_CHECK(tr_eval(frozen));
    tr_loader *loader = tr_loader_new(samples());
    TR_CHECK(tr_evaluate(net, loader));
    assert_true(tr_module_training(net));
    assert_false(tr_module_training(frozen));
    assert_true(tr_grad_enabled());
    tr_module *wrong = tr_linear(DIM + 1, CLASSES);
    FAILS(TR_SHAPE, tr_evaluate(wrong, loader), "linear");
    assert_true(tr_module_training(wrong));
}

static tr_tensor *squares(tr_tensor *output, tr_tensor *y, void *user)
{
    tr_tensor *d = tr_affine(tr_sub(output, y), *(double *)user, 0);
    return tr_mean(tr_mul(d, d));
}

static tr_tensor *no_mean(tr_tensor *output, tr_tensor *y, void *user)
{
    (void)y, (void)user;
    return output;
}

static void test_a_loss_of_its_own(void **state)
{
    (void)state;
    TR_SCOPE;
    double scale = 3;
    tr_tensor *x = tr_randn(3, TR_SHAPE(10, DIM)), *y = tr_randn(4, TR_SHAPE(10, CLASSES));
    tr_module *net = tr_linear(DIM, CLASSES, .seed = 5);
    tr_loader *loader = tr_loader_new(tr_dataset_tensors(x, y), .batch = 4);
    tr_score got;
    TR_CHECK(tr_evaluate(net, loader, .loss = squares, .user = &scale, .score = &got));
    assert_int_equal(got.count, 10);
    assert_true(isnan(got.accuracy));
    assert_true(fabs(got.loss - tr_item(squares(tr_forward(net, x), y, &scale))) < 1e-5);
    FAILS(TR_SHAPE, tr_evaluate(net, loader, .loss = no_mean), "[4, 4], not the batch's mean");
    FAILS(TR_INVALID, tr_evaluate(net, tr_loader_new(tr_dataset_tensors(x, NULL))), "no y");
    FAILS(TR_INVALID, tr_evaluate(net, loader), "evaluate: y is f32 [4, 4]: pass .loss, as without it cross-entropy");
    FAILS(TR_INVALID, tr_evaluate(NULL, loader), "model is NULL");
    FAILS(TR_INVALID, tr_evaluate(net, NULL), "loader is NULL");
    TR_CHECK(tr_evaluate(net, tr_loader_new(tr_dataset_slice(tr_dataset_tensors(x, y), 0, 0)), .score = &got));
    assert_true(got.count == 0 && isnan(got.loss));
}

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

static tr_status fail_at_ten(const tr_sample_call *call, tr_sample *out)
{
    if (call->index == 10) return tr_fail(TR_IO, "ten is lost");
    out->x = tr_zeros(TR_SHAPE(DIM));
    out->y = tr_scalar(1, TR_I64);
    return TR_OK;
}

static void fail_together(rank *r)
{
    TR_SCOPE;
    tr_loader *loader = tr_loader_new(tr_dataset_new(12, fail_at_ten), .batch = 2, .workers = 1, .group = r->group);
    tr_status status = tr_evaluate(model(), loader, .group = r->group);
    CHECK(status == (r->number == 1 ? TR_IO : TR_PEER)); /* sample 10 is rank 1's */
    SAYS(r->number == 1 ? "sample 10 of dataset: ten is lost" : "rank 1 failed: loader: sample 10 of dataset: ten is lost");
}

static void test_one_rank_fails_on_all(void **state)
{
    (void)state;
    run(3, fail_together, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_number_of_ranks_scores_alike),
        cmocka_unit_test(test_the_group_is_the_loaders),
        cmocka_unit_test(test_an_epoch_is_gone_through_from_its_start),
        cmocka_unit_test(test_modes_come_back),
        cmocka_unit_test(test_a_loss_of_its_own),
        cmocka_unit_test(test_one_rank_fails_on_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
