#include "data/text/strings.h"

#include "base/hash.h"
#include "base/memory.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

uint32_t tr__hash_bytes(const unsigned char *bytes, size_t count)
{
    uint64_t hash = tr__hash(TR__HASH_BEGIN, bytes, count);
    return (uint32_t)(hash ^ hash >> 32);
}

const unsigned char *tr__strings_at(const tr__strings *s, int i, size_t *count)
{
    size_t begin = i ? s->ends[i - 1] : 0;
    *count = s->ends[i] - begin;
    return s->bytes + begin;
}

/* The slot that holds the string, or the free one where it would be. */
static uint32_t slot_of(const tr__strings *s, const void *bytes, size_t count)
{
    uint32_t slot = tr__hash_bytes(bytes, count) & (s->slot_count - 1);
    for (; s->slots[slot] >= 0; slot = (slot + 1) & (s->slot_count - 1)) {
        size_t length;
        const unsigned char *there = tr__strings_at(s, s->slots[slot], &length);
        if (length == count && memcmp(there, bytes, count) == 0) break;
    }
    return slot;
}

int tr__strings_find(const tr__strings *s, const void *bytes, size_t count)
{
    return s->slot_count ? s->slots[slot_of(s, bytes, count)] : -1;
}

/* Twice as many slots as strings, at least. */
static tr_status widen(tr__strings *s)
{
    if (2 * ((uint32_t)s->count + 1) <= s->slot_count) return TR_OK;
    uint32_t wider = s->slot_count ? 2 * s->slot_count : 64;
    int32_t *slots = malloc(wider * sizeof *slots);
    if (!slots) return tr__fail(TR_NO_MEMORY, "no memory for %d strings", s->count);
    memset(slots, 0xff, wider * sizeof *slots);
    free(s->slots);
    s->slots = slots;
    s->slot_count = wider;
    for (int i = 0; i < s->count; i++) {
        size_t length;
        const unsigned char *bytes = tr__strings_at(s, i, &length);
        s->slots[slot_of(s, bytes, length)] = i;
    }
    return TR_OK;
}

static tr_status reserve(tr__strings *s, size_t count)
{
    if (s->count == INT_MAX / 4) return tr__fail(TR_NO_MEMORY, "more than %d strings", s->count);
    if (!tr__grow(&s->ends, (size_t)s->count, &s->room, sizeof *s->ends))
        return tr__fail(TR_NO_MEMORY, "no memory for %d strings", s->count + 1);
    if (s->capacity - s->used < count || !s->bytes) {
        size_t capacity = 2 * s->capacity + count + 256;
        unsigned char *bytes = realloc(s->bytes, capacity);
        if (!bytes) return tr__fail(TR_NO_MEMORY, "no memory for strings of %zu bytes", capacity);
        s->bytes = bytes;
        s->capacity = capacity;
    }
    return widen(s);
}

tr_status tr__strings_add(tr__strings *s, const void *bytes, size_t count, int *number, bool *fresh)
{
    TR__TRY(reserve(s, count));
    uint32_t slot = slot_of(s, bytes, count);
    if (fresh) *fresh = s->slots[slot] < 0;
    if (s->slots[slot] < 0) {
        if (count) memcpy(s->bytes + s->used, bytes, count);
        s->used += count;
        s->ends[s->count] = s->used;
        s->slots[slot] = s->count++;
    }
    *number = s->slots[slot];
    return TR_OK;
}

void tr__strings_free(tr__strings *s)
{
    free(s->bytes);
    free(s->ends);
    free(s->slots);
    *s = (tr__strings){0};
}
