/* Direct gradients of weights (direct.h) by the bf16 dot product. */
#ifndef TR_OPS_CPU_CONV_DIRECT_VNNI_H
#define TR_OPS_CPU_CONV_DIRECT_VNNI_H

#include "base/pool.h"
#include "ops/conv.h"

/* All channels-last. The width of an output must be even, its channels a multiple of TR__VNNI_CHANNELS. */
typedef struct tr__direct_vnni {
    tr__conv2d s;
    const uint16_t *x;  /* bf16 [n, h + 2 padding, w + 2 padding, c] */
    const uint16_t *dy; /* bf16 [n, oh, ow, k] */
    float *dweight;     /* [k, kh, kw, c] */
    bool accumulate;    /* onto dweight */
    tr_device device;
    tr__pool *pool;
} tr__direct_vnni;

enum { TR__VNNI_CHANNELS = 16 };

#if defined(__x86_64__)
/* Needs tr__has_avx512bf16(). false: out of memory. */
bool tr__direct_vnni_avx512bf16(const tr__direct_vnni *d);
#endif

#endif
