/* What ops give where numbers end: NaN and infinity, numbers that are large or small, empty tensors, 16 bits. */
#include <trireme/trireme.h>

#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static tr_tensor *ids(int64_t a, int64_t b, int64_t c)
{
    return tr_from(((int64_t[]){a, b, c}), TR_SHAPE(3), .dtype = TR_I64);
}

static void with_no_counted_target_the_loss_is_nan_and_the_gradient_zero(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *logits = tr_randn(1, TR_SHAPE(3, 10), .requires_grad = true);
    tr_tensor *loss = tr_cross_entropy(logits, ids(-100, -100, -100));
    assert_true(isnan(tr_item(loss)));
    assert_int_equal(tr_backward(loss), TR_OK);
    assert_true(tr_item(tr_sum(tr_abs(tr_grad(logits)))) == 0);
}

/* Where an activation is a line, its slope is 0 or 1 whatever x. */
static void slopes_far_out_are_0_or_1(void **state)
{
    (void)state;
    static tr_tensor *(*const activations[])(tr_tensor *) = {
        tr_gelu, tr_gelu_exact, tr_silu, tr_mish, tr_softplus, tr_hardswish, tr_relu};
    static const tr_dtype dtypes[] = {TR_F64, TR_F32, TR_BF16};
    for (int i = 0; i < 7 * 3 * 2; i++) {
        TR_SCOPE;
        bool left = i / 21;
        tr_tensor *x = tr_full(left ? -1e36 : 1e36, TR_SCALAR, .dtype = dtypes[i / 7 % 3], .requires_grad = true);
        TR_CHECK(tr_backward(activations[i % 7](x)));
        double slope = tr_item(tr_grad(x));
        if (fabs(slope - !left) > 1e-6) fail_msg("activation %d has slope %g at %g, in %s", i % 7, slope, tr_item(x),
            tr_dtype_name(tr_dtype_of(x)));
    }
}

/* log 2 is less than the distance of such numbers, in f32 and in f64. */
static void large_logits_keep_the_digits_of_their_loss(void **state)
{
    (void)state;
    TR_SCOPE;
    static const double sizes[2][2] = {{1e8, 1e20}, {1e17, 1e200}};
    for (int k = 0; k < 4; k++)
        for (int smoothed = 0; smoothed < 2; smoothed++) {
            tr_dtype dtype = k < 2 ? TR_F32 : TR_F64;
            tr_tensor *x = tr_full(sizes[k / 2][k % 2], TR_SHAPE(3, 2), .dtype = dtype, .requires_grad = true);
            tr_tensor *loss = tr_cross_entropy(x, ids(0, 1, 0), .label_smoothing = smoothed ? 0.5 : 0);
            assert_true(fabs(tr_item(loss) - 0.6931472) < 1e-6);
            assert_true(fabs(tr_item(tr_slice(tr_slice(tr_log_softmax(x, 1), 0, 0, 1), 1, 0, 1)) + 0.6931472) < 1e-6);
            TR_CHECK(tr_backward(loss));
            double wanted = (smoothed ? -0.25 : -0.5) / 3;
            assert_true(fabs(tr_item(tr_slice(tr_slice(tr_grad(x), 0, 1, 2), 1, 1, 2)) - wanted) < 1e-6);
        }
    tr_tensor *far = tr_expand(tr_from(((float[]){20, 10}), TR_SHAPE(2)), TR_SHAPE(3, 2));
    assert_true(fabs(tr_item(tr_cross_entropy(far, ids(0, 0, 0))) - 4.53989e-5) < 1e-7);
}

static void sure_and_right_answers_keep_the_digits_of_their_loss(void **state)
{
    (void)state;
    TR_SCOPE;
    for (int k = 0; k < 2; k++) {
        tr_tensor *x = tr_cast(tr_from(((float[]){15, 15, -15, 20}), TR_SHAPE(4)), k ? TR_F64 : TR_F32);
        tr_tensor *y = tr_cast(tr_from(((float[]){1, 0.5f, 0, 1}), TR_SHAPE(4)), tr_dtype_of(x));
        tr_tensor *loss = tr_bce_with_logits(x, y, .reduction = TR_REDUCE_NONE);
        for (int i = 0; i < 4; i++) {
            double wanted = ((double[]){3.059022737e-7, 7.500000306, 3.059022737e-7, 2.061153620e-9})[i];
            assert_true(fabs(tr_item(tr_slice(loss, 0, i, i + 1)) - wanted) <= 1e-6 * wanted);
        }
    }
}

