/*
 * Elementwise ops: out[i] = f(in0[i], in1[i], …). f is computed in float, double or int64_t. One kernel reads aligned runs
 * of f32, f16 and bf16 in vectors of 16 bytes, 16-bit numbers beside f32 as well; the other takes any dtypes, strides and
 * broadcasts, and is compiled once for each type that is computed in, as its memory's dtype is asked for at run time.
 */
#ifndef TRIREME_CUDA_ELEMENTWISE_H
#define TRIREME_CUDA_ELEMENTWISE_H

#include "kernel.h"

template <class T, int N> struct alignas(sizeof(T) * N) pack { T at[N]; };

template <int N> struct addresses {
    const void *in[N];
    bool single[N]; /* one number, broadcast */
    tr_dtype dtype[N];
};

/* V numbers of input k, of type T, or beside f32 of 16 bits. */
template <class T, int V, int N> __device__ inline pack<T, V> pack_of(const addresses<N> &from, int k, int64_t p)
{
    pack<T, V> x;
    if (from.single[k])
        for (int i = 0; i < V; i++) x.at[i] = *(const T *)from.in[k];
    else if (!std::is_same_v<T, float> || from.dtype[k] == TR_F32) x = ((const pack<T, V> *)from.in[k])[p];
    else {
        pack<uint16_t, V> bits = ((const pack<uint16_t, V> *)from.in[k])[p];
#pragma unroll
        for (int i = 0; i < V; i++) x.at[i] = narrow<T>(load_wide<float>(from.dtype[k], &bits, i));
    }
    return x;
}

/* What f makes of N numbers in C, by the type that f itself declares: nvcc's host pass sees no body of a device function,
 * and deduces `void` where that returns `auto`. */
template <class C, int N, class F> struct made_by;
template <class C, class F> struct made_by<C, 1, F> : std::invoke_result<const F &, C> {};
template <class C, class F> struct made_by<C, 2, F> : std::invoke_result<const F &, C, C> {};
template <class C, class F> struct made_by<C, 3, F> : std::invoke_result<const F &, C, C, C> {};

/* f of the elements that a pack of each input has at k. */
template <class C, int N, class F> __device__ inline typename made_by<C, N, F>::type apply(const F &f, const C *x)
{
    if constexpr (N == 1) return f(x[0]);
    else if constexpr (N == 2) return f(x[0], x[1]);
    else return f(x[0], x[1], x[2]);
}

template <class T, int N, class F> __device__ inline T result(const F &f, const T *x)
{
    float in[N];
    for (int k = 0; k < N; k++) in[k] = wide(x[k]);
    return narrow<T>(apply<float, N>(f, in));
}

