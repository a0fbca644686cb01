#include "device/cpu/cache.h"

#include "base/memory.h"

#include <trireme/base.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define BLOCKS_FROM_MALLOC 1 /* so that AddressSanitizer sees each block's bounds and its end */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define BLOCKS_FROM_MALLOC 1
#endif
#endif
#ifndef BLOCKS_FROM_MALLOC
#define BLOCKS_FROM_MALLOC 0
#endif

enum {
    SMALL = 16 << 10,              /* below: malloc */
    GRAIN = 4 << 10,               /* large blocks are multiples of this */
    REGION = 1 << 30,              /* address space per region; what is never touched costs nothing */
    SMALLEST_REGION = 64 << 20,
    SHARED_REGION = 64 << 20,      /* what is shared is reserved at once */
};

/* A stretch of a region, in use or free. The list is in the order of addresses, regions one after the other. */
typedef struct block {
    struct block *previous, *next;
    char *memory;
    size_t bytes;
    bool in_use, first_of_region;
    struct block *chain; /* of the table of blocks in use, or of spare structs */
} block;

enum { TABLE = 1024 };

struct tr__cache {
    pthread_mutex_t lock;
    bool shared;
    block *first, *last;
    block *table[TABLE]; /* blocks in use by address */
    block *spare;
    size_t in_use, peak;
};

tr__cache *tr__cache_new(void)
{
    tr__cache *cache = calloc(1, sizeof *cache);
    if (cache) pthread_mutex_init(&cache->lock, NULL);
    return cache;
}

tr__cache *tr__cache_new_shared(void)
{
    tr__cache *cache = tr__cache_new();
    if (cache) cache->shared = true;
    return cache;
}

void tr__cache_delete(tr__cache *cache)
{
    if (!cache) return;
    for (block *b = cache->first; b;) {
        block *region = b;
        size_t bytes = 0;
        do {
            block *next = b->next;
            bytes += b->bytes;
            if (b != region) free(b);
            b = next;
        } while (b && !b->first_of_region);
        if (cache->shared)
            tr_shared_free(region->memory);
        else
            tr__pages_free(region->memory, bytes);
        free(region);
    }
    for (block *b = cache->spare; b;) {
        block *next = b->chain;
        free(b);
        b = next;
    }
    pthread_mutex_destroy(&cache->lock);
    free(cache);
}

static block *new_block(tr__cache *cache)
{
    block *b = cache->spare;
    if (b) {
        cache->spare = b->chain;
        *b = (block){0};
        return b;
    }
    return calloc(1, sizeof *b);
}

static void drop_block(tr__cache *cache, block *b)
{
    b->chain = cache->spare;
    cache->spare = b;
}

static block **table_place(tr__cache *cache, const void *memory)
{
    return &cache->table[((uintptr_t)memory / GRAIN * 0x9e3779b97f4a7c15u >> 32) % TABLE];
}

/* Adds a region that holds at least bytes, at the end of the list. */
static block *grow(tr__cache *cache, size_t bytes)
{
    block *b = new_block(cache);
    if (!b) return NULL;
    size_t usual = cache->shared ? SHARED_REGION : REGION;
    size_t size = bytes > usual ? tr__round_up(bytes, TR__HUGE_PAGE) : usual;
    /* Where address space is rationed, make do with less. */
    while (!(b->memory = cache->shared ? tr_shared_alloc(size) : tr__pages_alloc(size)) && size > bytes &&
           size > SMALLEST_REGION)
        size = size / 2 > bytes ? size / 2 : tr__round_up(bytes, GRAIN);
    if (!b->memory) {
        drop_block(cache, b);
        return NULL;
    }
    b->bytes = size;
    b->first_of_region = true;
    b->previous = cache->last;
    if (cache->last)
        cache->last->next = b;
    else
        cache->first = b;
    cache->last = b;
    return b;
}

/* Cuts what b has beyond bytes off into a free block of its own. */
static bool cut(tr__cache *cache, block *b, size_t bytes)
{
    if (b->bytes == bytes) return true;
    block *rest = new_block(cache);
    if (!rest) return false;
    rest->memory = b->memory + bytes;
    rest->bytes = b->bytes - bytes;
    rest->previous = b;
    rest->next = b->next;
    if (b->next)
        b->next->previous = rest;
    else
        cache->last = rest;
    b->next = rest;
    b->bytes = bytes;
    return true;
}

/* Appends a free block's right neighbour to it. */
static void absorb_next(tr__cache *cache, block *b)
{
    block *next = b->next;
    b->bytes += next->bytes;
    b->next = next->next;
    if (next->next)
        next->next->previous = b;
    else
        cache->last = b;
    drop_block(cache, next);
}

