/*
 * Faults that are planted in kernels and in the order of streams, each of which the emulator must show. Each stands
 * beside the same code without the fault, which must pass.
 */
#include "check.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SEEDS = 10 };

/* ---- Barriers that are missing ----------------------------------------------------------------------------------- */

enum { WHOLE, NO_FIRST_BARRIER, NO_LAST_BARRIER };

/* Transposes tiles of 16 x 16, one after another in the same shared memory. */
template <int FAULT>
__global__ static void transpose(float *to, const float *from, int tiles)
{
    __shared__ float tile[16][17];
    const unsigned x = threadIdx.x, y = threadIdx.y;
    for (int t = 0; t < tiles; t++) {
        tile[y][x] = from[t * 256 + static_cast<int>(y * 16 + x)];
        if (FAULT != NO_FIRST_BARRIER) __syncthreads();
        to[t * 256 + static_cast<int>(y * 16 + x)] = tile[x][y];
        if (FAULT != NO_LAST_BARRIER) __syncthreads();
    }
}

template <int FAULT>
static bool transposes(uint64_t seed)
{
    std::vector<float> from(1024);
    for (size_t i = 0; i < 1024; i++) from[i] = static_cast<float>(i);
    device_array<float> source(from), to(1024);
    tr_emulator::set_seed(seed);
    assert_cuda(TR_LAUNCH(transpose<FAULT>, 1, dim3(16, 16), 0, nullptr, to.data, source.data, 4));
    const std::vector<float> got = to.read();
    for (size_t i = 0; i < 1024; i++)
        if (got[i] != from[i / 256 * 256 + i % 16 * 16 + i / 16 % 16]) return false;
    return true;
}

static void test_removed_barrier_gives_a_wrong_result(void **)
{
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        assert_true(transposes<WHOLE>(seed));
        assert_false(transposes<NO_FIRST_BARRIER>(seed));
        assert_false(transposes<NO_LAST_BARRIER>(seed));
    }
}

template <bool FAULT>
__global__ static void neighbour_in_warp(int *out)
{
    TR_DYNAMIC_SHARED(int, shared);
    shared[threadIdx.x] = static_cast<int>(threadIdx.x);
    if (!FAULT) __syncwarp();
    out[threadIdx.x] = shared[threadIdx.x ^ 1];
}

template <bool FAULT>
static bool neighbours(uint64_t seed)
{
    device_array<int> out(32);
    tr_emulator::set_seed(seed);
    assert_cuda(TR_LAUNCH(neighbour_in_warp<FAULT>, 1, 32, 32 * sizeof(int), nullptr, out.data));
    const std::vector<int> got = out.read();
    for (int i = 0; i < 32; i++)
        if (got[static_cast<size_t>(i)] != (i ^ 1)) return false;
    return true;
}

static void test_removed_warp_barrier_gives_a_wrong_result(void **)
{
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        assert_true(neighbours<false>(seed));
        assert_false(neighbours<true>(seed));
    }
}

/* ---- Barriers and warp operations that not all reach ------------------------------------------------------------- */

__global__ static void some_return(int n)
{
    if (static_cast<int>(threadIdx.x) >= n) return;
    __syncthreads();
}

__global__ static void two_barriers(int n)
{
    if (static_cast<int>(threadIdx.x) < n) __syncthreads();
    else
        __syncthreads();
}

static void test_divergent_barrier(void **)
{
    assert_cuda(TR_LAUNCH(some_return, 1, 64, 0, nullptr, 64));
    assert_cuda(TR_LAUNCH(two_barriers, 1, 64, 0, nullptr, 64));
    assert_cuda(cudaDeviceSynchronize());
    assert_cuda(TR_LAUNCH(some_return, dim3(1, 2), 64, 0, nullptr, 63));
    assert_failure({"kernel some_return, block (0,", "divergent barrier: thread (", "waits in __syncthreads() at ",
        "test_faults.cu:", "thread (63,0,0) has ended"});
    assert_cuda(TR_LAUNCH(two_barriers, 1, 64, 0, nullptr, 5));
    assert_failure({"divergent barrier", "thread (0,0,0) waits in", "thread (63,0,0) waits in __syncthreads() at"});
}

