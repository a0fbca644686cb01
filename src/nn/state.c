/* Operations on a module's whole tree: lists of its tensors, loading, moving, modes, seeds. */
#include "nn/module.h"

#include "autograd/arena.h"
#include "base/hash.h"
#include "tensor/match.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Walking ----------------------------------------------------------------------------------------------------- */

/* Appends ".name" (or "name" at the start, or nothing for "") to the path; the caller cuts it back. */
static tr_status enter(tr__walk *walk, const char *name)
{
    size_t more = strlen(name) + 1, needed = walk->length + more + 1;
    if (needed > walk->capacity) {
        char *path = realloc(walk->path, 2 * needed);
        if (!path) return tr__fail(TR_NO_MEMORY, "out of memory for the path of \"%s\"", name);
        walk->path = path;
        walk->capacity = 2 * needed;
    }
    if (walk->length && *name) walk->path[walk->length++] = '.';
    memcpy(walk->path + walk->length, name, more);
    walk->length += more - 1;
    return TR_OK;
}

static tr_status walk_members(tr__walk *walk, tr_module *module)
{
    TR__TRY(tr_status_of(module));
    if (walk->module) TR__TRY(walk->module(walk, module));
    for (int i = 0; i < module->count; i++) {
        const tr__module_entry *member = &module->members[i];
        size_t back = walk->length;
        TR__TRY(enter(walk, member->name));
        if (member->kind == TR__CHILD)
            TR__TRY(walk_members(walk, member->child));
        else if (walk->tensor)
            TR__TRY(walk->tensor(walk, member));
        walk->path[walk->length = back] = '\0';
    }
    return TR_OK;
}

tr_status tr__module_walk(tr_module *root, tr__walk *walk)
{
    if (!root) return tr__fail(TR_INVALID, "the module is NULL");
    tr_status status = enter(walk, "");
    if (status == TR_OK) status = walk_members(walk, root);
    free(walk->path);
    walk->path = NULL;
    walk->length = walk->capacity = 0;
    return status;
}

/* ---- Parameters and state dicts ---------------------------------------------------------------------------------- */

typedef struct collection {
    tr_tensor_list *list;
    bool buffers;
} collection;

static tr_status collect(tr__walk *walk, const tr__module_entry *member)
{
    collection *c = walk->user;
    if (member->kind == TR__BUFFER && !c->buffers) return TR_OK;
    for (int i = 0, n = tr_list_count(c->list); i < n; i++)
        if (tr_list_at(c->list, i) == member->tensor) return TR_OK; /* tied: it stands under its first name */
    return tr_list_add(c->list, walk->path, member->tensor);
}

static tr_tensor_list *tensors_of(tr_module *module, bool buffers)
{
    collection c = {.list = tr_list_new(), .buffers = buffers};
    if (c.list->object.error) return c.list;
    if (tr__module_walk(module, &(tr__walk){.tensor = collect, .user = &c}) == TR_OK) return c.list;
    return tr__object_failed(&tr__list_type);
}

tr_tensor_list *tr_parameters(tr_module *module)
{
    return tensors_of(module, false);
}

