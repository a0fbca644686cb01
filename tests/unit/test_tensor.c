/* Tensors: making, viewing, copying; lists. */
#include "tensor/tensor.h"

#include <trireme/trireme.h>

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void shapes_that_do_not_exist_are_errors(void **state)
{
    (void)state;
    TR_SCOPE;
    assert_int_equal(tr_status_of(tr_zeros(TR_SHAPE(2, -1))), TR_SHAPE);
    assert_non_null(strstr(tr_error_message(), "[2, -1]"));
    assert_int_equal(tr_status_of(tr_zeros(TR_SHAPE(INT64_MAX / 2, 16))), TR_SHAPE);
    assert_int_equal(tr_status_of(tr_zeros(TR_SHAPE((int64_t)1 << 45))), TR_NO_MEMORY);
    tr_shape deep = {.ndim = TR_MAX_DIMS + 1};
    assert_int_equal(tr_status_of(tr_zeros(deep)), TR_SHAPE);
    assert_int_equal(tr_status_of(tr_zeros(TR_SHAPE(1), .dtype = (tr_dtype)42)), TR_DTYPE);
    assert_int_equal(tr_status_of(tr_randn(1, TR_SHAPE(1), .dtype = TR_I32)), TR_DTYPE);
    assert_int_equal(tr_status_of(tr_zeros(TR_SHAPE(1), .dtype = TR_I32, .requires_grad = true)), TR_DTYPE);
    tr_tensor *bad = tr_zeros(TR_SHAPE(-1));
    assert_true(tr_numel(bad) == 0 && tr_data(bad) == NULL && isnan(tr_item(bad)) && tr_ndim(bad) == 0);
}

static void values_go_in_and_out(void **state)
{
    (void)state;
    TR_SCOPE;
    float in[6] = {1, 2, 3, 4, 5, 6}, out[6];
    tr_tensor *t = tr_from(in, TR_SHAPE(2, 3));
    assert_int_equal(tr_copy_out(t, out, sizeof out), TR_OK);
    assert_memory_equal(in, out, sizeof in);
    assert_int_equal(tr_copy_out(t, out, 8), TR_INVALID);
    assert_true(tr_item(tr_from((float[]){1.5F}, TR_SHAPE(1))) == 1.5);
    assert_true(tr_requires_grad(tr_from((double[]){1, 2}, TR_SHAPE(2), .dtype = TR_F64, .requires_grad = true)));
    assert_int_equal(tr_copy_out(tr_transpose(t, 0, 1), out, sizeof out), TR_OK);
    assert_true(out[0] == 1 && out[1] == 4 && out[2] == 2 && out[5] == 6);
    assert_true(isnan(tr_item(t)));
    assert_string_equal(tr_error_message(), "item: [2, 3] has 6 elements, not one");
    assert_true(tr_item(tr_full(2.5, TR_SCALAR, .dtype = TR_F16)) == 2.5);
    assert_true(tr_item(tr_scalar(-7, TR_I64)) == -7);
    assert_true(tr_numel(tr_empty(TR_SHAPE(3, 0, 2))) == 0);
    char text[64];
    assert_int_equal(tr_format(t, text, sizeof text), strlen("f32 [2, 3] {1, 2, 3, 4, 5, 6}"));
    assert_string_equal(text, "f32 [2, 3] {1, 2, 3, 4, 5, 6}");
    char small[8];
    assert_int_equal(tr_format(t, small, sizeof small), strlen(text));
}

/* As tr_grad(), tr_list_find() and others give it. */
static void null_is_nothing_and_no_crash(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *none = tr_grad(tr_ones(TR_SHAPE(2), .requires_grad = true)), *one = tr_ones(TR_SHAPE(1));
    assert_null(none);
    assert_true(tr_shape_of(none).ndim == 0 && tr_ndim(none) == 0 && tr_size(none, 0) == 0 && tr_stride(none, -1) == 0);
    assert_true(tr_numel(none) == 0 && tr_dtype_of(none) == TR_F32 && tr_device_of(none).kind == TR_CPU);
    assert_true(!tr_data(none) && tr_is_contiguous(none) && !tr_requires_grad(none) && !tr_grad(none));
    assert_true(isnan(tr_item(none)));
    assert_non_null(strstr(tr_error_message(), "not NULL"));
    float value;
    assert_int_equal(tr_copy_out(none, &value, sizeof value), TR_INVALID);
    assert_int_equal(tr_copy_into(none, one), TR_INVALID);
    assert_int_equal(tr_copy_into(one, none), TR_INVALID);
    assert_int_equal(tr_fill(none, 1), TR_INVALID);
    assert_int_equal(tr_status_of(tr_detach(none)), TR_INVALID);
    assert_int_equal(tr_status_of(tr_require_grad(none)), TR_INVALID);
    tr_clear_grad(none);
    tr_grad_hook_remove(none, 0);
    char text[32];
    tr_format(none, text, sizeof text);
    assert_string_equal(text, "no tensor: NULL");
    tr_tensor_list *list = NULL;
    assert_true(tr_list_count(list) == 0 && !tr_list_at(list, 0) && !tr_list_name(list, 0) && !tr_list_find(list, "x"));
    assert_true(tr_list_numel(list) == 0 && !tr_list_metadata(list, "x") && tr_list_metadata_count(list) == 0);
    assert_null(tr_list_metadata_key(list, 0));
    assert_int_equal(tr_list_add(list, "x", one), TR_INVALID);
    assert_int_equal(tr_list_set_metadata(list, "x", "y"), TR_INVALID);
}

