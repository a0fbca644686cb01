/* Ops that move elements without computing: cat, pad, copy, cast, to. */
#include "ops/family.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- cat ------------------------------------------------------------------------------------------------------- */

tr_status tr__cat_infer(tr_op_call *call)
{
    int dim = ((const tr_dim_attrs *)call->attrs)->dim;
    tr_shape shape = call->inputs[0]->shape;
    for (int i = 1; i < call->n_inputs; i++) {
        TR__TRY(tr__same(call, 0, i));
        const tr_tensor *part = call->inputs[i];
        tr_shape expected = shape;
        if (part->shape.ndim == shape.ndim) expected.dim[dim] = part->shape.dim[dim];
        if (!tr__shape_equal(part->shape, expected))
            return tr__fail(TR_SHAPE, "cat: part %d, %s, does not fit part 0, %s, but for dimension %d", i,
                TR__TEXT(part->shape), TR__TEXT(call->inputs[0]->shape), dim);
        if (__builtin_add_overflow(shape.dim[dim], part->shape.dim[dim], &shape.dim[dim]))
            return tr__fail(TR_SHAPE, "cat: dimension %d becomes too large with part %d, %s", dim, i, TR__TEXT(part->shape));
    }
    return tr__output_like(call, 0, call->inputs[0], shape, call->inputs[0]->dtype);
}

tr_status tr__cat_forward(tr_op_call *call)
{
    int dim = ((const tr_dim_attrs *)call->attrs)->dim;
    tr_tensor place = *call->outputs[0]; /* part by part of the output; on the stack, so it is nobody's object */
    for (int i = 0; i < call->n_inputs; i++) {
        place.shape.dim[dim] = call->inputs[i]->shape.dim[dim];
        TR__TRY(tr__copy_elements(&place, call->inputs[i]));
        place.offset += place.shape.dim[dim] * place.stride[dim];
    }
    return TR_OK;
}

tr_status tr__cat_backward(tr_backward_call *call)
{
    int dim = ((const tr_dim_attrs *)call->attrs)->dim;
    int64_t at = 0;
    for (int i = 0; i < call->n_inputs; i++) {
        int64_t size = tr__input_shape(call, i).dim[dim];
        if (call->needs[i]) call->grad_inputs[i] = tr_slice(call->grad_outputs[0], dim, at, at + size);
        at += size;
    }
    return TR_OK;
}

/* As many parts as an op takes become one, until one is left. */
static tr_tensor *cat_in_steps(tr_tensor *const *parts, int n, const tr_dim_attrs *attrs)
{
    tr_tensor *wider[TR_OP_MAX_INPUTS];
    int each = (n + TR_OP_MAX_INPUTS - 1) / TR_OP_MAX_INPUTS, count = 0;
    for (int i = 0; i < n; i += each) {
        int here = n - i < each ? n - i : each;
        wider[count++] = here > TR_OP_MAX_INPUTS ? cat_in_steps(parts + i, here, attrs)
                                                 : tr_apply(tr__op(cat), attrs, parts + i, here, NULL);
    }
    return tr_apply(tr__op(cat), attrs, wider, count, NULL);
}

tr_tensor *tr_cat(tr_tensor *const *parts, int n, int dim)
{
    tr_dim_attrs attrs;
    if (n < 1) return tr__tensor_fail(TR_INVALID, "cat: %d parts: it takes at least one", n);
    if (!parts) return tr__tensor_fail(TR_INVALID, "cat: parts is NULL");
    for (int i = 0; i < n; i++) {
        if (!parts[i]) return tr__tensor_fail(TR_INVALID, "cat: part %d is NULL", i);
        if (tr__bad(parts[i])) return tr__tensor_pass(parts[i]);
    }
    if (tr__dim("cat", parts[0]->shape, dim, &attrs.dim) != TR_OK) return tr__tensor_failed();
    return n > TR_OP_MAX_INPUTS ? cat_in_steps(parts, n, &attrs) : tr_apply(tr__op(cat), &attrs, parts, n, NULL);
}

