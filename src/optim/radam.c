/*
 * RAdam (Liu et al. 2020) as torch.optim.RAdam has it. For a parameter p with gradient g at its step t:
 *
 *   n = 2/(1 - beta2) - 1,  r = n - 2 t beta2^t/(1 - beta2^t)
 *   g <- g + decay p                          coupled
 *   p <- p (1 - lr decay)                     decoupled
 *   m <- m + (g - m)(1 - beta1)               exp_avg
 *   v <- v beta2 + g g (1 - beta2)            exp_avg_sq
 *   s  = sqrt(1 - beta2^t) / (sqrt(v) + eps) * sqrt((r-4)(r-2)n / ((n-4)(n-2)r))    where r > 5, else 1
 *   p <- p - lr/(1 - beta1^t) * m s
 */
#include "optim/kernel.h"

enum { BETA1 = TR__OWN, BETA2, EPS, DECOUPLED };

/* The factor is what rectifies the variance, with its bias correction; 0: no variance yet. */
static tr_status prepare(tr__update *u)
{
    double beta2 = u->optimizer->settings[BETA2], t = (double)u->step;
    double rest = 1 - pow(beta2, t), n = 2 / (1 - beta2) - 1, r = n - 2 * t * pow(beta2, t) / rest;
    u->factor = r > 5 ? sqrt(rest * (r - 4) * (r - 2) * n / ((n - 4) * (n - 2) * r)) : 0;
    return TR_OK;
}

#define RADAM(name, P, S, read, write, root)                                                     \
    static void name(const tr__update *u, int64_t begin, int64_t end)                            \
    {                                                                                            \
        const double *settings = u->optimizer->settings, lr = u->lr;                             \
        const S step = (S)(lr / (1 - pow(settings[BETA1], (double)u->step)));                    \
        const S beta2 = (S)settings[BETA2], rest1 = (S)(1 - settings[BETA1]);                    \
        const S rest2 = (S)(1 - settings[BETA2]), eps = (S)settings[EPS];                        \
        const S added = (S)(settings[DECOUPLED] ? 0 : u->weight_decay);                          \
        const S keep = (S)(1 - (settings[DECOUPLED] ? lr * u->weight_decay : 0));                \
        const S rectified = (S)u->factor;                                                        \
        P *restrict p = u->parameters;                                                           \
        const P *restrict gradient = u->gradients;                                               \
        S *restrict m = u->state[0], *restrict v = u->state[1];                                  \
        for (int64_t i = begin; i < end; i++) {                                                  \
            S x = read(p[i]), g = read(gradient[i]) + added * x;                                 \
            m[i] = m[i] + (g - m[i]) * rest1;                                                    \
            v[i] = v[i] * beta2 + g * g * rest2;                                                 \
            S s = rectified > 0 ? rectified / (root(v[i]) + eps) : 1;                            \
            p[i] = write(x * keep - step * m[i] * s);                                            \
        }                                                                                        \
    }
TR__UPDATE_KERNELS(RADAM, radam)

static const tr__optimizer_rule rule = {
    .name = "radam",
    .state_names = {"exp_avg", "exp_avg_sq"},
    .kernel = TR__KERNELS_OF(radam),
    .prepare = prepare,
};

tr_optimizer *tr_radam_with(const tr_radam_options *o)
{
    const tr__hyper hypers[TR__HYPERS] = {
        [TR__LR] = {"lr", TR__OR(o, lr, 1e-3), TR__AMOUNT},
        [TR__DECAY] = {"weight_decay", o->weight_decay, TR__AMOUNT},
        [BETA1] = {"beta1", TR__OR(o, beta1, 0.9), TR__FRACTION},
        [BETA2] = {"beta2", TR__OR(o, beta2, 0.999), TR__FRACTION},
        [EPS] = {"eps", TR__OR(o, eps, 1e-8), TR__POSITIVE},
        [DECOUPLED] = {"decoupled", o->decoupled, TR__FLAG},
    };
    return tr__optimizer_new(&rule, o->parameters, hypers, false);
}