static void copies_convert_and_broadcast(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *into = tr_zeros(TR_SHAPE(2, 3), .dtype = TR_I32);
    assert_int_equal(tr_copy_into(into, tr_from(((double[]){1.9, -2.9, 1e30}), TR_SHAPE(3), .dtype = TR_F64)), TR_OK);
    int32_t out[6];
    assert_int_equal(tr_copy_out(into, out, sizeof out), TR_OK);
    assert_true(out[0] == 1 && out[1] == -2 && out[2] == INT32_MAX && out[4] == -2);
    assert_int_equal(tr_copy_into(into, tr_ones(TR_SHAPE(2))), TR_SHAPE);
    assert_int_equal(tr_copy_into(into, tr_ones(TR_SHAPE(4, 2, 3))), TR_SHAPE);
    for (int a = 0; a < TR_DTYPE_COUNT; a++)
        for (int b = 0; b < TR_DTYPE_COUNT; b++) {
            tr_tensor *x = tr_cast(tr_from(((float[]){0, 1, 3}), TR_SHAPE(3)), (tr_dtype)a), *y = tr_cast(x, (tr_dtype)b);
            bool truth = a == TR_BOOL || b == TR_BOOL;
            for (int i = 0; i < 3; i++)
                assert_true(tr_item(tr_slice(y, 0, i, i + 1)) == (truth ? i != 0 : i == 2 ? 3 : i));
        }
}

/* Of elements of each size, of whole tiles and less, with dimensions around and between those that change places. */
static void transposed_copies_keep_each_element(void **state)
{
    (void)state;
    static const tr_dtype dtypes[] = {TR_U8, TR_BF16, TR_F32, TR_I64};
    static const int64_t sizes[][2] = {{48, 32}, {16, 1}, {19, 35}, {2, 100}, {100, 2}, {200, 130}};
    for (int d = 0; d < 4; d++)
        for (int s = 0; s < 6; s++) {
            TR_SCOPE;
            int64_t rows = sizes[s][0], columns = sizes[s][1], n = 2 * columns * 3 * rows;
            int64_t *numbers = calloc((size_t)n, sizeof *numbers), *out = calloc((size_t)n, sizeof *out);
            for (int64_t i = 0; i < n; i++) numbers[i] = i * 7 % 251; /* exact in bf16, too */
            tr_tensor *x = tr_cast(tr_from(numbers, TR_SHAPE(2, columns, 3, rows), .dtype = TR_I64), dtypes[d]);
            tr_tensor *y = tr_cast(tr_contiguous(tr_permute(x, (int[]){0, 3, 2, 1}, 4)), TR_I64);
            assert_int_equal(tr_copy_out(y, out, sizeof *out * (size_t)n), TR_OK);
            for (int64_t i = 0; i < n; i++) {
                int64_t c = i % columns, k = i / columns % 3, r = i / columns / 3 % rows, a = i / columns / 3 / rows;
                assert_int_equal(out[i], numbers[((a * columns + c) * 3 + k) * rows + r]);
            }
            free(numbers);
            free(out);
        }
}

/* Large enough for threads, and small. */
static void copies_within_memory_read_before_they_write(void **state)
{
    (void)state;
    for (int64_t n = 3; n < 1000; n += 397) {
        TR_SCOPE;
        tr_tensor *m = tr_reshape(tr_arange(n * n, TR_F32, tr_cpu(0)), TR_SHAPE(n, n));
        assert_int_equal(tr_copy_into(m, tr_transpose(m, 0, 1)), TR_OK);
        const float *x = tr_data(m);
        for (int64_t i = 0; i < n * n; i++) assert_true(x[i] == (float)(i % n * n + i / n));
        tr_tensor *line = tr_arange(n * n, TR_F32, tr_cpu(0));
        assert_int_equal(tr_copy_into(tr_slice(line, 0, 1, n * n), tr_slice(line, 0, 0, n * n - 1)), TR_OK);
        for (int64_t i = 0; i < n * n; i++) assert_true(((float *)tr_data(line))[i] == (float)(i ? i - 1 : 0));
        assert_int_equal(tr_copy_into(line, line), TR_OK);
        assert_true(((float *)tr_data(line))[n] == (float)(n - 1));
    }
}

