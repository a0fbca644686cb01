/*
 * The caching allocator of a CPU device. A training step asks for the same blocks again and again; the system would map and
 * clear them each time (0.25 us per 4 KiB), so blocks stay mapped.
 *
 * Small blocks come from malloc. Large ones are cut out of regions, lowest address first, and merge with their free
 * neighbours when they come back: addresses stay low, so the memory touched stays near the most that was ever in use.
 */
#ifndef TR_DEVICE_CPU_CACHE_H
#define TR_DEVICE_CPU_CACHE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct tr__cache tr__cache;

tr__cache *tr__cache_new(void); /* NULL without memory; the functions below take it */
/* One whose regions are shared segments, and all of whose blocks are large. Segments have their memory from the start, and keep
 * it: tr__cache_trim() does nothing. */
tr__cache *tr__cache_new_shared(void);
void tr__cache_delete(tr__cache *cache);
void *tr__cache_alloc(tr__cache *cache, size_t bytes); /* 64-byte aligned; NULL without memory */
void tr__cache_free(tr__cache *cache, void *memory, size_t bytes);
/* Frees a block of a shared cache whose size the caller does not know; false: it is not of this cache. */
bool tr__cache_free_shared(tr__cache *cache, const void *memory);
/* Around fork(): nobody changes the cache between the two. Then, in the child, of a shared cache: the blocks become its own
 * copies, and its parent's peers do not see them. */
void tr__cache_lock(tr__cache *cache);
void tr__cache_unlock(tr__cache *cache);
void tr__cache_make_private(tr__cache *cache);
/* Gives the memory of free blocks back to the system; their addresses stay, and are cleared when they are used again. */
void tr__cache_trim(tr__cache *cache);
/* Takes the peak to be this, or what is in use when that is more. */
void tr__cache_set_peak(tr__cache *cache, size_t peak);
void tr__cache_usage(tr__cache *cache, size_t *in_use, size_t *peak);

#endif
