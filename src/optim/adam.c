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

enum { BETA1, BETA2, EPS, DECOUPLED }; /* in settings */

#define ADAM(name, P, S, read, write, root)                                                      \
    static void name(const tr__update *u, int64_t begin, int64_t end)                            \
    {                                                                                            \
        const double *settings = u->optimizer->settings, lr = u->optimizer->lr;                  \
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
        {"adam", {"exp_avg", "exp_avg_sq"}, TR__KERNELS_OF(adam)},
        {"adam", {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, TR__KERNELS_OF(adam)},
    },
    {
        {"adamw", {"exp_avg", "exp_avg_sq"}, TR__KERNELS_OF(adam)},
        {"adamw", {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, TR__KERNELS_OF(adam)},
    },
};

/* What Adam and AdamW share; decay is given, as their defaults differ. */
static tr_optimizer *make(const tr_adamw_options *options, bool decoupled, double decay)
{
    const tr__optimizer_rule *rule = &rules[decoupled][options->amsgrad];
    double lr = tr__option(options->lr, 1e-3), eps = tr__option(options->eps, 1e-8);
    double beta1 = tr__option(options->beta1, 0.9), beta2 = tr__option(options->beta2, 0.999);
    if (!tr__is_amount(lr) || !tr__is_amount(decay))
        return tr__optimizer_fail(TR_INVALID, "%s: lr and weight_decay must be 0 or more, not %g and %g", rule->name,
            lr, decay);
    if (!(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1))
        return tr__optimizer_fail(TR_INVALID, "%s: beta1 and beta2 must be in [0, 1), not %g and %g", rule->name, beta1,
            beta2);
    if (!tr__is_eps(eps)) return tr__optimizer_fail(TR_INVALID, "%s: eps must be more than 0, not %g", rule->name, eps);
    tr_optimizer *o = tr__optimizer_new(rule, options->parameters, options->decay_matrices_only);
    if (o->object.error) return o;
    o->lr = lr;
    o->weight_decay = decay;
    o->settings[BETA1] = beta1;
    o->settings[BETA2] = beta2;
    o->settings[EPS] = eps;
    o->settings[DECOUPLED] = decoupled;
    return o;
}

tr_optimizer *tr_adam_with(const tr_adam_options *options)
{
    const tr_adamw_options same = {
        .parameters = options->parameters,
        .lr = options->lr,
        .beta1 = options->beta1,
        .beta2 = options->beta2,
        .eps = options->eps,
        .amsgrad = options->amsgrad,
    };
    return make(&same, false, options->weight_decay);
}

tr_optimizer *tr_adamw_with(const tr_adamw_options *options)
{
    return make(options, true, tr__option(options->weight_decay, 0.01));
}
