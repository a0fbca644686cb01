/*
 * Optimizers against plain C in double: over parameters with gaps between them in the arena, some without a gradient in
 * some steps, in f32, f64 and bf16; saving and restoring; clipping; the schedule.
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
#include "base/rng.h"
#include "optim/optimizer.h"
#include "warnings.h"

#include <trireme/trireme.h>

enum { PARAMETERS = 5, MOST = 40 * 50, STEPS = 7 };

/* 33 leaves a gap of 31 in the arena, 64 none; a scalar; a matrix that spans several blocks of work. */
static const int64_t sizes[PARAMETERS][2] = {{33, 0}, {64, 0}, {40, 50}, {1, 0}, {7, 9}};

static void assert_refused(tr_status got, tr_status status, const char *part)
{
    assert_int_equal(got, status);
    if (!strstr(tr_error_message(), part)) fail_msg("\"%s\" lacks \"%s\"", tr_error_message(), part);
}

static int64_t numel(int k)
{
    return sizes[k][0] * (sizes[k][1] ? sizes[k][1] : 1);
}

static tr_tensor_list *make_parameters(tr_dtype dtype)
{
    tr_tensor_list *list = tr_list_new();
    for (int k = 0; k < PARAMETERS; k++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", k);
        tr_shape shape = {sizes[k][1] ? 2 : 1, {sizes[k][0], sizes[k][1]}};
        tr_tensor *t = tr_cast(tr_randn(100 + (uint64_t)k, shape), dtype);
        TR_CHECK(tr_list_add(list, name, tr_require_grad(t)));
    }
    return list;
}

static double gradient_of(int step, int k, int64_t i)
{
    tr__philox r = tr__philox_at(7, (uint64_t)(step * PARAMETERS + k), (uint64_t)i);
    return (double)tr__uniform(r.word[0]) - 0.4;
}

/* Parameter 1 takes part in the first and every third step only, so it has a step count of its own. */
static bool takes_part(int step, int k)
{
    return k != 1 || step % 3 == 0;
}

/* Leaves gradient_of() at the parameters by a backward: d(sum(p * c))/dp = c, rounded to the dtype. */
static void give_gradients(const tr_tensor_list *list, int step)
{
    TR_SCOPE;
    for (int k = 0; k < PARAMETERS; k++) {
        if (!takes_part(step, k)) continue;
        tr_tensor *p = tr_list_at(list, k);
        double values[MOST];
        for (int64_t i = 0; i < numel(k); i++) values[i] = gradient_of(step, k, i);
        tr_tensor *c = tr_cast(tr_from(values, tr_shape_of(p), .dtype = TR_F64), tr_dtype_of(p));
        TR_CHECK(tr_backward(tr_sum(tr_mul(p, c))));
    }
}

/* What is compared with: a rule on one element in double, with the gradient as the parameter's dtype has it. */
typedef struct settings {
    bool adamw;
    double lr, decay, a, b, eps; /* a, b: beta1, beta2, or momentum, dampening */
    bool nesterov, matrices_only;
} settings;

typedef struct model {
    double p[PARAMETERS][MOST], m[PARAMETERS][MOST], v[PARAMETERS][MOST];
    int steps[PARAMETERS];
} model;

static double rounded(double x, tr_dtype dtype)
{
    if (dtype == TR_F64) return x;
    return dtype == TR_F32 ? (double)(float)x : (double)tr__bf16_to_f32(tr__f32_to_bf16((float)x));
}

static void adamw_element(const settings *s, double decay, int t, double g, double *p, double *m, double *v)
{
    *p *= 1 - s->lr * decay;
    *m = s->a * *m + (1 - s->a) * g;
    *v = s->b * *v + (1 - s->b) * g * g;
    *p -= s->lr * (*m / (1 - pow(s->a, t))) / (sqrt(*v / (1 - pow(s->b, t))) + s->eps);
}

static void sgd_element(const settings *s, double decay, int t, double g, double *p, double *m)
{
    g += decay * *p;
    if (s->a != 0) {
        *m = t == 1 ? g : s->a * *m + (1 - s->b) * g;
        g = s->nesterov ? g + s->a * *m : *m;
    }
    *p -= s->lr * g;
}

