/* Images: where convolutions, poolings and what stands between them put their elements, and the modules for images. */
#include "base/isa.h"
#include "ops/conv.h"
#include "ops/cpu/conv/conv.h"
#include "ops/onednn/kernels.h"

#include <trireme/trireme.h>

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool is_channels_last(const tr_tensor *t)
{
    int64_t stride[TR_MAX_DIMS];
    tr__channels_last(tr_shape_of(t), stride);
    return tr__has_strides(t, stride);
}

static void assert_says(const void *object, tr_status status, const char *part)
{
    assert_int_equal(tr_status_of(object), status);
    if (!strstr(tr_error_message(), part)) fail_msg("\"%s\" lacks \"%s\"", tr_error_message(), part);
}

static tr_tensor *image(int64_t n, int64_t c, int64_t h, int64_t w)
{
    return tr_randn(1, TR_SHAPE(n, c, h, w));
}

static void a_net_stays_channels_last(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_require_grad(image(2, 3, 8, 8)), *w = tr_require_grad(tr_randn(2, TR_SHAPE(4, 3, 3, 3)));
    tr_tensor *y = tr_conv2d_op(x, w, .padding = 1);
    assert_true(is_channels_last(y) && !tr_is_contiguous(y));
    tr_tensor *steps[] = {tr_relu(y), tr_add(tr_affine(y, 2, 1), y), tr_max_pool2d(y, 2), tr_cast(y, TR_BF16),
        tr_to(y, tr_cpu(1)), tr_cat((tr_tensor *[]){y, y}, 2, 1), tr_mul(y, tr_ones(TR_SHAPE(4, 1, 1))),
        tr_avg_pool2d(y, 2), tr_adaptive_avg_pool2d(y, 2, 2), tr_batch_norm_op(y, .training = true)};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        if (!is_channels_last(steps[i])) fail_msg("step %zu is not channels-last", i);
    /* And row-major images stay so. */
    assert_true(tr_is_contiguous(tr_relu(x)) && tr_is_contiguous(tr_max_pool2d(x, 2)));
    assert_true(tr_is_contiguous(tr_reshape(y, TR_SHAPE(2, -1))));
}

/* One op and the three that it stands for: the same numbers, as both round alike. */
static void a_norm_takes_an_addition_and_relu_along(void **state)
{
    (void)state;
    for (int k = 0; k < 8; k++) {
        TR_SCOPE;
        bool adds = k & 1, last = k & 2, frozen = k & 4;
        tr_tensor *mean = tr_full(0.1, TR_SHAPE(5)), *var = tr_full(2, TR_SHAPE(5)), *made[2][4];
        for (int fused = 0; fused < 2; fused++) {
            tr_tensor *x = image(3, 5, 4, 7), *residual = tr_require_grad(tr_randn(2, tr_shape_of(x)));
            if (last) x = tr_cast(tr_conv2d_op(x, tr_randn(3, TR_SHAPE(5, 5, 1, 1))), TR_F32);
            tr_tensor *weight = tr_require_grad(tr_randn(4, TR_SHAPE(5))), *leaf = tr_require_grad(tr_detach(x));
            tr_tensor *y = tr_batch_norm_op(leaf, .weight = weight, .training = !frozen, .running_mean = mean, .running_var = var,
                .momentum = 0, .residual = fused && adds ? residual : NULL, .relu = fused);
            if (!fused) y = tr_relu(adds ? tr_add(y, residual) : y);
            assert_int_equal(tr_backward(tr_sum(tr_mul(y, tr_randn(5, tr_shape_of(y))))), TR_OK);
            tr_tensor *all[] = {y, tr_grad(leaf), tr_grad(weight), adds ? tr_grad(residual) : y};
            memcpy(made[fused], all, sizeof all);
        }
        for (int i = 0; i < 4; i++) assert_true(tr_item(tr_max(tr_abs(tr_sub(made[0][i], made[1][i])))) == 0);
        assert_true(tr_item(tr_min(made[1][0])) == 0 && is_channels_last(made[1][0]) == is_channels_last(made[0][0]));
    }
}

