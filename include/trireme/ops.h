/*
 * Trireme, operations: functions of tensors that carry gradients. docs/ops.md lists them with their shapes.
 *
 * Every function returns a fresh tensor (or a view where it says so) that belongs to the innermost scope, or a tensor in
 * error. Inputs broadcast as in NumPy where it says "broadcast". Dimensions may be negative, counted from the end.
 * Inputs must share device and dtype unless said otherwise.
 */
#ifndef TRIREME_OPS_H
#define TRIREME_OPS_H

#include <trireme/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Mixed precision -------------------------------------------------------------------------------------------- */

/*
 * TR_AUTOCAST(TR_BF16); to the end of the block, ops on f32 tensors choose their dtype, as under PyTorch's autocast.
 * Matrix products, convolutions and attention take their inputs in bf16 (or f16). Reductions, norms, softmax, exp, log,
 * powers and losses take theirs in f32. Sums, products and choices of two dtypes are made in f32. All other ops keep
 * the dtype that comes. Casts are recorded, so parameters and their gradients stay f32. Backward runs in the dtypes
 * that the forward chose, wherever it is called. f64 tensors and a program's own ops are left alone. It applies to this
 * thread only. See docs/precision.md.
 */
#define TR_AUTOCAST(dtype) \
    __attribute__((cleanup(tr__autocast_restore), unused)) tr_dtype TR__JOIN(tr__autocast_, __LINE__) = tr_set_autocast(dtype)
TR_API tr_dtype tr_set_autocast(tr_dtype dtype); /* anything but TR_BF16 and TR_F16 turns it off; returns the setting
                                                    before, TR_F32 for off */
TR_API tr_dtype tr_autocast(void);
static inline void tr__autocast_restore(tr_dtype *was) { tr_set_autocast(*was); }

/* ---- Elementwise: shapes broadcast ----------------------------------------------------------------------------- */

TR_API tr_tensor *tr_add(tr_tensor *a, tr_tensor *b);
TR_API tr_tensor *tr_sub(tr_tensor *a, tr_tensor *b);
TR_API tr_tensor *tr_mul(tr_tensor *a, tr_tensor *b);
TR_API tr_tensor *tr_div(tr_tensor *a, tr_tensor *b);
TR_API tr_tensor *tr_maximum(tr_tensor *a, tr_tensor *b); /* where equal, each gets half the gradient */
TR_API tr_tensor *tr_minimum(tr_tensor *a, tr_tensor *b);
TR_API tr_tensor *tr_affine(tr_tensor *x, double scale, double shift); /* x*scale + shift */

TR_API tr_tensor *tr_neg(tr_tensor *x);
TR_API tr_tensor *tr_exp(tr_tensor *x);
TR_API tr_tensor *tr_log(tr_tensor *x);
TR_API tr_tensor *tr_sqrt(tr_tensor *x);
TR_API tr_tensor *tr_abs(tr_tensor *x);
TR_API tr_tensor *tr_tanh(tr_tensor *x);
TR_API tr_tensor *tr_sigmoid(tr_tensor *x);
TR_API tr_tensor *tr_relu(tr_tensor *x);
/* Comparisons: bool; NaN is equal to nothing, itself included. No gradient. */
TR_API tr_tensor *tr_equal(tr_tensor *a, tr_tensor *b);
TR_API tr_tensor *tr_not_equal(tr_tensor *a, tr_tensor *b);
TR_API tr_tensor *tr_less(tr_tensor *a, tr_tensor *b);
TR_API tr_tensor *tr_less_equal(tr_tensor *a, tr_tensor *b);
TR_API tr_tensor *tr_greater(tr_tensor *a, tr_tensor *b);
TR_API tr_tensor *tr_greater_equal(tr_tensor *a, tr_tensor *b);
/* a where the mask (bool) is true, b elsewhere; each gets its share of the gradient. */
TR_API tr_tensor *tr_where(tr_tensor *mask, tr_tensor *a, tr_tensor *b);
TR_API tr_tensor *tr_masked_fill(tr_tensor *x, tr_tensor *mask, double value); /* value where the mask is true */
/* i64 [n], ascending: the indices in flattened x of the elements that are true or non-zero (NaN counts as non-zero). n
 * depends on x's values, so the call waits for a GPU. No gradient. */
TR_API tr_tensor *tr_flatnonzero(tr_tensor *x);

/* GELU (Hendrycks & Gimpel 2016). tr_gelu(): GPT-2's tanh form, 0.5x(1 + tanh(sqrt(2/pi)(x + 0.044715x^3))).
 * tr_gelu_exact(): the exact one, by erf. */
TR_API tr_tensor *tr_gelu(tr_tensor *x);
TR_API tr_tensor *tr_gelu_exact(tr_tensor *x);

