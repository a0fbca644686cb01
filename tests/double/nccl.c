/* A double of libnccl that can be opened; nothing in it works. */
const char *ncclGetErrorString(int error)
{
    (void)error;
    return "a double does nothing";
}

const char *ncclGetLastError(void *comm)
{
    (void)comm;
    return "";
}

#define FAILS(name) \
    int name(void) { return 1; }
FAILS(ncclGetUniqueId)
FAILS(ncclCommInitRankConfig)
FAILS(ncclCommDestroy)
FAILS(ncclCommAbort)
FAILS(ncclCommGetAsyncError)
FAILS(ncclCommFinalize)
FAILS(ncclAllReduce)
FAILS(ncclReduce)
FAILS(ncclBroadcast)
FAILS(ncclAllGather)
FAILS(ncclReduceScatter)
FAILS(ncclSend)
FAILS(ncclRecv)
FAILS(ncclGroupStart)
FAILS(ncclGroupEnd)