static void model_step(model *o, const settings *s, int step, tr_dtype dtype)
{
    for (int k = 0; k < PARAMETERS; k++) {
        if (!takes_part(step, k)) continue;
        int t = ++o->steps[k];
        double decay = s->matrices_only && !sizes[k][1] ? 0 : s->decay;
        for (int64_t i = 0; i < numel(k); i++) {
            double g = rounded(gradient_of(step, k, i), dtype);
            if (s->adamw)
                adamw_element(s, decay, t, g, &o->p[k][i], &o->m[k][i], &o->v[k][i]);
            else
                sgd_element(s, decay, t, g, &o->p[k][i], &o->m[k][i]);
            o->p[k][i] = rounded(o->p[k][i], dtype);
        }
    }
}

static void read_parameters(const tr_tensor_list *list, model *o)
{
    for (int k = 0; k < PARAMETERS; k++) {
        const tr_tensor *t = tr_list_at(list, k);
        for (int64_t i = 0; i < numel(k); i++) o->p[k][i] = tr__load(t->dtype, tr__ptr(t), i);
    }
}

static tr_optimizer *make_optimizer(const settings *s, tr_tensor_list *list)
{
    if (!s->adamw)
        return tr_sgd(list, .lr = s->lr, .momentum = s->a, .dampening = s->b, .weight_decay = s->decay,
            .nesterov = s->nesterov);
    return tr_adamw(list, .lr = s->lr, .beta1 = s->a, .beta2 = s->b, .eps = s->eps,
        .weight_decay = s->decay, .decay_matrices_only = s->matrices_only);
}

static void compare(const tr_tensor_list *list, const model *expected, double tolerance)
{
    model *got = calloc(1, sizeof *got);
    read_parameters(list, got);
    for (int k = 0; k < PARAMETERS; k++)
        for (int64_t i = 0; i < numel(k); i++)
            if (!(fabs(got->p[k][i] - expected->p[k][i]) <= tolerance * (1 + fabs(expected->p[k][i]))))
                fail_msg("p%d[%d] is %.9g, not %.9g", k, (int)i, got->p[k][i], expected->p[k][i]);
    free(got);
}

static void run_against_model(const settings *s, tr_dtype dtype, double tolerance)
{
    TR_SCOPE;
    tr_tensor_list *list = make_parameters(dtype);
    model *expected = calloc(1, sizeof *expected);
    read_parameters(list, expected);
    tr_optimizer *optimizer = make_optimizer(s, list);
    TR_CHECK(tr_status_of(optimizer));
    for (int step = 0; step < STEPS; step++) {
        tr_zero_grad(optimizer);
        give_gradients(list, step);
        TR_CHECK(tr_step(optimizer));
        model_step(expected, s, step, dtype);
    }
    compare(list, expected, tolerance);
    free(expected);
}

static const settings rules[] = {
    {.adamw = true, .lr = 0.01, .decay = 0.1, .a = 0.9, .b = 0.95, .eps = 1e-8},
    {.adamw = true, .lr = 0.01, .decay = 0.1, .a = 0.9, .b = 0.999, .eps = 1e-6, .matrices_only = true},
    {.adamw = true, .lr = 0.01, .a = 0.9, .b = 0.999, .eps = 1e-8},
    {.lr = 0.05},
    {.lr = 0.05, .decay = 0.1},
    {.lr = 0.05, .decay = 0.1, .a = 0.9},
    {.lr = 0.05, .a = 0.9, .b = 0.3},
    {.lr = 0.05, .decay = 0.01, .a = 0.9, .nesterov = true},
};

static void test_rules_in_f32(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) run_against_model(&rules[i], TR_F32, 2e-6);
}

static void test_rules_in_f64(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) run_against_model(&rules[i], TR_F64, 1e-13);
}

/* Where f32 and f64 round to different bf16 neighbours, they are a 2^-8 apart, and remain so for the steps to come. */
static void test_rules_in_bf16(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) run_against_model(&rules[i], TR_BF16, 2 * 0x1p-8);
}

