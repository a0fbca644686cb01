/*
 * Rows of a table by their numbers. The gradient sorts the ids: equal ones lie side by side then, in the order of their
 * positions, and are added up in an order that the ids alone make, so that a sum does not depend on which block comes first.
 */
#include "families.h"
#include "sort.h"
#include "thread_group.h"

struct ids_of {
    ids id;
    axis at;
    __device__ int64_t operator()(int64_t position) const { return id.at(at.at(position), position); }
};

/* Input 1: rows of a table. */
static ids_of ids_to(const job &j, const tr_device_tensor &table)
{
    const tr_device_tensor &x = j.in(1);
    return ids_of{{x.data, x.dtype, table.shape.dim[0], fault_of(j.call.index), FAULT_EMBEDDING}, axis_in(x, ~0u)};
}

template <class T>
__global__ void embedding(T *y, axis to, int64_t to_step, const T *table, int64_t row, int64_t step, ids_of ids,
                          int64_t d)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.y + threadIdx.y; i < ids.at.n;
         i += (int64_t)gridDim.x * blockDim.y) {
        int64_t id = ids(i), at = to.at(i);
        for (int64_t c = threadIdx.x; c < d; c += blockDim.x)
            y[at + c * to_step] = id < 0 ? T() : table[id * row + c * step];
    }
}

template <class T> static tr_status look_up(const job &j, const ids_of &ids, int64_t d, int64_t each)
{
    const tr_device_tensor &table = j.in(0), &y = j.out(0);
    axis to = axis_in(y, ~(1u << (y.shape.ndim - 1)));
    for (int k = 0; k < to.ndim; k++) to.stride[k] /= each;
    unsigned x = 32;
    while (x < BLOCK && x < d) x *= 2;
    return LAUNCH(j, embedding<T>, grid_for(ids.at.n, BLOCK / x), dim3(x, BLOCK / x), 0, (T *)y.data, to,
                  stride_at(y, -1), (const T *)table.data, table.stride[0] / each, table.stride[1], ids, d / each);
}

tr_status cuda_embedding(const job &j)
{
    const tr_device_tensor &table = j.in(0), &y = j.out(0);
    int64_t bytes = (int64_t)host->dtype_size(table.dtype), d = table.shape.dim[1], each = 16 / bytes;
    ids_of ids = ids_to(j, table);
    if (ids.at.n * d == 0) return TR_OK;
    bool packed = table.stride[1] == 1 && stride_at(y, -1) == 1 && d % each == 0 && table.stride[0] % each == 0 &&
                  (uintptr_t)table.data % 16 == 0 && (uintptr_t)y.data % 16 == 0 && is_row_major(y);
    if (packed) return look_up<pack<uint64_t, 2>>(j, ids, d, each);
    return for_bytes((size_t)bytes, [&](auto t) { return look_up<typename decltype(t)::type>(j, ids, d, 1); });
}

__global__ static void embedding_keys(entry *entries, int64_t padded, ids_of ids)
{
    FOR_EACH_OF(i, padded)
    {
        int64_t id = i < ids.at.n ? ids(i) : -1;
        entries[i] = id < 0 ? entry{~(uint64_t)0, INT64_MAX} : entry{(uint64_t)id, i};
    }
}

/* The gradient's rows, and where their sums go. Each id's positions are a run of the sorted entries. A run that lies in one
 * CHUNK of them is added up by one block; of a longer one each chunk's part is, and then the parts are. */
constexpr int64_t CHUNK = 32;

struct embedding_sums {
    axis from;
    int64_t from_step, row, step, n, d;
    tr_dtype dtype;
    void *dweight;
    bool accumulate;
    const entry *entries;

    __device__ bool same(int64_t i, uint64_t key) const { return i < n && entries[i].key == key; }

    /* V columns of an id's row. */
    template <int V, class C> __device__ void put(uint64_t key, int64_t column, const C *sums) const
    {
        for (int e = 0; e < V; e++) {
            int64_t to = (int64_t)key * row + (column + e) * step;
            store_as<C>(dtype, dweight, to, (accumulate ? load_as<C>(dtype, dweight, to) : C(0)) + sums[e]);
        }
    }
};

/* parts: [chunks][2][d], of the run that comes from the chunk before, and of the one that goes on in the next. A thread has
 * V columns. */
