/*
 * Adagrad (Duchi et al. 2011) as torch.optim.Adagrad has it. For a parameter p with gradient g at its step t:
 *
 *   g <- g + decay p
 *   v <- v + g g                                              sum, from initial_accumulator
 *   p <- p - lr / (1 + (t - 1) lr_decay) * g / (sqrt(v) + eps)
 */
#include "optim/kernel.h"

enum { LR_DECAY = TR__OWN, EPS, INITIAL };

#define ADAGRAD(name, P, S, read, write, root)                                                            \
    TR__UPDATE_KERNEL(name, P, S, read,                                                                   \
        const S lr = (S)(u->lr / (1 + ((double)u->step - 1) * settings[LR_DECAY]));                       \
        const S decay = (S)u->weight_decay; const S eps = (S)settings[EPS]; S *restrict v = u->state[0];, \
        g += decay * x;                                                                                   \
        v[i] = v[i] + g * g;                                                                              \
        p[i] = write(x - lr * (g / (root(v[i]) + eps)));)
TR__UPDATE_KERNELS(ADAGRAD, adagrad)

static const tr__optimizer_rule rule = {.name = "adagrad", .state_names = {"sum"}, .kernel = TR__KERNELS_OF(adagrad)};

static tr_status fill_sums(const tr_optimizer *o, double value)
{
    for (int i = 0; i < o->n_parts; i++) TR__TRY(tr_fill(o->parts[i].state[0], value));
    return TR_OK;
}

tr_optimizer *tr_adagrad_with(const tr_adagrad_options *options)
{
    const tr__hyper *hypers = TR__HYPERS_OF(options, 1e-2, options->weight_decay,
        [LR_DECAY] = {"lr_decay", options->lr_decay, TR__AMOUNT},
        [EPS] = {"eps", TR__OR(options, eps, 1e-10), TR__POSITIVE},
        [INITIAL] = {"initial_accumulator", options->initial_accumulator, TR__AMOUNT});
    tr_optimizer *o = tr__optimizer_new(&rule, options->parameters, hypers, false);
    if (o->object.error) return o;
    if (o->settings[INITIAL] > 0 && fill_sums(o, o->settings[INITIAL]) != TR_OK) tr__object_break(o);
    return o;
}
