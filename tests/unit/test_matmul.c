/* Matrix products: the fast kernels against the reference, the reference against three loops, through every layout.
 * ctest: timeout=300 */
#include "amx_double.h"
#include "base/isa.h"
#include "ops/cpu/gemm/gemm.h"
#include "ops/onednn/kernels.h"

#include <trireme/autograd.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Helpers ------------------------------------------------------------------------------------------------------- */

/* The same shape and values laid out differently. */
enum { PLAIN, TRANSPOSED, ROWS_APART, COLUMNS_APART, LAYOUTS };

static tr_tensor *laid_out(tr_tensor *x, int layout)
{
    int n = x->shape.ndim;
    if (layout == PLAIN || n < 2) return x;
    tr_shape shape = x->shape;
    tr_tensor *y;
    if (layout == TRANSPOSED) {
        int64_t last = shape.dim[n - 1];
        shape.dim[n - 1] = shape.dim[n - 2];
        shape.dim[n - 2] = last;
        y = tr_transpose(tr_empty(shape, .dtype = x->dtype), -1, -2);
    } else if (layout == ROWS_APART) {
        shape.dim[n - 1] += 3;
        y = tr_slice(tr_empty(shape, .dtype = x->dtype), -1, 2, 2 + x->shape.dim[n - 1]);
    } else {
        shape.dim[shape.ndim++] = 2;
        y = tr_slice(tr_empty(shape, .dtype = x->dtype), -1, 1, 2);
        y = tr__tensor_view(y, x->shape, y->stride, y->offset);
    }
    assert_int_equal(tr_copy_into(y, x), TR_OK);
    return y;
}

static tr_tensor *converted(tr_tensor *x, tr_dtype dtype)
{
    if (!x) return NULL;
    tr_tensor *y = tr_empty(x->shape, .dtype = dtype);
    assert_int_equal(tr_copy_into(y, x), TR_OK);
    return y;
}

static double at(const tr_tensor *x, int64_t i)
{
    return tr__load(x->dtype, tr__ptr(x), i);
}

/* Both row-major. The largest difference, in units of the largest value (or 1). */
static void assert_close(tr_tensor *x, tr_tensor *expected, double tolerance)
{
    if (tr_status_of(x) != TR_OK || tr_status_of(expected) != TR_OK) fail_msg("%s", tr_error_message());
    assert_true(tr__shape_equal(x->shape, expected->shape));
    x = converted(x, TR_F64);
    expected = converted(expected, TR_F64);
    double worst = 0, scale = 1;
    for (int64_t i = 0; i < tr_numel(x); i++) {
        scale = fmax(scale, fabs(at(expected, i)));
        worst = fmax(worst, fabs(at(x, i) - at(expected, i)));
        assert_false(isnan(at(x, i)) != isnan(at(expected, i)));
    }
    if (worst > tolerance * scale) fail_msg("off by %g (values to %g) in %s", worst, scale, TR__TEXT(x->shape));
}

static void assert_same_bits(tr_tensor *x, tr_tensor *y)
{
    assert_int_equal(tr_status_of(x), TR_OK);
    assert_int_equal(tr_status_of(y), TR_OK);
    assert_memory_equal(tr__ptr(x), tr__ptr(y), (size_t)tr_numel(x) * tr_dtype_size(x->dtype));
}

/* ---- matmul -------------------------------------------------------------------------------------------------------- */

