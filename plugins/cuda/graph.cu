/*
 * Whole steps as CUDA graphs. The thread that captures enqueues on a stream of the graph's instead of the device's
 * default one; its memory comes from blocks that are the graph's until this goes (memory.cu), so addresses stay what
 * they are.
 *
 * Launches are told what changes by one copy before them: live values, of all kernels that have some, lie side by
 * side in the host's memory and in a block of the device's. The copy goes by one of a few pinned blocks in turn,
 * which is written to again when the device has read it.
 */
#include "graph.h"

#include "device.h"

#include <string.h>
#include <vector>

namespace {

constexpr int TURNS = 4;                  /* launches that may be under way */
constexpr size_t LIVE_BYTES = 256 << 10;
constexpr size_t LIVE_ALIGNMENT = 16;

struct live_value {
    size_t at;
    live_maker make;
};

struct turn {
    void *pinned;
    cudaEvent_t read; /* by the device */
};

} // namespace

struct tr_device_graph {
    int index;
    cudaStream_t stream;  /* where it is captured; its blocks of memory have its name */
    cudaGraphExec_t exec; /* NULL: it is captured still */
    std::vector<std::shared_ptr<void>> kept;
    std::vector<live_value> values;
    std::vector<char> bytes; /* of the values, as the next launch has them */
    void *block;             /* on the device */
    turn turns[TURNS];
    unsigned next;
};

static thread_local tr_device_graph *capturing;

cudaStream_t graph_stream(int index)
{
    return capturing && capturing->index == index ? capturing->stream : nullptr;
}

/* ---- Capturing --------------------------------------------------------------------------------------------------- */

static tr_status make_graph(int index, tr_device_graph *g)
{
    TRY(check_cuda(cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking), "making a stream to capture on"));
    capturing = g;
    TRY(memory_allocate(index, g->stream, LIVE_BYTES, &g->block));
    for (turn &t : g->turns) {
        TRY(memory_host_allocate(LIVE_BYTES, &t.pinned));
        TRY(check_cuda(cudaEventCreateWithFlags(&t.read, cudaEventDisableTiming), "making an event"));
    }
    return TR_OK;
}

tr_status graph_capture_begin(int index, tr_device_graph **out)
{
    if (!memory_caches()) return TR_DECLINED; /* blocks would be waited for when they are released */
    TRY(device_enter(index));
    tr_device_graph *g = new (std::nothrow) tr_device_graph();
    if (!g) return host->fail(TR_NO_MEMORY, "cuda:%d: no memory for a graph", index);
    g->index = index;
    tr_status status = make_graph(index, g);
    if (status == TR_OK)
        status = check_cuda(cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeThreadLocal), "beginning a capture");
    if (status != TR_OK) {
        graph_free(index, g);
        return status;
    }
    *out = g;
    return TR_OK;
}

tr_status graph_capture_end(int index, tr_device_graph *g)
{
    cudaGraph_t graph = nullptr;
    capturing = nullptr;
    TRY(device_enter(index));
    TRY(check_cuda(cudaStreamEndCapture(g->stream, &graph), "ending a capture"));
    tr_status status = check_cuda(cudaGraphInstantiate(&g->exec, graph, 0), "making a graph");
    (void)cudaGraphDestroy(graph);
    return status;
}

tr_status graph_live(const job &j, size_t bytes, live_maker make, void **out)
{
    tr_device_graph *g = capturing;
    if (!g || j.stream != g->stream)
        return host->fail(TR_INTERNAL, "cuda:%d: %s is captured on no graph's stream", j.call.index, j.call.op);
    size_t at = parts_of(g->bytes.size(), LIVE_ALIGNMENT) * LIVE_ALIGNMENT;
    if (at + bytes > LIVE_BYTES)
        return host->fail(TR_UNSUPPORTED,
                          "cuda:%d: a graph has room for %zu KB of what changes from run to run: it is used up after "
                          "%zu kernels",
                          j.call.index, LIVE_BYTES >> 10, g->values.size());
    try {
        g->bytes.resize(at + bytes);
        make(j.call.attrs, &g->bytes[at]);
        g->values.push_back({at, std::move(make)});
    } catch (const std::bad_alloc &) {
        return host->fail(TR_NO_MEMORY, "cuda:%d: no memory for a graph", j.call.index);
    }
    *j.call.live = (int)g->values.size() - 1;
    *out = (char *)g->block + at;
    return TR_OK;
}

void graph_keep(int64_t index, std::shared_ptr<void> used)
{
    if (graph_stream((int)index)) capturing->kept.push_back(std::move(used));
}

/* ---- Launching --------------------------------------------------------------------------------------------------- */

tr_status graph_set(int index, tr_device_graph *g, int number, const void *attrs)
{
    if (number < 0 || (size_t)number >= g->values.size())
        return host->fail(TR_INTERNAL, "cuda:%d: a graph has no kernel %d that changes", index, number);
    const live_value &value = g->values[(size_t)number];
    value.make(attrs, &g->bytes[value.at]);
    return TR_OK;
}

static tr_status send_values(tr_device_graph *g, cudaStream_t stream)
{
    turn &t = g->turns[g->next++ % TURNS];
    TRY(check_cuda(cudaEventSynchronize(t.read), "waiting for an earlier launch"));
    memcpy(t.pinned, g->bytes.data(), g->bytes.size());
    TRY(check_cuda(cudaMemcpyAsync(g->block, t.pinned, g->bytes.size(), cudaMemcpyHostToDevice, stream),
              "a copy to the device"));
    return check_cuda(cudaEventRecord(t.read, stream), "recording an event");
}

tr_status graph_launch(int index, tr_device_graph *g)
{
    TRY(device_enter(index));
    cudaStream_t stream = device_stream(index, nullptr);
    if (!g->bytes.empty()) TRY(send_values(g, stream));
    return check_cuda(cudaGraphLaunch(g->exec, stream), "launching a graph");
}

void graph_free(int index, tr_device_graph *g)
{
    cudaGraph_t graph = nullptr;
    if (capturing == g) capturing = nullptr;
    if (device_enter(index) == TR_OK && g->stream) {
        cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
        (void)cudaStreamIsCapturing(g->stream, &state);
        if (state != cudaStreamCaptureStatusNone) (void)cudaStreamEndCapture(g->stream, &graph);
        if (graph) (void)cudaGraphDestroy(graph);
        (void)cudaStreamSynchronize(device_stream(index, nullptr));
        if (g->exec) (void)cudaGraphExecDestroy(g->exec);
        for (turn &t : g->turns) {
            if (t.read) (void)cudaEventDestroy(t.read);
            if (t.pinned) memory_host_release(t.pinned, LIVE_BYTES);
        }
        if (g->block) memory_release(index, g->stream, g->block);
        memory_move(index, g->stream, device_stream(index, nullptr));
        (void)cudaStreamDestroy(g->stream);
        (void)cudaGetLastError(); /* of a capture that failed */
    }
    delete g;
}
