/* Things that are shared out. */
#ifndef TR_BASE_SHARE_H
#define TR_BASE_SHARE_H

#include <stdint.h>

/* The first of n things that a rank of so many gets, floor(n rank / world_size), for any n; n for the one behind the last rank. */
static inline int64_t tr__share_begin(int64_t n, int64_t rank, int64_t world_size)
{
    return n / world_size * rank + n % world_size * rank / world_size;
}

#endif