/* tr_silu(): x sigmoid(x), also called Swish (Elfwing et al. 2018). tr_mish(): x tanh(log(1 + exp(x))) (Misra 2019). */
TR_API tr_tensor *tr_silu(tr_tensor *x);
TR_API tr_tensor *tr_mish(tr_tensor *x);
TR_API tr_tensor *tr_softplus(tr_tensor *x);    /* log(1 + exp(x)) */
TR_API tr_tensor *tr_log_sigmoid(tr_tensor *x); /* log(sigmoid(x)), exact also where the sigmoid is 0 */
TR_API tr_tensor *tr_leaky_relu(tr_tensor *x, double slope); /* slope * x below 0 (PyTorch's default: 0.01) */
TR_API tr_tensor *tr_elu(tr_tensor *x, double alpha);        /* alpha (exp(x) - 1) below 0 (PyTorch's default: 1) */
TR_API tr_tensor *tr_celu(tr_tensor *x, double alpha);       /* alpha (exp(x/alpha) - 1) below 0; alpha is positive */
TR_API tr_tensor *tr_selu(tr_tensor *x);        /* ELU that keeps mean 0 and variance 1 (Klambauer et al. 2017) */
TR_API tr_tensor *tr_hardswish(tr_tensor *x);   /* x times tr_hardsigmoid(x) (MobileNetV3) */
TR_API tr_tensor *tr_softsign(tr_tensor *x);    /* x / (1 + |x|) */
TR_API tr_tensor *tr_prelu_op(tr_tensor *x, tr_tensor *weight); /* weight * x below 0; weight: [1], or one for each
                                                                   index of dimension 1 */
TR_API tr_tensor *tr_glu(tr_tensor *x, int dim); /* one half along dim times the sigmoid of the other (Dauphin et al. 2017) */
TR_API tr_tensor *tr_hardsigmoid(tr_tensor *x); /* x/6 + 1/2, limited to 0 … 1; its gradient at -3 and 3 is 0 */
/* x limited to least … most; -INFINITY and INFINITY for no limit; NaN stays. ReLU6 is tr_clamp(x, 0, 6). */
TR_API tr_tensor *tr_clamp(tr_tensor *x, double least, double most);
TR_API tr_tensor *tr_pow(tr_tensor *x, double exponent); /* x^exponent; for a square tr_mul(x, x) costs less */
TR_API tr_tensor *tr_sin(tr_tensor *x);
TR_API tr_tensor *tr_cos(tr_tensor *x);

typedef struct tr_dropout_options {
    size_t size;
    const char *given;
    tr_tensor *x;   /* [samples, …] */
    double p;       /* the probability that an element is zeroed, 0 <= p < 1; the others are scaled by 1/(1-p) */
    uint64_t seed;  /* selects the random numbers: a mask depends only on (seed, step, sample, element within the
                       sample), */
    uint64_t step;  /* so recompute, resume and any number of ranks give the same mask */
    uint64_t first_sample; /* the global number of x[0] */
} tr_dropout_options;
#define tr_dropout(...) TR__NEW2(tr_dropout, x, p, __VA_ARGS__)
TR_API tr_tensor *tr_dropout_with(const tr_dropout_options *options);

/* ---- Reductions ------------------------------------------------------------------------------------------------ */

/*
 * tr_sum(x) reduces over all dimensions. tr_sum(x, 1) and tr_sum(x, TR_DIMS(0, -1), .keep = true) reduce over the given
 * ones, as PyTorch's x.sum(1). tr_sum(x, TR_ALL_DIMS, .keep = true) reduces over all and keeps them. Dimensions are
 * always the second argument.
 */
typedef struct tr_reduce_options {
    size_t size;
    tr_tensor *x;
    tr_dims dims;           /* .all, or at least one */
    bool keep;              /* keep reduced dimensions as size 1 */
} tr_reduce_options;
#define tr_sum(...) tr_sum_with(TR__REDUCE(tr_reduce_options, __VA_ARGS__)) /* bf16 and f16 are added up in f32 */
#define tr_mean(...) tr_mean_with(TR__REDUCE(tr_reduce_options, __VA_ARGS__))
#define tr_max(...) tr_max_with(TR__REDUCE(tr_reduce_options, __VA_ARGS__)) /* equal maxima share the gradient */
#define tr_min(...) tr_min_with(TR__REDUCE(tr_reduce_options, __VA_ARGS__)) /* as tr_max */
#define tr_prod(...) tr_prod_with(TR__REDUCE(tr_reduce_options, __VA_ARGS__))
#define tr_log_sum_exp(...) tr_log_sum_exp_with(TR__REDUCE(tr_reduce_options, __VA_ARGS__)) /* without overflow */
TR_API tr_tensor *tr_sum_with(const tr_reduce_options *options);
TR_API tr_tensor *tr_mean_with(const tr_reduce_options *options);
TR_API tr_tensor *tr_max_with(const tr_reduce_options *options);
TR_API tr_tensor *tr_min_with(const tr_reduce_options *options);
TR_API tr_tensor *tr_prod_with(const tr_reduce_options *options);
TR_API tr_tensor *tr_log_sum_exp_with(const tr_reduce_options *options);
TR_API tr_tensor *tr_argmax(tr_tensor *x, int dim); /* i64, without dim; the first of equal ones; no gradient */
TR_API tr_tensor *tr_argmin(tr_tensor *x, int dim);

typedef struct tr_norm_options {
    size_t size;
    tr_tensor *x;
    double p;               /* positive; INFINITY: the largest |x| */
    tr_dims dims;           /* as in tr_reduce_options */
    bool keep;
} tr_norm_options;
/* (sum of |x|^p)^(1/p): tr_norm(x) with p = 2, tr_norm(x, 1), tr_norm(x, 2, -1, .keep = true), as torch.norm(). The gradient
 * of a 2-norm that is 0 is 0. */
#define tr_norm(...) tr_norm_with(TR__JOIN(TR__NORM_, TR__UP_TO_3(__VA_ARGS__))(__VA_ARGS__))
TR_API tr_tensor *tr_norm_with(const tr_norm_options *options);

