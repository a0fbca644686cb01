/*
 * The double of the runtime: what CUDA's manual promises of streams, events, copies, memory and graphs, and what it
 * refuses.
 */
#include "check.h"

#include <thread>

template <typename T>
static T *pinned(size_t n)
{
    void *memory;
    assert_cuda(cudaHostAlloc(&memory, n * sizeof(T), cudaHostAllocDefault));
    return static_cast<T *>(memory);
}

static cudaStream_t new_stream()
{
    cudaStream_t stream;
    assert_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static cudaEvent_t new_event()
{
    cudaEvent_t event;
    assert_cuda(cudaEventCreateWithFlags(&event, cudaEventDefault));
    return event;
}

__global__ static void append(int *list, int value) { list[++list[0]] = value; }

/* ---- Streams and events ------------------------------------------------------------------------------------------ */

static void test_work_is_late(void **)
{
    device_array<int> x(std::vector<int>{1});
    int *seen = pinned<int>(1);
    cudaStream_t stream = new_stream();
    cudaEvent_t event = new_event();
    *seen = 0;
    assert_cuda(cudaEventQuery(event)); /* never recorded: done */
    assert_cuda(cudaMemcpyAsync(seen, x.data, 4, cudaMemcpyDeviceToHost, stream));
    assert_cuda(cudaEventRecord(event, stream));
    assert_int_equal(*seen, 0);
    int asked = 0;
    cudaError_t state;
    while ((state = cudaEventQuery(event)) == cudaErrorNotReady) asked++; /* asking is enough to come on */
    assert_cuda(state);
    assert_int_equal(*seen, 1);
    assert_cuda(cudaGetLastError()); /* not being ready is no error */
    assert_cuda(cudaEventDestroy(event));
    assert_cuda(cudaStreamDestroy(stream));
    assert_cuda(cudaFreeHost(seen));
}

static void test_stream_keeps_its_order(void **)
{
    for (uint64_t seed = 0; seed < 5; seed++) {
        device_array<int> list(std::vector<int>(101, 0));
        cudaStream_t a = new_stream(), b = new_stream();
        cudaEvent_t turn = new_event();
        tr_emulator::set_seed(seed);
        for (int i = 0; i < 100; i++) { /* from stream to stream, by one event that is recorded again and again */
            cudaStream_t now = i % 3 ? a : b, next = (i + 1) % 3 ? a : b;
            assert_cuda(TR_LAUNCH(append, 1, 1, 0, now, list.data, i));
            assert_cuda(cudaEventRecord(turn, now));
            assert_cuda(cudaStreamWaitEvent(next, turn, 0));
        }
        assert_cuda(cudaDeviceSynchronize());
        const std::vector<int> got = list.read();
        for (int i = 0; i < 100; i++) assert_int_equal(got[static_cast<size_t>(i) + 1], i);
        assert_cuda(cudaEventDestroy(turn));
        assert_cuda(cudaStreamDestroy(a));
        assert_cuda(cudaStreamDestroy(b));
    }
}

/* A stream that blocks runs in order with the default stream, another one does not. */
static bool follows_default_stream(unsigned flags, uint64_t seed)
{
    device_array<int> x(1);
    cudaStream_t stream;
    tr_emulator::set_seed(seed);
    assert_cuda(cudaStreamCreateWithFlags(&stream, flags));
    assert_cuda(cudaMemsetAsync(x.data, 0, 4, nullptr));
    assert_cuda(cudaMemsetAsync(x.data, 1, 4, stream));
    assert_cuda(cudaMemsetAsync(x.data, 2, 4, nullptr));
    assert_cuda(cudaDeviceSynchronize());
    assert_cuda(cudaStreamDestroy(stream));
    return x.read()[0] == 0x02020202;
}

static void test_default_stream(void **)
{
    int apart = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        assert_true(follows_default_stream(cudaStreamDefault, seed));
        apart += !follows_default_stream(cudaStreamNonBlocking, seed);
    }
    assert_in_range(apart, 1, 20);
}