static void expanded_tensors_are_filled_but_not_overwritten(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *row = tr_zeros(TR_SHAPE(3)), *rows = tr_expand(row, TR_SHAPE(2, 3));
    assert_int_equal(tr_copy_into(rows, tr_ones(TR_SHAPE(2, 3))), TR_INVALID);
    assert_non_null(strstr(tr_error_message(), "copy_into: elements of [2, 3] share memory, as it is expanded"));
    assert_true(tr_item(tr_sum(row)) == 0);
    assert_int_equal(tr_fill(rows, 2), TR_OK);
    assert_true(tr_item(tr_sum(row)) == 6);
    assert_int_equal(tr_copy_into(tr_expand(row, TR_SHAPE(1, 3)), tr_ones(TR_SHAPE(3))), TR_OK);
    assert_true(tr_item(tr_sum(row)) == 3);
}

static void random_numbers_are_what_the_seed_says(void **state)
{
    (void)state;
    TR_SCOPE;
    enum { N = 100000 };
    tr_tensor *a = tr_randn(5, TR_SHAPE(N)), *b = tr_randn(5, TR_SHAPE(N)), *c = tr_randn(6, TR_SHAPE(N));
    assert_memory_equal(tr_data(a), tr_data(b), N * sizeof(float));
    assert_memory_not_equal(tr_data(a), tr_data(c), N * sizeof(float));
    double sum = 0, squares = 0, low = 0;
    const float *x = tr_data(a), *u = tr_data(tr_rand(5, TR_SHAPE(N)));
    for (int i = 0; i < N; i++) {
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
        assert_true(u[i] >= 0 && u[i] < 1);
        low += u[i] < 0.25f;
    }
    assert_true(fabs(sum / N) < 0.015 && fabs(squares / N - 1) < 0.02 && fabs(low / N - 0.25) < 0.01);
}

static void count_release(void *data, void *user)
{
    (void)data;
    ++*(int *)user;
}

static void wrapped_memory_is_released_with_its_last_view(void **state)
{
    (void)state;
    float data[4] = {1, 2, 3, 4};
    int released = 0;
    tr_tensor *view;
    {
        TR_SCOPE;
        tr_tensor *t = tr_wrap(data, TR_SHAPE(2, 2), TR_F32, count_release, &released);
        view = tr_keep(tr_slice(t, 0, 1, 2));
    }
    assert_int_equal(released, 0);
    assert_int_equal(tr_fill(view, 9), TR_OK);
    assert_true(data[1] == 2 && data[2] == 9 && data[3] == 9);
    tr_release(view);
    assert_int_equal(released, 1);
}

static void shared_storage_is_in_a_segment(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *t = tr_zeros(TR_SHAPE(1000), .shared = true);
    assert_int_equal(tr_status_of(t), TR_OK);
    assert_true(t->storage->kind == TR__SHARED);
    assert_true(tr_item(tr_sum(t)) == 0);
}

static void lists_keep_names_and_metadata(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor_list *list = tr_list_new();
    for (int i = 0; i < 100; i++) {
        char name[16];
        snprintf(name, sizeof name, "t.%d", i);
        assert_int_equal(tr_list_add(list, name, tr_full(i, TR_SHAPE(2))), TR_OK);
    }
    assert_int_equal(tr_list_add(list, "t.7", tr_scalar(0, TR_F32)), TR_INVALID);
    assert_int_equal(tr_list_add(list, "bad", tr_zeros(TR_SHAPE(-1))), TR_SHAPE);
    assert_int_equal(tr_list_count(list), 100);
    assert_int_equal(tr_list_numel(list), 200);
    assert_string_equal(tr_list_name(list, 42), "t.42");
    assert_true(tr_item(tr_slice(tr_list_find(list, "t.42"), 0, 0, 1)) == 42);
    assert_null(tr_list_find(list, "t.100"));
    assert_null(tr_list_at(list, -1));
    assert_int_equal(tr_list_set_metadata(list, "step", "1"), TR_OK);
    assert_int_equal(tr_list_set_metadata(list, "step", "2"), TR_OK);
    assert_int_equal(tr_list_metadata_count(list), 1);
    assert_string_equal(tr_list_metadata(list, "step"), "2");
    assert_null(tr_list_metadata(list, "none"));
}

