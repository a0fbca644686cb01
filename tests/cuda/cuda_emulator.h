/*
 * CUDA's language for g++: qualifiers, indices, barriers, warp operations and atomics, so that a .cu
 * file runs on the CPU. emulator.cc runs the blocks; runtime.h declares the runtime, whose double is cudart.cc.
 *
 * A block runs on one thread of the host. Its threads run one after another, in an order that the seed decides, each
 * until it has to wait for others; so whatever a missing barrier lets happen early does happen early. Errors name
 * the block, the thread, the file and the line: a barrier that not all threads reach, a lane that its mask leaves
 * out, a wait without end, an access to memory that is not the device's. Dynamic shared memory and fresh device
 * memory hold NaN.
 *
 * Stricter than a card: a thread must not return before a barrier that others reach, all threads of a barrier or a
 * warp operation are at the same line, the 16-bit types convert explicitly. What it cannot show: speed, memory
 * fences, occupancy, waits of one block for another outside cooperative launches.
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
#include "fiber.h"
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
inline const place &here() { return *static_cast<const place *>(fiber_owner()); }

struct site {
    const char *file;
    int line;
};
#define TR_SITE tr_emulator::site at = {__builtin_FILE(), __builtin_LINE()}

struct kernel_launch {
    const char *kernel;
    dim3 grid, block;
    size_t shared;
    bool cooperative;
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

/* Barriers of the block; what its threads passed is combined. */
enum class combine { none, count, all, any, grid };
int barrier(combine how, int value, site at);

/* A warp operation: `slot` is the lane's part of it. The last lane of the mask to arrive computes for all; the slots of
 * lanes that take no part are NULL. */
