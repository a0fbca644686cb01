/*
 * Losses, element by element, and then their mean, their sum or neither:
 *   mse_loss         (x - y)^2                                            dx = 2 g (x - y)
 *   huber_loss       d^2/2 for |d| <= delta, else delta (|d| - delta/2)   dx = g d, d = x - y held to -delta … delta
 *   bce_with_logits  log(1 + exp(x)) - x y                                dx = g (sigmoid(x) - y), dy = -g x
 * (x y is taken from x rather than from the logarithm, which may be nearly x.)
 * The others are compositions. Mean and sum of 16-bit losses are f32: people watch their digits.
 */
#include "ops/elementwise.h"
#include "ops/family.h"

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

tr_tensor *tr__reduced(tr_tensor *loss, tr_reduction reduction)
{
    if (reduction == TR_REDUCE_NONE) return loss;
    return reduction == TR_REDUCE_SUM ? tr_sum(tr__widened(loss)) : tr_mean(tr__widened(loss));
}

#define LOSS(name, attrs_type, value, slope)                                \
    TR__ELEMENTS(name##_f64, double, attrs_type, TR__OF_X_Y(double), value) \
    TR__ELEMENTWISE(name, 2, true, .f64 = name##_f64)                       \
    TR__ELEMENTS(name##_grad_f64, double, attrs_type, TR__OF_G_X_Y, slope)  \
    TR__ELEMENTWISE(name##_grad, 3, true, .f64 = name##_grad_f64)

static double held(double x, double bound)
{
    return x < -bound ? -bound : x > bound ? bound : x;
}

static double huber(double d, double delta)
{
    return fabs(d) <= delta ? 0.5 * d * d : delta * (fabs(d) - 0.5 * delta);
}

LOSS(mse_loss, void, (x - y) * (x - y), 2 * g * (x - y))
LOSS(huber_loss, tr_huber_loss_attrs, huber(x - y, a->delta), g *held(x - y, a->delta))
LOSS(bce_with_logits, void, x *((x > 0) - y) + log1p(exp(-fabs(x))), g *(1 / (1 + exp(-x)) - y))

/* ---- Public functions ---------------------------------------------------------------------------------------------- */

tr_tensor *tr_mse_loss_with(const tr_loss_options *o)
{
    if (check("mse_loss", o->x, o->target, o->reduction) != TR_OK) return tr__tensor_failed();
    return tr__reduced(tr_apply(tr__op(mse_loss), NULL, (tr_tensor *[]){o->x, o->target}, 2, NULL), o->reduction);
}

tr_tensor *tr_l1_loss_with(const tr_loss_options *o)
{
    if (check("l1_loss", o->x, o->target, o->reduction) != TR_OK) return tr__tensor_failed();
    return tr__reduced(tr_abs(tr_sub(o->x, o->target)), o->reduction);
}

static tr_tensor *huber_of(const char *what, const tr_huber_loss_options *o)
{
    tr_huber_loss_attrs attrs = {TR__OR(o, delta, 1)};
    if (check(what, o->x, o->target, o->reduction) != TR_OK) return tr__tensor_failed();
    if (!(attrs.delta > 0))
        return tr__tensor_fail(TR_INVALID, "%s: delta is %g: it must be positive", what, attrs.delta);
    return tr_apply(tr__op(huber_loss), &attrs, (tr_tensor *[]){o->x, o->target}, 2, NULL);
}

tr_tensor *tr_huber_loss_with(const tr_huber_loss_options *o)
{
    return tr__reduced(huber_of("huber_loss", o), o->reduction);
}

tr_tensor *tr_smooth_l1_loss_with(const tr_huber_loss_options *o)
{
    bool sound = o->x && o->target && !tr__bad(o->x) && !tr__bad(o->target);
    if (sound && tr__dtype_of_x("smooth_l1_loss", "target", o->target, o->x) != TR_OK) return tr__tensor_failed();
    tr_huber_loss_options wide = *o; /* what 16 bits make of a small delta's losses, and of 1/delta, is worthless */
    wide.x = tr__widened(o->x);
    wide.target = tr__widened(o->target);
    tr_tensor *loss = tr_affine(huber_of("smooth_l1_loss", &wide), 1 / TR__OR(o, delta, 1), 0);
    if (tr__bad(loss) || o->reduction != TR_REDUCE_NONE) return tr__reduced(loss, o->reduction);
    return tr__narrowed(loss, o->x);
}

/* Weights are broadcast to x, and x to nothing. */
static tr_status check_weight(const char *which, const tr_tensor *weight, const tr_tensor *x)
{
    tr_shape both;
    if (!weight || tr__bad(weight) || tr__bad(x)) return TR_OK;
    TR__TRY(tr__dtype_of_x("bce_with_logits", which, weight, x));
    if (tr__broadcast("bce_with_logits", x->shape, weight->shape, &both) == TR_OK && tr__shape_equal(both, x->shape)) return TR_OK;
    return tr__fail(TR_SHAPE, "bce_with_logits: %s %s does not broadcast to x %s", which, TR__TEXT(weight->shape),
        TR__TEXT(x->shape));
}

tr_tensor *tr_bce_with_logits_with(const tr_bce_with_logits_options *o)
{
    tr_tensor *x = o->x, *y = o->target;
    if (check("bce_with_logits", x, y, o->reduction) != TR_OK) return tr__tensor_failed();
    if (check_weight("pos_weight", o->pos_weight, x) != TR_OK) return tr__tensor_failed();
    if (check_weight("weight", o->weight, x) != TR_OK) return tr__tensor_failed();
    if (!o->pos_weight && !o->weight)
        return tr__reduced(tr_apply(tr__op(bce_with_logits), NULL, (tr_tensor *[]){x, y}, 2, NULL), o->reduction);
    bool sound = !tr__bad(x) && !tr__bad(y);
    if (sound && tr__dtype_of_x("bce_with_logits", "target", y, x) != TR_OK) return tr__tensor_failed();
    x = tr__widened(x);
    y = tr__widened(y);
    tr_tensor *loss;
    if (o->pos_weight) { /* (1 - y) log(1 + exp(x)) + y pos_weight log(1 + exp(-x)) */
        tr_tensor *positive = tr_mul(tr_mul(y, tr__widened(o->pos_weight)), tr_log_sigmoid(x));
        loss = tr_sub(tr_mul(tr_affine(y, -1, 1), tr_softplus(x)), positive);
    } else {
        loss = tr_apply(tr__op(bce_with_logits), NULL, (tr_tensor *[]){x, y}, 2, NULL);
    }
    if (o->weight) loss = tr_mul(loss, tr__widened(o->weight));
    return o->reduction == TR_REDUCE_NONE ? tr__narrowed(loss, o->x) : tr__reduced(loss, o->reduction);
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
    return tr__reduced(o->reduction == TR_REDUCE_NONE ? tr_cast(loss, tr_dtype_of(o->x)) : loss, o->reduction);
}

/* ---- Gradients ----------------------------------------------------------------------------------------------------- */

/* Of x; those of mse_loss and huber_loss are opposite for y. */
static tr_tensor *gradient(const tr_backward_call *call, const tr_op *grad)
{
    tr_tensor *inputs[] = {call->grad_outputs[0], call->inputs[0], call->inputs[1]};
    return tr_apply(grad, call->attrs, inputs, 3, NULL);
}

#define OF_DIFFERENCE(name)                                                 \
    tr_status tr__##name##_backward(tr_backward_call *call)                 \
    {                                                                       \
        tr_tensor *dx = gradient(call, tr__op(name##_grad));                \
        if (call->needs[0]) call->grad_inputs[0] = dx;                      \
        if (call->needs[1]) call->grad_inputs[1] = tr_neg(dx);              \
        return TR_OK;                                                       \
    }
OF_DIFFERENCE(mse_loss)
OF_DIFFERENCE(huber_loss)

tr_status tr__bce_with_logits_backward(tr_backward_call *call)
{
    if (call->needs[0]) call->grad_inputs[0] = gradient(call, tr__op(bce_with_logits_grad));
    if (call->needs[1]) call->grad_inputs[1] = tr_neg(tr_mul(call->grad_outputs[0], call->inputs[0]));
    return TR_OK;
}
