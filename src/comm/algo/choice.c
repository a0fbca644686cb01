#include "comm/algo/choice.h"

#include "base/hash.h"
#include "base/object.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Small messages cost rounds, large ones bytes; between them direct needs few rounds of small parts, as long as there
 * are few ranks. docs/communication.md has the costs. The network is Ethernet at 10 Gbit/s. */
static const char defaults[] =
    "all_reduce ranks 2-4 bytes 0-256K doubling;"
    "all_reduce ranks 5- bytes 0-16K doubling;"
    "all_reduce ranks 3-16 bytes 0-1M direct;"
    "all_reduce ranks 17- bytes 0-4M halving;"
    "all_reduce ranks 2- bytes 0- ring;"
    "reduce ranks 2- bytes 0-64K tree;"
    "reduce ranks 2-16 bytes 0- direct;"
    "reduce ranks 2- bytes 0- ring;"
    "broadcast ranks 2-4 bytes 0-64K direct;"
    "broadcast ranks 5- bytes 0-64K tree;"
    "broadcast ranks 2- bytes 0- ring;"
    "all_gather ranks 2-16 bytes 0- direct;"
    "all_gather ranks 2- bytes 0-16K doubling;"
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
    "barrier ranks 2- bytes 0- doubling;"
    "network latency_ns 20000 overhead_ns 2000 mbytes_per_s 1250 copy_mbytes_per_s 2500 fold_mbytes_per_s 10000;";

static const struct {
    const char *name;
    int64_t least;
} constants[TR__CONSTANT_COUNT] = {
#define ROW(name, least) {#name, least},
    TR__CONSTANT_MAP(ROW)
#undef ROW
};

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

enum { ROW = 256, WORDS = 12 };

