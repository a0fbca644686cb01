/* Collectives on tensors, outside the graph. */
#include "tensor/tensor.h"

#include <trireme/parallel.h>

#include <inttypes.h>

/* The elements of a tensor that takes part in a collective. */
static tr_status check(const char *side, const tr_tensor *t, tr_dtype dtype, int64_t wanted)
{
    TR__TRY(tr_status_of(t));
    if (!tr_is_contiguous(t))
        return tr__fail(TR_SHAPE, "collective: the %s %s is a strided view: give tr_contiguous() of it", side,
            TR__TEXT(t->shape));
    if (t->dtype != dtype)
        return tr__fail(TR_DTYPE, "collective: the output is %s and the input %s", tr_dtype_name(dtype),
            tr_dtype_name(t->dtype));
    if (tr__numel(t->shape) == wanted) return TR_OK;
    return tr__fail(TR_SHAPE, "collective: the %s %s should have %" PRId64 " elements", side, TR__TEXT(t->shape),
        wanted);
}

/* Is the input (or the output) a block for each rank? */
static bool in_blocks(tr_collective_kind kind)
{
    return kind == TR_SCATTER || kind == TR_REDUCE_SCATTER || kind == TR_ALL_TO_ALL;
}

static bool out_blocks(tr_collective_kind kind)
{
    return kind == TR_GATHER || kind == TR_ALL_GATHER || kind == TR_ALL_TO_ALL;
}

tr_status tr_collective_tensor(tr_group *group, tr_collective_kind kind, const tr_tensor *in, tr_tensor *out,
    tr_reduce_op op, int rank, int tag, const char *file, int line)
{
    TR__TRY(tr_status_of(out));
    TR__TRY(tr_status_of(in));
    const tr_tensor *any = out ? out : in;
    if (!any) return tr__fail(TR_INVALID, "collective: no tensor");
    if (in && out && !tr_device_equal(tr__device_of(in), tr__device_of(out)))
        return tr__fail(TR_DEVICE, "collective: the output is on %s and the input on %s: move one with tr_to()",
            tr_device_name(tr__device_of(out), (char[16]){0}), tr_device_name(tr__device_of(in), (char[16]){0}));
    int64_t world = tr_world_size(group), count = tr__numel(any->shape);
    /* The side that is one block says how long a block is; of an all_to_all both sides are blocks. */
    bool blocks = out ? out_blocks(kind) : in_blocks(kind);
    if (blocks && out && in && !in_blocks(kind))
        count = tr__numel(in->shape);
    else if (blocks)
        count /= world;
    if (out) TR__TRY(check("output", out, any->dtype, out_blocks(kind) ? count * world : count));
    if (in) TR__TRY(check("input", in, any->dtype, in_blocks(kind) ? count * world : count));
    tr_collective c = {.size = sizeof c, .kind = kind, .out = out ? tr__ptr(out) : NULL,
        .in = in ? tr__ptr(in) : NULL, .count = count, .dtype = any->dtype, .op = op, .root = rank, .peer = rank,
        .tag = tag, .file = file, .line = line, .device = tr__device_of(any)};
    TR__TRY(tr_run_collective(group, &c));
    if (out) tr__touch(out);
    return TR_OK;
}
