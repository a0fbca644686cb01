/*
 * SGD with momentum as torch.optim.SGD has it (Sutskever et al. 2013). For a parameter p with gradient g:
 *
 *   g <- g + decay p
 *   b <- g at its first step, then b momentum + g (1 - dampening)     momentum_buffer, when there is momentum
 *   p <- p - lr b, or with Nesterov p - lr (g + momentum b)
 */
#include "optim/kernel.h"

enum { MOMENTUM = TR__OWN, DAMPENING, NESTEROV };

#define PLAIN(name, P, S, read, write, root)                                                              \
    TR__UPDATE_KERNEL(name, P, S, read,                                                                   \
        const S lr = (S)u->lr; const S decay = (S)u->weight_decay;,                                       \
        p[i] = write(x - lr * (g + decay * x));)
TR__UPDATE_KERNELS(PLAIN, plain)

/* The step is ahead g + by b, where Nesterov has ahead 1 and by momentum, else 0 and 1. */
#define WITH_MOMENTUM(name, P, S, read, write, root)                                                      \
    TR__UPDATE_KERNEL(name, P, S, read,                                                                   \
        const S lr = (S)u->lr; const S decay = (S)u->weight_decay;                                        \
        const S old = u->step == 1 ? 0 : (S)settings[MOMENTUM];                                           \
        const S new = u->step == 1 ? 1 : (S)(1 - settings[DAMPENING]);                                    \
        const S ahead = (S)settings[NESTEROV]; const S by = ahead ? (S)settings[MOMENTUM] : 1;            \
        S *restrict b = u->state[0];,                                                                     \
        g += decay * x;                                                                                   \
        b[i] = old * b[i] + new * g;                                                                      \
        p[i] = write(x - lr * (ahead * g + by * b[i]));)
TR__UPDATE_KERNELS(WITH_MOMENTUM, momentum)

static const tr__optimizer_rule rules[2] = { /* [momentum > 0] */
    {.name = "sgd", .state_names = {NULL}, .kernel = TR__KERNELS_OF(plain)},
    {.name = "sgd", .state_names = {"momentum_buffer"}, .kernel = TR__KERNELS_OF(momentum)},
};

tr_optimizer *tr_sgd_with(const tr_sgd_options *o)
{
    if (o->nesterov && (o->momentum == 0 || o->dampening != 0))
        return tr__optimizer_fail(TR_INVALID, "sgd: nesterov takes momentum and no dampening, not %g and %g", o->momentum,
            o->dampening);
    const tr__hyper *hypers = TR__HYPERS_OF(o, 1e-3, o->weight_decay,
        [MOMENTUM] = {"momentum", o->momentum, TR__AMOUNT},
        [DAMPENING] = {"dampening", o->dampening, TR__FINITE},
        [NESTEROV] = {"nesterov", o->nesterov, TR__FLAG},
        [TR__BF16_STATE] = {"bf16_state", o->bf16_state, TR__FLAG});
    return tr__optimizer_new(&rules[o->momentum > 0], o->parameters, hypers, false);
}
