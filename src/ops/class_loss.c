/*
 * Losses of classes that are compositions: the negative log-likelihood, and cross-entropy whose classes have weights or whose
 * targets are probabilities. With weights w, PyTorch's means are divided by the sum of the targets' weights, and label smoothing
 * s spreads a target by them:
 *   loss = (1 - s) w[target] -log p[target] + s/classes sum over c of w[c] -log p[c]
 * With targets t that are probabilities its means are over rows, also with weights:
 *   loss = sum over c of w[c] ((1 - s) t[c] + s/classes) -log p[c]
 */
#include "ops/cross_entropy.h"

#include <inttypes.h>
#include <stdio.h>

/* What a loss is told of its classes, and what follows from it. */
typedef struct choice {
    const char *loss; /* for messages */
    tr_tensor *x, *targets, *weight; /* the weight f32, or f64 as x, once it is checked */
    bool soft;        /* targets are probabilities: nothing but the weight follows */
    int64_t ignore_index;
    tr_reduction reduction;
    tr_tensor *left_out; /* bool, as targets */
    tr_tensor *classes;  /* [..., 1]: targets, 0 where they are left out */
    tr_tensor *counts;   /* as targets: how much each counts */
} choice;

/* Targets are classes, or ignored, and one for each row, or else probabilities of all; weights one for each class. */
static tr_status check_shapes(const choice *c)
{
    tr_shape rows = c->x->shape;
    if (!tr_dtype_is_float(c->x->dtype) || rows.ndim == 0)
        return tr__fail(TR_SHAPE, "%s: x is %s %s: it must be floats, [..., classes]", c->loss, tr_dtype_name(c->x->dtype),
            TR__TEXT(rows));
    if (!c->soft && c->targets->dtype != TR_I64 && c->targets->dtype != TR_I32)
        return tr__fail(TR_DTYPE, "%s: targets are %s %s: they must be i64 or i32", c->loss, tr_dtype_name(c->targets->dtype),
            TR__TEXT(c->targets->shape));
    int64_t classes = rows.dim[rows.ndim - 1];
    if (!c->soft) rows.ndim--;
    if (!tr__shape_equal(c->targets->shape, rows))
        return tr__fail(TR_SHAPE, "%s: targets %s do not fit x %s: they must be %s%s", c->loss, TR__TEXT(c->targets->shape),
            TR__TEXT(c->x->shape), TR__TEXT(rows), c->soft ? ", as floats are probabilities; class indices are i64 or i32" : "");
    if (c->soft && c->ignore_index >= 0)
        return tr__fail(TR_INVALID, "%s: ignore_index is %" PRId64 ": it does not apply to targets that are probabilities", c->loss,
            c->ignore_index);
    const tr_tensor *w = c->weight;
    if (w && (!tr_dtype_is_float(w->dtype) || w->shape.ndim != 1 || w->shape.dim[0] != classes))
        return tr__fail(tr_dtype_is_float(w->dtype) ? TR_SHAPE : TR_DTYPE, "%s: weight %s %s does not fit x %s: it must be "
            "floats, [%" PRId64 "]", c->loss, tr_dtype_name(w->dtype), TR__TEXT(w->shape), TR__TEXT(c->x->shape), classes);
    if (c->soft || tr__device_of(c->targets).kind != TR_CPU) return TR_OK; /* its kernels look at them */
    tr__ids ids = tr__ids_of(c->targets);
    char what[64];
    snprintf(what, sizeof what, "%s: target", c->loss);
    return tr__ids_check(&ids, classes, what, "classes", &c->ignore_index);
}

