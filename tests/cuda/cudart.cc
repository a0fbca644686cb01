/*
 * A double of CUDA's runtime. A stream is a queue that nothing drains until the host waits for something; then one
 * operation after another runs, of any stream whose next one may, as the seed chooses. So what no event orders comes in the
 * wrong order sooner or later. Several threads of the host may wait at once, and each runs operations.
 */
#include "cudart.h"
#include "cuda_emulator.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <set>
#include <thread>
#include <vector>

using namespace tr_emulator;
using std::shared_ptr;
typedef std::unique_lock<std::mutex> held_lock;

/* ---- State ------------------------------------------------------------------------------------------------------- */

/* One recording of an event. */
struct moment {
    bool done = false;
    std::chrono::steady_clock::time_point time;
};

struct tr_event {
    int device;
    bool timed;
    shared_ptr<moment> latest;       /* NULL: it was never recorded */
    tr_stream *captured = nullptr;   /* recorded there while that was being captured, after so many operations */
    size_t captured_at = 0;
};

struct queued {
    operation op;
    shared_ptr<moment> records, waits;
    uint64_t number;                 /* over all streams */
    poll_function poll;              /* of an operation that has started */
};

/* A captured operation; `lane` is its stream. */
struct graph_node {
    queued what;
    size_t lane;
};

struct tr_graph {
    std::vector<graph_node> nodes;
    std::vector<tr_stream *> lanes;  /* while it is captured; the first one is where that began */
    cudaStreamCaptureMode mode;
    std::thread::id thread;
    bool invalid = false;
};

struct tr_graph_exec {
    shared_ptr<tr_graph> graph;
};

struct tr_stream {
    int device;
    bool blocking;                   /* in order with the default stream */
    bool busy = false;               /* a thread runs the first operation */
    bool destroyed = false;
    std::deque<queued> queue = {};
    shared_ptr<tr_graph> capture = nullptr;
    size_t captured = 0, joined = 0; /* operations; of them, those that another stream waits for */
};

struct device_state {
    tr_stream null{0, true};
    cudaError_t failure = cudaSuccess;
    std::string text;
    unsigned peers = 0;
};

namespace {

enum { LATE = 256 };                 /* operations on a stream that wait for the host, at most */

struct runtime_state {
    std::mutex lock;
    std::condition_variable changed;
    device_state devices[DEVICES];
    int count = 2;
    std::set<tr_stream *> streams;   /* those of the program */
    std::set<tr_event *> events;
    std::set<tr_graph *> capturing;
    std::map<const void *, size_t> dynamic_shared; /* of kernels that may have more than 48 KiB */
    uint64_t number = 0;
    std::map<std::string, int> fails;
    std::deque<std::string> texts;   /* what cudaGetErrorString() has returned */

