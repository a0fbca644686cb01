/* Each optimizer's step by the CUDA plug-in's kernels against the CPU's: parameters and state after three steps, in
 * each dtype. */
#include "on_device.h"

#include "optim/optimizer.h"

#include <trireme/trireme.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 37, COLUMNS = 29, STEPS = 3 };

typedef tr_optimizer *(*maker)(tr_tensor_list *list);
#define MAKER(name, call) \
    static tr_optimizer *name(tr_tensor_list *p) { return call; }
MAKER(sgd, tr_sgd(p, .lr = 0.1, .weight_decay = 0.01))
MAKER(sgd_momentum, tr_sgd(p, .lr = 0.1, .momentum = 0.9, .dampening = 0.1))
MAKER(sgd_nesterov, tr_sgd(p, .lr = 0.1, .momentum = 0.9, .nesterov = true))
MAKER(adam, tr_adam(p, .lr = 0.01, .weight_decay = 0.1))
MAKER(adamw, tr_adamw(p, .lr = 0.01))
MAKER(amsgrad, tr_adamw(p, .lr = 0.01, .amsgrad = true))
MAKER(adadelta, tr_adadelta(p, .weight_decay = 0.1))
MAKER(adagrad, tr_adagrad(p, .lr_decay = 0.1, .initial_accumulator = 0.1))
MAKER(adamax, tr_adamax(p, .weight_decay = 0.1))
MAKER(lion, tr_lion(p, .lr = 0.01, .weight_decay = 0.1))
MAKER(rprop, tr_rprop(p, .lr = 0.01))
MAKER(nadam, tr_nadam(p, .weight_decay = 0.1))
MAKER(nadam_decoupled, tr_nadam(p, .weight_decay = 0.1, .decoupled = true))
MAKER(radam, tr_radam(p, .weight_decay = 0.1, .beta2 = 0.5)) /* the third step is rectified */
MAKER(radam_decoupled, tr_radam(p, .weight_decay = 0.1, .decoupled = true))
MAKER(rmsprop, tr_rmsprop(p))
MAKER(rmsprop_centered, tr_rmsprop(p, .centered = true, .momentum = 0.5))
MAKER(rmsprop_momentum, tr_rmsprop(p, .momentum = 0.5, .weight_decay = 0.1))
MAKER(sgd_bf16_state, tr_sgd(p, .lr = 0.1, .momentum = 0.9, .bf16_state = true))
MAKER(amsgrad_bf16_state, tr_adamw(p, .lr = 0.01, .amsgrad = true, .bf16_state = true))
MAKER(lion_bf16_state, tr_lion(p, .lr = 0.01, .bf16_state = true))
MAKER(lars, tr_lars(p, .weight_decay = 0.1))
MAKER(lamb, tr_lamb(p))

static const maker makers[] = {sgd,
                               sgd_momentum,
                               sgd_nesterov,
                               adam,
                               adamw,
                               amsgrad,
                               adadelta,
                               adagrad,
                               adamax,
                               lion,
                               rprop,
                               nadam,
                               nadam_decoupled,
                               radam,
                               radam_decoupled,
                               rmsprop,
                               rmsprop_centered,
                               rmsprop_momentum,
                               lars,
                               lamb};
/* Not for f64. */
static const maker bf16_makers[] = {sgd_bf16_state, amsgrad_bf16_state, lion_bf16_state};

/* Of nadam: the product of momenta up to a step; as src/optim/adam.c has it. */
static double momenta(const double *settings, int64_t step)
{
    double product = 1;
    for (int64_t t = 1; t <= step; t++)
        product *= settings[TR__OWN] * (1 - 0.5 * pow(0.96, (double)t * settings[TR__OWN + 3]));
    return product;
}

/* Of lars and lamb, from the sums of their measures. */
static double trust(const tr_optimizer *o, const double sums[2])
{
    double p = sqrt(sums[0]), other = sqrt(sums[1]);
    if (strcmp(o->rule->name, "lamb") == 0) return p / other;
    return o->settings[TR__OWN + 1] * p / (other + o->settings[TR__DECAY] * p);
}

