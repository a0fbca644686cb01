/* Comparisons: a, b of one dtype, broadcast -> bool. */
#ifndef TR_OPS_COMPARE_H
#define TR_OPS_COMPARE_H

#include "ops/op.h"

/* Loops over n contiguous numbers. f32 serves the smaller floats too, i64 the integers and bool. */
typedef struct tr__comparison {
    void (*f32)(bool *out, const float *a, const float *b, int64_t n);
    void (*f64)(bool *out, const double *a, const double *b, int64_t n);
    void (*i64)(bool *out, const int64_t *a, const int64_t *b, int64_t n);
} tr__comparison;

tr_status tr__compare(tr_op_call *call, const tr__comparison *loops);

/* X(name, operator) */
#define TR__COMPARISON_MAP(X) \
    X(equal, ==)              \
    X(not_equal, !=)          \
    X(less, <)                \
    X(less_equal, <=)         \
    X(greater, >)             \
    X(greater_equal, >=)

/* name_loops, which compilers turn into vectors as wide as those of the machine that the including file is compiled for. */
#define TR__COMPARISON(name, operator)                                                      \
    TR__COMPARISON_LOOP(name##_f32, float, operator)                                        \
    TR__COMPARISON_LOOP(name##_f64, double, operator)                                       \
    TR__COMPARISON_LOOP(name##_i64, int64_t, operator)                                      \
    static const tr__comparison name##_loops = {name##_f32, name##_f64, name##_i64};
#define TR__COMPARISON_LOOP(name, type, operator)                                           \
    static void name(bool *out, const type *a, const type *b, int64_t n)                    \
    {                                                                                       \
        for (int64_t i = 0; i < n; i++) out[i] = a[i] operator b[i];                        \
    }

#endif
