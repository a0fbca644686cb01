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

enum { INPUTS = 4 };

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
    char full[128];
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f64_is_as_in_pytorch),
        cmocka_unit_test(f32_is_as_in_pytorch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
