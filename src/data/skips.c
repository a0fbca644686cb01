#include "data/skips.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

tr_status tr__skips_add(tr__skips *s, int64_t index, const char *text)
{
    size_t length = strlen(text) + 1;
    char *records = realloc(s->records, s->bytes + sizeof index + length);
    if (!records) return tr__fail(TR_NO_MEMORY, "no memory to note that sample %" PRId64 " was skipped", index);
    memcpy(records + s->bytes, &index, sizeof index);
    memcpy(records + s->bytes + sizeof index, text, length);
    s->records = records;
    s->bytes += sizeof index + length;
    return TR_OK;
}

tr_status tr__skips_copy(tr__skips *s, const char *records, size_t bytes)
{
    *s = (tr__skips){0};
    if (bytes == 0) return TR_OK;
    s->records = malloc(bytes);
    if (!s->records) return tr__fail(TR_NO_MEMORY, "no memory to note which samples were skipped");
    memcpy(s->records, records, bytes);
    s->bytes = bytes;
    return TR_OK;
}

bool tr__skips_next(const tr__skips *s, size_t *at, int64_t *index, const char **text)
{
    size_t begin = *at + sizeof *index;
    const char *end = begin < s->bytes ? memchr(s->records + begin, '\0', s->bytes - begin) : NULL;
    if (!end) return false;
    memcpy(index, s->records + *at, sizeof *index);
    *text = s->records + begin;
    *at = (size_t)(end + 1 - s->records);
    return true;
}

void tr__skips_drop(tr__skips *s)
{
    free(s->records);
    *s = (tr__skips){0};
}