/* A last bit of an f32 may send a state to the other bf16 beside it, but not many of them: the random numbers are the same. */
static void assert_nearly_all_alike(const char *what, const tr_tensor *state, const char *back)
{
    const uint16_t *expected = tr_data(state), *found = (const uint16_t *)(const void *)back;
    int others = 0;
    for (int i = 0; i < ROWS * COLUMNS; i++) others += expected[i] != found[i];
    if (others > ROWS * COLUMNS / 100) fail_msg("%s: %d of %d elements differ", what, others, ROWS * COLUMNS);
}

/* A step on the device of what the optimizer has now, then the CPU's. */
static void step_by_both(tr_optimizer *o, int64_t step)
{
    const tr__optimizer_part *part = &o->parts[0];
    tr_tensor *sums = tr_zeros(TR_SHAPE(2), .dtype = TR_F64), *leaf = tr_list_at(o->list, 0), *grad = tr_grad(leaf);
    device_copies copies = {0};
    tr_device_tensor g = on_device_view(&copies, grad), of_sums = on_device_view(&copies, sums);
    tr_device_tensor run[4] = {on_device_view(&copies, leaf)}, inputs[2] = {g}, measured[5] = {of_sums};
    int64_t n = (int64_t)ROWS * COLUMNS;
    g.shape = run[0].shape = inputs[0].shape = TR_SHAPE(n);
    for (int k = 0; k < o->n_states; k++) measured[1 + k] = run[1 + k] = on_device_view(&copies, part->state[k]);
    tr_step_attrs attrs = {.step = step, .lr = o->lr, .weight_decay = o->settings[TR__DECAY]};
    memcpy(attrs.settings, o->settings, sizeof attrs.settings);
    char op[32];
    if (strcmp(o->rule->name, "nadam") == 0) attrs.factor = momenta(o->settings, step);
    if (o->rule->whole) {
        snprintf(op, sizeof op, "%s_measure", o->rule->name);
        bool moves = strcmp(o->rule->name, "lamb") == 0; /* the others' states are the step's alone */
        on_device_run(op, &attrs, sizeof attrs, (tr_device_tensor[]){g, run[0]}, 2, measured, moves ? 3 : 1);
        double *back = (double *)on_device_back(&copies, sums);
        attrs.factor = trust(o, back);
        free(back);
    }
    snprintf(op, sizeof op, "%s_step", o->rule->name);
    on_device_run(op, &attrs, sizeof attrs, inputs, 2, run, 4);
    assert_int_equal(tr_step(o), TR_OK);
    double tolerance = leaf->dtype == TR_F64 ? 1e-14 : leaf->dtype == TR_F32 ? 1e-6 : 0x1p-7;
    char what[64], *back = on_device_back(&copies, leaf);
    snprintf(what, sizeof what, "%s, step %d: parameters", o->rule->name, (int)step);
    on_device_compare(what, leaf, back, tolerance);
    free(back);
    for (int k = 0; k < o->n_states; k++) {
        back = on_device_back(&copies, part->state[k]);
        snprintf(what, sizeof what, "%s, step %d: %s", o->rule->name, (int)step, o->rule->state_names[k]);
        if (part->state[k]->dtype == TR_BF16) assert_nearly_all_alike(what, part->state[k], back);
        else on_device_compare(what, part->state[k], back, leaf->dtype == TR_F64 ? 1e-14 : 1e-6);
        free(back);
    }
    on_device_free(&copies);
}

static void steps_agree_with_the_cpu(const maker *of, size_t count, tr_dtype dtype)
{
    for (size_t m = 0; m < count; m++) {
        TR_SCOPE;
        tr_tensor *w = tr_require_grad(tr_randn(1, TR_SHAPE(ROWS, COLUMNS), .dtype = dtype));
        tr_tensor_list *list = tr_list_new();
        assert_int_equal(tr_list_add(list, "w", w), TR_OK);
        tr_optimizer *o = of[m](list);
        assert_int_equal(tr_status_of(o), TR_OK);
        for (int64_t step = 1; step <= STEPS; step++) {
            tr_zero_grad(o);
            tr_tensor *times = tr_randn((uint64_t)(10 + step), TR_SHAPE(ROWS, COLUMNS), .dtype = dtype);
            assert_int_equal(tr_backward(tr_sum(tr_mul(w, times))), TR_OK);
            step_by_both(o, step);
        }
    }
}

enum { MAKERS = sizeof makers / sizeof *makers, BF16_MAKERS = sizeof bf16_makers / sizeof *bf16_makers };

