#include "op_cases.h"

#define COUNT(...) (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t))
#define SIZES(...) {COUNT(__VA_ARGS__), {__VA_ARGS__}}
#define NORMAL(...) {.shape = SIZES(__VA_ARGS__)}
#define NORMAL_FIXED(...) {.shape = SIZES(__VA_ARGS__), .fixed = true}
#define WIDE(...) {.shape = SIZES(__VA_ARGS__), .values = OP_WIDE}
#define POSITIVE(...) {.shape = SIZES(__VA_ARGS__), .values = OP_POSITIVE}
#define APART(...) {.shape = SIZES(__VA_ARGS__), .values = OP_APART}
#define GRID(...) {.shape = SIZES(__VA_ARGS__), .values = OP_GRID}
#define GRID_FIXED(...) {.shape = SIZES(__VA_ARGS__), .values = OP_GRID, .fixed = true}
#define IDS(limit_, ...) {.shape = SIZES(__VA_ARGS__), .values = OP_IDS, .limit = (limit_)}
#define IDS32(limit_, ...) {.shape = SIZES(__VA_ARGS__), .values = OP_IDS32, .limit = (limit_)}
#define LABELS(limit_, ...) {.shape = SIZES(__VA_ARGS__), .values = OP_LABELS, .limit = (limit_)}
#define MASK(...) {.shape = SIZES(__VA_ARGS__), .values = OP_MASK}

/* ---- What the cases call --------------------------------------------------------------------------------------- */

#define UNARY(name, call) \
    static tr_tensor *name(tr_tensor *const *in) { tr_tensor *x = in[0]; return call; }
#define BINARY(name, call) \
    static tr_tensor *name(tr_tensor *const *in) { tr_tensor *a = in[0], *b = in[1]; return call; }

BINARY(add, tr_add(a, b))
BINARY(sub, tr_sub(a, b))
BINARY(mul, tr_mul(a, b))
BINARY(divide, tr_div(a, b))
BINARY(maximum, tr_maximum(a, b))
BINARY(minimum, tr_minimum(a, b))
UNARY(affine, tr_affine(x, -1.5, 0.25))
UNARY(neg, tr_neg(x))
UNARY(exponential, tr_exp(x))
UNARY(logarithm, tr_log(x))
UNARY(square_root, tr_sqrt(x))
UNARY(absolute, tr_abs(x))
UNARY(hyperbolic, tr_tanh(x))
UNARY(sigmoid, tr_sigmoid(x))
UNARY(relu, tr_relu(x))
UNARY(gelu, tr_gelu(x))
UNARY(gelu_exact, tr_gelu_exact(x))
UNARY(silu, tr_silu(x))
UNARY(mish, tr_mish(x))
UNARY(softplus, tr_softplus(x))
UNARY(log_sigmoid, tr_log_sigmoid(x))
UNARY(hardswish, tr_hardswish(x))
UNARY(hardsigmoid, tr_hardsigmoid(x))
UNARY(leaky_relu, tr_leaky_relu(x, 0.1))
UNARY(elu, tr_elu(x, 0.7))
UNARY(selu, tr_selu(x))
UNARY(clamp, tr_clamp(x, -0.5, 1))
UNARY(power, tr_pow(x, 1.7))
UNARY(sine, tr_sin(x))
UNARY(cosine, tr_cos(x))
UNARY(dropout, tr_dropout(x, .p = 0.4, .seed = 7, .step = 3, .first_sample = 5))

UNARY(dropout_of_numbers, tr_sum(tr_dropout(x, .p = 0.4, .seed = 7))) /* the gradient that arrives is expanded */

UNARY(softsign, tr_softsign(x))
UNARY(celu, tr_celu(x, 0.7))
UNARY(glu, tr_glu(x, 1))
BINARY(prelu, tr_prelu_op(a, b))
UNARY(log_sum_exp, tr_log_sum_exp(x, TR_DIMS(0, 2)))

UNARY(sum_all, tr_sum(x))
UNARY(sum_last, tr_sum(x, -1))
UNARY(sum_first, tr_sum(x, 0))
UNARY(sum_middle_kept, tr_sum(x, 1, .keep = true))
UNARY(sum_outer_and_last, tr_sum(x, TR_DIMS(0, 2)))
UNARY(mean_all, tr_mean(x))
UNARY(mean_last_two, tr_mean(x, TR_DIMS(1, 2), .keep = true))
UNARY(max_all, tr_max(x))
UNARY(max_last, tr_max(x, -1))
UNARY(max_first_kept, tr_max(x, 0, .keep = true))
UNARY(argmax_last, tr_cast(tr_argmax(x, -1), tr_dtype_of(x)))

UNARY(softmax_last, tr_softmax(x, -1))
UNARY(softmax_middle, tr_softmax(x, 1))
UNARY(log_softmax_last, tr_log_softmax(x, -1))
UNARY(log_softmax_middle, tr_log_softmax(x, 1))

static tr_tensor *cross_entropy(tr_tensor *const *in)
{
    return tr_cross_entropy(in[0], in[1]);
}

static tr_tensor *cross_entropy_smoothed(tr_tensor *const *in)
{
    return tr_cross_entropy(in[0], in[1], .label_smoothing = 0.2);
}

static tr_tensor *cross_entropy_rows(tr_tensor *const *in)
{
    return tr_cross_entropy(in[0], in[1], .label_smoothing = 0.1, .reduction = TR_REDUCE_NONE);
}

BINARY(cross_entropy_sum, tr_cross_entropy(a, b, .reduction = TR_REDUCE_SUM))
BINARY(nll, tr_nll_loss(a, b))
BINARY(nll_rows, tr_nll_loss(a, b, .reduction = TR_REDUCE_NONE))
static tr_tensor *cross_entropy_weighted(tr_tensor *const *in)
{
    return tr_cross_entropy(in[0], in[1], .weight = in[2]);
}

static tr_tensor *cross_entropy_weighted_smoothed(tr_tensor *const *in)
{
    return tr_cross_entropy(in[0], in[1], .weight = in[2], .label_smoothing = 0.2);
}

BINARY(cross_entropy_soft, tr_cross_entropy(a, b))
BINARY(cross_entropy_soft_rows, tr_cross_entropy(a, b, .label_smoothing = 0.2, .reduction = TR_REDUCE_NONE))
static tr_tensor *cross_entropy_soft_weighted(tr_tensor *const *in)
{
    return tr_cross_entropy(in[0], in[1], .weight = in[2], .label_smoothing = 0.2);
}

static tr_tensor *nll_weighted(tr_tensor *const *in)
{
    return tr_nll_loss(in[0], in[1], .weight = in[2]);
}

