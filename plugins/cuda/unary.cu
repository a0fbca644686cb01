/* Elementwise ops of one input, and the kernels of their gradients. */
#include "activations.h"
#include "elementwise.h"
#include "families.h"

/* x is an element of the input, of gradients g is one of the gradient that arrived. */
#define UNARY(name, expression) FLOATS(name, 1, NONE, (C x), expression)
#define UNARY_WITH(name, attributes, expression) FLOATS(name, 1, attributes, (C x), expression)
#define GRADIENT(name, expression) FLOATS(name, 2, NONE, (C g, C x), expression)
#define GRADIENT_WITH(name, attributes, expression) FLOATS(name, 2, attributes, (C g, C x), expression)
#define UNARY_OF_INTEGERS_TOO(name, expression, integer_expression) NUMBERS(name, 1, (C x), expression, integer_expression)

#define NEGATED(x) (int64_t)(0 - (uint64_t)(x))

UNARY_OF_INTEGERS_TOO(neg, -x, NEGATED(x))
UNARY_OF_INTEGERS_TOO(abs, fabs(x), x < 0 ? NEGATED(x) : x)
UNARY_OF_INTEGERS_TOO(relu, x <= 0 ? 0 : x, x <= 0 ? 0 : x) /* NaN stays NaN */
UNARY(exp, exp(x))
UNARY(log, log(x))
UNARY(sqrt, sqrt(x))
UNARY(tanh, tanh(x))
UNARY(sigmoid, sigmoid(x))
UNARY(gelu, gelu(x))
UNARY(gelu_exact, gelu_exact(x))
UNARY(silu, silu(x))
UNARY(mish, mish(x))
UNARY(softplus, log_1_exp(x))
UNARY(log_sigmoid, -log_1_exp(-x))
UNARY(hardswish, x <= C(-3) ? C(0) : x >= C(3) ? x : x * (x + C(3)) / C(6))
UNARY(hardsigmoid, x <= C(-3) ? C(0) : x >= C(3) ? C(1) : (x + C(3)) / C(6))
UNARY(sin, sin(x))
UNARY(cos, cos(x))
UNARY_WITH(leaky_relu, tr_leaky_relu_attrs, x > C(0) ? x : x * (C)a.slope)
UNARY_WITH(elu, tr_elu_attrs, (C)a.scale *(x > C(0) ? x : (C)a.alpha * expm1((C)a.inner * x)))
UNARY_WITH(pow, tr_pow_attrs, pow(x, (C)a.exponent))
UNARY_WITH(clamp, tr_clamp_attrs, x < (C)a.least ? (C)a.least : x > (C)a.most ? (C)a.most : x)
UNARY_WITH(affine, tr_affine_attrs, x *(C)a.scale + (C)a.shift)

GRADIENT(abs_grad, x > C(0) ? g : x < C(0) ? -g : x * C(0)) /* of NaN it is NaN */
GRADIENT(relu_grad, x <= C(0) ? C(0) : g)                   /* NaN gets it, being no 0 of the output */
GRADIENT(gelu_grad, g *gelu_slope(x))
GRADIENT(gelu_exact_grad, g *gelu_exact_slope(x))
GRADIENT(silu_grad, g *silu_slope(x))
GRADIENT(mish_grad, g *mish_slope(x))
GRADIENT(softplus_grad, g *sigmoid(x))
GRADIENT(log_sigmoid_grad, g *sigmoid(-x))
GRADIENT(hardswish_grad, x <= C(-3) ? C(0) : x >= C(3) ? g : g * (x / C(3) + C(0.5)))
GRADIENT(hardsigmoid_grad, x > C(-3) && x < C(3) ? g / C(6) : C(0))
GRADIENT(tanh_grad, g *(C(1) - x * x))   /* of the output */
GRADIENT(sigmoid_grad, g *x *(C(1) - x)) /* of the output */
GRADIENT_WITH(leaky_relu_grad, tr_leaky_relu_attrs, x > C(0) ? g : g * (C)a.slope)
GRADIENT_WITH(elu_grad, tr_elu_attrs, g *(C)a.scale *(x > C(0) ? C(1) : (C)(a.alpha * a.inner) * exp((C)a.inner * x)))
GRADIENT_WITH(clamp_grad, tr_clamp_attrs, x >= (C)a.least && x <= (C)a.most ? g : C(0))
