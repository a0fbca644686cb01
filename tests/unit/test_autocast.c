/*
 * Autocast: results have the dtypes and, up to bf16's rounding, the values that PyTorch's autocast gives them, forward and
 * backward, from tests/recorded/autocast.safetensors (record_autocast.py); and trainings in bf16 and f16 that converge.
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

/* ---- PyTorch's ------------------------------------------------------------------------------------------------------------- */

/* A net's tensors, by name; those that have a recorded gradient are leaves. */
typedef struct net {
    const char *name;
    const tr_tensor_list *file;
    tr_tensor_list *values;
} net;

static net open_net(const char *name)
{
    net n = {name, recorded("autocast"), tr_list_new()};
    size_t length = strlen(name);
    for (int i = 0; i < tr_list_count(n.file); i++) {
        const char *full = tr_list_name(n.file, i);
        if (strncmp(full, name, length) != 0 || strstr(full, ".grad.")) continue;
        const char *own = full + length + 1;
        tr_tensor *from = tr_list_at(n.file, i), *t = tr_empty(tr_shape_of(from), .dtype = tr_dtype_of(from));
        TR_CHECK(tr_copy_into(t, from));
        char grad[64];
        snprintf(grad, sizeof grad, "%s.grad.%s", name, own);
        TR_CHECK(tr_list_add(n.values, own, tr_list_find(n.file, grad) ? tr_require_grad(t) : t));
    }
    return n;
}

static tr_tensor *get(const net *n, const char *name)
{
    tr_tensor *t = tr_list_find(n->values, name);
    if (!t) fail_msg("%s has no %s", n->name, name);
    return t;
}

/* Checks that an op's result has the dtype that PyTorch gives it. Returns it. */
static tr_tensor *seen(const net *n, const char *op, tr_tensor *t)
{
    TR_CHECK(tr_status_of(t));
    char expected[48];
    snprintf(expected, sizeof expected, "\"%s\": \"%s\"", op, tr_dtype_name(tr_dtype_of(t)));
    const char *dtypes = tr_list_metadata(n->file, "dtypes");
    if (!strstr(dtypes, expected)) fail_msg("%s is %s, PyTorch has %s", op, tr_dtype_name(tr_dtype_of(t)), dtypes);
    return t;
}

static tr_tensor *heads(tr_tensor *t)
{
    return tr_transpose(tr_reshape(t, TR_SHAPE(4, 6, 2, 8)), 1, 2);
}

static tr_tensor *text(const net *n, tr_tensor **output)
{
    tr_tensor *x = get(n, "x"), *parts[3], *y = get(n, "y");
    tr_tensor *h = seen(n, "linear", tr_linear_op(x, get(n, "w1"), .bias = get(n, "b1")));
    h = seen(n, "gelu", tr_gelu(h));
    h = seen(n, "add", tr_linear_op(h, get(n, "w2"), .bias = get(n, "b2"), .residual = x));
    h = seen(n, "layer_norm", tr_layer_norm_op(h, get(n, "norm"), get(n, "shift"), 1e-5));
    TR_CHECK(tr_split(tr_linear_op(h, get(n, "qkv")), 3, -1, parts));
    tr_tensor *o = seen(n, "attention", tr_attention(heads(parts[0]), heads(parts[1]), heads(parts[2]), .causal = true));
    *output = seen(n, "matmul", tr_matmul(tr_reshape(tr_transpose(o, 1, 2), TR_SHAPE(4, 6, 16)), get(n, "head")));
    seen(n, "cat", tr_cat((tr_tensor *[]){x, *output}, 2, -1));
    seen(n, "matmul_f64", tr_matmul(tr_cast(x, TR_F64), tr_cast(get(n, "head"), TR_F64)));
    return seen(n, "cross_entropy", tr_cross_entropy(*output, y));
}

static tr_tensor *image(const net *n, tr_tensor **output)
{
    tr_tensor *h = seen(n, "conv2d", tr_conv2d_op(get(n, "x"), get(n, "w"), .bias = get(n, "b"), .padding = 1));
    h = tr_relu(tr_batch_norm_op(h, .weight = get(n, "norm"), .bias = get(n, "shift"), .training = true));
    *output = tr_linear_op(tr_mean(h, TR_DIMS(2, 3)), get(n, "head"));
    return seen(n, "mse_loss", tr_mse_loss(*output, get(n, "y")));
}

static double largest(tr_tensor *x)
{
    return tr_item(tr_max(tr_abs(x)));
}

/* The largest difference is a part of the largest expected value, or of least, where that is more. */
static void assert_near(const char *net_name, const char *what, tr_tensor *got, tr_tensor *expected, double least, double tolerance)
{
    double d = largest(tr_sub(tr_cast(tr_detach(got), TR_F32), expected)) / fmax(largest(expected), least);
    if (!(d <= tolerance)) fail_msg("%s: %s differs by %g of the largest", net_name, what, d);
}