static void lists_are_merged_under_prefixes_and_taken_apart(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor_list *all = tr_list_new(), *a = tr_list_new(), *b = tr_list_new();
    assert_int_equal(tr_list_add(a, "step", tr_scalar(1, TR_F32)), TR_OK);
    assert_int_equal(tr_list_add(a, "m.w", tr_ones(TR_SHAPE(2))), TR_OK);
    assert_int_equal(tr_list_add(b, "step", tr_scalar(2, TR_F32)), TR_OK);
    assert_int_equal(tr_list_merge(all, "a.", a), TR_OK);
    assert_int_equal(tr_list_merge(all, "b.", b), TR_OK);
    assert_int_equal(tr_list_count(all), 3);
    assert_string_equal(tr_list_name(all, 1), "a.m.w");
    assert_ptr_equal(tr_list_at(all, 1), tr_list_at(a, 1)); /* not a copy */

    tr_tensor_list *part = tr_list_part(all, "a.");
    assert_int_equal(tr_list_count(part), 2);
    assert_string_equal(tr_list_name(part, 0), "step");
    assert_true(tr_item(tr_list_find(part, "step")) == 1 && tr_item(tr_list_find(tr_list_part(all, "b."), "step")) == 2);
    assert_int_equal(tr_status_of(tr_list_part(all, "c.")), TR_NOT_FOUND);
    assert_string_equal(tr_error_message(), "list_part: none of 3 names begins with \"c.\"");

    /* "m.w" is there under that prefix, "step" is not: neither is added. */
    assert_int_equal(tr_list_add(all, "c.m.w", tr_ones(TR_SHAPE(2))), TR_OK);
    assert_int_equal(tr_list_merge(all, "c.", a), TR_INVALID);
    assert_string_equal(tr_error_message(), "list_merge: the list has \"c.m.w\" already");
    assert_int_equal(tr_list_count(all), 4);
    assert_int_equal(tr_list_merge(all, "twice.", all), TR_OK);
    assert_int_equal(tr_list_count(all), 8);

    assert_int_equal(tr_list_merge(NULL, "", a), TR_INVALID);
    assert_int_equal(tr_list_merge(all, NULL, a), TR_INVALID);
    assert_int_equal(tr_list_merge(all, "", NULL), TR_INVALID);
    assert_int_equal(tr_list_merge(all, "d.", part = tr_list_part(NULL, "")), TR_INVALID);
    assert_int_equal(tr_status_of(tr_list_part(part, "a")), TR_INVALID);
}

static void devices_are_named(void **state)
{
    (void)state;
    tr_device d;
    char name[16];
    assert_int_equal(tr_device_parse("cpu", &d), TR_OK);
    assert_string_equal(tr_device_name(d, name), "cpu:0");
    assert_int_equal(tr_device_parse("cpu:0", &d), TR_OK);
    assert_int_equal(tr_device_parse("cpu:77", &d), TR_DEVICE);
    assert_int_equal(tr_device_parse("cpu:x", &d), TR_INVALID);
    assert_int_equal(tr_device_parse("cpux", &d), TR_DEVICE);
    assert_int_equal(tr_device_parse("tpu", &d), TR_DEVICE);
    assert_int_equal(tr_device_parse("cuda:0", &d), tr_device_count(TR_CUDA) ? TR_OK : TR_DEVICE);
    assert_int_equal(tr_set_threads(-1), TR_INVALID);
    assert_int_equal(tr_set_threads(3), TR_OK);
    assert_int_equal(tr_threads(tr_cpu(0)), 3);
    assert_int_equal(tr_set_threads(0), TR_OK);
    assert_true(tr_threads(tr_cpu(0)) >= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_that_do_not_exist_are_errors),
        cmocka_unit_test(values_go_in_and_out),
        cmocka_unit_test(null_is_nothing_and_no_crash),
        cmocka_unit_test(copies_convert_and_broadcast),
        cmocka_unit_test(transposed_copies_keep_each_element),
        cmocka_unit_test(copies_within_memory_read_before_they_write),
        cmocka_unit_test(expanded_tensors_are_filled_but_not_overwritten),
        cmocka_unit_test(random_numbers_are_what_the_seed_says),
        cmocka_unit_test(wrapped_memory_is_released_with_its_last_view),
        cmocka_unit_test(shared_storage_is_in_a_segment),
        cmocka_unit_test(lists_keep_names_and_metadata),
        cmocka_unit_test(lists_are_merged_under_prefixes_and_taken_apart),
        cmocka_unit_test(devices_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
