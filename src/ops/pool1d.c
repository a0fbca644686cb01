/* Pooling of sequences, [batch, channels, length]: that of images of height 1. */
#include "ops/pool.h"
#include "ops/sequences.h"

#include <inttypes.h>

/* NULL when x is sequences of some length; else the tensor in error to return. */
static tr_tensor *check(const char *name, tr_tensor *x)
{
    TR__REQUIRE(name, "x", x);
    if (x->shape.ndim != 3)
        return tr__tensor_fail(TR_SHAPE, "%s: x is %s: it must be [batch, channels, length]", name, TR__TEXT(x->shape));
    if (x->shape.dim[2] < 1) return tr__tensor_fail(TR_SHAPE, "%s: the length of x %s is 0", name, TR__TEXT(x->shape));
    return NULL;
}

static tr_tensor *pool(const char *name, const tr_op *op, const tr_pool1d_options *o)
{
    tr_tensor *failed = check(name, o->x);
    if (failed) return failed;
    tr_pool2d_attrs attrs = tr__pool2d_attrs_of(o);
    if (attrs.kernel < 1 || attrs.stride < 1 || attrs.padding < 0 || attrs.padding > attrs.kernel / 2)
        return tr__tensor_fail(TR_INVALID, "%s: kernel %d and stride %d must be positive, padding %d 0 to half the kernel", name,
            attrs.kernel, attrs.stride, attrs.padding);
    if (o->x->shape.dim[2] + 2 * (int64_t)attrs.padding < attrs.kernel)
        return tr__tensor_fail(TR_SHAPE, "%s: a window of %d does not fit into x %s, with padding %d", name, attrs.kernel,
            TR__TEXT(o->x->shape), attrs.padding);
    attrs.line = true;
    return tr__as_sequence(tr__pool2d_apply(op, tr__as_image(o->x), attrs));
}

tr_tensor *tr_max_pool1d_with(const tr_pool1d_options *options)
{
    return pool("max_pool1d", tr__op(max_pool2d), options);
}

tr_tensor *tr_avg_pool1d_with(const tr_pool1d_options *options)
{
    return pool("avg_pool1d", tr__op(avg_pool2d), options);
}

static tr_tensor *adaptive(const char *name, tr_tensor *x, int64_t length,
    tr_tensor *(*of_images)(tr_tensor *x, int64_t height, int64_t width))
{
    tr_tensor *failed = check(name, x);
    if (failed) return failed;
    if (length < 1) return tr__tensor_fail(TR_INVALID, "%s: the length must be positive, not %" PRId64, name, length);
    return tr__as_sequence(of_images(tr__as_image(x), 1, length));
}

tr_tensor *tr_adaptive_avg_pool1d(tr_tensor *x, int64_t length)
{
    return adaptive("adaptive_avg_pool1d", x, length, tr_adaptive_avg_pool2d);
}

tr_tensor *tr_adaptive_max_pool1d(tr_tensor *x, int64_t length)
{
    return adaptive("adaptive_max_pool1d", x, length, tr_adaptive_max_pool2d);
}
