/* Views: ops that change shape and strides only. Their infer makes the outputs; there is nothing to compute. */
#include "ops/family.h"

#include <inttypes.h>
#include <string.h>

/* ---- view, reshape --------------------------------------------------------------------------------------------- */

/* Strides that show x as shape (of as many elements) without a copy; false when there are none. Runs of x's dimensions
 * that lie one after the other are cut anew. */
static bool view_strides(const tr_tensor *x, tr_shape shape, int64_t stride[TR_MAX_DIMS])
{
    tr__row_major(shape, stride);
    if (tr_is_contiguous(x)) return true;
    int d = shape.ndim - 1;
    for (int last = x->shape.ndim - 1; last >= 0; last--) {
        if (x->shape.dim[last] == 1) continue;
        int first = last;
        int64_t run = x->shape.dim[last], cut = 1;
        while (first > 0 && (x->shape.dim[first - 1] == 1 ||
                                x->stride[first - 1] == run * x->stride[last]))
            run *= x->shape.dim[--first];
        while (d >= 0 && (cut < run || shape.dim[d] == 1)) {
            stride[d] = cut * x->stride[last];
            cut *= shape.dim[d--];
        }
        if (cut != run) return false;
        last = first;
    }
    return true;
}

static bool is_sound(tr_shape shape)
{
    return tr__shape_bytes(shape, TR_BOOL, &(int64_t){0});
}

static tr_status check_count(const char *what, const tr_tensor *x, tr_shape shape)
{
    if (!is_sound(shape)) return tr__fail(TR_SHAPE, "%s: no tensor has the shape that is asked for", what);
    if (tr__numel(shape) == tr__numel(x->shape)) return TR_OK;
    return tr__fail(TR_SHAPE, "%s: %s has %" PRId64 " elements, %s would have %" PRId64, what, TR__TEXT(x->shape),
        tr__numel(x->shape), TR__TEXT(shape), tr__numel(shape));
}

tr_status tr__view_infer(tr_op_call *call)
{
    TR__TRY(tr__given(call, 0));
    const tr_tensor *x = call->inputs[0];
    tr_shape shape = ((const tr_view_attrs *)call->attrs)->shape;
    TR__TRY(check_count("view", x, shape));
    int64_t stride[TR_MAX_DIMS];
    if (!view_strides(x, shape, stride))
        return tr__fail(TR_SHAPE, "view: the strides of %s do not allow %s", TR__TEXT(x->shape), TR__TEXT(shape));
    return tr__output_made(call, 0, tr__tensor_view(x, shape, stride, x->offset));
}

TR__BACKWARD(view, void, tr_reshape(g, tr__input_shape(call, 0)))

/* Puts a number in the place of -1. */
static tr_status fill_in(const tr_tensor *x, tr_shape *shape)
{
    int open = -1;
    int64_t rest = 1;
    for (int d = 0; d < shape->ndim && d < TR_MAX_DIMS; d++) {
        if (shape->dim[d] != -1) {
            if (__builtin_mul_overflow(rest, shape->dim[d], &rest)) rest = 0;
            continue;
        }
        if (open >= 0) return tr__fail(TR_SHAPE, "reshape: more than one -1 in %s", TR__TEXT(*shape));
        open = d;
    }
    if (open < 0) return TR_OK;
    if (rest <= 0 || tr__numel(x->shape) % rest)
        return tr__fail(TR_SHAPE, "reshape: nothing fits the -1 in %s for %s", TR__TEXT(*shape), TR__TEXT(x->shape));
    shape->dim[open] = tr__numel(x->shape) / rest;
    return TR_OK;
}

tr_tensor *tr_reshape(tr_tensor *x, tr_shape shape)
{
    tr_view_attrs attrs = {shape};
    TR__REQUIRE("reshape", "input 0", x);
    int64_t stride[TR_MAX_DIMS];
    if (fill_in(x, &attrs.shape) != TR_OK || check_count("reshape", x, attrs.shape) != TR_OK)
        return tr__tensor_failed();
    if (!view_strides(x, attrs.shape, stride)) x = tr_contiguous(x);
    return tr_apply(tr__op(view), &attrs, &x, 1, NULL);
}

/* ---- permute, transpose ---------------------------------------------------------------------------------------- */

tr_status tr__permute_infer(tr_op_call *call)
{
    const tr_tensor *x = call->inputs[0];
    const int *order = ((const tr_permute_attrs *)call->attrs)->order;
    tr_shape shape = x->shape;
    int64_t stride[TR_MAX_DIMS];
    for (int d = 0; d < shape.ndim; d++) {
        shape.dim[d] = x->shape.dim[order[d]];
        stride[d] = x->stride[order[d]];
    }
    return tr__output_made(call, 0, tr__tensor_view(x, shape, stride, x->offset));
}

