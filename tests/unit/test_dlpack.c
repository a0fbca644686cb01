/* DLPack: memory that is shared both ways, who gives it up and when, and what is refused. */
#include "tensor/dlpack_abi.h"
#include "tensor/tensor.h"

#include <trireme/ops.h>

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* As the specification's header lays them out on machines with pointers of 64 bits. */
_Static_assert(sizeof(DLTensor) == 48 && offsetof(DLTensor, device) == 8 && offsetof(DLTensor, ndim) == 16 &&
    offsetof(DLTensor, dtype) == 20 && offsetof(DLTensor, shape) == 24 && offsetof(DLTensor, strides) == 32 &&
    offsetof(DLTensor, byte_offset) == 40, "DLTensor");
_Static_assert(sizeof(DLManagedTensor) == 64 && offsetof(DLManagedTensor, manager_ctx) == 48 &&
    offsetof(DLManagedTensor, deleter) == 56, "DLManagedTensor");
_Static_assert(sizeof(DLManagedTensorVersioned) == 80 && offsetof(DLManagedTensorVersioned, manager_ctx) == 8 &&
    offsetof(DLManagedTensorVersioned, deleter) == 16 && offsetof(DLManagedTensorVersioned, flags) == 24 &&
    offsetof(DLManagedTensorVersioned, dl_tensor) == 32, "DLManagedTensorVersioned");

static void assert_failed(tr_status got, tr_status status, const char *part)
{
    if (got != status) fail_msg("%s instead of %s: \"%s\"", tr_status_name(got), tr_status_name(status), tr_error_message());
    if (!strstr(tr_error_message(), part)) fail_msg("\"%s\" lacks \"%s\"", tr_error_message(), part);
}

/* ---- Ours for others ------------------------------------------------------------------------------------------------- */

static void test_what_others_get(void **state)
{
    (void)state;
    DLManagedTensorVersioned *managed;
    DLManagedTensor *older;
    {
        TR_SCOPE;
        tr_tensor *t = tr_transpose(tr_slice(tr_reshape(tr_arange(24, TR_F32, tr_cpu(0)), TR_SHAPE(4, 6)), 1, 2, 5), 0, 1);
        TR_CHECK(tr_to_dlpack(t, &managed));
        TR_CHECK(tr_to_dlpack_unversioned(t, &older));
    }
    /* The tensor is gone, its memory is not. */
    assert_int_equal(managed->version.major, 1);
    assert_int_equal(managed->flags, 0);
    for (int i = 0; i < 2; i++) {
        const DLTensor *d = i ? &older->dl_tensor : &managed->dl_tensor;
        assert_int_equal(d->device.device_type, kDLCPU);
        assert_int_equal(d->device.device_id, 0);
        assert_int_equal(d->dtype.code, kDLFloat);
        assert_int_equal(d->dtype.bits, 32);
        assert_int_equal(d->dtype.lanes, 1);
        assert_int_equal(d->ndim, 2);
        assert_memory_equal(d->shape, ((int64_t[]){3, 4}), 2 * sizeof(int64_t));
        assert_memory_equal(d->strides, ((int64_t[]){1, 6}), 2 * sizeof(int64_t));
        const float *x = (const float *)((const char *)d->data + d->byte_offset);
        assert_true(x[0] == 2 && x[1 * 1 + 3 * 6] == 21);
    }
    managed->deleter(managed);
    assert_true(((float *)older->dl_tensor.data)[0] == 2);
    older->deleter(older);
}

static void test_there_and_back(void **state)
{
    (void)state;
    for (int d = 0; d < TR_DTYPE_COUNT; d++) {
        TR_SCOPE;
        tr_tensor *t = tr_ones(TR_SHAPE(2, 3, 1), .dtype = (tr_dtype)d), *scalar = tr_scalar(1, (tr_dtype)d);
        DLManagedTensorVersioned *managed;
        DLManagedTensor *older;
        TR_CHECK(tr_to_dlpack(tr_transpose(t, 0, 1), &managed));
        TR_CHECK(tr_to_dlpack_unversioned(scalar, &older));
        tr_tensor *back = tr_from_dlpack(managed), *one = tr_from_dlpack_unversioned(older);
        TR_CHECK(tr_status_of(back));
        TR_CHECK(tr_status_of(one));
        assert_int_equal(tr_dtype_of(back), d);
        assert_ptr_equal(tr_data(back), tr_data(t));
        assert_int_equal(tr_size(back, 0), 3);
        assert_int_equal(tr_stride(back, 1), 3);
        assert_int_equal(tr_ndim(one), 0);
        TR_CHECK(tr_fill(back, 0)); /* the same memory */
        assert_true(tr_item(tr_slice(tr_reshape(t, TR_SHAPE(6)), 0, 5, 6)) == 0);
        assert_true(tr_item(one) == 1);
    }
}

static void test_what_cannot_be_given(void **state)
{
    (void)state;
    TR_SCOPE;
    DLManagedTensorVersioned *managed = NULL;
    DLManagedTensor *older = NULL;
    assert_failed(tr_to_dlpack(NULL, &managed), TR_INVALID, "NULL");
    tr_tensor *bad = tr_add(tr_ones(TR_SHAPE(2)), tr_ones(TR_SHAPE(3)));
    assert_failed(tr_to_dlpack_unversioned(bad, &older), TR_SHAPE, "broadcast");
    assert_null(managed);
    assert_null(older);
}

/* ---- Others' for us -------------------------------------------------------------------------------------------------- */

/* Memory of another library's: [2, 3] of f32 in the middle of an array. */
typedef struct foreign {
    float values[16];
    int64_t shape[9], strides[9];
    DLManagedTensorVersioned managed;
    int deleted;
} foreign;