tr_tensor *tr_stack(tr_tensor *const *parts, int n, int dim)
{
    if (n < 1) return tr__tensor_fail(TR_INVALID, "stack: %d parts: it takes at least one", n);
    if (!parts) return tr__tensor_fail(TR_INVALID, "stack: parts is NULL");
    tr_tensor **wider = malloc(sizeof(tr_tensor *) * (size_t)n), *stacked = NULL;
    if (!wider) return tr__tensor_fail(TR_NO_MEMORY, "stack: no memory for %d parts", n);
    const tr_tensor *first = parts[0];
    for (int i = 0; i < n && !stacked; i++) {
        if (!parts[i] || !first)
            stacked = tr__tensor_fail(TR_INVALID, "stack: part %d is NULL", i);
        else if (tr__bad(parts[i]))
            stacked = tr__tensor_pass(parts[i]);
        else if (!tr__shape_equal(parts[i]->shape, first->shape))
            stacked = tr__tensor_fail(TR_SHAPE, "stack: part %d is %s, part 0 %s: all must have one shape", i,
                TR__TEXT(parts[i]->shape), TR__TEXT(first->shape));
        else if (tr__bad(wider[i] = tr_unsqueeze(parts[i], dim)))
            stacked = tr__tensor_fail(tr_status_of(wider[i]), "stack: %s", tr_error_message());
    }
    if (!stacked) stacked = tr_cat(wider, n, dim);
    free(wider);
    return stacked;
}

/* ---- pad ------------------------------------------------------------------------------------------------------- */

tr_tensor *tr_pad_with(const tr_pad_options *o)
{
    tr_pad_attrs attrs = {.value = o->value};
    for (int d = 0; d < TR_MAX_DIMS; d++) {
        attrs.before[d] = o->before[d];
        attrs.after[d] = o->after[d];
    }
    tr_tensor *x = o->x;
    return tr_apply(tr__op(pad), &attrs, &x, 1, NULL);
}

tr_status tr__pad_infer(tr_op_call *call)
{
    const tr_pad_attrs *attrs = call->attrs;
    TR__TRY(tr__given(call, 0));
    const tr_tensor *x = call->inputs[0];
    tr_shape shape = x->shape;
    for (int d = 0; d < TR_MAX_DIMS; d++) {
        int64_t before = attrs->before[d], after = attrs->after[d];
        if (before < 0 || after < 0)
            return tr__fail(TR_INVALID, "pad: %" PRId64 " before and %" PRId64 " after dimension %d must not be negative",
                before, after, d);
        if (d >= shape.ndim && (before || after))
            return tr__fail(TR_SHAPE, "pad: no dimension %d in %s", d, TR__TEXT(x->shape));
        if (d < shape.ndim && (__builtin_add_overflow(shape.dim[d], before, &shape.dim[d]) ||
                                  __builtin_add_overflow(shape.dim[d], after, &shape.dim[d])))
            return tr__fail(TR_SHAPE, "pad: dimension %d of %s becomes too large", d, TR__TEXT(x->shape));
    }
    return tr__output_like(call, 0, x, shape, x->dtype);
}

tr_status tr__pad_forward(tr_op_call *call)
{
    const tr_pad_attrs *attrs = call->attrs;
    const tr_tensor *x = call->inputs[0];
    TR__TRY(tr_fill(call->outputs[0], attrs->value));
    tr_tensor place = *call->outputs[0]; /* where x goes; on the stack, so it is nobody's object */
    for (int d = 0; d < x->shape.ndim; d++) place.offset += attrs->before[d] * place.stride[d];
    place.shape = x->shape;
    return tr__copy_elements(&place, x);
}

