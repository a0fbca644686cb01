/*
 * A double of CUDA's runtime. A stream is a queue that nothing drains until the host waits for something; then one
 * operation after another runs, of any stream whose next one may, as the seed chooses. So what no event orders comes
 * in the wrong order sooner or later. Several threads of the host may wait at once, and each runs operations.
 */
#include "cudart.h"

#include <sstream>

namespace tr_emulator {

/* ---- State ------------------------------------------------------------------------------------------------------- */

enum { LATE = 256 }; /* operations on a stream that wait for the host, at most */

runtime_state::runtime_state()
{
    for (int d = 0; d < DEVICES; d++) devices[d].null.device = d;
    const char *text = getenv("CUDA_EMULATOR");
    std::istringstream words(text ? text : "");
    for (std::string word; words >> word;) {
        const size_t equals = word.find('='), colon = word.find(':');
        const std::string key = word.substr(0, equals), value = word.substr(equals + 1);
        if (key == "seed") set_seed(std::stoull(value));
        if (key == "devices") count = std::min<int>(DEVICES, std::stoi(value));
        if (key == "driver") driver = std::stoi(value);
        if (key == "error") failing_kernel = static_cast<cudaError_t>(std::stoi(value));
        if (key == "memory_mb") set_memory_limit(std::stoull(value) << 20);
        if (key == "fail") fails[word.substr(equals + 1, colon - equals - 1)] = std::stoi(word.substr(colon + 1));
    }
}

runtime_state &state()
{
    static auto *s = new runtime_state; /* the end of the process finds it whole */
    return *s;
}

thread_local int current_device = 0;
static thread_local std::string failure_text; /* of the operation that this thread runs */

void set_devices(int count) { state().count = count; }
void describe_failure(const std::string &text) { failure_text = text; }

void fail_call(const char *function, int nth)
{
    held_lock held(state().lock);
    state().fails[function] = nth;
}

bool call_fails(const char *function)
{
    held_lock held(state().lock);
    bool fails = false;
    for (const char *name : {function, "*"}) {
        auto planned = state().fails.find(name);
        if (planned != state().fails.end() && planned->second > 0 && --planned->second == 0) fails = true;
    }
    return fails;
}

std::string take_failure(int device)
{
    held_lock held(state().lock);
    device_state &d = state().devices[device];
    d.failure = cudaSuccess;
    (void)cudaGetLastError();
    return std::exchange(d.text, "");
}

tr_stream *stream_of(cudaStream_t stream)
{
    if (!stream) return &state().devices[current_device].null;
    return state().streams.count(stream) && !stream->destroyed ? stream : nullptr;
}

/* The program's streams, and each device's default one. */
static std::vector<tr_stream *> all_streams()
{
    std::vector<tr_stream *> all(state().streams.begin(), state().streams.end());
    for (device_state &d : state().devices) all.push_back(&d.null);
    return all;
}

/* ---- Running what is queued -------------------------------------------------------------------------------------- */

static bool runnable(const tr_stream *s)
{
    if (s->busy || s->queue.empty()) return false;
    const operation &first = s->queue.front();
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

static void finish(tr_stream *s)
{
    operation &first = s->queue.front();
    if (first.records) *first.records = {true, std::chrono::steady_clock::now()};
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
    operation &first = s->queue.front();
    cudaError_t error = cudaSuccess;
    if (device.failure == cudaSuccess && first.run) {
        const unsigned reach = 1u << s->device | device.peers | first.devices;
        const int before = current_device;
        s->busy = first.started = true;
        open_memory(reach);
        held.unlock();
        current_device = s->device;
        failure_text.clear();
        error = first.run();
        current_device = before;
        held.lock();
        leave_memory(reach);
        s->busy = false;
    }
    if (error == cudaErrorNotReady) return false;
    if (error != cudaSuccess && device.failure == cudaSuccess) {
        device.failure = error;
        device.text = failure_text;
    }
    finish(s);
    return true;
}

/* One operation of a stream that the seed chooses; false: none could end. */
static bool step(held_lock &held)
{
    std::vector<tr_stream *> able = all_streams();
    able.erase(std::remove_if(able.begin(), able.end(), [](tr_stream *s) { return !runnable(s); }), able.end());
    std::sort(able.begin(), able.end(), [](tr_stream *a, tr_stream *b) {
        return a->queue.front().number < b->queue.front().number; /* addresses differ from run to run */
    });
    while (!able.empty()) {
        const size_t i = tr_emulator::random() % able.size();
        tr_stream *s = able[i];
        able.erase(able.begin() + static_cast<ptrdiff_t>(i));
        const auto all = all_streams(); /* another thread may have ended it */
        if (std::find(all.begin(), all.end(), s) != all.end() && runnable(s) && run_first(held, s)) return true;
    }
    return false;
}

/* Until what this thread waits for has come. Another thread, or another process, may have to bring it. */
template <typename F>
static cudaError_t drain(held_lock &held, F reached)
{
    auto idle_since = std::chrono::steady_clock::now();
    while (!reached()) {
        if (step(held)) {
            idle_since = std::chrono::steady_clock::now();
            continue;
        }
        bool others = false;
        for (const tr_stream *s : state().streams) others |= s->busy || (!s->queue.empty() && s->queue.front().started);
        close_idle_memory();
        state().changed.wait_for(held, std::chrono::milliseconds(1));
        if (!others && std::chrono::steady_clock::now() - idle_since > std::chrono::seconds(20))
            return cudaErrorLaunchTimeout;
    }
    close_idle_memory();
    return cudaSuccess;
}

cudaError_t wait_for(held_lock &held, tr_stream *s)
{
    const uint64_t until = state().number;
    const int device = s->device;
    CHECK(drain(held, [&] {
        const auto all = all_streams();
        return std::find(all.begin(), all.end(), s) == all.end() || s->queue.empty() || s->queue.front().number > until;
    }));
    return state().devices[device].failure;
}

cudaError_t wait_for_device(held_lock &held, int device)
{
    CHECK(drain(held, [&] {
        for (const tr_stream *s : all_streams())
            if (s->device == device && !s->queue.empty()) return false;
        return true;
    }));
    return state().devices[device].failure;
}

cudaError_t put(held_lock &held, tr_stream *s, operation op)
{
    if (s->capture) {
        captured_graph &g = *s->capture;
        const auto lane = std::find(g.lanes.begin(), g.lanes.end(), s) - g.lanes.begin();
        s->captured++;
        g.nodes.push_back({std::move(op), static_cast<size_t>(lane)});
        return g.invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    }
    op.number = ++state().number;
    s->queue.push_back(std::move(op));
    while (s->queue.size() > LATE && step(held)) continue;
    close_idle_memory();
    return cudaSuccess;
}

bool is_stream_of(int device, cudaStream_t stream)
{
    held_lock held(state().lock);
    const tr_stream *s = stream_of(stream);
    return s && s->device == device;
}

bool is_captured(cudaStream_t stream)
{
    held_lock held(state().lock);
    const tr_stream *s = stream_of(stream);
    return s && s->capture;
}

cudaError_t enqueue(cudaStream_t stream, operation op)
{
    return call(nullptr, cudaSuccess, false, [&](held_lock &held) {
        tr_stream *s = stream_of(stream);
        return s ? put(held, s, std::move(op)) : cudaErrorInvalidResourceHandle;
    });
}

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

cudaError_t set_kernel_attribute(const void *kernel, cudaFuncAttribute, int bytes)
{
    return call("cudaFuncSetAttribute", cudaErrorInvalidValue, false, [&](held_lock &) {
        if (bytes < 0 || static_cast<size_t>(bytes) > SHARED_MOST) return cudaErrorInvalidValue;
        state().dynamic_shared[{current_device, kernel}] = static_cast<size_t>(bytes);
        return cudaSuccess;
    });
}

static cudaError_t run_kernel(const kernel_launch &launch)
{
    const bool fails = call_fails("kernel"); /* when it runs, long after its launch */
    const std::string error = fails ? std::string("kernel ") + launch.kernel + " was to fail" : run(launch);
    describe_failure(error);
    return error.empty() ? cudaSuccess : state().failing_kernel;
}

} /* namespace tr_emulator */

using namespace tr_emulator;

cudaError_t tr_emulator::launch(const kernel_launch &launch, cudaStream_t stream)
{
    return call("cudaLaunchKernel", cudaErrorLaunchFailure, false, [&](held_lock &held) {
        tr_stream *s = stream_of(stream);
        const dim3 g = launch.grid, b = launch.block;
        const uint64_t threads = uint64_t(b.x) * b.y * b.z, blocks = uint64_t(g.x) * g.y * g.z;
        auto most = state().dynamic_shared.find({current_device, launch.function});
        if (!s || s->device != current_device) return cudaErrorInvalidResourceHandle;
        if (threads == 0 || threads > 1024 || b.z > 64 || blocks == 0 || g.x > 0x7fffffffu || g.y > 65535 ||
            g.z > 65535)
            return cudaErrorInvalidConfiguration;
        if (launch.shared > std::max(+SHARED_USUAL, most == state().dynamic_shared.end() ? 0 : most->second))
            return cudaErrorInvalidValue;
        const uint64_t resident = std::min({THREADS_PER_PROCESSOR / threads,
            (SHARED_MOST + 1024) / (launch.shared + 1024), uint64_t(32)});
        if (launch.cooperative && blocks > resident * PROCESSORS) return cudaErrorCooperativeLaunchTooLarge;
        return put(held, s, {launch.kernel, [launch] { return run_kernel(launch); }});
    });
}

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

DOUBLE(cudaStreamCreateWithFlags, (cudaStream_t *stream, unsigned flags), cudaErrorMemoryAllocation, {
    *stream = new tr_stream{current_device, !(flags & cudaStreamNonBlocking)};
    state().streams.insert(*stream);
    return cudaSuccess;
})

/* What is enqueued still runs. */
DOUBLE_ALWAYS(cudaStreamDestroy, (cudaStream_t stream), cudaErrorUnknown, {
    if (!stream || !stream_of(stream)) return cudaErrorInvalidResourceHandle;
    stream->destroyed = true;
    if (!stream->queue.empty()) return cudaSuccess;
    state().streams.erase(stream);
    delete stream;
    return cudaSuccess;
})

DOUBLE(cudaStreamSynchronize, (cudaStream_t stream), cudaErrorUnknown, {
    tr_stream *s = stream_of(stream);
    if (!s) return cudaErrorInvalidResourceHandle;
    if (!s->capture) return wait_for(held, s);
    s->capture->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
})

DOUBLE(cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned), cudaErrorUnknown, {
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
    operation wait = {"cudaStreamWaitEvent"};
    wait.waits = event->latest;
    return wait.waits ? put(held, s, std::move(wait)) : cudaSuccess;
})

