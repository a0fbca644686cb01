/*
 * Each rank has its facts as one string of bytes. The ranks exchange hashes of these; where they differ, the strings, so
 * all ranks see the same differences and fail alike. A fact is two lengths (uint32_t, of name and value; the second one's
 * highest bit: a difference is only told), the name with its NUL, the value.
 */
#include "comm/group/agree.h"

#include "base/c_locale.h"
#include "base/crc32c.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/object.h"
#include "comm/control.h"
#include "comm/record/record.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 1 << 20, SHOWN_DIFFERENCES = 3, SHOWN_BYTES = 80, VALUE_TEXT = SHOWN_BYTES + 64 };

static const uint32_t told_bit = 1u << 31;
static const char failure[] = "\1failed"; /* the name of a rank's only fact, where it failed; no program gives it */

char *tr__number_text(double value, char text[TR__NUMBER_TEXT])
{
    TR__C_NUMBERS;
    int digits = 6;
    do snprintf(text, TR__NUMBER_TEXT, "%.*g", digits, value);
    while (strtod(text, NULL) != value && ++digits <= 17);
    return text;
}

/* ---- Collecting ---------------------------------------------------------------------------------------------------- */

/* Room for more bytes behind those that are there; NULL: there is no memory. */
static char *reserve(tr__facts *facts, size_t more)
{
    if (!facts->bytes || facts->length + more > facts->capacity) {
        size_t capacity = 2 * facts->capacity + more + 1024;
        char *grown = realloc(facts->bytes, capacity);
        if (!grown) return NULL;
        facts->bytes = grown;
        facts->capacity = capacity;
    }
    return facts->bytes + facts->length;
}

void tr__facts_add(tr__facts *facts, const tr__fact *fact)
{
    uint32_t lengths[] = {(uint32_t)strlen(fact->name) + 1, (uint32_t)fact->bytes | (fact->told ? told_bit : 0)};
    size_t more = sizeof lengths + lengths[0] + fact->bytes;
    char *to = fact->bytes < told_bit ? reserve(facts, more) : NULL;
    if (!to) {
        facts->lost = true;
        return;
    }
    memcpy(to, lengths, sizeof lengths);
    memcpy(to + sizeof lengths, fact->name, lengths[0]);
    if (fact->bytes) memcpy(to + sizeof lengths + lengths[0], fact->value, fact->bytes);
    facts->length += more;
}

void tr__facts_say(tr__facts *facts, const char *name, const char *format, ...)
{
    char *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0)
        facts->lost = true;
    else
        tr__facts_add(facts, &(tr__fact){.name = name, .value = text, .bytes = (size_t)length});
    if (length >= 0) free(text);
}

void tr__facts_number(tr__facts *facts, const char *name, double value)
{
    char text[TR__NUMBER_TEXT];
    tr__facts_say(facts, name, "%s", tr__number_text(value, text));
}

/* The fact at `at`, which goes behind it; false at the end. */
static bool next_fact(const char **at, const char *end, tr__fact *fact)
{
    uint32_t lengths[2];
    if ((size_t)(end - *at) < sizeof lengths) return false;
    memcpy(lengths, *at, sizeof lengths);
    const char *name = *at + sizeof lengths;
    size_t bytes = lengths[1] & ~told_bit;
    if (lengths[0] == 0 || lengths[0] + bytes > (size_t)(end - name) || name[lengths[0] - 1]) return false;
    *fact = (tr__fact){name, name + lengths[0], bytes, lengths[1] & told_bit};
    *at = name + lengths[0] + bytes;
    return true;
}

bool tr__facts_next(const tr__facts *facts, size_t *at, tr__fact *fact)
{
    if (*at == facts->length) return false;
    const char *place = facts->bytes + *at;
    if (!next_fact(&place, facts->bytes + facts->length, fact)) return false;
    *at = (size_t)(place - facts->bytes);
    return true;
}

void tr__facts_free(tr__facts *facts)
{
    free(facts->bytes);
    *facts = (tr__facts){0};
}

/* ---- Comparing ----------------------------------------------------------------------------------------------------- */

/* The facts of a rank. */
typedef struct part {
    const char *begin, *end;
    const char *latest; /* that was found: the next one to be looked for is most often the one behind it */
} part;

/* A rank's fact of this name; without a name when there is none. */
static tr__fact find_fact(part *p, const char *name)
{
    tr__fact fact;
    const char *from = p->latest;
    for (int wrapped = 0; wrapped < 2; wrapped++) {
        const char *place = wrapped ? p->begin : from, *end = wrapped ? from : p->end;
        for (const char *at = place; next_fact(&at, end, &fact); place = at) {
            if (strcmp(fact.name, name) != 0) continue;
            p->latest = place;
            return fact;
        }
    }
    return (tr__fact){0};
}

static bool is_same(tr__fact a, tr__fact b)
{
    return !a.name == !b.name && a.bytes == b.bytes && (!a.bytes || memcmp(a.value, b.value, a.bytes) == 0);
}

