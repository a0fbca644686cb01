/*
 * The SIMD kernels of every table that this machine can run, not only of the one that it would choose: against the
 * reference kernels, over all sizes around the vector widths; and how exact exp, tanh and their kin are.
 */
#include "base/isa.h"
#include "base/rng.h"
#include "ops/cpu/simd/kernels/tables.h"

#include <trireme/trireme.h>

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct {
    const char *name;
    const tr__kernel *kernels;
} tables[] = {
    {"generic", tr__simd_generic},
#if defined(__x86_64__)
    {"avx2", tr__simd_avx2},
    {"avx512", tr__simd_avx512},
#endif
};
enum { TABLES = sizeof tables / sizeof *tables };

static bool runs_here(int table)
{
    return table == 0 || (table == 1 ? tr__has_avx2() : tr__has_avx512());
}

static bool checked[TABLES][TR__OP_COUNT];

/* Gradients of norms run on outputs that are given: as x, and vectors of its channels or its last dimension. */
static tr_status make_outputs(tr_op_call *call)
{
    bool relu = call->op == tr__op(batch_norm_relu_grad), of_channels = relu || call->op == tr__op(batch_norm_grad);
    bool rms = call->op == tr__op(rms_norm_grad);
    if (!of_channels && !rms && call->op != tr__op(layer_norm_grad)) return call->op->infer(call);
    const tr_tensor *x = call->inputs[1];
    TR__TRY(tr__output_like(call, 0, x, x->shape, x->dtype));
    for (int i = 1; i < (rms ? 2 : 3); i++)
        TR__TRY(tr_op_output(call, i, TR_SHAPE(tr_size(x, of_channels ? 1 : -1)), x->dtype));
    return relu ? tr__output_like(call, 3, x, x->shape, x->dtype) : TR_OK;
}

/* Runs one kernel of a table and the reference on the same inputs; both must agree to tolerance * (|y| + the largest
 * |y|), and have NaN in the same places; but for what cross_entropy keeps for its gradient, as its sums are NaN anyway. */
static void check(int table, const tr_op *op, const void *attrs, tr_tensor **in, int n, double tolerance)
{
    tr_tensor *got[TR_OP_MAX_OUTPUTS] = {NULL}, *expected[TR_OP_MAX_OUTPUTS] = {NULL};
    tr_op_call call = {op, attrs, n, 0, in, got}, reference = {op, attrs, n, 0, in, expected};
    assert_int_equal(make_outputs(&call), TR_OK);
    assert_int_equal(make_outputs(&reference), TR_OK);
    tr_status status = tables[table].kernels[op - tr__ops](&call);
    if (status != TR_OK) fail_msg("%s, %s: %d", tables[table].name, op->name, status);
    assert_int_equal(op->forward(&reference), TR_OK);
    checked[table][op - tr__ops] = true;
    for (int k = 0; k < call.n_outputs; k++) {
        int64_t size = tr_numel(got[k]);
        double top = 0;
        for (int64_t i = 0; i < size; i++) {
            double y = fabs(tr__load(expected[k]->dtype, tr__ptr(expected[k]), i));
            if (isfinite(y)) top = fmax(top, y);
        }
        for (int64_t i = 0; i < size; i++) {
            double x = tr__load(got[k]->dtype, tr__ptr(got[k]), i),
                   y = tr__load(expected[k]->dtype, tr__ptr(expected[k]), i);
            if (x == y || (y != y && (x != x || (k && op == tr__op(cross_entropy))))) continue;
            if (!(fabs(x - y) <= tolerance * (fabs(y) + fmax(top, 0.1))))
                fail_msg("%s, %s %s: output %d, element %lld: %.9g instead of %.9g", tables[table].name, op->name,
                    TR__TEXT(in[0]->shape), k, (long long)i, x, y);
        }
    }
}

#define CHECK(op, attrs, ...)                                                                                          \
    check(table, tr__op(op), attrs, (tr_tensor *[]){__VA_ARGS__},                                                      \
          sizeof((tr_tensor *[]){__VA_ARGS__}) / sizeof(tr_tensor *), 1e-6)

/* The multiples of 0.5 from -4 to 4, where the kinks of the ops below are, and some NaNs: arithmetic's, its negative, one that
 * overflows when it is rounded up, and one whose upper half is infinity's; shuffled. */
