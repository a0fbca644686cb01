/*
 * Each rank sends its facts as one string of bytes and gets everybody's, so all ranks see the same differences and fail
 * alike. A fact is sent as two lengths (uint32_t, of name and value), the name, the value.
 */
#include "comm/agree.h"

#include "base/crc32c.h"
#include "base/object.h"
#include "comm/record.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 1 << 20, SHOWN_DIFFERENCES = 3, SHOWN_BYTES = 60, VALUE_TEXT = 4 * SHOWN_BYTES };

/* A place in the facts of a rank. */
typedef struct cursor {
    const unsigned char *at, *end;
} cursor;

/* The next fact: its name is not ended by a NUL. False at the end. */
static bool next_fact(cursor *c, tr__fact *fact, size_t *name_bytes)
{
    uint32_t lengths[2];
    if ((size_t)(c->end - c->at) < sizeof lengths) return false;
    memcpy(lengths, c->at, sizeof lengths);
    c->at += sizeof lengths;
    if ((uint64_t)lengths[0] + lengths[1] > (uint64_t)(c->end - c->at)) return false;
    *name_bytes = lengths[0];
    *fact = (tr__fact){.name = (const char *)c->at, .value = c->at + lengths[0], .bytes = lengths[1]};
    c->at += lengths[0] + lengths[1];
    return true;
}

/* A rank's fact of this name; without a name when there is none. */
static tr__fact find_fact(cursor c, const char *name, size_t name_bytes)
{
    tr__fact fact;
    size_t bytes;
    while (next_fact(&c, &fact, &bytes))
        if (bytes == name_bytes && memcmp(fact.name, name, bytes) == 0) return fact;
    return (tr__fact){0};
}

static bool is_same(tr__fact a, tr__fact b)
{
    return !a.name == !b.name && a.bytes == b.bytes && (!a.bytes || memcmp(a.value, b.value, a.bytes) == 0);
}

/* Text as it is, other bytes by their number and checksum. */
static const char *value_text(tr__fact fact, char text[VALUE_TEXT])
{
    if (!fact.name) return "no such value";
    const unsigned char *bytes = fact.value;
    bool printable = true;
    for (size_t i = 0; i < fact.bytes; i++) printable = printable && bytes[i] >= ' ' && bytes[i] != 0x7f;
    if (!printable)
        snprintf(text, VALUE_TEXT, "%zu bytes with CRC-32C %08" PRIx32, fact.bytes,
                 tr__crc32c(0, fact.value, fact.bytes));
    else
        snprintf(text, VALUE_TEXT, "%.*s%s", (int)(fact.bytes < SHOWN_BYTES ? fact.bytes : SHOWN_BYTES),
                 (const char *)fact.value, fact.bytes > SHOWN_BYTES ? "…" : "");
    return text;
}

/* What rank `like` has under a name, and which ranks have the same. Marks these in seen. */
static void write_holders(FILE *to, const cursor *all, int world_size, int like, const char *name, size_t name_bytes,
                          bool *seen, int *ranks)
{
    tr__fact wanted = find_fact(all[like], name, name_bytes);
    char text[VALUE_TEXT], list[TR__RANKS_TEXT];
    int count = 0;
    for (int rank = 0; rank < world_size; rank++) {
        if (!is_same(find_fact(all[rank], name, name_bytes), wanted)) continue;
        seen[rank] = true;
        ranks[count++] = rank;
    }
    fprintf(to, "%s on %s", value_text(wanted, text), tr__ranks_text(ranks, count, count, list));
}

static bool differs(const cursor *all, int world_size, const char *name, size_t name_bytes)
{
    tr__fact first = find_fact(all[0], name, name_bytes);
    for (int rank = 1; rank < world_size; rank++)
        if (!is_same(first, find_fact(all[rank], name, name_bytes))) return true;
    return false;
}

/* "lr is 0.1 on ranks 0 and 1, 0.2 on rank 2": each value once. */
static void write_difference(FILE *to, const cursor *all, int world_size, const char *name, size_t name_bytes,
                             bool *seen, int *ranks)
{
    memset(seen, 0, (size_t)world_size * sizeof *seen);
    fprintf(to, "%.*s is ", (int)(name_bytes < SHOWN_BYTES ? name_bytes : SHOWN_BYTES), name);
    for (int rank = 0; rank < world_size; rank++) {
        if (seen[rank]) continue;
        if (rank) fputs(", ", to);
        write_holders(to, all, world_size, rank, name, name_bytes, seen, ranks);
    }
}