typedef struct tr_var_options {
    size_t size;
    tr_tensor *x;
    tr_dims dims;           /* as in tr_reduce_options */
    bool keep;
    bool biased;            /* divide the sum of squares by the number of elements, not by one less */
} tr_var_options;
/* tr_var(): the mean square of the distance from the mean. tr_std(): its square root, whose gradient is 0 where the
 * root is 0. tr_var(x, 0, .biased = true) */
#define tr_var(...) tr_var_with(TR__REDUCE(tr_var_options, __VA_ARGS__))
#define tr_std(...) tr_std_with(TR__REDUCE(tr_var_options, __VA_ARGS__))
TR_API tr_tensor *tr_var_with(const tr_var_options *options);
TR_API tr_tensor *tr_std_with(const tr_var_options *options);

/* The number of arguments: 1, 2, or 3 for three and more. */
#define TR__UP_TO_3(...) TR__NINTH(__VA_ARGS__, 3, 3, 3, 3, 3, 3, 2, 1, )
#define TR__NINTH(a, b, c, d, e, f, g, h, i, ...) i
#define TR__REDUCE(type, ...) TR__JOIN(TR__REDUCE_, TR__UP_TO_3(__VA_ARGS__))(type, __VA_ARGS__)
#define TR__REDUCE_1(type, x_) TR__REDUCED(type, , .x = (x_), .dims = TR_ALL_DIMS)
#define TR__REDUCE_2(type, x_, dims_) TR__REDUCED(type, , .x = (x_), .dims = TR__DIMS(dims_))
#define TR__REDUCE_3(type, x_, dims_, ...) \
    TR__REDUCED(type, TR__FIRST(__VA_ARGS__, ), .x = (x_), .dims = TR__DIMS(dims_), __VA_ARGS__)
#define TR__NORM_1(x_) TR__REDUCED(tr_norm_options, , .x = (x_), .p = 2, .dims = TR_ALL_DIMS)
#define TR__NORM_2(x_, p_) TR__REDUCED(tr_norm_options, , .x = (x_), .p = (p_), .dims = TR_ALL_DIMS)
#define TR__NORM_3(x_, p_, ...) TR__NORM_AT(x_, p_, __VA_ARGS__, )
#define TR__NORM_AT(x_, p_, dims_, ...)                                                                       \
    TR__REDUCED(tr_norm_options, TR__FIRST(__VA_ARGS__, ), .x = (x_), .p = (p_), .dims = TR__DIMS(dims_), \
        __VA_ARGS__)
#define TR__REDUCED(type, option, ...) \
    TR__LITERAL(type, .size = sizeof(type) * TR__OPTIONS_HAVE_NAMES(type, option), __VA_ARGS__)

TR_API tr_tensor *tr_cumsum(tr_tensor *x, int dim); /* running sums; for integers in i64, which wraps around, as
                                                       tr_sum's */

typedef struct tr_topk_options {
    size_t size;
    const char *given;
    tr_tensor *x;
    int64_t k;
    int dim;
    bool smallest;
    tr_tensor **indices; /* gets the indices in x: i64, in the result's shape; or NULL */
} tr_topk_options;
/* The k largest elements along dim, in descending order. Of equal ones the first comes first; NaN counts as the
 * largest. -> x with k along dim. With k = 1 and .indices it is PyTorch's max(dim) with keepdim=True. */
#define tr_topk(...) TR__NEW3(tr_topk, x, k, dim, __VA_ARGS__)
TR_API tr_tensor *tr_topk_with(const tr_topk_options *options);

typedef struct tr_sort_options {
    size_t size;
    const char *given;
    tr_tensor *x;
    int dim;
    bool descending;
    tr_tensor **indices; /* as tr_topk's: an argsort */
} tr_sort_options;
/* All elements along dim, in ascending order; equal ones keep their order. */
#define tr_sort(...) TR__NEW2(tr_sort, x, dim, __VA_ARGS__)
TR_API tr_tensor *tr_sort_with(const tr_sort_options *options);

/* ---- Matrix products ------------------------------------------------------------------------------------------- */

/* a: [..., M, K] x b: [..., K, N] = [..., M, N]; leading dimensions broadcast; a or b may be [K] (as in NumPy). */
TR_API tr_tensor *tr_matmul(tr_tensor *a, tr_tensor *b);

/* Sums of products by named dimensions: tr_einsum("bij,bjk->bik", a, b) is tr_matmul(a, b). A letter (A … Z, a … z)
 * names a dimension; letters that the result does not have are summed over. No letter occurs twice in one operand
 * (diagonals), and there is no ellipsis. */
TR_API tr_tensor *tr_einsum(const char *equation, tr_tensor *a, tr_tensor *b);

typedef enum tr_activation_kind {
    TR_NO_ACTIVATION,
    TR_RELU,
    TR_GELU,       /* as tr_gelu() */
    TR_GELU_EXACT, /* as tr_gelu_exact() */
    TR_ACTIVATION_COUNT
} tr_activation_kind;

typedef struct tr_linear_op_options {
    size_t size;
    const char *given;
    tr_tensor *x;        /* [..., in] */
    tr_tensor *weight;   /* [out, in], or [in, out] with in_out */
    tr_tensor *bias;     /* [out] or NULL */
    tr_tensor *residual; /* [..., out], added to the result; or NULL */
    bool in_out;
    tr_activation_kind activation; /* of x, applied within the gemm: its result is never written to memory */
} tr_linear_op_options;
/* y = activation(x) weight^T + bias + residual: [..., out]. On a device the rows of a 16-bit y have gaps between them
 * when there are 512 rows or more, and `out` is 512 or more and no multiple of 8. tr_contiguous() gives a copy without
 * gaps, which collectives require. */