BINARY(mse, tr_mse_loss(a, b))
BINARY(mse_elements, tr_mse_loss(a, b, .reduction = TR_REDUCE_NONE))
BINARY(l1, tr_l1_loss(a, b, .reduction = TR_REDUCE_NONE))
BINARY(huber, tr_huber_loss(a, b, .delta = 0.7, .reduction = TR_REDUCE_NONE))
BINARY(smooth_l1, tr_smooth_l1_loss(a, b, .delta = 0.5, .reduction = TR_REDUCE_SUM))
BINARY(bce, tr_bce_with_logits(a, b, .reduction = TR_REDUCE_NONE))
BINARY(kl, tr_kl_div(a, b, .reduction = TR_REDUCE_NONE))
BINARY(kl_log, tr_kl_div(a, b, .log_target = true))

static tr_tensor *bce_weighted(tr_tensor *const *in)
{
    return tr_bce_with_logits(in[0], in[1], .pos_weight = in[2], .weight = in[3]);
}

BINARY(less, tr_cast(tr_less(a, b), tr_dtype_of(a)))
BINARY(less_or_equal, tr_cast(tr_less_equal(a, b), tr_dtype_of(a)))
BINARY(greater, tr_cast(tr_greater(a, b), tr_dtype_of(a)))
BINARY(greater_or_equal, tr_cast(tr_greater_equal(a, b), tr_dtype_of(a)))
BINARY(equal, tr_cast(tr_equal(a, b), tr_dtype_of(a)))
BINARY(not_equal, tr_cast(tr_not_equal(a, b), tr_dtype_of(a)))
BINARY(masked_fill, tr_masked_fill(a, b, 0.5))

static tr_tensor *where(tr_tensor *const *in)
{
    return tr_where(in[0], in[1], in[2]);
}

BINARY(take_first, tr_take_along(a, 0, b))
BINARY(take_middle, tr_take_along(a, 1, b))
BINARY(take_last, tr_take_along(a, -1, b))
BINARY(index_select, tr_index_select(a, 1, b))
BINARY(one_hot, tr_mul(a, tr_one_hot(b, 5, tr_dtype_of(a))))
UNARY(flip_first, tr_flip(x, 0))
UNARY(flip_last, tr_flip(x, -1))

static tr_tensor *scatter_add_first(tr_tensor *const *in)
{
    return tr_scatter_add(in[0], 0, in[1], in[2]);
}

static tr_tensor *scatter_add_last(tr_tensor *const *in)
{
    return tr_scatter_add(in[0], -1, in[1], in[2]);
}

/* Each number once: of equal ones the last counts. */
static tr_tensor *put_reversed(tr_tensor *const *in)
{
    tr_tensor *line = tr_reshape(tr_flip(tr_arange(4, TR_I64, tr_cpu(0)), 0), TR_SHAPE(4, 1));
    return tr_put_along(in[0], 1, tr_expand(line, tr_shape_of(in[1])), in[1]);
}

static tr_tensor *layer_norm(tr_tensor *const *in)
{
    return tr_layer_norm_op(in[0], in[1], in[2], 1e-5);
}

BINARY(rms_norm, tr_rms_norm_op(a, b, 1e-5))
UNARY(rms_norm_plain, tr_rms_norm_op(x, NULL, 1e-5))
UNARY(group_norm_plain, tr_group_norm_op(x, 3, NULL, NULL, 1e-5))

static tr_tensor *group_norm(tr_tensor *const *in)
{
    return tr_group_norm_op(in[0], 2, in[1], in[2], 1e-5);
}

UNARY(rotary, tr_rotary(x, .first = 3))
UNARY(rotary_neighbours, tr_rotary(x, .base = 100, .interleaved = true))
BINARY(einsum, tr_einsum("bij,bjk->kbi", a, b))
BINARY(einsum_mixed, tr_einsum("abcx,dbay->acdb", a, b))
BINARY(einsum_outer, tr_einsum("ab,c->acb", a, b))
UNARY(min_last, tr_min(x, -1))
UNARY(argmin_last, tr_cast(tr_argmin(x, -1), tr_dtype_of(x)))
UNARY(product_last, tr_prod(x, -1))
UNARY(product_middle, tr_prod(x, 1))
UNARY(norm_middle, tr_norm(x, 2, 1, .keep = true))
UNARY(norm_all, tr_norm(x))
UNARY(norm_1, tr_norm(x, 1, 0))
UNARY(norm_3, tr_norm(x, 3, -1))
UNARY(norm_most, tr_norm(x, 1.0 / 0.0, -1))
UNARY(variance, tr_var(x, -1))
UNARY(variance_biased, tr_var(x, TR_DIMS(0, 2), .keep = true, .biased = true))
UNARY(deviation, tr_std(x, 1))
UNARY(cumsum_last, tr_cumsum(x, -1))
UNARY(cumsum_middle, tr_cumsum(x, 1))
UNARY(topk_last, tr_topk(x, 3, -1))
UNARY(topk_smallest, tr_topk(x, 2, 1, .smallest = true))
UNARY(topk_most, tr_topk(x, 150, -1))
UNARY(sort_last, tr_sort(x, -1, .descending = true))
UNARY(sort_middle, tr_sort(x, 1))
UNARY(pad, tr_pad(x, .before = {0, 1, 2}, .after = {0, 3}, .value = -1))
BINARY(stack, tr_stack(((tr_tensor *[]){a, b, a}), 3, 1))

static tr_tensor *attention_of_lengths(tr_tensor *const *in)
{
    return tr_attention(in[0], in[1], in[2], .lengths = in[3]);
}

static tr_tensor *attention_of_groups(tr_tensor *const *in)
{
    return tr_attention(in[0], in[1], in[2], .causal = true, .mask = in[3]);
}

static tr_tensor *layer_norm_plain(tr_tensor *const *in)
{
    return tr_layer_norm_op(in[0], NULL, NULL, 1e-5);
}

static tr_tensor *layer_norm_no_bias(tr_tensor *const *in)
{
    return tr_layer_norm_op(in[0], in[1], NULL, 1e-5);
}

static tr_tensor *embedding(tr_tensor *const *in)
{
    return tr_embedding_op(in[1], in[0]);
}

BINARY(matmul, tr_matmul(a, b))

static tr_tensor *linear(tr_tensor *const *in)
{
    return tr_linear_op(in[0], in[1]);
}

static tr_tensor *linear_with_all(tr_tensor *const *in)
{
    return tr_linear_op(in[0], in[1], .bias = in[2], .residual = in[3], .in_out = true);
}

static tr_tensor *linear_of_gelu(tr_tensor *const *in)
{
    return tr_linear_op(in[0], in[1], .bias = in[2], .residual = in[3], .in_out = true, .activation = TR_GELU);
}