/* Of f32 whose squares overflow, or are 0: along rows and along columns. */
static void norms_and_deviations_neither_overflow_nor_vanish(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++)
        for (int dim = 0; dim < 2; dim++) {
            TR_SCOPE;
            double size = ((double[]){1e20, 1e-25, 1e-42})[k];
            tr_tensor *x = tr_mul(tr_full(size, TR_SHAPE(50, 2)), tr_from(((float[]){1, -1}), TR_SHAPE(2)));
            x = tr_require_grad(tr_detach(dim ? x : tr_contiguous(tr_transpose(x, 0, 1))));
            double root = k == 2 ? 1e-2 : 1e-6; /* 1e-42 has few digits */
            assert_true(fabs(tr_item(tr_max(tr_norm(x, 2, dim))) / size - sqrt(2)) < root);
            tr_tensor *std = tr_std(x, dim);
            assert_true(fabs(tr_item(tr_min(std)) / size - sqrt(2)) < root);
            assert_true(fabs(tr_item(tr_max(std)) / size - sqrt(2)) < root);
            if (k == 2) continue;
            TR_CHECK(tr_backward(tr_sum(std)));
            assert_true(fabs(tr_item(tr_max(tr_grad(x))) - sqrt(0.5)) < 1e-6);
        }
}

static void batch_norm_of_an_empty_batch_is_empty_and_moves_nothing(void **state)
{
    (void)state;
    TR_SCOPE;
    for (int k = 0; k < 3; k++) {
        tr_dtype dtype = (tr_dtype[]){TR_F32, TR_F64, TR_BF16}[k];
        tr_tensor *x = tr_zeros(TR_SHAPE(0, 3), .dtype = dtype, .requires_grad = true);
        tr_tensor *weight = tr_ones(TR_SHAPE(3), .dtype = dtype, .requires_grad = true);
        tr_tensor *mean = tr_full(0.5, TR_SHAPE(3)), *var = tr_full(2, TR_SHAPE(3));
        tr_tensor *y = tr_batch_norm_op(x, .weight = weight, .training = true, .running_mean = mean, .running_var = var);
        assert_int_equal(tr_status_of(y), TR_OK);
        assert_true(tr_size(y, 0) == 0 && tr_size(y, 1) == 3);
        assert_int_equal(tr_backward(tr_sum(y)), TR_OK);
        assert_true(tr_size(tr_grad(x), 0) == 0 && tr_item(tr_max(tr_abs(tr_grad(weight)))) == 0);
        assert_true(tr_item(tr_min(mean)) == 0.5 && tr_item(tr_max(mean)) == 0.5);
        assert_true(tr_item(tr_min(var)) == 2 && tr_item(tr_max(var)) == 2);
    }
}

/* As PyTorch's: ones arrive, and x is NaN, 1, -0, infinity or -infinity. */
static void gradients_at_nan_and_infinity(void **state)
{
    (void)state;
    static const float values[] = {NAN, 1, -0.0f, INFINITY, -INFINITY};
    static const double wanted[5][5] = {
        {1, 1, 0, 1, 0}, {0, 1, 1, 0, 0}, {1, 0.5, 0.5, 1, 0}, {1, 0.5, 0.5, 0, 1}, {0, 0, 0, 0, 0}};
    for (int k = 0; k < 3; k++)
        for (int op = 0; op < 5; op++) {
            TR_SCOPE;
            tr_dtype dtype = (tr_dtype[]){TR_F32, TR_F64, TR_F16}[k];
            tr_tensor *x = tr_require_grad(tr_cast(tr_from(values, TR_SHAPE(5)), dtype));
            tr_tensor *other = tr_require_grad(tr_cast(tr_from(((float[]){0, 1, 0, 0, 0}), TR_SHAPE(5)), dtype));
            tr_tensor *y = op == 0   ? tr_relu(x)
                           : op == 1 ? tr_clamp(x, -1, 1)
                           : op == 2 ? tr_maximum(x, other)
                           : op == 3 ? tr_minimum(other, x)
                                     : tr_pow(x, 0);
            TR_CHECK(tr_backward(y, .gradient = tr_ones(TR_SHAPE(5), .dtype = dtype)));
            for (int i = 0; i < 5; i++) assert_true(tr_item(tr_slice(tr_grad(x), 0, i, i + 1)) == wanted[op][i]);
            if (op == 2 || op == 3) assert_true(tr_item(tr_slice(tr_grad(other), 0, 0, 1)) == 1);
        }
}

