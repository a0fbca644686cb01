/*
 * A double of libcudart, as far as the nccl backend asks for it: DOUBLE_CUDA="ERROR COUNT DRIVER RUNTIME" says what
 * cudaGetDeviceCount() returns and counts, and the versions of the driver and of this library. Nothing else works.
 */
#include <stdio.h>
#include <stdlib.h>

typedef struct machine {
    int error, count, driver, runtime;
} machine;

static machine told(void)
{
    machine m = {0};
    const char *text = getenv("DOUBLE_CUDA");
    if (!text || sscanf(text, "%d %d %d %d", &m.error, &m.count, &m.driver, &m.runtime) != 4) m.error = 999;
    return m;
}

int cudaGetDeviceCount(int *count)
{
    *count = told().count;
    return told().error;
}

int cudaDriverGetVersion(int *version)
{
    *version = told().driver;
    return 0;
}

int cudaRuntimeGetVersion(int *version)
{
    *version = told().runtime;
    return 0;
}

const char *cudaGetErrorString(int error)
{
    static _Thread_local char text[32];
    snprintf(text, sizeof text, "error %d", error);
    return text;
}

#define FAILS(name) \
    int name(void) { return 1; }
FAILS(cudaSetDevice)
FAILS(cudaStreamCreateWithFlags)
FAILS(cudaStreamDestroy)
FAILS(cudaEventCreateWithFlags)
FAILS(cudaEventDestroy)
FAILS(cudaEventRecord)
FAILS(cudaEventQuery)
FAILS(cudaStreamWaitEvent)
FAILS(cudaMalloc)
FAILS(cudaFree)
FAILS(cudaMemcpyAsync)
FAILS(cudaPointerGetAttributes)
