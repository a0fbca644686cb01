/*
 * The same answer as PyTorch: outputs and gradients of single ops from tests/recorded/ops.safetensors (record_ops.py
 * says how they were made), in f64 and in f32.
 */
#include <trireme/trireme.h>

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { INPUTS = 5 };

static tr_tensor *gelu_tanh(tr_tensor **in) { return tr_gelu(in[0]); }
static tr_tensor *gelu_exact(tr_tensor **in) { return tr_gelu_exact(in[0]); }
static tr_tensor *softmax(tr_tensor **in) { return tr_softmax(in[0], -1); }
static tr_tensor *softmax_dim1(tr_tensor **in) { return tr_softmax(in[0], 1); }
static tr_tensor *log_softmax(tr_tensor **in) { return tr_log_softmax(in[0], -1); }
static tr_tensor *layer_norm(tr_tensor **in) { return tr_layer_norm_op(in[0], in[1], in[2], 1e-5); }
static tr_tensor *attention_causal(tr_tensor **in) { return tr_attention(in[0], in[1], in[2], .causal = true); }
static tr_tensor *attention(tr_tensor **in) { return tr_attention(in[0], in[1], in[2], .mask = in[3]); }
static tr_tensor *cross_entropy(tr_tensor **in) { return tr_cross_entropy(in[0], in[1]); }
static tr_tensor *embedding(tr_tensor **in) { return tr_embedding_op(in[0], in[1]); }
static tr_tensor *linear(tr_tensor **in) { return tr_linear_op(in[0], in[1], .bias = in[2]); }
static tr_tensor *matmul(tr_tensor **in) { return tr_matmul(in[0], in[1]); }
static tr_tensor *conv2d(tr_tensor **in) { return tr_conv2d_op(in[0], in[1], .bias = in[2], .padding = 1); }
static tr_tensor *conv2d_dilated(tr_tensor **in)
{
    return tr_conv2d_op(in[0], in[1], .stride = 2, .padding = 2, .dilation = 2);
}
static tr_tensor *conv2d_groups(tr_tensor **in)
{
    return tr_conv2d_op(in[0], in[1], .bias = in[2], .stride = 2, .groups = 2);
}
static tr_tensor *max_pool2d(tr_tensor **in) { return tr_max_pool2d(in[0], 2); }
static tr_tensor *max_pool2d_padded(tr_tensor **in) { return tr_max_pool2d(in[0], 3, .stride = 2, .padding = 1); }
static tr_tensor *avg_pool2d_padded(tr_tensor **in) { return tr_avg_pool2d(in[0], 3, .stride = 2, .padding = 1); }
static tr_tensor *adaptive_avg_pool2d(tr_tensor **in) { return tr_adaptive_avg_pool2d(in[0], 2, 3); }
static tr_tensor *batch_norm(tr_tensor **in)
{
    return tr_batch_norm_op(in[0], .weight = in[1], .bias = in[2], .training = true, .eps = 1e-3);
}
static tr_tensor *batch_norm_frozen(tr_tensor **in)
{
    return tr_batch_norm_op(in[0], .weight = in[1], .bias = in[2], .running_mean = in[3], .running_var = in[4]);
}

static const struct {
    const char *name;
    tr_tensor *(*run)(tr_tensor **in);
} cases[] = {
    {"gelu_tanh", gelu_tanh},
    {"gelu_exact", gelu_exact},
    {"softmax", softmax},
    {"softmax_dim1", softmax_dim1},
    {"log_softmax", log_softmax},
    {"layer_norm", layer_norm},
    {"attention_causal", attention_causal},
    {"attention_masked", attention},
    {"attention_cross", attention},
    {"cross_entropy", cross_entropy},
    {"cross_entropy_ignore", cross_entropy},
    {"embedding", embedding},
    {"linear", linear},
    {"matmul", matmul},
    {"matmul_broadcast", matmul},
    {"conv2d", conv2d},
    {"conv2d_dilated", conv2d_dilated},
    {"conv2d_groups", conv2d_groups},
    {"max_pool2d", max_pool2d},
    {"max_pool2d_padded", max_pool2d_padded},
    {"avg_pool2d_padded", avg_pool2d_padded},
    {"adaptive_avg_pool2d", adaptive_avg_pool2d},
    {"batch_norm", batch_norm},
    {"batch_norm_frozen", batch_norm_frozen},
};

static tr_tensor_list *recorded(void)
{
    char path[4096];
    const char *source = getenv("SOURCE");
    snprintf(path, sizeof path, "%s/tests/recorded/ops.safetensors", source ? source : ".");
    tr_tensor_list *list = tr_safetensors_load(path);
    TR_CHECK(tr_status_of(list));
    return list;
}

static tr_tensor *find(const tr_tensor_list *list, const char *name, const char *what, int i)
{
    char full[256];
    snprintf(full, sizeof full, i < 0 ? "%s.%s" : "%s.%s%d", name, what, i);
    return tr_list_find(list, full);
}

static void compare(const char *name, const char *what, tr_tensor *got, tr_tensor *expected, double tolerance)
{
    TR_NO_GRAD;
    if (!got || tr_status_of(got) != TR_OK) fail_msg("%s: no %s: %s", name, what, tr_error_message());
    assert_int_equal(tr_numel(got), tr_numel(expected));
    got = tr_contiguous(tr_cast(got, TR_F64));
    const double *x = tr_data(got), *y = tr_data(expected);
    for (int64_t i = 0; i < tr_numel(got); i++)
        if (!(fabs(x[i] - y[i]) <= tolerance * (1 + fabs(y[i]))))
            fail_msg("%s: %s, element %lld: %.12g, PyTorch says %.12g", name, what, (long long)i, x[i], y[i]);
}

