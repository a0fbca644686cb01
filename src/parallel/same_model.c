#include "parallel/same_model.h"

#include "base/crc32c.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "tensor/list.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tr__tensors_say(const tr_tensor_list *list, tr__facts *facts)
{
    tr__facts_say(facts, "number of tensors", "%d", list->count);
    for (int i = 0; i < list->count; i++) {
        const tr_tensor *t = list->entries[i].tensor;
        char name[32];
        snprintf(name, sizeof name, "tensor %d", i + 1);
        tr__facts_say(facts, name, "\"%s\" %s %s%s", list->entries[i].name, tr_dtype_name(t->dtype), TR__TEXT(t->shape),
            t->requires_grad ? "" : " without gradient");
    }
}

/* ---- Modules ----------------------------------------------------------------------------------------------------- */

/* "model.h.0.attn": a module's kind and detail; "model.h.0.attn.weight": a tensor's dtype and shape. */
static tr_status say_part(const tr__walk *walk, const char *kind, const char *detail)
{
    char *name = NULL;
    if (asprintf(&name, "model.%s", walk->path) < 0) return tr__fail(TR_NO_MEMORY, "out of memory");
    tr__facts_say(walk->user, name, "%s%s%s%s", kind, *detail ? " (" : "", detail, *detail ? ")" : "");
    free(name);
    return TR_OK;
}

static tr_status say_module(tr__walk *walk, tr_module *module)
{
    return *walk->path ? say_part(walk, tr_module_name(module), module->detail ? module->detail : "") : TR_OK;
}

static tr_status say_tensor(tr__walk *walk, const tr__module_entry *member)
{
    const tr_tensor *t = member->tensor;
    char kind[192];
    snprintf(kind, sizeof kind, "%s %s", tr_dtype_name(t->dtype), TR__TEXT(t->shape));
    return say_part(walk, kind, member->kind == TR__BUFFER ? "a buffer" : t->requires_grad ? "" : "frozen");
}

tr_status tr__parts_say(tr_module *model, bool tensors, tr__facts *facts)
{
    tr__walk walk = {.module = say_module, .tensor = tensors ? say_tensor : NULL, .user = facts};
    return tr__module_walk(model, &walk);
}

/* ---- Optimizers -------------------------------------------------------------------------------------------------- */

/* Which parameters it has, and of which groups they are. What follows the optimizer's own decay counts as that. */
static void say_parameters(const tr_optimizer *o, tr__facts *facts)
{
    uint32_t crc = 0;
    int apart = 0;
    for (int i = 0; i < o->count; i++) {
        const tr__optimized *p = &o->parameters[o->place[i]];
        bool own = p->lr_scale != 1 || p->weight_decay != o->settings[TR__DECAY];
        const double numbers[] = {own ? p->lr_scale : 1, own ? p->weight_decay : -1};
        const char *name = tr_list_name(o->list, i);
        crc = tr__crc32c(tr__crc32c(crc, name, strlen(name) + 1), numbers, sizeof numbers);
        apart += own;
    }
    tr__facts_say(facts, "optimizer.parameters", "%d (%d with a rate or decay of their own, CRC-32C %08" PRIx32 ")",
        o->count, apart, crc);
}

void tr__optimizer_say(const tr_optimizer *o, tr__facts *facts)
{
    tr__facts_say(facts, "optimizer", "%s%s", o->rule->name, o->gather ? ", sharded" : "");
    for (int i = 0; i < TR__HYPERS; i++) {
        char name[64];
        snprintf(name, sizeof name, "optimizer.%s", o->setting_names[i] ? o->setting_names[i] : "");
        if (i != TR__LR && o->setting_names[i]) tr__facts_number(facts, name, o->settings[i]);
    }
    char states[160] = "";
    for (int k = 0; k < o->n_states; k++) {
        size_t length = strlen(states);
        snprintf(states + length, sizeof states - length, "%s%s", k ? ", " : "", o->rule->state_names[k]);
    }
    tr__facts_say(facts, "optimizer.state", "%s", *states ? states : "none");
    say_parameters(o, facts);
}
