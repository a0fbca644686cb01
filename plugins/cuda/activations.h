/* Activations and their slopes, for elementwise kernels and for the epilogues of products. C: float or double. */
#ifndef TRIREME_CUDA_ACTIVATIONS_H
#define TRIREME_CUDA_ACTIVATIONS_H

#include "numbers.h"

#include <trireme/ops.h>

template <class C> __device__ inline C sigmoid(C x)
{
    return x < C(0) ? exp(x) / (C(1) + exp(x)) : C(1) / (C(1) + exp(-x));
}

/* tanh(u) = 2 sigmoid(2u) - 1, so GPT-2's 0.5x(1 + tanh(u)) is x sigmoid(2u), which keeps its digits for large -x.
 * 2u = 2 sqrt(2/pi) (x + 0.044715 x^3). */
template <class C> __device__ inline C gelu_2u(C x)
{
    return C(1.5957691216057308) * (x + C(0.044715) * x * x * x);
}

__device__ inline float inverse(float x) { return tr_reciprocal(x); }
__device__ inline double inverse(double x) { return 1 / x; }

/* x, and NaN as it is; beyond low and high these. What follows has its limits there, where a product of 0 and infinity would be
 * NaN. */
template <class C> __device__ inline C held(C x, C low, C high)
{
    return x < low ? low : x > high ? high : x;
}

/* sigmoid(z) as 1/(1 + exp(-z)), without a branch: below -88 it is 0 in float. */
template <class C> __device__ inline C gelu(C x)
{
    x = held(x, C(-40), x);
    return x * inverse(C(1) + exp(-gelu_2u(x)));
}

template <class C> __device__ inline C gelu_slope(C x)
{
    x = held(x, C(-40), C(40));
    C e = exp(-gelu_2u(x)), s = inverse(C(1) + e), rest = e < C(1e30) ? e * s : C(1); /* 1 - s with all its digits */
    return s + x * s * rest * (C(1.5957691216057308) * (C(1) + C(3 * 0.044715) * x * x));
}

/* x Phi(x), Phi the normal distribution; its derivative is Phi(x) + x phi(x). */
template <class C> __device__ inline C normal(C x)
{
    return C(0.5) * erfc(C(-0.7071067811865476) * x);
}

template <class C> __device__ inline C gelu_exact(C x)
{
    return held(x, C(-40), x) * normal(x);
}

template <class C> __device__ inline C gelu_exact_slope(C x)
{
    x = held(x, C(-40), C(40));
    return normal(x) + x * C(0.3989422804014327) * exp(C(-0.5) * x * x);
}

/* log(1 + exp(x)), which neither overflows nor loses its digits for large -x. */
template <class C> __device__ inline C log_1_exp(C x)
{
    return (x > C(0) ? x : C(0)) + (x != x ? x : log1p(exp(-fabs(x))));
}

/* x sigmoid(x). */
template <class C> __device__ inline C silu(C x)
{
    return held(x, C(-800), x) * sigmoid(x);
}

template <class C> __device__ inline C silu_slope(C x)
{
    x = held(x, C(-800), C(800));
    return sigmoid(x) * (C(1) + x * sigmoid(-x));
}

/* mish(x) = x tanh(softplus(x)). With e = exp(x) and n = e(e + 2), tanh(softplus(x)) = n/(n + 2), whose derivative is
 * 4e(e + 1)/(n + 2)^2. Where e*e is all there is, it may overflow: x is held at 40, in float at 20. */
template <class C> constexpr C MISH_TOP = sizeof(C) == 4 ? 20 : 40;

template <class C> __device__ inline C mish(C x)
{
    C e = exp(held(x, C(-800), MISH_TOP<C>)), n = e * (e + C(2));
    return held(x, C(-800), x) * (n / (n + C(2)));
}

template <class C> __device__ inline C mish_slope(C x)
{
    x = held(x, C(-800), MISH_TOP<C>);
    C e = exp(x), n = e * (e + C(2));
    return n / (n + C(2)) + x * (C(4) * e * (e + C(1)) / ((n + C(2)) * (n + C(2))));
}

template <class C> __device__ inline C activated(tr_activation_kind kind, C x)
{
    switch (kind) {
    case TR_RELU: return x <= C(0) ? C(0) : x;
    case TR_GELU: return gelu(x);
    case TR_GELU_EXACT: return gelu_exact(x);
    default: return x;
    }
}

/* g times the slope at x; where that of ReLU is 0, it is 0 for any g. */
template <class C> __device__ inline C times_slope(tr_activation_kind kind, C g, C x)
{
    switch (kind) {
    case TR_RELU: return x <= C(0) ? C(0) : g;
    case TR_GELU: return g * gelu_slope(x);
    case TR_GELU_EXACT: return g * gelu_exact_slope(x);
    default: return g;
    }
}

#endif
