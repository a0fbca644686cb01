/*
 * Graphs that this thread captures, and what their kernels read on the device because it is another one in each launch.
 */
#ifndef TR_CUDA_GRAPH_H
#define TR_CUDA_GRAPH_H

#include "kernel.h"

#include <functional>
#include <memory>
#include <new>
#include <type_traits>

/* The stream on which the calling thread captures what it enqueues on the device's default one; NULL: it captures
 * nothing there. */
cudaStream_t graph_stream(int index);

tr_status graph_capture_begin(int index, tr_device_graph **out);
tr_status graph_capture_end(int index, tr_device_graph *graph);
tr_status graph_set(int index, tr_device_graph *graph, int live, const void *attrs);
tr_status graph_launch(int index, tr_device_graph *graph);
void graph_free(int index, tr_device_graph *graph);

/* Room for bytes in the graph that the thread captures, at the address *out of the device; `make` writes there, in
 * host memory, what belongs to some attributes. */
typedef std::function<void(const void *attrs, void *to)> live_maker;
tr_status graph_live(const job &j, size_t bytes, live_maker make, void **out);

/* Keeps what kernels that the calling thread captures run from, as a library has it, for as long as the graph lives. */
void graph_keep(int64_t index, std::shared_ptr<void> used);

/*
 * For a kernel whose attributes change from launch to launch. make(attrs) is what it takes of them, a T; when the
 * call is captured, *out is where the kernel finds the T of its launch, else NULL: it has the one that it was given.
 */
template <class Attributes, class T, class Make> tr_status live(const job &j, Make make, const T **out)
{
    static_assert(std::is_trivially_copyable<T>::value, "it is copied to the device as bytes");
    *out = nullptr;
    if (j.call.size <= offsetof(tr_kernel_call, live) || !j.call.live) return TR_OK;
    auto write = [make](const void *attrs, void *to) { new (to) T(make(*(const Attributes *)attrs)); };
    return graph_live(j, sizeof(T), write, (void **)out);
}

#endif