static tr_tensor *linear_of_gelu_exact(tr_tensor *const *in)
{
    return tr_linear_op(in[0], in[1], .activation = TR_GELU_EXACT);
}

static tr_tensor *linear_of_relu(tr_tensor *const *in)
{
    return tr_linear_op(in[0], in[1], .bias = in[2], .activation = TR_RELU);
}

static tr_tensor *conv(tr_tensor *const *in)
{
    return tr_conv2d_op(in[0], in[1], .bias = in[2], .padding = 1);
}

static tr_tensor *conv_half(tr_tensor *const *in)
{
    return tr_conv2d_op(in[0], in[1], .stride = 2, .padding = 2);
}

static tr_tensor *conv_plain(tr_tensor *const *in)
{
    return tr_conv2d_op(in[0], in[1]);
}

static tr_tensor *conv_sparse(tr_tensor *const *in)
{
    return tr_conv2d_op(in[0], in[1], .bias = in[2], .stride = 2);
}

static tr_tensor *conv_by_two(tr_tensor *const *in)
{
    return tr_conv2d_op(in[0], in[1], .bias = in[2], .stride = 2, .padding = 1);
}

static tr_tensor *conv_apart(tr_tensor *const *in)
{
    return tr_conv2d_op(in[0], in[1], .stride = 2, .padding = 2, .dilation = 2);
}

static tr_tensor *conv_groups(tr_tensor *const *in)
{
    return tr_conv2d_op(in[0], in[1], .bias = in[2], .stride = 2, .groups = 2);
}

static tr_tensor *conv_line(tr_tensor *const *in)
{
    return tr_conv1d_op(in[0], in[1], .bias = in[2], .stride = 2, .padding = 2, .dilation = 2);
}

static tr_tensor *conv_back(tr_tensor *const *in)
{
    return tr_conv_transpose2d_op(in[0], in[1], .bias = in[2], .stride = 2, .padding = 1, .output_padding = 1);
}

BINARY(conv_back_groups, tr_conv_transpose2d_op(a, b, .output_padding = 1, .dilation = 2, .groups = 2))
BINARY(conv_line_groups, tr_conv1d_op(a, b, .groups = 2))
BINARY(conv_line_back_beyond, tr_conv_transpose1d_op(a, b, .stride = 3, .output_padding = 2, .groups = 2))

static tr_tensor *conv_line_back(tr_tensor *const *in)
{
    return tr_conv_transpose1d_op(in[0], in[1], .bias = in[2], .stride = 2, .padding = 1, .output_padding = 1);
}

/* As in a net: each takes the other's output as it lies, and its gradient. */
static tr_tensor *conv_relu_pool(tr_tensor *const *in)
{
    return tr_max_pool2d(tr_relu(tr_conv2d_op(in[0], in[1], .bias = in[2])), 2);
}

UNARY(max_pool, tr_max_pool2d(x, 2))
UNARY(max_pool_overlapping, tr_max_pool2d(x, 3, .stride = 2, .padding = 1))

UNARY(avg_pool, tr_avg_pool2d(x, 2))
UNARY(avg_pool_overlapping, tr_avg_pool2d(x, 3, .stride = 2, .padding = 1))
UNARY(adaptive_pool, tr_adaptive_avg_pool2d(x, 3, 4))
UNARY(adaptive_pool_all, tr_adaptive_avg_pool2d(x, 1, 1))

UNARY(adaptive_max_pool, tr_adaptive_max_pool2d(x, 3, 4))
UNARY(max_pool_line, tr_max_pool1d(x, 3, .stride = 2, .padding = 1))
UNARY(avg_pool_line, tr_avg_pool1d(x, 3, .stride = 2, .padding = 1))
UNARY(max_pool_line_tiled, tr_max_pool1d(x, 2))
UNARY(avg_pool_line_tiled, tr_avg_pool1d(x, 3))
UNARY(adaptive_max_pool_line, tr_adaptive_max_pool1d(x, 3))
UNARY(adaptive_avg_pool_line, tr_adaptive_avg_pool1d(x, 5))
UNARY(nearest, tr_interpolate(x, .height = 5, .width = 3))
UNARY(bilinear, tr_interpolate(x, .scale = 2, .mode = TR_INTERPOLATE_BILINEAR))
UNARY(bilinear_aligned, tr_interpolate(x, .height = 3, .width = 9, .mode = TR_INTERPOLATE_BILINEAR, .align_corners = true))
UNARY(bicubic, tr_interpolate(x, .scale = 1.7, .mode = TR_INTERPOLATE_BICUBIC))
UNARY(linear_line, tr_interpolate(x, .width = 11, .mode = TR_INTERPOLATE_BILINEAR))

/* As in a net: channels-last. */
static tr_tensor *conv_bicubic(tr_tensor *const *in)
{
    return tr_interpolate(tr_conv2d_op(in[0], in[1]), .height = 7, .width = 3, .mode = TR_INTERPOLATE_BICUBIC);
}

static tr_tensor *batch_norm(tr_tensor *const *in)
{
    return tr_batch_norm_op(in[0], .weight = in[1], .bias = in[2], .training = true);
}

/* Parameters as they are under autocast: f32 beside numbers of 16 bits. */
static tr_tensor *learned(tr_tensor *t)
{
    return tr_dtype_of(t) == TR_F64 ? t : tr_cast(t, TR_F32);
}

static tr_tensor *batch_norm_mixed(tr_tensor *const *in)
{
    return tr_batch_norm_op(in[0], .weight = learned(in[1]), .bias = learned(in[2]), .training = true);
}

UNARY(batch_norm_plain, tr_batch_norm_op(x, .training = true, .eps = 1e-3))

static tr_tensor *batch_norm_frozen(tr_tensor *const *in)
{
    tr_tensor *numbers = tr_cast(tr_arange(5, TR_I64, tr_cpu(0)), TR_F32);
    return tr_batch_norm_op(in[0], .weight = in[1], .bias = in[2], .running_mean = tr_affine(numbers, 0.3, -0.5),
        .running_var = tr_affine(numbers, 0.2, 0.5));
}

static tr_tensor *batch_norm_relu(tr_tensor *const *in)
{
    return tr_batch_norm_op(in[0], .weight = in[1], .bias = in[2], .training = true, .relu = true);
}

static tr_tensor *batch_norm_residual(tr_tensor *const *in)
{
    return tr_batch_norm_op(in[0], .weight = in[1], .bias = in[2], .training = true, .residual = in[3]);
}

static tr_tensor *batch_norm_residual_relu(tr_tensor *const *in)
{
    return tr_batch_norm_op(in[0], .weight = in[1], .bias = in[2], .training = true, .residual = in[3], .relu = true);
}

