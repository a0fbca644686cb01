/*
 * Products c[i, j] = sum over k of a[i, k] b[k, j], of what loaders read and what `out` does with a sum: matrices of
 * any strides, and images as convolutions see them. A block makes a tile of TILE x TILE sums, 4 x 4 to a thread; a and
 * b pass through shared memory DEPTH of k at a time. Where there are few tiles and k is long, several blocks share k,
 * and a second launch adds their parts in order.
 *
 * A loader of type L has
 *   L::line line_of(int64_t batch, int64_t i)   what it needs to know of row i (of a), column i (of b)
 *   C load(const line &, int64_t k)          its element there
 *   bool by_k                                neighbours in k lie next to each other in memory
 */
#ifndef TRIREME_CUDA_GEMM_H
#define TRIREME_CUDA_GEMM_H

#include "kernel.h"

namespace gemm {

constexpr int TILE = 64, DEPTH = 16, EACH = 4, THREADS = 256;

struct sizes { int64_t m, n, k, batch, depth; /* of k: a block's part */ };

/* A thread's EACH elements of a tile [DEPTH][TILE] of a or b. */
template <class C, class L> struct tile_reader {
    const L &from;
    typename L::line lines[EACH];
    bool valid[EACH];
    int line0, k0, line_step, k_step;

    __device__ tile_reader(const L &loader, int64_t batch, int64_t first, int64_t count) : from(loader)
    {
        int t = threadIdx.x;
        line0 = from.by_k ? t / DEPTH : t % TILE;
        k0 = from.by_k ? t % DEPTH : t / TILE;
        line_step = from.by_k ? THREADS / DEPTH : 0;
        k_step = from.by_k ? 0 : THREADS / TILE;
        for (int e = 0; e < EACH; e++) {
            int64_t i = first + line0 + e * line_step;
            valid[e] = i < count;
            lines[e] = from.line_of(batch, valid[e] ? i : 0);
        }
    }
    __device__ void read(C (*tile)[TILE + 4], int64_t k, int64_t end) const
    {
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            int at = k0 + e * k_step;
            tile[at][line0 + e * line_step] = valid[e] && k + at < end ? (C)from.load(lines[e], k + at) : C(0);
        }
    }
};

/* __grid_constant__: what is indexed at run time stays in constant memory, of which a thread otherwise makes a copy. */
template <class C, class A, class B, class Out>
__global__ void __launch_bounds__(THREADS, 1)
multiply(sizes s, const __grid_constant__ A a, const __grid_constant__ B b, const __grid_constant__ Out out)
{
    using tile = C[TILE + 4]; /* a row of either, padded: threads that write a column meet in fewer banks */
    TR_DYNAMIC_SHARED(tile, of_a);
    tile *of_b = of_a + DEPTH;
    int64_t columns = (s.n + TILE - 1) / TILE, row = blockIdx.x / columns * TILE, column = blockIdx.x % columns * TILE;
    int64_t begin = blockIdx.z * s.depth, end = begin + s.depth < s.k ? begin + s.depth : s.k;
    int y = threadIdx.x / 16 * EACH, x = threadIdx.x % 16 * EACH;
    for (int64_t batch = blockIdx.y; batch < s.batch; batch += gridDim.y) {
        tile_reader<C, A> reads_a(a, batch, row, s.m);
        tile_reader<C, B> reads_b(b, batch, column, s.n);
        C sum[EACH][EACH] = {};
        for (int64_t k = begin; k < end; k += DEPTH) {
            reads_a.read(of_a, k, end);
            reads_b.read(of_b, k, end);
            __syncthreads();
#pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                C left[EACH], right[EACH];
                for (int e = 0; e < EACH; e++) left[e] = of_a[d][y + e];
                for (int e = 0; e < EACH; e++) right[e] = of_b[d][x + e];
                for (int i = 0; i < EACH; i++)
                    for (int e = 0; e < EACH; e++) sum[i][e] += left[i] * right[e];
            }
            __syncthreads();
        }
        for (int i = 0; i < EACH; i++)
            for (int e = 0; e < EACH; e++)
                if (row + y + i < s.m && column + x + e < s.n)
                    out(batch, row + y + i, column + x + e, sum[i][e], blockIdx.z);
    }
}

/* Keeps the parts of sums that several blocks make: [splits][batch][m][n]. */
template <class C> struct keep_part {
    C *parts;
    sizes s;
    __device__ void operator()(int64_t batch, int64_t i, int64_t j, C sum, unsigned split) const
    {
        parts[((split * s.batch + batch) * s.m + i) * s.n + j] = sum;
    }
};

template <class C, class Out>
__global__ void add_parts(sizes s, const C *parts, int splits, const __grid_constant__ Out out)
{
    int64_t of_one = s.batch * s.m * s.n;
    FOR_EACH_OF(e, of_one)
    {
        C sum = parts[e];
        for (int split = 1; split < splits; split++) sum += parts[split * of_one + e];
        out(e / (s.m * s.n), e / s.n % s.m, e % s.n, sum, 0);
    }
}

constexpr int64_t ENOUGH_TILES = 256, LEAST_DEPTH = 256, MOST_SPLITS = 64;

template <class C, class A, class B, class Out>
tr_status run(const job &j, int64_t batch, int64_t m, int64_t n, int64_t k, const A &a, const B &b, const Out &out)
{
    int64_t tiles = parts_of(m, TILE) * parts_of(n, TILE);
    if (tiles * batch == 0) return TR_OK;
    if (tiles > GRID_LIMIT) return TR_DECLINED;
    int64_t splits = least(least(parts_of(ENOUGH_TILES, tiles * batch), k / LEAST_DEPTH), MOST_SPLITS);
    sizes s = {m, n, k, batch, k};
    dim3 grid((unsigned)tiles, (unsigned)least(batch, GRID_YZ_LIMIT));
    size_t shared = 2 * DEPTH * (TILE + 4) * sizeof(C);
    if (splits <= 1) return LAUNCH(j, (multiply<C, A, B, Out>), grid, (unsigned)THREADS, shared, s, a, b, out);
    s.depth = parts_of(parts_of(k, splits), DEPTH) * DEPTH;
    grid.z = (unsigned)parts_of(k, s.depth);
    scratch memory(j, sizeof(C) * (size_t)(grid.z * batch * m * n));
    TRY(memory.status());
    keep_part<C> keep = {memory.template as<C>(), s};
    TRY(LAUNCH(j, (multiply<C, A, B, keep_part<C>>), grid, (unsigned)THREADS, shared, s, a, b, keep));
    return LAUNCH(j, (add_parts<C, Out>), grid_for(batch * m * n), BLOCK, 0, s, keep.parts, (int)grid.z, out);
}

/* A matrix of any strides as a loader: `lines` are a's rows or b's columns. */
template <class T> struct matrix {
    using line = int64_t;
    const T *data;
    axis lines, k, batches;
    bool by_k;
    __device__ line line_of(int64_t batch, int64_t i) const { return batches.at(batch) + lines.at(i); }
    __device__ compute_of<T> load(int64_t at, int64_t i) const { return wide(data[at + k.at(i)]); }
};

} // namespace gemm

#endif
