/* Layers of functions: activations with arguments, PReLU, unflatten; copies and views of shapes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include <trireme/trireme.h>

static double difference(tr_tensor *a, tr_tensor *b)
{
    return tr_item(tr_max(tr_abs(tr_sub(a, b))));
}

static void assert_failed(const void *object, tr_status status, const char *part)
{
    assert_int_equal(tr_status_of(object), status);
    if (!strstr(tr_error_message(), part)) fail_msg("\"%s\" lacks \"%s\"", tr_error_message(), part);
}

static void activations_with_arguments_are_their_ops(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_randn(1, TR_SHAPE(5, 6));
    const struct {
        tr_module *layer;
        tr_tensor *expected;
    } cases[] = {
        {tr_leaky_relu_layer(0.2), tr_leaky_relu(x, 0.2)}, {tr_elu_layer(0.7), tr_elu(x, 0.7)},
        {tr_celu_layer(1.5), tr_celu(x, 1.5)}, {tr_clamp_layer(-0.5, 0.25), tr_clamp(x, -0.5, 0.25)},
        {tr_glu_layer(1), tr_glu(x, 1)}, {tr_softmax_layer(0), tr_softmax(x, 0)}, {tr_log_softmax_layer(-1), tr_log_softmax(x, -1)},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tr_tensor *y = tr_forward(cases[i].layer, x);
        TR_CHECK(tr_status_of(y));
        assert_true(difference(y, cases[i].expected) == 0);
        assert_int_equal(tr_list_count(tr_parameters(cases[i].layer)), 0);
    }
    assert_failed(tr_celu_layer(0), TR_INVALID, "celu: alpha must be positive, it is 0");
    assert_failed(tr_clamp_layer(1, -1), TR_INVALID, "clamp: the least value, 1, must not be above the most, -1");
    assert_failed(tr_forward(tr_sequential(tr_glu_layer(0)), x), TR_SHAPE, "0: glu");
    assert_failed(tr_forward(tr_elu_layer(1), x, x), TR_INVALID, "elu: it takes one input, not 2");
}

static void prelu_learns_what_is_below_0(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *one = tr_prelu(), *many = tr_prelu(.channels = 3, .init = 0);
    tr_tensor *weight = tr_list_find(tr_parameters(one), "weight"), *weights = tr_list_find(tr_parameters(many), "weight");
    assert_int_equal(tr_numel(weight), 1);
    assert_int_equal(tr_numel(weights), 3);
    tr_tensor *x = tr_from(((float[]){-4, 2, -8}), TR_SHAPE(1, 3));
    tr_tensor *y = tr_forward(one, x);
    const float *values = tr_data(y);
    assert_true(values[0] == -1 && values[1] == 2 && values[2] == -2);
    assert_true(tr_item(tr_sum(tr_forward(many, x))) == 2);
    TR_CHECK(tr_backward(tr_sum(y)));
    assert_true(tr_item(tr_grad(weight)) == -12);
    assert_failed(tr_prelu(.channels = -1), TR_INVALID, "prelu: channels must not be negative, not -1");
    assert_failed(tr_forward(many, tr_ones(TR_SHAPE(2, 4))), TR_SHAPE, "prelu: weight [3] does not fit x [2, 4]");
}

static void dimensions_become_one_and_several(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_reshape(tr_arange(24, TR_F32, tr_cpu(0)), TR_SHAPE(2, 3, 4));
    tr_tensor *flat = tr_flatten(x, 1, -1), *back = tr_unflatten(flat, -1, TR_SHAPE(3, -1));
    assert_int_equal(tr_ndim(flat), 2);
    assert_int_equal(tr_size(flat, 1), 12);
    assert_true(tr_data(back) == tr_data(x)); /* views */
    assert_int_equal(tr_size(back, 2), 4);
    assert_int_equal(tr_numel(tr_flatten(tr_scalar(1, TR_F32), 0, -1)), 1);
    tr_tensor *layer = tr_forward(tr_sequential(tr_flatten_layer(), tr_unflatten_layer(1, TR_SHAPE(3, 2, 2))), x);
    assert_int_equal(tr_ndim(layer), 4);
    assert_failed(tr_flatten(x, 2, 0), TR_INVALID, "flatten: dimension 2 of [2, 3, 4] comes after dimension 0");
    assert_failed(tr_unflatten(flat, 1, TR_SHAPE(5, -1)), TR_SHAPE, "unflatten: dimension 1 of [2, 12] does not divide into [5, -1]");
    assert_failed(tr_unflatten(flat, 1, TR_SHAPE(-1, -1)), TR_SHAPE, "does not divide");
    assert_failed(tr_unflatten(flat, 1, TR_SHAPE(INT64_MAX, INT64_MAX)), TR_SHAPE, "does not divide");
    assert_failed(tr_unflatten(NULL, 1, TR_SHAPE(1)), TR_INVALID, "unflatten: input 0 is NULL");
    assert_failed(tr_forward(tr_sequential(tr_unflatten_layer(1, TR_SHAPE(5, 5))), flat), TR_SHAPE, "0: unflatten: ");
}

static void a_clone_has_memory_of_its_own(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_require_grad(tr_from(((float[]){1, 2, 3, 4}), TR_SHAPE(2, 2))), *y = tr_clone(tr_transpose(x, 0, 1));
    assert_true(tr_is_contiguous(y));
    TR_CHECK(tr_backward(tr_sum(tr_mul(y, tr_from(((float[]){1, 2, 3, 4}), TR_SHAPE(2, 2))))));
    const float *g = tr_data(tr_grad(x));
    assert_true(g[0] == 1 && g[1] == 3 && g[2] == 2 && g[3] == 4);
    tr_tensor *plain = tr_ones(TR_SHAPE(3)), *copy = tr_clone(plain);
    TR_CHECK(tr_fill(plain, 7));
    assert_true(tr_item(tr_sum(copy)) == 3);
    assert_failed(tr_clone(NULL), TR_INVALID, "clone: input 0 is NULL");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations_with_arguments_are_their_ops),
        cmocka_unit_test(prelu_learns_what_is_below_0),
        cmocka_unit_test(dimensions_become_one_and_several),
        cmocka_unit_test(a_clone_has_memory_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
