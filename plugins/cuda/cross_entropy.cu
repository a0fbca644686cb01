/*
 * Cross-entropy of logits [..., c] against class numbers. A block reads a row of logits once and keeps its largest
 * number and log-sum-exp; backward makes the gradient from those, in place where the caller wants that: there is never
 * a second copy.
 *
 *   loss of a row = (1 - smoothing) (top - logits[target]) + smoothing mean(top - logits) + log_sum
 */
#include "families.h"
#include "log_sum.h"

struct targets {
    ids id;
    axis at;
    int64_t classes, ignored;

    /* The class of a row; -1: it does not count. */
    __device__ int64_t of(int64_t row) const
    {
        int64_t offset = at.at(row);
        return load_id(id.dtype, id.data, offset) == ignored ? -1 : id.at(offset, row);
    }
};

template <class C> struct outputs_of { C *loss, *top, *log_sum, *below; };

/* Of the elements of the row that this thread works on. */
template <class T> __device__ static log_sum<compute_of<T>> log_sum_of(const row_of<const T, 1> &row, int64_t n)
{
    constexpr int V = 16 / sizeof(T);
    using C = compute_of<T>;
    row_parts<V> parts(row.lead(n), n);
    log_sum<C> s = {minus_infinity<C>(), C(0)};
    auto *packs = (const pack<T, V> *)(row.at[0] + parts.lead);
    each_loaded<4, pack<T, V>>(threadIdx.y, parts.packs, blockDim.y, [&](int64_t p) { return packs[p]; },
                               [&](const pack<T, V> &read, int64_t) {
                                   C x[V];
#pragma unroll
                                   for (int e = 0; e < V; e++) x[e] = wide(read.at[e]);
                                   s = with_numbers<T>(s, x);
                               });
    for (int64_t i = threadIdx.y; i < parts.singles; i += blockDim.y) {
        C x[1] = {wide(row.at[0][parts.single(i) * row.step[0]])};
        s = with_numbers<T>(s, x);
    }
    return s;
}

template <class T>
__global__ void cross_entropy(outputs_of<compute_of<T>> out, const T *logits, axis at, int64_t step, targets t,
                              double smoothing)
{
    using C = compute_of<T>;
    int64_t r = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    bool mine = r < at.n;
    row_of<const T, 1> row = {{mine ? logits + at.at(r) : logits}, {step}};
    C total = 0;
    log_sum<C> s = reduce_in_group(log_sum_of(row, mine ? t.classes : 0), log_sums_of());
    if (s.sum != s.sum && s.top < -minus_infinity<C>()) s.top = s.sum; /* NaN among the numbers */
    if (out.below) { /* mean(top - x), summed as such: a large top would round the sum of x */
        if (mine) each_of_row(row, t.classes, [&](int64_t, const C *x) { total += s.top - x[0]; });
        total = reduce_in_group(total, plus_of()) / (C)t.classes;
    }
    if (threadIdx.y || !mine) return;
    C rest = log(s.sum), of_row = 0;
    int64_t target = t.of(r);
    if (target >= 0) {
        of_row = (C)(1 - smoothing) * (s.top - wide(row.at[0][target * step])) + rest;
        if (out.below) of_row += (C)smoothing * total;
    }
    out.top[r] = s.top;
    out.log_sum[r] = rest;
    if (out.below) out.below[r] = total;
    out.loss[r] = of_row;
}

/* One block: the sum or mean of the rows' losses, and how many count. loss: NULL, the count alone. */
template <class C> __global__ void finish(C *loss, C *count, const C *of_rows, int64_t rows, targets t, bool mean)
{
    two<double> c = {0, 0}; /* the sum of losses, and how many */
    each_loaded<8, two<double>>(
        threadIdx.y, rows, blockDim.y,
        [&](int64_t r) {
            int64_t id = load_id(t.id.dtype, t.id.data, t.at.at(r));
            return two<double>{(double)of_rows[r], (double)(id != t.ignored && id >= 0 && id < t.classes)};
        },
        [&](two<double> row, int64_t) { c = both_of()(c, row); });
    c = reduce_in_group(c, both_of());
    if (threadIdx.y) return;
    if (loss) *loss = (C)(mean ? c.first / c.second : c.first);
    *count = (C)c.second;
}

static targets targets_of(const job &j, const tr_device_tensor &x, int64_t classes)
{
    return targets{{x.data, x.dtype, classes, fault_of(j.call.index), FAULT_TARGET}, axis_in(x, ~0u), classes,
                   j.attrs<tr_cross_entropy_attrs>().ignore_index};
}

