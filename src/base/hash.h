/* FNV-1a: a hash for tables, and to find out whether ranks hold the same; no protection against forgery. */
#ifndef TR_BASE_HASH_H
#define TR_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define TR__HASH_BEGIN UINT64_C(0xcbf29ce484222325)

/* The hash of what was hashed before (nothing: TR__HASH_BEGIN) and these bytes behind it. */
static inline uint64_t tr__hash(uint64_t before, const void *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) before = (before ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    return before;
}

#endif
