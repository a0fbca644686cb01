/* Sequences, [batch, channels, length], as images of height 1, so that the ops of images serve them. */
#ifndef TR_OPS_SEQUENCES_H
#define TR_OPS_SEQUENCES_H

#include "ops/op.h"

static inline tr_tensor *tr__as_image(tr_tensor *x)
{
    return tr_reshape(x, TR_SHAPE(x->shape.dim[0], x->shape.dim[1], 1, x->shape.dim[2]));
}

/* What an op made of one; it may be in error. */
static inline tr_tensor *tr__as_sequence(tr_tensor *y)
{
    return tr__bad(y) ? y : tr_reshape(y, TR_SHAPE(y->shape.dim[0], y->shape.dim[1], y->shape.dim[3]));
}

#endif
