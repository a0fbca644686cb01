/*
 * Inside the double of the runtime (cudart.cc: streams, events, launches; cudart_graph.cc; cudart_memory.cc;
 * cudart_device.cc), for the doubles of the libraries that enqueue work on its streams, and for tests.
 */
#ifndef TR_TEST_CUDA_CUDART_H
#define TR_TEST_CUDA_CUDART_H

#include "cuda_emulator.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace tr_emulator {

enum { DEVICES = 8 }; /* at most */

/* What is said in signal handlers, too: without memory of the heap. */
struct text { char at[800]; };
text print(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- For tests: the environment variable CUDA_EMULATOR="seed=7 devices=2 memory_mb=512 fail=cudaMalloc:3" says the
 * same at the start of a process; error=226: what a failing kernel is to the host, as a number of cudaError. ---- */

void set_devices(int count);
void set_memory_limit(size_t bytes); /* of each device */
/* The nth call from now on of a function ("cudaMalloc", "cublasLtMatmul"; "*": of anything) fails; 0: none. Of "kernel":
 * the nth that runs. */
void fail_call(const char *function, int nth);
/* What failed on a device, "" for nothing; the device works again. */
std::string take_failure(int device);

/* ---- Operations of streams --------------------------------------------------------------------------------------- */

/* One recording of an event. */
struct moment {
    bool done = false;
    std::chrono::steady_clock::time_point time;
};

struct operation {
    const char *name;
    /* cudaErrorNotReady: a part of it has run, it is to be called again. None: it only records or waits. */
    std::function<cudaError_t()> run = nullptr;
    unsigned devices = 0; /* whose memory it reaches beside its own device's and that one's peers', a bit each */
    std::shared_ptr<moment> records = nullptr, waits = nullptr;
    uint64_t number = 0;  /* over all streams */
    bool started = false;
};

/* What streams enqueued while they were captured. A lane is the place of one in `lanes`; the capture began in the
 * first. */
struct captured_graph {
    struct node { operation what; size_t lane; };
    std::vector<node> nodes;
    std::vector<tr_stream *> lanes;
    cudaStreamCaptureMode mode;
    std::thread::id thread;
    bool invalid = false;
};

} /* namespace tr_emulator */

struct tr_event {
    int device;
    bool timed;
    std::shared_ptr<tr_emulator::moment> latest = nullptr; /* NULL: it was never recorded */
    tr_stream *captured = nullptr; /* recorded there while that was being captured, after so many operations */
    size_t captured_at = 0;
};

struct tr_stream {
    int device;
    bool blocking;                   /* in order with the default stream */
    bool busy = false;               /* a thread runs the first operation */
    bool destroyed = false;
    std::deque<tr_emulator::operation> queue = {};
    std::shared_ptr<tr_emulator::captured_graph> capture = nullptr;
    size_t captured = 0, joined = 0; /* operations; of them, those that another stream waits for */
};

namespace tr_emulator {

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

typedef std::unique_lock<std::mutex> held_lock;

struct device_state {
    tr_stream null{0, true};
    cudaError_t failure = cudaSuccess;
    std::string text; /* of the failure */
    unsigned peers = 0;
};

struct runtime_state {
    std::mutex lock; /* of all of this; what runs on a stream runs without it */
    std::condition_variable changed;
    device_state devices[DEVICES];
    int count = 2;
    int driver = -1;                 /* the version that it knows; -1: ours where there is a device, else 0, none */
    std::set<tr_stream *> streams;   /* those of the program */
    std::set<tr_event *> events;
    std::set<captured_graph *> capturing;
    std::map<std::pair<int, const void *>, size_t> dynamic_shared; /* of a device's kernels with more than 48 KiB */
    uint64_t number = 0;
    std::map<std::string, int> fails;
    cudaError_t failing_kernel = cudaErrorLaunchFailure; /* what one is to the host */
    std::deque<std::string> texts;   /* what cudaGetErrorString() has returned */