static void test_mixed_dtypes_in_one_optimizer(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *a = tr_ones(TR_SHAPE(3), .requires_grad = true);
    tr_tensor *b = tr_ones(TR_SHAPE(3), .dtype = TR_F64, .requires_grad = true);
    tr_tensor_list *list = tr_list_new();
    TR_CHECK(tr_list_add(list, "a", a));
    TR_CHECK(tr_list_add(list, "b", b));
    tr_optimizer *optimizer = tr_sgd(list, .lr = 0.5);
    TR_CHECK(tr_backward(tr_sum(a)));
    TR_CHECK(tr_backward(tr_sum(b)));
    TR_CHECK(tr_step(optimizer));
    assert_true(((float *)tr_data(a))[2] == 0.5f);
    assert_true(((double *)tr_data(b))[2] == 0.5);
}

/* ---- Runs over the arena ---------------------------------------------------------------------------------------- */

static int stretches(const tr_optimizer *optimizer, bool alike)
{
    tr__stretch s;
    int n = 0;
    for (int i = 0; tr__next_stretch(optimizer, alike, &i, &s);) n++;
    return n;
}

static void test_a_step_is_one_pass(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor_list *list = make_parameters(TR_F32);
    tr_optimizer *optimizer = tr_adamw(list);
    assert_int_equal(stretches(optimizer, true), 0);
    give_gradients(list, 0); /* to all */
    assert_int_equal(stretches(optimizer, true), 1);
    TR_CHECK(tr_step(optimizer));
    tr_zero_grad(optimizer);
    assert_int_equal(stretches(optimizer, true), 0);
    give_gradients(list, 1); /* to all but p1 */
    assert_int_equal(stretches(optimizer, true), 2);
    TR_CHECK(tr_step(optimizer));
    give_gradients(list, 0); /* p1 is a step behind from now on */
    assert_int_equal(stretches(optimizer, true), 3);
    assert_int_equal(stretches(optimizer, false), 1);
}

/* Two optimizers share the arena that the first one built; each touches its own parameters only. */
static void test_two_optimizers_over_one_arena(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor_list *list = make_parameters(TR_F32), *outer = tr_list_new(), *inner = tr_list_new();
    TR_CHECK(tr_status_of(tr_sgd(list)));
    for (int k = 0; k < PARAMETERS; k++)
        TR_CHECK(tr_list_add(k == 2 ? inner : outer, tr_list_name(list, k), tr_list_at(list, k)));
    tr_optimizer *a = tr_adamw(outer, .lr = 0.1), *b = tr_sgd(inner, .lr = 1, .momentum = 0.9);
    model *before = calloc(1, sizeof *before);
    read_parameters(list, before);
    give_gradients(list, 0);
    assert_int_equal(stretches(a, true), 2);
    TR_CHECK(tr_step(b));
    for (int64_t i = 0; i < numel(2); i++) before->p[2][i] -= (double)(float)gradient_of(0, 2, i);
    compare(list, before, 1e-6);
    TR_CHECK(tr_step(a));
    const float *p2 = tr_data(tr_list_at(list, 2));
    assert_true(fabs((double)p2[5] - before->p[2][5]) < 1e-6);
    const float *p0 = tr_data(tr_list_at(list, 0));
    assert_true(fabs((double)p0[5] - before->p[0][5]) > 0.05);
    free(before);
}

static void test_backward_refuses_weights_that_a_step_changed(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *w = tr_ones(TR_SHAPE(2, 2), .requires_grad = true);
    tr_tensor_list *list = tr_list_new();
    TR_CHECK(tr_list_add(list, "w", w));
    tr_optimizer *optimizer = tr_sgd(list, .lr = 1);
    tr_tensor *x = tr_ones(TR_SHAPE(2, 2), .requires_grad = true);
    tr_tensor *early = tr_sum(tr_matmul(x, w));
    TR_CHECK(tr_backward(tr_sum(w)));
    TR_CHECK(tr_step(optimizer));
    assert_int_not_equal(tr_backward(early), TR_OK);
}

