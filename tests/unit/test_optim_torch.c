/*
 * The same steps as PyTorch: every optimizer from the same gradients, its parameters and its state after five and ten
 * steps, and going on from PyTorch's own state, from tests/recorded/optim.safetensors (record_optim.py says how it was
 * made, and which of them PyTorch does not have). Some parameters have gradients in every third step only, or from the third
 * step on.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "recorded.h"

#include <trireme/trireme.h>

enum { PARAMETERS = 4, STEPS = 10, HALF = 5 };

/* The settings are record_optim.py's. */
#define CASES(X)                                                                                             \
    X(sgd, tr_sgd(p, .lr = 0.05, .weight_decay = 0.1))                                                       \
    X(sgd_momentum, tr_sgd(p, .lr = 0.05, .momentum = 0.9, .weight_decay = 0.1))                             \
    X(sgd_dampening, tr_sgd(p, .lr = 0.05, .momentum = 0.8, .dampening = 0.3))                               \
    X(sgd_nesterov, tr_sgd(p, .lr = 0.05, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true))          \
    X(adam, tr_adam(p))                                                                                      \
    X(adam_decay, tr_adam(p, .lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1))     \
    X(adam_amsgrad, tr_adam(p, .lr = 0.02, .beta2 = 0.5, .amsgrad = true))                                   \
    X(adamw, tr_adamw(p))                                                                                    \
    X(adamw_amsgrad, tr_adamw(p, .lr = 0.02, .beta2 = 0.5, .weight_decay = 0.1, .amsgrad = true))            \
    X(rmsprop, tr_rmsprop(p))                                                                                \
    X(rmsprop_momentum, tr_rmsprop(p, .lr = 0.02, .alpha = 0.9, .momentum = 0.8, .weight_decay = 0.1))       \
    X(rmsprop_centered, tr_rmsprop(p, .lr = 0.02, .alpha = 0.9, .centered = true, .eps = 1e-3))              \
    X(rmsprop_both, tr_rmsprop(p, .lr = 0.02, .alpha = 0.9, .centered = true, .momentum = 0.5, .eps = 1e-3)) \
    X(adagrad, tr_adagrad(p))                                                                                \
    X(adagrad_decay, tr_adagrad(p, .lr = 0.05, .lr_decay = 0.1, .weight_decay = 0.1,                         \
        .initial_accumulator = 0.5, .eps = 1e-6))                                                            \
    X(adamax, tr_adamax(p))                                                                                  \
    X(adamax_decay, tr_adamax(p, .lr = 0.02, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3, .weight_decay = 0.1))  \
    X(nadam, tr_nadam(p))                                                                                    \
    X(nadam_decay, tr_nadam(p, .lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1,                 \
        .momentum_decay = 0.5))                                                                              \
    X(nadam_decoupled, tr_nadam(p, .lr = 0.02, .weight_decay = 0.1, .decoupled = true))                      \
    X(radam, tr_radam(p))                                                                                    \
    X(radam_decay, tr_radam(p, .lr = 0.02, .beta1 = 0.8, .beta2 = 0.9, .weight_decay = 0.1))                 \
    X(radam_decoupled, tr_radam(p, .lr = 0.02, .beta2 = 0.95, .weight_decay = 0.1, .decoupled = true))       \
    X(adadelta, tr_adadelta(p))                                                                              \
    X(adadelta_decay, tr_adadelta(p, .lr = 0.5, .rho = 0.7, .eps = 1e-3, .weight_decay = 0.1))               \
    X(rprop, tr_rprop(p))                                                                                    \
    X(rprop_limits, tr_rprop(p, .lr = 0.1, .decrease = 0.4, .increase = 1.5, .least = 0.05, .most = 0.2))    \
    X(lion, tr_lion(p))                                                                                      \
    X(lion_decay, tr_lion(p, .lr = 0.02, .beta1 = 0.8, .beta2 = 0.9, .weight_decay = 0.1))                   \
    X(lamb, tr_lamb(p))                                                                                      \
    X(lamb_matrices, tr_lamb(p, .lr = 0.05, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3, .weight_decay = 0.1,    \
        .matrices_only = true))                                                                              \
    X(lars, tr_lars(p))                                                                                      \
    X(lars_decay, tr_lars(p, .lr = 0.5, .momentum = 0.8, .weight_decay = 0.1, .trust = 0.05))                \
    X(lars_matrices, tr_lars(p, .lr = 0.05, .weight_decay = 0.1, .trust = 0.1, .matrices_only = true))       \
    X(muon, tr_muon(p))                                                                                      \
    X(muon_decay, tr_muon(p, .lr = 0.02, .weight_decay = 0.05, .momentum = 0.8, .plain = true, .iterations = 3)) \
    X(muon_adamw, tr_muon(p, .lr = 0.02, .match_adamw = true))

