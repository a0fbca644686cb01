/*
 * Optimizers whose state is bf16: rounding up as often as it has to be, by the random numbers of Philox, with the same
 * result from the kernels of every instruction set; training that learns as it does with f32 state; checkpoints; and
 * what is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "base/isa.h"
#include "base/rng.h"
#include "optim/bf16_state.h"

#include <trireme/trireme.h>

/* ---- Rounding ---------------------------------------------------------------------------------------------------- */

typedef void rounding(const tr__rounded *r);

enum { COUNT = 1000 }; /* no multiple of what a kernel takes at once */

static float number(int k, int i)
{
    static const float special[] = {0, -0.0f, INFINITY, -INFINITY, NAN, 1, 1e-40f, 3.4e38f, -3.0e38f};
    if (i < (int)(sizeof special / sizeof *special)) return special[i];
    tr__philox r = tr__philox_at(1, (uint64_t)k, (uint64_t)i);
    return ldexpf(tr__uniform(r.word[0]) - 0.5f, (int)(r.word[1] % 60) - 30);
}

/* As bf16_state.h has it, one number after the other. */
static uint16_t expected(uint64_t key, uint64_t counter, int k, int i, float x)
{
    static const uint16_t times[] = {1, 0x9e37, 0x79b9};
    tr__philox words = tr__philox_at(key, 0, counter + (uint64_t)i / 8);
    uint16_t half = (uint16_t)((words.word[i % 8 / 2] >> (16 * (i % 2))) * times[k]);
    if (isnan(x)) return (uint16_t)(tr__f32_to_bits(x) >> 16 | 0x40);
    return (uint16_t)((tr__f32_to_bits(x) + half) >> 16);
}

static void check_kernel(rounding *kernel, uint64_t counter)
{
    static float from[TR__STATES][TR__ROUNDED];
    static uint16_t to[TR__STATES][TR__ROUNDED];
    tr__rounded r = {.states = TR__STATES, .count = COUNT, .from = from, .key = 0x123456789abcdefu, .counter = counter};
    for (int k = 0; k < TR__STATES; k++) {
        r.to[k] = to[k];
        for (int i = 0; i < TR__ROUNDED; i++) from[k][i] = number(k, i);
        memset(to[k], 0x11, sizeof to[k]);
    }
    kernel(&r);
    for (int k = 0; k < TR__STATES; k++) {
        for (int i = 0; i < COUNT; i++) assert_int_equal(to[k][i], expected(r.key, counter, k, i, from[k][i]));
        for (int i = COUNT; i < TR__ROUNDED; i++) assert_int_equal(to[k][i], 0x1111);
    }
}

static void test_every_kernel_draws_what_philox_says(void **state)
{
    (void)state;
    const uint64_t counters[] = {0, 5, 0xfffffff0u, 0x1234567890u};
    for (int i = 0; i < 4; i++) {
        check_kernel(tr__round_generic, counters[i]);
#if defined(__x86_64__)
        if (tr__has_avx2()) check_kernel(tr__round_avx2, counters[i]);
        if (tr__has_avx512()) check_kernel(tr__round_avx512, counters[i]);
#endif
    }
}

/* 1 + f 2^-7 becomes 1 or 1 + 2^-7, the latter in a fraction f of all 65,536 cases, with a standard deviation of at
 * most 128. And two states of an element go up independently of each other. */
static void test_rounding_is_right_on_average(void **state)
{
    (void)state;
    for (int tenths = 0; tenths < 10; tenths++) {
        int up[2] = {0}, both = 0;
        for (uint64_t tile = 0; tile < 64; tile++) {
            static float from[TR__STATES][TR__ROUNDED];
            static uint16_t to[2][TR__ROUNDED];
            for (int i = 0; i < TR__ROUNDED; i++) from[0][i] = from[1][i] = 1 + (float)tenths * 0.1f * 0x1p-7f;
            tr__round_generic(&(tr__rounded){.states = 2, .count = TR__ROUNDED, .from = from, .to = {to[0], to[1]},
                .key = 9, .counter = tile * TR__ROUNDED / 8});
            for (int i = 0; i < TR__ROUNDED; i++) {
                up[0] += to[0][i] == 0x3f81;
                up[1] += to[1][i] == 0x3f81;
                both += to[0][i] == 0x3f81 && to[1][i] == 0x3f81;
                assert_true(to[0][i] == 0x3f80 || to[0][i] == 0x3f81);
            }
        }
        double f = tenths * 0.1, n = 64.0 * TR__ROUNDED;
        for (int k = 0; k < 2; k++)
            if (fabs(up[k] - f * n) > 700) fail_msg("state %d: %d of %g rounded up, not %g", k, up[k], n, f * n);
        if (fabs(both - f * f * n) > 1000) fail_msg("both: %d of %g rounded up, not %g", both, n, f * f * n);
    }
}

