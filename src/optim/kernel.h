/*
 * One update kernel for each dtype of parameters. KERNEL(name, P, S, read, write, root) defines one: P is the
 * parameters' type, S the one that is computed in and the state's, root the square root in it. Constants are rounded to
 * S once, as PyTorch rounds its scalars.
 */
#ifndef TR_OPTIM_KERNEL_H
#define TR_OPTIM_KERNEL_H

#include "base/half.h"
#include "optim/optimizer.h"

#include <math.h>

#define TR__UPDATE_KERNELS(KERNEL, name)                         \
    KERNEL(name##_f32, float, float, (float), (float), sqrtf)    \
    KERNEL(name##_f64, double, double, (double), (double), sqrt) \
    KERNEL(name##_bf16, uint16_t, float, tr__bf16_to_f32, tr__f32_to_bf16, sqrtf)

/* A rule's hyperparameters: those that all have, then its own. */
#define TR__HYPERS_OF(o, default_lr, decay, ...)                        \
    (const tr__hyper[TR__HYPERS]){                                      \
        [TR__LR] = {"lr", TR__OR(o, lr, default_lr), TR__AMOUNT},       \
        [TR__DECAY] = {"weight_decay", decay, TR__AMOUNT},              \
        __VA_ARGS__                                                     \
    }

/* An elementwise kernel: CONSTANTS, rounded to S once, and what is done with x, a parameter's element, and g, its gradient's. */
#define TR__UPDATE_KERNEL(name, P, S, read, CONSTANTS, ...)                       \
    static void name(const tr__update *u, int64_t begin, int64_t end)             \
    {                                                                             \
        const double *settings = u->optimizer->settings;                          \
        (void)settings;                                                           \
        CONSTANTS                                                                 \
        P *restrict p = u->parameters;                                            \
        const P *restrict gradient = u->gradients;                                \
        for (int64_t i = begin; i < end; i++) {                                   \
            S x = read(p[i]), g = read(gradient[i]);                              \
            __VA_ARGS__                                                           \
        }                                                                         \
    }

/* What they are called in a rule. */
#define TR__KERNELS_OF(name) {[TR_F32] = name##_f32, [TR_F64] = name##_f64, [TR_BF16] = name##_bf16}
#define TR__MEASURES_OF(name) {[TR_F32] = name##_f32_measure, [TR_F64] = name##_f64_measure, [TR_BF16] = name##_bf16_measure}

/* -1, 0 or 1; NaN of NaN, which would be gone without a trace else. */
#define TR__SIGN(S, x) ((x) != (x) ? (x) : (S)(((x) > 0) - ((x) < 0)))

/* The sum of squares of n values of the type S. */
#define TR__SQUARES(S) (sizeof(S) == sizeof(double) ? tr__squares_f64 : tr__squares_f32)

#endif
