/*
 * Collectives as ops, in three pairs whose members are each other's backward (Shoeybi et al., Megatron-LM, 2019; the pair f
 * and g; Korthikanti et al., 2022, for the third):
 *
 *   copy_to     x, the same on all ranks, goes on as it is     all_reduce      the sum of the ranks' x
 *   scatter_to  this rank's block of x, which all have         gather_from     the blocks of all ranks
 *   all_gather  the blocks of all ranks                        reduce_scatter  this rank's block of the sum of the ranks' x
 *
 * A rank whose x is in error, or which fails in a step or before it comes to one, breaks the group: the others would wait for it.
 */
#include "comm/control.h"
#include "ops/op.h"
#include "parallel/object_tensor.h"

#include <trireme/parallel.h>

#include <inttypes.h>

/* What happens to the numbers, in one direction. */
typedef enum step {
    PASS,    /* nothing */
    SUM,     /* over the ranks */
    OWN,     /* this rank's block of a dimension */
    JOIN,    /* the ranks' blocks, one after the other */
    SUM_OWN, /* this rank's block of the sum */
} step;

typedef struct comm_attrs {
    step forward, backward;
    tr_group *group; /* the holder's */
    int dim;
    const char *file;
    int line;
} comm_attrs;

enum { HOLDER, X }; /* inputs; the first one keeps the group, but in a recompute segment, where what it runs again has it */

/* ---- Steps -------------------------------------------------------------------------------------------------------------- */

static tr_status collect(const comm_attrs *a, tr_collective_kind kind, const tr_tensor *in, tr_tensor *out)
{
    return tr_collective_tensor(a->group, kind, in, out, TR_SUM, 0, 0, a->file, a->line);
}

/* Block b of `blocks` equal ones along a dimension, in place. */
static tr_tensor *block_of(const tr_tensor *x, int dim, int b, int blocks)
{
    tr_shape shape = x->shape;
    shape.dim[dim] /= blocks;
    return tr__tensor_view(x, shape, x->stride, x->offset + b * shape.dim[dim] * x->stride[dim]);
}

/* Do blocks along dim lie one after the other in row-major order? */
static bool outermost(tr_shape shape, int dim)
{
    for (int d = 0; d < dim; d++)
        if (shape.dim[d] != 1) return false;
    return true;
}

/* [blocks, …block]: memory for the blocks of whole, one after the other. */
static tr_tensor *apart(const tr_tensor *whole, int dim, int blocks)
{
    tr_shape shape = {.ndim = whole->shape.ndim + 1, .dim = {blocks}};
    for (int d = 0; d < whole->shape.ndim; d++) shape.dim[d + 1] = whole->shape.dim[d] / (d == dim ? blocks : 1);
    return tr__tensor_new(shape, whole->dtype, tr__device_of(whole));
}

/* Copies between a tensor and its blocks that lie apart. */
static tr_status copy_blocks(tr_tensor *blocks, tr_tensor *whole, int dim, bool to_whole)
{
    int n = (int)blocks->shape.dim[0];
    tr_shape shape = {.ndim = blocks->shape.ndim - 1};
    for (int d = 0; d < shape.ndim; d++) shape.dim[d] = blocks->shape.dim[d + 1];
    for (int b = 0; b < n; b++) {
        tr_tensor *part = tr__tensor_view(blocks, shape, NULL, blocks->offset + b * blocks->stride[0]);
        tr_tensor *place = block_of(whole, dim, b, n);
        TR__TRY_ALL(part, place);
        TR__TRY(to_whole ? tr_copy_into(place, part) : tr_copy_into(part, place));
    }
    return TR_OK;
}

/* out: row-major, of the shape that the step gives. */
static tr_status take_step(step s, const comm_attrs *a, tr_tensor *out, tr_tensor *x)
{
    tr_group *group = a->group;
    TR_SCOPE;
    TR_NO_GRAD;
    if (s == PASS) return TR_OK;
    if (s == OWN) {
        tr_tensor *own = block_of(x, a->dim, tr_rank(group), tr_world_size(group));
        TR__TRY(tr_status_of(own));
        return tr_copy_into(out, own);
    }
    if (s == SUM) {
        TR__TRY(tr_copy_into(out, x));
        return collect(a, TR_ALL_REDUCE, NULL, out);
    }
    x = tr_contiguous(x);
    TR__TRY(tr_status_of(x));
    tr_collective_kind kind = s == JOIN ? TR_ALL_GATHER : TR_REDUCE_SCATTER;
    if (outermost(x->shape, a->dim)) return collect(a, kind, x, out);
    /* Blocks along an inner dimension are gathered into memory where they lie one after the other, or scattered from there. */
    tr_tensor *blocks = apart(s == JOIN ? out : x, a->dim, tr_world_size(group));
    TR__TRY(tr_status_of(blocks));
    if (s != JOIN) TR__TRY(copy_blocks(blocks, x, a->dim, false));
    TR__TRY(collect(a, kind, s == JOIN ? x : blocks, s == JOIN ? blocks : out));
    return s == JOIN ? copy_blocks(blocks, out, a->dim, true) : TR_OK;
}

