/*
 * Elementwise ops: out[i] = f(in0[i], in1[i], …). An op gives the loop over contiguous numbers; strides, broadcasting,
 * dtypes and threads are dealt with here.
 */
#ifndef TR_OPS_ELEMENTWISE_H
#define TR_OPS_ELEMENTWISE_H

#include "ops/op.h"

enum { TR__ELEMENTWISE_INPUTS = 3 };

/* Loops over n contiguous numbers; out may be one of the inputs. f32 serves f32, bf16 and f16, the latter by way of blocks of
 * f32 unless `half` takes them as they are; f64 serves f64, and the smaller floats when there is no f32; i64 the integers and
 * bool. */
typedef struct tr__bodies {
    void (*half)(tr_dtype dtype, void *out, const void *const *in, int64_t n, const void *attrs);
    void (*f32)(float *out, const float *const *in, int64_t n, const void *attrs);
    void (*f64)(double *out, const double *const *in, int64_t n, const void *attrs);
    void (*i64)(int64_t *out, const int64_t *const *in, int64_t n, const void *attrs);
    bool to_bool; /* comparisons: what a body writes are bool, contiguous */
} tr__bodies;

/* Runs an op of 1 to 3 inputs and one output, of their dtype or bool; TR_DECLINED when no body is for that dtype. */
tr_status tr__elementwise(tr_op_call *call, const tr__bodies *bodies);

/* Shape rules. floats: integers are refused. */
tr_status tr__elementwise_infer(tr_op_call *call, bool floats);

/* A loop over numbers of a type: `inputs` declares what the expression reads of element i, a are the op's attributes. The f64
 * loops serve every float dtype in the reference; cpu/ has faster ones for f32. */
#define TR__ELEMENTS(name, type, attrs_type, inputs, expression)                         \
    static void name(type *out, const type *const *in, int64_t n, const void *attrs)     \
    {                                                                                    \
        const attrs_type *a = attrs;                                                     \
        (void)a;                                                                         \
        for (int64_t i = 0; i < n; i++) {                                                \
            inputs                                                                       \
            out[i] = (expression);                                                       \
        }                                                                                \
    }
/* `inputs` of ops with two inputs, and of their gradients, where g is an element of the one that has arrived. */
#define TR__OF_X_Y(type) type x = in[0][i]; type y = in[1][i];
#define TR__OF_G_X_Y double g = in[0][i]; double x = in[1][i]; double y = in[2][i];
/* An op's reference kernel, of such loops: .f64 = …, .i64 = …; and with its shape rule, for so many inputs. */
#define TR__ELEMENTWISE_FORWARD(name, ...)                                 \
    tr_status tr__##name##_forward(tr_op_call *call)                       \
    {                                                                      \
        static const tr__bodies bodies = {__VA_ARGS__};                    \
        return tr__elementwise(call, &bodies);                             \
    }
#define TR__ELEMENTWISE(name, n_inputs, floats, ...)                       \
    tr_status tr__##name##_infer(tr_op_call *call)                         \
    {                                                                      \
        TR__TRY(tr__given(call, n_inputs - 1));                            \
        return tr__elementwise_infer(call, floats);                        \
    }                                                                      \
    TR__ELEMENTWISE_FORWARD(name, __VA_ARGS__)

#endif
