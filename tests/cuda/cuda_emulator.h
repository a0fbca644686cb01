/*
 * CUDA's language for g++: qualifiers, indices, barriers, warp operations, atomics and arithmetic, so that a .cu
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
#include <tuple>
#include <type_traits>
#include <utility>

#include "cuda_types.h"
#include "runtime.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ static thread_local
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
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
    bool cooperative;
    const void *function;
    std::function<void()> body; /* one thread of the grid */
};

/* Runs all blocks on the calling thread. NULL, or what went wrong, until the next call on this thread. */
const char *run(const kernel_launch &launch);
void set_seed(uint64_t seed);
uint64_t random();

/* Barriers of the block; what its threads passed is combined. */
enum class combine { none, count, all, any, grid };
int barrier(combine how, int value, site at);

/* A warp operation: `slot` is the lane's part of it. The last lane of the mask to arrive computes for all. */
typedef void warp_function(void *const slots[32], unsigned mask);
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
static const int warpSize = 32;

template <typename... Parameters, typename... Arguments>
cudaError_t tr_launch(const char *name, bool cooperative, void (*kernel)(Parameters...), dim3 grid, dim3 block,
    size_t shared, cudaStream_t stream, Arguments &&...arguments)
{
    std::tuple<std::remove_cv_t<Parameters>...> values(static_cast<Arguments &&>(arguments)...);
    return tr_emulator_launch({name, grid, block, shared, cooperative, reinterpret_cast<const void *>(kernel),
        [kernel, values] { std::apply(kernel, values); }}, stream);
}

/* ---- Barriers ---------------------------------------------------------------------------------------------------- */

inline void __syncthreads(TR_SITE) { tr_emulator::barrier(tr_emulator::combine::none, 0, at); }
inline int __syncthreads_count(int p, TR_SITE) { return tr_emulator::barrier(tr_emulator::combine::count, p, at); }
inline int __syncthreads_and(int p, TR_SITE) { return tr_emulator::barrier(tr_emulator::combine::all, p, at); }
inline int __syncthreads_or(int p, TR_SITE) { return tr_emulator::barrier(tr_emulator::combine::any, p, at); }
inline void tr_grid_sync(TR_SITE) { tr_emulator::barrier(tr_emulator::combine::grid, 0, at); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __threadfence(); }
inline void __trap(TR_SITE) { tr_emulator::trap("__trap()", at); }

/* ---- Warp operations --------------------------------------------------------------------------------------------- */