/* An f32 residual beside a norm of 16 bits, as where the stem is not under autocast. */
static void a_wider_residual_makes_the_result_wider(void **state)
{
    (void)state;
    TR_SCOPE;
    TR_AUTOCAST(TR_BF16);
    tr_module *norm = tr_batch_norm2d(4, .relu = true);
    tr_tensor *x = tr_cast(image(2, 4, 3, 3), TR_BF16), *residual = image(2, 4, 3, 3), *y = tr_forward(norm, x, residual);
    assert_int_equal(tr_status_of(y), TR_OK);
    assert_int_equal(tr_dtype_of(y), TR_F32);
    assert_int_equal(tr_dtype_of(tr_forward(norm, x, x)), TR_BF16);
    assert_says(tr_forward(norm, NULL, x), TR_INVALID, "batch_norm2d: it takes one input, which is NULL");
    assert_says(tr_forward(norm, x, residual, x), TR_INVALID, "batch_norm2d: it takes one input, not 3");
}

static void flattening_gives_the_order_of_the_shape(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = image(2, 3, 4, 5), *eye = tr_zeros(TR_SHAPE(3, 3, 1, 1));
    for (int i = 0; i < 3; i++) ((float *)tr_data(eye))[4 * i] = 1;
    tr_tensor *y = tr_conv2d_op(x, eye); /* x, channels-last */
    tr_tensor *flat = tr_forward(tr_flatten_layer(), y);
    assert_int_equal(tr_size(flat, 1), 60);
    assert_memory_equal(tr_data(flat), tr_data(x), 120 * sizeof(float));
}

/* Gradients lie as what they are the gradients of. */
static void gradients_lie_as_their_inputs(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *w = tr_randn(2, TR_SHAPE(4, 3, 3, 3)), *g = image(2, 4, 6, 6), *dx;
    int64_t stride[TR_MAX_DIMS];
    tr_tensor *x = image(2, 3, 8, 8);
    tr__channels_last(tr_shape_of(x), stride);
    tr_tensor *last = tr__staged(x, TR_F32, stride, true);
    assert_true(last != x && tr__staged(last, TR_F32, stride, true) == last);
    for (int k = 0; k < 2; k++) {
        tr_tensor *in = tr_require_grad(tr_detach(k ? last : x));
        tr_tensor *y = tr_affine(in, 1, 0); /* so that the gradient arrives at a node, not at a leaf */
        tr_tensor *out = tr_conv2d_op(y, w);
        TR_CHECK(tr_backward(out, .gradient = g));
        dx = tr_grad(in);
        assert_true(tr_is_contiguous(dx)); /* a leaf's always is */
    }
    tr_conv2d_attrs attrs = {.stride = 1, .dilation = 1, .groups = 1};
    tr_tensor *into = tr__tensor_new_strided(tr_shape_of(x), stride, TR_F32, tr_cpu(0));
    TR_CHECK(tr__op_run(tr__op(conv2d_grad_input), &attrs, (tr_tensor *[]){g, w}, 2, &into, 1));
    for (int64_t i = 0; i < 3; i++) { /* the same numbers, whatever their order */
        tr_tensor *a = tr_contiguous(into);
        assert_true(fabs((double)((float *)tr_data(a))[i * 50] - (double)((float *)tr_data(dx))[i * 50]) < 1e-5);
    }
}

