/* The modules for images: [batch, channels, height, width]. */
#include "nn/module.h"

#include <inttypes.h>

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
    if (!(o->init_std >= 0))
        return tr_module_fail(TR_INVALID, "conv2d: init_std must not be negative, it is %g", o->init_std);
    TR_SCOPE;
    tr_module *module = tr_module_new("conv2d", sizeof(conv2d), conv2d_forward);
    conv2d *c = tr_module_state(module);
    if (!c) return tr_escape(module);
    c->stride = o->stride;
    c->padding = o->padding;
    c->dilation = o->dilation;
    c->groups = o->groups;
    tr_shape shape = TR_SHAPE(o->out_channels, o->in_channels / groups, o->kernel, o->kernel);
    const tr__affine_start start = {.weight = shape, .out = o->out_channels, .fan_in = shape.dim[1] * o->kernel * o->kernel,
        .std = o->init_std, .no_bias = o->no_bias, .seed = o->seed, .dtype = o->dtype};
    tr__init_affine(module, &start, &c->weight, &c->bias);
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

tr_module *tr_avg_pool2d_layer_with(const tr_pool2d_layer_options *options)
{
    return pool2d_new("avg_pool2d", options, tr_avg_pool2d_with);
}

typedef struct adaptive_pool2d {
    int64_t height, width; /* of the output */
} adaptive_pool2d;

static tr_tensor *adaptive_avg_pool2d_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    const adaptive_pool2d *p = self->state;
    tr_tensor *failed = tr__check_input(self, inputs, n);
    return failed ? failed : tr_adaptive_avg_pool2d(inputs[0], p->height, p->width);
}

tr_module *tr_adaptive_avg_pool2d_layer(int64_t height, int64_t width)
{
    if (height < 1 || width < 1)
        return tr_module_fail(TR_INVALID, "adaptive_avg_pool2d: height and width must be positive, not %" PRId64 " and %" PRId64,
            height, width);
    tr_module *module = tr_module_new("adaptive_avg_pool2d", sizeof(adaptive_pool2d), adaptive_avg_pool2d_forward);
    adaptive_pool2d *p = tr_module_state(module);
    if (p) *p = (adaptive_pool2d){height, width};
    return module;
}

/* ---- Batch norm ------------------------------------------------------------------------------------------------------- */

typedef struct batch_norm {
    tr_tensor *weight, *bias, *running_mean, *running_var; /* [channels] */
    tr_tensor *batches; /* i64 [] */
    double eps, momentum;
    tr__normalizer *normalize; /* in training; NULL: over the batch that is here */
    void *user;                /* for normalize; a reference */
} batch_norm;

static tr_status count_batch(tr_tensor *batches)
{
    TR_SCOPE;
    TR_NO_GRAD;
    return tr_copy_into(batches, tr_add(batches, tr_ones(TR_SCALAR, .dtype = TR_I64, .device = tr_device_of(batches))));
}

/* x: [batch, channels, height, width] -> the same shape */
static tr_tensor *batch_norm2d_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    const batch_norm *b = self->state;
    tr_tensor *failed = tr__check_input(self, inputs, n);
    if (failed) return failed;
    tr_tensor *x = inputs[0];
    if (tr_ndim(x) != 4)
        return tr_tensor_fail(TR_SHAPE, "x is %s: it must be [batch, channels, height, width]", TR__TEXT(tr_shape_of(x)));
    const tr_batch_norm_op_options options = {.size = sizeof options, .x = x, .weight = b->weight, .bias = b->bias,
        .running_mean = b->running_mean, .running_var = b->running_var, .training = !self->evaluating,
        .momentum = b->momentum, .eps = b->eps};
    bool other = b->normalize && !self->evaluating;
    tr_tensor *y = other ? b->normalize(&options, b->user) : tr_batch_norm_op_with(&options);
    if (self->evaluating || tr__bad(y) || tr_recomputing()) return y;
    return count_batch(b->batches) == TR_OK ? y : tr__tensor_failed();
}

tr_module *tr_batch_norm2d_with(const tr_batch_norm2d_options *o)
{
    if (o->channels < 1)
        return tr_module_fail(TR_INVALID, "batch_norm2d: channels must be positive, not %" PRId64, o->channels);
    if (!(o->eps >= 0) || !(o->momentum >= 0 && o->momentum <= 1))
        return tr_module_fail(TR_INVALID, "batch_norm2d: eps must not be negative and momentum in 0 … 1, they are %g and %g",
            o->eps, o->momentum);
    TR_SCOPE;
    tr_module *module = tr_module_new("batch_norm2d", sizeof(batch_norm), batch_norm2d_forward);
    batch_norm *b = tr_module_state(module);
    if (!b) return tr_escape(module);
    tr_shape shape = TR_SHAPE(o->channels);
    tr_dtype statistics = o->dtype == TR_F64 ? TR_F64 : TR_F32;
    b->eps = o->eps;
    b->momentum = o->momentum;
    b->weight = tr_module_parameter(module, "weight", tr_ones(shape, .dtype = o->dtype));
    b->bias = tr_module_parameter(module, "bias", tr_zeros(shape, .dtype = o->dtype));
    b->running_mean = tr_module_buffer(module, "running_mean", tr_zeros(shape, .dtype = statistics));
    b->running_var = tr_module_buffer(module, "running_var", tr_ones(shape, .dtype = statistics));
    b->batches = tr_module_buffer(module, "num_batches_tracked", tr_zeros(TR_SCALAR, .dtype = TR_I64));
    return tr_escape(module);
}

static void batch_norm_finish(tr_module *module)
{
    tr_release(((batch_norm *)module->state)->user);
}

void tr__batch_norm_replace(tr_module *module, tr__normalizer *normalize, void *user)
{
    if (module->forward != batch_norm2d_forward) return;
    batch_norm *b = module->state;
    void *before = b->user;
    b->normalize = normalize;
    b->user = tr_keep(user);
    tr_release(before);
    module->finish = batch_norm_finish;
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
