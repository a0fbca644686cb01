/* The modules for images, [batch, channels, height, width], and sequences, [batch, channels, length], but for convolutions. */
#include "nn/module.h"

#include "base/given.h"
#include "ops/batch_norm.h"

#include <inttypes.h>

/* ---- Pooling --------------------------------------------------------------------------------------------------------- */

typedef struct pool2d {
    tr_pool2d_options options;
    tr_tensor *(*function)(const tr_pool2d_options *options);
} pool2d;

static tr_tensor *pool2d_forward(tr_module *self, tr_tensor *x)
{
    const pool2d *p = self->state;
    tr_pool2d_options options = p->options;
    options.x = x;
    return p->function(&options);
}

static tr_module *pool2d_new(const char *name, const tr_pool2d_layer_options *o,
    tr_tensor *(*function)(const tr_pool2d_options *options))
{
    int stride = TR__OR(o, stride, o->kernel);
    if (o->kernel < 1 || stride < 1 || o->padding < 0 || o->padding > o->kernel / 2)
        return tr_module_fail(TR_INVALID, "%s: kernel %d and stride %d must be positive, padding %d at most half the kernel",
            name, o->kernel, stride, o->padding);
    const pool2d state = {{.size = sizeof state.options, .kernel = o->kernel, .stride = stride, .padding = o->padding}, function};
    tr_module *module = tr__layer_of(name, &state, sizeof state, pool2d_forward);
    tr_module_detail(module, "kernel %d, stride %d, padding %d", o->kernel, stride, o->padding);
    return module;
}

#define POOL(name)                                                             \
    tr_module *tr_##name##_layer_with(const tr_pool2d_layer_options *options)  \
    {                                                                          \
        return pool2d_new(#name, options, tr_##name##_with);                   \
    }
POOL(max_pool2d)
POOL(avg_pool2d)
POOL(max_pool1d)
POOL(avg_pool1d)

typedef struct adaptive_pool {
    int64_t height, width; /* of the output */
    tr_tensor *(*of_images)(tr_tensor *x, int64_t height, int64_t width);
    tr_tensor *(*of_sequences)(tr_tensor *x, int64_t length); /* or this one */
} adaptive_pool;

static tr_tensor *adaptive_pool_forward(tr_module *self, tr_tensor *x)
{
    const adaptive_pool *p = self->state;
    return p->of_images ? p->of_images(x, p->height, p->width) : p->of_sequences(x, p->width);
}

static tr_module *adaptive_pool_new(const char *name, adaptive_pool state)
{
    if (state.height < 1 || state.width < 1)
        return tr_module_fail(TR_INVALID, "%s: the output's sizes must be positive, not %" PRId64 " and %" PRId64, name, state.height,
            state.width);
    tr_module *module = tr__layer_of(name, &state, sizeof state, adaptive_pool_forward);
    tr_module_detail(module, "%" PRId64 " x %" PRId64, state.height, state.width);
    return module;
}

tr_module *tr_adaptive_avg_pool2d_layer(int64_t height, int64_t width)
{
    return adaptive_pool_new("adaptive_avg_pool2d", (adaptive_pool){height, width, tr_adaptive_avg_pool2d, NULL});
}

tr_module *tr_adaptive_max_pool2d_layer(int64_t height, int64_t width)
{
    return adaptive_pool_new("adaptive_max_pool2d", (adaptive_pool){height, width, tr_adaptive_max_pool2d, NULL});
}

tr_module *tr_adaptive_avg_pool1d_layer(int64_t length)
{
    return adaptive_pool_new("adaptive_avg_pool1d", (adaptive_pool){1, length, NULL, tr_adaptive_avg_pool1d});
}

tr_module *tr_adaptive_max_pool1d_layer(int64_t length)
{
    return adaptive_pool_new("adaptive_max_pool1d", (adaptive_pool){1, length, NULL, tr_adaptive_max_pool1d});
}

/* ---- Another size -------------------------------------------------------------------------------------------------------- */

static tr_tensor *interpolate_forward(tr_module *self, tr_tensor *x)
{
    tr_interpolate_options options = *(const tr_interpolate_options *)self->state;
    options.x = x;
    return tr_interpolate_with(&options);
}

tr_module *tr_interpolate_layer_with(const tr_interpolate_layer_options *o)
{
    if (!(o->scale >= 0) || o->height < 0 || o->width < 0 || (o->scale > 0) == (o->width > 0))
        return tr_module_fail(TR_INVALID, "interpolate: it takes a scale above 0, or the sizes of the result: they are %g, %" PRId64
            " and %" PRId64, o->scale, o->height, o->width);
    const tr_interpolate_options options = {.size = sizeof options, .height = o->height, .width = o->width, .scale = o->scale,
        .mode = o->mode, .align_corners = o->align_corners};
    tr_module *module = tr__layer_of("interpolate", &options, sizeof options, interpolate_forward);
    tr_module_detail(module, "scale %.9g, %" PRId64 " x %" PRId64 ", mode %d%s", o->scale, o->height, o->width, (int)o->mode,
        o->align_corners ? ", corners aligned" : "");
    return module;
}

/* ---- Batch norm ------------------------------------------------------------------------------------------------------- */

typedef struct batch_norm {
    tr_tensor *weight, *bias, *running_mean, *running_var; /* [channels] */
    tr_tensor *batches; /* i64 [] */
    double eps, momentum;
    bool of_images;            /* else of [batch, channels] or sequences */
    bool relu;
    tr__normalizer *normalize; /* in training; NULL: over the batch that is here */
    void *user;                /* for normalize; a reference */
} batch_norm;

/* x, residual?: [batch, channels, …] -> the same shape */
static tr_tensor *batch_norm_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    const batch_norm *b = self->state;
    bool evaluating = tr__evaluates(self);
    if (n < 1 || n > 2 || !inputs[0]) return tr__missing_input(self, n == 2 ? 1 : n);
    tr_tensor *x = inputs[0], *residual = n == 2 ? inputs[1] : NULL;
    if (b->of_images ? tr_ndim(x) != 4 : tr_ndim(x) != 2 && tr_ndim(x) != 3)
        return tr_tensor_fail(TR_SHAPE, "x is %s: it must be %s", TR__TEXT(tr_shape_of(x)),
            b->of_images ? "[batch, channels, height, width]" : "[batch, channels] or [batch, channels, length]");
    const tr_batch_norm_op_options options = {.size = sizeof options, .x = x, .weight = b->weight, .bias = b->bias,
        .running_mean = b->running_mean, .running_var = b->running_var, .training = !evaluating,
        .momentum = b->momentum, .eps = b->eps, .residual = residual, .relu = b->relu};
    if (!b->normalize || evaluating) return tr__batch_norm(&options, b->batches);
    tr_tensor *y = b->normalize(&options, b->user);
    if (tr__bad(y) || tr_recomputing()) return y;
    return tr__batch_norm_count(b->batches) == TR_OK ? y : tr__tensor_failed();
}

