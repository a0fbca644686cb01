/*
 * Fully sharded data parallelism: ZeRO, stage 3 (Rajbhandari et al., SC'20), in the shape of PyTorch's FSDP (Zhao et al., VLDB
 * 2023). A rank keeps a shard of each unit's parameters, of their gradients and of the optimizer's state:
 *
 *   forward    all_gather the unit, compute, let its memory go         (fully_shard_run.c)
 *   backward   all_gather the unit, compute, reduce_scatter its gradients, let both go
 *   step       on the shards alone
 *
 * The modules compute with the tensors that they were made with, whose memory comes and goes. What the program sees of a parameter,
 * in lists and state dicts, is this rank's shard of it, a leaf of its own.
 */
#include "parallel/fully_shard.h"

#include "comm/control.h"
#include "parallel/same_model.h"

#include <trireme/parallel.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const tr__type shard_type = {"shard", sizeof(tr__shard), tr__spread_destroy};

const tr__shard *tr__shard_of(const tr_tensor *leaf)
{
    const tr__spread *spread = leaf->leaf ? leaf->leaf->shards : NULL;
    return spread && spread->object.type == &shard_type ? (const tr__shard *)(const void *)spread : NULL;
}

tr_shape tr__shard_shape(const tr__shard *s, int r, int64_t *from)
{
    int64_t count = tr__numel(s->whole), first = r * s->each - s->begin, last = first + s->each;
    *from = first < 0 ? 0 : first < count ? first : count;
    last = last < 0 ? 0 : last < count ? last : count;
    tr_shape shape = {.ndim = s->whole.ndim > 0 ? s->whole.ndim : 1, .dim = {last - *from}};
    for (int d = 1; d < shape.ndim; d++) shape.dim[d] = 1;
    return shape;
}

tr_status tr__shards_refuse(const char *what, const tr_tensor_list *list)
{
    for (int i = 0; i < list->count; i++)
        if (tr__shard_of(list->entries[i].tensor))
            return tr__fail(TR_UNSUPPORTED, "%s: \"%s\" is sharded by tr_fully_shard(), which averages its gradient and shards its "
                "optimizer's state already", what, list->entries[i].name);
    return TR_OK;
}

/* ---- What a unit takes ---------------------------------------------------------------------------------------------- */

/* What a module has that no unit has yet. */
typedef struct found {
    tr_tensor_list *parameters, *buffers;
    bool inside;     /* a part with a unit has been met; */
    char inner[512]; /* the path of the latest one */
} found;

static bool is_within(const found *f, const char *path)
{
    size_t length = strlen(f->inner);
    return f->inside && strncmp(path, f->inner, length) == 0 && (!length || !path[length] || path[length] == '.');
}

static tr_status find_unit(tr__walk *walk, tr_module *module)
{
    found *f = walk->user;
    if (!module->around || is_within(f, walk->path)) return TR_OK;
    f->inside = true;
    snprintf(f->inner, sizeof f->inner, "%s", walk->path);
    return TR_OK;
}

static tr_status find_tensor(tr__walk *walk, const tr__module_entry *member)
{
    const found *f = walk->user;
    tr_tensor *t = member->tensor;
    if (member->whole && is_within(f, walk->path)) return TR_OK;
    if (member->whole)
        return tr__fail(TR_STATE, "fully_shard: \"%s\" is sharded with a module around this one already: shard the parts first, "
            "then the whole", walk->path);
    tr_status status = tr_status_of(t);
    if (status != TR_OK)
        return tr__fail_context(status, "fully_shard: \"%s\" is shared with a part that was sharded before it", walk->path);
    tr_tensor_list *list = member->kind == TR__BUFFER ? f->buffers : f->parameters;
    for (int i = 0; i < list->count; i++)
        if (list->entries[i].tensor == t) return TR_OK; /* tied */
    return tr_list_add(list, walk->path, t);
}

