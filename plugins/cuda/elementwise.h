/*
 * Elementwise ops: out[i] = f(in0[i], in1[i], …). f is computed in compute_of<T>, T the inputs' storage type; one
 * kernel reads runs of memory in vectors of 16 bytes, the other follows strides and broadcasts.
 */
#ifndef TRIREME_CUDA_ELEMENTWISE_H
#define TRIREME_CUDA_ELEMENTWISE_H

#include "kernel.h"

template <class T, int N> struct alignas(sizeof(T) * N) pack { T at[N]; };

template <int N> struct addresses { const void *in[N]; bool single[N]; /* one number, broadcast */ };

/* f of the elements that a pack of each input has at k. */
template <class C, int N, class F> __device__ inline auto apply(const F &f, const C *x)
{
    if constexpr (N == 1) return f(x[0]);
    else if constexpr (N == 2) return f(x[0], x[1]);
    else return f(x[0], x[1], x[2]);
}

template <class Out, class T, int N, class F> __device__ inline Out result(const F &f, const T *x)
{
    compute_of<T> in[N];
    for (int k = 0; k < N; k++) in[k] = wide(x[k]);
    if constexpr (is_float<Out> || !is_float<T>) return narrow<Out>((compute_of<Out>)apply<compute_of<T>, N>(f, in));
    else return narrow<Out>((int64_t)apply<compute_of<T>, N>(f, in));
}

template <class Out, class T, int N, int V, class F>
__global__ void elementwise_flat(Out *out, addresses<N> from, int64_t count, F f)
{
    int64_t packs = count / V;
    FOR_EACH_OF(p, packs)
    {
        pack<T, V> x[N];
        pack<Out, V> y;
        for (int k = 0; k < N; k++) {
            if (!from.single[k]) x[k] = ((const pack<T, V> *)from.in[k])[p];
            else
                for (int i = 0; i < V; i++) x[k].at[i] = *(const T *)from.in[k];
        }
#pragma unroll
        for (int i = 0; i < V; i++) {
            T element[N];
            for (int k = 0; k < N; k++) element[k] = x[k].at[i];
            y.at[i] = result<Out, T, N>(f, element);
        }
        ((pack<Out, V> *)out)[p] = y;
    }
    for (int64_t i = packs * V + (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        T element[N];
        for (int k = 0; k < N; k++) element[k] = ((const T *)from.in[k])[from.single[k] ? 0 : i];
        out[i] = result<Out, T, N>(f, element);
    }
}

template <class Out, class T, int N, class F>
__global__ void elementwise_strided(Out *out, addresses<N> from, walk<N + 1> w, F f)
{
    FOR_EACH_OF(i, w.count)
    {
        int64_t place[N + 1];
        T element[N];
        w.at((uint32_t)i, place);
        for (int k = 0; k < N; k++) element[k] = ((const T *)from.in[k])[place[k + 1]];
        out[place[0]] = result<Out, T, N>(f, element);
    }
}

/* All inputs are of T, and `to` is of Out. */
template <class Out, class T, int N, class F>
tr_status elementwise_into(const job &j, const tr_device_tensor &to, const tr_device_tensor *in, const F &f)
{
    const tr_device_tensor *tensors[N + 1] = {&to};
    for (int k = 0; k < N; k++) tensors[k + 1] = &in[k];
    loop l = loop_of(to.shape, tensors, N + 1);
    addresses<N> from;
    if (loop_is_flat(l)) {
        constexpr int V = 16 / (sizeof(T) > sizeof(Out) ? sizeof(T) : sizeof(Out));
        bool aligned = (uintptr_t)l.data[0] % (V * sizeof(Out)) == 0;
        for (int k = 0; k < N; k++) {
            from.in[k] = l.data[k + 1];
            from.single[k] = l.stride[k + 1][0] == 0;
            aligned = aligned && (from.single[k] || (uintptr_t)from.in[k] % (V * sizeof(T)) == 0);
        }
        if (l.count == 0) return TR_OK;
        auto kernel = aligned ? elementwise_flat<Out, T, N, V, F> : elementwise_flat<Out, T, N, 1, F>;
        return LAUNCH(j, kernel, grid_for(l.count, (int64_t)BLOCK * (aligned ? V : 1)), BLOCK, 0, (Out *)l.data[0],
                      from, l.count, f);
    }
    return loop_in_parts(l, [&](const loop &part) {
        for (int k = 0; k < N; k++) from.in[k] = part.data[k + 1];
        auto kernel = elementwise_strided<Out, T, N, F>;
        return LAUNCH(j, kernel, grid_for(part.count), BLOCK, 0, (Out *)part.data[0], from, walk<N + 1>(part), f);
    });
}

/* Floats of one dtype. */
template <int N, class F>
tr_status map_into(const job &j, const tr_device_tensor &to, const tr_device_tensor *in, const F &f)
{
    return for_float(to.dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        return elementwise_into<T, T, N>(j, to, in, f);
    });
}

/* An input of another dtype, as an f32 bias beside 16-bit numbers, is cast first. */
template <int N, class F> tr_status elementwise_floats(const job &j, const F &f)
{
    for (int k = 0; k < N; k++) {
        if (j.in(k).dtype == j.out(0).dtype) continue;
        staged cast(j, j.in(k), j.out(0).dtype, nullptr);
        TRY(cast.status());
        tr_device_tensor in[N];
        for (int i = 0; i < N; i++) in[i] = i == k ? cast.view() : j.in(i);
        tr_kernel_call alike = j.call;
        alike.inputs = in;
        return elementwise_floats<N>(job(&alike), f);
    }
    return map_into<N>(j, j.out(0), j.call.inputs, f);
}

template <int N, class F> tr_status elementwise_any(const job &j, const F &f)
{
    tr_dtype dtype = j.out(0).dtype;
    if (dtype == TR_F32 || dtype == TR_F64 || dtype == TR_F16 || dtype == TR_BF16) return elementwise_floats<N>(j, f);
    return for_integer(dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        return elementwise_into<T, T, N>(j, j.out(0), j.call.inputs, f);
    });
}

#endif
