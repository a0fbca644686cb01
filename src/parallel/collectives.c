/* Collectives on tensors, outside the graph. */
#include "comm/algo/schedule.h"
#include "comm/work/work.h"
#include "tensor/tensor.h"

#include <trireme/parallel.h>

#include <inttypes.h>

/* The elements of a tensor that takes part in a collective. */
static tr_status check(const char *name, bool output, const tr_tensor *t, tr_dtype dtype, int64_t wanted)
{
    const char *side = output ? "output" : "input";
    TR__TRY(tr_status_of(t));
    if (!tr_is_contiguous(t))
        return tr__fail(TR_SHAPE, "%s: the %s %s is a strided view: give tr_contiguous() of it%s", name, side,
            TR__TEXT(t->shape), output ? ", and tr_copy_into() the view what comes" : "");
    if (t->dtype != dtype)
        return tr__fail(TR_DTYPE, "%s: the output is %s and the input %s", name, tr_dtype_name(dtype),
            tr_dtype_name(t->dtype));
    if (tr__numel(t->shape) == wanted) return TR_OK;
    return tr__fail(TR_SHAPE, "%s: the %s %s should have %" PRId64 " elements", name, side, TR__TEXT(t->shape),
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

/* Fills in what the tensors say: the buffers, their dtype and device, and how many elements a block has. */
static tr_status describe(tr_collective *c, const tr_group *group, const tr_tensor *in, tr_tensor *out)
{
    TR__TRY(tr_status_of(out));
    TR__TRY(tr_status_of(in));
    const tr_tensor *any = out ? out : in;
    const char *name = (unsigned)c->kind < TR_COLLECTIVE_COUNT ? tr__kind_name(c->kind) : "collective";
    if (!any) return tr__fail(TR_INVALID, "%s: there is no tensor: it is NULL, as tr_grad() is before a backward", name);
    if (in && out && !tr_device_equal(tr__device_of(in), tr__device_of(out)))
        return tr__fail(TR_DEVICE, "%s: the output is on %s and the input on %s: move one with tr_to()", name,
            tr_device_name(tr__device_of(out), (char[16]){0}), tr_device_name(tr__device_of(in), (char[16]){0}));
    int64_t world = tr_world_size(group), count = tr__numel(any->shape);
    /* The side that is one block says how long a block is; of an all_to_all both sides are blocks. */
    bool blocks = out ? out_blocks(c->kind) : in_blocks(c->kind);
    if (blocks && out && in && !in_blocks(c->kind))
        count = tr__numel(in->shape);
    else if (blocks)
        count /= world;
    if (out) TR__TRY(check(name, true, out, any->dtype, out_blocks(c->kind) ? count * world : count));
    if (in) TR__TRY(check(name, false, in, any->dtype, in_blocks(c->kind) ? count * world : count));
    c->out = out ? tr__ptr(out) : NULL;
    c->in = in ? tr__ptr(in) : NULL;
    c->count = count;
    c->dtype = any->dtype;
    c->device = tr__device_of(any);
    return TR_OK;
}

tr_status tr_collective_tensor(tr_group *group, tr_collective_kind kind, const tr_tensor *in, tr_tensor *out,
    tr_reduce_op op, int rank, int tag, const char *file, int line)
{
    tr_collective c = {.size = sizeof c, .kind = kind, .op = op, .root = rank, .peer = rank, .tag = tag, .file = file, .line = line};
    TR__TRY(describe(&c, group, in, out));
    TR__TRY(tr_run_collective(group, &c));
    if (out) tr__touch(out);
    return TR_OK;
}

/* The output counts as written to from here on: what backward saved of it before is found to be out of date. */
tr_work *tr_collective_tensor_async(tr_group *group, tr_collective_kind kind, const tr_tensor *in, tr_tensor *out,
    tr_reduce_op op, int rank, int tag, const char *file, int line)
{
    tr_collective c = {.size = sizeof c, .kind = kind, .op = op, .root = rank, .peer = rank, .tag = tag, .file = file, .line = line};
    if (describe(&c, group, in, out) != TR_OK) return tr__object_failed(&tr__work_type);
    tr_work *work = tr_post(group, &c);
    if (!tr__error_of(work)) { /* which has begun: who posted it has a reference, with which it lasts till here */
        work->tensors[0] = tr__ref(in);
        work->tensors[1] = tr__ref(out);
    }
    if (out) tr__touch(out);
    return work;
}