#define tr_linear_op(...) TR__NEW2(tr_linear_op, x, weight, __VA_ARGS__)
TR_API tr_tensor *tr_linear_op_with(const tr_linear_op_options *options);

/* ---- Images ------------------------------------------------------------------------------------------------------
 *
 * Images are [batch, channels, height, width], as in PyTorch. The output of a convolution is channels-last in memory
 * (its strides say so), and the ops after it keep that order. Inputs may have any order. tr_reshape() and
 * tr_contiguous() give row-major order.
 */

typedef struct tr_conv2d_op_options {
    size_t size;
    const char *given;
    tr_tensor *x;      /* [batch, in, height, width] */
    tr_tensor *weight; /* [out, in/groups, kernel height, kernel width] */
    tr_tensor *bias;   /* [out] or NULL */
    int stride;        /* default 1 */
    int padding;       /* zeros on each side of the image */
    int dilation;      /* default 1; the distance between the kernel's elements */
    int groups;        /* default 1; outputs of group g use only the g-th part of the channels */
} tr_conv2d_op_options;
/* -> [batch, out, oh, ow], oh = (height + 2 padding - dilation (kernel height - 1) - 1) / stride + 1 */
#define tr_conv2d_op(...) TR__NEW2(tr_conv2d_op, x, weight, __VA_ARGS__)
TR_API tr_tensor *tr_conv2d_op_with(const tr_conv2d_op_options *options);

typedef struct tr_conv_transpose2d_op_options {
    size_t size;
    const char *given;
    tr_tensor *x;      /* [batch, in, height, width] */
    tr_tensor *weight; /* [in, out/groups, kernel height, kernel width] */
    tr_tensor *bias;   /* [out] or NULL */
    int stride;        /* default 1 */
    int padding;       /* how much is cut off each side of the result */
    int output_padding; /* how much is added at its lower and right end; less than the larger of stride and dilation */
    int dilation;      /* default 1 */
    int groups;        /* default 1 */
} tr_conv_transpose2d_op_options;
/* A transposed convolution (the gradient of a convolution, as a layer): -> [batch, out, oh, ow], oh = (height - 1)
 * stride - 2 padding + dilation (kernel height - 1) + 1 + output_padding */
#define tr_conv_transpose2d_op(...) TR__NEW2(tr_conv_transpose2d_op, x, weight, __VA_ARGS__)
TR_API tr_tensor *tr_conv_transpose2d_op_with(const tr_conv_transpose2d_op_options *options);

/* The same for sequences: x: [batch, in, length]; weight: [out, in/groups, kernel], of transposed convolutions [in,
 * out/groups, kernel]; -> [batch, out, length of the result] */
typedef tr_conv2d_op_options tr_conv1d_op_options;
typedef tr_conv_transpose2d_op_options tr_conv_transpose1d_op_options;
#define tr_conv1d_op(...) TR__NEW2(tr_conv1d_op, x, weight, __VA_ARGS__)
#define tr_conv_transpose1d_op(...) TR__NEW2(tr_conv_transpose1d_op, x, weight, __VA_ARGS__)
TR_API tr_tensor *tr_conv1d_op_with(const tr_conv1d_op_options *options);
TR_API tr_tensor *tr_conv_transpose1d_op_with(const tr_conv_transpose1d_op_options *options);

typedef struct tr_pool2d_options {
    size_t size;
    const char *given;
    tr_tensor *x; /* [batch, channels, height, width] */
    int kernel;   /* the window's height and width */
    int stride;   /* default: kernel */
    int padding;  /* on each side, at most half the kernel */
} tr_pool2d_options;
/* The largest value of each window: tr_max_pool2d(x, 2). Of equal ones the first gets the gradient. */
#define tr_max_pool2d(...) tr_max_pool2d_with(TR__NAMED_OPTIONS2(tr_pool2d_options, x, kernel, __VA_ARGS__))
TR_API tr_tensor *tr_max_pool2d_with(const tr_pool2d_options *options);
/* The mean of each window; the zeros of the padding count. */
#define tr_avg_pool2d(...) tr_avg_pool2d_with(TR__NAMED_OPTIONS2(tr_pool2d_options, x, kernel, __VA_ARGS__))
TR_API tr_tensor *tr_avg_pool2d_with(const tr_pool2d_options *options);
/* The means of height x width windows that cover the image: tr_adaptive_avg_pool2d(x, 1, 1) is the mean of each channel. */
TR_API tr_tensor *tr_adaptive_avg_pool2d(tr_tensor *x, int64_t height, int64_t width);

/* The largest value of each of these windows. */
TR_API tr_tensor *tr_adaptive_max_pool2d(tr_tensor *x, int64_t height, int64_t width);

/* The same for sequences, [batch, channels, length]. */
typedef tr_pool2d_options tr_pool1d_options;
#define tr_max_pool1d(...) tr_max_pool1d_with(TR__NAMED_OPTIONS2(tr_pool1d_options, x, kernel, __VA_ARGS__))
#define tr_avg_pool1d(...) tr_avg_pool1d_with(TR__NAMED_OPTIONS2(tr_pool1d_options, x, kernel, __VA_ARGS__))
TR_API tr_tensor *tr_max_pool1d_with(const tr_pool1d_options *options);
TR_API tr_tensor *tr_avg_pool1d_with(const tr_pool1d_options *options);
TR_API tr_tensor *tr_adaptive_avg_pool1d(tr_tensor *x, int64_t length);
TR_API tr_tensor *tr_adaptive_max_pool1d(tr_tensor *x, int64_t length);