static const int64_t sizes[][3] = {
    {1, 1, 1}, {1, 5, 1}, {5, 1, 3}, {1, 17, 33}, {33, 1, 17}, {2, 3, 4}, {7, 13, 5}, {16, 16, 16}, {31, 33, 65},
    {64, 96, 48}, {65, 130, 127}, {100, 49, 300}, {130, 257, 391}, {0, 3, 4}, {3, 0, 4}, {3, 4, 0}, {513, 48, 64},
    {26, 90, 50}, {47, 70, 1100},
};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void reference_is_three_loops(void **state)
{
    (void)state;
    for (int s = 0; s < SIZES; s++) {
        TR_SCOPE;
        int64_t m = sizes[s][0], n = sizes[s][1], k = sizes[s][2];
        tr_tensor *a = tr_randn(1, TR_SHAPE(m, k), .dtype = TR_F64), *b = tr_randn(2, TR_SHAPE(k, n), .dtype = TR_F64);
        tr_tensor *expected = tr_zeros(TR_SHAPE(m, n), .dtype = TR_F64);
        double *c = tr__ptr(expected);
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++)
                for (int64_t l = 0; l < k; l++) c[i * n + j] += at(a, i * k + l) * at(b, l * n + j);
        for (int layout = 0; layout < LAYOUTS * LAYOUTS; layout++)
            assert_close(tr_matmul(laid_out(a, layout / LAYOUTS), laid_out(b, layout % LAYOUTS)), expected, 1e-13);
    }
}

static void fast_is_reference(void **state)
{
    (void)state;
    static const struct { tr_dtype dtype; double tolerance; } dtypes[] = {{TR_F32, 2e-6}, {TR_BF16, 1e-2}, {TR_F16, 2e-3}};
    for (int d = 0; d < 3; d++) {
        if (amx_leaves_out(dtypes[d].dtype)) continue;
        for (int s = 0; s < SIZES; s++) {
            TR_SCOPE;
            int64_t m = sizes[s][0], n = sizes[s][1], k = sizes[s][2];
            tr_tensor *a = converted(tr_randn(1, TR_SHAPE(m, k)), dtypes[d].dtype);
            tr_tensor *b = converted(tr_randn(2, TR_SHAPE(k, n)), dtypes[d].dtype);
            tr_tensor *expected = tr_matmul(converted(a, TR_F64), converted(b, TR_F64));
            for (int layout = 0; layout < LAYOUTS * LAYOUTS; layout++)
                assert_close(tr_matmul(laid_out(a, layout / LAYOUTS), laid_out(b, layout % LAYOUTS)), expected,
                    dtypes[d].tolerance);
        }
    }
}

static tr_tensor *expected_linear(tr_tensor *x, tr_tensor *w, tr_tensor *bias, tr_tensor *residual, bool in_out)
{
    w = converted(w, TR_F64);
    tr_tensor *y = tr_matmul(converted(x, TR_F64), in_out ? w : tr_transpose(w, 0, 1));
    if (bias) y = tr_add(y, converted(bias, TR_F64));
    return residual ? tr_add(y, converted(residual, TR_F64)) : y;
}

/* oneDNN's kernel by itself, also where this machine has a better one. */
static void onednn_is_reference(void **state)
{
    (void)state;
    static const struct { tr_dtype dtype; double tolerance; } dtypes[] = {{TR_F32, 3e-6}, {TR_BF16, 2e-2}};
    int declined = 0;
    for (int variant = 0; variant < 2 * 2 * 8 * SIZES; variant++) {
        TR_SCOPE;
        const int64_t *size = sizes[variant / 32];
        tr_dtype dtype = dtypes[variant / 16 % 2].dtype;
        if (amx_leaves_out(dtype)) continue;
        tr_tensor *x = laid_out(converted(tr_randn(1, TR_SHAPE(size[0], size[2])), dtype), variant & 1 ? TRANSPOSED : ROWS_APART);
        tr_tensor *w = laid_out(converted(tr_randn(2, TR_SHAPE(size[1], size[2])), dtype), variant & 2 ? TRANSPOSED : PLAIN);
        tr_tensor *bias = variant & 4 ? converted(tr_randn(3, TR_SHAPE(size[1])), dtype) : NULL;
        tr_tensor *residual = variant & 8 ? converted(tr_randn(4, TR_SHAPE(size[0], size[1])), dtype) : NULL;
        tr_tensor *y = converted(tr_ones(TR_SHAPE(size[0], size[1])), dtype);
        tr_op_call call = {tr__op(linear), &(tr_linear_attrs){0}, 4, 1, (tr_tensor *[]){x, w, bias, residual}, &y};
        tr__gemm p = tr__gemm_of(&call);
        tr_tensor *expected = expected_linear(x, w, bias, residual, false);
        p.accumulate = !bias && !residual;
        if (p.accumulate) expected = tr_affine(expected, 1, 1);
        tr_status status = tr__onednn_gemm(&p, tr_cpu(0));
        declined += status == TR_DECLINED;
        if (status == TR_DECLINED) continue;
        TR_CHECK(status);
        assert_close(y, expected, dtypes[variant / 16 % 2].tolerance);
    }
    assert_in_range(declined, 0, 16 * SIZES + 16 * 3); /* no bf16 on older machines; and what is empty */
}

