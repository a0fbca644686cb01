/*
 * CUDA's language for g++, as far as the plug-in's kernels use it: qualifiers, indices, barriers, warp operations and
 * an atomic, so that .cu files run on the CPU. emulator.cc runs blocks; runtime.h is the runtime, cudart.cc its double.
 *
 * A block runs on one thread of the host. Its threads run one after another, in an order that the seed decides, each
 * until it has to wait for others; so whatever a missing barrier lets happen early does happen early. Errors name
 * the block, the thread, the file and the line: a barrier that not all threads reach, a lane that its mask leaves
 * out, a wait without end, an access to memory that is not the device's. Dynamic shared memory and fresh device
 * memory hold NaN.
 *
 * Stricter than a card: a thread must not return before a barrier that others reach, all threads of a barrier or a
 * warp operation are at the same line, the 16-bit types convert explicitly. What it cannot show: speed, memory
 * fences, occupancy, waits of one block for another.
 */
#ifndef TR_TEST_CUDA_EMULATOR_H
#define TR_TEST_CUDA_EMULATOR_H
#define TR_CUDA_EMULATED 1

/* The standard headers come first: some of their names are about to mean something else. */
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "cuda_types.h"
#include "runtime.h"

#define __global__
#define __device__
#define __host__
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define __grid_constant__

/* ---- The engine -------------------------------------------------------------------------------------------------- */

namespace tr_emulator {

/* Where the running thread of the grid is. */
struct place {
    uint3 thread, block;
    dim3 block_dim, grid_dim;
};
extern __thread place here;

struct site {
    const char *file;
    int line;
};
#define TR_SITE tr_emulator::site at = {__builtin_FILE(), __builtin_LINE()}

struct kernel_launch {
    const char *kernel;
    dim3 grid, block;
    size_t shared;
    const void *function;
    std::function<void()> body; /* one thread of the grid */
};

cudaError_t launch(const kernel_launch &launch, cudaStream_t stream);
/* Runs all blocks on the calling thread: what went wrong, or "". */
std::string run(const kernel_launch &launch);
/* Catches faults of memory from now on. */
void watch_faults();
void set_seed(uint64_t seed);
uint64_t random();

/* A barrier of the block. */
void barrier(site at);

/* A warp operation: `slot` is the lane's part of it. The last lane of the mask to arrive computes for all; the slots of
 * lanes that take no part are NULL. */
typedef void warp_function(void *const slots[32]);
void warp_operation(const char *name, warp_function *compute, unsigned mask, void *slot, site at);
inline unsigned lane()
{
    return (here.thread.x + here.block_dim.x * (here.thread.y + here.block_dim.y * here.thread.z)) % 32;
}

void *dynamic_shared();
void copy_async(void *to, const void *from, bool valid);
void copy_commit();
void copy_wait(int left);
[[noreturn]] void trap(const char *what, site at);

/* The doubles of CUDA's libraries, as portable.h asks for them. */
void *library_open(const char *name);
void *library_find(void *library, const char *function);

} /* namespace tr_emulator */

#define threadIdx (tr_emulator::here.thread)
#define blockIdx (tr_emulator::here.block)
#define blockDim (tr_emulator::here.block_dim)
#define gridDim (tr_emulator::here.grid_dim)

template <typename... Parameters, typename... Arguments>
cudaError_t tr_launch(const char *name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
    size_t shared, cudaStream_t stream, Arguments &&...arguments)
{
    std::tuple<std::remove_cv_t<Parameters>...> values(static_cast<Arguments &&>(arguments)...);
    return tr_emulator::launch({name, grid, block, shared, reinterpret_cast<const void *>(kernel),
        [kernel, values] { std::apply(kernel, values); }}, stream);
}

/* ---- Barriers ---------------------------------------------------------------------------------------------------- */

inline void __syncthreads(TR_SITE) { tr_emulator::barrier(at); }
inline void __trap(TR_SITE) { tr_emulator::trap("__trap()", at); }

/* ---- Warp operations --------------------------------------------------------------------------------------------- */

namespace tr_emulator {

/* What is read from a lane that takes no part is undefined on a card; here all its bits are ones, NaN. */
template <typename T>
T shuffle(const char *name, unsigned mask, T value, unsigned source, site at)
{
    static_assert(std::is_trivially_copyable<T>::value, "a shuffle moves bits");
    struct part { T given; unsigned source; T gets; } mine = {value, source, value};
    warp_operation(name, [](void *const slots[32]) {
        for (unsigned i = 0; i < 32; i++) {
            auto *to = static_cast<part *>(slots[i]);
            const auto *from = to ? static_cast<const part *>(slots[to->source]) : nullptr;
            if (from) to->gets = from->given;
            else if (to) memset(static_cast<void *>(&to->gets), 0xff, sizeof to->gets);
        }
    }, mask, &mine, at);
    return mine.gets;
}

void load_matrices(unsigned *r, int count, bool transposed, const void *row, TR_SITE);

struct mma_part {
    float *d;
    const unsigned *a, *b;
};

template <typename T>
void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], TR_SITE)
{
    mma_part mine = {d, a, b};
    warp_operation("mma", [](void *const slots[32]) {
        auto element = [](unsigned pair, unsigned half) {
            return float(tr_bits<T>(static_cast<unsigned short>(pair >> 16 * half)));
        };
        float left[16][16], right[16][8];
        for (unsigned i = 0; i < 32; i++) {
            const auto *part = static_cast<const mma_part *>(slots[i]);
            const unsigned g = i / 4, t = i % 4;
            for (unsigned j = 0; j < 8; j++)
                left[g + 8 * (j / 2 % 2)][2 * t + 8 * (j / 4) + j % 2] = element(part->a[j / 2], j % 2);
            for (unsigned j = 0; j < 4; j++) right[2 * t + 8 * (j / 2) + j % 2][g] = element(part->b[j / 2], j % 2);
        }
        for (unsigned i = 0; i < 128; i++) {
            const unsigned row = i / 8, column = i % 8;
            float &sum = static_cast<mma_part *>(slots[row % 8 * 4 + column / 2])->d[row / 8 * 2 + column % 2];
            for (unsigned k = 0; k < 16; k++) sum += left[row][k] * right[k][column];
        }
    }, ~0u, &mine, at);
}

} /* namespace tr_emulator */

/* `source`: of the lanes of a segment of `width`, by its place there. */
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, TR_SITE)
{
    const auto last = static_cast<unsigned>(width - 1), first = tr_emulator::lane() & ~last;
    return tr_emulator::shuffle("__shfl_sync", mask, value, first | (static_cast<unsigned>(source) & last), at);
}

/* Gives the lane its own value where the other one would lie outside the segment. */
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int flip, int width = 32, TR_SITE)
{
    const unsigned lane = tr_emulator::lane(), other = lane ^ static_cast<unsigned>(flip);
    const bool inside = other <= (lane | static_cast<unsigned>(width - 1));
    return tr_emulator::shuffle("__shfl_xor_sync", mask, value, inside ? other : lane, at);
}

inline void __syncwarp(unsigned mask = ~0u, TR_SITE)
{
    tr_emulator::warp_operation("__syncwarp", [](void *const[32]) {}, mask, nullptr, at);
}

/* ---- Atomics: real ones, for kernels of several host threads may share memory ------------------------------------ */

template <typename T>
T atomicCAS(T *at, std::common_type_t<T> expected, std::common_type_t<T> value)
{
    __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return expected;
}

#endif