/* ---- Optimizers -------------------------------------------------------------------------------------------------- */

enum { KINDS = 5 };

static tr_optimizer *make_optimizer(int kind, tr_tensor_list *p, bool bf16)
{
    switch (kind) {
    case 0: return tr_sgd(p, .lr = 0.05, .momentum = 0.9, .bf16_state = bf16);
    case 1: return tr_adam(p, .lr = 5e-3, .bf16_state = bf16);
    case 2: return tr_adamw(p, .lr = 5e-3, .weight_decay = 0.1, .bf16_state = bf16);
    case 3: return tr_adamw(p, .lr = 5e-3, .amsgrad = true, .bf16_state = bf16);
    default: return tr_lion(p, .lr = 1e-3, .bf16_state = bf16);
    }
}

static tr_module *make_net(void)
{
    return tr_sequential(tr_linear(8, 64, .seed = 1), tr_activation_layer(tr_gelu), tr_linear(64, 5, .seed = 2));
}

static double step(tr_module *net, tr_optimizer *opt)
{
    TR_SCOPE;
    tr_tensor *x = tr_randn(50, TR_SHAPE(128, 8));
    tr_tensor *loss = tr_cross_entropy(tr_forward(net, x), tr_argmax(tr_slice(x, 1, 0, 5), 1));
    tr_zero_grad(opt);
    TR_CHECK(tr_backward(loss));
    TR_CHECK(tr_step(opt));
    return tr_item(loss);
}

/* The losses of 150 steps with either state lie close to each other, far below the 1.6 that they begin with. */
static void test_training_learns_as_much(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        double loss[2];
        for (int bf16 = 0; bf16 < 2; bf16++) {
            TR_SCOPE;
            tr_module *net = make_net();
            tr_optimizer *opt = make_optimizer(kind, tr_parameters(net), bf16);
            for (int i = 0; i < 150; i++) loss[bf16] = step(net, opt);
        }
        if (!(loss[0] < 0.6 && fabs(loss[1] - loss[0]) < 0.02 + 0.1 * loss[0]))
            fail_msg("kind %d: a loss of %g with state in bf16, %g in f32", kind, loss[1], loss[0]);
    }
}

/* What rounding to the nearest would lose: a second moment that is to fall by a thousandth in a step, less than bf16s
 * are apart. */
static void test_small_changes_are_not_lost(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *p = tr_zeros(TR_SHAPE(64, 64), .requires_grad = true);
    tr_tensor_list *list = tr_list_new();
    TR_CHECK(tr_list_add(list, "p", p));
    tr_optimizer *opt = tr_adam(list, .lr = 1e-3, .bf16_state = true);
    for (int i = 0; i < 1000; i++) {
        TR_SCOPE;
        tr_zero_grad(opt);
        TR_CHECK(tr_backward(tr_sum(i == 0 ? p : tr_affine(p, 0, 0))));
        TR_CHECK(tr_step(opt));
    }
    tr_tensor *v = tr_list_find(tr_optimizer_state(opt), "p.exp_avg_sq");
    assert_int_equal(tr_dtype_of(v), TR_BF16);
    double mean = tr_item(tr_mean(tr_cast(v, TR_F32))), exact = 1e-3 * pow(0.999, 999);
    if (fabs(mean / exact - 1) > 0.02) fail_msg("a second moment of %g on average, not %g", mean, exact);
}

static void copy_of(tr_tensor_list *list, float *to)
{
    for (int i = 0; i < tr_list_count(list); i++) {
        TR_SCOPE;
        TR_NO_GRAD;
        tr_tensor *t = tr_cast(tr_detach(tr_list_at(list, i)), TR_F32);
        TR_CHECK(tr_copy_out(t, to, (size_t)tr_numel(t) * sizeof *to));
        to += tr_numel(t);
    }
}