tr_tensor_list *tr_state_dict(tr_module *module)
{
    return tensors_of(module, true);
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

/* Applies the renaming rules to a name. The caller frees *out; NULL: the entry is left out. */
static tr_status renamed(const char *name, const tr_rename *rules, char **out)
{
    *out = strdup(name);
    for (const tr_rename *rule = rules; *out && rule && rule->from; rule++) {
        const char *run;
        size_t length;
        if (!tr__name_like(*out, rule->from, &run, &length)) continue;
        char *next = NULL;
        int at = rule->to ? (int)strcspn(rule->to, "*") : 0;
        bool star = rule->to && rule->to[at];
        int made = !rule->to ? 0
                             : asprintf(&next, "%.*s%.*s%s", at, rule->to, star ? (int)length : 0, run,
                                   star ? rule->to + at + 1 : "");
        free(*out);
        *out = made < 0 ? NULL : next;
        if (!rule->to) return TR_OK;
    }
    return *out ? TR_OK : tr__fail(TR_NO_MEMORY, "out of memory");
}

static tr_status rename_all(const tr_tensor_list *state, const tr_rename *rules, tr_tensor_list *out)
{
    TR__TRY(tr_status_of(out));
    for (int i = 0; i < tr_list_count(state); i++) {
        char *name;
        TR__TRY(renamed(tr_list_name(state, i), rules, &name));
        tr_status status = name ? tr_list_add(out, name, tr_list_at(state, i)) : TR_OK;
        free(name);
        TR__TRY(status);
    }
    return TR_OK;
}

tr_status tr_load_state_dict_with(const tr_load_state_dict_options *options)
{
    TR_SCOPE;
    static const char what[] = "tr_load_state_dict";
    if (options->report) *options->report = (tr_load_report){.loaded = 0}; /* also of what fails before it is compared */
    const tr_tensor_list *own = tr_state_dict(options->module), *state = options->state;
    TR__TRY(tr_status_of(own));
    TR__TRY(tr_status_of(state));
    if (state && options->rename) {
        tr_tensor_list *others = tr_list_new();
        tr_status status = rename_all(state, options->rename, others);
        if (status != TR_OK) return tr__fail_context(status, "%s: .rename", what);
        state = others;
    }
    TR__TRY(tr__list_match(what, "the module", own, state, options->partial, options->report));
    return tr__list_copy(own, state);
}

/* ---- Moving ------------------------------------------------------------------------------------------------------ */

typedef struct move {
    tr_tensor *tensor, *copy;
} move;

static tr_status copy_to(tr_tensor *tensor, tr_device device, move *out)
{
    tr_tensor *copy = tr_empty(tensor->shape, .dtype = tensor->dtype, .device = device);
    TR__TRY(tr_status_of(copy));
    TR__TRY(tr_copy_into(copy, tensor));
    *out = (move){tensor, copy};
    return TR_OK;
}

/* The tensor gets the copy's memory and the copy, which goes with its scope, the tensor's. */
static void exchange(move m)
{
    tr__storage *storage = m.tensor->storage;
    m.tensor->storage = m.copy->storage;
    m.copy->storage = storage;
    m.tensor->offset = m.copy->offset;
    memcpy(m.tensor->stride, m.copy->stride, sizeof m.tensor->stride);
}

static tr_status copy_all(const tr_tensor_list *own, tr_device device, move *moves, int *n)
{
    for (int i = 0; i < tr_list_count(own); i++) {
        tr_tensor *tensor = tr_list_at(own, i);
        if (tr_device_equal(tr__device_of(tensor), device)) continue;
        if (tr__arena_slot_of(tensor))
            return tr__fail(TR_STATE, "tr_module_to: an optimizer, DDP or tr_fully_shard() holds \"%s\" already: move a module "
                "before", tr_list_name(own, i));
        TR__TRY(copy_to(tensor, device, &moves[*n]));
        ++*n;
        if (!tensor->leaf || !tensor->leaf->grad) continue;
        TR__TRY(copy_to(tensor->leaf->grad, device, &moves[*n]));
        ++*n;
    }
    return TR_OK;
}

tr_status tr_module_to(tr_module *module, tr_device device)
{
    TR__TRY(tr__device_check(device));
    TR_SCOPE;
    tr_tensor_list *own = tr_state_dict(module);
    TR__TRY(tr_status_of(own));
    /* All copies are made before the first tensor is changed, so that a failure leaves the module as it was. */
    move *moves = calloc(2 * (size_t)tr_list_count(own) + 1, sizeof *moves);
    if (!moves) return tr__fail(TR_NO_MEMORY, "tr_module_to: out of memory");
    int n = 0;
    tr_status status = copy_all(own, device, moves, &n);
    for (int i = 0; status == TR_OK && i < n; i++) exchange(moves[i]);
    free(moves);
    return status;
}

/* ---- Modes and seeds --------------------------------------------------------------------------------------------- */

static tr_status set_mode(tr__walk *walk, tr_module *module)
{
    module->mode.evaluating = *(const bool *)walk->user;
    return TR_OK;
}

tr_status tr_train(tr_module *module)
{
    return tr__module_walk(module, &(tr__walk){.module = set_mode, .user = &(bool){false}});
}

tr_status tr_eval(tr_module *module)
{
    return tr__module_walk(module, &(tr__walk){.module = set_mode, .user = &(bool){true}});
}

static tr_status freeze(tr__walk *walk, const tr__module_entry *member)
{
    bool frozen = *(const bool *)walk->user;
    if (member->kind != TR__PARAMETER) return TR_OK;
    if (frozen) tr_clear_grad(member->tensor);
    member->tensor->requires_grad = !frozen;
    return TR_OK;
}

tr_status tr_freeze(tr_module *module, bool frozen)
{
    return tr__module_walk(module, &(tr__walk){.tensor = freeze, .user = &frozen});
}

/* The hash of a path behind another one, whose hash is given. */
static uint64_t hash_path(uint64_t hash, const char *path)
{
    if (hash != TR__HASH_BEGIN && *path) hash = tr__hash(hash, ".", 1);
    return tr__hash(hash, path, strlen(path));
}

/* Each module gets a stream of its own, by its path, so that no two dropouts draw the same mask. */
static tr_status set_seed(tr__walk *walk, tr_module *module)
{
    const tr_seed_options *options = walk->user;
    module->mode = (tr__mode){.evaluating = module->mode.evaluating, .seeded = true, .seed = options->seed,
        .path = hash_path(TR__HASH_BEGIN, walk->path), .step = options->step, .first_sample = options->first_sample};
    return TR_OK;
}

tr_status tr_seed_with(const tr_seed_options *options)
{
    return tr__module_walk(options->module, &(tr__walk){.module = set_seed, .user = (void *)options});
}

static _Thread_local const tr__lent_mode *lent;
static _Thread_local uint64_t samples_before;

const tr__lent_mode *tr__mode_lend(const tr__lent_mode *now)
{
    const tr__lent_mode *before = lent;
    lent = now;
    return before;
}

uint64_t tr__samples_before(uint64_t samples)
{
    uint64_t before = samples_before;
    samples_before = samples;
    return before;
}

bool tr__caller_evaluates(void)
{
    return lent && lent->mode.evaluating;
}

bool tr__evaluates(const tr_module *module)
{
    return module->mode.evaluating || tr__caller_evaluates();
}

typedef struct place {
    const tr_module *module;
    tr__mode *mode; /* gets what it draws from */
} place;

static tr_status draw_as_lent(tr__walk *walk, tr_module *module)
{
    const place *p = walk->user;
    if (module != p->module) return TR_OK;
    *p->mode = lent->mode;
    p->mode->path = hash_path(lent->mode.path, walk->path);
    return TR_OK;
}

tr__mode tr__mode_of(const tr_module *module)
{
    tr__mode mode = module->mode;
    if (lent && lent->mode.seeded)
        (void)!tr__module_walk(lent->root, &(tr__walk){.module = draw_as_lent, .user = &(place){module, &mode}});
    mode.evaluating = tr__evaluates(module);
    mode.first_sample += samples_before;
    return mode;
}
