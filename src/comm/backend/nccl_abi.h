/*
 * What NCCL's binary interface has for us: types, values and functions of nccl.h, the same in every NCCL 2 from 2.14
 * on. So the library is built alike with the toolkit and without, and the double of the tests is built against the
 * same lines.
 */
#ifndef TR_COMM_BACKEND_NCCL_ABI_H
#define TR_COMM_BACKEND_NCCL_ABI_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ncclComm *ncclComm_t;
typedef struct CUstream_st *tr__cuda_stream; /* the toolkit's cudaStream_t */
typedef struct ncclUniqueId {
    char internal[128];
} ncclUniqueId;

typedef enum ncclResult_t {
    ncclSuccess = 0, ncclUnhandledCudaError = 1, ncclSystemError = 2, ncclInternalError = 3, ncclInvalidArgument = 4,
    ncclInvalidUsage = 5, ncclRemoteError = 6, ncclInProgress = 7
} ncclResult_t;

typedef enum ncclDataType_t {
    ncclInt8 = 0, ncclUint8 = 1, ncclInt32 = 2, ncclUint32 = 3, ncclInt64 = 4, ncclUint64 = 5, ncclFloat16 = 6,
    ncclFloat32 = 7, ncclFloat64 = 8, ncclBfloat16 = 9
} ncclDataType_t;

typedef enum ncclRedOp_t { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4 } ncclRedOp_t;

/* That of NCCL 2.14: a newer one reads as far as the version says, and takes its defaults for the rest. */
typedef struct ncclConfig_t {
    size_t size;
    unsigned magic, version;
    int blocking;
} ncclConfig_t;
#define TR__NCCL_NON_BLOCKING {sizeof(ncclConfig_t), 0xcafebeefu, 21400u, 0}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config);
/* From NCCL 2.18 on. The part gets the configuration of the whole; of color -1 there is none. */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *part, ncclConfig_t *config);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state);
const char *ncclGetErrorString(ncclResult_t result);
const char *ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
    ncclComm_t comm, tr__cuda_stream stream);
ncclResult_t ncclReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
    ncclComm_t comm, tr__cuda_stream stream);
ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
    tr__cuda_stream stream);
ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t comm,
    tr__cuda_stream stream);
ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
    ncclComm_t comm, tr__cuda_stream stream);
ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
    tr__cuda_stream stream);
ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, tr__cuda_stream stream);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
