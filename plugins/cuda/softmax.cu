/* softmax and log_softmax over one dimension, and the kernels of their gradients. */
#include "families.h"
#include "log_sum.h"

/* N tensors as rows. */
template <int N> struct rows {
    axis others[N];
    int64_t step[N];
    int64_t n, count; /* elements of a row, rows */
};

/* With lse = log(sum(exp(x))): softmax is exp(x - lse), log_softmax is x - lse. */
template <class T, bool LOG> __global__ void softmax(T *y, const T *x, rows<2> r)
{
    using C = compute_of<T>;
    int64_t line = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    bool mine = line < r.count;
    row_of<const T, 1> from = {{mine ? x + r.others[1].at(line) : x}, {r.step[1]}};
    log_sum<C> s = {minus_infinity<C>(), C(0)};
    if (mine) each_of_row(from, r.n, [&](int64_t, const C *value) { s = with_number(s, value[0]); });
    s = reduce_in_group(s, log_sums_of());
    if (!mine) return;
    row_of<T, 1> to = {{y + r.others[0].at(line)}, {r.step[0]}};
    C rest = log(s.sum);
    map_row(to, from, r.n, [&](int64_t, const C *value) {
        C log_y = value[0] - s.top - rest;
        return LOG ? log_y : exp(log_y);
    });
}

/* dx = y (g - sum(g y)) for softmax, g - exp(y) sum(g) for log_softmax. */
template <class T, bool LOG> __global__ void softmax_grad(T *dx, const T *g, const T *y, rows<3> r)
{
    using C = compute_of<T>;
    int64_t line = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    bool mine = line < r.count;
    row_of<const T, 2> from = {{mine ? g + r.others[1].at(line) : g, mine ? y + r.others[2].at(line) : y},
                               {r.step[1], r.step[2]}};
    C sum = 0;
    if (mine) each_of_row(from, r.n, [&](int64_t, const C *v) { sum += LOG ? v[0] : v[0] * v[1]; });
    sum = reduce_in_group(sum, plus_of());
    if (!mine) return;
    row_of<T, 1> to = {{dx + r.others[0].at(line)}, {r.step[0]}};
    map_row(to, from, r.n, [&](int64_t, const C *v) { return LOG ? v[0] - exp(v[1]) * sum : v[1] * (v[0] - sum); });
}

/* launch(type, rows, groups of threads for them) for the output and the inputs as rows along the op's dimension. */
template <int N, class Launch> static tr_status run_rows(const job &j, Launch launch)
{
    int dim = j.attrs<tr_dim_attrs>().dim;
    rows<N> r;
    for (int k = 0; k < N; k++) {
        const tr_device_tensor &x = k ? j.in(k - 1) : j.out(0);
        r.others[k] = axis_in(x, ~(1u << dim));
        r.step[k] = x.stride[dim];
    }
    r.n = j.out(0).shape.dim[dim];
    r.count = r.others[0].n;
    if (r.count * r.n == 0) return TR_OK;
    return for_float(j.out(0).dtype, [&](auto t) {
        return launch(t, r, groups_of_rows(r.count, r.n, r.step[N - 1], sizeof(typename decltype(t)::type)));
    });
}

template <bool LOG> static tr_status run_softmax(const job &j)
{
    return run_rows<2>(j, [&](auto t, const rows<2> &r, const thread_groups &w) {
        using T = typename decltype(t)::type;
        return LAUNCH(j, (softmax<T, LOG>), dim3((unsigned)w.blocks), w.block, 0, (T *)j.out(0).data,
                      (const T *)j.in(0).data, r);
    });
}

template <bool LOG> static tr_status run_softmax_grad(const job &j)
{
    return run_rows<3>(j, [&](auto t, const rows<3> &r, const thread_groups &w) {
        using T = typename decltype(t)::type;
        return LAUNCH(j, (softmax_grad<T, LOG>), dim3((unsigned)w.blocks), w.block, 0, (T *)j.out(0).data,
            (const T *)j.in(0).data, (const T *)j.in(1).data, r);
    });
}

tr_status cuda_softmax(const job &j) { return run_softmax<false>(j); }
tr_status cuda_log_softmax(const job &j) { return run_softmax<true>(j); }
tr_status cuda_softmax_grad(const job &j) { return run_softmax_grad<false>(j); }
tr_status cuda_log_softmax_grad(const job &j) { return run_softmax_grad<true>(j); }