/* Heavy convolutions must never fall to an implementation that is a hundred times slower than the others. */
static void onednn_takes_what_nets_begin_with(void **state)
{
    (void)state;
    static const struct {
        int64_t c, size, k, kernel;
        int stride, padding, groups;
    } cases[] = {
        {1, 28, 6, 5, 1, 2, 1}, {1, 28, 32, 3, 1, 0, 1}, {3, 32, 16, 3, 1, 1, 1}, {3, 64, 64, 7, 2, 3, 1},
        {6, 14, 16, 5, 1, 0, 1}, {20, 9, 50, 5, 1, 0, 1}, {16, 8, 32, 1, 2, 0, 1}, {16, 8, 16, 3, 1, 1, 16},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        TR_SCOPE;
        int64_t c = cases[i].c, k = cases[i].k, size = cases[i].size, kernel = cases[i].kernel;
        tr_conv2d_attrs attrs = {cases[i].stride, cases[i].padding, 1, cases[i].groups, false, false};
        tr_tensor *x = image(2, c, size, size), *w = tr_randn(2, TR_SHAPE(k, c / attrs.groups, kernel, kernel));
        tr_tensor *outputs[2] = {NULL}, *bias = tr_zeros(TR_SHAPE(k)), *dx = image(2, c, size, size);
        tr_op_call forward = {tr__op(conv2d), &attrs, 3, 0, (tr_tensor *[]){x, w, bias}, outputs};
        TR_CHECK(forward.op->infer(&forward));
        if (tr__onednn_conv(&forward) == TR_DECLINED) fail_msg("case %zu: the convolution is declined", i);
        tr_tensor *g = outputs[0];
        tr_op_call input = {tr__op(conv2d_grad_input), &attrs, 2, 1, (tr_tensor *[]){g, w}, &dx};
        if (tr__onednn_conv(&input) == TR_DECLINED) fail_msg("case %zu: the gradient of x is declined", i);
        tr_op_call weight = {tr__op(conv2d_grad_weight), &attrs, 2, 2, (tr_tensor *[]){g, x}, (tr_tensor *[]){w, bias}};
        if (tr__onednn_conv(&weight) == TR_DECLINED) fail_msg("case %zu: the gradient of weight is declined", i);
    }
}

/* As far apart as sums of so many f32 are, and roundings to 16 bits. */
static void assert_near_f64(const char *what, tr_tensor *got, tr_tensor *expected)
{
    double tolerance = tr_dtype_of(got) == TR_F32 ? 4e-6 : tr_dtype_of(got) == TR_BF16 ? 0x1p-8 : 0x1p-11;
    tr_tensor *apart = tr_max(tr_abs(tr_sub(tr_cast(got, TR_F64), expected))), *top = tr_max(tr_abs(expected));
    assert_int_equal(tr_status_of(apart), TR_OK);
    if (!(tr_item(apart) <= tolerance * tr_item(top)))
        fail_msg("%s: up to %g apart, of at most %g", what, tr_item(apart), tr_item(top));
}

/* Images of a dtype; channels for two slabs of a weight, and the kernels for other machines that run here, too. */
static void check_winograd(tr_dtype dtype)
{
    TR_SCOPE;
    const int64_t c = 256, k = 272;
    tr_tensor *x = tr__staged_images(image(2, c, 9, 9), dtype, true), *w = tr_randn(2, TR_SHAPE(k, c, 3, 3)),
              *g = tr__staged_images(tr_randn(3, TR_SHAPE(2, k, 9, 9)), dtype, true);
    tr_tensor *x64 = tr_require_grad(tr_cast(x, TR_F64)), *w64 = tr_require_grad(tr_cast(w, TR_F64));
    tr_tensor *expected = tr_conv2d_op(x64, w64, .padding = 1);
    TR_CHECK(tr_backward(expected, .gradient = tr_cast(g, TR_F64)));
    TR_NO_GRAD;
    tr_tensor *y = tr__staged_images(tr_zeros(TR_SHAPE(2, k, 9, 9), .dtype = dtype), dtype, false),
              *dx = tr__staged_images(tr_zeros(TR_SHAPE(2, c, 9, 9), .dtype = dtype), dtype, false),
              *dw = tr_zeros(TR_SHAPE(k, c, 3, 3));
    tr__winograd_images small = {dtype, tr_data(x), 9, 9, c}, large = {dtype, tr_data(y), 9, 9, k};
    tr__winograd forward = {.n = 2, .from = small, .to = large, .offset = -1, .weight = tr_data(w), .device = tr_cpu(0)},
        to_x = forward, to_w = forward;
    to_w.to.data = tr_data(g);
    to_w.dweight = tr_data(dw);
    to_x.from = to_w.to;
    to_x.to = (tr__winograd_images){dtype, tr_data(dx), 9, 9, c};
    to_x.gradient = true;
    const tr__winograd_kernels *machines[3] = {&tr__winograd_generic};
    int count = 1;
#if defined(__x86_64__)
    if (tr__has_avx2()) machines[count++] = &tr__winograd_avx2;
    if (tr__has_avx512()) machines[count++] = &tr__winograd_avx512;
#endif
    for (int i = 0; i < count; i++) {
        assert_true(machines[i]->convolve(&forward) && machines[i]->convolve(&to_x) && machines[i]->grad_weight(&to_w));
        assert_near_f64("y", y, expected);
        assert_near_f64("dx", dx, tr_grad(x64));
        assert_near_f64("dw", dw, tr_grad(w64));
        to_w.accumulate = true;
        assert_true(machines[i]->grad_weight(&to_w));
        assert_near_f64("twice dw", dw, tr_affine(tr_grad(w64), 2, 0));
        to_w.accumulate = false;
    }
}

