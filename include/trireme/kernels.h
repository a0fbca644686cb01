/*
 * Trireme, kernels: what a kernel for each op gets. For plug-ins (trireme/device.h) and whoever registers kernels.
 *
 * src/ops/ops.def has a row for each op, with its inputs, outputs and their shapes, and docs/ops.md says what each op
 * computes. This header has the attributes; an op without a struct below has none. A kernel of one of the library's ops
 * takes any strides and every dtype that the op does, or declines. f16 and bf16 are computed in f32. "accumulate" in
 * attributes means: add to the output instead of overwriting it. Outputs of backward ops that nobody wants have data
 * NULL.
 *
 * The ops view, permute, expand, slice and split make views: they have no kernel. Where a device has no kernels of its
 * own for cat, pad, cast and to, the library uses its kernels copy and fill.
 *
 * Besides the rows of ops.def, and fill, copy and random (trireme/device.h), the library asks for these kernels:
 *
 *   sum_squares    x: [n], a float -> y: [1] f64    y <- y + the sum of the squares of x, summed in f64 in a fixed order
 *   batch_norm_move  mean: [c], var: [c] ->         the running statistics, in place, of any floats: each is
 *                  running mean, running var: [c], (1 - momentum) running + momentum batch, the batch's variance times
 *                  batches?: [] i64               `unbiased`; batches <- batches + 1 (tr_batch_norm_move_attrs). A device
 *                                                   that lacks or declines it is asked for affine, add and copies
 *   RULE_step      g: [n], direction?: [n] ->       one step of an optimizer over a run of neighbours in an arena: p and the
 *                  p: [n], states?: three of [n]    states are read and written in place (tr_step_attrs). g and p are of one
 *                                                   dtype, f32, f64 or bf16; direction and states f32 (f64 for f64), or
 *                                                   states bf16; all row-major. direction: muon's only
 *   RULE_measure   g: [n], p: [n] -> sums: [2] f64,  lars, lamb, muon: two sums over a whole parameter before its step, which
 *                  states?: three of [n],           are overwritten; lamb's and muon's states are updated here, and muon's
 *                  direction?: [n]                  direction is written (src/optim/lars.c, lamb.c, muon.c)
 *
 * Mixed dtypes: under autocast `add` gets f32 and 16-bit floats together, and its output is f32. What it declines is converted
 * by copy first.
 *
 * In place: `affine`, `add`, `clamp` and the other elementwise ops may get an output that is exactly one of their
 * inputs.
 */
#ifndef TRIREME_KERNELS_H
#define TRIREME_KERNELS_H

#include <trireme/ops.h>

/* settings: first the lr and weight_decay with which the optimizer was made, which `lr` and `weight_decay` below
 * override; then the rule's own:
 *
 *   sgd        momentum, dampening, nesterov              state: momentum_buffer, only with momentum
 *   adam(w)    beta1, beta2, eps, decoupled               exp_avg, exp_avg_sq, (amsgrad:) max_exp_avg_sq
 *   adadelta   rho, eps                                   as src/optim/RULE.c, also for adagrad (lr_decay, eps, initial),
 *   adamax     beta1, beta2, eps                          lamb (beta1, beta2, eps, matrices_only), lars (momentum, trust,
 *   lion       beta1, beta2                               matrices_only), muon (momentum, eps, iterations, plain, match_adamw),
 *   rprop      decrease, increase, least, most            nadam (beta1, beta2, eps, momentum_decay, decoupled), radam (beta1,
 *                                                         beta2, eps, decoupled), rmsprop (alpha, eps, centered, momentum)
 *
 * The last setting is 1 when states are bf16 (sgd, adam, adamw, lion). The rule then computes in f32, and the states
 * are rounded stochastically, by a 16-bit number r from Philox4x32-10. For the element at place i in the arena, and
 * state k:
 *
 *   key = mix(0x62663136, step), a step of splitmix64; counter = (0, i / 8); h = the (i % 8)th of the 8 halfwords, lowest first
 *   r = h (1, 0x9e37, 0x79b9)[k] mod 2^16; y = (bits of the f32 + r) >> 16; NaN stays NaN
 *
 * States that are not given have data NULL. */
typedef struct tr_step_attrs {
    int64_t step; /* the step count of these parameters, from 1 */
    double lr, weight_decay;
    double factor; /* nadam: its product of momenta; lars, lamb, muon: the factor that follows from the measure;
                      otherwise 0 */
    double settings[8];
    int64_t place; /* of the first element in the parameters' arena: a multiple of 32 */
} tr_step_attrs;

/* ---- Attributes of the rows of ops.def --------------------------------------------------------------------------- */

typedef struct tr_affine_attrs {
    double scale, shift;
} tr_affine_attrs;

typedef struct tr_leaky_relu_attrs {
    double slope; /* below 0 */
} tr_leaky_relu_attrs;