/* A generator's and a discriminator's in one arena: a step of one is no step of the other, whatever view was saved. */
static void test_a_step_leaves_the_versions_of_others(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor_list *all = make_parameters(TR_F32), *one = tr_list_new();
    TR_CHECK(tr_status_of(tr_sgd(all)));
    TR_CHECK(tr_list_add(one, "p", tr_list_at(all, 1)));
    tr_optimizer *optimizer = tr_sgd(one, .lr = 1);
    for (int k = 0; k < 3; k++) {
        tr_tensor *p = tr_list_at(all, k), *flat = tr_reshape(p, TR_SHAPE(-1)), *end = tr_slice(flat, 0, -1, tr_numel(p));
        tr_tensor *y = tr_sum(tr_mul(p, p)), *z = tr_sum(tr_mul(end, end));
        tr_tensor *moving = tr_list_at(one, 0);
        TR_CHECK(tr_backward(tr_sum(moving)));
        TR_CHECK(tr_step(optimizer));
        assert_int_equal(tr_backward(y), k == 1 ? TR_STATE : TR_OK);
        assert_int_equal(tr_backward(z), k == 1 ? TR_STATE : TR_OK);
    }
    tr_tensor *p = tr_list_at(all, 2), *y = tr_sum(tr_mul(p, p));
    TR_CHECK(tr_fill(tr_slice(p, 0, 0, 1), 1));
    assert_int_equal(tr_backward(y), TR_STATE);
}

/* Rules that go by the sign alone do not hide that a gradient was NaN. */
static void test_nan_is_not_a_sign(void **state)
{
    (void)state;
    for (int lion = 0; lion < 2; lion++) {
        TR_SCOPE;
        tr_tensor_list *list = tr_list_new();
        tr_tensor *p = tr_ones(TR_SHAPE(2), .requires_grad = true);
        TR_CHECK(tr_list_add(list, "p", p));
        tr_optimizer *optimizer = lion ? tr_lion(list, .lr = 0.25) : tr_rprop(list, .lr = 0.25);
        float gradient[2] = {1, NAN};
        TR_CHECK(tr_backward(p, .gradient = tr_from(gradient, TR_SHAPE(2))));
        TR_CHECK(tr_step(optimizer));
        const float *values = tr_data(p);
        assert_true(values[0] == 0.75f && isnan(values[1]));
    }
}

/* ---- Saving and restoring --------------------------------------------------------------------------------------- */

static void copy_list(tr_tensor_list *into, const tr_tensor_list *from)
{
    for (int i = 0; i < tr_list_count(from); i++) {
        tr_tensor *t = tr_list_at(from, i), *copy = tr_empty(tr_shape_of(t), .dtype = tr_dtype_of(t));
        TR_CHECK(tr_copy_into(copy, t));
        TR_CHECK(tr_list_add(into, tr_list_name(from, i), copy));
    }
}

static void steps_from(tr_optimizer *optimizer, const tr_tensor_list *list, int from, int to)
{
    for (int step = from; step < to; step++) {
        tr_zero_grad(optimizer);
        give_gradients(list, step);
        TR_CHECK(tr_step(optimizer));
    }
}

static void continue_from_state(const settings *s, tr_dtype dtype)
{
    TR_SCOPE;
    tr_tensor_list *list = make_parameters(dtype), *saved = tr_list_new(), *values = tr_list_new();
    tr_optimizer *optimizer = make_optimizer(s, list);
    steps_from(optimizer, list, 0, 3);
    copy_list(saved, tr_optimizer_state(optimizer));
    copy_list(values, list);
    steps_from(optimizer, list, 3, STEPS);

    tr_tensor_list *again = make_parameters(dtype);
    tr_optimizer *restored = make_optimizer(s, again);
    for (int k = 0; k < PARAMETERS; k++) TR_CHECK(tr_copy_into(tr_list_at(again, k), tr_list_at(values, k)));
    TR_CHECK(tr_optimizer_load(restored, saved));
    steps_from(restored, again, 3, STEPS);
    for (int k = 0; k < PARAMETERS; k++)
        assert_memory_equal(tr_data(tr_list_at(again, k)), tr_data(tr_list_at(list, k)),
            (size_t)numel(k) * tr_dtype_size(dtype));
}

