/*
 * Layer normalisation over the last dimension, of d elements, and RMS norm, which is the same about 0 rather than about
 * the mean:
 *   y = xhat weight + bias, xhat = (x - mean) rstd, rstd = 1/sqrt(var + eps), var = mean((x - mean)^2)
 *   dx = rstd (h - mean(h) - xhat mean(h xhat)), h = g weight; dweight = sum over rows of g xhat; dbias = that of g
 */
#include "families.h"
#include "thread_group.h"

template <class T> struct vector_of {
    const T *at; /* NULL: none */
    int64_t step;
    __device__ compute_of<T> operator()(int64_t i, compute_of<T> otherwise) const
    {
        return at ? wide(at[i * step]) : otherwise;
    }
};

template <class T> static vector_of<T> vector_in(const job &j, int i)
{
    return j.has_in(i) ? vector_of<T>{(const T *)j.in(i).data, j.in(i).stride[0]} : vector_of<T>{nullptr, 0};
}

/* mean: NULL, it is 0 */
template <class T>
__global__ void norm(T *y, axis to, int64_t to_step, const T *x, axis at, int64_t step, int64_t d, vector_of<T> weight,
    vector_of<T> bias, compute_of<T> *mean, compute_of<T> *rstd, double eps)
{
    using C = compute_of<T>;
    int64_t r = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    bool mine = r < at.n;
    row_of<const T, 1> from = {{mine ? x + at.at(r) : x}, {step}};
    C sum = 0, squares = 0, middle = 0;
    if (mean) {
        if (mine) each_of_row(from, d, [&](int64_t, const C *v) { sum += v[0]; });
        middle = reduce_in_group(sum, plus_of()) / (C)d;
    }
    if (mine) each_of_row(from, d, [&](int64_t, const C *v) { squares += (v[0] - middle) * (v[0] - middle); });
    C scale = 1 / sqrt(reduce_in_group(squares, plus_of()) / (C)d + (C)eps);
    if (!mine) return;
    row_of<T, 1> into = {{y + to.at(r)}, {to_step}};
    map_row(into, from, d,
            [&](int64_t i, const C *v) { return (v[0] - middle) * scale * weight(i, C(1)) + bias(i, C(0)); });
    if (threadIdx.y) return;
    if (mean) mean[r] = middle;
    rstd[r] = scale;
}

/* Packs of a row that a thread holds in registers. */
template <class T> inline constexpr int HELD = sizeof(T) == 2 ? 4 : 8;

/* Are rows apart by whole packs of 16 bytes, and their elements side by side? */
template <class T> static bool in_packs(const T *at, const axis &rows, int64_t step, int64_t d)
{
    constexpr int64_t V = 16 / sizeof(T);
    return step == 1 && d % V == 0 && (uintptr_t)at % 16 == 0 && rows.ndim == 1 && rows.stride[0] % V == 0;
}
template <class T> static bool in_packs(const vector_of<T> &v)
{
    return !v.at || (v.step == 1 && (uintptr_t)v.at % 16 == 0);
}

/* Threads for rows of so many packs, and rows to a block; 0 threads: they are too long to be held. */
template <class T> static dim3 holders_of(int64_t packs)
{
    unsigned threads = 32;
    while (threads < BLOCK && threads * HELD<T> < packs) threads *= 2;
    return threads * HELD<T> < packs ? dim3(0) : dim3(threads, BLOCK / threads);
}

/* A thread's packs of a row, of which threads hold every blockDim.x'th. */
template <class T, int K = HELD<T>> struct held_row {
    static constexpr int V = 16 / sizeof(T);
    pack<T, V> held[K];

    __device__ held_row(const T *row, int64_t packs)
    {
#pragma unroll
        for (int k = 0; k < K; k++)
            if (int64_t p = threadIdx.x + k * blockDim.x; p < packs) held[k] = ((const pack<T, V> *)row)[p];
    }
};

/* f(k, p) for each pack that a thread has of a row: its k'th, which is the row's p'th. */
template <int K, class F> __device__ inline void each_held(int64_t packs, const F &f)
{
#pragma unroll
    for (int k = 0; k < K; k++)
        if (unsigned p = threadIdx.x + k * blockDim.x; p < (unsigned)packs) f(k, p);
}