    runtime_state();
};
runtime_state &state();
extern thread_local int current_device;

/* Is this the call that shall fail? */
bool call_fails(const char *function);
/* Keeps it for cudaGetLastError(), and returns it. */
cudaError_t note(cudaError_t error);

/* `name`: the function that may fail on request; NULL: none. */
template <typename F>
cudaError_t call(const char *name, cudaError_t planned, bool always, F body)
{
    if (name && call_fails(name)) return note(planned);
    held_lock held(state().lock);
    if (state().count == 0) return note(cudaErrorNoDevice);
    const cudaError_t failure = state().devices[current_device].failure;
    return note(failure != cudaSuccess && !always ? failure : body(held));
}

/* Defines a function of the runtime: when it is to fail on request it returns `planned`; a device that has failed makes
 * it fail for good, except those that are ALWAYS served; else the block after that runs with the lock held. */
#define DOUBLE(name, parameters, planned, ...) DOUBLE_OF(name, parameters, planned, false, __VA_ARGS__)
#define DOUBLE_ALWAYS(name, parameters, planned, ...) DOUBLE_OF(name, parameters, planned, true, __VA_ARGS__)
#define DOUBLE_OF(name, parameters, planned, always, ...)                                                            \
    cudaError_t name parameters                                                                                      \
    {                                                                                                                \
        return call(#name, planned, always, [&]([[maybe_unused]] held_lock &held) -> cudaError_t __VA_ARGS__);       \
    }
/* In a double, an operator's or a function's: returns an error. */
#define CHECK(expression)                                                     \
    do {                                                                      \
        const cudaError_t check_error = (expression);                         \
        if (check_error != cudaSuccess) return check_error;                   \
    } while (0)

/* ---- Streams (cudart.cc), with the lock held but for enqueue() ---------------------------------------------------- */

/* For the doubles of libraries. */
cudaError_t enqueue(cudaStream_t stream, operation op);
/* NULL: there is no such stream. */
tr_stream *stream_of(cudaStream_t stream);
/* For the doubles of libraries, whose handles are a device's; takes the lock. */
bool is_stream_of(int device, cudaStream_t stream);
bool is_captured(cudaStream_t stream);
/* Enqueues, or captures. */
cudaError_t put(held_lock &held, tr_stream *s, operation op);
/* Run what is enqueued until all of a stream, or of a device, has run. */
cudaError_t wait_for(held_lock &held, tr_stream *s);
cudaError_t wait_for_device(held_lock &held, int device);
/* Calls that may not be made while this thread captures, or while any does that asked for it: the capture fails. */
cudaError_t refuse_while_capturing();
/* For the doubles of libraries: may this thread allocate and load now? Takes the lock. */
bool may_allocate();
/* What goes wrong on the device by an operation's `run`: text for take_failure() and cudaGetErrorString(). */
void describe_failure(const std::string &text);

/* Of the double's device. */
enum : size_t { SHARED_USUAL = 48 << 10, SHARED_MOST = 227 << 10, PROCESSORS = 4, THREADS_PER_PROCESSOR = 2048 };

/* ---- Memory (cudart_memory.cc), with the lock held ---------------------------------------------------------------- */

enum class where { pageable, pinned, device, nowhere /* a device's, but not allocated */ };
struct location {
    where kind;
    int device; /* -1: none's */
};
location locate(const void *memory, size_t bytes);
size_t memory_limit();
/* Threads that run the device's work reach the memory of these devices, a bit each, until they leave; the host
 * never. */
void open_memory(unsigned devices);
void leave_memory(unsigned devices);
void close_idle_memory();

/* What stands at an address, for a message; a thread outside kernels fails to read or write it. Both are called by a
 * signal handler, without the lock, on the thread that failed; other threads may change the maps, which a test that has
 * failed already must risk. */
text describe_address(const void *address);
void describe_host_fault(const void *address);

} /* namespace tr_emulator */

#endif