    runtime_state()
    {
        for (int d = 0; d < DEVICES; d++) devices[d].null.device = d;
        const char *text = getenv("CUDA_EMULATOR");
        for (std::string word, rest = text ? text : ""; !rest.empty();) {
            const size_t space = rest.find(' ');
            word = rest.substr(0, space);
            rest = space == std::string::npos ? "" : rest.substr(space + 1);
            const std::string key = word.substr(0, word.find('=')), value = word.substr(word.find('=') + 1);
            if (key == "seed") set_seed(strtoull(value.c_str(), nullptr, 10));
            if (key == "devices") count = std::min(static_cast<int>(DEVICES), atoi(value.c_str()));
            if (key == "memory_mb") set_memory_limit(strtoull(value.c_str(), nullptr, 10) << 20);
            if (key == "fail") fails[value.substr(0, value.find(':'))] = atoi(value.c_str() + value.find(':') + 1);
        }
    }
};

runtime_state &state()
{
    static auto *s = new runtime_state; /* the end of the process finds it whole */
    return *s;
}

thread_local int current = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local std::string failure_text; /* of the operation that this thread runs */
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

cudaError_t note(cudaError_t error)
{
    if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
    return error;
}

/* A call: may fail on request, fails for good when the device has failed. */
template <typename F>
cudaError_t call(const char *name, cudaError_t planned, F body)
{
    if (call_fails(name)) return note(planned);
    held_lock held(state().lock);
    if (state().count == 0) return note(cudaErrorNoDevice);
    cudaError_t error = state().devices[current].failure;
    if (error == cudaSuccess) error = body(held);
    return note(error);
}

tr_stream *stream_of(cudaStream_t stream)
{
    if (!stream) return &state().devices[current].null;
    return state().streams.count(stream) && !stream->destroyed ? stream : nullptr;
}

/* ---- Running what is queued -------------------------------------------------------------------------------------- */

bool runnable(const tr_stream *s)
{
    if (s->busy || s->queue.empty()) return false;
    const queued &first = s->queue.front();
    if (first.waits && !first.waits->done) return false;
    /* What is on the default stream and what is on others that block runs in the order in which it was enqueued. */
    const tr_stream *null = &state().devices[s->device].null;
    if (!s->blocking) return true;
    if (s != null) return null->queue.empty() || null->queue.front().number > first.number;
    for (const tr_stream *other : state().streams)
        if (other->device == s->device && other->blocking && !other->queue.empty() &&
            other->queue.front().number < first.number) return false;
    return true;
}

/* Runs the operation, or a part of it. false: it has not ended. */
bool advance(queued &q, cudaError_t *error)
{
    *error = cudaSuccess;
    if (q.op.run) *error = q.op.run();
    if (!q.op.start) return true;
    if (!q.poll) q.poll = q.op.start();
    return q.poll(error);
}

void finish(tr_stream *s)
{
    queued &first = s->queue.front();
    if (first.records) {
        first.records->time = std::chrono::steady_clock::now();
        first.records->done = true;
    }
    s->queue.pop_front();
    if (s->queue.empty() && s->destroyed) {
        state().streams.erase(s);
        delete s;
    }
    state().changed.notify_all();
}

/* Runs the first operation of a stream. false: it has not ended. */
bool run_first(held_lock &held, tr_stream *s)
{
    device_state &device = state().devices[s->device];
    queued &first = s->queue.front();
    cudaError_t error = cudaSuccess;
    bool ended = true;
    if (device.failure == cudaSuccess && (first.op.run || first.op.start)) {
        const unsigned reach = 1u << s->device | device.peers | first.op.devices;
        const int before = current;
        s->busy = true;
        open_memory(reach);
        held.unlock();
        current = s->device;
        failure_text.clear();
        ended = advance(first, &error);
        current = before;
        held.lock();
        leave_memory(reach);
        s->busy = false;
    }
    if (error != cudaSuccess && device.failure == cudaSuccess) {
        device.failure = error;
        device.text = failure_text;
    }
    if (ended) finish(s);
    return ended;
}

/* One operation of a stream that the seed chooses; false: none could end. */
bool step(held_lock &held)
{
    std::vector<tr_stream *> able;
    for (tr_stream *s : state().streams)
        if (runnable(s)) able.push_back(s);
    for (int d = 0; d < state().count; d++)
        if (runnable(&state().devices[d].null)) able.push_back(&state().devices[d].null);
    std::sort(able.begin(), able.end(), [](tr_stream *a, tr_stream *b) {
        return a->queue.front().number < b->queue.front().number; /* addresses differ from run to run */
    });
    while (!able.empty()) {
        const size_t i = tr_emulator::random() % able.size();
        tr_stream *s = able[i];
        able.erase(able.begin() + static_cast<ptrdiff_t>(i));
        if (state().streams.count(s) == 0 && s != &state().devices[s->device].null) continue;
        if (runnable(s) && run_first(held, s)) return true;
    }
    return false;
}

/* Until what this thread waits for has come. Another thread, or another process, may have to bring it. */
template <typename F>
cudaError_t drain(held_lock &held, F reached)
{
    auto idle_since = std::chrono::steady_clock::now();
    cudaError_t error = cudaSuccess;
    while (!reached() && error == cudaSuccess) {
        if (step(held)) {
            idle_since = std::chrono::steady_clock::now();
            continue;
        }
        bool others = false;
        for (const tr_stream *s : state().streams) others |= s->busy || (!s->queue.empty() && s->queue.front().poll);
        close_idle_memory();
        state().changed.wait_for(held, std::chrono::milliseconds(1));
        if (!others && std::chrono::steady_clock::now() - idle_since > std::chrono::seconds(20))
            error = cudaErrorLaunchTimeout;
    }
    close_idle_memory();
    return error;
}

cudaError_t wait_for(held_lock &held, tr_stream *s)
{
    const uint64_t until = state().number;
    tr_stream *const null = &state().devices[s->device].null;
    const int device = s->device;
    cudaError_t error = drain(held, [&] {
        const bool there = s == null || state().streams.count(s);
        return !there || s->queue.empty() || s->queue.front().number > until;
    });
    return error != cudaSuccess ? error : state().devices[device].failure;
}

cudaError_t wait_for_device(held_lock &held, int device)
{
    cudaError_t error = drain(held, [&] {
        for (const tr_stream *s : state().streams)
            if (s->device == device && !s->queue.empty()) return false;
        return state().devices[device].null.queue.empty();
    });
    return error != cudaSuccess ? error : state().devices[device].failure;
}

/* With the lock held. */
cudaError_t put(held_lock &held, tr_stream *s, queued q)
{
    if (s->capture) {
        tr_graph &g = *s->capture;
        const auto lane = std::find(g.lanes.begin(), g.lanes.end(), s) - g.lanes.begin();
        s->captured++;
        g.nodes.push_back({std::move(q), static_cast<size_t>(lane)});
        return g.invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    }
    q.number = ++state().number;
    s->queue.push_back(std::move(q));
    while (s->queue.size() > LATE && step(held)) continue;
    close_idle_memory();
    return cudaSuccess;
}

/* Calls that may not be made while this thread captures, or while any does that asked for it: the capture fails. */
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

/* Runs the nodes, those of a lane in order, waiting as they did when they were captured, in an order that is drawn anew. */
cudaError_t replay(const tr_graph &g)
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

} /* namespace */