/* Far from zero they are 0 or x, and their slopes 0 or 1. */
static void activations_have_their_limits(void **state)
{
    (void)state;
    static const float values[] = {-INFINITY, -1e30f, INFINITY, 1e30f};
    for (int k = 0; k < 4; k++)
        for (int op = 0; op < 4; op++)
            for (int i = 0; i < 4; i++) {
                TR_SCOPE;
                tr_dtype dtype = (tr_dtype[]){TR_F32, TR_F64, TR_F16, TR_BF16}[k];
                tr_tensor *x = tr_require_grad(tr_full(values[i], TR_SHAPE(1), .dtype = dtype));
                tr_tensor *y = op == 0 ? tr_gelu(x) : op == 1 ? tr_gelu_exact(x) : op == 2 ? tr_silu(x) : tr_mish(x);
                TR_CHECK(tr_backward(tr_sum(y)));
                if (i < 2) assert_true(fabs(tr_item(y)) < 1e-15 && fabs(tr_item(tr_grad(x))) < 1e-15);
                else assert_true(tr_item(y) == tr_item(x) && tr_item(tr_grad(x)) == 1);
            }
}

static void class_0_may_be_the_one_that_does_not_count(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_log_softmax(tr_randn(1, TR_SHAPE(3, 4)), 1), *y = ids(0, 2, 0);
    tr_tensor *w = tr_from(((float[]){1, 1, 3, 1}), TR_SHAPE(4));
    double wanted = -tr_item(tr_slice(tr_slice(x, 0, 1, 2), 1, 2, 3));
    tr_tensor *losses[] = {
        tr_cross_entropy(x, y, .ignore_index = 0), tr_nll_loss(x, y, .ignore_index = 0),
        tr_cross_entropy(x, y, .ignore_index = 0, .weight = w),
        tr_nll_loss(x, y, .ignore_index = 0, .weight = w)};
    for (int i = 0; i < 4; i++) assert_true(fabs(tr_item(losses[i]) - wanted) < 1e-5);
    assert_true(tr_item(tr_nll_loss(x, y, .reduction = TR_REDUCE_SUM)) > wanted + 0.1); /* 0: it counts */
}

/* The largest difference, relative to the largest number of b. */
static double apart(tr_tensor *a, tr_tensor *b)
{
    a = tr_cast(a, TR_F64), b = tr_cast(b, TR_F64);
    return tr_item(tr_max(tr_abs(tr_sub(a, b)))) / tr_item(tr_max(tr_abs(b)));
}

/* All on one class, probabilities are that class's number, also with weights, unless those divide the mean. */
static void probabilities_of_one_class_are_its_number(void **state)
{
    (void)state;
    tr_tensor *y = tr_keep(ids(2, 0, 3)), *w = tr_keep(tr_from(((float[]){1, 2, 0.5f, 3}), TR_SHAPE(4)));
    static const tr_dtype dtypes[] = {TR_F64, TR_F32, TR_BF16, TR_F16};
    for (int i = 0; i < 4 * 4 * 3; i++) {
        TR_SCOPE;
        tr_dtype dtype = dtypes[i % 4], other = dtypes[i / 4 % 4];
        tr_reduction r = (tr_reduction)(i / 16);
        tr_tensor *logits = tr_cast(tr_randn((uint64_t)i, TR_SHAPE(3, 4)), dtype), *x[2], *loss[2];
        tr_tensor *t = tr_require_grad(tr_one_hot(y, 4, other));
        for (int soft = 0; soft < 2; soft++) {
            x[soft] = tr_require_grad(tr_clone(logits));
            loss[soft] = tr_cross_entropy(x[soft], soft ? t : y, .weight = r == TR_REDUCE_MEAN ? NULL : w, .reduction = r);
            TR_CHECK(tr_backward(tr_sum(loss[soft])));
        }
        assert_int_equal(tr_dtype_of(loss[1]), dtype == TR_F64 ? TR_F64 : TR_F32);
        assert_true(apart(loss[1], loss[0]) < 1e-6);
        assert_true(apart(tr_grad(x[1]), tr_grad(x[0])) < (dtype == TR_BF16 ? 1e-2 : dtype == TR_F16 ? 1e-3 : 1e-6));
        assert_int_equal(tr_dtype_of(tr_grad(t)), other);
    }
    tr_release(y);
    tr_release(w);
    TR_SCOPE;
    tr_tensor *none = tr_zeros(TR_SHAPE(0, 4)), *x = tr_zeros(TR_SHAPE(4));
    assert_true(isnan(tr_item(tr_cross_entropy(none, none))));
    assert_true(tr_item(tr_cross_entropy(none, none, .reduction = TR_REDUCE_SUM)) == 0);
    assert_true(fabs(tr_item(tr_cross_entropy(x, tr_full(0.25, TR_SHAPE(4)))) - log(4)) < 1e-6);
}

