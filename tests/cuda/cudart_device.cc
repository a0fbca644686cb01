/*
 * The double of the runtime: devices and errors.
 */
#include "cudart.h"

using namespace tr_emulator;

static thread_local cudaError_t last_error = cudaSuccess;

cudaError_t tr_emulator::note(cudaError_t error)
{
    if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
    return error;
}

static bool is_device(int device) { return device >= 0 && device < state().count; }

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
    if (call_fails("cudaSetDevice") || !is_device(device)) return note(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    if (call_fails("cudaGetDeviceProperties") || !is_device(device)) return note(cudaErrorInvalidDevice);
    *p = {"Emulated GPU", memory_limit(), 9, 0, PROCESSORS, 1024};
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr, int device)
{
    cudaDeviceProp p;
    CHECK(cudaGetDeviceProperties(&p, device));
    *value = p.major;
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

cudaError_t cudaGetLastError(void) { return std::exchange(last_error, cudaSuccess); }

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
#define ERROR(name, number) case number: return "cuda" #name;
    TR_CUDA_ERRORS(ERROR)
#undef ERROR
    }
    return "cudaError";
}

/* Of a kernel that failed: what the emulator found. */
const char *cudaGetErrorString(cudaError_t error)
{
    held_lock held(state().lock);
    const device_state &d = state().devices[current_device];
    if (error == cudaSuccess || error != d.failure || d.text.empty()) return cudaGetErrorName(error);
    state().texts.push_back(d.text);
    return state().texts.back().c_str();
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    if (call_fails("cudaDeviceCanAccessPeer") || !is_device(device) || !is_device(peer))
        return note(cudaErrorInvalidDevice);
    *can = device != peer;
    return cudaSuccess;
}

DOUBLE(cudaDeviceEnablePeerAccess, (int peer, unsigned), cudaErrorNotSupported, {
    unsigned &peers = state().devices[current_device].peers;
    if (!is_device(peer) || peer == current_device) return cudaErrorInvalidDevice;
    if (peers >> peer & 1) return cudaErrorPeerAccessAlreadyEnabled;
    peers |= 1u << peer;
    return cudaSuccess;
})

DOUBLE(cudaDeviceSynchronize, (void), cudaErrorUnknown, {
    CHECK(refuse_while_capturing());
    return wait_for_device(held, current_device);
})