namespace tr_emulator {

std::mutex &runtime_lock() { return state().lock; }
int current_device() { return current; }
int device_count() { return state().count; }
void set_devices(int count) { state().count = count; }
void describe_failure(const std::string &text) { failure_text = text; }

void fail_call(const char *function, int nth)
{
    std::lock_guard<std::mutex> held(state().lock);
    state().fails[function] = nth;
}

bool call_fails(const char *function)
{
    std::lock_guard<std::mutex> held(state().lock);
    bool fails = false;
    for (const char *name : {function, "*"}) {
        auto planned = state().fails.find(name);
        if (planned != state().fails.end() && planned->second > 0 && --planned->second == 0) fails = true;
    }
    return fails;
}

std::string take_failure(int device)
{
    std::lock_guard<std::mutex> held(state().lock);
    device_state &d = state().devices[device];
    d.failure = last_error = cudaSuccess;
    std::string text;
    text.swap(d.text);
    return text;
}

cudaError_t enqueue(cudaStream_t stream, operation op)
{
    return call(op.name, cudaErrorUnknown, [&](held_lock &held) {
        tr_stream *s = stream_of(stream);
        return s ? put(held, s, {std::move(op), nullptr, nullptr, 0, nullptr}) : cudaErrorInvalidResourceHandle;
    });
}

bool is_capturing(cudaStream_t stream)
{
    std::lock_guard<std::mutex> held(state().lock);
    const tr_stream *s = stream_of(stream);
    return s && s->capture;
}

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

enum : size_t { SHARED_USUAL = 48 << 10, SHARED_MOST = 227 << 10, PROCESSORS = 4, THREADS_PER_PROCESSOR = 2048 };

cudaError_t set_kernel_attribute(const void *kernel, cudaFuncAttribute attribute, int value)
{
    return call("cudaFuncSetAttribute", cudaErrorInvalidValue, [&](held_lock &) {
        if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
        if (value < 0 || static_cast<size_t>(value) > SHARED_MOST) return cudaErrorInvalidValue;
        state().dynamic_shared[kernel] = static_cast<size_t>(value);
        return cudaSuccess;
    });
}

cudaError_t occupancy(int *blocks, int threads, size_t shared)
{
    if (threads < 1 || threads > 1024) return cudaErrorInvalidValue;
    *blocks = static_cast<int>(std::min({THREADS_PER_PROCESSOR / static_cast<size_t>(threads),
        (SHARED_MOST + 1024) / (shared + 1024), size_t(32)}));
    return cudaSuccess;
}

} /* namespace tr_emulator */

