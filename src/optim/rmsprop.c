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

enum { ALPHA = TR__OWN, EPS, CENTERED, MOMENTUM };

/* A loop for each of the four ways, so that compilers vectorise it.
 * Where all gradients were alike, rounding can make v - a a negative: then it is 0, whose root is no NaN. */
#define RMSPROP(name, P, S, read, write, root)                                                             \
    static inline __attribute__((always_inline)) void name##_with(const tr__update *u, int64_t begin,      \
        int64_t end, bool centered, bool moving)                                                           \
    {                                                                                                      \
        const double *settings = u->optimizer->settings;                                                   \
        const S lr = (S)u->lr, decay = (S)u->weight_decay, eps = (S)settings[EPS];                         \
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

#define RULE(...) {.name = "rmsprop", .state_names = {__VA_ARGS__}, .kernel = TR__KERNELS_OF(rmsprop)}
static const tr__optimizer_rule rules[2][2] = { /* [centered][momentum > 0] */
    {RULE("square_avg"), RULE("square_avg", "momentum_buffer")},
    {RULE("square_avg", "grad_avg"), RULE("square_avg", "grad_avg", "momentum_buffer")},
};

tr_optimizer *tr_rmsprop_with(const tr_rmsprop_options *o)
{
    const tr__hyper *hypers = TR__HYPERS_OF(o, 1e-2, o->weight_decay,
        [ALPHA] = {"alpha", TR__OR(o, alpha, 0.99), TR__SHARE},
        [EPS] = {"eps", TR__OR(o, eps, 1e-8), TR__POSITIVE},
        [CENTERED] = {"centered", o->centered, TR__FLAG},
        [MOMENTUM] = {"momentum", o->momentum, TR__AMOUNT});
    return tr__optimizer_new(&rules[o->centered][o->momentum > 0], o->parameters, hypers, false);
}
