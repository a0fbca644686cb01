/*
 * LARS (You et al. 2017, "Large Batch Training of Convolutional Networks", algorithm 1). For a whole parameter p with
 * gradient g:
 *
 *   s  = trust |p| / (|g| + decay |p|)        1 where |p| or |g| is 0
 *   b <- b momentum + lr s (g + decay p)      momentum_buffer
 *   p <- p - b
 */
#include "optim/kernel.h"

enum { MOMENTUM = TR__OWN, TRUST, MATRICES_ONLY };
enum { CHUNK = 256 };

#define LARS(name, P, S, read, write, root)                                                       \
    static void name##_measure(const tr__update *u, int64_t begin, int64_t end, double sums[2])   \
    {                                                                                             \
        const P *restrict p = u->parameters, *restrict gradient = u->gradients;                   \
        for (int64_t at = begin; at < end; at += CHUNK) {                                         \
            int64_t n = end - at < CHUNK ? end - at : CHUNK;                                      \
            S x[CHUNK], g[CHUNK];                                                                 \
            for (int64_t k = 0; k < n; k++) {                                                     \
                x[k] = read(p[at + k]);                                                           \
                g[k] = read(gradient[at + k]);                                                    \
            }                                                                                     \
            sums[0] += TR__SQUARES(S)(x, n);                                                      \
            sums[1] += TR__SQUARES(S)(g, n);                                                      \
        }                                                                                         \
    }                                                                                             \
    TR__UPDATE_KERNEL(name, P, S, read,                                                           \
        const S step = (S)(u->lr * u->factor); const S decay = (S)u->weight_decay;                \
        const S momentum = (S)settings[MOMENTUM]; S *restrict b = u->state[0];,                   \
        b[i] = b[i] * momentum + step * (g + decay * x);                                          \
        p[i] = write(x - b[i]);)
TR__UPDATE_KERNELS(LARS, lars)

/* The factor is s. */
static tr_status prepare(tr__update *u)
{
    double sums[2];
    u->factor = 1;
    if (u->optimizer->settings[MATRICES_ONLY] && u->leaf->shape.ndim < 2) return TR_OK;
    TR__TRY(tr__measure(u, sums));
    double p = sqrt(sums[0]), g = sqrt(sums[1]);
    if (p > 0 && g > 0) u->factor = u->optimizer->settings[TRUST] * p / (g + u->weight_decay * p);
    return TR_OK;
}

static const tr__optimizer_rule rule = {
    .name = "lars",
    .state_names = {"momentum_buffer"},
    .kernel = TR__KERNELS_OF(lars),
    .measure = TR__MEASURES_OF(lars),
    .prepare = prepare,
    .whole = true,
};

tr_optimizer *tr_lars_with(const tr_lars_options *o)
{
    const tr__hyper *hypers = TR__HYPERS_OF(o, 0.1, o->weight_decay,
        [MOMENTUM] = {"momentum", TR__OR(o, momentum, 0.9), TR__AMOUNT},
        [TRUST] = {"trust", TR__OR(o, trust, 1e-3), TR__POSITIVE},
        [MATRICES_ONLY] = {"matrices_only", o->matrices_only, TR__FLAG});
    return tr__optimizer_new(&rule, o->parameters, hypers, o->matrices_only);
}
