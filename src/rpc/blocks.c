/*
 * Blocks: shared memory in which tensors travel to a worker of this host. The sender copies a piece into a block once, and
 * tensors of the receiver lie in it; when the last of them goes, a flag in the block says so, and the sender uses it again,
 * or gives it back when it has not been used for a while.
 */
#include "rpc/agent.h"

#include "base/clock.h"
#include "base/memory.h"

#include <stdlib.h>

enum { IDLE_MS = 10000 };

struct tr__rpc_shared_block {
    tr__rpc_shared_block *next;
    char *memory;
    uint64_t segment;
    size_t bytes; /* without the head */
    int64_t used; /* when it was taken last */
};

/* ---- Ours -------------------------------------------------------------------------------------------------------- */

static atomic_uint *busy_flag(const tr__rpc_shared_block *b)
{
    return &((tr__rpc_block_head *)b->memory)->busy;
}

/* Four sizes per octave, so that one is found again. */
static size_t size_of_block(size_t bytes)
{
    size_t step = 4096;
    while (step * 8 < bytes) step *= 2;
    return tr__round_up(bytes, step);
}

static tr__rpc_shared_block *find_free(tr__rpc_blocks *blocks, size_t size)
{
    tr__rpc_shared_block *found = NULL;
    pthread_mutex_lock(&blocks->lock);
    for (tr__rpc_shared_block *b = blocks->first; b && !found; b = b->next)
        if (b->bytes == size && !atomic_load(busy_flag(b))) found = b;
    if (found) {
        atomic_store(busy_flag(found), 1);
        found->used = tr__now_ns();
    }
    pthread_mutex_unlock(&blocks->lock);
    return found;
}

static void free_block(tr__rpc_shared_block *b)
{
    tr_shared_free(b->memory);
    free(b);
}

static tr__rpc_shared_block *make_block(tr_rpc *rpc, tr__rpc_link *link, size_t size)
{
    tr__rpc_shared_block *b = malloc(sizeof *b);
    if (!b) {
        tr__fail(TR_NO_MEMORY, "rpc: no memory for a message");
        return NULL;
    }
    *b = (tr__rpc_shared_block){.bytes = size, .used = tr__now_ns(), .memory = tr_shared_alloc(size + TR__RPC_BLOCK_HEAD)};
    if (!b->memory || tr__raw_show(rpc->group, link->worker, b->memory, &b->segment) != TR_OK) {
        free_block(b);
        return NULL;
    }
    tr__segment_close(b->memory); /* nobody else is shown it */
    atomic_store(busy_flag(b), 1);
    pthread_mutex_lock(&link->blocks.lock);
    b->next = link->blocks.first;
    link->blocks.first = b;
    pthread_mutex_unlock(&link->blocks.lock);
    return b;
}

tr__rpc_shared_block *tr__block_take(tr_rpc *rpc, tr__rpc_link *link, size_t bytes, void **memory, uint64_t *segment)
{
    size_t size = size_of_block(bytes);
    tr__rpc_shared_block *b = find_free(&link->blocks, size);
    if (!b) b = make_block(rpc, link, size);
    if (!b) return NULL;
    *memory = b->memory + TR__RPC_BLOCK_HEAD;
    *segment = b->segment;
    return b;
}

void tr__block_filled(tr__rpc_shared_block *b)
{
    atomic_store_explicit(busy_flag(b), 1, memory_order_release);
}

void tr__block_give_back(tr__rpc_shared_block *b)
{
    atomic_store(busy_flag(b), 0);
}

void tr__blocks_trim(tr__rpc_link *link)
{
    int64_t since = tr__now_ns() - IDLE_MS * (int64_t)1000000;
    tr__rpc_shared_block *idle = NULL;
    bool gone = atomic_load(&link->gone); /* then nobody gives one back */
    pthread_mutex_lock(&link->blocks.lock);
    for (tr__rpc_shared_block **at = &link->blocks.first, *b; (b = *at);) {
        if ((atomic_load(busy_flag(b)) && !gone) || b->used > since) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        b->next = idle;
        idle = b;
    }
    pthread_mutex_unlock(&link->blocks.lock);
    for (tr__rpc_shared_block *next; idle; idle = next) {
        next = idle->next;
        free_block(idle);
    }
}

void tr__blocks_free(tr__rpc_link *link)
{
    for (tr__rpc_shared_block *b = link->blocks.first, *next; b; b = next) {
        next = b->next;
        free_block(b);
    }
    link->blocks.first = NULL;
}

/* ---- Theirs ------------------------------------------------------------------------------------------------------ */

static void release(void *memory, void *mapping)
{
    atomic_store(&((tr__rpc_block_head *)((char *)memory - TR__RPC_BLOCK_HEAD))->busy, 0);
    tr__shm_mapping_close(mapping);
    free(mapping);
}

bool tr__block_arrived(const tr__shm_mapping *mapping, uint64_t bytes, tr__rpc_arrived *piece)
{
    tr__shm_mapping *held = malloc(sizeof *held);
    if (!held || mapping->bytes < TR__RPC_BLOCK_HEAD || bytes > mapping->bytes - TR__RPC_BLOCK_HEAD) {
        tr__shm_mapping_close(mapping);
        free(held);
        return false;
    }
    *held = *mapping;
    *piece = (tr__rpc_arrived){.memory = held->memory + TR__RPC_BLOCK_HEAD, .bytes = bytes, .release = release,
        .user = held};
    return true;
}
