/*
 * A double of CUDA's runtime. A stream is a queue that nothing drains until the host waits for something; then one
 * operation after another runs, of any stream whose next one may, as the seed chooses. So what no event orders comes
 * in the wrong order sooner or later. Several threads of the host may wait at once, and each runs operations.
 */
#include "cudart_state.h"

using std::shared_ptr;

namespace tr_emulator {

/* ---- State ------------------------------------------------------------------------------------------------------- */

enum { LATE = 256 };                 /* operations on a stream that wait for the host, at most */

runtime_state::runtime_state()
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
        if (key == "driver") driver = atoi(value.c_str());
        if (key == "memory_mb") set_memory_limit(strtoull(value.c_str(), nullptr, 10) << 20);
        if (key == "fail") fails[value.substr(0, value.find(':'))] = atoi(value.c_str() + value.find(':') + 1);
    }
}

runtime_state &state()
{
    static auto *s = new runtime_state; /* the end of the process finds it whole */
    return *s;
}

thread_local int current = 0;
static thread_local std::string failure_text; /* of the operation that this thread runs */

tr_stream *stream_of(cudaStream_t stream)
{
    if (!stream) return &state().devices[current].null;
    return state().streams.count(stream) && !stream->destroyed ? stream : nullptr;
}

/* ---- Running what is queued -------------------------------------------------------------------------------------- */

static bool runnable(const tr_stream *s)
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

bool advance(queued &q, cudaError_t *error)
{
    *error = cudaSuccess;
    if (q.op.run) *error = q.op.run();
    if (!q.op.start) return true;
    if (!q.poll) q.poll = q.op.start();
    return q.poll(error);
}

static void finish(tr_stream *s)
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
static bool run_first(held_lock &held, tr_stream *s)
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
static bool step(held_lock &held)
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
static cudaError_t drain(held_lock &held, F reached)
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

cudaError_t put(held_lock &held, tr_stream *s, operation op)
{
    return put(held, s, queued{std::move(op), nullptr, nullptr, 0, nullptr});
}

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
    d.failure = cudaSuccess;
    forget_error();
    std::string text;
    text.swap(d.text);
    return text;
}

cudaError_t enqueue(cudaStream_t stream, operation op)
{
    return call(op.name, cudaErrorUnknown, [&](held_lock &held) {
        tr_stream *s = stream_of(stream);
        return s ? put(held, s, std::move(op)) : cudaErrorInvalidResourceHandle;
    });
}

bool is_capturing(cudaStream_t stream)
{
    std::lock_guard<std::mutex> held(state().lock);
    const tr_stream *s = stream_of(stream);
    return s && s->capture;
}

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

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

using namespace tr_emulator;

cudaError_t tr_emulator_launch(const kernel_launch &launch, cudaStream_t stream)
{
    return call("cudaLaunchKernel", cudaErrorLaunchFailure, [&](held_lock &held) {
        tr_stream *s = stream_of(stream);
        const dim3 g = launch.grid, b = launch.block;
        const uint64_t threads = uint64_t(b.x) * b.y * b.z, blocks = uint64_t(g.x) * g.y * g.z;
        auto most = state().dynamic_shared.find(launch.function);
        int resident = 0;
        if (!s || s->device != current) return cudaErrorInvalidResourceHandle;
        if (threads == 0 || threads > 1024 || b.z > 64 || blocks == 0 || g.x > 0x7fffffffu || g.y > 65535 ||
            g.z > 65535)
            return cudaErrorInvalidConfiguration;
        if (launch.shared > std::max(+SHARED_USUAL, most == state().dynamic_shared.end() ? 0 : most->second))
            return cudaErrorInvalidValue;
        occupancy(&resident, static_cast<int>(threads), launch.shared);
        if (launch.cooperative && blocks > static_cast<uint64_t>(resident) * PROCESSORS)
            return cudaErrorCooperativeLaunchTooLarge;
        operation op = {launch.kernel, [launch] {
            if (call_fails("kernel")) { /* when it runs, long after its launch */
                describe_failure(std::string("kernel ") + launch.kernel + " was to fail");
                return cudaErrorLaunchFailure;
            }
            const char *error = tr_emulator::run(launch);
            if (error) describe_failure(error);
            return error ? cudaErrorLaunchFailure : cudaSuccess;
        }, nullptr};
        return put(held, s, std::move(op));
    });
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
        return put(held, s, queued{{"cudaStreamWaitEvent", nullptr, nullptr}, nullptr, event->latest, 0, nullptr});
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
        const cudaError_t error = put(held, s, queued{{"cudaEventRecord", nullptr, nullptr}, event->latest, nullptr, 0,
            nullptr});
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
