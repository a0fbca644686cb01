/*
 * The same steps as PyTorch: every optimizer from the same gradients, its parameters and its state after five and ten
 * steps, and going on from PyTorch's own state, from tests/recorded/optim.safetensors (record_optim.py says how it was
 * made). One parameter has gradients in every third step only, one from the third step on.
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

enum { PARAMETERS = 3, STEPS = 10, HALF = 5 };

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
        .initial_accumulator = 0.5, .eps = 1e-6))

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

/* p0, p1, p2 in a dtype: from the start when name is NULL, or as a case has them after so many steps. */
static tr_tensor_list *parameters_of(const tr_tensor_list *file, const char *name, int steps, tr_dtype dtype)
{
    tr_tensor_list *list = tr_list();
    for (int i = 0; i < PARAMETERS; i++) {
        tr_tensor *from = name ? recorded_find(file, "%s.at%d.p%d", name, steps, i) : recorded_find(file, "p%d", i);
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
            if (!takes_part(step, i)) continue;
            tr_tensor *p = tr_list_at(list, i);
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
    for (int i = 0; i < PARAMETERS; i++)
        assert_close(tr_list_at(list, i), recorded_find(file, "%s.at%d.p%d", name, steps, i), tolerance, name,
            tr_list_name(list, i));
}

/* What the file has of a case's state after so many steps, under an optimizer's names. */
static tr_tensor_list *recorded_state(const char *name, const tr_tensor_list *file, int steps)
{
    char prefix[64];
    int length = snprintf(prefix, sizeof prefix, "%s.at%d.", name, steps);
    tr_tensor_list *state = tr_list();
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
        tr_tensor_list *list = parameters_of(file, NULL, 0, dtype);
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
        tr_tensor_list *list = parameters_of(file, NULL, 0, TR_BF16), *saved = tr_list(), *values = tr_list();
        tr_optimizer *optimizer = cases[c].make(list);
        take_steps(optimizer, file, list, 0, HALF);
        copy_list(saved, tr_optimizer_state(optimizer));
        copy_list(values, list);
        take_steps(optimizer, file, list, HALF, STEPS);

        tr_tensor_list *again = parameters_of(file, NULL, 0, TR_BF16);
        tr_optimizer *restored = cases[c].make(again);
        for (int i = 0; i < PARAMETERS; i++) TR_CHECK(tr_copy_into(tr_list_at(again, i), tr_list_at(values, i)));
        TR_CHECK(tr_optimizer_load(restored, saved));
        take_steps(restored, file, again, HALF, STEPS);
        for (int i = 0; i < PARAMETERS; i++)
            assert_memory_equal(tr_data(tr_list_at(again, i)), tr_data(tr_list_at(list, i)),
                (size_t)tr_numel(tr_list_at(list, i)) * tr_dtype_size(TR_BF16));
    }
}

/* Of gradients that are all alike the deviation is 0, or by rounding less: the step is lr g / eps, and no NaN. */
static void test_centered_rmsprop_survives_gradients_that_are_all_alike(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *p = tr_ones(TR_SHAPE(64), .requires_grad = true), *g = tr_rand(5, TR_SHAPE(64));
    tr_tensor_list *list = tr_list();
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
    tr_tensor_list *p = parameters_of(recorded("optim"), NULL, 0, TR_F32);
    const struct {
        tr_optimizer *refused;
        const char *part;
    } wrong[] = {
        {tr_sgd(p, .momentum = -0.5), "sgd: momentum must be 0 or more and dampening finite, not -0.5 and 0"},
        {tr_sgd(p, .momentum = 0.9, .dampening = (double)NAN), "dampening finite"},
        {tr_sgd(p, .momentum = 0.9, .dampening = 0.1, .nesterov = true), "nesterov takes momentum and no dampening"},
        {tr_adam(p, .lr = -1), "adam: lr and weight_decay must be 0 or more, not -1 and 0"},
        {tr_adam(p, .weight_decay = (double)INFINITY), "adam: lr and weight_decay"},
        {tr_adam(p, .beta2 = 1), "adam: beta1 and beta2 must be in [0, 1), not 0.9 and 1"},
        {tr_adam(p, .eps = 1e-60), "adam: eps must be more than 0"},
        {tr_adamw(p, .weight_decay = -0.1), "adamw: lr and weight_decay must be 0 or more, not 0.001 and -0.1"},
        {tr_rmsprop(p, .momentum = -0.5), "lr, weight_decay and momentum must be 0 or more, not 0.01, 0 and -"},
        {tr_rmsprop(p, .alpha = 1.5), "rmsprop: alpha must be in [0, 1], not 1.5"},
        {tr_rmsprop(p, .eps = TR_ZERO), "rmsprop: eps must be more than 0, not 0"},
        {tr_adagrad(p, .lr_decay = -1), "adagrad: lr, weight_decay and lr_decay must be 0 or more, not 0.01, 0 and -"},
        {tr_adagrad(p, .initial_accumulator = -1), "adagrad: initial_accumulator must be 0 or more, not -1"},
        {tr_adagrad(p, .eps = (double)NAN), "adagrad: eps must be more than 0, not nan"},
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
        cmocka_unit_test(test_centered_rmsprop_survives_gradients_that_are_all_alike),
        cmocka_unit_test(test_values_out_of_their_domain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
