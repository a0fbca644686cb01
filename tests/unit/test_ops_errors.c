/* What does not fit: every op answers with a tensor in error whose message says what, with which values; never a crash.
 */
#include <trireme/trireme.h>

#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void expect(tr_tensor *t, tr_status status, const char *message)
{
    assert_non_null(t);
    assert_string_equal(tr_status_name(tr_status_of(t)), tr_status_name(status));
    if (!strstr(tr_error_message(), message)) fail_msg("\"%s\" does not say \"%s\"", tr_error_message(), message);
    /* An error passes through whatever takes it. */
    assert_int_equal(tr_status_of(tr_sum(tr_add(tr_gelu(t), t))), status);
    assert_non_null(strstr(tr_error_message(), message));
}

static tr_tensor *ones(tr_shape shape)
{
    return tr_ones(shape);
}

static void shapes_that_do_not_broadcast(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *a = ones(TR_SHAPE(2, 3)), *b = ones(TR_SHAPE(4));
    expect(tr_add(a, b), TR_SHAPE, "add: shapes do not broadcast: [2, 3] and [4]");
    expect(tr_sub(a, b), TR_SHAPE, "sub: shapes do not broadcast");
    expect(tr_mul(a, b), TR_SHAPE, "mul: shapes do not broadcast");
    expect(tr_div(a, b), TR_SHAPE, "div: shapes do not broadcast");
    expect(tr_maximum(a, b), TR_SHAPE, "maximum: shapes do not broadcast");
    expect(tr_minimum(a, b), TR_SHAPE, "minimum: shapes do not broadcast");
}

static void dtypes_that_do_not_fit(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = ones(TR_SHAPE(2)), *d = tr_ones(TR_SHAPE(2), .dtype = TR_F64),
              *i = tr_ones(TR_SHAPE(2), .dtype = TR_I64);
    expect(tr_add(x, d), TR_DTYPE, "add: dtypes differ: f32 [2] and f64 [2]");
    expect(tr_div(i, i), TR_DTYPE, "div: input 0 is i64 [2]: it takes floats");
    expect(tr_exp(i), TR_DTYPE, "exp: input 0 is i64");
    expect(tr_gelu(i), TR_DTYPE, "gelu: input 0 is i64");
    expect(tr_clamp(i, 0, 1), TR_DTYPE, "clamp: input 0 is i64");
    expect(tr_clamp(x, 2, 1), TR_INVALID, "clamp: 2 to 1 is no range");
    expect(tr_clamp(x, NAN, 1), TR_INVALID, "clamp: nan to 1 is no range");
    expect(tr_silu(i), TR_DTYPE, "silu: input 0 is i64");
    expect(tr_affine(i, 2, 1), TR_DTYPE, "affine: input 0 is i64");
    expect(tr_mean(i), TR_DTYPE, "mean: input 0 is i64");
    expect(tr_softmax(i, 0), TR_DTYPE, "softmax: input 0 is i64");
    expect(tr_dropout(i, .p = 0.5), TR_DTYPE, "dropout: input 0 is i64");
    expect(tr_layer_norm_op(x, d, NULL, 1e-5), TR_DTYPE, "layer_norm: dtypes differ");
    expect(tr_cross_entropy(ones(TR_SHAPE(2, 3)), tr_cast(x, TR_U8)), TR_DTYPE,
           "cross_entropy: input 'targets' is u8 [2]: it must be i64 or i32");
    expect(tr_embedding_op(x, ones(TR_SHAPE(4, 2))), TR_DTYPE, "embedding: input 'ids' is f32");
    expect(tr_embedding_op(i, i), TR_DTYPE, "embedding: input 'weight' is i64 [2]: it takes floats");
    expect(tr_cat((tr_tensor *[]){x, d}, 2, 0), TR_DTYPE, "cat: dtypes differ");
    expect(tr_cast(x, TR_DTYPE_COUNT), TR_DTYPE, "8 is no dtype");
}

static void images_that_do_not_fit(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = ones(TR_SHAPE(2, 4, 5, 6)), *w = ones(TR_SHAPE(8, 4, 3, 3)), *d = tr_ones(TR_SHAPE(8), .dtype = TR_F64);
    expect(tr_conv2d_op(ones(TR_SHAPE(4, 5, 6)), w), TR_SHAPE,
        "conv2d: x is [4, 5, 6]: it must be [batch, channels, height, width]");
    expect(tr_conv2d_op(x, ones(TR_SHAPE(8, 4))), TR_SHAPE, "conv2d: weight is [8, 4]: it must be [out channels");
    expect(tr_conv2d_op(x, ones(TR_SHAPE(8, 3, 3, 3))), TR_SHAPE,
        "conv2d: x [2, 4, 5, 6] has 4 channels, weight [8, 3, 3, 3] takes 3 in 1 groups");
    expect(tr_conv2d_op(x, ones(TR_SHAPE(7, 2, 3, 3)), .groups = 2), TR_SHAPE,
        "conv2d: the 7 output channels of weight [7, 2, 3, 3] do not divide into 2 groups");
    expect(tr_conv2d_op(x, w, .bias = ones(TR_SHAPE(7))), TR_SHAPE, "conv2d: bias [7] does not fit weight [8, 4, 3, 3]");
    expect(tr_conv2d_op(x, w, .bias = d), TR_DTYPE, "conv2d: dtypes differ");
    expect(tr_conv2d_op(x, w, .dilation = 3), TR_SHAPE,
        "conv2d: the kernel of weight [8, 4, 3, 3] does not fit into the images of x [2, 4, 5, 6], with padding 0 and "
        "dilation 3");
    expect(tr_conv2d_op(x, w, .stride = -1), TR_INVALID, "conv2d: stride -1, dilation 1 and groups 1 must be positive");
    expect(tr_conv2d_op(NULL, w), TR_INVALID, "conv2d: input 'x' is NULL");
    expect(tr_conv2d_op(x, NULL), TR_INVALID, "conv2d: input 'weight' is NULL");
    expect(tr_max_pool2d(ones(TR_SHAPE(5, 6)), 2), TR_SHAPE, "max_pool2d: x is [5, 6]: it must be [batch");
    expect(tr_max_pool2d(x, 0), TR_INVALID, "max_pool2d: kernel 0 and stride 0 must be positive");
    expect(tr_max_pool2d(x, 3, .padding = 2), TR_INVALID, "max_pool2d: padding 2 must be 0 to 1, half the kernel");
    expect(tr_max_pool2d(x, 6), TR_SHAPE,
        "max_pool2d: a window of 6 x 6 does not fit into the images of x [2, 4, 5, 6], with padding 0");
    expect(tr_max_pool2d(tr_ones(TR_SHAPE(1, 1, 2, 2), .dtype = TR_I64), 2), TR_DTYPE, "max_pool2d: input 0 is i64");
    expect(tr_avg_pool2d(x, 2, .stride = -1), TR_INVALID, "avg_pool2d: kernel 2 and stride -1 must be positive");
    expect(tr_adaptive_avg_pool2d(x, 0, 1), TR_INVALID,
        "adaptive_avg_pool2d: height and width must be positive, not 0 and 1");
    expect(tr_adaptive_avg_pool2d(ones(TR_SHAPE(2, 3)), 1, 1), TR_SHAPE, "adaptive_avg_pool2d: x is [2, 3]: it must be");
    expect(tr_adaptive_avg_pool2d(ones(TR_SHAPE(2, 3, 0, 4)), 1, 1), TR_SHAPE, "images of x [2, 3, 0, 4] have no pixels");
    expect(tr_adaptive_max_pool2d(ones(TR_SHAPE(2, 3)), 1, 1), TR_SHAPE, "adaptive_max_pool2d: x is [2, 3]: it must be");
    expect(tr_adaptive_max_pool1d(x, 2), TR_SHAPE, "adaptive_max_pool1d: x is [2, 4, 5, 6]: it must be [batch, channels, l");
    expect(tr_adaptive_avg_pool1d(ones(TR_SHAPE(2, 3, 4)), 0), TR_INVALID, "the length must be positive, not 0");
    expect(tr_max_pool1d(ones(TR_SHAPE(2, 3, 4)), 3, .padding = 2), TR_INVALID, "padding 2 0 to half the kernel");
    expect(tr_avg_pool1d(ones(TR_SHAPE(2, 3, 4)), 7, .padding = 1), TR_SHAPE,
        "avg_pool1d: a window of 7 does not fit into x [2, 3, 4], with padding 1");
    expect(tr_avg_pool1d(NULL, 2), TR_INVALID, "avg_pool1d: x is NULL");
}