tr_status tr__permute_backward(tr_backward_call *call)
{
    const int *order = ((const tr_permute_attrs *)call->attrs)->order;
    tr_tensor *g = call->grad_outputs[0];
    int back[TR_MAX_DIMS];
    for (int d = 0; d < g->shape.ndim; d++) back[order[d]] = d;
    call->grad_inputs[0] = tr_permute(g, back, g->shape.ndim);
    return TR_OK;
}

static tr_status check_order(const tr_tensor *x, const int *order, int n, tr_permute_attrs *attrs)
{
    unsigned seen = 0;
    if (n != x->shape.ndim)
        return tr__fail(TR_SHAPE, "permute: an order of %d dimensions for %s", n, TR__TEXT(x->shape));
    for (int i = 0; i < n; i++) {
        TR__TRY(tr__dim("permute", x->shape, order[i], &attrs->order[i]));
        if (seen >> attrs->order[i] & 1)
            return tr__fail(TR_INVALID, "permute: dimension %d of %s is named twice", order[i], TR__TEXT(x->shape));
        seen |= 1u << attrs->order[i];
    }
    return TR_OK;
}

tr_tensor *tr_permute(tr_tensor *x, const int *order, int n)
{
    TR__REQUIRE("permute", "input 0", x);
    if (n > 0 && !order) return tr__tensor_fail(TR_INVALID, "permute: the order is NULL");
    tr_permute_attrs attrs = {{0}};
    if (check_order(x, order, n, &attrs) != TR_OK) return tr__tensor_failed();
    return tr_apply(tr__op(permute), &attrs, &x, 1, NULL);
}

tr_tensor *tr_transpose(tr_tensor *x, int dim0, int dim1)
{
    TR__REQUIRE("transpose", "input 0", x);
    tr_permute_attrs attrs = {{0, 1, 2, 3, 4, 5, 6, 7}};
    int a, b;
    if (tr__dim("transpose", x->shape, dim0, &a) != TR_OK || tr__dim("transpose", x->shape, dim1, &b) != TR_OK)
        return tr__tensor_failed();
    attrs.order[a] = b;
    attrs.order[b] = a;
    return tr_apply(tr__op(permute), &attrs, &x, 1, NULL);
}

/* ---- expand ---------------------------------------------------------------------------------------------------- */

tr_status tr__expand_infer(tr_op_call *call)
{
    TR__TRY(tr__given(call, 0));
    const tr_tensor *x = call->inputs[0];
    tr_shape shape = ((const tr_view_attrs *)call->attrs)->shape, both = {0};
    if (!is_sound(shape) || tr__broadcast("expand", x->shape, shape, &both) != TR_OK || !tr__shape_equal(both, shape))
        return tr__fail(TR_SHAPE, "expand: %s does not broadcast to %s", TR__TEXT(x->shape),
            shape.ndim >= 0 && shape.ndim <= TR_MAX_DIMS ? TR__TEXT(shape) : "so many dimensions");
    int64_t stride[TR_MAX_DIMS];
    tr__broadcast_strides(x, shape, stride);
    return tr__output_made(call, 0, tr__tensor_view(x, shape, stride, x->offset));
}

TR__BACKWARD(expand, void, tr__sum_to(g, tr__input_shape(call, 0)))

tr_tensor *tr_expand(tr_tensor *x, tr_shape shape)
{
    return tr_apply(tr__op(expand), &(tr_view_attrs){shape}, &x, 1, NULL);
}

/* ---- slice ----------------------------------------------------------------------------------------------------- */

static tr_tensor *part_of(const tr_tensor *x, int dim, int64_t start, int64_t size)
{
    tr_shape shape = x->shape;
    shape.dim[dim] = size;
    return tr__tensor_view(x, shape, x->stride, x->offset + start * x->stride[dim]);
}

tr_status tr__slice_infer(tr_op_call *call)
{
    const tr_slice_attrs *attrs = call->attrs;
    return tr__output_made(call, 0, part_of(call->inputs[0], attrs->dim, attrs->start, attrs->end - attrs->start));
}