static void test_a_restored_state_continues_exactly(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        continue_from_state(&rules[i], TR_F32);
        continue_from_state(&rules[i], TR_BF16);
    }
}

static void test_state_names_and_what_does_not_fit(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor_list *list = make_parameters(TR_F32);
    tr_optimizer *adamw = tr_adamw(list), *sgd = tr_sgd(list, .momentum = 0.9), *plain = tr_sgd(list);
    steps_from(adamw, list, 0, 2);
    tr_tensor_list *saved = tr_optimizer_state(adamw);
    assert_int_equal(tr_list_count(saved), 3 * PARAMETERS);
    assert_string_equal(tr_list_name(saved, 6), "p2.exp_avg");
    assert_string_equal(tr_list_name(saved, 7), "p2.exp_avg_sq");
    assert_string_equal(tr_list_name(saved, 8), "p2.step");
    assert_int_equal(tr_size(tr_list_at(saved, 6), 1), 50);
    assert_true(tr_item(tr_list_at(saved, 8)) == 2);
    assert_true(tr_item(tr_list_find(saved, "p1.step")) == 1);
    assert_int_equal(tr_list_count(tr_optimizer_state(plain)), 0);
    TR_CHECK(tr_optimizer_load(plain, tr_list_new()));
    assert_refused(tr_optimizer_load(sgd, saved), TR_NOT_FOUND, "p0.momentum_buffer");

    tr_tensor_list *bad = tr_list_new();
    for (int i = 0; i < tr_list_count(saved); i++)
        TR_CHECK(tr_list_add(bad, tr_list_name(saved, i),
            i == 5 ? tr_scalar(-3, TR_I64) : tr_full(5, tr_shape_of(tr_list_at(saved, i)))));
    assert_refused(tr_optimizer_load(adamw, bad), TR_FORMAT, "p1.step is -3");
    assert_true(tr_item(tr_list_find(tr_optimizer_state(adamw), "p0.step")) == 2);
}

/* ---- Clipping --------------------------------------------------------------------------------------------------- */

static void clip_in(tr_dtype dtype, double tolerance)
{
    TR_SCOPE;
    tr_tensor_list *list = make_parameters(dtype);
    tr_optimizer *optimizer = tr_sgd(list);
    give_gradients(list, 1); /* p1 has none */
    double expected = 0;
    for (int k = 0; k < PARAMETERS; k++)
        for (int64_t i = 0; takes_part(1, k) && i < numel(k); i++)
            expected += pow(rounded(gradient_of(1, k, i), dtype), 2);
    expected = sqrt(expected);
    double norm, after;
    TR_CHECK(tr_clip_grad_norm(optimizer, 2 * expected, &norm));
    assert_true(fabs(norm - expected) <= 1e-12 * expected);
    TR_CHECK(tr_clip_grad_norm(optimizer, 0.25, NULL));
    TR_CHECK(tr_clip_grad_norm(optimizer, INFINITY, &after));
    assert_true(fabs(after - 0.25) <= tolerance);
    assert_true(tr_grad(tr_list_at(list, 1)) == NULL);
    tr_tensor *g = tr_grad(tr_list_at(list, 2));
    double first = tr__load(dtype, tr_data(g), 0), was = rounded(gradient_of(1, 2, 0), dtype);
    assert_true(fabs(first - was * 0.25 / expected) <= tolerance * fabs(was));
}

static void test_clipping(void **state)
{
    (void)state;
    clip_in(TR_F32, 1e-6);
    clip_in(TR_F64, 1e-6);
    clip_in(TR_BF16, 0x1p-9);
}

