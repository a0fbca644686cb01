/* The sizes of a convolution, as all its kernels see them. */
#ifndef TR_OPS_CONV_H
#define TR_OPS_CONV_H

#include "ops/op.h"

typedef struct tr__conv2d {
    int64_t n, c, h, w; /* x: [n, c, h, w] */
    int64_t k, kh, kw;  /* weight: [k, c/groups, kh, kw], bias: [k] */
    int64_t oh, ow;     /* y: [n, k, oh, ow] */
    int64_t groups, stride, padding, dilation;
} tr__conv2d;

/* The checks that all convolutions share, of images and of sequences (transposed or not): `what` names the op. The dims of x
 * and weight are 2 + the spatial ones, of which there are 1 or 2. */
tr_status tr__conv_check(const char *what, const tr_conv2d_attrs *attrs);
tr_status tr__conv_check_shapes(const char *what, const tr_tensor *x, const tr_tensor *weight, const tr_tensor *bias,
    int64_t groups, int spatial, bool transposed);
/* The convolution that a call of conv2d, conv2d_grad_input or conv2d_grad_weight asks for. The last one's outputs[0] is there. */
tr__conv2d tr__conv2d_of(const tr_op_call *call);
/* The dimensions of images over which the gradient of a bias is summed: all but the channels. */
enum { TR__CONV2D_PIXELS = 1 | 4 | 8 };

#endif
