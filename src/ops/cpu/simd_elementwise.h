/* Elementwise ops on vectors: x, y, z are a vector of each input. */
#ifndef TR_OPS_CPU_SIMD_ELEMENTWISE_H
#define TR_OPS_CPU_SIMD_ELEMENTWISE_H

#include "ops/cpu/vec.h"
#include "ops/elementwise.h"

#define MAP(name, ...)                                                                                \
    static inline vec name##_vec(vec x, vec y, vec z, const void *attrs)                              \
    {                                                                                                 \
        (void)x, (void)y, (void)z, (void)attrs;                                                       \
        __VA_ARGS__                                                                                   \
    }
#define LOOP(name, n_inputs)                                                                          \
    static void name##_f32(float *out, const float *const *in, int64_t n, const void *attrs)          \
    {                                                                                                 \
        int64_t i = 0, rest;                                                                          \
        vec y = {0}, z = {0};                                                                         \
        for (; i + WIDTH <= n; i += WIDTH) {                                                          \
            if (n_inputs > 1) y = vec_load(in[1] + i);                                                \
            if (n_inputs > 2) z = vec_load(in[2] + i);                                                \
            vec_store(out + i, name##_vec(vec_load(in[0] + i), y, z, attrs));                         \
        }                                                                                             \
        if ((rest = n - i) == 0) return;                                                              \
        if (n_inputs > 1) y = vec_load_part(in[1] + i, rest);                                         \
        if (n_inputs > 2) z = vec_load_part(in[2] + i, rest);                                         \
        vec_store_part(out + i, name##_vec(vec_load_part(in[0] + i, rest), y, z, attrs), rest);       \
    }                                                                                                 \
    static tr_status name##_kernel(tr_op_call *call)                                                  \
    {                                                                                                 \
        static const tr__bodies bodies = {.f32 = name##_f32};                                         \
        return tr__elementwise(call, &bodies);                                                        \
    }
#define UNARY(name, ...) MAP(name, __VA_ARGS__) LOOP(name, 1)
#define BINARY(name, ...) MAP(name, __VA_ARGS__) LOOP(name, 2)
#define TERNARY(name, ...) MAP(name, __VA_ARGS__) LOOP(name, 3)

BINARY(add, return x + y;)
BINARY(sub, return x - y;)
BINARY(mul, return x * y;)
BINARY(div, return x / y;)
BINARY(maximum, return vec_where_nan(x, vec_max(x, y));)
BINARY(minimum, return vec_where_nan(x, vec_min(x, y));)
TERNARY(maximum_grad, return vec_where_larger(y, z, x, vec_where_larger(z, y, vec_all(0), 0.5f * x));)

UNARY(affine, const tr__affine_attrs *a = attrs; return x * (float)a->scale + (float)a->shift;)
UNARY(neg, return -x;)
UNARY(exp, return vec_exp(x);)
UNARY(sqrt, return vec_sqrt(x);)
UNARY(abs, return vec_abs(x);)
UNARY(tanh, return vec_tanh(x);)
UNARY(sigmoid, return vec_sigmoid(x);)
UNARY(relu, return vec_max(vec_all(0), x);)

/* See unary.c: gelu(x) = x sigmoid(2u), 2u = 2 sqrt(2/pi) (x + 0.044715 x^3). Beyond 9 on either side it is x or, to
 * f32's last digit beside any other term, 0; held there, nothing overflows. */
static inline vec exp_minus_2u(vec x)
{
    return vec_exp_within(x * (-1.5957691216f - 0.0713548162726f * (x * x)));
}

UNARY(gelu,
    vec held = vec_hold(x, -9, 9);
    return vec_max(vec_all(-9), x) * vec_invert(1.0f + exp_minus_2u(held));)

/* x is g, y the input of the forward; e = exp(-2u), s = 1/(1 + e): s + y s (1 - s) (2u)', where 1 - s = s e. */
BINARY(gelu_grad,
    y = vec_hold(y, -9, 9);
    vec e = exp_minus_2u(y);
    vec s = vec_invert(1.0f + e);
    vec slope = 1.5957691216f + 0.2140644488f * (y * y);
    return x * (s + y * slope * (s * e) * s);)

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

UNARY(gelu_exact, return vec_max(vec_all(-13), x) * normal(x);)
BINARY(gelu_exact_grad,
    y = vec_hold(y, -13, 13);
    return x * (normal(y) + y * 0.3989422804f * vec_exp_within(-0.5f * (y * y)));)
BINARY(abs_grad, return vec_where_larger(y, vec_all(0), x, vec_where_larger(vec_all(0), y, -x, vec_all(0)));)
BINARY(relu_grad, return vec_where_larger(y, vec_all(0), x, vec_all(0));)
BINARY(tanh_grad, return x * (1.0f - y * y);)
BINARY(sigmoid_grad, return x * (y * (1.0f - y));)

#undef MAP
#undef LOOP
#undef UNARY
#undef BINARY
#undef TERNARY

#endif