#define MAKER(name, call)                               \
    static tr_optimizer *make_##name(tr_tensor_list *p) \
    {                                                   \
        return call;                                    \
    }
CASES(MAKER)

typedef struct optim_case {
    const char *name;
    tr_optimizer *(*make)(tr_tensor_list *parameters);
} optim_case;
#define ENTRY(name, call) {#name, make_##name},
static const optim_case cases[] = {CASES(ENTRY)};
enum { COUNT = sizeof cases / sizeof *cases };

/* Which parameters a case has: Muon only the matrices. */
static bool has(const char *name, int parameter)
{
    return strncmp(name, "muon", 4) != 0 || parameter == 0 || parameter == 3;
}

/* A case's parameters in a dtype: from the start when steps is 0, or as it has them after so many. */
static tr_tensor_list *parameters_of(const tr_tensor_list *file, const char *name, int steps, tr_dtype dtype)
{
    tr_tensor_list *list = tr_list_new();
    for (int i = 0; i < PARAMETERS; i++) {
        if (!has(name, i)) continue;
        tr_tensor *from = steps ? recorded_find(file, "%s.at%d.p%d", name, steps, i) : recorded_find(file, "p%d", i);
        tr_tensor *own = tr_empty(tr_shape_of(from), .dtype = dtype);
        TR_CHECK(tr_copy_into(own, from));
        char p[16];
        snprintf(p, sizeof p, "p%d", i);
        TR_CHECK(tr_list_add(list, p, tr_require_grad(own)));
    }
    return list;
}

static bool takes_part(int step, int parameter)
{
    return parameter == 1 ? step % 3 == 0 : parameter == 0 || step >= 2;
}

/* Steps [from, to): d(sum(p * g))/dp = g, rounded to the parameter's dtype. */
static void take_steps(tr_optimizer *optimizer, const tr_tensor_list *file, const tr_tensor_list *list, int from,
    int to)
{
    TR_CHECK(tr_status_of(optimizer));
    for (int step = from; step < to; step++) {
        TR_SCOPE;
        tr_zero_grad(optimizer);
        for (int i = 0; i < PARAMETERS; i++) {
            char name[16];
            snprintf(name, sizeof name, "p%d", i);
            tr_tensor *p = tr_list_find(list, name);
            if (!p || !takes_part(step, i)) continue;
            tr_tensor *g = tr_reshape(tr_slice(recorded_find(file, "grad.%d", i), 0, step, step + 1), tr_shape_of(p));
            TR_CHECK(tr_backward(tr_sum(tr_mul(p, tr_cast(g, tr_dtype_of(p))))));
        }
        TR_CHECK(tr_step(optimizer));
    }
}

static void assert_close(const tr_tensor *got, const tr_tensor *expected, double tolerance, const char *whose,
    const char *what)
{
    TR_SCOPE;
    double x[64], y[64];
    int64_t n = tr_numel(expected);
    assert_int_equal(tr_numel(got), n);
    TR_CHECK(tr_copy_out(tr_cast((tr_tensor *)got, TR_F64), x, (size_t)n * sizeof *x));
    TR_CHECK(tr_copy_out(tr_cast((tr_tensor *)expected, TR_F64), y, (size_t)n * sizeof *y));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(x[i] - y[i]) <= tolerance * (1 + fabs(y[i]))))
            fail_msg("%s: %s[%d] is %.17g, not %.17g", whose, what, (int)i, x[i], y[i]);
}

static void compare_parameters(const char *name, const tr_tensor_list *file, const tr_tensor_list *list, int steps,
    double tolerance)
{
    for (int i = 0; i < tr_list_count(list); i++)
        assert_close(tr_list_at(list, i), recorded_find(file, "%s.at%d.%s", name, steps, tr_list_name(list, i)), tolerance,
            name, tr_list_name(list, i));
}

/* What the file has of a case's state after so many steps, under an optimizer's names. */
static tr_tensor_list *recorded_state(const char *name, const tr_tensor_list *file, int steps)
{
    char prefix[64];
    int length = snprintf(prefix, sizeof prefix, "%s.at%d.", name, steps);
    tr_tensor_list *state = tr_list_new();
    for (int i = 0; i < tr_list_count(file); i++) {
        const char *full = tr_list_name(file, i);
        if (strncmp(full, prefix, (size_t)length) != 0 || !strchr(full + length, '.')) continue;
        TR_CHECK(tr_list_add(state, full + length, tr_list_at(file, i)));
    }
    return state;
}

