/* Calls as people write them at first: each does what it says, or is an error that says how it is written. What the compiler
 * refuses is in tests/listings/refused. */
#include <trireme/trireme.h>

#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void expect(tr_status status, tr_status expected, const char *words)
{
    assert_string_equal(tr_status_name(status), tr_status_name(expected));
    if (!strstr(tr_error_message(), words)) fail_msg("\"%s\" does not say \"%s\"", tr_error_message(), words);
}

#define REFUSED(object, expected, words) expect(tr_status_of(object), (expected), (words))

static void assert_values(tr_tensor *t, tr_shape shape, const double *expected)
{
    double values[64];
    tr_shape got = tr_shape_of(t);
    assert_int_equal(tr_status_of(t), TR_OK);
    assert_int_equal(got.ndim, shape.ndim);
    for (int d = 0; d < shape.ndim; d++) assert_int_equal(got.dim[d], shape.dim[d]);
    tr_tensor *wide = tr_cast(t, TR_F64);
    assert_int_equal(tr_copy_out(wide, values, (size_t)tr_numel(wide) * sizeof *values), TR_OK);
    for (int64_t i = 0; i < tr_numel(wide); i++) assert_true(fabs(values[i] - expected[i]) < 1e-6);
}
#define VALUES(...) ((const double[]){__VA_ARGS__})

/* ---- Dimensions ------------------------------------------------------------------------------------------------- */

static void reductions_go_over_the_dimensions_that_the_call_names(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_reshape(tr_arange(6, TR_F32, tr_cpu(0)), TR_SHAPE(2, 3)); /* 0 1 2 / 3 4 5 */
    tr_dims rows = TR_DIMS(1), none = {0}, both = TR_DIMS(0, 1);
    int64_t first = 0;
    unsigned last = 1;
    assert_values(tr_sum(x), TR_SCALAR, VALUES(15));
    assert_values(tr_sum(x, 0), TR_SHAPE(3), VALUES(3, 5, 7));
    assert_values(tr_sum(x, 1), TR_SHAPE(2), VALUES(3, 12));
    assert_values(tr_sum(x, -1), TR_SHAPE(2), VALUES(3, 12));
    assert_values(tr_sum(x, first), TR_SHAPE(3), VALUES(3, 5, 7));
    assert_values(tr_sum(x, last, .keep = true), TR_SHAPE(2, 1), VALUES(3, 12));
    assert_values(tr_sum(x, rows), TR_SHAPE(2), VALUES(3, 12));
    assert_values(tr_sum(x, TR_DIMS(-1, 0)), TR_SCALAR, VALUES(15));
    assert_values(tr_sum(x, TR_ALL_DIMS, .keep = true), TR_SHAPE(1, 1), VALUES(15));
    assert_values(tr_mean(x, 0), TR_SHAPE(3), VALUES(1.5, 2.5, 3.5));
    assert_values(tr_max(x, 0), TR_SHAPE(3), VALUES(3, 4, 5));
    assert_values(tr_min(x, 1, .keep = true), TR_SHAPE(2, 1), VALUES(0, 3));
    assert_values(tr_prod(x, 1), TR_SHAPE(2), VALUES(0, 60));
    assert_values(tr_var(x, 1), TR_SHAPE(2), VALUES(1, 1));
    assert_values(tr_var(x, 0, .keep = true, .biased = true), TR_SHAPE(1, 3), VALUES(2.25, 2.25, 2.25));
    assert_values(tr_std(x, both, .biased = true), TR_SCALAR, VALUES(sqrtf(35.0f / 12)));
    assert_values(tr_log_sum_exp(tr_zeros(TR_SHAPE(2, 3), .dtype = TR_F64), 0), TR_SHAPE(3), VALUES(M_LN2, M_LN2, M_LN2));

    REFUSED(tr_sum(x, none), TR_INVALID, "sum: 0 dimensions named: it takes 1 to 8, or TR_ALL_DIMS");
    REFUSED(tr_sum(x, 2), TR_SHAPE, "sum: no dimension 2 in [2, 3]");
    REFUSED(tr_sum(x, INT64_MIN), TR_SHAPE, "sum: no dimension 2147483647 in [2, 3]");
    REFUSED(tr_mean(x, TR_DIMS(1, -1)), TR_INVALID, "mean: dimension -1 of [2, 3] is named twice");
    REFUSED(tr_sum_with(&(tr_reduce_options){.size = sizeof(tr_reduce_options), .x = x}), TR_INVALID, "or TR_ALL_DIMS");
}

