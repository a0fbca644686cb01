/*
 * The functions of libnccl and libcudart that are used, looked up by name in the libraries that are found at run time.
 */
#ifndef TR_COMM_BACKEND_NCCL_LIBRARY_H
#define TR_COMM_BACKEND_NCCL_LIBRARY_H

#include "base/object.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#define TR__NCCL_FUNCTIONS(X)                                                                                   \
    X(ncclGetUniqueId) X(ncclCommInitRankConfig) X(ncclCommDestroy) X(ncclCommAbort) X(ncclCommGetAsyncError)   \
    X(ncclCommFinalize) X(ncclGetErrorString) X(ncclGetLastError) X(ncclAllReduce) X(ncclReduce)                \
    X(ncclBroadcast) X(ncclAllGather) X(ncclReduceScatter) X(ncclSend) X(ncclRecv) X(ncclGroupStart)            \
    X(ncclGroupEnd)
#define TR__CUDA_FUNCTIONS(X)                                                                                   \
    X(cudaGetDeviceCount) X(cudaDriverGetVersion) X(cudaRuntimeGetVersion)                                      \
    X(cudaSetDevice) X(cudaStreamCreateWithFlags) X(cudaStreamDestroy)                                          \
    X(cudaEventCreateWithFlags) X(cudaEventDestroy) X(cudaEventRecord) X(cudaEventQuery)                        \
    X(cudaStreamWaitEvent) X(cudaMalloc) X(cudaFree) X(cudaMemcpyAsync) X(cudaPointerGetAttributes)             \
    X(cudaGetErrorString)

typedef struct tr__nccl_library {
#define TR__MEMBER(name) __typeof__(name) *name;
    TR__NCCL_FUNCTIONS(TR__MEMBER)
    TR__CUDA_FUNCTIONS(TR__MEMBER)
#undef TR__MEMBER
} tr__nccl_library;

/* Opens the libraries, once in the life of the process. */
tr_status tr__nccl_open(const tr__nccl_library **library);
/* How many GPUs this process may use. None is an error, which says why and what to do. */
tr_status tr__nccl_count_devices(const tr__nccl_library *library, int *devices);

tr_status tr__nccl_fail(const tr__nccl_library *library, ncclResult_t result, ncclComm_t comm, const char *what);
tr_status tr__cuda_fail(const tr__nccl_library *library, cudaError_t error, const char *what);

/* `return` on failure; l is the library. NCCL's calls on a communicator that does not block may be under way. */
#define TR__CUDA_TRY(l, function, ...)                                                              \
    do {                                                                                            \
        cudaError_t tr__code = (l)->function(__VA_ARGS__);                                          \
        if (tr__code != cudaSuccess) return tr__cuda_fail((l), tr__code, #function);                \
    } while (0)
#define TR__NCCL_TRY(l, comm, function, ...)                                                        \
    do {                                                                                            \
        ncclResult_t tr__code = (l)->function(__VA_ARGS__);                                         \
        if (tr__code != ncclSuccess && tr__code != ncclInProgress)                                  \
            return tr__nccl_fail((l), tr__code, (comm), #function);                                 \
    } while (0)

#endif