template <class T, int N, class F>
__global__ void elementwise_flat(T *out, addresses<N> from, int64_t count, F f)
{
    constexpr int V = 16 / sizeof(T);
    int64_t packs = count / V;
    FOR_EACH_OF(p, packs)
    {
        pack<T, V> x[N], y;
        for (int k = 0; k < N; k++) x[k] = pack_of<T, V>(from, k, p);
#pragma unroll
        for (int i = 0; i < V; i++) {
            T element[N];
            for (int k = 0; k < N; k++) element[k] = x[k].at[i];
            y.at[i] = result<T, N>(f, element);
        }
        ((pack<T, V> *)out)[p] = y;
    }
    for (int64_t i = packs * V + (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        T element[N];
        for (int k = 0; k < N; k++) element[k] = pack_of<T, 1>(from, k, i).at[0];
        out[i] = result<T, N>(f, element);
    }
}

/* What f makes is of the dtype `to`, or truth. */
template <class C, int N, class F>
__global__ void elementwise_strided(void *out, tr_dtype to, addresses<N> from, const __grid_constant__ walk<N + 1> w,
                                    F f)
{
    FOR_EACH_OF(i, w.count)
    {
        int64_t place[N + 1];
        C x[N];
        w.at((uint32_t)i, place);
        for (int k = 0; k < N; k++) x[k] = load_wide<C>(from.dtype[k], from.in[k], place[k + 1]);
        auto y = apply<C, N>(f, x);
        if constexpr (std::is_same_v<decltype(y), bool>) ((uint8_t *)out)[place[0]] = y;
        else store_narrow<C>(to, out, place[0], (C)y);
    }
}

template <class T, int N, class F>
tr_status elementwise_packed(const job &j, const loop &l, const addresses<N> &from, const F &f)
{
    return LAUNCH(j, (elementwise_flat<T, N, F>), grid_for(l.count, BLOCK * (16 / (int64_t)sizeof(T))), BLOCK, 0,
                  (T *)l.data[0], from, l.count, f);
}

/* The inputs are of dtypes that are computed in C. */
template <class C, int N, class F>
tr_status elementwise_into(const job &j, const tr_device_tensor &to, const tr_device_tensor *in, const F &f)
{
    const tr_device_tensor *tensors[N + 1] = {&to};
    for (int k = 0; k < N; k++) tensors[k + 1] = &in[k];
    loop l = loop_of(to.shape, tensors, N + 1);
    addresses<N> from;
    for (int k = 0; k < N; k++) from.dtype[k] = in[k].dtype;
    if constexpr (std::is_same_v<C, float> && !std::is_same_v<typename made_by<C, N, F>::type, bool>) {
        bool packed = loop_is_flat(l) && l.count && (uintptr_t)l.data[0] % 16 == 0;
        for (int k = 0; packed && k < N; k++) {
            from.in[k] = l.data[k + 1];
            from.single[k] = l.stride[k + 1][0] == 0;
            packed = from.single[k] ? in[k].dtype == to.dtype
                                    : (uintptr_t)from.in[k] % 16 == 0 && (in[k].dtype == to.dtype || to.dtype == TR_F32);
        }
        if (packed && to.dtype == TR_F32) return elementwise_packed<float>(j, l, from, f);
        if (packed && to.dtype == TR_F16) return elementwise_packed<f16>(j, l, from, f);
        if (packed) return elementwise_packed<bf16>(j, l, from, f);
    }
    return loop_in_parts(l, [&](const loop &part) {
        for (int k = 0; k < N; k++) from.in[k] = part.data[k + 1];
        return LAUNCH(j, (elementwise_strided<C, N, F>), grid_for(part.count), BLOCK, 0, (void *)part.data[0], to.dtype,
                      from, walk<N + 1>(part), f);
    });
}

/* Floats: f64 alone, or any of the others. */
template <int N, class F>
tr_status map_into(const job &j, const tr_device_tensor &to, const tr_device_tensor *in, const F &f)
{
    if (!is_float_dtype(to.dtype)) return TR_DECLINED;
    for (int k = 0; k < N; k++)
        if ((in[k].dtype == TR_F64) != (to.dtype == TR_F64)) return TR_DECLINED;
    return for_compute(to.dtype, [&](auto t) { return elementwise_into<typename decltype(t)::type, N>(j, to, in, f); });
}

template <int N, class F> tr_status elementwise_floats(const job &j, const F &f)
{
    return map_into<N>(j, j.out(0), j.call.inputs, f);
}

template <int N, class F> tr_status elementwise_any(const job &j, const F &f)
{
    if (is_float_dtype(j.out(0).dtype)) return elementwise_floats<N>(j, f);
    return elementwise_into<int64_t, N>(j, j.out(0), j.call.inputs, f);
}

/* cuda_NAME: what the expression makes of N floats, the parameters, of the type C that is computed in; a: the op's attributes. */
#define FLOATS(name, N, attributes, parameters, expression)                                          \
    struct name##_of {                                                                               \
        attributes a;                                                                                \
        template <class C> __device__ C operator() parameters const { return (expression); }         \
    };                                                                                               \
    tr_status cuda_##name(const job &j) { return elementwise_floats<N>(j, name##_of{j.attrs<attributes>()}); }

/* The same of floats and integers, whose C is int64_t. */
#define NUMBERS(name, N, parameters, float_expression, integer_expression)                           \
    struct name##_of {                                                                               \
        template <class C> __device__ C operator() parameters const                                  \
        {                                                                                            \
            if constexpr (is_float<C>) return (float_expression);                                    \
            else return (integer_expression);                                                        \
        }                                                                                            \
    };                                                                                               \
    tr_status cuda_##name(const job &j) { return elementwise_any<N>(j, name##_of()); }

#endif
