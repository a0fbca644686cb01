/*
 * Losses, element by element, and then their mean, their sum or neither:
 *   mse_loss         (x - y)^2                                            dx = 2 g (x - y)
 *   huber_loss       d^2/2 for |d| <= delta, else delta (|d| - delta/2)   dx = g d, d = x - y held to -delta … delta
 *   bce_with_logits  log(1 + exp(x)) - x y                                dx = g (sigmoid(x) - y), dy = -g x
 * The others are compositions. Mean and sum of 16-bit losses are f32: people watch their digits.
 */
#include "ops/elementwise.h"
#include "ops/family.h"
#include "ops/ids.h"

#include <math.h>

/* ---- What they share ----------------------------------------------------------------------------------------------- */

static tr_status check(const char *what, const tr_tensor *x, const tr_tensor *target, tr_reduction reduction)
{
    if (!x || !target) return tr__fail(TR_INVALID, "%s: %s is NULL", what, x ? "target" : "x");
    if ((unsigned)reduction > TR_REDUCE_NONE)
        return tr__fail(TR_INVALID, "%s: %d is no tr_reduction", what, (int)reduction);
    if (tr__bad(x) || tr__bad(target) || tr__shape_equal(x->shape, target->shape)) return TR_OK; /* errors pass on */
    return tr__fail(TR_SHAPE, "%s: x %s and target %s must have one shape", what, TR__TEXT(x->shape),
        TR__TEXT(target->shape));
}

static tr_tensor *reduced(tr_tensor *loss, tr_reduction reduction)
{
    if (reduction == TR_REDUCE_NONE) return loss;
    return reduction == TR_REDUCE_SUM ? tr_sum(tr__widened(loss)) : tr_mean(tr__widened(loss));
}

