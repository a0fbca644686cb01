/*
 * SGD with momentum as torch.optim.SGD has it (Sutskever et al. 2013). For a parameter p with gradient g:
 *
 *   g <- g + decay p
 *   b <- g at its first step, then b momentum + g (1 - dampening)     momentum_buffer, when there is momentum
 *   p <- p - lr b, or with Nesterov p - lr (g + momentum b)
 */
#include "optim/kernel.h"

enum { MOMENTUM, DAMPENING, NESTEROV }; /* in settings */

#define PLAIN(name, P, S, read, write, root)                                                       \
    static void name(const tr__update *u, int64_t begin, int64_t end)                              \
    {                                                                                              \
        const S lr = (S)u->optimizer->lr, decay = (S)u->weight_decay;                              \
        P *restrict p = u->parameters;                                                             \
        const P *restrict gradient = u->gradients;                                                 \
        for (int64_t i = begin; i < end; i++) {                                                    \
            S x = read(p[i]);                                                                      \
            p[i] = write(x - lr * (read(gradient[i]) + decay * x));                                \
        }                                                                                          \
    }

#define WITH_MOMENTUM(name, P, S, read, write, root)                                               \
    static void name(const tr__update *u, int64_t begin, int64_t end)                              \
    {                                                                                              \
        const double *settings = u->optimizer->settings;                                           \
        const S lr = (S)u->optimizer->lr, decay = (S)u->weight_decay;                              \
        const S old = u->step == 1 ? 0 : (S)settings[MOMENTUM];                                    \
        const S new = u->step == 1 ? 1 : (S)(1 - settings[DAMPENING]);                             \
        /* the step is ahead g + by b, where Nesterov has ahead 1 and by momentum, else 0 and 1 */ \
        const S ahead = (S)settings[NESTEROV], by = ahead ? (S)settings[MOMENTUM] : 1;             \
        P *restrict p = u->parameters;                                                             \
        const P *restrict gradient = u->gradients;                                                 \
        S *restrict b = u->state[0];                                                               \
        for (int64_t i = begin; i < end; i++) {                                                    \
            S x = read(p[i]), g = read(gradient[i]) + decay * x;                                   \
            b[i] = old * b[i] + new * g;                                                           \
            p[i] = write(x - lr * (ahead * g + by * b[i]));                                        \
        }                                                                                          \
    }

TR__UPDATE_KERNELS(PLAIN, plain)
TR__UPDATE_KERNELS(WITH_MOMENTUM, momentum)

static const tr__optimizer_rule rules[2] = { /* [momentum > 0] */
    {"sgd", {NULL}, TR__KERNELS_OF(plain)},
    {"sgd", {"momentum_buffer"}, TR__KERNELS_OF(momentum)},
};

tr_optimizer *tr_sgd_with(const tr_sgd_options *options)
{
    double lr = tr__option(options->lr, 1e-3), decay = options->weight_decay;
    double momentum = options->momentum, dampening = options->dampening;
    if (!tr__is_amount(lr) || !tr__is_amount(decay))
        return tr__optimizer_fail(TR_INVALID, "sgd: lr and weight_decay must be 0 or more, not %g and %g", lr, decay);
    if (!tr__is_amount(momentum) || !isfinite(dampening))
        return tr__optimizer_fail(TR_INVALID, "sgd: momentum must be 0 or more and dampening finite, not %g and %g",
            momentum, dampening);
    if (options->nesterov && (momentum == 0 || dampening != 0))
        return tr__optimizer_fail(TR_INVALID, "sgd: nesterov takes momentum and no dampening, not %g and %g", momentum,
            dampening);
    tr_optimizer *o = tr__optimizer_new(&rules[momentum > 0], options->parameters, false);
    if (o->object.error) return o;
    o->lr = lr;
    o->weight_decay = decay;
    o->settings[MOMENTUM] = momentum;
    o->settings[DAMPENING] = dampening;
    o->settings[NESTEROV] = options->nesterov;
    return o;
}
