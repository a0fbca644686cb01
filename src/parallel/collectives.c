/* Collectives on tensors, outside the graph. */
#include "tensor/tensor.h"

#include <trireme/parallel.h>

static tr_status check(const char *what, const tr_tensor *t)
{
    TR__TRY(tr_status_of(t));
    if (!t) return tr__fail(TR_INVALID, "%s: no tensor", what);
    if (tr_is_contiguous(t)) return TR_OK;
    return tr__fail(TR_SHAPE, "%s: the tensor %s is a strided view: give tr_contiguous() of it", what, TR__TEXT(t->shape));
}

tr_status tr_all_reduce_tensor(tr_group *group, tr_tensor *t, tr_reduce_op op)
{
    TR__TRY(check("all_reduce", t));
    TR__TRY(tr_all_reduce(group, tr__ptr(t), tr__numel(t->shape), .dtype = t->dtype, .op = op));
    tr__touch(t);
    return TR_OK;
}

tr_status tr_broadcast_tensor(tr_group *group, tr_tensor *t, int root)
{
    TR__TRY(check("broadcast", t));
    TR__TRY(tr_broadcast(group, tr__ptr(t), tr__numel(t->shape), .dtype = t->dtype, .root = root));
    tr__touch(t);
    return TR_OK;
}
