#include "comm/backend/nccl_library.h"

#include "base/thread.h"

#include <dlfcn.h>
#include <pthread.h>

#define NCCL "libnccl.so.2"

static struct {
    pthread_mutex_t lock;
    bool open;
    tr__nccl_library library;
} nccl = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The library stays open: what it started cannot be stopped. */
static tr_status look_up(tr__nccl_library *l)
{
    void *library = dlopen(NCCL, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return tr__fail(TR_UNSUPPORTED, "nccl: " NCCL " cannot be opened (%s); install it, let LD_LIBRARY_PATH name "
            "its folder, or " TR__NCCL_INSTEAD, dlerror());
#define LOOK_UP(name)                                                                                           \
    l->name = (__typeof__(l->name))dlsym(library, #name);                                                       \
    if (!l->name)                                                                                               \
        return tr__fail(TR_UNSUPPORTED, "nccl: " NCCL " has no " #name "(); install NCCL 2.14 or newer, or "    \
            TR__NCCL_INSTEAD);
    TR__NCCL_FUNCTIONS(LOOK_UP)
    l->ncclCommSplit = (__typeof__(l->ncclCommSplit))dlsym(library, "ncclCommSplit");
    return TR_OK;
}

tr_status tr__nccl_open(const tr__nccl_library **library)
{
    TR__LOCKED(&nccl.lock);
    *library = &nccl.library;
    if (!nccl.open) TR__TRY(look_up(&nccl.library));
    nccl.open = true;
    return TR_OK;
}

tr_status tr__nccl_fail(const tr__nccl_library *l, ncclResult_t result, ncclComm_t comm, const char *what)
{
    const char *more = comm ? l->ncclGetLastError(comm) : NULL;
    tr_status status = result == ncclRemoteError ? TR_PEER : result == ncclInvalidUsage ? TR_STATE : TR_IO;
    return tr__fail(status, "%s failed: %s%s%s", what, l->ncclGetErrorString(result), more && *more ? ": " : "",
        more ? more : "");
}
