/*
 * Convolutions of 3 x 3 taps by Winograd's minimal filtering: a tile of 4 x 4 outputs, and the 6 x 6 pixels that it
 * reads, are transformed to 36 points, where the convolution is a product: 36 multiplications per pair of channels, not 144.
 */
#ifndef TR_OPS_CPU_CONV_WINOGRAD_H
#define TR_OPS_CPU_CONV_WINOGRAD_H

#include <trireme/base.h>

#include <stdbool.h>
#include <stdint.h>

/* Channels-last; f32 or 16-bit. */
typedef struct tr__winograd_images {
    tr_dtype dtype;
    void *data;
    int64_t h, w, c;
} tr__winograd_images;

/* What is computed: images `to` from images `from`, or dweight from both. */
typedef struct tr__winograd {
    int64_t n;                     /* images on both sides */
    tr__winograd_images from, to;  /* x and y; for the gradient of x dy and dx */
    int64_t offset;                /* of the first tap from an output's place */
    const float *weight;           /* [k, c, 3, 3] */
    bool gradient;                 /* of x: k are the channels of `from`, c those of `to`, and the taps go from last to first */
    const float *bias;             /* [to.c] or NULL */
    float *dweight;                /* [k, c, 3, 3], k the channels of `to`, c those of `from` */
    bool accumulate;               /* onto dweight */
    tr_device device;
} tr__winograd;

/* Channels are multiples of it on both sides, so of a vector on every machine. */
enum { TR__WINOGRAD_CHANNELS = 16 };

/* Written once (winograd_tiles.h), compiled for each kind of machine. false: out of memory. */
typedef struct tr__winograd_kernels {
    bool (*convolve)(const tr__winograd *w);
    bool (*grad_weight)(const tr__winograd *w);
} tr__winograd_kernels;

#if defined(__x86_64__)
extern const tr__winograd_kernels tr__winograd_avx512, tr__winograd_avx2;
#endif
extern const tr__winograd_kernels tr__winograd_generic;

#endif
