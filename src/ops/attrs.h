/* The attributes of the ops in ops.def: what their kernels get besides tensors. */
#ifndef TR_OPS_ATTRS_H
#define TR_OPS_ATTRS_H

#include <trireme/ops.h>

typedef struct tr__affine_attrs {
    double scale, shift;
} tr__affine_attrs;

typedef struct tr__leaky_relu_attrs {
    double slope; /* below 0 */
} tr__leaky_relu_attrs;

typedef struct tr__elu_attrs {
    double alpha, scale, inner; /* scale * (x > 0 ? x : alpha * expm1(inner * x)) */
} tr__elu_attrs;

typedef struct tr__clamp_attrs {
    double least, most;
} tr__clamp_attrs;

typedef struct tr__pow_attrs {
    double exponent;
} tr__pow_attrs;

typedef struct tr__dropout_attrs {
    double p;
    uint64_t seed, step, first_sample;
} tr__dropout_attrs;

typedef struct tr__reduce_attrs {
    uint32_t dims; /* bit d: dimension d is reduced */
    bool keep;
} tr__reduce_attrs;

typedef struct tr__cumsum_attrs {
    int dim; /* not negative */
    bool reverse; /* from the end */
} tr__cumsum_attrs;

typedef struct tr__topk_attrs {
    int dim; /* not negative */
    int64_t k;
    bool smallest;
} tr__topk_attrs;

typedef struct tr__rotary_attrs {
    double base;
    int64_t first;    /* position */
    bool interleaved; /* pairs are neighbours; else dim/2 apart */
    bool back;        /* the other way round */
} tr__rotary_attrs;

typedef struct tr__pad_attrs {
    int64_t before[TR_MAX_DIMS], after[TR_MAX_DIMS];
    double value;
} tr__pad_attrs;

typedef struct tr__dim_attrs {
    int dim; /* not negative */
} tr__dim_attrs;

typedef struct tr__linear_attrs {
    bool in_out;     /* weight is [k, n]; else [n, k] */
    bool accumulate; /* of the gradients: add to dw, dbias rather than overwrite */
    bool accumulate_bias;
    tr_activation_kind activation; /* of x */
} tr__linear_attrs;

typedef struct tr__conv2d_attrs {
    int stride, padding, dilation, groups; /* the same for height and width */
    bool accumulate, accumulate_bias;      /* of the gradients: add to dweight, dbias rather than overwrite */
} tr__conv2d_attrs;

typedef struct tr__conv_transpose2d_attrs {
    tr__conv2d_attrs conv;
    int output_padding; /* below the stride */
} tr__conv_transpose2d_attrs;

typedef struct tr__pool2d_attrs {
    int kernel, stride, padding;
    bool line;                       /* of sequences: images of height 1, windows too, and no padding above and below */
    int64_t out_height, out_width;   /* of an adaptive pooling's y; kernel is 0 then */
    tr_shape image;                  /* of x, and the order in memory of its gradient */
    int64_t image_stride[TR_MAX_DIMS];
} tr__pool2d_attrs;

typedef struct tr__interpolate_attrs {
    tr_interpolation mode;
    bool align_corners;
    int64_t height, width;             /* of y */
    double scale_height, scale_width;  /* 0: y's sizes by x's */
    tr_shape image;                    /* of x, and the order in memory of its gradient */
    int64_t image_stride[TR_MAX_DIMS];
} tr__interpolate_attrs;

typedef struct tr__batch_norm_attrs {
    double eps;
    bool frozen; /* mean and variance are given */
    bool accumulate_weight, accumulate_bias; /* of the gradients */
} tr__batch_norm_attrs;

typedef struct tr__accumulate_attrs {
    bool accumulate;
} tr__accumulate_attrs;

typedef struct tr__cross_entropy_attrs {
    int64_t ignore_index;
    double smoothing;
    tr_reduction reduction;
} tr__cross_entropy_attrs;

typedef struct tr__huber_loss_attrs {
    double delta;
} tr__huber_loss_attrs;

typedef struct tr__layer_norm_attrs {
    double eps;
    bool accumulate_weight, accumulate_bias; /* of the gradients */
} tr__layer_norm_attrs;

typedef struct tr__attention_attrs {
    int heads; /* of self_attention */
    bool causal;
    double scale;
} tr__attention_attrs;

typedef struct tr__view_attrs {
    tr_shape shape;
} tr__view_attrs;

typedef struct tr__permute_attrs {
    int order[TR_MAX_DIMS]; /* output dimension i is input dimension order[i] */
} tr__permute_attrs;

typedef struct tr__slice_attrs {
    int dim;
    int64_t start, end; /* 0 <= start <= end <= size */
} tr__slice_attrs;

typedef struct tr__split_attrs {
    int dim, parts;
} tr__split_attrs;

typedef struct tr__cast_attrs {
    tr_dtype dtype, from;
} tr__cast_attrs;

typedef struct tr__to_attrs {
    tr_device device, from;
} tr__to_attrs;

#endif
