/*
 * Memory below the devices: aligned blocks, and segments that the processes of one host can map from each other.
 */
#ifndef TR_BASE_MEMORY_H
#define TR_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define TR__CACHE_LINE 64
#define TR__PAGE 4096
#define TR__HUGE_PAGE (2u << 20)

static inline size_t tr__round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* Before a pointer to memory from malloc(), or NULL: that is freed at the end of the block. What is allocated there comes from
 * tr__zeroed(), which is calloc() by another name: clang's analyser does not know the mark, and would miss a free(). */
#define TR__FREED __attribute__((cleanup(tr__freed)))
void *tr__zeroed(size_t count, size_t bytes);
static inline void tr__freed(void *pointer)
{
    void *memory;
    memcpy(&memory, pointer, sizeof memory);
    free(memory);
}

/* Room for one more element in a list from malloc(): `list` is the address of a pointer to `room` elements, of which
 * `count` are in use. False, and all is as it was, without memory. */
bool tr__grow(void *list, size_t count, size_t *room, size_t element_bytes);

/* Page-aligned anonymous memory for large blocks, asked to be backed by huge pages from TR__HUGE_PAGE up (they halve
 * the cost of passes over arenas); NULL without memory. bytes must be given back alike. */
void *tr__pages_alloc(size_t bytes);
void tr__pages_free(void *memory, size_t bytes);
/* Backs private anonymous memory, whoever allocated it, with huge pages where the kernel can (Linux 6.1) and the system allows
 * them: those that lie wholly in it, from an offset on, at most so many bytes of them, as each is copied before this returns. What
 * it holds stays. Returns the offset to go on from: `bytes` when there are no more. */
size_t tr__pages_collapse(void *memory, size_t bytes, size_t from, size_t most);
/* Maps pages of memory that has been reserved, as far as the kernel can (Linux 5.14), which takes less than a fault for each. */
void tr__pages_map(void *memory, size_t bytes);
/* Gives the memory behind some of these pages back to the system: they are zero at the next use. */
void tr__pages_empty(void *memory, size_t bytes);
/* Zeroes private memory, whole pages of it by returning them to the system: they take no memory until they are touched. */
void tr__pages_zero(void *memory, size_t bytes);

/* A shared segment: a memfd, mapped here. Peers get the descriptor over a socket; there is no name in the file
 * system, so nothing is left behind however the processes end. Segments are made by tr_shared_alloc(). */
typedef struct tr__segment {
    uint64_t id;   /* unique within this process, never used again */
    int fd;        /* sealed against shrinking: whoever maps it need not fear a SIGBUS; -1: closed */
    void *memory;
    size_t bytes;  /* as mapped, a multiple of the page size */
} tr__segment;

/* The segment that [memory, memory + bytes) lies in; returns 0 and leaves *segment alone when it is not shared. The
 * memory must not be freed meanwhile. Thread-safe, as all of these. */
int tr__segment_find(const void *memory, size_t bytes, tr__segment *segment);
/* Closes the descriptor of a segment that starts there: all peers that are to map it have been sent one. */
void tr__segment_close(const void *memory);
/* Raised when a segment is freed: as long as it stays the same, what tr__segment_find() said is true. */
uint64_t tr__segment_generation(void);

/* One more holder of a segment of this process: it stays mapped here even when tr_shared_free() has been called.
 * Returns 0 when it is freed already. How ranks that are threads of one process map each other's memory. */
int tr__segment_ref(uint64_t id, tr__segment *segment);
void tr__segment_unref(uint64_t id);

/* Around fork(): no other thread changes the segments between the two. Between them, in the child: the segment that
 * starts at memory becomes a private copy (where nobody has written since, later changes of the parent show through) and
 * is no segment any more; without its descriptor, or memory for that, it stays what it was. */
void tr__segments_lock(void);
void tr__segments_unlock(void);
void tr__segment_make_private(const void *memory);

/* Tells freed(user, id) of each segment that is freed, from the thread that frees it. It must not call back into this
 * module, and is not running any more when tr__segment_unwatch() returns. */
typedef struct tr__segment_watcher {
    void (*freed)(void *user, uint64_t id);
    void *user;
    struct tr__segment_watcher *next;
} tr__segment_watcher;
void tr__segment_watch(tr__segment_watcher *watcher);
void tr__segment_unwatch(tr__segment_watcher *watcher);

#endif