typedef enum tr_interpolation {
    TR_INTERPOLATE_NEAREST,
    TR_INTERPOLATE_BILINEAR, /* of sequences: linear */
    TR_INTERPOLATE_BICUBIC   /* Keys 1981, a = -3/4 */
} tr_interpolation;

typedef struct tr_interpolate_options {
    size_t size;
    const char *given;
    tr_tensor *x;          /* [batch, channels, height, width], or [batch, channels, length] */
    int64_t height, width; /* of the result; for sequences .width is the length */
    double scale;          /* instead of the sizes: the factor from x's sizes */
    tr_interpolation mode;
    bool align_corners;    /* the centres of the corner pixels stay where they are; otherwise the outer corners of the
                              image do */
} tr_interpolate_options;
/* Resizes images as PyTorch does (without antialias): tr_interpolate(x, .scale = 2, .mode = TR_INTERPOLATE_BILINEAR).
 * The result has the same order in memory as x. */
#define tr_interpolate(...) TR__NEW1(tr_interpolate, x, __VA_ARGS__)
TR_API tr_tensor *tr_interpolate_with(const tr_interpolate_options *options);

typedef struct tr_batch_norm_op_options {
    size_t size;
    const char *given;
    tr_tensor *x;            /* [batch, channels, …] */
    tr_tensor *weight;       /* [channels] or NULL: ones; of x's dtype, or f32 when x has 16 bits */
    tr_tensor *bias;         /* [channels] or NULL: zeros; of the same dtypes */
    tr_tensor *running_mean; /* [channels] or NULL, both or neither; used when not training, otherwise moved towards the
                                batch's */
    tr_tensor *running_var;
    bool training;
    double momentum;         /* default 0.1, the fraction of the way by which the running statistics move */
    double eps;              /* default 1e-5 */
    tr_tensor *residual;     /* of x's shape, added to the norm; or NULL */
    bool relu;               /* the result is max(0, norm + residual). On the CPU and on GPUs this and the addition need no
                                further pass over memory */
} tr_batch_norm_op_options;
/* Ioffe & Szegedy 2015, per channel: (x - mean)/sqrt(var + eps) * weight + bias, with the batch's mean and variance in
 * training. The running variance moves towards the unbiased variance, as in PyTorch. An empty batch moves nothing. A
 * batch with one number per channel is an error in training, because it has no variance. */
#define tr_batch_norm_op(...) TR__NEW1(tr_batch_norm_op, x, __VA_ARGS__)
TR_API tr_tensor *tr_batch_norm_op_with(const tr_batch_norm_op_options *options);

/* ---- Softmax, losses, norms, embedding --------------------------------------------------------------------------*/

TR_API tr_tensor *tr_softmax(tr_tensor *x, int dim);
TR_API tr_tensor *tr_log_softmax(tr_tensor *x, int dim);

/* What a loss returns of the losses of its elements: their mean, their sum, or all of them. */
typedef enum tr_reduction { TR_REDUCE_MEAN, TR_REDUCE_SUM, TR_REDUCE_NONE } tr_reduction;

#define TR_IGNORE_ZERO INT64_MIN /* an ignore_index of 0, for bindings: see TR_ZERO */

typedef struct tr_cross_entropy_options {
    size_t size;
    const char *given;
    tr_tensor *logits;   /* [..., classes] */
    tr_tensor *targets;  /* [...] i64 or i32, each in 0 … classes-1, or ignore_index; or floats of the logits' shape: the
                            probabilities of the classes, as from mixup or a teacher */
    int64_t ignore_index; /* the target that does not count; default -100, as in PyTorch. Not for probabilities */
    double label_smoothing; /* 0 … 1: the target's class gets the probability 1 - label_smoothing (probabilities are
                               multiplied by it), and the rest is spread over all classes */
    tr_reduction reduction;
    tr_tensor *weight;   /* NULL, or [classes], of any float dtype: how much a target of each class counts */
} tr_cross_entropy_options;
/* The mean of -log softmax(logits)[target] over the targets that count: a scalar, f32 for 16-bit logits. A target
 * outside the classes is an error. With TR_REDUCE_NONE: [...], 0 where the target does not count. With weights the mean
 * is divided by the sum of the targets' weights, and smoothing spreads a target over the classes by their weights; both
 * as PyTorch. Weights are used in f32, with f64 logits in f64.
 * With probabilities each row's loss is the sum of -weight * probability * log softmax(logits), the mean is always over
 * rows, and targets, of any float dtype, may require a gradient. */
#define tr_cross_entropy(...) TR__NEW2(tr_cross_entropy, logits, targets, __VA_ARGS__)
TR_API tr_tensor *tr_cross_entropy_with(const tr_cross_entropy_options *options);

typedef struct tr_nll_loss_options {
    size_t size;
    const char *given;
    tr_tensor *x;       /* [..., classes]: logarithms of probabilities */
    tr_tensor *targets; /* as tr_cross_entropy()'s */
    int64_t ignore_index; /* likewise */
    tr_reduction reduction;
    tr_tensor *weight;  /* as tr_cross_entropy()'s */
} tr_nll_loss_options;
/* -x[target]. The mean is over the targets that count, or divided by the sum of their weights. With TR_REDUCE_NONE the
 * result has x's dtype, also when x is 16-bit and the weights, which are used in f32, are not. */
