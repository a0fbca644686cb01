/*
 * Rows of a table by their numbers. The gradient sorts the ids: equal ones lie side by side then, in the order of their
 * positions, and one block adds up the gradients of each, so that a sum does not depend on which block comes first.
 */
#include "families.h"
#include "sort.h"
#include "thread_group.h"

struct ids_of {
    const void *data;
    tr_dtype dtype;
    axis at;
    int64_t limit;
    fault *fault_at;
    int what;

    /* -1: it is none of the rows. */
    __device__ int64_t operator()(int64_t position) const
    {
        int64_t id = load_id(dtype, data, at.at(position));
        if (id >= 0 && id < limit) return id;
        note_fault(fault_at, what, id, position, limit);
        return -1;
    }
};

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
    ids_of ids = {j.in(1).data,       j.in(1).dtype,          axis_in(j.in(1), ~0u),
                  table.shape.dim[0], fault_of(j.call.index), FAULT_EMBEDDING};
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

struct dense_rows { axis at; int64_t step; };

template <class T>
__global__ void embedding_grad(tr_dtype dtype, void *dweight, int64_t row, int64_t step, const T *g, dense_rows from,
    const entry *entries, int64_t n, int64_t d, bool accumulate)
{
    using C = compute_of<T>;
    for (int64_t i = blockIdx.x; i < n; i += gridDim.x) {
        entry first = entries[i];
        if (first.at == INT64_MAX || (i && entries[i - 1].key == first.key)) continue;
        for (int64_t c = threadIdx.x; c < d; c += blockDim.x) {
            int64_t to = (int64_t)first.key * row + c * step;
            C sum = accumulate ? load_as<C>(dtype, dweight, to) : C(0);
            for (int64_t k = i; k < n && entries[k].key == first.key; k++)
                sum += wide(g[from.at.at(entries[k].at) + c * from.step]);
            store_as<C>(dtype, dweight, to, sum);
        }
    }
}

tr_status cuda_embedding_grad(const job &j)
{
    const tr_device_tensor &g = j.in(0), &dweight = j.out(0);
    bool accumulate = j.attrs<tr_accumulate_attrs>().accumulate;
    int64_t d = dweight.shape.dim[1];
    ids_of ids = {j.in(1).data,         j.in(1).dtype,          axis_in(j.in(1), ~0u),
                  dweight.shape.dim[0], fault_of(j.call.index), FAULT_EMBEDDING};
    if (!accumulate) TRY(fill(j, dweight, 0));
    if (ids.at.n * d == 0) return TR_OK;
    int64_t padded = sorted_row(ids.at.n);
    scratch memory(j, sizeof(entry) * (size_t)padded);
    TRY(memory.status());
    entry *entries = memory.as<entry>();
    TRY(LAUNCH(j, embedding_keys, grid_for(padded), BLOCK, 0, entries, padded, ids));
    TRY(sort_rows(j, entries, 1, padded));
    dense_rows from = {axis_in(g, ~(1u << (g.shape.ndim - 1))), stride_at(g, -1)};
    unsigned threads = 32;
    while (threads < BLOCK && threads < d) threads *= 2;
    return for_float(g.dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        return LAUNCH(j, embedding_grad<T>, (unsigned)least(ids.at.n, GRID_LIMIT), threads, 0, dweight.dtype,
                      dweight.data, dweight.stride[0], dweight.stride[1], (const T *)g.data, from, entries, ids.at.n, d,
                      accumulate);
    });
}
