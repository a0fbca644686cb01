/*
 * The language of kernels: each primitive against what CUDA's manual says of it. Built by nvcc, the same tests run
 * on a card, without those of what the emulator adds: poisoned memory, copies that are late, orders by seed.
 */
#include "check.h"

#include <cmath>
#include <stdlib.h>

/* ---- Types ------------------------------------------------------------------------------------------------------- */

static void test_half_rounds_to_even(void **)
{
    const struct { float from; unsigned short to; } cases[] = {
        {0.0f, 0x0000}, {-0.0f, 0x8000}, {1.0f, 0x3c00}, {-2.0f, 0xc000}, {65504.0f, 0x7bff}, {65519.0f, 0x7bff},
        {65520.0f, 0x7c00}, {1e30f, 0x7c00}, {-INFINITY, 0xfc00}, {0x1p-14f, 0x0400}, {0x1p-24f, 0x0001},
        {0x1p-25f, 0x0000},
        {0x1.8p-25f, 0x0001}, {0x1.ff8p-15f, 0x03ff}, {0x1.ffcp-15f, 0x0400}, {1.0f + 0x1p-11f, 0x3c00},
        {1.0f + 0x3p-11f, 0x3c02}, {1.0f + 0x1.2p-11f, 0x3c01}};
    for (const auto &c : cases) assert_int_equal(__half_as_ushort(__float2half_rn(c.from)), c.to);
    assert_true(std::isnan(__half2float(__float2half_rn(NAN))));
    for (unsigned h = 0; h < 0x10000; h++) { /* every half comes back */
        const __half x = __ushort_as_half(static_cast<unsigned short>(h));
        if (!std::isnan(float(x))) assert_int_equal(__half_as_ushort(__half(float(x))), h);
    }
}

static void test_bf16_rounds_to_even(void **)
{
    const struct { float from; unsigned short to; } cases[] = {
        {1.0f, 0x3f80}, {-3.0f, 0xc040}, {1.0f + 0x1p-8f, 0x3f80}, {1.0f + 0x3p-8f, 0x3f82}, {1.0f + 0x1.1p-8f, 0x3f81},
        {3.4e38f, 0x7f80}, {INFINITY, 0x7f80}, {0x1p-133f, 0x0001}};
    for (const auto &c : cases) assert_int_equal(__bfloat16_as_ushort(__float2bfloat16_rn(c.from)), c.to);
    assert_true(std::isnan(float(__nv_bfloat16(NAN))));
}

/* ---- Indices ----------------------------------------------------------------------------------------------------- */

__global__ static void number(int *out)
{
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] += static_cast<int>(block * 1000 + thread);
}

static void test_every_thread_runs_once(void **)
{
    const dim3 grid(3, 2, 5), block(5, 3, 2);
    device_array<int> out(std::vector<int>(30 * 30, 0));
    assert_cuda(TR_LAUNCH(number, grid, block, 0, nullptr, out.data));
    const std::vector<int> got = out.read();
    for (int i = 0; i < 900; i++) assert_int_equal(got[static_cast<size_t>(i)], i / 30 * 1000 + i % 30);
}

/* ---- Barriers ---------------------------------------------------------------------------------------------------- */

/* Rotates n values through shared memory, a place a round. */
__global__ static void rotate(int *values, int rounds, int *votes)
{
    TR_DYNAMIC_SHARED(int, shared);
    __shared__ int first;
    int value = values[threadIdx.x];
    for (int r = 0; r < rounds; r++) {
        shared[threadIdx.x] = value;
        if (threadIdx.x == 0) first = value;
        __syncthreads();
        value = shared[(threadIdx.x + 1) % blockDim.x];
        if (threadIdx.x == blockDim.x - 1 && value != first) value = -1;
        __syncthreads();
    }
    values[threadIdx.x] = value;
    const int count = __syncthreads_count(value % 3 == 0), all = __syncthreads_and(value >= 0),
        any = __syncthreads_or(value < 0);
    if (threadIdx.x == 0) votes[0] = count, votes[1] = all, votes[2] = any;
}

static void test_barriers(void **)
{
    for (int n : {1, 31, 64, 1000}) {
        std::vector<int> start(static_cast<size_t>(n));
        for (int i = 0; i < n; i++) start[static_cast<size_t>(i)] = i;
        device_array<int> values(start), votes(3);
        assert_cuda(TR_LAUNCH(rotate, 1, n, n * sizeof(int), nullptr, values.data, 7, votes.data));
        const std::vector<int> got = values.read(), voted = votes.read();
        for (int i = 0; i < n; i++) assert_int_equal(got[static_cast<size_t>(i)], (i + 7) % n);
        assert_int_equal(voted[0], (n + 2) / 3);
        assert_int_equal(voted[1], 1);
        assert_int_equal(voted[2], 0);
    }
}

