/*
 * Batcher's bitonic sort of rows, and topk by it. Comparisons up to CHUNK apart are made in shared memory, wider ones
 * on the whole row. Keys with their places are all different, so the order is the same on every run.
 */
#include "sort.h"

#include "families.h"

constexpr int CHUNK = 1024;

__device__ static void compare_and_swap(entry *entries, int64_t low, int64_t step, bool ascending)
{
    entry a = entries[low], b = entries[low + step];
    if (before(b, a) != ascending) return;
    entries[low] = b;
    entries[low + step] = a;
}

/* The pair'th of the pairs that lie `step` apart, a power of two: its lower place. */
__device__ static int64_t lower_of(int64_t pair, int64_t step)
{
    return 2 * pair - (pair & (step - 1));
}

/* Makes runs of `from` … `to` entries of the row's chunks sorted, up and down in turn; a chunk is `chunk` entries. */
__global__ static void sort_chunks(entry *entries, int64_t padded, int chunk, int64_t from, int64_t to)
{
    __shared__ entry shared[CHUNK];
    int64_t begin = (int64_t)blockIdx.x * chunk;
    for (int i = threadIdx.x; i < chunk; i += blockDim.x) shared[i] = entries[begin + i];
    __syncthreads();
    for (int64_t run = from; run <= to; run *= 2)
        for (int64_t step = (run < chunk ? run : chunk) / 2; step > 0; step /= 2) {
            for (int pair = threadIdx.x; pair < chunk / 2; pair += blockDim.x) {
                int64_t low = lower_of(pair, step), in_row = (begin + low) & (padded - 1);
                compare_and_swap(shared, low, step, (in_row & run) == 0);
            }
            __syncthreads();
        }
    for (int i = threadIdx.x; i < chunk; i += blockDim.x) entries[begin + i] = shared[i];
}

/* Comparisons `step` apart, for runs of `run`. */
__global__ static void sort_step(entry *entries, int64_t padded, int64_t pairs, int64_t run, int64_t step)
{
    FOR_EACH_OF(pair, pairs)
    {
        int64_t low = lower_of(pair, step);
        compare_and_swap(entries, low, step, ((low & (padded - 1)) & run) == 0);
    }
}

tr_status sort_rows(const job &j, entry *entries, int64_t rows, int64_t padded)
{
    if (padded == 1 || rows == 0) return TR_OK;
    int chunk = (int)least(padded, CHUNK);
    unsigned chunks = (unsigned)(rows * padded / chunk), threads = (unsigned)most(chunk / 2, 32);
    TRY(LAUNCH(j, sort_chunks, chunks, threads, 0, entries, padded, chunk, (int64_t)2, (int64_t)chunk));
    for (int64_t run = 2 * CHUNK; run <= padded; run *= 2) {
        int64_t pairs = rows * padded / 2;
        for (int64_t step = run / 2; step >= CHUNK; step /= 2)
            TRY(LAUNCH(j, sort_step, grid_for(pairs), BLOCK, 0, entries, padded, pairs, run, step));
        TRY(LAUNCH(j, sort_chunks, chunks, threads, 0, entries, padded, chunk, run, run));
    }
    return TR_OK;
}

/* ---- topk: the first k in order, and where they were; all of them: a sort ---------------------------------------- */

/* Larger numbers have larger keys, NaN the largest; 0 and -0 are equal. */
__device__ static uint64_t key_of(double x)
{
    const uint64_t sign = (uint64_t)1 << 63;
    if (x != x) return ~(uint64_t)0;
    uint64_t bits = bits_as<uint64_t>(x + 0.0);
    return bits & sign ? ~bits : bits | sign;
}
__device__ static uint64_t key_of(float x) { return key_of((double)x); }
__device__ static uint64_t key_of(int64_t x) { return (uint64_t)x ^ (uint64_t)1 << 63; }

struct topk_rows {
    axis x, values, indices; /* of rows */
    int64_t first, rows, n, padded, k;
    int64_t x_step, values_step, indices_step;
    bool smallest;
};

template <class T> __global__ void topk_keys(entry *entries, const T *x, topk_rows r)
{
    FOR_EACH_OF(e, r.rows * r.padded)
    {
        int64_t row = e / r.padded, i = e % r.padded;
        entry made = {~(uint64_t)0, INT64_MAX};
        if (i < r.n) {
            uint64_t key = key_of(wide(x[r.x.at(r.first + row) + i * r.x_step]));
            made = entry{r.smallest ? key : ~key, i};
        }
        entries[e] = made;
    }
}

template <class T> __global__ void topk_take(T *values, int64_t *indices, const entry *entries, const T *x, topk_rows r)
{
    FOR_EACH_OF(e, r.rows * r.k)
    {
        int64_t row = e / r.k, i = e % r.k, at = entries[row * r.padded + i].at;
        values[r.values.at(r.first + row) + i * r.values_step] = x[r.x.at(r.first + row) + at * r.x_step];
        indices[r.indices.at(r.first + row) + i * r.indices_step] = at;
    }
}

tr_status cuda_topk(const job &j)
{
    const tr_device_tensor &x = j.in(0), &values = j.out(0), &indices = j.out(1);
    const tr_topk_attrs &a = j.attrs<tr_topk_attrs>();
    uint32_t others = ~(1u << a.dim);
    topk_rows r = {axis_in(x, others), axis_in(values, others), axis_in(indices, others), 0, 0, size_at(x, a.dim), 0, a.k,
                   stride_at(x, a.dim), stride_at(values, a.dim), stride_at(indices, a.dim), a.smallest};
    if (a.k == 0 || r.x.n == 0) return TR_OK;
    r.padded = sorted_row(r.n);
    int64_t at_once = most(1, least(r.x.n, ((int64_t)1 << 24) / r.padded)); /* 256 MB of entries */
    scratch memory(j, sizeof(entry) * (size_t)(at_once * r.padded));
    TRY(memory.status());
    entry *entries = memory.as<entry>();
    for (r.first = 0; r.first < r.x.n; r.first += at_once) {
        r.rows = least(at_once, r.x.n - r.first);
        TRY(for_any(x.dtype, [&](auto t) {
            using T = typename decltype(t)::type;
            return LAUNCH(j, topk_keys<T>, grid_for(r.rows * r.padded), BLOCK, 0, entries, (const T *)x.data, r);
        }));
        TRY(sort_rows(j, entries, r.rows, r.padded));
        TRY(for_any(x.dtype, [&](auto t) {
            using T = typename decltype(t)::type;
            return LAUNCH(j, topk_take<T>, grid_for(r.rows * r.k), BLOCK, 0, (T *)values.data, (int64_t *)indices.data,
                          entries, (const T *)x.data, r);
        }));
    }
    return TR_OK;
}
