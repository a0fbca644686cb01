/*
 * The same answer as PyTorch: functions and modules of images and sequences, from tests/recorded/images.safetensors
 * (record_images.py says how they were made).
 */
#include "recorded.h"
#include "torch_cases.h"

#include <setjmp.h>
#include <stdlib.h>

#include <cmocka.h>

#define CASE(name, call) \
    static tr_tensor *name(tr_tensor **in) { tr_tensor *x = in[0]; return call; }

CASE(conv1d, tr_conv1d_op(x, in[1], .bias = in[2], .stride = 2, .padding = 2, .dilation = 2))
CASE(conv1d_groups, tr_conv1d_op(x, in[1], .groups = 2))
CASE(conv_transpose2d, tr_conv_transpose2d_op(x, in[1], .bias = in[2], .stride = 2, .padding = 1, .output_padding = 1))
CASE(conv_transpose2d_groups, tr_conv_transpose2d_op(x, in[1], .groups = 2, .dilation = 2, .output_padding = 1))
CASE(conv_transpose1d, tr_conv_transpose1d_op(x, in[1], .bias = in[2], .stride = 2, .padding = 1, .output_padding = 1))
CASE(conv_transpose1d_beyond,
    tr_conv_transpose1d_op(x, in[1], .bias = in[2], .stride = 3, .padding = 1, .output_padding = 2, .groups = 2))

CASE(max_pool1d, tr_max_pool1d(x, 3, .stride = 2, .padding = 1))
CASE(avg_pool1d, tr_avg_pool1d(x, 3, .stride = 2, .padding = 1))
CASE(adaptive_avg_pool1d, tr_adaptive_avg_pool1d(x, 5))
CASE(adaptive_max_pool1d, tr_adaptive_max_pool1d(x, 3))
CASE(adaptive_max_pool2d, tr_adaptive_max_pool2d(x, 3, 4))

