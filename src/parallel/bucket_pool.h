/*
 * Memory for buckets whose gradients are used up during backward: as many blocks as are in flight at a time. A block is used again
 * and again, so peers map it once and a step touches no new page. Shared memory is reserved whole, so a block that no bucket
 * fits into is replaced by a larger one; after the first steps none is.
 */
#ifndef TR_PARALLEL_BUCKET_POOL_H
#define TR_PARALLEL_BUCKET_POOL_H

#include "tensor/tensor.h"

typedef struct tr__pool_block {
    tr_tensor *memory; /* a reference; flat, in memory that ranks share */
    bool taken;
} tr__pool_block;

typedef struct tr__bucket_pool {
    tr__pool_block *blocks;
    size_t n, room;
} tr__bucket_pool;

/* A block of at least count elements on a device, which the pool holds; what uses it is ordered by the device's stream. May be in
 * error. */
tr_tensor *tr__bucket_pool_take(tr__bucket_pool *pool, tr_dtype dtype, tr_device device, int64_t count);
void tr__bucket_pool_give(tr__bucket_pool *pool, const tr_tensor *memory);
void tr__bucket_pool_free(tr__bucket_pool *pool);

#endif