#define tr_nll_loss(...) TR__NEW2(tr_nll_loss, x, targets, __VA_ARGS__)
TR_API tr_tensor *tr_nll_loss_with(const tr_nll_loss_options *options);

/* The losses below take x and target of the same shape and dtype; nothing is broadcast. Their mean and sum are f32 for
 * 16-bit floats. */
typedef struct tr_loss_options {
    size_t size;
    const char *given;
    tr_tensor *x, *target;
    tr_reduction reduction;
} tr_loss_options;
#define tr_mse_loss(...) tr_mse_loss_with(TR__NAMED_OPTIONS2(tr_loss_options, x, target, __VA_ARGS__)) /* (x - target)^2 */
#define tr_l1_loss(...) tr_l1_loss_with(TR__NAMED_OPTIONS2(tr_loss_options, x, target, __VA_ARGS__))   /* |x - target| */
TR_API tr_tensor *tr_mse_loss_with(const tr_loss_options *options);
TR_API tr_tensor *tr_l1_loss_with(const tr_loss_options *options);

typedef struct tr_huber_loss_options {
    size_t size;
    const char *given;
    tr_tensor *x, *target;
    double delta; /* default 1; PyTorch's beta of smooth_l1_loss */
    tr_reduction reduction;
} tr_huber_loss_options;
/* Huber 1964: d^2/2 for |d| = |x - target| up to delta, delta (|d| - delta/2) beyond; smooth L1 is that divided by delta. */
#define tr_huber_loss(...) tr_huber_loss_with(TR__NAMED_OPTIONS2(tr_huber_loss_options, x, target, __VA_ARGS__))
#define tr_smooth_l1_loss(...) tr_smooth_l1_loss_with(TR__NAMED_OPTIONS2(tr_huber_loss_options, x, target, __VA_ARGS__))
TR_API tr_tensor *tr_huber_loss_with(const tr_huber_loss_options *options);
TR_API tr_tensor *tr_smooth_l1_loss_with(const tr_huber_loss_options *options);

typedef struct tr_bce_with_logits_options {
    size_t size;
    const char *given;
    tr_tensor *x, *target; /* logits; probabilities in 0 … 1 */
    tr_tensor *pos_weight; /* NULL, or the factor of positive targets; broadcast to x */
    tr_reduction reduction;
    tr_tensor *weight;     /* NULL, or the factor of each element's loss; broadcast to x. The mean divides by the number
                              of elements */
} tr_bce_with_logits_options;
/* -target log(sigmoid(x)) - (1 - target) log(1 - sigmoid(x)), without overflow. */
#define tr_bce_with_logits(...) TR__NEW2(tr_bce_with_logits, x, target, __VA_ARGS__)
TR_API tr_tensor *tr_bce_with_logits_with(const tr_bce_with_logits_options *options);

typedef struct tr_kl_div_options {
    size_t size;
    const char *given;
    tr_tensor *x;      /* logarithms of probabilities */
    tr_tensor *target; /* probabilities, or their logarithms with log_target */
    bool log_target;
    tr_reduction reduction;
} tr_kl_div_options;
/* Kullback & Leibler 1951, the divergence of target from exp(x): target (log(target) - x). The mean is over all
 * elements, as in PyTorch; PyTorch's "batchmean" is TR_REDUCE_SUM divided by the batch size. */
#define tr_kl_div(...) TR__NEW2(tr_kl_div, x, target, __VA_ARGS__)
TR_API tr_tensor *tr_kl_div_with(const tr_kl_div_options *options);

/* Layer norm (Ba et al. 2016), over the last dimension: (x - mean)/sqrt(var + eps) * weight + bias. weight, bias: [dim]
 * or NULL. */
TR_API tr_tensor *tr_layer_norm_op(tr_tensor *x, tr_tensor *weight, tr_tensor *bias, double eps);

/* RMS norm (Zhang & Sennrich 2019), over the last dimension: x / sqrt(mean(x^2) + eps) * weight. weight: [dim] or NULL. */
TR_API tr_tensor *tr_rms_norm_op(tr_tensor *x, tr_tensor *weight, double eps);

/* Group norm (Wu & He 2018), over each group's channels and pixels. x: [batch, channels, …]; groups divides channels;
 * weight, bias: [channels] or NULL. groups = channels is instance norm. The result is row-major, also for channels-last
 * images. -> as x */
TR_API tr_tensor *tr_group_norm_op(tr_tensor *x, int64_t groups, tr_tensor *weight, tr_tensor *bias, double eps);

typedef struct tr_rotary_options {
    size_t size;
    const char *given;
    tr_tensor *x;     /* [..., seq, dim], dim even: queries or keys */
    double base;      /* default 10000 */
    int64_t first;    /* the position of the first element of seq: the number of elements in a cache before it */
    bool interleaved; /* pairs are neighbours, as in the paper and GPT-J; otherwise dim/2 apart, as in Llama and
                         GPT-NeoX */
} tr_rotary_options;
/* Rotary position embedding (Su et al. 2021): pair i at position p is rotated by p base^(-2i/dim). -> as x */
#define tr_rotary(...) TR__NEW1(tr_rotary, x, __VA_ARGS__)
TR_API tr_tensor *tr_rotary_with(const tr_rotary_options *options);

/* ids: [...] i64 or i32, weight: [rows, dim] -> [..., dim]. An id outside the rows is an error. */
TR_API tr_tensor *tr_embedding_op(tr_tensor *ids, tr_tensor *weight);

