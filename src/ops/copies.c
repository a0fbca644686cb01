/* Ops that move elements without computing: cat, copy, cast, to. */
#include "ops/family.h"

#include <inttypes.h>

/* ---- cat ------------------------------------------------------------------------------------------------------- */

tr_status tr__cat_infer(tr_op_call *call)
{
    int dim = ((const tr__dim_attrs *)call->attrs)->dim;
    tr_shape shape = call->inputs[0]->shape;
    for (int i = 1; i < call->n_inputs; i++) {
        TR__TRY(tr__same(call, 0, i));
        const tr_tensor *part = call->inputs[i];
        tr_shape expected = shape;
        if (part->shape.ndim == shape.ndim) expected.dim[dim] = part->shape.dim[dim];
        if (!tr__shape_equal(part->shape, expected))
            return tr__fail(TR_SHAPE, "cat: part %d, %s, does not fit part 0, %s, but for dimension %d", i,
                TR__TEXT(part->shape), TR__TEXT(call->inputs[0]->shape), dim);
        shape.dim[dim] += part->shape.dim[dim];
    }
    return tr__output_like(call, 0, call->inputs[0], shape, call->inputs[0]->dtype);
}

tr_status tr__cat_forward(tr_op_call *call)
{
    int dim = ((const tr__dim_attrs *)call->attrs)->dim;
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
    int dim = ((const tr__dim_attrs *)call->attrs)->dim;
    int64_t at = 0;
    for (int i = 0; i < call->n_inputs; i++) {
        int64_t size = tr__input_shape(call, i).dim[dim];
        if (call->needs[i]) call->grad_inputs[i] = tr_slice(call->grad_outputs[0], dim, at, at + size);
        at += size;
    }
    return TR_OK;
}

/* As many parts as an op takes become one, until one is left. */
static tr_tensor *cat_in_steps(tr_tensor *const *parts, int n, const tr__dim_attrs *attrs)
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
    tr__dim_attrs attrs;
    if (n < 1) return tr__tensor_fail(TR_INVALID, "cat: %d parts: it takes at least one", n);
    for (int i = 0; i < n; i++) {
        if (!parts[i]) return tr__tensor_fail(TR_INVALID, "cat: part %d is NULL", i);
        if (tr__bad(parts[i])) return tr__tensor_pass(parts[i]);
    }
    if (tr__dim("cat", parts[0]->shape, dim, &attrs.dim) != TR_OK) return tr__tensor_failed();
    return n > TR_OP_MAX_INPUTS ? cat_in_steps(parts, n, &attrs) : tr_apply(tr__op(cat), &attrs, parts, n, NULL);
}

/* ---- copy, cast, to -------------------------------------------------------------------------------------------- */

static tr_status copy_elements(tr_op_call *call)
{
    return tr__copy_elements(call->outputs[0], call->inputs[0]);
}

tr_status tr__copy_infer(tr_op_call *call)
{
    TR__TRY(tr__given(call, 0));
    return tr_op_output(call, 0, call->inputs[0]->shape, call->inputs[0]->dtype);
}

tr_status tr__copy_forward(tr_op_call *call)
{
    return copy_elements(call);
}

tr_status tr__copy_backward(tr_backward_call *call)
{
    call->grad_inputs[0] = call->grad_outputs[0];
    return TR_OK;
}

tr_tensor *tr_contiguous(tr_tensor *x)
{
    if (x && !tr__bad(x) && tr_is_contiguous(x)) return x;
    return tr_apply(tr__op(copy), NULL, &x, 1, NULL);
}

tr_status tr__cast_infer(tr_op_call *call)
{
    TR__TRY(tr__given(call, 0));
    const tr_tensor *x = call->inputs[0];
    return tr__output_like(call, 0, x, x->shape, ((const tr__cast_attrs *)call->attrs)->dtype);
}

tr_status tr__cast_forward(tr_op_call *call)
{
    return copy_elements(call);
}

tr_status tr__cast_backward(tr_backward_call *call)
{
    call->grad_inputs[0] = tr_cast(call->grad_outputs[0], ((const tr__cast_attrs *)call->attrs)->from);
    return TR_OK;
}

tr_tensor *tr_cast(tr_tensor *x, tr_dtype dtype)
{
    if (x && !tr__bad(x) && x->dtype == dtype) return x;
    tr__cast_attrs attrs = {dtype, x ? x->dtype : dtype};
    return tr_apply(tr__op(cast), &attrs, &x, 1, NULL);
}

tr_status tr__to_infer(tr_op_call *call)
{
    TR__TRY(tr__given(call, 0));
    const tr_tensor *x = call->inputs[0];
    tr_device device = ((const tr__to_attrs *)call->attrs)->device;
    int64_t stride[TR_MAX_DIMS];
    tr__row_major(x->shape, stride);
    if (device.kind == tr__device_of(x).kind) tr__strides_like(x, x->shape, stride); /* other kinds take row-major only */
    call->outputs[0] = tr__tensor_new_strided(x->shape, stride, x->dtype, device);
    call->n_outputs = 1;
    return tr_status_of(call->outputs[0]);
}

tr_status tr__to_forward(tr_op_call *call)
{
    return copy_elements(call);
}

tr_status tr__to_backward(tr_backward_call *call)
{
    call->grad_inputs[0] = tr_to(call->grad_outputs[0], ((const tr__to_attrs *)call->attrs)->from);
    return TR_OK;
}

tr_tensor *tr_to(tr_tensor *x, tr_device device)
{
    if (x && !tr__bad(x) && tr_device_equal(tr__device_of(x), device)) return x;
    tr__to_attrs attrs = {device, x ? tr_device_of(x) : device};
    return tr_apply(tr__op(to), &attrs, &x, 1, NULL);
}
