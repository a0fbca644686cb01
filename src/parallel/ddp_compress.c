#include "parallel/ddp_compress.h"

#include "comm/control.h"

#include <stdlib.h>

static tr_tensor *in_block(const tr_tensor *block, const tr_ddp_bucket *bucket)
{
    return tr__tensor_view(block, bucket->gradients->shape, NULL, block->offset);
}

static tr_status start(const tr_ddp_bucket *bucket, tr_work **work, void *user)
{
    tr__ddp_compress *c = user;
    int64_t n = tr_numel(bucket->gradients);
    tr_device device = tr_device_of(bucket->gradients);
    if (!c->sent) c->sent = calloc((size_t)bucket->count, sizeof *c->sent);
    if (!c->sent) return tr__fail(TR_NO_MEMORY, "out of memory");
    tr_tensor *block = tr__bucket_pool_take(&c->pool, c->dtype, device, n);
    TR__TRY(tr_status_of(block));
    c->sent[bucket->index] = block;
    TR__TRY(tr_copy_into(in_block(block, bucket), bucket->gradients));
    *work = tr_post(bucket->group, TR__IN_PLACE(TR_ALL_REDUCE, tr__ptr(block), n, .dtype = c->dtype, .op = TR_AVG, .timeout_ms = bucket->timeout_ms,
        .tag = tr__variant_tag(tr__bucket_tag(c->module, bucket->index), c->variant), .device = device));
    return TR_OK;
}

static tr_status finish(const tr_ddp_bucket *bucket, void *user)
{
    tr__ddp_compress *c = user;
    tr_tensor *block = c->sent[bucket->index];
    TR__TRY(tr_copy_into(bucket->gradients, in_block(block, bucket)));
    tr__bucket_pool_give(&c->pool, block);
    return TR_OK;
}

tr_ddp_hook tr__ddp_compress_hook(tr__ddp_compress *state, tr_dtype dtype, int module)
{
    *state = (tr__ddp_compress){.dtype = dtype, .module = module};
    return (tr_ddp_hook){.start = start, .finish = finish, .user = state};
}

void tr__ddp_compress_free(tr__ddp_compress *state)
{
    tr__bucket_pool_free(&state->pool);
    free(state->sent);
}