__global__ static void outside_mask(float *out) { out[threadIdx.x] = __shfl_sync(0xfffeu, 1.0f, 2); }

__global__ static void different_operations(float *out)
{
    if (threadIdx.x < 7) out[threadIdx.x] = __shfl_xor_sync(~0u, 1.0f, 2);
    else out[threadIdx.x] = __shfl_down_sync(~0u, 1.0f, 2);
}

__global__ static void circle() { __syncwarp(threadIdx.x == 0 ? 3u : threadIdx.x == 1 ? 6u : 5u); }

__global__ static void barrier_for_some_lanes()
{
    if (threadIdx.x % 32 == 4) __syncthreads();
    else __syncwarp();
}

static void test_warp_operations_that_not_all_reach(void **)
{
    device_array<float> out(32);
    assert_cuda(TR_LAUNCH(outside_mask, 1, 16, 0, nullptr, out.data));
    assert_failure({"a lane outside its mask: thread (0,0,0) waits in __shfl_sync, mask 0x0000fffe, at ",
        "test_faults.cu:"});
    assert_cuda(TR_LAUNCH(different_operations, 1, 32, 0, nullptr, out.data));
    assert_failure({"lanes in different warp operations: ", "__shfl_xor_sync", "__shfl_down_sync", "test_faults.cu:"});
    assert_cuda(TR_LAUNCH(circle, 1, 3, 0, nullptr));
    assert_failure({"kernel circle, block (0,0,0): deadlock: thread (", "waits in __syncwarp, mask 0x"});
    assert_cuda(TR_LAUNCH(barrier_for_some_lanes, 1, 32, 0, nullptr));
    assert_failure({"divergent barrier: thread (4,0,0) waits in __syncthreads()",
        "waits in __syncwarp, mask 0xffffffff"});
}

__global__ static void some_blocks_meet()
{
    if (blockIdx.x != 1) tr_grid_sync();
}

