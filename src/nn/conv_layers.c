/* Convolutions as modules: of images and sequences, and transposed ones. */
#include "nn/module.h"

#include "base/given.h"

#include <inttypes.h>

typedef struct conv {
    tr_tensor *weight, *bias; /* [out, in/groups, kernel…], transposed [in, out/groups, kernel…]; [out] or NULL */
    int stride, padding, output_padding, dilation, groups;
    tr_tensor *(*run)(const tr_conv2d_op_options *options);
    tr_tensor *(*run_transposed)(const tr_conv_transpose2d_op_options *options); /* or this one */
} conv;

/* x: [batch, in, …] -> [batch, out, …] */
static tr_tensor *conv_forward(tr_module *self, tr_tensor *x)
{
    const conv *c = self->state;
    if (c->run)
        return c->run(&(tr_conv2d_op_options){.size = sizeof(tr_conv2d_op_options), .x = x, .weight = c->weight,
            .bias = c->bias, .stride = c->stride, .padding = c->padding, .dilation = c->dilation, .groups = c->groups});
    return c->run_transposed(&(tr_conv_transpose2d_op_options){.size = sizeof(tr_conv_transpose2d_op_options), .x = x,
        .weight = c->weight, .bias = c->bias, .stride = c->stride, .padding = c->padding,
        .output_padding = c->output_padding, .dilation = c->dilation, .groups = c->groups});
}

/* The options of all of them. */
typedef tr_conv_transpose2d_options conv_options;

static tr_status check(const char *name, const conv_options *o, int64_t groups)
{
    if (o->in_channels < 1 || o->out_channels < 1 || o->kernel < 1)
        return tr__fail(TR_INVALID, "%s: in_channels, out_channels and kernel must be positive, not %" PRId64 ", %" PRId64
            " and %d", name, o->in_channels, o->out_channels, o->kernel);
    if (groups < 1 || o->in_channels % groups || o->out_channels % groups)
        return tr__fail(TR_INVALID, "%s: groups must divide in_channels and out_channels: %" PRId64 " does not divide %" PRId64
            " and %" PRId64, name, groups, o->in_channels, o->out_channels);
    int stride = TR__OR(o, stride, 1), dilation = TR__OR(o, dilation, 1);
    if (stride < 1 || dilation < 1 || o->padding < 0 || o->output_padding < 0)
        return tr__fail(TR_INVALID, "%s: stride and dilation must be positive, padding and output_padding not negative: %d, %d, "
            "%d, %d", name, stride, dilation, o->padding, o->output_padding);
    if (!(o->init_std >= 0))
        return tr__fail(TR_INVALID, "%s: init_std must not be negative, it is %g", name, o->init_std);
    return TR_OK;
}

/* kind: what of the state is a kind's own. */
static tr_module *conv_new(const char *name, int dims, conv kind, const conv_options *o)
{
    int64_t groups = TR__OR(o, groups, 1);
    if (check(name, o, groups) != TR_OK) return tr__object_failed(&tr__module_type);
    TR_SCOPE;
    tr_module *module = tr__layer_new(name, sizeof(conv), conv_forward);
    conv *c = tr_module_state(module);
    if (!c) return tr_escape(module);
    *c = kind;
    c->stride = TR__OR(o, stride, 1);
    c->padding = o->padding;
    c->output_padding = o->output_padding;
    c->dilation = TR__OR(o, dilation, 1);
    c->groups = (int)groups;
    tr_module_detail(module, "stride %d, padding %d and %d, dilation %d, groups %d", c->stride, c->padding, c->output_padding,
        c->dilation, c->groups);
    tr_shape shape = TR_SHAPE(o->out_channels, o->in_channels / groups);
    if (kind.run_transposed) shape = TR_SHAPE(o->in_channels, o->out_channels / groups);
    int64_t fan_in = shape.dim[1];
    for (int d = 0; d < dims; d++) {
        shape.dim[shape.ndim++] = o->kernel;
        fan_in *= o->kernel;
    }
    const tr__affine_start start = {.weight = shape, .out = o->out_channels, .fan_in = fan_in,
        .normal = TR__GIVEN(o, init_std), .std = o->init_std, .no_bias = o->no_bias, .seed = tr__seed_of(o, o->seed),
        .dtype = o->dtype};
    tr__init_affine(module, &start, &c->weight, &c->bias);
    return tr_escape(module);
}

static conv_options without_output_padding(const tr_conv2d_options *o)
{
    return (conv_options){.given = o->given, .in_channels = o->in_channels, .out_channels = o->out_channels, .kernel = o->kernel,
        .stride = o->stride, .padding = o->padding, .dilation = o->dilation, .groups = o->groups, .no_bias = o->no_bias,
        .init_std = o->init_std, .seed = o->seed, .dtype = o->dtype};
}

tr_module *tr_conv2d_with(const tr_conv2d_options *options)
{
    const conv_options o = without_output_padding(options);
    return conv_new("conv2d", 2, (conv){.run = tr_conv2d_op_with}, &o);
}

tr_module *tr_conv1d_with(const tr_conv1d_options *options)
{
    const conv_options o = without_output_padding(options);
    return conv_new("conv1d", 1, (conv){.run = tr_conv1d_op_with}, &o);
}

tr_module *tr_conv_transpose2d_with(const tr_conv_transpose2d_options *options)
{
    return conv_new("conv_transpose2d", 2, (conv){.run_transposed = tr_conv_transpose2d_op_with}, options);
}

tr_module *tr_conv_transpose1d_with(const tr_conv_transpose1d_options *options)
{
    return conv_new("conv_transpose1d", 1, (conv){.run_transposed = tr_conv_transpose1d_op_with}, options);
}