static void compare_state(const char *name, const tr_tensor_list *file, tr_optimizer *optimizer, int steps,
    double tolerance)
{
    const tr_tensor_list *own = tr_optimizer_state(optimizer), *expected = recorded_state(name, file, steps);
    TR_CHECK(tr_status_of(own));
    assert_int_equal(tr_list_count(own), tr_list_count(expected));
    for (int i = 0; i < tr_list_count(own); i++) {
        const char *key = tr_list_name(own, i);
        const tr_tensor *there = tr_list_find(expected, key);
        if (!there) fail_msg("%s: PyTorch has no %s", name, key);
        assert_close(tr_list_at(own, i), there, tolerance, name, key);
    }
}

static void ten_steps(tr_dtype dtype, double tolerance)
{
    for (int c = 0; c < COUNT; c++) {
        TR_SCOPE;
        const tr_tensor_list *file = recorded("optim");
        tr_tensor_list *list = parameters_of(file, cases[c].name, 0, dtype);
        tr_optimizer *optimizer = cases[c].make(list);
        take_steps(optimizer, file, list, 0, HALF);
        compare_parameters(cases[c].name, file, list, HALF, tolerance);
        compare_state(cases[c].name, file, optimizer, HALF, tolerance);
        take_steps(optimizer, file, list, HALF, STEPS);
        compare_parameters(cases[c].name, file, list, STEPS, tolerance);
        compare_state(cases[c].name, file, optimizer, STEPS, tolerance);
    }
}

static void test_ten_steps_in_f64(void **state)
{
    (void)state;
    ten_steps(TR_F64, 1e-13);
}

static void test_ten_steps_in_f32(void **state)
{
    (void)state;
    ten_steps(TR_F32, 2e-6);
}

/* A parameter is rounded to 8 bits at every step, a gradient once. */
static void test_ten_steps_in_bf16(void **state)
{
    (void)state;
    ten_steps(TR_BF16, 10 * 0x1p-9);
}

static void test_going_on_from_pytorchs_state(void **state)
{
    (void)state;
    for (int c = 0; c < COUNT; c++) {
        TR_SCOPE;
        const tr_tensor_list *file = recorded("optim");
        tr_tensor_list *list = parameters_of(file, cases[c].name, HALF, TR_F64);
        tr_optimizer *optimizer = cases[c].make(list);
        TR_CHECK(tr_optimizer_load(optimizer, recorded_state(cases[c].name, file, HALF)));
        take_steps(optimizer, file, list, HALF, STEPS);
        compare_parameters(cases[c].name, file, list, STEPS, 1e-13);
        compare_state(cases[c].name, file, optimizer, STEPS, 1e-13);
    }
}

static void copy_list(tr_tensor_list *into, const tr_tensor_list *from)
{
    for (int i = 0; i < tr_list_count(from); i++) {
        tr_tensor *t = tr_list_at(from, i), *copy = tr_empty(tr_shape_of(t), .dtype = tr_dtype_of(t));
        TR_CHECK(tr_copy_into(copy, t));
        TR_CHECK(tr_list_add(into, tr_list_name(from, i), copy));
    }
}

/* Of bf16 parameters, whose state is f32: saved and restored in the middle, the same bits come out. */
static void test_a_restored_state_continues_exactly(void **state)
{
    (void)state;
    for (int c = 0; c < COUNT; c++) {
        TR_SCOPE;
        const tr_tensor_list *file = recorded("optim");
        tr_tensor_list *list = parameters_of(file, cases[c].name, 0, TR_BF16), *saved = tr_list_new(), *values = tr_list_new();
        tr_optimizer *optimizer = cases[c].make(list);
        take_steps(optimizer, file, list, 0, HALF);
        copy_list(saved, tr_optimizer_state(optimizer));
        copy_list(values, list);
        take_steps(optimizer, file, list, HALF, STEPS);

        tr_tensor_list *again = parameters_of(file, cases[c].name, 0, TR_BF16);
        tr_optimizer *restored = cases[c].make(again);
        for (int i = 0; i < tr_list_count(again); i++)
            TR_CHECK(tr_copy_into(tr_list_at(again, i), tr_list_at(values, i)));
        TR_CHECK(tr_optimizer_load(restored, saved));
        take_steps(restored, file, again, HALF, STEPS);
        for (int i = 0; i < tr_list_count(again); i++)
            assert_memory_equal(tr_data(tr_list_at(again, i)), tr_data(tr_list_at(list, i)),
                (size_t)tr_numel(tr_list_at(list, i)) * tr_dtype_size(TR_BF16));
    }
}

