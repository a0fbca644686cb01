/* Elementwise ops of one input, and the kernels of their gradients. */
#include "ops/elementwise.h"
#include "ops/family.h"

#include <math.h>

/* x is an element of the input, and for gradients g is one of the gradient that arrived. */
#define OF_X(type) type x = in[0][i];
#define OF_G_X double g = in[0][i]; double x = in[1][i];

#define PUBLIC(name)                                                       \
    tr_tensor *tr_##name(tr_tensor *x)                                     \
    {                                                                      \
        return tr_apply(tr__op(name), NULL, (tr_tensor *[]){x}, 1, NULL);  \
    }
/* Ops with attributes have their public functions further down. */
#define UNARY_WITH(name, attrs_type, expression)                           \
    TR__ELEMENTS(name##_f64, double, attrs_type, OF_X(double), expression) \
    TR__ELEMENTWISE(name, 1, true, .f64 = name##_f64)
#define UNARY(name, expression) PUBLIC(name) UNARY_WITH(name, void, expression)
#define UNARY_OF_INTEGERS_TOO(name, expression, integer_expression)        \
    PUBLIC(name)                                                           \
    TR__ELEMENTS(name##_f64, double, void, OF_X(double), expression)       \
    TR__ELEMENTS(name##_i64, int64_t, void, OF_X(int64_t), integer_expression) \
    TR__ELEMENTWISE(name, 1, false, .f64 = name##_f64, .i64 = name##_i64)
#define GRADIENT_WITH(name, attrs_type, expression)                        \
    TR__ELEMENTS(name##_f64, double, attrs_type, OF_G_X, expression)       \
    TR__ELEMENTWISE(name, 2, true, .f64 = name##_f64)
#define GRADIENT(name, expression) GRADIENT_WITH(name, void, expression)

static double sigmoid(double x)
{
    return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}

/* x, and NaN as it is; beyond low and high these. What follows has its limits there, where a product of 0 and infinity would be
 * NaN. */
static double held(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

/* tanh(u) = 2 sigmoid(2u) - 1, so GPT-2's 0.5x(1 + tanh(u)) is x sigmoid(2u), which keeps its digits for large -x.
 * 2u = 2 sqrt(2/pi) (x + 0.044715 x^3). */
static double gelu_2u(double x)
{
    return 1.5957691216057308 * (x + 0.044715 * x * x * x);
}

static double gelu_slope(double x)
{
    x = held(x, -40, 40);
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
    x = held(x, -40, 40);
    return normal(x) + x * 0.3989422804014327 * exp(-0.5 * x * x);
}

/* log(1 + exp(x)), which neither overflows nor loses its digits for large -x. */
static double log_1_exp(double x)
{
    return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
}

static double silu_slope(double x)
{
    x = held(x, -800, 800);
    return sigmoid(x) * (1 + x * sigmoid(-x));
}

/* mish(x) = x tanh(softplus(x)). With e = exp(x) and n = e(e + 2), tanh(softplus(x)) = n/(n + 2), whose derivative is
 * 4e(e + 1)/(n + 2)^2. From 40 on e*e is all there is, and it may overflow: x is held there. */
static double mish(double x)
{
    double e = exp(held(x, -800, 40)), n = e * (e + 2);
    return held(x, -800, x) * (n / (n + 2));
}

static double mish_slope(double x)
{
    x = held(x, -800, 40);
    double e = exp(x), n = e * (e + 2);
    return n / (n + 2) + x * (4 * e * (e + 1) / ((n + 2) * (n + 2)));
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
UNARY(gelu, held(x, -40, x) * sigmoid(gelu_2u(x)))
UNARY(gelu_exact, held(x, -40, x) * normal(x))
UNARY(silu, held(x, -800, x) * sigmoid(x))
UNARY(mish, mish(x))
UNARY(softplus, log_1_exp(x))
UNARY(log_sigmoid, -log_1_exp(-x))
UNARY(hardswish, x <= -3 ? 0 : x >= 3 ? x : x * (x + 3) / 6)
UNARY(hardsigmoid, x <= -3 ? 0 : x >= 3 ? 1 : (x + 3) / 6)
UNARY(sin, sin(x))
UNARY(cos, cos(x))
UNARY_WITH(leaky_relu, tr_leaky_relu_attrs, x > 0 ? x : x * a->slope)
UNARY_WITH(elu, tr_elu_attrs, a->scale *(x > 0 ? x : a->alpha * expm1(a->inner * x)))
UNARY_WITH(pow, tr_pow_attrs, pow(x, a->exponent))
TR__ELEMENTS(clamp_f64, double, tr_clamp_attrs, OF_X(double), x < a->least ? a->least : x > a->most ? a->most : x)
TR__ELEMENTWISE_FORWARD(clamp, .f64 = clamp_f64)

GRADIENT(abs_grad, x > 0 ? g : x < 0 ? -g : x * 0) /* of NaN it is NaN */
GRADIENT(relu_grad, x <= 0 ? 0 : g) /* NaN gets it, being no 0 of the output */
GRADIENT(gelu_grad, g *gelu_slope(x))
GRADIENT(gelu_exact_grad, g *gelu_exact_slope(x))
GRADIENT(silu_grad, g *silu_slope(x))
GRADIENT(mish_grad, g *mish_slope(x))
GRADIENT(softplus_grad, g *sigmoid(x))
GRADIENT(log_sigmoid_grad, g *sigmoid(-x))
GRADIENT(hardswish_grad, x <= -3 ? 0 : x >= 3 ? g : g * (x / 3 + 0.5))
GRADIENT(hardsigmoid_grad, x > -3 && x < 3 ? g / 6 : 0)
GRADIENT_WITH(leaky_relu_grad, tr_leaky_relu_attrs, x > 0 ? g : g * a->slope)
GRADIENT_WITH(elu_grad, tr_elu_attrs, g *a->scale *(x > 0 ? 1 : a->alpha * a->inner * exp(a->inner * x)))
GRADIENT_WITH(clamp_grad, tr_clamp_attrs, x >= a->least && x <= a->most ? g : 0)
GRADIENT(tanh_grad, g *(1 - x * x))   /* of the output */
GRADIENT(sigmoid_grad, g *x *(1 - x)) /* of the output */

UNARY_WITH(affine, tr_affine_attrs, x *a->scale + a->shift)

tr_tensor *tr_affine(tr_tensor *x, double scale, double shift)
{
    return tr_apply(tr__op(affine), &(tr_affine_attrs){scale, shift}, &x, 1, NULL);
}

tr_tensor *tr_leaky_relu(tr_tensor *x, double slope)
{
    return tr_apply(tr__op(leaky_relu), &(tr_leaky_relu_attrs){slope}, &x, 1, NULL);
}

tr_tensor *tr_elu(tr_tensor *x, double alpha)
{
    return tr_apply(tr__op(elu), &(tr_elu_attrs){alpha, 1, 1}, &x, 1, NULL);
}

tr_tensor *tr_selu(tr_tensor *x)
{
    static const tr_elu_attrs attrs = {.alpha = 1.6732632423543772, .scale = 1.0507009873554805, .inner = 1};
    return tr_apply(tr__op(elu), &attrs, &x, 1, NULL);
}

tr_tensor *tr_celu(tr_tensor *x, double alpha)
{
    if (!(alpha > 0)) return tr__tensor_fail(TR_INVALID, "celu: alpha is %g: it must be positive", alpha);
    return tr_apply(tr__op(elu), &(tr_elu_attrs){alpha, 1, 1 / alpha}, &x, 1, NULL);
}

tr_tensor *tr_softsign(tr_tensor *x)
{
    if (!x) return tr__tensor_fail(TR_INVALID, "softsign: x is NULL");
    tr_tensor *wide = tr__widened(x);
    return tr_cast(tr_div(wide, tr_affine(tr_abs(wide), 1, 1)), tr_dtype_of(x));
}

/* relu(x) + weight min(x, 0), whose gradient at 0 is weight, as PyTorch's. */
tr_tensor *tr_prelu_op(tr_tensor *x, tr_tensor *weight)
{
    TR__REQUIRE("prelu", "x", x);
    TR__REQUIRE("prelu", "weight", weight);
    int64_t n = weight->shape.ndim == 1 ? weight->shape.dim[0] : 0, channels = x->shape.ndim > 1 ? x->shape.dim[1] : 1;
    if (n < 1 || (n != 1 && n != channels))
        return tr__tensor_fail(TR_SHAPE, "prelu: weight %s does not fit x %s: it must be [1] or [%lld]",
            TR__TEXT(weight->shape), TR__TEXT(x->shape), (long long)channels);
    tr_shape along = {.ndim = x->shape.ndim > 1 ? x->shape.ndim - 1 : x->shape.ndim, .dim = {n}}; /* a scalar stays one */
    for (int d = 1; d < along.ndim; d++) along.dim[d] = 1;
    return tr_add(tr_relu(x), tr_mul(tr_reshape(weight, along), tr_clamp(x, -INFINITY, 0)));
}

tr_tensor *tr_glu(tr_tensor *x, int dim)
{
    tr_tensor *half[2];
    TR__REQUIRE("glu", "x", x);
    tr_status status = tr_split(tr__widened(x), 2, dim, half);
    if (status != TR_OK) {
        tr__fail_context(status, "glu");
        return tr__tensor_failed();
    }
    return tr_cast(tr_mul(half[0], tr_sigmoid(half[1])), tr_dtype_of(x));
}

tr_tensor *tr_pow(tr_tensor *x, double exponent)
{
    return tr_apply(tr__op(pow), &(tr_pow_attrs){exponent}, &x, 1, NULL);
}

tr_tensor *tr_clamp(tr_tensor *x, double least, double most)
{
    return tr_apply(tr__op(clamp), &(tr_clamp_attrs){least, most}, &x, 1, NULL);
}

tr_status tr__clamp_infer(tr_op_call *call)
{
    const tr_clamp_attrs *attrs = call->attrs;
    TR__TRY(tr__given(call, 0));
    if (!(attrs->least <= attrs->most))
        return tr__fail(TR_INVALID, "clamp: %g to %g is no range: the first must not be the larger", attrs->least,
            attrs->most);
    return tr__elementwise_infer(call, true);
}

/* ---- Gradients that are compositions --------------------------------------------------------------------------- */

TR__BACKWARD(affine, tr_affine_attrs, tr_affine(g, a->scale, 0))
TR__BACKWARD(neg, void, tr_neg(g))
TR__BACKWARD(exp, void, tr_mul(g, y))
TR__BACKWARD(log, void, tr_div(g, x))
TR__BACKWARD(sqrt, void, tr_div(tr_affine(g, 0.5, 0), y))
TR__BACKWARD(sin, void, tr_mul(g, tr_cos(x)))
TR__BACKWARD(cos, void, tr_neg(tr_mul(g, tr_sin(x))))
/* Of x^0, which is 1 everywhere, it is 0 everywhere. */
TR__BACKWARD(pow, tr_pow_attrs, a->exponent == 0 ? tr_zeros(x->shape, .dtype = x->dtype, .device = tr__device_of(x))
                                                 : tr_mul(g, tr_affine(tr_pow(x, a->exponent - 1), a->exponent, 0)))