/* Windows would still fit into the padding. */
static void images_without_pixels_are_not_pooled(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *flat = ones(TR_SHAPE(1, 512, 0, 4)), *thin = ones(TR_SHAPE(1, 512, 4, 0)), *none = ones(TR_SHAPE(1, 512, 0));
    expect(tr_max_pool2d(flat, 2, .padding = 1), TR_SHAPE, "max_pool2d: the images of x [1, 512, 0, 4] have no pixels");
    expect(tr_max_pool2d(thin, 2, .padding = 1), TR_SHAPE, "max_pool2d: the images of x [1, 512, 4, 0] have no pixels");
    expect(tr_avg_pool2d(flat, 2, .padding = 1), TR_SHAPE, "avg_pool2d: the images of x [1, 512, 0, 4] have no pixels");
    expect(tr_max_pool1d(none, 2, .padding = 1), TR_SHAPE, "max_pool1d: the length of x [1, 512, 0] is 0");
    expect(tr_adaptive_max_pool1d(none, 2), TR_SHAPE, "adaptive_max_pool1d: the length of x [1, 512, 0] is 0");
    assert_int_equal(tr_numel(tr_max_pool2d(ones(TR_SHAPE(0, 3, 4, 4)), 2)), 0);
}

static void transposed_and_sequences_that_do_not_fit(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = ones(TR_SHAPE(2, 4, 5, 6)), *w = ones(TR_SHAPE(4, 3, 3, 3)), *d = tr_ones(TR_SHAPE(3), .dtype = TR_F64);
    expect(tr_conv_transpose2d_op(ones(TR_SHAPE(4, 5)), w), TR_SHAPE, "conv_transpose2d: x is [4, 5]: it must be [batch, ch");
    expect(tr_conv_transpose2d_op(x, ones(TR_SHAPE(4, 3))), TR_SHAPE, "weight is [4, 3]: it must be [in channels, out channels");
    expect(tr_conv_transpose2d_op(x, ones(TR_SHAPE(3, 4, 3, 3))), TR_SHAPE,
        "conv_transpose2d: x [2, 4, 5, 6] has 4 channels, weight [3, 4, 3, 3] takes 3");
    expect(tr_conv_transpose2d_op(x, w, .groups = 3), TR_SHAPE, "the 4 input channels of weight [4, 3, 3, 3] do not divide into 3 groups");
    expect(tr_conv_transpose2d_op(x, w, .bias = ones(TR_SHAPE(4))), TR_SHAPE, "bias [4] does not fit weight [4, 3, 3, 3]");
    expect(tr_conv_transpose2d_op(x, w, .bias = d), TR_DTYPE, "conv_transpose2d: dtypes differ");
    expect(tr_conv_transpose2d_op(x, w, .padding = 6), TR_SHAPE,
        "nothing is left of the images of x [2, 4, 5, 6] by weight [4, 3, 3, 3], with padding 6");
    expect(tr_conv_transpose2d_op(x, w, .stride = 2, .output_padding = 2), TR_INVALID,
        "output_padding 2 must not be negative, and smaller than stride 2 or dilation 1");
    expect(tr_conv_transpose2d_op(x, w, .stride = -1), TR_INVALID, "conv_transpose2d: stride -1, dilation 1 and groups 1 must");
    expect(tr_conv_transpose2d_op(NULL, w), TR_INVALID, "conv_transpose2d: input 'x' is NULL");

    tr_tensor *line = ones(TR_SHAPE(2, 4, 6)), *taps = ones(TR_SHAPE(8, 4, 3)), *back = ones(TR_SHAPE(4, 3, 3));
    expect(tr_conv1d_op(x, taps), TR_SHAPE, "conv1d: x is [2, 4, 5, 6]: it must be [batch, channels, length]");
    expect(tr_conv1d_op(line, w), TR_SHAPE, "conv1d: weight is [4, 3, 3, 3]: it must be [out channels, in channels / groups");
    expect(tr_conv1d_op(line, back), TR_SHAPE, "conv1d: x [2, 4, 6] has 4 channels, weight [4, 3, 3] takes 3 in 1 groups");
    expect(tr_conv1d_op(line, taps, .padding = 1, .dilation = 4), TR_SHAPE,
        "conv1d: the kernel of weight [8, 4, 3] does not fit into x [2, 4, 6], with padding 1 and dilation 4");
    expect(tr_conv1d_op(line, taps, .bias = ones(TR_SHAPE(4))), TR_SHAPE, "conv1d: bias [4] does not fit weight [8, 4, 3]");
    expect(tr_conv1d_op(line, taps, .padding = -1), TR_INVALID, "groups 1 must be positive, padding -1 not negative");
    expect(tr_conv1d_op(line, NULL), TR_INVALID, "conv1d: weight is NULL");
    expect(tr_conv1d_op(line, tr_cast(taps, TR_F64)), TR_DTYPE, "conv1d: dtypes differ: f32 [2, 4, 6] and f64 [8, 4, 3]");
    expect(tr_conv1d_op(line, taps, .bias = d), TR_DTYPE, "conv1d: dtypes differ: f32 [2, 4, 6] and f64 [3]");
    expect(tr_conv1d_op(tr_cast(line, TR_I64), taps), TR_DTYPE, "conv1d: x is i64 [2, 4, 6]: it takes floats");
    expect(tr_conv_transpose1d_op(line, back, .bias = d), TR_DTYPE, "conv_transpose1d: dtypes differ: f32 [2, 4, 6] and f64 [3]");
    {
        TR_AUTOCAST(TR_BF16); /* makes one dtype of all but f64 */
        assert_int_equal(tr_dtype_of(tr_conv1d_op(tr_cast(line, TR_F16), taps)), TR_BF16);
        expect(tr_conv1d_op(line, tr_cast(taps, TR_F64)), TR_DTYPE, "conv1d: dtypes differ: f32 [2, 4, 6] and f64 [8, 4, 3]");
        expect(tr_conv1d_op(line, tr_cast(taps, TR_I64)), TR_DTYPE, "conv1d: dtypes differ: f32 [2, 4, 6] and i64 [8, 4, 3]");
    }
    expect(tr_conv_transpose1d_op(line, taps), TR_SHAPE, "x [2, 4, 6] has 4 channels, weight [8, 4, 3] takes 8 in 1 groups");
    expect(tr_conv_transpose1d_op(line, back, .output_padding = 1), TR_INVALID, "output_padding 1 must not be negative, and");
    expect(tr_conv_transpose1d_op(line, back, .padding = 4), TR_SHAPE, "nothing is left of x [2, 4, 6] by weight [4, 3, 3]");
}

