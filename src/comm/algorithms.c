/* The public face of algorithms: the table, where it comes from, and predictions. */
#include "comm/algorithms.h"

#include "base/object.h"
#include "comm/algo/cost.h"
#include "comm/collective.h"

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

tr_status tr__algorithms_read(const char *given, tr__choice_table *table)
{
    given = find_given(given);
    if (!given || *given != '@') return tr__choice_read(table, given, NULL);
    char *text = NULL;
    tr_status status = read_file(given + 1, &text);
    if (status == TR_OK) status = tr__choice_read(table, text, given + 1);
    free(text);
    return status;
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
    TR__TRY(tr__algorithms_read(given, &table));
    return write_text(&table, text);
}

char *tr_algorithms(const char *first, int world_size)
{
    tr__choice_table table;
    char *text = NULL;
    if (tr__algorithms_read(first, &table) != TR_OK) return NULL;
    if (world_size > 0) tr__choice_keep(&table, world_size);
    return write_text(&table, &text) == TR_OK ? text : NULL;
}

/* ---- Predicting -------------------------------------------------------------------------------------------------- */

static tr_status check_prediction(tr_collective_kind kind, int world_size, int64_t bytes, const tr_network *network)
{
    if ((unsigned)kind >= TR_COLLECTIVE_COUNT || tr__kind_of(kind)->variable || tr__kind_of(kind)->point_to_point)
        return tr__fail(TR_UNSUPPORTED, "tr_predict: there is no prediction for kind %d", (int)kind);
    if (world_size < 1 || world_size > 1 << 20 || bytes < 0 || bytes > INT64_MAX / world_size)
        return tr__fail(TR_INVALID, "tr_predict: %d ranks or %lld bytes are out of bounds", world_size, (long long)bytes);
    if (network && (!(network->gbytes_per_s > 0) || !(network->latency_us >= 0) || !(network->overhead_us >= 0) ||
                       !(network->copy_gbytes_per_s >= 0) || !(network->fold_gbytes_per_s >= 0)))
        return tr__fail(TR_INVALID, "tr_predict: a network has a bandwidth above 0, and no negative times or speeds");
    return TR_OK;
}

static tr_status find_algorithm(tr_collective_kind kind, const char *name, tr__algorithm *algorithm)
{
    for (int a = 0; a < TR__ALGORITHM_COUNT; a++) {
        *algorithm = a;
        if (strcmp(tr__algorithm_name(a), name) == 0 && tr__schedule_exists(kind, a)) return TR_OK;
    }
    return tr__fail(TR_NOT_FOUND, "tr_predict: there is no %s by '%s'", tr__kind_name(kind), name);
}

static tr_network table_network(const tr__choice_table *table)
{
    const int64_t *c = table->network;
    return (tr_network){.latency_us = (double)c[TR__latency_ns] * 1e-3, .overhead_us = (double)c[TR__overhead_ns] * 1e-3,
        .gbytes_per_s = (double)c[TR__mbytes_per_s] * 1e-3, .copy_gbytes_per_s = (double)c[TR__copy_mbytes_per_s] * 1e-3,
        .fold_gbytes_per_s = (double)c[TR__fold_mbytes_per_s] * 1e-3};
}

tr_status tr_predict(tr_collective_kind kind, const char *algorithm, int world_size, int64_t bytes,
    const tr_network *network, double *seconds)
{
    enum { PIECE = 64 << 10, SEGMENT = 4 << 20 }; /* as in transport/tcp_flow.h and tcp_run.c */
    tr__schedule s = {.kind = kind, .world_size = world_size, .count = bytes, .segment = SEGMENT};
    tr__choice_table table;
    TR__TRY(check_prediction(kind, world_size, bytes, network));
    if (algorithm) TR__TRY(find_algorithm(kind, algorithm, &s.algorithm));
    if (!algorithm || !network) TR__TRY(tr__algorithms_read(NULL, &table));
    if (!algorithm) s.algorithm = tr__choose(&table, kind, world_size, bytes);
    tr_network n = network ? *network : table_network(&table);
    tr__network paper = {.latency = n.latency_us * 1e-6, .overhead = n.overhead_us * 1e-6,
        .bandwidth = n.gbytes_per_s * 1e9, .copy = n.copy_gbytes_per_s * 1e9, .fold = n.fold_gbytes_per_s * 1e9,
        .piece = PIECE};
    return tr__cost(&s, 1, &paper, seconds);
}