/* The loop of one op: x and y are an element of each, g one of the gradient that arrived, a the attributes. */
#define LOSS(name, attrs_type, value, slope)                                                        \
    static void name##_f64(double *out, const double *const *in, int64_t n, const void *attrs)      \
    {                                                                                               \
        const attrs_type *a = attrs;                                                                \
        (void)a;                                                                                    \
        for (int64_t i = 0; i < n; i++) {                                                           \
            double x = in[0][i], y = in[1][i];                                                      \
            out[i] = (value);                                                                       \
        }                                                                                           \
    }                                                                                               \
    static void name##_grad_f64(double *out, const double *const *in, int64_t n, const void *attrs) \
    {                                                                                               \
        const attrs_type *a = attrs;                                                                \
        (void)a;                                                                                    \
        for (int64_t i = 0; i < n; i++) {                                                           \
            double g = in[0][i], x = in[1][i], y = in[2][i];                                        \
            out[i] = (slope);                                                                       \
        }                                                                                           \
    }                                                                                               \
    tr_status tr__##name##_infer(tr_op_call *call)                                                  \
    {                                                                                               \
        return tr__elementwise_infer(call, true);                                                   \
    }                                                                                               \
    tr_status tr__##name##_forward(tr_op_call *call)                                                \
    {                                                                                               \
        static const tr__bodies bodies = {.f64 = name##_f64};                                       \
        return tr__elementwise(call, &bodies);                                                      \
    }                                                                                               \
    tr_status tr__##name##_grad_infer(tr_op_call *call)                                             \
    {                                                                                               \
        return tr__elementwise_infer(call, true);                                                   \
    }                                                                                               \
    tr_status tr__##name##_grad_forward(tr_op_call *call)                                           \
    {                                                                                               \
        static const tr__bodies bodies = {.f64 = name##_grad_f64};                                  \
        return tr__elementwise(call, &bodies);                                                      \
    }

static double held(double x, double bound)
{
    return x < -bound ? -bound : x > bound ? bound : x;
}

static double huber(double d, double delta)
{
    return fabs(d) <= delta ? 0.5 * d * d : delta * (fabs(d) - 0.5 * delta);
}

LOSS(mse_loss, void, (x - y) * (x - y), 2 * g * (x - y))
LOSS(huber_loss, tr__huber_loss_attrs, huber(x - y, a->delta), g *held(x - y, a->delta))
LOSS(bce_with_logits, void, fmax(x, 0) - x * y + log1p(exp(-fabs(x))), g *(1 / (1 + exp(-x)) - y))

/* ---- Public functions ---------------------------------------------------------------------------------------------- */

tr_tensor *tr_mse_loss_with(const tr_loss_options *o)
{
    if (check("mse_loss", o->x, o->target, o->reduction) != TR_OK) return tr__tensor_failed();
    return reduced(tr_apply(tr__op(mse_loss), NULL, (tr_tensor *[]){o->x, o->target}, 2, NULL), o->reduction);
}

tr_tensor *tr_l1_loss_with(const tr_loss_options *o)
{
    if (check("l1_loss", o->x, o->target, o->reduction) != TR_OK) return tr__tensor_failed();
    return reduced(tr_abs(tr_sub(o->x, o->target)), o->reduction);
}

static tr_tensor *huber_of(const char *what, const tr_huber_loss_options *o)
{
    tr__huber_loss_attrs attrs = {o->delta ? o->delta : 1};
    if (check(what, o->x, o->target, o->reduction) != TR_OK) return tr__tensor_failed();
    if (!(attrs.delta > 0))
        return tr__tensor_fail(TR_INVALID, "%s: delta is %g: it must be positive", what, attrs.delta);
    return tr_apply(tr__op(huber_loss), &attrs, (tr_tensor *[]){o->x, o->target}, 2, NULL);
}

tr_tensor *tr_huber_loss_with(const tr_huber_loss_options *o)
{
    return reduced(huber_of("huber_loss", o), o->reduction);
}

tr_tensor *tr_smooth_l1_loss_with(const tr_huber_loss_options *o)
{
    return reduced(tr_affine(huber_of("smooth_l1_loss", o), 1 / (o->delta ? o->delta : 1), 0), o->reduction);
}

/* (1 - y) x + (1 + (weight - 1) y) log(1 + exp(-x)) */
static tr_tensor *weighted_bce(tr_tensor *x, tr_tensor *y, tr_tensor *weight)
{
    tr_tensor *counts = tr_affine(tr_mul(y, tr_affine(weight, 1, -1)), 1, 1);
    return tr_sub(tr_mul(tr_affine(y, -1, 1), x), tr_mul(counts, tr_log_sigmoid(x)));
}

tr_tensor *tr_bce_with_logits_with(const tr_bce_with_logits_options *o)
{
    if (check("bce_with_logits", o->x, o->target, o->reduction) != TR_OK) return tr__tensor_failed();
    if (o->pos_weight) return reduced(weighted_bce(o->x, o->target, o->pos_weight), o->reduction);
    return reduced(tr_apply(tr__op(bce_with_logits), NULL, (tr_tensor *[]){o->x, o->target}, 2, NULL), o->reduction);
}

/* y (log y - x), or exp(y) (y - x). Where y is 0, so is y log y: its logarithm is taken of the smallest number. */
tr_tensor *tr_kl_div_with(const tr_kl_div_options *o)
{
    if (check("kl_div", o->x, o->target, o->reduction) != TR_OK) return tr__tensor_failed();
    tr_tensor *x = tr__widened(o->x), *y = tr__widened(o->target);
    tr_tensor *loss;
    if (o->log_target)
        loss = tr_mul(tr_exp(y), tr_sub(y, x));
    else
        loss = tr_mul(y, tr_sub(tr_log(tr_clamp(y, 0x1p-126, INFINITY)), x));
    return reduced(o->reduction == TR_REDUCE_NONE ? tr_cast(loss, tr_dtype_of(o->x)) : loss, o->reduction);
}

/* Targets are classes, or ignored, and one for each row. */
static tr_status check_classes(const tr_tensor *x, const tr_tensor *targets, int64_t ignore_index)
{
    tr_shape rows = x->shape;
    if (!tr_dtype_is_float(x->dtype) || rows.ndim == 0)
        return tr__fail(TR_SHAPE, "nll_loss: x is %s %s: it must be floats, [..., classes]", tr_dtype_name(x->dtype),
            TR__TEXT(rows));
    if (targets->dtype != TR_I64 && targets->dtype != TR_I32)
        return tr__fail(TR_DTYPE, "nll_loss: targets are %s %s: they must be i64 or i32", tr_dtype_name(targets->dtype),
            TR__TEXT(targets->shape));
    rows.ndim--;
    if (!tr__shape_equal(targets->shape, rows))
        return tr__fail(TR_SHAPE, "nll_loss: targets %s do not fit x %s: they must be %s", TR__TEXT(targets->shape),
            TR__TEXT(x->shape), TR__TEXT(rows));
    tr__ids ids = tr__ids_of(targets);
    return tr__ids_check(&ids, tr_size(x, -1), "nll_loss: target", "classes", &ignore_index);
}

tr_tensor *tr_nll_loss_with(const tr_nll_loss_options *o)
{
    int64_t ignore_index = o->ignore_index ? o->ignore_index : TR__IGNORED_BY_DEFAULT;
    tr_tensor *x = o->x, *targets = o->targets;
    if (!x || !targets) return tr__tensor_fail(TR_INVALID, "nll_loss: %s NULL", x ? "targets are" : "x is");
    if (tr__bad(x) || tr__bad(targets)) return tr__tensor_pass(tr__bad(x) ? x : targets);
    if (check("nll_loss", x, x, o->reduction) != TR_OK) return tr__tensor_failed();
    if (check_classes(x, targets, ignore_index) != TR_OK) return tr__tensor_failed();
    tr_tensor *ignored = tr_full((double)ignore_index, TR_SCALAR, .dtype = targets->dtype, .device = tr__device_of(x));
    tr_tensor *left_out = tr_equal(targets, ignored);
    tr_shape column = targets->shape;
    column.dim[column.ndim++] = 1;
    tr_tensor *classes = tr_reshape(tr_masked_fill(targets, left_out, 0), column);
    tr_tensor *loss = tr_neg(tr_reshape(tr_take_along(x, -1, classes), targets->shape));
    loss = tr_masked_fill(loss, left_out, 0);
    if (o->reduction != TR_REDUCE_MEAN) return reduced(loss, o->reduction);
    loss = tr__widened(loss);
    return tr_div(tr_sum(loss), tr_sum(tr_cast(tr_not_equal(targets, ignored), tr_dtype_of(loss))));
}

/* ---- Gradients ----------------------------------------------------------------------------------------------------- */

/* Of x; those of mse_loss and huber_loss are opposite for y. */
static tr_tensor *gradient(const tr_backward_call *call, const tr_op *grad)
{
    tr_tensor *inputs[] = {call->grad_outputs[0], call->inputs[0], call->inputs[1]};
    return tr_apply(grad, call->attrs, inputs, 3, NULL);
}

static tr_status of_difference(tr_backward_call *call, const tr_op *grad)
{
    tr_tensor *dx = gradient(call, grad);
    if (call->needs[0]) call->grad_inputs[0] = dx;
    if (call->needs[1]) call->grad_inputs[1] = tr_neg(dx);
    return TR_OK;
}

tr_status tr__mse_loss_backward(tr_backward_call *call)
{
    return of_difference(call, tr__op(mse_loss_grad));
}

tr_status tr__huber_loss_backward(tr_backward_call *call)
{
    return of_difference(call, tr__op(huber_loss_grad));
}

tr_status tr__bce_with_logits_backward(tr_backward_call *call)
{
    if (call->needs[0]) call->grad_inputs[0] = gradient(call, tr__op(bce_with_logits_grad));
    if (call->needs[1]) call->grad_inputs[1] = tr_neg(tr_mul(call->grad_outputs[0], call->inputs[0]));
    return TR_OK;
}
