/*
 * The same answer as PyTorch: outputs and gradients of functions from tests/recorded/functions.safetensors
 * (record_functions.py says how they were made), in f64 and in f32.
 */
#include "recorded.h"
#include "torch_cases.h"

#include <math.h>
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

/* The weights in record_functions.py. */
static tr_tensor *weights(tr_tensor *like)
{
    static const double each[] = {0.5, 2, 1, 0.25, 3};
    return tr_cast(tr_from(each, TR_SHAPE(5), .dtype = TR_F64), tr_dtype_of(like));
}

LOSS(nll_weighted, tr_nll_loss(x, y, .weight = weights(x), .reduction = r))
LOSS(cross_entropy_weighted, tr_cross_entropy(x, y, .weight = weights(x), .label_smoothing = 0.2, .reduction = r))
LOSS(cross_entropy_soft, tr_cross_entropy(x, y, .reduction = r))
LOSS(cross_entropy_soft_weighted, tr_cross_entropy(x, y, .weight = weights(x), .label_smoothing = 0.2, .reduction = r))
LOSS(bce_weighted,
    tr_bce_with_logits(x, y, .weight = weights(x), .pos_weight = tr_affine(weights(x), 1, 1), .reduction = r))
CASE(cross_entropy_weighted_ignore, tr_cross_entropy(x, in[1], .weight = weights(x), .ignore_index = 2))
CASE(softsign, tr_softsign(x))
CASE(celu, tr_celu(x, 0.5))
CASE(glu, tr_glu(x, 1))
CASE(prelu, tr_prelu_op(x, in[1]))
CASE(log_sum_exp, tr_log_sum_exp(x, TR_DIMS(0, 2)))
CASE(put_along, tr_put_along(x, 1, in[1], in[2]))
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

CASE(rms_norm, tr_rms_norm_op(x, in[1], 1e-5))
CASE(group_norm, tr_group_norm_op(x, 2, in[1], in[2], 1e-5))
CASE(instance_norm, tr_group_norm_op(x, 3, NULL, NULL, 1e-5))
CASE(min, tr_min(x, -1))
CASE(argmin, tr_add(tr_cast(tr_argmin(x, -1), tr_dtype_of(x)), tr_affine(tr_sum(x, -1), 0, 0)))
CASE(prod, tr_prod(x, 1))
CASE(norm, tr_norm(x, 2, TR_DIMS(0, 2)))
CASE(norm_zero, tr_norm(x, 2, 1))
CASE(norm_1, tr_norm(x, 1, 1))
CASE(norm_3, tr_norm(x, 3))
CASE(norm_most, tr_norm(x, INFINITY, 1))
CASE(var, tr_var(x, 1))
CASE(var_biased, tr_var(x, TR_DIMS(0, 2), .keep = true, .biased = true))
CASE(std, tr_std(x))
CASE(std_zero, tr_std(x, 1))
CASE(cumsum, tr_cumsum(x, 1))
CASE(topk, tr_topk(x, 3, -1))
CASE(topk_smallest, tr_topk(x, 2, 0, .smallest = true))
CASE(max_dim, tr_topk(x, 1, 1))
CASE(sort, tr_sort(x, 1))
CASE(sort_last, tr_sort(x, -1))
CASE(topk_long, tr_topk(x, 20, -1))
CASE(sort_descending, tr_sort(x, -1, .descending = true))
CASE(einsum, tr_einsum("bij,bjk->kbi", x, in[1]))
CASE(einsum_sums, tr_einsum("abcx,dbay->acdb", x, in[1]))
CASE(einsum_outer, tr_einsum("ab,c->acb", x, in[1]))
CASE(einsum_scalar, tr_einsum("ab,ba->", x, in[1]))
CASE(pad, tr_pad(x, .before = {0, 1, 2}, .after = {0, 3}, .value = -1.5))
CASE(stack, tr_stack(((tr_tensor *[]){x, in[1], x}), 3, 1))
CASE(rotary, tr_rotary(x))
CASE(rotary_interleaved, tr_rotary(x, .interleaved = true, .first = 5))
CASE(attention_groups, tr_attention(x, in[1], in[2], .causal = true))
CASE(attention_lengths, tr_attention(x, in[1], in[2], .lengths = in[3]))

static tr_tensor *argsort(tr_tensor **in)
{
    tr_tensor *at, *sorted = tr_sort(in[0], -1, .indices = &at);
    return tr_add(tr_cast(at, tr_dtype_of(in[0])), tr_affine(sorted, 0, 0));
}

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
    {"nll_weighted_mean", nll_weighted_mean},
    {"nll_weighted_sum", nll_weighted_sum},
    {"nll_weighted_none", nll_weighted_none},
    {"cross_entropy_weighted_mean", cross_entropy_weighted_mean},
    {"cross_entropy_weighted_sum", cross_entropy_weighted_sum},
    {"cross_entropy_weighted_none", cross_entropy_weighted_none},
    {"cross_entropy_weighted", cross_entropy_weighted_ignore},
    {"cross_entropy_soft_mean", cross_entropy_soft_mean},
    {"cross_entropy_soft_sum", cross_entropy_soft_sum},
    {"cross_entropy_soft_none", cross_entropy_soft_none},
    {"cross_entropy_soft_weighted_mean", cross_entropy_soft_weighted_mean},
    {"cross_entropy_soft_weighted_sum", cross_entropy_soft_weighted_sum},
    {"cross_entropy_soft_weighted_none", cross_entropy_soft_weighted_none},
    {"bce_weighted_mean", bce_weighted_mean},
    {"bce_weighted_sum", bce_weighted_sum},
    {"bce_weighted_none", bce_weighted_none},
    {"softsign", softsign},
    {"celu", celu},
    {"glu", glu},
    {"prelu", prelu},
    {"log_sum_exp", log_sum_exp},
    {"scatter", put_along},
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
    {"rms_norm", rms_norm},
    {"group_norm", group_norm},
    {"instance_norm", instance_norm},
    {"min", min},
    {"argmin", argmin},
    {"prod", prod},
    {"norm", norm},
    {"norm_zero", norm_zero},
    {"norm_1", norm_1},
    {"norm_3", norm_3},
    {"norm_most", norm_most},
    {"var", var},
    {"var_biased", var_biased},
    {"std", std},
    {"std_zero", std_zero},
    {"cumsum", cumsum},
    {"topk", topk},
    {"topk_smallest", topk_smallest},
    {"max_dim", max_dim},
    {"sort", sort},
    {"sort_long", sort_last},
    {"topk_long", topk_long},
    {"sort_descending", sort_descending},
    {"einsum", einsum},
    {"einsum_sums", einsum_sums},
    {"einsum_outer", einsum_outer},
    {"einsum_scalar", einsum_scalar},
    {"pad", pad},
    {"stack", stack},
    {"rotary", rotary},
    {"rotary_interleaved", rotary_interleaved},
    {"attention_groups", attention_groups},
    {"attention_lengths", attention_lengths},
    {"min_tied", min},
    {"prod_zero", prod},
    {"argsort_stable", argsort},
    {"attention_groups_lengths", attention_lengths},
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
