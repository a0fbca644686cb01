/*
 * How a buffer is shared out: pure functions of sizes, with no memory and no peers behind them.
 */
#ifndef TR_COMM_ALGO_SLICE_H
#define TR_COMM_ALGO_SLICE_H

#include <stddef.h>
#include <stdint.h>

/* Elements [begin, end). */
typedef struct tr__range {
    int64_t begin, end;
} tr__range;

static inline int64_t tr__length(tr__range range)
{
    return range.end - range.begin;
}

/* Part `index` of count elements in `parts` parts that follow each other and differ by one element at most. */
tr__range tr__split(int64_t count, int parts, int index);
/* The same in parts that differ by one cache line at most, and are cut at cache lines, so that two ranks never write to one line of a
 * buffer that begins at one. */
tr__range tr__slice(int64_t count, size_t element_bytes, int parts, int index);

/* Pieces of a buffer that pass through a staging area of chunk_bytes (a multiple of the cache line), one after
 * another; empty behind the last. */
int64_t tr__chunk_count(int64_t count, size_t element_bytes, size_t chunk_bytes);
tr__range tr__chunk(int64_t count, size_t element_bytes, size_t chunk_bytes, int64_t index);

#endif