/* The pack'th numbers of a vector, or `otherwise`. */
template <class T> struct numbers_of {
    static constexpr int V = 16 / sizeof(T);
    pack<T, V> read;
    bool none;
    compute_of<T> otherwise;

    __device__ numbers_of(const vector_of<T> &v, int64_t p, compute_of<T> otherwise)
        : none(!v.at), otherwise(otherwise)
    {
        if (v.at) read = ((const pack<T, V> *)v.at)[p];
    }
    __device__ compute_of<T> operator[](int e) const { return none ? otherwise : wide(read.at[e]); }
};

/* The same where each row is read once and held in registers. */
template <class T>
__global__ void norm_held(T *y, int64_t to, const T *x, int64_t at, int64_t rows, int64_t d, vector_of<T> weight,
    vector_of<T> bias, compute_of<T> *mean, compute_of<T> *rstd, double eps)
{
    using C = compute_of<T>;
    constexpr int V = 16 / sizeof(T);
    int64_t r = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, packs = r < rows ? d / V : 0;
    held_row<T> row(x + r * at, packs);
    C sum = 0, squares = 0, middle = 0;
    if (mean) {
        each_held<HELD<T>>(packs, [&](int k, int64_t) {
            for (int e = 0; e < V; e++) sum += wide(row.held[k].at[e]);
        });
        middle = reduce_in_warps(sum, plus_of()) / (C)d;
    }
    each_held<HELD<T>>(packs, [&](int k, int64_t) {
        for (int e = 0; e < V; e++) {
            C off = wide(row.held[k].at[e]) - middle;
            squares += off * off;
        }
    });
    C scale = 1 / sqrt(reduce_in_warps(squares, plus_of()) / (C)d + (C)eps);
    each_held<HELD<T>>(packs, [&](int k, int64_t p) {
        numbers_of<T> w(weight, p, C(1)), b(bias, p, C(0));
        pack<T, V> made;
        for (int e = 0; e < V; e++)
            made.at[e] = narrow<T>((wide(row.held[k].at[e]) - middle) * scale * w[e] + b[e]);
        ((pack<T, V> *)(y + r * to))[p] = made;
    });
    if (threadIdx.x || r >= rows) return;
    if (mean) mean[r] = middle;
    rstd[r] = scale;
}

static tr_status run_norm(const job &j, const tr_device_tensor *mean, const tr_device_tensor &rstd, bool with_bias)
{
    const tr_device_tensor &x = j.in(0), &y = j.out(0);
    uint32_t others = ~(1u << (x.shape.ndim - 1));
    axis rows = axis_in(x, others);
    if (rows.n == 0) return TR_OK;
    return for_float(x.dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        using C = compute_of<T>;
        const T *from = (const T *)x.data;
        T *into = (T *)y.data;
        axis to = axis_in(y, others);
        int64_t d = size_at(x, -1), step = stride_at(x, -1), to_step = stride_at(y, -1);
        vector_of<T> weight = vector_in<T>(j, 1), bias = with_bias ? vector_in<T>(j, 2) : vector_of<T>{nullptr, 0};
        C *means = mean ? (C *)mean->data : nullptr;
        double eps = j.attrs<tr_layer_norm_attrs>().eps;
        dim3 held = holders_of<T>(d / (16 / sizeof(T)));
        if (held.x && in_packs(from, rows, step, d) && in_packs((const T *)into, to, to_step, d) && in_packs(weight) &&
            in_packs(bias) && parts_of(rows.n, held.y) <= GRID_LIMIT)
            return LAUNCH(j, norm_held<T>, (unsigned)parts_of(rows.n, held.y), held, 0, into, to.stride[0], from,
                          rows.stride[0], rows.n, d, weight, bias, means, (C *)rstd.data, eps);
        thread_groups w = groups_of_rows(rows.n, d, step, sizeof(T));
        return LAUNCH(j, norm<T>, dim3((unsigned)w.blocks), w.block, 0, into, to, to_step, from, rows, step, d, weight,
                      bias, means, (C *)rstd.data, eps);
    });
}

tr_status cuda_layer_norm(const job &j) { return run_norm(j, &j.out(1), j.out(2), true); }
tr_status cuda_rms_norm(const job &j) { return run_norm(j, nullptr, j.out(1), false); }

/* ---- Gradients --------------------------------------------------------------------------------------------------- */

template <class T> struct norm_inputs {
    const T *g, *x;
    axis g_at, x_at;
    int64_t g_step, x_step, d;
    vector_of<T> weight;
    const compute_of<T> *mean, *rstd; /* mean: NULL, it is 0 */
};

