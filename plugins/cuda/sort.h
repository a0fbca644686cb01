/* Sorting (key, place) pairs, in rows whose length is a power of two. */
#ifndef TRIREME_CUDA_SORT_H
#define TRIREME_CUDA_SORT_H

#include "kernel.h"

struct entry {
    uint64_t key;
    int64_t at; /* orders equal keys; INT64_MAX: behind all others, to fill a row */
};

inline int64_t sorted_row(int64_t n) /* the length of a row for n entries */
{
    int64_t padded = 1;
    while (padded < n) padded *= 2;
    return padded;
}

__device__ inline bool before(const entry &a, const entry &b)
{
    return a.key != b.key ? a.key < b.key : a.at < b.at;
}

/* Sorts each of the rows, [rows, padded], by key and place. */
tr_status sort_rows(const job &j, entry *entries, int64_t rows, int64_t padded);

#endif
