/*
 * The same answer as PyTorch: outputs and gradients of single ops from tests/recorded/ops.safetensors (record_ops.py
 * says how they were made), in f64 and in f32.
 */
#include "recorded.h"
#include "torch_cases.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static tr_tensor *gelu_tanh(tr_tensor **in) { return tr_gelu(in[0]); }
static tr_tensor *gelu_exact(tr_tensor **in) { return tr_gelu_exact(in[0]); }
static tr_tensor *softmax(tr_tensor **in) { return tr_softmax(in[0], -1); }
static tr_tensor *softmax_dim1(tr_tensor **in) { return tr_softmax(in[0], 1); }
static tr_tensor *log_softmax(tr_tensor **in) { return tr_log_softmax(in[0], -1); }
static tr_tensor *layer_norm(tr_tensor **in) { return tr_layer_norm_op(in[0], in[1], in[2], 1e-5); }
static tr_tensor *attention_causal(tr_tensor **in) { return tr_attention(in[0], in[1], in[2], .causal = true); }
static tr_tensor *attention(tr_tensor **in) { return tr_attention(in[0], in[1], in[2], .mask = in[3]); }
static tr_tensor *cross_entropy(tr_tensor **in) { return tr_cross_entropy(in[0], in[1]); }
static tr_tensor *embedding(tr_tensor **in) { return tr_embedding_op(in[1], in[0]); }
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

static const torch_case cases[] = {
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

static void check_in(tr_dtype dtype, double tolerance)
{
    TR_SCOPE;
    torch_cases_check(recorded("ops"), cases, sizeof cases / sizeof *cases, dtype, tolerance);
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

static void batch_norm2d_trains_as_in_pytorch(void **state)
{
    (void)state;
    TR_SCOPE;
    const char *name = "batch_norm2d";
    tr_tensor_list *list = recorded("ops");
    tr_module *norm = tr_batch_norm2d(3, .dtype = TR_F64);
    tr_tensor_list *own = tr_state_dict(norm);
    TR_CHECK(tr_copy_into(tr_list_find(own, "weight"), torch_find(list, name, "weight", -1)));
    TR_CHECK(tr_copy_into(tr_list_find(own, "bias"), torch_find(list, name, "bias", -1)));
    tr_tensor *first = torch_find(list, name, "in", 0);
    tr_tensor *second = tr_require_grad(tr_detach(torch_find(list, name, "in", 1)));
    TR_CHECK(tr_status_of(tr_forward(norm, first)));
    tr_tensor *out = tr_forward(norm, second);
    torch_compare(name, "the output", out, torch_find(list, name, "out", -1), 1e-12);
    TR_CHECK(tr_backward(out, .gradient = torch_find(list, name, "gout", -1)));
    torch_compare(name, "the gradient", tr_grad(second), torch_find(list, name, "gin", 1), 1e-12);
    torch_compare_gradients(norm, list, name);
    assert_int_equal(tr_list_count(own), 5);
    for (int i = 0; i < 5; i++)
        torch_compare(name, tr_list_name(own, i), tr_cast(tr_list_at(own, i), TR_F64),
            tr_cast(torch_find(list, name, tr_list_name(own, i), -1), TR_F64), 1e-12);
    TR_CHECK(tr_eval(norm));
    torch_compare(name, "the output in evaluation", tr_forward(norm, first), torch_find(list, name, "eval", -1), 1e-12);
    assert_int_equal(tr_item(tr_list_find(own, "num_batches_tracked")), 2);
}

static void multihead_attention_is_as_in_pytorch(void **state)
{
    (void)state;
    TR_SCOPE;
    const char *name = "multihead_attention";
    tr_tensor_list *list = recorded("ops");
    tr_module *causal = tr_multihead_attention(8, 2, .causal = true, .dtype = TR_F64),
              *plain = tr_multihead_attention(8, 2, .dtype = TR_F64);
    torch_load(causal, list, name);
    torch_load(plain, list, name);
    tr_tensor *x = tr_require_grad(tr_detach(torch_find(list, name, "in", 0)));
    tr_tensor *out = tr_forward(causal, x), *expected = torch_find(list, name, "out", -1);
    torch_compare(name, "the output", out, expected, 1e-12);
    torch_compare(name, "the output of three inputs", tr_forward(causal, x, x, x), expected, 1e-12);
    TR_CHECK(tr_backward(out, .gradient = torch_find(list, name, "gout", -1)));
    torch_compare(name, "the gradient", tr_grad(x), torch_find(list, name, "gin", 0), 1e-12);
    torch_compare_gradients(causal, list, name);
    torch_compare(name, "the output across", tr_forward(plain, tr_slice(x, 1, 0, 3), x, x),
        torch_find(list, name, "cross", -1), 1e-12);
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
