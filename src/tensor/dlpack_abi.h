/* The C ABI of DLPack 1.x, as far as it is used here; the names are the specification's. */
#ifndef TR_TENSOR_DLPACK_ABI_H
#define TR_TENSOR_DLPACK_ABI_H

#include <stdint.h>

enum { DLPACK_MAJOR_VERSION = 1, DLPACK_MINOR_VERSION = 0 };

typedef struct DLPackVersion {
    uint32_t major, minor;
} DLPackVersion;

enum { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3 };

typedef struct DLDevice {
    int32_t device_type, device_id;
} DLDevice;

enum { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLOpaqueHandle = 3, kDLBfloat = 4, kDLComplex = 5, kDLBool = 6 };

typedef struct DLDataType {
    uint8_t code, bits;
    uint16_t lanes;
} DLDataType;

typedef struct DLTensor {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: row-major */
    uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;

#define DLPACK_FLAG_BITMASK_READ_ONLY (UINT64_C(1) << 0)

typedef struct DLManagedTensorVersioned {
    DLPackVersion version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    DLTensor dl_tensor;
} DLManagedTensorVersioned;

#endif
