#include "parallel/ddp_compress.h"

#include <stdlib.h>

static tr_tensor *in_block(const tr_tensor *block, const tr_ddp_bucket *bucket)
{
    return tr__tensor_view(block, bucket->gradients->shape, NULL, block->offset);
}

static tr_status start(const tr_ddp_bucket *bucket, tr_work **work, void *user)
{
    tr__ddp *d = user;
    int64_t n = tr_numel(bucket->gradients);
    tr_device device = tr_device_of(bucket->gradients);
    if (!d->compress.sent) d->compress.sent = calloc((size_t)bucket->count, sizeof *d->compress.sent);
    if (!d->compress.sent) return tr__fail(TR_NO_MEMORY, "out of memory");
    tr_tensor *block = tr__bucket_pool_take(&d->compress.pool, d->compress.dtype, device, n);
    TR__TRY(tr_status_of(block));
    d->compress.sent[bucket->index] = block;
    TR__TRY(tr_copy_into(in_block(block, bucket), bucket->gradients));
    *work = tr_post(bucket->group, TR__IN_PLACE(TR_ALL_REDUCE, tr__ptr(block), n, .dtype = block->dtype, .op = TR_AVG,
        .timeout_ms = bucket->timeout_ms, .tag = tr__ddp_tag(d, bucket->index), .device = device));
    return TR_OK;
}

static tr_status finish(const tr_ddp_bucket *bucket, void *user)
{
    tr__ddp *d = user;
    tr_tensor *block = d->compress.sent[bucket->index];
    TR__TRY(tr_copy_into(bucket->gradients, in_block(block, bucket)));
    tr__bucket_pool_give(&d->compress.pool, block);
    return TR_OK;
}

tr_ddp_hook tr__ddp_compress_hook(tr__ddp *ddp, tr_dtype dtype)
{
    ddp->compress.dtype = dtype;
    return (tr_ddp_hook){.start = start, .finish = finish, .user = ddp};
}
