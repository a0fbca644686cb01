/* The modules for images: [batch, channels, height, width]. */
#include "nn/module.h"

#include "base/rng.h"

#include <inttypes.h>
#include <math.h>

/* ---- Convolution --------------------------------------------------------------------------------------------------- */

typedef struct conv2d {
    tr_tensor *weight, *bias; /* [out, in/groups, kernel, kernel]; [out] or NULL */
    int stride, padding, dilation, groups;
} conv2d;

/* x: [batch, in, height, width] -> [batch, out, …] */
static tr_tensor *conv2d_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    const conv2d *c = self->state;
    tr_tensor *failed = tr__check_input(self, inputs, n);
    if (failed) return failed;
    return tr_conv2d_op(inputs[0], c->weight, .bias = c->bias, .stride = c->stride, .padding = c->padding,
        .dilation = c->dilation, .groups = c->groups);
}

tr_module *tr_conv2d_with(const tr_conv2d_options *o)
{
    int64_t groups = o->groups ? o->groups : 1;
    if (o->in_channels < 1 || o->out_channels < 1 || o->kernel < 1)
        return tr_module_fail(TR_INVALID, "conv2d: in_channels, out_channels and kernel must be positive, not %" PRId64
            ", %" PRId64 " and %d", o->in_channels, o->out_channels, o->kernel);
    if (groups < 1 || o->in_channels % groups || o->out_channels % groups)
        return tr_module_fail(TR_INVALID, "conv2d: groups must divide in_channels and out_channels: %" PRId64
            " does not divide %" PRId64 " and %" PRId64, groups, o->in_channels, o->out_channels);
    if (o->stride < 0 || o->padding < 0 || o->dilation < 0)
        return tr_module_fail(TR_INVALID, "conv2d: stride, padding and dilation must not be negative: %d, %d, %d", o->stride,
            o->padding, o->dilation);
    TR_SCOPE;
    tr_module *module = tr_module_new("conv2d", sizeof(conv2d), conv2d_forward);
    conv2d *c = tr_module_state(module);
    if (!c) return tr_escape(module);
    c->stride = o->stride;
    c->padding = o->padding;
    c->dilation = o->dilation;
    c->groups = o->groups;
    tr_shape shape = TR_SHAPE(o->out_channels, o->in_channels / groups, o->kernel, o->kernel);
    double bound = 1 / sqrt((double)(shape.dim[1] * o->kernel * o->kernel)); /* Kaiming's uniform with a = sqrt(5) */
    c->weight = tr_module_parameter(module, "weight", tr__init_uniform(shape, o->dtype, tr__mix(o->seed, 0), bound));
    if (!o->no_bias)
        c->bias = tr_module_parameter(module, "bias",
            tr__init_uniform(TR_SHAPE(o->out_channels), o->dtype, tr__mix(o->seed, 1), bound));
    return tr_escape(module);
}

/* ---- Pooling --------------------------------------------------------------------------------------------------------- */

typedef struct pool2d {
    tr_pool2d_options options;
    tr_tensor *(*function)(const tr_pool2d_options *options);
} pool2d;

static tr_tensor *pool2d_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    const pool2d *p = self->state;
    tr_tensor *failed = tr__check_input(self, inputs, n);
    if (failed) return failed;
    tr_pool2d_options options = p->options;
    options.x = inputs[0];
    return p->function(&options);
}

static tr_module *pool2d_new(const char *name, const tr_pool2d_layer_options *o,
    tr_tensor *(*function)(const tr_pool2d_options *options))
{
    if (o->kernel < 1 || o->stride < 0 || o->padding < 0 || o->padding > o->kernel / 2)
        return tr_module_fail(TR_INVALID, "%s: kernel %d must be positive, stride %d not negative, padding %d at most half the "
            "kernel", name, o->kernel, o->stride, o->padding);
    tr_module *module = tr_module_new(name, sizeof(pool2d), pool2d_forward);
    pool2d *p = tr_module_state(module);
    if (p) *p = (pool2d){{sizeof p->options, NULL, o->kernel, o->stride, o->padding}, function};
    return module;
}

tr_module *tr_max_pool2d_layer_with(const tr_pool2d_layer_options *options)
{
    return pool2d_new("max_pool2d", options, tr_max_pool2d_with);
}

/* ---- Flatten --------------------------------------------------------------------------------------------------------- */

static tr_tensor *flatten_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    tr_tensor *failed = tr__check_input(self, inputs, n);
    if (failed) return failed;
    tr_shape shape = tr_shape_of(inputs[0]);
    if (shape.ndim < 1) return tr_tensor_fail(TR_SHAPE, "flatten: x is a scalar: it must be [batch, …]");
    int64_t rest = 1;
    for (int d = 1; d < shape.ndim; d++) rest *= shape.dim[d];
    return tr_reshape(inputs[0], TR_SHAPE(shape.dim[0], rest));
}

tr_module *tr_flatten_layer(void)
{
    return tr_module_new("flatten", 0, flatten_forward);
}
