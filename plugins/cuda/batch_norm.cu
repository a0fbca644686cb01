/*
 * Batch normalisation of each channel over the N numbers that all images have of it:
 *   y = xhat weight + bias, xhat = (x - mean) rstd, rstd = 1/sqrt(var + eps), var = mean((x - mean)^2)
 *   dbias = sum of g, dweight = sum of g xhat, dx = weight rstd (g - dbias/N - xhat dweight/N)
 * With mean and variance given they are constants: dx = weight rstd g.
 *
 * A group of threads makes a channel's sums, or a part of them where channels are few; a second launch adds the
 * parts in order.
 */
#include "families.h"
#include "thread_group.h"

namespace {

constexpr int64_t PART = 2048, MOST_PARTS = 256;

/* A vector of the channels, of any float dtype. */
struct channel_vector {
    const void *at; /* NULL: none */
    tr_dtype dtype;
    int64_t step;
    template <class C> __device__ C of(int64_t channel, C otherwise) const
    {
        return at ? load_as<C>(dtype, at, channel * step) : otherwise;
    }
};

channel_vector vector_of(const job &j, int i)
{
    return j.has_in(i) ? channel_vector{j.in(i).data, j.in(i).dtype, j.in(i).stride[0]}
                       : channel_vector{nullptr, TR_F32, 0};
}

/* How a tensor's channels and the numbers of one are found, and how blocks share them. */
struct channels {
    axis channel, others;
    thread_groups threads;
    int64_t parts, each;
};

channels channels_of(const tr_device_tensor &x)
{
    channels c = {axis_in(x, 1u << 1), axis_in(x, ~(1u << 1)), {}, 1, 0};
    c.threads = groups_of(c.channel.n, c.others.n, c.channel.stride[0] < c.others.stride[c.others.ndim - 1]);
    c.parts = most(1, least(least(parts_of(c.others.n, PART), MOST_PARTS), parts_of(1024, c.threads.blocks)));
    c.each = parts_of(most(c.others.n, 1), c.parts);
    c.parts = parts_of(most(c.others.n, 1), c.each);
    return c;
}

/* x with its channel's number beside each element, for walks: neighbours in dimension 1 lie 1 apart. */
tr_device_tensor channel_numbers(const tr_device_tensor &x)
{
    tr_device_tensor t = x;
    t.dtype = TR_U8;
    t.data = nullptr;
    for (int d = 0; d < t.shape.ndim; d++) t.stride[d] = d == 1;
    return t;
}

/* ---- Moments -------------------------------------------------------------------------------------------------------
 */

template <class C> struct moments { C count, mean, squares; /* about the mean */ };

struct moments_of_both { /* Chan, Golub, LeVeque 1979 */
    template <class C> __device__ moments<C> operator()(moments<C> a, moments<C> b) const
    {
        if (a.count == C(0)) return b;
        if (b.count == C(0)) return a;
        C count = a.count + b.count, apart = b.mean - a.mean;
        return moments<C>{count, a.mean + apart * (b.count / count),
                          a.squares + b.squares + apart * apart * (a.count * b.count / count)};
    }
};

/* Sums are taken about the channel's first number, so that a large mean does not round the variance away. */
template <class T>
__global__ void find_moments(moments<compute_of<T>> *parts, const T *x, axis channel, axis others, int64_t each)
{
    using C = compute_of<T>;
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, begin = blockIdx.y * each;
    int64_t end = begin + each < others.n ? begin + each : others.n;
    moments<C> m = {C(0), C(0), C(0)};
    if (c < channel.n && others.n) {
        x += channel.at(c);
        C first = wide(x[0]), sum = 0, squares = 0, count = 0;
        for (int64_t i = begin + threadIdx.y; i < end; i += blockDim.y, count += 1) {
            C value = wide(x[others.at(i)]) - first;
            sum += value;
            squares += value * value;
        }
        if (count > C(0)) m = moments<C>{count, first + sum / count, squares - sum * (sum / count)};
    }
    m = reduce_in_group(m, moments_of_both());
    if (threadIdx.y == 0 && c < channel.n) parts[blockIdx.y * channel.n + c] = m;
}

template <class C> __global__ void finish_moments(C *mean, C *var, const moments<C> *parts, int64_t n, int count)
{
    FOR_EACH_OF(c, n)
    {
        moments<C> m = parts[c];
        for (int p = 1; p < count; p++) m = moments_of_both()(m, parts[p * n + c]);
        mean[c] = m.mean;
        var[c] = m.count > C(0) ? (m.squares < C(0) ? C(0) : m.squares / m.count) : C(0);
    }
}

template <class C>
__global__ void copy_vectors(C *mean, C *var, channel_vector given_mean, channel_vector given_var, int64_t n)
{
    FOR_EACH_OF(c, n)
    {
        mean[c] = given_mean.of(c, C(0));
        var[c] = given_var.of(c, C(1));
    }
}

template <class T>
__global__ void normalize(T *y, const T *x, walk<3> w, const compute_of<T> *mean, const compute_of<T> *var,
                          channel_vector weight, channel_vector bias, double eps)
{
    using C = compute_of<T>;
    FOR_EACH_OF(i, w.count)
    {
        int64_t place[3];
        w.at((uint32_t)i, place);
        int64_t c = place[2];
        C xhat = (wide(x[place[1]]) - mean[c]) / sqrt(var[c] + (C)eps);
        y[place[0]] = narrow<T>(xhat * weight.of(c, C(1)) + bias.of(c, C(0)));
    }
}

template <class T> tr_status make_statistics(const job &j, bool frozen)
{
    using C = compute_of<T>;
    const tr_device_tensor &x = j.in(0);
    C *mean = (C *)j.out(1).data, *var = (C *)j.out(2).data;
    int64_t n = x.shape.dim[1];
    if (frozen)
        return LAUNCH(j, copy_vectors<C>, grid_for(n), BLOCK, 0, mean, var, vector_of(j, 3), vector_of(j, 4), n);
    channels c = channels_of(x);
    scratch memory(j, sizeof(moments<C>) * (size_t)(c.parts * n));
    TRY(memory.status());
    moments<C> *parts = memory.template as<moments<C>>();
    TRY(LAUNCH(j, find_moments<T>, dim3((unsigned)c.threads.blocks, (unsigned)c.parts), c.threads.block, 0, parts,
               (const T *)x.data, c.channel, c.others, c.each));
    return LAUNCH(j, finish_moments<C>, grid_for(n), BLOCK, 0, mean, var, parts, n, (int)c.parts);
}

/* ---- Gradients --------------------------------------------------------------------------------------------------- */

template <class C> struct sums { C g, gx; /* of g, and of g xhat */ };
struct sums_of_both {
    template <class C>
    __device__ sums<C> operator()(sums<C> a, sums<C> b) const
    {
        return sums<C>{a.g + b.g, a.gx + b.gx};
    }
};

template <class T> struct grad_inputs {
    const T *g, *x;
    channel_vector weight, mean, var;
    double eps;
    __device__ compute_of<T> rstd(int64_t c) const
    {
        return 1 / sqrt(var.of(c, compute_of<T>(1)) + (compute_of<T>)eps);
    }
};

template <class T>
__global__ void sum_gradients(sums<compute_of<T>> *parts, grad_inputs<T> in, axis g_channel, axis g_others,
                              axis x_channel, axis x_others, int64_t each)
{
    using C = compute_of<T>;
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, begin = blockIdx.y * each;
    int64_t end = begin + each < x_others.n ? begin + each : x_others.n;
    sums<C> s = {C(0), C(0)};
    if (c < x_channel.n) {
        const T *g = in.g + g_channel.at(c), *x = in.x + x_channel.at(c);
        C mean = in.mean.of(c, C(0)), rstd = in.rstd(c);
        for (int64_t i = begin + threadIdx.y; i < end; i += blockDim.y) {
            C arrived = wide(g[g_others.at(i)]);
            s.g += arrived;
            s.gx += arrived * (wide(x[x_others.at(i)]) - mean) * rstd;
        }
    }
    s = reduce_in_group(s, sums_of_both());
    if (threadIdx.y == 0 && c < x_channel.n) parts[blockIdx.y * x_channel.n + c] = s;
}

struct into_vector {
    void *at; /* NULL: not wanted */
    tr_dtype dtype;
    int64_t step;
    bool accumulate;
    template <class C> __device__ void put(int64_t c, C value) const
    {
        if (!at) return;
        if (accumulate) value += load_as<C>(dtype, at, c * step);
        store_as<C>(dtype, at, c * step, value);
    }
};

/* Makes the first of the parts the sum of all. */
template <class C>
__global__ void finish_sums(sums<C> *parts, int64_t n, int count, into_vector dweight, into_vector dbias)
{
    FOR_EACH_OF(c, n)
    {
        sums<C> s = parts[c];
        for (int p = 1; p < count; p++) s = sums_of_both()(s, parts[p * n + c]);
        parts[c] = s;
        dweight.put(c, s.gx);
        dbias.put(c, s.g);
    }
}

template <class T>
__global__ void batch_norm_dx(T *dx, grad_inputs<T> in, walk<4> w, const sums<compute_of<T>> *of_channel,
                              compute_of<T> count, bool frozen)
{
    using C = compute_of<T>;
    FOR_EACH_OF(i, w.count)
    {
        int64_t place[4];
        w.at((uint32_t)i, place);
        int64_t c = place[3];
        C rstd = in.rstd(c), xhat = (wide(in.x[place[2]]) - in.mean.of(c, C(0))) * rstd;
        sums<C> s = of_channel[c];
        C through = frozen ? C(0) : (s.g + xhat * s.gx) / count;
        dx[place[0]] = narrow<T>(in.weight.of(c, C(1)) * rstd * (wide(in.g[place[1]]) - through));
    }
}

into_vector vector_to(const job &j, int i, bool accumulate)
{
    return j.has_out(i) ? into_vector{j.out(i).data, j.out(i).dtype, j.out(i).stride[0], accumulate}
                        : into_vector{nullptr, TR_F32, 0, false};
}

template <class T> tr_status batch_norm_grad(const job &j)
{
    using C = compute_of<T>;
    const tr_device_tensor &g = j.in(0), &x = j.in(1);
    const tr_batch_norm_attrs &a = j.attrs<tr_batch_norm_attrs>();
    channels c = channels_of(x);
    int64_t n = c.channel.n;
    scratch memory(j, sizeof(sums<C>) * (size_t)(c.parts * n));
    TRY(memory.status());
    sums<C> *parts = memory.template as<sums<C>>();
    grad_inputs<T> in = {(const T *)g.data, (const T *)x.data, vector_of(j, 2),
                         vector_of(j, 3),   vector_of(j, 4),   a.eps};
    TRY(LAUNCH(j, sum_gradients<T>, dim3((unsigned)c.threads.blocks, (unsigned)c.parts), c.threads.block, 0, parts, in,
        axis_in(g, 1u << 1), axis_in(g, ~(1u << 1)), c.channel, c.others, c.each));
    TRY(LAUNCH(j, finish_sums<C>, grid_for(n), BLOCK, 0, parts, n, (int)c.parts, vector_to(j, 1, a.accumulate_weight),
        vector_to(j, 2, a.accumulate_bias)));
    if (!j.has_out(0)) return TR_OK;
    tr_device_tensor numbers = channel_numbers(x);
    const tr_device_tensor *tensors[] = {&j.out(0), &g, &x, &numbers};
    loop l = loop_of(x.shape, tensors, 4);
    if (l.count == 0) return TR_OK;
    return LAUNCH(j, batch_norm_dx<T>, grid_for(l.count), BLOCK, 0, (T *)l.data[0], in, walk<4>(l), parts,
                  (C)c.others.n, a.frozen);
}

} // namespace

