/*
 * Reductions over any dimensions. A result is made by a group of threads (thread_group.h); where there are few
 * results of many elements each, several blocks make a part of each, and a second launch puts the parts together.
 * The order is fixed by the sizes alone.
 */
#include "families.h"
#include "thread_group.h"

/* What is seen of a result's elements: an op starts with start(), takes elements by add() and others' by operator(),
 * and writes what it has by value(). */
template <class C> struct sum_of {
    using seen = C;
    double divisor;
    __device__ seen start() const { return C(0); }
    template <class E> __device__ seen add(seen s, E x, int64_t) const { return s + (C)x; }
    __device__ seen operator()(seen a, seen b) const { return a + b; }
    __device__ C value(seen s) const { return divisor == 1 ? s : s / (C)divisor; }
};
template <> struct sum_of<int64_t> {
    using seen = uint64_t; /* which wraps around */
    double divisor;
    __device__ seen start() const { return 0; }
    __device__ seen add(seen s, int64_t x, int64_t) const { return s + (uint64_t)x; }
    __device__ seen operator()(seen a, seen b) const { return a + b; }
    __device__ int64_t value(seen s) const { return (int64_t)s; }
};

struct norm_of { /* in double, as squares of floats may overflow */
    using seen = double;
    __device__ seen start() const { return 0; }
    template <class E> __device__ seen add(seen s, E x, int64_t) const { return s + (double)x * (double)x; }
    __device__ seen operator()(seen a, seen b) const { return a + b; }
    __device__ double value(seen s) const { return sqrt(s); }
};

template <class C> struct prod_of {
    using seen = C;
    __device__ seen start() const { return C(1); }
    template <class E> __device__ seen add(seen s, E x, int64_t) const { return s * (C)x; }
    __device__ seen operator()(seen a, seen b) const { return a * b; }
    __device__ C value(seen s) const { return s; }
};
using prod_of_integers = prod_of<uint64_t>;

template <class C> struct place { C value; int64_t at; };

/* The first of the largest, or of the smallest; NaN comes before all. where: the result is its place. */
template <class C, bool SMALLEST, bool WHERE> struct top_of {
    using seen = place<C>;
    __device__ seen start() const { return seen{C(0), -1}; }
    __device__ seen operator()(seen a, seen b) const
    {
        if (a.at < 0 || b.at < 0) return a.at < 0 ? b : a;
        bool a_nan = a.value != a.value, b_nan = b.value != b.value, b_first = b.at < a.at;
        if (a_nan || b_nan) return a_nan && b_nan ? (b_first ? b : a) : a_nan ? a : b;
        if (a.value == b.value) return b_first ? b : a;
        return (SMALLEST ? b.value < a.value : b.value > a.value) ? b : a;
    }
    __device__ seen add(seen s, C x, int64_t i) const { return (*this)(s, seen{x, i}); }
    __device__ auto value(seen s) const
    {
        if constexpr (WHERE) return s.at;
        else return s.value;
    }
};

template <class T, class Op>
__global__ void reduce(const T *x, axis kept, axis reduced, int64_t each, typename Op::seen *parts, tr_dtype dtype,
                       void *y, Op op)
{
    int64_t r = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, begin = blockIdx.y * each;
    int64_t end = begin + each < reduced.n ? begin + each : reduced.n;
    typename Op::seen seen = op.start();
    if (r < kept.n) {
        x += kept.at(r);
        each_loaded<4, T>(begin + threadIdx.y, end, blockDim.y, [&](int64_t i) { return x[reduced.at(i)]; },
                          [&](T read, int64_t i) { seen = op.add(seen, wide(read), i); });
    }
    seen = reduce_in_group(seen, op);
    if (threadIdx.y || r >= kept.n) return;
    if (parts) parts[blockIdx.y * kept.n + r] = seen;
    else store_as(dtype, y, r, op.value(seen));
}

constexpr int LANES = 32, ROWS = 8; /* of blocks that reduce columns */