#ifdef TR_CUDA_EMULATED
__global__ static void first_words(float *out)
{
    TR_DYNAMIC_SHARED(float, shared);
    out[blockIdx.x] = shared[0];
    shared[0] = 1.0f;
}

static void test_shared_memory_holds_nan(void **)
{
    device_array<float> out(4);
    for (float fresh : out.read()) assert_true(std::isnan(fresh));
    assert_cuda(TR_LAUNCH(first_words, 4, 1, 16, nullptr, out.data));
    for (float word : out.read()) assert_true(std::isnan(word));
}
#endif

/* ---- Warps ------------------------------------------------------------------------------------------------------- */

enum { RESULTS = 16 };

__global__ static void ask_warp(unsigned *out)
{
    const unsigned i = threadIdx.x, lane = i % 32, odd = lane % 2 ? 0xaaaaaaaau : 0x55555555u;
    unsigned *r = out + i * RESULTS;
    *r++ = __shfl_sync(~0u, i, 5);
    *r++ = __shfl_sync(~0u, i, 3, 8);
    *r++ = __shfl_up_sync(~0u, i, 3);
    *r++ = __shfl_up_sync(~0u, i, 3, 8);
    *r++ = __shfl_down_sync(~0u, i, 4);
    *r++ = __shfl_down_sync(~0u, i, 4, 16);
    *r++ = __shfl_xor_sync(~0u, i, 9);
    *r++ = __shfl_xor_sync(~0u, i, 9, 8);
    *r++ = __ballot_sync(~0u, lane % 3 == 0);
    *r++ = static_cast<unsigned>(__any_sync(~0u, lane == 7) + 2 * __any_sync(~0u, lane == 99));
    *r++ = static_cast<unsigned>(__all_sync(~0u, lane < 32) + 2 * __all_sync(~0u, lane));
    *r++ = __match_any_sync(~0u, lane / 10);
    /* Halves of the warp on ways of their own. */
    if (lane % 2) *r++ = __ballot_sync(odd, lane < 4);
    else *r++ = __ballot_sync(odd, lane < 4) + 1000;
    __syncwarp();
    *r++ = __ballot_sync(odd, 1);
    *r++ = static_cast<unsigned>(__double_as_longlong(__shfl_sync(~0u, 1.5 * lane, 3)) >> 32);
    *r++ = __half_as_ushort(__shfl_sync(~0u, __half(static_cast<float>(lane)), 2));
}

static void test_warp_operations(void **)
{
    device_array<unsigned> out(64 * RESULTS);
    assert_cuda(TR_LAUNCH(ask_warp, 1, 64, 0, nullptr, out.data));
    const std::vector<unsigned> got = out.read();
    for (unsigned i = 0; i < 64; i++) {
        const unsigned lane = i % 32, base = i - lane, eight = i & ~7u;
        const unsigned tens = lane < 10 ? 0x3ffu : lane < 20 ? 0xffc00u : lane < 30 ? 0x3ff00000u : 0xc0000000u;
        const double shuffled = 4.5;
        unsigned long long bits;
        memcpy(&bits, &shuffled, sizeof bits);
        const unsigned expected[RESULTS] = {base + 5, eight + 3, lane < 3 ? i : i - 3, lane % 8 < 3 ? i : i - 3,
            lane < 28 ? i + 4 : i, lane % 16 < 12 ? i + 4 : i, base + (lane ^ 9),
            (lane ^ 9) < (lane | 7) + 1 ? base + (lane ^ 9) : i,
            0x49249249u, 1, 1, tens, lane % 2 ? 10u : 1005u, lane % 2 ? 0xaaaaaaaau : 0x55555555u,
            static_cast<unsigned>(bits >> 32), 0x4000};
        for (unsigned k = 0; k < RESULTS; k++)
            if (got[i * RESULTS + k] != expected[k])
                fail_msg("thread %u, result %u: %u, not %u", i, k, got[i * RESULTS + k], expected[k]);
    }
}

#ifdef TR_CUDA_EMULATED
__global__ static void read_absent_lane(float *out)
{
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_down_sync(0xffffu, 1.0f, 8);
}

static void test_lane_that_takes_no_part_gives_nan(void **)
{
    device_array<float> out(16);
    assert_cuda(TR_LAUNCH(read_absent_lane, 1, 32, 0, nullptr, out.data));
    const std::vector<float> got = out.read();
    for (size_t i = 0; i < 16; i++) assert_true(i < 8 ? got[i] == 1.0f : std::isnan(got[i]));
}
#endif

