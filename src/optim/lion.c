/*
 * Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2). For a parameter p with gradient g:
 *
 *   p <- p (1 - lr decay) - lr sign(m beta1 + g (1 - beta1))
 *   m <- m beta2 + g (1 - beta2)              exp_avg
 */
#include "optim/kernel.h"

enum { BETA1 = TR__OWN, BETA2 };

#define LION(name, P, S, read, write, root)                                                               \
    TR__UPDATE_KERNEL(name, P, S, read,                                                                   \
        const S lr = (S)u->lr; const S keep = (S)(1 - u->lr * u->weight_decay);                           \
        const S beta1 = (S)settings[BETA1]; const S rest1 = (S)(1 - settings[BETA1]);                     \
        const S beta2 = (S)settings[BETA2]; const S rest2 = (S)(1 - settings[BETA2]);                     \
        S *restrict m = u->state[0];,                                                                     \
        S way = m[i] * beta1 + g * rest1;                                                                 \
        p[i] = write(x * keep - lr * TR__SIGN(S, way));                                                   \
        m[i] = m[i] * beta2 + g * rest2;)
TR__UPDATE_KERNELS(LION, lion)

static const tr__optimizer_rule rule = {.name = "lion", .state_names = {"exp_avg"}, .kernel = TR__KERNELS_OF(lion)};

tr_optimizer *tr_lion_with(const tr_lion_options *o)
{
    const tr__hyper *hypers = TR__HYPERS_OF(o, 1e-4, o->weight_decay,
        [BETA1] = {"beta1", TR__OR(o, beta1, 0.9), TR__FRACTION},
        [BETA2] = {"beta2", TR__OR(o, beta2, 0.99), TR__FRACTION},
        [TR__BF16_STATE] = {"bf16_state", o->bf16_state, TR__FLAG});
    return tr__optimizer_new(&rule, o->parameters, hypers, false);
}