/* Sets what follows. NULL, or the tensor in error to return. */
static tr_tensor *choose(choice *c)
{
    TR__REQUIRE(c->loss, "x", c->x);
    TR__REQUIRE(c->loss, "input 'targets'", c->targets);
    if (c->weight && tr__bad(c->weight)) return tr__tensor_pass(c->weight);
    if ((unsigned)c->reduction > TR_REDUCE_NONE)
        return tr__tensor_fail(TR_INVALID, "%s: %d is no tr_reduction", c->loss, (int)c->reduction);
    if (check_shapes(c) != TR_OK) return tr__tensor_failed();
    /* Autocast makes x 16-bit, but no weight. */
    if (c->weight) c->weight = tr_cast(c->weight, c->x->dtype == TR_F64 ? TR_F64 : TR_F32);
    if (c->soft) return NULL;
    tr_tensor *ignored = tr_full((double)c->ignore_index, TR_SCALAR, .dtype = c->targets->dtype, .device = tr__device_of(c->x));
    tr_shape column = c->targets->shape;
    column.dim[column.ndim++] = 1;
    c->left_out = tr_equal(c->targets, ignored);
    c->classes = tr_reshape(tr_masked_fill(c->targets, c->left_out, 0), column);
    if (!c->weight) {
        c->counts = tr_cast(tr_not_equal(c->targets, ignored), c->x->dtype);
        return NULL;
    }
    tr_tensor *of_each = tr_take_along(c->weight, 0, tr_reshape(c->classes, TR_SHAPE(-1)));
    c->counts = tr_masked_fill(tr_reshape(of_each, c->targets->shape), c->left_out, 0);
    return NULL;
}

/* -log_p[target], weighted; with weights widened. */
static tr_tensor *of_targets(const choice *c, tr_tensor *log_p)
{
    tr_tensor *loss = tr_neg(tr_reshape(tr_take_along(log_p, -1, c->classes), c->targets->shape));
    if (c->weight) loss = tr_mul(tr__widened(loss), c->counts);
    return tr_masked_fill(loss, c->left_out, 0);
}

static tr_tensor *reduced(const choice *c, tr_tensor *loss)
{
    if (c->soft || c->reduction != TR_REDUCE_MEAN) return tr__reduced(loss, c->reduction);
    return tr_div(tr_sum(tr__widened(loss)), tr_sum(tr__widened(c->counts)));
}

tr_tensor *tr_nll_loss_with(const tr_nll_loss_options *o)
{
    choice c = {.loss = "nll_loss", .x = o->x, .targets = o->targets, .weight = o->weight, .ignore_index = TR__IGNORED(o),
        .reduction = o->reduction};
    tr_tensor *failed = choose(&c);
    if (failed) return failed;
    tr_tensor *loss = of_targets(&c, c.x);
    return c.reduction == TR_REDUCE_NONE ? tr_cast(loss, c.x->dtype) : reduced(&c, loss);
}

/* Without smoothing by the rows' cross-entropies, which keep no probabilities. */
tr_tensor *tr__composed_cross_entropy(const tr_cross_entropy_options *o)
{
    choice c = {.loss = "cross_entropy", .x = o->logits, .targets = o->targets, .weight = o->weight,
        .soft = o->targets && tr_dtype_is_float(o->targets->dtype), .ignore_index = TR__IGNORED(o), .reduction = o->reduction};
    tr_tensor *failed = choose(&c);
    if (failed) return failed;
    double s = o->label_smoothing;
    if (!(s >= 0 && s <= 1))
        return tr__tensor_fail(TR_INVALID, "cross_entropy: label_smoothing is %g: it must be in 0 … 1", s);
    if (s == 0 && !c.soft) {
        tr_tensor *rows = tr_cross_entropy(c.x, c.targets, .ignore_index = c.ignore_index, .reduction = TR_REDUCE_NONE);
        return reduced(&c, tr_mul(rows, c.counts));
    }
    tr_tensor *log_p = tr_log_softmax(tr__widened(c.x), -1);
    double share = s / (double)tr_size(c.x, -1);
    if (c.soft) {
        tr_tensor *wanted = tr_cast(c.targets, tr_dtype_of(log_p));
        if (s > 0) wanted = tr_affine(wanted, 1 - s, share);
        if (c.weight) wanted = tr_mul(wanted, c.weight);
        return reduced(&c, tr_neg(tr_sum(tr_mul(log_p, wanted), -1)));
    }
    /* Not by a product of matrices, which autocast would round. */
    tr_tensor *even = tr_sum(tr_mul(log_p, c.weight), -1);
    even = tr_masked_fill(even, c.left_out, 0);
    return reduced(&c, tr_sub(tr_affine(of_targets(&c, log_p), 1 - s, 0), tr_affine(even, share, 0)));
}
