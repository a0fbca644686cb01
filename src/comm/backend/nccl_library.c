#include "comm/backend/nccl_library.h"

#include "comm/backend/nccl.h"

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

static tr_status cannot_open(const char *library)
{
    return tr__fail(TR_UNSUPPORTED, "nccl: %s cannot be opened (%s); install it, let LD_LIBRARY_PATH name its folder, "
        "or " TR__NCCL_INSTEAD, library, dlerror());
}

static tr_status lacks(const char *library, const char *function)
{
    return tr__fail(TR_UNSUPPORTED, "nccl: %s has no %s(); install a newer one, or " TR__NCCL_INSTEAD, library,
        function);
}

/* The libraries stay open: what they started cannot be stopped. */
static tr_status look_up(tr__nccl_library *l)
{
    void *cudart = dlopen(CUDART, RTLD_NOW | RTLD_GLOBAL);
    if (!cudart) return cannot_open(CUDART);
    void *libnccl = dlopen(NCCL, RTLD_NOW | RTLD_LOCAL);
    if (!libnccl) return cannot_open(NCCL);
#define LOOK_UP_NCCL(name)                                      \
    l->name = (__typeof__(l->name))dlsym(libnccl, #name);       \
    if (!l->name) return lacks(NCCL, #name);
#define LOOK_UP_CUDA(name)                                      \
    l->name = (__typeof__(l->name))dlsym(cudart, #name);        \
    if (!l->name) return lacks(CUDART, #name);
    TR__NCCL_FUNCTIONS(LOOK_UP_NCCL)
    TR__CUDA_FUNCTIONS(LOOK_UP_CUDA)
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

/* A version is 1000 * major + 10 * minor; the driver's is 0 where there is none. */
tr_status tr__nccl_count_devices(const tr__nccl_library *l, int *devices)
{
    int driver = 0, runtime = 0;
    cudaError_t error = l->cudaGetDeviceCount(devices);
    if (error == cudaSuccess && *devices > 0) return TR_OK;
    TR__CUDA_TRY(l, cudaDriverGetVersion, &driver);
    TR__CUDA_TRY(l, cudaRuntimeGetVersion, &runtime);
    if (driver == 0)
        return tr__fail(TR_DEVICE, "nccl: there is no NVIDIA driver here; install it (a container must be started with "
            "the host's), or " TR__NCCL_INSTEAD);
    if (error == cudaErrorInsufficientDriver)
        return tr__fail(TR_DEVICE, "nccl: the NVIDIA driver is too old: it knows CUDA %d.%d at most, and %s is of CUDA "
            "%d.%d; update the driver, or " TR__NCCL_INSTEAD, driver / 1000, driver % 1000 / 10, CUDART, runtime / 1000,
            runtime % 1000 / 10);
    if (error == cudaSuccess || error == cudaErrorNoDevice)
        return tr__fail(TR_DEVICE, "nccl: the NVIDIA driver shows no GPU to this process; see what nvidia-smi lists "
            "and whether CUDA_VISIBLE_DEVICES hides it, or " TR__NCCL_INSTEAD);
    return tr__fail(TR_DEVICE, "nccl: the GPUs here cannot be used: %s; see what nvidia-smi says, or " TR__NCCL_INSTEAD,
        l->cudaGetErrorString(error));
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