static void sizes_that_images_cannot_have(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = ones(TR_SHAPE(2, 4, 5, 6)), *line = ones(TR_SHAPE(2, 4, 5));
    expect(tr_interpolate(x), TR_INVALID, "x [2, 4, 5, 6] takes a scale in 0 … 1e6, or height and width: they are 0, 0 and 0");
    expect(tr_interpolate(x, .scale = 2, .height = 3, .width = 3), TR_INVALID, "they are 2, 3 and 3");
    expect(tr_interpolate(line, .height = 3, .width = 3), TR_INVALID, "x [2, 4, 5] takes a scale in 0 … 1e6, or a width alone");
    expect(tr_interpolate(x, .scale = NAN), TR_INVALID, "they are nan, 0 and 0");
    expect(tr_interpolate(x, .scale = 0.1), TR_INVALID, "interpolate: x [2, 4, 5, 6] cannot become 0 x 0");
    expect(tr_interpolate(ones(TR_SHAPE(5, 6)), .scale = 2), TR_SHAPE, "interpolate: x is [5, 6]: it must be [batch, channels");
    expect(tr_interpolate(x, .scale = 2, .align_corners = true), TR_INVALID, "align_corners is for bilinear and bicubic");
    expect(tr_interpolate(x, .scale = 2, .mode = (tr_interpolation)3), TR_INVALID, "interpolate: 3 is no tr_interpolation");
    expect(tr_interpolate(tr_ones(TR_SHAPE(1, 1, 2, 2), .dtype = TR_I64), .scale = 2), TR_DTYPE, "interpolate: input 0 is i64");
    expect(tr_interpolate(NULL, .scale = 2), TR_INVALID, "interpolate: x is NULL");
}

static void batches_that_cannot_be_normed(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = ones(TR_SHAPE(2, 4, 3)), *four = ones(TR_SHAPE(4)), *five = ones(TR_SHAPE(5));
    expect(tr_batch_norm_op(ones(TR_SHAPE(4)), .training = true), TR_SHAPE,
        "batch_norm: x is [4]: it must be [batch, channels, …]");
    expect(tr_batch_norm_op(x, .weight = five, .training = true), TR_SHAPE,
        "batch_norm: weight [5] does not fit x [2, 4, 3]: it must be [4]");
    expect(tr_batch_norm_op(x, .bias = tr_ones(TR_SHAPE(4), .dtype = TR_F64), .training = true), TR_DTYPE,
        "batch_norm: dtypes differ");
    expect(tr_batch_norm_op(x), TR_INVALID, "batch_norm: without .training it needs running_mean and running_var");
    expect(tr_batch_norm_op(x, .running_mean = four), TR_INVALID, "running_mean and running_var come together");
    expect(tr_batch_norm_op(x, .running_mean = four, .running_var = five), TR_SHAPE,
        "batch_norm: running_var is f32 [5]: for x [2, 4, 3] it must be floats, [4]");
    expect(tr_batch_norm_op(ones(TR_SHAPE(1, 4)), .training = true), TR_SHAPE,
        "batch_norm: x [1, 4] has 1 numbers for each channel: a variance needs two");
    expect(tr_batch_norm_op(x, .training = true, .momentum = 2), TR_INVALID, "momentum must be in 0 … 1, it is 2");
    expect(tr_batch_norm_op(x, .training = true, .eps = -1), TR_INVALID, "eps must not be negative, it is -1");
    expect(tr_batch_norm_op(x, .training = true, .residual = four), TR_SHAPE,
        "batch_norm: residual is [4], it must be [2, 4, 3], as x");
    expect(tr_batch_norm_op(x, .training = true, .residual = tr_add(x, five)), TR_SHAPE, "add: ");
    expect(tr_batch_norm_op(NULL, .training = true, .residual = x, .relu = true), TR_INVALID, "batch_norm: input 'x' is NULL");
    expect(tr_batch_norm_op(NULL, .training = true), TR_INVALID, "batch_norm: input 'x' is NULL");
}

static void missing_inputs(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = ones(TR_SHAPE(2, 2)), *parts[2];
    expect(tr_add(NULL, x), TR_INVALID, "add: input 0 is NULL");
    expect(tr_add(x, NULL), TR_INVALID, "add: input 1 is NULL");
    expect(tr_exp(NULL), TR_INVALID, "exp: input 0 is NULL");
    expect(tr_sum(NULL), TR_INVALID, "sum: input 0 is NULL");
    expect(tr_max(NULL), TR_INVALID, "max: input 0 is NULL");
    expect(tr_argmax(NULL, 0), TR_INVALID, "argmax: input 0 is NULL");
    expect(tr_softmax(NULL, 0), TR_INVALID, "softmax: input 0 is NULL");
    expect(tr_cross_entropy(x, NULL), TR_INVALID, "cross_entropy: input 'targets' is NULL");
    expect(tr_layer_norm_op(NULL, NULL, NULL, 0), TR_INVALID, "layer_norm: input 'x' is NULL");
    expect(tr_embedding_op(NULL, x), TR_INVALID, "embedding: input 'ids' is NULL");
    expect(tr_reshape(NULL, TR_SHAPE(1)), TR_INVALID, "reshape: input 0 is NULL");
    expect(tr_expand(NULL, TR_SHAPE(1)), TR_INVALID, "input 0 is NULL");
    expect(tr_transpose(NULL, 0, 1), TR_INVALID, "input 0 is NULL");
    expect(tr_permute(NULL, NULL, 0), TR_INVALID, "input 0 is NULL");
    expect(tr_slice(NULL, 0, 0, 1), TR_INVALID, "input 0 is NULL");
    expect(tr_contiguous(NULL), TR_INVALID, "contiguous: input 0 is NULL");
    expect(tr_cast(NULL, TR_F64), TR_INVALID, "input 0 is NULL");
    expect(tr_to(NULL, tr_cpu(0)), TR_INVALID, "input 0 is NULL");
    expect(tr_cat((tr_tensor *[]){x, NULL}, 2, 0), TR_INVALID, "cat: part 1 is NULL");
    assert_int_equal(tr_split(NULL, 2, 0, parts), TR_INVALID);
    expect(tr_select(NULL, 0, 0), TR_INVALID, "select: input 0 is NULL");
    expect(tr_squeeze(NULL, 0), TR_INVALID, "squeeze: input 0 is NULL");
    expect(tr_unsqueeze(NULL, 0), TR_INVALID, "unsqueeze: input 0 is NULL");
}

