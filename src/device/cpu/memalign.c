/*
 * posix_memalign() and free() whose large blocks lie in shared segments, for libraries with an allocator of their own
 * whose blocks are to be where the ranks of a host map them.
 */
#include "base/memory.h"
#include "device/cpu/cache.h"

#include <trireme/base.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

enum { LARGE = 64 << 10 };

/* Process-wide, as malloc's heap is. */
static struct {
    pthread_once_t once;
    tr__cache *cache; /* NULL: no memory for it */
} blocks = {.once = PTHREAD_ONCE_INIT};

static void before_fork(void)
{
    tr__cache_lock(blocks.cache);
    tr__segments_lock();
}

static void after_fork(void)
{
    tr__segments_unlock();
    tr__cache_unlock(blocks.cache);
}

/* The child's blocks would be its parent's. Afterwards they are private memory, which goes on being used. */
static void in_child(void)
{
    tr__cache_make_private(blocks.cache);
    after_fork();
}

static void begin(void)
{
    blocks.cache = tr__cache_new_shared();
    if (pthread_atfork(before_fork, after_fork, in_child) == 0) return;
    tr__cache_delete(blocks.cache);
    blocks.cache = NULL;
}

int tr_shared_memalign(void **memory, size_t alignment, size_t bytes)
{
    if (bytes < LARGE || alignment > TR__PAGE || alignment % sizeof(void *) || (alignment & (alignment - 1)))
        return posix_memalign(memory, alignment, bytes);
    pthread_once(&blocks.once, begin);
    void *block = blocks.cache ? tr__cache_alloc(blocks.cache, bytes) : NULL;
    if (!block) return posix_memalign(memory, alignment, bytes);
    *memory = block;
    return 0;
}

void tr_shared_memalign_free(void *memory)
{
    pthread_once(&blocks.once, begin);
    if (!tr__cache_free_shared(blocks.cache, memory)) free(memory);
}