static tr_tensor *composed(int which, tr_tensor **in)
{
    switch (which) {
    case 0: return tr_group_norm_op(in[0], 2, in[1], in[2], 1e-5);
    case 1: return tr_glu(in[0], 1);
    case 2: return tr_softsign(in[0]);
    case 3: return tr_bce_with_logits(in[0], in[3], .pos_weight = in[1], .weight = in[2], .reduction = TR_REDUCE_NONE);
    case 4: return tr_bce_with_logits(in[0], in[3], .weight = in[2], .reduction = TR_REDUCE_NONE);
    default: return tr_smooth_l1_loss(in[0], in[3], .delta = 1e-5, .reduction = TR_REDUCE_NONE);
    }
}

/* What is computed of f32 that 16 bits hold, and then rounded, is the same, and so is the gradient. */
static void compositions_of_16_bits_round_once(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++)
        for (int which = 0; which < 6; which++) {
            TR_SCOPE;
            tr_dtype dtype = k ? TR_F16 : TR_BF16;
            tr_tensor *result[2][2];
            for (int wide = 0; wide < 2; wide++) {
                tr_tensor *in[4];
                for (int i = 0; i < 4; i++) {
                    tr_tensor *x = tr_cast(tr_randn((uint64_t)i, i % 3 ? TR_SHAPE(8) : TR_SHAPE(40, 8)), dtype);
                    in[i] = tr_require_grad(tr_detach(wide ? tr_cast(x, TR_F32) : x));
                }
                tr_tensor *y = composed(which, in), *g = tr_cast(tr_randn(7, tr_shape_of(y)), dtype);
                TR_CHECK(tr_backward(y, .gradient = tr_cast(g, tr_dtype_of(y))));
                result[wide][0] = tr_cast(y, dtype);
                result[wide][1] = tr_cast(tr_grad(in[0]), dtype);
            }
            for (int i = 0; i < 2; i++)
                assert_true(tr_item(tr_sum(tr_cast(tr_not_equal(result[0][i], result[1][i]), TR_F32))) == 0);
        }
}

static void the_logarithm_of_a_sum_does_not_overflow(void **state)
{
    (void)state;
    TR_SCOPE;
    assert_true(fabs(tr_item(tr_log_sum_exp(tr_full(1000, TR_SHAPE(2)))) - 1000.693147) < 1e-3);
    assert_true(tr_item(tr_log_sum_exp(tr_full(-INFINITY, TR_SHAPE(2)))) == -INFINITY);
    assert_true(tr_item(tr_log_sum_exp(tr_full(INFINITY, TR_SHAPE(2)))) == INFINITY);
    tr_tensor *none = tr_zeros(TR_SHAPE(3, 0), .requires_grad = true), *y = tr_log_sum_exp(none, 1);
    assert_true(tr_size(y, 0) == 3 && tr_item(tr_max(y)) == -INFINITY);
    assert_int_equal(tr_backward(tr_sum(y)), TR_OK);
}

/* There, and at infinity, where a product with 0 would be NaN. */
static void the_gradient_of_prelu_at_0_is_its_weight(void **state)
{
    (void)state;
    TR_SCOPE;
    for (int k = 0; k < 2; k++) {
        tr_tensor *x = tr_cast(tr_from(((float[]){0, -2, 3, INFINITY}), TR_SHAPE(4)), k ? TR_F64 : TR_F32);
        tr_tensor *weight = tr_full(0.25, TR_SHAPE(1), .dtype = tr_dtype_of(x), .requires_grad = true);
        TR_CHECK(tr_status_of(x = tr_require_grad(tr_detach(x))));
        tr_tensor *y = tr_prelu_op(x, weight);
        TR_CHECK(tr_backward(tr_sum(y)));
        for (int i = 0; i < 4; i++) {
            assert_true(tr_item(tr_slice(y, 0, i, i + 1)) == ((double[]){0, -0.5, 3, INFINITY})[i]);
            assert_true(tr_item(tr_slice(tr_grad(x), 0, i, i + 1)) == ((double[]){0.25, 0.25, 1, 1})[i]);
        }
        assert_true(tr_item(tr_grad(weight)) == -2);
    }
}

