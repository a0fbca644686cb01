/* Direct gradients of weights (direct.h) in bf16, by instructions that multiply pairs of numbers. */
#ifndef TR_OPS_CPU_DIRECT_PAIRS_H
#define TR_OPS_CPU_DIRECT_PAIRS_H

#include "base/pool.h"
#include "ops/conv.h"

/* All channels-last; places along an output must be an even number, and its channels multiples of TR__PAIRS_CHANNELS. */
typedef struct tr__direct_pairs {
    tr__conv2d s;
    const uint16_t *x;  /* bf16 [n, h + 2 padding, w + 2 padding, c] */
    const uint16_t *dy; /* bf16 [n, oh, ow, k] */
    float *dweight;     /* [k, kh, kw, c] */
    bool accumulate;    /* onto dweight */
    tr_device device;
    tr__pool *pool;
} tr__direct_pairs;

enum { TR__PAIRS_CHANNELS = 16 };

#if defined(__x86_64__)
/* Where tr__has_avx512bf16(). false: no memory. */
bool tr__direct_pairs_avx512bf16(const tr__direct_pairs *d);
#endif

#endif
