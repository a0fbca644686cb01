/* Lists of tensors of which a rank has its shards, whole on all ranks, and cut again. */
#include "parallel/fully_shard.h"

#include "comm/control.h"

#include <trireme/parallel.h>

#include <stdlib.h>
#include <string.h>

/* What an entry is of: the module's "weight" itself, or of an optimizer's state "weight.exp_avg". NULL: nothing of the module. */
static const tr_tensor *tensor_named(const tr_tensor_list *tensors, const char *name)
{
    for (int i = 0; i < tensors->count; i++) {
        size_t length = strlen(tensors->entries[i].name);
        if (strncmp(tensors->entries[i].name, name, length) == 0 && (!name[length] || name[length] == '.'))
            return tensors->entries[i].tensor;
    }
    return NULL;
}

/* own: this rank's shard. */
static tr_tensor *join(const tr__shard *s, tr_tensor *own)
{
    tr_group *group = s->spread.group;
    int ranks = tr_world_size(group);
    int64_t *counts = calloc((size_t)ranks, sizeof *counts), from;
    own = tr_contiguous(own);
    tr_tensor *whole = tr_empty(s->whole, .dtype = tr_dtype_of(own), .device = tr_device_of(own));
    tr_status status = !counts ? tr__fail(TR_NO_MEMORY, "out of memory") : tr_status_of(own);
    if (status == TR_OK) status = tr_status_of(whole);
    for (int r = 0; r < ranks && counts; r++) counts[r] = tr__shard_shape(s, r, &from).dim[0];
    if (status == TR_OK)
        status = tr_all_gather_v(group, tr__ptr(own), tr__ptr(whole), counts[tr_rank(group)], .out_counts = counts,
            .dtype = whole->dtype, .device = tr__device_of(whole));
    free(counts);
    return status == TR_OK ? tr_to(whole, tr_cpu(0)) : tr__tensor_failed();
}

/* A copy on the CPU; group: rank 0's. NULL: this rank's. */
static tr_tensor *copy(tr_group *group, tr_tensor *t)
{
    tr_tensor *own = tr_empty(tr_shape_of(t), .dtype = tr_dtype_of(t));
    tr_status status = tr_status_of(own);
    if (status == TR_OK) status = tr_copy_into(own, t);
    if (status == TR_OK && group) status = tr_broadcast_tensor(group, own, 0);
    return status == TR_OK ? own : tr__tensor_failed();
}

static tr_status join_all(const tr_tensor_list *tensors, const tr_tensor_list *state, tr_group *group, tr_tensor_list *whole)
{
    TR_NO_GRAD;
    for (int i = 0; i < state->count; i++) {
        TR_SCOPE;
        tr_tensor *t = state->entries[i].tensor;
        const tr_tensor *named = tensor_named(tensors, state->entries[i].name);
        const tr__shard *s = tr__shard_of(t);
        if (!s && named) s = tr__shard_of(named);
        if (group && !s && !named && t->shape.ndim > 0)
            return tr__fail(TR_INVALID, "unshard_state: the module has no \"%s\": it takes the module whose state the list is",
                state->entries[i].name);
        int64_t from;
        bool sharded = s && tr_dtype_is_float(t->dtype) &&
            tr__shape_equal(t->shape, tr__shard_shape(s, tr_rank(s->spread.group), &from));
        tr_status status = tr_list_add(whole, state->entries[i].name, sharded ? join(s, tr_detach(t)) : copy(group, tr_detach(t)));
        if (status != TR_OK) return tr__fail_context(status, "unshard_state: \"%s\"", state->entries[i].name);
    }
    return TR_OK;
}

tr_tensor_list *tr_unshard_state_at(tr_module *module, const tr_tensor_list *state, const char *file, int line)
{
    TR__CALLED_AT(file, line);
    tr_tensor_list *whole = tr_list_new(), *tensors = tr_state_dict(module);
    if (tr__error_of(tensors)) return tensors;
    TR_SCOPE;
    tr_group *group = NULL;
    for (int i = 0; i < tensors->count && !group; i++) {
        const tr__shard *s = tr__shard_of(tensors->entries[i].tensor);
        if (s) group = s->spread.group;
    }
    tr_status status = state ? tr_status_of(state) : tr__fail(TR_INVALID, "unshard_state: it takes a module and a state, not NULL");
    if (status == TR_OK) status = join_all(tensors, state, group, whole);
    if (status != TR_OK && group) tr__group_give_up(group); /* the other ranks would wait */
    if (status != TR_OK) tr__object_break(whole);
    return whole;
}

static tr_status cut_all(const tr_tensor_list *tensors, const tr_tensor_list *whole, tr_tensor_list *own)
{
    TR_NO_GRAD;
    for (int i = 0; i < whole->count; i++) {
        tr_tensor *t = tr_detach(whole->entries[i].tensor);
        const tr_tensor *of = tensor_named(tensors, whole->entries[i].name);
        const tr__shard *s = of ? tr__shard_of(of) : NULL;
        if (s && tr_dtype_is_float(t->dtype) && tr__shape_equal(t->shape, s->whole)) {
            int64_t from;
            tr_shape shape = tr__shard_shape(s, tr_rank(s->spread.group), &from);
            tr_tensor *flat = tr_reshape(tr_contiguous(t), TR_SHAPE(tr__numel(s->whole)));
            t = tr_reshape(tr_slice(flat, 0, from, from + shape.dim[0]), shape);
        }
        TR__TRY(tr_list_add(own, whole->entries[i].name, t));
    }
    return TR_OK;
}

tr_tensor_list *tr_shard_state(tr_module *module, const tr_tensor_list *whole)
{
    tr_tensor_list *own = tr_list_new();
    TR_SCOPE;
    const tr_tensor_list *tensors = tr_state_dict(module);
    tr_status status = whole ? tr_status_of(whole) : tr__fail(TR_INVALID, "shard_state: it takes a module and a state, not NULL");
    if (status == TR_OK) status = tr_status_of(tensors);
    if (status == TR_OK) status = cut_all(tensors, whole, own);
    if (status != TR_OK) tr__object_break(own);
    return own;
}