static void test_the_norm_does_not_depend_on_threads(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *w = tr_require_grad(tr_randn(1, TR_SHAPE(300, 1000)));
    tr_tensor_list *list = tr_list_new();
    TR_CHECK(tr_list_add(list, "w", w));
    tr_optimizer *optimizer = tr_sgd(list);
    TR_CHECK(tr_backward(tr_sum(tr_mul(w, tr_randn(2, TR_SHAPE(300, 1000))))));
    double one, three;
    TR_CHECK(tr_set_threads(1));
    TR_CHECK(tr_clip_grad_norm(optimizer, 1e9, &one));
    TR_CHECK(tr_set_threads(3));
    TR_CHECK(tr_clip_grad_norm(optimizer, 1e9, &three));
    TR_CHECK(tr_set_threads(0));
    assert_true(one == three);
}

static void test_a_norm_that_is_not_finite_changes_nothing(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor_list *list = make_parameters(TR_F32);
    tr_optimizer *optimizer = tr_sgd(list);
    give_gradients(list, 0);
    float *g = tr_data(tr_grad(tr_list_at(list, 4)));
    g[3] = NAN;
    float before = *(float *)tr_data(tr_grad(tr_list_at(list, 0)));
    double norm;
    assert_refused(tr_clip_grad_norm(optimizer, 0.1, &norm), TR_INVALID, "\"p4\"");
    assert_true(isnan(norm));
    assert_true(before == *(float *)tr_data(tr_grad(tr_list_at(list, 0))));
    assert_refused(tr_clip_grad_norm(optimizer, 0, &norm), TR_INVALID, "max_norm");
}

/* ---- Arguments and the schedule --------------------------------------------------------------------------------- */

static double first_of(tr_tensor *t)
{
    return (double)((const float *)tr_data(t))[0];
}

/* With momentum and decay, which alone would move a weight without a gradient. */
static void test_what_is_frozen_stays(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *body = tr_linear(3, 3), *net = tr_sequential(body, tr_linear(3, 2));
    tr_tensor *weight = tr_list_find(tr_parameters(body), "weight"), *x = tr_randn(1, TR_SHAPE(4, 3));
    tr_optimizer *opt = tr_sgd(tr_parameters(net), .lr = 0.1, .momentum = 0.9, .weight_decay = 0.1);
    double start = first_of(weight), stopped = 0;
    tr_tensor *late = NULL;
    for (int step = 0; step < 4; step++) {
        if (step != 2) tr_zero_grad(opt);
        tr_tensor *loss = tr_sum(tr_forward(net, x));
        if (step == 1) {
            late = tr_sum(tr_forward(net, x));
            TR_CHECK(tr_freeze(body, true)); /* between forward and backward: the gradient comes, but does not count */
            stopped = first_of(weight);
            assert_true(stopped != start);
            TR_CHECK(tr_backward(late));
        }
        TR_CHECK(tr_backward(loss));
        if (step == 2) assert_false(tr_requires_grad(weight));
        if (step == 3) assert_null(tr_grad(weight)); /* none is computed */
        double norm;
        TR_CHECK(tr_clip_grad_norm(opt, 1, &norm));
        TR_CHECK(tr_step(opt));
        if (step) assert_true(first_of(weight) == stopped);
    }
    /* Optimizers may be made after it, and then let it go. */
    tr_optimizer *other = tr_adamw(tr_parameters(net), .lr = 0.1);
    TR_CHECK(tr_status_of(other));
    TR_CHECK(tr_freeze(body, false));
    tr_zero_grad(other);
    TR_CHECK(tr_backward(tr_sum(tr_forward(net, x))));
    TR_CHECK(tr_step(other));
    assert_true(first_of(weight) != stopped);
    assert_int_equal(tr_freeze(NULL, true), TR_INVALID);
}

/* Of each value the one that was given last counts. */
static void test_groups_may_overlap(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *net = tr_linear(1, 1, .no_bias = true);
    tr_tensor_list *all = tr_parameters(net);
    tr_tensor *w = tr_list_at(all, 0);
    tr_optimizer *opt = tr_sgd(all, .lr = 1);
    TR_CHECK(tr_fill(w, 1));
    TR_CHECK(tr_param_group(opt, all, .lr_scale = 0.25));
    TR_CHECK(tr_param_group(opt, all, .weight_decay = 0.5));
    TR_CHECK(tr_backward(tr_sum(tr_affine(w, 0, 0))));
    TR_CHECK(tr_step(opt)); /* w -= 0.25 * 0.5 * w */
    assert_true(first_of(w) == 0.875);
    TR_CHECK(tr_param_group(opt, all, .lr_scale = 0));
    TR_CHECK(tr_step(opt));
    assert_true(first_of(w) == 0.875);
}

