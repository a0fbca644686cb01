/* A place in memory, and memory that grows with what is asked of it. */
#ifndef TR_COMM_MEMORY_H
#define TR_COMM_MEMORY_H

#include "base/object.h"

#include <stdlib.h>

typedef struct tr__memory {
    char *at;
    size_t bytes;
} tr__memory;

/* From malloc(), at least so long; what was in it is lost when it grows. */
static inline tr_status tr__memory_need(tr__memory *memory, size_t bytes)
{
    if (bytes <= memory->bytes) return TR_OK;
    free(memory->at);
    memory->at = malloc(bytes);
    memory->bytes = memory->at ? bytes : 0;
    return memory->at ? TR_OK : tr__fail(TR_NO_MEMORY, "no memory for %zu bytes on their way", bytes);
}

#endif