/* All parameters of a unit lie in one arena of its own. */
static tr_status check_parameters(const tr_tensor_list *list)
{
    TR__TRY(tr__gradients_stay("fully_shard", list, "call tr_step()"));
    for (int i = 0; i < list->count; i++) {
        const tr_tensor *t = list->entries[i].tensor, *first = list->entries[0].tensor;
        const char *name = list->entries[i].name;
        if (!tr__is_parameter(t)) return tr__fail(TR_INVALID, "fully_shard: \"%s\" is no leaf that requires a gradient", name);
        if (t->leaf->shards)
            return tr__fail(TR_UNSUPPORTED, "fully_shard: \"%s\" is a shard of what several ranks have together already", name);
        if (t->leaf->arena || t->leaf->averagers)
            return tr__fail(TR_STATE, "fully_shard: an optimizer or DDP holds \"%s\" already: shard a module before its optimizer "
                "is made; a sharded module needs no tr_ddp()", name);
        if (t->dtype != first->dtype || !tr_device_equal(tr__device_of(t), tr__device_of(first)))
            return tr__fail(TR_UNSUPPORTED, "fully_shard: \"%s\" is %s on %s, and \"%s\" %s on %s: the parameters of a unit have "
                "one dtype and device; shard parts of the module apart", name, tr_dtype_name(t->dtype),
                tr_device_name(tr__device_of(t), (char[16]){0}), list->entries[0].name, tr_dtype_name(first->dtype),
                tr_device_name(tr__device_of(first), (char[16]){0}));
    }
    return TR_OK;
}

static tr_status take_stock(tr_module *module, found *f)
{
    if (!module) return tr__fail(TR_INVALID, "fully_shard: it takes a module and a group, not NULL");
    TR__TRY(tr_status_of(module));
    if (!module->forward && !module->many)
        return tr__fail(TR_INVALID, "fully_shard: \"%s\" has no forward, which would gather its parameters: shard its parts",
            tr_module_name(module));
    if (module->around) return tr__fail(TR_STATE, "fully_shard: \"%s\" is sharded already", tr_module_name(module));
    TR__TRY(tr__module_walk(module, &(tr__walk){.module = find_unit, .tensor = find_tensor, .user = f}));
    return check_parameters(f->parameters);
}

static tr_status compare_ranks(const tr_fully_shard_options *o, tr_status status, const found *f)
{
    tr__facts facts = {0};
    if (status != TR_OK) return tr__agree(o->group, "fully_shard", status, NULL);
    tr__facts_say(&facts, "keep_after_forward", "%s", o->keep_after_forward ? "on" : "off");
    tr__tensors_say(f->parameters, &facts);
    tr__facts_say(&facts, "number of buffers", "%d", f->buffers->count);
    status = tr__parts_say(o->module, false, &facts);
    return tr__agree_once(o->group, "fully_shard", status, &facts);
}

/* ---- Making a unit ------------------------------------------------------------------------------------------------- */

/* This rank's shard of a parameter, with its value, which is here. */
static tr_tensor *make_shard(const tr__unit *u, const tr_tensor *whole)
{
    tr__shard *mark = (tr__shard *)(void *)tr__spread_new(&shard_type, u->group);
    if (mark->spread.object.error) return tr__tensor_pass(mark);
    mark->whole = whole->shape;
    mark->begin = tr__arena_slot_of(whole)->offset;
    mark->each = u->each;
    int64_t from;
    tr_shape shape = tr__shard_shape(mark, tr_rank(u->group), &from);
    tr_tensor *part = tr__tensor_view(whole, shape, NULL, whole->offset + from);
    tr_tensor *shard = tr__tensor_new(shape, whole->dtype, tr__device_of(whole));
    if (tr__bad(part) || tr__bad(shard)) return tr__bad(part) ? part : shard;
    if (tr_copy_into(shard, part) != TR_OK || tr_status_of(tr_require_grad(shard)) != TR_OK) return tr__tensor_failed();
    shard->requires_grad = whole->requires_grad;
    shard->leaf->shards = tr_keep(&mark->spread);
    return shard;
}

/* The unit of these parameters, with rank 0's values, whole and as shards. The module is as it was. */
static tr_status make_unit(tr__unit *u, const tr_fully_shard_options *o, const tr_tensor_list *parameters)
{
    TR_NO_GRAD;
    int ranks = tr_world_size(o->group);
    u->group = tr_keep(o->group);
    u->number = tr__group_next_module(o->group);
    u->site = (tr__call_site){o->file, o->line};
    u->keep = o->keep_after_forward;
    u->params = calloc((size_t)parameters->count, sizeof *u->params);
    u->counts = calloc((size_t)ranks, sizeof *u->counts);
    if (!u->params || !u->counts) return tr__fail(TR_NO_MEMORY, "out of memory");
    u->n_params = parameters->count;
    for (int i = 0; i < u->n_params; i++)
        u->params[i] = (tr__unit_param){.unit = u, .whole = tr_keep(parameters->entries[i].tensor), .hook = -1};
    TR__TRY(tr__arena_build(parameters));
    for (int i = 0; i < u->n_params; i++) {
        tr_clear_grad(u->params[i].whole);
        tr__arena_leave(u->params[i].whole);
    }
    u->whole = tr__ref(parameters->entries[0].tensor->leaf->arena);
    u->here = true;
    /* Shards begin at cache lines, as slots do: so a shard's leaves lie in an arena of their own as they lie in whole. */
    int64_t count = u->whole->count, each = (count + ranks - 1) / ranks;
    u->each = (each + TR__ARENA_ALIGN - 1) / TR__ARENA_ALIGN * TR__ARENA_ALIGN;
    for (int r = 0; r < ranks; r++) {
        int64_t left = count - r * u->each;
        u->counts[r] = left < 0 ? 0 : left < u->each ? left : u->each;
    }
    return TR_OK;
}