static tr_tensor *special(uint64_t seed, tr_shape shape)
{
    static const uint32_t nans[] = {0x7fc00000, 0xffc00000, 0x7fffffff, 0x7f800001};
    tr_tensor *x = tr_empty(shape);
    for (int64_t i = 0; i < tr_numel(x); i++) {
        uint64_t k = tr__mix(seed, (uint64_t)i) % 68;
        float value = (float)(k % 17) / 2 - 4;
        memcpy((float *)tr_data(x) + i, k < 64 ? (const void *)&value : &nans[k - 64], sizeof value);
    }
    return x;
}

/* The kernels that take 16-bit numbers as they are, and conversions. */
static void check_halves(int table, tr_shape shape)
{
    for (int k = 0; k < 3; k++) {
        tr_dtype dtype = (tr_dtype[]){TR_BF16, TR_F16, TR_F32}[k];
        tr_tensor *x = tr_cast(special(1, shape), dtype), *y = tr_cast(special(2, shape), dtype);
        CHECK(add, NULL, x, y);
        CHECK(sub, NULL, x, y);
        CHECK(mul, NULL, x, y);
        CHECK(maximum, NULL, x, y);
        CHECK(minimum, NULL, x, y);
        CHECK(affine, (&(tr_affine_attrs){1.5, -2}), x);
        CHECK(relu, NULL, x);
        CHECK(relu_grad, NULL, y, x);
        CHECK(cast, (&(tr_cast_attrs){TR_BF16, dtype}), x);
        CHECK(cast, (&(tr_cast_attrs){TR_F16, dtype}), x);
        CHECK(cast, (&(tr_cast_attrs){TR_F32, dtype}), x);
    }
}

static void check_comparisons(int table, tr_shape shape)
{
    for (int k = 0; k < 4; k++) {
        tr_dtype dtype = (tr_dtype[]){TR_F32, TR_F64, TR_BF16, TR_I64}[k];
        tr_tensor *x = special(1, shape), *y = special(2, shape);
        if (dtype == TR_I64) x = tr_affine(tr_rand(1, shape), 5, -2), y = tr_affine(tr_rand(2, shape), 5, -2); /* no NaN */
        x = tr_cast(x, dtype);
        y = tr_cast(y, dtype);
        CHECK(equal, NULL, x, y);
        CHECK(not_equal, NULL, x, y);
        CHECK(less, NULL, x, y);
        CHECK(less_equal, NULL, x, y);
        CHECK(greater, NULL, x, y);
        CHECK(greater_equal, NULL, x, y);
    }
}

static void check_elementwise(int table, tr_shape shape, bool specials)
{
    tr_tensor *x = specials ? special(1, shape) : tr_affine(tr_randn(1, shape), 3, 0);
    tr_tensor *y = specials ? special(2, shape) : tr_randn(2, shape), *z = specials ? special(3, shape) : tr_randn(3, shape);
    tr_tensor *positive = tr_affine(tr_rand(4, shape), 1, 0.5);
    CHECK(add, NULL, x, y);
    CHECK(sub, NULL, x, y);
    CHECK(mul, NULL, x, y);
    CHECK(div, NULL, x, positive);
    CHECK(maximum, NULL, x, y);
    CHECK(minimum, NULL, x, y);
    CHECK(maximum_grad, NULL, x, y, z);
    CHECK(affine, (&(tr_affine_attrs){1.5, -2}), x);
    CHECK(neg, NULL, x);
    CHECK(exp, NULL, x);
    CHECK(sqrt, NULL, positive);
    CHECK(abs, NULL, x);
    CHECK(tanh, NULL, x);
    CHECK(sigmoid, NULL, x);
    CHECK(relu, NULL, x);
    CHECK(gelu, NULL, x);
    CHECK(gelu_exact, NULL, x);
    CHECK(log, NULL, positive);
    CHECK(silu, NULL, x);
    CHECK(mish, NULL, x);
    CHECK(softplus, NULL, x);
    CHECK(log_sigmoid, NULL, x);
    CHECK(hardswish, NULL, x);
    CHECK(hardsigmoid, NULL, x);
    CHECK(leaky_relu, (&(tr_leaky_relu_attrs){0.1}), x);
    CHECK(elu, (&(tr_elu_attrs){0.7, 1.1, 1.3}), x);
    CHECK(clamp, (&(tr_clamp_attrs){-1, INFINITY}), x);
    CHECK(silu_grad, NULL, y, x);
    CHECK(mish_grad, NULL, y, x);
    CHECK(softplus_grad, NULL, y, x);
    CHECK(log_sigmoid_grad, NULL, y, x);
    CHECK(hardswish_grad, NULL, y, x);
    CHECK(hardsigmoid_grad, NULL, y, x);
    CHECK(leaky_relu_grad, (&(tr_leaky_relu_attrs){0.1}), y, x);
    CHECK(elu_grad, (&(tr_elu_attrs){0.7, 1.1, 1.3}), y, x);
    CHECK(clamp_grad, (&(tr_clamp_attrs){-1, 2}), y, x);
    CHECK(abs_grad, NULL, y, x);
    CHECK(relu_grad, NULL, y, x);
    CHECK(gelu_grad, NULL, y, x);
    CHECK(gelu_exact_grad, NULL, y, x);
    CHECK(tanh_grad, NULL, y, x);
    CHECK(sigmoid_grad, NULL, y, x);
    tr_tensor *mask = tr_greater(x, y);
    CHECK(where, NULL, mask, y, z);
    CHECK(mse_loss, NULL, x, y);
    CHECK(mse_loss_grad, NULL, z, x, y);
    tr_huber_loss_attrs huber = {0.8};
    CHECK(huber_loss, &huber, x, y);
    CHECK(huber_loss_grad, &huber, z, x, y);
    CHECK(bce_with_logits, NULL, x, positive);
    CHECK(bce_with_logits_grad, NULL, z, x, positive);
    CHECK(dropout, (&(tr_dropout_attrs){.p = 0.3, .seed = 5, .step = UINT64_MAX, .first_sample = UINT64_MAX}), x);
}