static void dimensions_that_are_not_there(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = ones(TR_SHAPE(2, 3)), *parts[8];
    expect(tr_sum(x, 2), TR_SHAPE, "sum: no dimension 2 in [2, 3]");
    expect(tr_sum(x, TR_DIMS(1, -1)), TR_INVALID, "sum: dimension -1 of [2, 3] is named twice");
    expect(tr_mean(x, (tr_dims){.count = 9}), TR_INVALID, "mean: 9 dimensions named: it takes 1 to 8, or TR_ALL_DIMS");
    expect(tr_max(x, (tr_dims){.count = -1}), TR_INVALID, "max: -1 dimensions named");
    expect(tr_max(tr_empty(TR_SHAPE(2, 0)), 1), TR_SHAPE,
           "max: a dimension to reduce is empty in [2, 0]");
    expect(tr_argmax(x, -3), TR_SHAPE, "argmax: no dimension -3 in [2, 3]");
    expect(tr_argmax(tr_empty(TR_SHAPE(2, 0)), 1), TR_SHAPE, "argmax: a dimension to reduce is empty");
    expect(tr_softmax(x, 2), TR_SHAPE, "softmax: no dimension 2 in [2, 3]");
    expect(tr_log_softmax(ones(TR_SCALAR), 0), TR_SHAPE, "log_softmax: no dimension 0 in []");
    expect(tr_transpose(x, 0, 2), TR_SHAPE, "transpose: no dimension 2 in [2, 3]");
    expect(tr_permute(x, (int[]){0, 0}, 2), TR_INVALID, "permute: dimension 0 of [2, 3] is named twice");
    expect(tr_permute(x, (int[]){0}, 1), TR_SHAPE, "permute: an order of 1 dimensions for [2, 3]");
    expect(tr_slice(x, 1, 2, 4), TR_INVALID, "slice: 2 to 4 does not lie in dimension 1 of [2, 3]");
    expect(tr_slice(x, 1, 2, 1), TR_INVALID, "slice: 2 to 1 does not lie");
    expect(tr_slice(x, 1, INT64_MIN, INT64_MAX), TR_INVALID, "does not lie");
    expect(tr_cat((tr_tensor *[]){x, x}, 2, 5), TR_SHAPE, "cat: no dimension 5 in [2, 3]");
    expect(tr_cat((tr_tensor *[]){x, ones(TR_SHAPE(2, 4))}, 2, 0), TR_SHAPE,
        "cat: part 1, [2, 4], does not fit part 0, [2, 3], but for dimension 0");
    expect(tr_cat((tr_tensor *[]){x, ones(TR_SHAPE(2))}, 2, 0), TR_SHAPE, "cat: part 1, [2], does not fit part 0");
    tr_tensor *wide = tr_expand(tr_scalar(1, TR_F32), TR_SHAPE((int64_t)1 << 62)); /* 2^64, of four, is 0 in 64 bits */
    expect(tr_cat((tr_tensor *[]){wide, wide, wide, wide}, 4, 0), TR_SHAPE, "cat: dimension 0 becomes too large with part 1");
    expect(tr_cat(NULL, 0, 0), TR_INVALID, "cat: 0 parts");
    assert_int_equal(tr_split(x, 2, 1, parts), TR_SHAPE);
    assert_string_equal(tr_error_message(), "split: dimension 1 of [2, 3] does not divide into 2 parts");
    assert_int_equal(tr_split(x, 0, 1, parts), TR_SHAPE);
    assert_int_equal(tr_split(x, 3, 4, parts), TR_SHAPE);
    tr_tensor *pair[2], **pointer = pair;
    assert_int_equal(tr_split(x, 3, 1, pair), TR_INVALID);
    assert_string_equal(tr_error_message(), "split: 3 parts, and the array has room for 2");
    assert_int_equal(tr_split(x, 2, 0, pointer), TR_OK);
    assert_int_equal(tr_split(x, 2, 0, pair), TR_OK);
    expect(tr_select(x, 2, 0), TR_SHAPE, "select: no dimension 2 in [2, 3]");
    expect(tr_select(x, 1, 3), TR_INVALID, "select: no index 3 in dimension 1 of [2, 3]");
    expect(tr_select(x, 1, -4), TR_INVALID, "select: no index -4 in dimension 1 of [2, 3]");
    expect(tr_squeeze(x, 2), TR_SHAPE, "squeeze: no dimension 2 in [2, 3]");
    expect(tr_squeeze(x, 1), TR_SHAPE, "squeeze: dimension 1 of [2, 3] must have size 1");
    expect(tr_unsqueeze(x, 3), TR_SHAPE, "unsqueeze: [2, 3] has no place for a dimension 3");
    expect(tr_unsqueeze(x, -4), TR_SHAPE, "unsqueeze: [2, 3] has no place for a dimension -4");
}

static void shapes_that_do_not_fit(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = ones(TR_SHAPE(2, 3));
    expect(tr_reshape(x, TR_SHAPE(4, 2)), TR_SHAPE, "reshape: [2, 3] has 6 elements, [4, 2] would have 8");
    expect(tr_reshape(x, TR_SHAPE(-1, -1)), TR_SHAPE, "reshape: more than one -1");
    expect(tr_reshape(x, (tr_shape){.ndim = 99, .dim = {-1, -1}}), TR_SHAPE,
        "reshape: more than one -1 in [-1, -1, 0, 0, 0, 0, 0, 0]");
    expect(tr_reshape(x, TR_SHAPE(-1, 4)), TR_SHAPE, "reshape: nothing fits the -1 in [-1, 4] for [2, 3]");
    expect(tr_reshape(x, TR_SHAPE(-2, -3)), TR_SHAPE, "reshape: no tensor has the shape");
    expect(tr_reshape(x, (tr_shape){.ndim = 99}), TR_SHAPE, "reshape: no tensor has the shape");
    expect(tr_reshape(x, TR_SHAPE(INT64_MAX, 3, 3, INT64_MAX)), TR_SHAPE, "reshape");
    expect(tr_reshape(tr_empty(TR_SHAPE(0, 3)), TR_SHAPE(0, -1)), TR_SHAPE, "reshape: nothing fits the -1");
    expect(tr_expand(x, TR_SHAPE(4, 3)), TR_SHAPE, "expand: [2, 3] does not broadcast to [4, 3]");
    expect(tr_expand(x, TR_SHAPE(3)), TR_SHAPE, "expand: [2, 3] does not broadcast to [3]");
    expect(tr_expand(ones(TR_SHAPE(1)), TR_SHAPE(-1)), TR_SHAPE, "expand: [1] does not broadcast to [-1]");
    expect(tr_expand(x, (tr_shape){.ndim = -4}), TR_SHAPE, "expand: [2, 3] does not broadcast to so many dimensions");
    expect(tr_layer_norm_op(x, ones(TR_SHAPE(2)), NULL, 1e-5), TR_SHAPE,
        "layer_norm: weight [2] does not fit x [2, 3]: it must be [3]");
    expect(tr_layer_norm_op(x, NULL, ones(TR_SHAPE(3, 1)), 1e-5), TR_SHAPE,
           "layer_norm: bias [3, 1] does not fit x [2, 3]");
    expect(tr_layer_norm_op(ones(TR_SCALAR), NULL, NULL, 1e-5), TR_SHAPE, "layer_norm: x is a scalar");
    expect(tr_dropout(x, .p = 1), TR_INVALID, "dropout: p is 1: it must be at least 0 and less than 1");
    expect(tr_dropout(x, .p = -0.5), TR_INVALID, "dropout: p is -0.5");
    expect(tr_dropout(x, .p = (double)NAN), TR_INVALID, "dropout: p is");
    expect(tr_to(x, tr_cpu(99)), TR_DEVICE, "there is no device cpu:99");
}

static tr_tensor *ids(int64_t a, int64_t b, int64_t c)
{
    return tr_from(((int64_t[]){a, b, c}), TR_SHAPE(3), .dtype = TR_I64);
}

