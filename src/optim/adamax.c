/*
 * Adamax (Kingma & Ba 2015, section 7.1) as torch.optim.Adamax has it. For a parameter p with gradient g at its step t:
 *
 *   g <- g + decay p
 *   m <- m + (g - m)(1 - beta1)               exp_avg
 *   u <- max(u beta2, |g| + eps)              exp_inf
 *   p <- p - lr/(1 - beta1^t) * m / u
 */
#include "optim/kernel.h"

enum { BETA1 = TR__OWN, BETA2, EPS };

#define ADAMAX(name, P, S, read, write, root)                                                          \
    static void name(const tr__update *u, int64_t begin, int64_t end)                                  \
    {                                                                                                  \
        const double *settings = u->optimizer->settings;                                               \
        const S step = (S)(u->lr / (1 - pow(settings[BETA1], (double)u->step)));                       \
        const S beta2 = (S)settings[BETA2], rest1 = (S)(1 - settings[BETA1]), eps = (S)settings[EPS];  \
        const S decay = (S)u->weight_decay;                                                            \
        P *restrict p = u->parameters;                                                                 \
        const P *restrict gradient = u->gradients;                                                     \
        S *restrict m = u->state[0], *restrict most = u->state[1];                                     \
        for (int64_t i = begin; i < end; i++) {                                                        \
            S x = read(p[i]), g = read(gradient[i]) + decay * x;                                       \
            S size = (g < 0 ? -g : g) + eps, old = most[i] * beta2;                                    \
            m[i] = m[i] + (g - m[i]) * rest1;                                                          \
            most[i] = old > size ? old : size;                                                         \
            p[i] = write(x - step * (m[i] / most[i]));                                                 \
        }                                                                                              \
    }
TR__UPDATE_KERNELS(ADAMAX, adamax)

static const tr__optimizer_rule rule = {
    .name = "adamax",
    .state_names = {"exp_avg", "exp_inf"},
    .kernel = TR__KERNELS_OF(adamax),
};

tr_optimizer *tr_adamax_with(const tr_adamax_options *o)
{
    const tr__hyper hypers[TR__HYPERS] = {
        [TR__LR] = {"lr", TR__OR(o, lr, 2e-3), TR__AMOUNT},
        [TR__DECAY] = {"weight_decay", o->weight_decay, TR__AMOUNT},
        [BETA1] = {"beta1", TR__OR(o, beta1, 0.9), TR__FRACTION},
        [BETA2] = {"beta2", TR__OR(o, beta2, 0.999), TR__FRACTION},
        [EPS] = {"eps", TR__OR(o, eps, 1e-8), TR__POSITIVE},
    };
    return tr__optimizer_new(&rule, o->parameters, hypers, false);
}