static void winograd_agrees_with_f64_on_every_machine(void **state)
{
    (void)state;
    check_winograd(TR_F32);
    check_winograd(TR_BF16);
    check_winograd(TR_F16);
}

typedef struct direct_case {
    int64_t n, c, h, w, k, kernel, stride, padding;
} direct_case;

static void check_direct(const tr__direct_kernels *machine, const direct_case *one)
{
    TR_SCOPE;
    tr_tensor *x = image(one->n, one->c, one->h, one->w), *w = tr_randn(2, TR_SHAPE(one->k, one->c, one->kernel, one->kernel)),
              *bias = tr_randn(3, TR_SHAPE(one->k)), *x64 = tr_cast(x, TR_F64), *w64 = tr_require_grad(tr_cast(w, TR_F64));
    tr_tensor *expected = tr_conv2d_op(x64, w64, .bias = tr_cast(bias, TR_F64), .stride = (int)one->stride,
        .padding = (int)one->padding);
    tr_shape out = tr_shape_of(expected);
    tr_tensor *g = tr_randn(4, out);
    TR_CHECK(tr_backward(expected, .gradient = tr_cast(g, TR_F64)));
    TR_NO_GRAD;
    tr__direct d = {.device = tr_cpu(0), .bias = tr_data(bias),
        .s = {.n = one->n, .c = one->c, .h = one->h, .w = one->w, .k = one->k, .kh = one->kernel, .kw = one->kernel,
            .oh = out.dim[2], .ow = out.dim[3], .groups = 1, .stride = one->stride, .padding = one->padding, .dilation = 1}};
    tr_tensor *padded = tr__conv_padded(x, &d.s, TR_F32), *weight = tr__staged_images(w, TR_F32, true),
              *y = tr__staged_images(tr_zeros(out), TR_F32, false),
              *dw = tr__staged_images(tr_zeros(tr_shape_of(w)), TR_F32, false);
    d.x = tr_data(padded);
    d.weight = tr_data(weight);
    d.y = tr_data(y);
    assert_true(machine->convolve(&d));
    assert_near_f64("y", y, expected);
    d.y = tr_data(tr__staged_images(g, TR_F32, true));
    d.dweight = tr_data(dw);
    assert_true(machine->grad_weight(&d));
    assert_near_f64("dw", dw, tr_grad(w64));
    d.accumulate = true;
    assert_true(machine->grad_weight(&d));
    assert_near_f64("twice dw", dw, tr_affine(tr_grad(w64), 2, 0));
}

/* Parts of vectors, several panels, rows of taps of several tiles, several bands of rows, outputs narrower than a tile. */
static void direct_convolutions_agree_with_f64_on_every_machine(void **state)
{
    (void)state;
    static const direct_case cases[] = {
        {3, 1, 28, 28, 6, 5, 1, 2}, {2, 6, 14, 14, 16, 5, 1, 0}, {2, 3, 21, 17, 48, 7, 2, 3}, {2, 2, 5, 4, 3, 3, 1, 1},
        {1, 8, 9, 70, 96, 3, 1, 1}, {1, 3, 3, 3, 5, 3, 1, 0}, {2, 4, 4, 300, 7, 1, 1, 0},
        {2, 3, 3, 3, 1, 3, 1, 0}, {1, 3, 5, 3, 2, 3, 1, 0},
    };
    const tr__direct_kernels *machines[3] = {&tr__direct_generic};
    int count = 1;
#if defined(__x86_64__)
    if (tr__has_avx2()) machines[count++] = &tr__direct_avx2;
    if (tr__has_avx512()) machines[count++] = &tr__direct_avx512;
#endif
    for (int i = 0; i < count; i++)
        for (size_t j = 0; j < sizeof cases / sizeof *cases; j++)
            if (cases[j].k % machines[i]->vector == 0 || cases[j].k < machines[i]->panel) check_direct(machines[i], &cases[j]);
}