/* Results that lie side by side, in packs of 16 bytes: a thread has a pack of them. */
template <class T, class Op>
__global__ void reduce_columns(const T *x, int64_t columns, int64_t rows, int64_t stride, int64_t each,
                               typename Op::seen *parts, tr_dtype dtype, void *y, Op op)
{
    constexpr int V = 16 / sizeof(T), WIDTH = LANES * V;
    __shared__ typename Op::seen shared[ROWS * WIDTH];
    int64_t first = (int64_t)blockIdx.x * WIDTH, column = first + threadIdx.x * V, begin = blockIdx.y * each;
    int64_t end = begin + each < rows ? begin + each : rows;
    typename Op::seen seen[V];
    for (int e = 0; e < V; e++) seen[e] = op.start();
    if (column < columns) {
#pragma unroll 4
        for (int64_t i = begin + threadIdx.y; i < end; i += ROWS) {
            pack<T, V> read = *(const pack<T, V> *)(x + i * stride + column);
#pragma unroll
            for (int e = 0; e < V; e++) seen[e] = op.add(seen[e], wide(read.at[e]), i);
        }
    }
    for (int e = 0; e < V; e++) shared[threadIdx.y * WIDTH + threadIdx.x * V + e] = seen[e];
    __syncthreads();
    for (int k = threadIdx.y * LANES + threadIdx.x; k < WIDTH && first + k < columns; k += ROWS * LANES) {
        typename Op::seen all = shared[k];
        for (int row = 1; row < ROWS; row++) all = op(all, shared[row * WIDTH + k]);
        if (parts) parts[blockIdx.y * columns + first + k] = all;
        else store_as(dtype, y, first + k, op.value(all));
    }
}

template <class Op>
__global__ void reduce_parts(const typename Op::seen *parts, int64_t n, int count, tr_dtype dtype, void *y, Op op)
{
    int64_t r = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    typename Op::seen seen = op.start();
    if (r < n)
        each_loaded<8, typename Op::seen>(threadIdx.y, count, blockDim.y, [&](int64_t k) { return parts[k * n + r]; },
                                          [&](typename Op::seen part, int64_t) { seen = op(seen, part); });
    seen = reduce_in_group(seen, op);
    if (threadIdx.y == 0 && r < n) store_as(dtype, y, r, op.value(seen));
}

constexpr int64_t ENOUGH_BLOCKS = 512;

/* y: row-major. */
template <class T, class Op>
static tr_status reduce_to(const job &j, const tr_device_tensor &x, uint32_t dims, const tr_device_tensor &y,
                           const Op &op)
{
    constexpr int V = 16 / sizeof(T);
    axis kept = axis_in(x, ~dims), reduced = axis_in(x, dims);
    if (kept.n == 0) return TR_OK;
    thread_groups t = groups_of(kept.n, reduced.n, kept.stride[kept.ndim - 1] < reduced.stride[reduced.ndim - 1]);
    bool packed = std::is_same_v<Op, sum_of<compute_of<T>>> && is_float<T> && t.block.x == LANES &&
                  kept.ndim == 1 && kept.stride[0] == 1 && kept.n % V == 0 && reduced.ndim == 1 &&
                  reduced.stride[0] % V == 0 && (uintptr_t)x.data % 16 == 0;
    if (packed) t = thread_groups{dim3(LANES, ROWS), parts_of(kept.n, LANES * V)};
    if (t.blocks > GRID_LIMIT) return TR_DECLINED;
    int64_t four = 4 * t.block.y, parts = least(parts_of(reduced.n, packed ? four : 4 * four),
                                                parts_of(ENOUGH_BLOCKS, t.blocks));
    int64_t each = parts > 1 ? parts_of(parts_of(reduced.n, parts), four) * four : reduced.n;
    parts = parts > 1 ? parts_of(reduced.n, each) : 1;
    scratch memory(j, parts > 1 ? sizeof(typename Op::seen) * (size_t)(parts * kept.n) : 0);
    TRY(memory.status());
    auto *of_parts = parts > 1 ? memory.template as<typename Op::seen>() : nullptr;
    dim3 grid((unsigned)t.blocks, (unsigned)parts);
    if constexpr (std::is_same_v<Op, sum_of<compute_of<T>>> && is_float<T>)
        if (packed)
            TRY(LAUNCH(j, (reduce_columns<T, Op>), grid, t.block, 0, (const T *)x.data, kept.n, reduced.n,
                       reduced.stride[0], each, of_parts, y.dtype, y.data, op));
    if (!packed)
        TRY(LAUNCH(j, (reduce<T, Op>), grid, t.block, 0, (const T *)x.data, kept, reduced, each, of_parts, y.dtype,
                   y.data, op));
    if (!of_parts) return TR_OK;
    t = groups_of(kept.n, parts, true);
    return LAUNCH(j, reduce_parts<Op>, (unsigned)t.blocks, t.block, 0, of_parts, kept.n, (int)parts, y.dtype, y.data,
                  op);
}