/* Our kernels for every machine that this one can stand in for. */
static void all_machines_are_reference(void **state)
{
    (void)state;
    if (tr__isa_allowed() == TR__ISA_AMX) skip(); /* the run without it has them all */
    tr__gemm_kernel kernels[5] = {tr__gemm_generic};
#if defined(__x86_64__)
    if (tr__has_avx2()) kernels[1] = tr__gemm_avx2;
    if (tr__has_avx512()) kernels[2] = tr__gemm_avx512;
    if (tr__has_avx512bf16()) kernels[3] = tr__gemm_avx512bf16;
    if (amx_double()) kernels[4] = tr__gemm_amx;
#endif
    static const struct { tr_dtype dtype; double tolerance; } dtypes[] = {{TR_F32, 3e-6}, {TR_F16, 4e-3}, {TR_BF16, 1e-2}};
    for (int variant = 0; variant < 5 * 3 * 8 * SIZES; variant++) {
        TR_SCOPE;
        tr__gemm_kernel kernel = kernels[variant % 5];
        const int64_t *size = sizes[variant / 120];
        int d = variant / 5 % 3, choice = variant / 15 % 8;
        if (!kernel) continue;
        tr_tensor *x = converted(tr_randn(1, TR_SHAPE(size[0], size[2])), dtypes[d].dtype);
        tr_tensor *w = converted(tr_randn(2, TR_SHAPE(size[1], size[2])), dtypes[d].dtype);
        tr_tensor *bias = choice & 1 ? converted(tr_randn(3, TR_SHAPE(size[1])), dtypes[d].dtype) : NULL;
        tr_tensor *residual = choice & 2 ? converted(tr_randn(4, TR_SHAPE(size[0], size[1])), dtypes[d].dtype) : NULL;
        tr_tensor *y = converted(tr_ones(TR_SHAPE(size[0], size[1])), dtypes[d].dtype);
        tr_tensor *expected = tr_affine(expected_linear(x, w, bias, residual, false), 1, 1);
        tr_tensor *in[4] = {laid_out(x, choice % LAYOUTS), laid_out(w, choice / 2), bias, residual};
        tr_op_call call = {tr__op(linear), &(tr_linear_attrs){0}, 4, 1, in, &y};
        tr__gemm p = tr__gemm_of(&call);
        p.accumulate = true;
        assert_true(kernel(&(tr__gemm_task){.p = &p}));
        assert_close(y, expected, variant % 5 > 2 ? 1e-2 : dtypes[d].tolerance); /* the last two round x and w to bf16 */
    }
}

