/* Copies of more memory than the caches hold. */
#ifndef TR_BASE_COPY_H
#define TR_BASE_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* As memcpy, but the result goes straight to memory: it is not read from there first, and displaces nothing that is in the
 * caches. Slower where it would have stayed in them. */
void tr__copy_past_caches(void *to, const void *from, size_t bytes);
static inline void tr__copy(void *to, const void *from, size_t bytes, bool past_caches)
{
    if (past_caches)
        tr__copy_past_caches(to, from, bytes);
    else
        memcpy(to, from, bytes);
}
/* Bytes of the cache that neighbouring cores share. */
size_t tr__shared_cache(void);

#endif