static void labels_and_ids_out_of_range(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *logits = ones(TR_SHAPE(3, 10)), *weight = ones(TR_SHAPE(5, 2));
    expect(tr_cross_entropy(logits, ids(0, 9, 10)), TR_INVALID,
           "cross_entropy: target 10 at position 2 is outside the 10 classes");
    expect(tr_cross_entropy(logits, ids(0, -1, 3)), TR_INVALID, "cross_entropy: target -1 at position 1 is outside");
    expect(tr_cross_entropy(logits, ids(0, -100, INT64_MIN)), TR_INVALID, "at position 2");
    expect(tr_cross_entropy(logits, ids(0, -100, 3), .ignore_index = -1), TR_INVALID, "target -100 at position 1");
    expect(tr_cross_entropy(tr_cast(logits, TR_F64), ids(99, 0, 0)), TR_INVALID, "target 99 at position 0");
    expect(tr_cross_entropy(logits, tr_reshape(ids(0, 0, 0), TR_SHAPE(3, 1))), TR_SHAPE,
        "cross_entropy: targets [3, 1] do not fit logits [3, 10]: they must be [3]");
    tr_tensor *maps = ones(TR_SHAPE(2, 4, 7, 7));
    expect(tr_cross_entropy(maps, tr_zeros(TR_SHAPE(2, 7, 7), .dtype = TR_I64)), TR_SHAPE, "targets [2, 7, 7] do not fit logits "
        "[2, 4, 7, 7]: they must be [2, 4, 7] (classes are the last dimension: tr_permute the logits)");
    expect(tr_cross_entropy(maps, tr_zeros(TR_SHAPE(2, 7, 6), .dtype = TR_I64)), TR_SHAPE, "they must be [2, 4, 7]");
    assert_null(strstr(tr_error_message(), "permute"));
    expect(tr_cross_entropy(ones(TR_SCALAR), ids(0, 0, 0)), TR_SHAPE, "cross_entropy: logits are a scalar");
    expect(tr_embedding_op(ids(4, 5, 0), weight), TR_INVALID, "embedding: id 5 at position 1 is outside the 5 rows");
    expect(tr_embedding_op(ids(4, 0, -1), weight), TR_INVALID, "embedding: id -1 at position 2");
    expect(tr_embedding_op(ids(0, 0, 0), ones(TR_SHAPE(5))), TR_SHAPE, "embedding: weight [5] must be [rows, dim]");
    expect(tr_embedding_op(tr_zeros(TR_SHAPE(1, 1, 1, 1, 1, 1, 1, 1), .dtype = TR_I64), weight), TR_SHAPE,
        "embedding: ids [1, 1, 1, 1, 1, 1, 1, 1] have no room");
}

static void losses_whose_inputs_do_not_fit(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = ones(TR_SHAPE(3, 4)), *column = ones(TR_SHAPE(3, 1)), *d = tr_ones(TR_SHAPE(3, 4), .dtype = TR_F64);
    expect(tr_mse_loss(x, column), TR_SHAPE, "mse_loss: x [3, 4] and target [3, 1] must have one shape");
    expect(tr_l1_loss(x, column), TR_SHAPE, "l1_loss: x [3, 4] and target [3, 1]");
    expect(tr_huber_loss(x, column), TR_SHAPE, "huber_loss: x [3, 4] and target [3, 1]");
    expect(tr_bce_with_logits(x, column), TR_SHAPE, "bce_with_logits: x [3, 4] and target [3, 1]");
    expect(tr_kl_div(x, column), TR_SHAPE, "kl_div: x [3, 4] and target [3, 1]");
    expect(tr_mse_loss(x, d), TR_DTYPE, "mse_loss: dtypes differ: f32 [3, 4] and f64 [3, 4]");
    expect(tr_mse_loss(x, NULL), TR_INVALID, "mse_loss: target is NULL");
    expect(tr_mse_loss(x, x, .reduction = (tr_reduction)7), TR_INVALID, "mse_loss: 7 is no tr_reduction");
    expect(tr_huber_loss(x, x, .delta = -1), TR_INVALID, "huber_loss: delta is -1: it must be positive");
    expect(tr_smooth_l1_loss(x, x, .delta = NAN), TR_INVALID, "smooth_l1_loss: delta is nan");
    expect(tr_nll_loss(x, ids(0, 4, 0)), TR_INVALID, "nll_loss: target 4 at position 1 is outside the 4 classes");
    expect(tr_nll_loss(x, column), TR_DTYPE, "nll_loss: targets are f32 [3, 1]: they must be i64 or i32");
    expect(tr_nll_loss(column, tr_reshape(ids(0, 0, 0), TR_SHAPE(3, 1))), TR_SHAPE,
        "nll_loss: targets [3, 1] do not fit x [3, 1]: they must be [3]");
    expect(tr_nll_loss(x, NULL), TR_INVALID, "nll_loss: input 'targets' is NULL");
    expect(tr_nll_loss(NULL, ids(0, 0, 0)), TR_INVALID, "nll_loss: x is NULL");
    expect(tr_nll_loss(ids(0, 0, 0), ids(0, 0, 0)), TR_SHAPE, "nll_loss: x is i64 [3]: it must be floats, [..., classes]");
    expect(tr_cross_entropy(x, ids(0, 0, 0), .label_smoothing = 1.5), TR_INVALID,
        "cross_entropy: label_smoothing is 1.5: it must be in 0 … 1");
    expect(tr_cross_entropy(x, ids(0, 0, 0), .reduction = (tr_reduction)3), TR_INVALID, "3 is no tr_reduction");
    expect(tr_cross_entropy(x, ids(0, 0, 0), .weight = ones(TR_SHAPE(3))), TR_SHAPE,
        "cross_entropy: weight f32 [3] does not fit x [3, 4]: it must be floats, [4]");
    expect(tr_nll_loss(x, ids(0, 0, 0), .weight = tr_ones(TR_SHAPE(4), .dtype = TR_I64)), TR_DTYPE,
        "nll_loss: weight i64 [4] does not fit x [3, 4]: it must be floats, [4]");
    expect(tr_cross_entropy(x, ids(0, 4, 0), .weight = ones(TR_SHAPE(4))), TR_INVALID, "cross_entropy: target 4 at position 1");
    expect(tr_cross_entropy(x, ids(0, 0, 0), .weight = ones(TR_SHAPE(4)), .label_smoothing = -1), TR_INVALID,
        "cross_entropy: label_smoothing is -1: it must be in 0 … 1");
    expect(tr_cross_entropy(x, ones(TR_SHAPE(3))), TR_SHAPE, "cross_entropy: targets [3] do not fit x [3, 4]: they must be "
        "[3, 4], as floats are probabilities; class indices are i64 or i32");
    expect(tr_cross_entropy(x, x, .ignore_index = 0), TR_INVALID,
        "cross_entropy: ignore_index is 0: it does not apply to targets that are probabilities");
    expect(tr_cross_entropy(x, x, .label_smoothing = 2), TR_INVALID, "cross_entropy: label_smoothing is 2");
    expect(tr_cross_entropy(x, x, .reduction = (tr_reduction)3), TR_INVALID, "cross_entropy: 3 is no tr_reduction");
    expect(tr_cross_entropy(x, x, .weight = ones(TR_SHAPE(3))), TR_SHAPE, "cross_entropy: weight f32 [3] does not fit x [3, 4]");
    expect(tr_cross_entropy(NULL, x), TR_INVALID, "cross_entropy: x is NULL");
    expect(tr_bce_with_logits(x, x, .weight = column, .pos_weight = ones(TR_SHAPE(3))), TR_SHAPE,
        "bce_with_logits: pos_weight [3] does not broadcast to x [3, 4]");
    expect(tr_bce_with_logits(column, column, .weight = x), TR_SHAPE, "weight [3, 4] does not broadcast to x [3, 1]");
    expect(tr_bce_with_logits(x, x, .weight = d), TR_DTYPE,
        "bce_with_logits: dtypes differ: x is f32 [3, 4], weight f64 [3, 4]");
    expect(tr_bce_with_logits(x, tr_cast(x, TR_BF16), .pos_weight = x), TR_DTYPE, "x is f32 [3, 4], target bf16 [3, 4]");
    expect(tr_group_norm_op(tr_cast(x, TR_BF16), 2, ones(TR_SHAPE(4)), NULL, 1e-5), TR_DTYPE,
        "group_norm: dtypes differ: x is bf16 [3, 4], weight f32 [4]");
    expect(tr_softsign(NULL), TR_INVALID, "softsign: x is NULL");
    expect(tr_prelu_op(x, ones(TR_SHAPE(3))), TR_SHAPE, "prelu: weight [3] does not fit x [3, 4]: it must be [1] or [4]");
    expect(tr_prelu_op(x, NULL), TR_INVALID, "prelu: weight is NULL");
    expect(tr_glu(x, 0), TR_SHAPE, "glu: split: dimension 0 of [3, 4] does not divide into 2 parts");
    expect(tr_glu(x, 2), TR_SHAPE, "glu: split: no dimension 2 in [3, 4]");
    expect(tr_glu(NULL, 0), TR_INVALID, "glu: x is NULL");
    expect(tr_celu(x, 0), TR_INVALID, "celu: alpha is 0: it must be positive");
    expect(tr_celu(x, -0.5), TR_INVALID, "celu: alpha is -0.5: it must be positive");
    expect(tr_celu(x, NAN), TR_INVALID, "celu: alpha is nan: it must be positive");
    expect(tr_log_sum_exp(ids(0, 0, 0)), TR_DTYPE, "log_sum_exp: x is i64: it takes floats");
    expect(tr_log_sum_exp(NULL), TR_INVALID, "log_sum_exp: x is NULL");
}

