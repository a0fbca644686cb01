/* Numbers that are not finite: NaN, and the two infinities. */
#ifndef TR_TENSOR_FINITE_H
#define TR_TENSOR_FINITE_H

#include <trireme/tensor.h>

typedef struct tr__not_finite {
    int64_t nans, infinities;
    int64_t first; /* the index of the first of them, row-major; meant only where there is one */
} tr__not_finite;

static inline bool tr__has_not_finite(const tr__not_finite *found)
{
    return found->nans + found->infinities > 0;
}

/* Those among n elements, of which the first has the index `at`. Of a dtype that has none, nothing is read. */
tr__not_finite tr__find_not_finite(tr_dtype dtype, const void *elements, int64_t n, int64_t at);
/* Adds what was found behind it. */
void tr__add_not_finite(tr__not_finite *sum, const tr__not_finite *behind);

#endif
