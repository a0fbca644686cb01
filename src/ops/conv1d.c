/*
 * Convolutions of sequences, [batch, channels, length]: those of images of height 1. Padding applies to the length alone, so
 * conv2d cannot do it: x is padded with zeros first, and what a transposed convolution's padding removes is sliced off.
 */
#include "base/given.h"
#include "ops/conv.h"
#include "ops/sequences.h"

#include <inttypes.h>

/* The arguments of both. */
typedef struct line {
    const char *name;
    tr_tensor *x, *weight, *bias;
    int stride, padding, dilation, groups;
    bool transposed;
} line;

/* Checked here: the messages of conv2d would show the shapes of images, which the user did not pass. */
static tr_status check_dtypes(const line *a)
{
    const tr_tensor *x = a->x, *others[] = {a->weight, a->bias};
    if (!tr_dtype_is_float(x->dtype))
        return tr__fail(TR_DTYPE, "%s: x is %s %s: it takes floats (see tr_cast)", a->name, tr_dtype_name(x->dtype),
            TR__TEXT(x->shape));
    for (int i = 0; i < 2; i++) {
        if (!others[i] || others[i]->dtype == x->dtype) continue;
        tr_dtype dtype = others[i]->dtype;
        bool made_alike = x->dtype != TR_F64 && dtype != TR_F64 && tr_dtype_is_float(dtype); /* by autocast */
        if (tr_autocast() != TR_F32 && made_alike) continue;
        return tr__fail(TR_DTYPE, "%s: dtypes differ: %s %s and %s %s", a->name, tr_dtype_name(x->dtype),
            TR__TEXT(x->shape), tr_dtype_name(dtype), TR__TEXT(others[i]->shape));
    }
    return TR_OK;
}

/* NULL when the arguments are valid; else the tensor in error to return. */
static tr_tensor *check(const line *a)
{
    TR__REQUIRE(a->name, "x", a->x);
    TR__REQUIRE(a->name, "weight", a->weight);
    if (a->bias && tr__bad(a->bias)) return tr__tensor_pass(a->bias);
    const tr_conv2d_attrs attrs = {
        .stride = a->stride, .padding = a->padding, .dilation = a->dilation, .groups = a->groups};
    if (tr__conv_check(a->name, &attrs) != TR_OK || check_dtypes(a) != TR_OK) return tr__tensor_failed();
    if (tr__conv_check_shapes(a->name, a->x, a->weight, a->bias, a->groups, 1, a->transposed) != TR_OK)
        return tr__tensor_failed();
    tr_shape x = a->x->shape, weight = a->weight->shape;
    if (!a->transposed && x.dim[2] + 2 * (int64_t)a->padding < (weight.dim[2] - 1) * a->dilation + 1)
        return tr__tensor_fail(TR_SHAPE, "%s: the kernel of weight %s does not fit into x %s, with padding %d and dilation %d",
            a->name, TR__TEXT(weight), TR__TEXT(x), a->padding, a->dilation);
    return NULL;
}

static tr_tensor *padded(tr_tensor *x, int64_t before, int64_t after)
{
    return before || after ? tr_pad(x, .before = {0, 0, 0, before}, .after = {0, 0, 0, after}) : x;
}

tr_tensor *tr_conv1d_op_with(const tr_conv1d_op_options *o)
{
    const line a = {"conv1d", o->x, o->weight, o->bias, TR__OR(o, stride, 1), o->padding, TR__OR(o, dilation, 1),
        TR__OR(o, groups, 1), false};
    tr_tensor *failed = check(&a);
    if (failed) return failed;
    return tr__as_sequence(tr_conv2d_op(padded(tr__as_image(a.x), a.padding, a.padding), tr__as_image(a.weight), .bias = a.bias,
        .stride = a.stride, .dilation = a.dilation, .groups = a.groups));
}

tr_tensor *tr_conv_transpose1d_op_with(const tr_conv_transpose1d_op_options *o)
{
    const line a = {"conv_transpose1d", o->x, o->weight, o->bias, TR__OR(o, stride, 1), o->padding,
        TR__OR(o, dilation, 1), TR__OR(o, groups, 1), true};
    tr_tensor *failed = check(&a);
    if (failed) return failed;
    int64_t most = a.stride > a.dilation ? a.stride : a.dilation, extra = o->output_padding, kernel = a.weight->shape.dim[2];
    if (extra < 0 || extra >= most)
        return tr__tensor_fail(TR_INVALID, "conv_transpose1d: output_padding %" PRId64 " must not be negative, and smaller than "
            "stride %d or dilation %d", extra, a.stride, a.dilation);
    int64_t length = (a.x->shape.dim[2] - 1) * a.stride - 2 * (int64_t)a.padding + (kernel - 1) * a.dilation + 1 + extra;
    if (kernel < 1 || length < 1)
        return tr__tensor_fail(TR_SHAPE, "conv_transpose1d: nothing is left of x %s by weight %s, with padding %d",
            TR__TEXT(a.x->shape), TR__TEXT(a.weight->shape), a.padding);
    /* Zeros that bring it in reach. NOLINTNEXTLINE(clang-analyzer-core.DivideZero): check() has refused a stride of 0 */
    int64_t beyond = extra > a.padding ? (extra - a.padding + a.stride - 1) / a.stride : 0;
    tr_tensor *y = tr_conv_transpose2d_op(padded(tr__as_image(a.x), 0, beyond), tr__as_image(a.weight), .bias = a.bias,
        .stride = a.stride, .dilation = a.dilation, .groups = a.groups);
    if (!tr__bad(y) && y->shape.dim[3] != length) y = tr_slice(y, 3, a.padding, a.padding + length);
    return tr__as_sequence(y);
}
