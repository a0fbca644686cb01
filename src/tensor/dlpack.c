/* Tensors for other libraries, and theirs for us, without a copy. */
#include "tensor/dlpack_abi.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <stdlib.h>

static const DLDataType types[TR_DTYPE_COUNT] = {
    [TR_F32] = {kDLFloat, 32, 1},
    [TR_F64] = {kDLFloat, 64, 1},
    [TR_F16] = {kDLFloat, 16, 1},
    [TR_BF16] = {kDLBfloat, 16, 1},
    [TR_I64] = {kDLInt, 64, 1},
    [TR_I32] = {kDLInt, 32, 1},
    [TR_U8] = {kDLUInt, 8, 1},
    [TR_BOOL] = {kDLBool, 8, 1},
};

/* ---- Ours for others ------------------------------------------------------------------------------------------------- */

/* A tensor of ours as others see it, in front, and what that points to. */
typedef struct shown {
    union {
        DLManagedTensorVersioned versioned;
        DLManagedTensor unversioned;
    } managed;
    int64_t shape[TR_MAX_DIMS], stride[TR_MAX_DIMS];
    tr__storage *storage;
} shown;

static void give_up(void *self)
{
    tr__storage_unref(((shown *)self)->storage);
    free(self);
}

static void delete_versioned(DLManagedTensorVersioned *self)
{
    give_up(self);
}

static void delete_unversioned(DLManagedTensor *self)
{
    give_up(self);
}

/* All logical CPU devices are the one that others know. */
static DLDevice device_for_others(tr_device device)
{
    return device.kind == TR_CUDA ? (DLDevice){kDLCUDA, device.index} : (DLDevice){kDLCPU, 0};
}

/* *out still has no managed tensor, of which *described is to be a part. */
static tr_status show(const tr_tensor *t, shown **out, DLTensor *described)
{
    if (!t) return tr__fail(TR_INVALID, "dlpack: the tensor is NULL");
    TR__TRY(tr_status_of(t));
    if (tr__device_of(t).kind > TR_CUDA)
        return tr__fail(TR_DEVICE, "dlpack: memory of %s cannot be shown to other libraries: move it to the CPU or a CUDA device",
            tr_device_name(tr__device_of(t), (char[16]){0}));
    shown *made = *out = calloc(1, sizeof *made);
    if (!made) return tr__fail(TR_NO_MEMORY, "dlpack: out of memory");
    for (int d = 0; d < t->shape.ndim; d++) {
        made->shape[d] = t->shape.dim[d];
        made->stride[d] = t->stride[d];
    }
    made->storage = tr__storage_ref(t->storage);
    *described = (DLTensor){.data = tr__ptr(t), .device = device_for_others(tr__device_of(t)), .ndim = t->shape.ndim,
        .dtype = types[t->dtype], .shape = made->shape, .strides = made->stride};
    return TR_OK;
}

tr_status tr_to_dlpack(const tr_tensor *t, DLManagedTensorVersioned **out)
{
    shown *made;
    DLTensor described;
    TR__TRY(show(t, &made, &described));
    made->managed.versioned = (DLManagedTensorVersioned){.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION},
        .deleter = delete_versioned, .dl_tensor = described};
    *out = &made->managed.versioned;
    return TR_OK;
}

tr_status tr_to_dlpack_unversioned(const tr_tensor *t, DLManagedTensor **out)
{
    shown *made;
    DLTensor described;
    TR__TRY(show(t, &made, &described));
    made->managed.unversioned = (DLManagedTensor){.deleter = delete_unversioned, .dl_tensor = described};
    *out = &made->managed.unversioned;
    return TR_OK;
}

/* ---- Others' for us -------------------------------------------------------------------------------------------------- */

static tr_status read_dtype(const DLTensor *from, tr_dtype *out)
{
    for (int d = 0; d < TR_DTYPE_COUNT; d++) {
        *out = (tr_dtype)d;
        if (types[d].code == from->dtype.code && types[d].bits == from->dtype.bits && from->dtype.lanes == 1) return TR_OK;
    }
    return tr__fail(TR_UNSUPPORTED, "dlpack: elements of type code %d, %d bits and %d lanes are of no dtype of Trireme's",
        from->dtype.code, from->dtype.bits, from->dtype.lanes);
}

static tr_status read_device(const DLTensor *from, tr_device *out)
{
    switch (from->device.device_type) {
    case kDLCPU:
    case kDLCUDAHost: *out = tr_cpu(0); return TR_OK;
    case kDLCUDA: *out = tr_cuda(from->device.device_id); return tr__device_check(*out);
    default:
        return tr__fail(TR_DEVICE, "dlpack: memory on a device of type %d cannot be used: move it to the CPU (1) or CUDA (2)",
            from->device.device_type);
    }
}