cudaError_t tr_emulator_launch(const kernel_launch &launch, cudaStream_t stream)
{
    return call("cudaLaunchKernel", cudaErrorLaunchFailure, [&](held_lock &held) {
        tr_stream *s = stream_of(stream);
        const dim3 g = launch.grid, b = launch.block;
        const uint64_t threads = uint64_t(b.x) * b.y * b.z, blocks = uint64_t(g.x) * g.y * g.z;
        auto most = state().dynamic_shared.find(launch.function);
        int resident = 0;
        if (!s || s->device != current) return cudaErrorInvalidResourceHandle;
        if (threads == 0 || threads > 1024 || b.z > 64 || blocks == 0 || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535)
            return cudaErrorInvalidConfiguration;
        if (launch.shared > std::max(+SHARED_USUAL, most == state().dynamic_shared.end() ? 0 : most->second))
            return cudaErrorInvalidValue;
        occupancy(&resident, static_cast<int>(threads), launch.shared);
        if (launch.cooperative && blocks > static_cast<uint64_t>(resident) * PROCESSORS)
            return cudaErrorCooperativeLaunchTooLarge;
        operation op = {launch.kernel, [launch] {
            const char *error = tr_emulator::run(launch);
            if (error) describe_failure(error);
            return error ? cudaErrorLaunchFailure : cudaSuccess;
        }, nullptr};
        return put(held, s, {std::move(op), nullptr, nullptr, 0, nullptr});
    });
}

/* ---- Devices and errors ------------------------------------------------------------------------------------------ */

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 0;
    if (call_fails("cudaGetDeviceCount")) return note(cudaErrorInitializationError);
    *count = state().count;
    return *count ? cudaSuccess : note(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device)
{
    if (call_fails("cudaSetDevice") || device < 0 || device >= state().count) return note(cudaErrorInvalidDevice);
    current = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    if (call_fails("cudaGetDeviceProperties") || device < 0 || device >= state().count) return note(cudaErrorInvalidDevice);
    *p = {};
    snprintf(p->name, sizeof p->name, "Emulated GPU");
    p->totalGlobalMem = memory_limit();
    p->sharedMemPerBlock = SHARED_USUAL;
    p->sharedMemPerBlockOptin = SHARED_MOST;
    p->sharedMemPerMultiprocessor = SHARED_MOST + 1024;
    p->regsPerBlock = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = THREADS_PER_PROCESSOR;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->major = 9;
    p->multiProcessorCount = PROCESSORS;
    p->l2CacheSize = 50 << 20;
    p->memoryBusWidth = 5120;
    p->asyncEngineCount = 3;
    p->unifiedAddressing = p->concurrentKernels = p->cooperativeLaunch = 1;
    p->pciBusID = device;
    p->uuid[0] = static_cast<unsigned char>(device);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
    cudaDeviceProp p;
    cudaError_t error = cudaGetDeviceProperties(&p, device);
    if (error != cudaSuccess) return error;
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = static_cast<int>(p.sharedMemPerBlock); break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = static_cast<int>(p.sharedMemPerMultiprocessor); break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = static_cast<int>(p.sharedMemPerBlockOptin); break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
    default: return note(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = state().count ? CUDART_VERSION : 0;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaPeekAtLastError(void) { return last_error; }

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
#define NAME(name) case name: return #name;
    NAME(cudaSuccess) NAME(cudaErrorInvalidValue) NAME(cudaErrorMemoryAllocation) NAME(cudaErrorInitializationError)
    NAME(cudaErrorInvalidConfiguration) NAME(cudaErrorInsufficientDriver) NAME(cudaErrorNoDevice)
    NAME(cudaErrorInvalidDevice) NAME(cudaErrorInvalidResourceHandle) NAME(cudaErrorNotReady)
    NAME(cudaErrorIllegalAddress) NAME(cudaErrorLaunchTimeout) NAME(cudaErrorLaunchFailure)
    NAME(cudaErrorStreamCaptureUnsupported) NAME(cudaErrorStreamCaptureInvalidated) NAME(cudaErrorStreamCaptureUnjoined)
#undef NAME
    default: return "cudaError";
    }
}