#define SIZES(name, mode_)                                           \
    CASE(name##_up, tr_interpolate(x, .scale = 2, .mode = mode_))      \
    CASE(name##_scale, tr_interpolate(x, .scale = 1.7, .mode = mode_)) \
    CASE(name##_down, tr_interpolate(x, .height = 3, .width = 4, .mode = mode_))
SIZES(nearest, TR_INTERPOLATE_NEAREST)
SIZES(bilinear, TR_INTERPOLATE_BILINEAR)
SIZES(bicubic, TR_INTERPOLATE_BICUBIC)
CASE(bilinear_corners,
    tr_interpolate(x, .height = 3, .width = 9, .mode = TR_INTERPOLATE_BILINEAR, .align_corners = true))
CASE(bicubic_corners, tr_interpolate(x, .height = 3, .width = 9, .mode = TR_INTERPOLATE_BICUBIC, .align_corners = true))
CASE(nearest_line, tr_interpolate(x, .width = 7))
CASE(linear_line, tr_interpolate(x, .scale = 2, .mode = TR_INTERPOLATE_BILINEAR))

static const torch_case cases[] = {
    {"conv1d", conv1d},
    {"conv1d_groups", conv1d_groups},
    {"conv_transpose2d", conv_transpose2d},
    {"conv_transpose2d_groups", conv_transpose2d_groups},
    {"conv_transpose1d", conv_transpose1d},
    {"conv_transpose1d_beyond", conv_transpose1d_beyond},
    {"max_pool1d", max_pool1d},
    {"avg_pool1d", avg_pool1d},
    {"adaptive_avg_pool1d", adaptive_avg_pool1d},
    {"adaptive_max_pool1d", adaptive_max_pool1d},
    {"adaptive_max_pool2d", adaptive_max_pool2d},
    {"nearest_up", nearest_up},
    {"nearest_scale", nearest_scale},
    {"nearest_down", nearest_down},
    {"bilinear_up", bilinear_up},
    {"bilinear_scale", bilinear_scale},
    {"bilinear_down", bilinear_down},
    {"bilinear_corners", bilinear_corners},
    {"bilinear_row", bilinear_down},
    {"bicubic_up", bicubic_up},
    {"bicubic_scale", bicubic_scale},
    {"bicubic_down", bicubic_down},
    {"bicubic_corners", bicubic_corners},
    {"nearest_line", nearest_line},
    {"linear_line", linear_line},
};

static void functions_are_as_in_pytorch(void **state)
{
    (void)state;
    TR_SCOPE;
    const tr_tensor_list *file = recorded("images");
    torch_cases_check(file, cases, sizeof cases / sizeof *cases, TR_F64, 1e-12);
    torch_cases_check(file, cases, sizeof cases / sizeof *cases, TR_F32, 4e-6);
}

/* What F.interpolate(x, scale_factor=…) gives on a CPU, where the scale, taken by its word, would show other pixels. */
static void a_scale_that_keeps_or_doubles_the_size_does_not_count(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *pair = tr_from(((double[]){0, 1}), TR_SHAPE(1, 1, 2), .dtype = TR_F64), *line = tr_arange(20, TR_F64, tr_cpu(0));
    line = tr_reshape(line, TR_SHAPE(1, 1, 20));
    torch_compare("nearest", "twice the size", tr_interpolate(pair, .scale = 2.3),
        tr_from(((double[]){0, 0, 1, 1}), TR_SHAPE(1, 1, 4), .dtype = TR_F64), 0);
    torch_compare("nearest", "the same size", tr_interpolate(line, .scale = 1.0499), line, 0);
    torch_compare("linear", "the same size", tr_interpolate(line, .scale = 1.0499, .mode = TR_INTERPOLATE_BILINEAR), line, 0);
}

static void check_layer(const char *name, tr_module *layer)
{
    const tr_tensor_list *file = recorded("images");
    torch_load(layer, file, name);
    tr_tensor *x = tr_require_grad(tr_detach(torch_find(file, name, "in", 0))), *y = tr_forward(layer, x);
    torch_compare(name, "the output", y, torch_find(file, name, "out", -1), 1e-12);
    TR_CHECK(tr_backward(y, .gradient = torch_find(file, name, "gout", -1)));
    torch_compare(name, "the gradient", tr_grad(x), torch_find(file, name, "gin", 0), 1e-12);
    torch_compare_gradients(layer, file, name);
}

static void layers_are_as_their_functions(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_randn(1, TR_SHAPE(2, 3, 6, 8)), *line = tr_randn(2, TR_SHAPE(2, 3, 8));
    const struct {
        tr_module *layer;
        tr_tensor *x, *expected;
    } same[] = {
        {tr_interpolate_layer(2, .mode = TR_INTERPOLATE_BICUBIC), x, tr_interpolate(x, .scale = 2, .mode = TR_INTERPOLATE_BICUBIC)},
        {tr_interpolate_layer(0, .height = 3, .width = 5), x, tr_interpolate(x, .height = 3, .width = 5)},
        {tr_adaptive_max_pool2d_layer(2, 3), x, tr_adaptive_max_pool2d(x, 2, 3)},
        {tr_adaptive_max_pool1d_layer(3), line, tr_adaptive_max_pool1d(line, 3)},
        {tr_adaptive_avg_pool1d_layer(3), line, tr_adaptive_avg_pool1d(line, 3)},
        {tr_max_pool1d_layer(2), line, tr_max_pool1d(line, 2)},
        {tr_avg_pool1d_layer(3, .stride = 1), line, tr_avg_pool1d(line, 3, .stride = 1)},
        {tr_batch_norm1d(3), line, tr_batch_norm_op(line, .training = true)},
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        tr_tensor *y = tr_forward(same[i].layer, same[i].x);
        torch_compare(tr_module_name(same[i].layer), "the function's output", y, same[i].expected, 0);
    }
    assert_int_equal(tr_status_of(tr_forward(tr_batch_norm1d(3), x)), TR_SHAPE);
    assert_int_equal(tr_status_of(tr_interpolate_layer(0)), TR_INVALID);
    assert_int_equal(tr_status_of(tr_adaptive_max_pool1d_layer(0)), TR_INVALID);
}

static void layers_are_as_in_pytorch(void **state)
{
    (void)state;
    TR_SCOPE;
    check_layer("layer_conv1d", tr_conv1d(2, 4, 3, .stride = 2, .padding = 1, .groups = 2, .dtype = TR_F64));
    check_layer("layer_conv_transpose1d",
        tr_conv_transpose1d(4, 2, 3, .stride = 2, .output_padding = 1, .groups = 2, .dtype = TR_F64));
    check_layer("layer_conv_transpose2d", tr_conv_transpose2d(2, 3, 2, .stride = 2, .padding = 1, .dtype = TR_F64));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_are_as_in_pytorch),
        cmocka_unit_test(a_scale_that_keeps_or_doubles_the_size_does_not_count),
        cmocka_unit_test(layers_are_as_in_pytorch),
        cmocka_unit_test(layers_are_as_their_functions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