template <class T> __global__ void norm_grad_rows(T *dx, axis to, int64_t to_step, norm_inputs<T> in)
{
    using C = compute_of<T>;
    int64_t r = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    bool mine = r < in.x_at.n;
    row_of<const T, 2> from = {{mine ? in.g + in.g_at.at(r) : in.g, mine ? in.x + in.x_at.at(r) : in.x},
                               {in.g_step, in.x_step}};
    C mean = mine && in.mean ? in.mean[r] : C(0), rstd = mine ? in.rstd[r] : C(0);
    two<C> sums = {C(0), C(0)};
    if (mine)
        each_of_row(from, in.d, [&](int64_t i, const C *v) {
            C h = v[0] * in.weight(i, C(1));
            sums.first += in.mean ? h : C(0);
            sums.second += h * (v[1] - mean) * rstd;
        });
    sums = reduce_in_group(sums, both_of());
    if (!mine) return;
    C of_h = sums.first / (C)in.d, of_hx = sums.second / (C)in.d;
    row_of<T, 1> into = {{dx + to.at(r)}, {to_step}};
    map_row(into, from, in.d, [&](int64_t i, const C *v) {
        return rstd * (v[0] * in.weight(i, C(1)) - of_h - (v[1] - mean) * rstd * of_hx);
    });
}

/* dx of a row that threads hold. sums: of h, and of h xhat. */
template <class T, int K>
__device__ inline void put_dx(T *dx, const norm_inputs<T> &in, const held_row<T, K> &g, const held_row<T, K> &x, int64_t packs,
                              compute_of<T> mean, compute_of<T> rstd, two<compute_of<T>> sums)
{
    using C = compute_of<T>;
    constexpr int V = 16 / sizeof(T);
    C of_h = sums.first / (C)in.d, of_hx = sums.second / (C)in.d;
    each_held<K>(packs, [&](int k, int64_t p) {
        numbers_of<T> weight(in.weight, p, C(1));
        pack<T, V> made;
#pragma unroll
        for (int e = 0; e < V; e++)
            made.at[e] = narrow<T>(rstd * (wide(g.held[k].at[e]) * weight[e] - of_h -
                                           (wide(x.held[k].at[e]) - mean) * rstd * of_hx));
        ((pack<T, V> *)dx)[p] = made;
    });
}

template <class T>
__global__ void __launch_bounds__(BLOCK, 2) norm_grad_held(T *dx, int64_t to, norm_inputs<T> in)
{
    using C = compute_of<T>;
    constexpr int V = 16 / sizeof(T);
    int64_t r = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, packs = r < in.x_at.n ? in.d / V : 0;
    held_row<T> g(in.g + r * in.g_at.stride[0], packs), x(in.x + r * in.x_at.stride[0], packs);
    C mean = packs && in.mean ? in.mean[r] : C(0), rstd = packs ? in.rstd[r] : C(0);
    two<C> sums = {C(0), C(0)};
    each_held<HELD<T>>(packs, [&](int k, int64_t p) {
        numbers_of<T> weight(in.weight, p, C(1));
        for (int e = 0; e < V; e++) {
            C h = wide(g.held[k].at[e]) * weight[e];
            sums.first += in.mean ? h : C(0);
            sums.second += h * (wide(x.held[k].at[e]) - mean) * rstd;
        }
    });
    put_dx(dx + r * to, in, g, x, packs, mean, rstd, reduce_in_warps(sums, both_of()));
}

constexpr int LANES = 32, ROWS = 8; /* of blocks that add up columns */
constexpr int64_t ENOUGH_BLOCKS = 264;

