/* Which algorithm computes a convolution or a gemm: chosen once, the same for all threads, for any number of shapes. */
#include "amx_double.h"
#include "base/isa.h"
#include "ops/op.h"

#include <trireme/autograd.h>

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct conv_case {
    int64_t c, size, k, kernel;
    int stride, padding, dilation, groups;
    tr_dtype dtype;
    const char *forward, *weight; /* with AVX2; NULL: not looked at, as it depends on the machine */
} conv_case;

/* The plan of conv2d, or of the gradient of its weight, before and after it has run. */
static void check_conv(const conv_case *one, bool of_weight)
{
    TR_SCOPE;
    tr_conv2d_attrs attrs = {one->stride, one->padding, one->dilation, one->groups, false, false};
    tr_tensor *x = tr_zeros(TR_SHAPE(2, one->c, one->size, one->size), .dtype = one->dtype),
              *w = tr_zeros(TR_SHAPE(one->k, one->c / one->groups, one->kernel, one->kernel), .dtype = one->dtype),
              *outputs[2] = {NULL};
    tr_op_call call = {tr__op(conv2d), &attrs, 3, 0, (tr_tensor *[]){x, w, NULL}, outputs};
    TR_CHECK(call.op->infer(&call));
    tr_op_call gradient = {tr__op(conv2d_grad_weight), &attrs, 2, 1, (tr_tensor *[]){outputs[0], x}, (tr_tensor *[]){w}};
    if (of_weight) call = gradient;
    assert_null(tr__plan_name(&call)); /* no other case has these sizes */
    TR_CHECK(tr__op_run(call.op, &attrs, call.inputs, call.n_inputs, call.outputs, call.n_outputs));
    const char *got = tr__plan_name(&call), *expected = of_weight ? one->weight : one->forward;
    assert_non_null(got);
    if (expected && strcmp(got, expected) != 0)
        fail_msg("%s of %s: %s, expected %s", call.op->name, TR__TEXT(x->shape), got, expected);
    TR_CHECK(tr__op_run(call.op, &attrs, call.inputs, call.n_inputs, call.outputs, call.n_outputs));
    assert_ptr_equal(tr__plan_name(&call), got);
}

static void need_avx2(void)
{
    if (tr__has_avx2()) return;
    print_message("without AVX2 other algorithms are chosen: skipped\n");
    skip();
}

static void convolutions_are_planned(void **state)
{
    (void)state;
    static const conv_case cases[] = {
        {32, 12, 48, 3, 1, 1, 1, 1, TR_F32, "Winograd", "Winograd"},
        {3, 20, 32, 7, 2, 3, 1, 1, TR_F32, "direct", "direct"},
        {16, 11, 32, 1, 2, 0, 1, 1, TR_F32, "gemm", "gemm"},
        {20, 10, 24, 5, 1, 2, 1, 1, TR_F32, "oneDNN", "gemm"},
        {16, 10, 16, 3, 1, 1, 1, 16, TR_F32, "oneDNN", NULL},
        {8, 10, 16, 3, 1, 1, 1, 1, TR_F64, "reference", "reference"},
        {32, 13, 48, 3, 1, 1, 1, 1, TR_BF16, NULL, NULL},
    };
    need_avx2();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_conv(&cases[i], false);
        check_conv(&cases[i], true);
    }
}

/* Gradients of weights of convolutions in bf16, by dot products or tiles where there are such, are those of f64. */
static void gradients_of_weights_are_those_of_f64(void **state)
{
    (void)state;
    static const int64_t shapes[][5] = {{2, 20, 11, 40, 5}, {3, 48, 9, 33, 1}, {1, 32, 24, 64, 2}};
    for (int s = 0; s < 3; s++) {
        TR_SCOPE;
        const int64_t *n = shapes[s];
        tr_conv2d_attrs attrs = {1 + s / 2, (int)n[4] / 2, 1, 1, false, false};
        int64_t out = (n[2] + 2 * attrs.padding - n[4]) / attrs.stride + 1;
        tr_tensor *x = tr_cast(tr_randn(1, TR_SHAPE(n[0], n[1], n[2], n[2])), TR_BF16), *dw[2];
        tr_tensor *g = tr_cast(tr_randn(2, TR_SHAPE(n[0], n[3], out, out)), TR_BF16);
        for (int exact = 0; exact < 2; exact++) {
            tr_dtype dtype = exact ? TR_F64 : TR_BF16;
            dw[exact] = tr_zeros(TR_SHAPE(n[3], n[1], n[4], n[4]), .dtype = exact ? TR_F64 : TR_F32);
            tr_tensor *in[2] = {tr_cast(g, dtype), tr_cast(x, dtype)};
            TR_CHECK(tr__op_run(tr__op(conv2d_grad_weight), &attrs, in, 2, &dw[exact], 1));
        }
        double largest = tr_item(tr_max(tr_abs(dw[1])));
        assert_true(tr_item(tr_max(tr_abs(tr_sub(tr_cast(dw[0], TR_F64), dw[1])))) < 1e-5 * largest);
    }
}