static void delete_foreign(DLManagedTensorVersioned *self)
{
    ((foreign *)self->manager_ctx)->deleted++;
}

static void make_foreign(foreign *f)
{
    *f = (foreign){.shape = {2, 3, 1, 1, 1, 1, 1, 1, 1}, .strides = {5, 1}};
    for (int i = 0; i < 16; i++) f->values[i] = (float)i;
    f->managed = (DLManagedTensorVersioned){.version = {1, 7}, .manager_ctx = f, .deleter = delete_foreign,
        .dl_tensor = {f->values, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, f->shape, f->strides, 8}};
}

static void test_when_memory_is_given_up(void **state)
{
    (void)state;
    foreign f;
    make_foreign(&f);
    tr_scope_push();
    tr_tensor *t = tr_from_dlpack(&f.managed);
    TR_CHECK(tr_status_of(t));
    assert_ptr_equal(tr_data(t), f.values + 2);
    assert_false(tr_is_contiguous(t));
    assert_true(tr_item(tr_sum(t)) == 2 + 3 + 4 + 7 + 8 + 9);
    tr_tensor *view = tr_keep(tr_slice(t, 0, 1, 2));
    tr_scope_pop();
    assert_int_equal(f.deleted, 0);
    assert_true(((float *)tr_data(view))[0] == 7);
    tr_release(view);
    assert_int_equal(f.deleted, 1);
}

static void test_row_major_without_strides(void **state)
{
    (void)state;
    foreign f;
    make_foreign(&f);
    f.managed.dl_tensor.strides = NULL;
    DLManagedTensor older = {f.managed.dl_tensor, NULL, NULL}; /* nobody waits for it to be given up */
    {
        TR_SCOPE;
        tr_tensor *t = tr_from_dlpack_unversioned(&older);
        TR_CHECK(tr_status_of(t));
        assert_true(tr_is_contiguous(t));
        assert_true(tr_item(tr_sum(t)) == 2 + 3 + 4 + 5 + 6 + 7);
        f.shape[1] = 0;
        f.managed.dl_tensor.data = NULL;
        tr_tensor *empty = tr_from_dlpack(&f.managed);
        TR_CHECK(tr_status_of(empty));
        assert_int_equal(tr_numel(empty), 0);
    }
    assert_int_equal(f.deleted, 1);
}

enum fault { DTYPE, LANES, DEVICE, NO_CUDA, DIMS, NO_SHAPE, NEGATIVE, HUGE_SHAPE, BACKWARDS, FAR, NO_DATA, ODD, READ_ONLY, VERSION };

static void spoil(foreign *f, enum fault fault)
{
    DLTensor *d = &f->managed.dl_tensor;
    switch (fault) {
    case DTYPE: d->dtype = (DLDataType){kDLInt, 16, 1}; break;
    case LANES: d->dtype.lanes = 4; break;
    case DEVICE: d->device.device_type = 7; break;
    case NO_CUDA: d->device = (DLDevice){kDLCUDA, 99}; break;
    case DIMS: d->ndim = 9; break;
    case NO_SHAPE: d->shape = NULL; break;
    case NEGATIVE: f->shape[0] = -2; break;
    case HUGE_SHAPE: f->shape[0] = INT64_MAX / 4; break;
    case BACKWARDS: f->strides[0] = -5; break;
    case FAR: f->strides[0] = INT64_MAX / 2; break;
    case NO_DATA: d->data = NULL; break;
    case ODD: d->byte_offset = 6; break;
    case READ_ONLY: f->managed.flags = DLPACK_FLAG_BITMASK_READ_ONLY; break;
    case VERSION: f->managed.version.major = 2; break;
    }
}

static void test_what_is_refused_stays_its_owners(void **state)
{
    (void)state;
    static const struct {
        enum fault fault;
        tr_status status;
        const char *part;
    } rows[] = {
        {DTYPE, TR_UNSUPPORTED, "type code 0, 16 bits and 1 lanes"},
        {LANES, TR_UNSUPPORTED, "4 lanes"},
        {DEVICE, TR_DEVICE, "a device of type 7"},
        {NO_CUDA, TR_DEVICE, "cuda:99"},
        {DIMS, TR_SHAPE, "9 dimensions"},
        {NO_SHAPE, TR_SHAPE, "without a shape"},
        {NEGATIVE, TR_SHAPE, "[-2, 3]"},
        {HUGE_SHAPE, TR_SHAPE, "no tensor has the shape"},
        {BACKWARDS, TR_UNSUPPORTED, "stride -5 of dimension 0 is negative"},
        {FAR, TR_INVALID, "out of any memory"},
        {NO_DATA, TR_INVALID, "[2, 3] without data"},
        {ODD, TR_INVALID, "not aligned for f32"},
        {READ_ONLY, TR_UNSUPPORTED, "read-only"},
        {VERSION, TR_UNSUPPORTED, "version 2.7"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        foreign f;
        make_foreign(&f);
        spoil(&f, rows[i].fault);
        tr_scope_push();
        assert_failed(tr_status_of(tr_from_dlpack(&f.managed)), rows[i].status, rows[i].part);
        tr_scope_pop();
        assert_int_equal(f.deleted, 0);
    }
    TR_SCOPE;
    assert_failed(tr_status_of(tr_from_dlpack(NULL)), TR_INVALID, "NULL");
    assert_failed(tr_status_of(tr_from_dlpack_unversioned(NULL)), TR_INVALID, "NULL");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_others_get),
        cmocka_unit_test(test_there_and_back),
        cmocka_unit_test(test_what_cannot_be_given),
        cmocka_unit_test(test_when_memory_is_given_up),
        cmocka_unit_test(test_row_major_without_strides),
        cmocka_unit_test(test_what_is_refused_stays_its_owners),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