/* PyTorch's Muon iterates in bf16, ours in f32: steps of 0.02 in directions whose elements differ by a few hundredths. */
static void test_muon_is_as_near_to_pytorchs_as_bf16_lets_it(void **state)
{
    (void)state;
    TR_SCOPE;
    const tr_tensor_list *file = recorded("optim");
    tr_tensor_list *list = parameters_of(file, "muon", 0, TR_F32);
    tr_optimizer *optimizer = tr_muon(list, .lr = 0.02);
    take_steps(optimizer, file, list, 0, STEPS);
    compare_parameters("muon_bf16", file, list, STEPS, 4e-3);
}

/* A group's steps are those of an optimizer with its settings, in one pass or several; a schedule reaches all groups. */
static void test_groups_are_as_optimizers_of_their_own(void **state)
{
    (void)state;
    TR_SCOPE;
    const tr_tensor_list *file = recorded("optim");
    tr_tensor_list *list = parameters_of(file, "adamw", 0, TR_F64), *alone = parameters_of(file, "adamw", 0, TR_F64);
    tr_tensor_list *slow = tr_list_new(), *rest = tr_list_new(), *twins = tr_list_new();
    for (int i = 0; i < PARAMETERS; i++) {
        TR_CHECK(tr_list_add(i % 2 ? rest : twins, tr_list_name(alone, i), tr_list_at(alone, i)));
        if (i % 2 == 0) TR_CHECK(tr_list_add(slow, tr_list_name(list, i), tr_list_at(list, i)));
    }
    tr_optimizer *grouped = tr_adamw(list, .lr = 0.02), *a = tr_adamw(twins, .lr = 0.005, .weight_decay = 0.3);
    tr_optimizer *b = tr_adamw(rest, .lr = 0.02);
    TR_CHECK(tr_param_group(grouped, slow, .lr_scale = 0.25, .weight_decay = 0.3));
    take_steps(grouped, file, list, 0, HALF);
    take_steps(a, file, twins, 0, HALF);
    take_steps(b, file, rest, 0, HALF);
    TR_CHECK(tr_set_lr(grouped, 0.04));
    TR_CHECK(tr_set_lr(a, 0.01));
    TR_CHECK(tr_set_lr(b, 0.04));
    take_steps(grouped, file, list, HALF, STEPS);
    take_steps(a, file, twins, HALF, STEPS);
    take_steps(b, file, rest, HALF, STEPS);
    for (int i = 0; i < PARAMETERS; i++) assert_close(tr_list_at(list, i), tr_list_at(alone, i), 0, "groups", "p");
}

static void test_groups_that_do_not_fit(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor_list *list = parameters_of(recorded("optim"), "sgd", 0, TR_F32), *other = tr_list_new(), *some = tr_list_new();
    tr_optimizer *sgd = tr_sgd(list), *rprop = tr_rprop(list);
    TR_CHECK(tr_list_add(some, "mine", tr_list_at(list, 1)));
    TR_CHECK(tr_list_add(other, "mine", tr_list_at(list, 0)));
    TR_CHECK(tr_list_add(other, "foreign", tr_ones(TR_SHAPE(2), .requires_grad = true)));
    assert_int_equal(tr_param_group(sgd, other, .lr_scale = 7), TR_NOT_FOUND);
    assert_non_null(strstr(tr_error_message(), "\"foreign\" is not a parameter of the optimizer"));
    assert_int_equal(tr_param_group(sgd, some, .lr_scale = -1), TR_INVALID);
    assert_int_equal(tr_param_group(sgd, NULL), TR_INVALID);
    assert_int_equal(tr_param_group(rprop, some, .weight_decay = 0.1), TR_UNSUPPORTED);
    TR_CHECK(tr_param_group(rprop, some, .lr_scale = 2, .weight_decay = 0));
    assert_int_equal(tr_status_of(tr_muon(list)), TR_SHAPE);
    assert_non_null(strstr(tr_error_message(), "muon: \"p1\" is [11]: it takes parameters of 2 dimensions"));
}