/* linear of [m, k] by [n, k]: its plan, its layout also turned. */
static const char *plan_of_linear(int64_t m, int64_t k, int64_t n, tr_dtype dtype, bool in_out)
{
    TR_SCOPE;
    tr_linear_attrs attrs = {.in_out = in_out};
    tr_tensor *x = tr_ones(TR_SHAPE(m, k), .dtype = dtype), *y = tr_zeros(TR_SHAPE(m, n), .dtype = dtype),
              *w = tr_ones(in_out ? TR_SHAPE(k, n) : TR_SHAPE(n, k), .dtype = dtype);
    tr_op_call call = {tr__op(linear), &attrs, 4, 1, (tr_tensor *[]){x, w, NULL, NULL}, &y};
    TR_CHECK(tr__op_run(call.op, &attrs, call.inputs, 4, &y, 1));
    double sum = tr_item(tr_sum(tr_cast(y, TR_F64)));
    assert_true(sum == (double)(m * n * k));
    return tr__plan_name(&call);
}

static void gemms_are_planned(void **state)
{
    (void)state;
    need_avx2();
    assert_string_equal(plan_of_linear(64, 40, 24, TR_F32, false), "gemm");
    assert_string_equal(plan_of_linear(4, 40, 24, TR_F32, true), "gemm");
    assert_string_equal(plan_of_linear(4, 40, 24, TR_F32, false), "oneDNN"); /* packing would not pay */
    assert_string_equal(plan_of_linear(64, 40, 24, TR_F64, false), "reference");
    assert_non_null(plan_of_linear(64, 40, 24, TR_BF16, false));
    /* A call without a plan: other ops, and the gradient of a bias alone. */
    tr_tensor *none = NULL, *x = tr_ones(TR_SHAPE(2));
    assert_null(tr__plan_name(&(tr_op_call){tr__op(relu), NULL, 1, 1, &x, &x}));
    tr_op_call bias_only = {tr__op(linear_grad_weight), &(tr_linear_attrs){0}, 2, 1, (tr_tensor *[]){x, x}, &none};
    assert_null(tr__plan_name(&bias_only));
}

bool __wrap_tr__onednn_has_matrix_units(void);
static bool has_units;

bool __wrap_tr__onednn_has_matrix_units(void)
{
    return has_units;
}

static const char *plan_of(const tr_op *op, tr_activation_kind f, tr_tensor *const *in, int n, tr_tensor **out, int n_out)
{
    tr_linear_attrs attrs = {.activation = f};
    tr_op_call call = {op, &attrs, n, n_out, (tr_tensor **)in, out};
    TR_CHECK(tr__op_run(op, &attrs, in, n, out, n_out));
    return tr__plan_name(&call);
}

/* Where oneDNN, too, has matrix units (AMX), it keeps the plain products, and we compute what it takes several passes for. */
static void matrix_units_are_shared(void **state)
{
    (void)state;
    if (tr__isa_allowed() != TR__ISA_FASTEST || !amx_double()) skip();
    TR_SCOPE;
    amx_everywhere = has_units = true;
    tr_tensor *x = tr_ones(TR_SHAPE(64, 41), .dtype = TR_BF16), *w = tr_ones(TR_SHAPE(40, 41), .dtype = TR_BF16);
    tr_tensor *y = tr_ones(TR_SHAPE(64, 40), .dtype = TR_BF16), *sums = tr_ones(TR_SHAPE(40), .dtype = TR_BF16);
    tr_tensor *few = tr_ones(TR_SHAPE(20, 41), .dtype = TR_BF16), *of_few = tr_ones(TR_SHAPE(20, 40), .dtype = TR_BF16);
    tr_tensor *plain[4] = {x, w}, *added[4] = {x, w, NULL, y}, *small[4] = {few, w}, *of_weight[2] = {y, x}, *both[2] = {w, sums};
    assert_string_equal(plan_of(tr__op(linear), TR_NO_ACTIVATION, plain, 4, &y, 1), "oneDNN");
    assert_string_equal(plan_of(tr__op(linear), TR_RELU, plain, 4, &y, 1), "gemm AMX");
    assert_string_equal(plan_of(tr__op(linear), TR_NO_ACTIVATION, added, 4, &y, 1), "gemm AMX");
    assert_string_equal(plan_of(tr__op(linear), TR_NO_ACTIVATION, small, 4, &of_few, 1), "oneDNN");
    assert_string_equal(plan_of(tr__op(linear_grad_weight), TR_NO_ACTIVATION, of_weight, 2, both, 1), "oneDNN");
    assert_string_equal(plan_of(tr__op(linear_grad_weight), TR_NO_ACTIVATION, of_weight, 2, both, 2), "gemm AMX");
    amx_everywhere = has_units = false;
}

static void *run_new_shapes(void *arg)
{
    const char **names = arg;
    for (int i = 0; i < 100; i++) names[i] = plan_of_linear(3 + i, 5, 7, TR_F32, true);
    return NULL;
}

/* Threads that meet the same new shapes at once find one choice. */
static void threads_agree(void **state)
{
    (void)state;
    pthread_t threads[4];
    const char *names[4][100];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, run_new_shapes, names[i]), 0);
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 1; i < 4; i++) assert_memory_equal(names[i], names[0], sizeof names[0]);
}

/* More than the table holds: those that find no room are computed all the same, and have no name. */
static void there_may_be_any_number_of_shapes(void **state)
{
    (void)state;
    int unnamed = 0;
    for (int64_t i = 0; i < 3000; i++) unnamed += plan_of_linear(1 + i % 60, 1 + i / 60, 2, TR_F32, true) == NULL;
    assert_in_range(unnamed, 3000 - 2048, 2000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions_are_planned),
        cmocka_unit_test(gradients_of_weights_are_those_of_f64),
        cmocka_unit_test(gemms_are_planned),
        cmocka_unit_test(matrix_units_are_shared),
        cmocka_unit_test(threads_agree),
        cmocka_unit_test(there_may_be_any_number_of_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
