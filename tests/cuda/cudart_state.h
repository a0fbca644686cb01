/*
 * The state of the double of the runtime, shared by cudart.cc (streams, events, launches), cudart_copy.cc (copies and
 * allocations), cudart_device.cc (devices and errors) and cudart_graph.cc.
 */
#ifndef TR_TEST_CUDA_CUDART_STATE_H
#define TR_TEST_CUDA_CUDART_STATE_H

#include "cudart.h"
#include "cuda_emulator.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <set>
#include <thread>
#include <vector>

/* One recording of an event. */
struct moment {
    bool done = false;
    std::chrono::steady_clock::time_point time;
};

struct tr_event {
    int device;
    bool timed;
    std::shared_ptr<moment> latest;       /* NULL: it was never recorded */
    tr_stream *captured = nullptr;   /* recorded there while that was being captured, after so many operations */
    size_t captured_at = 0;
};

struct queued {
    tr_emulator::operation op;
    std::shared_ptr<moment> records, waits;
    uint64_t number;                 /* over all streams */
    tr_emulator::poll_function poll;              /* of an operation that has started */
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
    std::shared_ptr<tr_graph> graph;
};

struct tr_stream {
    int device;
    bool blocking;                   /* in order with the default stream */
    bool busy = false;               /* a thread runs the first operation */
    bool destroyed = false;
    std::deque<queued> queue = {};
    std::shared_ptr<tr_graph> capture = nullptr;
    size_t captured = 0, joined = 0; /* operations; of them, those that another stream waits for */
};

struct device_state {
    tr_stream null{0, true};
    cudaError_t failure = cudaSuccess;
    std::string text;
    unsigned peers = 0;
};

namespace tr_emulator {

typedef std::unique_lock<std::mutex> held_lock;

struct runtime_state {
    std::mutex lock;
    std::condition_variable changed;
    device_state devices[DEVICES];
    int count = 2;
    int driver = -1;                 /* the version that it knows; -1: ours where there is a device, else 0, none */
    std::set<tr_stream *> streams;   /* those of the program */
    std::set<tr_event *> events;
    std::set<tr_graph *> capturing;
    std::map<const void *, size_t> dynamic_shared; /* of kernels that may have more than 48 KiB */
    uint64_t number = 0;
    std::map<std::string, int> fails;
    std::deque<std::string> texts;   /* what cudaGetErrorString() has returned */

    runtime_state();
};

runtime_state &state();

/* Of the calling thread: its device; whether it may do in a capture what would break it. */
extern thread_local int current;
extern thread_local cudaStreamCaptureMode thread_mode;

/* Keeps it for cudaGetLastError(), and returns it. */
cudaError_t note(cudaError_t error);
void forget_error();

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

/* NULL: there is no such stream. */
tr_stream *stream_of(cudaStream_t stream);
/* Runs the operation, or a part of it. false: it has not ended. */
bool advance(queued &q, cudaError_t *error);
/* Enqueues, or captures. */
cudaError_t put(held_lock &held, tr_stream *s, queued q);
cudaError_t put(held_lock &held, tr_stream *s, operation op);
/* Run what is enqueued until all of a stream, or of a device, has run. */
cudaError_t wait_for(held_lock &held, tr_stream *s);
cudaError_t wait_for_device(held_lock &held, int device);

/* Of the double's device. */
enum : size_t { SHARED_USUAL = 48 << 10, SHARED_MOST = 227 << 10, PROCESSORS = 4, THREADS_PER_PROCESSOR = 2048 };

} /* namespace tr_emulator */

#endif