static void numbers_of_elements_that_are_not_there(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = ones(TR_SHAPE(3, 4)), *row = tr_reshape(ids(0, 4, -1), TR_SHAPE(1, 3));
    expect(tr_take_along(x, 1, row), TR_INVALID, "take_along: index 4 at position 1 is outside the 4 elements");
    expect(tr_take_along(x, 0, tr_reshape(ids(0, 2, -1), TR_SHAPE(1, 3))), TR_INVALID, "take_along: index -1 at position 2");
    expect(tr_take_along(x, 0, ids(0, 0, 0)), TR_SHAPE, "take_along: index [3] does not fit x [3, 4]");
    expect(tr_take_along(x, 1, tr_zeros(TR_SHAPE(4, 1), .dtype = TR_I64)), TR_SHAPE,
        "take_along: index [4, 1] does not fit x [3, 4]: but for dimension 1 it must lie in it");
    expect(tr_take_along(x, 2, row), TR_SHAPE, "take_along: no dimension 2 in [3, 4]");
    expect(tr_take_along(x, 0, x), TR_DTYPE, "take_along: input 'index' is f32 [3, 4]: it must be i64 or i32");
    expect(tr_take_along(x, 0, NULL), TR_INVALID, "take_along: input 'index' is NULL");
    expect(tr_scatter_add(x, 1, row, x), TR_SHAPE, "scatter_add: index [1, 3] and src [3, 4] must have one shape");
    expect(tr_scatter_add(x, 1, row, ones(TR_SHAPE(1, 3))), TR_INVALID, "scatter_add: index 4 at position 1");
    expect(tr_put_along(x, 1, row, x), TR_SHAPE, "put_along: index [1, 3] and src [3, 4] must have one shape");
    expect(tr_put_along(x, 1, row, ones(TR_SHAPE(1, 3))), TR_INVALID, "put_along: index 4 at position 1");
    expect(tr_index_select(x, 1, row), TR_SHAPE, "index_select: ids are [1, 3]: they must be [n]");
    expect(tr_index_select(x, 1, ids(3, 2, 9)), TR_INVALID, "index_select: id 9 at position 2 is outside the 4 elements");
    expect(tr_one_hot(ids(0, 1, 2), 2, TR_F32), TR_INVALID, "one_hot: id 2 at position 2 is outside the 2 classes");
    expect(tr_index_select(x, 1, NULL), TR_INVALID, "index_select: input 'ids' is NULL");
    expect(tr_one_hot(NULL, 2, TR_F32), TR_INVALID, "one_hot: input 'ids' is NULL");
    expect(tr_one_hot(x, 2, TR_F32), TR_DTYPE, "one_hot: ids are f32 [3, 4]: they must be i64 or i32");
    expect(tr_one_hot(ids(0, 1, 2), -2, TR_F32), TR_SHAPE, "one_hot: there is no tensor of ids [3] with -2 classes");
    expect(tr_flip(x, 2), TR_SHAPE, "flip: no dimension 2 in [3, 4]");
    expect(tr_where(x, x, x), TR_DTYPE, "where: the mask is f32 [3, 4]: it must be bool");
    expect(tr_masked_fill(NULL, x, 0), TR_INVALID, "masked_fill: x is NULL");
    expect(tr_flatnonzero(NULL), TR_INVALID, "flatnonzero: x is NULL");
    expect(tr_multinomial(NULL, 1, 0), TR_INVALID, "multinomial: weights is NULL");
    expect(tr_multinomial(tr_zeros(TR_SHAPE(3), .dtype = TR_I64), 1, 0), TR_DTYPE, "multinomial: weights are floats, not i64");
    expect(tr_multinomial(tr_ones(TR_SCALAR), 1, 0), TR_SHAPE, "multinomial: [] has no classes");
    expect(tr_multinomial(tr_ones(TR_SHAPE(3)), 4, 0), TR_INVALID, "it draws 1 to 3 of 3 classes without .replacement, not 4");
    expect(tr_multinomial(tr_ones(TR_SHAPE(3)), 0, 0, .replacement = true), TR_INVALID, "not 0");
    expect(tr_multinomial(tr_from(((const float[]){1, 1, 1, NAN}), TR_SHAPE(2, 2)), 1, 0), TR_INVALID,
        "weight nan of class 1 in row 1 is below 0 or NaN");
    expect(tr_multinomial(tr_from(((const float[]){1, INFINITY}), TR_SHAPE(2)), 1, 0), TR_INVALID, "row 0 have an infinite sum");
    expect(tr_multinomial(tr_from(((const float[]){1, 0}), TR_SHAPE(2)), 2, 0), TR_INVALID,
        "row 0 has 1 classes of a weight above 0, and 2 are to be drawn");
    expect(tr_multinomial(tr_zeros(TR_SHAPE(2)), 1, 0, .replacement = true), TR_INVALID, "row 0 has 0 classes");
    expect(tr_less(x, row), TR_DTYPE, "less: dtypes differ: f32 [3, 4] and i64 [1, 3]");
    expect(tr_equal(x, ones(TR_SHAPE(3))), TR_SHAPE, "equal: shapes do not broadcast: [3, 4] and [3]");
}

