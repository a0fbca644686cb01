/*
 * The part of CUDA's runtime that the plug-in and the tests use, with the toolkit's names and numbers; cudart.cc is its
 * double.
 */
#ifndef TR_TEST_CUDA_RUNTIME_H
#define TR_TEST_CUDA_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#include "cuda_types.h"

#define CUDART_VERSION 13000

#define TR_CUDA_ERRORS(ERROR)                                                                                       \
    ERROR(Success, 0) ERROR(ErrorInvalidValue, 1) ERROR(ErrorMemoryAllocation, 2)                                   \
    ERROR(ErrorInitializationError, 3) ERROR(ErrorInvalidConfiguration, 9) ERROR(ErrorInsufficientDriver, 35)       \
    ERROR(ErrorNoDevice, 100) ERROR(ErrorInvalidDevice, 101) ERROR(ErrorECCUncorrectable, 214)                      \
    ERROR(ErrorNvlinkUncorrectable, 220) ERROR(ErrorContained, 226)                                                 \
    ERROR(ErrorInvalidResourceHandle, 400) ERROR(ErrorNotReady, 600) ERROR(ErrorIllegalAddress, 700)                \
    ERROR(ErrorLaunchTimeout, 702) ERROR(ErrorPeerAccessAlreadyEnabled, 704) ERROR(ErrorAssert, 710)                \
    ERROR(ErrorHardwareStackError, 714) ERROR(ErrorIllegalInstruction, 715) ERROR(ErrorMisalignedAddress, 716)      \
    ERROR(ErrorInvalidAddressSpace, 717) ERROR(ErrorInvalidPc, 718) ERROR(ErrorLaunchFailure, 719)                  \
    ERROR(ErrorCooperativeLaunchTooLarge, 720) ERROR(ErrorTensorMemoryLeak, 721) ERROR(ErrorNotSupported, 801)      \
    ERROR(ErrorStreamCaptureUnsupported, 900) ERROR(ErrorStreamCaptureInvalidated, 901)                             \
    ERROR(ErrorStreamCaptureUnmatched, 903) ERROR(ErrorStreamCaptureUnjoined, 904) ERROR(ErrorExternalDevice, 911) \
    ERROR(ErrorUnknown, 999)
enum cudaError {
#define ERROR(name, number) cuda##name = number,
    TR_CUDA_ERRORS(ERROR)
#undef ERROR
};
typedef enum cudaError cudaError_t;

typedef struct tr_stream *cudaStream_t;
typedef struct tr_event *cudaEvent_t;
typedef struct tr_graph *cudaGraph_t;
typedef struct tr_graph_exec *cudaGraphExec_t;
typedef void (*cudaHostFn_t)(void *);

enum cudaMemcpyKind {
    cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault
};
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed
};
enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive, cudaStreamCaptureStatusInvalidated
};
enum cudaDeviceAttr { cudaDevAttrComputeCapabilityMajor = 75 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum {
    cudaStreamDefault = 0, cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventDisableTiming = 2,
    cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2
};
struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem;
    int major, minor, multiProcessorCount, maxThreadsPerBlock;
};

extern "C" {
/* Devices and errors */
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t error);
const char *cudaGetErrorName(cudaError_t error);
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);

/* Memory */
cudaError_t cudaMalloc(void **memory, size_t bytes);
cudaError_t cudaFree(void *memory);
cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
    cudaStream_t stream);
cudaError_t cudaMemset(void *memory, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream);

/* Streams and events */
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *user);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end);

/* Graphs */
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status);
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
}

/* Kernels: called with the kernel's own type, as the toolkit's templates are. */
namespace tr_emulator {
cudaError_t set_kernel_attribute(const void *kernel, cudaFuncAttribute attribute, int value);
}

template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel *kernel, cudaFuncAttribute attribute, int value)
{
    return tr_emulator::set_kernel_attribute(reinterpret_cast<const void *>(kernel), attribute, value);
}

#endif
