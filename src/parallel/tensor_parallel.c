/*
 * Tensor parallelism: a layer's weight in slices, one per rank of a group (Shoeybi et al., Megatron-LM, 2019).
 *
 *   column:     y_r = x W_r^T + b_r             W in slices of outputs; x is the same everywhere, y comes in slices
 *   row:        y = sum over r of x_r W_r^T, + b   W in slices of inputs; x comes in slices, y is the same everywhere
 *   embedding:  rows of other ranks are zeros, and the sum over ranks is the whole
 *
 * Slices of different layers would add up to a wrong sum without a word: the ranks compare a layer's sizes once, in the first
 * forward that talks to the group. A column layer whose output stays in slices has none, and leaves it to the row layer behind it.
 */
#include "comm/group/agree.h"
#include "nn/module.h"
#include "tensor/numbers.h"

#include <trireme/parallel.h>

#include <inttypes.h>
#include <stdlib.h>

typedef struct sharded {
    tr_tensor *weight, *bias; /* bias: NULL when there is none */
    tr_group *group;          /* kept */
    bool whole;               /* column: give the whole output; row: the input comes whole */
    int64_t first, rows;      /* embedding: the first row that is here, and how many there are in all */
    int64_t sizes[2];         /* of the whole layer: inputs and outputs, or rows and their length */
    bool agreed;              /* the other ranks have the same layer */
} sharded;

static void release(void *state)
{
    tr_release(((sharded *)state)->group);
}

/* Collective until it has succeeded once; before a forward that is collective, too. */
static tr_status agree_on_layer(tr_module *self)
{
    sharded *s = self->state;
    if (s->agreed) return TR_OK;
    tr__facts facts = {0};
    tr__facts_say(&facts, s->rows ? "rows" : "in_features", "%" PRId64, s->sizes[0]);
    tr__facts_say(&facts, s->rows ? "dim" : "out_features", "%" PRId64, s->sizes[1]);
    tr__facts_say(&facts, "dtype", "%s", tr_dtype_name(s->weight->dtype));
    tr__facts_say(&facts, "bias", "%s", s->bias ? "on" : "off");
    tr__facts_say(&facts, "layer", "%s%s", tr_module_name(self), s->whole ? " with whole inputs or outputs" : "");
    TR__TRY(tr__agree_once(s->group, tr_module_name(self), TR_OK, &facts));
    s->agreed = true;
    return TR_OK;
}

/* A module with the state for group, in error where group is not one or where `size` does not divide by its ranks. */
static tr_module *new_module(const char *name, tr_tensor *(*layer)(tr_module *, tr_tensor *), tr_group *group, const char *what,
    int64_t size)
{
    if (!group) return tr_module_fail(TR_INVALID, "%s: it takes a .group", name);
    if (tr__error_of(group)) return tr__object_pass(&tr__module_type, group);
    int world = tr_world_size(group);
    if (size < 1 || size % world)
        return tr_module_fail(TR_INVALID, "%s: %" PRId64 " %s do not divide by %d ranks: %" PRId64 " would", name, size, what,
            world, size < 1 ? world : (size / world + 1) * world);
    tr_module *module = tr__layer_new(name, sizeof(sharded), layer);
    if (!module->state) return module;
    tr_module_on_release(module, release);
    ((sharded *)module->state)->group = tr_keep(group);
    if (world > 1) module->meets = group;
    return module;
}

/* This rank's slice of a parameter of the whole layer, as a leaf of its own. */
static tr_tensor *slice_of(tr_module *whole, const char *name, int dim, tr_group *group)
{
    TR_NO_GRAD;
    tr_tensor_list *list = tr_parameters(whole);
    if (tr_status_of(list) != TR_OK) return tr__tensor_failed();
    tr_tensor *p = tr_list_find(list, name);
    if (!p) return NULL;
    int64_t n = p->shape.dim[dim] / tr_world_size(group), first = n * tr_rank(group);
    tr_tensor *part = tr_slice(p, dim, first, first + n);
    if (tr__bad(part)) return part;
    tr_tensor *own = tr__tensor_new(part->shape, part->dtype, tr__device_of(part));
    if (tr__bad(own)) return own;
    return tr_copy_into(own, part) == TR_OK ? own : tr__tensor_failed();
}

/* Adds the slice to the module as a parameter; NULL where the whole layer has no such parameter. */
static tr_tensor *add_slice(tr_module *module, tr_module *whole, const char *name, int dim)
{
    tr_group *group = ((sharded *)module->state)->group;
    tr_tensor *slice = tr_module_parameter(module, name, slice_of(whole, name, dim, group));
    if (slice && !tr__bad(slice) && tr_mark_shard(slice, group) != TR_OK) tr__object_break(module);
    return slice;
}

/* ---- Column and row ------------------------------------------------------------------------------------------------------ */

/* x: [..., in] -> [..., out / ranks], or [..., out] with .gather_output */
static tr_tensor *column_forward(tr_module *self, tr_tensor *x)
{
    const sharded *s = self->state;
    if (s->whole && agree_on_layer(self) != TR_OK) return tr__tensor_failed();
    tr_tensor *y = tr_linear_op(tr_copy_to_op(s->group, x), s->weight, .bias = s->bias);
    return s->whole ? tr_gather_from_op(s->group, y, -1) : y;
}