/* Into an arena, after another backward: gradients are added to. */
static void gradients_add_up_in_an_arena(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *net = tr_conv2d(2, 3, 3, .seed = 4);
    tr_tensor_list *parameters = tr_parameters(net);
    tr_optimizer *sgd = tr_sgd(parameters, .lr = 0.1);
    TR_CHECK(tr_status_of(sgd));
    double first[2];
    for (int pass = 0; pass < 2; pass++) {
        TR_CHECK(tr_backward(tr_sum(tr_forward(net, image(2, 2, 6, 6)))));
        for (int i = 0; i < 2; i++) {
            double got = (double)((float *)tr_data(tr_grad(tr_list_at(parameters, i))))[1];
            if (pass == 0) first[i] = got;
            else assert_true(fabs(got - 2 * first[i]) <= 1e-4 * (1 + fabs(got)));
        }
    }
}

static void nan_is_the_largest(void **state)
{
    (void)state;
    TR_SCOPE;
    for (int k = 0; k < 2; k++) {
        tr_tensor *x = tr_full(-INFINITY, TR_SHAPE(1, 9, 2, 4), .dtype = k ? TR_F64 : TR_F32);
        tr_tensor *place = tr_slice(tr_slice(tr_slice(x, 1, 3, 4), 2, 1, 2), 3, 0, 1);
        TR_CHECK(tr_fill(place, (double)NAN));
        tr_tensor *y = tr_contiguous(tr_cast(tr_max_pool2d(x, 2), TR_F64));
        for (int i = 0; i < 18; i++) {
            double v = ((double *)tr_data(y))[i];
            assert_true(i == 6 ? v != v : isinf(v) && v < 0);
        }
    }
}

static void modules_start_as_pytorchs(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *conv = tr_conv2d(4, 8, 3, .stride = 2, .padding = 1, .groups = 2, .seed = 1);
    tr_tensor_list *list = tr_state_dict(conv);
    tr_tensor *weight = tr_list_find(list, "weight"), *bias = tr_list_find(list, "bias");
    char text[160];
    assert_string_equal(tr_shape_text(tr_shape_of(weight), text), "[8, 2, 3, 3]");
    assert_string_equal(tr_shape_text(tr_shape_of(bias), text), "[8]");
    double top = 0, bound = 1 / sqrt(2 * 9.0);
    for (int64_t i = 0; i < tr_numel(weight); i++) top = fmax(top, fabs((double)((float *)tr_data(weight))[i]));
    assert_true(top <= bound && top > 0.9 * bound);
    assert_int_equal(tr_list_count(tr_parameters(tr_conv2d(4, 8, 3, .no_bias = true))), 1);
    tr_tensor *y = tr_forward(tr_sequential(conv, tr_relu_layer(), tr_max_pool2d_layer(2), tr_flatten_layer()),
        image(3, 4, 8, 8));
    assert_string_equal(tr_shape_text(tr_shape_of(y), text), "[3, 32]");
}

