/*
 * The double of the runtime: capturing streams into graphs, and running those.
 */
#include "cudart_state.h"

using std::shared_ptr;

namespace tr_emulator {

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

cudaError_t refuse_while_capturing()
{
    cudaError_t error = cudaSuccess;
    if (thread_mode == cudaStreamCaptureModeRelaxed) return error;
    for (tr_graph *g : state().capturing) {
        if (g->mode == cudaStreamCaptureModeRelaxed) continue;
        if (g->mode == cudaStreamCaptureModeThreadLocal && g->thread != std::this_thread::get_id()) continue;
        g->invalid = true;
        error = cudaErrorStreamCaptureUnsupported;
    }
    return error;
}

} /* namespace tr_emulator */

using namespace tr_emulator;

/* Runs the nodes, those of a lane in order, waiting as they did when they were captured, in an order that is drawn
 * anew. */
static cudaError_t replay(const tr_graph &g)
{
    std::vector<std::deque<queued>> lanes;
    std::set<moment *> done;
    for (const graph_node &n : g.nodes) {
        if (n.lane >= lanes.size()) lanes.resize(n.lane + 1);
        lanes[n.lane].push_back(n.what);
    }
    for (size_t left = g.nodes.size(); left;) {
        auto &lane = lanes[tr_emulator::random() % lanes.size()];
        cudaError_t error = cudaSuccess;
        if (lane.empty() || (lane.front().waits && !done.count(lane.front().waits.get()))) continue;
        if (!advance(lane.front(), &error)) {
            std::this_thread::sleep_for(std::chrono::microseconds(50));
            continue;
        }
        if (error != cudaSuccess) return error;
        if (lane.front().records) done.insert(lane.front().records.get());
        lane.pop_front();
        left--;
    }
    return cudaSuccess;
}

static std::map<tr_graph *, shared_ptr<tr_graph>> graphs;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    return call("cudaStreamBeginCapture", cudaErrorStreamCaptureUnsupported, [&](held_lock &) {
        tr_stream *s = stream_of(stream);
        if (!s) return cudaErrorInvalidResourceHandle;
        if (!stream) return cudaErrorStreamCaptureUnsupported;
        if (s->capture) return cudaErrorInvalidValue;
        s->capture = std::make_shared<tr_graph>();
        s->capture->lanes = {s};
        s->capture->mode = mode;
        s->capture->thread = std::this_thread::get_id();
        s->captured = s->joined = 0;
        state().capturing.insert(s->capture.get());
        return cudaSuccess;
    });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    *graph = nullptr;
    if (call_fails("cudaStreamEndCapture")) return note(cudaErrorStreamCaptureInvalidated);
    held_lock held(state().lock);
    tr_stream *s = stream_of(stream);
    if (!s) return note(cudaErrorInvalidResourceHandle);
    if (!s->capture || s->capture->lanes[0] != s) return note(cudaErrorStreamCaptureUnmatched);
    const shared_ptr<tr_graph> g = s->capture;
    bool joined = true;
    for (tr_stream *lane : g->lanes) {
        if (lane != s && lane->captured > lane->joined) joined = false;
        lane->capture = nullptr;
    }
    g->lanes.clear();
    state().capturing.erase(g.get());
    if (g->invalid) return note(cudaErrorStreamCaptureInvalidated);
    if (!joined) return note(cudaErrorStreamCaptureUnjoined);
    graphs[g.get()] = g;
    *graph = g.get();
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status)
{
    held_lock held(state().lock);
    const tr_stream *s = stream_of(stream);
    if (!s) return note(cudaErrorInvalidResourceHandle);
    *status = !s->capture ? cudaStreamCaptureStatusNone
                          : s->capture->invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode)
{
    std::swap(*mode, thread_mode);
    return cudaSuccess;
}

/* Only how many there are. */
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *, size_t *count)
{
    held_lock held(state().lock);
    if (!graphs.count(graph)) return note(cudaErrorInvalidValue);
    *count = graph->nodes.size();
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    return call("cudaGraphInstantiate", cudaErrorMemoryAllocation, [&](held_lock &) {
        if (!graphs.count(graph)) return cudaErrorInvalidValue;
        *exec = new tr_graph_exec{graphs[graph]};
        return cudaSuccess;
    });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    unsigned reach = 0;
    for (const graph_node &n : exec->graph->nodes) reach |= n.what.op.devices;
    return enqueue(stream, {"cudaGraphLaunch", [graph = exec->graph] { return replay(*graph); }, nullptr, reach});
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    held_lock held(state().lock);
    return graphs.erase(graph) ? cudaSuccess : note(cudaErrorInvalidValue);
}
