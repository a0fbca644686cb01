/* The devices of this process: streams, memory, and the table of functions that the library asks (trireme/device.h). */
#ifndef TRIREME_CUDA_DEVICE_H
#define TRIREME_CUDA_DEVICE_H

#include "portable.h"

#include <trireme/device.h>

extern const tr_device_host *host;

struct fault;

constexpr int MOST_DEVICES = 64;

/* Makes the device current for the calling thread. What a kernel needs of it is made when it is first used. */
tr_status device_enter(int index);
/* The stream behind the library's; NULL: the device's default one, which is ordered with no other, unlike CUDA's, or that of
 * the graph which this thread captures. */
cudaStream_t device_stream(int index, tr_device_stream *stream);
/* The failure that kernels have noted since the last call, once; TR_OK: none. After a wait for the device. */
tr_status device_fault(int index);

/* While it lives the calling thread may do what would break a capture of its: allocate, free, load what a library has.
 * None of that is part of a graph. */
class outside_captures {
public:
    outside_captures() { (void)cudaThreadExchangeStreamCaptureMode(&mode); }
    ~outside_captures() { (void)cudaThreadExchangeStreamCaptureMode(&mode); }
    outside_captures(const outside_captures &) = delete;
    outside_captures &operator=(const outside_captures &) = delete;

private:
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
};

/* ---- Memory (memory.cu): kept for later, in the order of streams. What is released on a stream may be used again on
 * it at once, as what comes next runs after what was there. */

tr_status memory_allocate(int index, cudaStream_t stream, size_t bytes, void **out);
void memory_release(int index, cudaStream_t stream, void *memory);
/* The stream is about to go, and nothing runs on it: what was released there serves another. When a graph was captured there,
 * the memory that was the graph's own is so no more. */
void memory_move(int index, cudaStream_t from, cudaStream_t to);
/* Is anything kept for later? */
bool memory_caches(void);
void memory_trim(int index);
tr_status memory_statistics(int index, tr_device_memory *out);
void memory_reset_peak(int index);
/* Pinned host memory. */
tr_status memory_host_allocate(size_t bytes, void **out);
void memory_host_release(void *memory, size_t bytes);

#endif