/* x: [rows, n]; nan: with one in a row of x, and in another row of positive. */
static void check_rows(int table, int64_t rows, int64_t n, bool nan)
{
    tr_tensor *x = tr_affine(tr_randn(1, TR_SHAPE(rows, n)), 3, 0), *g = tr_randn(2, TR_SHAPE(rows, n));
    tr_tensor *positive = tr_rand(5, TR_SHAPE(rows, n)), *weight = tr_randn(3, TR_SHAPE(n)),
              *bias = tr_randn(4, TR_SHAPE(n));
    tr_tensor *targets = tr_empty(TR_SHAPE(rows), .dtype = TR_I64), *outputs[TR_OP_MAX_OUTPUTS];
    for (int64_t r = 0; r < rows; r++) ((int64_t *)tr_data(targets))[r] = r % 5 == 3 ? -100 : r % n;
    if (nan) {
        ((float *)tr_data(x))[n + n / 3] = NAN;
        ((float *)tr_data(positive))[n / 2] = NAN;
    }
    for (uint32_t dims = 1; dims < 4; dims++) {
        CHECK(sum, (&(tr_reduce_attrs){.dims = dims}), positive);
        CHECK(mean, (&(tr_reduce_attrs){.dims = dims}), positive);
        CHECK(norm, (&(tr_reduce_attrs){.dims = dims}), x);
        CHECK(prod, (&(tr_reduce_attrs){.dims = dims}), tr_affine(positive, 0.01, 0.995));
    }
    CHECK(max, (&(tr_reduce_attrs){.dims = 2}), x);
    CHECK(min, (&(tr_reduce_attrs){.dims = 2}), x);
    CHECK(max, (&(tr_reduce_attrs){.dims = 3}), g);
    tr_tensor *ties = tr_cast(tr_cast(g, TR_I64), TR_F32); /* of equals the first */
    CHECK(argmax, (&(tr_reduce_attrs){.dims = 2}), x);
    CHECK(argmin, (&(tr_reduce_attrs){.dims = 2}), x);
    CHECK(argmax, (&(tr_reduce_attrs){.dims = 2}), ties);
    CHECK(argmin, (&(tr_reduce_attrs){.dims = 2}), ties);
    tr_dim_attrs last = {1};
    CHECK(softmax, &last, x);
    CHECK(log_softmax, &last, x);
    CHECK(softmax_grad, &last, g, tr_softmax(x, 1));
    CHECK(log_softmax_grad, &last, g, tr_log_softmax(x, 1));
    tr_cross_entropy_attrs loss = {.ignore_index = -100};
    CHECK(cross_entropy, &loss, x, targets);
    tr_apply(tr__op(cross_entropy), &loss, (tr_tensor *[]){x, targets}, 2, outputs);
    CHECK(cross_entropy_grad, &loss, tr_scalar(1.5, TR_F32), x, targets, outputs[1], outputs[2],
        outputs[3]);
    tr_cross_entropy_attrs smoothed = {-100, 0.3, TR_REDUCE_NONE};
    CHECK(cross_entropy, &smoothed, x, targets);
    CHECK(cross_entropy_grad, &smoothed, tr_randn(6, TR_SHAPE(rows)), x, targets, outputs[1], outputs[2], outputs[3]);
    tr_layer_norm_attrs norm = {.eps = 1e-5};
    CHECK(layer_norm, &norm, x, weight, bias);
    CHECK(layer_norm, &norm, x, NULL, NULL);
    CHECK(rms_norm, &norm, x, weight);
    CHECK(rms_norm, &norm, x, NULL);
    if (n < 4) return; /* all but cancels out, and rstd is large */
    tr_apply(tr__op(layer_norm), &norm, (tr_tensor *[]){x, NULL, NULL}, 3, outputs);
    CHECK(layer_norm_grad, &norm, g, x, weight, outputs[1], outputs[2]);
    CHECK(layer_norm_grad, &norm, g, x, NULL, outputs[1], outputs[2]);
    tr_apply(tr__op(rms_norm), &norm, (tr_tensor *[]){x, NULL}, 2, outputs);
    CHECK(rms_norm_grad, &norm, g, x, weight, outputs[1]);
    CHECK(rms_norm_grad, &norm, g, x, NULL, outputs[1]);
}

