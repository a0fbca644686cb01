/*
 * Elements by their numbers along one dimension: take_along, scatter_add, put_along. Sums are made in the order of the
 * index: of the places that name one element the first is found (in short lines by looking, in long ones by sorting
 * them), and its thread does what all of them ask for.
 */
#include "families.h"
#include "sort.h"

static ids along_of(const job &j, int what)
{
    return ids{j.in(1).data, j.in(1).dtype, size_at(j.in(0), j.attrs<tr_dim_attrs>().dim), fault_of(j.call.index), what};
}

template <class T> __global__ void take_along(T *y, const T *x, int64_t apart, ids a, walk<3> w)
{
    FOR_EACH_OF(i, w.count)
    {
        int64_t place[3];
        w.at((uint32_t)i, place);
        int64_t id = a.at(place[1], i);
        y[place[0]] = id < 0 ? T() : x[place[2] + id * apart];
    }
}

tr_status cuda_take_along(const job &j)
{
    int dim = j.attrs<tr_dim_attrs>().dim;
    tr_device_tensor first = j.in(0); /* x at position 0 of the dimension */
    int64_t apart = first.stride[dim];
    first.shape = j.in(1).shape;
    first.stride[dim] = 0;
    const tr_device_tensor *tensors[] = {&j.out(0), &j.in(1), &first};
    ids a = along_of(j, FAULT_TAKE);
    return loop_in_parts(loop_of(first.shape, tensors, 3), [&](const loop &part) {
        a.data = part.data[1];
        return for_bytes(part.bytes[0], [&](auto t) {
            using T = typename decltype(t)::type;
            return LAUNCH(j, take_along<T>, grid_for(part.count), BLOCK, 0, (T *)part.data[0], (const T *)part.data[2],
                          apart, a, walk<3>(part));
        });
    });
}

/* ---- scatter_add and put_along ----------------------------------------------------------------------------------- */

constexpr int LOOKED_AT = 64; /* places of a line that are compared each with all */

struct scatter {
    axis y, index, src; /* of lines: all dimensions of the index but one */
    int64_t n, y_step, index_step, src_step; /* along that one */
    int64_t first, lines; /* those that are worked on */
    bool replace;
};

template <class C> __device__ inline C sum_of(C a, C b)
{
    if constexpr (is_float<C>) return a + b;
    else return (C)((uint64_t)a + (uint64_t)b);
}

template <class T> __global__ void scatter_short(T *y, const T *src, ids a, scatter s)
{
    FOR_EACH_OF(e, s.lines * s.n)
    {
        int64_t line = e / s.n, i = e % s.n, index = s.index.at(line), id = a.at(index + i * s.index_step, e);
        bool is_first = id >= 0;
        for (int64_t k = 0; is_first && k < i; k++)
            is_first = load_id(a.dtype, a.data, index + k * s.index_step) != id;
        if (!is_first) continue;
        T *to = y + s.y.at(line) + id * s.y_step;
        const T *from = src + s.src.at(line);
        compute_of<T> value = wide(*to);
        for (int64_t k = i; k < s.n; k++) {
            if (load_id(a.dtype, a.data, index + k * s.index_step) != id) continue;
            compute_of<T> x = wide(from[k * s.src_step]);
            value = s.replace ? x : sum_of(value, x);
        }
        *to = narrow<T>(value);
    }
}

__global__ static void scatter_keys(entry *entries, int64_t padded, ids a, scatter s)
{
    FOR_EACH_OF(e, s.lines * padded)
    {
        int64_t line = s.first + e / padded, i = e % padded;
        int64_t id = i < s.n ? a.at(s.index.at(line) + i * s.index_step, line * s.n + i) : -1;
        entries[e] = id < 0 ? entry{~(uint64_t)0, INT64_MAX} : entry{(uint64_t)id, i};
    }
}

template <class T> __global__ void scatter_sorted(T *y, const T *src, const entry *entries, int64_t padded, scatter s)
{
    FOR_EACH_OF(e, s.lines * padded)
    {
        int64_t row = e / padded, i = e % padded;
        const entry *of_row = entries + row * padded;
        entry first = of_row[i];
        if (first.at == INT64_MAX || (i && of_row[i - 1].key == first.key)) continue;
        T *to = y + s.y.at(s.first + row) + (int64_t)first.key * s.y_step;
        const T *from = src + s.src.at(s.first + row);
        compute_of<T> value = wide(*to);
        for (int64_t k = i; k < s.n && of_row[k].key == first.key; k++) {
            compute_of<T> x = wide(from[of_row[k].at * s.src_step]);
            value = s.replace ? x : sum_of(value, x);
        }
        *to = narrow<T>(value);
    }
}

static axis lines_of(const tr_device_tensor &x, const tr_shape &shape, int dim)
{
    tr_device_tensor part = x;
    part.shape = shape;
    return axis_in(part, ~(1u << dim));
}

static tr_status run_scatter(const job &j, bool replace, int what)
{
    const tr_device_tensor &y = j.out(0), &index = j.in(1), &src = j.in(2);
    int dim = j.attrs<tr_dim_attrs>().dim;
    TRY(copy_into(j, y, j.in(0)));
    ids a = along_of(j, what);
    scatter s = {lines_of(y, index.shape, dim), lines_of(index, index.shape, dim), lines_of(src, index.shape, dim),
        index.shape.dim[dim], y.stride[dim], index.stride[dim], src.stride[dim], 0, 0, replace};
    s.lines = s.index.n;
    if (s.lines * s.n == 0) return TR_OK;
    if (s.n <= LOOKED_AT)
        return for_any(y.dtype, [&](auto t) {
            using T = typename decltype(t)::type;
            return LAUNCH(j, scatter_short<T>, grid_for(s.lines * s.n), BLOCK, 0, (T *)y.data, (const T *)src.data, a,
                          s);
        });
    int64_t padded = sorted_row(s.n), all = s.lines, at_once = most(1, least(all, ((int64_t)1 << 24) / padded));
    scratch memory(j, sizeof(entry) * (size_t)(at_once * padded));
    TRY(memory.status());
    entry *entries = memory.as<entry>();
    for (s.first = 0; s.first < all; s.first += at_once) {
        s.lines = least(at_once, all - s.first);
        TRY(LAUNCH(j, scatter_keys, grid_for(s.lines * padded), BLOCK, 0, entries, padded, a, s));
        TRY(sort_rows(j, entries, s.lines, padded));
        TRY(for_any(y.dtype, [&](auto t) {
            using T = typename decltype(t)::type;
            return LAUNCH(j, scatter_sorted<T>, grid_for(s.lines * padded), BLOCK, 0, (T *)y.data, (const T *)src.data,
                          entries, padded, s);
        }));
    }
    return TR_OK;
}

tr_status cuda_scatter_add(const job &j) { return run_scatter(j, false, FAULT_SCATTER); }
tr_status cuda_put_along(const job &j) { return run_scatter(j, true, FAULT_PUT); }