static tr_status read_shape(const DLTensor *from, tr_dtype dtype, tr_shape *shape)
{
    int64_t bytes;
    if (from->ndim < 0 || from->ndim > TR_MAX_DIMS || (from->ndim && !from->shape))
        return tr__fail(TR_SHAPE, "dlpack: %d dimensions%s: a tensor has 0 to %d", from->ndim,
            from->ndim && !from->shape ? " without a shape" : "", TR_MAX_DIMS);
    *shape = (tr_shape){.ndim = from->ndim};
    for (int d = 0; d < shape->ndim; d++) shape->dim[d] = from->shape[d];
    if (tr__shape_bytes(*shape, dtype, &bytes)) return TR_OK;
    return tr__fail(TR_SHAPE, "dlpack: no tensor has the shape %s", TR__TEXT(*shape));
}

/* And how many bytes they span. */
static tr_status read_strides(const DLTensor *from, tr_shape shape, tr_dtype dtype, int64_t *stride, int64_t *bytes)
{
    int64_t last = 0, way;
    tr__row_major(shape, stride);
    *bytes = 0;
    if (tr__numel(shape) == 0) return TR_OK;
    for (int d = 0; d < shape.ndim; d++) {
        if (shape.dim[d] == 1) continue; /* it is never stepped along */
        if (from->strides) stride[d] = from->strides[d];
        if (stride[d] < 0)
            return tr__fail(TR_UNSUPPORTED, "dlpack: stride %" PRId64 " of dimension %d is negative: copy it first", stride[d], d);
        if (__builtin_mul_overflow(shape.dim[d] - 1, stride[d], &way) || __builtin_add_overflow(last, way, &last))
            return tr__fail(TR_INVALID, "dlpack: stride %" PRId64 " of dimension %d leads out of any memory", stride[d], d);
    }
    if (!__builtin_add_overflow(last, 1, &last) && !__builtin_mul_overflow(last, (int64_t)tr_dtype_size(dtype), bytes))
        return TR_OK;
    return tr__fail(TR_INVALID, "dlpack: its strides lead out of any memory");
}

static tr_tensor *import(const DLTensor *from, void (*release)(void *data, void *user), void *user)
{
    tr_dtype dtype;
    tr_device device;
    tr_shape shape;
    int64_t stride[TR_MAX_DIMS], bytes;
    if (read_dtype(from, &dtype) != TR_OK || read_device(from, &device) != TR_OK || read_shape(from, dtype, &shape) != TR_OK ||
        read_strides(from, shape, dtype, stride, &bytes) != TR_OK)
        return tr__tensor_failed();
    if (bytes && !from->data) return tr__tensor_fail(TR_INVALID, "dlpack: %s without data", TR__TEXT(shape));
    char *data = from->data ? (char *)from->data + from->byte_offset : NULL;
    if ((uintptr_t)data % tr_dtype_size(dtype))
        return tr__tensor_fail(TR_INVALID, "dlpack: its memory at %p is not aligned for %s", (void *)data, tr_dtype_name(dtype));
    return tr__tensor_borrow(&(tr__storage){.device = device, .data = data, .bytes = (size_t)bytes, .kind = TR__WRAPPED,
                                 .release = release, .user = user}, shape, stride, dtype);
}

static void release_versioned(void *data, void *user)
{
    (void)data;
    DLManagedTensorVersioned *managed = user;
    if (managed->deleter) managed->deleter(managed);
}

static void release_unversioned(void *data, void *user)
{
    (void)data;
    DLManagedTensor *managed = user;
    if (managed->deleter) managed->deleter(managed);
}

tr_tensor *tr_from_dlpack(DLManagedTensorVersioned *managed)
{
    if (!managed) return tr__tensor_fail(TR_INVALID, "dlpack: the managed tensor is NULL");
    if (managed->version.major != DLPACK_MAJOR_VERSION)
        return tr__tensor_fail(TR_UNSUPPORTED, "dlpack: it is of version %" PRIu32 ".%" PRIu32 "; %d.x is known",
            managed->version.major, managed->version.minor, DLPACK_MAJOR_VERSION);
    if (managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY)
        return tr__tensor_fail(TR_UNSUPPORTED, "dlpack: it is read-only, and any tensor can be written to: copy it first");
    return import(&managed->dl_tensor, release_versioned, managed);
}

tr_tensor *tr_from_dlpack_unversioned(DLManagedTensor *managed)
{
    if (!managed) return tr__tensor_fail(TR_INVALID, "dlpack: the managed tensor is NULL");
    return import(&managed->dl_tensor, release_unversioned, managed);
}