static void reductions_orders_and_products_that_do_not_fit(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = ones(TR_SHAPE(3, 4)), *i = tr_ones(TR_SHAPE(2), .dtype = TR_I64), *at = NULL;
    expect(tr_min(tr_empty(TR_SHAPE(2, 0)), 1), TR_SHAPE, "min: a dimension to reduce is empty");
    expect(tr_argmin(x, 2), TR_SHAPE, "argmin: no dimension 2 in [3, 4]");
    expect(tr_norm(x, -1), TR_INVALID, "norm: p is -1: it must be positive");
    expect(tr_norm(i), TR_DTYPE, "norm: x is i64");
    expect(tr_norm(NULL, 1), TR_INVALID, "norm: x is NULL");
    expect(tr_var(i), TR_DTYPE, "var: x is i64: it takes floats");
    expect(tr_std(NULL), TR_INVALID, "std: x is NULL");
    expect(tr_cumsum(x, 2), TR_SHAPE, "cumsum: no dimension 2 in [3, 4]");
    expect(tr_topk(x, 5, 1, .indices = &at), TR_INVALID, "topk: k is 5: dimension 1 of [3, 4] has 0 to 4 elements to give");
    expect(at, TR_INVALID, "topk: k is 5");
    expect(tr_topk(x, -1, 1), TR_INVALID, "topk: k is -1");
    expect(tr_sort(x, 2, .indices = &at), TR_SHAPE, "sort: no dimension 2 in [3, 4]");
    expect(tr_sort(NULL, 0), TR_INVALID, "sort: x is NULL");
    expect(tr_pad(x, .before = {-1}), TR_INVALID, "pad: -1 before and 0 after dimension 0 must not be negative");
    expect(tr_pad(x, .after = {0, 0, 1}), TR_SHAPE, "pad: no dimension 2 in [3, 4]");
    expect(tr_pad(x, .after = {INT64_MAX}), TR_SHAPE, "pad: dimension 0 of [3, 4] becomes too large");
    expect(tr_stack(NULL, 0, 0), TR_INVALID, "stack: 0 parts");
    expect(tr_stack(((tr_tensor *[]){x, NULL}), 2, 0), TR_INVALID, "stack: part 1 is NULL");
    expect(tr_stack(((tr_tensor *[]){x, x}), 2, 3), TR_SHAPE, "stack: unsqueeze: [3, 4] has no place for a dimension 3");
    expect(tr_stack(((tr_tensor *[]){x, tr_cast(x, TR_I64)}), 2, 0), TR_DTYPE, "cat: dtypes differ");
    expect(tr_stack(((tr_tensor *[]){x, ones(TR_SHAPE(4, 3))}), 2, 0), TR_SHAPE, "stack: part 1 is [4, 3], part 0 [3, 4]");
    expect(tr_einsum("ij,jk", x, x), TR_INVALID, "einsum: \"ij,jk\" must be letters, comma, letters, arrow, letters");
    expect(tr_einsum("ii,ij->j", x, x), TR_INVALID, "einsum: \"ii,ij->j\" names i twice at once");
    expect(tr_einsum("ij,jk->iz", x, x), TR_INVALID, "the result of \"ij,jk->iz\" has z, which neither operand has");
    expect(tr_einsum("ijk,jk->i", x, x), TR_SHAPE, "einsum: operand 0 is [3, 4], which has not the 3 dimensions of");
    expect(tr_einsum("ij,jk->ik", x, x), TR_SHAPE, "einsum: sizes of j differ in \"ij,jk->ik\": [3, 4] and [3, 4]");
    expect(tr_einsum("abcdefghi,a->a", x, x), TR_INVALID, "names more than 8 dimensions at once");
    expect(tr_einsum("ij,jk->ik", NULL, x), TR_INVALID, "einsum: input 0 is NULL");
}

static void sequences_and_norms_that_do_not_fit(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = ones(TR_SHAPE(2, 4, 3)), *q = ones(TR_SHAPE(2, 4, 5, 8)), *k = ones(TR_SHAPE(2, 3, 5, 8));
    expect(tr_rms_norm_op(x, ones(TR_SHAPE(4)), 0), TR_SHAPE, "rms_norm: weight [4] does not fit x [2, 4, 3]: it must be [3]");
    expect(tr_rms_norm_op(ones(TR_SCALAR), NULL, 0), TR_SHAPE, "rms_norm: x is a scalar");
    expect(tr_group_norm_op(x, 3, NULL, NULL, 0), TR_SHAPE,
        "group_norm: the 4 channels of x [2, 4, 3] do not divide into 3 groups");
    expect(tr_group_norm_op(x, 2, ones(TR_SHAPE(3)), NULL, 0), TR_SHAPE, "group_norm: weight [3] does not fit x [2, 4, 3]");
    expect(tr_group_norm_op(ones(TR_SHAPE(4)), 2, NULL, NULL, 0), TR_SHAPE, "group_norm: x is [4]");
    expect(tr_group_norm_op(NULL, 2, NULL, NULL, 0), TR_INVALID, "group_norm: x is NULL");
    expect(tr_rotary(x), TR_SHAPE, "rotary: x is [2, 4, 3]: it must be [..., seq, dim], dim even");
    expect(tr_rotary(ones(TR_SHAPE(4))), TR_SHAPE, "rotary: x is [4]");
    expect(tr_rotary(q, .base = -1), TR_INVALID, "rotary: base is -1: it must be positive");
    expect(tr_attention(q, k, k), TR_SHAPE, "attention: q [2, 4, 5, 8], k [2, 3, 5, 8]");
    expect(tr_attention(q, q, q, .lengths = ids(1, 2, 3)), TR_SHAPE,
        "attention: lengths are i64 [3]: they must be i64 or i32, [2], one for each sample");
}

static double number(tr_tensor *t, int64_t i)
{
    return tr_item(tr_slice(tr_cast(t, TR_F64), 0, i, i + 1));
}

static void comparisons_of_numbers_and_nan(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *a = tr_from(((const float[]){1, 2, 3, NAN}), TR_SHAPE(4)), *two = tr_scalar(2, TR_F32);
    tr_tensor *(*const compare[])(tr_tensor *, tr_tensor *) = {tr_less, tr_less_equal, tr_equal, tr_greater_equal,
        tr_greater, tr_not_equal};
    const char *expected[] = {"1000", "1100", "0100", "0110", "0010", "1011"};
    for (int k = 0; k < 6; k++)
        for (int integers = 0; integers < 2; integers++)
            for (int64_t i = 0; i < 4 - integers; i++) {
                tr_dtype dtype = integers ? TR_I32 : TR_F32;
                tr_tensor *got = compare[k](tr_cast(a, dtype), tr_cast(two, dtype));
                assert_int_equal(tr_dtype_of(got), TR_BOOL);
                assert_int_equal(number(got, i), expected[k][i] - '0');
            }
}