typedef struct tr_elu_attrs {
    double alpha, scale, inner; /* scale * (x > 0 ? x : alpha * expm1(inner * x)) */
} tr_elu_attrs;

typedef struct tr_clamp_attrs {
    double least, most;
} tr_clamp_attrs;

typedef struct tr_pow_attrs {
    double exponent;
} tr_pow_attrs;

typedef struct tr_dropout_attrs {
    double p;
    uint64_t seed, step, first_sample;
    uint64_t source; /* internal, not for kernels: the module that these numbers are for, while a step is captured */
} tr_dropout_attrs;

typedef struct tr_reduce_attrs {
    uint32_t dims; /* bit d: dimension d is reduced */
    bool keep;
} tr_reduce_attrs;

typedef struct tr_cumsum_attrs {
    int dim; /* not negative */
    bool reverse; /* from the end */
} tr_cumsum_attrs;

typedef struct tr_topk_attrs {
    int dim; /* not negative */
    int64_t k;
    bool smallest;
} tr_topk_attrs;

typedef struct tr_rotary_attrs {
    double base;
    int64_t first;    /* position */
    bool interleaved; /* pairs are neighbours; otherwise dim/2 apart */
    bool back;        /* rotates in the opposite direction */
} tr_rotary_attrs;

typedef struct tr_pad_attrs {
    int64_t before[TR_MAX_DIMS], after[TR_MAX_DIMS];
    double value;
} tr_pad_attrs;

typedef struct tr_dim_attrs {
    int dim; /* not negative */
} tr_dim_attrs;

typedef struct tr_linear_attrs {
    bool in_out;     /* weight is [k, n]; else [n, k] */
    bool accumulate; /* of the gradients: add to dw, dbias rather than overwrite */
    bool accumulate_bias;
    tr_activation_kind activation; /* of x */
} tr_linear_attrs;

typedef struct tr_conv2d_attrs {
    int stride, padding, dilation, groups; /* the same for height and width */
    bool accumulate, accumulate_bias;      /* of the gradients: add to dweight, dbias rather than overwrite */
} tr_conv2d_attrs;

typedef struct tr_conv_transpose2d_attrs {
    tr_conv2d_attrs conv;
    int output_padding; /* below the stride */
} tr_conv_transpose2d_attrs;

typedef struct tr_pool2d_attrs {
    int kernel, stride, padding;
    bool line;                       /* for sequences: images and windows have height 1, and there is no padding above
                                        and below */
    int64_t out_height, out_width;   /* of an adaptive pooling's y; kernel is 0 then */
    tr_shape image;                  /* of x, and the order in memory of its gradient */
    int64_t image_stride[TR_MAX_DIMS];
} tr_pool2d_attrs;

typedef struct tr_interpolate_attrs {
    tr_interpolation mode;
    bool align_corners;
    int64_t height, width;             /* of y */
    double scale_height, scale_width;  /* 0: the ratio of y's and x's sizes */
    tr_shape image;                    /* of x, and the order in memory of its gradient */
    int64_t image_stride[TR_MAX_DIMS];
} tr_interpolate_attrs;

typedef struct tr_batch_norm_attrs {
    double eps;
    bool frozen; /* mean and variance are given */
    bool accumulate_weight, accumulate_bias; /* of the gradients */
} tr_batch_norm_attrs;

typedef struct tr_batch_norm_move_attrs {
    double momentum, unbiased; /* n/(n - 1) of the n numbers of a channel */
} tr_batch_norm_move_attrs;

typedef struct tr_accumulate_attrs {
    bool accumulate;
} tr_accumulate_attrs;

typedef struct tr_cross_entropy_attrs {
    int64_t ignore_index;
    double smoothing;
    tr_reduction reduction;
} tr_cross_entropy_attrs;

typedef struct tr_huber_loss_attrs {
    double delta;
} tr_huber_loss_attrs;

typedef struct tr_layer_norm_attrs {
    double eps;
    bool accumulate_weight, accumulate_bias; /* of the gradients */
} tr_layer_norm_attrs;

typedef struct tr_attention_attrs {
    int heads; /* of self_attention */
    bool causal;
    double scale;
} tr_attention_attrs;

typedef struct tr_view_attrs {
    tr_shape shape;
} tr_view_attrs;

typedef struct tr_permute_attrs {
    int order[TR_MAX_DIMS]; /* output dimension i is input dimension order[i] */
} tr_permute_attrs;

typedef struct tr_slice_attrs {
    int dim;
    int64_t start, end; /* 0 <= start <= end <= size */
} tr_slice_attrs;

typedef struct tr_split_attrs {
    int dim, parts;
} tr_split_attrs;

typedef struct tr_cast_attrs {
    tr_dtype dtype, from;
} tr_cast_attrs;

typedef struct tr_to_attrs {
    tr_device device, from;
} tr_to_attrs;

#endif