tr_status cuda_cross_entropy(const job &j)
{
    const tr_device_tensor &logits = j.in(0);
    const tr_cross_entropy_attrs &a = j.attrs<tr_cross_entropy_attrs>();
    targets t = targets_of(j, j.in(1), size_at(logits, -1));
    axis rows = axis_in(logits, ~(1u << (logits.shape.ndim - 1)));
    return for_float(logits.dtype, [&](auto type) -> tr_status {
        using T = typename decltype(type)::type;
        using C = compute_of<T>;
        bool each = a.reduction == TR_REDUCE_NONE;
        scratch memory(j, sizeof(C) * (size_t)(each ? 0 : rows.n));
        TRY(memory.status());
        outputs_of<C> out = {each ? (C *)j.out(0).data : memory.template as<C>(), (C *)j.out(1).data,
                             (C *)j.out(2).data, j.has_out(4) ? (C *)j.out(4).data : nullptr};
        if (rows.n) {
            thread_groups w = groups_of_rows(rows.n, t.classes, stride_at(logits, -1), sizeof(T));
            TRY(LAUNCH(j, cross_entropy<T>, dim3((unsigned)w.blocks), w.block, 0, out, (const T *)logits.data, rows,
                stride_at(logits, -1), t, a.smoothing));
        }
        return LAUNCH(j, finish<C>, 1, dim3(1, BLOCK), 0, each ? nullptr : (C *)j.out(0).data, (C *)j.out(3).data,
                      out.loss, rows.n, t, a.reduction == TR_REDUCE_MEAN);
    });
}

/* What arrives for each row: g, divided by how many count where the loss is their mean. */
template <class C> struct arriving {
    const void *g;
    tr_dtype dtype;
    axis at;
    const C *count; /* NULL: no mean */
    bool each;
};

template <class T>
__global__ void cross_entropy_grad(T *dlogits, axis to, int64_t to_step, const T *logits, axis at, int64_t step,
                                   targets t, arriving<compute_of<T>> g, const compute_of<T> *top,
                                   const compute_of<T> *rest, double smoothing)
{
    using C = compute_of<T>;
    int64_t r = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= at.n) return;
    int64_t target = t.of(r);
    C scale = target < 0 ? C(0) : load_as<C>(g.dtype, g.g, g.at.at(g.each ? r : 0));
    if (target >= 0 && g.count) scale /= *g.count;
    C even = (C)(smoothing / (double)t.classes), wanted = even + (C)(1 - smoothing), row_top = top[r],
      row_rest = rest[r];
    row_of<const T, 1> from = {{logits + at.at(r)}, {step}};
    row_of<T, 1> into = {{dlogits + to.at(r)}, {to_step}};
    map_row(into, from, t.classes, [&](int64_t i, const C *x) {
        return scale == 0 ? C(0) : (exp_for<T>(x[0] - row_top - row_rest) - (i == target ? wanted : even)) * scale;
    });
}

/* top, log_sum and count are as cross_entropy made them: row-major. */
tr_status cuda_cross_entropy_grad(const job &j)
{
    const tr_device_tensor &logits = j.in(1), &dlogits = j.out(0), &g = j.in(0);
    const tr_cross_entropy_attrs &a = j.attrs<tr_cross_entropy_attrs>();
    uint32_t others = ~(1u << (logits.shape.ndim - 1));
    axis rows = axis_in(logits, others);
    targets t = targets_of(j, j.in(2), size_at(logits, -1));
    if (rows.n * t.classes == 0) return TR_OK;
    return for_float(logits.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        using C = compute_of<T>;
        arriving<C> arrived = {g.data, g.dtype, axis_in(g, ~0u),
                               a.reduction == TR_REDUCE_MEAN ? (const C *)j.in(5).data : nullptr,
                               a.reduction == TR_REDUCE_NONE};
        thread_groups w = groups_of_rows(rows.n, t.classes, stride_at(logits, -1), sizeof(T));
        return LAUNCH(j, cross_entropy_grad<T>, dim3((unsigned)w.blocks), w.block, 0, (T *)dlogits.data,
                      axis_in(dlogits, others), stride_at(dlogits, -1), (const T *)logits.data, rows,
                      stride_at(logits, -1), t, arrived, (const C *)j.in(3).data, (const C *)j.in(4).data, a.smoothing);
    });
}