template <template <class> class Float, class Integer> static tr_status reduce_any(const job &j)
{
    const tr_device_tensor &x = j.in(0);
    uint32_t dims = j.attrs<tr_reduce_attrs>().dims;
    return for_any(x.dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        if constexpr (is_float<T>) return reduce_to<T>(j, x, dims, j.out(0), Float<compute_of<T>>());
        else return reduce_to<T>(j, x, dims, j.out(0), Integer());
    });
}

tr_status sum_into(const job &j, const tr_device_tensor &x, uint32_t dims, const tr_device_tensor &y, double divisor)
{
    return for_any(x.dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        return reduce_to<T>(j, x, dims, y, sum_of<compute_of<T>>{divisor});
    });
}

tr_status sum_onto(const job &j, const tr_device_tensor &x, uint32_t dims, const tr_device_tensor &y, bool accumulate)
{
    if (!accumulate) return sum_into(j, x, dims, y, 1);
    scratch memory(j, (size_t)numel(y) * host->dtype_size(y.dtype));
    TRY(memory.status());
    tr_device_tensor two[] = {y, dense_view(memory.as<void>(), y.dtype, y.shape)};
    TRY(sum_into(j, x, dims, two[1], 1));
    return map_into<2>(j, y, two, plus_of());
}

tr_status cuda_sum(const job &j)
{
    return sum_into(j, j.in(0), j.attrs<tr_reduce_attrs>().dims, j.out(0), 1);
}

tr_status cuda_mean(const job &j)
{
    uint32_t dims = j.attrs<tr_reduce_attrs>().dims;
    return sum_into(j, j.in(0), dims, j.out(0), (double)axis_in(j.in(0), dims).n);
}

tr_status cuda_norm(const job &j)
{
    return for_float(j.in(0).dtype, [&](auto t) {
        return reduce_to<typename decltype(t)::type>(j, j.in(0), j.attrs<tr_reduce_attrs>().dims, j.out(0), norm_of());
    });
}

template <class C> using prod_in_double = prod_of<double>;
tr_status cuda_prod(const job &j) { return reduce_any<prod_in_double, prod_of_integers>(j); }

template <class C> using largest = top_of<C, false, false>;
template <class C> using smallest = top_of<C, true, false>;
template <class C> using place_of_largest = top_of<C, false, true>;
template <class C> using place_of_smallest = top_of<C, true, true>;
tr_status cuda_max(const job &j) { return reduce_any<largest, largest<int64_t>>(j); }
tr_status cuda_min(const job &j) { return reduce_any<smallest, smallest<int64_t>>(j); }
tr_status cuda_argmax(const job &j) { return reduce_any<place_of_largest, place_of_largest<int64_t>>(j); }
tr_status cuda_argmin(const job &j) { return reduce_any<place_of_smallest, place_of_smallest<int64_t>>(j); }

/* ---- Gradients of max, min and prod: g and y have the dimensions of x, those reduced of size 1 ------------------- */

/* What a gradient has to know of a result's elements. */
struct around {
    double product; /* of those that are not 0 */
    int64_t count;  /* of the largest, or of zeros */
};

