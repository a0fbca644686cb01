/*
 * Adam (Kingma & Ba 2015), AdamW (Loshchilov & Hutter 2019) and AMSGrad (Reddi et al. 2018), in PyTorch's order of
 * operations. For a parameter p with gradient g at its step t:
 *
 *   g <- g + decay p                          Adam
 *   p <- p (1 - lr decay)                     AdamW
 *   m <- m + (g - m)(1 - beta1)               exp_avg
 *   v <- v beta2 + g g (1 - beta2)            exp_avg_sq
 *   w <- max(w, v) with AMSGrad, else v       max_exp_avg_sq
 *   p <- p - lr/(1 - beta1^t) * m / (sqrt(w)/sqrt(1 - beta2^t) + eps)
 */
#include "optim/kernel.h"

enum { BETA1 = TR__OWN, BETA2, EPS, DECOUPLED };

#define ADAM(name, P, S, read, write, root)                                                      \
    static void name(const tr__update *u, int64_t begin, int64_t end)                            \
    {                                                                                            \
        const double *settings = u->optimizer->settings, lr = u->lr;                             \
        double b1 = settings[BETA1], b2 = settings[BETA2], t = (double)u->step;                  \
        double shrink = settings[DECOUPLED] ? lr * u->weight_decay : 0;                          \
        const S added = (S)(settings[DECOUPLED] ? 0 : u->weight_decay), keep = (S)(1 - shrink);  \
        const S step = (S)(lr / (1 - pow(b1, t))), scale = (S)(1 / sqrt(1 - pow(b2, t)));        \
        const S beta2 = (S)b2, rest1 = (S)(1 - b1), rest2 = (S)(1 - b2), eps = (S)settings[EPS]; \
        P *restrict p = u->parameters;                                                           \
        const P *restrict gradient = u->gradients;                                               \
        S *restrict m = u->state[0], *restrict v = u->state[1], *restrict most = u->state[2];    \
        for (int64_t i = begin; i < end; i++) {                                                  \
            S x = read(p[i]), g = read(gradient[i]) + added * x;                                 \
            m[i] = m[i] + (g - m[i]) * rest1;                                                    \
            S w = v[i] = v[i] * beta2 + g * g * rest2;                                           \
            if (most) w = most[i] = most[i] > w ? most[i] : w;                                   \
            p[i] = write(x * keep - step * m[i] / (root(w) * scale + eps));                      \
        }                                                                                        \
    }
TR__UPDATE_KERNELS(ADAM, adam)

static const tr__optimizer_rule rules[2][2] = { /* [decoupled][amsgrad] */
    {
        {.name = "adam", .state_names = {"exp_avg", "exp_avg_sq"}, .kernel = TR__KERNELS_OF(adam)},
        {.name = "adam", .state_names = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, .kernel = TR__KERNELS_OF(adam)},
    },
    {
        {.name = "adamw", .state_names = {"exp_avg", "exp_avg_sq"}, .kernel = TR__KERNELS_OF(adam)},
        {.name = "adamw", .state_names = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, .kernel = TR__KERNELS_OF(adam)},
    },
};

/* What Adam and AdamW share; decay is given, as their defaults differ. */
static tr_optimizer *make(const tr_adamw_options *o, bool decoupled, double decay)
{
    const tr__hyper hypers[TR__HYPERS] = {
        [TR__LR] = {"lr", TR__OR(o, lr, 1e-3), TR__AMOUNT},
        [TR__DECAY] = {"weight_decay", decay, TR__AMOUNT},
        [BETA1] = {"beta1", TR__OR(o, beta1, 0.9), TR__FRACTION},
        [BETA2] = {"beta2", TR__OR(o, beta2, 0.999), TR__FRACTION},
        [EPS] = {"eps", TR__OR(o, eps, 1e-8), TR__POSITIVE},
        [DECOUPLED] = {"decoupled", decoupled, TR__FLAG},
    };
    return tr__optimizer_new(&rules[decoupled][o->amsgrad], o->parameters, hypers, o->decay_matrices_only);
}

tr_optimizer *tr_adam_with(const tr_adam_options *o)
{
    const tr_adamw_options same = {
        .given = o->given,
        .parameters = o->parameters,
        .lr = o->lr,
        .beta1 = o->beta1,
        .beta2 = o->beta2,
        .eps = o->eps,
        .amsgrad = o->amsgrad,
    };
    return make(&same, false, o->weight_decay);
}

tr_optimizer *tr_adamw_with(const tr_adamw_options *o)
{
    return make(o, true, TR__OR(o, weight_decay, 0.01));
}
