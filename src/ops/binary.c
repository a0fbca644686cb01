/* Elementwise ops of two inputs that broadcast against each other. */
#include "ops/elementwise.h"
#include "ops/family.h"

#define PUBLIC(name)                                                                                  \
    tr_tensor *tr_##name(tr_tensor *a, tr_tensor *b)                                                  \
    {                                                                                                 \
        return tr_apply(tr__op(name), NULL, (tr_tensor *[]){a, b}, 2, NULL);                          \
    }

/* Integers wrap around: they are added as unsigned numbers, whose overflow is defined. */
#define WRAP(a, operation, b) (int64_t)((uint64_t)(a) operation (uint64_t)(b))
/* NaN in either input stays NaN. */
#define LARGER(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define SMALLER(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))

#define BINARY(name, float_expression, integer_expression)                           \
    PUBLIC(name)                                                                     \
    TR__ELEMENTS(name##_f64, double, void, TR__OF_X_Y(double), float_expression)     \
    TR__ELEMENTS(name##_i64, int64_t, void, TR__OF_X_Y(int64_t), integer_expression) \
    TR__ELEMENTWISE(name, 2, false, .f64 = name##_f64, .i64 = name##_i64)
BINARY(add, x + y, WRAP(x, +, y))
BINARY(sub, x - y, WRAP(x, -, y))
BINARY(mul, x * y, WRAP(x, *, y))
BINARY(maximum, LARGER(x, y), LARGER(x, y))
BINARY(minimum, SMALLER(x, y), SMALLER(x, y))

PUBLIC(div)
TR__ELEMENTS(div_f64, double, void, TR__OF_X_Y(double), x / y)
TR__ELEMENTWISE(div, 2, true, .f64 = div_f64)

/* Gradients: of the output's shape and dtype first, then summed to the input's. */

static void give(tr_backward_call *call, int i, tr_tensor *gradient)
{
    call->grad_inputs[i] = tr_cast(tr__sum_to(gradient, tr__input_shape(call, i)), tr__input_dtype(call, i));
}

/* g where a is not less than b, half of it where they are equal: where one is NaN, so is the result, and both get g. */
static tr_tensor *where_not_less(tr_tensor *g, tr_tensor *a, tr_tensor *b)
{
    return tr_apply(tr__op(maximum_grad), NULL, (tr_tensor *[]){g, a, b}, 3, NULL);
}

#define BACKWARD(name, of_a, of_b)                                                                     \
    tr_status tr__##name##_backward(tr_backward_call *call)                                            \
    {                                                                                                  \
        tr_tensor *g = call->grad_outputs[0], *a = call->inputs[0], *b = call->inputs[1];              \
        (void)a, (void)b;                                                                              \
        if (call->needs[0]) give(call, 0, of_a);                                                       \
        if (call->needs[1]) give(call, 1, of_b);                                                       \
        return TR_OK;                                                                                  \
    }
BACKWARD(add, g, g)
BACKWARD(mul, tr_mul(g, b), tr_mul(g, a))
BACKWARD(maximum, where_not_less(g, a, b), where_not_less(g, b, a))
BACKWARD(minimum, where_not_less(g, b, a), where_not_less(g, a, b))

tr_status tr__sub_backward(tr_backward_call *call)
{
    tr_tensor *g = call->grad_outputs[0];
    if (call->needs[0]) give(call, 0, g);
    if (call->needs[1]) call->grad_inputs[1] = tr_neg(tr__sum_to(g, tr__input_shape(call, 1)));
    return TR_OK;
}

/* (a/b)' by b is -(a/b)/b. */
tr_status tr__div_backward(tr_backward_call *call)
{
    tr_tensor *g = call->grad_outputs[0], *a = call->inputs[0], *b = call->inputs[1];
    tr_tensor *by_a = tr_div(g, b);
    if (call->needs[0]) give(call, 0, by_a);
    if (call->needs[1]) give(call, 1, tr_neg(tr_mul(by_a, tr_div(a, b))));
    return TR_OK;
}

TR__ELEMENTS(maximum_grad_f64, double, void, TR__OF_G_X_Y, x < y ? 0 : x == y ? 0.5 * g : g)
TR__ELEMENTWISE(maximum_grad, 3, true, .f64 = maximum_grad_f64)
