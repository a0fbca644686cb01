/*
 * Adagrad (Duchi et al. 2011) as torch.optim.Adagrad has it. For a parameter p with gradient g at its step t:
 *
 *   g <- g + decay p
 *   v <- v + g g                                              sum, from initial_accumulator
 *   p <- p - lr / (1 + (t - 1) lr_decay) * g / (sqrt(v) + eps)
 */
#include "optim/kernel.h"

enum { LR_DECAY, EPS }; /* in settings */

#define ADAGRAD(name, P, S, read, write, root)                                                 \
    static void name(const tr__update *u, int64_t begin, int64_t end)                          \
    {                                                                                          \
        const double *settings = u->optimizer->settings;                                       \
        const S lr = (S)(u->optimizer->lr / (1 + ((double)u->step - 1) * settings[LR_DECAY])); \
        const S decay = (S)u->weight_decay, eps = (S)settings[EPS];                            \
        P *restrict p = u->parameters;                                                         \
        const P *restrict gradient = u->gradients;                                             \
        S *restrict v = u->state[0];                                                           \
        for (int64_t i = begin; i < end; i++) {                                                \
            S x = read(p[i]), g = read(gradient[i]) + decay * x;                               \
            v[i] = v[i] + g * g;                                                               \
            p[i] = write(x - lr * (g / (root(v[i]) + eps)));                                   \
        }                                                                                      \
    }
TR__UPDATE_KERNELS(ADAGRAD, adagrad)

static const tr__optimizer_rule rule = {"adagrad", {"sum"}, TR__KERNELS_OF(adagrad)};

static tr_status fill_sums(const tr_optimizer *o, double value)
{
    for (int i = 0; i < o->n_parts; i++) TR__TRY(tr_fill(o->parts[i].state[0], value));
    return TR_OK;
}

tr_optimizer *tr_adagrad_with(const tr_adagrad_options *options)
{
    double lr = tr__option(options->lr, 1e-2), decay = options->weight_decay, lr_decay = options->lr_decay;
    double initial = options->initial_accumulator, eps = tr__option(options->eps, 1e-10);
    if (!tr__is_amount(lr) || !tr__is_amount(decay) || !tr__is_amount(lr_decay))
        return tr__optimizer_fail(TR_INVALID, "adagrad: lr, weight_decay and lr_decay must be 0 or more, not %g, %g "
            "and %g", lr, decay, lr_decay);
    if (!tr__is_amount(initial))
        return tr__optimizer_fail(TR_INVALID, "adagrad: initial_accumulator must be 0 or more, not %g", initial);
    if (!tr__is_eps(eps)) return tr__optimizer_fail(TR_INVALID, "adagrad: eps must be more than 0, not %g", eps);
    tr_optimizer *o = tr__optimizer_new(&rule, options->parameters, false);
    if (o->object.error) return o;
    o->lr = lr;
    o->weight_decay = decay;
    o->settings[LR_DECAY] = lr_decay;
    o->settings[EPS] = eps;
    if (initial > 0 && fill_sums(o, initial) != TR_OK) tr__object_break(o);
    return o;
}
