/*
 * The Adam family, in PyTorch's order of operations. For a parameter p with gradient g at its step t:
 *
 *   g <- g + decay p                          coupled
 *   p <- p (1 - lr decay)                     decoupled
 *   m <- m + (g - m)(1 - beta1)               exp_avg
 *   v <- v beta2 + g g (1 - beta2)            exp_avg_sq; not Adamax
 *
 * and then, by rule:
 *
 *   Adam, AdamW   w <- max(w, v) with AMSGrad, else v       max_exp_avg_sq
 *                 p <- p - lr/(1 - beta1^t) m / (sqrt(w)/sqrt(1 - beta2^t) + eps)
 *   Adamax        u <- max(u beta2, |g| + eps)              exp_inf
 *                 p <- p - lr/(1 - beta1^t) m / u
 *   NAdam         mu(t) = beta1 (1 - 0.96^(t momentum_decay) / 2),  M(t) = mu(1) mu(2) ... mu(t)
 *                 p <- p - lr ((1 - mu(t))/(1 - M(t)) g + mu(t+1)/(1 - M(t+1)) m) / (sqrt(v/(1 - beta2^t)) + eps)
 *   RAdam         n = 2/(1 - beta2) - 1,  r = n - 2 t beta2^t/(1 - beta2^t)
 *                 s = sqrt(1 - beta2^t) / (sqrt(v) + eps) * sqrt((r-4)(r-2)n / ((n-4)(n-2)r))    where r > 5, else 1
 *                 p <- p - lr/(1 - beta1^t) m s
 *
 * Adam and Adamax: Kingma & Ba 2015; AdamW: Loshchilov & Hutter 2019; AMSGrad: Reddi et al. 2018; NAdam: Dozat 2016; RAdam:
 * Liu et al. 2020.
 */
#include "optim/kernel.h"

/* The order is part of the interface of device kernels (trireme/kernels.h). Adamax has no .decoupled: its setting is 0. */
enum { BETA1 = TR__OWN, BETA2, EPS, DECOUPLED, NADAM_MOMENTUM_DECAY = DECOUPLED, NADAM_DECOUPLED };

/* The frame of each kernel: CONSTANTS come before the loop, and the update in it computes p[i] from x, g, m[i] and the second
 * state v. */
#define ADAM_KERNEL(name, P, S, read, write, decoupled, CONSTANTS, ...)                                   \
    TR__UPDATE_KERNEL(name, P, S, read,                                                                   \
        const double lr = u->lr; const double t = (double)u->step;                                        \
        const double b1 = settings[BETA1]; const double b2 = settings[BETA2];                             \
        const double shrink = settings[decoupled] ? lr * u->weight_decay : 0;                             \
        const S added = (S)(settings[decoupled] ? 0 : u->weight_decay); const S keep = (S)(1 - shrink);   \
        const S rest1 = (S)(1 - b1); const S rest2 = (S)(1 - b2); const S beta2 = (S)b2;                  \
        const S eps = (S)settings[EPS]; const S step = (S)(lr / (1 - pow(b1, t)));                        \
        CONSTANTS                                                                                         \
        (void)(rest2 + step + (S)t);                                                                      \
        S *restrict m = u->state[0]; S *restrict v = u->state[1];,                                        \
        g += added * x;                                                                                   \
        m[i] = m[i] + (g - m[i]) * rest1;                                                                 \
        __VA_ARGS__)

#define ADAM(name, P, S, read, write, root)                                                               \
    ADAM_KERNEL(name, P, S, read, write, DECOUPLED,                                                       \
        const S scale = (S)(1 / sqrt(1 - pow(b2, t))); S *restrict most = u->state[2];,                   \
        S w = v[i] = v[i] * beta2 + g * g * rest2;                                                        \
        if (most) w = most[i] = most[i] > w ? most[i] : w;                                                \
        p[i] = write(x * keep - step * m[i] / (root(w) * scale + eps));)
TR__UPDATE_KERNELS(ADAM, adam)

#define ADAMAX(name, P, S, read, write, root)                                                             \
    ADAM_KERNEL(name, P, S, read, write, DECOUPLED,,                                                      \
        S size = (g < 0 ? -g : g) + eps, old = v[i] * beta2;                                              \
        v[i] = old > size ? old : size;                                                                   \
        p[i] = write(x * keep - step * (m[i] / v[i]));)
TR__UPDATE_KERNELS(ADAMAX, adamax)

static double mu(const double *settings, int64_t t)
{
    return settings[BETA1] * (1 - 0.5 * pow(0.96, (double)t * settings[NADAM_MOMENTUM_DECAY]));
}

/* The factor is M(t), a function of t alone. It shrinks fast, and 1 - M is 1 in f64 long before M is 0. */
static tr_status prepare_nadam(tr__update *u)
{
    u->factor = 1;
    for (int64_t i = 1; i <= u->step && u->factor > 1e-20; i++) u->factor *= mu(u->optimizer->settings, i);
    return TR_OK;
}

