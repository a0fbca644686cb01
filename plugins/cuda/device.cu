/* The device table: devices, streams, events, copies. */
#include "device.h"

#include "graph.h"
#include "kernel.h"
#include "table.h"

#include <atomic>
#include <mutex>
#include <new>

#include <inttypes.h>
#include <stdio.h>

const tr_device_host *host;

struct tr_device_stream { cudaStream_t handle; };
struct tr_device_event { cudaEvent_t handle; };

namespace {

/* Made when the device is first used: a context takes some 500 MB of a GPU's memory. */
struct opened {
    std::atomic<bool> ready;
    std::mutex lock;
    cudaStream_t stream;
    fault *noted;
};
opened devices[MOST_DEVICES];
int device_count;

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

/* After these nothing works in this process any more. */
bool is_fatal(cudaError_t error)
{
    switch ((int)error) {
    case 226: /* cudaErrorContained, which CUDA 12 has no name for, */
    case 721: /* nor for cudaErrorTensorMemoryLeak */
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorExternalDevice:
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout: return true;
    default: return false;
    }
}

} // namespace

tr_status check_cuda(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return TR_OK;
    (void)cudaGetLastError(); /* so that it is not found again */
    if (error == cudaErrorMemoryAllocation) return host->fail(TR_NO_MEMORY, "cuda: %s: no memory on the device", what);
    if (is_fatal(error))
        return host->fail(TR_DEVICE,
                          "cuda: %s: a kernel failed before it: %s (%s). The device is lost to this process; "
                          "TRIREME_CHECK=sync waits after each op and names the one that failed",
                          what, cudaGetErrorString(error), cudaGetErrorName(error));
    return host->fail(TR_DEVICE, "cuda: %s: %s (%s)", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

namespace {

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

tr_status open(const tr_device_host *library)
{
    host = library;
    int driver = 0, runtime = 0;
    cudaError_t error = cudaGetDeviceCount(&device_count);
    if (error == cudaSuccess && device_count > 0) {
        if (device_count > MOST_DEVICES) device_count = MOST_DEVICES;
        return TR_OK;
    }
    device_count = 0;
    (void)cudaGetLastError();
    if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
    if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) runtime = CUDART_VERSION;
    if (driver == 0)
        return host->fail(TR_DEVICE, "cuda: this host has no NVIDIA driver: install one that knows CUDA %d.%d",
                          runtime / 1000, runtime % 1000 / 10);
    if (error == cudaErrorInsufficientDriver)
        return host->fail(
            TR_DEVICE,
            "cuda: the NVIDIA driver knows CUDA %d.%d, and this plug-in was built with CUDA %d.%d: install a "
            "newer driver, or build with an older toolkit",
            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    if (error == cudaErrorNoDevice || error == cudaSuccess)
        return host->fail(TR_DEVICE, "cuda: the driver finds no GPU: CUDA_VISIBLE_DEVICES may hide it");
    return check_cuda(error, "asking how many GPUs there are");
}

int count(void)
{
    return device_count;
}

tr_status make_ready(opened &d)
{
    std::lock_guard<std::mutex> guard(d.lock);
    if (d.ready.load()) return TR_OK;
    void *noted = nullptr;
    if (!d.stream)
        TRY(check_cuda(cudaStreamCreateWithFlags(&d.stream, cudaStreamNonBlocking), "making the device's stream"));
    TRY(check_cuda(cudaHostAlloc(&noted, sizeof(fault), cudaHostAllocPortable | cudaHostAllocMapped),
              "making room for its failures"));
    d.noted = new (noted) fault();
    d.ready.store(true);
    return TR_OK;
}

} // namespace

tr_status device_enter(int index)
{
    if (index < 0 || index >= device_count)
        return host->fail(TR_DEVICE, "cuda:%d: there is no such device: there are %d", index, device_count);
    TRY(check_cuda(cudaSetDevice(index), "choosing the device"));
    return devices[index].ready.load() ? TR_OK : make_ready(devices[index]);
}

cudaStream_t device_stream(int index, tr_device_stream *stream)
{
    if (stream) return stream->handle;
    cudaStream_t captured = graph_stream(index);
    return captured ? captured : devices[index].stream;
}

fault *fault_of(int index)
{
    return devices[index].noted;
}

tr_status device_fault(int index)
{
    static const char *const words[][2] = {{"", ""}, {"embedding: id", "rows"}, {"cross_entropy: target", "classes"},
        {"take_along: index", "elements"}, {"scatter_add: index", "elements"}, {"put_along: index", "elements"}};
    fault *noted = devices[index].noted;
    if (!noted || !((volatile fault *)noted)->noted) return TR_OK;
    fault f = *noted;
    noted->noted = 0;
    return host->fail(TR_INVALID, "%s %" PRId64 " at position %" PRId64 " is outside the %" PRId64 " %s",
                      words[f.what][0], f.id, f.position, f.limit, words[f.what][1]);
}

namespace {

tr_status properties(int index, tr_device_properties *out)
{
    cudaDeviceProp p;
    int driver = 0;
    TRY(check_cuda(cudaGetDeviceProperties(&p, index), "asking for the device's properties"));
    TRY(check_cuda(cudaDriverGetVersion(&driver), "asking for the driver's version"));
    snprintf(out->name, sizeof out->name, "%.127s", p.name);
    snprintf(out->architecture, sizeof out->architecture, "sm_%d%d", p.major, p.minor);
    snprintf(out->driver, sizeof out->driver, "CUDA %d.%d", driver / 1000, driver % 1000 / 10);
    out->memory_bytes = (int64_t)p.totalGlobalMem;
    out->compute_units = p.multiProcessorCount;
    return TR_OK;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

tr_status allocate(int index, tr_device_stream *stream, size_t bytes, void **out)
{
    TRY(device_enter(index));
    return memory_allocate(index, device_stream(index, stream), bytes, out);
}

void release(int index, tr_device_stream *stream, void *memory, size_t)
{
    if (device_enter(index) == TR_OK) memory_release(index, device_stream(index, stream), memory);
}

/* ---- Streams and events ------------------------------------------------------------------------------------------ */

tr_status stream_new(int index, tr_device_stream **out)
{
    TRY(device_enter(index));
    tr_device_stream *made = new (std::nothrow) tr_device_stream();
    if (!made) return host->fail(TR_NO_MEMORY, "cuda:%d: no memory for a stream", index);
    tr_status status = check_cuda(cudaStreamCreateWithFlags(&made->handle, cudaStreamNonBlocking), "making a stream");
    if (status == TR_OK) *out = made;
    else delete made;
    return status;
}

void stream_free(int index, tr_device_stream *stream)
{
    if (device_enter(index) == TR_OK) {
        (void)cudaStreamSynchronize(stream->handle);
        memory_move(index, stream->handle, devices[index].stream);
        (void)cudaStreamDestroy(stream->handle);
    }
    delete stream;
}

tr_status stream_handle(int index, tr_device_stream *stream, void **out)
{
    TRY(device_enter(index));
    *out = device_stream(index, stream);
    return TR_OK;
}

tr_status stream_synchronize(int index, tr_device_stream *stream)
{
    TRY(device_enter(index));
    TRY(check_cuda(cudaStreamSynchronize(device_stream(index, stream)), "waiting for a stream"));
    return device_fault(index);
}

tr_status event_new(int index, tr_device_event **out)
{
    TRY(device_enter(index));
    tr_device_event *made = new (std::nothrow) tr_device_event();
    if (!made) return host->fail(TR_NO_MEMORY, "cuda:%d: no memory for an event", index);
    tr_status status = check_cuda(cudaEventCreateWithFlags(&made->handle, cudaEventDefault), "making an event");
    if (status == TR_OK) *out = made;
    else delete made;
    return status;
}

void event_free(int index, tr_device_event *event)
{
    if (device_enter(index) == TR_OK) (void)cudaEventDestroy(event->handle);
    delete event;
}

tr_status event_record(int index, tr_device_stream *stream, tr_device_event *event)
{
    TRY(device_enter(index));
    return check_cuda(cudaEventRecord(event->handle, device_stream(index, stream)), "recording an event");
}

tr_status stream_wait(int index, tr_device_stream *stream, tr_device_event *event)
{
    TRY(device_enter(index));
    return check_cuda(cudaStreamWaitEvent(device_stream(index, stream), event->handle, 0), "waiting on a stream");
}

tr_status event_done(int index, tr_device_event *event, bool *done)
{
    TRY(device_enter(index));
    cudaError_t error = cudaEventQuery(event->handle);
    *done = error == cudaSuccess;
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return TR_OK;
    }
    return check_cuda(error, "asking for an event");
}

tr_status event_synchronize(int index, tr_device_event *event)
{
    TRY(device_enter(index));
    TRY(check_cuda(cudaEventSynchronize(event->handle), "waiting for an event"));
    return device_fault(index);
}

tr_status event_elapsed(int index, tr_device_event *from, tr_device_event *to, double *milliseconds)
{
    float elapsed = 0;
    TRY(device_enter(index));
    TRY(check_cuda(cudaEventElapsedTime(&elapsed, from->handle, to->handle), "measuring the time between events"));
    *milliseconds = (double)elapsed;
    return TR_OK;
}

tr_status synchronize(int index)
{
    TRY(device_enter(index));
    TRY(check_cuda(cudaDeviceSynchronize(), "waiting for the device"));
    return device_fault(index);
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

tr_status copy_in(int index, tr_device_stream *stream, void *to, const void *from_host, size_t bytes)
{
    TRY(device_enter(index));
    return check_cuda(cudaMemcpyAsync(to, from_host, bytes, cudaMemcpyHostToDevice, device_stream(index, stream)),
                 "a copy to the device");
}

tr_status copy_out(int index, tr_device_stream *stream, void *to_host, const void *from, size_t bytes)
{
    TRY(device_enter(index));
    return check_cuda(cudaMemcpyAsync(to_host, from, bytes, cudaMemcpyDeviceToHost, device_stream(index, stream)),
                 "a copy from the device");
}

tr_status copy_within(int index, tr_device_stream *stream, void *to, const void *from, size_t bytes)
{
    TRY(device_enter(index));
    return check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, device_stream(index, stream)), "a copy");
}

tr_status copy_peer(int to_index, tr_device_stream *stream, void *to, int from_index, const void *from, size_t bytes)
{
    TRY(device_enter(to_index));
    return check_cuda(cudaMemcpyPeerAsync(to, to_index, from, from_index, bytes, device_stream(to_index, stream)),
        "a copy between devices");
}

tr_status set_bytes(int index, tr_device_stream *stream, void *to, int byte, size_t bytes)
{
    TRY(device_enter(index));
    return check_cuda(cudaMemsetAsync(to, byte, bytes, device_stream(index, stream)), "setting memory");
}

bool peer_access(int index, int peer)
{
    int can = 0;
    if (device_enter(index) != TR_OK || cudaDeviceCanAccessPeer(&can, index, peer) != cudaSuccess || !can) return false;
    cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
    if (error != cudaSuccess) (void)cudaGetLastError();
    return error == cudaSuccess || error == cudaErrorPeerAccessAlreadyEnabled;
}

} // namespace

TR_DEVICE_PLUGIN = {
    .size = sizeof(tr_device_table),
    .version = TR_DEVICE_INTERFACE,
    .kind = "cuda",
    .open = open,
    .count = count,
    .properties = properties,
    .allocate = allocate,
    .release = release,
    .trim = memory_trim,
    .memory = memory_statistics,
    .reset_peak = memory_reset_peak,
    .host_allocate = memory_host_allocate,
    .host_release = memory_host_release,
    .stream_new = stream_new,
    .stream_free = stream_free,
    .stream_synchronize = stream_synchronize,
    .event_new = event_new,
    .event_free = event_free,
    .event_record = event_record,
    .stream_wait = stream_wait,
    .event_done = event_done,
    .event_synchronize = event_synchronize,
    .event_elapsed = event_elapsed,
    .synchronize = synchronize,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .copy_within = copy_within,
    .copy_peer = copy_peer,
    .set_bytes = set_bytes,
    .peer_access = peer_access,
    .kernels = cuda_kernels,
    .n_kernels = CUDA_KERNELS,
    .stream_handle = stream_handle,
    .capture_begin = graph_capture_begin,
    .capture_end = graph_capture_end,
    .graph_set = graph_set,
    .graph_launch = graph_launch,
    .graph_free = graph_free,
};