tr_status tr__pad_backward(tr_backward_call *call)
{
    const tr_pad_attrs *attrs = call->attrs;
    tr_tensor *g = call->grad_outputs[0];
    for (int d = 0; d < tr_ndim(g); d++)
        if (attrs->before[d] || attrs->after[d]) g = tr_slice(g, d, attrs->before[d], tr_size(g, d) - attrs->after[d]);
    call->grad_inputs[0] = g;
    return TR_OK;
}

/* ---- copy, cast, to -------------------------------------------------------------------------------------------- */

tr_status tr__copy_infer(tr_op_call *call)
{
    TR__TRY(tr__given(call, 0));
    return tr_op_output(call, 0, call->inputs[0]->shape, call->inputs[0]->dtype);
}

tr_status tr__copy_forward(tr_op_call *call)
{
    return tr__copy_elements(call->outputs[0], call->inputs[0]);
}

TR__BACKWARD(copy, void, g)

tr_tensor *tr_contiguous(tr_tensor *x)
{
    if (x && !tr__bad(x) && tr_is_contiguous(x)) return x;
    return x ? tr_clone(x) : tr__tensor_fail(TR_INVALID, "contiguous: input 0 is NULL");
}

tr_tensor *tr_clone(tr_tensor *x)
{
    return x ? tr_apply(tr__op(copy), NULL, &x, 1, NULL) : tr__tensor_fail(TR_INVALID, "clone: input 0 is NULL");
}

tr_status tr__cast_infer(tr_op_call *call)
{
    TR__TRY(tr__given(call, 0));
    const tr_tensor *x = call->inputs[0];
    return tr__output_like(call, 0, x, x->shape, ((const tr_cast_attrs *)call->attrs)->dtype);
}

TR__BACKWARD(cast, tr_cast_attrs, tr_cast(g, a->from))

tr_tensor *tr_cast(tr_tensor *x, tr_dtype dtype)
{
    if (x && !tr__bad(x) && x->dtype == dtype) return x;
    tr_cast_attrs attrs = {dtype, x ? x->dtype : dtype};
    return tr_apply(tr__op(cast), &attrs, &x, 1, NULL);
}

tr_tensor *tr__widened(tr_tensor *x)
{
    return x && (tr_dtype_of(x) == TR_F16 || tr_dtype_of(x) == TR_BF16) ? tr_cast(x, TR_F32) : x;
}

tr_tensor *tr__narrowed(tr_tensor *y, const tr_tensor *x)
{
    return tr_autocast() == TR_F32 ? tr_cast(y, x->dtype) : y;
}

tr_status tr__dtype_of_x(const char *op, const char *what, const tr_tensor *t, const tr_tensor *x)
{
    if (t->dtype == x->dtype || tr_autocast() != TR_F32) return TR_OK;
    return tr__fail(TR_DTYPE, "%s: dtypes differ: x is %s %s, %s %s %s", op, tr_dtype_name(x->dtype), TR__TEXT(x->shape),
        what, tr_dtype_name(t->dtype), TR__TEXT(t->shape));
}

tr_status tr__to_infer(tr_op_call *call)
{
    TR__TRY(tr__given(call, 0));
    const tr_tensor *x = call->inputs[0];
    tr_device device = ((const tr_to_attrs *)call->attrs)->device;
    int64_t stride[TR_MAX_DIMS];
    tr__row_major(x->shape, stride);
    if (device.kind == tr__device_of(x).kind) tr__strides_like(x, x->shape, stride); /* other kinds take row-major only */
    return tr__output_made(call, 0, tr__tensor_new_strided(x->shape, stride, x->dtype, device));
}

TR__BACKWARD(to, tr_to_attrs, tr_to(g, a->from))

tr_tensor *tr_to(tr_tensor *x, tr_device device)
{
    if (x && !tr__bad(x) && tr_device_equal(tr__device_of(x), device)) return x;
    tr_to_attrs attrs = {device, x ? tr_device_of(x) : device};
    return tr_apply(tr__op(to), &attrs, &x, 1, NULL);
}