DOUBLE(cudaLaunchHostFunc, (cudaStream_t stream, cudaHostFn_t function, void *user), cudaErrorUnknown, {
    tr_stream *s = stream_of(stream);
    const auto run = [=] {
        function(user);
        return cudaSuccess;
    };
    return s ? put(held, s, {"cudaLaunchHostFunc", run}) : cudaErrorInvalidResourceHandle;
})

/* ---- Events ------------------------------------------------------------------------------------------------------ */

DOUBLE(cudaEventCreateWithFlags, (cudaEvent_t *event, unsigned flags), cudaErrorMemoryAllocation, {
    *event = new tr_event{current_device, !(flags & cudaEventDisableTiming)};
    state().events.insert(*event);
    return cudaSuccess;
})

DOUBLE_ALWAYS(cudaEventDestroy, (cudaEvent_t event), cudaErrorUnknown, {
    if (!state().events.erase(event)) return cudaErrorInvalidResourceHandle;
    delete event;
    return cudaSuccess;
})

DOUBLE(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), cudaErrorUnknown, {
    tr_stream *s = stream_of(stream);
    if (!s || !state().events.count(event) || event->device != s->device) return cudaErrorInvalidResourceHandle;
    operation record = {"cudaEventRecord"};
    record.records = event->latest = std::make_shared<moment>();
    const cudaError_t error = put(held, s, std::move(record));
    event->captured = s->capture ? s : nullptr;
    event->captured_at = s->captured;
    return error;
})