static tr_tensor *batch_norm_frozen_relu(tr_tensor *const *in)
{
    tr_tensor *mean = tr_full(0.25, TR_SHAPE(5)), *var = tr_full(1.5, TR_SHAPE(5));
    return tr_batch_norm_op(in[0], .residual = in[1], .running_mean = mean, .running_var = var, .relu = true);
}

static tr_tensor *attention(tr_tensor *const *in)
{
    return tr_attention(in[0], in[1], in[2]);
}

static tr_tensor *attention_causal(tr_tensor *const *in)
{
    return tr_attention(in[0], in[1], in[2], .causal = true, .scale = 0.4);
}

static tr_tensor *attention_masked(tr_tensor *const *in)
{
    return tr_attention(in[0], in[1], in[2], .mask = in[3]);
}

UNARY(self_attention, tr_self_attention(x, 3, .causal = true))

UNARY(reshape_view, tr_reshape(x, TR_SHAPE(-1, 2, tr_size(x, 2) / 2)))
UNARY(reshape_copy, tr_reshape(tr_transpose(x, 1, 2), TR_SHAPE(tr_size(x, 0), 10, 2)))
UNARY(permute, tr_permute(x, (int[]){2, 0, 1}, 3))
UNARY(transpose, tr_transpose(x, 0, -1))
UNARY(expand, tr_expand(x, TR_SHAPE(2, tr_size(x, 0), 3, tr_size(x, 2))))
UNARY(slice, tr_slice(x, 1, 1, -1))
UNARY(select_middle, tr_select(x, 1, -2))
UNARY(unsqueeze_last, tr_unsqueeze(x, -1))
UNARY(squeeze_middle, tr_squeeze(x, 1))
UNARY(contiguous, tr_contiguous(tr_transpose(x, 0, 1)))
UNARY(there_and_back, tr_to(tr_affine(tr_to(x, tr_cpu(1)), 2, 0), tr_cpu(0)))
UNARY(cast_to_f32, tr_cast(tr_cast(x, TR_F32), tr_dtype_of(x)))

/* The middle part is not used: its gradient is zero. */
static tr_tensor *split(tr_tensor *const *in)
{
    tr_tensor *parts[3];
    if (tr_split(in[0], 3, 1, parts) != TR_OK) return tr_slice(in[0], 1, 9, 9);
    return tr_mul(parts[0], parts[2]);
}

static tr_tensor *split_last(tr_tensor *const *in)
{
    tr_tensor *parts[3];
    if (tr_split(in[0], 3, 1, parts) != TR_OK) return tr_slice(in[0], 1, 9, 9);
    return parts[2];
}

static tr_tensor *cat(tr_tensor *const *in)
{
    return tr_cat((tr_tensor *[]){in[0], in[1], in[0]}, 3, 1);
}

static tr_tensor *cat_many(tr_tensor *const *in)
{
    tr_tensor *parts[67];
    for (int i = 0; i < 67; i++) parts[i] = in[i % 2];
    return tr_cat(parts, 67, -1);
}

/* ---- The list -------------------------------------------------------------------------------------------------- */

#define CASE(name_, run_, ...)                                                                                         \
    .name = name_, .run = run_, .inputs = {__VA_ARGS__},                                                               \
    .n = (int)(sizeof((op_input[]){__VA_ARGS__}) / sizeof(op_input))

/* Where two inputs are equal, a comparison is as for a smaller or a larger first and second one. */
#define COMPARES(first, second) \
    .no_grad_check = true, .nan = OP_NAN_COMPARES_FALSE, .kinks = {{0, 0.5, first}, {1, 0.5, second}}
/* Where they are equal, each gets half of both slopes. */
#define SHARES .kinks = {{0, 0.5, OP_BETWEEN}, {1, 0.5, OP_BETWEEN}}