/* Of a kernel that failed: what the emulator found. */
const char *cudaGetErrorString(cudaError_t error)
{
    held_lock held(state().lock);
    const std::string &text = state().devices[current].text;
    if (error == cudaSuccess || error != state().devices[current].failure || text.empty()) return cudaGetErrorName(error);
    state().texts.push_back(text);
    return state().texts.back().c_str();
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    if (call_fails("cudaDeviceCanAccessPeer") || device < 0 || peer < 0 || device >= state().count || peer >= state().count)
        return note(cudaErrorInvalidDevice);
    *can = device != peer;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned)
{
    return call("cudaDeviceEnablePeerAccess", cudaErrorNotSupported, [&](held_lock &) {
        if (peer < 0 || peer >= state().count || peer == current) return cudaErrorInvalidDevice;
        if (state().devices[current].peers >> peer & 1) return cudaErrorPeerAccessAlreadyEnabled;
        state().devices[current].peers |= 1u << peer;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceSynchronize(void)
{
    return call("cudaDeviceSynchronize", cudaErrorUnknown, [&](held_lock &held) {
        const cudaError_t error = refuse_while_capturing();
        return error != cudaSuccess ? error : wait_for_device(held, current);
    });
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    return call("cudaMalloc", cudaErrorMemoryAllocation, [&](held_lock &) {
        const cudaError_t error = refuse_while_capturing();
        return error != cudaSuccess ? error : allocate_device(memory, bytes, current);
    });
}

cudaError_t cudaFree(void *memory)
{
    return call("cudaFree", cudaErrorInvalidValue, [&](held_lock &held) {
        cudaError_t error = refuse_while_capturing();
        const location at = locate(memory, 0);
        if (error == cudaSuccess && at.device >= 0) error = wait_for_device(held, at.device);
        const cudaError_t freed = free_device(memory);
        return freed != cudaSuccess ? freed : error;
    });
}

cudaError_t cudaMallocAsync(void **memory, size_t bytes, cudaStream_t stream)
{
    return call("cudaMallocAsync", cudaErrorMemoryAllocation, [&](held_lock &) {
        const tr_stream *s = stream_of(stream);
        return s ? allocate_device(memory, bytes, s->device) : cudaErrorInvalidResourceHandle;
    });
}

cudaError_t cudaFreeAsync(void *memory, cudaStream_t stream)
{
    return enqueue(stream, {"cudaFreeAsync", [memory] {
        held_lock held(state().lock);
        return free_device(memory);
    }, nullptr});
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
    return call("cudaMemGetInfo", cudaErrorUnknown, [&](held_lock &) {
        *total = memory_limit();
        *free = *total - device_bytes_used(current);
        return cudaSuccess;
    });
}

namespace {

struct copy_plan {
    void *to;
    const void *from;
    size_t to_pitch, from_pitch, width, height;
};

bool kind_fits(cudaMemcpyKind kind, location to, location from)
{
    const bool to_device = to.kind == where::device, from_device = from.kind == where::device;
    switch (kind) {
    case cudaMemcpyHostToHost: return !to_device && !from_device;
    case cudaMemcpyHostToDevice: return to_device && !from_device;
    case cudaMemcpyDeviceToHost: return !to_device && from_device;
    case cudaMemcpyDeviceToDevice: return to_device && from_device;
    default: return true;
    }
}

/* Pageable host memory is read before the call returns, and is written before it does; pinned memory when the copy runs. */
cudaError_t copy(const char *name, copy_plan p, cudaMemcpyKind kind, cudaStream_t stream, bool wait)
{
    return call(name, cudaErrorInvalidValue, [&](held_lock &held) {
        if (p.width == 0 || p.height == 0) return cudaSuccess;
        const size_t to_bytes = p.to_pitch * (p.height - 1) + p.width, from_bytes = p.from_pitch * (p.height - 1) + p.width;
        const location to = locate(p.to, to_bytes), from = locate(p.from, from_bytes);
        tr_stream *s = stream_of(stream);
        if (!s) return cudaErrorInvalidResourceHandle;
        if (to.kind == where::nowhere || from.kind == where::nowhere || !kind_fits(kind, to, from)) return cudaErrorInvalidValue;
        shared_ptr<std::vector<char>> staged;
        if (from.kind == where::pageable && !s->capture) {
            const auto *bytes = static_cast<const char *>(p.from);
            staged = std::make_shared<std::vector<char>>(bytes, bytes + from_bytes);
        }
        operation op = {name, [=] {
            {
                held_lock again(state().lock);
                if (locate(p.to, to_bytes).kind != to.kind || locate(p.from, from_bytes).kind != from.kind) {
                    describe_failure(std::string(name) + " runs after its memory was freed");
                    return cudaErrorIllegalAddress;
                }
            }
            const char *source = staged ? staged->data() : static_cast<const char *>(p.from);
            for (size_t y = 0; y < p.height; y++)
                memmove(static_cast<char *>(p.to) + y * p.to_pitch, source + y * p.from_pitch, p.width);
            return cudaSuccess;
        }, nullptr};
        if (to.device >= 0) op.devices |= 1u << to.device;
        if (from.device >= 0) op.devices |= 1u << from.device;
        const bool capturing = s->capture != nullptr;
        const cudaError_t error = put(held, s, {std::move(op), nullptr, nullptr, 0, nullptr});
        if (error != cudaSuccess || capturing || !(wait || to.kind == where::pageable)) return error;
        return wait_for(held, s);
    });
}

cudaError_t set_bytes(const char *name, void *memory, int value, size_t bytes, cudaStream_t stream, bool wait)
{
    return call(name, cudaErrorInvalidValue, [&](held_lock &held) {
        const location at = locate(memory, bytes);
        tr_stream *s = stream_of(stream);
        if (!s) return cudaErrorInvalidResourceHandle;
        if (bytes == 0) return cudaSuccess;
        if (at.kind == where::nowhere || at.kind == where::pageable) return cudaErrorInvalidValue;
        operation op = {name, [=] {
            memset(memory, value, bytes);
            return cudaSuccess;
        }, nullptr, at.device >= 0 ? 1u << at.device : 0};
        const cudaError_t error = put(held, s, {std::move(op), nullptr, nullptr, 0, nullptr});
        return error == cudaSuccess && wait ? wait_for(held, s) : error;
    });
}

} /* namespace */

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    return copy("cudaMemcpy", {to, from, bytes, bytes, bytes, 1}, kind, nullptr, true);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream)
{
    return copy("cudaMemcpyAsync", {to, from, bytes, bytes, bytes, 1}, kind, stream, false);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t bytes, cudaStream_t stream)
{
    return copy("cudaMemcpyPeerAsync", {to, from, bytes, bytes, bytes, 1}, cudaMemcpyDeviceToDevice, stream, false);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
    cudaMemcpyKind kind, cudaStream_t stream)
{
    return copy("cudaMemcpy2DAsync", {to, from, to_pitch, from_pitch, width, height}, kind, stream, false);
}

cudaError_t cudaMemset(void *memory, int value, size_t bytes)
{
    return set_bytes("cudaMemset", memory, value, bytes, nullptr, true);
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream)
{
    return set_bytes("cudaMemsetAsync", memory, value, bytes, stream, false);
}

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int)
{
    return call("cudaStreamCreateWithPriority", cudaErrorMemoryAllocation, [&](held_lock &) {
        *stream = new tr_stream{current, !(flags & cudaStreamNonBlocking)};
        state().streams.insert(*stream);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    if (call_fails("cudaStreamCreateWithFlags")) return note(cudaErrorMemoryAllocation);
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }

/* What is enqueued still runs. */
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    if (call_fails("cudaStreamDestroy")) return note(cudaErrorUnknown);
    held_lock held(state().lock);
    if (!stream || !stream_of(stream)) return note(cudaErrorInvalidResourceHandle);
    stream->destroyed = true;
    if (!stream->queue.empty()) return cudaSuccess;
    state().streams.erase(stream);
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return call("cudaStreamSynchronize", cudaErrorUnknown, [&](held_lock &held) {
        tr_stream *s = stream_of(stream);
        if (!s) return cudaErrorInvalidResourceHandle;
        if (!s->capture) return wait_for(held, s);
        s->capture->invalid = true;
        return cudaErrorStreamCaptureUnsupported;
    });
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    return call("cudaStreamQuery", cudaErrorUnknown, [&](held_lock &held) {
        tr_stream *s = stream_of(stream);
        if (!s) return cudaErrorInvalidResourceHandle;
        for (uint64_t n = tr_emulator::random() % 3; n && step(held); n--) continue;
        close_idle_memory();
        s = stream_of(stream);
        if (state().devices[s->device].failure != cudaSuccess) return state().devices[s->device].failure;
        return s->queue.empty() ? cudaSuccess : cudaErrorNotReady;
    });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    return call("cudaStreamWaitEvent", cudaErrorUnknown, [&](held_lock &held) {
        tr_stream *s = stream_of(stream);
        if (!s || !state().events.count(event)) return cudaErrorInvalidResourceHandle;
        if (event->captured) { /* the stream joins the capture */
            if (!event->captured->capture || (s->capture && s->capture != event->captured->capture))
                return cudaErrorStreamCaptureUnmatched;
            if (!s->capture) {
                s->capture = event->captured->capture;
                s->capture->lanes.push_back(s);
                s->captured = s->joined = 0;
            }
            event->captured->joined = std::max(event->captured->joined, event->captured_at);
        } else if (s->capture) {
            s->capture->invalid = true;
            return cudaErrorStreamCaptureInvalidated; /* it would wait for what is outside */
        }
        if (!event->latest) return cudaSuccess;
        return put(held, s, {{"cudaStreamWaitEvent", nullptr, nullptr}, nullptr, event->latest, 0, nullptr});
    });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *user)
{
    return enqueue(stream, {"cudaLaunchHostFunc", [=] {
        function(user);
        return cudaSuccess;
    }, nullptr});
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    return call("cudaEventCreateWithFlags", cudaErrorMemoryAllocation, [&](held_lock &) {
        *event = new tr_event{current, !(flags & cudaEventDisableTiming), nullptr};
        state().events.insert(*event);
        return cudaSuccess;
    });
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    if (call_fails("cudaEventDestroy")) return note(cudaErrorUnknown);
    held_lock held(state().lock);
    if (!state().events.erase(event)) return note(cudaErrorInvalidResourceHandle);
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return call("cudaEventRecord", cudaErrorUnknown, [&](held_lock &held) {
        tr_stream *s = stream_of(stream);
        if (!s || !state().events.count(event) || event->device != s->device) return cudaErrorInvalidResourceHandle;
        event->latest = std::make_shared<moment>();
        const cudaError_t error = put(held, s, {{"cudaEventRecord", nullptr, nullptr}, event->latest, nullptr, 0, nullptr});
        event->captured = s->capture ? s : nullptr;
        event->captured_at = s->captured;
        return error;
    });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    return call("cudaEventSynchronize", cudaErrorUnknown, [&](held_lock &held) {
        if (!state().events.count(event)) return cudaErrorInvalidResourceHandle;
        if (event->captured) return cudaErrorStreamCaptureUnsupported;
        const shared_ptr<moment> when = event->latest;
        const int device = event->device;
        const cudaError_t error = drain(held, [&] { return !when || when->done; });
        return error != cudaSuccess ? error : state().devices[device].failure;
    });
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return call("cudaEventQuery", cudaErrorUnknown, [&](held_lock &held) {
        if (!state().events.count(event)) return cudaErrorInvalidResourceHandle;
        if (event->captured) return cudaErrorStreamCaptureUnsupported;
        const shared_ptr<moment> when = event->latest;
        const int device = event->device;
        for (uint64_t n = tr_emulator::random() % 3; n && step(held); n--) continue;
        close_idle_memory();
        if (state().devices[device].failure != cudaSuccess) return state().devices[device].failure;
        return !when || when->done ? cudaSuccess : cudaErrorNotReady;
    });
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    return call("cudaEventElapsedTime", cudaErrorUnknown, [&](held_lock &) {
        for (cudaEvent_t e : {start, end})
            if (!state().events.count(e) || !e->timed || !e->latest) return cudaErrorInvalidResourceHandle;
        if (!start->latest->done || !end->latest->done) return cudaErrorNotReady;
        *milliseconds = std::chrono::duration<float, std::milli>(end->latest->time - start->latest->time).count();
        return cudaSuccess;
    });
}

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

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