static int find_kind(const char *name)
{
    for (int kind = 0; kind < TR_COLLECTIVE_COUNT; kind++)
        if (strcmp(tr__kind_name(kind), name) == 0) return kind;
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

/* {kind, "ranks", span, "bytes", span, algorithm} */
static tr_status read_choice(char *const *words, int count, const char *row, tr__choice *choice)
{
    int64_t from, to;
    if (count != 6 || strcmp(words[1], "ranks") != 0 || strcmp(words[3], "bytes") != 0)
        return tr__fail(TR_INVALID, "'%.80s' is no row of the table of algorithms; one is written 'all_reduce ranks 2-16 "
            "bytes 0-1M direct'", row);
    int kind = find_kind(words[0]), algorithm = tr__algorithm_find(words[5]);
    if (kind < 0) return tr__fail(TR_INVALID, "'%.80s' is no row: there is no collective '%s'", row, words[0]);
    if (!read_span(words[2], INT_MAX, &from, &to))
        return tr__fail(TR_INVALID, "'%.80s' is no row: '%s' are no ranks; they are written 2-16, 17- or 4", row, words[2]);
    if (!read_span(words[4], INT64_MAX, &choice->bytes_from, &choice->bytes_to))
        return tr__fail(TR_INVALID, "'%.80s' is no row: '%s' are no bytes; they are written 0-64K, 1M- or 4", row, words[4]);
    if (algorithm < 0 || !tr__schedule_exists(kind, algorithm))
        return tr__fail(TR_INVALID, "'%.80s': there is no %s by '%s'", row, words[0], words[5]);
    choice->kind = kind;
    choice->algorithm = algorithm;
    choice->ranks_from = (int)from;
    choice->ranks_to = (int)to;
    return TR_OK;
}

static bool covers(const tr__choice *a, const tr__choice *b)
{
    return a->kind == b->kind && a->ranks_from <= b->ranks_from && a->ranks_to >= b->ranks_to &&
           a->bytes_from <= b->bytes_from && a->bytes_to >= b->bytes_to;
}

static tr_status add_choice(tr__choice_table *table, const tr__choice *choice)
{
    for (int i = 0; i < table->count; i++)
        if (covers(&table->rows[i], choice)) return TR_OK;
    if (table->count == TR__CHOICES_MOST)
        return tr__fail(TR_INVALID, "the table of algorithms has more than %d rows", TR__CHOICES_MOST);
    table->rows[table->count++] = *choice;
    return TR_OK;
}

/* {"network", "latency_ns", number, …} */
static tr_status read_network(tr__choice_table *table, char *const *words, int count, const char *row)
{
    const int64_t most = 1000000000000;
    int64_t network[TR__CONSTANT_COUNT];
    for (int i = 0; i < TR__CONSTANT_COUNT && count == 1 + 2 * TR__CONSTANT_COUNT; i++) {
        const char *number = words[2 + 2 * i];
        if (strcmp(words[1 + 2 * i], constants[i].name) != 0) count = 0;
        else if (!read_number(&number, most, &network[i]) || *number || network[i] < constants[i].least)
            return tr__fail(TR_INVALID, "'%.120s': %s '%s' is no whole number from %" PRId64 " to %" PRId64, row,
                constants[i].name, words[2 + 2 * i], constants[i].least, most);
    }
    if (count != 1 + 2 * TR__CONSTANT_COUNT)
        return tr__fail(TR_INVALID, "'%.120s' is no row of the table of algorithms; a network is written 'network "
            "latency_ns 20000 overhead_ns 2000 mbytes_per_s 1250 copy_mbytes_per_s 2500 fold_mbytes_per_s 10000'", row);
    if (!table->has_network) memcpy(table->network, network, sizeof network);
    table->has_network = true;
    return TR_OK;
}

static tr_status read_row(tr__choice_table *table, const char *row)
{
    char copy[ROW], *words[WORDS], *rest = copy; /* one word too many when there are more */
    int count = 0;
    tr__choice choice;
    if (strlen(row) == ROW - 1) return tr__fail(TR_INVALID, "'%.80s…' is too long for a row", row);
    strcpy(copy, row);
    for (char *word; count < WORDS && (word = strtok_r(rest, " \t\r", &rest));) words[count++] = word;
    if (count == 0) return TR_OK;
    if (strcmp(words[0], "network") == 0) return read_network(table, words, count, row);
    TR__TRY(read_choice(words, count, row, &choice));
    return add_choice(table, &choice);
}

static tr_status read_rows(tr__choice_table *table, const char *text, const char *source)
{
    for (int line = 1; *text;) {
        char row[ROW];
        size_t length = strcspn(text, ";#\n"), to = strspn(text, " \t"), most = sizeof row - 1;
        if (to > length) to = length;
        snprintf(row, sizeof row, "%.*s", (int)(length - to < most ? length - to : most), text + to);
        tr_status status = read_row(table, row);
        if (status != TR_OK) return source ? tr__fail_context(status, "%s, line %d", source, line) : status;
        text += length;
        if (*text == '#') text += strcspn(text, "\n");
        line += *text == '\n';
        text += *text != 0;
    }
    return TR_OK;
}

tr_status tr__choice_read(tr__choice_table *table, const char *first, const char *source)
{
    table->count = 0;
    table->has_network = false;
    if (first) TR__TRY(read_rows(table, first, source));
    return read_rows(table, defaults, NULL);
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

void tr__choice_keep(tr__choice_table *table, int world_size)
{
    int count = table->count;
    table->count = 0;
    for (int i = 0; i < count; i++) {
        tr__choice c = table->rows[i];
        if (world_size < c.ranks_from || world_size > c.ranks_to) continue;
        c.ranks_from = c.ranks_to = world_size;
        (void)!add_choice(table, &c); /* there is room: the rows do not become more */
    }
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
    snprintf(text, 48, "%s%s%s", a, to == from ? "" : "-", to == from ? "" : b);
}

char *tr__choice_text(const tr__choice_table *table, char text[TR__CHOICES_TEXT])
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < table->count; i++) {
        const tr__choice *c = &table->rows[i];
        char ranks[48], bytes[48];
        write_span(c->ranks_from, c->ranks_to, INT_MAX, ranks);
        write_span(c->bytes_from, c->bytes_to, INT64_MAX, bytes);
        used += (size_t)snprintf(text + used, TR__CHOICES_TEXT - used, "%s ranks %s bytes %s %s\n", tr__kind_name(c->kind),
            ranks, bytes, tr__algorithm_name(c->algorithm));
    }
    used += (size_t)snprintf(text + used, TR__CHOICES_TEXT - used, "network");
    for (int i = 0; i < TR__CONSTANT_COUNT; i++)
        used += (size_t)snprintf(text + used, TR__CHOICES_TEXT - used, " %s %" PRId64, constants[i].name,
            table->network[i]);
    snprintf(text + used, TR__CHOICES_TEXT - used, "\n");
    return text;
}

uint64_t tr__choice_digest(const tr__choice_table *table)
{
    uint64_t hash = TR__HASH_BEGIN;
    for (int i = 0; i < table->count; i++) {
        const tr__choice *c = &table->rows[i];
        const int64_t numbers[] = {c->kind, c->algorithm, c->ranks_from, c->ranks_to, c->bytes_from, c->bytes_to};
        hash = tr__hash(hash, numbers, sizeof numbers);
    }
    return hash;
}
