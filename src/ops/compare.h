/* Comparisons: a, b of one dtype, broadcast -> bool. */
#ifndef TR_OPS_COMPARE_H
#define TR_OPS_COMPARE_H

#include "ops/elementwise.h"

/* X(name, operator) */
#define TR__COMPARISON_MAP(X) \
    X(equal, ==)              \
    X(not_equal, !=)          \
    X(less, <)                \
    X(less_equal, <=)         \
    X(greater, >)             \
    X(greater_equal, >=)

/* name_bodies, whose loops compilers turn into vectors as wide as those of the machine that the including file is compiled for. */
#define TR__COMPARISON(name, operator)                                                                      \
    TR__COMPARISON_LOOP(name##_f32, float, operator)                                                        \
    TR__COMPARISON_LOOP(name##_f64, double, operator)                                                       \
    TR__COMPARISON_LOOP(name##_i64, int64_t, operator)                                                      \
    static const tr__bodies name##_bodies = {.f32 = name##_f32, .f64 = name##_f64, .i64 = name##_i64, .to_bool = true};
#define TR__COMPARISON_LOOP(name, type, operator)                                                           \
    static void name(type *out, const type *const *in, int64_t n, const void *attrs)                        \
    {                                                                                                       \
        const type *a = in[0], *b = in[1];                                                                  \
        bool *to = (void *)out;                                                                             \
        (void)attrs;                                                                                        \
        for (int64_t i = 0; i < n; i++) to[i] = a[i] operator b[i];                                         \
    }

#endif
