/*
 * Which elements dropout takes. A sample's elements go in groups of 64, which share 16 draws of 4 words: element e of a
 * group gets word e/16 of draw e%16 (so that a vector of elements is a vector of draws), and is zeroed when that word, as
 * a number in [0, 1), is below p.
 */
#ifndef TR_OPS_DROPOUT_H
#define TR_OPS_DROPOUT_H

#include "ops/op.h"

#include "base/rng.h"

enum { TR__DROPOUT_DRAWS = 16, TR__DROPOUT_GROUP = 64 };

static inline uint64_t tr__dropout_key(const tr_dropout_attrs *attrs)
{
    return tr__mix(attrs->seed, attrs->step);
}

/* Samples are the first dimension; a scalar is one sample. */
static inline int64_t tr__dropout_per_sample(tr_shape shape)
{
    int64_t n = 1;
    for (int d = 1; d < shape.ndim; d++) n *= shape.dim[d];
    return n;
}

#endif