static void test_wrong_arguments(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor_list *list = make_parameters(TR_F32), *halves = tr_list_new(), *twice = tr_list_new(), *fixed = tr_list_new();
    assert_refused(tr_status_of(tr_adamw(tr_list_new())), TR_INVALID, "no parameters");
    assert_refused(tr_status_of(tr_adamw(NULL)), TR_INVALID, "no parameters");
    assert_refused(tr_status_of(tr_adamw(list, .beta1 = 1)), TR_INVALID, "beta1");
    assert_refused(tr_status_of(tr_adamw(list, .eps = 0)), TR_INVALID, "eps");
    assert_refused(tr_status_of(tr_sgd(list, .lr = -1)), TR_INVALID, "lr");
    assert_refused(tr_status_of(tr_sgd(list, .nesterov = true)), TR_INVALID, "nesterov");
    TR_CHECK(tr_list_add(halves, "h", tr_zeros(TR_SHAPE(2), .dtype = TR_F16, .requires_grad = true)));
    assert_refused(tr_status_of(tr_sgd(halves)), TR_DTYPE, "\"h\" is f16");
    TR_CHECK(tr_list_add(twice, "a", tr_list_at(list, 0)));
    TR_CHECK(tr_list_add(twice, "b", tr_list_at(list, 0)));
    assert_refused(tr_status_of(tr_sgd(twice)), TR_INVALID, "\"a\" and \"b\"");
    TR_CHECK(tr_list_add(fixed, "c", tr_zeros(TR_SHAPE(2))));
    tr_optimizer *bad = tr_sgd(fixed);
    assert_refused(tr_step(bad), TR_INVALID, "\"c\"");
    tr_zero_grad(bad);
    assert_refused(tr_set_lr(bad, 1), TR_INVALID, "\"c\"");
    tr_optimizer *good = tr_adamw(list);
    assert_true(tr_lr(good) == 1e-3);
    TR_CHECK(tr_set_lr(good, 0.5));
    assert_true(tr_lr(good) == 0.5);
    assert_refused(tr_set_lr(NULL, 1), TR_INVALID, "NULL");
    assert_refused(tr_set_lr(good, (double)NAN), TR_INVALID, "learning rate");
}

static void test_cosine_schedule(void **state)
{
    (void)state;
    double first = tr_cosine_lr(0, 1.0, 100, .warmup_steps = 10, .min_lr = 0.1);
    assert_true(fabs(first - 0.1) < 1e-12); /* lr / warmup_steps */
    assert_true(tr_cosine_lr(9, 1.0, 100, .warmup_steps = 10, .min_lr = 0.1) == 1);
    assert_true(tr_cosine_lr(10, 1.0, 100, .warmup_steps = 10, .min_lr = 0.1) == 1);
    assert_true(fabs(tr_cosine_lr(55, 1.0, 100, .warmup_steps = 10, .min_lr = 0.1) - 0.55) < 1e-12);
    assert_true(tr_cosine_lr(100, 1.0, 100, .warmup_steps = 10, .min_lr = 0.1) == 0.1);
    assert_true(tr_cosine_lr(5000, 1.0, 100, .warmup_steps = 10, .min_lr = 0.1) == 0.1);
    assert_true(tr_cosine_lr(0, 1.0, 100) == 1);
    double before = 2;
    for (int i = 10; i <= 100; i++) {
        double lr = tr_cosine_lr(i, 1.0, 100, .warmup_steps = 10);
        assert_true(lr < before || i == 10);
        before = lr;
    }
}