/* Zeros, with the gradient in the place of the slice. */
tr_status tr__slice_backward(tr_backward_call *call)
{
    const tr_slice_attrs *attrs = call->attrs;
    tr_tensor *g = call->grad_outputs[0];
    tr_tensor *dx = tr_zeros(tr__input_shape(call, 0), .dtype = g->dtype, .device = tr__device_of(g));
    TR__TRY(tr_copy_into(tr_slice(dx, attrs->dim, attrs->start, attrs->end), g));
    call->grad_inputs[0] = dx;
    return TR_OK;
}

static tr_status slice_of(const tr_tensor *x, int dim, int64_t start, int64_t end, tr_slice_attrs *attrs)
{
    TR__TRY(tr__dim("slice", x->shape, dim, &attrs->dim));
    int64_t size = x->shape.dim[attrs->dim];
    attrs->start = start < 0 ? start + size : start;
    attrs->end = end < 0 ? end + size : end;
    if (attrs->start >= 0 && attrs->start <= attrs->end && attrs->end <= size) return TR_OK;
    return tr__fail(TR_INVALID, "slice: %" PRId64 " to %" PRId64 " does not lie in dimension %d of %s", start, end, dim,
        TR__TEXT(x->shape));
}

tr_tensor *tr_slice(tr_tensor *x, int dim, int64_t start, int64_t end)
{
    TR__REQUIRE("slice", "input 0", x);
    tr_slice_attrs attrs = {0};
    if (slice_of(x, dim, start, end, &attrs) != TR_OK) return tr__tensor_failed();
    return tr_apply(tr__op(slice), &attrs, &x, 1, NULL);
}

/* ---- Dimensions of size 1 ----------------------------------------------------------------------------------------- */

tr_tensor *tr_unsqueeze(tr_tensor *x, int dim)
{
    TR__REQUIRE("unsqueeze", "input 0", x);
    tr_shape shape = {.ndim = x->shape.ndim + 1};
    int at = dim < 0 ? dim + shape.ndim : dim;
    if (at < 0 || at >= shape.ndim || shape.ndim > TR_MAX_DIMS)
        return tr__tensor_fail(TR_SHAPE, "unsqueeze: %s has no place for a dimension %d", TR__TEXT(x->shape), dim);
    for (int d = 0; d < shape.ndim; d++) shape.dim[d] = d == at ? 1 : x->shape.dim[d - (d > at)];
    return tr_reshape(x, shape);
}

/* x without dimension `at`, which has size 1 */
static tr_tensor *without_dim(tr_tensor *x, int at)
{
    tr_shape shape = {.ndim = x->shape.ndim - 1};
    for (int d = 0; d < shape.ndim; d++) shape.dim[d] = x->shape.dim[d + (d >= at)];
    return tr_reshape(x, shape);
}

tr_tensor *tr_squeeze(tr_tensor *x, int dim)
{
    TR__REQUIRE("squeeze", "input 0", x);
    int at;
    if (tr__dim("squeeze", x->shape, dim, &at) != TR_OK) return tr__tensor_failed();
    if (x->shape.dim[at] != 1)
        return tr__tensor_fail(TR_SHAPE, "squeeze: dimension %d of %s must have size 1", dim, TR__TEXT(x->shape));
    return without_dim(x, at);
}

tr_tensor *tr_select(tr_tensor *x, int dim, int64_t index)
{
    TR__REQUIRE("select", "input 0", x);
    int at;
    if (tr__dim("select", x->shape, dim, &at) != TR_OK) return tr__tensor_failed();
    int64_t size = x->shape.dim[at], from = index < 0 ? index + size : index;
    if (from < 0 || from >= size)
        return tr__tensor_fail(TR_INVALID, "select: no index %" PRId64 " in dimension %d of %s", index, dim, TR__TEXT(x->shape));
    return without_dim(tr_slice(x, at, from, from + 1), at);
}

tr_tensor *tr_flatten(tr_tensor *x, int first, int last)
{
    TR__REQUIRE("flatten", "input 0", x);
    int from, to;
    if (x->shape.ndim == 0) return tr_reshape(x, TR_SHAPE(1));
    if (tr__dim("flatten", x->shape, first, &from) != TR_OK || tr__dim("flatten", x->shape, last, &to) != TR_OK)
        return tr__tensor_failed();
    if (from > to)
        return tr__tensor_fail(TR_INVALID, "flatten: dimension %d of %s comes after dimension %d", first, TR__TEXT(x->shape), last);
    tr_shape shape = {.ndim = x->shape.ndim - (to - from)};
    for (int d = 0; d < shape.ndim; d++) shape.dim[d] = x->shape.dim[d <= from ? d : d + (to - from)];
    for (int d = from + 1; d <= to; d++) shape.dim[from] *= x->shape.dim[d];
    return tr_reshape(x, shape);
}

