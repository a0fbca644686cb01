/* The sizes of a pooling of images, as all its kernels see them. */
#ifndef TR_OPS_POOL_H
#define TR_OPS_POOL_H

#include "ops/op.h"

typedef struct tr__pool2d {
    int64_t n, c, h, w; /* x: [n, c, h, w] */
    int64_t oh, ow;     /* y: [n, c, oh, ow] */
    int64_t kernel, stride, padding;
} tr__pool2d;

/* x, y: the tensors that are what the two are in the forward. */
tr__pool2d tr__pool2d_of(const tr_tensor *x, const tr_tensor *y, const tr__pool2d_attrs *attrs);

/* Output o's window, cut to the image: begin <= i < end. */
typedef struct tr__window {
    int64_t begin, end;
} tr__window;

static inline tr__window tr__pool2d_window(const tr__pool2d *s, int64_t o, int64_t size)
{
    tr__window w = {o * s->stride - s->padding, o * s->stride - s->padding + s->kernel};
    if (w.begin < 0) w.begin = 0;
    if (w.end > size) w.end = size;
    return w;
}

#endif