static tr_module *batch_norm_new(const char *name, bool of_images, const tr_batch_norm2d_options *o)
{
    if (o->channels < 1)
        return tr_module_fail(TR_INVALID, "%s: channels must be positive, not %" PRId64, name, o->channels);
    if (!(o->eps >= 0) || !(o->momentum >= 0 && o->momentum <= 1))
        return tr_module_fail(TR_INVALID, "%s: eps must not be negative and momentum in 0 … 1, they are %g and %g", name,
            o->eps, o->momentum);
    TR_SCOPE;
    tr_module *module = tr_module_new(name, sizeof(batch_norm), batch_norm_forward);
    batch_norm *b = tr_module_state(module);
    if (!b) return tr_escape(module);
    tr_shape shape = TR_SHAPE(o->channels);
    tr_dtype statistics = o->dtype == TR_F64 ? TR_F64 : TR_F32;
    b->of_images = of_images;
    b->eps = TR__PASS(o, eps);
    b->momentum = TR__PASS(o, momentum);
    b->relu = o->relu;
    tr_module_detail(module, "eps %.9g, momentum %.9g%s", b->eps, b->momentum, b->relu ? ", relu" : "");
    b->weight = tr_module_parameter(module, "weight", tr_ones(shape, .dtype = o->dtype));
    b->bias = tr_module_parameter(module, "bias", tr_zeros(shape, .dtype = o->dtype));
    b->running_mean = tr_module_buffer(module, "running_mean", tr_zeros(shape, .dtype = statistics));
    b->running_var = tr_module_buffer(module, "running_var", tr_ones(shape, .dtype = statistics));
    b->batches = tr_module_buffer(module, "num_batches_tracked", tr_zeros(TR_SCALAR, .dtype = TR_I64));
    return tr_escape(module);
}

tr_module *tr_batch_norm2d_with(const tr_batch_norm2d_options *options)
{
    return batch_norm_new("batch_norm2d", true, options);
}

tr_module *tr_batch_norm1d_with(const tr_batch_norm1d_options *options)
{
    return batch_norm_new("batch_norm1d", false, options);
}

static void batch_norm_release(void *state)
{
    tr_release(((batch_norm *)state)->user);
}

bool tr__batch_norm_replace(tr_module *module, tr__normalizer *normalize, void *user)
{
    if (module->forward != batch_norm_forward) return false;
    batch_norm *b = module->state;
    void *before = b->user;
    b->normalize = normalize;
    b->user = tr_keep(user);
    tr_release(before);
    tr_module_on_release(module, batch_norm_release);
    tr_module_detail(module, "eps %.9g, momentum %.9g%s, over several ranks", b->eps, b->momentum, b->relu ? ", relu" : "");
    return true;
}

/* ---- Flatten --------------------------------------------------------------------------------------------------------- */

static tr_tensor *flatten_forward(tr_module *self, tr_tensor *x)
{
    (void)self;
    tr_shape shape = tr_shape_of(x);
    if (shape.ndim < 1) return tr_tensor_fail(TR_SHAPE, "flatten: x is a scalar: it must be [batch, …]");
    int64_t rest = 1;
    for (int d = 1; d < shape.ndim; d++) rest *= shape.dim[d];
    return tr_reshape(x, TR_SHAPE(shape.dim[0], rest));
}

tr_module *tr_flatten_layer(void)
{
    return tr__layer_new("flatten", 0, flatten_forward);
}

/* ---- Unflatten ------------------------------------------------------------------------------------------------------- */

typedef struct unflatten {
    int dim;
    tr_shape shape;
} unflatten;

static tr_tensor *unflatten_forward(tr_module *self, tr_tensor *x)
{
    const unflatten *u = self->state;
    return tr_unflatten(x, u->dim, u->shape);
}

tr_module *tr_unflatten_layer(int dim, tr_shape shape)
{
    tr_module *module = tr__layer_of("unflatten", &(unflatten){dim, shape}, sizeof(unflatten), unflatten_forward);
    tr_module_detail(module, "dimension %d to %s", dim, TR__TEXT(shape));
    return module;
}
