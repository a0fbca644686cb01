/* Elementwise ops of two inputs that broadcast against each other. */
#include "ops/elementwise.h"
#include "ops/family.h"

/* The loop of one op for one type of numbers: a, b and c are an element of each input. */
#define BODY(name, type, expression)                                                              \
    static void name(type *out, const type *const *in, int64_t n, const void *attrs)              \
    {                                                                                             \
        (void)attrs;                                                                              \
        const type *x = in[0], *y = in[1];                                                        \
        for (int64_t i = 0; i < n; i++) {                                                         \
            type a = x[i], b = y[i];                                                              \
            out[i] = (expression);                                                                \
        }                                                                                         \
    }

#define BINARY(name, floats)                                                                          \
    tr_tensor *tr_##name(tr_tensor *a, tr_tensor *b)                                                  \
    {                                                                                                 \
        return tr_apply(tr__op(name), NULL, (tr_tensor *[]){a, b}, 2, NULL);                          \
    }                                                                                                 \
    tr_status tr__##name##_infer(tr_op_call *call)                                                    \
    {                                                                                                 \
        TR__TRY(tr__given(call, 1));                                                                  \
        return tr__elementwise_infer(call, floats);                                                   \
    }

/* Integers wrap around: they are added as unsigned numbers, whose overflow is defined. */
#define WRAP(a, operation, b) (int64_t)((uint64_t)(a) operation (uint64_t)(b))
/* NaN in either input stays NaN. */
#define LARGER(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define SMALLER(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))

#define FOR_ALL(name, float_expression, integer_expression)                        \
    BINARY(name, false)                                                            \
    BODY(name##_f64, double, float_expression)                                     \
    BODY(name##_i64, int64_t, integer_expression)                                  \
    tr_status tr__##name##_forward(tr_op_call *call)                               \
    {                                                                              \
        static const tr__bodies bodies = {.f64 = name##_f64, .i64 = name##_i64};   \
        return tr__elementwise(call, &bodies);                                     \
    }
FOR_ALL(add, a + b, WRAP(a, +, b))
FOR_ALL(sub, a - b, WRAP(a, -, b))
FOR_ALL(mul, a * b, WRAP(a, *, b))
FOR_ALL(maximum, LARGER(a, b), LARGER(a, b))
FOR_ALL(minimum, SMALLER(a, b), SMALLER(a, b))

BINARY(div, true)
BODY(div_f64, double, a / b)

tr_status tr__div_forward(tr_op_call *call)
{
    static const tr__bodies bodies = {.f64 = div_f64};
    return tr__elementwise(call, &bodies);
}

/* Gradients: of the output's shape first, then summed to the input's. */

static void give(tr_backward_call *call, int i, tr_tensor *gradient)
{
    call->grad_inputs[i] = tr__sum_to(gradient, tr__input_shape(call, i));
}

tr_status tr__add_backward(tr_backward_call *call)
{
    tr_tensor *g = call->grad_outputs[0];
    if (call->needs[0]) give(call, 0, g);
    if (call->needs[1]) give(call, 1, g);
    return TR_OK;
}

tr_status tr__sub_backward(tr_backward_call *call)
{
    tr_tensor *g = call->grad_outputs[0];
    if (call->needs[0]) give(call, 0, g);
    if (call->needs[1]) call->grad_inputs[1] = tr_neg(tr__sum_to(g, tr__input_shape(call, 1)));
    return TR_OK;
}

tr_status tr__mul_backward(tr_backward_call *call)
{
    tr_tensor *g = call->grad_outputs[0];
    if (call->needs[0]) give(call, 0, tr_mul(g, call->inputs[1]));
    if (call->needs[1]) give(call, 1, tr_mul(g, call->inputs[0]));
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

/* g where a is not less than b, half of it where they are equal: where one is NaN, so is the result, and both get g. */
static tr_tensor *where_not_less(tr_tensor *g, tr_tensor *a, tr_tensor *b)
{
    return tr_apply(tr__op(maximum_grad), NULL, (tr_tensor *[]){g, a, b}, 3, NULL);
}

tr_status tr__maximum_backward(tr_backward_call *call)
{
    tr_tensor *g = call->grad_outputs[0], *a = call->inputs[0], *b = call->inputs[1];
    if (call->needs[0]) give(call, 0, where_not_less(g, a, b));
    if (call->needs[1]) give(call, 1, where_not_less(g, b, a));
    return TR_OK;
}

tr_status tr__minimum_backward(tr_backward_call *call)
{
    tr_tensor *g = call->grad_outputs[0], *a = call->inputs[0], *b = call->inputs[1];
    if (call->needs[0]) give(call, 0, where_not_less(g, b, a));
    if (call->needs[1]) give(call, 1, where_not_less(g, a, b));
    return TR_OK;
}

tr_status tr__maximum_grad_infer(tr_op_call *call)
{
    TR__TRY(tr__given(call, 2));
    return tr__elementwise_infer(call, true);
}

static void maximum_grad_f64(double *out, const double *const *in, int64_t n, const void *attrs)
{
    (void)attrs;
    const double *g = in[0], *a = in[1], *b = in[2];
    for (int64_t i = 0; i < n; i++) out[i] = a[i] < b[i] ? 0 : a[i] == b[i] ? 0.5 * g[i] : g[i];
}

tr_status tr__maximum_grad_forward(tr_op_call *call)
{
    static const tr__bodies bodies = {.f64 = maximum_grad_f64};
    return tr__elementwise(call, &bodies);
}