static void prelu_of_a_scalar_is_a_scalar(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *y = tr_prelu_op(tr_full(-2, TR_SCALAR), tr_full(0.25, TR_SHAPE(1)));
    assert_int_equal(tr_shape_of(y).ndim, 0);
    assert_true(tr_item(y) == -0.5);
}

/* 100 / 0.001 is no f16. */
static void celu_keeps_what_is_above_0(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_require_grad(tr_cast(tr_from(((float[]){100, 0, -100}), TR_SHAPE(3)), TR_F16));
    tr_tensor *y = tr_celu(x, 0.001);
    TR_CHECK(tr_backward(tr_sum(y)));
    for (int i = 0; i < 3; i++) {
        assert_true(fabs(tr_item(tr_slice(y, 0, i, i + 1)) - ((double[]){100, 0, -0.001})[i]) < 1e-6);
        assert_true(fabs(tr_item(tr_slice(tr_grad(x), 0, i, i + 1)) - ((double[]){1, 1, 0})[i]) < 1e-3);
    }
}

/* In rows longer than what is looked at together, at every place, with a later equal and a later NaN. */
static void the_first_of_the_largest_is_found(void **state)
{
    (void)state;
    enum { N = 150 };
    for (int smallest = 0; smallest < 2; smallest++)
        for (int nan = 0; nan < 2; nan++)
            for (int at = 0; at < N; at++) {
                TR_SCOPE;
                float row[N];
                for (int i = 0; i < N; i++) row[i] = (float)(smallest ? i : -i) * 0.5f;
                row[at] = nan ? NAN : smallest ? -1.0f : 1.0f;
                if (at + 9 < N) row[at + 9] = row[at];
                tr_tensor *x = tr_from(row, TR_SHAPE(1, N));
                assert_int_equal(tr_item(smallest ? tr_argmin(x, 1) : tr_argmax(x, 1)), at);
            }
}

/* In rows that are not whole blocks: equal maxima share, a NaN takes all, and products pass over zeros. */
static void gradients_of_rows_look_at_every_element(void **state)
{
    (void)state;
    enum { N = 1037 };
    for (int at = 0; at < N; at += 47) {
        TR_SCOPE;
        float row[N], grad[N];
        for (int i = 0; i < N; i++) row[i] = 1 + (float)(i % 2);
        row[at] = row[N - 1 - at] = 5;
        tr_tensor *x = tr_from(row, TR_SHAPE(1, N), .requires_grad = true);
        TR_CHECK(tr_backward(tr_sum(tr_max(x, 1))));
        TR_CHECK(tr_copy_out(tr_grad(x), grad, sizeof grad));
        float part = at == N - 1 - at ? 1.0f : 0.5f;
        for (int i = 0; i < N; i++) assert_true(grad[i] == (i == at || i == N - 1 - at ? part : 0));

        for (int i = 0; i < N; i++) row[i] = i % 2 ? 2 : 0.5f; /* one more half than twos */
        row[at] = 0;
        x = tr_from(row, TR_SHAPE(1, N), .requires_grad = true);
        TR_CHECK(tr_backward(tr_sum(tr_prod(x, 1))));
        TR_CHECK(tr_copy_out(tr_grad(x), grad, sizeof grad));
        float others = at % 2 ? 0.25f : 1;
        for (int i = 0; i < N; i++) assert_true(grad[i] == (i == at ? others : 0));
    }
}

/* Of alternating numbers every second part of a row overflows, and the others vanish. */
static void products_overflow_only_where_they_do_in_order(void **state)
{
    (void)state;
    TR_SCOPE;
    enum { ROWS = 3, SIZE = 1000 };
    float x[ROWS * SIZE];
    for (int i = 0; i < ROWS * SIZE; i++) x[i] = i % 2 ? 0x1p-126f : 0x1p126f;
    x[SIZE] = 0;
    x[3 * SIZE - 1] = NAN;
    const float *y = tr_data(tr_prod(tr_from(x, TR_SHAPE(ROWS, SIZE)), 1));
    assert_true(y[0] == 1 && y[1] == 0 && isnan(y[2]));
}