static void compare(const char *name, tr_tensor *(*forward)(const net *, tr_tensor **))
{
    TR_SCOPE;
    net n = open_net(name);
    tr_tensor *output, *loss;
    {
        TR_AUTOCAST(TR_BF16);
        loss = forward(&n, &output);
    }
    assert_true(tr_autocast() == TR_F32);
    TR_CHECK(tr_backward(loss));
    assert_near(name, "loss", loss, get(&n, "loss"), 0, 0.01);
    assert_near(name, "output", output, get(&n, "output"), 0, 0.02);
    double most = 0; /* of all gradients: that of a bias before a batch norm is 0 but for rounding */
    for (int i = 0; i < tr_list_count(n.file); i++)
        if (strncmp(tr_list_name(n.file, i), name, strlen(name)) == 0 && strstr(tr_list_name(n.file, i), ".grad."))
            most = fmax(most, largest(tr_list_at(n.file, i)));
    for (int i = 0; i < tr_list_count(n.values); i++) {
        tr_tensor *p = tr_list_at(n.values, i);
        if (!tr_requires_grad(p)) continue;
        tr_tensor *g = tr_grad(p);
        assert_non_null(g);
        assert_int_equal(tr_dtype_of(g), TR_F32);
        assert_near(name, tr_list_name(n.values, i), g, recorded_find(n.file, "%s.grad.%s", name, tr_list_name(n.values, i)),
            most / 100, 0.04);
    }
}

static void test_a_transformers_block_is_pytorchs(void **state)
{
    (void)state;
    compare("text", text);
}

static void test_a_convolution_net_is_pytorchs(void **state)
{
    (void)state;
    compare("image", image);
}

/* ---- Rules that PyTorch has for CUDA alone, or that are ours ----------------------------------------------------------------- */

static void test_dtypes(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_rand(1, TR_SHAPE(4, 4)), *low = tr_cast(x, TR_BF16), *i = tr_arange(4, TR_I64, tr_cpu(0));
    assert_int_equal(tr_dtype_of(tr_matmul(x, x)), TR_F32);
    assert_int_equal(tr_status_of(tr_add(x, low)), TR_DTYPE); /* nothing is promoted without it */
    TR_AUTOCAST(TR_BF16);
    assert_int_equal(tr_dtype_of(tr_softmax(low, -1)), TR_F32);
    assert_int_equal(tr_dtype_of(tr_sum(low)), TR_F32);
    assert_int_equal(tr_dtype_of(tr_mean(low)), TR_F32);
    assert_int_equal(tr_dtype_of(tr_exp(low)), TR_F32);
    assert_int_equal(tr_dtype_of(tr_tanh(low)), TR_BF16);
    assert_int_equal(tr_dtype_of(tr_mul(low, low)), TR_BF16);
    assert_int_equal(tr_dtype_of(tr_mul(low, x)), TR_F32);
    assert_int_equal(tr_dtype_of(tr_add(i, i)), TR_I64);
    /* Sums take both as they are, and each gets a gradient of its own dtype. */
    tr_tensor *a = tr_require_grad(tr_rand(2, TR_SHAPE(4, 4))), *b = tr_require_grad(tr_rand(3, TR_SHAPE(4), .dtype = TR_BF16));
    assert_int_equal(tr_dtype_of(tr_add(b, a)), TR_F32);
    TR_CHECK(tr_backward(tr_sum(tr_add(b, a))));
    assert_int_equal(tr_dtype_of(tr_grad(b)), TR_BF16);
    assert_true(tr_item(tr_sum(tr_grad(b))) == 16);
    assert_int_equal(tr_status_of(tr_add(low, tr_cast(x, TR_F64))), TR_DTYPE);
    assert_int_equal(tr_dtype_of(tr_matmul(low, x)), TR_BF16);
    {
        TR_AUTOCAST(TR_F16);
        assert_int_equal(tr_dtype_of(tr_matmul(low, x)), TR_F16);
        TR_AUTOCAST(TR_F32);
        assert_int_equal(tr_dtype_of(tr_matmul(x, x)), TR_F32);
    }
    assert_int_equal(tr_dtype_of(tr_matmul(x, x)), TR_BF16);
    assert_int_equal(tr_status_of(tr_matmul(x, tr_ones(TR_SHAPE(3, 3)))), TR_SHAPE);
}

