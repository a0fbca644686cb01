#include "parallel/bucket_pool.h"

#include "base/memory.h"

#include <stdlib.h>

/* Which of two free blocks: the smallest that is large enough; of too small ones, to be replaced, the largest. */
static bool better(const tr__pool_block *a, const tr__pool_block *b, int64_t count)
{
    if (!b) return true;
    int64_t x = tr__numel(a->memory->shape), y = tr__numel(b->memory->shape);
    if ((x >= count) != (y >= count)) return x >= count;
    return x >= count ? x < y : x > y;
}

tr_tensor *tr__bucket_pool_take(tr__bucket_pool *pool, tr_dtype dtype, tr_device device, int64_t count)
{
    tr__pool_block *best = NULL;
    for (size_t i = 0; i < pool->n; i++) {
        tr__pool_block *b = &pool->blocks[i];
        bool fits = b->memory->dtype == dtype && tr_device_equal(tr__device_of(b->memory), device);
        if (!b->taken && fits && better(b, best, count)) best = b;
    }
    if (!best || tr__numel(best->memory->shape) < count) {
        if (best) { /* goes before its successor comes: both may not fit */
            tr__unref(best->memory);
            *best = pool->blocks[--pool->n];
        }
        if (!tr__grow(&pool->blocks, pool->n, &pool->room, sizeof *pool->blocks))
            return tr__tensor_fail(TR_NO_MEMORY, "out of memory");
        tr_tensor *memory = tr_empty(TR_SHAPE(count), .dtype = dtype, .device = device, .shared = device.kind == TR_CPU);
        if (tr__bad(memory)) return memory;
        best = &pool->blocks[pool->n++];
        *best = (tr__pool_block){.memory = tr_keep(memory)};
    }
    best->taken = true;
    return best->memory;
}

void tr__bucket_pool_give(tr__bucket_pool *pool, const tr_tensor *memory)
{
    for (size_t i = 0; i < pool->n; i++)
        if (pool->blocks[i].memory == memory) pool->blocks[i].taken = false;
}

void tr__bucket_pool_free(tr__bucket_pool *pool)
{
    for (size_t i = 0; i < pool->n; i++) tr__unref(pool->blocks[i].memory);
    free(pool->blocks);
    *pool = (tr__bucket_pool){0};
}