static void test_grid_barrier_that_not_all_reach(void **)
{
    assert_cuda(TR_LAUNCH_COOPERATIVE(some_blocks_meet, 3, 32, 0, nullptr));
    assert_failure({"deadlock: some blocks wait in tr_grid_sync(), the others have ended"});
    assert_cuda(TR_LAUNCH(some_blocks_meet, 3, 32, 0, nullptr));
    assert_failure({"tr_grid_sync() in a launch that is not cooperative at ", "test_faults.cu:"});
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

template <bool CHECKS>
__global__ static void fill(float *out, size_t n)
{
    const size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (!CHECKS || i < n) out[i] = 1.0f;
}

static void test_off_by_one_in_a_grid(void **)
{
    const unsigned n = 1000;
    device_array<float> out(n);
    assert_cuda(TR_LAUNCH(fill<true>, n / 256 + 1, 256, 0, nullptr, out.data, n));
    for (float x : out.read()) assert_true(x == 1.0f);
    /* A block too few leaves what was never written, which is NaN. */
    device_array<float> short_of(n);
    assert_cuda(TR_LAUNCH(fill<true>, n / 256, 256, 0, nullptr, short_of.data, n));
    assert_true(std::isnan(short_of.read()[n - 1]));
    /* A block too many writes behind the end. */
    assert_cuda(TR_LAUNCH(fill<false>, n / 256 + 2, 256, 0, nullptr, out.data, n));
    assert_failure({"kernel fill<false>, block (", "thread (", "accesses 0x",
        "bytes after the end of 4000 on device 0"});
}

__global__ static void read_at(const int *from, int *to) { *to = *from; }

static void test_access_to_what_is_not_the_devices(void **)
{
    device_array<int> to(1);
    int *freed;
    assert_cuda(cudaMalloc(reinterpret_cast<void **>(&freed), 4));
    assert_cuda(TR_LAUNCH(read_at, 1, 1, 0, nullptr, freed, to.data));
    assert_cuda(cudaFree(freed)); /* waits for the kernel */
    assert_cuda(TR_LAUNCH(read_at, 1, 1, 0, nullptr, freed, to.data));
    assert_failure({"kernel read_at, block (0,0,0): thread (0,0,0) accesses 0x"});
    assert_cuda(TR_LAUNCH(read_at, 1, 1, 0, nullptr, reinterpret_cast<const int *>(uintptr_t(4096)), to.data));
    assert_failure({"kernel read_at", "which is no memory of a device"});
    /* Another device's memory, without and with peer access. */
    assert_cuda(cudaSetDevice(1));
    {
        device_array<int> there(std::vector<int>{5});
        assert_cuda(cudaSetDevice(0));
        assert_cuda(TR_LAUNCH(read_at, 1, 1, 0, nullptr, there.data, to.data));
        assert_failure({"kernel read_at", "byte 0 of 4 on device 1, whose memory it cannot reach"});
        assert_cuda(cudaDeviceEnablePeerAccess(1, 0));
        assert_cuda(TR_LAUNCH(read_at, 1, 1, 0, nullptr, there.data, to.data));
        assert_int_equal(to.read()[0], 5);
    }
}

__global__ static void deep(int *out)
{
    volatile char much[300 << 10];
    for (size_t i = sizeof much; i-- > 0;) much[i] = 1;
    *out = much[5];
}

static void test_stack_that_is_too_small(void **)
{
    device_array<int> out(1);
    assert_cuda(TR_LAUNCH(deep, 1, 1, 0, nullptr, out.data));
    assert_failure({"kernel deep, block (0,0,0): thread (0,0,0) accesses"});
}

/* Runs in a child: how it ended, and what it wrote to stderr. */
static int run_child(void (*body)(void *), void *argument, char (&text)[4096])
{
    int ends[2];
    size_t got = 0;
    ssize_t n;
    assert_return_code(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        signal(SIGSEGV, SIG_DFL); /* not cmocka's */
        tr_emulator::watch_faults();
        alarm(20);
        body(argument);
        _exit(0);
    }
    close(ends[1]);
    while (got < sizeof text - 1 && (n = read(ends[0], text + got, sizeof text - 1 - got)) > 0)
        got += static_cast<size_t>(n);
    text[got] = 0;
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void dereference(void *memory) { *static_cast<volatile int *>(memory) = 1; }

static void test_host_dereferences_device_memory(void **)
{
    char text[4096];
    device_array<int> array(std::vector<int>{1, 2, 3});
    const int status = run_child(dereference, array.data + 2, text);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    assert_non_null(strstr(text, "the host accesses 0x"));
    assert_non_null(strstr(text, ": byte 8 of 12 on device 0, whose memory it cannot reach"));
    int own = 1;
    assert_int_equal(run_child(dereference, &own, text), 0);
}

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

__global__ static void add_one(float *x) { x[threadIdx.x] += 1.0f; }

/* One stream fills, the other one adds. */
static bool in_order(uint64_t seed, bool waits)
{
    cudaStream_t fills, adds;
    cudaEvent_t filled;
    device_array<float> x(64);
    tr_emulator::set_seed(seed);
    assert_cuda(cudaStreamCreateWithFlags(&fills, cudaStreamNonBlocking));
    assert_cuda(cudaStreamCreateWithFlags(&adds, cudaStreamNonBlocking));
    assert_cuda(cudaEventCreateWithFlags(&filled, cudaEventDisableTiming));
    assert_cuda(cudaMemsetAsync(x.data, 0, 64 * sizeof(float), fills));
    assert_cuda(cudaEventRecord(filled, fills));
    if (waits) assert_cuda(cudaStreamWaitEvent(adds, filled, 0));
    assert_cuda(TR_LAUNCH(add_one, 1, 64, 0, adds, x.data));
    assert_cuda(cudaStreamSynchronize(adds));
    assert_cuda(cudaStreamSynchronize(fills));
    const bool right = x.read()[63] == 1.0f;
    assert_cuda(cudaEventDestroy(filled));
    assert_cuda(cudaStreamDestroy(fills));
    assert_cuda(cudaStreamDestroy(adds));
    return right;
}

static void test_removed_event_wait_gives_a_wrong_result(void **)
{
    int wrong = 0;
    for (uint64_t seed = 0; seed < 4 * SEEDS; seed++) {
        assert_true(in_order(seed, true));
        wrong += !in_order(seed, false);
    }
    assert_in_range(wrong, 4, 4 * SEEDS); /* the seed decides: about half of them */
}

/* A pinned buffer that is filled again before the copy from it has run. */
static bool buffer_is_waited_for(bool waits)
{
    float *buffer;
    cudaStream_t stream;
    device_array<float> x(16);
    assert_cuda(cudaHostAlloc(reinterpret_cast<void **>(&buffer), 64, cudaHostAllocDefault));
    assert_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamDefault));
    for (int i = 0; i < 16; i++) buffer[i] = 1.0f;
    assert_cuda(cudaMemcpyAsync(x.data, buffer, 64, cudaMemcpyHostToDevice, stream));
    if (waits) assert_cuda(cudaStreamSynchronize(stream));
    for (int i = 0; i < 16; i++) buffer[i] = 2.0f;
    assert_cuda(cudaStreamSynchronize(stream));
    assert_cuda(cudaStreamDestroy(stream));
    assert_cuda(cudaFreeHost(buffer));
    return x.read()[0] == 1.0f;
}