/* Losses are f32, with weights of classes too. */
static void test_weighted_classes(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_randn(1, TR_SHAPE(6, 4)), *weight = tr_rand(2, TR_SHAPE(4));
    tr_tensor *y = tr_from(((int64_t[]){0, 3, -100, 1, 2, 3}), TR_SHAPE(6), .dtype = TR_I64);
    for (int smoothed = 0; smoothed < 2; smoothed++) {
        double expected = tr_item(tr_cross_entropy(x, y, .weight = weight, .label_smoothing = 0.3 * smoothed));
        TR_AUTOCAST(TR_BF16);
        tr_tensor *loss = tr_cross_entropy(x, y, .weight = weight, .label_smoothing = 0.3 * smoothed);
        assert_int_equal(tr_dtype_of(loss), TR_F32);
        assert_true(tr_item(loss) == expected);
    }
}

/* Logits that autocast made 16-bit take the f32 weights that a program has; f64 ones, f32 and f64 alike. */
static void test_weights_of_another_dtype(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *weight = tr_rand(2, TR_SHAPE(4)), *y = tr_from(((int64_t[]){0, 3, -100}), TR_SHAPE(3), .dtype = TR_I64);
    tr_tensor *wide = tr_cast(weight, TR_F64);
    for (int k = 0; k < 3; k++) {
        tr_tensor *x = tr_log_softmax(tr_cast(tr_randn(1, TR_SHAPE(3, 4)), (tr_dtype[]){TR_BF16, TR_F16, TR_F64}[k]), -1);
        tr_tensor *same = k < 2 ? tr_cast(x, TR_F32) : x, *w = k < 2 ? weight : wide, *other = k < 2 ? wide : weight;
        double nll = tr_item(tr_nll_loss(same, y, .weight = w)), entropy = tr_item(tr_cross_entropy(same, y, .weight = w));
        double smooth = tr_item(tr_cross_entropy(same, y, .weight = w, .label_smoothing = 0.3));
        for (int i = 0; i < 4; i++) {
            TR_AUTOCAST(i & 1 ? TR_BF16 : TR_F32);
            tr_tensor *given = i & 2 ? other : w;
            assert_true(tr_item(tr_nll_loss(x, y, .weight = given)) == nll);
            assert_true(tr_item(tr_cross_entropy(x, y, .weight = given)) == entropy);
            assert_true(tr_item(tr_cross_entropy(x, y, .weight = given, .label_smoothing = 0.3)) == smooth);
        }
        assert_int_equal(tr_dtype_of(tr_nll_loss(x, y, .weight = w, .reduction = TR_REDUCE_NONE)), tr_dtype_of(x));
    }
}

/* Backward runs in the dtypes of the forward, wherever it is called; recomputed stretches are cast as they were. */
static void test_backward_and_recompute(void **state)
{
    (void)state;
    TR_SCOPE;
    float grads[3][64];
    for (int how = 0; how < 3; how++) {
        TR_SCOPE;
        tr_module *block = tr_sequential(tr_linear(8, 8, .seed = 1), tr_activation_layer(tr_tanh), tr_layer_norm(8),
            tr_linear(8, 8, .seed = 2));
        if (how == 2) TR_CHECK(tr_set_recompute(block, true));
        tr_tensor *loss;
        {
            TR_AUTOCAST(TR_BF16);
            loss = tr_sum(tr_forward(block, tr_randn(3, TR_SHAPE(5, 8))));
            if (how == 1) TR_CHECK(tr_backward(loss));
        }
        if (how != 1) TR_CHECK(tr_backward(loss));
        TR_CHECK(tr_copy_out(tr_grad(tr_list_find(tr_parameters(block), "0.weight")), grads[how], sizeof *grads));
    }
    assert_memory_equal(grads[0], grads[1], sizeof *grads);
    assert_memory_equal(grads[0], grads[2], sizeof *grads);
}

/* ---- Trainings --------------------------------------------------------------------------------------------------------------- */

/* Points in [-1, 1)^2; class 1 where the coordinates' signs differ. */
static void points(tr_tensor **x, tr_tensor **y)
{
    float at[256][2];
    int64_t classes[256];
    *x = tr_affine(tr_rand(11, TR_SHAPE(256, 2)), 2, -1);
    TR_CHECK(tr_copy_out(*x, at, sizeof at));
    for (int i = 0; i < 256; i++) classes[i] = (at[i][0] < 0) != (at[i][1] < 0);
    *y = tr_from(classes, TR_SHAPE(256), .dtype = TR_I64);
}