/* Multiplied in parts, 1e200 twice would not be finite, nor 1e-200 twice anything but 0. */
static void gradients_of_products_stay_in_range(void **state)
{
    (void)state;
    TR_SCOPE;
    double row[16], grad[16];
    for (int i = 0; i < 16; i++) row[i] = i % 8 == 0 ? 1e200 : i % 8 == 1 ? 1e-200 : 1;
    tr_tensor *x = tr_from(row, TR_SHAPE(1, 16), .dtype = TR_F64, .requires_grad = true);
    TR_CHECK(tr_backward(tr_sum(tr_prod(x, 1))));
    TR_CHECK(tr_copy_out(tr_grad(x), grad, sizeof grad));
    for (int i = 0; i < 16; i++) assert_true(fabs(grad[i] * row[i] - 1) < 1e-12);
}

/* weights: [2, 3] */
static void classes_are_drawn_by_their_weights(void **state)
{
    (void)state;
    TR_SCOPE;
    enum { DRAWS = 4000 };
    tr_tensor *weights = tr_from(((const float[]){1, 0, 3, 0, 2, 0}), TR_SHAPE(2, 3));
    tr_tensor *drawn = tr_multinomial(weights, DRAWS, 7, .replacement = true);
    TR_CHECK(tr_status_of(drawn));
    assert_true(tr_dtype_of(drawn) == TR_I64 && tr_size(drawn, 0) == 2 && tr_size(drawn, 1) == DRAWS);
    const int64_t *class = tr_data(drawn), *again = tr_data(tr_multinomial(weights, DRAWS, 7, .replacement = true));
    int64_t first = 0, same = 0;
    for (int64_t i = 0; i < DRAWS; i++) {
        first += class[i] == 0;
        assert_true(class[i] != 1 && class[DRAWS + i] == 1);
    }
    assert_true(llabs(first - DRAWS / 4) < 140); /* five standard deviations */
    assert_memory_equal(class, again, 2 * DRAWS * sizeof *class);
    const int64_t *other = tr_data(tr_multinomial(weights, DRAWS, 8, .replacement = true));
    for (int64_t i = 0; i < DRAWS; i++) same += class[i] == other[i];
    assert_true(same < DRAWS);

    /* Without replacement each class once; the first is still by weight, as one draw of any is. */
    tr_tensor *rows = tr_expand(tr_slice(weights, 0, 0, 1), TR_SHAPE(DRAWS, 3));
    const int64_t *pair = tr_data(tr_multinomial(rows, 2, 7));
    for (int64_t i = first = 0; i < DRAWS; i++) {
        first += pair[2 * i] == 0;
        assert_true(pair[2 * i] + pair[2 * i + 1] == 2 && pair[2 * i] != 1);
    }
    assert_true(llabs(first - DRAWS / 4) < 140);
    assert_int_equal(tr_ndim(tr_multinomial(tr_ones(TR_SHAPE(5)), 5, 1)), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_no_counted_target_the_loss_is_nan_and_the_gradient_zero),
        cmocka_unit_test(slopes_far_out_are_0_or_1),
        cmocka_unit_test(large_logits_keep_the_digits_of_their_loss),
        cmocka_unit_test(sure_and_right_answers_keep_the_digits_of_their_loss),
        cmocka_unit_test(norms_and_deviations_neither_overflow_nor_vanish),
        cmocka_unit_test(batch_norm_of_an_empty_batch_is_empty_and_moves_nothing),
        cmocka_unit_test(gradients_at_nan_and_infinity),
        cmocka_unit_test(activations_have_their_limits),
        cmocka_unit_test(class_0_may_be_the_one_that_does_not_count),
        cmocka_unit_test(probabilities_of_one_class_are_its_number),
        cmocka_unit_test(compositions_of_16_bits_round_once),
        cmocka_unit_test(the_logarithm_of_a_sum_does_not_overflow),
        cmocka_unit_test(the_gradient_of_prelu_at_0_is_its_weight),
        cmocka_unit_test(prelu_of_a_scalar_is_a_scalar),
        cmocka_unit_test(celu_keeps_what_is_above_0),
        cmocka_unit_test(the_first_of_the_largest_is_found),
        cmocka_unit_test(gradients_of_rows_look_at_every_element),
        cmocka_unit_test(products_overflow_only_where_they_do_in_order),
        cmocka_unit_test(gradients_of_products_stay_in_range),
        cmocka_unit_test(classes_are_drawn_by_their_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