static void test_pinned_buffer_that_is_used_too_early(void **)
{
    assert_true(buffer_is_waited_for(true));
    assert_false(buffer_is_waited_for(false));
}

/* A graph goes on using what was there when it was captured. */
static void test_memory_that_is_freed_too_early(void **)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int *memory, *buffer;
    assert_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    assert_cuda(cudaHostAlloc(reinterpret_cast<void **>(&buffer), 4, cudaHostAllocDefault));
    assert_cuda(cudaMalloc(reinterpret_cast<void **>(&memory), 4));
    assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    assert_cuda(cudaMemcpyAsync(buffer, memory, 4, cudaMemcpyDeviceToHost, stream));
    assert_cuda(cudaStreamEndCapture(stream, &graph));
    assert_cuda(cudaGraphInstantiate(&exec, graph, 0));
    assert_cuda(cudaGraphLaunch(exec, stream));
    assert_cuda(cudaStreamSynchronize(stream));
    assert_cuda(cudaFree(memory));
    assert_cuda(cudaGraphLaunch(exec, stream));
    assert_failure({"cudaMemcpyAsync runs after its memory was freed"});
    assert_cuda(cudaGraphExecDestroy(exec));
    assert_cuda(cudaGraphDestroy(graph));
    assert_cuda(cudaStreamDestroy(stream));
    assert_cuda(cudaFreeHost(buffer));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_removed_barrier_gives_a_wrong_result),
        cmocka_unit_test(test_removed_warp_barrier_gives_a_wrong_result),
        cmocka_unit_test(test_divergent_barrier),
        cmocka_unit_test(test_warp_operations_that_not_all_reach),
        cmocka_unit_test(test_grid_barrier_that_not_all_reach),
        cmocka_unit_test(test_off_by_one_in_a_grid),
        cmocka_unit_test(test_access_to_what_is_not_the_devices),
        cmocka_unit_test(test_stack_that_is_too_small),
        cmocka_unit_test(test_host_dereferences_device_memory),
        cmocka_unit_test(test_removed_event_wait_gives_a_wrong_result),
        cmocka_unit_test(test_pinned_buffer_that_is_used_too_early),
        cmocka_unit_test(test_memory_that_is_freed_too_early),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
