/*
 * Direct convolutions of images with few channels, as a network's first layer has: outputs are summed in registers while the
 * taps run over the pixels in place. Only the weight is packed.
 */
#ifndef TR_OPS_CPU_CONV_DIRECT_H
#define TR_OPS_CPU_CONV_DIRECT_H

#include "ops/conv.h"

/* What is computed: y from x, or dweight from both. Images channels-last; all f32, or x and y bf16 for tr__direct_avx512bf16(). */
typedef struct tr__direct {
    tr__conv2d s;
    const void *x;       /* [n, h + 2 padding, w + 2 padding, c] */
    const float *weight; /* [k, kh, kw, c] */
    const float *bias;   /* [k] or NULL */
    void *y;             /* [n, oh, ow, k]; its gradient, which is read */
    float *dweight;      /* [k, kh, kw, c] */
    bool accumulate;     /* onto dweight */
    tr_device device;
} tr__direct;

/* Written once (direct_tiles.h), compiled for each kind of machine. false: out of memory. The channels of outputs must be whole
 * vectors, or fewer than a panel has. */
typedef struct tr__direct_kernels {
    int64_t vector, panel;
    bool (*convolve)(const tr__direct *d);
    bool (*grad_weight)(const tr__direct *d);
} tr__direct_kernels;

enum { TR__VNNI_CHANNELS = 16 };

#if defined(__x86_64__)
extern const tr__direct_kernels tr__direct_avx512, tr__direct_avx2;
/* The gradient of weights by the bf16 dot product. The width of an output must be even, its channels a multiple of
 * TR__VNNI_CHANNELS. Needs tr__has_avx512bf16(). false: out of memory. */
bool tr__direct_avx512bf16(const tr__direct *d);
#endif
extern const tr__direct_kernels tr__direct_generic;

#endif