static void norms_take_p_and_dimensions_as_in_pytorch(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_from((double[]){3, -4, 0, 12}, TR_SHAPE(2, 2), .dtype = TR_F64);
    assert_values(tr_norm(x), TR_SCALAR, VALUES(13));
    assert_values(tr_norm(x, 1), TR_SCALAR, VALUES(19));
    assert_values(tr_norm(x, INFINITY), TR_SCALAR, VALUES(12));
    assert_values(tr_norm(x, 2, 1), TR_SHAPE(2), VALUES(5, 12));
    assert_values(tr_norm(x, 1, TR_DIMS(0), .keep = true), TR_SHAPE(1, 2), VALUES(3, 16));
    assert_values(tr_norm(x, 2, TR_ALL_DIMS, .keep = true), TR_SHAPE(1, 1), VALUES(13));
    REFUSED(tr_norm(x, 0), TR_INVALID, "norm: p is 0: it must be positive");
    REFUSED(tr_norm(x, NAN, 1), TR_INVALID, "norm: p is nan: it must be positive");
}

/* ---- Memory of a C type ------------------------------------------------------------------------------------------ */

static void tensors_are_made_from_memory_of_their_dtype(void **state)
{
    (void)state;
    TR_SCOPE;
    static const double doubles[4] = {1, 2, 3, 4};
    double rows[2][2] = {{1, 2}, {3, 4}};
    int counts[] = {1, 2};
    long many[] = {1, 2};
    short shorts[] = {1, 2};
    unsigned short halves[] = {0x3f80, 0x4000}; /* 1 and 2 in bf16 */
    unsigned char pixels[] = {1, 2}, *bytes = (unsigned char *)counts;
    bool flags[] = {true, false};
    void *anything = rows;

    REFUSED(tr_from((double[]){1, 2}, TR_SHAPE(2)), TR_DTYPE,
        "from: the memory is of double, not of f32: write .dtype = TR_F64, or cast the pointer to void *");
    REFUSED(tr_from(doubles, TR_SHAPE(4)), TR_DTYPE, "double");
    REFUSED(tr_from(doubles + 1, TR_SHAPE(2)), TR_DTYPE, "double");
    REFUSED(tr_from(&rows[1][0], TR_SHAPE(2)), TR_DTYPE, "double");
    REFUSED(tr_from(rows, TR_SHAPE(2, 2)), TR_DTYPE, "double");
    REFUSED(tr_from((double *)anything, TR_SHAPE(2, 2)), TR_DTYPE, "double");
    REFUSED(tr_from((int[]){1, 2}, TR_SHAPE(2)), TR_DTYPE, "the memory is of int, not of f32: write .dtype = TR_I32");
    REFUSED(tr_from(many, TR_SHAPE(2), .dtype = TR_I32), TR_DTYPE, "int64_t, not of i32: write .dtype = TR_I64");
    REFUSED(tr_from(pixels, TR_SHAPE(2)), TR_DTYPE, "unsigned char, not of f32: write .dtype = TR_U8");
    REFUSED(tr_from(flags, TR_SHAPE(2)), TR_DTYPE, "bool, not of f32: write .dtype = TR_BOOL");
    REFUSED(tr_from(halves, TR_SHAPE(2)), TR_DTYPE, "unsigned short, not of f32: write .dtype = TR_BF16 or TR_F16");
    REFUSED(tr_from(shorts, TR_SHAPE(2)), TR_DTYPE, "a C type that is no dtype, not of f32: convert it");
    REFUSED(tr_from((float[]){1, 2}, TR_SHAPE(2), .dtype = TR_I32), TR_DTYPE, "float, not of i32: write .dtype = TR_F32");

    assert_values(tr_from((float[]){1, 2}, TR_SHAPE(2)), TR_SHAPE(2), VALUES(1, 2));
    assert_values(tr_from((const double[]){1, 2}, TR_SHAPE(2), .dtype = TR_F64), TR_SHAPE(2), VALUES(1, 2));
    assert_values(tr_from(rows, TR_SHAPE(2, 2), .dtype = TR_F64), TR_SHAPE(2, 2), VALUES(1, 2, 3, 4));
    assert_values(tr_from(anything, TR_SHAPE(4), .dtype = TR_F64), TR_SHAPE(4), VALUES(1, 2, 3, 4));
    assert_values(tr_from(counts, TR_SHAPE(2), .dtype = TR_I32), TR_SHAPE(2), VALUES(1, 2));
    assert_values(tr_from(bytes, TR_SHAPE(2), .dtype = TR_I32), TR_SHAPE(2), VALUES(1, 2));
    assert_values(tr_from((char *)counts, TR_SHAPE(2), .dtype = TR_I32), TR_SHAPE(2), VALUES(1, 2));
    assert_values(tr_from(many, TR_SHAPE(2), .dtype = TR_I64), TR_SHAPE(2), VALUES(1, 2));
    assert_values(tr_from(halves, TR_SHAPE(2), .dtype = TR_BF16), TR_SHAPE(2), VALUES(1, 2));
    assert_values(tr_from(flags, TR_SHAPE(2), .dtype = TR_BOOL), TR_SHAPE(2), VALUES(1, 0));
    assert_values(tr_from(pixels, TR_SHAPE(2), .dtype = TR_U8), TR_SHAPE(2), VALUES(1, 2));

    /* Behind an array in braces the compiler takes a number for a part of the shape: with -Wall it says so. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-braces"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
    REFUSED(tr_from((float[]){1, 2}, 2), TR_SHAPE, "sizes are written TR_SHAPE(…)");
    REFUSED(tr_from((float[]){1, 2, 3, 4}, 2, 2), TR_SHAPE, "sizes are written TR_SHAPE(…)");
#pragma GCC diagnostic pop
    REFUSED(tr_from(NULL, TR_SHAPE(2)), TR_INVALID, "from: data is NULL, and the shape [2] has elements");
    assert_int_equal(tr_numel(tr_from(NULL, TR_SHAPE(0))), 0);
    assert_int_equal(tr_numel(tr_from(doubles, TR_SHAPE(0), .dtype = TR_F64)), 0);
}

static void memory_that_is_wrapped_or_filled_has_the_tensors_dtype(void **state)
{
    (void)state;
    TR_SCOPE;
    double doubles[2] = {1, 2};
    float floats[4];
    int ints[2];
    unsigned char bytes[8];
    REFUSED(tr_wrap(doubles, TR_SHAPE(2), TR_F32, NULL, NULL), TR_DTYPE, "wrap: the memory is of double, not of f32: its dtype is TR_F64");
    tr_tensor *x = tr_wrap(doubles, TR_SHAPE(2), TR_F64, NULL, NULL);
    assert_values(x, TR_SHAPE(2), VALUES(1, 2));
    expect(tr_copy_out(x, floats, sizeof floats), TR_DTYPE, "copy_out: the memory is of float, not of f64: tr_cast() the tensor to TR_F32");
    expect(tr_copy_out(tr_cast(x, TR_F32), ints, sizeof ints), TR_DTYPE, "the memory is of int, not of f32");
    assert_int_equal(tr_copy_out(tr_cast(x, TR_F32), bytes, sizeof bytes), TR_OK);
    assert_int_equal(tr_copy_out(tr_cast(x, TR_I32), ints, sizeof ints), TR_OK);
    assert_int_equal(ints[1], 2);
}

static void collectives_take_memory_of_their_dtype(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_group *group = tr_join();
    double loss = 0.5, losses[1];
    float half = 0.5f, halves[1];
    int64_t count = 3, counts[] = {1};
    expect(tr_all_reduce(group, &loss, 1), TR_DTYPE, "all_reduce: the memory is of double, not of f32: write .dtype = TR_F64");
    expect(tr_broadcast(group, &count, 1, .root = 0), TR_DTYPE, "broadcast: the memory is of int64_t, not of f32: write .dtype = TR_I64");
    expect(tr_all_gather(group, &loss, (void *)losses, 1), TR_DTYPE, "all_gather: the memory is of double");
    expect(tr_all_gather(group, &half, losses, 1), TR_DTYPE, "all_gather: the memory is of double");
    expect(tr_wait(tr_all_reduce_async(group, &count, 1, .op = TR_MAX)), TR_DTYPE, "int64_t");
    expect(tr_all_gather(group, &half, halves, 1, .out_counts = counts), TR_INVALID, "are those of all_gather_v");
    assert_int_equal(tr_all_reduce(group, &loss, 1, .dtype = TR_F64), TR_OK);
    assert_int_equal(tr_all_gather(group, &loss, losses, 1, .dtype = TR_F64), TR_OK);
    assert_int_equal(tr_all_gather_v(group, &half, halves, 1, .out_counts = counts), TR_OK);
    assert_true(losses[0] == 0.5 && halves[0] == 0.5f);
    assert_int_equal(tr_leave(group), TR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reductions_go_over_the_dimensions_that_the_call_names),
        cmocka_unit_test(norms_take_p_and_dimensions_as_in_pytorch),
        cmocka_unit_test(tensors_are_made_from_memory_of_their_dtype),
        cmocka_unit_test(memory_that_is_wrapped_or_filled_has_the_tensors_dtype),
        cmocka_unit_test(collectives_take_memory_of_their_dtype),
    };
    return cmocka_run_group_tests_name("calls", tests, NULL, NULL);
}
