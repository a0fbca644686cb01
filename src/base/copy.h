/* Copies of more memory than the caches hold. */
#ifndef TR_BASE_COPY_H
#define TR_BASE_COPY_H

#include <stddef.h>

/* As memcpy, but the result goes straight to memory: it is not read from there first, and displaces nothing that is in the
 * caches. Slower where it would have stayed in them. */
void tr__copy_past_caches(void *to, const void *from, size_t bytes);
/* Bytes of the cache that neighbouring cores share. */
size_t tr__shared_cache(void);

#endif