/* A program's own loss, for evaluation and pipelines: the mean loss of a batch or micro-batch, a scalar, from a model's
 * output. y is NULL when samples have none. */
typedef tr_tensor *(*tr_loss_function)(tr_tensor *output, tr_tensor *y, void *user);

/* ---- Elements by index -------------------------------------------------------------------------------------------------
 *
 * Indices are i64 or i32, in 0 … size - 1 of x's dimension; any other is an error that names it. x may have any dtype.
 */

/* Along dim 0: y[i, j] = x[index[i, j], j]. The index has as many dimensions as x; none of them, except dim, is longer
 * than x's. -> as index */
TR_API tr_tensor *tr_take_along(tr_tensor *x, int dim, tr_tensor *index);
/* x with additions, along dim 0: y[index[i, j], j] += src[i, j]; src: as index. The order is fixed, for any number of
 * threads. -> as x */
TR_API tr_tensor *tr_scatter_add(tr_tensor *x, int dim, tr_tensor *index, tr_tensor *src);
/* The same, but y[index[i, j], j] = src[i, j]. When an index occurs twice, the last one counts, but both get the
 * gradient. */
TR_API tr_tensor *tr_put_along(tr_tensor *x, int dim, tr_tensor *index, tr_tensor *src);
TR_API tr_tensor *tr_index_select(tr_tensor *x, int dim, tr_tensor *ids); /* ids: [n] -> x with n along dim */
TR_API tr_tensor *tr_flip(tr_tensor *x, int dim);                         /* a copy, last to first */
TR_API tr_tensor *tr_one_hot(tr_tensor *ids, int64_t classes, tr_dtype dtype); /* ids: [...] -> [..., classes] */

typedef struct tr_multinomial_options {
    size_t size;
    const char *given;
    tr_tensor *weights; /* [..., classes], floats of 0 and more; their sum may be any number */
    int64_t count;      /* classes drawn for each row */
    uint64_t seed;      /* another seed gives other numbers: a program that draws more than once takes a new one each
                           time */
    bool replacement;   /* a class may be drawn again; otherwise no two are the same */
} tr_multinomial_options;
/* Draws classes with probabilities in proportion to their weights, on the CPU: tr_multinomial(tr_softmax(logits, -1),
 * 1, seed). -> i64 [..., count], in the order in which they were drawn; no gradient. TR_INVALID for a NaN, and when too
 * few weights are above 0. */
#define tr_multinomial(...) TR__NEW3(tr_multinomial, weights, count, seed, __VA_ARGS__)
TR_API tr_tensor *tr_multinomial_with(const tr_multinomial_options *options);

/* ---- Attention: softmax(q k^T * scale + mask) v, without ever storing the [queries, keys] matrix ------------------ */

typedef struct tr_attention_options {
    size_t size;
    const char *given;
    tr_tensor *q;    /* [batch, heads, queries, dim], any strides, but the last is 1 */
    tr_tensor *k;    /* [batch, kv heads, keys, dim]; k and v may have fewer heads than q: each then serves heads / kv
                        heads neighbours of q */
    tr_tensor *v;    /* [batch, heads, keys, dim] */
    bool causal;     /* query i sees keys 0 … i (+ keys - queries) */
    tr_tensor *mask; /* NULL, or bool (true: attention is allowed), broadcastable to [batch, heads, queries, keys] */
    double scale;    /* default 1/sqrt(dim) */
    tr_tensor *lengths; /* NULL, or [batch] i64 or i32: so many keys of each sample count, from the first on; in
                           addition to mask */
} tr_attention_options;
/* Dao et al. 2022 (FlashAttention), tiled online softmax. -> [batch, heads, queries, dim] */
#define tr_attention(...) TR__NEW3(tr_attention, q, k, v, __VA_ARGS__)
TR_API tr_tensor *tr_attention_with(const tr_attention_options *options);

/* The same on a packed projection. qkv: [batch, seq, 3*heads*dim], in the order of GPT-2's c_attn -> [batch, seq,
 * heads*dim]. There is no split and no transpose; the gradient is packed, too. */
typedef struct tr_self_attention_options {
    size_t size;
    const char *given;
    tr_tensor *qkv;
    int heads;
    bool causal;
    double scale;
} tr_self_attention_options;
#define tr_self_attention(...) TR__NEW2(tr_self_attention, qkv, heads, __VA_ARGS__)
TR_API tr_tensor *tr_self_attention_with(const tr_self_attention_options *options);

/* ---- Shape ----------------------------------------------------------------------------------------------------- */

/* A view when strides allow it, else a copy. One size may be -1: it is computed from the others. */
TR_API tr_tensor *tr_reshape(tr_tensor *x, tr_shape shape);
TR_API tr_tensor *tr_transpose(tr_tensor *x, int dim0, int dim1);           /* view */
TR_API tr_tensor *tr_permute(tr_tensor *x, const int *order, int n);         /* view */
TR_API tr_tensor *tr_expand(tr_tensor *x, tr_shape shape);                   /* view; broadcasting */
TR_API tr_tensor *tr_slice(tr_tensor *x, int dim, int64_t start, int64_t end); /* view; negative: from the end */
TR_API tr_tensor *tr_select(tr_tensor *x, int dim, int64_t index); /* view: x at index, without dim; a negative index
                                                                      counts from the end */