/* Of gradients that are all alike the deviation is 0, or by rounding less: the step is lr g / eps, and no NaN. */
static void test_centered_rmsprop_survives_gradients_that_are_all_alike(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *p = tr_ones(TR_SHAPE(64), .requires_grad = true), *g = tr_rand(5, TR_SHAPE(64));
    tr_tensor_list *list = tr_list_new();
    TR_CHECK(tr_list_add(list, "p", p));
    tr_optimizer *optimizer = tr_rmsprop(list, .alpha = 0.5, .centered = true);
    for (int i = 0; i < 100; i++) {
        TR_SCOPE;
        tr_zero_grad(optimizer);
        TR_CHECK(tr_backward(tr_sum(tr_mul(p, g))));
        TR_CHECK(tr_step(optimizer));
    }
    assert_true(isfinite(tr_item(tr_sum(p))));
}

static void test_values_out_of_their_domain(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor_list *p = parameters_of(recorded("optim"), "sgd", 0, TR_F32);
    const struct {
        tr_optimizer *refused;
        const char *part;
    } wrong[] = {
        {tr_sgd(p, .momentum = -0.5), "sgd: momentum must be 0 or more, not -0.5"},
        {tr_sgd(p, .momentum = 0.9, .dampening = (double)NAN), "sgd: dampening must be finite, not nan"},
        {tr_sgd(p, .momentum = 0.9, .dampening = 0.1, .nesterov = true), "nesterov takes momentum and no dampening"},
        {tr_adam(p, .lr = -1), "adam: lr must be 0 or more, not -1"},
        {tr_adam(p, .weight_decay = (double)INFINITY), "adam: weight_decay must be 0 or more, not inf"},
        {tr_adam(p, .beta2 = 1), "adam: beta2 must be in [0, 1), not 1"},
        {tr_adam(p, .eps = 1e-60), "adam: eps must be more than 0, not 1e-60"},
        {tr_adamw(p, .weight_decay = -0.1), "adamw: weight_decay must be 0 or more, not -0.1"},
        {tr_rmsprop(p, .momentum = -0.5), "rmsprop: momentum must be 0 or more, not -0.5"},
        {tr_rmsprop(p, .alpha = 1.5), "rmsprop: alpha must be in [0, 1], not 1.5"},
        {tr_rmsprop(p, .eps = 0), "rmsprop: eps must be more than 0, not 0"},
        {tr_adagrad(p, .lr_decay = -1), "adagrad: lr_decay must be 0 or more, not -1"},
        {tr_adagrad(p, .initial_accumulator = -1), "adagrad: initial_accumulator must be 0 or more, not -1"},
        {tr_adagrad(p, .eps = (double)NAN), "adagrad: eps must be more than 0, not nan"},
        {tr_adamax(p, .beta1 = -0.1), "adamax: beta1 must be in [0, 1), not -0.1"},
        {tr_nadam(p, .momentum_decay = -1), "nadam: momentum_decay must be 0 or more, not -1"},
        {tr_adadelta(p, .rho = 1.5), "adadelta: rho must be in [0, 1], not 1.5"},
        {tr_rprop(p, .increase = 0.9), "rprop: decrease must be between 0 and 1 and increase more than 1, not 0.5 and 0.9"},
        {tr_rprop(p, .least = 3, .most = 2), "rprop: least must not be more than most, 3 and 2"},
        {tr_lion(p, .beta2 = 1), "lion: beta2 must be in [0, 1), not 1"},
        {tr_lars(p, .trust = -1), "lars: trust must be more than 0, not -1"},
        {tr_muon(p, .iterations = -1), "muon: iterations must be in 1 ... 100, not -1"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(tr_status_of(wrong[i].refused), TR_INVALID);
        if (!strstr(tr_error_message(), wrong[i].part))
            fail_msg("\"%s\" lacks \"%s\"", tr_error_message(), wrong[i].part);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ten_steps_in_f64),
        cmocka_unit_test(test_ten_steps_in_f32),
        cmocka_unit_test(test_ten_steps_in_bf16),
        cmocka_unit_test(test_going_on_from_pytorchs_state),
        cmocka_unit_test(test_a_restored_state_continues_exactly),
        cmocka_unit_test(test_muon_is_as_near_to_pytorchs_as_bf16_lets_it),
        cmocka_unit_test(test_groups_are_as_optimizers_of_their_own),
        cmocka_unit_test(test_groups_that_do_not_fit),
        cmocka_unit_test(test_centered_rmsprop_survives_gradients_that_are_all_alike),
        cmocka_unit_test(test_values_out_of_their_domain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