static double train(tr_dtype dtype, tr_grad_scaler *scaler, int *skipped)
{
    TR_SCOPE;
    tr_tensor *x, *y;
    points(&x, &y);
    tr_module *mlp = tr_sequential(tr_linear(2, 32, .seed = 1), tr_activation_layer(tr_relu), tr_linear(32, 32, .seed = 2),
        tr_activation_layer(tr_relu), tr_linear(32, 2, .seed = 3));
    tr_optimizer *opt = tr_adamw(tr_parameters(mlp), .lr = 1e-2);
    double last = 0;
    for (int step = 0; step < 150; step++) {
        TR_SCOPE;
        TR_AUTOCAST(dtype);
        tr_tensor *loss = tr_cross_entropy(tr_forward(mlp, x), y);
        tr_zero_grad(opt);
        TR_CHECK(tr_backward(scaler ? tr_scale_loss(scaler, loss) : loss));
        TR_CHECK(scaler ? tr_scaled_step(scaler, opt) : tr_step(opt));
        if (scaler) *skipped += !tr_update_scale(scaler);
        last = tr_item(loss);
    }
    return last;
}

static void test_trainings_converge(void **state)
{
    (void)state;
    TR_SCOPE;
    int skipped = 0;
    double f32 = train(TR_F32, NULL, NULL), bf16 = train(TR_BF16, NULL, NULL);
    assert_true(f32 < 0.1 && fabs(bf16 - f32) < 0.05);
    /* A scale that f16 overflows with: the first steps are left out, until it fits. */
    tr_grad_scaler *scaler = tr_grad_scaler_new(.scale = 0x1p30);
    double f16 = train(TR_F16, scaler, &skipped);
    assert_true(skipped > 3 && skipped < 30 && tr_grad_scale(scaler) == ldexp(1, 30 - skipped));
    assert_true(fabs(f16 - f32) < 0.05);
}

/* ---- Gradient scaling ---------------------------------------------------------------------------------------------------------- */

static void give_gradient(tr_grad_scaler *scaler, tr_optimizer *opt, tr_tensor *p, double value)
{
    tr_zero_grad(opt);
    TR_CHECK(tr_backward(tr_scale_loss(scaler, tr_sum(tr_affine(p, value, 0)))));
}

static void test_scaler(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *p = tr_ones(TR_SHAPE(3), .requires_grad = true);
    tr_tensor_list *list = tr_list_new();
    TR_CHECK(tr_list_add(list, "p", p));
    tr_optimizer *opt = tr_sgd(list, .lr = 0.5);
    tr_grad_scaler *scaler = tr_grad_scaler_new(.scale = 8, .interval = 2);
    give_gradient(scaler, opt, p, 0.25);
    assert_true(((float *)tr_data(tr_grad(p)))[1] == 2);
    bool finite = false;
    TR_CHECK(tr_unscale_grad(scaler, opt, &finite));
    assert_true(finite);
    assert_true(((float *)tr_data(tr_grad(p)))[1] == 0.25f);
    assert_int_equal(tr_unscale_grad(scaler, opt, NULL), TR_STATE);
    TR_CHECK(tr_scaled_step(scaler, opt));
    assert_true(((float *)tr_data(p))[1] == 0.875f);
    assert_int_equal(tr_scaled_step(scaler, opt), TR_STATE); /* of gradients that would not be divided */
    assert_true(((float *)tr_data(p))[1] == 0.875f);
    assert_true(tr_update_scale(scaler) && tr_grad_scale(scaler) == 8);
    give_gradient(scaler, opt, p, (double)INFINITY);
    TR_CHECK(tr_scaled_step(scaler, opt));
    assert_true(((float *)tr_data(p))[1] == 0.875f); /* left out */
    assert_true(!tr_update_scale(scaler) && tr_grad_scale(scaler) == 4);
    tr_grad_scaler *other = tr_grad_scaler_new(.interval = 2);
    for (int i = 0; i < 2; i++) {
        tr_grad_scaler *s = i ? other : scaler; /* goes on from the other's state */
        if (i) TR_CHECK(tr_grad_scaler_load(other, tr_grad_scaler_state(scaler)));
        give_gradient(s, opt, p, 0.25);
        TR_CHECK(tr_scaled_step(s, opt));
        assert_true(tr_update_scale(s));
    }
    assert_true(tr_grad_scale(other) == 8 && ((float *)tr_data(p))[1] == 0.625f);
    assert_int_equal(tr_status_of(tr_grad_scaler_new(.backoff = 1)), TR_INVALID);
    assert_int_equal(tr_grad_scaler_load(other, tr_list_new()), TR_NOT_FOUND);
    assert_int_equal(tr_scaled_step(other, NULL), TR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_transformers_block_is_pytorchs),
        cmocka_unit_test(test_a_convolution_net_is_pytorchs),
        cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_weighted_classes),
        cmocka_unit_test(test_weights_of_another_dtype),
        cmocka_unit_test(test_backward_and_recompute),
        cmocka_unit_test(test_trainings_converge),
        cmocka_unit_test(test_scaler),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