static void leading_dimensions_broadcast(void **state)
{
    (void)state;
    static const struct { tr_shape a, b, c; } cases[] = {
        {{3, {4, 5, 6}}, {2, {6, 7}}, {3, {4, 5, 7}}},
        {{2, {5, 6}}, {3, {4, 6, 7}}, {3, {4, 5, 7}}},
        {{4, {2, 1, 5, 6}}, {3, {3, 6, 7}}, {4, {2, 3, 5, 7}}},
        {{4, {1, 3, 5, 6}}, {4, {2, 1, 6, 7}}, {4, {2, 3, 5, 7}}},
        {{1, {6}}, {2, {6, 7}}, {1, {7}}},
        {{2, {5, 6}}, {1, {6}}, {1, {5}}},
        {{1, {6}}, {1, {6}}, {0, {0}}},
        {{3, {4, 5, 6}}, {1, {6}}, {2, {4, 5}}},
        {{1, {6}}, {3, {4, 6, 7}}, {2, {4, 7}}},
        {{3, {0, 5, 6}}, {3, {1, 6, 7}}, {3, {0, 5, 7}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        TR_SCOPE;
        tr_tensor *a = tr_randn(1, cases[i].a), *b = tr_randn(2, cases[i].b);
        tr_tensor *c = tr_matmul(a, b);
        assert_close(c, tr_matmul(converted(a, TR_F64), converted(b, TR_F64)), 1e-6);
        assert_true(tr__shape_equal(c->shape, cases[i].c));
        assert_close(tr_matmul(laid_out(a, TRANSPOSED), laid_out(b, TRANSPOSED)), c, 1e-6);
        /* The same as one product of spread-out operands. */
        if (a->shape.ndim < 2 || b->shape.ndim < 2) continue;
        tr_shape wide_a = c->shape, wide_b = c->shape;
        memcpy(wide_a.dim + wide_a.ndim - 2, a->shape.dim + a->shape.ndim - 2, 2 * sizeof(int64_t));
        memcpy(wide_b.dim + wide_b.ndim - 2, b->shape.dim + b->shape.ndim - 2, 2 * sizeof(int64_t));
        assert_close(tr_matmul(tr_expand(a, wide_a), tr_expand(b, wide_b)), c, 1e-6);
    }
}

static tr_tensor *matmul_of(tr_tensor *const *in, int n, void *user)
{
    (void)n;
    (void)user;
    return tr_matmul(in[0], in[1]);
}

static void matmul_has_gradients(void **state)
{
    (void)state;
    static const tr_shape shapes[][2] = {
        {{2, {3, 4}}, {2, {4, 5}}}, {{3, {2, 3, 4}}, {2, {4, 5}}},          {{2, {3, 4}}, {3, {2, 4, 5}}},
        {{1, {4}}, {2, {4, 5}}},    {{2, {3, 4}}, {1, {4}}},                {{1, {4}}, {1, {4}}},
        {{3, {2, 3, 4}}, {1, {4}}}, {{4, {2, 1, 3, 4}}, {4, {1, 3, 4, 5}}}, {{1, {4}}, {3, {2, 4, 5}}},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        TR_SCOPE;
        tr_tensor *in[2] = {
            tr_randn(1, shapes[i][0], .dtype = TR_F64, .requires_grad = true),
            tr_randn(2, shapes[i][1], .dtype = TR_F64, .requires_grad = true),
        };
        TR_CHECK(tr_grad_check(matmul_of, in, 2, NULL, 1e-6));
    }
}

/* An empty batch of several dimensions, which no kernel may number. */
static void empty_batches_have_gradients(void **state)
{
    (void)state;
    static const tr_shape shapes[][2] = {
        {{4, {2, 0, 3, 4}}, {4, {2, 1, 4, 5}}}, {{4, {0, 2, 3, 4}}, {3, {2, 4, 5}}}, {{4, {2, 0, 3, 4}}, {2, {4, 5}}}};
    static const tr_dtype dtypes[] = {TR_F32, TR_F64, TR_BF16, TR_F16};
    for (int i = 0; i < 4 * 3; i++) {
        TR_SCOPE;
        tr_dtype dtype = dtypes[i % 4];
        tr_tensor *a = tr_zeros(shapes[i / 4][0], .dtype = dtype, .requires_grad = true);
        tr_tensor *b = tr_ones(shapes[i / 4][1], .dtype = dtype, .requires_grad = true), *c = tr_matmul(a, b);
        TR_CHECK(tr_backward(c, .gradient = tr_zeros(tr_shape_of(c), .dtype = dtype)));
        assert_true(tr__shape_equal(tr_shape_of(tr_grad(a)), a->shape));
        assert_same_bits(tr_grad(b), tr_zeros(b->shape, .dtype = dtype));
    }
}

static void matmul_refuses(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *y = tr_matmul(tr_zeros(TR_SHAPE(32, 784)), tr_zeros(TR_SHAPE(512, 10)));
    assert_int_equal(tr_status_of(y), TR_SHAPE);
}

/* ---- linear -------------------------------------------------------------------------------------------------------- */

typedef struct linear_case {
    int64_t rows, in, out;
    bool in_out, bias, residual;
} linear_case;

static void linear_is_matmul_and_sums(void **state)
{
    (void)state;
    static const struct { tr_dtype dtype; double tolerance; } dtypes[] = {{TR_F32, 3e-6}, {TR_F64, 1e-13}, {TR_BF16, 2e-2}};
    for (int variant = 0; variant < 3 * 8 * SIZES; variant++) {
        TR_SCOPE;
        int d = variant / 8 / SIZES;
        if (amx_leaves_out(dtypes[d].dtype)) continue;
        const int64_t *size = sizes[variant / 8 % SIZES];
        bool in_out = variant & 1;
        tr_dtype dtype = dtypes[d].dtype;
        tr_tensor *x = converted(tr_randn(1, TR_SHAPE(2, size[0], size[2])), dtype);
        tr_tensor *w = converted(tr_randn(2, in_out ? TR_SHAPE(size[2], size[1]) : TR_SHAPE(size[1], size[2])), dtype);
        tr_tensor *bias = variant & 2 ? converted(tr_randn(3, TR_SHAPE(size[1])), dtype) : NULL;
        tr_tensor *residual = variant & 4 ? converted(tr_randn(4, TR_SHAPE(2, size[0], size[1])), dtype) : NULL;
        tr_tensor *expected = expected_linear(x, w, bias, residual, in_out);
        for (int layout = 0; layout < LAYOUTS; layout++) {
            tr_tensor *y = tr_linear_op(laid_out(x, layout), laid_out(w, (layout + variant) % LAYOUTS), .bias = bias,
                .residual = residual ? laid_out(residual, layout) : NULL, .in_out = in_out);
            assert_close(y, expected, dtypes[d].tolerance);
        }
    }
}

static tr_tensor *linear_of(tr_tensor *const *in, int n, void *user)
{
    (void)n;
    return tr_linear_op(in[0], in[1], .bias = in[2], .residual = in[3], .in_out = *(bool *)user);
}

static void linear_has_gradients(void **state)
{
    (void)state;
    for (int in_out = 0; in_out < 2; in_out++) {
        TR_SCOPE;
        tr_tensor *in[4] = {
            tr_randn(1, TR_SHAPE(2, 3, 4), .dtype = TR_F64, .requires_grad = true),
            tr_randn(2, in_out ? TR_SHAPE(4, 5) : TR_SHAPE(5, 4), .dtype = TR_F64, .requires_grad = true),
            tr_randn(3, TR_SHAPE(5), .dtype = TR_F64, .requires_grad = true),
            tr_randn(4, TR_SHAPE(2, 3, 5), .dtype = TR_F64, .requires_grad = true),
        };
        TR_CHECK(tr_grad_check(linear_of, in, 4, &(bool){in_out}, 1e-6));
    }
}

/* Gradients of f32 and bf16 against those of f64, at sizes where blocks and edges matter. */
static void linear_gradients_are_those_of_f64(void **state)
{
    (void)state;
    static const struct { tr_dtype dtype; double tolerance; } dtypes[] = {{TR_F32, 5e-6}, {TR_BF16, 3e-2}};
    for (int variant = 0; variant < 2 * 2 * SIZES; variant++) {
        TR_SCOPE;
        const int64_t *size = sizes[variant / 4];
        bool in_out = variant & 1;
        tr_dtype dtype = dtypes[variant / 2 % 2].dtype;
        if (amx_leaves_out(dtype)) continue;
        tr_tensor *grads[2][3];
        for (int exact = 0; exact < 2; exact++) {
            tr_dtype as = exact ? TR_F64 : dtype;
            tr_tensor *x = converted(tr_randn(1, TR_SHAPE(size[0], size[2])), dtype);
            tr_tensor *w = converted(tr_randn(2, in_out ? TR_SHAPE(size[2], size[1]) : TR_SHAPE(size[1], size[2])), dtype);
            tr_tensor *bias = converted(tr_randn(3, TR_SHAPE(size[1])), dtype);
            tr_tensor *g = converted(tr_randn(4, TR_SHAPE(size[0], size[1])), dtype);
            x = tr_require_grad(converted(x, as));
            w = tr_require_grad(converted(w, as));
            bias = tr_require_grad(converted(bias, as));
            tr_tensor *y = tr_linear_op(x, w, .bias = bias, .in_out = in_out);
            TR_CHECK(tr_backward(y, .gradient = converted(g, as)));
            tr_tensor *of[3] = {x, w, bias};
            for (int i = 0; i < 3; i++) grads[exact][i] = tr_grad(of[i]);
        }
        for (int i = 0; i < 3; i++) assert_close(grads[0][i], grads[1][i], dtypes[variant / 2 % 2].tolerance);
    }
}

/* Under autocast parameters stay f32, and so do their gradients; what is computed are products of 16-bit numbers. */
static void f32_parameters_meet_16_bit_numbers(void **state)
{
    (void)state;
    static const struct { tr_dtype dtype; double tolerance; } dtypes[] = {{TR_BF16, 2e-2}, {TR_F16, 4e-3}};
    for (int variant = 0; variant < 2 * 2 * 3 * SIZES; variant++) {
        TR_SCOPE;
        const int64_t *size = sizes[variant / 12];
        bool in_out = variant & 1;
        tr_dtype dtype = dtypes[variant / 2 % 2].dtype;
        if (amx_leaves_out(dtype)) continue;
        tr_activation_kind activation = (tr_activation_kind[]){TR_NO_ACTIVATION, TR_RELU, TR_GELU}[variant / 4 % 3];
        tr_tensor *results[2][4], *g = converted(tr_randn(4, TR_SHAPE(size[0], size[1])), dtype);
        for (int exact = 0; exact < 2; exact++) {
            tr_dtype as = exact ? TR_F64 : TR_F32;
            tr_tensor *of[3];
            of[0] = tr_require_grad(converted(converted(tr_randn(1, TR_SHAPE(size[0], size[2])), dtype), exact ? as : dtype));
            of[1] = tr_require_grad(converted(tr_randn(2, in_out ? TR_SHAPE(size[2], size[1]) : TR_SHAPE(size[1], size[2])), as));
            of[2] = tr_require_grad(converted(tr_randn(3, TR_SHAPE(size[1])), as));
            TR_AUTOCAST(exact ? TR_F32 : dtype);
            tr_tensor *y = tr_linear_op(of[0], of[1], .bias = of[2], .in_out = in_out, .activation = activation);
            if (!exact) assert_int_equal(tr_dtype_of(y), dtype);
            for (int turn = 0; turn < 2; turn++) TR_CHECK(tr_backward(y, .gradient = tr_cast(g, y->dtype), .retain_graph = true));
            results[exact][3] = y;
            for (int i = 0; i < 3; i++) results[exact][i] = tr_grad(of[i]);
            for (int i = 1; i < 3; i++) assert_int_equal(tr_dtype_of(tr_grad(of[i])), as);
        }
        for (int i = 0; i < 4; i++) assert_close(results[0][i], results[1][i], dtypes[variant / 2 % 2].tolerance);
    }
}

static void gradients_accumulate_in_place(void **state)
{
    (void)state;
    for (int variant = 0; variant < 2 * SIZES; variant++) {
        TR_SCOPE;
        const int64_t *size = sizes[variant / 2];
        bool in_out = variant & 1;
        tr_tensor *g = tr_randn(1, TR_SHAPE(size[0], size[1])), *x = tr_randn(2, TR_SHAPE(size[0], size[2]));
        tr_shape shape = in_out ? TR_SHAPE(size[2], size[1]) : TR_SHAPE(size[1], size[2]);
        tr_tensor *once[2] = {tr_empty(shape), tr_empty(TR_SHAPE(size[1]))};
        tr_tensor *added[2] = {tr_ones(shape), tr_ones(TR_SHAPE(size[1]))};
        tr_linear_attrs attrs = {.in_out = in_out};
        TR_CHECK(tr__op_run(tr__op(linear_grad_weight), &attrs, (tr_tensor *[]){g, x}, 2, once, 2));
        attrs.accumulate = attrs.accumulate_bias = true;
        TR_CHECK(tr__op_run(tr__op(linear_grad_weight), &attrs, (tr_tensor *[]){g, x}, 2, added, 2));
        for (int i = 0; i < 2; i++) assert_close(added[i], tr_affine(once[i], 1, 1), 2e-6);
        tr_tensor *w = tr_randn(3, shape), *dx = tr_empty(x->shape), *more = tr_ones(x->shape);
        attrs.accumulate = false;
        TR_CHECK(tr__op_run(tr__op(linear_grad_input), &attrs, (tr_tensor *[]){g, w}, 2, &dx, 1));
        attrs.accumulate = true;
        TR_CHECK(tr__op_run(tr__op(linear_grad_input), &attrs, (tr_tensor *[]){g, w}, 2, &more, 1));
        assert_close(more, tr_affine(dx, 1, 1), 2e-6);
    }
}

static void one_and_two_threads_agree(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{1030, 384, 128}, {512, 96, 1000}, {70, 500, 64}};
    for (int s = 0; s < 3; s++) {
        TR_SCOPE;
        const int64_t *size = shapes[s];
        tr_tensor *results[2][4];
        for (int threads = 1; threads <= 2; threads++) {
            TR_CHECK(tr_set_threads(threads));
            tr_tensor *x = tr_randn(1, TR_SHAPE(size[0], size[2]), .requires_grad = true);
            tr_tensor *w = tr_randn(2, TR_SHAPE(size[2], size[1]), .requires_grad = true);
            tr_tensor *bias = tr_randn(3, TR_SHAPE(size[1]), .requires_grad = true);
            tr_tensor *y = tr_linear_op(x, w, .bias = bias, .in_out = true);
            TR_CHECK(tr_backward(y, .gradient = tr_randn(4, TR_SHAPE(size[0], size[1]))));
            tr_tensor *all[4] = {y, tr_grad(x), tr_grad(w), tr_grad(bias)};
            memcpy(results[threads - 1], all, sizeof all);
        }
        for (int i = 0; i < 4; i++) assert_same_bits(results[0][i], results[1][i]);
    }
    TR_CHECK(tr_set_threads(0));
}

/* What is so large that it is written past the caches, and, in parts, not. */
static void large_results_are_those_of_parts(void **state)
{
    (void)state;
    enum { LARGE = 1040, ROWS = 24 };
    for (int variant = 0; variant < 4; variant++) {
        TR_SCOPE;
        TR_CHECK(tr_set_threads(1 + variant / 2));
        TR_AUTOCAST(variant % 2 ? TR_BF16 : TR_F32);
        tr_tensor *x = tr_randn(1, TR_SHAPE(LARGE, ROWS)), *w = tr_randn(2, TR_SHAPE(LARGE, ROWS), .requires_grad = true);
        tr_tensor *bias = tr_randn(3, TR_SHAPE(LARGE)), *y = tr_linear_op(x, w, .bias = bias);
        tr_tensor *big = tr_randn(4, TR_SHAPE(LARGE, LARGE), .requires_grad = true), *few = tr_randn(5, TR_SHAPE(ROWS, LARGE));
        tr_tensor *g = tr_cast(tr_randn(6, TR_SHAPE(ROWS, LARGE)), y->dtype);
        TR_CHECK(tr_backward(tr_linear_op(few, big), .gradient = g));
        for (int part = 0; part < 2; part++) {
            int64_t from = part * LARGE / 2, to = from + LARGE / 2;
            assert_same_bits(tr_contiguous(tr_slice(y, 0, from, to)), tr_linear_op(tr_slice(x, 0, from, to), w, .bias = bias));
            tr_tensor *half = tr_require_grad(tr_contiguous(tr_slice(tr_detach(big), 0, from, to)));
            TR_CHECK(tr_backward(tr_linear_op(few, half), .gradient = tr_contiguous(tr_slice(g, 1, from, to))));
            assert_same_bits(tr_contiguous(tr_slice(tr_grad(big), 0, from, to)), tr_grad(half));
        }
    }
    TR_CHECK(tr_set_threads(0));
}

/* Few rows times a large weight [out, in]: what is written has as many blocks as can be. */
static void a_weight_may_be_either_way_around(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{64, 512, 784}, {400, 1300, 600}, {25, 203, 401}, {40, 7001, 50}};
    for (int s = 0; s < 4; s++) {
        TR_SCOPE;
        int64_t m = shapes[s][0], n = shapes[s][1], k = shapes[s][2];
        tr_tensor *x = tr_randn(1, TR_SHAPE(m, k)), *w = tr_randn(2, TR_SHAPE(n, k)), *results[2];
        tr_tensor *bias = tr_randn(3, TR_SHAPE(n)), *residual = tr_randn(4, TR_SHAPE(m, n));
        for (int threads = 1; threads <= 2; threads++) {
            TR_CHECK(tr_set_threads(threads));
            results[threads - 1] = tr_linear_op(x, w, .bias = bias, .residual = residual, .activation = TR_RELU);
        }
        assert_same_bits(results[0], results[1]);
        tr_tensor *turned = tr_contiguous(tr_transpose(w, 0, 1));
        assert_close(results[0],
            tr_linear_op(x, turned, .bias = bias, .residual = residual, .activation = TR_RELU, .in_out = true), 2e-6);
    }
    TR_CHECK(tr_set_threads(0));
}

