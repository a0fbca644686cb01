/*
 * The double of the runtime: capturing streams into graphs, and running those.
 */
#include "cudart.h"

using std::shared_ptr;

struct tr_graph {
    shared_ptr<tr_emulator::captured_graph> captured;
};
struct tr_graph_exec : tr_graph {};

namespace tr_emulator {

/* Whether the calling thread may do in a capture what would break it. */
static thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

cudaError_t refuse_while_capturing()
{
    cudaError_t error = cudaSuccess;
    if (thread_mode == cudaStreamCaptureModeRelaxed) return error;
    for (captured_graph *g : state().capturing) {
        if (g->mode == cudaStreamCaptureModeRelaxed) continue;
        if (g->mode == cudaStreamCaptureModeThreadLocal && g->thread != std::this_thread::get_id()) continue;
        g->invalid = true;
        error = cudaErrorStreamCaptureUnsupported;
    }
    return error;
}

bool may_allocate()
{
    held_lock held(state().lock);
    return refuse_while_capturing() == cudaSuccess;
}

/* Runs the nodes, those of a lane in order, waiting as they did when they were captured, in an order that is drawn
 * anew. */
static cudaError_t replay(const captured_graph &g)
{
    std::vector<std::deque<const operation *>> lanes;
    std::set<moment *> done;
    for (const auto &[what, lane] : g.nodes) {
        if (lane >= lanes.size()) lanes.resize(lane + 1);
        lanes[lane].push_back(&what);
    }
    for (size_t left = g.nodes.size(); left;) {
        auto &lane = lanes[tr_emulator::random() % lanes.size()];
        if (lane.empty() || (lane.front()->waits && !done.count(lane.front()->waits.get()))) continue;
        const cudaError_t error = lane.front()->run ? lane.front()->run() : cudaSuccess;
        if (error == cudaErrorNotReady) {
            std::this_thread::sleep_for(std::chrono::microseconds(50));
            continue;
        }
        CHECK(error);
        done.insert(lane.front()->records.get());
        lane.pop_front();
        left--;
    }
    return cudaSuccess;
}

} /* namespace tr_emulator */

using namespace tr_emulator;

DOUBLE(cudaStreamBeginCapture, (cudaStream_t stream, cudaStreamCaptureMode mode), cudaErrorStreamCaptureUnsupported, {
    tr_stream *s = stream_of(stream);
    if (!s) return cudaErrorInvalidResourceHandle;
    if (!stream) return cudaErrorStreamCaptureUnsupported;
    if (s->capture) return cudaErrorInvalidValue;
    s->capture.reset(new captured_graph{{}, {s}, mode, std::this_thread::get_id()});
    s->captured = s->joined = 0;
    state().capturing.insert(s->capture.get());
    return cudaSuccess;
})

DOUBLE_ALWAYS(cudaStreamEndCapture, (cudaStream_t stream, cudaGraph_t *graph), cudaErrorStreamCaptureInvalidated, {
    *graph = nullptr;
    tr_stream *s = stream_of(stream);
    if (!s) return cudaErrorInvalidResourceHandle;
    if (!s->capture || s->capture->lanes[0] != s) return cudaErrorStreamCaptureUnmatched;
    const shared_ptr<captured_graph> g = s->capture;
    bool joined = true;
    for (tr_stream *lane : g->lanes) {
        if (lane != s && lane->captured > lane->joined) joined = false;
        lane->capture = nullptr;
    }
    g->lanes.clear();
    state().capturing.erase(g.get());
    if (g->invalid) return cudaErrorStreamCaptureInvalidated;
    if (!joined) return cudaErrorStreamCaptureUnjoined;
    *graph = new tr_graph{g};
    return cudaSuccess;
})

DOUBLE_ALWAYS(cudaStreamIsCapturing, (cudaStream_t stream, cudaStreamCaptureStatus *status), cudaErrorUnknown, {
    const tr_stream *s = stream_of(stream);
    if (!s) return cudaErrorInvalidResourceHandle;
    *status = !s->capture            ? cudaStreamCaptureStatusNone
              : s->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                    : cudaStreamCaptureStatusActive;
    return cudaSuccess;
})

DOUBLE_ALWAYS(cudaThreadExchangeStreamCaptureMode, (cudaStreamCaptureMode *mode), cudaErrorUnknown, {
    std::swap(*mode, thread_mode);
    return cudaSuccess;
})

DOUBLE(cudaGraphInstantiate, (cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long), cudaErrorMemoryAllocation, {
    *exec = new tr_graph_exec{{graph->captured}};
    return cudaSuccess;
})

DOUBLE(cudaGraphLaunch, (cudaGraphExec_t exec, cudaStream_t stream), cudaErrorUnknown, {
    tr_stream *s = stream_of(stream);
    unsigned reach = 0;
    for (const auto &node : exec->captured->nodes) reach |= node.what.devices;
    const auto run = [graph = exec->captured] { return replay(*graph); };
    return s ? put(held, s, {"cudaGraphLaunch", run, reach}) : cudaErrorInvalidResourceHandle;
})

DOUBLE_ALWAYS(cudaGraphExecDestroy, (cudaGraphExec_t exec), cudaErrorUnknown, {
    delete exec;
    return cudaSuccess;
})

DOUBLE_ALWAYS(cudaGraphDestroy, (cudaGraph_t graph), cudaErrorUnknown, {
    delete graph;
    return cudaSuccess;
})
