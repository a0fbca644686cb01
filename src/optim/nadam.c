/*
 * NAdam (Dozat 2016) as torch.optim.NAdam has it. For a parameter p with gradient g at its step t:
 *
 *   mu(t) = beta1 (1 - 0.96^(t momentum_decay) / 2),  M(t) = mu(1) mu(2) ... mu(t)
 *   g <- g + decay p                          coupled
 *   p <- p (1 - lr decay)                     decoupled
 *   m <- m + (g - m)(1 - beta1)               exp_avg
 *   v <- v beta2 + g g (1 - beta2)            exp_avg_sq
 *   p <- p - lr ((1 - mu(t))/(1 - M(t)) g + mu(t+1)/(1 - M(t+1)) m) / (sqrt(v/(1 - beta2^t)) + eps)
 */
#include "optim/kernel.h"

enum { BETA1 = TR__OWN, BETA2, EPS, MOMENTUM_DECAY, DECOUPLED };

static double mu(const double *settings, int64_t t)
{
    return settings[BETA1] * (1 - 0.5 * pow(0.96, (double)t * settings[MOMENTUM_DECAY]));
}

/* The factor is M(t), a function of t alone. It shrinks fast, and 1 - M is 1 in f64 long before it has gone. */
static tr_status prepare(tr__update *u)
{
    u->factor = 1;
    for (int64_t i = 1; i <= u->step && u->factor > 1e-20; i++) u->factor *= mu(u->optimizer->settings, i);
    return TR_OK;
}

#define NADAM(name, P, S, read, write, root)                                                            \
    static void name(const tr__update *u, int64_t begin, int64_t end)                                   \
    {                                                                                                   \
        const double *settings = u->optimizer->settings, lr = u->lr;                                    \
        const double now = mu(settings, u->step), next = mu(settings, u->step + 1);                     \
        const S of_g = (S)(lr * (1 - now) / (1 - u->factor));                                           \
        const S of_m = (S)(lr * next / (1 - u->factor * next)), eps = (S)settings[EPS];                 \
        const S beta2 = (S)settings[BETA2], rest1 = (S)(1 - settings[BETA1]);                           \
        const S rest2 = (S)(1 - settings[BETA2]);                                                       \
        const S scale = (S)(1 / sqrt(1 - pow(settings[BETA2], (double)u->step)));                       \
        const S added = (S)(settings[DECOUPLED] ? 0 : u->weight_decay);                                 \
        const S keep = (S)(1 - (settings[DECOUPLED] ? lr * u->weight_decay : 0));                       \
        P *restrict p = u->parameters;                                                                  \
        const P *restrict gradient = u->gradients;                                                      \
        S *restrict m = u->state[0], *restrict v = u->state[1];                                         \
        for (int64_t i = begin; i < end; i++) {                                                         \
            S x = read(p[i]), g = read(gradient[i]) + added * x;                                        \
            m[i] = m[i] + (g - m[i]) * rest1;                                                           \
            v[i] = v[i] * beta2 + g * g * rest2;                                                        \
            p[i] = write(x * keep - (of_g * g + of_m * m[i]) / (root(v[i]) * scale + eps));             \
        }                                                                                               \
    }
TR__UPDATE_KERNELS(NADAM, nadam)

static const tr__optimizer_rule rule = {
    .name = "nadam",
    .state_names = {"exp_avg", "exp_avg_sq"},
    .kernel = TR__KERNELS_OF(nadam),
    .prepare = prepare,
};

tr_optimizer *tr_nadam_with(const tr_nadam_options *o)
{
    const tr__hyper hypers[TR__HYPERS] = {
        [TR__LR] = {"lr", TR__OR(o, lr, 2e-3), TR__AMOUNT},
        [TR__DECAY] = {"weight_decay", o->weight_decay, TR__AMOUNT},
        [BETA1] = {"beta1", TR__OR(o, beta1, 0.9), TR__FRACTION},
        [BETA2] = {"beta2", TR__OR(o, beta2, 0.999), TR__FRACTION},
        [EPS] = {"eps", TR__OR(o, eps, 1e-8), TR__POSITIVE},
        [MOMENTUM_DECAY] = {"momentum_decay", TR__OR(o, momentum_decay, 4e-3), TR__AMOUNT},
        [DECOUPLED] = {"decoupled", o->decoupled, TR__FLAG},
    };
    return tr__optimizer_new(&rule, o->parameters, hypers, false);
}