/* Three steps, and three more of an optimizer that has loaded what was saved after them: the same bits. */
static void test_a_checkpoint_goes_on_with_the_same_bits(void **state)
{
    (void)state;
    char folder[] = "/tmp/trireme-bf16-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/state.safetensors", folder);
    for (int kind = 0; kind < KINDS; kind++) {
        TR_SCOPE;
        static float weights[2][1000];
        tr_module *net = make_net();
        tr_optimizer *opt = make_optimizer(kind, tr_parameters(net), true);
        for (int i = 0; i < 3; i++) step(net, opt);
        tr_module *other = make_net();
        TR_CHECK(tr_load_state_dict(other, tr_state_dict(net)));
        TR_CHECK(tr_safetensors_save(path, tr_optimizer_state(opt)));
        tr_optimizer *next = make_optimizer(kind, tr_parameters(other), true);
        TR_CHECK(tr_optimizer_load(next, tr_safetensors_load(path)));
        for (int i = 0; i < 3; i++) {
            step(net, opt);
            step(other, next);
        }
        copy_of(tr_parameters(net), weights[0]);
        copy_of(tr_parameters(other), weights[1]);
        assert_memory_equal(weights[0], weights[1], sizeof weights[0]);
    }
    remove(path);
    remove(folder);
}

/* A training may take it up, or leave it out, when it goes on. */
static void test_state_loads_from_either_dtype(void **state)
{
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        TR_SCOPE;
        tr_module *net = make_net();
        tr_optimizer *from = make_optimizer(1, tr_parameters(net), bf16);
        tr_optimizer *into = make_optimizer(1, tr_parameters(net), !bf16);
        for (int i = 0; i < 3; i++) step(net, from);
        TR_CHECK(tr_optimizer_load(into, tr_optimizer_state(from)));
        tr_tensor *m[] = {tr_list_find(tr_optimizer_state(from), "0.weight.exp_avg"),
            tr_list_find(tr_optimizer_state(into), "0.weight.exp_avg")};
        assert_int_equal(tr_dtype_of(m[0]), bf16 ? TR_BF16 : TR_F32);
        assert_int_equal(tr_dtype_of(m[1]), bf16 ? TR_F32 : TR_BF16);
        double size = tr_item(tr_max(tr_abs(tr_cast(m[0], TR_F32))));
        assert_true(tr_item(tr_max(tr_abs(tr_sub(tr_cast(m[0], TR_F32), tr_cast(m[1], TR_F32))))) <= size * 0x1p-8);
    }
}

/* Threads divide a run, and each gets the random numbers of its elements. */
static void test_threads_do_not_matter(void **state)
{
    (void)state;
    static float weights[2][100000];
    for (int threads = 1; threads <= 2; threads++) {
        TR_SCOPE;
        TR_CHECK(tr_set_threads(threads));
        tr_tensor_list *list = tr_list_new();
        TR_CHECK(tr_list_add(list, "p", tr_require_grad(tr_randn(3, TR_SHAPE(250, 400)))));
        tr_optimizer *opt = tr_adamw(list, .bf16_state = true);
        for (int i = 0; i < 3; i++) {
            TR_SCOPE;
            tr_zero_grad(opt);
            TR_CHECK(tr_backward(tr_sum(tr_mul(tr_list_at(list, 0), tr_randn((uint64_t)i, TR_SHAPE(250, 400))))));
            TR_CHECK(tr_step(opt));
        }
        copy_of(list, weights[threads - 1]);
    }
    TR_CHECK(tr_set_threads(0));
    assert_memory_equal(weights[0], weights[1], sizeof weights[0]);
}

static void test_f64_is_refused(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor_list *list = tr_list_new();
    TR_CHECK(tr_list_add(list, "p", tr_zeros(TR_SHAPE(3), .dtype = TR_F64, .requires_grad = true)));
    assert_int_equal(tr_status_of(tr_adam(list, .bf16_state = true)), TR_DTYPE);
    assert_non_null(strstr(tr_error_message(), "adam: \"p\" is f64"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kernel_draws_what_philox_says),
        cmocka_unit_test(test_rounding_is_right_on_average),
        cmocka_unit_test(test_training_learns_as_much),
        cmocka_unit_test(test_small_changes_are_not_lost),
        cmocka_unit_test(test_a_checkpoint_goes_on_with_the_same_bits),
        cmocka_unit_test(test_state_loads_from_either_dtype),
        cmocka_unit_test(test_threads_do_not_matter),
        cmocka_unit_test(test_f64_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
