/* How a model is trained: by which optimizer, in which precision, on which device, and whether activations are kept. */
#include "train.h"

#include "command.h"

#include <stdio.h>
#include <string.h>

/* ---- Optimizers -------------------------------------------------------------------------------------------------- */

#define PARAMETERS(t) .lr = (t)->lr, .weight_decay = (t)->weight_decay

static tr_optimizer *sgd(const tr__train *t, tr_tensor_list *parameters)
{
    return tr_sgd(parameters, .momentum = t->momentum, .bf16_state = t->bf16_state, PARAMETERS(t));
}
static tr_optimizer *adam(const tr__train *t, tr_tensor_list *parameters)
{
    return tr_adam(parameters, .bf16_state = t->bf16_state, PARAMETERS(t));
}
static tr_optimizer *adamw(const tr__train *t, tr_tensor_list *parameters)
{
    double beta2 = t->own_optimizer ? 0.999 : 0.99; /* that of a text's trainer is shorter */
    return tr_adamw(parameters, .beta2 = beta2, .decay_matrices_only = true, .bf16_state = t->bf16_state, PARAMETERS(t));
}
static tr_optimizer *rmsprop(const tr__train *t, tr_tensor_list *parameters)
{
    return tr_rmsprop(parameters, .momentum = t->momentum, PARAMETERS(t));
}
static tr_optimizer *adagrad(const tr__train *t, tr_tensor_list *parameters)
{
    return tr_adagrad(parameters, PARAMETERS(t));
}
static tr_optimizer *lion(const tr__train *t, tr_tensor_list *parameters)
{
    return tr_lion(parameters, .bf16_state = t->bf16_state, PARAMETERS(t));
}
static tr_optimizer *lamb(const tr__train *t, tr_tensor_list *parameters)
{
    return tr_lamb(parameters, PARAMETERS(t));
}
static tr_optimizer *lars(const tr__train *t, tr_tensor_list *parameters)
{
    return tr_lars(parameters, .momentum = t->momentum, PARAMETERS(t));
}

/* With what is taken where it is neither given nor the model's usual optimizer. */
static const struct choice {
    const char *name;
    tr_optimizer *(*make)(const tr__train *train, tr_tensor_list *parameters);
    bool has_momentum, has_bf16_state;
    double lr, momentum, weight_decay;
} choices[] = {
    {"sgd", sgd, true, true, 0.01, 0.9, 0},
    {"adam", adam, false, true, 1e-3, 0, 0},
    {"adamw", adamw, false, true, 1e-3, 0, 0.01},
    {"rmsprop", rmsprop, true, false, 1e-3, 0, 0},
    {"adagrad", adagrad, false, false, 0.01, 0, 0},
    {"lion", lion, false, true, 1e-4, 0, 0},
    {"lamb", lamb, false, false, 1e-3, 0, 0.01},
    {"lars", lars, true, false, 0.1, 0.9, 0},
};

const char *const tr__train_optimizers[] = {"sgd", "adam", "adamw", "rmsprop", "adagrad", "lion", "lamb", "lars", NULL};

static const struct choice *choice_of(const char *name)
{
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        if (strcmp(choices[i].name, name) == 0) return &choices[i];
    return NULL;
}

int tr__train_method(tr__train *t, const char *usual, double lr)
{
    if (!t->optimizer) t->optimizer = usual;
    const struct choice *c = choice_of(t->optimizer);
    if (!c) return tr__complain(t->command, "--resume: no optimizer is named \"%s\"", t->optimizer);
    t->own_optimizer = strcmp(t->optimizer, usual) != 0;
    if (tr__train_given(t, "momentum") && !c->has_momentum && !t->has_parent)
        return TR__MISUSE(t->command, "--momentum: %s has none to set", t->optimizer);
    if (t->bf16_state && !c->has_bf16_state)
        return TR__MISUSE(t->command, "--bf16-state: %s keeps its state in f32: take sgd, adam, adamw or lion", t->optimizer);
    if (t->resume) return -1; /* what was not given is the checkpoint's */
    if (!tr__train_given(t, "lr")) t->lr = t->own_optimizer ? c->lr : lr;
    if (!tr__train_given(t, "momentum")) t->momentum = c->momentum;
    if (!tr__train_given(t, "weight-decay") && t->own_optimizer) t->weight_decay = c->weight_decay;
    return -1;
}

static tr_optimizer *make(tr_tensor_list *parameters, void *train)
{
    const tr__train *t = train;
    return choice_of(t->optimizer)->make(t, parameters);
}

tr_optimizer_maker tr__train_optimizer_maker(const tr__train *t)
{
    return t->own_optimizer || t->bf16_state ? make : NULL;
}

/* ---- Precision, device and recompute ------------------------------------------------------------------------------------- */

const char *const tr__train_dtypes[] = {"f32", "bf16", NULL};

tr_dtype tr__train_autocast(const tr__train *t)
{
    return strcmp(t->dtype, "bf16") == 0 ? TR_BF16 : TR_F32;
}

/* Each of the modules PREFIX0, PREFIX1, … */
static tr_status recompute_each(tr_module *model, const char *prefix)
{
    for (int i = 0;; i++) {
        char path[64];
        snprintf(path, sizeof path, "%s%d", prefix, i);
        tr_module *block = tr_module_find(model, path);
        if (!block) return TR_OK;
        TRY(tr_set_recompute(block, true));
    }
}

tr_status tr__train_prepare(const tr__train *t, const tr_group *group, tr_module *model)
{
    static const char *const blocks[] = {"h.",      "bert.encoder.layer.", "layer1.", "layer2.",
                                         "layer3.", "layer4.",             "encoder.layers.encoder_layer_"};
    tr_device here;
    TRY(tr_group_device_named(group, t->device, &here));
    TRY(tr_module_to(model, here));
    for (size_t i = 0; t->recompute && i < sizeof blocks / sizeof *blocks; i++) TRY(recompute_each(model, blocks[i]));
    return TR_OK;
}
