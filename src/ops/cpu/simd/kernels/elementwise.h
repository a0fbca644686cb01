/* Elementwise ops on vectors, by the rows of elementwise.def. */
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
#define KERNEL_OF(name, ...)                                                                          \
    static tr_status name##_kernel(tr_op_call *call)                                                  \
    {                                                                                                 \
        static const tr__bodies bodies = {.f32 = name##_f32, __VA_ARGS__};                            \
        return tr__elementwise(call, &bodies);                                                        \
    }
#define KERNEL(name, n_inputs) KERNEL_OF(name, .half = NULL)
#define LIGHT_KERNEL(name, n_inputs) HALF_LOOP(name, n_inputs) KERNEL_OF(name, .half = name##_half)
#define ROW(name, n_inputs, kernel, ...) MAP(name, __VA_ARGS__) LOOP(name, n_inputs) kernel(name, n_inputs)
#include "ops/cpu/simd/kernels/elementwise.def"

#undef MAP
#undef LOOP
#undef HALF_LOOP
#undef KERNEL_OF
#undef KERNEL
#undef LIGHT_KERNEL

#endif
