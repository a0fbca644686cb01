/*
 * NCCL's functions, looked up by name in the library when the first group needs it: a machine without it pays nothing and gets an
 * error that says what is missing. GPUs are the CUDA plug-in's (trireme/device.h): memory, streams and events come from its table.
 */
#ifndef TR_COMM_BACKEND_NCCL_LIBRARY_H
#define TR_COMM_BACKEND_NCCL_LIBRARY_H

#include "base/object.h"
#include "comm/backend/nccl_abi.h"

/* How a message ends that says why NCCL cannot be used here. */
#define TR__NCCL_INSTEAD "join with .backend = \"native\", which needs no GPU"

#define TR__NCCL_FUNCTIONS(X)                                                                                   \
    X(ncclGetUniqueId) X(ncclCommInitRankConfig) X(ncclCommDestroy) X(ncclCommAbort) X(ncclCommGetAsyncError)   \
    X(ncclCommFinalize) X(ncclGetErrorString) X(ncclGetLastError) X(ncclAllReduce) X(ncclReduce)                \
    X(ncclBroadcast) X(ncclAllGather) X(ncclReduceScatter) X(ncclSend) X(ncclRecv) X(ncclGroupStart)            \
    X(ncclGroupEnd)

typedef struct tr__nccl_library {
#define TR__MEMBER(name) __typeof__(name) *name;
    TR__NCCL_FUNCTIONS(TR__MEMBER)
    TR__MEMBER(ncclCommSplit) /* NULL: this NCCL is older */
#undef TR__MEMBER
} tr__nccl_library;

/* Opens the library, once in the life of the process. */
tr_status tr__nccl_open(const tr__nccl_library **library);

tr_status tr__nccl_fail(const tr__nccl_library *library, ncclResult_t result, ncclComm_t comm, const char *what);

/* `return` on failure; l is the library. Calls on a communicator that does not block may be under way. */
#define TR__NCCL_TRY(l, comm, function, ...)                                                        \
    do {                                                                                            \
        ncclResult_t tr__code = (l)->function(__VA_ARGS__);                                         \
        if (tr__code != ncclSuccess && tr__code != ncclInProgress)                                  \
            return tr__nccl_fail((l), tr__code, (comm), #function);                                 \
    } while (0)

#endif
