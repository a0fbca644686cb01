/*
 * Layer normalisation over the last dimension, of d elements, and RMS norm, which is the same about 0 rather than about
 * the mean: y = xhat weight + bias, xhat = (x - mean) rstd, rstd = 1/sqrt(var + eps), var = mean((x - mean)^2) dx =
 * rstd (h - mean(h) - xhat mean(h xhat)), h = g weight;  dweight = sum over rows of g xhat;  dbias = that of g
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

static tr_status run_norm(const job &j, const tr_device_tensor *mean, const tr_device_tensor &rstd, bool with_bias)
{
    const tr_device_tensor &x = j.in(0), &y = j.out(0);
    uint32_t others = ~(1u << (x.shape.ndim - 1));
    axis rows = axis_in(x, others);
    if (rows.n == 0) return TR_OK;
    return for_float(x.dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        using C = compute_of<T>;
        thread_groups w = groups_of_rows(rows.n, size_at(x, -1), stride_at(x, -1), sizeof(T));
        vector_of<T> none = {nullptr, 0};
        return LAUNCH(j, norm<T>, dim3((unsigned)w.blocks), w.block, 0, (T *)y.data, axis_in(y, others),
                      stride_at(y, -1), (const T *)x.data, rows, stride_at(x, -1), size_at(x, -1), vector_in<T>(j, 1),
                      with_bias ? vector_in<T>(j, 2) : none, mean ? (C *)mean->data : nullptr, (C *)rstd.data,
                      j.attrs<tr_layer_norm_attrs>().eps);
    });
}

tr_status cuda_layer_norm(const job &j) { return run_norm(j, &j.out(1), j.out(2), true); }
tr_status cuda_rms_norm(const job &j) { return run_norm(j, nullptr, j.out(1), false); }

/* ---- Gradients -----------------------------------------------------------------------------------------------------
 */

template <class T> struct norm_inputs {
    const T *g, *x;
    axis g_at, x_at;
    int64_t g_step, x_step, d;
    vector_of<T> weight;
    const compute_of<T> *mean, *rstd; /* mean: NULL, it is 0 */
};

template <class C> struct two { C first, second; };
struct both_of {
    template <class C>
    __device__ two<C> operator()(two<C> a, two<C> b) const
    {
        return two<C>{a.first + b.first, a.second + b.second};
    }
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

/* Sums of columns over a part of the rows: parts: [gridDim.y][2][d]. */
template <class T> __global__ void norm_grad_columns(compute_of<T> *parts, norm_inputs<T> in, int64_t each)
{
    using C = compute_of<T>;
    int64_t column = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, begin = blockIdx.y * each;
    int64_t end = begin + each < in.x_at.n ? begin + each : in.x_at.n;
    two<C> sums = {C(0), C(0)};
    if (column < in.d)
        for (int64_t r = begin + threadIdx.y; r < end; r += blockDim.y) {
            C g = wide(in.g[in.g_at.at(r) + column * in.g_step]), x = wide(in.x[in.x_at.at(r) + column * in.x_step]);
            sums.first += g * (x - (in.mean ? in.mean[r] : C(0))) * in.rstd[r];
            sums.second += g;
        }
    sums = reduce_in_group(sums, both_of());
    if (threadIdx.y || column >= in.d) return;
    parts[(2 * blockIdx.y) * in.d + column] = sums.first;
    parts[(2 * blockIdx.y + 1) * in.d + column] = sums.second;
}

/* y: [d] <- (y +) the sums of parts: [count][2][d], of the first or the second of each two. */
template <class C>
__global__ void add_columns(const C *parts, int count, int64_t d, int which, tr_dtype dtype, void *y, int64_t step,
                            bool accumulate)
{
    FOR_EACH_OF(i, d)
    {
        C sum = accumulate ? load_as<C>(dtype, y, i * step) : C(0);
        for (int p = 0; p < count; p++) sum += parts[(2 * p + which) * d + i];
        store_as<C>(dtype, y, i * step, sum);
    }
}

template <class T> static tr_status norm_grad(const job &j, const norm_inputs<T> &in)
{
    using C = compute_of<T>;
    const tr_layer_norm_attrs &a = j.attrs<tr_layer_norm_attrs>();
    int64_t rows = in.x_at.n;
    if (j.has_out(0) && rows) {
        const tr_device_tensor &dx = j.out(0);
        thread_groups w = groups_of_rows(rows, in.d, in.x_step, sizeof(T));
        TRY(LAUNCH(j, norm_grad_rows<T>, dim3((unsigned)w.blocks), w.block, 0, (T *)dx.data,
                   axis_in(dx, ~(1u << (dx.shape.ndim - 1))), stride_at(dx, -1), in));
    }
    if (in.d == 0 || (!j.has_out(1) && !j.has_out(2))) return TR_OK;
    const int64_t columns = 32, threads = 8, each = most(4 * threads, parts_of(rows, 128)),
                  parts = most(1, parts_of(rows, each));
    scratch memory(j, sizeof(C) * (size_t)(2 * parts * in.d));
    TRY(memory.status());
    TRY(LAUNCH(j, norm_grad_columns<T>, dim3((unsigned)parts_of(in.d, columns), (unsigned)parts),
               dim3(columns, threads), 0, memory.template as<C>(), in, each));
    for (int k = 0; k < 2; k++) {
        if (!j.has_out(1 + k)) continue;
        const tr_device_tensor &y = j.out(1 + k);
        TRY(LAUNCH(j, add_columns<C>, grid_for(in.d), BLOCK, 0, memory.template as<C>(), (int)parts, in.d, k, y.dtype,
                   y.data, y.stride[0], k ? a.accumulate_bias : a.accumulate_weight));
    }
    return TR_OK;
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
