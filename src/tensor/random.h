/* Tensors of random numbers: element i is a function of (seed, i) alone, however many threads draw. */
#ifndef TR_TENSOR_RANDOM_H
#define TR_TENSOR_RANDOM_H

#include "tensor/tensor.h"

/* [0, 1), and normal(0, 1). */
typedef enum tr__distribution { TR__UNIFORM, TR__NORMAL } tr__distribution;

/* Overwrites t, a contiguous float tensor, with scale * number + shift, computed in f32. */
tr_status tr__fill_random(tr_tensor *t, tr__distribution distribution, uint64_t seed, float scale, float shift);

#endif