tr_tensor *tr_unflatten(tr_tensor *x, int dim, tr_shape sizes)
{
    TR__REQUIRE("unflatten", "input 0", x);
    int at;
    if (tr__dim("unflatten", x->shape, dim, &at) != TR_OK) return tr__tensor_failed();
    tr_shape shape = {.ndim = x->shape.ndim - 1 + sizes.ndim};
    if (sizes.ndim < 1 || sizes.ndim > TR_MAX_DIMS || shape.ndim > TR_MAX_DIMS)
        return tr__tensor_fail(TR_SHAPE, "unflatten: %d sizes for dimension %d of %s: a tensor has at most %d dimensions", sizes.ndim,
            dim, TR__TEXT(x->shape), TR_MAX_DIMS);
    int64_t known = 1, unknown = -1;
    for (int d = 0; d < sizes.ndim; d++) {
        if (sizes.dim[d] == -1 && unknown < 0) unknown = d;
        else if (sizes.dim[d] < 0 || __builtin_mul_overflow(known, sizes.dim[d], &known)) known = -1;
        if (known < 0) break;
    }
    int64_t size = x->shape.dim[at];
    if (known < 0 || (unknown < 0 ? known != size : known == 0 || size % known))
        return tr__tensor_fail(TR_SHAPE, "unflatten: dimension %d of %s does not divide into %s", dim, TR__TEXT(x->shape),
            TR__TEXT(sizes));
    if (unknown >= 0) sizes.dim[unknown] = size / known;
    for (int d = 0; d < shape.ndim; d++)
        shape.dim[d] = d < at ? x->shape.dim[d] : d < at + sizes.ndim ? sizes.dim[d - at] : x->shape.dim[d - sizes.ndim + 1];
    return tr_reshape(x, shape);
}

/* ---- split --------------------------------------------------------------------------------------------------------- */

tr_status tr__split_infer(tr_op_call *call)
{
    const tr_split_attrs *attrs = call->attrs;
    const tr_tensor *x = call->inputs[0];
    int64_t size = x->shape.dim[attrs->dim] / attrs->parts;
    for (int i = 0; i < attrs->parts; i++) TR__TRY(tr__output_made(call, i, part_of(x, attrs->dim, i * size, size)));
    return TR_OK;
}

/* The parts' gradients behind each other; a part that nobody used has zeros. */
tr_status tr__split_backward(tr_backward_call *call)
{
    const tr_split_attrs *attrs = call->attrs;
    tr_shape shape = tr__input_shape(call, 0);
    shape.dim[attrs->dim] /= attrs->parts;
    tr_tensor *grads[TR_OP_MAX_OUTPUTS];
    int used = 0;
    while (!call->grad_outputs[used]) used++; /* one has arrived, or this would not be called */
    tr_tensor *any = call->grad_outputs[used];
    for (int i = 0; i < attrs->parts; i++) {
        grads[i] = call->grad_outputs[i];
        if (!grads[i]) grads[i] = tr__zeros_like(any, shape);
    }
    call->grad_inputs[0] = tr_cat(grads, attrs->parts, attrs->dim);
    return TR_OK;
}

/* More parts than an op has outputs are slices, one by one. */
static tr_status split_in_slices(tr_tensor *x, int n, int dim, tr_tensor **parts)
{
    int64_t size = x->shape.dim[dim] / n;
    for (int i = 0; i < n; i++) {
        parts[i] = tr_slice(x, dim, i * size, (i + 1) * size);
        TR__TRY(tr_status_of(parts[i]));
    }
    return TR_OK;
}

tr_status tr_split_into(tr_tensor *x, int n, int dim, tr_tensor **parts, int room)
{
    if (room && n > room)
        return tr__fail(TR_INVALID, "split: %d parts, and the array has room for %d", n, room);
    if (!x) return tr__fail(TR_INVALID, "split: input 0 is NULL");
    TR__TRY(tr_status_of(x));
    tr_split_attrs attrs = {.parts = n};
    TR__TRY(tr__dim("split", x->shape, dim, &attrs.dim));
    if (n < 1 || x->shape.dim[attrs.dim] % n)
        return tr__fail(TR_SHAPE, "split: dimension %d of %s does not divide into %d parts", dim, TR__TEXT(x->shape),
                        n);
    if (n > TR_OP_MAX_OUTPUTS) return split_in_slices(x, n, attrs.dim, parts);
    return tr_status_of(tr_apply(tr__op(split), &attrs, &x, 1, parts));
}