/* What a step gives for x: unwritten, but for PASS, which gives x again. */
static tr_tensor *result_of(step s, int dim, const tr_group *group, const tr_tensor *x)
{
    if (s == PASS) return tr__tensor_view(x, x->shape, x->stride, x->offset);
    tr_shape shape = x->shape;
    if (s == JOIN) shape.dim[dim] *= tr_world_size(group);
    if (s == OWN || s == SUM_OWN) shape.dim[dim] /= tr_world_size(group);
    return tr__tensor_new(shape, x->dtype, tr__device_of(x));
}

/* ---- The ops ------------------------------------------------------------------------------------------------------------ */

static tr_status infer(tr_op_call *call)
{
    const comm_attrs *a = call->attrs;
    const tr_tensor *x = call->inputs[X];
    tr_group *group = a->group;
    int world = tr_world_size(group);
    if ((a->forward == OWN || a->forward == SUM_OWN) && x->shape.dim[a->dim] % world)
        return tr__fail(TR_SHAPE, "%s: dimension %d of %s does not divide by %d ranks", call->op->name, a->dim,
            TR__TEXT(x->shape), world);
    call->outputs[0] = result_of(a->forward, a->dim, group, x);
    call->n_outputs = 1;
    return tr__group_tell(group, tr_status_of(call->outputs[0]));
}

static tr_status forward(tr_op_call *call)
{
    const comm_attrs *a = call->attrs;
    return tr__group_tell(a->group, take_step(a->forward, a, call->outputs[0], call->inputs[X]));
}

static bool meets(step s)
{
    return s != PASS && s != OWN;
}

static tr_status backward(tr_backward_call *call)
{
    const comm_attrs *a = call->attrs;
    if (!call->grad_outputs) { /* TR__OP_JOINT */
        if (meets(call->n_inputs ? a->forward : a->backward)) tr__group_give_up(a->group);
        return TR_OK;
    }
    tr_tensor *dy = call->grad_outputs[0], *dx = result_of(a->backward, a->dim, a->group, dy);
    tr_status status = tr_status_of(dx);
    if (status == TR_OK) status = take_step(a->backward, a, dx, dy);
    TR__TRY(tr__group_tell(a->group, status));
    call->grad_inputs[X] = dx;
    return TR_OK;
}

#define OP(text)                                                                                          \
    {                                                                                                     \
        .size = sizeof(tr_op), .name = (text), .attrs_size = sizeof(comm_attrs), .infer = infer,          \
        .forward = forward, .backward = backward, .saves_inputs = 1u << HOLDER,                           \
        .flags = TR__OP_ANYWHERE | TR__OP_JOINT,                                                          \
    }
static const struct {
    tr_op op;
    step forward, backward;
    bool has_dim;
} kinds[] = {
    [TR_COPY_TO_OP] = {OP("copy_to"), PASS, SUM, false},
    [TR_ALL_REDUCE_OP] = {OP("all_reduce"), SUM, PASS, false},
    [TR_SCATTER_TO_OP] = {OP("scatter_to"), OWN, JOIN, true},
    [TR_GATHER_FROM_OP] = {OP("gather_from"), JOIN, OWN, true},
    [TR_ALL_GATHER_OP] = {OP("all_gather"), JOIN, SUM_OWN, true},
    [TR_REDUCE_SCATTER_OP] = {OP("reduce_scatter"), SUM_OWN, JOIN, true},
};

tr_tensor *tr_collective_op(tr_collective_op_kind kind, tr_group *group, tr_tensor *x, int dim, const char *file, int line)
{
    if ((size_t)kind >= sizeof kinds / sizeof *kinds) return tr__tensor_fail(TR_INVALID, "%d is no collective op", (int)kind);
    const char *name = kinds[kind].op.name;
    if (!x || !group) return tr__tensor_fail(TR_INVALID, "%s: it takes a group and a tensor, not NULL", name);
    if (tr__error_of(group)) return tr__tensor_pass(group);
    if (tr__group_tell(group, tr_status_of(x)) != TR_OK) return tr__tensor_pass(x);
    comm_attrs attrs = {kinds[kind].forward, kinds[kind].backward, group, 0, file, line};
    if (kinds[kind].has_dim && tr__dim(name, x->shape, dim, &attrs.dim) != TR_OK) return tr__tensor_failed();
    if (tr_world_size(group) == 1) return x;
    TR_SCOPE;
    tr_tensor *inputs[] = {[HOLDER] = tr__object_tensor(group, tr__device_of(x)), [X] = x};
    return tr_escape(tr_apply(&kinds[kind].op, &attrs, inputs, 2, NULL));
}