static void f32(void **state) { (void)state; steps_agree_with_the_cpu(makers, MAKERS, TR_F32); }
static void f64(void **state) { (void)state; steps_agree_with_the_cpu(makers, MAKERS, TR_F64); }
static void bf16(void **state) { (void)state; steps_agree_with_the_cpu(makers, MAKERS, TR_BF16); }

static void bf16_state(void **state)
{
    (void)state;
    steps_agree_with_the_cpu(bf16_makers, BF16_MAKERS, TR_F32);
    steps_agree_with_the_cpu(bf16_makers, BF16_MAKERS, TR_BF16);
}

/* b <- b + (g - b)(1 - momentum), d = g + (b - g) momentum, p <- p (1 - lr decay) - lr ratio o; here o is d. */
static void muon(void **state)
{
    (void)state;
    TR_SCOPE;
    enum { N = 1001 };
    tr_tensor *p = tr_randn(1, TR_SHAPE(N)), *g = tr_randn(2, TR_SHAPE(N)), *b = tr_randn(3, TR_SHAPE(N)),
              *d = tr_zeros(TR_SHAPE(N)), *sums = tr_zeros(TR_SHAPE(2), .dtype = TR_F64);
    tr_step_attrs attrs = {.step = 2, .lr = 0.1, .weight_decay = 0.2, .factor = 1.5, .settings = {[TR__OWN] = 0.9}};
    device_copies copies = {0};
    tr_device_tensor dp = on_device_view(&copies, p), dg = on_device_view(&copies, g), db = on_device_view(&copies, b);
    tr_device_tensor dd = on_device_view(&copies, d), none = {0},
                     measured[] = {on_device_view(&copies, sums), db, none, none, dd};
    on_device_run("muon_measure", &attrs, sizeof attrs, (tr_device_tensor[]){dg, dp}, 2, measured, 5);
    on_device_run("muon_step", &attrs, sizeof attrs, (tr_device_tensor[]){dg, dd}, 2,
                  (tr_device_tensor[]){dp, db, none, none}, 4);
    float *to_p = tr_data(p), *to_b = tr_data(b), *to_d = tr_data(d);
    const float *of_g = tr_data(g);
    double squares = 0;
    for (int i = 0; i < N; i++) {
        to_b[i] += (of_g[i] - to_b[i]) * 0.1f;
        to_d[i] = of_g[i] + (to_b[i] - of_g[i]) * 0.9f;
        to_p[i] = to_p[i] * 0.98f - 0.15f * to_d[i];
        squares += (double)to_d[i] * (double)to_d[i];
    }
    tr_tensor *tensors[] = {p, b, d};
    for (int i = 0; i < 3; i++) {
        char *back = on_device_back(&copies, tensors[i]);
        on_device_compare("muon", tensors[i], back, 1e-6);
        free(back);
    }
    double *back = (double *)on_device_back(&copies, sums);
    assert_true(fabs(back[0] - squares) < 1e-5 * squares);
    free(back);
    on_device_free(&copies);
}

/* Added to what is there, of a length that several blocks share, twice alike. */
static void sums_of_squares(void **state)
{
    (void)state;
    TR_SCOPE;
    enum { N = 10007 };
    tr_tensor *x = tr_randn(1, TR_SHAPE(N)), *y = tr_ones(TR_SHAPE(1), .dtype = TR_F64);
    double expected = 1;
    for (int i = 0; i < N; i++) expected += (double)((float *)tr_data(x))[i] * (double)((float *)tr_data(x))[i];
    double found[2];
    for (int i = 0; i < 2; i++) {
        device_copies copies = {0};
        tr_device_tensor in = on_device_view(&copies, x), out = on_device_view(&copies, y);
        on_device_run("sum_squares", NULL, 0, &in, 1, &out, 1);
        double *back = (double *)on_device_back(&copies, y);
        found[i] = *back;
        free(back);
        on_device_free(&copies);
    }
    assert_true(fabs(found[0] - expected) < 1e-12 * expected);
    assert_memory_equal(&found[0], &found[1], sizeof(double));
}

int main(void)
{
    if (tr_set_threads(1) != TR_OK) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32),
        cmocka_unit_test(f64),
        cmocka_unit_test(bf16),
        cmocka_unit_test(bf16_state),
        cmocka_unit_test(muon),
        cmocka_unit_test(sums_of_squares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