TR_API tr_tensor *tr_squeeze(tr_tensor *x, int dim);   /* view: x without dim, whose size must be 1 (else TR_SHAPE) */
TR_API tr_tensor *tr_unsqueeze(tr_tensor *x, int dim); /* view: x with one more dim, of size 1; -1 is the result's last */
/* Views when strides allow it, else copies. tr_flatten(): dimensions first … last become one. tr_unflatten(): dim
 * becomes several, of which one size may be -1. */
TR_API tr_tensor *tr_flatten(tr_tensor *x, int first, int last);
TR_API tr_tensor *tr_unflatten(tr_tensor *x, int dim, tr_shape shape);
TR_API tr_tensor *tr_contiguous(tr_tensor *x);                               /* x itself when it is row-major already */
TR_API tr_tensor *tr_clone(tr_tensor *x);                                    /* a copy in memory of its own, row-major */
TR_API tr_tensor *tr_cat(tr_tensor *const *parts, int n, int dim);
TR_API tr_tensor *tr_stack(tr_tensor *const *parts, int n, int dim); /* parts of one shape, along a new dimension */

typedef struct tr_pad_options {
    size_t size;
    const char *given;
    tr_tensor *x;
    int64_t before[TR_MAX_DIMS]; /* for each dimension: how many elements come before x's, and after */
    int64_t after[TR_MAX_DIMS];
    double value;
} tr_pad_options;
/* tr_pad(x, .before = {0, 0, 1, 1}, .after = {0, 0, 1, 1}): a frame of zeros around images. */
#define tr_pad(...) tr_pad_with(TR__BRACES1(tr_pad_options, x, __VA_ARGS__))
TR_API tr_tensor *tr_pad_with(const tr_pad_options *options);
/* Writes n equal parts along dim into parts (views). Fails when n does not divide the size, and when parts is an array
 * of fewer than n. When parts is a pointer, its room is not known and not checked. */
#define tr_split(x, n, dim, parts) tr_split_into((x), (n), (dim), (parts), TR__ROOM(parts))
TR_API TR_MUST_CHECK tr_status tr_split_into(tr_tensor *x, int n, int dim, tr_tensor **parts, int room); /* room 0: not known */
TR_API tr_tensor *tr_cast(tr_tensor *x, tr_dtype dtype);  /* x itself when it has this dtype already */
TR_API tr_tensor *tr_to(tr_tensor *x, tr_device device);  /* differentiable copy between devices */

/* ---- A user's own op ------------------------------------------------------------------------------------------- */

/* What an op's functions get. inputs[i] may be NULL where the op allows "none". */
typedef struct tr_op_call {
    const struct tr_op *op;
    const void *attrs;          /* the op's attributes, op->attrs_size bytes; aligned to 16 */
    int n_inputs, n_outputs;
    tr_tensor *const *inputs;
    tr_tensor **outputs;        /* infer: set each with tr_op_output(); forward: write them */
} tr_op_call;

typedef struct tr_backward_call {
    const struct tr_op *op;
    const void *attrs;
    int n_inputs, n_outputs;
    tr_tensor *const *inputs;       /* the saved ones, NULL where not saved */
    tr_tensor *const *outputs;      /* the saved ones, NULL where not saved */
    tr_tensor *const *grad_outputs; /* NULL where no gradient arrived */
    const bool *needs;              /* needs[i]: grad_inputs[i] is wanted */
    tr_tensor **grad_inputs;        /* set those that are needed, with the shape, dtype and device of the
                                       input; where one stays NULL, the op adds nothing to that gradient */
} tr_backward_call;

#define TR_OP_MAX_INPUTS 8
#define TR_OP_MAX_OUTPUTS 8

/* Keeps C++ compilers from warning of a tr_op that leaves these members out. */
#ifdef __cplusplus
#define TR__MAY_LACK = {}
#else
#define TR__MAY_LACK
#endif

/* An operation. A user's own is a `static const tr_op`; its forward runs on tensors of any strides that infer accepts. */
typedef struct tr_op {
    size_t size;                            /* sizeof(tr_op); an op without it is refused */
    const char *name;                       /* "swish": shown in errors and traces; kernels of devices are found by it */
    size_t attrs_size TR__MAY_LACK;
    /* Checks inputs and gives each output its shape and dtype: tr_op_output(call, 0, shape, dtype). */
    tr_status (*infer)(tr_op_call *call);
    /* Computes the outputs on the CPU. */
    tr_status (*forward)(tr_op_call *call);
    /* Computes the gradients of the inputs; NULL: the op has none. May call ops (they are not recorded). */
    tr_status (*backward)(tr_backward_call *call) TR__MAY_LACK;
    uint32_t saves_inputs TR__MAY_LACK, saves_outputs TR__MAY_LACK; /* bit i: backward reads inputs[i], outputs[i] */
    uint32_t flags TR__MAY_LACK;
} tr_op;

/* Cheap to compute again: backward recomputes its outputs instead of keeping them. In a chain of such ops every third
 * output is kept. */
#define TR_OP_CHEAP 1u

/* For infer: makes outputs[i], row-major, on the device of the first input. */
TR_API TR_MUST_CHECK tr_status tr_op_output(tr_op_call *call, int i, tr_shape shape, tr_dtype dtype);
/* Runs an op and returns its first output. outputs, when not NULL, gets all outputs of the op. attrs is copied. */
TR_API tr_tensor *tr_apply(const tr_op *op, const void *attrs, tr_tensor *const *inputs, int n_inputs, tr_tensor **outputs);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