#define NADAM(name, P, S, read, write, root)                                                              \
    ADAM_KERNEL(name, P, S, read, write, NADAM_DECOUPLED,                                                 \
        const double now = mu(settings, u->step); const double next = mu(settings, u->step + 1);          \
        const S of_g = (S)(lr * (1 - now) / (1 - u->factor));                                             \
        const S of_m = (S)(lr * next / (1 - u->factor * next));                                           \
        const S scale = (S)(1 / sqrt(1 - pow(b2, t)));,                                                   \
        v[i] = v[i] * beta2 + g * g * rest2;                                                              \
        p[i] = write(x * keep - (of_g * g + of_m * m[i]) / (root(v[i]) * scale + eps));)
TR__UPDATE_KERNELS(NADAM, nadam)

/* The factor rectifies the variance and contains its bias correction; 0: no variance yet. */
static tr_status prepare_radam(tr__update *u)
{
    double beta2 = u->optimizer->settings[BETA2], t = (double)u->step;
    double rest = 1 - pow(beta2, t), n = 2 / (1 - beta2) - 1, r = n - 2 * t * pow(beta2, t) / rest;
    u->factor = r > 5 ? sqrt(rest * (r - 4) * (r - 2) * n / ((n - 4) * (n - 2) * r)) : 0;
    return TR_OK;
}

#define RADAM(name, P, S, read, write, root)                                                              \
    ADAM_KERNEL(name, P, S, read, write, DECOUPLED, const S rectified = (S)u->factor;,                    \
        v[i] = v[i] * beta2 + g * g * rest2;                                                              \
        S s = rectified > 0 ? rectified / (root(v[i]) + eps) : 1;                                         \
        p[i] = write(x * keep - step * m[i] * s);)
TR__UPDATE_KERNELS(RADAM, radam)

#define ADAM_RULE(rule, ...) {.name = rule, .state_names = {"exp_avg", __VA_ARGS__}, .kernel = TR__KERNELS_OF(adam)}
static const tr__optimizer_rule adam_rules[2][2] = { /* [decoupled][amsgrad] */
    {ADAM_RULE("adam", "exp_avg_sq"), ADAM_RULE("adam", "exp_avg_sq", "max_exp_avg_sq")},
    {ADAM_RULE("adamw", "exp_avg_sq"), ADAM_RULE("adamw", "exp_avg_sq", "max_exp_avg_sq")},
};
static const tr__optimizer_rule adamax_rule = {
    .name = "adamax", .state_names = {"exp_avg", "exp_inf"}, .kernel = TR__KERNELS_OF(adamax)};
static const tr__optimizer_rule nadam_rule = {.name = "nadam", .state_names = {"exp_avg", "exp_avg_sq"},
    .kernel = TR__KERNELS_OF(nadam), .prepare = prepare_nadam};
static const tr__optimizer_rule radam_rule = {.name = "radam", .state_names = {"exp_avg", "exp_avg_sq"},
    .kernel = TR__KERNELS_OF(radam), .prepare = prepare_radam};

/* The hyperparameters of the family; its own follow. */
#define HYPERS(o, default_lr, decay, ...)                                      \
    TR__HYPERS_OF(o, default_lr, decay,                                        \
        [BETA1] = {"beta1", TR__OR(o, beta1, 0.9), TR__FRACTION},              \
        [BETA2] = {"beta2", TR__OR(o, beta2, 0.999), TR__FRACTION},            \
        [EPS] = {"eps", TR__OR(o, eps, 1e-8), TR__POSITIVE},                   \
        __VA_ARGS__)

tr_optimizer *tr_adam_with(const tr_adam_options *o)
{
    const tr__hyper *hypers = HYPERS(o, 1e-3, o->weight_decay, [DECOUPLED] = {"decoupled", false, TR__FLAG},
        [TR__BF16_STATE] = {"bf16_state", o->bf16_state, TR__FLAG});
    return tr__optimizer_new(&adam_rules[false][o->amsgrad], o->parameters, hypers, false);
}

tr_optimizer *tr_adamw_with(const tr_adamw_options *o)
{
    const tr__hyper *hypers = HYPERS(o, 1e-3, TR__OR(o, weight_decay, 0.01), [DECOUPLED] = {"decoupled", true, TR__FLAG},
        [TR__BF16_STATE] = {"bf16_state", o->bf16_state, TR__FLAG});
    return tr__optimizer_new(&adam_rules[true][o->amsgrad], o->parameters, hypers, o->decay_matrices_only);
}

tr_optimizer *tr_adamax_with(const tr_adamax_options *o)
{
    return tr__optimizer_new(&adamax_rule, o->parameters, HYPERS(o, 2e-3, o->weight_decay, {0}), false);
}

tr_optimizer *tr_nadam_with(const tr_nadam_options *o)
{
    const tr__hyper *hypers = HYPERS(o, 2e-3, o->weight_decay,
        [NADAM_MOMENTUM_DECAY] = {"momentum_decay", TR__OR(o, momentum_decay, 4e-3), TR__AMOUNT},
        [NADAM_DECOUPLED] = {"decoupled", o->decoupled, TR__FLAG});
    return tr__optimizer_new(&nadam_rule, o->parameters, hypers, false);
}

tr_optimizer *tr_radam_with(const tr_radam_options *o)
{
    const tr__hyper *hypers = HYPERS(o, 1e-3, o->weight_decay, [DECOUPLED] = {"decoupled", o->decoupled, TR__FLAG});
    return tr__optimizer_new(&radam_rule, o->parameters, hypers, false);
}
