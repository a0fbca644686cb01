/*
 * Adadelta (Zeiler 2012) as torch.optim.Adadelta has it. For a parameter p with gradient g:
 *
 *   g <- g + decay p
 *   v <- v rho + g g (1 - rho)                square_avg
 *   d  = sqrt(a + eps) / sqrt(v + eps) * g
 *   a <- a rho + d d (1 - rho)                acc_delta
 *   p <- p - lr d
 */
#include "optim/kernel.h"

enum { RHO = TR__OWN, EPS };

#define ADADELTA(name, P, S, read, write, root)                                                           \
    TR__UPDATE_KERNEL(name, P, S, read,                                                                   \
        const S lr = (S)u->lr; const S decay = (S)u->weight_decay; const S eps = (S)settings[EPS];        \
        const S rho = (S)settings[RHO]; const S rest = (S)(1 - settings[RHO]);                            \
        S *restrict v = u->state[0]; S *restrict a = u->state[1];,                                        \
        g += decay * x;                                                                                   \
        v[i] = v[i] * rho + g * g * rest;                                                                 \
        S d = root(a[i] + eps) / root(v[i] + eps) * g;                                                    \
        a[i] = a[i] * rho + d * d * rest;                                                                 \
        p[i] = write(x - lr * d);)
TR__UPDATE_KERNELS(ADADELTA, adadelta)

static const tr__optimizer_rule rule = {
    .name = "adadelta", .state_names = {"square_avg", "acc_delta"}, .kernel = TR__KERNELS_OF(adadelta)};

tr_optimizer *tr_adadelta_with(const tr_adadelta_options *o)
{
    const tr__hyper *hypers = TR__HYPERS_OF(o, 1, o->weight_decay,
        [RHO] = {"rho", TR__OR(o, rho, 0.9), TR__SHARE},
        [EPS] = {"eps", TR__OR(o, eps, 1e-6), TR__POSITIVE});
    return tr__optimizer_new(&rule, o->parameters, hypers, false);
}
