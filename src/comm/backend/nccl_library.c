#include "comm/backend/nccl_library.h"

#include <dlfcn.h>
#include <pthread.h>

static struct {
    pthread_mutex_t lock;
    bool open;
    tr__nccl_library library;
} nccl = {.lock = PTHREAD_MUTEX_INITIALIZER};

#define TEXT(x) TEXT2(x)
#define TEXT2(x) #x
#if CUDART_VERSION >= 13000
#define CUDART "libcudart.so.13"
#elif CUDART_VERSION >= 12000
#define CUDART "libcudart.so.12"
#else
#define CUDART "libcudart.so.11.0"
#endif
#define NCCL "libnccl.so." TEXT(NCCL_MAJOR)

static tr_status absent(const char *library)
{
    return tr__fail(TR_UNSUPPORTED, "no NCCL here: %s; the nccl backend needs %s, which LD_LIBRARY_PATH can point to",
        dlerror(), library);
}

/* The libraries stay open: what they started cannot be stopped. */
static tr_status look_up(tr__nccl_library *l)
{
    void *cuda = dlopen(CUDART, RTLD_NOW | RTLD_GLOBAL);
    if (!cuda) return absent(CUDART);
    void *handle = dlopen(NCCL, RTLD_NOW | RTLD_LOCAL);
    if (!handle) return absent(NCCL);
#define LOOK_UP(name)                                          \
    l->name = (__typeof__(l->name))dlsym(handle, #name);       \
    if (!l->name) return absent(#name);
    TR__NCCL_FUNCTIONS(LOOK_UP)
    handle = cuda;
    TR__CUDA_FUNCTIONS(LOOK_UP)
    return TR_OK;
}

tr_status tr__nccl_open(const tr__nccl_library **library)
{
    pthread_mutex_lock(&nccl.lock);
    tr_status status = nccl.open ? TR_OK : look_up(&nccl.library);
    nccl.open = status == TR_OK;
    pthread_mutex_unlock(&nccl.lock);
    *library = &nccl.library;
    return status;
}

tr_status tr__nccl_fail(const tr__nccl_library *l, ncclResult_t result, ncclComm_t comm, const char *what)
{
    const char *more = comm ? l->ncclGetLastError(comm) : NULL;
    tr_status status = result == ncclRemoteError ? TR_PEER : result == ncclInvalidUsage ? TR_STATE : TR_IO;
    return tr__fail(status, "%s failed: %s%s%s", what, l->ncclGetErrorString(result), more && *more ? ": " : "",
        more ? more : "");
}

tr_status tr__cuda_fail(const tr__nccl_library *l, cudaError_t error, const char *what)
{
    return tr__fail(error == cudaErrorMemoryAllocation ? TR_NO_MEMORY : TR_DEVICE, "%s failed: %s", what,
        l->cudaGetErrorString(error));
}