static void count_call(void *calls) { ++*static_cast<int *>(calls); }

static void test_destroyed_stream_still_runs(void **)
{
    int calls = 0;
    cudaStream_t stream = new_stream();
    assert_cuda(cudaLaunchHostFunc(stream, count_call, &calls));
    assert_cuda(cudaStreamDestroy(stream));
    assert_int_equal(cudaLaunchHostFunc(stream, count_call, &calls), cudaErrorInvalidResourceHandle);
    assert_int_equal(cudaStreamDestroy(stream), cudaErrorInvalidResourceHandle);
    assert_int_equal(calls, 0);
    assert_cuda(cudaDeviceSynchronize());
    assert_int_equal(calls, 1);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidResourceHandle);
    assert_cuda(cudaGetLastError());
}

static void test_long_queue_drains_by_itself(void **)
{
    int calls = 0;
    cudaStream_t stream = new_stream();
    for (int i = 0; i < 1000; i++) assert_cuda(cudaLaunchHostFunc(stream, count_call, &calls));
    assert_in_range(calls, 1, 999);
    assert_cuda(cudaStreamSynchronize(stream));
    assert_int_equal(calls, 1000);
    assert_cuda(cudaStreamDestroy(stream));
}

static void test_elapsed_time(void **)
{
    cudaEvent_t start = new_event(), end = new_event(), untimed;
    float elapsed = -1;
    assert_cuda(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    assert_cuda(cudaEventRecord(start, nullptr));
    assert_cuda(cudaEventRecord(end, nullptr));
    assert_cuda(cudaEventRecord(untimed, nullptr));
    assert_int_equal(cudaEventElapsedTime(&elapsed, start, end), cudaErrorNotReady);
    assert_cuda(cudaEventSynchronize(end));
    assert_cuda(cudaEventElapsedTime(&elapsed, start, end));
    assert_true(elapsed >= 0);
    assert_int_equal(cudaEventElapsedTime(&elapsed, start, untimed), cudaErrorInvalidResourceHandle);
    for (cudaEvent_t e : {start, end, untimed}) assert_cuda(cudaEventDestroy(e));
}

/* Ranks may be threads: each has its device and its streams, and all share the runtime. */
static void test_threads(void **)
{
    std::vector<std::thread> threads;
    bool right[4] = {};
    for (int t = 0; t < 4; t++)
        threads.emplace_back([t, &right] {
            int sum = 0;
            if (cudaSetDevice(t % 2) != cudaSuccess) return;
            cudaStream_t stream;
            int *x, *back;
            if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess ||
                cudaMalloc(reinterpret_cast<void **>(&x), 400) != cudaSuccess ||
                cudaHostAlloc(reinterpret_cast<void **>(&back), 400, cudaHostAllocDefault) != cudaSuccess) return;
            for (int round = 0; round < 20; round++) {
                if (cudaMemsetAsync(x, 0, 400, stream) != cudaSuccess) return;
                for (int i = 1; i < 20; i++)
                    if (TR_LAUNCH(append, 1, 1, 0, stream, x, i) != cudaSuccess) return;
                if (cudaMemcpyAsync(back, x, 400, cudaMemcpyDeviceToHost, stream) != cudaSuccess ||
                    cudaStreamSynchronize(stream) != cudaSuccess) return;
                for (int i = 1; i < 20; i++) sum += back[i] == i;
            }
            right[t] = sum == 20 * 19 && cudaFree(x) == cudaSuccess && cudaFreeHost(back) == cudaSuccess &&
                cudaStreamDestroy(stream) == cudaSuccess;
        });
    for (std::thread &thread : threads) thread.join();
    for (bool r : right) assert_true(r);
}

/* ---- Memory and copies ------------------------------------------------------------------------------------------- */