typedef void warp_function(void *const slots[32]);
void warp_operation(const char *name, warp_function *compute, unsigned mask, void *slot, site at);
inline unsigned lane()
{
    const auto &[thread, block, size, grid] = here();
    return (thread.x + size.x * (thread.y + size.y * thread.z)) % 32;
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

#define threadIdx (tr_emulator::here().thread)
#define blockIdx (tr_emulator::here().block)
#define blockDim (tr_emulator::here().block_dim)
#define gridDim (tr_emulator::here().grid_dim)

template <typename... Parameters, typename... Arguments>
cudaError_t tr_launch(const char *name, bool cooperative, void (*kernel)(Parameters...), dim3 grid, dim3 block,
    size_t shared, cudaStream_t stream, Arguments &&...arguments)
{
    std::tuple<std::remove_cv_t<Parameters>...> values(static_cast<Arguments &&>(arguments)...);
    return tr_emulator::launch({name, grid, block, shared, cooperative, reinterpret_cast<const void *>(kernel),
        [kernel, values] { std::apply(kernel, values); }}, stream);
}

/* ---- Barriers ---------------------------------------------------------------------------------------------------- */

inline void __syncthreads(TR_SITE) { tr_emulator::barrier(tr_emulator::combine::none, 0, at); }
inline int __syncthreads_count(int p, TR_SITE) { return tr_emulator::barrier(tr_emulator::combine::count, p, at); }
inline int __syncthreads_and(int p, TR_SITE) { return tr_emulator::barrier(tr_emulator::combine::all, p, at); }
inline int __syncthreads_or(int p, TR_SITE) { return tr_emulator::barrier(tr_emulator::combine::any, p, at); }
inline void tr_grid_sync(TR_SITE) { tr_emulator::barrier(tr_emulator::combine::grid, 0, at); }
inline void __trap(TR_SITE) { tr_emulator::trap("__trap()", at); }

/* ---- Warp operations --------------------------------------------------------------------------------------------- */

namespace tr_emulator {

/* Each lane gives a value and gets what RESULT, which has no state, makes of those of all lanes (NULL: it takes no part)
 * and its own number. */
template <typename T, typename RESULT>
auto exchange(const char *name, unsigned mask, const T &value, site at, RESULT result)
{
    const T *none[32] = {};
    struct part { T given; decltype(result(none, 0u)) gets; } mine = {value, {}};
    warp_operation(name, [](void *const slots[32]) {
        const T *given[32];
        for (unsigned i = 0; i < 32; i++) given[i] = slots[i] ? &static_cast<part *>(slots[i])->given : nullptr;
        for (unsigned i = 0; i < 32; i++)
            if (slots[i]) static_cast<part *>(slots[i])->gets = RESULT{}(given, i);
    }, mask, &mine, at);
    return mine.gets;
}

/* What is read from a lane that takes no part is undefined on a card; here all its bits are ones, NaN. */
template <typename T>
T shuffle(const char *name, unsigned mask, T value, unsigned source, site at)
{
    static_assert(std::is_trivially_copyable<T>::value, "a shuffle moves bits");
    struct request { T value; unsigned source; };
    return exchange(name, mask, request{value, source}, at, [](const request *const *given, unsigned lane) {
        const request *from = given[given[lane]->source];
        T bits;
        if (!from) memset(static_cast<void *>(&bits), 0xff, sizeof bits);
        return from ? from->value : bits;
    });
}

/* The lanes that give the same value as this one. */
template <typename T>
unsigned same(const char *name, unsigned mask, T value, site at)
{
    return exchange(name, mask, value, at, [](const T *const *given, unsigned lane) {
        unsigned set = 0;
        for (unsigned i = 0; i < 32; i++) set |= (given[i] && *given[i] == *given[lane] ? 1u : 0u) << i;
        return set;
    });
}

/* The lanes that pass true. */
inline unsigned ballot(const char *name, unsigned mask, int p, site at)
{
    return exchange(name, mask, p != 0, at, [](const bool *const *given, unsigned) {
        unsigned set = 0;
        for (unsigned i = 0; i < 32; i++) set |= (given[i] && *given[i] ? 1u : 0u) << i;
        return set;
    });
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

/* These three give the lane its own value where the other one would lie outside the segment. */
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, TR_SITE)
{
    const unsigned lane = tr_emulator::lane(), place = lane & static_cast<unsigned>(width - 1);
    return tr_emulator::shuffle("__shfl_up_sync", mask, value, place < delta ? lane : lane - delta, at);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, TR_SITE)
{
    const unsigned lane = tr_emulator::lane(), place = lane & static_cast<unsigned>(width - 1);
    const bool inside = place + delta < static_cast<unsigned>(width);
    return tr_emulator::shuffle("__shfl_down_sync", mask, value, inside ? lane + delta : lane, at);
}

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

template <typename T>
unsigned __match_any_sync(unsigned mask, T v, TR_SITE) { return tr_emulator::same("__match_any_sync", mask, v, at); }
inline unsigned __ballot_sync(unsigned mask, int p, TR_SITE)
{
    return tr_emulator::ballot("__ballot_sync", mask, p, at);
}
inline int __any_sync(unsigned mask, int p, TR_SITE) { return tr_emulator::ballot("__any_sync", mask, p, at) != 0; }
inline int __all_sync(unsigned mask, int p, TR_SITE) { return tr_emulator::ballot("__all_sync", mask, !p, at) == 0; }

/* ---- Atomics: real ones, for kernels of several host threads may share memory ------------------------------------ */

namespace tr_emulator {

template <typename T, typename F>
T atomic_update(T *at, F next)
{
    typedef std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>> word;
    static_assert(sizeof(T) == sizeof(word), "atomics are of 2, 4 and 8 bytes");
    auto *cell = reinterpret_cast<word __attribute__((may_alias)) *>(at);
    word old = __atomic_load_n(cell, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(cell, &old, tr_bits<word>(next(tr_bits<T>(old))), false, __ATOMIC_SEQ_CST,
        __ATOMIC_SEQ_CST)) continue;
    return tr_bits<T>(old);
}

} /* namespace tr_emulator */

#define TR_ATOMIC(name, expression)                                                                               \
    template <typename T>                                                                                         \
    T name(T *at, std::common_type_t<T> value)                                                                    \
    {                                                                                                             \
        return tr_emulator::atomic_update(at, [value](T old) { return static_cast<T>(expression); });             \
    }
TR_ATOMIC(atomicAdd, old + value)
TR_ATOMIC(atomicMin, value < old ? value : old)
TR_ATOMIC(atomicMax, old < value ? value : old)
TR_ATOMIC(atomicOr, old | value)
TR_ATOMIC(atomicExch, ((void)old, value))
TR_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
#undef TR_ATOMIC

template <typename T>
T atomicCAS(T *at, std::common_type_t<T> expected, std::common_type_t<T> value)
{
    return tr_emulator::atomic_update(at, [=](T old) { return old == expected ? value : old; });
}

inline __half atomicAdd(__half *at, __half v)
{
    return tr_emulator::atomic_update(at, [v](__half old) { return __half(float(old) + float(v)); });
}
inline __half2 atomicAdd(__half2 *at, __half2 v) { return {atomicAdd(&at->x, v.x), atomicAdd(&at->y, v.y)}; }
inline __nv_bfloat16 atomicAdd(__nv_bfloat16 *at, __nv_bfloat16 v)
{
    return tr_emulator::atomic_update(at, [v](__nv_bfloat16 old) { return __nv_bfloat16(float(old) + float(v)); });
}

#endif