static void *take(tr__cache *cache, size_t bytes)
{
    block *b = cache->first;
    while (b && (b->in_use || b->bytes < bytes)) b = b->next;
    if (!b) b = grow(cache, bytes);
    if (!b || !cut(cache, b, bytes)) return NULL;
    b->in_use = true;
    block **place = table_place(cache, b->memory);
    b->chain = *place;
    *place = b;
    return b->memory;
}

/* Returns how long the block was; 0: there is none in use there. */
static size_t put_back(tr__cache *cache, const void *memory)
{
    block **place = table_place(cache, memory);
    while (*place && (*place)->memory != memory) place = &(*place)->chain;
    block *b = *place;
    if (!b) return 0;
    size_t bytes = b->bytes;
    *place = b->chain;
    b->in_use = false;
    if (b->next && !b->next->in_use && !b->next->first_of_region) absorb_next(cache, b);
    if (b->previous && !b->previous->in_use && !b->first_of_region) absorb_next(cache, b->previous);
    return bytes;
}

static void count_use(tr__cache *cache, size_t bytes)
{
    cache->in_use += bytes;
    if (cache->in_use > cache->peak) cache->peak = cache->in_use;
}

/* malloc keeps what a thread frees at hand for it, and aligned_alloc does not: so small blocks are aligned here, and what
 * malloc gave stands in front of them. */
static void *small_alloc(size_t bytes)
{
    bytes = tr__round_up(bytes, TR__CACHE_LINE);
    if (BLOCKS_FROM_MALLOC) return aligned_alloc(TR__CACHE_LINE, bytes);
    char *given = malloc(bytes + TR__CACHE_LINE);
    if (!given) return NULL;
    char *memory = given + TR__CACHE_LINE - (uintptr_t)given % TR__CACHE_LINE; /* 16 bytes on, at least */
    memcpy(memory - sizeof given, &given, sizeof given);
    return memory;
}

static void small_free(char *memory)
{
    char *given = memory;
    if (!BLOCKS_FROM_MALLOC) memcpy(&given, memory - sizeof given, sizeof given);
    free(given);
}

void *tr__cache_alloc(tr__cache *cache, size_t bytes)
{
    if (bytes > SIZE_MAX / 2) return NULL;
    bool small = !cache || (!cache->shared && (bytes < SMALL || BLOCKS_FROM_MALLOC));
    if (!small && cache->shared) bytes = tr__round_up(bytes ? bytes : 1, GRAIN); /* as it is counted when it comes back */
    void *memory = NULL;
    if (small) memory = small_alloc(bytes);
    if (!cache) return memory;
    pthread_mutex_lock(&cache->lock);
    if (!small) memory = take(cache, tr__round_up(bytes, GRAIN));
    if (memory) count_use(cache, bytes);
    pthread_mutex_unlock(&cache->lock);
    return memory;
}

void tr__cache_free(tr__cache *cache, void *memory, size_t bytes)
{
    if (!memory) return;
    bool small = bytes < SMALL || BLOCKS_FROM_MALLOC || !cache;
    if (small) small_free(memory);
    if (!cache) return;
    pthread_mutex_lock(&cache->lock);
    if (!small) put_back(cache, memory);
    cache->in_use -= bytes;
    pthread_mutex_unlock(&cache->lock);
}

bool tr__cache_free_shared(tr__cache *cache, const void *memory)
{
    if (!cache || (uintptr_t)memory % GRAIN) return false;
    pthread_mutex_lock(&cache->lock);
    size_t bytes = put_back(cache, memory);
    cache->in_use -= bytes;
    pthread_mutex_unlock(&cache->lock);
    return bytes > 0;
}

void tr__cache_lock(tr__cache *cache)
{
    if (cache) pthread_mutex_lock(&cache->lock);
}

void tr__cache_unlock(tr__cache *cache)
{
    if (cache) pthread_mutex_unlock(&cache->lock);
}

void tr__cache_make_private(tr__cache *cache)
{
    for (const block *b = cache ? cache->first : NULL; b; b = b->next)
        if (b->first_of_region) tr__segment_make_private(b->memory);
}

void tr__cache_trim(tr__cache *cache)
{
    if (!cache || cache->shared) return;
    pthread_mutex_lock(&cache->lock);
    for (block *b = cache->first; b; b = b->next)
        if (!b->in_use) tr__pages_empty(b->memory, b->bytes);
    pthread_mutex_unlock(&cache->lock);
}

void tr__cache_set_peak(tr__cache *cache, size_t peak)
{
    if (!cache) return;
    pthread_mutex_lock(&cache->lock);
    cache->peak = peak > cache->in_use ? peak : cache->in_use;
    pthread_mutex_unlock(&cache->lock);
}

void tr__cache_usage(tr__cache *cache, size_t *in_use, size_t *peak)
{
    *in_use = *peak = 0;
    if (!cache) return;
    pthread_mutex_lock(&cache->lock);
    *in_use = cache->in_use;
    *peak = cache->peak;
    pthread_mutex_unlock(&cache->lock);
}
