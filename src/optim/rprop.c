/*
 * Rprop (Riedmiller & Braun 1993) as torch.optim.Rprop has it. For a parameter p with gradient g:
 *
 *   s <- lr at its first step                 step_size
 *   s <- s increase where g has its former sign, s decrease and g <- 0 where it has the other; in [least, most]
 *   p <- p - s sign(g)
 *   b <- g                                    prev
 */
#include "optim/kernel.h"

enum { DECREASE = TR__OWN, INCREASE, LEAST, MOST };

#define RPROP(name, P, S, read, write, root)                                                              \
    TR__UPDATE_KERNEL(name, P, S, read,                                                                   \
        const S decrease = (S)settings[DECREASE]; const S increase = (S)settings[INCREASE];               \
        const S least = (S)settings[LEAST]; const S most = (S)settings[MOST]; const S lr = (S)u->lr;      \
        const bool first = u->step == 1;                                                                  \
        S *restrict b = u->state[0]; S *restrict size = u->state[1];,                                     \
        S same = g * b[i], s = (first ? lr : size[i]) * (same > 0 ? increase : same < 0 ? decrease : 1);  \
        s = s < least ? least : s > most ? most : s;                                                      \
        g = same < 0 ? 0 : g;                                                                             \
        p[i] = write(x - s * TR__SIGN(S, g));                                                             \
        b[i] = g;                                                                                         \
        size[i] = s;)
TR__UPDATE_KERNELS(RPROP, rprop)

static const tr__optimizer_rule rule = {
    .name = "rprop", .state_names = {"prev", "step_size"}, .kernel = TR__KERNELS_OF(rprop)};

tr_optimizer *tr_rprop_with(const tr_rprop_options *o)
{
    double decrease = TR__OR(o, decrease, 0.5), increase = TR__OR(o, increase, 1.2);
    double least = TR__OR(o, least, 1e-6), most = TR__OR(o, most, 50);
    if (!(decrease > 0 && decrease < 1 && increase > 1 && isfinite(increase)))
        return tr__optimizer_fail(TR_INVALID, "rprop: decrease must be between 0 and 1 and increase more than 1, not %g "
            "and %g", decrease, increase);
    if (!(least <= most))
        return tr__optimizer_fail(TR_INVALID, "rprop: least must not be more than most, %g and %g", least, most);
    const tr__hyper hypers[TR__HYPERS] = {
        [TR__LR] = {"lr", TR__OR(o, lr, 1e-2), TR__AMOUNT},
        [DECREASE] = {"decrease", decrease, TR__FRACTION},
        [INCREASE] = {"increase", increase, TR__POSITIVE},
        [LEAST] = {"least", least, TR__AMOUNT},
        [MOST] = {"most", most, TR__POSITIVE},
    };
    return tr__optimizer_new(&rule, o->parameters, hypers, false);
}