struct around_both {
    __device__ around operator()(around a, around b) const { return around{a.product * b.product, a.count + b.count}; }
};

/* Equal maxima share the gradient. */
struct share_out {
    template <class C> __device__ static bool same(C a, C b) { return a == b || (a != a && b != b); }
    template <class C> __device__ around add(around a, C x, C y) const { return around{1, a.count + same(x, y)}; }
    template <class C> __device__ C turn(around a, C g, C x, C y) const { return same(x, y) ? g / (C)a.count : C(0); }
};

/* Each element's is g times the product of the others: with one zero among them only that one's is not 0. */
struct divide_out {
    template <class C> __device__ around add(around a, C x, C) const
    {
        return around{a.product * (x == C(0) ? 1 : (double)x), a.count + (x == C(0))};
    }
    template <class C> __device__ C turn(around a, C g, C x, C) const
    {
        double all = (double)g * a.product;
        return a.count == 0 ? (C)(all / (double)x) : a.count == 1 && x == C(0) ? (C)all : C(0);
    }
};

struct grad_axes { axis g, y, x, x_reduced, dx, dx_reduced; };

template <class T, class Op> __global__ void reduce_grad(T *dx, const T *g, const T *x, const T *y, grad_axes a, Op op)
{
    using C = compute_of<T>;
    int64_t r = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    bool mine = r < a.x.n;
    around seen = {1, 0};
    C top = mine ? wide(y[a.y.at(r)]) : C(0);
    if (mine) {
        x += a.x.at(r);
        for (int64_t i = threadIdx.y; i < a.x_reduced.n; i += blockDim.y)
            seen = op.add(seen, wide(x[a.x_reduced.at(i)]), top);
    }
    seen = reduce_in_group(seen, around_both());
    if (!mine) return;
    C arrived = wide(g[a.g.at(r)]);
    dx += a.dx.at(r);
    for (int64_t i = threadIdx.y; i < a.x_reduced.n; i += blockDim.y)
        dx[a.dx_reduced.at(i)] = narrow<T>(op.turn(seen, arrived, wide(x[a.x_reduced.at(i)]), top));
}

template <class Op> static tr_status run_grad(const job &j)
{
    const tr_device_tensor &g = j.in(0), &x = j.in(1), &y = j.in(2), &dx = j.out(0);
    uint32_t dims = j.attrs<tr_reduce_attrs>().dims;
    grad_axes a = {axis_in(g, ~dims), axis_in(y, ~dims), axis_in(x, ~dims), axis_in(x, dims), axis_in(dx, ~dims),
        axis_in(dx, dims)};
    if (a.x.n == 0 || a.x_reduced.n == 0) return TR_OK;
    bool side_by_side = a.x.stride[a.x.ndim - 1] < a.x_reduced.stride[a.x_reduced.ndim - 1];
    thread_groups t = groups_of(a.x.n, a.x_reduced.n, side_by_side);
    if (t.blocks > GRID_LIMIT) return TR_DECLINED;
    return for_float(x.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        return LAUNCH(j, (reduce_grad<T, Op>), dim3((unsigned)t.blocks), t.block, 0, (T *)dx.data, (const T *)g.data,
            (const T *)x.data, (const T *)y.data, a, Op());
    });
}

tr_status cuda_max_grad(const job &j) { return run_grad<share_out>(j); }
tr_status cuda_prod_grad(const job &j) { return run_grad<divide_out>(j); }

/* ---- sum_squares: y <- y + the sum of the squares of x, in f64 --------------------------------------------------- */

struct squares_onto : norm_of {
    const double *before;
    __device__ double value(seen s) const { return *before + s; }
};

tr_status cuda_sum_squares(const job &j)
{
    return for_float(j.in(0).dtype, [&](auto t) {
        const squares_onto op = {{}, (const double *)j.out(0).data};
        return reduce_to<typename decltype(t)::type>(j, j.in(0), ~0u, j.out(0), op);
    });
}
