/*
 * Groups of threads, each of which makes one result: a block is blockDim.x results side by side, of blockDim.y
 * threads each. Where a result's elements lie next to each other, blockDim.x is 1 and the threads are lanes of
 * warps; where results lie next to each other, neighbouring threads read neighbouring elements of different results.
 */
#ifndef TRIREME_CUDA_THREAD_GROUP_H
#define TRIREME_CUDA_THREAD_GROUP_H

#include "elementwise.h"

struct thread_groups {
    dim3 block;     /* results side by side, threads of each */
    int64_t blocks; /* for all results */
};

/* For so many results of so many elements each. side_by_side: results are neighbours in memory. */
inline thread_groups groups_of(int64_t results, int64_t each, bool side_by_side)
{
    thread_groups t;
    unsigned x = 1, y = 32;
    if (each <= 16) {
        x = BLOCK;
        y = 1;
    } else if (side_by_side && results > 1) {
        x = 32;
        for (y = 8; y > 1 && y * 4 > each; y /= 2) {}
    } else {
        while (y < BLOCK && y < each) y *= 2;
    }
    t.block = dim3(x, y);
    t.blocks = parts_of(results, x);
    return t;
}

/* Calls f(load(i), i) for i = begin, begin + step, … below end, in this order; N loads are under way at once, which the
 * compiler makes of no loop whose step it does not know. A: what load makes. */
template <int N, class A, class Load, class F>
__device__ inline void each_loaded(int64_t begin, int64_t end, int64_t step, const Load &load, const F &f)
{
    for (int64_t first = begin; first < end; first += N * step) {
        A loaded[N];
#pragma unroll
        for (int u = 0; u < N; u++)
            if (int64_t i = first + u * step; i < end) loaded[u] = load(i);
#pragma unroll
        for (int u = 0; u < N; u++)
            if (int64_t i = first + u * step; i < end) f(loaded[u], i);
    }
}

template <class A> __device__ inline A from_lane(A value, int mask)
{
    static_assert(sizeof(A) % 4 == 0, "words are shuffled");
    uint32_t words[sizeof(A) / 4];
    memcpy(words, &value, sizeof value);
    for (unsigned i = 0; i < sizeof(A) / 4; i++) words[i] = __shfl_xor_sync(0xffffffffu, words[i], mask);
    memcpy(&value, words, sizeof value);
    return value;
}

template <class A> __device__ inline A from_first_lane(A value)
{
    uint32_t words[sizeof(A) / 4];
    memcpy(words, &value, sizeof value);
    for (unsigned i = 0; i < sizeof(A) / 4; i++) words[i] = __shfl_sync(0xffffffffu, words[i], 0);
    memcpy(&value, words, sizeof value);
    return value;
}

/* All threads of a result get what its threads' values combine to, in an order that only depends on the block. Every
 * thread of the block calls it; combine is commutative. */
template <class A, class F> __device__ inline A reduce_in_group(A value, const F &combine)
{
    __shared__ A shared[BLOCK];
    if (blockDim.y == 1) return value;
    if (blockDim.x == 1) {
        for (int mask = 16; mask; mask /= 2) value = combine(value, from_lane(value, mask));
        if (blockDim.y == 32) return from_first_lane(value);
        if (threadIdx.y % 32 == 0) shared[threadIdx.y / 32] = value;
        __syncthreads();
        value = shared[0];
        for (unsigned warp = 1; warp < blockDim.y / 32; warp++) value = combine(value, shared[warp]);
        __syncthreads(); /* before the next call writes there */
        return value;
    }
    shared[threadIdx.y * blockDim.x + threadIdx.x] = value;
    __syncthreads();
    value = shared[threadIdx.x];
    for (unsigned y = 1; y < blockDim.y; y++) value = combine(value, shared[y * blockDim.x + threadIdx.x]);
    __syncthreads();
    return value;
}

/* The same where the threads of a result are neighbours: blockDim.x of them, a multiple of 32. */
template <class A, class F> __device__ inline A reduce_in_warps(A value, const F &combine)
{
    __shared__ A shared[BLOCK / 32];
    for (int mask = 16; mask; mask /= 2) value = combine(value, from_lane(value, mask));
    if (blockDim.x == 32) return value;
    unsigned warps = blockDim.x / 32, first = threadIdx.y * warps;
    if (threadIdx.x % 32 == 0) shared[first + threadIdx.x / 32] = value;
    __syncthreads();
    value = shared[first];
    for (unsigned warp = 1; warp < warps; warp++) value = combine(value, shared[first + warp]);
    __syncthreads();
    return value;
}