__global__ static void lanes_that_end(int *out)
{
    if (threadIdx.x >= 20) return;
    out[threadIdx.x] = static_cast<int>(__ballot_sync(~0u, 1));
}

/* CUDA asks only lanes that have not ended. */
static void test_lanes_that_ended_are_not_waited_for(void **)
{
    device_array<int> out(20);
    assert_cuda(TR_LAUNCH(lanes_that_end, 1, 32, 0, nullptr, out.data));
    for (int lanes : out.read()) assert_int_equal(lanes, 0xfffff);
}

/* ---- Atomics ----------------------------------------------------------------------------------------------------- */

struct totals {
    int add, least, most, exchanged, cas;
    unsigned bits, wraps;
    float f;
    double d;
    unsigned long long wide;
    __half2 pair;
    __nv_bfloat16 b;
};

__global__ static void count_up(totals *t)
{
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    atomicAdd(&t->add, i);
    atomicMin(&t->least, i);
    atomicMax(&t->most, i);
    atomicExch(&t->exchanged, 7);
    atomicCAS(&t->cas, i, i + 1); /* moves on when threads come in order only */
    atomicOr(&t->bits, 1u << i % 32);
    atomicInc(&t->wraps, 9);
    atomicAdd(&t->f, 0.5f);
    atomicAdd(&t->d, 0.25);
    atomicAdd(&t->wide, 1ull << 40);
    atomicAdd(&t->pair, __half2{__half(1.0f), __half(2.0f)});
    atomicAdd(&t->b, __nv_bfloat16(1.0f));
}

static void test_atomics(void **)
{
    totals zero = {};
    zero.least = 1000;
    device_array<totals> t(std::vector<totals>{zero});
    assert_cuda(TR_LAUNCH(count_up, 2, 64, 0, nullptr, t.data));
    const totals got = t.read()[0];
    assert_int_equal(got.add, 128 * 127 / 2);
    assert_int_equal(got.least, 0);
    assert_int_equal(got.most, 127);
    assert_int_equal(got.exchanged, 7);
    assert_in_range(got.cas, 1, 128);
    assert_int_equal(got.bits, ~0u);
    assert_int_equal(got.wraps, 8);
    assert_true(got.f == 64.0f && got.d == 32.0 && got.wide == 128ull << 40);
    assert_true(float(got.pair.x) == 128.0f && float(got.pair.y) == 256.0f && float(got.b) == 128.0f);
}

/* ---- Matrix instructions and asynchronous copies ----------------------------------------------------------------- */