/* Images of c channels. */
static void check_images(int table, int64_t c, bool specials)
{
    tr_tensor *outputs[TR_OP_MAX_OUTPUTS];
    tr_tensor *x = specials ? special(1, TR_SHAPE(2, c, 5, 6)) : tr_randn(1, TR_SHAPE(2, c, 5, 6));
    for (int padding = 0; padding < 2; padding++) {
        tr_pool2d_attrs pool = {.kernel = 3, .stride = 2, .padding = padding, .image = tr_shape_of(x)};
        tr__channels_last(pool.image, pool.image_stride);
        CHECK(max_pool2d, &pool, x);
        CHECK(avg_pool2d, &pool, x);
        tr_tensor *y = tr_apply(tr__op(max_pool2d), &pool, &x, 1, outputs), *g = tr_randn(2, tr_shape_of(y));
        CHECK(max_pool2d_grad, &pool, g, outputs[1]);
        CHECK(avg_pool2d_grad, &pool, g);
        tr_pool2d_attrs adaptive = {.out_height = 3, .out_width = 4, .image = pool.image};
        tr__channels_last(pool.image, adaptive.image_stride);
        CHECK(avg_pool2d, &adaptive, x);
        CHECK(avg_pool2d_grad, &adaptive, tr_randn(2, TR_SHAPE(2, c, 3, 4)));
    }
    tr_tensor *many = tr_affine(tr_randn(1, TR_SHAPE(7, c, 11, 13)), 2, 30), *g = tr_randn(2, tr_shape_of(many));
    tr_tensor *weight = tr_randn(3, TR_SHAPE(c)), *bias = tr_randn(4, TR_SHAPE(c)), *var = tr_affine(tr_rand(5, TR_SHAPE(c)), 1, 1);
    for (int frozen = 0; frozen < 2; frozen++) {
        tr_batch_norm_attrs norm = {.eps = 1e-5, .frozen = frozen};
        CHECK(batch_norm, &norm, many, weight, bias, weight, var);
        CHECK(batch_norm, &norm, x, NULL, NULL, weight, var);
        CHECK(batch_norm_grad, &norm, g, many, weight, tr_full(30, TR_SHAPE(c)), var);
        CHECK(batch_norm_grad, &norm, g, many, NULL, tr_full(30, TR_SHAPE(c)), var);
        CHECK(batch_norm_relu, &norm, many, weight, bias, weight, var, g);
        CHECK(batch_norm_relu, &norm, many, NULL, NULL, weight, var, NULL);
        tr_tensor *halves = special(6, tr_shape_of(many)); /* many of which are 0 */
        CHECK(batch_norm_relu_grad, &norm, g, many, weight, tr_full(30, TR_SHAPE(c)), var, halves);
    }
}