static tr_status make_shards(tr__unit *u, const tr_tensor_list *parameters)
{
    TR_NO_GRAD;
    tr_tensor_list *shards = tr_list_new();
    for (int i = 0; i < u->n_params; i++) {
        tr_tensor *shard = make_shard(u, parameters->entries[i].tensor);
        TR__TRY(tr_list_add(shards, parameters->entries[i].name, shard));
        u->params[i].shard = tr_keep(shard);
    }
    TR__TRY(tr__arena_build(shards));
    u->own = tr__ref(shards->entries[0].tensor->leaf->arena);
    return tr__unit_start(u);
}

/* In the module's tree each parameter of the unit becomes this rank's shard of it. */
static tr_status put_shard(tr__walk *walk, const tr__module_entry *member)
{
    const tr__unit *u = walk->user;
    tr__module_entry *place = (tr__module_entry *)member;
    for (int i = 0; u && i < u->n_params && member->kind == TR__PARAMETER; i++) {
        if (u->params[i].whole != member->tensor) continue;
        place->whole = member->tensor;
        place->tensor = tr__ref(u->params[i].shard);
        break;
    }
    return TR_OK;
}

static tr_status enclose(tr__walk *walk, tr_module *module)
{
    (void)walk;
    if (module->around) ((tr__unit *)(void *)module->around)->enclosed = true;
    return TR_OK;
}

static tr_status broadcast(tr_group *group, const found *f)
{
    for (int k = 0; k < 2; k++) {
        const tr_tensor_list *list = k ? f->buffers : f->parameters;
        for (int i = 0; i < list->count; i++) {
            tr_status status = tr_broadcast_tensor(group, list->entries[i].tensor, 0);
            if (status != TR_OK)
                return tr__fail_context(status, "fully_shard: broadcasting \"%s\" from rank 0", list->entries[i].name);
        }
    }
    return TR_OK;
}

tr_status tr_fully_shard_with(const tr_fully_shard_options *options)
{
    tr_fully_shard_options o = {0}; /* of an older program the later fields are 0 (docs/abi.md) */
    memcpy(&o, options, options->size < sizeof o ? options->size : sizeof o);
    TR__CALLED_AT(o.file, o.line);
    TR__TRY(tr_status_of(o.group));
    if (!o.group) return tr__fail(TR_INVALID, "fully_shard: it takes a module and a group, not NULL");
    TR_SCOPE;
    found f = {.parameters = tr_list_new(), .buffers = tr_list_new()};
    /* compare_ranks() tells the others of a failure of this rank alone, so that none waits for it. */
    tr_status status = take_stock(o.module, &f);
    TR__TRY(compare_ranks(&o, status, &f));
    if (tr_world_size(o.group) == 1) return TR_OK;
    tr__unit *u = NULL;
    if (f.parameters->count > 0) {
        u = tr__object_new(&tr__unit_type);
        status = tr_status_of(u);
        if (status == TR_OK) status = make_unit(u, &o, f.parameters);
        TR__TRY(tr__agree(o.group, "fully_shard", status, NULL));
    }
    TR__TRY(broadcast(o.group, &f));
    if (u) TR__TRY(tr__agree(o.group, "fully_shard", make_shards(u, f.parameters), NULL));
    TR__TRY(tr__module_walk(o.module, &(tr__walk){.module = enclose, .tensor = put_shard, .user = u}));
    if (!u) return TR_OK;
    tr__unit_vacate(u);
    o.module->around = tr__ref(&u->around);
    if (!o.module->meets) o.module->meets = o.group;
    return TR_OK;
}
