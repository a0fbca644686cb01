/*
 * The double of the runtime: allocations and copies.
 */
#include "cudart_state.h"

using namespace tr_emulator;
using std::shared_ptr;

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    return call("cudaMalloc", cudaErrorMemoryAllocation, [&](held_lock &) {
        const cudaError_t error = refuse_while_capturing();
        return error != cudaSuccess ? error : allocate_device(memory, bytes, current);
    });
}

cudaError_t cudaFree(void *memory)
{
    return call("cudaFree", cudaErrorInvalidValue, [&](held_lock &held) {
        cudaError_t error = refuse_while_capturing();
        const location at = locate(memory, 0);
        if (error == cudaSuccess && at.device >= 0) error = wait_for_device(held, at.device);
        const cudaError_t freed = free_device(memory);
        return freed != cudaSuccess ? freed : error;
    });
}

cudaError_t cudaMallocAsync(void **memory, size_t bytes, cudaStream_t stream)
{
    return call("cudaMallocAsync", cudaErrorMemoryAllocation, [&](held_lock &) {
        const tr_stream *s = stream_of(stream);
        return s ? allocate_device(memory, bytes, s->device) : cudaErrorInvalidResourceHandle;
    });
}

cudaError_t cudaFreeAsync(void *memory, cudaStream_t stream)
{
    return enqueue(stream, {"cudaFreeAsync", [memory] {
        held_lock held(state().lock);
        return free_device(memory);
    }, nullptr});
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
    return call("cudaMemGetInfo", cudaErrorUnknown, [&](held_lock &) {
        *total = memory_limit();
        *free = *total - device_bytes_used(current);
        return cudaSuccess;
    });
}

namespace {

struct copy_plan {
    void *to;
    const void *from;
    size_t to_pitch, from_pitch, width, height;
};

bool kind_fits(cudaMemcpyKind kind, location to, location from)
{
    const bool to_device = to.kind == where::device, from_device = from.kind == where::device;
    switch (kind) {
    case cudaMemcpyHostToHost: return !to_device && !from_device;
    case cudaMemcpyHostToDevice: return to_device && !from_device;
    case cudaMemcpyDeviceToHost: return !to_device && from_device;
    case cudaMemcpyDeviceToDevice: return to_device && from_device;
    default: return true;
    }
}

/* Pageable host memory is read before the call returns, and is written before it does; pinned memory when the copy
 * runs. */
cudaError_t copy(const char *name, copy_plan p, cudaMemcpyKind kind, cudaStream_t stream, bool wait)
{
    return call(name, cudaErrorInvalidValue, [&](held_lock &held) {
        if (p.width == 0 || p.height == 0) return cudaSuccess;
        const size_t to_bytes = p.to_pitch * (p.height - 1) + p.width,
            from_bytes = p.from_pitch * (p.height - 1) + p.width;
        const location to = locate(p.to, to_bytes), from = locate(p.from, from_bytes);
        tr_stream *s = stream_of(stream);
        if (!s) return cudaErrorInvalidResourceHandle;
        if (to.kind == where::nowhere || from.kind == where::nowhere || !kind_fits(kind, to, from))
            return cudaErrorInvalidValue;
        shared_ptr<std::vector<char>> staged;
        if (from.kind == where::pageable && !s->capture) {
            const auto *bytes = static_cast<const char *>(p.from);
            staged = std::make_shared<std::vector<char>>(bytes, bytes + from_bytes);
        }
        operation op = {name, [=] {
            {
                held_lock again(state().lock);
                if (locate(p.to, to_bytes).kind != to.kind || locate(p.from, from_bytes).kind != from.kind) {
                    describe_failure(std::string(name) + " runs after its memory was freed");
                    return cudaErrorIllegalAddress;
                }
            }
            const char *source = staged ? staged->data() : static_cast<const char *>(p.from);
            for (size_t y = 0; y < p.height; y++)
                memmove(static_cast<char *>(p.to) + y * p.to_pitch, source + y * p.from_pitch, p.width);
            return cudaSuccess;
        }, nullptr};
        if (to.device >= 0) op.devices |= 1u << to.device;
        if (from.device >= 0) op.devices |= 1u << from.device;
        const bool capturing = s->capture != nullptr;
        const cudaError_t error = put(held, s, std::move(op));
        if (error != cudaSuccess || capturing || !(wait || to.kind == where::pageable)) return error;
        return wait_for(held, s);
    });
}

cudaError_t set_bytes(const char *name, void *memory, int value, size_t bytes, cudaStream_t stream, bool wait)
{
    return call(name, cudaErrorInvalidValue, [&](held_lock &held) {
        const location at = locate(memory, bytes);
        tr_stream *s = stream_of(stream);
        if (!s) return cudaErrorInvalidResourceHandle;
        if (bytes == 0) return cudaSuccess;
        if (at.kind == where::nowhere || at.kind == where::pageable) return cudaErrorInvalidValue;
        operation op = {name, [=] {
            memset(memory, value, bytes);
            return cudaSuccess;
        }, nullptr, at.device >= 0 ? 1u << at.device : 0};
        const cudaError_t error = put(held, s, std::move(op));
        return error == cudaSuccess && wait ? wait_for(held, s) : error;
    });
}

} /* namespace */

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    return copy("cudaMemcpy", {to, from, bytes, bytes, bytes, 1}, kind, nullptr, true);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream)
{
    return copy("cudaMemcpyAsync", {to, from, bytes, bytes, bytes, 1}, kind, stream, false);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t bytes, cudaStream_t stream)
{
    return copy("cudaMemcpyPeerAsync", {to, from, bytes, bytes, bytes, 1}, cudaMemcpyDeviceToDevice, stream, false);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
    size_t height,
    cudaMemcpyKind kind, cudaStream_t stream)
{
    return copy("cudaMemcpy2DAsync", {to, from, to_pitch, from_pitch, width, height}, kind, stream, false);
}

cudaError_t cudaMemset(void *memory, int value, size_t bytes)
{
    return set_bytes("cudaMemset", memory, value, bytes, nullptr, true);
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream)
{
    return set_bytes("cudaMemsetAsync", memory, value, bytes, stream, false);
}
