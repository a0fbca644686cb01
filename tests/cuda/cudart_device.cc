/*
 * The double of the runtime: devices and errors.
 */
#include "cudart_state.h"

static thread_local cudaError_t last_error = cudaSuccess;

namespace tr_emulator {

cudaError_t note(cudaError_t error)
{
    if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
    return error;
}

void forget_error() { last_error = cudaSuccess; }

} /* namespace tr_emulator */

using namespace tr_emulator;

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 0;
    if (call_fails("cudaGetDeviceCount")) return note(cudaErrorInitializationError);
    if (state().driver > 0 && state().driver < CUDART_VERSION) return note(cudaErrorInsufficientDriver);
    *count = state().count;
    return *count ? cudaSuccess : note(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device)
{
    if (call_fails("cudaSetDevice") || device < 0 || device >= state().count) return note(cudaErrorInvalidDevice);
    current = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    if (call_fails("cudaGetDeviceProperties") || device < 0 || device >= state().count)
        return note(cudaErrorInvalidDevice);
    *p = {};
    snprintf(p->name, sizeof p->name, "Emulated GPU");
    p->totalGlobalMem = memory_limit();
    p->sharedMemPerBlock = SHARED_USUAL;
    p->sharedMemPerBlockOptin = SHARED_MOST;
    p->sharedMemPerMultiprocessor = SHARED_MOST + 1024;
    p->regsPerBlock = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = THREADS_PER_PROCESSOR;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->major = 9;
    p->multiProcessorCount = PROCESSORS;
    p->l2CacheSize = 50 << 20;
    p->memoryBusWidth = 5120;
    p->asyncEngineCount = 3;
    p->unifiedAddressing = p->concurrentKernels = p->cooperativeLaunch = 1;
    p->pciBusID = device;
    p->uuid[0] = static_cast<unsigned char>(device);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
    cudaDeviceProp p;
    cudaError_t error = cudaGetDeviceProperties(&p, device);
    if (error != cudaSuccess) return error;
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = static_cast<int>(p.sharedMemPerBlock); break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = static_cast<int>(p.sharedMemPerMultiprocessor); break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = static_cast<int>(p.sharedMemPerBlockOptin); break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
    default: return note(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = state().driver >= 0 ? state().driver : state().count ? CUDART_VERSION : 0;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaPeekAtLastError(void) { return last_error; }

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
#define NAME(name) case name: return #name;
    NAME(cudaSuccess) NAME(cudaErrorInvalidValue) NAME(cudaErrorMemoryAllocation) NAME(cudaErrorInitializationError)
    NAME(cudaErrorInvalidConfiguration) NAME(cudaErrorInsufficientDriver) NAME(cudaErrorNoDevice)
    NAME(cudaErrorInvalidDevice) NAME(cudaErrorInvalidResourceHandle) NAME(cudaErrorNotReady)
    NAME(cudaErrorIllegalAddress) NAME(cudaErrorLaunchTimeout) NAME(cudaErrorLaunchFailure)
    NAME(cudaErrorStreamCaptureUnsupported) NAME(cudaErrorStreamCaptureInvalidated) NAME(cudaErrorStreamCaptureUnjoined)
#undef NAME
    default: return "cudaError";
    }
}

/* Of a kernel that failed: what the emulator found. */
const char *cudaGetErrorString(cudaError_t error)
{
    held_lock held(state().lock);
    const std::string &text = state().devices[current].text;
    if (error == cudaSuccess || error != state().devices[current].failure || text.empty())
        return cudaGetErrorName(error);
    state().texts.push_back(text);
    return state().texts.back().c_str();
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    if (call_fails("cudaDeviceCanAccessPeer") || device < 0 || peer < 0 || device >= state().count ||
        peer >= state().count)
        return note(cudaErrorInvalidDevice);
    *can = device != peer;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned)
{
    return call("cudaDeviceEnablePeerAccess", cudaErrorNotSupported, [&](held_lock &) {
        if (peer < 0 || peer >= state().count || peer == current) return cudaErrorInvalidDevice;
        if (state().devices[current].peers >> peer & 1) return cudaErrorPeerAccessAlreadyEnabled;
        state().devices[current].peers |= 1u << peer;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceSynchronize(void)
{
    return call("cudaDeviceSynchronize", cudaErrorUnknown, [&](held_lock &held) {
        const cudaError_t error = refuse_while_capturing();
        return error != cudaSuccess ? error : wait_for_device(held, current);
    });
}
