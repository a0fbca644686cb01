/* Comparisons, which make masks, the choice between two tensors by a mask, and where a mask is true. Shapes broadcast. */
#include "ops/compare.h"
#include "ops/family.h"

/* ---- Comparisons: a, b of one dtype -> bool ---------------------------------------------------------------------- */

tr_status tr__equal_infer(tr_op_call *call)
{
    TR__TRY(tr__same(call, 0, 1));
    const tr_tensor *a = call->inputs[0], *b = call->inputs[1];
    tr_shape shape;
    TR__TRY(tr__broadcast(call->op->name, a->shape, b->shape, &shape));
    return tr__output_like(call, 0, tr__shape_equal(a->shape, shape) ? a : b, shape, TR_BOOL);
}

#define COMPARISON(name, operator)                                                               \
    TR__COMPARISON(name, operator)                                                               \
    tr_tensor *tr_##name(tr_tensor *a, tr_tensor *b)                                             \
    {                                                                                            \
        return tr_apply(tr__op(name), NULL, (tr_tensor *[]){a, b}, 2, NULL);                     \
    }                                                                                            \
    tr_status tr__##name##_forward(tr_op_call *call)                                             \
    {                                                                                            \
        return tr__elementwise(call, &name##_bodies);                                            \
    }
TR__COMPARISON_MAP(COMPARISON)

/* ---- where: mask, a, b -> a where the mask is true, b elsewhere ---------------------------------------------------- */

tr_tensor *tr_where(tr_tensor *mask, tr_tensor *a, tr_tensor *b)
{
    return tr_apply(tr__op(where), NULL, (tr_tensor *[]){mask, a, b}, 3, NULL);
}

tr_tensor *tr_masked_fill(tr_tensor *x, tr_tensor *mask, double value)
{
    if (!x) return tr__tensor_fail(TR_INVALID, "masked_fill: x is NULL");
    return tr_where(mask, tr_full(value, TR_SCALAR, .dtype = tr_dtype_of(x), .device = tr_device_of(x)), x);
}

tr_status tr__where_infer(tr_op_call *call)
{
    TR__TRY(tr__given(call, 0));
    TR__TRY(tr__same(call, 1, 2));
    const tr_tensor *mask = call->inputs[0], *a = call->inputs[1], *b = call->inputs[2];
    if (mask->dtype != TR_BOOL)
        return tr__fail(TR_DTYPE, "where: the mask is %s %s: it must be bool", tr_dtype_name(mask->dtype),
            TR__TEXT(mask->shape));
    tr_shape shape;
    TR__TRY(tr__broadcast("where", a->shape, b->shape, &shape));
    TR__TRY(tr__broadcast("where", mask->shape, shape, &shape));
    const tr_tensor *like = tr__shape_equal(a->shape, shape) ? a : tr__shape_equal(b->shape, shape) ? b : mask;
    return tr__output_like(call, 0, like, shape, a->dtype);
}

TR__ELEMENTS(where_f64, double, void, , in[0][i] > 0 ? in[1][i] : in[2][i])
TR__ELEMENTS(where_i64, int64_t, void, , in[0][i] > 0 ? in[1][i] : in[2][i])
TR__ELEMENTWISE_FORWARD(where, .f64 = where_f64, .i64 = where_i64)

tr_status tr__where_backward(tr_backward_call *call)
{
    tr_tensor *g = call->grad_outputs[0], *mask = call->inputs[0];
    tr_tensor *zero = tr__zeros_like(g, TR_SCALAR);
    if (call->needs[1]) call->grad_inputs[1] = tr__sum_to(tr_where(mask, g, zero), tr__input_shape(call, 1));
    if (call->needs[2]) call->grad_inputs[2] = tr__sum_to(tr_where(mask, zero, g), tr__input_shape(call, 2));
    return TR_OK;
}

/* ---- flatnonzero ------------------------------------------------------------------------------------------------- */

/* mask: bool without gaps, on the CPU */
static tr_tensor *places_of(const tr_tensor *mask)
{
    const bool *set = tr__ptr(mask);
    int64_t n = tr_numel(mask), count = 0;
    for (int64_t i = 0; i < n; i++) count += set[i];
    tr_tensor *places = tr__tensor_new(TR_SHAPE(count), TR_I64, tr__device_of(mask));
    if (tr__bad(places)) return places;
    int64_t *to = tr__ptr(places);
    for (int64_t i = 0; i < n; i++)
        if (set[i]) *to++ = i;
    return places;
}

tr_tensor *tr_flatnonzero(tr_tensor *x)
{
    TR__REQUIRE("flatnonzero", "x", x);
    TR_SCOPE;
    tr_device device = tr__device_of(x);
    tr_tensor *mask = x->dtype == TR_BOOL ? x : tr_not_equal(x, tr__zeros_like(x, TR_SCALAR));
    mask = tr_contiguous(tr_to(mask, tr_cpu(0)));
    if (tr__bad(mask)) return tr_escape(tr__tensor_pass(mask));
    return tr_escape(tr_to(places_of(mask), device));
}