/* ---- A result's elements as a row -------------------------------------------------------------------------------- */

/* A row of each of N tensors. */
template <class T, int N> struct row_of {
    T *at[N];
    int64_t step[N];

    /* Elements before the first that vectors of 16 bytes begin with in all rows; n: vectors cannot be moved. */
    __device__ int64_t lead(int64_t n) const
    {
        constexpr uintptr_t MASK = 15;
        int64_t lead = (int64_t)(((0 - (uintptr_t)at[0]) & MASK) / sizeof(T));
        bool packed = blockDim.x == 1 && lead < n;
        for (int k = 0; k < N; k++)
            packed = packed && step[k] == 1 && (((uintptr_t)at[k] ^ (uintptr_t)at[0]) & MASK) == 0;
        return packed ? lead : n;
    }
};

/* A row in vectors of 16 bytes, of V elements, and the single elements before and behind them. */
template <int V> struct row_parts {
    int64_t lead, packs, singles;
    __device__ row_parts(int64_t lead, int64_t n) : lead(lead), packs((n - lead) / V), singles(n - packs * V) {}
    __device__ int64_t single(int64_t i) const { return i < lead ? i : i + packs * V; }
};

/* Calls f(i, x) for the elements of the row that this thread works on; x[k]: tensor k's. */
template <class T, int N, class F>
__device__ inline void each_of_row(const row_of<const T, N> &row, int64_t n, const F &f)
{
    constexpr int V = 16 / sizeof(T);
    compute_of<T> x[N];
    row_parts<V> parts(row.lead(n), n);
    for (int64_t p = threadIdx.y; p < parts.packs; p += blockDim.y) {
        pack<T, V> read[N];
        int64_t first = parts.lead + p * V;
        for (int k = 0; k < N; k++) read[k] = *(const pack<T, V> *)(row.at[k] + first);
#pragma unroll
        for (int e = 0; e < V; e++) {
            for (int k = 0; k < N; k++) x[k] = wide(read[k].at[e]);
            f(first + e, x);
        }
    }
    for (int64_t s = threadIdx.y; s < parts.singles; s += blockDim.y) {
        int64_t i = parts.single(s);
        for (int k = 0; k < N; k++) x[k] = wide(row.at[k][i * row.step[k]]);
        f(i, x);
    }
}

/* The same, and what f returns is written to `to`, which may be one of the rows. */
template <class T, int N, class F>
__device__ inline void map_row(const row_of<T, 1> &to, const row_of<const T, N> &row, int64_t n, const F &f)
{
    constexpr int V = 16 / sizeof(T), AT_ONCE = 2; /* packs of a row that are under way */
    compute_of<T> x[N];
    bool alike = to.lead(n) == row.lead(n);
    row_parts<V> parts(alike ? row.lead(n) : n, n);
    for (int64_t p = threadIdx.y; p < parts.packs; p += AT_ONCE * blockDim.y) {
        pack<T, V> read[AT_ONCE][N], made;
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (int64_t at = p + u * blockDim.y; at < parts.packs)
                for (int k = 0; k < N; k++) read[u][k] = ((const pack<T, V> *)(row.at[k] + parts.lead))[at];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (int64_t at = p + u * blockDim.y; at < parts.packs) {
#pragma unroll
                for (int e = 0; e < V; e++) {
                    for (int k = 0; k < N; k++) x[k] = wide(read[u][k].at[e]);
                    made.at[e] = narrow<T>(f(parts.lead + at * V + e, x));
                }
                ((pack<T, V> *)(to.at[0] + parts.lead))[at] = made;
            }
    }
    for (int64_t s = threadIdx.y; s < parts.singles; s += blockDim.y) {
        int64_t i = parts.single(s);
        for (int k = 0; k < N; k++) x[k] = wide(row.at[k][i * row.step[k]]);
        to.at[0][i * to.step[0]] = narrow<T>(f(i, x));
    }
}

/* The groups for rows of n elements of so many bytes, `step` apart. */
inline thread_groups groups_of_rows(int64_t rows, int64_t n, int64_t step, size_t bytes)
{
    return groups_of(rows, step == 1 && n > 32 ? most(32, parts_of(n, 16 / (int64_t)bytes)) : n, step != 1);
}

struct plus_of {
    template <class C> __device__ C operator()(C a, C b) const { return a + b; }
};

/* Two sums that are made at once. */
template <class C> struct alignas(2 * sizeof(C)) two { C first, second; };
struct both_of {
    template <class C> __device__ two<C> operator()(two<C> a, two<C> b) const
    {
        return two<C>{a.first + b.first, a.second + b.second};
    }
};

#endif