static void linear_refuses(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_zeros(TR_SHAPE(2, 3)), *w = tr_zeros(TR_SHAPE(4, 3));
    assert_int_equal(tr_status_of(tr_linear_op(x, w, .in_out = true)), TR_SHAPE);
    assert_int_equal(tr_status_of(tr_linear_op(x, w, .bias = tr_zeros(TR_SHAPE(3)))), TR_SHAPE);
    assert_int_equal(tr_status_of(tr_linear_op(x, w, .residual = tr_zeros(TR_SHAPE(2, 3)))), TR_SHAPE);
    assert_int_equal(tr_status_of(tr_linear_op(x, tr_zeros(TR_SHAPE(4, 3), .dtype = TR_F64))), TR_DTYPE);
    assert_int_equal(tr_status_of(tr_linear_op(tr_zeros(TR_SHAPE(2, 3), .dtype = TR_I32), w)), TR_DTYPE);
    assert_int_equal(tr_status_of(tr_linear_op(tr_zeros(TR_SHAPE(2, 3), .dtype = TR_BF16), w)), TR_DTYPE); /* no autocast */
    assert_int_equal(tr_status_of(tr_linear_op(x, w, .bias = tr_reshape(w, TR_SHAPE(5)))), TR_SHAPE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_is_three_loops),
        cmocka_unit_test(fast_is_reference),
        cmocka_unit_test(onednn_is_reference),
        cmocka_unit_test(all_machines_are_reference),
        cmocka_unit_test(leading_dimensions_broadcast),
        cmocka_unit_test(matmul_has_gradients),
        cmocka_unit_test(empty_batches_have_gradients),
        cmocka_unit_test(matmul_refuses),
        cmocka_unit_test(linear_is_matmul_and_sums),
        cmocka_unit_test(linear_has_gradients),
        cmocka_unit_test(linear_gradients_are_those_of_f64),
        cmocka_unit_test(f32_parameters_meet_16_bit_numbers),
        cmocka_unit_test(gradients_accumulate_in_place),
        cmocka_unit_test(one_and_two_threads_agree),
        cmocka_unit_test(large_results_are_those_of_parts),
        cmocka_unit_test(a_weight_may_be_either_way_around),
        cmocka_unit_test(linear_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