static void test_pageable_memory_is_read_and_written_at_once(void **)
{
    int from = 5, to = 0;
    device_array<int> x(1);
    cudaStream_t stream = new_stream();
    assert_cuda(cudaMemcpyAsync(x.data, &from, 4, cudaMemcpyHostToDevice, stream));
    from = 6;
    assert_cuda(cudaMemcpyAsync(&to, x.data, 4, cudaMemcpyDeviceToHost, stream));
    assert_int_equal(to, 5);
    int *later = pinned<int>(1);
    *later = 0;
    assert_cuda(cudaMemcpyAsync(later, x.data, 4, cudaMemcpyDefault, stream));
    assert_int_equal(*later, 0);
    assert_cuda(cudaStreamSynchronize(stream));
    assert_int_equal(*later, 5);
    assert_cuda(cudaFreeHost(later));
    assert_cuda(cudaStreamDestroy(stream));
}

static void test_copies_that_do_not_fit(void **)
{
    int host[4] = {};
    device_array<int> x(4);
    assert_int_equal(cudaMemcpy(x.data, host, 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(host, x.data, 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(x.data + 1, host, 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue); /* too long */
    assert_int_equal(cudaMemset(host, 0, 4), cudaErrorInvalidValue);
    assert_int_equal(cudaMemset(x.data, 0, 17), cudaErrorInvalidValue);
    assert_int_equal(cudaFree(x.data + 1), cudaErrorInvalidValue);
    (void)cudaGetLastError();
}

static void test_devices(void **)
{
    int count, can;
    cudaDeviceProp p;
    assert_cuda(cudaGetDeviceCount(&count));
    assert_int_equal(count, 2);
    assert_int_equal(cudaSetDevice(2), cudaErrorInvalidDevice);
    assert_int_equal(cudaGetDeviceProperties(&p, -1), cudaErrorInvalidDevice);
    assert_cuda(cudaGetDeviceProperties(&p, 1));
    assert_int_equal(p.maxThreadsPerBlock, 1024);
    assert_cuda(cudaDeviceCanAccessPeer(&can, 0, 1));
    assert_int_equal(can, 1);
    cudaStream_t first = new_stream();
    assert_cuda(cudaSetDevice(1));
    device_array<int> there(std::vector<int>{7});
    const tr_emulator::location at = tr_emulator::locate(there.data, 4);
    assert_true(at.kind == tr_emulator::where::device && at.device == 1);
    /* A kernel of this device on the other one's stream. */
    assert_int_equal(TR_LAUNCH(append, 1, 1, 0, first, there.data, 1), cudaErrorInvalidResourceHandle);
    assert_cuda(cudaSetDevice(0));
    device_array<int> here(1);
    assert_int_equal(cudaMemcpyPeerAsync(here.data, 1, there.data, 0, 4, first), cudaErrorInvalidValue);
    assert_cuda(cudaMemcpyPeerAsync(here.data, 0, there.data, 1, 4, first));
    assert_cuda(cudaStreamSynchronize(first));
    assert_int_equal(here.read()[0], 7);
    assert_cuda(cudaStreamDestroy(first));
    tr_emulator::set_devices(0);
    assert_int_equal(cudaGetDeviceCount(&count), cudaErrorNoDevice);
    tr_emulator::set_devices(2);
    (void)cudaGetLastError();
}

static void test_out_of_memory(void **)
{
    size_t free, total;
    void *a, *b;
    tr_emulator::set_memory_limit(1 << 20);
    assert_cuda(cudaMalloc(&a, 700 << 10));
    assert_int_equal(cudaMalloc(&b, 700 << 10), cudaErrorMemoryAllocation);
    assert_null(b);
    assert_cuda(cudaMemGetInfo(&free, &total));
    assert_int_equal(total, 1 << 20);
    assert_int_equal(free, (1 << 20) - (700 << 10));
    assert_cuda(cudaFree(a));
    assert_cuda(cudaMalloc(&b, 700 << 10));
    assert_int_equal(reinterpret_cast<uintptr_t>(b) % 256, 0);
    assert_cuda(cudaFree(b));
    tr_emulator::set_memory_limit(size_t(4) << 30);
    (void)cudaGetLastError();
}

static void test_call_fails_on_request(void **)
{
    void *memory;
    tr_emulator::fail_call("cudaMalloc", 2);
    assert_cuda(cudaMalloc(&memory, 8));
    assert_cuda(cudaFree(memory));
    assert_int_equal(cudaMalloc(&memory, 8), cudaErrorMemoryAllocation);
    assert_cuda(cudaMalloc(&memory, 8));
    tr_emulator::fail_call("*", 3);
    assert_cuda(cudaMemset(memory, 0, 8));
    assert_cuda(cudaDeviceSynchronize());
    assert_int_equal(cudaMemset(memory, 0, 8), cudaErrorInvalidValue);
    assert_cuda(cudaFree(memory));
    tr_emulator::fail_call("cudaLaunchKernel", 1);
    assert_int_equal(TR_LAUNCH(append, 1, 1, 0, nullptr, nullptr, 1), cudaErrorLaunchFailure);
    assert_cuda(cudaDeviceSynchronize()); /* nothing ran */
    (void)cudaGetLastError();
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

__global__ static void nothing() {}

static void test_launches_that_no_device_takes(void **)
{
    assert_int_equal(TR_LAUNCH(nothing, 1, 1025, 0, nullptr), cudaErrorInvalidConfiguration);
    assert_int_equal(TR_LAUNCH(nothing, 0, 32, 0, nullptr), cudaErrorInvalidConfiguration);
    assert_int_equal(TR_LAUNCH(nothing, dim3(1, 65536), 32, 0, nullptr), cudaErrorInvalidConfiguration);
    assert_int_equal(TR_LAUNCH(nothing, 1, 32, 49 << 10, nullptr), cudaErrorInvalidValue);
    assert_cuda(cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10));
    assert_cuda(TR_LAUNCH(nothing, 1, 32, 49 << 10, nullptr));
    assert_cuda(cudaSetDevice(1)); /* where nobody has asked for more */
    assert_int_equal(TR_LAUNCH(nothing, 1, 32, 49 << 10, nullptr), cudaErrorInvalidValue);
    assert_cuda(cudaSetDevice(0));
    assert_int_equal(cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 << 10),
        cudaErrorInvalidValue);
    /* Two blocks of 1024 threads are resident on each of the four processors. */
    assert_cuda(TR_LAUNCH_COOPERATIVE(nothing, 8, 1024, 0, nullptr));
    assert_int_equal(TR_LAUNCH_COOPERATIVE(nothing, 9, 1024, 0, nullptr), cudaErrorCooperativeLaunchTooLarge);
    assert_cuda(cudaDeviceSynchronize());
    (void)cudaGetLastError();
}

__global__ static void fails() { __trap(); }

static void test_failed_device_stays_so(void **)
{
    void *memory;
    device_array<int> before(1);
    assert_cuda(TR_LAUNCH(fails, 1, 1, 0, nullptr));
    assert_int_equal(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
    assert_int_equal(cudaMalloc(&memory, 8), cudaErrorLaunchFailure);
    assert_int_equal(TR_LAUNCH(nothing, 1, 1, 0, nullptr), cudaErrorLaunchFailure);
    assert_non_null(strstr(cudaGetErrorString(cudaErrorLaunchFailure), "kernel fails, block (0,0,0): __trap() at "));
    assert_cuda(cudaSetDevice(1)); /* the other device works */
    assert_cuda(TR_LAUNCH(nothing, 1, 1, 0, nullptr));
    assert_cuda(cudaDeviceSynchronize());
    assert_cuda(cudaSetDevice(0));
    assert_failure({"__trap()"});
    assert_cuda(cudaDeviceSynchronize());
}

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

/* Captures: append 1 on a; then 2 on b, forked and joined; then 3 on a. */
static cudaError_t capture(cudaStream_t a, cudaStream_t b, int *list, bool joins, cudaGraph_t *graph)
{
    cudaEvent_t fork = new_event(), join = new_event();
    assert_cuda(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
    assert_cuda(cudaMemsetAsync(list, 0, 40, a));
    assert_cuda(TR_LAUNCH(append, 1, 1, 0, a, list, 1));
    assert_cuda(cudaEventRecord(fork, a));
    assert_cuda(cudaStreamWaitEvent(b, fork, 0));
    assert_cuda(TR_LAUNCH(append, 1, 1, 0, b, list, 2));
    assert_cuda(cudaEventRecord(join, b));
    if (joins) assert_cuda(cudaStreamWaitEvent(a, join, 0));
    assert_cuda(TR_LAUNCH(append, 1, 1, 0, a, list, 3));
    const cudaError_t error = cudaStreamEndCapture(a, graph);
    assert_cuda(cudaEventDestroy(fork));
    assert_cuda(cudaEventDestroy(join));
    return error;
}

static void test_graph(void **)
{
    device_array<int> list(std::vector<int>(10, 0));
    cudaStream_t a = new_stream(), b = new_stream();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaStreamCaptureStatus status;
    assert_cuda(capture(a, b, list.data, true, &graph));
    assert_cuda(cudaStreamIsCapturing(a, &status));
    assert_int_equal(status, cudaStreamCaptureStatusNone);
    assert_cuda(cudaGraphInstantiate(&exec, graph, 0));
    assert_cuda(cudaGraphDestroy(graph));
    assert_cuda(cudaDeviceSynchronize());
    assert_int_equal(list.read()[0], 0); /* capturing runs nothing */
    for (int i = 0; i < 5; i++) {
        assert_cuda(cudaGraphLaunch(exec, a));
        assert_cuda(TR_LAUNCH(append, 1, 1, 0, a, list.data, 4));
        assert_cuda(cudaStreamSynchronize(a));
        const std::vector<int> got = list.read();
        for (int k = 0; k < 5; k++) assert_int_equal(got[static_cast<size_t>(k)], k ? k : 4);
    }
    assert_cuda(cudaGraphExecDestroy(exec));
    assert_int_equal(capture(a, b, list.data, false, &graph), cudaErrorStreamCaptureUnjoined);
    assert_cuda(cudaStreamDestroy(a));
    assert_cuda(cudaStreamDestroy(b));
    (void)cudaGetLastError();
}

static void test_what_breaks_a_capture(void **)
{
    void *memory;
    cudaGraph_t graph;
    cudaStream_t stream = new_stream(), other = new_stream();
    cudaEvent_t outside = new_event();
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    assert_int_equal(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    assert_int_equal(cudaMalloc(&memory, 8), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    /* A thread that says that it knows what it does may allocate. */
    assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    assert_cuda(cudaThreadExchangeStreamCaptureMode(&mode));
    assert_cuda(cudaMalloc(&memory, 8));
    assert_cuda(cudaThreadExchangeStreamCaptureMode(&mode));
    assert_cuda(cudaStreamEndCapture(stream, &graph));
    assert_cuda(cudaGraphDestroy(graph));
    assert_cuda(cudaFree(memory));
    /* A wait for what is not captured. */
    assert_cuda(cudaEventRecord(outside, other));
    assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    assert_int_equal(cudaStreamWaitEvent(stream, outside, 0), cudaErrorStreamCaptureInvalidated);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    assert_int_equal(cudaEventQuery(outside), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    assert_int_equal(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnmatched);
    assert_cuda(cudaEventDestroy(outside));
    assert_cuda(cudaStreamDestroy(stream));
    assert_cuda(cudaStreamDestroy(other));
    (void)cudaGetLastError();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_work_is_late),
        cmocka_unit_test(test_stream_keeps_its_order),
        cmocka_unit_test(test_default_stream),
        cmocka_unit_test(test_destroyed_stream_still_runs),
        cmocka_unit_test(test_long_queue_drains_by_itself),
        cmocka_unit_test(test_elapsed_time),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_pageable_memory_is_read_and_written_at_once),
        cmocka_unit_test(test_copies_that_do_not_fit),
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_call_fails_on_request),
        cmocka_unit_test(test_launches_that_no_device_takes),
        cmocka_unit_test(test_failed_device_stays_so),
        cmocka_unit_test(test_graph),
        cmocka_unit_test(test_what_breaks_a_capture),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