static void every_table_agrees_with_the_reference(void **state)
{
    (void)state;
    for (int table = 0; table < TABLES; table++) {
        if (!runs_here(table)) continue;
        for (int64_t n = 1; n <= 70; n += n < 36 ? 1 : 17) {
            TR_SCOPE;
            for (int specials = 0; specials < 2; specials++) check_elementwise(table, TR_SHAPE(2, n), specials);
            check_halves(table, TR_SHAPE(2, n));
            check_comparisons(table, TR_SHAPE(2, n));
            for (int specials = 0; specials < 2; specials++) check_images(table, n, specials);
            for (int nan = 0; nan < 2; nan++) check_rows(table, 3, n, nan);
        }
        TR_SCOPE;
        for (int specials = 0; specials < 2; specials++) check_elementwise(table, TR_SHAPE(3, 1111), specials);
        for (int nan = 0; nan < 2; nan++) {
            check_rows(table, 40, 600, nan);
            check_rows(table, 2, 5000, nan);
        }
    }
}

static void embedding_gradients_agree_with_the_reference(void **state)
{
    (void)state;
    for (int table = 0; table < TABLES; table++)
        for (int k = 0; k < 6; k++) {
            if (!runs_here(table)) continue;
            TR_SCOPE;
            int64_t n = (int64_t[]){1, 19, 64, 65, 700, 5000}[k];
            tr_dtype dtype = k % 2 && n < 4096 ? TR_BF16 : TR_F32;
            tr_tensor *g = tr_cast(tr_randn(1, TR_SHAPE(30, n)), dtype), *ids = tr_empty(TR_SHAPE(30), .dtype = TR_I32);
            for (int i = 0; i < 30; i++) ((int32_t *)tr_data(ids))[i] = i * i % 7;
            tr_tensor *got = tr_ones(TR_SHAPE(8, n), .dtype = dtype),
                      *expected = tr_ones(TR_SHAPE(8, n), .dtype = dtype);
            tr_accumulate_attrs attrs = {.accumulate = k & 2};
            tr_op_call call = {tr__op(embedding_grad), &attrs, 2, 1, (tr_tensor *[]){g, ids}, &got};
            checked[table][TR__OP_embedding_grad] = true;
            assert_int_equal(tables[table].kernels[TR__OP_embedding_grad](&call), TR_OK);
            call.outputs = &expected;
            assert_int_equal(call.op->forward(&call), TR_OK);
            tr_tensor *difference = tr_max(tr_abs(tr_sub(tr_cast(got, TR_F64), tr_cast(expected, TR_F64))));
            assert_true(tr_item(difference) < (dtype == TR_BF16 ? 0.07 : 1e-5));
        }
}

/* The largest relative error of an op over a range of inputs, against a function of doubles. */
static double worst(int table, const tr_op *op, double (*f)(double), double least, double most)
{
    TR_SCOPE;
    enum { N = 20000 };
    tr_tensor *x = tr_affine(tr_arange(N, TR_F32, tr_cpu(0)), (most - least) / N, least), *y = tr_empty(TR_SHAPE(N));
    tr_op_call call = {op, &(tr_elu_attrs){1, 1, 1}, 1, 1, &x, &y};
    assert_int_equal(tables[table].kernels[op - tr__ops](&call), TR_OK);
    double error = 0;
    for (int i = 0; i < N; i++) {
        double expected = f((double)((float *)tr_data(x))[i]), got = (double)((float *)tr_data(y))[i];
        if (fabs(expected) > 1e-37) error = fmax(error, fabs(got - expected) / fabs(expected));
    }
    return error;
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double silu(double x) { return x * sigmoid(x); }
static double softplus(double x) { return log1p(exp(x)); }
static double mish(double x) { return x * tanh(softplus(x)); }
static double gelu(double x) { return x * sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x)); }
static double gelu_exact(double x) { return 0.5 * x * erfc(-x / sqrt(2.0)); }

