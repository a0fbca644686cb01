#include "comm/algo/choice.h"

#include "base/object.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Small messages cost rounds, large ones bytes; between them direct needs few rounds of small parts, as long as there
 * are few ranks. docs/communication.md has the costs. */
static const char defaults[] =
    "all_reduce ranks 2- bytes 0-16K doubling;"
    "all_reduce ranks 3-16 bytes 0-1M direct;"
    "all_reduce ranks 17- bytes 0-4M halving;"
    "all_reduce ranks 2- bytes 0- ring;"
    "reduce ranks 2- bytes 0-64K tree;"
    "reduce ranks 2-16 bytes 0- direct;"
    "reduce ranks 2- bytes 0- ring;"
    "broadcast ranks 2-4 bytes 0-64K direct;"
    "broadcast ranks 5- bytes 0-64K tree;"
    "broadcast ranks 2- bytes 0- ring;"
    "all_gather ranks 4- bytes 0-16K doubling;"
    "all_gather ranks 2-16 bytes 0- direct;"
    "all_gather ranks 2- bytes 0- ring;"
    "gather ranks 9- bytes 0-4K tree;"
    "gather ranks 2- bytes 0- direct;"
    "scatter ranks 9- bytes 0-4K tree;"
    "scatter ranks 2- bytes 0- direct;"
    "reduce_scatter ranks 2-16 bytes 0-1M direct;"
    "reduce_scatter ranks 2- bytes 0- ring;"
    "all_to_all ranks 2- bytes 0- direct;"
    "all_gather_v ranks 2-16 bytes 0- direct;"
    "all_gather_v ranks 2- bytes 0- ring;"
    "gather_v ranks 2- bytes 0- direct;"
    "scatter_v ranks 2- bytes 0- direct;"
    "all_to_all_v ranks 2- bytes 0- direct;"
    "barrier ranks 2- bytes 0- doubling;";

static const char *const kinds[TR_COLLECTIVE_COUNT] = {
#define ROW(name, text) [TR_##name] = text,
    TR_COLLECTIVE_MAP(ROW)
#undef ROW
};

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

static int find_kind(const char *name)
{
    for (int kind = 0; kind < TR_COLLECTIVE_COUNT; kind++)
        if (strcmp(kinds[kind], name) == 0) return kind;
    return -1;
}

static int find_algorithm(const char *name)
{
    for (int algorithm = 0; algorithm < TR__ALGORITHM_COUNT; algorithm++)
        if (strcmp(tr__algorithm_name(algorithm), name) == 0) return algorithm;
    return -1;
}

/* "64", "16K" */
static bool read_number(const char **text, int64_t most, int64_t *number)
{
    char *end;
    if (**text < '0' || **text > '9') return false;
    long long value = strtoll(*text, &end, 10);
    int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    if (shift) end++;
    *text = end;
    if (value < 0 || value > most >> shift) return false;
    *number = value << shift;
    return true;
}

/* "2-16", "17-", "4": from and to; without an end `most`. */
static bool read_span(const char *text, int64_t most, int64_t *from, int64_t *to)
{
    if (!read_number(&text, most, from)) return false;
    *to = *from;
    if (*text == 0) return true;
    if (*text++ != '-') return false;
    *to = most;
    return *text == 0 || (read_number(&text, most, to) && *text == 0 && *to >= *from);
}

static tr_status read_row(const char *row, tr__choice *choice)
{
    char kind[24], ranks[24], bytes[48], algorithm[24], more;
    int64_t from, to;
    int fields = sscanf(row, " %23s ranks %23s bytes %47s %23s %c", kind, ranks, bytes, algorithm, &more);
    int found_kind = fields == 4 ? find_kind(kind) : -1, found = fields == 4 ? find_algorithm(algorithm) : -1;
    if (found_kind < 0 || found < 0 || !read_span(ranks, INT_MAX, &from, &to) ||
        !read_span(bytes, INT64_MAX, &choice->bytes_from, &choice->bytes_to))
        return tr__fail(TR_INVALID, "'%.80s' is no row of the table of algorithms; one is written 'all_reduce ranks 2-16 "
            "bytes 0-1M direct'", row);
    if (!tr__schedule_exists(found_kind, found))
        return tr__fail(TR_INVALID, "'%.80s': there is no %s by '%s'", row, kind, algorithm);
    choice->kind = found_kind;
    choice->algorithm = found;
    choice->ranks_from = (int)from;
    choice->ranks_to = (int)to;
    return TR_OK;
}

static tr_status read_rows(tr__choice_table *table, const char *text)
{
    while (*text) {
        char row[128];
        size_t length = strcspn(text, ";\n");
        bool blank = strspn(text, " \t") >= length;
        snprintf(row, sizeof row, "%.*s", (int)(length < sizeof row ? length : sizeof row - 1), text);
        text += length + (text[length] != 0);
        if (blank) continue;
        if (table->count == TR__CHOICES_MOST)
            return tr__fail(TR_INVALID, "the table of algorithms has more than %d rows", TR__CHOICES_MOST);
        TR__TRY(read_row(row, &table->rows[table->count]));
        table->count++;
    }
    return TR_OK;
}

tr_status tr__choice_defaults(tr__choice_table *table, const char *first)
{
    table->count = 0;
    if (first) TR__TRY(read_rows(table, first));
    return read_rows(table, defaults);
}

/* ---- Choosing ---------------------------------------------------------------------------------------------------- */

tr__algorithm tr__choose(const tr__choice_table *table, tr_collective_kind kind, int world_size, int64_t bytes)
{
    for (int i = 0; i < table->count; i++) {
        const tr__choice *c = &table->rows[i];
        if (c->kind == kind && world_size >= c->ranks_from && world_size <= c->ranks_to && bytes >= c->bytes_from &&
            bytes <= c->bytes_to)
            return c->algorithm;
    }
    return TR__DIRECT; /* every kind has a last row that fits all */
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

static void write_number(int64_t number, char text[24])
{
    static const char suffixes[] = {'G', 'M', 'K'};
    for (int i = 0; i < 3; i++) {
        int shift = 30 - 10 * i;
        if (number && number % ((int64_t)1 << shift) == 0) {
            snprintf(text, 24, "%" PRId64 "%c", number >> shift, suffixes[i]);
            return;
        }
    }
    snprintf(text, 24, "%" PRId64, number);
}

static void write_span(int64_t from, int64_t to, int64_t most, char text[48])
{
    char a[24], b[24] = "";
    write_number(from, a);
    if (to < most) write_number(to, b);
    snprintf(text, 48, "%s-%s", a, b);
}

char *tr__choice_text(const tr__choice_table *table, char text[TR__CHOICES_TEXT])
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < table->count && used + 128 < TR__CHOICES_TEXT; i++) {
        const tr__choice *c = &table->rows[i];
        char ranks[48], bytes[48];
        write_span(c->ranks_from, c->ranks_to, INT_MAX, ranks);
        write_span(c->bytes_from, c->bytes_to, INT64_MAX, bytes);
        used += (size_t)snprintf(text + used, TR__CHOICES_TEXT - used, "%s ranks %s bytes %s %s\n", kinds[c->kind],
            ranks, bytes, tr__algorithm_name(c->algorithm));
    }
    return text;
}
