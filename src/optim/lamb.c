/*
 * LAMB (You et al. 2020, "Large Batch Optimization for Deep Learning", algorithm 2). For a whole parameter p with gradient g
 * at its step t:
 *
 *   m <- m + (g - m)(1 - beta1)               exp_avg
 *   v <- v beta2 + g g (1 - beta2)            exp_avg_sq
 *   r  = m/(1 - beta1^t) / (sqrt(v/(1 - beta2^t)) + eps) + decay p
 *   p <- p - lr |p|/|r| r                     |p|/|r| is 1 where either is 0
 *
 * One pass makes the moments and measures p and r; the next makes r again, which costs less than keeping it.
 */
#include "optim/kernel.h"

enum { BETA1 = TR__OWN, BETA2, EPS, MATRICES_ONLY };
enum { CHUNK = 256 };

#define LAMB(name, P, S, read, write, root)                                                                \
    typedef struct name##_constants {                                                                      \
        S correct1, correct2, eps, decay;                                                                  \
    } name##_constants;                                                                                    \
    static inline name##_constants name##_constants_of(const tr__update *u)                                \
    {                                                                                                      \
        const double *settings = u->optimizer->settings, t = (double)u->step;                              \
        return (name##_constants){(S)(1 / (1 - pow(settings[BETA1], t))),                                  \
            (S)(1 / sqrt(1 - pow(settings[BETA2], t))), (S)settings[EPS], (S)u->weight_decay};             \
    }                                                                                                      \
    static inline S name##_direction(name##_constants c, S m, S v, S x)                                    \
    {                                                                                                      \
        return m * c.correct1 / (root(v) * c.correct2 + c.eps) + c.decay * x;                              \
    }                                                                                                      \
    static void name##_measure(const tr__update *u, int64_t begin, int64_t end, double sums[2])            \
    {                                                                                                      \
        const double *settings = u->optimizer->settings;                                                   \
        const name##_constants c = name##_constants_of(u);                                                 \
        const S rest1 = (S)(1 - settings[BETA1]), beta2 = (S)settings[BETA2], rest2 = (S)(1 - settings[BETA2]); \
        const P *restrict p = u->parameters, *restrict gradient = u->gradients;                            \
        S *restrict m = u->state[0], *restrict v = u->state[1];                                            \
        for (int64_t at = begin; at < end; at += CHUNK) {                                                  \
            int64_t n = end - at < CHUNK ? end - at : CHUNK;                                               \
            S x[CHUNK], r[CHUNK];                                                                          \
            for (int64_t k = 0; k < n; k++) {                                                              \
                int64_t i = at + k;                                                                        \
                S g = read(gradient[i]);                                                                   \
                x[k] = read(p[i]);                                                                         \
                m[i] = m[i] + (g - m[i]) * rest1;                                                          \
                v[i] = v[i] * beta2 + g * g * rest2;                                                       \
                r[k] = name##_direction(c, m[i], v[i], x[k]);                                              \
            }                                                                                              \
            sums[0] += TR__SQUARES(S)(x, n);                                                               \
            sums[1] += TR__SQUARES(S)(r, n);                                                               \
        }                                                                                                  \
    }                                                                                                      \
    static void name(const tr__update *u, int64_t begin, int64_t end)                                      \
    {                                                                                                      \
        const name##_constants c = name##_constants_of(u);                                                 \
        const S step = (S)(u->lr * u->factor);                                                             \
        P *restrict p = u->parameters;                                                                     \
        const S *restrict m = u->state[0], *restrict v = u->state[1];                                      \
        for (int64_t i = begin; i < end; i++) {                                                            \
            S x = read(p[i]);                                                                              \
            p[i] = write(x - step * name##_direction(c, m[i], v[i], x));                                   \
        }                                                                                                  \
    }
TR__UPDATE_KERNELS(LAMB, lamb)

/* The factor is |p|/|r|. */
static tr_status prepare(tr__update *u)
{
    double sums[2];
    TR__TRY(tr__measure(u, sums));
    bool adapts = !u->optimizer->settings[MATRICES_ONLY] || u->leaf->shape.ndim >= 2;
    u->factor = adapts && sums[0] > 0 && sums[1] > 0 ? sqrt(sums[0] / sums[1]) : 1;
    return TR_OK;
}

static const tr__optimizer_rule rule = {
    .name = "lamb",
    .state_names = {"exp_avg", "exp_avg_sq"},
    .kernel = TR__KERNELS_OF(lamb),
    .measure = TR__MEASURES_OF(lamb),
    .prepare = prepare,
    .whole = true,
};

tr_optimizer *tr_lamb_with(const tr_lamb_options *o)
{
    const tr__hyper *hypers = TR__HYPERS_OF(o, 1e-3, TR__OR(o, weight_decay, 0.01),
        [BETA1] = {"beta1", TR__OR(o, beta1, 0.9), TR__FRACTION},
        [BETA2] = {"beta2", TR__OR(o, beta2, 0.999), TR__FRACTION},
        [EPS] = {"eps", TR__OR(o, eps, 1e-6), TR__POSITIVE},
        [MATRICES_ONLY] = {"matrices_only", o->matrices_only, TR__FLAG});
    return tr__optimizer_new(&rule, o->parameters, hypers, o->matrices_only);
}