static void functions_are_exact_to_a_few_units(void **state)
{
    (void)state;
    for (int table = 0; table < TABLES; table++) {
        if (!runs_here(table)) continue;
        assert_true(worst(table, tr__op(exp), exp, -85, 88) < 1.5e-7);
        assert_true(worst(table, tr__op(tanh), tanh, -12, 12) < 2.5e-7);
        assert_true(worst(table, tr__op(tanh), tanh, -1e-3, 1e-3) < 1.5e-7);
        assert_true(worst(table, tr__op(sigmoid), sigmoid, -20, 20) < 3e-7);
        assert_true(worst(table, tr__op(log), log, 1e-6, 100) < 2e-7);
        assert_true(worst(table, tr__op(log), log, 0.99, 1.01) < 2e-7);
        assert_true(worst(table, tr__op(log), log, 1e30, 3e38) < 2e-7);
        assert_true(worst(table, tr__op(log), log, 0, 1e-38) < 2e-7);
        assert_true(worst(table, tr__op(softplus), softplus, -80, 80) < 4e-7);
        assert_true(worst(table, tr__op(silu), silu, -20, 20) < 5e-7);
        assert_true(worst(table, tr__op(mish), mish, -20, 30) < 7e-7);
        assert_true(worst(table, tr__op(elu), expm1, -20, 0) < 5e-7);
        assert_true(worst(table, tr__op(gelu), gelu, -3, 9) < 1e-6);
        assert_true(worst(table, tr__op(gelu_exact), gelu_exact, -3, 9) < 2e-6);
    }
}

static void extremes_overflow_to_where_they_should(void **state)
{
    (void)state;
    const float in[] = {-INFINITY, -3e38f, -200, -103.5f, 0, 88.8f, 200, 3e38f, INFINITY};
    const struct {
        const tr_op *op;
        float out[9]; /* NAN: anything */
    } ops[] = {
        {tr__op(exp), {0, 0, 0, NAN, 1, INFINITY, INFINITY, INFINITY, INFINITY}},
        {tr__op(tanh), {-1, -1, -1, -1, 0, 1, 1, 1, 1}},
        {tr__op(sigmoid), {0, 0, 0, 0, 0.5f, 1, 1, 1, 1}},
        {tr__op(log), {NAN, NAN, NAN, NAN, -INFINITY, NAN, NAN, NAN, INFINITY}},
        {tr__op(softplus), {0, 0, 0, 0, NAN, 88.8f, 200, 3e38f, INFINITY}},
        {tr__op(silu), {0, 0, 0, 0, 0, 88.8f, 200, 3e38f, INFINITY}},
        {tr__op(mish), {0, 0, 0, 0, 0, 88.8f, 200, 3e38f, INFINITY}},
        {tr__op(hardswish), {0, 0, 0, 0, 0, 88.8f, 200, 3e38f, INFINITY}},
        {tr__op(relu), {0, 0, 0, 0, 0, 88.8f, 200, 3e38f, INFINITY}},
        {tr__op(gelu), {0, 0, 0, 0, 0, 88.8f, 200, 3e38f, INFINITY}},
        {tr__op(gelu_exact), {0, 0, 0, 0, 0, 88.8f, 200, 3e38f, INFINITY}},
    };
    for (int table = 0; table < TABLES; table++)
        for (size_t k = 0; k < sizeof ops / sizeof *ops && runs_here(table); k++) {
            TR_SCOPE;
            tr_tensor *x = tr_from(in, TR_SHAPE(9)), *y = tr_empty(TR_SHAPE(9));
            tr_op_call call = {ops[k].op, NULL, 1, 1, &x, &y};
            assert_int_equal(tables[table].kernels[ops[k].op - tr__ops](&call), TR_OK);
            for (int i = 0; i < 9; i++) {
                float got = ((float *)tr_data(y))[i], expected = ops[k].out[i];
                if (expected == expected && !(got == expected || fabsf(got - expected) < 1e-27f))
                    fail_msg("%s, %s(%g): %g instead of %g", tables[table].name, ops[k].op->name, (double)in[i],
                             (double)got, (double)expected);
            }
        }
}

/* Runs behind the others. */
static void every_kernel_was_held_against_the_reference(void **state)
{
    (void)state;
    for (int table = 0; table < TABLES; table++)
        for (int i = 0; i < TR__OP_COUNT && runs_here(table); i++)
            if (tables[table].kernels[i] && !checked[table][i])
                fail_msg("no check of this file runs the kernel of %s for %s", tr__ops[i].name, tables[table].name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_table_agrees_with_the_reference),
        cmocka_unit_test(embedding_gradients_agree_with_the_reference),
        cmocka_unit_test(every_kernel_was_held_against_the_reference),
        cmocka_unit_test(functions_are_exact_to_a_few_units),
        cmocka_unit_test(extremes_overflow_to_where_they_should),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