/* clang-format off */
const op_case op_cases[] = {
    {CASE("add",                  add,            NORMAL(3, 5), NORMAL(3, 5))},
    {CASE("add row",              add,            NORMAL(4, 3, 7), NORMAL_FIXED(7))},
    {CASE("add column",           add,            NORMAL(4, 3, 7), NORMAL_FIXED(3, 1))},
    {CASE("add scalar",           add,            NORMAL(6, 4), {.shape = {0, {0}}})},
    {CASE("add both ways",        add,            NORMAL(4, 1, 5), NORMAL_FIXED(3, 1))},
    {CASE("sub",                  sub,            NORMAL(3, 5), NORMAL(3, 5))},
    {CASE("sub row",              sub,            NORMAL(4, 33), NORMAL_FIXED(33))},
    {CASE("mul",                  mul,            NORMAL(3, 5), NORMAL(3, 5))},
    {CASE("mul row",              mul,            NORMAL(3, 40), NORMAL_FIXED(40))},
    {CASE("mul outer",            mul,            NORMAL(5, 1), NORMAL_FIXED(1, 4))},
    {CASE("div",                  divide,         NORMAL(3, 5), POSITIVE(3, 5))},
    {CASE("div column",           divide,         NORMAL(3, 5), POSITIVE(3, 1))},
    {CASE("maximum",              maximum,        NORMAL(3, 5), NORMAL(3, 5)), SHARES},
    {CASE("minimum",              minimum,        NORMAL(3, 5), NORMAL_FIXED(5)), .kinks = {{0, 0.5, OP_BETWEEN}}},
    {CASE("affine",               affine,         NORMAL(3, 5))},
    {CASE("neg",                  neg,            NORMAL(3, 5))},
    {CASE("exp",                  exponential,    NORMAL(3, 5))},
    {CASE("log",                  logarithm,      POSITIVE(3, 5))},
    {CASE("sqrt",                 square_root,    POSITIVE(3, 5))},
    {CASE("abs",                  absolute,       NORMAL(3, 5)), .kinks = {{0, 0, OP_BETWEEN}}},
    {CASE("tanh",                 hyperbolic,     NORMAL(3, 5))},
    {CASE("sigmoid",              sigmoid,        NORMAL(3, 5))},
    {CASE("relu",                 relu,           NORMAL(3, 5)), .kinks = {{0, 0, OP_LEFT}}},
    {CASE("gelu",                 gelu,           NORMAL(3, 50))},
    {CASE("gelu wide",            gelu,           WIDE(3, 50))},
    {CASE("gelu exact",           gelu_exact,     NORMAL(3, 50))},
    {CASE("dropout",              dropout,        NORMAL(3, 5, 7))},
    {CASE("sum",                  sum_all,        POSITIVE(3, 5))},
    {CASE("sum last",             sum_last,       NORMAL(3, 5, 40))},
    {CASE("sum first",            sum_first,      NORMAL(3, 5, 40))},
    {CASE("sum middle",           sum_middle_kept, NORMAL(3, 5, 40))},
    {CASE("sum outer and last",   sum_outer_and_last, NORMAL(3, 5, 7))},
    {CASE("mean",                 mean_all,       NORMAL(3, 5))},
    {CASE("mean last two",        mean_last_two,  NORMAL(3, 5, 7))},
    {CASE("max",                  max_all,        APART(3, 5)), .not_empty = true},
    {CASE("max last",             max_last,       APART(3, 5, 7))},
    {CASE("max long",             max_last,       APART(2, 1100))},
    {CASE("max first",            max_first_kept, APART(3, 5, 7)), .not_empty = true},
    {CASE("max equal",            max_last,       GRID(3, 5, 70)), .no_grad_check = true},
    {CASE("argmax",               argmax_last,    APART(3, 5, 7)), .no_grad_check = true, .nan = OP_NAN_IS_LARGEST},
    {CASE("matmul",               matmul,         NORMAL(5, 7), NORMAL_FIXED(7, 4))},
    {CASE("matmul batched",       matmul,         NORMAL(3, 1, 4, 7), NORMAL_FIXED(2, 7, 5))},
    {CASE("matmul vector",        matmul,         NORMAL(3, 4, 7), NORMAL_FIXED(7))},
    {CASE("linear",               linear,         NORMAL(3, 4, 7), NORMAL_FIXED(5, 7))},
    {CASE("linear with all",      linear_with_all, NORMAL(3, 4, 7), NORMAL_FIXED(7, 5), NORMAL_FIXED(5), NORMAL(3, 4, 5))},
    {CASE("linear of gelu",       linear_of_gelu, NORMAL(3, 4, 7), NORMAL_FIXED(7, 5), NORMAL_FIXED(5), NORMAL(3, 4, 5))},
    {CASE("linear of gelu, whole vectors", linear_of_gelu, NORMAL(3, 4, 32), NORMAL_FIXED(32, 48), NORMAL_FIXED(48),
                                                  NORMAL(3, 4, 48))},
    {CASE("linear of exact gelu", linear_of_gelu_exact, NORMAL(3, 4, 32), NORMAL_FIXED(16, 32))},
    {CASE("linear of relu",       linear_of_relu, NORMAL(3, 4, 32), NORMAL_FIXED(16, 32), NORMAL_FIXED(16))},
    {CASE("linear of relu at zero", linear_of_relu, GRID(3, 4, 32), NORMAL_FIXED(16, 32), NORMAL_FIXED(16)), .no_grad_check = true},
    {CASE("conv",                 conv,           NORMAL(2, 3, 6, 7), NORMAL_FIXED(5, 3, 3, 3), NORMAL_FIXED(5))},
    {CASE("conv of one channel",  conv,           NORMAL(2, 1, 9, 9), NORMAL_FIXED(16, 1, 5, 5), NORMAL_FIXED(16))},
    {CASE("conv 1x1",             conv_plain,     NORMAL(2, 16, 4, 3), NORMAL_FIXED(24, 16, 1, 1))},
    {CASE("conv of taps apart",   conv_apart,     NORMAL(2, 4, 9, 8), NORMAL_FIXED(8, 4, 3, 2))},
    {CASE("conv in groups",       conv_groups,    NORMAL(2, 4, 7, 6), NORMAL_FIXED(6, 2, 3, 3), NORMAL_FIXED(6))},
    {CASE("conv, relu, pool",     conv_relu_pool, GRID(2, 3, 9, 8), GRID_FIXED(6, 3, 3, 3), GRID_FIXED(6)),
                                                  .no_grad_check = true}, /* exact, so that all dtypes choose alike */
    {CASE("conv of a line",       conv_line,      NORMAL(2, 3, 9), NORMAL_FIXED(5, 3, 3), NORMAL_FIXED(5))},
    {CASE("conv of a line in groups", conv_line_groups, NORMAL(2, 4, 7), NORMAL_FIXED(6, 2, 3))},
    {CASE("conv transposed",      conv_back,      NORMAL(2, 4, 3, 5), NORMAL_FIXED(4, 3, 3, 2), NORMAL_FIXED(3))},
    {CASE("conv transposed in groups", conv_back_groups, NORMAL(2, 4, 4, 3), NORMAL_FIXED(4, 3, 3, 3))},
    {CASE("conv of a line transposed", conv_line_back, NORMAL(2, 4, 6), NORMAL_FIXED(4, 3, 4), NORMAL_FIXED(3))},
    {CASE("conv of a line transposed, beyond", conv_line_back_beyond, NORMAL(2, 4, 6), NORMAL_FIXED(4, 3, 2))},
    {CASE("max pool",             max_pool,       APART(2, 3, 7, 6))},
    {CASE("max pool overlapping", max_pool_overlapping, APART(2, 20, 6, 5))},
    {CASE("max pool equal",       max_pool_overlapping, GRID(2, 9, 6, 5)), .no_grad_check = true},
    {CASE("avg pool",             avg_pool,       NORMAL(2, 3, 7, 6))},
    {CASE("avg pool overlapping", avg_pool_overlapping, NORMAL(2, 20, 6, 5))},
    {CASE("adaptive pool",        adaptive_pool,  NORMAL(2, 9, 7, 5))},
    {CASE("adaptive pool of all", adaptive_pool_all, NORMAL(2, 3, 7, 5))},
    {CASE("adaptive max pool",    adaptive_max_pool, APART(2, 3, 7, 5))},
    {CASE("max pool of a line",   max_pool_line,  APART(2, 5, 8))},
    {CASE("avg pool of a line",   avg_pool_line,  NORMAL(2, 5, 8))},
    {CASE("adaptive max pool of a line", adaptive_max_pool_line, APART(2, 5, 8))},
    {CASE("adaptive pool of a line", adaptive_avg_pool_line, NORMAL(2, 5, 8))},
    {CASE("nearest",              nearest,        NORMAL(2, 3, 4, 7))},
    {CASE("bilinear",             bilinear,       NORMAL(2, 3, 4, 5))},
    {CASE("bilinear of corners",  bilinear_aligned, NORMAL(2, 3, 4, 5))},
    {CASE("bicubic",              bicubic,        NORMAL(2, 3, 4, 5))},
    {CASE("bicubic of channels last", conv_bicubic, NORMAL(2, 3, 4, 5), NORMAL_FIXED(6, 3, 1, 1))},
    {CASE("linear of a line",     linear_line,    NORMAL(2, 3, 6))},
    {CASE("batch norm",           batch_norm,     NORMAL(3, 5, 4, 3), NORMAL_FIXED(5), NORMAL_FIXED(5))},
    {CASE("batch norm of many channels", batch_norm, NORMAL(9, 530), NORMAL_FIXED(530), NORMAL_FIXED(530))},
    {CASE("batch norm plain",     batch_norm_plain, WIDE(4, 9, 5))},
    {CASE("batch norm frozen",    batch_norm_frozen, NORMAL(3, 5, 4, 3), NORMAL_FIXED(5), NORMAL_FIXED(5))},
    {CASE("batch norm, relu",     batch_norm_relu, NORMAL(3, 5, 4, 3), NORMAL_FIXED(5), NORMAL_FIXED(5))},
    {CASE("batch norm and residual", batch_norm_residual, NORMAL(3, 5, 4, 3), NORMAL_FIXED(5), NORMAL_FIXED(5), NORMAL(3, 5, 4, 3))},
    {CASE("batch norm, residual, relu", batch_norm_residual_relu, NORMAL(3, 5, 4, 3), NORMAL_FIXED(5), NORMAL_FIXED(5),
                                                  NORMAL(3, 5, 4, 3)), .kinks = {{3, -0.5, OP_LEFT}}},
    {CASE("batch norm frozen, relu", batch_norm_frozen_relu, NORMAL(3, 5, 4, 3), NORMAL(3, 5, 4, 3))},
    {CASE("attention",            attention,      NORMAL(2, 2, 3, 8), NORMAL(2, 2, 5, 8), NORMAL(2, 2, 5, 8))},
    {CASE("attention of many keys", attention,    NORMAL(1, 1, 3, 8), NORMAL(1, 1, 300, 8), NORMAL(1, 1, 300, 8))},
    {CASE("attention causal",     attention_causal, NORMAL(2, 2, 7, 16), NORMAL(2, 2, 7, 16), NORMAL(2, 2, 7, 16))},
    {CASE("attention masked",     attention_masked, NORMAL(2, 2, 7, 4), NORMAL(2, 2, 5, 4), NORMAL(2, 2, 5, 4),
                                                  MASK(2, 1, 7, 5))},
    {CASE("self attention",       self_attention, NORMAL(2, 20, 3 * 3 * 16))},
    {CASE("softmax",              softmax_last,   WIDE(3, 5, 37))},
    {CASE("softmax long",         softmax_last,   WIDE(2, 1100))},
    {CASE("softmax middle",       softmax_middle, NORMAL(3, 5, 7))},
    {CASE("log softmax",          log_softmax_last, WIDE(3, 5, 37))},
    {CASE("log softmax middle",   log_softmax_middle, NORMAL(3, 5, 7))},
    {CASE("cross entropy",        cross_entropy,  WIDE(6, 5), IDS(5, 6))},
    {CASE("cross entropy ignore", cross_entropy,  WIDE(6, 4, 37), LABELS(37, 6, 4))},
    {CASE("cross entropy i32",    cross_entropy,  NORMAL(3, 600), IDS32(600, 3))},
    {CASE("layer norm",           layer_norm,     NORMAL(3, 5, 40), NORMAL_FIXED(40), NORMAL_FIXED(40))},
    {CASE("layer norm long",      layer_norm,     WIDE(9, 600), NORMAL_FIXED(600), NORMAL_FIXED(600))},
    {CASE("layer norm plain",     layer_norm_plain, NORMAL(3, 8))},
    {CASE("layer norm no bias",   layer_norm_no_bias, NORMAL(3, 5, 33), NORMAL_FIXED(33))},
    {CASE("embedding",            embedding,      NORMAL_FIXED(9, 20), IDS(9, 4, 6))},
    {CASE("embedding i32",        embedding,      NORMAL_FIXED(9, 600), IDS32(9, 5))},
    {CASE("reshape",              reshape_view,   NORMAL(3, 5, 4))},
    {CASE("reshape with a copy",  reshape_copy,   NORMAL(3, 5, 4))},
    {CASE("permute",              permute,        NORMAL(3, 5, 4))},
    {CASE("transpose",            transpose,      NORMAL(3, 5, 4))},
    {CASE("expand",               expand,         NORMAL(4, 1, 5))},
    {CASE("slice",                slice,          NORMAL(3, 5, 4))},
    {CASE("select",               select_middle,  NORMAL(3, 5, 4))},
    {CASE("unsqueeze",            unsqueeze_last, NORMAL(3, 5, 4))},
    {CASE("squeeze",              squeeze_middle, NORMAL(3, 1, 4))},
    {CASE("split",                split,          NORMAL(3, 6, 4))},
     {CASE("split, last part",     split_last,     NORMAL(3, 6, 4))},
    {CASE("cat",                  cat,            NORMAL(3, 6, 4), NORMAL(3, 2, 4))},
    {CASE("cat many",             cat_many,       NORMAL(3, 2), NORMAL(3, 5))},
    {CASE("contiguous",           contiguous,     NORMAL(3, 5, 4))},
    {CASE("cast",                 cast_to_f32,    NORMAL(3, 5)), .no_grad_check = true}, /* f32 has few digits */
    {CASE("to",                   there_and_back, NORMAL(3, 5))},
    {CASE("silu",                 silu,           WIDE(3, 50))},
     {CASE("mish",                 mish,           WIDE(3, 50))},
    {CASE("softplus",             softplus,       WIDE(3, 50))},
    {CASE("log sigmoid",          log_sigmoid,    WIDE(3, 50))},
    {CASE("hardswish",            hardswish,      WIDE(3, 50)), .kinks = {{0, -3, OP_LEFT}, {0, 3, OP_RIGHT}}},
    {CASE("hardsigmoid",          hardsigmoid,    WIDE(3, 50)), .kinks = {{0, -3, OP_LEFT}, {0, 3, OP_RIGHT}}},
    {CASE("leaky relu",           leaky_relu,     NORMAL(3, 50)), .kinks = {{0, 0, OP_LEFT}}},
    {CASE("elu",                  elu,            WIDE(3, 50)), .kinks = {{0, 0, OP_LEFT}}},
    {CASE("selu",                 selu,           NORMAL(3, 50)), .kinks = {{0, 0, OP_LEFT}}},
    {CASE("clamp",                clamp,          NORMAL(3, 50)), .kinks = {{0, -0.5, OP_RIGHT}, {0, 1, OP_LEFT}}},
    {CASE("softsign",             softsign,       WIDE(3, 50))},
    {CASE("celu",                 celu,           WIDE(3, 50))},
    {CASE("glu",                  glu,            NORMAL(3, 6, 4))},
    {CASE("prelu",                prelu,          NORMAL(3, 6, 4), NORMAL_FIXED(6)), .kinks = {{0, 0, OP_LEFT}}},
    {CASE("log sum exp",          log_sum_exp,    WIDE(3, 5, 4))},
    {CASE("pow",                  power,          POSITIVE(3, 50))},
    {CASE("sin",                  sine,           WIDE(3, 5))},
    {CASE("cos",                  cosine,         WIDE(3, 5))},
    {CASE("cross entropy smoothed", cross_entropy_smoothed, WIDE(6, 4, 37), LABELS(37, 6, 4))},
    {CASE("cross entropy of rows", cross_entropy_rows, WIDE(6, 4, 37), LABELS(37, 6, 4))},
    {CASE("cross entropy sum",    cross_entropy_sum, WIDE(6, 5), IDS(5, 6))},
    {CASE("nll",                  nll,            NORMAL(6, 4, 37), LABELS(37, 6, 4))},
    {CASE("nll of rows",          nll_rows,       NORMAL(6, 5), IDS32(5, 6))},
    {CASE("cross entropy weighted", cross_entropy_weighted, WIDE(6, 37), LABELS(37, 6),
                                                  {.shape = SIZES(37), .values = OP_POSITIVE, .fixed = true}), .tolerance = 20}, /* long sums */
    {CASE("cross entropy weighted and smoothed", cross_entropy_weighted_smoothed, WIDE(6, 4, 5), LABELS(5, 6, 4),
                                                  {.shape = SIZES(5), .values = OP_POSITIVE, .fixed = true}), .tolerance = 20}, /* long sums */
    {CASE("cross entropy of probabilities", cross_entropy_soft, WIDE(6, 4, 37), POSITIVE(6, 4, 37))},
    {CASE("cross entropy of probabilities of rows", cross_entropy_soft_rows, WIDE(6, 37), POSITIVE(6, 37))},
    {CASE("cross entropy of probabilities weighted", cross_entropy_soft_weighted, WIDE(6, 4, 5), POSITIVE(6, 4, 5),
                                                  {.shape = SIZES(5), .values = OP_POSITIVE, .fixed = true})},
    {CASE("nll weighted",         nll_weighted,   NORMAL(6, 5), LABELS(5, 6),
                                                  {.shape = SIZES(5), .values = OP_POSITIVE, .fixed = true}), .tolerance = 20}, /* long sums */
    {CASE("mse",                  mse,            NORMAL(3, 50), NORMAL(3, 50))},
    {CASE("mse of elements",      mse_elements,   NORMAL(3, 50), NORMAL(3, 50))},
    {CASE("l1",                   l1,             NORMAL(3, 50), NORMAL(3, 50)), SHARES},
    {CASE("huber",                huber,          NORMAL(3, 50), NORMAL(3, 50))},
    {CASE("smooth l1",            smooth_l1,      NORMAL(3, 50), NORMAL(3, 50))},
    {CASE("bce",                  bce,            WIDE(3, 50), NORMAL(3, 50))},
    {CASE("bce weighted",         bce_weighted,   WIDE(3, 50), NORMAL(3, 50), NORMAL_FIXED(50), POSITIVE(3, 1))},
    {CASE("kl",                   kl,             NORMAL(3, 50), POSITIVE(3, 50)), .kinks = {{1, 0, OP_LEFT}}},
    {CASE("kl of logarithms",     kl_log,         NORMAL(3, 50), NORMAL(3, 50))},
    {CASE("less",                 less,           GRID(30, 5), GRID(30, 5)), COMPARES(OP_RIGHT, OP_LEFT)},
    {CASE("less or equal",        less_or_equal,  GRID(30, 5), GRID(30, 5)), COMPARES(OP_LEFT, OP_RIGHT)},
    {CASE("less or equal, column", less_or_equal, GRID(30, 5), GRID(30, 1)), .no_grad_check = true, .nan = OP_NAN_COMPARES_FALSE,
                                                  .kinks = {{0, 0.5, OP_LEFT}}},
    {CASE("greater",              greater,        GRID(30, 5), GRID(30, 5)), COMPARES(OP_LEFT, OP_RIGHT)},
    {CASE("greater or equal",     greater_or_equal, GRID(30, 5), GRID(30, 5)), COMPARES(OP_RIGHT, OP_LEFT)},
    {CASE("equal",                equal,          GRID(30, 5), GRID(30, 5)), COMPARES(OP_ALONE, OP_ALONE)},
    {CASE("not equal",            not_equal,      GRID(30, 5), GRID(30, 5)), .no_grad_check = true, .nan = OP_NAN_IS_UNEQUAL,
                                                  .kinks = {{0, 0.5, OP_ALONE}, {1, 0.5, OP_ALONE}}},
    {CASE("where",                where,          MASK(3, 50), NORMAL(3, 50), NORMAL(3, 50))},
    {CASE("where both ways",      where,          MASK(4, 3, 7), NORMAL_FIXED(7), NORMAL(4, 1, 1))},
    {CASE("masked fill",          masked_fill,    NORMAL(3, 5, 7), MASK(3, 1, 7))},
    {CASE("take first",         take_first,   NORMAL_FIXED(9, 4), IDS(9, 6, 4)), .tolerance = 20}, /* long sums */
    {CASE("take middle",        take_middle,  NORMAL(3, 5, 4), IDS(5, 3, 2, 4))},
    {CASE("take last",          take_last,    NORMAL(3, 5, 4), IDS32(4, 3, 5, 6))},
    {CASE("index select",         index_select,   NORMAL(3, 5, 4), {.shape = SIZES(7), .values = OP_IDS, .limit = 5, .fixed = true})},
    {CASE("one hot",              one_hot,        NORMAL(7, 5), IDS(5, 7))},
    {CASE("flip first",           flip_first,     NORMAL(3, 5, 4))},
    {CASE("flip last",            flip_last,      NORMAL(3, 5, 4))},
    {CASE("scatter add first",    scatter_add_first, NORMAL_FIXED(5, 4), IDS(5, 6, 4), NORMAL(6, 4)), .tolerance = 20},
    {CASE("scatter add last",     scatter_add_last, NORMAL(3, 5, 4), IDS32(4, 3, 5, 6), NORMAL(3, 5, 6))},
    {CASE("put along",            put_reversed, NORMAL(3, 5, 4), NORMAL(3, 4, 3))},
    {CASE("rms norm",             rms_norm,       NORMAL(3, 5, 40), NORMAL_FIXED(40))},
    {CASE("rms norm long",        rms_norm,       WIDE(9, 600), NORMAL_FIXED(600))},
    {CASE("rms norm plain",       rms_norm_plain, NORMAL(3, 8))},
    {CASE("group norm",           group_norm,     NORMAL(3, 4, 5, 3), NORMAL_FIXED(4), NORMAL_FIXED(4))},
    {CASE("group norm plain",     group_norm_plain, NORMAL(5, 6, 3))},
    {CASE("rotary",               rotary,         NORMAL(2, 3, 7, 8))},
    {CASE("rotary of neighbours", rotary_neighbours, NORMAL(3, 5, 6))},
    {CASE("rotary far",           rotary,         NORMAL(2, 150, 4))},
    {CASE("einsum",               einsum,         NORMAL(3, 4, 5), NORMAL(3, 5, 6))},
    {CASE("einsum mixed",         einsum_mixed,   NORMAL_FIXED(2, 3, 4, 5), NORMAL(4, 3, 2, 6))},
    {CASE("einsum outer",         einsum_outer,   NORMAL(3, 4), NORMAL_FIXED(5))},
    {CASE("min last",             min_last,       APART(3, 5, 7))},
    {CASE("min equal",            min_last,       GRID(3, 5, 70)), .no_grad_check = true},
    {CASE("argmin",               argmin_last,    APART(3, 5, 7)), .no_grad_check = true, .nan = OP_NAN_IS_SMALLEST},
    {CASE("prod",                 product_last,   POSITIVE(3, 5, 7))},
    {CASE("prod middle",          product_middle, POSITIVE(3, 5, 20))},
    {CASE("prod with zeros",      product_last,   GRID(30, 7)), .no_grad_check = true, .tolerance = 4},
    {CASE("norm middle",          norm_middle,    NORMAL(3, 5, 40))},
    {CASE("norm",                 norm_all,       NORMAL(3, 5))},
    {CASE("norm 1",               norm_1,         NORMAL(3, 5, 7))},
    {CASE("norm 3",               norm_3,         NORMAL(3, 5, 7))},
    {CASE("norm of the largest",  norm_most,      APART(3, 5, 7))},
    {CASE("var",                  variance,       NORMAL(3, 5, 40))},
    {CASE("var biased",           variance_biased, NORMAL(3, 5, 4))},
    {CASE("std",                  deviation,      NORMAL(3, 5, 4))},
    {CASE("cumsum",               cumsum_last,    NORMAL(3, 5, 7))},
    {CASE("cumsum long",          cumsum_last,    NORMAL(2, 1100))},
    {CASE("cumsum middle",        cumsum_middle,  NORMAL(3, 5, 7))},
    {CASE("cumsum of many",       cumsum_middle,  NORMAL(2, 5, 70))},
    {CASE("topk",                 topk_last,      APART(3, 5, 7)), .nan = OP_NAN_IS_LARGEST},
    {CASE("topk long",            topk_last,      APART(3, 1100)), .nan = OP_NAN_IS_LARGEST},
    {CASE("topk of most",         topk_most,      APART(3, 600)), .nan = OP_NAN_IS_LARGEST},
    {CASE("sort long",            sort_last,      APART(2, 5000)), .nan = OP_NAN_IS_LARGEST},
    {CASE("sort long equal",      sort_last,      GRID(3, 300)), .no_grad_check = true, .nan = OP_NAN_IS_LARGEST},
    {CASE("topk smallest",        topk_smallest,  APART(3, 5, 7)), .nan = OP_NAN_IS_LARGEST},
    {CASE("sort",                 sort_middle,    APART(3, 9, 4)), .nan = OP_NAN_IS_LARGEST},
    {CASE("sort equal",           sort_middle,    GRID(3, 30, 4)), .no_grad_check = true, .nan = OP_NAN_IS_LARGEST},
    {CASE("pad",                  pad,            NORMAL(3, 5, 4))},
    {CASE("stack",                stack,          NORMAL(3, 5, 4), NORMAL(3, 5, 4))},
    {CASE("attention of lengths", attention_of_lengths, NORMAL(3, 2, 4, 8), NORMAL(3, 2, 6, 8), NORMAL(3, 2, 6, 8), IDS(6, 3))},
    {CASE("attention of groups",  attention_of_groups, NORMAL(2, 4, 5, 8), NORMAL(2, 2, 5, 8), NORMAL(2, 2, 5, 8),
                                                  MASK(2, 1, 5, 5))},
    {CASE("conv by tiles",        conv,           NORMAL(2, 16, 9, 10), NORMAL_FIXED(32, 16, 3, 3), NORMAL_FIXED(32)), .tolerance = 3}, /* Winograd's tiles round more often */
    {CASE("conv by tiles, bare",  conv_plain,     NORMAL(3, 32, 10, 11), NORMAL_FIXED(16, 32, 3, 3)), .tolerance = 3},
    {CASE("conv 1x1 apart",       conv_sparse,    NORMAL(2, 32, 7, 6), NORMAL_FIXED(16, 32, 1, 1), NORMAL_FIXED(16))},
    {CASE("conv of rows of taps", conv_by_two,    NORMAL(2, 16, 9, 8), NORMAL_FIXED(24, 16, 3, 2), NORMAL_FIXED(24))},
    {CASE("dropout of numbers",   dropout_of_numbers, POSITIVE(40))},
    {CASE("matmul over nothing",  matmul,         NORMAL(2, 3, 0), NORMAL_FIXED(0, 4))},
    {CASE("matmul to nothing",    matmul,         NORMAL(2, 3, 5), NORMAL_FIXED(5, 0))},
    {CASE("conv of few channels", conv,           NORMAL(2, 3, 9, 10), NORMAL_FIXED(32, 3, 3, 3), NORMAL_FIXED(32))},
    {CASE("conv of few channels, half", conv_half, NORMAL(3, 3, 11, 12), NORMAL_FIXED(80, 3, 5, 5))},
    {CASE("batch norm mixed",     batch_norm_mixed, NORMAL(3, 35, 4, 3), NORMAL_FIXED(35), NORMAL_FIXED(35))},
    {CASE("max pool, tiled",      max_pool,       APART(2, 20, 6, 4))},
    {CASE("max pool, tiled, few channels", max_pool, APART(2, 6, 4, 6))},
    {CASE("avg pool, tiled",      avg_pool,       NORMAL(2, 33, 4, 6))},
    {CASE("max pool of a line, tiled", max_pool_line_tiled, APART(2, 17, 8))},
    {CASE("avg pool of a line, tiled", avg_pool_line_tiled, NORMAL(2, 5, 9))},
    {CASE("conv to few channels", conv,           NORMAL(2, 5, 9, 10), NORMAL_FIXED(8, 5, 3, 3), NORMAL_FIXED(8))},
    {CASE("conv of one channel to few", conv,     NORMAL(2, 1, 11, 12), NORMAL_FIXED(6, 1, 5, 5), NORMAL_FIXED(6))},
};
/* clang-format on */
const int op_case_count = (int)(sizeof op_cases / sizeof *op_cases);