tr_status cuda_batch_norm(const job &j)
{
    const tr_device_tensor &x = j.in(0), &y = j.out(0);
    const tr_batch_norm_attrs &a = j.attrs<tr_batch_norm_attrs>();
    if (numel(x) > INDEX_LIMIT) return TR_DECLINED;
    if (x.shape.dim[1] == 0) return TR_OK;
    return for_float(x.dtype, [&](auto t) -> tr_status {
        using T = typename decltype(t)::type;
        using C = compute_of<T>;
        TRY(make_statistics<T>(j, a.frozen));
        const C *mean = (const C *)j.out(1).data, *var = (const C *)j.out(2).data;
        tr_device_tensor numbers = channel_numbers(x);
        const tr_device_tensor *tensors[] = {&y, &x, &numbers};
        loop l = loop_of(x.shape, tensors, 3);
        if (l.count == 0) return TR_OK;
        return LAUNCH(j, normalize<T>, grid_for(l.count), BLOCK, 0, (T *)l.data[0], (const T *)l.data[1], walk<3>(l),
                      mean, var, vector_of(j, 1), vector_of(j, 2), a.eps);
    });
}

tr_status cuda_batch_norm_grad(const job &j)
{
    if (numel(j.in(1)) > INDEX_LIMIT) return TR_DECLINED;
    if (j.in(1).shape.dim[1] == 0) return TR_OK;
    return for_float(j.in(1).dtype, [&](auto t) { return batch_norm_grad<typename decltype(t)::type>(j); });
}