template <class T, int V>
__global__ void embedding_grad(const T *g, const __grid_constant__ embedding_sums s, compute_of<T> *parts)
{
    using C = compute_of<T>;
    constexpr int AT_ONCE = 4;
    for (int64_t i = blockIdx.x; i < s.n; i += gridDim.x) {
        entry first = s.entries[i];
        bool begins = i == 0 || s.entries[i - 1].key != first.key;
        if (first.at == INT64_MAX || (!begins && i % CHUNK)) continue;
        int64_t end = (i / CHUNK + 1) * CHUNK < s.n ? (i / CHUNK + 1) * CHUNK : s.n;
        bool ends = !s.same(end - 1, first.key) || !s.same(end, first.key);
        for (int64_t c = (int64_t)threadIdx.x * V; c < s.d; c += blockDim.x * V) {
            C sums[V] = {};
            bool goes_on = true;
            for (int64_t k = i; goes_on && k < end; k += AT_ONCE) {
                pack<T, V> read[AT_ONCE];
                bool in[AT_ONCE];
#pragma unroll
                for (int u = 0; u < AT_ONCE; u++) {
                    in[u] = k + u < end && s.entries[k + u].key == first.key;
                    if (in[u])
                        read[u] = *(const pack<T, V> *)(g + s.from.at(s.entries[k + u].at) + c * s.from_step);
                }
#pragma unroll
                for (int u = 0; u < AT_ONCE; u++)
                    if (in[u])
                        for (int e = 0; e < V; e++) sums[e] += wide(read[u].at[e]);
                goes_on = in[AT_ONCE - 1];
            }
            if (begins && ends) s.put<V>(first.key, c, sums);
            else
                for (int e = 0; e < V; e++) parts[(i / CHUNK * 2 + begins) * s.d + c + e] = sums[e];
        }
    }
}

/* The runs that go on in the next chunk: a block has those that begin in its chunk, of which there is at most one. */
template <class C> __global__ void embedding_runs(const C *parts, const __grid_constant__ embedding_sums s)
{
    int64_t chunk = blockIdx.x, end = (chunk + 1) * CHUNK, c = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    if (end >= s.n || c >= s.d) return;
    entry last = s.entries[end - 1];
    if (last.at == INT64_MAX || !s.same(end, last.key)) return;
    if (chunk && s.same(end - CHUNK, last.key) && s.same(end - CHUNK - 1, last.key)) return;
    int64_t in = chunk + 1, behind = (s.n + CHUNK - 1) / CHUNK; /* the last chunk that begins with it is `in` or behind that */
    while (behind - in > 1) {
        int64_t middle = (in + behind) / 2;
        (s.same(middle * CHUNK, last.key) ? in : behind) = middle;
    }
    C sum[1] = {parts[(2 * chunk + 1) * s.d + c]};
    each_loaded<8, C>(chunk + 1, in + 1, 1, [&](int64_t next) { return parts[2 * next * s.d + c]; },
                      [&](C part, int64_t) { sum[0] += part; });
    s.put<1>(last.key, c, sum);
}

tr_status cuda_embedding_grad(const job &j)
{
    const tr_device_tensor &g = j.in(0), &dweight = j.out(0);
    bool accumulate = j.attrs<tr_accumulate_attrs>().accumulate;
    int64_t d = dweight.shape.dim[1];
    ids_of ids = ids_to(j, dweight);
    if (!accumulate) TRY(fill(j, dweight, 0));
    if (ids.at.n * d == 0) return TR_OK;
    int64_t padded = sorted_row(ids.at.n);
    scratch memory(j, sizeof(entry) * (size_t)padded);
    TRY(memory.status());
    entry *entries = memory.as<entry>();
    TRY(LAUNCH(j, embedding_keys, grid_for(padded), BLOCK, 0, entries, padded, ids));
    TRY(sort_rows(j, entries, 1, padded));
    embedding_sums s = {axis_in(g, ~(1u << (g.shape.ndim - 1))), stride_at(g, -1), dweight.stride[0], dweight.stride[1],
                        ids.at.n, d, dweight.dtype, dweight.data, accumulate, entries};
    return for_float(g.dtype, [&](auto t) -> tr_status {
        using T = typename decltype(t)::type;
        using C = compute_of<T>;
        constexpr int64_t V = 16 / sizeof(T);
        int64_t chunks = parts_of(s.n, CHUNK);
        scratch sums(j, sizeof(C) * (size_t)(2 * chunks * d));
        TRY(sums.status());
        bool packed = s.from_step == 1 && d % V == 0 && (uintptr_t)g.data % 16 == 0;
        for (int k = 0; k < s.from.ndim; k++) packed = packed && s.from.stride[k] % V == 0;
        int64_t columns = packed ? d / V : d;
        unsigned threads = (unsigned)least(parts_of(columns, 32) * 32, BLOCK), blocks = (unsigned)least(s.n, GRID_LIMIT);
        if (packed) TRY(LAUNCH(j, (embedding_grad<T, V>), blocks, threads, 0, (const T *)g.data, s, sums.template as<C>()));
        else TRY(LAUNCH(j, (embedding_grad<T, 1>), blocks, threads, 0, (const T *)g.data, s, sums.template as<C>()));
        if (chunks == 1) return TR_OK;
        dim3 grid((unsigned)least(chunks, GRID_LIMIT), (unsigned)parts_of(d, BLOCK));
        return LAUNCH(j, embedding_runs<C>, grid, BLOCK, 0, sums.template as<C>(), s);
    });
}
