/* Convolutions as conv.cu sees them: it has kernels for any, cudnn.cu is asked first. */
#ifndef TRIREME_CUDA_CONV_H
#define TRIREME_CUDA_CONV_H

#include "kernel.h"

struct conv_sizes {
    int64_t n, c, h, w; /* x: [n, c, h, w] */
    int64_t k, kh, kw;  /* weight: [k, c/groups, kh, kw] */
    int64_t oh, ow;     /* y: [n, k, oh, ow] */
    int64_t groups, stride, padding, dilation;
};

enum conv_kind { CONV_FORWARD, CONV_GRAD_INPUT, CONV_GRAD_WEIGHT };

/* Is cuDNN there, and has it convolutions of this dtype? */
bool cudnn_serves(tr_dtype dtype);
/* y, x or weight, as the kind says, of the other two; all of one dtype, dense and channels-last. TR_DECLINED: cuDNN has
 * nothing for these sizes. */
tr_status cudnn_convolve(const job &j, conv_kind kind, const conv_sizes &s, tr_dtype dtype, void *x, void *weight,
                         void *y);

#endif
