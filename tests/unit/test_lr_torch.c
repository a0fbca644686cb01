/* Learning rates against those of PyTorch's schedulers, from tests/recorded/schedules.safetensors (record_schedules.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "recorded.h"

#include <trireme/trireme.h>

enum { STEPS = 40 };
static const double LR = 0.5;

static double step_lr(int64_t i) { return tr_step_lr(i, LR, 7, .gamma = 0.5); }
static double multi_step(int64_t i)
{
    return tr_multi_step_lr(i, LR, ((const int64_t[]){5, 20, 20, 33}), .count = 4, .gamma = 0.3);
}
static double exponential(int64_t i) { return tr_exponential_lr(i, LR, 0.9); }
static double cosine(int64_t i) { return tr_cosine_lr(i, LR, STEPS, .min_lr = 0.01); }
static double warmup(int64_t i) { return tr_warmup_lr(i, LR, 8); }
static double linear(int64_t i) { return tr_linear_lr(i, LR, 12); }
static double linear_down(int64_t i) { return tr_linear_lr(i, LR, 30, .from = 1, .to = 0); }
static double polynomial(int64_t i) { return tr_polynomial_lr(i, LR, 30, .power = 2); }
static double one_cycle(int64_t i) { return tr_one_cycle_lr(i, LR, STEPS); }
static double one_cycle_linear(int64_t i)
{
    return tr_one_cycle_lr(i, LR, STEPS, .rise = 0.25, .linear = true, .divide = 10, .final_divide = 100);
}
static double one_cycle_three(int64_t i) { return tr_one_cycle_lr(i, LR, STEPS, .three_phase = true); }

static double rising(int64_t i, void *lr) { return tr_linear_lr(i, *(double *)lr, 5, .from = 0.1); }
static double falling(int64_t i, void *lr) { return tr_polynomial_lr(i, *(double *)lr, 20); }
static double constant(int64_t i, void *lr) { return (void)i, 0.05 * *(double *)lr; }
static double sequential(int64_t i)
{
    double lr = LR;
    const tr_lr_phase phases[] = {{5, rising, &lr}, {23, falling, &lr}, {1, constant, &lr}};
    return tr_sequential_lr(i, phases, 3);
}

static const struct {
    const char *name;
    double (*lr)(int64_t step);
} cases[] = {
    {"step", step_lr}, {"multi_step", multi_step}, {"exponential", exponential}, {"cosine", cosine}, {"warmup", warmup},
    {"linear", linear}, {"linear_down", linear_down}, {"polynomial", polynomial}, {"one_cycle", one_cycle},
    {"one_cycle_linear", one_cycle_linear}, {"one_cycle_three", one_cycle_three}, {"sequential", sequential},
};

static void assert_rate(const char *name, const tr_tensor *recorded, int64_t step, double lr)
{
    double expected = ((const double *)tr_data(recorded))[step];
    if (!(fabs(lr - expected) <= 1e-13)) fail_msg("%s: at step %d it is %.17g, not %.17g", name, (int)step, lr, expected);
}

static void test_rates_are_pytorchs(void **state)
{
    (void)state;
    const tr_tensor_list *file = recorded("schedules");
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int64_t i = 0; i < STEPS; i++)
            assert_rate(cases[c].name, recorded_find(file, "%s", cases[c].name), i, cases[c].lr(i));
}

/* Between the steps its memory goes through a copy, as a checkpoint would take it. */
static void test_plateaus_are_pytorchs(void **state)
{
    (void)state;
    const tr_tensor_list *file = recorded("schedules");
    const double *metric = tr_data(recorded_find(file, "metric"));
    tr_plateau kept[3] = {{0}};
    for (int64_t i = 0; i < STEPS; i++) {
        tr_plateau now[3] = {kept[0], kept[1], kept[2]};
        double m = metric[i];
        assert_rate("plateau", recorded_find(file, "plateau"), i, tr_plateau_lr(&now[0], m, LR, .patience = 2, .factor = 0.5));
        assert_rate("plateau_cooldown", recorded_find(file, "plateau_cooldown"), i, tr_plateau_lr(&now[1], m, LR, .patience = 1,
            .cooldown = 3, .threshold = 0.02, .absolute = true, .min_lr = 0.002));
        assert_rate("plateau_max", recorded_find(file, "plateau_max"), i, tr_plateau_lr(&now[2], m, LR, .patience = -1,
            .factor = 0.8, .threshold = 0.05, .maximize = true));
        for (int k = 0; k < 3; k++) kept[k] = now[k];
    }
}

/* A measurement that is NaN does not count: the next one is better. */
static void test_a_plateau_that_begins_with_nan(void **state)
{
    (void)state;
    tr_plateau plateau = {0};
    for (int i = 0; i < 20; i++)
        assert_true(tr_plateau_lr(&plateau, i ? 1.0 / i : (double)NAN, 1.0, .patience = 2) == 1);
    assert_true(plateau.best == 1.0 / 19);
    for (int i = 0; i < 3; i++) (void)tr_plateau_lr(&plateau, (double)NAN, 1.0, .patience = 2);
    assert_true(fabs(plateau.lr - 0.1) < 1e-12 && plateau.best == 1.0 / 19);
}

/* As ReduceLROnPlateau: a rate below .min_lr is not raised, a reduction by 1e-8 or less is not made, and infinity is no better than
 * nothing. */
static void test_a_plateau_only_reduces(void **state)
{
    (void)state;
    tr_plateau below = {0}, small = {0}, diverged = {0};
    for (int i = 0; i < 5; i++) {
        assert_true(tr_plateau_lr(&below, 1.0, 1e-3, .patience = -1, .min_lr = 1e-2) == 1e-3);
        assert_true(tr_plateau_lr(&small, 1.0, 1e-8, .patience = -1) == 1e-8);
    }
    assert_true(tr_plateau_lr(&diverged, (double)INFINITY, 1.0, .patience = -1) == 0.1);
    assert_true(diverged.best == (double)INFINITY);
}

static void test_before_after_and_without_sense(void **state)
{
    (void)state;
    assert_true(tr_warmup_lr(-3, 1, 4) == 0 && tr_warmup_lr(5, 1, 0) == 1);
    assert_true(tr_linear_lr(1000, 1.0, 10, .to = 0.5) == 0.5 && tr_polynomial_lr(1000, 1.0, 10) == 0);
    assert_true(fabs(tr_one_cycle_lr(1000, 1.0, 10) - 4e-6) < 1e-18);
    assert_true(isnan(tr_one_cycle_lr(3, 1.0, 10, .rise = 1.5)) && isnan(tr_sequential_lr(0, NULL, 0)));
    assert_true(tr_one_cycle_lr(0, 1.0, 10, .rise = 0) <= 1);
    assert_true(tr_one_cycle_lr(0, 1.0, 10, .rise = 0.1) == 1); /* up in one step, the first */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rates_are_pytorchs),
        cmocka_unit_test(test_plateaus_are_pytorchs),
        cmocka_unit_test(test_a_plateau_that_begins_with_nan),
        cmocka_unit_test(test_a_plateau_only_reduces),
        cmocka_unit_test(test_before_after_and_without_sense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