template <typename T>
__global__ static void multiply(float *d, float *by_shuffles, const T *a, const T *b)
{
    TR_DYNAMIC_SHARED(T, shared); /* a: [16, 16], b: [16, 8] */
    const unsigned lane = threadIdx.x;
    unsigned left[4], right[2], transposed[4];
    float sum[4] = {1, 1, 1, 1}, other[4] = {1, 1, 1, 1};
    tr_cp_async16(shared + lane * 8, a + lane * 8);
    tr_cp_async16(shared + 256 + lane * 8, b + lane * 8, lane < 16);
    tr_cp_async_commit();
    tr_cp_async_wait<0>();
    __syncthreads();
    tr_ldmatrix<4>(left, shared + lane % 16 * 16 + lane / 16 * 8);
    tr_ldmatrix<2, true>(right, shared + 256 + lane % 16 * 8);
    tr_mma<T>(sum, left, right);
    tr_mma_by_shuffles<T>(other, left, right);
    for (unsigned i = 0; i < 4; i++) {
        const unsigned at = (lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2;
        d[at] = sum[i];
        by_shuffles[at] = other[i];
    }
    /* What was not valid is zero. */
    tr_ldmatrix<4, true>(transposed, shared + 384 + lane % 8 * 8);
    if (transposed[0] | transposed[3]) d[0] = NAN;
}

template <typename T>
static void multiply_once()
{
    std::vector<T> a(256), b(128);
    for (size_t i = 0; i < 256; i++) a[i] = T(static_cast<float>(rand() % 17 - 8));
    for (size_t i = 0; i < 128; i++) b[i] = T(static_cast<float>(rand() % 17 - 8));
    device_array<T> left(a), right(b);
    device_array<float> d(128), by_shuffles(128);
    assert_cuda(TR_LAUNCH(multiply<T>, 1, 32, 512 * sizeof(T), nullptr, d.data, by_shuffles.data, left.data,
        right.data));
    const std::vector<float> got = d.read(), other = by_shuffles.read();
    for (size_t i = 0; i < 128; i++) {
        float sum = 1;
        for (size_t k = 0; k < 16; k++) sum += float(a[i / 8 * 16 + k]) * float(b[k * 8 + i % 8]);
        assert_true(got[i] == sum && other[i] == sum);
    }
}

static void test_matrix_instructions(void **)
{
    multiply_once<__half>();
    multiply_once<__nv_bfloat16>();
}

#ifdef TR_CUDA_EMULATED
/* WAITS: for the first of two groups; else for none of them. */
template <bool WAITS>
__global__ static void copy_late(float *out, const float *from)
{
    TR_DYNAMIC_SHARED(float, shared);
    tr_cp_async16(shared + threadIdx.x * 4, from + threadIdx.x * 4);
    tr_cp_async_commit();
    tr_cp_async16(shared + 128 + threadIdx.x * 4, from + threadIdx.x * 4);
    tr_cp_async_commit();
    if (WAITS) tr_cp_async_wait<1>();
    else tr_cp_async_wait<2>();
    for (unsigned i = 0; i < 4; i++) out[threadIdx.x * 4 + i] = shared[threadIdx.x * 4 + i];
}

static void test_asynchronous_copy_comes_with_its_wait(void **)
{
    std::vector<float> from(128);
    for (size_t i = 0; i < 128; i++) from[i] = static_cast<float>(i);
    device_array<float> source(from), out(128);
    assert_cuda(TR_LAUNCH(copy_late<true>, 1, 32, 1024, nullptr, out.data, source.data));
    assert_true(out.read() == from);
    assert_cuda(TR_LAUNCH(copy_late<false>, 1, 32, 1024, nullptr, out.data, source.data));
    assert_false(out.read() == from);
}
#endif

/* ---- Cooperative launches ---------------------------------------------------------------------------------------- */

__global__ static void sum_of_all(int *out, int *sums)
{
    __shared__ int mine;
    if (threadIdx.x == 0) mine = static_cast<int>(blockIdx.x) + 1;
    __syncthreads();
    if (threadIdx.x == 1) out[blockIdx.x] = mine;
    tr_grid_sync();
    int sum = 0;
    for (unsigned i = 0; i < gridDim.x; i++) sum += out[i];
    tr_grid_sync();
    if (threadIdx.x == 0) sums[blockIdx.x] = sum * 100 + mine;
}

static void test_cooperative_launch(void **)
{
    device_array<int> out(20), sums(20);
    assert_cuda(TR_LAUNCH_COOPERATIVE(sum_of_all, 20, 64, 0, nullptr, out.data, sums.data));
    const std::vector<int> got = sums.read();
    for (int i = 0; i < 20; i++) assert_int_equal(got[static_cast<size_t>(i)], 21000 + i + 1);
    assert_int_equal(TR_LAUNCH_COOPERATIVE(sum_of_all, 1000, 64, 0, nullptr, out.data, sums.data),
        cudaErrorCooperativeLaunchTooLarge);
}

#ifdef TR_CUDA_EMULATED
/* ---- Orders ------------------------------------------------------------------------------------------------------ */

__global__ static void take_number(int *next, int *order)
{
    order[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(next, 1);
}

static std::vector<int> order_of(uint64_t seed)
{
    device_array<int> next(std::vector<int>{0}), order(8 * 64);
    tr_emulator::set_seed(seed);
    assert_cuda(TR_LAUNCH(take_number, 8, 64, 0, nullptr, next.data, order.data));
    return order.read();
}

static void test_seed_decides_the_order(void **)
{
    const std::vector<int> first = order_of(1), again = order_of(1), other = order_of(2);
    assert_true(first == again);
    assert_false(first == other);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_half_rounds_to_even),
        cmocka_unit_test(test_bf16_rounds_to_even),
        cmocka_unit_test(test_every_thread_runs_once),
        cmocka_unit_test(test_barriers),
        cmocka_unit_test(test_warp_operations),
        cmocka_unit_test(test_lanes_that_ended_are_not_waited_for),
        cmocka_unit_test(test_atomics),
        cmocka_unit_test(test_matrix_instructions),
        cmocka_unit_test(test_cooperative_launch),
#ifdef TR_CUDA_EMULATED
        cmocka_unit_test(test_shared_memory_holds_nan),
        cmocka_unit_test(test_lane_that_takes_no_part_gives_nan),
        cmocka_unit_test(test_asynchronous_copy_comes_with_its_wait),
        cmocka_unit_test(test_seed_decides_the_order),
#endif
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