namespace tr_emulator {

template <typename T>
struct exchange {
    T value, result;
    unsigned source; /* lane, operation or size */
};

/* What is read from a lane that takes no part is undefined on a card; here all its bits are ones, NaN. */
template <typename T>
T shuffle(const char *name, unsigned mask, T value, unsigned source, site at)
{
    static_assert(std::is_trivially_copyable<T>::value, "a shuffle moves bits");
    exchange<T> mine = {value, value, source};
    warp_operation(name, [](void *const slots[32], unsigned lanes) {
        for (unsigned i = 0; i < 32; i++) {
            if (!(lanes >> i & 1)) continue;
            auto *to = static_cast<exchange<T> *>(slots[i]);
            if (lanes >> to->source & 1) to->result = static_cast<exchange<T> *>(slots[to->source])->value;
            else memset(static_cast<void *>(&to->result), 0xff, sizeof(T));
        }
    }, mask, &mine, at);
    return mine.result;
}

/* The lanes that pass true. */
inline unsigned ballot(const char *name, unsigned mask, int p, site at)
{
    exchange<unsigned> mine = {p ? 1u : 0u, 0, 0};
    warp_operation(name, [](void *const slots[32], unsigned lanes) {
        unsigned set = 0;
        for (unsigned i = 0; i < 32; i++)
            if (lanes >> i & 1) set |= static_cast<exchange<unsigned> *>(slots[i])->value << i;
        for (unsigned i = 0; i < 32; i++)
            if (lanes >> i & 1) static_cast<exchange<unsigned> *>(slots[i])->result = set;
    }, mask, &mine, at);
    return mine.result;
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
    warp_operation("mma", [](void *const slots[32], unsigned) {
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

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, TR_SITE)
{
    const unsigned first = tr_emulator::lane() & ~static_cast<unsigned>(width - 1);
    return tr_emulator::shuffle("__shfl_sync", mask, value,
        first | (static_cast<unsigned>(source) & static_cast<unsigned>(width - 1)), at);
}

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
    const bool inside = other < (lane | static_cast<unsigned>(width - 1)) + 1;
    return tr_emulator::shuffle("__shfl_xor_sync", mask, value, inside ? other : lane, at);
}

inline void __syncwarp(unsigned mask = ~0u, TR_SITE)
{
    tr_emulator::warp_operation("__syncwarp", [](void *const[32], unsigned) {}, mask, nullptr, at);
}

inline unsigned __ballot_sync(unsigned mask, int p, TR_SITE)
{
    return tr_emulator::ballot("__ballot_sync", mask, p, at);
}

inline int __any_sync(unsigned mask, int p, TR_SITE)
{
    return tr_emulator::ballot("__any_sync", mask, p, at) != 0;
}

inline int __all_sync(unsigned mask, int p, TR_SITE)
{
    return tr_emulator::ballot("__all_sync", mask, !p, at) == 0;
}

/* The lanes that hold the same value as this one. */
template <typename T>
unsigned __match_any_sync(unsigned mask, T value, TR_SITE)
{
    tr_emulator::exchange<T> mine = {value, value, 0};
    tr_emulator::warp_operation("__match_any_sync", [](void *const slots[32], unsigned lanes) {
        for (unsigned i = 0; i < 32; i++)
            for (unsigned j = 0; j < 32; j++) {
                if (!(lanes >> i & 1) || !(lanes >> j & 1)) continue;
                auto *a = static_cast<tr_emulator::exchange<T> *>(slots[i]);
                if (a->value == static_cast<tr_emulator::exchange<T> *>(slots[j])->value) a->source |= 1u << j;
            }
    }, mask, &mine, at);
    return mine.source;
}

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
TR_ATOMIC(atomicSub, old - value)
TR_ATOMIC(atomicMin, value < old ? value : old)
TR_ATOMIC(atomicMax, old < value ? value : old)
TR_ATOMIC(atomicAnd, old & value)
TR_ATOMIC(atomicOr, old | value)
TR_ATOMIC(atomicXor, old ^ value)
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
inline __nv_bfloat16 atomicAdd(__nv_bfloat16 *at, __nv_bfloat16 v)
{
    return tr_emulator::atomic_update(at, [v](__nv_bfloat16 old) { return __nv_bfloat16(float(old) + float(v)); });
}
inline __half2 atomicAdd(__half2 *at, __half2 v) { return {atomicAdd(&at->x, v.x), atomicAdd(&at->y, v.y)}; }
inline __nv_bfloat162 atomicAdd(__nv_bfloat162 *at, __nv_bfloat162 v)
{
    return {atomicAdd(&at->x, v.x), atomicAdd(&at->y, v.y)};
}

/* ---- Arithmetic -------------------------------------------------------------------------------------------------- */

#define TR_MINMAX(type)                                                   \
    inline type min(type a, type b) { return b < a ? b : a; }             \
    inline type max(type a, type b) { return a < b ? b : a; }
TR_MINMAX(int) TR_MINMAX(unsigned) TR_MINMAX(long) TR_MINMAX(unsigned long) TR_MINMAX(long long)
TR_MINMAX(unsigned long long)
#undef TR_MINMAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float exp10f(float x) { return powf(10.0f, x); }
inline void sincospif(float x, float *s, float *c) { sincosf(x * 3.14159265358979f, s, c); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline void __sincosf(float x, float *s, float *c) { sincosf(x, s, c); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float __double2float_rn(double x) { return static_cast<float>(x); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(nearbyintf(x)); }
inline int __float2int_rd(float x) { return static_cast<int>(floorf(x)); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __brev(unsigned x)
{
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (x >> i & 1u) << (31 - i);
    return r;
}
inline unsigned __umulhi(unsigned x, unsigned y)
{
    return static_cast<unsigned>(static_cast<unsigned long long>(x) * y >> 32);
}
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y)
{
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}

template <typename T> T __ldg(const T *at) { return *at; }
template <typename T> T __ldcs(const T *at) { return *at; }
template <typename T> T __ldcg(const T *at) { return *at; }
template <typename T> void __stcs(T *at, T value) { *at = value; }
template <typename T> void __stcg(T *at, T value) { *at = value; }

#endif
