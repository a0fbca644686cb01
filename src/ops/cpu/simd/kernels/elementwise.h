/* Elementwise ops on vectors: x, y, z are a vector of each input. */
#ifndef TR_OPS_CPU_SIMD_KERNELS_ELEMENTWISE_H
#define TR_OPS_CPU_SIMD_KERNELS_ELEMENTWISE_H

#include "ops/cpu/simd/activations.h"
#include "ops/cpu/simd/lanes.h"
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
    }
#define HALF_LOOP(name, n_inputs)                                                                     \
    static void name##_half(tr_dtype dtype, void *out, const void *const *in, int64_t n, const void *attrs) \
    {                                                                                                 \
        vec x, y = {0};                                                                               \
        for (int64_t i = 0; i < n; i += WIDTH) {                                                      \
            x = lanes_load(dtype, in[0], i, n - i);                                                   \
            if (n_inputs > 1) y = lanes_load(dtype, in[1], i, n - i);                                 \
            lanes_store(dtype, out, i, n - i, name##_vec(x, y, (vec){0}, attrs));                     \
        }                                                                                             \
    }
#define KERNEL(name, half_or_null)                                                                    \
    static tr_status name##_kernel(tr_op_call *call)                                                  \
    {                                                                                                 \
        static const tr__bodies bodies = {.half = half_or_null, .f32 = name##_f32};                   \
        return tr__elementwise(call, &bodies);                                                        \
    }
#define UNARY(name, ...) MAP(name, __VA_ARGS__) LOOP(name, 1) KERNEL(name, NULL)
#define BINARY(name, ...) MAP(name, __VA_ARGS__) LOOP(name, 2) KERNEL(name, NULL)
#define TERNARY(name, ...) MAP(name, __VA_ARGS__) LOOP(name, 3) KERNEL(name, NULL)
/* Of which 16-bit numbers take longer to convert, block by block, than to compute: a loop for them, too. */
#define LIGHT_UNARY(name, ...) MAP(name, __VA_ARGS__) LOOP(name, 1) HALF_LOOP(name, 1) KERNEL(name, name##_half)
#define LIGHT_BINARY(name, ...) MAP(name, __VA_ARGS__) LOOP(name, 2) HALF_LOOP(name, 2) KERNEL(name, name##_half)

LIGHT_BINARY(add, return x + y;)
LIGHT_BINARY(sub, return x - y;)
LIGHT_BINARY(mul, return x * y;)
BINARY(div, return x / y;)
LIGHT_BINARY(maximum, return vec_where_nan(x, vec_max(x, y));)
LIGHT_BINARY(minimum, return vec_where_nan(x, vec_min(x, y));)
TERNARY(maximum_grad, return vec_where_at_most(y, z, vec_where_at_most(z, y, 0.5f * x, vec_all(0)), x);)

LIGHT_UNARY(affine, const tr_affine_attrs *a = attrs; return x * (float)a->scale + (float)a->shift;)
UNARY(neg, return -x;)
UNARY(exp, return vec_exp(x);)
UNARY(sqrt, return vec_sqrt(x);)
UNARY(abs, return vec_abs(x);)
UNARY(tanh, return vec_tanh(x);)
UNARY(sigmoid, return vec_sigmoid(x);)
LIGHT_UNARY(relu, return relu_value(x);)

UNARY(gelu, return gelu_value(x);)
BINARY(gelu_grad, return gelu_times_slope(x, y);) /* x is g, y the input of the forward */
UNARY(gelu_exact, return gelu_exact_value(x);)
BINARY(gelu_exact_grad, return gelu_exact_times_slope(x, y);)
BINARY(abs_grad, return vec_where_larger(y, vec_all(0), x, vec_where_larger(vec_all(0), y, -x, y * 0.0f));)
LIGHT_BINARY(relu_grad, return relu_times_slope(x, y);)
UNARY(log, return vec_log(x);)
UNARY(silu, return silu_value(x);)
BINARY(silu_grad, return silu_times_slope(x, y);)
UNARY(mish, return mish_value(x);)
BINARY(mish_grad, return mish_times_slope(x, y);)
UNARY(softplus, return vec_softplus(x);)
BINARY(softplus_grad, return x * vec_sigmoid(y);)
UNARY(log_sigmoid, return -vec_softplus(-x);)
BINARY(log_sigmoid_grad, return x * vec_sigmoid(-y);)
UNARY(hardswish, return vec_max(vec_all(-3), x) * vec_hold(x * (1 / 6.0f) + 0.5f, 0, 1);)
BINARY(hardswish_grad, return hardswish_times_slope(x, y);)
UNARY(hardsigmoid, return vec_hold(x * (1 / 6.0f) + 0.5f, 0, 1);)
BINARY(hardsigmoid_grad, return vec_where_larger(y, vec_all(-3),
           vec_where_larger(vec_all(3), y, x * (1 / 6.0f), vec_all(0)), vec_all(0));)
UNARY(leaky_relu, const tr_leaky_relu_attrs *a = attrs; return vec_where_larger(x, vec_all(0), x, x * (float)a->slope);)
BINARY(leaky_relu_grad, const tr_leaky_relu_attrs *a = attrs;
       return vec_where_larger(y, vec_all(0), x, x * (float)a->slope);)
UNARY(elu, const tr_elu_attrs *a = attrs;
      vec below = vec_expm1_within(vec_hold(x * (float)a->inner, -104, 0)) * (float)a->alpha;
      return vec_where_larger(x, vec_all(0), x, below) * (float)a->scale;)
BINARY(elu_grad, const tr_elu_attrs *a = attrs;
       vec below = vec_exp_within(vec_hold(y * (float)a->inner, -104, 0)) * (float)(a->alpha * a->inner);
       return vec_where_larger(y, vec_all(0), vec_all(1), below) * x * (float)a->scale;)
UNARY(clamp, const tr_clamp_attrs *a = attrs; return vec_hold(x, (float)a->least, (float)a->most);)
BINARY(clamp_grad, const tr_clamp_attrs *a = attrs; vec least = vec_all((float)a->least), most = vec_all((float)a->most);
       return vec_where_at_most(least, y, vec_where_at_most(y, most, x, vec_all(0)), vec_all(0));)
BINARY(tanh_grad, return x * (1.0f - y * y);)
BINARY(sigmoid_grad, return x * (y * (1.0f - y));)

TERNARY(where, return vec_where_larger(x, vec_all(0), y, z);) /* of a mask, 0 or 1 */

/* Losses; in their gradients x is g, and y, z are their inputs. */
BINARY(mse_loss, return (x - y) * (x - y);)
TERNARY(mse_loss_grad, return 2.0f * x * (y - z);)
BINARY(huber_loss, const float delta = (float)((const tr_huber_loss_attrs *)attrs)->delta;
       vec d = vec_abs(x - y), near = vec_min(vec_all(delta), d);
       return near * (d - 0.5f * near);)
TERNARY(huber_loss_grad, const float delta = (float)((const tr_huber_loss_attrs *)attrs)->delta;
        return x * vec_hold(y - z, -delta, delta);)
BINARY(bce_with_logits, vec sure = vec_where_larger(x, vec_all(0), vec_all(1), vec_all(0));
       return x * (sure - y) + vec_softplus_of_minus_abs(x);)
TERNARY(bce_with_logits_grad, return x * (vec_sigmoid(y) - z);)

#undef MAP
#undef LOOP
#undef HALF_LOOP
#undef KERNEL
#undef UNARY
#undef BINARY
#undef TERNARY
#undef LIGHT_UNARY
#undef LIGHT_BINARY

#endif
