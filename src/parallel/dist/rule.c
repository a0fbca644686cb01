/* Optimizers by kind: how their options travel. */
#include "parallel/dist/rpc.h"

#include "optim/optimizer.h"

#include <string.h>

/* The options of each, in the order in which they travel. */
#define SGD_FIELDS(X) X(lr) X(momentum) X(dampening) X(weight_decay) X(nesterov) X(bf16_state)
#define ADAM_FIELDS(X) X(lr) X(beta1) X(beta2) X(eps) X(weight_decay) X(amsgrad) X(bf16_state)
#define ADAMW_FIELDS(X) X(lr) X(beta1) X(beta2) X(eps) X(weight_decay) X(decay_matrices_only) X(amsgrad) X(bf16_state)
#define RMSPROP_FIELDS(X) X(lr) X(alpha) X(eps) X(weight_decay) X(momentum) X(centered)
#define ADAGRAD_FIELDS(X) X(lr) X(lr_decay) X(weight_decay) X(initial_accumulator) X(eps)
#define ADAMAX_FIELDS(X) X(lr) X(beta1) X(beta2) X(eps) X(weight_decay)
#define NADAM_FIELDS(X) X(lr) X(beta1) X(beta2) X(eps) X(weight_decay) X(momentum_decay) X(decoupled)
#define RADAM_FIELDS(X) X(lr) X(beta1) X(beta2) X(eps) X(weight_decay) X(decoupled)
#define ADADELTA_FIELDS(X) X(lr) X(rho) X(eps) X(weight_decay)
#define RPROP_FIELDS(X) X(lr) X(decrease) X(increase) X(least) X(most)
#define LION_FIELDS(X) X(lr) X(beta1) X(beta2) X(weight_decay) X(bf16_state)
#define LAMB_FIELDS(X) X(lr) X(beta1) X(beta2) X(eps) X(weight_decay) X(matrices_only)
#define LARS_FIELDS(X) X(lr) X(momentum) X(weight_decay) X(trust) X(matrices_only)
#define MUON_FIELDS(X) X(lr) X(momentum) X(weight_decay) X(eps) X(iterations) X(plain) X(match_adamw)
#define RULES(X)                                                                     \
    X(SGD, sgd, SGD_FIELDS) X(ADAM, adam, ADAM_FIELDS) X(ADAMW, adamw, ADAMW_FIELDS) \
    X(RMSPROP, rmsprop, RMSPROP_FIELDS) X(ADAGRAD, adagrad, ADAGRAD_FIELDS)          \
    X(ADAMAX, adamax, ADAMAX_FIELDS) X(NADAM, nadam, NADAM_FIELDS) X(RADAM, radam, RADAM_FIELDS) \
    X(ADADELTA, adadelta, ADADELTA_FIELDS) X(RPROP, rprop, RPROP_FIELDS) X(LION, lion, LION_FIELDS) \
    X(LAMB, lamb, LAMB_FIELDS) X(LARS, lars, LARS_FIELDS) X(MUON, muon, MUON_FIELDS)

/* A 0 that was given, rather than left to the default, travels as TR_ZERO, and is given there, too. */
#define PUT(field) settings[n++] = TR__PASS(o, field);
#define GET(field)                                                               \
    if (settings[k] == 0 && signbit(settings[k])) strcat(given, "." #field ","); \
    o.field = (__typeof__(o.field))settings[k++];
#define COUNT(field) +1
#define LENGTH(field) +sizeof("." #field ",")

#define RULE(NAME, name, FIELDS)                                                                                      \
    static int put_##name(const tr_##name##_options *o, double *settings)                                             \
    {                                                                                                                 \
        int n = 0;                                                                                                    \
        FIELDS(PUT)                                                                                                   \
        return n;                                                                                                     \
    }                                                                                                                 \
    static tr_optimizer *make_##name(const double *settings, int n, tr_tensor_list *parameters)                       \
    {                                                                                                                 \
        enum { SETTINGS = 0 FIELDS(COUNT) };                                                                          \
        if (n != SETTINGS)                                                                                            \
            return tr__optimizer_fail(TR_FORMAT, "dist optimizer: %d settings for " #name ", which has %d", n, SETTINGS); \
        char given[1 FIELDS(LENGTH)] = "";                                                                            \
        tr_##name##_options o = {.size = sizeof o, .given = given, .parameters = parameters};                         \
        int k = 0;                                                                                                    \
        FIELDS(GET)                                                                                                   \
        return tr_##name##_with(&o);                                                                                  \
    }
RULES(RULE)

int tr__dist_rule_settings(const tr_dist_rule *rule, double settings[TR__DIST_SETTINGS])
{
    switch (rule->kind) {
#define CASE(NAME, name, FIELDS) case TR_DIST_RULE_##NAME: return put_##name(&rule->name, settings);
    RULES(CASE)
#undef CASE
    default: tr__fail(TR_INVALID, "dist optimizer: no rule of kind %d", (int)rule->kind); return -1;
    }
}

tr_optimizer *tr__dist_rule_make(int64_t kind, const double *settings, int n, tr_tensor_list *parameters)
{
    switch (kind) {
#define CASE(NAME, name, FIELDS) case TR_DIST_RULE_##NAME: return make_##name(settings, n, parameters);
    RULES(CASE)
#undef CASE
    default: return tr__optimizer_fail(TR_FORMAT, "dist optimizer: no rule of kind %d", (int)kind);
    }
}
