/*
 * State in bf16, for rules that are elementwise. A tile of it is widened to f32, updated by the rule's kernel while it
 * is in the L1 cache, and rounded back stochastically: up with a probability of (x - a) / (b - a), where x is the f32,
 * and a and b the bf16 below and above it. So the mean is x, and changes that are too small for a bf16 are not lost
 * (Gupta et al., ICML 2015).
 *
 * The random numbers are a function of the step and of the element's place in its arena, so they are the same on any
 * number of ranks and threads, on every machine, in backward, and after a checkpoint.
 */
#ifndef TR_OPTIM_BF16_STATE_H
#define TR_OPTIM_BF16_STATE_H

#include "optim/optimizer.h"

enum { TR__ROUNDED = 1024 }; /* elements of a tile, at most */

/* States of `count` elements in f32, `from`, and where they are stored. */
typedef struct tr__rounded {
    int states, count;
    float (*from)[TR__ROUNDED];
    uint16_t *to[TR__STATES];
    uint64_t key, counter; /* of Philox, for the first eight elements */
} tr__rounded;

/* The halfword of element i is the (i % 8)th of Philox's four words at counter + i / 8. State k takes it times an odd
 * number of its own, modulo 2^16, which is as evenly spread, and hardly correlated with that of another state. */
void tr__round_generic(const tr__rounded *r);
void tr__round_avx2(const tr__rounded *r);
void tr__round_avx512(const tr__rounded *r);

/* Updates elements [begin, end) of a run whose state is bf16, by the rule's kernel for f32 state. */
void tr__update_bf16_state(tr__update_kernel kernel, const tr__update *update, int64_t begin, int64_t end);

#endif
