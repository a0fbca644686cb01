/*
 * Replicas of a module's tree. What a module is lies in its members, which are known, and in its state, which is its own
 * affair: there, words that hold the address of something in the tree are taken for pointers to it.
 */
#include "nn/module.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* A module or tensor of the tree, and what stands for it in the copy. */
typedef struct pair {
    const void *from;
    void *to;
} pair;

typedef struct copying {
    tr_device device;
    uint64_t first_sample;
    bool given; /* the caller has set the leaves: a parameter without one came too late */
    int learning; /* of the parameters that were not given, those that are not frozen */
    pair *pairs;
    size_t count, room;
} copying;

static void *known(const copying *c, const void *from)
{
    for (size_t i = 0; i < c->count; i++)
        if (c->pairs[i].from == from) return c->pairs[i].to;
    return NULL;
}

static tr_status note(copying *c, const void *from, void *to)
{
    TR__TRY(tr_status_of(to));
    if (!tr__grow(&c->pairs, c->count, &c->room, sizeof *c->pairs)) return tr__fail(TR_NO_MEMORY, "out of memory for a replica");
    c->pairs[c->count++] = (pair){from, to};
    return TR_OK;
}

/* A parameter becomes a leaf on the device; a buffer stays itself where it is there already, else it is copied. */
static tr_status copy_tensor(copying *c, const tr_module *module, const tr__module_entry *member, tr_tensor **out)
{
    tr_tensor *from = member->tensor;
    *out = known(c, from);
    if (*out) return TR_OK;
    if (member->kind == TR__PARAMETER) {
        if (c->given)
            return tr__fail(TR_STATE, "%s: \"%s\" was added after its replicas were set up: finish it before", module->name,
                member->name);
        c->learning += from->requires_grad;
        *out = tr__tensor_on(from, c->device);
        if (from->requires_grad) *out = tr_require_grad(*out);
    } else if (tr_device_equal(tr__device_of(from), c->device)) {
        *out = from;
    } else {
        *out = tr__tensor_new(from->shape, from->dtype, c->device);
        TR__TRY(tr_status_of(*out));
        TR__TRY(tr_copy_into(*out, from));
    }
    return note(c, from, *out);
}

static tr_status copy_module(copying *c, const tr_module *module, tr_module **out)
{
    *out = known(c, module);
    if (*out) return TR_OK;
    tr_module *copy = *out = tr_module_new(module->name, module->state_bytes, module->forward);
    TR__TRY(note(c, module, copy));
    if (module->state_bytes) memcpy(copy->state, module->state, module->state_bytes);
    copy->many = module->many;
    copy->layer = module->layer;
    copy->n_outputs = module->n_outputs;
    copy->mode = tr__mode_of(module);
    copy->mode.first_sample += c->first_sample;
    copy->recompute = module->recompute;

    copy->members = calloc((size_t)module->count + 1, sizeof *copy->members);
    if (!copy->members) return tr__fail(TR_NO_MEMORY, "out of memory for a replica");
    copy->room = (size_t)module->count;
    for (int i = 0; i < module->count; i++) {
        const tr__module_entry *member = &module->members[i];
        tr__module_entry mine = {.kind = member->kind};
        if (member->kind == TR__CHILD)
            TR__TRY(copy_module(c, member->child, &mine.child));
        else
            TR__TRY(copy_tensor(c, module, member, &mine.tensor));
        mine.name = strdup(member->name);
        if (!mine.name) return tr__fail(TR_NO_MEMORY, "out of memory for a replica");
        tr__ref(member->kind == TR__CHILD ? (void *)mine.child : (void *)mine.tensor);
        copy->members[copy->count++] = mine;
    }
    return TR_OK;
}

static int by_address(const void *x, const void *y)
{
    const pair *a = x, *b = y;
    return ((uintptr_t)a->from > (uintptr_t)b->from) - ((uintptr_t)a->from < (uintptr_t)b->from);
}

/* The pairs are sorted. */
static void *counterpart(const copying *c, const void *from)
{
    const pair *found = bsearch(&(pair){.from = from}, c->pairs, c->count, sizeof *c->pairs, by_address);
    return found ? found->to : NULL;
}

static void redirect_state(const copying *c, tr_module *module)
{
    void **words = module->state;
    for (size_t i = 0; i < module->state_bytes / sizeof *words; i++) {
        void *to = words[i] ? counterpart(c, words[i]) : NULL;
        if (to) words[i] = to;
    }
}

static tr_status copy_tree(copying *c, tr_module *module, const tr_tensor_list *parameters, tr_tensor **leaves,
    tr_module **out)
{
    c->given = tr_list_count(parameters) && leaves[0];
    for (int i = 0; c->given && i < tr_list_count(parameters); i++) TR__TRY(note(c, tr_list_at(parameters, i), leaves[i]));
    TR__TRY(copy_module(c, module, out));
    qsort(c->pairs, c->count, sizeof *c->pairs, by_address);
    for (size_t i = 0; i < c->count; i++)
        if (tr__object_is(c->pairs[i].from, &tr__module_type)) redirect_state(c, c->pairs[i].to);
    int had = 0;
    for (int i = 0; i < tr_list_count(parameters); i++) had += tr_list_at(parameters, i)->requires_grad;
    if (c->learning > had)
        return tr__fail(TR_STATE, "%s: it has %d parameters that learn, and had %d when its replicas were set up: finish it before",
            module->name, c->learning, had);
    for (int i = 0; !c->given && i < tr_list_count(parameters); i++)
        leaves[i] = tr_keep((tr_tensor *)counterpart(c, tr_list_at(parameters, i)));
    return TR_OK;
}

tr_module *tr__module_replica(tr_module *module, tr_device device, int64_t first_sample, const tr_tensor_list *parameters,
    tr_tensor **leaves)
{
    copying c = {.device = device, .first_sample = (uint64_t)first_sample};
    tr_module *copy = NULL;
    tr_status status = copy_tree(&c, module, parameters, leaves, &copy);
    free(c.pairs);
    return status == TR_OK ? copy : tr__object_failed(&tr__module_type);
}