/* x: [..., in / ranks], or [..., in] with .input_whole -> [..., out]. The bias is added once, to the sum. */
static tr_tensor *row_forward(tr_module *self, tr_tensor *x)
{
    const sharded *s = self->state;
    if (agree_on_layer(self) != TR_OK) return tr__tensor_failed();
    tr_tensor *slice = s->whole ? tr_scatter_to_op(s->group, x, -1) : x;
    tr_tensor *y = tr_all_reduce_op(s->group, tr_linear_op(slice, s->weight));
    return s->bias ? tr_add(y, s->bias) : y;
}

/* The layer of which the rank takes its slice: the options of both kinds name the same. */
#define WHOLE_LINEAR(o) tr_linear_with(&(tr_linear_options){.size = sizeof(tr_linear_options), .given = (o)->given, \
    .in_features = (o)->in_features, .out_features = (o)->out_features, .no_bias = (o)->no_bias, .init_std = (o)->init_std, \
    .seed = (o)->seed, .dtype = (o)->dtype})

tr_module *tr_column_linear_with(const tr_column_linear_options *o)
{
    TR_SCOPE;
    tr_module *module = new_module("column_linear", column_forward, o->group, "outputs", o->out_features);
    sharded *s = tr_module_state(module);
    if (!s) return tr_escape(module);
    tr_module *whole = WHOLE_LINEAR(o);
    s->whole = o->gather_output;
    s->sizes[0] = o->in_features;
    s->sizes[1] = o->out_features;
    s->weight = add_slice(module, whole, "weight", 0);
    s->bias = add_slice(module, whole, "bias", 0);
    return tr_escape(module);
}

tr_module *tr_row_linear_with(const tr_row_linear_options *o)
{
    TR_SCOPE;
    tr_module *module = new_module("row_linear", row_forward, o->group, "inputs", o->in_features);
    sharded *s = tr_module_state(module);
    if (!s) return tr_escape(module);
    tr_module *whole = WHOLE_LINEAR(o);
    s->whole = o->input_whole;
    s->sizes[0] = o->in_features;
    s->sizes[1] = o->out_features;
    s->weight = add_slice(module, whole, "weight", 1);
    if (tr_status_of(whole) == TR_OK) s->bias = tr_module_parameter(module, "bias", tr_list_find(tr_parameters(whole), "bias"));
    return tr_escape(module);
}

/* ---- Embedding ----------------------------------------------------------------------------------------------------------- */

/* The ids as numbers of this rank's rows, and 1 or 0 for whether they are here; others become row 0. */
static tr_status localise(const sharded *s, const tr_tensor *ids, tr_tensor *numbers, tr_tensor *here)
{
    int64_t *local = tr__ptr(numbers);
    int64_t n = tr__numel(ids->shape), rows = s->weight->shape.dim[0];
    tr__read_i64(local, ids->dtype, tr__ptr(ids), 1, n);
    for (int64_t i = 0; i < n; i++) {
        int64_t id = local[i], row = id - s->first;
        if (id < 0 || id >= s->rows)
            return tr__fail(TR_INVALID, "vocab_parallel_embedding: id %" PRId64 " at %" PRId64 ": there are %" PRId64 " rows", id, i,
                s->rows);
        bool mine = row >= 0 && row < rows;
        local[i] = mine ? row : 0;
        tr__store(here->dtype, tr__ptr(here), i, mine);
    }
    return TR_OK;
}

/* ids: [...] -> [..., dim] */
static tr_tensor *embedding_forward(tr_module *self, tr_tensor *x)
{
    const sharded *s = self->state;
    if (agree_on_layer(self) != TR_OK) return tr__tensor_failed();
    const tr_tensor *ids = tr__row_major_on_cpu(x);
    if (tr__bad(ids)) return tr__tensor_pass(ids);
    if (ids->dtype != TR_I64 && ids->dtype != TR_I32)
        return tr_tensor_fail(TR_DTYPE, "vocab_parallel_embedding: ids are i64 or i32, not %s", tr_dtype_name(ids->dtype));
    tr_device device = tr__device_of(x);
    tr_shape column = ids->shape; /* [..., 1] */
    if (column.ndim == TR_MAX_DIMS)
        return tr_tensor_fail(TR_SHAPE, "vocab_parallel_embedding: ids %s have no room for another dimension", TR__TEXT(ids->shape));
    column.dim[column.ndim++] = 1;
    tr_tensor *local = tr_empty(ids->shape, .dtype = TR_I64, .device = tr__device_of(ids));
    tr_tensor *here = tr_empty(column, .dtype = s->weight->dtype, .device = tr__device_of(ids));
    if (tr__bad(local) || tr__bad(here)) return tr__bad(local) ? local : here;
    if (localise(s, ids, local, here) != TR_OK) return tr__tensor_failed();
    return tr_all_reduce_op(s->group, tr_mul(tr_embedding_op(tr_to(local, device), s->weight), tr_to(here, device)));
}

tr_module *tr_vocab_parallel_embedding_with(const tr_vocab_parallel_embedding_options *o)
{
    TR_SCOPE;
    tr_module *module = new_module("vocab_parallel_embedding", embedding_forward, o->group, "rows", o->rows);
    sharded *s = tr_module_state(module);
    if (!s) return tr_escape(module);
    tr_module *whole = tr_embedding_with(&(tr_embedding_options){.size = sizeof(tr_embedding_options), .given = o->given,
        .rows = o->rows, .dim = o->dim, .init_std = o->init_std, .seed = o->seed, .dtype = o->dtype});
    s->rows = s->sizes[0] = o->rows;
    s->sizes[1] = o->dim;
    s->first = o->rows / tr_world_size(o->group) * tr_rank(o->group);
    s->weight = add_slice(module, whole, "weight", 0);
    return tr_escape(module);
}