static void check_in(tr_dtype dtype, double tolerance)
{
    TR_SCOPE;
    tr_tensor_list *list = recorded();
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const char *name = cases[k].name;
        tr_tensor *in[INPUTS] = {NULL};
        for (int i = 0; i < INPUTS; i++) {
            tr_tensor *t = find(list, name, "in", i);
            if (t) in[i] = tr_dtype_is_float(tr_dtype_of(t)) ? tr_require_grad(tr_detach(tr_cast(t, dtype))) : t;
        }
        if (!in[0]) fail_msg("%s is not in the file", name);
        tr_tensor *out = cases[k].run(in);
        compare(name, "the output", out, find(list, name, "out", -1), tolerance);
        tr_tensor *g = tr_cast(find(list, name, "gout", -1), dtype);
        if (tr_backward(out, .gradient = g) != TR_OK) fail_msg("%s: %s", name, tr_error_message());
        for (int i = 0; i < INPUTS; i++) {
            tr_tensor *expected = find(list, name, "gin", i);
            if (expected) compare(name, "a gradient", tr_grad(in[i]), expected, tolerance);
        }
    }
}

static void f64_is_as_in_pytorch(void **state)
{
    (void)state;
    check_in(TR_F64, 1e-12);
}

static void f32_is_as_in_pytorch(void **state)
{
    (void)state;
    check_in(TR_F32, 2e-6);
}

/* Gives the module its parameters and buffers as recorded. */
static void load(tr_module *module, const tr_tensor_list *list, const char *name)
{
    tr_tensor_list *state = tr_state_dict(module);
    for (int i = 0; i < tr_list_count(state); i++) {
        tr_tensor *from = find(list, name, tr_list_name(state, i), -1);
        if (!from) fail_msg("%s: %s is not in the file", name, tr_list_name(state, i));
        TR_CHECK(tr_copy_into(tr_list_at(state, i), from));
    }
}

static void compare_gradients(tr_module *module, const tr_tensor_list *list, const char *name)
{
    tr_tensor_list *parameters = tr_parameters(module);
    for (int i = 0; i < tr_list_count(parameters); i++) {
        char what[128];
        snprintf(what, sizeof what, "g%s", tr_list_name(parameters, i));
        compare(name, what, tr_grad(tr_list_at(parameters, i)), find(list, name, what, -1), 1e-12);
    }
}

static void batch_norm2d_trains_as_in_pytorch(void **state)
{
    (void)state;
    TR_SCOPE;
    const char *name = "batch_norm2d";
    tr_tensor_list *list = recorded();
    tr_module *norm = tr_batch_norm2d(3, .dtype = TR_F64);
    tr_tensor_list *own = tr_state_dict(norm);
    TR_CHECK(tr_copy_into(tr_list_find(own, "weight"), find(list, name, "weight", -1)));
    TR_CHECK(tr_copy_into(tr_list_find(own, "bias"), find(list, name, "bias", -1)));
    tr_tensor *first = find(list, name, "in", 0), *second = tr_require_grad(tr_detach(find(list, name, "in", 1)));
    TR_CHECK(tr_status_of(tr_forward(norm, first)));
    tr_tensor *out = tr_forward(norm, second);
    compare(name, "the output", out, find(list, name, "out", -1), 1e-12);
    TR_CHECK(tr_backward(out, .gradient = find(list, name, "gout", -1)));
    compare(name, "the gradient", tr_grad(second), find(list, name, "gin", 1), 1e-12);
    compare_gradients(norm, list, name);
    assert_int_equal(tr_list_count(own), 5);
    for (int i = 0; i < 5; i++)
        compare(name, tr_list_name(own, i), tr_cast(tr_list_at(own, i), TR_F64),
            tr_cast(find(list, name, tr_list_name(own, i), -1), TR_F64), 1e-12);
    TR_CHECK(tr_eval(norm));
    compare(name, "the output in evaluation", tr_forward(norm, first), find(list, name, "eval", -1), 1e-12);
    assert_int_equal(tr_item(tr_list_find(own, "num_batches_tracked")), 2);
}

static void multihead_attention_is_as_in_pytorch(void **state)
{
    (void)state;
    TR_SCOPE;
    const char *name = "multihead_attention";
    tr_tensor_list *list = recorded();
    tr_module *causal = tr_multihead_attention(8, 2, .causal = true, .dtype = TR_F64),
              *plain = tr_multihead_attention(8, 2, .dtype = TR_F64);
    load(causal, list, name);
    load(plain, list, name);
    tr_tensor *x = tr_require_grad(tr_detach(find(list, name, "in", 0)));
    tr_tensor *out = tr_forward(causal, x), *expected = find(list, name, "out", -1);
    compare(name, "the output", out, expected, 1e-12);
    compare(name, "the output of three inputs", tr_forward(causal, x, x, x), expected, 1e-12);
    TR_CHECK(tr_backward(out, .gradient = find(list, name, "gout", -1)));
    compare(name, "the gradient", tr_grad(x), find(list, name, "gin", 0), 1e-12);
    compare_gradients(causal, list, name);
    compare(name, "the output across", tr_forward(plain, tr_slice(x, 1, 0, 3), x, x), find(list, name, "cross", -1), 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f64_is_as_in_pytorch),
        cmocka_unit_test(f32_is_as_in_pytorch),
        cmocka_unit_test(batch_norm2d_trains_as_in_pytorch),
        cmocka_unit_test(multihead_attention_is_as_in_pytorch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
