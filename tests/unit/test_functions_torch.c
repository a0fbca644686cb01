/*
 * The same answer as PyTorch: outputs and gradients of functions from tests/recorded/functions.safetensors
 * (record_functions.py says how they were made), in f64 and in f32.
 */
#include "recorded.h"
#include "torch_cases.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CASE(name, call) \
    static tr_tensor *name(tr_tensor **in) { tr_tensor *x = in[0]; return call; }

CASE(silu, tr_silu(x))
CASE(mish, tr_mish(x))
CASE(softplus, tr_softplus(x))
CASE(log_sigmoid, tr_log_sigmoid(x))
CASE(hardswish, tr_hardswish(x))
CASE(hardsigmoid, tr_hardsigmoid(x))
CASE(selu, tr_selu(x))
CASE(leaky_relu, tr_leaky_relu(x, 0.1))
CASE(elu, tr_elu(x, 0.7))
CASE(clamp, tr_clamp(x, -0.5, 1))
CASE(power, tr_pow(x, 1.7))
CASE(cube, tr_pow(x, 3))
CASE(sine, tr_sin(x))
CASE(cosine, tr_cos(x))

/* A loss with each reduction. */
#define LOSS(name, call)                                                                                         \
    static tr_tensor *name(tr_tensor *x, tr_tensor *y, tr_reduction r) { return call; }                          \
    static tr_tensor *name##_mean(tr_tensor **in) { return name(in[0], in[1], TR_REDUCE_MEAN); }                 \
    static tr_tensor *name##_sum(tr_tensor **in) { return name(in[0], in[1], TR_REDUCE_SUM); }                   \
    static tr_tensor *name##_none(tr_tensor **in) { return name(in[0], in[1], TR_REDUCE_NONE); }

LOSS(mse, tr_mse_loss(x, y, .reduction = r))
LOSS(l1, tr_l1_loss(x, y, .reduction = r))
LOSS(huber, tr_huber_loss(x, y, .delta = 0.7, .reduction = r))
LOSS(smooth_l1, tr_smooth_l1_loss(x, y, .delta = 0.5, .reduction = r))
LOSS(bce, tr_bce_with_logits(x, y, .reduction = r))
LOSS(kl, tr_kl_div(x, y, .reduction = r))
LOSS(nll, tr_nll_loss(x, y, .reduction = r))
LOSS(cross_entropy, tr_cross_entropy(x, y, .label_smoothing = 0.2, .reduction = r))
CASE(cross_entropy_ignore_index, tr_cross_entropy(x, in[1], .ignore_index = 2))
CASE(kl_log_target, tr_kl_div(x, in[1], .log_target = true))

static tr_tensor *bce_pos_weight(tr_tensor **in)
{
    tr_tensor *weight = tr_affine(tr_cast(tr_arange(5, TR_F64, tr_cpu(0)), tr_dtype_of(in[0])), 1, 1);
    return tr_bce_with_logits(in[0], in[1], .pos_weight = weight);
}

static tr_tensor *kl_zero(tr_tensor **in)
{
    const double probabilities[] = {0, 1, 0, 0.5, 0, 0.5};
    tr_tensor *target = tr_from(probabilities, TR_SHAPE(2, 3), .dtype = TR_F64);
    return tr_kl_div(in[0], tr_cast(target, tr_dtype_of(in[0])), .reduction = TR_REDUCE_SUM);
}

CASE(where, tr_where(x, in[1], in[2]))
CASE(masked_fill, tr_masked_fill(x, in[1], -1.5))
CASE(gather_0, tr_take_along(x, 0, in[1]))
CASE(gather_1, tr_take_along(x, 1, in[1]))
CASE(scatter_add_0, tr_scatter_add(x, 0, in[1], in[2]))
CASE(scatter_add_1, tr_scatter_add(x, 1, in[1], in[2]))
CASE(index_select_0, tr_index_select(x, 0, in[1]))
CASE(index_select_1, tr_index_select(x, 1, in[1]))
CASE(flip, tr_flip(tr_flip(x, 0), 2))
CASE(one_hot, tr_mul(x, tr_one_hot(in[1], 4, tr_dtype_of(x))))

static const torch_case cases[] = {
    {"silu", silu},
    {"mish", mish},
    {"softplus", softplus},
    {"logsigmoid", log_sigmoid},
    {"hardswish", hardswish},
    {"hardsigmoid", hardsigmoid},
    {"selu", selu},
    {"leaky_relu", leaky_relu},
    {"elu", elu},
    {"clamp", clamp},
    {"pow", power},
    {"pow_cube", cube},
    {"sin", sine},
    {"cos", cosine},
    {"mse_mean", mse_mean},
    {"mse_sum", mse_sum},
    {"mse_none", mse_none},
    {"l1_mean", l1_mean},
    {"l1_sum", l1_sum},
    {"l1_none", l1_none},
    {"huber_mean", huber_mean},
    {"huber_sum", huber_sum},
    {"huber_none", huber_none},
    {"smooth_l1_mean", smooth_l1_mean},
    {"smooth_l1_sum", smooth_l1_sum},
    {"smooth_l1_none", smooth_l1_none},
    {"bce_mean", bce_mean},
    {"bce_sum", bce_sum},
    {"bce_none", bce_none},
    {"kl_mean", kl_mean},
    {"kl_sum", kl_sum},
    {"kl_none", kl_none},
    {"nll_mean", nll_mean},
    {"nll_sum", nll_sum},
    {"nll_none", nll_none},
    {"cross_entropy_mean", cross_entropy_mean},
    {"cross_entropy_sum", cross_entropy_sum},
    {"cross_entropy_none", cross_entropy_none},
    {"cross_entropy_ignore_index", cross_entropy_ignore_index},
    {"bce_pos_weight", bce_pos_weight},
    {"kl_log_target", kl_log_target},
    {"kl_zero", kl_zero},
    {"where", where},
    {"masked_fill", masked_fill},
    {"gather_0", gather_0},
    {"gather_1", gather_1},
    {"scatter_add_0", scatter_add_0},
    {"scatter_add_1", scatter_add_1},
    {"index_select_0", index_select_0},
    {"index_select_1", index_select_1},
    {"flip", flip},
    {"one_hot", one_hot},
};

static void check_in(tr_dtype dtype, double tolerance)
{
    TR_SCOPE;
    torch_cases_check(recorded("functions"), cases, sizeof cases / sizeof *cases, dtype, tolerance);
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
