/* The sizes of a pooling of images, as all its kernels see them. */
#ifndef TR_OPS_POOL_H
#define TR_OPS_POOL_H

#include "ops/op.h"

typedef struct tr__pool2d {
    int64_t n, c, h, w; /* x: [n, c, h, w] */
    int64_t oh, ow;     /* y: [n, c, oh, ow] */
    int64_t kernel, stride, padding;
    bool line;          /* windows are of one row, as images are */
    bool adaptive;      /* as many windows as there are outputs, of about the same size, cover the image */
} tr__pool2d;

/* op, a pooling, of x; attrs without what is known of x. */
tr_tensor *tr__pool2d_apply(const tr_op *op, tr_tensor *x, tr_pool2d_attrs attrs);
tr_pool2d_attrs tr__pool2d_attrs_of(const tr_pool2d_options *options);

/* x, y: the tensors that are what the two are in the forward. */
tr__pool2d tr__pool2d_of(const tr_tensor *x, const tr_tensor *y, const tr_pool2d_attrs *attrs);

/* Output o's window, cut to the image: begin <= i < end. */
typedef struct tr__window {
    int64_t begin, end;
} tr__window;

static inline tr__window tr__window_of(const tr__pool2d *s, int64_t o, int64_t outputs, int64_t size)
{
    if (s->adaptive) return (tr__window){o * size / outputs, ((o + 1) * size + outputs - 1) / outputs};
    tr__window w = {o * s->stride - s->padding, o * s->stride - s->padding + s->kernel};
    if (w.begin < 0) w.begin = 0;
    if (w.end > size) w.end = size;
    return w;
}

static inline tr__window tr__window_rows(const tr__pool2d *s, int64_t oy)
{
    return s->line ? (tr__window){oy, oy + 1} : tr__window_of(s, oy, s->oh, s->h);
}
static inline tr__window tr__window_columns(const tr__pool2d *s, int64_t ox) { return tr__window_of(s, ox, s->ow, s->w); }

/* What the sum over a window is divided by for its mean: zeros around the image count. */
static inline int64_t tr__window_size(const tr__pool2d *s, tr__window rows, tr__window columns)
{
    if (s->adaptive) return (rows.end - rows.begin) * (columns.end - columns.begin);
    return s->line ? s->kernel : s->kernel * s->kernel;
}

#endif
