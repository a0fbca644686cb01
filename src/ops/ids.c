#include "ops/ids.h"

#include <inttypes.h>

tr__ids tr__ids_of(const tr_tensor *ids)
{
    return (tr__ids){tr__ptr(ids), ids->dtype == TR_I64, tr__axis_in(ids, ~0u)};
}

tr_status tr__ids_input(const tr_op_call *call, int i)
{
    TR__TRY(tr__given(call, i));
    const tr_tensor *ids = call->inputs[i];
    if (ids->dtype == TR_I64 || ids->dtype == TR_I32) return TR_OK;
    char name[TR__INPUT_NAME];
    return tr__fail(TR_DTYPE, "%s: %s is %s %s: it must be i64 or i32", call->op->name, tr__input_name(call->op, i, name),
        tr_dtype_name(ids->dtype), TR__TEXT(ids->shape));
}

tr_status tr__ids_check(const tr__ids *ids, int64_t limit, const char *what, const char *of, const int64_t *skip)
{
    for (int64_t i = 0; i < ids->axis.n; i++) {
        int64_t id = tr__id(ids, i);
        if ((id >= 0 && id < limit) || (skip && id == *skip)) continue;
        return tr__fail(TR_INVALID, "%s %" PRId64 " at position %" PRId64 " is outside the %" PRId64 " %s", what, id, i,
            limit, of);
    }
    return TR_OK;
}
