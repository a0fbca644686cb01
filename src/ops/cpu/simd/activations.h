/* Activations on vectors: their values at x, and g times their slopes there. Included by files that are compiled once per
 * kind of machine, so everything is static. */
#ifndef TR_OPS_CPU_SIMD_ACTIVATIONS_H
#define TR_OPS_CPU_SIMD_ACTIVATIONS_H

#include "ops/cpu/simd/vec.h"

#include <trireme/ops.h>

static inline vec relu_value(vec x)
{
    return vec_max(vec_all(0), x);
}

static inline vec relu_times_slope(vec g, vec x)
{
    return vec_where_at_most(x, vec_all(0), vec_all(0), g);
}

/* See unary.c: gelu(x) = x sigmoid(2u), 2u = 2 sqrt(2/pi) (x + 0.044715 x^3). Beyond 9 on either side it is x or, to
 * f32's last digit beside any other term, 0; held there, nothing overflows. */
static inline vec exp_minus_2u(vec x)
{
    return vec_exp_within(x * (-1.5957691216f - 0.0713548162726f * (x * x)));
}

static inline vec gelu_value(vec x)
{
    vec held = vec_hold(x, -9, 9);
    return vec_max(vec_all(-9), x) * vec_invert(1.0f + exp_minus_2u(held));
}

/* With e = exp(-2u) and s = 1/(1 + e): s + x s (1 - s) (2u)', where 1 - s = s e. */
static inline vec gelu_times_slope(vec g, vec x)
{
    x = vec_hold(x, -9, 9);
    vec e = exp_minus_2u(x);
    vec s = vec_invert(1.0f + e);
    vec slope = 1.5957691216f + 0.2140644488f * (x * x);
    return g * (s + x * slope * (s * e) * s);
}

/* The normal distribution's tail beyond |x|: erfc(z)/2, z = |x|/sqrt(2), as t exp(-z^2 + polynomial in t) with
 * t = 1/(1 + z/2) (Press et al., Numerical Recipes, erfcc: relative error below 1.2e-7). */
static inline vec normal_tail(vec x)
{
    vec z = vec_hold(vec_abs(x) * 0.70710678f, 0, 9);
    vec t = vec_invert(1.0f + 0.5f * z), p = t * 0.17087277f - 0.82215223f;
    p = p * t + 1.48851587f;
    p = p * t - 1.13520398f;
    p = p * t + 0.27886807f;
    p = p * t - 0.18628806f;
    p = p * t + 0.09678418f;
    p = p * t + 0.37409196f;
    p = p * t + 1.00002368f;
    p = p * t - 1.26551223f;
    return 0.5f * t * vec_exp_within(p - z * z);
}

static inline vec normal(vec x)
{
    vec tail = normal_tail(x);
    return vec_where_larger(x, vec_all(0), 1.0f - tail, tail);
}

static inline vec gelu_exact_value(vec x)
{
    return vec_max(vec_all(-13), x) * normal(x);
}

static inline vec gelu_exact_times_slope(vec g, vec x)
{
    x = vec_hold(x, -13, 13);
    return g * (normal(x) + x * 0.3989422804f * vec_exp_within(-0.5f * (x * x)));
}

/* x sigmoid(x). Beyond 87 it is x, or 0 beside anything else. */
static inline vec silu_value(vec x)
{
    return vec_max(vec_all(-87), x) * vec_sigmoid(x);
}

/* With e = exp(-x) and s = 1/(1 + e): s (1 + x (1 - s)), where 1 - s = s e. */
static inline vec silu_times_slope(vec g, vec x)
{
    x = vec_hold(x, -87, 87);
    vec e = vec_exp_within(-x), s = vec_invert(1.0f + e);
    return g * s * (1.0f + x * (s * e));
}

/* See unary.c. Beyond 20 it is x. */
static inline vec mish_value(vec x)
{
    vec e = vec_exp_within(vec_hold(x, -87, 20)), n = e * (e + 2.0f);
    return vec_max(vec_all(-87), x) * (n / (n + 2.0f));
}

static inline vec mish_times_slope(vec g, vec x)
{
    x = vec_hold(x, -87, 20);
    vec e = vec_exp_within(x), n = e * (e + 2.0f), part = 1.0f / (n + 2.0f);
    return g * (n * part + 4.0f * x * (e * part) * ((e + 1.0f) * part));
}

/* The numbers next to -3 and 3 stand for "or equal". */
static inline vec hardswish_times_slope(vec g, vec x)
{
    vec middle = g * (x * (1 / 3.0f) + 0.5f);
    return vec_where_larger(vec_all(-0x1.7ffffep+1f), x, vec_all(0), vec_where_larger(x, vec_all(0x1.7ffffep+1f), g, middle));
}

#define ACTIVATION_EACH(to, expression)                                   \
    for (int64_t i = 0; i < n; i += WIDTH) vec_store(to + i, expression); \
    break;

/* x[i] = f(x[i]) for i < n; whole vectors are read and written. */
static inline void activate(tr_activation_kind f, float *x, int64_t n)
{
    switch (f) {
    case TR_RELU: ACTIVATION_EACH(x, relu_value(vec_load(x + i)))
    case TR_GELU: ACTIVATION_EACH(x, gelu_value(vec_load(x + i)))
    case TR_GELU_EXACT: ACTIVATION_EACH(x, gelu_exact_value(vec_load(x + i)))
    case TR_NO_ACTIVATION:
    case TR_ACTIVATION_COUNT: break;
    }
}

/* g[i] *= f'(x[i]), likewise. */
static inline void times_slope(tr_activation_kind f, float *g, const float *x, int64_t n)
{
    switch (f) {
    case TR_RELU: ACTIVATION_EACH(g, relu_times_slope(vec_load(g + i), vec_load(x + i)))
    case TR_GELU: ACTIVATION_EACH(g, gelu_times_slope(vec_load(g + i), vec_load(x + i)))
    case TR_GELU_EXACT: ACTIVATION_EACH(g, gelu_exact_times_slope(vec_load(g + i), vec_load(x + i)))
    case TR_NO_ACTIVATION:
    case TR_ACTIVATION_COUNT: break;
    }
}

#endif
