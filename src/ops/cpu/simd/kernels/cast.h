/* cast between f32, bf16 and f16 of tensors that lie alike. */
#ifndef TR_OPS_CPU_SIMD_KERNELS_CAST_H
#define TR_OPS_CPU_SIMD_KERNELS_CAST_H

#include "ops/cpu/simd/lanes.h"
#include "ops/op.h"

enum { CAST_BLOCK = 4096, CAST_GRAIN = 4 }; /* elements, and how many such blocks are worth a thread */

typedef struct cast_job {
    tr_dtype from, to;
    const void *x;
    void *y;
    int64_t n;
} cast_job;

LANES_INLINE void cast_run(tr_dtype from, tr_dtype to, const void *x, void *y, int64_t begin, int64_t end)
{
    int64_t i = begin;
    for (; i + WIDTH <= end; i += WIDTH) lanes_store(to, y, i, WIDTH, lanes_load(from, x, i, WIDTH));
    lanes_store(to, y, i, end - i, lanes_load(from, x, i, end - i));
}

static void cast_blocks(void *arg, int64_t begin, int64_t end)
{
    const cast_job *j = arg;
    begin *= CAST_BLOCK;
    end = end * CAST_BLOCK < j->n ? end * CAST_BLOCK : j->n;
    if (j->from == TR_F32 && j->to == TR_BF16) cast_run(TR_F32, TR_BF16, j->x, j->y, begin, end);
    else if (j->from == TR_BF16 && j->to == TR_F32) cast_run(TR_BF16, TR_F32, j->x, j->y, begin, end);
    else cast_run(j->from, j->to, j->x, j->y, begin, end);
}

static bool is_cast_by_lanes(tr_dtype dtype)
{
    return dtype == TR_F32 || dtype == TR_BF16 || dtype == TR_F16;
}

static tr_status cast_kernel(tr_op_call *call)
{
    tr_tensor *x = call->inputs[0], *y = call->outputs[0];
    if (!is_cast_by_lanes(x->dtype) || !is_cast_by_lanes(y->dtype)) return TR_DECLINED;
    if (!tr__is_dense(x) || !tr__has_strides(y, x->stride)) return TR_DECLINED;
    cast_job j = {x->dtype, y->dtype, tr__ptr(x), tr__ptr(y), tr_numel(x)};
    tr__pool_for(tr__pool_of(x), (j.n + CAST_BLOCK - 1) / CAST_BLOCK, CAST_GRAIN, cast_blocks, &j);
    return TR_OK;
}

#endif
