/* Byte strings, numbered in the order in which they came, and found by what they are. */
#ifndef TR_DATA_TEXT_STRINGS_H
#define TR_DATA_TEXT_STRINGS_H

#include "base/object.h"

#include <stdint.h>

typedef struct tr__strings {
    unsigned char *bytes; /* of all, one behind the other */
    size_t used, capacity;
    size_t *ends;         /* where each ends there */
    int count;
    size_t room;          /* of ends */
    int32_t *slots;       /* numbers by hash, -1: free; a power of two of them */
    uint32_t slot_count;
} tr__strings;

/* *number: of the string that is there now; *fresh: it was not before. fresh may be NULL. */
tr_status tr__strings_add(tr__strings *strings, const void *bytes, size_t count, int *number, bool *fresh);
/* Its number, or -1. */
int tr__strings_find(const tr__strings *strings, const void *bytes, size_t count);
/* String number i and its length; valid until one is added. */
const unsigned char *tr__strings_at(const tr__strings *strings, int i, size_t *count);
void tr__strings_free(tr__strings *strings);

/* FNV-1a, with the high bits mixed down. */
uint32_t tr__hash_bytes(const unsigned char *bytes, size_t count);

#endif