/* Sums of columns over a part of the rows: parts: [gridDim.y][2][d]. A thread has V columns side by side. */
template <class T, int V>
__global__ void norm_grad_columns(compute_of<T> *parts, norm_inputs<T> in, int64_t each)
{
    using C = compute_of<T>;
    constexpr int WIDTH = LANES * V;
    __shared__ two<C> shared[ROWS * WIDTH];
    int64_t first = (int64_t)blockIdx.x * WIDTH, column = first + threadIdx.x * V, begin = blockIdx.y * each;
    int64_t end = begin + each < in.x_at.n ? begin + each : in.x_at.n;
    two<C> sums[V] = {};
    if (column < in.d) {
#pragma unroll 4
        for (int64_t r = begin + threadIdx.y; r < end; r += ROWS) {
            int64_t g_row = V > 1 ? r * in.g_at.stride[0] : in.g_at.at(r);
            int64_t x_row = V > 1 ? r * in.x_at.stride[0] : in.x_at.at(r);
            auto g = *(const pack<T, V> *)(in.g + g_row + column * in.g_step);
            auto x = *(const pack<T, V> *)(in.x + x_row + column * in.x_step);
            C mean = in.mean ? in.mean[r] : C(0), rstd = in.rstd[r];
#pragma unroll
            for (int e = 0; e < V; e++) {
                sums[e].first += wide(g.at[e]) * (wide(x.at[e]) - mean) * rstd;
                sums[e].second += wide(g.at[e]);
            }
        }
    }
    for (int e = 0; e < V; e++) shared[threadIdx.y * WIDTH + threadIdx.x * V + e] = sums[e];
    __syncthreads();
    for (int k = threadIdx.y * LANES + threadIdx.x; k < WIDTH && first + k < in.d; k += ROWS * LANES) {
        two<C> all = shared[k];
        for (int row = 1; row < ROWS; row++) all = both_of()(all, shared[row * WIDTH + k]);
        parts[2 * blockIdx.y * in.d + first + k] = all.first;
        parts[(2 * blockIdx.y + 1) * in.d + first + k] = all.second;
    }
}

/* dx and the sums of columns, where a warp holds a row: each block has every gridDim.x'th of ROWS rows. */
template <class T, int K>
__global__ void __launch_bounds__(LANES * ROWS, K < HELD<T> && sizeof(T) < 8 ? 2 : 1)
norm_grad_both(T *dx, int64_t to, norm_inputs<T> in, compute_of<T> *parts)
{
    using C = compute_of<T>;
    constexpr int V = 16 / sizeof(T);
    __shared__ two<C> shared[LANES * K * V];
    two<C> columns[K][V] = {};
    int64_t packs = in.d / V;
    for (int64_t r = (int64_t)blockIdx.x * ROWS + threadIdx.y; r < in.x_at.n; r += (int64_t)gridDim.x * ROWS) {
        held_row<T, K> g(in.g + r * in.g_at.stride[0], packs), x(in.x + r * in.x_at.stride[0], packs);
        C mean = in.mean ? in.mean[r] : C(0), rstd = in.rstd[r];
        two<C> sums = {C(0), C(0)};
        each_held<K>(packs, [&](int k, int64_t p) {
            numbers_of<T> weight(in.weight, p, C(1));
#pragma unroll
            for (int e = 0; e < V; e++) {
                C of_g = wide(g.held[k].at[e]), h = of_g * weight[e], off = wide(x.held[k].at[e]) - mean;
                columns[k][e].first += of_g * off * rstd;
                columns[k][e].second += of_g;
                sums.first += in.mean ? h : C(0);
                sums.second += h * off * rstd;
            }
        });
        put_dx(dx + r * to, in, g, x, packs, mean, rstd, reduce_in_warps(sums, both_of()));
    }
    for (unsigned row = 0; row < ROWS; row++) {
        if (threadIdx.y == row)
            each_held<K>(packs, [&](int k, int64_t p) {
#pragma unroll
                for (int e = 0; e < V; e++)
                    shared[p * V + e] = row ? both_of()(shared[p * V + e], columns[k][e]) : columns[k][e];
            });
        __syncthreads();
    }
    for (int64_t i = threadIdx.y * LANES + threadIdx.x; i < in.d; i += LANES * ROWS) {
        parts[2 * blockIdx.x * in.d + i] = shared[i].first;
        parts[(2 * blockIdx.x + 1) * in.d + i] = shared[i].second;
    }
}

/* [d] <- (what it has +) the sums of parts: [count][2][d], of the first and the second of each two. */
template <class C> __global__ void add_columns(const C *parts, int count, int64_t d, into_vector weight, into_vector bias)
{
    into_vector to = blockIdx.y ? bias : weight;
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (!to.at) return;
    C sum = 0;
    if (i < d)
        each_loaded<8, C>(threadIdx.y, count, blockDim.y,
                          [&](int64_t p) { return parts[(2 * p + blockIdx.y) * d + i]; },
                          [&](C part, int64_t) { sum += part; });
    sum = reduce_in_group(sum, plus_of());
    if (!threadIdx.y && i < d) to.put(i, to.before<C>(i) + sum);
}

