/* Elementwise ops of one input, and the kernels of their gradients. */
#include "ops/elementwise.h"
#include "ops/family.h"

#include <math.h>

/* The loop of one op: x is an element of the input, and for gradients g is one of the gradient that arrived. The f64
 * loops serve every float dtype here; cpu/ has faster ones for f32. */
#define BODY(name, type, expression)                                                     \
    static void name(type *out, const type *const *in, int64_t n, const void *attrs)     \
    {                                                                                    \
        (void)attrs;                                                                     \
        for (int64_t i = 0; i < n; i++) {                                                \
            type x = in[0][i];                                                           \
            out[i] = (expression);                                                       \
        }                                                                                \
    }
#define GRAD_BODY(name, type, expression)                                                \
    static void name(type *out, const type *const *in, int64_t n, const void *attrs)     \
    {                                                                                    \
        (void)attrs;                                                                     \
        for (int64_t i = 0; i < n; i++) {                                                \
            type g = in[0][i], x = in[1][i];                                             \
            out[i] = (expression);                                                       \
        }                                                                                \
    }

#define PUBLIC(name)                                                       \
    tr_tensor *tr_##name(tr_tensor *x)                                     \
    {                                                                      \
        return tr_apply(tr__op(name), NULL, (tr_tensor *[]){x}, 1, NULL);  \
    }
#define ROW(name, n_inputs, floats, ...)                                   \
    tr_status tr__##name##_infer(tr_op_call *call)                         \
    {                                                                      \
        TR__TRY(tr__given(call, n_inputs - 1));                            \
        return tr__elementwise_infer(call, floats);                        \
    }                                                                      \
    tr_status tr__##name##_forward(tr_op_call *call)                       \
    {                                                                      \
        static const tr__bodies bodies = {__VA_ARGS__};                    \
        return tr__elementwise(call, &bodies);                             \
    }

#define UNARY(name, expression)                                            \
    BODY(name##_f64, double, expression)                                   \
    PUBLIC(name)                                                           \
    ROW(name, 1, true, .f64 = name##_f64)
#define UNARY_OF_INTEGERS_TOO(name, expression, integer_expression)        \
    BODY(name##_f64, double, expression)                                   \
    BODY(name##_i64, int64_t, integer_expression)                          \
    PUBLIC(name)                                                           \
    ROW(name, 1, false, .f64 = name##_f64, .i64 = name##_i64)
#define GRADIENT(name, expression)                                         \
    GRAD_BODY(name##_f64, double, expression)                              \
    ROW(name, 2, true, .f64 = name##_f64)

static double sigmoid(double x)
{
    return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}

/* tanh(u) = 2 sigmoid(2u) - 1, so GPT-2's 0.5x(1 + tanh(u)) is x sigmoid(2u), which keeps its digits for large -x.
 * 2u = 2 sqrt(2/pi) (x + 0.044715 x^3). */
static double gelu_2u(double x)
{
    return 1.5957691216057308 * (x + 0.044715 * x * x * x);
}

static double gelu_slope(double x)
{
    double s = sigmoid(gelu_2u(x)), slope_2u = 1.5957691216057308 * (1 + 3 * 0.044715 * x * x);
    return s + x * s * sigmoid(-gelu_2u(x)) * slope_2u;
}

/* x Phi(x), Phi the normal distribution; its derivative is Phi(x) + x phi(x). */
static double normal(double x)
{
    return 0.5 * erfc(-0.7071067811865476 * x);
}

static double gelu_exact_slope(double x)
{
    return normal(x) + x * 0.3989422804014327 * exp(-0.5 * x * x);
}

#define NEGATED(x) (int64_t)(0 - (uint64_t)(x))

UNARY_OF_INTEGERS_TOO(neg, -x, NEGATED(x))
UNARY_OF_INTEGERS_TOO(abs, fabs(x), x < 0 ? NEGATED(x) : x)
UNARY_OF_INTEGERS_TOO(relu, x <= 0 ? 0 : x, x <= 0 ? 0 : x) /* NaN stays NaN */
UNARY(exp, exp(x))
UNARY(log, log(x))
UNARY(sqrt, sqrt(x))
UNARY(tanh, tanh(x))
UNARY(sigmoid, sigmoid(x))
UNARY(gelu, x *sigmoid(gelu_2u(x)))
UNARY(gelu_exact, x *normal(x))

GRADIENT(abs_grad, x > 0 ? g : x < 0 ? -g : 0)
GRADIENT(relu_grad, x > 0 ? g : 0)
GRADIENT(gelu_grad, g *gelu_slope(x))
GRADIENT(gelu_exact_grad, g *gelu_exact_slope(x))
GRADIENT(tanh_grad, g *(1 - x * x))   /* of the output */
GRADIENT(sigmoid_grad, g *x *(1 - x)) /* of the output */

static void affine_f64(double *out, const double *const *in, int64_t n, const void *attrs)
{
    const tr__affine_attrs *a = attrs;
    for (int64_t i = 0; i < n; i++) out[i] = in[0][i] * a->scale + a->shift;
}

ROW(affine, 1, true, .f64 = affine_f64)

tr_tensor *tr_affine(tr_tensor *x, double scale, double shift)
{
    return tr_apply(tr__op(affine), &(tr__affine_attrs){scale, shift}, &x, 1, NULL);
}

/* ---- Gradients ------------------------------------------------------------------------------------------------- */

tr_status tr__affine_backward(tr_backward_call *call)
{
    const tr__affine_attrs *a = call->attrs;
    call->grad_inputs[0] = tr_affine(call->grad_outputs[0], a->scale, 0);
    return TR_OK;
}

tr_status tr__neg_backward(tr_backward_call *call)
{
    call->grad_inputs[0] = tr_neg(call->grad_outputs[0]);
    return TR_OK;
}

tr_status tr__exp_backward(tr_backward_call *call)
{
    call->grad_inputs[0] = tr_mul(call->grad_outputs[0], call->outputs[0]);
    return TR_OK;
}

tr_status tr__log_backward(tr_backward_call *call)
{
    call->grad_inputs[0] = tr_div(call->grad_outputs[0], call->inputs[0]);
    return TR_OK;
}

tr_status tr__sqrt_backward(tr_backward_call *call)
{
    call->grad_inputs[0] = tr_div(tr_affine(call->grad_outputs[0], 0.5, 0), call->outputs[0]);
    return TR_OK;
}

/* The others have a kernel, of the gradient that arrived and of what was saved. */
#define BACKWARD(name, saved)                                                                                \
    tr_status tr__##name##_backward(tr_backward_call *call)                                                  \
    {                                                                                                        \
        tr_tensor *inputs[] = {call->grad_outputs[0], call->saved[0]};                                       \
        call->grad_inputs[0] = tr_apply(tr__op(name##_grad), NULL, inputs, 2, NULL);                         \
        return TR_OK;                                                                                        \
    }
BACKWARD(abs, inputs)
BACKWARD(relu, inputs)
BACKWARD(gelu, inputs)
BACKWARD(gelu_exact, inputs)
BACKWARD(tanh, outputs)
BACKWARD(sigmoid, outputs)