static void test_schedules_in_steps(void **state)
{
    (void)state;
    assert_true(tr_step_lr(0, 0.5, 10) == 0.5 && tr_step_lr(9, 0.5, 10) == 0.5);
    assert_true(fabs(tr_step_lr(10, 0.5, 10) - 0.05) < 1e-15);
    assert_true(tr_step_lr(29, 0.5, 10, .gamma = 0.5) == 0.125);
    assert_true(isnan(tr_step_lr(3, 0.5, 0)));
    const int64_t milestones[] = {30, 80, 80};
    double before = tr_multi_step_lr(29, 1.0, milestones, .count = 3, .gamma = 0.5);
    double between = tr_multi_step_lr(30, 1.0, milestones, .count = 3, .gamma = 0.5);
    double after = tr_multi_step_lr(80, 1.0, milestones, .count = 3, .gamma = 0.5);
    assert_true(before == 1 && between == 0.5 && after == 0.125); /* a milestone that stands twice counts twice */
    assert_true(fabs(tr_multi_step_lr(79, 1.0, milestones, .count = 3) - 0.1) < 1e-15);
    assert_true(tr_exponential_lr(0, 0.5, 0.9) == 0.5 && tr_exponential_lr(3, 0.5, 0.5) == 0.0625);
}

/* ---- A loop without a scope -------------------------------------------------------------------------------------- */

static void step_on(tr_module *net, tr_optimizer *opt, int64_t rows)
{
    tr_tensor *loss = tr_mean(tr_forward(net, tr_zeros(TR_SHAPE(rows, 64))));
    tr_zero_grad(opt);
    TR_CHECK(tr_backward(loss));
    TR_CHECK(tr_step(opt));
}

/* rows: of 256 bytes each, which a step leaves behind where it has no scope. */
static const char *said_after(int steps, int64_t rows, bool scope)
{
    TR_SCOPE;
    tr_module *net = tr_linear(64, 1, .seed = 1);
    tr_optimizer *opt = tr_sgd(tr_parameters(net), .lr = 0.1);
    warnings_keep();
    for (int i = 0; i < steps; i++) {
        if (scope) tr_scope_push();
        step_on(net, opt, rows);
        if (scope) tr_scope_pop();
    }
    warnings_end();
    return warnings_kept();
}

static void test_a_forgotten_scope_is_told_once(void **state)
{
    (void)state;
    const int64_t large = 3000; /* 77 MB in 100 steps */
    const char *said = said_after(210, large, false);
    const char *line = strstr(said, "tr_step: 100 steps in one scope, which now holds ");
    if (!line || !strstr(line, " MB more are in use: put TR_SCOPE; at the start of the training loop's body")) fail_msg("'%s'", said);
    assert_null(strstr(line + 1, "tr_step:"));
    assert_string_equal(said_after(99, large, false), "");
    assert_string_equal(said_after(110, large, true), "");
    assert_string_equal(said_after(110, 1, false), ""); /* costs nothing worth a word */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules_in_f32),
        cmocka_unit_test(test_rules_in_f64),
        cmocka_unit_test(test_rules_in_bf16),
        cmocka_unit_test(test_mixed_dtypes_in_one_optimizer),
        cmocka_unit_test(test_a_step_is_one_pass),
        cmocka_unit_test(test_two_optimizers_over_one_arena),
        cmocka_unit_test(test_backward_refuses_weights_that_a_step_changed),
        cmocka_unit_test(test_nan_is_not_a_sign),
        cmocka_unit_test(test_a_step_leaves_the_versions_of_others),
        cmocka_unit_test(test_a_restored_state_continues_exactly),
        cmocka_unit_test(test_state_names_and_what_does_not_fit),
        cmocka_unit_test(test_clipping),
        cmocka_unit_test(test_the_norm_does_not_depend_on_threads),
        cmocka_unit_test(test_a_norm_that_is_not_finite_changes_nothing),
        cmocka_unit_test(test_what_is_frozen_stays),
        cmocka_unit_test(test_groups_may_overlap),
        cmocka_unit_test(test_wrong_arguments),
        cmocka_unit_test(test_cosine_schedule),
        cmocka_unit_test(test_schedules_in_steps),
        cmocka_unit_test(test_a_forgotten_scope_is_told_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
