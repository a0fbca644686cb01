#include "kernel.h"

#include "device.h"

job::job(const tr_kernel_call *c) : call(*c), stream(device_stream(c->index, c->stream)) {}

bool is_row_major(const tr_device_tensor &x)
{
    int64_t step = 1;
    for (int d = x.shape.ndim; d-- > 0;) {
        if (x.shape.dim[d] != 1 && x.stride[d] != step) return false;
        step *= x.shape.dim[d];
    }
    return true;
}

tr_device_tensor dense_view(void *data, tr_dtype dtype, const tr_shape &shape)
{
    tr_device_tensor t = {};
    t.data = data;
    t.dtype = dtype;
    t.shape = shape;
    int64_t step = 1;
    for (int d = shape.ndim; d-- > 0;) {
        t.stride[d] = step;
        step *= shape.dim[d];
    }
    return t;
}

scratch::scratch(const job &j, size_t size) : owner(j), bytes(size), memory(nullptr), state(TR_OK)
{
    if (bytes) state = memory_allocate(j.call.index, j.stream, bytes, &memory);
}

scratch::~scratch()
{
    if (memory) memory_release(owner.call.index, owner.stream, memory);
}

bool lies_so(const tr_device_tensor &x, tr_dtype dtype, const int64_t *stride)
{
    if (x.dtype != dtype) return false;
    for (int d = 0; stride && d < x.shape.ndim; d++)
        if (x.shape.dim[d] != 1 && x.stride[d] != stride[d]) return false;
    return true;
}

staged::staged(const job &j, const tr_device_tensor &x, tr_dtype dtype, const int64_t *stride)
    : tensor(x), memory(j, lies_so(x, dtype, stride) ? 0 : (size_t)numel(x) * host->dtype_size(dtype)),
      state(memory.status())
{
    if (state != TR_OK || !memory.as<void>()) return;
    tensor = dense_view(memory.as<void>(), dtype, x.shape);
    for (int d = 0; stride && d < x.shape.ndim; d++) tensor.stride[d] = stride[d];
    state = copy_into(j, tensor, x);
}
