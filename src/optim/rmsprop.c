/*
 * RMSprop (Tieleman & Hinton 2012) as torch.optim.RMSprop has it; centered as in Graves 2013. For a parameter p with
 * gradient g:
 *
 *   g <- g + decay p
 *   v <- v alpha + g g (1 - alpha)            square_avg
 *   a <- a + (g - a)(1 - alpha)               grad_avg, when centered
 *   s <- g / (sqrt(v - a a) + eps)            without a: g / (sqrt(v) + eps)
 *   b <- b momentum + s                       momentum_buffer, when there is momentum
 *   p <- p - lr b                             without b: p - lr s
 */
#include "optim/kernel.h"

enum { ALPHA, EPS, CENTERED, MOMENTUM }; /* in settings */

/* A loop for each of the four ways, so that compilers vectorise it.
 * Where all gradients were alike, rounding can make v - a a negative: then it is 0, whose root is no NaN. */
#define RMSPROP(name, P, S, read, write, root)                                                             \
    static inline __attribute__((always_inline)) void name##_with(const tr__update *u, int64_t begin,      \
        int64_t end, bool centered, bool moving)                                                           \
    {                                                                                                      \
        const double *settings = u->optimizer->settings;                                                   \
        const S lr = (S)u->optimizer->lr, decay = (S)u->weight_decay, eps = (S)settings[EPS];              \
        const S alpha = (S)settings[ALPHA], rest = (S)(1 - settings[ALPHA]);                               \
        const S momentum = (S)settings[MOMENTUM];                                                          \
        P *restrict p = u->parameters;                                                                     \
        const P *restrict gradient = u->gradients;                                                         \
        S *restrict v = u->state[0], *restrict a = u->state[1], *restrict b = u->state[1 + centered];      \
        for (int64_t i = begin; i < end; i++) {                                                            \
            S x = read(p[i]), g = read(gradient[i]) + decay * x;                                           \
            S variance = v[i] = v[i] * alpha + g * g * rest;                                               \
            if (centered) {                                                                                \
                a[i] = a[i] + (g - a[i]) * rest;                                                           \
                variance -= a[i] * a[i];                                                                   \
                variance = variance < 0 ? 0 : variance;                                                    \
            }                                                                                              \
            S s = g / (root(variance) + eps);                                                              \
            if (moving) s = b[i] = b[i] * momentum + s;                                                    \
            p[i] = write(x - lr * s);                                                                      \
        }                                                                                                  \
    }                                                                                                      \
    static void name(const tr__update *u, int64_t begin, int64_t end)                                      \
    {                                                                                                      \
        bool centered = u->optimizer->settings[CENTERED] != 0;                                             \
        if (u->optimizer->settings[MOMENTUM] > 0)                                                          \
            centered ? name##_with(u, begin, end, true, true) : name##_with(u, begin, end, false, true);   \
        else                                                                                               \
            centered ? name##_with(u, begin, end, true, false) : name##_with(u, begin, end, false, false); \
    }
TR__UPDATE_KERNELS(RMSPROP, rmsprop)

static const tr__optimizer_rule rules[2][2] = { /* [centered][momentum > 0] */
    {
        {"rmsprop", {"square_avg"}, TR__KERNELS_OF(rmsprop)},
        {"rmsprop", {"square_avg", "momentum_buffer"}, TR__KERNELS_OF(rmsprop)},
    },
    {
        {"rmsprop", {"square_avg", "grad_avg"}, TR__KERNELS_OF(rmsprop)},
        {"rmsprop", {"square_avg", "grad_avg", "momentum_buffer"}, TR__KERNELS_OF(rmsprop)},
    },
};

tr_optimizer *tr_rmsprop_with(const tr_rmsprop_options *options)
{
    double lr = tr__option(options->lr, 1e-2), decay = options->weight_decay, momentum = options->momentum;
    double alpha = tr__option(options->alpha, 0.99), eps = tr__option(options->eps, 1e-8);
    if (!tr__is_amount(lr) || !tr__is_amount(decay) || !tr__is_amount(momentum))
        return tr__optimizer_fail(TR_INVALID, "rmsprop: lr, weight_decay and momentum must be 0 or more, not %g, %g "
            "and %g", lr, decay, momentum);
    if (!(alpha >= 0 && alpha <= 1))
        return tr__optimizer_fail(TR_INVALID, "rmsprop: alpha must be in [0, 1], not %g", alpha);
    if (!tr__is_eps(eps)) return tr__optimizer_fail(TR_INVALID, "rmsprop: eps must be more than 0, not %g", eps);
    tr_optimizer *o = tr__optimizer_new(&rules[options->centered][momentum > 0], options->parameters, false);
    if (o->object.error) return o;
    o->lr = lr;
    o->weight_decay = decay;
    o->settings[ALPHA] = alpha;
    o->settings[EPS] = eps;
    o->settings[CENTERED] = options->centered;
    o->settings[MOMENTUM] = momentum;
    return o;
}