/* Of views and scalars as well; NaN is not 0. */
static void what_is_not_zero_is_found(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_from(((const float[]){0, NAN, -0.0f, 1, 0, 1e-40f}), TR_SHAPE(2, 3));
    tr_tensor *at[] = {tr_flatnonzero(x), tr_flatnonzero(tr_transpose(x, 0, 1)), tr_flatnonzero(tr_less(x, tr_ones(TR_SCALAR)))};
    const char *expected[] = {"135", "125", "0245"};
    for (int k = 0; k < 3; k++) {
        assert_true(tr_dtype_of(at[k]) == TR_I64 && tr_ndim(at[k]) == 1);
        assert_int_equal(tr_size(at[k], 0), strlen(expected[k]));
        for (int64_t i = 0; expected[k][i]; i++) assert_int_equal(number(at[k], i), expected[k][i] - '0');
    }
    assert_int_equal(tr_size(tr_flatnonzero(tr_zeros(TR_SHAPE(0, 4))), 0), 0);
    assert_int_equal(tr_numel(tr_flatnonzero(tr_ones(TR_SCALAR, .dtype = TR_U8))), 1);
}

static void integers_are_chosen_moved_and_added_whole(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *large = tr_from(((const int64_t[]){INT64_MAX, INT64_MIN, 5}), TR_SHAPE(3), .dtype = TR_I64);
    int64_t out[3];
    assert_int_equal(tr_copy_out(tr_where(tr_less(large, ids(0, 0, 9)), ids(1, 2, 3), large), out, sizeof out), TR_OK);
    assert_true(out[0] == INT64_MAX && out[1] == 2 && out[2] == 3);
    assert_int_equal(tr_copy_out(tr_index_select(large, 0, ids(1, 0, 0)), out, sizeof out), TR_OK);
    assert_true(out[0] == INT64_MIN && out[1] == INT64_MAX && out[2] == INT64_MAX);
    assert_int_equal(tr_copy_out(tr_scatter_add(large, 0, ids(2, 2, 1), ids(7, 8, 9)), out, sizeof out), TR_OK);
    assert_true(out[0] == INT64_MAX && out[1] == INT64_MIN + 9 && out[2] == 20);
    assert_int_equal(tr_copy_out(tr_put_along(large, 0, ids(2, 0, 2), ids(7, 8, 9)), out, sizeof out), TR_OK);
    assert_true(out[0] == 8 && out[1] == INT64_MIN && out[2] == 9); /* of equal numbers the last */
    assert_int_equal(tr_copy_out(tr_cumsum(ids(INT64_MAX - 1, 1, 3), 0), out, sizeof out), TR_OK);
    assert_true(out[0] == INT64_MAX - 1 && out[1] == INT64_MAX && out[2] == INT64_MIN + 2);
    tr_tensor *mask = tr_cumsum(tr_less(ids(0, 5, 1), ids(1, 1, 9)), 0);
    assert_int_equal(tr_copy_out(mask, out, sizeof out), TR_OK);
    assert_true(out[0] == 1 && out[1] == 1 && out[2] == 2);
    tr_tensor *bytes = tr_one_hot(ids(1, 0, 1), 2, TR_U8);
    assert_true(tr_dtype_of(bytes) == TR_U8 && tr_item(tr_sum(bytes)) == 3);
}

static void orders_of_integers_nan_and_zeros(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *at, *large = tr_from(((const int64_t[]){INT64_MAX - 1, INT64_MIN, INT64_MAX}), TR_SHAPE(3), .dtype = TR_I64);
    int64_t out[3];
    assert_int_equal(tr_copy_out(tr_sort(large, 0, .indices = &at), out, sizeof out), TR_OK);
    assert_true(out[0] == INT64_MIN && out[1] == INT64_MAX - 1 && out[2] == INT64_MAX);
    assert_true(number(at, 0) == 1 && number(at, 1) == 0 && number(at, 2) == 2);
    assert_int_equal(tr_copy_out(tr_min(large, TR_ALL_DIMS, .keep = true), out, sizeof *out), TR_OK);
    assert_true(out[0] == INT64_MIN && tr_item(tr_argmin(large, 0)) == 1);
    assert_int_equal(tr_dtype_of(tr_prod(tr_ones(TR_SHAPE(2), .dtype = TR_U8))), TR_I64);
    assert_true(tr_item(tr_prod(ids(-3, 5, 7))) == -105);
    tr_tensor *sums = tr_cumsum(tr_ones(TR_SHAPE(3), .dtype = TR_BOOL), 0);
    assert_true(tr_dtype_of(sums) == TR_I64 && number(sums, 2) == 3);
    tr_tensor *x = tr_from(((const float[]){0.0f, NAN, -0.0f, INFINITY}), TR_SHAPE(4));
    assert_true(isnan(number(tr_topk(x, 2, 0, .indices = &at), 0)));
    assert_true(number(at, 0) == 1 && number(at, 1) == 3);
    assert_int_equal(tr_status_of(tr_sort(x, 0, .indices = &at)), TR_OK);
    assert_true(number(at, 0) == 0 && number(at, 1) == 2 && number(at, 2) == 3 && number(at, 3) == 1);
    assert_true(isnan(tr_item(tr_min(x))) && tr_item(tr_argmin(x, 0)) == 1);
    tr_tensor *many = tr_cat((tr_tensor *[]){tr_arange(200, TR_I64, tr_cpu(0)), large}, 2, 0);
    tr_tensor *least = tr_sort(many, 0, .indices = &at), *most = tr_sort(many, 0, .descending = true);
    assert_int_equal(tr_copy_out(tr_slice(least, 0, 0, 3), out, sizeof out), TR_OK);
    assert_true(out[0] == INT64_MIN && out[1] == 0 && out[2] == 1 && number(at, 0) == 201 && number(at, 1) == 0);
    assert_int_equal(tr_copy_out(tr_slice(most, 0, 0, 3), out, sizeof out), TR_OK);
    assert_true(out[0] == INT64_MAX && out[1] == INT64_MAX - 1 && out[2] == 199);
    tr_tensor *zeros = tr_cat((tr_tensor *[]){tr_full(-0.0, TR_SHAPE(150)), x}, 2, 0);
    assert_int_equal(tr_status_of(tr_sort(zeros, 0, .indices = &at)), TR_OK);
    for (int64_t i = 0; i < 154; i++) assert_true(number(at, i) == (i < 151 ? i : i == 151 ? 152 : i == 152 ? 153 : 151));
    assert_int_equal(tr_numel(tr_topk(x, 0, 0)), 0);
    assert_true(isnan(tr_item(tr_var(ones(TR_SHAPE(1))))) && isnan(tr_item(tr_std(ones(TR_SHAPE(1))))));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_that_do_not_broadcast),
        cmocka_unit_test(dtypes_that_do_not_fit),
        cmocka_unit_test(images_that_do_not_fit),
        cmocka_unit_test(images_without_pixels_are_not_pooled),
        cmocka_unit_test(transposed_and_sequences_that_do_not_fit),
        cmocka_unit_test(sizes_that_images_cannot_have),
        cmocka_unit_test(batches_that_cannot_be_normed),
        cmocka_unit_test(missing_inputs),
        cmocka_unit_test(dimensions_that_are_not_there),
        cmocka_unit_test(shapes_that_do_not_fit),
        cmocka_unit_test(labels_and_ids_out_of_range),
        cmocka_unit_test(losses_whose_inputs_do_not_fit),
        cmocka_unit_test(numbers_of_elements_that_are_not_there),
        cmocka_unit_test(reductions_orders_and_products_that_do_not_fit),
        cmocka_unit_test(sequences_and_norms_that_do_not_fit),
        cmocka_unit_test(orders_of_integers_nan_and_zeros),
        cmocka_unit_test(comparisons_of_numbers_and_nan),
        cmocka_unit_test(what_is_not_zero_is_found),
        cmocka_unit_test(integers_are_chosen_moved_and_added_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