/* Text as it is; long text and other bytes by their number and checksum, too. */
static const char *value_text(tr__fact fact, char text[VALUE_TEXT])
{
    if (!fact.name) return "no such value";
    const unsigned char *bytes = fact.value;
    bool printable = true;
    for (size_t i = 0; i < fact.bytes; i++) printable = printable && bytes[i] >= ' ' && bytes[i] != 0x7f;
    int shown = !printable ? 0 : fact.bytes < SHOWN_BYTES ? (int)fact.bytes : SHOWN_BYTES;
    int length = snprintf(text, VALUE_TEXT, "%.*s", shown, (const char *)fact.value);
    if (!printable || fact.bytes > SHOWN_BYTES)
        snprintf(text + length, VALUE_TEXT - (size_t)length, "%s%zu bytes with CRC-32C %08" PRIx32, shown ? "…, " : "",
                 fact.bytes, tr__crc32c(0, fact.value, fact.bytes));
    return text;
}

/* What rank `like` has under a name, and which ranks have the same. Marks these in seen. */
static void write_holders(FILE *to, part *all, int world_size, int like, const char *name, bool *seen, int *ranks)
{
    tr__fact wanted = find_fact(&all[like], name);
    char text[VALUE_TEXT], list[TR__RANKS_TEXT];
    int count = 0;
    for (int rank = 0; rank < world_size; rank++) {
        if (!is_same(find_fact(&all[rank], name), wanted)) continue;
        seen[rank] = true;
        ranks[count++] = rank;
    }
    fprintf(to, "%s on %s", value_text(wanted, text), tr__ranks_text(ranks, count, count, list));
}

static bool differs(part *all, int world_size, const char *name)
{
    tr__fact first = find_fact(&all[0], name);
    for (int rank = 1; rank < world_size; rank++)
        if (!is_same(first, find_fact(&all[rank], name))) return true;
    return false;
}

/* "lr is 0.1 on ranks 0 and 1, 0.2 on rank 2": each value once. */
static void write_difference(FILE *to, part *all, int world_size, const char *name, bool *seen, int *ranks)
{
    memset(seen, 0, (size_t)world_size * sizeof *seen);
    fprintf(to, "%.*s is ", SHOWN_BYTES, name);
    for (int rank = 0; rank < world_size; rank++) {
        if (seen[rank]) continue;
        if (rank) fputs(", ", to);
        write_holders(to, all, world_size, rank, name, seen, ranks);
    }
}

/* Writes the differences that are only told, or those that refuse. Goes through the names of all ranks, each once. */
static void write_differences(FILE *to, part *all, int world_size, bool told, bool *seen, int *ranks)
{
    int differences = 0;
    for (int rank = 0; rank < world_size; rank++) {
        const char *at = all[rank].begin;
        tr__fact fact;
        while (next_fact(&at, all[rank].end, &fact)) {
            bool visited = fact.told != told;
            for (int before = 0; before < rank && !visited; before++) visited = find_fact(&all[before], fact.name).name;
            if (visited || !differs(all, world_size, fact.name)) continue;
            if (differences) fputs("; ", to);
            if (differences++ == SHOWN_DIFFERENCES) {
                fputs("…", to);
                return;
            }
            write_difference(to, all, world_size, fact.name, seen, ranks);
        }
    }
}

/* The differences of a kind as text, to be freed; "": there are none. NULL: no memory. */
static char *differences_text(part *all, int world_size, bool told)
{
    TR__FREED bool *seen = tr__zeroed((size_t)world_size, sizeof *seen);
    TR__FREED int *ranks = tr__zeroed((size_t)world_size, sizeof *ranks);
    char *text = NULL;
    size_t length;
    FILE *to = seen && ranks ? open_memstream(&text, &length) : NULL;
    if (to) write_differences(to, all, world_size, told, seen, ranks);
    if (to) fclose(to);
    return text;
}

/* TR_PEER with the first failure of a rank, where there is one. */
static tr_status check_failures(part *all, int world_size)
{
    TR__FREED int *ranks = tr__zeroed((size_t)world_size, sizeof *ranks);
    int count = 0;
    if (!ranks) return tr__fail(TR_NO_MEMORY, "no memory to compare %d ranks", world_size);
    for (int rank = 0; rank < world_size; rank++)
        if (find_fact(&all[rank], failure).name) ranks[count++] = rank;
    tr__fact first = count ? find_fact(&all[ranks[0]], failure) : (tr__fact){0};
    char list[TR__RANKS_TEXT];
    if (count) tr__ranks_text(ranks, count, count, list);
    return count ? tr__fail(TR_PEER, "%s failed: %.*s", list, (int)first.bytes, (const char *)first.value) : TR_OK;
}