static void modules_refuse(void **state)
{
    (void)state;
    TR_SCOPE;
    assert_says(tr_conv2d(0, 8, 3), TR_INVALID, "in_channels, out_channels and kernel must be positive, not 0, 8 and 3");
    assert_says(tr_conv2d(4, 8, 3, .groups = 3), TR_INVALID, "3 does not divide 4 and 8");
    assert_says(tr_conv2d(4, 8, 3, .padding = -1), TR_INVALID, "padding and output_padding not negative: 1, 1, -1, 0");
    assert_says(tr_conv1d(4, 0, 3), TR_INVALID, "conv1d: in_channels, out_channels and kernel must be positive, not 4, 0 and 3");
    assert_says(tr_conv_transpose2d(4, 8, 3, .output_padding = -1), TR_INVALID, "conv_transpose2d: stride and dilation must be");
    assert_says(tr_forward(tr_conv_transpose1d(4, 8, 3), tr_ones(TR_SHAPE(2, 3, 6))), TR_SHAPE,
        "x [2, 3, 6] has 3 channels, weight [4, 8, 3] takes 4");
    assert_says(tr_max_pool2d_layer(2, .padding = 2), TR_INVALID, "padding 2 at most half");
    assert_says(tr_batch_norm2d(0), TR_INVALID, "channels must be positive, not 0");
    assert_says(tr_batch_norm2d(3, .momentum = -1), TR_INVALID, "momentum in 0 … 1");
    assert_says(tr_forward(tr_batch_norm2d(3), image(1, 4, 8, 8)), TR_SHAPE, "running_mean is f32 [3]: for x [1, 4, 8, 8]");
    assert_says(tr_forward(tr_batch_norm2d(3), tr_ones(TR_SHAPE(2, 3))), TR_SHAPE, "x is [2, 3]: it must be [batch,");
    assert_says(tr_adaptive_avg_pool2d_layer(1, 0), TR_INVALID, "must be positive, not 1 and 0");
    assert_says(tr_multihead_attention(6, 4), TR_INVALID, "dim must be a multiple of heads, both positive: 6 and 4");
    tr_tensor *x = tr_ones(TR_SHAPE(2, 3, 6));
    assert_says(tr_forward(tr_multihead_attention(6, 2), x, x), TR_INVALID, "it takes one input, or query, key and value");
    assert_says(tr_forward(tr_multihead_attention(6, 2), x, image(1, 2, 3, 6), x), TR_SHAPE,
        "an input is [1, 2, 3, 6]: it must be [batch, seq, dim]");
    assert_says(tr_lenet(.classes = -1), TR_INVALID, "classes must be positive, not -1");
    assert_says(tr_forward(tr_lenet(), image(2, 3, 28, 28)), TR_SHAPE,
        "images must be [batch, 1, 28, 28], they are [2, 3, 28, 28]");
    assert_says(tr_forward(tr_flatten_layer(), tr_scalar(1, TR_F32)), TR_SHAPE, "x is a scalar");
    assert_says(tr_forward(tr_conv2d(4, 8, 3), image(1, 3, 8, 8)), TR_SHAPE,
        "x [1, 3, 8, 8] has 3 channels, weight [8, 4, 3, 3] takes 4");
}

/* Images of ten kinds, each a bright square at a place of its own, in noise. */
static void lenet_learns(void **state)
{
    (void)state;
    TR_SCOPE;
    enum { COUNT = 64, STEPS = 40 };
    tr_tensor *x = tr_randn(3, TR_SHAPE(COUNT, 1, 28, 28)), *y = tr_empty(TR_SHAPE(COUNT), .dtype = TR_I64);
    for (int i = 0; i < COUNT; i++) {
        ((int64_t *)tr_data(y))[i] = i % 10;
        for (int k = 0; k < 36; k++)
            ((float *)tr_data(x))[i * 784 + (i % 10 / 4 * 8 + k / 6) * 28 + i % 10 % 4 * 7 + k % 6] += 3;
    }
    tr_module *net = tr_lenet(.seed = 5);
    tr_optimizer *adam = tr_adamw(tr_parameters(net), .lr = 2e-3);
    double loss = 0;
    for (int step = 0; step < STEPS; step++) {
        TR_SCOPE;
        tr_tensor *l = tr_cross_entropy(tr_forward(net, x), y);
        tr_zero_grad(adam);
        TR_CHECK(tr_backward(l));
        TR_CHECK(tr_step(adam));
        loss = tr_item(l);
        if (step == 0) assert_true(loss > 2.2 && loss < 2.5); /* about log 10 */
    }
    assert_true(loss < 0.3);
}

int main(void)
{
    setenv("TRIREME_CPU_DEVICES", "2", 1); /* for the op that copies between devices */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_net_stays_channels_last),
        cmocka_unit_test(a_norm_takes_an_addition_and_relu_along),
        cmocka_unit_test(a_wider_residual_makes_the_result_wider),
        cmocka_unit_test(flattening_gives_the_order_of_the_shape),
        cmocka_unit_test(gradients_lie_as_their_inputs),
        cmocka_unit_test(onednn_takes_what_nets_begin_with),
        cmocka_unit_test(winograd_agrees_with_f64_on_every_machine),
        cmocka_unit_test(direct_convolutions_agree_with_f64_on_every_machine),
        cmocka_unit_test(gradients_add_up_in_an_arena),
        cmocka_unit_test(nan_is_the_largest),
        cmocka_unit_test(modules_start_as_pytorchs),
        cmocka_unit_test(modules_refuse),
        cmocka_unit_test(lenet_learns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
