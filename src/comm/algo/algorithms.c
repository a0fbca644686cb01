/* The public interface of algorithms: the table, where it comes from, and schedules. */
#include "comm/algo/choice.h"

#include "base/memory.h"
#include "base/object.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

enum { FILE_MOST = 1 << 20 };

static tr_status read_file(const char *path, char **text)
{
    FILE *file = fopen(path, "re");
    if (!file) return tr__fail_errno(TR_IO, errno, "the table of algorithms %s", path);
    *text = malloc(FILE_MOST + 1);
    size_t got = *text ? fread(*text, 1, FILE_MOST + 1, file) : 0;
    int error = ferror(file) ? errno : 0;
    fclose(file);
    if (!*text) return tr__fail(TR_NO_MEMORY, "no memory for the table of algorithms");
    if (error) return tr__fail_errno(TR_IO, error, "the table of algorithms %s", path);
    if (got > FILE_MOST || memchr(*text, 0, got))
        return tr__fail(TR_FORMAT, "%s is no table of algorithms: %s", path,
            got > FILE_MOST ? "it has more than a megabyte" : "there is a byte of 0 in it");
    (*text)[got] = 0;
    return TR_OK;
}

static const char *find_given(const char *given)
{
    if (!given) given = getenv("TRIREME_ALGORITHMS");
    return given && *given ? given : NULL;
}

/* given: rows, or "@FILE" with a file of rows; NULL: TRIREME_ALGORITHMS, or none. The built-in ones follow. */
static tr_status read_table(const char *given, tr__choice_table *table)
{
    given = find_given(given);
    if (!given || *given != '@') return tr__choice_read(table, given, NULL);
    TR__FREED char *text = NULL;
    TR__TRY(read_file(given + 1, &text));
    return tr__choice_read(table, text, given + 1);
}

static tr_status write_text(const tr__choice_table *table, char **text)
{
    *text = malloc(TR__CHOICES_TEXT);
    if (!*text) return tr__fail(TR_NO_MEMORY, "no memory for the table of algorithms");
    tr__choice_text(table, *text);
    return TR_OK;
}

tr_status tr__algorithms_text(const char *given, char **text)
{
    tr__choice_table table;
    *text = NULL;
    if (!find_given(given)) return TR_OK;
    TR__TRY(read_table(given, &table));
    return write_text(&table, text);
}

char *tr_algorithms(const char *first, int world_size)
{
    tr__choice_table table;
    char *text = NULL;
    if (read_table(first, &table) != TR_OK) return NULL;
    if (world_size > 0) tr__choice_keep(&table, world_size);
    return write_text(&table, &text) == TR_OK ? text : NULL;
}

/* ---- Schedules --------------------------------------------------------------------------------------------------- */

tr_status tr_schedule_find(tr_collective_kind kind, const char *algorithm, int world_size, int64_t bytes,
    tr_schedule *schedule)
{
    enum { SEGMENT = 4 << 20 }; /* as in transport/tcp_run.c */
    if ((unsigned)kind >= TR_COLLECTIVE_COUNT || tr__kind_of(kind)->variable || tr__kind_of(kind)->point_to_point)
        return tr__fail(TR_UNSUPPORTED, "tr_schedule_find: kind %d has no schedule", (int)kind);
    if (world_size < 1 || world_size > 1 << 20 || bytes < 0 || bytes > INT64_MAX / world_size)
        return tr__fail(TR_INVALID, "tr_schedule_find: %d ranks or %lld bytes are out of bounds", world_size,
            (long long)bytes);
    *schedule = (tr_schedule){.kind = kind, .world_size = world_size, .count = bytes, .segment = SEGMENT};
    if (!algorithm) {
        tr__choice_table table;
        TR__TRY(read_table(NULL, &table));
        schedule->algorithm = (int)tr__choose(&table, kind, world_size, bytes);
        return TR_OK;
    }
    schedule->algorithm = tr__algorithm_find(algorithm);
    if (schedule->algorithm >= 0 && tr__schedule_exists(kind, schedule->algorithm)) return TR_OK;
    return tr__fail(TR_NOT_FOUND, "tr_schedule_find: there is no %s by '%s'", tr__kind_name(kind), algorithm);
}

static tr__schedule inner(const tr_schedule *s)
{
    return (tr__schedule){.kind = s->kind, .algorithm = s->algorithm, .rank = s->rank, .world_size = s->world_size,
        .root = s->root, .count = s->count, .segment = s->segment};
}

static tr_schedule_part outer(tr__part part)
{
    return (tr_schedule_part){(int)part.buffer, part.range.begin, part.range.end};
}

int64_t tr_schedule_steps(const tr_schedule *schedule)
{
    tr__schedule s = inner(schedule);
    return tr__schedule_steps(&s);
}

tr_schedule_step tr_schedule_step_at(const tr_schedule *schedule, int64_t index)
{
    tr__schedule s = inner(schedule);
    tr__step step = tr__schedule_step(&s, index);
    return (tr_schedule_step){.action = step.action, .to = step.to, .from = step.from, .send = outer(step.send),
        .receive = outer(step.receive), .own = outer(step.own), .folds = step.take != TR__TAKE, .stride = step.stride};
}