/* Logs the differences that only warn; fails on the others. */
static tr_status check_differences(part *all, const tr_group *group, const char *what)
{
    int world_size = tr_world_size(group);
    TR__FREED char *told = differences_text(all, world_size, true);
    TR__FREED char *refused = differences_text(all, world_size, false);
    if (told && *told && tr_rank(group) == 0) tr__log(TR_LOG_WARN, "%s: ranks differ: %s", what, told);
    if (!told || !refused) return tr__fail(TR_NO_MEMORY, "%s: no memory to compare %d ranks", what, world_size);
    return *refused ? tr__fail(TR_MISMATCH, "%s: ranks differ: %s", what, refused) : TR_OK;
}

/* bytes: all ranks' facts, one after the other. */
static tr_status compare(const tr_group *group, const char *what, const char *bytes, const int64_t *sizes)
{
    int world_size = tr_world_size(group);
    TR__FREED part *all = tr__zeroed((size_t)world_size, sizeof *all);
    if (!all) return tr__fail(TR_NO_MEMORY, "%s: no memory to compare %d ranks", what, world_size);
    for (int rank = 0; rank < world_size; bytes += sizes[rank++]) all[rank] = (part){bytes, bytes + sizes[rank], bytes};
    TR__TRY(check_failures(all, world_size));
    return check_differences(all, group, what);
}

static tr_status exchange(tr_group *group, const char *what, const tr__facts *facts)
{
    int world_size = tr_world_size(group);
    TR__FREED void *all = NULL;
    TR__FREED int64_t *numbers = tr__zeroed((size_t)world_size, sizeof *numbers);
    int64_t own = (int64_t)tr__hash(TR__HASH_BEGIN, facts->bytes, facts->length);
    if (!numbers || facts->lost) {
        tr__fail(TR_NO_MEMORY, "%s: no memory to compare %d ranks", what, world_size);
        tr__group_give_up(group);
        return TR_NO_MEMORY;
    }
    TR__TRY(tr_all_gather(group, &own, numbers, 1, .dtype = TR_I64));
    bool alike = true;
    for (int rank = 0; rank < world_size; rank++) alike = alike && numbers[rank] == own;
    if (alike) return TR_OK;
    TR__TRY(tr_all_gather_bytes(group, facts->bytes, facts->length, &all, numbers));
    return compare(group, what, all, numbers);
}

tr_status tr__agree(tr_group *group, const char *what, tr_status own, const tr__facts *facts)
{
    if (!group || tr__error_of(group)) return own == TR_OK ? tr_status_of(group) : own;
    if (tr_world_size(group) == 1) return own;
    if (own == TR_OK) return exchange(group, what, facts ? facts : &(tr__facts){0});
    tr__error *error = tr__error_take();
    tr__facts instead = {0};
    tr__facts_say(&instead, failure, "%s", error->message);
    (void)!exchange(group, what, &instead);
    tr__facts_free(&instead);
    return tr__error_restore(error);
}

tr_status tr__agree_once(tr_group *group, const char *what, tr_status own, tr__facts *facts)
{
    tr_status status = tr__agree(group, what, own, facts);
    tr__facts_free(facts);
    return status;
}

tr_status tr__agree_sums(tr_group *group, const char *what, tr_status own, double *sums, int n)
{
    if (!group || tr__error_of(group) || tr_world_size(group) == 1) return tr__agree(group, what, own, NULL);
    double all[TR__SUMS_MOST + 1] = {0}; /* the last one: how many ranks failed */
    tr__error *error = own == TR_OK ? NULL : tr__error_take();
    if (!error) memcpy(all, sums, (size_t)n * sizeof *sums);
    all[n] = error != NULL;
    tr_status status = tr_all_reduce(group, all, n + 1, .dtype = TR_F64);
    if (error) own = tr__error_restore(error);
    if (status != TR_OK) return own == TR_OK ? status : own;
    if (all[n] > 0) return tr__agree(group, what, own, NULL);
    memcpy(sums, all, (size_t)n * sizeof *sums);
    return TR_OK;
}

/* ---- The public calls ----------------------------------------------------------------------------------------------- */

tr_status tr_agree_bytes(tr_group *group, const char *name, const void *value, size_t bytes)
{
    tr_status own = TR_OK;
    tr__facts facts = {0};
    if (!group || !name || (!value && bytes))
        own = tr__fail(TR_INVALID, "tr_agree: %s is NULL", !group ? "the group" : name ? "the value" : "the name");
    else if (bytes > MOST_BYTES)
        own = tr__fail(TR_INVALID, "tr_agree: '%s' has %zu bytes, more than %d: compare its hash", name, bytes,
                        MOST_BYTES);
    else
        tr__facts_add(&facts, &(tr__fact){.name = name, .value = value, .bytes = bytes});
    return tr__agree_once(group, "tr_agree", own, &facts);
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
    char text[TR__NUMBER_TEXT];
    return tr_agree_text(group, name, tr__number_text(value, text));
}
