/*
 * Autocast (Micikevicius et al. 2018): which dtype an op's inputs get stands in its row's flags. The casts are ops like any
 * other, so gradients go back through them to the f32 parameters.
 */
#include "ops/op.h"

static bool is_low(tr_dtype dtype)
{
    return dtype == TR_BF16 || dtype == TR_F16;
}

tr_dtype tr_autocast(void)
{
    return tr__autocast();
}

tr_dtype tr_set_autocast(tr_dtype dtype)
{
    return tr__autocast_set(is_low(dtype) ? dtype : TR_F32);
}

/* The dtype that op wants input i in. */
static tr_dtype wanted(const tr_op *op, int i, tr_dtype of, bool mixed)
{
    if (op->flags & TR__OP_LOW_FIRST && i > 0 && of == TR_F32) return of;
    if (op->flags & (TR__OP_LOW | TR__OP_LOW_FIRST)) return of == TR_F32 || is_low(of) ? tr_autocast() : of;
    return is_low(of) && (op->flags & TR__OP_HIGH || (mixed && !(op->flags & TR__OP_MIXED))) ? TR_F32 : of;
}

tr_tensor *const *tr__autocast_inputs(const tr_op *op, tr_tensor *const *inputs, int n, tr_tensor **out)
{
    const tr_tensor *first = NULL;
    bool mixed = false, any = false;
    for (int i = 0; i < n; i++) {
        if (!inputs[i] || !tr_dtype_is_float(inputs[i]->dtype)) continue;
        if (!first) first = inputs[i];
        mixed |= inputs[i]->dtype != first->dtype;
    }
    for (int i = 0; i < n; i++) {
        out[i] = inputs[i];
        if (!inputs[i] || !tr_dtype_is_float(inputs[i]->dtype)) continue;
        tr_dtype dtype = wanted(op, i, inputs[i]->dtype, mixed);
        any |= dtype != inputs[i]->dtype;
        out[i] = tr_cast(inputs[i], dtype);
    }
    return any ? out : inputs;
}
