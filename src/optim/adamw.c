/*
 * AdamW (Loshchilov & Hutter 2019), in PyTorch's order of operations. For a parameter p with gradient g at its step t:
 *
 *   p <- p (1 - lr decay)
 *   m <- m + (g - m)(1 - beta1)            exp_avg
 *   v <- v beta2 + g g (1 - beta2)         exp_avg_sq
 *   p <- p - lr/(1 - beta1^t) * m / (sqrt(v)/sqrt(1 - beta2^t) + eps)
 */
#include "optim/optimizer.h"

#include "base/half.h"

#include <math.h>

enum { BETA1, BETA2, EPS }; /* in settings */

/* P: the parameters' type, S: the state's, which is computed in. The constants are rounded to S once. */
#define ADAMW_KERNEL(name, P, S, read, write, square_root)                                          \
    static void name(const tr__update *u, int64_t begin, int64_t end)                               \
    {                                                                                               \
        const tr_optimizer *o = u->optimizer;                                                       \
        double b1 = o->settings[BETA1], b2 = o->settings[BETA2], t = (double)u->step;               \
        const S keep = (S)(1 - o->lr * u->weight_decay), step = (S)(o->lr / (1 - pow(b1, t)));      \
        const S root = (S)(1 / sqrt(1 - pow(b2, t))), eps = (S)o->settings[EPS];                    \
        const S beta2 = (S)b2, rest1 = (S)(1 - b1), rest2 = (S)(1 - b2);                            \
        P *restrict p = u->parameters;                                                              \
        const P *restrict gradient = u->gradients;                                                  \
        S *restrict m = u->state[0], *restrict v = u->state[1];                                     \
        for (int64_t i = begin; i < end; i++) {                                                     \
            S g = read(gradient[i]);                                                                \
            m[i] = m[i] + (g - m[i]) * rest1;                                                       \
            v[i] = v[i] * beta2 + g * g * rest2;                                                    \
            p[i] = write(read(p[i]) * keep - step * m[i] / (square_root(v[i]) * root + eps));       \
        }                                                                                           \
    }

ADAMW_KERNEL(adamw_f32, float, float, (float), (float), sqrtf)
ADAMW_KERNEL(adamw_f64, double, double, (double), (double), sqrt)
ADAMW_KERNEL(adamw_bf16, uint16_t, float, tr__bf16_to_f32, tr__f32_to_bf16, sqrtf)

static const tr__optimizer_rule adamw = {
    .name = "adamw",
    .state_names = {"exp_avg", "exp_avg_sq"},
    .kernel = {[TR_F32] = adamw_f32, [TR_F64] = adamw_f64, [TR_BF16] = adamw_bf16},
};

tr_optimizer *tr_adamw_with(const tr_adamw_options *options)
{
    double lr = tr__option(options->lr, 1e-3), decay = tr__option(options->weight_decay, 0.01);
    double beta1 = tr__option(options->beta1, 0.9), beta2 = tr__option(options->beta2, 0.999);
    double eps = tr__option(options->eps, 1e-8);
    if (!(lr >= 0 && isfinite(lr) && decay >= 0 && isfinite(decay)))
        return tr__optimizer_fail(TR_INVALID, "adamw: lr and weight_decay must be 0 or more, not %g and %g", lr, decay);
    if (!(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1))
        return tr__optimizer_fail(TR_INVALID, "adamw: beta1 and beta2 must be in [0, 1), not %g and %g", beta1, beta2);
    /* With eps 0 an element whose gradients were all 0 would become 0/0. */
    if (!((float)eps > 0 && isfinite(eps)))
        return tr__optimizer_fail(TR_INVALID, "adamw: eps must be more than 0, not %g", eps);
    tr_optimizer *o = tr__optimizer_new(&adamw, 2, options->parameters, options->decay_matrices_only);
    if (o->object.error) return o;
    o->lr = lr;
    o->weight_decay = decay;
    o->settings[BETA1] = beta1;
    o->settings[BETA2] = beta2;
    o->settings[EPS] = eps;
    return o;
}