/* cudaErrorNotReady: it has not come. */
static cudaError_t come(const tr_event &event)
{
    const cudaError_t failure = state().devices[event.device].failure;
    return failure != cudaSuccess ? failure : !event.latest || event.latest->done ? cudaSuccess : cudaErrorNotReady;
}

DOUBLE(cudaEventSynchronize, (cudaEvent_t event), cudaErrorUnknown, {
    if (!state().events.count(event)) return cudaErrorInvalidResourceHandle;
    if (event->captured) return cudaErrorStreamCaptureUnsupported;
    const tr_event asked = *event;
    CHECK(drain(held, [&] { return come(asked) != cudaErrorNotReady; }));
    return come(asked);
})

/* Now and then something has run meanwhile. */
DOUBLE(cudaEventQuery, (cudaEvent_t event), cudaErrorUnknown, {
    if (!state().events.count(event)) return cudaErrorInvalidResourceHandle;
    if (event->captured) return cudaErrorStreamCaptureUnsupported;
    CHECK(refuse_while_capturing()); /* whatever the event is of */
    const tr_event asked = *event;
    for (uint64_t n = tr_emulator::random() % 3; n && step(held); n--) continue;
    close_idle_memory();
    return come(asked);
})

DOUBLE(cudaEventElapsedTime, (float *milliseconds, cudaEvent_t start, cudaEvent_t end), cudaErrorUnknown, {
    for (cudaEvent_t e : {start, end})
        if (!state().events.count(e) || !e->timed || !e->latest) return cudaErrorInvalidResourceHandle;
    if (start->device != end->device) return cudaErrorInvalidResourceHandle;
    if (!start->latest->done || !end->latest->done) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(end->latest->time - start->latest->time).count();
    return cudaSuccess;
})