/* The weight's gradient and the bias's from count parts. */
template <class C> static tr_status add_parts(const job &j, const C *parts, int64_t count, int64_t d)
{
    const tr_layer_norm_attrs &a = j.attrs<tr_layer_norm_attrs>();
    return LAUNCH(j, add_columns<C>, dim3((unsigned)parts_of(d, LANES), 2), dim3(LANES, ROWS), 0, parts, (int)count, d,
                  vector_to(j, 1, a.accumulate_weight), vector_to(j, 2, a.accumulate_bias));
}

template <class T> static tr_status norm_grad(const job &j, const norm_inputs<T> &in)
{
    using C = compute_of<T>;
    constexpr int V = 16 / sizeof(T);
    int64_t rows = in.x_at.n;
    bool packed = in_packs(in.g, in.g_at, in.g_step, in.d) && in_packs(in.x, in.x_at, in.x_step, in.d);
    bool columns = in.d && (j.has_out(1) || j.has_out(2));
    if (j.has_out(0) && rows) {
        const tr_device_tensor &y = j.out(0);
        T *dx = (T *)y.data;
        axis to = axis_in(y, ~(1u << (y.shape.ndim - 1)));
        dim3 held = holders_of<T>(in.d / V);
        bool holds = packed && held.x && in_packs((const T *)dx, to, stride_at(y, -1), in.d) && in_packs(in.weight) &&
                     parts_of(rows, held.y) <= GRID_LIMIT;
        if (holds && columns && held.x == LANES) {
            int64_t parts = least(parts_of(rows, ROWS), ENOUGH_BLOCKS);
            scratch memory(j, sizeof(C) * (size_t)(2 * parts * in.d));
            TRY(memory.status());
            C *of_parts = memory.template as<C>();
            dim3 block(LANES, ROWS);
            constexpr int FEWER = HELD<T> * 3 / 4;
            if (in.d / V <= LANES * FEWER)
                TRY(LAUNCH(j, (norm_grad_both<T, FEWER>), (unsigned)parts, block, 0, dx, to.stride[0], in, of_parts));
            else
                TRY(LAUNCH(j, (norm_grad_both<T, HELD<T>>), (unsigned)parts, block, 0, dx, to.stride[0], in, of_parts));
            return add_parts(j, of_parts, parts, in.d);
        }
        if (holds)
            TRY(LAUNCH(j, norm_grad_held<T>, (unsigned)parts_of(rows, held.y), held, 0, dx, to.stride[0], in));
        else {
            thread_groups w = groups_of_rows(rows, in.d, in.x_step, sizeof(T));
            TRY(LAUNCH(j, norm_grad_rows<T>, dim3((unsigned)w.blocks), w.block, 0, dx, to, stride_at(y, -1), in));
        }
    }
    if (!columns) return TR_OK;
    const int64_t blocks = parts_of(in.d, LANES * (packed ? V : 1)),
                  each = most(1, parts_of(rows, 4 * ROWS * most(1, 768 / blocks))) * 4 * ROWS,
                  parts = most(1, parts_of(rows, each));
    scratch memory(j, sizeof(C) * (size_t)(2 * parts * in.d));
    TRY(memory.status());
    C *of_parts = memory.template as<C>();
    dim3 grid((unsigned)blocks, (unsigned)parts), block(LANES, ROWS);
    if (packed) TRY(LAUNCH(j, (norm_grad_columns<T, V>), grid, block, 0, of_parts, in, each));
    else TRY(LAUNCH(j, (norm_grad_columns<T, 1>), grid, block, 0, of_parts, in, each));
    return add_parts(j, of_parts, parts, in.d);
}

/* mean and rstd are as the norm made them: row-major. */
static tr_status run_norm_grad(const job &j, const tr_device_tensor *mean, const tr_device_tensor &rstd)
{
    const tr_device_tensor &g = j.in(0), &x = j.in(1);
    uint32_t others = ~(1u << (x.shape.ndim - 1));
    return for_float(x.dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        using C = compute_of<T>;
        return norm_grad<T>(j,
                            norm_inputs<T>{(const T *)g.data, (const T *)x.data, axis_in(g, others), axis_in(x, others),
                                           stride_at(g, -1), stride_at(x, -1), size_at(x, -1), vector_in<T>(j, 2),
                                           mean ? (const C *)mean->data : nullptr, (const C *)rstd.data});
    });
}

tr_status cuda_layer_norm_grad(const job &j) { return run_norm_grad(j, &j.in(3), j.in(4)); }
tr_status cuda_rms_norm_grad(const job &j) { return run_norm_grad(j, nullptr, j.in(3)); }