/* Goes through the names of all ranks, each once. False: there is no difference. */
static bool write_differences(FILE *to, const cursor *all, int world_size, bool *seen, int *ranks)
{
    int differences = 0;
    for (int rank = 0; rank < world_size; rank++) {
        cursor c = all[rank];
        tr__fact fact;
        size_t name_bytes;
        while (next_fact(&c, &fact, &name_bytes)) {
            bool visited = false;
            for (int before = 0; before < rank && !visited; before++)
                visited = find_fact(all[before], fact.name, name_bytes).name;
            if (visited || !differs(all, world_size, fact.name, name_bytes)) continue;
            if (differences) fputs("; ", to);
            if (differences++ == SHOWN_DIFFERENCES) {
                fputs("…", to);
                return true;
            }
            write_difference(to, all, world_size, fact.name, name_bytes, seen, ranks);
        }
    }
    return differences > 0;
}

static tr_status compare(tr_group *group, const char *what, const unsigned char *bytes, const int64_t *sizes)
{
    int world_size = tr_world_size(group);
    cursor *all = calloc((size_t)world_size, sizeof *all);
    bool *seen = calloc((size_t)world_size, sizeof *seen);
    int *ranks = calloc((size_t)world_size, sizeof *ranks);
    char *text = NULL;
    size_t length;
    FILE *to = open_memstream(&text, &length);
    tr_status status = TR_OK;
    if (!all || !seen || !ranks || !to) {
        status = tr__fail(TR_NO_MEMORY, "%s: no memory to compare %d ranks", what, world_size);
    } else {
        for (int rank = 0; rank < world_size; bytes += sizes[rank++]) all[rank] = (cursor){bytes, bytes + sizes[rank]};
        bool differ = write_differences(to, all, world_size, seen, ranks);
        fflush(to);
        if (differ) status = tr__fail(TR_MISMATCH, "%s: ranks differ: %s", what, text);
    }
    if (to) fclose(to);
    free(text);
    free(ranks);
    free(seen);
    free(all);
    return status;
}

tr_status tr__agree(tr_group *group, const char *what, const tr__fact *facts, int count)
{
    TR__TRY(tr_status_of(group));
    if (tr_world_size(group) == 1) return TR_OK;
    char *own = NULL;
    size_t length = 0;
    FILE *to = open_memstream(&own, &length);
    if (!to) return tr__fail(TR_NO_MEMORY, "%s: no memory for %d values", what, count);
    for (int i = 0; i < count; i++) {
        uint32_t lengths[] = {(uint32_t)strlen(facts[i].name), (uint32_t)facts[i].bytes};
        fwrite(lengths, sizeof lengths, 1, to);
        fwrite(facts[i].name, 1, lengths[0], to);
        fwrite(facts[i].value, 1, lengths[1], to);
    }
    bool lost = fflush(to) != 0 || ferror(to);
    fclose(to);

    void *all = NULL;
    int64_t *sizes = malloc((size_t)tr_world_size(group) * sizeof *sizes);
    tr_status status = lost || !sizes ? tr__fail(TR_NO_MEMORY, "%s: no memory for %d values", what, count)
                                      : tr_all_gather_bytes(group, own, length, &all, sizes);
    if (status == TR_OK) status = compare(group, what, all, sizes);
    free(all);
    free(sizes);
    free(own);
    return status;
}

/* ---- The public calls ---------------------------------------------------------------------------------------------
 */

tr_status tr_agree_bytes(tr_group *group, const char *name, const void *value, size_t bytes)
{
    if (!name || (!value && bytes))
        return tr__fail(TR_INVALID, "tr_agree: %s is NULL", name ? "the value" : "the name");
    if (bytes > MOST_BYTES)
        return tr__fail(TR_INVALID, "tr_agree: '%s' has %zu bytes, more than %d: compare its hash", name, bytes,
                        MOST_BYTES);
    return tr__agree(group, "tr_agree", &(tr__fact){name, bytes ? value : "", bytes}, 1);
}

tr_status tr_agree_text(tr_group *group, const char *name, const char *value)
{
    return tr_agree_bytes(group, name, value, value ? strlen(value) : 1);
}

tr_status tr_agree_integer(tr_group *group, const char *name, int64_t value)
{
    char text[32];
    return tr_agree_bytes(group, name, text, (size_t)snprintf(text, sizeof text, "%" PRId64, value));
}

tr_status tr_agree_number(tr_group *group, const char *name, double value)
{
    char text[32]; /* 17 digits: no two numbers have the same text */
    return tr_agree_bytes(group, name, text, (size_t)snprintf(text, sizeof text, "%.17g", value));
}
